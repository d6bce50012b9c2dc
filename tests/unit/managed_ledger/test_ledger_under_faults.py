"""What a managed ledger must not do when something fails, or somebody else takes over, between any two steps.

Schedules and rules are named by their numbers (docs/invariants.md).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from magnetar_core.bookkeeper.client.errors import (
    BookieUnavailable,
    BookKeeperError,
    EntryTooLarge,
    LedgerClosed,
    LedgerFenced,
    MetadataUnavailable,
    NoSuchLedger,
    TooManyPending,
)
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, OutcomeUnknown, StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.cursors.managed_cursor import ManagedCursor
from managed_ledger.errors import (
    EntryRefused,
    InvalidPosition,
    ManagedLedgerClosed,
    ManagedLedgerError,
    ManagedLedgerFenced,
    ManagedLedgerTerminated,
    StorageUnavailable,
)
from managed_ledger.factory import ManagedLedgerFactory
from managed_ledger.ledger import ManagedLedger
from managed_ledger.position import EARLIEST, Position
from managed_ledger.records.pulsar_records import decode_cursor_info, decode_ledger_info
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.retention import RetentionRule, RolloverRule
from tests.support.faulty_store import FaultyStore
from tests.support.memory_bookkeeper import MemoryBookKeeper
from tests.support.waiting import eventually, settle
from tests.unit.managed_ledger.test_ledger import Recorder, payloads, read_all

NAME = "public/default/persistent/t"
RECORD = f"/managed-ledgers/{NAME}"
CURSOR = f"{RECORD}/s"
KEEP = RetentionRule(time_ms=-1, bytes_max=-1)
CONFIG = ManagedLedgerConfig(
    rollover=RolloverRule(entries_max=5, bytes_max=1 << 30, age_max_ms=1 << 40, age_min_ms=0),
    retention=KEEP,
    mark_delete_interval_s=0.0,
    append_timeout_s=0.5,
)


class Broker:
    """One process: its own sessions, its own factory."""

    def __init__(self, world: "FaultyStorage", config: ManagedLedgerConfig) -> None:
        self.store = FaultyStore(world.store.session())
        self.bookkeeper = world.bookkeeper.session()
        self.factory = ManagedLedgerFactory(self.bookkeeper.client, self.store, world.clock, config)
        self.recorder = Recorder()
        self.ledger: ManagedLedger

    async def open(self) -> ManagedLedger:
        self.ledger = await self.factory.open(NAME)
        self.ledger.listener = self.recorder
        return self.ledger

    async def publish(self, first: int, last: int) -> None:
        self.ledger.append(payloads(first, last), list(range(first, last)))
        await settle()

    @property
    def acknowledged(self) -> list[int]:
        return [context for _, context in self.recorder.appended]

    def on_record(self, what: str, *errors: Exception, path: str = RECORD) -> list[str]:
        """Raise *errors*, one after the other, at the next steps *what* on the record; later ones pass."""
        left = list(errors)
        seen: list[str] = []

        async def step(kind: str, at: str) -> None:
            if at == path:
                seen.append(kind)
                if kind == what and left:
                    raise left.pop(0)

        self.store.on_step = step
        return seen


class FaultyStorage:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.store = MemoryStore(self.clock)
        self.bookkeeper = MemoryBookKeeper()
        self.brokers: list[Broker] = []

    async def open(self, config: ManagedLedgerConfig = CONFIG) -> Broker:
        broker = Broker(self, config)
        self.brokers.append(broker)
        await broker.open()
        return broker

    async def record(self) -> ManagedLedgerInfo:
        node = await self.store.get(RECORD)
        assert node is not None
        return decode_ledger_info(node.value, NAME)

    async def check_record(self) -> None:
        """Every ledger of the record exists (I85); all but the last are closed, with the entries noted (I87)."""
        infos = list((await self.record()).ledgerInfo)
        for info in infos:
            assert info.ledgerId in self.bookkeeper.ledgers, f"ledger {info.ledgerId} is in the record and was deleted"
        for info in infos[:-1]:
            stored = self.bookkeeper.ledgers[info.ledgerId]
            assert stored.closed
            assert len(stored.entries) == info.entries

    async def read_anew(self, config: ManagedLedgerConfig = CONFIG) -> list[bytes]:
        """What a new owner finds."""
        return [bytes(entry.data) for entry in await read_all((await self.open(config)).ledger)]


@pytest.fixture
async def world() -> AsyncIterator[FaultyStorage]:
    world = FaultyStorage()
    yield world
    for broker in world.brokers:
        broker.store.on_step = None
        broker.bookkeeper.on_step = None
        await broker.factory.close()


class Gate:
    """Stops the first step of a kind until it is opened."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._open = asyncio.Event()
        self.reached = asyncio.Event()

    async def __call__(self, what: str, where: object) -> None:
        if what == self._what:
            self.reached.set()
            await self._open.wait()
        else:
            await asyncio.sleep(0)

    def open(self) -> None:
        self._open.set()


def wrote(seen: Sequence[str]) -> int:
    return seen.count("put done")


# ------------------------------------------------------------------------------------- the record in doubt


async def test_a_ledger_whose_listing_is_in_doubt_is_not_deleted(world: FaultyStorage) -> None:
    """R-M2, I57: the record was written, the answer was lost, and so were the next questions."""
    broker = await world.open()
    doubts: dict[str, list[StoreUnavailable]] = {
        "put done": [OutcomeUnknown("lost")],
        "put": [OutcomeUnknown("lost")] * 3,
        "get": [StoreUnavailable("away")],
    }
    armed = False

    async def step(what: str, path: str) -> None:
        nonlocal armed
        if path != RECORD:
            return
        armed = armed or what == "put done"
        if armed and doubts.get(what):
            raise doubts[what].pop()

    broker.store.on_step = step
    await broker.publish(0, 7)
    await eventually(lambda: broker.acknowledged == list(range(7)))
    await eventually(world.check_record)
    assert broker.recorder.closed == []
    assert await world.read_anew() == payloads(0, 7)


