"""A bookie is drained and removed under load, with real processes: nothing is lost and every ledger has its copies."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest

from autorecovery.audit.election import auditor
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import SESSION_MS, Cluster, reserved_ports
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.runtime.process.own_packages import python_command
from tests.support.copies import Copies, copies_of, good_copies
from tests.support.processes import Load, bookies_of, prepare, until
from tests.support.shell import Shell, bookies
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def test_a_bookie_is_drained_while_a_producer_writes_and_is_removed(
    cluster: Cluster, namespace: str, topic: str
) -> None:
    ask = partial(bookies, cluster.metadata_url)
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace)
    admin.create_topic(topic, 1)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(2_000)
        leaving = bookies_of(cluster, f"{topic}-partition-0")[0]
        member = cluster.member(leaving)
        bookie_id = next(one["bookie_id"] for one in ask("list")[1] if one["bookie_id"].endswith(f":{member.port}"))
        code, refused = ask("remove", bookie_id, "--yes")
        assert (code, "only a drained one can be removed" in refused["refused"]) == (1, True)
        assert refused["ledgers"]
        code, told = ask("drain", bookie_id, "--why", "old disks", "--wait", "--timeout", "240")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        load.wait_for(2_000)
        assert leaving not in bookies_of(cluster, f"{topic}-partition-0")
        cluster.kill(leaving)
        load.wait_for(2_000)
        assert ask("remove", bookie_id, "--yes") == (0, {"bookie": bookie_id, "removed": True})
        load.finish()
        load.check()
    # It was killed, so its registration stays until its session has ended.
    until(lambda: bookie_id not in [one["bookie_id"] for one in ask("list")[1]], f"{bookie_id} is not listed")
    found = asyncio.run(good_copies(cluster.metadata_url))
    assert found.total() > 0
    assert bookie_id not in found


def id_of(cluster: Cluster, name: str) -> str:
    return f"127.0.0.1:{cluster.member(name).port}"


@contextlib.contextmanager
def one_more_bookie(cluster: Cluster) -> Iterator[str]:
    """A bookie beside those that `cluster` counts; its id."""
    place = cluster.directory / "bookie-more"
    place.mkdir()
    shown = (cluster.directory / "bookie-1" / "bookie.conf").read_text()
    member = cluster.member("bookie-1")
    with contextlib.closing(reserved_ports()) as ports:
        port, web_port = next(ports), next(ports)
        (place / "bookie.conf").write_text(
            shown.replace(str(cluster.directory / "bookie-1"), str(place))
            .replace(f"bookiePort={member.port}", f"bookiePort={port}")
            .replace(f"httpServerPort={member.web_port}", f"httpServerPort={web_port}")
        )
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(
                python_command("magnetar", "bookie", "--config", str(place / "bookie.conf")),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
    try:
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(30)


async def asked(cluster: Cluster, *words: str) -> tuple[int, Any]:
    """`bookies`, while the loop goes on."""
    return await asyncio.to_thread(bookies, cluster.metadata_url, *words)


async def is_left(client: Copies, ledgers: list[int], bookie_id: str) -> None:
    """Every entry is on each of its bookies, and no record names *bookie_id*."""
    await client.until_whole(ledgers)
    for ledger_id in ledgers:
        assert bookie_id not in (await client.bookkeeper.read_metadata(ledger_id)).bookies()


@pytest.mark.long("two drains are waited for, of which the first one fails")
async def test_where_every_ledger_is_on_every_bookie_the_drain_says_what_is_missing(cluster: Cluster) -> None:
    """Five bookies, and five copies of each entry. With a sixth bookie the same drain comes to its end."""
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(6, 20, write=5, ensemble=5)
        leaving = id_of(cluster, "bookie-2")
        code, told = await asked(cluster, "drain", leaving, "--wait", "--timeout", "120")
        assert (code, told["state"]) == (2, "draining-failed")
        assert sorted(one["ledger_id"] for one in told["reasons"]) == ledgers
        for one in told["reasons"]:
            assert "each bookie of the cluster that may take entries has copies of it already" in one["why"]
        address = ("--admin-url", cluster.dashboard_url.removesuffix("/dashboard/"))
        shown = await asyncio.to_thread(Shell(cluster).run, "bookie", "cluster", *address)
        assert f"{leaving} is draining-failed: {len(ledgers)} ledgers cannot be copied" in shown
        code, refused = await asked(cluster, "remove", leaving, "--yes")
        assert code == 1
        assert sorted(one["ledger_id"] for one in refused["ledgers"]) == ledgers
        assert await client.problems(ledgers) == []
        with one_more_bookie(cluster) as added:
            await eventually(lambda: added in client.bookkeeper.bookies.writable)
            code, told = await asked(cluster, "drain", leaving, "--wait", "--timeout", "120")
            assert (code, told["state"], told["reasons"]) == (0, "drained", [])
            await is_left(client, ledgers, leaving)
        await client.store.delete(f"/ledgers/cookies/{added}")


@pytest.mark.long("a session ends and a drain is waited for")
async def test_a_bookie_that_is_dead_already_is_drained_and_removed(cluster: Cluster) -> None:
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(20, 20)
        leaving = id_of(cluster, "bookie-3")
        cluster.kill("bookie-3")
        await eventually(lambda: leaving not in client.bookkeeper.bookies.available)
        code, told = await asked(cluster, "drain", leaving, "--wait", "--timeout", "120")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        await is_left(client, ledgers, leaving)
        assert await asked(cluster, "remove", leaving, "--yes") == (0, {"bookie": leaving, "removed": True})


@pytest.mark.long("what two bookies had is copied")
async def test_another_bookie_dies_while_one_is_drained(cluster: Cluster) -> None:
    """The two share quorums: what the dead one had is copied from the one that leaves."""
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(120, 20)
        leaving, dying = id_of(cluster, "bookie-1"), id_of(cluster, "bookie-4")
        code, told = await asked(cluster, "drain", leaving)
        assert (code, told["state"]) == (0, "draining")

        async def is_under_way() -> bool:
            return bool([one async for one in client.marks.marked()])

        await eventually(is_under_way)
        cluster.kill("bookie-4")
        code, told = await asked(cluster, "status", leaving, "--wait", "--timeout", "120")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        await is_left(client, ledgers, leaving)
        await is_left(client, ledgers, dying)


@pytest.mark.long("what two bookies had is copied, by the second auditor")
async def test_the_auditor_is_killed_in_the_middle_of_a_drain_and_the_next_one_ends_it(cluster: Cluster) -> None:
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(120, 20)
        names = {id_of(cluster, one.name): one.name for one in cluster.members("bookie")}
        audits = await auditor(client.store, "/ledgers")
        assert audits in names
        leaving = next(one for one in names if one != audits)
        code, told = await asked(cluster, "drain", leaving)
        assert (code, told["state"]) == (0, "draining")

        async def is_under_way() -> bool:
            return bool([one async for one in client.marks.marked()])

        await eventually(is_under_way)
        cluster.kill(names[audits])
        code, told = await asked(cluster, "status", leaving, "--wait", "--timeout", "120")
        assert (code, told["state"], told["reasons"]) == (0, "drained", [])
        assert await auditor(client.store, "/ledgers") not in (audits, None)
        await is_left(client, ledgers, leaving)
        await is_left(client, ledgers, audits)


async def registrations(client: Copies) -> dict[str, int]:
    """Bookie → when its registration was made, writable or read-only."""
    found = {}
    for path in ("/ledgers/available", "/ledgers/available/readonly"):
        for name in await client.store.children(path):
            node = await client.store.get(f"{path}/{name}")
            if node is not None and node.ephemeral:
                found[name] = node.created_ms
    return found


async def zookeeper_restarts(cluster: Cluster, client: Copies) -> None:
    """It is gone for as long as it needs to start: sessions are suspended, and live on."""
    await asyncio.to_thread(cluster.kill, "zookeeper")
    await asyncio.to_thread(cluster.start, "zookeeper")


async def zookeeper_is_away_until_sessions_end(cluster: Cluster, client: Copies) -> None:
    """It is gone for longer than any request of a server waits, and then answers nobody until the session of each
    bookie has ended: a server that starts gives every session its whole time once more."""
    before = await registrations(client)
    await asyncio.to_thread(cluster.kill, "zookeeper")
    await asyncio.sleep(3 * SESSION_MS / 1000)
    await asyncio.to_thread(cluster.start, "zookeeper")

    async def have_ended() -> bool:
        cluster.kill("zookeeper", signal.SIGSTOP)
        await asyncio.sleep(2 * SESSION_MS / 1000)
        cluster.kill("zookeeper", signal.SIGCONT)
        now = await registrations(client)
        return all(now.get(bookie_id) != made_ms for bookie_id, made_ms in before.items())

    await eventually(have_ended, 2 * PATIENCE_S)


@pytest.mark.long("ZooKeeper is away for a while, and a bookie is drained under load")
@pytest.mark.parametrize("outage", [zookeeper_restarts, zookeeper_is_away_until_sessions_end])
async def test_a_drain_under_load_goes_on_by_itself_after(
    cluster: Cluster, namespace: str, topic: str, outage: Callable[[Cluster, Copies], Awaitable[None]]
) -> None:
    admin = AdminClient(cluster.admin_urls)
    prepare(admin, namespace)
    admin.create_topic(topic, 1)
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(400, 20, at_once=16)
        with Load(cluster.service_url, topic) as load:
            await asyncio.to_thread(load.wait_for, 2_000)
            name = (await asyncio.to_thread(bookies_of, cluster, f"{topic}-partition-0"))[0]
            leaving = id_of(cluster, name)
            code, told = await asked(cluster, "drain", leaving)
            assert (code, told["state"]) == (0, "draining")

            async def is_under_way() -> bool:
                return bool(await client.marks.locked())

            await eventually(is_under_way)
            await outage(cluster, client)
            state = await BookieStates(client.store, "/ledgers").read(leaving)
            assert state.lifecycle.state is State.DRAINING, "the outage was not in the middle of the drain"
            code, told = await asked(cluster, "status", leaving, "--wait", "--timeout", "120")
            assert (code, told["state"], told["reasons"]) == (0, "drained", [])
            await asyncio.to_thread(load.wait_for, 2_000)
            await asyncio.to_thread(load.finish)
        await is_left(client, ledgers, leaving)
        assert leaving not in await good_copies(cluster.metadata_url)
        await asyncio.to_thread(load.check)


@pytest.mark.long("two drains are waited for")
async def test_two_bookies_are_drained_at_once_and_neither_takes_copies_of_the_other(cluster: Cluster) -> None:
    async with copies_of(cluster.metadata_url) as client:
        ledgers = await client.written(60, 20)
        leaving = {"bookie-2": id_of(cluster, "bookie-2"), "bookie-5": id_of(cluster, "bookie-5")}
        ended = await asyncio.gather(
            *(asked(cluster, "drain", one, "--wait", "--timeout", "120") for one in leaving.values())
        )
        assert [(code, told["state"], told["reasons"]) for code, told in ended] == [(0, "drained", [])] * 2
        for name, bookie_id in leaving.items():
            await is_left(client, ledgers, bookie_id)
            cluster.kill(name, signal.SIGTERM)
            assert await asked(cluster, "remove", bookie_id, "--yes") == (0, {"bookie": bookie_id, "removed": True})
        assert await client.problems(ledgers) == []
