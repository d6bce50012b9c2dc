"""Compaction of the index of locations in the background, on an operator's request or by its interval."""

import logging
import posixpath
from collections.abc import Iterable

from bookie.jobs import JobThread
from bookie.storage.ledger_storage import LedgerStorage
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)


class IndexCompaction:
    """The indexes of one bookie. Used on the loop."""

    def __init__(
        self, storage: LedgerStorage, maintenance: JobThread, clock: Clock, tasks: Tasks, interval_s: float
    ) -> None:
        """*interval_s*: time between two compactions of all indexes; 0: only on request."""
        self._directories = {
            posixpath.join(directory.path, "locations"): directory for directory in storage.directories
        }
        self._maintenance = maintenance
        self._clock = clock
        self._tasks = tasks
        self._interval_s = interval_s
        self._began_s = clock.monotonic()
        self._running: set[str] = set()
        self.count = 0
        """Compactions since the start."""
        self.last_ms: int | None = None

    @property
    def directories(self) -> dict[str, bool]:
        """Path of each index → whether it is being compacted."""
        return {path: path in self._running for path in self._directories}

    def compact(self, paths: Iterable[str] | None = None) -> None:
        """Begin to compact all of them or those at *paths*. Raises MagnetarError."""
        wanted = list(self._directories) if paths is None else list(paths)
        unknown = [path for path in wanted if path not in self._directories]
        if unknown:
            raise MagnetarError(f"{', '.join(unknown)}: no index of this bookie; it has {', '.join(self._directories)}")
        for path in wanted:
            if path not in self._running:
                self._running.add(path)
                self._tasks.spawn(self._compact(path), f"compact {path}")

    def compact_if_due(self) -> None:
        now_s = self._clock.monotonic()
        if 0 < self._interval_s <= now_s - self._began_s:
            self._began_s = now_s
            self.compact()

    async def _compact(self, path: str) -> None:
        try:
            await self._maintenance.run(self._directories[path].index.compact_locations)
            self.count += 1
            self.last_ms = self._clock.wall_ms()
        except OSError as error:
            log.error("%s could not be compacted: %s", path, error)
        finally:
            self._running.discard(path)
