"""The index of one ledger directory: where its entries are, and the rows of its ledgers.

Two databases in Apache's form:

    locations   ledgerId (8), entryId (8)  →  location (8)      (log id << 32) + offset; big-endian
    ledgers     ledgerId (8)               →  LedgerData (protobuf)

`RocksIndex` keeps them in RocksDB. `MemoryIndex` is for tests and can lose changes that were not synced.

Rules:

1. `put_…` are visible at once and durable after `sync` has returned. A crash loses only the newest changes.
2. One thread at a time writes; any thread reads.
3. Keys are big-endian and ids are not negative, so keys sort like the numbers. (Apache stores its storage flags under a
   negative ledger id, which sorts after all ledgers and is skipped.)
4. Notes are small values of ours in `locations` under a negative ledger id, where Apache's bookie does not look. They
   say what else there must be: entry logs, marks, and how far `ledgers` is (`bookie.storage.known`).
5. A database whose folder lost files that RocksDB does not miss (its newest log, all, the end of its list of tables),
   or is another one's, is IndexCorrupt: it would call entries and fences absent.
"""

import os
import posixpath
import random
import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, ParamSpec, Protocol, TypeVar, cast

from rocksdict import (
    AccessType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    ChecksumType,
    DBCompressionType,
    Options,
    Rdict,
    ReadOptions,
    WriteBatch,
)

from magnetar_core.runtime.types import KIB, MIB

P = ParamSpec("P")
T = TypeVar("T")

_LEDGER_KEY: Final = struct.Struct(">q")
_END: Final = struct.Struct(">Q")  # also one above the largest ledger id
_KEY: Final = struct.Struct(">qq")
_LOCATION: Final = struct.Struct(">q")

FLAGS_LEDGER_ID: Final = -0xEEFD
"""The ledger id under which Apache keeps the storage flags."""

FLAG_NEEDS_INTEGRITY_CHECK: Final = 1

_NOTES_LEDGER_ID: Final = -0x4D47
"""The ledger id of notes (rule 4). The second half of the key is the note's number."""

_LEDGERS_NOTE: Final = -0x100
"""The note of `RocksIndex` about the database `ledgers`: how many changes it has at least, and its identity."""

_CHANGES: Final = struct.Struct(">q")
_IDENTITY_SIZE: Final = 64

# A batch holds the GIL while it is written: 200,000 operations stall the event loop for 49 ms, a thousand for 0.25 ms.
BATCH_OPERATIONS_MAX: Final = 1_000


# Steps of a look-up that ends where the caller's read does. A read of 512 KiB holds few large entries.
_WITHIN_AT_ONCE: Final = 32

LOCATIONS: Final = "locations"
LEDGERS: Final = "ledgers"
REBUILDING: Final = "REBUILDING"
"""A file in a database's folder: the database is not complete, see `bookie.maintenance.rebuild.offline`."""


class IndexCorrupt(OSError):
    """A database is damaged, as RocksDB reports, or missing. It can be rebuilt
    (`bookie.maintenance.rebuild.offline`)."""

    def __init__(self, text: str, database: str = LOCATIONS) -> None:
        super().__init__(text)
        self.database = database


class IndexForeign(IndexCorrupt):
    """The two databases do not belong to each other: one of them is older, or another bookie's."""


class Index(Protocol):
    """The two databases. Errors of the database are OSError."""

    def put_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        """Put (ledger id, entry id, location); replaces former locations."""
        ...

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Put (ledger id, LedgerData); replaces former rows."""
        ...

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Delete rows and locations of ledgers."""
        ...

    def put_flags(self, flags: int) -> None:
        """Apache's storage flags, a bit set."""
        ...

    def flags(self) -> int: ...

    def put_notes(self, notes: Mapping[int, bytes | None]) -> None:
        """Put notes by number, or delete those that are None (rule 4)."""
        ...

    def notes(self) -> dict[int, bytes]: ...

    def delete_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        """Delete (ledger id, entry id, location), as far as the index still has that location."""
        ...

    def compact_locations(self) -> None:
        """Free the space of deleted locations. May take long; other calls are possible meanwhile."""
        ...

    def sync(self) -> None:
        """Return when everything put before this call survives a power cut."""
        ...

    def location(self, ledger_id: int, entry_id: int) -> int:
        """The location of an entry; 0 if the index does not have it."""
        ...

    def locations(
        self, ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
    ) -> list[tuple[int, int]]:
        """(entry id, location) of up to *count* entries from *first_entry_id* on, ascending; gaps are possible.

        *within_bytes*: the caller reads at most so many bytes of a log from the first entry on. Entries that lie beyond
        them, before the first one or in another log are of no use to it, so the list may end behind any of these.
        """
        ...

    def last_entry_id(self, ledger_id: int) -> int:
        """The largest entry id of the ledger; -1 if there is none."""
        ...

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        """(ledger id, LedgerData) of every ledger."""
        ...

    def close(self) -> None: ...


