"""The runs of a sweep: those whose folders say so."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import UnknownRun
from recipe_toolkit.rundir import RunDir, read_json
from recipe_toolkit.submit.find import SHOWN, all_runs
from recipe_toolkit.submit.state import RunState, run_states


@dataclass(frozen=True)
class Sweep:
    """``members``: every run with what its sweep.json says, the oldest first; a variant may be in several."""

    id: str
    members: tuple[tuple[RunDir, dict[str, Any]], ...]

    @property
    def runs(self) -> list[RunDir]:
        """The folders of all."""
        return [run for run, _ in self.members]

    @property
    def recipe(self) -> str:
        """The name of the recipe that holds the sweep."""
        return str(self.members[-1][1]["recipe"])

    def variants(self) -> Iterator[tuple[RunState, dict[str, Any]]]:
        """Each variant of each run, with the run's state."""
        for state, (_, record) in zip(run_states(self.runs), self.members, strict=True):
            yield from ((state, variant) for variant in record["variants"])

    def latest(self, digests: Collection[str] | None = None) -> list[tuple[RunState, dict[str, Any]]]:
        """Each variant once, with the last of its runs that counts, else the last; in the order of submission.

        ``digests``: only variants whose recipes have one of these.
        """
        found: dict[str, tuple[RunState, dict[str, Any]]] = {}
        for state, variant in self.variants():
            if digests is not None and variant["digest"] not in digests:
                continue
            known = found.get(variant["id"])
            if known is None or not counts(known[0]) or counts(state):
                found[variant["id"]] = (state, variant)
        return list(found.values())


def counts(state: RunState) -> bool:
    """Whether the run has ended with results that count."""
    return state.state == "done" and state.valid is not False


def read_sweep(run: RunDir) -> dict[str, Any] | None:
    """What sweep.json says; None for a run of no sweep, or where it cannot be read."""
    try:
        data = read_json(run.sweep)
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and _is_whole(data) else None


def _is_whole(data: dict[str, Any]) -> bool:
    kinds = {"id": str, "digest": str, "columns": dict, "values": dict, "points": list}
    return (
        all(isinstance(data.get(key), kind) for key, kind in {"sweep": str, "recipe": str, "variants": list}.items())
        and all(isinstance(item, dict) for item in data["variants"])
        and all(isinstance(item.get(key), kind) for item in data["variants"] for key, kind in kinds.items())
    )


def find_sweep(word: str, folders: Sequence[Path]) -> Sweep:
    """The sweep that ``word`` names: ``last``, its id, or a part of exactly one. Raises UnknownRun."""
    found: dict[str, list[tuple[RunDir, dict[str, Any]]]] = {}
    for run in all_runs(folders):
        record = read_sweep(run)
        if record is not None:
            found.setdefault(record["sweep"], []).append((run, record))
    where = ", ".join(str(folder) for folder in folders)
    if not found:
        raise UnknownRun(f"no run of a sweep in {where}", hint="name the folder: --runs DIR, or its profile: --cluster")
    ids = sorted(found)
    if word == "last":
        return Sweep(ids[-1], tuple(found[ids[-1]]))
    for matches in ([item for item in ids if item == word], [item for item in ids if word and word in item]):
        if len(matches) == 1:
            return Sweep(matches[0], tuple(found[matches[0]]))
        if matches:
            raise UnknownRun(f"{word!r} names {len(matches)} sweeps:\n  " + "\n  ".join(matches[-SHOWN:]))
    raise UnknownRun(f"no sweep {word!r} in {where}", hint="known: " + ", ".join(ids[-SHOWN:]))
