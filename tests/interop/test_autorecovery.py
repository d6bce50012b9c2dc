"""Auto-recovery across brands: our nodes repair ledgers on Apache's bookies, Apache's repair ours, both at once; our
nodes drain Apache's bookies.

After each repair every entry is read from every bookie that the record gives it to.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from magnetar_core.bookkeeper.client.errors import OperationTimeout
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from tests.support.copies import Copies, copies_of
from tests.support.mixed_cluster import Brand, MixedCluster, http_json
from tests.support.shell import bookies
from tests.support.waiting import eventually

Cell = Callable[[str, str], None]

BOOKIES: dict[str, tuple[Brand, ...]] = {
    "our bookies": ("ours",) * 4,
    "Apache bookies": ("apache",) * 4,
    "two Apache, one ours": ("apache", "apache", "ours", "ours"),
}

# Of a bookie that is gone for good the tests wait for nothing.
PATIENT: dict[str, Any] = {"openLedgerRereplicationGracePeriod": 2_000, "lostBookieRecoveryDelay": 0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cluster"


@pytest.fixture
def cluster(folder: Path) -> Iterator[MixedCluster]:
    with MixedCluster(folder) as made:
        made.start_zookeeper()
        yield made


def start(cluster: MixedCluster, bookies: Sequence[Brand], nodes: Sequence[Brand]) -> None:
    cluster.initialise("apache" if "apache" in bookies else "ours")
    for brand in bookies:
        cluster.add("bookie", brand, wait=False)
    for server in cluster.of("bookie"):
        server.wait_ready()
    for brand in nodes:
        cluster.add("autorecovery", brand, **PATIENT)


async def lose_one_and_wait(cluster: MixedCluster, copies: Copies, ledgers: list[int]) -> None:
    """Kill the last bookie; it is one of ours where there is one."""
    lost = cluster.of("bookie")[-1]
    lost.kill()
    await eventually(lambda: lost.bookie_id not in copies.bookkeeper.bookies.available)
    await copies.until_whole(ledgers)
    for ledger_id in ledgers:
        assert lost.bookie_id not in (await copies.bookkeeper.read_metadata(ledger_id)).bookies()


@pytest.mark.parametrize("column", list(BOOKIES))
@pytest.mark.parametrize("brand", ["ours", "apache"])
async def test_a_lost_bookie_is_replaced(cluster: MixedCluster, cell: Cell, column: str, brand: Brand) -> None:
    cell("our auto-recovery" if brand == "ours" else "Apache's auto-recovery", column)
    start(cluster, BOOKIES[column], [brand])
    async with copies_of(cluster.metadata_url) as copies:
        ledgers = await copies.written(8, 40)
        # An open ledger whose writer is gone: closed after the grace period, then copied.
        handle = await copies.bookkeeper.create_ledger(ensemble_size=3, write_quorum=2, ack_quorum=2)
        for number in range(10):
            await handle.add(b"entry %d" % number)
        await handle.abandon()
        copies.made.append(handle.ledger_id)
        in_danger = cluster.of("bookie")[-1].bookie_id in handle.metadata.last_segment.ensemble
        await lose_one_and_wait(cluster, copies, [*ledgers, *([handle.ledger_id] if in_danger else [])])


@pytest.mark.parametrize("column", ["two Apache, one ours"])
async def test_both_repair_one_cluster_and_share_the_locks(cluster: MixedCluster, cell: Cell, column: str) -> None:
    cell("auto-recovery of both, at once", column)
    start(cluster, BOOKIES[column], ["apache", "ours"])
    async with copies_of(cluster.metadata_url) as copies:
        await lose_one_and_wait(cluster, copies, await copies.written(60, 20))


async def test_apaches_tools_see_and_steer_our_nodes(cluster: MixedCluster, cell: Cell) -> None:
    cell("Apache's `bookkeeper shell` on auto-recovery", "our nodes and bookies")
    start(cluster, BOOKIES["our bookies"], ["ours"])
    node, first = cluster.of("autorecovery")[0], cluster.of("bookie")[0]
    file = cluster.shell_file(first)

    def shell(*arguments: str) -> str:
        return cluster.run("bookkeeper", "shell", *arguments, file=file)

    async with copies_of(cluster.metadata_url) as copies:
        ledgers = await copies.written(6, 20)
        await eventually(lambda: "is the auditor now" in node.log.read_text())
        said = shell("whoisauditor")
        assert f"-{node.pid}" in said, said  # its name is its host and its process
        assert "disabled" in shell("autorecovery", "-disable").lower()
        assert not await copies.marks.is_enabled()
        lost = cluster.of("bookie")[-1]
        lost.kill()
        await eventually(lambda: lost.bookie_id not in copies.bookkeeper.bookies.available)
        await copies.marks.mark(ledgers[0], lost.bookie_id, 0)
        listed = shell("listunderreplicated", "-printmissingreplica")
        assert str(ledgers[0]) in listed, listed
        assert lost.bookie_id in listed, listed
        assert "enabled" in shell("autorecovery", "-enable").lower()
        shell("lostbookierecoverydelay", "-set", "1")
        await copies.until_whole(ledgers)
        lost.start()
        leaving = cluster.of("bookie")[1]
        leaving.stop()
        shell("recover", "-force", leaving.bookie_id)
        await copies.until_whole(ledgers)
        for ledger_id in ledgers:
            assert leaving.bookie_id not in (await copies.bookkeeper.read_metadata(ledger_id)).bookies()


async def test_a_bookie_of_ours_is_recovered_over_http(cluster: MixedCluster, cell: Cell) -> None:
    cell("`PUT autorecovery/bookie`", "our bookies")
    cluster.initialise("ours")
    for _ in range(4):
        http_port = next(cluster._ports)
        cluster.add("bookie", "ours", httpServerEnabled="true", httpServerHost="127.0.0.1", httpServerPort=http_port)
    async with copies_of(cluster.metadata_url) as copies:
        ledgers = await copies.written(6, 20)
        info = await copies.bookkeeper.bookies.info_of(cluster.of("bookie")[0].bookie_id)
        (http,) = [one for one in info.endpoints if one.protocol == "http"]
        lost = cluster.of("bookie")[-1]
        lost.kill()
        await eventually(lambda: lost.bookie_id not in copies.bookkeeper.bookies.available)
        url = f"http://{http.host}:{http.port}/api/v1/autorecovery/bookie"
        with pytest.raises(ValueError, match="Expecting value"):  # the answer is a text
            http_json(url, "PUT", {"bookie_src": [lost.bookie_id]})
        await copies.until_whole(ledgers)


async def asked(cluster: MixedCluster, *words: str) -> tuple[int, Any]:
    """`magnetar bookies …`, while the loop goes on."""
    return await asyncio.to_thread(bookies, cluster.metadata_url, *words)


async def test_a_bookie_of_apaches_is_drained_and_removed(cluster: MixedCluster, cell: Cell) -> None:
    """Our node turns it read-only through its HTTP; it does not know the state in the metadata."""
    cell("`magnetar bookies drain`", "Apache bookies")
    start(cluster, BOOKIES["two Apache, one ours"], ["ours"])
    async with copies_of(cluster.metadata_url) as copies:
        ledgers = await copies.written(12, 30)
        leaving = cluster.of("bookie", "apache")[0]
        code, told = await asked(cluster, "drain", leaving.bookie_id, "--wait", "--timeout", "150")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        assert leaving.bookie_id in copies.bookkeeper.bookies.available, "it served reads to the end"
        assert leaving.bookie_id not in copies.bookkeeper.bookies.writable
        await copies.until_whole(ledgers)
        for ledger_id in ledgers:
            assert leaving.bookie_id not in (await copies.bookkeeper.read_metadata(ledger_id)).bookies()
        assert await asked(cluster, "cancel", leaving.bookie_id) == (
            0,
            {"bookie": leaving.bookie_id, "state": "active"},
        )
        await eventually(lambda: leaving.bookie_id in copies.bookkeeper.bookies.writable)
        code, told = await asked(cluster, "drain", leaving.bookie_id, "--wait", "--timeout", "150")
        assert (code, told["state"]) == (0, "drained")
        leaving.stop()
        await eventually(lambda: leaving.bookie_id not in copies.bookkeeper.bookies.available)
        assert (await asked(cluster, "remove", leaving.bookie_id, "--yes"))[0] == 0
        assert leaving.bookie_id not in await copies.store.children("/ledgers/cookies")


async def test_the_drain_of_a_bookie_of_apaches_without_http_says_why_it_cannot_begin(
    cluster: MixedCluster, cell: Cell
) -> None:
    """Stopping it, which is the way out that it names, lets the drain go on."""
    cell("`magnetar bookies drain`", "an Apache bookie without HTTP")
    start(cluster, ["apache", "ours", "ours", "ours"], ["ours"])
    leaving = cluster.of("bookie", "apache")[0]
    leaving.stop()
    settings = leaving.directory / "apache-bookkeeper.conf"
    settings.write_text(settings.read_text().replace("httpServerEnabled=true", "httpServerEnabled=false"))
    leaving.start(wait=False)
    async with copies_of(cluster.metadata_url) as copies:
        await eventually(lambda: leaving.bookie_id in copies.bookkeeper.bookies.writable, 120)
        ledgers = await copies.written(12, 30)
        assert (await asked(cluster, "drain", leaving.bookie_id))[0] == 0

        async def is_told() -> bool:
            code, (told,) = await asked(cluster, "status", leaving.bookie_id)
            problem = (told["progress"] or {}).get("problem", "")
            return code == 3 and "its registration names no HTTP; start it with httpServerEnabled=true" in problem

        await eventually(is_told)
        leaving.stop()
        code, told = await asked(cluster, "status", leaving.bookie_id, "--wait", "--timeout", "150")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        await copies.until_whole(ledgers)


async def test_what_apaches_bookies_have_stays_unknown_to_the_check_of_lists(cluster: MixedCluster, cell: Cell) -> None:
    """They never answer with `DbLedgerStorage`, which Pulsar sets. Nothing is marked because of that, and the check
    comes to its end."""
    cell("`auditorReplicasCheckInterval`", "two Apache, one ours")
    start(cluster, ("apache", "ours", "ours"), [])
    mute, ours = cluster.of("bookie", "apache")[0], cluster.of("bookie", "ours")[0]
    async with copies_of(cluster.metadata_url) as copies:
        ledgers = await copies.written(5, 30)
        assert await copies.bookkeeper.entry_list(ours.bookie_id, ledgers[0])
        with pytest.raises(OperationTimeout, match="Apache's bookies with DbLedgerStorage never answer this"):
            await copies.bookkeeper.entry_list(mute.bookie_id, ledgers[0])

        cluster.add("autorecovery", "ours", **PATIENT, auditorReplicasCheckInterval=2, auditorPeriodicCheckInterval=0)

        async def has_ended() -> bool:
            return await copies.marks.last_checked_ms(PeriodicCheck.REPLICAS) is not None

        await eventually(has_ended, 120)
        assert [one async for one in copies.marks.marked()] == []
