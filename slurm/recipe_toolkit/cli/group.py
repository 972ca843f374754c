"""The group of all verbs, and how their errors are told."""

from __future__ import annotations

import errno
import importlib
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

from recipe_toolkit import __version__
from recipe_toolkit.cli import SECTIONS, VERBS
from recipe_toolkit.errors import RecipeError, error_object

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
            if meant and not ctx.resilient_parsing:
                ctx.fail(f"no such verb {cmd_name!r}: {meant}")
            return None
        module = importlib.import_module(f"{__package__}.{VERBS[cmd_name][0]}")
        command: click.Command = getattr(module, f"{cmd_name}_command")
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Offer verbs without importing them, and the group's options."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(name, help=text) for name, (_, text) in VERBS.items() if name.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

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


INTERRUPTED = 130


def run(words: Sequence[str]) -> int:
    """Run ``recipe WORDS``; returns its exit code.

    An expected error is one message on stderr, never a traceback; with ``--json`` it is an object on stdout too,
    so that a script reads one stream.
    """
    as_json = "--json" in words
    for stream in (sys.stdout, sys.stderr):
        # Where the terminal's encoding lacks a sign, its escape is better than a traceback.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    if "_RECIPE_COMPLETE" in os.environ:
        from recipe_toolkit.cli.completion import register

        register()
    try:
        # A command returns its exit code; None is 0.
        return group.main(list(words), prog_name="recipe", standalone_mode=False) or 0
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return _told(error_object("interrupted", INTERRUPTED), as_json)
    except click.ClickException as error:
        error.show()
        path = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "recipe"
        return _told(error_object(error.format_message(), error.exit_code, f"{path} --help"), as_json)
    except RecipeError as error:
        click.echo(f"Error: {error.render()}", err=True)
        return _told(error.to_json(), as_json)
    except OSError as error:
        # A file or folder that cannot be read or written, stdout included, is no bug of this program.
        # getcwd's error names nothing, and writing does not fail in this way.
        what = "the current folder is gone" if error.errno == errno.ENOENT else "cannot write the output"
        message = f"{error.filename or what}: {error.strerror or error}"
        if not error.filename:
            _discard_output()
        click.echo(f"Error: {message}", err=True)
        return _told(error_object(message, 1, file=error.filename), as_json)


def _told(error: dict[str, Any], as_json: bool) -> int:
    """Print the error for scripts, if one asked; returns its exit code."""
    code: int = error["exit_code"]
    if as_json:
        try:
            click.echo(json.dumps({"error": error}, ensure_ascii=False))
        except OSError:  # stderr has it
            _discard_output()
    return code
