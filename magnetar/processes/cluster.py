"""The developer's cluster: a ZooKeeper, bookies and brokers on this machine, each its own process.

    DIR/cluster.json                what was started: names, pids, ports
    DIR/zookeeper/                  zoo.cfg, log, data
    DIR/bookie-1/ … bookie-N/       bookie.conf, log, journal, ledgers
    DIR/broker-1/ … broker-M/       broker.conf, log

The servers are started with the commands that a person would type (`magnetar bookie --config …`), so they run as they
do elsewhere. Sessions are short (2 s, ticks of 500 ms), so that a takeover can be watched.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import (
    find_pyspark_jars,
    zookeeper_command,
    zookeeper_config,
)
from magnetar_core.runtime.config import parse_properties
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.process.own_packages import python_command, python_environment
from magnetar_core.runtime.types import MagnetarError

SESSION_MS: Final = 2_000

READY_TIMEOUT_S: Final = 60.0
"""For all processes that are started together; a quiet machine needs some three seconds. One that is not ready by then
is reported with the end of its log."""

STOP_TIMEOUT_S: Final = 30.0

# Lines that the servers print when they can be used.
READY_MARK: Final = " is ready"

ZOOKEEPER_PORT: Final = 2181
BOOKIE_PORT: Final = 3181
BROKER_PORT: Final = 6650
WEB_PORT: Final = 8080
GRPC_PORT: Final = 6750
"""The topic API's. 6648, which a standalone takes, is too near to the brokers' 6650, 6651 …"""
BOOKIE_WEB_PORT: Final = 8000
"""HTTP of the bookies, where Apache has it."""

# Two copies, both confirmed (Pulsar's own default): with three bookies one can die and another take its place.
COPIES: Final = 2

STATE_FILE: Final = "cluster.json"

HOST: Final = "127.0.0.1"
"""Where every server listens."""

# 127.0.1.1 to 127.0.1.250.
OWN_ADDRESSES_MAX: Final = 250


class ClusterError(MagnetarError):
    """The cluster cannot be started or found; the text says what to do."""


@dataclass
class Member:
    """One process of the cluster."""

    name: str
    kind: str
    port: int
    web_port: int = 0
    """HTTP of a broker or bookie; 0: a bookie of a cluster that was made before its bookies had one."""
    pid: int = 0
    started: str = ""
    """The start time in the system's own words: pids are used again."""
    grpc_port: int = 0
    """0: the topic API is off (a cluster that was made before there was one)."""
    address: str = HOST
    """The address that it gives to clients and other servers, and the one where it finds ZooKeeper."""

    @property
    def ports(self) -> list[int]:
        """All ports on which it listens."""
        return [port for port in (self.port, self.web_port, self.grpc_port) if port]


@dataclass
class State:
    zookeeper_port: int
    members: list[Member] = field(default_factory=list)


