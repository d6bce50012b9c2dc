"""A backlog that only bookies have, over many short ledgers, as the official client reads it."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace

import pulsar
import pytest
import pytest_asyncio

from magnetar_core.topics.topic_name import TopicName
from managed_ledger.reading.read_ahead import STEP_BYTES_MAX
from tests.unit.broker.test_official_client import EARLIEST, TIMEOUT_MS, client, nothing_more
from tests.unit.broker.test_real_storage import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOPIC = "persistent://public/default/t"
COUNT = 300
TYPES = [
    pulsar.ConsumerType.Exclusive,
    pulsar.ConsumerType.Failover,
    pulsar.ConsumerType.Shared,
    pulsar.ConsumerType.KeyShared,
]


class World(Cluster):
    """Messages of one entry each, in ledgers of seven; a broker that keeps none of them in memory."""

    url: str

    async def fill(self) -> None:
        self.config = replace(self.config, max_entries_per_ledger=7, min_rollover_minutes=0, cache_mbytes=0)
        self.url = (await self.broker()).address.service_url
        await asyncio.to_thread(self._send)

    def _send(self) -> None:
        with client(self.url) as c:
            c.subscribe(TOPIC, "holds", initial_position=EARLIEST).close()  # the ledgers
            producer = c.create_producer(TOPIC, batching_enabled=False, block_if_queue_full=True)
            for n in range(COUNT):
                producer.send_async(
                    f"{n}".encode().ljust(1 + n * 7919 % 9000, b"."), lambda *_: None, partition_key=f"k{n % 3}"
                )
            producer.flush()

    def from_memory(self, subscription: str) -> int:
        """Entries that were there when a consumer could take them."""
        pump = self.brokers[-1][0].topics[TopicName.parse(TOPIC)].subscriptions[subscription].pump
        return pump.entries_read - pump.entries_read_cold


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Of all these tests; each has subscriptions of its own."""
    made = World(tmp_path_factory.mktemp("bookies"))
    try:
        await made.start()
        await made.fill()
        yield made
    finally:
        await made.stop()


def number_of(message: pulsar.Message) -> int:
    return int(message.data().rstrip(b"."))


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
async def test_each_message_comes_once_and_in_order(world: World, kind: pulsar.ConsumerType) -> None:
    name = f"once-{kind.name}"

    def work() -> list[int]:
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, name, consumer_type=kind, initial_position=EARLIEST, receiver_queue_size=20)
            found = []
            for _ in range(COUNT):
                message = consumer.receive(TIMEOUT_MS)
                found.append(number_of(message))
                consumer.acknowledge(message)
            assert nothing_more(consumer)
            return found

    assert await asyncio.to_thread(work) == list(range(COUNT))
    assert world.from_memory(name) > 0


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
async def test_what_was_not_acknowledged_comes_again(world: World, kind: pulsar.ConsumerType) -> None:
    """Holes of acknowledgement, redelivery and another consumer, in the middle of what was read ahead."""

    name = f"again-{kind.name}"

    def work() -> Counter[int]:
        acknowledged: Counter[int] = Counter()
        for round_ in range(4):
            with client(world.url) as c:
                consumer = c.subscribe(
                    TOPIC, name, consumer_type=kind, initial_position=EARLIEST, receiver_queue_size=9
                )
                for at in range(60):
                    message = consumer.receive(TIMEOUT_MS)
                    if (at + round_) % 3:
                        consumer.acknowledge(message)
                        acknowledged[number_of(message)] += 1
                    if at in (20, 40):
                        consumer.redeliver_unacknowledged_messages()
                consumer.close()
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, name, consumer_type=kind, initial_position=EARLIEST, receiver_queue_size=9)
            while acknowledged.keys() != set(range(COUNT)):
                message = consumer.receive(TIMEOUT_MS)
                consumer.acknowledge(message)
                acknowledged[number_of(message)] += 1
            assert nothing_more(consumer)
        return acknowledged

    found = await asyncio.to_thread(work)
    assert sorted(found) == list(range(COUNT))
    assert world.from_memory(name) > 0


async def test_a_seek_reads_from_there(world: World) -> None:
    def work() -> None:
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, "seeks", initial_position=EARLIEST, receiver_queue_size=10)
            ids = {}
            for at in range(120):
                message = consumer.receive(TIMEOUT_MS)
                assert number_of(message) == at
                ids[at] = message.message_id()
            for place in (100, 3, 57):
                consumer.seek(ids[place])
                for at in range(place + 1, place + 60):  # the client passes over the message itself
                    message = consumer.receive(TIMEOUT_MS)
                    assert number_of(message) == at
                    ids[at] = message.message_id()

    await asyncio.to_thread(work)
    assert world.from_memory("seeks") > 0


async def test_several_subscriptions_read_at_their_own_places(world: World) -> None:
    def work() -> list[list[int]]:
        with client(world.url) as c:
            consumers = [
                c.subscribe(TOPIC, f"s{n}", initial_position=EARLIEST, receiver_queue_size=5 + n) for n in range(5)
            ]
            found: list[list[int]] = [[] for _ in consumers]
            for at in range(COUNT):
                for one, consumer in enumerate(consumers[: 5 if at < 150 else 3]):
                    found[one].append(number_of(consumer.receive(TIMEOUT_MS)))
            for consumer in consumers[3:]:
                consumer.close()
            return found

    found = await asyncio.to_thread(work)
    assert found == [list(range(COUNT))] * 3 + [list(range(150))] * 2


async def test_large_messages_come_once_and_in_order(world: World) -> None:
    """Each is more than a step."""
    size = STEP_BYTES_MAX + 1

    def work() -> None:
        with client(world.url) as c:
            large = f"{TOPIC}-large"
            consumers = [c.subscribe(large, f"s{n}", receiver_queue_size=1) for n in range(2)]
            producer = c.create_producer(large, batching_enabled=False)
            for n in range(4):
                producer.send(bytes([n]) * size)
            for consumer in consumers:
                for n in range(4):
                    message = consumer.receive(TIMEOUT_MS)
                    assert message.data() == bytes([n]) * size
                    consumer.acknowledge(message)
                assert nothing_more(consumer)

    await asyncio.to_thread(work)
