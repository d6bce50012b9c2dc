"""A subscription whose entries are gone from the bookies, as the official client sees it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pulsar
import pytest

from broker.admin.numbers.metrics import topic_numbers
from broker.topic.compaction.compactor import CompactionStatus
from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import eventually
from tests.unit.broker.test_official_client import EARLIEST, client, nothing_more, receive, texts
from tests.unit.broker.test_real_storage import Cluster

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
SHARED = pulsar.ConsumerType.Shared


class World(Cluster):
    """A topic with 40 messages of one entry each, in ledgers of ten, each of which is on one bookie."""

    url: str

    async def fill(self, *, skips: bool) -> None:
        self.config = replace(
            self.config,
            ensemble_size=1,
            write_quorum=1,
            ack_quorum=1,
            max_entries_per_ledger=10,
            min_rollover_minutes=0,
            cache_mbytes=0,
            skip_lost_data=skips,
        )
        await self.restart()
        await asyncio.to_thread(self._send)

    def _send(self) -> None:
        with client(self.url) as c:
            c.subscribe(TOPIC, "s", consumer_type=SHARED, initial_position=EARLIEST).close()
            producer = c.create_producer(TOPIC, batching_enabled=False)
            for n in range(40):
                producer.send(f"m{n}".encode(), partition_key=f"k{n % 3}")

    async def restart(self) -> None:
        for broker, bookkeeper in self.brokers:
            await broker.close()
            await bookkeeper.close()
        self.brokers.clear()
        self.url = (await self.broker()).address.service_url

    @property
    def topic(self) -> Any:
        return self.brokers[-1][0].topics[NAME]

    def ids(self) -> list[int]:
        return [one["ledgerId"] for one in self.topic.ledger.stats()["ledgers"]]

    async def lose_record(self, at: int) -> None:
        """Somebody deletes a ledger."""
        await self.brokers[-1][1].delete_ledger(self.ids()[at])

    async def lose_copies(self, at: int, entries: int) -> None:
        """The first *entries* of a ledger should be on a bookie that has never seen them."""
        ledgers = self.brokers[-1][1].ledgers
        found = await ledgers.read(self.ids()[at])
        (segment,) = found.metadata.segments
        other = next(one for one in ("bookie-0", "bookie-1") if one not in segment.ensemble)
        segments = (segment._replace(ensemble=(other,)), segment._replace(first_entry_id=entries))
        await ledgers.write(self.ids()[at], replace(found.metadata, segments=segments), found.version)

    async def receive(self, count: int, **options: Any) -> list[str]:
        def scenario() -> list[str]:
            with client(self.url) as c:
                consumer = c.subscribe(TOPIC, "s", initial_position=EARLIEST, **options)
                got = texts(receive(consumer, count))
                assert nothing_more(consumer)
                return got

        return await asyncio.to_thread(scenario)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.stop()


def named(numbers: Sequence[int]) -> list[str]:
    return [f"m{n}" for n in numbers]


async def test_a_consumer_gets_what_is_left_where_lost_data_is_skipped(world: World) -> None:
    await world.fill(skips=True)
    await world.lose_record(0)
    await world.lose_copies(2, 4)
    left = [*range(10, 20), *range(24, 40)]
    assert sorted(await world.receive(len(left), consumer_type=SHARED)) == sorted(named(left))
    await eventually(lambda: world.topic.subscriptions["s"].backlog == 0)
    assert topic_numbers(world.topic)["magnetar_lost_entries_skipped_total"] == 14


async def test_without_the_setting_the_consumer_waits_until_it_is_switched_on(world: World) -> None:
    await world.fill(skips=False)
    await world.lose_copies(0, 4)
    assert await world.receive(0) == []
    assert world.topic.subscriptions["s"].backlog == 40
    await world.brokers[-1][0].settings.set("autoSkipNonRecoverableData", "true")
    assert await world.receive(36) == named(range(4, 40))


async def test_messages_to_be_delivered_again_are_skipped_where_they_are_lost(world: World) -> None:
    await world.fill(skips=True)
    loop = asyncio.get_running_loop()

    async def lose() -> None:
        await world.lose_copies(1, 3)
        await world.lose_record(0)
        world.topic.ledger._reading.ledgers_trimmed(world.ids())  # what is open knows where the entries were

    def scenario() -> list[str]:
        with client(world.url) as c:
            consumer = c.subscribe(TOPIC, "s", consumer_type=SHARED, negative_ack_redelivery_delay_ms=500)
            for message in receive(consumer, 40, acknowledge=False):
                consumer.negative_acknowledge(message)
            asyncio.run_coroutine_threadsafe(lose(), loop).result()
            again = texts(receive(consumer, 27))
            assert nothing_more(consumer)
            return again

    assert sorted(await asyncio.to_thread(scenario)) == sorted(named(range(13, 40)))
    await eventually(lambda: world.topic.subscriptions["s"].backlog == 0)


async def test_a_topic_is_compacted_without_what_is_lost(world: World) -> None:
    await world.fill(skips=True)
    await world.lose_record(1)
    await world.lose_copies(3, 8)
    compactor = world.topic.compactor
    assert compactor.start()
    await eventually(lambda: compactor.facts.status is not CompactionStatus.RUNNING)
    assert compactor.facts.status is CompactionStatus.SUCCESS
    assert compactor.facts.looked_at == 22

    def read() -> list[str]:
        with client(world.url) as c:
            reader = c.create_reader(TOPIC, pulsar.MessageId.earliest, is_read_compacted=True)
            return [reader.read_next(5000).data().decode() for _ in range(3)]

    assert sorted(await asyncio.to_thread(read)) == ["m28", "m38", "m39"]


@pytest.mark.parametrize("skips", [False, True])
async def test_a_topic_whose_compacted_ledger_is_gone_is_compacted_from_what_it_still_has(
    world: World, skips: bool
) -> None:
    await world.fill(skips=skips)
    compactor = world.topic.compactor

    async def compact() -> None:
        assert compactor.start()
        await eventually(lambda: compactor.facts.status is not CompactionStatus.RUNNING)

    await compact()
    lost = compactor.compacted_ledger_id
    await world.brokers[-1][1].delete_ledger(lost)
    await asyncio.to_thread(world._send)
    await world.restart()  # what is open is read to its end
    await world.brokers[-1][0].topic_for_producer(NAME)
    compactor = world.topic.compactor
    await compact()
    if not skips:
        assert compactor.facts.status is CompactionStatus.ERROR
        assert "autoSkipNonRecoverableData=true" in compactor.facts.last_error
        assert compactor.compacted_ledger_id == lost
        return
    assert compactor.facts.status is CompactionStatus.SUCCESS
    assert await world.receive(3, is_read_compacted=True) == named((37, 38, 39))