async def test_a_write_of_the_record_that_was_lost_on_the_way_is_made_again(world: FaultyStorage) -> None:
    broker = await world.open()
    broker.on_record("put", OutcomeUnknown("lost"), OutcomeUnknown("lost"))
    await broker.publish(0, 7)
    assert broker.acknowledged == list(range(7))
    await world.check_record()


async def test_ledgers_that_were_left_behind_in_doubt_go_when_the_record_is_known_again(world: FaultyStorage) -> None:
    """I101: none of them is named by anything, so none of them stays."""
    broker = await world.open()
    broker.on_record("put", *[OutcomeUnknown("lost")] * 8)
    await broker.publish(0, 7)
    await eventually(lambda: broker.acknowledged == list(range(7)))

    async def only_named_ones() -> bool:
        named = {info.ledgerId for info in (await world.record()).ledgerInfo}
        return set(world.bookkeeper.ledgers) == named

    await eventually(only_named_ones)


@pytest.mark.parametrize("end", ["stored", "closed", "deleted"])
async def test_ledgers_of_a_cursor_that_were_left_behind_in_doubt_go_when_its_node_is_known_again(
    world: FaultyStorage, end: str
) -> None:
    """I101, as for those of the record."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 3)
    broker.on_record("put", *[OutcomeUnknown("lost")] * 3, path=CURSOR)
    cursor.mark_delete(broker.ledger.ledgers.position_at(1))
    with pytest.raises(StorageUnavailable):
        await cursor.flush()
    await world.check_record()
    if end == "stored":
        await cursor.flush()
        assert cursor.ledger_id in world.bookkeeper.ledgers
    elif end == "closed":
        await cursor.close()
    else:
        await broker.ledger.delete_cursor("s")
    named = {info.ledgerId for info in (await world.record()).ledgerInfo} | {cursor.ledger_id} - {-1}
    if end == "deleted":
        named.discard(cursor.ledger_id)
    assert set(world.bookkeeper.ledgers) == named


@pytest.mark.parametrize("end", ["another one", "closed", "deleted"])
async def test_a_ledger_of_a_cursor_that_could_not_be_deleted_goes_with_the_next_one(
    world: FaultyStorage, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The metadata store does not answer for a moment; nothing else would ever look for that ledger."""
    broker = await world.open(replace(CONFIG, cursor_ledger_entries_max=2))
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 7)
    client = broker.bookkeeper.client
    delete, failures = client.delete_ledger, [MetadataUnavailable("it does not answer")]

    async def failing(ledger_id: int) -> None:
        if failures:
            raise failures.pop()
        await delete(ledger_id)

    monkeypatch.setattr(client, "delete_ledger", failing)
    for count in range(1, 7):
        cursor.mark_delete(broker.ledger.ledgers.position_at(count))
        await cursor.flush()
        if not failures and end != "another one":
            break
    assert not failures
    if end == "closed":
        await cursor.close()
    elif end == "deleted":
        await broker.ledger.delete_cursor("s")
    named = {info.ledgerId for info in (await world.record()).ledgerInfo}
    if end == "another one":
        named.add(cursor.ledger_id)
    assert set(world.bookkeeper.ledgers) == named


