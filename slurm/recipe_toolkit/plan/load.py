"""One load on the engines, whatever the client that makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from recipe_toolkit.cluster import Cluster
from recipe_toolkit.plan import flags
from recipe_toolkit.plan.sim import TOKENIZER
from recipe_toolkit.plan.tools import source
from recipe_toolkit.plan.values import Asked, RunPath, Value
from recipe_toolkit.recipe import Recipe, Slo

# Of a search it is known only when a point is asked for.
Number = Union[int, float, Asked]


def word(value: Number | None) -> Value:
    """A number as a client takes it."""
    return value if isinstance(value, Asked) else flags.number(value) if value is not None else "None"


@dataclass(frozen=True)
class Tokenizer:
    """Where it is. ``revision``: of a repository of the hub. ``local``: a folder that the nodes have."""

    where: Value
    revision: str | None = None
    local: bool = True


def tokenizer(recipe: Recipe, cluster: Cluster) -> Tokenizer:
    """The tokenizer of the recipe's model. Raises InputError for an alias that the profile lacks."""
    if recipe.model.tokenizer is not None:
        found = source(recipe.model.tokenizer, cluster, "model.tokenizer")
    elif recipe.engine.kind == "sim":
        return Tokenizer(TOKENIZER)
    else:
        found = source(recipe.model.path, cluster, "model.path")
    return Tokenizer(found.name, found.revision, found.is_path)


def artifacts(point: str) -> str:
    """A point's folder for its client's files, in the run folder."""
    return f"bench/{point}"


@dataclass(frozen=True)
class Load:
    """What a point asks of its client. Lengths are tokens, ``request_rate`` is requests/s.

    ``max_concurrency``: how many may be in flight at a rate.
    """

    point: str
    entry: Value
    model: str
    tokenizer: Tokenizer
    endpoint: str
    isl: int | None
    osl: int | None
    isl_min: int | None
    osl_min: int | None
    concurrency: Number | None
    request_rate: Number | None
    max_concurrency: int | None
    requests: Number | None
    warmup: Number | None
    seed: Number
    slo: Slo

    @property
    def folder(self) -> RunPath:
        """The client's folder in the run folder."""
        return RunPath(artifacts(self.point))

    @property
    def prompts(self) -> Number:
        """Prompts that differ: one for each request, its warm-up included."""
        if isinstance(self.requests, Asked) or isinstance(self.warmup, Asked):
            return Asked("prompts")
        return (self.requests or 0) + (self.warmup or 0)

    def goodput(self, ttft: str, tpot: str, e2e: str) -> list[str]:
        """The bounds on each request, in ms, as NAME:MS in the client's names."""
        bounds = (
            (ttft, None if self.slo.ttft_s is None else self.slo.ttft_s * 1000),
            (tpot, self.slo.tpot_ms),
            (e2e, None if self.slo.e2e_s is None else self.slo.e2e_s * 1000),
        )
        return [f"{name}:{flags.number(round(bound, 6))}" for name, bound in bounds if bound is not None]
