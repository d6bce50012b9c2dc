"""The set of marked ledgers as a process knows it."""

import pytest

from autorecovery.repair.board_watch import MarkWatch
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.clock import LoopClock
from tests.support.waiting import eventually

ROOT = "/ledgers/underreplication/ledgers"


async def test_marks_are_known_although_an_empty_directory_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MemoryStore(LoopClock())
    marks = MarkBoard(store)
    await marks.prepare()
    await marks.mark(7, "a", 0)
    await store.put(f"{ROOT}/0000/0000/0001", b"")

    async def refused(path: str, expected_version: int | None = None) -> None:
        raise MetadataError(f"{path}: not allowed")

    monkeypatch.setattr(store, "delete", refused)
    watch = MarkWatch(marks, LoopClock())
    await watch.start()
    assert watch.marked == {7}
    await watch.stop()


async def test_directories_that_no_mark_is_left_in_are_removed_once_they_are_seen() -> None:
    store = MemoryStore(LoopClock())
    marks = MarkBoard(store)
    await marks.prepare()
    watch = MarkWatch(marks, LoopClock())
    near, far = 7, 0x0001_0000_0000_0008
    for ledger_id in (near, near + 1, far):
        await marks.mark(ledger_id, "a", 0)
    await watch.start()
    try:
        assert watch.marked == {near, near + 1, far}
        for ledger_id in (near, far):
            assert await marks.lock(ledger_id, "one")
            assert await marks.take_down(ledger_id, 0)
        await eventually(lambda: watch.marked == {near + 1})

        async def is_left(names: list[str]) -> bool:
            return await store.children(ROOT) == names

        await eventually(lambda: is_left(["0000"]))
        assert await store.children(f"{ROOT}/0000/0000/0000") == ["0008"]
        assert await marks.lock(near + 1, "one")
        assert await marks.take_down(near + 1, 0)
        await eventually(lambda: is_left([]))
        await marks.mark(near, "b", 0)
        await eventually(lambda: watch.marked == {near})
    finally:
        await watch.stop()
