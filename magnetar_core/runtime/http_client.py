"""One question over HTTP: what all our commands and test fixtures ask with. Blocks; standard library only.

A proxy that the environment names (http_proxy) is for others: who listens on this machine is asked directly.
"""

import functools
import http.client
import ipaddress
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

# An answer that is longer is not one of ours: the metrics of ten thousand topics are some 50 MiB.
ANSWER_BYTES_MAX: Final = 256 << 20
_PIECE_BYTES: Final = 1 << 20


class Answer(NamedTuple):
    """What a server said, refusals and redirects included."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    reason: str


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """urllib drops the body and the method of a redirected PUT; who wants to follow asks again."""

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
) -> Answer:
    """Send *body*, which is JSON, and return the answer. *timeout_s* bounds each wait, *is_late* says when to give up.

    Raises OSError with a reason for people, also for what listens and does not speak HTTP, and ValueError for no URL.
    """
    headers = {} if method == "GET" else {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    try:
        try:
            answer = _opener_of(request.host).open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            answer = error
        data = bytearray()
        with answer:
            while piece := answer.read1(_PIECE_BYTES):
                data += piece
                if len(data) > max_bytes or is_late():
                    raise OSError(f"the answer of {url} does not come to an end")
            return Answer(answer.status, bytes(data), answer.headers, answer.reason or "")
    except http.client.HTTPException as error:
        raise OSError(f"what listens there does not speak HTTP ({type(error).__name__})") from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None


def is_loopback(host: str) -> bool:
    """Whether *host*, with or without a port, is this machine."""
    name = urllib.parse.urlsplit(f"//{host}").hostname or ""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _opener_of(host: str) -> urllib.request.OpenerDirector:
    if is_loopback(host):
        return _direct()
    return urllib.request.build_opener(_NoRedirect)  # looks at the environment as it is now


@functools.cache
def _direct() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)
