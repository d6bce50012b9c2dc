"""A rebuild reports an entry as unknown if it can prove neither that the entry exists nor that it does not."""

import asyncio
import errno
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bookie.maintenance.rebuild.digest_check import Digest, DigestCheck, Verdict, no_digests
from bookie.maintenance.rebuild.digests import MetadataDigests
from bookie.maintenance.rebuild.offline import Rebuilt, known_logs, rebuild_index
from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.entry_log import format as log_format
from bookie.storage.entry_log.files import EntryLogs, list_logs
from bookie.storage.index import LEDGERS, LOCATIONS, RocksIndex
from bookie.storage.known import LogNote
from bookie.storage.ledgers import Ledger
from bookie.storage.storage_pb2 import LedgerData
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.stores.store import NoNode, StoreUnavailable
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec
from magnetar_core.runtime.files import File, OsFiles
from magnetar_core.runtime.types import MIB
from tests.support.bookie_disks import KEY, stored_entry
from tests.support.bookie_world import LyingWorld, ledger_metadata
from tests.support.serving import HurriedClock, Wire
from tests.support.waiting import eventually

SETTINGS = StorageSettings(log_bytes_max=2_000, write_cache_bytes=MIB, block_cache_bytes=MIB)
MAC = EntryCodec(DigestType.HMAC, b"secret")
ENOENTRY, EIO, EUNKNOWN = 2, 101, 107

Record = tuple[int, int, int, int]


def opened(path: Path, files: OsFiles | None = None, digest_of: Callable[[int], Digest | None] = no_digests) -> Opened:
    files = files or OsFiles()
    journal, ledgers = str(path / "journal/current"), str(path / "ledgers/current")
    for name in (journal, ledgers):
        files.make_directories(name)
    return open_storage(files, [journal], [ledgers], SETTINGS, RocksIndex, 1_000, digest_of)


def close(found: Opened) -> None:
    for writer in found.writers:
        writer.close()
    found.storage.close()


def fill(path: Path, entry: Callable[[int, int], bytes] = stored_entry, *, seal: bool = True) -> None:
    """Ledgers 1 and 2 of forty entries each, in several logs. Without *seal* the last log is left as by a crash."""
    found = opened(path)
    records: list[bytes | bytearray | memoryview] = []
    for entry_id in range(40):
        for ledger_id in (1, 2):
            data = entry(ledger_id, entry_id)
            assert found.rules.add(ledger_id, entry_id, KEY, data, True, False, records) == 0
    found.storage.flush(found.cache.swap(), found.rules.ledgers.take_dirty())
    found.cache.flushed()
    if not seal:
        newest = list_logs(OsFiles(), str(path / "ledgers/current"))[-1]
        name = f"{newest:x}.log"
        shutil.copy(path / "ledgers/current" / name, path / "unsealed")
    close(found)
    if not seal:
        shutil.move(path / "unsealed", path / "ledgers/current" / name)


def lose_index(path: Path) -> None:
    shutil.rmtree(path / "ledgers/current/locations")


def records_of(log: Path) -> list[Record]:
    data = log.read_bytes()
    header = log_format.decode_header(data, str(log))
    end = header.map_offset or len(data)
    return list(log_format.scan(lambda at, size: data[at : at + size], end))


def flip(log: Path, at: int, mask: int = 1) -> None:
    data = bytearray(log.read_bytes())
    data[at] ^= mask
    log.write_bytes(data)


def assert_in_doubt(found: Opened, *lost: tuple[int, int]) -> None:
    """The entries *lost* are missing and reported as unknown; all others are unchanged."""
    assert found.storage.needs_check
    for ledger in found.rules.ledgers:
        assert (ledger.fenced, ledger.limbo) == (True, True)
    assert {ledger.ledger_id for ledger in found.rules.ledgers} == {1, 2}
    for ledger_id in (1, 2):
        for entry_id in range(40):
            entry = found.storage.read(ledger_id, entry_id).entry
            assert entry == (None if (ledger_id, entry_id) in lost else stored_entry(ledger_id, entry_id))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    fill(tmp_path)
    lose_index(tmp_path)
    return tmp_path


