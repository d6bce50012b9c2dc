"""Auto-recovery of real servers: bookies, auditors and workers are killed, and every entry gets its copies back.

After each trouble each entry of each closed ledger is read from every bookie that the record gives it to.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.processes.cluster import Cluster
from magnetar_core.runtime.process.own_packages import python_command, python_environment
from tests.support.copies import Copies, copies_of
from tests.support.processes import cluster_of
from tests.support.shell import Shell
from tests.support.waiting import eventually

BOOKIES = 5


class Nodes:
    """Processes of `magnetar autorecovery` over one cluster, which itself runs none."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str) -> None:
        folder = self.cluster.directory / name
        folder.mkdir(exist_ok=True)
        member = self.cluster.member("zookeeper")
        (folder / "node.conf").write_text(
            f"metadataServiceUri=zk://127.0.0.1:{member.port}/ledgers\n"
            f"bookieId={name}\nzkTimeout=2000\nopenLedgerRereplicationGracePeriod=1000\n"
            "lockReleaseOfFailedLedgerGracePeriod=2000\n"
        )
        with (folder / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                python_command("magnetar", "autorecovery", "--config", str(folder / "node.conf")),
                env=python_environment(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill(self, name: str, number: int = signal.SIGKILL) -> int:
        process = self._processes.pop(name)
        process.send_signal(number)
        return process.wait(30)

    def ended(self, name: str) -> int | None:
        """The exit code of a node that ended by itself."""
        return self._processes[name].poll()

    def log(self, name: str) -> str:
        return (self.cluster.directory / name / "log").read_text(errors="replace")

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster_of(tmp_path_factory.mktemp("repair"), bookies=BOOKIES, brokers=1, auto_recovery=False) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Iterator[Cluster]:
    _cluster.up(bookies=BOOKIES, brokers=1)
    yield _cluster
    _cluster.up(bookies=BOOKIES, brokers=1)


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Nodes]:
    made = Nodes(cluster)
    try:
        yield made
    finally:
        made.stop()


async def is_away(client: Copies, cluster: Cluster, name: str) -> None:
    bookie_id = f"127.0.0.1:{cluster.member(name).port}"
    await eventually(lambda: bookie_id not in client.bookkeeper.bookies.available)


async def test_after_a_kill_under_load_every_ledger_gets_its_copies_back(cluster: Cluster, nodes: Nodes) -> None:
    nodes.start("node-1")
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(20, 50)
        written: list[int] = []

        async def load() -> None:
            while True:
                written.extend(await client.written(1, 200))

        loading = asyncio.ensure_future(load())
        await eventually(lambda: len(written) > 3)
        cluster.kill("bookie-2")
        count = len(written)
        await eventually(lambda: len(written) > count + 10)
        loading.cancel()
        await asyncio.gather(loading, return_exceptions=True)
        await client.until_whole(ledgers + written)


@pytest.mark.long("everything that two bookies had is copied")
async def test_two_bookies_die(cluster: Cluster, nodes: Nodes) -> None:
    nodes.start("node-1")
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(30, 20, write=3)
        cluster.kill("bookie-1")
        cluster.kill("bookie-4")
        await client.until_whole(ledgers)


@pytest.mark.long("three nodes, two sessions that end, and a repair")
async def test_the_auditor_and_a_worker_with_locks_are_killed_in_the_middle(cluster: Cluster, nodes: Nodes) -> None:
    for number in (1, 2, 3):
        nodes.start(f"node-{number}")
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(150, 30)
        await eventually(lambda: any("is the auditor now" in nodes.log(f"node-{n}") for n in (1, 2, 3)))
        auditor = next(f"node-{n}" for n in (1, 2, 3) if "is the auditor now" in nodes.log(f"node-{n}"))
        cluster.kill("bookie-3")

        async def is_under_way() -> bool:
            return bool(await client.marks.locked())

        await eventually(is_under_way)
        nodes.kill(auditor)
        other = next(f"node-{n}" for n in (1, 2, 3) if f"node-{n}" != auditor)
        nodes.kill(other)
        await client.until_whole(ledgers)


@pytest.mark.long("a repair is waited for")
async def test_a_bookie_that_comes_back_half_way(cluster: Cluster, nodes: Nodes) -> None:
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(150, 30)
        nodes.start("node-1")
        cluster.kill("bookie-2")

        async def is_under_way() -> bool:
            return bool(await client.marks.locked())

        await eventually(is_under_way)
        cluster.start("bookie-2")
        await client.until_whole(ledgers)


@pytest.mark.long("a repair over a restart of ZooKeeper is waited for")
async def test_zookeeper_restarts_while_ledgers_are_copied(cluster: Cluster, nodes: Nodes) -> None:
    """A node whose session lives goes on; one whose session ended exits with a reason, and another one takes over."""
    nodes.start("node-1")
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(150, 30)
        await eventually(lambda: "is the auditor now" in nodes.log("node-1"))
        cluster.kill("bookie-5")

        async def is_marked() -> bool:
            return bool([one async for one in client.marks.marked()])

        await eventually(is_marked)
        cluster.kill("zookeeper")
        cluster.start("zookeeper")
        nodes.start("node-2")
        await client.until_whole(ledgers)
        if nodes.ended("node-1") is not None:
            assert "the session with the metadata store was lost" in nodes.log("node-1")


@pytest.mark.long("a session ends")
async def test_a_node_that_is_paused_past_its_session_ends_with_a_reason(cluster: Cluster, nodes: Nodes) -> None:
    nodes.start("node-1")
    await eventually(lambda: "is ready" in nodes.log("node-1"))
    process = nodes._processes["node-1"]
    process.send_signal(signal.SIGSTOP)
    async with copies_of(cluster.metadata_url) as client:

        async def is_gone() -> bool:
            return not await client.store.children("/ledgers/underreplication/auditorelection")

        await eventually(is_gone)
    process.send_signal(signal.SIGCONT)
    await eventually(lambda: nodes.ended("node-1") is not None)
    assert nodes.ended("node-1") == 2
    assert "auto-recovery node node-1: the session with the metadata store was lost" in nodes.log("node-1")


@pytest.mark.long("eight commands, and a repair")
async def test_an_operator_looks_and_steers(cluster: Cluster, nodes: Nodes) -> None:
    shell = Shell(cluster)
    nodes.start("node-1")
    await eventually(lambda: "is the auditor now" in nodes.log("node-1"))
    assert "off for the whole cluster" in shell.run("autorecovery", "disable")
    assert shell.json("autorecovery", "status")["enabled"] is False
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(5, 10)
        cluster.kill("bookie-1")
        await is_away(client, cluster, "bookie-1")
        said = shell.run("autorecovery", "list")
        assert said.startswith(
            "no ledger is known to lack copies, but auto-recovery is off and nobody has looked since"
        )
        lacking = {ledger["ledger_id"]: ledger["missing_on"] for ledger in shell.json("ledgers", "lacking", code=2)}
        assert lacking
        assert {tuple(missing) for missing in lacking.values()} == {(f"127.0.0.1:{cluster.member('bookie-1').port}",)}
        assert shell.run("autorecovery", "delay", "0") == "a bookie may be away for 0 s\n"
        shell.run("autorecovery", "enable")
        assert shell.json("autorecovery", "audit") == {"auditor": "node-1"}
        await client.until_whole(ledgers)
        # A record has its bookies before the mark of its ledger is taken down.
        await eventually(lambda: "ledgers known to lack copies  0" in shell.run("autorecovery", "status"))
        assert "auditor                       node-1" in shell.run("autorecovery", "status")
        assert "none of " in shell.run("ledgers", "lacking", "--wait", "--timeout", "60")


async def test_everything_is_copied_away_from_a_bookie_by_hand(cluster: Cluster) -> None:
    """No node runs; the bookie is alive."""
    shell = Shell(cluster)
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(10, 40)
        handle = await client.bookkeeper.create_ledger(ensemble_size=5, write_quorum=2, ack_quorum=2)
        await handle.add(b"entry 0")
        bookie_id = f"127.0.0.1:{cluster.member('bookie-4').port}"
        planned = shell.json("autorecovery", "recover", bookie_id, "--dry-run")
        assert {"ledger_id": handle.ledger_id, "is_closed": False} in planned
        found = shell.json("autorecovery", "recover", bookie_id, "--yes", code=2)
        assert list(found["failed"]) == [str(handle.ledger_id)], "an ensemble of five has no sixth bookie"
        assert "no writable bookie" in found["failed"][str(handle.ledger_id)]
        for ledger_id in ledgers:
            assert bookie_id not in (await client.bookkeeper.read_metadata(ledger_id)).bookies()
        assert await client.problems(ledgers) == []
        await client.bookkeeper.delete_ledger(handle.ledger_id)


def test_a_setting_that_is_wrong_is_told_before_anything_starts(tmp_path: Path) -> None:
    config = tmp_path / "node.conf"
    config.write_text("metadataServiceUri=zk://127.0.0.1:1/ledgers\nauditorLedgerVerificationPercentage=30\n")
    found = subprocess.run(
        python_command("magnetar", "autorecovery", "--config", str(config)),
        env=python_environment(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 1
    assert "a sample proves little" in found.stderr
