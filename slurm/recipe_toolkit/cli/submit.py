"""``recipe submit``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.errors import printable

if TYPE_CHECKING:
    from recipe_toolkit.cli.interrupts import Presses
    from recipe_toolkit.cli.planning import Planned
    from recipe_toolkit.rundir import RunDir
    from recipe_toolkit.submit import Submitted
    from recipe_toolkit.submit.dependency import Queueing

Command = TypeVar("Command", bound=Callable[..., Any])


def submission_options(command: Command) -> Command:
    """What every verb that submits takes."""
    for option in reversed(
        (
            click.option(
                "-s", "--set", "sets", multiple=True, metavar="FIELD=VALUE", help="Change a field; repeatable."
            ),
            click.option("--strict", is_flag=True, help="Refuse for a warning too."),
            click.option(
                "--dry-run", is_flag=True, help="Print what would be submitted, byte for byte; needs no Slurm."
            ),
            click.option(
                "-d",
                "--dependency",
                metavar="SPEC",
                help="Start after other jobs: sbatch's, with run ids in place of job ids.",
            ),
            click.option("--hold", is_flag=True, help="Submit held: `scontrol release` lets it start."),
            click.option("--wait", is_flag=True, help="Wait for the end; the exit code says how the run ended."),
            click.option("--follow", is_flag=True, help="Wait, and print what happens."),
            click.option("--json", "as_json", is_flag=True, help="Print one JSON object a run."),
        )
    ):
        command = option(command)
    return command


@click.command("submit")
@click.argument(
    "files",
    metavar="FILE...",
    nargs=-1,
    required=True,
    type=click.Path(readable=False, path_type=Path),
    shell_complete=completing.recipe_files,
)
@click.option(
    "-c",
    "--cluster",
    metavar="NAME|FILE",
    shell_complete=completing.profiles,
    help="The cluster profile (default: $RECIPE_CLUSTER).",
)
@click.option("--rehearse", is_flag=True, help="With the simulated engine in place of vLLM: no GPU, no model.")
@click.option("--at-once", type=click.IntRange(min=1), metavar="N", help="Of several runs, at most N at a time.")
@click.option("--only", metavar="PATTERN", help="Of a sweep, only the variants whose ids match: 'tp-8*'.")
@click.option("--resume", metavar="SWEEP", help="Only what an earlier sweep has no valid results of: its id, or last.")
@click.option("--max-nodes", type=click.IntRange(min=1), metavar="N", help="Refuse to hold more nodes at a time.")
@click.option(
    "--max-node-hours",
    type=click.FloatRange(min=0, min_open=True),
    metavar="H",
    help="Refuse what could take more: nodes x time limit, over all runs.",
)
@submission_options
def submit_command(
    files: tuple[Path, ...],
    cluster: str | None,
    sets: tuple[str, ...],
    rehearse: bool,
    strict: bool,
    dry_run: bool,
    at_once: int | None,
    only: str | None,
    resume: str | None,
    max_nodes: int | None,
    max_node_hours: float | None,
    dependency: str | None,
    hold: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
) -> int:
    """Write the run folder of each recipe FILE and submit its job; nothing is submitted if one is refused.

    A recipe with a `sweep` becomes a run for each variant; those that differ in their benchmarks alone share one.
    Prints the runs' ids. With --wait or --follow the exit code is that of `recipe wait`. Ctrl-C leaves the
    runs alone and says how to come back to them; a second one cancels them.
    """
    from recipe_toolkit.cli import sweeping
    from recipe_toolkit.cli.planning import plan_all
    from recipe_toolkit.submit.find import roots

    check_form(dependency)
    planned = plan_all(files, cluster, sets, rehearse=rehearse, strict=strict, only=only)
    ids = None
    if resume is not None:
        left = sweeping.unfinished(planned, resume, roots(None, cluster))
        if not left.variants:
            click.echo("nothing is left to submit", err=True)
            return 0
        ids = {left.file: left.sweep}
        if len(left.variants) < left.of:
            planned = plan_all(files, cluster, sets, rehearse=rehearse, left=left.variants)
    sweeping.check_budget(planned, at_once, max_nodes, max_node_hours)
    return submit_planned(planned, cluster, at_once, dry_run, dependency, hold, wait, follow, as_json, ids)


def submit_planned(
    planned: Sequence[Planned],
    cluster: str | None,
    at_once: int | None,
    dry_run: bool,
    dependency: str | None,
    hold: bool,
    wait: bool,
    follow: bool,
    as_json: bool,
    sweeps: dict[Path, str] | None = None,
) -> int:
    """Submit what is planned, as the options of :func:`submission_options` say; returns the exit code.

    ``sweeps``: the ids of sweeps that go on, by recipe.
    """
    from recipe_toolkit.plan.rehearsal import notice
    from recipe_toolkit.submit import check

    site = planned[0].cluster
    if at_once is not None and site.cluster.scheduler != "slurm" and not (wait or follow or dry_run):
        raise click.UsageError(
            f"profile {site.cluster.name} has no queue: with --at-once this command starts each run when another "
            "has ended, so it needs --wait or --follow"
        )
    queueing = _queueing(dependency, hold, cluster)
    if at_once is not None and at_once < len(planned) and "?" in (queueing.dependency or ""):
        # sbatch takes one sign for the whole list, and would start a run before the one that it is to follow.
        raise click.UsageError("--at-once needs all that a run waits for: join the dependencies with `,`, not `?`")
    for line in dict.fromkeys(notice(item.plan) for item in planned if item.plan.rehearsal):
        click.echo(line, err=True)
    _warn_of_secrets(planned)
    if dry_run:
        _print_scripts(planned, queueing, at_once, as_json)
        return 0
    for item in planned:
        check(item.cluster, item.plan, queueing)
    return _Batch(planned, queueing, at_once, sweeps).run(waits=wait or follow, follow=follow, as_json=as_json)


def _warn_of_secrets(planned: Sequence[Planned]) -> None:
    """Tell of the profile's secrets that this shell does not have; a recipe may do without, as rehearsals do."""
    if all(item.plan.rehearsal for item in planned):
        return
    names = dict.fromkeys(name for item in planned for name in item.cluster.cluster.secrets)
    missing = [name for name in names if not os.environ.get(name)]
    if missing:
        verb, them = ("is", "it") if len(missing) == 1 else ("are", "them")
        click.echo(
            f"warning: the profile's secrets are taken from this shell, where {', '.join(missing)} {verb} not set: "
            f"programs will not find {them}",
            err=True,
        )