def a_log(path: Path, number: int = 1) -> Path:
    return path / "ledgers/current" / f"{number:x}.log"


def test_whole_logs_leave_no_doubt(directory: Path) -> None:
    assert len(list_logs(OsFiles(), str(directory / "ledgers/current"))) > 2
    found = opened(directory)
    assert not found.storage.needs_check
    assert not any(ledger.limbo for ledger in found.rules.ledgers)
    for ledger_id in (1, 2):
        for entry_id in range(40):
            assert found.storage.read(ledger_id, entry_id).entry == stored_entry(ledger_id, entry_id)
    close(found)


@pytest.mark.parametrize("place", ["ledger id", "sign of the ledger id", "LAC", "digest"])
def test_a_flipped_bit_makes_an_entry_unknown(directory: Path, place: str) -> None:
    offset, _, ledger_id, entry_id = records_of(a_log(directory))[3]
    at, mask = {"ledger id": (7, 64), "sign of the ledger id": (0, 128), "LAC": (23, 1), "digest": (33, 1)}[place]
    flip(a_log(directory), offset + at, mask)
    found = opened(directory)
    assert_in_doubt(found, (ledger_id, entry_id))
    close(found)
    again = opened(directory)
    assert_in_doubt(again, (ledger_id, entry_id))
    close(again)


def test_an_entry_whose_id_became_that_of_another_does_not_replace_it(directory: Path) -> None:
    records = records_of(a_log(directory, 2))
    offset, _, ledger_id, entry_id = next(one for one in records if one[3] % 2)
    flip(a_log(directory, 2), offset + 15)  # the last bit of the entry id: its neighbour stands before it
    found = opened(directory)
    assert_in_doubt(found, (ledger_id, entry_id))
    close(found)


def test_a_flipped_size_leaves_its_entry_and_what_it_hides_unknown(directory: Path) -> None:
    offset, _, ledger_id, entry_id = records_of(a_log(directory))[0]
    flip(a_log(directory), offset - 4, 128)
    found = opened(directory)
    assert found.storage.read(ledger_id, entry_id).entry is None
    assert found.storage.needs_check
    assert all(ledger.limbo and ledger.fenced for ledger in found.rules.ledgers)
    close(found)


def test_the_last_record_of_a_log_that_was_not_sealed_is_in_doubt_too(tmp_path: Path) -> None:
    fill(tmp_path, seal=False)
    lose_index(tmp_path)
    log = a_log(tmp_path, list_logs(OsFiles(), str(tmp_path / "ledgers/current"))[-1])
    offset, _, ledger_id, entry_id = records_of(log)[-1]
    flip(log, offset - 4, 128)
    found = opened(tmp_path)
    assert_in_doubt(found, (ledger_id, entry_id))
    close(found)


def test_zeros_behind_a_log_that_was_not_sealed_are_nothing(tmp_path: Path) -> None:
    fill(tmp_path, seal=False)
    lose_index(tmp_path)
    log = a_log(tmp_path, list_logs(OsFiles(), str(tmp_path / "ledgers/current"))[-1])
    log.write_bytes(log.read_bytes() + bytes(5_000))
    found = opened(tmp_path)
    assert not found.storage.needs_check
    close(found)


def test_padding_between_the_records_of_apaches_direct_writer_is_nothing(tmp_path: Path) -> None:
    logs = tmp_path / "ledgers"
    (logs / "locations").mkdir(parents=True)
    index = RocksIndex(str(logs), MIB)
    index.put_ledgers([(1, Ledger(1, KEY).encode())])
    index.close()
    parts = [log_format.encode_header()]
    for entry_id in range(3):
        entry = stored_entry(1, entry_id)
        parts += [log_format.SIZE.pack(len(entry)), entry, b"\xf0" * (512 - len(entry))]
    (logs / "0.log").write_bytes(b"".join(parts))
    rebuilt = rebuild_index(OsFiles(), str(logs), lambda: RocksIndex(str(logs), MIB), {LOCATIONS}, 1_000)
    assert (rebuilt.entries, rebuilt.problems) == (3, ())
    rebuilt.index.close()


