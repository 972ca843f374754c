"""Phase *ready*: each program answers as what it should be, and each DP rank generates a token.

vLLM's ``/health`` is no proof: it answers 200 with dead remote ranks. So every process is watched,
the port must belong to our own child, the model's name must be right, and every DP rank is asked.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from recipe_toolkit.errors import DeadlineError, RunError
from recipe_toolkit.plan.model import Process
from recipe_toolkit.plan.search import clients
from recipe_toolkit.run import bind, http, launch
from recipe_toolkit.run.context import Clock, Context, Target
from recipe_toolkit.run.control import BEAT_S
from recipe_toolkit.run.fleet import ProcessView
from recipe_toolkit.run.http import HttpError
from recipe_toolkit.run.tasks import race, together

_PROBE_S = 5.0
_PAUSE_S = 0.25
_TOKEN_S = 300.0  # one token; the first request of a rank may compile kernels
_FOREIGN_S = 3.0  # how long a port may be another's: our own program says so itself, and is given new ports
_PROGRESS_S = 10.0  # and then ever more rarely, up to
_PROGRESS_MOST_S = 60.0
_RETRIED = (408, 425, 429)  # besides 5xx

log = logging.getLogger("recipe_toolkit.run")


@dataclass
class Group:
    """An instance, or a process that belongs to none. ``missing``: what is not there yet, by process or rank."""

    name: str
    processes: Sequence[Process]
    targets: Sequence[Target] = ()
    missing: dict[str, str] = field(default_factory=dict)
    done: bool = False


def group_name(context: Context, process: str) -> str:
    """The instance's name, or the process's own."""
    instance = context.instance_of(process)
    return f"{instance.role}-{instance.index}" if instance else process


def can_rebind(context: Context, phase: str, view: ProcessView) -> bool:
    """Whether an end of a program that is starting is repaired by new ports: once for its instance.

    vLLM takes further ports by itself, which nobody can reserve for it.
    """
    name = group_name(context, view.name)
    if phase not in ("launch", "ready") or name in context.rebinding:
        return name in context.rebinding
    if not view.last.get("port_taken") or name in context.rebound:
        return False
    context.rebound.add(name)
    context.rebinding.add(name)
    context.rebind_wanted.setdefault(name, asyncio.Event()).set()
    return True


async def ready(context: Context, wave: Sequence[Process]) -> None:
    """Until all programs of the wave are ready.

    Raises RunError when one is wrong or shows no sign of life for the stall time, DeadlineError with
    what each still misses at the deadline.
    """
    groups = _groups(context, wave)
    await context.fleet.everywhere("watch", on=True)
    await race(_all(context, groups), _deadline(context, groups), _stall(context, groups), _progress(context, groups))
    await context.fleet.everywhere("watch", on=False)
    context.publish()


def _groups(context: Context, wave: Sequence[Process]) -> list[Group]:
    groups: dict[str, Group] = {}
    for process in wave:
        name = group_name(context, process.name)
        if name not in groups:
            instance = context.instance_of(process.name)
            targets = context.targets(instance) if instance else ()
            members = [item for item in wave if group_name(context, item.name) == name]
            groups[name] = Group(name, members, targets)
    return list(groups.values())


async def _all(context: Context, groups: Sequence[Group]) -> None:
    await together(*(_group(context, group) for group in groups))


async def _group(context: Context, group: Group) -> None:
    wanted = context.rebind_wanted.setdefault(group.name, asyncio.Event())
    while True:
        await race(_probe(context, group), wanted.wait())
        if not wanted.is_set():
            break
        wanted.clear()
        await _new_ports(context, group)
    group.done = True
    context.journal.event("ready", group=group.name)
    log.info("%s is ready", group.name)


async def _probe(context: Context, group: Group) -> None:
    group.missing.clear()
    await together(*(_process(context, group, process) for process in group.processes))
    await together(*(_rank(context, group, target) for target in group.targets))


async def _new_ports(context: Context, group: Group) -> None:
    """Stop the group, bind it to new ports, and start it again."""
    log.warning("%s met a port in use; it starts again on new ports", group.name)
    context.journal.event("port_retry", group=group.name)
    names = [process.name for process in group.processes]
    for node in sorted({process.node for process in group.processes}):
        await context.fleet.call(node, "stop", 60.0, names=names, grace=5.0)
    context.rebinding.discard(group.name)
    ports = await bind.reserve(context, group.processes)
    context.move_ports(ports)
    bind.rebind(context, [*context.plan.processes, *clients(context.plan)])
    await launch.launch(context, group.processes)


async def _process(context: Context, group: Group, process: Process) -> None:
    """Until one program answers on a port of its own with the right model."""
    view = context.view(process.name)
    if process.ready is None:
        view.settle("running")
        return
    base = context.base_url(process.name, process.ready.port)
    foreign_since: float | None = None
    while True:
        problem = await _answers(base, process.ready.path)
        if problem is None:
            owner = await _owner(context, process)
            problem = owner or await _serves(context, base, process, view)
            foreign_since = (foreign_since or time.monotonic()) if owner else None
            if owner and foreign_since and time.monotonic() - foreign_since > _FOREIGN_S:
                raise context.failure("ready", view, owner, *await context.tail(view.name))
        if problem is None:
            break
        group.missing[process.name] = problem
        await asyncio.sleep(_PAUSE_S)
    group.missing.pop(process.name, None)
    view.settle("ready")
    version = await _version(base) if process.ready.model else None
    if version:
        context.versions[process.name] = version
    context.journal.event("process_ready", process=process.name, version=version)
    context.publish()


async def _answers(base: str, path: str) -> str | None:
    try:
        answer = await http.get(base + path, _PROBE_S)
    except HttpError as error:
        return f"no answer yet ({error})"
    return None if answer.status == 200 else f"GET {path} answers {answer.status}"


async def _owner(context: Context, process: Process) -> str | None:
    assert process.ready is not None
    assert context.bindings is not None
    port = context.bindings.ports[process.name][process.ready.port]
    reply = await context.fleet.call(process.node, "owns", name=process.name, port=port)
    if reply["owned"]:
        return None
    holder = f"by another process: {reply['owner']}" if reply["owner"] else "by a process that cannot be seen"
    return f"does not hold its own port {port}, which is held {holder}"


async def _serves(context: Context, base: str, process: Process, view: ProcessView) -> str | None:
    assert process.ready is not None
    if process.ready.model is None:
        return None
    try:
        answer = await http.get(f"{base}/v1/models", _PROBE_S)
        if answer.status != 200:
            return f"GET /v1/models answers {answer.status}"
        names = [str(item["id"]) for item in answer.json()["data"]]
    except HttpError as error:
        return f"GET /v1/models: {error}"
    except (KeyError, TypeError) as error:
        return f"GET /v1/models answers something else than a list of models ({error!r})"
    if process.ready.model in names:
        return None
    served = ", ".join(names) or "no model"
    raise context.failure("ready", view, f"serves {served}, not {process.ready.model}", *await context.tail(view.name))


async def _version(base: str) -> str | None:
    """What the engine says of itself; None if it does not."""
    try:
        answer = await http.get(f"{base}/version", _PROBE_S)
        return str(answer.json()["version"]) if answer.status == 200 else None
    except (HttpError, KeyError, TypeError):
        return None


async def _rank(context: Context, group: Group, target: Target) -> None:
    """Until the rank has generated one token."""
    view = context.view(target.process)
    body = {"model": context.plan.served_name, "prompt": "ready", "max_tokens": 1, "temperature": 0}
    label = str(target)
    group.missing[label] = "no answer yet to a request for one token"
    while True:
        problem = await _one_token(context, target, body)
        if isinstance(problem, RunError):
            raise context.failure(
                "ready", view, f"refused one token of {label}: {problem}", *await context.tail(view.name)
            )
        if problem is None:
            break
        group.missing[label] = problem
        await asyncio.sleep(1.0)
    del group.missing[label]


async def _one_token(context: Context, target: Target, body: dict[str, Any]) -> str | RunError | None:
    group_timeout = min(_TOKEN_S, context.plan.deadlines.ready)
    try:
        answer = await http.post(
            context.base_url(target.process) + "/v1/completions", body, group_timeout, target.headers
        )
    except HttpError as error:
        return f"one token: {error}"
    if answer.status == 200:
        return None
    text = f"one token: answer {answer.status}: {answer.text[:200]}"
    return text if answer.status >= 500 or answer.status in _RETRIED else RunError(text)


async def _deadline(context: Context, groups: Sequence[Group]) -> None:
    clock = Clock(context.plan.deadlines.ready)
    await asyncio.sleep(clock.seconds)
    waiting = [group for group in groups if not group.done]
    lines = [f"ready: not ready within {clock.seconds:g} s:"]
    for group in waiting:
        lines += [f"  {name}: {what}" for name, what in group.missing.items()]
    for process in [process for group in waiting for process in group.processes][:4]:
        cause, tail = await context.tail(process.name, 5)
        lines.append(context.log_of(process.name) + (f": {cause}" if cause else ""))
        lines += [f"  {line}" for line in tail]
    raise DeadlineError("\n".join(lines), hint="raise deadlines.ready if it was still loading")


async def _stall(context: Context, groups: Sequence[Group]) -> None:
    """Raise when all of a group stands still: one that waits for the others of its group is idle with good reason."""
    stall = context.plan.deadlines.stall
    while True:
        await asyncio.sleep(min(1.0, stall / 4))
        for group in groups:
            views = [context.view(process.name) for process in group.processes]
            if group.done or any(view.pid is None or view.exit_code is not None for view in views):
                continue
            still = time.monotonic() - max(view.moved for view in views)
            # What is known of a process may be a beat old.
            if still > stall + BEAT_S:
                view = min(views, key=lambda item: item.moved)
                what = f"shows no sign of life for {still:.0f} s (log, CPU time and I/O stand still)"
                raise context.failure("ready", view, what, *await context.tail(view.name))


async def _progress(context: Context, groups: Sequence[Group]) -> None:
    pause = _PROGRESS_S
    while True:
        await asyncio.sleep(pause)
        pause = min(_PROGRESS_MOST_S, pause * 1.5)
        done = [group.name for group in groups if group.done]
        waiting = {}
        for group in groups:
            for process in () if group.done else group.processes:
                _, lines = await context.tail(process.name, 1)
                missing = {key: text for key, text in group.missing.items() if key == process.name} or group.missing
                waiting[process.name] = {"missing": "; ".join(missing.values()), "last": lines[-1] if lines else ""}
        context.journal.event("progress", ready=done, waiting=waiting)
        log.info("ready: %d of %d; waiting for %s", len(done), len(groups), ", ".join(waiting))
