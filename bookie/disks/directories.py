"""The directories of a bookie: making, locking, checking by cookie, watching for space.

    <journal directory>/current/VERSION, *.txn
    <ledger directory>/current/VERSION, lastMark, lastId, *.log, locations/, ledgers/
    <either>/bookie.lock                 held while the process lives

Rules:

1. Two processes never use one directory: the lock file is held before anything is read.
2. A file of a few MiB reserves room in each journal directory. It is removed when the disk is full, so that fences can
   still be written (I48).
"""

import contextlib
import errno
import logging
import os
import posixpath
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from bookie.disks import cookie as cookies
from bookie.disks.cookie import Cookie, CookieMismatch
from bookie.disks.read_only import (
    STATUS_FILE,
    DiskCheck,
    DiskLimits,
    DiskState,
    Reason,
    Verdict,
    check_disk,
    decode_status,
    encode_status,
    judge,
)
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.files import DiskUsage, Files, Lock, read_file, replace_file
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

CURRENT: Final = "current"
VERSION: Final = "VERSION"
_LOCK: Final = "bookie.lock"
_RESERVE: Final = "reserve"
FIRST_LEDGER: Final = "VERSION.first-ledger"
"""Like the cookie, it does not count as data."""
DIRTY: Final = "DIRTY"
_OURS: Final = b"magnetar\n"


class DirectoryInUse(MagnetarError):
    """Another bookie works in the directory."""


class DirectoryUnusable(MagnetarError):
    """The directory cannot be made or written."""


