"""A whole bookie over a disk in memory, with clients on real sockets."""

import asyncio
import errno
import logging
import os
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from bookie.bookie import Bookie, PortInUse, StorageFailed
from bookie.disks.cookie import CookieMismatch
from bookie.disks.directories import FIRST_LEDGER, DirectoryInUse
from bookie.serving.connection import Connection
from bookie.storage.journal.format import PLACE_FILE
from bookie.storage.journal.writer import JournalFailed
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.files import read_file, replace_file
from magnetar_core.runtime.types import MIB, Corruption
from tests.support import bookie_requests as sent
from tests.support.bookie_disks import CODEC, KEY, OTHER_KEY, on_each_operation, stored_entry
from tests.support.serving import CONFIG, BookieMachines, HurriedClock, Wire
from tests.support.waiting import eventually

FENCE, RECOVERY, HIGH = v2.FLAG_DO_FENCING, v2.FLAG_RECOVERY_ADD, v2.FLAG_HIGH_PRIORITY
EIO, EFENCED, EREADONLY = 101, 104, 105
EUA_V3 = 502

LEDGER = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, segments=(Segment(0, ("bookie-1",)),)
)


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


@pytest.fixture
async def bookie(world: BookieMachines) -> AsyncIterator[Bookie]:
    async with world.serving() as bookie:
        yield bookie


@pytest.fixture
async def wire(bookie: Bookie) -> AsyncIterator[Wire]:
    wire = await Wire.connect(bookie)
    yield wire
    wire.close()


def noted(operations: list[str]) -> Callable[[str, str], None]:
    """Notes what is done with the files of the journal; how far it was synced is written behind each sync."""

    def note(kind: str, path: str) -> None:
        if not path.endswith(f"/{PLACE_FILE}"):
            operations.append(kind)

    return note


# -- durability and restarts


async def test_nothing_is_answered_before_it_is_synced(world: BookieMachines, wire: Wire) -> None:
    operations: list[str] = []
    stop = on_each_operation(world.files, noted(operations))
    assert await wire.add(stored_entry(1, 0, b"a")) == 0
    stop()
    assert operations == ["write", "sync"]


async def test_entries_fences_and_lacs_survive_restarts(world: BookieMachines) -> None:
    for life in range(3):
        async with world.serving() as bookie:
            wire = await Wire.connect(bookie)
            for entry_id in range(life * 10):
                assert await wire.read(1, entry_id) == stored_entry(1, entry_id, b"p")
            if life:
                assert await wire.read(1, v2.LAST_ENTRY) == stored_entry(1, life * 10 - 1, b"p")
                assert await wire.add(stored_entry(2, 0)) == EFENCED
                assert await wire.read(2, 0) == 2
                assert await wire.read(2, -1) == 2
            assert await wire.read(1, life * 10) == (2 if life else 1)
            for entry_id in range(life * 10, life * 10 + 10):
                assert await wire.add(stored_entry(1, entry_id, b"p")) == 0
            assert (await wire.ask(v2.read_request(2, -1, FENCE, KEY)))[1] == 2
            wire.close()


async def test_a_key_cannot_be_changed_by_a_restart(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == 0
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 1), key=OTHER_KEY) == 102


async def test_many_entries_are_flushed_and_read_back_in_any_order(world: BookieMachines) -> None:
    async with world.serving(write_cache_mib=1, read_cache_mib=0, frame_bytes_max=MIB, log_bytes_max=MIB) as bookie:
        wire = await Wire.connect(bookie)
        entries = {(1 + n % 3, n): stored_entry(1 + n % 3, n, b"%d" % n * 500) for n in range(1500)}
        for entry in entries.values():
            wire.send(v2.add_request_head(0, KEY, len(entry)), entry)
        await wire.until(len(entries))
        assert bookie.checkpointer.flushes > 2
        wire.frames.clear()
        reads = [key for n in range(7) for key in list(entries)[n::7]]
        for key in reads:
            wire.send(v2.read_request(*key))
        await wire.until(len(reads))
        for frame in wire.frames:
            _, rc, ledger_id, entry_id, body, _ = v2.parse_response(memoryview(frame))
            assert rc == 0
            assert isinstance(body, memoryview)
            assert bytes(body) == entries.pop((ledger_id, entry_id))
        assert not entries
        assert bookie.server.counters.cold_reads > 0


