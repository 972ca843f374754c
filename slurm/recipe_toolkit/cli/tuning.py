"""The stages of ``recipe tune``, each from what is there."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from recipe_toolkit.cli import frontier as showing
from recipe_toolkit.cli.foreign import load_any
from recipe_toolkit.cli.planning import Planned, plan_sweeps
from recipe_toolkit.cli.rows import table
from recipe_toolkit.cli.submit import submit_planned
from recipe_toolkit.cli.sweeping import check_budget, hours, unfinished
from recipe_toolkit.cluster_loader import load_cluster
from recipe_toolkit.document import dump_yaml
from recipe_toolkit.errors import InputError, Problem, RecipeError, UnknownRun
from recipe_toolkit.recipe import Parallel
from recipe_toolkit.recipe_loader import LoadedRecipe
from recipe_toolkit.rundir import RunDir, write_atomic
from recipe_toolkit.submit.find import roots
from recipe_toolkit.submit.sweeps import counts
from recipe_toolkit.submit.tunes import TuneDir, open_tune
from recipe_toolkit.tune.proposals import Proposal, proposals
from recipe_toolkit.tune.stages import CONFIRM, MEASURED, check_tune, confirming, most_nodes, split_fields, stage

_PROPOSED = 3


@dataclass(frozen=True)
class Limits:
    """What the runs may take, as `recipe submit` has it."""

    at_once: int | None
    max_nodes: int | None
    max_node_hours: float | None
    follow: bool


class Tuning:
    """A recipe with `tune`, and the folder of what has been measured for it. Raises InputError for a bad one."""

    def __init__(
        self, file: Path, cluster: str | None, sets: Sequence[str], folder: Path | None, limits: Limits
    ) -> None:
        self._file, self._cluster, self._limits = file, cluster, limits
        self._loaded = load_any(file, sets)
        check_tune(self._loaded)
        self._tune: Mapping[str, Any] = self._loaded.document.data["tune"]
        self._root = folder or Path(f"tune-{self._loaded.recipe.name}")
        self._site = load_cluster(cluster)

    @cached_property
    def _dir(self) -> TuneDir:
        return open_tune(self._root, self._loaded.recipe.name)

    @cached_property
    def _folders(self) -> list[Path]:
        return roots(None, self._cluster)

    @cached_property
    def _stages(self) -> dict[Path, LoadedRecipe]:
        """The recipes of the measured stages; what is wrong with both at once."""
        found: dict[Path, LoadedRecipe] = {}
        problems: list[Problem] = []
        for role in MEASURED:
            try:
                found[self._root / f"{role}.yaml"] = stage(self._loaded, role)
            except InputError as error:
                problems += error.problems
        if problems:
            raise InputError(problems)
        return found

    @cached_property
    def _planned(self) -> list[Planned]:
        """The runs of prefill and decode alone, all of them."""
        return plan_sweeps(self._stages, self._cluster)

    # --- what it costs

    def print_cost(self, *, as_json: bool) -> None:
        """A row a stage: runs, points, node-hours at most."""
        planned = self._planned
        rows = [self._cost(role, [item for item in planned if item.file.stem == role]) for role in MEASURED]
        runs = int(self._tune.get("confirm", _PROPOSED))
        nodes = self._most_nodes()
        node_hours = runs * nodes * self._loaded.recipe.time_limit_s / 3600
        rows.append({"stage": CONFIRM, "runs": runs, "points": runs, "nodes": nodes, "node_hours": node_hours})
        total = sum(row["node_hours"] for row in rows)
        if as_json:
            click.echo(json.dumps({"schema": 1, "stages": rows, "node_hours": total}, indent=2))
            return
        head = ("STAGE", "RUNS", "NODES OF A RUN", "POINTS", "NODE-HOURS")
        shown = [(row["stage"], row["runs"], row["nodes"], row["points"], hours(row["node_hours"])) for row in rows]
        table([head, *(tuple(map(str, row)) for row in shown)])
        click.echo(f"at most {hours(total)} node-hours; confirming runs only with --confirm")

    def _cost(self, role: str, planned: Sequence[Planned]) -> dict[str, Any]:
        return {
            "stage": role,
            "runs": len(planned),
            "points": sum(len(item.plan.benchmarks) for item in planned),
            "nodes": max(len(item.plan.nodes) for item in planned),
            "node_hours": sum(item.node_hours for item in planned),
        }

    def _most_nodes(self) -> int:
        sizes = {
            role: [Parallel(**item["parallel"]) for item in self._tune[role]["topologies"].values()]
            for role in MEASURED
        }
        return most_nodes(self._tune["gpus"], self._loaded.recipe.resources.gpus_per_node, sizes)

    # --- the stages

    def run(self, only: str | None, *, confirm: bool, as_json: bool) -> int:
        """One stage, or all of them; the exit code."""
        with contextlib.redirect_stdout(sys.stderr):
            if only in (None, "capacity"):
                self._show_capacity()
            roles = [role for role in MEASURED if only in (None, role)]
            code = self._measure(roles) if roles else 0
        if code or only in ("capacity", *MEASURED):
            return code
        data, proposed = self._predicted()
        if confirm and proposed:
            with contextlib.redirect_stdout(sys.stderr):
                code = self._submit(CONFIRM, proposed)
        data = self._with_measured(data)
        showing.write(data, self._dir.frontier)
        showing.show(data, as_json=as_json)
        for line in self._told(proposed):
            click.echo(line, err=True)
        return code or (0 if data["points"] else 1)

    def _show_capacity(self) -> None:
        """What each topology holds, where the model and the GPU are known."""
        from recipe_toolkit.fitting import known_capacity

        for item in self._planned:
            role, name = item.file.stem, item.swept.id if item.swept else ""
            answer = known_capacity(item.recipe.recipe, self._site.cluster)
            if answer is None:
                click.echo(f"{role} {name}: what it holds is not known: {_unknown(item)}")
                continue
            click.echo("\n".join(f"{role} {name}: {line.partition(': ')[2]}" for line in item.memory))
            for check in answer.roles[0].checks:
                if check.verdict != "ok":
                    click.echo(f"  {check.verdict}: {check.text}")

    def _measure(self, roles: Sequence[str]) -> int:
        """Submit what is left of prefill and decode alone, and wait for all of it; the exit code."""
        planned = [item for item in self._planned if item.file.stem in roles]
        for role in roles:
            self._write(self._dir.recipe(role), self._stages[self._root / f"{role}.yaml"])
        return self._run(planned, {self._root / f"{role}.yaml": role for role in roles})

    def _run(self, planned: Sequence[Planned], stages: Mapping[Path, str]) -> int:
        if self._limits.at_once and (code := self._wait(list(stages.values()))):
            return code  # those of an earlier command count among them
        left: list[Planned] = []
        for file, name in stages.items():
            left += self._left([item for item in planned if item.file == file], self._dir.sweeps[name])
        limits = self._limits
        if left:
            check_budget(left, limits.at_once, limits.max_nodes, limits.max_node_hours)
            sweeps = {file: self._dir.sweeps[name] for file, name in stages.items()}
            code = submit_planned(
                left, self._cluster, limits.at_once, False, None, False, not limits.follow, limits.follow, False, sweeps
            )
            if code:
                return self._failed(code)
        return self._wait(list(stages.values()))

    def _left(self, planned: Sequence[Planned], sweep: str) -> list[Planned]:
        """The runs that have no results that count and do not go on; says of the others."""
        try:
            names = unfinished(planned, sweep, self._folders).variants
        except UnknownRun:
            return list(planned)
        return [item for item in planned if item.swept and any(one.id in names for one in item.swept.variants)]

    def _wait(self, stages: Sequence[str]) -> int:
        """Wait for the runs of an earlier command that still go on; the exit code."""
        from recipe_toolkit.cli.following import Follower
        from recipe_toolkit.cli.interrupts import Presses, detach

        folders = [state.folder for name in stages for state in self._states(name) if not state.final]
        going = [RunDir(Path(folder)) for folder in dict.fromkeys(folders)]
        if not going:
            return 0
        follower = Follower(None, follow=self._limits.follow, as_json=False, several=len(going) > 1)
        with Presses() as presses:
            try:
                code = follower.wait(going)
            except KeyboardInterrupt:
                return detach(presses, [run for run in going if not follower.has_ended(run)], [], as_json=False)
        return self._failed(code) if code else 0

    def _states(self, name: str) -> Iterator[Any]:
        """Of every run of the stage: one that goes on may be of a variant that an earlier recipe's has measured."""
        sweep = self._dir.sweep(name, self._folders)
        if sweep is not None:
            yield from (state for state, _ in sweep.variants())

    def _failed(self, code: int) -> int:
        click.echo(
            "not all has been measured: the same command measures what is left, and "
            f"`recipe tune {self._file} --stage frontier` combines what there is",
            err=True,
        )
        return code

    # --- the frontier

    def _parts(self, *stages: str) -> list[Any]:
        found = [state for name in stages for state, _ in self._of_this_recipe(name)]
        folders = [state.folder for state in found if counts(state) or state.final]
        return [showing.part_of(RunDir(Path(folder))) for folder in dict.fromkeys(folders)]

    def _of_this_recipe(self, name: str) -> Sequence[tuple[Any, Mapping[str, Any]]]:
        """The stage's variants with their runs, without those of another recipe than the one that is there now."""
        sweep = self._dir.sweep(name, self._folders)
        if sweep is None:
            return []
        known = {variant["id"]: variant["values"] for _, variant in sweep.variants()}
        planned = self._planned if name in MEASURED else self._planned_again(known)
        runs = [item.swept for item in planned if item.swept and item.file.stem == name]
        return sweep.latest({digest for run in runs for digest in run.digests})

    def _planned_again(self, variants: Mapping[str, Mapping[str, Any]]) -> list[Planned]:
        """Confirming runs of the splits of earlier ones; none of a split that cannot be planned any more."""
        found: list[Planned] = []
        for name, fields in variants.items():
            with contextlib.suppress(InputError):
                recipe = confirming(self._loaded, {name: fields})
                found += plan_sweeps({self._root / f"{CONFIRM}.yaml": recipe}, self._cluster)
        return found

    def _predicted(self) -> tuple[dict[str, Any], list[Planned]]:
        """The frontier of what is measured alone, and the recipes that confirm it, written."""
        parts = self._parts(*MEASURED)
        if not parts:
            raise RecipeError("nothing has been measured yet for the recipe as it is", hint=f"recipe tune {self._file}")
        data = self._frontier(parts)
        return data, self._propose(data)

    def _with_measured(self, data: dict[str, Any]) -> dict[str, Any]:
        """The frontier with the confirming runs beside their predictions, where there are any."""
        confirmed = self._parts(CONFIRM)
        return self._frontier([*self._parts(*MEASURED), *confirmed]) if confirmed else data

    def _frontier(self, parts: Sequence[Any]) -> dict[str, Any]:
        from recipe_toolkit.frontier.document import Asked

        asked = Asked(self._tune["gpus"], bool(self._tune.get("exactly")), showing.axes_of(()))
        return showing.frontier_of(parts, asked, self._tune.get("transfer_gb_per_s"))

    def _topologies(self, data: Mapping[str, Any]) -> dict[str, str]:
        """The topology of each pool: the end of its recipe's name."""
        from recipe_toolkit.sweep.names import name_of_variant

        found = {}
        for role in MEASURED:
            base = self._stages[self._root / f"{role}.yaml"].recipe.name
            names = {name_of_variant(base, name): name for name in self._tune[role]["topologies"]}
            found.update({pool["id"]: names[pool["recipe"]] for pool in data["pools"] if pool["recipe"] in names})
        return found

    def _propose(self, data: Mapping[str, Any]) -> list[Planned]:
        """The first of the proposals that can be planned, written as recipes of their own."""
        topologies = self._topologies(data)
        known = {**data, "points": [point for point in data["points"] if _is_known(point, topologies)]}
        most = int(self._tune.get("confirm", _PROPOSED))
        accepted: list[Proposal] = []
        planned: list[Planned] = []
        for proposal in proposals(known, topologies):
            if len(accepted) == most:
                break
            try:
                planned = self._plan_confirming([*accepted, proposal])
            except InputError as error:
                click.echo(f"{proposal.name} is left out: {error.problems[0].message}", err=True)
                continue
            accepted.append(proposal)
        if accepted:
            planned = self._plan_confirming(accepted)
        for item in planned:
            assert item.swept is not None
            self._write(self._dir.confirm / f"{item.swept.id}.yaml", item.recipe)
        return planned

    def _plan_confirming(self, accepted: Sequence[Proposal]) -> list[Planned]:
        variants = {
            item.name: split_fields(self._loaded, item.topologies, item.instances, [item.concurrency])
            for item in accepted
        }
        recipe = confirming(self._loaded, variants)
        return plan_sweeps({self._root / f"{CONFIRM}.yaml": recipe}, self._cluster)

    def _submit(self, name: str, planned: Sequence[Planned]) -> int:
        return self._run(planned, {self._root / f"{name}.yaml": name})

    def _told(self, proposed: Sequence[Planned]) -> Iterator[str]:
        """What is not confirmed yet."""
        done = {variant["id"] for variant in self._confirmed()}
        left = [item for item in proposed if item.swept and any(one.id not in done for one in item.swept.variants)]
        if left:
            total = sum(item.node_hours for item in left)
            yield f"runs that confirm it, at most {hours(total)} node-hours, with --confirm:"
            yield from (f"  {self._dir.confirm / item.swept.id}.yaml" for item in left if item.swept)

    def _confirmed(self) -> Iterator[Mapping[str, Any]]:
        yield from (variant for state, variant in self._of_this_recipe(CONFIRM) if counts(state))

    def _write(self, path: Path, recipe: LoadedRecipe) -> None:
        """A recipe as a file of its own; a sweep with it. Raises RecipeError."""
        data = dict(recipe.data)
        if "sweep" in recipe.document.data:
            data["sweep"] = recipe.document.data["sweep"]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, dump_yaml(data))
        except OSError as error:
            raise RecipeError(f"cannot write {path}: {error.strerror or error}", hint="--folder DIR") from error


def _is_known(point: Mapping[str, Any], topologies: Mapping[str, str]) -> bool:
    return all(point[role]["pool"] in topologies for role in MEASURED)


def _unknown(item: Planned) -> str:
    recipe = item.recipe.recipe
    if recipe.engine.kind == "sim":
        return "the simulated engine holds no model"
    return "nothing is known of the model or the GPU, see `recipe capacity`"
