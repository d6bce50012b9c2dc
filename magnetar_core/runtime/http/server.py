"""The HTTP server of an admin interface, on a socket that is bound already, and the check of calls that change
something.

A web page in the browser of a person who can reach the port may send requests to it. Browsers let a page send text and
forms to any address without asking, and name the page in `Origin`. Only browsers send that header.

Rules, of all our HTTP servers:

1. A body that is encoded (gzip, deflate) is refused with 415 and never unpacked: a few KB would stand for gigabytes.
   Apache's servers do not unpack either.
2. A connection on which no whole request has come for `IDLE_S` is closed, whatever was sent: nothing, half a header, or
   requests before. So many connections are served, and half of those that the process may have at most; one more is
   closed at once.
3. Bodies are read by `http_bodies`, with a limit for one, for all together, and in time.
4. Calls under names of others are refused (`http_hosts`).
5. What clients send is parsed in turns (`http_pacing`), and large answers that they do not read have a sum
   (`http_answers`).
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from magnetar_core.runtime.http.answers import ANSWERS
from magnetar_core.runtime.http.hosts import READING, HostRules
from magnetar_core.runtime.http.pacing import Pace, Paced
from magnetar_core.runtime.process.descriptors import DESCRIPTORS, Arriving, Descriptors, peer_of

# The types a page may send anywhere without a request for permission ("CORS-safelisted" in the fetch standard).
_SENT_BY_PAGES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")

# What aiohttp and Apache's servers take where nothing else is set.
HEADER_BYTES_MAX: Final = 8_192

# Headers of a request. Clients send some ten, proxies as many again.
HEADERS_MAX: Final = 128

# Apache's maxHttpServerConnections: each is some 20 KB, and up to 128 KiB of a body that nobody has asked for yet.
CONNECTIONS_MAX: Final = 2_048

# Of the descriptors for connections, one HTTP server takes every second one at most: the other ports have clients, too.
HTTP_SHARE: Final = 2

# A connection without a request under way. Load balancers keep theirs for 60 s, and should be the first to close.
IDLE_S: Final = 75.0

# Connections that wait to be accepted.
BACKLOG: Final = 128

# How long answers that are under way may take when the server stops.
STOP_S: Final = 2.0

_LINE_S: Final = 10.0

log = logging.getLogger(__name__)

Refusal = Callable[[web.Request, int, str], web.Response]
"""How a server refuses: the request, a status, the text."""


def _shortened(record: logging.LogRecord) -> bool:
    """Log a request that is not HTTP as one line, without a traceback: it is a mistake of the sender."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        what = record.getMessage()
        record.msg, record.args = "%s: %s", (what, " ".join(error.message.split())[:200])
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


logging.getLogger("aiohttp.server").addFilter(_shortened)


def text_refusal(_: web.Request, status: int, text: str) -> web.Response:
    """A refusal as plain text."""
    return web.Response(status=status, text=text + "\n")


class HttpServer:
    """Serves one application."""

    def __init__(
        self,
        application: web.Application,
        *,
        header_bytes_max: int = HEADER_BYTES_MAX,
        connections_max: int = CONNECTIONS_MAX,
        idle_s: float = IDLE_S,
        hosts: HostRules | None = None,
        refusal: Refusal = text_refusal,
        descriptors: Descriptors = DESCRIPTORS,
    ) -> None:
        """*header_bytes_max*: of one header, and of the first line of a request; longer ones are answered with 400.

        *connections_max* 0: no limit. *hosts* None: calls are answered under every name. *refusal*: what the
        application's clients take for one.
        """
        application.middlewares.insert(0, _guard_middleware(hosts or HostRules(asks_callers=True), refusal))
        self._connections_max = connections_max
        self._descriptors = descriptors
        self._listening: list[asyncio.Server] = []
        self._pace = Pace()
        self._next_line_s = float("-inf")
        self.refused = 0
        """Connections above the limit."""
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=STOP_S,
            max_line_size=header_bytes_max,
            max_field_size=header_bytes_max,
            max_headers=HEADERS_MAX,
            keepalive_timeout=idle_s,  # counted from the start of a connection, and from the end of each answer
            auto_decompress=False,  # rule 1: else it is unpacked as it comes, before a handler is asked
        )

    async def start(self, listening: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError. May be called for several sockets."""
        admit = await self.new_connection()
        loop = asyncio.get_running_loop()
        self._listening.append(await loop.create_server(admit, sock=listening, backlog=BACKLOG))

    async def new_connection(self) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocol objects of connections that somebody else accepts."""
        if self._runner.server is None:
            await self._runner.setup()
        server = self._runner.server
        assert server is not None, "it was set up"

        def refuses(transport: asyncio.BaseTransport) -> bool:
            most = self._descriptors.for_connections // HTTP_SHARE
            if self._connections_max > 0:
                most = min(most, self._connections_max)
            if len(server.connections) >= most:
                self._say_full(transport, most)
                return True
            accepted = transport.get_extra_info("socket")
            number = -1 if accepted is None else cast(int, accepted.fileno())
            return self._descriptors.refuses(number, peer_of(transport), asyncio.get_running_loop().time())

        return lambda: Arriving(lambda: Paced(server(), self._pace), refuses)

    async def stop(self) -> None:
        """Wait for answers under way, then close everything. May be called without `start`."""
        for listening in self._listening:
            listening.close()
        await self._runner.cleanup()

    def _say_full(self, transport: asyncio.BaseTransport, most: int) -> None:
        self.refused += 1
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._next_line_s:
            self._next_line_s = now_s + _LINE_S
            log.warning(
                "an HTTP connection of %s is closed (%d so far): %d are open", peer_of(transport), self.refused, most
            )


def _guard_middleware(hosts: HostRules, refusal: Refusal) -> Any:
    """The middleware in front of all others (rules 1, 4 and 5)."""

    @web.middleware
    async def guard(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        encodings = ", ".join(request.headers.getall("Content-Encoding", ())).strip().lower()
        if encodings not in ("", "identity"):
            text = f"Content-Encoding is {encodings[:80]}: send the body as it is, without an encoding"
            return refusal(request, 415, text)
        headers = request.headers
        reason = hosts.refusal(request.method, headers.get("Host"), headers.get("Origin"))
        if reason is not None:
            return refusal(request, 403, reason)
        answer = await handler(request)
        reason = await ANSWERS.send(request, answer)
        return answer if reason is None else refusal(request, 503, reason)

    return guard


def foreign_origin(request: web.Request) -> str | None:
    """Why a call that changes something is refused: a page of another site sent it. None: it may be answered."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in READING:
        return None
    try:
        host = urlsplit(origin).netloc
    except ValueError:
        host = ""
    if host and host.lower() == request.host.lower():
        return None
    return f"Origin {origin[:200]!r} is not this server ({request.host}): pages of other sites change nothing here"


def unwanted_type(request: web.Request) -> str | None:
    """Why the body is refused: its Content-Type is not JSON. None: it is, or there is no body."""
    if request.method in READING:
        return None
    kind = request.content_type.lower() if "Content-Type" in request.headers else ""
    if kind == "application/json" or kind.endswith("+json"):
        return None
    if kind in _SENT_BY_PAGES or request.can_read_body:
        return f"Content-Type is {kind or 'missing'}: send application/json, or no body at all"
    return None
