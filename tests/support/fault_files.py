"""A disk in memory that fails when it is told to, and a drawn life of a bookie on it."""

import errno
import posixpath
from dataclasses import replace
from typing import Final, NamedTuple

from magnetar.testing.simulated.disk import MemoryFiles, _apply, _MemoryFile, _Truncate, _Write
from magnetar_core.runtime.files import File
from tests.support.crash_images import MODES, Run, bury, crashed

FAULTS: Final = ("EIO", "ENOSPC", "short write")


class Fault(NamedTuple):
    """The fault that happened instead of an operation."""

    fault: str
    kind: str
    path: str

    @property
    def place(self) -> str:
        """The kind of file: `txn`, `log`, `lastMark`, `compacting` and so on; `directory` for a directory."""
        name = posixpath.basename(self.path).removesuffix(".tmp")
        if self.kind == "sync_directory":
            return "journal directory" if self.path.startswith("/j") else "ledger directory"
        if name.startswith("lastMark"):
            return "lastMark"
        return name.rpartition(".")[2]


class _FaultyFile(_MemoryFile):
    def _change(self, change: _Write | _Truncate) -> None:
        files = self._files
        if isinstance(files, FaultyFiles) and files.is_due() and isinstance(change, _Write):
            half = _Write(change.offset, change.data[: len(change.data) // 2])
            if files.fault == "short write" and half.data:
                _apply(self._inode.cached, half)
                self._inode.unsynced.append(half)
        super()._change(change)


class FaultyFiles(MemoryFiles):
    """The operation number *fail_at* (from 1) fails with *fault*; `happened` tells of it."""

    def __init__(self, fail_at: int, fault: str) -> None:
        super().__init__()
        self.fail_at = fail_at
        self.fault = fault
        self.operations = 0
        self.happened: Fault | None = None

    def is_due(self) -> bool:
        return self.operations + 1 == self.fail_at

    def note(self, kind: str, path: str) -> None:
        self.operations += 1
        if self.operations == self.fail_at:
            self.happened = Fault(self.fault, kind, path)
            number = errno.ENOSPC if self.fault == "ENOSPC" else errno.EIO
            raise OSError(number, f"injected ({self.fault})", path)
        super().note(kind, path)

    def create(self, path: str) -> File:
        made = super().create(path)
        assert isinstance(made, _MemoryFile)
        return _FaultyFile(self, path, made._inode, writable=True)


class FaultRun(Run):
    """A drawn life in which one operation of the disk fails; everything is checked when it is over.

    `outcome` is `fail-stop` (the bookie gave up, or did not start), or `goes on`.
    """

    disk_fails = True

    def __init__(self, seed: int, fail_at: int, fault: str) -> None:
        super().__init__(seed, steps=120, share=0.0)
        self.options = replace(self.options, restarts=False, full_disks=False)
        self.faulty = FaultyFiles(fail_at, fault)
        for directory in (*self._disk.journal_directories, *self._disk.ledger_directories):
            self.faulty.make_directories(directory)
        self._disk.files = self.faulty
        self.faulty.on_operation.append(self._operation)
        self.outcome = "goes on"

    def go(self) -> None:
        try:
            self._open()
        except OSError:
            self.outcome = "fail-stop"
            self.end()
            return
        for _ in range(self._steps):
            self._step()
            if self.life.failure is not None:
                break
        self.life.settle_journals()
        while self.life.flusher.waiting:
            self.life.flusher.step()
        self.life.settle_journals()  # the flush above may have let a journal work, and its outcome is not told yet
        if self.life.failure is not None:
            self.outcome = "fail-stop"
        self.end()

    def end(self) -> None:
        """Whatever the power cut keeps: check it."""
        if self._round is not None:
            bury(self._round)
        for mode in MODES:
            self._check(crashed(self._disk, self._images_rng, mode), f"the end, {mode}", nested=3)
