"""Which node leads a log: the one whose session made `<root>/leader` in the metadata store.

The election is a hint (I59): while two nodes believe to be elected, fencing and the list decide. An elected node that
cannot lead resigns, so that another one may try.
"""

import contextlib
import json
import logging
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    NoNode,
    VersionConflict,
)
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from managed_ledger.state_log.errors import LogStopped, LogUnavailable
from managed_ledger.state_log.replica import Role
from managed_ledger.state_log.state_log import StateLog

log = logging.getLogger(__name__)

# A watch may be missed; the node is looked at again after this.
_LOOK_S: Final = 5.0


class LeaderElection:
    """A candidate, for one node of a log."""

    def __init__(self, state_log: StateLog, store: MetadataStore, clock: Clock) -> None:
        self._log = state_log
        self._store = store
        self._clock = clock
        self._path = f"{state_log.config.root}/leader"
        self._tasks = Tasks(f"election of {state_log.name}")
        self._bell = Bell()
        self._is_stale = False

    def start(self) -> None:
        self._cancel = self._store.watch_node(self._path, self._on_change)
        self._log.on_role(lambda role: self._on_change() if role is Role.FOLLOWER else None)
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        """Resign."""
        self._cancel()
        await self._tasks.cancel()
        try:
            await self._resign()
        except MetadataError as error:
            log.warning("%s ends only with its session: %s", self._path, error)

    async def _run(self) -> None:
        while self._log.role is not Role.STOPPED:
            self._is_stale = False
            try:
                await self._campaign()
            except (MetadataError, LogUnavailable) as error:
                log.warning("%s: %s", self._path, error)
                await self._clock.sleep(self._log.config.retry_s)
                continue
            except LogStopped:
                break
            await self._bell.until(lambda: self._is_stale, self._clock, _LOOK_S)
        await self._resign()

    async def _campaign(self) -> None:
        node = await self._store.get(self._path)
        if node is None:
            vote = json.dumps({"name": self._log.name}).encode()
            with contextlib.suppress(VersionConflict):
                await self._store.put(self._path, vote, NO_NODE, ephemeral=True)
            self._is_stale = True  # look which node leads
        elif not node.own:
            await self._log.follow()
        elif not self._log.is_leader:
            try:
                await self._log.lead()
            except LogUnavailable:
                await self._resign()
                raise

    async def _resign(self) -> None:
        node = await self._store.get(self._path)
        if node is not None and node.own:
            with contextlib.suppress(NoNode):
                await self._store.delete(self._path, node.version)

    def _on_change(self) -> None:
        self._is_stale = True
        self._bell.ring()
