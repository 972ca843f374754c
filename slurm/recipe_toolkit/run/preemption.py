"""Whether TERM came because the job is being preempted, and what follows from that.

Slurm's TERM says nothing of its reason. With a GraceTime a job that is preempted is still RUNNING after it, and one
that ends by itself then counts as FAILED: it is not requeued. So such a job must wait for Slurm to end it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

# Job id -> Slurm's state of a job that is being preempted, None for any other.
Ask = Callable[[str], "str | None"]

_ANSWER_S = 6.0  # after the drain, for an answer that was asked for before it


class Preemption:
    """Asks once, while the run is being stopped. ``ask``: None where nobody can be asked."""

    def __init__(self, ask: Ask | None, job_id: str) -> None:
        self._ask = ask
        self._job_id = job_id
        self._answer: asyncio.Future[str | None] | None = None
        self._state: str | None = None

    def begin(self) -> None:
        """TERM has come."""
        if self._ask is not None and self._answer is None:
            self._answer = asyncio.get_running_loop().run_in_executor(None, self._ask, self._job_id)

    async def found(self) -> bool:
        """Whether the job is being preempted."""
        if self._answer is not None:
            await asyncio.wait({self._answer}, timeout=_ANSWER_S)
            answered = self._answer.done() and self._answer.exception() is None
            self._state = self._answer.result() if answered else None
        return self._state is not None

    async def wait(self, limit_s: float, again: asyncio.Event) -> None:
        """Wait until Slurm kills the job, where it does so only after its grace time; ``limit_s`` at most.

        When TERM comes ``again``, and the job is not RUNNING any more, Slurm has settled what becomes of it: the
        grace time is over, or somebody has cancelled it. (Slurm also repeats TERM within the grace time.)
        """
        limit = time.monotonic() + limit_s
        while self._state == "RUNNING" and time.monotonic() < limit:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(again.wait(), limit - time.monotonic())
            again.clear()
            self._answer = None
            self.begin()
            await self.found()
