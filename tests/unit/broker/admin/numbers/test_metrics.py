"""What is told at /metrics of topics, their clients and their ledgers, and which setting says so."""

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from broker.admin.numbers import metrics
from broker.admin.numbers.metrics import broker_samples
from broker.errors import TopicNotFound
from broker.settings.quotas import DispatchRate, PublishRate
from broker.topic.topic import Topic
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.runtime.observe import Sample, Summary
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages_pb2 import MessageIdData
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import client

TOPIC = "persistent://public/default/t"
PASSING = "non-persistent://public/default/n"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        made = AdminWorld(stack)
        await made.open()
        yield made


async def owner(world: AdminWorld, **changes: Any) -> Side:
    """A broker that has all bundles."""
    side = await world.side(**changes)
    await world.spread([side])
    return side


async def used(side: Side, topic: str = TOPIC, *, consumers: int = 1, messages: int = 3) -> RawClient:
    """*topic* has a producer that sent *messages*, and Shared consumers that acknowledged nothing."""
    raw = await RawClient.connect(side.broker.port)
    await raw.produce(topic)
    for number in range(consumers):
        await raw.subscribe(topic, consumer_id=number, subType=1)
    raw.publish(1, *range(messages))
    for _ in range(2 * messages):
        await raw.answer()
    return raw


def opened(side: Side, topic: str = TOPIC) -> Topic:
    return side.broker.topics[TopicName.parse(topic)]


def told(side: Side) -> list[Sample]:
    samples = []
    for one in broker_samples(side.broker, ()):
        if isinstance(one, Sample):
            samples.append(one)
    return samples


def summary(side: Side, name: str) -> Summary:
    (found,) = [one for one in broker_samples(side.broker, ()) if isinstance(one, Summary) and one.name == name]
    return found


def of(side: Side, name: str, **labels: str) -> list[float]:
    """The values of *name* at which all of *labels* stand."""
    wanted = labels.items()
    return [one.value for one in told(side) if one.name == name and wanted <= dict(one.labels).items()]


def names(side: Side, beginning: str) -> set[str]:
    return {one.name for one in told(side) if one.name.startswith(beginning)}


# ------------------------------------------------------------------------------------------ the service


async def test_lookups_loads_and_connections_are_told(world: AdminWorld) -> None:
    side = await owner(world)
    cluster = side.broker.config.cluster_name
    assert math.isnan(summary(side, "pulsar_broker_lookup").quantiles[0.5])

    def use() -> None:
        with client(side.url) as c:
            c.create_producer(TOPIC).send(b"x")

    await world.run(use)
    with pytest.raises(TopicNotFound):
        await side.broker.lookups.find_for_client(TopicName.parse("persistent://no/such/t"), authoritative=False)
    answers = sum(of(side, "pulsar_broker_lookup_answers_total", cluster=cluster))
    assert answers >= 1
    assert of(side, "pulsar_broker_lookup_failures_total", cluster=cluster) == [1]
    times = summary(side, "pulsar_broker_lookup")
    assert times.total == answers + side.broker.lookups.redirects
    assert 0 < times.quantiles[1.0] < 10_000
    assert times.labels == (("cluster", cluster),)
    loads = summary(side, "pulsar_topic_load_times")
    assert loads.total == len(side.broker.topics) == 1
    assert loads.sum > 0
    assert of(side, "pulsar_topic_load_failed_count") == [0]
    assert of(side, "pulsar_broker_topic_load_pending_requests") == [0]
    made, ended = of(side, "pulsar_connection_create_success_count"), of(side, "pulsar_connection_closed_total_count")
    assert made == [1]
    await eventually(lambda: of(side, "pulsar_connection_closed_total_count") == made)
    assert ended in ([0], [1])
    assert of(side, "pulsar_broker_throttled_connections") == [0]
    assert of(side, "pulsar_broker_pending_bytes_to_dispatch") == [0]