async def test_adds_wait_while_both_halves_of_the_cache_are_full(world: BookieMachines) -> None:
    async with world.serving(write_cache_mib=1, log_bytes_max=6 * MIB) as bookie:
        started = asyncio.Event()
        go_on: list[bool] = []

        def slow_log(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".log"):
                loop.call_soon_threadsafe(started.set)
                while not go_on:
                    time.sleep(0.002)

        loop = asyncio.get_running_loop()
        stop = on_each_operation(world.files, slow_log)
        wire = await Wire.connect(bookie)
        entries = [stored_entry(1, n, b"x" * 10_000) for n in range(300)]

        async def send() -> None:
            for entry in entries:
                wire.send(v2.add_request_head(0, KEY, len(entry)), entry)
                await wire.writer.drain()

        sending = asyncio.create_task(send())
        await started.wait()
        server = bookie.server
        await eventually(lambda: server.write_cache.is_full)
        await asyncio.sleep(0.05)
        assert server.write_cache.bytes < 2 * MIB  # the half and one chunk, not all that was sent
        go_on.append(True)
        await wire.until(300)
        await sending
        assert len(wire.frames) == 300
        assert all(v2.parse_response(memoryview(frame))[1] == 0 for frame in wire.frames)
        stop()


async def test_an_add_of_an_existing_entry_wins_over_what_was_cached(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0, b"first")) == 0
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"first")  # from disk, cached now
        assert await wire.add(stored_entry(1, 0, b"again"), RECOVERY) == 0
        assert await wire.read(1, 0) == stored_entry(1, 0, b"again")
        bookie.checkpointer.flush()
        await eventually(lambda: bookie.server.write_cache.is_empty)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"again")


async def test_negative_ids_and_stubs_of_entries_are_refused(wire: Wire) -> None:
    assert await wire.add(stored_entry(1, -4096, b"")) == 100
    assert await wire.add(stored_entry(-1, 0, b"")) == 100
    assert await wire.add(stored_entry(1, 0)[:31]) == 100
    assert await wire.read(1, 0) == 1


# -- fencing


async def test_every_fence_reply_waits_for_its_record(world: BookieMachines, bookie: Bookie) -> None:
    wire = await Wire.connect(bookie)
    operations: list[str] = []
    stop = on_each_operation(world.files, noted(operations))
    for ledger_id, entry_id in ((50, v2.LAST_ENTRY), (51, 7)):  # absent ledgers: a negative answer waits as well
        operations.clear()
        assert (await wire.ask(v2.read_request(ledger_id, entry_id, FENCE, KEY)))[1] == 2
        assert operations == ["write", "sync"]
        operations.clear()
        assert (await wire.ask(v2.read_request(ledger_id, entry_id, FENCE, KEY)))[1] == 2
        assert operations == []
    stop()


async def test_adds_that_came_before_a_fence_in_one_chunk_are_answered(wire: Wire) -> None:
    entry, late = stored_entry(1, 0, b"x"), stored_entry(1, 1, b"y")
    wire.send(
        v2.add_request_head(0, KEY, len(entry)) + entry,
        v2.read_request(1, v2.LAST_ENTRY, FENCE, KEY),
        v2.add_request_head(0, KEY, len(late)) + late,
        v2.add_request_head(RECOVERY, KEY, len(late)) + late,
    )
    await wire.until(4)
    answers = sorted(v2.parse_response(memoryview(frame))[:4] for frame in wire.frames)
    assert answers == [(1, 0, 1, 0), (1, 0, 1, 1), (1, EFENCED, 1, 1), (2, 0, 1, -1)]


# -- the third protocol


async def test_deferred_entries_become_durable_by_force(world: BookieMachines, bookie: Bookie) -> None:
    wire = await Wire.connect(bookie)
    operations: list[str] = []
    stop = on_each_operation(world.files, noted(operations))
    body = stored_entry(1, 0, b"d")
    answer = await wire.ask_v3(sent.add_request(1, 1, 0, KEY, body, write_flags=v3.DEFERRED_SYNC))
    assert answer.status == 0
    assert operations == ["write"]
    assert (await wire.ask_v3(sent.force_ledger_request(2, 1))).status == 0
    assert operations == ["write", "sync"]
    stop()


