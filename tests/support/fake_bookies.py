"""Small bookies in this process: a dict behind a socket, protocol version 2, with faults on order. Of version 3 they
know the list of entries."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.codec_v2 import (
    ADD_ENTRY,
    BATCH_READ_ENTRY,
    FLAG_DO_FENCING,
    FLAG_RECOVERY_ADD,
    READ_ENTRY,
    V2Error,
    add_response,
    batch_read_response,
    parse_request,
    read_response,
)
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.runtime.clock import Clock, LoopClock
from magnetar_core.runtime.types import Buffer
from tests.support import bookie_requests


class FakeBookie:
    """Stores what it gets, answers at once. Change the public fields to make it misbehave."""

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.port = 0
        self.ledgers: dict[int, dict[int, bytes]] = {}
        self.fenced: set[int] = set()
        self.keys: dict[int, bytes] = {}
        self.connections: set[_Connection] = set()
        self.silent = False
        """Takes requests and answers nothing."""
        self.read_only = False
        """Takes no adds, but those of a recovery."""
        self.drip_bytes = 0
        """Answers leave in pieces of so many bytes, each in a later turn of the loop; 0: at once."""
        self.cut_bytes: int | None = None
        """So many bytes of the next answers leave, then the connection is closed."""
        self.knows_batches = True
        self.knows_lists = True
        """Lists its entries; False: takes the request and never answers, as Apache's DbLedgerStorage."""
        self.refuse: Callable[[int, int, int], int | None] = lambda opcode, ledger_id, entry_id: None
        """(opcode, ledger, entry) → error code, or None to do what is asked."""
        self.requests: list[tuple[int, int, int, int]] = []
        """(opcode, flags, ledger, entry) in the order of arrival."""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """As a kill: the port is closed and every connection reset. What was stored stays."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in tuple(self.connections):
            connection.transport.abort()
        await asyncio.sleep(0)

    def answer(self, frame: memoryview) -> list[Buffer]:
        if frame[0] == v3.FIRST_BYTE:
            return self._list(v3.parse_request(frame))
        opcode, _, flags, ledger_id, entry_id, key, extra = parse_request(frame)
        self.requests.append((opcode, flags, ledger_id, entry_id))
        if self.silent:
            return []
        rc = self.refuse(opcode, ledger_id, entry_id)
        if rc is None and key is not None and self.keys.setdefault(ledger_id, key) != key:
            rc = V2Error.EUA
        if opcode == ADD_ENTRY:
            if rc is None and ledger_id in self.fenced and not flags & FLAG_RECOVERY_ADD:
                rc = V2Error.EFENCED
            if rc is None and self.read_only and not flags & FLAG_RECOVERY_ADD:
                rc = V2Error.EREADONLY
            if rc is None:
                self.ledgers.setdefault(ledger_id, {})[entry_id] = extra
            return [add_response(rc or 0, ledger_id, entry_id)]
        if flags & FLAG_DO_FENCING and rc is None:
            self.fenced.add(ledger_id)
        stored = self.ledgers.get(ledger_id)
        if opcode == READ_ENTRY:
            data = None
            if rc is None:
                wanted = max(stored, default=-1) if stored and entry_id == -1 else entry_id
                data = stored.get(wanted) if stored is not None else None
                if data is None:
                    rc = V2Error.ENOENTRY if stored is not None else V2Error.ENOLEDGER
            if data is None:
                return [read_response(rc or 0, ledger_id, entry_id)]
            return [read_response(0, ledger_id, entry_id, len(data)), data]
        assert opcode == BATCH_READ_ENTRY
        if not self.knows_batches:
            raise MalformedFrame("opcode 7")
        request_id, max_count, max_bytes = extra
        run: list[bytes] = []
        size = 36
        while rc is None and stored is not None and (data := stored.get(entry_id + len(run))) is not None:
            size += len(data) + 4
            if run and (len(run) >= max_count > 0 or size > max_bytes):
                break
            run.append(data)
        if not run:
            rc = rc or (V2Error.ENOENTRY if stored is not None else V2Error.ENOLEDGER)
        return list(batch_read_response(rc or 0, ledger_id, entry_id, request_id, run))

    def _list(self, request: pb.Request) -> list[Buffer]:
        ledger_id = request.getListOfEntriesOfLedgerRequest.ledgerId
        self.requests.append((v3.GET_LIST_OF_ENTRIES, 0, ledger_id, -1))
        if self.silent or not self.knows_lists:
            return []
        stored = self.ledgers.get(ledger_id)
        rc = self.refuse(v3.GET_LIST_OF_ENTRIES, ledger_id, -1)
        if rc is None and stored is None:
            rc = V2Error.ENOLEDGER
        made = v3.response(v3.GET_LIST_OF_ENTRIES, request.header.txnId, v3.OF_V2[rc or 0])
        listed = made.getListOfEntriesOfLedgerResponse
        listed.status, listed.ledgerId = made.status, ledger_id
        if not rc and stored is not None:
            listed.availabilityOfEntriesOfLedger = bookie_requests.encode_availability(sorted(stored))
        return [v3.frame_of(made)]


class _Connection(asyncio.Protocol):
    def __init__(self, bookie: FakeBookie) -> None:
        self._bookie = bookie
        self._splitter = FrameSplitter()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass
        self.transport = transport
        self._bookie.connections.add(self)

    def data_received(self, data: bytes) -> None:
        out: list[Buffer] = []
        try:
            for frame in self._splitter.feed(data):
                out += self._bookie.answer(frame)
        except MalformedFrame:
            self.transport.abort()
            return
        if self._bookie.cut_bytes is not None:
            self.transport.write(b"".join(out)[: self._bookie.cut_bytes])
            self.transport.close()
        elif self._bookie.drip_bytes:
            self._drip(memoryview(b"".join(out)), self._bookie.drip_bytes)
        elif out:
            self.transport.writelines(out)

    def _drip(self, rest: memoryview, step: int) -> None:
        self.transport.write(rest[:step])
        if len(rest) > step:
            asyncio.get_running_loop().call_soon(self._drip, rest[step:], step)

    def connection_lost(self, error: Exception | None) -> None:
        self._bookie.connections.discard(self)


class FakeCluster:
    """Bookies, their registrations, and one metadata tree in memory."""

    def __init__(self, clock: Clock, store: MetadataStore | None = None) -> None:
        self.clock = clock
        self.store: MetadataStore = MemoryStore(clock) if store is None else store
        self.bookies: dict[str, FakeBookie] = {}
        self._registrations: dict[str, BookieRegistration] = {}
        self._clients: list[BookKeeper] = []

    async def start(self, count: int) -> None:
        await initialise_cluster(self.store)
        for i in range(count):
            await self.add_bookie(f"bookie-{i}")

    def _session(self) -> MetadataStore:
        return self.store.session() if isinstance(self.store, MemoryStore) else self.store

    async def add_bookie(self, bookie_id: str) -> FakeBookie:
        bookie = self.bookies[bookie_id] = FakeBookie(bookie_id)
        await self.revive(bookie_id)
        return bookie

    async def revive(self, bookie_id: str) -> None:
        bookie = self.bookies[bookie_id]
        await bookie.start()
        registration = BookieRegistration(self._session(), "/ledgers", bookie_id, self.clock)
        await registration.register(BookieServiceInfo((bookie_endpoint("127.0.0.1", bookie.port),)))
        self._registrations[bookie_id] = registration

    async def set_read_only(self, bookie_id: str, read_only: bool) -> None:
        self.bookies[bookie_id].read_only = read_only
        await self._registrations[bookie_id].set_read_only(read_only)

    async def kill(self, bookie_id: str, *, unregister: bool = True) -> None:
        await self.bookies[bookie_id].stop()
        if unregister:
            await self._registrations.pop(bookie_id).unregister()

    async def client(self, config: ClientConfig | None = None) -> BookKeeper:
        client = BookKeeper(self._session(), self.clock, config)
        await client.open()
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        for bookie in self.bookies.values():
            await bookie.stop()


@asynccontextmanager
async def fake_cluster(count: int, store: MetadataStore | None = None) -> AsyncIterator[FakeCluster]:
    cluster = FakeCluster(LoopClock(), store)
    try:
        await cluster.start(count)
        yield cluster
    finally:
        await cluster.stop()
