"""Each request is answered exactly once, whatever happens to its topic, or the connection is gone.

All commands with a request id, before and while their topic is unloaded, taken over or deleted, and as their connection
is lost; storage answers nothing at that moment, and later.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import pytest

from broker.binary.connection import _TAKEN
from broker.ownership.rules import BrokerAddress
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import ManagedLedgerFenced
from managed_ledger.messages_pb2 import MessageIdData
from tests.support.waiting import eventually, settle
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

TOPIC: Final = "persistent://public/default/t"
NAME: Final = TopicName.parse(TOPIC)
BUNDLE: Final = "public/default/0x00000000_0xffffffff"
ASKED: Final = 77
SCHEMA: Final = wire.Schema(name="", type=wire.Schema.String, schema_data=b"")
TXN: Final = {"txnid_least_bits": 1, "txnid_most_bits": 1}

# Of each command one or more requests: on a connection with the producer 1 and the consumer 1.
REQUESTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "LOOKUP": {"topic": TOPIC},
    "PARTITIONED_METADATA": {"topic": TOPIC},
    "GET_TOPICS_OF_NAMESPACE": {"namespace": "public/default"},
    "PRODUCER": {"topic": TOPIC, "producer_id": 2, "schema": SCHEMA, "initial_subscription_name": "initial"},
    "PRODUCER again": {"topic": TOPIC, "producer_id": 1},
    "PRODUCER exclusively": {
        "topic": TOPIC, "producer_id": 2,
        "producer_access_mode": wire.ProducerAccessMode.Value("ExclusiveWithFencing"),
    },
    "CLOSE_PRODUCER": {"producer_id": 1},
    "SUBSCRIBE": {
        "topic": TOPIC, "consumer_id": 2, "subscription": "s2", "subType": wire.CommandSubscribe.Shared,
        "schema": SCHEMA,
    },
    "SUBSCRIBE again": {
        "topic": TOPIC, "consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Exclusive
    },
    "SUBSCRIBE as a reader": {
        "topic": TOPIC, "consumer_id": 2, "subscription": "reader", "subType": wire.CommandSubscribe.Exclusive,
        "durable": False, "start_message_rollback_duration_sec": 10,
    },
    "CLOSE_CONSUMER": {"consumer_id": 1},
    "UNSUBSCRIBE": {"consumer_id": 1},
    "UNSUBSCRIBE by force": {"consumer_id": 1, "force": True},
    "SEEK": {"consumer_id": 1, "message_id": MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)},
    "SEEK to a time": {"consumer_id": 1, "message_publish_time": 1},
    "ACK": {"consumer_id": 1, "ack_type": 0, "message_id": [MessageIdData(ledgerId=1, entryId=0)]},
    "GET_LAST_MESSAGE_ID": {"consumer_id": 1},
    "CONSUMER_STATS": {"consumer_id": 1},
    "GET_SCHEMA": {"topic": TOPIC},
    "GET_OR_CREATE_SCHEMA": {"topic": TOPIC, "schema": SCHEMA},
    "WATCH_TOPIC_LIST": {"namespace": "public/default", "topics_pattern": "public/default/.*", "watcher_id": 1},
    "WATCH_TOPIC_LIST_CLOSE": {"watcher_id": 1},
    "TC_CLIENT_CONNECT_REQUEST": {"tc_id": 0},
    "NEW_TXN": {},
    "ADD_PARTITION_TO_TXN": TXN,
    "ADD_SUBSCRIPTION_TO_TXN": TXN,
    "END_TXN": TXN,
    "END_TXN_ON_PARTITION": TXN,
    "END_TXN_ON_SUBSCRIPTION": TXN,
    "SCALABLE_TOPIC_SUBSCRIBE": {},
    "SCALABLE_TOPIC_UNSUBSCRIBE": {},
}  # fmt: skip


def kind_of(request: str) -> int:
    kind: int = BaseCommand.Type.Value(request.partition(" ")[0])
    return kind


def test_no_command_with_a_request_id_is_left_out() -> None:
    """By the protocol: a command that is taken some day has to come in here."""
    bodies = {kind: BaseCommand.DESCRIPTOR.fields_by_name[BODY_OF_TYPE[kind]].message_type for kind in _TAKEN}
    asked = {kind for kind, body in bodies.items() if body is not None and "request_id" in body.fields_by_name}
    assert {kind_of(request) for request in REQUESTS} == asked


@contextmanager
def silent(world: BrokerInMemory) -> Iterator[None]:
    """Storage answers nothing meanwhile."""
    ledger, answers = world.ledger(TOPIC), asyncio.Event()
    holders = (ledger, world.ledgers, world.schemas)
    for holder in holders:
        holder.answers_held = answers
    world.ledgers.hold_opening = ledger.reads_held = answers
    ledger.hold = ledger.cold = True
    try:
        yield
    finally:
        answers.set()
        for holder in holders:
            holder.answers_held = None
        world.ledgers.hold_opening = ledger.reads_held = None
        ledger.cold = False
        ledger.release()


async def happens(world: BrokerInMemory, what: str) -> None:
    broker = world.broker
    if what == "unload":
        await broker.opening.unload(NAME)
    elif what == "takeover":
        world.ownership.move(NAME, BrokerAddress("pulsar://elsewhere:6650"))
        world.ledger(TOPIC).fence(ManagedLedgerFenced("taken over"))
        world.ownership.lose(BUNDLE)
    else:
        assert what == "delete"
        await broker.deleting.delete_topic(NAME, force=True)


async def clients(world: BrokerInMemory) -> RawClient:
    """A connection with a producer and a consumer of a topic that has a message; one is not confirmed."""
    raw = await RawClient.connect(world.broker.port)
    await raw.produce(TOPIC)
    raw.publish(1, 0)
    await raw.expect(BaseCommand.SEND_RECEIPT)
    await raw.subscribe(TOPIC, permits=1)
    world.ledger(TOPIC).hold = True
    raw.publish(1, 1)
    assert await raw.nothing_came()
    return raw


def ask(raw: RawClient, request: str) -> None:
    raw.send(kind_of(request), request_id=ASKED, **REQUESTS[request])


async def answers_to(raw: RawClient, count: int = 1) -> list[BaseCommand]:
    """The answers to the request: *count* at least, and those that are there with the answer to a later one."""
    found: list[BaseCommand] = []

    async def take() -> BaseCommand:
        made = await raw.answer()
        body = getattr(made, BODY_OF_TYPE[made.type])
        if getattr(body, "request_id", None) == ASKED:
            found.append(made)
        return made

    while len(found) < count:
        await take()
    await settle()
    raw.send(BaseCommand.PING)
    while (await take()).type != BaseCommand.PONG:
        pass
    return found


@pytest.mark.parametrize("event", ["unload", "takeover", "delete"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("request_", REQUESTS)
async def test_each_request_is_answered_once_whatever_happens_to_its_topic(
    world: BrokerInMemory, request_: str, when: str, event: str
) -> None:
    raw = await clients(world)
    with silent(world):
        if when == "before":
            ask(raw, request_)
            await settle(10)
        happening = asyncio.create_task(happens(world, event))
        await settle(10)
        if when == "meanwhile":
            ask(raw, request_)
            await settle(10)
    await happening
    assert len(await answers_to(raw)) == 1
    raw.close()


@pytest.mark.parametrize("request_", REQUESTS)
async def test_nothing_is_left_of_a_request_whose_connection_is_lost(world: BrokerInMemory, request_: str) -> None:
    raw = await clients(world)
    with silent(world):
        ask(raw, request_)
        await settle(10)
        raw.close()
        await eventually(lambda: not world.broker.server.clients)
    topic = world.broker.topics[NAME]
    await eventually(lambda: not topic.producers and not topic.is_in_use)
    assert world.broker.arrivals.total == 0
    assert world.broker.watched_names.total == 0
