"""srt-slurm's one benchmark to a recipe's.

sa-bench's ``random_range_ratio`` r draws lengths from r L to L (``benchmark_serving.py``); vLLM's own of
the same name means the distance from L. A recipe has tokens: ``isl_min`` and ``isl``. What a file does
not say has sa-bench's defaults: ratio 0.8, ten requests and two of warm-up for each in flight, the
model's chat template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from recipe_toolkit.faults import shown
from recipe_toolkit.importers import srt_accuracy
from recipe_toolkit.importers.draft import Draft
from recipe_toolkit.importers.notes import CHANGED, LOST, PROFILE, SET, UNNEEDED
from recipe_toolkit.importers.reader import Cursor
from recipe_toolkit.plan.aiperf import RESERVED

_AT = ("benchmarks", 0)
_DEFAULT_RATIO = 0.8
_DEFAULT_REQUESTS = 10
_DEFAULT_WARMUP = 2
_AIPERF_DEFAULTS = (3, 1)
_MOST_CONCURRENCY = 1_000_000
_MOST_POINTS = 500
_TRUSTING = {"sa-bench": "trust-remote-code", "aiperf": "tokenizer-trust-remote-code"}
_TOKENIZER_MODES = re.compile(r"deepseek_?v4", re.IGNORECASE)
_ADDRESS = re.compile(r"SRT_|localhost|127\.0\.0\.1|/configs/|/infmax|/benchmarks/|/logs")


def read_benchmark(root: Cursor, draft: Draft, time_limit: str | int, trust_remote_code: bool) -> None:
    """Read ``benchmark``. ``time_limit``: of the job, the only bound that srt-slurm has on a point."""
    bench = root.at("benchmark")
    kind = bench.at("type").text() or "manual"
    reader = _KINDS.get(kind, _other)
    reader(bench, draft)
    draft.set((*_AT, "timeout"), time_limit)
    if kind in _TRUSTING and trust_remote_code:
        # A tokenizer with code of its own needs it in the client too.
        draft.set((*_AT, "args", _TRUSTING[kind]), True)
    for key in ("ttft_threshold_ms", "itl_threshold_ms"):
        _slo(key, bench.at(key), draft)
    _placement(bench)


def _sa_bench(bench: Cursor, draft: Draft) -> None:
    draft.set((*_AT, "client"), "vllm-bench", bench.at("type"))
    ratio = bench.at("random_range_ratio")
    share = ratio.number() if ratio.given else _DEFAULT_RATIO
    if share is None or not 0 <= share <= 1:
        ratio.problem(f"{shown(ratio.value)} is no share between 0 and 1")
        share = 1.0
    for key in ("isl", "osl"):
        longest = _length(bench.at(key), key, draft)
        if longest is not None and share < 1:
            draft.set((*_AT, f"{key}_min"), max(1, int(longest * share)), ratio)
            text = f"sa-bench's random_range_ratio {share:g}: lengths from {share:g} times the longest."
            draft.comments["benchmarks"] = text
    _counts(bench, draft, _DEFAULT_REQUESTS, _DEFAULT_WARMUP)
    _template(bench, draft)
    _rate(bench.at("req_rate"))
    for key in ("backend", "aiperf_package"):
        bench.at(key).use()
    reuse = bench.at("reuse_http_connections")
    if reuse.given:
        reuse.note(UNNEEDED, "vllm bench serve keeps its connections")


def _aiperf(bench: Cursor, draft: Draft) -> None:
    """Their AIPerf: lengths without spread, and other defaults than sa-bench's (``aiperf_bench.py``)."""
    draft.set((*_AT, "client"), "aiperf", bench.at("type"))
    for key in ("isl", "osl"):
        _length(bench.at(key), key, draft)
    _counts(bench, draft, *_AIPERF_DEFAULTS)
    kind = bench.at("aiperf_endpoint_type")
    if (kind.text() or "chat") not in ("chat", "completions"):
        kind.problem(f"{shown(kind.value)} is not one of chat, completions")
    draft.set((*_AT, "endpoint"), kind.value or "chat", kind)
    for key, item in bench.at("aiperf_args").items():
        name = key.lstrip("-").replace("_", "-")
        if name in RESERVED:
            item.note(SET, RESERVED[name])
        elif item.value is None:
            item.note(UNNEEDED, "null passes no flag")
        else:
            draft.set((*_AT, "args", name), item.use(), item)
    package = bench.at("aiperf_package")
    if package.given:
        package.note(PROFILE, "tools.aiperf of the cluster profile says which AIPerf is run")


def _length(cursor: Cursor, key: str, draft: Draft) -> int | None:
    if not cursor.given:
        cursor.problem("missing: the benchmark needs it")
        return None
    length = cursor.integer(least=1, most=100_000_000)
    draft.set((*_AT, key), length, cursor)
    return length


def _counts(bench: Cursor, draft: Draft, requests: int, warmup: int) -> None:
    """Requests in flight, and how many for each of them are measured and sent before."""
    draft.set((*_AT, "concurrency"), _concurrencies(bench.at("concurrencies")), bench.at("concurrencies"))
    for key, field, default in (
        ("num_prompts_mult", "requests_per_concurrency", requests),
        ("num_warmup_mult", "warmup_per_concurrency", warmup),
    ):
        number = bench.at(key).integer()
        draft.set((*_AT, field), default if number is None else number, bench.at(key))


