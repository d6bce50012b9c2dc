"""What the opening of topics will need, fetched before this process owns them: reads, and ledgers without a name yet.

    the topic's record ──▶ the record of its last ledger      read
    the next ledger                                           created

    where the owner's process is gone for certain: the last ledger is fenced and closed, too (`recover`)

    with holdings (`managed_ledger.ledgers.holdings`): the records of its last ledger and of its cursors' ledgers are
    read at once, side by side, and the topic's record is not: whoever opens the topic reads it

Rules:

1. The owner, if it lives, is not disturbed: nothing is fenced, closed or replaced, but by `recover`. Only the ledger
   that the topic's record names is closed there, never one that is only in an owner's holdings. If the owner was alive
   after all, it is fenced as by any successor, and opens its topic again.
2. What was read may be old when it is used. The topic's record is read again by whoever opens it: the topic may have
   been deleted and made anew. A ledger's record is replaced only in the version that was read, and ids of ledgers are
   not used twice.
3. The list of cursors and their nodes are not read: an old list would hide a new cursor, and nobody would notice. The
   record of a cursor's ledger is used as that of the last ledger is: recovery replaces it only in the version that was
   read.
4. A ledger that was prepared and not used is deleted, unless this process dies first.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt
from magnetar_core.runtime.types import Corruption
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.ledgers.holdings import Holdings
from managed_ledger.ledgers.new_ledger import new_ledger
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_ledger_info

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
    """What was prepared for one topic."""

    config: ManagedLedgerConfig
    """The settings with which the ledger was created."""
    open: dict[int, Versioned]
    """The records of its last ledger and of its cursors' ledgers, by id, as far as they were open and were read."""
    ahead: asyncio.Task[LedgerWriteHandle]
    """The next ledger; it is there."""

    def without_ledger(self, ledger_id: int | None) -> "Prepared":
        """The same without the record of *ledger_id*, which is closed by now."""
        return self._replace(open={open_id: record for open_id, record in self.open.items() if open_id != ledger_id})

    def may_follow(self, ledger_ids: Iterable[int]) -> bool:
        """Whether the ledger may come behind those of the topic: positions grow with the ids of ledgers."""
        return self.ahead.result().ledger_id > max(ledger_ids, default=-1)


class _Recovery:
    """The recovery of a topic's last ledger, which may still wait for its turn."""

    __slots__ = ("has_begun", "task")

    def __init__(self) -> None:
        self.has_begun = False
        self.task: asyncio.Task[int | None] | None = None


