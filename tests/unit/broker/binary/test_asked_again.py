"""Clients that ask again on a connection that stays: for a consumer or a producer that is there, that is being made, or
that was closed a moment ago. The clock stands still unless a test moves it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from broker.binary.consumers import TELL_AGAIN_MS
from broker.binary.producers import WAIT_AGAIN_MS
from broker.broker import Broker
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages_pb2 import MessageIdData
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
MODE = wire.ProducerAccessMode
SUBSCRIBE = {"topic": TOPIC, "consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Shared}
PRODUCE = {"topic": TOPIC, "producer_id": 1, "producer_name": "me"}


@pytest.fixture
async def clock(world: BrokerInMemory) -> AsyncIterator[ManualClock]:
    made = ManualClock()
    await world.broker.close()
    world.broker = Broker(
        world.config, world.store, None, made, ownership=world.ownership, ledgers=world.ledgers, schemas=world.schemas
    )
    await world.broker.start()
    yield made
    for ledger in world.ledgers.by_name.values():  # closing would wait, and the clock stands still
        ledger.release()


@pytest.fixture
async def raw(world: BrokerInMemory, clock: ManualClock) -> AsyncIterator[RawClient]:
    client = await RawClient.connect(world.broker.port)
    yield client
    client.close()


async def subscribe(raw: RawClient, request_id: int = 2) -> None:
    raw.send(BaseCommand.SUBSCRIBE, request_id=request_id, **SUBSCRIBE)
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == request_id


async def messages(raw: RawClient, count: int) -> list[int]:
    return [(await raw.expect(BaseCommand.MESSAGE)).message.message_id.entryId for _ in range(count)]


def hold_second_check(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A request stops between the topic, which has its client already, and the answer; returns what lets it go on."""
    go_on, asked = asyncio.Event(), 0

    async def check(*_: Any) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            await go_on.wait()

    monkeypatch.setattr(world.broker.access, "check", check)
    return go_on.set


# ------------------------------------------------------------------------------------ consumers


async def test_a_consumer_that_asks_again_and_again_while_its_topic_is_opened_loses_nothing(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient
) -> None:
    """It was closed before its first permits, and subscribes before it is told so again; opening takes long. It is
    refused meanwhile, waits, is answered, gets messages, and then its timer makes it subscribe once more."""
    await raw.produce(TOPIC, producer_id=7)
    await subscribe(raw)
    await world.broker.opening.unload(NAME)
    assert {(await raw.answer()).type for _ in range(2)} == {BaseCommand.CLOSE_CONSUMER, BaseCommand.CLOSE_PRODUCER}
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1000)
    assert await raw.nothing_came()
    world.ledgers.hold_opening = asyncio.Event()
    raw.send(BaseCommand.SUBSCRIBE, request_id=10, **SUBSCRIBE)
    await settle()
    clock.advance(5)
    assert await raw.nothing_came(), "a close would be taken for one of the consumer that is being made"
    for request_id in range(11, 15):
        raw.send(BaseCommand.SUBSCRIBE, request_id=request_id, **SUBSCRIBE)
        error = (await raw.expect(BaseCommand.ERROR)).error
        assert (error.request_id, error.error) == (request_id, wire.ServiceNotReady)
        clock.advance(0.5)
    world.ledgers.hold_opening.set()
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 10
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1000)
    await raw.produce(TOPIC, producer_id=7)
    for number in range(101):
        raw.publish(7, number)
        got = {(await raw.answer()).type for _ in range(2)}
        assert got == {BaseCommand.SEND_RECEIPT, BaseCommand.MESSAGE}
    clock.advance(3)
    await subscribe(raw, 15)
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=1000)
    assert await messages(raw, 101) == list(range(101))
    assert await raw.nothing_came()


async def test_a_close_of_a_consumer_that_is_being_made_is_told_by_the_answer(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hold_second_check(world, monkeypatch)
    raw.send(BaseCommand.SUBSCRIBE, request_id=3, **SUBSCRIBE)
    await settle()
    assert world.broker.topics[NAME].is_in_use
    await world.broker.opening.unload(NAME)
    assert await raw.nothing_came()
    go_on()
    error = (await raw.expect(BaseCommand.ERROR)).error
    assert (error.request_id, error.error) == (3, wire.ServiceNotReady)
    await subscribe(raw, 4)
    await world.broker.opening.unload(NAME)
    assert (await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 1


async def test_a_consumer_that_is_closed_early_twice_is_told_again_of_the_second_time(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient
) -> None:
    for _ in range(2):
        await subscribe(raw)
        await world.broker.opening.unload(NAME)
        await raw.expect(BaseCommand.CLOSE_CONSUMER)
        raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
        assert await raw.nothing_came()
        clock.advance(0.9 * TELL_AGAIN_MS / 1000)
    assert await raw.nothing_came()
    clock.advance(0.2 * TELL_AGAIN_MS / 1000)
    assert (await raw.expect(BaseCommand.CLOSE_CONSUMER)).close_consumer.consumer_id == 1


async def test_who_subscribed_once_more_and_is_closed_before_its_permits_is_told_again(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient
) -> None:
    await subscribe(raw)
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    await subscribe(raw, 3)
    await world.broker.opening.unload(NAME)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    raw.send(BaseCommand.FLOW, consumer_id=1, messagePermits=10)
    assert await raw.nothing_came()
    clock.advance(TELL_AGAIN_MS / 1000)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)


async def test_who_subscribes_while_it_unsubscribes_has_a_consumer_afterwards(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(raw)
    ledger, held = world.ledger(TOPIC), asyncio.Event()
    delete = ledger.delete_cursor

    async def slowly(name: str) -> None:
        await held.wait()
        await delete(name)

    monkeypatch.setattr(ledger, "delete_cursor", slowly)
    raw.send(BaseCommand.UNSUBSCRIBE, consumer_id=1, request_id=5)
    await settle()
    raw.send(BaseCommand.SUBSCRIBE, request_id=6, **SUBSCRIBE)
    error = (await raw.expect(BaseCommand.ERROR)).error
    assert (error.request_id, error.error) == (6, wire.ServiceNotReady)
    held.set()
    assert (await raw.expect(BaseCommand.SUCCESS)).success.request_id == 5
    await subscribe(raw, 7)
    assert world.broker.topics[NAME].is_in_use


async def test_an_acknowledgement_that_is_waited_for_is_answered_when_its_consumer_is_closed(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient
) -> None:
    await subscribe(raw)
    await world.broker.opening.unload(NAME)
    await raw.expect(BaseCommand.CLOSE_CONSUMER)
    ids = [MessageIdData(ledgerId=1, entryId=0)]
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids)
    assert await raw.nothing_came()
    raw.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=ids, request_id=8)
    answer = (await raw.expect(BaseCommand.ACK_RESPONSE)).ackResponse
    assert (answer.request_id, answer.consumer_id, answer.error) == (8, 1, wire.ConsumerNotFound)


