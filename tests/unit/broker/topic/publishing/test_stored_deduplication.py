"""Deduplication in storage: what is learned when it begins, what a snapshot holds, what is left when it ends."""

import asyncio
from typing import cast

from broker.names import DEDUPLICATION_CURSOR
from broker.settings.config import BrokerConfig
from broker.topic.publishing.deduplication import Deduplication
from broker.topic.publishing.stored_deduplication import StoredDeduplication
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledger import ManagedLedger
from tests.support.manual_clock import ManualClock
from tests.support.memory_managed_ledger import MemoryManagedLedger
from tests.unit.broker.topic.dispatching import entry

CONFIG = BrokerConfig(deduplication_snapshot_s=120, deduplication_inactivity_minutes=60)


class Stored:
    """A topic's deduplication over a ledger in memory."""

    def __init__(self, topic: str = "public/default/t", ledger: MemoryManagedLedger | None = None) -> None:
        self.ledger = ledger or MemoryManagedLedger("t")
        if ledger is None:
            self.ledger.begin_ledger(1)
        self.clock = ManualClock()
        self.used: list[Deduplication | None] = []
        self.stored = StoredDeduplication(
            TopicName.parse(topic), cast(ManagedLedger, self.ledger), CONFIG, self.clock, self.used.append
        )

    @property
    def state(self) -> Deduplication:
        state = self.used[-1]
        assert state is not None
        return state

    async def append(self, *sequence_ids: int) -> None:
        self.ledger.append([entry(number) for number in sequence_ids], [None] * len(sequence_ids))
        await asyncio.sleep(0)


async def test_what_was_stored_before_it_was_switched_on_does_not_count() -> None:
    """A producer that began anew twice: its next message has a number below that of a former one."""
    topic = Stored()
    await topic.append(0, 1, 2, 3, 0)
    await topic.stored.apply(True)
    assert topic.state.last_sequence_id("p") == -1
    await topic.stored.apply(True)
    assert len(topic.used) == 1, "it goes on with the state that it has"


async def test_it_goes_on_with_what_was_stored_since_and_skips_damaged_entries() -> None:
    topic = Stored()
    await topic.stored.apply(True)
    await topic.append(3, 4)
    topic.ledger.append([b"\xff damaged"], [None])
    await topic.append(9)
    again = Stored(ledger=topic.ledger)
    await again.stored.apply(True)
    assert again.state.last_sequence_id("p") == 9


async def test_a_snapshot_holds_the_sequence_ids_at_the_last_entry() -> None:
    topic = Stored()
    await topic.stored.apply(True)
    await topic.append(3, 4)
    topic = Stored(ledger=topic.ledger)
    await topic.stored.apply(True)
    topic.stored.snapshot()
    cursor = topic.ledger.cursors[DEDUPLICATION_CURSOR]
    assert (cursor.mark_delete_position, cursor.properties) == (topic.ledger.ledgers.last_confirmed, {"p": 4})
    await topic.append(5)
    again = Stored(ledger=topic.ledger)
    await again.stored.apply(True)
    assert again.state.last_sequence_id("p") == 5, "the snapshot, and the entries behind it"


async def test_a_due_snapshot_forgets_producers_that_left_long_ago() -> None:
    topic = Stored()
    await topic.stored.apply(True)
    await topic.append(3)
    topic = Stored(ledger=topic.ledger)
    await topic.stored.apply(True)
    topic.stored.snapshot_if_due([], CONFIG.deduplication_snapshot_s)
    assert topic.ledger.cursors[DEDUPLICATION_CURSOR].properties == {}, "no snapshot is due"
    topic.clock.advance(121)
    topic.stored.snapshot_if_due([], CONFIG.deduplication_snapshot_s)
    assert topic.ledger.cursors[DEDUPLICATION_CURSOR].properties == {"p": 3}
    topic.clock.advance(3_600)
    topic.stored.snapshot_if_due([], CONFIG.deduplication_snapshot_s)
    assert topic.ledger.cursors[DEDUPLICATION_CURSOR].properties == {}
    assert topic.state.last_sequence_id("p") == -1


async def test_when_it_ends_its_cursor_holds_nothing_back() -> None:
    topic = Stored()
    await topic.stored.apply(True)
    await topic.stored.apply(False)
    assert topic.used[-1] is None
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors
    await topic.ledger.open_cursor(DEDUPLICATION_CURSOR)  # left by a broker that had it switched on
    again = Stored(ledger=topic.ledger)
    await again.stored.apply(False)
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors
    assert again.used == []


async def test_topics_of_the_system_are_not_deduplicated() -> None:
    topic = Stored("persistent://pulsar/system/t")
    await topic.stored.apply(True)
    assert topic.used == []
    topic.stored.snapshot()
    assert DEDUPLICATION_CURSOR not in topic.ledger.cursors
