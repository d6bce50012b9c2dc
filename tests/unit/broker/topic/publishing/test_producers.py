"""The producers of a topic without the topic: names, limits, and who has it exclusively."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from broker.errors import BrokerError, NotReady, ProducerBusy, ProducerFenced, StorageFailure
from broker.topic.clients.producer import Producer
from broker.topic.limits import TopicLimits, limits_of
from broker.topic.ports import NextBroker
from broker.topic.publishing.producers import Producers
from broker.topic.requests import Attached, ProducerRequest
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import StorageUnavailable
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle
from tests.unit.broker.conftest import CONFIG
from tests.unit.broker.topic.test_limits import NO_POLICIES

EXCLUSIVE, WAITING, FENCING = wire.Exclusive, wire.WaitForExclusive, wire.ExclusiveWithFencing


class NotingSink:
    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_closed(self, producer: Producer, next_broker: NextBroker) -> None:
        self.told.append("closed")


class Epochs:
    """The properties of a managed ledger, whose writing can be made to fail."""

    def __init__(self) -> None:
        self.properties: Mapping[str, str] = {"mine": "kept"}
        self.error: StorageUnavailable | None = None
        self.on_write: Callable[[], None] = lambda: None

    async def set_properties(self, properties: Mapping[str, str]) -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.on_write()
        self.properties = properties


def limits(**settings: Any) -> TopicLimits:
    return limits_of(replace(CONFIG, **settings), NO_POLICIES, is_system=False)


class Bench:
    def __init__(self) -> None:
        self.epochs = Epochs()
        self.bell = Bell()
        self.tasks = Tasks("test")
        self.clock = ManualClock()
        self.producers = Producers(TopicName.parse("t"), self.epochs, self.clock, self.tasks, self.bell)
        self.ready: list[tuple[str, int | None]] = []

    def producer(self, name: str, mode: int = wire.Shared, **options: Any) -> Producer:
        return Producer(cast(Any, None), cast(Any, NotingSink()), 1, name, access_mode=mode, **options)

    async def admit(self, producer: Producer, check_open: Callable[[], None] = lambda: None) -> Attached:
        request = ProducerRequest(
            producer, None, False, None, lambda epoch: self.ready.append((producer.name, epoch)), lambda: None
        )
        async with self.producers.admission:
            self.producers.make_room(producer, limits())
            return await self.producers.admit(request, -1, check_open)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def told(producer: Producer) -> list[Any]:
    return cast(NotingSink, producer.sink).told


async def test_a_name_is_one_producer_s(bench: Bench) -> None:
    await bench.admit(bench.producer("p"))
    with pytest.raises(ProducerBusy, match="already connected"):
        await bench.admit(bench.producer("p"))


async def test_a_client_that_comes_back_takes_its_generated_name_from_its_old_connection(bench: Bench) -> None:
    old = bench.producer("made-up", has_generated_name=True, epoch=1)
    await bench.admit(old)
    again = bench.producer("made-up", has_generated_name=True, epoch=2)
    await bench.admit(again)
    assert told(old) == ["closed"]
    assert bench.producers.by_name == {"made-up": again}
    with pytest.raises(ProducerBusy):
        await bench.admit(bench.producer("made-up", has_generated_name=True, epoch=2))


async def test_no_more_producers_than_the_limit(bench: Bench) -> None:
    await bench.admit(bench.producer("p"))
    bench.producers.make_room(bench.producer("q"), limits(max_producers_per_topic=2))
    with pytest.raises(ProducerBusy, match="max producers"):
        bench.producers.make_room(bench.producer("q"), limits(max_producers_per_topic=1))


@pytest.mark.parametrize("mode", [EXCLUSIVE, WAITING, FENCING])
@pytest.mark.parametrize("name", ["p", "q"])
async def test_the_limit_comes_before_name_and_access(bench: Bench, mode: int, name: str) -> None:
    """As with Apache's brokers, which ask for it before everything else (seen: 4.0.8, 4.2.4)."""
    await bench.admit(bench.producer("p"))
    with pytest.raises(ProducerBusy, match="max producers"):
        bench.producers.make_room(bench.producer(name, mode), limits(max_producers_per_topic=1))


async def test_a_client_that_comes_back_has_its_own_room(bench: Bench) -> None:
    await bench.admit(bench.producer("made-up", has_generated_name=True, epoch=1))
    again = bench.producer("made-up", has_generated_name=True, epoch=2)
    bench.producers.make_room(again, limits(max_producers_per_topic=1))