def check_form(dependency: str | None) -> None:
    """Raises BadParameter for a ``--dependency`` that sbatch would not understand."""
    from recipe_toolkit.submit import dependency as known

    if dependency is not None:
        try:
            known.check_form(dependency)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--dependency") from error


def _queueing(dependency: str | None, hold: bool, cluster: str | None) -> Queueing:
    from recipe_toolkit.submit.dependency import Queueing, resolve
    from recipe_toolkit.submit.find import find_run, roots

    if dependency is None:
        return Queueing(hold)
    folders = roots(None, cluster)
    return Queueing(hold, resolve(dependency, lambda word: find_run(word, folders)))


def _print_scripts(planned: Sequence[Planned], queueing: Queueing, at_once: int | None, as_json: bool) -> None:
    from recipe_toolkit.submit import dry_run

    for index, item in enumerate(planned):
        chained = queueing
        if at_once is not None and index >= at_once and item.cluster.cluster.scheduler == "slurm":
            chained = queueing.after(f"<job of {planned[index - at_once].title}>")
        text = dry_run(item.cluster, item.plan, chained)
        if as_json:
            click.echo(json.dumps({"file": str(item.file), **_variant(item), "script": text, "warnings": _told(item)}))
            continue
        if len(planned) > 1:
            click.echo(f"{item.title}:", err=True)
        click.echo(text, nl=False)


