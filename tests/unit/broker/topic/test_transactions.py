"""Subscriptions of which an Apache broker has kept acknowledgements in transactions."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from broker.wire import pulsar_pb2 as wire
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.ledger import ManagedLedger
from managed_ledger.records.records_pb2 import PendingAckMetadataEntry
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient
from tests.unit.managed_ledger.transactions.test_pending_acks import ACK, COMMIT, record

TOPIC = "persistent://public/default/t"
LOG = TopicName.parse("persistent://public/default/t-s__transaction_pending_ack").managed_ledger_name


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def taken_over(world: AdminWorld, *operations: PendingAckMetadataEntry.PendingAckOp) -> Side:
    """A broker that takes over a topic with three messages; the log of its subscription `s` has the acknowledgement of
    the second one in a transaction, and then these *operations*."""
    side = await world.side()
    assert (await world.call(side, "PUT", "/admin/v2/persistent/public/default/t", follow=True)).status == 204
    client = await RawClient.connect(side.broker.port)
    await client.subscribe(TOPIC, permits=0)
    await client.produce(TOPIC)
    for number in range(3):
        client.publish(1, number)
        receipt = await client.expect(wire.BaseCommand.SEND_RECEIPT)
    client.close()
    acks = [{"ledgerId": receipt.send_receipt.message_id.ledgerId, "entryId": 1}]
    log = await side.broker.ledgers.open(LOG)
    log.append([record(ACK, 1, acks), *(record(operation, 1) for operation in operations)], [None, *operations])
    await eventually(lambda: not log.pending_count)
    await log.close()
    await side.broker.opening.unload(TopicName.parse(TOPIC))
    return side


async def test_what_was_committed_before_a_takeover_is_not_delivered(world: AdminWorld) -> None:
    side = await taken_over(world, COMMIT)
    client = await RawClient.connect(side.broker.port)
    await client.subscribe(TOPIC)
    delivered = [(await client.expect(wire.BaseCommand.MESSAGE)).message.message_id.entryId for _ in range(2)]
    assert delivered == [0, 2]
    assert not await side.broker.ledgers.exists(LOG)
    client.close()


async def test_consumers_that_come_at_once_settle_a_subscription_once(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second time would acknowledge again what the first consumer's seek has brought back."""
    side = await taken_over(world, COMMIT)
    settled = []
    settle = ManagedLedger.settle_transactions

    async def counted(ledger: ManagedLedger, cursor: ManagedCursor) -> None:
        settled.append(cursor.name)
        await settle(ledger, cursor)

    monkeypatch.setattr(ManagedLedger, "settle_transactions", counted)
    client = await RawClient.connect(side.broker.port)
    for number in range(5):
        client.send(
            wire.BaseCommand.SUBSCRIBE,
            topic=TOPIC, subscription="s", subType=wire.CommandSubscribe.Shared, consumer_id=number, request_id=number,
        )  # fmt: skip
    for _ in range(5):
        await client.expect(wire.BaseCommand.SUCCESS)
    assert settled == ["s"]
    client.close()


async def test_a_consumer_is_refused_while_a_transaction_is_open(world: AdminWorld) -> None:
    side = await taken_over(world)
    client = await RawClient.connect(side.broker.port)
    for request_id in (1, 2):
        client.send(
            wire.BaseCommand.SUBSCRIBE,
            topic=TOPIC, subscription="s", subType=wire.CommandSubscribe.Shared, consumer_id=1, request_id=request_id,
        )  # fmt: skip
        answer = await client.expect(wire.BaseCommand.ERROR)
        assert answer.error.error == wire.NotAllowedError
        assert "in the transaction (3,1), which has not ended" in answer.error.message
    await client.subscribe(TOPIC, subscription="other", consumer_id=2)
    await world.call(side, "POST", "/admin/v2/persistent/public/default/t/subscription/s/skip_all")
    await client.subscribe(TOPIC, consumer_id=1)
    client.close()
