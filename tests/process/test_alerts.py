"""Each shipped alert: it fires where its problem is planted, and is silent before.

A problem is planted in servers of this process, whose `/metrics` are recorded before and after; promtool then lets the
recording go on for as long as the rule waits, on a clock of its own.
"""

import asyncio
import contextlib
import errno
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
import pulsar
import pytest
import yaml

from bookie.bookie import Bookie
from magnetar_core.bookkeeper.client.deciding.belief import Belief
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import State
from magnetar_core.bookkeeper.metadata.marks import underreplication
from magnetar_core.runtime.files import DiskUsage
from magnetar_core.runtime.process.loop_watch import LoopWatch
from magnetar_core.runtime.types import GIB, MIB
from managed_ledger.errors import MetadataWentBack
from managed_ledger.records.versioned_record import VersionedRecord
from tests.support.bookie_admin_world import Client, administered
from tests.support.bookie_disks import on_each_operation, stored_entry
from tests.support.bookie_world import LyingWorld, add_all
from tests.support.fake_bookies import FakeCluster, fake_cluster
from tests.support.scrapes import Scrape, promtool_test
from tests.support.serving import CONFIG as BOOKIE
from tests.support.serving import HurriedClock
from tests.support.tls_files import Authority
from tests.support.waiting import eventually
from tests.unit.autorecovery.admin.management_world import World, managed
from tests.unit.bookie.maintenance.older_metadata.test_older_metadata import ReturningWorld, collected
from tests.unit.bookie.maintenance.test_scrub import Copies, damage, filled, scrubbed
from tests.unit.broker.admin.admin_world import AdminWorld, Side
from tests.unit.broker.admin.test_authentication import SECURE, bearer

pytestmark = pytest.mark.process
with_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here (Debian's package prometheus has it)"
)

RULES: Final = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"
TOPIC: Final = "persistent://public/default/orders"
MINUTE_S, HOUR_S, DAY_S = 60, 3_600, 86_400
_UNITS: Final = {"s": 1, "m": MINUTE_S, "h": HOUR_S, "d": DAY_S}

Tell = Callable[[], Awaitable[str | None]]


