"""``recipe tune`` as a user types it: what it costs, what it refuses, and that it goes on where it was killed.

Slurm replays recorded answers, and what the runs measured is written by a model of their timing.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from frontier_support import Seen, Timing, simulate
from recipe_toolkit.plan.model import Plan, Point, plan_from_json
from recipe_toolkit.results.collect import build_results
from recipe_toolkit.results.model import Client, Length, PerGpu, PerUser, PointResult, Requests, Stat
from recipe_toolkit.rundir import RunDir, write_json
from recipe_toolkit.submit.select import name_of as name_of_run
from submit_support import wait_until, write_state

ROOT = Path(__file__).parents[2]
TIMING = Timing(prefill=0.2, transfer=0.02, step=0.01, each=0.0005, osl=64)
TUNE: dict[str, Any] = {
    "gpus": 6,
    "prefill": {
        "topologies": {"tp1": {"parallel": {"tp": 1}}, "tp2": {"parallel": {"tp": 2}}},
        "concurrency": [1, 2, 4],
    },
    "decode": {
        "topologies": {"one": {"parallel": {"tp": 1}, "args": {"max-num-seqs": 128}}},
        "concurrency": [1, 8, 64],
    },
    "confirm": 2,
    "transfer_gb_per_s": 6.7,
}
RECIPE: dict[str, Any] = {
    "schema": 1,
    "name": "mine",
    "model": {"path": "/models/tiny", "served_name": "tiny"},
    "engine": {"kind": "sim", "version": "0.32.0", "args": {"max-model-len": 4096}, "sim": {"startup_s": 0.2}},
    "resources": {"gpu": "simulated", "gpus_per_node": 2},
    "roles": {"prefill": {}, "decode": {}},
    "kv_transfer": {"connector": "nixl"},
    "benchmarks": [{"client": "aiperf", "isl": 2048, "osl": 64, "concurrency": [1], "requests_per_concurrency": 8}],
    "slo": {"ttft_mean_s": 1.5, "tpot_mean_ms": 25},
    "time_limit": "00:30:00",
}


@pytest.fixture
def site(recipe, fake_slurm):
    """A recipe with `tune` on a Slurm whose sbatch gives 101, 102, …; all its jobs run."""
    profile = {"schema": 1, "name": "site", "scheduler": "slurm", "runs": "runs"}
    (recipe.folder / "site.yaml").write_text(json.dumps(profile))
    for call in range(1, 13):
        fake_slurm.says("sbatch", f"{100 + call}\n", call=call)
    fake_slurm.holds(*(f"{100 + call}|RUNNING|None|n1|0|0" for call in range(1, 13)))
    recipe.slurm = fake_slurm
    write(recipe)
    return recipe


def write(site, tune: dict[str, Any] | None = None, **fields: Any) -> None:
    data = {**RECIPE, "tune": {**TUNE, **(tune or {})}, **fields}
    data["tune"] = {key: value for key, value in data["tune"].items() if value is not None}
    data = {key: value for key, value in data.items() if value is not None}
    (site.folder / "r.yaml").write_text(json.dumps(data))


def tune(site, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return site("tune", "r.yaml", "-c", "./site.yaml", *words, **options)


def folders(site) -> list[Path]:
    """The runs in the order of their submission: ids of one second are in that of their names."""
    found = (site.folder / "runs").iterdir() if (site.folder / "runs").exists() else []
    made = [path for path in found if (path / "job.json").exists()]
    return sorted(made, key=lambda path: (path / "job.json").stat().st_mtime_ns)


def killed(site, runs: int, *words: str) -> None:
    """Start a tuning, and kill it as soon as there are so many runs."""
    command = [Path(sys.executable).with_name("recipe"), "tune", "r.yaml", "-c", "./site.yaml", *words]
    process = subprocess.Popen(command, cwd=site.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: len(folders(site)) >= runs, 60)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(20)


def seen_of(plan: Plan, point: Point) -> Seen:
    users, requests = point.concurrency or 1, point.requests or 1
    counts = {role: len([item for item in plan.instances if item.role == role]) for role in ("prefill", "decode")}
    if counts["prefill"]:
        return simulate(TIMING, users, requests, counts["prefill"], counts["decode"])
    if point.osl == 2:
        return simulate(TIMING, users, requests, prefills=1)
    return simulate(TIMING, users, requests, decodes=1)


def measured(plan: Plan, point: Point, *, valid: bool = True) -> PointResult:
    seen = seen_of(plan, point)
    isl, osl = point.isl or 0, point.osl or 0
    total, output = seen.rate * (isl + osl), seen.rate * osl
    return PointResult(
        id=point.id,
        client=Client(point.client, "0.12.0"),
        artifacts=point.artifacts,
        exit_code=0,
        isl=Length(isl, isl, "server"),
        osl=Length(osl, osl, "server"),
        concurrency=point.concurrency,
        requests=Requests(point.requests, point.requests, 0),
        ttft_ms=Stat(seen.ttft * 1000, seen.ttft_median * 1000),
        tpot_ms=Stat(seen.tpot * 1000, seen.tpot * 1000) if seen.tpot else Stat(1.0, 1.0),
        e2e_ms=Stat(seen.e2e * 1000),
        requests_per_s=seen.rate,
        output_tps=output,
        total_tps=total,
        total_tps_per_gpu=PerGpu(total / plan.gpus.working, total / plan.gpus.working),
        output_tps_per_user=PerUser(1 / seen.tpot if seen.tpot else None),
        valid=valid,
        reasons=() if valid else ("3 of 9 requests failed",),
    )


def ends(folder: Path, *, valid: bool = True) -> None:
    """The run has ended, and measured what the model says."""
    run = RunDir(folder)
    plan = plan_from_json(json.loads(run.plan.read_text()))
    points = [measured(plan, point, valid=valid) for point in plan.benchmarks]
    write_json(run.results, build_results(plan, run.id, "done", points).to_json())
    write_state(run, "done", valid=valid)


def name_of(folder: Path) -> str:
    return name_of_run(folder.name)


def names(site) -> list[str]:
    return [name_of(path) for path in folders(site)]


# --- at the desk


def test_what_each_stage_costs_at_most(site):
    done = tune(site, "--plan")
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert rows[1:4] == [
        ["prefill", "2", "1", "6", "1"],
        ["decode", "1", "1", "3", "0.5"],
        ["confirm", "2", "4", "2", "4"],
    ]
    assert done.stdout.splitlines()[-1].startswith("at most 5.5 node-hours")
    data = json.loads(tune(site, "--plan", "--json").stdout)
    assert data["node_hours"] == 5.5
    assert folders(site) == []
    assert not (site.folder / "tune-mine").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tune": {"gpus": 1}}, "tune.gpus: 1 is less than 2"),
        ({"tune": {"decode": None}}, "tune.decode: missing"),
        ({"tune": {"gpus": 2}}, "takes 2 of 2 GPUs: none is left for the other side"),
        ({"tune": {"prefill": {**TUNE["prefill"], "dummy_kv": True}}}, "tune.prefill.dummy_kv: is of decode alone"),
        (
            {"tune": {"prefill": {"topologies": {"a": {"parallel": {"tp": 3}}}, "concurrency": [1]}}},
            "does not fill whole nodes of 2 GPUs",
        ),
        (
            {
                "tune": {
                    "decode": {"topologies": {"a": {"parallel": {}, "args": {"max-num-sqes": 1}}}, "concurrency": [1]}
                }
            },
            "did you mean `max-num-seqs`",
        ),
        ({"sweep": {"grid": {"roles.decode.instances": [1, 2]}}}, "a recipe with `tune` has no sweep of its own"),
        ({"roles": {"serve": {}}, "kv_transfer": None}, "prefill and decode are tuned"),
        (
            {"benchmarks": [{"client": "aiperf", "isl": 2048, "osl": 2, "concurrency": [1], "requests": 4}]},
            "too short to tell prefill from decode",
        ),
    ],
)
def test_what_cannot_be_tuned_is_refused_with_its_place(site, changes, said):
    changes = dict(changes)
    write(site, changes.pop("tune", None), **changes)
    for verb in (["tune", "r.yaml", "-c", "./site.yaml", "--plan"], ["validate", "r.yaml", "-c", "./site.yaml"]):
        done = site(*verb)
        assert done.returncode == 1, done.stdout
        assert said in done.stderr + done.stdout
        assert "r.yaml:1:" in done.stderr + done.stdout
        assert "Traceback" not in done.stderr
    assert folders(site) == []


def test_limits_refuse_before_anything_is_submitted(site):
    done = tune(site, "--max-node-hours", "1")
    assert done.returncode == 1
    assert "3 runs could take 1.5 node-hours, more than --max-node-hours 1" in done.stderr
    assert folders(site) == []


def test_options_that_do_not_go_together(site):
    assert tune(site, "--stage", "prefill", "--confirm").returncode == 2
    done = tune(site, "--stage", "frontier")
    assert done.returncode == 1
    assert "nothing has been measured yet" in done.stderr


def test_a_folder_of_another_recipe_is_refused(site):
    assert tune(site, "--stage", "frontier").returncode == 1
    write(site, name="other")
    done = tune(site, "--folder", "tune-mine", "--stage", "frontier")
    assert done.returncode == 1
    assert "is of the recipe mine, not of other" in done.stderr
    (site.folder / "tune-mine" / "tune.json").write_text("{}")
    assert "is no state of a tuning" in tune(site, "--folder", "tune-mine", "--stage", "frontier").stderr


# --- on the way


def test_a_tuning_goes_on_where_it_was_killed_to_the_confirmed_split(site):
    killed(site, 2, "--stage", "prefill")
    for path in folders(site):
        ends(path)
    killed(site, 3)
    ends(next(path for path in folders(site) if "decode" in path.name))
    assert sorted(names(site)) == ["mine-decode-one", "mine-prefill-tp1", "mine-prefill-tp2"]

    done = tune(site, "--json")
    assert done.returncode == 0, done.stderr
    assert len(folders(site)) == 3, "what has been measured is not measured again"
    data = json.loads(done.stdout)
    (best,) = [point for point in data["points"] if point["best"]]
    assert best["gpus"] <= 6
    assert best["slo_met"]
    written = sorted((site.folder / "tune-mine" / "confirm").glob("*.yaml"))
    assert len(written) == 2
    assert site("validate", *written, "-c", "./site.yaml").returncode == 0
    assert "--confirm" in done.stderr

    killed(site, 5, "--confirm")
    for path in folders(site)[3:]:
        ends(path)
    done = tune(site, "--confirm")
    assert done.returncode == 0, done.stderr
    assert len(folders(site)) == 5
    data = json.loads((site.folder / "tune-mine" / "frontier.json").read_text())
    assert len(data["measured"]) == 2
    for item in data["measured"]:
        assert all(abs(error) < 10 for error in item["error_percent"].values()), item
    confirmed = data["measured"][0]
    assert confirmed["prefill"]["instances"] == best["prefill"]["instances"]
    assert "measured, beside what was predicted" in done.stdout


def test_what_an_earlier_recipe_measured_is_not_combined(site):
    """The lengths change, and a topology goes: runs of other lengths beside the new ones would be refused."""
    killed(site, 3)
    for path in folders(site):
        ends(path)
    killed(site, 5, "--confirm")
    for path in folders(site)[3:]:
        ends(path)
    prefill = {**TUNE["prefill"], "topologies": {"tp1": {"parallel": {"tp": 1}}}}
    write(site, {"prefill": prefill}, benchmarks=[{**RECIPE["benchmarks"][0], "isl": 1024}])
    done = tune(site, "--stage", "frontier")
    assert done.returncode == 1, done.stdout
    assert "nothing has been measured yet" in done.stderr
    killed(site, 7)
    command = [Path(sys.executable).with_name("recipe"), "tune", "r.yaml", "-c", "./site.yaml", "--json"]
    with (site.folder / "said").open("w") as said:
        process = subprocess.Popen(command, cwd=site.folder, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        wait_until(lambda: "one: running" in (site.folder / "said").read_text(), 60)
        with pytest.raises(subprocess.TimeoutExpired):  # earlier runs of these topologies have ended; these have not
            process.wait(2)
        for path in folders(site)[5:]:
            ends(path)
        out, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, (site.folder / "said").read_text()
    data = json.loads(out)
    assert [pool["recipe"] for pool in data["pools"]] == ["mine-prefill-tp1", "mine-decode-one"]
    assert data["measured"] == []


def test_what_is_invalid_is_measured_again_and_never_used(site):
    killed(site, 2, "--stage", "prefill")
    one, two = folders(site)
    ends(one)
    ends(two, valid=False)
    killed(site, 3, "--stage", "prefill")
    assert len(folders(site)) == 3
    killed(site, 4, "--stage", "decode")
    ends(folders(site)[-1])
    done = tune(site, "--stage", "frontier", "--json")
    assert done.returncode == 0, done.stderr
    used = [pool["recipe"] for pool in json.loads(done.stdout)["pools"]]
    assert used == [name_of(one), "mine-decode-one"]


def test_the_stages_recipes_are_what_they_say(site):
    killed(site, 3)
    prefill = json.loads((next(path for path in folders(site) if "tp2" in path.name) / "plan.json").read_text())
    assert {(point["isl"], point["osl"]) for point in prefill["benchmarks"]} == {(2048, 2)}
    assert [point["requests"] for point in prefill["benchmarks"]] == [16, 32, 64]
    decode = json.loads((next(path for path in folders(site) if "decode" in path.name) / "plan.json").read_text())
    assert {(point["isl"], point["osl"]) for point in decode["benchmarks"]} == {(2048, 64)}
    words = [str(word) for process in decode["processes"] for word in process["argv"]]
    assert any("DecodeBenchConnector" in word for word in words)
    assert "128" in words
    for name in ("prefill", "decode"):
        path = site.folder / "tune-mine" / f"{name}.yaml"
        assert site("plan", path, "--sweep").returncode == 0


def test_capacity_says_what_it_cannot_know(site):
    done = tune(site, "--stage", "capacity")
    assert done.returncode == 0
    assert "prefill tp2: what it holds is not known: the simulated engine holds no model" in done.stderr


def test_the_shipped_recipe_is_checked_and_told_what_fits(recipe):
    shipped = ROOT / "recipes" / "qwen3.8-2.4t" / "gb300-8k1k-tune.yaml"
    site = ROOT / "recipes" / "clusters" / "gb300-nvl72.yaml"
    done = recipe("tune", shipped, "-c", site, "--stage", "capacity")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if " of weights a GPU" in line]
    assert [line.split(":")[0] for line in lines] == [
        "prefill tep8",
        "prefill tp4dp2",
        "prefill tp2dp4",
        "decode tep8",
        "decode tp4dp4",
    ]
    assert "at most 120 node-hours" in recipe("tune", shipped, "-c", site, "--plan").stdout
    assert not (recipe.folder / "tune-qwen3.8-2.4t-gb300-tune").exists()
