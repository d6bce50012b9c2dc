"""TLS and roles on the bookie port: Apache's clients and bookies with ours, in one cluster."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest
from pyspark.sql import SparkSession

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.security.tls.files import directory_files
from tests.support.mixed_cluster import MixedCluster, compile_java
from tests.support.processes import client_of
from tests.support.tls_files import Authority

HERE: Final = Path(__file__).parent
ROLES: Final = "org.apache.bookkeeper.tls.BookieAuthZFactory"
FACTORY: Final = "org.apache.bookkeeper.tls.TLSContextFactory"
COUNT: Final = 50

Cell = Callable[[str, str], None]


def apaches_settings(folder: Path) -> dict[str, Any]:
    """For a bookie of either brand: TLS with certificates and roles, as Apache's settings say it."""
    return {
        "tlsProviderFactoryClass": FACTORY,
        "tlsClientAuthentication": "true",
        "tlsKeyStoreType": "PEM",
        "tlsKeyStore": folder / "tls.key",
        "tlsCertificatePath": folder / "tls.crt",
        "tlsTrustStoreType": "PEM",
        "tlsTrustStore": folder / "ca.crt",
        "bookieAuthProviderFactoryClass": ROLES,
        "authorizedRoles": "broker,storage",
    }


class TlsCluster:
    def __init__(self, directory: Path, cluster: MixedCluster) -> None:
        self.cluster = cluster
        self.authority = Authority(directory / "tls")
        self.bookie = self.authority.folder("bookie", unit="0:storage")
        self.broker = self.authority.folder("broker", unit="0:broker")
        self.stranger = self.authority.folder("stranger", unit="0:nobody")
        self.java_classes = compile_java([HERE / "java" / "SecureLedgers.java"], directory / "java")

    def java(self, verb: str, protocol: str, folder: Path | str, argument: object) -> list[str]:
        """What Apache's client prints, by lines."""
        said = self.cluster.java(
            self.java_classes,
            "SecureLedgers",
            verb,
            self.cluster.zookeeper_address,
            protocol,
            str(folder),
            str(argument),
        )
        return [line for line in said.splitlines() if line.startswith(("LEDGER ", "ENTRY ", "FAILED "))]

    def ours(self, folder: Path | None, ledger_id: int | None = None) -> tuple[int, list[bytes]]:
        """Write a ledger with our client, or read (and recover) *ledger_id*: its id and entries."""
        return asyncio.run(self._ours(folder, ledger_id))

    async def _ours(self, folder: Path | None, ledger_id: int | None) -> tuple[int, list[bytes]]:
        clock = LoopClock()
        store = await open_store(self.cluster.metadata_url, clock, session_timeout_s=10.0)
        tls = None if folder is None else directory_files(str(folder), "folder")
        client = BookKeeper(store, clock, ClientConfig(tls=tls))
        try:
            await client.open()
            if ledger_id is None:
                ledger = await client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3)
                for number in range(COUNT):
                    await ledger.add(b"entry %d" % number)
                return ledger.ledger_id, []
            reading = await client.open_ledger(ledger_id, recovery=True)
            return ledger_id, [bytes(entry.payload) for entry in await reading.read(0, reading.last_add_confirmed)]
        finally:
            await client.close()
            await store.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    """One bookie of ours by our one setting (with roles), one by Apache's settings, and one of Apache's."""
    directory = tmp_path_factory.mktemp("secure")
    with MixedCluster(directory / "cluster", copies=3) as cluster:
        made = TlsCluster(directory, cluster)
        cluster.start_zookeeper()
        cluster.initialise("apache")
        roles: dict[str, Any] = {"bookieAuthProviderFactoryClass": ROLES, "authorizedRoles": "broker,storage"}
        cluster.add("bookie", "ours", tlsDirectory=made.bookie, **roles)
        cluster.add("bookie", "ours", **apaches_settings(made.bookie))
        cluster.add("bookie", "apache", **apaches_settings(made.bookie))
        yield made


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_apaches_client_over_tls(world: TlsCluster, cell: Cell, protocol: str) -> None:
    cell("Apache's ledger client over TLS", "our bookies and Apache's")
    (line,) = world.java("write", protocol, world.broker, COUNT)
    assert line.startswith("LEDGER "), line
    ledger_id = int(line.split()[1])
    assert world.ours(world.broker, ledger_id)[1] == [b"entry %d" % number for number in range(COUNT)]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_our_client_over_tls(world: TlsCluster, cell: Cell, protocol: str) -> None:
    cell("our ledger client over TLS", "our bookies and Apache's")
    ledger_id, _ = world.ours(world.broker)
    assert world.java("read", protocol, world.broker, ledger_id) == [f"ENTRY entry {number}" for number in range(COUNT)]


@pytest.mark.parametrize("who", ["stranger", "clear"])
def test_who_is_not_admitted_gets_nothing_from_either(world: TlsCluster, cell: Cell, who: str) -> None:
    cell("a client without the role, or without TLS", "our bookies and Apache's")
    assert world.java("write", "v2", world.stranger if who == "stranger" else "-", 1)[0].startswith("FAILED ")
    with pytest.raises(BookKeeperError):
        world.ours(world.stranger if who == "stranger" else None)


@pytest.mark.parametrize("brand", ["ours", "apache"])
def test_a_broker_and_spark_over_tls(world: TlsCluster, cell: Cell, brand: str, spark: SparkSession) -> None:
    cell("a broker (ours, Apache's) whose bookies want TLS", "our bookies and Apache's")
    settings: dict[str, Any] = {
        "bookkeeperTLSClientAuthentication": "true",
        "bookkeeperTLSProviderFactoryClass": FACTORY,
        "bookkeeperTLSKeyFilePath": world.broker / "tls.key",
        "bookkeeperTLSCertificateFilePath": world.broker / "tls.crt",
        "bookkeeperTLSTrustCertsFilePath": world.broker / "ca.crt",
    }
    if brand == "ours":
        settings = {"bookkeeperTLSDirectory": world.broker}
    broker = world.cluster.add("broker", "ours" if brand == "ours" else "apache", **settings)
    try:
        with client_of(broker.service_url) as client:
            producer = client.create_producer(f"persistent://public/default/secure-{brand}")
            for number in range(COUNT):
                producer.send(b"message %d" % number)
            reader = client.create_reader(
                f"persistent://public/default/secure-{brand}", start_message_id=pulsar.MessageId.earliest
            )
            found = [reader.read_next(timeout_millis=20_000).data() for _ in range(COUNT)]
            assert found == [b"message %d" % number for number in range(COUNT)]
        read = (
            spark.read.format("magnetar")
            .option("metadata.url", world.cluster.metadata_url)
            .option("topic", f"secure-{brand}")
            .option("bookkeeper.tlsDirectory", str(world.broker))
            .load()
        )
        assert {bytes(row.value) for row in read.select("value").collect()} == set(found)
    finally:
        broker.stop()
