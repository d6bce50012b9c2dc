"""Which broker serves which topics: each writes its own into a log, which the others read.

    /magnetar/serving/<broker id>     the log (`managed_ledger.state_log`); only that broker ever leads it

What it says of a topic stands in `roster`, how much of it at once in `edit_plan`. A log begins anew when its broker
starts, after an error, and before it becomes long; so nobody needs snapshots of it. A broker that serves nothing has
none, and one whose topics stay what they are has no open ledger.
A reader may be seconds behind. Nothing is decided by it: what a broker owns stands in its nodes.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from broker.settings.config import BrokerConfig
from broker.transfer.rosters.edit_plan import POSITIONS_S, EditPlan
from broker.transfer.rosters.roster import Roster
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks
from magnetar_core.runtime.types import MIB
from managed_ledger.ledgers.holdings import UNHEARD, Changes, Holdings
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.errors import LogStopped, StateLogError
from managed_ledger.state_log.removal import remove_log
from managed_ledger.state_log.snapshots.disk import NoSnapshots
from managed_ledger.state_log.state_log import StateLog

log = logging.getLogger(__name__)

ROOT: Final = "/magnetar/serving"

# How often a broker writes what has changed.
WRITE_S: Final = 1.0

# A log that has so many edits, or bytes of them, begins anew: a broker that starts has to read all of it. As much as is
# written of positions (`edit_plan`) makes it so large in half an hour.
EDITS_MAX: Final = 20_000
LOG_BYTES_MAX: Final = 32 * MIB

# A log to which nothing came for so long is closed until the next edit: an open ledger would hold up the repair and the
# drain of its bookies. Each time begins a ledger; with so many of them the log begins anew.
IDLE_S: Final = 5.0
LEDGERS_MAX: Final = 20

assert POSITIONS_S < IDLE_S  # where positions move all the time, no ledger is begun each time they are written

# What the former log of a broker said counts for so long, until the next one says something: it begins anew now and
# then.
LEFT_ROSTER_S: Final = 10.0

# After an error of bookies or metadata store.
RETRY_S: Final = 10.0

# How often the list of logs is looked at, beside what a watch reports.
LOOK_S: Final = 5.0

# At least so long between two looks.
PAUSE_S: Final = 0.2


def log_config(broker_id: str, config: BrokerConfig) -> StateLogConfig:
    """The settings of one broker's log: as safe as its topics, read every 0.2 to 2 seconds."""
    return StateLogConfig(
        root=f"{ROOT}/{broker_id}",
        ensemble_size=config.ensemble_size,
        write_quorum=config.write_quorum,
        ack_quorum=config.ack_quorum,
        snapshot_edits=1 << 60,  # none are taken
        poll_s=0.2,
        poll_idle_s=2.0,
    )


class OwnLog:
    """Writes what this broker serves."""

    def __init__(
        self,
        broker_id: str,
        config: BrokerConfig,
        serves: Callable[[], dict[str, int] | None],
        store: MetadataStore,
        bookkeeper: BookKeeper,
        clock: Clock,
        holdings_of: Callable[[str], Holdings | None] = lambda name: None,
        changes: Changes = UNHEARD,
    ) -> None:
        """*serves* gives topics and traffic (`roster`) as they are now, the same object if nothing has changed since it
        was called last; None: what the log holds is to stay. *holdings_of* gives what a successor needs of a topic, by
        its full name, and *changes* the managed ledgers of which that changed."""
        self._config = log_config(broker_id, config)
        self._name = broker_id
        self._serves = serves
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._holdings_of = holdings_of
        self._changes = changes
        self._tasks = Tasks("who serves what")
        self._reported = ""

    def start(self) -> None:
        self._tasks.spawn(self._run(), "report")

    async def stop(self) -> None:
        """The log stays, for the brokers that take over."""
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self._write_log()
                self._reported = ""
            except StateLogError as error:
                if str(error) != self._reported:
                    log.warning("others are not told what this broker serves: %s; trying again", error)
                self._reported = str(error)
                await self._clock.sleep(RETRY_S)

    async def _write_log(self) -> None:
        """One log, until it is long enough. Raises StateLogError."""
        await remove_log(self._store, self._bookkeeper, self._config.root)
        roster = Roster()
        state_log = StateLog(
            roster, self._name, self._config,
            bookkeeper=self._bookkeeper, store=self._store, clock=self._clock, snapshots=NoSnapshots(),
        )  # fmt: skip
        await state_log.open()
        try:
            plan = EditPlan(roster, self._holdings_of, self._changes)
            changed_s, written_bytes = self._clock.monotonic(), 0
            while (
                state_log.number < EDITS_MAX
                and written_bytes < LOG_BYTES_MAX
                and (state_log.listed is None or len(state_log.listed.ledgers) < LEDGERS_MAX)
            ):
                for edit in plan.edits(self._serves(), self._clock.monotonic(), is_open=state_log.is_leader):
                    if not state_log.is_leader:
                        await state_log.lead()
                    await state_log.propose(edit)
                    written_bytes += len(edit)
                    changed_s = self._clock.monotonic()
                if state_log.is_leader and self._clock.monotonic() - changed_s > IDLE_S:
                    await state_log.follow()
                await self._clock.sleep(WRITE_S)
        finally:
            await state_log.close()