class Directories:
    """Journal and ledger directories of one bookie. Paths below are those of `current`."""

    def __init__(
        self,
        files: Files,
        journals: Sequence[str],
        ledgers: Sequence[str],
        reserve_bytes: int,
        usage: Callable[[str], DiskUsage] | None = None,
        absolute: Callable[[str], str] = posixpath.normpath,
    ) -> None:
        """*usage* returns the usage of a directory's file system; by default *files* does. *absolute* makes a path of a
        cookie absolute."""
        self._files = files
        self._usage = files.usage if usage is None else usage
        self._absolute = absolute
        self._journals = tuple(journals)
        self._ledgers = tuple(ledgers)
        self._reserve_bytes = reserve_bytes
        self._locks: list[Lock] = []
        self._expected: Cookie | None = None

    @property
    def journals(self) -> list[str]:
        return [posixpath.join(directory, CURRENT) for directory in self._journals]

    @property
    def ledgers(self) -> list[str]:
        return [posixpath.join(directory, CURRENT) for directory in self._ledgers]

    def open(self) -> None:
        """Make missing directories and lock all of them. Raises DirectoryInUse, DirectoryUnusable."""
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
        if readable := self.open_to_others():
            log.warning(
                "every user of this machine may read what is stored in %s; chmod 750 ends that", ", ".join(readable)
            )

    def open_to_others(self) -> list[str]:
        """The directories in which every user of the machine may read what is stored. Raises OSError."""
        paths = dict.fromkeys(self._journals + self._ledgers)
        return [path for path in paths if self._files.lets_others_in(posixpath.join(path, CURRENT))]

    def close(self) -> None:
        for lock in self._locks:
            lock.release()
        self._locks.clear()

    # -- cookies

    async def check_cookies(
        self,
        registration: BookieRegistration,
        bookie_id: str,
        next_ledger_id: Callable[[], Awaitable[int]],
        *,
        take_emptied: bool = False,
        take_moved: bool = False,
        ledgers_in: Callable[[str], Iterable[int]] = lambda _: (),
    ) -> bool:
        """Write the cookies of a new bookie; for a known one, check that they all match.

        *next_ledger_id*: a number above those of all ledgers there are; a new bookie, and one that lost a disk, note it
        (`first_ledger_id`).
        *take_emptied*: accept a bookie with emptied directories. Returns True if there are any. The caller must then
        record that entries were lost, and write the missing cookies after that (`stamp`).
        *take_moved*: accept directories that stand elsewhere than their cookies say, and write new ones.
        *ledgers_in(directory)* are ledgers that the index of a ledger directory has, which show its place among them.
        Raises CookieMismatch, Corruption, MetadataError.
        """
        expected = Cookie(bookie_id, self._journals, self._ledgers, await registration.instance_id())
        node = await registration.read_cookie()
        stored = None if node is None else self._decoded(node.value, "the cookie in the metadata store")
        paths = {
            posixpath.join(directory, CURRENT): None for directory in dict.fromkeys(self._journals + self._ledgers)
        }
        on_disk = {path: self._read_cookie(path) for path in paths}
        holds_data = {path: self._holds_data(path) for path in paths}
        self._expected = expected
        if take_moved and cookies.is_moved(expected, stored, on_disk):
            if len(self.ledgers) > 1:
                problem = cookies.order_problem(self.ledgers, [ledgers_in(directory) for directory in self.ledgers])
                if problem:
                    raise CookieMismatch(f"bookie {bookie_id} does not start: {problem}")
            self.stamp()
            await registration.write_cookie(expected.encode(), None if node is None else node.version)
            log.warning("bookie %s: its directories were moved; their cookies are new", bookie_id)
            return False
        if take_emptied and cookies.is_emptied(expected, stored, on_disk, holds_data):
            self._note_first_ledger(await next_ledger_id())
            return True
        if cookies.is_new_bookie(expected, stored, on_disk, holds_data):
            self._note_first_ledger(await next_ledger_id())
            self.stamp()
            await registration.write_cookie(expected.encode(), NO_NODE)
        return False

    def stamp(self) -> None:
        """Write the cookie into every directory. Raises OSError."""
        assert self._expected is not None, "the cookies were not checked"
        for directory in dict.fromkeys(self._journals + self._ledgers):
            replace_file(self._files, posixpath.join(directory, CURRENT, VERSION), self._expected.encode())

    def _note_first_ledger(self, ledger_id: int) -> None:
        """Call before the cookie is written: a start that was cut short is one of a new bookie again, and notes another
        number."""
        for directory in self._ledgers:
            replace_file(self._files, posixpath.join(directory, CURRENT, FIRST_LEDGER), b"%d\n" % ledger_id)

    def first_ledger_id(self) -> int:
        """Ledgers below this number are older than what is on the disks: their fences may have been lost (I130).

        0 for a bookie that was made by another program. Raises OSError, Corruption.
        """
        highest = 0
        for directory in self.ledgers:
            path = posixpath.join(directory, FIRST_LEDGER)
            if self._files.exists(path):
                data = read_file(self._files, path)
                if not data.strip().isdigit():
                    raise Corruption(
                        f"{path} is no number of a ledger; copy it from another ledger directory, or remove it if the "
                        "bookie was never put up anew under its name"
                    )
                highest = max(highest, int(data))
        return highest

    # -- unclean ends

    def note_start(self) -> bool:
        """Write a file that a clean stop removes. Returns True if Apache's bookie was the last one here and ended
        uncleanly: it may have run without a journal, which ours never does. Raises OSError."""
        was_apaches = False
        for directory in self.ledgers:
            path = posixpath.join(directory, DIRTY)
            if self._files.exists(path):
                was_apaches = was_apaches or read_file(self._files, path) != _OURS
            replace_file(self._files, path, _OURS)
        return was_apaches

    def note_stop(self) -> None:
        """Everything is flushed and closed: record a clean stop."""
        for directory in self.ledgers:
            with contextlib.suppress(OSError):
                self._files.remove(posixpath.join(directory, DIRTY))

    def _read_cookie(self, directory: str) -> Cookie | None:
        path = posixpath.join(directory, VERSION)
        return self._decoded(read_file(self._files, path), path) if self._files.exists(path) else None

    def _decoded(self, data: bytes, source: str) -> Cookie:
        """Raises Corruption."""
        return cookies.decode(data, source).resolved(self._absolute)

    def _holds_data(self, directory: str) -> bool:
        return any(not name.startswith(VERSION) for name in self._files.list(directory))

    # -- space

    def keep_reserve(self) -> None:
        """Write the reserve files where there is enough room (rule 2)."""
        for directory in self._journals:
            path = posixpath.join(directory, _RESERVE)
            with contextlib.suppress(OSError):
                if self._reserve_bytes == 0 or self._files.exists(path):
                    continue
                if self._usage(directory).free_bytes < 16 * self._reserve_bytes:
                    continue
                file = self._files.create(path)
                try:
                    file.append([bytes(self._reserve_bytes)])
                finally:
                    file.close()

    def give_up_reserve(self) -> None:
        """The disk is full: remove the reserve files, so that fences can be written (rule 2)."""
        for directory in self._journals:
            with contextlib.suppress(OSError):
                self._files.remove(posixpath.join(directory, _RESERVE))

    def ledger_usage(self) -> DiskUsage:
        """The usage of all ledger directories. Directories that seem to share a file system are counted once. Raises
        OSError."""
        distinct = {self._usage(directory) for directory in self._ledgers}
        return DiskUsage(sum(u.total_bytes for u in distinct), sum(u.free_bytes for u in distinct))


