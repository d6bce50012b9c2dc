"""Clients leave a topic together: some in each turn of the loop, and all are out from the first turn on."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import Any

import pytest

from broker.binary.consumers import ConnectionConsumers
from broker.binary.producers import ConnectionProducers
from broker.topic.clients.leaving import NOTIFIED_PER_TURN, by_turns
from broker.topic.non_persistent.topic import NonPersistentTopic
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.publishing.producer_access import Access, ProducerAccess
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import StorageUnavailable
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import EARLIEST
from tests.support.waiting import eventually, settle
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

STORED = "persistent://public/default/t"
PASSING = "non-persistent://public/default/t"
COUNT = 7
_S = wire.CommandSubscribe

Work = Callable[[BrokerInMemory], Awaitable[Any]]


@pytest.fixture(autouse=True)
def _two_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.clients.leaving.NOTIFIED_PER_TURN", 2)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """Turn of the loop → how many clients were told that they are closed."""
    counted = Counter[int]()
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    for sink in (ConnectionConsumers, ConnectionProducers):

        def noting(
            sink: Any, client: object, next_broker: NextBroker = NOT_KNOWN, former: Any = sink.on_closed
        ) -> None:
            if not turn:
                next_turn()
            counted[turn] += 1
            former(sink, client, next_broker)

        monkeypatch.setattr(sink, "on_closed", noting)
    return counted


@pytest.fixture
async def client(world: BrokerInMemory) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


def stored(world: BrokerInMemory) -> Topic:
    return world.broker.topics[TopicName.parse(STORED)]


def passing(world: BrokerInMemory) -> NonPersistentTopic:
    found = world.broker.non_persistent.get(TopicName.parse(PASSING))
    assert found is not None
    return found


async def consumers(client: RawClient, topic: str, kind: int, count: int = COUNT, subscription: str = "s") -> None:
    for number in range(count):
        client.send(
            BaseCommand.SUBSCRIBE, topic=topic, subscription=subscription, consumer_id=number, request_id=number,
            subType=kind, consumer_name=f"c{number}",
        )  # fmt: skip
        while (await client.answer()).type != BaseCommand.SUCCESS:
            pass
        client.send(BaseCommand.FLOW, consumer_id=number, messagePermits=100)


async def producers(client: RawClient, topic: str, count: int = COUNT) -> None:
    for number in range(count):
        await client.produce(topic, producer_id=number, producer_name=f"p{number}")


async def closed(client: RawClient, kind: int, count: int = COUNT) -> set[int]:
    """The ids that are closed, when so many are; each once."""
    ids = list[int]()
    while len(ids) < count:
        answer = await client.answer()
        if answer.type == kind:
            ids.append(answer.close_consumer.consumer_id if kind == BaseCommand.CLOSE_CONSUMER
                       else answer.close_producer.producer_id)  # fmt: skip
    assert len(ids) == len(set(ids))
    return set(ids)


ENDINGS: dict[str, Work] = {
    "unload": lambda world: world.broker.opening.unload(TopicName.parse(STORED)),
    "delete": lambda world: world.broker.deleting.delete_topic(TopicName.parse(STORED), force=True),
    "seek": lambda world: stored(world).seek(stored(world).subscriptions["s"], EARLIEST),
    "unsubscribe": lambda world: stored(world).delete_subscription("s", force=True),
}


@pytest.mark.parametrize("kind", [_S.Shared, _S.Failover, _S.Key_Shared])
@pytest.mark.parametrize("ending", ENDINGS)
async def test_consumers_leave_some_in_each_turn(
    world: BrokerInMemory, client: RawClient, told: Counter[int], ending: str, kind: int
) -> None:
    await consumers(client, STORED, kind)
    await ENDINGS[ending](world)
    assert (sum(told.values()), max(told.values())) == (COUNT, 2), "when the work has ended all have left"
    assert await closed(client, BaseCommand.CLOSE_CONSUMER) == set(range(COUNT))


async def test_consumers_of_a_lost_topic_leave_some_in_each_turn(
    world: BrokerInMemory, client: RawClient, told: Counter[int]
) -> None:
    await consumers(client, STORED, _S.Shared)
    await producers(client, STORED)
    world.broker.opening.on_lost(["public/default/0x00000000_0xffffffff"])
    assert sum(told.values()) == 2, "the others in later turns"
    await eventually(lambda: sum(told.values()) == 2 * COUNT)
    assert max(told.values()) == 2


async def test_consumers_whose_dispatching_failed_leave_some_in_each_turn(
    world: BrokerInMemory, client: RawClient, told: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await consumers(client, STORED, _S.Shared)
    subscription = stored(world).subscriptions["s"]

    def fails() -> None:
        raise ValueError("a defect")

    assert await client.nothing_came(), "all permits are there"
    monkeypatch.setattr(subscription.pump.dispatcher, "next_read", fails)
    subscription.pump.run()
    assert (subscription.consumers, sum(told.values())) == ([], 2)
    await eventually(lambda: sum(told.values()) == COUNT)
    assert max(told.values()) == 2


@pytest.mark.parametrize("kind", [_S.Shared, _S.Failover, _S.Key_Shared])
async def test_those_of_a_non_persistent_topic_leave_some_in_each_turn(
    world: BrokerInMemory, client: RawClient, told: Counter[int], kind: int
) -> None:
    await consumers(client, PASSING, kind)
    await producers(client, PASSING)
    topic = passing(world)
    closing = asyncio.ensure_future(topic.close())
    await asyncio.sleep(0)
    assert (topic.subscriptions, sum(told.values())) == ({}, 2)
    await closing
    assert (sum(told.values()), max(told.values())) == (2 * COUNT, 2)


async def test_those_of_a_subscription_of_it_leave_some_in_each_turn_and_what_they_got_counts(
    world: BrokerInMemory, client: RawClient, told: Counter[int]
) -> None:
    await consumers(client, PASSING, _S.Shared)
    await producers(client, PASSING, 1)
    client.publish(0, *range(5))
    topic = passing(world)
    await eventually(lambda: topic.messages_out == 5)
    ending = asyncio.ensure_future(topic.delete_subscription("s"))
    await asyncio.sleep(0)
    assert (topic.messages_out, sum(told.values())) == (5, 2)
    await ending
    assert (topic.messages_out, sum(told.values()), max(told.values())) == (5, COUNT, 2)


async def test_producers_leave_some_in_each_turn(world: BrokerInMemory, client: RawClient, told: Counter[int]) -> None:
    await producers(client, STORED)
    await world.broker.opening.unload(TopicName.parse(STORED))
    assert (sum(told.values()), max(told.values())) == (COUNT, 2)
    assert await closed(client, BaseCommand.CLOSE_PRODUCER) == set(range(COUNT))
    await producers(client, STORED)
    told.clear()
    await stored(world).terminate()
    assert (sum(told.values()), max(told.values())) == (COUNT, 2)


async def test_nobody_publishes_after_a_failure_before_all_producers_are_out(
    world: BrokerInMemory, client: RawClient, told: Counter[int]
) -> None:
    """Who is not out yet has lost a message that it does not know of: the next one would stand in its place."""
    await producers(client, STORED)
    ledger = world.ledger(STORED)
    ledger.fail_with = StorageUnavailable("a bookie")
    topic = stored(world)
    fenced = list[bool]()
    on_closed = topic._producers.disconnect

    def noting(producer: Any, *rest: Any) -> None:
        fenced.append(topic.is_fenced)
        on_closed(producer, *rest)

    topic._producers.disconnect = noting  # type: ignore[assignment,method-assign]
    client.publish(3, 0)
    assert await closed(client, BaseCommand.CLOSE_PRODUCER) == set(range(COUNT))
    assert fenced == [True] * COUNT
    assert max(told.values()) == 2
    await eventually(lambda: not topic.is_fenced)
    await producers(client, STORED, 1)


async def test_an_exclusive_producer_comes_when_all_others_are_out(
    world: BrokerInMemory, client: RawClient, told: Counter[int]
) -> None:
    await producers(client, STORED)
    other = await RawClient.connect(world.broker.port)
    await other.produce(STORED, producer_name="one", producer_access_mode=wire.ExclusiveWithFencing)
    assert (sum(told.values()), max(told.values())) == (COUNT, 2)
    assert list(stored(world).producers) == ["one"]
    other.close()


class Held:
    """In place of `in_turns`: the steps are taken when the test says so."""

    def __init__(self) -> None:
        self.steps: list[Generator[None, None, None]] = []
        self._go_on = asyncio.Event()

    async def __call__(self, steps: Generator[None, None, None]) -> None:
        next(steps)
        self.steps.append(steps)
        await self._go_on.wait()
        for _ in steps:
            pass

    def go_on(self) -> None:
        self._go_on.set()


async def test_who_has_to_leave_gets_nothing_more_and_nobody_comes_meanwhile(
    world: BrokerInMemory, client: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr("broker.topic.subscriptions.in_turns", held)
    other = await RawClient.connect(world.broker.port)
    await producers(other, STORED, 1)
    await consumers(client, STORED, _S.Shared)
    topic = stored(world)
    subscription = topic.subscriptions["s"]
    seeking = asyncio.ensure_future(topic.seek(subscription, EARLIEST))
    await eventually(lambda: bool(held.steps))
    assert await closed(client, BaseCommand.CLOSE_CONSUMER, 2) == {0, 1}
    other.publish(0, 0)  # nobody gets it
    await other.expect(BaseCommand.SEND_RECEIPT)
    client.send(BaseCommand.FLOW, consumer_id=5, messagePermits=10)
    assert await client.nothing_came()
    position = world.ledger(STORED).ledgers.last_confirmed
    one = MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id)
    client.send(BaseCommand.ACK, consumer_id=5, ack_type=0, message_id=[one], request_id=9)
    assert (await client.expect(BaseCommand.ACK_RESPONSE)).ackResponse.error == wire.ServiceNotReady
    assert subscription.backlog == 1
    other.send(BaseCommand.SUBSCRIBE, topic=STORED, subscription="s", consumer_id=1, request_id=3, subType=_S.Shared)
    assert await other.refused() == wire.ServiceNotReady
    assert subscription.counted.messages == 0
    held.go_on()
    await seeking
    assert await closed(client, BaseCommand.CLOSE_CONSUMER, COUNT - 2) == set(range(2, COUNT))
    await other.subscribe(STORED)
    assert (await other.answer()).message.message_id.entryId == position.entry_id
    other.close()


async def test_who_leaves_by_itself_meanwhile_is_told_nothing(
    world: BrokerInMemory, client: RawClient, told: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held()
    monkeypatch.setattr("broker.topic.subscriptions.in_turns", held)
    await consumers(client, STORED, _S.Shared)
    seeking = asyncio.ensure_future(stored(world).seek(stored(world).subscriptions["s"], EARLIEST))
    await eventually(lambda: bool(held.steps))
    assert await closed(client, BaseCommand.CLOSE_CONSUMER, 2) == {0, 1}
    client.send(BaseCommand.CLOSE_CONSUMER, consumer_id=5, request_id=8)
    await client.expect(BaseCommand.SUCCESS)
    client.send(BaseCommand.UNSUBSCRIBE, consumer_id=4, request_id=9)  # refused, and told of its close with that
    assert await client.refused() == wire.MetadataError
    assert (await client.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 4
    held.go_on()
    await seeking
    assert await closed(client, BaseCommand.CLOSE_CONSUMER, 3) == {2, 3, 6}
    assert await client.nothing_came()
    await settle()
    assert sum(told.values()) == COUNT - 1, "the one with the refusal is told once, and the one that closed not at all"


def test_as_many_are_told_in_one_turn_as_the_limit_says() -> None:
    done = list[int]()

    def steps() -> Generator[None, None, None]:
        for number in range(5):
            done.append(number)
            yield

    assert NOTIFIED_PER_TURN >= 2
    at_turns = [len(done) for _ in by_turns(steps())]
    assert (at_turns, done) == ([2, 4], list(range(5)))


def test_those_that_wait_for_exclusive_access_leave_from_anywhere_in_the_line() -> None:
    access = ProducerAccess[str](None)
    assert access.decide(wire.ExclusiveWithFencing, None, 0).access is Access.EXCLUSIVE_AFTER_FENCING
    for name in "abcd":
        access.wait(name, None)
    assert (access.leave("b"), access.leave("b"), access.leave("x")) == (True, False, False)
    assert access.next_in_line(0) == ("a", 0)
    assert access.fence() == ["c", "d"]
