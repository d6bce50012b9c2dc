"""What the opening of topics will need, got before this process owns them: reads, and ledgers that nobody names yet.

    the topic's record ──▶ the record of its last ledger      read
    the next ledger                                           created

Rules:

1. The owner, if it lives, is not disturbed: nothing is fenced, closed or replaced.
2. What was read may be old when it is used. The topic's record is read again by whoever opens it: the topic may have
   been deleted and made anew. A ledger's record is replaced only in the version that was read, and ids of ledgers are
   not used twice.
3. Cursors are not prepared: an old list of them would hide a new one, and nothing would tell.
4. A ledger that was prepared and not used is deleted, unless this process dies first.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.store import MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt
from magnetar_core.runtime.types import Corruption
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.names import ledger_path
from managed_ledger.new_ledger import new_ledger
from managed_ledger.records import decode_ledger_info

log = logging.getLogger(__name__)

# Topics that are prepared and not opened yet. Each has a ledger's record in the metadata store and some KB here; a
# broker that has more to take over opens the rest without preparation.
PREPARED_MAX: Final = 10_000

# What is not used by then is given up: the owner was not dead. Above the 20 s that lookups wait for a dead owner.
PREPARED_S: Final = 30.0

# How long closing waits for ledgers that are not needed to be deleted.
CLOSE_S: Final = 3.0

# Topics that are prepared at the same time, so that those that are served go on; many of them go to the metadata store
# in one request.
PREPARING_AT_ONCE: Final = 128


class Prepared(NamedTuple):
    """For one topic."""

    config: ManagedLedgerConfig
    """The settings with which the ledger was created."""
    open: dict[int, Versioned]
    """The record of the last ledger by its id, if it was open and was read."""
    ahead: asyncio.Task[LedgerWriteHandle]
    """The next ledger; it is there."""

    def may_follow(self, ledger_ids: Iterable[int]) -> bool:
        """Whether the ledger may come behind those of the topic: positions grow with the ids of ledgers."""
        return self.ahead.result().ledger_id > max(ledger_ids, default=-1)


class Preparations:
    """The prepared topics of one process. Failures are logged and cost time, nothing else."""

    def __init__(self, bookkeeper: BookKeeper, store: MetadataStore, clock: Clock) -> None:
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._tasks = Tasks("preparing topics")
        self._slots = asyncio.Semaphore(PREPARING_AT_ONCE)
        self._prepared: dict[str, asyncio.Task[Prepared | None]] = {}

    @property
    def names(self) -> list[str]:
        return list(self._prepared)

    def begin(self, name: str, config: ManagedLedgerConfig, *, is_dead: bool = True) -> None:
        """Prepare a topic, unless that is done or under way. Does not wait.

        Not *is_dead*: its owner will close the last ledger, so the record of that is not read.
        """
        if name not in self._prepared and len(self._prepared) < PREPARED_MAX:
            task = self._prepared[name] = self._tasks.spawn(self._prepare(name, config, is_dead), f"prepare {name}")
            self._clock.call_later(PREPARED_S, lambda: self._give_up(name, task))

    async def take(self, name: str, config: ManagedLedgerConfig) -> Prepared | None:
        """What is prepared for the opening that begins now; None: nothing, or it does not fit the settings *config*."""
        task = self._prepared.pop(name, None)
        if task is None:
            return None
        await asyncio.wait([task])
        prepared = None if task.cancelled() else task.result()
        if prepared is not None and prepared.config != config:
            self._tasks.spawn(self._discard(prepared), f"discard what was prepared for {name}")
            return None
        return prepared

    async def close(self) -> None:
        """Give up all that is prepared."""
        for name, task in list(self._prepared.items()):
            self._give_up(name, task)
        deadline = self._clock.monotonic() + CLOSE_S
        while len(self._tasks) and self._clock.monotonic() < deadline:
            await self._clock.sleep(0.01)
        await self._tasks.cancel()

    def _give_up(self, name: str, task: asyncio.Task[Prepared | None]) -> None:
        if self._prepared.get(name) is task:
            del self._prepared[name]
            self._tasks.spawn(self._discard_when_done(task), f"discard what was prepared for {name}")

    async def _discard_when_done(self, task: asyncio.Task[Prepared | None]) -> None:
        await asyncio.wait([task])
        prepared = None if task.cancelled() else task.result()
        if prepared is not None:
            await self._discard(prepared)

    async def _prepare(self, name: str, config: ManagedLedgerConfig, is_dead: bool) -> Prepared | None:
        async with self._slots:
            try:
                node = await self._store.get(ledger_path(name))
                if node is None:
                    return None
                info = decode_ledger_info(node.value, name)
                if info.HasField("terminatedPosition"):
                    return None  # it gets no further ledger
                ahead = self._tasks.spawn(new_ledger(self._bookkeeper, name, config), "the next ledger", awaited=True)
                last_id = info.ledgerInfo[-1].ledgerId if is_dead and info.ledgerInfo else None
                found = {} if last_id is None else await self._open_record(last_id)
                await asyncio.wait([ahead])
            except (MetadataError, BookKeeperError, Corruption) as error:
                log.info("%s is not prepared: %s", name, error)
                return None
            if ahead.exception() is not None:
                log.info("%s is not prepared: %s", name, ahead.exception())
                return None
            return Prepared(config, found, ahead)

    async def _open_record(self, ledger_id: int) -> dict[int, Versioned]:
        """Nothing for a closed ledger: whoever opens it reads where its entries are now."""
        versioned = await self._bookkeeper.record_of(ledger_id)
        return {} if versioned.metadata.is_closed else {ledger_id: versioned}

    async def _discard(self, prepared: Prepared) -> None:
        handle = await prepared.ahead
        await handle.abandon()
        if await attempt("a ledger that is not needed", self._bookkeeper.delete_ledger(handle.ledger_id)) is FAILED:
            log.info("ledger %d is left: it has no entries, and nothing names it", handle.ledger_id)
