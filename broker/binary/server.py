"""The sockets of the binary protocol: bytes in, bytes out, keep-alive, back-pressure. Decides nothing.

Answers gather in an outbox and are sent in one write per turn of the loop. While a client does not read, nothing more
is dispatched to it; while storage is behind, the client's socket is not read.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Coroutine, Generator, Hashable
from typing import Any, Final, cast

from broker.binary.admission.connection_limits import HANDSHAKES_MAX, TOO_MANY, ConnectionLimits
from broker.binary.admission.proxy_header import parse_proxy_header
from broker.binary.answers import error_frame
from broker.binary.connection import NO_REQUEST, PING, BrokerPort, Connection, State
from broker.binary.flow import OUTBOX_HIGH_BYTES, OUTBOX_LOW_BYTES, OUTBOX_PAUSE_BYTES
from broker.binary.loop_share import LoopShare, Unworked
from broker.settings.config import BrokerConfig
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import FRAME_PADDING_BYTES
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.bookkeeper.wire.unfinished import COUNTED_BYTES, Unfinished
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.process.descriptors import guarded
from magnetar_core.runtime.tasks import Tasks, gather_in_turns
from magnetar_core.runtime.types import KIB, MIB, Buffer
from magnetar_core.security.tls.certificates import common_name
from magnetar_core.security.tls.contexts import Certificates
from magnetar_core.security.tls.port import TlsPort

log = logging.getLogger(__name__)

# A client that does not read its answers is not read either, so answers of an ordinary size do not pile up. If this
# much waits all the same (one answer that lists a million topics), the client is disconnected.
WRITE_BUFFER_MAX_BYTES: Final = 64 * MIB

# Frames of one connection that are handled before other connections have their turn: a chunk may hold 25,000 pings,
# which take a third of a second.
FRAMES_PER_TURN: Final = 1_000

# More buffers than this, if they are this small on average, are joined before the write: the transport needs 200 bytes
# for each buffer that waits.
JOINED_MIN: Final = 8
JOINED_BYTES_MAX: Final = 1 * KIB

# A frame of a client that is not authenticated: CONNECT with its token or password.
HANDSHAKE_FRAME_BYTES: Final = 64 * KIB

# Parts of such frames, of all clients. A CONNECT comes whole: hardly any client ever needs this.
HANDSHAKE_BYTES_MAX: Final = 32 * MIB

# Share of the memory for messages on their way that frames may have, besides, which are not whole.
UNFINISHED_SHARE: Final = 0.5

# Connections waiting to be accepted: a restart brings all clients back at once.
BACKLOG: Final = 1024


class ClientProtocol(asyncio.Protocol):
    """One client's socket; the outbox of its `Connection`."""

    def __init__(
        self, broker: BrokerPort, clock: Clock, config: BrokerConfig, server: "BinaryServer", *, is_own: bool = False
    ) -> None:
        """*is_own*: the client is this broker itself; it is trusted, and no limit counts it."""
        self._is_own = is_own
        self._broker = broker
        self._clock = clock
        self._config = config
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._connection: Connection | None = None
        self._is_stranger = broker.doors is not None and not is_own
        self._handshake_bytes = 0
        frame_bytes_max = config.max_message_bytes + FRAME_PADDING_BYTES
        self._splitter = FrameSplitter(HANDSHAKE_FRAME_BYTES if self._is_stranger else frame_bytes_max)
        self._is_counted = False
        self._tasks = Tasks("client")
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._is_closing = False
        self._has_left: asyncio.Event | None = None
        """Set when what the client had has left; None: it left at once."""
        self._is_flushing = False
        self._is_drained = asyncio.Event()
        self._is_drained.set()
        # What was read and not worked on yet: chunks, and the frames of those before them.
        self._chunks: list[bytes] = []
        self._frames: list[memoryview] = []
        self._unworked: tuple[str, int] = "", 0
        """What of it is counted as waiting for a turn: whose it is, and how many bytes."""
        self._is_working = False
        self._may_read = True
        # Whether the socket is read. While it is not, the client shows that it lives by taking what it is sent.
        self._is_socket_read = True
        self._unsent_before = 0
        self._timer: Timer | None = None
        self._pinged = False
        self._signs_of_life: list[asyncio.Future[bool]] = []
        self._peer = ""
        self._counted: str | None = None
        """The address under which the connection is counted."""
        self._beginning = b""
        """What came before the address of the client is known; only behind a load balancer."""

    # -------------------------------------------------------------------------------- transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._transport.set_write_buffer_limits(high=OUTBOX_PAUSE_BYTES, low=OUTBOX_LOW_BYTES)
        peer = transport.get_extra_info("peername")
        self._server.clients[self] = None
        if not self._is_own:
            self._server.strangers.add(self)
        self._timer = self._clock.call_later(self._config.keep_alive_s, self._keep_alive)
        self._peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "local"
        if self._is_own:
            self._connection = Connection(self._broker, self, self._spawn, "/local", is_trusted=True)
        elif not self._config.proxy_protocol:
            self._begin(self._peer)

    def _begin(self, peer: str) -> None:
        """The client's address is known: count its connection, and serve it."""
        assert self._transport is not None, "a connection has a transport"
        address, host = f"/{peer}", peer.rpartition(":")[0]
        refusal = self._server.admit(host)
        if refusal is not None:
            self._server.refused += 1
            log.info("%s is refused: %s", address, refusal)
            self._transport.write(error_frame(NO_REQUEST, wire.NotAllowedError, refusal))
            self._is_closing = True
            self._transport.close()
            return
        self._counted = host
        self._server.made += 1
        name = common_name(self._transport.get_extra_info("peercert"))
        self._connection = Connection(self._broker, self, self._spawn, address, common_name=name)
        self.update_reading()

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        self._server.share.count_task()
        self._tasks.spawn(work, name)

    def _read_proxy_header(self, data: bytes) -> None:
        """Take the header of a load balancer from the beginning of the connection; the client's data are behind it."""
        self._beginning += data
        try:
            header = parse_proxy_header(self._beginning)
        except MalformedFrame as error:
            log.warning("/%s is disconnected: %s", self._peer, error)
            self._is_closing = True
            self.abort()
            return
        if header is None:
            return
        rest, self._beginning = self._beginning[header.size_bytes :], b""
        self._begin(header.address or self._peer)
        if rest and self._connection is not None:
            self.data_received(rest)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        connection = self._connection
        if connection is None:
            self._read_proxy_header(data)
            return
        self._pinged = False
        if self._signs_of_life:
            self._show_life(True)
        if self._is_working or self._chunks or not self._server.share.begin_slice():
            self._chunks.append(data)
            if self._is_stranger and not connection.is_admitted and self._disconnect_above_connect():
                return
            self._work_soon()
            self._count_unworked(len(data))
            self.update_reading()
        elif self._cut_frames(connection, data):
            self._work()

    def _cut_frames(self, connection: Connection, data: bytes) -> bool:
        """Cut a chunk of the socket into frames, and count the bytes of a frame that has not come as a whole; False:
        the connection ends."""
        if self._is_stranger and connection.is_admitted:
            self._is_stranger = False
            self._count_handshake(0)
            self._splitter.limit_bytes = self._config.max_message_bytes + FRAME_PADDING_BYTES
        try:
            frames = self._splitter.feed(data)
        except MalformedFrame as error:
            self._refuse(connection, error)
            return False
        self._frames.extend(frames)
        held_bytes = self._splitter.held_bytes
        if self._is_stranger:
            self._count_handshake(held_bytes)
        elif held_bytes >= COUNTED_BYTES or self._is_counted:
            self._is_counted = held_bytes >= COUNTED_BYTES
            self._server.unfinished.on_held(self, held_bytes, self._splitter.missing_bytes, is_new=bool(frames))
        return not self._is_closing

    def _count_handshake(self, held_bytes: int) -> None:
        """A client that is not authenticated has brought *held_bytes* of a frame."""
        server = self._server
        server.handshake_bytes += held_bytes - self._handshake_bytes
        assert server.handshake_bytes >= 0, "more of handshakes was given back than was held"
        self._handshake_bytes = held_bytes
        if held_bytes and server.handshake_bytes > HANDSHAKE_BYTES_MAX:
            log.warning(
                "%s is disconnected: clients that are not authenticated have sent parts of frames, of %d bytes in all",
                self._address, server.handshake_bytes,
            )  # fmt: skip
            self.abort()

    # -------------------------------------------- a frame that is not whole (`Unfinished` knows this as a `Sender`)

    @property
    def is_read(self) -> bool:
        return self._connection is None or not self._connection.flow.is_paused_for_others

    def wait_for_room(self) -> None:
        if self._connection is not None:
            self._connection.flow.wait_for_room(True)

    def go_on_with_frame(self) -> None:
        if self._connection is not None:
            self._connection.flow.wait_for_room(False)

    def end_frame(self, problem: str) -> None:
        log.warning("%s is disconnected: %s", self._address, problem)
        self.close()

    def _work(self) -> None:
        """Handle some of the frames that wait; the rest follows in a later turn of the loop, after other clients."""
        self._is_working = False
        connection, frames = self._connection, self._frames
        if self._is_closing or connection is None or not self._may_read:
            return
        while self._chunks:
            if not self._cut_frames(connection, self._chunks.pop(0)):
                return
        is_over = self._server.share.is_over
        try:
            if len(frames) <= FRAMES_PER_TURN:
                done = connection.on_frames(frames, is_over)
            else:
                done = connection.on_frames(frames[:FRAMES_PER_TURN], is_over)
        except MalformedFrame as error:
            self._refuse(connection, error)
            return
        except Exception:
            log.exception("%s is disconnected: a command could not be handled", connection.address)
            self.close()
            return
        del frames[:done]
        if frames or connection.is_busy or not (self._is_socket_read and self._may_read):
            self._work_soon()
            self._count_unworked()
            self.update_reading()

    def _disconnect_above_connect(self) -> bool:
        """Disconnect a client that is not authenticated if it has brought more than CONNECT, which waits for a turn;
        returns whether it did. Other clients send nothing before they are answered."""
        held_bytes = sum(map(len, self._chunks))
        if held_bytes <= HANDSHAKE_FRAME_BYTES:
            return False
        log.warning("%s is disconnected: it has sent %d bytes and is not authenticated", self._address, held_bytes)
        self.abort()
        return True

    @property
    def source(self) -> str:
        """Whose bytes it brings."""
        return self._peer if self._connection is None else self._connection.source

    def _count_unworked(self, more_bytes: int = 0) -> None:
        """Count what waits for a turn of the loop. What waits because the client does not take its answers, or for
        storage, is not counted: the connections beside this one would wait for that, too."""
        former_source, was_bytes = self._unworked
        if not (self._frames or self._chunks) or not self._may_read or self._is_closing:
            held_bytes = 0
        else:  # frames are counted once: they may be thousands
            counted_bytes = was_bytes + more_bytes if was_bytes else 0
            held_bytes = counted_bytes or sum(map(len, self._frames)) + sum(map(len, self._chunks))
        source = self.source
        if (source, held_bytes) != (former_source, was_bytes):
            self._unworked = source, held_bytes
            if was_bytes:
                self._server.unworked.add_bytes(former_source, -was_bytes)
            if held_bytes:
                self._server.unworked.add_bytes(source, held_bytes)

    def _work_soon(self) -> None:
        if self._has_work and not self._is_working:
            self._is_working = True
            self._server.share.wait(self._work)

    @property
    def _has_work(self) -> bool:
        return bool(self._frames or self._chunks) or (self._connection is not None and self._connection.is_busy)

    def _refuse(self, connection: Connection, error: MalformedFrame) -> None:
        log.warning("%s is disconnected: %s", connection.address, error)
        self.close()

    def pause_writing(self) -> None:
        self._is_drained.clear()

    def resume_writing(self) -> None:
        self._is_drained.set()
        # While it closes, the connection holds nothing any more, and is not told again.
        if self._connection is not None and not self._is_flushing and not self._is_closing:
            self._connection.on_flushed(self.unsent_bytes)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._count_unworked()
        self._is_drained.set()
        self._out.clear()
        self._frames.clear()
        self._chunks.clear()
        self._server.clients.pop(self, None)
        self._server.strangers.discard(self)
        self._server.unfinished.forget(self)
        self._count_handshake(0)
        self._splitter.give_up_held()
        if self._counted is not None:
            self._server.limits.release(self._counted)
            self._server.ended += 1
            self._counted = None
        if self._timer is not None:
            self._timer.cancel()
        self._show_life(False)
        # The two refer to each other: cut, so that they need no garbage collector.
        connection, self._connection = self._connection, None
        if connection is not None:
            self._leave(connection)
        # Tasks under way finish by themselves: their producer or consumer is detached as soon as it is made.

    # -------------------------------------------------------------------------------- outbox

    def write(self, buffer: Buffer) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(buffer)
        self._out_bytes += len(buffer)

    def _flush(self) -> None:
        out, self._out = self._out, []
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        if len(out) > JOINED_MIN and self._out_bytes < len(out) * JOINED_BYTES_MAX:
            out = [b"".join(out)]
        self._out_bytes = 0
        self._is_flushing = True  # uvloop may call `resume_writing` from within a write
        transport.writelines(out)
        self._is_flushing = False
        unsent_bytes = transport.get_write_buffer_size()
        if unsent_bytes > WRITE_BUFFER_MAX_BYTES:
            log.warning("%s does not read its answers and is disconnected: %d bytes wait", self._address, unsent_bytes)
            self.abort()
        elif self._connection is not None and not self._is_closing:
            self._connection.on_flushed(unsent_bytes)

    @property
    def unsent_bytes(self) -> int:
        transport = self._transport
        return self._out_bytes if transport is None else self._out_bytes + transport.get_write_buffer_size()

    async def until_drained(self) -> None:
        await self._is_drained.wait()

    def pause_reading(self) -> None:
        self._may_read = False
        self._count_unworked()
        self.update_reading()

    def resume_reading(self) -> None:
        self._may_read = True
        self._work_soon()
        self._count_unworked()
        self.update_reading()

    def update_reading(self) -> None:
        """Read the socket while the connection wants it, no frame that was read before waits, and not too much waits of
        its client in all."""
        should_read = self._may_read and not self._has_work and not self._server.unworked.is_full(self.source)
        if should_read == self._is_socket_read or self._transport is None or self._transport.is_closing():
            return
        self._is_socket_read = should_read
        if should_read:
            self._pinged = False  # while it was not read, no answer could arrive
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def close(self) -> None:
        """Send what is queued, then close."""
        if self._is_closing:
            return
        self._is_closing = True
        self._count_unworked()
        if self._connection is not None:
            self._leave(self._connection)
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _leave(self, connection: Connection) -> None:
        """What the client has leaves; of thousands, some in each turn of the loop."""
        if connection.state is State.CLOSED:
            return
        self._server.share.begin_slice()
        self._go_on_leaving(connection.on_lost())

    def _go_on_leaving(self, steps: Generator[None, None, None]) -> None:
        share = self._server.share
        try:
            for _ in steps:
                if share.is_over():
                    self._has_left = self._has_left or asyncio.Event()
                    share.wait(lambda: self._go_on_leaving(steps))
                    return
        except Exception:  # nobody may wait for ever
            log.exception("%s: not all of what it had has left", self._peer)
        if self._has_left is not None:
            self._has_left.set()

    async def _until_left(self) -> None:
        if self._has_left is not None:
            await self._has_left.wait()

    def abort(self) -> None:
        """Close without sending anything more."""
        if self._transport is not None:
            self._transport.abort()

    async def is_alive(self) -> bool:
        """Send a PING and wait for anything from the client. False (and disconnected) if nothing arrives in time."""
        if self._is_closing:
            await self._until_left()
            return False
        if not self._is_socket_read or not self._config.active_consumer_probe_ms:
            return True  # its answer would not be read, or clients are not to be asked
        sign: asyncio.Future[bool] = self._loop.create_future()
        self._signs_of_life.append(sign)
        self.write(PING)

        def give_up() -> None:
            if not sign.done():
                sign.set_result(False)

        timer = self._clock.call_later(self._config.active_consumer_probe_ms / 1000, give_up)
        try:
            alive = await sign
        finally:
            timer.cancel()
            with contextlib.suppress(ValueError):
                self._signs_of_life.remove(sign)
        if not alive:
            self.abort()
            if self._connection is not None:
                self._leave(self._connection)
            await self._until_left()
        return alive

    def _show_life(self, is_alive: bool) -> None:
        for sign in self._signs_of_life:
            if not sign.done():
                sign.set_result(is_alive)

    # -------------------------------------------------------------------------------- keep-alive

    def _keep_alive(self) -> None:
        """One interval is over: disconnect a client that did not answer the PING before, or never sent CONNECT."""
        connection = self._connection
        if self._is_closing:
            return
        if connection is None:  # the header of the load balancer never came
            self.abort()
            return
        unsent_before, self._unsent_before = self._unsent_before, self.unsent_bytes
        takes_nothing = unsent_before > OUTBOX_HIGH_BYTES and self._unsent_before >= unsent_before
        if not connection.is_admitted or (self._pinged if self._is_socket_read else takes_nothing):
            log.info("%s is disconnected: silent for too long", connection.address)
            self.close()
            # A peer that is dead never takes what is queued.
            self._clock.call_later(self._config.keep_alive_s, self.abort)
            return
        self._pinged = True
        self.write(PING)
        self._timer = self._clock.call_later(self._config.keep_alive_s, self._keep_alive)

    @property
    def is_admitted(self) -> bool:
        """Whether the handshake is done."""
        return self._connection is not None and self._connection.is_admitted

    @property
    def is_throttled(self) -> bool:
        """Whether its socket is not read for now."""
        return self._connection is not None and self._connection.flow.is_paused

    def check_login(self) -> None:
        """Close the connection if the client's credentials have expired and it does not renew them."""
        connection = self._connection
        if connection is None or self._is_closing:
            return
        reason = connection.check_login()
        if reason is not None:
            log.info("%s is disconnected: %s", connection.address, reason)
            self.close()

    @property
    def _address(self) -> str:
        return "" if self._connection is None else self._connection.address

    async def end(self) -> None:
        """Close the connection and cancel its tasks."""
        self.close()
        await self._tasks.cancel()
        await self._until_left()


