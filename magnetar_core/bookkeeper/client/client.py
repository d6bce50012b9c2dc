"""The asynchronous BookKeeper client: create, open, recover and delete ledgers."""

import logging
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.quorum import ImpossibleQuorum, check_quorum
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    ClientClosed,
    MetadataUnavailable,
    NotEnoughBookies,
    Unauthorized,
)
from magnetar_core.bookkeeper.client.ledger_record import as_client_error
from magnetar_core.bookkeeper.client.placing.ensembles import choose_ensemble, choose_moves, choose_replacements
from magnetar_core.bookkeeper.client.placing.isolation import Isolation, isolation_in, usable
from magnetar_core.bookkeeper.client.placing.topology import Topology, locations_of, region_on
from magnetar_core.bookkeeper.client.reading.entry_lists import EntryLists, Group
from magnetar_core.bookkeeper.client.reading.long_poll import LongPoll
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.client.reading.replicas import LedgerReplicas
from magnetar_core.bookkeeper.client.recovery_driver import recover_ledger
from magnetar_core.bookkeeper.client.wire.pool import ConnectionPool
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.bookies.racks import RackDirectory
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned, check_layout
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Allocate, Corruption

log = logging.getLogger(__name__)


class BookKeeper:
    """One client of a cluster. All methods are called on the loop that opened it.

    The metadata store belongs to the caller: `close` leaves it open.
    """

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        config: ClientConfig | None = None,
        *,
        root: str = "/ledgers",
        rng: random.Random | None = None,
        allocate: Allocate = bytearray,
    ) -> None:
        """*allocate* makes room for a large answer of a bookie."""
        self._store = store
        self._clock = clock
        self._config = config if config is not None else ClientConfig()
        self._root = root
        self._allocate = allocate
        self._rng = rng if rng is not None else random.Random()
        self.bookies = BookieDirectory(store, root, clock)
        self.racks = RackDirectory(store, clock, root)
        self._topology: tuple[Mapping[str, str], Mapping[str, str], Topology] | None = None
        self.ledgers = LedgerStore(store, root)
        self._pool: ConnectionPool | None = None
        self._entry_lists: EntryLists | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect to the metadata and learn which bookies are registered.

        Raises MetadataUnavailable, MetadataError for a layout that is not supported, ConfigurationError for TLS files
        that cannot be used.
        """
        assert self._pool is None, "opened twice"
        await check_layout(self._store, self._root)
        pool = ConnectionPool(self.bookies, self._clock, self._config, self.topology, self.usable, self._allocate)
        await self.bookies.start()
        await self.racks.start()
        self._pool = pool

    async def close(self) -> None:
        """End all connections; what is pending fails with ClientClosed. Ledgers that were being written stay open."""
        if self._closed:
            return
        self._closed = True
        await self.racks.stop()
        await self.bookies.stop()
        if self._pool is not None:
            await self._pool.close()

    async def create_ledger(
        self,
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        digest_type: DigestType = DigestType.CRC32C,
        password: bytes = b"",
        custom_metadata: tuple[tuple[str, bytes], ...] = (),
    ) -> LedgerWriteHandle:
        """A new, empty ledger. No bookie is asked before the first entry.

        Raises NotEnoughBookies, ImpossibleQuorum, MetadataUnavailable.
        """
        pool = self._open_pool()
        check_quorum(ensemble_size, write_quorum, ack_quorum)  # before anything of that size is made
        rules = self.topology().regions
        problem = None if rules is None else rules.quorum_problem(write_quorum, ack_quorum)
        if problem is not None:
            raise ImpossibleQuorum(problem)
        writable = self.usable(self.bookies.writable - pool.unreachable, custom_metadata, ensemble_size)
        if len(writable) < ensemble_size:
            writable = self.usable(self.bookies.writable, custom_metadata, ensemble_size)
        try:
            ensemble = choose_ensemble(
                writable,
                ensemble_size,
                pool.quarantined,
                self._rng,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                topology=self.topology(),
            )
        except NotEnoughBookies as error:
            why = await self.bookies.shortage()
            groups = self._isolation(custom_metadata)
            apart = "" if groups is None else f"; the ledger may be in the groups {groups.text} only"
            raise NotEnoughBookies(f"{error}{apart}; {why}" if why else f"{error}{apart}") from None
        metadata = LedgerMetadata(
            ensemble_size=ensemble_size,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest_type=digest_type,
            password=password,
            segments=(Segment(0, ensemble),),
            custom_metadata=custom_metadata,
        )
        try:
            ledger_id, versioned = await self.ledgers.create(metadata)
        except MetadataError as error:
            raise MetadataUnavailable(f"no ledger was created: {error}") from error
        return LedgerWriteHandle(ledger_id, versioned, self.ledgers, pool, self._rng)

    async def open_ledger(
        self, ledger_id: int, *, password: bytes = b"", recovery: bool, known: Versioned | None = None
    ) -> LedgerReadHandle:
        """Open a ledger for reading.

        With *recovery* an open ledger is taken over: its writer is fenced, its end found, and it is closed.
        Without, its writer goes on undisturbed, and the handle knows the LAC of this moment.

        *known*: the record of an open ledger that was read before; recovery finds out if it is old. Raises
        NoSuchLedger, Unauthorized, RecoveryFailed, MetadataUnavailable.
        """
        assert known is None or (recovery and not known.metadata.is_closed), "nothing would tell that it is old"
        pool = self._open_pool()
        versioned = await self.record_of(ledger_id) if known is None else known
        metadata = versioned.metadata
        # A record of format 1 does not hold the password; there only the bookies can check it.
        if metadata.format_version > 1 and metadata.password != password:
            raise Unauthorized(f"ledger {ledger_id}: wrong password")
        if recovery and not metadata.is_closed:
            versioned = await recover_ledger(ledger_id, versioned, self.ledgers, pool, self._rng)
            metadata = versioned.metadata
        if metadata.is_closed:
            return LedgerReadHandle(ledger_id, versioned, self.ledgers, pool, metadata.last_entry_id, metadata.length)
        handle = LedgerReadHandle(ledger_id, versioned, self.ledgers, pool, metadata.last_segment.first_entry_id - 1, 0)
        await handle.read_last_confirmed()
        return handle

    async def open_as_administrator(self, ledger_id: int, *, recovery: bool) -> LedgerReadHandle:
        """As `open_ledger`, with the password that the ledger's record holds."""
        password = (await self.record_of(ledger_id)).metadata.password
        return await self.open_ledger(ledger_id, password=password, recovery=recovery)

    def replicas(self, ledger_id: int, metadata: LedgerMetadata) -> LedgerReplicas:
        """The copies of a ledger, bookie by bookie; for repair and verification."""
        return LedgerReplicas(ledger_id, metadata, self._open_pool())

    async def entry_list(self, bookie_id: str, ledger_id: int) -> list[Group]:
        """The entries of a ledger that a bookie has, as it lists them; none for a ledger that it does not know.

        Raises BookKeeperError: nobody knows.
        """
        pool = self._open_pool()
        if self._entry_lists is None:
            self._entry_lists = EntryLists(pool)
        return await self._entry_lists.of(bookie_id, ledger_id)

    def long_poll(self, on_news: Callable[[], None]) -> LongPoll:
        """Calls *told* when an open ledger may be confirmed further; the caller closes it."""
        return LongPoll(self._open_pool(), on_news)

    def topology(self) -> Topology:
        """Where the bookies stand, as far as it is known now, and what is to be kept."""
        config, hosts, racks = self._config, self.bookies.hosts, self.racks.racks
        if self._topology is None or self._topology[0] is not hosts or self._topology[1] is not racks:
            rules, locations = config.region_rules, locations_of(racks, hosts)
            topology = Topology(
                locations,
                config.racks_min,
                config.racks_enforced,
                is_aware=config.rackaware_policy_enabled or rules is not None,
                regions=rules,
                local_region=None if rules is None else region_on(config.local_host, locations),
            )
            self._topology = hosts, racks, topology
        return self._topology[2]

    def _isolation(self, custom_metadata: Iterable[tuple[str, bytes]]) -> Isolation | None:
        own = isolation_in(custom_metadata)
        if own is None and self._config.isolation_groups:
            return Isolation(self._config.isolation_groups, self._config.secondary_isolation_groups)
        return own

    def usable(
        self,
        available: Collection[str],
        custom_metadata: Iterable[tuple[str, bytes]],
        ensemble_size: int,
        members: Collection[str] = (),
    ) -> frozenset[str]:
        """Those of *available* on which a ledger with such a record may be (`isolation.usable`)."""
        return usable(available, self.racks.groups, self._isolation(custom_metadata), ensemble_size, members)

    def choose_replacements(
        self,
        ensemble: Sequence[str],
        positions: Mapping[int, str],
        avoided: Collection[str] = (),
        *,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        custom_metadata: Iterable[tuple[str, bytes]] = (),
        rng: random.Random | None = None,
    ) -> dict[int, str]:
        """Bookies to take the place of those at *positions* of *ensemble*: position → bookie, as far as there are any.

        Writable ones only; none of *avoided*, and none that could not be reached a moment ago. *write_quorum* None:
        every entry is on the whole ensemble; *ack_quorum* None: nothing is enforced over regions. *custom_metadata* of
        the ledger may name groups of bookies. With an *rng* in the same state the choice among the same bookies is the
        same.
        """
        pool = self._open_pool()
        stay = [bookie for at, bookie in enumerate(ensemble) if at not in positions]
        free = self.bookies.writable - pool.unreachable - set(avoided) - set(positions.values())
        return choose_replacements(
            self.usable(free, custom_metadata, len(ensemble), stay),
            ensemble,
            positions,
            pool.unreachable | set(avoided),
            pool.quarantined,
            rng or self._rng,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            topology=self.topology(),
        )

    def choose_moves(
        self,
        ensemble: Sequence[str],
        avoided: Collection[str] = (),
        *,
        write_quorum: int,
        ack_quorum: int | None = None,
        custom_metadata: Iterable[tuple[str, bytes]] = (),
        rng: random.Random | None = None,
    ) -> dict[int, str]:
        """Members of *ensemble* to exchange so that its copies are in more regions, racks and hosts: position → bookie.

        As few as do; empty where it is well placed, or cannot be better. New members as in `choose_replacements`.
        """
        pool = self._open_pool()
        free = self.bookies.writable - pool.unreachable - set(avoided)
        return choose_moves(
            self.usable(free, custom_metadata, len(ensemble), ensemble),
            ensemble,
            pool.unreachable | set(avoided),
            pool.quarantined,
            rng or self._rng,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            topology=self.topology(),
        )

    async def delete_ledger(self, ledger_id: int) -> None:
        """Remove the record; bookies drop the entries later. A ledger that does not exist counts as deleted."""
        self._open_pool()
        try:
            await self.ledgers.delete(ledger_id)
        except MetadataError as error:
            raise as_client_error(error, ledger_id) from error

    async def read_metadata(self, ledger_id: int) -> LedgerMetadata:
        """Raises NoSuchLedger, MetadataUnavailable."""
        return (await self.record_of(ledger_id)).metadata

    async def is_open(self, ledger_id: int) -> bool:
        """The ledger's record says OPEN. Raises NoSuchLedger, MetadataUnavailable."""
        return (await self.read_metadata(ledger_id)).state is LedgerState.OPEN

    async def record_of(self, ledger_id: int) -> Versioned:
        """A ledger's record with its version. Raises NoSuchLedger, MetadataUnavailable."""
        self._open_pool()
        try:
            return await self.ledgers.read(ledger_id)
        except (MetadataError, Corruption) as error:
            raise as_client_error(error, ledger_id) from error

    @property
    def read_retries(self) -> int:
        """How often another bookie was asked as well for what was read, since one failed or was slow."""
        return self._open_pool().read_retries

    def _open_pool(self) -> ConnectionPool:
        if self._closed:
            raise ClientClosed("the BookKeeper client was closed")
        assert self._pool is not None, "BookKeeper.open() comes first"
        return self._pool


__all__ = ["BookKeeper", "BookKeeperError"]
