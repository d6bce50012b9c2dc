"""Seeded runs of one durable subscription that reads compacted. A seed is a whole run.

Compaction, its ledgers, the managed ledger, the cursor and its storage are the real code; below them is BookKeeper in
memory. There is one client, which acknowledges what it was sent: single messages in any order, or up to one.

What may happen: publishing, also of tombstones; compactions; trims; reads of some entries; acknowledgements; negative
ones (everything is read again); seeks; an orderly unload; a takeover while the former owner lives, which loses what was
acknowledged and not stored; a consumer that reads the topic itself, and leaves again.

What must hold whenever everything is read again:

1. What is kept of the topic and was not acknowledged comes, once and in order, whether its ledger is there or trimmed.
2. What was acknowledged does not come, but for what a takeover lost.
3. When everything was acknowledged, nothing is held back from trimming.

`SEED=8315` repeats one run.
"""

import asyncio
import os
import random
from collections.abc import Sequence

import pytest

import broker.topic.compaction.compacted_view as compacted_view
from broker.topic.compaction.compacted_view import CompactedCursor
from broker.topic.compaction.compactor import CompactionStatus, Compactor
from broker.topic.ports import Entries
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.tasks import Tasks
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import EARLIEST, LATEST, Position
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import eventually

COUNT = int(os.environ.get("MAGNETAR_SIM_SEEDS", "40"))
SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(COUNT)
STEPS = 60
NAME = TopicName.parse("persistent://public/default/t")