def _template(bench: Cursor, draft: Draft) -> None:
    endpoint, template = bench.at("endpoint"), bench.at("use_chat_template")
    path, rendered = endpoint.text() or "/v1/completions", template.flag(default=True)
    chat = "chat" in path or rendered
    draft.set((*_AT, "endpoint"), "chat" if chat else "completions", endpoint if endpoint.given else template)
    if rendered and "chat" not in path:
        message = "the server renders the chat template (endpoint: chat); sa-bench did, within isl"
        bench.source.note(CHANGED, template.path, template.value if template.given else "true by default", message)
    tokenizer, mode = bench.at("custom_tokenizer"), bench.at("tokenizer_mode").text()
    if tokenizer.given and _TOKENIZER_MODES.search(str(tokenizer.value)):
        tokenizer.note(CHANGED, "vllm bench serve has it as tokenizer-mode: deepseek_v4")
        mode = "deepseek_v4"
    elif tokenizer.given:
        tokenizer.note(LOST, "vllm bench serve loads no tokenizer class; prompts are made with the model's own")
    if mode not in (None, "auto"):
        draft.set((*_AT, "args", "tokenizer-mode"), mode, bench.at("tokenizer_mode"))
    for key in ("dataset_name", "dataset_path"):
        item = bench.at(key)
        if item.given and item.value != "random":
            item.note(LOST, "prompts are random tokens of the length isl")
        item.use()


def _rate(rate: Cursor) -> None:
    if rate.given and str(rate.value).lower() not in ("inf", ".inf", "infinity"):
        rate.note(LOST, "a closed loop starts the next request as soon as one ends, at no rate")
    rate.use()


def _concurrencies(cursor: Cursor) -> list[int] | None:
    """``4x8x16``, a number, or a list of numbers."""
    if not cursor.given:
        cursor.problem("missing: the benchmark needs it")
        return None
    found: list[int] = []
    for item in cursor.entries():
        text = item.text() or ""
        parts = text.split("x")
        if len(parts) > _MOST_POINTS or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
            item.problem(f"{shown(text)} is not a number in flight, nor several with x between them")
            continue
        for number in map(int, (part[:9] for part in parts)):
            if not 1 <= number <= _MOST_CONCURRENCY:
                item.problem(f"{number} in flight is not between 1 and {_MOST_CONCURRENCY}")
            elif number in found:
                item.note(CHANGED, f"{number} stands twice, and is measured once", text)
            else:
                found.append(number)
    return found or None


def _custom(bench: Cursor, draft: Draft) -> None:
    command = bench.at("command")
    text = command.text()
    if not text:
        command.problem("missing: a custom benchmark needs it")
        return
    draft.set((*_AT, "client"), "command", bench.at("type"))
    draft.set((*_AT, "name"), "custom")
    draft.set((*_AT, "command"), ["bash", "-lc", text], command)
    env = bench.at("env")
    told = [text, *(str(item.value) for _, item in env.items())]
    if any(_ADDRESS.search(line) for line in told):
        message = "it is run as it stands, but finds no server at the address, nor files, that srt-slurm gave it"
        command.note(LOST, f"{message}: RECIPE_URL and RECIPE_ARTIFACTS are in its environment")
    for name, item in env.items():
        draft.set((*_AT, "env", name), item.text(), item)
    for key, why in (("container_image", "the client runs where the profile's tools say"),):
        if bench.at(key).given:
            bench.at(key).note(LOST, why)
    for key in ("concurrencies", "isl", "osl"):
        if bench.at(key).given:
            bench.at(key).note(UNNEEDED, "a custom benchmark does not read it")


def _manual(bench: Cursor, draft: Draft) -> None:
    kind = bench.at("type")
    message = "the engines are not kept for use by hand: the run ends when all ranks have answered"
    bench.source.note(LOST, kind.path, "manual" if kind.given else "manual by default", message)
    kind.use()
    _nothing(draft)


def _other(bench: Cursor, draft: Draft) -> None:
    kind = bench.at("type")
    kind.note(LOST, "no client of a recipe does it: the run ends when all ranks have answered")
    _nothing(draft)
    for key, item in bench.items():
        if key not in ("type", "ttft_threshold_ms", "itl_threshold_ms", "placement", "client_dedicated_node"):
            item.note(LOST, f"the benchmark {brief_kind(kind)} is not run")


def brief_kind(kind: Cursor) -> str:
    """The name of a benchmark, for a message."""
    return kind.value if isinstance(kind.value, str) else "named here"


def _nothing(draft: Draft) -> None:
    """The shortest benchmark there is: a recipe holds at least one."""
    draft.set((*_AT, "client"), "command")
    draft.set((*_AT, "name"), "none")
    draft.set((*_AT, "command"), ["true"])


def _slo(key: str, cursor: Cursor, draft: Draft) -> None:
    value = cursor.number()
    if value is None or value <= 0:
        return
    if key.startswith("ttft"):
        draft.set(("slo", "ttft_s"), value / 1000, cursor)
    else:
        draft.set(("slo", "tpot_ms"), value, cursor)


def _placement(bench: Cursor) -> None:
    for item in (bench.at("client_dedicated_node"), bench.at("client_placement"), bench.at("placement", "node")):
        if item.given and item.value not in (False, "head"):
            item.note(LOST, "the client runs on the first node, beside engines")
        item.use()
    bench.at("colocate_with_frontend").use()


_KINDS: dict[str, Callable[[Cursor, Draft], Any]] = {
    "sa-bench": _sa_bench,
    "aiperf": _aiperf,
    "custom": _custom,
    "manual": _manual,
    **srt_accuracy.READERS,
}
