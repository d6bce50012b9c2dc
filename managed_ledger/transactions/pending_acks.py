"""Acknowledgements in transactions, as Apache's brokers keep them in a log of each subscription.

    ACK 20:0 in (9,1) │ ACK 20:3 in (11,1) │ COMMIT (9,1)      <topic>-<subscription>__transaction_pending_ack

A commit is acknowledged in the subscription's cursor, which is stored later; after a crash the log alone knows it
(`MLPendingAckStore`, 4.0.8 to 5.0.1; transactions of scalable topics are kept elsewhere, and these topics are refused).

Rules:

1. Before a subscription that was there when the topic was opened gets its first consumer, what its log has of committed
   transactions is acknowledged. Then the log is deleted: a later opening would acknowledge it once more, also what a
   seek has brought back meanwhile.
2. A transaction that has not ended belongs to an Apache broker: only that hears how it ends. While such a transaction
   has acknowledged a message that the subscription still has, the subscription is refused, and its log stays.
"""

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.types import Buffer, Corruption
from magnetar_core.topics.topic_name import TopicName, TopicNameError
from managed_ledger.ack_ranges import mask_of
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import InvalidPosition, OpenTransaction, StorageUnavailable
from managed_ledger.ledgers.discarding import discard
from managed_ledger.ledgers.topic_record import stored_record
from managed_ledger.position import Position
from managed_ledger.records.records_pb2 import BatchedPendingAckMetadataEntry, PendingAckMetadataEntry
from managed_ledger.transactions.entries import each_entry

PENDING_ACKS: Final = "__transaction_pending_ack"

# What an entry with several records begins with: a magic number and a version (`TxnLogBufferedWriter`).
_SEVERAL: Final = bytes.fromhex("0e010001")

# Transactions of one log that ended; Apache's brokers trim a log when its subscription has moved on.
TRANSACTIONS_MAX: Final = 100_000

CheckOwner = Callable[[], Awaitable[None]]
"""Raises if another broker has the managed ledger by now: what is deleted then would be its."""

_Transaction = tuple[int, int]
_Ack = PendingAckMetadataEntry.PendingAckMetadata


class PendingAcks:
    """Acknowledgements in transactions of the subscriptions of one managed ledger."""

    def __init__(self, name: str, store: MetadataStore, bookkeeper: BookKeeper, password: bytes) -> None:
        """*name* is that of the managed ledger."""
        self._name = name
        self._store = store
        self._bookkeeper = bookkeeper
        self._password = password

    async def settle(self, cursor: ManagedCursor, check_owner: CheckOwner) -> None:
        """Acknowledge in *cursor* what committed transactions acknowledged (rule 1); durable on return.

        Raises OpenTransaction (rule 2), StorageUnavailable, ManagedLedgerFenced.
        """
        log = self._log_of(cursor.name)
        if log is None:
            return
        try:
            record = await stored_record(self._store, log)
            if record is None:
                return
            ledger_ids = [info.ledgerId for info in record.ledgerInfo]
            is_committed: dict[_Transaction, bool] = {}
            await self._each(ledger_ids, partial(_note_end, is_committed))
            await self._each(ledger_ids, partial(self._check_ended, cursor, is_committed))
            await self._each(ledger_ids, partial(_acknowledge_committed, cursor, is_committed))
            await cursor.flush()
        except (MetadataError, BookKeeperError, DigestMismatch, Corruption) as error:
            raise StorageUnavailable(f"what transactions acknowledged cannot be read from {log}: {error}") from error
        await self._discard(log, check_owner)

    async def forget(self, cursor_name: str, check_owner: CheckOwner) -> None:
        """The subscription is deleted. Raises StorageUnavailable, ManagedLedgerFenced."""
        log = self._log_of(cursor_name)
        if log is None:
            return
        try:
            is_there = await stored_record(self._store, log) is not None
        except (MetadataError, Corruption) as error:
            raise StorageUnavailable(f"cannot read the record of {log}: {error}") from error
        if is_there:
            await self._discard(log, check_owner)

    async def _discard(self, log: str, check_owner: CheckOwner) -> None:
        await check_owner()
        await discard(self._store, self._bookkeeper, log)

    def _log_of(self, cursor_name: str) -> str | None:
        """The managed ledger of the log; None where there cannot be such a topic."""
        try:
            topic = TopicName.of_managed_ledger(self._name)
            return TopicName.parse(f"{topic.full}-{cursor_name}{PENDING_ACKS}").managed_ledger_name
        except TopicNameError:
            return None

    async def _each(self, ledger_ids: list[int], note: Callable[[PendingAckMetadataEntry], None]) -> None:
        """Give each record of the log to *note*. Raises as `each_entry`, and Corruption."""

        def note_entry(entry: Buffer) -> None:
            for record in records_in(entry):
                note(record)

        for ledger_id in ledger_ids:
            await each_entry(self._bookkeeper, ledger_id, self._password, note_entry)

    def _check_ended(
        self, cursor: ManagedCursor, is_committed: dict[_Transaction, bool], record: PendingAckMetadataEntry
    ) -> None:
        """Raises OpenTransaction."""
        if record.pending_ack_op != PendingAckMetadataEntry.ACK or _transaction_of(record) in is_committed:
            return
        for ack in record.pending_ack_metadata:
            if not _is_acknowledged(cursor, record, ack):
                high_bits, low_bits = _transaction_of(record)
                raise OpenTransaction(
                    f"the subscription {cursor.name} of {self._name} has acknowledged {ack.ledgerId}:{ack.entryId} in "
                    f"the transaction ({high_bits},{low_bits}), which has not ended. This broker does not hear how it "
                    "ends. Give the topic back to an Apache broker that has transactionCoordinatorEnabled=true until "
                    "the transaction has ended, or delete the subscription"
                )