class BadDisk(OsFiles):
    """Reads of a log fail from *first_bad* on."""

    def __init__(self, name: str, first_bad: int) -> None:
        super().__init__()
        self.name, self.first_bad = name, first_bad

    def open(self, path: str, *, writable: bool = False) -> File:
        file = super().open(path, writable=writable)
        return BadFile(file, self.first_bad) if path.endswith(self.name) else file


class BadFile:
    def __init__(self, file: File, first_bad: int) -> None:
        self._file, self._first_bad = file, first_bad

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, offset: int, size_bytes: int) -> bytes:
        if offset + size_bytes > self._first_bad:
            raise OSError(errno.EIO, "Input/output error", self._file.path)
        return self._file.read_at(offset, size_bytes)


@pytest.mark.parametrize("first_bad", [0, 1_024])
def test_a_log_that_cannot_be_read_is_set_aside_and_the_bookie_goes_up(
    directory: Path, first_bad: int, caplog: pytest.LogCaptureFixture
) -> None:
    lost = {one[2:] for one in records_of(a_log(directory))}
    found = opened(directory, BadDisk("/1.log", first_bad))
    assert_in_doubt(found, *lost)
    assert any("/1.log: it cannot be read from offset" in line for line in caplog.messages)
    assert not (directory / "ledgers/current/locations/REBUILDING").exists()
    close(found)


def test_a_compaction_whose_log_cannot_be_read_does_not_stop_a_start(directory: Path) -> None:
    opened_before = opened(directory)
    close(opened_before)
    marker = directory / "ledgers/current/1.log.0.compacted"
    marker.touch()
    found = opened(directory, BadDisk("/1.log", 0))
    assert marker.exists()
    close(found)
    found = opened(directory)
    assert not marker.exists()
    close(found)


class PowerCut(OsFiles):
    """Files of a machine that loses power as soon as the mark of the rebuild is removed."""

    def remove(self, path: str) -> None:
        super().remove(path)
        if path.endswith("/REBUILDING"):
            raise OSError(errno.EIO, "the power goes")


def test_the_doubt_is_durable_before_the_mark_goes(directory: Path) -> None:
    offset, _, ledger_id, entry_id = records_of(a_log(directory))[3]
    flip(a_log(directory), offset + 33)
    with pytest.raises(OSError, match="the power goes"):
        opened(directory, PowerCut())
    assert not (directory / "ledgers/current/locations/REBUILDING").exists()
    found = opened(directory)
    assert_in_doubt(found, (ledger_id, entry_id))
    close(found)


# -- digests


def mac_entry(ledger_id: int, entry_id: int) -> bytes:
    return MAC.head(ledger_id, entry_id, entry_id - 1, 1, b"x") + b"x"


def secret_of(ledger_id: int) -> Digest | None:
    return (DigestType.HMAC, b"secret")


def test_entries_with_a_mac_are_proven_by_the_password_that_metadata_has(tmp_path: Path) -> None:
    fill(tmp_path, mac_entry)
    lose_index(tmp_path)
    offset, _, ledger_id, entry_id = records_of(a_log(tmp_path))[3]
    found = opened(tmp_path, digest_of=secret_of)
    assert not found.storage.needs_check
    assert found.storage.read(ledger_id, entry_id).entry == mac_entry(ledger_id, entry_id)
    close(found)
    lose_index(tmp_path)
    flip(a_log(tmp_path), offset + 52)
    found = opened(tmp_path, digest_of=secret_of)
    assert found.storage.needs_check
    assert found.storage.read(ledger_id, entry_id).entry is None
    close(found)


