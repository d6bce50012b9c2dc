"""Lookups, and topics that are made: whose turn it is."""

import asyncio
from typing import Any

import pytest

from broker.arrivals import (
    LOOKUP_TURN_S,
    LOOKUPS_AT_ONCE,
    MADE_AT_ONCE,
    MAKING_TURN_S,
    SUBSCRIBED_AT_ONCE,
    Arrivals,
)
from broker.ownership.rules import BrokerAddress
from broker.wire import pulsar_pb2 as wire
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledger import ManagedLedger
from tests.support.manual_clock import ManualClock
from tests.support.memory_managed_ledger import MemoryCursor, MemoryManagedLedger
from tests.support.waiting import eventually, take_turns
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

NAMESPACE = "persistent://public/default"


class Door:
    """Topics that are made when it is their turn, and are done when they are told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.arrivals = Arrivals(self.clock)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, source: str, count: int) -> None:
        for number in range(count):
            name = f"{source}{number}"
            self._ends[name] = asyncio.Event()
            asyncio.create_task(self._make(source, name))  # noqa: RUF006
        await take_turns()

    async def _make(self, source: str, name: str) -> None:
        self.arrivals.work_for(source)
        async with self.arrivals.making():
            self.begun.append(name)
            await self._ends[name].wait()

    async def end_next(self) -> None:
        """The oldest of those that have begun ends."""
        name = next(name for name in self.begun if not self._ends[name].is_set())
        self._ends[name].set()
        await take_turns()


async def test_so_many_are_worked_on_at_once() -> None:
    door = Door()
    await door.come("a", MADE_AT_ONCE + 5)
    assert (len(door.begun), door.arrivals.waiting) == (MADE_AT_ONCE, 5)


async def test_who_comes_with_one_waits_for_one_of_each_other_source() -> None:
    door = Door()
    await door.come("a", 1_000)
    await door.come("b", 500)
    await door.come("c", 1)
    for _ in range(3):
        await door.end_next()
    assert "c0" in door.begun
    for _ in range(20):
        await door.end_next()
    late = door.begun[MADE_AT_ONCE + 3 :]
    assert {name[0] for name in late[:2]} == {"a", "b"}
    assert abs(sum(name[0] == "a" for name in late) - sum(name[0] == "b" for name in late)) <= 1, "in turn"


async def test_who_comes_later_has_no_place_before_those_of_its_round() -> None:
    """A source that was away for long does not catch up on what it did not ask for."""
    door = Door()
    await door.come("a", 100)
    for _ in range(50):
        await door.end_next()
    await door.come("b", 50)
    before = len(door.begun)
    for _ in range(20):
        await door.end_next()
    assert abs(sum(name[0] == "a" for name in door.begun[before:]) - 10) <= 1


async def test_a_turn_ends_after_its_time_and_nothing_is_lost_or_kept() -> None:
    door = Door()
    await door.come("a", MADE_AT_ONCE + 1)
    door.clock.advance(MAKING_TURN_S)
    await take_turns()
    assert len(door.begun) == MADE_AT_ONCE + 1
    for _ in range(MADE_AT_ONCE + 1):
        await door.end_next()
    assert (door.arrivals.waiting, door.arrivals._made.sources) == (0, {})


def test_a_client_has_its_own_turns_behind_a_proxy_and_without_a_role() -> None:
    assert Caller("client").source("1.2.3.4:5") == "client"
    assert Caller("proxy", original="client").source("1.2.3.4:5") == "client"
    assert TRUSTED.source("1.2.3.4:5") == Caller(None).source("1.2.3.4:5") == "1.2.3.4:5"


async def test_lookups_wait_only_for_lookups() -> None:
    door = Door()
    await door.come("a", MADE_AT_ONCE + 1)
    looked: list[int] = []

    async def look_up(number: int) -> None:
        door.arrivals.work_for("a")
        async with door.arrivals.looking_up():
            looked.append(number)
            await asyncio.sleep(3600)

    tasks = [asyncio.create_task(look_up(number)) for number in range(LOOKUPS_AT_ONCE + 1)]
    await take_turns()
    assert looked == [*range(LOOKUPS_AT_ONCE)]
    door.clock.advance(LOOKUP_TURN_S)
    await take_turns()
    assert len(looked) == LOOKUPS_AT_ONCE + 1
    assert len(door.begun) == MADE_AT_ONCE
    for task in tasks:
        task.cancel()


# ------------------------------------------------------------------------------------ in a broker


class Slow:
    """Storage that makes as many topics as it is told to, or all when the test ends, and opens those that are there.

    Turns of the broker end with that only.
    """

    def __init__(self, world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        """The names of those that were to be made."""
        self._room = asyncio.Semaphore(0)
        self._world = world
        self._monkeypatch = monkeypatch

    async def __aenter__(self) -> "Slow":
        self._monkeypatch.setattr("broker.arrivals.MAKING_TURN_S", 3600.0)
        await self._world.restart()
        self._open = self._world.broker.ledgers.open
        self._monkeypatch.setattr(self._world.broker.ledgers, "open", self.open)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.make(1_000)  # else the broker would not stop

    def make(self, count: int) -> None:
        for _ in range(count):
            self._room.release()

    async def open(self, name: str, *settings: object, create: bool = True) -> ManagedLedger:
        if create:
            self.asked.append(name.rpartition("/")[2])
            await self._room.acquire()
        return await self._open(name, *settings, create=create)  # type: ignore[arg-type]


def come(client: RawClient, names: list[str]) -> None:
    for number, name in enumerate(names):
        client.send(BaseCommand.PRODUCER, topic=f"{NAMESPACE}/{name}", producer_id=number, request_id=number)


async def test_a_neighbour_makes_its_topic_while_thousands_are_made(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Slow(world, monkeypatch) as storage:
        greedy, neighbour = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
        come(greedy, [f"g{number}" for number in range(300)])
        await eventually(lambda: world.broker.arrivals.waiting == 300 - MADE_AT_ONCE)
        assert len(storage.asked) == MADE_AT_ONCE
        come(neighbour, ["n"])
        await eventually(lambda: world.broker.arrivals.waiting == 301 - MADE_AT_ONCE)
        storage.make(1)
        await eventually(lambda: "n" in storage.asked)
        assert len(storage.asked) == MADE_AT_ONCE + 1
        storage.make(300)
        await neighbour.expect(BaseCommand.PRODUCER_SUCCESS)
        for _ in range(300):
            await greedy.expect(BaseCommand.PRODUCER_SUCCESS)


async def test_topics_that_are_there_need_no_turn(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a takeover thousands of clients come to them, while others make new ones."""
    there = [f"t{number}" for number in range(10 * MADE_AT_ONCE)]
    for name in there:
        await world.ledgers.open(TopicName.parse(f"{NAMESPACE}/{name}").managed_ledger_name)
    async with Slow(world, monkeypatch):
        client, other = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
        come(client, [f"new{number}" for number in range(2 * MADE_AT_ONCE)])
        await eventually(lambda: world.broker.arrivals.waiting == MADE_AT_ONCE)
        come(other, there)
        for _ in there:
            await other.expect(BaseCommand.PRODUCER_SUCCESS)
        assert world.broker.arrivals.waiting == MADE_AT_ONCE