class World:
    """A topic, its subscription, and what is known of both."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.tasks = Tasks("sim")
        self.factories: list[ManagedLedgerFactory] = []
        self.keys = rng.choice([2, 5, 12])
        self.config = ManagedLedgerConfig(
            rollover=RolloverRule(
                entries_max=rng.choice([2, 4, 9]), bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0
            ),
            retention=RetentionRule(time_ms=rng.choice([0, 0, -1]), bytes_max=0),
            mark_delete_interval_s=1000.0,
        )
        self.published: dict[Position, tuple[str, bool]] = {}
        """Position → key, and whether it removes the key."""
        self.kept: set[Position] = set()
        """Up to the horizon."""
        self.horizon = EARLIEST
        self.acked: set[Position] = set()
        self.maybe: set[Position] = set()
        """Of these it is not known whether they come: they were acknowledged, and that was not stored."""
        self.at = EARLIEST
        """A seek went here: what stands before it does not come."""
        self.sent: list[Position] = []
        self.unstored: set[Position] = set()
        """Acknowledged, and not stored."""
        self.gone: set[Position] = set()

    async def open(self) -> None:
        factory = ManagedLedgerFactory(self.bookkeeper.session().client, self.store, self.clock, self.config)
        self.factories.append(factory)
        self.ledger: ManagedLedger = await factory.open("public/default/persistent/t")
        self.ledger.listener = self
        self.compactor = Compactor(NAME, self.ledger, self.clock, self.tasks, asyncio.Semaphore())
        self.inner: ManagedCursor = await self.ledger.open_cursor("s", EARLIEST)
        self.is_on = True
        self.cursor = CompactedCursor(self.inner, self.compactor, lambda: self.is_on)
        self.cursor.rewind()

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[object]) -> None:
        for at, context in enumerate(contexts):
            self.published[Position(ledger_id, first_entry_id + at)] = context  # type: ignore[assignment]

    def on_append_failed(self, contexts: Sequence[object], error: Exception) -> None:
        raise AssertionError(error)

    def on_closed(self, error: Exception) -> None: ...

    # -------------------------------------------------------------------------------- events

    async def publish(self) -> None:
        for _ in range(self.rng.randrange(1, 8)):
            key, is_removed = f"k{self.rng.randrange(self.keys)}", self.rng.random() < 0.1
            metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, partition_key=key)
            before = len(self.published)
            self.ledger.append([encode_entry(metadata, b"" if is_removed else b"x")], [(key, is_removed)])
            await eventually(lambda: len(self.published) > before)  # noqa: B023

    async def compact(self) -> None:
        last = max(self.published, default=EARLIEST)
        await self.compactor.expect(is_expected=True)  # from here on nothing is trimmed that is not looked at
        self.note_gone()
        assert self.compactor.start()
        await eventually(lambda: self.compactor.facts.status is not CompactionStatus.RUNNING)
        assert self.compactor.facts.status is CompactionStatus.SUCCESS, self.compactor.facts.last_error
        lasts: dict[str, Position] = {}
        for position in sorted(self.kept | {one for one in self.published if one > self.horizon} - self.gone):
            key, is_removed = self.published[position]
            lasts.pop(key, None)
            if not is_removed:
                lasts[key] = position
        self.kept, self.horizon = set(lasts.values()), last

    def expected(self) -> set[Position]:
        later = {position for position in self.published if position > self.horizon}
        return {one for one in self.kept | later if one >= self.at} - self.acked - self.gone

    def note_gone(self) -> None:
        """What was consumed and trimmed, and is not kept, does not come back by a seek, nor by a compaction."""
        expected = self.expected()
        for position in self.published:
            if position < self.ledger.ledgers.first_position and position not in self.kept:
                assert position not in expected, f"{position} was trimmed"
                self.gone.add(position)

    async def read(self, most: int) -> list[Position]:
        found: list[Position] = []
        while len(found) < most and self.cursor.has_more():
            some = self.cursor.read(min(most - len(found), self.rng.choice([1, 3, 100])), 1 << 20)
            entries: Entries = some if isinstance(some, Sequence) else await some
            found += [entry.position for entry in entries]
        self.sent += found
        return found

    def acknowledge(self) -> None:
        if not self.sent:
            return
        if self.rng.random() < 0.2:
            up_to = self.rng.choice(self.sent)
            self.cursor.mark_delete(up_to)
            done = {one for one in self.published if one <= up_to}
        else:
            done = set(self.rng.sample(self.sent, self.rng.randrange(1, min(len(self.sent), 5) + 1)))
            self.cursor.delete(sorted(done))
        self.acked |= done
        self.unstored |= done

    async def again(self) -> None:
        """Everything unacknowledged is read again."""
        self.cursor.rewind()
        self.sent.clear()
        found = await self.read(1 << 30)
        assert found == sorted(set(found)), "twice, or out of order"
        missing = self.expected() - set(found)
        assert not missing, f"lost: {sorted(missing)}"
        extra = set(found) - self.expected() - self.maybe
        assert not extra, f"acknowledged, and came again: {sorted(extra)}"
        self.acked -= self.maybe & set(found)
        self.maybe = set()

    async def store_all(self) -> None:
        await self.inner.flush()
        self.unstored = set()

    async def unload(self) -> None:
        await self.factories[-1].close()
        self.unstored = set()
        await self.open()
        await self.again()

    async def take_over(self) -> None:
        if self.rng.random() < 0.7:
            await self.store_all()
        self.maybe, self.unstored = self.unstored, set()
        await self.open()
        await self.again()

    async def seek(self) -> None:
        self.note_gone()
        self.at = self.rng.choice([EARLIEST, LATEST, *sorted(self.published)])
        await self.cursor.reset(self.at)
        self.acked, self.unstored = set(), set()
        if self.at == LATEST:
            last = max(self.published, default=EARLIEST)
            self.at = Position(last.ledger_id, last.entry_id + 1)
        await self.again()

    async def look_at_the_topic(self) -> None:
        """A consumer that does not want what was compacted has a look, and acknowledges nothing."""
        self.is_on = False
        self.cursor.rewind()
        await self.read(3)
        self.is_on = True
        await self.again()

    async def end(self) -> None:
        """Rule 3."""
        await self.again()
        order = list(self.sent)
        self.rng.shuffle(order)
        for position in order:
            self.cursor.delete([position])
            self.acked.add(position)
            await self.read(1)
        await self.again()
        await self.compact()
        await self.again()
        await self.store_all()
        assert self.inner.mark_delete_position >= self.ledger.ledgers.last_confirmed
        assert self.inner.range_count == 0
        await self.unload()


@pytest.mark.parametrize("seed", SEEDS)
async def test_seeded(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(compacted_view, "OPEN_MAX", rng.choice([2, 5, 20_000]))
    monkeypatch.setattr(compacted_view, "_LOOK_ENTRIES", rng.choice([1, 3, 1000]))
    world = World(rng)
    await world.open()
    try:
        for _ in range(STEPS):
            kind = rng.choices(
                ["publish", "compact", "trim", "read", "ack", "again", "unload", "take over", "store", "seek", "look"],
                [20, 8, 8, 25, 40, 5, 5, 5, 5, 2, 2],
            )[0]
            match kind:
                case "publish":
                    await world.publish()
                case "compact":
                    await world.compact()
                case "trim":
                    await world.store_all()
                    await world.ledger.trim()
                case "read":
                    await world.read(rng.randrange(1, 10))
                case "ack":
                    world.acknowledge()
                case "again":
                    await world.again()
                case "unload":
                    await world.unload()
                case "take over":
                    await world.take_over()
                case "store":
                    await world.store_all()
                case "seek":
                    await world.seek()
                case "look":
                    await world.look_at_the_topic()
        await world.end()
    finally:
        await world.tasks.cancel()
        for factory in world.factories:
            await factory.close()
