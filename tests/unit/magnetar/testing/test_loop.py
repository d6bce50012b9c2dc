"""The loop of simulated clusters, in whose place each version of Python puts its own."""

import asyncio

from magnetar.testing.simulated.loop import PROCESS, Process, VirtualLoop


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