def alerts() -> dict[str, dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


@dataclass
class Cluster:
    """The servers that Prometheus asks, and what was recorded of them."""

    stack: AsyncExitStack
    tells: dict[tuple[str, str], Tell] = field(default_factory=dict)
    """(job, instance) → the text of its metrics, None if it does not answer."""

    async def scrape(self) -> Scrape:
        made = Scrape()
        for (job, instance), tell in self.tells.items():
            made.add(job, instance, await tell())
        return made

    async def brokers(self, count: int = 1, **settings: Any) -> tuple[AdminWorld, list[Side]]:
        return await self.brokers_of(AdminWorld(self.stack), count, **settings)

    async def brokers_of(self, world: AdminWorld, count: int = 1, **settings: Any) -> tuple[AdminWorld, list[Side]]:
        await world.open()
        sides = [await world.side(**settings) for _ in range(count)]
        for side in sides:

            async def tell(side: Side = side) -> str | None:
                with contextlib.suppress(aiohttp.ClientError):
                    return (await world.call(side, "GET", "/metrics")).text
                return None

            self.tells["magnetar-broker", side.id] = tell
        return world, sides

    async def bookie(self, world: LyingWorld, **settings: Any) -> Bookie:
        admin: Client = await self.stack.enter_async_context(administered(world, replace(BOOKIE, **settings)))

        async def tell() -> str:
            return (await admin.call("GET", "/metrics", None)).text

        self.tells["magnetar-bookie", "b1"] = tell
        return admin.bookie

    async def recovery(self, bookies: int = 4, *, node: bool = True) -> World:
        """Auto-recovery with a bookie more than the ledgers need."""
        world = await self.stack.enter_async_context(managed(bookies))
        if node:
            started = await world.nodes.start("one")
            await eventually(lambda: started.election.is_elected and started.auditor.counts.last_audit_ms)

        async def tell() -> str:
            await asyncio.sleep(1.01)  # the value is kept for a second
            return (await world.call("GET", "/metrics", raw=True)).text

        self.tells["magnetar-autorecovery", "n1"] = tell
        return world


@dataclass
class Planted:
    """How the problem of an alert is made."""

    plant: Callable[[Cluster], AbstractAsyncContextManager[None]]
    gauges_go_on: bool = False
    lasts_s: int = 0
    """Longer than the rule needs by itself."""


PLANTED: Final[dict[str, Planted]] = {}

# Those that doctor and page name, too: tests/process/test_early_signs.py plants their problems.
EARLY_SIGNS: Final = {
    "MagnetarBacklogQuotaNear",
    "MagnetarSubscriptionUnread",
    "MagnetarCertificateEnds",
    "MagnetarBundlesUnbalanced",
    "MagnetarKeysOpenToOthers",
}


def planted(alert: str, **options: Any) -> Callable[[Any], Any]:
    """The coroutine yields once: when all is well."""

    def note(plant: Any) -> Any:
        PLANTED[alert] = Planted(asynccontextmanager(plant), **options)
        return plant

    return note


# ------------------------------------------------------------------------------------------ brokers


@planted("MagnetarServerAway")
async def _away(cluster: Cluster) -> AsyncIterator[None]:
    _, sides = await cluster.brokers(2)
    yield
    await sides[0].admin.stop()


@planted("MagnetarNoBrokers")
async def _no_brokers(cluster: Cluster) -> AsyncIterator[None]:
    _, sides = await cluster.brokers(2)
    yield
    for side in sides:
        await side.admin.stop()


@planted("MagnetarBundlesNotServed")
async def _not_served(cluster: Cluster) -> AsyncIterator[None]:
    """Clients come, and no broker can take a bundle."""
    world, (side,) = await cluster.brokers()
    client = await connected(cluster, side)
    await world.run(client.subscribe, TOPIC, "billing")
    yield

    async def refused(*_: Any) -> bool:
        return False

    monkeypatch = cluster.stack.enter_context(pytest.MonkeyPatch.context())
    monkeypatch.setattr(side.ownership.keeper, "_claim", refused)
    assert (await world.call(side, "PUT", "/admin/v2/namespaces/public/default/unload")).status < 300
    await eventually(lambda: not side.ownership.owned_bundles)


@planted("MagnetarConnectionsRefused", gauges_go_on=True)
async def _refused(cluster: Cluster) -> AsyncIterator[None]:
    _, (side,) = await cluster.brokers(max_connections=1)
    port = side.broker.port
    _, first = await asyncio.open_connection("127.0.0.1", port)
    cluster.stack.callback(first.close)
    await eventually(lambda: side.broker.server.made)
    yield
    for _ in range(3):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        cluster.stack.callback(writer.close)
    await eventually(lambda: side.broker.server.refused)


@planted("MagnetarAuthenticationFailures")
async def _strangers(cluster: Cluster) -> AsyncIterator[None]:
    world, (side,) = await cluster.brokers(**SECURE)
    await world.call(side, "GET", "/admin/v2/clusters", Authorization=bearer())
    yield
    for _ in range(40):
        await world.call(side, "GET", "/admin/v2/clusters", Authorization="Bearer nonsense")


@planted("MagnetarTlsHandshakesFail")
async def _tls(cluster: Cluster) -> AsyncIterator[None]:
    folder = Authority(Path(cluster.stack.enter_context(tempfile.TemporaryDirectory()))).folder("broker")
    _, (side,) = await cluster.brokers(
        service_port_tls=0, tls_certificate=str(folder / "tls.crt"), tls_key=str(folder / "tls.key")
    )
    yield
    port = side.broker.address.service_url_tls.rpartition(":")[2]
    for _ in range(40):
        _, writer = await asyncio.open_connection("127.0.0.1", int(port))
        writer.write(b"this is no handshake")
        cluster.stack.callback(writer.close)
    await eventually(lambda: side.broker.server.handshakes_failed >= 40)


# ------------------------------------------------------------------------------------------- topics


@planted("MagnetarBacklogGrows", gauges_go_on=True, lasts_s=8 * HOUR_S)
async def _backlog(cluster: Cluster) -> AsyncIterator[None]:
    """Two thousand entries come in half a minute, and nobody consumes."""
    world, (side,) = await cluster.brokers()
    client = await connected(cluster, side)
    await in_thread((await in_thread(lambda: client.subscribe(TOPIC, "billing"))).close)
    yield
    await world.run(publish, client, 2_000)


@planted("MagnetarSubscriptionBlocked")
async def _blocked(cluster: Cluster) -> AsyncIterator[None]:
    world, (side,) = await cluster.brokers(max_unacked_per_consumer=50)
    client = await connected(cluster, side)
    shared = {"consumer_type": pulsar.ConsumerType.Shared, "receiver_queue_size": 100}
    consumer = await in_thread(lambda: client.subscribe(TOPIC, "billing", **shared))
    await world.run(publish, client, 10)
    for _ in range(10):
        consumer.acknowledge(await in_thread(lambda: consumer.receive(5_000)))
    yield
    await world.run(publish, client, 100)
    (topic,) = side.broker.topics.values()
    await eventually(lambda: topic.subscriptions["billing"].consumers[0].is_blocked)


@planted("MagnetarAcknowledgedEntriesLost")
async def _tail_lost(cluster: Cluster) -> AsyncIterator[None]:
    """Somebody closes the ledger of an open topic, bookies forget that, take what comes behind the end, and lose it."""
    monkeypatch = cluster.stack.enter_context(pytest.MonkeyPatch.context())
    monkeypatch.setattr(Belief, "on_answer", lambda belief, channel, socket: False)
    bookies = await cluster.stack.enter_async_context(fake_cluster(2))
    world, side = await over(cluster, bookies, cache_mbytes=0)
    client = await connected(cluster, side)
    await world.run(publish, client, 1)
    yield
    (topic,) = side.broker.topics.values()
    present = topic.ledger._lifecycle.present
    assert present is not None
    await (await bookies.client()).open_ledger(present.ledger_id, recovery=True)
    for bookie in bookies.bookies.values():
        await bookie.stop()
        bookie.fenced.clear()
        await bookie.start()
    await world.run(publish, client, 3)
    for bookie in bookies.bookies.values():
        for entry_id in (1, 2, 3):
            bookie.ledgers[present.ledger_id].pop(entry_id, None)
    await topic.ledger.close()


@planted("MagnetarLoopStandsStill")
async def _stands_still(cluster: Cluster) -> AsyncIterator[None]:
    await cluster.brokers()
    watch = LoopWatch(0.25, time.monotonic, lambda _: None)
    watch.start()
    yield
    before_s = LoopWatch.stalled_s
    until_s = time.thread_time() + 1.8
    await asyncio.sleep(0.3)
    while time.thread_time() < until_s:
        pass
    await eventually(lambda: LoopWatch.stalled_s > before_s)
    await watch.stop()


@planted("MagnetarMetadataRecordsOlder")
async def _records_older(cluster: Cluster) -> AsyncIterator[None]:
    """The record of an open topic is put back to what it was."""
    world, _ = await cluster.brokers()
    await world.store.put("/r", b"0")
    record = VersionedRecord(world.store, "/r")
    await record.read()
    await record.write(b"1")
    saved = world.store.saved()
    await record.write(b"2")
    yield
    world.store.put_back(saved)
    with pytest.raises(MetadataWentBack):
        await record.write(b"3")


# ------------------------------------------------------------------------------------------ bookies


def disks_of(world: LyingWorld, free_bytes: int) -> None:
    world.usage_of = lambda _: DiskUsage(100 * GIB, free_bytes)


@planted("MagnetarBookieReadOnly")
async def _read_only(cluster: Cluster) -> AsyncIterator[None]:
    world = LyingWorld(HurriedClock())
    bookie = await cluster.bookie(world, disk_check_interval_ms=20)
    yield
    disks_of(world, GIB)
    await eventually(lambda: bookie.is_read_only)


@planted("MagnetarDiskFull")
async def _disk_full(cluster: Cluster) -> AsyncIterator[None]:
    world = LyingWorld(HurriedClock())
    bookie = await cluster.bookie(world, disk_check_interval_ms=20)
    yield
    disks_of(world, 8 * GIB)
    await eventually(lambda: all(check.free_bytes == 8 * GIB for check in bookie.operations.info().disks))


@planted("MagnetarDiskFullSoon", gauges_go_on=True)
async def _disk_full_soon(cluster: Cluster) -> AsyncIterator[None]:
    """50 MiB in half a minute: 80 GiB are full in 14 hours."""
    world = LyingWorld(HurriedClock())
    bookie = await cluster.bookie(world, disk_check_interval_ms=20)
    yield
    disks_of(world, 80 * GIB - 50 * MIB)
    await eventually(lambda: all(check.free_bytes < 80 * GIB for check in bookie.operations.info().disks))


@planted("MagnetarFlushFails")
async def _flush_fails(cluster: Cluster) -> AsyncIterator[None]:
    world = LyingWorld(HurriedClock())
    bookie = await cluster.bookie(world, write_cache_mib=1, disk_check_interval_ms=1000)
    await add_all(bookie, [stored_entry(1, 0, b"kept")])
    yield

    def fail(what: str, path: str) -> None:
        if what == "write" and path.endswith(".log"):
            raise OSError(errno.ENOSPC, "no space", path)

    stop = on_each_operation(world.files, fail)
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.checkpointer.flush_failures)
    cluster.stack.callback(stop)


