"""The HTTP server of the management interface: routes made of calls, tokens, checks, errors, limits.

    /manage/v1/…                 the calls of all subjects (`calls`)
    /manage/v1/openapi.json      the document about them, open to everybody
    /manage/v1/metrics           numbers of the whole cluster for Prometheus; with tokens for callers that may read
    /dashboard/                  files of the page for people, which hold no data; it makes the calls above

It makes applications that are mounted into whatever listens: the HTTP of a bookie, or of a node of its own.

Rules:

1. With a file of tokens each call needs one. Without it reading is open, and changes are made only where just this host
   can reach the listener, and only for callers that address it as this host: a page whose host name was made to point
   here (DNS rebinding) is not one of them.
2. Nothing that a caller sends in a header or a body is logged. Each change that was asked for is: who (the address
   of callers that were not admitted), what, how it ended.
3. A refusal is `{"reason": "…"}`, with facts beside it. What failed only for the moment is 503 with Retry-After.
4. The number of calls under way is limited, and so is that of calls that read all records. A caller above the limit
   gets an answer that says so.
"""

import json
import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from autorecovery.admin.calls import PREFIX, Access, Call, Caller, CheckedCall, Refused, Subject
from autorecovery.admin.metrics import recovery_samples
from autorecovery.admin.openapi import document
from autorecovery.admin.schema import problem_of
from autorecovery.admin.token_file import SETTING, TokenFile
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import UnknownBookie
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import IllegalMove
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, VersionConflict
from magnetar_core.pages.serving import INDEX, files_of, serve_file
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.http.bodies import BODIES, BodyRefused
from magnetar_core.runtime.http.hosts import is_loopback, name_in
from magnetar_core.runtime.http.server import foreign_origin, unwanted_type
from magnetar_core.runtime.observe import Metrics
from magnetar_core.runtime.process.descriptors import descriptor_samples
from magnetar_core.runtime.process.loop_watch import loop_stall_samples
from magnetar_core.runtime.types import KIB, MagnetarError

log = logging.getLogger(__name__)

DASHBOARD: Final = "/dashboard"

# A cookie, a report with some thousand ledgers.
BODY_BYTES_MAX: Final = 256 * KIB

# A client sends such a body in milliseconds; one that does not would keep its place for ever.
_BODY_S: Final = 30.0

# Calls that read all records, at the same time: each holds 64 requests to the metadata store under way.
LONG_CALLS_MAX: Final = 4

# All calls at the same time. Each is a few requests to the metadata store.
CALLS_MAX: Final = 100

# Names in a path become nodes of the metadata store.
PARAMETER_CHARS_MAX: Final = 255

_RETRY_AFTER_S: Final = "1"
_OPENAPI: Final = "/openapi.json"
_METRICS: Final = "/metrics"
_EXPOSITION: Final = "text/plain; version=0.0.4; charset=utf-8"

