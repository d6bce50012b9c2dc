"""Lookups and clients that come to topics: whose turn it is."""

import asyncio

import pytest

from broker.arrivals import LOOKUP_TURN_S, TURN_S, Arrivals
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.runtime.clock import ManualClock
from tests.support.waiting import eventually, take_turns
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient

AT_ONCE, LOOKUPS_AT_ONCE = 8, 50


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.arrivals.AT_ONCE", AT_ONCE)
    monkeypatch.setattr("broker.arrivals.LOOKUPS_AT_ONCE", LOOKUPS_AT_ONCE)


class Door:
    """Arrivals that begin when it is their turn, and end when they are told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.arrivals = Arrivals(self.clock)
        self.begun: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def come(self, source: str, count: int) -> None:
        for number in range(count):
            name = f"{source}{number}"
            self._ends[name] = asyncio.Event()
            asyncio.create_task(self._arrive(source, name))  # noqa: RUF006
        await take_turns()

    async def _arrive(self, source: str, name: str) -> None:
        async with self.arrivals.turn(source):
            self.begun.append(name)
            await self._ends[name].wait()

    async def end_next(self) -> None:
        """The oldest of those that have begun ends."""
        name = next(name for name in self.begun if not self._ends[name].is_set())
        self._ends[name].set()
        await take_turns()


async def test_so_many_are_worked_on_at_once() -> None:
    door = Door()
    await door.come("a", AT_ONCE + 5)
    assert (len(door.begun), door.arrivals.waiting) == (AT_ONCE, 5)


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
    late = door.begun[AT_ONCE + 3 :]
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
    await door.come("a", AT_ONCE + 1)
    door.clock.advance(TURN_S)
    await take_turns()
    assert len(door.begun) == AT_ONCE + 1
    for _ in range(AT_ONCE + 1):
        await door.end_next()
    assert (door.arrivals.waiting, door.arrivals.comers.sources) == (0, {})


async def test_lookups_wait_only_for_lookups() -> None:
    door = Door()
    await door.come("a", AT_ONCE + 1)
    looked: list[int] = []

    async def look_up(number: int) -> None:
        async with door.arrivals.turn("a", looks_up=True):
            looked.append(number)
            await asyncio.sleep(3600)

    tasks = [asyncio.create_task(look_up(number)) for number in range(LOOKUPS_AT_ONCE + 1)]
    await take_turns()
    assert looked == [*range(LOOKUPS_AT_ONCE)]
    door.clock.advance(LOOKUP_TURN_S)
    await take_turns()
    assert len(looked) == LOOKUPS_AT_ONCE + 1
    assert len(door.begun) == AT_ONCE
    for task in tasks:
        task.cancel()


async def test_a_neighbour_comes_to_its_topic_while_thousands_are_made(
    world: BrokerInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this broker no topic opens; so the turns end after their time only."""
    greedy, neighbour = await RawClient.connect(world.broker.port), await RawClient.connect(world.broker.port)
    gate = asyncio.Event()
    opened: list[str] = []
    topic_for_producer = world.broker.topic_for_producer

    async def slowly(name: object) -> object:
        opened.append(str(name))
        await gate.wait()
        return await topic_for_producer(name)  # type: ignore[arg-type]

    monkeypatch.setattr(world.broker, "topic_for_producer", slowly)
    for number in range(300):
        greedy.send(
            BaseCommand.PRODUCER, topic=f"persistent://public/default/g{number}", producer_id=number, request_id=number
        )
    await eventually(lambda: world.broker.arrivals.total == 300)
    assert len(opened) == AT_ONCE
    neighbour.send(BaseCommand.PRODUCER, topic="persistent://public/default/n", producer_id=1, request_id=1)
    await eventually(lambda: any(name.endswith("/n") for name in opened))
    assert len(opened) <= 3 * AT_ONCE, "after two times at most"
    gate.set()
    await neighbour.expect(BaseCommand.PRODUCER_SUCCESS)
