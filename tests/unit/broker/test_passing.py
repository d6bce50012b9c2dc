"""Messages that subscriptions pass over: a number of them, or those that are too old."""

import asyncio
from functools import partial
from typing import Any

import pulsar
import pytest

from broker.topic.topic import Topic
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.admin.test_admin import ADMIN, TOPICS, world
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import EARLIEST, client, nothing_more, receive, texts

__all__ = ["world"]

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)


def publish(url: str, count: int, first: int = 0) -> None:
    with client(url) as c:
        producer = c.create_producer(TOPIC, batching_enabled=False)
        for number in range(first, first + count):
            producer.send_async(str(number).encode(), lambda result, message_id: None)
        producer.flush()


async def publish_old(side: Side, *numbers: int, topic: str = TOPIC, age_s: int = 100) -> None:
    """Messages that, as their producer says, were sent so many seconds ago."""
    assert (await side.ownership.locate(TopicName.parse(topic), authoritative=True)).here
    raw = await RawClient.connect(side.broker.port)
    await raw.produce(topic)
    sent_ms = side.broker.now_ms() - age_s * 1000
    for number in numbers:
        metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=sent_ms)
        raw.publish(1, number, data=encode_entry(metadata, str(number).encode()))
        await raw.expect(BaseCommand.SEND_RECEIPT)
    raw.close()


def read(url: str, count: int, kind: Any = pulsar.ConsumerType.Exclusive) -> list[str]:
    """What comes for the subscription, and that nothing else does."""
    with client(url) as c:
        consumer = c.subscribe(TOPIC, "s", kind, initial_position=EARLIEST)
        found = texts(receive(consumer, count, acknowledge=False))
        assert nothing_more(consumer)
        return found


async def topic_of(broker: Any) -> Topic:
    found: Topic = await broker.topic_for_producer(NAME)
    return found


async def test_a_number_of_entries_is_skipped_also_those_between_acknowledged_ones(world: AdminWorld) -> None:
    side = await world.side()
    await world.run(publish, side.url, 10, 0)
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
    topic = await topic_of(side.broker)
    cursor = topic.subscriptions["s"].cursor
    first = topic.ledger.ledgers.first_position
    cursor.delete([first._replace(entry_id=1), first._replace(entry_id=4)])
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/skip/4")).status == 204
    assert await world.run(read, side.url, 4) == ["6", "7", "8", "9"]
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/skip/1000")).status == 204
    assert cursor.backlog() == 0
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/none/skip/1")).status == 404
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/skip/x")).status == 412


@pytest.mark.parametrize("kind", [pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared])
async def test_consumers_stay_while_messages_are_skipped(world: AdminWorld, kind: Any) -> None:
    side = await world.side()
    loop = asyncio.get_running_loop()

    def scenario() -> None:
        def call(path: str) -> int:
            asked = world.call(side, "POST", f"{TOPICS}/t/subscription/s/{path}")
            return asyncio.run_coroutine_threadsafe(asked, loop).result(10).status

        with client(side.url) as c:
            consumer = c.subscribe(TOPIC, "s", kind)
            producer = c.create_producer(TOPIC, batching_enabled=False)
            for number in range(6):
                producer.send(str(number).encode())
            assert texts(receive(consumer, 2, acknowledge=False)) == ["0", "1"]
            assert call("skip/6") == 204
            producer.send(b"new")
            assert texts(receive(consumer, 5, acknowledge=False))[-1] == "new"
            consumer.redeliver_unacknowledged_messages()
            assert texts(receive(consumer, 1)) == ["new"]
            assert nothing_more(consumer)

    await world.run(scenario)
    assert (await topic_of(side.broker)).subscriptions["s"].unacked_messages == 0


async def test_entries_that_are_too_old_are_passed_over_when_asked_for(world: AdminWorld) -> None:
    side = await world.side()
    await publish_old(side, *range(5))
    for name in ("s", "other"):
        await world.call(side, "PUT", f"{TOPICS}/t/subscription/{name}", {"ledgerId": -1, "entryId": -1})
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/expireMessages/200")).status == 204
    assert (await topic_of(side.broker)).subscriptions["s"].cursor.backlog() == 5
    await world.run(publish, side.url, 2, 5)
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/expireMessages/60")).status == 204
    assert await world.run(read, side.url, 2) == ["5", "6"]
    stats = (await world.call(side, "GET", f"{TOPICS}/t/stats")).json["subscriptions"]
    assert (stats["s"]["totalMsgExpired"], stats["other"]["totalMsgExpired"]) == (5, 0)
    assert stats["s"]["lastExpireTimestamp"] > 0
    assert (await world.call(side, "POST", f"{TOPICS}/t/subscription/s/skip/9")).status == 204
    answer = await world.call(side, "POST", f"{TOPICS}/t/all_subscription/expireMessages/60")
    assert (answer.status, "subscription s has no message" in answer.json["reason"]) == (409, True)
    assert (await topic_of(side.broker)).subscriptions["other"].cursor.backlog() == 2, "the others had their turn"


