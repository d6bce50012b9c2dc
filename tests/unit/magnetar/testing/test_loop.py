"""The loop of simulated clusters, in whose place each version of Python puts its own."""

import asyncio
from typing import Any

from magnetar.testing.simulated.loop import PROCESS, Process, VirtualLoop
from magnetar.testing.simulated.under_test import drawn_from


def test_tasks_belong_to_their_process_and_may_have_what_later_versions_of_python_hand_over() -> None:
    """Until 3.13.2 the name is set afterwards; since then the factory of tasks gets it."""
    loop = VirtualLoop()
    process = Process("bookie-1")

    async def where() -> Process:
        return PROCESS.get()

    async def scenario() -> None:
        named = process.call(lambda: asyncio.create_task(where(), name="a name"))
        factory = loop.get_task_factory()
        assert factory is not None
        handed = process.call(lambda: factory(loop, where(), name="another"))  # type: ignore[call-arg]
        assert [await named, await handed] == [process, process]
        assert isinstance(handed, asyncio.Task)
        assert [named.get_name(), handed.get_name()] == ["a name", "another"]

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_tasks_that_libraries_make_past_the_loop_belong_to_their_process_and_do_not_begin_at_once() -> None:
    """As aiohttp makes them where Python can begin them at once: since 3.12, or 3.14 for `create_task`."""
    loop = VirtualLoop()
    process = Process("bookie-1")
    begun: list[str] = []

    async def begin(name: str) -> None:
        begun.append(name)

    async def scenario() -> None:
        options: dict[str, Any] = {"eager_start": True}
        past = process.call(lambda: asyncio.Task(begin("past"), loop=loop, **options))
        factory = loop.get_task_factory()
        assert factory is not None
        by_loop = process.call(lambda: factory(loop, begin("by the loop"), **options))
        assert not begun
        assert process.tasks == [past, by_loop]
        assert all(isinstance(task, asyncio.Task) for task in process.tasks)
        await asyncio.gather(*process.tasks)
        assert begun == ["past", "by the loop"]

    try:
        with drawn_from(1):
            loop.run_until_complete(scenario())
    finally:
        loop.close()


def test_a_callback_runs_in_its_context_and_not_in_a_process_that_is_dead() -> None:
    loop = VirtualLoop()
    alive, dead = Process("bookie-1"), Process("bookie-2")
    ran: list[tuple[Process | None, float]] = []

    def note() -> None:
        ran.append((PROCESS.get(None), loop.time()))

    async def scenario() -> None:
        loop.call_later(1.0, note)
        for process in (alive, dead):
            process.call(lambda: loop.call_soon(note))
            process.call(lambda: loop.call_later(2.0, note))
            process.call(lambda: loop.call_later(2.0, note)).cancel()
        dead.kill()
        alive.freeze()
        await asyncio.sleep(5.0)
        alive.thaw()
        await asyncio.sleep(1.0)

    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()
    assert ran == [(None, 1.0), (alive, 5.0), (alive, 5.0)]
