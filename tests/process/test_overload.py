"""More than fits into memory, from clients that do nothing wrong: large messages, many connections, bookies that pause.

What must hold: everything goes through, nobody is disconnected, no bookie is replaced, and the broker's memory stays
below a figure that does not depend on how many there are. `MAGNETAR_OVERLOAD=full` takes the sizes at which it was
once found broken; the ordinary run is smaller.
"""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from broker.wire.frames import command, parse_frame, payload_frame
from broker.wire.pulsar_pb2 import BaseCommand, CommandSend
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.clock import LoopClock
from tests.support.processes import client_of as pulsar_client
from tests.support.processes import cluster_of, until
from tests.support.shared_cluster import BROKER_SETTINGS, heal
from tests.support.zookeeper import why_not
from tests.unit.broker.topic.dispatching import entry

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

ROOT = Path(__file__).parents[2]
FULL = os.environ.get("MAGNETAR_OVERLOAD") == "full"
MESSAGE = bytes(range(256)) * 4096  # 1 MiB
BROKER_KIB_MAX = 400 * 1024
PATIENCE_S = 300.0

PRODUCERS = 27
PER_PRODUCER = 64 if FULL else 12
STOPPED_PRODUCERS = 200 if FULL else 140
STOPPED_S = 20.0 if FULL else 8.0


