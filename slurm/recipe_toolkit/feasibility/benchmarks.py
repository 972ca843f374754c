"""The loads of a benchmark, its lengths and its name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipe_toolkit.faults import Fault, FieldPath, did_you_mean
from recipe_toolkit.feasibility.serving import effective_args
from recipe_toolkit.recipe import Benchmark, Recipe

_HUMAN = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)([kKmMgGtT]?)")
_LEFTOVER = re.compile(r"(?<![%{])\{[A-Za-z_][\w.-]*\}(?!\})|\$\{?[A-Za-z_]\w*\}?")
_SEARCHED = re.compile(r"(.+)-[cr][0-9.]+-rep[0-9]+")
MOST_POINTS = 10_000
MOST_REQUESTS = 10_000_000  # of a point: the clients hold every prompt in memory
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh"})


def check_benchmark(benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """Whether the fields of one benchmark make a load."""
    if benchmark.client == "command":
        yield from _check_command(benchmark, at)
        return
    if benchmark.client == "lm-eval":
        yield from _check_accuracy(benchmark, at)
        return
    yield from _one_of(benchmark, at, "concurrency", "request_rate", required=benchmark.search is None)
    yield from _one_of(benchmark, at, "requests", "requests_per_concurrency", required=True)
    yield from _one_of(benchmark, at, "warmup", "warmup_per_concurrency", required=False)
    yield from _check_ranges(benchmark, at)
    if benchmark.max_concurrency is not None and benchmark.concurrency:
        yield Fault((*at, "max_concurrency"), "each number of concurrency is a limit already", "leave it out", key=True)
    if not benchmark.concurrency and benchmark.search is None:
        for name in ("requests_per_concurrency", "warmup_per_concurrency"):
            if getattr(benchmark, name) is not None and benchmark.request_rate:
                plain = name.removesuffix("_per_concurrency")
                yield Fault((*at, name), "there is no concurrency to multiply", f"{plain}: NUMBER", key=True)
    elif benchmark.concurrency and benchmark.requests is not None and benchmark.requests < max(benchmark.concurrency):
        yield Fault(
            (*at, "requests"),
            f"{benchmark.requests} requests never reach concurrency {max(benchmark.concurrency)}",
            "requests_per_concurrency: 10 keeps all points alike",
            severity="warning",
        )
    yield from _check_amount(benchmark, at)
    if benchmark.client == "aiperf" and "HF_HUB_OFFLINE" in benchmark.env:
        yield Fault(
            (*at, "env", "HF_HUB_OFFLINE"),
            "with it AIPerf looks for a tokenizer that is a folder in the hub's cache, and stops",
            "leave it out: clients run without it",
        )


def _check_accuracy(benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """Whether each threshold is one of a task that runs, and the data a folder that can be named."""
    for key in benchmark.min:
        task = key.partition("/")[0]
        # A group's or a tag's tasks begin with its name.
        if not any(task.startswith(item) for item in benchmark.tasks):
            hint = did_you_mean(task, benchmark.tasks) or "add it to tasks"
            yield Fault((*at, "min", key), f"{task} is none of the tasks {', '.join(benchmark.tasks)}", hint, key=True)
    for index, task in enumerate(benchmark.tasks):
        if task.startswith("-"):
            yield Fault((*at, "tasks", index), f"{task} begins with -, as a flag does")
    bad = next((sign for sign in benchmark.data or "" if not sign.isprintable()), None)
    if bad is not None or (benchmark.data or "").startswith("-"):
        yield Fault((*at, "data"), f"{benchmark.data!r} names no folder", "an absolute path, or an alias of `data`")


def _check_ranges(benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    for name in ("isl", "osl"):
        shortest, longest = getattr(benchmark, f"{name}_min"), getattr(benchmark, name)
        if shortest is None:
            continue
        if benchmark.client != "vllm-bench":
            hint = "client: vllm-bench, or leave it out: all are then as long"
            yield Fault((*at, f"{name}_min"), "AIPerf draws no uniform lengths", hint, key=True)
        elif longest is not None and shortest > longest:
            yield Fault((*at, f"{name}_min"), f"{shortest} is more than {name} {longest}, the longest")


def _check_amount(benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """Whether a point's requests can be made, and sent within its time."""
    name = "requests" if benchmark.requests is not None else "requests_per_concurrency"
    most = most_in_flight(benchmark)
    count = benchmark.requests or (benchmark.requests_per_concurrency or 0) * most
    warmup = benchmark.warmup or (benchmark.warmup_per_concurrency or 0) * most
    before = "warmup" if benchmark.warmup is not None else "warmup_per_concurrency"
    for field, number in ((name, count), (before, warmup)):
        if number > MOST_REQUESTS:
            message = f"{number} requests are more than the {MOST_REQUESTS} of a point"
            yield Fault((*at, field), message, "its figures are steady with a few hundred, or ten for each in flight")
    if benchmark.request_rate and count / min(benchmark.request_rate) > benchmark.timeout_s:
        slowest = min(benchmark.request_rate)
        yield Fault(
            (*at, "request_rate", benchmark.request_rate.index(slowest)),
            f"{count} requests at {slowest:g} a second take {count / slowest:g} s, and the point may take "
            f"{benchmark.timeout_s:g} s",
            "fewer requests, a higher rate, or a longer timeout",
        )


