"""Servers under test: processes of their own on free ports of the loopback address, gone when the tests are.

Rules:

1. A start has a time limit; what the server said is in the error.
2. A guard process ends the servers when the test run is gone, also after kill -9 (`magnetar.testing.guard`).
3. A test gets a namespace of its own; the server is shared.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from magnetar.testing.guard import end_all

if TYPE_CHECKING:
    from magnetar.cluster import Cluster

# A start takes under a second on a quiet machine, a cluster's some five; tests run on machines that are not.
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.02

_READY: Final = re.compile(
    r"ready after .*: (?P<service>pulsar://[^,]+), HTTP (?P<admin>http://[^,]+), gRPC (?P<grpc>[^,]+), bookies "
)

# What a namespace may be called, and how much of a test's name goes into it.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARS_MAX: Final = 40


class ServerFailed(Exception):
    """A server did not start, ended, or did not do what it was asked; the text says what it said last."""


class TopicPlace:
    """Where a test works: the addresses, and a namespace of its own."""

    def __init__(self, service_url: str, admin_url: str, grpc_url: str, namespace: str) -> None:
        self.service_url = service_url
        """For Pulsar clients: pulsar://host:port, of a cluster with several brokers."""
        self.admin_url = admin_url
        """HTTP of a broker."""
        self.grpc_url = grpc_url
        """For `magnetar.Client`: host:port, of a cluster with several brokers."""
        self.namespace = namespace
        """tenant/namespace"""

    def topic(self, name: str) -> str:
        """The full name of a topic in the namespace."""
        return f"persistent://{self.namespace}/{name}"


class _Guarded:
    """Processes that do not outlive this one (rule 2)."""

    def __init__(self, directory: Path) -> None:
        self._pid_file = directory / "pids"
        self._pid_file.write_text("")
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "magnetar.testing.guard", str(self._pid_file)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def hold(self, pids: Sequence[int]) -> None:
        temporary = self._pid_file.with_suffix(".tmp")
        temporary.write_text("".join(f"{pid}\n" for pid in pids))
        temporary.replace(self._pid_file)

    def let_go(self) -> None:
        """The processes are gone: nothing is left to be ended."""
        self.hold([])
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()


class ServerUnderTest(TopicPlace):
    """`magnetar standalone` in a process of its own. Made by `standalone()`."""

    def __init__(self, directory: Path, options: Sequence[str]) -> None:
        super().__init__("", "", "", "public/default")
        self.directory = directory
        self._options = tuple(options)
        self._log = directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._guarded: _Guarded | None = None

    def start(self) -> None:
        """Raises ServerFailed (rule 1)."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._guarded = _Guarded(self.directory)
        command = [sys.executable, "-m", "magnetar", "standalone", "--data", str(self.directory / "data"),
                   "--port", "0", "--web-port", "0", "--bookie-port", "0", *self._options]  # fmt: skip
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._guarded.hold([self._process.pid])
        deadline = monotonic() + START_TIMEOUT_S
        while True:
            found = _READY.search(self.log_text())
            if found is not None:
                self.service_url, self.admin_url, self.grpc_url = found["service"], found["admin"], found["grpc"]
                return
            if self._process.poll() is not None:
                raise ServerFailed(f"magnetar standalone ended with {self._process.returncode}: {self._tail()}")
            if monotonic() > deadline:
                raise ServerFailed(f"magnetar standalone is not ready after {START_TIMEOUT_S:.0f} s: {self._tail()}")
            sleep(_LOOK_S)

    def log_text(self) -> str:
        """What the server has written so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _tail(self) -> str:
        return self.log_text()[-2000:].strip() or "it said nothing"

    def fresh(self, name: str) -> TopicPlace:
        """The same server with a new namespace, called after *name*."""
        return TopicPlace(self.service_url, self.admin_url, self.grpc_url, new_namespace([self.admin_url], name))

    def stop(self) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                end_all([self._process.pid])
            self._process.wait()
            self._process = None
        if self._guarded is not None:
            self._guarded.let_go()
            self._guarded = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


@contextlib.contextmanager
def standalone(directory: Path | str | None = None, *, options: Sequence[str] = ()) -> Iterator[ServerUnderTest]:
    """A broker with bookie and metadata, on free ports, until the block ends. Raises ServerFailed.

    Data go to *directory* and stay there; without one they go with the block. *options* are those of the command
    `magnetar standalone`.
    """
    with contextlib.ExitStack() as stack:
        place = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-"))
        yield stack.enter_context(ServerUnderTest(Path(place), options))


# ---------------------------------------------------------------------------------------- cluster


