"""The ledger of an idle topic is closed by somebody else, and its bookies come back with empty disks: what the broker
acknowledges after that stays (I130). On Apache's bookies, which take such adds, and on ours, which do not."""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock
from tests.support.mixed_cluster import Brand, MixedCluster
from tests.support.processes import QUIET, until

TOPIC = "persistent://public/default/idle"
TIMEOUT_MS = 30_000


async def closed(metadata_url: str, ledger_id: int) -> set[str]:
    """Close a ledger, as auto-recovery does; its bookies."""
    store = await open_store(metadata_url, LoopClock(), session_timeout_s=10.0)
    bookkeeper = BookKeeper(store, LoopClock())
    await bookkeeper.open()
    try:
        await bookkeeper.open_as_administrator(ledger_id, recovery=True)
        return set((await bookkeeper.read_metadata(ledger_id)).bookies())
    finally:
        await bookkeeper.close()
        await store.close()


async def forgotten(metadata_url: str, bookie_ids: set[str]) -> None:
    """Nobody knows of these bookies any more."""
    store = await open_store(metadata_url, LoopClock(), session_timeout_s=10.0)
    try:
        for bookie_id in bookie_ids:
            await store.delete(f"/ledgers/cookies/{bookie_id}")
    finally:
        await store.close()


def received(client: pulsar.Client) -> list[bytes]:
    reader = client.create_reader(TOPIC, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while reader.has_message_available():
        found.append(reader.read_next(TIMEOUT_MS).data())
    reader.close()
    return found


@pytest.mark.parametrize("before", [0, 1], ids=["empty", "one entry"])
@pytest.mark.parametrize("quorums", [(2, 2), (3, 2)], ids=["2/2/2", "3/3/2"])
@pytest.mark.parametrize("brand", ["apache", "ours", "ours, keeping their cookies"])
def test_what_is_acknowledged_after_the_bookies_were_exchanged_stays(
    tmp_path: Path, brand: str, quorums: tuple[int, int], before: int
) -> None:
    copies, acks = quorums
    keeps_cookies = brand.endswith("cookies")
    kind: Brand = "apache" if brand == "apache" else "ours"
    settings: dict[str, Any] = {"dataIntegrityChecking": "true"} if keeps_cookies else {}
    quorum: dict[str, Any] = {"managedLedgerDefaultAckQuorum": acks}
    with MixedCluster(tmp_path / "cluster", copies=copies) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(kind)
        for _ in range(copies):
            cluster.add("bookie", kind, **settings)
        broker = cluster.add("broker", "ours", **quorum)
        admin = AdminClient([broker.admin_url])
        with closing(pulsar.Client(broker.service_url, logger=QUIET)) as client:
            producer = client.create_producer(TOPIC, batching_enabled=False, send_timeout_millis=TIMEOUT_MS)
            wanted = [b"before %d" % number for number in range(before)]
            for payload in wanted:
                producer.send(payload)
            stats = admin.call("GET", f"/admin/v2/{admin.path_of(TOPIC)}/internalStats")
            ledger_id = stats["ledgers"][-1]["ledgerId"]
            broker.pause()  # so that it does not hear of what follows before it writes
            ids = asyncio.run(closed(cluster.metadata_url, ledger_id))
            assert len(ids) == copies
            # One after the other, each with its copies of the closed ledger put back: here all but one are empty.
            kept = next(iter(ids)) if before else ""
            for bookie_id in ids - {kept}:
                bookie = cluster.bookie(bookie_id)
                bookie.kill()
                for directory in ("journal", "ledgers"):
                    shutil.rmtree(bookie.directory / directory)
            if not keeps_cookies:
                asyncio.run(forgotten(cluster.metadata_url, ids - {kept}))
            for bookie_id in ids - {kept}:
                cluster.bookie(bookie_id).start()
            broker.resume()
            for number in range(3):
                producer.send(b"after %d" % number)
                wanted.append(b"after %d" % number)
            until(lambda: len(admin.call("GET", "/admin/v2/brokers")) == 1, "the broker is listed")
            admin.call("PUT", "/admin/v2/namespaces/public/default/unload")
            assert received(client) == wanted
        broker.kill()
        broker.start()
        with closing(pulsar.Client(broker.service_url, logger=QUIET)) as client:
            assert received(client) == wanted
