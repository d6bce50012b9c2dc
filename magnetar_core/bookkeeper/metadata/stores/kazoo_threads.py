"""What we use of kazoo beside its interface; `tests/unit/…/stores/test_kazoo_threads.py` says when that changes.

First its threads and sockets, with fewer calls of the system for a request.

kazoo's own thread asks the system some nine times for each request and its answer: is there something, may I write,
write, take the byte that rang, is there something, read four bytes, and so on. With each call it gives the interpreter
to the loop's thread, which is busy and gives it back late; then the answer goes through a third thread. Here

* what the server sent is read in chunks, and handed to kazoo in the parts that it asks for;
* what is to be sent is gathered while more requests are there, and goes before kazoo's thread waits;
* a request rings only if none has rung since kazoo's thread took the last ring;
* answers are handed on by kazoo's thread itself: ours only pass them to the loop.

Then its requests and events, for watches of whole trees (kazoo has watches of single nodes), and for the session's time
(kazoo does not report the one that the server has granted).
"""

import logging
import select
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Watch, int_struct, write_string

from magnetar_core.runtime.clock import Clock

log = logging.getLogger(__name__)

# An answer of ZooKeeper has some hundred bytes; with more at a time the loop would hear of the first ones later.
_READ_BYTES: Final = 64 * 1024

# How long the first connect request waits for its answer; each further one twice as long, up to the session time,
# so that a server which needs longer gets it.
CONNECT_ANSWER_S: Final = 1.0

ADD_WATCH: Final = 106
REMOVE_WATCHES: Final = 18

# Requests are sent once they are so many bytes, also where more are there.
_SEND_BYTES: Final = 16 * 1024


class BufferedSocket:
    """A connected socket as kazoo's thread uses it."""

    __slots__ = ("_at", "_read", "_socket", "_unsent")

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._read = b""
        self._at = 0
        """How much of it was handed to kazoo."""
        self._unsent = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._socket.setblocking(is_blocking)

    def close(self) -> None:
        """What is unsent is dropped, as are the requests in it: kazoo reports that to their callers."""
        self._unsent.clear()
        self._socket.close()

    def pending(self) -> int:
        """Bytes that can be read without asking the system; kazoo asks this of sockets with TLS."""
        return len(self._read) - self._at

    def recv(self, size: int) -> bytes:
        """Receive as from a socket: at most *size* bytes; none if the server has closed the connection."""
        if self._at == len(self._read):
            self._read = self._socket.recv(_READ_BYTES)
            self._at = 0
        part = self._read[self._at : self._at + size]
        self._at += len(part)
        return part

    def send(self, message: bytes | memoryview) -> int:
        """Takes all of it, and sends it at the latest before kazoo waits."""
        self._unsent += message
        if self.is_full:
            self.flush()
        return len(message)

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def is_full(self) -> bool:
        """Nothing more should be given before some was sent."""
        return len(self._unsent) >= _SEND_BYTES

    def flush(self) -> None:
        """Send as much as the system takes now. Raises OSError."""
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            return


class Doorbell:
    """Rings kazoo's thread, once for all requests that are there when it looks: both ends of its socket pair."""

    def __init__(self, near: socket.socket, far: socket.socket) -> None:
        self._near = near
        self._far = far
        self._mutex = threading.Lock()
        self._rings = 0

    @property
    def is_rung(self) -> bool:
        return self._rings > 0

    def send(self, message: bytes) -> int:
        """One ring. Raises OSError."""
        with self._mutex:
            self._rings += 1
            if self._rings == 1:
                self._far.send(b"\0")
        return len(message)

    def recv(self, size: int) -> bytes:
        """Takes one ring; none is there: empty, where a socket would wait."""
        with self._mutex:
            if not self._rings:
                return b""
            self._rings -= 1
            if not self._rings:
                self._near.recv(1)
        return b"\0"

    def fileno(self) -> int:
        return self._near.fileno()

    def close(self) -> None:
        """Called for either end."""
        with self._mutex:
            self._near.close()
            self._far.close()


