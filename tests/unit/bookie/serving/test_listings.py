"""Lists of entries: one at a time for all connections, shared, in pieces, and never larger than a frame."""

from collections.abc import Iterable
from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.serving.protocol import READS_IN_FLIGHT
from bookie.serving.request_rules import EIO
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.types import MIB
from tests.support.bookie_disks import stored_entry
from tests.support.bookie_world import add_all
from tests.support.serving import BookieMachines, Wire
from tests.support.waiting import eventually
from tests.unit.bookie.serving.test_limits import only_connection


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


async def fill(bookie: Bookie, ledger_id: int, entry_ids: Iterable[int]) -> None:
    await add_all(bookie, (stored_entry(ledger_id, entry_id) for entry_id in entry_ids))


def ids_of(answer: Any, below: int) -> list[int]:
    listed = answer.getListOfEntriesOfLedgerResponse
    groups = v3.decode_availability(listed.availabilityOfEntriesOfLedger)
    return [entry_id for entry_id in range(below) if v3.is_available(groups, entry_id)]


class Copies:
    """Counts how often the ids of a ledger were taken from the cache."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ledgers: list[int] = []
        taken = WriteCache.entry_ids_in_pieces

        def counting(cache: WriteCache, ledger_id: int, count: int) -> list[list[int]]:
            self.ledgers.append(ledger_id)
            return taken(cache, ledger_id, count)

        monkeypatch.setattr(WriteCache, "entry_ids_in_pieces", counting)


async def test_requests_for_one_ledger_that_wait_share_a_list(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(monkeypatch)
    async with world.serving() as bookie:
        await fill(bookie, 1, range(100))
        await fill(bookie, 2, range(5))
        wires = [await Wire.connect(bookie) for _ in range(4)]
        for wire in wires:
            wire.send(*(v3.list_of_entries_request(txn_id, 1) for txn_id in range(50)))
            wire.send(v3.list_of_entries_request(50, 2))
        for wire in wires:
            await wire.until(51)
            answers = {v3.parse_response(frame).header.txnId: v3.parse_response(frame) for frame in wire.frames}
            assert [ids_of(answers[txn_id], 120) for txn_id in range(51)] == [[*range(100)]] * 50 + [[*range(5)]]
        assert copies.ledgers.count(1) <= len(wires) + 1, "not one for each request"
        await eventually(lambda: bookie.server.reads_in_flight == 0)


async def test_a_list_has_what_was_acknowledged_before_it_was_asked_for(world: BookieMachines) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for entry_id in range(30):
            assert await wire.add(stored_entry(1, entry_id)) == 0
            asking = await Wire.connect(bookie)
            asking.send(v3.list_of_entries_request(1, 1))
            other = await asking.ask_v3(v3.list_of_entries_request(2, 1))
            assert ids_of(other, 40)[: entry_id + 1] == [*range(entry_id + 1)]
            asking.close()


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 1000])
async def test_a_list_is_whole_whatever_its_pieces_are(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Ids in the index, in the cache, and in both; they came in any order."""
    monkeypatch.setattr("bookie.serving.listings.IDS_AT_ONCE", at_once)
    monkeypatch.setattr("bookie.storage.ledger_storage.LIST_ENTRIES", 4)
    flushed, cached = [*range(0, 60, 2), 100, 107], [31, 3, 2, 200, 1, 58, 59, 61, 60, 5, 300]
    async with world.serving() as bookie:
        await fill(bookie, 1, flushed)
    async with world.serving() as bookie:
        await fill(bookie, 1, cached)
        wire = await Wire.connect(bookie)
        answer = await wire.ask_v3(v3.list_of_entries_request(1, 1))
        assert ids_of(answer, 400) == sorted({*flushed, *cached})


async def test_a_list_that_no_client_would_take_is_not_made_to_its_end(
    world: BookieMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bookie.serving.listings.IDS_AT_ONCE", 100)
    async with world.serving() as bookie:
        await fill(bookie, 1, (sum(range(number)) for number in range(2, 1000)))  # no two gaps are equal
        await fill(bookie, 2, range(1000))
        bookie.server.listings._bytes_max = 1000
        jobs = bookie.server.counters.cold_reads
        wire = await Wire.connect(bookie)
        answer = await wire.ask_v3(v3.list_of_entries_request(1, 1))
        assert int(answer.status) == int(v3.OF_V2[EIO])
        assert bookie.server.counters.cold_reads - jobs <= 10 + 2, "all are sorted, and then one or two pieces"
        assert ids_of(await wire.ask_v3(v3.list_of_entries_request(2, 2)), 1001) == [*range(1000)]


async def test_large_lists_leave_as_their_client_takes_them(world: BookieMachines) -> None:
    async with world.serving(write_buffer_high_bytes=64 * 1024, write_buffer_low_bytes=32 * 1024) as bookie:
        await fill(bookie, 1, (sum(range(number)) for number in range(2, 8000)))
        await eventually(lambda: not bookie.server.connections)
        wire = await Wire.connect(bookie)
        wire._reader._transport.pause_reading()  # type: ignore[attr-defined]
        wire.send(*(v3.list_of_entries_request(txn_id, 1) for txn_id in range(300)))
        await eventually(lambda: len(bookie.server.connections) == 1)
        connection = only_connection(bookie)
        await eventually(lambda: connection.held_for != 0)
        assert connection._transport.get_write_buffer_size() < 8 * MIB, "not all 300 of 96 kB"
        wire._reader._transport.resume_reading()  # type: ignore[attr-defined]
        await wire.until(300, 30)
        assert len({len(frame) for frame in wire.frames}) <= 2


async def test_lists_that_wait_are_limited_like_reads(world: BookieMachines) -> None:
    async with world.serving(reads_per_connection=10) as bookie:
        await fill(bookie, 1, range(10))
        await eventually(lambda: not bookie.server.connections)
        held: list[int] = []
        wire = await Wire.connect(bookie)
        await wire.ask_v3(v3.list_of_entries_request(0, 1))
        connection = only_connection(bookie)
        hold = connection.hold
        connection.hold = lambda reason: (held.append(reason), hold(reason))[1]  # type: ignore[method-assign, func-returns-value]
        wire.send(*(v3.list_of_entries_request(txn_id, 1) for txn_id in range(100)))
        await wire.until(101)
        assert READS_IN_FLIGHT in held
        await eventually(lambda: bookie.server.reads_in_flight == 0)