def most_in_flight(benchmark: Benchmark) -> int:
    """The highest concurrency that is listed or searched; 0 at a rate."""
    searched = benchmark.search.most if benchmark.search and benchmark.search.over == "concurrency" else 0
    return max([*benchmark.concurrency, round(searched)])


def check_points(benchmarks: Sequence[Benchmark]) -> Iterator[Fault]:
    """Whether one run can hold the points of all benchmarks."""
    count = sum((len(item.concurrency) + len(item.request_rate) or 1) * item.repeats for item in benchmarks)
    # A search says itself how many it may take.
    count += sum(item.search.points or 1 for item in benchmarks if item.search is not None)
    if count > MOST_POINTS:
        yield Fault(("benchmarks",), f"{count} points are more than the {MOST_POINTS} of a run", key=True)


def _one_of(benchmark: Benchmark, at: FieldPath, one: str, other: str, *, required: bool) -> Iterator[Fault]:
    given = [name for name in (one, other) if getattr(benchmark, name) not in (None, ())]
    if len(given) == 2:
        yield Fault((*at, other), f"either {one} or {other}, not both", key=True)
    elif not given and required:
        hint = "or search, for the load that slo allows" if one == "concurrency" else None
        yield Fault((*at, one), f"missing: {one} or {other}", hint, absent=True)


def _check_command(benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    program = benchmark.command[0]
    if not program:
        yield Fault((*at, "command", 0), "is empty: the first item is the program")
    shell = program.rsplit("/", 1)[-1] in _SHELLS
    for index, word in enumerate(benchmark.command):
        left = None if shell else _LEFTOVER.search(word)
        if left:
            hint = "no shell reads the command; RECIPE_URL, RECIPE_MODEL and RECIPE_ARTIFACTS are in its environment"
            yield Fault((*at, "command", index), f"{left.group()} is passed on as it stands", hint, severity="warning")


def check_lengths(recipe: Recipe, benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """Whether the lengths fit into ``max-model-len``, where a role's flags set it."""
    if benchmark.isl is None or benchmark.osl is None:
        return
    for role in recipe.roles:
        limit = human_integer(effective_args(recipe, role).get("max-model-len"))
        # A prefill instance generates one token of each request.
        osl = 1 if role.name == "prefill" else benchmark.osl
        if limit is not None and limit > 0 and benchmark.isl + osl > limit:
            yield Fault(
                (*at, "isl"),
                f"isl {benchmark.isl} + {osl} tokens of output do not fit into max-model-len {limit} of {role.name}",
                f"max-model-len: {benchmark.isl + osl} or more, or shorter prompts",
            )


def check_tokenizer(recipe: Recipe, benchmark: Benchmark, at: FieldPath) -> Iterator[Fault]:
    """Whether the client can be told which tokenizer is meant."""
    model = recipe.model
    path = model.tokenizer or ("" if recipe.engine.kind == "sim" else model.path)
    if benchmark.client == "vllm-bench" and path.startswith("hf:") and "@" in path:
        yield Fault(
            (*at, "client"),
            "vllm bench serve knows no revision: it makes its prompts with the tokenizer of the hub's main branch",
            "tokens are counted by the server all the same; model.tokenizer may name a folder",
            severity="warning",
        )


def human_integer(value: Any) -> int | None:
    """A length as vLLM reads it (``8192``, ``8k`` = 8000, ``8K`` = 8192), or None where it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if not isinstance(value, str):
        return int(value)
    match = _HUMAN.fullmatch(value.strip())
    if match is None:
        return None
    power = "kmgt".find(match[2].lower()) + 1 if match[2] else 0
    return int(float(match[1]) * (1000 if match[2].islower() else 1024) ** power)


def check_names(benchmarks: Sequence[Benchmark]) -> Iterator[Fault]:
    """Whether each benchmark and each of its points has a name of its own: results are filed under it."""
    first: dict[str, int] = {}
    points: dict[str, int] = {}
    searches = {item.name: index for index, item in enumerate(benchmarks) if item.search is not None}
    for index, benchmark in enumerate(benchmarks):
        other = first.setdefault(benchmark.name, index)
        clash = next((name for name in _points(benchmark) if points.setdefault(name, index) != index), None)
        hint = "give each a name of its own"
        if other != index:
            message = f"{benchmark.name} is also the name of benchmarks.{other}"
            yield Fault(("benchmarks", index, "name"), message, hint)
        elif clash is None and (taken := _of_a_search(benchmark, searches)) is not None:
            message = f"{taken} may also be a point of the search benchmarks.{searches[taken.rsplit('-', 2)[0]]}"
            yield Fault(("benchmarks", index, "name"), message, hint)
        elif clash is not None:
            message = f"{clash} is also the name of a point of benchmarks.{points[clash]}"
            yield Fault(("benchmarks", index, "name"), message, hint)


def _points(benchmark: Benchmark) -> Iterator[str]:
    if benchmark.client in ("command", "lm-eval") or benchmark.search is not None:
        yield benchmark.name
        return
    yield from (f"{benchmark.name}-c{concurrency}" for concurrency in benchmark.concurrency)
    yield from (f"{benchmark.name}-r{rate:g}" for rate in benchmark.request_rate)


def _of_a_search(benchmark: Benchmark, searches: Mapping[str, int]) -> str | None:
    """A point of the benchmark that has the form of a search's, NAME-cLOAD-repN."""
    for name in _points(benchmark):
        found = _SEARCHED.fullmatch(name)
        if found and found[1] in searches:
            return name
    return None
