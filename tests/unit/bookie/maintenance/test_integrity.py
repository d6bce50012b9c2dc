"""A bookie that may have lost entries says "unknown" instead of "not there", until every copy was checked."""

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from bookie.bookie import Bookie, StorageFailed
from bookie.disks.cookie import CookieMismatch
from bookie.maintenance.repair import RepairUnavailable, expected_entries, key_of, write_set
from bookie.storage.index import IndexCorrupt
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Source
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment, ledger_path
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import MIB
from tests.support import bookie_requests as sent
from tests.support.bookie_disks import KEY, OTHER_KEY, stored_entry
from tests.support.bookie_world import LyingWorld, ledger_metadata
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

ENOLEDGER, ENOENTRY, EIO, EFENCED, EUNKNOWN = 1, 2, 101, 104, 107
COPIES = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "segments": (Segment(0, ("bookie-1", "bookie-2")),)}


@pytest.fixture
def world() -> LyingWorld:
    return LyingWorld(HurriedClock())


def second(number: int) -> dict[str, Any]:
    return {
        "bookie_id": f"bookie-{number}",
        "journal_directories": (f"/b{number}/journal",),
        "ledger_directories": (f"/b{number}/ledgers",),
    }


@asynccontextmanager
async def two_bookies(world: LyingWorld, **changes: Any) -> AsyncIterator[tuple[Bookie, Bookie]]:
    async with AsyncExitStack() as stack:
        other = await stack.enter_async_context(world.serving(**second(2)))
        yield await stack.enter_async_context(world.serving(**changes)), other


async def write(bookies: tuple[Bookie, ...], ledger_id: int, count: int, lac: int | None = None) -> None:
    for bookie in bookies:
        wire = await Wire.connect(bookie)
        for entry_id in range(count):
            assert await wire.add(stored_entry(ledger_id, entry_id, b"payload")) == 0
        wire.close()


def wipe(world: LyingWorld, directory: str) -> None:
    for name in world.files.list(directory):
        world.files.remove(f"{directory}/{name}")
    world.indexes.pop(directory, None)


# -- which entries a bookie holds


def test_expected_entries_follow_segments_and_striping() -> None:
    metadata = LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        state=LedgerState.CLOSED,
        last_entry_id=8,
        segments=(Segment(0, ("a", "b", "c")), Segment(4, ("a", "d", "c")), Segment(6, ("b", "d", "c"))),
    )
    for bookie_id in "abcd":
        slow = [entry_id for entry_id in range(9) if bookie_id in write_set(metadata, entry_id)]
        assert list(expected_entries(metadata, bookie_id)) == slow
    assert list(expected_entries(metadata, "a")) == [0, 2, 3, 5]
    assert write_set(metadata, 4) == ("d", "c")
    for state in (LedgerState.OPEN, LedgerState.IN_RECOVERY):  # what the last segment has is not known yet
        still_written = replace(metadata, state=state, last_entry_id=-1)
        assert list(expected_entries(still_written, "a")) == [0, 2, 3, 5]
        assert list(expected_entries(still_written, "b")) == [0, 1, 3]


def test_a_key_that_metadata_does_not_tell_is_left_open() -> None:
    assert key_of(ledger_metadata(password=b"other")) == OTHER_KEY
    assert key_of(ledger_metadata(format_version=1)) == b""


# -- limbo


