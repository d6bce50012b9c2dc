"""The network of a cluster under test, so that it can be cut: `python -m magnetar.testing.relay`.

Each server listens on 127.0.0.1 and advertises its own address, 127.0.1.N. This process listens at that address on the
server's ports and passes bytes on. Each server also has its own way to ZooKeeper, so everything that goes in and out of
a server passes here.

    client, broker, bookie ──▶ 127.0.1.N:port  relay  127.0.0.1:port ──▶ server N
                  server N ──▶ 127.0.1.N:2181  relay  127.0.0.1:2181 ──▶ ZooKeeper

Rules:

1. Across a cut nothing passes, in either direction. Bytes under way wait, in the order in which they came.
2. The server that opened a connection is known by the way it took, or by the process that holds the socket at the other
   end (/proc/net/tcp, then /proc/<pid>/fd). So a server that is cut off reaches nothing, through whichever address.
3. Only a limited number of bytes of a connection is held; beyond it the sender has to wait, as with a full TCP window.

Standard input has one command a line. Each is answered by a line: `ok`, or what went wrong. After the end of standard
input, and after SIGTERM, the relay ends when the last connection has closed, so that servers that are being stopped can
still send their last bytes.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

Endpoint = tuple[str, int]
Ends = tuple[Endpoint, Endpoint]
"""The two ends of a socket: its own, and that of its peer."""

HOST: Final = "127.0.0.1"

# Bytes of a connection that wait here in one direction, besides those in the buffers of the system.
HELD_BYTES_MAX: Final = 256 * 1024

# Connections that wait to be accepted: a cluster's clients connect all at once when a broker comes back.
BACKLOG: Final = 1024

# Seconds after which accepting is tried again when no more files could be opened.
RETRY_S: Final = 0.1

_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER that makes closing a socket a reset."""


class Way(NamedTuple):
    """An address on which the relay listens, and the address to which it passes connections on."""

    listen: Endpoint
    target: Endpoint
    to: str
    """The server to which it leads."""
    by: str = ""
    """The only server that uses it; empty if any may."""


@dataclass(frozen=True)
class Cut:
    """A server is cut off: *pid* is its process; *silent*: nothing is answered, else connections are reset."""

    pid: int
    silent: bool


# ------------------------------------------------------------------------------------------ /proc


def ends_of(inodes: set[str], table: str) -> set[Ends]:
    """The ends of the sockets with these inodes, from the text of /proc/net/tcp or tcp6."""
    ends = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[9] in inodes:
            ends.add((_endpoint(fields[1]), _endpoint(fields[2])))
    return ends


def _endpoint(text: str) -> Endpoint:
    host, _, port = text.partition(":")
    # The last 32 bits are the IPv4 address, in the machine's byte order, also of ::ffff:a.b.c.d.
    packed = int(host[-8:], 16).to_bytes(4, sys.byteorder)
    return socket.inet_ntoa(packed), int(port, 16)


def sockets_of(pid: int) -> set[Ends]:
    """The ends of the TCP sockets that a process holds; empty if it has ended.

    Both ends of each: the system gives one local port to several sockets that are connected to different places.
    """
    inodes = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    ends: set[Ends] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            ends |= ends_of(inodes, Path(table).read_text())
    return ends


# ------------------------------------------------------------------------------------- connections


