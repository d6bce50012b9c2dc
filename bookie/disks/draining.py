"""The bookie follows its state in the metadata store: while it is not active it is read-only, because it is drained.

The state alone sets and clears the reason `draining`: operators move the state (`magnetar bookies drain` and `cancel`),
and it holds also while this process is away. Rules (I74):

1. The state is read before the bookie registers, so that a restart does not make it writable for an instant.
2. The reason ends only after the node of the state was seen to be gone while the bookie still has its cookie.
3. Without state and cookie the bookie was removed from the cluster. It takes no entries from then on, since it could
   not start again with them.
4. A state that cannot be read changes nothing: the bookie stays as it is, after a restart as its status files say.
"""

import logging
from typing import Final

from bookie.disks.mode import Mode
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Lifecycle, State
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# The state is read again after so long without a hint, and after a store that did not answer.
LOOK_S: Final = 30.0
_RETRY_S: Final = 1.0

_REMOVED: Final = "removed from the cluster, which has no cookie of it any more: it stays read-only, stop it"


class StateFollower:
    """Follows the state of one bookie. Used on the loop."""

    def __init__(self, states: BookieStates, bookie_id: str, mode: Mode, clock: Clock) -> None:
        self._states = states
        self._bookie_id = bookie_id
        self._mode = mode
        self._clock = clock
        self._tasks = Tasks(f"state of {bookie_id}")
        self._changed = Bell()
        self._is_stale = False
        self._cancel: Cancel | None = None
        self._reported = ""
        """The last problem that was logged."""

    async def start(self) -> None:
        """Read the state once (rule 1), and follow it. Raises MetadataError."""
        self._cancel = self._states.watch(self._bookie_id, self._look_again)
        await self._read()
        self._tasks.spawn(self._follow(), "follow")

    async def stop(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        await self._tasks.cancel()

    def _look_again(self) -> None:
        self._is_stale = True
        self._changed.ring()

    async def _follow(self) -> None:
        while True:
            await self._changed.until(lambda: self._is_stale, self._clock, LOOK_S)
            self._is_stale = False
            try:
                await self._read()
            except MetadataError as error:
                self._report(f"the metadata store does not say whether bookie {self._bookie_id} is drained: {error}")
                await self._clock.sleep(_RETRY_S)
                self._is_stale = True

    async def _read(self) -> None:
        try:
            lifecycle = (await self._states.read(self._bookie_id)).lifecycle
            is_removed = lifecycle.state is State.ACTIVE and not await self._states.has_cookie(self._bookie_id)
        except Corruption as error:  # rule 4
            mode = "read-only" if self._mode.is_read_only else "writable"
            self._report(f"bookie {self._bookie_id} stays {mode}: {error}; `magnetar bookies status` shows it, too")
            return
        if is_removed:  # rule 3
            self._report(f"bookie {self._bookie_id} was {_REMOVED}")
            await self._mode.follow_state(_REMOVED)
            return
        self._reported = ""
        await self._mode.follow_state(text_of(lifecycle))

    def _report(self, problem: str) -> None:
        if problem != self._reported:
            log.error("%s", problem)
        self._reported = problem


def text_of(lifecycle: Lifecycle) -> str | None:
    """Why the bookie takes no entries, for people; None if its state does not keep it from that."""
    if not lifecycle.is_read_only:
        return None
    reason = ": ".join(text for text in (lifecycle.by, lifecycle.why) if text)
    if lifecycle.state is State.DRAINING:
        return reason
    return f"{lifecycle.state}, {reason}" if reason else str(lifecycle.state)
