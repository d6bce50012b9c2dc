"""The network of a cluster under test: what passes, what waits, what is reset."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

from magnetar.testing.relay import (
    HELD_BYTES_MAX,
    Relay,
    Way,
    ends_of,
    obey,
    serve,
    sockets_of,
)
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.both_loops,
    pytest.mark.skipif(sys.platform != "linux", reason="the relay needs Linux: /proc, and all of 127.0.0.0/8"),
]

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class EchoServer:
    """Answers what it gets; keeps its connections."""

    def __init__(self) -> None:
        self.received = b""
        self.writers: list[asyncio.StreamWriter] = []
        self.ends: list[str] = []
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while data := await reader.read(65536):
                self.received += data
                writer.write(data)
                await self.is_reading.wait()
            self.ends.append("end")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()

    async def stop(self) -> None:
        self._server.close()
        for writer in self.writers:
            writer.transport.abort()


class RelayedServers:
    """Two servers, `a` and `b`; b's way to a is its own (as a server's way to ZooKeeper is)."""

    def __init__(self, a: EchoServer, b: EchoServer) -> None:
        self.a, self.b = a, b
        self.to_a = ("127.0.1.1", a.port)
        self.to_b = ("127.0.1.2", b.port)
        self.from_b_to_a = ("127.0.1.2", a.port)
        self.also_to_a = ("127.0.1.3", a.port)
        self.relay = Relay(
            [
                Way(self.to_a, ("127.0.0.1", a.port), "a"),
                Way(self.to_b, ("127.0.0.1", b.port), "b"),
                Way(self.from_b_to_a, ("127.0.0.1", a.port), "a", "b"),
                Way(self.also_to_a, ("127.0.0.1", a.port), "a"),
            ]
        )


@pytest.fixture
async def world() -> AsyncIterator[RelayedServers]:
    a, b = EchoServer(), EchoServer()
    await a.start()
    await b.start()
    made = RelayedServers(a, b)
    yield made
    for name in ("a", "b"):
        made.relay.heal(name)
    await a.stop()
    await b.stop()
    made.relay.end()
    await made.relay.ended.wait()


@contextlib.asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection(*address)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def echo(streams: Streams, data: bytes) -> None:
    streams[1].write(data)
    assert await streams[0].readexactly(len(data)) == data


async def is_silent(reader: asyncio.StreamReader, how_long_s: float = 0.05) -> bool:
    try:
        async with asyncio.timeout(how_long_s):
            await reader.read(1)
    except TimeoutError:
        return True
    return False


NOBODY = 0
"""The pid of a server that opened no connection."""


async def test_bytes_pass_in_both_directions(world: RelayedServers) -> None:
    async with connected(world.to_a) as streams:
        await echo(streams, b"x" * (3 * HELD_BYTES_MAX))


async def test_each_direction_ends_on_its_own(world: RelayedServers) -> None:
    async with connected(world.to_a) as (reader, writer):
        writer.write(b"last words")
        writer.write_eof()
        assert await reader.read() == b"last words"
    assert world.a.ends == ["end"]


async def test_a_reset_stays_a_reset(world: RelayedServers) -> None:
    async with connected(world.to_a) as (reader, writer):
        await echo((reader, writer), b"x")
        made = writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
        await eventually(lambda: world.a.ends == ["reset"])


async def test_who_does_not_read_makes_the_sender_wait(world: RelayedServers) -> None:
    async with connected(world.to_a) as (_, writer):
        writer.transport.set_write_buffer_limits(high=1)
        world.a.is_reading.clear()

        async def send() -> None:
            for _ in range(1000):
                writer.write(bytes(HELD_BYTES_MAX))
                await writer.drain()

        sending = asyncio.ensure_future(send())
        done, _ = await asyncio.wait([sending], timeout=0.1)
        assert not done, "250 MiB are more than all buffers on the way hold"
        sending.cancel()


async def test_across_a_cut_nothing_passes_and_then_all_goes_on_in_order(world: RelayedServers) -> None:
    async with connected(world.to_a) as streams:
        await echo(streams, b"before")
        world.relay.cut("a", NOBODY, True)
        streams[1].write(b"during")
        world.a.writers[0].write(b"from there")
        assert await is_silent(streams[0])
        assert world.a.received == b"before"
        world.relay.heal("a")
        assert await streams[0].readexactly(16) == b"from thereduring"
        await echo(streams, b"after")
    assert world.a.received == b"beforeduringafter"


async def test_a_connection_that_is_just_being_made_is_cut_too(world: RelayedServers) -> None:
    async with connected(world.to_a) as streams:
        streams[1].write(b"during")
        world.relay.cut("a", NOBODY, True)
        assert await is_silent(streams[0])
        assert world.a.received == b""
        world.relay.heal("a")
        assert await streams[0].readexactly(6) == b"during"


async def test_who_is_not_cut_off_notices_nothing(world: RelayedServers) -> None:
    async with connected(world.to_b) as streams:
        world.relay.cut("a", NOBODY, True)
        await echo(streams, b"x")
        async with connected(world.to_b) as others:
            await echo(others, b"y")


async def test_an_end_is_not_heard_of_before_the_cut_has_healed(world: RelayedServers) -> None:
    async with connected(world.to_a) as streams:
        await echo(streams, b"before")
        world.relay.cut("a", NOBODY, True)
        world.a.writers[0].transport.abort()
        assert await is_silent(streams[0])
        world.relay.heal("a")
        assert await streams[0].read() == b""


async def test_connecting_across_a_cut_is_not_answered(world: RelayedServers) -> None:
    world.relay.cut("a", NOBODY, True)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await asyncio.open_connection(*world.to_a)
    connecting = asyncio.ensure_future(asyncio.open_connection(*world.to_a))
    assert not (await asyncio.wait([connecting], timeout=0.05))[0]
    world.relay.heal("a")
    streams = await connecting  # with the repeated first packet
    await echo(streams, b"x")
    streams[1].close()


@pytest.mark.parametrize("rounds", [3])
async def test_a_door_can_be_plugged_again(world: RelayedServers, rounds: int) -> None:
    for _ in range(rounds):
        world.relay.cut("a", NOBODY, True)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.open_connection(*world.to_a)
        world.relay.heal("a")
        async with connected(world.to_a) as streams:
            await echo(streams, b"x")
    assert world.a.received == b"x" * rounds, "nothing of the plugs has reached the server"


async def test_the_own_way_of_a_server_is_cut_with_it(world: RelayedServers) -> None:
    async with connected(world.from_b_to_a) as own, connected(world.to_a) as others:
        await echo(own, b"x")
        world.relay.cut("b", NOBODY, True)
        own[1].write(b"y")
        assert await is_silent(own[0])
        await echo(others, b"z")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.open_connection(*world.from_b_to_a)
        world.relay.heal("b")
        assert await own[0].readexactly(1) == b"y"


CLIENT = """
import socket, sys
address = (sys.argv[1], int(sys.argv[2]))
connection = None
for line in sys.stdin:
    patience_s, line = line.split(maxsplit=1)
    if line == "connect\\n":
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        connection.bind(("127.0.0.1", 0))
        connection.connect(address)
    elif line.strip() == "port":
        line = str(connection.getsockname()[1])
    else:
        try:
            connection.settimeout(float(patience_s))
            connection.sendall(line.encode())
            line = connection.recv(100).decode()
        except TimeoutError:
            line = "silence"
        except ConnectionError:
            line = "reset"
    print(line.strip() or "end", flush=True)
