"""Seeded runs of managed ledgers: a few brokers, one topic, one BookKeeper, one metadata tree. A seed is a whole run.

What may happen: calls take any number of turns and overtake each other; creating, closing,
adding, recovering and deleting ledgers fail, before or after they took effect; answers of the metadata store are
lost, applied or not; a broker stops dead at any await; another one takes over although the former lives.

What must hold, whatever happens: see `Recorder`, and `check_step` and `check_end` of `TopicUnderTakeovers`.

`SEED=8315` repeats one run.
"""

import asyncio
import contextlib
import functools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, TypeVar

import pytest

from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    NotEnoughBookies,
    RecoveryFailed,
)
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown, StoreUnavailable
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.reading.reading import Entry
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_ledger_info, decode_position_info
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.memory_bookkeeper import MemoryBookKeeper, MemoryWriteHandle

T = TypeVar("T")

SEEDS = [int(os.environ["SEED"])] if "SEED" in os.environ else range(200)

NAME = "public/default/persistent/t"
RECORD = f"/managed-ledgers/{NAME}"
CURSORS = ("s", "t")

# What may fail at each step, and in how many of a thousand.
BOOKKEEPER_FAULTS: dict[str, tuple[int, type[BookKeeperError]]] = {
    "create": (40, NotEnoughBookies),
    "close": (40, MetadataUnavailable),
    "closed": (40, MetadataUnavailable),
    "open": (30, RecoveryFailed),
    "opened": (20, MetadataUnavailable),
    "add": (30, BookieUnavailable),
    "added": (10, BookieUnavailable),
    "read": (10, BookieUnavailable),
    "delete": (50, MetadataUnavailable),
}
STORE_FAULTS: dict[str, tuple[tuple[int, type[StoreUnavailable]], ...]] = {
    "get": ((20, StoreUnavailable),),
    "children": ((20, StoreUnavailable),),
    "put": ((20, StoreUnavailable), (40, OutcomeUnknown)),
    "put done": ((50, OutcomeUnknown),),
    "delete": ((20, StoreUnavailable), (20, OutcomeUnknown)),
    "delete done": ((30, OutcomeUnknown),),
}


def payload(number: int) -> bytes:
    return b"entry %d" % number


class Recorder:
    """The events of one opened managed ledger. Rules: each append is answered once; none is acknowledged after the end,
    before its ledger is listed (I86), or out of order (I88)."""

    def __init__(self, world: "TopicUnderTakeovers") -> None:
        self.world = world
        self.sent: list[int] = []
        self.answered: list[int] = []
        self.is_told = False

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[int]) -> None:
        assert not self.is_told, "acknowledged after the end (I106)"
        world = self.world
        assert ledger_id in world.listed(), f"ledger {ledger_id} is written and not listed (I86)"
        for entry_id, number in enumerate(contexts, first_entry_id):
            position = Position(ledger_id, entry_id)
            assert world.bookkeeper.ledgers[ledger_id].entries[entry_id] == payload(number), "not where it was said"
            assert not world.acknowledged or position > max(world.acknowledged), "positions go back (I88)"
            assert world.terminated is None or position <= world.terminated, "behind the end of the topic (I92)"
            world.acknowledged[position] = number
        self.answered += contexts

    def on_append_failed(self, contexts: Sequence[int], error: ManagedLedgerError) -> None:
        self.answered += contexts

    def on_closed(self, error: ManagedLedgerError) -> None:
        assert not self.is_told, "told twice"
        self.is_told = True


