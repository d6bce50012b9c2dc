"""Which ledgers are marked, kept current by watches: what a worker chooses from and what a page shows.

A mark stands four levels deep, and the names of the levels are the ledger's id. So the names alone say which ledgers
are marked: with 10,000 marks that is one request, not 10,000. A directory that was left empty names a ledger without
a mark; the worker that locks the ledger sees that. Watches are hints (I59): everything is read anew after a while, too.

Directories above those are removed here, once they are seen empty: a worker that takes a mark down does not know
whether it was the last of them.
"""

import contextlib
import logging
import re
from collections.abc import Callable
from typing import Final

from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks

log = logging.getLogger(__name__)

# Directories above those that belong to single ledgers.
_WATCHED_LEVELS: Final = 3

_GROUP: Final = re.compile(r"[0-9a-f]{4}")

# Everything is read again after so long without a hint.
_NET_S: Final = 30.0

# A change of many marks is many hints: they are gathered for so long before the tree is read, and for longer where
# reading takes long (10,000 marks: some 20 ms), so that following takes at most a twentieth of the loop's time.
_GATHER_S: Final = 0.05
_GATHER_FACTOR: Final = 20

# The metadata store is away: time until the next try.
_RETRY_S: Final = 1.0


class MarkWatch:
    """The set of marked ledgers, of one process. Used on the loop."""

    def __init__(self, marks: MarkBoard, clock: Clock) -> None:
        self._marks = marks
        self._clock = clock
        self._tasks = Tasks("marks of ledgers")
        self._changed = Bell()
        self._is_stale = True
        self._read_s = 0.0
        """How long the last look took."""
        self._watches: dict[str, Cancel] = {}
        self.marked: set[int] = set()
        """Ledgers that have a mark, as of the last look. The next look makes another set."""
        self._listeners: list[Callable[[], None]] = []

    def watch(self, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after the set has become different."""
        self._listeners.append(changed)
        return lambda: self._listeners.remove(changed)

    async def start(self) -> None:
        """Read the marks once. Raises MetadataError."""
        await self._read()
        self._tasks.spawn(self._follow(), "follow")

    async def stop(self) -> None:
        for cancel in self._watches.values():
            cancel()
        self._watches.clear()
        await self._tasks.cancel()

    def look_again(self) -> None:
        """A mark was put up or taken down."""
        self._is_stale = True
        self._changed.ring()

    def forget(self, ledger_id: int) -> None:
        """Its mark was just taken down: noted here at once, so that nobody chooses it again before the next look."""
        self.marked.discard(ledger_id)

    async def _follow(self) -> None:
        while True:
            await self._changed.until(lambda: self._is_stale, self._clock, _NET_S)
            await self._clock.sleep(max(_GATHER_S, _GATHER_FACTOR * self._read_s))
            try:
                began_s = self._clock.monotonic()
                await self._read()
                self._read_s = self._clock.monotonic() - began_s
            except MetadataError as error:
                log.warning("the marks of ledgers could not be read: %s", error)
                self._is_stale = True
                await self._clock.sleep(_RETRY_S)

    async def _read(self) -> None:
        self._is_stale = False
        directories = {""}
        level = [""]
        for _ in range(_WATCHED_LEVELS):
            level = [f"{above}/{name}" for above in level for name in await self._names(above)]
            directories.update(level)
        for path in self._watches.keys() - directories:
            self._watches.pop(path)()
        marked: set[int] = set()
        empty: list[str] = []
        for above in level:
            names = await self._names(above)
            marked.update(_id_of(f"{above}/{name}") for name in names)
            if not names:
                empty.append(above)
        if marked != self.marked:
            self.marked = marked
            for changed in tuple(self._listeners):
                changed()
        for above in empty:
            with contextlib.suppress(MetadataError):  # the set is known; the next look tries again
                await self._marks.prune_above(above)

    async def _names(self, path: str) -> list[str]:
        """The children of a directory, which is watched from before they are read."""
        if path not in self._watches:
            self._watches[path] = self._marks.watch_marks(path, self.look_again)
        return [name for name in await self._marks.directories(path) if _GROUP.fullmatch(name)]


def _id_of(path: str) -> int:
    """The ledger whose mark belongs into the directory *path* of four levels."""
    return int(path.replace("/", ""), 16)
