"""The command ``recipe``: one module a family of verbs, no logic."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from recipe_toolkit import __version__
from recipe_toolkit.errors import RecipeError

# verb -> (module, short help). Modules are imported when their verb is used: `recipe --help` stays fast.
VERBS = {
    "validate": ("validate", "Check recipes; every error of every file at once."),
    "plan": ("plan", "Show what would run where, offline."),
    "submit": ("submit", "Write the run folder and submit the job."),
    "list": ("runs", "List the runs of a profile."),
    "status": ("runs", "Show the state of a run and of each of its processes."),
    "logs": ("runs", "Print the log of one process of a run."),
    "wait": ("runs", "Wait until a run ends; the exit code says how."),
    "cancel": ("runs", "Cancel a run; safe to repeat."),
    "collect": ("results", "Gather a run's results and artifacts, with a manifest."),
    "report": ("results", "Print the table of results and write the page."),
    "schema": ("validate", "Print a JSON Schema, for editors."),
}
# How `recipe --help` lists them; a verb that stands nowhere here comes last, under "Other".
SECTIONS = {
    "Write and check": ("new", "validate", "plan", "diff", "schema", "completion"),
    "Run": ("submit", "list", "status", "logs", "watch", "wait", "cancel", "rerun"),
    "Results": ("collect", "report", "compare"),
}
# As a shell reports SIGPIPE.
CLOSED_PIPE = 141


@contextmanager
def _reader_may_go() -> Iterator[None]:
    """Exit as SIGPIPE does where nobody reads stdout any more (``| head``): click would say 1, a failure."""
    try:
        yield
    except BrokenPipeError:
        _discard_output()
        sys.exit(CLOSED_PIPE)


def _discard_output() -> None:
    """Let what is still in stdout's buffer go nowhere; its flush at the interpreter's end would fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = None


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Parse the words; `--help` is printed here."""
        with _reader_may_go():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb."""
        with _reader_may_go():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Verbs in the order of a run."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and take its command from it."""
        if cmd_name not in VERBS:
            from recipe_toolkit.faults import did_you_mean

            meant = did_you_mean(cmd_name, VERBS)
            if meant:
                ctx.fail(f"no such verb {cmd_name!r}: {meant}")
            return None
        module = importlib.import_module(f"{__name__}.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without importing them, by section, in columns that agree."""
        placed = {name for names in SECTIONS.values() for name in names}
        other = tuple(name for name in VERBS if name not in placed)
        width = max(map(len, VERBS))
        for title, names in {**SECTIONS, "Other": other}.items():
            rows = [(name.ljust(width), VERBS[name][1]) for name in names if name in VERBS]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="recipe")
def group() -> None:
    """Serve and benchmark large models with vLLM on Slurm, from one checked recipe."""


def main() -> None:
    """Entry point: expected errors are one message on stderr, never a traceback."""
    try:
        # A command returns its exit code; None is 0.
        sys.exit(group.main(prog_name="recipe", standalone_mode=False))
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RecipeError as error:
        click.echo(f"Error: {error.render()}", err=True)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        # A file or folder that cannot be read or written, stdout included, is no bug of this program.
        name = f"{error.filename}: " if error.filename else "cannot write the output: "
        _discard_output()
        click.echo(f"Error: {name}{error.strerror or error}", err=True)
        sys.exit(1)
