"""Limits of numbers hold also for what comes at once: in one read of a socket, and over many connections."""

import asyncio
from collections import Counter
from typing import Any, Final

import pytest

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import TIMEOUT_S, RawClient

TOPIC: Final = "persistent://public/default/t"
NAME: Final = TopicName.parse(TOPIC)
BURST: Final = 30
MOST: Final = 4


async def admitted(clients: list[RawClient], kind: int, each: Any) -> int:
    """How many of a burst of requests are not refused; each client sends its part in one write."""
    for number in range(BURST):
        clients[number % len(clients)].send(kind, request_id=number, **each(number))
    answers = Counter[bool]()
    all_came = asyncio.Event()

    async def take(client: RawClient) -> None:
        while True:
            answer = await client.answer()
            if answer.type == BaseCommand.PING:  # whether it lives, since it is in somebody's way
                client.send(BaseCommand.PONG)
                continue
            body = getattr(answer, BODY_OF_TYPE[answer.type])
            answers[answer.type == BaseCommand.ERROR or getattr(body, "response", 0) == 1] += 1
            if answers.total() == BURST:
                all_came.set()

    taking = [asyncio.ensure_future(take(client)) for client in clients]  # also when it has its own: it may be asked
    try:
        await asyncio.wait_for(all_came.wait(), TIMEOUT_S)
    finally:
        for one in taking:
            one.cancel()
        await asyncio.gather(*taking, return_exceptions=True)
    return answers[False]


def consumer(topic: str, subscription: str = "s", **more: Any) -> Any:
    kind = wire.CommandSubscribe.Shared
    return lambda number: {
        "topic": topic.format(number), "consumer_id": number, "subscription": subscription.format(number),
        "subType": kind, **more,
    }  # fmt: skip


def producer(topic: str) -> Any:
    return lambda number: {"topic": topic.format(number), "producer_id": number}


SUBSCRIBE, PRODUCER = BaseCommand.SUBSCRIBE, BaseCommand.PRODUCER
READER: Final = {"durable": False}
READERS = wire.CommandSubscribe.Exclusive


@pytest.mark.parametrize("connections", [1, 5])
@pytest.mark.parametrize(
    ("setting", "kind", "each"),
    [
        ("max_consumers_per_topic", SUBSCRIBE, consumer(TOPIC, "s{}")),
        ("max_consumers_per_topic", SUBSCRIBE, consumer(TOPIC)),
        ("max_consumers_per_topic", SUBSCRIBE, consumer(TOPIC, "s{}", **READER)),
        ("max_consumers_per_topic", SUBSCRIBE, consumer(f"non-{TOPIC}", "s{}")),
        ("max_consumers_per_subscription", SUBSCRIBE, consumer(TOPIC)),
        ("max_consumers_per_subscription", SUBSCRIBE, consumer(f"non-{TOPIC}")),
        ("max_consumers_per_address", SUBSCRIBE, consumer(TOPIC, "s{}")),
        ("max_subscriptions_per_topic", SUBSCRIBE, consumer(TOPIC, "s{}")),
        ("max_producers_per_topic", PRODUCER, producer(TOPIC)),
        ("max_producers_per_topic", PRODUCER, producer(f"non-{TOPIC}")),
        ("max_producers_per_address", PRODUCER, producer(TOPIC)),
        ("max_topics_per_namespace", PRODUCER, producer(TOPIC + "{}")),
        ("max_topics_per_namespace", SUBSCRIBE, consumer(TOPIC + "{}")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_burst_is_admitted_up_to_the_limit(
    world: BrokerInMemory, setting: str, kind: int, each: Any, connections: int
) -> None:
    await world.restart(**{setting: MOST})
    clients = [await RawClient.connect(world.broker.port) for _ in range(connections)]
    if "topics" not in setting:
        await world.broker.opening.create_topic(NAME)
    assert await admitted(clients, kind, each) == MOST
    for client in clients:
        client.close()


async def test_partitioned_topics_of_a_burst_are_made_up_to_the_limit(world: BrokerInMemory) -> None:
    await world.restart(max_topics_per_namespace=3 * MOST, auto_topic_creation_type="partitioned", default_partitions=3)
    client = await RawClient.connect(world.broker.port)
    asked = lambda number: {"topic": f"{TOPIC}{number}"}  # noqa: E731
    assert await admitted([client], BaseCommand.PARTITIONED_METADATA, asked) == MOST
    client.close()


async def test_connections_of_a_burst_are_taken_up_to_the_limit(world: BrokerInMemory) -> None:
    await world.restart(max_connections=MOST)
    made = await asyncio.gather(*(RawClient.connect(world.broker.port) for _ in range(BURST)), return_exceptions=True)
    taken = [one for one in made if isinstance(one, RawClient)]
    assert len(taken) == MOST
    for client in taken:
        client.close()
