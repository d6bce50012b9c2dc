"""A look at a cluster from outside: its metadata, its bookies, the copies of entries. Nothing is changed or fenced
here; `autorecovery.lifecycle.retirement` changes the states of bookies over the same connection."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from autorecovery.ledgers.checks import is_trailing
from bookie.admin.cluster_view import ClusterView
from broker.ownership.membership import BROKERS
from broker.ownership.nodes import decode_broker
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookieUnavailable, BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.placing.topology import Topology, locations_of
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import Endpoint
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.racks import RackDirectory
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, check_layout
from magnetar_core.bookkeeper.metadata.marks import underreplication
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NoNode, StoreUnavailable
from magnetar_core.bookkeeper.metadata.stores.url import open_store, split_service_uri, zookeeper_hosts
from magnetar_core.bookkeeper.wire.entry import DigestMismatch, EntryCodec, StoredEntry
from magnetar_core.bookkeeper.wire.framing import LARGEST_FRAME_BYTES_MAX
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.types import Corruption
from magnetar_core.security.tls.contexts import Certificates, client_context
from magnetar_core.security.tls.files import TlsFiles, directory_files

# Questions to the metadata store under way at once.
CONCURRENT_MAX: Final = 64

# Marks of auto-recovery that are counted at most: each has a path of its own, and more are just "many".
MARKS_MAX: Final = 1_000
_MARK_LEVELS: Final = 5

READ_TIMEOUT_S: Final = 5.0
# A server of the metadata store that does not take a connection in this time counts as away.
PROBE_TIMEOUT_S: Final = 2.0
CONNECT_TIMEOUT_MS: Final = 3_000
SESSION_S: Final = 10.0
ANY_HOST: Final = ("0.0.0.0", "::", "[::]", "0:0:0:0:0:0:0:0")  # not to listen at
LAST_ENTRY: Final = -1


class Copy(NamedTuple):
    """What one bookie answered when it was asked for an entry."""

    bookie_id: str
    verdict: str
    """good, damaged, missing, unreachable, or what the bookie answered"""
    detail: str
    stored: StoredEntry | None


class KnownBookie(NamedTuple):
    """One bookie of a cluster."""

    bookie_id: str
    state: str
    """writable, read-only, or away: it is known by its cookie only"""
    address: str
    http: str
    life: str = "active"
    """active, draining, draining-failed, drained, or unreadable"""


class LedgerRecord(NamedTuple):
    """What the metadata store has about one ledger; *metadata* is None if it cannot be decoded."""

    metadata: LedgerMetadata | None
    created_ms: int
    """Wall clock of its creator, or of the store if the record does not say; 0 if unknown."""
    problem: str = ""


class Lacking(NamedTuple):
    """A ledger that lacks copies, or of which that is not known."""

    ledger_id: int
    missing_on: tuple[str, ...]
    """Bookies that its record names and that are away."""
    is_marked: bool
    """Auto-recovery has found that a copy is missing, and has not made it good."""
    problem: str = ""
    """Why its record cannot be read."""


class Inspector:
    """Reads from a cluster. Made by `inspecting`."""

    def __init__(self, store: MetadataStore, root: str, clock: Clock, tls: TlsFiles | None = None) -> None:
        """With *tls* bookies are asked over TLS only. Raises ConfigurationError."""
        self.store = store
        self.root = root
        self.clock = clock
        self.silent_hosts: dict[str, str] = {}
        """Servers of the metadata store that take no connection, and why."""
        self.ledgers = LedgerStore(store, root)
        self.directory = BookieDirectory(store, root, clock)
        certificates = None if tls is None else Certificates(tls, client_context, clock)
        self.racks = RackDirectory(store, clock, root)
        self.cluster = ClusterView(store, root, clock, certificates)
        self._pool = ConnectionPool(
            self.directory,
            clock,
            ClientConfig(
                timeout_s=READ_TIMEOUT_S,
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
                tls=tls,
                frame_bytes_max=LARGEST_FRAME_BYTES_MAX,  # enough for every setting of the bookies
            ),
        )

    @property
    def pool(self) -> ConnectionPool:
        """Connections to the bookies."""
        return self._pool

    async def start(self) -> None:
        """Raises MetadataError."""
        await check_layout(self.store, self.root)
        await self.directory.start()

    async def topology(self) -> Topology:
        """Where the bookies stand; `racks.problems` has what of it could not be read. Raises MetadataError."""
        await self.racks.start()
        return Topology(locations_of(self.racks.racks, self.directory.hosts))

    async def close(self) -> None:
        await self._pool.close()
        await self.racks.stop()
        await self.directory.stop()

    async def ledger_ids(self) -> list[int]:
        """All ledgers, rising. Raises MetadataError."""
        return sorted([ledger_id async for ledger_id in self.ledgers.list()])

    async def records_of(self, ledger_ids: Sequence[int]) -> dict[int, LedgerRecord]:
        """The records of those of the ledgers that (still) exist, by id. Raises MetadataError."""
        records: dict[int, LedgerRecord] = {}
        limit = asyncio.Semaphore(CONCURRENT_MAX)

        async def read(ledger_id: int) -> None:
            async with limit:
                try:
                    record = await self.ledgers.read(ledger_id)
                    records[ledger_id] = LedgerRecord(record.metadata, record.created_ms)
                except NoNode:
                    return
                except Corruption as error:
                    records[ledger_id] = LedgerRecord(None, 0, str(error))

        await asyncio.gather(*map(read, ledger_ids))
        return dict(sorted(records.items()))

    async def under_replicated(self) -> list[int]:
        """Ledgers that auto-recovery has marked, up to MARKS_MAX. Raises MetadataError."""
        paths = [underreplication.marks_path(self.root)]
        for _ in range(_MARK_LEVELS):
            names = await asyncio.gather(*map(self.store.children, paths))
            paths = [f"{path}/{name}" for path, below in zip(paths, names, strict=True) for name in below][:MARKS_MAX]
        marks = [path.rpartition("/urL")[2] for path in paths]
        return sorted(int(mark) for mark in marks if mark.isdigit())

    async def lacking(self) -> tuple[list[Lacking], int]:
        """(ledgers that lack copies now, how many were looked at). Bookies that are there are not asked what they have:
        what they lack is known by marks alone. Raises MetadataError."""
        there = self.directory.available
        marked = set(await self.under_replicated())
        lacking = []
        ids = await self.ledger_ids()
        for ledger_id, record in (await self.records_of(ids)).items():
            metadata = record.metadata
            gone: set[str] = set()
            if metadata is not None:
                for first, ensemble in metadata.segments:
                    if not is_trailing(metadata, first):
                        gone |= set(ensemble) - there
            if gone or record.problem or ledger_id in marked:
                lacking.append(Lacking(ledger_id, tuple(sorted(gone)), ledger_id in marked, record.problem))
        return lacking, len(ids)

    async def bookies(self) -> list[KnownBookie]:
        """All bookies that are registered or have a cookie, by name. Raises MetadataError."""
        known = {
            *await self.store.children(f"{self.root}/cookies"), *self.directory.writable, *self.directory.read_only
        }  # fmt: skip
        bookies = []
        states = BookieStates(self.store, self.root)
        for bookie_id in sorted(known):
            try:
                life = str((await states.read(bookie_id)).lifecycle.state)
            except Corruption:
                life = "unreadable"
            if bookie_id not in self.directory.available:
                bookies.append(KnownBookie(bookie_id, "away", "", "", life))
                continue
            info = await self.directory.info_of(bookie_id)
            http = next((endpoint for endpoint in info.endpoints if endpoint.protocol == "http"), None)
            rpc = info.rpc
            bookies.append(
                KnownBookie(
                    bookie_id,
                    "read-only" if bookie_id in self.directory.read_only else "writable",
                    "" if rpc is None else f"{rpc.host}:{rpc.port}",
                    "" if http is None else f"http://{_reached(http.host, rpc)}:{http.port}",
                    life,
                )
            )
        return bookies

    async def broker_urls(self, *, over_tls: bool) -> list[str]:
        """Where the living brokers speak HTTP, or HTTPS. Raises MetadataError, Corruption."""
        urls = []
        for broker in await self.store.children(BROKERS):
            node = await self.store.get(f"{BROKERS}/{broker}")
            if node is not None:
                address = decode_broker(node.value, node.path)
                urls.append(address.https_url if over_tls else address.http_url)
        return [url for url in urls if url]

    async def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> tuple[int, list[Copy]]:
        """The last entry that any bookie of an open ledger has (that of the metadata once it is closed), and the
        bookies that could not be asked."""
        if metadata.is_closed:
            return metadata.last_entry_id, []
        members = sorted(set(metadata.last_segment.ensemble))
        copies = await asyncio.gather(*(self._copy(member, ledger_id, LAST_ENTRY, metadata) for member in members))
        last = max((copy.stored.entry_id for copy in copies if copy.stored is not None), default=-1)
        return last, [copy for copy in copies if copy.verdict not in ("good", "missing")]

    async def copies(self, ledger_id: int, entry_id: int, metadata: LedgerMetadata) -> list[Copy]:
        """What each bookie of the entry's write set has of the entry."""
        ensemble = metadata.ensemble_for(entry_id)
        members = [ensemble[(entry_id + at) % len(ensemble)] for at in range(metadata.write_quorum)]
        return list(await asyncio.gather(*(self._copy(member, ledger_id, entry_id, metadata) for member in members)))

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
async def inspecting(
    metadata_url: str, tls_directory: str | None = None, *, changes: bool = False
) -> AsyncIterator[Inspector]:
    """An Inspector of the cluster at *metadata_url* (`zk:host:port`, or `zk://host:port/root` as bookies have it).

    *tls_directory*: a folder with tls.crt, tls.key and ca.crt, where bookies demand TLS. *changes*: the store is opened
    to be written, which a folder that another process owns refuses.

    Raises ConfigurationError, MetadataError.
    """
    url, root = split_service_uri(metadata_url) if "://" in metadata_url else (metadata_url, "/ledgers")
    tls = directory_files(tls_directory, "--tls-directory") if tls_directory else None
    clock = new_clock()
    silent = await _silent_hosts(url)
    store = await open_store(url, clock, session_timeout_s=SESSION_S, read_only=not changes)
    try:
        inspector = Inspector(store, root, clock, tls)
        inspector.silent_hosts = silent
        await inspector.start()
        try:
            yield inspector
        finally:
            await inspector.close()
    finally:
        await store.close()


