"""Servers under test: processes on free ports of the loopback address, which end with the test run.

Rules:

1. A start has a time limit; the error shows what the server printed.
2. A guard process ends the servers when the test run is gone, also after kill -9 (`magnetar.testing.guard`).
3. Each test gets its own namespace; the server is shared.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Any, Final, Self

from magnetar.testing import network
from magnetar.testing.guard import end_all
from magnetar_core.runtime.http.request import ask
from magnetar_core.runtime.process.own_packages import python_command, python_environment

# A start takes under a second on a quiet machine, that of a cluster about five; tests also run on busy machines.
START_TIMEOUT_S: Final = 60.0
ANSWER_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.02
# A server without a session answers late; it is asked again.
_SEEN_ANSWER_S: Final = 5.0
_HOST: Final = "127.0.0.1"

_READY: Final = re.compile(
    r"ready after .*: (?P<service>pulsar://[^,]+), HTTP (?P<admin>http://[^,]+), gRPC (?P<grpc>[^,]+), bookies "
)

# Characters that the name of a namespace may have, and how much of a test's name goes into it.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_CHARS_MAX: Final = 40


class ServerFailed(Exception):
    """A server did not start, ended, or did not do what it was asked; the text has its last lines."""


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
            python_command("magnetar.testing.guard", str(self._pid_file)), env=python_environment(os.environ),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def hold(self, groups: Sequence[Sequence[int]]) -> None:
        """*groups* are ended one after the other."""
        temporary = self._pid_file.with_suffix(".tmp")
        temporary.write_text("".join(" ".join(map(str, pids)) + "\n" for pids in groups))
        temporary.replace(self._pid_file)

    def let_go(self) -> None:
        """The processes have ended, so the guard has nothing left to end."""
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
        ports = ("--port", "0", "--web-port", "0", "--bookie-port", "0")
        data = str(self.directory / "data")
        command = python_command("magnetar", "standalone", "--data", data, *ports, *self._options)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env=python_environment(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        self._guarded.hold([[self._process.pid]])
        deadline = monotonic() + START_TIMEOUT_S
        while True:
            match = _READY.search(self.log_text())
            if match is not None:
                self.service_url, self.admin_url, self.grpc_url = match["service"], match["admin"], match["grpc"]
                return
            if self._process.poll() is not None:
                raise ServerFailed(f"magnetar standalone ended with {self._process.returncode}: {self._tail()}")
            if monotonic() > deadline:
                raise ServerFailed(f"magnetar standalone is not ready after {START_TIMEOUT_S:.0f} s: {self._tail()}")
            sleep(_LOOK_S)

    def logs(self) -> dict[str, Path]:
        """Paths of the server logs, by name."""
        return {"standalone": self._log}

    def log_text(self) -> str:
        """The text that the server has written so far."""
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

    Example:
        with standalone() as server:
            print(server.service_url, server.topic("orders"))
    """
    with contextlib.ExitStack() as stack:
        place = directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-"))
        yield stack.enter_context(ServerUnderTest(Path(place), options))


# ---------------------------------------------------------------------------------------- cluster


