"""HTTP behind a load balancer that sends the PROXY protocol (`webServiceHaProxyProtocolEnabled`).

The header is the first thing on a connection; at a port with TLS it stands before the handshake, in clear text, as with
Apache's brokers. The requests of the connection then come from the address in it. A connection without a header is
served as it is.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from broker.binary.admission.proxy_header import missing_bytes, parse_proxy_header
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.process.descriptors import guarded
from magnetar_core.security.tls.contexts import HANDSHAKE_S

log = logging.getLogger(__name__)

# What a header begins with. No TLS handshake begins with one of these.
_BEGINNINGS: Final = (b"P", b"\r")


class ForwardedConnections:
    """What stands before the HTTP server: reads the headers, and hands the connections on."""

    def __init__(self, admit: Callable[[], asyncio.BaseProtocol], clock: Clock) -> None:
        """*admit* makes the HTTP server's protocol object of a connection."""
        self._admit = admit
        self._clock = clock
        self._server: asyncio.Server | None = None
        self.waiting: set[asyncio.Transport] = set()
        """Connections whose beginning is not known yet."""

    async def serve(self, listening: socket.socket, backlog: int) -> None:
        """Accept connections of a bound socket, without TLS. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            guarded(lambda: _Beginning(self._admitted, self._clock, self.waiting)), sock=listening, backlog=backlog
        )

    async def before_tls(self, accepted: socket.socket) -> Callable[[], asyncio.BaseProtocol]:
        """Read the header from a socket that no transport has yet, and nothing behind it.

        Returns what makes the connection's protocol object. Raises OSError, also if the header cannot be read.
        """
        return partial(self._admitted, await _header_of(accepted))

    async def close(self) -> None:
        """Take no more connections, and end those whose beginning is not known."""
        if self._server is not None:
            self._server.close()
        for transport in list(self.waiting):
            transport.abort()

    def _admitted(self, address: str | None) -> asyncio.Protocol:
        return _Forwarded(cast(asyncio.Protocol, self._admit()), address)


class _Seen:
    """A transport whose peer is the client that the load balancer named."""

    def __init__(self, transport: asyncio.BaseTransport, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._transport = transport
        self._peer = (host, int(port))

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer if name == "peername" else self._transport.get_extra_info(name, default)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class _Forwarded(asyncio.Protocol):
    """A connection of the HTTP server, under the address of its client."""

    def __init__(self, http: asyncio.Protocol, address: str | None) -> None:
        self._http = http
        self._address = address
        self.data_received = http.data_received  # type: ignore[method-assign]
        self.eof_received = http.eof_received  # type: ignore[method-assign]
        self.pause_writing = http.pause_writing  # type: ignore[method-assign]
        self.resume_writing = http.resume_writing  # type: ignore[method-assign]
        self.connection_lost = http.connection_lost  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        seen = transport if self._address is None else cast(asyncio.Transport, _Seen(transport, self._address))
        self._http.connection_made(seen)


class _Beginning(asyncio.Protocol):
    """A connection without TLS until its header is read; it belongs to the HTTP server from then on."""

    def __init__(
        self, admitted: Callable[[str | None], asyncio.Protocol], clock: Clock, waiting: set[asyncio.Transport]
    ) -> None:
        self._admitted = admitted
        self._clock = clock
        self._waiting = waiting
        self._transport: asyncio.Transport | None = None
        self._timer: Timer | None = None
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._waiting.add(self._transport)
        self._timer = self._clock.call_later(HANDSHAKE_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._data += data
        try:
            header = parse_proxy_header(self._data)
        except MalformedFrame as error:
            log.warning("%s is disconnected: %s", transport.get_extra_info("peername"), error)
            transport.abort()
            return
        if header is None:
            return
        self._end()
        http = self._admitted(header.address)
        transport.set_protocol(http)
        http.connection_made(transport)
        if rest := self._data[header.size_bytes :]:
            http.data_received(rest)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._waiting.discard(self._transport)
            self._transport = None


async def _header_of(accepted: socket.socket) -> str | None:
    """The address in the header at the beginning of *accepted*; None: there is none. Raises OSError."""
    await _until_readable(accepted)
    if accepted.recv(1, socket.MSG_PEEK) not in _BEGINNINGS:
        return None
    data = b""
    try:
        while (header := parse_proxy_header(data)) is None:
            chunk = await asyncio.get_running_loop().sock_recv(accepted, missing_bytes(data))
            if not chunk:
                raise ConnectionResetError
            data += chunk
    except MalformedFrame as error:
        raise OSError(str(error)) from None
    if header.size_bytes != len(data):
        raise OSError("it begins neither with a PROXY header nor with TLS")
    return header.address


async def _until_readable(accepted: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not readable.done():
            readable.set_result(None)

    loop.add_reader(accepted, wake)
    try:
        await readable
    finally:
        loop.remove_reader(accepted)
