"""HTTP of a server's admin: an application on a socket that is bound already; and which calls may change something.

A page in the browser of somebody who can reach the port may send it requests in his name. Browsers let a page send
text and forms anywhere without asking, and name the page in `Origin`; nothing but browsers sends that.
"""

import logging
import socket
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})

# What a page may send anywhere without the browser asking first (the fetch standard's "CORS-safelisted" types).
_SENT_BY_PAGES: Final = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")

# Answers that are under way when the server stops have so long to end.
_STOP_S: Final = 2.0


def _shortened(record: logging.LogRecord) -> bool:
    """What is no HTTP is somebody's mistake and not the server's: a line in the log, not a traceback."""
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

    def __init__(self, application: web.Application) -> None:
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_STOP_S)

    async def start(self, listening: socket.socket) -> None:
        """Listen on a bound socket. Raises OSError."""
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    async def stop(self) -> None:
        """Let answers end, close everything. May be called without `start`."""
        await self._runner.cleanup()


def foreign_origin(request: web.Request) -> str | None:
    """Why a call that changes something is refused: a page of another site sent it. None: no page did, or our own."""
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
    """Why a body is refused that should be JSON. None: it says it is, or there is none."""
    if request.method in _READING:
        return None
    kind = request.content_type.lower() if "Content-Type" in request.headers else ""
    if kind == "application/json" or kind.endswith("+json"):
        return None
    if kind in _SENT_BY_PAGES or request.can_read_body:
        return f"Content-Type is {kind or 'missing'}: send application/json, or no body at all"
    return None
