"""The mode of a bookie: it collects the reasons to be read-only, and applies them to requests, registration and files.

    disks, operators, state ──▶ Reasons ──▶ RequestRules (adds refused) ──▶ registration (available, available/readonly)
                                   └──▶ BOOKIE_STATUS (operator, draining)

Rules:

1. A reason takes effect on adds at once; registration and status files are written afterwards. The registration is
   tried until it succeeds: it is only a hint, since adds are refused anyway.
2. An operator's change is answered only after it is in a status file, so that it survives a restart.
"""

import logging
from collections.abc import Callable

from bookie.disks.directories import StatusFiles
from bookie.disks.read_only import Reason, Reasons, Verdict
from bookie.jobs import JobThread
from bookie.serving.request_rules import RequestRules
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)

# How long until the next try when the metadata store does not answer.
_RETRY_S = 1.0


class NotChanged(MagnetarError):
    """The mode cannot be changed as asked, or the change would not survive a restart."""


class DiskFull(MagnetarError):
    """A disk is full, and the bookie must stop then (readOnlyModeEnabled=false)."""


class Mode:
    """The mode of one bookie. Used on the loop."""

    def __init__(
        self,
        bookie_id: str,
        rules: RequestRules,
        registration: BookieRegistration,
        clock: Clock,
        status_files: StatusFiles | None,
        worker: JobThread,
        *,
        free_bytes_for_high_priority: int,
        stop_when_full: bool,
        on_writable: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """*worker* writes the *status_files*; None: no reason survives a restart."""
        self._bookie_id = bookie_id
        self._rules = rules
        self._registration = registration
        self._clock = clock
        self._status_files = status_files
        self._worker = worker
        self._free_bytes_for_high_priority = free_bytes_for_high_priority
        self._stop_when_full = stop_when_full
        self._on_writable = on_writable
        self._on_failure = on_failure
        self._tasks = Tasks("mode")
        self._reasons = Reasons()
        self._free_bytes = 0
        self._full_directories: frozenset[int] | None = None
        self._shown: frozenset[Reason] = frozenset()

    @property
    def is_read_only(self) -> bool:
        return bool(self._reasons)

    @property
    def reasons(self) -> dict[Reason, str]:
        """Every reason that holds, with its text."""
        return dict(self._reasons.held)

    @property
    def texts(self) -> tuple[str, ...]:
        return self._reasons.texts()

    @property
    def is_available_for_high_priority(self) -> bool:
        return self._rules.high_priority_allowed

    def load(self, forced: bool) -> None:
        """Set the reasons from the status files and the settings. Blocks; raises Corruption, OSError."""
        if self._status_files is not None:
            for reason, detail in self._status_files.read().items():
                self._reasons.set(reason, detail)
        if forced:
            self._reasons.set(Reason.FORCED, "forceReadOnlyBookie is set")
        self._apply()

    async def show(self) -> None:
        """Put the mode into the registration. Raises MetadataError."""
        await self._registration.set_read_only(self.is_read_only, "; ".join(self.texts))

    async def stop(self) -> None:
        await self._tasks.cancel()

    def disks_are(self, verdict: Verdict) -> None:
        """The verdict of a check of the disks."""
        for reason, text in ((Reason.DISK, verdict.disk), (Reason.ERROR, verdict.error)):
            if text is None:
                self._reasons.clear(reason)
            else:
                self._reasons.set(reason, text)
        self._free_bytes = verdict.free_bytes
        self._full_directories = verdict.full_ledger_directories
        if verdict.disk is not None and self._stop_when_full:
            self._on_failure(DiskFull(f"{verdict.disk}; readOnlyModeEnabled=false, so the bookie stops"))
        self._apply()

    def metadata_is(self, problem: str | None) -> None:
        """Whether the metadata store is too old for this bookie to take ledgers; *problem* says why."""
        if problem is not None:
            self._reasons.set(Reason.METADATA, problem)
        elif Reason.METADATA in self._reasons.held:
            self._reasons.clear(Reason.METADATA)
        else:
            return
        self._apply()

    async def set(self, reason: Reason, detail: str = "") -> None:
        """An operator makes the bookie read-only. Raises NotChanged."""
        self._check(reason)
        self._reasons.set(reason, detail)
        self._apply()
        await self._write_status()

    async def clear(self, reason: Reason) -> None:
        """An operator clears a reason; others may still hold. Raises NotChanged."""
        self._check(reason)
        self._reasons.clear(reason)
        self._apply()
        await self._write_status()

    async def follow_state(self, text: str | None) -> None:
        """The bookie's state in the metadata store says that it leaves, and why; None: it does not.

        A status file that cannot be written is only logged: the state is read again after a restart.
        """
        if text is None and Reason.DRAINING not in self._reasons.held:
            return
        if text is None:
            self._reasons.clear(Reason.DRAINING)
        else:
            self._reasons.set(Reason.DRAINING, text)
        self._apply()
        try:
            await self._write_status()
        except NotChanged as error:
            log.warning("%s", error)

    def _check(self, reason: Reason) -> None:
        if reason is Reason.FORCED:
            raise NotChanged("forceReadOnlyBookie is set; take it out of the configuration and restart the bookie")
        if reason is Reason.DRAINING:
            raise NotChanged(
                f"`draining` follows the bookie's state: `magnetar bookies drain {self._bookie_id}` begins it and "
                f"`magnetar bookies cancel {self._bookie_id}` ends it"
            )
        if reason is not Reason.OPERATOR:
            raise NotChanged(f"`{reason}` ends by itself when its cause is gone; only {Reason.OPERATOR} can be set")

    async def _write_status(self) -> None:
        files = self._status_files
        if files is None:
            return
        kept, wall_ms = self._reasons.kept, self._clock.wall_ms()
        try:
            await self._worker.run(lambda: files.write(kept, wall_ms))
        except OSError as error:
            raise NotChanged(
                f"bookie {self._bookie_id} is {'read-only' if self.is_read_only else 'writable'} now, but a restart "
                f"will forget it: BOOKIE_STATUS cannot be written: {error}"
            ) from error

    def _apply(self) -> None:
        reasons, rules = self._reasons, self._rules
        enough = self._free_bytes >= self._free_bytes_for_high_priority
        rules.high_priority_allowed = enough and Reason.ERROR not in reasons.held
        rules.full_directories = None if reasons else self._full_directories
        rules.read_only = bool(reasons) or self._full_directories is not None
        # Compare the reasons only: the texts change with every check of a disk.
        before, self._shown = self._shown, frozenset(reasons.held)
        if before == self._shown:
            return
        if self.is_read_only:
            log.warning("bookie %s is read-only: %s", self._bookie_id, "; ".join(self.texts))
        else:
            log.warning("bookie %s is writable again", self._bookie_id)
            self._on_writable()
        self._tasks.spawn(self._show(), "registration")

    async def _show(self) -> None:
        """Write the registration until it succeeds (rule 1)."""
        while True:
            try:
                await self.show()
                return
            except MetadataError as error:
                log.warning("bookie %s could not change its registration: %s", self._bookie_id, error)
                await self._clock.sleep(_RETRY_S)
