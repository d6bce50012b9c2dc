"""An entry log that compaction writes: a copy of the live entries of an older one.

    <new>.log.compacting ──sealed, synced──▶ <new>.log  (and <new>.log.<old>.compacted, empty, while it lasts)
                                               ──locations moved, index synced──▶ <old>.log removed ──▶ marker removed

The names are those of Apache's transactional compaction. Rules:

1. Until the new log has its final name nothing refers to it: a crash leaves a file that the next start removes.
2. The marker exists before the final name. While it exists, some locations lead into the old log and some into the new
   one. Both logs have all entries, so a crash loses nothing (I43). The next start moves the remaining locations.
3. A location moves only if it still leads into the old log: an entry that was written again meanwhile, or whose ledger
   was deleted, stays as it is. The flusher's thread moves locations, so that no flush comes in between.
"""

import contextlib
import logging
import posixpath
from collections.abc import Sequence
from itertools import islice

from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import EntryLogs, file_name
from bookie.storage.index import Index
from bookie.storage.known import newest
from magnetar_core.runtime.files import File, Files
from magnetar_core.runtime.types import Buffer, Corruption

log = logging.getLogger(__name__)

_COMPACTING = ".compacting"
_COMPACTED = ".compacted"

# Locations that are looked up and moved in one job: 4 µs each, so a flush waits for 2 ms.
MOVES_MAX = 500


class CompactingLog:
    """The new log while it is being written. Used by one thread."""

    def __init__(self, files: Files, directory: str, log_id: int, old_log_id: int) -> None:
        """Raises OSError."""
        self.log_id = log_id
        self._files = files
        self._directory = directory
        self._path = posixpath.join(directory, file_name(log_id))
        self._marker = f"{self._path}.{old_log_id:x}{_COMPACTED}"
        self.bytes_of_ledgers: dict[int, int] = {}
        self._file: File = files.create(self._path + _COMPACTING)
        try:
            self._file.append([fmt.encode_header()])
        except OSError:
            self.abandon()
            raise

    def append(self, entries: Sequence[tuple[int, bytes]]) -> None:
        """Append (ledger id, entry). Raises OSError."""
        parts: list[Buffer] = []
        for ledger_id, entry in entries:
            parts += (fmt.SIZE.pack(len(entry)), entry)
            before = self.bytes_of_ledgers.get(ledger_id, 0)
            self.bytes_of_ledgers[ledger_id] = before + fmt.SIZE.size + len(entry)
        self._file.append([b"".join(parts)])

    def sync(self) -> None:
        self._file.sync()

    def finish(self) -> None:
        """Seal the log and rename it to its final name (rule 2). Raises OSError."""
        file = self._file
        map_offset = file.append([fmt.encode_map(self.bytes_of_ledgers)])
        file.write_at(fmt.SEAL_OFFSET, fmt.encode_seal(map_offset, len(self.bytes_of_ledgers)))
        file.sync()
        file.close()
        self._files.create(self._marker).close()
        self._files.sync_directory(self._directory)
        self._files.rename(self._path + _COMPACTING, self._path)
        self._files.sync_directory(self._directory)

    def done(self) -> None:
        """All locations are in the index, durably: remove the marker. Raises OSError."""
        self._files.remove(self._marker)
        self._files.sync_directory(self._directory)

    def abandon(self) -> None:
        """Give the compaction up and remove the new log."""
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._files.remove(self._path + _COMPACTING)


class Mover:
    """Moves the locations of a finished log, some at a time. On the flusher's thread."""

    def __init__(self, logs: EntryLogs, index: Index, log_id: int, old_log_id: int) -> None:
        """Raises OSError, Corruption."""
        self._index = index
        self._log_id = log_id
        self._old_log_id = old_log_id
        self._records = iter(logs.scan(log_id))
        self.moved = 0

    def step(self) -> bool:
        """Move some; False when there are no more. Raises OSError, Corruption."""
        records = list(islice(self._records, MOVES_MAX))
        moves: list[tuple[int, int, int]] = []
        for offset, _, ledger_id, entry_id in records:
            now = self._index.location(ledger_id, entry_id)
            if now and fmt.split_location(now)[0] == self._old_log_id:
                moves.append((ledger_id, entry_id, fmt.location(self._log_id, offset)))
        self._index.put_locations(moves)
        self._index.put_notes(newest(moves))
        self.moved += len(moves)
        return bool(records)


def finish_compactions(files: Files, logs: EntryLogs, index: Index) -> None:
    """After a start: complete or undo the compactions that a crash interrupted (rules 1, 2). Raises OSError,
    Corruption."""
    directory = logs.directory
    for name in files.list(directory):
        path = posixpath.join(directory, name)
        if name.endswith(_COMPACTING):
            log.info("%s was not finished; removed", path)
            files.remove(path)
        elif name.endswith(_COMPACTED) and _move_rest(files, logs, index, name):
            files.remove(path)
    files.sync_directory(directory)


def _move_rest(files: Files, logs: EntryLogs, index: Index, marker: str) -> bool:
    """Move the remaining locations. False if the new log cannot be read: then the marker stays for a later start, and
    the locations as they are. Raises OSError of the index."""
    try:
        new_text, _, old_text, _ = marker.split(".")
        log_id, old_log_id = int(new_text, 16), int(old_text, 16)
    except ValueError:
        log.warning("%s: %s names no logs; removed", logs.directory, marker)
        return True
    # If the new log is missing, nothing refers to it. If the old one is missing, everything was moved.
    for needed in (log_id, old_log_id):
        if not files.exists(posixpath.join(logs.directory, file_name(needed))):
            return True
    try:
        for _ in logs.scan(log_id):  # read it all first, so that an OSError below is the index's
            pass
    except (Corruption, OSError) as error:
        log.error("%s: entries of log %x stay where they are: %s", logs.directory, old_log_id, error)
        return False
    mover = Mover(logs, index, log_id, old_log_id)
    while mover.step():
        pass
    index.sync()
    log.info("%s: %d entries moved from log %x to %x", logs.directory, mover.moved, old_log_id, log_id)
    return True
