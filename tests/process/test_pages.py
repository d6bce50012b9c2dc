"""The examples of the documentation, copied word for word, on real processes and their usual ports.

Where this user may have a network of its own (`unshare -rn`), the ports are free in it whatever else runs here. Those
at the end of this file share a cluster: each starts it, if it is the first, and leaves it to the next.
"""

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from magnetar.processes.cluster import STATE_FILE, Cluster
from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import (
    find_pyspark_jars,
    zookeeper_command,
    zookeeper_config,
)
from tests.support import lakehouse
from tests.support.pages import blocks_of, spark_java
from tests.support.spark_session import unpacked_home
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
PORTS = (
    2181,
    3181,
    3182,
    3183,
    3184,
    3185,
    6648,
    6650,
    6651,
    6652,
    6750,
    6751,
    8000,
    8001,
    8002,
    8003,
    8004,
    8009,
    8080,
    8081,
    8082,
    8101,
    8102,
    8103,
    8443,
)

OWN_NETWORK = ["unshare", "-rn", "sh", "-c", "ip link set lo up && echo up && exec cat"]


@contextlib.contextmanager
def usual_ports() -> Iterator[list[str]]:
    """What to put before commands, so that all of them are in one network, in which the usual ports are free."""
    try:
        keeper = subprocess.Popen(OWN_NETWORK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except OSError:
        check_ports()
        yield []
        return
    with keeper:  # it ends when its input is closed
        assert keeper.stdout is not None
        if keeper.stdout.readline():
            yield ["nsenter", f"--target={keeper.pid}", "--user", "--net", "--preserve-credentials"]
        else:
            check_ports()
            yield []


def check_ports() -> None:
    for port in PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port} is in use, and this user cannot have a network of its own (unshare -rn)")