class End(asyncio.Protocol):
    """One of the two sockets of a connection."""

    def __init__(self, link: "Link") -> None:
        self.transport: asyncio.Transport | None = None
        self.has_ended = False
        """Its peer will send nothing more."""
        self.is_end_passed_on = False
        """The end of the other socket's data was passed on to its peer."""
        self.is_full = False
        """Its peer does not take the bytes that wait for it."""
        self.early: list[bytes] = []
        """Bytes that arrived although reading was paused: uvloop starts reading after `connection_made` in any case."""
        self.is_lost = False
        self.error: Exception | None = None
        self._link = link
        self._is_paused = False

    @property
    def is_usable(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HELD_BYTES_MAX)
        self._link.settle()

    def data_received(self, data: bytes) -> None:
        self._link.pass_on(self, data)

    def eof_received(self) -> bool:
        self.has_ended = True
        self._link.settle()
        return True  # each direction is closed on its own

    def pause_writing(self) -> None:
        self.is_full = True
        self._link.settle()

    def resume_writing(self) -> None:
        self.is_full = False
        self._link.settle()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost, self.error = True, error
        self._link.settle()

    def set_reading(self, is_reading: bool) -> None:
        if self.is_usable and is_reading == self._is_paused:
            assert self.transport is not None
            self._is_paused = not is_reading
            if is_reading:
                self.transport.resume_reading()
            else:
                self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        if self.is_usable:
            assert self.transport is not None
            self.transport.write(data)

    def pass_on_the_end(self) -> None:
        if self.is_usable and not self.is_end_passed_on:
            assert self.transport is not None
            self.is_end_passed_on = True
            self.transport.write_eof()

    def close(self) -> None:
        """Close the socket after the bytes that wait are sent."""
        if self.transport is not None:
            self.transport.close()

    def reset(self) -> None:
        if self.is_usable:
            assert self.transport is not None
            _reset_on_close(self.transport.get_extra_info("socket"))
            self.transport.abort()


class Link:
    """A connection through the relay."""

    def __init__(self, way: Way, peer: Endpoint, gone: Callable[["Link"], None]) -> None:
        self.way = way
        self.ends: Ends = (peer, way.listen)
        """The ends of the socket of the process that opened it."""
        self.by = way.by
        """The server that opened it; empty for a client, or while it is not looked up yet."""
        self.is_cut = False
        self.is_reset = False
        self.near, self.far = End(self), End(self)
        self._gone = gone

    def pass_on(self, end: End, data: bytes) -> None:
        other = self.far if end is self.near else self.near
        if self.is_cut or other.transport is None:
            end.early.append(data)
            if end.transport is not None:
                end.transport.pause_reading()
        else:
            other.write(data)

    def set_cut(self, is_cut: bool) -> None:
        if is_cut != self.is_cut:
            self.is_cut = is_cut
            self.settle()

    def reset(self) -> None:
        self.is_reset = True
        self.settle()

    def settle(self) -> None:
        """Update each end by the state of the other one and by the cut (rules 1 and 3)."""
        near, far = self.near, self.far
        if self.is_reset:
            near.reset()
            far.reset()
        for end, other in ((near, far), (far, near)):
            end.set_reading(not self.is_cut and not other.is_full and other.transport is not None)
            if self.is_cut or other.transport is None:
                continue
            if end.early:
                other.write(b"".join(end.early))
                end.early.clear()
            if end.is_lost and end.error is not None:
                other.reset()
            elif end.is_lost:
                other.close()
            elif end.has_ended:
                other.pass_on_the_end()
        if near.has_ended and far.has_ended and not self.is_cut:
            near.close()
            far.close()
        if near.is_lost and far.is_lost:
            self._gone(self)


# ---------------------------------------------------------------------------------------- doors


class DoorState(Enum):
    CLOSED = "connecting is refused"
    OPEN = "connections are taken"
    SILENT = "connecting is not answered"