async def test_a_body_under_other_ids_than_its_request_is_refused(bookie: Bookie) -> None:
    wire = await Wire.connect(bookie)
    answer = await wire.ask_v3(sent.add_request(1, 1, 5, KEY, stored_entry(1, 0)))
    assert int(answer.status) == v3.V3Error.EBADREQ


@pytest.mark.parametrize("size", [0, 19, 21, 1_000_000])
async def test_a_master_key_has_twenty_bytes(bookie: Bookie, size: int) -> None:
    """A master key is kept as long as its ledger, in memory and in the index."""
    wire = await Wire.connect(bookie)
    answer = await wire.ask_v3(sent.add_request(1, 1, 0, b"k" * size, stored_entry(1, 0)))
    assert answer.status == EUA_V3
    assert (await wire.ask_v3(sent.add_request(3, 1, 0, KEY, stored_entry(1, 0)))).status == 0, "nothing is left"
    assert (await wire.ask_v3(sent.add_request(2, 1, 1, b"k" * size, stored_entry(1, 1)))).status == EUA_V3


async def test_long_polls_are_woken_by_news_and_by_the_fence(bookie: Bookie) -> None:
    wire, other = await Wire.connect(bookie), await Wire.connect(bookie)
    assert await other.add(stored_entry(1, 0)) == 0
    assert await other.add(stored_entry(1, 1)) == 0
    wire.send(v3.read_request(1, 1, -1, previous_lac=0, timeout_ms=60_000, piggyback=True))
    await eventually(lambda: bookie.server.long_polls == 1)
    assert await other.add(stored_entry(1, 2)) == 0  # carries LAC 1
    answer = v3.parse_response(await wire.next()).readResponse
    assert (answer.entryId, answer.maxLAC, answer.body) == (1, 1, stored_entry(1, 1))
    assert answer.lacUpdateTimestamp > 0
    wire.send(v3.read_request(2, 1, -1, previous_lac=1, timeout_ms=60_000, piggyback=True))
    await eventually(lambda: bookie.server.long_polls == 1)
    await other.ask(v2.read_request(1, -1, FENCE, KEY))
    answer = v3.parse_response(await wire.next()).readResponse
    assert (answer.status, answer.maxLAC, answer.HasField("body")) == (0, 1, False)
    assert bookie.server.long_polls == 0


async def test_a_long_poll_of_a_ledger_that_was_fenced_before_waits(bookie: Bookie) -> None:
    """Readers ask again as soon as they are answered; the ledger may be fenced for long before somebody closes it."""
    wire, other = await Wire.connect(bookie), await Wire.connect(bookie)
    assert await other.add(stored_entry(1, 0)) == 0
    await other.ask(v2.read_request(1, -1, FENCE, KEY))
    wire.send(v3.read_request(1, 1, -1, previous_lac=0, timeout_ms=60_000, piggyback=True))
    await eventually(lambda: bookie.server.long_polls == 1)
    assert await other.add(stored_entry(1, 2), RECOVERY) == 0  # carries LAC 1
    answer = v3.parse_response(await wire.next()).readResponse
    assert (answer.status, answer.maxLAC) == (0, 1)


async def test_long_polls_of_a_lost_connection_are_forgotten(bookie: Bookie) -> None:
    wire = await Wire.connect(bookie)
    assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == 0
    wire.send(v3.read_request(1, 1, -1, previous_lac=5, timeout_ms=60_000, piggyback=True))
    await eventually(lambda: bookie.server.long_polls == 1)
    wire.close()
    await eventually(lambda: bookie.server.long_polls == 0)


