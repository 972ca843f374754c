"""The benchmark clients: AIPerf, ``vllm bench serve``, lm-evaluation-harness, or any command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.feasibility.benchmarks import human_integer
from recipe_toolkit.feasibility.serving import effective_args
from recipe_toolkit.plan import aiperf, flags, lm_eval, vllm_bench
from recipe_toolkit.plan.container import Needs, housed
from recipe_toolkit.plan.load import Load, Tokenizer, artifacts, tokenizer
from recipe_toolkit.plan.model import Accuracy, Point, Process, Search
from recipe_toolkit.plan.search import count, most_points, repeat_id, seed
from recipe_toolkit.plan.tools import Runner, folder, runner
from recipe_toolkit.plan.values import Asked, RunPath, Value, url
from recipe_toolkit.recipe import Benchmark, Recipe
from recipe_toolkit.recipe import Search as SearchOf
from recipe_toolkit.slo import AGGREGATES

ROLE = "client"
_NODE = 0
_ARGUMENTS = {"aiperf": aiperf.arguments, "vllm-bench": vllm_bench.arguments}

# By client: the flags that the toolkit sets itself, and why. A command's are its own.
RESERVED: Mapping[str, Mapping[str, str]] = {
    "aiperf": aiperf.RESERVED,
    "vllm-bench": vllm_bench.RESERVED,
    "lm-eval": lm_eval.RESERVED,
}


def points(recipe: Recipe, cluster: Cluster, entry: Process) -> Iterator[Point]:
    """Every measurement, in the recipe's order. Raises InputError for a tokenizer or data that the profile lacks."""
    for index, benchmark in enumerate(recipe.benchmarks):
        if benchmark.client == "lm-eval":
            yield _accuracy(recipe, cluster, entry, benchmark, f"benchmarks.{index}.data")
            continue
        if benchmark.client == "command":
            yield _command(recipe, cluster, entry, benchmark)
            continue
        if benchmark.search is not None:
            yield _search(recipe, cluster, entry, benchmark, benchmark.search)
        # Round by round: what changes with time is then no difference between loads.
        for repeat in range(1, benchmark.repeats + 1):
            for concurrency in benchmark.concurrency:
                name = f"{benchmark.name}-c{concurrency}"
                yield _repeated(recipe, cluster, entry, benchmark, name, concurrency, None, repeat)
            for rate in benchmark.request_rate:
                name = f"{benchmark.name}-r{flags.number(rate)}"
                yield _repeated(recipe, cluster, entry, benchmark, name, None, rate, repeat)


def _repeated(
    recipe: Recipe,
    cluster: Cluster,
    entry: Process,
    benchmark: Benchmark,
    point: str,
    concurrency: int | None,
    rate: float | None,
    repeat: int,
) -> Point:
    """One of the measurements of a load; its id, and so its seed, is its own where there are more."""
    if benchmark.repeats == 1:
        return _loaded(recipe, cluster, entry, benchmark, point, concurrency, rate)
    one = _loaded(recipe, cluster, entry, benchmark, repeat_id(point, repeat), concurrency, rate)
    return replace(one, repeat_of=point, repeat=repeat)


def _loaded(
    recipe: Recipe,
    cluster: Cluster,
    entry: Process,
    benchmark: Benchmark,
    point: str,
    concurrency: int | None,
    rate: float | None,
) -> Point:
    requests = count(benchmark.requests, benchmark.requests_per_concurrency, concurrency)
    warmup = count(benchmark.warmup, benchmark.warmup_per_concurrency, concurrency)
    numbers = {"concurrency": concurrency, "request_rate": rate, "requests": requests, "warmup": warmup}
    made = _point(recipe, cluster, entry, benchmark, point, {**numbers, "seed": seed(benchmark.seed, point)})
    return replace(made, concurrency=concurrency, request_rate=rate, requests=requests, warmup=warmup)


def _search(recipe: Recipe, cluster: Cluster, entry: Process, benchmark: Benchmark, wanted: SearchOf) -> Point:
    """What stands for all its points: the numbers that each of them has of its own are asked for as it runs."""
    rules = {key: getattr(benchmark, key) for key in ("requests", "warmup")}
    numbers = {
        wanted.over: Asked(wanted.over),
        **{
            key: Asked(key) if getattr(benchmark, f"{key}_per_concurrency") is not None else fixed
            for key, fixed in rules.items()
        },
        "seed": Asked("seed"),
    }
    search = Search(
        over=wanted.over,
        least=wanted.least,
        most=wanted.most,
        maximize=wanted.maximize,
        bounds={key: bound for key, bound in vars(recipe.slo).items() if key in AGGREGATES and bound is not None},
        resolution=wanted.resolution,
        repeats=wanted.repeats,
        confidence=wanted.confidence,
        points=wanted.points
        or most_points(wanted.least, wanted.most, wanted.resolution, wanted.repeats, wanted.maximize),
        deadline_s=wanted.deadline_s,
        seed=benchmark.seed,
        requests_per_concurrency=benchmark.requests_per_concurrency,
        warmup_per_concurrency=benchmark.warmup_per_concurrency,
        **rules,
    )
    return replace(_point(recipe, cluster, entry, benchmark, benchmark.name, numbers), search=search)


