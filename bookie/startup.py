"""Opens the storage of a bookie: replay of the journal, a full flush, and a new journal file.

    marks ──▶ records after them ──▶ write cache ──▶ flush ──▶ new journal file ──▶ marks at its beginning

Rules:

1. Nothing is served before the flush has succeeded (I51): replayed entries then no longer depend on a journal whose
   end may be torn.
2. Replay may run any number of times: a crash during it leaves the old marks, so the same records are replayed again.
3. A new journal id is greater than every one used before; only the very first comes from the clock (I36).
4. What the index does not agree with is reported before anything is served: an index that is older than the marks is
   made anew from the logs, and logs that lack entries which the index names are listed (`bookie.storage.known`).
"""

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from bookie.maintenance.rebuild.digest_check import Digest, no_digests
from bookie.maintenance.rebuild.offline import damaged_databases, known_logs, rebuild_index
from bookie.serving.request_rules import RequestRules
from bookie.storage.checkpoint import remove_old_journals
from bookie.storage.entry_log.compacting import finish_compactions
from bookie.storage.entry_log.files import EntryLogs
from bookie.storage.foreign_storage import refuse_foreign_storage
from bookie.storage.index import LEDGERS, LOCATIONS, Index, IndexCorrupt, IndexForeign
from bookie.storage.journal import format as journal_format
from bookie.storage.journal.format import START, Mark
from bookie.storage.journal.replay import is_apaches, is_ours, replay
from bookie.storage.journal.writer import JournalSettings, JournalWriter, list_files
from bookie.storage.known import MARKS_NOTE, decode_marks, marks_problem
from bookie.storage.ledger_storage import FLUSH_PIECE_BYTES, LedgerDirectory, LedgerStorage, read_marks
from bookie.storage.ledgers import Ledger, Ledgers
from bookie.storage.log_check import check_logs
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.types import GIB, MIB, Corruption

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    journal: JournalSettings = field(default_factory=JournalSettings)
    journal_backups: int = 5
    write_cache_bytes: int = 64 * MIB
    read_cache_bytes: int = 64 * MIB
    block_cache_bytes: int = 32 * MIB
    log_bytes_max: int = GIB
    log_page_cache_bytes: int = 64 * MIB
    read_ahead_entries: int = 100
    flush_piece_bytes: int = FLUSH_PIECE_BYTES
    skip_invalid_journal: bool = False
    """Ignore the records after damage in the journal; the storage then `needs_check`."""


class Opened(NamedTuple):
    """A storage that holds every acknowledged entry."""

    storage: LedgerStorage
    rules: RequestRules
    cache: WriteCache
    writers: list[JournalWriter]
    """One for each journal directory, each with a new file."""


def open_storage(
    files: Files,
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
    settings: StorageSettings,
    open_index: Callable[[str, int], Index],
    wall_ms: int,
    digest_of: Callable[[int], Digest | None] = no_digests,
) -> Opened:
    """Open, replay, flush. Blocks. Raises Corruption, OSError.

    If the storage `needs_check` afterwards, entries or ledgers may be missing: the caller must put the ledgers that
    metadata names into limbo before anything is served. Raises ForeignStorage for directories of another storage.

    *open_index(directory, cache bytes)* opens the index of a ledger directory; *digest_of(ledger id)* returns
    the digest with which a rebuild of the index checks the ledger's entries.
    """
    # First of all, because a rebuild of the index would treat such a directory as ours.
    refuse_foreign_storage(ledger_directories, files.list)
    directories: list[LedgerDirectory] = []
    problems: list[str] = []
    try:
        marks = read_marks(files, ledger_directories, len(journal_directories))
        belongs = partial(_marks_problem, files, journal_directories, marks)
        for directory in ledger_directories:
            opened, its_problems = _open_directory(files, directory, settings, open_index, wall_ms, digest_of, belongs)
            directories.append(opened)
            problems += its_problems
        storage = LedgerStorage(
            files,
            directories,
            len(journal_directories),
            read_ahead_entries=settings.read_ahead_entries,
            flush_piece_bytes=settings.flush_piece_bytes,
        )
        for opened in directories:
            finish_compactions(files, opened.logs, opened.index)
            check_logs(files, opened)
        ledgers = Ledgers()
        storage.read_tombstones(ledgers.tombstones)
        for opened in directories:
            ledgers.load(opened.index.ledgers())
        cache = WriteCache(settings.write_cache_bytes)
        rules = RequestRules(ledgers, cache, ReadCache(settings.read_cache_bytes), settings.journal.version)
        restore = _Restore(rules, cache, storage)
        for directory, mark in zip(journal_directories, marks, strict=True):
            try:
                count = replay(files, directory, mark, restore.apply, was_synced=settings.journal.sync)
            except Corruption as error:
                if not settings.skip_invalid_journal:
                    raise Corruption(
                        f"{error}. To go on without what is lost, set skipReplayJournalInvalidRecord=true for one "
                        "start: the ledgers then answer nothing but what they have until their copies were checked"
                    ) from error
                log.error("the journal is not read to its end (skipReplayJournalInvalidRecord): %s", error)
                problems.append(str(error))
            else:
                if count:
                    log.info("%d journal records replayed from %s", count, directory)
        restore.finish()
        if problems:
            storage.set_needs_check(True)
        writers = [
            JournalWriter(files, directory, settings.journal, _next_journal_id(files, directory, mark, wall_ms))
            for directory, mark in zip(journal_directories, marks, strict=True)
        ]
        new_marks = [writer.mark for writer in writers]
        storage.write_marks(new_marks)
        for directory, mark in zip(journal_directories, new_marks, strict=True):
            remove_old_journals(files, directory, mark, settings.journal_backups)
        return Opened(storage, rules, cache, writers)
    except BaseException:
        for opened in directories:
            with contextlib.suppress(OSError):
                opened.index.close()
        raise