async def test_the_lac_of_a_ledger_from_an_earlier_life_is_read_from_disk(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for entry_id in range(5):
            assert await wire.add(stored_entry(1, entry_id)) == 0
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        answer = (await wire.ask_v3(v3.read_request(1, 1, 0))).readResponse
        assert (answer.maxLAC, answer.body) == (3, stored_entry(1, 0))
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        lac = (await wire.ask_v3(sent.read_lac_request(1, 1))).readLacResponse
        assert (lac.lastEntryBody, lac.HasField("lacBody")) == (stored_entry(1, 4), False)
        blob = CODEC.explicit_lac(1, 4)
        assert (await wire.ask_v3(sent.write_lac_request(2, 1, 4, KEY, blob))).status == 0
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert (await wire.ask_v3(sent.read_lac_request(1, 1))).readLacResponse.lacBody == blob
        listed = (await wire.ask_v3(v3.list_of_entries_request(2, 1))).getListOfEntriesOfLedgerResponse
        groups = v3.decode_availability(listed.availabilityOfEntriesOfLedger)
        assert [n for n in range(9) if v3.is_available(groups, n)] == [0, 1, 2, 3, 4]


# -- batch reads


@pytest.mark.parametrize("restart", [False, True])
async def test_batch_reads_stop_at_gaps_and_limits(world: BookieMachines, restart: bool) -> None:
    present = [0, 1, 2, 3, 5, 6]
    entries = {entry_id: stored_entry(1, entry_id, b"x" * 100) for entry_id in present}
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for entry in entries.values():
            assert await wire.add(entry) == 0
        if not restart:
            await check_batches(wire, entries)
    if restart:
        async with world.serving() as bookie:
            await check_batches(await Wire.connect(bookie), entries)


async def check_batches(wire: Wire, entries: dict[int, bytes]) -> None:
    size = len(entries[0]) + 4
    for first, max_count, max_bytes, expected in (
        (0, 0, MIB, [0, 1, 2, 3]),
        (0, 2, MIB, [0, 1]),
        (1, -1, MIB, [1, 2, 3]),
        (0, 0, 36 + 2 * size, [0, 1]),
        (0, 0, 36 + 2 * size - 1, [0]),
        (5, 10, 2**60, [5, 6]),
    ):
        _, rc, _, _, body, request_id = await wire.ask(v2.batch_read_request(1, first, 7, max_count, max_bytes))
        assert (rc, request_id) == (0, 7)
        assert isinstance(body, list)
        assert [bytes(entry) for entry in body] == [entries[entry_id] for entry_id in expected]
    assert (await wire.ask(v2.batch_read_request(1, 4, 7, 10, MIB)))[1] == 2


# -- what goes wrong


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_journal_that_cannot_be_written_ends_the_bookie(world: BookieMachines, kind: str) -> None:
    async with world.serving() as bookie:
        wire, idle = await Wire.connect(bookie), await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0

        def fail(what: str, path: str) -> None:
            if what == kind and path.endswith(".txn"):
                raise OSError(errno.EIO, "broken disk", path)

        stop = on_each_operation(world.files, fail)
        entry = stored_entry(1, 1)
        wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        assert await wire.closed()
        assert len(wire.frames) == 1  # the lost add was not answered
        assert await idle.closed()
        assert isinstance(bookie.failure, JournalFailed)
        assert "broken disk" in str(bookie.failure)
        assert world.failures == [bookie.failure]
        await eventually(lambda: children(world, "/ledgers/available") == {"readonly"})
        stop()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 0) == stored_entry(1, 0)


async def test_a_flush_that_fails_ends_the_bookie_and_moves_no_mark(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0

        def fail(what: str, path: str) -> None:
            if what == "sync" and path.endswith(".log"):
                raise OSError(errno.EIO, "broken disk", path)

        stop = on_each_operation(world.files, fail)
        bookie.checkpointer.flush()
        await eventually(lambda: bookie.failure is not None)
        assert isinstance(bookie.failure, StorageFailed)
        stop()
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 0) == stored_entry(1, 0)