@pytest.mark.parametrize("step", ["create", "created", "add", "added", "put", "put done"])
async def test_a_ledger_that_a_cursor_begins_while_its_topic_is_lost_does_not_stay(
    world: FaultyStorage, step: str
) -> None:
    """I57: none goes that the node names, or may name."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 3)
    gate = Gate(step)

    async def at_the_cursor(what: str, path: str) -> None:
        if path == CURSOR:
            await gate(what, path)

    broker.bookkeeper.on_step, broker.store.on_step = gate, at_the_cursor
    cursor.mark_delete(broker.ledger.ledgers.position_at(1))
    await gate.reached.wait()
    broker.ledger.fence(ManagedLedgerFenced("another broker has the topic"))
    await broker.ledger.close()
    gate.open()
    await settle()

    named = {info.ledgerId for info in (await world.record()).ledgerInfo}
    if step in ("put", "put done"):  # it was on its way when the topic was lost
        named.add((await stored_cursor(world)).cursorsLedgerId)
    assert set(world.bookkeeper.ledgers) == named - {-1}


async def test_a_ledger_that_is_given_up_while_the_record_is_written_with_it_stays_until_the_next_time(
    world: FaultyStorage,
) -> None:
    """I57: what a write of the record names must not go when that write succeeds."""
    broker = await world.open()
    await broker.publish(0, 3)
    await broker.ledger.close()
    await broker.open()  # its ledger is empty
    gate = Gate("put")
    broker.store.on_step = gate
    setting = asyncio.create_task(broker.ledger.set_properties({"a": "b"}))
    await gate.reached.wait()
    later = Gate("create")
    broker.bookkeeper.on_step = later
    broker.bookkeeper.handles[-1].fail(BookieUnavailable("gone"))
    await later.reached.wait()
    gate.open()
    await setting
    await settle()
    await world.check_record()
    later.open()
    await settle()
    await world.check_record()
    assert len(world.bookkeeper.ledgers) == 2


async def test_an_error_that_nobody_foresaw_ends_the_topic_and_does_not_leave_it_waiting(world: FaultyStorage) -> None:
    """I111: a broker that is never told cannot open it again."""
    broker = await world.open()
    broker.on_record("put", MetadataError("not allowed"))
    await broker.publish(0, 7)

    def all_are_answered() -> bool:
        contexts = broker.acknowledged + [context for context, _ in broker.recorder.failed]
        return sorted(contexts) == list(range(7)) and broker.ledger.pending_count == 0

    await eventually(all_are_answered)


# ------------------------------------------------------------------------------------- fencing and closing


async def test_a_fence_during_a_rollover_is_final(world: FaultyStorage) -> None:
    """R-M1, I90."""
    for what in ("close", "create", "created"):
        broker = await world.open()
        gate = Gate(what)
        broker.bookkeeper.on_step = gate
        broker.ledger.append(payloads(0, 7), list(range(7)))
        await gate.reached.wait()
        seen = broker.on_record("never")
        broker.ledger.fence(ManagedLedgerFenced("a cursor was changed by another owner"))
        gate.open()
        await settle()
        assert broker.ledger.state == "Fenced", what
        assert wrote(seen) == 0, what
        assert [context for context, _ in broker.recorder.failed] == [5, 6], what
        assert len(broker.recorder.closed) == 1, what


async def test_a_fence_while_the_record_is_written_is_final(world: FaultyStorage) -> None:
    broker = await world.open()
    gate = Gate("put")
    broker.store.on_step = gate
    broker.ledger.append(payloads(0, 7), list(range(7)))
    await gate.reached.wait()
    broker.ledger.fence(ManagedLedgerFenced("a cursor was changed by another owner"))
    gate.open()
    await settle()
    assert broker.ledger.state == "Fenced"
    assert broker.acknowledged == list(range(5))
    assert await world.read_anew() == payloads(0, 5)


async def test_closing_during_a_rollover_is_final(world: FaultyStorage) -> None:
    broker = await world.open()
    gate = Gate("create")
    broker.bookkeeper.on_step = gate
    broker.ledger.append(payloads(0, 5), list(range(5)))
    await gate.reached.wait()
    closing = asyncio.create_task(broker.ledger.close())
    await settle()
    gate.open()
    await closing
    await settle()
    assert broker.ledger.state == "Closed"
    assert await world.read_anew() == payloads(0, 5)


async def test_a_failure_that_is_told_during_a_rollover_begins_no_second_one(world: FaultyStorage) -> None:
    """R-M5, I91: with two of them entries are acknowledged at places where they do not stand."""
    broker = await world.open()
    gate = Gate("close")
    broker.bookkeeper.on_step = gate
    broker.ledger.append(payloads(0, 8), list(range(8)))
    await gate.reached.wait()
    broker.bookkeeper.handles[-1].fail(MetadataUnavailable("a left-out bookie could not be replaced"))
    await settle()
    gate.open()
    await settle()
    assert broker.acknowledged == list(range(8))
    await world.check_record()
    assert len(world.bookkeeper.ledgers) == 2
    assert await world.read_anew() == payloads(0, 8)


async def test_a_close_that_fails_once_is_made_again(world: FaultyStorage) -> None:
    broker = await world.open()
    errors: list[BookKeeperError] = [MetadataUnavailable("away")]

    async def step(what: str, ledger_id: int) -> None:
        if what == "closed" and errors:  # it was closed, and the answer was lost
            raise errors.pop()

    broker.bookkeeper.on_step = step
    await broker.publish(0, 8)
    await eventually(lambda: broker.acknowledged == list(range(8)))
    await eventually(world.check_record)


async def test_writes_that_fail_while_the_full_ledger_waits_for_its_last_answers(world: FaultyStorage) -> None:
    broker = await world.open()
    broker.bookkeeper.hold = True
    broker.ledger.append(payloads(0, 8), list(range(8)))
    handle = broker.bookkeeper.handles[-1]
    handle.release(2)
    handle.fail(BookieUnavailable("gone"))
    broker.bookkeeper.hold = False
    await settle()
    assert broker.acknowledged == list(range(8))
    await world.check_record()
    assert await world.read_anew() == payloads(0, 8)


async def test_entries_that_the_last_owner_was_not_told_of_are_seen_by_the_next_one(world: FaultyStorage) -> None:
    """I25: they were on their way, recovery found them; the former owner acknowledges nothing."""
    old = await world.open()
    old.bookkeeper.hold = True
    old.ledger.append(payloads(0, 3), [0, 1, 2])
    new = Broker(world, CONFIG)
    world.brokers.append(new)
    new.bookkeeper.survivors = lambda sent: 2
    await new.open()
    old.bookkeeper.handles[-1].release()
    await settle()
    assert old.acknowledged == []
    assert [context for context, _ in old.recorder.failed] == [0, 1, 2]
    assert [bytes(entry.data) for entry in await read_all(new.ledger)] == payloads(0, 2)


async def test_more_than_a_ledger_may_have_pending_is_sent_in_parts(world: FaultyStorage) -> None:
    """What gathered during a rollover may be more than the handle takes at once."""
    broker = await world.open(replace(CONFIG, rollover=replace(CONFIG.rollover, entries_max=100_000)))
    handle: Any = broker.bookkeeper.handles[-1]
    taken = handle.append

    def append(run: Sequence[bytes]) -> int:
        if len(handle._sent) + len(run) > 12_000:
            raise TooManyPending("too many")
        return int(taken(run))

    handle.append = append
    broker.ledger.append([b"x"] * 40_000, list(range(40_000)))
    await settle()
    assert broker.acknowledged == list(range(40_000))


async def test_an_entry_that_no_ledger_takes_fails_alone(world: FaultyStorage) -> None:
    """Another ledger would refuse it as well, and one after that."""
    broker = await world.open()
    handle: Any = broker.bookkeeper.handles[-1]
    taken = handle.append

    def append(run: Sequence[bytes]) -> int:
        if any(len(data) > 100 for data in run):
            raise EntryTooLarge("too large")
        return int(taken(run))

    handle.append = append
    broker.ledger.append([b"a", bytes(200), b"c", b"d"], list("aBcd"))
    await settle()
    assert [context for _, context in broker.recorder.appended] == list("acd")
    assert [(context, type(error)) for context, error in broker.recorder.failed] == [("B", EntryRefused)]
    assert len(world.bookkeeper.ledgers) == 1


# ---------------------------------------------------------------------------------------- terminate


async def test_a_termination_that_could_not_be_stored_is_no_termination(world: FaultyStorage) -> None:
    """I92: who is told that a topic is terminated must find it so after the next takeover."""
    broker = await world.open()
    await broker.publish(0, 3)
    broker.on_record("put", StoreUnavailable("away"))
    with pytest.raises(StorageUnavailable):
        await broker.ledger.terminate()
    assert not broker.ledger.is_terminated
    await broker.publish(3, 5)
    await eventually(lambda: broker.acknowledged == list(range(5)))
    last = await broker.ledger.terminate()
    assert (await world.record()).HasField("terminatedPosition")
    again = await world.open()
    assert again.ledger.is_terminated
    assert again.ledger.ledgers.last_confirmed == last
    assert [bytes(entry.data) for entry in await read_all(again.ledger)] == payloads(0, 5)


async def test_a_topic_in_use_can_be_terminated_and_every_append_is_answered(world: FaultyStorage) -> None:
    """R-M14, R-M15: publishing goes on, so there is always something pending."""
    broker = await world.open()
    sent = 0
    task = asyncio.create_task(broker.ledger.terminate())
    while not task.done() and sent < 5_000:
        broker.ledger.append(payloads(sent, sent + 1), [sent])
        sent += 1
        await asyncio.sleep(0)
    assert task.done(), "a topic that is in use cannot be terminated"
    last = await task
    await settle()
    acknowledged = broker.acknowledged
    failed = [context for context, _ in broker.recorder.failed]
    assert acknowledged + failed == list(range(sent))
    assert all(isinstance(error, ManagedLedgerTerminated) for _, error in broker.recorder.failed)
    assert broker.recorder.appended[-1][0] == last
    await world.check_record()


async def test_a_termination_by_an_old_owner_fences_it(world: FaultyStorage) -> None:
    old = await world.open()
    await old.publish(0, 2)
    await world.open()
    with pytest.raises(ManagedLedgerFenced):
        await old.ledger.terminate()
    await settle()
    assert len(old.recorder.closed) == 1
    assert not (await world.record()).HasField("terminatedPosition")


# ------------------------------------------------------------------------------------ deleting, trimming


async def test_an_old_owner_cannot_delete_the_topic(world: FaultyStorage) -> None:
    """R-T1: its clients went to the new owner, so to the old one the topic looks unused."""
    old = await world.open()
    await old.publish(0, 3)
    await world.open()
    with pytest.raises(ManagedLedgerFenced):
        await old.factory.delete(NAME)
    assert await world.read_anew() == payloads(0, 3)


async def test_who_opens_a_topic_for_long_does_not_write_over_one_that_was_deleted_and_made_again(
    world: FaultyStorage,
) -> None:
    """The node of the topic that was made again has the version of the former one: versions begin at 0."""
    owner = await world.open()
    late = Broker(world, CONFIG)
    world.brokers.append(late)
    gate = Gate("open")
    late.bookkeeper.on_step = gate
    opening = asyncio.ensure_future(late.open())
    await gate.reached.wait()
    version = await owner.store.get(RECORD)
    await owner.factory.delete(NAME)
    await asyncio.sleep(0.002)  # nodes know when they were made, in milliseconds
    again = await world.open()
    await again.publish(0, 3)
    assert again.acknowledged == [0, 1, 2]
    assert version is not None
    now = await owner.store.get(RECORD)
    assert now is not None
    assert now.version == version.version
    gate.open()
    await opening
    assert [bytes(entry.data) for entry in await read_all(late.ledger)] == payloads(0, 3)


async def test_a_deletion_that_stops_half_way_leaves_a_topic_that_can_be_used(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.publish(0, 12)
    left = [MetadataUnavailable("away")] * 20

    async def step(what: str, path: str) -> None:
        if what == "delete" and path == RECORD:
            raise StoreUnavailable("away")

    async def bookkeeper_step(what: str, ledger_id: int) -> None:
        if what == "delete" and left:
            raise left.pop()

    broker.store.on_step = step
    broker.bookkeeper.on_step = bookkeeper_step
    with pytest.raises(StorageUnavailable):
        await broker.factory.delete(NAME)
    again = await world.open()
    assert await read_all(again.ledger) == []
    await again.publish(0, 2)
    assert again.acknowledged == [0, 1]
    await again.factory.delete(NAME)
    assert not await world.store.exists(RECORD)


async def test_trimming_by_an_old_owner_deletes_nothing(world: FaultyStorage) -> None:
    none = replace(CONFIG, retention=RetentionRule())
    old = await world.open()
    await old.publish(0, 12)
    new = await world.open()
    old.ledger.config = none
    await old.ledger.trim()
    assert [bytes(entry.data) for entry in await read_all(new.ledger)] == payloads(0, 12)
    await settle()
    assert len(old.recorder.closed) == 1


async def test_a_subscription_that_could_not_be_removed_still_holds_its_messages(world: FaultyStorage) -> None:
    """I93: unsubscribing failed, so nothing was unsubscribed."""
    broker = await world.open(replace(CONFIG, retention=RetentionRule()))
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 12)

    async def step(what: str, path: str) -> None:
        if what == "delete" and path == CURSOR:
            raise StoreUnavailable("away")

    broker.store.on_step = step
    with pytest.raises(StorageUnavailable):
        await broker.ledger.delete_cursor("s")
    await broker.ledger.trim()
    await settle()
    assert broker.ledger.ledgers.entries_total == 12
    broker.store.on_step = None
    assert await broker.ledger.open_cursor("s") is cursor
    cursor.mark_delete(broker.ledger.ledgers.last_confirmed)
    await cursor.flush()
    await settle()
    assert broker.ledger.ledgers.entries_total == 2
    await broker.ledger.delete_cursor("s")
    assert not await world.store.exists(CURSOR)


async def test_bisection_is_right_although_old_ledgers_go_meanwhile(world: FaultyStorage) -> None:
    broker = await world.open(replace(CONFIG, retention=RetentionRule()))
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 33)
    every = [entry.position for entry in await read_all(broker.ledger)]
    broker.ledger._cache.clear()
    gate = Gate("read")
    broker.bookkeeper.on_step = gate
    wanted = every[24]
    finding = asyncio.create_task(broker.ledger.find_first(lambda entry: entry.position >= wanted))
    await gate.reached.wait()
    cursor.mark_delete(every[21])
    await cursor.flush()
    await settle()
    assert broker.ledger.ledgers.entries_total == 13
    gate.open()
    assert await finding == wanted


# ------------------------------------------------------------------------------------------ cursors


async def stored_cursor(world: FaultyStorage) -> Any:
    node = await world.store.get(CURSOR)
    assert node is not None
    return decode_cursor_info(node.value, "s")


async def test_what_a_cursor_stored_and_what_was_read_again_is_counted(world: FaultyStorage) -> None:
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 3)
    every = [position for position, _ in broker.recorder.appended]
    cursor.mark_delete(every[0])
    await cursor.flush()
    once = cursor.counts.written_bytes
    cursor.mark_delete(every[1])
    await cursor.flush()
    assert (cursor.counts.ledger_writes, cursor.counts.stored, cursor.counts.node_writes) == (2, 2, 0)
    assert cursor.counts.written_bytes == 2 * once > 0
    again = (await world.open()).ledger.cursors["s"]
    assert again.counts.read_bytes == once


async def test_ledgers_that_follow_one_another_are_counted_with_the_time_that_it_took(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.publish(0, 12)
    await eventually(lambda: len(broker.recorder.appended) == 12)
    broker.ledger.end_period()
    assert broker.ledger.write_latencies.total == 12
    assert broker.ledger.switch_latencies.total == 2, "after five entries, and after five more"


async def test_a_cursor_whose_ledger_is_gone_keeps_its_properties(world: FaultyStorage) -> None:
    """I95, R-M12, R-M17: without them de-duplication would forget every producer."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 1), {"producer": 7})
    await cursor.flush()
    assert cursor.ledger_id >= 0
    del world.bookkeeper.ledgers[cursor.ledger_id]
    again = (await world.open()).ledger.cursors["s"]
    assert again.mark_delete_position == Position(first.ledger_id, 1)
    assert again.properties == {"producer": 7}


