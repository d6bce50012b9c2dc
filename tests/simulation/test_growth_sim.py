"""A topic gets more partitions while brokers and bookies fail: nothing is lost, and all are used in the end."""

import asyncio
from typing import Any

import pytest

import magnetar
import magnetar.testing
from broker.tenancy.partitions import Partitions
from magnetar.testing.simulated.under_test import SimulatedClusterUnderTest
from magnetar_core.topics.topic_name import TopicName
from tests.support.memory_managed_ledger import MemoryLedgers

ORDERS = TopicName.parse("orders")
COUNT = 150


async def application(cluster: SimulatedClusterUnderTest) -> None:
    partitioned = Partitions(cluster._cluster.server.root, MemoryLedgers())
    async with magnetar.AsyncClient(cluster.grpc_url) as client:
        await client.topics.create("orders", partitions=2)
        producer = client.producer("orders", send_timeout_s=600)
        consumer = client.consumer("orders", "billing", type="shared", from_earliest=True)
        view = client.table_view("orders")
        await asyncio.gather(producer.open(), consumer.open(), view.ready())
        trouble = asyncio.create_task(cluster.trouble(40))
        received: set[bytes] = set()

        async def receive() -> None:
            while len(received) < COUNT:
                message = await consumer.receive(timeout_s=600)
                received.add(message.payload)
                consumer.ack(message)

        receiving = asyncio.create_task(receive())
        sends: list[asyncio.Task[Any]] = []
        for number in range(COUNT):
            if number in (30, 80):
                await partitioned.grow(ORDERS, 3 if number == 30 else 5)
            sends.append(asyncio.create_task(producer.send(b"%d" % number, key=str(number % 50))))
            await asyncio.sleep(0.3)
        await trouble
        await asyncio.gather(*sends, receiving)
        while {(await producer.send(b"more")).partition for _ in range(10)} != set(range(5)):
            await asyncio.sleep(1)
        assert len(consumer._streams) == 5
        await view.ready()
        assert len(view) == 50
        await asyncio.gather(consumer.close(), view.close())


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_while_a_topic_grows(seed: int) -> None:
    cluster = magnetar.testing.simulated_cluster(seed)
    try:
        cluster.run(application(cluster))
    except BaseException as error:
        error.add_note("\n".join(cluster.story))
        raise