@planted("MagnetarGarbageStays")
async def _garbage_stays(cluster: Cluster) -> AsyncIterator[None]:
    """The metadata store lists no ledger any more."""
    world = LyingWorld(HurriedClock())
    bookie = await cluster.bookie(world)
    for ledger_id in range(1, 4):
        await world.record_ledger(ledger_id)
    await add_all(bookie, [stored_entry(ledger_id, 0, b"x") for ledger_id in range(1, 4)])
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.server.write_cache.is_empty)
    yield
    for ledger_id in range(1, 4):
        await world.ledgers.delete(ledger_id)
    await collected(bookie)
    assert bookie.parts.collector.status().refused is not None


@planted("MagnetarDamage")
async def _damaged(cluster: Cluster) -> AsyncIterator[None]:
    world = Copies()
    await filled(world, range(1, 2), 3)
    await world.record_ledger(1)
    world.copies = {(1, 1): None}
    bookie = await cluster.bookie(world)
    yield
    damage(world, stored_entry(1, 1, b"p" * 50), 40)
    assert (await scrubbed(bookie)).entries_lost == 1


@planted("MagnetarEntryLogsLost")
async def _logs_lost(cluster: Cluster) -> AsyncIterator[None]:
    world = Copies()
    await filled(world, range(1, 2), 3)
    await world.record_ledger(1)
    async with administered(world) as admin:
        well = (await admin.call("GET", "/metrics", None)).text

    async def tell() -> str:
        return well

    cluster.tells["magnetar-bookie", "b1"] = tell
    yield
    world.files.remove("/bookie/ledgers/current/0.log")
    await cluster.bookie(world)


