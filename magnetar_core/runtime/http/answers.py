"""Large answers to HTTP requests lie in memory until their clients have read them.

Rules:

1. All answers of a process have `ANSWERS_BYTES_MAX` together; one goes out in any case, however large it is. A client
   whose answer would exceed that is asked to come again; but if another answer has been under way for `SLOW_S`, that
   one's connection is ended instead: a client that does not read on purpose keeps nobody out.
2. Answers below `COUNTED_BYTES` are not counted: connections are limited.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from aiohttp import web

from magnetar_core.runtime.types import KIB, MIB

log = logging.getLogger(__name__)

# Statistics of tens of thousands of topics, and metrics, have some ten megabytes.
ANSWERS_BYTES_MAX: Final = 256 * MIB

# An ordinary socket takes so much at once.
COUNTED_BYTES: Final = 64 * KIB

# An ordinary client reads ten megabytes in a part of a second.
SLOW_S: Final = 5.0


class _Going:
    """One answer under way."""

    __slots__ = ("began_s", "bytes", "request")

    def __init__(self, request: web.Request, began_s: float, size_bytes: int) -> None:
        self.request = request
        self.began_s = began_s
        self.bytes = size_bytes


class Answers:
    """The large answers that clients have not read yet, the oldest first."""

    def __init__(self, bytes_max: int = ANSWERS_BYTES_MAX, *, now_s: Callable[[], float] | None = None) -> None:
        """*now_s*: the time by which answers are slow; that of the loop where nothing is given."""
        self._bytes_max = bytes_max
        self._now_s = now_s or (lambda: asyncio.get_running_loop().time())
        self._going: dict[_Going, None] = {}
        self.bytes = 0
        """Bytes of all of them."""

    async def send(self, request: web.Request, answer: web.StreamResponse) -> str | None:
        """Send *answer*, if it is a large one, until its client has read about all of it. Returns why it is refused."""
        size_bytes = len(answer.body) if isinstance(answer, web.Response) and isinstance(answer.body, bytes) else 0
        if size_bytes < COUNTED_BYTES or request.method == "HEAD":
            return None
        now_s = self._now_s()
        while self._going and self.bytes + size_bytes > self._bytes_max:
            oldest = next(iter(self._going))
            age_s = now_s - oldest.began_s
            if age_s < SLOW_S:
                return f"answers of {self.bytes} bytes wait for their clients to read them; try again"
            log.warning("%s is disconnected: it has not read an answer for %.0f s", oldest.request.remote, age_s)
            self._forget(oldest)
            if oldest.request.transport is not None:
                oldest.request.transport.abort()
        going = _Going(request, now_s, size_bytes)
        self._going[going] = None
        self.bytes += size_bytes
        try:
            with contextlib.suppress(ConnectionError):  # the library meets it again, and knows what to do
                await answer.prepare(request)
                await answer.write_eof()
        finally:
            if going in self._going:
                self._forget(going)
        return None

    def _forget(self, going: _Going) -> None:
        del self._going[going]
        self.bytes -= going.bytes
        assert self._going or not self.bytes, "bytes are counted of answers that have ended"


ANSWERS: Final = Answers()
"""The answers of this process."""
