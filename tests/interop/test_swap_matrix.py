"""Brokers and bookies of both houses in every mix; each column is one cluster, kept for all of its rows."""

import asyncio
import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, Record, String
from pyspark.sql import SparkSession

from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.mixed_cluster import Brand, MixedCluster, Server, compile_java, http_json, telling
from tests.support.processes import Load, Stored, client_of, read_all, until

pytestmark = pytest.mark.smoke

COLUMNS: Final[dict[str, tuple[Brand, ...]]] = {
    "our bookies": ("ours", "ours", "ours"),
    "Apache bookies": ("apache", "apache", "apache"),
    "two Apache, one ours": ("apache", "apache", "ours"),
}
HERE: Final = Path(__file__).parent

Cell = Callable[[str, str], None]


class Column:
    """The cluster of one column, and what was acknowledged in it."""

    def __init__(self, cluster: MixedCluster, column: str) -> None:
        self.cluster = cluster
        self.column = column
        self.stored: dict[str, list[Stored]] = {}
        """The messages that a client read back from each topic, which Spark has to find, too."""

    def brokers(self, *brands: Brand) -> list[Server]:
        """Exactly one running broker of each brand named, in this order; all others are stopped."""
        cluster = self.cluster
        free = {brand: cluster.of("broker", brand) for brand in ("ours", "apache")}
        chosen = [free[brand].pop(0) if free[brand] else None for brand in brands]
        for server in cluster.of("broker"):
            if server not in chosen:
                server.stop()
        found: list[Server] = []
        for brand, known in zip(brands, chosen, strict=True):
            if known is not None and known.process is None:
                known.start()
            if known is None and brand == "ours":  # with the topic API: our owner records name its listener, too
                known = cluster.add("broker", brand, grpcServicePort=0)
            found.append(known or cluster.add("broker", brand))
        return found

    def bookie_of(self, broker: Server, topic: str) -> Server:
        """A bookie of the ensemble that *topic* is written to now."""
        stats = http_json(f"{broker.admin_url}/admin/v2/persistent/{topic.removeprefix('persistent://')}/internalStats")
        metadata = asyncio.run(metadata_of(self.cluster.metadata_url, stats["ledgers"][-1]["ledgerId"]))
        return self.cluster.bookie(metadata.last_segment.ensemble[0])

    def all_bookies(self) -> None:
        for bookie in self.cluster.of("bookie"):
            if bookie.process is None:
                bookie.start()

    def check(self, load: Load, url: str) -> None:
        """Reads the topic from its start; compares it with what was acknowledged, and keeps it for Spark."""
        stored = read_all(url, load.topic)
        load.check(stored=stored)
        self.stored[load.topic] = stored


def url_of(*brokers: Server) -> str:
    return "pulsar://" + ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)


def owner_among(brokers: list[Server], topic: str) -> Server:
    port = int(AdminClient([brokers[0].admin_url]).owner_url(topic).rpartition(":")[2])
    return next(broker for broker in brokers if broker.port == port)


@pytest.fixture(scope="module", params=COLUMNS, ids=lambda column: column.replace(" ", "-").replace(",", ""))
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Column]:
    column: str = request.param
    with MixedCluster(tmp_path_factory.mktemp("swap") / "cluster") as cluster:
        cluster.start_zookeeper()
        # Both ways of laying out the metadata are tried: ours lies under our bookies, Apache's under the others.
        brands = COLUMNS[column]
        cluster.initialise(brands[0])
        for brand in brands:
            cluster.add("bookie", brand, wait=brand == "ours")
        for bookie in cluster.of("bookie"):
            bookie.wait_ready()
        yield Column(cluster, column)


def test_our_broker(world: Column, cell: Cell) -> None:
    cell("our broker", world.column)
    first, second = world.brokers("ours", "ours")
    with Load(url_of(first, second), "persistent://public/default/by-ours") as load:
        load.wait_for(2_000)
        owner = owner_among([first, second], load.topic)
        with load.rush():
            owner.kill()
        load.wait_for(2_000)
        left = second if owner is first else first
        bookie = world.bookie_of(left, load.topic)
        with load.rush():
            bookie.kill()
        load.wait_for(2_000)
        load.finish()
        world.check(load, left.service_url)
    world.all_bookies()


def test_apache_broker(world: Column, cell: Cell) -> None:
    cell("Apache broker", world.column)
    (broker,) = world.brokers("apache")
    with Load(broker.service_url, "persistent://public/default/by-apache") as load:
        load.wait_for(2_000)
        bookie = world.bookie_of(broker, load.topic)
        with load.rush():
            bookie.kill()
        load.wait_for(2_000)
        load.finish()
        world.check(load, broker.service_url)
    world.all_bookies()


class Reading(Record):  # type: ignore[misc]
    sensor = String()
    value = Integer()


