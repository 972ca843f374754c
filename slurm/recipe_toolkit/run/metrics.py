"""Scrapes of the engines' /metrics, and their series on disk."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time

from recipe_toolkit.results import prometheus
from recipe_toolkit.results.pools import PoolGauges
from recipe_toolkit.run import http
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.http import HttpError

INTERVAL_S = 5.0
_SCRAPE_S = 10.0
_PREFIX = "vllm:"
_TOKENS = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")

log = logging.getLogger("recipe_toolkit.run")


async def scrape(context: Context) -> dict[str, str]:
    """The text of each engine that answers requests; one that does not deliver is left out."""
    names = _names(context)
    texts = await asyncio.gather(*(_one(context, name) for name in names))
    return {name: text for name, text in zip(names, texts, strict=True) if text is not None}


def _names(context: Context) -> list[str]:
    return [process.name for process in context.engines() if process.api]


async def _one(context: Context, name: str) -> str | None:
    try:
        answer = await http.get(context.base_url(name) + "/metrics", _SCRAPE_S)
    except HttpError as error:
        log.warning("no metrics of %s: %s", name, error)
        return None
    return answer.text if answer.status == 200 else None


def tokens(texts: dict[str, str]) -> float:
    """Prompt and generated tokens so far, over all engines."""
    return sum(
        sample.value for text in texts.values() for sample in prometheus.parse(text, _PREFIX) if sample.name in _TOKENS
    )


def congestion(texts: dict[str, str]) -> list[str]:
    """Which engines have requests that wait, and how full their KV caches are."""
    found = []
    for name, text in texts.items():
        samples = prometheus.parse(text, _PREFIX)
        values: dict[str, list[float]] = {}
        for sample in samples:
            values.setdefault(sample.name.removeprefix(_PREFIX), []).append(sample.value)
        waiting = sum(values.get("num_requests_waiting", ()))
        if waiting > 0:
            full = max(values.get("kv_cache_usage_perc", ()), default=0.0)
            found.append(f"{name} has {waiting:g} waiting, its KV cache is {full:.0%} full")
    return found


class Series:
    """Appends every scrape of a point to ``metrics/PROCESS.jsonl`` and keeps the gauges for the pools.

    ``tokens``: as each engine last said, so that one which falls silent does not look like progress. ``silent``: the
    engines that the last scrape got no answer from.
    """

    def __init__(self, context: Context, point: str) -> None:
        self._context = context
        self._point = point
        self.gauges = PoolGauges()
        self.tokens = 0.0
        self.silent: list[str] = []
        self._said: dict[str, str] = {}

    async def run(self) -> None:
        """Scrape until cancelled."""
        while True:
            await self.sample()
            await asyncio.sleep(INTERVAL_S)

    async def sample(self) -> dict[str, str]:
        """One scrape, written and counted."""
        texts = await scrape(self._context)
        # Many engines say much: parsing must not hold up the heartbeat.
        await asyncio.get_running_loop().run_in_executor(None, self._keep, round(time.time(), 3), texts)
        return texts

    def _keep(self, now: float, texts: dict[str, str]) -> None:
        self.gauges.add(texts)
        self._said.update(texts)
        self.tokens = tokens(self._said)
        self.silent = [name for name in _names(self._context) if name not in texts]
        folder = self._context.run.metrics
        folder.mkdir(exist_ok=True)
        for process, text in texts.items():
            values = {_key(item): item.value for item in prometheus.parse(text, _PREFIX) if math.isfinite(item.value)}
            line = {"t": now, "point": self._point, "values": values}
            with (folder / f"{process}.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


def _key(sample: prometheus.Sample) -> str:
    """The series' name without what is the same in all of them."""
    labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()) if key != "model_name")
    return f"{sample.name}{{{labels}}}" if labels else sample.name