class Preparations:
    """The prepared topics of one process. Failures are logged and cost time, nothing else."""

    def __init__(self, bookkeeper: BookKeeper, store: MetadataStore, clock: Clock) -> None:
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._tasks = Tasks("preparing topics")
        self._slots = asyncio.Semaphore(PREPARING_AT_ONCE)
        self._prepared: dict[str, asyncio.Task[Prepared | None]] = {}
        self._recoveries: dict[str, _Recovery] = {}

    @property
    def names(self) -> list[str]:
        return list(self._prepared)

    def begin(
        self, name: str, config: ManagedLedgerConfig, *, is_dead: bool = True, held: Holdings | None = None
    ) -> None:
        """Prepare a topic, unless that is done or under way. Does not wait.

        Not *is_dead*: its owner will close its ledgers, so the records of those are not read. *held*: the
        holdings that its owner has announced; None: there are none.
        """
        if name not in self._prepared and len(self._prepared) < PREPARED_MAX:
            work = self._prepare(name, config, is_dead, held)
            task = self._prepared[name] = self._tasks.spawn(work, f"prepare {name}")
            self._clock.call_later(PREPARED_S, lambda: self._give_up(name, task))

    def recover(self, name: str, config: ManagedLedgerConfig) -> None:
        """Fence and close the last ledger of a topic whose owner is gone, as its opening would, unless that is done or
        under way. Does not wait.

        Only for an owner whose process is known to be gone: rule 1.
        """
        if name in self._recoveries or len(self._recoveries) >= PREPARED_MAX:
            return
        recovery = self._recoveries[name] = _Recovery()
        recovery.task = self._tasks.spawn(self._recover(recovery, name, config), f"recover {name}")
        self._clock.call_later(PREPARED_S, lambda: self._forget_recovery(name, recovery))

    def _forget_recovery(self, name: str, recovery: _Recovery) -> None:
        if self._recoveries.get(name) is recovery:
            del self._recoveries[name]

    async def _finish_recovery(self, name: str) -> int | None:
        """Wait for a recovery that is under way; one that waits for its turn is left to the opening. Returns the
        ledger that it has closed; None: there is none."""
        recovery = self._recoveries.pop(name, None)
        if recovery is None or recovery.task is None:
            return None
        if not recovery.has_begun:
            recovery.task.cancel()
        await asyncio.wait([recovery.task])
        return None if recovery.task.cancelled() else recovery.task.result()

    async def _recover(self, recovery: _Recovery, name: str, config: ManagedLedgerConfig) -> int | None:
        """Close the last ledger of a topic; returns its id, or None if it could not be closed."""
        async with self._slots:
            recovery.has_begun = True
            try:
                for ledger_id in await self._recovered_ledgers(name) or ():
                    handle = await self._bookkeeper.open_ledger(ledger_id, password=config.password, recovery=True)
                    await handle.close()
                    return ledger_id
            except (MetadataError, BookKeeperError, Corruption) as error:
                log.info("the last ledger of %s is not recovered ahead: %s", name, error)
            return None

    async def take(self, name: str, config: ManagedLedgerConfig) -> Prepared | None:
        """What is prepared for the opening that begins now; None: nothing, or it does not fit the settings *config*."""
        closed = await self._finish_recovery(name)
        prepared = await self._take_prepared(name, config)
        return None if prepared is None else prepared.without_ledger(closed)

    async def _take_prepared(self, name: str, config: ManagedLedgerConfig) -> Prepared | None:
        """What was prepared for *name*; None: nothing, or it was made with other settings."""
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

    async def _prepare(
        self, name: str, config: ManagedLedgerConfig, is_dead: bool, held: Holdings | None
    ) -> Prepared | None:
        """Create the next ledger, and read the records of those that are open. None: that failed, or there is no such
        topic.

        *held*: what the former owner said of its ledgers, which saves reading the record; not *is_dead*: its records
        still change.
        """
        async with self._slots:
            try:
                ledger_ids = await self._recovered_ledgers(name) if held is None else held.ledger_ids
                if ledger_ids is None:
                    return None
                ahead = self._tasks.spawn(new_ledger(self._bookkeeper, name, config), "the next ledger", awaited=True)
                records = await self._open_records(ledger_ids) if is_dead else {}
                await asyncio.wait([ahead])
            except (MetadataError, BookKeeperError, Corruption) as error:
                log.info("%s is not prepared: %s", name, error)
                return None
            if ahead.exception() is not None:
                log.info("%s is not prepared: %s", name, ahead.exception())
                return None
            return Prepared(config, records, ahead)

    async def _recovered_ledgers(self, name: str) -> list[int] | None:
        """The last ledger of a topic, by its record; None: the topic is not there, or gets no further ledger.

        Raises MetadataError, Corruption.
        """
        node = await self._store.get(ledger_path(name))
        if node is None:
            return None
        info = decode_ledger_info(node.value, name)
        return None if info.HasField("terminatedPosition") else [info.ledgerId for info in info.ledgerInfo[-1:]]

    async def _open_records(self, ledger_ids: Iterable[int]) -> dict[int, Versioned]:
        """The records of those that are open: the opening of a topic reads where the entries of closed ledgers are now.

        A record that cannot be read is left out: the opening of the topic reads it again, if it needs it.
        """
        ids = list(dict.fromkeys(ledger_ids))
        read = await asyncio.gather(*map(self._bookkeeper.record_of, ids), return_exceptions=True)
        records: dict[int, Versioned] = {}
        for ledger_id, answer in zip(ids, read, strict=True):
            if isinstance(answer, Versioned):
                if not answer.metadata.is_closed:
                    records[ledger_id] = answer
            elif not isinstance(answer, BookKeeperError):
                raise answer
        return records

    async def _discard(self, prepared: Prepared) -> None:
        handle = await prepared.ahead
        await handle.abandon()
        if await attempt("a ledger that is not needed", self._bookkeeper.delete_ledger(handle.ledger_id)) is FAILED:
            log.info("ledger %d is left: it has no entries, and nothing names it", handle.ledger_id)