"""


class OtherProcess:
    """A server of the cluster that connects to another one, in a process of its own."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-c", CLIENT, address[0], str(address[1])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid

    async def say(self, line: str, patience_s: float = 20.0) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{patience_s} {line}\n")
        self._process.stdin.flush()
        return (await asyncio.to_thread(self._process.stdout.readline)).strip()

    def __enter__(self) -> "OtherProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            pass


async def test_a_server_that_is_cut_off_reaches_nobody_either(world: RelayedServers) -> None:
    with OtherProcess(world.to_a) as b:
        await b.say("connect")
        assert await b.say("one") == "one"
        world.relay.cut("b", b.pid, True)
        assert await b.say("two", 0.05) == "silence"
        async with connected(world.to_a) as streams:
            await echo(streams, b"a client still reaches a")
        assert b"two" not in world.a.received
        assert await b.say("connect") == "connect"  # it still accepts connections of others
        assert await b.say("three", 0.05) == "silence"
        world.relay.heal("b")
        await eventually(lambda: b"two" in world.a.received)
        assert b"three" not in world.a.received, "what began during the cut is reset"
        assert await b.say("four") == "reset"
        await b.say("connect")
        assert await b.say("five") == "five"


async def test_who_has_a_local_port_of_a_server_that_is_cut_off_is_not_taken_for_it(world: RelayedServers) -> None:
    """The system gives one local port to several connections that lead to different places."""
    with OtherProcess(world.to_a) as b, socket.socket() as client:
        await b.say("connect")
        port = await b.say("port")
        world.relay.cut("b", b.pid, True)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        client.bind(("127.0.0.1", int(port)))
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, world.also_to_a)
        streams = await asyncio.open_connection(sock=client)
        await echo(streams, b"a client reaches a")
        streams[1].transport.abort()