@planted("MagnetarStorageOpenToOthers")
async def _open_to_others(cluster: Cluster) -> AsyncIterator[None]:
    world = LyingWorld(HurriedClock())
    await cluster.bookie(world)
    yield
    world.files.lets_others_in = lambda directory: directory.startswith("/bookie/ledgers")  # type: ignore[method-assign]


@planted("MagnetarMetadataOlderThanLedgers")
async def _metadata_older(cluster: Cluster) -> AsyncIterator[None]:
    world = ReturningWorld()
    async with administered(world) as admin:
        await world.write(admin.bookie, 2)
        saved = world.store.saved()
        await world.write(admin.bookie, 5)
        well = (await admin.call("GET", "/metrics", None)).text

    async def tell() -> str:
        return well

    cluster.tells["magnetar-bookie", "b1"] = tell
    yield
    world.store.put_back(saved)
    await cluster.bookie(world)


# ------------------------------------------------------------------------------------ auto-recovery


@planted("MagnetarLedgersUnderReplicated")
async def _under_replicated(cluster: Cluster) -> AsyncIterator[None]:
    """Three bookies, three copies, and one is gone: there is no place for another copy."""
    world = await cluster.recovery(3)
    await world.nodes.written(2, ensemble=3, write=3)
    yield
    await world.cluster.kill("bookie-0")
    await eventually(partial(has_marks, world))


@planted("MagnetarEntriesLost")
async def _entries_lost(cluster: Cluster) -> AsyncIterator[None]:
    world = await cluster.recovery(3)
    ledger_id = await world.nodes.written(4, ensemble=1, write=1, ack=1)
    yield
    await world.cluster.kill(*(await world.nodes.writer.read_metadata(ledger_id)).bookies())
    (node,) = world.nodes._nodes
    await eventually(lambda: [one.outcome.kind for one in node.worker.waiting])


@planted("MagnetarNoAuditor")
async def _no_auditor(cluster: Cluster) -> AsyncIterator[None]:
    world = await cluster.recovery()
    yield
    await world.nodes._nodes.pop().stop()


@planted("MagnetarAutoRecoveryOff")
async def _off(cluster: Cluster) -> AsyncIterator[None]:
    world = await cluster.recovery()
    yield
    await world.store.put(underreplication.disabled_path("/ledgers"), b"")


@planted("MagnetarAuditLate", lasts_s=15 * DAY_S)
async def _audit_late(cluster: Cluster) -> AsyncIterator[None]:
    """The last audit stays the last one."""
    await cluster.recovery()
    yield


@planted("MagnetarBookieAway")
async def _bookie_away(cluster: Cluster) -> AsyncIterator[None]:
    world = await cluster.recovery()
    yield
    await world.cluster.kill("bookie-1")


