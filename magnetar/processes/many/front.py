"""The one HTTP address of a service of several processes. `calls` says who answers; this module asks them.

Rules:

1. A call is passed on as it came, with its headers, and its answer is passed back as it comes: nobody is logged in
   here, each process checks for itself who may do what.
2. A redirect to another process of the service is followed here; one to another host goes back to the client.
3. A body is held while it may have to be sent again; a larger one than the processes take is refused.
"""

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from broker.admin.forwarded import ForwardedConnections
from magnetar.processes.many.calls import READING, Way, named_broker
from magnetar.processes.many.children import Child, Children
from magnetar.processes.many.merged import merged_json, merged_metrics
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.bodies import BODIES, BodyRefused
from magnetar_core.runtime.http.server import CONNECTIONS_MAX, HttpServer
from magnetar_core.security.tls.contexts import Certificates, certificate_pem, server_context
from magnetar_core.security.tls.files import TlsFiles
from magnetar_core.security.tls.port import TlsPort

log = logging.getLogger(__name__)

# The largest body that a broker's admin takes; a bookie's takes less.
BODY_BYTES_MAX: Final = 4 * 1024 * 1024

# Connections that wait for HTTPS, as at a broker.
BACKLOG: Final = 128

# How often the owner of a topic may change while one call is passed on.
_REDIRECTS_MAX: Final = 5

# A process of this machine takes a connection at once; one that does not, hangs.
_CONNECT_S: Final = 5.0

# Headers of one connection, not of the call (RFC 9110, 7.6.1), and those that aiohttp sets.
_OF_CONNECTION: Final = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"}
)
_SET_HERE: Final = frozenset({"content-length", "date", "server"})
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"

# Headers that aiohttp's client would add where the caller sent none.
_NOT_ADDED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")


class Place(NamedTuple):
    """Where the HTTP of a process is, as far as it is known."""

    plain: str = ""
    """http://host:port; empty: not there, or not known yet."""
    secure: str = ""
    """https://host:port, the same."""
    names: frozenset[str] = frozenset()
    """host:port, as the process writes them in redirects."""

    def base(self, request: web.Request) -> str:
        """The address to send *request* on to: over TLS if it came so, and then redirects to other hosts name HTTPS."""
        if request.secure:
            return self.secure or self.plain
        return self.plain or self.secure


class _Silent(Exception):
    """A process did not answer."""


