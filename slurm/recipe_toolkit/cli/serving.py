"""``recipe report --serve``: a folder of runs in a browser."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from recipe_toolkit.report.index import Entry, render_index
from recipe_toolkit.report.serve import Page, server
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import all_runs, is_run
from recipe_toolkit.submit.sweeps import read_sweep

LOOK_S = 5.0


def serve(folders: Sequence[Path], port: int) -> int:
    """Serve the runs of the folders until Ctrl-C. Raises RecipeError if the port is taken."""
    site = _Site(folders)
    with server(site, port) as running:
        url = f"http://127.0.0.1:{running.server_address[1]}/"
        click.echo(f"{url} shows {', '.join(str(folder) for folder in folders)}; Ctrl-C ends it", err=True)
        try:
            running.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            click.echo("", err=True)
    return 0


@dataclass(frozen=True)
class _Made(Page):
    make: Callable[[], str]

    def text(self) -> str:
        return self.make()


class _Site:
    """The runs, looked up anew for each request, so that new ones are there; one page is made at a time."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._lock = threading.Lock()
        self._kept: dict[str, tuple[str, str]] = {}

    def page(self, name: str) -> Page | None:
        runs = {run.id: run for run in self._runs()}
        if not name:
            return self._made(
                name, _tag([run.state for run in runs.values()]), lambda: self._index(list(runs.values()))
            )
        if name in runs:
            return self._made(name, _tag(_inputs(runs[name])), lambda: _run_page(runs[name]))
        sweep = name.removesuffix(".html")
        members = [run for run in runs.values() if (read_sweep(run) or {}).get("sweep") == sweep]
        if not members or name == sweep:
            return None
        inputs = [path for run in members for path in (run.state, run.results)]
        return self._made(name, _tag(inputs), lambda: _sweep_page(sweep, self._folders))

    def folder(self, run: str) -> Path | None:
        return next((found.root for found in self._runs() if found.id == run), None)

    def private(self, run: str, path: Path) -> bool:
        return path.name == "token" or any(part.startswith(".") for part in path.parts[-1:])

    def _runs(self) -> list[RunDir]:
        alone = [RunDir(folder) for folder in self._folders if is_run(folder)]
        return alone or all_runs(self._folders)

    def _made(self, name: str, tag: str, make: Callable[[], str]) -> Page:
        def text() -> str:
            with self._lock:
                if self._kept.get(name, ("", ""))[0] != tag:
                    self._kept = {**dict(list(self._kept.items())[-20:]), name: (tag, make())}
                return self._kept[name][1]

        return _Made(tag, text)

    def _index(self, runs: Sequence[RunDir]) -> str:
        from recipe_toolkit.submit.state import run_states

        entries = []
        for run, state in zip(runs, run_states(runs), strict=True):
            done = sum(word not in ("pending", "running") for word in state.points.values())
            entries.append(
                Entry(
                    run.id,
                    state.state,
                    state.valid if state.final else None,
                    f"{done} of {len(state.points)}" if state.points else "",
                    state.rehearsal,
                    (state.message or "").partition("\n")[0],
                    (read_sweep(run) or {}).get("sweep"),
                )
            )
        return render_index(", ".join(map(str, self._folders)), entries, LOOK_S)


def _inputs(run: RunDir) -> list[Path]:
    return [run.plan, run.state, run.results, run.events, *sorted(run.metrics.glob("*.jsonl"))]


def _tag(paths: Sequence[Path]) -> str:
    """Changes with the sizes and times of the files."""
    digest = hashlib.sha256()
    for path in paths:
        try:
            known = path.stat()
            said = f"{path}\0{known.st_size}\0{known.st_mtime_ns}\n"
        except OSError:
            said = f"{path}\n"
        digest.update(said.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def _run_page(run: RunDir) -> str:
    from recipe_toolkit.cli.report import material_of, page_of

    report = material_of(run)
    going_on = report.results["state"] in ("pending", "running")
    return page_of(report, run.report, look=LOOK_S if going_on else None)


def _sweep_page(sweep: str, folders: Sequence[Path]) -> str:
    from recipe_toolkit.cli.report_many import sweep_page
    from recipe_toolkit.submit.sweeps import find_sweep

    found = find_sweep(sweep, folders)
    # Beside the runs, whichever folder they are in: every run is one step down from here.
    return sweep_page(found, base=lambda run: f"./{run.id}", look=LOOK_S)