async def test_a_full_disk_makes_the_bookie_read_only_until_there_is_room(world: BookieMachines) -> None:
    world.clock = HurriedClock()
    async with world.serving(reserve_mib=1, write_cache_mib=1, disk_check_interval_ms=1000) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0, b"kept")) == 0
        used = (1 << 40) - world.files.usage("/").free_bytes
        world.files.capacity_bytes = used  # not one byte more
        assert await wire.add(stored_entry(1, 1, b"x" * 5000)) == EREADONLY
        assert bookie.is_read_only
        assert world.failures == []
        # Fences are still taken (the reserve is for that), reads go on.
        assert (await wire.ask(v2.read_request(9, -1, FENCE, KEY)))[1] == 2
        assert await wire.read(1, 0) == stored_entry(1, 0, b"kept")
        assert await wire.add(stored_entry(1, 1)) == EREADONLY
        await eventually(lambda: "bookie-1" in children(world, "/ledgers/available/readonly"))
        world.files.capacity_bytes = None
        await eventually(lambda: not bookie.is_read_only)
        assert await wire.add(stored_entry(1, 1)) == 0
        assert await wire.add(stored_entry(9, 0)) == EFENCED
        await eventually(lambda: "bookie-1" not in children(world, "/ledgers/available/readonly"))
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 1) == stored_entry(1, 1)
        assert await wire.add(stored_entry(9, 0)) == EFENCED


async def test_a_flush_without_space_is_repeated_when_there_is_room(world: BookieMachines) -> None:
    world.clock = HurriedClock()
    async with world.serving(write_cache_mib=1, disk_check_interval_ms=1000) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0, b"kept")) == 0

        def fail(what: str, path: str) -> None:
            if what == "write" and path.endswith(".log"):
                raise OSError(errno.ENOSPC, "no space", path)

        stop = on_each_operation(world.files, fail)
        bookie.checkpointer.flush()
        await eventually(lambda: bookie.is_read_only)
        assert bookie.checkpointer.flush_failures >= 1
        assert await wire.read(1, 0) == stored_entry(1, 0, b"kept")
        stop()
        await eventually(lambda: not bookie.is_read_only)
        await eventually(lambda: bookie.server.write_cache.is_empty)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"kept")


async def test_a_location_that_leads_elsewhere_is_an_error_and_not_an_absence(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).add(stored_entry(1, 0)) == 0
    async with world.serving() as bookie:
        (index,) = world.indexes.values()
        index.put_locations([(1, 0, index.location(1, 0) + 1)])
        assert await (await Wire.connect(bookie)).read(1, 0) == EIO


@pytest.mark.parametrize(
    "data",
    ["00502802", "ffffffff", "00000000", "00000004deadbeef", "0000000402040000", "000000020a05"],
)
async def test_what_cannot_be_read_ends_its_connection_and_no_other(
    bookie: Bookie, caplog: pytest.LogCaptureFixture, data: str
) -> None:
    wire, bad = await Wire.connect(bookie), await Wire.connect(bookie)
    with caplog.at_level(logging.WARNING):
        bad.send(bytes.fromhex(data))
        assert await bad.closed()
    assert [record for record in caplog.records if "closing the connection of" in record.message]
    assert await wire.add(stored_entry(1, 0)) == 0


async def test_adds_before_a_malformed_frame_of_the_same_chunk_are_journaled(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        bad = await Wire.connect(bookie)
        entry = stored_entry(1, 0)
        bad.send(v2.add_request_head(0, KEY, len(entry)) + entry + bytes.fromhex("0000000402040000"))
        assert await bad.closed()
        await eventually(lambda: bookie.server.counters.adds == 1)
        assert await (await Wire.connect(bookie)).read(1, 0) == entry


@pytest.mark.both_loops
async def test_a_small_answer_leaves_at_once_whatever_the_peer_has_acknowledged(bookie: Bookie, wire: Wire) -> None:
    assert await wire.add(stored_entry(1, 0)) == 0
    (connection,) = bookie.server.connections
    assert isinstance(connection, Connection)
    with socket.socket(fileno=os.dup(connection._transport.get_extra_info("socket").fileno())) as accepted:
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_a_peer_that_reads_no_answers_is_not_read_either(bookie: Bookie) -> None:
    wire = await Wire.connect(bookie)
    entry = stored_entry(1, 0, b"x" * 500_000)
    assert await wire.add(entry) == 0
    slow = await Wire.connect(bookie)
    receives = slow.writer.get_extra_info("socket")
    receives.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)  # by itself it would take megabytes
    count = 40
    slow.send(*(v2.read_request(1, 0) for _ in range(count)))
    await eventually(lambda: any(c.held_for for c in bookie.server.connections))
    (connection,) = [c for c in bookie.server.connections if c.held_for]
    assert isinstance(connection, Connection)
    assert connection._transport.get_write_buffer_size() < 8 * MIB
    assert bookie.server.counters.reads < count
    await slow.until(count)
    assert len(slow.frames) == count