class Cluster:
    """A cluster in a folder. All calls block.

    With *own_addresses* each server advertises its own address, 127.0.1.N, and connects to ZooKeeper there. All listen
    on 127.0.0.1 nevertheless. *before_up*, called when `up` knows ports and addresses, must start a relay that listens
    at those addresses and passes bytes on. *on_launched* is called after each start of a process. *auto_recovery*: the
    bookies of a new cluster run it, too. *copies* of each message are kept in a new cluster, on as many bookies.
    """

    def __init__(
        self,
        directory: Path | str,
        *,
        own_addresses: bool = False,
        auto_recovery: bool = True,
        copies: int = COPIES,
        before_up: Callable[[], None] = lambda: None,
        on_launched: Callable[[], None] = lambda: None,
    ) -> None:
        self.directory = Path(directory).resolve()
        self._own_addresses = own_addresses
        self._auto_recovery = auto_recovery
        self._copies = copies
        self._before_up = before_up
        self._on_launched = on_launched
        self._clock = new_clock()
        self._state: State | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # ------------------------------------------------------------------------------ looking

    @property
    def state(self) -> State:
        """The processes that were started. Raises ClusterError if there is no cluster in the folder."""
        if self._state is None:
            try:
                raw = json.loads((self.directory / STATE_FILE).read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise ClusterError(
                    f"no cluster in {self.directory}; start one with `magnetar cluster up --directory {self.directory}`"
                ) from None
            except (OSError, ValueError) as error:
                raise self._unreadable_error(error) from None
            try:
                self._state = State(raw["zookeeper_port"], [Member(**member) for member in raw["members"]])
            except (KeyError, TypeError) as error:
                raise self._unreadable_error(error) from None
        return self._state

    def _unreadable_error(self, error: Exception) -> ClusterError:
        return ClusterError(
            f"{self.directory / STATE_FILE} cannot be read ({error}); stop what runs by hand and remove the folder"
        )

    def member(self, name: str) -> Member:
        """Raises ClusterError for an unknown name."""
        for member in self.state.members:
            if member.name == name:
                return member
        known = ", ".join(member.name for member in self.state.members)
        raise ClusterError(f"no process {name} in this cluster; there are {known}")

    def members(self, kind: str) -> list[Member]:
        """The processes of one kind: `zookeeper`, `bookie`, `broker`."""
        return [member for member in self.state.members if member.kind == kind]

    @property
    def service_url(self) -> str:
        """For Pulsar clients; names every broker."""
        return "pulsar://" + ",".join(f"{member.address}:{member.port}" for member in self.members("broker"))

    @property
    def admin_urls(self) -> list[str]:
        return [f"http://{member.address}:{member.web_port}" for member in self.members("broker")]

    @property
    def grpc_addresses(self) -> list[str]:
        """For `magnetar.Client`."""
        return [f"{member.address}:{member.grpc_port}" for member in self.members("broker") if member.grpc_port]

    @property
    def dashboard_url(self) -> str:
        """The page about bookies and their copies, at the first bookie that runs; empty if none serves it."""
        for bookie in self.members("bookie"):
            if bookie.web_port and self.is_running(bookie.name) and self._runs_auto_recovery(bookie):
                return f"http://{HOST}:{bookie.web_port}/dashboard/"
        return ""

    def _runs_auto_recovery(self, bookie: Member) -> bool:
        """A cluster that was made before bookies had it goes on without."""
        path = self.directory / bookie.name / "bookie.conf"
        return parse_properties(path.read_text(), str(path)).get("autoRecoveryDaemonEnabled") == "true"

    @property
    def metadata_url(self) -> str:
        return f"zk:{self.member('zookeeper').address}:{self.state.zookeeper_port}"

    def is_running(self, name: str) -> bool:
        """Whether the process that was started as *name* still runs: another one with its pid does not count."""
        member = self.member(name)
        process = self._processes.get(name)
        if process is not None and process.pid == member.pid:
            return process.poll() is None
        return member.pid > 0 and _start_time(member.pid) == member.started

    def log_path(self, name: str) -> Path:
        return self.directory / name / "log"

    # ------------------------------------------------------------------------------ starting

    def up(self, *, bookies: int = 3, brokers: int = 2, free_ports: bool = False) -> None:
        """Start everything; returns when it can be used. Raises ClusterError.

        A folder that already holds a cluster is started again with its own ports and data; what runs, stays.
        """
        if (self.directory / STATE_FILE).exists():
            if len(self.members("bookie")) != bookies or len(self.members("broker")) != brokers:
                raise ClusterError(
                    f"{self.directory} holds a cluster of {len(self.members('bookie'))} bookies and "
                    f"{len(self.members('broker'))} brokers; give the same numbers, or another --directory"
                )
            self._before_up()
            self._start_all()
            return
        # Free ports stay reserved until their servers have them: others look for free ports at the same moment.
        with contextlib.closing(reserved_ports()) as ports:
            self._plan(bookies, brokers, ports if free_ports else None)
            self._before_up()
            self._start_all()

    def _start_all(self) -> None:
        """Start what does not run; if that fails, stop again what was started here."""
        started: list[Member] = []
        deadline = self._clock.monotonic() + READY_TIMEOUT_S
        try:
            for kind in ("zookeeper", "bookie", "broker"):
                starting = [member for member in self.members(kind) if not self.is_running(member.name)]
                for member in starting:
                    started.append(member)
                    self._launch(member)
                for member in starting:
                    self._wait_ready(member, deadline)
        except BaseException:
            self._stop(started)
            raise

    def _plan(self, bookies: int, brokers: int, ports: Iterator[int] | None) -> None:
        if bookies < 1 or brokers < 1:
            raise ClusterError("a cluster has at least one bookie and one broker")
        if self._copies < 1 or COPIES < self._copies > bookies:
            raise ClusterError(f"{self._copies} copies of each message need as many bookies; there are to be {bookies}")

        def port(usual: int) -> int:
            return next(ports) if ports is not None else usual

        state = State(port(ZOOKEEPER_PORT))
        state.members.append(Member("zookeeper", "zookeeper", state.zookeeper_port))
        for number in range(bookies):
            planned = Member(
                f"bookie-{number + 1}", "bookie", port(BOOKIE_PORT + number), port(BOOKIE_WEB_PORT + number)
            )
            state.members.append(planned)
        for number in range(brokers):
            planned = Member(f"broker-{number + 1}", "broker", port(BROKER_PORT + number), port(WEB_PORT + number))
            planned.grpc_port = port(GRPC_PORT + number)
            state.members.append(planned)
        if self._own_addresses:
            if len(state.members) > OWN_ADDRESSES_MAX:
                raise ClusterError(f"there are addresses for {OWN_ADDRESSES_MAX} servers, ZooKeeper among them")
            for number, member in enumerate(state.members, 1):
                member.address = f"127.0.1.{number}"
        wanted = [(member.name, number) for member in state.members for number in member.ports]
        holders = {number: name for name, number in reversed(wanted)}  # with many servers the ranges may overlap
        taken = [
            f"{name} needs port {number}" + (f", as {holders[number]} does" if holders[number] != name else "")
            for name, number in wanted
            if holders[number] != name or not _is_free(number)
        ]
        if taken:
            raise ClusterError(
                "ports are in use: " + "; ".join(taken) + ". Stop what uses them, or take `--free-ports`."
            )
        self.directory.mkdir(parents=True, exist_ok=True)
        self._state = state
        self._write_configurations(min(bookies, self._copies))
        self._save()

    def _write_configurations(self, copies: int) -> None:
        state = self.state
        for member in state.members:
            place = self.directory / member.name
            place.mkdir(exist_ok=True)
            if member.kind == "zookeeper":
                (place / "zoo.cfg").write_text(zookeeper_config(place / "data", member.port))
            elif member.kind == "bookie":
                (place / "bookie.conf").write_text(
                    f"bookiePort={member.port}\n"
                    f"bookieListenAddress={HOST}\n"
                    f"advertisedAddress={member.address}\n"
                    # HTTP has no authentication; it stays on the loopback address, like everything of this cluster.
                    "httpServerEnabled=true\n"
                    f"httpServerHost={HOST}\n"
                    f"httpServerPort={member.web_port}\n"
                    f"journalDirectory={place / 'journal'}\n"
                    f"ledgerDirectories={place / 'ledgers'}\n"
                    f"metadataServiceUri=zk://{member.address}:{state.zookeeper_port}/ledgers\n"
                    f"zkTimeout={SESSION_MS}\n"
                    f"autoRecoveryDaemonEnabled={str(self._auto_recovery).lower()}\n"
                    # A bookie that is only restarted is back within this, and nothing is copied because of it.
                    "lostBookieRecoveryDelay=10\n"
                    # The disk is that of a developer's machine, which may be nearly full of other things: only the
                    # room that a bookie needs at least makes it read-only.
                    "diskUsageThreshold=0.999\n"
                    "diskUsageWarnThreshold=0.999\n"
                )
            else:
                (place / "broker.conf").write_text(
                    f"brokerServicePort={member.port}\n"
                    f"webServicePort={member.web_port}\n"
                    f"grpcServicePort={member.grpc_port}\n"
                    f"bindAddress={HOST}\n"
                    f"advertisedAddress={member.address}\n"
                    "clusterName=local\n"
                    f"metadataStoreUrl=zk:{member.address}:{state.zookeeper_port}\n"
                    f"metadataStoreSessionTimeoutMillis={SESSION_MS}\n"
                    f"managedLedgerDefaultEnsembleSize={copies}\n"
                    f"managedLedgerDefaultWriteQuorum={copies}\n"
                    f"managedLedgerDefaultAckQuorum={copies}\n"
                    # Keep messages and topics without a subscription; Pulsar's own defaults delete them.
                    "defaultRetentionTimeInMinutes=-1\n"
                    "defaultRetentionSizeInMB=-1\n"
                    "brokerDeleteInactiveTopicsEnabled=false\n"
                )

    def command(self, member: Member) -> list[str]:
        """The command that starts *member*, as a person would type it."""
        place = self.directory / member.name
        if member.kind == "zookeeper":
            return zookeeper_command(find_pyspark_jars(), place / "zoo.cfg")
        return python_command("magnetar", member.kind, "--config", str(place / f"{member.kind}.conf"))

    def start(self, name: str) -> None:
        """Start one process again; returns when it can be used."""
        member = self.member(name)
        if self.is_running(name):
            raise ClusterError(f"{name} is running (pid {member.pid})")
        self._launch(member)
        self._wait_ready(member, self._clock.monotonic() + READY_TIMEOUT_S)

    def _launch(self, member: Member) -> None:
        log = self.log_path(member.name)
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists():
            log.replace(log.with_suffix(".old"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command(member),
                env=python_environment(os.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C at the terminal does not end them
            )
        self._processes[member.name] = process
        member.pid = process.pid
        member.started = _start_time(process.pid)
        self._save()
        self._on_launched()

    def _wait_ready(self, member: Member, deadline: float) -> None:
        while not self._is_ready(member):
            ended = not self.is_running(member.name)
            if ended or self._clock.monotonic() > deadline:
                tail = self.log_path(member.name).read_text(errors="replace").strip().splitlines()[-15:]
                raise ClusterError(
                    f"{member.name} {'ended' if ended else f'is not ready after {READY_TIMEOUT_S:.0f} s'}; "
                    f"the end of {self.log_path(member.name)}:\n" + "\n".join(tail)
                )
            time.sleep(0.02)

    def _is_ready(self, member: Member) -> bool:
        if member.kind == "zookeeper":
            return zookeeper_answers(member.port)
        return READY_MARK in self.log_path(member.name).read_text(errors="replace")

    # ------------------------------------------------------------------------------ stopping

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to one process and, if that ends it, wait until it has ended."""
        member = self.member(name)
        if not self.is_running(name):
            raise ClusterError(f"{name} is not running")
        os.kill(member.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
            self._wait_ended(member)

    def _wait_ended(self, member: Member) -> None:
        deadline = self._clock.monotonic() + STOP_TIMEOUT_S
        while self.is_running(member.name):
            if self._clock.monotonic() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)
            time.sleep(0.02)

    def down(self) -> None:
        """Stop brokers, then bookies, then ZooKeeper. Data stay."""
        self._stop(self.state.members)

    def _stop(self, members: Sequence[Member]) -> None:
        for kind in ("broker", "bookie", "zookeeper"):
            running = [member for member in members if member.kind == kind and self.is_running(member.name)]
            for member in running:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGCONT)  # a paused process does not hear SIGTERM
                    os.kill(member.pid, signal.SIGTERM)
            for member in running:
                self._wait_ended(member)

    def _save(self) -> None:
        path = self.directory / STATE_FILE
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(self.state), indent=2) + "\n", encoding="utf-8")
        temporary.replace(path)


def reserved_ports() -> Generator[int, None, None]:
    """Ports that are free now. Each stays reserved until the generator is closed; a server may take it all the same,
    since the sockets here do not listen."""
    held = []
    try:
        while True:
            holder = socket.socket()
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, 0))
            held.append(holder)
            yield holder.getsockname()[1]
    finally:
        for holder in held:
            holder.close()


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def zookeeper_answers(port: int) -> bool:
    """Whether the ZooKeeper at *port* of this machine serves clients, and does not only listen."""
    try:
        with socket.create_connection((HOST, port), timeout=1) as connection:
            connection.sendall(b"srvr")  # not `ruok`, which is answered before the server serves clients
            return b"Mode:" in connection.makefile("rb").read()
    except OSError:
        return False


def _start_time(pid: int) -> str:
    """When a process was started, in the system's own words; empty if it does not run (or is a zombie)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:  # it ended between the opening and the reading
        return ""
    except FileNotFoundError:
        if Path("/proc/self/stat").exists():
            return ""
        result = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
        return result.stdout.strip()
    fields = text.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]
