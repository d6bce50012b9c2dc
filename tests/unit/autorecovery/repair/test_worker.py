"""Which ledgers a replication worker tries, and how often."""

import random
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from autorecovery.repair.worker import ReplicationWorker
from magnetar_core.runtime.types import do_nothing
from tests.support.manual_clock import ManualClock
from tests.support.waiting import settle

MARKED = frozenset(range(30))


class Board:
    """The marks as one worker sees them: others repair those that are *taken*."""

    def __init__(self) -> None:
        self.taken = set(MARKED)
        self.requests: list[str] = []
        self.held: frozenset[int] = frozenset()
        self.tell: Callable[[], None] = do_nothing

    def watch_locks(self, changed: Callable[[], None]) -> Callable[[], None]:
        self.tell = changed
        return do_nothing

    def watch_enabled(self, changed: Callable[[], None]) -> Callable[[], None]:
        return do_nothing

    async def is_enabled(self) -> bool:
        return True

    async def lock(self, ledger_id: int, holder: str) -> bool:
        self.requests.append(f"lock {ledger_id}")
        return ledger_id not in self.taken

    async def unlock(self, ledger_id: int) -> None: ...

    async def locked(self) -> frozenset[int]:
        self.requests.append("locked")
        return frozenset(self.taken)

    async def read(self, ledger_id: int) -> None:
        """Its mark is gone: somebody has repaired it."""

    async def prune(self, ledger_id: int) -> None: ...


@pytest.fixture
async def board() -> AsyncIterator[Board]:
    board = Board()
    marks: Any = board
    watch: Any = SimpleNamespace(marked=set(MARKED), watch=lambda _: do_nothing)
    watch.forget = watch.marked.discard
    repair: Any = SimpleNamespace()
    worker = ReplicationWorker(
        "w", marks, watch, repair, ManualClock(), random.Random(1),
        ledgers_max=4, open_grace_s=1.0, retry_s_max=1.0, on_bookies_changed=lambda _: do_nothing,
        on_lost=lambda *_: None,
    )  # fmt: skip
    worker.start(lambda _: None)
    await settle()
    yield board
    await worker.stop()


async def test_ledgers_of_others_are_not_tried_again_with_each_lock_that_changes(board: Board) -> None:
    """Locks of a whole cluster change all the time while it is repaired: each worker would ask for all of them."""
    assert sorted(board.requests) == sorted(f"lock {ledger_id}" for ledger_id in MARKED)
    board.requests.clear()
    for _ in range(10):
        board.tell()
        await settle()
    assert board.requests == ["locked"] * 10


async def test_a_ledger_whose_lock_is_given_back_is_tried_at_once(board: Board) -> None:
    board.requests.clear()
    board.taken.discard(7)
    board.tell()
    await settle()
    assert board.requests == ["locked", "lock 7"]