async def test_in_limbo_what_is_there_is_served_and_the_rest_is_unknown(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await write((bookie,), 1, 3)
        ledger = bookie.server.rules.ledgers.get(1)
        assert ledger is not None
        ledger.limbo = True
        wire, third = await Wire.connect(bookie), await Wire.connect(bookie)
        assert await wire.read(1, 0) == stored_entry(1, 0, b"payload")
        assert await wire.read(1, 7) == EUNKNOWN
        assert await wire.read(1, v2.LAST_ENTRY) == EUNKNOWN
        assert (await wire.ask(v2.batch_read_request(1, 7, 1, 10, MIB)))[1] == EUNKNOWN
        assert (await wire.ask(v2.read_request(1, v2.LAST_ENTRY, v2.FLAG_DO_FENCING, KEY)))[1] == EUNKNOWN
        for request in (
            sent.read_lac_request(1, 1),
            v3.list_of_entries_request(2, 1),
            v3.read_request(3, 1, 9),
        ):
            assert int((await third.ask_v3(request)).status) == v3.V3Error.EUNKNOWNLEDGERSTATE
        poll = v3.read_request(4, 1, -1, previous_lac=9, timeout_ms=1000, piggyback=True)
        assert int((await third.ask_v3(poll)).status) == v3.V3Error.EUNKNOWNLEDGERSTATE


async def test_an_emptied_bookie_copies_back_what_it_lost_before_it_denies_to_have_it(world: LyingWorld) -> None:
    world.store.begin_numbers("/ledgers/idgen", 0)  # its ledgers are newer than the emptied bookie
    async with two_bookies(world) as bookies:
        for ledger_id in (1, 2, 3):
            await world.record_ledger(ledger_id, **COPIES)
            await write(bookies, ledger_id, 5)
        await world.record_ledger(4, segments=(Segment(0, ("bookie-2",)),))
        closed = (await world.ledgers.read(1)).metadata.closed(4, 35)
        await world.ledgers.write(1, closed, 0)
    for directory in ("/bookie/storage/journal/current", "/bookie/ledgers/current"):
        wipe(world, directory)
    with pytest.raises(CookieMismatch, match="dataIntegrityChecking=true"):
        await world.bookie().start()
    async with two_bookies(world, data_integrity=True) as (bookie, _):
        wire = await Wire.connect(bookie)
        # 2 is open: fenced, and what is not here is unknown. 4 was never ours.
        assert await wire.read(2, 0) == EUNKNOWN
        assert await wire.add(stored_entry(2, 5)) == EFENCED
        assert await wire.read(4, 0) == ENOLEDGER
        await eventually(lambda: bookie.parts.integrity.status().copied_entries == 5)
        assert await wire.read(1, 4) == stored_entry(1, 4, b"payload")
        status = bookie.parts.integrity.status()
        assert (status.is_needed, status.ledgers_in_limbo) == (True, 2)
    # Without the setting too: the doubt is on record.
    async with two_bookies(world) as (bookie, _):
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 4) == stored_entry(1, 4, b"payload")
        assert await wire.read(2, 0) == EUNKNOWN
        # Recovery elsewhere closes 2, and 3 is deleted.
        found = await world.ledgers.read(2)
        await world.ledgers.write(2, found.metadata.in_recovery().closed(4, 35), found.version)
        await world.ledgers.delete(3)
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await wire.read(2, 3) == stored_entry(2, 3, b"payload")
        assert await wire.read(2, 5) == ENOENTRY
        assert bookie.parts.integrity.status().lost_entries == 0
    async with world.serving() as bookie:
        # What is left of the deleted one stays in limbo until it is collected.
        assert bookie.parts.integrity.status().ledgers_in_limbo == 1
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await (await Wire.connect(bookie)).read(2, 3) == stored_entry(2, 3, b"payload")


async def test_what_another_bookie_took_over_comes_back_while_the_ledger_is_written(world: LyingWorld) -> None:
    segments = (Segment(0, ("bookie-1", "bookie-2")), Segment(3, ("bookie-3", "bookie-2")))
    async with two_bookies(world) as bookies:
        await world.record_ledger(1, **{**COPIES, "segments": segments})
        await write(bookies, 1, 3)
    for directory in ("/bookie/storage/journal/current", "/bookie/ledgers/current"):
        wipe(world, directory)
    async with two_bookies(world, data_integrity=True) as (bookie, _):
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        status = bookie.parts.integrity.status()
        assert (status.copied_entries, status.lost_entries) == (3, 0)
        assert await (await Wire.connect(bookie)).read(1, 2) == stored_entry(1, 2, b"payload")


