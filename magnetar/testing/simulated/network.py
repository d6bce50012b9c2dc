"""The network of a simulation: connections between processes of one `VirtualLoop`, with what networks do.

Fault model: what is sent arrives in order on a connection, after a time that is drawn for each piece, so that
connections overtake each other; a piece may arrive in two parts. A connection breaks: what was under way is lost. A
way from one machine to another is cut: nothing arrives there until it is mended, and nobody is told. Where a process
has died, its peers hear of it as the system tells them: the end of the connection; also where its machine lost its
power, which real peers would not hear.
"""

import asyncio
import contextvars
import random
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

from magnetar.testing.simulated.loop import PROCESS, Process, VirtualLoop
from magnetar.testing.simulated.rpc import SimulatedChannel

# Until the system gives up a connection that nobody takes (Linux: 127 s).
CONNECT_S: Final = 127.0

# What the system takes of a sender before its transport has to keep it, as with a socket's buffers.
SOCKET_BYTES: Final = 1 << 18

FIRST_FREE_PORT: Final = 32_768

_PAIR: Final = 8


class Socket:
    """Stands for a socket that is bound: a bookie binds its port before it does anything else."""

    family = socket.AF_INET

    def __init__(self, network: "Network") -> None:
        self._network = network
        self._at: tuple[str, int] | None = None

    def setsockopt(self, level: int, option: int, value: int) -> None:
        if option == socket.SO_REUSEPORT and self._at is not None:
            self._network.release(self._at)  # another socket may take the port as well

    def listen(self, backlog: int = 0) -> None: ...

    def setblocking(self, flag: bool) -> None: ...

    def fileno(self) -> int:
        return 3

    def bind(self, address: tuple[str, int]) -> None:
        self._at = self._network.bind(address[1])

    def getsockname(self) -> tuple[str, int]:
        assert self._at is not None, "not bound"
        return self._at

    def close(self) -> None:
        if self._at is not None:
            self._network.release(self._at)


class Dialed(NamedTuple):
    """Stands for a socket that is connected to an address, which aiohttp makes before its connection."""

    host: str
    port: int

    def close(self) -> None: ...


async def start_connection(addr_infos: Sequence[tuple[Any, ...]], **options: Any) -> Dialed:
    """As `aiohappyeyeballs.start_connection`; whether somebody listens is seen in `NetworkLoop.create_connection`."""
    host, port, *_ = addr_infos[0][-1]
    return Dialed(host, port)


class _Listener:
    """An open port, with what `asyncio.Server` offers our servers."""

    def __init__(self, network: "Network", factory: Callable[[], asyncio.BaseProtocol], bound: Socket) -> None:
        self._network = network
        self.factory = factory
        self.process = PROCESS.get()
        self.context = contextvars.copy_context()
        self.sockets = (bound,)
        network.listeners[bound.getsockname()] = self

    def close(self) -> None:
        at = self.sockets[0].getsockname()
        if self._network.listeners.get(at) is self:
            del self._network.listeners[at]
            self._network.release(at)

    async def wait_closed(self) -> None: ...