def records_in(entry: Buffer) -> list[PendingAckMetadataEntry]:
    """The records that an entry of a log has. Raises Corruption."""
    data = bytes(entry)
    try:
        if data.startswith(_SEVERAL):
            return list(BatchedPendingAckMetadataEntry.FromString(data[len(_SEVERAL) :]).pending_ack_logs)
        return [PendingAckMetadataEntry.FromString(data)]
    except DecodeError as error:
        raise Corruption(f"no record of acknowledgements in transactions: {error}") from error


def _transaction_of(record: PendingAckMetadataEntry) -> _Transaction:
    return record.txnid_most_bits, record.txnid_least_bits


def _note_end(is_committed: dict[_Transaction, bool], record: PendingAckMetadataEntry) -> None:
    """Raises Corruption for more than TRANSACTIONS_MAX."""
    if record.pending_ack_op != PendingAckMetadataEntry.ACK:
        is_committed[_transaction_of(record)] = record.pending_ack_op == PendingAckMetadataEntry.COMMIT
        if len(is_committed) > TRANSACTIONS_MAX:
            raise Corruption(f"it has more than {TRANSACTIONS_MAX:,} transactions")


def _is_acknowledged(cursor: ManagedCursor, record: PendingAckMetadataEntry, ack: _Ack) -> bool:
    """Whether *cursor* has all that *ack* says."""
    position = Position(ack.ledgerId, ack.entryId)
    if ack.ack_set and (left_words := cursor.batch_ack_set(position)) is not None:
        return not mask_of(left_words) & ~mask_of(ack.ack_set)
    if record.ack_type == PendingAckMetadataEntry.Cumulative:
        return position <= cursor.mark_delete_position
    return cursor.is_deleted(position)


def _acknowledge_committed(
    cursor: ManagedCursor, is_committed: dict[_Transaction, bool], record: PendingAckMetadataEntry
) -> None:
    if record.pending_ack_op != PendingAckMetadataEntry.ACK or not is_committed.get(_transaction_of(record), False):
        return
    for ack in record.pending_ack_metadata:
        position = Position(ack.ledgerId, ack.entryId)
        if record.ack_type == PendingAckMetadataEntry.Cumulative:
            whole = position._replace(entry_id=position.entry_id - 1) if ack.ack_set else position
            with contextlib.suppress(InvalidPosition):  # of a topic whose metadata went back
                cursor.mark_delete(whole)
        if ack.ack_set:
            cursor.acknowledge_batch(position, ack.ack_set, ack.batch_size or mask_of(ack.ack_set).bit_length())
        elif record.ack_type == PendingAckMetadataEntry.Individual:
            cursor.delete([position])
