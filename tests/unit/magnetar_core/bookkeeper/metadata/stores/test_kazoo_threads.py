"""kazoo's sockets: what goes together, what waits, and what a slow server does to it."""

import inspect
import os
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.handlers.utils import AsyncResult
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect

from magnetar_core.bookkeeper.metadata.stores.kazoo_threads import (
    ADD_WATCH,
    BufferedSocket,
    Doorbell,
    Handler,
    TreeRequest,
    call,
    hear_connects,
    hear_events,
)
from magnetar_core.runtime.clock import LoopClock

pytestmark = pytest.mark.both_loops


@pytest.fixture
async def handler() -> Handler:
    return Handler(LoopClock())


@pytest.fixture
def ends() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    """kazoo's end, which never blocks, and the server's."""
    near, far = socket.socketpair()
    near.setblocking(False)
    kazoo = BufferedSocket(near)
    far.settimeout(5)
    yield kazoo, far
    kazoo.close()
    far.close()


@pytest.fixture
def doorbell() -> Iterator[Doorbell]:
    made = Doorbell(*socket.socketpair())
    yield made
    made.close()


def test_what_came_together_is_handed_out_in_the_parts_that_are_asked_for(
    ends: tuple[BufferedSocket, socket.socket],
) -> None:
    kazoo, server = ends
    server.sendall(b"abcdefgh")
    assert kazoo.pending() == 0
    assert kazoo.recv(3) == b"abc"
    assert kazoo.pending() == 5
    server.sendall(b"ijk")
    assert kazoo.recv(100) == b"defgh"  # no more than was read; kazoo asks again
    assert kazoo.recv(100) == b"ijk"
    with pytest.raises(BlockingIOError):
        kazoo.recv(1)
    server.close()
    assert kazoo.recv(1) == b""


async def test_requests_go_together_once_nobody_rings(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket], doorbell: Doorbell
) -> None:
    kazoo, server = ends
    doorbell.send(b"\0")
    assert kazoo.send(b"one") == 3
    assert handler.select([kazoo, doorbell], [], [], 5)[0] == [doorbell]
    assert kazoo.has_unsent
    doorbell.recv(1)
    kazoo.send(b"two")
    assert handler.select([kazoo, doorbell], [], [], 0)[0] == []
    assert server.recv(100) == b"onetwo"


def test_many_requests_do_not_wait_for_the_last_of_them(ends: tuple[BufferedSocket, socket.socket]) -> None:
    kazoo, server = ends
    for _ in range(20):
        kazoo.send(bytes(1_000))
    assert len(server.recv(100_000)) >= 16 * 1024


async def test_requests_and_answers_take_turns(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket], doorbell: Doorbell
) -> None:
    kazoo, server = ends
    server.sendall(b"abc")
    kazoo.recv(1)
    doorbell.send(b"\0")
    assert handler.select([kazoo, doorbell], [], [], 5)[0] == [kazoo, doorbell]
    doorbell.recv(1)
    assert handler.select([kazoo, doorbell], [], [], 5)[0] == [kazoo]


async def test_a_ring_wakes_a_thread_that_waits(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket], doorbell: Doorbell
) -> None:
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(handler.select([ends[0], doorbell], [], [], 10)[0]))
    waiting.start()
    doorbell.send(b"\0")
    waiting.join(5)
    assert found == [doorbell]


def test_each_ring_is_taken_once(doorbell: Doorbell) -> None:
    rings = 1_000

    def ring() -> None:
        for _ in range(rings):
            doorbell.send(b"\0")

    threads = [threading.Thread(target=ring) for _ in range(2)]
    for one in threads:
        one.start()
    taken = 0
    while taken < 2 * rings:
        taken += len(doorbell.recv(1))
    for one in threads:
        one.join()
    assert not doorbell.is_rung
    assert doorbell.recv(1) == b"", "a socket would wait here for ever"


async def test_a_server_that_does_not_read_holds_the_writer_up_and_gets_all_in_the_end(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket], doorbell: Doorbell
) -> None:
    kazoo, server = ends
    message = os.urandom(8 * 1024 * 1024)  # more than the system takes
    assert handler.select([], [kazoo], [], 0)[1] == [kazoo]
    kazoo.send(message)
    assert kazoo.is_full
    assert handler.select([], [kazoo], [], 0.01)[1] == [], "kazoo takes this for a time-out"
    began = time.monotonic()
    assert handler.select([kazoo, doorbell], [], [], 0.05)[0] == []
    assert time.monotonic() - began >= 0.05

    got = bytearray()

    def read() -> None:
        while len(got) < len(message):
            got.extend(server.recv(1 << 20))
        server.sendall(b"!")

    reading = threading.Thread(target=read)
    reading.start()
    assert handler.select([kazoo, doorbell], [], [], 30)[0] == [kazoo]
    reading.join(5)
    assert got == message
    assert kazoo.recv(10) == b"!"


