"""What a round does: programs that send and receive in every way, until their client is closed under their hands.

Rules:

1. Whatever ends a call, it ends with TopicError or TimeoutError, and soon: PATIENCE_S.
2. A message is confirmed when its id has come back; all that are confirmed are received in the end.
3. The child of a fork uses no client of its parent.
"""

import asyncio
import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final

import magnetar

PATIENCE_S: Final = 60.0
"""What has not ended by then hangs: operations end after 10 s here, sends after 20."""

OPTIONS: Final[dict[str, Any]] = {"operation_timeout_s": 10}
SUBSCRIPTION: Final = "soak"


class RoundFailed(Exception):
    """What a round left behind, or how it hung."""


class Books:
    """The messages of one round."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self.sent = set[bytes]()
        self.confirmed = set[bytes]()
        self.received = set[bytes]()
        self.problems: list[str] = []

    def new(self) -> bytes:
        payload = b"%d-%d" % (os.getpid(), next(self._numbers))
        self.sent.add(payload)
        return payload

    def on_sent(self, payload: bytes, future: "Future[magnetar.MessageId]") -> None:
        if future.cancelled() or isinstance(future.exception(), magnetar.TopicError):
            return
        if (error := future.exception()) is not None:
            self.problems.append(f"send_async: {error!r}")
        else:
            self.confirmed.add(payload)


class Round:
    """The place, the books and the seed of a round."""

    def __init__(self, address: str, topic: str, draw: random.Random) -> None:
        self.address = address
        self.topic = topic
        self.draw = draw
        self.books = Books()

    # -------------------------------------------------------------------------------- threads

    def threads(self) -> None:
        """Threads share a client, its producers and its consumers; one closes it, or drops it."""
        client = magnetar.Client(self.address, **OPTIONS)
        with self._closing(client) as close:
            started = self._start_threads(client)
            time.sleep(self.draw.choice([0, 0.01, 0.1, 0.5, 1]) * self.draw.random())
            closers = [threading.Thread(target=close, name=f"close-{n}") for n in range(self.draw.choice([1, 1, 2]))]
            for thread in closers:
                thread.start()
        self._join(closers + started)

    @contextlib.contextmanager
    def _closing(self, client: magnetar.Client) -> Any:
        try:
            yield client.close
        except BaseException:
            client.close()
            raise

    def _start_threads(self, client: magnetar.Client) -> list[threading.Thread]:
        """Raises TopicError."""
        producers = [client.producer(self.topic, send_timeout_s=20, mix_keys=self.draw.random() < 0.5)]
        consumers = [
            client.consumer(self.topic, SUBSCRIPTION, type="shared", from_earliest=True, queue_size=size)
            for size in self.draw.sample([1, 10, 1000], self.draw.randint(1, 2))
        ]
        started = list[threading.Thread]()
        for number in range(self.draw.randint(2, 10)):
            work = self.draw.choice([_send, _send_async, _receive, _receive, _iterate, _look, _read, _close_parts])
            draw = random.Random(self.draw.random())
            started.append(
                threading.Thread(
                    target=self._until_closed,
                    args=(work, client, draw.choice(producers), draw.choice(consumers), draw),
                    name=f"{work.__name__}-{number}",
                )
            )
        for thread in started:
            thread.start()
        return started

    def _until_closed(self, work: Callable[..., None], client: magnetar.Client, *arguments: Any) -> None:
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    work(self, client, *arguments)
                if client._client._is_closed:
                    return
        except magnetar.TopicError:
            return
        except BaseException as error:
            self.books.problems.append(f"{work.__name__}: {error!r}")

    def _join(self, threads: list[threading.Thread]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if left := [thread.name for thread in threads if thread.is_alive()]:
            raise RoundFailed(f"threads hang: {', '.join(left)}")

    # -------------------------------------------------------------------------------- tasks

    def tasks(self) -> None:
        """Tasks, some of which are cancelled at any moment, until their client is closed."""
        asyncio.run(self._tasks())

    async def _tasks(self) -> None:
        client = magnetar.AsyncClient(self.address, **OPTIONS)
        producer = client.producer(self.topic, send_timeout_s=20, mix_keys=self.draw.random() < 0.5)
        consumers = [
            client.consumer(self.topic, SUBSCRIPTION, type="shared", from_earliest=True, queue_size=size)
            for size in self.draw.sample([1, 10, 1000], self.draw.randint(1, 2))
        ]
        works = [_a_send, _a_send_many, _a_receive, _a_receive, _a_iterate, _a_view, _a_read, _a_close_parts]

        def start() -> asyncio.Task[None]:
            work = self.draw.choice(works)
            made = work(self, client, producer, self.draw.choice(consumers), random.Random(self.draw.random()))
            return asyncio.create_task(self._a_until_closed(work.__name__, made))

        started = [start() for _ in range(self.draw.randint(2, 20))]
        for _ in range(self.draw.choice([0, 10, 50])):
            await asyncio.sleep(self.draw.random() * self.draw.choice([0, 0.01, 0.05]))
            self.draw.choice(started).cancel()
            started.append(start())
        closing = [asyncio.create_task(client.close()) for _ in range(self.draw.choice([1, 2]))]
        if len(closing) == 2:
            await asyncio.sleep(self.draw.random() * 0.01)
            closing[0].cancel()
        _, left = await asyncio.wait([*started, *closing], timeout=PATIENCE_S)
        if left:
            raise RoundFailed("tasks hang: " + "; ".join(str(task) for task in left))
        deadline = time.monotonic() + PATIENCE_S
        while remaining := asyncio.all_tasks() - {asyncio.current_task()}:
            if time.monotonic() > deadline:
                raise RoundFailed("tasks are left: " + "; ".join(str(task) for task in remaining))
            await asyncio.sleep(0.01)

    async def _a_until_closed(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (magnetar.TopicError, TimeoutError):
            return
        except Exception as error:
            self.books.problems.append(f"{name}: {error!r}")

    # -------------------------------------------------------------------------------- forks and drops

    def forks_while_open(self) -> None:
        """Children of a process that sends; what they inherit says so, a new client does as well (rule 3)."""
        client = magnetar.Client(self.address, **OPTIONS)
        with self._closing(client) as close:
            started = self._start_threads(client)
            for _ in range(3):
                time.sleep(self.draw.random() * 0.1)
                self._in_child(lambda: self._inherited(client))
            close()
        self._join(started)

    def _inherited(self, client: magnetar.Client) -> None:
        for use in (
            lambda: client.producer(self.topic),
            lambda: client.topics.list(),
            lambda: magnetar.Client(self.address),
        ):
            try:
                use()
            except magnetar.TopicError:
                continue
            raise RoundFailed("the child of a fork has used a client of its parent")

    def forks_before(self) -> None:
        """Children with clients of their own, also at the same time; the parent has closed its own."""
        children = self.draw.randint(1, 3)
        self._in_child(*[self._own_client] * children)

    def pool(self) -> None:
        """As multiprocessing forks them."""
        with multiprocessing.get_context("fork").Pool(2) as pool:
            result = pool.map_async(_send_as_child, [(self.address, self.topic, n) for n in range(4)])
            result.wait(PATIENCE_S)
            if not result.ready():
                pids = [one.pid for one in multiprocessing.active_children() if one.pid is not None]
                _end(pids)
                raise RoundFailed(f"the pool of {pids} hangs")
            for payloads in result.get():
                self.books.sent.update(payloads)
                self.books.confirmed.update(payloads)

    def _own_client(self) -> list[bytes]:
        return _send_as_child((self.address, self.topic, self.draw.randint(0, 50)))

    def _in_child(self, *works: Callable[[], list[bytes] | None]) -> None:
        """Each of *works* in a child that ends as a program does. What they return was sent."""
        children = dict[int, int]()
        ends_hard = self.draw.random() < 0.3
        for work in works:
            reading, writing = os.pipe()
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    os.write(writing, b" ".join(work() or []))
                    code = 0
                except BaseException as error:
                    print(f"child: {error!r}", file=sys.stderr, flush=True)
                if ends_hard:
                    os._exit(code)
                sys.exit(code)
            os.close(writing)
            children[pid] = reading
        deadline = time.monotonic() + PATIENCE_S
        for pid, reading in children.items():
            while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
                if time.monotonic() > deadline:
                    _end([pid])
                    raise RoundFailed(f"child {pid} hangs")
                time.sleep(0.005)
            with open(reading, "rb") as file:
                payloads = file.read().split()
            self.books.sent.update(payloads)
            self.books.confirmed.update(payloads)
            if ended[1]:
                raise RoundFailed(f"child {pid} ended with {os.waitstatus_to_exitcode(ended[1])}")

    def dropped(self) -> None:
        """Nobody closes the client."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            client = magnetar.Client(self.address, **OPTIONS)
            producer, consumer = client.producer(self.topic), client.consumer(self.topic, SUBSCRIPTION, type="shared")
            payload = self.books.new()
            producer.send(payload)
            self.books.confirmed.add(payload)
            if self.draw.random() < 0.5:
                self.books.received.add(consumer.receive(timeout_s=10).payload)
            del client, producer, consumer
            gc.collect()
        if not any(one.category is ResourceWarning for one in caught):
            raise RoundFailed("a client that was dropped says nothing")


