"""Copies of auto-recovery give way to what clients write."""

import threading
from collections.abc import Callable

import pytest

from bookie.serving.protocol import ALL_ADDS, RECOVERY_TURN
from bookie.serving.recovery_lane import BULK_BYTES, FOREGROUND_S, REST_S_MAX, REST_SHARE, RecoveryLane
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.runtime.types import KIB, Buffer
from tests.support import bookie_requests
from tests.support.bookie_disks import KEY, on_each_operation, stored_entry
from tests.support.manual_clock import ManualClock
from tests.support.serving import BookieMachines, Wire
from tests.support.waiting import eventually, settle

CHUNK = 256 * KIB


class Socket:
    """A `Peer` that only remembers why it is held."""

    def __init__(self) -> None:
        self.held_for = 0

    def hold(self, reason: int) -> None:
        self.held_for |= reason

    def go_on(self, reason: int) -> None:
        self.held_for &= ~reason

    def send(self, answer: Buffer) -> None: ...

    def abort(self) -> None: ...


class Lane:
    """A lane of a bookie that clients write to, by a clock that the test moves."""

    def __init__(self, rest_s_max: float = REST_S_MAX) -> None:
        self.clock = ManualClock()
        self.clock.advance(100.0)
        self.lane = RecoveryLane(self.clock, rest_s_max)
        self.client_adds()

    def client_adds(self) -> None:
        self.lane.foreground_s = self.clock.monotonic()

    def chunk(self, socket: Socket, size: int = CHUNK) -> bool:
        return self.lane.took(socket, size, self.clock.monotonic())

    def confirm(self, took_s: float) -> None:
        self.clock.advance(took_s)
        self.lane.answered(took_s, self.clock.monotonic())

    async def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        await settle()


@pytest.fixture
def bench() -> Lane:
    return Lane()


async def test_beside_a_client_the_next_chunk_waits_for_a_multiple_of_what_the_last_one_took(bench: Lane) -> None:
    socket = Socket()
    assert bench.chunk(socket)
    assert socket.held_for == RECOVERY_TURN
    took_s = REST_S_MAX / REST_SHARE / 2
    bench.confirm(took_s)
    await bench.wait(took_s * REST_SHARE * 0.9)
    assert socket.held_for
    await bench.wait(took_s * REST_SHARE * 0.2)
    assert not socket.held_for
    assert len(bench.lane) == 0


async def test_on_a_slow_disk_the_rest_is_short_against_what_a_client_waits(bench: Lane) -> None:
    socket = Socket()
    assert bench.chunk(socket)
    bench.confirm(0.5)
    await bench.wait(REST_S_MAX * 1.01)
    assert not socket.held_for


async def test_connections_take_turns_one_after_the_other(bench: Lane) -> None:
    sockets = [Socket() for _ in range(3)]
    assert all(map(bench.chunk, sockets))
    took_s = REST_S_MAX / REST_SHARE / 2
    bench.confirm(took_s)
    bench.confirm(0.0)
    for left in (2, 1, 0):
        await bench.wait(REST_SHARE * took_s / 2 * 1.01)
        assert [bool(one.held_for) for one in sockets] == [False] * (3 - left) + [True] * left


async def test_several_connections_rest_half_as_long(bench: Lane) -> None:
    socket = Socket()
    assert bench.chunk(socket)
    assert bench.lane.rest_after(1.0, bench.clock.monotonic()) == REST_S_MAX
    assert bench.chunk(Socket())
    assert bench.lane.rest_after(1.0, bench.clock.monotonic()) == REST_S_MAX / 2
    assert bench.chunk(Socket())
    assert bench.lane.rest_after(1.0, bench.clock.monotonic()) == REST_S_MAX / 2, "clients come first all the same"


