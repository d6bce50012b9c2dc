"""Closed ledgers get more copies."""

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from magnetar.inspect.inspector import Inspector
from magnetar.inspect.widening import Widened, widen, widened
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    IllegalChange,
    LedgerMetadata,
    LedgerState,
    Segment,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import MagnetarError

ROOT = "/ledgers"
CLOSED = LedgerMetadata(
    ensemble_size=1, write_quorum=1, ack_quorum=1, digest_type=DigestType.CRC32C, state=LedgerState.CLOSED,
    segments=(Segment(0, ("b1",)), Segment(5, ("b2",))), last_entry_id=9, length=100,
)  # fmt: skip
OPEN = replace(CLOSED, state=LedgerState.OPEN, segments=(Segment(0, ("b1",)),), last_entry_id=-1, length=0)
WRITABLE = ("b1", "b2", "b3", "b4")


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore(LoopClock())
    await initialise_cluster(made)
    for bookie_id in WRITABLE:
        await made.put(f"{ROOT}/available/{bookie_id}", b"", ephemeral=True)
    return made


@pytest.fixture
async def inspector(store: MemoryStore) -> AsyncIterator[Inspector]:
    made = Inspector(store, ROOT, LoopClock())
    await made.start()
    yield made
    await made.close()


def test_each_ensemble_keeps_its_bookies_and_gets_others() -> None:
    for ledger_id in range(8):
        metadata, added = widened(CLOSED, 3, WRITABLE, ledger_id)
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (3, 3, 1)
        assert [ensemble[0] for _, ensemble in metadata.segments] == ["b1", "b2"]
        assert metadata.problems() == []
        assert set(added) == {one for _, ensemble in metadata.segments for one in ensemble[1:]}
        assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 9, 100)
    used = {one for ledger_id in range(8) for _, one in widened(CLOSED, 2, WRITABLE, ledger_id)[0].segments}
    assert len({ensemble[1] for ensemble in used}) == 4, "many ledgers spread over all"
    with pytest.raises(MagnetarError, match="3 copies need more"):
        widened(CLOSED, 3, ("b3",), 0)


@pytest.mark.parametrize(
    "metadata", [OPEN, replace(CLOSED, ensemble_size=2, segments=(Segment(0, ("b1", "b2")),))], ids=["open", "striped"]
)
def test_others_never_get_more_copies(metadata: LedgerMetadata) -> None:
    with pytest.raises(IllegalChange):
        metadata.with_more_copies(3, {0: ("b1", "b2", "b3")})


def test_no_bookie_that_has_the_entries_is_left_out() -> None:
    with pytest.raises(IllegalChange, match="not named any more"):
        CLOSED.with_more_copies(2, {0: ("b3", "b1"), 5: ("b2", "b1")})


async def test_what_lacks_copies_is_marked_and_the_rest_is_told(store: MemoryStore, inspector: Inspector) -> None:
    ledgers, board = LedgerStore(store), MarkBoard(store)
    three = ("b1", "b2", "b3")
    records = {
        1: CLOSED,
        2: OPEN,
        3: replace(CLOSED, ensemble_size=2, segments=(Segment(0, ("b1", "b2")),)),
        4: replace(CLOSED, ensemble_size=3, write_quorum=3, segments=(Segment(0, three),)),
        5: CLOSED,
    }
    for ledger_id, metadata in records.items():
        await ledgers.create_with_id(ledger_id, metadata)
    await store.put(f"{ROOT}/00/0000/L0006", b"no record")
    other = MarkBoard(store.session())
    await other.prepare()
    assert await other.lock(5, "a repair")
    assert await widen(inspector, 3, "me") == Widened((1,), (2,), (3,), (5,), (6,))
    mark = await board.read(1)
    assert mark is not None
    metadata = (await ledgers.read(1)).metadata
    assert set(mark.mark.replicas) == metadata.bookies() - {"b1", "b2"} | {
        one for _, ensemble in metadata.segments for one in ensemble[1:]
    }
    assert await board.locked() == {5}
    await other.unlock(5)
    assert (await widen(inspector, 3, "me")).ledgers == (5,), "what has its copies stays as it is"


async def test_without_enough_bookies_nothing_changes(store: MemoryStore, inspector: Inspector) -> None:
    await LedgerStore(store).create_with_id(1, CLOSED)
    with pytest.raises(MagnetarError, match=r"4 bookies take entries .*; 5 copies need as many"):
        await widen(inspector, 5, "me")
    assert (await LedgerStore(store).read(1)).version == 0


async def test_a_ledger_is_locked_until_it_is_marked(
    store: MemoryStore, inspector: Inspector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repair that judged the former record would take the mark down."""
    await LedgerStore(store).create_with_id(1, CLOSED)
    seen: list[frozenset[int]] = []
    mark = MarkBoard.mark

    async def marking(board: MarkBoard, ledger_id: int, replica: str | None, wall_ms: int) -> None:
        seen.append(await board.locked())
        await mark(board, ledger_id, replica, wall_ms)

    monkeypatch.setattr(MarkBoard, "mark", marking)
    await widen(inspector, 2, "me")
    assert seen
    assert set(seen) == {frozenset({1})}
