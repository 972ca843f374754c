"""One GPU: the launcher against the same commands by hand, clients against each other, capacity, refusals."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpukit import Cards, Run, scraped
from recipe_toolkit.run.metrics import INTERVAL_S

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]
Record = Callable[..., None]

LOAD: dict[str, Any] = {"isl": 8192, "osl": 256, "concurrency": [8], "requests_per_concurrency": 5, "warmup": 8}
VLLM_BENCH = {"client": "vllm-bench", "name": "vllm", **LOAD}
AIPERF = {"client": "aiperf", "name": "aiperf", **LOAD}
SEEN = ("total_tps", "ttft_ms", "tpot_ms")
SCRAPE_S = INTERVAL_S / 20  # what a run's scrapes cost is too little to be seen; this often it might be


def figures(point: dict[str, Any]) -> dict[str, float]:
    """The same figures of a point of ours."""
    return {"total_tps": point["total_tps"], "ttft_ms": point["ttft_ms"]["mean"], "tpot_ms": point["tpot_ms"]["mean"]}


def own_figures(written: dict[str, Any]) -> dict[str, float]:
    """The same figures in what vllm bench serve writes."""
    return {
        "total_tps": written["total_token_throughput"],
        "ttft_ms": written["mean_ttft_ms"],
        "tpot_ms": written["mean_tpot_ms"],
    }


@pytest.mark.parametrize("first", ["recipe", "by hand"])
def test_the_launcher_costs_nothing(card: Cards, record: Record, first: str) -> None:
    card.shape("llama-8b")
    recipe = card.recipe_file("agg", "h200-agg.yaml", benchmarks=[VLLM_BENCH])
    found: dict[str, dict[str, float]] = {}
    for way in (first, *({"recipe", "by hand"} - {first})):
        if way == "recipe":
            run = card.submit(recipe)
            found[way] = {**figures(run.point("vllm-c8")), "ready_s": ready_after(run)}
        else:
            plan = card.plan(recipe)
            with card.by_hand(plan) as (bindings, ready_s):
                busy_card_is_refused(card)
                direct = own_figures(card.bench(plan, bindings, "vllm-c8"))
                found[way] = {**direct, "ready_s": ready_s}
                engine = bindings.ports["serve-0"]["http"]
                with scraped(engine, SCRAPE_S) as sizes:
                    read = own_figures(card.bench(plan, bindings, "vllm-c8"))
                record("scraping", every_s=SCRAPE_S, scrapes=len(sizes), off=direct, on=read)
                port = card.router(f"http://127.0.0.1:{engine}")
                record("router", direct=direct, routed=own_figures(card.bench(plan, bindings, "vllm-c8", port)))
    record("launcher", first=first, **{way.replace(" ", "_"): found[way] for way in found})
    # One measurement varies by about a percent; the table has them all.
    assert found["recipe"]["total_tps"] >= 0.97 * found["by hand"]["total_tps"]
    assert found["recipe"]["tpot_ms"] <= 1.05 * found["by hand"]["tpot_ms"]
    assert len(sizes) > 10
    assert read["total_tps"] >= 0.97 * direct["total_tps"]


def test_clients_agree(card: Cards, record: Record) -> None:
    card.shape("llama-8b")
    run = card.submit(card.recipe_file("clients", "h200-agg.yaml", benchmarks=[VLLM_BENCH, AIPERF]))
    vllm, aiperf = figures(run.point("vllm-c8")), figures(run.point("aiperf-c8"))
    record("clients", vllm=vllm, aiperf=aiperf)
    same_as_raw(run)
    for name in SEEN:
        assert aiperf[name] == pytest.approx(vllm[name], rel=0.05), name


def ready_after(run: Run) -> float:
    """Seconds from the submission to the first request of the benchmark."""
    (event,) = run.events("point_started")[:1]
    return float(event["t"]) - started(run)


def started(run: Run) -> float:
    """When the run was made."""
    return float(json.loads((run.folder / "events.jsonl").read_text().splitlines()[0])["t"])


def same_as_raw(run: Run) -> None:
    """TTFT and TPOT over the client's own records are those of the results."""
    point = run.point("vllm-c8")
    raw = json.loads((run.folder / point["artifacts"] / "vllm_bench.json").read_text())
    ttfts = raw["ttfts"]
    assert point["ttft_ms"]["mean"] == pytest.approx(1000 * sum(ttfts) / len(ttfts), rel=1e-6)
    tpots = [sum(itls) / (tokens - 1) for itls, tokens in zip(raw["itls"], raw["output_lens"], strict=True)]
    assert point["tpot_ms"]["mean"] == pytest.approx(1000 * sum(tpots) / len(tpots), rel=0.01)