async def test_a_connection_that_is_not_read_counts_as_throttled(world: AdminWorld) -> None:
    side = await world.side()
    raw = await RawClient.connect(side.broker.port)
    (connection,) = side.broker.server.clients
    assert connection._connection is not None
    connection._connection.flow.is_paused = True
    assert of(side, "pulsar_broker_throttled_connections") == [1]
    raw.close()


# ------------------------------------------------------------------------------------------ clients


async def test_consumers_and_producers_are_told_where_the_settings_say_so(world: AdminWorld) -> None:
    side = await owner(world, expose_consumer_metrics=True, expose_producer_metrics=True)
    raw = await used(side, consumers=2, messages=4)
    topic = opened(side)
    topic.take_rates(side.broker.now_ms() + 1_000)
    unacked = of(side, "pulsar_consumer_unacked_messages", topic=TOPIC, subscription="s")
    assert (len(unacked), sum(unacked)) == (2, 4)
    assert sum(of(side, "pulsar_consumer_available_permits")) == 2 * 100 - 4
    assert sum(of(side, "pulsar_consumer_msg_rate_out")) > 0
    by_consumer = {dict(one.labels).get("consumer_id") for one in told(side) if one.name == "pulsar_out_messages_total"}
    assert by_consumer == {None, "0", "1"}, "beside the sum of the subscription, as with Apache's brokers"
    (producer,) = topic.producers.values()
    labels = {"producer_name": producer.name, "producer_id": "1"}
    assert of(side, "pulsar_producer_msg_rate_in", **labels) == [producer.rates.values[0]]
    assert of(side, "pulsar_producer_msg_average_Size", **labels)[0] > 0
    raw.close()


@pytest.mark.parametrize("settings", [{}, {"expose_topic_metrics": False, "expose_consumer_metrics": True,
                                           "expose_producer_metrics": True}])  # fmt: skip
async def test_clients_are_not_told_by_default_nor_where_topics_are_not(
    world: AdminWorld, settings: dict[str, Any]
) -> None:
    side = await owner(world, **settings)
    raw = await used(side)
    assert names(side, "pulsar_consumer_") | names(side, "pulsar_producer_") == set()
    assert names(side, "magnetar_subscription_back_log_size") == set()
    assert of(side, "pulsar_broker_consumers_count") == [1]
    raw.close()


async def test_clients_above_the_limit_of_one_scrape_are_counted_instead(
    world: AdminWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "CLIENTS_TOLD_MAX", 3)
    side = await owner(world, expose_consumer_metrics=True, expose_producer_metrics=True)
    raw = await used(side, consumers=4)
    assert len(of(side, "pulsar_consumer_unacked_messages")) == 3
    assert of(side, "pulsar_producer_msg_rate_in") == []
    assert of(side, "magnetar_metrics_clients_left_out") == [2]
    raw.close()


async def test_a_partition_may_be_a_label_of_its_own(world: AdminWorld) -> None:
    side = await owner(world, split_partition_label=True)
    raw = await used(side, f"{TOPIC}-partition-7")
    await raw.produce(TOPIC, producer_id=2)
    assert of(side, "pulsar_in_messages_total", topic=TOPIC, partition="7") == [3]
    assert of(side, "pulsar_in_messages_total", topic=TOPIC, partition="-1") == [0]
    assert of(side, "pulsar_subscription_back_log", topic=TOPIC, partition="7", subscription="s") == [3]
    raw.close()


async def test_the_bytes_behind_a_subscription_are_told_on_request(world: AdminWorld) -> None:
    side = await owner(world, expose_backlog_size=True)
    raw = await used(side)
    (size,) = of(side, "magnetar_subscription_back_log_size", subscription="s")
    assert size == opened(side).ledger.bytes_total > 0
    raw.close()


# --------------------------------------------------------------------------------- non-persistent topics


