"""Real processes for tests: a cluster, a standalone, and a client that publishes and keeps book.

The book: which number was sent with which key, and which was acknowledged at which position. `Load.check` reads
everything back and compares. A producer's fixed name and the namespace's de-duplication make "exactly once" hold
through every reconnection, so the checks need no tolerance.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pulsar

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.runtime.clock import LoopClock

NAMESPACE: Final = "public/default"
KEYS: Final = 7

# Nothing here asserts a time: this only ends a test whose product does not go on.
PATIENCE_S: Final = 30.0

# What clients see is told only where a wait fails. A process has one such log: the client library keeps the first.
# It has no name that could be left behind.
_CLIENTS_LOG, _name = tempfile.mkstemp()
os.unlink(_name)
_CLIENTS_LOG_PATH: Final = f"/dev/fd/{_CLIENTS_LOG}"
QUIET: Final = pulsar.FileLogger(pulsar.LoggerLevel.Info, _CLIENTS_LOG_PATH)


def until(check: Callable[[], object], what: str, timeout_s: float = PATIENCE_S, *, each_s: float = 0.02) -> None:
    """Wait for what other processes bring about; *what* completes the sentence 'it did not come about that …'.

    *each_s*: how often they are asked, where an answer costs them much."""
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, f"it did not come about in {timeout_s:.0f} s that {what}"
        time.sleep(each_s)


# ------------------------------------------------------------------------------------------ servers


def change_settings(file: Path, lines: str) -> None:
    """Put *lines*, of the form name=value, into a file of settings; they take the place of those of the same names."""
    names = {line.partition("=")[0] for line in lines.splitlines()}
    kept = [line for line in file.read_text().splitlines() if line.partition("=")[0] not in names]
    file.write_text("".join(f"{line}\n" for line in (*kept, *lines.splitlines())))


@contextlib.contextmanager
def cluster_of(
    directory: Path,
    *,
    bookies: int = 3,
    brokers: int = 2,
    auto_recovery: bool = True,
    broker_settings: Mapping[str, object] = MappingProxyType({}),
    bookie_settings: Callable[[str], str] = lambda _: "",
) -> Iterator[Cluster]:
    """A cluster whose processes are gone at the end, whatever happened; after a failure its logs are shown.

    Put into the settings of members before they start for the first time: *broker_settings* to those of all brokers,
    the lines that *bookie_settings* gives to those of the bookie of a name.
    """

    def add_settings() -> None:
        if any(member.pid for member in made.state.members):
            return  # it was up before
        of_brokers = "".join(f"{name}={value}\n" for name, value in broker_settings.items())
        for kind in ("broker", "bookie"):
            for member in made.members(kind):
                change_settings(
                    made.directory / member.name / f"{kind}.conf",
                    of_brokers if kind == "broker" else bookie_settings(member.name),
                )

    made = Cluster(directory, auto_recovery=auto_recovery, before_up=add_settings)
    try:
        made.up(bookies=bookies, brokers=brokers, free_ports=True)
        yield made
    except BaseException:
        for member in made.state.members:
            for path in (made.log_path(member.name).with_suffix(".old"), made.log_path(member.name)):
                if path.exists() and member.kind != "zookeeper":
                    tail = path.read_text(errors="replace").splitlines()[-20:]
                    print(f"--- {path}", *tail, sep="\n")
        raise
    finally:
        now = Cluster(directory)  # a test may have started some through another object, or the command line
        for member in now.state.members:
            if now.is_running(member.name):
                now.kill(member.name, signal.SIGKILL)
            made.is_running(member.name)  # takes the exit code of a child


def prepare(admin: AdminClient, namespace: str = NAMESPACE) -> None:
    """De-duplicate, and keep everything."""
    admin.set_deduplication(namespace, True)
    admin.set_retention(namespace, minutes=-1, megabytes=-1)


class Standalone:
    """`magnetar standalone` on a folder. The first start takes free ports; the following ones take them again."""

    READY: Final = re.compile(
        r"ready after .*: pulsar://[^:]+:(\d+), HTTP http://[^:]+:(\d+), gRPC ([^ ]+), bookies [^ ]+:(\d+), "
    )

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._options = options
        self._ports = (0, 0, 0)
        self.process: subprocess.Popen[str] | None = None
        self.grpc_address = ""
        self.errors = ""
        """What the last process that ended wrote to standard error."""

    @property
    def service_url(self) -> str:
        return f"pulsar://127.0.0.1:{self._ports[0]}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self._ports[1]}"

    @property
    def port(self) -> int:
        return self._ports[0]

    def command(self, ports: tuple[int, int, int]) -> list[str]:
        names = ("--port", "--web-port", "--bookie-port")
        given = [text for name, port in zip(names, ports, strict=True) for text in (name, str(port))]
        return [sys.executable, "-m", "magnetar", "standalone", "--data", str(self.data), *given, *self._options]

    def start(self) -> None:
        """Returns when the line that says "ready" has come."""
        assert self.process is None
        self.process = subprocess.Popen(
            self.command(self._ports), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = self.READY.search(line)
        if found is None:
            code = self.stop(signal.SIGKILL)
            raise AssertionError(f"not ready ({code}): {line}{self.errors}")
        self._ports = (int(found[1]), int(found[2]), int(found[4]))
        self.grpc_address = found[3]

    def stop(self, number: int) -> int:
        """Send a signal, wait for the end, return the exit code."""
        process, self.process = self.process, None
        assert process is not None
        if process.poll() is None:
            os.kill(process.pid, number)
        try:
            _, self.errors = process.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            _, self.errors = process.communicate()
            raise AssertionError(f"signal {number} did not end it: {self.errors[-2000:]}") from None
        return process.returncode

    def __enter__(self) -> "Standalone":
        self.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)
        if kind is not None:
            print("--- the last process said", self.errors[-4000:], sep="\n")


# ------------------------------------------------------------------------------------------- client


@contextlib.contextmanager
def client_of(service_url: str) -> Iterator[pulsar.Client]:
    made = pulsar.Client(service_url, logger=QUIET, operation_timeout_seconds=int(PATIENCE_S))
    try:
        yield made
    finally:
        _close(made)


@contextlib.contextmanager
def _telling() -> Iterator[None]:
    """Where a wait inside fails, its error has the last lines of the clients' log as a note."""
    try:
        yield
    except AssertionError as error:
        lines = Path(_CLIENTS_LOG_PATH).read_text(errors="replace").splitlines()[-40:]
        error.add_note("\n".join(["--- the end of the log of this process's clients", *lines]))
        raise