class Wire(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, network: "Network", process: Process, at: tuple[str, int], context: contextvars.Context) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self.at = at
        self.context = context
        self.peer: Wire
        self._protocol: asyncio.BaseProtocol | None = None
        self._sent: deque[bytes] = deque()
        """What has left this end and has not reached the other one."""
        self._sent_bytes = 0
        self._is_due = False
        self._unread: deque[bytes] = deque()
        """What has arrived here and was not read."""
        self._unread_bytes = 0
        self._high, self._low = 65_536, 16_384
        self._is_writing_paused = False
        self._is_reading_paused = False
        self._is_closing = False
        self._has_ended = False
        """Whether `connection_lost` was called, or is about to be."""
        self._is_at_end = False
        """Nothing more is sent from here: the other end gets an end of file after the rest."""
        self._arrives_s = 0.0

    # What protocols use

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None, "the connection is not made yet"
        return self._protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.peer.at
        if name == "sockname":
            return self.at
        return self._network.any_socket if name == "socket" else default

    def write(self, data: Any) -> None:
        if self._is_closing or self._is_at_end or not data:
            return
        piece = bytes(data)
        self._sent.append(piece)
        self._sent_bytes += len(piece)
        self._deliver_later()
        if not self._is_writing_paused and self.get_write_buffer_size() > self._high:
            self._is_writing_paused = True
            self.get_protocol().pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._is_at_end = True
        self._deliver_later()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return max(self._sent_bytes + self.peer._unread_bytes - SOCKET_BYTES, 0)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 65_536 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._is_reading_paused = True

    def resume_reading(self) -> None:
        if self._is_reading_paused:
            self._is_reading_paused = False
            self._network.loop.call_soon(self._read, context=self.context)

    def is_reading(self) -> bool:
        return not self._is_reading_paused and not self._is_closing

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """What was written still arrives."""
        if not self._is_closing:
            self._is_closing = self._is_at_end = True
            self._deliver_later()
            self._end(None)

    def abort(self) -> None:
        if not self._has_ended:
            self._is_closing = self._is_at_end = True
            self._end(None)
            self._reset_peer()

    # What the network does

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._network.wires[self] = None
        protocol.connection_made(self)

    def left(self) -> None:
        """The process has died: the system closes its sockets, what it was given still arrives."""
        self._network.wires.pop(self, None)
        self._is_closing = self._has_ended = self._is_at_end = True
        self._deliver_later(at_all=True)

    def break_(self) -> None:
        """The connection breaks: both ends hear of it, what was under way is lost."""
        for end in (self, self.peer):
            end._sent.clear()
            end._sent_bytes = 0
            if not end._has_ended:
                end._is_closing = True
                end._end(ConnectionResetError("the connection was reset"))

    def check(self) -> None:
        """The way to the other end may be open again."""
        if self._sent or self._is_at_end:
            self._deliver_later(at_all=True)

    def _end(self, error: BaseException | None) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        self._network.wires.pop(self, None)
        self._network.loop.call_soon(self._lose_connection, error, context=self.context)

    def _lose_connection(self, error: BaseException | None) -> None:
        """A turn later, as by a real loop: what `connection_made` has begun has run once, also where the process stood
        still meanwhile."""
        self._network.loop.call_soon(self._lost, error, context=self.context)

    def _lost(self, error: BaseException | None) -> None:
        if self._protocol is None:
            return  # it broke before it was made: who connects hears of it
        self._protocol.connection_lost(cast(Exception | None, error))

    def _reset_peer(self) -> None:
        peer = self.peer
        if not peer._has_ended and not self._network.is_cut(self.process.host, peer.process.host):
            delay_s = self._network.delay_s(self.process.host, peer.process.host)
            self._network.loop.call_later(delay_s, peer._was_reset, context=peer.context)

    def _was_reset(self) -> None:
        if not self._has_ended:
            self._is_closing = True
            self._end(ConnectionResetError("the connection was reset by the peer"))

    def _deliver_later(self, *, at_all: bool = False) -> None:
        network = self._network
        if (self._is_due and not at_all) or network.is_cut(self.process.host, self.peer.process.host):
            return
        self._is_due = True
        delay_s = network.delay_s(self.process.host, self.peer.process.host)
        self._arrives_s = max(network.loop.time() + delay_s, self._arrives_s)
        network.loop.call_at(self._arrives_s, self._deliver, context=network.context)

    def _deliver(self) -> None:
        """Bring all that was sent to the other end. Runs outside the processes: the system does it."""
        self._is_due = False
        if self._network.is_cut(self.process.host, self.peer.process.host):
            return
        peer = self.peer
        if peer._has_ended:
            if self._sent or not self._is_at_end:  # nobody is there who takes it
                self._sent.clear()
                self._sent_bytes = 0
                self._network.loop.call_soon(self._was_reset, context=self.context)
            return
        if self._sent:
            peer._unread.extend(self._network.in_parts(b"".join(self._sent)))
            peer._unread_bytes += self._sent_bytes
            self._sent.clear()
            self._sent_bytes = 0
        self._network.loop.call_soon(peer._read, context=peer.context)

    def _read(self) -> None:
        """Give the protocol what has arrived, and then the end of the other side."""
        peer = self.peer
        while self._unread and not self._is_reading_paused and not self._is_closing:
            piece = self._unread.popleft()
            self._unread_bytes -= len(piece)
            self._give(piece)
        if peer._is_writing_paused and peer.get_write_buffer_size() <= peer._low:
            self._network.loop.call_soon(peer._resume_writing, context=peer.context)
        if peer._is_at_end and not peer._sent and not self._unread and not self._has_ended:
            protocol = self._protocol
            keeps = isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol) and protocol.eof_received()
            if not keeps:
                self.close()

    def _resume_writing(self) -> None:
        if self._is_writing_paused and not self._has_ended:
            self._is_writing_paused = False
            self.get_protocol().resume_writing()

    def _give(self, piece: bytes) -> None:
        protocol = self._protocol
        if isinstance(protocol, asyncio.BufferedProtocol):
            rest = memoryview(piece)
            while rest and not self._is_closing:
                room = memoryview(cast(Any, protocol.get_buffer(len(rest))))
                taken = min(len(room), len(rest))
                room[:taken] = rest[:taken]
                room.release()
                rest = rest[taken:]
                protocol.buffer_updated(taken)
        else:
            cast(asyncio.Protocol, protocol).data_received(piece)


