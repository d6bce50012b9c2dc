"""Which entry logs of a ledger directory could not be read when its index was rebuilt, as a small file there.

While it is there, what a bookie lacks may still be on its disk (`bookie.maintenance.integrity`), and what is in
those logs and not in the index is no garbage (`bookie.maintenance.compaction`). A rebuild that can
read every log removes it. Blocks.
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
    """*logs*: a line for each, with its path and the reason; none if all could be read. Raises OSError."""
    path = posixpath.join(directory, UNREADABLE_FILE)
    if logs:
        replace_file(files, path, "".join(f"{line}\n" for line in logs).encode())
    elif files.exists(path):
        files.remove(path)
        files.sync_directory(directory)


def unreadable_log_ids(files: Files, directory: str) -> set[int]:
    """Ids of the logs that were noted. Raises OSError."""
    return {int(found, 16) for found in _LOG_NAME.findall(unreadable_logs(files, directory))}


def unreadable_logs(files: Files, directory: str) -> str:
    """What was noted; empty if nothing was. Raises OSError."""
    path = posixpath.join(directory, UNREADABLE_FILE)
    return read_file(files, path).decode(errors="replace").strip() if files.exists(path) else ""
