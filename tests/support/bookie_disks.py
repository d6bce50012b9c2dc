"""A bookie's disk and index in memory: opened, used without threads, crashed, opened again."""

import random
from collections.abc import Callable

from bookie.serving.request_rules import RequestRules
from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.index import Index, MemoryIndex
from bookie.storage.journal.writer import Item, JournalSettings, NoSpace
from bookie.storage.ledger_storage import LedgerStorage
from bookie.storage.write_cache import WriteCache
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, master_key
from magnetar_core.runtime.types import MIB, Buffer

KEY = master_key(b"")
OTHER_KEY = master_key(b"other")
CODEC = EntryCodec(DigestType.CRC32C, b"")

TINY = StorageSettings(
    journal=JournalSettings(alignment_bytes=512, file_bytes_max=8192, preallocation_bytes=4096),
    journal_backups=1,
    write_cache_bytes=64 * 1024,
    read_cache_bytes=16 * 1024,
    block_cache_bytes=MIB,
    log_bytes_max=16 * 1024,
    log_page_cache_bytes=4096,
    read_ahead_entries=5,
    flush_piece_bytes=512,
)


def stored_entry(ledger_id: int, entry_id: int, payload: bytes = b"", last_add_confirmed: int | None = None) -> bytes:
    """An entry as a client sends it; LAC is entry_id - 1 unless told."""
    lac = entry_id - 1 if last_add_confirmed is None else last_add_confirmed
    return CODEC.head(ledger_id, entry_id, lac, len(payload), payload) + payload


class Disk:
    """The parts of a bookie that outlive its process: disk and index."""

    def __init__(self, files: MemoryFiles | None = None, journals: int = 1, ledgers: int = 1) -> None:
        self.files = MemoryFiles() if files is None else files
        self.journal_directories = [f"/j{number}/current" for number in range(journals)]
        self.ledger_directories = [f"/l{number}/current" for number in range(ledgers)]
        for directory in (*self.journal_directories, *self.ledger_directories):
            self.files.make_directories(directory)
        self.indexes = {directory: MemoryIndex() for directory in self.ledger_directories}

    def open_index(self, directory: str, cache_bytes: int) -> Index:
        return self.indexes[directory]

    def open(self, settings: StorageSettings = TINY) -> "OpenedDisk":
        return OpenedDisk(self, settings)

    def crash(self, rng: random.Random, unsynced: float = 0.5) -> "Disk":
        """The disk as it may look if the power failed now."""
        after = Disk(self.files.crash(rng, unsynced), len(self.journal_directories), len(self.ledger_directories))
        after.indexes = {name: index.crash(rng, unsynced) for name, index in self.indexes.items()}
        return after


class Entries:
    """Reads entries of a storage, wherever they are: in the write cache or on disk."""

    storage: LedgerStorage
    rules: RequestRules
    cache: WriteCache

    def read(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The entry from memory or disk; None if it is not there."""
        found = self.rules.read(ledger_id, entry_id)
        if isinstance(found, bytes):
            return found
        if found is not None:
            return None
        return self.storage.read(ledger_id, entry_id).entry

    def entry_ids(self, ledger_id: int) -> set[int]:
        return self.cache.entry_ids(ledger_id).union(self.storage.entry_ids(ledger_id))


class OpenedDisk(Entries):
    """A bookie's storage with everything done in the caller's thread."""

    def __init__(self, disk: Disk, settings: StorageSettings = TINY) -> None:
        self.disk = disk
        opened: Opened = open_storage(
            disk.files, disk.journal_directories, disk.ledger_directories, settings, disk.open_index, 1_700_000_000_000
        )
        self.storage, self.rules, self.cache, self.writers = opened
        self.records: list[list[Buffer]] = [[] for _ in self.writers]

    def add(self, ledger_id: int, entry_id: int, entry: bytes, *, key: bytes = KEY, recovery: bool = False) -> int:
        """Take an add; it is durable after `sync` only."""
        return self.rules.add(ledger_id, entry_id, key, entry, recovery, False, self._records(ledger_id))

    def fence(self, ledger_id: int, key: bytes = KEY) -> int:
        return self.rules.fence(ledger_id, key, self._records(ledger_id))[0]

    def write_lac(self, ledger_id: int, lac: int) -> int:
        return self.rules.write_lac(KEY, CODEC.explicit_lac(ledger_id, lac), self._records(ledger_id))

    def sync(self, must_sync: bool = True) -> NoSpace | None:
        """Write the adds taken so far to the journals, and make them durable."""
        refusal = None
        for number, writer in enumerate(self.writers):
            records, self.records[number] = self.records[number], []
            item: Item = (records, must_sync, lambda argument, error: None, None)
            refusal = writer.write([item]) or refusal
        return refusal

    def checkpoint(self) -> None:
        """Flush the write cache and move the marks."""
        marks = [writer.durable_mark for writer in self.writers]
        self.storage.flush(self.cache.swap(), self.rules.ledgers.take_dirty())
        self.storage.write_marks(marks)
        self.cache.flushed()

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.storage.close()

    def _records(self, ledger_id: int) -> list[Buffer]:
        return self.records[ledger_id % len(self.records)]


def on_each_operation(files: MemoryFiles, call: Callable[[str, str], None]) -> Callable[[], None]:
    """Call *call(kind, path)* before each change of the disk, until what is returned is called."""
    files.on_operation.append(call)
    return lambda: files.on_operation.remove(call)