class _Answer(AsyncResult):  # type: ignore[misc]  # kazoo has no types
    """The answer to one request; whoever waits for it is called by kazoo's thread."""

    _callbacks: list[Callable[[Any], None]]

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception:  # or kazoo's thread would end, and the session with it
                log.exception("an answer of ZooKeeper could not be handed on")


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's way to its threads, sockets and answers."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def create_connection(self, *arguments: Any, **options: Any) -> BufferedSocket:
        assert not options.get("use_ssl"), "a socket with TLS keeps what it has read itself"
        return BufferedSocket(super().create_connection(*arguments, **options))

    def create_socket_pair(self) -> tuple[Doorbell, Doorbell]:
        doorbell = Doorbell(*super().create_socket_pair())
        return doorbell, doorbell

    def async_result(self) -> _Answer:
        return _Answer(self)

    def select(
        self, readers: Sequence[Any], writers: Sequence[Any], _: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """The sockets that are ready; none after *timeout* seconds. Raises OSError if a connection broke in a send."""
        if writers:
            return [], [writer for writer in writers if self._takes_more(writer, timeout)], []
        sockets = [reader for reader in readers if isinstance(reader, BufferedSocket)]
        is_rung = any(isinstance(reader, Doorbell) and reader.is_rung for reader in readers)
        if not is_rung:
            for connection in sockets:
                connection.flush()
        if is_rung or any(reader.pending() for reader in sockets):
            return (
                [
                    reader
                    for reader in readers
                    if (reader.is_rung if isinstance(reader, Doorbell) else reader.pending())
                ],
                [],
                [],
            )
        return self._wait(readers, timeout), [], []

    def _wait(self, readers: Sequence[Any], timeout: float | None) -> list[Any]:
        """A socket that broke counts as ready, so that whoever uses it gets its error. Where the server was slow to
        read what was sent, the rest goes meanwhile."""
        ends = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            poll = select.poll()
            stuck = [reader for reader in readers if isinstance(reader, BufferedSocket) and reader.has_unsent]
            for reader in readers:
                poll.register(reader, select.POLLIN | (select.POLLOUT if reader in stuck else 0))
            left = None if ends is None else ends - self._clock.monotonic()
            events = dict(poll.poll(_milliseconds(left)))
            ready = [reader for reader in readers if events.get(reader.fileno(), 0) & ~select.POLLOUT]
            for connection in stuck:
                connection.flush()
            if ready or not stuck or (left is not None and left <= 0):
                return ready

    def _takes_more(self, writer: BufferedSocket, timeout: float | None) -> bool:
        """A slow server may take a large request in many parts: each gives it no more time than all of them."""
        ends = None if timeout is None else self._clock.monotonic() + timeout
        poll = select.poll()
        poll.register(writer, select.POLLOUT)
        while writer.is_full:
            left = None if ends is None else ends - self._clock.monotonic()
            poll.poll(_milliseconds(left))
            writer.flush()
            if left is not None and left <= 0:
                break
        return not writer.is_full


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else max(seconds, 0.0) * 1000


# ------------------------------------------------------------------------------- requests and events


class TreeRequest(NamedTuple):
    """AddWatch or RemoveWatches, which are written alike: a path and a number. The answer has no body."""

    type: int
    path: str
    number: int

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + int_struct.pack(self.number))

    def deserialize(self, _: bytes, __: int) -> bool:
        return True


def call(client: Any, request: TreeRequest) -> Any:
    """Hand a request to kazoo that it does not know; returns its answer, as kazoo's own calls do."""
    answer = client.handler.async_result()
    client._call(request, answer)
    return answer


def hear_events(client: Any, heard: Callable[[str], None]) -> None:
    """Call *heard*, on kazoo's thread, with the path of each event: kazoo knows only watches of single nodes."""
    connection = client._connection
    read_event = connection._read_watch_event

    def listening(buffer: Any, offset: int) -> Any:
        event, _ = Watch.deserialize(buffer, offset)
        heard(event.path)
        return read_event(buffer, offset)

    connection._read_watch_event = listening


def hear_connects(client: Any, granted: Callable[[float], None]) -> None:
    """Call *granted*, on kazoo's thread, with the session's time in seconds, whenever a server grants one.

    A server that has just bound its port may never answer a connect request (seen with 3.9); kazoo would wait for the
    whole session time, after which the session is gone. So each waits for `CONNECT_ANSWER_S` and longer.
    """
    connection = client._connection
    invoke = connection._invoke
    patience_s = CONNECT_ANSWER_S

    def listening(timeout: Any, request: Any, *arguments: Any, **keywords: Any) -> Any:
        nonlocal patience_s
        if not isinstance(request, Connect):
            return invoke(timeout, request, *arguments, **keywords)
        allowed_s, patience_s = min(timeout, patience_s), patience_s * 2
        result = invoke(allowed_s, request, *arguments, **keywords)
        patience_s = CONNECT_ANSWER_S
        if result[0].time_out > 0:
            granted(result[0].time_out / 1000.0)
        return result

    connection._invoke = listening