# ------------------------------------------------------------------------------------ producers


async def test_a_producer_that_asks_again_and_again_while_its_topic_is_opened_stores_all_once(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient
) -> None:
    await world.set_policies("public/default", deduplicationEnabled=True)
    world.ledgers.hold_opening = asyncio.Event()
    raw.send(BaseCommand.PRODUCER, request_id=10, **PRODUCE)
    await settle()
    for request_id in range(11, 15):
        raw.send(BaseCommand.PRODUCER, request_id=request_id, epoch=1, **PRODUCE)
        error = (await raw.expect(BaseCommand.ERROR)).error
        assert (error.request_id, error.error) == (request_id, wire.ServiceNotReady)
        clock.advance(0.5)
    world.ledgers.hold_opening.set()
    first = (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (first.request_id, first.last_sequence_id) == (10, -1)
    raw.publish(1, 0, 1, 2)
    for _ in range(3):
        await raw.expect(BaseCommand.SEND_RECEIPT)
    world.ledger(TOPIC).hold = True
    raw.publish(1, 3, 4)
    assert await raw.nothing_came()
    raw.send(BaseCommand.PRODUCER, request_id=15, epoch=5, **PRODUCE)
    again = (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (again.request_id, again.last_sequence_id, again.producer_ready) == (15, 2, True)
    assert world.broker.topics[NAME].producers["me"].epoch == 5
    world.ledger(TOPIC).release()
    raw.publish(1, 3, 4)
    receipts = [(await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt for _ in range(4)]
    assert [(one.sequence_id, one.message_id.entryId) for one in receipts] == [
        (3, 3), (4, 4), (3, 2**64 - 1), (4, 2**64 - 1)
    ]  # fmt: skip
    assert world.ledger(TOPIC).ledgers.entries_total == 5


async def test_a_close_of_a_producer_that_is_being_made_is_told_by_the_answer(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = hold_second_check(world, monkeypatch)
    raw.send(BaseCommand.PRODUCER, request_id=3, **PRODUCE)
    await settle()
    assert world.broker.topics[NAME].is_in_use
    await world.broker.opening.unload(NAME)
    assert await raw.nothing_came()
    go_on()
    error = (await raw.expect(BaseCommand.ERROR)).error
    assert (error.request_id, error.error) == (3, wire.ServiceNotReady)
    raw.send(BaseCommand.PRODUCER, request_id=4, **PRODUCE)
    await raw.expect(BaseCommand.PRODUCER_SUCCESS)
    await world.broker.opening.unload(NAME)
    assert (await raw.expect(BaseCommand.CLOSE_PRODUCER)).close_producer.producer_id == 1


@pytest.mark.parametrize("then", ["its holder closes", "an unload", "it is fenced"])
async def test_a_producer_that_waits_and_asks_again_is_answered_by_its_last_request(
    world: BrokerInMemory, clock: ManualClock, raw: RawClient, then: str
) -> None:
    await raw.produce(TOPIC, 9, producer_access_mode=MODE.Value("Exclusive"))
    wanted = {**PRODUCE, "producer_access_mode": MODE.Value("WaitForExclusive")}
    for request_id in (5, 6):
        raw.send(BaseCommand.PRODUCER, request_id=request_id, **wanted)
        waits = (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
        assert (waits.request_id, waits.producer_ready) == (request_id, False)
    if then == "its holder closes":
        raw.send(BaseCommand.CLOSE_PRODUCER, producer_id=9, request_id=7)
        await raw.expect(BaseCommand.SUCCESS)
    elif then == "an unload":
        await world.broker.opening.unload(NAME)
        await raw.expect(BaseCommand.CLOSE_PRODUCER)
        clock.advance(WAIT_AGAIN_MS / 1000)
    else:
        fencing = {"topic": TOPIC, "producer_id": 3, "producer_access_mode": MODE.Value("ExclusiveWithFencing")}
        raw.send(BaseCommand.PRODUCER, request_id=8, **fencing)
        error = (await raw.expect(BaseCommand.ERROR)).error
        assert (error.request_id, error.error) == (6, wire.ProducerFenced)
        return
    ready = (await raw.expect(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (ready.request_id, ready.producer_ready) == (6, True)
    assert await raw.nothing_came()
    raw.publish(1, 0)
    assert (await raw.expect(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 0
