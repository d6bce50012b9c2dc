"""Batches that are acknowledged in part."""

from collections import OrderedDict

import pytest

from broker.errors import TooManyRequests
from broker.grpc.partial import PartialBatches
from broker.topic.clients.batch_sizes import UNKNOWN_MESSAGES_MAX, BatchSizes
from managed_ledger.position import Position

A, B, C = Position(1, 0), Position(1, 1), Position(2, 0)


def test_a_batch_is_forgotten_when_all_its_messages_are_done() -> None:
    parts = PartialBatches()
    assert parts.acknowledge(A, 1, 3) == 0b101
    assert parts.acknowledge(A, 1, 3) == 0b101
    assert parts.acknowledge(A, 0, 3) == 0b100
    assert parts.left(A, 0b111) == 0b100
    assert parts.acknowledge(A, 2, 3) == 0
    assert len(parts) == 0
    assert parts.left(A, 0b111) == 0b111


def test_up_to_takes_what_stands_before() -> None:
    parts = PartialBatches()
    assert parts.acknowledge(A, 2, 4) == 0b1011
    assert parts.acknowledge_up_to(A, 1, 4) == 0b1000
    assert parts.acknowledge_up_to(A, 3, 4) == 0
    parts.note(B, 0b110, 3)
    assert parts.acknowledge_up_to(B, 1, 3) == 0b100


def test_what_lies_before_a_position_goes() -> None:
    parts = PartialBatches()
    for position in (A, B, C):
        parts.acknowledge(position, 0, 2)
    parts.forget_before(C)
    assert len(parts) == 1
    assert parts.left(C, 3) == 2


@pytest.mark.parametrize(("index", "size"), [(2, 2), (-1, 2), (2**31 - 1, 2), (0, 0), (5, 1_000_001), (2**31 - 1, 0)])
@pytest.mark.parametrize("is_known", [True, False])
def test_numbers_that_cannot_be_are_refused_whatever_is_known(index: int, size: int, is_known: bool) -> None:
    parts = PartialBatches()
    if is_known:
        parts.note(A, 0b10, 2)
    for call in (parts.acknowledge, parts.acknowledge_up_to):
        with pytest.raises(ValueError, match=r"1:0: batch_index .* do not go together"):
            call(A, index, size)


def test_a_batch_has_one_size() -> None:
    parts = PartialBatches()
    parts.acknowledge(A, 0, 3)
    with pytest.raises(ValueError, match="batch_size is 3, not 1000000"):
        parts.acknowledge(A, 1, 1_000_000)


def test_what_is_kept_has_a_limit_and_done_batches_make_room() -> None:
    parts = PartialBatches(bytes_max=1_000)
    for number in range(4):
        parts.acknowledge(Position(1, number), 0, 2)
    with pytest.raises(TooManyRequests, match="4 batches are acknowledged in part; acknowledge the rest"):
        parts.acknowledge(Position(1, 4), 0, 2)
    parts.note(C, 1, 2)  # what was delivered is known in any case
    parts.forget(C)
    assert parts.acknowledge(Position(1, 0), 1, 2) == 0
    assert parts.acknowledge(C, 0, 2) == 2
    parts.clear()
    assert parts.acknowledge(C, 0, 5_000) != 0


def test_a_large_batch_costs_what_it_takes() -> None:
    parts = PartialBatches(bytes_max=1_000_000)
    for number in range(8):
        parts.sizes.note(Position(1, number), 1_000_000)
    for number in range(7):
        parts.acknowledge(Position(1, number), 0, 1_000_000)
    with pytest.raises(TooManyRequests):
        parts.acknowledge(Position(1, 7), 0, 1_000_000)


def test_the_size_of_a_batch_is_that_of_its_entry() -> None:
    parts = PartialBatches()
    parts.sizes.note(A, 5)
    for size in (4, 6, 1_000_000):
        with pytest.raises(ValueError, match=f"batch_size is 5, not {size}"):
            parts.acknowledge(A, 0, size)
    assert parts.acknowledge(A, 0, 5) == 0b11110
    assert parts.acknowledge(B, 0, UNKNOWN_MESSAGES_MAX) == 2**UNKNOWN_MESSAGES_MAX - 2
    for call in (parts.acknowledge, parts.acknowledge_up_to):
        assert call(C, 0, UNKNOWN_MESSAGES_MAX + 1) is None, "nobody here has seen such a batch"
    assert len(parts) == 2


def test_batches_are_remembered_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.clients.batch_sizes.REMEMBERED_MAX", 3)
    sizes = BatchSizes()
    for number in range(5):
        sizes.note(Position(1, number), 10_000)
    assert [sizes.size(Position(1, number), 2) for number in range(5)] == [2, 2, 10_000, 10_000, 10_000]
    for claimed in (0, -1, 2**31 - 1, UNKNOWN_MESSAGES_MAX + 1):
        assert sizes.size(Position(1, 0), claimed) is None


def test_what_is_acknowledged_by_other_ways_is_found_and_forgotten() -> None:
    """A program that acknowledges twice would come to the limit some day."""
    parts = PartialBatches(is_done=lambda position: position.ledger_id == 1)
    for number in range(1_000):
        parts.acknowledge(Position(1, number), 0, 2)
        parts.acknowledge(Position(2, number), 0, 2)
    assert all(parts.left(Position(2, number), 3) == 2 for number in range(1_000))
    assert len(parts) < 2_000, "some of them are still to be looked at"
    done = PartialBatches(is_done=lambda position: True)
    for number in range(1_000):
        done.acknowledge(Position(1, number), 0, 2)
        assert len(done) < 5


def test_the_sizes_of_batches_that_are_acknowledged_are_forgotten() -> None:
    """Each call would have 17 MB of them in the end."""
    parts = PartialBatches()
    for position in (A, B, C):
        parts.sizes.note(position, 10_000)
    parts.acknowledge(B, 0, 10_000, 9_999)
    assert [parts.sizes.size(position, 2) for position in (A, B, C)] == [10_000, 2, 10_000]
    parts.forget(C)  # it comes again
    parts.forget_before(C)
    assert [parts.sizes.size(position, 2) for position in (A, B, C)] == [2, 2, 10_000]
    parts.forget_done(C)
    assert parts.sizes.size(C, 2) == 2


def test_the_oldest_size_is_at_hand() -> None:
    """A dict looks for its first key past all that were removed: 0.5 ms for each batch, once a consumer had 100,000."""
    assert isinstance(BatchSizes()._sizes, OrderedDict)
