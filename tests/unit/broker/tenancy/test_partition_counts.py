"""Numbers of partitions that are followed, with a clock that stands still."""

from collections.abc import Callable
from contextlib import ExitStack

import pytest

from broker.tenancy.partition_counts import AGAIN_S, PartitionCounts
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, StoreUnavailable
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

TOPIC = TopicName.parse("orders")
FIRST, SECOND = TOPIC.with_partition(0), TOPIC.with_partition(1)


class World:
    """The record of one topic, and who is called when it changes."""

    def __init__(self) -> None:
        self.count = 2
        self.read = 0
        self.failure: Exception | None = None
        self.watches: dict[str, Callable[[], None]] = {}
        self.clock = ManualClock()
        self.counts = PartitionCounts(self.count_of, self.watch, self.clock)
        self.told: list[int] = []

    async def count_of(self, topic: TopicName) -> int:
        assert topic == TOPIC
        self.read += 1
        if self.failure is not None:
            raise self.failure
        return self.count

    def watch(self, path: str, changed: Callable[[], None]) -> Cancel:
        assert path not in self.watches, "one watch for each topic"
        self.watches[path] = changed

        def cancel() -> None:
            del self.watches[path]

        return cancel

    async def change(self, count: int) -> None:
        self.count = count
        for changed in list(self.watches.values()):
            changed()
        await settle()


@pytest.fixture
def world() -> World:
    return World()


async def test_followers_are_told_now_and_of_each_change(world: World) -> None:
    with world.counts.following(FIRST, world.told.append):
        await settle()
        assert world.told == [2]
        other: list[int] = []
        with world.counts.following(SECOND, other.append):
            assert other == [2], "at once: it is known"
            await world.change(4)
            assert (world.told, other, world.counts.known(SECOND)) == ([2, 4], [2, 4], 4)
            await world.change(4)
        assert list(world.watches) == [TOPIC.partitions_path]
        await world.change(5)
        assert (world.told, other, world.read) == ([2, 4, 5], [2, 4], 4)
    assert (world.watches, world.counts.known(FIRST)) == ({}, 0)


async def test_nothing_is_told_of_what_is_no_partition_of_a_topic(world: World) -> None:
    world.count = 0
    with world.counts.following(TOPIC, world.told.append):
        assert not world.watches
    with world.counts.following(FIRST, world.told.append):
        await settle()
        assert world.told == []
        await world.change(3)  # it is made now
        await world.change(0)  # and deleted
        assert world.told == [3]


async def test_a_record_that_cannot_be_read_now_is_read_again(world: World) -> None:
    with world.counts.following(FIRST, world.told.append):
        await settle()
        world.failure = StoreUnavailable("away")
        await world.change(4)
        assert (world.told, world.counts.known(FIRST)) == ([2], 2)
        world.clock.advance(AGAIN_S)
        await settle()
        world.failure = None
        world.clock.advance(AGAIN_S)
        await settle()
        assert world.told == [2, 4]


async def test_a_record_that_is_damaged_is_read_when_it_has_changed(world: World) -> None:
    with world.counts.following(FIRST, world.told.append):
        await settle()
        world.failure = Corruption("no JSON")
        await world.change(4)
        world.clock.advance(10 * AGAIN_S)
        await settle()
        assert world.read == 2
        world.failure = None
        await world.change(4)
        assert world.told == [2, 4]


async def test_a_change_while_it_is_read_is_not_missed(world: World) -> None:
    with ExitStack() as stack:
        stack.enter_context(world.counts.following(FIRST, world.told.append))
        real = world.counts._count_of

        async def slow(topic: TopicName) -> int:
            count = await real(topic)
            if count == 2:
                world.count = 4
                world.watches[topic.partitions_path]()
            return count

        world.counts._count_of = slow
        await settle()
        assert world.told == [2, 4]


async def test_one_that_ends_while_its_record_is_read_is_told_nothing(world: World) -> None:
    with world.counts.following(FIRST, world.told.append):
        pass
    with world.counts.following(FIRST, world.told.append):
        await settle()
    assert world.told == [2]
    with world.counts.following(FIRST, world.told.append):
        await world.counts.close()
        await settle()
    assert (world.watches, world.told) == ({}, [2])
