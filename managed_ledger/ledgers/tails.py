"""What an owner acknowledged and its ledger does not have, since somebody else ended the ledger before that.

A writer notices in time that its ledger was ended (`magnetar_core.bookkeeper.client.deciding.belief`). This is for
the unforeseen: bookies that lost what they had acknowledged. Then only the topic's former owner still has it.

    the ledger's record says: closed at 4;  acknowledged: up to 7
    5, 6, 7 from memory or the bookies that took them ──▶ a new ledger ──▶ the topic's record, behind the old one

Rules (I131):

1. This comes before the topic is left: the next owner, be it this process, finds the entries where they belong.
2. The record is written in the version that this owner knows. If another owner wrote it, the entries would stand behind
   newer ones, or where nobody looks: they count as lost.
3. The entries keep their order, and get new positions. A consumer that has had one of them gets it once more.
4. What cannot be read or stored is reported: an ERROR, a report of damage, a count. What is not known is not reported.
"""

import logging
from collections.abc import Sequence
from typing import Final

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, joined
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.wire.entry import DigestMismatch
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Buffer
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerError, RecordInDoubt, StorageUnavailable
from managed_ledger.ledgers.new_ledger import new_ledger
from managed_ledger.ledgers.topic_record import TopicRecord
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.records.records_pb2 import ManagedLedgerInfo

log = logging.getLogger(__name__)

# A recovery that has begun ends within some round trips. An owner that leaves a topic waits no longer for it.
_RECOVERY_PAUSE_S: Final = 0.1
_RECOVERY_LOOKS: Final = 20

# Bytes of one reading: so much is in memory, however long the tail is.
_READ_BYTES: Final = 1 << 20


class Tails:
    """Saves the ends of ledgers for all topics of a process."""

    def __init__(self, bookkeeper: BookKeeper, cache: EntryCache, clock: Clock, on_damage: OnDamage) -> None:
        self.saved_entries = 0
        """Acknowledged entries that stand in another ledger now."""
        self.lost_entries = 0
        """Acknowledged entries that could not be saved."""
        self._bookkeeper = bookkeeper
        self._cache = cache
        self._clock = clock
        self._on_damage = on_damage

    async def save(
        self,
        name: str,
        handle: LedgerWriteHandle,
        acknowledged: int,
        record: TopicRecord,
        config: ManagedLedgerConfig,
    ) -> None:
        """Called before the ledger of *handle*, of which so many entries were acknowledged, is left. Raises nothing
        that storage can cause."""
        ledger_id = handle.ledger_id
        metadata = await self._closed_metadata(ledger_id) if acknowledged else None
        if metadata is None or metadata.last_entry_id + 1 >= acknowledged:
            return
        first, last = metadata.last_entry_id + 1, acknowledged - 1
        where = f"{name}: ledger {ledger_id} was closed at entry {first - 1}, and entries up to {last} are acknowledged"
        why = ""
        saved: list[int] = []
        try:
            saved_in = await self._move(name, handle, metadata, last, record, config, saved)
        except ManagedLedgerError as error:
            saved.clear()
            why = f": {error}"
        if saved:
            self.saved_entries += len(saved)
            log.warning("%s; %d of them are in ledger %d now", where, len(saved), saved_in)
        lost = sorted(set(range(first, acknowledged)).difference(saved))
        if lost:
            self.lost_entries += len(lost)
            log.error("%s; %d of them are lost%s", where, len(lost), why)
            text = f"{name}: acknowledged behind the end at which somebody closed the ledger{why}"
            self._on_damage(ledger_id, Kind.DATA_LOSS, joined((entry_id, entry_id) for entry_id in lost), text)

    async def _closed_metadata(self, ledger_id: int) -> LedgerMetadata | None:
        """The record of a ledger that is closed; None if it is open, deleted or not known."""
        for _ in range(_RECOVERY_LOOKS):
            try:
                metadata = await self._bookkeeper.read_metadata(ledger_id)
            except BookKeeperError:
                return None
            if metadata.is_closed:
                return metadata
            if metadata.state is not LedgerState.IN_RECOVERY:
                return None
            await self._clock.sleep(_RECOVERY_PAUSE_S)
        return None

    async def _move(
        self,
        name: str,
        handle: LedgerWriteHandle,
        metadata: LedgerMetadata,
        last: int,
        record: TopicRecord,
        config: ManagedLedgerConfig,
        saved: list[int],
    ) -> int:
        """Put the entries behind the end of a ledger, up to *last*, into a new one behind it, as far as they are there;
        returns that ledger. *saved* learns which entries they are. Raises ManagedLedgerFenced, StorageUnavailable."""
        new = await new_ledger(self._bookkeeper, name, config)
        try:
            entry_id = metadata.last_entry_id + 1
            while entry_id <= last:
                run = await self._read(handle, entry_id, last)
                for payload in run:
                    await new.add(payload)
                    saved.append(entry_id)
                    entry_id += 1
                entry_id += not run
            length = (await new.close()).length
        except BookKeeperError as error:
            await new.abandon()
            await record.drop(new.ledger_id)
            raise StorageUnavailable(f"ledger {new.ledger_id} does not take them: {error}") from error
        if saved:
            await self._list(handle.ledger_id, metadata, new.ledger_id, len(saved), length, record)
        else:
            await record.drop(new.ledger_id)
        return new.ledger_id

    async def _read(self, handle: LedgerWriteHandle, first: int, last: int) -> Sequence[Buffer]:
        """A run of entries; none if the first one is not there."""
        run = self._cache.get_run(handle.ledger_id, first, last, _READ_BYTES)
        if run:
            return run
        try:
            return [entry.payload for entry in await handle.read_back(first, last, _READ_BYTES)]
        except (BookKeeperError, DigestMismatch) as error:
            log.warning("ledger %d, entry %d: %s", handle.ledger_id, first, error)
            return []

    async def _list(
        self, ledger_id: int, metadata: LedgerMetadata, new_id: int, entries: int, length: int, record: TopicRecord
    ) -> None:
        """Put the new ledger behind the other one into the record. Raises ManagedLedgerFenced, StorageUnavailable."""
        now_ms = self._clock.wall_ms()
        ended = ManagedLedgerInfo.LedgerInfo(
            ledgerId=ledger_id, entries=metadata.last_entry_id + 1, size=metadata.length, timestamp=now_ms
        )
        ledger = ManagedLedgerInfo.LedgerInfo(ledgerId=new_id, entries=entries, size=length, timestamp=now_ms)
        async with record.lock:
            other_ledgers = [info for info in record.ledgers if info.ledgerId != ledger_id]
            try:
                await record.write([*other_ledgers, *([ended] if ended.entries else []), ledger])
            except RecordInDoubt:
                raise  # the record may name it (I57)
            except ManagedLedgerError:
                await record.drop(new_id)
                raise
        if not ended.entries:
            await record.drop(ledger_id)
