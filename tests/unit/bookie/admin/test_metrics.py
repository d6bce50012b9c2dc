"""The metrics for Prometheus have the names, labels and kinds of Apache's bookie."""

import re

from prometheus_client.parser import text_string_to_metric_families

from magnetar_core.bookkeeper.client.client import BookKeeper
from tests.support.bookie_admin_world import administered
from tests.support.serving import CONFIG, BookieMachines

SUMMARIES = {
    "bookkeeper_server_ADD_ENTRY": {"success"},
    "bookkeeper_server_ADD_ENTRY_REQUEST": {"success"},
    "bookkeeper_server_READ_ENTRY": {"success"},
    "bookkeeper_server_READ_ENTRY_REQUEST": {"success"},
    "bookkeeper_server_READ_ENTRY_SCHEDULING_DELAY": {"success"},
    "bookie_journal_JOURNAL_ADD_ENTRY": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_SYNC": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_QUEUE_LATENCY": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_FLUSH_LATENCY": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_CB_QUEUED_LATENCY": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_ENTRIES": {"success", "journalIndex"},
    "bookie_journal_JOURNAL_FORCE_WRITE_BATCH_BYTES": {"success", "journalIndex"},
    "bookie_flush": {"success", "ledgerDir", "indexDir"},
    "bookie_flush_entrylog": {"success", "ledgerDir", "indexDir"},
    "bookie_flush_locations_index": {"success", "ledgerDir", "indexDir"},
    "bookie_flush_ledger_index": {"success", "ledgerDir", "indexDir"},
    "bookie_flush_size": {"success", "ledgerDir", "indexDir"},
}
COUNTERS = (
    "bookie_WRITE_BYTES",
    "bookie_READ_BYTES",
    "bookie_RECLAIMED_COMPACTION_SPACE_BYTES",
    "bookie_RECLAIMED_DELETION_SPACE_BYTES",
    "bookie_DELETED_LEDGER_TOTAL",
    "bookie_MINOR_COMPACTION_TOTAL",
    "bookie_MAJOR_COMPACTION_TOTAL",
    "bookie_journal_JOURNAL_WRITE_BYTES",
    "bookie_read_cache_hits",
    "bookie_read_cache_misses",
    "magnetar_bookie_adds_total",
)
GAUGES = (
    "bookie_ledgers_count",
    "bookie_journal_JOURNAL_QUEUE_SIZE",
    "bookie_journal_JOURNAL_CB_QUEUE_SIZE",
    "bookie_write_cache_size",
    "bookie_ACTIVE_ENTRY_LOG_TOTAL",
    "bookie_ACTIVE_ENTRY_LOG_SPACE_BYTES",
    "bookie_SERVER_STATUS",
    "bookkeeper_server_ADD_ENTRY_IN_PROGRESS",
    "magnetar_bookie_connections",
)


async def test_latencies_are_summaries_with_apaches_labels_and_the_rest_says_what_it_is() -> None:
    world = BookieMachines()
    async with administered(world) as admin:
        client = BookKeeper(world.store, world.clock)
        await client.open()
        handle = await client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        for number in range(5):
            await handle.add(f"entry {number}".encode())
        await handle.close()
        reading = await client.open_ledger(handle.ledger_id, recovery=False)
        await reading.read(0, 4)
        admin.bookie.checkpointer.flush()
        await admin.bookie.checkpointer.finish()
        await client.close()
        text = (await admin.call("GET", "/metrics")).text
    kinds = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name: kinds.get(name) for name in SUMMARIES} == dict.fromkeys(SUMMARIES, "summary")
    assert {name: kinds.get(name) for name in COUNTERS} == dict.fromkeys(COUNTERS, "counter")
    assert {name: kinds.get(name) for name in GAUGES} == dict.fromkeys(GAUGES, "gauge")
    values: dict[tuple[str, str | None], float] = {}
    for family in text_string_to_metric_families(text):
        if family.name in SUMMARIES:
            assert {label for sample in family.samples for label in sample.labels} == {
                *SUMMARIES[family.name], "quantile",
            }, family.name  # fmt: skip
        for sample in family.samples:
            values[sample.name, sample.labels.get("success")] = sample.value
    assert values["bookkeeper_server_ADD_ENTRY_count", "true"] == 5
    assert values["bookkeeper_server_ADD_ENTRY_count", "false"] == 0
    assert values["bookkeeper_server_READ_ENTRY_count", "true"] >= 1
    stored = 5 * len("entry 0")  # and for each entry an envelope of 52 bytes or less
    assert stored < values["bookie_READ_BYTES_total", None] <= stored + 5 * 52
    assert (
        values["bookie_journal_JOURNAL_QUEUE_SIZE", None] == values["bookie_journal_JOURNAL_CB_QUEUE_SIZE", None] == 0
    )
    directory = re.sub(r"\W", "_", CONFIG.ledger_directories[0])
    assert 0 <= values[f"bookie_ledger_dir_{directory}_usage", None] <= 100
    assert values["bookie_journal_JOURNAL_ADD_ENTRY_count", "true"] == 6  # with the ledger's key
    assert 1 <= values["bookie_journal_JOURNAL_SYNC_count", "true"] <= 5
    assert values["bookie_flush_count", "true"] == 1
    assert values["bookie_flush_size_sum", "true"] > 5 * len("entry 0")
    (written,) = (line for line in text.splitlines() if line.startswith("bookie_journal_JOURNAL_WRITE_BYTES"))
    assert written.startswith('bookie_journal_JOURNAL_WRITE_BYTES{journalIndex="0"} ')
    assert float(written.split()[-1]) >= 4096
    assert f'ledgerDir="{CONFIG.ledger_directories[0]}"' in text
