"""Limits of the client of the bookies in `docs/limits.md`: what happens beyond them."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from magnetar_core.bookkeeper.client import ledger_record
from magnetar_core.bookkeeper.client import recovery_driver as recover
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.outstanding import OVERTAKEN_MAX
from magnetar_core.bookkeeper.client.errors import MetadataUnavailable
from magnetar_core.bookkeeper.client.reading import fetch, read_handle
from magnetar_core.bookkeeper.client.wire.connection import (
    _FLUSH_BYTES,
    _SOCKET_BUFFER_BYTES,
    BookieConnection,
    _Wire,
)
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY
from magnetar_core.runtime.types import MIB
from tests.support.fake_bookies import FakeCluster
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually
from tests.unit.magnetar_core.bookkeeper.client.test_client import client, cluster, create, pause, resume

__all__ = ["client", "cluster"]


def sent(number: int) -> list[bytes]:
    return [b"entry %d" % at for at in range(number)]


# ------------------------------------------------------------------------------------------- one connection

CHUNK = 100_000


async def test_a_long_outbox_goes_to_the_socket_in_pieces(client: BookKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[int] = []
    send = _Wire.send

    def noting(wire: _Wire, buffers: list[Any]) -> None:
        pieces.append(sum(map(len, buffers)))
        send(wire, buffers)

    monkeypatch.setattr(_Wire, "send", noting)
    ledger = await create(client, 1, 1, 1)
    count = 5 * _FLUSH_BYTES // CHUNK
    ledger.append([bytes([at]) * CHUNK for at in range(count)])
    assert await ledger.wait_for(count - 1) == count - 1
    assert len(pieces) >= 4
    assert max(pieces) < _FLUSH_BYTES + CHUNK + 100, "a piece ends with the buffer that makes it so long"
    await ledger.close()
    found = await (await client.open_ledger(ledger.ledger_id, recovery=False)).read(0, count - 1)
    assert [entry.payload[0] for entry in found] == list(range(count))


async def test_what_is_beyond_the_buffer_of_a_socket_waits_in_the_outbox(
    cluster: FakeCluster, client: BookKeeper
) -> None:
    ledger = await create(client, 1, 1, 1)
    await ledger.add(b"0")
    (bookie_id,) = ledger.metadata.last_segment.ensemble
    pause(cluster, bookie_id)
    connection = ledger._channels[0].connection
    for _ in range(400):  # the system takes some megabytes
        ledger.append([bytes(CHUNK)])
        await asyncio.sleep(0)
        if connection._outbox_bytes > 4 * MIB:
            break
    assert 4 * MIB < connection._outbox_bytes < connection._config.outbox_bytes_max
    assert connection._wire is not None
    in_socket = connection._wire.transport.get_write_buffer_size()
    assert 0 < in_socket < _SOCKET_BUFFER_BYTES + _FLUSH_BYTES + CHUNK + 100
    resume(cluster, bookie_id)
    last = ledger.last_add_pushed
    assert await ledger.wait_for(last) == last
    assert (connection._outbox_bytes, len(cluster.bookies[bookie_id].ledgers[ledger.ledger_id])) == (0, last + 1)


async def test_an_add_is_overtaken_so_often_and_has_failed_then() -> None:
    """The answer to one add is lost, while the bookie answers all other requests in time."""
    clock = ManualClock()
    cluster = FakeCluster(clock)
    try:
        await cluster.start(2)
        client = await cluster.client(ClientConfig(timeout_s=10))
        ledger = await create(client, 1, 1, 1)
        await ledger.add(b"0")
        (forgetful,) = ledger.metadata.last_segment.ensemble
        bookie, connection = cluster.bookies[forgetful], ledger._channels[0].connection
        answer = bookie.answer

        def lose_one(frame: memoryview) -> list[Any]:
            made = answer(frame)
            return [] if bookie.requests[-1][-1] == 1 else made

        bookie.answer = lose_one  # type: ignore[method-assign]
        began_s = clock.monotonic()
        for _ in range(5 * OVERTAKEN_MAX):
            ledger.append([b"x"])
            await eventually(lambda: len(connection.outstanding) <= 1)
            clock.advance(6)
            if not connection.outstanding:
                break
        assert not connection.outstanding, "nobody waits for the answer any more"
        assert clock.monotonic() - began_s >= (OVERTAKEN_MAX + 1) * 10
        last = ledger.last_add_pushed
        assert await ledger.wait_for(last) == last
        first, second = ledger.metadata.segments
        assert (first.ensemble, second.first_entry_id) == ((forgetful,), 1)
    finally:
        await cluster.stop()


# ------------------------------------------------------------------------------------------------- reads


class InFlight:
    """The reads of entries that have no answer yet."""

    def __init__(self) -> None:
        self.now = self.most = self.total = 0

    def add(self, asked: "asyncio.Future[Any]") -> None:
        self.now += 1
        self.total += 1
        self.most = max(self.most, self.now)
        asked.add_done_callback(self._on_answer)

    def _on_answer(self, asked: "asyncio.Future[Any]") -> None:
        self.now -= 1


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> InFlight:
    counted = InFlight()
    read = BookieConnection.read

    def noting(connection: BookieConnection, ledger_id: int, entry_id: int, **more: Any) -> "asyncio.Future[Any]":
        asked = read(connection, ledger_id, entry_id, **more)
        if entry_id >= 0:
            counted.add(asked)
        return asked

    monkeypatch.setattr(BookieConnection, "read", noting)
    return counted


async def unconfirmed(client: BookKeeper, count: int) -> LedgerWriteHandle:
    """An open ledger on one bookie. Its entries were sent at once, so the LAC in them confirms none of the others."""
    ledger = await create(client, 1, 1, 1)
    ledger.append(sent(count))
    await ledger.wait_for(count - 1)
    return ledger


async def test_single_reads_go_so_many_at_a_time(cluster: FakeCluster, in_flight: InFlight) -> None:
    client = await cluster.client(ClientConfig(batch_read_enabled=False))
    count = 2 * fetch._WINDOW + 5
    ledger = await unconfirmed(client, count)
    await ledger.close()
    reader = await client.open_ledger(ledger.ledger_id, recovery=False)
    assert [bytes(entry.payload) for entry in await reader.read(0, count - 1)] == sent(count)
    assert (in_flight.most, in_flight.total) == (fetch._WINDOW, count)


async def test_the_end_of_an_open_ledger_is_looked_for_so_many_entries_at_a_time(
    cluster: FakeCluster, client: BookKeeper, in_flight: InFlight
) -> None:
    count = 2 * read_handle._HELD_WINDOW + 5
    ledger = await unconfirmed(client, count)
    reader = await (await cluster.client()).open_ledger(ledger.ledger_id, recovery=False)
    assert reader.last_add_confirmed == -1
    assert await reader.last_recoverable_entry() == count - 1
    assert in_flight.most == read_handle._HELD_WINDOW


async def test_a_recovery_reads_and_writes_so_many_entries_at_a_time(
    cluster: FakeCluster, client: BookKeeper, in_flight: InFlight
) -> None:
    count = 5 * recover._WINDOW + 5
    ledger = await unconfirmed(client, count)
    bookie = cluster.bookies[ledger.metadata.last_segment.ensemble[0]]
    answer, kept = bookie.answer, []

    def keep_receipts(frame: memoryview) -> list[Any]:
        made = answer(frame)
        if bookie.requests[-1][0] != ADD_ENTRY:
            return made
        kept.extend(made)
        return []

    bookie.answer = keep_receipts  # type: ignore[method-assign]
    other = await cluster.client()
    recovering = asyncio.create_task(other.open_ledger(ledger.ledger_id, recovery=True))
    await eventually(lambda: len(kept) >= recover._WINDOW)
    await asyncio.sleep(0.05)
    assert (in_flight.most, len(kept)) == (recover._WINDOW, recover._WINDOW)
    bookie.answer = answer  # type: ignore[method-assign]
    for connection in bookie.connections:  # those that did not ask pass over it
        connection.transport.writelines(kept)
    reader = await recovering
    assert [bytes(entry.payload) for entry in await reader.read(0, count - 1)] == sent(count)
    assert in_flight.most == recover._WINDOW


async def test_a_recovery_that_finds_one_entry_asks_for_few(
    cluster: FakeCluster, client: BookKeeper, in_flight: InFlight
) -> None:
    ledger = await unconfirmed(client, 1)
    other = await cluster.client()
    reader = await other.open_ledger(ledger.ledger_id, recovery=True)
    assert reader.last_add_confirmed == 0
    assert in_flight.total == 2, "that entry, and the one behind it that nobody wrote"


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of entries that each batch read requests."""
    asked: list[int] = []
    batch_read = BookieConnection.batch_read

    def noting(connection: BookieConnection, ledger_id: int, first: int, max_count: int, max_bytes: int) -> Any:
        asked.append(max_count)
        return batch_read(connection, ledger_id, first, max_count, max_bytes)

    monkeypatch.setattr(BookieConnection, "batch_read", noting)
    return asked


