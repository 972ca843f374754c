"""The simulated engine: vLLM's own command line behind another head."""

from __future__ import annotations

from dataclasses import replace

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan.container import Needs
from recipe_toolkit.plan.flags import document
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.tools import Runner, runner
from recipe_toolkit.plan.values import PackagePath, Python, Value
from recipe_toolkit.recipe import Recipe, Role

TOKENIZER = PackagePath("sim/tokenizer")
TOOL = "sim"
# A Python elsewhere finds this package where the agent does; it needs the standard library alone.
NEEDS = Needs([PackagePath("")])
_SEARCH = {"PYTHONPATH": PackagePath("..")}
# Meant for the environment or the image of vLLM; the simulated engine lives in the agent's.
_OF_VLLM = frozenset({"LD_PRELOAD", "PYTHONHOME", "PYTHONPATH"})


def engine_runner(recipe: Recipe, cluster: Cluster) -> Runner:
    """How the profile runs the recipe's engine: the simulated one with the agent's Python, unless a tool says else.

    Raises InputError for an image without a runtime.
    """
    if recipe.engine.kind != "sim":
        return runner(cluster, "vllm", recipe.engine.image)
    return runner(cluster, TOOL, program="python3") if TOOL in cluster.tools else Runner(Python())


def simulated(recipe: Recipe, cluster: Cluster, role: Role, process: Process) -> Process:
    """The process of vLLM as one of the simulated engine.

    It is told what it is by RECIPE_INSTANCE and RECIPE_RANK, because a fault may be one process's alone.
    """
    head: tuple[Value, ...] = (engine_runner(recipe, cluster).head, "-m", "recipe_toolkit.sim")
    options = {**recipe.engine.sim, **role.sim}
    tail = ("--sim", document(options)) if options else ()
    identity = {"RECIPE_INSTANCE": str(process.instance), "RECIPE_RANK": str(process.rank)}
    env = {key: value for key, value in process.env.items() if key not in _OF_VLLM}
    search = _SEARCH if TOOL in cluster.tools else {}
    return replace(process, argv=(*head, *process.argv[1:], *tail), env={**env, **search, **identity})
