"""The client for threads without an event loop: Spark tasks, tools.

Each client has a private event loop, which runs in the calling thread, and only while a call is under way. There is no
background thread: nothing happens between calls, and a process that has not called yet can fork without harm.
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.metadata.ledgers import LedgerMetadata
from magnetar_core.bookkeeper.metadata.store import MetadataStore
from magnetar_core.bookkeeper.metadata.url import open_store
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from magnetar_core.runtime.clock import LoopClock

T = TypeVar("T")


class _Runner:
    """Runs coroutines on a private loop. Calls from several threads run one after the other."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._call_lock = threading.Lock()
        self._closed = False

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._call_lock:
            if self._closed:
                work.close()
                raise RuntimeError("the blocking client was closed")
            return self._loop.run_until_complete(work)

    def close(self) -> None:
        with self._call_lock:
            if not self._closed:
                self._closed = True
                self._loop.run_until_complete(self._loop.shutdown_default_executor())
                self._loop.close()


class BlockingReadHandle:
    """A ledger that is read; see LedgerReadHandle for what each method means."""

    def __init__(self, handle: LedgerReadHandle, runner: _Runner) -> None:
        self._handle = handle
        self._runner = runner

    @property
    def ledger_id(self) -> int:
        return self._handle.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._handle.metadata

    @property
    def last_add_confirmed(self) -> int:
        return self._handle.last_add_confirmed

    @property
    def is_closed(self) -> bool:
        return self._handle.is_closed

    @property
    def length(self) -> int:
        return self._handle.length

    def read(self, first: int, last: int) -> list[StoredEntry]:
        return self._runner.run(self._handle.read(first, last))

    def read_unconfirmed(self, first: int, last: int) -> list[StoredEntry]:
        return self._runner.run(self._handle.read_unconfirmed(first, last))

    def read_batch(self, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        return self._runner.run(self._handle.read_batch(first, max_count, max_bytes))

    def read_batches(self, firsts: Sequence[int], max_count: int, max_bytes: int) -> list[list[StoredEntry]]:
        """One `read_batch` for each of *firsts*, all at the same time."""

        async def all_of_them() -> list[list[StoredEntry]]:
            batches = (self._handle.read_batch(first, max_count, max_bytes) for first in firsts)
            return await asyncio.gather(*batches)

        return self._runner.run(all_of_them())

    def read_last_confirmed(self) -> int:
        return self._runner.run(self._handle.read_last_confirmed())

    def last_recoverable_entry(self) -> int:
        return self._runner.run(self._handle.last_recoverable_entry())

    def close(self) -> None:
        self._runner.run(self._handle.close())


class BlockingBookKeeper:
    """A client whose methods block. Made by `open`; also a context manager."""

    def __init__(self, store: MetadataStore, bookkeeper: BookKeeper, runner: _Runner) -> None:
        self._store = store
        self._bookkeeper = bookkeeper
        self._runner = runner

    @classmethod
    def open(
        cls,
        metadata_url: str,
        config: ClientConfig | None = None,
        *,
        root: str = "/ledgers",
        session_timeout_s: float = 30.0,
    ) -> "BlockingBookKeeper":
        """Connect to the cluster whose metadata is at *metadata_url*. A `rocksdb:` directory is opened read-only."""
        runner = _Runner()

        async def connect() -> tuple[MetadataStore, BookKeeper]:
            clock = LoopClock()
            store = await open_store(metadata_url, clock, session_timeout_s=session_timeout_s, read_only=True)
            bookkeeper = BookKeeper(store, clock, config, root=root)
            try:
                await bookkeeper.open()
            except BaseException:
                await store.close()
                raise
            return store, bookkeeper

        try:
            store, bookkeeper = runner.run(connect())
        except BaseException:
            runner.close()
            raise
        return cls(store, bookkeeper, runner)

    def open_ledger(self, ledger_id: int, *, password: bytes = b"") -> BlockingReadHandle:
        """Open without recovery: the writer of an open ledger is left alone."""
        opened = self._bookkeeper.open_ledger(ledger_id, password=password, recovery=False)
        return BlockingReadHandle(self._runner.run(opened), self._runner)

    def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self._runner.run(self._bookkeeper.read_metadata(ledger_id))

    @property
    def metadata_store(self) -> MetadataStore:
        """The store that this client reads. Its coroutines are run with `run`."""
        return self._store

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on this client's loop."""
        return self._runner.run(work)

    def close(self) -> None:
        async def disconnect() -> None:
            await self._bookkeeper.close()
            await self._store.close()

        self._runner.run(disconnect())
        self._runner.close()

    def __enter__(self) -> "BlockingBookKeeper":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
