"""Apache's own tools and the official Java and Go clients, at our servers."""

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.go_programs import build_go
from tests.support.mixed_cluster import LINE, MixedCluster, compile_java, http_json
from tests.support.processes import client_of

HERE: Final = Path(__file__).parent

Cell = Callable[[str, str], None]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MixedCluster]:
    """Only ours: three bookies and a broker."""
    with MixedCluster(tmp_path_factory.mktemp("tools") / "cluster") as made:
        made.start_zookeeper()
        for _ in range(3):
            made.add("bookie", "ours")
        made.add("broker", "ours")
        yield made


async def _ledger(metadata_url: str) -> int:
    clock = LoopClock()
    store = await open_store(metadata_url, clock, session_timeout_s=10.0)
    client = BookKeeper(store, clock, ClientConfig())
    try:
        await client.open()
        ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        for number in range(30):
            await ledger.add(b"shell %d" % number)
        await ledger.close()
        return ledger.ledger_id
    finally:
        await client.close()
        await store.close()


def test_bookkeeper_shell(cluster: MixedCluster, cell: Cell) -> None:
    cell("Apache's `bookkeeper shell`", "our bookies, running")
    ledger_id = asyncio.run(_ledger(cluster.metadata_url))
    bookies = cluster.of("bookie")
    file = cluster.shell_file(bookies[0])

    def shell(*arguments: str) -> str:
        return cluster.run("bookkeeper", "shell", *arguments, file=file)

    listed = shell("listbookies", "-rw")
    assert all(bookie.bookie_id in listed for bookie in bookies), listed
    assert re.search(rf"ledgerID: {ledger_id}\b", shell("listledgers"))
    metadata = shell("ledgermetadata", "-ledgerid", str(ledger_id))
    assert re.search(r"state=CLOSED.*lastEntryId=29", metadata.replace("\n", " ")), metadata
    # Every copy; the tool leaves out the last entry that it is told.
    for bookie in bookies:
        read = shell("readledger", "-ledgerid", str(ledger_id), "-bookie", bookie.bookie_id, "-msg", "-le", "30")
        assert [f"shell {number}" in read for number in (0, 29)] == [True, True], read
    info = shell("bookieinfo")
    for bookie in bookies:
        assert re.search(rf"{bookie.bookie_id}.*\sFree: [1-9]\d*\D.*Total: [1-9]", info), info
    instance = shell("whatisinstanceid")
    assert re.search(r"[0-9a-f]{8}-[0-9a-f-]{27}", instance), instance
    assert "SimpleTest" not in instance
    test = shell("simpletest", "-ensemble", "3", "-writeQuorum", "3", "-ackQuorum", "2", "-numEntries", "50")
    assert re.search(r"50 entries written to ledger|finished", test), test


def test_bookkeeper_shell_on_the_files(cluster: MixedCluster, cell: Cell) -> None:
    cell("Apache's `bookkeeper shell`", "our bookie's journal and entry logs")
    ledger_id = asyncio.run(_ledger(cluster.metadata_url))
    bookie = cluster.of("bookie")[0]
    file = cluster.shell_file(bookie)
    bookie.stop()  # a clean stop writes everything into entry logs; the journals stay until they are superfluous
    try:
        journals = sorted((bookie.directory / "journal" / "current").glob("*.txn"))
        assert journals
        said = "".join(
            cluster.run("bookkeeper", "shell", "readjournal", "-msg", str(journal), file=file) for journal in journals
        )
        assert "shell 29" in said, said[-3000:]
        logs = sorted((bookie.directory / "ledgers" / "current").glob("*.log"))
        assert logs
        said = "".join(
            cluster.run("bookkeeper", "shell", "readlog", "-msg", "-ledgerid", str(ledger_id), str(log), file=file)
            for log in logs
        )
        assert "shell 29" in said, said[-3000:]
        assert "LastMark" in (mark := cluster.run("bookkeeper", "shell", "lastmark", file=file)), mark
    finally:
        bookie.start()


@pytest.mark.smoke
def test_pulsar_admin(cluster: MixedCluster, cell: Cell) -> None:
    cell("`pulsar-admin`", "our broker")
    broker = cluster.of("broker")[0]
    topic = "persistent://public/default/admin"
    with client_of(broker.service_url) as client:
        producer = client.create_producer(topic)
        client.subscribe(topic, "s")
        for number in range(10):
            producer.send(b"%d" % number)

    def admin(*arguments: str) -> str:
        return cluster.run("pulsar-admin", "--admin-url", broker.admin_url, *arguments)

    inner = json.loads(admin("topics", "stats-internal", topic))
    assert inner["state"] == "LedgerOpened"
    assert inner["currentLedgerEntries"] == 10
    assert inner["cursors"]["s"]["markDeletePosition"].endswith(":-1")
    stats = json.loads(admin("topics", "stats", topic))
    assert stats["subscriptions"]["s"]["msgBacklog"] == 10
    assert topic in admin("topics", "list", "public/default")
    assert "public/default" in admin("namespaces", "list", "public")