async def test_non_persistent_topics_stand_beside_the_others_with_what_they_drop(world: AdminWorld) -> None:
    side = await owner(world, max_non_persistent=5)
    raw = await RawClient.connect(side.broker.port)
    await raw.produce(PASSING)
    await raw.subscribe(PASSING, permits=1)
    raw.publish(1, *range(6))
    for _ in range(7):
        await raw.answer()
    # So late that it makes no difference who came a moment earlier.
    await side.broker.non_persistent.take_rates(side.broker.now_ms() + 1_000_000)
    assert of(side, "pulsar_in_messages_total", topic=PASSING) == [5]
    assert of(side, "pulsar_out_messages_total", topic=PASSING, subscription="s") == [1]
    (dropped,) = of(side, "pulsar_subscription_msg_drop_rate", topic=PASSING, subscription="s")
    (refused,) = of(side, "magnetar_publish_drop_rate", topic=PASSING)
    (rate_in,) = of(side, "pulsar_rate_in", topic=PASSING)
    assert dropped == pytest.approx(4 * rate_in / 5, rel=0.1)
    assert refused == pytest.approx(rate_in / 5, rel=0.1)
    assert of(side, "pulsar_broker_rate_in") == [rate_in]
    assert of(side, "pulsar_storage_size", topic=PASSING) == []
    raw.close()


async def test_non_persistent_topics_are_part_of_their_namespaces_sums(world: AdminWorld) -> None:
    side = await owner(world, expose_topic_metrics=False)
    raw = await used(side, PASSING, messages=2)
    other = await used(side, TOPIC, messages=3)
    assert of(side, "pulsar_in_messages_total", namespace="public/default") == [5]
    assert of(side, "pulsar_topics_count", namespace="public/default") == [2]
    raw.close()
    other.close()


# ------------------------------------------------------------------------------------- rates and quotas


async def test_what_rates_hold_back_is_counted_by_whose_rate_it_was(world: AdminWorld) -> None:
    side = await owner(world)
    raw = await used(side)
    topic, now_ms = opened(side), side.broker.now_ms()
    topic.publish_throttle.use(PublishRate(1, 0), now_ms)
    assert topic.publish_throttle.spend(10, 0, now_ms) > 0
    rates = topic.subscriptions["s"].pump.rates
    for throttle, times in ((rates.of_topic, 1), (rates.own, 2)):
        throttle.use(DispatchRate(1, 0, 1), (0, 0), now_ms)
        throttle.spend(5, 0, now_ms)
        assert all(throttle.wait_ms(now_ms) > 0 for _ in range(times))
    assert of(side, "pulsar_publish_rate_limit_times", topic=TOPIC) == [1]
    name = "pulsar_subscription_dispatch_throttled_msg_events"
    assert of(side, name, subscription="s", reason="topic") == [1]
    assert of(side, name, subscription="s", reason="subscription") == [2]
    assert of(side, name.replace("msg", "bytes"), subscription="s") == [0, 0]
    raw.close()


async def test_quotas_and_what_was_passed_over_for_them_are_told(world: AdminWorld) -> None:
    side = await owner(
        world, backlog_quota_bytes=50, backlog_quota_s=1_000, backlog_quota_policy="consumer_backlog_eviction"
    )
    raw = await used(side)
    assert of(side, "pulsar_storage_backlog_quota_limit", topic=TOPIC) == [50]
    assert of(side, "pulsar_storage_backlog_quota_limit_time", topic=TOPIC) == [1_000]
    await opened(side).keep_quotas()
    name = "pulsar_storage_backlog_quota_exceeded_evictions_total"
    for kind, count in (("size", 1), ("time", 0)):
        assert of(side, name, topic=TOPIC, quota_type=kind) == [count]
        assert of(side, name.replace("storage", "broker_storage"), quota_type=kind) == [count]
    side.broker.periodic.quota_checks.add(7_000)
    duration = "pulsar_storage_backlog_quota_check_duration_seconds"
    assert of(side, f"{duration}_bucket", le="5.0") == [0]
    assert of(side, f"{duration}_bucket", le="10.0") == of(side, f"{duration}_bucket", le="+Inf") == [1]
    assert (of(side, f"{duration}_count"), of(side, f"{duration}_sum")) == ([1], [7])
    raw.close()


