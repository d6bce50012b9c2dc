"""The scrub reads and checks all entries; it repairs a damaged entry from another copy, or reports it."""

from typing import Any

import pytest

from bookie.bookie import Bookie
from bookie.maintenance.repair import RepairSource, RepairUnavailable
from bookie.maintenance.scrub import ScrubStatus
from bookie.maintenance.scrub_rules import ScrubPlace, decode_place, problem_of, rate_of
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Kind, Report, Source
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec
from magnetar_core.runtime.types import KIB, MIB, Corruption
from tests.support.bookie_disks import CODEC, stored_entry
from tests.support.bookie_world import LyingWorld, add_all
from tests.support.serving import BookieMachines, HurriedClock, Wire
from tests.support.waiting import eventually

LOG = "/bookie/ledgers/current/0.log"


class Copies(LyingWorld):
    """A world whose bookies get entries back from a table: an entry, None (nobody has it), an error, or no answer."""

    def __init__(self) -> None:
        super().__init__(HurriedClock())
        self.copies: dict[tuple[int, int], bytes | OSError | None] = {}

    async def read_entry(self, ledger_id: int, metadata: LedgerMetadata, entry_id: int) -> bytes | None:
        if (ledger_id, entry_id) not in self.copies:
            raise RepairUnavailable("bookie-2: no answer")
        found = self.copies[ledger_id, entry_id]
        if isinstance(found, OSError):
            raise found
        return found

    def bookie(self, *arguments: Any, **changes: Any) -> Bookie:
        made = super().bookie(*arguments, **changes)
        source: RepairSource = self
        made._repair_source = source
        return made


@pytest.fixture
def world() -> Copies:
    return Copies()


async def filled(world: BookieMachines, ledgers: range, entries: int) -> None:
    """A life of the bookie that leaves entries in one closed log."""
    async with world.serving() as bookie:
        await add_all(bookie, (stored_entry(ledger_id, n, b"p" * 50) for ledger_id in ledgers for n in range(entries)))


async def scrubbed(bookie: Bookie) -> ScrubStatus:
    passes = bookie.parts.scrub.status().passes
    bookie.parts.scrub.trigger()
    await eventually(lambda: bookie.parts.scrub.status().passes > passes)
    return bookie.parts.scrub.status()


def damage(world: BookieMachines, entry: bytes, at: int) -> None:
    """Change a byte of a stored entry."""
    file = world.files.open(LOG, writable=True)
    data = file.read_at(0, file.size_bytes())
    where = data.index(entry) + at
    file.write_at(where, bytes([data[where] ^ 0x55]))


# -- rules


def test_a_pass_takes_most_of_its_period_and_says_when_it_cannot() -> None:
    day = 86_400.0
    assert rate_of(0, day, 8 * MIB) == (256 * KIB, False)
    assert rate_of(86_400 * MIB, day, 8 * MIB) == (1.25 * MIB, False)
    assert rate_of(86_400 * 7 * MIB, day, 8 * MIB) == (8 * MIB, False)
    assert rate_of(86_400 * 9 * MIB, day, 8 * MIB) == (8 * MIB, True)


def test_a_place_is_kept_as_one_line() -> None:
    place = ScrubPlace(1_700_000_000_000, 5, 17, 100, 2, 1)
    assert place.encode() == b"1 1700000000000 5 17 100 2 1\n"
    assert decode_place(place.encode(), "f") == place
    for data in (b"", b"2 1 1 1 1 1 1", b"1 1 1", b"1 a b c d e f", b"1 -1 0 0 0 0 0"):
        with pytest.raises(Corruption, match=r"f: .* is no place of a scrub"):
            decode_place(data, "f")


def test_an_entry_is_bad_by_ids_size_or_digest() -> None:
    entry = stored_entry(1, 2, b"payload")
    assert problem_of(entry, 1, 2, CODEC) is None
    assert problem_of(entry, 1, 3, None) == "it is ledger 1 entry 2"
    assert problem_of(entry[:31], 1, 2, None) == "31 bytes are no entry"
    damaged = entry[:-1] + b"x"
    assert problem_of(damaged, 1, 2, None) is None
    assert "digest" in str(problem_of(damaged, 1, 2, CODEC))
    keyed = EntryCodec(DigestType.HMAC, b"secret")
    signed = keyed.head(1, 2, 1, 7, b"payload") + b"payload"
    assert problem_of(signed, 1, 2, keyed) is None
    assert problem_of(signed, 1, 2, EntryCodec(DigestType.HMAC, b"other")) is not None


# -- a whole bookie


async def reports_of(world: Copies) -> list[Report]:
    return await DamageReports(world.store).all()


