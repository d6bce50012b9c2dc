"""Topics with messages of transactions, as Apache's brokers have written them: they are not opened.

Only the broker that keeps a topic's transaction buffer knows which of these messages were committed. Any other one
would deliver aborted messages, and keep them at a compaction. An Apache broker writes a snapshot of that buffer before
it stores the first message of a transaction, in a topic of the namespace, under the topic's name as key
(`TopicTransactionBuffer`, 4.0.8):

    <tenant>/<namespace>/__transaction_buffer_snapshot              with the aborted transactions inside
    <tenant>/<namespace>/__transaction_buffer_snapshot_indexes      where they are in segments

A null value is written when the topic is deleted. These topics are read straight from their ledgers, whoever owns them.
"""

import asyncio
from typing import Final
from weakref import WeakValueDictionary

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.types import Buffer, Corruption
from magnetar_core.topics.topic_name import TopicName, TopicNameError
from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR, decode
from managed_ledger.cursors.stored_cursor import stored_cursor
from managed_ledger.errors import StorageUnavailable, TransactionalTopic
from managed_ledger.ledgers.topic_record import stored_record
from managed_ledger.messages import messages_of
from managed_ledger.transactions.entries import each_entry

SNAPSHOT_TOPICS: Final = ("__transaction_buffer_snapshot", "__transaction_buffer_snapshot_indexes")

# How often a snapshot topic is looked at again of which a ledger went away meanwhile: the next compaction has ended.
_LOOKS: Final = 3


class TransactionNotes:
    """Which topics have messages of transactions."""

    def __init__(self, store: MetadataStore, bookkeeper: BookKeeper, password: bytes) -> None:
        self._store = store
        self._bookkeeper = bookkeeper
        self._password = password
        self._next: dict[str, asyncio.Task[frozenset[str]]] = {}
        """Snapshot topic → its next reading, which has not begun: all that ask before it begins share it. A reading
        that has begun may have passed what is written since."""
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def check(self, name: str) -> None:
        """Raises TransactionalTopic if the managed ledger *name* has messages of transactions; StorageUnavailable."""
        try:
            topic = TopicName.of_managed_ledger(name)
        except TopicNameError:
            return
        if topic.is_system:
            return
        topics_by_kind = await asyncio.gather(
            *(self._topics_with_snapshots(f"{topic.namespace}/persistent/{snapshots}") for snapshots in SNAPSHOT_TOPICS)
        )
        for snapshots, topics in zip(SNAPSHOT_TOPICS, topics_by_kind, strict=True):
            if topic.full in topics:
                raise TransactionalTopic(
                    f"{topic} has messages of transactions: {topic.namespace}/{snapshots} has a snapshot of it. This "
                    "broker does not know which of them were aborted, and does not serve it. Give it back to an Apache "
                    "broker that has transactionCoordinatorEnabled=true, and consume or copy it there"
                )

    async def topics_with_transactions(self, namespace: str) -> frozenset[str]:
        """The topics of a namespace, by their full names, that have messages of transactions.

        Raises StorageUnavailable.
        """
        ledgers = [f"{namespace}/persistent/{snapshots}" for snapshots in SNAPSHOT_TOPICS]
        parts = [await self._topics_with_snapshots(name) for name in ledgers]
        return frozenset().union(*parts)

    async def _topics_with_snapshots(self, snapshots: str) -> frozenset[str]:
        """Topics of which there is a snapshot in the managed ledger *snapshots*. Raises StorageUnavailable."""
        reading = self._next.get(snapshots)
        if reading is None:
            reading = self._next[snapshots] = asyncio.create_task(self._read_next(snapshots))
        return await asyncio.shield(reading)

    async def _read_next(self, snapshots: str) -> frozenset[str]:
        turn = self._turns.get(snapshots)
        if turn is None:
            turn = self._turns[snapshots] = asyncio.Lock()
        async with turn:
            del self._next[snapshots]
            return await self._read_if_stored(snapshots)

    async def _read_if_stored(self, snapshots: str) -> frozenset[str]:
        try:
            if await stored_record(self._store, snapshots) is None:
                return frozenset()
            for look in range(_LOOKS):
                try:
                    return await self._read(snapshots)
                except NoSuchLedger:
                    if look + 1 == _LOOKS:
                        raise
        except (MetadataError, BookKeeperError, DigestMismatch, Corruption) as error:
            raise StorageUnavailable(
                f"which topics have transactions cannot be read from {snapshots}: {error}"
            ) from error
        raise AssertionError("the last look returns or raises")

    async def _read(self, snapshots: str) -> frozenset[str]:
        topics: set[str] = set()
        cursor = await stored_cursor(self._store, self._bookkeeper, snapshots, COMPACTION_CURSOR)
        compacted = None if cursor is None else cursor.properties.get(COMPACTED_LEDGER)
        if compacted is not None:
            await each_entry(self._bookkeeper, compacted, b"", lambda payload: _note(topics, decode(payload)[1]))
        record = await stored_record(self._store, snapshots)
        for info in () if record is None else record.ledgerInfo:
            await each_entry(self._bookkeeper, info.ledgerId, self._password, lambda payload: _note(topics, payload))
        return frozenset(topics)


def _note(topics: set[str], entry: Buffer) -> None:
    """Raises Corruption."""
    metadata, messages = messages_of(entry)
    for message in messages:
        single = message.single
        key = metadata.partition_key if single is None else single.partition_key
        is_null = metadata.null_value if single is None else single.null_value
        if is_null or not message.payload:
            topics.discard(key)
        else:
            topics.add(key)
