"""The directories of a bookie: made, locked, checked by cookie, watched for space.

    <journal directory>/current/VERSION, *.txn
    <ledger directory>/current/VERSION, lastMark, lastId, *.log, locations/, ledgers/
    <either>/bookie.lock                 held while the process lives

Rules:

1. Two processes never use one directory: the lock file is held before anything is read.
2. The bookie is read-only while there is a reason; it goes back by itself when the last one is gone. A disk counts as
   full above one mark and as having room again below a lower one, so that it does not flap.
3. A file of a few MiB keeps room in each journal directory: when the disk is full it is given up, so that fences
   can still be written (correctness I48).
"""

import contextlib
import logging
import posixpath
from collections.abc import Callable, Sequence
from typing import Final

from bookie import cookie as cookies
from bookie.cookie import Cookie
from magnetar.bookkeeper.metadata.bookies import BookieRegistration
from magnetar.bookkeeper.metadata.store import NO_NODE
from magnetar.runtime.clock import Clock, Timer
from magnetar.runtime.files import DiskUsage, Files, Lock, read_file, replace_file
from magnetar.runtime.types import MagnetarError

log = logging.getLogger(__name__)

CURRENT: Final = "current"
VERSION: Final = "VERSION"
_LOCK: Final = "bookie.lock"
_RESERVE: Final = "reserve"


class DirectoryInUse(MagnetarError):
    """Another bookie works in the directory."""


class DirectoryUnusable(MagnetarError):
    """The directory cannot be made or written."""


