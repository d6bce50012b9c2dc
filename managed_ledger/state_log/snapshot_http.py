"""Snapshots from one node to another, over HTTP.

    GET /snapshot?above=4811      200: the bytes of the newest snapshot     204: it covers no edit behind 4811

With a secret, the same for all nodes, a call without `Authorization: Bearer <secret>` gets 401. Without one, everybody
who reaches the port can read the state.
"""

import hmac
import logging
import socket
from typing import Final

import aiohttp
from aiohttp import web

from magnetar_core.runtime.http.hosts import HostRules, is_loopback
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.runtime.types import GIB
from managed_ledger.state_log.errors import LogUnavailable
from managed_ledger.state_log.members import MemberNode, MemberNodes
from managed_ledger.state_log.state_log import StateLog

log = logging.getLogger(__name__)

# Bytes of a snapshot that a node takes from another; it is in memory as a whole, on both sides.
SNAPSHOT_BYTES_MAX: Final = 1 * GIB

_TIMEOUT: Final = aiohttp.ClientTimeout(total=600, sock_connect=5, sock_read=30)
_CHUNK: Final = 1 << 20


class SnapshotServer:
    """Gives the snapshots of one node."""

    def __init__(self, state_log: StateLog, secret: str | None = None) -> None:
        self._log = state_log
        self._secret = secret
        application = web.Application()
        application.router.add_get("/snapshot", self._snapshot)
        self._application = application
        self._server: HttpServer | None = None

    async def start(self, listening: socket.socket) -> None:
        is_local = is_loopback(str(listening.getsockname()[0]))
        hosts = HostRules(is_local=is_local, asks_callers=self._secret is not None)
        self._server = HttpServer(self._application, hosts=hosts)
        await self._server.start(listening)

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    async def _snapshot(self, request: web.Request) -> web.Response:
        if self._secret is not None and not hmac.compare_digest(
            request.headers.get("Authorization", "").encode(), f"Bearer {self._secret}".encode()
        ):
            return web.Response(status=401, text="the secret is missing or wrong\n")
        above = request.query.get("above", "")
        if not above.lstrip("-").isdigit() or len(above) > 20:
            return web.Response(status=400, text="above: the number of an edit\n")
        data = await self._log.newest_snapshot(int(above))
        if data is None:
            return web.Response(status=204)
        return web.Response(body=data, content_type="application/octet-stream")


class HttpSnapshots:
    """Asks the other nodes, beginning with those that cover most."""

    def __init__(self, members: MemberNodes, secret: str | None = None) -> None:
        self._members = members
        self._headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}
        self.bytes_max = SNAPSHOT_BYTES_MAX

    async def fetch(self, above: int) -> bytes | None:
        others = sorted(await self._members.others(), key=lambda member: member.covered, reverse=True)
        failures: list[str] = []
        async with aiohttp.ClientSession(timeout=_TIMEOUT, headers=self._headers) as session:
            for other in others:
                if not other.address:
                    continue
                try:
                    data = await self._ask(session, other, above)
                except (aiohttp.ClientError, TimeoutError, OSError, LogUnavailable) as error:
                    failures.append(f"{other.name}: {error!r}")
                    continue
                if data is not None:
                    return data
        if failures:
            raise LogUnavailable("no snapshot: " + "; ".join(failures))
        return None

    async def _ask(self, session: aiohttp.ClientSession, other: MemberNode, above: int) -> bytes | None:
        async with session.get(f"{other.address}/snapshot", params={"above": str(above)}) as answer:
            if answer.status == 204:
                return None
            if answer.status != 200:
                raise LogUnavailable(f"{other.address} answered {answer.status}: {(await answer.text())[:200].strip()}")
            parts: list[bytes] = []
            size = 0
            async for chunk in answer.content.iter_chunked(_CHUNK):
                size += len(chunk)
                if size > self.bytes_max:
                    raise LogUnavailable(f"{other.address}: the snapshot is larger than {self.bytes_max} bytes")
                parts.append(chunk)
            return b"".join(parts)