class Broker:
    """One process. Once it is dead, none of its awaits returns, and none of its requests arrives."""

    def __init__(self, world: "TopicUnderTakeovers") -> None:
        self.world = world
        self.is_dead = False
        self.store = FaultyStore(world.store.session(), self._store_step)
        self.bookkeeper = world.bookkeeper.session()
        self.bookkeeper.hold = True
        self.bookkeeper.on_step = self._bookkeeper_step
        self.bookkeeper.survivors = lambda sent: world.rng.randint(0, sent)
        self.factory = ManagedLedgerFactory(self.bookkeeper.client, self.store, world.clock, world.config)
        self.ledger: ManagedLedger | None = None
        self.recorder = Recorder(world)
        self.is_opening = False

    async def _pause(self) -> None:
        for _ in range(self.world.rng.choice((0, 0, 0, 1, 1, 2, 5))):
            await asyncio.sleep(0)
        if self.is_dead:
            self.world.never.append(asyncio.get_running_loop().create_future())
            await self.world.never[-1]

    async def _bookkeeper_step(self, what: str, ledger_id: int) -> None:
        await self._pause()
        odds, error = BOOKKEEPER_FAULTS.get(what, (0, BookKeeperError))
        if self.world.chaos and self.world.rng.random() * 1_000 < odds:
            raise error(f"{what} of {ledger_id} failed")

    async def _store_step(self, what: str, path: str) -> None:
        await self._pause()
        if self.world.chaos:
            for odds, error in STORE_FAULTS[what]:
                if self.world.rng.random() * 1_000 < odds:
                    raise error(f"{what} {path}")

    async def open(self) -> None:
        if self.is_opening:
            return
        self.is_opening = True
        try:
            ledger = await self.factory.open(NAME)
        finally:
            self.is_opening = False
        if ledger is not self.ledger:
            self.ledger, self.recorder = ledger, Recorder(self.world)
            self.world.recorders.append(self.recorder)
            ledger.listener = self.recorder
            if not (ledger.is_open or ledger.is_terminated):  # before we listened; whoever opens it looks at that
                self.recorder.is_told = True

    def waiting(self) -> list[MemoryWriteHandle]:
        """Handles of the topic's ledgers whose entries are on their way."""
        return [handle for handle in self.bookkeeper.handles if handle.listener is not None and handle._sent]

    def die(self) -> None:
        self.is_dead = True
        for handle in self.bookkeeper.handles:
            handle.listener = None
        self.recorder.sent = self.recorder.answered  # nobody is left to hear of the rest


