"""One HTTP request, for all our commands and test fixtures. Blocks; standard library only.

A proxy from the environment (http_proxy) is used for other machines only: servers on this machine are asked directly.
"""

import functools
import http.client
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.http import hosts as http_hosts

# Longer answers do not come from our servers: the metrics of ten thousand topics are some 50 MiB.
ANSWER_BYTES_MAX: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20


ANSWERED: Final[ContextVar[str]] = ContextVar("answered", default="")
"""The URL that has answered the running command last."""


class Answer(NamedTuple):
    """A server's answer; refusals and redirects are answers, too."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    reason: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: urllib would drop the method and the body of a redirected PUT. The caller may ask again."""

    def redirect_request(self, *_: Any) -> None:
        return None


def ask(
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    timeout_s: float,
    max_bytes: int = ANSWER_BYTES_MAX,
    is_late: Callable[[], bool] = lambda: False,
    headers: Mapping[str, str] | None = None,
    context: ssl.SSLContext | None = None,
) -> Answer:
    """Send *body*, which is JSON, and return the answer. *timeout_s* bounds each wait; once *is_late*
    returns True, the request is given up. *headers* are added; *context* is for HTTPS.

    Raises OSError with a reason for people, also if the other side does not speak HTTP (SSLError: nor TLS, or with a
    certificate that is not trusted); ValueError if it is not a URL.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme.lower() not in ("http", "https"):
        raise ValueError(f"{url} is neither http nor https")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"what stands behind {parts.hostname}: in {url} is no port (0 to 65535)") from None
    sent = {**({} if method == "GET" else {"Content-Type": "application/json"}), **(headers or {})}
    request = urllib.request.Request(url, data=body, method=method, headers=sent)
    try:
        try:
            answer = _opener_of(request.host, context).open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        data = bytearray()
        with answer:
            while piece := answer.read1(_PIECE_BYTES):
                data += piece
                if len(data) > max_bytes or is_late():
                    raise OSError(f"the answer of {url} does not come to an end")
            ANSWERED.set(url)
            return Answer(answer.status, bytes(data), answer.headers, answer.reason or "")
    except http.client.HTTPException as error:
        raise OSError(f"what listens there does not speak HTTP ({type(error).__name__})") from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ssl.SSLError):
            raise error.reason from None
        raise OSError(str(error.reason)) from None


def is_loopback(host: str) -> bool:
    """Whether *host*, with or without a port, is this machine."""
    return http_hosts.is_loopback(http_hosts.name_in(host))


def _opener_of(host: str, context: ssl.SSLContext | None) -> urllib.request.OpenerDirector:
    if context is not None:
        direct = [urllib.request.ProxyHandler({})] if is_loopback(host) else []
        return urllib.request.build_opener(*direct, urllib.request.HTTPSHandler(context=context), _NoRedirect)
    if is_loopback(host):
        return _opener_without_proxy()
    return urllib.request.build_opener(_NoRedirect)  # it reads the environment now


@functools.cache
def _opener_without_proxy() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
