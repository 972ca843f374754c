"""A plan for people: nodes × GPUs as a picture in text, then every command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence

from recipe_toolkit import slo
from recipe_toolkit.plan.model import Plan, Point, Process
from recipe_toolkit.plan.rehearsal import notice
from recipe_toolkit.plan.values import Value, show

_INDENT = "    "
_OVER = {"concurrency": "in flight", "request_rate": "a second"}


def draw(plan: Plan, memory: Sequence[str] = (), answered: Mapping[str, str] | None = None) -> str:
    """The picture, the points, and all commands with their variables; references stand in <brackets>.

    ``memory``: what fits into the GPUs, a line a role. ``answered``: rules of the lint that are not to hold, and why.
    """
    lint = [f"{rule}: {why}" for rule, why in sorted((answered or {}).items())]
    parts = [_head(plan), _picture(plan), _points(plan), *_listed("memory", memory), *_listed("lint answered", lint)]
    parts += [*_searches(plan), *_images(plan), *_setup(plan)]
    parts += [_process(process) for process in plan.processes]
    parts += [_process(point.process) for point in plan.benchmarks]
    return "\n\n".join(parts) + "\n"


def _head(plan: Plan) -> str:
    roles = ", ".join(_role(plan, role) for role in dict.fromkeys(item.role for item in plan.instances))
    lines = [
        f"{plan.name}: {roles}",
        *([notice(plan)] if plan.rehearsal else []),
        f"{_count(len(plan.nodes), 'node')} of {_count(plan.gpus_per_node, _noun(plan))} ({plan.gpu}), "
        f"{plan.gpus.working} of {plan.gpus.allocated} used; {plan.engine} {plan.engine_version}; "
        f"time limit {_clock(plan.time_limit_s)}",
        f"requests go to {plan.entry}; proof: {_proof(plan)}",
    ]
    return "\n".join(lines)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    return ["\n".join([f"{title}:", *(f"{_INDENT}{line}" for line in lines)])] if lines else []


def _images(plan: Plan) -> list[str]:
    if not plan.images:
        return []
    lines = []
    for image in plan.images:
        at = f" in {show(image.file)}" if image.file not in (None, image.reference) else ""
        nodes = f"node{'s' if len(image.nodes) > 1 else ''} {_numbers(image.nodes)}"
        how = f"where missing: {' '.join(map(_word, image.fetch))}" if image.fetch else "must be there already"
        lines.append(f"{_INDENT}{image.reference}{at} ({nodes}); {how}")
    return ["\n".join(["images:", *lines])]


def _setup(plan: Plan) -> list[str]:
    if not plan.setup:
        return []
    where = "skipped in a rehearsal" if plan.rehearsal else "in each engine's container, before it serves"
    width = max(len(step.name) for step in plan.setup)
    lines = [f"{_INDENT}{step.name:{width}}  sha256 {step.sha256}" for step in plan.setup]
    return ["\n".join([f"setup: {where}", *lines])]


def _noun(plan: Plan) -> str:
    return "GPU" if plan.device == "gpu" else "slot"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _role(plan: Plan, role: str) -> str:
    members = [item for item in plan.instances if item.role == role]
    first = members[0]
    known = (("tp", first.tp), ("pp", first.pp), ("dp", first.dp), ("dcp", first.dcp))
    sizes = [f"{name}{size}" for name, size in known if size > 1] + ["ep"] * first.ep
    lb = ", an API server a node" if first.lb == "hybrid" else ""
    return f"{len(members)} {role} of {' '.join(sizes) or f'one {_noun(plan)}'}{lb}"


def _proof(plan: Plan) -> str:
    if plan.proof.kind == "generate":
        return "an answer through the entry"
    how = "in two steps" if plan.proof.two_step else "by the prompt alone"
    return f"KV moved from prefill to decode {how}, prompts of {plan.proof.prompt_words} words"


def _picture(plan: Plan) -> str:
    """A row a node; the GPUs that a process has are one box."""
    rows = [(f"node {node.index}", _boxes(plan, node.index), _others(plan, node.index)) for node in plan.nodes]
    width = max(_cell_width(name, span) for _, boxes, _ in rows for name, span in boxes)
    label = max(len(name) for name, _, _ in rows)
    head = " ".join(str(slot).center(width) for slot in range(plan.gpus_per_node))
    lines = [f"{'':{label}}  {head}".rstrip()]
    for name, boxes, others in rows:
        cells = [text.center(span * (width + 1) - 1) for text, span in boxes]
        lines.append(f"{name:{label}} |{'|'.join(cells)}|{others}")
    return "\n".join(lines)


def _boxes(plan: Plan, node: int) -> list[tuple[str, int]]:
    """(process, number of GPUs) from the first slot on; free slots are boxes of their own."""
    owners = {slot: process.name for process in plan.processes if process.node == node for slot in process.gpus}
    cells = [owners.get(slot, ".") for slot in range(plan.gpus_per_node)]
    boxes: list[tuple[str, int]] = []
    for cell in cells:
        if boxes and cell != "." and boxes[-1][0] == cell:
            boxes[-1] = (cell, boxes[-1][1] + 1)
        else:
            boxes.append((cell, 1))
    return boxes


def _cell_width(name: str, span: int) -> int:
    """Columns of one GPU, so that ``span`` of them and the bars between hold the name with a blank on each side."""
    return max(3, -(-(len(name) + 3 - span) // span))


def _others(plan: Plan, node: int) -> str:
    names = [process.name for process in plan.processes if process.node == node and not process.gpus]
    if any(point.process.node == node for point in plan.benchmarks):
        names.append("clients")
    return f" + {', '.join(names)}" if names else ""


def _points(plan: Plan) -> str:
    head = ("point", "client", "isl", "osl", "load", "requests", "warm-up", "timeout")
    rows = [head, *(_row(point) for point in plan.benchmarks)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _row(point: Point) -> tuple[str, ...]:
    search = point.search
    requests: object = point.requests
    warmup: object = point.warmup
    if search is not None:
        load = f"search {search.least:g}-{search.most:g} {_OVER[search.over]}"
        requests = _rule(search.requests, search.requests_per_concurrency)
        warmup = _rule(search.warmup, search.warmup_per_concurrency)
    elif point.concurrency is not None:
        load = f"{point.concurrency} in flight"
    elif point.request_rate is not None:
        load = f"{point.request_rate:g}/s"
    else:
        load = "-"
    isl, osl = _length(point.isl_min, point.isl), _length(point.osl_min, point.osl)
    numbers = (isl, osl, load, requests, warmup, f"{point.timeout_s:g} s")
    return (point.id, point.client, *("-" if item is None else str(item) for item in numbers))


def _rule(fixed: int | None, each: int | None) -> str | None:
    return f"{each} each" if each is not None else None if fixed is None else str(fixed)


def _searches(plan: Plan) -> list[str]:
    """What each search looks for, and what it costs at most."""
    found = []
    for point in plan.benchmarks:
        search = point.search
        if search is None:
            continue
        what = "most total tokens/s per GPU" if search.maximize != "goodput" else "most goodput"
        bounds = ", ".join(slo.said(name, bound) for name, bound in search.bounds.items())
        limits = [f"at most {search.points} points"]
        limits += [f"{_clock(round(search.deadline_s))} of measuring"] if search.deadline_s is not None else []
        longest = min(search.points * point.timeout_s, search.deadline_s or math.inf, plan.time_limit_s)
        hours = len(plan.nodes) * longest / 3600
        sure = "nothing is repeated"
        if search.repeats > 1:
            sure = f"each end measured up to {search.repeats} times, confidence {search.confidence:g}"
        lines = [
            f"search {point.id}: {what}" + (f" with {bounds}" if bounds else ""),
            f"{_INDENT}over {search.over} from {search.least:g} to {search.most:g}, to within "
            f"{search.resolution * 100:.3g} % of the load; {sure}",
            f"{_INDENT}{', '.join(limits)}; {hours:.3g} node-hours at most",
        ]
        found.append("\n".join(lines))
    return found


def _length(shortest: int | None, longest: int | None) -> str | int | None:
    return longest if shortest in (None, longest) else f"{shortest}-{longest}"


def _process(process: Process) -> str:
    return "\n".join(_lines(process))


def _lines(process: Process) -> Iterator[str]:
    yield f"{process.name} ({'; '.join(_about(process))})"
    for key in process.unset:
        yield f"{_INDENT}unset {key}"
    for key in process.secrets:
        yield f"{_INDENT}{key}=<from the submitting shell>"
    for key, value in process.env.items():
        yield f"{_INDENT}{key}={_word(value)}"
    yield f"{_INDENT}{' '.join(map(_word, process.argv))}"
    if process.cleanup:
        yield f"{_INDENT}afterwards: {' '.join(map(_word, process.cleanup))}"


def _about(process: Process) -> Iterator[str]:
    yield f"node {process.node}"
    if process.gpus:
        yield f"gpus {_numbers(process.gpus)}"
    peers = [slot for slot in process.visible if slot not in process.gpus]
    if peers:
        yield f"sees {_numbers(peers)} too"
    if process.dp_ranks:
        yield f"dp ranks {_numbers(process.dp_ranks)}"
    if process.ports:
        yield "ports " + ", ".join(f"{name} {size}" for name, size in process.ports.items())
    if process.after:
        yield f"after {', '.join(process.after)}"
    if process.ready:
        yield f"ready at {process.ready.path}"


def _numbers(numbers: Sequence[int]) -> str:
    """``0-3`` for a run of numbers, else each of them."""
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def _word(value: Value) -> str:
    """A word as a shell would need it; the brackets of references are left readable."""
    text = show(value)
    bare = text.replace("<", "").replace(">", "").replace(" ", "") if not isinstance(value, str) else text
    return text if bare and shlex.quote(bare) == bare else shlex.quote(text)
