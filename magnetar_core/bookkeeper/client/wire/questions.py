"""A connection of the third protocol to one bookie, on which one question at a time is asked.

The client's other connections speak the second protocol, which has neither lists of entries nor waiting reads.
"""

import asyncio
from typing import cast

from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.tls.start_tls import connect
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame


class Questions(asyncio.Protocol):
    """Made by `connected`; `close` ends it."""

    def __init__(self, frame_bytes_max: int) -> None:
        self._splitter = FrameSplitter(frame_bytes_max)
        self._answer: asyncio.Future[memoryview] | None = None
        self._transport: asyncio.Transport | None = None
        self._ended: Exception | None = None

    @classmethod
    async def connected(cls, pool: ConnectionPool, bookie_id: str) -> "Questions":
        """Over TLS where the client's other connections are. Raises OSError, MetadataError, TimeoutError."""
        protocol = cls(pool.config.frame_bytes_max)
        async with asyncio.timeout(pool.config.connect_timeout_ms / 1000):
            host, port = await pool.directory.address_of(bookie_id)
            if pool.certificates is None:
                await asyncio.get_running_loop().create_connection(lambda: protocol, host, port)
            else:
                await connect(protocol, host, port, pool.certificates)
        return protocol

    async def ask(self, request: bytes) -> memoryview:
        """The whole frame of the answer. Raises ConnectionError, MalformedFrame. One that is cancelled ends the
        connection: what is answered later would be taken for the answer to the next question."""
        assert self._transport is not None
        assert self._answer is None, "one question at a time"
        if self._ended is not None:
            raise self._ended
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answer
        except asyncio.CancelledError:
            self.close()
            raise
        finally:
            self._answer = None

    @property
    def is_ended(self) -> bool:
        return self._ended is not None

    def close(self) -> None:
        self._end(ConnectionError("closed here"))
        if self._transport is not None:
            self._transport.abort()

    def _end(self, error: Exception) -> None:
        self._ended = self._ended or error
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._ended)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            frames = self._splitter.feed(data)
        except MalformedFrame as error:
            self._end(error)
            return
        for frame in frames:
            if self._answer is None or self._answer.done():
                self._end(MalformedFrame("an answer that was not asked for"))
                return
            # The chunk is the loop's; the answer is read in a later turn.
            self._answer.set_result(memoryview(bytes(frame)))

    def connection_lost(self, error: Exception | None) -> None:
        self._end(ConnectionError(str(error or "it closed the connection")))