async def test_a_bundle_that_went_while_a_topic_waited_gets_no_topic(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening what another broker may have opened by now would take it away from it."""
    async with Slow(world, monkeypatch) as storage:
        client = await RawClient.connect(world.broker.port)
        names = [f"g{number}" for number in range(MADE_AT_ONCE + 1)]
        come(client, names)
        await eventually(lambda: len(storage.asked) == MADE_AT_ONCE and world.broker.arrivals.waiting == 1)
        (last,) = {*names} - {*storage.asked}
        world.ownership.move(TopicName.parse(f"{NAMESPACE}/{last}"), BrokerAddress("pulsar://other:6650"))
        storage.make(1)
        answers = [await client.answer() for _ in range(2)]
        refused = [answer.error.error for answer in answers if answer.type == BaseCommand.ERROR]
        assert refused == [wire.ServiceNotReady]
        assert last not in storage.asked


async def test_the_broker_itself_waits_for_nobody(world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that clients make wait for policies, which are in a topic."""
    async with Slow(world, monkeypatch) as storage:
        client = await RawClient.connect(world.broker.port)
        come(client, [f"g{number}" for number in range(MADE_AT_ONCE + 1)])
        await eventually(lambda: world.broker.arrivals.waiting == 1)
        own = RawClient(*await world.broker.server.open_own())
        own.send(BaseCommand.CONNECT, client_version="own", protocol_version=21)
        await own.expect(BaseCommand.CONNECTED)
        come(own, ["mine"])
        await eventually(lambda: "mine" in storage.asked)
        storage.make(MADE_AT_ONCE + 2)
        await own.expect(BaseCommand.PRODUCER_SUCCESS)


# ------------------------------------------------------------------------------------ subscriptions


def subscribe(client: RawClient, topic: str, names: list[str], kind: int = wire.CommandSubscribe.Shared) -> None:
    for number, name in enumerate(names):
        client.send(
            BaseCommand.SUBSCRIBE, topic=f"{NAMESPACE}/{topic}", subscription=name, consumer_id=number,
            request_id=number, subType=kind,
        )  # fmt: skip


async def test_a_neighbour_subscribes_while_thousands_of_subscriptions_are_made(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.arrivals.MAKING_TURN_S", 3600.0)
    await world.restart()
    greedy, neighbour = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
    for name in ("g", "n"):
        await neighbour.produce(f"{NAMESPACE}/{name}", producer_id=ord(name))
    await greedy.subscribe(
        f"{NAMESPACE}/g", consumer_id=1_000, subscription="there", subType=wire.CommandSubscribe.Shared
    )
    asked, room, open_cursor = list[str](), asyncio.Semaphore(0), MemoryManagedLedger.open_cursor

    async def slow(ledger: MemoryManagedLedger, name: str, *rest: Any) -> MemoryCursor:
        asked.append(name)
        await room.acquire()
        return await open_cursor(ledger, name, *rest)

    monkeypatch.setattr(MemoryManagedLedger, "open_cursor", slow)
    count = 10 * SUBSCRIBED_AT_ONCE
    subscribe(greedy, "g", [f"s{number}" for number in range(count)])
    await eventually(lambda: world.broker.arrivals.waiting == count - SUBSCRIBED_AT_ONCE)
    assert len(asked) == SUBSCRIBED_AT_ONCE
    subscribe(greedy, "g", ["there"] * 3, wire.CommandSubscribe.Exclusive)  # in place of those that are being made
    for _ in range(3):
        assert await greedy.refused() == wire.ServiceNotReady
    await neighbour.subscribe(
        f"{NAMESPACE}/g", consumer_id=1, subscription="there", subType=wire.CommandSubscribe.Shared
    )
    subscribe(neighbour, "n", ["mine"])
    await eventually(lambda: world.broker.arrivals.waiting == count - SUBSCRIBED_AT_ONCE + 1)
    room.release()
    await eventually(lambda: "mine" in asked)
    assert len(asked) == SUBSCRIBED_AT_ONCE + 1
    for _ in range(count):
        room.release()
    await neighbour.expect(BaseCommand.SUCCESS)
    for _ in range(count):
        await greedy.expect(BaseCommand.SUCCESS)


async def test_no_cursor_is_made_of_a_topic_that_was_closed_while_its_subscription_waited(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.arrivals.MAKING_TURN_S", 3600.0)
    monkeypatch.setattr("broker.arrivals.SUBSCRIBED_AT_ONCE", 1)
    await world.restart()
    client = await RawClient.connect(world.broker.port)
    await client.produce(f"{NAMESPACE}/t")
    world.broker.arrivals.work_for("somebody")
    async with world.broker.arrivals.subscribing():
        subscribe(client, "t", ["s"])
        await eventually(lambda: world.broker.arrivals.waiting == 1)
        ledger = world.ledger(f"{NAMESPACE}/t")
        await world.broker.opening.unload(TopicName.parse(f"{NAMESPACE}/t"))
    await client.expect(BaseCommand.CLOSE_PRODUCER)
    assert await client.refused() == wire.ServiceNotReady
    assert "s" not in ledger.cursors