def _open_directory(
    files: Files,
    directory: str,
    settings: StorageSettings,
    open_index: Callable[[str, int], Index],
    wall_ms: int,
    digest_of: Callable[[int], Digest | None],
    marks_problem: Callable[[Index], str],
) -> tuple[LedgerDirectory, tuple[str, ...]]:
    """Open a directory, rebuilding a damaged index. Also returns the reasons why entries of it may be missing.

    *marks_problem(index)*: why the index is not that of the marks; empty if it is.
    """
    logs = EntryLogs(files, directory, settings.log_bytes_max, settings.log_page_cache_bytes)
    opener = partial(open_index, directory, settings.block_cache_bytes)
    damaged = damaged_databases(files, directory)
    known = None
    if damaged:
        known = known_logs(opener)
    else:
        try:
            index = opener()
        except IndexCorrupt as error:
            log.error("the index in %s is damaged and will be rebuilt: %s", directory, error)
            damaged = {LOCATIONS, LEDGERS} if isinstance(error, IndexForeign) else {error.database}
        else:
            problem = marks_problem(index)
            if not problem:
                return LedgerDirectory(directory, logs, opener, index), ()
            log.error("the index in %s is not the newest one here and will be rebuilt: %s", directory, problem)
            index.close()
            damaged = {LOCATIONS, LEDGERS}
    rebuilt = rebuild_index(files, directory, opener, damaged, wall_ms, digest_of, known=known)
    return LedgerDirectory(directory, logs, opener, rebuilt.index), rebuilt.problems


def _marks_problem(files: Files, journal_directories: Sequence[str], marks: Sequence[Mark], index: Index) -> str:
    note = index.notes().get(MARKS_NOTE)
    if note is None:
        return ""
    journals = [list_files(files, directory) for directory in journal_directories]
    for directory, mark, ids in zip(journal_directories, marks, journals, strict=True):
        # Apache's bookie was here since, or replay will refuse the mark.
        if mark != START and (mark.file_id not in ids or not is_ours(files, directory, mark.file_id)):
            return ""
        if mark.file_id + 1 in ids and is_apaches(files, directory, mark.file_id + 1):
            return ""  # its mark may be in our last file
    return marks_problem(decode_marks(note), marks, journals)


def _next_journal_id(files: Files, directory: str, mark: Mark, wall_ms: int) -> int:
    """Rule 3."""
    ids = list_files(files, directory)
    newest = max(ids[-1] if ids else 0, mark.file_id)
    return newest + 1 if newest else wall_ms + 1


class _Restore:
    """Puts journal records back into the storage."""

    def __init__(self, rules: RequestRules, cache: WriteCache, storage: LedgerStorage) -> None:
        self._rules = rules
        self._ledgers = rules.ledgers
        self._cache = cache
        self._storage = storage
        self._skipped = 0

    def apply(self, record: journal_format.Record) -> None:
        """Raises Corruption, OSError."""
        ledger = self._ledgers.get(record.ledger_id)
        kind = record.entry_id
        if ledger is None and record.ledger_id in self._ledgers.tombstones:
            self._skipped += 1
            return
        if kind == journal_format.LEDGER_KEY:
            if ledger is None:
                self._create(record.ledger_id, record.blob())
            elif not any(ledger.master_key):
                ledger.master_key = record.blob()
                self._ledgers.changed(ledger)
        elif kind == journal_format.FENCE:
            if ledger is None:
                # Apache's bookie journals the fence of an unknown ledger without its key, and loses the fence in a
                # crash. Here a ledger without a key takes the first key that it is sent, so the fence can be kept.
                ledger = self._create(record.ledger_id, b"")
            ledger.fenced = True
            self._ledgers.changed(ledger)
        elif ledger is None:
            # Neither the index nor the journal has a key for the ledger: it was deleted after this record was written.
            self._skipped += 1
        elif kind >= 0:
            self._rules.replay(ledger, kind, record.data)
            if self._cache.wants_flush:
                self._flush()
        elif kind == journal_format.EXPLICIT_LAC:
            ledger.see_explicit_lac(record.blob())
            self._ledgers.changed(ledger)
        # Other negative ids are records of newer versions, for features that are not here.

    def _create(self, ledger_id: int, master_key: bytes) -> Ledger:
        """Make a ledger whose row the index does not have. Its last entry does not count as known: a crash in a flush
        leaves entries in the storage before their row is written, and the journal may not have these any more."""
        ledger = self._ledgers.create(ledger_id, master_key)
        ledger.is_tail_known = False
        return ledger

    def finish(self) -> None:
        """Flush the rest; the storage then holds everything. Raises OSError."""
        self._flush()
        for ledger in self._ledgers:
            ledger.is_fence_durable = ledger.fenced
        if self._skipped:
            log.info("%d journal records of ledgers that are gone were passed over", self._skipped)

    def _flush(self) -> None:
        if not self._cache.is_empty or self._ledgers.is_dirty:
            self._storage.flush(self._cache.swap(), self._ledgers.take_dirty())
            self._cache.flushed()
