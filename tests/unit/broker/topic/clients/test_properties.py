"""What clients tell of themselves is bounded: per command, per connection, and of all."""

import gc
from typing import Any

import pytest

from broker.errors import NotAllowed
from broker.topic.clients import properties
from broker.topic.clients.properties import ITEM_BYTES, PROPERTIES_BYTES_MAX, KeptBytes, Properties, check_size
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from managed_ledger.messages_pb2 import KeyValue
from tests.support.waiting import eventually
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"


def items(count: int, size_bytes: int = 10) -> list[KeyValue]:
    return [KeyValue(key=f"{number:05}", value="x" * (size_bytes - 5)) for number in range(count)]


def test_properties_count_as_long_as_they_are_kept_with_what_each_takes() -> None:
    total = KeptBytes.of_broker()
    first, second = total.of_connection(), total.of_connection()
    kept = [Properties(items(3), first, "p"), Properties(items(5), second, "p")]
    assert (first.bytes, second.bytes) == (3 * (10 + ITEM_BYTES), 5 * (10 + ITEM_BYTES))
    assert total.bytes == first.bytes + second.bytes
    assert kept.pop() == {f"{number:05}": "xxxxx" for number in range(5)}
    assert (second.bytes, total.bytes) == (0, first.bytes)
    kept.clear()
    assert total.bytes == 0


@pytest.mark.parametrize("whose", ["this connection", "all clients of this broker"])
def test_what_is_too_much_is_refused_by_name_and_does_not_count(whose: str) -> None:
    total = KeptBytes.of_broker()
    one = total.of_connection()
    (one if whose == "this connection" else total).limit_bytes = 1_000
    kept = Properties(items(4), one, "producer a")
    with pytest.raises(NotAllowed, match=rf"producer b: .*{whose}.* more than 1000; give fewer or shorter ones"):
        Properties(items(1), one, "producer b")
    assert total.bytes == one.bytes == 840
    del kept
    assert len(Properties(items(4), one, "producer b")) == 4


def test_one_command_has_a_limit_of_its_own() -> None:
    check_size(items(1, PROPERTIES_BYTES_MAX), "consumer c")
    with pytest.raises(NotAllowed, match="consumer c: its properties have 65537 characters, more than 65536"):
        check_size(items(1, PROPERTIES_BYTES_MAX + 1), "consumer c")


def many(count: int) -> list[Any]:
    return items(count, 20)


async def refused(client: RawClient) -> str:
    answer = await client.expect(BaseCommand.ERROR)
    assert answer.error.error == wire.NotAllowedError
    return answer.error.message


async def test_producers_of_a_connection_keep_so_much_and_the_others_go_on(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(properties, "CONNECTION_BYTES_MAX", 100_000)
    greedy, other = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
    made = 0
    for number in range(10):
        greedy.send(
            BaseCommand.PRODUCER, topic=TOPIC, producer_id=number, request_id=number, producer_name=f"p{number}",
            metadata=many(100),
        )  # fmt: skip
        answer = await greedy.answer()
        made += answer.type == BaseCommand.PRODUCER_SUCCESS
    assert answer.error.error == wire.NotAllowedError
    assert "producer p9" in answer.error.message
    assert made == 100_000 // (100 * (20 + ITEM_BYTES))
    await other.produce(TOPIC, producer_name="other", metadata=many(100))
    greedy.publish(0, 0)
    await greedy.expect(BaseCommand.SEND_RECEIPT)
    greedy.send(BaseCommand.CLOSE_PRODUCER, producer_id=0, request_id=50)
    await greedy.expect(BaseCommand.SUCCESS)
    greedy.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=9, request_id=9, metadata=many(100))
    await greedy.expect(BaseCommand.PRODUCER_SUCCESS)


async def test_what_one_command_tells_is_refused_before_anything_waits_for_it(world: BrokerInMemory) -> None:
    client = await RawClient.connect(world.broker.port)
    long = [KeyValue(key="k", value="x" * PROPERTIES_BYTES_MAX)]
    client.send(BaseCommand.PRODUCER, topic=TOPIC, producer_id=1, request_id=1, producer_name="p", metadata=long)
    assert "producer p" in await refused(client)
    for field in ("metadata", "subscription_properties"):
        client.send(
            BaseCommand.SUBSCRIBE, topic=TOPIC, consumer_id=1, request_id=2, subscription="s",
            subType=wire.CommandSubscribe.Shared, **{field: long},
        )  # fmt: skip
        assert ("subscription s" if field != "metadata" else "consumer 1") in await refused(client)
    assert world.broker.arrivals.total == 0
    await client.produce(TOPIC)


@pytest.mark.parametrize("how", ["lost", "closed", "refused", "unloaded"])
async def test_nothing_is_counted_of_clients_that_are_gone(world: BrokerInMemory, how: str) -> None:
    client = await RawClient.connect(world.broker.port)
    kept = world.broker.kept_properties
    await client.produce(TOPIC, metadata=many(10), producer_name="a")
    await client.subscribe(TOPIC, permits=0, metadata=many(10))
    assert kept.bytes == 20 * (20 + ITEM_BYTES)
    gc.disable()
    try:
        if how == "refused":
            client.send(
                BaseCommand.PRODUCER, topic=TOPIC, producer_id=2, request_id=3, producer_name="a", metadata=many(10)
            )
            await client.expect(BaseCommand.ERROR)
            await eventually(lambda: kept.bytes == 20 * (20 + ITEM_BYTES))
            return
        if how == "lost":
            client.close()
        elif how == "closed":
            client.send(BaseCommand.CLOSE_PRODUCER, producer_id=1, request_id=3)
            client.send(BaseCommand.CLOSE_CONSUMER, consumer_id=1, request_id=4)
        else:
            (topic,) = world.broker.topics.values()
            await topic.close()
        await eventually(lambda: kept.bytes == 0)
    finally:
        gc.enable()
