"""The metrics of managed ledgers, their cursors and the memory for new entries, with Apache's names and labels.

    exposeManagedLedgerMetricsInPrometheus   cluster, namespace (`tenant/namespace/persistent`): sums over the topics
    exposeManagedCursorMetricsInPrometheus   and ledger_name, cursor_name: each durable cursor
    always                                   cluster: `pulsar_ml_count`, `pulsar_ml_cache_…`

What Apache calls a number of operations is that of the last period (`statsUpdateFrequencyInSecs`), and its buckets are
rates a second. The bytes that are read are not counted: that would be work for each entry.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from broker.memory_budget import MemoryBudget
from broker.topic.topic import Topic
from magnetar_core.bookkeeper.metadata.stores.store import WentBack
from magnetar_core.runtime.data.buckets import LATENCY_BOUNDS, SIZE_BOUNDS, Period
from magnetar_core.runtime.observe import Labels, Sample
from managed_ledger.ledgers.tails import Tails
from managed_ledger.reading.entry_cache import EntryCache

_HELP: Final[Mapping[str, str]] = {
    "pulsar_ml_AddEntryBytesRate": "bytes stored a second",
    "pulsar_ml_AddEntryWithReplicasBytesRate": "bytes stored a second, all copies",
    "pulsar_ml_AddEntryErrors": "entries that were not stored, in the last period",
    "pulsar_ml_AddEntryMessagesRate": "entries stored a second",
    "pulsar_ml_AddEntrySucceed": "entries stored in the last period",
    "pulsar_ml_NumberOfMessagesInBacklog": "entries that durable subscriptions have not acknowledged",
    "pulsar_ml_ReadEntriesErrors": "reads from bookies that failed, in the last period",
    "pulsar_ml_ReadEntriesRate": "entries read by subscriptions a second",
    "pulsar_ml_ReadEntriesOpsCacheMissesRate": "those of them that were not in memory when a consumer could take them",
    "pulsar_ml_ReadEntriesSucceeded": "entries read by subscriptions in the last period",
    "pulsar_ml_StoredMessagesSize": "bytes stored, all copies",
    "pulsar_ml_MarkDeleteRate": "states of cursors stored a second",
    "pulsar_ml_AddEntryLatencyBuckets": "entries a second by milliseconds until they were stored",
    "pulsar_ml_LedgerAddEntryLatencyBuckets": "the same, without the time for which they waited for a ledger",
    "pulsar_ml_LedgerSwitchLatencyBuckets": "ledgers followed by another one a second, by milliseconds that it took",
    "pulsar_ml_EntrySizeBuckets": "entries a second by their bytes",
    "pulsar_ml_cursor_nonContiguousDeletedMessagesRange": "runs of entries acknowledged out of order",
    "pulsar_ml_cursor_persistLedgerSucceed": "states stored in a ledger since the topic was opened",
    "pulsar_ml_cursor_persistLedgerErrors": "states that no ledger took",
    "pulsar_ml_cursor_persistZookeeperSucceed": "states stored in the metadata store instead",
    "pulsar_ml_cursor_persistZookeeperErrors": "states that could not be stored there either",
    "pulsar_ml_cursor_writeLedgerSize": "bytes of states in ledgers, all copies",
    "pulsar_ml_cursor_writeLedgerLogicalSize": "bytes of states in ledgers",
    "pulsar_ml_cursor_readLedgerSize": "bytes of states read from ledgers",
    "pulsar_ml_count": "managed ledgers that are open",
    "pulsar_ml_cache_used_size": "bytes of new entries in memory, with what keeping them takes",
    "pulsar_ml_cache_entries": "entries there",
    "pulsar_ml_cache_inserted_entries_total": "entries that came into memory",
    "pulsar_ml_cache_evicted_entries_total": "entries that left it",
    "pulsar_ml_cache_hits_rate": "entries a second that subscriptions found in memory",
    "pulsar_ml_cache_misses_rate": "entries a second that came from bookies",
    "magnetar_tail_entries_saved_total": "acknowledged entries behind the end of a ledger, now in the next one",
    "magnetar_metadata_went_back_total": "records and numbers that were older than those which this process knew",
    "magnetar_tail_entries_lost_total": "acknowledged entries behind the end of a ledger that could not be saved",
    "pulsar_ml_reads_inflight_bytes": "bytes read and not sent yet, of all clients",
    "pulsar_ml_reads_available_inflight_bytes": "bytes that may be read before something was sent",
}

# Latencies are kept in microseconds and named in milliseconds.
_LATENCY_LIMITS: Final = tuple(bound / 1000 for bound in LATENCY_BOUNDS)
_SIZE_LIMITS: Final = tuple(float(bound) for bound in SIZE_BOUNDS)


def cache_samples(
    cluster: tuple[str, str], topics: Sequence[Topic], cache: EntryCache, reads: MemoryBudget
) -> Iterator[Sample]:
    """The memory that all managed ledgers share, and *reads*: what was read and not sent yet."""
    read = sum(topic.rates.values[3] for topic in topics)
    missed = sum(topic.rates.values[4] for topic in topics)
    entries, inserted = cache.entries, cache.inserted_entries
    numbers = {
        "pulsar_ml_count": len(topics),
        "pulsar_ml_cache_used_size": cache.bytes_used,
        "pulsar_ml_cache_entries": entries,
        "pulsar_ml_cache_inserted_entries_total": inserted,
        "pulsar_ml_cache_evicted_entries_total": inserted - entries,
        "pulsar_ml_cache_hits_rate": max(read - missed, 0.0),
        "pulsar_ml_cache_misses_rate": missed,
        "pulsar_ml_reads_inflight_bytes": reads.used_bytes,
        "pulsar_ml_reads_available_inflight_bytes": max(reads.room_bytes, 0),
    }
    for name, value in numbers.items():
        yield Sample(name, value, (cluster,), _HELP[name])


def tail_samples(cluster: tuple[str, str], tails: Tails) -> Iterator[Sample]:
    """What was acknowledged behind the end at which somebody else closed a ledger, and metadata that went back."""
    numbers = {
        "magnetar_metadata_went_back_total": WentBack.seen,
        "magnetar_tail_entries_saved_total": tails.saved_entries,
        "magnetar_tail_entries_lost_total": tails.lost_entries,
    }
    for name, value in numbers.items():
        yield Sample(name, value, (cluster,), _HELP[name])


def ledger_samples(cluster: tuple[str, str], topics: Sequence[Topic], period_s: int) -> Iterator[Sample]:
    """The sums of each namespace; buckets are of periods of *period_s*."""
    spaces: dict[str, Counter[tuple[str, str]]] = {}
    for topic in topics:
        space = spaces.setdefault(f"{topic.name.namespace}/persistent", Counter())
        for name, value in _of_ledger(topic).items():
            space[name, ""] += value  # type: ignore[assignment]  # rates are not whole numbers
        for name, limits, period in (
            ("pulsar_ml_AddEntryLatencyBuckets", _LATENCY_LIMITS, topic.write_latencies),
            ("pulsar_ml_LedgerAddEntryLatencyBuckets", _LATENCY_LIMITS, topic.ledger.write_latencies),
            ("pulsar_ml_LedgerSwitchLatencyBuckets", _LATENCY_LIMITS, topic.ledger.switch_latencies),
            ("pulsar_ml_EntrySizeBuckets", _SIZE_LIMITS, topic.entry_sizes),
        ):
            for key, count in _buckets(name, limits, period):
                space[key] += count / period_s  # type: ignore[assignment]
    for namespace, numbers in sorted(spaces.items()):
        labels: Labels = (cluster, ("namespace", namespace))
        for (name, quantile), value in numbers.items():
            own = (*labels, ("quantile", quantile)) if quantile else labels
            yield Sample(name, value, own, _HELP[name.removesuffix("_OVERFLOW")])


def _of_ledger(topic: Topic) -> dict[str, float]:
    _, bytes_in, written, read, missed = topic.rates.values
    counted, copies = topic.rates.counts, topic.ledger.config.write_quorum
    not_stored, reads_failed, _ = topic.storage_rates.counts
    return {
        "pulsar_ml_AddEntryBytesRate": bytes_in,
        "pulsar_ml_AddEntryWithReplicasBytesRate": bytes_in * copies,
        "pulsar_ml_AddEntryErrors": not_stored,
        "pulsar_ml_AddEntryMessagesRate": written,
        "pulsar_ml_AddEntrySucceed": counted[2],
        "pulsar_ml_NumberOfMessagesInBacklog": sum(
            subscription.cursor.backlog() for subscription in topic.subscriptions.values() if subscription.is_durable
        ),
        "pulsar_ml_ReadEntriesErrors": reads_failed,
        "pulsar_ml_ReadEntriesRate": read,
        "pulsar_ml_ReadEntriesOpsCacheMissesRate": missed,
        "pulsar_ml_ReadEntriesSucceeded": counted[3],
        "pulsar_ml_StoredMessagesSize": topic.ledger.bytes_total * copies,
        "pulsar_ml_MarkDeleteRate": topic.storage_rates.values[2],
    }


def _buckets(name: str, limits: Sequence[float], period: Period) -> Iterator[tuple[tuple[str, str], int]]:
    """(name, Apache's label `quantile`: from_to) and the count of each bucket."""
    low = 0.0
    for high, count in zip(limits, period.counts, strict=False):
        yield (name, f"{low}_{high}"), count
        low = high
    yield (f"{name}_OVERFLOW", ""), period.counts[-1]


def cursor_samples(cluster: tuple[str, str], topics: Sequence[Topic]) -> Iterator[Sample]:
    """Each durable cursor, those of the broker itself included."""
    for topic in topics:
        copies = topic.ledger.config.write_quorum
        namespace = ("namespace", f"{topic.name.namespace}/persistent")
        for name, cursor in list(topic.ledger.cursors.items()):
            labels = (cluster, namespace, ("ledger_name", topic.ledger.name), ("cursor_name", name))
            counts = cursor.counts
            numbers = {
                "nonContiguousDeletedMessagesRange": cursor.range_count,
                "persistLedgerSucceed": counts.ledger_writes,
                "persistLedgerErrors": counts.ledger_failures,
                "persistZookeeperSucceed": counts.node_writes,
                "persistZookeeperErrors": counts.node_failures,
                "writeLedgerSize": counts.written_bytes * copies,
                "writeLedgerLogicalSize": counts.written_bytes,
                "readLedgerSize": counts.read_bytes,
            }
            for what, value in numbers.items():
                full = f"pulsar_ml_cursor_{what}"
                yield Sample(full, value, labels, _HELP[full])
