"""Checks the locations of a ledger in the index, page by page: does the log exist, and is the entry there?

The functions block, and run on the maintenance thread. Each call checks one page, so that other jobs come in between.
"""

import posixpath
from collections.abc import Mapping
from typing import Final, NamedTuple

from bookie.maintenance.rebuild.log_comparison import leads_to_entry
from bookie.storage.entry_log import format as fmt
from bookie.storage.entry_log.files import file_name
from bookie.storage.known import LogNote
from bookie.storage.ledger_storage import LedgerDirectory
from magnetar_core.runtime.files import Files

# Locations that one job of the maintenance thread checks.
JOB_LOCATIONS: Final = 1_000


class GonePage(NamedTuple):
    locations: int
    """Locations on the page."""
    is_gone: bool
    """One of them leads into a log that does not exist."""
    following: int | None
    """The first entry id of the next page; None: there is none."""


class LostPage(NamedTuple):
    locations: int
    """Locations on the page."""
    lost: list[tuple[int, int]]
    """(entry id, location) of those that lead to no entry, into bad logs or such that do not exist."""
    newest: dict[int, LogNote]
    """The newest entry of each other log that the page leads into."""
    following: int | None
    """The first entry id of the next page; None: there is none."""


class LocationPage(NamedTuple):
    old: int
    """Locations before the end of the snapshot."""
    lost: list[int]
    """Entries whose location leads to no entry."""
    following: int | None
    """The first entry id of the next page; None: there is none."""


def find_gone_log(files: Files, directory: LedgerDirectory, ledger_id: int, first: int) -> GonePage:
    """Whether a location of the page from entry *first* on leads into a log that does not exist."""
    located = directory.index.locations(ledger_id, first, JOB_LOCATIONS)
    used = {fmt.split_location(location)[0] for _, location in located}
    is_gone = any(not _log_exists(files, directory, log_id) for log_id in used)
    return GonePage(len(located), is_gone, _following(located, first))


def find_lost(
    files: Files, directory: LedgerDirectory, ledger_id: int, first: int, bad: Mapping[int, bool]
) -> LostPage:
    """The locations of the page from entry *first* on that lead to no entry.

    *bad*: log → whether it is missing; each location into one that is not is followed. Of other logs it is looked only
    whether they exist. Raises OSError of the index.
    """
    located = directory.index.locations(ledger_id, first, JOB_LOCATIONS)
    lost: list[tuple[int, int]] = []
    newest: dict[int, LogNote] = {}
    missing: dict[int, bool] = {}
    for entry_id, location in located:
        log_id = fmt.split_location(location)[0]
        if log_id not in missing:
            missing[log_id] = bad[log_id] if log_id in bad else not _log_exists(files, directory, log_id)
        if missing[log_id] or (log_id in bad and not leads_to_entry(directory, location, ledger_id, entry_id)):
            lost.append((entry_id, location))
        elif log_id not in bad and (log_id not in newest or newest[log_id].location < location):
            newest[log_id] = LogNote(location, ledger_id, entry_id)
    return LostPage(len(located), lost, newest, _following(located, first))


def check_locations(
    files: Files, directory: LedgerDirectory, ledger_id: int, first: int, *, end: int, follow: bool
) -> LocationPage:
    """Check the page from entry *first* on. Locations before *end*, the end of the snapshot, are only counted unless
    *follow* is given: following one costs a read of its log. Later ones come from flushes since then; only the
    existence of their logs is checked."""
    located = directory.index.locations(ledger_id, first, JOB_LOCATIONS)
    old = [location for location in located if location[1] < end]
    # Locations of later flushes lead into logs that exist; other locations may not.
    newer = {fmt.split_location(location)[0] for _, location in located if location >= end}
    gone = {log_id for log_id in newer if not _log_exists(files, directory, log_id)}
    lost = [entry_id for entry_id, location in located if fmt.split_location(location)[0] in gone] if gone else []
    if follow:
        lost += [entry_id for entry_id, location in old if not leads_to_entry(directory, location, ledger_id, entry_id)]
    return LocationPage(len(old), lost, _following(located, first))


def _following(located: list[tuple[int, int]], first: int) -> int | None:
    if len(located) < JOB_LOCATIONS:
        return None
    following = located[-1][0] + 1
    assert following > first, "a page does not end before it begins"
    return following


def _log_exists(files: Files, directory: LedgerDirectory, log_id: int) -> bool:
    return files.exists(posixpath.join(directory.path, file_name(log_id)))
