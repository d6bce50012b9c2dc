"""Which ledgers are in doubt: the decisions, and the file that keeps them."""

from dataclasses import replace

import pytest

from bookie.maintenance.garbage.rules import ListingLimits, RefusalCode, refuse_newer
from bookie.maintenance.older_metadata.note import Note, decode, numbers_end, runs
from magnetar_core.bookkeeper.metadata.ledgers.doubts import RANGES_MAX, DoubtRange, bounded
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import SHORT_ID_LIMIT
from magnetar_core.runtime.types import Corruption

RANGE = DoubtRange(50, 101, 1_795_000_000_000, "b2")
KNOWS = Note(3, 40, known=(RANGE,))


def test_ledgers_from_the_next_number_on_are_suspected() -> None:
    assert Note().suspects([3, 49, 50, 51, 2**40], 50, ()) == [50, 51]
    assert Note().suspects([3, 49], 50, ()) == []


def test_a_number_that_was_given_before_is_a_proof_without_any_ledger() -> None:
    assert Note(given=60).newest_seen(50, []) == 60
    assert Note(given=49).newest_seen(50, []) < 50
    assert Note(given=49).newest_seen(50, [20, 70]) == 70


def test_what_was_looked_at_is_not_suspected_again_unless_the_numbers_went_back() -> None:
    assert KNOWS.suspects([60, 110], 55, ()) == [110]
    assert replace(KNOWS, given=55).suspects([60, 110], 55, ()) == [60, 110]


def test_a_range_that_another_bookie_found_is_looked_at_once() -> None:
    fresh = Note(given=40)
    assert fresh.suspects([49, 60, 101, 102], 110, (RANGE,)) == [60, 101]
    after = fresh.after_look(110, (RANGE,), [60])
    assert (after.is_open, after.doubts, after.given) == (True, frozenset({60}), 109)
    assert after.suspects([49, 60, 101], 111, (RANGE,)) == [60], "what has a record left it"
    assert after.forgotten().suspects([49, 60, 101], 111, (RANGE,)) == []
    assert not after.forgotten().after_look(111, (RANGE,), []).is_open


def test_a_bookie_that_is_new_has_no_doubt_because_others_had_one() -> None:
    """An operator may have given up what they had, and their range stays."""
    new = Note(given=109).after_look(110, (RANGE,), [])
    assert (new.is_open, new.known) == (False, (RANGE,))
    assert Note(1, given=109).after_look(110, (RANGE,), []).is_open, "it was there: others may have ledgers in doubt"


def test_it_is_over_when_newer_metadata_are_there() -> None:
    note = Note(given=101).after_look(0, (), [60]).with_doubt_opened(RANGE, [60])
    assert note.after_look(102, (RANGE,), []).is_open, "others may have ledgers in doubt"
    assert note.after_look(102, (), [60]).is_open
    assert not note.after_look(102, (), []).is_open


def test_long_numbers_have_a_counter_of_their_own() -> None:
    assert numbers_end(7) == SHORT_ID_LIMIT
    assert numbers_end(5 << 32 | 7) == 6 << 32
    assert Note().suspects([8, 5 << 32 | 8, 6 << 32], 5 << 32 | 7, ()) == [5 << 32 | 8]


def test_a_note_survives_as_bytes() -> None:
    note = Note(7, 120, 1_795_000_000_000, (RANGE,), frozenset({50, 51, 52, 60}))
    assert b"doubt 50 52\ndoubt 60 60\n" in note.encode()
    assert decode(note.encode(), "file") == note
    assert decode(Note().encode(), "file") == Note()


@pytest.mark.parametrize("at", [0, 30, -2])
def test_a_damaged_note_is_named(at: int) -> None:
    data = bytearray(Note(7, 120).encode())
    data[at] ^= 1
    with pytest.raises(Corruption, match="/d/ledger-doubts does not say which ledgers"):
        decode(bytes(data), "/d/ledger-doubts")


def test_runs_are_closed_ranges() -> None:
    assert list(runs([])) == []
    assert list(runs([3, 1, 2, 7])) == [(1, 3), (7, 7)]


def test_of_too_many_ranges_the_oldest_become_one() -> None:
    ranges = [DoubtRange(10 * at, 10 * at + 5, at, "b") for at in range(RANGES_MAX + 2)]
    found = bounded(ranges)
    assert len(found) == RANGES_MAX
    assert found[0] == DoubtRange(0, 25, 2, "b")
    assert found[1:] == tuple(ranges[3:])


@pytest.mark.parametrize(
    ("unlisted", "newest", "is_refused"),
    [(range(101, 200), 100, False), (range(101, 201), 100, True), (range(200), 99, False), (range(200), 98, True)],
)
def test_a_listing_that_ends_below_what_it_would_delete_is_refused(
    unlisted: range, newest: int, is_refused: bool
) -> None:
    refusal = refuse_newer(unlisted, newest, ListingLimits())
    assert (refusal is not None) == is_refused
    assert refusal is None or refusal.code is RefusalCode.OLDER_LISTING
