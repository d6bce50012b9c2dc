"""What the index of a ledger directory knows of the files beside it: notes, and what does not agree with them. No IO.

    number of the note   its value
    id of a log          location of its newest entry (8), ledger (8), entry (8), entries lost (8), decided (1)
    MARKS_NOTE           {file id (8), offset (8)} of each journal

Rules:

1. A log has a note before its entries can be read: both are in one database, and the note comes after them. So a log of
   which the index has locations and no note was written by somebody else (Apache's bookie, an older version).
2. A note goes before its log does. So a log that has a note and is not there was taken away by somebody else.
3. The entry that a note names stands where it says; if not, the log was cut, emptied, or is another one.
4. A log in which nothing lies has the location 0. One whose losses were reported keeps its note, with their number,
   until the index is rebuilt: so that each start reports it again.
5. Marks are noted before the files `lastMark` have them. An index whose marks are older, or of journal files that do
   not exist, is an older one or another bookie's: entries that it does not have may well be there.
"""

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple

from bookie.storage.entry_log import format as fmt
from bookie.storage.journal.format import MARK, Mark

MARKS_NOTE: Final = -0x200

_LOG: Final = struct.Struct(">qqqq?")


class LogNote(NamedTuple):
    """The newest entry of a log: what stands in it, and where."""

    location: int
    """0: nothing that is needed."""
    ledger_id: int
    entry_id: int
    lost: int = 0
    """Entries of the log that were reported as lost (rule 4)."""
    is_decided: bool = False
    """All entries that the log lacks were reported as lost, or came back."""

    def encode(self) -> bytes:
        return _LOG.pack(*self)


class BadLog(NamedTuple):
    """A log that does not agree with its note."""

    problem: str
    """is missing, is cut: …; what to put behind its path"""
    is_missing: bool
    is_unreadable: bool = False
    """The disk refuses to read it, so nothing is known of what it has."""
    lost: int = 0
    """Entries of it that were reported as lost."""
    is_decided: bool = False


NOTHING_THERE: Final = LogNote(0, 0, 0)


def log_notes(notes: Mapping[int, bytes]) -> dict[int, LogNote]:
    """Log id → its note, of the notes of an index."""
    return {number: LogNote(*_LOG.unpack(note)) for number, note in notes.items() if number >= 0}


def note_of(log_id: int, offset: int, ledger_id: int, entry_id: int) -> bytes:
    """The note of a log whose newest entry stands at *offset*."""
    return LogNote(fmt.location(log_id, offset), ledger_id, entry_id).encode()


def newest(located: Sequence[tuple[int, int, int]]) -> dict[int, bytes]:
    """Notes of the logs into which *located* (ledger id, entry id, location), rising, leads."""
    notes: dict[int, bytes] = {}
    at = len(located) - 1
    while at >= 0:
        ledger_id, entry_id, location = located[at]
        log_id = location >> 32
        notes[log_id] = LogNote(location, ledger_id, entry_id).encode()
        while at >= 0 and located[at][2] >> 32 == log_id:
            at -= 1
    return notes


def encode_marks(marks: Sequence[Mark]) -> bytes:
    return b"".join(MARK.pack(*mark) for mark in marks)


def decode_marks(note: bytes) -> list[Mark]:
    return [Mark(*pair) for pair in MARK.iter_unpack(note)]


def marks_problem(noted: Sequence[Mark], marks: Sequence[Mark], journal_files: Sequence[Collection[int]]) -> str:
    """Why an index that has *noted* does not belong to *marks* and the journals (rule 5); empty if it does.

    *journal_files*: ids of the files of each journal.
    """
    if len(noted) != len(marks):
        return ""  # the number of journals was changed
    for note, mark, there in zip(noted, marks, journal_files, strict=True):
        if note < mark:
            return f"it is of the mark {note.file_id:x}:{note.offset}, and lastMark is {mark.file_id:x}:{mark.offset}"
        if note.file_id > mark.file_id and there and note.file_id not in there:
            return f"it is of the journal file {note.file_id:x}.txn, which is not there"
    return ""


def log_problem(head: bytes, record: bytes, size_bytes: int, note: LogNote | None) -> str:
    """What is wrong with a log (rule 3); empty if nothing is known to be.

    *head*: its first bytes; *record*: those at the location that *note* has, from the size word on.
    """
    if note is not None and note.location:
        if not size_bytes:
            return "is empty"
        if not head.startswith(fmt.MAGIC):
            return "is not an entry log"
        _, offset = fmt.split_location(note.location)
        size, *ids = fmt.RECORD_HEAD.unpack(record) if len(record) == fmt.RECORD_HEAD.size else (0,)
        if ids == [note.ledger_id, note.entry_id] and offset + size <= size_bytes:
            return ""
        if size_bytes < offset + size or not ids:
            return f"is cut: it has {size_bytes} bytes, and entries stood behind them"
        return "is another log: it has other entries than the index names"
    if note is None and len(head) >= fmt.HEADER_BYTES and head.startswith(fmt.MAGIC):
        map_offset = fmt.decode_header(head, "").map_offset
        if map_offset > size_bytes:
            return f"is cut: it has {size_bytes} bytes, and had more than {map_offset}"
    return ""
