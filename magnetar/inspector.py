"""A look at a cluster from outside: its metadata, its bookies, the copies of entries. Nothing is changed or fenced."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.connection import ConnectionPool
from magnetar.bookkeeper.client.errors import BookieUnavailable, BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar.bookkeeper.metadata.bookies import BookieDirectory
from magnetar.bookkeeper.metadata.ledger_store import LedgerStore, check_layout
from magnetar.bookkeeper.metadata.ledgers import LedgerMetadata
from magnetar.bookkeeper.metadata.store import MetadataStore
from magnetar.bookkeeper.metadata.url import open_store, split_service_uri
from magnetar.bookkeeper.tls_files import TlsFiles, directory_files
from magnetar.bookkeeper.wire.entry import DigestMismatch, EntryCodec, StoredEntry
from magnetar.runtime.clock import Clock
from magnetar.runtime.daemon import new_clock

# Questions to the metadata store under way at once.
CONCURRENT_MAX: Final = 64

READ_TIMEOUT_S: Final = 5.0
CONNECT_TIMEOUT_MS: Final = 3_000
SESSION_S: Final = 10.0
LAST_ENTRY: Final = -1


class Copy(NamedTuple):
    """What one bookie has of an entry."""

    bookie_id: str
    verdict: str
    """good, damaged, missing, unreachable, or what the bookie answered"""
    detail: str
    stored: StoredEntry | None


class BookieFacts(NamedTuple):
    """One bookie of a cluster."""

    bookie_id: str
    state: str
    """writable, read-only, or away: it is known by its cookie only"""
    address: str
    http: str


class Inspector:
    """Reads from a cluster. Made by `inspecting`."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, tls: TlsFiles | None = None) -> None:
        """With *tls* bookies are asked over TLS only. Raises ConfigurationError."""
        self.store = store
        self.root = root
        self.clock = clock
        self.tls = tls
        self.ledgers = LedgerStore(store, root)
        self.directory = BookieDirectory(store, root, clock)
        self._pool = ConnectionPool(
            self.directory,
            clock,
            ClientConfig(timeout_s=READ_TIMEOUT_S, connect_timeout_ms=CONNECT_TIMEOUT_MS, tls=tls),
        )

    async def start(self) -> None:
        """Raises MetadataError."""
        await check_layout(self.store, self.root)
        await self.directory.start()

    async def close(self) -> None:
        await self._pool.close()
        await self.directory.stop()

    async def ledger_ids(self) -> list[int]:
        """All ledgers, rising. Raises MetadataError."""
        return sorted([ledger_id async for ledger_id in self.ledgers.list()])

    async def metadata_of(self, ledger_ids: list[int]) -> dict[int, LedgerMetadata]:
        """Of those that are (still) there. Raises MetadataError."""
        from magnetar.bookkeeper.metadata.store import NoNode

        found: dict[int, LedgerMetadata] = {}
        limit = asyncio.Semaphore(CONCURRENT_MAX)

        async def read(ledger_id: int) -> None:
            async with limit:
                try:
                    found[ledger_id] = (await self.ledgers.read(ledger_id)).metadata
                except NoNode:
                    return

        await asyncio.gather(*map(read, ledger_ids))
        return dict(sorted(found.items()))

    async def bookies(self) -> list[BookieFacts]:
        """All that are registered or have a cookie, by name. Raises MetadataError."""
        known = {
            *await self.store.children(f"{self.root}/cookies"), *self.directory.writable, *self.directory.read_only
        }  # fmt: skip
        found = []
        for bookie_id in sorted(known):
            if bookie_id not in self.directory.available:
                found.append(BookieFacts(bookie_id, "away", "", ""))
                continue
            info = await self.directory.info_of(bookie_id)
            http = next((one for one in info.endpoints if one.protocol == "http"), None)
            rpc = info.rpc
            found.append(
                BookieFacts(
                    bookie_id,
                    "read-only" if bookie_id in self.directory.read_only else "writable",
                    "" if rpc is None else f"{rpc.host}:{rpc.port}",
                    "" if http is None else f"http://{http.host}:{http.port}",
                )
            )
        return found

    async def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> tuple[int, list[Copy]]:
        """The last entry that any bookie of an open ledger has (that of the metadata once it is closed), and who could
        not be asked."""
        if metadata.is_closed:
            return metadata.last_entry_id, []
        copies = await asyncio.gather(
            *(self._copy(one, ledger_id, LAST_ENTRY, metadata) for one in sorted(set(metadata.last_segment.ensemble)))
        )
        last = max((copy.stored.entry_id for copy in copies if copy.stored is not None), default=-1)
        return last, [copy for copy in copies if copy.verdict not in ("good", "missing")]

    async def copies(self, ledger_id: int, entry_id: int, metadata: LedgerMetadata) -> list[Copy]:
        """What each bookie of the entry's write set has."""
        ensemble = metadata.ensemble_for(entry_id)
        members = [ensemble[(entry_id + at) % len(ensemble)] for at in range(metadata.write_quorum)]
        return list(await asyncio.gather(*(self._copy(one, ledger_id, entry_id, metadata) for one in members)))

    async def _copy(self, bookie_id: str, ledger_id: int, entry_id: int, metadata: LedgerMetadata) -> Copy:
        try:
            data = await self._pool.get(bookie_id, ledger_id).read(ledger_id, entry_id)
            codec = EntryCodec(metadata.digest_type, metadata.password)
            stored = codec.open(bytes(data), ledger_id, None if entry_id == LAST_ENTRY else entry_id)
        except (NoSuchEntry, NoSuchLedger) as error:
            return Copy(bookie_id, "missing", str(error), None)
        except DigestMismatch as error:
            return Copy(bookie_id, "damaged", str(error), None)
        except BookieUnavailable as error:
            return Copy(bookie_id, "unreachable", str(error), None)
        except BookKeeperError as error:
            return Copy(bookie_id, "failed", str(error), None)
        return Copy(bookie_id, "good", "", stored)


@asynccontextmanager
async def inspecting(metadata_url: str, tls_directory: str | None = None) -> AsyncIterator[Inspector]:
    """An Inspector of the cluster at *metadata_url* (`zk:host:port`, or `zk://host:port/root` as bookies have it).

    *tls_directory*: a folder with tls.crt, tls.key and ca.crt, where bookies demand TLS.

    Raises ConfigurationError, MetadataError.
    """
    url, root = split_service_uri(metadata_url) if "://" in metadata_url else (metadata_url, "/ledgers")
    tls = directory_files(tls_directory, "--tls-directory") if tls_directory else None
    clock = new_clock()
    store = await open_store(url, clock, session_timeout_s=SESSION_S, read_only=True)
    try:
        made = Inspector(store, root, clock, tls)
        await made.start()
        try:
            yield made
        finally:
            await made.close()
    finally:
        await store.close()