class RocksIndex:
    """The index in RocksDB, in the folders `locations` and `ledgers` below *directory*."""

    def __init__(self, directory: str, cache_bytes: int) -> None:
        # One cache for both databases. In RocksDB's default cache, index and bloom blocks evict each other, and a get
        # costs 18 to 460 µs instead of 4.
        cache = Cache(cache_bytes)
        # RocksDB treats a folder without its file CURRENT as a new database and removes the files it finds there, and
        # does not miss its newest log.
        is_used = os.path.isdir(directory) and any(map(_is_of_a_used_directory, os.listdir(directory)))
        for name in (LOCATIONS, LEDGERS):
            path = posixpath.join(directory, name)
            files = os.listdir(path) if os.path.isdir(path) else []
            if is_used and "CURRENT" not in files and REBUILDING not in files:
                raise IndexCorrupt(f"RocksDB: {path} is missing, but the directory is in use", name)
            if "CURRENT" in files and not any(file.endswith(".log") for file in files):
                raise IndexCorrupt(f"RocksDB: {path} has no log (*.log), so its newest changes are missing", name)
        self._ledgers_path = posixpath.join(directory, LEDGERS)
        self._locations_path = posixpath.join(directory, LOCATIONS)
        is_new = os.path.exists(posixpath.join(self._ledgers_path, REBUILDING))
        self._locations = _open(self._locations_path, cache)
        try:
            self._ledgers = _open(self._ledgers_path, cache)
        except BaseException:
            self._locations.close()
            raise
        self._identity = _identity(self._ledgers_path)
        self._ledgers_changes = -1
        try:
            if not is_new:
                self._check_ledgers()
        except BaseException:
            self.close()
            raise

    def put_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        key, value = _KEY.pack, _LOCATION.pack
        for first in range(0, len(items), BATCH_OPERATIONS_MAX):
            batch = WriteBatch(raw_mode=True)
            put = batch.put
            for ledger_id, entry_id, location in items[first : first + BATCH_OPERATIONS_MAX]:
                put(key(ledger_id, entry_id), value(location))
            _checked(self._locations.write, batch)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        for first in range(0, len(rows), BATCH_OPERATIONS_MAX):
            batch = WriteBatch(raw_mode=True)
            for ledger_id, row in rows[first : first + BATCH_OPERATIONS_MAX]:
                batch.put(_LEDGER_KEY.pack(ledger_id), row)
            _checked(self._ledgers.write, batch)

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        for first in range(0, len(ledger_ids), BATCH_OPERATIONS_MAX):
            locations, rows = WriteBatch(raw_mode=True), WriteBatch(raw_mode=True)
            for ledger_id in ledger_ids[first : first + BATCH_OPERATIONS_MAX]:
                locations.delete_range(_KEY.pack(ledger_id, 0), _END.pack(ledger_id + 1))
                rows.delete(_LEDGER_KEY.pack(ledger_id))
            _checked(self._locations.write, locations)
            _checked(self._ledgers.write, rows)

    def put_flags(self, flags: int) -> None:
        _checked(self._ledgers.put, _LEDGER_KEY.pack(FLAGS_LEDGER_ID), _LOCATION.pack(flags))

    def flags(self) -> int:
        value = _checked(self._ledgers.get, _LEDGER_KEY.pack(FLAGS_LEDGER_ID))
        return 0 if value is None else int(_LOCATION.unpack(value)[0])

    def put_notes(self, notes: Mapping[int, bytes | None]) -> None:
        batch = WriteBatch(raw_mode=True)
        for number, note in notes.items():
            if note is None:
                batch.delete(_KEY.pack(_NOTES_LEDGER_ID, number))
            else:
                batch.put(_KEY.pack(_NOTES_LEDGER_ID, number), note)
        _checked(self._locations.write, batch)

    def notes(self) -> dict[int, bytes]:
        options = ReadOptions()
        options.set_iterate_upper_bound(_LEDGER_KEY.pack(_NOTES_LEDGER_ID + 1))
        iterator = self._locations.iter(options)
        _checked(iterator.seek, _LEDGER_KEY.pack(_NOTES_LEDGER_ID))
        notes: dict[int, bytes] = {}
        while iterator.valid():
            notes[_KEY.unpack(iterator.key())[1]] = iterator.value()
            iterator.next()
        _checked(iterator.status)
        notes.pop(_LEDGERS_NOTE, None)
        return notes

    def delete_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        for first in range(0, len(items), BATCH_OPERATIONS_MAX):
            batch = WriteBatch(raw_mode=True)
            for ledger_id, entry_id, location in items[first : first + BATCH_OPERATIONS_MAX]:
                if self.location(ledger_id, entry_id) == location:
                    batch.delete(_KEY.pack(ledger_id, entry_id))
            _checked(self._locations.write, batch)

    def compact_locations(self) -> None:
        _checked(self._locations.compact_range, None, None)

    def sync(self) -> None:
        _checked(self._ledgers.flush_wal, True)
        # After it is durable, so that it is never ahead of what the disk has.
        changes = self._ledgers.latest_sequence_number()
        if changes != self._ledgers_changes:
            self._ledgers_changes = changes
            note = _CHANGES.pack(changes) + self._identity
            _checked(self._locations.put, _KEY.pack(_NOTES_LEDGER_ID, _LEDGERS_NOTE), note)
        _checked(self._locations.flush_wal, True)

    def _check_ledgers(self) -> None:
        """Rule 5. Raises IndexCorrupt."""
        note = _checked(self._locations.get, _KEY.pack(_NOTES_LEDGER_ID, _LEDGERS_NOTE))
        if note is None:
            # Apache's bookie writes no notes, but it has locations of its ledgers' entries; a file that lists the
            # tables of a database, and was cut, leaves an empty one.
            is_lost = self._ledgers.latest_sequence_number() and not self._locations.latest_sequence_number()
            if is_lost and not os.path.exists(posixpath.join(self._locations_path, REBUILDING)):
                raise IndexCorrupt(f"RocksDB: {self._locations_path} is empty, and there are ledgers", LOCATIONS)
            return
        (changes,) = _CHANGES.unpack_from(note)
        present = self._ledgers.latest_sequence_number()
        if note[_CHANGES.size :] != self._identity:
            raise IndexForeign(f"RocksDB: {self._ledgers_path} is not the database that belongs here", LEDGERS)
        if present < changes:
            raise IndexCorrupt(
                f"RocksDB: {self._ledgers_path} has {present} changes and had {changes}: its newest ones are missing",
                LEDGERS,
            )

    def location(self, ledger_id: int, entry_id: int) -> int:
        value = _checked(self._locations.get, _KEY.pack(ledger_id, entry_id))
        return 0 if value is None else int(_LOCATION.unpack(value)[0])

    def locations(
        self, ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
    ) -> list[tuple[int, int]]:
        options = ReadOptions()
        options.set_iterate_upper_bound(_END.pack(ledger_id + 1))
        first = _KEY.pack(ledger_id, first_entry_id)
        items = cast(Iterator[tuple[bytes, bytes]], self._locations.items(from_key=first, read_opt=options))
        pairs: list[tuple[bytes, bytes]] = []
        at_once = count if within_bytes is None else _WITHIN_AT_ONCE
        wanted = 0
        while wanted == len(pairs) < count:
            wanted = min(wanted + at_once, count)
            pairs += _checked(lambda some: list(islice(items, some)), wanted - len(pairs))
            if within_bytes is not None and pairs and not _is_within(pairs[0][1], pairs[-1][1], within_bytes):
                break
        if len(pairs) < wanted:
            # `items` ends in the same way at the end and on an error.
            iterator = self._locations.iter(options)
            _checked(iterator.seek, pairs[-1][0] if pairs else first)
            if pairs and iterator.valid():
                iterator.next()
            while len(pairs) < wanted and iterator.valid():
                pairs.append((iterator.key(), iterator.value()))
                iterator.next()
            if len(pairs) < wanted:
                _checked(iterator.status)
        if not pairs:
            return []
        keys, values = zip(*pairs, strict=True)
        entry_ids = struct.unpack(f">{2 * len(keys)}q", b"".join(keys))[1::2]
        return list(zip(entry_ids, struct.unpack(f">{len(values)}q", b"".join(values)), strict=True))

    def last_entry_id(self, ledger_id: int) -> int:
        iterator = self._locations.iter()
        _checked(iterator.seek_for_prev, _KEY.pack(ledger_id, 2**63 - 1))
        if iterator.valid():
            found_ledger_id, entry_id = _KEY.unpack(iterator.key())
            return int(entry_id) if found_ledger_id == ledger_id else -1
        _checked(iterator.status)
        return -1

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        iterator = self._ledgers.iter()
        _checked(iterator.seek_to_first)
        while iterator.valid():
            (ledger_id,) = _LEDGER_KEY.unpack(iterator.key())
            if ledger_id >= 0:
                yield ledger_id, iterator.value()
            iterator.next()
        _checked(iterator.status)

    def checkpoint(self, directory: str) -> None:
        """Put both databases as they are now into *directory*, on the same file system: their tables are linked. On the
        thread that writes. Raises OSError."""
        # `ledgers` first: `locations` has the note of how far it is.
        for name, database in ((LEDGERS, self._ledgers), (LOCATIONS, self._locations)):
            _checked(Checkpoint(database).create_checkpoint, posixpath.join(directory, name))

    def close(self) -> None:
        try:
            _checked(self._locations.close)
        finally:
            _checked(self._ledgers.close)


