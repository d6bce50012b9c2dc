"""The cluster's book-keeping, with little programs in place of the servers."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import magnetar.processes.cluster
from magnetar.processes.cluster import COPIES, Cluster, ClusterError, Member
from magnetar_core.runtime.config import parse_properties

# What a server does, as far as the cluster sees it: it says that it is ready (ZooKeeper: answers `srvr`), and ends
# when it is told to, which it notes in a file.
SERVER = """
import os, signal, socket, sys
kind, name, port, journal, manner = sys.argv[1:]
def end(*_):
    if manner != "stubborn":
        with open(journal, "a") as file:
            file.write(name + "\\n")
        os._exit(0)
signal.signal(signal.SIGTERM, end)
if manner == "broken":
    sys.exit("its disk is full")
with socket.create_server(("127.0.0.1", int(port))) as server:
    print(name, "is ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            connection.recv(4)
            connection.sendall(b"Mode: standalone")
"""


class SmallCluster(Cluster):
    """Starts the programs above; `manners` says which of them misbehave."""

    def __init__(self, directory: Path, *, copies: int = COPIES) -> None:
        super().__init__(directory, copies=copies)
        self.manners: dict[str, str] = {}
        self.ended = directory.parent / "ended"

    def command(self, member: Member) -> list[str]:
        manner = self.manners.get(member.name, "good")
        return [sys.executable, "-S", "-c", SERVER, member.kind, member.name, str(member.port), str(self.ended), manner]

    @property
    def order(self) -> list[str]:
        """Who ended by himself, in this order."""
        return self.ended.read_text().split() if self.ended.exists() else []

    def running(self) -> list[str]:
        return [member.name for member in self.state.members if self.is_running(member.name)]

    def pids(self) -> dict[str, int]:
        return {member.name: member.pid for member in self.state.members}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SmallCluster]:
    made = SmallCluster(tmp_path / "c")
    yield made
    if (made.directory / "cluster.json").exists():
        for name in made.running():
            made.kill(name, signal.SIGKILL)


ALL = ["zookeeper", "bookie-1", "bookie-2", "broker-1"]


def up(cluster: Cluster) -> None:
    cluster.up(bookies=2, brokers=1, free_ports=True)


# ------------------------------------------------------------------------------------------ starting


def test_each_server_gets_a_configuration_in_its_own_folder(cluster: SmallCluster) -> None:
    up(cluster)
    ports = {member.name: member for member in cluster.state.members}
    zookeeper = parse_properties((cluster.directory / "zookeeper" / "zoo.cfg").read_text(), "zoo.cfg")
    assert zookeeper["clientPort"] == str(ports["zookeeper"].port)
    assert zookeeper["dataDir"] == str(cluster.directory / "zookeeper" / "data")
    for name in ("bookie-1", "bookie-2"):
        bookie = parse_properties((cluster.directory / name / "bookie.conf").read_text(), name)
        assert bookie["bookiePort"] == str(ports[name].port)
        assert bookie["httpServerEnabled"] == "true"
        assert bookie["httpServerHost"] == "127.0.0.1"
        assert bookie["httpServerPort"] == str(ports[name].web_port)
        assert bookie["journalDirectory"] == str(cluster.directory / name / "journal")
        assert bookie["metadataServiceUri"] == f"zk://127.0.0.1:{ports['zookeeper'].port}/ledgers"
    broker = parse_properties((cluster.directory / "broker-1" / "broker.conf").read_text(), "broker")
    assert broker["brokerServicePort"] == str(ports["broker-1"].port)
    assert broker["webServicePort"] == str(ports["broker-1"].web_port)
    assert broker["grpcServicePort"] == str(ports["broker-1"].grpc_port)
    assert cluster.grpc_addresses == [f"127.0.0.1:{ports['broker-1'].grpc_port}"]
    assert broker["managedLedgerDefaultWriteQuorum"] == "2"
    assert cluster.service_url == f"pulsar://127.0.0.1:{ports['broker-1'].port}"
    assert cluster.admin_urls == [f"http://127.0.0.1:{ports['broker-1'].web_port}"]
    assert cluster.metadata_url == f"zk:127.0.0.1:{ports['zookeeper'].port}"


def test_the_written_configurations_are_taken_by_the_servers(cluster: SmallCluster) -> None:
    from magnetar.processes.bookies.settings import (
        read_auto_recovery_settings,
        read_bookie_settings,
        read_node_settings,
    )
    from magnetar.processes.servers import read_broker_settings

    up(cluster)
    path = cluster.directory / "bookie-1" / "bookie.conf"
    assert read_bookie_settings(path).session_timeout_ms == 2_000
    assert read_auto_recovery_settings(path).lost_bookie_delay_s == 10
    assert read_node_settings(path).metadata_service_uri.startswith("zk://")
    assert read_broker_settings(cluster.directory / "broker-1" / "broker.conf").ensemble_size == 2


def test_a_cluster_from_before_the_topic_api_goes_on_without_it(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.down()
    path = cluster.directory / "cluster.json"
    raw = json.loads(path.read_text())
    for member in raw["members"]:
        del member["grpc_port"]
    path.write_text(json.dumps(raw))
    again = Cluster(cluster.directory)
    assert again.grpc_addresses == []
    assert again.member("broker-1").ports == [again.member("broker-1").port, again.member("broker-1").web_port]


def test_a_cluster_from_before_its_bookies_had_http_goes_on_without_it(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.down()
    path = cluster.directory / "cluster.json"
    raw = json.loads(path.read_text())
    for member in raw["members"]:
        if member["kind"] == "bookie":
            member["web_port"] = 0
    path.write_text(json.dumps(raw))
    configuration = cluster.directory / "bookie-1" / "bookie.conf"
    before = configuration.read_text()
    again = SmallCluster(cluster.directory)
    try:
        up(again)
        assert again.running() == ALL
        assert again.member("bookie-1").ports == [again.member("bookie-1").port]
        assert configuration.read_text() == before
    finally:
        again.down()  # the fixture's own object knows only the processes that it started


def test_ranges_of_ports_that_meet_are_told(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magnetar.processes.cluster, "BOOKIE_WEB_PORT", magnetar.processes.cluster.WEB_PORT - 1)
    with pytest.raises(ClusterError, match=r"broker-1 needs port 8080, as bookie-2 does.*--free-ports"):
        cluster.up(bookies=2, brokers=1)
    assert not cluster.directory.exists()


def test_one_bookie_means_one_copy(cluster: SmallCluster) -> None:
    cluster.up(bookies=1, brokers=1, free_ports=True)
    broker = parse_properties((cluster.directory / "broker-1" / "broker.conf").read_text(), "broker")
    assert broker["managedLedgerDefaultEnsembleSize"] == broker["managedLedgerDefaultAckQuorum"] == "1"


def test_the_number_of_copies_can_be_told_and_needs_as_many_bookies(tmp_path: Path) -> None:
    made = SmallCluster(tmp_path / "c", copies=3)
    with pytest.raises(ClusterError, match="3 copies of each message need as many bookies; there are to be 2"):
        made.up(bookies=2, brokers=1, free_ports=True)
    try:
        made.up(bookies=4, brokers=1, free_ports=True)
        broker = parse_properties((made.directory / "broker-1" / "broker.conf").read_text(), "broker")
        assert broker["managedLedgerDefaultEnsembleSize"] == broker["managedLedgerDefaultAckQuorum"] == "3"
        first, second = made.member("bookie-1"), made.member("bookie-2")
        assert made.dashboard_url == f"http://127.0.0.1:{first.web_port}/dashboard/"
        made.kill("bookie-1")
        assert made.dashboard_url == f"http://127.0.0.1:{second.web_port}/dashboard/"
    finally:
        made.down()


def test_the_commands_are_those_that_a_person_types(tmp_path: Path) -> None:
    command = Cluster(tmp_path).command(Member("broker-2", "broker", 1, 2))
    assert command == [
        sys.executable,
        "-P",
        "-m",
        "magnetar",
        "broker",
        "--config",
        str(tmp_path / "broker-2/broker.conf"),
    ]


def test_another_object_finds_what_runs(cluster: SmallCluster) -> None:
    up(cluster)
    again = Cluster(cluster.directory)
    assert [member.name for member in again.state.members if again.is_running(member.name)] == ALL
    assert again.service_url == cluster.service_url


def test_up_starts_only_what_does_not_run(cluster: SmallCluster) -> None:
    up(cluster)
    before = cluster.pids()
    cluster.kill("bookie-1")
    assert cluster.running() == ["zookeeper", "bookie-2", "broker-1"]
    up(cluster)
    after = cluster.pids()
    assert cluster.running() == ALL
    assert [name for name in ALL if before[name] != after[name]] == ["bookie-1"]


@pytest.mark.parametrize(("bookies", "brokers"), [(3, 1), (2, 2), (1, 1)])
def test_other_numbers_for_the_same_folder_are_refused(cluster: SmallCluster, bookies: int, brokers: int) -> None:
    up(cluster)
    with pytest.raises(ClusterError, match="holds a cluster of 2 bookies and 1 brokers; give the same numbers"):
        cluster.up(bookies=bookies, brokers=brokers)
    assert cluster.running() == ALL


@pytest.mark.parametrize(("bookies", "brokers"), [(0, 1), (1, 0), (-1, 1)])
def test_a_cluster_of_nothing_is_refused(cluster: SmallCluster, bookies: int, brokers: int) -> None:
    with pytest.raises(ClusterError, match="at least one bookie and one broker"):
        cluster.up(bookies=bookies, brokers=brokers, free_ports=True)
    assert not cluster.directory.exists()


def test_ports_that_are_in_use_are_all_named(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        taken = [server.getsockname()[1] for server in (first, second)]
        monkeypatch.setattr(magnetar.processes.cluster, "ZOOKEEPER_PORT", taken[0])
        monkeypatch.setattr(magnetar.processes.cluster, "WEB_PORT", taken[1])
        with pytest.raises(ClusterError) as refused:
            cluster.up(bookies=1, brokers=1)
    assert f"zookeeper needs port {taken[0]}" in str(refused.value)
    assert f"broker-1 needs port {taken[1]}" in str(refused.value)
    assert "--free-ports" in str(refused.value)
    assert not cluster.directory.exists()


def test_free_ports_come_once_and_stay_reserved() -> None:
    ports = magnetar.processes.cluster.reserved_ports()
    drawn = [next(ports) for _ in range(20)]
    assert len(set(drawn)) == 20
    with socket.socket() as other, pytest.raises(OSError):
        other.bind(("127.0.0.1", drawn[0]))  # without SO_REUSEADDR: not for somebody who just looks for a port
    with socket.create_server(("127.0.0.1", drawn[0])):  # for the server that it is reserved for
        pass
    ports.close()


def test_a_server_that_ends_at_once_shows_the_end_of_its_log(cluster: SmallCluster) -> None:
    cluster.manners["bookie-2"] = "broken"
    with pytest.raises(ClusterError, match=r"bookie-2 ended; the end of .*/bookie-2/log:\nits disk is full"):
        up(cluster)
    assert cluster.running() == []


def test_a_server_that_is_never_ready_is_not_waited_for_for_ever(
    cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(magnetar.processes.cluster, "READY_TIMEOUT_S", 0.1)
    monkeypatch.setattr(magnetar.processes.cluster, "READY_MARK", "what nobody says")
    with pytest.raises(ClusterError, match=r"(bookie-1|zookeeper) is not ready after"):  # on a busy machine the latter
        up(cluster)
    assert cluster.running() == []


def test_a_start_that_fails_leaves_alone_what_ran_before(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.kill("broker-1")
    cluster.manners["broker-1"] = "broken"
    with pytest.raises(ClusterError, match="broker-1 ended"):
        up(cluster)
    assert cluster.running() == ["zookeeper", "bookie-1", "bookie-2"]


def test_the_log_of_the_former_run_is_kept(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.log_path("bookie-1").write_text("what happened before\n")
    cluster.kill("bookie-1")
    cluster.start("bookie-1")
    assert cluster.log_path("bookie-1").with_suffix(".old").read_text() == "what happened before\n"
    assert "is ready" in cluster.log_path("bookie-1").read_text()


# ------------------------------------------------------------------------------------------ stopping


def test_brokers_stop_before_bookies_and_bookies_before_zookeeper(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.down()
    assert cluster.running() == []
    assert cluster.order[0] == "broker-1"
    assert sorted(cluster.order[1:3]) == ["bookie-1", "bookie-2"]
    assert cluster.order[3] == "zookeeper"
    cluster.down()  # again: nothing to do


def test_who_does_not_listen_is_killed(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(magnetar.processes.cluster, "STOP_TIMEOUT_S", 0.1)
    cluster.manners["bookie-1"] = "stubborn"
    up(cluster)
    cluster.down()
    assert cluster.running() == []
    assert "bookie-1" not in cluster.order


def test_who_sleeps_is_woken_to_be_stopped(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.kill("bookie-1", signal.SIGSTOP)
    assert cluster.is_running("bookie-1")
    cluster.down()
    assert "bookie-1" in cluster.order


def test_a_process_that_got_the_pid_of_ours_is_left_alone(cluster: SmallCluster) -> None:
    up(cluster)
    cluster.down()
    stranger = subprocess.Popen([sys.executable, "-S", "-c", "import time; print(flush=True); time.sleep(60)"],
                                stdout=subprocess.PIPE)  # fmt: skip
    try:
        assert stranger.stdout is not None
        stranger.stdout.readline()
        path = cluster.directory / "cluster.json"
        record = json.loads(path.read_text())
        for member in record["members"]:
            member["pid"] = stranger.pid  # the start time remains that of our process
        path.write_text(json.dumps(record))
        found = Cluster(cluster.directory)
        assert not any(found.is_running(name) for name in ALL)
        found.down()
        with pytest.raises(ClusterError, match="bookie-1 is not running"):
            found.kill("bookie-1")
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
        assert stranger.stdout is not None
        stranger.stdout.close()


def test_a_zombie_does_not_run() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", ""]) as child:
        deadline = time.monotonic() + 10
        while magnetar.processes.cluster._start_time(child.pid):  # it has ended, and nobody has taken its exit code
            assert time.monotonic() < deadline
            time.sleep(0.01)
    assert magnetar.processes.cluster._start_time(os.getpid())


def test_a_process_that_ends_while_it_is_looked_at_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def reaped(path: Path) -> str:
        raise ProcessLookupError(errno.ESRCH, "No such process")  # as Linux says of what was opened before

    monkeypatch.setattr(Path, "read_text", reaped)
    assert not magnetar.processes.cluster._start_time(os.getpid())


def test_names_and_states_are_checked(cluster: SmallCluster) -> None:
    up(cluster)
    with pytest.raises(ClusterError, match="no process bookie-9 in this cluster; there are zookeeper, bookie-1"):
        cluster.kill("bookie-9")
    with pytest.raises(ClusterError, match=r"bookie-1 is running \(pid \d+\)"):
        cluster.start("bookie-1")
    cluster.kill("bookie-1")
    with pytest.raises(ClusterError, match="bookie-1 is not running"):
        cluster.kill("bookie-1")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"zookeeper_port": 1, "members": [{"colour": 1}]}', "{}"])
def test_a_book_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "cluster.json").write_text(text)
    with pytest.raises(ClusterError, match=r"cluster\.json cannot be read .* remove the folder"):
        Cluster(tmp_path).down()