# What is sent with everything: browsers guess no types, and no page of others shows this one in a frame.
_HEADERS: Final = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f/]")

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ManagementServer:
    """The applications of the interface. Used on the loop."""

    def __init__(
        self,
        subjects: Sequence[Subject],
        *,
        version: str,
        tokens: TokenFile | None,
        is_local: bool,
        dashboard: Path | None = None,
        overview: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """*is_local*: only this host can reach the listener. *dashboard*: the folder of the page's files. *overview*:
        what metrics are made of."""
        self.calls = tuple(call for subject in subjects for call in subject.calls())
        self._tokens = tokens
        self._is_local = is_local
        self._dashboard = dashboard
        self._overview = overview
        self._under_way = 0
        self._long_under_way = 0
        self.document: dict[str, Any] = document(self.calls, version=version, needs_token=tokens is not None)
        for call in self.calls:
            assert call.body is None or call.body.get("type") == "object", call.name

    def mounts(self) -> dict[str, web.Application]:
        """Prefix → application, to be mounted once."""
        applications = {PREFIX: self._application()}
        if self._dashboard is not None:
            applications[DASHBOARD] = _files_of(self._dashboard)
        return applications

    # -- routes

    def _application(self) -> web.Application:
        app = web.Application(middlewares=[_as_json])
        paths: dict[str, dict[str, Call]] = {}
        for call in self.calls:
            paths.setdefault(call.path, {})[call.method] = call
        for path, methods in paths.items():
            app.router.add_route("*", path, self._dispatcher(methods))
        app.router.add_route("*", _OPENAPI, self._openapi)
        if self._overview is not None:
            app.router.add_route("*", _METRICS, partial(self._metrics, self._overview))
        app.router.add_route("*", "/{anything:.*}", _no_such_call)
        return app

    def _dispatcher(self, methods: Mapping[str, Call]) -> _Handler:
        allowed = ", ".join(sorted({*methods, *(["HEAD"] if "GET" in methods else [])}))

        async def dispatch(request: web.Request) -> web.StreamResponse:
            call = methods.get("GET" if request.method == "HEAD" else request.method)
            if call is None:
                reason = f"{request.method} is no call of this path; it has {allowed}"
                return _json({"reason": reason}, 405, {"Allow": allowed})
            if self._under_way >= CALLS_MAX:
                return _problem(Refused(503, f"{CALLS_MAX} calls are under way; try again"))
            self._under_way += 1
            try:
                return await self._answer(request, call)
            finally:
                self._under_way -= 1

        return dispatch

    async def _openapi(self, request: web.Request) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return _json({"reason": "the document is read with GET"}, 405, {"Allow": "GET, HEAD"})
        return _json(self.document)

    async def _metrics(
        self, overview: Callable[[], Awaitable[Mapping[str, Any]]], request: web.Request
    ) -> web.StreamResponse:
        if request.method not in ("GET", "HEAD"):
            return _json({"reason": "metrics are read with GET"}, 405, {"Allow": "GET, HEAD"})
        try:
            self._caller(request)
            samples = tuple(recovery_samples(await overview()))
        except Exception as error:
            return _problem(error, f"{request.method} {request.rel_url.raw_path}")
        metrics = Metrics()
        metrics.add(lambda: samples)
        metrics.add(loop_stall_samples)
        metrics.add(descriptor_samples)
        return web.Response(body=metrics.exposition(), headers={**_HEADERS, "Content-Type": _EXPOSITION})

    # -- one call

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        who = request.remote or "unknown"
        try:
            caller = self._admit_caller(request, call)
            who = caller.name
            checked = await _checked_call(request, call, caller)
            answer = _json(await self._handle_call(call, checked), call.status)
        except Exception as error:
            answer = _problem(error, f"{request.method} {request.rel_url.raw_path}")
        if call.access is Access.WRITE:
            log.info("management: %s %s by %s: %d", request.method, request.rel_url.raw_path, who, answer.status)
        return answer

    async def _handle_call(self, call: Call, checked: CheckedCall) -> Any:
        if not call.is_long:
            return await call.handler(checked)
        if self._long_under_way >= LONG_CALLS_MAX:
            raise Refused(429, f"{LONG_CALLS_MAX} calls that read all records are under way; try again")
        self._long_under_way += 1
        try:
            return await call.handler(checked)
        finally:
            self._long_under_way -= 1

    def _admit_caller(self, request: web.Request, call: Call) -> Caller:
        """The caller, if the call is admitted (rule 1). Raises Refused."""
        caller = self._caller(request)
        if call.access is Access.READ:
            return caller
        if (reason := foreign_origin(request)) is not None:
            raise Refused(403, reason)
        if self._tokens is None and not self._is_local:
            raise Refused(
                403,
                "nothing is changed through an address that other hosts reach while no tokens are configured: set "
                f"{SETTING}, or listen on 127.0.0.1",
            )
        if self._tokens is None and not is_loopback(name_in(request.host)):
            raise Refused(403, f"Host {request.host[:200]!r} is not a loopback address, and no tokens are configured")
        if not caller.may_write:
            raise Refused(403, f"the token of {caller.name} may only read")
        return caller

    def _caller(self, request: web.Request) -> Caller:
        if self._tokens is None:
            return Caller(request.remote or "unknown", True)
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Refused(401, "send the header Authorization: Bearer <token>")
        caller = self._tokens.tokens().caller_of(token.strip())
        if caller is None:
            raise Refused(401, "the token is not known")
        return caller


# ------------------------------------------------------------------------------------------ what is asked


async def _checked_call(request: web.Request, call: Call, caller: Caller) -> CheckedCall:
    """The call, checked. Raises Refused."""
    for name, text in request.match_info.items():
        if not 0 < len(text) <= PARAMETER_CHARS_MAX or _CONTROL.search(text):
            raise Refused(400, f"{name} {text[:80]!r} has no name's form: 1 to {PARAMETER_CHARS_MAX} characters, no /")
    query: dict[str, str] = {}
    for name, text in request.query.items():
        if name not in call.query:
            names = ", ".join(call.query) or "none"
            raise Refused(400, f"the parameter {name[:80]!r} is not known; known are: {names}")
        if name in query:
            raise Refused(400, f"the parameter {name} is there twice")
        query[name] = text
    body = {} if call.body is None else await _body_of(request, call)
    return CheckedCall(caller, dict(request.match_info), query, body)


async def _body_of(request: web.Request, call: Call) -> Mapping[str, Any]:
    assert call.body is not None
    if (reason := unwanted_type(request)) is not None:
        raise Refused(415, reason)
    try:
        data = await BODIES.read(request, BODY_BYTES_MAX, body_s=_BODY_S)
    except BodyRefused as error:
        raise Refused(error.status, str(error)) from None
    try:
        body = parse_json(data)
    except ValueError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if (problem := problem_of(call.body, body)) is not None:
        raise Refused(400, problem)
    assert isinstance(body, dict)
    return body


# ------------------------------------------------------------------------------------------ answers


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=(json.dumps(value, indent=2) + "\n").encode(),
        status=status,
        content_type="application/json",
        headers={**_HEADERS, **(headers or {})},
    )