class SpaceWatch:
    """Checks the disks periodically and reports the verdict. Used on the loop.

    *usage* returns the usage of a directory's file system. *changed(verdict)* is called after each check, except for a
    good one that follows a good one.
    """

    def __init__(
        self,
        usage: Callable[[str], DiskUsage],
        ledgers: Sequence[str],
        journals: Sequence[str],
        clock: Clock,
        *,
        interval_s: float,
        limits: DiskLimits,
        on_any_full: bool,
        changed: Callable[[Verdict], None],
    ) -> None:
        self._usage = usage
        self._ledgers = tuple(ledgers)
        self._journals = tuple(journals)
        self._clock = clock
        self._interval_s = interval_s
        self._limits = limits
        self._on_any_full = on_any_full
        self._changed = changed
        self._timer: Timer | None = None
        self._checks: dict[str, DiskCheck] = {}
        self._was_good = False

    @property
    def checks(self) -> tuple[DiskCheck, ...]:
        """The latest check of each directory, ledger directories first."""
        return tuple(self._checks.values())

    def start(self) -> None:
        self._check()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def no_space(self, error: Exception) -> None:
        """A write found a disk that takes nothing more. All count as full until a check finds room."""
        is_read_only = os.strerror(errno.EROFS) in str(error)
        text = f"{'it cannot be written' if is_read_only else 'no space left'}: {error}"
        for directory in (*self._ledgers, *self._journals):
            before = self._checks.get(directory)
            total_bytes = 0 if before is None else before.total_bytes
            self._checks[directory] = DiskCheck(directory, DiskState.FULL, 0, total_bytes, text)
        self._report()

    def _check(self) -> None:
        for directory in (*self._ledgers, *self._journals):
            before = self._checks.get(directory)
            try:
                usage = self._usage(directory)
            except OSError as error:
                text = f"{directory} cannot be looked at: {error.strerror or error}"
                self._checks[directory] = DiskCheck(directory, DiskState.UNREADABLE, 0, 0, text)
                continue
            if usage.is_read_only:
                text = f"{directory}: its file system is read-only; mount it anew to be written when its disk is well"
                self._checks[directory] = DiskCheck(
                    directory, DiskState.READ_ONLY, usage.free_bytes, usage.total_bytes, text
                )
                continue
            was_full = before is not None and before.state is DiskState.FULL
            check = check_disk(directory, usage.total_bytes, usage.free_bytes, was_full, self._limits)
            if check.state is DiskState.WARN and (before is None or before.state is DiskState.GOOD):
                log.warning("%s", check.text)
            self._checks[directory] = check
        self._report()
        self._timer = self._clock.call_later(self._interval_s, self._check)

    def _report(self) -> None:
        verdict = judge(
            [self._checks[directory] for directory in self._ledgers],
            [self._checks[directory] for directory in self._journals],
            self._on_any_full,
        )
        is_good = not (verdict.disk or verdict.error or verdict.full_ledger_directories)
        if not is_good or not self._was_good:
            self._changed(verdict)
        self._was_good = is_good


class StatusFiles:
    """BOOKIE_STATUS in every ledger directory. Blocks: a worker's thread, or a start."""

    def __init__(self, files: Files, ledgers: Sequence[str]) -> None:
        self._files = files
        self._paths = [posixpath.join(directory, STATUS_FILE) for directory in ledgers]

    def read(self) -> dict[Reason, str]:
        """The reasons in the newest of the files. Raises Corruption, OSError."""
        saved = [decode_status(read_file(self._files, path), path) for path in self._paths if self._files.exists(path)]
        return max(saved, key=lambda status: status.changed_ms).kept if saved else {}

    def write(self, kept: Mapping[Reason, str], wall_ms: int) -> None:
        """Write the status file everywhere. One directory is enough, since the newest file counts. Raises OSError if
        none could be written."""
        failures: list[OSError] = []
        for path in self._paths:
            try:
                replace_file(self._files, path, encode_status(kept, wall_ms))
            except OSError as error:
                log.warning("%s cannot be written: %s", path, error)
                failures.append(error)
        if len(failures) == len(self._paths):
            raise failures[0]
