"""The states of bookies, over every metadata store."""

import asyncio

import pytest

from magnetar_core.bookkeeper.metadata.bookies.bookie_states import (
    ACTIVE,
    BookieStates,
    BookieStateWatch,
    UnknownBookie,
    cookie_path,
    state_path,
)
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, IllegalMove, State
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, decode, events_path
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, NotEmpty, VersionConflict
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
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2, expected=found)
    with pytest.raises(VersionConflict):
        await states.move("b-1", State.DRAINED, Actor.AUDITOR, "two", "", 3, expected=found)
    assert (await states.read("b-1")).lifecycle.by == "one"


async def test_cookie_and_state_are_removed_together_or_not_at_all(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1", "b-2")
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2)
    found = await states.read("b-1")
    await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 3)
    with pytest.raises(VersionConflict):
        await states.remove("b-1", found, "me", 6)
    assert await states.bookies() == ["b-1", "b-2"]
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 4)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 5)
    await states.remove("b-1", await states.read("b-1"), "me", 6)
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
    store.lose_next_answer(fate)
    assert (await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 3)).state is State.ACTIVE
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 4)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 5)
    found = await states.read("b-1")
    assert (found.lifecycle.state, found.version) == (State.DRAINED, 1)
    store.lose_next_answer(fate)
    await states.remove("b-1", found, "me", 6)
    assert await states.bookies() == []
    told = [one.after for one in await events(store)]
    assert told == ["draining", "drained", "active", "draining", "drained", "removed"]


async def events(store: MetadataStore) -> list[Event]:
    found = []
    for name in await store.children(events_path(ROOT)):
        node = await store.get(f"{events_path(ROOT)}/{name}")
        assert node is not None
        assert decode(node.value).id == name
        found.append(decode(node.value))
    return found


async def test_each_move_and_the_removal_has_its_event_in_the_order_of_the_changes(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1", "b-2")
    # The clocks of those who move it disagree; the order does not come from them.
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "old  disks", 9)
    await states.move("b-2", State.DRAINING, Actor.OPERATOR, "me", "", 8)
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 5)
    await states.remove("b-1", await states.read("b-1"), "me", 3)
    assert [one[1:] for one in await events(store)] == [
        ("moved", "b-1", "active", "draining", "me", "old disks", 9),
        ("moved", "b-2", "active", "draining", "me", "", 8),
        ("moved", "b-1", "draining", "drained", "one", "", 5),
        ("removed", "b-1", "drained", "removed", "me", "", 3),
    ]


async def test_moves_at_the_same_time_are_all_made_and_have_an_event_each(store: MetadataStore) -> None:
    names = [f"b-{number}" for number in range(5)]
    states = await with_cookies(store, *names)
    await asyncio.gather(*(states.move(one, State.DRAINING, Actor.OPERATOR, "me", "", 1) for one in names))
    found = await events(store)
    assert sorted(one.bookie for one in found) == names
    assert [one.id[:10] for one in found] == [f"{number:010d}" for number in range(5)]


async def test_a_change_that_is_refused_has_no_event(store: MetadataStore) -> None:
    states = await with_cookies(store, "b-1")
    await states.move("b-1", State.DRAINING, Actor.OPERATOR, "me", "", 1)
    found = await states.read("b-1")
    await states.move("b-1", State.DRAINED, Actor.AUDITOR, "one", "", 2)
    with pytest.raises(IllegalMove):
        await states.move("b-1", State.DRAINING_FAILED, Actor.AUDITOR, "one", "", 3)
    with pytest.raises(VersionConflict):
        await states.move("b-1", State.ACTIVE, Actor.OPERATOR, "me", "", 3, expected=found)
    assert len(await events(store)) == 2
