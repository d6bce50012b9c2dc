"""Waits until a condition becomes true, for as long as a busy machine may need."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Final

PATIENCE_S: Final = 30.0
"""No test asserts a time: this only ends one whose product does not go on."""


async def eventually(check: Callable[[], object | Awaitable[object]], timeout_s: float = PATIENCE_S) -> None:
    """Until *check* (may be a coroutine function) raises no AssertionError and returns something true, or nothing."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    turns = 10  # of the loop, in which it often comes about already
    while True:
        failure: AssertionError | None = None
        try:
            found = check()
            if inspect.isawaitable(found):
                found = await found
        except AssertionError as error:
            found, failure = False, error
        if found is None or found:
            return
        if loop.time() > deadline:
            raise failure or AssertionError(f"it did not come about in {timeout_s:.0f} s")
        await asyncio.sleep(0 if turns > 0 else 0.005)
        turns -= 1


async def take_turns(turns: int = 50) -> None:
    """Let the loop run what is ready, *turns* times: enough where nobody waits for a socket, a thread or a timer."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def settle(turns: int = 50) -> None:
    """Let the loop run what is ready: *turns* turns, and one check of sockets and timers."""
    await take_turns(turns)
    await asyncio.sleep(0.005)