def _end(pids: Sequence[int]) -> None:
    """They show where they are, by their handlers, and end."""
    for number in (signal.SIGUSR1, signal.SIGABRT):
        for pid in pids:
            os.kill(pid, number)
        time.sleep(2)


def _send_as_child(place: tuple[str, str, int]) -> list[bytes]:
    address, topic, count = place
    payloads = [b"child-%d-%d-%d" % (os.getpid(), n, time.monotonic_ns()) for n in range(count + 1)]
    with magnetar.Client(address, **OPTIONS) as client:
        client.producer(topic).send_many(payloads)
    return payloads


# ---------------------------------------------------------------------------------------- what threads do

Part = Any


def _key(draw: random.Random) -> str | None:
    return draw.choice([None, "a", "b", "c"])


def _send(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    if draw.random() < 0.3:
        payloads = [made.books.new() for _ in range(draw.randint(1, 200))]
        producer.send_many(payloads)
        made.books.confirmed.update(payloads)
    else:
        payload = made.books.new()
        producer.send(payload, key=_key(draw))
        made.books.confirmed.add(payload)
    time.sleep(draw.random() * 0.005)


def _send_async(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 100)):
        payload = made.books.new()
        future = producer.send_async(payload, key=_key(draw))
        future.add_done_callback(lambda future, payload=payload: made.books.on_sent(payload, future))
        if draw.random() < 0.1:
            future.cancel()
    if draw.random() < 0.3:
        producer.flush()
    time.sleep(draw.random() * 0.02)


