"""What is said of each file that ``recipe validate`` is given."""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from recipe_toolkit.cli.foreign import load_any
from recipe_toolkit.cli.planning import judge, plan_runs
from recipe_toolkit.cluster_loader import LoadedCluster, load_profile
from recipe_toolkit.document import parse_yaml
from recipe_toolkit.errors import InputError, Problem, printable
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.recipe_loader import LoadedRecipe
from recipe_toolkit.text_file import read_text

_SUFFIXES = (".yaml", ".yml")
_RECIPES = "recipes are *.yaml with `schema` and `roles`, or `extends`"


@dataclass(frozen=True)
class Verdict:
    """What is said of one file. ``kind``: ``recipe`` or ``profile``; ``facts`` is None where it is refused."""

    file: str
    kind: str
    facts: dict[str, object] | None
    problems: Sequence[Problem]

    def strictly(self) -> Verdict:
        """The verdict where a warning refuses the file."""
        warned = any(problem.severity == "warning" for problem in self.problems)
        return replace(self, facts=None) if warned else self

    def line(self) -> str:
        """The line of a good file."""
        facts, file = self.facts or {}, printable(self.file)
        if self.kind == "profile":
            return f"{file}: ok (profile {facts['name']}, {facts['scheduler']})"
        slots = _count(facts["gpus"], "GPU" if facts["device"] == "gpu" else "CPU slot")
        said = f"{facts['name']}, {_count(facts['nodes'], 'node')}, {slots}"
        if "variants" in facts:
            said += f"; sweep of {_count(facts['variants'], 'variant')} in {_count(facts['runs'], 'run')}"
        head = f"{file}: ok ({said})"
        memory = facts.get("memory")
        return "\n  ".join([head, *memory]) if isinstance(memory, list) else head

    def to_json(self) -> str:
        """One JSON object."""
        problems = [problem.to_json() for problem in self.problems]
        head = {"file": self.file, "kind": self.kind, "ok": self.facts is not None}
        return json.dumps({**head, **(self.facts or {}), "problems": problems})


def _count(number: object, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def show(verdict: Verdict, as_json: bool, told: Container[Problem] = ()) -> None:
    """Print a verdict: a line or an object on stdout, problems on stderr but those that have been ``told``."""
    if as_json:
        click.echo(verdict.to_json())
        return
    for problem in verdict.problems:
        if problem not in told:
            click.echo(problem.render(), err=True)
    if verdict.facts is not None:
        click.echo(verdict.line())


def verdicts(path: Path, cluster: LoadedCluster | None, sets: Sequence[str]) -> Iterator[Verdict]:
    """The verdict on a file, or on each recipe and profile below a folder."""
    if not os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for a name that is too long
        yield _verdict(path, _kind(path) or "recipe", cluster, sets)
        return
    found = False
    for file in _yaml_files(path):
        kind = _kind(file)
        if kind is not None:
            found = True
            yield _verdict(file, kind, cluster, sets)
    if not found:
        problem = Problem(str(path), 0, 0, "", "no recipe in this folder", _RECIPES)
        yield Verdict(str(path), "recipe", None, [problem])


def _yaml_files(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root, name) for name in sorted(files) if name.endswith(_SUFFIXES))


def _kind(path: Path) -> str | None:
    """``recipe`` or ``profile`` by the file's top-level keys; None where it seems to be neither."""
    try:
        text = read_text(path)
    except InputError:
        return None
    try:
        data = parse_yaml(text, str(path)).data
        keys = set(data) if isinstance(data, dict) else set()
    except InputError:
        keys = {line.partition(":")[0].rstrip() for line in text.splitlines()}
    if keys & {"scheduler", "runs"} and not keys & {"roles", "engine", "model", "extends"}:
        return "profile"
    return "recipe" if "extends" in keys or {"schema", "roles"} <= keys else None


def _verdict(path: Path, kind: str, cluster: LoadedCluster | None, sets: Sequence[str]) -> Verdict:
    try:
        if kind == "profile":
            profile = load_profile(path)
            facts: dict[str, object] = {"name": profile.cluster.name, "scheduler": profile.cluster.scheduler}
            return Verdict(str(path), kind, facts, profile.warnings)
        recipe = load_any(path, sets)
        plan, memory = judge(recipe, cluster)
        facts = _facts(plan)
        if memory.lines:
            facts["memory"] = list(memory.lines)
        found = [*recipe.warnings, *memory.problems]
        if "sweep" in recipe.document.data:
            runs, further = plan_runs(recipe, cluster)
            facts.update(variants=sum(len(run.variants) for run, _, _ in runs), runs=len(runs))
            found = sorted({*found, *further})
        if "tune" in recipe.document.data:
            _check_tune(recipe, cluster)
        return Verdict(str(path), kind, facts, found)
    except InputError as error:
        return Verdict(str(path), kind, None, error.problems)


def _check_tune(recipe: LoadedRecipe, cluster: LoadedCluster | None) -> None:
    """What `recipe tune` would measure must be right too. Raises InputError."""
    from recipe_toolkit.tune.stages import MEASURED, check_tune, stage

    check_tune(recipe)
    for role in MEASURED:
        plan_runs(stage(recipe, role), cluster)


def _facts(plan: Plan) -> dict[str, object]:
    return {"name": plan.name, "nodes": len(plan.nodes), "device": plan.device, "gpus": plan.gpus.working}
