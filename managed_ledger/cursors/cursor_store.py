"""Stores a cursor's state: in its metadata node, and while it is in use in a cursor ledger.

    node   cursorsLedgerId = -1, position, ranges, batches     a cursor that was closed in order, or never moved
    node   cursorsLedgerId =  L, position (a lower bound),     in use: the last entry of ledger L is the state
           properties as they were then

Rules:

1. Each entry of a cursor ledger is the whole state. The order of writes when a new ledger is begun: create it, add the
   state, then switch the node, then delete the former ledger; a crash between any two leaves a state that is complete.
2. If the state in the ledger is lost, that of the node is used: position and properties of one earlier moment.
   Messages are delivered again, and none is lost (I95). With `forces_recovery` also if it cannot be read now.
3. Without a ledger to write to, the state goes into the node.
4. The node is written only by the topic's owner: before each switch the topic's record is checked for another owner.
   A former owner may have its cursor ledger fenced and still hold the newest version of the node.
5. A former owner that checked before the takeover may write its node after the new owner has read it. That state is
   older: while the topic's record is ours, the node is overwritten, and a ledger that only it named is deleted.
6. A ledger that is being begun when the topic is lost, or the caller is cancelled, is named or deleted: nobody else
   knows of it. So its beginning comes to an end also when nobody waits for it any more.

(As Apache's `ManagedCursorImpl`.)
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption
from managed_ledger.ack_ranges import AckRange
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import (
    CursorExists,
    CursorNotFound,
    ManagedLedgerClosed,
    ManagedLedgerFenced,
    MetadataWentBack,
    RecordInDoubt,
    StorageUnavailable,
)
from managed_ledger.ledgers.delayed_buckets import INTERNAL_PREFIX, delete_buckets
from managed_ledger.ledgers.holdings import NOTHING_KNOWN
from managed_ledger.position import Position
from managed_ledger.records.pulsar_records import (
    batches_in,
    decode_cursor_info,
    decode_position_info,
    encode_record,
    position_info,
    put_state_into,
    ranges_in,
)
from managed_ledger.records.records_pb2 import ManagedCursorInfo, PositionInfo
from managed_ledger.records.versioned_record import VersionedRecord

log = logging.getLogger(__name__)

NO_LEDGER = -1

# What batches acknowledged in part may take of a state in a cursor ledger. It is one entry, and 5 MiB at most.
BATCHES_BYTES: Final = 4 * 1024 * 1024

# A state as a whole, which is an entry of 5 MiB at most: with more, half of the ranges are left out, until it fits.
STATE_BYTES: Final = 4_800_000

# The same in a node, whose value has 1 MB at most.
BATCHES_IN_NODE_BYTES: Final = 512 * 1024

# What a batch takes at most: its position, and each word of its bits.
_BATCH_BYTES: Final = 40
_WORD_BYTES: Final = 11


class CursorSnapshot(NamedTuple):
    """The state of a cursor at one moment."""

    mark_delete_position: Position
    ranges: list[AckRange]
    batches: list[tuple[Position, list[int]]]
    properties: dict[str, int]
    idle_since_ms: int = 0
    """Since when no consumer is attached, ms since 1970; 0 while there are some."""


@dataclass(slots=True)
class CursorCounts:
    """What was stored and read of one cursor's state since it was opened."""

    ledger_writes: int = 0
    """States that are in a cursor ledger."""
    ledger_failures: int = 0
    node_writes: int = 0
    """States that went into the node instead of a ledger."""
    node_failures: int = 0
    written_bytes: int = 0
    """Bytes that were written to cursor ledgers, counted once and not for each copy."""
    read_bytes: int = 0

    @property
    def stored(self) -> int:
        return self.ledger_writes + self.node_writes


