"""kazoo's sockets: what goes together, what waits, and what a slow server does to it."""

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from magnetar_core.bookkeeper.metadata.stores.kazoo_threads import BufferedSocket, Doorbell, Handler
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
