"""A bookie in this process, over a disk and a metadata store in memory, and a client that speaks frames."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.storage.index import Index, MemoryIndex
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.clock import Clock, LoopClock, Timer
from tests.support.bookie_disks import KEY

CONFIG = BookieConfig(
    port=0,
    listen_address="127.0.0.1",
    bookie_id="bookie-1",
    journal_directories=("/bookie/storage/journal",),
    ledger_directories=("/bookie/ledgers",),
    journal_preallocation_mib=0,
    write_cache_mib=8,
    read_cache_mib=1,
    reserve_mib=0,
    stop_wait_ms=0,
)


class HurriedClock(LoopClock):
    """Timers run twenty times as fast, so that recorded waits do not make tests wait."""

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return super().call_later(delay_s / 20, callback)


class BookieMachines:
    """The parts of a cluster that outlive its bookies: disks, indexes, the metadata store."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or LoopClock()
        self.store = MemoryStore(self.clock)
        self.files = MemoryFiles()
        self.files.make_directories("/")
        self.indexes: dict[str, MemoryIndex] = {}
        self.failures: list[BaseException] = []

    def open_index(self, directory: str, cache_bytes: int) -> Index:
        return self.indexes.setdefault(directory, MemoryIndex())

    def bookie(self, config: BookieConfig = CONFIG, **changes: Any) -> Bookie:
        return Bookie(
            replace(config, **changes),
            self.store,
            self.clock,
            self.files,
            on_failure=self.failures.append,
            open_index=self.open_index,
        )

    @asynccontextmanager
    async def serving(self, config: BookieConfig = CONFIG, **changes: Any) -> AsyncIterator[Bookie]:
        """A bookie that is stopped at the end."""
        await initialise_cluster(self.store)
        bookie = self.bookie(config, **changes)
        await bookie.start()
        try:
            yield bookie
        finally:
            await bookie.stop()


class Wire:
    """A connection to a bookie. `frames` are the answers that have come, without their length words."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._splitter = FrameSplitter()
        self.frames: list[bytes] = []
        self._taken = 0
        self.is_closed = False

    @classmethod
    async def connect(cls, bookie: Bookie) -> "Wire":
        return cls(*await asyncio.open_connection(*bookie.address))

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def until(self, count: int, timeout_s: float = 10.0) -> None:
        """Wait until *count* answers have come, or the connection was closed."""
        async with asyncio.timeout(timeout_s):
            while len(self.frames) < count and not self.is_closed:
                try:
                    data = await self._reader.read(65536)
                except ConnectionError:
                    data = b""
                self.is_closed = not data
                self.frames += [bytes(frame) for frame in self._splitter.feed(data)]

    async def closed(self) -> bool:
        """Wait for the end of the connection."""
        await self.until(2**62)
        return self.is_closed

    async def next(self) -> bytes:
        """The next answer."""
        await self.until(self._taken + 1)
        assert len(self.frames) > self._taken, "the connection was closed"
        self._taken += 1
        return self.frames[self._taken - 1]

    async def ask(self, frame: bytes) -> v2.V2Response:
        """Send a frame of the second protocol and wait for its answer."""
        self.send(frame)
        return v2.parse_response(memoryview(await self.next()))

    async def ask_v3(self, frame: bytes) -> pb.Response:
        self.send(frame)
        return v3.parse_response(await self.next())

    async def add(self, entry: bytes, flags: int = 0, key: bytes = KEY) -> int:
        """Add an entry; return what it was answered with."""
        return (await self.ask(v2.add_request_head(flags, key, len(entry)) + entry))[1]

    async def read(self, ledger_id: int, entry_id: int) -> bytes | int:
        """The entry, or the refusal."""
        _, rc, _, _, body, _ = await self.ask(v2.read_request(ledger_id, entry_id))
        if rc:
            return rc
        assert isinstance(body, memoryview)
        return bytes(body)

    def close(self) -> None:
        self.writer.close()
