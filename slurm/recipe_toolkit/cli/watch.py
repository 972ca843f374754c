"""``recipe watch``."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TYPE_CHECKING

import click

from recipe_toolkit.cli.runs import UNKNOWN, run_argument, where_options
from recipe_toolkit.errors import UnknownRun
from recipe_toolkit.rundir import RunDir
from recipe_toolkit.submit.find import find_run, roots

if TYPE_CHECKING:
    from recipe_toolkit.submit.state import RunState
    from recipe_toolkit.submit.view import View

_REDRAW_S = 1.0
_PROGRESS_S = 30.0
INTERRUPTED = 130


@click.command("watch")
@run_argument
@where_options
def watch_command(run: str, runs: str | None, cluster: str | None) -> int:
    """Show RUN live until it ends: phases, processes, the point that is measured, the last line of a log.

    On a terminal the view is drawn again every second; elsewhere what happens is printed line by line.
    The exit code is that of `recipe wait`; Ctrl-C leaves the run alone.
    """
    from recipe_toolkit.submit.view import Viewer
    from recipe_toolkit.submit.wait import Waiter

    try:
        found = find_run(run, roots(runs, cluster))
    except UnknownRun as error:
        error.exit_code = UNKNOWN
        raise
    viewer = Viewer(found)
    screen = _Screen() if sys.stdout.isatty() else _Lines()

    def tick(_run: RunDir, state: RunState) -> None:
        if screen.is_due():
            screen.show(viewer.look(state), viewer.new)

    try:
        state = Waiter([found], tick=tick).next_end()
        screen.show(viewer.look(state), viewer.new)
    except KeyboardInterrupt:
        click.echo(f"\nthe run goes on; it is `recipe cancel {found.id}` that ends it", err=True)
        return INTERRUPTED
    return state.exit_code


class _Screen:
    """Draws over what it drew before, and leaves the last view where it stands."""

    def __init__(self) -> None:
        self._drawn = 0
        self._next = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self._next

    def show(self, view: View, _new: object) -> None:
        from recipe_toolkit.submit.view import draw

        self._next = time.monotonic() + _REDRAW_S
        size = shutil.get_terminal_size()
        # The cursor stands below the last line, and a line that fills the row may wrap.
        lines = draw(view, max(20, size.columns - 1), max(3, size.lines - 1))
        up = f"\x1b[{self._drawn}A" if self._drawn else ""
        sys.stdout.write(up + "\r\x1b[J" + "".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
        self._drawn = len(lines)


class _Lines:
    """Prints what is new, each on a line of its own."""

    def __init__(self) -> None:
        self._said = ""
        self._next = 0.0

    def is_due(self) -> bool:
        return True

    def show(self, view: View, new: list[dict[str, object]]) -> None:
        from recipe_toolkit.cli.following import summary
        from recipe_toolkit.submit.events import render_event

        for event in new:
            click.echo(render_event(event))
        if view.point is not None and view.progress is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _PROGRESS_S
            click.echo(f"{time.strftime('%H:%M:%S', time.localtime(view.now))} {view.point}: {view.progress}")
        said = summary(view.state)
        if said != self._said and (view.state.final or view.state.state == "pending"):
            click.echo(said)
        self._said = said