def _problem(error: Exception, what: str = "") -> web.Response:
    """The answer for an error of a handler, or of the checks before it (rule 3)."""
    match error:
        case Refused():
            return _refusal(error.status, str(error), error.facts)
        case UnknownBookie():
            return _refusal(404, str(error), {})
        case IllegalMove() | VersionConflict():
            return _refusal(409, str(error), {})
        case MetadataError():
            log.warning("management: %s: %s", what, error)
            return _refusal(503, str(error) or type(error).__name__, {})
        case MagnetarError():
            log.warning("management: %s: %s", what, error)
            return _refusal(500, str(error), {})
        case _:
            log.error("management: %s failed", what, exc_info=error)
            return _refusal(500, f"a defect of the server ({type(error).__name__}); its log has more", {})


def _refusal(status: int, reason: str, facts: Mapping[str, Any]) -> web.Response:
    headers: dict[str, str] = {}
    if status in (429, 503):
        headers["Retry-After"] = _RETRY_AFTER_S
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 413:
        headers["Connection"] = "close"  # the rest of the body is not read
    return _json({"reason": reason, **facts}, status, headers)


def json_refusal(_: web.Request, status: int, text: str) -> web.Response:
    """How the server in front refuses."""
    return _refusal(status, text, {})


@web.middleware
async def _as_json(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Also what the library refuses by itself, such as the bare prefix, is JSON."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        return _json({"reason": error.reason}, error.status)


async def _no_such_call(request: web.Request) -> web.StreamResponse:
    return _json({"reason": f"there is no such call; {PREFIX}{_OPENAPI} tells of those that there are"}, 404)


# ------------------------------------------------------------------------------------------ files


def _files_of(folder: Path) -> web.Application:
    """The page for people: `index.html` and what it loads."""

    @web.middleware
    async def with_slash(request: web.Request, handler: _Handler) -> web.StreamResponse:
        if request.path == DASHBOARD:  # what the page names is relative to it
            raise web.HTTPTemporaryRedirect(DASHBOARD + "/")
        return await handler(request)

    app = web.Application(middlewares=[with_slash])
    files = files_of(folder)
    for name, path in files.items():
        app.router.add_get(f"/{name}", serve_file(path))
    app.router.add_get("/", serve_file(files[INDEX]))
    return app


def root_application(mounts: Mapping[str, web.Application]) -> web.Application:
    """What a process without another HTTP serves: *mounts*, and `/heartbeat` for those who watch the process."""

    async def heartbeat(request: web.Request) -> web.Response:
        return web.Response(text="OK\n", headers=_HEADERS)

    async def page(request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(DASHBOARD + "/")

    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_get("/heartbeat", heartbeat)
    if DASHBOARD in mounts:
        app.router.add_get("/", page)
    for prefix, mounted in mounts.items():
        app.add_subapp(prefix, mounted)
    return app
