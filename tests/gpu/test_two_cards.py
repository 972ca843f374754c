"""Two GPUs of one host: how KV moves, what hidden peers cost, prediction against measurement, an engine killed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpukit import Cards, Run
from recipe_toolkit.plan.model import Plan

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
Record = Callable[..., None]

LOADS: dict[str, Any] = {"client": "vllm-bench", "requests_per_concurrency": 5, "warmup": 4}
BOTH = {**LOADS, "name": "8k256", "isl": 8192, "osl": 256, "concurrency": [8, 16]}


def one_card(pair: Cards, index: int) -> Cards:
    """One of two cards, with the same profile."""
    return Cards((pair.ids[index],), pair.programs, pair.folder, pair.shapes)


def test_prediction_and_measurement(pair: Cards, record: Record) -> None:
    """Prefill alone and decode alone, a card each; then both apart; then the same with the peers hidden."""
    pair.shape("llama-8b")
    prefill = pair.recipe_file(
        "prefill",
        "h200-agg.yaml",
        benchmarks=[{**LOADS, "name": "prefill", "isl": 8192, "osl": 2, "concurrency": [1, 4, 8, 16]}],
    )
    decode = pair.recipe_file(
        "decode",
        "h200-agg.yaml",
        kv_transfer={"connector": "decode-bench"},
        benchmarks=[{**LOADS, "name": "decode", "isl": 8192, "osl": 256, "concurrency": [1, 4, 8, 16]}],
    )
    alone = [(card, card.start(recipe)) for card, recipe in ((one_card(pair, 0), prefill), (one_card(pair, 1), decode))]
    parts = [card.wait(process) for card, process in alone]
    recipe = pair.recipe_file("both", "h200-1p1d.yaml", benchmarks=[BOTH])
    both = pair.submit(recipe)
    transfer = both.point("8k256-c8")["pools"]["decode"]["kv_transfer"]
    record("transfer", **{key: transfer.get(key) for key in ("transports", "transfers", "bytes_per_s", "time_mean_ms")})
    assert any("cuda_ipc" in way for way in transfer["transports"]), transfer
    hidden_peers_cost(pair, pair.plan(recipe), both, record)
    runs = [run.folder for run in (*parts, both)]
    asked = pair.recipe("frontier", *runs, "--gpus", "2", "--json", "-o", pair.folder / "frontier.json")
    assert asked.returncode == 0, asked.stderr
    measured = json.loads(asked.stdout)["measured"]
    record("frontier", measured=measured)
    errors = [row["error_percent"] for row in measured]
    assert len(errors) == 2, "not all was put beside a prediction"
    assert all(abs(error["total_tps_per_gpu"]) <= 10 for error in errors), errors


def hidden_peers_cost(pair: Cards, plan: Plan, both: Run, record: Record) -> None:
    """The same commands, each engine with its own card alone, which a recipe cannot ask for."""
    own = {process.name: pair.ids[process.gpus[0]] for process in plan.processes if process.gpus}
    with pair.by_hand(plan, own) as (bindings, _):
        hidden = pair.bench(plan, bindings, "8k256-c8")
    seen = both.point("8k256-c8")
    record(
        "peers", visible=summary(seen), hidden={"tpot_ms": hidden["mean_tpot_ms"], "ttft_ms": hidden["mean_ttft_ms"]}
    )
    assert seen["tpot_ms"]["mean"] <= 1.05 * hidden["mean_tpot_ms"]


def summary(point: dict[str, Any]) -> dict[str, float]:
    """Means in ms."""
    return {"tpot_ms": point["tpot_ms"]["mean"], "ttft_ms": point["ttft_ms"]["mean"]}


def test_an_engine_killed_while_kv_moves(pair: Cards, record: Record) -> None:
    pair.shape("llama-8b")
    recipe = pair.recipe_file(
        "killed",
        "h200-1p1d.yaml",
        engine={"args": {"enforce-eager": True}},
        benchmarks=[{**BOTH, "concurrency": [16], "requests_per_concurrency": 40}],
    )
    process = pair.start(recipe)
    folder = newest(pair.folder / "runs")
    until(lambda: "point_started" in (folder / "events.jsonl").read_text(), 400)
    time.sleep(3)
    state = json.loads((folder / "state.json").read_text())
    pid = state["processes"]["prefill-0"]["pid"]
    killed = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    run = pair.wait(process, code=100)
    record("killed", seconds=round(time.monotonic() - killed, 1), message=run.state["message"])
    assert "prefill-0" in run.state["message"]


def newest(runs: Path) -> Path:
    """The folder of the one run whose engines are being started."""
    until(lambda: any(runs.glob("*/events.jsonl")), 60)
    return max(runs.glob("*/events.jsonl"), key=lambda path: path.stat().st_mtime).parent


def until(true: Callable[[], bool], seconds: float) -> None:
    """Wait for something."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, f"not within {seconds:g} s"
        time.sleep(0.1)