async def test_many_adds_in_flight_hold_the_connection_and_all_are_answered(world: BookieMachines) -> None:
    async with world.serving(adds_per_connection=10) as bookie:
        wire = await Wire.connect(bookie)
        for entry_id in range(500):
            entry = stored_entry(1, entry_id)
            wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        await wire.until(500)
        assert [v2.parse_response(memoryview(frame))[3] for frame in wire.frames] == list(range(500))
        (connection,) = bookie.server.connections
        assert isinstance(connection, Connection)
        assert connection.writes.adds_in_flight == 0


# -- identity


async def test_a_new_bookie_leaves_its_cookie_everywhere_and_registers(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        node = await world.store.get("/ledgers/cookies/bookie-1")
        assert node is not None
        assert node.value == world.files.open("/bookie/storage/journal/current/VERSION").read_at(0, 1000)
        assert node.value == world.files.open("/bookie/ledgers/current/VERSION").read_at(0, 1000)
        assert children(world, "/ledgers/available") == {"readonly", "bookie-1"}
        assert bookie.address[0] == "127.0.0.1"
    assert children(world, "/ledgers/available") == {"readonly"}


def children(world: BookieMachines, path: str) -> set[str]:
    coroutine = world.store.children(path)
    try:
        coroutine.send(None)
    except StopIteration as result:
        return set(result.value)
    raise AssertionError("the memory store waits for nothing")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ledger_directories": ("/bookie/ledgers", "/bookie/more")}, "ledger directories /bookie/ledgers, expected"),
        ({"journal_directories": ("/elsewhere",)}, "has no cookie"),
        ({"bookie_id": "bookie-2"}, "those of bookie bookie-1. .* set bookieId=bookie-1: "),
        ({"bookie_id": "bookie-2", "journal_directories": ("/elsewhere",)}, "bookie id bookie-1, expected bookie-2"),
    ],
)
async def test_directories_of_another_bookie_are_not_served(world: BookieMachines, changes: dict, reason: str) -> None:  # type: ignore[type-arg]
    async with world.serving():
        pass
    with pytest.raises(CookieMismatch, match=reason):
        await world.bookie(replace(CONFIG, **changes)).start()
    assert world.files.locks == set()
    async with world.serving():
        pass


