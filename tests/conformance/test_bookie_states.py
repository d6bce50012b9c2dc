"""The states of bookies, over every metadata store."""

import pytest

from magnetar_core.bookkeeper.metadata.bookie_states import (
    ACTIVE,
    BookieStates,
    BookieStateWatch,
    UnknownBookie,
    cookie_path,
    state_path,
)
from magnetar_core.bookkeeper.metadata.lifecycle import Actor, IllegalMove, State
from magnetar_core.bookkeeper.metadata.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.store import MetadataStore, NotEmpty, VersionConflict
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from tests.conformance.test_metadata_store import Opener, reopen, store, zookeeper
from tests.support.waiting import eventually

__all__ = ["Opener", "reopen", "store", "zookeeper"]

ROOT = "/ledgers"


async def with_cookies(store: MetadataStore, *bookies: str) -> BookieStates:
    for bookie in bookies:
        await store.put(cookie_path(ROOT, bookie), b"cookie")
    return BookieStates(store, ROOT)


async def test_a_bookie_is_moved_and_is_active_without_a_node(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1")
    assert await states.read("b-1") == ACTIVE
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "old disks", 5)
    found = await states.read("b-1")
    assert (found.lifecycle.state, found.lifecycle.by, found.lifecycle.began_ms) == (State.DRAINING, "me", 5)
    with pytest.raises(NotEmpty):
        await store.delete(cookie_path(ROOT, "b-1"))
    await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 6)
    assert not await store.exists(state_path(ROOT, "b-1"))
    await store.delete(cookie_path(ROOT, "b-1"))


async def test_a_move_that_is_not_legal_or_of_a_stranger_changes_nothing(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1")
    with pytest.raises(IllegalMove):
        await states.move("b-1", State.DRAINED, Actor.OPERATOR, "me", "", 1)
    with pytest.raises(UnknownBookie, match="no bookie b-2 has a cookie in this cluster; known are: b-1"):
        await states.move("b-2", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    with pytest.raises(UnknownBookie, match="may only have"):
        await states.move("b/2", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    assert await store.children(f"{ROOT}/cookies") == ["b-1"]
    assert await states.read("b-1") == ACTIVE


async def test_a_move_that_was_decided_under_an_older_state_is_refused(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1")
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    found = await states.read("b-1")
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2, found=found)
    with pytest.raises(VersionConflict):
        await states.move("b-1", State.DRAINED, Actor.AUDITOR, "two", "", 3, found=found)
    assert (await states.read("b-1")).lifecycle.by == "one"


async def test_cookie_and_state_are_removed_together_or_not_at_all(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1", "b-2")
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2)
    found = await states.read("b-1")
    await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 3)
    with pytest.raises(VersionConflict):
        await states.remove("b-1", found)
    assert await states.bookies() == ["b-1", "b-2"]
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 4)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 5)
    await states.remove("b-1", await states.read("b-1"))
    assert await states.bookies() == ["b-2"]


async def test_the_watch_follows_moves_and_new_bookies(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1")
    watch = BookieStateWatch(states, LoopClock())
    await watch.start()
    assert watch.bookies == {"b-1"}
    assert not watch.not_active
    await with_cookies(store, "b-2")
    await eventually(lambda: watch.bookies == {"b-1", "b-2"})
    await states.move("b-2", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    await eventually(lambda: watch.draining == {"b-2"})
    await states.move("b-2", State.DRAINED, Actor.AUDITOR, "one", "", 1)
    await eventually(lambda: not watch.draining)
    assert watch.not_active["b-2"].lifecycle.state is State.DRAINED
    await watch.stop()


async def test_a_state_that_cannot_be_read_leaves_the_bookie_as_it_was_known(store: MetadataStore) -> None:
    """I60"""
    states = await with_cookies(store, "b-1")
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    watch = BookieStateWatch(states, LoopClock())
    await watch.start()
    await store.put(state_path(ROOT, "b-1"), b"{}")
    await eventually(lambda: "b-1" in watch.unreadable)
    assert watch.draining == {"b-1"}
    with pytest.raises(Corruption, match="cookies/b-1/state"):
        await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 2)
    await watch.stop()


@pytest.mark.parametrize("fate", LostAnswer)
async def test_an_answer_that_is_lost_leaves_one_move(fate: LostAnswer) -> None:
    store = MemoryStore(LoopClock())
    states = await with_cookies(store, "b-1")
    store.lose_next_answer(fate)
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    assert await states.read("b-1") == ((await states.read("b-1")).lifecycle, 0)
    store.lose_next_answer(fate)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2)
    found = await states.read("b-1")
    assert (found.lifecycle.state, found.version) == (State.DRAINED, 1)
    store.lose_next_answer(fate)
    await states.remove("b-1", found)
    assert await states.bookies() == []
