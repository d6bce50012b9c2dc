"""Callbacks, their events and their logs, over every metadata store."""

import asyncio

import pytest

from autorecovery.callbacks import rules
from autorecovery.callbacks.registry import CallbackRegistry, NoSuchCallback, TooMany
from autorecovery.callbacks.rules import BadCallback, Line, Outcome
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, VersionConflict
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption
from tests.conformance.test_metadata_store import Opener, reopen, store, zookeeper

__all__ = ["Opener", "reopen", "store", "zookeeper"]

ROOT = "/ledgers"
NOW = LoopClock().wall_ms()
PATH = f"{ROOT}/underreplication/magnetar/callbacks"


async def registered(registry: CallbackRegistry, *states: str, bookies: tuple[str, ...] = ()) -> str:
    return (await registry.register("http://10.0.0.9/x", None, states, bookies, "me", 1)).id


async def drain(store: MetadataStore, bookie: str) -> None:
    await store.put(cookie_path(ROOT, bookie), b"cookie")
    await BookieStates(store, ROOT).move(bookie, State.DRAINING, Actor.OPERATOR, "me", "", 1)


def delivered(event_id: str, outcome: Outcome = Outcome.DELIVERED) -> Line:
    return Line(event_id, "b-1", "draining", outcome, 1, 5, "200")


async def test_a_callback_is_registered_read_and_removed(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    assert await registry.all() == []
    made = await registry.register("http://10.0.0.9/x", None, ("drained",), ("b-1",), "me", 7)
    assert len(made.secret) == 64
    assert (await registry.read(made.id)).callback == made
    assert [one.callback for one in await registry.all()] == [made]
    assert (await registry.pending(made.id), await registry.log_of(made.id)) == ([], ())
    await registry.remove(made.id)
    for missing in (made.id, "no/id", "..", ""):
        with pytest.raises(NoSuchCallback):
            await registry.remove(missing)
        with pytest.raises(NoSuchCallback):
            await registry.read(missing)
    assert await store.children(PATH) == []
    with pytest.raises(BadCallback):
        await registry.register("host", None, (), (), "me", 7)


async def test_so_many_callbacks_also_at_the_same_time(store: MetadataStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "CALLBACKS_MAX", 3)
    registry = CallbackRegistry(store, ROOT)
    found = await asyncio.gather(*(registered(registry) for _ in range(5)), return_exceptions=True)
    assert len([one for one in found if isinstance(one, TooMany)]) == 2
    assert len(await registry.all()) == 3


async def test_an_event_is_handed_to_those_who_want_it_and_is_no_longer_listed(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    wants_all = await registered(registry)
    wants_other = await registered(registry, bookies=("b-2",))
    wants_end = await registered(registry, "drained", "removed")
    await drain(store, "b-1")
    (event_id,) = await registry.events()
    await registry.hand_out(event_id, await registry.all(), NOW)
    assert await registry.events() == []
    assert [await registry.pending(one) for one in (wants_all, wants_other, wants_end)] == [[event_id], [], []]
    pending = await registry.read_pending(wants_all, event_id)
    assert pending is not None
    assert b'"to": "draining"' in pending.body
    await registry.hand_out(event_id, await registry.all(), NOW)
    assert await registry.pending(wants_all) == [event_id]


async def test_a_callback_that_was_removed_meanwhile_is_not_made_anew(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    gone, stays = await registered(registry), await registered(registry)
    await drain(store, "b-1")
    (event_id,) = await registry.events()
    seen = await registry.all()
    await registry.remove(gone)
    with pytest.raises(VersionConflict):
        await registry.hand_out(event_id, seen, NOW)
    assert await store.children(PATH) == [stays]
    assert await registry.events() == [event_id]
    await registry.hand_out(event_id, await registry.all(), NOW)
    assert await registry.pending(stays) == [event_id]


async def test_an_event_nobody_wants_goes(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    await drain(store, "b-1")
    (event_id,) = await registry.events()
    await registry.hand_out(event_id, [], NOW)
    assert await registry.events() == []


async def test_an_event_for_which_no_auditor_came_in_time_is_dropped(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    callback = await registered(registry)
    await drain(store, "b-1")
    (event_id,) = await registry.events()
    await registry.hand_out(event_id, await registry.all(), NOW + rules.AGE_MS_MAX + 3_600_000)
    assert (await registry.events(), await registry.pending(callback)) == ([], [])


async def test_what_became_of_an_event_stands_in_the_log(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    callback = await registered(registry)
    await drain(store, "b-1")
    (event_id,) = await registry.events()
    await registry.hand_out(event_id, await registry.all(), NOW)
    await registry.note(callback, delivered(event_id, Outcome.WAITS))
    assert await registry.pending(callback) == [event_id]
    await registry.note(callback, delivered(event_id))
    assert await registry.pending(callback) == []
    assert await registry.log_of(callback) == (delivered(event_id),)
    await registry.note(callback, delivered(event_id, Outcome.WAITS))
    assert await registry.log_of(callback) == (delivered(event_id),), "it is over"
    await registry.remove(callback)
    await registry.note(callback, delivered(event_id))
    assert await store.children(PATH) == []


async def test_a_callback_is_removed_with_all_that_waits_for_it(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    callback = await registered(registry)
    for number in range(3):
        await drain(store, f"b-{number}")
    for event_id in await registry.events():
        await registry.hand_out(event_id, await registry.all(), NOW)
    assert len(await registry.pending(callback)) == 3
    await registry.remove(callback)
    assert await store.children(PATH) == []


async def test_a_test_is_an_event_that_only_its_callback_gets(store: MetadataStore) -> None:
    registry = CallbackRegistry(store, ROOT)
    callback, other = await registered(registry, "removed"), await registered(registry)
    event_id = await registry.test(callback, "me", 5)
    assert await registry.pending(callback) == [event_id]
    assert await registry.pending(other) == []
    with pytest.raises(NoSuchCallback):
        await registry.test("ab", "me", 5)


async def test_a_record_or_a_log_that_cannot_be_read_hides_no_other(store: MetadataStore) -> None:
    """I60"""
    registry = CallbackRegistry(store, ROOT)
    damaged, good = await registered(registry), await registered(registry)
    await store.put(f"{PATH}/{damaged}", b"{}")
    await store.put(f"{PATH}/{good}/log", b"[{}]")
    assert [one.callback.id for one in await registry.all()] == [good]
    with pytest.raises(Corruption, match="delete the callback"):
        await registry.read(damaged)
    event_id = await registry.test(good, "me", 5)
    await registry.note(good, delivered(event_id))
    assert await registry.log_of(good) == (delivered(event_id),)
    await registry.remove(damaged)
    assert len(await store.children(PATH)) == 1


@pytest.mark.parametrize("fate", LostAnswer)
async def test_an_answer_that_is_lost_leaves_one_of_each(fate: LostAnswer) -> None:
    store = MemoryStore(LoopClock())
    registry = CallbackRegistry(store, ROOT)
    store.lose_next_answer(fate)
    callback = await registered(registry)
    assert len(await registry.all()) == 1
    store.lose_next_answer(fate)
    event_id = await registry.test(callback, "me", 5)
    assert await registry.pending(callback) == [event_id]
    store.lose_next_answer(fate)
    await registry.note(callback, delivered(event_id))
    assert (await registry.pending(callback), await registry.log_of(callback)) == ([], (delivered(event_id),))
    store.lose_next_answer(fate)
    await registry.remove(callback)
    assert await registry.all() == []