async def test_a_server_that_takes_a_large_request_in_parts_is_waited_for(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket]
) -> None:
    kazoo, server = ends
    kazoo.send(bytes(8 * 1024 * 1024))
    left = 8 * 1024 * 1024

    def read() -> None:
        nonlocal left
        while left:
            left -= len(server.recv(100_000))

    reading = threading.Thread(target=read)
    reading.start()
    assert handler.select([], [kazoo], [], 30)[1] == [kazoo], "else kazoo would give the connection up"
    kazoo.flush()
    while kazoo.has_unsent:
        kazoo.flush()
    reading.join(10)
    assert left == 0


async def test_a_broken_connection_tells_who_uses_it(
    handler: Handler, ends: tuple[BufferedSocket, socket.socket], doorbell: Doorbell
) -> None:
    kazoo, server = ends
    server.close()
    assert handler.select([kazoo, doorbell], [], [], 5)[0] == [kazoo]
    assert kazoo.recv(1) == b""
    kazoo.send(b"lost")
    with pytest.raises(OSError):
        handler.select([kazoo, doorbell], [], [], 5)


async def test_who_waits_for_an_answer_is_called_at_once_and_its_failure_harms_nobody(
    handler: Handler, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def fails(_: object) -> None:
        raise ValueError("a defect")

    answer = handler.async_result()
    answer.rawlink(fails)
    answer.rawlink(lambda result: called.append(result.value))
    answer.set(7)
    assert called == [7]
    assert "could not be handed on" in caplog.text


# ------------------------------------------------------------------------------ what kazoo does not promise


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (KazooClient._call, ["self", "request", "async_object"]),
        (ConnectionHandler._invoke, ["self", "timeout", "request", "xid"]),
        (ConnectionHandler._read_watch_event, ["self", "buffer", "offset"]),
        (AsyncResult._do_callbacks, ["self"]),
    ],
)
def test_what_is_used_beside_kazoos_interface_is_there(function: Any, parameters: list[str]) -> None:
    """Whoever raises the upper bound of kazoo's version in pyproject.toml sees here what has to be looked at."""
    assert list(inspect.signature(function).parameters) == parameters


class Client:
    """A client of kazoo's, as far as it is listened to."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self._connection = self
        self.asked: list[Any] = []
        self.granted_ms = 0

    def _call(self, request: Any, answer: Any) -> None:
        self.asked.append(request)
        answer.set(request.deserialize(b"", 0))

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        self.asked.append((timeout, request, xid))
        if not self.granted_ms:
            raise TimeoutError
        return SimpleNamespace(time_out=self.granted_ms), 0

    def _read_watch_event(self, buffer: bytes, offset: int) -> str:
        return f"read {offset}"


async def test_a_request_that_kazoo_does_not_know_is_written_and_answered(handler: Handler) -> None:
    client = Client(handler)
    answers: list[Any] = []
    call(client, TreeRequest(ADD_WATCH, "/a", 1)).rawlink(lambda answer: answers.append(answer.value))
    assert answers == [True]
    (request,) = client.asked
    assert (request.type, request.serialize()) == (106, b"\0\0\0\x02/a\0\0\0\x01")


async def test_paths_of_events_are_heard_and_kazoo_reads_them_too(handler: Handler) -> None:
    client = Client(handler)
    paths: list[str] = []
    hear_events(client, paths.append)
    event = b"\0\0\0\x01" + b"\0\0\0\x03" + b"\0\0\0\x04/a/b"
    assert client._read_watch_event(event, 0) == "read 0"
    assert paths == ["/a/b"]


async def test_a_connect_request_waits_longer_each_time_and_says_what_was_granted(handler: Handler) -> None:
    client = Client(handler)
    granted: list[float] = []
    hear_connects(client, granted.append)
    connect = Connect(0, 0, 30_000, 0, b"", False)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            client._invoke(30.0, connect)
    client.granted_ms = 4_000
    client._invoke(30.0, connect)
    client._invoke(30.0, connect)
    client._invoke(30.0, "another request", 7)
    assert granted == [4.0, 4.0]
    assert [timeout for timeout, _, _ in client.asked] == [1.0, 2.0, 4.0, 8.0, 1.0, 30.0]
    assert client.asked[-1] == (30.0, "another request", 7)