@pytest.mark.usefixtures("looks_often")
async def test_what_nobody_has_is_lost_and_what_nobody_can_say_waits(
    world: LyingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    owned = (("pulsar/managed-ledger", b"public/default/persistent/orders"),)
    async with world.serving():
        await world.record_ledger(1, **COPIES, custom_metadata=owned)
        await world.ledgers.write(1, (await world.ledgers.read(1)).metadata.closed(6, 49), 0)
    wipe(world, "/bookie/ledgers/current")
    async with world.serving(data_integrity=True) as bookie:
        await eventually(lambda: bookie.parts.integrity.status().last_problem is not None)
        assert "bookie-2" in str(bookie.parts.integrity.status().last_problem)
        async with world.serving(**second(2)):
            await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert bookie.parts.integrity.status().lost_entries == 7
        reports = DamageReports(world.store)
        await eventually(reports.all)
        (report,) = await reports.all()
        assert (report.ledger_id, report.kind, report.source) == (1, Kind.DATA_LOSS, Source.SCRUB)
        assert (report.count, report.ranges) == (1, ((0, 6),))
        assert report.text.startswith("persistent://public/default/orders: 7 entries are lost")
        assert [one for one in caplog.messages if "lost" in one and "ledger 1" in one] == [f"ledger 1: {report.text}"]


@pytest.mark.usefixtures("looks_often")
async def test_what_is_lost_is_told_once_while_the_rest_of_a_ledger_waits(
    world: LyingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]

    def looks() -> int:
        return sum("bookie-3" in one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)

    async with world.serving(), world.serving(**second(2)):
        segments = (Segment(0, ("bookie-1", "bookie-2", "bookie-3")),)
        await world.record_ledger(1, **{**COPIES, "ensemble_size": 3, "segments": segments})
        await world.ledgers.write(1, (await world.ledgers.read(1)).metadata.closed(3, 28), 0)
    wipe(world, "/bookie/ledgers/current")
    async with world.serving(data_integrity=True) as bookie, world.serving(**second(2)):
        await eventually(lambda: looks() == 3)
        assert len(told()) == 1
        assert "1 entries are lost" in told()[0]
        async with world.serving(**second(3)):
            await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert len(told()) == 2
        assert "3 entries are lost" in told()[1]
        assert bookie.parts.integrity.status().lost_entries == 3


async def test_a_ledger_whose_metadata_is_damaged_stays_in_limbo(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        await world.record_ledger(1)
        await write((bookie,), 1, 2)
        await world.store.put(ledger_path("/ledgers", 1), b"garbage")
    wipe(world, "/bookie/ledgers/current")
    async with world.serving(data_integrity=True) as bookie:
        # Its entries came back from the journal; whether they are all there, nobody knows.
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 1) == stored_entry(1, 1, b"payload")
        assert await wire.read(1, 2) == EUNKNOWN


async def test_an_unclean_stop_of_apaches_bookie_is_taken_seriously_if_told(world: LyingWorld) -> None:
    path = "/bookie/ledgers/current/DIRTY"
    async with world.serving() as bookie:
        await world.record_ledger(1)
        await write((bookie,), 1, 2)
        assert world.files.exists(path)
    assert not world.files.exists(path)
    world.files.create(path)
    async with world.serving() as bookie:
        assert await (await Wire.connect(bookie)).read(1, 9) == ENOENTRY
    world.files.create(path)
    async with world.serving(data_integrity=True) as bookie:
        assert await (await Wire.connect(bookie)).read(1, 9) == EUNKNOWN


# -- a damaged index


@pytest.mark.parametrize("who", ["client", "scrub"])
async def test_a_damaged_index_is_an_error_ends_the_bookie_and_is_rebuilt_by_the_next(
    world: LyingWorld, who: str
) -> None:
    async with world.serving() as bookie:
        await write((bookie,), 1, 2)
    await world.record_ledger(1)
    async with world.serving() as bookie:
        (index,) = world.indexes.values()

        def damaged(
            ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
        ) -> list[tuple[int, int]]:
            raise IndexCorrupt("RocksDB: Corruption: block checksum mismatch")

        index.locations = damaged  # type: ignore[method-assign]
        wire = await Wire.connect(bookie)
        if who == "client":
            wire.send(v2.read_request(1, 0))
        else:
            bookie.parts.scrub.trigger()
        await wire.closed()
        assert isinstance(bookie.failure, StorageFailed)
        assert "a restart rebuilds it" in str(bookie.failure)
    assert world.files.exists("/bookie/ledgers/current/locations/REBUILDING")
    assert world.files.exists("/bookie/ledgers/current/DIRTY")


async def test_silence_of_a_peer_is_no_answer(world: LyingWorld) -> None:
    async with world.serving() as bookie:
        source, metadata = bookie.parts.source, ledger_metadata(**COPIES)
        with pytest.raises(RepairUnavailable, match="bookie-2"):
            await source.read_entry(1, metadata, 0)
        async with world.serving(**second(2)) as other:
            assert await source.read_entry(1, metadata, 0) is None
            await write((other,), 1, 2)
            assert await source.read_entry(1, metadata, 1) == stored_entry(1, 1, b"payload")
            # A copy with a wrong digest is no answer either.
            bad = bytearray(stored_entry(1, 2, b"payload"))
            bad[-1] ^= 1
            assert await (await Wire.connect(other)).add(bytes(bad)) == 0
            with pytest.raises(RepairUnavailable, match="digest"):
                await source.read_entry(1, metadata, 2)
            ledger = other.server.rules.ledgers.get(1)
            assert ledger is not None
            ledger.limbo = True
            with pytest.raises(RepairUnavailable, match="refused with 107"):
                await source.read_entry(1, metadata, 9)
