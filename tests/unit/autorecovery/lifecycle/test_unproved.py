"""What a drain has moved and not proved yet, as it stands in the metadata store."""

import random

import pytest

from autorecovery.lifecycle import unproved
from autorecovery.lifecycle.unproved import Unproved, UnprovedLedgers, decode, encode, forget_others
from magnetar_core.bookkeeper.metadata.marks.underreplication import drains_path
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, OutcomeUnknown, VersionConflict
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption

ROOT = "/ledgers"
PARTS = f"{drains_path(ROOT)}/b-1"


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(LoopClock())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unproved, "PART_LEDGERS_MAX", 3)
    monkeypatch.setattr(unproved, "UNPROVED_MAX", 8)


async def read(store: MemoryStore) -> Unproved:
    """As somebody else reads it."""
    return await UnprovedLedgers(store, ROOT, "b-1").read()


def test_a_part_is_a_text_of_ranges() -> None:
    assert encode({9, 3, 4, 5, 7}) == b"3-5,7,9"
    assert decode(b"3-5,7,9") == {3, 4, 5, 7, 9}
    assert decode(b"all") is None
    longest = range(2**63 - 2 * unproved.PART_LEDGERS_MAX, 2**63 - 1, 2)
    assert len(encode(longest)) < 1_000_000
    assert decode(encode(longest)) == set(longest)


@pytest.mark.parametrize("value", [b"", b"x", b"5-3", b"1,,2", b"1-99999999", b"-1", b"[1]"])
def test_a_text_that_makes_no_sense_is_not_taken_for_ranges(value: bytes) -> None:
    with pytest.raises(Corruption):
        decode(value)


async def test_a_part_that_cannot_be_read_stands_for_every_ledger(store: MemoryStore) -> None:
    """I60"""
    await store.put(f"{PARTS}/0000000000", b"7")
    await store.put(f"{PARTS}/0000000001", b"nonsense")
    assert await read(store) == Unproved(frozenset({7}), True)


@pytest.mark.usefixtures("small")
async def test_ledgers_are_added_and_dropped_in_parts_of_a_limited_size(store: MemoryStore) -> None:
    kept = UnprovedLedgers(store, ROOT, "b-1")
    await kept.add({5, 1})
    await kept.add({5, 9, 11, 13})
    assert await read(store) == Unproved(frozenset({1, 5, 9, 11, 13}), False)
    assert await store.children(PARTS) == ["0000000000", "0000000001"]
    await kept.drop({1, 5, 9, 70})
    assert await store.children(PARTS) == ["0000000001"]
    await kept.add({2})
    assert await read(store) == Unproved(frozenset({2, 11, 13}), False)
    await kept.drop({2, 11, 13})
    assert await store.children(drains_path(ROOT)) == []


@pytest.mark.usefixtures("small")
async def test_too_many_ledgers_are_told_as_all_of_them(store: MemoryStore) -> None:
    kept = UnprovedLedgers(store, ROOT, "b-1")
    await kept.add(range(8))
    assert not (await read(store)).is_all
    await kept.add({8})
    assert (await read(store)).is_all
    await kept.add({9})
    await kept.drop(range(9))
    assert await read(store) == Unproved(frozenset(), True), "some that are not named may be left"
    await kept.drop((), was_all=True)
    assert await store.children(drains_path(ROOT)) == []


async def test_two_who_change_it_lose_nothing(store: MemoryStore) -> None:
    one, two = UnprovedLedgers(store, ROOT, "b-1"), UnprovedLedgers(store, ROOT, "b-1")
    await one.add({1, 2, 3})
    await two.add({4})
    with pytest.raises(VersionConflict):
        await one.drop({1, 2, 3})
    await one.drop({1, 2, 3})
    assert await read(store) == Unproved(frozenset({4}), False)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(30))
async def test_a_change_that_is_cut_short_loses_no_ledger(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Rule 2: after any failure everything that is not proved is there, and may be only more."""
    rng = random.Random(seed)
    put = store.put

    async def failing(path: str, value: bytes, *rest: int | None) -> int:
        if rng.random() < 0.4:
            if rng.random() < 0.5:
                await put(path, value, *rest)
            raise OutcomeUnknown("no answer")
        return await put(path, value, *rest)

    monkeypatch.setattr(store, "put", failing)
    kept = UnprovedLedgers(store, ROOT, "b-1")
    wanted: set[int] = set()
    for _ in range(20):
        some = set(rng.sample(range(7), 3))
        try:
            if rng.random() < 0.5:
                await kept.add(some)
                wanted |= some
            else:
                wanted -= some
                await kept.drop(some)
        except MetadataError:
            pass
        assert wanted <= (await read(store)).ids


async def test_what_stands_there_of_bookies_that_are_gone_is_removed(store: MemoryStore) -> None:
    for bookie in ("b-1", "b-2"):
        await UnprovedLedgers(store, ROOT, bookie).add({1})
    await forget_others(store, ROOT, {"b-2", "b-3"})
    assert await store.children(drains_path(ROOT)) == ["b-2"]
