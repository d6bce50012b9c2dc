"""The pytest plugin as people use it: pytest runs of their own, in processes of their own."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from magnetar.testing import ServerFailed, standalone
from tests.support.processes import until
from tests.support.zookeeper import why_not

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 180

HEAD = """
    import os
    from pathlib import Path
    import pulsar, pytest

    def send(place, topic, *payloads):
        client = pulsar.Client(place.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
        producer = client.create_producer(place.topic(topic))
        for payload in payloads:
            producer.send(payload)
        reader = client.create_reader(place.topic(topic), pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(timeout_millis=10_000).data())
        client.close()
        return found

    def note(name, text):
        with Path(os.environ["NOTES"], name).open("a") as file:
            file.write(f"{text}\\n")
"""


def command(folder: Path, body: str, *options: str) -> tuple[list[str], dict[str, str]]:
    (folder / "test_people.py").write_text(textwrap.dedent(HEAD) + textwrap.dedent(body))
    notes = folder / "notes"
    notes.mkdir(exist_ok=True)
    arguments = [sys.executable, "-m", "pytest", "-q", "-p", "magnetar.testing.plugin", "-p", "no:cacheprovider",
                 "--rootdir", str(folder), str(folder), *options]  # fmt: skip
    return arguments, {**os.environ, "NOTES": str(notes), "PYTHONPATH": str(ROOT)}


def run(folder: Path, body: str, *options: str) -> str:
    arguments, environment = command(folder, body, *options)
    found = subprocess.run(
        arguments, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, cwd=folder, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def noted(folder: Path, name: str) -> list[str]:
    path = folder / "notes" / name
    return path.read_text().splitlines() if path.exists() else []


def is_there(pid: int) -> bool:
    """Whether a process runs (one that has ended and that nobody asked for counts as gone)."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


PIDS = """
    def pids(server):
        return [int(line) for line in (server.directory / "pids").read_text().split()]
"""


def test_tests_share_a_server_and_have_a_namespace_each(tmp_path: Path) -> None:
    run(
        tmp_path,
        PIDS
        + """
    def test_one(pulsar_server, _magnetar_server):
        note("pids", *pids(_magnetar_server))
        note("place", f"{pulsar_server.service_url} {pulsar_server.namespace}")
        assert send(pulsar_server, "t", b"a", b"b") == [b"a", b"b"]

    @pytest.mark.parametrize("x", ["a/b c", "é"])
    def test_two(pulsar_server, x):
        note("place", f"{pulsar_server.service_url} {pulsar_server.namespace}")
        assert send(pulsar_server, "t", b"c") == [b"c"], "nothing of the other test is there"
        import magnetar
        with magnetar.Client(pulsar_server.grpc_url) as client:
            assert client.topics.list(pulsar_server.namespace) == [pulsar_server.topic("t")]
    """,
    )
    places = [line.split() for line in noted(tmp_path, "place")]
    assert len(places) == 3
    assert len({url for url, _ in places}) == 1
    assert len({namespace for _, namespace in places}) == 3
    (pid,) = noted(tmp_path, "pids")
    assert not is_there(int(pid))


def test_the_volatile_server_is_another_one(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
    def test_both(pulsar_server, volatile_pulsar_server):
        assert pulsar_server.service_url != volatile_pulsar_server.service_url
        assert send(volatile_pulsar_server, "t", b"x") == [b"x"]
    """,
    )


def test_workers_of_xdist_have_servers_of_their_own(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
    @pytest.mark.parametrize("n", range(4))
    def test_some(pulsar_server, n):
        note("urls", pulsar_server.service_url)
        assert send(pulsar_server, "t", b"%d" % n) == [b"%d" % n]
    """,
        "-n", "2",
    )  # fmt: skip
    assert len(set(noted(tmp_path, "urls"))) == 2


def test_nothing_is_left_behind_when_the_run_is_killed(tmp_path: Path) -> None:
    arguments, environment = command(
        tmp_path,
        PIDS
        + """
    def test_for_ever(pulsar_server, _magnetar_server):
        note("pids", *pids(_magnetar_server))
        import time
        time.sleep(600)
    """,
    )
    with subprocess.Popen(arguments, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            until(lambda: noted(tmp_path, "pids"), "the test begins", 60.0)
            (pid,) = map(int, noted(tmp_path, "pids"))
            assert is_there(pid)
        finally:
            process.send_signal(signal.SIGKILL)
    until(lambda: not is_there(pid), "the server ends")


def test_nothing_but_pytest_is_loaded_before_a_fixture_is_used(tmp_path: Path) -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import magnetar.testing.plugin;"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(names - set(sys.stdlib_module_names) - {'magnetar'}))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == "[]"


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerFailed, match=r"ended with 1: .*nowhere"),
        standalone(tmp_path, options=["--config", "/nowhere/x.conf"]),
    ):
        pass


@pytest.mark.skipif(why_not() is not None, reason=str(why_not()))
def test_an_applications_failover_is_tested_in_ten_lines(tmp_path: Path) -> None:
    run(
        tmp_path,
        """
    def test_a_broker_dies(pulsar_cluster):
        topic = pulsar_cluster.topic("t")
        client = pulsar.Client(pulsar_cluster.service_url)
        producer = client.create_producer(topic)
        producer.send(b"before")
        dead = pulsar_cluster.kill_broker(serving=topic)
        producer.send(b"after")
        assert not pulsar_cluster.is_running(dead)
        assert pulsar_cluster.owner(topic) != dead
        bookie = pulsar_cluster.kill_bookie()
        producer.send(b"and on")
        pulsar_cluster.restart(bookie)
        pulsar_cluster.pause(pulsar_cluster.bookies[1])
        client.close()
        with pytest.raises(Exception, match="not there yet"):
            pulsar_cluster.partition_away(dead)

    def test_the_next_one_finds_it_whole(pulsar_cluster):
        names = [*pulsar_cluster.brokers, *pulsar_cluster.bookies]
        assert all(pulsar_cluster.is_running(name) for name in names)
        assert send(pulsar_cluster, "t", b"x") == [b"x"]
    """,
    )