class Directories:
    """Journal and ledger directories of one bookie. Paths below are those of `current`."""

    def __init__(self, files: Files, journals: Sequence[str], ledgers: Sequence[str], reserve_bytes: int) -> None:
        self._files = files
        self._journals = tuple(journals)
        self._ledgers = tuple(ledgers)
        self._reserve_bytes = reserve_bytes
        self._locks: list[Lock] = []

    @property
    def journals(self) -> list[str]:
        return [posixpath.join(directory, CURRENT) for directory in self._journals]

    @property
    def ledgers(self) -> list[str]:
        return [posixpath.join(directory, CURRENT) for directory in self._ledgers]

    def open(self) -> None:
        """Make what is missing and lock everything. Raises DirectoryInUse, DirectoryUnusable."""
        for directory in dict.fromkeys(self._journals + self._ledgers):
            try:
                self._files.make_directories(posixpath.join(directory, CURRENT))
                self._locks.append(self._files.lock(posixpath.join(directory, _LOCK)))
            except BlockingIOError:
                self.close()
                raise DirectoryInUse(
                    f"{directory} is in use by another bookie (its {_LOCK} is held); give this one other "
                    "journalDirectories and ledgerDirectories, or stop the other"
                ) from None
            except OSError as error:
                self.close()
                raise DirectoryUnusable(
                    f"{directory} cannot be used: {error.strerror} (journalDirectories, ledgerDirectories)"
                ) from error

    def close(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # -- cookies

    async def check_cookies(self, registration: BookieRegistration, bookie_id: str) -> None:
        """Write the cookies of a new bookie; let an old one in only if everything is as it was.

        Raises CookieMismatch, Corruption, MetadataError.
        """
        expected = Cookie(bookie_id, self._journals, self._ledgers, await registration.instance_id())
        node = await registration.read_cookie()
        stored = None if node is None else cookies.decode(node.value, "the cookie in the metadata store")
        paths = {
            posixpath.join(directory, CURRENT): None for directory in dict.fromkeys(self._journals + self._ledgers)
        }
        on_disk = {path: self._read_cookie(path) for path in paths}
        holds_data = {path: self._holds_data(path) for path in paths}
        if not cookies.is_new_bookie(expected, stored, on_disk, holds_data):
            return
        for path in paths:
            replace_file(self._files, posixpath.join(path, VERSION), expected.encode())
        await registration.write_cookie(expected.encode(), NO_NODE)

    def _read_cookie(self, directory: str) -> Cookie | None:
        path = posixpath.join(directory, VERSION)
        return cookies.decode(read_file(self._files, path), path) if self._files.exists(path) else None

    def _holds_data(self, directory: str) -> bool:
        return any(not name.startswith(VERSION) for name in self._files.list(directory))

    # -- space

    def keep_reserve(self) -> None:
        """Take room for bad times where there is plenty now."""
        for directory in self._journals:
            path = posixpath.join(directory, _RESERVE)
            with contextlib.suppress(OSError):
                if self._reserve_bytes == 0 or self._files.exists(path):
                    continue
                if self._files.usage(directory).free_bytes < 16 * self._reserve_bytes:
                    continue
                file = self._files.create(path)
                try:
                    file.append([bytes(self._reserve_bytes)])
                finally:
                    file.close()

    def give_up_reserve(self) -> None:
        """The disk is full: let fences have what was kept."""
        for directory in self._journals:
            with contextlib.suppress(OSError):
                self._files.remove(posixpath.join(directory, _RESERVE))

    def ledger_usage(self) -> DiskUsage:
        """Of all ledger directories; those that look like one file system are counted once. Raises OSError."""
        distinct = {self._files.usage(directory) for directory in self._ledgers}
        return DiskUsage(sum(u.total_bytes for u in distinct), sum(u.free_bytes for u in distinct))


class SpaceWatch:
    """Looks at the disks from time to time, and tells when the reasons to be read-only change. On the loop.

    *changed(reasons, free bytes)* gets the reasons as text, none when the bookie may be written again, and what the
    fullest disk has left; called after each look that is not a good one like the one before.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        clock: Clock,
        *,
        interval_s: float,
        full_share: float,
        room_share: float,
        full_bytes: int,
        changed: Callable[[tuple[str, ...], int], None],
    ) -> None:
        self._files = files
        self._directories = tuple(dict.fromkeys(directories))
        self._clock = clock
        self._interval_s = interval_s
        self._full_share = full_share
        self._room_share = room_share
        self._full_bytes = full_bytes
        self._changed = changed
        self._timer: Timer | None = None
        self._full: dict[str, str] = {}
        self._lasting: dict[str, str] = {}
        self._free_bytes = 0
        self._was_good = False

    @property
    def reasons(self) -> tuple[str, ...]:
        return (*self._lasting.values(), *self._full.values())

    def start(self) -> None:
        self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def no_space(self, error: Exception) -> None:
        """A write found the disk full; that lasts until a look at it finds room."""
        for directory in self._directories:
            self._full[directory] = f"no space left: {error}"
        self._free_bytes = 0
        self._report()

    def set_reason(self, name: str, reason: str | None) -> None:
        """A reason that does not go by itself (None takes it away): forced, or asked for by an operator."""
        if reason is None:
            self._lasting.pop(name, None)
        else:
            self._lasting[name] = reason
        self._report()

    def _check(self) -> None:
        free_bytes = []
        for directory in self._directories:
            try:
                usage = self._files.usage(directory)
            except OSError as error:
                self._full[directory] = f"{directory} cannot be looked at: {error.strerror}"
                free_bytes.append(0)
                continue
            free_bytes.append(usage.free_bytes)
            used = 1 - usage.free_bytes / usage.total_bytes if usage.total_bytes else 1.0
            limit = self._room_share if directory in self._full else self._full_share
            if used > limit or usage.free_bytes < self._full_bytes:
                self._full[directory] = (
                    f"{directory}: {used:.1%} of the disk is used, {usage.free_bytes} bytes are free "
                    f"(diskUsageThreshold {self._full_share:.1%})"
                )
            else:
                self._full.pop(directory, None)
        self._free_bytes = min(free_bytes)
        self._report()
        self._timer = self._clock.call_later(self._interval_s, self._check)

    def _report(self) -> None:
        reasons = self.reasons
        if reasons or not self._was_good:
            self._changed(reasons, self._free_bytes)
        self._was_good = not reasons
