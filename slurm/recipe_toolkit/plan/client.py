"""The benchmark clients: AIPerf 0.13, or any command."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan import flags
from recipe_toolkit.plan.container import Needs, housed
from recipe_toolkit.plan.model import Point, Process
from recipe_toolkit.plan.sim import TOKENIZER
from recipe_toolkit.plan.tools import Runner, runner, source
from recipe_toolkit.plan.values import RunPath, Value, url
from recipe_toolkit.recipe import Benchmark, Recipe, Slo

ROLE = "client"
_NODE = 0
# With these AIPerf takes a tokenizer's path for a repository in the hub's cache, and stops.
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")

RESERVED = {
    **dict.fromkeys(("url", "u", "model", "model-names", "m"), "the plan sets it"),
    **dict.fromkeys(("tokenizer", "tokenizer-revision"), "it stands in model.tokenizer"),
    **dict.fromkeys(("isl", "prompt-input-tokens-mean"), "it stands in isl"),
    **dict.fromkeys(("osl", "output-tokens-mean", "prompt-output-tokens-mean"), "it stands in osl"),
    "endpoint-type": "it stands in endpoint",
    "concurrency": "it stands in concurrency",
    "request-rate": "it stands in request_rate",
    **dict.fromkeys(("request-count", "num-requests"), "it stands in requests or requests_per_concurrency"),
    **dict.fromkeys(("warmup-request-count", "num-warmup-requests"), "it stands in warmup or warmup_per_concurrency"),
    "random-seed": "it stands in seed",
    "goodput": "it follows from slo",
    **dict.fromkeys(("artifact-dir", "output-artifact-dir", "profile-export-prefix"), "artifacts have one place"),
    **dict.fromkeys(("export-level", "profile-export-level"), "results are checked against the records"),
    "ui": "output goes to a log",
    "ui-type": "output goes to a log",
}


def points(recipe: Recipe, cluster: Cluster, entry: Process) -> Iterator[Point]:
    """Every measurement, in the recipe's order. Raises InputError for a tokenizer that the profile lacks."""
    for benchmark in recipe.benchmarks:
        if benchmark.client == "command":
            yield _command(recipe, cluster, entry, benchmark)
            continue
        for concurrency in benchmark.concurrency:
            yield _aiperf(recipe, cluster, entry, benchmark, f"{benchmark.name}-c{concurrency}", concurrency, None)
        for rate in benchmark.request_rate:
            name = f"{benchmark.name}-r{flags.number(rate)}"
            yield _aiperf(recipe, cluster, entry, benchmark, name, None, rate)


@dataclass(frozen=True)
class _Tokenizer:
    """Where it is. ``revision``: of a repository of the hub. ``local``: a folder that the nodes have."""

    where: Value
    revision: str | None = None
    local: bool = True


def _tokenizer(recipe: Recipe, cluster: Cluster) -> _Tokenizer:
    if recipe.model.tokenizer is not None:
        found = source(recipe.model.tokenizer, cluster, "model.tokenizer")
    elif recipe.engine.kind == "sim":
        return _Tokenizer(TOKENIZER)
    else:
        found = source(recipe.model.path, cluster, "model.path")
    return _Tokenizer(found.name, found.revision, found.is_path)


