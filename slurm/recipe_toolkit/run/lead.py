"""The lead: takes the run through its phases, and ends it."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from recipe_toolkit.errors import RunError
from recipe_toolkit.plan.model import Plan
from recipe_toolkit.run import bench, bind, drain, environment, images, launch, prove, ready, targets
from recipe_toolkit.run.context import Context
from recipe_toolkit.run.control import PROTOCOL
from recipe_toolkit.run.environment import Place
from recipe_toolkit.run.fleet import Fleet, Node, ProcessView
from recipe_toolkit.run.journal import Journal
from recipe_toolkit.run.preemption import Ask, Preemption
from recipe_toolkit.run.tasks import cancel
from recipe_toolkit.rundir import RunDir, write_json

# A program that ends, or a node that goes, may be the first sign of a signal to the whole job.
_SIGNAL_LAG_S = 0.5
_ECHO_S = 3.0

log = logging.getLogger("recipe_toolkit.run")


@dataclass(frozen=True)
class Outcome:
    """How the run ended: ``done``, ``failed``, ``cancelled``, ``preempted`` or ``timeout``, and why."""

    state: str
    message: str | None = None


class Lead:
    """Runs on node 0, in the process of its agent."""

    def __init__(self, run: RunDir, plan: Plan, where: Place, preempted: Ask | None = None) -> None:
        self._journal = Journal(run, where.attempt)
        token = run.token.read_bytes().strip()
        fleet = Fleet(plan, token)
        attempt = run.attempt(where.attempt)
        self._context = Context(run, attempt, plan, where, fleet, self._journal)
        self._phase = "bind"
        self._trouble: RunError | None = None
        self._stop: Outcome | None = None
        self._woken = asyncio.Event()
        self._ending = False
        self._hurry = asyncio.Event()
        self._stopped_at = 0.0
        self._preemption = Preemption(preempted, where.job_id)
        for process in (*plan.processes, *(point.process for point in plan.benchmarks)):
            path = attempt.process_log(process.node, process.name)
            relative = str(path.relative_to(run.root))
            fleet.processes[process.name] = ProcessView(process.name, process.node, relative)
        fleet.on_join = self._joined
        fleet.on_lost = self._lost
        fleet.on_exit = self._exited
        fleet.on_image = self._image
        fleet.on_signal = lambda name, node: self.signal(name, node)

    # --- what happens to the run

    def signal(self, name: str, node: int = 0) -> None:
        """A signal reached a node: TERM and INT cancel, USR2 is the time limit's warning."""
        log.info("%s on node %d", name, node)
        state = "timeout" if name == "SIGUSR2" else "cancelled"
        if self._ending and state == "cancelled" and not self._echo():
            self._hurry.set()
        if self._stop is not None or self._ending:
            return
        self._stopped_at = time.monotonic()
        message = "the time limit is near" if state == "timeout" else f"cancelled ({name})"
        self._stop = Outcome(state, f"{message}, in phase {self._phase}")
        if name == "SIGTERM":
            self._preemption.begin()
        self._journal.event("stop_requested", signal=name, node=node, phase=self._phase)
        self._woken.set()

    def _echo(self) -> bool:
        """Whether a TERM now is the one that already ended the run: every node gets it and passes it on."""
        cancelled = self._stop is not None and self._stop.state == "cancelled"
        return cancelled and time.monotonic() - self._stopped_at < _ECHO_S

    def fail(self, node: int, message: str) -> None:
        """Something went wrong that no phase would notice by itself; the first such thing counts."""
        self._fail(RunError(f"{self._phase}: {self._context.node_label(node)}: {message}"))

    def _fail(self, error: RunError) -> None:
        if self._trouble is None and not self._ending:
            self._trouble = error
            self._woken.set()

    def _joined(self, node: Node) -> None:
        log.info("node %d is %s at %s", node.index, node.host, node.facts.get("address"))
        self._journal.event("node_joined", node=node.index, host=node.host, address=node.facts.get("address"))
        self._context.publish()

    def _lost(self, node: Node) -> None:
        if node.dismissed:
            return
        self._journal.event("node_lost", node=node.index, reason=node.lost)
        agent_log = self._context.attempt.agent_log(node.index).relative_to(self._context.run.root)
        self._fail(
            RunError(
                f"{self._phase}: node {node.index} ({node.host}) is lost: {node.lost}\nlog of its agent: {agent_log}",
                hint="the job's own log may say who ended it: out of memory, a node that went down",
            )
        )
        self._context.publish()

    def _image(self, node: Node, event: str, fields: dict[str, Any]) -> None:
        self._journal.event(event, node=node.index, **fields)

    def _exited(self, view: ProcessView) -> None:
        self._journal.event("process_exited", process=view.name, code=view.exit_code, node=view.node)
        log.info("%s ended with %s", view.name, view.exit_code)
        self._context.publish()
        if self._ending or self._expected(view):
            return
        self._fail(self._context.describe_exit(self._phase, view))

    def _expected(self, view: ProcessView) -> bool:
        """Whether somebody waits for this end, or can repair it."""
        if any(point.process.name == view.name for point in self._context.plan.benchmarks):
            return True
        if view.exit_code == 0 and self._context.plan.process(view.name).may_exit:
            return True
        return ready.can_rebind(self._context, self._phase, view)

    # --- the phases

    async def run(self) -> None:
        """The whole run. Raises RunError unless it ends well."""
        outcome = Outcome("failed", "the lead was interrupted")
        try:
            try:
                await self._listen()
                outcome = await self._phases()
            except RunError as error:
                outcome = Outcome("failed", error.render())
            except OSError as error:
                outcome = Outcome("failed", f"{self._phase}: {error}{self._no_room(error)}")
            except Exception as error:
                log.exception("the lead itself failed")
                outcome = Outcome("failed", f"{self._phase}: internal error: {error!r}")
        finally:
            outcome = await self._end(outcome)
        await self._preemption.wait(self._context.plan.time_limit_s, self._hurry)
        if outcome.state != "done":
            raise RunError(f"run {outcome.state}: {outcome.message}")

    def _no_room(self, error: OSError) -> str:
        """Where there is no room: an error in writing an open file names none."""
        full = error.errno in (errno.ENOSPC, errno.EDQUOT) and not error.filename
        return f" in the run folder {self._context.run.root}" if full else ""

    async def _listen(self) -> None:
        context = self._context
        self._journal.event(
            "run_started", run=context.run.id, attempt=context.where.attempt, nodes=len(context.plan.nodes)
        )
        self._journal.update(points={point.id: "pending" for point in context.plan.benchmarks})
        context.publish()
        address, _ = environment.node_address(context.where, context.plan.interface)
        port = await context.fleet.listen(address)
        where = {"protocol": PROTOCOL, "job_id": context.where.job_id, "address": address, "port": port}
        write_json(context.attempt.lead, where)
        log.info("the lead listens on %s:%d", address, port)

    async def _phases(self) -> Outcome:
        context = self._context
        try:
            await self._step("bind", bind.bind(context))
            if context.plan.images:
                await self._step("images", images.images(context))
            for wave in launch.waves(context):
                await self._step("launch", launch.launch(context, wave))
                await self._step("ready", ready.ready(context, wave))
            targets.publish(context)
            await self._step("prove", prove.prove(context))
            await self._step("bench", bench.bench(context))
        except _Stopped as stopped:
            return stopped.outcome
        return Outcome("done")

    async def _step(self, name: str, phase: Coroutine[Any, Any, None]) -> None:
        """Run a phase, until it ends, something goes wrong, or the run is told to stop."""
        self._phase = name
        self._journal.event("phase", phase=name)
        self._journal.update(phase=name)
        log.info("phase %s", name)
        task = asyncio.ensure_future(phase)
        waker = asyncio.ensure_future(self._woken.wait())
        try:
            await asyncio.wait({task, waker}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and self._stop is None and self._trouble is None:
                if task.exception() is None:
                    return
                # Also a phase may only feel what a signal does to the programs.
                await self._settle()
            elif self._stop is None:
                await self._settle()
            if self._stop is not None:
                raise _Stopped(self._stop)
            if self._trouble is not None:
                raise self._trouble
            task.result()
        finally:
            await cancel(task, waker)

    async def _settle(self) -> None:
        """Give a signal that explains what was seen the time to arrive."""
        limit = time.monotonic() + _SIGNAL_LAG_S
        while self._stop is None and time.monotonic() < limit:
            await asyncio.sleep(0.02)

    # --- the end

    async def _end(self, outcome: Outcome) -> Outcome:
        """Say how it ended, stop everything, write what is left to write; the outcome with what that showed."""
        context = self._context
        self._ending = True
        if outcome.state == "done":
            log.info("all phases are done")
        else:
            log.error("run %s: %s", outcome.state, outcome.message)
        self._journal.event("outcome", state=outcome.state, message=outcome.message)
        self._journal.event("phase", phase="drain")
        # All but "done" is certain before the drain, which the scheduler may cut short.
        early = {} if outcome.state == "done" else {"state": outcome.state}
        self._journal.update(phase="drain", message=outcome.message, **early)
        targets.withdraw(context)
        await self._write_results(outcome)
        budget = context.plan.deadlines.drain
        if outcome.state == "cancelled":
            budget = min(budget, 0.6 * environment.kill_wait_s(os.environ))
        survivors = await drain.drain(context, budget, self._hurry)
        if survivors:
            outcome = self._survived(outcome, survivors)
        preempted = outcome.state == "cancelled" and await self._preemption.found()
        if preempted:
            outcome = Outcome("preempted", str(outcome.message).replace("cancelled", "preempted by Slurm", 1))
            log.info("%s: Slurm ends the job", outcome.message)
        if survivors or preempted:
            await self._write_results(outcome)
        await drain.dismiss(context, outcome.state, outcome.message)
        await context.fleet.close()
        unwritten = drain.finish(context, outcome.state, outcome.message)
        return Outcome("failed", unwritten) if unwritten and outcome.state == "done" else outcome

    async def _write_results(self, outcome: Outcome) -> None:
        try:
            await bench.write_results(self._context, outcome.state, outcome.message)
        except Exception:
            # Whatever is wrong with them, the processes must be stopped.
            log.exception("cannot write the results")

    def _survived(self, outcome: Outcome, survivors: list[str]) -> Outcome:
        text = f"drain: still there after KILL: {', '.join(survivors)}"
        log.error("%s", text)
        self._journal.event("survivors", processes=survivors)
        if outcome.state == "done":
            return Outcome("failed", text)
        return Outcome(outcome.state, f"{outcome.message}\n{text}")


class _Stopped(Exception):
    """The run was told to stop."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.state)
        self.outcome = outcome