async def ensembles(metadata_url: str, count: int) -> list[frozenset[str]]:
    """The bookies of *count* new ledgers with two copies of each entry, as our client places them."""
    clock = LoopClock()
    store = await open_store(metadata_url, clock, session_timeout_s=10.0)
    client = BookKeeper(store, clock, ClientConfig())
    try:
        await client.open()
        found = []
        for _ in range(count):
            ledger = await client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
            found.append(frozenset(ledger.metadata.bookies()))
            await ledger.close()
            await client.delete_ledger(ledger.ledger_id)
        return found
    finally:
        await client.close()
        await store.close()


def test_pulsar_admin_bookies_and_placement_by_their_racks(cluster: MixedCluster, cell: Cell) -> None:
    cell("`pulsar-admin bookies`", "our broker")
    first, second, third = (bookie.bookie_id for bookie in cluster.of("bookie"))

    def admin(*arguments: str) -> str:
        return cluster.run("pulsar-admin", "--admin-url", cluster.of("broker")[0].admin_url, "bookies", *arguments)

    listed = json.loads(admin("list-bookies"))
    assert sorted(one["bookieId"] for one in listed["bookies"]) == sorted((first, second, third))
    for bookie, rack in ((first, "/rack-a"), (second, "/rack-b"), (third, "/rack-b")):
        admin("set-bookie-rack", "--bookie", bookie, "--rack", rack, "--hostname", "node-1", "--group", "group-1")
    told = json.loads(admin("get-bookie-rack", "--bookie", second))
    assert (told["rack"], told["hostname"]) == ("/rack-b", "node-1")
    placed = json.loads(admin("racks-placement"))
    assert {bookie: one["rack"] for bookie, one in placed["group-1"].items()} == {
        first: "/rack-a", second: "/rack-b", third: "/rack-b",
    }  # fmt: skip
    assert all(first in one for one in asyncio.run(ensembles(cluster.metadata_url, 20)))
    for bookie in (first, second, third):
        admin("delete-bookie-rack", "--bookie", bookie)
    assert not any(json.loads(admin("racks-placement")).values())
    assert {second, third} in asyncio.run(ensembles(cluster.metadata_url, 60)), "nobody looks at racks that are gone"


PERF: Final = ("--num-messages", "5000")


def test_pulsar_perf(cluster: MixedCluster, cell: Cell) -> None:
    cell("`pulsar-perf` produce, consume, read", "our broker")
    broker = cluster.of("broker")[0]
    topic = "persistent://public/default/perf"

    def perf(verb: str, *arguments: str) -> str:
        return cluster.run("pulsar-perf", verb, "-u", broker.service_url, *arguments, topic)

    def total(said: str) -> int:
        found = re.search(r"Aggregated throughput stats --- +(\d+) records", said)
        assert found, said[-3000:]
        return int(found[1])

    # It stops some batches after the number that it was told.
    assert total(perf("produce", "-r", "20000", "-s", "256", *PERF)) >= 5_000
    assert total(perf("consume", "-ss", "s", "-sp", "Earliest", *PERF)) >= 5_000
    assert total(perf("read", *PERF)) >= 5_000


@pytest.mark.smoke
def test_java_client(cluster: MixedCluster, cell: Cell, tmp_path: Path) -> None:
    """The client of the line whose servers run; of 5.0 its API of 4, too."""
    cell("the official Java client", "our broker")
    classes = compile_java([HERE / "java" / "Tour.java"], tmp_path / "classes", line=LINE)
    said = cluster.java(classes, "Tour", cluster.of("broker")[0].service_url, line=LINE)
    assert said.rstrip().endswith("END"), said[-3000:]
    assert said.count("HELD ") == 25


def test_java_client_that_wants_transactions_is_refused(cluster: MixedCluster, cell: Cell, tmp_path: Path) -> None:
    """`build()` must throw at once; the client must not retry for ever."""
    cell("the official Java client", "our broker")
    classes = compile_java([HERE / "java" / "Transactions.java"], tmp_path / "classes", line=LINE)
    said = cluster.java(classes, "Transactions", cluster.of("broker")[0].service_url, line=LINE)
    assert "Transactions are not enabled." in said, said[-3000:]
    assert said.count("REFUSED") == 2
    assert "BUILT" not in said


@pytest.mark.smoke
def test_go_client(cluster: MixedCluster, cell: Cell, tmp_path: Path) -> None:
    cell("the official Go client", "our broker")
    program = build_go(HERE / "go", tmp_path / "tour")
    broker = cluster.of("broker")[0]
    http_json(f"{broker.admin_url}/admin/v2/persistent/public/default/go-parts/partitions", "PUT", 3)
    done = subprocess.run([str(program), broker.service_url], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.rstrip().endswith("END")
