"""Which nodes of a log are there, where they give their snapshots, and what these cover.

    <root>/members/<name>   {"name": "a", "address": "http://10.0.0.1:7000", "covered": 4811}      ephemeral

`covered` is the last edit that is in every snapshot that the node may fall back to (`SnapshotStore.covered`).
"""

import contextlib
import json
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    NoNode,
    SessionEvent,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from managed_ledger.state_log.errors import LogUnavailable

log = logging.getLogger(__name__)

# The own node is looked at so often, besides the watches.
_LOOK_S: Final = 5.0


class MemberNode(NamedTuple):
    """What one node reports about itself."""

    name: str
    address: str
    covered: int


class MemberNodes:
    """The nodes in the metadata store; keeps the own one there."""

    def __init__(self, store: MetadataStore, root: str, name: str, address: str, clock: Clock) -> None:
        """*address*: the URL at which others get this node's snapshots; empty if they do not."""
        self._store = store
        self._folder = f"{root}/members"
        self._own = MemberNode(name, address, 0)
        self._clock = clock
        self._tasks = Tasks(f"member {name} of {root}")
        self._bell = Bell()
        self._is_stale = False

    async def start(self, covered: int) -> None:
        """Raises LogUnavailable."""
        await self.publish(covered)
        self._cancel = self._store.watch_session(self._on_session)
        self._tasks.spawn(self._keep(), "keep")

    async def stop(self) -> None:
        self._cancel()
        await self._tasks.cancel()
        with contextlib.suppress(MetadataError):
            node = await self._store.get(self._path)
            if node is not None and node.own:
                await self._store.delete(self._path)

    async def publish(self, covered: int) -> None:
        self._own = self._own._replace(covered=covered)
        try:
            await self._put()
        except MetadataError as error:
            raise LogUnavailable(f"{self._path} cannot be written: {error}") from error

    async def covered_by_others(self) -> Sequence[int]:
        return [member.covered for member in await self.others()]

    async def others(self) -> list[MemberNode]:
        """The other nodes that are there. Raises LogUnavailable."""
        members = []
        try:
            for name in await self._store.children(self._folder):
                node = await self._store.get(f"{self._folder}/{name}")
                if name != self._own.name and node is not None:
                    members.append(_decode(node.value, name))
        except MetadataError as error:
            raise LogUnavailable(f"{self._folder} cannot be read: {error}") from error
        return [member for member in members if member is not None]

    @property
    def _path(self) -> str:
        return f"{self._folder}/{self._own.name}"

    async def _put(self) -> None:
        value = json.dumps(self._own._asdict()).encode()
        node = await self._store.get(self._path)
        if node is not None and node.own and node.value == value:
            return
        if node is not None and not node.own:  # it belongs to a former session, and would end with that
            with contextlib.suppress(NoNode, VersionConflict):
                await self._store.delete(self._path, node.version)
            node = None
        with contextlib.suppress(VersionConflict):  # looked at again soon
            await self._store.put(self._path, value, NO_NODE if node is None else node.version, ephemeral=True)

    async def _keep(self) -> None:
        while True:
            await self._bell.until(lambda: self._is_stale, self._clock, _LOOK_S)
            self._is_stale = False
            try:
                await self._put()
            except MetadataError as error:
                log.warning("%s cannot be written: %s", self._path, error)

    def _on_session(self, event: SessionEvent) -> None:
        if event is not SessionEvent.SUSPENDED:
            self._is_stale = True
            self._bell.ring()


def _decode(value: bytes, name: str) -> MemberNode | None:
    """A member's node; None where its value cannot be understood."""
    try:
        stored = json.loads(value)
        return MemberNode(str(stored["name"]), str(stored["address"]), int(stored["covered"]))
    except (ValueError, KeyError, TypeError) as error:
        log.warning("member %s is passed over: %r", name, error)
        return None
