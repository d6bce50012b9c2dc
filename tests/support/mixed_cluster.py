"""Clusters made of Apache's processes and ours, for tests/interop and bench/apache: one ZooKeeper, any mix of servers.

    with MixedCluster(folder) as cluster:
        cluster.start_zookeeper()
        cluster.initialise("apache")
        for brand in ("apache", "apache", "ours"):
            cluster.add("bookie", brand)
        broker = cluster.add("broker", "ours")

Every process listens on free loopback ports, writes its log to DIR/NAME/log, and is ended by pid when the block ends.
Ours are started by the commands that a person would type; Apache's by the scripts of its distribution
(`deploy/fetch_apache.py`), with small heaps.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from kazoo.client import KazooClient

from deploy.fetch_apache import DISTRIBUTION, PULSAR_VERSION, java_of, lib_of
from magnetar.processes.cluster import reserved_ports, zookeeper_answers
from magnetar_core.bookkeeper.metadata.stores.zookeeper_server import (
    find_pyspark_jars,
    zookeeper_command,
    zookeeper_config,
)

Brand = Literal["ours", "apache"]
Kind = Literal["bookie", "broker", "autorecovery"]

LINE: Final = os.environ.get("MAGNETAR_APACHE_LINE") or PULSAR_VERSION
"""Whose servers run: brokers, bookies and auto-recovery. Apache's tools and scripts are those of 4.0.8; so are clients,
where a test does not take those of the line."""
LOGGING: Final = Path(__file__).parents[2] / "deploy" / "apache" / "log4j2.xml"

READY_TIMEOUT_S: Final = 120.0
SESSION_MS: Final = {"ours": 2_000, "apache": 6_000}
"""Java processes that share two cores pause for seconds; ours need no such margin."""

BOOKIE_MEMORY: Final = "-Xms128m -Xmx384m -XX:MaxDirectMemorySize=256m"
BROKER_MEMORY: Final = "-Xms256m -Xmx768m -XX:MaxDirectMemorySize=512m"
TOOL_MEMORY: Final = "-Xms64m -Xmx512m -XX:MaxDirectMemorySize=256m"


def is_there() -> bool:
    """Whether the distribution has been fetched, and the servers of `LINE`."""
    return (DISTRIBUTION / "bin" / "pulsar").exists() and lib_of(LINE).is_dir()


# What the shipped files say and the classes do not.
_OF_PLAIN_JARS: Final = {
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
    "httpServerClass": "org.apache.bookkeeper.http.vertx.VertxHttpServer",
}

_MAIN: Final[Mapping[str, tuple[str, str]]] = {
    "broker": ("org.apache.pulsar.PulsarBrokerStarter", "--broker-conf"),
    "bookie": ("org.apache.bookkeeper.server.Main", "--conf"),
    "autorecovery": ("org.apache.bookkeeper.replication.AutoRecoveryMain", "--conf"),
}


def line_command(kind: str, file: Path, memory: str) -> list[str]:
    """What runs a server of `LINE` from plain jars, with the options that Apache's scripts give."""
    opened = (
        "java.base/java.io", "java.base/java.util.zip", "java.base/java.nio", "java.base/jdk.internal.misc",
        "java.base/jdk.internal.platform", "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )  # fmt: skip
    drivers = "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata"
    main, option = _MAIN[kind]
    return [
        java_of(LINE), *memory.split(), "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
        "-Djava.net.preferIPv4Stack=true", "-Djute.maxbuffer=10485760",
        *(part for package in opened for part in ("--add-opens", f"{package}=ALL-UNNAMED")),
        "-Dio.netty.tryReflectionSetAccessible=true", "--enable-native-access=ALL-UNNAMED",
        *(["--sun-misc-unsafe-memory-access=allow"] if LINE == "5.0.1" else []),
        f"-Dlog4j.configurationFile={LOGGING}",
        f"-Dbookkeeper.metadata.bookie.drivers={drivers}BookieDriver",
        f"-Dbookkeeper.metadata.client.drivers={drivers}ClientDriver",
        "-cp", str(lib_of(LINE) / "*"), main, option, str(file),
    ]  # fmt: skip


def class_path(*more: Path, line: str = PULSAR_VERSION) -> str:
    """For `java -cp` and `javac -cp`: a line's jars and *more*."""
    return ":".join([str(lib_of(line) / "*"), *map(str, more)])


def http_json(url: str, method: str = "GET", body: Any = None, timeout_s: float = 10.0) -> Any:
    """The JSON of an answer, None if it is empty. Raises urllib.error.HTTPError, OSError."""
    request = urllib.request.Request(
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        text = answer.read()
    return json.loads(text) if text.strip() else None


def configuration(shipped: Path, settings: Mapping[str, object]) -> str:
    """A shipped file with *settings* in place of its own lines."""
    kept = [line for line in shipped.read_text().splitlines() if line.split("=")[0].strip() not in settings]
    return "\n".join([*kept, *(f"{name}={value}" for name, value in settings.items())]) + "\n"


class Server:
    """One process. `process` is None while it is not running."""

    def __init__(
        self,
        name: str,
        kind: str,
        brand: Brand,
        directory: Path,
        command: Sequence[str],
        ready: Callable[["Server"], bool],
        *,
        port: int,
        web_port: int = 0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.brand: Brand = brand
        self.directory = directory
        self.port = port
        self.web_port = web_port
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        self._environment = dict(environment or {})
        self._ready = ready

    @property
    def bookie_id(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def log(self) -> Path:
        return self.directory / "log"

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} is not running"
        return self.process.pid

    def start(self, *, wait: bool = True) -> None:
        assert self.process is None, f"{self.name} is running"
        self.log_from = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                start_new_session=True, env={**os.environ, **self._environment}, preexec_fn=_die_with_parent,
            )  # fmt: skip
        if wait:
            self.wait_ready()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while not self._ready(self):
            assert self.process is not None
            ended = self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                state = "ended" if ended else "is not ready"
                raise AssertionError(f"{self.name} ({self.brand}) {state}:\n{self.log_tail()}")
            time.sleep(0.05)

    def new_log(self) -> str:
        """What it has written since its last start."""
        with self.log.open("rb") as file:
            file.seek(self.log_from)
            return file.read().decode(errors="replace")

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def send(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 40.0) -> None:
        """Sends the signal and waits for the end; after *timeout_s* it is killed."""
        process, self.process = self.process, None
        if process is None:
            return
        for each in (signal.SIGCONT, number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, each)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def kill(self) -> None:
        """kill -9."""
        self.stop(signal.SIGKILL)

    def pause(self) -> None:
        """Returns when all of its threads stand still, which takes a moment where there are many."""
        self.send(signal.SIGSTOP)
        while any(" (stopped)" not in text for text in self._states()):
            time.sleep(0.001)

    def _states(self) -> list[str]:
        states = []
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):  # it has ended
                states.append(next(line for line in (task / "status").read_text().splitlines() if "State:" in line))
        return states

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def status(self) -> dict[str, str]:
        """/proc/PID/status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}

    @property
    def resident_bytes(self) -> int:
        return int(self.status()["VmRSS"].split()[0]) * 1024

    @property
    def cpu_s(self) -> float:
        """Seconds of processor time so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ends_of_logs(servers: Sequence[Server]) -> str:
    return "\n".join(
        f"--- the end of the log of {server.name} ({server.brand})\n{server.log_tail()}" for server in servers
    )


@contextlib.contextmanager
def telling(*servers: Server) -> Iterator[None]:
    """A check that fails inside has the ends of the servers' logs as a note, for a cluster that outlives its test."""
    try:
        yield
    except AssertionError as error:
        error.add_note(_ends_of_logs(servers))
        raise


class MixedCluster:
    """One ZooKeeper and servers of both brands on one metadata tree. All calls block."""

    def __init__(self, directory: Path, *, copies: int = 2, shortest_session_ms: int = 1_000) -> None:
        self.directory = directory
        self.copies = copies
        self.servers: list[Server] = []
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = reserved_ports()  # until the end: others look for free ports at the same moment
        port = next(self._ports)
        place = self._place("zookeeper")
        (place / "zoo.cfg").write_text(zookeeper_config(place / "data", port, shortest_session_ms))
        self.zookeeper = Server(
            "zookeeper", "zookeeper", "apache", place, zookeeper_command(find_pyspark_jars(), place / "zoo.cfg"),
            lambda server: zookeeper_answers(server.port), port=port,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            print(_ends_of_logs(self.servers))
        for server in [*reversed(self.servers), self.zookeeper]:
            server.kill()
        self._ports.close()

    # ---------------------------------------------------------------------------------- metadata

    @property
    def zookeeper_address(self) -> str:
        return f"127.0.0.1:{self.zookeeper.port}"

    @property
    def metadata_url(self) -> str:
        return f"zk:{self.zookeeper_address}"

    def start_zookeeper(self) -> None:
        self.zookeeper.start()

    def initialise(self, brand: Brand) -> None:
        """The layout of BookKeeper and Pulsar. Ours does that when the first server starts."""
        if brand == "apache":
            self.run(
                "pulsar", "initialize-cluster-metadata", "--cluster", "local",
                "--metadata-store", self.metadata_url, "--configuration-metadata-store", self.metadata_url,
                "--web-service-url", "http://127.0.0.1:8080", "--broker-service-url", "pulsar://127.0.0.1:6650",
            )  # fmt: skip

    # ----------------------------------------------------------------------------------- servers

    def of(self, kind: str, brand: str | None = None) -> list[Server]:
        return [server for server in self.servers if server.kind == kind and brand in (None, server.brand)]

    def bookie(self, bookie_id: str) -> Server:
        return next(server for server in self.of("bookie") if server.bookie_id == bookie_id)

    def add(self, kind: Kind, brand: Brand, *, wait: bool = True, **settings: object) -> Server:
        """Makes a server and starts it. *settings* go into its configuration file, under their own names."""
        name = f"{kind}-{len(self.of(kind)) + 1}"
        server = self._server(name, kind, brand, next(self._ports), next(self._ports), settings)
        self.servers.append(server)
        server.start(wait=wait)
        return server

    def other_brand(self, server: Server, brand: Brand, **settings: object) -> Server:
        """Another server on the stopped one's folder, port and identity; takes its place in `servers`."""
        assert server.process is None, f"{server.name} is running"
        other = self._server(
            server.name,
            cast(Kind, server.kind),
            brand,
            server.port,
            server.web_port,
            settings,
        )
        self.servers[self.servers.index(server)] = other
        return other

    def _place(self, name: str) -> Path:
        place = self.directory / name
        place.mkdir(exist_ok=True)
        return place

    def _server(
        self, name: str, kind: Kind, brand: Brand, port: int, web_port: int, settings: Mapping[str, object]
    ) -> Server:
        place = self._place(name)
        usual = self._broker_settings(port, web_port) if kind == "broker" else self._bookie_settings(place, port)
        usual["metadataStoreSessionTimeoutMillis" if kind == "broker" else "zkTimeout"] = SESSION_MS[brand]
        if brand == "ours":
            file = place / f"{kind}.conf"
            file.write_text("".join(f"{key}={value}\n" for key, value in {**usual, **settings}.items()))
            command = [sys.executable, "-m", "magnetar", kind, "--config", str(file)]
            return Server(name, kind, brand, place, command, _says_ready, port=port, web_port=web_port)
        ready = {"bookie": self._bookie_registered, "broker": _broker_ready, "autorecovery": _is_alive}[kind]
        memory = BROKER_MEMORY if kind == "broker" else BOOKIE_MEMORY
        file = self._apache_file(name, kind, port, web_port, {**usual, **settings})
        command = [str(DISTRIBUTION / "bin" / ("bookkeeper" if kind == "autorecovery" else "pulsar")), kind]
        if LINE != PULSAR_VERSION:
            command = line_command(kind, file, memory)
        return Server(
            name, kind, brand, place, command, ready,
            port=port, web_port=web_port, environment=self.environment(file, memory, place),
        )  # fmt: skip

    def _apache_file(self, name: str, kind: Kind, port: int, web_port: int, settings: Mapping[str, object]) -> Path:
        shipped = "broker.conf" if kind == "broker" else "bookkeeper.conf"
        more = self._apache_broker_settings() if kind == "broker" else self._apache_bookie_settings(web_port)
        file = self._place(name) / f"apache-{shipped}"
        base = DISTRIBUTION / "conf" / shipped
        if LINE != PULSAR_VERSION:  # no file is there: the defaults of the line
            base, more = Path(os.devnull), {**_OF_PLAIN_JARS, **more}
        file.write_text(configuration(base, {**more, **settings}))
        return file

    def shell_file(self, bookie: Server) -> Path:
        """A configuration with which Apache's `bookkeeper shell` looks at this bookie, ours or theirs."""
        settings = {**self._bookie_settings(bookie.directory, bookie.port), "zkTimeout": SESSION_MS["apache"]}
        return self._apache_file(bookie.name, "bookie", bookie.port, bookie.web_port, settings)

    def environment(
        self, file: Path | None = None, memory: str = TOOL_MEMORY, logs: Path | None = None
    ) -> dict[str, str]:
        """The variables by which Apache's scripts find their configuration and take their memory."""
        found = {
            "PULSAR_MEM": memory,
            "BOOKIE_MEM": memory,
            "BOOKIE_MAX_HEAP_MEMORY": "384m",
            "BOOKIE_MIN_HEAP_MEMORY": "64m",
            "BOOKIE_MAX_DIRECT_MEMORY": "256m",
            # A quick start matters more than speed: these processes run for seconds.
            "PULSAR_EXTRA_OPTS": "-XX:TieredStopAtLevel=1",
            "PULSAR_LOG_DIR": str(logs or self.directory / "logs"),
            "BOOKIE_LOG_DIR": str(logs or self.directory / "logs"),
            "PULSAR_GC": "-XX:+UseSerialGC",
            "BOOKIE_GC_OPTS": "-XX:+UseSerialGC",
        }
        if file is not None:
            found |= {"PULSAR_BOOKKEEPER_CONF": str(file), "BOOKIE_CONF": str(file), "PULSAR_BROKER_CONF": str(file)}
        return found

    def _bookie_settings(self, place: Path, port: int) -> dict[str, object]:
        return {
            "bookiePort": port,
            "advertisedAddress": "127.0.0.1",
            "journalDirectory": place / "journal",
            "ledgerDirectories": place / "ledgers",
            "metadataServiceUri": f"zk://{self.zookeeper_address}/ledgers",
            # Disks that are fuller than 95 % would make a bookie read-only.
            "diskUsageThreshold": 0.99,
            "diskUsageWarnThreshold": 0.98,
        }

    def _apache_bookie_settings(self, web_port: int) -> dict[str, object]:
        return {
            "allowLoopback": "true",
            "httpServerEnabled": "true",
            "httpServerPort": web_port,
            "prometheusStatsHttpPort": web_port,
            "autoRecoveryDaemonEnabled": "false",
            **self._small_bookie_settings(),
        }

    def _small_bookie_settings(self) -> dict[str, object]:
        """Settings with which many servers fit on a small machine; benchmarks do not use them."""
        return {
            "minUsableSizeForIndexFileCreation": 0,
            "minUsableSizeForEntryLogCreation": 0,
            "dbStorage_writeCacheMaxSizeMb": 64,
            "dbStorage_readAheadCacheMaxSizeMb": 64,
            "dbStorage_rocksDB_blockCacheSize": 8388608,
            "dbStorage_rocksDB_writeBufferSizeMB": 4,
            "entryLogFilePreallocationEnabled": "false",
            "journalPreAllocSizeMB": 1,
            "numReadWorkerThreads": 2,
            "journalFormatVersionToWrite": 6,
            "fileInfoFormatVersionToWrite": 1,
        }

    def _broker_settings(self, port: int, web_port: int) -> dict[str, object]:
        return {
            "brokerServicePort": port,
            "webServicePort": web_port,
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
            "clusterName": "local",
            "metadataStoreUrl": self.metadata_url,
            "managedLedgerDefaultEnsembleSize": self.copies,
            "managedLedgerDefaultWriteQuorum": self.copies,
            "managedLedgerDefaultAckQuorum": self.copies,
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerDeduplicationEnabled": "true",
        }

    def _apache_broker_settings(self) -> dict[str, object]:
        return {
            "configurationMetadataStoreUrl": self.metadata_url,
            "functionsWorkerEnabled": "false",
            "managedLedgerCacheSizeMB": 64,
            "bookkeeperNumberOfChannelsPerBookie": 1,
        }

    def _bookie_registered(self, server: Server) -> bool:
        # The node of the session before may still be there, so its own word counts.
        return _http_ok(f"http://127.0.0.1:{server.web_port}/api/v1/bookie/is_ready")

    # ------------------------------------------------------------------------------------- tools

    def run(
        self, tool: str, *arguments: str, file: Path | None = None, timeout_s: float = 180.0, check: bool = True
    ) -> str:
        """Runs a script of the distribution (`pulsar`, `bookkeeper`, `pulsar-admin`, …); returns what it printed.

        Raises AssertionError with its output if it fails and *check* is set.
        """
        done = subprocess.run(
            [str(DISTRIBUTION / "bin" / tool), *arguments], cwd=self.directory, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s, check=False,
            env={**os.environ, **self.environment(file)},
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{tool} {' '.join(arguments)} failed:\n{done.stdout[-4000:]}"
        return done.stdout

    def java(
        self, classes: Path, name: str, *arguments: str, timeout_s: float = 180.0, line: str = PULSAR_VERSION
    ) -> str:
        """As `run_java`, in the cluster's folder."""
        return run_java(self.directory, classes, name, *arguments, timeout_s=timeout_s, line=line)


@contextlib.contextmanager
def cluster_with(directory: Path, *brands: Brand) -> Iterator[MixedCluster]:
    """A bookie of each of *brands*, ready, on a layout that Apache's tool made; no broker yet."""
    with MixedCluster(directory) as made:
        made.start_zookeeper()
        made.initialise("apache")
        for brand in brands:
            made.add("bookie", brand, wait=False)
        for server in made.of("bookie"):
            server.wait_ready()
        yield made


@contextlib.contextmanager
def zookeeper_of(cluster: MixedCluster) -> Iterator[KazooClient]:
    """A client of the metadata store of *cluster*."""
    client = KazooClient(cluster.zookeeper_address)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


def compile_java(sources: Sequence[Path], classes: Path, *, line: str = PULSAR_VERSION) -> Path:
    """`javac` with a line's jars; returns *classes*."""
    classes.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["javac", "-nowarn", "-cp", class_path(line=line), "-d", str(classes), *map(str, sources)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return classes


def run_java(
    directory: Path, classes: Path, name: str, *arguments: str, timeout_s: float = 180.0, line: str = PULSAR_VERSION
) -> str:
    """Runs a program compiled by `compile_java`; raises AssertionError with its output if it fails."""
    options = ("-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    done = subprocess.run(
        [java_of(line), *options, "-cp", class_path(classes, line=line), name, *arguments],
        cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"java {name} {' '.join(arguments)} failed:\n{done.stdout[-4000:]}"
    return done.stdout


def versions() -> dict[str, str]:
    """What is compared, for tables."""
    lib = lib_of(LINE)

    def of(prefix: str) -> str:
        """Of a jar that has the name of its group in front in the distribution, and alone elsewhere."""
        for name in (prefix, prefix.partition("-")[2]):
            if (jar := next(iter(sorted(lib.glob(f"{name}-[0-9]*.jar"))), None)) is not None:
                return jar.stem.removeprefix(f"{name}-")
        return "?"

    java = subprocess.run([java_of(LINE), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "Pulsar": of("org.apache.pulsar-pulsar-broker"),
        "BookKeeper": of("org.apache.bookkeeper-bookkeeper-server"),
        "Java": java[0].split('"')[1] if java else "?",
        "Python": sys.version.split()[0],
    }


def _die_with_parent() -> None:
    """Nothing is left behind when a test run is killed. Elsewhere than on Linux, `with` has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG; stays over exec


def _says_ready(server: Server) -> bool:
    return " is ready" in server.new_log()


def _http_ok(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            ok: bool = answer.status == 200
            return ok
    except (OSError, urllib.error.HTTPError):
        return False


def _is_alive(server: Server) -> bool:
    return _http_ok(f"http://127.0.0.1:{server.web_port}/heartbeat")


def _broker_ready(server: Server) -> bool:
    return _http_ok(f"{server.admin_url}/admin/v2/brokers/ready")