async def _silent_hosts(url: str) -> dict[str, str]:
    """The ZooKeeper servers in *url* that take no connection, and why. Raises StoreUnavailable if none takes one: at
    once, not after all tries of the client; ConfigurationError."""
    scheme, _, place = url.partition(":")
    if scheme != "zk":
        return {}
    hosts = zookeeper_hosts(place)

    async def why_silent(host: str, port: int) -> str:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host, port)
        except TimeoutError:
            return f"nothing within {PROBE_TIMEOUT_S:g} s"
        except OSError as error:
            return error.strerror or str(error)
        writer.close()
        return ""

    answers = dict(zip(hosts, await asyncio.gather(*(why_silent(*host) for host in hosts.values())), strict=True))
    silent = {host: why for host, why in answers.items() if why}
    if len(silent) == len(hosts):
        reasons = "; ".join(f"{host}: {why}" for host, why in silent.items())
        raise StoreUnavailable(
            f"no ZooKeeper answers ({reasons}). Is one running? Give it with --metadata, or with "
            "--admin-url a broker that uses it. A standalone has none: where it is stopped, --metadata "
            "rocksdb:FOLDER/metadata is what it has in its folder."
        )
    return silent


def _reached(host: str, rpc: Endpoint | None) -> str:
    """The host of an endpoint. Apache's bookies name the address that they listen at, which may be `0.0.0.0`: then that
    of their own protocol."""
    return rpc.host if rpc is not None and host in ANY_HOST else host
