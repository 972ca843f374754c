"""The flags of the benchmark clients and of the router: which there are, and which take a value.

A slip in one would otherwise be found by the client itself, on nodes that were queued and waited for. The
lists in ``schemas/clients/PROGRAM-VERSION.json`` are written by ``scripts/export-client-args`` from each
program's own parser: ``value`` says whether a flag takes one (left out: it may), ``choices`` which.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipe_toolkit.faults import did_you_mean, shown
from recipe_toolkit.vllm_args import ArgProblem, canonical

FOLDER = Path(__file__).parent / "schemas" / "clients"


@dataclass(frozen=True)
class _List:
    """``names``: every spelling of a flag, to the one that it is listed under."""

    version: str
    flags: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, str]


@functools.cache
def versions(program: str) -> tuple[str, ...]:
    """The versions of ``aiperf``, ``vllm-bench`` or ``vllm-router`` that have a list, oldest first."""
    found = [path.stem.removeprefix(f"{program}-") for path in FOLDER.glob(f"{program}-[0-9]*.json")]
    return tuple(sorted(found, key=_order))


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])


def nearest(program: str, version: str | None) -> str:
    """The version whose list is used: the newest up to ``version``, else the oldest; None: the newest."""
    known = versions(program)
    older = [item for item in known if version is None or _order(item) <= _order(version)]
    return older[-1] if older else known[0]


def unknown_version(program: str, version: str | None) -> ArgProblem | None:
    """A warning where the list of another series stands in: patch releases and builds of a series have its flags."""
    used = nearest(program, version)
    if version is None or _order(version)[:2] == _order(used)[:2]:
        return None
    message = f"there is no list of the flags of {program} {version}; args are checked against {used}"
    return ArgProblem((), message, f"lists: {', '.join(versions(program))}", "warning")


@functools.cache
def _list(program: str, version: str) -> _List:
    data = json.loads((FOLDER / f"{program}-{version}.json").read_text(encoding="utf-8"))
    names = {
        canonical(alias): name for name, flag in data["flags"].items() for alias in (name, *flag.get("aliases", ()))
    }
    return _List(version, data["flags"], names)


def check(program: str, args: Mapping[str, Any], version: str | None) -> list[ArgProblem]:
    """Every flag that this version of the program does not take as it is written.

    ``version`` None: the newest that has a list. Of a version without a list nothing is sure: all are warnings, save
    for a release of the same series.
    """
    known = _list(program, nearest(program, version))
    release = version is not None and re.fullmatch(r"\d+(\.\d+)*", version) is not None
    sure = version in (None, known.version) or (release and _order(str(version))[:2] == _order(known.version)[:2])
    seen: dict[str, str] = {}
    problems = []
    for key, value in args.items():
        name = known.names.get(canonical(key))
        if name is None:
            problems.append(_unknown(program, key, known, version))
        elif name in seen:
            problems.append(ArgProblem((key,), f"is the same flag as {seen[name]}", "say it once"))
        else:
            problems += [ArgProblem((key,), *told) for told in _check_value(known.flags[name], value)]
            seen[name] = key
    return problems if sure else [replace(item, severity="warning") for item in problems]


def _unknown(program: str, key: str, known: _List, version: str | None) -> ArgProblem:
    hint = did_you_mean(canonical(key), known.names)
    if hint is None and version is None:
        hint = f"a newer {program} may know it: `version` says which it is"
    return ArgProblem((key,), f"{program} {known.version} has no flag --{canonical(key)}", hint)


def _check_value(flag: Mapping[str, Any], value: Any) -> Iterator[tuple[str, str | None]]:
    if flag.get("value") is False and not isinstance(value, bool):
        yield f"takes no value, and is {shown(value)}", "true gives the flag"
    elif flag.get("value") is True and isinstance(value, bool):
        yield f"needs a value, and is {shown(value)}", None
    choices = flag.get("choices")
    if choices and not isinstance(value, bool):
        allowed = {_plain(item) for item in choices}
        for item in value if isinstance(value, list) else [value]:
            if isinstance(item, (str, int, float)) and _plain(str(item)) not in allowed:
                hint = did_you_mean(item, choices) if isinstance(item, str) else None
                yield f"{shown(item)} is not one of {', '.join(choices)}", hint


def _plain(word: str) -> str:
    return word.lower().replace("_", "-")