def follow(
    page: str, folder: Path, *options: str, by: str = "tests.support.pages", network: Sequence[str] | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> str:  # fmt: skip
    if network is None:
        with usual_ports() as own:
            return follow(page, folder, *options, by=by, network=own, environment=environment)
    command = [*network, sys.executable, "-m", by, str(ROOT / page), str(folder), *options]
    found = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TIMEOUT_S, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    return found.stdout


def stop_of(name: str) -> str:
    """Stops a server of the cluster and waits for its end; who has ended may stay in the list of processes (Z)."""
    pid = f"$(magnetar cluster status --directory ./cluster | awk '$1 == \"{name}\" {{print $3}}')"
    return f"pid={pid}; kill $pid; while grep -qs '^State:.[^Z]' /proc/$pid/status; do sleep 0.02; done"


def before(command: str, *steps: str) -> list[str]:
    """Options of `tests.support.pages`: what the reader does by himself when the page comes to *command*."""
    return [word for step in steps for word in ("--before", command, step)]


def stop_standalone(data: str) -> str:
    """Stops the standalone that was started here with `--data` *data*, as Ctrl-C does, and waits for its end."""
    is_it = f'[ "$(readlink $one/cwd)" = "$PWD" ] && grep -qzsx -e "{data}" $one/cmdline'
    find = f"for one in /proc/[0-9]*; do if {is_it}; then pid=${{one#/proc/}}; fi; done"
    return f"{find}; kill $pid; while grep -qs '^State:.[^Z]' /proc/$pid/status; do sleep 0.02; done"


HASH_OF_THE_PAGE = "sha256:60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752"

# Inline commands of the two pages of operators that do not run here.
NOT_RUN = {
    "make demo-drain": "it is for watching, and takes minutes; what it plays is tests/process/test_drain.py",
    "pulsar-admin bookies set-bookie-rack": "Apache's tool needs Apache's server folder; tests/interop/test_tools.py",
    "pulsar-admin brokers update-dynamic-config": "the same; tests/interop/admin_commands.py",
}


def named_but_not_run(page: str, said: str) -> list[str]:
    """Commands in the sentences of *page* that nothing ran which *said* tells of."""
    typed = [line.removeprefix("$ ") for line in said.splitlines() if line.startswith("$ ")]
    left = []
    for span in re.findall(r"`((?:magnetar|make|pulsar-admin) [^`]+)`", (ROOT / page).read_text()):
        words = span.replace("…", "").removesuffix("BOOKIE").strip()
        if not any(line.startswith(words) for line in typed) and not any(words.startswith(one) for one in NOT_RUN):
            left.append(span)
    return left


# Ends the ledgers of topics to which nobody writes; a drain would wait for 30 s until it ends them.
UNLOAD = "magnetar namespaces unload public/default"


def test_the_page_of_auto_recovery_can_be_copied(tmp_path: Path) -> None:
    """Its machines are this one. A token is in the environment as the page assumes, and its hash in place of theirs."""
    made = subprocess.run(
        [sys.executable, "-m", "magnetar", "autorecovery", "token", "deployer", "--role", "write", "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    token = json.loads(made.stdout)
    hashed = token["line"].split()[-1]
    recover = "magnetar autorecovery recover 127.0.0.1:3185"
    leaving = json.dumps({"bookies": ["127.0.0.1:3184"]})
    reports = "magnetar autorecovery reports"
    report_id = f"$({reports} list | awk '/no answer/ {{print $1}}')"
    said = follow(
        "docs/auto-recovery.md", tmp_path,
        # One more, which is lost for good.
        "--instead", "--bookies 4", "--bookies 5",
        "--instead", "10.0.0.3:3181", "127.0.0.1:3185",
        "--instead", "zk://zk1:2181;zk2:2181/ledgers", "zk://127.0.0.1:2181/ledgers",
        "--instead", HASH_OF_THE_PAGE, hashed,
        "--instead", "/etc/magnetar/tokens", "tokens",
        "--instead", "httpServerHost=node-1", "httpServerHost=127.0.0.1\nhttpServerPort=8009",
        "--instead", "http://node-1:8000", "http://127.0.0.1:8009",
        "--instead", "0-data-loss-0f3a1b2c4d5e", report_id,
        "--set", "TOKEN", token["token"],
        "--ends", f"{reports} list", "2",
        *before("magnetar autorecovery status", "for topic in a b c d e f; do magnetar produce $topic -m hello; done"),
        *before(f"{recover} --dry-run", stop_of("bookie-5")),
        *before("curl -sS --fail-with-body http://127.0.0.1:8000/manage/v1/bookies/127.0.0.1:3184/state", UNLOAD),
        *before("""kill $(magnetar cluster status --directory ./cluster | awk '$1 == "bookie-4" {print $3}')""",
                f"curl -sS --fail-with-body --json '{leaving}' http://127.0.0.1:8000/manage/v1/safe-to-remove"),
        *before("magnetar cluster down --directory ./cluster", f"{reports} list --state mended", "magnetar doctor",
                "! curl -sS --fail-with-body http://127.0.0.1:8009/manage/v1/bookies"),
    )  # fmt: skip
    wanted = (
        "no ledger is known to lack copies",
        "a bookie may be away for 600 s",
        "was asked for an audit",
        "ledgers are elsewhere now",
        '"/manage/v1/bookies/{bookie}/state"',
        '"safe": true',
        '"state": "drained"',
        '"removed": true',
        "is acknowledged",
        "is mended",
        ": copied back)",
        "send the header Authorization",
    )
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"
    assert named_but_not_run("docs/auto-recovery.md", said) == []


def follow_the_operator(folder: Path, *, does_all: bool) -> str:
    """docs/bookie-operations.md on four bookies. Who *does all* does also what the page says between its commands: a
    disk is replaced, and at the end all servers go over to TLS with the page's certificates."""
    page = "docs/bookie-operations.md"
    second = "--admin-url http://127.0.0.1:8001"
    servers = ("bookie-1", "bookie-2", "bookie-4", "broker-1", "broker-2")
    roles = next(one for one in blocks_of((ROOT / page).read_text()) if "authorizedRoles" in one.text)
    (folder / "bookie.tls").write_text(f"tlsDirectory={folder}/bookie\n{roles.text}")
    (folder / "broker.tls").write_text(f"bookkeeperTLSDirectory={folder}/broker\n")
    # Each ledger has two of four bookies: of a few, now and then, none would have a copy on the disk that is replaced.
    topics = "a b c d e f g h i j k l m n o p q r" if does_all else "a b c d e f"
    new_disk = (
        "rm -r cluster/bookie-2/ledgers cluster/bookie-2/journal",
        "echo dataIntegrityChecking=true >> cluster/bookie-2/bookie.conf",
        "magnetar cluster up --directory ./cluster --bookies 4",
        f"for topic in {topics}; do magnetar produce $topic -m next; done",
        f"until ! magnetar bookie status {second} | grep 'to be checked'; do sleep 1; done",
        f"magnetar bookie metrics {second} | grep ^magnetar_bookie_integrity",
        UNLOAD,
    )
    over_to_tls = (
        *(step for name in servers for step in (
            f"cat {name[:6]}.tls >> cluster/{name}/{name[:6]}.conf",
            stop_of(name),
            f"magnetar {name[:6]} --config cluster/{name}/{name[:6]}.conf",
        )),
        "magnetar produce a -m 'over TLS'",
    )  # fmt: skip
    over = " --tls-directory broker" if does_all else ""
    said = follow(
        page, folder,
        "--first", "magnetar cluster up --directory ./cluster --bookies 4",
        "--first", f"for topic in {topics}; do seq 1 500 | magnetar produce $topic -f -; done",
        # What bookie-2 had is not to be elsewhere when it is back.
        *before("magnetar bookie rebuild-index --config bookie.conf --yes",
                "magnetar autorecovery delay 600", stop_of("bookie-2"), "cp cluster/bookie-2/bookie.conf bookie.conf"),
        *before('magnetar bookies drain 127.0.0.1:3183 --why "old disks" --wait',
                *(new_disk if does_all else ["magnetar cluster up --directory ./cluster --bookies 4"]),
                "magnetar autorecovery reports list",
                "magnetar bookies drain 127.0.0.1:3184",
                "magnetar bookies cancel 127.0.0.1:3184"),
        *before("magnetar bookies remove 127.0.0.1:3183 --yes", stop_of("bookie-3")),
        *before("magnetar bookie ledgers --metadata",
                "openssl verify -CAfile ca.crt bookie/tls.crt broker/tls.crt", *(over_to_tls if does_all else []),
                f"magnetar ledgers list{over}",
                f"magnetar doctor{over}",
                f"magnetar autorecovery recover 127.0.0.1:3184 --dry-run{over}"),
    )  # fmt: skip
    assert named_but_not_run(page, said) == []
    return said


@pytest.mark.parametrize("does_all", [
    False, pytest.param(True, marks=pytest.mark.long("five servers are started anew for TLS, and a disk is copied")),
])  # fmt: skip
def test_the_page_about_running_a_bookie_can_be_copied(tmp_path: Path, does_all: bool) -> None:
    said = follow_the_operator(tmp_path, does_all=does_all)
    wanted = [
        r"operator \(kernel update\)",
        r"\$ magnetar bookie readonly off\n.*writable",
        r"lost +0 entries",
        r"\d+ entries of \d+ ledgers",
        r"nobody has reported damage",
        r"integrity_lost_entries_total\S+ 0",
        r"(draining|drained) → active",
        r"127.0.0.1:3183  drained",
        r"127.0.0.1:3183 is removed",
        r"broker/tls.crt: OK",
        r"ledger +0\nstate +closed",
        r"\n0  .*local-0",
    ]
    if does_all:
        wanted += [
            r"integrity_copied_entries_total\S+ [1-9]",
            r"'over TLS'\n1 message acknowledged",
        ]
    for text in wanted:
        assert re.search(text, said), f"{text!r} is not in\n{said}"


def test_the_page_about_testing_can_be_copied(tmp_path: Path) -> None:
    """All of its tests but that of an application in Go, which the reader has to supply. The reader's project has
    packages of the same names as ours."""
    for name in ("broker", "bookie", "connectors"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    said = follow(
        "docs/testing.md", tmp_path, "--without", "./application", "--without", "magnetar.testing.cluster()",
        "--without", "magnetar.testing.simulated_cluster(",
    )  # fmt: skip
    assert "3 passed" in said


@pytest.mark.long("one more cluster; tests/process/test_testing_partitions.py takes it the same way")
def test_the_page_about_testing_can_be_copied_without_pytest(tmp_path: Path) -> None:
    section = "Without pytest, and beside other languages"
    said = follow("docs/testing.md", tmp_path, "--section", section, "--without", "./application")
    assert said.count("\npulsar://") == 2


def test_the_page_of_the_topic_api_can_be_copied(tmp_path: Path) -> None:
    """Only one section, at another address: the page's broker names are invented, and its end needs another tool."""
    said = follow(
        "docs/topic-api.md", tmp_path, "--section", "Python", "--first", "magnetar standalone",
        "--instead", "broker-1:6648,broker-2:6648", "localhost:6648",
    )  # fmt: skip
    assert "kitchen b'21.5'" in said
    assert "customer-7 b'payload'" in said
    assert "Ada pays 12.5\nnot sent: Purchase.total is str; it takes float" in said
    assert "event login\nunreadable: b'no JSON'\nunreadable: b'no JSON'\nleft: b'no JSON'" in said
    assert "worked on a job\nstopped" in said
    assert len(re.findall("thread [0-2] worked on (?:one|two|three)\n", said)) == 3
    assert "again b'0'" in said
    assert "default/tenant-2 has b'of a topic that is new'\npersistent://public/default/tenant-2\n" in said
    assert "at first [0, 1]" in said
    assert re.search("stored behind it: 1\nfenced out: .*default/state: Topic epoch 1 is outdated", said)
    assert "now [0, 1, 2, 3]" in said
    assert said.count("of the last hour b'") == 5
    assert "producer connecting \nproducer connected \nproducer closed" in said
    assert "paid 20\npaid 22\ndead letter b'twenty' persistent://public/default/payments 3" in said
    table = ["apple b'3' of ['apple', 'pear']", "changed apple b'5'", "changed pear b''", "{'apple': b'5'}"]
    assert "\n".join(table) in said


def test_the_order_service_of_the_page_passes_its_tests(tmp_path: Path) -> None:
    assert "5 passed" in follow("docs/topic-api.md", tmp_path, "--section", "An order service")


@pytest.mark.long("mypy reads the whole client")
def test_the_order_service_of_the_page_is_typed(tmp_path: Path) -> None:
    page = (ROOT / "docs/topic-api.md").read_text()
    service, tests = (one.text for one in blocks_of(page) if one.section == "An order service")
    (tmp_path / "orders.py").write_text(service)
    (tmp_path / "test_orders.py").write_text(tests)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--strict",
         "--follow-imports=silent", "--cache-dir", str(tmp_path / "cache"), "orders.py", "test_orders.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_page_about_compatibility_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/compatibility.md", tmp_path)
    assert said.count("hello-9\n") == 2, "by the consumer and by the reader"
    assert "lamp 3" in said


def test_the_page_of_permissions_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/permissions.md", tmp_path)
    assert '{"shop":["produce","consume"],"report":["consume"]}' in said
    assert '"operations"' in said
    assert '"Prefix"' in said
    assert "unknown permission" in said


def test_the_page_of_policies_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/policies.md", tmp_path)
    assert "\n3600\n" in said
    assert '"destination_storage"' in said
    assert '"maxTopicsPerNamespace"' in said
    assert '{"maxTenants":"100"}' in said
    assert '"publishRateInBytes":10000000,' in said


def test_the_page_about_access_can_be_copied(tmp_path: Path) -> None:
    said = follow("docs/access.md", tmp_path, "--section", "A secured standalone")
    assert "persistent://public/default/orders" in said
    assert '["standalone"]' in said
    assert "read b'from pulsar'" in said


def test_the_page_about_backups_can_be_copied(tmp_path: Path) -> None:
    """From a standalone, over its backup, to a cluster of three bookies; with a ZooKeeper, which the page does not
    start."""
    (tmp_path / "zookeeper").mkdir()
    (tmp_path / "zoo.cfg").write_text(zookeeper_config(tmp_path / "zookeeper", 2181))
    with usual_ports() as network, (tmp_path / "zookeeper.log").open("wb") as log:
        command = [*network, *zookeeper_command(find_pyspark_jars(), tmp_path / "zoo.cfg")]
        with subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) as zookeeper:
            try:
                said = follow(
                    "docs/backup.md", tmp_path,
                    *before("magnetar standalone --data ./elsewhere --moved",
                            stop_standalone("./data"), stop_standalone("./copy"), "mv copy elsewhere"),
                    *before("magnetar metadata dump standalone.dump --metadata rocksdb:./data/metadata",
                            "magnetar read orders | grep -c order", stop_standalone("./elsewhere")),
                    *before("magnetar doctor --metadata zk:127.0.0.1:2181",
                            "magnetar ledgers show 0 --metadata zk:127.0.0.1:2181"),
                    network=network,
                )  # fmt: skip
            finally:
                zookeeper.terminate()
    assert "of them linked to backups/monday" in said
    assert said.count("order 3\n") == 2, "in the copy, and in the cluster"
    assert "\n3\n" in said, "the moved copy has three"
    assert "ledgers get 3 copies" in said
    assert "ledgers lacks a copy" in said
    assert len(re.findall(r"bookie-\d good", said)) == 6, "three copies of each of the two entries"


@pytest.mark.parametrize("page", sorted(str(path.relative_to(ROOT)) for path in ROOT.glob("docs/*.md")))
def test_blocks_that_are_not_run_say_what_they_are(page: str) -> None:
    """A plain block is a command, a file that is named before, or one of the few pages that are not followed."""
    not_followed = ("docs/BENCHMARKS.md", "docs/INTEROP.md", "docs/production.md")
    for block in blocks_of((ROOT / page).read_text()):
        if not block.language and not block.file and page not in not_followed:
            first = block.text.split()[0]
            known = ("magnetar", "seq", "echo", "pip", "python", "grpcurl", "source", "curl", "kill", "openssl", "for")
            assert first in known, f"{page}: {block.text}"


# ------------------------------------------------------------------------------ pages with Spark


@pytest.fixture(scope="module")
def beside_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., str]]:
    """Follows pages in one folder, emptied for each, with one Java for the programs that use Spark."""
    folder = tmp_path_factory.mktemp("beside-spark")
    home = unpacked_home(tmp_path_factory.mktemp("spark") / "home")
    with usual_ports() as network, spark_java(folder, home, network) as java:

        def follow_here(page: str, *options: str, by: str = "tests.support.pages") -> str:
            for left in folder.iterdir():
                if left.is_dir():
                    shutil.rmtree(left)
                else:
                    left.unlink()
            return follow(page, folder, *options, by=by, network=network, environment=java)

        yield follow_here


