"""A bookie whose metadata store went back in time: what it notes, what it does not delete, which numbers are given."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.disks.read_only import Reason
from bookie.maintenance.older_metadata import watch
from bookie.maintenance.older_metadata.note import NOTE_FILE
from magnetar_core.bookkeeper.metadata.ledgers.doubts import Doubted, DoubtRanges
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.memory import Saved
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, WentBack
from magnetar_core.runtime.files import read_file, replace_file
from magnetar_core.runtime.types import Corruption
from tests.support.bookie_disks import stored_entry
from tests.support.bookie_world import LyingWorld, ledger_metadata
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

NOTE = f"/bookie/ledgers/current/{NOTE_FILE}"


class ReturningWorld(LyingWorld):
    """Ledgers get their numbers from the store."""

    def __init__(self) -> None:
        super().__init__(HurriedClock())
        self.store.begin_numbers("/ledgers/idgen", 0)

    async def write(self, bookie: Bookie, count: int) -> list[int]:
        """New ledgers with one entry each, which is flushed: nothing but doubt keeps them."""
        wire = await Wire.connect(bookie)
        made = []
        for _ in range(count):
            ledger_id, _ = await self.ledgers.create(ledger_metadata())
            assert await wire.add(stored_entry(ledger_id, 0, b"%d" % ledger_id)) == 0
            made.append(ledger_id)
        wire.close()
        await flushed(bookie)
        return made

    @asynccontextmanager
    async def put_back(self) -> AsyncIterator[tuple[Bookie, list[int], list[int]]]:
        """A bookie after its metadata were put back: (it, ledgers with a record, ledgers without one)."""
        async with self.serving() as bookie:
            old = await self.write(bookie, 3)
            saved = self.store.saved()
            new = await self.write(bookie, 5)
        self.store.put_back(saved)
        async with self.serving() as bookie:
            yield bookie, old, new


@pytest.fixture
def world() -> ReturningWorld:
    return ReturningWorld()


async def flushed(bookie: Bookie) -> None:
    bookie.parts.checkpointer.flush()
    await eventually(lambda: bookie.server.write_cache.is_empty)


async def collected(bookie: Bookie, count: int = 3, **how: bool) -> None:
    for _ in range(count):
        bookie.parts.collector.trigger(**how)
        await bookie.parts.collector.settled()
        await asyncio.sleep(0.002)


async def next_number(world: ReturningWorld) -> int:
    ledger_id, _ = await world.ledgers.create(ledger_metadata())
    return ledger_id


async def test_ledgers_that_are_newer_than_the_metadata_stay_and_their_numbers_are_not_given_again(
    world: ReturningWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.put_back() as (bookie, old, new):
        doubt = bookie.parts.collector.status().doubt
        assert (doubt.ledgers, doubt.ranges) == (5, (f"{new[0]} to {new[-1]}",))
        assert doubt.since_ms is not None
        (told,) = [one.message for one in caplog.records if "went back in time" in one.message]
        assert told.startswith("bookie bookie-1: the metadata store went back in time. 5 ledgers here are newer")
        await collected(bookie, accept_listing=True)
        assert bookie.operations.list_ledgers() == old + new
        wire = await Wire.connect(bookie)
        for ledger_id in new:
            assert await wire.read(ledger_id, 0) == stored_entry(ledger_id, 0, b"%d" % ledger_id)
        values = {one.name: one.value for one in bookie.operations.metrics()}
        assert values["magnetar_bookie_gc_doubted_ledgers"] == 5
        assert values["magnetar_bookie_metadata_went_back"] == 1
        assert {one: told.ledgers for one, told in (await DoubtRanges(world.store).announced()).items()} == {
            "bookie-1": 5
        }
        world.ledgers = LedgerStore(world.store)  # a broker that has just started
        assert await next_number(world) > new[-1]
        assert not bookie.is_read_only


async def test_what_a_bookie_has_in_doubt_is_refused_by_name_if_it_cannot_be_read(world: ReturningWorld) -> None:
    doubts = DoubtRanges(world.store)
    await doubts.announce("bookie-1", Doubted(7, 5))
    await world.store.put("/ledgers/underreplication/magnetar/doubts/bookie-1", b"many")
    with pytest.raises(MetadataError, match="/doubts/bookie-1 does not say how many ledgers of bookie-1"):
        await doubts.announced()


async def test_what_is_in_doubt_survives_a_restart(world: ReturningWorld) -> None:
    async with world.put_back() as (bookie, old, new):
        pass
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.ledgers == 5
        await collected(bookie)
        assert bookie.operations.list_ledgers() == old + new


async def test_what_an_operator_gives_up_is_collected(world: ReturningWorld) -> None:
    async with world.put_back() as (bookie, old, new):
        assert await bookie.operations.forget_doubt() == len(new)
        assert bookie.parts.collector.status().doubt.since_ms is None
        assert await DoubtRanges(world.store).announced() == {}
        await collected(bookie)
        assert bookie.operations.list_ledgers() == old
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.since_ms is None
        assert await bookie.operations.forget_doubt() == 0


async def test_a_ledger_that_gets_a_record_again_leaves_the_doubt(world: ReturningWorld) -> None:
    async with world.put_back() as (bookie, old, new):
        closed = ledger_metadata(state=LedgerState.CLOSED, last_entry_id=0, length=1)
        await world.ledgers.create_with_id(new[1], closed)
        await collected(bookie)
        assert bookie.parts.collector.status().doubt.ledgers == 4
        await world.ledgers.delete(new[1])  # and is a ledger like others from then on
        await collected(bookie)
        assert bookie.operations.list_ledgers() == [*old, new[0], *new[2:]]


async def test_newer_metadata_end_it(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        await world.write(bookie, 3)
        older = world.store.saved()
        await world.write(bookie, 5)
        newest = world.store.saved()
    world.store.put_back(older)
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.ledgers == 5
    world.store.put_back(newest)
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt == (None, 0, ())


async def test_it_is_seen_under_a_running_bookie_before_that_registers_again(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        await world.write(bookie, 3)
        saved = world.store.saved()
        new = await world.write(bookie, 5)
        path = "/ledgers/available/bookie-1"
        numbers: list[int] = []

        def before(changed: str) -> None:
            if changed == path:
                numbers.append(world.store.saved().sequences["/ledgers/idgen"])

        world.store.before_change = before
        world.store.put_back(saved)
        await eventually(lambda: bool(numbers))
        assert numbers[0] > new[-1]
        await eventually(lambda: world.store.saved().records.get(path) is not None)
        assert bookie.parts.collector.status().doubt.ledgers == 5


async def test_it_is_seen_when_the_store_answers_again_in_the_same_session(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        await world.write(bookie, 3)
        saved = world.store.saved()
        await world.write(bookie, 5)
        world.store.suspend()
        _put_back_quietly(world, saved)
        world.store.resume()
        await eventually(lambda: bookie.parts.collector.status().doubt.ledgers == 5)


def _put_back_quietly(world: ReturningWorld, saved: Saved) -> None:
    """The sessions are in the data that are put back, and go on."""
    tree = world.store._tree
    tree.records, tree.sequences = dict(saved.records), dict(saved.sequences)
    tree.names = {path: set(names) for path, names in saved.names.items()}


async def test_garbage_collection_looks_before_it_deletes(world: ReturningWorld) -> None:
    """Nothing told that the store went back."""
    async with world.serving() as bookie:
        old = await world.write(bookie, 3)
        saved = world.store.saved()
        new = await world.write(bookie, 5)
        _put_back_quietly(world, saved)
        await collected(bookie)
        assert bookie.operations.list_ledgers() == old + new
        assert bookie.parts.collector.status().doubt.ledgers == 5


async def test_another_bookie_that_comes_later_knows_the_range(world: ReturningWorld) -> None:
    second: dict[str, Any] = {
        "bookie_id": "bookie-2",
        "journal_directories": ("/second/journal",),
        "ledger_directories": ("/second/ledgers",),
    }
    async with world.serving(), world.serving(**second) as other:
        saved = world.store.saved()
    async with world.serving() as bookie, world.serving(**second) as other:
        here, there = await world.write(bookie, 2), []
        world_bookie_2 = ledger_metadata(segments=(Segment(0, ("bookie-2",)),))
        wire = await Wire.connect(other)
        for _ in range(3):
            ledger_id, _ = await world.ledgers.create(world_bookie_2)
            assert await wire.add(stored_entry(ledger_id, 0)) == 0
            there.append(ledger_id)
        await flushed(other)
        here += await world.write(bookie, 1)
    world.store.put_back(saved)
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.ledgers == len(here)
        async with world.serving(**second) as other:
            assert other.parts.collector.status().doubt.ledgers == len(there)
            await collected(other)
            assert other.operations.list_ledgers() == there


async def test_a_ledger_whose_number_was_drawn_before_and_recorded_after_is_in_doubt_too(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        old = await world.write(bookie, 2)
        drawn, id_node = await world.ledgers._generate_id()
        saved = world.store.saved()
        await world.ledgers.create_with_id(drawn, ledger_metadata(), id_node=id_node)
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(drawn, 0)) == 0
        new = await world.write(bookie, 2)
    world.store.put_back(saved)
    async with world.serving() as bookie:
        await collected(bookie)
        assert bookie.operations.list_ledgers() == [*old, drawn, *new]
        assert bookie.parts.collector.status().doubt.ledgers == 3


async def test_numbers_of_ledgers_that_were_deleted_are_not_given_again(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        await world.write(bookie, 3)
        saved = world.store.saved()
        for ledger_id in await world.write(bookie, 5):
            await world.ledgers.delete(ledger_id)
        newest = await next_number(world)
        await collected(bookie)
        assert len(bookie.operations.list_ledgers()) == 3
    world.store.put_back(saved)
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.ledgers == 0
        assert await world.ledgers.next_id() > newest


async def test_no_copy_counts_as_moved_while_the_metadata_are_older(world: ReturningWorld) -> None:
    """An hour ago the ledger was on another bookie; it was copied here since, and there it is gone."""
    elsewhere = ledger_metadata(
        segments=(Segment(0, ("bookie-2",)),), state=LedgerState.CLOSED, last_entry_id=0, length=1
    )
    async with world.serving(gc_over_replicated_wait_ms=1) as bookie:
        copied, _ = await world.ledgers.create(elsewhere)
        saved = world.store.saved()
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(copied, 0)) == 0
        found = await world.ledgers.read(copied)
        await world.ledgers.write(copied, found.metadata.with_segment_replaced(0, ("bookie-1",)), found.version)
        new = await world.write(bookie, 2)
    world.store.put_back(saved)
    async with world.serving(gc_over_replicated_wait_ms=1) as bookie:
        await collected(bookie, 4)
        assert bookie.operations.list_ledgers() == [copied, *new]
        await bookie.operations.forget_doubt()
        await collected(bookie, 4)
        assert bookie.operations.list_ledgers() == []


async def test_ledgers_whose_clients_chose_the_numbers_are_not_in_doubt(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        for ledger_id in (5_000, 2**40):
            await world.record_ledger(ledger_id)
            assert await wire.add(stored_entry(ledger_id, 0)) == 0
        await world.record_ledger(2**40 + 1)
        assert await wire.add(stored_entry(2**40 + 1, 0)) == 0
        await flushed(bookie)
        await world.ledgers.delete(2**40 + 1)
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt == (None, 0, ())
        await collected(bookie)
        assert bookie.operations.list_ledgers() == [5_000, 2**40]


async def test_numbers_that_are_too_many_to_be_moved_on_keep_the_bookie_read_only(
    world: ReturningWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "ADVANCE_MAX", 4)
    async with world.put_back() as (bookie, old, new):
        assert "gc forget-doubt" in bookie.parts.mode.reasons[Reason.METADATA]
        assert await world.store.exists("/ledgers/available/readonly/bookie-1")
        assert not await world.store.exists("/ledgers/available/bookie-1")
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(old[0], 1)) == 105
        assert await wire.read(new[0], 0) == stored_entry(new[0], 0, b"%d" % new[0])
        await collected(bookie)
        assert bookie.operations.list_ledgers() == old + new
        await bookie.operations.forget_doubt()
        assert not bookie.is_read_only
        await eventually(lambda: "/ledgers/available/bookie-1" in world.store.saved().records)


@pytest.mark.parametrize("fails_at", ["file", "range", "numbers"])
async def test_a_look_that_is_cut_short_loses_nothing(
    world: ReturningWorld, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    async with world.serving() as bookie:
        old = await world.write(bookie, 3)
        saved = world.store.saved()
        new = await world.write(bookie, 5)
    world.store.put_back(saved)

    async def fails(*_: object) -> None:
        raise MetadataError("cut short")

    def cannot_write(*_: object) -> None:
        raise OSError("cut short")

    with monkeypatch.context() as patched:
        if fails_at == "file":
            patched.setattr(watch, "replace_file", cannot_write)
        elif fails_at == "range":
            patched.setattr(DoubtRanges, "add", fails)
        else:
            patched.setattr(LedgerStore, "advance", fails)
        with pytest.raises(Exception, match="cut short"):
            await world.bookie().start()
        assert not await world.store.exists("/ledgers/available/bookie-1")
    async with world.serving() as bookie:
        assert bookie.parts.collector.status().doubt.ledgers == 5
        assert await world.ledgers.next_id() > new[-1]
        await collected(bookie)
        assert bookie.operations.list_ledgers() == old + new


async def test_so_many_ranges_are_named(world: ReturningWorld) -> None:
    async with world.serving() as bookie:
        saved = world.store.saved()
        made = await world.write(bookie, 2 * watch._NAMED_MAX + 4)
        for ledger_id in made[::2]:
            await world.ledgers.delete(ledger_id)
        await collected(bookie)
    world.store.put_back(saved)
    async with world.serving() as bookie:
        doubt = bookie.parts.collector.status().doubt
        assert doubt.ledgers == watch._NAMED_MAX + 2
        assert len(doubt.ranges) == watch._NAMED_MAX


async def test_a_new_bookie_notes_nothing(world: ReturningWorld) -> None:
    async with world.serving():
        assert not world.files.exists(NOTE)
        assert await next_number(world) == 0


async def test_a_damaged_note_stops_the_bookie_by_name(world: ReturningWorld) -> None:
    async with world.put_back():
        assert b"doubt 3 7\n" in read_file(world.files, NOTE)
    replace_file(world.files, NOTE, b"magnetar led")
    with pytest.raises(Corruption, match=f"{NOTE} does not say"):
        await world.bookie().start()


async def test_whoever_makes_ledgers_sees_that_the_numbers_went_back(
    world: ReturningWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with world.serving():
        saved = world.store.saved()
        for _ in range(3):
            await next_number(world)
    world.store.put_back(saved)
    for _ in range(3):  # it has seen 2
        with pytest.raises(WentBack, match=r"gives the number \d to a new ledger, and gave 2 before"):
            await next_number(world)
    assert await next_number(world) == 3, "these numbers are above what this client has seen"
