"""The tables of the page: points, invalid points, distributions, pools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from recipe_toolkit.report import text
from recipe_toolkit.report.html import Markup, el, escape, join

_STATS = (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT"), ("itl_ms", "ITL"), ("e2e_ms", "E2E"))
_KEYS = ("mean", "p50", "p90", "p99")


def table(caption: str, head: Sequence[Markup], rows: Sequence[Markup], class_: str | None = None) -> Markup:
    """A table in a box that scrolls sideways by keyboard too. ``sortable`` and ``filtered`` mean it to page.js."""
    body = el("table", el("caption", caption), el("thead", *head), el("tbody", *rows), class_=class_)
    return el("div", body, class_="scroll", tabindex=0, role="region", aria_label=caption)


@dataclass(frozen=True)
class Line:
    """A point for a table. ``base``: where its run's folder is, or None; ``lead``: cells before its figures."""

    point: Mapping[str, Any]
    base: str | None = None
    lead: tuple[str, ...] = ()


def points_table(results: Mapping[str, Any], base: str | None) -> Markup:
    """The valid points: load, TTFT beside the user's speed, then rates and the denominators."""
    points = [point for point in results["points"] if point["valid"] and not text.of_accuracy(point)]
    return lines_table(results, [Line(point, base) for point in points])


def lines_table(results: Mapping[str, Any], lines: Sequence[Line], lead: Sequence[str] = ()) -> Markup:
    """The same of points of several runs, which ``results`` speak for; ``lead``: the heads of their own cells."""
    groups = [group for group in _groups(results) if any(_filled(group, line.point) for line in lines)]
    head = [
        el("tr", el("td", colspan=1 + len(lead)), *(_group_head(group) for group in groups), class_="groups"),
        el(
            "tr",
            el("th", "point", scope="col", class_="text"),
            *(el("th", name, scope="col", class_="text") for name in lead),
            *(
                el("th", head, scope="col", class_=_edge(group, index))
                for group in groups
                for index, (head, _) in enumerate(group.columns)
            ),
        ),
    ]
    rows = [
        el(
            "tr",
            el("th", _link(line.point, line.base), scope="row"),
            *(el("td", cell, class_="word") for cell in line.lead),
            *(
                el("td", cell(line.point), class_=_edge(group, index))
                for group in groups
                for index, (_, cell) in enumerate(group.columns)
            ),
        )
        for line in lines
    ]
    return table(marked("Valid points", results), head, rows, class_="sortable filtered")


@dataclass(frozen=True)
class _Group:
    """Columns under one heading, which may be empty."""

    title: str
    columns: tuple[tuple[str, Callable[[Mapping[str, Any]], str]], ...]


def _groups(results: Mapping[str, Any]) -> list[_Group]:
    unit = text.unit_of_work(results)

    def stat(name: str, key: str) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.statistic(point, name, key)

    def field(name: str, key: str | None = None) -> Callable[[Mapping[str, Any]], str]:
        return lambda point: text.number(point[name] if key is None else point[name][key])

    lengths = () if text.same_length(results["points"]) else (("ISL / OSL", _lengths),)
    per_gpu = [("working", field("total_tps_per_gpu", "working"))]
    if results["gpus"]["working"] != results["gpus"]["allocated"]:
        per_gpu.append(("allocated", field("total_tps_per_gpu", "allocated")))
    return [
        _Group("", (("load", text.load), ("answered", text.answered), *lengths)),
        # Beside each other, always: a user's speed says nothing of the wait for the first token.
        _Group("TTFT, ms", (("mean", stat("ttft_ms", "mean")), ("p99", stat("ttft_ms", "p99")))),
        _Group(
            "tokens/s per user",
            (
                ("1000 / median TPOT", field("output_tps_per_user", "from_median_tpot")),
                ("mean of 1 / TPOT", field("output_tps_per_user", "mean_of_inverse_tpot")),
            ),
        ),
        _Group("TPOT, ms", (("mean", stat("tpot_ms", "mean")), ("p99", stat("tpot_ms", "p99")))),
        _Group("E2E, ms", (("mean", stat("e2e_ms", "mean")),)),
        _Group(
            "tokens/s",
            (("input", field("input_tps")), ("output", field("output_tps")), ("total", field("total_tps"))),
        ),
        _Group(f"total tokens/s per {unit}", tuple(per_gpu)),
        _Group("good", (("req/s", field("goodput_rps")),)),
        _Group("SLO", (("means", text.slo),)),
    ]


def _lengths(point: Mapping[str, Any]) -> str:
    return f"{text.count(point['isl']['wanted_tokens'])} / {text.count(point['osl']['wanted_tokens'])}"


def _filled(group: _Group, point: Mapping[str, Any]) -> bool:
    return any(cell(point) != text.MISSING for _, cell in group.columns)


def _edge(group: _Group, index: int) -> str | None:
    return "first" if group.title and index == 0 else None