async def test_a_cursor_whose_last_state_is_damaged_goes_on_from_its_node(world: FaultyStorage) -> None:
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 1), {"producer": 7})
    await cursor.flush()
    world.bookkeeper.ledgers[cursor.ledger_id].entries[-1] = b"\xff\xff\xff"
    again = (await world.open()).ledger.cursors["s"]
    assert again.mark_delete_position == Position(first.ledger_id, 1)
    assert again.properties == {"producer": 7}


async def test_without_bookies_acknowledgements_are_stored_in_the_node(world: FaultyStorage) -> None:
    """R-M10: else they come again after a restart, and nothing can be trimmed."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    broker.bookkeeper.out_of_bookies = True
    cursor.mark_delete(Position(first.ledger_id, 0), {"producer": 7})
    cursor.delete([Position(first.ledger_id, 2)])
    await cursor.flush()
    again = (await world.open()).ledger.cursors["s"]
    assert again.mark_delete_position == Position(first.ledger_id, 0)
    assert again.is_deleted(Position(first.ledger_id, 2))
    assert again.properties == {"producer": 7}


async def test_an_old_owner_does_not_store_cursors(world: FaultyStorage) -> None:
    """I90, I94: its cursor ledger is fenced; another one must not take its place."""
    old = await world.open()
    cursor = await old.ledger.open_cursor("s", EARLIEST)
    await old.publish(0, 4)
    first = old.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 0))
    await cursor.flush()
    new = await world.open()
    before = await world.store.get(CURSOR)
    cursor.mark_delete(Position(first.ledger_id, 3))
    with pytest.raises(ManagedLedgerFenced):
        await cursor.flush()
    await old.ledger.close()
    await settle()
    assert await world.store.get(CURSOR) == before
    theirs = new.ledger.cursors["s"]
    theirs.mark_delete(Position(first.ledger_id, 1))
    await theirs.flush()
    assert new.recorder.closed == []
    assert (await world.open()).ledger.cursors["s"].mark_delete_position == Position(first.ledger_id, 1)


async def test_an_old_owner_that_closes_in_order_does_not_store_cursors_either(world: FaultyStorage) -> None:
    old = await world.open()
    cursor = await old.ledger.open_cursor("s", EARLIEST)
    await old.publish(0, 4)
    first = old.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 0))
    await cursor.flush()
    new = await world.open()
    before = await world.store.get(CURSOR)
    cursor.mark_delete(Position(first.ledger_id, 3))
    await old.ledger.close()
    assert await world.store.get(CURSOR) == before
    theirs = new.ledger.cursors["s"]
    theirs.mark_delete(Position(first.ledger_id, 1))
    await theirs.flush()
    await settle()
    assert new.recorder.closed == []


class LateWriter:
    """A former owner that looked whether it is the owner, and writes its cursor's node after the new one read it."""

    def __init__(self, world: FaultyStorage) -> None:
        self._world = world
        self.old: Broker
        self.new: Broker
        self.named = -1
        """The ledger that the late node names."""

    async def write_late(self, what: str = "put") -> ManagedCursor:
        """The new owner's cursor, which knows nothing of what is in its node. *what*: `put` or `delete`."""
        self.old = await self._world.open()
        theirs = await self.old.ledger.open_cursor("s", EARLIEST)
        await self.old.publish(0, 4)
        theirs.mark_delete(self.old.ledger.ledgers.first_position)
        await theirs.flush()
        theirs.mark_delete(self.old.ledger.ledgers.last_confirmed)
        # Another ledger has to come, and the node to change.
        self._world.bookkeeper.ledgers[theirs.ledger_id].closed = True
        gate = Gate(what)

        async def at_the_cursor(kind: str, path: str) -> None:
            if path == CURSOR:
                await gate(kind, path)

        self.old.store.on_step = at_the_cursor
        changing = asyncio.create_task(theirs.flush() if what == "put" else self.old.ledger.delete_cursor("s"))
        await gate.reached.wait()
        self.new = await self._world.open()
        ours = self.new.ledger.cursors["s"]
        assert ours.mark_delete_position == self.new.ledger.ledgers.first_position
        gate.open()
        if what == "put":
            with pytest.raises(ManagedLedgerFenced):
                await changing
            self.named = (await stored_cursor(self._world)).cursorsLedgerId
            assert self.named not in (-1, ours.ledger_id)
        else:
            await changing
        return ours


