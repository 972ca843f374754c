"""Predicted points, as `recipe frontier` writes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import RecipeError
from recipe_toolkit.faults import dotted
from recipe_toolkit.report import text
from recipe_toolkit.report.figures.frontier import PREDICTED, Entry
from recipe_toolkit.rundir import read_json
from recipe_toolkit.schema_check import check_schema

_MOST = 300  # beyond that those alone that no other beats


@dataclass(frozen=True)
class Predicted:
    """The points of a frontier.json. ``path``: where it is; ``of``: what they were predicted of."""

    path: Path
    of: Mapping[str, Any]
    entries: tuple[Entry, ...]

    def beside(self, runs: Sequence[Mapping[str, Any]]) -> tuple[Entry, ...]:
        """The points, to be drawn beside the runs. Raises RecipeError where they are of something else."""
        mine = _conditions(self.of)
        for run in runs:
            theirs = _conditions_of_run(run)
            other = [key for key, value in theirs.items() if value is not None and value != mine[key]]
            if other:
                said = ", ".join(f"{key} {mine[key]} there and {theirs[key]} in the run" for key in other)
                raise RecipeError(
                    f"{self.path} does not go with {run['run']}: {said}",
                    hint="draw predictions beside runs of the same model, lengths and GPUs",
                )
        return self.entries


def read_predicted(path: Path) -> Predicted:
    """A frontier.json. Raises RecipeError where it is none."""
    try:
        data = read_json(path)
    except (OSError, ValueError) as error:
        raise RecipeError(f"{path}: cannot be read: {error}", hint="`recipe frontier` writes it") from error
    faults = check_schema(data, "frontier")
    if faults:
        said = "\n  ".join(f"{dotted(fault.path)}: {fault.message}" for fault in faults[:5])
        raise RecipeError(f"{path}: is no frontier.json:\n  {said}", hint="`recipe frontier` writes it")
    points = (
        data["points"] if len(data["points"]) <= _MOST else [point for point in data["points"] if point["dominant"]]
    )
    return Predicted(path, data, tuple(map(_entry, points)))


def _entry(point: Mapping[str, Any]) -> Entry:
    prefill, decode = point["prefill"], point["decode"]
    of = f"{prefill['instances']} × {prefill['pool']} + {decode['instances']} × {decode['pool']}, {point['gpus']} GPUs"
    load = f"c {point['concurrency']}"
    figures = (point["output_tps_per_user"], point["e2e_ms"] / 1000, point["total_tps_per_gpu"])
    return Entry("", of, f"predicted, {load}", load, PREDICTED, *figures, point["ttft_ms"], point["tpot_ms"])


def _conditions(data: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "model": data["model"],
        "GPU": data["gpu"],
        "ISL": data["isl"],
        "OSL": data["osl"],
        "figures": _kind(data),
    }


def _conditions_of_run(run: Mapping[str, Any]) -> dict[str, Any]:
    lengths = text.same_length(run["points"]) or (None, None)
    names = {"model": run["model"], "GPU": run["gpus"]["name"], "ISL": lengths[0], "OSL": lengths[1]}
    return {**names, "figures": _kind(run)}


def _kind(data: Mapping[str, Any]) -> str:
    return "of a rehearsal" if data["rehearsal"] else "simulated" if data["simulated"] else "measured"
