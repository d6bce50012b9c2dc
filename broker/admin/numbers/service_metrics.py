"""What a broker does for its clients beside topics: connections, lookups, topics that are opened.

Names and labels are Apache's, but for `broker` and `metric`, which repeat there what stands in the name already.
"""

from collections.abc import Iterator
from typing import Final

from broker.broker import Broker
from broker.ownership.load.report import network_share
from broker.transfer.load_manager import LoadManager
from magnetar_core.runtime.observe import Labels, Sample, Summary
from magnetar_core.runtime.process.descriptors import descriptor_samples
from magnetar_core.runtime.process.loop_watch import loop_stall_samples
from magnetar_core.runtime.process.usage import cpu_seconds

# The quantiles that Apache's broker has for this metric; 0: the shortest.
PUBLISH_QUANTILES: Final = (0.0, 0.5, 0.95, 0.99, 0.999, 0.9999, 1.0)


def service_samples(broker: Broker) -> Iterator[Sample | Summary]:
    """What one broker did since its start; the quantiles are of the last minute or two, in milliseconds."""
    labels = (("cluster", broker.config.cluster_name),)
    yield from _of_connections(broker, labels)
    yield from _of_lookups(broker, labels)
    yield from _of_loads(broker, labels)
    unreadable, text = broker.topic_policies.unreadable, "events of system topics that were passed over"
    yield Sample("magnetar_topic_policies_unreadable_events_total", unreadable, labels, text)
    stored, text = broker.publish_latencies, "entries that were published, until they were stored"
    quantiles = stored.quantiles(broker.clock.monotonic(), PUBLISH_QUANTILES)
    yield Summary("pulsar_broker_publish_latency", quantiles, stored.count, stored.sum, labels, text)


def _of_connections(broker: Broker, labels: Labels) -> Iterator[Sample]:
    server = broker.server
    throttled = sum(client.is_throttled for client in server.clients)
    for name, value, text in (
        ("pulsar_active_connections", len(server.clients), "connections to the binary ports"),
        ("pulsar_connection_create_success_count", server.made, "connections that were taken"),
        ("pulsar_connection_create_fail_count", server.refused, "connections above a limit, refused"),
        ("pulsar_connection_closed_total_count", server.ended, "connections that have ended"),
        ("pulsar_broker_throttled_connections", throttled, "connections that are not read for now"),
        ("pulsar_broker_pending_bytes_to_dispatch", broker.reads.used_bytes, "bytes that wait for their consumers"),
    ):
        yield Sample(name, value, labels, text, "gauge")


def _of_lookups(broker: Broker, labels: Labels) -> Iterator[Sample | Summary]:
    lookups, now_s = broker.lookups, broker.clock.monotonic()
    times, text = lookups.times, "lookups of clients that were answered"
    yield Summary("pulsar_broker_lookup", times.quantiles(now_s), times.count, times.sum, labels, text)
    for name, value, text in (
        ("answers", lookups.answers, "lookups by which clients were told who serves a topic"),
        ("redirects", lookups.redirects, "lookups by which clients were sent to another broker"),
        ("failures", lookups.failures, "lookups that were refused"),
    ):
        yield Sample(f"pulsar_broker_lookup_{name}_total", value, labels, text)
    yield Sample("pulsar_broker_lookup_pending_requests", lookups.pending, labels, "lookups under way")


def _of_loads(broker: Broker, labels: Labels) -> Iterator[Sample | Summary]:
    opening, text = broker.opening, "topics that were opened, until clients could use them"
    times = opening.load_times
    quantiles = times.quantiles(broker.clock.monotonic())
    yield Summary("pulsar_topic_load_times", quantiles, times.count, times.sum, labels, text)
    yield Sample("pulsar_topic_load_failed_count", opening.loads_failed, labels, "topics that could not be opened")
    yield Sample("pulsar_broker_topic_load_pending_requests", len(opening.under_way), labels, "topics being opened")


def load_samples(broker: Broker, load: LoadManager) -> Iterator[Sample]:
    """What this broker uses, and what it did as the leader; without the load manager only processor time.

    The names that Apache's ModularLoadManagerImpl has. There is no memory outside of a heap here, and the network is
    shown where `loadBalancerOverrideBrokerNicSpeedGbps` says what it can carry: else these names are left out."""
    yield Sample("process_cpu_seconds_total", cpu_seconds(), (), "processor time of this process")
    yield from loop_stall_samples()
    yield from descriptor_samples()
    if not broker.config.load_balancer:
        return
    labels = (("cluster", broker.config.cluster_name),)
    used, nic_gbps = load.measured, broker.config.nic_gbps or 0.0
    for name, value, text in (
        ("pulsar_lb_cpu_usage", used.cpu * 100, "percent of a core that this broker uses"),
        ("pulsar_lb_memory_usage", used.memory * 100, "percent of the machine's memory that this broker holds"),
    ):
        yield Sample(name, value, labels, text)
    if nic_gbps:
        for name, passed, text in (
            ("pulsar_lb_bandwidth_in_usage", used.total.bytes_in, "percent of the network taken by what is published"),
            ("pulsar_lb_bandwidth_out_usage", used.total.bytes_out, "percent of it taken by what is delivered"),
        ):
            yield Sample(name, network_share(passed, nic_gbps) * 100, labels, text)
    for name, value, text in (
        ("pulsar_lb_bundles_split_total", load.splits, "bundles that this broker, as the leader, had split"),
        ("pulsar_lb_unload_bundle_total", load.moves, "bundles that this broker, as the leader, had moved"),
        ("pulsar_lb_unload_broker_total", load.sources, "times that bundles of some broker were moved in a round"),
    ):
        yield Sample(name, value, labels, text)
