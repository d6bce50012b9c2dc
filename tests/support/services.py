"""`magnetar broker --processes N` and `magnetar bookie --processes N` as real processes, beside a real ZooKeeper."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.support.processes import until

SESSION_MS: Final = 2_000
_HTTP: Final = re.compile(r"HTTP (http://[^\s,]+)")
_AT: Final = re.compile(r"ready at (\S+), HTTP")


class Service:
    """A service on a folder. `with Service(…) as service:` leaves no process behind."""

    def __init__(self, folder: Path, verb: str, settings: dict[str, str], *options: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._verb = verb
        self._options = options
        self._process: subprocess.Popen[str] | None = None
        self._seen: set[int] = set()
        self.ready_line = ""
        self.log = folder / f"{verb}.log"
        (folder / f"{verb}.conf").write_text("".join(f"{name}={text}\n" for name, text in settings.items()))

    def start(self, *options: str) -> None:
        """Returns when the service says that it is ready; AssertionError if it ends before."""
        command = [sys.executable, "-m", "magnetar", self._verb, "--config", str(self._folder / f"{self._verb}.conf")]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *(options or self._options)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log,
                text=True, start_new_session=True, cwd=self._folder,
            )  # fmt: skip
        assert self._process.stdout is not None
        self.ready_line = self._process.stdout.readline()
        self._seen.update(self.children())
        assert " is ready" in self.ready_line, f"not ready: {self.log.read_text()[-3000:]}"

    def refused(self, *options: str) -> tuple[int, str]:
        """Start it where it cannot start; exit code, and what it says."""
        command = [sys.executable, "-m", "magnetar", self._verb, "--config", str(self._folder / f"{self._verb}.conf")]
        found = subprocess.run(
            [*command, *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
            cwd=self._folder,
        )  # fmt: skip
        return found.returncode, found.stderr

    @property
    def is_running(self) -> bool:
        """It was started and not stopped."""
        return self._process is not None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def url(self) -> str:
        """Its HTTP."""
        found = _HTTP.search(self.ready_line)
        assert found is not None, self.ready_line
        return found[1]

    @property
    def service_url(self) -> str:
        """What clients connect to."""
        found = _AT.search(self.ready_line)
        assert found is not None, self.ready_line
        return found[1]

    def children(self) -> list[int]:
        """Its processes, oldest first."""
        return sorted(int(one) for one in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split())

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal to the service alone; returns its exit code when it has ended."""
        process, self._process = self._process, None
        assert process is not None
        self._seen.update(_children_of(process.pid))
        if process.poll() is None:
            os.kill(process.pid, number)
        code = process.wait(60)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def orphans(self) -> list[int]:
        """Processes of this service that outlived it."""
        return [pid for pid in self._seen if _lives(pid)]

    def __enter__(self) -> "Service":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None and self.log.exists():
            print(f"--- {self.log}", self.log.read_text()[-6000:], sep="\n")
        if self._process is not None:
            self._seen.update(_children_of(self._process.pid))
            self.stop(signal.SIGKILL)
        for pid in self.orphans():
            os.kill(pid, signal.SIGKILL)


def brokers(folder: Path, zookeeper: str, **more: str) -> Service:
    """A service of two brokers."""
    settings = {
        "brokerServicePort": "0", "webServicePort": "0", "bindAddress": "127.0.0.1", "clusterName": "local",
        "advertisedAddress": "127.0.0.1", "metadataStoreUrl": f"zk:{zookeeper}",
        "metadataStoreSessionTimeoutMillis": str(SESSION_MS),
        "managedLedgerDefaultEnsembleSize": "1", "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1", "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1", "brokerDeleteInactiveTopicsEnabled": "false",
    }  # fmt: skip
    return Service(folder, "broker", {**settings, **more}, "--processes", "2")


def bookies(folder: Path, zookeeper: str, processes: int = 2) -> Service:
    """A service of bookies called `mine`, `mine-1` …, which runs auto-recovery."""
    settings = {
        "bookiePort": "0", "bookieListenAddress": "127.0.0.1", "advertisedAddress": "127.0.0.1", "bookieId": "mine",
        "httpServerEnabled": "true", "httpServerPort": "0", "journalDirectories": str(folder / "journal"),
        "ledgerDirectories": str(folder / "ledgers"), "metadataServiceUri": f"zk://{zookeeper}/ledgers",
        "zkTimeout": str(SESSION_MS), "autoRecoveryDaemonEnabled": "true", "lostBookieRecoveryDelay": "10",
        # The disk of the machine that runs the tests may be full.
        "diskUsageThreshold": "0.999", "diskUsageWarnThreshold": "0.998",
    }  # fmt: skip
    return Service(folder, "bookie", settings, "--processes", str(processes))


async def get(url: str, tls: ssl.SSLContext | bool = True) -> tuple[int, Any]:
    """Status, and the answer: JSON where it is, else text."""
    return await call("GET", url, tls=tls)


async def call(method: str, url: str, body: Any = None, tls: ssl.SSLContext | bool = True) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.request(method, url, json=body, ssl=tls) as answer:
        text = await answer.text()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text


def wait_until_gone(service: Service) -> None:
    until(lambda: not service.orphans(), "the processes of the service end")


def _children_of(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False