class TopicUnderTakeovers:
    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.chaos = False
        self.config = ManagedLedgerConfig(
            rollover=RolloverRule(
                entries_max=rng.randint(1, 5), bytes_max=1 << 30, age_max_ms=rng.choice((0, 500)), age_min_ms=0
            ),
            retention=rng.choice((RetentionRule(), RetentionRule(time_ms=-1, bytes_max=-1))),
            mark_delete_interval_s=rng.choice((0.0, 0.2)),
            cursor_ledger_entries_max=rng.randint(1, 3),
            cursor_ranges_in_node_max=rng.choice((1, 1_000)),
            append_timeout_s=2.0,
        )
        self.brokers = [Broker(self) for _ in range(rng.randint(2, 3))]
        self.recorders: list[Recorder] = []
        self.numbers = 0
        self.owner = 0
        self.never: list[asyncio.Future[None]] = []
        self.acknowledged: dict[Position, int] = {}
        self.terminated: Position | None = None
        # Of each cursor, since it was last set to a position: what clients acknowledged, one by one and up to a
        # position; and what was surely stored. Resets that began or ended; what was gone already when one ended.
        self.singles: dict[str, set[Position]] = {name: set() for name in CURSORS}
        self.marks: dict[str, Position] = dict.fromkeys(CURSORS, EARLIEST)
        self.stored_singles: dict[str, set[Position]] = {name: set() for name in CURSORS}
        self.stored_marks: dict[str, Position] = dict.fromkeys(CURSORS, EARLIEST)
        self.resets: dict[str, int] = dict.fromkeys(CURSORS, 0)
        self.sought: dict[str, Position] = dict.fromkeys(CURSORS, EARLIEST)
        self.excused: dict[str, set[Position]] = {name: set() for name in CURSORS}
        self.seeks = 0
        self.told = self.repaired = 0
        self.prepared = self.takeovers = self.deaths = self.trimmed = self.failures = 0

    # ------------------------------------------------------------------------------ what is stored

    def _value(self, path: str) -> bytes | None:
        record = self.store._tree.record(path)
        return None if record is None else record.value

    def listed(self) -> list[int]:
        return [info.ledgerId for info in decode_ledger_info(self._value(RECORD) or b"", NAME).ledgerInfo]

    # ------------------------------------------------------------------------------------- running

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Advance turns and time until *work* is done."""
        task = asyncio.create_task(work)
        for _ in range(1_000):
            if task.done():
                break
            await self.turns(10)
            self.clock.advance(0.1)
        assert task.done(), "it does not come to an end (I111)"
        return task.result()

    def quietly(self, work: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            try:
                await work
            except ManagedLedgerError:
                self.failures += 1

        self._tasks.append(asyncio.create_task(run()))

    async def run(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        errors: list[BaseException] = []
        loop.set_exception_handler(
            lambda _, context: errors.append(context.get("exception") or AssertionError(context))
        )
        first = self.brokers[0]
        await first.open()
        assert first.ledger is not None
        for name in CURSORS:
            await first.ledger.open_cursor(name, EARLIEST)
        self.chaos = True
        for _ in range(self.rng.randint(100, 300)):
            self.step()
            await self.turns(self.rng.choice((0, 1, 3, 8, 20)))
            if self.rng.random() < 0.3:
                self.clock.advance(self.rng.choice((0.05, 0.3, 1.0)))
            self.check_step()
            assert not errors, errors
        self.chaos = False
        if self.rng.random() < 0.5:
            for broker in self.brokers:
                broker.die()
        await self.settle()
        await self.check_end()
        assert not errors, errors
        for task in self._tasks:
            if task.done() and not task.cancelled():
                task.result()
        mine = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not mine:
                task.cancel()
        await self.turns(3)

    def step(self) -> None:
        rng = self.rng
        if rng.random() < 0.03:
            self.owner = rng.randrange(len(self.brokers))
        # Mostly the owner acts; sometimes a former owner does, which believes that it still is the owner.
        broker = self.brokers[self.owner] if rng.random() < 0.8 else rng.choice(self.brokers)
        ledger = broker.ledger
        action = rng.choices(
            (
                "append",
                "answer",
                "fail",
                "repair",
                "tell",
                "acknowledge",
                "flush",
                "seek",
                "trim",
                "close",
                "die",
                "terminate",
                "prepare",
            ),
            (30, 50, 1.5, 1, 4, 15, 10, 1, 6, 1, 1, 0.1, 5),
        )[0]
        if action == "prepare":  # somebody believes that the owner is gone
            other = rng.choice(self.brokers)
            self.prepared += not other.factory.preparations.names
            other.factory.prepare(NAME)
            return
        if (ledger is None or not ledger.is_open) and broker is self.brokers[self.owner] and rng.random() < 0.5:
            self.takeovers += not broker.is_opening
            self.quietly(broker.open())
        elif action == "die":
            self.deaths += 1
            broker.die()
            self.brokers[self.brokers.index(broker)] = Broker(self)
        elif ledger is None:
            return
        elif action == "append":
            numbers = list(range(self.numbers, self.numbers + rng.randint(1, 4)))
            self.numbers += len(numbers)
            broker.recorder.sent += numbers
            ledger.append([payload(number) for number in numbers], numbers)
        elif action == "answer":
            for handle in broker.waiting():
                handle.release(rng.choice((1, len(handle._sent))))
        elif action == "fail":
            if broker.bookkeeper.handles:
                rng.choice(broker.bookkeeper.handles).fail(BookieUnavailable("all gone"))
        elif action == "repair":  # auto-recovery closes the last ledger, whoever writes it
            last = self.listed()[-1:]
            if last and not self.bookkeeper.ledgers[last[0]].closed:
                self.repaired += 1
                self.quietly(self.recover(last[0]))
        elif action == "tell":  # the record of a ledger rings that somebody has closed it
            for handle in broker.bookkeeper.handles:
                if handle.listener is not None and handle._ledger.closed:
                    self.told += handle._failed is None
                    handle.fail(LedgerClosed("closed by another client"))
        elif action == "acknowledge":
            self.acknowledge(ledger)
        elif action == "flush":
            for cursor in ledger.cursors.values():
                self.quietly(self.flush(cursor))
        elif action == "seek":
            sought = ledger.cursors.get(rng.choice(CURSORS))
            if sought is not None and self.acknowledged:
                self.quietly(self.seek(ledger, sought, rng.choice([EARLIEST, *self.acknowledged])))
        elif action == "terminate":
            self.quietly(self.terminate(ledger))
        elif action == "trim":
            self.quietly(ledger.maintain())
        elif action == "close":
            self.quietly(ledger.close())

    async def recover(self, ledger_id: int) -> None:
        client = self.bookkeeper.session()
        client.survivors = lambda sent: self.rng.randint(0, sent)
        with contextlib.suppress(NoSuchLedger):  # trimmed
            await client.open_ledger(ledger_id, recovery=True)

    def acknowledge(self, ledger: ManagedLedger) -> None:
        """A consumer of the broker's has got something and acknowledges it."""
        name = self.rng.choice(CURSORS)
        cursor = ledger.cursors.get(name)
        known = [position for position in self.acknowledged if position <= ledger.ledgers.last_confirmed]
        if cursor is None or not known:
            return
        if self.rng.random() < 0.3:
            position = self.rng.choice(known)
            self.marks[name] = max(self.marks[name], position)
            cursor.mark_delete(position)
        else:
            position = self.rng.choice(known)
            self.singles[name].add(position)
            cursor.delete([position])

    async def flush(self, cursor: ManagedCursor) -> None:
        mark = cursor.mark_delete_position
        singles = {position for position in self.acknowledged if cursor.is_deleted(position)}
        resets = self.resets[cursor.name]
        if cursor._persisted_version == cursor._state.version:
            return  # nothing to do; a former owner does not know what the present one did since
        await cursor.flush()
        if self.resets[cursor.name] != resets:
            return  # before or behind which of them it was stored is not known
        self.stored_marks[cursor.name] = max(self.stored_marks[cursor.name], mark)
        if self.config.cursor_ranges_in_node_max > 1:  # beyond the limit ranges are not stored, as it says
            self.stored_singles[cursor.name] |= singles

    async def seek(self, ledger: ManagedLedger, cursor: ManagedCursor, position: Position) -> None:
        name = cursor.name
        singles, mark = set(self.singles[name]), self.marks[name]
        before = ledger.ledgers.previous_position(position)
        self.resets[name] += 1
        self.stored_marks[name], self.stored_singles[name] = EARLIEST, set()
        self.sought[name] = max(self.sought[name], before)  # it may be stored although the answer was lost
        await cursor.reset(position)
        self.seeks += 1
        self.resets[name] += 1
        self.singles[name] -= singles
        self.marks[name] = before if self.marks[name] == mark else max(before, self.marks[name])
        self.stored_marks[name], self.stored_singles[name] = EARLIEST, set()
        listed = self.listed()
        self.excused[name] = {known for known in self.acknowledged if known.ledger_id not in listed}

    async def terminate(self, ledger: ManagedLedger) -> None:
        last = await ledger.terminate()
        assert self.terminated in (None, last), "two ends (I92)"
        self.terminated = last

    async def settle(self) -> None:
        for _ in range(1_000):
            if all(len(recorder.answered) >= len(recorder.sent) for recorder in self.recorders):
                break
            for broker in self.brokers:
                for handle in broker.waiting():
                    handle.release()
            await self.turns(15)
            self.clock.advance(0.2)
        for recorder in self.recorders:
            assert sorted(recorder.answered) == recorder.sent, "an append was not answered, or twice (I91, I102)"

    # -------------------------------------------------------------------------------------- checks

    def check_step(self) -> None:
        """Of what is stored, at any moment."""
        infos = list(decode_ledger_info(self._value(RECORD) or b"", NAME).ledgerInfo)
        ids = [info.ledgerId for info in infos]
        assert ids == sorted(set(ids))
        for info in infos:
            assert info.ledgerId in self.bookkeeper.ledgers, f"ledger {info.ledgerId} is listed and gone (I57, I85)"
        for info in infos[:-1]:
            stored = self.bookkeeper.ledgers[info.ledgerId]
            assert stored.closed, f"ledger {info.ledgerId} is open, and not the last (I87)"
            assert len(stored.entries) == info.entries, f"ledger {info.ledgerId} has other entries than listed (I89)"
        for name in CURSORS:
            value = self._value(f"{RECORD}/{name}")
            assert value is not None
            ledger_id = decode_cursor_info(value, name).cursorsLedgerId
            assert ledger_id == -1 or ledger_id in self.bookkeeper.ledgers, f"the state of cursor {name} is gone"
        gone = max((position for position in self.acknowledged if position.ledger_id not in ids), default=EARLIEST)
        for name in CURSORS:
            if not self.resets[name]:
                assert self.durable_mark(name) >= gone, f"{gone} was trimmed before cursor {name} was stored (I96)"

    def durable_mark(self, name: str) -> Position:
        """The mark-delete position that a new owner would find."""
        value = self._value(f"{RECORD}/{name}")
        assert value is not None
        node = decode_cursor_info(value, name)
        if node.cursorsLedgerId != -1 and self.bookkeeper.ledgers[node.cursorsLedgerId].entries:
            state = decode_position_info(self.bookkeeper.ledgers[node.cursorsLedgerId].entries[-1], name)
            return Position(state.ledgerId, state.entryId)
        return Position(node.markDeleteLedgerId, node.markDeleteEntryId)

    def may_be_consumed(self, name: str, position: Position) -> bool:
        return position <= max(self.marks[name], self.sought[name]) or position in self.singles[name]

    async def check_end(self) -> None:
        """Compare with the state that a new owner finds."""
        self.check_step()
        fresh = Broker(self)
        self.brokers.append(fresh)
        await self.finish(fresh.open())
        ledger = fresh.ledger
        assert ledger is not None
        entries = await self.finish(read_all(ledger))
        found = {entry.position: int(bytes(entry.data).split()[1]) for entry in entries}
        listed = set(self.listed())
        for position, number in self.acknowledged.items():
            if position.ledger_id in listed:
                assert found.get(position) == number, f"{position} was acknowledged and is lost (I85)"
                continue
            self.trimmed += 1
            for name in CURSORS:
                assert self.may_be_consumed(name, position) or position in self.excused[name], (
                    f"{position} was trimmed, and cursor {name} had not consumed it (I93, I96)"
                )
        if self.terminated is not None:
            assert ledger.is_terminated, "a terminated topic is open again (I92)"
            assert ledger.ledgers.last_confirmed == self.terminated
        numbers = list(found.values())
        assert len(set(numbers)) == len(numbers), "an entry is there twice"
        for recorder in self.recorders:
            own = [number for number in numbers if number in set(recorder.sent)]
            assert own == sorted(own), "entries of one owner are out of order (I88)"
        for name in CURSORS:
            cursor = ledger.cursors[name]
            for position in found:
                if cursor.is_deleted(position):
                    assert self.may_be_consumed(name, position), (
                        f"cursor {name} skips {position}, which nobody acknowledged (I94)"
                    )
                else:
                    assert position > self.stored_marks[name], f"cursor {name} forgot that {position} was stored (I94)"
                    assert position not in self.stored_singles[name], f"cursor {name} forgot {position} (I94)"
            assert cursor.backlog() == sum(not cursor.is_deleted(position) for position in found), "backlog (I97)"