async def test_all_partitions_pass_over_what_is_too_old(world: AdminWorld) -> None:
    side = await world.side()
    await world.call(side, "PUT", f"{TOPICS}/parted/partitions", 2)

    def subscribe() -> None:
        with client(side.url) as c:
            c.subscribe("parted", "s")

    await world.run(subscribe)
    for number in range(2):
        await publish_old(side, *range(4), topic=f"parted-partition-{number}")
    assert (await world.call(side, "POST", f"{TOPICS}/parted/subscription/s/expireMessages/200")).status == 204
    assert (await world.call(side, "POST", f"{TOPICS}/parted/all_subscription/expireMessages/60")).status == 204
    stats = (await world.call(side, "GET", f"{TOPICS}/parted/partitioned-stats")).json
    assert stats["subscriptions"]["s"]["msgBacklog"] == 0
    assert (await world.call(side, "POST", f"{TOPICS}/parted/subscription/s/expireMessages/60")).status == 409
    assert (await world.call(side, "POST", f"{TOPICS}/parted/subscription/s/skip/1")).status == 405


@pytest.mark.parametrize("by_policy", [True, False])
async def test_messages_expire_by_the_policy_or_by_the_setting(world: AdminWorld, by_policy: bool) -> None:
    side = await world.side(**({} if by_policy else {"ttl_s": 60}))
    await publish_old(side, *range(5))
    await world.call(side, "PUT", f"{TOPICS}/t/subscription/s", {"ledgerId": -1, "entryId": -1})
    topic = await topic_of(side.broker)
    policy = f"{ADMIN}/namespaces/public/default/messageTTL"
    if by_policy:
        assert (await world.call(side, "POST", policy, 60)).status == 204
        assert (await world.call(side, "GET", policy)).json == 60
        assert (await world.call(side, "POST", policy, -5)).status == 412
    await topic.expire_by_policy()
    assert topic.subscriptions["s"].cursor.backlog() == 0
    await world.run(publish, side.url, 1, 5)
    await topic.expire_by_policy()
    assert await world.run(read, side.url, 1) == ["5"]
    if by_policy:
        assert (await world.call(side, "DELETE", policy)).status == 204
        await publish_old(side, 6)
        await topic.expire_by_policy()
        assert topic.subscriptions["s"].cursor.backlog() == 2


@pytest.mark.parametrize("by_policy", [True, False])
async def test_what_producers_date_ahead_goes_by_the_time_at_which_its_ledger_was_closed(
    world: AdminWorld, by_policy: bool
) -> None:
    side = await world.side(max_entries_per_ledger=5, min_rollover_minutes=0)
    assert (await world.call(side, "PUT", f"{TOPICS}/t")).status == 204
    for name in ("s", "behind"):
        await world.call(side, "PUT", f"{TOPICS}/t/subscription/{name}", {"ledgerId": -1, "entryId": -1})
    topic = await topic_of(side.broker)
    await publish_old(side, *range(23), age_s=-365 * 86_400)
    *closed, last = topic.ledger.ledgers
    assert (len(closed), last.timestamp) == (4, 0)
    for info, ago_s in zip(closed, (150, 100, 30, 80), strict=True):
        info.timestamp = side.broker.now_ms() - ago_s * 1000
    backlogs = []
    for age_s in (200, 120, 60, 10):
        if by_policy:
            await world.call(side, "POST", f"{ADMIN}/namespaces/public/default/messageTTL", age_s)
            await eventually(partial(lambda expected: topic.limits.ttl_s == expected, age_s))
            await topic.expire_by_policy()
        else:
            assert (await world.call(side, "POST", f"{TOPICS}/t/all_subscription/expireMessages/{age_s}")).status == 204
        backlogs.append([one.cursor.backlog() for one in topic.subscriptions.values()])
    # One that was closed later keeps those behind it; the open one has no such time.
    assert backlogs == [[23, 23], [18, 18], [13, 13], [3, 3]]


async def test_a_broker_looks_for_old_messages_by_itself(world: AdminWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = asyncio.Event()

    async def noting(_: Topic) -> None:
        looked.set()

    monkeypatch.setattr(Topic, "expire_by_policy", noting)
    side = await world.side(expiry_check_minutes=0)
    await world.run(publish, side.url, 1)
    await asyncio.wait_for(looked.wait(), 10)
