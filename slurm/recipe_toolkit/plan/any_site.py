"""A site for what is planned without a profile."""

from __future__ import annotations

from recipe_toolkit.cluster import Cluster, Container, Tool
from recipe_toolkit.recipe import Recipe


def any_site(recipe: Recipe) -> Cluster:
    """A site that has what the recipe names."""
    named = [path for path in (recipe.model.path, recipe.model.tokenizer) if path and not path.startswith(("/", "hf:"))]
    models = {alias: f"/{alias}" for alias in named}
    data = {item.data: f"/{item.data}" for item in recipe.benchmarks if item.data and not item.data.startswith("/")}
    if not recipe.setup:
        return Cluster(name="any", scheduler="slurm", runs="/", models=models, data=data)
    tools = dict.fromkeys(("vllm", "sim"), Tool(image="any"))
    return Cluster("any", "slurm", "/", models=models, data=data, tools=tools, container=Container("docker"))