@pytest.mark.parametrize(("old_brand", "new_brand"), [("ours", "apache"), ("apache", "ours")])
def test_hand_over(world: Column, cell: Cell, old_brand: Brand, new_brand: Brand) -> None:
    """The owner is paused while a client writes; another takes over; the old owner must not acknowledge then."""
    cell(f"hand-over {_name(old_brand)} → {_name(new_brand)}, the old owner still alive", world.column)
    (old,) = world.brokers(old_brand)
    base = f"persistent://public/default/from-{old_brand}"
    topic, parts, typed = base, f"{base}-parts", f"{base}-typed"
    admin = AdminClient([old.admin_url])
    with client_of(old.service_url) as client:
        admin.create_topic(parts, 3)
        producer = client.create_producer(parts, properties={"made": "before"})
        for number in range(60):
            producer.send(b"%d " % number, partition_key=f"k{number % 7}")
        records = client.create_producer(typed, schema=AvroSchema(Reading))
        records.send(Reading(sensor="before", value=1))
        consumer = client.subscribe(
            parts, "holes", consumer_type=pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest
        )
        left = set()
        for _ in range(60):
            message = consumer.receive(10_000)
            if int(message.data()) % 2:
                consumer.acknowledge(message)
            else:
                left.add(message.data())
        until(lambda: _backlog(old, parts, "holes") == 30, "the acknowledgements have arrived")
        schema = admin.call("GET", f"/admin/v2/schemas/{typed.removeprefix('persistent://')}/schema")

        client.create_producer(topic).close()  # the old one owns it before there is another
    (_, new) = world.brokers(old_brand, new_brand)
    assert owner_among([new, old], topic) is old  # the new one reads the owner's record
    with Load(url_of(old, new), topic, pause_s=0.05) as load:
        load.wait_for(500)
        with load.rush():
            old.pause()
        try:
            with client_of(new.service_url) as client:
                other = _patiently(lambda: client.create_producer(topic, producer_name="other"))
                last = Load.MESSAGES_MAX + 500
                for number in range(Load.MESSAGES_MAX, last):
                    other.send_async(b"%d " % number, None, partition_key=f"k{number % 7}")
                other.flush()
                assert owner_among([new, old], topic) is new
        finally:
            old.resume()
        # Its client is disconnected and continues at the new owner, to which the old one redirects it.
        # Apache's broker gives itself a minute for that (`namespaceBundleUnloadingTimeoutMs`), and a lookup that it
        # leaves open meanwhile takes the client 30 s.
        with telling(old, new):
            load.wait_for(500, timeout_s=90.0)
        load.finish()
        stored = read_all(new.service_url, topic)
        load.check(stored=stored)
        world.stored[topic] = stored
        assert [each.number for each in stored if each.number >= Load.MESSAGES_MAX] == [*range(Load.MESSAGES_MAX, last)]

    old.kill()
    with client_of(new.service_url) as client:
        assert len(client.get_topic_partitions(parts)) == 3
        consumer = _patiently(lambda: client.subscribe(parts, "holes", consumer_type=pulsar.ConsumerType.Shared))
        again = {consumer.receive(10_000).data() for _ in left}
        assert again == left
        with pytest.raises(pulsar.Timeout):
            consumer.receive(1_000)
        records = client.create_producer(typed, schema=AvroSchema(Reading))
        records.send(Reading(sensor="after", value=2))
        reader = client.create_reader(typed, pulsar.MessageId.earliest, schema=AvroSchema(Reading))
        assert [reader.read_next(10_000).value().sensor for _ in range(2)] == ["before", "after"]
    found = http_json(f"{new.admin_url}/admin/v2/schemas/{typed.removeprefix('persistent://')}/schema")
    assert (found["version"], found["type"], json.loads(found["data"])) == (
        schema["version"], schema["type"], json.loads(schema["data"]),
    )  # fmt: skip
    world.stored[parts] = read_all(new.service_url, parts)


def _patiently(make: Callable[[], Any]) -> Any:
    """Retry as people do: clients give up on a broker that waits for the former broker's session to end."""
    found: list[Any] = []

    def attempt() -> bool:
        with contextlib.suppress(pulsar.PulsarException):
            found.append(make())
        return bool(found)

    until(attempt, "the new owner serves", 180.0)
    return found[0]


def _backlog(broker: Server, topic: str, subscription: str) -> int:
    """Messages that the subscription has not acknowledged, all partitions together."""
    url = f"{broker.admin_url}/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitioned-stats"
    backlog: int = http_json(url)["subscriptions"][subscription]["msgBacklog"]
    return backlog


def _name(brand: Brand) -> str:
    return {"ours": "ours", "apache": "Apache"}[brand]


# ------------------------------------------------------------------------------------ ledger clients