class ClusterUnderTest(TopicPlace):
    """ZooKeeper, bookies and brokers, each a process of its own. Made by `cluster()`.

    Processes are called broker-1, broker-2, …, bookie-1, … and zookeeper.
    """

    def __init__(self, directory: Path) -> None:
        from magnetar.processes.cluster import Cluster

        super().__init__("", "", "", "public/default")
        self._why_no_network = network.why_not()
        self._cluster = Cluster(
            directory / "cluster",
            own_addresses=self._why_no_network is None,
            before_up=self._start_network,
            on_launched=self._hold,
        )
        self._is_planned = False
        self._directory = directory
        self._network: network.Network | None = None
        self._guarded: _Guarded | None = None
        self._paused: list[str] = []
        self._away: list[str] = []

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

    def logs(self) -> dict[str, Path]:
        """Server → path of its log; ZooKeeper's is left out."""
        names = [*self.brokers, *self.bookies]
        return {name: self._cluster.log_path(name) for name in names}

    def owner(self, topic: str) -> str:
        """The broker that serves *topic* (one partition of a partitioned one). Raises ServerFailed."""
        path = topic.replace("://", "/") if "://" in topic else f"persistent/public/default/{topic}"
        answer = _ask(self._live_admin_urls(), "GET", f"/lookup/v2/topic/{path}")
        port = int(answer["brokerUrl"].rpartition(":")[2])
        return next(member.name for member in self._cluster.members("broker") if member.port == port)

    # What can be done to it

    def kill_broker(self, name: str | None = None, *, serving: str | None = None) -> str:
        """kill -9 the broker *name*, or the one that is *serving* a topic, or any; returns its name."""
        return self._kill(self._choose(name or (self.owner(serving) if serving else None), self.brokers))

    def kill_bookie(self, name: str | None = None) -> str:
        """kill -9 the bookie *name*, or any; returns its name."""
        return self._kill(self._choose(name, self.bookies))

    def _choose(self, name: str | None, names: Sequence[str]) -> str:
        """*name*, or the first that runs and can be reached."""
        chosen = name or next((candidate for candidate in names if self._is_well(candidate)), None)
        if chosen is None:
            raise ServerFailed(f"none of {', '.join(names)} runs and can be reached; restart() or heal() one first")
        if chosen not in names:
            raise ServerFailed(f"there is no {chosen!r}; there are {', '.join(names)}")
        if not self._cluster.is_running(chosen):
            raise ServerFailed(f"{chosen} does not run; restart() it first")
        return chosen

    def _is_well(self, name: str) -> bool:
        return self._cluster.is_running(name) and name not in self._paused and name not in self._away

    def _kill(self, name: str) -> str:
        self._cluster.kill(name, signal.SIGKILL)
        if self._network is not None:
            self._network.shut(name)
        if name in self._paused:
            self._paused.remove(name)
        return name

    def restart(self, name: str) -> None:
        """Start a process that was killed, or kill -9 one that runs and start it; returns when it can be used.

        It is not cut off any more. Raises ServerFailed.
        """
        if self._cluster.is_running(name):
            self._kill(name)
        self._reconnect(name)
        with _as_server_failed():
            self._start_process(name)

    def _start_process(self, name: str) -> None:
        if self._network is not None:
            self._network.open(name)
        self._cluster.start(name)

    def pause(self, name: str) -> None:
        """Stop a process without ending it, as a long pause of its machine would (SIGSTOP)."""
        os.kill(self._cluster.member(name).pid, signal.SIGSTOP)
        self._paused.append(name)

    def resume(self, name: str) -> None:
        """Continue a paused process."""
        os.kill(self._cluster.member(name).pid, signal.SIGCONT)
        if name in self._paused:
            self._paused.remove(name)

    def partition_away(self, name: str | None = None, *, serving: str | None = None, silent: bool = True) -> str:
        """Cut a process off from everything: clients, ZooKeeper, bookies, other brokers; returns its name.

        It is the process *name*, or the broker that is *serving* a topic, or any broker. It keeps running and does not
        know that it is cut off. Bytes under way on open connections stall, in both directions. Clients that connect to
        it wait for an answer, as in a network that loses every packet; a connection that it opens itself is accepted
        and never answered. With *silent* false its connections are reset and new ones refused, as by a firewall that
        rejects: clients notice at once. `heal(name)` ends the cut. Linux only. Raises ServerFailed.
        """
        if self._network is None:
            raise ServerFailed(
                f"partition_away() cannot be done here: {self._why_no_network}. pause() makes a process "
                "unreachable too, but for its clock"
            )
        names = [member.name for member in self._cluster.state.members]
        chosen = name or (self.owner(serving) if serving else None)
        chosen = self._choose(chosen, names if chosen else self.brokers)
        with _as_server_failed():
            self._network.cut(chosen, self._cluster.member(chosen).pid, silent=silent)
        if chosen not in self._away:
            self._away.append(chosen)
        return chosen

    def heal(self, name: str | None = None) -> None:
        """Connect *name* again; returns when the others see it again. Raises ServerFailed.

        Stalled bytes are passed on, as after lost packets that are sent again; connections that it opened meanwhile are
        reset. Without a name every server is repaired: cut ones are connected, paused ones continued, ended ones
        started.
        """
        returning = {name} if name is not None else {*self._away, *self._paused}
        for server in [name] if name is not None else list(self._away):
            self._reconnect(server)
        if name is None:
            for server in list(self._paused):
                self.resume(server)
            with _as_server_failed():
                for member in self._cluster.state.members:
                    if not self._cluster.is_running(member.name):
                        self._start_process(member.name)
        if "zookeeper" in returning:
            returning |= {*self.brokers, *self.bookies}
        for server in sorted(returning):
            if self._is_well(server):
                self._wait_seen(server)

    def _reconnect(self, name: str) -> None:
        if self._network is not None:
            with _as_server_failed():
                self._network.heal(self._cluster.member(name).name)
        if name in self._away:
            self._away.remove(name)

    def _wait_seen(self, name: str) -> None:
        """Wait until a server has a session again and is registered."""
        member = self._cluster.member(name)
        if member.kind == "zookeeper":
            return
        web, own_port = f"http://{_HOST}:{member.web_port}", member.port
        paths = ["/api/v1/bookie/list_bookies?type=rw", "/api/v1/bookie/list_bookies?type=ro"]
        if member.kind == "broker":
            paths, own_port = ["/admin/v2/brokers"], member.web_port
        deadline, failure = monotonic() + START_TIMEOUT_S, ""
        while True:
            try:
                if any(f"{member.address}:{own_port}" in _ask([web], "GET", path, _SEEN_ANSWER_S) for path in paths):
                    return
            except ServerFailed as error:
                failure = f": {error}"
            if monotonic() > deadline:
                raise ServerFailed(f"{name} is not registered again after {START_TIMEOUT_S:.0f} s{failure}")
            sleep(_LOOK_S)

    # Used by the fixture

    def fresh(self, name: str) -> None:
        """A new namespace, called after *name*."""
        self.namespace = new_namespace(self._live_admin_urls(), name)

    def _live_admin_urls(self) -> list[str]:
        return [
            f"http://{_HOST}:{member.web_port}"
            for member in self._cluster.members("broker")
            if self._is_well(member.name)
        ]

    def _hold(self) -> None:
        if self._guarded is not None:
            relay = [self._network.pid] if self._network is not None else []
            self._guarded.hold([*self._pids(), relay])

    def _pids(self) -> list[list[int]]:
        """The pids in the order in which they shall end: a broker that has lost its bookies or ZooKeeper is slow."""
        return [
            [member.pid for member in self._cluster.members(kind) if self._cluster.is_running(member.name)]
            for kind in ("broker", "bookie", "zookeeper")
        ]

    def _start_network(self) -> None:
        self._is_planned = True
        if any(member.address == _HOST for member in self._cluster.state.members):
            self._why_no_network = self._why_no_network or "this cluster was made without addresses of its own"
        if self._why_no_network is None:
            self._network = network.Network(self._cluster.state.members, _HOST, self._directory / "relay.log")

    def start(self, bookies: int, brokers: int) -> None:
        """Raises ServerFailed."""
        self._guarded = _Guarded(self._directory)
        with _as_server_failed():
            self._cluster.up(bookies=bookies, brokers=brokers, free_ports=True)
        self.service_url = self._cluster.service_url
        self.admin_url = self._cluster.admin_urls[0]
        self.grpc_url = ",".join(self._cluster.grpc_addresses)

    def stop(self) -> None:
        for name in list(self._away):
            with contextlib.suppress(ServerFailed):
                self._reconnect(name)
        if self._is_planned:
            for pids in self._pids():
                end_all(pids)
            for member in self._cluster.state.members:
                self._cluster.is_running(member.name)  # takes the exit code of a child
        if self._network is not None:
            self._network.stop()
            self._network = None
        if self._guarded is not None:
            self._guarded.let_go()
            self._guarded = None