@pytest.mark.parametrize("how", ["flush", "close", "seek"])
async def test_what_a_former_owner_wrote_late_is_written_over_and_takes_nothing_from_the_new_one(
    world: FaultyStorage, how: str
) -> None:
    """Its node is older than what the new owner knows, and no reason for it to let go of the topic."""
    late = LateWriter(world)
    cursor = await late.write_late()
    third = late.new.ledger.ledgers.next_position(
        late.new.ledger.ledgers.next_position(late.new.ledger.ledgers.first_position)
    )
    if how == "seek":
        await cursor.reset(late.new.ledger.ledgers.next_position(third))
    else:
        cursor.mark_delete(third)
        await (cursor.flush() if how == "flush" else late.new.ledger.close())
    assert late.new.recorder.closed == []
    assert late.named not in world.bookkeeper.ledgers
    await world.check_record()
    assert (await world.open()).ledger.cursors["s"].mark_delete_position == third


async def test_a_subscription_whose_node_a_former_owner_wrote_late_can_be_deleted(world: FaultyStorage) -> None:
    late = LateWriter(world)
    await late.write_late()
    await late.new.ledger.delete_cursor("s")
    assert late.new.recorder.closed == []
    assert late.named not in world.bookkeeper.ledgers
    assert (await world.open()).ledger.cursors == {}


