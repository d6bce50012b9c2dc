"""Fragments, the schedule of copies, and what the answers of bookies mean."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autorecovery.ledgers.checks import (
    Copy,
    Fragment,
    ends,
    first_unlisted,
    fragments,
    is_tail_at_risk,
    joined,
    judge,
    lost_entries,
    names,
)
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.wire import codec_v3
from magnetar_core.bookkeeper.wire.entry import DigestType
from tests.support import bookie_requests as sent

ABC = ("a", "b", "c")


def record(
    *segments: tuple[int, tuple[str, ...]], last: int | None = None, write: int = 2, state: LedgerState | None = None
) -> LedgerMetadata:
    """The record of a ledger; closed at *last* if that is given."""
    is_closed = last is not None
    return LedgerMetadata(
        ensemble_size=len(segments[0][1]),
        write_quorum=write,
        ack_quorum=write,
        digest_type=DigestType.CRC32C,
        segments=tuple(Segment(*one) for one in segments),
        state=state or (LedgerState.CLOSED if is_closed else LedgerState.OPEN),
        last_entry_id=-1 if last is None else last,
    )


def bounds(found: list[Fragment]) -> list[tuple[int, int, bool]]:
    return [(one.first_entry_id, one.last_entry_id, one.is_fixed) for one in found]


def test_a_closed_ledger_is_fixed_up_to_its_last_entry() -> None:
    assert bounds(fragments(record((0, ABC), (5, ABC), last=9), -1)) == [(0, 4, True), (5, 9, True)]


def test_r_r6_an_empty_ledger_has_one_fragment_that_names_its_bookies() -> None:
    (only,) = fragments(record((0, ABC), last=-1), -1)
    assert only.is_empty
    assert only.ensemble == ABC
    assert judge(only, {"a", "b"}, (), {}).gone == {2: "c"}


def test_r_r15_a_segment_behind_the_end_counts_only_when_asked_for() -> None:
    metadata = record((0, ABC), (10, ("d", "e", "f")), last=9)
    assert bounds(fragments(metadata, -1)) == [(0, 9, True)]
    assert bounds(fragments(metadata, -1, with_trailing=True)) == [(0, 9, True), (10, 9, True)]
    assert names(metadata, {"d", "a"}) == {"a"}


@pytest.mark.parametrize(
    ("last_add_confirmed", "first_is_fixed", "last"), [(13, False, 14), (14, True, 14), (20, True, 20)]
)
def test_of_an_open_ledger_all_but_the_last_fragment_are_fixed_once_lac_is_there(
    last_add_confirmed: int, first_is_fixed: bool, last: int
) -> None:
    """R-R5: with LAC 13 entry 14 may not be there yet, so the first fragment is not copied."""
    found = fragments(record((0, ABC), (15, ("a", "b", "d"))), last_add_confirmed)
    assert bounds(found) == [(0, 14, first_is_fixed), (15, last, False)]


@pytest.mark.parametrize(
    ("size", "write", "first", "count"),
    [(s, w, f, c) for s, w, f, c in product(range(1, 5), range(1, 5), (0, 3), range(9)) if w <= s],
)
def test_first_and_last_held_are_those_of_the_schedule(size: int, write: int, first: int, count: int) -> None:
    fragment = Fragment(first, first + count - 1, tuple("abcde"[:size]), write, True)
    for index in range(size):
        slow = [e for e in range(first, first + count) if index in [(e + i) % size for i in range(write)]]
        assert list(fragment.held(index)) == slow
        assert fragment.first_held(index) == (slow[0] if slow else None)
        assert fragment.last_held(index) == (slow[-1] if slow else None)
        assert ends(fragment, index) == sorted({slow[0], slow[-1]} if slow else set())


def test_silence_is_unknown_and_an_explicit_no_is_missing() -> None:
    """A bookie that is only silent is neither replaced, nor is the ledger called whole."""
    (fragment,) = fragments(record((0, ABC), last=5), -1)
    verdict = judge(
        fragment,
        set(ABC),
        (),
        {0: [Copy.PRESENT, Copy.MISSING], 1: [Copy.PRESENT, "no answer"], 2: [Copy.PRESENT, Copy.PRESENT]},
    )
    assert verdict.incomplete == {0: "a"}
    assert verdict.unknown == {1: "no answer"}
    assert verdict.to_replace == {}
    assert not verdict.is_good


def test_a_bookie_that_is_drained_hands_on_what_it_has() -> None:
    (fragment,) = fragments(record((0, ABC), last=5), -1)
    good = {index: [Copy.PRESENT, Copy.PRESENT] for index in range(3)}
    assert judge(fragment, set(ABC), (), good).is_good
    assert judge(fragment, set(ABC), {"b"}, good).to_replace == {1: "b"}


def test_lost_is_what_every_holder_denies() -> None:
    (fragment,) = fragments(record((0, ABC), last=5), -1)  # entry 1 is on b and c
    assert lost_entries(fragment, {0: [0, 2, 3], 1: [1, 3, 4]}) == [(3, 3)]
    assert lost_entries(fragment, {1: [1, 4], 2: [1, 2, 4, 5]}) == [(1, 1), (4, 4)]
    assert lost_entries(fragment, {1: [0, 1, 3, 4]}) == []


def test_ranges_are_joined() -> None:
    assert joined([(5, 6), (0, 2), (3, 3), (8, 9), (6, 7)]) == [(0, 3), (5, 9)]
    assert joined([]) == []


def test_only_a_ledger_that_is_not_closed_has_an_end_at_risk() -> None:
    assert is_tail_at_risk(record((0, ABC)), {"a", "b"})
    assert is_tail_at_risk(record((0, ABC), state=LedgerState.IN_RECOVERY), {"a", "b"})
    assert not is_tail_at_risk(record((0, ABC)), set(ABC))
    assert not is_tail_at_risk(record((0, ABC), last=3), set())


@given(
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 7),
    st.integers(-1, 60),
    st.sets(st.integers(0, 66), max_size=12),
    st.integers(0, 4),
)
def test_the_first_entry_that_a_bookie_does_not_list(
    ensemble: int, write: int, first: int, last: int, missing: set[int], index: int
) -> None:
    ensemble, write = max(ensemble, write), min(ensemble, write)
    index %= ensemble
    fragment = Fragment(first, max(last, first - 1), tuple(map(str, range(ensemble))), write, True)
    held = list(fragment.held(index))
    beyond = [one for one in range(70) if fragment.holds(index, one)]  # other segments gave it these
    groups = codec_v3.decode_availability(sent.encode_availability([one for one in beyond if one not in missing]))
    slow = next((one for one in held if one in missing), None)
    assert first_unlisted(fragment, index, groups) == slow
    assert first_unlisted(fragment, index, groups[::-1]) == slow


def test_a_list_of_a_million_striped_entries_is_compared_at_once() -> None:
    """One group has them all, so that nothing is done for each entry."""
    fragment = Fragment(0, 10**12 - 1, ("a", "b", "c", "d", "e"), 2, True)
    first = fragment.first_held(3)
    assert first == 2
    group = (first, 10**12 - 3, 2, 5)
    assert first_unlisted(fragment, 3, [group]) is None
    assert first_unlisted(fragment, 3, [(first, 10**12 - 8, 2, 5)]) == 10**12 - 3
    assert first_unlisted(fragment, 3, []) == first
    row = Fragment(5, 10**12, ("a", "b"), 2, True)
    assert first_unlisted(row, 0, [(0, 0, 2**31 - 1, 0), (2**31, 2**31, 7, 0)]) == 2**31 - 1