def _group_head(group: _Group) -> Markup:
    if not group.title:
        return el("td", colspan=len(group.columns))
    return el("th", group.title, colspan=len(group.columns), scope="colgroup", class_="first")


def accuracy_table(results: Mapping[str, Any], points: Sequence[Mapping[str, Any]], base: str | None) -> Markup:
    """The scores of the accuracy points, a row each."""
    names = ("task", "metric", "filter", "score", "documents", "shots", "version", "asked", "")
    heads = [el("th", name, scope="col", class_="text" if name in names[:3] else None) for name in names]
    rows = [
        el(
            "tr",
            el("th", _link(point, base), scope="row"),
            *(el("td", score[key], class_="text") for key in ("task", "metric", "filter")),
            el("td", text.score(score)),
            el("td", text.count(score["samples"])),
            el("td", text.count(score["num_fewshot"])),
            el("td", score["task_version"] or text.MISSING),
            el("td", text.threshold(score)),
            el("td", text.reached(score)),
        )
        for point in points
        for score in point["accuracy"]
    ]
    caption = marked("Scores, each with its standard error", results)
    return table(caption, [el("tr", el("th", "point", scope="col", class_="text"), *heads)], rows)


def invalid_table(lines: Sequence[Line], lead: Sequence[str] = ()) -> Markup:
    """Points that may not be compared, with why; no rates, so that none is taken for one."""
    heads = ("point", *lead, "load", "answered", "exit code", "why")
    head = el(
        "tr",
        *(el("th", name, scope="col", class_="text" if name in ("point", *lead, "why") else None) for name in heads),
    )
    rows = [
        el(
            "tr",
            el("th", _link(line.point, line.base), scope="row"),
            *(el("td", cell, class_="word") for cell in line.lead),
            el("td", text.load(line.point)),
            el("td", text.answered(line.point)),
            el("td", str(line.point["exit_code"])),
            el("td", join([el("div", reason) for reason in line.point["reasons"]]), class_="text"),
        )
        for line in lines
    ]
    return table("Invalid points. Their figures are in results.json and are not shown here.", [head], rows)


def marked(caption: str, results: Mapping[str, Any]) -> str:
    """A caption that says what the figures under it are, where they are no measurements."""
    mark = text.mark(results)
    return f"{caption} ({mark})." if mark is not None else f"{caption}."