def _is_of_a_used_directory(name: str) -> bool:
    return name.endswith(".log") or name.startswith(("lastMark", "lastId"))


def _identity(path: str) -> bytes:
    """The identity that RocksDB gave a database when it was made."""
    try:
        with open(posixpath.join(path, "IDENTITY"), "rb") as file:
            return file.read(_IDENTITY_SIZE)
    except FileNotFoundError:
        return b""


def _is_within(first: bytes, last: bytes, within_bytes: int) -> bool:
    """Whether the location *last* stands less than so far behind *first*. Those of two logs are 2 GiB apart or more."""
    return 0 <= int.from_bytes(last) - int.from_bytes(first) < within_bytes


def _checked(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    try:
        return call(*arguments, **options)
    except Exception as error:  # rocksdict raises plain Exception
        text = f"RocksDB: {error}"
        if "Corruption" in text:
            raise IndexCorrupt(text) from error
        raise OSError(text) from error


def _open(path: str, cache: Cache) -> Rdict:
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(16 * KIB)
    blocks.set_bloom_filter(10, False)
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_checksum_type(ChecksumType.xxhash())
    blocks.set_format_version(5)  # the newest that Apache's RocksDB 7.9 reads
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(blocks)
    options.set_compression_type(DBCompressionType.lz4())
    options.set_write_buffer_size(16 * MIB)
    options.set_max_write_buffer_number(4)
    options.set_target_file_size_base(64 * MIB)
    options.set_max_bytes_for_level_base(256 * MIB)
    # Each flush touches all ledgers, so each merge rewrites the whole next level. Merging half as often took 4 instead
    # of 9 s of CPU time for ten million entries, and the rate of adds stayed the same to the end.
    options.set_level_zero_file_num_compaction_trigger(8)
    options.set_max_total_wal_size(512 * MIB)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(4 * MIB)
    options.set_stats_dump_period_sec(0)  # no timers in an idle process
    options.set_stats_persist_period_sec(0)
    options.set_max_background_jobs(2)
    try:
        return _checked(lambda: Rdict(path, options, access_type=AccessType.read_write()))
    except OSError as error:
        # A missing table or log that the manifest names is damage, too.
        if isinstance(error, IndexCorrupt) or "No such file" in str(error) or "CURRENT file" in str(error):
            raise IndexCorrupt(f"{path}: {error}", posixpath.basename(path)) from error
        raise


_Change = tuple[str, tuple[int, ...], int | bytes | None]
"""database (`location` or `ledger`), key, value; None deletes, for a `location` with one id all of a ledger"""


class MemoryIndex:
    """The index in memory. `crash` returns it as it may be after a power cut: without the newest unsynced changes."""

    def __init__(self) -> None:
        self._locations: dict[tuple[int, int], int] = {}
        self._order: dict[int, list[int]] = {}
        self._ledgers: dict[int, bytes] = {}
        self._flags = 0
        self._notes: dict[int, bytes] = {}
        self._synced: list[_Change] = []
        self._unsynced: list[_Change] = []
        self.location_compactions = 0

    def put_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        for ledger_id, entry_id, location in items:
            self._put("location", (ledger_id, entry_id), location)

    def put_ledgers(self, rows: Sequence[tuple[int, bytes]]) -> None:
        for ledger_id, row in rows:
            self._put("ledger", (ledger_id,), row)

    def delete_ledgers(self, ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            self._put("location", (ledger_id,), None)
            self._put("ledger", (ledger_id,), None)

    def put_flags(self, flags: int) -> None:
        self._put("ledger", (FLAGS_LEDGER_ID,), flags)

    def flags(self) -> int:
        return self._flags

    def put_notes(self, notes: Mapping[int, bytes | None]) -> None:
        for number, note in notes.items():
            self._put("location", (_NOTES_LEDGER_ID, number), note)

    def notes(self) -> dict[int, bytes]:
        return dict(sorted(self._notes.items()))

    def delete_locations(self, items: Sequence[tuple[int, int, int]]) -> None:
        for ledger_id, entry_id, location in items:
            if self.location(ledger_id, entry_id) == location:
                self._put("location", (ledger_id, entry_id), None)

    def compact_locations(self) -> None:
        self.location_compactions += 1

    def sync(self) -> None:
        self._synced += self._unsynced
        self._unsynced = []

    def location(self, ledger_id: int, entry_id: int) -> int:
        return self._locations.get((ledger_id, entry_id), 0)

    def locations(
        self, ledger_id: int, first_entry_id: int, count: int, within_bytes: int | None = None
    ) -> list[tuple[int, int]]:
        ids = self._order.get(ledger_id, [])
        at = bisect_left(ids, first_entry_id)
        located = [(entry_id, self._locations[ledger_id, entry_id]) for entry_id in ids[at : at + count]]
        if within_bytes is not None:  # as early as it may end
            for number, (_, location) in enumerate(located, start=1):
                if not 0 <= location - located[0][1] < within_bytes:
                    return located[:number]
        return located

    def last_entry_id(self, ledger_id: int) -> int:
        ids = self._order.get(ledger_id, [])
        return ids[-1] if ids else -1

    def ledgers(self) -> Iterator[tuple[int, bytes]]:
        return iter(sorted(self._ledgers.items()))

    def close(self) -> None:
        pass

    def crash(self, rng: random.Random, unsynced: float = 0.5) -> "MemoryIndex":
        """The index after a power cut now. Locations and ledgers lose their newest changes independently."""
        after = MemoryIndex()
        for kind, key, value in self._synced:
            after._put(kind, key, value)
        for kind in ("location", "ledger"):
            waiting = [item for item in self._unsynced if item[0] == kind]
            kept = len(waiting) if unsynced >= 1 else rng.randint(0, len(waiting)) if unsynced > 0 else 0
            for _, key, value in waiting[:kept]:
                after._put(kind, key, value)
        after.sync()
        return after

    def _put(self, kind: str, key: tuple[int, ...], value: int | bytes | None) -> None:
        self._unsynced.append((kind, key, value))
        if kind == "ledger":
            if value is None:
                self._ledgers.pop(key[0], None)
            elif isinstance(value, int):
                self._flags = value
            else:
                self._ledgers[key[0]] = value
            return
        if key[0] == _NOTES_LEDGER_ID:
            assert not isinstance(value, int)
            self._notes.pop(key[1], None)
            if value is not None:
                self._notes[key[1]] = value
            return
        if value is None and len(key) == 1:
            for entry_id in self._order.pop(key[0], []):
                del self._locations[key[0], entry_id]
            return
        if value is None:
            ledger_id, entry_id = key
            self._order[ledger_id].remove(entry_id)
            del self._locations[ledger_id, entry_id]
            return
        assert isinstance(value, int)
        ledger_id, entry_id = key
        ids = self._order.setdefault(ledger_id, [])
        if bisect_right(ids, entry_id) == bisect_left(ids, entry_id):
            insort(ids, entry_id)
        self._locations[ledger_id, entry_id] = value