OUR_WRITER: Final = """
    import asyncio, os, sys
    from magnetar_core.bookkeeper.client.client import BookKeeper
    from magnetar_core.bookkeeper.client.config import ClientConfig
    from magnetar_core.bookkeeper.metadata.stores.url import open_store
    from magnetar_core.bookkeeper.wire.entry import DigestType
    from magnetar_core.runtime.clock import LoopClock

    async def main(url, digest, password):
        clock = LoopClock()
        store = await open_store(url, clock, session_timeout_s=10.0)
        client = BookKeeper(store, clock, ClientConfig())
        await client.open()
        ledger = await client.create_ledger(
            ensemble_size=3, write_quorum=3, ack_quorum=2, digest_type=DigestType[digest], password=password.encode()
        )
        for number in range(200):
            await ledger.add(b"entry %d" % number)
        ledger.append([b"under way"] * 20)
        print(ledger.ledger_id, flush=True)
        await asyncio.sleep(600)

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture(scope="session")
def java_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_java([HERE / "java" / "Ledgers.java"], tmp_path_factory.mktemp("java"))


DIGESTS: Final = [("CRC32C", "", "v2"), ("HMAC", "secret", "v3")]


@pytest.mark.parametrize(("digest", "password", "protocol"), DIGESTS)
def test_apache_client_recovers_what_ours_left_open(
    world: Column, cell: Cell, java_classes: Path, digest: str, password: str, protocol: str
) -> None:
    cell("Apache's ledger client recovers what ours left open", world.column)
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OUR_WRITER), world.cluster.metadata_url, digest, password],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert writer.stdout is not None
        ledger_id = writer.stdout.readline().strip()
        assert ledger_id, "our writer ended"
    finally:
        writer.kill()
        writer.wait()
    said = world.cluster.java(
        java_classes, "Ledgers", "recover", world.cluster.zookeeper_address, protocol,
        {"HMAC": "MAC"}.get(digest, digest), password, ledger_id,
    )  # fmt: skip
    entries = [line.partition(" ")[2] for line in said.splitlines() if line.startswith("ENTRY ")]
    assert entries[:200] == [f"entry {number}" for number in range(200)]
    assert set(entries[200:]) <= {"under way"}
    metadata = asyncio.run(metadata_of(world.cluster.metadata_url, int(ledger_id)))
    assert (metadata.state.name, metadata.last_entry_id) == ("CLOSED", len(entries) - 1)


@pytest.mark.parametrize(("digest", "password", "protocol"), DIGESTS)
def test_our_client_recovers_what_apache_left_open(
    world: Column, cell: Cell, java_classes: Path, digest: str, password: str, protocol: str
) -> None:
    cell("our ledger client recovers what Apache's left open", world.column)
    said = world.cluster.java(
        java_classes, "Ledgers", "leave", world.cluster.zookeeper_address, protocol,
        {"HMAC": "MAC"}.get(digest, digest), password, "200",
    )  # fmt: skip
    ledger_id = int(next(line for line in said.splitlines() if line.startswith("LEDGER ")).split()[1])
    entries, metadata = asyncio.run(recovered(world.cluster.metadata_url, ledger_id, password.encode()))
    assert entries[:200] == [b"entry %d" % number for number in range(200)]
    assert set(entries[200:]) <= {b"under way"}
    assert (metadata.state.name, metadata.last_entry_id) == ("CLOSED", len(entries) - 1)


@contextlib.asynccontextmanager
async def ledger_client(metadata_url: str) -> AsyncIterator[BookKeeper]:
    clock = LoopClock()
    store = await open_store(metadata_url, clock, session_timeout_s=10.0)
    client = BookKeeper(store, clock, ClientConfig())
    try:
        await client.open()
        yield client
    finally:
        await client.close()
        await store.close()


async def metadata_of(metadata_url: str, ledger_id: int) -> LedgerMetadata:
    async with ledger_client(metadata_url) as client:
        return await client.read_metadata(ledger_id)


async def recovered(metadata_url: str, ledger_id: int, password: bytes) -> tuple[list[bytes], LedgerMetadata]:
    """What our client finds in a ledger that it fences, recovers and closes."""
    async with ledger_client(metadata_url) as client:
        ledger = await client.open_ledger(ledger_id, password=password, recovery=True)
        entries = await ledger.read(0, ledger.last_add_confirmed)
        return [bytes(entry.payload) for entry in entries], await client.read_metadata(ledger_id)


# --------------------------------------------------------------------------------------------- Spark


def test_our_spark_source(world: Column, cell: Cell, spark: SparkSession) -> None:
    cell("our Spark source", world.column)
    assert world.stored, "no topic was written"
    world.brokers()  # none runs
    for topic, stored in world.stored.items():
        rows = (
            spark.read.format("magnetar")
            .option("metadata.url", world.cluster.metadata_url)
            .option("topic", topic)
            .load()
            .select("value", "__key")
            .collect()
        )
        found = sorted((int(bytes(row[0]).split(b" ", 1)[0]), row[1].decode()) for row in rows)
        assert found == sorted((each.number, each.key) for each in stored), topic
