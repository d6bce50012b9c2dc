"""The pytest plugin as people use it: each test starts pytest in a separate process."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from magnetar.testing import ServerFailed, guard, standalone
from tests.support.processes import until
from tests.support.zookeeper import why_not

pytestmark = pytest.mark.process
NEEDS_JAVA = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

LONG_CLUSTER = pytest.mark.long("a cluster starts for one more run of pytest")

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


def run(
    folder: Path, body: str, *options: str, through: Sequence[str] = (), environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> str:  # fmt: skip
    """A pytest run that must pass; *through* is a command that starts it."""
    arguments, environment = command(folder, body, *options)
    found = subprocess.run(
        [*through, *arguments], capture_output=True, text=True, env={**environment, **(environ or {})},
        timeout=TIMEOUT_S, cwd=cwd or folder, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def make_packages(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).mkdir()
        (folder / name / "__init__.py").touch()


def noted(folder: Path, name: str) -> list[str]:
    path = folder / "notes" / name
    return path.read_text().splitlines() if path.exists() else []


def is_there(pid: int) -> bool:
    """Whether a process runs; a zombie counts as ended."""
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


@NEEDS_JAVA
@pytest.mark.long("one more cluster; docs/testing.md is followed in such a project, too")
def test_a_project_with_packages_of_the_same_names_tests_its_failover_in_ten_lines(tmp_path: Path) -> None:
    """Its folder is the current one, the first of PYTHONPATH, and what pytest puts first by itself."""
    make_packages(tmp_path, "broker", "bookie", "connectors")
    output = run(
        tmp_path,
        """
    import broker

    def test_server(pulsar_server):
        assert broker.__file__.startswith(os.getcwd()), "the project's own package is not hidden either"
        assert send(pulsar_server, "t", b"a") == [b"a"]

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

    def test_a_broker_is_cut_off(pulsar_cluster):
        topic = pulsar_cluster.topic("t")
        client = pulsar.Client(pulsar_cluster.service_url)
        producer = client.create_producer(topic)
        producer.send(b"before")
        away = pulsar_cluster.partition_away(serving=topic, silent=False)
        producer.send(b"after")
        assert pulsar_cluster.is_running(away)
        assert pulsar_cluster.owner(topic) != away
        client.close()

    def test_the_next_one_finds_it_whole(pulsar_cluster):
        names = [*pulsar_cluster.brokers, *pulsar_cluster.bookies]
        assert all(pulsar_cluster.is_running(name) for name in names)
        assert send(pulsar_cluster, "t", b"x") == [b"x"]
    """,
        environ={"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
    )
    assert "4 passed" in output


def test_the_log_of_the_server_stands_beside_a_failing_test(tmp_path: Path) -> None:
    """The report has the lines that were logged while that test ran, and no others."""
    arguments, environment = command(
        tmp_path,
        """
    LINE = "{} went wrong in the server\\n"

    def log(server, text):
        (path,) = server.logs().values()
        with path.open("a") as file:
            file.write(text)

    def test_before(pulsar_server, _magnetar_server):
        log(_magnetar_server, LINE.format("something before"))

    def test_fails(pulsar_server, _magnetar_server):
        log(_magnetar_server, LINE.format("this"))
        assert send(pulsar_server, "t", b"a") == [b"b"]

    def test_fails_without_words(volatile_pulsar_server):
        assert False
    """,
    )
    found = subprocess.run(
        arguments, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, cwd=tmp_path, check=False
    )
    assert "2 failed, 1 passed" in found.stdout, found.stdout + found.stderr
    assert found.stdout.count("- log of standalone (") == 1, "one had nothing to say"
    assert found.stdout.count("this went wrong in the server") == 1
    assert "something before went wrong" not in found.stdout


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
        "print(sorted(names - set(sys.stdlib_module_names) - {'magnetar', 'magnetar_core'}))"
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


# A uid that no user has.
NOBODY = 54_321


def as_nobody() -> list[str]:
    """The command that starts others as a user who has no name, no group and may write nowhere; skips where it cannot
    be had."""
    if os.getuid() != 0:
        pytest.skip("only root can run something as another user")
    if shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv (util-linux)")
    # May read everything: the Python that runs the tests may be in a folder of root's.
    capability = "+dac_read_search"
    made = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups",
            "--inh-caps", capability, "--ambient-caps", capability]  # fmt: skip
    tried = subprocess.run([*made, sys.executable, "-c", "import pwd, os; pwd.getpwuid(os.getuid())"],
                           capture_output=True, text=True, check=False)  # fmt: skip
    if "KeyError" not in tried.stderr:
        pytest.skip(f"nothing can be run as user {NOBODY} without a name: {tried.stderr[-300:]}")
    return made


def without_network() -> list[str]:
    """The command that starts others with the loopback address alone; skips where it cannot be had."""
    made = ["unshare", "-n" if os.getuid() == 0 else "-rn", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("there is no unshare (util-linux) or no ip (iproute2)")
    tried = subprocess.run([*made, "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"there can be no network of its own: {tried.stderr[-300:]}")
    return made


@pytest.fixture
def nobodys_folder() -> Iterator[Path]:
    """A folder that NOBODY may write; pytest's own are for root alone."""
    with tempfile.TemporaryDirectory(prefix="magnetar-nobody-") as name:
        folder = Path(name)
        for made in (folder, folder / "tests", folder / "tests" / "notes", folder / "tmp"):
            made.mkdir(exist_ok=True)
            os.chown(made, NOBODY, NOBODY)
        yield folder


