"""The sequence ids of a topic in storage: loaded, kept in a cursor as snapshots, deleted.

A snapshot is stored as the properties of a cursor (DEDUPLICATION_CURSOR) that stands at the last entry the snapshot
knows of. Loading takes the snapshot and replays the entries behind that position.

Deduplication that is switched on begins with the next message (`MessageDeduplication.checkStatus`, 4.0.8). What was
stored before has numbers of another kind: without deduplication a producer of the same name begins at 0 each time, so
by the largest of them its next messages would be taken for duplicates, and lost.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Final

from broker.errors import storage_errors
from broker.names import DEDUPLICATION_CURSOR
from broker.settings.config import BrokerConfig
from broker.topic.publishing.deduplication import Deduplication
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import parse_metadata

if TYPE_CHECKING:
    from managed_ledger.cursors.managed_cursor import ManagedCursor
    from managed_ledger.ledger import ManagedLedger

log = logging.getLogger(__name__)

# Entries and bytes that one step of the replay reads when a topic with deduplication is opened.
REPLAY_ENTRIES: Final = 1_000
REPLAY_BYTES: Final = 8 * 1024 * 1024


class StoredDeduplication:
    """Switches deduplication of one topic on and off, and stores its snapshots."""

    def __init__(
        self,
        topic: TopicName,
        ledger: "ManagedLedger",
        config: BrokerConfig,
        clock: Clock,
        use: Callable[[Deduplication | None], None],
    ) -> None:
        """*use* is called with the state when deduplication begins, and with None when it ends."""
        self._topic = topic
        self._ledger = ledger
        self._config = config
        self._clock = clock
        self._use = use
        self._state: Deduplication | None = None
        self._cursor: ManagedCursor | None = None
        self._last_snapshot_s = clock.monotonic()

    async def apply(self, is_wanted: bool) -> None:
        """Begin or end deduplication. Raises StorageFailure. Calls must not overlap."""
        if is_wanted:
            if self._state is None and not self._topic.is_system:
                await self._begin()
            return
        if self._state is not None:
            self._state = self._cursor = None
            self._use(None)
            await self._delete_cursor()
        elif DEDUPLICATION_CURSOR in self._ledger.cursors:
            await self._delete_cursor()

    async def _begin(self) -> None:
        """Load the stored sequence ids, and read the entries that came after them."""
        with storage_errors():
            cursor = await self._ledger.open_cursor(DEDUPLICATION_CURSOR)
            state = Deduplication(self._config.deduplication_producers)
            state.restore(cursor.properties)
            cursor.rewind()
            while True:
                answer = cursor.read(REPLAY_ENTRIES, REPLAY_BYTES)
                entries = answer if isinstance(answer, Sequence) else await answer
                for entry in entries:
                    try:
                        state.replay(parse_metadata(entry.data))
                    except Corruption as error:
                        log.warning("%s: entry %s:%s: %s", self._topic, entry.ledger_id, entry.entry_id, error)
                if not entries:  # the end; entries appended meanwhile are noted when they are durable
                    break
        self._state, self._cursor = state, cursor
        self._use(state)

    async def _delete_cursor(self) -> None:
        """Delete the cursor of deduplication: one that is never moved would hold back trimming for ever."""
        with storage_errors():
            await self._ledger.delete_cursor(DEDUPLICATION_CURSOR)

    def snapshot(self) -> None:
        """Store the sequence ids with the position of the last confirmed entry."""
        if self._state is None or self._cursor is None:
            return
        self._last_snapshot_s = self._clock.monotonic()
        self._cursor.mark_delete(self._ledger.ledgers.last_confirmed, self._state.snapshot())

    def snapshot_if_due(self, connected: Collection[str], period_s: float) -> None:
        """If a snapshot is due, forget producers that left long ago and take it; *connected* are there now."""
        config = self._config
        if self._state is None or self._clock.monotonic() - self._last_snapshot_s < period_s:
            return
        inactivity_ms = config.deduplication_inactivity_minutes * 60_000
        self._state.forget_inactive(connected, self._clock.wall_ms(), inactivity_ms)
        self.snapshot()
