"""The cluster of a soak: small ledgers, a small disk, and starts without waiting until the server is ready."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from magnetar.testing.guard import end_all
from magnetar.testing.servers import ClusterUnderTest, ServerFailed
from tests.soak.schedule import BOOKIES, BROKERS, server_names
from tests.support.processes import change_settings

# A ledger a second or two of each partition, at the rate at which clients publish.
ENTRIES_PER_LEDGER: Final = 20

SMALL_DISK: Final = server_names("bookie")[-1]
SMALL_DISK_BYTES: Final = 128 << 20
FULL_SHARE: Final = 0.93
"""Less is left free than the 36 MiB that a bookie needs: half of its write cache, and `compactionReserveMB`."""

_BROKER: Final = {
    "managedLedgerMaxEntriesPerLedger": ENTRIES_PER_LEDGER,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
    "managedLedgerCacheSizeMB": 2,  # readers that lag read from bookies
    "brokerDeduplicationEnabled": "true",
    "brokerDeduplicationEntriesInterval": 50,
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "retentionCheckIntervalInSeconds": 3,
}
_BOOKIE: Final = {
    "diskCheckInterval": 500,
    "logSizeLimit": 8 << 20,
    "journalMaxSizeMB": 16,
    "journalMaxBackups": 0,
    "compactionReserveMB": 4,
    "flushInterval": 5_000,
    "gcWaitTime": 10_000,
    # Each round's topics are deleted: all ledgers at once is what is meant.
    "gcListingShrinkShare": 1.0,
    "gcRefuseEmptyListing": "false",
    "minorCompactionInterval": 30,
    "majorCompactionInterval": 60,
}

Remark = Callable[[str], None]


class SoakCluster(ClusterUnderTest):
    """The test cluster of applications with other settings. Used by one thread at a time."""

    def __init__(self, directory: Path, remark: Remark) -> None:
        super().__init__(directory)
        self._remark = remark
        self._lives: dict[str, int] = {}
        self._launched: set[str] = set()
        self._mount: Path | None = None
        self.why_no_small_disk = ""
        """Empty: the last bookie's disk can be filled."""

    @property
    def admin_urls(self) -> list[str]:
        return self._cluster.admin_urls

    def start_all(self) -> None:
        self.start(BOOKIES, BROKERS)

    def _start_network(self) -> None:
        """Ports are planned and nothing has been started."""
        for member in self._cluster.state.members:
            place = self._cluster.directory / member.name
            settings = {"broker": _BROKER, "bookie": _BOOKIE}.get(member.kind)
            if settings:
                lines = "".join(f"{name}={value}\n" for name, value in settings.items())
                change_settings(place / f"{member.kind}.conf", lines)
        self._make_small_disk(self._cluster.directory / SMALL_DISK / "ledgers")
        super()._start_network()

    def _make_small_disk(self, place: Path) -> None:
        if os.name != "posix" or os.geteuid() != 0 or shutil.which("mount") is None:
            self.why_no_small_disk = "mounting one needs root"
            return
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_BYTES}", "tmpfs", str(place)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            self.why_no_small_disk = f"it cannot be mounted: {done.stderr.strip()}"
        else:
            self._mount = place

    # ------------------------------------------------------------------------------ faults

    def pid(self, name: str) -> int:
        return self._cluster.member(name).pid

    def end(self, name: str, number: signal.Signals) -> None:
        """A server ends; after SIGTERM it is waited for, some seconds."""
        if self.is_running(name):
            if number == signal.SIGKILL:
                self._kill(name)
            else:
                end_all([self.pid(name)])
                if self._network is not None:
                    self._network.shut(name)
                self.is_running(name)

    def launch(self, name: str) -> None:
        """Start a server and do not wait: what it needs may be away."""
        if self.is_running(name):
            return
        log = self._cluster.log_path(name)
        if log.exists():
            self._lives[name] = self._lives.get(name, 0) + 1
            log.replace(log.with_name(f"log.{self._lives[name]}"))
        if self._network is not None:
            self._network.open(name)
        self._launched.add(name)
        self._cluster._launch(self._cluster.member(name))

    def fill(self, share: float) -> None:
        """Use the small disk up to *share* of it, or until it takes no more."""
        assert self._mount is not None
        wanted = int(shutil.disk_usage(self._mount).total * share) - shutil.disk_usage(self._mount).used
        with contextlib.suppress(OSError), (self._mount / "filler").open("wb") as file:
            for _ in range(0, max(wanted, 0), 1 << 20):
                file.write(bytes(1 << 20))

    def clear(self) -> None:
        assert self._mount is not None
        (self._mount / "filler").unlink(missing_ok=True)

    def make_whole(self, timeout_s: float) -> None:
        """Every server runs, is connected and registered again. Raises ServerFailed."""
        if self._mount is not None:
            self.clear()
        deadline = monotonic() + timeout_s
        for name in list(self._away):
            self._reconnect(name)
        for name in list(self._paused):
            self.resume(name)
        names = ["zookeeper", *self.bookies, *self.brokers]
        while True:
            for name in names:
                if not self.is_running(name):
                    self._remark(f"{name} does not run: {self.log_tail(name)}" if name in self._launched else name)
                    self.launch(name)
            waiting = [name for name in names if not self._cluster._is_ready(self._cluster.member(name))]
            if not waiting:
                break
            if monotonic() > deadline:
                raise ServerFailed(f"{waiting[0]} is not ready after {timeout_s:.0f} s:\n{self.log_tail(waiting[0])}")
            sleep(0.2)
        self._launched.clear()
        for name in names[1:]:
            self._wait_seen(name)

    def log_tail(self, name: str, lines: int = 15) -> str:
        path = self._cluster.log_path(name)
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def remove_old_logs(self) -> None:
        """Logs of servers that have ended; after a round in which nothing was found."""
        for name in self._lives:
            for path in (self._cluster.directory / name).glob("log.[0-9]*"):
                path.unlink()

    # ------------------------------------------------------------------------------ memory

    def resident_bytes(self) -> dict[tuple[str, int], int]:
        """(server, pid) → memory, of those that run."""
        found = {}
        for name in [*self.brokers, *self.bookies]:
            pid = self.pid(name)
            with contextlib.suppress(OSError):
                pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
                found[name, pid] = pages * os.sysconf("SC_PAGE_SIZE")
        return found

    def stop(self) -> None:
        super().stop()
        if self._mount is not None:
            # What is in memory goes with the mount; after a failure somebody wants to look at it.
            shutil.copytree(self._mount, self._mount.with_name("ledgers-kept"), dirs_exist_ok=True)
            subprocess.run(["umount", "--lazy", str(self._mount)], capture_output=True, check=False)
            self._mount = None


@contextlib.contextmanager
def soak_cluster(directory: Path, remark: Remark) -> Iterator[SoakCluster]:
    """Raises ServerFailed."""
    made = SoakCluster(directory, remark)
    with contextlib.ExitStack() as stack:
        stack.callback(made.stop)
        made.start_all()
        yield made
