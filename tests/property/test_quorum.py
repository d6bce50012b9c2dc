"""The definitions, written slowly, check the fast ones; all small sizes are enumerated."""

from collections.abc import Iterator
from itertools import combinations

import pytest

from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX, ImpossibleQuorum, Quorum


def all_quorums() -> Iterator[Quorum]:
    for ensemble_size in range(1, 7):
        for write in range(1, ensemble_size + 1):
            for ack in range(1, write + 1):
                yield Quorum(ensemble_size, write, ack)


def test_coverage_means_that_no_ack_quorum_was_missed_entirely() -> None:
    for quorum in all_quorums():
        for heard in range(1 << quorum.ensemble_size):
            unheard = {i for i in range(quorum.ensemble_size) if not heard >> i & 1}
            slow = not any(
                set(ack_quorum) <= unheard
                for entry_id in range(quorum.ensemble_size)
                for ack_quorum in combinations(quorum.write_set(entry_id), quorum.ack)
            )
            assert quorum.is_covered(heard) == slow


def test_absence_means_that_an_ack_quorum_cannot_hold_the_entry() -> None:
    for quorum in all_quorums():
        for negatives in range(quorum.write + 1):
            assert (negatives >= quorum.absence) == (quorum.write - negatives < quorum.ack)


def test_acknowledging_without_some_positions() -> None:
    for quorum in all_quorums():
        for missing in range(1 << quorum.ensemble_size):
            slow = all(
                sum(not missing >> i & 1 for i in quorum.write_set(entry_id)) >= quorum.ack
                for entry_id in range(quorum.ensemble_size)
            )
            assert quorum.can_acknowledge_without(missing) == slow


def test_write_sets() -> None:
    for quorum in all_quorums():
        size = quorum.ensemble_size
        for entry_id in (*range(2 * size), 2**62 + 1):
            assert quorum.write_set(entry_id) == tuple((entry_id + i) % size for i in range(quorum.write))
            for index in range(size):
                assert quorum.holds(index, entry_id) == ((index - entry_id) % size < quorum.write)


def test_the_books_examples() -> None:
    assert Quorum(3, 3, 2).is_covered(0b011)
    assert not Quorum(3, 3, 2).is_covered(0b001)
    assert Quorum(2, 2, 2).is_covered(0b01)
    assert [Quorum(3, 2, 2).is_covered(heard) for heard in (0b001, 0b011, 0b110, 0b101)] == [
        False, True, True, True,
    ]  # fmt: skip
    assert Quorum(3, 3, 3).is_covered(0b100)
    assert not Quorum(3, 3, 1).is_covered(0b110)
    assert [Quorum(*sizes).absence for sizes in ((3, 3, 2), (2, 2, 2), (3, 3, 3), (3, 3, 1))] == [2, 1, 1, 3]


def test_sizes_that_contradict_each_other() -> None:
    for sizes in ((2, 3, 2), (3, 2, 3), (3, 3, 0), (0, 0, 0)):
        with pytest.raises(ImpossibleQuorum):
            Quorum(*sizes)


def test_sizes_beyond_the_limit_are_refused_before_anything_is_built() -> None:
    Quorum(ENSEMBLE_SIZE_MAX, ENSEMBLE_SIZE_MAX, 1)
    for sizes in ((ENSEMBLE_SIZE_MAX + 1, 1, 1), (10**12, 10**12, 10**12)):  # the last would be 10^24 bits
        with pytest.raises(ImpossibleQuorum, match=f"{sizes[0]} is above the limit of {ENSEMBLE_SIZE_MAX}"):
            Quorum(*sizes)
