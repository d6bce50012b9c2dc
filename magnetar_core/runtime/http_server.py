"""The HTTP server of an admin interface, on a socket that is bound already, and the check of calls that change
something.

A web page in the browser of a person who can reach the port may send requests to it. Browsers let a page send text and
forms to any address without asking, and name the page in `Origin`. Only browsers send that header.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# The types a page may send anywhere without a request for permission ("CORS-safelisted" in the fetch standard).
_SENT_BY_PAGES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")

# What aiohttp and Apache's servers take where nothing else is set.
HEADER_BYTES_MAX: Final = 8_192

# How long answers that are under way may take when the server stops.
_STOP_S: Final = 2.0


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


class HttpServer:
    """Serves one application."""

    def __init__(self, application: web.Application, *, header_bytes_max: int = HEADER_BYTES_MAX) -> None:
        """*header_bytes_max*: of one header, and of the first line of a request; longer ones are answered with 400."""
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=_STOP_S,
            max_line_size=header_bytes_max,
            max_field_size=header_bytes_max,
        )

    async def start(self, listening: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError. May be called for several sockets."""
        await self._setup()
        await web.SockSite(self._runner, listening).start()

    async def new_connection(self) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocol objects of connections that somebody else accepts."""
        await self._setup()
        server = self._runner.server
        assert server is not None, "it was set up"
        return server

    async def _setup(self) -> None:
        if self._runner.server is None:
            await self._runner.setup()

    async def stop(self) -> None:
        """Wait for answers under way, then close everything. May be called without `start`."""
        await self._runner.cleanup()


def foreign_origin(request: web.Request) -> str | None:
    """Why a call that changes something is refused: a page of another site sent it. None: it may be answered."""
    origin = request.headers.get("Origin")
    if origin is None or request.method in _READING:
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
    if request.method in _READING:
        return None
    kind = request.content_type.lower() if "Content-Type" in request.headers else ""
    if kind == "application/json" or kind.endswith("+json"):
        return None
    if kind in _SENT_BY_PAGES or request.can_read_body:
        return f"Content-Type is {kind or 'missing'}: send application/json, or no body at all"
    return None
