"""Which worker runs which tests (`tests/support/order.py`)."""

from types import SimpleNamespace
from typing import cast

import pytest

from tests.support.order import FileScheduling

TESTS = [
    f"tests/{path}::test_{number}"
    for path in ("spark/test_a.py", "process/test_b.py", "process/test_c.py", "unit/test_d.py", "unit/test_e.py")
    for number in range(3)
]


class Worker:
    """A worker of xdist, as far as a scheduler sees it: what it was given, by number of the collection."""

    def __init__(self, number: int) -> None:
        self.gateway = SimpleNamespace(id=f"gw{number}")
        self.given: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, numbers: list[int]) -> None:
        self.given.extend(numbers)

    def shutdown(self) -> None:
        self.shutting_down = True


def scheduled(count: int) -> list[Worker]:
    """What *count* workers are given at first: a file each, and one more where one has few tests."""
    config = SimpleNamespace(getvalue=lambda _: ["popen"] * count, option=SimpleNamespace(loadscopereorder=True))
    scheduling = FileScheduling(cast(pytest.Config, config), SimpleNamespace(loadscopesched=lambda *_: None))
    workers = [Worker(number) for number in range(count)]
    for worker in workers:
        scheduling.add_node(worker)
    for worker in workers:
        scheduling.add_node_collection(worker, list(TESTS))
    scheduling.schedule()
    return workers


def test_the_last_worker_begins_at_the_other_end() -> None:
    first, second, last = (worker.given[:3] for worker in scheduled(3))
    assert (first, second, last) == ([0, 1, 2], [3, 4, 5], [12, 13, 14])


def test_one_worker_begins_with_the_dearest() -> None:
    (worker,) = scheduled(1)
    assert worker.given[:3] == [0, 1, 2]
