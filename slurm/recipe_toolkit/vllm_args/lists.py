"""The lists in ``schemas/vllm/VERSION.json``: which there are, and which one stands for a version."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import Severity

FOLDER = Path(__file__).parents[1] / "schemas" / "vllm"
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?([^+]*)(\+.*)?")
_AHEAD = re.compile(r"dev|rc|a\d|b\d")


@dataclass(frozen=True)
class ArgList:
    """One version's flags.

    ``names``: by every spelling, the flag's own name. ``negative``: by every spelling that says false, the flag.
    ``configs``: by class, the types of the keys of a JSON document. ``values``: what vLLM's parser lets through
    and vLLM refuses later.
    """

    version: str
    options: Mapping[str, Mapping[str, Any]]
    names: Mapping[str, str]
    negative: Mapping[str, str]
    configs: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, list[str]]

    def choices(self, name: str) -> list[str]:
        """The values that a flag takes, of vLLM's parser or of what vLLM looks at later; empty: any."""
        found: list[str] = self.options.get(name, {}).get("choices") or self.values.get(name) or []
        return found


@dataclass(frozen=True)
class Match:
    """The list that stands for a version.

    ``later``: the list of the next release, where the version lies between two; what one of the two takes is let
    through. ``sure``: what the list lacks does not exist. ``reason``: why it is not the version's own list, empty
    where it is; ``severity`` of saying so.
    """

    used: str
    later: str | None = None
    sure: bool = False
    reason: str = ""
    severity: Severity = "warning"


@functools.cache
def versions() -> list[str]:
    """The versions that have a list, oldest first."""
    return sorted((path.stem for path in FOLDER.glob("*.json")), key=_order)


def _order(version: str) -> tuple[int, int, int]:
    found = _VERSION.fullmatch(version)
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else (0, 0, 0)


@functools.cache
def match(version: str) -> Match:
    """The list for ``version``: a release, a build between releases (``0.26.1.dev12+gabc``) or ``nightly``."""
    known = versions()
    if version in known:
        return Match(version, sure=True)
    found = _VERSION.fullmatch(version)
    # setuptools_scm says 0.1.dev of a clone without tags, whatever it holds.
    if found is None or version.startswith("0.1.dev"):
        return Match(known[-1], reason=f"{version} names no release, so it is taken for the newest")
    order = _order(version)
    same = next((item for item in known if _order(item)[:2] == order[:2]), None)
    ahead = _AHEAD.search(found[4])
    if same and ahead:
        return _between(version, same, order, known)
    if same:
        # Patch releases of a series have the same flags; a build of somebody's own may have more.
        own = bool(found[5])
        reason = f"{version} is {'a build of' if own else 'of the same series as'} {same}"
        return Match(same, sure=not own, reason=reason, severity="note")
    if order > _order(known[-1]):
        return Match(known[-1], reason=f"{version} is newer than every list")
    if order < _order(known[0]):
        return Match(known[0], reason=f"{version} is older than every list")
    older = [item for item in known if _order(item) < order][-1]
    return Match(older, known[known.index(older) + 1], reason=f"there is no list of {version}")


def _between(version: str, same: str, order: tuple[int, int, int], known: list[str]) -> Match:
    """A build ahead of its release: 0.27.0.dev1 lies before 0.27.0; 0.26.1.dev1 is from between 0.26.0 and 0.27.0."""
    place = known.index(same) - (1 if order[2] == 0 else 0)
    if place < 0:
        return Match(known[0], reason=f"{version} is older than every list")
    if place == len(known) - 1:
        return Match(known[-1], reason=f"{version} is newer than every list")
    older, newer = known[place], known[place + 1]
    return Match(older, newer, reason=f"{version} was built between {older} and {newer}")


@functools.cache
def load(version: str) -> ArgList:
    """The list of a version that has one."""
    data = json.loads((FOLDER / f"{version}.json").read_text(encoding="utf-8"))
    names: dict[str, str] = {}
    negative: dict[str, str] = {}
    for name, option in data["options"].items():
        names[name] = name
        for alias in option.get("aliases", ()):
            names.setdefault(alias.lstrip("-"), name)
        for word in option.get("no", ()):
            negative.setdefault(word[2:], name)
    return ArgList(data["vllm"], data["options"], names, negative, data["configs"], data["values"])


def list_for(version: str) -> ArgList:
    """The list that stands for ``version``."""
    return load(match(version).used)
