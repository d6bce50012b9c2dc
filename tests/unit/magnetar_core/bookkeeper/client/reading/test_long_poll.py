"""Waiting at real bookies until an open ledger is confirmed further."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from bookie.bookie import Bookie
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.reading import long_poll
from magnetar_core.bookkeeper.client.reading.long_poll import LongPoll
from magnetar_core.bookkeeper.client.write_handle import LedgerWriteHandle
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.state_log.config import StateLogConfig
from managed_ledger.state_log.snapshots.disk import SnapshotStore
from managed_ledger.state_log.state_log import StateLog
from tests.support.serving import CONFIG, BookieMachines
from tests.support.state_log_world import Dictionary, at_once, setting


class World:
    def __init__(self, bookies: list[Bookie], store: MemoryStore, client: BookKeeper) -> None:
        self.bookies = bookies
        self.store = store
        self.client = client
        self.told = 0
        self.poll: LongPoll = client.long_poll(self._tell)

    def _tell(self) -> None:
        self.told += 1

    @property
    def waiting(self) -> int:
        return sum(bookie.server.long_polls for bookie in self.bookies)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        machines = [BookieMachines(), BookieMachines()]
        store = machines[1].store = machines[0].store
        bookies = [
            await stack.enter_async_context(machine.serving(replace(CONFIG, bookie_id=f"bookie-{number}")))
            for number, machine in enumerate(machines)
        ]
        client = BookKeeper(store, machines[0].clock)
        await client.open()
        stack.push_async_callback(client.close)
        made = World(bookies, store, client)
        stack.push_async_callback(made.poll.close)
        yield made


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():
            await asyncio.sleep(0.002)


async def ledger_with(world: World, entries: int) -> LedgerWriteHandle:
    handle = await world.client.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
    for _ in range(entries):
        await handle.add(b"payload")
    return handle


async def test_who_waits_is_told_when_the_lac_has_grown_and_no_sooner(world: World) -> None:
    writer = await ledger_with(world, 2)
    ensemble = writer.metadata.last_segment.ensemble
    world.poll.begin(writer.ledger_id, ensemble, 0)  # the second entry says that the first is confirmed
    await until(lambda: world.waiting == 1)
    for _ in range(3):
        world.poll.begin(writer.ledger_id, ensemble, 0)
    assert (world.told, world.waiting) == (0, 1)
    await writer.add(b"says that the second is confirmed")
    await until(lambda: world.told == 1)
    world.poll.begin(writer.ledger_id, ensemble, 0)  # known at once
    await until(lambda: world.told == 2)
    world.poll.begin(writer.ledger_id, ensemble, 1)
    await until(lambda: world.waiting == 1)
    assert world.told == 2
    assert sum(bookie.server.counters.connections for bookie in world.bookies) == 3  # the writer's, and one that waits


async def test_a_time_that_is_over_is_no_news_and_the_next_bookie_waits(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(long_poll, "HELD_MS", 10)
    writer = await ledger_with(world, 1)
    seen: set[str] = set()
    world.poll.begin(writer.ledger_id, writer.metadata.last_segment.ensemble, -1)

    def both_waited() -> bool:
        seen.update(bookie.bookie_id for bookie in world.bookies if bookie.server.long_polls)
        return len(seen) == 2

    await until(both_waited)
    assert world.told == 0
    await writer.add(b"more")
    await until(lambda: world.told == 1)


async def test_where_one_bookie_refuses_the_other_is_asked_and_where_all_do_there_is_a_pause(world: World) -> None:
    writer = await ledger_with(world, 1)
    ids = [bookie.bookie_id for bookie in world.bookies]
    world.poll.begin(writer.ledger_id, ["nobody", ids[0]], -1)
    await until(lambda: world.waiting == 1)
    world.poll.begin(writer.ledger_id + 1, ids, -1)  # no bookie knows that ledger
    await until(lambda: not world.waiting)
    await until(lambda: world.poll._pause_ends_s > 0)
    reads = world.bookies[0].server.counters.connections
    for _ in range(5):
        world.poll.begin(writer.ledger_id, ids, -1)
        await asyncio.sleep(0.01)
    assert (world.told, world.waiting) == (0, 0)
    assert world.bookies[0].server.counters.connections == reads


async def test_bookies_that_do_not_hold_a_read_are_not_asked_in_a_loop(world: World) -> None:
    writer = await ledger_with(world, 1)
    for bookie in world.bookies:  # they have as many waiting reads as they may
        bookie.server.limits = bookie.server.limits._replace(long_polls=0)
    ask, count = world.poll._ask, 0

    async def counted(bookie_id: str, asked: long_poll._Asked) -> bool:
        nonlocal count
        count += 1
        return await ask(bookie_id, asked)

    world.poll._ask = counted  # type: ignore[method-assign]
    world.poll.begin(writer.ledger_id, writer.metadata.last_segment.ensemble, -1)
    await until(lambda: count > 0)
    await asyncio.sleep(0.2)
    assert count == 1
    assert world.told == 0


async def test_a_poll_that_is_closed_holds_nothing_at_a_bookie(world: World) -> None:
    writer = await ledger_with(world, 1)
    world.poll.begin(writer.ledger_id, writer.metadata.last_segment.ensemble, -1)
    await until(lambda: world.waiting == 1)
    await world.poll.close()
    await until(lambda: not world.waiting)
    assert world.told == 0


async def test_a_follower_of_a_state_log_sees_an_edit_without_looking(world: World) -> None:
    """It would look by itself once in ten minutes."""
    config = StateLogConfig(
        root="/dictionary", ensemble_size=2, write_quorum=2, ack_quorum=2, poll_s=600, poll_idle_s=600, marker_s=0.001
    )
    logs = [
        StateLog(
            Dictionary(), name, config, bookkeeper=world.client, store=world.store, clock=LoopClock(),
            snapshots=SnapshotStore(MemoryFiles(), "/snapshots"), in_thread=at_once,
        )
        for name in ("a", "b")
    ]  # fmt: skip
    leader, follower = logs
    async with asyncio.timeout(30):
        for log in logs:
            await log.open()
        await leader.lead()
        for number in range(1, 4):
            await leader.propose(setting("word", number))
            await follower.reach(number)
        for log in logs:
            await log.close()