@pytest.mark.spark
def test_the_readme_can_be_copied_word_for_word(beside_spark: Callable[..., str]) -> None:
    """Every section but the installation, which was done before a test runs."""
    blocks = blocks_of((ROOT / "README.md").read_text())
    sections = dict.fromkeys(block.section for block in blocks if block.section not in ("", "Install"))
    said = beside_spark("README.md", *(word for name in sections for word in ("--section", name)))
    wanted = (
        "hello\n",
        "100000 messages acknowledged",
        " hello from Python\n",
        "|hello from Python|",
        "1 passed",
    )
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"


@pytest.mark.spark
def test_the_page_of_spark_can_be_copied(beside_spark: Callable[..., str]) -> None:
    said = beside_spark("docs/spark.md")
    wanted = (
        "|1    |", "|2    |", "2 orders", "sensor-kitchen|kitchen|21.5", "this is no JSON", "|kitchen| 21.5|",
        "|      5|    7|", "2 in the last hour", "|kitchen|  off|", "2 to be billed", "3 tasks", "|   18.0|",
        "5 in files", "left: Lag(messages=0, bytes=0", "schema_type", "count(1)", "LX14", "2 copied",
        "|kitchen|    2|",
    )  # fmt: skip
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"


@pytest.mark.spark
@pytest.mark.long("PySpark 4.2 is got, and Java starts with the jars of Delta Lake")
def test_the_page_of_the_lake_can_be_copied(tmp_path: Path) -> None:
    """With the versions that it says, which it leaves to its reader to install."""
    said = follow("docs/lakehouse.md", tmp_path, environment=lakehouse.needed())
    wanted = (
        "|2025-12-02|  1000|", "3000 orders in 3 files of Iceberg",
        "|2025-12-02|  1010|   10|", "10 late orders in Iceberg", "3010 recent orders",
        "| ann| gone|\n| bob| here|\n|cleo| here|\n", "| bob| here|\n|cleo| away|\n|dora| here|\n",
        "|            1|              2|", "4 files of Iceberg, now 3 with 3010 orders",
    )  # fmt: skip
    for text in wanted:
        assert text in said, f"{text!r} is not in\n{said}"