class Front:
    """Serves the address, on behalf of all."""

    def __init__(
        self,
        children: Children,
        way_of: Callable[[str, str], Way],
        place_of: Callable[[Child], Place],
        name_of: Callable[[Child], str],
        clock: Clock,
        tls: TlsFiles | None = None,
        *,
        is_behind_proxy: bool = False,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """*name_of* a process: the id of its bookie. *tls*: the files of HTTPS, here and at the processes.

        *is_behind_proxy*: connections may begin with the header of a load balancer.
        """
        self._clock = clock
        self._is_behind_proxy = is_behind_proxy
        self._connections_max = connections_max
        self._forwarded: ForwardedConnections | None = None
        self._certificates = self._own = None
        if tls is not None:
            self._certificates = Certificates(tls, partial(server_context, client_certificates=False), clock)
            self._own = Certificates(tls, _own_context, clock)
        self._tls: TlsPort | None = None
        self._children = children
        self._way_of = way_of
        self._place_of = place_of
        self._name_of = name_of
        self._http: HttpServer | None = None
        self._session: aiohttp.ClientSession | None = None
        self._ways: Mapping[Way, Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]] = {
            Way.ANY: self._ask_any,
            Way.ALL: self._ask_all,
            Way.METRICS: self._metrics,
            Way.MERGED: self._merged_answer,
            Way.NAMED: self._ask_named,
            Way.ONE: self._ask_one,
            Way.FIRST: self._ask_first,
        }

    async def start(self, listening: socket.socket | None, secure: socket.socket | None = None) -> None:
        """Listen on bound sockets; *secure* is for HTTPS."""
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            skip_auto_headers=_NOT_ADDED,
        )
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_route("*", "/{anything:.*}", self._answer)
        self._http = HttpServer(app, connections_max=self._connections_max)
        admit = await self._http.new_connection()
        before = None
        if self._is_behind_proxy:
            self._forwarded = ForwardedConnections(admit, self._clock)
            before = self._forwarded.before_tls
            if listening is not None:
                await self._forwarded.serve(listening, BACKLOG)
        elif listening is not None:
            await self._http.start(listening)
        if secure is not None:
            assert self._certificates is not None, "HTTPS needs certificates"
            self._tls = TlsPort(self._certificates, admit, self._clock, before=before)
            self._tls.serve(secure, BACKLOG)

    async def stop(self) -> None:
        if self._tls is not None:
            await self._tls.close()
        if self._forwarded is not None:
            await self._forwarded.close()
        if self._http is not None:
            await self._http.stop()
        if self._session is not None:
            await self._session.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            body = await BODIES.read(request, BODY_BYTES_MAX)
        except BodyRefused as error:
            return _refused(error.status, str(error))
        return await self._ways[self._way_of(request.method, request.path)](request, body)

    # ------------------------------------------------------------------------------ one process

    async def _ask_any(self, request: web.Request, body: bytes) -> web.StreamResponse:
        for child in self._children.ready:
            try:
                return await self._pass_on(request, body, child)
            except _Silent as error:
                if request.method not in READING:  # it may have been done
                    return _refused(503, str(error))
        return self._no_process_answer()

    async def _ask_first(self, request: web.Request, body: bytes) -> web.StreamResponse:
        return await self._ask(request, body, self._children.all[0])

    async def _ask_named(self, request: web.Request, body: bytes) -> web.StreamResponse:
        wanted = named_broker(request.path)
        named = next((child for child in self._children.ready if wanted in self._place_of(child).names), None)
        return await (self._ask_any(request, body) if named is None else self._ask(request, body, named))

    async def _ask_one(self, request: web.Request, body: bytes) -> web.StreamResponse:
        children = self._children.all
        wanted = request.query.get("bookie")
        if wanted is not None:
            named = next((child for child in children if self._name_of(child) == wanted), None)
            if named is None:
                return _refused(404, f"no bookie {wanted} in this service; {self._ids()}")
            return await self._ask(request, body, named)
        if request.method not in READING:
            return _refused(400, f"this address is of {len(children)} bookies: add ?bookie=ID; {self._ids()}")
        answers = {}
        for child in children:
            answer = await self._read(request, child)
            if answer.status != 200:
                return answer
            answers[self._name_of(child)] = _json_of(answer)
        return _json_answer(answers)

    def _ids(self) -> str:
        return "the ids are " + ", ".join(self._name_of(child) or "not known yet" for child in self._children.all)

    async def _ask(self, request: web.Request, body: bytes, child: Child) -> web.StreamResponse:
        if not self._place_of(child).base(request):
            return _refused(503, f"process {child.number} is not ready")
        try:
            return await self._pass_on(request, body, child)
        except _Silent as error:
            return _refused(503, str(error))

    async def _pass_on(self, request: web.Request, body: bytes, child: Child) -> web.StreamResponse:
        """Ask *child*, and the process that it redirects to (rule 2). Raises _Silent if one of them does not answer."""
        path = _path_of(request)
        for _ in range(_REDIRECTS_MAX):
            answer = await self._send(request, body, child, path)
            try:
                elsewhere = self._redirected(answer)
                if elsewhere is None:
                    return await _passed_back(request, answer)
                child, path = elsewhere
            finally:
                answer.release()
        return _refused(503, "the owner of the topic changes too often; ask again")

    async def _send(
        self, request: web.Request, body: bytes, child: Child, path: str, *, plain: bool = False
    ) -> aiohttp.ClientResponse:
        """*plain*: the answer is read here, so it is not to be compressed, whatever the caller takes."""
        assert self._session is not None, "it was started"
        left_out = _OF_CONNECTION | _SET_HERE | ({"accept-encoding"} if plain else frozenset())
        headers = CIMultiDict((name, text) for name, text in request.headers.items() if name.lower() not in left_out)
        url = URL(self._place_of(child).base(request) + path, encoded=True)
        context = self._own.context if self._own is not None and url.scheme == "https" else True
        try:
            return await self._session.request(
                request.method, url, headers=headers, data=body or None, allow_redirects=False, ssl=context
            )
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            log.warning("process %d does not answer at %s: %r", child.number, url, error)
            raise _Silent(f"process {child.number} does not answer") from error

    def _redirected(self, answer: aiohttp.ClientResponse) -> tuple[Child, str] | None:
        """The process of this service that *answer* redirects to, and the path; None if it does not redirect there."""
        if answer.status not in (301, 302, 307, 308):
            return None
        where = urlsplit(answer.headers.get("Location", ""))
        for child in self._children.ready:
            if where.netloc in self._place_of(child).names:
                return child, where.path + (f"?{where.query}" if where.query else "")
        return None

    def _no_process_answer(self) -> web.Response:
        return _refused(503, f"none of the {len(self._children.all)} processes is ready")

    # ------------------------------------------------------------------------------ all processes

    async def _read(self, request: web.Request, child: Child) -> web.Response:
        """The whole answer of one process; 503 if it does not answer."""
        if not self._place_of(child).base(request):
            return _refused(503, f"process {child.number} is not ready")
        try:
            answer = await self._send(request, b"", child, _path_of(request), plain=True)
            async with answer:
                data = await answer.read()
        except (_Silent, aiohttp.ClientError, OSError, TimeoutError):
            return _refused(503, f"process {child.number} does not answer")
        kind = answer.headers.get("Content-Type", "application/octet-stream")
        return web.Response(status=answer.status, body=data, headers={"Content-Type": kind})

    async def _read_all(self, request: web.Request) -> list[web.Response]:
        return await asyncio.gather(*(self._read(request, child) for child in self._children.all))

    async def _ask_all(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answers = await self._read_all(request)
        return next((answer for answer in answers if answer.status >= 300), answers[0])

    async def _metrics(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """The metrics of all that answer: one that is being started again does not hide the numbers of the others."""
        answers = dict(enumerate(await self._read_all(request)))
        texts = {number: _text_of(answer) for number, answer in answers.items() if answer.status == 200}
        if not texts:
            return answers[0]
        return web.Response(body=merged_metrics(texts).encode(), headers={"Content-Type": _TEXT})

    async def _merged_answer(self, request: web.Request, body: bytes) -> web.StreamResponse:
        answers = await self._read_all(request)
        refused = next((answer for answer in answers if answer.status != 200), None)
        return refused or _json_answer(merged_json([_json_of(answer) for answer in answers]))


def _own_context(files: TlsFiles) -> ssl.SSLContext:
    """The context for connections to the processes of this service, which show the very certificate of *files*."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # they are asked at this machine's own address; the certificate is compared whole
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if files.key_store:
        context.load_verify_locations(cadata=certificate_pem(files).decode("ascii"))
    else:
        context.load_verify_locations(files.certificate)
    return context


def _path_of(request: web.Request) -> str:
    """Path and query as they came, without the name of the bookie."""
    path, _, query = request.raw_path.partition("?")
    kept = "&".join(part for part in query.split("&") if part and part.partition("=")[0] != "bookie")
    return path + (f"?{kept}" if kept else "")


async def _passed_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    """The answer of a process, piece by piece."""
    response = web.StreamResponse(status=answer.status, reason=answer.reason)
    for name, text in answer.headers.items():
        if name.lower() not in _OF_CONNECTION | _SET_HERE:
            response.headers.add(name, text)
    if answer.content_length is not None and "Content-Encoding" not in answer.headers:
        response.content_length = answer.content_length
    await response.prepare(request)
    async for piece in answer.content.iter_any():
        await response.write(piece)
    await response.write_eof()
    return response


def _json_answer(value: object) -> web.Response:
    """Compact, as the answer of one process is."""
    return web.json_response(text=json.dumps(value, separators=(",", ":"), ensure_ascii=False))


def _refused(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")


def _text_of(answer: web.Response) -> str:
    assert isinstance(answer.body, bytes), "it was read"
    return answer.body.decode(errors="replace")


def _json_of(answer: web.Response) -> object:
    text = _text_of(answer)
    try:
        return parse_json(text)
    except ValueError:
        return text