class _Followed(NamedTuple):
    """A log that is read, and what it says."""

    roster: Roster
    log: StateLog


class _Left(NamedTuple):
    """What a log said that is read no more, and since when."""

    roster: Roster
    since_s: float


class OtherLogs:
    """Reads the logs of the other brokers."""

    def __init__(
        self, broker_id: str, config: BrokerConfig, store: MetadataStore, bookkeeper: BookKeeper, clock: Clock
    ) -> None:
        self._own_broker_id = broker_id
        self._config = config
        self._store = store
        self._bookkeeper = bookkeeper
        self._clock = clock
        self._tasks = Tasks("who serves what: the others")
        self._bell = Bell()
        self._is_stale = True
        self._followed: dict[str, _Followed] = {}
        self._left: dict[str, _Left] = {}  # by broker id: its former log

    def start(self) -> None:
        self._cancel = self._store.watch_children(ROOT, self._on_change)
        self._tasks.spawn(self._run(), "follow")

    async def stop(self) -> None:
        self._cancel()
        await self._tasks.cancel()
        for broker_id in list(self._followed):
            await self._leave(broker_id)

    @property
    def known(self) -> list[str]:
        """The brokers whose logs are read."""
        return list(self._followed)

    def topics_of(self, broker_id: str) -> dict[str, int]:
        """The topics that a broker serves by its log, with their traffic, the busiest first; empty if unknown."""
        roster = self._roster_of(broker_id)
        return {name: roster.topics[name] for name in roster.by_traffic()}

    def holdings_of(self, topic: str) -> Holdings | None:
        """What a log holds of a topic, by its full name; None: nothing. It may be old or wrong."""
        all_holdings = [
            self._roster_of(broker_id).holdings.get(topic) for broker_id in self._followed.keys() | self._left.keys()
        ]
        return max(
            (holdings for holdings in all_holdings if holdings is not None),
            key=lambda holdings: holdings.record_version,
            default=None,
        )

    def _roster_of(self, broker_id: str) -> Roster:
        """What the log of a broker says; for a while what its former log said, if the present one says nothing yet."""
        followed = self._followed.get(broker_id)
        if followed is not None and followed.roster.topics:
            return followed.roster
        left = self._left.get(broker_id)
        if left is not None and self._clock.monotonic() - left.since_s < LEFT_ROSTER_S:
            return left.roster
        return Roster()

    async def remove(self, broker_id: str) -> None:
        """Remove the log of a broker that is gone for good. Raises LogUnavailable."""
        await self._leave(broker_id)
        self._left.pop(broker_id, None)
        await remove_log(self._store, self._bookkeeper, f"{ROOT}/{broker_id}")

    async def _run(self) -> None:
        while True:
            self._is_stale = False
            try:
                listed = set(await self._store.children(ROOT)) - {self._own_broker_id}
                for broker_id, followed in list(self._followed.items()):
                    if broker_id not in listed or followed.log.error is not None:
                        await self._leave(broker_id)
                for broker_id in listed - self._followed.keys():
                    await self._follow(broker_id)
            except MetadataError as error:
                log.info("who serves what is not known: %s", error)
            await self._bell.until(lambda: self._is_stale, self._clock, LOOK_S)
            await self._clock.sleep(PAUSE_S)

    async def _follow(self, broker_id: str) -> None:
        """Begin to read the log of a broker. Raises MetadataError."""
        roster = Roster()
        followed = StateLog(
            roster, self._own_broker_id, log_config(broker_id, self._config),
            bookkeeper=self._bookkeeper, store=self._store, clock=self._clock, snapshots=NoSnapshots(),
        )  # fmt: skip
        assert broker_id != self._own_broker_id, "only its own broker writes a log, and that does not follow it"
        await followed.open()
        assert broker_id not in self._followed, "one task follows the logs, so each is followed once"
        followed.on_role(lambda role: self._on_change())
        self._followed[broker_id] = _Followed(roster, followed)

    async def _leave(self, broker_id: str) -> None:
        """Read the log of a broker no more; what it said is kept for a while."""
        followed = self._followed.pop(broker_id, None)
        if followed is None:  # it was removed while another one was left, or the other way round
            return
        now_s = self._clock.monotonic()
        self._left = {name: left for name, left in self._left.items() if now_s - left.since_s < LEFT_ROSTER_S}
        self._left[broker_id] = _Left(followed.roster, now_s)
        try:
            await followed.log.close()
        except (LogStopped, asyncio.InvalidStateError) as error:
            log.debug("%s: %s", broker_id, error)

    def _on_change(self) -> None:
        self._is_stale = True
        self._bell.ring()
