"""Opens managed ledgers, keeps one object for each name, and maintains them periodically."""

import logging
from collections.abc import Callable

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.damage.reports import OnDamage, ignore_damage
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import SingleFlight, Tasks, attempt
from magnetar_core.runtime.types import MIB
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import StorageUnavailable
from managed_ledger.ledger import ManagedLedger
from managed_ledger.ledgers.discarding import discard
from managed_ledger.ledgers.holdings import Changes, Holdings
from managed_ledger.ledgers.preparing import Preparations
from managed_ledger.ledgers.tails import Tails
from managed_ledger.reading.entry_cache import EntryCache
from managed_ledger.reading.read_ahead import AheadBudget
from managed_ledger.records.paths import ROOT, ledger_path
from managed_ledger.transactions.snapshots import TransactionNotes

log = logging.getLogger(__name__)

# Old ledgers are rolled over and expired ones trimmed this often (Pulsar: retentionCheckIntervalInSeconds).
MAINTENANCE_INTERVAL_S = 120.0

# Recent entries of all topics together, for tailing consumers. Consumers further behind read from bookies.
CACHE_BYTES_MAX = 64 * MIB


class ManagedLedgerFactory:
    """All managed ledgers of one process. Each name is open at most once, whichever caller opens it.

    (The broker opens the ledger of a topic once; health checks and tools may open the same name concurrently.)
    """

    def __init__(
        self,
        bookkeeper: BookKeeper,
        store: MetadataStore,
        clock: Clock,
        config: ManagedLedgerConfig | None = None,
        *,
        cache_bytes_max: int = CACHE_BYTES_MAX,
        maintenance_interval_s: float = MAINTENANCE_INTERVAL_S,
        on_damage: OnDamage = ignore_damage,
    ) -> None:
        """*on_damage* is called for entries that no bookie can give."""
        self.cache = EntryCache(cache_bytes_max)
        """The newest entries of all managed ledgers."""
        self.ahead_budget = AheadBudget(clock)
        """Limits what the cursors of all managed ledgers read ahead."""
        self.tails = Tails(bookkeeper, self.cache, clock, on_damage)
        """Saves acknowledged entries that are missing in a ledger that somebody else has ended."""
        self._maintenance_interval_s = maintenance_interval_s
        self._on_damage = on_damage
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._config = config or ManagedLedgerConfig()
        self._transactions = TransactionNotes(store, bookkeeper, self._config.password)
        self._open: dict[str, ManagedLedger] = {}
        self._opening: SingleFlight[str, ManagedLedger] = SingleFlight(Tasks("managed ledgers"), "opening")
        self._tasks = Tasks("managed ledgers")
        self.preparations = Preparations(bookkeeper, store, clock)
        """What was prepared for topics that are opened soon."""
        self.changes = Changes()
        """Names of managed ledgers whose holdings changed."""

    def start(self) -> None:
        """Begin the periodic maintenance."""
        self._tasks.spawn(self._maintain(), "maintenance")

    async def open(self, name: str, config: ManagedLedgerConfig | None = None, *, create: bool = True) -> ManagedLedger:
        """Take over (or create) `<tenant>/<namespace>/persistent/<encoded topic>`.

        Raises ManagedLedgerNotFound, StorageUnavailable, ManagedLedgerFenced, ShadowTopic, TransactionalTopic.
        """
        ledger = self._open.get(name)
        if ledger is not None and _usable(ledger):
            return ledger
        return await self._opening.do(name, lambda: self._open_anew(name, config or self._config, create))

    async def _open_anew(self, name: str, config: ManagedLedgerConfig, create: bool) -> ManagedLedger:
        """Open a managed ledger that is not open, after what was open under this name is closed. Raises
        ManagedLedgerError."""
        former_ledger = self._open.get(name)
        if former_ledger is not None:
            # The former object may still store cursors; they have to be stored before they are read.
            await attempt(f"{name}: closing what was open before", former_ledger.close())
        await self._transactions.check(name)
        ledger = ManagedLedger(
            name,
            self._bookkeeper,
            self._store,
            self._clock,
            config,
            self.cache,
            self.ahead_budget,
            self.tails,
            self._on_damage,
        )
        ledger.on_ended = self._forget_ended
        ledger.changes = self.changes
        try:
            await ledger.open(create=create, prepared=await self.preparations.take(name, config))
        except MetadataError as error:
            raise StorageUnavailable(f"cannot open {name}: {error}") from error
        assert name not in self._open, f"{name} is open twice"
        self._open[name] = ledger
        self.changes.note_ledgers(name)
        return ledger

    def _forget_ended(self, ledger: ManagedLedger) -> None:
        if self._open.get(ledger.name) is ledger:
            del self._open[ledger.name]
            self.changes.forget(ledger.name)

    def prepare(
        self,
        name: str,
        config: ManagedLedgerConfig | None = None,
        *,
        is_dead: bool = True,
        held: Holdings | None = None,
    ) -> None:
        """Get what opening a topic will need, whoever owns it now (`Preparations.begin`). Does not wait."""
        if name not in self._open:
            self.preparations.begin(name, config or self._config, is_dead=is_dead, held=held)

    def recover(self, name: str, config: ManagedLedgerConfig | None = None) -> None:
        """Close the last ledger of a topic whose owner's process is gone (`Preparations.recover`). Does not wait."""
        if name not in self._open:
            self.preparations.recover(name, config or self._config)

    async def exists(self, name: str) -> bool:
        """Whether the topic is stored. Raises StoreUnavailable."""
        return await self._store.exists(ledger_path(name))

    async def list(self, namespace: str) -> list[str]:
        """Names of the managed ledgers of `<tenant>/<namespace>`, sorted."""
        children = await self._store.children(f"{ROOT}/{namespace}/persistent")
        return [f"{namespace}/persistent/{child}" for child in children]

    def watch(self, namespace: str, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after a managed ledger of `<tenant>/<namespace>` was made or deleted."""
        return self._store.watch_children(f"{ROOT}/{namespace}/persistent", changed)

    async def delete(self, name: str) -> None:
        """Delete a topic's data. Raises ManagedLedgerNotFound, StorageUnavailable."""
        ledger = await self.open(name, create=False)
        await ledger.delete()

    async def discard(self, name: str) -> None:
        """Delete a topic that cannot be opened because a record of it cannot be understood (RecordUnreadable).

        Raises StorageUnavailable.
        """
        await discard(self._store, self._bookkeeper, name)

    async def close(self) -> None:
        """Close all open managed ledgers, also those that are being opened."""
        await self._tasks.cancel()
        await self.preparations.close()
        for name in self._opening.under_way:
            await self._opening.settle(name)
        ledgers, self._open = self._open, {}
        for name, ledger in ledgers.items():
            await attempt(f"{name}: closing it", ledger.close())

    async def _maintain(self) -> None:
        while True:
            await self._clock.sleep(self._maintenance_interval_s)
            for name, ledger in list(self._open.items()):
                if _usable(ledger):
                    await attempt(f"{name}: maintenance", ledger.maintain())


def _usable(ledger: ManagedLedger) -> bool:
    return ledger.is_open or ledger.is_terminated
