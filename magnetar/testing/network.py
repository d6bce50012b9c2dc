"""The relay of a cluster under test, as the test run sees it (`magnetar.testing.relay` is the other side)."""

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Final

from magnetar_core.runtime.process.own_packages import python_command, python_environment

if TYPE_CHECKING:
    from magnetar.processes.cluster import Member

# Time for the relay to start: it has to load asyncio, on a machine that tests keep busy.
START_TIMEOUT_S: Final = 30.0
# Time for one command, which reads /proc and sets some flags: milliseconds, or seconds at a load of twenty.
ANSWER_TIMEOUT_S: Final = 30.0
# How long the last bytes of the servers may take to arrive after the servers have ended.
STOP_TIMEOUT_S: Final = 2.0

_PROBE: Final = "127.0.1.1"


class NetworkFailed(Exception):
    """The relay did not start, or did not do what it was asked."""


def why_not() -> str | None:
    """Why this machine cannot have such a network; None if it can."""
    if sys.platform != "linux":
        return f"it needs Linux (this is {sys.platform}): all of 127.0.0.0/8, and /proc"
    if not Path("/proc/self/net/tcp").exists():
        return "it needs /proc/net/tcp, which is not here"
    with socket.socket() as probe:
        try:
            probe.bind((_PROBE, 0))
        except OSError as error:
            return f"it needs all of 127.0.0.0/8, and {_PROBE} cannot be used: {error.strerror}"
    return None


def ways_of(members: "Sequence[Member]", host: str) -> list[tuple[tuple[str, int], tuple[str, int], str, str]]:
    """The ways to the *members* (which listen on *host*), and from each member to ZooKeeper."""
    ways = [((member.address, port), (host, port), member.name, "") for member in members for port in member.ports]
    for zookeeper in members:
        if zookeeper.kind == "zookeeper":
            ways += [
                ((member.address, zookeeper.port), (host, zookeeper.port), zookeeper.name, member.name)
                for member in members
                if member is not zookeeper
            ]
    return ways


class Network:
    """A relay process. All calls block and raise NetworkFailed."""

    def __init__(
        self, members: "Sequence[Member]", host: str, log: Path, answer_timeout_s: float = ANSWER_TIMEOUT_S
    ) -> None:
        """Start the relay; returns when it listens. Its error output goes to *log*."""
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                python_command("magnetar.testing.relay"), env=python_environment(os.environ),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, bufsize=0,
            )  # fmt: skip
        self._log = log
        self.answer_timeout_s = answer_timeout_s
        self._owed = 0
        """Answers that were not read, since they came late: they stand before the next one."""
        self._answers = b""
        try:
            self._command(json.dumps(ways_of(members, host)), START_TIMEOUT_S)
        except BaseException:
            self._process.kill()
            self.stop()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self, name: str) -> None:
        """A server is about to start."""
        self._command(f"open {name}")

    def shut(self, name: str) -> None:
        """A server has ended: connecting to it is refused from now on."""
        self._command(f"shut {name}")

    def cut(self, name: str, pid: int, *, silent: bool) -> None:
        """Cut a server off: nothing reaches it, and it reaches nothing. *pid* is its process."""
        self._command(f"cut {name} {pid} {'silent' if silent else 'reset'}")

    def heal(self, name: str) -> None:
        self._command(f"heal {name}")

    def stop(self) -> None:
        """End the relay. To be called after the servers have ended, so that their last bytes still arrive."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

    def _command(self, line: str, timeout_s: float | None = None) -> None:
        timeout_s = self.answer_timeout_s if timeout_s is None else timeout_s
        process, deadline = self._process, monotonic() + timeout_s
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line.encode() + b"\n")
        except OSError:
            raise NetworkFailed(f"the relay has ended: {self._tail()}") from None
        self._owed += 1
        while self._answers.count(b"\n") < self._owed:
            ready, _, _ = select.select([process.stdout], [], [], max(deadline - monotonic(), 0))
            if not ready:
                raise NetworkFailed(f"the relay did not answer in {timeout_s:g} s: {self._tail()}")
            more = process.stdout.read(4096)
            if not more:
                raise NetworkFailed(f"the relay has ended: {self._tail()}")
            self._answers += more
        answer = self._answers.splitlines()[self._owed - 1]
        self._owed, self._answers = 0, b""
        if answer != b"ok":
            raise NetworkFailed(f"the relay: {answer.decode(errors='replace').strip()}")

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:].strip() or "it said nothing"
