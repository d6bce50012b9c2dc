"""What namespaces hold that only Apache's brokers serve: planted in memory, read, and said."""

import json
from collections.abc import AsyncIterator

import pytest

from magnetar.inspect.contents import Contents, RemoteCursor, TieredLedgers, contents_findings
from magnetar.inspect.contents_reading import ClusterContents, ContentsReader
from magnetar.inspect.findings import Level
from magnetar.inspect.inspector import Inspector
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.position import EARLIEST, Position
from managed_ledger.records.paths import cursor_path, ledger_path
from managed_ledger.records.pulsar_records import decode_ledger_info
from managed_ledger.records.records_pb2 import ManagedCursorInfo, ManagedLedgerInfo
from managed_ledger.transactions.snapshots import SNAPSHOT_TOPICS
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.golden import b64, load
from tests.unit.managed_ledger.transactions.test_snapshots import CONFIG, snapshot, write

SPACE = "public/default"
ORDERS = f"{SPACE}/persistent/orders"


class Planted:
    def __init__(self, cluster: FakeCluster, inspector: Inspector) -> None:
        self.cluster = cluster
        self.inspector = inspector

    async def read(self, *namespaces: str, look_s: float = 10.0) -> ClusterContents:
        return await ContentsReader(self.inspector, look_s).read(namespaces)

    async def holds(self) -> Contents:
        answer = await self.read()
        assert not answer.unasked
        (contents,) = answer.contents
        return contents

    async def put(self, path: str, value: object = None) -> None:
        await self.cluster.store.put(path, b"" if value is None else json.dumps(value).encode())

    async def record(self, name: str, *sizes: int) -> ManagedLedgerInfo:
        """A topic with closed ledgers 1, 2, … of these bytes."""
        info = ManagedLedgerInfo()
        for number, size in enumerate(sizes, start=1):
            info.ledgerInfo.add(ledgerId=number, entries=1, size=size)
        await self.cluster.store.put(ledger_path(name), info.SerializeToString())
        return info

    async def cursor(self, name: str, cursor: str, at: Position = EARLIEST, **numbers: int) -> None:
        info = ManagedCursorInfo(cursorsLedgerId=-1, markDeleteLedgerId=at.ledger_id, markDeleteEntryId=at.entry_id)
        for key, value in numbers.items():
            info.properties.add(name=key.replace("_", "."), value=value)
        await self.cluster.store.put(cursor_path(name, cursor), info.SerializeToString())


@pytest.fixture
async def planted() -> AsyncIterator[Planted]:
    async with fake_cluster(2) as cluster:
        inspector = Inspector(cluster._session(), "/ledgers", cluster.clock)
        await inspector.start()
        made = Planted(cluster, inspector)
        await made.put("/admin/policies/public", {})
        await made.put(f"/admin/policies/{SPACE}", {"replication_clusters": ["here"]})
        try:
            yield made
        finally:
            await inspector.close()


def texts(*namespaces: Contents, has_coordinator: bool = False) -> list[str]:
    findings = list(contents_findings(namespaces, has_coordinator=has_coordinator))
    assert all(finding.level is Level.WARNING and finding.way_out for finding in findings)
    return [f"{finding.where}: {finding.text}" for finding in findings]


async def test_a_namespace_that_holds_what_we_serve_has_no_finding(planted: Planted) -> None:
    await planted.record(ORDERS, 10, 20)
    await planted.cursor(ORDERS, "billing", Position(1, 0))
    assert await planted.holds() == Contents(SPACE)
    assert texts(Contents(SPACE)) == []


async def test_topics_with_transactions_and_acknowledgements_in_them(planted: Planted) -> None:
    factory = ManagedLedgerFactory(
        await planted.cluster.client(), planted.cluster._session(), planted.cluster.clock, CONFIG
    )
    ledger = await factory.open(f"{SPACE}/persistent/{SNAPSHOT_TOPICS[0]}")
    await write(ledger, snapshot(f"persistent://{SPACE}/orders"))
    await planted.record(f"{SPACE}/persistent/orders-billing__transaction_pending_ack", 5)
    contents = await planted.holds()
    assert contents == Contents(SPACE, transactional=("orders",), pending_acks=("orders-billing",))
    assert texts(contents) == [
        f"namespace {SPACE}: 1 topic (orders) has messages of transactions; our brokers do not open it",
        f"namespace {SPACE}: 1 subscription has acknowledged in transactions (orders-billing); our brokers "
        "acknowledge what was committed, and refuse consumers while one is open",
    ]


@pytest.mark.parametrize("path", ["/managed-ledgers/pulsar/system/persistent/__transaction_log_0", "/txn/tc"])
async def test_a_coordinator_is_named_where_no_topic_says_more(planted: Planted, path: str) -> None:
    assert not (await planted.read()).has_coordinator
    await planted.put(path)
    assert (await planted.read()).has_coordinator
    (text,) = texts(Contents(SPACE), has_coordinator=True)
    assert text.startswith("transactions: a transaction coordinator of Apache's brokers has its logs here")
    named = Contents(SPACE, transactional=("orders",))
    assert texts(named, has_coordinator=True) == texts(named)


