"""HTTP of a server's admin: an application on a socket that is bound already."""

import socket
from typing import Final

from aiohttp import web

# Answers that are under way when the server stops have so long to end.
_STOP_S: Final = 2.0


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
