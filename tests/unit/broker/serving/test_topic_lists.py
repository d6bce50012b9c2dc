"""Lists of topics that are watched, with a clock that stands still."""

import asyncio
from collections.abc import Callable

import pytest

from broker.serving.topic_lists import PAUSE_FACTOR, RETRY_S, SETTLE_S, TopicLists
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, StoreUnavailable
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

NS = "t/n"


class World:
    """Topics, and who is called when they change."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.listed = 0
        self.fails = False
        self.watches: list[Callable[[], None]] = []
        self.clock = ManualClock()
        self.slow_s = 0.0
        self.lists = TopicLists(self.list, self.watch, self.clock)
        self.told: list[list[str]] = []

    async def list(self, namespace: str) -> list[str]:
        assert namespace == NS
        self.listed += 1
        if self.slow_s:
            self.clock.advance(self.slow_s)
        if self.fails:
            raise StoreUnavailable("away")
        return list(self.topics)

    def watch(self, namespace: str, changed: Callable[[], None]) -> Cancel:
        self.watches.append(changed)
        return lambda: self.watches.remove(changed)

    def change(self, *topics: str) -> None:
        self.topics = list(topics)
        for changed in list(self.watches):
            changed()

    async def later(self, seconds: float) -> None:
        await settle()
        self.clock.advance(seconds)
        await settle()


@pytest.fixture
def world() -> World:
    return World()


async def test_changes_that_come_together_are_told_as_one(world: World) -> None:
    topics, cancel = await world.lists.watch(NS, world.told.append)
    assert topics == []
    world.change("a")
    world.change("a", "b")
    await world.later(SETTLE_S)
    assert world.told == [["a", "b"]]
    assert world.listed == 2
    world.change("b")
    await world.later(SETTLE_S)
    assert world.told[1:] == [["b"]]
    cancel()
    await world.lists.close()


async def test_watchers_share_one_watch_and_the_last_one_ends_it(world: World) -> None:
    (_, first), (_, second) = [await world.lists.watch(NS, world.told.append) for _ in range(2)]
    assert len(world.watches) == 1
    first()
    first()
    world.change("a")
    await world.later(SETTLE_S)
    assert world.told == [["a"]]
    second()
    assert world.watches == []
    await world.lists.close()


async def test_a_change_during_the_list_is_told_afterwards(world: World) -> None:
    await world.lists.watch(NS, world.told.append)
    world.change("a")
    await settle()
    world.clock.advance(SETTLE_S)
    await asyncio.sleep(0)
    world.change("a", "b")
    await world.later(SETTLE_S)
    assert world.told[-1] == ["a", "b"]
    await world.lists.close()


async def test_slow_lists_are_made_seldom(world: World) -> None:
    world.slow_s = 2.0
    await world.lists.watch(NS, world.told.append)
    world.change("a")
    await world.later(2.0 * PAUSE_FACTOR - 0.1)
    assert world.told == []
    await world.later(0.2)
    assert world.told == [["a"]]
    await world.lists.close()


async def test_a_list_that_fails_is_made_again(world: World) -> None:
    await world.lists.watch(NS, world.told.append)
    world.fails = True
    world.change("a")
    await world.later(SETTLE_S)
    assert world.told == []
    world.fails = False
    await world.later(RETRY_S)
    assert world.told == [["a"]]
    await world.lists.close()


async def test_a_watch_whose_first_list_fails_leaves_nothing(world: World) -> None:
    world.fails = True
    with pytest.raises(StoreUnavailable):
        await world.lists.watch(NS, world.told.append)
    assert world.watches == []
    await world.lists.close()