class Door:
    """One address that the relay listens on."""

    def __init__(self, way: Way, enter: Callable[[Way, socket.socket, Endpoint], None]) -> None:
        self.way = way
        self.state = DoorState.CLOSED
        self._enter = enter
        self._loop = asyncio.get_running_loop()
        self._socket: socket.socket | None = None
        self._plug: socket.socket | None = None
        self._plug_address: Endpoint | None = None

    def set(self, state: DoorState) -> None:
        """Raises OSError if the address cannot be listened on."""
        if state is self.state:
            return
        if state is DoorState.CLOSED:
            self._close()
        else:
            listening = self._socket or self._listen()
            self._loop.remove_reader(listening)
            self._unplug()
            if state is DoorState.OPEN:
                listening.listen(BACKLOG)
                self._loop.add_reader(listening, self._accept)
            else:
                self._plug_up(listening)
        self.state = state

    def _listen(self) -> socket.socket:
        listening = socket.socket()
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind(self.way.listen)
        except OSError:
            listening.close()
            raise
        self._socket = listening
        return listening

    def _plug_up(self, listening: socket.socket) -> None:
        """Linux drops the first packet of a connection while the queue of those to be accepted is full: a client
        that connects waits, as for a machine that is out of reach. One connection of our own fills a queue of none."""
        assert self._plug is None, "one plug fills the queue"
        listening.listen(0)
        self._plug = socket.socket()
        self._plug.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            self._plug.connect(self.way.listen)
        self._plug_address = self._plug.getsockname()

    def _unplug(self) -> None:
        if self._plug is not None:
            self._plug.close()
            self._plug = None

    def _accept(self) -> None:
        assert self._socket is not None
        while self.state is DoorState.OPEN:
            try:
                accepted, peer = self._socket.accept()
            except BlockingIOError:
                self._plug_address = None
                return
            except (InterruptedError, ConnectionAbortedError):
                continue
            except OSError as error:  # too many open files
                print(f"relay: cannot accept: {error}", file=sys.stderr, flush=True)
                self._loop.remove_reader(self._socket)
                self._loop.call_later(RETRY_S, self._accept_again)
                return
            if peer == self._plug_address:  # a connection of our own, which filled the queue (`_plug_up`)
                accepted.close()
                self._plug_address = None
            else:
                self._enter(self.way, accepted, peer)

    def _accept_again(self) -> None:
        if self.state is DoorState.OPEN and self._socket is not None:
            self._loop.add_reader(self._socket, self._accept)

    def _close(self) -> None:
        self._unplug()
        if self._socket is not None:
            self._loop.remove_reader(self._socket)
            self._socket.close()
            self._socket = None


class Relay:
    """All ways of a cluster, and the servers that are cut off. It runs on the loop on which it is made."""

    def __init__(self, ways: Iterable[Way]) -> None:
        self._loop = asyncio.get_running_loop()
        self._doors = [Door(way, self._enter) for way in ways]
        self._names = {way.to for way in ways} | {way.by for way in ways if way.by}
        self._shut: set[str] = set()
        self._cuts: dict[str, Cut] = {}
        self._links: set[Link] = set()
        # Connections that a server which is not cut off opened across a cut: never answered, reset when the cut ends.
        self._held: list[tuple[Link, socket.socket]] = []
        self._connecting: set[asyncio.Task[None]] = set()
        self._is_ending = False
        self.ended = asyncio.Event()
        self._arrange_doors()

    # Commands

    def open(self, name: str) -> None:
        """A server runs or is about to start: listen on its ports."""
        self._shut.discard(self._known_member(name))
        self._arrange_doors()

    def shut(self, name: str) -> None:
        """A server has ended: refuse connections to it."""
        self._shut.add(self._known_member(name))
        self._arrange_doors()

    def cut(self, name: str, pid: int, silent: bool) -> None:
        """Cut a server off. Without *silent* its connections are reset, and new ones refused."""
        self._cuts[self._known_member(name)] = Cut(pid, silent)
        self._arrange_doors()
        own = sockets_of(pid)
        for link in list(self._links):
            if link.ends in own:
                link.by = name
            if not self._crosses(link):
                continue
            if silent:
                link.set_cut(True)
            else:
                link.reset()

    def heal(self, name: str) -> None:
        """End a cut: bytes that waited are passed on; connections that were opened meanwhile are reset."""
        self._cuts.pop(self._known_member(name), None)
        self._arrange_doors()
        for link in self._links:
            link.set_cut(self._crosses(link))
        for link, waiting in self._held[:]:
            if not self._crosses(link):
                self._held.remove((link, waiting))
                _reset(waiting)

    def end(self) -> None:
        """End all cuts, refuse new connections, and pass bytes on until the last connection has closed."""
        self._is_ending = True
        for name in list(self._cuts):
            self.heal(name)
        assert not self._cuts, "bytes across a cut would never arrive"
        self._shut = set(self._names)
        self._arrange_doors()
        self._end_if_idle()

    def _known_member(self, name: str) -> str:
        if name not in self._names:
            raise ValueError(f"there is no {name}; there are {', '.join(sorted(self._names))}")
        return name

    # Effects

    def _arrange_doors(self) -> None:
        for door in self._doors:
            way = door.way
            # A server that is cut off does not even reach itself through its own address; it has no reason to try.
            cuts = [self._cuts[name] for name in {way.to, way.by} if name in self._cuts]
            if any(cut.silent for cut in cuts):
                door.set(DoorState.SILENT)
            elif cuts or way.to in self._shut:
                door.set(DoorState.CLOSED)
            else:
                door.set(DoorState.OPEN)

    def _crosses(self, link: Link) -> bool:
        return link.by != link.way.to and (link.by in self._cuts or link.way.to in self._cuts)

    def _enter(self, way: Way, accepted: socket.socket, peer: Endpoint) -> None:
        link = Link(way, peer, self._on_gone)
        for name, cut in self._cuts.items():  # rule 2; needed only while a server is cut off
            if not link.by and link.ends in sockets_of(cut.pid):
                link.by = name
        if not self._crosses(link):
            task = self._loop.create_task(self._connect(link, accepted))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)
        else:
            # A server that is cut off takes no connection at its own doors, so the opener is on the other side.
            assert link.by in self._cuts, "a door is open although its server is cut off"
            if self._cuts[link.by].silent:
                self._held.append((link, accepted))
            else:
                _reset(accepted)

    async def _connect(self, link: Link, accepted: socket.socket) -> None:
        self._links.add(link)
        try:
            await self._loop.create_connection(lambda: link.far, *link.way.target)
        except OSError:  # nothing listens there: the connection ends at once
            _reset(accepted)
            self._on_gone(link)
            return
        try:
            await self._loop.connect_accepted_socket(lambda: link.near, accepted)
        except OSError:
            link.far.close()
            self._on_gone(link)

    def _on_gone(self, link: Link) -> None:
        self._links.discard(link)
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self._is_ending and not self._links:
            self.ended.set()


