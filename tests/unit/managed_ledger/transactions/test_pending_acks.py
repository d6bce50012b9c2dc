"""Acknowledgements in transactions that Apache's brokers left in the log of a subscription."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

import managed_ledger.transactions.pending_acks as pending_acks
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerFenced, OpenTransaction, StorageUnavailable
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.records.records_pb2 import BatchedPendingAckMetadataEntry, PendingAckMetadataEntry
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.unit.managed_ledger.transactions.test_snapshots import factory_of, write

TOPIC = "public/default/persistent/a%2Bb"
LOG = "public/default/persistent/a%2Bb-s+1__transaction_pending_ack"
SUBSCRIPTION = "s 1"
ACK, COMMIT, ABORT = PendingAckMetadataEntry.ACK, PendingAckMetadataEntry.COMMIT, PendingAckMetadataEntry.ABORT

Acks = Sequence[dict[str, Any]]


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with fake_cluster(2) as cluster:
        yield cluster


def record(
    operation: PendingAckMetadataEntry.PendingAckOp, transaction: int, acks: Acks = (), *, is_cumulative: bool = False
) -> bytes:
    entry = PendingAckMetadataEntry(
        pending_ack_op=operation,
        ack_type=PendingAckMetadataEntry.Cumulative if is_cumulative else PendingAckMetadataEntry.Individual,
        txnid_most_bits=3,
        txnid_least_bits=transaction,
        pending_ack_metadata=[PendingAckMetadataEntry.PendingAckMetadata(**ack) for ack in acks],
    )
    return entry.SerializeToString()


async def topic_of(cluster: FakeCluster) -> tuple[ManagedLedger, ManagedCursor, int]:
    """A topic of ten entries, its subscription, and the ledger of the entries."""
    ledger = await (await factory_of(cluster)).open(TOPIC)
    cursor = await ledger.open_cursor(SUBSCRIPTION, EARLIEST)
    for number in range(10):
        await write(ledger, b"entry %d" % number)
    return ledger, cursor, ledger.ledgers.last_confirmed.ledger_id


async def log_of(cluster: FakeCluster, *entries: bytes) -> ManagedLedger:
    log = await (await factory_of(cluster)).open(LOG)
    for entry in entries:
        await write(log, entry)
    return log


async def is_logged(cluster: FakeCluster) -> bool:
    return await (await factory_of(cluster)).exists(LOG)


async def test_what_was_committed_is_acknowledged_and_the_log_goes(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    await log_of(
        cluster,
        record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}, {"ledgerId": ledger_id, "entryId": 4}]),
        record(ACK, 2, [{"ledgerId": ledger_id, "entryId": 1}]),
        record(ABORT, 2),
        record(COMMIT, 1),
    )
    await ledger.settle_transactions(cursor)
    assert cursor.mark_delete_position == Position(ledger_id, 0)
    assert [cursor.is_deleted(Position(ledger_id, entry)) for entry in range(6)] == [
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    assert not await is_logged(cluster)
    again = await (await factory_of(cluster)).open(TOPIC)  # by another broker: it was stored
    assert again.cursors[SUBSCRIPTION].is_deleted(Position(ledger_id, 4))


async def test_a_cumulative_acknowledgement_that_was_committed_counts(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    acks = [{"ledgerId": ledger_id, "entryId": 5}]
    await log_of(cluster, record(ACK, 1, acks, is_cumulative=True), record(COMMIT, 1))
    await ledger.settle_transactions(cursor)
    assert cursor.mark_delete_position == Position(ledger_id, 5)


@pytest.mark.parametrize("is_cumulative", [True, False])
async def test_a_part_of_a_batch_that_was_committed_counts(cluster: FakeCluster, is_cumulative: bool) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    acks = [{"ledgerId": ledger_id, "entryId": 2, "ack_set": [0b1100], "batch_size": 5}]
    await log_of(cluster, record(ACK, 1, acks, is_cumulative=is_cumulative), record(COMMIT, 1))
    await ledger.settle_transactions(cursor)
    assert cursor.batch_ack_set(Position(ledger_id, 2)) == [0b1100]
    assert cursor.is_deleted(Position(ledger_id, 1)) == is_cumulative


async def test_several_records_in_an_entry_are_read(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    records = [record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]), record(COMMIT, 1)]
    batch = BatchedPendingAckMetadataEntry(
        pending_ack_logs=[PendingAckMetadataEntry.FromString(one) for one in records]
    ).SerializeToString()
    await log_of(cluster, bytes.fromhex("0e010001") + batch)
    await ledger.settle_transactions(cursor)
    assert cursor.mark_delete_position == Position(ledger_id, 0)


async def test_an_open_transaction_refuses_the_subscription_and_changes_nothing(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    await log_of(
        cluster,
        record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]),
        record(ACK, 2, [{"ledgerId": ledger_id, "entryId": 3}]),
        record(COMMIT, 1),
    )
    said = rf"acknowledged {ledger_id}:3 in the transaction \(3,2\), which has not ended.*Give the topic back"
    with pytest.raises(OpenTransaction, match=said):
        await ledger.settle_transactions(cursor)
    assert cursor.backlog() == 10
    assert await is_logged(cluster)


async def test_an_open_transaction_of_messages_that_are_acknowledged_meanwhile_is_none(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    await log_of(
        cluster,
        record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]),
        record(ACK, 2, [{"ledgerId": ledger_id, "entryId": 2, "ack_set": [0b100], "batch_size": 3}]),
        record(ACK, 3, [{"ledgerId": ledger_id, "entryId": 0}], is_cumulative=True),
    )
    cursor.delete([Position(ledger_id, 0)])
    cursor.acknowledge_batch(Position(ledger_id, 2), [0b110], 3)
    with pytest.raises(OpenTransaction, match=r"\(3,2\)"):
        await ledger.settle_transactions(cursor)
    cursor.acknowledge_batch(Position(ledger_id, 2), [0b100], 3)
    await ledger.settle_transactions(cursor)
    assert not await is_logged(cluster)


async def test_a_subscription_that_goes_takes_its_log_along(cluster: FakeCluster) -> None:
    ledger, _, ledger_id = await topic_of(cluster)
    await log_of(cluster, record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]))
    await ledger.delete_cursor(SUBSCRIPTION)
    assert not await is_logged(cluster)


async def test_a_topic_that_goes_takes_the_logs_of_its_subscriptions_along(cluster: FakeCluster) -> None:
    ledger, _, ledger_id = await topic_of(cluster)
    await log_of(cluster, record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]))
    await ledger.delete()
    assert not await is_logged(cluster)


@pytest.mark.parametrize("call", ["settle", "delete"])
async def test_a_former_owner_leaves_the_log_alone(cluster: FakeCluster, call: str) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    await log_of(cluster, record(ACK, 1, [{"ledgerId": ledger_id, "entryId": 0}]), record(COMMIT, 1))
    await (await factory_of(cluster)).open(TOPIC)
    with pytest.raises(ManagedLedgerFenced):
        await (ledger.settle_transactions(cursor) if call == "settle" else ledger.delete_cursor(SUBSCRIPTION))
    assert await is_logged(cluster)


@pytest.mark.parametrize("entry", [b"\xff\xff", bytes.fromhex("0e010001ffff")])
async def test_a_log_that_cannot_be_read_is_an_error_that_names_it(cluster: FakeCluster, entry: bytes) -> None:
    ledger, cursor, _ = await topic_of(cluster)
    await log_of(cluster, entry)
    with pytest.raises(StorageUnavailable, match=r"cannot be read from .*s\+1__transaction_pending_ack"):
        await ledger.settle_transactions(cursor)


async def test_a_log_has_no_more_transactions_than_the_limit(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_acks, "TRANSACTIONS_MAX", 2)
    ledger, cursor, _ = await topic_of(cluster)
    await log_of(cluster, *(record(ABORT, number) for number in range(3)))
    with pytest.raises(StorageUnavailable, match="it has more than 2 transactions"):
        await ledger.settle_transactions(cursor)


async def test_acknowledgements_beyond_the_end_of_the_topic_are_passed_over(cluster: FakeCluster) -> None:
    ledger, cursor, ledger_id = await topic_of(cluster)
    beyond = [{"ledgerId": ledger_id + 100, "entryId": 5}]
    await log_of(cluster, record(ACK, 1, beyond), record(ACK, 1, beyond, is_cumulative=True), record(COMMIT, 1))
    await ledger.settle_transactions(cursor)
    assert cursor.backlog() == 10


async def test_a_name_that_no_topic_can_have_has_no_log(cluster: FakeCluster) -> None:
    ledger = await (await factory_of(cluster)).open(TOPIC)
    cursor = await ledger.open_cursor("a/b", EARLIEST)
    await ledger.settle_transactions(cursor)
    await ledger.delete_cursor("a/b")
    assert not ledger.cursors