@pytest.mark.spark
def test_the_notebook_goes_from_a_topic_to_a_plot(beside_spark: Callable[..., str]) -> None:
    said = beside_spark("docs/weather.ipynb", by="tests.support.notebook")
    assert "48 rows of 60 readings each" in said
    assert "[image/png]" in said


# ------------------------------------------------------------------------- pages that share a cluster


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("beside-a-cluster")


@pytest.fixture(scope="module")
def beside_a_cluster(folder: Path) -> Iterator[Callable[..., str]]:
    """Follows pages in one folder and one network: each finds the cluster of those before."""
    with usual_ports() as network:
        try:
            yield lambda page, *options: follow(page, folder, *options, network=network)
        finally:
            if (folder / "cluster" / STATE_FILE).exists():
                Cluster(folder / "cluster").down()


def test_the_page_of_the_command_line_can_be_copied(beside_a_cluster: Callable[..., str], folder: Path) -> None:
    said = beside_a_cluster("docs/cli.md", "--goes-on")
    assert '"id": 7' in said
    assert "3 bookies, 2 brokers" in said
    assert "a new disk" in said
    assert "_magnetar_completion" in (folder / ".bashrc").read_text()


def test_the_page_of_replicated_state_can_be_copied(beside_a_cluster: Callable[..., str]) -> None:
    said = beside_a_cluster("docs/state-log.md", "--goes-on")
    assert "1 words\n" in said
    assert said.count("a heavy star\n") == 2, "before and after a process was killed"
    assert "2 words\n" in said
    assert "a light star\n" in said


def test_the_page_of_the_servers_can_be_copied(beside_a_cluster: Callable[..., str]) -> None:
    """The last of them: it stops the cluster."""
    sections = ("A cluster on this machine", "Beside a cluster on this machine")
    said = beside_a_cluster("docs/servers.md", *(word for name in sections for word in ("--section", name)))
    assert "2 messages acknowledged" in said
    assert "127.0.0.1:3184  writable" in said
    assert "127.0.0.1:8082" in said