def _reset_on_close(connection: Any) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


def _reset(connection: socket.socket) -> None:
    _reset_on_close(connection)
    connection.close()


# ---------------------------------------------------------------------------------------- process


def obey(relay: Relay, line: str) -> str:
    """Do what a command says; returns the answer."""
    try:
        match line.split():
            case ["open", name]:
                relay.open(name)
            case ["shut", name]:
                relay.shut(name)
            case ["cut", name, pid, ("silent" | "reset") as manner]:
                relay.cut(name, int(pid), manner == "silent")
            case ["heal", name]:
                relay.heal(name)
            case _:
                return f"not a command: {line.strip()}"
    except (OSError, ValueError) as error:
        return str(error)
    return "ok"


def ways_from(text: str) -> list[Way]:
    """The ways in the first line of standard input, a JSON list with three or four fields for each."""
    return [Way((way[0][0], way[0][1]), (way[1][0], way[1][1]), *way[2:]) for way in json.loads(text)]


async def serve(lines: asyncio.StreamReader, answer: Callable[[str], None]) -> None:
    """Run a relay by what is read from *lines* until it has ended."""
    try:
        relay = Relay(ways_from((await lines.readline()).decode()))
    except OSError as error:
        answer(f"cannot listen: {error}")
        return
    answer("ok")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, relay.end)

    async def read() -> None:
        while line := await lines.readline():
            answer(obey(relay, line.decode()))
        relay.end()

    reading = asyncio.ensure_future(read())
    await relay.ended.wait()
    reading.cancel()


async def _main() -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    await serve(lines, lambda text: print(text, flush=True))


def main() -> None:
    import resource

    for number in (signal.SIGINT, signal.SIGHUP):  # of the terminal; the pipe says when it is time
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError, ValueError):  # two sockets a connection
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        import uvloop
    except ImportError:
        asyncio.run(_main())
    else:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_main())


if __name__ == "__main__":
    main()