def distributions_table(results: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Markup:
    """TTFT, TPOT, ITL and E2E of the valid points: mean and percentiles."""
    head = [
        el(
            "tr",
            el("td"),
            *(el("th", f"{name}, ms", colspan=len(_KEYS), scope="colgroup", class_="first") for _, name in _STATS),
            class_="groups",
        ),
        el(
            "tr",
            el("th", "point", scope="col", class_="text"),
            *(el("th", key, scope="col", class_=_first(key)) for _ in _STATS for key in _KEYS),
        ),
    ]
    rows = [
        el(
            "tr",
            el("th", point["id"], scope="row"),
            *(
                el("td", text.number((point[name] or {}).get(key)), class_=_first(key))
                for name, _ in _STATS
                for key in _KEYS
            ),
        )
        for point in points
    ]
    return table(
        f"{marked('Latencies', results)} TPOT is (E2E − TTFT) / (output tokens − 1) of each request; ITL are the gaps "
        "between streamed chunks, which may hold several tokens.",
        head,
        rows,
        class_="sortable",
    )


def pools_table(results: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> Markup | None:
    """What the engines' own counters say, a row a point and pool; None if there are none."""
    heads = ["pool", "requests", "queue, ms", "TTFT, ms", "TPOT, ms", "KV mean", "KV max", "preempted", "prefix hits"]
    moved = any(
        (pool.get("kv_transfer") or {}).get("transfers") for point in points for pool in point["pools"].values()
    )
    drafts = any(pool.get("spec_decode") for point in points for pool in point["pools"].values())
    heads += ["KV pulled", "a request", "pull, ms", "by", "failed", "computed itself"] * moved + [
        "accepted a draft"
    ] * drafts
    rows = []
    for point in points:
        for role, pool in point["pools"].items():
            cells = [el("td", cell) for cell in _pool_cells(role, pool, moved, drafts)]
            rows.append(el("tr", el("th", point["id"], scope="row"), *cells))
    if not rows:
        return None
    head = el("tr", el("th", "point", scope="col", class_="text"), *(el("th", name, scope="col") for name in heads))
    caption = marked("The engines' own counters during each point, warm-up included, summed over a pool", results)
    return table(caption, [head], rows, class_="sortable")


def _pool_cells(role: str, pool: Mapping[str, Any], moved: bool, drafts: bool) -> list[str]:
    cells = [role, text.count(pool.get("requests"))]
    cells += [text.number(pool.get(f"server_{name}_mean_ms")) for name in ("queue", "ttft")]
    # A prefill engine answers one token, which has no time per further token.
    cells.append(text.number(pool.get("server_tpot_mean_ms") or None))
    cells += [text.percent(pool.get("kv_usage_mean_ratio")), text.percent(pool.get("kv_usage_max_ratio"))]
    cells += [text.count(pool.get("preemptions")), text.percent(pool.get("prefix_cache_hit_ratio"))]
    if moved:
        # Both sides have the counters, and the side that pulls counts.
        transfer = (pool.get("kv_transfer") or {}) if role != "prefill" else {}
        sources = (pool.get("prompt_tokens_by_source") or {}) if role != "prefill" else {}
        total = sum(value for value in sources.values() if value is not None)
        local = sources.get("local_compute")
        cells += [
            text.size(transfer.get("bytes_total")),
            text.size(transfer.get("bytes_mean")),
            text.number(transfer.get("time_mean_ms")),
            ", ".join(way.partition(" into ")[0] for way in transfer.get("transports", ())) or text.MISSING,
            text.count(transfer.get("failed_transfers")),
            text.percent(local / total) if total and local is not None else text.MISSING,
        ]
    if drafts:
        cells.append(text.number((pool.get("spec_decode") or {}).get("mean_acceptance_length_tokens")))
    return cells


def processes_table(plan: Mapping[str, Any]) -> Markup:
    """Which process runs where."""
    heads = ("process", "role", "node", "slots", "DP ranks", "starts after")
    head = el(
        "tr",
        *(
            el("th", name, scope="col", class_="text" if name in ("process", "role", "starts after") else None)
            for name in heads
        ),
    )
    rows = [
        el(
            "tr",
            el("th", process["name"], scope="row"),
            el("td", process["role"], class_="text"),
            el("td", str(process["node"])),
            el("td", _numbers(process["gpus"])),
            el("td", _numbers(process["dp_ranks"])),
            el("td", ", ".join(process["after"]) or text.MISSING, class_="text"),
        )
        for process in plan["processes"]
    ]
    return table("Processes of the plan.", [head], rows)


def memory_table(rows: Sequence[tuple[str, str, str, str]]) -> Markup | None:
    """What is predicted of a rank's memory beside what its engine logged; None where nothing is known."""
    if not rows:
        return None
    heads = ("role", "of a rank", "predicted", "logged")
    head = el("tr", *(el("th", name, scope="col", class_="text" if at < 2 else None) for at, name in enumerate(heads)))
    body = [
        el("tr", el("th", role, scope="row"), el("td", what, class_="text"), el("td", predicted), el("td", logged))
        for role, what, predicted, logged in rows
    ]
    caption = "Predicted from the model's configuration, and as the engines logged it; of several ranks the fullest."
    return table(caption, [head], body)


def nodes_table(facts: Sequence[tuple[str, Mapping[str, Any]]], base: str | None) -> Markup:
    """What each node said of itself. ``facts``: (path in the run folder, facts.json)."""
    heads = ("node", "address", "GPUs", "driver", "CPUs", "memory", "RDMA", "kernel", "Python")
    rows = []
    for path, fact in facts:
        name = str(fact.get("host") or path)
        cells = [
            str(fact.get("address") or text.MISSING),
            _counted(fact.get("gpus"), "name"),
            str(fact.get("driver") or text.MISSING),
            text.count(fact.get("cpus_allowed")),
            text.size(fact.get("memory_bytes")),
            _counted(fact.get("rdma"), "rate"),
            f"{fact.get('kernel') or text.MISSING} {fact.get('machine') or ''}".strip(),
            str(fact.get("python_version") or text.MISSING),
        ]
        title = el("a", name, href=href(base, path)) if base is not None else escape(name)
        rows.append(el("tr", el("th", title, scope="row"), *(el("td", cell, class_="word") for cell in cells)))
    head = el("tr", *(el("th", name, scope="col", class_="text") for name in heads))
    return table("What the nodes said of themselves.", [head], rows, class_="sortable")


def _counted(items: Any, key: str) -> str:
    """``8 × NVIDIA B300``, each kind once."""
    names = [str(item.get(key)) for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or text.MISSING


def _first(key: str) -> str | None:
    return "first" if key == _KEYS[0] else None


def _numbers(values: Sequence[int]) -> str:
    """``0–3`` or ``0, 2``."""
    if not values:
        return text.MISSING
    if len(values) > 2 and list(values) == list(range(values[0], values[-1] + 1)):
        return f"{values[0]}–{values[-1]}"
    return ", ".join(str(value) for value in values)


def _link(point: Mapping[str, Any], base: str | None) -> Markup:
    """The point's name, and where the run folder is at hand a link to its files."""
    if base is None:
        return escape(point["id"])
    return el("a", point["id"], href=href(base, f"{point['artifacts']}/"))


def href(base: str, path: str) -> str:
    """A relative link to a file of the run folder, which is at ``base``."""
    return quote(f"{base}/{path.lstrip('/')}", errors="surrogateescape")
