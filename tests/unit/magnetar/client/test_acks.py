"""What a consumer has acknowledged, as it is sent: runs of batches, and single ids."""

import random
from types import SimpleNamespace

import pytest

from magnetar.client.async_client import AsyncClient
from magnetar.client.values import Message, put_acks
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.message_id import MessageId
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

SOURCE = SimpleNamespace(partition=2, decoder=None)


def messages_of(entry_id: int, indexes: range, size: int) -> list[Message]:
    delivery = api.ConsumeResponse.Delivery(ledger_id=1, entry_id=entry_id, batch_size=size)
    for index in indexes:
        delivery.messages.add(batch_index=index)
    return [Message.of("t", delivery, SOURCE, message) for message in delivery.messages]


def sent(items: list[Message | MessageId]) -> api.ConsumeRequest:
    request = api.ConsumeRequest()
    put_acks(request, items)
    return request


def test_messages_one_behind_the_other_are_one_run() -> None:
    batch, single, rest = messages_of(1, range(5), 5), messages_of(2, range(1), 0), messages_of(3, range(2, 4), 4)
    request = sent([*batch[:2], *batch[3:], *single, *rest, batch[2].id, MessageId(1, 9)])
    assert [(run.first.entry_id, run.first.batch_index, run.last) for run in request.ack_runs] == [
        (1, 0, 1), (1, 3, 4), (3, 2, 3),
    ]  # fmt: skip
    assert {run.first.partition for run in request.ack_runs} == {2}
    assert [(one.entry_id, one.HasField("batch_index")) for one in request.acks] == [(2, False), (1, True), (9, False)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_sent_names_each_message_once(seed: int) -> None:
    rng = random.Random(seed)
    items = [one for entry_id in range(4) for one in messages_of(entry_id, range(6), rng.choice([6, 0]))]
    items = [one for one in items if rng.random() < 0.7]
    if seed % 2:
        rng.shuffle(items)
    request = sent(list(items))
    named = [(one.entry_id, one.batch_index) for one in request.acks]
    for run in request.ack_runs:
        named += [(run.first.entry_id, index) for index in range(run.first.batch_index, run.last + 1)]
    assert sorted(named) == sorted((one.id.entry_id, max(one.id.batch_index, 0)) for one in items)


async def test_a_batch_is_acknowledged_by_one_run(client: AsyncClient, world: BrokerInMemory) -> None:
    async with client.consumer("t", "s", type="shared", from_earliest=True) as consumer:
        await client.producer("t").send_many([b"%d" % n for n in range(100)])
        messages = [await consumer.receive(5) for _ in range(100)]
        consumer.ack(messages[:40])
        for message in messages[41:]:
            consumer.ack(message)
        await consumer.flush()
        (subscription,) = world.broker.topics[next(iter(world.broker.topics))].subscriptions.values()
        assert subscription.cursor.backlog() == 1
        consumer.ack(messages[40])
        await consumer.flush()
        assert subscription.cursor.backlog() == 0
