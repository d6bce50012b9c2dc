"""Where a reset leads inside a batch."""

from broker.topic.reading.looking import ResetTarget, reset_target
from managed_ledger.ack_ranges import mask_of
from managed_ledger.position import Position

AT = Position(3, 7)
BEHIND = Position(3, 8)


def test_without_a_batch_the_entry_counts_as_a_whole() -> None:
    for index, size in ((-1, 5), (0, 0), (4, 0)):
        assert reset_target(AT, index, size, is_excluded=False) == ResetTarget(AT)
        assert reset_target(AT, index, size, is_excluded=True) == ResetTarget(BEHIND)


def test_what_remains_of_a_batch_is_what_comes_from_the_index_on() -> None:
    for size in (1, 2, 63, 64, 65, 130):
        for index in range(size + 2):
            for is_excluded in (False, True):
                target = reset_target(AT, index, size, is_excluded=is_excluded)
                left = set(range(index + is_excluded, size))
                if not left:
                    assert target == ResetTarget(BEHIND if is_excluded else AT)
                    continue
                assert target.position == AT
                mask = mask_of(target.ack_set)
                shown = {at for at in range(size) if mask >> at & 1} if target.ack_set else set(range(size))
                assert shown == left, (size, index, is_excluded)