async def test_a_topic_whose_cursor_a_former_owner_wrote_late_can_be_deleted(world: FaultyStorage) -> None:
    late = LateWriter(world)
    await late.write_late()
    await late.new.ledger.delete()
    assert world.bookkeeper.ledgers == {}
    assert not await world.store.exists(RECORD)


async def test_a_subscription_that_a_former_owner_deleted_late_does_not_come_back(world: FaultyStorage) -> None:
    late = LateWriter(world)
    cursor = await late.write_late("delete")
    cursor.mark_delete(late.new.ledger.ledgers.last_confirmed)
    with pytest.raises(ManagedLedgerFenced):
        await cursor.flush()
    assert (await world.open()).ledger.cursors == {}


@pytest.mark.parametrize("number", range(8))
async def test_who_is_not_the_owner_any_more_writes_over_nothing(world: FaultyStorage, number: int) -> None:
    """A third owner comes before any of the eight requests of the new owner, and stores a seek."""
    late = LateWriter(world)
    cursor = await late.write_late()
    seen: list[bytes] = []
    requests: list[str] = []

    async def at_step(what: str, path: str) -> None:
        if path not in (CURSOR, RECORD) or seen:
            return
        requests.append(what)
        if len(requests) == number + 1:
            third = await world.open()
            await third.ledger.cursors["s"].reset(EARLIEST)
            seen.append((await stored_cursor(world)).SerializeToString())

    late.new.store.on_step = at_step
    cursor.mark_delete(late.new.ledger.ledgers.last_confirmed)
    with pytest.raises(ManagedLedgerFenced):
        await cursor.flush()
    assert (await stored_cursor(world)).SerializeToString() == seen[0]
    assert late.new.ledger.state == "Fenced"


async def test_opening_a_terminated_topic_takes_it_from_its_former_owner(world: FaultyStorage) -> None:
    """It begins no ledger, which is how others find out."""
    old = await world.open()
    theirs = await old.ledger.open_cursor("s", EARLIEST)
    await old.publish(0, 4)
    await old.ledger.terminate()
    new = await world.open()
    assert new.ledger.is_terminated
    theirs.mark_delete(old.ledger.ledgers.last_confirmed)
    with pytest.raises(ManagedLedgerFenced):
        await theirs.flush()
    assert old.ledger.state == "Fenced"
    ours = new.ledger.cursors["s"]
    ours.mark_delete(new.ledger.ledgers.first_position)
    await ours.flush()
    assert new.ledger.state == "Terminated"
    assert (await world.open()).ledger.cursors["s"].backlog() == 3


async def test_an_old_owner_makes_no_subscriptions(world: FaultyStorage) -> None:
    """R-M6, I96: the new owner does not know of it and would trim what it needs."""
    old = await world.open()
    new = await world.open()
    with pytest.raises(ManagedLedgerFenced):
        await old.ledger.open_cursor("s", EARLIEST)
    cursor = await new.ledger.open_cursor("s", EARLIEST)  # whatever the old one left of it
    await new.publish(0, 2)
    cursor.mark_delete(new.ledger.ledgers.last_confirmed)
    await cursor.flush()
    assert new.recorder.closed == []