async def read_all(ledger: ManagedLedger) -> list[Entry]:
    entries: list[Entry] = []
    first = EARLIEST
    while True:
        answer: Sequence[Entry] | Awaitable[Sequence[Entry]] = ledger.read(first, 7, 1 << 20)
        run = answer if isinstance(answer, Sequence) else await answer
        if not run:
            return entries
        entries.extend(run)
        first = ledger.ledgers.next_position(run[-1].position)


@functools.cache
def counts_of(seed: int) -> Counter[str]:
    """Of a run in which nothing was wrong."""
    world = TopicUnderTakeovers(seed)
    asyncio.run(world.run())
    return Counter(
        acknowledged=len(world.acknowledged), takeovers=world.takeovers, deaths=world.deaths, trimmed=world.trimmed,
        failures=world.failures, seeks=world.seeks, prepared=world.prepared, told=world.told, repaired=world.repaired,
    )  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_acknowledged_is_lost_doubled_or_skipped_whoever_owns_the_topic(seed: int) -> None:
    counts_of(seed)


def test_the_runs_reach_what_they_are_for() -> None:
    total = sum((counts_of(seed) for seed in range(40)), Counter[str]())
    assert total["acknowledged"] > 200
    assert total["takeovers"] > 100
    assert total["deaths"] > 20
    assert total["trimmed"] > 10
    assert total["failures"] > 50
    assert total["seeks"] > 5
    assert total["prepared"] > 100
    assert total["told"] > 20
    assert total["repaired"] > 20
