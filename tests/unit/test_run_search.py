"""Searches in whole runs with agents as processes: what is measured, what is kept, what a second attempt does."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from recipe_toolkit.plan.model import Plan, Point, Process, Search
from recipe_toolkit.plan.values import Address, Asked, Port, Python, RunPath, Value, url
from results_support import check_schema
from runkit import MODEL, Run, engine, plan

LOAD = Path(__file__).parents[1] / "data" / "run" / "load.py"
# TPOT is 2 ms and 1 ms more for each in flight: at most 18 of them are within 20 ms. What is in failing.json fails.
MADE_UP = """
import json, os, pathlib, sys, time
load, folder = int(sys.argv[3]), sys.argv[2]
here = pathlib.Path(folder).parents[1]
tpot = 2.0 + load
print(load, flush=True)
if (here / "slow").exists() and load >= 16: time.sleep(60)
if (here / "failing.json").exists():
    entry = json.loads((here / "failing.json").read_text()).get(os.path.basename(folder))
    if entry == "exit": sys.exit(3)
    if entry: tpot *= entry
stat = dict.fromkeys(("mean", "p50", "p90", "p99"), tpot)
result = {"requests": {"ok": 2 * load, "failed": 0}, "total_tps": 100.0 * load, "tpot_ms": stat, "ttft_ms": stat}
open(folder + "/result.json", "w").write(json.dumps(result))
"""

Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a run of a plan; at the end nothing of it may be left."""
    runs: list[Run] = []

    def begin(what: Plan, failing: dict[str, Any] | None = None) -> Run:
        run = Run(tmp_path / f"run{len(runs)}", what)
        runs.append(run)
        if failing:
            (run.dir.root / "failing.json").write_text(json.dumps(failing))
        return run.start()

    yield begin
    left = [line for run in runs for line in run.survivors()]
    for run in runs:
        run.kill()
    assert left == []


def searching(argv: Sequence[Value], timeout: float = 30.0, **changes: Any) -> Point:
    """A search named ``s``. ``argv``: the client's, after its URL and folder."""
    given: dict[str, Any] = {
        "over": "concurrency",
        "least": 1.0,
        "most": 64.0,
        "maximize": "total_tps_per_gpu",
        "bounds": {"tpot_mean_ms": 20.0},
        "resolution": 0.05,
        "repeats": 2,
        "confidence": 0.95,
        "points": 24,
        "deadline_s": None,
        "seed": 0,
        "requests_per_concurrency": 2,
    }
    process = Process(
        name="bench-s",
        role="bench",
        instance=0,
        rank=0,
        node=0,
        argv=(Python(), argv[0], *argv[1:2], url("serve-0", 0), RunPath("bench/s"), *argv[2:]),
        may_exit=True,
    )
    return Point("s", "command", process, "bench/s", timeout, search=Search(**{**given, **changes}))


def made_up(**changes: Any) -> Point:
    return searching(["-c", MADE_UP, Asked("concurrency")], **changes)


def results(run: Run) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(run.dir.results.read_text())
    check_schema(data)
    return data


def started(run: Run) -> list[str]:
    return [event["point"] for event in run.events("point_started")]


def test_a_search_from_end_to_end(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up()]))
    assert run.wait() == {0: 0}
    found = results(run)
    (search,) = found["search"]
    assert (search["state"], search["outcome"], search["confidence"]) == ("ended", "found", 1)
    assert search["knee"] == {"met": 18, "missed": 19}
    assert search["binding"] == ["tpot_mean_ms"]
    assert (search["answer"]["load"], search["answer"]["slo"]) == (18, {"tpot_mean_ms": 20})
    assert [load["load"] for load in search["loads"]] == [1, 2, 4, 8, 16, 18, 19, 32]
    # Points are normal points: a folder, a file, an entry in the results, a state.
    ids = started(run)
    assert ids[:6] == [f"s-c{load}-rep1" for load in (1, 2, 4, 8, 16, 32)]
    assert sorted(ids) == sorted(point["id"] for point in found["points"])
    assert found["valid"] is True
    assert found["points_wanted"] == len(ids) == search["points_measured"]
    assert all((run.dir.bench(name) / "point.json").is_file() for name in ids)
    (point,) = (point for point in found["points"] if point["id"] == "s-c18-rep2")
    assert (point["concurrency"], point["repeat_of"], point["requests"]["wanted"]) == (18, "s-c18", 36)
    assert run.state["points"] == {"s": "done", **dict.fromkeys(ids, "done")}
    assert run.state["searches"]["s"].startswith(f"found after {len(ids)} of at most 24 points")
    (event,) = run.events("search_ended")
    assert (event["benchmark"], event["answer"]) == ("s", 18)


