"""Our metrics under Apache's names where they mean the same, so that dashboards and alarms for Apache's bookie work.

Counters, gauges and sums come without labels of ours. How long things take are summaries with Apache's labels
(`success`, `journalIndex`, `ledgerDir`, `indexDir`) and quantiles, in milliseconds; Apache's are of the last minute,
ours of the last one to two. An add has no queue between the socket and its journal here, so ADD_ENTRY_REQUEST and
ADD_ENTRY are the same; so are those of reads.
"""

import posixpath
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from bookie.admin.operations import BookieOperations
from bookie.disks.read_only import DiskState
from bookie.latency import Outcomes
from magnetar_core.runtime.data.distribution import Distribution
from magnetar_core.runtime.observe import Labels, Sample, Summary
from magnetar_core.runtime.process.descriptors import descriptor_samples
from magnetar_core.runtime.process.loop_watch import loop_stall_samples
from magnetar_core.runtime.process.usage import cpu_seconds
from magnetar_core.runtime.types import MagnetarError


class _Apaches(NamedTuple):
    name: str
    kind: str = "gauge"


# Our name without its prefix, and its labels except `bookie` → Apache's name. Several of ours may add up to one.
_NAMES: Final[dict[tuple[str, Labels], _Apaches]] = {
    ("adds_in_flight", ()): _Apaches("bookkeeper_server_ADD_ENTRY_IN_PROGRESS"),
    ("reads_in_flight", ()): _Apaches("bookkeeper_server_READ_ENTRY_IN_PROGRESS"),
    ("add_bytes_total", ()): _Apaches("bookie_WRITE_BYTES", "counter"),
    ("read_bytes_total", ()): _Apaches("bookie_READ_BYTES", "counter"),
    ("ledgers", ()): _Apaches("bookie_ledgers_count"),
    ("write_cache_bytes", ()): _Apaches("bookie_write_cache_size"),
    ("read_cache_bytes", ()): _Apaches("bookie_read_cache_size"),
    ("read_cache_hits_total", ()): _Apaches("bookie_read_cache_hits", "counter"),
    ("cold_reads_total", ()): _Apaches("bookie_read_cache_misses", "counter"),
    ("gc_deleted_ledgers_total", ()): _Apaches("bookie_DELETED_LEDGER_TOTAL", "counter"),
    ("gc_moved_ledgers_total", ()): _Apaches("bookie_DELETED_LEDGER_TOTAL", "counter"),
    ("entry_logs", ()): _Apaches("bookie_ACTIVE_ENTRY_LOG_TOTAL"),
    ("entry_log_bytes", ()): _Apaches("bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES"),
    ("gc_reclaimed_by_bytes_total", (("kind", "compaction"),)): _Apaches(
        "bookie_RECLAIMED_COMPACTION_SPACE_BYTES", "counter"
    ),
    ("gc_reclaimed_by_bytes_total", (("kind", "deletion"),)): _Apaches(
        "bookie_RECLAIMED_DELETION_SPACE_BYTES", "counter"
    ),
    ("compactions_total", (("kind", "minor"),)): _Apaches("bookie_MINOR_COMPACTION_TOTAL", "counter"),
    ("compactions_total", (("kind", "major"),)): _Apaches("bookie_MAJOR_COMPACTION_TOTAL", "counter"),
}

_PREFIX: Final = "magnetar_bookie_"
_NONE: Final = Distribution()


