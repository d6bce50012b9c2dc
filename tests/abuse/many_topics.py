"""Names without end, at all doors at once: each topic that comes to be costs the servers and the metadata some work,
which others wait for."""

import asyncio
import itertools
import random
from typing import Any, Final

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from tests.abuse.actions import opening, owner, publishing, rest
from tests.abuse.attacks import Field, answered, grpc_opened, some
from tests.abuse.roles import PATIENCE_S, Doors
from tests.unit.broker.raw_client import RawClient

NAMESPACE: Final = "shop/much"
_HERE: Final = f"persistent://{NAMESPACE}"
BY_GRPC: Final = 20
BY_HTTP: Final = 40
PARTITIONS: Final = 20
BEFORE_MAX: Final = 150
"""Topics of others that may be made before one of a neighbour: each of the sources has its turn, some at a time."""

_numbers = itertools.count()


def names(count: int) -> list[str]:
    return [f"{_HERE}/t{next(_numbers)}" for _ in range(count)]


async def owners(field: Field, client: RawClient, topics: list[str]) -> list[Doors]:
    """Who serves each. They are all looked up at once."""
    for number, topic in enumerate(topics):
        client.send(BaseCommand.LOOKUP, topic=topic, request_id=number)
    found: dict[int, Doors] = {}
    while len(found) < len(topics):
        answer = await field.doors[0].ask(client, BaseCommand.PING) if not found else await client.answer()
        if answer.type == BaseCommand.LOOKUP_RESPONSE:
            said = answer.lookupTopicResponse
            at = (one for one in field.doors if said.brokerServiceUrl.endswith(f":{one.ports['binary']}"))
            found[said.request_id] = next(at, field.doors[0])
    return [found[number] for number in range(len(topics))]


class Making:
    """What the clients over the binary port have asked for, and what was answered."""

    def __init__(self) -> None:
        self.asked = 0
        self.done = 0


async def by_binary(field: Field, role: str, count: int, making: Making) -> None:
    """As producers or consumers come to topics that do not exist, as quickly as one connection takes it."""
    topics = names(count)
    clients = {id(one): await one.binary(role) for one in field.doors}
    sent = dict.fromkeys(clients, 0)

    async def until_answered(client: RawClient, count: int) -> None:
        for _ in range(count):
            await answered(client, 1, (BaseCommand.PRODUCER_SUCCESS, BaseCommand.SUCCESS, BaseCommand.ERROR))
            making.done += 1

    try:
        for number, at in enumerate(await owners(field, clients[id(field.doors[0])], topics)):
            if role == "producer":
                fields: dict[str, Any] = {"producer_id": number}
                kind: int = BaseCommand.PRODUCER
            else:
                fields = {"consumer_id": number, "subscription": "s", "subType": wire.CommandSubscribe.Shared}
                kind = BaseCommand.SUBSCRIBE
            clients[id(at)].send(kind, topic=topics[number], request_id=number, **fields)
            sent[id(at)] += 1
        making.asked += count
        await asyncio.gather(*(until_answered(client, sent[one]) for one, client in clients.items()))
    finally:
        for client in clients.values():
            client.close()


async def neighbour(field: Field, making: Making, count: int) -> None:
    """One who makes a topic meanwhile waits for some of the others', not for all of them."""
    topic = f"persistent://quiet/n1/new{next(_numbers)}"
    at = await owner(field.doors, topic)
    client = await at.binary("victim")
    try:
        async with asyncio.timeout(PATIENCE_S):
            while making.asked < count:
                await asyncio.sleep(0)
        begun = making.done
        assert count - begun > 2 * BEFORE_MAX, "the others are done before there is anything to wait for"
        made = await at.ask(client, BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
        assert made.type == BaseCommand.PRODUCER_SUCCESS, made
        before = making.done - begun
        assert before < BEFORE_MAX, f"{before} topics of others were made before one of a neighbour"
    finally:
        client.close()


async def by_grpc(field: Field, rng: random.Random) -> None:
    async def one(topic: str) -> None:
        role, request = ("producer", publishing(topic)) if rng.random() < 0.5 else ("consumer", opening(topic, "s"))
        await grpc_opened(rng.choice(field.doors), role, request)

    await asyncio.gather(*(one(topic) for topic in names(BY_GRPC)))


async def by_http(field: Field, rng: random.Random) -> None:
    async def one(topic: str) -> None:
        answer = await rng.choice(field.doors).call("boss", "PUT", rest(topic))
        assert answer.status in (204, 429, 503), answer

    parted = field.doors[0].call("boss", "PUT", f"{rest(names(1)[0])}/partitions", PARTITIONS)
    await asyncio.gather(parted, *(one(topic) for topic in names(BY_HTTP)))


async def topics(field: Field, rng: random.Random) -> int:
    count = some(400, 1_000)
    making = Making()
    await asyncio.gather(
        by_binary(field, "producer", count, making), by_binary(field, "consumer", count, making), by_grpc(field, rng),
        by_http(field, rng), neighbour(field, making, 2 * count),
    )  # fmt: skip
    return 2 * count + BY_GRPC + BY_HTTP + PARTITIONS
