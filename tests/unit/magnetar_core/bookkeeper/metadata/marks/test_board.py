"""Marks, locks and switches of auto-recovery, on the metadata nodes that Apache's auto-recovery uses."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.marks.underreplication import Mark, PeriodicCheck
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import Operation, OutcomeUnknown, StoreUnavailable
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from tests.support.waiting import settle

PATH = "/ledgers/underreplication/ledgers/0000/0000/0000/04d2/urL0000001234"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(LoopClock())


@pytest.fixture
def marks(store: MemoryStore) -> MarkBoard:
    return MarkBoard(store)


async def marked(marks: MarkBoard) -> list[int]:
    return [ledger_id async for ledger_id in marks.marked()]


async def test_a_mark_has_apaches_path_and_text(store: MemoryStore, marks: MarkBoard) -> None:
    await marks.mark(1234, "node-d", 1795241737764)
    node = await store.get(PATH)
    assert node is not None
    assert node.value == b'replica: "node-d"\nctime: 1795241737764\n'
    await marks.mark(1234, "node-e", 5)
    await marks.mark(1234, "node-d", 6)
    found = await marks.read(1234)
    assert found is not None
    assert found.mark == Mark(("node-d", "node-e"), 1795241737764)
    assert found.version == 1, "a bookie that is named already changes nothing"


async def test_a_mark_that_was_renewed_is_not_taken_down(marks: MarkBoard) -> None:
    """I66"""
    await marks.mark(7, "a", 0)
    read = await marks.read(7)
    assert read is not None
    await marks.mark(7, "b", 0)
    assert not await marks.take_down(7, read.version)
    assert await marked(marks) == [7]
    again = await marks.read(7)
    assert again is not None
    assert await marks.take_down(7, again.version)
    assert await marked(marks) == []


async def test_a_mark_and_the_lock_under_which_its_ledger_was_repaired_go_in_one_step(
    store: MemoryStore, marks: MarkBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    await marks.prepare()
    await marks.mark(7, "a", 0)
    await marks.mark(8, "a", 0)
    assert await marks.lock(7, "one")
    multi, steps = store.multi, []

    async def seen(operations: Sequence[Operation]) -> None:
        steps.append([one.path.rpartition("/")[2] for one in operations])
        await multi(operations)

    monkeypatch.setattr(store, "multi", seen)
    assert await marks.take_down(7, 0)
    assert steps == [["urL0000000007", "0007", "urL0000000007"]]
    assert (await marks.locked(), await marked(marks)) == (frozenset(), [8])
    monkeypatch.setattr(store, "get", None)
    await marks.unlock(7)  # asks nobody: it was given back


async def test_a_mark_that_was_renewed_stays_and_so_does_the_lock(marks: MarkBoard) -> None:
    """I66"""
    await marks.mark(7, "a", 0)
    assert await marks.lock(7, "one")
    await marks.mark(7, "b", 0)
    assert not await marks.take_down(7, 0)
    assert (await marks.locked(), await marked(marks)) == (frozenset({7}), [7])
    await marks.unlock(7)
    assert await marks.locked() == frozenset()


async def test_a_mark_goes_although_its_lock_was_removed_by_others(store: MemoryStore, marks: MarkBoard) -> None:
    await marks.mark(7, "a", 0)
    assert await marks.lock(7, "one")
    await store.delete("/ledgers/underreplication/locks/urL0000000007")
    assert await marks.take_down(7, 0)
    assert await marked(marks) == []
    assert await store.children("/ledgers/underreplication/ledgers") == []


async def test_the_lock_that_another_worker_took_after_our_session_stays_when_the_mark_goes(
    store: MemoryStore, marks: MarkBoard
) -> None:
    """Both locks have the version 0 (rule 3)."""
    other = MarkBoard(store.session())
    await marks.mark(7, "a", 0)
    assert await marks.lock(7, "one")
    store.expire()
    assert marks.held == frozenset()
    assert await other.lock(7, "two")
    assert await marks.take_down(7, 0)
    assert (await other.locked(), await marked(other)) == (frozenset({7}), [])
    assert await other.holder(7) == "two"


async def test_nothing_goes_when_the_session_ends_while_mark_and_lock_are_taken_down(
    store: MemoryStore, marks: MarkBoard
) -> None:
    other_store = store.session()
    taking: list[asyncio.Future[bool]] = []
    await marks.mark(7, "a", 0)
    assert await marks.lock(7, "one")

    def another_takes_it(_: str) -> None:
        store.before_change = None
        store.expire()
        taking.append(asyncio.ensure_future(MarkBoard(other_store).lock(7, "two")))

    store.before_change = another_takes_it
    with pytest.raises(StoreUnavailable, match="the session ended before this was sent"):
        await marks.take_down(7, 0)
    assert await taking[0]
    assert (await marks.holder(7), await marked(marks)) == ("two", [7])


async def test_a_lock_in_doubt_is_not_taken_down_with_its_mark(store: MemoryStore, marks: MarkBoard) -> None:
    """It went although the answer was lost, and another worker has it now."""
    other = MarkBoard(store.session())
    await marks.mark(7, "a", 0)
    assert await marks.lock(7, "one")
    store.lose_next_answer(LostAnswer.APPLIED)
    assert await marks.take_down(7, 0)
    await marks.mark(7, "b", 0)
    assert await other.lock(7, "two")
    assert await marks.take_down(7, 0)
    await marks.unlock(7)
    assert (await other.holder(7), marks.held) == ("two", frozenset())


@pytest.mark.parametrize("fate", list(LostAnswer))
async def test_a_lock_is_held_until_it_is_known_to_be_given_back(
    store: MemoryStore, marks: MarkBoard, fate: LostAnswer
) -> None:
    assert await marks.lock(7, "one")
    store.lose_next_answer(fate)
    with pytest.raises(OutcomeUnknown):
        await marks.unlock(7)
    assert marks.held == {7}
    await marks.unlock(7)
    assert (await marks.locked(), marks.held) == (frozenset(), frozenset())


async def test_a_lock_whose_answer_nobody_waited_for_can_be_given_back(
    store: MemoryStore, marks: MarkBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 4"""
    put = store.put

    async def slow(*arguments: Any, **options: Any) -> int:
        version = await put(*arguments, **options)
        await asyncio.sleep(60)
        return version

    with monkeypatch.context() as patch:
        patch.setattr(store, "put", slow)
        asking = asyncio.ensure_future(marks.lock(7, "one"))
        await settle()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert (await marks.locked(), marks.held) == (frozenset({7}), frozenset({7}))
    await marks.unlock(7)
    assert (await marks.locked(), marks.held) == (frozenset(), frozenset())