@planted("MagnetarDrainFailed")
async def _drain_failed(cluster: Cluster) -> AsyncIterator[None]:
    world = await cluster.recovery(node=False)
    assert (await world.call("PUT", "/bookies/bookie-0/state", {"state": "draining"})).status < 300
    yield
    await world.audit("bookie-0", State.DRAINING_FAILED, (1, "no copy of entries 0 to 3"))


# ----------------------------------------------------------------------------------------- questions

QUIET: Final = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


async def connected(cluster: Cluster, side: Side) -> pulsar.Client:
    client = await in_thread(lambda: pulsar.Client(side.url, operation_timeout_seconds=5, logger=QUIET))
    cluster.stack.push_async_callback(in_thread, client.close)  # the broker runs on this thread
    return client


async def in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(work)


def publish(client: pulsar.Client, count: int) -> None:
    """Each message is an entry."""
    producer = client.create_producer(TOPIC, batching_enabled=False, max_pending_messages=0)
    for number in range(count):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    producer.close()


async def has_marks(world: World) -> bool:
    return bool([ledger_id async for ledger_id in world.marks.marked()])


async def over(cluster: Cluster, bookies: FakeCluster, **settings: Any) -> tuple[AdminWorld, Side]:
    """A broker whose ledgers are on *bookies*."""
    world = AdminWorld(cluster.stack)
    world.store = bookies.store  # type: ignore[assignment]
    world.bookkeeper = SimpleNamespace(client=await bookies.client())  # type: ignore[assignment]
    _, (side,) = await cluster.brokers_of(world, **settings)
    return world, side


def seconds(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]]


def ask_promtool(folder: Path, rules: list[dict[str, Any]], *tests: dict[str, Any]) -> None:
    (folder / "alerts.yaml").write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": rules}]}))
    paths = [folder / f"test-{number}.yaml" for number in range(len(tests))]
    for path, test in zip(paths, tests, strict=True):
        path.write_text(yaml.safe_dump(test))
    made = subprocess.run(
        ["promtool", "test", "rules", *paths], capture_output=True, text=True, check=False, timeout=120
    )
    assert made.returncode == 0, made.stdout + made.stderr


def test_each_alert_has_a_problem_of_its_own() -> None:
    assert PLANTED.keys() | EARLY_SIGNS == alerts().keys()


@with_promtool
@pytest.mark.parametrize("alert", PLANTED)
async def test_an_alert_fires_where_its_problem_is_and_is_silent_before(alert: str, tmp_path: Path) -> None:
    rule, problem = alerts()[alert], PLANTED[alert]
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack)
        async with problem.plant(cluster):
            before = await cluster.scrape()
        after = await cluster.scrape()
    windows = [seconds(text) for text in re.findall(r"\[(\w+)\]", rule["expr"])]
    lasts_s = problem.lasts_s or seconds(rule.get("for", "0s")) + max(windows, default=0) + 2 * MINUTE_S
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) > bool 0'
    scrape_s = 30 if lasts_s < DAY_S else 240  # what is older than five minutes does not count any more
    make = partial(
        promtool_test, "alerts.yaml", before, scrape_s=scrape_s, of=rule["expr"], gauges_go_on=problem.gauges_go_on
    )
    ask_promtool(
        tmp_path,
        [rule],
        make(after, lasts_s=lasts_s, question=firing, answer=1),
        make(before, lasts_s=min(lasts_s, 8 * HOUR_S), question=firing, answer=None),
    )


@with_promtool
async def test_no_alert_fires_in_a_cluster_that_is_well(tmp_path: Path) -> None:
    """Brokers with a producer and a consumer, a bookie with entries, and auto-recovery, for two hours."""
    async with AsyncExitStack() as stack:
        cluster = Cluster(stack)
        world, sides = await cluster.brokers(2)
        client = await connected(cluster, sides[0])
        consumer = await in_thread(lambda: client.subscribe(TOPIC, "billing"))
        bookie = await cluster.bookie(LyingWorld(HurriedClock()))
        await cluster.recovery()
        before = await cluster.scrape()
        await world.run(publish, client, 20)
        for _ in range(20):
            consumer.acknowledge(await in_thread(lambda: consumer.receive(5_000)))
        await add_all(bookie, [stored_entry(1, 0, b"kept")])
        bookie.parts.checkpointer.flush()
        after = await cluster.scrape()
    question = 'ALERTS{alertstate="firing"}'
    test = promtool_test("alerts.yaml", before, after, lasts_s=2 * HOUR_S, question=question, answer=None)
    ask_promtool(tmp_path, list(alerts().values()), test)
