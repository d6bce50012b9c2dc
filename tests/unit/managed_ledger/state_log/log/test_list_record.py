"""The list of a log in the metadata store: who may change it."""

import pytest

from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.state_log.errors import LeadershipLost, LogUnavailable
from managed_ledger.state_log.log.list_record import Term, read_list
from tests.support.memory_bookkeeper import MemoryBookKeeper

ROOT = "/dictionary"
LOG = "ab" * 16


async def test_i116_a_leader_whose_term_is_over_cannot_change_the_list() -> None:
    store = MemoryStore(LoopClock())
    first = await Term.claim(store.session(), ROOT, "a/1", LOG)
    await first.add(1, 1)
    await first.add(2, 5)
    second = await Term.claim(store.session(), ROOT, "b/1", None)
    assert second.list.term == 2
    for change in (first.add(3, 9), first.drop((1,), MemoryBookKeeper().client), first.check()):
        with pytest.raises(LeadershipLost):
            await change
    found = await read_list(store, ROOT)
    assert found == second.list
    assert [one.ledger_id for one in found.ledgers] == [1, 2]
    await second.check()
    await second.add(3, 9)


async def test_a_list_is_made_once_and_never_by_a_node_that_has_a_state() -> None:
    store = MemoryStore(LoopClock())
    with pytest.raises(LogUnavailable, match="is gone"):
        await Term.claim(store, ROOT, "a/1", None)
    assert await read_list(store, ROOT) is None
    made = await Term.claim(store, ROOT, "a/1", LOG)
    again = await Term.claim(store.session(), ROOT, "b/1", "cd" * 16)
    assert made.list.log == again.list.log == LOG


@pytest.mark.parametrize("fate", list(LostAnswer))
async def test_r_s8_a_change_whose_answer_is_lost_is_made_once(fate: LostAnswer) -> None:
    store = MemoryStore(LoopClock())
    term = await Term.claim(store, ROOT, "a/1", LOG)
    store.lose_next_answer(fate)
    await term.add(7, 1)
    found = await read_list(store, ROOT)
    assert found == term.list
    assert [one.ledger_id for one in found.ledgers] == [7]


async def test_a_store_that_is_away_is_not_a_lost_leadership() -> None:
    store = MemoryStore(LoopClock())
    term = await Term.claim(store, ROOT, "a/1", LOG)
    store.suspend()
    for change in (term.add(1, 1), term.check()):
        with pytest.raises(LogUnavailable) as failed:
            await change
        assert not isinstance(failed.value, LeadershipLost)
    with pytest.raises(LogUnavailable):
        await read_list(store, ROOT)
    store.resume()
    await term.add(1, 1)
