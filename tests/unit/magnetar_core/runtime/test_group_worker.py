import asyncio
import threading
from collections.abc import Sequence

import pytest

from magnetar_core.runtime.group_worker import GroupWorker
from magnetar_core.runtime.tasks import Parts, Tasks

pytestmark = pytest.mark.both_loops


async def test_everything_that_waits_makes_one_group() -> None:
    gate = threading.Event()
    groups: list[list[int]] = []
    reports: list[tuple[list[int], BaseException | None]] = []

    def work(items: Sequence[int]) -> None:
        gate.wait(10)
        groups.append(list(items))

    worker = GroupWorker("w", work, lambda items, error: reports.append((list(items), error)))
    worker.start()
    worker.put([0])
    while worker.waiting:
        await asyncio.sleep(0)
    worker.put([1, 2])
    worker.put([3])
    gate.set()
    await worker.stop()
    assert groups == [[0], [1, 2, 3]]
    assert reports == [([0], None), ([1, 2, 3], None)]


async def test_after_a_failure_the_resource_is_not_touched_again() -> None:
    touched: list[int] = []
    reports: list[tuple[list[int], str]] = []

    def work(items: Sequence[int]) -> None:
        touched.extend(items)
        raise OSError("sync failed")

    worker = GroupWorker("w", work, lambda items, error: reports.append((list(items), str(error))))
    worker.start()
    worker.put([1])
    while not reports:
        await asyncio.sleep(0.001)
    worker.put([2])
    await worker.stop()
    assert touched == [1]
    assert reports == [([1], "sync failed"), ([2], "sync failed")]


async def test_parts_stop_in_the_opposite_order_even_when_one_fails() -> None:
    parts = Parts()
    stopped: list[str] = []

    def stopper(name: str, fails: bool = False) -> None:
        async def stop() -> None:
            stopped.append(name)
            if fails:
                raise RuntimeError(name)

        parts.add(name, stop)

    stopper("disk")
    stopper("journal", fails=True)
    stopper("socket")
    await parts.stop()
    assert stopped == ["socket", "journal", "disk"]


async def test_a_failing_task_reaches_its_owner() -> None:
    failures: list[BaseException] = []
    tasks = Tasks("t", failures.append)

    async def fail() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError):
        await tasks.spawn(fail(), "fail")
    assert [str(error) for error in failures] == ["x"]
    tasks.spawn(asyncio.sleep(100), "long")
    await tasks.cancel()
    assert len(tasks) == 0