def test_entries_that_nobody_can_prove_are_there_and_in_doubt(tmp_path: Path) -> None:
    fill(tmp_path, mac_entry)
    lose_index(tmp_path)
    found = opened(tmp_path)
    assert found.storage.needs_check
    for ledger_id in (1, 2):
        for entry_id in range(40):
            assert found.storage.read(ledger_id, entry_id).entry == mac_entry(ledger_id, entry_id)
    close(found)


def test_records_of_deleted_ledgers_raise_no_doubt_where_the_map_vouches_for_their_ids(tmp_path: Path) -> None:
    fill(tmp_path, lambda ledger_id, entry_id: (mac_entry if ledger_id == 1 else stored_entry)(ledger_id, entry_id))
    found = opened(tmp_path)
    found.storage.delete_ledgers([1], found.rules.ledgers.tombstones)
    close(found)
    lose_index(tmp_path)
    found = opened(tmp_path)
    assert not found.storage.needs_check
    assert found.storage.read(2, 39).entry == stored_entry(2, 39)
    close(found)
    lose_index(tmp_path)
    log = next(log for log in (a_log(tmp_path, n) for n in range(9)) if records_of(log)[0][2] == 1)
    flip(log, log_format.decode_header(log.read_bytes(), "").map_offset + 30)  # the map does not vouch any more
    found = opened(tmp_path)
    assert found.storage.needs_check
    close(found)


def test_a_record_is_judged_by_the_others_of_its_ledger_where_metadata_is_silent() -> None:
    digest_check = DigestCheck(no_digests)
    bad = bytearray(stored_entry(1, 5))
    bad[-1] ^= 1
    assert digest_check.judge(bytes(bad), 1, 5) is Verdict.UNPROVEN
    for entry_id in range(2):
        assert digest_check.judge(stored_entry(1, entry_id), 1, entry_id) is Verdict.PROVEN
    assert digest_check.judge(bytes(bad), 1, 5) is Verdict.DAMAGED
    assert digest_check.judge(bytes(bad), 2, 5) is Verdict.UNPROVEN
    assert digest_check.judge(stored_entry(1, 3), 1, -4) is Verdict.DAMAGED
    assert digest_check.judge(stored_entry(1, 3)[:20], 1, 3) is Verdict.DAMAGED


async def test_metadata_is_asked_for_digests_and_done_without_where_it_does_not_answer() -> None:
    asked: list[int] = []
    known = {
        1: ledger_metadata(digest_type=DigestType.HMAC, password=b"secret"),
        2: ledger_metadata(format_version=1),
    }

    class Records:
        async def read(self, ledger_id: int) -> Versioned:
            asked.append(ledger_id)
            if ledger_id >= 100:
                raise StoreUnavailable("no answer")
            if ledger_id not in known:
                raise NoNode(str(ledger_id))
            return Versioned(known[ledger_id], 0)

    records: Any = Records()
    digests = MetadataDigests(records)

    async def ask(ledger_id: int) -> Digest | None:
        return await asyncio.to_thread(digests, ledger_id)

    assert await ask(1) == (DigestType.HMAC, b"secret")
    assert await ask(2) is None
    assert await ask(3) is None
    for ledger_id in (100, 101):
        assert await ask(ledger_id) is None
    assert await ask(1) is not None
    for ledger_id in (102, 103, 104):
        assert await ask(ledger_id) is None
    assert await ask(1) is None
    assert asked == [1, 2, 3, 100, 101, 1, 102, 103, 104]


def test_a_row_that_cannot_be_read_is_a_fenced_ledger_in_doubt(tmp_path: Path) -> None:
    path = str(tmp_path)
    logs = EntryLogs(OsFiles(), path, MIB)
    logs.append([(1, 0, stored_entry(1, 0))])
    logs.close()
    for name in (LOCATIONS, LEDGERS):
        (tmp_path / name).mkdir()
        (tmp_path / name / "REBUILDING").touch()
    index = RocksIndex(path, MIB)
    index.put_ledgers([(1, b"\xff\xff")])
    index.close()
    rebuilt: Rebuilt = rebuild_index(OsFiles(), path, lambda: RocksIndex(path, MIB), {LOCATIONS}, 1_000)
    assert len(rebuilt.problems) == 1
    assert "the row of ledger 1" in rebuilt.problems[0]
    assert rebuilt.index.location(1, 0)
    rebuilt.index.close()


