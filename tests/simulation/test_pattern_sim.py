"""A consumer of a pattern, whose topics come and go at several brokers while machines fail: nothing is lost."""

import asyncio

import pytest

import magnetar
import magnetar.testing
from magnetar.testing.simulated.under_test import SimulatedClusterUnderTest

TOPICS = 12
MESSAGES = 6


async def application(cluster: SimulatedClusterUnderTest, trouble_s: float) -> set[str | None]:
    """The brokers that had the topics."""
    received: set[bytes] = set()
    owners: set[str | None] = set()
    async with magnetar.AsyncClient(cluster.grpc_url) as client:
        await client.topics.create("orders-0")
        consumer = client.consumer(subscription="billing", pattern="orders-.*", type="shared", from_earliest=True)
        await consumer.open()

        async def receive() -> None:
            while len(received) < TOPICS * MESSAGES:
                message = await consumer.receive(timeout_s=600)
                received.add(message.payload)
                consumer.ack(message)

        async def send(number: int) -> None:
            producer = client.producer(f"orders-{number}", send_timeout_s=600)
            for message in range(MESSAGES):
                await producer.send(b"%d %d" % (number, message))
                await asyncio.sleep(1)
            owners.add(cluster.owner(f"orders-{number}"))
            await producer.close()

        receiving = asyncio.create_task(receive())
        trouble = asyncio.create_task(cluster.trouble(trouble_s)) if trouble_s else None
        sends = []
        for number in range(TOPICS):
            sends.append(asyncio.create_task(send(number)))
            await asyncio.sleep(3)
        await asyncio.gather(receiving, *sends)
        if trouble is not None:
            await trouble
        await client.topics.delete("orders-0", force=True)
        await client.topics.create("other")
        while len(consumer._streams) != TOPICS - 1:
            await asyncio.sleep(1)
        assert "persistent://public/default/orders-0" not in await client.topics.list()
        await client.producer("orders-0", send_timeout_s=600).send(b"in its second life")
        while (await consumer.receive(timeout_s=600)).payload != b"in its second life":
            pass  # some come again
        await consumer.close()
    return owners


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_of_topics_that_come_and_go(seed: int) -> None:
    cluster = magnetar.testing.simulated_cluster(seed)
    try:
        cluster.run(application(cluster, 40))
    except BaseException as error:
        error.add_note("\n".join(cluster.story))
        raise


def test_topics_of_a_pattern_are_at_several_brokers() -> None:
    cluster = magnetar.testing.simulated_cluster(seed=1)
    assert len(cluster.run(application(cluster, 0))) > 1
