"""Answers that are received into room of their own, between small ones."""

import asyncio
import socket

import pytest

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.bookkeeper.client.wire.connection import _Wire
from magnetar_core.runtime.data.recycled import RecycledBuffers
from magnetar_core.runtime.types import KIB, MIB
from tests.support.fake_bookies import FakeCluster
from tests.unit.magnetar_core.bookkeeper.client.test_client import client, cluster, create

pytestmark = pytest.mark.both_loops

__all__ = ["client", "cluster"]

LARGEST = 5 * MIB // 2
SIZES = (1, 300 * KIB, 0, MIB, MIB + 1, 127 * KIB, LARGEST, 10, 129 * KIB)
PATIENCE_S = 10
"""Far below the 30 s after which a request without an answer fails."""


def payload(number: int, size: int) -> bytes:
    return (bytes(range(256)) * (size // 256 + 1))[number : number + size]


async def written(client: BookKeeper) -> tuple[int, list[bytes]]:
    payloads = [payload(number, size) for number, size in enumerate(SIZES)]
    ledger = await create(client, 1, 1, 1)
    for one in payloads:
        await ledger.add(one)
    await ledger.close()
    return ledger.ledger_id, payloads


@pytest.mark.parametrize("drip_bytes", [0, 100_000, 300_001])
async def test_large_and_small_entries_in_any_order(cluster: FakeCluster, client: BookKeeper, drip_bytes: int) -> None:
    ledger_id, payloads = await written(client)
    handle = await client.open_ledger(ledger_id, recovery=False)
    for bookie in cluster.bookies.values():
        bookie.drip_bytes = drip_bytes
    async with asyncio.timeout(PATIENCE_S):
        for number, wanted in enumerate(payloads):
            (one,) = await handle.read(number, number)
            assert one.payload == wanted
        at_once = await asyncio.gather(*(handle.read(number, number) for number in range(len(payloads))))
        assert [found.payload for (found,) in at_once] == payloads
        del one, at_once
        batches = await handle.read(0, len(payloads) - 1)
    assert [found.payload for found in batches] == payloads


async def test_room_is_used_again_and_never_under_a_reader(cluster: FakeCluster) -> None:
    room = RecycledBuffers(32 * MIB)
    client = BookKeeper(cluster._session(), cluster.clock, allocate=room.allocate)
    await client.open()
    try:
        ledger_id, payloads = await written(client)
        handle = await client.open_ledger(ledger_id, recovery=False)
        held = [(await handle.read(number, number))[0] for number in range(len(payloads))]
        for number in (3, 6, 4, 1, 3, 6):
            (found,) = await handle.read(number, number)
            assert found.payload == payloads[number]
        assert [found.payload for found in held] == payloads
        assert 0 < room.kept_bytes <= 32 * MIB
    finally:
        await client.close()


@pytest.mark.parametrize("drip_bytes", [0, 997, 30_011])
async def test_many_connections_receive_at_once(cluster: FakeCluster, client: BookKeeper, drip_bytes: int) -> None:
    """They share what small answers are received into."""
    ledgers = [await create(client, 1, 1, 1) for _ in range(12)]
    sizes = (20, 3_000, 200_000, 7, 70_000)
    wanted = [[bytes([number, at]) * size for at, size in enumerate(sizes)] for number in range(len(ledgers))]
    for ledger, payloads in zip(ledgers, wanted, strict=True):
        ledger.append(payloads)
        await ledger.wait_for(len(sizes) - 1)
        await ledger.close()
    for bookie in cluster.bookies.values():
        bookie.drip_bytes = drip_bytes
    handles = [await client.open_ledger(ledger.ledger_id, recovery=False) for ledger in ledgers]
    assert len({handle.metadata.ensemble_for(0)[0] for handle in handles}) > 1
    async with asyncio.timeout(PATIENCE_S):
        found = await asyncio.gather(*(handle.read(at, at) for handle in handles for at in range(len(sizes))))
    assert [bytes(one.payload) for (one,) in found] == [payload for payloads in wanted for payload in payloads]


def wakes_at(wire: _Wire) -> int:
    return int(wire.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT))


async def test_a_socket_waits_for_much_of_a_large_answer_only(
    cluster: FakeCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks: list[int] = []
    wires: set[_Wire] = set()
    updated = _Wire.buffer_updated

    def noting(wire: _Wire, count: int) -> None:
        updated(wire, count)
        wires.add(wire)
        chunks.append(wakes_at(wire))

    monkeypatch.setattr(_Wire, "buffer_updated", noting)
    ledger_id, payloads = await written(client)
    handle = await client.open_ledger(ledger_id, recovery=False)
    for bookie in cluster.bookies.values():
        bookie.drip_bytes = 50_000
    chunks.clear()
    async with asyncio.timeout(PATIENCE_S):
        (found,) = await handle.read(6, 6)
        assert found.payload == payloads[6]
        assert max(chunks) == MIB
        assert len(chunks) < LARGEST // 50_000 // 2, "fewer times than pieces arrived"
        assert [wakes_at(wire) for wire in wires] == [1], "the next answer may be small"
        (small,) = await handle.read(0, 0)
    assert bytes(small.payload) == payloads[0]


@pytest.mark.parametrize("cut_bytes", [3, 100, 200_000, MIB])
async def test_a_connection_that_ends_inside_a_large_answer_is_seen_at_once(
    cluster: FakeCluster, client: BookKeeper, cut_bytes: int
) -> None:
    ledger_id, payloads = await written(client)
    handle = await client.open_ledger(ledger_id, recovery=False)
    for bookie in cluster.bookies.values():
        bookie.cut_bytes = cut_bytes
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(BookieUnavailable):
            await handle.read(6, 6)
        for bookie in cluster.bookies.values():
            bookie.cut_bytes = None
        (found,) = await handle.read(6, 6)
    assert found.payload == payloads[6]


async def test_a_socket_that_cannot_wait_is_read_all_the_same(
    cluster: FakeCluster, client: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "SO_RCVLOWAT", 0x7FFF)  # an option that systems do not know
    with socket.socket() as unable, pytest.raises(OSError):
        unable.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
    ledger_id, payloads = await written(client)
    handle = await client.open_ledger(ledger_id, recovery=False)
    async with asyncio.timeout(PATIENCE_S):
        found = await handle.read(0, len(payloads) - 1)
    assert [one.payload for one in found] == payloads
