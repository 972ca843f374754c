"""How long the page of 1,000 points takes, as a multiple of reading its results with the json module alone.

    .venv/bin/python tests/bench/report.py [POINTS] [RUNS]

One run that measured POINTS points, and a sweep of as many runs of one point each, with `recipe report` as a
process of its own (its start included; the script of the figures is in the cache). Prints the median processor
time of RUNS, which a busy machine hardly changes, and the page's size. Asserts nothing.
"""

from __future__ import annotations

import copy
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from recipe_toolkit.rundir import RunDir, read_json, write_json
from results_support import make_folder, many

RECIPE = Path(sys.executable).with_name("recipe")


def timed(step: Callable[[], object], runs: int) -> float:
    """Median seconds of the processor, after one that fills the caches."""
    step()
    times = []
    for _ in range(runs):
        start = os.times()
        step()
        times.append(sum(now - before for now, before in zip(os.times()[:4], start[:4], strict=True)))
    return statistics.median(times)


def sweep(run: RunDir, points: int) -> None:
    """As many runs of one point each."""
    results = read_json(run.results)
    for index in range(points):
        other = RunDir(run.root.with_name(f"2026-11-30-sweep-{index:04d}"))
        other.root.mkdir()
        for name in ("plan.json", "job.json", "state.json", "events.jsonl"):
            os.link(run.root / name, other.root / name)
        point = copy.deepcopy(results["points"][index % 3])
        point["output_tps_per_user"]["from_median_tpot"] *= 1 + index % 97 / 97
        point["total_tps_per_gpu"]["working"] *= 1 + index % 89 / 89
        write_json(other.results, {**results, "run": other.id, "points": [point]})
        variant = {"id": f"v{index}", "digest": "x", "columns": {"size": index}, "values": {}, "points": [point["id"]]}
        write_json(other.sweep, {"schema": 1, "sweep": "many", "recipe": "tiny", "id": "x", "variants": [variant]})


def report(*words: str | Path) -> None:
    subprocess.run([RECIPE, "report", *words], check=True, capture_output=True)


def main() -> None:
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as scratch:
        run = make_folder(Path(scratch) / "one")
        many(run, points)
        reading = timed(lambda: json.loads(run.results.read_text()), runs)
        one = timed(lambda: report(run.root), runs)
        other = make_folder(Path(scratch) / "sweep")
        sweep(other, points)
        page = Path(scratch) / "sweep.html"
        all_of_it = timed(lambda: report("--sweep", "many", "--runs", other.root.parent, "-o", page), runs)
        print(f"{points} points; json.loads of the results: {reading * 1000:.0f} ms")
        for what, took, file in (("one run", one, run.report), (f"a sweep of {points} runs", all_of_it, page)):
            size = file.stat().st_size / 1e6
            print(f"{what:<24}{took:>7.2f} s{took / reading:>8.0f} × reading{size:>8.1f} MB")


if __name__ == "__main__":
    main()