async def test_a_batch_asks_for_so_many_entries(
    client: BookKeeper, batches: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = await unconfirmed(client, 10)
    await ledger.close()
    reader = await client.open_ledger(ledger.ledger_id, recovery=False)
    assert len(await reader.read_batch_unconfirmed(0, 2**40, MIB)) == 10
    assert batches == [fetch.BATCH_COUNT_MAX]
    monkeypatch.setattr(fetch, "BATCH_COUNT_MAX", 4)
    batches.clear()
    assert [bytes(entry.payload) for entry in await reader.read(0, 9)] == sent(10)
    assert batches == [4, 4, 2]


# --------------------------------------------------------------------------------------------- conflicts


class Meddler:
    """Writes the record of a ledger, unchanged, just before a client does."""

    def __init__(self, victim: LedgerStore, own: LedgerStore, is_meant: Callable[[LedgerMetadata], bool]) -> None:
        self.met = 0
        self.left = 1_000
        write = victim.write

        async def meddling(ledger_id: int, metadata: LedgerMetadata, version: int) -> Any:
            if is_meant(metadata) and self.left:
                self.left -= 1
                found = await own.read(ledger_id)
                await own.write(ledger_id, found.metadata, found.version)
                self.met += 1
            return await write(ledger_id, metadata, version)

        victim.write = meddling  # type: ignore[method-assign]

    def leave(self, conflicts: int) -> None:
        """Let *conflicts* more writes conflict."""
        self.met, self.left = 0, conflicts


@pytest.fixture
async def other(cluster: FakeCluster) -> BookKeeper:
    return await cluster.client()


async def test_closing_ends_after_so_many_conflicts(client: BookKeeper, other: BookKeeper) -> None:
    ledger = await unconfirmed(client, 3)
    meddler = Meddler(client.ledgers, other.ledgers, lambda metadata: metadata.is_closed)
    with pytest.raises(MetadataUnavailable, match=f"ledger {ledger.ledger_id}: .* conflicts in a row"):
        await ledger.close()
    assert meddler.met == ledger_record._CONFLICTS_MAX
    meddler.leave(ledger_record._CONFLICTS_MAX - 1)
    assert (await ledger.close()).last_entry_id == 2
    assert meddler.met == ledger_record._CONFLICTS_MAX - 1


@pytest.mark.parametrize("conflicts", [ledger_record._CONFLICTS_MAX - 1, ledger_record._CONFLICTS_MAX + 1])
async def test_an_ensemble_change_ends_after_so_many_conflicts(
    cluster: FakeCluster, client: BookKeeper, other: BookKeeper, conflicts: int
) -> None:
    ledger = await create(client, 1, 1, 1)
    await ledger.add(b"0")
    meddler = Meddler(client.ledgers, other.ledgers, lambda metadata: True)
    meddler.leave(conflicts)
    await cluster.kill(ledger.metadata.last_segment.ensemble[0])
    if conflicts < ledger_record._CONFLICTS_MAX:
        assert await ledger.add(b"1") == 1
        assert meddler.met == conflicts
    else:
        with pytest.raises(MetadataUnavailable, match=f"ledger {ledger.ledger_id}: .* conflicts in a row"):
            await ledger.add(b"1")
        assert meddler.met == ledger_record._CONFLICTS_MAX


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
async def test_a_recovery_ends_after_so_many_conflicts_and_can_be_tried_again(
    client: BookKeeper, other: BookKeeper, state: LedgerState
) -> None:
    ledger = await unconfirmed(client, 3)
    meddler = Meddler(other.ledgers, client.ledgers, lambda metadata: metadata.state is state)
    with pytest.raises(MetadataUnavailable, match=f"ledger {ledger.ledger_id}: .* conflicts in a row"):
        await other.open_ledger(ledger.ledger_id, recovery=True)
    assert meddler.met == recover._CONFLICTS_MAX
    meddler.leave(recover._CONFLICTS_MAX - 1)
    assert (await other.open_ledger(ledger.ledger_id, recovery=True)).last_add_confirmed == 2
    assert meddler.met == recover._CONFLICTS_MAX - 1
