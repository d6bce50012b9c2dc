"""Compares the records of an entry log with the index of its ledger directory, while the bookie serves.

    snapshot of the logs ──▶ records, some at a time ──▶ missing: no location leads to the record ──▶ the record has the
      digest of its ledger ──▶ its location is put, if the index is unchanged

The functions block, and each runs as one short job: `take_snapshot` and `put_locations` on the flusher's thread, the
others on the maintenance thread. The rules are those of `bookie.maintenance.rebuild.online`.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from bookie.maintenance.scrub_rules import problem_of
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import list_logs
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar_core.bookkeeper.wire.entry import EntryCodec
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.types import Corruption

# Records that one job of the maintenance thread compares, at 4 µs each for the index, and locations that one job of the
# flusher puts at most.
JOB_RECORDS: Final = 500

# A location after every possible one.
_NO_END: Final = 2**63 - 1

Record: TypeAlias = tuple[int, int, int, int]
"""(offset after the size word, size, ledger id, entry id), as `LogScan` yields it."""


class LogState(NamedTuple):
    """A log as it was when the snapshot was taken."""

    log_id: int
    scan: fmt.LogScan | None
    """The scan of the log that takes entries, made between two flushes. None: the log no longer grows."""


class Snapshot(NamedTuple):
    """The logs of a ledger directory at one time, newest first, and a location after all of them."""

    logs: list[LogState]
    end: int


class Missing(NamedTuple):
    """A record to which no location leads."""

    ledger_id: int
    entry_id: int
    location: int
    seen: int
    """The location in the index instead; 0: none."""


class Comparison(NamedTuple):
    missing: list[Missing]
    """At most one for each entry: the last record of the entry."""
    located: list[int]
    """The ledger id of each record to which the index leads; a ledger is there once for each of its records."""


def take_snapshot(files: Files, directory: LedgerDirectory) -> Snapshot:
    """The logs of rule 3. Runs on the flusher's thread, so between two flushes. Raises OSError, Corruption."""
    ids = list_logs(files, directory.path)
    current = directory.logs.current_log_id
    logs = [LogState(log_id, directory.logs.scan(log_id) if log_id == current else None) for log_id in reversed(ids)]
    end = _NO_END
    if ids:
        with suppress(OSError):  # then every location is followed, and the damage is reported for this log
            end = fmt.location(ids[-1], directory.logs.file_bytes(ids[-1]))
    return Snapshot(logs, end)


def next_records(records: Iterator[Record]) -> list[Record]:
    """The records for the next comparison; empty at the end of the log. Raises OSError."""
    return list(islice(records, JOB_RECORDS))


def compare(directory: LedgerDirectory, ledgers: Container[int], log_id: int, records: Sequence[Record]) -> Comparison:
    """Compare records of a log with the index; those of ledgers that are not in *ledgers* are left out (rule 4)."""
    missing: dict[tuple[int, int], Missing] = {}  # the last record of an entry wins
    located: list[int] = []
    for offset, _, ledger_id, entry_id in records:
        if entry_id < 0 or ledger_id not in ledgers:
            continue
        location = fmt.location(log_id, offset)
        seen = directory.index.location(ledger_id, entry_id)
        if seen == location:
            located.append(ledger_id)
        elif not seen or not leads_to_entry(directory, seen, ledger_id, entry_id):
            missing[ledger_id, entry_id] = Missing(ledger_id, entry_id, location, seen)
    assert len(missing) + len(located) <= len(records)
    return Comparison(list(missing.values()), located)


def with_digest(
    directory: LedgerDirectory, missing: Sequence[Missing], codecs: Mapping[int, EntryCodec | None]
) -> list[Missing]:
    """The records that have the digest of their ledger (rule 5). *codecs* has a value for each ledger in *missing*;
    None: the digest is not known, and only ids and size are checked."""
    return [record for record in missing if _has_digest(directory, record, codecs[record.ledger_id])]


def put_locations(directory: LedgerDirectory, ledgers: Container[int], missing: Sequence[Missing]) -> list[Missing]:
    """Put the locations of records for which the index is unchanged (rule 6); returns these records. Runs on the
    flusher's thread. Raises OSError."""
    put = [
        record
        for record in missing
        if record.ledger_id in ledgers and directory.index.location(record.ledger_id, record.entry_id) == record.seen
    ]
    if put:
        directory.index.put_locations([record[:3] for record in put])
    return put


def leads_to_entry(directory: LedgerDirectory, location: int, ledger_id: int, entry_id: int) -> bool:
    """Whether a location leads to its entry. True if the disk cannot be read, so that the location stays."""
    try:
        directory.logs.read(location, ledger_id, entry_id)
    except (Corruption, FileNotFoundError):
        return False
    except OSError:
        pass
    return True


def is_sealed(directory: LedgerDirectory, log_id: int) -> bool:
    """Whether the log has its table of ledgers, which is written last: all of the log was synced."""
    try:
        directory.logs.ledgers_map(log_id)
    except (Corruption, OSError):
        return False
    return True


def _has_digest(directory: LedgerDirectory, missing: Missing, codec: EntryCodec | None) -> bool:
    try:
        entry = directory.logs.read(missing.location, missing.ledger_id, missing.entry_id)
    except (Corruption, OSError):
        return False
    return problem_of(entry, missing.ledger_id, missing.entry_id, codec) is None
