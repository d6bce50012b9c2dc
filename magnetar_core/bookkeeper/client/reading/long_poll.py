"""Waiting at a bookie until an open ledger is confirmed further: reads of the third protocol that the bookie holds.

    begin(ledger, ensemble, LAC) ──▶ one bookie of the ensemble waits ──▶ a larger LAC, or the time is over ──▶ told
                                        ├── it fails ──▶ the next one … all failed ──▶ a pause, without news
                                        └── it does not hold the read ──▶ a pause, the next one

What a bookie tells is a hint, to look now: it is no LAC that may be read to (the answer carries no digest of it), and
with more bookies than copies the one that was asked may not have the newest entry. Who waits looks by the clock, too.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.client.wire.questions import Questions
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.tasks import Tasks

log = logging.getLogger(__name__)

HELD_MS: Final = 5_000
"""How long a bookie holds a read."""

# After every bookie of the ensemble failed, and after one that did not hold the read.
_PAUSE_S: Final = 1.0


class _Asked(NamedTuple):
    ledger_id: int
    ensemble: tuple[str, ...]
    last_add_confirmed: int


class LongPoll:
    """Of one reader, for one ledger at a time. Used on the loop."""

    def __init__(self, pool: ConnectionPool, on_news: Callable[[], None]) -> None:
        """*told* is called when there may be news."""
        self._pool = pool
        self._told = on_news
        self._tasks = Tasks("long poll")
        self._asked: _Asked | None = None
        self._task: asyncio.Task[None] | None = None
        self._wire: Questions | None = None
        self._bookie_id = ""
        self._turn = 0
        self._pause_ends_s = 0.0

    def begin(self, ledger_id: int, ensemble: Sequence[str], last_add_confirmed: int) -> None:
        """Wait for an entry behind *last_add_confirmed*, unless that is waited for already."""
        asked = _Asked(ledger_id, tuple(ensemble), last_add_confirmed)
        if self._task is not None and not self._task.done():
            if asked == self._asked:
                return
            self._task.cancel()
        elif self._pool.clock.monotonic() < self._pause_ends_s:
            return
        self._asked = asked
        self._task = self._tasks.spawn(self._wait(asked), "wait")

    async def close(self) -> None:
        await self._tasks.cancel()
        self._hang_up()

    async def _wait(self, asked: _Asked) -> None:
        failures = 0
        while failures < len(asked.ensemble):
            bookie_id = asked.ensemble[self._turn % len(asked.ensemble)]
            held_until_s = self._pool.clock.monotonic() + HELD_MS / 1000
            try:
                if await self._ask(bookie_id, asked):
                    self._told()
                    return
                failures = 0
                await self._pool.clock.sleep(min(max(held_until_s - self._pool.clock.monotonic(), 0.0), _PAUSE_S))
            except (OSError, MetadataError, TimeoutError, MalformedFrame) as error:
                log.debug("bookie %s does not wait for ledger %d: %r", bookie_id, asked.ledger_id, error)
                self._hang_up()
                failures += 1
            self._turn += 1
        self._pause_ends_s = self._pool.clock.monotonic() + _PAUSE_S

    async def _ask(self, bookie_id: str, asked: _Asked) -> bool:
        """Whether there is news. Raises OSError, MetadataError, TimeoutError, MalformedFrame; also for a refusal."""
        if self._wire is None or self._wire.is_ended or self._bookie_id != bookie_id:
            self._hang_up()
            self._wire = await Questions.connected(self._pool, bookie_id)
            self._bookie_id = bookie_id
        request = v3.read_request(
            1, asked.ledger_id, -1, previous_lac=asked.last_add_confirmed, timeout_ms=HELD_MS, piggyback=True
        )
        async with asyncio.timeout(HELD_MS / 1000 + self._pool.config.timeout_s):
            answer = v3.parse_response(await self._wire.ask(request))
        if answer.status:
            raise OSError(f"refused with {answer.status}")
        return answer.readResponse.maxLAC > asked.last_add_confirmed

    def _hang_up(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            wire.close()