def _variant(item: Planned) -> dict[str, str]:
    return {} if item.swept is None else {"id": item.swept.id}


class _Batch:
    """Submits planned recipes one after the other. ``done``: the runs so far."""

    def __init__(
        self, planned: Sequence[Planned], queueing: Queueing, at_once: int | None, sweeps: dict[Path, str] | None
    ) -> None:
        from recipe_toolkit.cli import sweeping

        self._planned = planned
        ids = sweeping.new_ids(planned) if sweeps is None else sweeps
        self._records = sweeping.records(planned, ids)
        for file, name in ids.items():
            click.echo(f"{file}: sweep {name}", err=True)
        self._queueing = queueing
        # Slurm keeps them apart by itself; elsewhere whoever waits does.
        self._chained = at_once if planned[0].cluster.cluster.scheduler == "slurm" else None
        self._started = None if self._chained else at_once
        self._jobs: list[str] = []
        self._warnings: dict[str, dict[str, object]] = {}
        self.done: list[RunDir] = []

    def run(self, *, waits: bool, follow: bool, as_json: bool) -> int:
        """Submit all, and wait for them if asked to; returns the exit code."""
        from recipe_toolkit.cli.following import Follower
        from recipe_toolkit.cli.interrupts import Presses, detach

        several = len(self._planned) > 1
        follower = Follower(None, follow=follow, as_json=as_json, several=several, further=self._warnings)
        with Presses() as presses:
            try:
                runs = self._submissions(presses, told=not as_json, as_json=as_json and not waits)
                if waits:
                    return follower.wait(runs, self._started)
                for _ in runs:
                    pass
                return 0
            except KeyboardInterrupt:
                left = [run for run in self.done if not follower.has_ended(run)]
                return detach(presses, left, self._unsent(), as_json=as_json and waits)

    def _submissions(self, presses: Presses, *, told: bool, as_json: bool) -> Iterator[RunDir]:
        from recipe_toolkit.errors import SubmitError
        from recipe_toolkit.rundir import RunDir
        from recipe_toolkit.submit import submit

        for index, item in enumerate(self._planned):
            queueing = self._queueing
            if self._chained and index >= self._chained:
                queueing = queueing.after(self._jobs[index - self._chained])
            try:
                submitted = submit(item.recipe, item.cluster, item.plan, queueing, self._records[index])
            except SubmitError as error:
                error.message += self._so_far()
                raise
            self._jobs.append(submitted.job_id)
            self.done.append(RunDir(submitted.folder))
            self._warnings[str(self.done[-1].root)] = {"warnings": _told(item)}
            _print_submitted(submitted, _told(item), told=told, as_json=as_json, held=queueing.hold)
            presses.add(submitted.interrupted)
            yield self.done[-1]

    def _unsent(self) -> list[str]:
        return [item.title for item in self._planned[len(self.done) :]]

    def _so_far(self) -> str:
        """What a refusal means for the other recipes."""
        further = self._unsent()[1:]
        parts = [f"submitted before it: {', '.join(run.id for run in self.done)}"] if self.done else []
        parts += [f"not submitted either: {', '.join(further)}"] if further else []
        return "".join(f"\n  {part}" for part in parts)


def _told(item: Planned) -> list[dict[str, object]]:
    """Warnings and notes, for scripts."""
    return [problem.to_json() for problem in item.warnings]


def _print_submitted(
    submitted: Submitted, warnings: list[dict[str, object]], *, told: bool, as_json: bool, held: bool
) -> None:
    for line in submitted.said.splitlines():
        click.echo(printable(line), err=True)
    if as_json:
        click.echo(json.dumps({**submitted.to_json(), "warnings": warnings}))
    if told:
        click.echo(submitted.run_id)
        kind = "job" if submitted.scheduler == "slurm" else "process"
        click.echo(f"{kind} {submitted.job_id}, in {submitted.folder}", err=True)
    if held:
        click.echo(f"held until you say: scontrol release {submitted.job_id}", err=True)