async def test_without_clients_nothing_is_held(bench: Lane) -> None:
    socket = Socket()
    bench.clock.advance(FOREGROUND_S * 1.01)
    assert not bench.chunk(socket)
    assert not socket.held_for
    bench.client_adds()
    assert bench.chunk(socket)
    bench.clock.advance(FOREGROUND_S * 1.01)
    bench.confirm(0.01)
    await bench.wait(0.0)
    assert not socket.held_for, "the client has gone meanwhile"


async def test_a_few_recovery_adds_are_not_held(bench: Lane) -> None:
    socket = Socket()
    assert not bench.chunk(socket, BULK_BYTES - 1)
    assert bench.chunk(socket, BULK_BYTES)


async def test_a_connection_that_is_gone_leaves_its_place_to_the_next(bench: Lane) -> None:
    gone, other = Socket(), Socket()
    assert bench.chunk(gone)
    assert bench.chunk(other)
    bench.lane.discard(gone)
    bench.lane.discard(Socket())
    bench.confirm(0.001)
    await bench.wait(REST_S_MAX)
    assert not other.held_for
    bench.confirm(0.001)  # nobody waits for it
    await bench.wait(REST_S_MAX)
    assert len(bench.lane) == 0


async def test_other_reasons_to_hold_a_connection_stay(bench: Lane) -> None:
    socket = Socket()
    socket.hold(ALL_ADDS)
    assert bench.chunk(socket)
    assert not bench.chunk(socket), "it waits for its turn already"
    bench.confirm(0.001)
    await bench.wait(REST_S_MAX)
    assert socket.held_for == ALL_ADDS


# ------------------------------------------------------------------------------------------ a whole bookie


def copy_v2(entry: bytes) -> bytes:
    return v2.add_request_head(v2.FLAG_RECOVERY_ADD, KEY, len(entry)) + entry


def copy_v3(entry: bytes) -> bytes:
    ledger_id, entry_id = v2.entry_ids(entry)
    return bookie_requests.add_request(entry_id, ledger_id, entry_id, KEY, entry, recovery=True)


@pytest.mark.parametrize("copy", [copy_v2, copy_v3])
async def test_all_copies_are_taken_beside_a_client_and_its_own_connection_is_never_held(
    copy: Callable[[bytes], bytes],
) -> None:
    world = BookieMachines()
    async with world.serving(write_cache_mib=64) as bookie:
        lane = bookie.server.recovery_lane
        seen: list[int] = []
        client, worker = await Wire.connect(bookie), await Wire.connect(bookie)
        stop = on_each_operation(world.files, lambda kind, path: seen.append(len(lane)))
        worker.send(*(copy(stored_entry(7, entry_id, b"c" * 10_000)) for entry_id in range(100)))
        for entry_id in range(100):
            assert await client.add(stored_entry(1, entry_id, b"x")) == 0
        await worker.until(100)
        assert len(worker.frames) == 100
        assert max(seen) == 1
        await eventually(lambda: len(lane) == 0)
        stop()


async def test_a_client_that_recovers_a_ledger_on_its_own_connection_is_not_held() -> None:
    world = BookieMachines()
    async with world.serving(write_cache_mib=64) as bookie:
        client = await Wire.connect(bookie)
        assert await client.add(stored_entry(1, 0)) == 0
        may_sync = threading.Event()

        def slow(kind: str, path: str) -> None:
            if kind == "sync":
                may_sync.wait(20)

        stop = on_each_operation(world.files, slow)
        client.send(*(copy_v2(stored_entry(7, entry_id, b"c" * 10_000)) for entry_id in range(20)))
        await eventually(lambda: bookie.server.adds_in_flight == 20)
        assert len(bookie.server.recovery_lane) == 0
        may_sync.set()
        await client.until(20)
        stop()


def test_copies_do_not_give_way_where_the_setting_says_so() -> None:
    bench, socket = Lane(rest_s_max=0), Socket()
    assert not bench.chunk(socket)
    assert not socket.held_for
    assert bench.lane.rest_after(1.0, bench.clock.monotonic()) == 0