def _answer(made: Round, consumer: Part, messages: list[Part], draw: random.Random) -> Any:
    made.books.received.update(message.payload for message in messages)
    if draw.random() < 0.1:
        return consumer.nack(messages, delay_s=0.2)
    if draw.random() < 0.95:
        consumer.ack(messages)
    return None


def _receive(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    if draw.random() < 0.5:
        messages = consumer.receive_batch(draw.choice([1, 10, 1000]), draw.choice([None, 0.1]))
    else:
        messages = [consumer.receive(draw.choice([None, 0.01]))]
    _answer(made, consumer, messages, draw)
    if draw.random() < 0.1:
        consumer.flush()


def _iterate(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    for message in consumer:
        _answer(made, consumer, [message], draw)


def _look(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    with client.table_view(made.topic) as view:
        len(view)
        if draw.random() < 0.5:
            for _ in itertools.islice(view.changes(), draw.randint(1, 10)):
                pass


def _read(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    with client.reader(made.topic) as reader:
        for _ in range(draw.randint(0, 100)):
            if not reader.has_more():
                break
            reader.receive()


def _close_parts(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    """Parts of its own come and go."""
    with client.consumer(made.topic, SUBSCRIPTION, type="shared", from_earliest=True, queue_size=5) as own:
        _answer(made, own, own.receive_batch(10, 0.05), draw)
    with client.producer(made.topic, mix_keys=draw.random() < 0.5) as mine:
        payload = made.books.new()
        mine.send(payload)
        made.books.confirmed.add(payload)


# ---------------------------------------------------------------------------------------- what tasks do


async def _a_send(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        payload = made.books.new()
        await producer.send(payload, key=_key(draw))
        made.books.confirmed.add(payload)
        await asyncio.sleep(draw.random() * 0.005)


async def _a_send_many(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        payloads = [made.books.new() for _ in range(draw.randint(1, 200))]
        await producer.send_many(payloads)
        made.books.confirmed.update(payloads)
        if draw.random() < 0.2:
            await producer.flush()
        await asyncio.sleep(draw.random() * 0.05)


async def _a_receive(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        messages = await consumer.receive_batch(draw.choice([1, 10, 1000]), draw.choice([None, 0.1]))
        answered = _answer(made, consumer, messages, draw)
        if answered is not None:
            await answered
        if draw.random() < 0.1:
            await consumer.flush()


async def _a_iterate(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    async for message in consumer:
        answered = _answer(made, consumer, [message], draw)
        if answered is not None:
            await answered


async def _a_view(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        async with client.table_view(made.topic) as view:
            async for _ in view.changes():
                if draw.random() < 0.2:
                    break


async def _a_read(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        async with client.reader(made.topic) as reader:
            while await reader.has_more():
                await reader.receive()
        await asyncio.sleep(draw.random() * 0.05)


async def _a_close_parts(made: Round, client: Part, producer: Part, consumer: Part, draw: random.Random) -> None:
    while True:
        async with client.consumer(made.topic, SUBSCRIPTION, type="shared", from_earliest=True, queue_size=5) as own:
            answered = _answer(made, own, await own.receive_batch(10, 0.05), draw)
            if answered is not None:
                await answered
        async with client.producer(made.topic, mix_keys=draw.random() < 0.5) as mine:
            payload = made.books.new()
            await mine.send(payload)
            made.books.confirmed.add(payload)


KINDS: Final[dict[str, tuple[Callable[[Round], None], int]]] = {
    "threads": (Round.threads, 4),
    "tasks": (Round.tasks, 4),
    "forks while it is open": (Round.forks_while_open, 2),
    "forks": (Round.forks_before, 2),
    "a pool": (Round.pool, 2),
    "dropped": (Round.dropped, 1),
}
"""What a round does, and how often."""
