"""Names and labels of a broker's metrics, as Apache's broker has them (tests/vectors/metrics)."""

import re
from contextlib import AsyncExitStack
from typing import Final

import pytest

from broker.admin.numbers.metrics import broker_samples
from broker.topic.compaction.compactor import CompactionStatus
from magnetar_core.runtime.observe import Sample, Summary
from magnetar_core.topics.topic_name import TopicName
from tests.support.golden import DECODES, Report, golden, text
from tests.support.waiting import eventually
from tests.unit.broker.admin.admin_world import AdminWorld
from tests.unit.broker.test_official_client import client

LINE: Final = re.compile(r"(\w+)(?:\{(.*?)\})? \S+")

# Ours alone, or with other labels, and why.
DIFFERENT: Final = {
    "pulsar_lb_bundles_owned": "Apache's has it with the load manager, which did not run there",
    "pulsar_lb_cpu_usage": "the same",
    "pulsar_lb_memory_usage": "the same",
    "pulsar_lb_bundles_split_total": "the same",
    "pulsar_lb_unload_bundle_total": "the same",
    "pulsar_lb_unload_broker_total": "the same",
    "pulsar_active_connections": "Apache's adds labels `broker` and `metric`, which repeat what stands there already",
    "pulsar_connection_create_fail_count": "the same",
    "pulsar_connection_create_success_count": "the same",
    "pulsar_connection_closed_total_count": "the same",
    "pulsar_topic_load_failed_count": "the same",
    "pulsar_compaction_removed_event_count": "nothing was compacted when it was recorded",
    "pulsar_compaction_compacted_entries_count": "the same",
    "pulsar_compaction_duration_time_in_mills": "the same",
    "pulsar_topics_count": "Apache's has it where topics are not shown",
}

# Of topics, subscriptions and managed ledgers, with Apache's broker alone; a drop rate of persistent topics would be 0.
MISSING: Final = re.compile(
    r"pulsar_(storage_offloaded_size|topic_load_(rate_s|time_.*)|txn_.*|subscription_(filter_.*|msg_drop_rate)"
    r"|ml_(ReadEntriesBytesRate|cache_(evictions|hits_throughput|misses_throughput)))"
)


def recorded() -> dict[str, set[tuple[str, ...]]]:
    found: dict[str, set[tuple[str, ...]]] = {}
    for line in text("metrics/broker.txt").splitlines():
        told = LINE.match(line)
        if told is not None and not line.startswith("#"):
            labels = tuple(sorted(re.findall(r"(\w+)=", told[2] or "")))
            found.setdefault(told[1], set()).add(labels)
    return found


@golden(
    "metrics/dashboards.txt",
    how={DECODES},
    compared="the form of each row; tests/unit/test_monitoring.py compares the names with what our servers tell, and "
    "docs/monitoring.md lists those that are missing",
)
def test_the_names_in_published_dashboards_are_of_metrics(report: Report) -> None:
    for line in text("metrics/dashboards.txt").splitlines():
        name, *dashboards = line.split()
        with report.row(name):
            assert re.fullmatch(r"[a-zA-Z]\w+", name)
            assert dashboards == sorted(set(dashboards))
            assert dashboards


@golden(
    "metrics/broker.txt",
    how={DECODES},
    compared="names and labels of all that is told of topics, subscriptions and the broker; the test below compares "
    "them with ours",
)
def test_the_recorded_metrics_are_of_topics_with_subscriptions(report: Report) -> None:
    found = recorded()
    for name in ("pulsar_rate_in", "pulsar_subscription_back_log", "pulsar_broker_topics_count"):
        with report.row(name):
            assert any("cluster" in labels for labels in found[name])


@pytest.mark.parametrize("by_topic", [True, False])
async def test_ours_have_apaches_names_and_labels(by_topic: bool) -> None:
    apaches = recorded()
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        side = await world.side(expose_topic_metrics=by_topic)

        def use() -> None:
            with client(side.url) as c:
                c.subscribe("t", "s")
                for number in range(3):
                    c.create_producer("t").send(b"%d" % number, partition_key="k")

        await world.run(use)
        topic = side.broker.topics[TopicName.parse("persistent://public/default/t")]
        topic.compactor.start()
        await eventually(lambda: topic.compactor.facts.status is CompactionStatus.SUCCESS)
        topic.take_rates(side.broker.now_ms() + 1000)
        told = [one for one in broker_samples(side.broker, ()) if one.name.startswith("pulsar_")]
    samples = [one for one in told if isinstance(one, Sample)]
    ours: dict[str, set[tuple[str, ...]]] = {}
    for one in told:
        own = sorted(name for name, _ in one.labels)
        if isinstance(one, Summary):
            ours[one.name] = {tuple(sorted([*own, "quantile"]))}
            ours[f"{one.name}_count"] = ours[f"{one.name}_sum"] = {tuple(own)}
        else:
            ours.setdefault(one.name, set()).add(tuple(own))
    shown = {tuple(labels) for every in ours.values() for labels in every}
    assert (("cluster", "namespace", "topic") in shown) is by_topic
    for name, labels in ours.items():
        if name not in DIFFERENT and by_topic:
            assert labels <= apaches[name], name
    if by_topic:
        of_topics = {name for name, labels in apaches.items() if any("topic" in one for one in labels)}
        of_topics |= {name for name in apaches if name.startswith("pulsar_ml_") or "backlog_quota" in name}
        of_topics |= {name for name in apaches if re.match("pulsar_(broker_|connection_|topic_load|active_)", name)}
        missing = {name for name in of_topics - ours.keys() if MISSING.fullmatch(name) is None}
        assert missing == set()
    (latency,) = [one for one in told if isinstance(one, Summary) and one.name == "pulsar_broker_publish_latency"]
    assert set(latency.quantiles) == {
        float(quantile)
        for quantile in re.findall(r'pulsar_broker_publish_latency{.*quantile="(.*)"}', text("metrics/broker.txt"))
    }
    assert latency.total == 3
    assert 0 < latency.quantiles[0.0] <= latency.quantiles[1.0]
    by_period = {one.name: one.value for one in samples if "entry_size" in one.name or "write_latency" in one.name}
    assert by_period["pulsar_entry_size_count"] == by_period["pulsar_storage_write_latency_count"] == 3
    assert sum(value for name, value in by_period.items() if "entry_size_le" in name) == 3
    assert by_period["pulsar_entry_size_le_128"] == 3
    assert by_period["pulsar_entry_size_sum"] == topic.bytes_in
    numbers = {(one.name, dict(one.labels).get("subscription")): one.value for one in samples}
    assert numbers["pulsar_broker_topics_count", None] == 1
    assert numbers["pulsar_in_messages_total", None] == 3
    assert numbers["pulsar_subscription_back_log", "s" if by_topic else None] == 3
    assert numbers["pulsar_out_messages_total", "s" if by_topic else None] == 3
