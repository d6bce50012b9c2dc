"""A bookie that is stopped and those who write to it."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from bookie.bookie import Bookie
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from tests.support.bookie_disks import stored_entry
from tests.support.serving import BookieMachines, HurriedClock, Wire
from tests.support.waiting import eventually


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines(HurriedClock())


@pytest.fixture
async def bookie(world: BookieMachines) -> AsyncIterator[Bookie]:
    async with world.serving(stop_wait_ms=200_000) as bookie:
        yield bookie


async def register_another(world: BookieMachines) -> None:
    registration = BookieRegistration(world.store.session(), "/ledgers", "bookie-2", world.clock)
    await registration.register(BookieServiceInfo((bookie_endpoint("127.0.0.1", 1),)))


async def modes(world: BookieMachines) -> tuple[bool, bool]:
    """Whether the bookie is registered as writable, and as read-only."""
    writable = await world.store.children("/ledgers/available")
    return "bookie-1" in writable, "bookie-1" in await world.store.children("/ledgers/available/readonly")


class Adding:
    """Adds an entry again and again until it is told to end."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.answers: list[int] = []
        self._is_wanted = True
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._is_wanted:
            self.answers.append(await self._wire.add(stored_entry(1, len(self.answers))))
            await asyncio.sleep(0)

    @property
    def is_over(self) -> bool:
        return self._task.done()

    async def end(self) -> None:
        self._is_wanted = False
        await self._task


async def test_a_bookie_that_is_stopped_takes_entries_until_its_writers_have_left(
    world: BookieMachines, bookie: Bookie
) -> None:
    await register_another(world)
    wire = await Wire.connect(bookie)
    adding = Adding(wire)
    await eventually(lambda: adding.answers)
    stopping = asyncio.create_task(bookie.stop())
    async with asyncio.timeout(30):
        while await modes(world) != (False, True):
            await asyncio.sleep(0.001)
    node = await world.store.get("/ledgers/available/readonly/bookie-1")
    assert node is not None
    assert b"stopping" in node.value, "the register says why"
    seen = len(adding.answers)
    await eventually(lambda: len(adding.answers) > seen + 100 or adding.is_over)
    assert not bookie.is_read_only
    assert not stopping.done()
    await adding.end()
    await stopping
    assert set(adding.answers) == {0}
    assert await modes(world) == (False, False)
    async with world.serving() as again:
        assert not again.is_read_only
        assert await modes(world) == (True, False)


async def test_its_wait_has_an_end(world: BookieMachines) -> None:
    await register_another(world)
    async with world.serving(stop_wait_ms=400) as bookie:
        adding = Adding(await Wire.connect(bookie))
        await eventually(lambda: adding.answers)
        stopping = asyncio.create_task(bookie.stop())
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError, AssertionError)):
            await adding._task  # it never ends by itself
        await stopping
    assert set(adding.answers) == {0}


@pytest.mark.parametrize("case", ["nobody else is there", "nothing is written", "it is switched off"])
async def test_it_waits_for_nobody_where(world: BookieMachines, case: str) -> None:
    if case != "nobody else is there":
        await register_another(world)
    shown: list[bool] = []
    cancel = world.store.watch_node("/ledgers/available/readonly/bookie-1", lambda: shown.append(True))
    async with world.serving(stop_wait_ms=0 if case == "it is switched off" else 200_000) as bookie:
        wire = await Wire.connect(bookie)
        assert await wire.add(stored_entry(1, 0)) == 0
        adding = None if case == "nothing is written" else Adding(wire)
        await asyncio.wait_for(bookie.stop(), 60)
        if adding is not None:
            adding._task.cancel()
            await asyncio.gather(adding._task, return_exceptions=True)
    cancel()
    assert shown == []


async def test_a_bookie_that_is_read_only_already_stops_at_once(world: BookieMachines) -> None:
    await register_another(world)
    async with world.serving(stop_wait_ms=200_000, force_read_only=True) as bookie:
        await Wire.connect(bookie)
        await asyncio.wait_for(bookie.stop(), 60)
    assert await modes(world) == (False, False)
