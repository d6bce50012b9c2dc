"""Limits of a bookie for adds, reads and answers of its clients, exceeded. See docs/limits.md."""

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.serving.cold_reads import ColdRead, ColdReads
from bookie.serving.connection import Connection
from bookie.serving.request_rules import EXPLICIT_LAC_BYTES_MAX
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from tests.support import bookie_requests as sent
from tests.support.bookie_disks import KEY, on_each_operation, stored_entry
from tests.support.bookie_world import add_all
from tests.support.crash_images import StepThread
from tests.support.serving import BookieMachines, Wire
from tests.support.transports import NotingTransport
from tests.support.waiting import eventually


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


def add_frame(entry: bytes) -> bytes:
    return v2.add_request_head(0, KEY, len(entry)) + entry


def only_connection(bookie: Bookie) -> Connection:
    (connection,) = bookie.server.connections
    assert isinstance(connection, Connection)
    return connection


def is_held(bookie: Bookie) -> bool:
    """Whether the server has stopped reading its only connection."""
    return only_connection(bookie).held_for != 0


class Gate:
    """Blocks a thread of the bookie at each call until `let_pass` is called once more. At the end all calls pass."""

    def __init__(self) -> None:
        self._passes = threading.Semaphore(0)
        self.entered = 0

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *error: object) -> None:
        self._passes.release(10_000)

    def hold(self) -> None:
        self.entered += 1
        self._passes.acquire(timeout=20)

    def let_pass(self) -> None:
        self._passes.release()


# -- adds and reads without an answer