class Memory:
    """The most that a process had while this was open, in KiB (resident)."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.kib_max = 0

    def _watch(self) -> None:
        while not self._ended.wait(0.02):
            found = re.search(r"VmRSS:\s+(\d+) kB", self._status.read_text())
            assert found is not None
            self.kib_max = max(self.kib_max, int(found[1]))

    def __enter__(self) -> "Memory":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def clients(url: str, count: int, log: Path) -> Iterator[list[pulsar.Client]]:
    """Clients with a connection each."""
    made = [
        pulsar.Client(
            url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Info, str(log)), io_threads=1, operation_timeout_seconds=60
        )
        for _ in range(count)
    ]
    try:
        yield made
    finally:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda one: one.close(), made))


def reconnects(log: Path) -> list[str]:
    return [
        line
        for line in log.read_text(errors="replace").splitlines()
        if "Scheduling reconnection" in line or "Connection closed with" in line
    ]


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("overload")
    with cluster_of(folder, bookies=3, brokers=1, broker_settings=BROKER_SETTINGS) as made:
        yield made


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    """Its broker has nothing in its memory yet."""
    yield heal(_cluster)
    _cluster.kill("broker-1", signal.SIGTERM)


@pytest.fixture
def namespace(namespace: str, cluster: Cluster) -> str:
    """Acknowledgements are stored at once."""
    policy = {
        "bookkeeperEnsemble": 2,
        "bookkeeperWriteQuorum": 2,
        "bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 0.0,
    }
    AdminClient(cluster.admin_urls).call("POST", f"/admin/v2/namespaces/{namespace}/persistence", policy)
    return namespace


def broker_pid(cluster: Cluster) -> int:
    (broker,) = cluster.members("broker")
    return broker.pid


def ledgers_of(cluster: Cluster, topic: str) -> list[int]:
    admin = AdminClient(cluster.admin_urls)
    stats = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/internalStats")
    return [one["ledgerId"] for one in stats["ledgers"]]


def segments_of(cluster: Cluster, ledger_ids: list[int]) -> dict[int, int]:
    """Ledger → how many ensembles it had."""

    async def read() -> dict[int, int]:
        store = await open_store(cluster.metadata_url, LoopClock(), session_timeout_s=10.0)
        try:
            ledgers = LedgerStore(store)
            return {one: len((await ledgers.read(one)).metadata.segments) for one in ledger_ids}
        finally:
            await store.close()

    return asyncio.run(read())


class Publishing:
    """Producers that send without waiting."""

    def __init__(self, made: list[pulsar.Client], topics: list[str]) -> None:
        self.acknowledged = 0
        self.failures: list[str] = []
        self._lock = threading.Lock()
        with ThreadPoolExecutor(16) as pool:
            self._producers = list(pool.map(self._open, made, topics))

    @staticmethod
    def _open(client: pulsar.Client, topic: str) -> Any:
        return client.create_producer(
            topic, max_pending_messages=64, batching_enabled=False, send_timeout_millis=int(PATIENCE_S * 1000)
        )

    def _on_sent(self, result: Any, message_id: Any) -> None:
        with self._lock:
            if result == pulsar.Result.Ok:
                self.acknowledged += 1
            else:
                self.failures.append(str(result))

    def send(self, count: int) -> None:
        for _ in range(count):
            for producer in self._producers:
                producer.send_async(MESSAGE, self._on_sent)

    def wait_for(self, count: int) -> None:
        until(
            lambda: self.acknowledged + len(self.failures) >= count,
            f"{count} messages were answered ({self.acknowledged} were)",
            PATIENCE_S,
        )
        assert not self.failures
        assert self.acknowledged == count


def stored(cluster: Cluster, topics: list[str]) -> list[int]:
    admin = AdminClient(cluster.admin_urls)
    return [admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/internalStats")["numberOfEntries"] for topic in topics]


def check_nobody_was_harmed(cluster: Cluster, topics: list[str], log: Path) -> None:
    segments = segments_of(cluster, [ledger for topic in topics for ledger in ledgers_of(cluster, topic)])
    assert {ledger: count for ledger, count in segments.items() if count > 1} == {}
    assert reconnects(log) == []


def test_large_messages_of_many_producers_go_through_at_the_speed_of_the_disks(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    log = tmp_path / "clients.log"
    topics = [f"persistent://{namespace}/load-{number}" for number in range(PRODUCERS)]
    with Memory(broker_pid(cluster)) as memory:
        elsewhere(publish, cluster.service_url, str(log), *topics)
        check_nobody_was_harmed(cluster, topics, log)
    assert stored(cluster, topics) == [PER_PRODUCER] * PRODUCERS
    assert memory.kib_max < BROKER_KIB_MAX
    print(f"broker: {memory.kib_max >> 10} MiB at most")


@pytest.mark.parametrize(
    "kind", ["one topic", pytest.param("four topics", marks=pytest.mark.long("240 MiB once more"))]
)
def test_subscriptions_of_one_connection_share_it_evenly(
    cluster: Cluster, namespace: str, tmp_path: Path, kind: str
) -> None:
    """Each consumer gets all its messages, however little the others take, and stays connected."""
    log = tmp_path / "clients.log"
    topics = [f"persistent://{namespace}/read-{0 if kind == 'one topic' else number}" for number in range(4)]
    with Memory(broker_pid(cluster)) as memory:
        elsewhere(publish_and_read, cluster.service_url, str(log), *topics)
        assert reconnects(log) == []
    assert memory.kib_max < BROKER_KIB_MAX
    print(f"broker: {memory.kib_max >> 10} MiB at most")


@pytest.mark.long("all bookies pause for seconds")
def test_bookies_that_pause_cost_time_and_nothing_else(cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """Every message is acknowledged once and stored once, without de-duplication."""
    log = tmp_path / "clients.log"
    topics = [f"persistent://{namespace}/pause-{number}" for number in range(STOPPED_PRODUCERS)]
    with clients(cluster.service_url, STOPPED_PRODUCERS, log) as made, Memory(broker_pid(cluster)) as memory:
        publishing = Publishing(made, topics)
        publishing.send(1)
        publishing.wait_for(STOPPED_PRODUCERS)
        pids = [member.pid for member in cluster.members("bookie")]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            publishing.send(1)
            time.sleep(STOPPED_S)
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        publishing.wait_for(2 * STOPPED_PRODUCERS)
    assert stored(cluster, topics) == [2] * STOPPED_PRODUCERS
    assert reconnects(log) == []
    print(f"broker: {memory.kib_max >> 10} MiB at most")


def expect(connection: socket.socket, kind: int) -> None:
    """Read until a command of that kind has come."""
    splitter = FrameSplitter()
    connection.settimeout(30.0)
    while data := connection.recv(1 << 16):
        if kind in [parse_frame(frame)[0].type for frame in splitter.feed(data)]:
            return
    raise AssertionError("the broker closed the connection")


@pytest.mark.long("buffers of the kernel are filled")
def test_clients_that_send_and_do_not_read_are_not_read_either(cluster: Cluster, namespace: str) -> None:
    """Requests whose answers nobody takes: pings, lookups, and sends. Others are served meanwhile."""
    port = int(cluster.service_url.rpartition(":")[2])
    topic = f"persistent://{namespace}/deaf"
    connect = command(BaseCommand.CONNECT, client_version="deaf", protocol_version=21)
    produce = command(BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
    ask = b"".join(
        command(BaseCommand.GET_TOPICS_OF_NAMESPACE, request_id=number, namespace=namespace, mode=2)
        for number in range(500)
    )
    send = BaseCommand(type=BaseCommand.SEND, send=CommandSend(producer_id=1, sequence_id=0))
    frame = b"".join(bytes(part) for part in payload_frame(send, entry(0)))
    floods = [command(BaseCommand.PING) * 2_000, ask, frame * 500]
    sockets = []
    with Memory(broker_pid(cluster)) as memory, pulsar_client(cluster.service_url) as other:
        other.create_producer(topic)  # looks up who serves it, and so has it served
        for number in range(50):
            other.create_producer(f"persistent://{namespace}/{'long' * 10}-{number}").close()
        for number in range(24):
            made = socket.socket()
            made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            made.connect(("127.0.0.1", port))
            sockets.append((made, floods[number % 3]))
            made.sendall(connect + produce)
            expect(made, BaseCommand.PRODUCER_SUCCESS)
            made.settimeout(0.5)
        producer = other.create_producer(f"persistent://{namespace}/heard", send_timeout_millis=int(PATIENCE_S * 1000))
        before = memory.kib_max
        stuck: set[socket.socket] = set()
        askers = {made for made, flood in sockets if flood is ask}
        for round_ in range(1_000):  # an asker's requests fill the kernel's buffers after a few hundred rounds
            for made, flood in sockets:
                if made not in stuck and (flood is ask or round_ < 60):
                    try:
                        made.sendall(flood)
                    except TimeoutError:
                        stuck.add(made)
            if askers <= stuck:
                break
        assert askers <= stuck, "the broker went on reading who does not read its answers"
        for number in range(20):
            producer.send(str(number).encode())
        for made, _ in sockets:
            made.close()
    # Sends of all clients together; what each does not take, and a chunk of what it sends; 500 requests of each asker.
    most_mib = 128 + len(sockets) * 1.25 + len(askers) * 500 * 6 / 1024
    assert memory.kib_max - before < most_mib * 1024
    print(f"broker: {before >> 10} MiB before, {memory.kib_max >> 10} MiB at most")


def elsewhere(work: Callable[..., None], *arguments: str) -> None:
    """What clients hold, 300 MB, is to go with a process of their own."""
    command = [sys.executable, "-m", __name__, work.__name__, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]


def publish(url: str, log: str, *topics: str) -> None:
    with clients(url, len(topics), Path(log)) as made:
        publishing = Publishing(made, list(topics))
        publishing.send(PER_PRODUCER)
        publishing.wait_for(len(topics) * PER_PRODUCER)


def publish_and_read(url: str, log: str, *topics: str) -> None:
    """A subscription for each of *topics*, which may be the same; all on one connection."""
    count, names = 60, [f"s{number}" for number in range(len(topics))]
    with clients(url, 1, Path(log)) as (client,):
        for topic, name in zip(topics, names, strict=True):
            client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
        publishing = Publishing([client] * len(set(topics)), sorted(set(topics)))
        for _ in range(count):
            publishing.send(1)
        publishing.wait_for(count * len(set(topics)))
        consumers = [client.subscribe(topic, name) for topic, name in zip(topics, names, strict=True)]

        def take(consumer: Any) -> int:
            for _ in range(count):
                message = consumer.receive(int(PATIENCE_S * 1000))
                assert len(message.data()) == len(MESSAGE)
                consumer.acknowledge(message)
            return count

        with ThreadPoolExecutor(len(consumers)) as pool:
            assert list(pool.map(take, consumers)) == [count] * len(consumers)


if __name__ == "__main__":
    {work.__name__: work for work in (publish, publish_and_read)}[sys.argv[1]](*sys.argv[2:])
