"""Directories that Apache's bookie left behind with each of its storages (tests/vectors/disk)."""

import asyncio
import contextlib
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from bookie.bookie import Bookie
from bookie.disks import cookie
from bookie.disks.read_only import STATUS_FILE, Reason, decode_status
from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.entry_log import format as log_format
from bookie.storage.foreign_storage import ForeignStorage, refuse_foreign_storage
from bookie.storage.index import MemoryIndex, RocksIndex
from bookie.storage.journal import format as journal_format
from bookie.storage.journal.format import Scan
from bookie.storage.ledgers import decode as decode_ledger
from bookie.storage.ledgers import explicit_lac_of
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, master_key
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from tests.support.golden import DECODES, ENCODES, OPENS, REFUSES, Report, beside, golden, load, path_of, text
from tests.support.serving import CONFIG

JOURNAL: Final = "journal/current"
LEDGERS: Final = "ledgers/current"
OTHER_FILES: Final = ("bookie.tar.gz", "written.json", "config.txt")

# Passwords of the recorded ledgers, by master key.
PASSWORDS: Final = {master_key(password): password for password in (b"disk", b"")}

_LAC_AT: Final = 16

OVERWRITTEN: Final = (6, 0)  # added twice


class Recorded:
    """One folder of vectors, unpacked."""

    def __init__(self, vector: str, tmp_path: Path) -> None:
        self.contents: dict[str, Any] = load(vector)
        self.written: dict[str, Any] = load(beside(vector, "written.json"))
        self.config = text(beside(vector, "config.txt"))
        self.path = tmp_path
        with tarfile.open(path_of(beside(vector, "bookie.tar.gz"))) as archive:
            archive.extractall(tmp_path, filter="data")

    def data(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def setting(self, name: str, default: str) -> str:
        words = dict(word.partition("=")[::2] for word in self.config.split() if "=" in word)
        return words.get(name, default)

    @property
    def entries(self) -> dict[tuple[int, int], str]:
        """(ledger, entry) → CRC-32C of the stored entry, of all that was acknowledged."""
        found = {
            (operation["ledger"], operation["entry"]): operation["storedCrc32c"]
            for operation in self.written["operations"]
            if operation["op"] == "add" and operation["rc"] == 0
        }
        return records_in(self.contents["journals"]) | found  # the one with deferred sync is told only in the journal

    def first_of(self, key: tuple[int, int]) -> str:
        """The CRC-32C of what was sent first under these ids."""
        found: list[str] = [
            o["storedCrc32c"]
            for o in self.written["operations"]
            if o["op"] == "add" and (o["ledger"], o["entry"]) == key
        ]
        return found[0]

    @property
    def refused(self) -> set[str]:
        """CRC-32C of entries that were sent and refused."""
        return {o["storedCrc32c"] for o in self.written["operations"] if o["op"] == "add" and o["rc"]}

    @property
    def keeps_explicit_lac(self) -> bool:
        """Journals before version 6 have no record for it: it is kept once it was flushed."""
        return "kill" not in self.config or self.setting("journalFormatVersionToWrite", "5") >= "6"


def records_in(files: dict[str, Any]) -> dict[tuple[int, int], str]:
    """(ledger, entry) → CRC-32C of the last record with these ids."""
    return {
        (record["ledger"], record["entry"]): record["crc32c"]
        for file in files.values()
        for record in file["records"]
        if record.get("entry", -1) >= 0
    }


@contextlib.contextmanager
def opened(recorded: Recorded) -> Iterator[Opened]:
    """Our storage on the recorded directories, below the cookie check."""
    directories = [str(recorded.path / JOURNAL)], [str(recorded.path / LEDGERS)]
    found = open_storage(OsFiles(), *directories, StorageSettings(), RocksIndex, 1)
    try:
        yield found
    finally:
        for writer in found.writers:
            writer.close()
        found.storage.close()


def check_journal(recorded: Recorded, name: str, expected: dict[str, Any]) -> None:
    data = recorded.data(f"{JOURNAL}/{name}")
    assert len(data) == expected["fileBytes"]
    header = journal_format.decode_header(data[: journal_format.HEADER_BYTES], name)
    assert header is not None
    assert header.version == expected["version"] == int(recorded.setting("journalFormatVersionToWrite", "5"))
    assert not header.sealed
    scan = Scan(lambda offset, size: data[offset : offset + size], header, int(name.split(".")[0], 16), name)
    found = list(scan)
    wanted = [record for record in expected["records"] if "padding" not in record]
    assert [(r.offset, len(r.data), r.ledger_id, r.entry_id, f"{crc32c(r.data):08x}") for r in found] == [
        (r["offset"], r["length"], r["ledger"], r["entry"], r["crc32c"]) for r in wanted
    ]
    assert (scan.end_offset, scan.torn) == (expected["endOfData"], None)
    alignment = int(recorded.setting("journalAlignmentSize", "4096"))
    if header.version > 4:  # each group ends at a multiple of the alignment
        assert expected["endOfData"] % alignment == 0
    for record, told in zip(found, wanted, strict=True):
        again = None
        if record.entry_id == journal_format.LEDGER_KEY:
            again = journal_format.ledger_key_record(record.ledger_id, record.blob())
        elif record.entry_id == journal_format.FENCE:
            again = journal_format.fence_record(record.ledger_id)
        elif record.entry_id == journal_format.EXPLICIT_LAC:
            again = journal_format.explicit_lac_record(record.ledger_id, record.blob())
        if again is not None:
            assert b"".join(again) == data[record.offset : record.offset + 4 + len(record.data)]
            assert record.data[16:].hex() == told["rest"]


def check_log(recorded: Recorded, name: str, expected: dict[str, Any]) -> None:
    data = recorded.data(f"{LEDGERS}/{name}")
    assert len(data) == expected["fileBytes"]
    header = log_format.decode_header(data[: log_format.HEADER_BYTES], name)
    assert (header.version, header.map_offset, header.ledgers_count) == (
        expected["headerVersion"], expected["ledgersMapOffset"], expected["ledgersCount"]
    )  # fmt: skip
    seal = log_format.encode_seal(header.map_offset, header.ledgers_count)
    blank = log_format.encode_header()
    at = log_format.SEAL_OFFSET
    assert blank[:at] + seal + blank[at + len(seal) :] == data[: log_format.HEADER_BYTES]
    end = header.map_offset or len(data)
    found = list(log_format.scan(lambda offset, size: data[offset : offset + size], len(data)))
    entries = [record for record in expected["records"] if "ledgersMap" not in record]
    assert [(*place, f"{crc32c(data[place[0] : place[0] + place[1]]):08x}") for place in found] == [
        (r["offset"], r["size"], r["ledger"], r["entry"], r["crc32c"]) for r in entries
    ]
    assert all(offset + size <= end for offset, size, _, _ in found)
    (told,) = [record["ledgersMap"] for record in expected["records"] if "ledgersMap" in record] or [None]
    if header.map_offset == 0:
        assert told is None
        return
    assert told is not None
    made: dict[int, int] = {}
    for _, size, ledger_id, _ in found:
        made[ledger_id] = made.get(ledger_id, 0) + 4 + size
    theirs = data[header.map_offset :]
    assert log_format.decode_map(theirs, header, name) == made == {int(key): value for key, value in told.items()}
    # The order of ledgers in a map is that of a hash table: ours is sorted, as long, and read as the same.
    assert len(log_format.encode_map(made)) == len(theirs)
    assert log_format.decode_map(log_format.encode_map(made), header, name) == made


def check_file(recorded: Recorded, name: str, told: Any) -> None:
    data = recorded.data(name)
    kind = name.rpartition("/")[2]
    if kind == "VERSION":
        assert data.decode() == told
        assert cookie.decode(data, name).encode() == data
    elif kind == "lastMark":
        mark = journal_format.decode_mark(data, name)
        assert (mark.file_id, mark.offset, data.hex()) == (told["journalId"], told["offset"], told["hex"])
        assert journal_format.encode_mark(mark) == data
    elif kind == STATUS_FILE:
        assert data.decode() == told
        assert list(decode_status(data, name).kept) == [Reason.OPERATOR]
    elif kind == "lastId":
        assert data.decode() == told
        newest = max(int(log.removesuffix(".log"), 16) for log in recorded.contents["entryLogs"])
        assert f"{newest:x}\n" == told
    elif kind == "DIRTY":
        assert data == b""
        assert "kill" in recorded.config
    else:
        assert kind.endswith(".idx")
        assert len(data) == told["bytes"]
        assert data.startswith(bytes.fromhex(told["headHex"]))


def check_files(report: Report, recorded: Recorded) -> None:
    for name, told in recorded.contents["files"].items():
        with report.row(name):
            check_file(recorded, name, told)
    for name, told in recorded.contents["journals"].items():
        with report.row(name):
            check_journal(recorded, name, told)
    for name, told in recorded.contents["entryLogs"].items():
        with report.row(name):
            check_log(recorded, name, told)


@golden(
    "disk/db-*/contents.json",
    beside_it=OTHER_FILES,
    how={DECODES, ENCODES, OPENS},
    compared="cookies, marks and status read and written again; every journal record and entry-log record with its "
    "CRC-32C, maps of sealed logs; rows of both RocksDB databases; then the storage is opened twice, below the cookie "
    "check: every acknowledged entry with its CRC-32C and its digest, refused ones absent, fences, keys, LACs",
)
def test_directories_of_db_ledger_storage(report: Report, tmp_path: Path) -> None:
    recorded = Recorded(report.vector, tmp_path)
    check_files(report, recorded)
    with report.row("index"):
        check_index(recorded)
    for time in ("first", "second"):  # the second time from our own journal and marks
        with opened(recorded) as found:
            check_storage(report, recorded, found, time)


def check_index(recorded: Recorded) -> None:
    index = RocksIndex(str(recorded.path / LEDGERS), 1 << 20)
    try:
        rows = {ledger_id: bytes(row) for ledger_id, row in index.ledgers()}
        assert {ledger_id: row.hex() for ledger_id, row in rows.items()} == {
            told["ledger"]: told["raw"] for told in recorded.contents["ledgers"]
        }
        for told in recorded.contents["ledgers"]:
            ledger = decode_ledger(told["ledger"], rows[told["ledger"]])
            assert ledger.encode() == rows[told["ledger"]]
            assert (ledger.fenced, ledger.master_key.hex()) == (told["fenced"], told["masterKey"])
            assert ledger.explicit_lac.hex() == told["explicitLac"]
            assert ledger.limbo is bool(told["limbo"])
        for told in recorded.contents["locations"]:
            location = log_format.location(told["log"], told["offset"])
            assert index.location(told["ledger"], told["entry"]) == location
            assert log_format.split_location(location) == (told["log"], told["offset"])
        assert recorded.contents["locationsThatDoNotMatchTheirRecord"] == 0
    finally:
        index.close()


def check_storage(report: Report, recorded: Recorded, found: Opened, time: str) -> None:
    entries = recorded.entries
    assert len(entries) > 70
    lacs: dict[int, int] = {}
    for key, checksum in entries.items():
        with report.row(f"{time} {key[0]}:{key[1]}"):
            entry = found.storage.read(*key).entry
            assert entry is not None
            assert f"{crc32c(entry):08x}" == checksum
            ledger = found.rules.ledgers.get(key[0])
            assert ledger is not None
            codec = EntryCodec(DigestType.CRC32C, PASSWORDS[ledger.master_key])
            stored = codec.open(entry, *key)
            lacs[key[0]] = max(lacs.get(key[0], -1), struct.unpack_from(">q", entry, _LAC_AT)[0])
            assert stored.last_add_confirmed <= lacs[key[0]]
    with report.row(f"{time} nothing else"):
        assert {
            (ledger.ledger_id, entry_id)
            for ledger in found.rules.ledgers
            for entry_id in found.storage.entry_ids(ledger.ledger_id)
        } == set(entries)
        assert recorded.refused
        assert not recorded.refused & set(entries.values())
    with report.row(f"{time} fences"):
        fences = {operation["ledger"] for operation in recorded.written["operations"] if operation["op"] == "fence"}
        assert {ledger.ledger_id for ledger in found.rules.ledgers if ledger.fenced} == fences == {3, 9}
    with report.row(f"{time} keys"):
        known = {bytes.fromhex(key) for key in recorded.written["masterKeys"].values()}
        assert known == set(PASSWORDS)
        assert {ledger.master_key for ledger in found.rules.ledgers if ledger.ledger_id != 9} <= known
    with report.row(f"{time} LACs"):
        for ledger_id, lac in lacs.items():
            assert found.storage.tail(ledger_id).last_add_confirmed == lac
    with report.row(f"{time} explicit LAC"):
        (told,) = (operation for operation in recorded.written["operations"] if operation["op"] == "explicit-lac")
        ledger = found.rules.ledgers.get(told["ledger"])
        assert ledger is not None
        assert ledger.explicit_lac.hex() == (told["blob"] if recorded.keeps_explicit_lac else "")
        if not recorded.keeps_explicit_lac:
            return
        assert explicit_lac_of(ledger.explicit_lac) == told["lac"] == ledger.last_add_confirmed
        codec = EntryCodec(DigestType.CRC32C, PASSWORDS[ledger.master_key])
        assert codec.explicit_lac(told["ledger"], told["lac"]) == ledger.explicit_lac


# ------------------------------------------------------------------------------- the other storages


def in_memory(recorded: Recorded, root: str) -> MemoryFiles:
    """The recorded directories below *root*, where their cookie says that they are."""
    files = MemoryFiles()
    files.make_directories("/")
    for source in sorted(recorded.path.rglob("*")):
        target = f"{root}/{source.relative_to(recorded.path).as_posix()}"
        if source.is_dir():
            files.make_directories(target)
        else:
            file = files.create(target)
            file.append([source.read_bytes()])
            file.sync()
            file.close()
    return files


async def start_bookie(files: MemoryFiles, found: cookie.Cookie) -> None:
    """Start a bookie whose cookie matches these directories."""
    clock = LoopClock()
    store = MemoryStore(clock)
    await store.put("/ledgers/INSTANCEID", found.instance_id.encode())
    await initialise_cluster(store)
    await store.put(f"/ledgers/cookies/{found.bookie_id}", found.encode())
    config = replace(
        CONFIG,
        bookie_id=found.bookie_id,
        journal_directories=found.journal_directories,
        ledger_directories=found.ledger_directories,
    )
    bookie = Bookie(config, store, clock, files, open_index=lambda directory, cache_bytes: MemoryIndex())
    await bookie.start()
    await bookie.stop()


@golden(
    "disk/[!d]*/contents.json",
    beside_it=OTHER_FILES,
    how={DECODES, ENCODES, REFUSES},
    compared="cookies, marks, every journal record and entry-log record with its CRC-32C, maps of sealed logs; all "
    "acknowledged entries are in the logs; a bookie with the right cookie does not start on the directories and says "
    "whose they are (index files are not read)",
)
def test_directories_of_other_storages(report: Report, tmp_path: Path) -> None:
    recorded = Recorded(report.vector, tmp_path)
    check_files(report, recorded)
    is_sorted = "SortedLedgerStorage" in recorded.config  # it keeps the first of two adds, the others the second
    with report.row("entries"):
        logged = records_in(recorded.contents["entryLogs"])
        assert logged.keys() == recorded.entries.keys()
        assert {key for key in logged if logged[key] != recorded.entries[key]} <= {OVERWRITTEN}
        assert logged[OVERWRITTEN] == (recorded.first_of(OVERWRITTEN) if is_sorted else recorded.entries[OVERWRITTEN])
    with report.row("is recognised"), pytest.raises(ForeignStorage, match="InterleavedLedgerStorage"):
        refuse_foreign_storage([str(recorded.path / LEDGERS)], OsFiles().list)
    found = cookie.decode(recorded.data(f"{LEDGERS}/VERSION"), report.vector)
    root = found.ledger_directories[0].removesuffix("/ledgers")
    files = in_memory(recorded, root)
    with report.row("a bookie does not start"), pytest.raises(ForeignStorage, match="InterleavedLedgerStorage"):
        asyncio.run(start_bookie(files, found))
    with report.row("and leaves all as it was"):
        for directory in (JOURNAL, LEDGERS):
            assert files.list(f"{root}/{directory}") == OsFiles().list(str(recorded.path / directory))


def test_directories_of_our_storage_are_not_foreign(tmp_path: Path) -> None:
    for folder in ("db-journal4", "db-journal5-killed"):
        recorded = Recorded(f"disk/{folder}/contents.json", tmp_path / folder)
        refuse_foreign_storage([str(recorded.path / LEDGERS)], OsFiles().list)
    (tmp_path / "empty/0/1").mkdir(parents=True)
    refuse_foreign_storage([str(tmp_path / "empty")], OsFiles().list)
    converted = tmp_path / "db-journal4" / LEDGERS
    (converted / "0/1").mkdir(parents=True)
    (converted / "0/1/1.idx").touch()
    refuse_foreign_storage([str(converted)], OsFiles().list)