async def test_a_ledger_that_repair_closed_is_replaced_and_the_cursor_goes_on(world: FaultyStorage) -> None:
    """I75, R-T4: auto-recovery closes ledgers of idle writers; that is no other owner."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 0))
    await cursor.flush()
    world.bookkeeper.ledgers[cursor.ledger_id].closed = True
    cursor.mark_delete(Position(first.ledger_id, 1))
    await cursor.flush()
    assert (await world.open()).ledger.cursors["s"].mark_delete_position == Position(first.ledger_id, 1)


def repaired(world: FaultyStorage, broker: Broker) -> int:
    """Auto-recovery closes the last ledger of an idle topic, whose writer hears of it."""
    handle: Any = broker.ledger._lifecycle.present
    world.bookkeeper.ledgers[handle.ledger_id].closed = True
    handle.fail(LedgerClosed("closed by another client"))
    return int(handle.ledger_id)


@pytest.mark.parametrize("written", [0, 2])
async def test_an_idle_topic_whose_ledger_was_closed_goes_on_in_the_next_one(
    world: FaultyStorage, written: int
) -> None:
    """I75: no client is disturbed."""
    broker = await world.open()
    await broker.publish(0, written)
    ended = repaired(world, broker)
    await eventually(lambda: broker.bookkeeper.handles[-1].ledger_id != ended)
    await settle()
    await broker.publish(written, 4)
    assert broker.acknowledged == list(range(4))
    assert [bytes(entry.data) for entry in await read_all(broker.ledger)] == payloads(0, 4)
    assert broker.recorder.closed == []
    assert (ended in world.bookkeeper.ledgers) == bool(written), "an empty ledger is deleted"


async def test_a_topic_whose_ledger_was_deleted_is_left_at_once(world: FaultyStorage) -> None:
    """Only another owner deletes it."""
    broker = await world.open()
    handle: Any = broker.ledger._lifecycle.present
    handle.fail(NoSuchLedger(f"ledger {handle.ledger_id} does not exist"))
    await settle()
    assert [type(error) for error in broker.recorder.closed] == [ManagedLedgerFenced]


async def test_a_topic_whose_ledger_a_new_owner_closed_is_left(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.publish(0, 2)
    other = await world.open()
    handle: Any = broker.ledger._lifecycle.present
    handle.fail(LedgerClosed("closed by another client"))
    await eventually(lambda: broker.recorder.closed)
    assert isinstance(broker.recorder.closed[0], ManagedLedgerFenced)
    await other.publish(2, 4)
    assert [bytes(entry.data) for entry in await read_all(other.ledger)] == payloads(0, 4)


async def test_a_subscription_whose_making_was_in_doubt_can_be_made_again(world: FaultyStorage) -> None:
    broker = await world.open()

    async def lost(what: str, path: str) -> None:
        if path == CURSOR and what in ("put done", "get", "put"):
            raise {"put done": OutcomeUnknown("lost"), "put": OutcomeUnknown("lost")}.get(
                what, StoreUnavailable("away")
            )

    async def first_put_passes(what: str, path: str) -> None:
        if path == CURSOR and what == "put":
            broker.store.on_step = lost
            return
        await lost(what, path)

    broker.store.on_step = first_put_passes
    with pytest.raises(StorageUnavailable):
        await broker.ledger.open_cursor("s", EARLIEST)
    broker.store.on_step = None
    assert await world.store.exists(CURSOR)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 2)
    cursor.mark_delete(broker.ledger.ledgers.last_confirmed)
    await cursor.flush()
    assert broker.recorder.closed == []


async def test_a_seek_that_could_not_be_stored_has_not_happened(world: FaultyStorage) -> None:
    """A failed seek forwards must not make messages disappear."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.delete([Position(first.ledger_id, 2)])
    await cursor.flush()

    async def step(what: str, where: object) -> None:
        if what in ("add", "create"):
            raise BookieUnavailable("away")

    async def store_step(what: str, path: str) -> None:
        if what == "put":
            raise StoreUnavailable("away")

    broker.bookkeeper.on_step = step
    broker.store.on_step = store_step
    with pytest.raises(StorageUnavailable):
        await cursor.reset(Position(first.ledger_id, 3))
    assert cursor.backlog() == 3
    assert cursor.is_deleted(Position(first.ledger_id, 2))
    broker.bookkeeper.on_step = broker.store.on_step = None
    await cursor.reset(Position(first.ledger_id, 3))
    assert cursor.backlog() == 1
    assert (await world.open()).ledger.cursors["s"].backlog() == 1


