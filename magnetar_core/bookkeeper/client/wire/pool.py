"""The connections of one client to all bookies, and which bookies failed lately."""

import asyncio
import logging
import weakref
from collections.abc import Callable, Collection, Iterable
from typing import Final, Protocol

from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.deciding.change_limits import BookieLimits
from magnetar_core.bookkeeper.client.placing.topology import Topology
from magnetar_core.bookkeeper.client.wire.connection import BookieConnection, ConnectionParts
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.wire.framing import FrameReceiver
from magnetar_core.runtime.clock import Clock, DeadlineSweep
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.runtime.types import Allocate
from magnetar_core.security.tls.contexts import Certificates, client_context

log = logging.getLogger(__name__)

# How long a bookie that broke the connection on a batch read is asked entry by entry. Old bookies do not know batch
# reads and break it; a bookie that merely crashed gets batch reads again after this time.
_NO_BATCH_S: Final = 60.0


# Ledgers that leave bookies which are about to stop, at once. Each writes its record; the others go on meanwhile with
# the bookies that they have, so that no entry waits for more than a few of these changes.
MOVES_AT_ONCE: Final = 16

# Records of ledgers that are looked at together after somebody changed them. A connection to the metadata store that
# is made anew rings for all of them.
LOOKS_AT_ONCE: Final = 16


def _call_if_alive(reference: "weakref.WeakMethod[Callable[[], None]]") -> None:
    method = reference()
    if method is not None:
        method()


class Usable(Protocol):
    """Those of *available* on which a ledger with such a record may be (`isolation.usable`)."""

    def __call__(
        self,
        available: Collection[str],
        custom_metadata: Iterable[tuple[str, bytes]],
        ensemble_size: int,
        members: Collection[str],
        /,
    ) -> frozenset[str]: ...


def _all_available(
    available: Collection[str],
    custom_metadata: Iterable[tuple[str, bytes]],
    ensemble_size: int,
    members: Collection[str],
) -> frozenset[str]:
    return frozenset(available)


class ConnectionPool:
    """The connections of one client, and which bookies failed lately (its `BookieHealth`)."""

    def __init__(
        self,
        directory: BookieDirectory,
        clock: Clock,
        config: ClientConfig,
        topology: Callable[[], Topology] = Topology,
        usable: Usable = _all_available,
        allocate: Allocate = bytearray,
    ) -> None:
        """*topology*: where the bookies stand, as it is known now; *usable*: where a ledger may be. *allocate* makes
        room for a large answer.

        Raises ConfigurationError if the files for TLS cannot be used.
        """
        self.directory = directory
        self.topology = topology
        self.usable = usable
        self.clock = clock
        self.config = config
        self.certificates = None if config.tls is None else Certificates(config.tls, client_context, clock)
        self.tasks = Tasks("bookie connections")
        self.slow_adds = SlowOperations(log, clock, config.slow_add_ms) if config.slow_add_ms else None
        self.is_closed = False
        self.change_limits = BookieLimits()
        self.moves = asyncio.Semaphore(MOVES_AT_ONCE)
        self.looks = asyncio.Semaphore(LOOKS_AT_ONCE)
        """At records that somebody has changed."""
        """Whose ledgers leave bookies that are about to stop."""
        chunk = memoryview(bytearray(FrameReceiver.CHUNK_BYTES))
        self._parts = ConnectionParts(clock, config, directory, self.certificates, self.tasks, self, allocate, chunk)
        self._connections: dict[tuple[str, bool, int], BookieConnection] = {}
        self._quarantined: dict[str, float] = {}
        self._no_batch: dict[str, float] = {}
        self.read_retries = 0
        """Reads for which another bookie was asked as well, since one failed or was slow."""
        # Weak references, so that the sweep does not keep reads that were answered.
        self.speculation: DeadlineSweep[weakref.WeakMethod[Callable[[], None]]] | None = None
        if config.speculative_read_timeout_ms:
            delay_s = config.speculative_read_timeout_ms / 1000
            self.speculation = DeadlineSweep(clock, delay_s, _call_if_alive)

    def get(self, bookie_id: str, ledger_id: int, *, recovery: bool = False) -> BookieConnection:
        """The connection for *ledger_id*; *recovery*: for fencing reads and recovery adds, which have
        separate connections (rule 1 in connection.py)."""
        key = (bookie_id, recovery, ledger_id % self.config.channels_per_bookie)
        connection = self._connections.get(key)
        if connection is None:
            connection = self._connections[key] = BookieConnection(bookie_id, self._parts, is_closed=self.is_closed)
        return connection

    def failed(self, bookie_id: str) -> None:
        """The bookie could not be reached, broke a connection, or did not answer in time: put it in quarantine."""
        if bookie_id not in self.quarantined:
            log.info("bookie %s failed: new ensembles avoid it for %g s", bookie_id, self.config.quarantine_s)
        self._quarantined[bookie_id] = self.clock.monotonic() + self.config.quarantine_s

    @property
    def quarantined(self) -> frozenset[str]:
        """Bookies that failed less than `quarantine_s` ago."""
        now = self.clock.monotonic()
        self._quarantined = {bookie: until for bookie, until in self._quarantined.items() if until > now}
        return frozenset(self._quarantined)

    @property
    def unreachable(self) -> frozenset[str]:
        """Bookies that could not be reached a moment ago."""
        return frozenset(c.bookie_id for c in self._connections.values() if c.is_refusing)

    def rank(self, bookie_id: str) -> int:
        """The order to ask bookies in: 0 for a healthy bookie, 1 for one in another region than the client, 2 for one
        in quarantine or not registered."""
        until = self._quarantined.get(bookie_id)
        if until is not None and until > self.clock.monotonic():
            return 2
        if bookie_id not in self.directory.writable and bookie_id not in self.directory.read_only:
            return 2
        if not self.config.regionaware_policy_enabled:
            return 0
        topology = self.topology()
        return int(topology.local_region is not None and topology.of(bookie_id).region != topology.local_region)

    def batches_failed(self, bookie_id: str) -> None:
        """The bookie closed the connection instead of answering a batch read: ask it for single entries for a while."""
        self._no_batch[bookie_id] = self.clock.monotonic() + _NO_BATCH_S

    def may_batch(self, bookie_id: str) -> bool:
        """False for a bookie that lately closed the connection when it was asked for a batch."""
        until = self._no_batch.get(bookie_id)
        if until is None:
            return True
        if self.clock.monotonic() >= until:
            del self._no_batch[bookie_id]
            return True
        return False

    async def close(self) -> None:
        self.is_closed = True
        for connection in tuple(self._connections.values()):
            await connection.close()
        if self.speculation is not None:
            self.speculation.close()
        await self.tasks.cancel()