class CursorStore:
    """Loads and stores the state of one cursor. Calls do not overlap: the cursor makes one at a time."""

    def __init__(
        self,
        *,
        topic: str,
        cursor: str,
        path: str,
        bookkeeper: BookKeeper,
        store: MetadataStore,
        clock: Clock,
        config: ManagedLedgerConfig,
        check_owner: Callable[[], Awaitable[None]],
    ) -> None:
        """*check_owner* raises ManagedLedgerFenced if the topic has another owner now (rule 4)."""
        self._topic = topic
        self._cursor = cursor
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._config = config
        self._check_owner = check_owner
        self._record = VersionedRecord(store, path)
        self._handle: LedgerWriteHandle | None = None
        self._handle_since = 0.0
        # Ledgers that the node may name, as far as is known. Nearly always none.
        self._in_doubt: tuple[int, ...] = ()
        self._undeleted: dict[int, None] = {}
        """Ledgers that nothing refers to and that could not be deleted: tried again with the next one."""
        self._beginning: asyncio.Task[None] | None = None
        """A ledger is being begun; maybe nobody waits for it."""
        self._is_abandoned = False
        self.ledger_id = NO_LEDGER
        self.counts = CursorCounts()
        self.switched_ms = clock.wall_ms()
        """When it was opened, or when it last began a ledger after that."""
        self.string_properties: dict[str, str] = {}

    @property
    def ledger_last_entry(self) -> int:
        return self._handle.last_add_confirmed if self._handle is not None else -1

    async def create(self, position: Position, properties: Mapping[str, int], texts: Mapping[str, str]) -> None:
        """Make the node of a new cursor. Raises CursorExists, StorageUnavailable."""
        self.string_properties = dict(texts)
        try:
            await self._record.write(
                self._node(CursorSnapshot(position, [], [], dict(properties)), NO_LEDGER, whole=True)
            )
        except ManagedLedgerFenced:
            raise CursorExists(f"cursor {self._cursor} of {self._topic} exists") from None

    async def load(self, first: Position, known_records: Mapping[int, Versioned] = NOTHING_KNOWN) -> CursorSnapshot:
        """The stored state. Raises CursorNotFound, Corruption, StorageUnavailable.

        *known_records*: records of open ledgers that were read before (`BookKeeper.open_ledger`). If the cursor ledger
        is gone, empty or damaged, the result is what the node says (rule 2), or *first* if that is later.
        """
        value = await self._record.read()
        if value is None:
            raise CursorNotFound(f"cursor {self._cursor} of {self._topic} does not exist")
        info = decode_cursor_info(value, f"cursor {self._cursor} of {self._topic}")
        self.string_properties = {item.name: item.value for item in info.cursorProperties}
        self.ledger_id = info.cursorsLedgerId
        if info.cursorsLedgerId == NO_LEDGER:
            return snapshot_of(Position(info.markDeleteLedgerId, info.markDeleteEntryId), info)
        state = await self._last_state(info.cursorsLedgerId, known_records.get(info.cursorsLedgerId))
        if state is not None:
            return snapshot_of(Position(state.ledgerId, state.entryId), state)
        position = max(first, Position(info.markDeleteLedgerId, info.markDeleteEntryId))
        log.warning("cursor %s of %s: its ledger %s holds no state; continuing from %s", self._cursor, self._topic,
                    info.cursorsLedgerId, position)  # fmt: skip
        return snapshot_of(position, info)._replace(idle_since_ms=0)  # somebody may have consumed since

    async def _last_state(self, ledger_id: int, known_record: Versioned | None) -> PositionInfo | None:
        """The last entry of the cursor's ledger; None: there is none that can be read (rule 2). Raises
        StorageUnavailable."""
        try:
            handle = await self._bookkeeper.open_ledger(
                ledger_id, password=self._config.password, recovery=True, known=known_record
            )
        except NoSuchLedger:
            return None
        except BookKeeperError as error:
            if self._config.forces_recovery:
                self._report_forced(ledger_id, error)
                return None
            raise StorageUnavailable(f"cannot open ledger {ledger_id} of cursor {self._cursor}: {error}") from error
        try:
            assert handle.ledger_id == ledger_id, f"asked for ledger {ledger_id}, got {handle.ledger_id}"
            if handle.last_add_confirmed < 0:
                return None
            last = handle.last_add_confirmed
            entries = await handle.read(last, last)
            assert entries[0].entry_id == last, (entries[0].entry_id, last)
            self.counts.read_bytes += len(entries[0].payload)
            return decode_position_info(entries[0].payload, f"ledger {ledger_id} of cursor {self._cursor}")
        except (NoSuchEntry, NoSuchLedger, Corruption) as error:  # no replica has it, or none is whole: rule 2
            log.error("cursor %s of %s: its last state is lost: %s", self._cursor, self._topic, error)
            return None
        except BookKeeperError as error:
            if self._config.forces_recovery:
                self._report_forced(ledger_id, error)
                return None
            raise StorageUnavailable(f"cannot read ledger {ledger_id} of cursor {self._cursor}: {error}") from error
        finally:
            await handle.close()

    def _report_forced(self, ledger_id: int, error: BookKeeperError) -> None:
        log.error("cursor %s of %s: recovered without its ledger %s, which cannot be read "
                  "(managedLedgerForceRecovery): %s", self._cursor, self._topic, ledger_id, error)  # fmt: skip

    async def persist(self, snapshot: CursorSnapshot) -> None:
        """Store *snapshot*; on return it survives. Raises ManagedLedgerFenced, ManagedLedgerClosed (it was abandoned
        meanwhile), StorageUnavailable."""
        await self._until_begun()
        snapshot, state = self._state_of(snapshot)
        if self._handle is not None and not self._is_used_up(self._handle):
            try:
                await self._handle.add(state)
                self._count_written(state)
                return
            except BookKeeperError as error:
                self.counts.ledger_failures += 1
                log.warning("cursor %s of %s: writing to ledger %s failed (%s); beginning another one",
                            self._cursor, self._topic, self.ledger_id, error)  # fmt: skip
        await self._check_owner()
        self._beginning = asyncio.ensure_future(self._begin_ledger(snapshot, state))
        self._beginning.add_done_callback(self._on_begun)
        try:
            await asyncio.shield(self._beginning)  # rule 6
        except BookKeeperError as error:
            self.counts.ledger_failures += 1
            log.warning("cursor %s of %s: no ledger for it (%s); its state goes into its node",
                        self._cursor, self._topic, error)  # fmt: skip
            await self._put_into_node(self._part_for_node(snapshot))
        await self._check_owner()  # an owner that took over since the first check has read the node before this write

    def _state_of(self, snapshot: CursorSnapshot) -> tuple[CursorSnapshot, bytes]:
        """What of *snapshot* fits into an entry of a cursor ledger, and the entry. The rest is delivered again."""
        snapshot = self._part_that_fits(snapshot, self._config.cursor_ranges_max, BATCHES_BYTES)
        while True:
            state = position_info(
                snapshot.mark_delete_position,
                snapshot.ranges,
                snapshot.properties.items(),
                snapshot.batches,
                as_words=self._config.cursor_words,
                idle_since_ms=snapshot.idle_since_ms,
            ).SerializeToString()
            if len(state) <= STATE_BYTES or not snapshot.ranges:
                return snapshot, state
            snapshot = snapshot._replace(ranges=snapshot.ranges[: len(snapshot.ranges) // 2])

    def _count_written(self, state: bytes) -> None:
        self.counts.ledger_writes += 1
        self.counts.written_bytes += len(state)

    async def set_texts(self, texts: Mapping[str, str], snapshot: CursorSnapshot) -> None:
        """Replace the properties that are texts, which stand in the node. Those that belong to brokers stay.

        *snapshot* is the state at this moment, which the node then has as well (as a lower bound beside a ledger).
        Raises ManagedLedgerFenced, StorageUnavailable.
        """
        await self._until_begun()
        snapshot = self._part_for_node(snapshot)
        await self._check_owner()
        former_texts = self.string_properties
        internal_texts = {name: text for name, text in former_texts.items() if name.startswith(INTERNAL_PREFIX)}
        self.string_properties = {**texts, **internal_texts}
        try:
            await self._write_node(snapshot, self.ledger_id, whole=self.ledger_id == NO_LEDGER)
        except BaseException:
            self.string_properties = former_texts
            raise

    def _is_used_up(self, handle: LedgerWriteHandle) -> bool:
        age_s = self._clock.monotonic() - self._handle_since
        return (
            handle.last_add_confirmed + 1 >= self._config.cursor_ledger_entries_max
            or age_s > self._config.cursor_ledger_age_max_s
        )

    def _on_begun(self, task: asyncio.Task[None]) -> None:
        """The task that began a ledger has ended."""
        self._beginning = None
        if not task.cancelled():
            task.exception()  # retrieved: the caller may have been cancelled

    async def _until_begun(self) -> None:
        """Wait for what a caller has begun that was cancelled."""
        if self._beginning is not None:
            await asyncio.wait([self._beginning])

    async def _begin_ledger(self, snapshot: CursorSnapshot, state: bytes) -> None:
        """Raises BookKeeperError (there is no new ledger), ManagedLedgerFenced, ManagedLedgerClosed,
        StorageUnavailable."""
        former_id = self.ledger_id
        await self.release()
        handle = await self._bookkeeper.create_ledger(
            ensemble_size=self._config.ensemble_size,
            write_quorum=self._config.write_quorum,
            ack_quorum=self._config.ack_quorum,
            digest_type=self._config.digest_type,
            password=self._config.password,
            custom_metadata=(
                ("application", b"pulsar"),
                ("component", b"managed-ledger"),
                ("pulsar/cursor", self._cursor.encode()),
                ("pulsar/managed-ledger", self._topic.encode()),
                *self._config.placement,
            ),
        )
        try:
            self._check_not_abandoned()
            await handle.add(state)
            self._check_not_abandoned()
            await self._write_node(snapshot, handle.ledger_id, whole=False)
        except RecordInDoubt:
            await handle.abandon()
            self._in_doubt += (handle.ledger_id,)  # the node may name it: it stays until the node is known again (I57)
            raise
        except (BookKeeperError, ManagedLedgerFenced, ManagedLedgerClosed, StorageUnavailable):
            await handle.abandon()
            await self._delete_ledger(handle.ledger_id)
            raise
        assert self._handle is None, "one state of a cursor is stored at a time"
        self._count_written(state)
        if self._is_abandoned:
            await handle.abandon()
        else:
            self._handle = handle
        self._handle_since = self._clock.monotonic()
        self.switched_ms = self._clock.wall_ms()
        if former_id != NO_LEDGER:
            await self._delete_ledger(former_id)

    def _check_not_abandoned(self) -> None:
        if self._is_abandoned:
            raise ManagedLedgerClosed(f"cursor {self._cursor} of {self._topic} is closed")

    def abandon(self) -> None:
        """Begin nothing more: the topic is another one's."""
        self._is_abandoned = True

    async def release(self) -> None:
        """Give up the handle of the cursor ledger; nothing is written to it any more."""
        handle, self._handle = self._handle, None
        if handle is not None:
            await handle.abandon()

    async def close(self, snapshot: CursorSnapshot) -> None:
        """Store the state in the node, so that the next owner need not recover a ledger (a large one: in a ledger)."""
        await self._until_begun()
        snapshot = self._part_that_fits(snapshot, self._config.cursor_ranges_max, BATCHES_BYTES)
        if snapshot != self._part_for_node(snapshot):
            await self.persist(snapshot)
            if self._handle is not None:
                await self._handle.close()
            return
        await self._check_owner()
        await self._put_into_node(snapshot)

    def _part_for_node(self, snapshot: CursorSnapshot) -> CursorSnapshot:
        return self._part_that_fits(snapshot, self._config.cursor_ranges_in_node_max, BATCHES_IN_NODE_BYTES)

    def _part_that_fits(self, snapshot: CursorSnapshot, ranges_max: int, batches_bytes: int) -> CursorSnapshot:
        """What is stored of *snapshot*: its first ranges and batches. What lies behind is delivered again."""
        count = 0
        for _, words in snapshot.batches[: self._config.cursor_batches_max]:
            batches_bytes -= _BATCH_BYTES + _WORD_BYTES * len(words)
            if batches_bytes < 0:
                break
            count += 1
        return snapshot._replace(ranges=snapshot.ranges[:ranges_max], batches=snapshot.batches[:count])

    async def _put_into_node(self, snapshot: CursorSnapshot) -> None:
        """Store the state in the node alone; the ledger that had it is deleted. Raises ManagedLedgerFenced,
        StorageUnavailable."""
        former_id = self.ledger_id
        await self.release()
        try:
            await self._write_node(snapshot, NO_LEDGER, whole=True)
        except (ManagedLedgerFenced, StorageUnavailable):
            self.counts.node_failures += 1
            raise
        self.counts.node_writes += 1
        if former_id != NO_LEDGER:
            await self._delete_ledger(former_id)

    async def delete(self) -> None:
        """Remove the cursor: its node first, then its ledger. Raises ManagedLedgerFenced, StorageUnavailable.

        What only its properties name goes before the node, after which nothing would know of it.
        """
        await self._until_begun()
        await self._delete_buckets()
        unused_ledgers = await self._change_node(self._record.delete) | {*self._in_doubt}
        await self.release()
        for ledger_id in unused_ledgers | self._undeleted.keys() | ({self.ledger_id} - {NO_LEDGER}):
            await self._delete_ledger(ledger_id)

    async def _delete_buckets(self) -> None:
        """Delete the ledgers in which an Apache broker keeps delayed messages. Raises StorageUnavailable,
        ManagedLedgerFenced."""
        if not self.string_properties:
            return
        await self._check_owner()
        try:
            await delete_buckets(self._bookkeeper, self._topic, self.string_properties)
        except BookKeeperError as error:
            what = f"cannot delete what cursor {self._cursor} of {self._topic} keeps of delayed messages"
            raise StorageUnavailable(f"{what}: {error}") from error

    async def _write_node(self, snapshot: CursorSnapshot, ledger_id: int, *, whole: bool) -> None:
        """Raises ManagedLedgerFenced, StorageUnavailable."""
        value = self._node(snapshot, ledger_id, whole=whole)
        unused_ledgers = await self._change_node(lambda: self._record.write(value))
        former_id, self.ledger_id = self.ledger_id, ledger_id
        unused_ledgers |= {*self._in_doubt}
        self._in_doubt = ()
        for named in unused_ledgers - {former_id}:  # the caller deletes the former one after the switch
            await self._delete_ledger(named)

    async def _change_node(self, change: Callable[[], Awaitable[None]]) -> set[int]:
        """Make *change*, also if a former owner wrote the node after we had read it (rule 5).

        Returns the ledgers that only the former owner's node named. If the former owner has deleted the node, this
        raises ManagedLedgerFenced, and the next opening of the topic finds no such cursor.
        """
        unused_ledgers: set[int] = set()
        while True:
            try:
                await change()
            except MetadataWentBack:
                raise  # this is not a former owner's late write
            except ManagedLedgerFenced:
                # First read the node, then ask for another owner. An owner that takes over after the question writes
                # the node, and our next write is a conflict. In the other order we might read what that owner has
                # written, and write over it.
                value = await self._record.read()
                await self._check_owner()
                if value is None:
                    raise
                log.warning("cursor %s of %s: a former owner wrote its node late; writing over it",
                            self._cursor, self._topic)  # fmt: skip
                unused_ledgers |= self._ledger_in(value)
            else:
                return unused_ledgers

    def _ledger_in(self, value: bytes) -> set[int]:
        try:
            info = decode_cursor_info(value, f"cursor {self._cursor} of {self._topic}")
        except Corruption as error:
            log.warning("%s", error)
            return set()
        return {info.cursorsLedgerId} - {NO_LEDGER}

    def _node(self, snapshot: CursorSnapshot, ledger_id: int, *, whole: bool) -> bytes:
        """The record of the node: with the *whole* state, or with a position beside the ledger that has the state."""
        assert whole == (ledger_id == NO_LEDGER), "the node has the whole state only where no ledger has it"
        info = ManagedCursorInfo(
            cursorsLedgerId=ledger_id,
            markDeleteLedgerId=snapshot.mark_delete_position.ledger_id,
            markDeleteEntryId=snapshot.mark_delete_position.entry_id,
            lastActive=self._clock.wall_ms(),
        )
        if whole:
            put_state_into(info, snapshot.ranges, snapshot.properties.items(), snapshot.batches)
            if snapshot.idle_since_ms:
                info.idleSince = snapshot.idle_since_ms
        else:
            put_state_into(info, (), snapshot.properties.items(), ())
        for name, value in self.string_properties.items():
            info.cursorProperties.add(name=name, value=value)
        return encode_record(info, self._config.cursor_compression, self._config.cursor_compression_bytes)

    async def _delete_ledger(self, ledger_id: int) -> None:
        """Delete a ledger that nothing refers to any more; one that could not be deleted goes with the next."""
        ledgers_to_delete, self._undeleted = [*self._undeleted, ledger_id], {}
        for dropped_id in ledgers_to_delete:
            try:
                await self._bookkeeper.delete_ledger(dropped_id)
            except NoSuchLedger:
                pass
            except BookKeeperError as error:
                self._undeleted[dropped_id] = None
                log.warning("ledger %s of cursor %s is not deleted yet: %s", dropped_id, self._cursor, error)


def snapshot_of(position: Position, info: PositionInfo | ManagedCursorInfo) -> CursorSnapshot:
    """The state that a record holds, with the position that it is for."""
    properties = {item.name: item.value for item in info.properties}
    idle_since_ms = max(info.idleSince, 0)
    return CursorSnapshot(position, list(ranges_in(info)), list(batches_in(info)), properties, idle_since_ms)
