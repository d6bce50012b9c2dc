"""Topics with messages of transactions that Apache's brokers of each line wrote (tests/vectors/transactions)."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from connectors.spark.task.entries import open_entry
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import TransactionalTopic
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.transactions.pending_acks import records_in
from managed_ledger.transactions.snapshots import SNAPSHOT_TOPICS
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.golden import DECODES, REFUSES, Report, b64, golden, rows

CONFIG = ManagedLedgerConfig(ensemble_size=2, write_quorum=2, ack_quorum=2)


async def factory_of(cluster: FakeCluster) -> ManagedLedgerFactory:
    return ManagedLedgerFactory(await cluster.client(), cluster._session(), cluster.clock, CONFIG)


async def written(cluster: FakeCluster, entries: list[dict[str, Any]]) -> None:
    """The managed ledgers with these entries; their brokers are gone, and did not close their ledgers."""
    for name in {entry["managed_ledger"] for entry in entries}:
        factory = await factory_of(cluster)
        ledger = await factory.open(name)
        for entry in entries:
            if entry["managed_ledger"] == name:
                before = ledger.ledgers.last_confirmed
                ledger.append([b64(entry["data"])], [None])
                while ledger.ledgers.last_confirmed == before:
                    await asyncio.sleep(0)


@golden(
    "transactions/*.jsonl", how={REFUSES}, compared="the topic of which there is a snapshot is not opened, others are"
)
def test_a_topic_with_a_snapshot_of_its_transactions_is_not_opened(report: Report) -> None:
    entries = rows(report.vector)
    snapshots = [entry for entry in entries if entry["managed_ledger"].endswith(SNAPSHOT_TOPICS)]
    (name,) = {entry["managed_ledger"] for entry in entries if "/__" not in entry["managed_ledger"]}

    async def check() -> None:
        async with fake_cluster(2) as cluster:
            await written(cluster, snapshots)
            factory = await factory_of(cluster)
            with (
                report.row("refused"),
                pytest.raises(TransactionalTopic, match=r"has messages of transactions: .*Give it back"),
            ):
                await factory.open(name)
            with report.row("others"):
                for other in ("public/default/persistent/other", name.replace("default", "elsewhere")):
                    assert (await factory.open(other)).is_open
                assert (await factory.open(snapshots[0]["managed_ledger"])).is_open

    asyncio.run(check())


@golden(
    "transactions/*.jsonl", how={DECODES}, compared="what Spark makes of each entry of the topic: row, nothing, error"
)
def test_spark_gives_no_row_of_a_transaction(report: Report) -> None:
    outcomes = Counter[str]()
    for entry in rows(report.vector):
        if "/__" in entry["managed_ledger"]:
            continue
        place = entry["ledger"], entry["entry"]
        with report.row(place):
            try:
                opened = open_entry("persistent://public/default/txn", *place, b64(entry["data"]))
            except TransactionalTopic:
                outcomes["refused"] += 1
                continue
            assert opened is None or b"plain" in bytes(opened.payload)
            outcomes["marker" if opened is None else "row"] += 1
    with report.row("all"):
        assert min(outcomes[kind] for kind in ("refused", "marker", "row")) > 3, outcomes


@golden("pending_acks/*.jsonl", how={DECODES}, compared="place, kind and transaction of each ack; how each ended")
def test_acknowledgements_in_transactions_are_what_the_client_did(report: Report) -> None:
    entries = [row for row in rows(report.vector) if "data" in row]
    done = [row for row in rows(report.vector) if "op" in row]
    acks, ends = list[tuple[str, str, str]](), dict[str, str]()
    for entry in entries:
        (record,) = records_in(b64(entry["data"]))
        transaction = f"{record.txnid_most_bits}:{record.txnid_least_bits}"
        if record.pending_ack_op != record.ACK:
            ends[transaction] = "commit" if record.pending_ack_op == record.COMMIT else "abort"
            continue
        kind = "ack" if record.ack_type == record.Individual else "ackCumulative"
        acks += [(kind, f"{ack.ledgerId}:{ack.entryId}:-1", transaction) for ack in record.pending_ack_metadata]
    for number, row in enumerate(done):
        with report.row(number):
            assert acks[number] == (row["op"], row["id"], row["txn"])
            assert ends.get(row["txn"], "open") == row["fate"]
    with report.row("all"):
        assert len(acks) == len(done) > 10