@pytest.mark.parametrize("is_known", [True, False])
def test_a_log_that_is_missing_is_a_doubt_if_the_former_index_names_it_or_nobody_knows(
    tmp_path: Path, is_known: bool
) -> None:
    path = str(tmp_path)
    files = OsFiles()
    (tmp_path / LEDGERS).mkdir()
    index = RocksIndex(path, MIB)
    index.put_ledgers([(1, LedgerData(exists=True, fenced=False, masterKey=KEY).SerializeToString())])
    for log_id in (0, 2):
        logs = EntryLogs(files, path, MIB)
        if log_id:
            assert logs.next_log_id() == 1
        located = logs.append([(1, log_id, stored_entry(1, log_id))])
        logs.close()
        index.put_locations(located)
        index.put_notes({log_id: LogNote(located[0][2], 1, log_id).encode()})
    index.close()

    def opener() -> RocksIndex:
        return RocksIndex(path, MIB)

    def rebuilt() -> tuple[str, ...]:
        made = rebuild_index(files, path, opener, {LOCATIONS}, 1_000, known=known_logs(opener) if is_known else None)
        made.index.close()
        return made.problems

    assert list_logs(files, path) == [0, 2]
    assert bool(rebuilt()) is not is_known, "garbage collection may have taken 1.log; the index knows"
    (tmp_path / "0.log").unlink()
    (problem,) = rebuilt()
    assert problem.startswith(f"{path}/0.log is missing" if is_known else "2 logs before the newest")


# -- on the wire, with another copy


CLOSED = {
    "ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2, "segments": (Segment(0, ("bookie-1", "bookie-2")),),
    "state": LedgerState.CLOSED, "last_entry_id": 4, "length": 35,
}  # fmt: skip


@asynccontextmanager
async def another_bookie(world: LyingWorld) -> AsyncIterator[Wire]:
    async with world.serving(
        bookie_id="bookie-2", journal_directories=("/b2/journal",), ledger_directories=("/b2/ledgers",)
    ) as bookie:
        yield await Wire.connect(bookie)


DIRECTORY = "/bookie/ledgers/current"