async def test_no_more_producers_of_one_host_than_its_limit(bench: Bench) -> None:
    few = limits(max_producers_per_address=2)
    for name, address in (("p", "10.0.0.1:5"), ("q", "10.0.0.1:6"), ("r", "10.0.0.11:5")):
        await bench.admit(bench.producer(name, address=address))
    with pytest.raises(ProducerBusy, match="'persistent://public/default/t' reached max same address producers limit"):
        bench.producers.make_room(bench.producer("s", address="10.0.0.1:7"), few)
    bench.producers.make_room(bench.producer("s", address="10.0.0.11:7"), few)


async def test_the_epoch_is_stored_before_an_exclusive_producer_is_in(bench: Bench) -> None:
    found: list[int] = []
    bench.epochs.on_write = lambda: found.append(len(bench.producers.by_name))
    assert (await bench.admit(bench.producer("p", EXCLUSIVE))).epoch == 0
    assert found == [0]
    assert bench.epochs.properties == {"mine": "kept", "pulsar.topic.epoch": "0"}
    with pytest.raises(ProducerFenced):
        await bench.admit(bench.producer("q", EXCLUSIVE))


async def test_whose_epoch_is_not_stored_is_not_in(bench: Bench) -> None:
    bench.epochs.error = StorageUnavailable("gone")
    with pytest.raises(StorageFailure):
        await bench.admit(bench.producer("p", EXCLUSIVE))
    assert bench.producers.by_name == {}
    bench.epochs.error = None
    assert (await bench.admit(bench.producer("q", EXCLUSIVE))).ready


async def test_a_topic_that_closes_while_the_epoch_is_stored_takes_nobody(bench: Bench) -> None:
    def closed() -> None:
        raise NotReady("closed meanwhile")

    with pytest.raises(BrokerError, match="closed meanwhile"):
        await bench.admit(bench.producer("p", EXCLUSIVE), closed)
    assert bench.producers.by_name == {}


async def test_who_waits_longest_is_next(bench: Bench) -> None:
    first = bench.producer("first", EXCLUSIVE)
    await bench.admit(first)
    for name in ("second", "third"):
        assert not (await bench.admit(bench.producer(name, WAITING))).ready
    bench.producers.detach(first)
    await settle()
    assert bench.ready == [("second", 1)]
    bench.producers.close_when_answered(bench.producers.by_name["second"], lambda: None)
    await settle()
    assert bench.ready == [("second", 1), ("third", 2)]


async def test_who_fences_pushes_out_holders_and_waiters(bench: Bench) -> None:
    holder, waiter = bench.producer("holder", EXCLUSIVE), bench.producer("waiter", WAITING)
    await bench.admit(holder)
    await bench.admit(waiter)
    assert (await bench.admit(bench.producer("boss", FENCING))).epoch == 1
    assert list(bench.producers.by_name) == ["boss"]
    assert bench.ready == [("waiter", None)]
    assert told(holder) == ["closed"]


async def test_a_name_waits_for_what_was_sent_over_the_topic_api(bench: Bench) -> None:
    former, newcomer = bench.producer("p", regroups=True), bench.producer("p")
    bench.producers.deduplicates = True
    await bench.admit(former)
    former.pending = 1
    bench.producers.detach(former)
    assert bench.producers.is_storing_for("p")
    with pytest.raises(NotReady, match="still being stored"):
        bench.producers.check_no_send_is_pending(newcomer)
    waiting = asyncio.create_task(bench.producers.until_no_send_is_pending(newcomer))
    await settle()
    assert not waiting.done()
    former.pending = 0
    bench.producers.on_all_answered(former)
    await waiting  # told, without the clock
    bench.producers.check_no_send_is_pending(newcomer)
    assert not bench.producers.is_storing_for("p")


async def test_a_producer_is_closed_when_all_it_sent_is_answered(bench: Bench) -> None:
    producer = bench.producer("p")
    await bench.admit(producer)
    producer.pending = 1
    answers: list[str] = []
    bench.producers.close_when_answered(producer, lambda: answers.append("done"))
    assert answers == []
    producer.pending = 0
    bench.producers.on_all_answered(producer)
    assert answers == ["done"]
    assert told(producer) == []
    assert bench.producers.by_name == {}