async def test_ledgers_in_tiered_storage_and_the_policy_that_sends_them(planted: Planted) -> None:
    vector = load("offloaded/4.0.8.json")
    await planted.cluster.store.put(ledger_path(ORDERS), b64(vector["data"]))
    moved = [info.ledgerId for info in decode_ledger_info(b64(vector["data"]), ORDERS).ledgerInfo][:-1]
    await planted.put(f"/admin/policies/{SPACE}", {"offload_policies": {"managedLedgerOffloadDriver": "aws-s3"}})
    contents = await planted.holds()
    assert [(item.topic, item.ledgers) for item in contents.tiered] == [("orders", len(moved))]
    tiered, policy = texts(contents)
    assert f"1 topic (orders) has {len(moved)} ledgers in tiered storage (S3, bucket offload, http://" in tiered
    assert policy.endswith("offloading by aws-s3; our brokers keep them and offload nothing")


async def test_replication_is_named_with_the_bytes_that_its_cursors_hold(planted: Planted) -> None:
    await planted.put(f"/admin/policies/{SPACE}", {"replication_clusters": ["here", "there"]})
    await planted.record(ORDERS, 10, 200, 3000)
    await planted.cursor(ORDERS, "pulsar.repl.there", Position(2, 0))
    await planted.cursor(ORDERS, "billing", pulsar_replicated_subscription=1)
    await planted.cursor(ORDERS, "audit")
    contents = await planted.holds()
    assert contents == Contents(
        SPACE,
        replicated_to=("here", "there"),
        remote_cursors=(RemoteCursor("orders", "there", 3200),),
        replicated_subscriptions=("orders: billing",),
    )
    clusters, cursors, subscriptions = texts(contents)
    assert "it is replicated among here, there" in clusters
    assert "1 cursor of replication to there hold ledgers of 3200 bytes (orders)" in cursors
    assert "1 subscription is replicated to other clusters (orders: billing)" in subscriptions


async def test_writes_that_are_stopped(planted: Planted) -> None:
    await planted.put(f"/admin/policies/{SPACE}", {"properties": {"magnetar.writes": "stopped", "team": "a"}})
    contents = await planted.holds()
    assert contents == Contents(SPACE, stops_writes=True)
    assert texts(contents) == [
        f"namespace {SPACE}: its writes are stopped: our brokers refuse what producers send (Apache's do not)"
    ]
    await planted.put(f"/admin/policies/{SPACE}", {"properties": {"magnetar.writes": "", "team": "a"}})
    assert await planted.holds() == Contents(SPACE)


async def test_shadows_scalable_topics_and_filters(planted: Planted) -> None:
    await planted.put(f"/admin/policies/{SPACE}", {"entryFilters": {"entryFilterNames": "only-new"}})
    info = await planted.record(ORDERS)
    info.properties.add(key="PULSAR.SHADOW_SOURCE", value="persistent://public/default/source")
    await planted.cluster.store.put(ledger_path(ORDERS), info.SerializeToString())
    for name, properties in ("parted", {"PULSAR.SHADOW_SOURCE": "x"}), ("plain", None):
        await planted.put(f"/admin/partitioned-topics/{SPACE}/persistent/{name}", {"properties": properties})
    await planted.put(f"/topics/{SPACE}/wide", {})
    contents = await planted.holds()
    assert contents == Contents(SPACE, shadows=("orders", "parted"), scalable=("wide",), entry_filters="only-new")
    shadows, scalable, filters = texts(contents)
    assert "2 topics are shadows of another (orders, parted)" in shadows
    assert "1 topic is scalable (wide); our brokers refuse topic://" in scalable
    assert "entry filters (only-new)" in filters


async def test_what_cannot_be_read_is_named_and_the_others_are_read_all_the_same(planted: Planted) -> None:
    await planted.cluster.store.put(ledger_path(f"{SPACE}/persistent/bad"), b"\xff\xff\xff")
    await planted.put("/admin/policies/public/odd", "no policies")
    await planted.record(ORDERS, 10)
    await planted.cursor(ORDERS, "pulsar.repl.there")
    answer = await planted.read()
    assert [what for what, _ in answer.unasked] == [
        f"what topic persistent://{SPACE}/bad holds", "the policies of namespace public/odd",
    ]  # fmt: skip
    assert [item.remote_cursors for item in answer.contents] == [(RemoteCursor("orders", "there", 10),), ()]


async def test_namespaces_are_chosen_and_topics_beyond_the_time_are_counted(planted: Planted) -> None:
    for number in range(70):
        await planted.record(f"{SPACE}/persistent/t{number}", 1)
    await planted.put("/admin/policies/public/other", {})
    assert [item.namespace for item in (await planted.read("public/other")).contents] == ["public/other"]
    assert (await planted.read(look_s=-1.0)).topics_left == 70


def test_several_topics_are_spoken_of_as_several() -> None:
    tiered = (TieredLedgers("a", 1, "S3, object x"), TieredLedgers("b", 2, "S3, object y"))
    texts_of_both = texts(Contents(SPACE, transactional=("a", "b"), tiered=tiered))
    assert "2 topics (a, b) have messages of transactions; our brokers do not open them" in texts_of_both[0]
    assert "2 topics (a, b) have 3 ledgers in tiered storage (S3, object x, …)" in texts_of_both[1]