class LosingWorld(LyingWorld):
    """Ledger 1 with five entries is on one bookie only. Its index is lost, and its log may refuse reads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(HurriedClock())
        self._open = self.files.open
        monkeypatch.setattr(self.files, "open", self._open_log)
        self.is_disk_bad = False

    def _open_log(self, path: str, *, writable: bool = False) -> File:
        if self.is_disk_bad and path.endswith("/0.log"):
            raise OSError(errno.EIO, "Input/output error", path)
        return self._open(path, writable=writable)

    async def fill(self) -> None:
        async with self.serving() as bookie:
            wire = await Wire.connect(bookie)
            for entry_id in range(5):
                assert await wire.add(stored_entry(1, entry_id)) == 0
        await self.record_ledger(1)

    def lose_index(self) -> None:
        self.indexes[DIRECTORY]._locations.clear()
        self.indexes[DIRECTORY]._order.clear()
        self.files.make_directories(f"{DIRECTORY}/locations")
        self.files.create(f"{DIRECTORY}/locations/REBUILDING").close()

    def damage(self, entry: bytes) -> None:
        file = self.files.open(f"{DIRECTORY}/0.log", writable=True)
        at = file.read_at(0, file.size_bytes()).index(entry)
        file.write_at(at + len(entry) - 1, b"?")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> LosingWorld:
    return LosingWorld(monkeypatch)


@pytest.mark.usefixtures("looks_often")
async def test_what_a_log_could_not_tell_at_the_start_is_found_by_a_rebuild_when_it_can_be_read_again(
    world: LosingWorld,
) -> None:
    await world.fill()
    world.lose_index()
    world.is_disk_bad = True
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 3) == EUNKNOWN
        # It has no other copy, but its disk may come back: the doubt stays.
        await eventually(lambda: bookie.parts.integrity.status().last_problem is not None)
        assert "/0.log cannot be opened: [Errno 5]" in str(bookie.parts.integrity.status().last_problem)
        assert await wire.read(1, 3) == EUNKNOWN
    async with world.serving() as bookie:  # a restart changes nothing
        await eventually(lambda: bookie.parts.integrity.status().last_problem is not None)
        world.is_disk_bad = False
        bookie.parts.rebuild.trigger()
        await eventually(lambda: not bookie.parts.rebuild.status().is_running)
        assert bookie.parts.rebuild.status().entries_put_right == 5
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 3) == stored_entry(1, 3)
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await wire.read(1, 5) == ENOENTRY
    assert not world.files.exists(f"{DIRECTORY}/unreadable-logs")


@pytest.mark.usefixtures("looks_often")
async def test_a_rebuild_at_a_start_that_reads_every_log_ends_the_doubt_as_well(world: LosingWorld) -> None:
    await world.fill()
    world.lose_index()
    world.is_disk_bad = True
    async with world.serving():
        pass
    assert world.files.exists(f"{DIRECTORY}/unreadable-logs")
    world.is_disk_bad = False
    world.lose_index()
    async with world.serving() as bookie:
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await (await Wire.connect(bookie)).read(1, 5) == ENOENTRY


@pytest.mark.usefixtures("looks_often")
async def test_a_log_that_a_rebuild_of_a_bookie_that_serves_cannot_read_keeps_the_doubt(world: LosingWorld) -> None:
    await world.fill()
    async with world.serving() as bookie:
        world.is_disk_bad = True
        bookie.parts.rebuild.trigger()
        await eventually(lambda: bookie.parts.integrity.status().last_problem is not None)
        assert "/0.log: [Errno 5]" in str(bookie.parts.integrity.status().last_problem)
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 3) == EIO
        assert await wire.read(1, 5) == EUNKNOWN


@pytest.mark.usefixtures("looks_often")
async def test_a_log_that_an_operator_moved_away_is_given_up_by_the_next_rebuild(world: LosingWorld) -> None:
    await world.fill()
    world.lose_index()
    world.is_disk_bad = True
    async with world.serving() as bookie:
        world.files.remove(f"{DIRECTORY}/0.log")
        world.is_disk_bad = False
        bookie.parts.rebuild.trigger()
        await eventually(lambda: not bookie.parts.rebuild.status().is_running)
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await (await Wire.connect(bookie)).read(1, 3) == ENOENTRY


async def test_waiting_ends_where_no_other_copy_can_help(world: LosingWorld, caplog: pytest.LogCaptureFixture) -> None:
    await world.fill()
    world.damage(stored_entry(1, 3))
    world.lose_index()
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 3) == EUNKNOWN
        await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert "ledger 1 has no other copy: what is not here of it is lost" in caplog.messages
        assert await wire.read(1, 3) == ENOENTRY
        assert await wire.read(1, 4) == stored_entry(1, 4)
        ledger = bookie.server.rules.ledgers.get(1)
        assert ledger is not None
        assert (ledger.fenced, ledger.limbo) == (True, False)


async def test_a_damaged_entry_is_unknown_until_it_came_back_from_another_bookie(world: LosingWorld) -> None:
    entries = [stored_entry(1, entry_id, b"payload") for entry_id in range(5)]
    async with another_bookie(world) as second, world.serving() as bookie:
        first = await Wire.connect(bookie)
        for wire in (first, second):
            for entry in entries:
                assert await wire.add(entry) == 0
    await world.record_ledger(1, **CLOSED)
    world.damage(entries[3])
    world.lose_index()
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.read(1, 2) == entries[2]
        assert await wire.read(1, 3) == EUNKNOWN
        async with another_bookie(world):
            await eventually(lambda: not bookie.parts.integrity.status().is_needed)
        assert await wire.read(1, 3) == entries[3]
        assert not bookie.parts.storage.needs_check
