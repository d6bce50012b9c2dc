"""Key_Shared with consumers on both doors: who gets which key, in which order, and what the statistics tell."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pulsar
import pytest

from broker.topic.dispatchers.sticky_keys import hash_by_ranges, hash_by_ring
from magnetar.client.async_client import AsyncClient
from magnetar.client.errors import TopicError
from magnetar.client.values import Outgoing
from tests.support.vectors import load, names
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.test_official_client import QUIET

KEYS = [f"k{n}" for n in range(12)]


def hash_of(key: str) -> int:
    return hash_by_ring(key.encode())


@asynccontextmanager
async def official(world: BrokerInMemory) -> AsyncIterator[pulsar.Client]:
    """The official client, used from this loop: whatever waits for the broker runs on another thread."""
    made = pulsar.Client(world.url, logger=QUIET, operation_timeout_seconds=5)
    try:
        yield made
    finally:
        await world.run(made.close)


class Group:
    """Consumers of one subscription on both doors, and what they took, in the order in which they took it."""

    def __init__(self, world: BrokerInMemory, client: AsyncClient, binary: pulsar.Client) -> None:
        self._world, self._client, self._binary = world, client, binary
        self.ours: dict[str, Any] = {}
        self.theirs: dict[str, Any] = {}
        self.taken: list[tuple[str, str, int]] = []

    async def join_ours(self, name: str, **more: Any) -> None:
        self.ours[name] = await self._client.consumer(
            "t", "s", type="key_shared", name=name, from_earliest=True, queue_size=7, **more
        ).open()

    async def join_theirs(self, name: str, **more: Any) -> None:
        def subscribe() -> Any:
            return self._binary.subscribe(
                "t", "s", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name, receiver_queue_size=7,
                initial_position=pulsar.InitialPosition.Earliest, **more,
            )  # fmt: skip

        self.theirs[name] = await self._world.run(subscribe)

    async def leave(self, name: str) -> None:
        if name in self.ours:
            await self.ours.pop(name).close()
        else:
            await self._world.run(self.theirs.pop(name).close)

    async def take(self, rounds: int = 1) -> int:
        """Some messages of each consumer, acknowledged at once; returns how many."""
        before = len(self.taken)
        for _ in range(rounds):
            for name, consumer in self.ours.items():
                for message in await consumer.receive_batch(3, timeout_s=0.01):
                    self._note(name, message.key, message.payload)
                    consumer.ack(message)
                await consumer.flush()
            for name, consumer in self.theirs.items():
                for _ in range(3):
                    try:
                        found = await self._world.run(consumer.receive, 10)
                    except pulsar.Timeout:
                        break
                    self._note(name, found.partition_key(), found.data())
                    await self._world.run(consumer.acknowledge, found)
        return len(self.taken) - before

    def _note(self, name: str, key: str | None, payload: bytes) -> None:
        assert key is not None
        self.taken.append((name, key, int(payload)))

    async def take_all(self, count: int) -> None:
        idle = 0
        while len(self.taken) < count:
            idle = 0 if await self.take() else idle + 1
            assert idle < 1_000, f"only {len(self.taken)} of {count} messages came"

    def by_key(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for _, key, number in self.taken:
            found.setdefault(key, []).append(number)
        return found

    def owners(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for name, key, _ in self.taken:
            found.setdefault(key, set()).add(name)
        return found


async def test_each_key_goes_to_one_consumer_whichever_door_it_came_by(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    async with official(world) as binary:
        group = Group(world, client, binary)
        await group.join_ours("ours")
        await group.join_theirs("theirs")
        producer = await world.run(lambda: binary.create_producer("t", batching_enabled=False))
        for number in range(6):
            if number % 2:
                await client.producer("t").send_many([Outgoing(b"%d" % number, key=key) for key in KEYS])
            else:
                for key in KEYS:
                    await world.run(lambda key=key, n=number: producer.send(b"%d" % n, partition_key=key))
        await group.take_all(6 * len(KEYS))
        assert group.by_key() == {key: list(range(6)) for key in KEYS}
        assert all(len(names) == 1 for names in group.owners().values())
        assert {name for names in group.owners().values() for name in names} == {"ours", "theirs"}


async def test_keys_keep_their_order_while_consumers_of_both_doors_come_and_go(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    async with official(world) as binary:
        group = Group(world, client, binary)
        await group.join_ours("o1")
        sent = 0

        async def send() -> None:
            nonlocal sent
            for _ in range(3):
                await client.producer("t").send_many([Outgoing(b"%d" % sent, key=key) for key in KEYS])
                sent += 1

        await send()
        await group.take(2)
        await group.join_theirs("t1")
        await send()
        await group.take(3)
        await group.join_ours("o2")
        await group.leave("o1")
        await send()
        await group.take(2)
        await group.join_theirs("t2")
        await group.leave("t1")
        await send()
        await group.take(2)
        await group.leave("o2")
        await group.join_ours("o3")
        await send()
        await group.take_all(sent * len(KEYS))
        assert group.by_key() == {key: list(range(sent)) for key in KEYS}
        assert await group.take() == 0


async def test_sticky_ranges_of_both_doors(world: BrokerInMemory, client: AsyncClient) -> None:
    def policy(*ranges: tuple[int, int]) -> Any:
        return pulsar.ConsumerKeySharedPolicy(key_shared_mode=pulsar.KeySharedMode.Sticky, sticky_ranges=list(ranges))

    async with official(world) as binary:
        group = Group(world, client, binary)
        await group.join_ours("low", sticky_ranges=[(0, 32767)])
        await group.join_theirs("high", key_shared_policy=policy((32768, 65535)))
        with pytest.raises(TopicError, match="conflict"):
            await group.join_ours("third", sticky_ranges=[(40000, 40001)])
        with pytest.raises(pulsar.PulsarException):
            await group.join_theirs("fourth", key_shared_policy=policy((5, 6)))
        for number in range(3):
            await client.producer("t").send_many([Outgoing(b"%d" % number, key=key) for key in KEYS])
        await group.take_all(3 * len(KEYS))
        assert group.owners() == {key: {"low" if hash_by_ranges(key.encode()) < 32768 else "high"} for key in KEYS}
        assert group.by_key() == {key: [0, 1, 2] for key in KEYS}


async def test_the_statistics_show_what_drains_in_the_shape_of_the_recorded_ones(
    world: BrokerInMemory, client: AsyncClient
) -> None:
    (name,) = names("http/119*.json")
    recorded = load(name)["response"]["json"]["subscriptions"]["live"]
    async with client.consumer("t", "s", type="key_shared", name="former") as former:
        await client.producer("t").send_many([Outgoing(b"0", key=key) for key in KEYS])
        messages = [await former.receive(5) for _ in KEYS]
        async with client.consumer("t", "s", type="key_shared", name="newcomer") as newcomer:
            shown = (await client.topics.stats("t"))["subscriptions"]["s"]
            assert set(recorded) - {"activeConsumerName"} <= set(shown)
            by_name = {one["consumerName"]: one for one in shown["consumers"]}
            keys_only = {"drainingHashes", "keyHashRangeArrays"}
            assert set(by_name["former"]) - keys_only == set(recorded["consumers"][0])
            assert by_name["newcomer"]["drainingHashes"] == []
            ranges = by_name["newcomer"]["keyHashRangeArrays"]
            draining = by_name["former"]["drainingHashes"]
            assert 0 < len(draining) < len(KEYS)
            assert {one["hash"] for one in draining} < {hash_of(key) for key in KEYS}
            assert all(any(start <= one["hash"] <= end for start, end in ranges) for one in draining)
            assert all((one["unackMsgs"], one["blockedAttempts"]) == (1, 0) for one in draining)
            for level in (shown, by_name["former"]):
                assert level["drainingHashesCount"] == level["drainingHashesUnackedMessages"] == len(draining)
                assert level["drainingHashesClearedTotal"] == 0
            await client.producer("t").send_many([Outgoing(b"1", key=key) for key in KEYS])
            assert await newcomer.receive_batch(100, timeout_s=0.1) == []
            shown = (await client.topics.stats("t"))["subscriptions"]["s"]
            (former_,) = [one for one in shown["consumers"] if one["consumerName"] == "former"]
            assert all(one["blockedAttempts"] > 0 for one in former_["drainingHashes"])
            former.ack(messages)
            await former.flush()
            moved = await newcomer.receive_batch(100, timeout_s=30)
            while len(moved) < len(draining):
                moved += await newcomer.receive_batch(100, timeout_s=30)
            assert {hash_of(one.key) for one in moved if one.key} == {one["hash"] for one in draining}
            shown = (await client.topics.stats("t"))["subscriptions"]["s"]
            assert (shown["drainingHashesCount"], shown["drainingHashesClearedTotal"]) == (0, len(draining))
