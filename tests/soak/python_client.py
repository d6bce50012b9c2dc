"""The official Python client in a process of its own: `python -m tests.soak.python_client SPEC.json`.

Modes: `live` publishes and consumes as applications do, `drain` takes and acknowledges what is left of each
subscription, `audit` reads everything and ends. Commands on standard input: `finish` (publish no more, hold nothing
back) and `end`; the end of standard input ends the process, too. Events are written to files (see books.py), each
before its effects.
"""

import contextlib
import faulthandler
import functools
import json
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pulsar

from tests.soak.books import key_of
from tests.soak.streams import UNBATCHED, Stream, acks_by_index, publisher_stream

WAIT_MS: Final = 200
OPERATION_S: Final = 15
HUNG_S: Final = 20

# Not 1: this client passes over a single message at which it begins, and does not ask for another in its place. It does
# so each time that the message comes: a queue of 3 is empty for ever after two redeliveries behind a seek, also with
# Apache's broker.
QUEUES: Final = (3, 10, 100, 1000)

# Sends without a receipt, and messages that a consumer keeps without an ack.
WINDOW: Final = 200
HELD_MAX: Final = 60
# Above the smallest timeout that clients allow for messages without an ack (10 s).
HELD_S: Final = 13.0

_TYPES: Final = {
    "Exclusive": pulsar.ConsumerType.Exclusive,
    "Failover": pulsar.ConsumerType.Failover,
    "Shared": pulsar.ConsumerType.Shared,
    "Key_Shared": pulsar.ConsumerType.KeyShared,
}

finishing = threading.Event()
ending = threading.Event()


class HungCall(Exception):
    """A call of the client does not return."""


class SeekFailed(Exception):
    """A seek had no effect although the client reported no error."""


class ClientLog:
    """The file with the errors that the client logs: some failures are reported nowhere else."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, str(path))

    def end(self) -> int:
        """Where the next line will be."""
        return self._path.stat().st_size

    def says(self, words: str, subscription: str, since: int) -> bool:
        """Whether a line behind *since* has *words* and is of a consumer of *subscription*."""
        with self._path.open("rb") as log:
            log.seek(since)
            lines = log.read().decode(errors="replace").splitlines()
        return any(words in line and f", {subscription}, " in line for line in lines)


class Events:
    """A stream's file; lines of one stream are in the order of the calls."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="ascii")
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        with self._lock:
            self._file.write(text + "\n")

    def flush(self) -> None:
        with self._lock:
            self._file.flush()


def client_log(spec: dict[str, Any]) -> ClientLog:
    """The one of this process."""
    return _client_log(Path(spec["directory"]) / f"{spec['name']}-errors.log")


_client_log = functools.cache(ClientLog)


class Message(NamedTuple):
    partition: int
    number: int
    id: Any
    published_ms: int
    since: float


def place(message_id: Any) -> str:
    return f"{message_id.ledger_id()} {message_id.entry_id()} {message_id.batch_index()}"


def parse(message: Any) -> Message:
    partition, number, _ = message.data().split(b" ", 2)
    return Message(int(partition), int(number), message.message_id(), message.publish_timestamp(), time.monotonic())


