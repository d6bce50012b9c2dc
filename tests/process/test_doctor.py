"""The doctor on a real cluster: the cause of each finding is made, the finding appears, and goes with its cause."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest

from magnetar.processes.cluster import Cluster, reserved_ports
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import ledger_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.marks import underreplication
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.processes import change_settings, client_of, cluster_of, until
from tests.support.shared_cluster import in_metadata
from tests.support.shell import Shell, run_command
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

T = TypeVar("T")

BOOKIES, BROKERS = 3, 2
# The longest session that a server with ticks of 500 ms grants: a paused server stays registered meanwhile.
LONG_SESSION_MS = 10_000
HOUR_S = 3_600


class Patient:
    """A cluster, and the doctor's findings about it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.shell = Shell(cluster)

    def says(self, *options: str) -> str:
        """Its exit code is that of the worst finding; the disk of this machine may be one."""
        found = run_command("doctor", *options, env={**os.environ, **self.shell.environment})
        assert found.returncode in (0, 1, 2), found.stderr
        return found.stdout

    def findings(self, *options: str) -> dict[str, tuple[str, str]]:
        """where → (level, text). How full disks are is told by `disks`; that all bookies are on one host, and that
        nobody repairs, is so here."""
        found = [
            one
            for one in json.loads(self.says("--json", *options))
            if not _is_about_disks(one) and not any(words in one["text"] for words in IS_SO_HERE)
        ]
        assert all(one["way_out"] or one["level"] == "INFO" for one in found), found
        return {one["where"]: (one["level"], one["text"]) for one in found}

    def disks(self) -> dict[str, tuple[str, str]]:
        """bookie → what is said of its disks"""
        found = [one for one in json.loads(self.says("--json")) if _is_about_disks(one)]
        return {one["where"]: (one["level"], one["text"]) for one in found}

    def bookie(self, name: str) -> str:
        return f"bookie 127.0.0.1:{self.cluster.member(name).port}"

    def broker(self, name: str) -> str:
        return f"broker 127.0.0.1:{self.cluster.member(name).web_port}"

    def restart(self, name: str, **settings: object) -> None:
        """Stop it in order and start it again, with *settings* for this time."""
        member = self.cluster.member(name)
        path = self.cluster.directory / name / f"{member.kind}.conf"
        before = path.read_text()
        self.cluster.kill(name, signal.SIGTERM)
        change_settings(path, "".join(f"{key}={value}\n" for key, value in settings.items()))
        try:
            self.cluster.start(name)
        finally:
            path.write_text(before)

    @contextlib.contextmanager
    def paused(self, name: str) -> Iterator[None]:
        pid = self.cluster.member(name).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def in_metadata(self, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        return in_metadata(self.cluster, work)

    def lose(self, *names: str) -> None:
        """Kill bookies; what their sessions would take along two seconds later goes at once."""
        for name in names:
            self.cluster.kill(name)

        async def forget(store: MetadataStore) -> None:
            for name in names:
                with contextlib.suppress(NoNode):  # the session was quicker
                    await store.delete(f"/ledgers/available/127.0.0.1:{self.cluster.member(name).port}")

        self.in_metadata(forget)

    def state_of(self, name: str) -> str:
        address = f"127.0.0.1:{self.cluster.member(name).port}"
        found: list[dict[str, str]] = self.shell.json("bookies", "list")
        return next(one["state"] for one in found if one["bookie_id"] == address)


IS_SO_HERE = ("are on one host", "no node of it runs")


def _is_about_disks(finding: dict[str, str]) -> bool:
    return "disks are" in finding["text"]


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("doctor")
    # What the doctor is to find must not be repaired before it looks.
    with cluster_of(directory, bookies=BOOKIES, brokers=BROKERS, auto_recovery=False) as cluster:
        yield cluster


@pytest.fixture
def patient(_cluster: Cluster) -> Iterator[Patient]:
    """A cluster without findings before the test, and after it."""
    made = Patient(_cluster)
    _cluster.up(bookies=BOOKIES, brokers=BROKERS)
    until(lambda: not made.findings(), "the doctor finds nothing")
    yield made
    _cluster.up(bookies=BOOKIES, brokers=BROKERS)


# --------------------------------------------------------------------------------------- bookies


def test_a_cluster_that_is_well_is_called_so(patient: Patient) -> None:
    patient.shell.run("produce", "well", "-m", "hello")
    assert patient.findings() == {}
    assert "are on one host (127.0.0.1): copies of an entry are lost with it together" in patient.says()
    assert "3 bookies, 2 brokers, " in patient.says()
    assert "auto-recovery: no node of it runs: when a bookie is lost, nobody copies its ledgers" in patient.says()


def test_bookies_that_are_killed_are_named_with_the_copies_they_had(patient: Patient) -> None:
    cluster, shell = patient.cluster, patient.shell
    shell.run("topics", "create", "copies")
    shell.run("produce", "copies", "-m", "hello")
    ledger_id = shell.json("topics", "ledgers", "copies")["ledgers"][-1]["ledgerId"]
    (ledger,) = [one for one in shell.json("ledgers", "list") if one["ledger_id"] == ledger_id]
    names = {f"127.0.0.1:{one.port}": one.name for one in cluster.members("bookie")}
    gone, kept = (names.pop(bookie) for bookie in ledger["segments"][-1]["ensemble"])
    (other,) = names.values()

    patient.lose(gone)
    assert patient.state_of(gone) == "away"
    found = patient.findings()
    assert found.pop("bookies")[0] == "WARNING", "two are left for ensembles of two"
    level, text = found.pop(patient.bookie(gone))
    assert level == "WARNING"
    assert re.search(r"[1-9]\d* ledgers? ha(s|ve) copies on it", text)
    assert not found
    assert "→ start it again" in patient.says()
    seen = shell.json("ledgers", "show", str(ledger_id), code=2)
    assert {copy["verdict"] for entry in seen["entries"] for copy in entry["copies"]} == {"good", "unreachable"}

    patient.lose(kept, other)
    found = patient.findings()
    assert "0 of 3 take new entries" in found["bookies"][1]
    assert found["copies"][0] == "ERROR"
    assert "they cannot be read" in found["copies"][1]
    for name in ("broker-1", "broker-2"):
        assert "it cannot write a message and read it back" in found[patient.broker(name)][1]


@pytest.mark.long("a session ends, and the doctor waits for servers that hang")
def test_a_bookie_that_hangs_is_told_from_one_that_is_gone(patient: Patient) -> None:
    patient.restart("bookie-1", zkTimeout=LONG_SESSION_MS)
    until(lambda: not patient.findings(), "the doctor finds nothing")
    with patient.paused("bookie-1"), patient.paused("bookie-2"):
        until(lambda: patient.state_of("bookie-2") == "away", "the session of the bookie ends")
        found = patient.findings()
        assert "registered and does not answer" in found[patient.bookie("bookie-1")][1]
        assert found[patient.bookie("bookie-1")][0] == "ERROR"
        assert (
            "its session with the metadata store has ended, and something still listens"
            in (found[patient.bookie("bookie-2")][1])
        )
        assert "1 of 3 take new entries" in found["bookies"][1]


def test_a_bookie_is_read_only_because_an_operator_said_so(patient: Patient) -> None:
    url = f"http://127.0.0.1:{patient.cluster.member('bookie-2').web_port}"
    switch = ("bookie", "readonly", "--admin-url", url)
    patient.shell.run(*switch, "on", "--detail", "a new disk")
    level, text = patient.findings()[patient.bookie("bookie-2")]
    assert (level, text) == ("WARNING", "it is read-only (operator: a new disk)")
    assert patient.shell.json(*switch, "off") == {"readOnly": False, "reasons": {}}


@pytest.mark.long("a bookie is started twice")
def test_a_bookie_is_read_only_because_its_disk_counts_as_full(patient: Patient) -> None:
    patient.restart("bookie-3", diskUsageThreshold=0.000002, diskUsageWarnThreshold=0.000001)
    level, text = patient.findings()[patient.bookie("bookie-3")]
    assert level == "WARNING"
    assert text.startswith("it is read-only (disk: ")
    patient.restart("bookie-3")


def may_mount() -> bool:
    """Whether this user can mount a file system of its own for one process."""
    command = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /tmp"]
    with contextlib.suppress(OSError):
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    return False


@pytest.mark.long("a fourth bookie is started")
@pytest.mark.skipif(not may_mount(), reason="no file system of one's own can be mounted here (unshare -rm)")
def test_a_disk_that_fills_up_is_found_before_and_after(patient: Patient, tmp_path: Path) -> None:
    """A fourth bookie, whose ledgers are on a file system of 64 MiB that only it sees."""
    small = tmp_path / "small"
    small.mkdir()
    with contextlib.closing(reserved_ports()) as ports:
        port, web_port = next(ports), next(ports)
        config = tmp_path / "bookie.conf"
        config.write_text(
            f"bookiePort={port}\nadvertisedAddress=127.0.0.1\nhttpServerEnabled=true\nhttpServerHost=127.0.0.1\n"
            f"httpServerPort={web_port}\njournalDirectory={tmp_path / 'journal'}\nledgerDirectories={small}\n"
            f"metadataServiceUri={patient.cluster.metadata_url.replace('zk:', 'zk://')}/ledgers\nzkTimeout=2000\n"
            "diskCheckInterval=200\nminUsableSizeForEntryLogCreation=1048576\n"
        )
        script = (
            'mount -t tmpfs -o size=64m none "$1" && truncate -s 0 "$1/fill" && head -c 57M /dev/zero > "$1/fill" && '
        )
        script += 'exec "$2" -m magnetar bookie --config "$3"'
        command = ["unshare", "-rm", "sh", "-c", script, "sh", str(small), sys.executable, str(config)]
        log = tmp_path / "log"
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                until(lambda: " is ready" in log.read_text() or process.poll() is not None, "the bookie is ready")
                assert process.poll() is None, log.read_text()
                address = f"127.0.0.1:{port}"
                level, text = patient.disks()[f"bookie {address}"]
                assert level == "WARNING"
                assert text in ("its disks are 89 % full", "its disks are 90 % full")
                with Path(f"/proc/{process.pid}/root{small}/more").open("wb") as file:
                    file.write(bytes(5 << 20))
                until(lambda: "read-only" in patient.shell.run("bookies", "list"), "the bookie turns read-only")
                assert patient.disks()[f"bookie {address}"][0] == "ERROR"
                level, text = patient.findings()[f"bookie {address}"]
                assert level == "WARNING"
                assert text.startswith(f"it is read-only (disk: {small}")
            finally:
                process.terminate()
        patient.in_metadata(lambda store: store.delete(f"/ledgers/cookies/{address}"))


# ----------------------------------------------------------------------------------------- clocks


@pytest.mark.long("two servers are started twice")
def test_clocks_that_are_off_are_found(patient: Patient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Real servers, whose interpreter reads the machine's clock an hour too late."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\n"
        "wall_s, wall_ns = time.time, time.time_ns\n"
        f"time.time = lambda: wall_s() + {HOUR_S}\n"
        f"time.time_ns = lambda: wall_ns() + {HOUR_S}_000_000_000\n"
    )
    with monkeypatch.context() as changed:
        changed.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patient.restart("bookie-1")
        patient.restart("broker-1")
    found = patient.findings()
    assert set(found) == {patient.bookie("bookie-1"), patient.broker("broker-1")}
    for level, text in found.values():
        assert level == "WARNING"
        assert "s ahead of this machine's" in text
        assert abs(int(text.split()[3]) - HOUR_S) <= 5
    patient.restart("bookie-1")
    patient.restart("broker-1")


# ----------------------------------------------------------------------------------------- copies


def test_marks_of_an_auditor_are_counted(patient: Patient) -> None:
    async def mark(store: MetadataStore) -> None:
        for ledger_id in (7, 8):
            await store.put(underreplication.mark_path("/ledgers", ledger_id), b'replica: "127.0.0.1:3181"\n')

    patient.in_metadata(mark)
    level, text = patient.findings()["copies"]
    assert level == "WARNING"
    assert text == "2 ledgers are marked as under-replicated (7, 8); nobody copies them"

    election = underreplication.election_path("/ledgers")
    patient.in_metadata(lambda store: store.put_sequential(f"{election}/V_", b'bookieId: "127.0.0.1:3181"\n'))
    assert not patient.findings()["copies"][1].endswith("nobody copies them")

    async def clean(store: MetadataStore) -> None:
        for name in await store.children(election):
            await store.delete(f"{election}/{name}")
        for ledger_id in (7, 8):
            await store.delete(underreplication.mark_path("/ledgers", ledger_id))

    patient.in_metadata(clean)


def test_re_replication_that_is_switched_off_is_found(patient: Patient) -> None:
    path = underreplication.disabled_path("/ledgers")
    patient.in_metadata(lambda store: store.put(path, b""))
    assert patient.findings() == {"auto-recovery": ("WARNING", "an operator has switched re-replication off")}
    patient.in_metadata(lambda store: store.delete(path))


def test_a_ledger_whose_record_makes_no_sense_is_named(patient: Patient) -> None:
    path = ledger_path("/ledgers", 999)
    patient.in_metadata(lambda store: store.put(path, b"nonsense"))
    level, text = patient.findings()["ledger 999"]
    assert level == "ERROR"
    assert "its record makes no sense" in text
    assert "unreadable" in patient.shell.run("ledgers", "list"), "the others are listed all the same"
    patient.in_metadata(lambda store: store.delete(path))


def test_what_was_not_looked_at_is_said(patient: Patient) -> None:
    for name in ("one", "two"):
        patient.shell.run("produce", name, "-m", "hello")
    level, text = patient.findings("--ledgers", "1")["copies"]
    assert level == "INFO"
    assert text.endswith("not looked at (--ledgers, --time-limit)")
    assert "older ledger" in patient.says("--ledgers", "1")


# --------------------------------------------------------------------------------- metadata store


class SlowRoad:
    """Passes bytes on to a port of this machine, each piece with a delay."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port, self._delay_s = port, delay_s
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]

    def __enter__(self) -> "SlowRoad":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65_536):
                time.sleep(self._delay_s)
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.mark.long("each answer takes half a second")
def test_a_metadata_store_that_is_slow_is_found(patient: Patient) -> None:
    with SlowRoad(patient.cluster.state.zookeeper_port, 0.27) as road:
        url = f"zk:127.0.0.1:{road.port}"
        found = patient.findings("--metadata", url)
    level, text = found[url]
    assert level == "WARNING"
    assert "s for one answer" in text


def test_one_of_several_metadata_servers_is_missing(patient: Patient, unused_tcp_port: int) -> None:
    url = f"zk:127.0.0.1:{unused_tcp_port},127.0.0.1:{patient.cluster.state.zookeeper_port}"
    level, text = patient.findings("--metadata", url)[url]
    assert level == "WARNING"
    assert text.startswith(f"its server 127.0.0.1:{unused_tcp_port} does not answer: ")


def test_without_a_metadata_store_the_rest_is_looked_at(patient: Patient, unused_tcp_port: int) -> None:
    url = f"zk:127.0.0.1:{unused_tcp_port}"
    found = patient.findings("--metadata", url)
    assert set(found) == {url}
    assert found[url][0] == "ERROR"
    patient.shell.run("doctor", "--metadata", url, code=2)
    assert "Is one running? Give it with --metadata" in found[url][1]
    assert "looked at 0 bookies, 2 brokers" in patient.says("--metadata", url)


@pytest.mark.long("the doctor waits for it, and then sessions have ended")
def test_a_metadata_store_that_hangs_is_given_up(patient: Patient) -> None:
    with patient.paused("zookeeper"):
        level, text = patient.findings()[patient.cluster.metadata_url]
    assert level == "ERROR"
    assert "the metadata store cannot be used" in text
    until(lambda: not patient.findings(), "sessions are there again")


def test_a_cluster_without_bookies_is_found(patient: Patient) -> None:
    async def initialise(url: str) -> None:
        store = await open_store(url, LoopClock(), session_timeout_s=10.0)
        try:
            await initialise_cluster(store, "/ledgers")
        finally:
            await store.close()

    other = f"{patient.cluster.metadata_url}/other"
    asyncio.run(initialise(other))
    found = patient.findings("--metadata", other)
    assert found == {"bookies": ("ERROR", "there is no bookie, and never was one")}


# ---------------------------------------------------------------------------------------- brokers


@pytest.mark.long("a session ends, and the doctor waits for servers that hang")
def test_a_broker_that_hangs_is_found_before_and_after_its_session_ends(patient: Patient) -> None:
    def registered() -> list[str]:
        found: list[str] = patient.shell.json("brokers", "list")
        return found

    patient.restart("broker-2", metadataStoreSessionTimeoutMillis=LONG_SESSION_MS)
    until(lambda: not patient.findings(), "the doctor finds nothing")
    with patient.paused("broker-2"):
        level, text = patient.findings()[patient.broker("broker-2")]
        assert level == "ERROR"
        assert "it is registered and does not answer" in text
        until(lambda: len(registered()) == 1, "its session ends")
        url = patient.cluster.admin_urls[1]
        level, text = patient.findings()[f"broker at {url}"]
        assert level == "WARNING"
        assert "is named in --admin-url and does not answer" in text


@pytest.mark.long("both brokers are started anew")
def test_brokers_that_are_not_registered_are_found(patient: Patient) -> None:
    async def forget(store: MetadataStore) -> None:
        for name in await store.children("/loadbalance/brokers"):
            await store.delete(f"/loadbalance/brokers/{name}")

    patient.in_metadata(forget)
    assert patient.findings()["brokers"] == ("ERROR", "no broker is registered: topics are not served")
    for member in patient.cluster.members("broker"):
        patient.cluster.kill(member.name)


@pytest.mark.long("both brokers are started anew")
def test_brokers_that_are_gone_are_found(patient: Patient) -> None:
    for member in patient.cluster.members("broker"):
        patient.cluster.kill(member.name)
    found = patient.findings()
    assert set(found) == {"brokers"}
    assert found["brokers"][0] == "ERROR"
    assert "no broker answers at" in found["brokers"][1]


# ---------------------------------------------------------------------------------- subscriptions


@contextlib.contextmanager
def consuming(patient: Patient, topic: str, name: str, **options: Any) -> Iterator[pulsar.Consumer]:
    with client_of(patient.cluster.service_url) as client:
        yield client.subscribe(topic, name, **options)


def facts_of(patient: Patient, topic: str, name: str) -> dict[str, Any]:
    found: dict[str, Any] = patient.shell.json("topics", "stats", topic)["subscriptions"][name]
    return found


def filled(patient: Patient, topic: str, count: int) -> None:
    patient.shell.run("topics", "create", topic)
    patient.shell.run("subscriptions", "create", topic, "billing", "--from", "earliest")
    with client_of(patient.cluster.service_url) as client:
        producer = client.create_producer(topic, batching_enabled=False)
        for number in range(count):
            producer.send_async(b"%d" % number, None)
        producer.flush()


def where(topic: str) -> str:
    return f"subscription billing of persistent://public/default/{topic}"


def test_a_subscription_that_nobody_consumes_is_found(patient: Patient) -> None:
    filled(patient, "nobody", 20)
    assert where("nobody") not in patient.findings("--backlog", "21")
    level, text = patient.findings("--backlog", "20")[where("nobody")]
    assert (level, text) == ("WARNING", "20 entries are kept for it, and nobody consumes")
    patient.shell.run("topics", "delete", "nobody", "--force")


def test_a_consumer_that_takes_nothing_is_found(patient: Patient) -> None:
    filled(patient, "lazy", 20)
    with consuming(patient, "lazy", "billing", receiver_queue_size=1):
        until(lambda: facts_of(patient, "lazy", "billing")["consumers"], "it consumes")
        level, text = patient.findings()[where("lazy")]
    assert level == "WARNING"
    assert "none of its 1 consumers asks for more" in text
    patient.shell.run("topics", "delete", "lazy", "--force")


def test_a_consumer_that_acknowledges_nothing_is_found(patient: Patient) -> None:
    set_policy = ("namespaces", "set-policy", "public/default", "maxUnackedMessagesPerConsumer")
    patient.shell.run(*set_policy, "5")
    filled(patient, "swallowing", 40)
    shared = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 10}
    with consuming(patient, "swallowing", "billing", **shared) as consumer:
        consumer.receive(timeout_millis=10_000)
        until(lambda: facts_of(patient, "swallowing", "billing")["unackedMessages"] >= 5, "messages are unacknowledged")
        level, text = patient.findings()[where("swallowing")]
    assert level == "ERROR"
    assert text.startswith("stuck: ")
    patient.shell.run(*set_policy, "null")
    patient.shell.run("topics", "delete", "swallowing", "--force")


def test_a_question_that_is_refused_is_a_finding_and_the_rest_goes_on(patient: Patient) -> None:
    found = patient.findings("--namespace", "nobody/nowhere", "--namespace", "public/default")
    assert set(found) == {"topics of nobody/nowhere"}
    assert "this could not be asked" in found["topics of nobody/nowhere"][1]
