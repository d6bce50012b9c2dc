"""The election of the auditor, where the metadata store loses answers."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from autorecovery.audit.election import AuditorElection, auditor, candidates
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown
from magnetar_core.runtime.clock import LoopClock
from tests.support.waiting import eventually

ROOT = "/ledgers"


def fail(error: BaseException) -> None:
    raise AssertionError(f"the election ended: {error!r}")


def election(store: MemoryStore, name: str = "bookie-1") -> AuditorElection:
    return AuditorElection(store, ROOT, name, LoopClock())


async def start(made: AuditorElection) -> asyncio.Event:
    elected = asyncio.Event()

    async def on_elected() -> None:
        elected.set()

    await made.start(on_elected, fail)
    return elected


async def lost_at_start(store: MemoryStore) -> None:
    store.lose_next_answer(LostAnswer.APPLIED)
    former = election(store)
    with pytest.raises(OutcomeUnknown):
        await start(former)
    await former.stop()


async def lost_at_stop(store: MemoryStore) -> None:
    former = election(store)
    await start(former)
    store.suspend()
    await former.stop()
    store.resume()


@pytest.mark.parametrize("leave", [lost_at_start, lost_at_stop])
async def test_a_candidacy_that_was_left_behind_does_not_keep_others_from_being_elected(
    leave: Callable[[MemoryStore], Awaitable[None]],
) -> None:
    """The session goes on, as that of a bookie whose auto-recovery is started anew, so its nodes stay."""
    store = MemoryStore(LoopClock())
    await leave(store)
    assert len(await candidates(store, ROOT)) == 1
    other = election(store.session(), "bookie-2")
    elected = await start(other)
    again = election(store)
    await start(again)
    await eventually(elected.is_set)
    assert await auditor(store, ROOT) == "bookie-2"
    assert len(await candidates(store, ROOT)) == 2
    await other.stop()
    await again.stop()


async def test_candidates_of_other_names_in_the_same_session_stay() -> None:
    store = MemoryStore(LoopClock())
    first, second = election(store), election(store, "bookie-2")
    elected = await start(first)
    await start(second)
    await eventually(elected.is_set)
    assert len(await candidates(store, ROOT)) == 2
    await first.stop()
    await second.stop()