def test_bad_points_and_clients_that_fail(start: Start) -> None:
    """One point on the way is far off, one client fails once; another load always fails."""
    failing = {"s-c16-rep1": 4.0, "s-c8-rep1": "exit", "s-c32-rep1": "exit", "s-c32-rep2": "exit"}
    run = start(plan([engine("serve-0", 0)], [made_up(repeats=3, points=40)]), failing)
    assert run.wait() == {0: 0}
    found = results(run)
    (search,) = found["search"]
    assert (search["outcome"], search["knee"]) == ("found", {"met": 18, "missed": 19})
    loads = {load["load"]: load for load in search["loads"]}
    assert loads[32]["verdict"] == "invalid"
    assert (loads[16]["verdict"], loads[16]["left_out"]) == ("met", ["s-c16-rep1"])
    assert loads[8]["left_out"] == ["s-c8-rep1"]
    bad = {point["id"]: point["reasons"][0].partition(";")[0] for point in found["points"] if not point["valid"]}
    assert bad == dict.fromkeys(["s-c8-rep1", "s-c32-rep1", "s-c32-rep2"], "the client ended with exit code 3")
    # What a search finds beyond the knee does not make the run invalid.
    assert found["valid"] is True


def test_a_killed_run_goes_on_where_it_was(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up()]))
    (run.dir.root / "slow").touch()
    run.until(lambda: "s-c16-rep1" in started(run))
    (search,) = results(run)["search"]
    assert (search["state"], search["outcome"], search["knee"]) == ("running", None, {"met": 8, "missed": None})
    assert run.state["points"]["s"] == "searching"
    run.agents[0].send_signal(signal.SIGKILL)
    run.agents[0].wait()
    run.until(lambda: run.survivors() == [])
    (run.dir.root / "slow").unlink()
    done = started(run)[:-1]
    run.start()
    assert run.wait() == {0: 0}
    (search,) = results(run)["search"]
    assert search["knee"] == {"met": 18, "missed": 19}
    assert started(run).count("s-c16-rep1") == 2
    assert [started(run).count(name) for name in done] == [1] * len(done)
    assert (run.dir.root / "bench" / "s-c16-rep1.unfinished-1").is_dir()


def test_a_deadline_ends_it_with_what_it_has(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up(deadline_s=4.0)]))
    (run.dir.root / "slow").touch()
    assert run.wait() == {0: 0}
    found = results(run)
    (search,) = found["search"]
    assert (search["outcome"], search["why"]) == ("stopped", "s-c16-rep1 was cut off by the deadline of 4 s")
    assert (search["answer"]["load"], found["valid"], found["state"]) == (8, True, "done")


def test_points_that_take_too_long_are_of_loads_of_which_nothing_is_known(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up(timeout=1.5)]))
    (run.dir.root / "slow").touch()
    assert run.wait() == {0: 0}
    (search,) = results(run)["search"]
    assert (search["outcome"], search["knee"]) == ("unsure", {"met": 15, "missed": None})
    assert search["why"] == (
        "concurrency 15 meets every bound, and concurrency 16 gives no point that counts: see s-c16-rep1 and s-c16-rep2"
    )
    (load,) = (load for load in search["loads"] if load["load"] == 16)
    assert load["verdict"] == "invalid"


def test_a_run_that_ends_first(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up()]))
    (run.dir.root / "slow").touch()
    run.until(lambda: "s-c16-rep1" in started(run))
    run.agents[0].send_signal(signal.SIGUSR2)
    run.wait()
    found = results(run)
    (search,) = found["search"]
    assert (found["state"], search["outcome"], search["why"]) == ("timeout", "stopped", "the run is timeout")
    assert search["answer"]["load"] == 8


def test_an_engine_that_dies_ends_the_run_and_blames_no_load(start: Start) -> None:
    run = start(plan([engine("serve-0", 0)], [made_up()]))
    (run.dir.root / "slow").touch()
    run.until(lambda: "s-c16-rep1" in started(run))
    import os

    os.kill(run.state["processes"]["serve-0"]["pid"], signal.SIGKILL)
    assert run.wait()[0] != 0
    found = results(run)
    assert found["state"] == "failed"
    assert "serve-0" in found["message"]
    assert not (run.dir.bench("s-c16-rep1") / "point.json").exists()


def sim(options: dict[str, Any]) -> Process:
    argv: tuple[Value, ...] = (
        Python(), "-m", "recipe_toolkit.sim", "serve", MODEL, "--host", Address(0), "--port", Port("serve-0", "http"),
        "--max-num-seqs", "64", "--sim", json.dumps(options),
    )  # fmt: skip
    made = engine("serve-0", 0)
    return Process(**{**vars(made), "argv": argv})


def test_the_knee_of_the_simulated_engine(start: Start) -> None:
    """Its timing model says where: a step takes 4 ms and 2 ms for each that decodes, so 8 of them take 20 ms."""
    options = {"startup_s": 0, "ttft_base_ms": 1, "tpot_base_ms": 4, "tpot_per_seq_ms": 2, "prefill_tokens_per_s": 1e6}
    argv = [str(LOAD), "", Asked("concurrency"), Asked("requests"), "24"]
    point = searching(argv, most=16.0, repeats=2, resolution=0.13)
    process = Process(**{**vars(point.process), "argv": tuple(word for word in point.process.argv if word != "")})
    what = plan([sim(options)], [Point(**{**vars(point), "process": process})])
    run = start(what)
    assert run.wait() == {0: 0}
    (search,) = results(run)["search"]
    assert search["outcome"] in ("found", "unsure"), search
    assert search["knee"]["met"] <= 8 <= search["knee"]["missed"], search
    assert search["answer"]["load"] >= 6
