"""The mark REBUILDING of a ledger directory: its index may be wrong, and the next start rebuilds the index."""

import posixpath
from contextlib import suppress

from bookie.storage.index import LOCATIONS, REBUILDING
from magnetar_core.runtime.files import Files


class RebuildMark:
    """The mark of one ledger directory. Its methods block."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files = files
        self._database = posixpath.join(directory, LOCATIONS)
        self._path = posixpath.join(self._database, REBUILDING)

    def put(self) -> None:
        """Create the mark durably; does nothing more if it exists. Raises OSError."""
        self._files.make_directories(self._database)
        if not self._files.exists(self._path):
            self._files.create(self._path).close()
        self._files.sync_directory(self._database)

    def remove(self) -> None:
        """Remove the mark durably, if it exists. Raises OSError."""
        with suppress(FileNotFoundError):
            self._files.remove(self._path)
        self._files.sync_directory(self._database)
