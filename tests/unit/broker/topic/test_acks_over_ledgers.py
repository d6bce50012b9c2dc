"""Ids as clients name them, on topics of several ledgers: acknowledged, sought, redelivered, refused."""

from collections.abc import AsyncIterator
from typing import Any

import pulsar
import pytest

from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import EARLIEST, client, texts
from tests.unit.broker.topic.dispatching import EXCLUSIVE, SHARED, Bench, entry

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
MINUS_ONE = 2**64 - 1
CUMULATIVE = wire.CommandAck.Cumulative
LATEST_ID = 2**63 - 1

WILD = [
    pytest.param(1, 2**63, id="entry -2^63"),
    pytest.param(1, 2**64 - 2, id="entry -2"),
    pytest.param(MINUS_ONE, 0, id="ledger -1 with an entry"),
    pytest.param(2**63, 0, id="ledger -2^63"),
]


@pytest.fixture
async def raw(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    """A client of a topic with the entries 1:0 to 1:2, 4:0 to 4:2 and 6:0 to 6:2."""
    client = await RawClient.connect(world.broker.port)
    await client.produce(TOPIC)
    for ledger_id in (1, 4, 6):
        if ledger_id > 1:
            world.ledger(TOPIC).begin_ledger(ledger_id)
        client.publish(1, *range(3))
        for _ in range(3):
            stored = (await client.expect(BaseCommand.SEND_RECEIPT)).send_receipt.message_id
        assert (stored.ledgerId, stored.entryId) == (ledger_id, 2)
    yield client
    client.close()


async def ack(raw: RawClient, ledger_id: int, entry_id: int, kind: int = CUMULATIVE) -> wire.CommandAckResponse:
    ids = [MessageIdData(ledgerId=ledger_id, entryId=entry_id)]
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=kind, message_id=ids, request_id=9)
    return (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse


async def delivered(raw: RawClient, count: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        message = (await raw.expect(BaseCommand.MESSAGE)).message.message_id
        found.append((message.ledgerId, message.entryId))
    return found


EVERY = [(ledger_id, entry_id) for ledger_id in (1, 4, 6) for entry_id in range(3)]


async def test_an_ack_of_the_entry_before_the_first_loses_nothing_of_the_ledger(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.subscribe(TOPIC, permits=1, initialPosition=wire.CommandSubscribe.Earliest)
    cursor = world.broker.topics[NAME].subscriptions["s"].cursor
    for at, (ledger_id, entry_id) in enumerate(EVERY):
        assert await delivered(raw, 1) == [(ledger_id, entry_id)]
        before = MINUS_ONE if entry_id == 0 else entry_id - 1
        answer = await ack(raw, ledger_id, before)
        assert not answer.HasField("error")
        assert cursor.backlog() == len(EVERY) - at
        raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1)
    assert await raw.nothing_came()


@pytest.mark.parametrize(("ledger_id", "entry_id"), WILD)
@pytest.mark.parametrize("kind", [wire.CommandAck.Individual, CUMULATIVE])
async def test_ids_that_mean_nothing_are_refused_in_acks(
    world: BrokerInMemory, raw: RawClient, ledger_id: int, entry_id: int, kind: int
) -> None:
    await raw.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    answer = await ack(raw, ledger_id, entry_id, kind)
    assert answer.error == wire.MetadataError
    assert "is no message id" in answer.message
    assert world.broker.topics[NAME].subscriptions["s"].cursor.backlog() == len(EVERY)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(6, 3), (7, MINUS_ONE), (7, 0), (LATEST_ID, LATEST_ID)])
async def test_what_lies_beyond_the_end_is_not_acknowledged(
    world: BrokerInMemory, raw: RawClient, ledger_id: int, entry_id: int
) -> None:
    await raw.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    answer = await ack(raw, ledger_id, entry_id)
    assert answer.error == wire.MetadataError
    assert "beyond the end" in answer.message
    await ack(raw, ledger_id, entry_id, wire.CommandAck.Individual)
    assert world.broker.topics[NAME].subscriptions["s"].cursor.backlog() == len(EVERY)


async def test_an_entry_behind_the_end_of_an_older_ledger_is_that_ledgers_last_one(
    world: BrokerInMemory, raw: RawClient
) -> None:
    await raw.subscribe(TOPIC, permits=0, initialPosition=wire.CommandSubscribe.Earliest)
    answer = await ack(raw, 1, 2**63 - 1)
    assert not answer.HasField("error")
    assert world.broker.topics[NAME].subscriptions["s"].cursor.mark_delete_position == Position(1, 2)


@pytest.mark.parametrize(("ledger_id", "entry_id"), WILD)
async def test_ids_that_mean_nothing_are_refused_by_subscribe_and_seek(
    raw: RawClient, ledger_id: int, entry_id: int
) -> None:
    wild = MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    raw.send(
        BaseCommand.SUBSCRIBE,
        topic=TOPIC,
        subscription="reader",
        subType=wire.CommandSubscribe.Exclusive,
        consumer_id=2,
        request_id=3,
        durable=False,
        start_message_id=wild,
    )
    assert await raw.refused() == wire.MetadataError
    await raw.subscribe(TOPIC, permits=0)
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=4, message_id=wild)
    assert await raw.refused() == wire.MetadataError


