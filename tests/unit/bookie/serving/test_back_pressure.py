"""Limits of one connection and of all together; recovery reads before catch-up reads; many waiting readers."""

import threading
from typing import Any

import pytest

from bookie.serving.protocol import CACHE_FULL
from bookie.serving.server import Limits, Server
from bookie.storage.ledgers import Ledger
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.types import MIB
from tests.support import bookie_requests
from tests.support.bookie_disks import KEY, on_each_operation, stored_entry
from tests.support.bookie_world import add_all
from tests.support.serving import BookieMachines, Wire
from tests.support.waiting import eventually

pytestmark = pytest.mark.both_loops


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


@pytest.mark.parametrize("limits", [{"adds_in_all": 50}, {"add_mib_in_all": 1}])
async def test_the_adds_of_all_connections_together_are_limited(world: BookieMachines, limits: dict[str, Any]) -> None:
    async with world.serving(write_cache_mib=64, **limits) as bookie:
        may_sync = threading.Event()

        def slow(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".txn"):
                may_sync.wait(20)

        stop = on_each_operation(world.files, slow)
        wires = [await Wire.connect(bookie) for _ in range(5)]
        count = 100
        for number, wire in enumerate(wires):
            for entry_id in range(count):
                entry = stored_entry(number, entry_id, b"x" * 10_000)
                wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        server = bookie.server
        await eventually(lambda: len(server.held) == len(wires))
        # Each of them is above the limit by what its chunk brought (256 KiB at most).
        assert server.adds_in_flight < len(wires) * 30 + limits.get("adds_in_all", MIB // 10_000)
        may_sync.set()
        for wire in wires:
            await wire.until(count)
            assert [v2.parse_response(memoryview(frame))[1] for frame in wire.frames] == [0] * count
        assert (server.adds_in_flight, server.add_bytes_in_flight, len(server.held)) == (0, 0, 0)
        stop()


async def test_half_frames_of_all_connections_are_limited_and_others_go_on(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TURN_S", "LOOK_S"):
        monkeypatch.setattr(f"magnetar_core.bookkeeper.wire.unfinished.{name}", 0.02)
    async with world.serving() as bookie:
        unfinished = bookie.server.unfinished
        unfinished.limit_bytes = 3 * MIB
        halves = [await Wire.connect(bookie) for _ in range(12)]
        for half in halves:
            half.send(MIB.to_bytes(4, "big") + bytes(MIB - 100))

        def held() -> list[Any]:
            return [one for one in bookie.server.connections if one.held_for]

        await eventually(lambda: len(held()) >= 8)
        assert sum(one._splitter.held_bytes for one in bookie.server.connections) < 9 * MIB  # type: ignore[attr-defined]
        honest = await Wire.connect(bookie)
        for entry_id in range(5):
            assert await honest.add(stored_entry(1, entry_id, bytes(500_000))) == 0
        for half in halves:
            half.close()
        await eventually(lambda: (unfinished.bytes, held()) == (0, []))


async def test_a_frame_of_which_nothing_comes_ends_its_connection_and_gives_its_memory_back(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar_core.bookkeeper.wire.unfinished.STILL_S", 0.0)
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        wire.send(MIB.to_bytes(4, "big") + bytes(MIB - 100))
        await eventually(lambda: bool(bookie.server.connections))
        (connection,) = bookie.server.connections
        assert await wire.closed()
        assert bookie.server.unfinished.ended == 1
        assert connection._splitter.held_bytes == 0, "not when the garbage collector comes"  # type: ignore[attr-defined]


@pytest.mark.parametrize("limits", [{"adds_per_connection": 50}, {"adds_in_all": 50}, {"add_mib_in_all": 1}])
async def test_adds_that_are_answered_before_they_are_durable_are_limited_like_others(
    world: BookieMachines, limits: dict[str, Any]
) -> None:
    async with world.serving(write_cache_mib=64, **limits) as bookie:
        may_write = threading.Event()

        def slow(kind: str, path: str) -> None:
            if kind == "write" and path.endswith(".txn"):
                may_write.wait(20)

        stop = on_each_operation(world.files, slow)
        wire = await Wire.connect(bookie)
        count = 400
        wire.send(*(_deferred_add(entry_id) for entry_id in range(count)))
        server = bookie.server
        try:
            await eventually(lambda: all(connection.held_for for connection in server.connections))
            # Above the limit by what a chunk brought (256 KiB at most).
            assert server.adds_in_flight < 50 + 2 * 30 + 50
        finally:
            may_write.set()
        await wire.until(count)
        assert [v3.parse_response(memoryview(frame)).status for frame in wire.frames] == [0] * count
        assert (server.adds_in_flight, server.add_bytes_in_flight, len(server.held)) == (0, 0, 0)
        stop()


async def test_adds_that_are_answered_before_they_are_durable_wait_for_room_in_the_write_cache(
    world: BookieMachines,
) -> None:
    async with world.serving(write_cache_mib=2) as bookie:
        may_sync = threading.Event()

        def slow(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".log"):
                may_sync.wait(20)

        stop = on_each_operation(world.files, slow)
        wire = await Wire.connect(bookie)
        count = 400
        wire.send(*(_deferred_add(entry_id) for entry_id in range(count)))
        await wire.until(100)
        try:
            await eventually(lambda: all(connection.held_for & CACHE_FULL for connection in bookie.server.connections))
            assert bookie.server.write_cache.bytes < 2 * MIB
        finally:
            may_sync.set()
        await wire.until(count)
        assert [v3.parse_response(memoryview(frame)).status for frame in wire.frames] == [0] * count
        stop()


async def test_a_fence_does_not_wait_for_room_in_the_write_cache(world: BookieMachines) -> None:
    """It takes none; and who recovers ledgers while a flush is slow sends no adds."""
    async with world.serving(write_cache_mib=2) as bookie:
        wire = await Wire.connect(bookie)
        await wire.add(stored_entry(2, 0))
        may_flush = threading.Event()
        bookie.parts.node.threads.flusher.submit(lambda: may_flush.wait(20), lambda _, error: None)
        cache = bookie.server.write_cache
        cache.swap()
        cache.bytes = 2 * MIB
        assert cache.is_full
        wire.send(v2.read_request(2, 0, v2.FLAG_DO_FENCING, KEY), v2.read_request(2, 0))
        try:
            await wire.until(3)
        finally:
            may_flush.set()


def _deferred_add(entry_id: int) -> bytes:
    entry = stored_entry(1, entry_id, b"x" * 10_000)
    return bookie_requests.add_request(entry_id, 1, entry_id, KEY, entry, write_flags=v3.DEFERRED_SYNC)


async def test_the_reads_of_all_connections_together_are_limited(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        await add_all(bookie, (stored_entry(1, entry_id) for entry_id in range(200)))
    async with world.serving(reads_in_all=40, read_cache_mib=0) as bookie:
        (index,) = world.indexes.values()
        located, may_read = index.locations, threading.Event()

        def slow(
            ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
        ) -> list[tuple[int, int]]:
            may_read.wait(20)
            return located(ledger_id, first_entry_id, count, within_bytes)

        index.locations = slow  # type: ignore[method-assign]
        wires = [await Wire.connect(bookie) for _ in range(4)]
        for wire in wires:
            wire.send(*(v2.read_request(1, entry_id) for entry_id in range(200)))
        await eventually(lambda: len(bookie.server.held) > 0)
        gone = wires.pop()
        gone.close()
        may_read.set()
        for wire in wires:
            await wire.until(200)
            assert len(wire.frames) == 200
        await eventually(lambda: bookie.server.reads_in_flight == 0)
        await eventually(lambda: not bookie.server.held)


async def test_recovery_reads_do_not_wait_behind_catch_up_reads(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for ledger_id in (1, 2):
            assert await wire.add(stored_entry(ledger_id, 0)) == 0
    async with world.serving() as bookie:
        (index,) = world.indexes.values()
        located, may_read = index.locations, threading.Event()

        def slow(
            ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
        ) -> list[tuple[int, int]]:
            if ledger_id == 1:
                may_read.wait(20)
            return located(ledger_id, first_entry_id, count, within_bytes)

        index.locations = slow  # type: ignore[method-assign]
        wire = await Wire.connect(bookie)
        for _ in range(3):  # all readers are busy
            (await Wire.connect(bookie)).send(v2.read_request(1, 0))
        wire.send(v2.read_request(1, 0))
        wire.send(v2.read_request(2, 0, v2.FLAG_DO_FENCING, KEY), v2.read_request(2, 0, v2.FLAG_HIGH_PRIORITY))
        await wire.until(2)
        assert [v2.parse_response(memoryview(frame))[1:4] for frame in wire.frames] == [(0, 2, 0), (0, 2, 0)]
        may_read.set()
        await wire.until(3)


async def test_thousands_of_readers_wait_for_one_ledger(world: BookieMachines) -> None:
    count = 3_000
    async with world.serving() as bookie:
        writer, wire = await Wire.connect(bookie), await Wire.connect(bookie)
        assert await writer.add(stored_entry(1, 0)) == 0
        for txn_id in range(count):
            wire.send(v3.read_request(txn_id, 1, -1, previous_lac=0, timeout_ms=600_000, piggyback=True))
        await eventually(lambda: bookie.server.long_polls == count)
        assert await writer.add(stored_entry(1, 1)) == 0
        assert await writer.add(stored_entry(1, 2)) == 0  # carries LAC 1
        await wire.until(count)
        assert {v3.parse_response(frame).readResponse.maxLAC for frame in wire.frames} == {1}
        assert bookie.server.long_polls == 0


def test_a_waiter_among_many_goes_without_looking_at_the_others() -> None:
    ledger = Ledger(1, KEY)
    waiters = [lambda lac, n=n: heard.append(n) for n in range(20_000)]
    heard: list[int] = []
    for waiter in waiters:
        ledger.wait(waiter)
    for waiter in reversed(waiters[10:]):
        ledger.stop_waiting(waiter)
    ledger.stop_waiting(waiters[-1])
    ledger.wake(5)
    assert heard == list(range(10))


def test_limits_of_zero_are_none() -> None:
    limits = Limits(MIB)._replace(adds_in_all=0, add_bytes_in_all=0, reads_in_all=0)
    server = Server.__new__(Server)
    server.limits = limits
    server.adds_in_flight = server.add_bytes_in_flight = server.reads_in_flight = 10**9
    assert not server.has_too_many_adds
    assert not server.has_too_many_reads
