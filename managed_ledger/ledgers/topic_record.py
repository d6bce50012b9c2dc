"""The record of a topic: its node in the metadata store, which names its ledgers.

Rules:

1. The node is replaced only in the version that we know: a conflict means that another owner wrote it
   (`VersionedRecord`).
2. A ledger is deleted only after the record is known not to name it (I57). If a deletion failed, or it is in doubt
   whether the record names the ledger, the ledger is deleted after the next successful write of the record.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import ManagedLedgerNotFound, MetadataWentBack, RecordUnreadable
from managed_ledger.ledger_list import LedgerList
from managed_ledger.ledgers.shadows import check_no_shadow, check_partition
from managed_ledger.position import Position
from managed_ledger.reading.entry_index import NO_INDEX, PROPERTY
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_ledger_info, encode_record
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.records.versioned_record import VersionedRecord

log = logging.getLogger(__name__)


class TopicRecord:
    """Reads and writes one topic's record, and deletes ledgers that the record does not name any more."""

    def __init__(self, name: str, bookkeeper: BookKeeper, store: MetadataStore, config: ManagedLedgerConfig) -> None:
        self._name = name
        self._bookkeeper = bookkeeper
        self._config = config
        # Held while the record is written, and to keep a trim away. A cursor's own lock is taken before it.
        self.lock = asyncio.Lock()
        self.ledgers = LedgerList()
        """The ledgers that the record names, with how many entries each has by now."""
        self.index = NO_INDEX
        """The index of the last acknowledged message, which is stored with each write; `NO_INDEX`: as it was."""
        self._store = store
        self._node = VersionedRecord(store, ledger_path(name))
        self._info = ManagedLedgerInfo()  # as last read or written, with fields unknown to us
        # Ledgers to be deleted after the next write: the record does not name them, or will not then (rule 2).
        # As the keys of a dictionary: an empty set takes three times as much memory.
        self._orphans: dict[int, None] = {}
        self._deletions = Tasks(name)  # not cancelled at close

    @property
    def version(self) -> int:
        """The version of the node, as it was last read or written."""
        return self._node.version

    @property
    def is_terminated(self) -> bool:
        return self._info.HasField("terminatedPosition")

    @property
    def properties(self) -> Mapping[str, str]:
        return {item.key: item.value for item in self._info.properties}

    @property
    def ledger_ids(self) -> list[int]:
        """All ledgers of the topic, including those that wait to be deleted."""
        return [info.ledgerId for info in self.ledgers] + list(self._orphans)

    async def read(self, *, create: bool) -> None:
        """Read the stored record; *create* makes one if there is none.

        Raises ManagedLedgerNotFound, RecordUnreadable, ManagedLedgerFenced, ShadowTopic, StorageUnavailable.
        """
        value = await self._node.read()
        if value is None:
            if not create:
                raise ManagedLedgerNotFound(f"{self._name} does not exist")
            await self._node.write(b"")
            value = b""
        self._orphans.clear()
        try:
            self._info = decode_ledger_info(value, self._name)
            self.ledgers.replace(self._info.ledgerInfo)
        except (Corruption, AssertionError, ValueError) as error:
            raise RecordUnreadable(f"{self._name}: its record {self._node.path}: {error}") from error
        check_no_shadow(self._name, self.properties)
        if not self._info.ledgerInfo:
            await check_partition(self._name, self._store)

    async def write(
        self,
        infos: Sequence[ManagedLedgerInfo.LedgerInfo],
        change: Callable[[ManagedLedgerInfo], None] | None = None,
    ) -> None:
        """Store *infos* as the list of ledgers, and what *change* does to the rest. The lock is held.

        Raises ManagedLedgerFenced, StorageUnavailable and its subclass RecordInDoubt.
        """
        assert self.lock.locked(), "the record is written under its lock"
        record = ManagedLedgerInfo()
        record.CopyFrom(self._info)
        del record.ledgerInfo[:]
        record.ledgerInfo.extend(infos)
        if change is not None:
            change(record)
        if self.index != NO_INDEX:
            _set_property(record, PROPERTY, str(self.index))
        try:
            await self._node.write(
                encode_record(record, self._config.record_compression, self._config.record_compression_bytes)
            )
        except MetadataWentBack:
            self._report_ledgers()
            raise
        self._info = record
        # Rule 2; orphans may be new since the write began.
        listed_again = self._orphans.keys() - {info.ledgerId for info in infos}
        for ledger_id in listed_again:
            del self._orphans[ledger_id]
        self.drop_soon(listed_again)

    async def check_unchanged(self) -> None:
        """Ask whether another owner wrote the record. Raises ManagedLedgerFenced, StorageUnavailable."""
        try:
            await self._node.check_unchanged()
        except MetadataWentBack:
            self._report_ledgers()
            raise

    def _report_ledgers(self) -> None:
        """Log what the record named, for the operator who repairs the metadata."""
        named = ", ".join(f"{info.ledgerId} ({self.ledgers.entries_of(info.ledgerId)})" for info in self.ledgers)
        log.error("%s: its ledgers here, and their entries: %s", self._name, named or "none")

    async def delete(self) -> None:
        """Remove the node of the record. Raises ManagedLedgerFenced, StorageUnavailable."""
        await self._node.delete()

    def orphan(self, ledger_id: int) -> None:
        """Delete this ledger after the next write that does not name it."""
        self._orphans[ledger_id] = None

    def leave_out(self, ledger_id: int) -> None:
        """Delete this ledger later: the topic does not need it, but the record may still name it."""
        self.ledgers.remove(ledger_id)
        self._orphans[ledger_id] = None

    def drop_soon(self, ledger_ids: Iterable[int]) -> list[asyncio.Task[None]]:
        """Begin to delete ledgers that the record does not name."""
        return [self._deletions.spawn(self.drop(ledger_id), f"ledger {ledger_id}") for ledger_id in ledger_ids]

    async def drop(self, ledger_id: int) -> None:
        """Delete a ledger that the record does not name; a failure leaves garbage, not damage."""
        try:
            await self._bookkeeper.delete_ledger(ledger_id)
        except NoSuchLedger:
            pass
        except BookKeeperError as error:
            log.warning("%s: ledger %s could not be deleted: %s", self._name, ledger_id, error)
            self._orphans[ledger_id] = None  # tried again when the record is written next


async def stored_record(store: MetadataStore, name: str) -> ManagedLedgerInfo | None:
    """The record of a topic that is not opened here, as it is now; None if there is none.

    Raises Corruption, MetadataError.
    """
    node = await store.get(ledger_path(name))
    return None if node is None else decode_ledger_info(node.value, name)


def set_properties(properties: Mapping[str, str]) -> Callable[[ManagedLedgerInfo], None]:
    """The change that replaces the stored properties."""

    def change(record: ManagedLedgerInfo) -> None:
        del record.properties[:]
        for key, value in properties.items():
            record.properties.add(key=key, value=value)

    return change


def _set_property(record: ManagedLedgerInfo, key: str, value: str) -> None:
    for item in record.properties:
        if item.key == key:
            item.value = value
            return
    record.properties.add(key=key, value=value)


def set_terminated(last: Position) -> Callable[[ManagedLedgerInfo], None]:
    """The change that ends a topic at *last*."""

    def change(record: ManagedLedgerInfo) -> None:
        record.terminatedPosition.ledgerId = last.ledger_id
        record.terminatedPosition.entryId = last.entry_id

    return change
