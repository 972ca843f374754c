"""Whether this process's fault is on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from recipe_toolkit.sim.log import log
from recipe_toolkit.sim.options import Fault


class Faults:
    """The one fault that a process may have. Without delay it is on from the start, else from :meth:`arm` on."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._on = fault is not None and fault.after_s == 0

    def active(self, kind: str, dp_rank: int | None = None) -> bool:
        """Whether a fault of that kind is on, for that DP rank if one is given."""
        fault = self._fault
        if fault is None or not self._on or fault.kind != kind:
            return False
        return dp_rank is None or fault.dp_rank is None or fault.dp_rank == dp_rank

    @property
    def code(self) -> int:
        """The exit code of the kind ``exit``."""
        return self._fault.code if self._fault is not None else 0

    @property
    def load_s(self) -> float:
        """How much longer loading takes, seconds: 0 but for the kind ``slow_load``."""
        return self._fault.load_s if self._fault is not None and self._fault.kind == "slow_load" else 0.0

    def arm(self, act: Callable[[], None]) -> None:
        """The process is ready: call ``act`` when the fault comes on, at once if it is on."""
        if self._fault is None:
            return
        if self._on:
            act()
        else:
            asyncio.get_running_loop().call_later(self._fault.after_s, self._come_on, act)

    def _come_on(self, act: Callable[[], None]) -> None:
        assert self._fault is not None
        self._on = True
        log(f"fault on demand: {self._fault.kind}", "WARNING")
        act()
