"""A limit for the HTTP requests of all clients together (`httpRequestsMaxPerSecond`).

Requests within the rate pass at once; the others are answered with 429 before anything else is done for them, as
Apache's RateLimitingFilter does. A second's worth may come at once after a pause.
"""

from typing import Any

from aiohttp import web

from magnetar_core.runtime.clock import Clock

BODY = "Too Many Requests"


def limiting(requests_per_s: float, clock: Clock) -> Any:
    """The middleware; a rate of 0 or less lets nothing pass."""
    most = max(requests_per_s, 1.0) if requests_per_s > 0 else 0.0
    left, seen_s = most, clock.monotonic()

    @web.middleware
    async def limit(request: web.Request, handler: Any) -> web.StreamResponse:
        nonlocal left, seen_s
        now_s = clock.monotonic()
        left, seen_s = min(left + (now_s - seen_s) * requests_per_s, most), now_s
        if left < 1:
            return web.Response(status=429, text=BODY)
        left -= 1
        answer: web.StreamResponse = await handler(request)
        return answer

    return limit