# ----------------------------------------------------------------------------------------- ledgers


def spread(side: Side, name: str) -> Iterator[tuple[str, float]]:
    """(from_to, a second) of the buckets of *name* that have something."""
    for one in told(side):
        if one.name == name and one.value:
            yield dict(one.labels)["quantile"], one.value


async def test_managed_ledgers_are_told_by_namespace(world: AdminWorld) -> None:
    side = await owner(world, stats_update_s=10)
    raw = await used(side, messages=3)
    topic = opened(side)
    topic.appends_failed = 2
    topic.take_rates(side.broker.now_ms() + 10_000)
    space = {"cluster": "lab", "namespace": "public/default/persistent"}
    assert of(side, "pulsar_ml_AddEntrySucceed", **space) == of(side, "pulsar_ml_ReadEntriesSucceeded", **space) == [3]
    assert of(side, "pulsar_ml_AddEntryErrors", **space) == [2]
    assert of(side, "pulsar_ml_NumberOfMessagesInBacklog", **space) == [3]
    copies = topic.ledger.config.write_quorum
    assert of(side, "pulsar_ml_StoredMessagesSize", **space) == [topic.ledger.bytes_total * copies]
    ((bucket, rate),) = spread(side, "pulsar_ml_EntrySizeBuckets")
    assert bucket == "0.0_128.0"
    assert rate == pytest.approx(0.3)
    for name in ("pulsar_ml_AddEntryLatencyBuckets", "pulsar_ml_LedgerAddEntryLatencyBuckets"):
        assert sum(value for _, value in spread(side, name)) == pytest.approx(0.3)
    assert of(side, "pulsar_storage_ledger_write_latency_count", topic=TOPIC) == [3]
    assert of(side, "pulsar_ml_count") == [1]
    assert of(side, "pulsar_ml_cache_inserted_entries_total") == of(side, "pulsar_ml_cache_entries") == [3]
    raw.close()


async def test_managed_ledgers_are_not_told_where_the_setting_says_so(world: AdminWorld) -> None:
    side = await owner(world, expose_ledger_metrics=False)
    raw = await used(side)
    assert {name for name in names(side, "pulsar_ml_") if "cache" not in name and "inflight" not in name} == {
        "pulsar_ml_count"
    }
    raw.close()


async def test_cursors_are_told_where_the_setting_says_so(world: AdminWorld) -> None:
    side = await owner(world, expose_cursor_metrics=True, mark_delete_rate=1000.0)
    raw = await used(side)
    topic = opened(side)
    cursor = topic.ledger.cursors["s"]
    (consumer,) = topic.subscriptions["s"].consumers
    third = max(consumer.pending)
    raw.send(
        BaseCommand.ACK, consumer_id=0, ack_type=0, message_id=[MessageIdData(ledgerId=third[0], entryId=third[1])]
    )
    raw.send(BaseCommand.PING)
    await raw.expect(BaseCommand.PONG)
    await cursor.flush()
    labels = {"namespace": "public/default/persistent", "ledger_name": "public/default/persistent/t"}
    beginning = "pulsar_ml_cursor_"
    assert of(side, f"{beginning}nonContiguousDeletedMessagesRange", cursor_name="s", **labels) == [1]
    assert of(side, f"{beginning}persistLedgerSucceed", cursor_name="s", **labels) == [1]
    (size,) = of(side, f"{beginning}writeLedgerLogicalSize", cursor_name="s")
    assert of(side, f"{beginning}writeLedgerSize", cursor_name="s") == [size * topic.ledger.config.write_quorum]
    assert size > 0
    await topic.close()
    assert cursor.counts.node_writes == 1, "a cursor that is closed goes into its node"
    raw.close()


async def test_cursors_are_not_told_by_default(world: AdminWorld) -> None:
    side = await owner(world)
    raw = await used(side)
    assert names(side, "pulsar_ml_cursor_") == set()
    raw.close()
