"""A port that speaks TLS: it accepts connections, and hands each to the protocol that serves it after its handshake.

A connection that was handed over is served by the same object as one in clear text.

Rules:

1. A handshake has a time limit, and so many may be under way; the connections above that are closed, and those that
   would take a descriptor of storage (`descriptors`).
2. A handshake that failed ends its own connection only. It is counted, and logged at most once a second. A client that
   closes the connection without a word is not counted as one.
3. Each connection uses the certificates that are in the files when it begins (`tls_contexts.Certificates`).

Connections are accepted here and not by the event loop's server: that one keeps the context with which it began, and
does not report handshakes. (`start_tls` on an accepted connection loses the bytes that uvloop has read before.)
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.process.descriptors import DESCRIPTORS
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.security.tls.contexts import HANDSHAKE_S, Certificates

log = logging.getLogger(__name__)

# Handshakes under way, some 50 KB each. A restart brings back all clients at once; those that are closed come again.
HANDSHAKES_MAX: Final = 5_000

# Wait after a failed accept: the process has no file descriptors left, for example.
_ACCEPT_AGAIN_S: Final = 1.0

_LINE_S: Final = 1.0


class TlsPort:
    """One port, and its connections until their handshakes are done."""

    def __init__(
        self,
        certificates: Certificates,
        admit: Callable[[], asyncio.BaseProtocol],
        clock: Clock,
        *,
        handshake_s: float = HANDSHAKE_S,
        before: Callable[[socket.socket], Awaitable[Callable[[], asyncio.BaseProtocol]]] | None = None,
    ) -> None:
        """*admit* makes the protocol object of a connection.

        *before* reads what a load balancer sends before the handshake, and returns a maker of the protocol object.
        """
        self.certificates = certificates
        self.handshake_s = handshake_s
        self.waiting = 0
        """Handshakes under way."""
        self.failed = 0
        """Handshakes that failed."""
        self.refused = 0
        """Connections closed because too many handshakes were under way."""
        self._admit = admit
        self._before = before
        self._clock = clock
        self._listening: socket.socket | None = None
        self._tasks = Tasks("TLS port")
        self._next_line_s = float("-inf")

    async def listen(self, host: str, port: int, backlog: int) -> int:
        """Open the port (0: any free one); returns its number. Raises OSError."""
        addresses = await asyncio.get_running_loop().getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, kind, protocol, _, address = addresses[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
        self.serve(listening, backlog)
        return int(listening.getsockname()[1])

    def serve(self, listening: socket.socket, backlog: int) -> None:
        """Accept connections of a bound socket, which is closed at the end."""
        assert self._listening is None, "a port is opened once"
        listening.listen(backlog)
        listening.setblocking(False)
        self._listening = listening
        self._tasks.spawn(self._accept(listening), "accept")

    async def close(self) -> None:
        """Close the port, and the connections whose handshakes are not done."""
        await self._tasks.cancel()
        if self._listening is not None:
            self._listening.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, peer = await loop.sock_accept(listening)
            except ConnectionError:  # it has gone already
                continue
            except OSError as error:
                self._say(f"no connections are accepted for {_ACCEPT_AGAIN_S:g} s: {error}")
                await self._clock.sleep(_ACCEPT_AGAIN_S)
                continue
            name = f"{peer[0]}:{peer[1]}"
            if DESCRIPTORS.refuses(accepted.fileno(), name, self._clock.monotonic()):
                accepted.close()
                continue
            if self.waiting >= HANDSHAKES_MAX:
                self.refused += 1
                self._say(f"{name} is closed: {self.waiting} TLS handshakes are under way")
                accepted.close()
                continue
            self.waiting += 1
            self._tasks.spawn(self._shake_hands(accepted, name), name)

    async def _shake_hands(self, accepted: socket.socket, peer: str) -> None:
        try:
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            admit = self._admit
            if self._before is not None:
                async with asyncio.timeout(self.handshake_s):
                    admit = await self._before(accepted)
            await asyncio.get_running_loop().connect_accepted_socket(
                admit, accepted, ssl=self.certificates.context, ssl_handshake_timeout=self.handshake_s
            )
        except ConnectionResetError:
            # It said nothing and went: other brokers and load balancers look whether the port is there.
            accepted.close()
        except OSError as error:  # the errors of the ssl library and of the time limit are OSErrors, too
            accepted.close()
            self.failed += 1
            self._say(f"the TLS handshake with {peer} failed: {reason_of(error)}")
        except BaseException:
            accepted.close()
            raise
        finally:
            self.waiting -= 1

    def _say(self, text: str) -> None:
        now_s = self._clock.monotonic()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            log.warning("%s", text)


def reason_of(error: OSError) -> str:
    """Why a handshake failed, for people."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.replace("_", " ").lower()
    if isinstance(error, ConnectionResetError) or (isinstance(error, ConnectionError) and not str(error)):
        return "it ended the connection; it may not accept this server's certificate"
    return str(error) or type(error).__name__
