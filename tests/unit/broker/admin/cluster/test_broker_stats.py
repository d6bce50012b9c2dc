"""`broker-stats`: what is told of each topic has the members of the recorded answer, and true numbers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pulsar
import pytest

from tests.support.vectors import load
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.test_official_client import EARLIEST, QUIET

STATS = "/admin/v2/broker-stats"
TOPIC = "persistent://public/default/t"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


@pytest.fixture
async def used(world: AdminWorld) -> AsyncIterator[Side]:
    """A broker whose topic has a producer, an Exclusive and a Shared consumer, and three messages."""
    side = await world.side()
    c = pulsar.Client(side.url, logger=QUIET)

    def use() -> list[Any]:
        kinds = {"one": pulsar.ConsumerType.Exclusive, "many": pulsar.ConsumerType.Shared}
        held: list[Any] = [c.subscribe(TOPIC, name, kind, initial_position=EARLIEST) for name, kind in kinds.items()]
        producer = c.create_producer(TOPIC, batching_enabled=False)
        for _ in range(3):
            producer.send(b"12345")
        return [*held, producer]

    held = await world.run(use)
    for topic in side.broker.topics.values():
        subscriptions = topic.subscriptions
        await eventually(lambda: all(one.counted.messages == 3 for one in subscriptions.values()))  # noqa: B023
        topic.take_rates(side.broker.now_ms() + 1_000)
    yield side
    del held
    await world.run(c.close)


def topics_in(answer: Any) -> Iterator[Any]:
    for bundles in answer.values():
        for kinds in bundles.values():
            yield from kinds["persistent"].values()


def shape(value: Any) -> Any:
    """The members with the types of their values."""
    return {name: type(one).__name__ for name, one in value.items()}


async def test_each_topic_has_the_members_of_the_recorded_ones(world: AdminWorld, used: Side) -> None:
    recorded = list(topics_in(load("http/200-get-admin-v2-broker-stats-topics.json")["response"]["json"]))
    answer = (await world.call(used, "GET", f"{STATS}/topics")).json
    (ours,) = topics_in(answer)
    assert shape(ours) == shape(recorded[0])
    theirs = [one for topic in recorded for one in topic["subscriptions"].values()]
    for name, kind in (("one", "Exclusive"), ("many", "Shared")):
        mine = ours["subscriptions"][name]
        assert mine["type"] == kind
        assert shape(mine) == shape(
            next(one for one in theirs if one["type"] == kind and "filterProcessedMsgCount" in one)
        )
    consumer = next(one["consumers"][0] for one in theirs if one["consumers"])
    assert shape(ours["subscriptions"]["one"]["consumers"][0]) == shape(consumer)
    extra = {"unackedMessages": "int", "blockedConsumerOnUnackedMsgs": "bool"}
    assert shape(ours["subscriptions"]["many"]["consumers"][0]) == shape(consumer) | extra
    (topic,) = used.broker.topics.values()
    assert list(answer["public/default"]) == [topic.policies.bundles.range_of(topic.name)]


async def test_the_numbers_are_those_of_the_topic(world: AdminWorld, used: Side) -> None:
    (ours,) = topics_in((await world.call(used, "GET", f"{STATS}/topics")).json)
    assert (ours["msgInCount"], ours["msgOutCount"], ours["producerCount"]) == (3, 6, 1)
    assert ours["bytesOutCount"] == 2 * ours["bytesInCount"]
    assert ours["msgRateIn"] > 0
    assert ours["msgRateOut"] == pytest.approx(2 * ours["msgRateIn"], rel=0.5)
    assert ours["subscriptions"]["many"]["unackedMessages"] == 3
    assert ours["publishers"][0]["producerName"]


async def test_metrics_are_groups_with_what_they_are_about(world: AdminWorld, used: Side) -> None:
    groups = (await world.call(used, "GET", f"{STATS}/metrics")).json
    by_about = {tuple(sorted(one["dimensions"].items())): one["metrics"] for one in groups}
    space = by_about[(("namespace", "public/default"),)]
    assert (space["brk_no_of_producers"], space["brk_no_of_consumers"], space["brk_no_of_subscriptions"]) == (1, 2, 2)
    assert space["brk_msg_backlog"] == 6
    assert space["brk_in_rate"] > 0
    ledger = by_about[(("namespace", "public/default/persistent"),)]
    assert ledger["brk_ml_AddEntryMessagesRate"] == space["brk_in_rate"]
    (connections,) = [numbers for about, numbers in by_about.items() if ("metric", "broker_connection") in about]
    assert connections["brk_active_connections"] >= 1
    assert by_about[()]["brk_ml_count"] == 1


@pytest.mark.parametrize("path", ["mbeans", "allocator-stats/default"])
async def test_what_only_a_java_process_has_is_refused_by_name(world: AdminWorld, path: str) -> None:
    side = await world.side()
    refused = await world.call(side, "GET", f"{STATS}/{path}")
    assert refused.status == 501
    assert path in refused.reason
    assert "/metrics" in refused.reason
