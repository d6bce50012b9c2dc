"""A limit for the HTTP requests of all clients together (`httpRequestsMaxPerSecond`).

Requests within the rate pass at once; the others are answered with 429 before anything else is done for them, as
Apache's RateLimitingFilter does. A second's worth may come at once after a pause.
"""

from typing import Any

from aiohttp import web

from magnetar_core.runtime.clock import Clock

BODY = "Too Many Requests"


def rate_limit_middleware(requests_per_s: float, clock: Clock) -> Any:
    """The middleware; a rate of 0 or less lets nothing pass."""
    tokens_max = max(requests_per_s, 1.0) if requests_per_s > 0 else 0.0
    tokens, seen_s = tokens_max, clock.monotonic()

    @web.middleware
    async def limit(request: web.Request, handler: Any) -> web.StreamResponse:
        nonlocal tokens, seen_s
        now_s = clock.monotonic()
        tokens, seen_s = min(tokens + (now_s - seen_s) * requests_per_s, tokens_max), now_s
        if tokens < 1:
            return web.Response(status=429, text=BODY)
        tokens -= 1
        answer: web.StreamResponse = await handler(request)
        return answer

    return limit