async def test_good_entries_are_counted(world: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookie.maintenance.scrub_rules.BYTES_S_MIN", 8 * MIB)
    await filled(world, range(1, 4), 700)
    for ledger_id in (1, 2):
        await world.record_ledger(ledger_id)
    async with world.serving(scrub_entries_s=100_000) as bookie:
        status = await scrubbed(bookie)
        # 3 is not in metadata any more: it is garbage, not worth a look.
        assert (status.entries_verified, status.entries_repaired, status.entries_lost) == (1400, 0, 0)
        assert status.bad_entries == ()
        assert (await scrubbed(bookie)).passes == 2


async def test_a_damaged_entry_is_repaired_lost_or_tried_again(world: Copies) -> None:
    await filled(world, range(1, 2), 6)
    await world.record_ledger(1)
    entries = [stored_entry(1, entry_id, b"p" * 50) for entry_id in range(6)]
    damage(world, entries[1], 40)  # the payload
    damage(world, entries[2], 3)  # the ledger id: no read finds it
    damage(world, entries[3], 50)
    damage(world, entries[4], 33)  # the digest itself
    world.copies = {(1, 1): entries[1], (1, 2): entries[2], (1, 3): None}
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 2) == 101
        status = await scrubbed(bookie)
        assert (status.entries_verified, status.entries_repaired) == (2, 2)
        assert (status.entries_lost, status.entries_unrepaired) == (1, 1)
        texts = {bad[:2]: bad[2] for bad in status.bad_entries}
        assert set(texts) == {(1, 3), (1, 4)}
        assert "no other bookie has it" in texts[1, 3]
        assert "bookie-2: no answer" in texts[1, 4]
        await eventually(lambda: reports_of(world))
        (report,) = await reports_of(world)  # of what is lost; what may come back is not lost
        assert (report.ledger_id, report.kind, report.source) == (1, Kind.DATA_LOSS, Source.SCRUB)
        assert (report.name, report.ranges) == (bookie.bookie_id, ((3, 3),))
        assert report.text == f"its owner is not known: {texts[1, 3]}"
        assert await wire.read(1, 1) == entries[1]
        assert await wire.read(1, 2) == entries[2]
        # The next pass finds a copy; what was repaired is in the write cache or in a log by now.
        world.copies[1, 4] = entries[4]
        bookie.parts.checkpointer.flush()
        await eventually(lambda: bookie.server.write_cache.is_empty)
        status = await scrubbed(bookie)
        assert (status.entries_verified, status.entries_repaired, status.entries_lost) == (4, 1, 1)
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert [await wire.read(1, entry_id) for entry_id in (0, 1, 2, 4, 5)] == [
            entries[entry_id] for entry_id in (0, 1, 2, 4, 5)
        ]


async def test_a_restart_goes_on_where_the_scrub_was(world: Copies) -> None:
    await filled(world, range(1, 9), 100)
    for ledger_id in range(1, 9):
        await world.record_ledger(ledger_id)
    async with world.serving(scrub_entries_s=100, scrub_interval_s=0) as bookie:
        bookie.parts.scrub.trigger()
        await eventually(lambda: bookie.parts.scrub.status().ledger_id >= 2)
        assert bookie.parts.scrub.status().is_running
        assert bookie.parts.scrub.status().passes == 0
    place = decode_place(world.files.open("/bookie/ledgers/current/scrub").read_at(0, 99), "")
    assert place.ledger_id >= 2
    async with world.serving() as bookie:
        await eventually(lambda: bookie.parts.scrub.status().passes == 1)
        status = bookie.parts.scrub.status()
        assert (status.entries_verified, status.pass_started_ms) == (800, place.started_ms)


async def test_a_pass_that_fails_is_continued_where_it_was(
    world: Copies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bookie.maintenance.scrub.RETRY_S", 1.0)
    await filled(world, range(1, 4), 6)
    for ledger_id in (1, 2, 3):
        await world.record_ledger(ledger_id)
    bad = [stored_entry(ledger_id, 0, b"p" * 50) for ledger_id in (1, 2)]
    for entry in bad:
        damage(world, entry, 40)
    world.copies = {(1, 0): None, (2, 0): OSError("no such host")}
    async with world.serving() as bookie:
        bookie.parts.scrub.trigger()
        await eventually(lambda: bookie.parts.scrub.status().failed == "no such host")
        assert bookie.parts.scrub.status().ledger_id == 2
        world.copies[2, 0] = bad[1]
        await eventually(lambda: bookie.parts.scrub.status().passes == 1)
        status = bookie.parts.scrub.status()
        assert (status.entries_verified, status.entries_repaired, status.entries_lost) == (16, 1, 1)
        assert [one[:2] for one in status.bad_entries] == [(1, 0)]
        assert sum("ledger 1: entry 0 stays damaged" in one for one in caplog.messages) == 1


async def test_a_pass_begins_by_itself(world: Copies) -> None:
    await filled(world, range(1, 2), 3)
    await world.record_ledger(1)
    async with world.serving(scrub_interval_s=4) as bookie:
        await eventually(lambda: bookie.parts.scrub.status().passes == 1)
        assert bookie.parts.scrub.status().entries_verified == 3


async def test_without_metadata_only_the_shape_is_checked(world: Copies) -> None:
    await filled(world, range(1, 2), 3)
    await world.record_ledger(1)
    await world.store.put("/ledgers/00/0000/L0001", b"garbage")
    damage(world, stored_entry(1, 0, b"p" * 50), 40)
    damage(world, stored_entry(1, 1, b"p" * 50), 3)
    async with world.serving() as bookie:
        status = await scrubbed(bookie)
        assert (status.entries_verified, status.entries_unrepaired) == (2, 1)
