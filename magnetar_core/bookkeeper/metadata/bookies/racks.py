"""The racks of the bookies, kept current by a watch on `/bookies` (`rack_records` has its form).

Rules:

1. What cannot be read changes nothing: the racks that were known stay, and the reason is logged.
2. Without the node no bookie has a rack.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from magnetar_core.bookkeeper.metadata.bookies.rack_records import (
    RackGroups,
    RackRecord,
    decode_racks,
    encode_racks,
    entry_of,
    with_entry,
    without_entry,
)
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    MetadataError,
    MetadataStore,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# How long until the next try when the store does not answer.
_RETRY_S: Final = 1.0

# Changes by others in a row; each of them made progress.
_CONFLICTS_MAX: Final = 20


def racks_path(root: str = "/ledgers") -> str:
    """The node beside *root*, which is below the same prefix in a shared ZooKeeper."""
    return f"{root.rpartition('/')[0]}/bookies"


class RackDirectory:
    """Which bookie is in which rack. Used on the store's loop."""

    def __init__(self, store: MetadataStore, clock: Clock, root: str = "/ledgers") -> None:
        self._store = store
        self._clock = clock
        self._path = racks_path(root)
        self._tasks = Tasks("racks of the bookies")
        self._cancel: Cancel | None = None
        self._is_reading = False
        self._is_changed = False
        self.racks: Mapping[str, str] = {}
        """Bookie → rack, as far as they are known; another object after each change."""
        self.groups: Mapping[str, frozenset[str]] = {}
        """Group → its bookies."""
        self.problems: tuple[str, ...] = ()
        """The parts of the node that could not be understood."""

    async def start(self) -> None:
        """Read and watch. Raises MetadataError."""
        self._cancel = self._store.watch_node(self._path, self._on_change)
        await self._read()

    async def stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        await self._tasks.cancel()

    def _on_change(self) -> None:
        self._is_changed = True
        if not self._is_reading:
            self._is_reading = True
            self._tasks.spawn(self._follow(), "read")

    async def _follow(self) -> None:
        try:
            while self._is_changed:
                self._is_changed = False
                try:
                    await self._read()
                except MetadataError as error:
                    log.warning("the racks of the bookies could not be read: %s", error)
                    self._is_changed = True
                    await self._clock.sleep(_RETRY_S)
        finally:
            self._is_reading = False

    async def _read(self) -> None:
        node = await self._store.get(self._path)
        try:
            record = RackRecord({}) if node is None else decode_racks(node.value)
        except Corruption as error:
            log.error("%s; the racks that were known stay", error)  # rule 1
            self.problems = (str(error),)
            return
        for problem in record.problems:
            log.warning("%s", problem)
        self.problems = record.problems
        groups = {group: frozenset(bookies) for group, bookies in record.groups.items()}
        if groups != self.groups:
            self.groups = groups
            log.info("bookies are in groups: %s", {group: sorted(names) for group, names in groups.items()})
        if record.racks != self.racks:
            self.racks = record.racks
            log.info("bookies are in racks: %s", self.racks or "none is known")


class RackRecords:
    """Reads and changes the node; the one place that writes it."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._path = racks_path(root)

    async def read(self) -> RackGroups | None:
        """The groups in the node; None if there is no node. Raises Corruption, MetadataError."""
        node = await self._store.get(self._path)
        return None if node is None else decode_racks(node.value).groups

    async def put(self, group: str, bookie: str, entry: Mapping[str, Any]) -> None:
        """Put *bookie* into *group*, instead of the entry that it had. Raises Corruption, MetadataError."""
        await self._change(lambda groups: with_entry(groups or {}, group, bookie, entry))

    async def remove(self, bookie: str) -> bool:
        """Forget *bookie*; False: it had no entry. Raises Corruption, MetadataError."""
        return await self._change(
            lambda groups: None if groups is None or entry_of(groups, bookie) is None else without_entry(groups, bookie)
        )

    async def _change(self, changed: Callable[[RackGroups | None], RackGroups | None]) -> bool:
        """Write what *changed* makes of the groups; False where it makes nothing.

        A change whose outcome is unknown is reported as such: it may have happened.
        """
        for _ in range(_CONFLICTS_MAX):
            node = await self._store.get(self._path)
            record = None if node is None else decode_racks(node.value)
            if record is not None and record.problems:
                # Writing it again would drop what an operator put there.
                raise Corruption(f"{record.problems[0]}; correct the node {self._path} first")
            groups = changed(None if record is None else record.groups)
            if groups is None:
                return False
            try:
                await self._store.put(self._path, encode_racks(groups), NO_NODE if node is None else node.version)
            except VersionConflict:
                continue
            return True
        raise StoreUnavailable(f"{self._path}: {_CONFLICTS_MAX} changes by others in a row")