async def test_a_server_reaches_itself(world: RelayedServers) -> None:
    with OtherProcess(world.to_b) as b:
        await b.say("connect")
        world.relay.cut("b", b.pid, True)
        assert await b.say("myself") == "myself"


async def test_two_that_are_cut_off_do_not_reach_each_other(world: RelayedServers) -> None:
    async with connected(world.from_b_to_a) as streams:
        world.relay.cut("a", NOBODY, True)
        world.relay.cut("b", NOBODY, True)
        world.relay.heal("a")
        streams[1].write(b"x")
        assert await is_silent(streams[0])
        world.relay.heal("b")
        assert await streams[0].readexactly(1) == b"x"


async def test_a_cut_that_is_not_silent_resets_and_refuses(world: RelayedServers) -> None:
    with OtherProcess(world.to_a) as b:
        await b.say("connect")
        assert await b.say("one") == "one"
        async with connected(world.to_b) as streams:
            await echo(streams, b"x")
            world.relay.cut("b", b.pid, False)
            with pytest.raises(ConnectionResetError):
                await streams[0].read()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(*world.to_b)
        assert await b.say("two") == "reset"
        await b.say("connect")
        assert await b.say("three") == "reset"
        world.relay.heal("b")
        await b.say("connect")
        assert await b.say("four") == "four"
    await eventually(lambda: world.b.ends == ["reset"])


async def test_a_server_that_has_ended_refuses(world: RelayedServers) -> None:
    world.relay.shut("a")
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*world.to_a)
    world.relay.open("a")
    async with connected(world.to_a) as streams:
        await echo(streams, b"x")


async def test_where_nobody_listens_what_has_begun_is_reset(world: RelayedServers) -> None:
    await world.a.stop()
    async with connected(world.to_a) as (reader, _):
        with pytest.raises(ConnectionResetError):
            await reader.read()


async def test_at_the_end_what_is_under_way_still_passes(world: RelayedServers) -> None:
    async with connected(world.to_a) as streams:
        world.relay.cut("a", NOBODY, True)
        world.relay.end()
        await echo(streams, b"good-bye")
        assert not world.relay.ended.is_set()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*world.to_b)
    await world.relay.ended.wait()


async def test_commands_that_cannot_be_obeyed_are_answered(world: RelayedServers) -> None:
    assert obey(world.relay, "cut nobody 1 silent\n") == "there is no nobody; there are a, b"
    assert obey(world.relay, "cut a one silent\n").startswith("invalid literal")
    assert obey(world.relay, "cut a 1 loudly\n") == "not a command: cut a 1 loudly"
    assert obey(world.relay, "\n") == "not a command: "
    assert obey(world.relay, "heal a\n") == "ok"


async def test_an_address_that_is_taken_is_told() -> None:
    lines = asyncio.StreamReader()
    with socket.create_server(("127.0.1.9", 0)) as other:
        port = other.getsockname()[1]
        lines.feed_data(b'[[["127.0.1.9", %d], ["127.0.0.1", 1], "a"]]\n' % port)
        answers: list[str] = []
        await serve(lines, answers.append)
    assert len(answers) == 1
    assert answers[0].startswith("cannot listen: ")


def test_a_process_holds_its_own_sockets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ends = (server.getsockname(), ("0.0.0.0", 0))
        assert ends in sockets_of(os.getpid())
        assert ends not in sockets_of(os.getppid())
    assert sockets_of(2**22 + 1) == set()


def test_the_systems_table_is_understood() -> None:
    heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: {} 0100007F:0050 0A 00000000:00000000 00:00000000 00000000     0        0 {} 1 0000 100 0 0 10 0\n"
    ip = socket.inet_aton("127.0.1.7")
    word = f"{int.from_bytes(ip, sys.byteorder):08X}"
    mapped = "0000000000000000FFFF0000" + word
    table = heading + row.format(f"{word}:1F90", 77) + row.format(f"{word}:1F91", 78) + row.format(f"{mapped}:1F92", 79)
    peer = (socket.inet_ntoa(0x0100007F.to_bytes(4, sys.byteorder)), 80)
    assert ends_of({"77"}, table) == {(("127.0.1.7", 8080), peer)}
    assert ends_of({"79"}, table) == {(("127.0.1.7", 8082), peer)}
    assert ends_of({"1"}, table + "garbage\n") == set()