def _point(
    recipe: Recipe,
    cluster: Cluster,
    entry: Process,
    benchmark: Benchmark,
    point: str,
    numbers: Mapping[str, Any],
) -> Point:
    """``numbers``: those of the load, which the point itself does not say yet."""
    load = Load(
        point=point,
        entry=url(entry.name, entry.node),
        model=recipe.model.served_name,
        tokenizer=tokenizer(recipe, cluster),
        endpoint=benchmark.endpoint,
        isl=benchmark.isl,
        osl=benchmark.osl,
        isl_min=benchmark.isl_min,
        osl_min=benchmark.osl_min,
        max_concurrency=benchmark.max_concurrency,
        slo=recipe.slo,
        **{"concurrency": None, "request_rate": None, **numbers},
    )
    program = _runner(recipe, cluster, benchmark.client)
    words = [program.head, *_ARGUMENTS[benchmark.client](load), *flags.render(benchmark.args)]
    return Point(
        id=point,
        client=benchmark.client,
        process=_process(cluster, benchmark, point, words, program, load.tokenizer, {}),
        artifacts=artifacts(point),
        timeout_s=benchmark.timeout_s,
        isl=load.isl,
        osl=load.osl,
        isl_min=load.isl_min,
        osl_min=load.osl_min,
        max_concurrency=load.max_concurrency,
    )


def _runner(recipe: Recipe, cluster: Cluster, client: str) -> Runner:
    if client != "vllm-bench":
        return runner(cluster, client)
    if client in cluster.tools:
        return runner(cluster, client, program="vllm")
    # The engines' own vLLM, in the same image.
    return runner(cluster, "vllm", recipe.engine.image)


def _accuracy(recipe: Recipe, cluster: Cluster, entry: Process, benchmark: Benchmark, field: str) -> Point:
    point = benchmark.name
    text = tokenizer(recipe, cluster)
    data = folder(benchmark.data, cluster, field) if benchmark.data else None
    lengths = [human_integer(effective_args(recipe, role).get("max-model-len")) for role in recipe.roles]
    known = [length for length in lengths if length is not None and length > 0]
    words = lm_eval.arguments(
        benchmark,
        url(entry.name, entry.node),
        recipe.model.served_name,
        text,
        artifacts(point),
        min(known, default=None),
        data,
    )
    program = runner(cluster, "lm-eval", program="lm_eval")
    return Point(
        id=point,
        client=benchmark.client,
        process=_process(cluster, benchmark, point, [program.head, *words], program, text, {}, data),
        artifacts=artifacts(point),
        timeout_s=benchmark.timeout_s,
        concurrency=benchmark.concurrency[0],
        accuracy=Accuracy(benchmark.tasks, benchmark.limit, benchmark.min),
    )


def _command(recipe: Recipe, cluster: Cluster, entry: Process, benchmark: Benchmark) -> Point:
    """Any program. It learns from its environment where to send requests and where to write."""
    point = benchmark.name
    name, *rest = benchmark.command
    program = runner(cluster, name) if name in cluster.tools else Runner(name)
    text = tokenizer(recipe, cluster)
    env: dict[str, Value] = {
        "RECIPE_URL": url(entry.name, entry.node),
        "RECIPE_MODEL": recipe.model.served_name,
        "RECIPE_ARTIFACTS": RunPath(artifacts(point)),
        "RECIPE_TOKENIZER": text.where,
    }
    return Point(
        id=point,
        client=benchmark.client,
        process=_process(cluster, benchmark, point, [program.head, *rest], program, text, env),
        artifacts=artifacts(point),
        timeout_s=benchmark.timeout_s,
    )


def _process(
    cluster: Cluster,
    benchmark: Benchmark,
    point: str,
    argv: Sequence[Value],
    program: Runner,
    text: Tokenizer,
    own: Mapping[str, Value],
    data: str | None = None,
) -> Process:
    unset = aiperf.OFFLINE if benchmark.client == "aiperf" and text.local else ()
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
    paths = [*([text.where] if text.local else []), *([data] if data else [])]
    return housed(process, program, cluster.container, Needs(paths, folder=RunPath(artifacts(point))))
