"""Both systems on this machine, one of them running at a time.

    with Pair(folder, bookies=3, brokers=1) as pair:
        for side in pair.turns(rounds):
            …                            the other side's processes are stopped (SIGSTOP): they keep what they warmed up

Each side has its own ZooKeeper, of the same version and settings, and folders on the same disk. Sessions last ten
minutes, so that a side which waits for its turn stays registered. Everything is ended by pid when the block ends.

Apache's servers run with the settings that they are shipped with, including memory and garbage collector, if the
machine has enough memory; otherwise with a quarter of theirs (`memory_note` says which).
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Self

from bench.apache.table import SIDES, Side
from deploy.fetch_apache import DISTRIBUTION
from tests.support.mixed_cluster import MixedCluster, Server, http_json

MIB: Final = 1024 * 1024
ROOT: Final = Path(__file__).resolve().parent.parent.parent

SESSION_MS: Final = 600_000

SETTLE_S: Final = 0.5
"""After a side goes on: timers that came due meanwhile have run by then."""

# Four servers of Apache's at 2 GB of heap and what they use outside it, beside the page cache.
SHIPPED_NEEDS_MB: Final = 18_000
SMALL_MEMORY: Final = "-Xms512m -Xmx512m -XX:MaxDirectMemorySize=1g"
SHIPPED_MEMORY: Final = "-Xms2g -Xmx2g -XX:MaxDirectMemorySize=4g"
TOOL_MEMORY: Final = "-Xms256m -Xmx1g -XX:MaxDirectMemorySize=1g"

DISK_FREE_MIN_BYTES: Final = 6 * 1024 * MIB
"""Free space without which no run is started: it could fill the disk."""

JOURNALS_KEPT: Final = 1
"""Flushed ones of each bookie: six that keep five of 2 GB each, as shipped, need 60 GB for these alone."""


class BenchError(Exception):
    """A run failed; the text says why."""


def memory_mb(name: str) -> int:
    """A line of /proc/meminfo, in MB."""
    text = Path("/proc/meminfo").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) // 1024


def shipped_memory_fits() -> bool:
    return memory_mb("MemAvailable") >= SHIPPED_NEEDS_MB


class ApacheCluster(MixedCluster):
    """A cluster whose Apache servers have the shipped settings, but for ports, addresses and what one host demands."""

    server_memory = SHIPPED_MEMORY

    def environment(
        self, file: Path | None = None, memory: str = TOOL_MEMORY, logs: Path | None = None
    ) -> dict[str, str]:
        found = super().environment(file, memory, logs)
        if file is None:
            return found
        for name in ("PULSAR_GC", "BOOKIE_GC_OPTS", "PULSAR_EXTRA_OPTS", "BOOKIE_MAX_HEAP_MEMORY",
                     "BOOKIE_MIN_HEAP_MEMORY", "BOOKIE_MAX_DIRECT_MEMORY"):  # fmt: skip
            found.pop(name, None)
        return found | {"PULSAR_MEM": self.server_memory, "BOOKIE_MEM": self.server_memory}

    def _bookie_settings(self, place: Path, port: int) -> dict[str, object]:
        return {**super()._bookie_settings(place, port), "journalMaxBackups": JOURNALS_KEPT}

    def _small_bookie_settings(self) -> dict[str, object]:
        return {}

    def _apache_broker_settings(self) -> dict[str, object]:
        return {"configurationMetadataStoreUrl": self.metadata_url}

    def _broker_settings(self, port: int, web_port: int) -> dict[str, object]:
        found = super()._broker_settings(port, web_port)
        del found["brokerDeduplicationEnabled"]
        return found


def wait_patiently(server: Server) -> None:
    """Twice as long as tests wait: Java servers that touch all their memory first are slow on a busy machine."""
    try:
        server.wait_ready()
    except AssertionError:
        if server.process is None or server.process.poll() is not None:
            raise
        server.wait_ready()


class System:
    """One side: its cluster and whether it runs now."""

    def __init__(
        self,
        side: Side,
        directory: Path,
        *,
        session_ms: int = SESSION_MS,
        kind: type[ApacheCluster] = ApacheCluster,
    ) -> None:
        self.side: Side = side
        self.session_ms = session_ms
        self.cluster = kind(directory, shortest_session_ms=max(1_000, session_ms // 10))
        self.running = True
        self._broken = ""

    def start(self, bookies: int, brokers: int) -> None:
        cluster = self.cluster
        cluster.server_memory = SHIPPED_MEMORY if shipped_memory_fits() else SMALL_MEMORY
        cluster.start_zookeeper()
        cluster.initialise(self.side)
        for _ in range(bookies):
            cluster.add("bookie", self.side, wait=False, zkTimeout=max(self.session_ms, 10_000))
        for bookie in self.bookies:
            wait_patiently(bookie)
        for _ in range(brokers):
            wait_patiently(
                cluster.add("broker", self.side, wait=False, metadataStoreSessionTimeoutMillis=self.session_ms)
            )

    @property
    def bookies(self) -> list[Server]:
        return self.cluster.of("bookie")

    @property
    def brokers(self) -> list[Server]:
        return self.cluster.of("broker")

    @property
    def processes(self) -> list[Server]:
        return [self.cluster.zookeeper, *self.cluster.servers]

    def pause(self) -> None:
        if self.running:
            for server in reversed(self.processes):
                server.pause()
            self.running = False

    def resume(self) -> None:
        if not self.running:
            for server in self.processes:
                server.resume()
            self.running = True
            time.sleep(SETTLE_S)
        self._revive()

    def _revive(self) -> None:
        """A server that died in an earlier run is started again, so that one failure spoils one row."""
        if self._broken:
            raise BenchError(self._broken)
        for server in self.processes:
            if server.process is None or server.process.poll() is not None:
                told = server.log_tail(2)
                server.kill()
                try:
                    server.start()
                except AssertionError as error:
                    self._broken = f"{server.name} had ended ({told}) and does not start again: {error}"
                    raise BenchError(self._broken) from None

    def cpu_s(self) -> dict[str, float]:
        """Seconds of processor time so far, by kind of server."""
        found: dict[str, float] = {}
        for server in self.processes:
            found[server.kind] = found.get(server.kind, 0.0) + server.cpu_s
        return found

    def close(self) -> None:
        self.cluster.__exit__(None, None, None)


class Pair:
    """Both sides. Enter it as a block."""

    def __init__(self, directory: Path, *, bookies: int, brokers: int = 0) -> None:
        self._directory = directory
        self._counts = (bookies, brokers)
        self.systems: dict[Side, System] = {}

    def __enter__(self) -> Self:
        try:
            for side in SIDES:
                for other in self.systems.values():
                    other.pause()
                self.systems[side] = System(side, self._directory / side)
                self.systems[side].start(*self._counts)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for system in self.systems.values():
            system.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def turn(self, side: Side) -> System:
        """Let *side* run and stop the other; everything that both wrote before is synced to the disk first."""
        for other, system in self.systems.items():
            if other != side:
                system.pause()
        os.sync()
        free = shutil.disk_usage(self._directory).free
        if free < DISK_FREE_MIN_BYTES:
            raise BenchError(
                f"only {free // MIB:,} MB are free on the disk; the run needs {DISK_FREE_MIN_BYTES // MIB:,}"
            )
        system = self.systems[side]
        system.resume()
        return system

    @property
    def memory_note(self) -> str:
        return self.systems["apache"].cluster.server_memory


# --------------------------------------------------------------------------------------------- tools


class Ran(NamedTuple):
    text: str
    seconds: float
    cpu_s: float


def run_tool(
    command: Sequence[str], directory: Path, *, timeout_s: float, environment: Mapping[str, str] | None = None
) -> Ran:
    """Runs a program to its end; whatever happens, it does not outlive this call. Raises BenchError."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    with started(command, directory, environment) as process:
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchError(f"{_name(command)} did not end in {timeout_s:.0f} s") from None
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if process.returncode:
        raise BenchError(f"{_name(command)} ended with {process.returncode}: {text[-1500:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Ran(text, time.perf_counter() - began, cpu_s)


@contextmanager
def started(
    command: Sequence[str], directory: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """A process with a group of its own, which is ended with the block."""
    process = subprocess.Popen(
        list(command), cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True, env={**os.environ, **(environment or {})},
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _name(command: Sequence[str]) -> str:
    words = [word for word in command if not word.startswith("-") and "/lib/*" not in word]
    return " ".join(Path(word).name for word in words[:3])


def module(name: str, *arguments: str) -> list[str]:
    """The command of a Python module of ours; to be run in ROOT."""
    return [sys.executable, "-m", name, *arguments]


def perf(what: str, *arguments: str) -> list[str]:
    return [str(DISTRIBUTION / "bin" / "pulsar-perf"), what, *arguments]


def perf_environment(directory: Path) -> dict[str, str]:
    return {"PULSAR_MEM": TOOL_MEMORY, "PULSAR_LOG_DIR": str(directory), "PULSAR_GC": "-XX:+UseG1GC"}


def owner_of(brokers: Sequence[Server], topic: str) -> Server:
    """The broker that serves *topic* (persistent://…), as a lookup says."""
    found = http_json(f"{brokers[0].admin_url}/lookup/v2/topic/{topic.replace('://', '/')}")
    port = int(found["brokerUrl"].rpartition(":")[2])
    return next(broker for broker in brokers if broker.port == port)