async def test_the_bytes_of_unanswered_adds_hold_a_connection_until_half_are_answered(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        bookie.server.limits = bookie.server.limits._replace(add_bytes=1000)
        wire = await Wire.connect(bookie)
        entries = [stored_entry(1, entry_id, bytes(560)) for entry_id in range(2)]
        with Gate() as syncs:
            stop = on_each_operation(world.files, lambda kind, path: syncs.hold() if kind == "sync" else None)
            wire.send(add_frame(entries[0]))  # a group of its own
            await eventually(lambda: syncs.entered == 1)
            assert not is_held(bookie)
            wire.send(add_frame(entries[1]))
            await eventually(lambda: bookie.server.adds_in_flight == 2)
            assert is_held(bookie)
            wire.send(v2.read_request(1, 0))  # which memory could answer
            syncs.let_pass()
            await wire.until(1)
            assert is_held(bookie), "more than half are without an answer"
            await eventually(lambda: syncs.entered == 2)
            syncs.let_pass()
            await wire.until(3)
            stop()
        answers = [v2.parse_response(memoryview(frame)) for frame in wire.frames]
        assert [answer[:4] for answer in answers] == [(1, 0, 1, 0), (1, 0, 1, 1), (2, 0, 1, 0)]
        assert not is_held(bookie)


@pytest.mark.parametrize("kind", ["explicit LAC", "fence"])
async def test_other_requests_that_wait_for_the_journal_hold_a_connection_as_adds_do(
    world: BookieMachines, kind: str
) -> None:
    def request(number: int) -> bytes:
        if kind == "explicit LAC":
            blob = number.to_bytes(8) + bytes(8)
            return sent.write_lac_request(number, number, 0, KEY, blob)
        return v2.read_request(number, 0, v2.FLAG_DO_FENCING, KEY)

    async with world.serving() as bookie:
        bookie.server.limits = bookie.server.limits._replace(adds=2)
        wire = await Wire.connect(bookie)
        with Gate() as syncs:
            stop = on_each_operation(world.files, lambda kind, path: syncs.hold() if kind == "sync" else None)
            wire.send(request(1))
            await eventually(lambda: syncs.entered == 1)
            assert not is_held(bookie)
            wire.send(request(2))
            await eventually(lambda: is_held(bookie))
            syncs.let_pass()
            await wire.until(1)
            await eventually(lambda: not is_held(bookie))
            stop()
        await wire.until(2)
        assert bookie.server.adds_in_flight == bookie.server.add_bytes_in_flight == 0


async def test_an_explicit_lac_has_a_limit(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        blob = (1).to_bytes(8) + bytes(EXPLICIT_LAC_BYTES_MAX - 8)
        assert (await wire.ask_v3(sent.write_lac_request(1, 1, 0, KEY, blob))).status == 0
        assert (await wire.ask_v3(sent.write_lac_request(2, 1, 0, KEY, blob + b"x"))).status == pb.StatusCode.EBADREQ


async def test_the_unanswered_reads_of_a_connection_hold_it(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        await add_all(bookie, (stored_entry(1, entry_id) for entry_id in range(100)))
    async with world.serving(reads_per_connection=10, read_cache_mib=0) as bookie:
        (index,) = world.indexes.values()
        located, wire = index.locations, await Wire.connect(bookie)
        with Gate() as scans:

            def slow(
                ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
            ) -> list[tuple[int, int]]:
                scans.hold()
                return located(ledger_id, first_entry_id, count, within_bytes)

            index.locations = slow  # type: ignore[method-assign]
            wire.send(*(v2.read_request(1, entry_id) for entry_id in range(100)))
            server = bookie.server
            # Ten on their way to the disk, ten behind them; the others were not looked at.
            await eventually(lambda: server.counters.reads >= 20 and scans.entered)
            assert (server.counters.reads, server.reads_in_flight) == (20, 10)
            assert is_held(bookie)
        await wire.until(100)
        answers = [v2.parse_response(memoryview(frame))[1:4] for frame in wire.frames]
        assert answers == [(0, 1, entry_id) for entry_id in range(100)]


async def test_so_many_reads_are_one_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.serving.cold_reads.JOB_READS_MAX", 4)
    thread, jobs = StepThread(), []
    answered: list[int] = []
    reader: Any = thread
    reads = ColdReads(reader, lambda: True, lambda: None)
    for number in range(10):
        reads.add(ColdRead(lambda _: (None, 0), lambda *_, number=number: answered.append(number)))
    await asyncio.sleep(0)
    while thread.waiting:
        before = len(answered)
        thread.step()
        jobs.append(len(answered) - before)
    assert (jobs, answered) == ([4, 4, 2], list(range(10)))


async def test_a_list_of_entries_is_read_in_several_jobs(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.storage.ledger_storage.LIST_ENTRIES", 4)
    async with world.serving() as bookie:
        await add_all(bookie, (stored_entry(1, entry_id) for entry_id in range(10)))
    async with world.serving() as bookie:
        (index,) = world.indexes.values()
        located, scans = index.locations, []

        def noting(
            ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
        ) -> list[tuple[int, int]]:
            scans.append((first_entry_id, count))
            return located(ledger_id, first_entry_id, count, within_bytes)

        index.locations = noting  # type: ignore[method-assign]
        wire = await Wire.connect(bookie)
        jobs = bookie.server.counters.cold_reads
        answer = await wire.ask_v3(v3.list_of_entries_request(1, 1))
        groups = v3.decode_availability(answer.getListOfEntriesOfLedgerResponse.availabilityOfEntriesOfLedger)
        assert [n for n in range(12) if v3.is_available(groups, n)] == list(range(10))
        assert scans == [(0, 4), (4, 4), (8, 4)]
        assert bookie.server.counters.cold_reads - jobs == 3


async def test_a_read_brings_so_many_entries_along(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        await add_all(bookie, (stored_entry(1, entry_id) for entry_id in range(20)))
    async with world.serving(read_ahead_entries=5) as bookie:
        wire = await Wire.connect(bookie)
        for entry_id in range(20):
            assert await wire.read(1, entry_id) == stored_entry(1, entry_id)
        assert bookie.server.counters.cold_reads == 4


# -- answers


async def test_large_answers_of_one_turn_are_not_joined(world: BookieMachines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.serving.connection.JOIN_BYTES", 300)
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for entry_id, size in ((0, 10), (1, 400)):
            assert await wire.add(stored_entry(1, entry_id, bytes(size))) == 0
        connection: Any = only_connection(bookie)
        connection._transport = told = NotingTransport(connection._transport)
        for entry_id, size in ((0, 10), (1, 400)):
            assert await wire.read(1, entry_id) == stored_entry(1, entry_id, bytes(size))
        small, large = told.writes
        assert len(small) == 1
        assert large[1:] == [len(stored_entry(1, 1, bytes(400)))]


# -- connections


@contextlib.contextmanager
def connecting(address: tuple[str, int], count: int) -> Iterator[list[socket.socket]]:
    made = [socket.socket() for _ in range(count)]
    try:
        for one in made:
            one.setblocking(False)
            one.connect_ex(address)
        yield made
    finally:
        for one in made:
            one.close()


def connected(sockets: Sequence[socket.socket]) -> int:
    return len(select.select([], sockets, [], 0)[1])


async def test_connections_beyond_the_backlog_come_when_the_others_were_accepted(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.bookie.ACCEPT_BACKLOG", 2)
    async with world.serving() as bookie:
        # This thread is the bookie's, so nobody accepts them before it waits. The system lets one more in than told.
        with connecting(bookie.address, 5) as sockets:
            assert connected(sockets) == 3
            await eventually(lambda: connected(sockets) == 5)
            await eventually(lambda: len(bookie.server.connections) == 5)
