"""Compares the entry logs of a ledger directory with the notes that its index has of them (`known.py`), at a start.

It reads a kilobyte and a record's head of each log, however much the index has. The functions block.
"""

import logging
import posixpath
from collections.abc import Mapping
from typing import Final

from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name, list_logs
from bookie.storage.known import BadLog, LogNote, log_notes, log_problem
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar_core.runtime.files import Files

log = logging.getLogger(__name__)

# Bad logs that are named one by one; of further ones only the number is logged.
NAMED_MAX: Final = 100


def check_logs(files: Files, directory: LedgerDirectory) -> None:
    """Set `bad_logs` and `unknown_logs` of the directory, and say in the log what is bad. Raises OSError of the
    index."""
    notes = log_notes(directory.index.notes())
    directory.bad_logs = find_bad_logs(files, directory.path, notes)
    directory.unknown_logs = {
        log_id
        for log_id in list_logs(files, directory.path)
        if log_id not in notes and log_id not in directory.bad_logs and directory.logs.has_entries(log_id)
    }
    for log_id, bad in list(directory.bad_logs.items())[:NAMED_MAX]:
        path = posixpath.join(directory.path, file_name(log_id))
        if bad.is_decided:
            log.error("%s %s; %d entries of it were lost with it", path, bad.problem, bad.lost)
        else:
            log.error("%s %s; entries of it cannot be read, they are being counted", path, bad.problem)
    if len(directory.bad_logs) > NAMED_MAX:
        log.error("%s: %d logs are missing or bad in all", directory.path, len(directory.bad_logs))
    for log_id, note in notes.items():
        if note.lost and log_id not in directory.bad_logs:
            path = posixpath.join(directory.path, file_name(log_id))
            log.warning(
                "%s is whole again; `magnetar bookie rebuild-index` takes up again what was lost with it (%d entries)",
                path,
                note.lost,
            )


def find_bad_logs(files: Files, directory: str, notes: Mapping[int, LogNote]) -> dict[int, BadLog]:
    """Log id → what is wrong with it, of the logs in *directory* and those that have *notes*."""
    there = set(list_logs(files, directory))
    bad_logs: dict[int, BadLog] = {}
    for log_id in sorted(there | notes.keys()):
        note = notes.get(log_id)
        lost, is_decided = (0, False) if note is None else (note.lost, note.is_decided)
        if log_id not in there:
            if note is not None and note.location:
                bad_logs[log_id] = BadLog("is missing", True, lost=lost, is_decided=is_decided)
            continue
        try:
            problem = _problem_of(files, posixpath.join(directory, file_name(log_id)), note)
        except OSError as error:
            bad_logs[log_id] = BadLog(f"cannot be read: {error}", False, True, lost, is_decided)
            continue
        if problem:
            bad_logs[log_id] = BadLog(problem, False, lost=lost, is_decided=is_decided)
    return bad_logs


def _problem_of(files: Files, path: str, note: LogNote | None) -> str:
    file = files.open(path)
    try:
        record = b""
        if note is not None and note.location:
            _, offset = fmt.split_location(note.location)
            record = file.read_at(offset - fmt.SIZE.size, fmt.RECORD_HEAD.size)
        return log_problem(file.read_at(0, fmt.HEADER_BYTES), record, file.size_bytes(), note)
    finally:
        file.close()