class ClusterUnderTest(TopicPlace):
    """ZooKeeper, bookies and brokers, each a process of its own. Made by `cluster()`.

    Processes are called broker-1, broker-2, …, bookie-1, … and zookeeper.
    """

    def __init__(self, made: "Cluster", directory: Path) -> None:
        super().__init__("", "", "", "public/default")
        self._cluster = made
        self._directory = directory
        self._guarded: _Guarded | None = None
        self._paused: list[str] = []

    @property
    def brokers(self) -> list[str]:
        return [member.name for member in self._cluster.members("broker")]

    @property
    def bookies(self) -> list[str]:
        return [member.name for member in self._cluster.members("bookie")]

    @property
    def metadata_url(self) -> str:
        """ZooKeeper, as Spark and `magnetar ledgers` name it."""
        return self._cluster.metadata_url

    def is_running(self, name: str) -> bool:
        return self._cluster.is_running(name)

    def owner(self, topic: str) -> str:
        """The broker that serves *topic* (one partition of a partitioned one). Raises ServerFailed."""
        path = topic.replace("://", "/") if "://" in topic else f"persistent/public/default/{topic}"
        answer = _ask(self._live_admin_urls(), "GET", f"/lookup/v2/topic/{path}")
        port = int(answer["brokerUrl"].rpartition(":")[2])
        return next(member.name for member in self._cluster.members("broker") if member.port == port)

    def kill_broker(self, name: str | None = None, *, serving: str | None = None) -> str:
        """kill -9 the broker *name*, or the one that is *serving* a topic, or any; returns its name."""
        return self._kill(name or (self.owner(serving) if serving else None), self.brokers)

    def kill_bookie(self, name: str | None = None) -> str:
        """kill -9 the bookie *name*, or any; returns its name."""
        return self._kill(name, self.bookies)

    def _kill(self, name: str | None, names: Sequence[str]) -> str:
        chosen = name or next((one for one in names if self._cluster.is_running(one)), None)
        if chosen is None:
            raise ServerFailed(f"none of {', '.join(names)} runs; restart() one first")
        if chosen not in names:
            raise ServerFailed(f"there is no {chosen!r}; there are {', '.join(names)}")
        self._cluster.kill(chosen, signal.SIGKILL)
        if chosen in self._paused:
            self._paused.remove(chosen)
        return chosen

    def restart(self, name: str) -> None:
        """Start a process that was killed, or kill -9 one that runs and start it; returns when it can be used."""
        if self._cluster.is_running(name):
            self._cluster.kill(name, signal.SIGKILL)
        if name in self._paused:
            self._paused.remove(name)
        self._cluster.start(name)
        self._hold()

    def pause(self, name: str) -> None:
        """Stop a process without ending it, as a long pause of its machine would (SIGSTOP)."""
        os.kill(self._cluster.member(name).pid, signal.SIGSTOP)
        self._paused.append(name)

    def resume(self, name: str) -> None:
        """Let a paused process go on."""
        os.kill(self._cluster.member(name).pid, signal.SIGCONT)
        if name in self._paused:
            self._paused.remove(name)

    def partition_away(self, name: str) -> None:
        """Not there yet: cutting one process off needs a network of its own."""
        raise ServerFailed(
            f"partition_away({name!r}) is not there yet: processes share the loopback address. pause() makes a process "
            "unreachable too, but for its clock; kill_broker() and kill_bookie() end it"
        )

    def heal(self) -> None:
        """Resume what is paused, start what does not run. Raises ServerFailed."""
        from magnetar.runtime.types import MagnetarError

        for name in list(self._paused):
            self.resume(name)
        try:
            self._cluster.up(bookies=len(self.bookies), brokers=len(self.brokers), free_ports=True)
        except MagnetarError as error:
            raise ServerFailed(str(error)) from None
        self._hold()

    def fresh(self, name: str) -> None:
        """A new namespace, called after *name*."""
        self.namespace = new_namespace(self._live_admin_urls(), name)

    def _live_admin_urls(self) -> list[str]:
        return [
            f"http://127.0.0.1:{member.web_port}"
            for member in self._cluster.members("broker")
            if self._cluster.is_running(member.name) and member.name not in self._paused
        ]

    def _hold(self) -> None:
        if self._guarded is not None:
            self._guarded.hold([member.pid for member in self._cluster.state.members if member.pid])

    def start(self, bookies: int, brokers: int) -> None:
        """Raises ServerFailed."""
        from magnetar.runtime.types import MagnetarError

        self._guarded = _Guarded(self._directory)
        try:
            self._cluster.up(bookies=bookies, brokers=brokers, free_ports=True)
        except MagnetarError as error:
            raise ServerFailed(str(error)) from None
        self._hold()
        self.service_url = self._cluster.service_url
        self.admin_url = self._cluster.admin_urls[0]
        self.grpc_url = ",".join(self._cluster.grpc_addresses)

    def stop(self) -> None:
        pids = [
            member.pid for member in self._cluster.state.members if member.pid and self._cluster.is_running(member.name)
        ]
        end_all(pids)
        for member in self._cluster.state.members:
            self._cluster.is_running(member.name)  # takes the exit code of a child
        if self._guarded is not None:
            self._guarded.let_go()
            self._guarded = None


@contextlib.contextmanager
def cluster(directory: Path | str | None = None, *, bookies: int = 3, brokers: int = 2) -> Iterator[ClusterUnderTest]:
    """A cluster on free ports until the block ends; needs Java for its ZooKeeper. Raises ServerFailed."""
    from magnetar.cluster import Cluster

    with contextlib.ExitStack() as stack:
        place = Path(directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-")))
        place.mkdir(parents=True, exist_ok=True)
        made = ClusterUnderTest(Cluster(place / "cluster"), place)
        stack.callback(made.stop)
        made.start(bookies, brokers)
        yield made


# --------------------------------------------------------------------------------------- namespaces

_counter = iter(range(1_000_000))


def new_namespace(admin_urls: Sequence[str], name: str) -> str:
    """Make a namespace that nobody uses; returns tenant/namespace. Raises ServerFailed."""
    readable = _NOT_IN_NAMES.sub("-", name)[:_NAME_CHARS_MAX].strip("-")
    namespace = f"public/{readable or 'test'}-{os.getpid()}-{next(_counter)}"
    _ask(admin_urls, "PUT", f"/admin/v2/namespaces/{namespace}")
    return namespace


def _ask(urls: Sequence[str], method: str, path: str) -> Any:
    """The answer of the first broker that gives one. Raises ServerFailed."""
    failure = "no broker runs"
    for url in urls:
        request = urllib.request.Request(url + path, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_TIMEOUT_S) as answer:
                return json.loads(answer.read() or b"null")
        except urllib.error.HTTPError as error:
            with error:
                failure = f"{url}{path}: {error.code} {error.read()[:300].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            failure = f"{url}{path}: {error}"
    raise ServerFailed(failure)
