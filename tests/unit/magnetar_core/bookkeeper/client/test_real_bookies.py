"""The client against this project's own bookies, with their journals and indexes."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.maintenance.peers import PeerSource
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import EntryTooLarge, LedgerFenced
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.codec_v3 import is_available
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from tests.support.serving import CONFIG, BookieMachines

pytestmark = pytest.mark.both_loops


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookies: dict[str, Bookie] = {}
        self.client = BookKeeper(self.store.session(), self.clock)

    async def start(self) -> None:
        await initialise_cluster(self.store)
        for i in range(4):
            await self.start_bookie(f"bookie-{i}")
        await self.client.open()

    async def start_bookie(self, bookie_id: str) -> None:
        config = BookieConfig(
            port=0,
            listen_address="127.0.0.1",
            advertised_address="127.0.0.1",
            bookie_id=bookie_id,
            journal_directories=(str(self.folder / bookie_id / "journal"),),
            ledger_directories=(str(self.folder / bookie_id / "ledgers"),),
            stop_wait_ms=0,
        )
        bookie = Bookie(config, self.store.session(), self.clock, OsFiles())
        await bookie.start()
        self.bookies[bookie_id] = bookie

    async def stop(self) -> None:
        await self.client.close()
        for bookie in self.bookies.values():
            await bookie.stop()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


@pytest.mark.parametrize(("e", "w", "a"), [(3, 3, 2), (3, 2, 2)])
async def test_write_lose_a_bookie_recover_and_read(cluster: Cluster, e: int, w: int, a: int) -> None:
    client = cluster.client
    handle = await client.create_ledger(ensemble_size=e, write_quorum=w, ack_quorum=a, digest_type=DigestType.CRC32C)
    payloads = [b"entry %d " % i + bytes(i % 700) for i in range(500)]
    for i in range(0, 500, 10):
        if i == 200:
            await handle.wait_for(100)
            stopped = handle.metadata.last_segment.ensemble[0]
            await cluster.bookies.pop(stopped).stop()
        handle.append(payloads[i : i + 10])
        await asyncio.sleep(0)
    await handle.wait_for(499)
    assert len(handle.metadata.segments) >= 2
    assert stopped not in handle.metadata.last_segment.ensemble

    other = BookKeeper(cluster.store.session(), cluster.clock)
    await other.open()
    reader = await other.open_ledger(handle.ledger_id, recovery=True)
    assert reader.last_add_confirmed == 499
    assert reader.length == sum(map(len, payloads))
    assert [bytes(entry.payload) for entry in await reader.read(0, 499)] == payloads
    with pytest.raises(LedgerFenced):
        await handle.add(b"late")
    await other.close()


async def test_where_frames_may_be_larger_entries_may_be_larger_and_are_recovered_and_repaired(tmp_path: Path) -> None:
    """Pulsar's maxMessageSize and its bookies' nettyMaxFrameSizeBytes are set to more than 5 MiB."""
    frame_bytes_max = 5_400_000
    machines = BookieMachines()
    machines.files = OsFiles()  # type: ignore[assignment]
    journals, ledgers = ((str(tmp_path / name),) for name in ("journal", "ledgers"))
    config = replace(CONFIG, journal_directories=journals, ledger_directories=ledgers, frame_bytes_max=frame_bytes_max)
    async with machines.serving(config) as bookie:
        clients = [
            BookKeeper(machines.store.session(), machines.clock, ClientConfig(frame_bytes_max=frame_bytes_max))
            for _ in range(2)
        ]
        for client in clients:
            await client.open()
        handle = await clients[0].create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        payload = bytes(5_300_000)
        await handle.add(payload)
        with pytest.raises(EntryTooLarge):
            handle.append([bytes(frame_bytes_max)])
        reader = await clients[1].open_ledger(handle.ledger_id, recovery=True)
        (entry,) = await reader.read(0, 0)
        assert entry.payload == payload
        source = PeerSource(machines.store, "/ledgers", "bookie-2", machines.clock, None, frame_bytes_max)
        copy = await source.read_entry(handle.ledger_id, reader.metadata, 0)
        assert copy is not None
        assert copy.endswith(payload)
        source.close()
        for client in clients:
            await client.close()
        assert bookie.server.counters.malformed == 0


async def test_an_open_ledger_is_followed_without_fencing(cluster: Cluster) -> None:
    handle = await cluster.client.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await handle.add(b"0")
    await handle.add(b"1")
    other = BookKeeper(cluster.store.session(), cluster.clock)
    await other.open()
    reader = await other.open_ledger(handle.ledger_id, recovery=False)
    assert reader.last_add_confirmed == 0
    assert await reader.last_recoverable_entry() == 1
    await handle.add(b"2")
    await handle.close()
    assert await reader.read_last_confirmed() == 2
    assert [bytes(e.payload) for e in await reader.read_batch(0, 10, 1000)] == [b"0", b"1", b"2"]
    await other.close()


@pytest.mark.parametrize("write", [2, 3])
async def test_a_bookie_lists_the_entries_that_striping_gives_it_and_knows_no_deleted_ledger(
    cluster: Cluster, write: int
) -> None:
    client = cluster.client
    handle = await client.create_ledger(ensemble_size=3, write_quorum=write, ack_quorum=2)
    handle.append([b"entry %d" % number for number in range(100)])
    await handle.wait_for(99)
    await handle.close()
    ensemble = handle.metadata.last_segment.ensemble
    for index, bookie_id in enumerate(ensemble):
        listed = await client.entry_list(bookie_id, handle.ledger_id)
        held = [one for one in range(100) if (index - one) % 3 < write]
        assert [one for one in range(200) if is_available(listed, one)] == held
    (other,) = cluster.bookies.keys() - set(ensemble)
    assert await client.entry_list(other, handle.ledger_id) == []
