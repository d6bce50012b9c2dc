"""Each request is authenticated before anything else is decided about it; its caller is kept on the request.

Open to everybody: `/status.html`, by which load balancers see that the broker lives, and `/metrics` unless
`authenticateMetricsEndpoint` is on, as with Apache's brokers; and the files of the page for people, which hold no data.
Calls of that page are refused without `Basic` in the challenge: the browser would open a dialogue of its own instead of
the page's form. The answer names the methods that the broker takes.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web

from broker.admin.http import CALLER, compact_json
from broker.admin.page.files import OPEN_PATHS, PREFIX
from broker.errors import NotAuthenticated
from broker.security.doors import Doors
from broker.settings.config import BrokerConfig
from broker.settings.groups.authentication import PROVIDERS
from magnetar_core.security.authentication import BASIC
from magnetar_core.security.tls.certificates import common_name

# Apache's names of headers: the method by which a client authenticates; the principal for which a proxy asks.
METHOD_HEADER: Final = "X-Pulsar-Auth-Method-Name"
ORIGINAL_HEADER: Final = "X-Original-Principal"

_OPEN: Final = frozenset({"/status.html"}) | OPEN_PATHS
_METRICS: Final = frozenset({"/metrics", "/metrics/"})

# What Jetty answers in Apache's brokers.
_MESSAGE: Final = "Authentication required"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def authenticating(doors: Doors, config: BrokerConfig) -> Any:
    """The middleware that authenticates requests with *doors*."""
    is_open = _OPEN if config.authenticate_metrics else _OPEN | _METRICS
    methods = sorted({PROVIDERS[name] for name in config.authentication_providers})
    challenge = "Basic" if BASIC in methods else "Bearer"

    @web.middleware
    async def authenticate(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in is_open:
            return await handler(request)
        transport = request.transport
        certificate = None if transport is None else transport.get_extra_info("peercert")
        try:
            admitted = await doors.admit_request(
                request.headers.get("Authorization"),
                request.headers.get(METHOD_HEADER),
                common_name(certificate),
                request.remote or "a client",
                original_principal=request.headers.get(ORIGINAL_HEADER, ""),
            )
        except NotAuthenticated:
            if request.path.startswith(PREFIX):
                return _refusal(request, "Bearer", methods=methods)
            return _refusal(request, challenge)
        request[CALLER] = admitted.caller
        return await handler(request)

    return authenticate


def _refusal(request: web.Request, challenge: str, **more: list[str]) -> web.Response:
    answer = {"url": request.path, "status": "401", "message": _MESSAGE, "reason": f"HTTP 401 {_MESSAGE}", **more}
    return web.Response(
        body=compact_json(answer),
        status=401,
        content_type="application/json",
        headers={"WWW-Authenticate": f'{challenge} realm="magnetar"'},
    )