async def test_a_lock_of_somebody_else_is_not_given_back(store: MemoryStore, marks: MarkBoard) -> None:
    other = MarkBoard(store.session())
    assert await other.lock(7, "two")
    assert not await marks.lock(7, "one")
    await marks.unlock(7)
    assert await marks.locked() == frozenset({7})


async def test_a_lock_keeps_out_others_of_the_same_session(store: MemoryStore, marks: MarkBoard) -> None:
    """A worker and a recovery by hand of one process."""
    other = MarkBoard(store)
    assert await marks.lock(7, "one")
    assert not await marks.lock(7, "one"), "another call"
    assert not await other.lock(7, "two")
    await other.unlock(7)
    assert await marks.locked() == {7}
    await marks.unlock(7)
    assert await other.lock(7, "two")


@pytest.mark.parametrize("fate", list(LostAnswer))
async def test_a_lock_that_could_not_be_given_back_is_taken_again(
    store: MemoryStore, marks: MarkBoard, fate: LostAnswer
) -> None:
    assert await marks.lock(7, "one")
    store.lose_next_answer(fate)
    with pytest.raises(OutcomeUnknown):
        await marks.unlock(7)
    assert await marks.lock(7, "one")


async def test_directories_go_with_their_last_mark(store: MemoryStore, marks: MarkBoard) -> None:
    await marks.prepare()
    await marks.mark(1, "a", 0)
    await marks.mark(2**40, "a", 0)
    for ledger_id in (1, 2**40):
        read = await marks.read(ledger_id)
        assert read is not None
        assert await marks.take_down(ledger_id, read.version)
    assert await store.children("/ledgers/underreplication/ledgers") == []
    assert await store.exists("/ledgers/underreplication/ledgers")


@pytest.mark.parametrize("fate", list(LostAnswer))
async def test_a_lost_answer_leaves_a_mark_and_a_lock_behind(
    store: MemoryStore, marks: MarkBoard, fate: LostAnswer
) -> None:
    store.lose_next_answer(fate)
    await marks.mark(3, "a", 0)
    assert await marked(marks) == [3]
    store.lose_next_answer(fate)
    is_ours = await marks.lock(3, "me")
    assert is_ours == (fate is LostAnswer.APPLIED)
    assert (3 in await marks.locked()) == is_ours


