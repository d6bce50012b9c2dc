"""A standalone becomes a cluster with its messages and subscriptions, and bookies alone save messages."""

import re
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import reserved_ports
from tests.support.processes import Load, Standalone, client_of, prepare
from tests.support.services import SESSION_MS, Service
from tests.support.shell import run_command
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.long("a cluster of single servers is started twice; the page takes the way with three messages"),
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPIC: Final = "persistent://public/default/kept"
BOOKIES: Final = ("bookie-1", "bookie-2", "bookie-3")
READ: Final = 500
"""Messages that the subscription has had before."""


class Grown:
    """A cluster around the folder of a standalone's bookie. The servers are stopped behind the block."""

    def __init__(self, folder: Path, places: Mapping[str, Path], stack: ExitStack, moved: Collection[str] = ()) -> None:
        """*places*: where the folders of each bookie are; those of *moved* were elsewhere."""
        self._moved = moved
        self.folder = folder
        self._places = places
        self._stack = stack
        self._ports = reserved_ports()  # the port of HTTP stands in the registration
        self.bookies: dict[str, Service] = {}
        self.broker: Service | None = None

    def start_bookies(self, zookeeper: str) -> None:
        for name in BOOKIES:
            settings = {
                "bookieId": name, "bookiePort": "0", "bookieListenAddress": "127.0.0.1",
                "advertisedAddress": "127.0.0.1", "httpServerEnabled": "true", "httpServerPort": str(next(self._ports)),
                "journalDirectories": str(self._places[name] / "journal"),
                "ledgerDirectories": str(self._places[name] / "ledgers"),
                "metadataServiceUri": f"zk://{zookeeper}/ledgers", "zkTimeout": str(SESSION_MS),
                "autoRecoveryDaemonEnabled": "true", "diskUsageThreshold": "0.999", "diskUsageWarnThreshold": "0.998",
            }  # fmt: skip
            moved = ("--moved",) if name in self._moved else ()
            service = Service(self.folder / f"{name} at {zookeeper.rpartition('/')[2]}", "bookie", settings, *moved)
            self.bookies[name] = self._stack.enter_context(service)

    def start_broker(self, zookeeper: str) -> Service:
        settings = {
            "metadataStoreUrl": f"zk:{zookeeper}", "clusterName": "standalone", "advertisedAddress": "127.0.0.1",
            "bindAddress": "127.0.0.1", "brokerServicePort": "0", "webServicePort": "0",
            "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
            "managedLedgerDefaultEnsembleSize": "3", "managedLedgerDefaultWriteQuorum": "3",
            "managedLedgerDefaultAckQuorum": "2", "defaultRetentionTimeInMinutes": "-1",
            "defaultRetentionSizeInMB": "-1", "brokerDeleteInactiveTopicsEnabled": "false",
        }  # fmt: skip
        service = Service(self.folder / f"broker at {zookeeper.rpartition('/')[2]}", "broker", settings)
        self.broker = self._stack.enter_context(service)
        return service


@contextmanager
def grown(folder: Path, places: Mapping[str, Path], moved: Collection[str] = ()) -> Iterator[Grown]:
    with ExitStack() as stack:
        yield Grown(folder, places, stack, moved)


def ran(*words: str, code: int = 0) -> str:
    ended = run_command(*words)
    assert ended.returncode == code, (words, ended.stdout, ended.stderr)
    return ended.stdout


def subscribed(client: pulsar.Client) -> pulsar.Consumer:
    return client.subscribe(TOPIC, "s", initial_position=pulsar.InitialPosition.Earliest)


def test_a_standalone_grows_into_a_cluster_and_its_bookies_alone_save_the_messages(
    tmp_path: Path, zookeeper: str
) -> None:
    data = tmp_path / "data"
    with Standalone(data) as server, Load(server.service_url, TOPIC) as load:
        prepare(AdminClient(server.admin_url))
        load.wait_for(3_000)
        with client_of(server.service_url) as client:
            consumer = subscribed(client)
            for _ in range(READ):
                consumer.acknowledge(consumer.receive(10_000))
            consumer.close()
        load.finish()
        AdminClient(server.admin_url).call("PUT", "/admin/v2/namespaces/public/default/unload")
        load.check()
        assert server.stop(signal.SIGTERM) == 0
    dump = tmp_path / "dump"
    metadata = ("--metadata", f"zk:{zookeeper}/grown")
    ran("metadata", "dump", str(dump), "--metadata", f"rocksdb:{data / 'metadata'}")
    ran("metadata", "restore", str(dump), *metadata)

    places = {name: (data if name == "bookie-1" else tmp_path) / name for name in BOOKIES}
    with grown(tmp_path / "grown", places) as cluster:
        cluster.start_bookies(f"{zookeeper}/grown")
        broker = cluster.start_broker(f"{zookeeper}/grown")
        with client_of(broker.service_url) as client:
            client.create_producer("persistent://public/default/new").send(b"on three")
        made = re.match(r"(\d+) ledgers get 3 copies", ran("ledgers", "widen", "--copies", "3", *metadata))
        assert made is not None
        assert int(made[1]) >= 1
        ran("ledgers", "lacking", "--wait", "--timeout", "60", *metadata)
        assert "0 ledgers get" in ran("ledgers", "widen", "--copies", "3", *metadata)
        cluster.bookies["bookie-1"].stop(signal.SIGKILL)
        load.check(broker.service_url)
        with client_of(broker.service_url) as client:
            consumer = subscribed(client)
            # A batch of which some were acknowledged comes again.
            assert READ - 50 < int(consumer.receive(20_000).data().split()[0]) <= READ, "the subscription goes on"
            client.create_producer("persistent://public/default/other").send(b"with two of three")

    # The metadata are gone as well: three bookies, of which one has moved, and an empty ZooKeeper.
    places["bookie-2"] = places["bookie-2"].rename(tmp_path / "elsewhere")
    versions = [str(place / "ledgers/current/VERSION") for place in places.values()]
    metadata = ("--metadata", f"zk:{zookeeper}/saved")
    assert "bookie-1, bookie-2, bookie-3" in ran("metadata", "adopt", *versions, *metadata)
    with grown(tmp_path / "saved", places, ("bookie-2",)) as saved:
        saved.start_bookies(f"{zookeeper}/saved")
        first = saved.start_broker(f"{zookeeper}/saved")  # makes what a namespace needs
        with client_of(first.service_url) as client:
            client.create_producer(TOPIC).close()
        first.stop(signal.SIGTERM)
        strays = ran("ledgers", "strays", *metadata)
        wanted = [line.split()[0] for line in strays.splitlines() if " load " in f"{line} "]
        assert wanted, strays
        for ledger_id in wanted:
            ran("ledgers", "restore", ledger_id, "--topic", TOPIC, *metadata)
        second = saved.start_broker(f"{zookeeper}/saved")
        load.check(second.service_url)
