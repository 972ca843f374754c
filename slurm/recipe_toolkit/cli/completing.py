"""What a shell offers for an argument: runs, profiles, files, processes. Quick, and silent where it knows nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps

import click

from recipe_toolkit.text_file import user_path

Complete = Callable[[click.Context, click.Parameter, str], "list[str]"]


def _silent(complete: Complete) -> Complete:
    """Offer nothing where something is wrong: the command itself says what, a prompt is no place for it."""

    @wraps(complete)
    def guarded(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from recipe_toolkit.errors import RecipeError

        try:
            return complete(ctx, param, incomplete)
        except (RecipeError, OSError):
            return []

    return guarded


def _beginning(words: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


@_silent
def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Ids of runs, the newest first, and ``last``; by a part of one id where no id begins so; else folders."""
    from recipe_toolkit.submit.find import roots, run_ids

    if "/" in incomplete:
        return _paths(incomplete, ())
    taken = ctx.params.get(param.name or "") or ()
    ids = [name for name in run_ids(roots(ctx.params.get("runs"), ctx.params.get("cluster"))) if name not in taken]
    found = _beginning([*ids, "last"] if ids else [], incomplete)
    # A shell puts what several candidates have in common in place of the word: good for one alone.
    part = [] if found else [name for name in ids if incomplete in name]
    return found or (part if len(part) == 1 else [])


@_silent
def processes(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the logs of the run that stands before."""
    from recipe_toolkit.submit.find import find_run, roots
    from recipe_toolkit.submit.logs import list_logs

    run = find_run(ctx.params.get("run") or "", roots(ctx.params.get("runs"), ctx.params.get("cluster")))
    logs = list_logs(run, ctx.params.get("attempt"))
    return _beginning(dict.fromkeys(log.name for log in logs), incomplete)


@_silent
def profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Names of profiles; files where a path is begun."""
    from recipe_toolkit.cluster_files import known_clusters

    if "/" in incomplete or incomplete.startswith("."):
        return _paths(incomplete, (".yaml", ".yml"))
    return _beginning(known_clusters(), incomplete) or _paths(incomplete, (".yaml", ".yml"))


@_silent
def recipe_files(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """YAML files, and folders on the way to them."""
    return _paths(incomplete, (".yaml", ".yml"))


def one_of(words: Iterable[str]) -> Complete:
    """These words."""
    return lambda _ctx, _param, incomplete: _beginning(words, incomplete)


def _paths(incomplete: str, suffixes: tuple[str, ...]) -> list[str]:
    """Folders, with a slash, and files with these suffixes, as they are written after what is typed."""
    head, slash, start = incomplete.rpartition("/")
    base = head + slash
    found = []
    with os.scandir(user_path(base or ".")) as entries:
        for entry in entries:
            if not entry.name.startswith(start) or entry.name.startswith(".") > start.startswith("."):
                continue
            if entry.is_dir():
                found.append(f"{base}{entry.name}/")
            elif entry.name.endswith(suffixes):
                found.append(f"{base}{entry.name}")
    return sorted(found)
