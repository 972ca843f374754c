"""``recipe logs``."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli import completing
from recipe_toolkit.cli.rows import table, word
from recipe_toolkit.cli.runs import as_json_option, run_argument, where_options
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run, roots

if TYPE_CHECKING:
    from recipe_toolkit.submit.logs import Log

_COLOURS = (36, 33, 32, 35, 34, 31)
# A line that does not end is printed all the same.
_LONGEST = 1 << 16


@click.command("logs")
@run_argument
@click.argument("process", nargs=-1, shell_complete=completing.processes)
@where_options
@as_json_option
@click.option("-a", "--all", "every", is_flag=True, help="Of every process, agent and job.")
@click.option("-n", "--lines", type=click.IntRange(min=0), help="Only the last N lines of each.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended.")
@click.option("--attempt", type=click.IntRange(min=0), help="Of an earlier attempt of a requeued run.")
def logs_command(
    run: str,
    process: tuple[str, ...],
    runs: str | None,
    cluster: str | None,
    as_json: bool,
    every: bool,
    lines: int | None,
    follow: bool,
    attempt: int | None,
) -> int:
    """Print the logs of PROCESSes of RUN; without PROCESS, list the logs that there are.

    PROCESS is a name or a pattern such as 'decode*'. `agent-N` is the log of node N's agent, `job` what the
    scheduler's job printed. Where several are asked for, each line begins with its process.
    """
    from recipe_toolkit.submit.logs import choose_logs, follow_logs, is_pattern, tail

    found = find_run(run, roots(runs, cluster))
    words = ("*",) if every else process
    if not words:
        if follow or lines is not None:
            raise click.UsageError("--follow and --lines need a PROCESS, or --all")
        return _list(found, attempt, as_json)
    if every and process:
        raise click.UsageError("--all takes no PROCESS")
    ended = _Ended(found)
    chosen = choose_logs(found, words, attempt, expected=follow and not ended())
    printer: _Whole | _Prefixed
    printer = _Prefixed() if len(set(words)) > 1 or any(map(is_pattern, words)) else _Whole(len(chosen) > 1)
    if not follow:
        for log in chosen:
            printer.write(log, tail(log.path, lines)[0])
        printer.end()
        return 0
    try:
        for log, text in follow_logs(lambda: choose_logs(found, words, attempt, expected=True), lines, ended):
            printer.write(log, text)
        printer.end()
    except KeyboardInterrupt:
        return 130
    return 0


def _list(run: RunDir, attempt: int | None, as_json: bool) -> int:
    from recipe_toolkit.submit.logs import list_logs
    from recipe_toolkit.submit.state import run_state

    logs = list_logs(run, attempt)
    if as_json:
        for log in logs:
            click.echo(json.dumps(log.to_json()))
    elif logs:
        rows = [(log.name, word(log.node), str(log.bytes), str(log.path)) for log in logs]
        table([("LOG", "NODE", "BYTES", "PATH"), *rows])
    else:
        click.echo(f"{run.id} has no logs yet: {run_state(run).state}", err=True)
    return 0


class _Whole:
    """Prints bytes as they are; ``heads``: says on stderr which of several files of one name they are of."""

    def __init__(self, heads: bool) -> None:
        self._heads = heads
        self._last: Path | None = None

    def write(self, log: Log, text: bytes) -> None:
        if self._heads and log.path != self._last:
            click.echo(f"==> {log.path} <==", err=True)
        self._last = log.path
        _out([text])

    def end(self) -> None:
        pass


class _Prefixed:
    """Prints whole lines as ``NAME | line``, in colours on a terminal."""

    def __init__(self) -> None:
        self._begun: dict[Path, tuple[Log, bytes]] = {}
        self._colours = itertools.cycle(_COLOURS)
        self._colour: dict[str, int] = {}
        self._width = 0
        self._terminal = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def write(self, log: Log, text: bytes) -> None:
        *lines, rest = (self._begun.get(log.path, (log, b""))[1] + text).split(b"\n")
        if len(rest) > _LONGEST:
            lines, rest = [*lines, rest], b""
        self._begun[log.path] = (log, rest)
        self._print(log, lines)

    def end(self) -> None:
        """Print the lines that never ended."""
        for log, rest in self._begun.values():
            self._print(log, [rest] if rest else [])

    def _print(self, log: Log, lines: Sequence[bytes]) -> None:
        if lines:
            head = self._head(log.name)
            # Of what a progress bar wrote over itself, the last is what a terminal would show.
            _out(head + line.rstrip(b"\r").rpartition(b"\r")[2] + b"\n" for line in lines)

    def _head(self, name: str) -> bytes:
        self._width = max(self._width, len(name))
        if name not in self._colour:
            self._colour[name] = next(self._colours)
        head = f"{name.ljust(self._width)} | "
        return (f"\x1b[{self._colour[name]}m{head}\x1b[0m" if self._terminal else head).encode()


def _out(pieces: Iterable[bytes]) -> None:
    sys.stdout.buffer.writelines(pieces)
    sys.stdout.buffer.flush()


class _Ended:
    """Whether a run has ended, asking the scheduler every few seconds only."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._next = 0.0

    def __call__(self) -> bool:
        from recipe_toolkit.submit.record import read_record
        from recipe_toolkit.submit.state import run_state

        if read_record(self._run).state == "done":
            return True
        if time.monotonic() < self._next:
            return False
        final = run_state(self._run).final
        self._next = time.monotonic() + 5.0
        return final
