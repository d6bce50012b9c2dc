"""Rebuilds the index of a bookie that does not run, from its entry logs."""

import os
import posixpath
from collections.abc import Callable
from functools import partial

from bookie.config import BookieConfig
from bookie.disks.directories import Directories
from bookie.maintenance.rebuild.offline import Rebuilt, known_logs, rebuild_index
from bookie.storage.entry_log.files import list_logs
from bookie.storage.foreign_storage import refuse_foreign_storage
from bookie.storage.index import LEDGERS, LOCATIONS, RocksIndex
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files
from magnetar_core.runtime.types import MIB, MagnetarError


class OfflineRebuild:
    """Holds the directories of a stopped bookie while their index is rebuilt. Blocks."""

    def __init__(self, config: BookieConfig, files: Files, clock: Clock) -> None:
        """Raises MagnetarError if a directory is missing, used by a bookie, or of another kind of storage."""
        self._config = config
        self._files = files
        self._clock = clock
        self._directories = Directories(
            files, [_absolute(path) for path in config.journal_directories],
            [_absolute(path) for path in config.ledger_directories], reserve_bytes=0,
        )  # fmt: skip
        for path in self.directories:
            if not files.exists(path):
                raise MagnetarError(f"{path} does not exist: is ledgerDirectories right?")
        refuse_foreign_storage(self.directories, files.list)
        self._directories.open()

    @property
    def directories(self) -> list[str]:
        return self._directories.ledgers

    def log_count(self, directory: str) -> int:
        return len(list_logs(self._files, directory))

    def rebuild(self, directory: str, *, with_ledgers: bool, on_log: Callable[[], None]) -> Rebuilt:
        """Rebuild the index of one ledger directory; its database of ledgers too if *with_ledgers*.

        The former databases stay beside it. If entries may be missing, the next start checks the copies before the
        bookie says that it does not have an entry. Raises MagnetarError, OSError.
        """
        names = {LOCATIONS, LEDGERS} if with_ledgers else {LOCATIONS}
        opener = partial(RocksIndex, directory, self._config.block_cache_mib * MIB)
        known = known_logs(opener)
        rebuilt = rebuild_index(
            self._files, directory, opener, names, self._clock.wall_ms(), on_log=on_log, known=known
        )
        rebuilt.index.close()
        return rebuilt

    def close(self) -> None:
        self._directories.close()


def _absolute(directory: str) -> str:
    return posixpath.normpath(posixpath.join(os.getcwd(), directory))