class BinaryServer:
    """Listens for clients on one or more addresses."""

    def __init__(self, broker: BrokerPort, clock: Clock, config: BrokerConfig) -> None:
        self._broker = broker
        self._clock = clock
        self._config = config
        self._servers: list[asyncio.Server] = []
        self._tls_ports: list[TlsPort] = []
        self._timer: Timer | None = None
        self.clients: dict[ClientProtocol, None] = {}
        self.strangers: set[ClientProtocol] = set()
        """Those of the clients that may not have finished their handshake."""
        self.refused = self.made = self.ended = 0
        """Connections that were refused above a limit, that were made, and those of them that have ended."""
        self.limits = ConnectionLimits(config.max_connections, config.max_connections_per_ip)
        self.unworked = Unworked(self._update_reading_of)
        self.share = LoopShare(clock.monotonic, lambda work: asyncio.get_running_loop().call_soon(work))
        limit_bytes = int(broker.publishes.limit_bytes * UNFINISHED_SHARE)
        self.unfinished = Unfinished(limit_bytes, clock.monotonic, clock.call_later)
        self.handshake_bytes = 0
        """The bytes of frames that are not whole, of clients that are not authenticated."""

    async def listen(self, host: str, port: int, certificates: Certificates | None = None) -> int:
        """Open a port (0: any free one), with *certificates* for TLS; returns its number. May be called several times,
        for other addresses or ports."""

        def make() -> ClientProtocol:
            return ClientProtocol(self._broker, self._clock, self._config, self)

        if self._timer is None and self._broker.doors is not None:
            self._check_logins_later()
        if certificates is not None:
            secure = TlsPort(certificates, make, self._clock)
            number = await secure.listen(host, port, BACKLOG)
            self._tls_ports.append(secure)
            return number
        server = await asyncio.get_running_loop().create_server(guarded(make), host, port, backlog=BACKLOG)
        self._servers.append(server)
        opened: int = server.sockets[0].getsockname()[1]
        return opened

    async def open_own(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection of this broker to itself, inside the process. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: ClientProtocol(self._broker, self._clock, self._config, self, is_own=True), theirs
            )
            return await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise

    def _update_reading_of(self, source: Hashable | None) -> None:
        """*source* None: of all clients."""
        for client in self.clients:
            if source is None or client.source == source:
                client.update_reading()

    def admit(self, host: str) -> str | None:
        """Count a new connection; returns why it is refused."""
        if len(self.strangers) > HANDSHAKES_MAX:  # looked through only then: most of them have been admitted since
            self.strangers = {client for client in self.strangers if not client.is_admitted}
            if len(self.strangers) > HANDSHAKES_MAX:
                return f"{TOO_MANY} that are not authenticated yet"
        return self.limits.admit(host)

    def _check_logins_later(self) -> None:
        period_s = self._config.authentication_refresh_s
        if period_s:
            self._timer = self._clock.call_later(period_s, self._check_logins)

    def _check_logins(self) -> None:
        for client in list(self.clients):
            client.check_login()
        self._check_logins_later()

    @property
    def handshakes_failed(self) -> int:
        """TLS handshakes that failed."""
        return sum(port.failed for port in self._tls_ports)

    async def stop_listening(self) -> None:
        """Take no new clients."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for port in self._tls_ports:
            await port.close()
        for server in self._servers:
            server.close()

    async def close(self) -> None:
        """Close the ports and disconnect all clients."""
        await self.stop_listening()
        await gather_in_turns(client.end() for client in list(self.clients))
        self._servers.clear()