async def test_a_lock_keeps_others_out_and_ends_with_its_session(store: MemoryStore, marks: MarkBoard) -> None:
    other_store = store.session()
    other = MarkBoard(other_store)
    assert await other.lock(1, "other")
    assert not await marks.lock(1, "me")
    await marks.unlock(1)
    assert await marks.locked() == {1}, "nobody gives back what he does not have"
    assert await marks.holder(1) == "other"
    other_store.expire()
    assert await marks.lock(1, "me")


async def test_switches_and_times(store: MemoryStore, marks: MarkBoard) -> None:
    assert await marks.is_enabled()
    await marks.set_enabled(False)
    await marks.set_enabled(False)
    assert not await marks.is_enabled()
    assert await store.exists("/ledgers/underreplication/disable")
    await marks.set_enabled(True)
    await marks.set_enabled(True)
    assert await marks.is_enabled()
    assert await marks.lost_bookie_delay_s() is None
    await marks.set_lost_bookie_delay(17)
    assert await marks.lost_bookie_delay_s() == 17
    for check in PeriodicCheck:
        assert await marks.last_checked_ms(check) is None
        await marks.set_last_checked(check, 1795239997055)
        assert await marks.last_checked_ms(check) == 1795239997055


async def test_the_same_delay_again_is_heard(marks: MarkBoard) -> None:
    """Writing the same delay again is the request for an audit."""
    await marks.set_lost_bookie_delay(0)
    heard: list[int] = []
    cancel = marks.watch_delay(lambda: heard.append(1))
    await marks.set_lost_bookie_delay(0)
    await asyncio.sleep(0)
    assert heard
    cancel()


async def test_what_cannot_be_read_is_told_and_hides_nothing(store: MemoryStore, marks: MarkBoard) -> None:
    """I60"""
    await marks.mark(1, "a", 0)
    await store.put(PATH, b"\xff\xfe")
    assert await marked(marks) == [1, 1234]
    with pytest.raises(Corruption, match="a mark of an under-replicated ledger"):
        await marks.read(1234)
    await store.put("/ledgers/underreplication/lostBookieRecoveryDelay", b"soon")
    with pytest.raises(Corruption, match="expected decimal seconds"):
        await marks.lost_bookie_delay_s()


async def test_a_first_mark_is_one_change(
    store: MemoryStore, marks: MarkBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is refused would have others, which go with it to ZooKeeper, sent one by one."""
    await marks.mark(1, "a", 0)
    monkeypatch.setattr(store, "get", None)
    monkeypatch.setattr(store, "put", None)
    await marks.mark(2, "a", 5)
    monkeypatch.undo()
    found = await marks.read(2)
    assert found is not None
    assert (found.mark, found.version) == (Mark(("a",), 5), 0)


async def test_a_mark_whose_directory_is_left_over_or_whose_answer_is_lost_is_put_up(
    store: MemoryStore, marks: MarkBoard
) -> None:
    await store.put(PATH.rpartition("/")[0], b"")
    await marks.mark(1234, "a", 5)
    store.lose_next_answer(LostAnswer.APPLIED)
    await marks.mark(1235, "a", 5)
    store.lose_next_answer(LostAnswer.NOT_APPLIED)
    await marks.mark(1236, "a", 5)
    for ledger_id in (1234, 1235, 1236):
        found = await marks.read(ledger_id)
        assert found is not None
        assert (found.mark, found.version) == (Mark(("a",), 5), 0)


async def test_directories_with_other_marks_are_not_tried_to_be_removed(
    store: MemoryStore, marks: MarkBoard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What goes to ZooKeeper with a removal that is refused has to be sent again."""
    await marks.prepare()
    for ledger_id in (7, 8):
        await marks.mark(ledger_id, "a", 0)
    deleted: list[str] = []
    delete = store.delete

    async def seen(path: str, expected_version: int | None = None) -> None:
        deleted.append(path.rpartition("/")[2])
        await delete(path, expected_version)

    monkeypatch.setattr(store, "delete", seen)
    assert await marks.take_down(7, 0)
    assert deleted == ["urL0000000007", "0007"]
    assert await marks.take_down(8, 0)
    assert deleted[2:] == ["urL0000000008", "0008", "0000", "0000", "0000"]
