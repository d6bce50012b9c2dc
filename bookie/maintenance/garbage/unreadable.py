"""A small file in a ledger directory that names the entry logs which could not be read when its index was rebuilt.

While the file exists, missing entries may still be on the disk (`bookie.maintenance.integrity`), and entries of those
logs that are not in the index are not garbage (`bookie.maintenance.garbage.compaction`). A rebuild that can read every
log removes the file. The functions block.
"""

import posixpath
import re
from collections.abc import Sequence
from typing import Final

from magnetar_core.runtime.files import Files, read_file, replace_file

UNREADABLE_FILE: Final = "unreadable-logs"

# Each line begins with the path of its log.
_LOG_NAME: Final = re.compile(r"^/(?:.*?/)?([0-9a-f]+)\.log\b", re.MULTILINE)


def note_unreadable(files: Files, directory: str, logs: Sequence[str]) -> None:
    """*logs*: one line for each unreadable log, with path and reason; empty removes the file. Raises OSError."""
    path = posixpath.join(directory, UNREADABLE_FILE)
    if logs:
        replace_file(files, path, "".join(f"{line}\n" for line in logs).encode())
    elif files.exists(path):
        files.remove(path)
        files.sync_directory(directory)


def unreadable_log_ids(files: Files, directory: str) -> set[int]:
    """Ids of the unreadable logs. Raises OSError."""
    return {int(digits, 16) for digits in _LOG_NAME.findall(unreadable_logs(files, directory))}


def unreadable_logs(files: Files, directory: str) -> str:
    """The text of the file; empty if there is none. Raises OSError."""
    path = posixpath.join(directory, UNREADABLE_FILE)
    return read_file(files, path).decode(errors="replace").strip() if files.exists(path) else ""
