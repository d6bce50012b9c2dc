"""The ledgers of one topic over their lives: created, listed in the record, closed, recovered, removed.

    begin ──▶ present (written by this owner) ──close_present──▶ closed ──trimmable──▶ remove
                                                                   ▲
    recover_last: what a former owner left open ───────────────────┘

Rules:

1. A ledger stands in the topic's record before anything is appended to it (I86); the one before it is closed before
   the next is written (I87).
2. How many entries a ledger has is what its own metadata says (I89); the record is put right if it differs.
3. A ledger that the record may name is not deleted (I57): where it is not known whether the record names a ledger, that
   is an orphan of the record, and is deleted after the next write that does not name it.

BookKeeper's errors leave this module as those of the managed ledger: ManagedLedgerFenced if another owner acted, else
StorageUnavailable.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, LedgerFenced, MetadataConflict, NoSuchLedger
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerError, ManagedLedgerFenced, RecordInDoubt, StorageUnavailable
from managed_ledger.ledgers.holdings import NOTHING_KNOWN
from managed_ledger.ledgers.new_ledger import new_ledger
from managed_ledger.ledgers.tails import Tails
from managed_ledger.ledgers.topic_record import TopicRecord
from managed_ledger.position import Position
from managed_ledger.reading.reading import Reading
from managed_ledger.records.offloaded import only_offloaded, what_stays
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.retention import LedgerSummary, RetentionRule, trimmable

log = logging.getLogger(__name__)


class LedgerLifecycle:
    """Begins, closes, recovers and removes the ledgers of one topic, and keeps the record true meanwhile."""

    def __init__(
        self,
        name: str,
        record: TopicRecord,
        reading: Reading,
        bookkeeper: BookKeeper,
        clock: Clock,
        config: ManagedLedgerConfig,
        check_not_ended: Callable[[], None],
        tails: Tails,
    ) -> None:
        """*check_not_ended* raises ManagedLedgerFenced or ManagedLedgerClosed once the managed ledger has ended."""
        self.config = config
        self.present: LedgerWriteHandle | None = None
        """The ledger to which entries are written now; None between two ledgers and after the end."""
        self.present_since_s = 0.0
        """When the present ledger was begun, on the monotonic clock."""
        self.created_ms = 0
        """When a ledger was last begun here, by the wall clock; 0: never."""
        self.creation_failed_ms = 0
        self._name = name
        self._record = record
        self._ledgers = record.ledgers
        self._reading = reading
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._check_not_ended = check_not_ended
        self._tails = tails
        self._tasks = Tasks(name)  # not cancelled at close

    # -------------------------------------------------------------------------- what a former owner left

    async def recover_last(self, known_records: Mapping[int, Versioned] = NOTHING_KNOWN) -> None:
        """Fence and close the last ledger, which a former owner may still be writing to. Raises StorageUnavailable,
        ManagedLedgerFenced.

        How many entries and bytes the ledger has is noted in the list; the next write of the record stores it (rule 2).
        *known_records*: records of open ledgers that were read before (`BookKeeper.open_ledger`).
        """
        infos = list(self._ledgers)
        if not infos:
            return
        last = infos[-1]
        if only_offloaded(last):
            return  # it was closed before it was moved, and its record says how many entries it has
        try:
            handle = await self._bookkeeper.open_ledger(
                last.ledgerId, password=self.config.password, recovery=True, known=known_records.get(last.ledgerId)
            )
        except NoSuchLedger:
            await self._record.check_unchanged()  # the topic may have been deleted since, and made again
            log.warning("%s: ledger %s is in its record but does not exist; leaving it out", self._name, last.ledgerId)
            self._ledgers.remove(last.ledgerId)
            return
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self._name}: cannot recover ledger {last.ledgerId}: {error}") from error
        assert handle.ledger_id == last.ledgerId, f"asked for ledger {last.ledgerId}, got {handle.ledger_id}"
        assert handle.last_add_confirmed >= -1, handle.last_add_confirmed
        last.entries = handle.last_add_confirmed + 1
        last.size = handle.length
        if not last.timestamp:
            last.timestamp = self._clock.wall_ms()
        self._ledgers.set_entries(last.ledgerId, last.entries)
        await handle.close()

    def leave_out_empty(self) -> None:
        """Leave ledgers without entries out of the record that is written next; they are deleted after that."""
        for ledger_id in [info.ledgerId for info in self._ledgers if not info.entries]:
            self._record.leave_out(ledger_id)

    # ------------------------------------------------------------------------------ the present ledger

    def create_ahead(self) -> asyncio.Task[LedgerWriteHandle]:
        """Begin to create a ledger, for `begin`, while the last one is recovered: neither waits for the other."""
        return self._tasks.spawn(self._create(), "the next ledger", awaited=True)

    def discard(self, ahead: asyncio.Task[LedgerWriteHandle]) -> None:
        """Delete a ledger that was created ahead and is not needed. Does not wait for that."""
        self._tasks.spawn(self._discard(ahead), "a ledger that is not needed")

    async def _discard(self, ahead: asyncio.Task[LedgerWriteHandle]) -> None:
        try:
            handle = await ahead
        except StorageUnavailable:
            return
        await handle.abandon()
        await self._record.drop(handle.ledger_id)

    async def _create(self) -> LedgerWriteHandle:
        """A new ledger that no record names yet. Raises StorageUnavailable."""
        try:
            return await new_ledger(self._bookkeeper, self._name, self.config)
        except StorageUnavailable:
            self.creation_failed_ms = self._clock.wall_ms()
            raise

    async def begin(self, ahead: asyncio.Task[LedgerWriteHandle] | None = None) -> LedgerWriteHandle:
        """Put a new ledger into the record; it is the present one from here on. *ahead*: from `create_ahead`.

        Raises StorageUnavailable, ManagedLedgerFenced, ManagedLedgerClosed (the managed ledger ended meanwhile).
        """
        handle = await (self._create() if ahead is None else ahead)
        info = ManagedLedgerInfo.LedgerInfo(ledgerId=handle.ledger_id, timestamp=0)
        try:
            async with self._record.lock:
                await self.write_record([*self._ledgers, info])  # rule 1
                self._ledgers.add(info)  # under the lock: a trim in between would write a record without it
            self._check_not_ended()
        except (RecordInDoubt, asyncio.CancelledError):
            self._record.orphan(handle.ledger_id)  # rule 3
            await handle.abandon()
            raise
        except ManagedLedgerError:
            await handle.abandon()
            if handle.ledger_id not in self._ledgers:
                await self._record.drop(handle.ledger_id)
            raise
        assert self.present is None, "the former ledger is closed before the next is written"
        self._write_to(handle)
        handle.follow_record()
        self.present_since_s = self._clock.monotonic()
        self.created_ms = self._clock.wall_ms()
        return handle

    def present_age_ms(self) -> int:
        """How long ago the present ledger was begun."""
        return int((self._clock.monotonic() - self.present_since_s) * 1000)

    def _write_to(self, handle: LedgerWriteHandle | None) -> LedgerWriteHandle | None:
        """Make *handle* the present ledger; returns the former one."""
        former_handle, self.present = self.present, handle
        self._reading.written = handle
        return former_handle

    async def close_present(self, *, for_ever: bool = False) -> None:
        """Close the present ledger and note its length. Does nothing if it was closed by an earlier attempt.

        An empty one leaves the record; not so *for_ever*, where no other comes: the end of an empty topic names it.
        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        handle = self.present
        if handle is None:
            return
        metadata = await self._close(handle)
        acknowledged = self._ledgers.entries_of(handle.ledger_id)
        if metadata.last_entry_id + 1 != acknowledged:
            # A recovery has found entries of which we have no acknowledgement, or less than we have.
            raise ManagedLedgerFenced(
                f"{self._name}: ledger {handle.ledger_id} was closed by another client at entry "
                f"{metadata.last_entry_id}, here the last one is {acknowledged - 1}"
            )
        self._write_to(None)
        self._reading.ledger_closed(handle.ledger_id)
        if acknowledged == 0 and not (for_ever and self._ledgers.last_confirmed.ledger_id == handle.ledger_id):
            self._record.leave_out(handle.ledger_id)
            return
        info = self._ledgers.info(handle.ledger_id)
        info.entries = acknowledged
        info.size = metadata.length
        info.timestamp = self._clock.wall_ms()

    async def _close(self, handle: LedgerWriteHandle) -> LedgerMetadata:
        """Close a ledger; returns its record. Raises ManagedLedgerFenced: somebody else has closed it;
        StorageUnavailable."""
        try:
            return await handle.close()
        except MetadataConflict as error:  # an owner, auto-recovery or a drain
            raise ManagedLedgerFenced(f"{self._name}: {error}") from error
        except LedgerFenced as error:
            raise ManagedLedgerFenced(f"{self._name}: another owner took over: {error}") from error
        except BookKeeperError as error:
            raise StorageUnavailable(f"{self._name}: cannot close ledger {handle.ledger_id}: {error}") from error

    def give_up_present(self) -> LedgerWriteHandle | None:
        """Write to no ledger any more; returns the handle, which the caller closes or abandons."""
        return self._write_to(None)

    async def close_or_abandon(self, handle: LedgerWriteHandle) -> None:
        """Close the ledger of *handle* at the end. If that fails, the next owner recovers its length."""
        try:
            await self._close(handle)
        except ManagedLedgerFenced as error:
            log.warning("%s", error)
            await self.leave(handle)
        except StorageUnavailable as error:
            log.warning("%s", error)
            await handle.abandon()

    async def leave(self, handle: LedgerWriteHandle) -> None:
        """Give up a ledger that somebody else has ended; what it lacks is saved (`tails`)."""
        acknowledged = self._ledgers.entries_of(handle.ledger_id)
        await self._tails.save(self._name, handle, acknowledged, self._record, self.config)
        await handle.abandon()

    # ------------------------------------------------------------------------------------- the record

    async def write_record(
        self,
        infos: Sequence[ManagedLedgerInfo.LedgerInfo],
        change: Callable[[ManagedLedgerInfo], None] | None = None,
    ) -> None:
        """Store *infos* as the list of ledgers, and what *change* does to the rest. The record's lock is held.

        Raises ManagedLedgerFenced, ManagedLedgerClosed, StorageUnavailable.
        """
        self._check_not_ended()
        await self._record.write(infos, change)

    async def change_record(self, change: Callable[[ManagedLedgerInfo], None] | None = None) -> None:
        """Store the record with the ledgers as they are, after *change*. Raises as `write_record`."""
        async with self._record.lock:
            await self.write_record(list(self._ledgers), change)

    # ----------------------------------------------------------------------------------------- trimming

    def trimmable(
        self,
        slowest: Callable[[], Position | None],
        bytes_total: Callable[[], int],
        retention: RetentionRule | None = None,
    ) -> list[int]:
        """Closed ledgers that may be deleted, oldest first (`managed_ledger.retention.trimmable`).

        *slowest* gives the lowest stored position of the durable cursors, *bytes_total* what the topic holds;
        *retention* is used instead of that of the configuration.
        """
        rule = self.config.retention if retention is None else retention
        # Between two ledgers the last one stays.
        staying = self._ledgers.last_id if self.present is None else self.present.ledger_id
        closed = (
            LedgerSummary(info.ledgerId, info.entries, info.size, info.timestamp)
            for info in self._ledgers.oldest_first()
            if info.ledgerId != staying and info.HasField("entries")
        )
        return trimmable(closed, slowest, rule, self._clock.wall_ms(), bytes_total() if rule.bytes_max > 0 else 0)

    async def remove(self, ledger_ids: Collection[int]) -> None:
        """Take ledgers out of the record and the list; the caller deletes them after that. The record's lock is held.

        Raises as `write_record`.
        """
        left_behind = what_stays(info for info in self._ledgers if info.ledgerId in ledger_ids)
        await self.write_record([info for info in self._ledgers if info.ledgerId not in ledger_ids])
        for ledger_id in ledger_ids:
            self._ledgers.remove(ledger_id)
        for place in left_behind:
            log.warning("%s: what was offloaded of a ledger that is removed stays there: %s", self._name, place)
