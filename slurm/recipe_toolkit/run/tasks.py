"""Small helpers over asyncio; Python 3.10 has neither TaskGroup nor timeout()."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

_AGAIN_S = 1.0


async def race(*coroutines: Coroutine[Any, Any, Any]) -> Any:
    """Run all until the first ends; the others are cancelled. Its result, or its exception."""
    tasks = [asyncio.ensure_future(item) for item in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancel(*tasks)
    # Of several that ended at once, one that failed counts.
    failed = [task for task in done if not task.cancelled() and task.exception() is not None]
    return (failed or list(done))[0].result()


async def together(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all to their end; when one fails the others are cancelled and its exception is raised."""
    tasks = [asyncio.ensure_future(item) for item in coroutines]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await cancel(*tasks)


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and wait until they are over; their own errors are not ours.

    Before Python 3.12 ``asyncio.wait_for`` loses a cancellation that comes in the moment in which what it waits for
    ends (cpython's issue 86296), and a task that goes round in circles would then do so for ever: it is told again.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)
