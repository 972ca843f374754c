"""The one schema of results: whatever the client, the same names and units.

Latencies are milliseconds, lengths are tokens, rates are per second. A figure that was not
measured is None, never 0; NaN and infinity never reach JSON.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from recipe_toolkit.results.search.model import SearchResult, search_from_json

RESULTS_SCHEMA = 1

T = TypeVar("T")


def number(value: object) -> float | None:
    """``value`` as a finite float, or None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def scrub(item: Any) -> Any:
    """Plain data without NaN and infinity (None instead); tuples become lists."""
    if isinstance(item, float):
        return item if math.isfinite(item) else None
    if isinstance(item, Mapping):
        return {str(key): scrub(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [scrub(value) for value in item]
    return item


@dataclass(frozen=True)
class Stat:
    """A distribution in four numbers. Percentiles are linearly interpolated, as the clients do."""

    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True)
class Client:
    """Who measured. ``version``: what it said of itself, None if it did not."""

    name: str
    version: str | None = None


@dataclass(frozen=True)
class Length:
    """Tokens a request, wanted and seen (mean). ``counted_by``: ``server`` (its ``usage``) or ``client``."""

    wanted_tokens: int | None = None
    seen_mean_tokens: float | None = None
    counted_by: str | None = None


@dataclass(frozen=True)
class Requests:
    """Numbers of requests. ``failed`` counts errors; ``wanted`` is None where the plan does not say."""

    wanted: int | None = None
    ok: int | None = None
    failed: int | None = None


@dataclass(frozen=True)
class PerGpu:
    """A rate over three denominators.

    ``allocated``: GPUs of all nodes of the job; ``working``: GPUs that an engine uses; ``by_role``:
    GPUs of one pool alone. Published figures differ in which one they mean.
    """

    allocated: float | None = None
    working: float | None = None
    by_role: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class PerUser:
    """Output tokens/s that one user sees, two ways that are not comparable.

    ``from_median_tpot``: 1000 / median TPOT in ms. ``mean_of_inverse_tpot``: mean over requests of
    1 / TPOT in s, which is at least 1 / mean TPOT (Jensen). Neither holds the wait for the first token.
    """

    from_median_tpot: float | None = None
    mean_of_inverse_tpot: float | None = None


@dataclass(frozen=True)
class Bound:
    """A bound of the recipe's ``slo`` on an aggregate. ``met`` is None if nothing was measured."""

    bound: float
    seen: float | None
    met: bool | None


@dataclass(frozen=True)
class Score:
    """A task's score by one metric and filter, as lm-evaluation-harness calls them.

    ``unit``: ``%``, or empty for a metric that is no share (perplexity). ``stderr``: standard error, in the same
    unit. ``samples``: documents. ``main``: the one that a task's name alone means. ``min``: the recipe's threshold in
    percent; ``met``: whether it is reached, None if there is none or the engine is simulated.
    """

    task: str
    metric: str
    filter: str
    score: float
    unit: str = "%"
    stderr: float | None = None
    samples: int | None = None
    higher_is_better: bool = True
    task_version: str | None = None
    num_fewshot: int | None = None
    main: bool = False
    min: float | None = None
    met: bool | None = None


@dataclass(frozen=True)
class Window:
    """A point without its beginning and its end, as the requests' own records say (``results/steady.py``).

    ``from_s``, ``to_s``: since the first request was sent. ``requests``: sent in it and answered; the latencies are
    theirs. Rates are of the tokens that came within it, whoever asked for them.
    """

    from_s: float
    to_s: float
    requests: int
    ttft_ms: Stat | None = None
    tpot_ms: Stat | None = None
    e2e_ms: Stat | None = None
    output_tps: float | None = None
    total_tps: float | None = None
    output_tps_per_user: PerUser = PerUser()


@dataclass(frozen=True)
class ClientLoad:
    """What the client's processes that send requests took of their node meanwhile, sampled from /proc.

    ``busiest_thread_ratio``: mean share of a core of its busiest thread; ``waiting_ratio``: of that thread's time, the
    share in which it could have run and got no core (both make its event loop late). ``cores``: mean of all threads.
    """

    samples: int
    cores: float | None = None
    busiest_thread_ratio: float | None = None
    waiting_ratio: float | None = None


@dataclass(frozen=True)
class Spread:
    """Repeats of one point. ``repeat_of``: the id that they share; ``points``: theirs, in order; ``valid``: how many.

    ``metrics``: by the metric's path (``ttft_ms.mean``) its ``mean``, ``stdev`` (of a sample: n - 1), ``min`` and
    ``max`` over the valid ones.
    """

    repeat_of: str
    points: tuple[str, ...]
    valid: int
    metrics: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class PointResult:
    """One measurement.

    ``duration_s``: first request sent to last answer, by the client. ``client_s``: life of the
    client's process. TPOT is (E2E - TTFT) / (output tokens - 1) of each request; ITL are the gaps
    between streamed chunks, which hold several tokens where the server says so. ``pools``: role to
    what its engines' own counters said. ``reasons``: why the point is invalid; ``rules``: the name of the gate's rule
    behind each; ``notes``: what a reader should know and is no reason. ``few_for``: percentiles that so few requests
    do not support. ``whole_answers``: how many came in one piece, so that their TPOT is none. ``repeat_of``,
    ``repeat``: of measurements of one point, the id that they share, and which this is.
    """

    id: str
    client: Client
    artifacts: str
    exit_code: int
    endpoint: str | None = None
    isl: Length = Length()
    osl: Length = Length()
    concurrency: int | None = None
    request_rate_rps: float | None = None
    requests: Requests = Requests()
    duration_s: float | None = None
    client_s: float | None = None
    ttft_ms: Stat | None = None
    tpot_ms: Stat | None = None
    itl_ms: Stat | None = None
    e2e_ms: Stat | None = None
    requests_per_s: float | None = None
    input_tps: float | None = None
    output_tps: float | None = None
    total_tps: float | None = None
    input_tps_per_gpu: PerGpu = PerGpu()
    output_tps_per_gpu: PerGpu = PerGpu()
    total_tps_per_gpu: PerGpu = PerGpu()
    output_tps_per_user: PerUser = PerUser()
    goodput_rps: float | None = None
    good_request_ratio: float | None = None
    slo: Mapping[str, Bound] = field(default_factory=dict)
    pools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    valid: bool = False
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    accuracy: tuple[Score, ...] = ()
    rules: tuple[str, ...] = ()
    few_for: tuple[str, ...] = ()
    repeat_of: str | None = None
    repeat: int | None = None
    window: Window | None = None
    client_load: ClientLoad | None = None
    whole_answers: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data, every figure named with its unit; what few points have (``SPARSE``) where there is any."""
        return _sparse(scrub(dataclasses.asdict(self)))


SPARSE = ("accuracy", "rules", "few_for", "repeat_of", "repeat", "window", "client_load", "whole_answers")


def _sparse(point: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in point.items() if key not in SPARSE or value}


@dataclass(frozen=True)
class Gpus:
    """GPUs (CPU worker slots where ``device`` is ``cpu``): the denominators of the per-GPU rates."""

    name: str
    device: str
    allocated: int
    working: int
    by_role: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """The instances of one role: how many, and the parallel sizes of each."""

    instances: int
    tp: int
    pp: int
    dp: int
    dcp: int = 1
    ep: bool = False


@dataclass(frozen=True)
class Host:
    """A node of the run; ``name`` and ``address`` are None until it has joined."""

    index: int
    name: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class Step:
    """A setup step that ran in every engine's container. ``sha256``: of its script."""

    name: str
    sha256: str


@dataclass(frozen=True)
class Results:
    """All points of a run.

    ``simulated``: the engine was the simulated one, so no figure is a measurement of a model.
    ``rehearsal``: it stood in for the recipe's own engine; ``gpus`` are those planned, none was used.
    ``images``: container image to what identifies it, such as its digest (None: not known).
    ``valid``: True or False once it is known, None before. ``points_wanted``: points of the plan.
    ``published``: what others have reported, as the recipe says it. ``search``: of each benchmark that searches.
    ``spread``: of points that were repeated.
    """

    run: str
    recipe: str
    model: str
    engine: str
    engine_version: str
    simulated: bool
    rehearsal: bool
    gpus: Gpus
    state: str
    points_wanted: int
    points: tuple[PointResult, ...] = ()
    layout: Mapping[str, Layout] = field(default_factory=dict)
    nodes: tuple[Host, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, str | None] = field(default_factory=dict)
    setup: tuple[Step, ...] = ()
    slo: Mapping[str, float] = field(default_factory=dict)
    published: tuple[Mapping[str, Any], ...] = ()
    message: str | None = None
    valid: bool | None = None
    reasons: tuple[str, ...] = ()
    search: tuple[SearchResult, ...] = ()
    spread: tuple[Spread, ...] = ()
    schema: int = RESULTS_SCHEMA

    def to_json(self) -> dict[str, Any]:
        """Plain data for results.json; ``schema`` first, ``search`` and ``spread`` where there are any."""
        data: dict[str, Any] = scrub(dataclasses.asdict(self))
        data["points"] = [_sparse(point) for point in data["points"]]
        data = {key: value for key, value in data.items() if key not in ("search", "spread") or value}
        return {"schema": data.pop("schema"), **data}


def point_from_json(data: Mapping[str, Any]) -> PointResult:
    """The point of :meth:`PointResult.to_json`'s data. Raises KeyError or TypeError if it is none."""
    stats = {key: _optional(Stat, data.get(key)) for key in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")}
    rates = {key: PerGpu(**data[key]) for key in ("input_tps_per_gpu", "output_tps_per_gpu", "total_tps_per_gpu")}
    return PointResult(
        **{
            **data,
            **stats,
            **rates,
            "client": Client(**data["client"]),
            "isl": Length(**data["isl"]),
            "osl": Length(**data["osl"]),
            "requests": Requests(**data["requests"]),
            "output_tps_per_user": PerUser(**data["output_tps_per_user"]),
            "slo": {key: Bound(**bound) for key, bound in data["slo"].items()},
            "reasons": tuple(data["reasons"]),
            "notes": tuple(data["notes"]),
            "accuracy": tuple(Score(**score) for score in data.get("accuracy", ())),
            "rules": tuple(data.get("rules", ())),
            "few_for": tuple(data.get("few_for", ())),
            "window": _window(data.get("window")),
            "client_load": _optional(ClientLoad, data.get("client_load")),
            "whole_answers": data.get("whole_answers"),
        }
    )


def _window(data: Mapping[str, Any] | None) -> Window | None:
    if data is None:
        return None
    stats = {key: _optional(Stat, data.get(key)) for key in ("ttft_ms", "tpot_ms", "e2e_ms")}
    return Window(**{**data, **stats, "output_tps_per_user": PerUser(**data["output_tps_per_user"])})


def results_from_json(data: Mapping[str, Any]) -> Results:
    """The results of :meth:`Results.to_json`'s data.

    Raises ValueError if they were written for another schema; KeyError or TypeError if they are none.
    """
    if data.get("schema") != RESULTS_SCHEMA:
        raise ValueError(f"results schema {data.get('schema')!r}, but this version reads {RESULTS_SCHEMA}")
    return Results(
        **{
            **data,
            "gpus": Gpus(**data["gpus"]),
            "points": tuple(point_from_json(point) for point in data["points"]),
            "layout": {role: Layout(**layout) for role, layout in data["layout"].items()},
            "nodes": tuple(Host(**node) for node in data["nodes"]),
            "setup": tuple(Step(**step) for step in data["setup"]),
            "published": tuple(data["published"]),
            "reasons": tuple(data["reasons"]),
            "search": tuple(search_from_json(item) for item in data.get("search", ())),
            "spread": tuple(Spread(**{**item, "points": tuple(item["points"])}) for item in data.get("spread", ())),
        }
    )


def _optional(kind: type[T], data: Mapping[str, Any] | None) -> T | None:
    return None if data is None else kind(**data)