async def test_after_a_seek_of_unknown_outcome_the_state_is_stored_again(world: FaultyStorage) -> None:
    """The seek was stored, its caller was told that it failed, and the next flush must not find nothing to do."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 0))
    await cursor.flush()

    async def step(what: str, where: object) -> None:
        if what == "added":
            raise BookieUnavailable("the answer was lost")
        if what == "create":
            raise BookieUnavailable("away")

    async def store_step(what: str, path: str) -> None:
        if what == "put":
            raise StoreUnavailable("away")

    broker.bookkeeper.on_step = step
    broker.store.on_step = store_step
    with pytest.raises(StorageUnavailable):
        await cursor.reset(Position(first.ledger_id, 3))
    broker.bookkeeper.on_step = broker.store.on_step = None
    await cursor.flush()
    assert cursor.backlog() == 3
    assert (await world.open()).ledger.cursors["s"].backlog() == 3


async def test_a_seek_back_holds_what_it_went_back_to(world: FaultyStorage) -> None:
    """I96: from the moment on at which the seek was asked for."""
    broker = await world.open(replace(CONFIG, retention=RetentionRule()))
    keeper = await broker.ledger.open_cursor("keeper", EARLIEST)
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 12)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(broker.ledger.ledgers.last_confirmed)
    await cursor.flush()
    gate = Gate("add")
    broker.bookkeeper.on_step = gate
    seeking = asyncio.create_task(cursor.reset(first))
    await gate.reached.wait()
    await broker.ledger.delete_cursor("keeper")
    await settle()
    gate.open()
    await seeking
    assert keeper.is_closed
    assert cursor.backlog() == 12


async def test_a_seek_back_waits_for_a_trim_that_was_decided_before(world: FaultyStorage) -> None:
    """I96: it says where it went only when nothing can take that away any more."""
    broker = await world.open(replace(CONFIG, retention=RetentionRule()))
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 12)
    first = broker.ledger.ledgers.first_position
    gate = Gate("put")

    async def step(what: str, path: str) -> None:
        if path == RECORD:
            await gate(what, path)

    broker.store.on_step = step
    cursor.mark_delete(broker.ledger.ledgers.last_confirmed)
    await cursor.flush()
    await gate.reached.wait()  # the trim writes the record
    seeking = asyncio.create_task(cursor.reset(first))
    await settle()
    assert not seeking.done()
    gate.open()
    await seeking
    assert cursor.backlog() == broker.ledger.ledgers.entries_total == 2


async def test_acknowledging_what_does_not_exist_changes_nothing(world: FaultyStorage) -> None:
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 2)
    last = broker.ledger.ledgers.last_confirmed
    assert not cursor.acknowledge_batch(Position(last.ledger_id, 2), [0b1], 3)
    assert not cursor.acknowledge_batch(Position(last.ledger_id + 5, 0), [0b1], 3)
    assert cursor.batch_ack_set(Position(last.ledger_id, 2)) is None
    with pytest.raises(InvalidPosition):
        cursor.mark_delete(Position(last.ledger_id + 1_000, -1))  # "all before that ledger"
    await broker.publish(2, 9)
    assert cursor.backlog() == 9


# ---------------------------------------------------------------------------------- opening and closing


async def test_reopening_waits_until_the_former_owner_in_this_process_has_closed(world: FaultyStorage) -> None:
    """I110: what was acknowledged before an orderly close is not delivered again."""
    broker = await world.open()
    cursor = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 4)
    first = broker.ledger.ledgers.first_position
    cursor.mark_delete(Position(first.ledger_id, 0))
    await cursor.flush()
    cursor.mark_delete(Position(first.ledger_id, 3))
    gate = Gate("close")
    broker.bookkeeper.on_step = gate
    closing = asyncio.create_task(broker.ledger.close())
    await gate.reached.wait()
    second = asyncio.create_task(broker.ledger.close())
    reopening = asyncio.create_task(broker.factory.open(NAME))
    await settle()
    assert not second.done()
    gate.open()
    await closing
    reopened = await reopening
    assert reopened.cursors["s"].mark_delete_position == Position(first.ledger_id, 3)
    reopened.cursors["s"].delete([])
    await reopened.cursors["s"].flush()


async def test_a_cursor_that_cannot_be_closed_does_not_keep_the_others_from_it(world: FaultyStorage) -> None:
    broker = await world.open(replace(CONFIG, cursor_ranges_in_node_max=1))
    many = await broker.ledger.open_cursor("a", EARLIEST)
    few = await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 5)
    first = broker.ledger.ledgers.first_position
    many.delete([Position(first.ledger_id, 1), Position(first.ledger_id, 3)])
    few.mark_delete(Position(first.ledger_id, 2))
    await many.flush()
    own = many.ledger_id

    async def step(what: str, ledger_id: int) -> None:
        if what == "close" and ledger_id == own:
            raise MetadataUnavailable("away")

    broker.bookkeeper.on_step = step
    await broker.ledger.close()
    again = await world.open()
    assert again.ledger.cursors["s"].mark_delete_position == Position(first.ledger_id, 2)
    assert again.ledger.cursors["a"].range_count == 2


async def test_a_failed_opening_leaves_no_handle_behind_and_the_next_one_works(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.ledger.open_cursor("s", EARLIEST)
    await broker.publish(0, 3)
    other = Broker(world, CONFIG)
    world.brokers.append(other)
    other.on_record("get", StoreUnavailable("away"), path=CURSOR)
    with pytest.raises(StorageUnavailable):
        await other.open()
    assert all(handle.is_abandoned for handle in other.bookkeeper.handles)
    ledger = await other.open()
    assert [bytes(entry.data) for entry in await read_all(ledger)] == payloads(0, 3)
    await world.check_record()


async def test_a_damaged_cursor_is_an_error_that_names_it(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.ledger.open_cursor("s", EARLIEST)
    await broker.ledger.close()
    await world.store.put(CURSOR, b"\xff\xff\xff\xff")
    other = Broker(world, CONFIG)
    world.brokers.append(other)
    with pytest.raises(ManagedLedgerError, match="cursor s"):
        await other.open()


async def test_a_closed_managed_ledger_makes_no_cursors(world: FaultyStorage) -> None:
    broker = await world.open()
    await broker.ledger.close()
    with pytest.raises(ManagedLedgerClosed):
        await broker.ledger.open_cursor("s")
    assert not await world.store.exists(CURSOR)


async def test_maintenance_survives_what_it_did_not_expect(world: FaultyStorage) -> None:
    """I71: one topic must not end it for all others."""
    broker = Broker(world, CONFIG)
    world.brokers.append(broker)
    broker.factory._maintenance_interval_s = 0.01
    broker.factory.start()
    await broker.open()
    calls: list[int] = []

    async def maintain() -> None:
        calls.append(1)
        raise RuntimeError("a fault of this program")

    patch: Callable[[str, Any], None] = broker.ledger.__dict__.__setitem__
    patch("maintain", maintain)
    await eventually(lambda: len(calls) > 2)


async def test_fencing_by_bookies_during_the_opening_is_noticed(world: FaultyStorage) -> None:
    broker = Broker(world, CONFIG)
    world.brokers.append(broker)
    seed = await world.open()
    await seed.ledger.open_cursor("s", EARLIEST)
    gate = Gate("get")

    async def step(what: str, path: str) -> None:
        if path == CURSOR:
            await gate(what, path)

    broker.store.on_step = step
    opening = asyncio.create_task(broker.open())
    await gate.reached.wait()
    world.bookkeeper.ledgers[broker.bookkeeper.handles[-1].ledger_id].closed = True
    broker.bookkeeper.handles[-1].fail(LedgerFenced("fenced"))
    gate.open()
    await opening
    await broker.publish(0, 1)
    assert isinstance(broker.recorder.closed[0], ManagedLedgerFenced)
    assert broker.acknowledged == []


# ---------------------------------------------------------------- a ledger that is created while another is recovered


async def test_a_new_ledger_is_made_while_the_last_one_is_recovered(world: FaultyStorage) -> None:
    """Neither waits for the other: a takeover takes as long as the longer of both."""
    first = await world.open()
    await first.publish(0, 3)
    second = Broker(world, CONFIG)
    steps, recovering = list[str](), asyncio.Event()

    async def step(what: str, ledger_id: int) -> None:
        steps.append(what)
        if what == "open":
            await recovering.wait()

    second.bookkeeper.on_step = step
    opening = asyncio.create_task(second.open())
    await settle()
    assert "create" in steps
    assert not opening.done()
    recovering.set()
    await opening
    assert [bytes(entry.data) for entry in await read_all(second.ledger)] == payloads(0, 3)


async def test_a_ledger_made_ahead_goes_if_the_last_one_cannot_be_recovered(world: FaultyStorage) -> None:
    first = await world.open()
    await first.publish(0, 3)
    before = set(world.bookkeeper.ledgers)
    second = Broker(world, CONFIG)

    async def step(what: str, ledger_id: int) -> None:
        if what == "open":
            await settle()
            raise BookieUnavailable("no bookie answers")

    second.bookkeeper.on_step = step
    with pytest.raises(StorageUnavailable):
        await second.open()
    await eventually(lambda: _same(set(world.bookkeeper.ledgers), before))


def _same(found: set[int], expected: set[int]) -> None:
    assert found == expected
