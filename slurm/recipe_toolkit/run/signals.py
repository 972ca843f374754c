"""The signals that end a run, from the agent's first line on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

_NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2)


class Signals:
    """Takes TERM, INT and USR2 over from submitit, which ignores the first and requeues on the last.

    Made before anything else is done, since a cancelled job gets one TERM; what comes before :meth:`tell` is kept.
    """

    def __init__(self) -> None:
        self._early: list[int] = []
        for number in _NUMBERS:
            signal.signal(number, lambda came, _frame: self._early.append(came))

    def tell(self, handler: Callable[[str], None]) -> None:
        """Tell the running loop's ``handler`` the name of each signal, of those first that came before."""
        loop = asyncio.get_running_loop()
        for number in _NUMBERS:
            loop.add_signal_handler(number, handler, signal.Signals(number).name)
        for came in self._early:
            handler(signal.Signals(came).name)