def _aiperf(
    recipe: Recipe,
    cluster: Cluster,
    entry: Process,
    benchmark: Benchmark,
    point: str,
    concurrency: int | None,
    rate: float | None,
) -> Point:
    requests = _count(benchmark.requests, benchmark.requests_per_concurrency, concurrency)
    warmup = _count(benchmark.warmup, benchmark.warmup_per_concurrency, concurrency)
    tokenizer, program = _tokenizer(recipe, cluster), runner(cluster, "aiperf")
    words: list[Value] = [program.head, "profile", "--model", recipe.model.served_name]
    words += ["--url", url(entry.name, entry.node), "--endpoint-type", benchmark.endpoint, "--streaming"]
    words += ["--tokenizer", tokenizer.where]
    words += ["--tokenizer-revision", tokenizer.revision] if tokenizer.revision else []
    words += ["--isl", str(benchmark.isl), "--isl-stddev", "0", "--osl", str(benchmark.osl), "--osl-stddev", "0"]
    # Counted by the server: text that is split into tokens once more gives other numbers.
    words += ["--extra-inputs", "ignore_eos:true", "--use-server-token-count"]
    if concurrency is not None:
        words += ["--concurrency", str(concurrency)]
    if rate is not None:
        words += ["--request-rate", flags.number(rate)]
    words += ["--request-count", str(requests)]
    if warmup:
        words += ["--warmup-request-count", str(warmup)]
    # By default it makes 100 prompts and sends them again: those would be prefix-cache hits.
    words += ["--num-dataset-entries", str((requests or 0) + (warmup or 0))]
    words += ["--random-seed", str(_seed(benchmark, point))]
    words += _goodput(recipe.slo)
    words += ["--artifact-dir", RunPath(_artifacts(point)), "--export-level", "records", "--ui", "none"]
    # The lead scrapes every engine itself; AIPerf would see the router's counters alone.
    words += ["--no-server-metrics", "--no-gpu-telemetry"]
    words += flags.render(benchmark.args)
    return Point(
        id=point,
        client=benchmark.client,
        process=_process(cluster, benchmark, point, words, program, tokenizer, {}),
        artifacts=_artifacts(point),
        timeout_s=benchmark.timeout_s,
        isl=benchmark.isl,
        osl=benchmark.osl,
        concurrency=concurrency,
        request_rate=rate,
        requests=requests,
        warmup=warmup,
    )


def _command(recipe: Recipe, cluster: Cluster, entry: Process, benchmark: Benchmark) -> Point:
    """Any program. It learns from its environment where to send requests and where to write."""
    point = benchmark.name
    name, *rest = benchmark.command
    program = runner(cluster, name) if name in cluster.tools else Runner(name)
    tokenizer = _tokenizer(recipe, cluster)
    env: dict[str, Value] = {
        "RECIPE_URL": url(entry.name, entry.node),
        "RECIPE_MODEL": recipe.model.served_name,
        "RECIPE_ARTIFACTS": RunPath(_artifacts(point)),
        "RECIPE_TOKENIZER": tokenizer.where,
    }
    return Point(
        id=point,
        client=benchmark.client,
        process=_process(cluster, benchmark, point, [program.head, *rest], program, tokenizer, env),
        artifacts=_artifacts(point),
        timeout_s=benchmark.timeout_s,
    )


def _process(
    cluster: Cluster,
    benchmark: Benchmark,
    point: str,
    argv: Sequence[Value],
    program: Runner,
    tokenizer: _Tokenizer,
    own: Mapping[str, Value],
) -> Process:
    unset = _OFFLINE if benchmark.client == "aiperf" and tokenizer.local else ()
    env: dict[str, Value] = {**cluster.env, **benchmark.env, **own}
    process = Process(
        name=f"bench-{point}",
        role=ROLE,
        instance=0,
        rank=0,
        node=_NODE,
        argv=tuple(argv),
        env={key: value for key, value in env.items() if key not in unset},
        unset=unset,
        secrets=cluster.secrets,
        may_exit=True,
    )
    return housed(process, program, cluster.container, Needs([tokenizer.where] if tokenizer.local else []))


def _artifacts(point: str) -> str:
    return f"bench/{point}"


def _count(fixed: int | None, per_concurrency: int | None, concurrency: int | None) -> int | None:
    if fixed is not None:
        return fixed
    return per_concurrency * concurrency if per_concurrency is not None and concurrency is not None else None


def _seed(benchmark: Benchmark, point: str) -> int:
    """A seed of each point's own: with one for all, a point's prompts are those of the point before it,
    and the engines have them in their prefix caches."""
    return (benchmark.seed + zlib.crc32(point.encode())) % 2**31


def _goodput(slo: Slo) -> list[Value]:
    bounds = (
        ("time_to_first_token", None if slo.ttft_s is None else slo.ttft_s * 1000),
        ("inter_token_latency", slo.tpot_ms),
        ("request_latency", None if slo.e2e_s is None else slo.e2e_s * 1000),
    )
    text = " ".join(f"{name}:{flags.number(round(bound, 6))}" for name, bound in bounds if bound is not None)
    return ["--goodput", text] if text else []