def busy_card_is_refused(card: Cards) -> None:
    """Another process holds the card: the run ends before its engine starts, and says so."""
    began = time.monotonic()
    run = card.submit(card.recipe_file("busy", "h200-agg.yaml"), code=100)
    assert run.state["message"].startswith("bind: "), run.state["message"]
    assert "MEM.FREE" in run.state["message"]
    assert not run.events("process_started")
    assert time.monotonic() - began < 60


SHAPES = [  # the longest first
    # Unasked, vLLM takes FlashInfer's kernel on Hopper: it is compiled at its first use, and not every kit has it.
    (
        "qwen3-next",
        {"speculative-config": {"method": "mtp", "num_speculative_tokens": 2}, "gdn-prefill-backend": "triton"},
    ),
    ("deepseek-v2-lite", {}),
    ("llama-8b", {}),
]


@pytest.mark.parametrize(("shape", "args"), SHAPES, ids=[shape for shape, _ in SHAPES])
def test_capacity_is_what_the_engine_says(card: Cards, record: Record, shape: str, args: dict[str, Any]) -> None:
    card.shape(shape)
    bench = {
        "client": "vllm-bench",
        "name": "few",
        "isl": 512,
        "osl": 16,
        "concurrency": [2],
        "requests": 8,
        "warmup": 2,
    }
    recipe = card.recipe_file(
        shape,
        "h200-agg.yaml",
        model={"path": f"{shape}-shape", "served_name": shape},
        engine={"args": {"max-num-seqs": 64, **args}},
        benchmarks=[bench],
    )
    run = card.submit(recipe)
    asked = card.recipe("capacity", recipe, "-c", card.site, "--calibrate", run.folder, "--json")
    assert asked.returncode == 0, asked.stderr
    (role,) = json.loads(asked.stdout)["roles"]
    record("capacity", shape=shape, rows=role["logged"])
    rows = {row["what"]: row for row in role["logged"]}
    for what in ("weights a GPU", "tokens of KV"):
        low, high = within(rows[what]["predicted"])
        (logged, _) = within(rows[what]["logged"])
        assert 0.98 * low <= logged <= 1.02 * high, rows[what]
    # Of the memory that the log says is left: blocks, groups and states alone are at stake.
    assert role["kv_tokens"] == pytest.approx([within(rows["tokens of KV"]["logged"])[0]] * 2, rel=0.002)


def within(text: str) -> tuple[float, float]:
    """The smallest and the largest number of ``12,345``, ``1.5 to 2.5 GiB``."""
    numbers = [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]
    return min(numbers), max(numbers)


def test_too_high_a_utilisation_shows_the_engines_own_error(card: Cards, record: Record) -> None:
    card.shape("llama-8b")
    card.profile(bind=False)
    began = time.monotonic()
    run = card.submit(
        card.recipe_file("full", "h200-agg.yaml", engine={"args": {"gpu-memory-utilization": 1.0}}), code=100
    )
    record("utilisation", seconds=round(time.monotonic() - began, 1), message=run.state["message"])
    assert "GPU memory utilization" in run.state["message"]
    assert "deadline" not in run.state["message"]
