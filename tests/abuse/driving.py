"""Groups of hostile inputs, and what has to hold after each (`tests.abuse.world`)."""

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from typing import Final

from tests.abuse.kinds import Run
from tests.abuse.world import Bystanders, Server, Victim

COUNT = int(os.environ["MAGNETAR_ABUSE_INPUTS"])
SEED = os.environ["MAGNETAR_ABUSE_SEED"]

# Inputs between two checks of the server. A check costs a few milliseconds, and shows which inputs did harm.
GROUP: Final = 25

# How long an answer may take before the client gives up on it; that other clients are served is checked separately.
ANSWER_S: Final = 60.0

Send = Callable[[random.Random], Awaitable[int]]
"""Sends some inputs; returns how many."""


async def abuse(
    server: Server, others: Bystanders | Victim, numbers: Run, kind: str, send: Send, count: int = COUNT
) -> None:
    group = sent = 0
    begun_at = len(others.times_ms) if isinstance(others, Victim) else 0
    while sent < count:
        rng = random.Random(f"{SEED} {kind} {group}")
        begun = sent
        while sent < min(begun + GROUP, count):
            sent += await send(rng)
        server.check(f"group {group} of {kind} (MAGNETAR_ABUSE_SEED={SEED})")
        await others.check()
        group += 1
    p99_ms = None
    if isinstance(others, Victim):
        p99_ms = await others.p99_ms(begun_at)
        assert p99_ms < Victim.P99_MAX_MS, f"during {kind} (MAGNETAR_ABUSE_SEED={SEED}) others waited {p99_ms:.0f} ms"
    numbers.add(kind, sent, server.memory_bytes, p99_ms)


async def until_closed(reader: asyncio.StreamReader) -> None:
    """Read the server's answers until no more arrive. Raises TimeoutError."""
    async with asyncio.timeout(ANSWER_S):
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                pass
