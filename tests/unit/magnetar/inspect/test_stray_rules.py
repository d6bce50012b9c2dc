"""The record of a ledger, found from what bookies have of it: compared with the definition of a write set."""

import random

import pytest

from magnetar.inspect.stray_rules import CannotTell, entries_of, last_entry, place
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment
from magnetar_core.bookkeeper.wire.codec_v3 import decode_availability
from magnetar_core.bookkeeper.wire.entry import DigestType
from tests.support.bookie_requests import encode_availability


def bits(entry_ids: list[int]) -> int:
    return sum(1 << one for one in set(entry_ids))


def write_set(segments: tuple[Segment, ...], quorum: int, entry_id: int) -> list[str]:
    ensemble = next(one.ensemble for one in reversed(segments) if one.first_entry_id <= entry_id)
    return [ensemble[(entry_id + at) % len(ensemble)] for at in range(quorum)]


def held_of(segments: tuple[Segment, ...], quorum: int, last: int, lost: set[tuple[str, int]]) -> dict[str, int]:
    held: dict[str, int] = {}
    for entry_id in range(last + 1):
        for bookie in write_set(segments, quorum, entry_id):
            if (bookie, entry_id) not in lost:
                held[bookie] = held.get(bookie, 0) | 1 << entry_id
    return held


@pytest.mark.parametrize("entry_ids", [[0], [0, 1, 2], [0, 3, 6, 9], [1, 2, 4, 5, 7, 8, 20], list(range(5, 900, 7))])
def test_a_list_of_entries_becomes_a_number(entry_ids: list[int]) -> None:
    assert entries_of(decode_availability(encode_availability(entry_ids))) == bits(entry_ids)


def test_a_list_that_is_too_long_is_refused() -> None:
    with pytest.raises(CannotTell, match="more than 100000000"):
        entries_of([(0, 2**40, 1, 1)])


@pytest.mark.parametrize(
    ("entry_ids", "confirmed", "last"), [([0, 1, 2], -1, 2), ([0, 1, 2], 2, 2), ([0, 1, 3], 1, 1), ([0], -1, 0)]
)
def test_a_ledger_ends_before_what_nobody_has(entry_ids: list[int], confirmed: int, last: int) -> None:
    assert last_entry({"a": bits(entry_ids[:1]), "b": bits(entry_ids)}, confirmed) == last


@pytest.mark.parametrize(
    ("entry_ids", "confirmed", "why"),
    [([], -1, "nothing to save"), ([1, 2], -1, "its first entry"), ([0, 1, 3], 2, "entry 2 is on no bookie"),
     ([0, 1], 2, "entry 2 is on no bookie")],
)  # fmt: skip
def test_what_was_acknowledged_and_is_not_there_is_told(entry_ids: list[int], confirmed: int, why: str) -> None:
    with pytest.raises(CannotTell, match=why):
        last_entry({"a": bits(entry_ids)}, confirmed)


def test_the_order_of_a_striped_ledger_is_found() -> None:
    found = place({"a": bits([0, 1, 3, 4]), "b": bits([0, 2, 3, 5]), "c": bits([1, 2, 4, 5])}, 5, ())
    assert found == ((Segment(0, ("b", "a", "c")),), 2)


def test_a_ledger_that_is_not_striped_needs_no_order() -> None:
    (only,), quorum = place({"b": bits([0, 1, 2]), "a": bits([0, 1])}, 2, ("z",))
    assert (only.first_entry_id, set(only.ensemble), quorum) == (0, {"a", "b"}, 2)


def test_a_member_of_an_ensemble_that_has_nothing_is_not_needed() -> None:
    """One entry of three bookies and two copies."""
    (only,), quorum = place({"b": bits([0]), "a": bits([0])}, 0, ("c", "d"))
    assert (only.first_entry_id, set(only.ensemble), quorum) == (0, {"a", "b"}, 2)


def test_a_bookie_that_an_operator_names_by_the_size_fills_the_ensemble() -> None:
    found = place({"a": bits([0, 2]), "b": bits([0, 1, 3])}, 3, ("z",), ensemble_size=3)
    assert write_set(found.segments, found.write_quorum, 1).count("b") == 1
    assert set(found.segments[0].ensemble) == {"a", "b", "z"}


def test_an_ensemble_that_is_too_small_is_refused() -> None:
    with pytest.raises(CannotTell, match="some entries have 3 copies"):
        place({one: bits([0, 1]) for one in "abc"}, 1, (), ensemble_size=2)


@pytest.mark.parametrize("seed", range(300))
def test_whatever_was_written_is_found_where_the_record_says(seed: int) -> None:
    """Random ledgers with changes of the ensemble, holes, and copies that stand nowhere."""
    rng = random.Random(seed)
    size = rng.randint(1, 5)
    quorum = rng.randint(1, size)
    cluster = [f"b{number}" for number in range(size + rng.randint(0, 3))]
    last = rng.randint(0, 60)
    starts = sorted({0, *(rng.randint(1, 60) for _ in range(rng.randint(0, 2)))})
    segments = tuple(Segment(first, tuple(rng.sample(cluster, size))) for first in starts if first <= last)
    lost = {(one, entry) for one in cluster for entry in range(last + 1) if rng.random() < 0.1}
    held = held_of(segments, quorum, last, lost)
    there = bits([]) if not held else 0
    for entries in held.values():
        there |= entries
    end = (~there & (there + 1)).bit_length() - 2
    if end < 0:
        return
    found = place(held, end, cluster)
    metadata = LedgerMetadata(
        ensemble_size=len(found.segments[0].ensemble),
        write_quorum=found.write_quorum,
        ack_quorum=found.write_quorum,
        digest_type=DigestType.CRC32C,
        segments=found.segments,
    )
    assert metadata.problems() == []
    assert len(found.segments) <= len(segments)
    for entry_id in range(end + 1):
        named = write_set(found.segments, found.write_quorum, entry_id)
        assert {one for one, entries in held.items() if entries >> entry_id & 1} <= set(named)


def test_a_ledger_of_a_million_entries_is_placed_in_a_moment() -> None:
    order = ("c", "a", "b")
    held = dict.fromkeys(order, 0)
    for rest in range(3):
        every = entries_of([(rest, 999_999 // 3 * 3 - 3 + rest, 1, 3)])
        for at in range(2):
            held[order[(rest + at) % 3]] |= every
    assert place(held, 999_990, ()).segments == (Segment(0, order),)
