"""A check of all ledgers that runs when its period has passed, in small steps.

Rules:

1. A check is due when its period has passed since the last one ended; one that never ran is due at once, and so is one
   that an auditor before this one has begun.
2. It takes about half of its period, so that it ends in time where reading is slower than expected. An operator's
   check does not wait in between.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Protocol

from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# The metadata store is away: time until the next try.
_RETRY_S: Final = 5.0

# Whether a check is due is looked at so often while auto-recovery is switched off for the cluster, or nothing is due.
_OFF_S: Final = 30.0


class Status(Protocol):
    """What is known of a check, for people."""

    is_running: bool
    last_ended_ms: int | None


class DueCheck(ABC):
    """One such check. Used on the loop, by the auditor's node."""

    status: Status

    def __init__(
        self, name: str, what: str, noted: PeriodicCheck | None, period_s: float, marks: MarkBoard, clock: Clock
    ) -> None:
        """*name* is that of its progress; *what* it is, for people. *noted*: Apache's node for the end of the last run;
        None: a node of ours has it. *period_s* 0: never by itself."""
        assert period_s >= 0
        self.name = name
        self._what = what
        self._noted = noted
        self._period_s = period_s
        self._marks = marks
        self._clock = clock
        self._tasks = Tasks(what)
        self._asked = Bell()
        self._is_asked = False

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        """End; the next auditor goes on about where this one is."""
        await self._tasks.cancel()

    def run_now(self) -> None:
        """An operator asks: begin, or go on without waiting in between."""
        self._is_asked = True
        self._asked.ring()

    async def _run(self) -> None:
        while True:
            try:
                wait_s = await self._due_s()
                if wait_s > 0:
                    await self._wait(min(wait_s, _OFF_S))
                    continue
                await self._check()
            except MetadataError as error:
                log.warning("the %s goes on in %g s: %s", self._what, _RETRY_S, error)
                await self._clock.sleep(_RETRY_S)
            finally:
                self.status.is_running = False

    @abstractmethod
    async def _check(self) -> None:
        """Look at all ledgers from where it was left, then `_end`. Raises MetadataError."""

    async def _due_s(self) -> float:
        """Seconds until the check is to begin; 0: now. Raises MetadataError."""
        if not await self._marks.is_enabled():
            self._is_asked = False  # nothing begins when it is switched on again
            return _OFF_S
        if self._is_asked or (self._period_s and await self._marks.progress(self.name) is not None):
            return 0.0
        if not self._period_s:
            return _OFF_S
        self.status.last_ended_ms = ended_ms = await self._last_ended_ms()
        if ended_ms is None:
            return 0.0  # rule 1
        return max(ended_ms / 1000 + self._period_s - self._clock.wall_ms() / 1000, 0.0)

    async def _last_ended_ms(self) -> int | None:
        try:
            if self._noted is not None:
                return await self._marks.last_checked_ms(self._noted)
            value = await self._marks.progress(f"{self.name}-ended")
            return None if value is None else int(value)
        except (Corruption, ValueError) as error:
            log.warning("when the %s ended last cannot be read, so it runs now: %s", self._what, error)
            return None

    async def _end(self) -> None:
        """All ledgers were looked at. Raises MetadataError."""
        self._is_asked = False
        wall_ms = self._clock.wall_ms()
        if self._noted is not None:
            await self._marks.set_last_checked(self._noted, wall_ms)
        else:
            await self._marks.set_progress(f"{self.name}-ended", b"%d" % wall_ms)
        self.status.last_ended_ms = wall_ms
        await self._marks.set_progress(self.name, b"")

    async def _wait(self, seconds: float) -> None:
        """Wait *seconds*, or until an operator asks."""
        await self._asked.until(lambda: self._is_asked, self._clock, seconds)

    async def _until_enabled(self) -> None:
        """Wait until auto-recovery is on. Raises MetadataError."""
        while not await self._marks.is_enabled():
            await self._clock.sleep(_OFF_S)
