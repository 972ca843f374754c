"""The sizes of decode against the load of each rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.faults import Fault
from recipe_toolkit.feasibility.benchmarks import human_integer, most_in_flight
from recipe_toolkit.feasibility.lint.registry import rule
from recipe_toolkit.feasibility.serving import effective_args, where_set
from recipe_toolkit.recipe import Recipe, Role


@dataclass(frozen=True)
class _Load:
    """The most that one DP rank of a role has in flight, and at which concurrency; ``k``: its speculative tokens."""

    role: Role
    args: dict[str, Any]
    requests: int
    concurrency: int
    k: int

    @property
    def tokens(self) -> int:
        """Tokens of one decode step: each request's own and its speculative ones."""
        return self.requests * (1 + self.k)


def _loads(recipe: Recipe) -> Iterator[_Load]:
    most = [most_in_flight(item) or item.max_concurrency or 0 for item in recipe.benchmarks]
    concurrency = max(most, default=0)
    for role in recipe.roles:
        if role.name != "prefill" and concurrency:
            args = effective_args(recipe, role)
            ranks = role.instances * role.parallel.dp
            yield _Load(role, args, -(-concurrency // ranks), concurrency, speculative_tokens(args))


def speculative_tokens(args: dict[str, Any]) -> int:
    """How many tokens are guessed ahead, 0 for none."""
    config = args.get("speculative-config")
    found = config.get("num_speculative_tokens") if isinstance(config, dict) else args.get("spec-tokens")
    return found if isinstance(found, int) and not isinstance(found, bool) else 0


def _captured(args: dict[str, Any]) -> tuple[tuple[str, ...], int] | None:
    """Where the largest batch with a CUDA graph is said, below ``args``, and which it is."""
    config = args.get("compilation-config")
    config = config if isinstance(config, dict) else {}
    if args.get("enforce-eager") is True or str(config.get("cudagraph_mode", "")).upper() == "NONE":
        return None
    places: list[tuple[dict[str, Any], tuple[str, ...]]] = [(args, ()), (config, ("compilation-config",))]
    for holder, at in places:
        for name in ("max-cudagraph-capture-size", "cudagraph-capture-sizes"):
            key = name.replace("-", "_") if at else name
            value = holder.get(key)
            sizes = [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)]
            if sizes:
                return (*at, key), max(sizes)
    return None


@rule(
    "max-num-seqs-below-load",
    "warning",
    "`max-num-seqs` of decode is below the requests that a DP rank has at the highest concurrency",
    "The rest waits in vLLM's queue, so the point measures queueing and not the engine.",
    do="Concurrency 128 on `dp: 4` is `max-num-seqs: 32` or more.",
)
def max_num_seqs(recipe: Recipe) -> Iterator[Fault]:
    """Requests in flight on a rank against the rank's bound."""
    for load in _loads(recipe):
        bound = load.args.get("max-num-seqs")
        if isinstance(bound, int) and bound < load.requests:
            yield Fault(
                where_set(recipe, load.role, "max-num-seqs"),
                f"{bound} is below the {load.requests} requests that each rank of {load.role.name} has at concurrency "
                f"{load.concurrency}",
                f"max-num-seqs: {load.requests} or more",
                key=True,
            )


@rule(
    "graph-below-load",
    "warning",
    "the largest captured CUDA graph of decode is below a rank's requests x (1 + speculative tokens)",
    "Larger batches run without a whole graph, and TPOT jumps where they begin.",
    do="32 requests a rank with three speculative tokens are `max-cudagraph-capture-size: 128` or more.",
)
def graph_size(recipe: Recipe) -> Iterator[Fault]:
    """Tokens of a decode step against the largest graph."""
    for load in _loads(recipe):
        found = _captured(load.args)
        if found and found[1] < load.tokens:
            yield Fault(
                where_set(recipe, load.role, *found[0]),
                f"{found[1]} is below the {_tokens(load)} that a step of {load.role.name} has at concurrency "
                f"{load.concurrency}",
                f"{load.tokens} or more",
                key=True,
            )


def _tokens(load: _Load) -> str:
    return f"{load.requests} x {1 + load.k} tokens" if load.k else f"{load.requests} tokens"


@rule(
    "graph-not-multiple",
    "warning",
    "the largest captured CUDA graph is no multiple of 1 + speculative tokens",
    "A step has whole requests: vLLM keeps sizes that stay within it once rounded up, so its largest graph is smaller.",
    do="With three speculative tokens 128 or 132, and not 130.",
)
def graph_multiple(recipe: Recipe) -> Iterator[Fault]:
    """Whole requests in the largest graph."""
    for load in _loads(recipe):
        found = _captured(load.args)
        step = 1 + load.k
        if found and found[1] % step:
            yield Fault(
                where_set(recipe, load.role, *found[0]),
                f"{found[1]} is no multiple of {step}: each request brings its own token and {load.k} speculative ones",
                f"{-(-found[1] // step) * step}",
                key=True,
            )


@rule(
    "batched-tokens-below-load",
    "warning",
    "`max-num-batched-tokens` of decode is below a rank's requests x (1 + speculative tokens)",
    "A decode step cannot hold every request, so some wait for the next.",
    do="32 requests a rank with three speculative tokens are `max-num-batched-tokens: 128` or more.",
)
def batched_tokens(recipe: Recipe) -> Iterator[Fault]:
    """Tokens of a decode step against the scheduler's bound."""
    for load in _loads(recipe):
        bound = human_integer(load.args.get("max-num-batched-tokens"))
        if bound is not None and 0 < bound < load.tokens:
            yield Fault(
                where_set(recipe, load.role, "max-num-batched-tokens"),
                f"{bound} is below the {_tokens(load)} that a step of {load.role.name} has at concurrency "
                f"{load.concurrency}",
                f"max-num-batched-tokens: {load.tokens} or more",
                key=True,
            )