SERVERS = """
    def test_it(pulsar_server, volatile_pulsar_server):
        assert pulsar_server.service_url != volatile_pulsar_server.service_url
        assert send(pulsar_server, "t", b"x") == [b"x"]
        assert send(volatile_pulsar_server, "t", b"y") == [b"y"]
        note("uid", os.getuid())
"""
CLUSTER = """
    def test_it(pulsar_cluster):
        topic = pulsar_cluster.topic("t")
        assert send(pulsar_cluster, "t", b"x") == [b"x"]
        away = pulsar_cluster.partition_away(serving=topic, silent=False)
        assert send(pulsar_cluster, "t", b"y") == [b"x", b"y"]
        pulsar_cluster.heal(away)
        note("uid", os.getuid())
"""
of_servers_and_a_cluster = pytest.mark.parametrize(
    "body", [pytest.param(SERVERS, id="servers"), pytest.param(CLUSTER, id="cluster", marks=[NEEDS_JAVA, LONG_CLUSTER])]
)


@of_servers_and_a_cluster
def test_a_user_without_name_home_and_place_to_write_can_use_it(nobodys_folder: Path, body: str) -> None:
    surroundings = {"HOME": "/nowhere", "TMPDIR": str(nobodys_folder / "tmp"), "PYTHONDONTWRITEBYTECODE": "1"}
    tests = nobodys_folder / "tests"
    run(tests, body, through=as_nobody(), environ=surroundings, cwd=Path("/"))
    assert noted(tests, "uid") == [str(NOBODY)]


@of_servers_and_a_cluster
def test_home_may_point_nowhere(tmp_path: Path, body: str) -> None:
    run(tmp_path, body, environ={"HOME": "/nowhere"}, cwd=Path("/"))


@of_servers_and_a_cluster
def test_it_works_offline(tmp_path: Path, body: str) -> None:
    run(tmp_path, body, through=without_network())


def test_a_proxy_of_the_environment_is_for_others(tmp_path: Path) -> None:
    nobody = "http://127.0.0.1:9"
    run(
        tmp_path,
        """
    def test_it(pulsar_server):
        assert send(pulsar_server, "t", b"x") == [b"x"]
    """,
        environ={"http_proxy": nobody, "HTTP_PROXY": nobody, "no_proxy": ""},
    )


def test_a_server_that_has_ended_is_not_waited_for_where_nobody_takes_notice_of_it() -> None:
    leaves_it = "sleep 600 & echo $!; exec sleep 600"
    with subprocess.Popen(["sh", "-c", leaves_it], stdout=subprocess.PIPE, text=True) as parent:
        try:
            assert parent.stdout is not None
            pid = int(parent.stdout.readline())
            of_parent = psutil.Process(parent.pid)
            until(lambda: of_parent.name() == "sleep", "the shell, which would take notice, is another program")
            os.kill(pid, signal.SIGKILL)
            until(lambda: not is_there(pid), "the child ends")
            os.kill(pid, 0)  # it is listed still
            assert not guard.is_there(pid)
            assert guard.is_there(parent.pid)
        finally:
            parent.kill()


@NEEDS_JAVA
@pytest.mark.parametrize("moment", [
    pytest.param("while it starts", marks=LONG_CLUSTER),
    pytest.param("while a test runs", marks=LONG_CLUSTER),
    "while a server is cut off",
])  # fmt: skip
def test_no_server_of_a_cluster_is_left_behind_when_the_run_is_killed(tmp_path: Path, moment: str) -> None:
    arguments, environment = command(
        tmp_path,
        """
    def test_for_ever(pulsar_cluster):
        if os.environ["CUT"]:
            pulsar_cluster.partition_away("broker-1")
            pulsar_cluster.pause("bookie-1")
        note("begun", "yes")
        import time
        time.sleep(600)
    """,
        "--basetemp", str(tmp_path / "base"),
    )  # fmt: skip
    environment["CUT"] = "yes" if moment == "while a server is cut off" else ""

    def pids() -> list[int]:
        found = list(tmp_path.glob("base/pulsar-cluster*/pids"))
        return [int(pid) for pid in found[0].read_text().split()] if found else []

    with subprocess.Popen(arguments, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        try:
            if moment == "while it starts":
                until(lambda: len(pids()) > 2, "bookies are started", 60.0)
            else:
                until(lambda: noted(tmp_path, "begun"), "the test begins", 60.0)
            held = pids()
        finally:
            process.send_signal(signal.SIGKILL)
    until(lambda: not any(is_there(pid) for pid in held + pids()), "all of them end")
