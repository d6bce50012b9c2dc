"""Requests of calls that have one, and the first of the others: read after it is known who calls, and so many at once.

The library reads a request before it calls a handler of such a call, whoever sends it and however slowly. So they are
served here as streams of one message: on the wire it is the same.

Rules:

1. Who is not authenticated has no request read, except for health, of which load balancers ask. Of these
   `STRANGERS_AT_ONCE` are read; one more ends the oldest that has been under way for `SLOW_S`, or is refused.
2. Of each role (each connection, where nobody is authenticated) `AT_ONCE` are read; the others wait, unread. So are
   the first requests of streams, which say what they are about: nobody has asked yet whether their client may do that.
3. A request comes within `REQUEST_S`, or its call ends.
4. Later requests of streams come at any time, and each may be as large: the library keeps what has come of one, and
   does not tell how much that is. So the streams are counted, before anything of them is read: of each role (each
   connection, where nobody is authenticated) `STREAMS_OF_ROLE_MAX` are open, and of all of them `STREAMS_MAX`; then
   each may have `STREAMS_LEFT`.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import grpc

from broker.grpc.status import Refused, Status

# Each may have the size of the largest message.
AT_ONCE: Final = 16
STRANGERS_AT_ONCE: Final = 16

# Publish, Consume and WatchTopics calls: a client has one for each partition that it reads or writes, and one for a
# pattern. One consumer may have 10,000 topics; its pattern, and producers beside it, have room, too.
STREAMS_OF_ROLE_MAX: Final = 10_100
STREAMS_MAX: Final = 2 * STREAMS_OF_ROLE_MAX
STREAMS_LEFT: Final = 100

REQUEST_S: Final = 10.0
SLOW_S: Final = 0.2


class Requests:
    """The requests that are being read at the port of one broker."""

    def __init__(self) -> None:
        self._slots: dict[Hashable, tuple[asyncio.Semaphore, list[Any]]] = {}
        self._strangers: dict[asyncio.Timeout, float] = {}
        self._streams = Counter[Hashable]()
        self._streams_open = 0

    async def of_role(self, call: Any, source: Hashable) -> Any:
        """The request of *call*, which *source* sends (rule 2). Raises Refused."""
        async with self._slot(source):
            return await _read(call, asyncio.timeout(REQUEST_S))

    async def of_stranger(self, call: Any) -> Any:
        """The request of a call of anybody (rule 1). Raises Refused."""
        now_s = asyncio.get_running_loop().time()
        if len(self._strangers) >= STRANGERS_AT_ONCE:
            oldest, began_s = next(iter(self._strangers.items()))
            if now_s - began_s < SLOW_S:
                raise Refused(Status.RESOURCE_EXHAUSTED, "too many such calls are being read; try again")
            del self._strangers[oldest]
            oldest.reschedule(now_s)
        limit = asyncio.timeout(REQUEST_S)
        self._strangers[limit] = now_s
        try:
            return await _read(call, limit)
        finally:
            self._strangers.pop(limit, None)

    @contextmanager
    def stream(self, source: Hashable) -> Iterator[None]:
        """One more stream of *source* is open (rule 4). Raises Refused."""
        streams_max = STREAMS_OF_ROLE_MAX if self._streams_open < STREAMS_MAX else STREAMS_LEFT
        if self._streams[source] >= streams_max:
            raise Refused(
                Status.RESOURCE_EXHAUSTED,
                f"{self._streams[source]} Publish, Consume and WatchTopics calls of this client are open here, and "
                f"{self._streams_open} in all; end some of them, or use fewer partitions",
            )
        self._streams[source] += 1
        self._streams_open += 1
        try:
            yield
        finally:
            self._streams_open -= 1
            self._streams[source] -= 1
            if not self._streams[source]:
                del self._streams[source]

    @asynccontextmanager
    async def _slot(self, source: Hashable) -> AsyncIterator[None]:
        """Wait until one of the calls of *source* that may be served at the same time is free."""
        slots, users = self._slots.setdefault(source, (asyncio.Semaphore(AT_ONCE), []))
        users.append(None)
        try:
            async with slots:
                yield
        finally:
            users.pop()
            if not users:
                del self._slots[source]


async def _read(call: Any, limit: asyncio.Timeout) -> Any:
    """The one request of a call. Raises Refused: it does not come in time, or there is none."""
    try:
        async with limit:
            request = await call.read()
    except TimeoutError:
        if not limit.expired():
            raise
        raise Refused(Status.DEADLINE_EXCEEDED, "the request of this call does not come; begin it anew") from None
    if request is grpc.aio.EOF:
        raise Refused(Status.INVALID_ARGUMENT, "this call needs a request")
    return request