class Network:
    """All connections and ports."""

    def __init__(self, loop: VirtualLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.context = contextvars.copy_context()
        self.delays_s: tuple[float, ...] = (0.0001, 0.0001, 0.0002, 0.0005, 0.001)
        """A piece takes one of these."""
        self.parts_share = 0.05
        """How many of the pieces arrive in two parts."""
        self.listeners: dict[tuple[str, int], _Listener] = {}
        self.wires: dict[Wire, None] = {}
        self.any_socket = Socket(self)
        self._bound: set[tuple[str, int]] = set()
        self._cuts: set[tuple[str, str]] = set()
        self._next_port = FIRST_FREE_PORT
        self.is_closed = False
        self._pairs: dict[bytes, Wire] = {}

    def add(self, process: Process) -> None:
        """*process* may use the network; when it dies, its ports and connections end."""
        process.on_death.append(lambda: self._on_process_end(process))

    def new_socket(self, *_: Any) -> socket.socket:
        """As `socket.socket`."""
        return cast(socket.socket, Socket(self))

    def delay_s(self, host: str, other: str) -> float:
        return 0.00002 if host == other else self.rng.choice(self.delays_s)

    def in_parts(self, piece: bytes) -> tuple[bytes, ...]:
        if len(piece) < 2 or self.rng.random() >= self.parts_share:
            return (piece,)
        at = self.rng.randrange(1, len(piece))
        return piece[:at], piece[at:]

    def close(self) -> None:
        """Nobody can connect any more."""
        self.listeners.clear()
        self.is_closed = True

    # Faults

    def cut(self, host: str, other: str) -> None:
        """Nothing from *host* arrives at *other* any more."""
        self._cuts.add((host, other))

    def mend(self) -> None:
        """All ways are open again, and what was held up arrives."""
        self._cuts.clear()
        for wire in list(self.wires):
            wire.check()
            wire.peer.check()

    def is_cut(self, host: str, other: str) -> bool:
        return (host, other) in self._cuts

    def _on_process_end(self, process: Process) -> None:
        for wire in [wire for wire in self.wires if wire.process is process]:
            wire.left()
        for at, listener in list(self.listeners.items()):
            if listener.process is process:
                del self.listeners[at]
                self._bound.discard(at)
        self._bound = {at for at in self._bound if at[0] != process.host or at in self.listeners}

    # Ports and connections

    def bind(self, port: int) -> tuple[str, int]:
        host = PROCESS.get().host
        if not port:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._bound:
            raise OSError(98, "Address already in use")
        self._bound.add((host, port))
        return host, port

    def release(self, at: tuple[str, int]) -> None:
        self._bound.discard(at)

    def listen(self, factory: Callable[[], asyncio.BaseProtocol], port: int, bound: Socket | None) -> _Listener:
        if bound is None:
            bound = Socket(self)
            bound.bind(("", port))
        return _Listener(self, factory, bound)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[Wire, asyncio.BaseProtocol]:
        """Raises ConnectionRefusedError, TimeoutError."""
        process = PROCESS.get()
        if self.is_closed:
            raise ConnectionRefusedError(111, "the network is closed")
        await asyncio.sleep(self.delay_s(process.host, host))
        if self.is_cut(process.host, host) or self.is_cut(host, process.host):
            await asyncio.sleep(CONNECT_S)
            raise TimeoutError(110, f"connection to {host}:{port} timed out")
        listener = self.listeners.get((host, port))
        if listener is None:
            await asyncio.sleep(self.delay_s(host, process.host))
            raise ConnectionRefusedError(111, f"{host}:{port} refuses the connection")
        self._next_port += 1
        ours = Wire(self, process, (process.host, self._next_port), contextvars.copy_context())
        theirs = Wire(self, listener.process, (host, port), listener.context)
        ours.peer, theirs.peer = theirs, ours
        self.loop.call_soon(lambda: theirs.begin(listener.factory()), context=listener.context)
        await asyncio.sleep(self.delay_s(host, process.host))
        if ours._has_ended or theirs._has_ended:
            raise ConnectionResetError(104, f"{host}:{port} ended the connection")
        protocol = factory()
        ours.begin(protocol)
        return ours, protocol

    def pair(
        self, factory: Callable[[], asyncio.BaseProtocol], end: socket.socket
    ) -> tuple[Wire, asyncio.BaseProtocol]:
        """One end of a `socket.socketpair`. The first end that comes sends its number to the other one."""
        process, context = PROCESS.get(), contextvars.copy_context()
        wire = Wire(self, process, (process.host, 0), context)
        end.setblocking(False)
        try:
            number = end.recv(_PAIR)
        except BlockingIOError:
            self._next_port += 1
            number = self._next_port.to_bytes(_PAIR, "big")
            end.send(number)
            self._pairs[number] = wire
            protocol = factory()
            wire._protocol = protocol
        else:
            first = self._pairs.pop(number)
            first.peer, wire.peer = wire, first
            first.begin(first.get_protocol())
            protocol = factory()
            wire.begin(protocol)
        end.close()
        return wire, protocol


class NetworkLoop(VirtualLoop):
    """A `VirtualLoop` whose servers and connections are those of its network."""

    def __init__(self) -> None:
        super().__init__()
        self.network: Network

    def grpc_channel(self, address: str) -> SimulatedChannel:
        """As `magnetar.client.access.WithChannels`."""
        return SimulatedChannel(address)

    async def create_server(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return self.network.listen(protocol_factory, port or 0, options.get("sock"))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        assert not options.get("ssl"), "no TLS in a simulation"
        if isinstance(options.get("sock"), Dialed):
            return await self.network.connect(protocol_factory, *options["sock"])
        if options.get("sock") is not None:
            return self.network.pair(protocol_factory, options["sock"])
        return await self.network.connect(protocol_factory, host, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        """A name is its own address."""
        return [(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]

    async def connect_accepted_socket(self, protocol_factory: Any, sock: Any, **options: Any) -> Any:
        return self.network.pair(protocol_factory, sock)