class Worker(threading.Thread):
    """Work that continues until the end of the round, whatever the servers do."""

    def __init__(self, name: str, spec: dict[str, Any], events: Events) -> None:
        super().__init__(name=name, daemon=True)
        self.spec = spec
        self.events = events
        self.log = client_log(spec)
        self.rng = Random(f"{spec['seed']}/{name}")
        self.client: Any = None

    def connected(self) -> Any:
        if self.client is None:
            self.client = pulsar.Client(
                self.spec["service_url"], logger=self.log.logger, operation_timeout_seconds=OPERATION_S,
                connection_timeout_ms=3_000,
            )  # fmt: skip
        return self.client

    def leave(self) -> None:
        """Close the client without waiting, like an application that ends abruptly."""
        client, self.client = self.client, None
        if client is not None:
            threading.Thread(target=_quietly, args=(client.close,), daemon=True).start()

    def topic(self, partition: int) -> str:
        return f"{self.spec['topic']}-partition-{partition}"

    def remark(self, text: object) -> None:
        self.events.write(f"# {time.strftime('%H:%M:%S')} {self.name}: {text}".replace("\n", " "))

    def bounded(self, call: Callable[[], Any]) -> Any:
        """What *call* returns or raises. Some calls of the client never return when its connection is lost in the
        middle: then the client is left, and HungCall raised. (A server that does not answer is another matter: the
        client tells that itself, after OPERATION_S.)"""
        answer: queue.SimpleQueue[tuple[Any, Exception | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answer.put((call(), None))
            except Exception as error:
                answer.put((None, error))

        threading.Thread(target=run, daemon=True).start()
        try:
            result, error = answer.get(timeout=HUNG_S)
        except queue.Empty:
            # Its consumers would stay connected although nothing takes their messages any more.
            client, self.client = self.client, None
            if client is not None:
                threading.Thread(target=_quietly, args=(client.shutdown,), daemon=True).start()
            raise HungCall(f"a call of the client has not returned in {HUNG_S} s") from None
        if error is not None:
            raise error
        return result

    def insist(self, make: Callable[[], Any]) -> Any:
        """The result of *make*, which is repeated until it succeeds; None at the end of the round."""
        while not ending.is_set():
            try:
                return self.bounded(make)
            except Exception as error:  # of any class: clients raise what they like while servers are away
                self.remark(repr(error)[:200])
                ending.wait(0.3)
        return None


def _quietly(call: Callable[[], Any]) -> None:
    with contextlib.suppress(Exception):
        call()


# ---------------------------------------------------------------------------------------- publishing


class Publisher(Worker):
    """Numbers the messages of one partition, and after a new start sends again what was not confirmed."""

    def __init__(self, partition: int, spec: dict[str, Any], events: Events) -> None:
        super().__init__(publisher_stream(partition), spec, events)
        self.partition = partition
        self.waiting: deque[int] = deque()
        """Sent and not confirmed, ascending."""
        self.confirmed: set[int] = set()
        self.changed = threading.Condition()
        self.failed = False
        self.life = 0

    def run(self) -> None:
        number, producer = 0, None
        until_again = self._next_start()
        while not ending.is_set():
            if producer is None or self.failed:
                producer = self._start_again()
                if producer is None:
                    return
            if finishing.is_set():
                if not self.waiting:
                    return
                with self.changed:
                    self.changed.wait(0.2)
                continue
            for _ in range(self.rng.randint(1, 9)):
                with self.changed:
                    if len(self.waiting) >= WINDOW or self.failed:
                        self.changed.wait(0.2)
                        break
                    self.waiting.append(number)
                self.events.write(f"S {number}")
                try:
                    producer.send_async(
                        self._content(number), functools.partial(self._on_sent, number, self.life),
                        partition_key=key_of(number), sequence_id=number,
                    )  # fmt: skip
                except Exception as error:  # its queue is full, or it is closed
                    self.remark(repr(error))
                    self.failed = True
                number += 1
                until_again -= 1
            # Not where batches are: this client does not say a batch's last number, so what is cut in another way when
            # it is sent again cannot be recognised.
            if until_again <= 0 and self.partition in UNBATCHED:
                until_again = self._next_start()
                self.remark("starts again")
                self.failed = True
            time.sleep(self.rng.random() * 10 / self.spec["rate"])

    def _next_start(self) -> int:
        return self.rng.randint(100, 600)

    def _content(self, number: int) -> bytes:
        return b"%d %d " % (self.partition, number) + b"." * (number * 37 % 300)

    def _start_again(self) -> Any:
        """A new producer, of a new client; everything that waits is confirmed when this returns. None at the end.

        What waits goes out one message an entry: the broker compares the first number of a batch with what it has,
        so batches that are cut in another way than before would be dropped as a whole.
        """
        while not ending.is_set():
            self.leave()
            self.life += 1
            self.failed = False
            producer = self.insist(self._make)
            try:
                for number in list(self.waiting):
                    if producer is None:
                        return None
                    message_id = producer.send(self._content(number), partition_key=key_of(number), sequence_id=number)
                    self._on_sent(number, self.life, pulsar.Result.Ok, message_id)
            except Exception as error:
                self.remark(repr(error))
                ending.wait(0.3)
                continue
            return producer
        return None

    def _make(self) -> Any:
        return self.connected().create_producer(
            self.topic(self.partition), producer_name=self.name, send_timeout_millis=0, max_pending_messages=WINDOW * 2,
            batching_enabled=self.partition not in UNBATCHED, batching_max_messages=self.rng.choice((2, 5, 20)),
            batching_max_publish_delay_ms=self.rng.choice((1, 5, 20)),
            compression_type=self.rng.choice((pulsar.CompressionType.NONE, pulsar.CompressionType.LZ4)),
        )  # fmt: skip

    def _on_sent(self, number: int, life: int, result: Any, message_id: Any) -> None:
        with self.changed:
            if result == pulsar.Result.Ok:
                # "Stored before", said to a former life, may be said of a batch that was cut in another way.
                if life != self.life and message_id.ledger_id() < 0:
                    return
                self.events.write(f"A {number} {place(message_id)}")
                self.confirmed.add(number)
                while self.waiting and self.waiting[0] in self.confirmed:
                    self.confirmed.remove(self.waiting.popleft())
            elif life == self.life:
                self.remark(f"{number} failed: {result}")
                self.failed = True
            self.changed.notify_all()


# ---------------------------------------------------------------------------------------- consuming


class Consumer(Worker):
    """A consumer that acknowledges as applications do: at once, late, twice, up to one in the middle, not at all."""

    def __init__(self, stream: Stream, topic: str, name: str, spec: dict[str, Any], events: Events) -> None:
        super().__init__(name, spec, events)
        self.stream = stream
        self.source = topic
        self.held: deque[Message] = deque()
        self.old: deque[Message] = deque(maxlen=40)
        """Acknowledged already, or from before a new start."""
        self.consumer: Any = None
        self.queue = 0
        self.passed_over = 0
        """How often the message came at which the consumer begins since its last seek (see `QUEUES`)."""
        self.acks_by_index = isinstance(self, Drain) or acks_by_index(stream, topic)

    def run(self) -> None:
        while not ending.is_set():
            if self.consumer is None:
                self.consumer = self.insist(self._make)
                continue
            try:
                message = parse(self.consumer.receive(WAIT_MS))
            except pulsar.Timeout:
                self._late()
                continue
            except Exception as error:
                self.remark(repr(error))
                self._open_again()
                continue
            self.events.write(f"G {message.partition} {message.number} {place(message.id)} {self.name}")
            self.held.append(message)
            try:
                self._act(message)
                self._late()
            except Exception as error:
                self.remark(repr(error))
                ending.wait(0.1)

    def _make(self) -> Any:
        may_time_out = not self.stream.is_by_partition and self.rng.random() < 0.4
        self.queue = self.rng.choice(QUEUES)
        self.passed_over = 0
        return self.connected().subscribe(
            self.source, self.stream.name, consumer_type=_TYPES[self.stream.type], consumer_name=self.name,
            initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=self.queue,
            negative_ack_redelivery_delay_ms=300, unacked_messages_timeout_ms=10_000 if may_time_out else None,
            batch_index_ack_enabled=self.acks_by_index,
        )  # fmt: skip

    def _act(self, message: Message) -> None:
        if finishing.is_set():
            for each in self.held:
                self.consumer.acknowledge(each.id)
            self.held.clear()
            return
        actions = _IN_ORDER if self.stream.is_by_partition else _TOGETHER
        action = self.rng.choices(*actions)[0]
        action(self, message)

    def _late(self) -> None:
        """What is held too long is acknowledged, or a key's next consumer would wait for ever."""
        limit = 0.0 if finishing.is_set() else HELD_S
        while self.held and (len(self.held) > HELD_MAX or time.monotonic() - self.held[0].since > limit):
            self._acknowledge(self.held.popleft())

    def _acknowledge(self, message: Message) -> None:
        self.consumer.acknowledge(message.id)
        self.old.append(message)

    # What is done after a message

    def single(self, _: Message) -> None:
        self._acknowledge(self.held.pop())

    def several(self, _: Message) -> None:
        while self.held:
            self._acknowledge(self.held.popleft())

    def up_to_here(self, message: Message) -> None:
        self.consumer.acknowledge_cumulative(message.id)
        self.old.append(message)
        self.held.clear()

    def up_to_one_before(self, _: Message) -> None:
        at = self.rng.randrange(len(self.held))
        message = self.held[at]
        self.consumer.acknowledge_cumulative(message.id)
        self.old.append(message)
        for _each in range(at + 1):
            self.held.popleft()

    def one_held(self, _: Message) -> None:
        at = self.rng.randrange(len(self.held))
        message = self.held[at]
        del self.held[at]
        self._acknowledge(message)

    def hold(self, _: Message) -> None:
        pass

    def refuse(self, _: Message) -> None:
        message = self.held.pop()
        self.remark(f"refuses {message.partition} {message.number}")
        self.consumer.negative_acknowledge(message.id)

    def again(self, _: Message) -> None:
        """Repeat an ack that was sent before, or send one that belongs to a former consumer."""
        if self.old:
            self.consumer.acknowledge(self.rng.choice(self.old).id)

    def up_to_old(self, _: Message) -> None:
        if self.old:
            self.consumer.acknowledge_cumulative(self.rng.choice(self.old).id)

    def redeliver(self, _: Message) -> None:
        if self.passed_over:
            if self.passed_over + 2 > self.queue:
                return
            self.passed_over += 1
        self.remark("wants everything again")
        self.held.clear()
        self.consumer.redeliver_unacknowledged_messages()

    def seek_back(self, message: Message) -> None:
        target = self.rng.choice([*self.old, message])
        self.remark(f"seek to {target.number}")
        self.held.clear()
        self._seek(target.id)
        self.passed_over = 1

    def seek_time(self, message: Message) -> None:
        """To a time at which everything that was not given yet is still ahead."""
        self.remark(f"seek to the time of {message.number}")
        self.held.clear()
        self._seek(message.published_ms - 1)
        self.passed_over = 0

    def seek_first(self, _: Message) -> None:
        self.remark("seek to the beginning")
        self.held.clear()
        self._seek(pulsar.MessageId.earliest)
        self.passed_over = 0

    def _seek(self, to: Any) -> None:
        """After a seek that failed this client passes over what comes before the place, and asks for nothing in its
        stead: so the consumer is opened again. Where the connection was lost in the middle, only its log says so."""
        since = self.log.end()
        try:
            self.bounded(functools.partial(self.consumer.seek, to))
            if self.log.says("Failed to seek", self.stream.name, since):
                raise SeekFailed
        except HungCall:
            self.consumer = None
            raise
        except Exception:
            self._open_again()
            raise

    def open_again(self, _: Message) -> None:
        self._open_again()

    def _open_again(self) -> None:
        self.remark("opens again")
        self.old.extend(self.held)
        self.held.clear()
        consumer, self.consumer = self.consumer, None
        if self.rng.random() < 0.5:
            with contextlib.suppress(Exception):
                self.bounded(consumer.close)
        else:
            self.leave()


_IN_ORDER: Final = (
    (
        Consumer.single, Consumer.several, Consumer.up_to_here, Consumer.up_to_one_before, Consumer.one_held,
        Consumer.hold, Consumer.refuse, Consumer.again, Consumer.up_to_old, Consumer.redeliver, Consumer.seek_back,
        Consumer.seek_time, Consumer.seek_first, Consumer.open_again,
    ),
    (25, 5, 12, 14, 8, 28, 1.5, 2, 1, 0.7, 0.7, 0.3, 0.1, 1),
)  # fmt: skip
_TOGETHER: Final = (
    (
        Consumer.single, Consumer.several, Consumer.one_held, Consumer.hold, Consumer.refuse, Consumer.again,
        Consumer.redeliver, Consumer.open_again,
    ),
    # No seek: this client's consumer of several partitions ends the process when one of them cannot.
    (50, 5, 10, 25, 4, 3, 0.4, 0.5),
)  # fmt: skip


class Drain(Consumer):
    """Takes what is left and acknowledges it at once."""

    def _act(self, message: Message) -> None:
        self.several(message)


# ------------------------------------------------------------------------------------------- reading


class Reader(Worker):
    """Reads a partition from its beginning; now and then begins anew at a message that it has had."""

    def __init__(self, partition: int, name: str, spec: dict[str, Any], events: Events) -> None:
        super().__init__(name, spec, events)
        self.partition = partition
        self.from_id: Any = pulsar.MessageId.earliest
        self.old: deque[Message] = deque(maxlen=200)

    def run(self) -> None:
        reader = None
        while not ending.is_set():
            if reader is None:
                reader = self.insist(self._make)
                continue
            try:
                message = parse(reader.read_next(WAIT_MS))
            except pulsar.Timeout:
                continue
            except Exception as error:
                self.remark(repr(error))
                reader = None
                self._anew(self.old[-1] if self.old else None)
                continue
            self.events.write(f"G {message.partition} {message.number} {place(message.id)}")
            self.old.append(message)
            if self.rng.random() < 0.004 and not finishing.is_set():
                with contextlib.suppress(Exception):
                    self.bounded(reader.close)
                reader = None
                self._anew(self.rng.choice((self.old[-1], self.rng.choice(self.old), None)))

    def _anew(self, behind: Message | None) -> None:
        if self.rng.random() < 0.5:
            self.leave()
        self.old.clear()
        self.from_id = pulsar.MessageId.earliest if behind is None else behind.id
        if behind is not None:
            self.old.append(behind)
        self.events.write(f"J {self.partition} {0 if behind is None else behind.number + 1}")

    def _make(self) -> Any:
        return self.connected().create_reader(
            self.topic(self.partition), self.from_id, receiver_queue_size=self.rng.choice(QUEUES)
        )


def audit(partition: int, spec: dict[str, Any], events: Events) -> None:
    """Read a partition to its end. Raises what the client raises."""
    client = pulsar.Client(spec["service_url"], logger=client_log(spec).logger, operation_timeout_seconds=OPERATION_S)
    reader = client.create_reader(f"{spec['topic']}-partition-{partition}", pulsar.MessageId.earliest)
    while reader.has_message_available():
        message = parse(reader.read_next(OPERATION_S * 1000))
        events.write(f"G {message.partition} {message.number} {place(message.id)}")
    events.write("# end")


# ---------------------------------------------------------------------------------------------- main


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # to the log: where each thread waits
    spec = json.loads(Path(sys.argv[1]).read_text())
    directory = Path(spec["directory"])
    files: dict[str, Events] = {}

    def events_of(stream: str) -> Events:
        return files.setdefault(stream, Events(directory / f"{stream}.events"))

    if spec["mode"] == "audit":
        for number in spec["partitions"]:
            audit(number, spec, events_of(f"{spec['name']}-{number}"))
            events_of(f"{spec['name']}-{number}").flush()
        os._exit(0)  # what its threads still have to say concerns nobody
    workers: list[Worker] = [Publisher(number, spec, events_of(publisher_stream(number))) for number in spec["publish"]]
    for raw in spec["streams"]:
        stream = Stream(**{**raw, "partitions": tuple(raw["partitions"])})
        workers += consumers_of(stream, spec, events_of(stream.name))
    for worker in workers:
        worker.start()
    threading.Thread(target=listen, daemon=True).start()
    while not ending.wait(0.2):
        for each in files.values():
            each.flush()
    for worker in workers:
        worker.join(3)
        worker.leave()
    for each in files.values():
        each.flush()
    os._exit(0)


def consumers_of(stream: Stream, spec: dict[str, Any], events: Events) -> list[Worker]:
    if stream.type == "reader":
        return [Reader(number, f"{stream.name}-{number}", spec, events) for number in stream.partitions]
    kind = Drain if spec["mode"] == "drain" else Consumer
    count = 1 if spec["mode"] == "drain" else stream.consumers
    if not stream.is_by_partition:
        return [kind(stream, spec["topic"], f"{stream.name}-{each}", spec, events) for each in range(count)]
    return [
        kind(stream, f"{spec['topic']}-partition-{number}", f"{stream.name}-{number}-{each}", spec, events)
        for number in stream.partitions
        for each in range(count)
    ]


def listen() -> None:
    for line in sys.stdin:
        if line.strip() == "finish":
            finishing.set()
        elif line.strip() == "end":
            break
    ending.set()


if __name__ == "__main__":
    main()