@pytest.mark.parametrize(("ledger_id", "entry_id"), WILD)
async def test_ids_that_mean_nothing_redeliver_nothing(raw: RawClient, ledger_id: int, entry_id: int) -> None:
    """Least of all everything, which an empty list of ids means."""
    await raw.subscribe(TOPIC, subType=wire.CommandSubscribe.Shared, initialPosition=wire.CommandSubscribe.Earliest)
    await delivered(raw, len(EVERY))
    wild = MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    raw.send(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES, consumer_id=1, message_ids=[wild])
    assert await raw.nothing_came()


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "first"),
    [(MINUS_ONE, MINUS_ONE, 0), (4, MINUS_ONE, 3), (1, 2**62, 3), (2, 0, 3), (LATEST_ID, 2**48 - 1, 9), (9, 0, 9)],
)
async def test_a_seek_goes_to_the_next_entry_that_there_is(
    world: BrokerInMemory, raw: RawClient, ledger_id: int, entry_id: int, first: int
) -> None:
    await raw.subscribe(TOPIC, permits=0)
    wanted = MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    raw.send(BaseCommand.SEEK, consumer_id=1, request_id=4, message_id=wanted)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    await raw.expect(BaseCommand.SUCCESS)
    await raw.subscribe(TOPIC)
    assert await delivered(raw, len(EVERY) - first) == EVERY[first:]


@pytest.mark.parametrize("kind", ["reader", "consumer"])
async def test_official_clients_get_everything_of_many_short_ledgers(world: BrokerInMemory, kind: str) -> None:
    """Each message is acknowledged cumulatively as it comes, the first of a batch by naming the entry before it."""
    count, rounds = 40, 12

    def publish(c: pulsar.Client, round_: int) -> None:
        producer = c.create_producer(TOPIC, batching_max_messages=7, batching_max_publish_delay_ms=100)
        for n in range(count):
            producer.send_async(f"{round_}-{n}".encode(), None)
        producer.flush()
        producer.close()

    def follow(c: pulsar.Client) -> Any:
        if kind == "reader":
            return c.create_reader(TOPIC, pulsar.MessageId.earliest, receiver_queue_size=10)
        return c.subscribe(TOPIC, "s", initial_position=EARLIEST, receiver_queue_size=10)

    def take(source: Any, some: int) -> list[Any]:
        got = []
        for _ in range(some):
            got.append(source.read_next(5000) if kind == "reader" else source.receive(5000))
            if kind == "consumer":
                source.acknowledge_cumulative(got[-1])
        return got

    def scenario() -> None:
        with client(world.url) as c:
            source = follow(c)
            got: list[str] = []
            for round_ in range(rounds):
                world.ledger(TOPIC).begin_ledger(1000 + round_)
                publish(c, round_)
                got += texts(take(source, count - 13))  # lags, so that acks meet what is not dispatched yet
            got += texts(take(source, 13 * rounds))
            assert got == [f"{round_}-{n}" for round_ in range(rounds) for n in range(count)]

    await world.run(scenario)


# ---------------------------------------------------------------------------------- defects in background steps


async def test_a_cold_read_that_fails_in_an_unforeseen_way_is_tried_again(
    world: BrokerInMemory, raw: RawClient
) -> None:
    ledger = world.ledger(TOPIC)
    failures = [TypeError("a defect"), ValueError("another")]

    async def wait_cold() -> None:
        if failures:
            raise failures.pop()

    ledger.cold = True
    ledger.wait_cold = wait_cold  # type: ignore[method-assign]
    await raw.subscribe(TOPIC, initialPosition=wire.CommandSubscribe.Earliest)
    got = await delivered(raw, 1)
    while got[-1] != EVERY[-1]:
        got += await delivered(raw, 1)
    assert not failures
    assert [one for one in EVERY if one not in got] == []


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
@pytest.mark.parametrize("cold", [False, True])
async def test_a_defect_while_dispatching_loses_nothing_and_the_consumers_come_back(kind: int, cold: bool) -> None:
    bench = Bench()
    bench.host.survives_defects = True
    await bench.append(*map(entry, range(6)))
    peer = bench.join(1, kind)
    consumer = bench.consumers[1]
    calls: list[Position] = []

    class Defective(type(consumer)):  # type: ignore[misc]
        __slots__ = ()

        def send(self, position: Position, *arguments: Any, **named: Any) -> None:
            calls.append(position)
            if len(calls) == 4:
                raise IndexError("a defect")
            super().send(position, *arguments, **named)

    consumer.__class__ = Defective
    bench.ledger.cold = cold
    bench.flow(1, 100)
    await bench.host.finish_fetching()
    assert len(calls) == 4
    assert bench.subscription.consumers == []
    assert peer.told == ["closed"]
    again = bench.join(2, kind, permits=100)
    await bench.host.finish_fetching()
    assert again.got == list(range(6))


async def test_a_defect_while_dispatching_keeps_no_receipt_back(world: BrokerInMemory, raw: RawClient) -> None:
    await raw.subscribe(TOPIC, permits=0)

    def broken() -> None:
        raise KeyError("a defect")

    dispatcher = world.broker.topics[NAME].subscriptions["s"].pump.dispatcher
    assert dispatcher is not None
    dispatcher.next_read = broken  # type: ignore[method-assign]
    raw.publish(1, 3)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 3
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