def _close(client: pulsar.Client) -> None:
    """Closing waits for brokers; after a failed test there may be none, so it must not be waited for."""
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(5)


def received(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    """Everything in *topic*, in all its partitions, as the client hands it out."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(int(PATIENCE_S * 1000)))
    reader.close()
    return found


class Place(NamedTuple):
    """Where a message is. Without the partition, which not every receipt knows: a ledger's id says enough."""

    ledger_id: int
    entry_id: int
    batch_index: int


def _place(message_id: pulsar.MessageId) -> Place:
    return Place(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())


class Stored(NamedTuple):
    number: int
    key: str
    place: Place


def read_all(service_url: str, topic: str) -> list[Stored]:
    """Everything in *topic*, one partition after the other."""
    found = []
    with client_of(service_url) as client:
        for name in client.get_topic_partitions(topic):
            reader = client.create_reader(name, pulsar.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(int(PATIENCE_S * 1000))
                number = int(message.data().split(b" ", 1)[0])
                found.append(Stored(number, message.partition_key(), _place(message.message_id())))
            reader.close()
    return found


class Load:
    """Publishes numbered messages from a thread until told to stop. `with Load(…) as load:`"""

    # Sends under way at once: more than a broker holds back at a time, so that every kill meets some.
    WINDOW: Final = 1_000
    # A tick sends so many and sleeps; about 4,000 a second, so that a test's interventions fall into the middle.
    BURST: Final = 40
    PAUSE_S: Final = 0.01
    # A minute of them, which is longer than any wait of a test.
    MESSAGES_MAX: Final = 240_000

    def __init__(
        self, service_url: str, topic: str, *, name: str = "load", first: int = 0, pause_s: float = PAUSE_S
    ) -> None:
        self.topic = topic
        self.name = name
        self.first = first
        self.sent = 0
        self.receipts: dict[int, Place] = {}
        self.last_receipt_s = 0.0
        self.failures: Counter[str] = Counter()
        self._url = service_url
        self._room = threading.Semaphore(self.WINDOW)
        self._stop = threading.Event()
        self._pause_s = self._usual_pause_s = pause_s
        self._thread = threading.Thread(target=self._run, name=f"load {name}", daemon=True)

    def __enter__(self) -> "Load":
        self._client = pulsar.Client(self._url, logger=QUIET, operation_timeout_seconds=int(PATIENCE_S))
        try:
            self._producer = self._client.create_producer(
                self.topic,
                producer_name=self.name,
                send_timeout_millis=0,
                max_pending_messages=2 * self.WINDOW,
                max_pending_messages_across_partitions=8 * self.WINDOW,
                batching_enabled=True,
                batching_max_messages=50,
                batching_max_publish_delay_ms=5,
            )
        except BaseException:
            _close(self._client)
            raise
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)
        _close(self._client)

    def _run(self) -> None:
        while self.sent < self.MESSAGES_MAX:
            for _ in range(self.BURST):
                while not self._room.acquire(timeout=0.1):
                    if self._stop.is_set():
                        return
                number = self.first + self.sent
                self._producer.send_async(
                    b"%d " % number + b"." * 100, partial(self._on_sent, number), partition_key=key_of(number)
                )
                self.sent += 1
            if self._stop.wait(self._pause_s):
                return

    def _on_sent(self, number: int, result: Any, message_id: Any) -> None:
        if result == pulsar.Result.Ok:
            self.receipts[number] = _place(message_id)
            self.last_receipt_s = time.monotonic()
        else:
            self.failures[str(result)] += 1
        self._room.release()

    @property
    def acknowledged(self) -> int:
        return len(self.receipts)

    @contextlib.contextmanager
    def rush(self) -> Iterator[None]:
        """Inside, sends go out as fast as receipts come: whatever is killed then has many under way, half stored."""
        self._pause_s = 0.0
        self.wait_for(2 * self.WINDOW)
        yield
        self._pause_s = self._usual_pause_s

    def wait_for(self, more: int, timeout_s: float = PATIENCE_S) -> None:
        """Until *more* messages than now are acknowledged."""
        wanted = self.acknowledged + more
        with _telling():
            until(lambda: self.acknowledged >= wanted, f"{more} more messages are acknowledged ({self})", timeout_s)

    def finish(self) -> None:
        """Send no more; wait until everything sent is acknowledged."""
        self._stop.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), f"{self} does not stop"
        with _telling():
            until(lambda: self.acknowledged + sum(self.failures.values()) >= self.sent, f"all of {self} is answered")
        assert not self.failures, f"{self}: {self.failures}"

    def check(self, service_url: str | None = None, *, stored: list[Stored] | None = None) -> None:
        """Everything acknowledged is stored exactly once, where its receipt says, in order for each key."""
        is_read_here = stored is None
        if stored is None:
            stored = read_all(service_url or self._url, self.topic)
        last = self.first + self.MESSAGES_MAX
        own = [message for message in stored if self.first <= message.number < last]
        counts = Counter(message.number for message in own)
        twice = sorted(number for number, count in counts.items() if count > 1)
        assert not twice, f"{len(twice)} messages are there more than once: {twice[:10]}"
        missing = sorted(self.receipts.keys() - counts.keys())
        if missing and is_read_here:
            # Lost, or left out by one reader? The second is a defect as well, but another one.
            again = {message.number for message in read_all(service_url or self._url, self.topic)}
            places = sorted(self.receipts[number] for number in missing)
            print(f"missing from {places[0]} to {places[-1]}; a second reader finds {len(again.intersection(missing))}")
            before = [message.place for message in own if message.place < places[0]]
            behind = [message.place for message in own if message.place > places[-1]]
            print(f"the reader had {len(before)} messages in front of them and {len(behind)} behind them")
        assert not missing, f"{len(missing)} acknowledged messages are missing: {missing[:10]}"
        newest: dict[str, int] = {}
        for message in own:
            assert message.key == key_of(message.number)
            assert message.number > newest.get(message.key, -1), f"{message} comes too late for its key"
            newest[message.key] = message.number
            told = self.receipts.get(message.number)
            # A repeated message is confirmed without a position; all others are where the receipt says.
            if told is not None and told.ledger_id >= 0:
                assert told == message.place, f"{message} was acknowledged at {told}"

    def __str__(self) -> str:
        return f"{self.name}: {self.sent} sent, {self.acknowledged} acknowledged"


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def owner_of(cluster: Cluster, topic: str, *, ask: str | None = None) -> str:
    """The broker process that serves *topic* (one partition, or one without), as the one named *ask* says."""
    port = int(_admin(cluster, ask).owner_url(topic).rpartition(":")[2])
    return next(member.name for member in cluster.members("broker") if member.port == port)


def _admin(cluster: Cluster, ask: str | None = None) -> AdminClient:
    """Asks the broker named *ask*, or any that runs."""
    pairs = zip(cluster.admin_urls, cluster.members("broker"), strict=True)
    asked = [url for url, member in pairs if member.name == ask or (ask is None and cluster.is_running(member.name))]
    return AdminClient(asked)


def bookies_of(cluster: Cluster, topic: str) -> list[str]:
    """The bookie processes to which *topic* (one partition) is written now."""
    admin = _admin(cluster)
    ledger_id = admin.call("GET", f"/admin/v2/{admin.path_of(topic)}/internalStats")["ledgers"][-1]["ledgerId"]

    async def ensemble() -> tuple[str, ...]:
        store = await open_store(cluster.metadata_url, LoopClock(), session_timeout_s=10.0)
        try:
            return (await LedgerStore(store).read(ledger_id)).metadata.last_segment.ensemble
        finally:
            await store.close()

    ports = {bookie.rpartition(":")[2] for bookie in asyncio.run(ensemble())}
    return [member.name for member in cluster.members("bookie") if str(member.port) in ports]


def other_broker(cluster: Cluster, name: str) -> str:
    return next(member.name for member in cluster.members("broker") if member.name != name)
