"""Reads the body of an HTTP request, within limits of size, memory and time.

Rules:

1. A body that is announced as too large (`Content-Length`) is refused before a byte of it is read.
2. All bodies that are being read by a process have `BODIES_BYTES_MAX` together. A client whose body would exceed
   that is asked to come again; but if another body has been under way for `SLOW_S`, that one's connection is ended
   instead: a client that sends slowly on purpose keeps nobody out.
3. A body comes within `BODY_S`, or is refused.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import aiohttp
from aiohttp import web

from magnetar_core.runtime.types import MIB

log = logging.getLogger(__name__)

# Bodies of all clients while they are read. A schema is 4 MiB at most, anything else some KiB.
BODIES_BYTES_MAX: Final = 64 * MIB

# 4 MiB in this time are 70 KB a second.
BODY_S: Final = 60.0

# An ordinary body is there in a part of a second.
SLOW_S: Final = 5.0


_BODY: Final = web.RequestKey("body", bytes)
"""What was read already."""


class BodyRefused(Exception):
    """The body is not taken: the status of the answer, and why."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Reading:
    """One body under way."""

    __slots__ = ("began_s", "bytes", "request")

    def __init__(self, request: web.Request, began_s: float) -> None:
        self.request = request
        self.began_s = began_s
        self.bytes = 0


class Bodies:
    """The bodies that are being read, the oldest first."""

    def __init__(self, bytes_max: int = BODIES_BYTES_MAX, *, now_s: Callable[[], float] | None = None) -> None:
        """*now_s*: the time by which bodies are slow; that of the loop where nothing is given."""
        self._bytes_max = bytes_max
        self._now_s = now_s or (lambda: asyncio.get_running_loop().time())
        self._reading: dict[_Reading, None] = {}
        self.bytes = 0
        """Bytes that are held by all of them."""

    async def read(self, request: web.Request, bytes_max: int, *, body_s: float = BODY_S) -> bytes:
        """The body of *request*, empty if it has none. Raises BodyRefused."""
        known: bytes | None = request.get(_BODY)
        if known is not None:
            return known
        if not request.can_read_body:
            return b""
        if request.content_length is not None and request.content_length > bytes_max:  # rule 1
            raise BodyRefused(413, f"the body has {request.content_length} bytes, at most {bytes_max} are taken")
        reading = _Reading(request, self._now_s())
        self._reading[reading] = None
        data = bytearray()
        try:
            async with asyncio.timeout(body_s):
                async for chunk in request.content.iter_any():
                    data += chunk
                    if len(data) > bytes_max:
                        raise BodyRefused(413, f"the body has more than {bytes_max} bytes")
                    self._count(reading, len(chunk))
        except TimeoutError:
            raise BodyRefused(400, f"the body did not come within {body_s:.0f} s") from None
        except (OSError, web.RequestPayloadError, aiohttp.ClientError) as error:
            raise BodyRefused(400, f"the body broke off: {error}") from None
        finally:
            self._reading.pop(reading, None)
            self.bytes -= reading.bytes
            reading.bytes = 0
            assert self.bytes >= 0, "more bytes of bodies were given back than were held"
        request[_BODY] = body = bytes(data)
        return body

    def _count(self, reading: _Reading, size: int) -> None:
        """Add *size* to what is held. Raises BodyRefused (rule 2)."""
        reading.bytes += size
        self.bytes += size
        while self.bytes > self._bytes_max:
            oldest = next(iter(self._reading), reading)
            age_s = self._now_s() - oldest.began_s
            if oldest is reading or age_s < SLOW_S:
                raise BodyRefused(503, f"bodies of {self._bytes_max} bytes are being read; try again")
            log.warning("%s is disconnected: its body has been under way for %.0f s", oldest.request.remote, age_s)
            del self._reading[oldest]
            self.bytes -= oldest.bytes
            oldest.bytes = 0
            if oldest.request.transport is not None:
                oldest.request.transport.abort()


BODIES: Final = Bodies()
"""The bodies of this process."""
