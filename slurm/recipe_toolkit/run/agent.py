"""The agent: one process a node, which starts and watches that node's programs for the lead."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recipe_toolkit.errors import ControlError, DeadlineError, RunError
from recipe_toolkit.plan.model import Plan, plan_from_json
from recipe_toolkit.run import control, environment, facts, fetch, leftovers, logs, probe, process, procfs, transport
from recipe_toolkit.run.client_meter import Meter
from recipe_toolkit.run.control import Link, Message
from recipe_toolkit.run.environment import Place
from recipe_toolkit.run.keeper import CLEANUP_S
from recipe_toolkit.run.ports import PortBook
from recipe_toolkit.run.preemption import Ask
from recipe_toolkit.run.signals import Signals
from recipe_toolkit.run.tasks import cancel, race
from recipe_toolkit.rundir import AttemptDir, RunDir, read_json, write_json

_POLL_S = 0.2
_ABANDONED_GRACE_S = 3.0  # TERM to KILL when nobody leads any more
_KILLED_S = 12.0  # how long a kill may take before what is left is called a survivor

log = logging.getLogger("recipe_toolkit.run")


def run_agent(run_folder: str, preempted: Ask | None = None) -> None:
    """Run this node's part of the run, and the lead's on node 0, to its end.

    This is what the job runs on every node. ``preempted`` tells whether a job is being preempted. Raises
    RunError if the run did not end well.
    """
    signals = Signals()
    run = RunDir(Path(run_folder).resolve())
    where = environment.place(os.environ)
    attempt = run.attempt(where.attempt)
    attempt.node(where.index).mkdir(parents=True, exist_ok=True)
    _log_to(attempt.agent_log(where.index))
    try:
        plan = plan_from_json(read_json(run.plan))
        if where.count != len(plan.nodes):
            raise RunError(f"the job has {where.count} nodes, but the plan is for {len(plan.nodes)}")
        asyncio.run(_main(run, plan, where, preempted, signals))
    except RunError as error:
        log.error("%s", error.render())
        raise
    except Exception:
        log.exception("the agent itself failed")
        raise


def _log_to(path: Path) -> None:
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname).1s %(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)


async def _main(run: RunDir, plan: Plan, where: Place, preempted: Ask | None, signals: Signals) -> None:
    process.become_subreaper()
    agent = Agent(run, plan, where)
    if where.index != 0:
        signals.tell(agent.tell_signal)
        await agent.run()
        return
    from recipe_toolkit.run.lead import Lead  # the other nodes need none of it

    lead = Lead(run, plan, where, preempted)
    signals.tell(lead.signal)
    agent_task = asyncio.ensure_future(agent.run())
    lead_task = asyncio.ensure_future(lead.run())
    try:
        # The lead hears of its own agent's trouble as of any other's: by the channel, or by nothing coming.
        await asyncio.wait({agent_task, lead_task}, return_when=asyncio.FIRST_EXCEPTION)
        if agent_task.done() and not lead_task.done() and agent_task.exception() is not None:
            lead.fail(0, str(agent_task.exception()))
        await lead_task
    finally:
        await asyncio.wait({agent_task}, timeout=_KILLED_S)
        await cancel(agent_task, lead_task)


class Agent:
    """Serves the lead's orders on one node."""

    def __init__(self, run: RunDir, plan: Plan, where: Place) -> None:
        self._run = run
        self._plan = plan
        self._where = where
        self._attempt: AttemptDir = run.attempt(where.attempt)
        self._folder = self._attempt.node(where.index)
        self._children: dict[str, process.Child] = {}
        self._meters: dict[str, Meter] = {}
        self._ports: PortBook | None = None
        self._facts: dict[str, Any] = {}
        self._link: Link | None = None
        self._watching = False
        self._signalled: asyncio.Event = asyncio.Event()
        self._outcome: Message | None = None
        self._jobs: set[asyncio.Task[None]] = set()

    def tell_signal(self, name: str) -> None:
        """A signal came to this node: the lead decides what it means for the run."""
        log.info("received %s", name)
        if name != "SIGUSR2":
            self._signalled.set()
        if self._link is not None:
            self._spawn(self._say({"event": "signal", "name": name}))

    async def run(self) -> None:
        """Join the lead and serve until it ends the run.

        Raises RunError if the run did not end well, if the lead is lost, or if this node cannot take part.
        """
        hello = await asyncio.to_thread(self._introduce)
        link = self._link = await self._join()
        try:
            await link.send({"event": "hello", **hello})
            await race(self._serve(link), self._beat(link), self._look_outside(), self._abandoned())
        except ControlError as error:
            raise RunError(f"node {self._where.index}: {error.message}") from error
        finally:
            await self._kill_all()
            if self._ports is not None:
                self._ports.release()
            await link.close()
        outcome = self._outcome or {}
        if outcome.get("state") != "done":
            raise RunError(f"run {outcome.get('state')}: {outcome.get('message')}")

    # --- joining

    def _introduce(self) -> Message:
        """Facts, address, devices and programs of this node. What is wrong is said to the lead."""
        found = facts.collect(self._plan, self._where)
        found.update(address=None, interface=None, devices=[])
        problems: list[str] = []
        try:
            found["address"], found["interface"] = environment.node_address(self._where, self._plan.interface)
            found["devices"] = list(facts.devices(self._plan, self._where, os.environ))
        except RunError as error:
            problems.append(error.render())
        located = facts.programs(self._plan, self._where.index)
        found["programs"] = located
        found["paths"] = facts.paths(self._plan, self._where.index)
        problems += facts.missing_programs(self._where, located, rehearsal=self._plan.rehearsal)
        self._facts = found
        write_json(self._attempt.facts(self._where.index), found)
        seed = f"{self._run.id}/{self._where.attempt}/{self._where.index}"
        self._ports = PortBook(str(found["address"]), seed)
        return {"facts": found, "problems": problems}

    async def _join(self) -> Link:
        """Find the lead and greet it, within the bind deadline."""
        token = self._run.token.read_bytes().strip()
        limit = time.monotonic() + self._plan.deadlines.bind
        problem = "it has not said where it listens"
        while time.monotonic() < limit:
            if self._signalled.is_set():
                raise RunError(f"node {self._where.index} was told to stop before it met the lead")
            try:
                at = self._lead_address()
                if at is not None and "ended" in at:
                    raise RunError(f"the run ended before node {self._where.index} joined: {at['message']}")
                if at is not None:
                    return await control.connect(at["address"], at["port"], token, self._where.index)
            except ControlError as error:
                # Refused for good only by a lead that knows us; else it may be a stale address.
                if error.message.startswith("the lead refused"):
                    raise
                problem = error.message
            except (OSError, asyncio.TimeoutError) as error:
                problem = f"{at}: {error or type(error).__name__}"
            await asyncio.sleep(_POLL_S)
        raise DeadlineError(
            f"node {self._where.index} did not meet the lead within {self._plan.deadlines.bind:g} s: {problem}",
            hint=f"see {self._attempt.agent_log(0)}",
        )

    def _lead_address(self) -> Message | None:
        # Reading the folder makes an NFS client forget that the file was not there a moment ago.
        os.listdir(self._attempt.root)  # noqa: PTH208
        try:
            found = read_json(self._attempt.lead)
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        # Another job's: it ran in this folder before.
        return found if isinstance(found, dict) and found.get("job_id") == self._where.job_id else None

    # --- serving

    async def _serve(self, link: Link) -> None:
        while self._outcome is None:
            message = await link.receive()
            if "do" in message:
                self._spawn(self._answer(link, message))
                if message["do"] == "end":
                    self._outcome = message["with"]

    async def _answer(self, link: Link, message: Message) -> None:
        order = getattr(self, f"_do_{message['do']}", None)
        try:
            if order is None:
                raise RunError(f"unknown order {message['do']!r}")
            reply: Message = await order(**message.get("with", {})) or {}
        except RunError as error:
            reply = {"error": error.render()}
        except (OSError, TypeError, ValueError, KeyError) as error:
            log.exception("order %s failed", message["do"])
            reply = {"error": f"node {self._where.index}: {message['do']}: {type(error).__name__}: {error}"}
        if message.get("id") is not None:
            await self._say({"reply": message["id"], **reply})

    async def _beat(self, link: Link) -> None:
        while True:
            signs = await asyncio.to_thread(self._signs) if self._watching else {}
            await link.send({"event": "beat", "signs": signs})
            await asyncio.sleep(control.BEAT_S)

    async def _look_outside(self) -> None:
        """Find the processes of containers, whose signs of life count too; a runtime may take its time to tell."""
        while True:
            await asyncio.sleep(control.BEAT_S)
            for child in list(self._children.values()) if self._watching else ():
                await asyncio.to_thread(child.look_outside)

    def _signs(self) -> dict[str, list[int]]:
        """CPU ticks, bytes moved and log size of each program that runs."""
        processes = procfs.table()
        signs = {}
        for name, child in list(self._children.items()):
            if not child.gone.done():
                moved = procfs.activity(child.pids(processes))
                signs[name] = [moved.ticks, moved.bytes, child.log_size()]
        return signs

    async def _abandoned(self) -> None:
        """After TERM the lead must end the run before the scheduler kills it."""
        await self._signalled.wait()
        limit = environment.kill_wait_s(os.environ) * 0.8
        await asyncio.sleep(limit)
        raise RunError(f"node {self._where.index} was told to stop, and the lead did not end the run in {limit:g} s")

    async def _say(self, message: Message) -> None:
        if self._link is not None:
            with contextlib.suppress(ControlError):  # _serve meets the same loss and acts on it
                await self._link.send(message)

    def _spawn(self, job: Any) -> None:
        task = asyncio.ensure_future(job)
        self._jobs.add(task)
        task.add_done_callback(self._jobs.discard)

    # --- the lead's orders

    async def _do_reserve(self, blocks: Mapping[str, Mapping[str, int]]) -> Message:
        assert self._ports is not None
        return {"ports": self._ports.reserve(blocks)}

    async def _do_start(
        self,
        name: str,
        argv: list[str],
        env: dict[str, str],
        unset: list[str],
        cwd: str | None,
        cleanup: list[str],
        inspect: list[str],
    ) -> Message:
        old = self._children.get(name)
        if old is not None and not old.gone.done():
            raise RunError(f"{name} runs already")
        spec = process.Spec(
            name=name,
            argv=argv,
            env=environment.child_environment(os.environ, env, unset),
            log=self._attempt.process_log(self._where.index, name),
            cwd=Path(cwd) if cwd else self._folder,
            cleanup=cleanup,
            inspect=inspect,
        )
        child = process.start(spec)
        self._children[name] = child
        pid = await child.started()
        log.info("started %s: pid %d", name, pid)
        self._spawn(self._follow(child))
        return {"pid": pid}

    async def _follow(self, child: process.Child) -> None:
        code = await child.exited
        text = child.tail()
        log.info("%s exited with %d", child.name, code)
        await self._say(
            {
                "event": "exit",
                "name": child.name,
                "pid": child.pid,
                "code": code,
                "cause": logs.cause(text),
                "lines": logs.last_lines(text),
                "port_taken": logs.port_taken(text),
            }
        )

    async def _do_image(self, number: int, deadline: float, stall: float, wanted: dict[str, Any]) -> Message:
        """Look for an image, and fetch it if the order says how."""
        name = f"image-{number}"

        def say(event: str, **fields: Any) -> None:
            self._spawn(self._say({"event": "image", "what": event, "with": {"image": order.reference, **fields}}))

        def started(child: process.Child) -> None:
            self._children[name] = child  # the drain stops it too

        env = environment.child_environment(os.environ, wanted.pop("env"))
        order = fetch.Order(**wanted, env=env, deadline=deadline, stall=stall)
        log_file = self._attempt.process_log(self._where.index, name)
        shown = str(log_file.relative_to(self._run.root))
        there, identity = await fetch.Fetcher(order, log_file, say, started, shown).run()
        if there:
            self._facts.setdefault("images", {})[order.reference] = identity
            write_json(self._attempt.facts(self._where.index), self._facts)
        return {"there": there, "id": identity}

    async def _do_check(self, request: Message) -> Message:
        """Look at this node, as a preflight asks."""
        return await asyncio.to_thread(probe.answer, request)

    async def _do_sweep(self, programs: list[dict[str, Any]]) -> Message:
        """Remove what an earlier attempt has left of programs under the same names."""
        return {"found": await asyncio.to_thread(leftovers.sweep, programs)}

    async def _do_owns(self, name: str, port: int) -> Message:
        return await asyncio.to_thread(self._owner, self._children[name], port)

    @staticmethod
    def _owner(child: process.Child, port: int) -> Message:
        if child.owns_port(port):
            return {"owned": True}
        pid = procfs.owner(port)
        return {"owned": False, "owner": f"{pid} ({procfs.command(pid)})" if pid else None}

    async def _do_load(self, name: str, only: str) -> Message:
        """What a program, or those of its processes, has taken of this node since the last time that it was asked."""
        meter = self._meters.setdefault(name, Meter(only))
        return await asyncio.to_thread(meter.sample, self._children[name].pids)

    async def _do_watch(self, on: bool) -> None:
        self._watching = on

    async def _do_tail(self, name: str, lines: int) -> Message:
        text = self._children[name].tail() if name in self._children else ""
        return {"cause": logs.cause(text), "lines": logs.last_lines(text, lines)}

    async def _do_transport(self, name: str, what: str) -> Message:
        path = self._attempt.process_log(self._where.index, name)
        return {what: await asyncio.to_thread(transport.READERS[what], path)}

    async def _do_stop(self, names: list[str] | None, grace: float) -> Message:
        """Stop programs (None: all) and wait until they are gone; what survives is named."""
        chosen = [child for name, child in self._children.items() if names is None or name in names]
        for child in chosen:
            child.stop(grace)
        waiting = [child.gone for child in chosen]
        if waiting:
            extra = CLEANUP_S if any(child.spec.cleanup for child in chosen) else 0.0
            await asyncio.wait(waiting, timeout=grace + _KILLED_S + extra)
        left = {child.name: child.left or [item.pid for item in child.tree()] for child in chosen}
        return {
            "left": {name: pids for name, pids in left.items() if pids},
            "killed": {child.name: child.killed for child in chosen if child.killed},
            "unclean": {child.name: child.unclean for child in chosen if child.unclean},
        }

    async def _do_end(self, state: str, message: str | None) -> None:
        log.info("the run ended: %s %s", state, message or "")

    async def _kill_all(self) -> None:
        running = [child for child in self._children.values() if not child.gone.done()]
        for child in running:
            child.stop(_ABANDONED_GRACE_S)
        if running:
            await asyncio.wait([child.gone for child in running], timeout=_ABANDONED_GRACE_S + _KILLED_S)
        await cancel(*self._jobs)