def apache_samples(operations: BookieOperations) -> Iterator[Sample | Summary]:
    """`operations.metrics()` under Apache's names."""
    totals: dict[_Apaches, tuple[float, str]] = {}
    for sample in operations.metrics():
        labels = tuple(label for label in sample.labels if label[0] != "bookie")
        apaches = _NAMES.get((sample.name.removeprefix(_PREFIX), labels))
        if apaches is not None:
            value, _ = totals.get(apaches, (0.0, ""))
            totals[apaches] = value + sample.value, sample.help
    for (name, kind), (value, help_text) in totals.items():
        yield Sample(name, value, (), help_text, kind)
    yield from _latencies(operations)
    yield Sample("process_cpu_seconds_total", cpu_seconds(), (), "processor time of this process")
    yield from loop_stall_samples()
    yield from descriptor_samples()
    state = operations.state()
    writable = not state.read_only and state.running
    yield Sample("bookie_SERVER_STATUS", writable, (), "1: writable, 0: read-only")
    try:
        checks = operations.info().disks
    except MagnetarError:  # a disk that cannot be asked; the other numbers are there
        return
    directories = len(operations.config.ledger_directories)
    full = sum(check.state not in (DiskState.GOOD, DiskState.WARN) for check in checks[:directories])
    for check in checks[:directories]:
        name = re.sub(
            r"\W", "_", posixpath.dirname(check.directory), flags=re.ASCII
        )  # as configured, without `current`
        used = 100 * (1 - check.free_bytes / check.total_bytes) if check.total_bytes else 100
        yield Sample(f"bookie_ledger_dir_{name}_usage", used, (), "percent of the disk")
    yield Sample("bookie_ledger_num_dirs", directories, (), "ledger directories")
    yield Sample("bookie_ledger_writable_dirs", directories - full, (), "ledger directories that take entries")


def _latencies(operations: BookieOperations) -> Iterator[Sample | Summary]:
    latency, now_s = operations.latency, operations.now_s()

    def summaries(
        name: str, help_text: str, good: Distribution, labels: Labels = (), bad: Distribution = _NONE
    ) -> Iterator[Summary]:
        for success, times in (("false", bad), ("true", good)):
            with_success = (("success", success), *labels)
            yield Summary(name, times.quantiles(now_s), times.count, times.sum, with_success, help_text)

    def outcomes(name: str, help_text: str, both: Outcomes, labels: Labels = ()) -> Iterator[Summary]:
        return summaries(name, help_text, both.good, labels, both.bad)

    for suffix in ("ENTRY", "ENTRY_REQUEST"):
        yield from outcomes(f"bookkeeper_server_ADD_{suffix}", "adds, until they are answered", latency.adds)
        yield from outcomes(f"bookkeeper_server_READ_{suffix}", "reads, until they are answered", latency.reads.all)
    text = "reads that need the disk, until a thread takes them"
    yield from summaries("bookkeeper_server_READ_ENTRY_SCHEDULING_DELAY", text, latency.reads.queue)
    for number, (journal, written_bytes) in enumerate(zip(latency.journals, operations.journal_bytes, strict=True)):
        index: Labels = (("journalIndex", str(number)),)
        name = "bookie_journal_JOURNAL_"
        yield from outcomes(name + "ADD_ENTRY", "records, until they are reported as written", journal.adds, index)
        text = "records, until the journal's thread takes them"
        yield from summaries(name + "QUEUE_LATENCY", text, journal.queue, index)
        text = "groups, until they are with the file system"
        yield from summaries(name + "FLUSH_LATENCY", text, journal.write, index)
        yield from summaries(name + "SYNC", "syncs of the journal", journal.sync, index)
        text = "groups, from the sync until the event loop heard of it"
        yield from summaries(name + "CB_QUEUED_LATENCY", text, journal.report, index)
        yield from summaries(name + "FORCE_WRITE_BATCH_ENTRIES", "records in a group", journal.group_entries, index)
        yield from summaries(name + "FORCE_WRITE_BATCH_BYTES", "bytes of a group", journal.group_bytes, index)
        waiting, unreported = operations.journal_queues[number]
        yield Sample(name + "QUEUE_SIZE", waiting, index, "adds and fences that the journal's thread has not taken")
        yield Sample(name + "CB_QUEUE_SIZE", unreported, index, "those that are written, until the event loop tells it")
        yield Sample(name + "WRITE_BYTES", written_bytes, index, "bytes written to the journal", "counter")
    for directory, flush in zip(operations.config.ledger_directories, latency.flushes, strict=True):
        where: Labels = (("ledgerDir", directory), ("indexDir", directory))
        yield from outcomes("bookie_flush", "flushes of the write cache, without pauses", flush.all, where)
        yield from summaries("bookie_flush_entrylog", "syncs of entry logs in a flush", flush.log_sync, where)
        text = "locations written and synced in a flush"
        yield from summaries("bookie_flush_locations_index", text, flush.locations, where)
        text = "rows of ledgers written in a flush"
        yield from summaries("bookie_flush_ledger_index", text, flush.ledgers, where)
        yield from summaries("bookie_flush_size", "bytes of entries in a flush", flush.bytes, where)