async def test_a_bookie_on_a_new_port_starts_under_the_name_that_the_message_gives(world: BookieMachines) -> None:
    """Without bookieId a bookie is called by its address and port."""
    config = replace(CONFIG, bookie_id="", advertised_address="127.0.0.1")
    async with world.serving(config) as bookie:
        former = bookie.bookie_id
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0
    port = int(former.partition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(CookieMismatch) as refused:
        await world.bookie(config, port=0).start()  # any other one
    name = re.search(r"set bookieId=(\S+): ", str(refused.value))
    assert name is not None
    assert name[1] == former
    async with world.serving(config, bookie_id=name[1]) as bookie:
        assert await (await Wire.connect(bookie)).read(1, 0) == stored_entry(1, 0)


async def test_cookies_of_apaches_bookie_name_directories_as_its_configuration_does(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pulsar's own bookkeeper.conf says data/bookkeeper/journal and data/bookkeeper/ledgers."""
    monkeypatch.setattr("os.getcwd", lambda: "/bookie")
    async with world.serving() as bookie:
        expected = bookie._directories._expected
        assert expected is not None
    theirs = replace(expected, journal_directories=("storage/journal",), ledger_directories=("./ledgers/",)).encode()
    paths = [f"{directory}/VERSION" for directory in ("/bookie/storage/journal/current", "/bookie/ledgers/current")]
    for path in paths:
        replace_file(world.files, path, theirs)
    await world.store.put("/ledgers/cookies/bookie-1", theirs)
    async with world.serving():
        pass
    assert [read_file(world.files, path) for path in paths] == [theirs] * 2, "it can go back to Apache's"
    monkeypatch.setattr("os.getcwd", lambda: "/elsewhere")
    with pytest.raises(CookieMismatch, match="ledger directories /elsewhere/ledgers, expected /bookie/ledgers"):
        await world.bookie().start()


async def test_a_bookie_with_an_emptied_disk_does_not_come_up_empty(world: BookieMachines) -> None:
    async with world.serving():
        pass
    world.files.remove("/bookie/ledgers/current/VERSION")
    with pytest.raises(CookieMismatch, match="emptied"):
        await world.bookie().start()


async def test_a_deleted_cookie_keeps_data_from_being_served(world: BookieMachines) -> None:
    async with world.serving():
        pass
    await world.store.delete("/ledgers/cookies/bookie-1")
    with pytest.raises(CookieMismatch, match="does not know"):
        await world.bookie().start()


async def test_a_first_start_that_was_cut_short_is_repeated(world: BookieMachines) -> None:
    await initialise_cluster(world.store)

    def cut(kind: str, path: str) -> None:
        if kind == "create" and path.endswith("ledgers/current/VERSION.tmp"):
            raise OSError(errno.EIO, "cut", path)

    stop = on_each_operation(world.files, cut)
    with pytest.raises(StorageFailed, match="cut"):
        await world.bookie().start()
    stop()
    assert world.files.exists("/bookie/storage/journal/current/VERSION")
    async with world.serving():
        pass


async def test_a_run_of_adds_to_a_fenced_ledger_is_refused(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0
        assert (await wire.ask(v2.read_request(1, 0, v2.FLAG_DO_FENCING, KEY)))[1] == 0
        run = [stored_entry(1, entry_id) for entry_id in range(1, 6)]
        wire.send(*(v2.add_request_head(0, KEY, len(entry)) + entry for entry in run))
        answers = [v2.parse_response(memoryview(await wire.next())) for _ in run]
        assert [(one[3], one[1]) for one in answers] == [(number, v2.V2Error.EFENCED) for number in range(1, 6)]
        assert await wire.read(1, 1) == v2.V2Error.ENOENTRY


def wiped(world: BookieMachines) -> None:
    """Its directories are empty: another machine takes its name."""
    world.files = MemoryFiles()
    world.indexes.clear()


@pytest.mark.parametrize("version", [2, 3])
async def test_a_bookie_takes_no_adds_of_ledgers_that_are_older_than_itself(
    world: BookieMachines, version: int
) -> None:
    """The bookie that had its name before may have had a fence (I130). Copies of auto-recovery are taken."""

    async def add(entry_id: int, ledger_id: int, *, recovery: bool = False) -> int:
        entry = stored_entry(ledger_id, entry_id)
        if version == 2:
            return await peer.add(entry, v2.FLAG_RECOVERY_ADD if recovery else 0)
        asked = sent.add_request(1, ledger_id, entry_id, KEY, entry, recovery=recovery)
        return int((await peer.ask_v3(asked)).addResponse.status)

    read_only = int(v2.V2Error.EREADONLY if version == 2 else v3.OF_V2[v2.V2Error.EREADONLY])
    async with world.serving():
        pass
    ledgers = LedgerStore(world.store)
    old, _ = await ledgers.create(LEDGER)
    await world.store.delete("/ledgers/cookies/bookie-1")
    wiped(world)
    async with world.serving() as bookie:
        young, _ = await ledgers.create(LEDGER)
        peer = await Wire.connect(bookie)
        assert await add(0, old) == read_only
        assert await add(0, young) == 0
        assert await add(0, old, recovery=True) == 0
        assert await add(1, old) == read_only
        assert await (await Wire.connect(bookie)).read(old, 0) == stored_entry(old, 0)
        if version == 2:  # several at once are taken another way
            adds = [(young, 1), (young, 2), (old, 1), (old, 2)]
            for ledger_id, entry_id in adds:
                entry = stored_entry(ledger_id, entry_id)
                peer.send(v2.add_request_head(0, KEY, len(entry)) + entry)
            answers = [v2.parse_response(memoryview(await peer.next())) for _ in adds]
            assert {(one[2], one[3]): one[1] for one in answers} == dict(
                zip(adds, [0, 0, *[read_only] * 2], strict=True)
            )
        else:
            for ledger_id, entry_id in ((old, 1), (old, 2)):
                peer.send(sent.add_request(1, ledger_id, entry_id, KEY, stored_entry(ledger_id, entry_id)))
            answers_v3 = [v3.parse_response(await peer.next()) for _ in range(2)]
            assert [int(one.addResponse.status) for one in answers_v3] == [read_only] * 2
    async with world.serving() as bookie:
        peer = await Wire.connect(bookie)
        assert await add(3, old) == read_only, "it is known after a restart, too"
        assert await add(3, young) == 0


async def test_the_first_bookies_of_a_cluster_take_every_ledger(world: BookieMachines) -> None:
    await initialise_cluster(world.store)
    ledgers = LedgerStore(world.store)
    async with world.serving() as bookie:
        assert read_file(world.files, f"/bookie/ledgers/current/{FIRST_LEDGER}") == b"0\n"
        wire = await Wire.connect(bookie)
        ledger_id, _ = await ledgers.create(LEDGER)
        assert ledger_id == 0
        assert await wire.add(stored_entry(ledger_id, 0)) == 0


async def test_a_damaged_number_of_the_first_ledger_is_named(world: BookieMachines) -> None:
    async with world.serving():
        pass
    path = f"/bookie/ledgers/current/{FIRST_LEDGER}"
    replace_file(world.files, path, b"")
    with pytest.raises(Corruption, match=f"{path} is no number"):
        await world.bookie().start()


async def test_a_second_bookie_on_the_same_directories_is_refused(world: BookieMachines) -> None:
    async with world.serving():
        with pytest.raises(DirectoryInUse, match=r"/bookie/storage/journal is in use.*journalDirectories"):
            await world.bookie().start()


async def test_a_second_bookie_on_the_same_port_is_refused(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        other = world.bookie(
            port=bookie.address[1], bookie_id="b2", journal_directories=("/b2",), ledger_directories=("/b2",)
        )
        with pytest.raises(PortInUse, match=f"127.0.0.1:{bookie.address[1]} is in use.*bookiePort"):
            await other.start()


async def test_several_bookies_live_in_one_process(world: BookieMachines) -> None:
    names = ["a", "b", "c"]
    async with (
        world.serving(bookie_id="a", journal_directories=("/a/j",), ledger_directories=("/a/l",)) as a,
        world.serving(bookie_id="b", journal_directories=("/b/j1", "/b/j2"), ledger_directories=("/b/l",)) as b,
        world.serving(bookie_id="c", journal_directories=("/c/j",), ledger_directories=("/c/1", "/c/2")) as c,
    ):
        for bookie in (a, b, c):
            wire = await Wire.connect(bookie)
            for ledger_id in range(4):
                assert await wire.add(stored_entry(ledger_id, 0)) == 0
        assert children(world, "/ledgers/available") == {"readonly", *names}


async def test_damage_in_the_middle_of_a_journal_keeps_the_bookie_down(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for entry_id in range(6):
            assert await wire.add(stored_entry(1, entry_id, b"x" * 1000)) == 0
        image = world.files.crash(random.Random(1), 0)
        indexes = {name: index.crash(random.Random(1), 0) for name, index in world.indexes.items()}
    world.files, world.indexes = image, indexes
    (journal,) = [name for name in image.list("/bookie/storage/journal/current") if name.endswith(".txn")]
    file = image.open(f"/bookie/storage/journal/current/{journal}", writable=True)
    file.write_at(4096 + 512 + 200, b"damage")
    with pytest.raises(Corruption, match="was on disk"):
        await world.bookie().start()


async def test_a_forced_read_only_bookie_takes_recovery_adds_only(world: BookieMachines) -> None:
    async with world.serving(force_read_only=True) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == EREADONLY
        assert await wire.add(stored_entry(1, 0), RECOVERY | HIGH) == 0
        assert children(world, "/ledgers/available") == {"readonly"}
        assert children(world, "/ledgers/available/readonly") == {"bookie-1"}
        assert bookie.parts.mode.texts == ("forced: forceReadOnlyBookie is set",)