@contextlib.contextmanager
def _as_server_failed() -> Iterator[None]:
    """Turn errors of the block into ServerFailed."""
    from magnetar_core.runtime.types import MagnetarError

    try:
        yield
    except (MagnetarError, network.NetworkFailed) as error:
        raise ServerFailed(str(error)) from None


@contextlib.contextmanager
def cluster(directory: Path | str | None = None, *, bookies: int = 3, brokers: int = 2) -> Iterator[ClusterUnderTest]:
    """A cluster on free ports until the block ends; needs Java for its ZooKeeper. Raises ServerFailed.

    Example:
        with cluster(bookies=3, brokers=2) as servers:
            servers.restart(servers.kill_bookie())
    """
    with contextlib.ExitStack() as stack:
        place = Path(directory or stack.enter_context(tempfile.TemporaryDirectory(prefix="magnetar-")))
        place.mkdir(parents=True, exist_ok=True)
        under_test = ClusterUnderTest(place)
        stack.callback(under_test.stop)
        under_test.start(bookies, brokers)
        yield under_test


# --------------------------------------------------------------------------------------- namespaces

_counter = iter(range(1_000_000))


def new_namespace(admin_urls: Sequence[str], name: str) -> str:
    """Make a namespace that nobody uses; returns tenant/namespace. Raises ServerFailed."""
    readable = _NOT_IN_NAMES.sub("-", name)[:_NAME_CHARS_MAX].strip("-")
    namespace = f"public/{readable or 'test'}-{os.getpid()}-{next(_counter)}"
    _ask(admin_urls, "PUT", f"/admin/v2/namespaces/{namespace}")
    return namespace


def _ask(urls: Sequence[str], method: str, path: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
    """The answer of the first server that gives one. Raises ServerFailed."""
    failure = "no broker runs and can be reached"
    for url in urls:
        try:
            answer = ask(method, url + path, timeout_s=timeout_s)
            if answer.status < 300:
                return json.loads(answer.body or b"null")
            failure = f"{url}{path}: {answer.status} {answer.body[:300].decode(errors='replace')}"
        except (OSError, ValueError) as error:
            failure = f"{url}{path}: {error}"
    raise ServerFailed(failure)
