"""The index is derived: what it says can be read off the entry logs again.

    damaged database ──set aside──▶ new one, marked REBUILDING ──every entry of every log──▶ synced ──▶ mark removed

Rules:

1. All ledgers are fenced afterwards: whether one was may be what was lost. Writers recover and go on elsewhere.
2. What the journal holds behind the mark comes on top of it, by the replay that follows.
3. If the database `ledgers` was damaged, or a log has places that cannot be read, ledgers or entries may be missing:
   then a negative answer proves nothing until the copies were checked (`needs_check`, see `bookie.integrity`).
4. Until the rebuild is whole it is repeated by every start.
"""

import logging
import posixpath
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from bookie.entry_log import format as fmt
from bookie.entry_log.files import EntryLogs, list_logs
from bookie.index import LEDGERS, LOCATIONS, REBUILDING, Index, IndexCorrupt
from bookie.storage_pb2 import LedgerData
from magnetar.runtime.files import Files
from magnetar.runtime.types import Corruption

log = logging.getLogger(__name__)

DATABASES: Final = (LOCATIONS, LEDGERS)

# Locations that are put at a time: a few hundred KiB.
_BATCH: Final = 1_000


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What came of it."""

    index: Index
    entries: int
    ledgers: int
    problems: tuple[str, ...]
    """Why entries or ledgers may be missing; empty if nothing can be."""


def damaged_databases(files: Files, directory: str) -> set[str]:
    """Databases of a ledger directory whose rebuild was begun and not finished (rule 4)."""
    return {name for name in DATABASES if files.exists(posixpath.join(directory, name, REBUILDING))}


def rebuild_index(
    files: Files,
    logs: EntryLogs,
    open_index: Callable[[], Index],
    damaged: Collection[str],
    wall_ms: int,
) -> Rebuilt:
    """Rebuild the *damaged* databases of a ledger directory from its entry logs. Blocks, may take minutes.

    Raises OSError, Corruption.
    """
    directory = logs.directory
    names = set(damaged)
    while True:
        for name in names:
            _set_aside(files, directory, name, wall_ms)
        try:
            index = open_index()
            break
        except IndexCorrupt as error:  # the other one as well
            if error.database in names:
                raise
            names.add(error.database)
    problems: list[str] = []
    if LEDGERS in names:
        problems.append(f"the database {LEDGERS} in {directory} was damaged: ledgers without entries may be missing")
    known = {ledger_id for ledger_id, _ in index.ledgers()}
    seen: set[int] = set()
    entries = 0
    batch: list[tuple[int, int, int]] = []
    for log_id in list_logs(files, directory):
        try:
            scan = logs.scan(log_id)
            for offset, _, ledger_id, entry_id in scan:
                if LEDGERS not in names and ledger_id not in known:
                    continue  # deleted
                seen.add(ledger_id)
                batch.append((ledger_id, entry_id, fmt.location(log_id, offset)))
                if len(batch) >= _BATCH:
                    entries += len(batch)
                    index.put_locations(batch)
                    batch = []
        except Corruption as error:
            problems.append(str(error))
            continue
        if scan.has_gap:
            problems.append(f"log {log_id:x} in {directory} has damaged places; entries in them are lost here")
    entries += len(batch)
    index.put_locations(batch)
    index.put_ledgers(_fenced_rows(index, seen))
    index.sync()
    for name in names:
        marker = posixpath.join(directory, name, REBUILDING)
        if files.exists(marker):
            files.remove(marker)
            files.sync_directory(posixpath.dirname(marker))
    log.warning("the index in %s was rebuilt: %d entries of %d ledgers", directory, entries, len(seen | known))
    for problem in problems:
        log.error("%s", problem)
    return Rebuilt(index, entries, len(seen | known), tuple(problems))


def _fenced_rows(index: Index, seen: Collection[int]) -> list[tuple[int, bytes]]:
    """Rule 1. A ledger whose key is lost takes the first one that comes."""
    rows: dict[int, LedgerData] = {ledger_id: LedgerData(exists=True, fenced=True, masterKey=b"") for ledger_id in seen}
    for ledger_id, row in index.ledgers():
        data = LedgerData()
        data.ParseFromString(row)
        data.fenced = True
        rows[ledger_id] = data
    return [(ledger_id, data.SerializeToString()) for ledger_id, data in sorted(rows.items())]


def _set_aside(files: Files, directory: str, name: str, wall_ms: int) -> None:
    """Keep the newest damaged database for whoever wants to look at it; older ones are emptied."""
    path = posixpath.join(directory, name)
    aside = f"{name}.damaged-"
    for other in files.list(directory):
        if other.startswith(aside):
            for file_name in files.list(posixpath.join(directory, other)):
                files.remove(posixpath.join(directory, other, file_name))
    if files.exists(path):
        files.rename(path, posixpath.join(directory, f"{aside}{wall_ms}"))
    files.make_directories(path)
    files.create(posixpath.join(path, REBUILDING)).close()
    files.sync_directory(path)
    files.sync_directory(directory)
