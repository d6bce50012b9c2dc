"""Acknowledged ranges and the row of ledgers, each against its slow definition."""

import itertools
import random
from typing import Any

import pytest

from managed_ledger.ack_ranges import AckRanges, mask_of, words_of
from managed_ledger.cursors.cursor import CONSUMED_BEFORE, TRIMMED_RANGES_MAX, CursorState, place_of, stored_place
from managed_ledger.errors import InvalidPosition
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import EARLIEST, LATEST, Position, named_position
from managed_ledger.records.records_pb2 import ManagedLedgerInfo


def row(**entries: int) -> LedgerList:
    ledgers = LedgerList()
    for name, count in entries.items():
        ledgers.add(ManagedLedgerInfo.LedgerInfo(ledgerId=int(name[1:]), entries=count))
    return ledgers


def test_ranges_are_the_set_of_their_entries() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        ranges, slow = AckRanges(), set()
        for _ in range(rng.randrange(1, 60)):
            ledger, first = rng.randrange(2), rng.randrange(30)
            last = first + rng.choice([0, 0, 0, 1, 5])
            ranges.add(ledger, first, last)
            slow |= {(ledger, entry) for entry in range(first, last + 1)}
            if rng.random() < 0.05:
                limit = Position(rng.randrange(2), rng.randrange(30))
                ranges.remove_up_to(limit)
                slow = {item for item in slow if item > limit}
            if rng.random() < 0.1:
                limit = Position(rng.randrange(2), rng.randrange(35))
                assert ranges.count_up_to(limit) == len([item for item in slow if item <= limit])
        assert {(item.ledger_id, entry) for item in ranges for entry in range(item.first, item.last + 1)} == slow
        assert all((Position(*item) in ranges) for item in slow)
        stored = list(ranges)
        for one, other in itertools.pairwise(stored):
            assert one.ledger_id < other.ledger_id or one.last + 1 < other.first, "ranges touch"


def test_a_ledger_is_no_older_than_the_end_of_the_one_before_it_also_when_that_is_removed() -> None:
    ledgers = LedgerList()
    assert ledgers.closed_before_ms(3) == 0
    for ledger_id, closed_ms in ((3, 100), (5, 200), (9, 0)):
        ledgers.add(ManagedLedgerInfo.LedgerInfo(ledgerId=ledger_id, timestamp=closed_ms))
    assert [ledgers.closed_before_ms(one) for one in (3, 5, 9)] == [0, 100, 200]
    ledgers.remove(5)
    assert [ledgers.closed_before_ms(one) for one in (3, 9)] == [0, 100]
    ledgers.remove(3)
    assert ledgers.closed_before_ms(9) == 100


def test_positions_step_over_ledger_ends_and_empty_ledgers() -> None:
    ledgers = row(l3=2, l5=0, l9=3, l12=0)
    assert ledgers.first_position == Position(3, 0)
    assert ledgers.last_confirmed == Position(9, 2)
    assert ledgers.next_position(Position(3, 1)) == Position(9, 0)
    assert ledgers.next_position(Position(9, 2)) == Position(12, 0)
    assert ledgers.next_position(Position(-1, -1)) == Position(3, 0)
    assert ledgers.next_position(Position(4, 7)) == Position(9, 0)
    assert ledgers.previous_position(Position(9, 0)) == Position(3, 1)
    assert ledgers.previous_position(Position(3, 0)) == Position(3, -1)
    assert ledgers.previous_position(Position(12, 0)) == Position(9, 2)
    assert ledgers.entries_between(Position(3, 0), Position(9, 1)) == 3
    assert [ledgers.position_at(index) for index in range(6)] == [
        Position(3, 0), Position(3, 1), Position(9, 0), Position(9, 1), Position(9, 2), Position(12, 0),
    ]  # fmt: skip


def test_a_cursor_is_the_set_of_what_is_open() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        sizes = {ledger: rng.randrange(0, 6) for ledger in (2, 4, 7)}
        ledgers = row(**{f"l{ledger}": count for ledger, count in sizes.items()})
        every = [Position(ledger, entry) for ledger, count in sizes.items() for entry in range(count)]
        cursor = CursorState(ledgers, ledgers.start)
        open_entries = set(every)
        for _ in range(30):
            if not every:
                break
            choice = rng.random()
            position = rng.choice(every)
            if choice < 0.7:
                assert cursor.delete([position]) == (position in open_entries)
                open_entries.discard(position)
            elif choice < 0.8:
                cursor.mark_delete(position)
                open_entries = {item for item in open_entries if item > position}
            elif choice < 0.9:
                cursor.reset(position)
                open_entries = {item for item in every if item >= position}
            else:
                cursor.rewind()
                cursor.skip_deleted()
                if open_entries:
                    assert cursor.read_position == min(open_entries)
            assert cursor.backlog() == len(open_entries)
            assert {item for item in every if not cursor.is_deleted(item)} == open_entries
            first_open = min(open_entries, default=None)
            assert first_open is None or cursor.mark_delete_position < first_open
            if first_open is not None:
                assert ledgers.next_position(cursor.mark_delete_position) == first_open
            assert cursor.read_position > cursor.mark_delete_position


def test_a_batch_is_done_when_its_last_index_is() -> None:
    ledgers = row(l1=3)
    cursor = CursorState(ledgers, ledgers.start)
    assert not cursor.acknowledge_batch(Position(1, 0), [0b11100], 5)
    assert cursor.batch_ack_set(Position(1, 0)) == [28]
    assert not cursor.acknowledge_batch(Position(1, 0), [0b00111], 5)
    assert cursor.batch_ack_set(Position(1, 0)) == [4]
    assert cursor.acknowledge_batch(Position(1, 0), [0b11011], 5)
    assert cursor.batch_ack_set(Position(1, 0)) is None
    assert cursor.mark_delete_position == Position(1, 0)


class Counted(Position):
    """A position that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: Any) -> bool:
        Counted.compared += 1
        return tuple.__lt__(self, other)

    def __le__(self, other: Any) -> bool:
        Counted.compared += 1
        return tuple.__le__(self, other)

    def __gt__(self, other: Any) -> bool:
        Counted.compared += 1
        return tuple.__gt__(self, other)

    def __ge__(self, other: Any) -> bool:
        Counted.compared += 1
        return tuple.__ge__(self, other)


@pytest.mark.parametrize("order", [1, -1])
def test_an_acknowledgement_costs_as_much_with_a_thousand_parts_of_batches_as_with_ten(order: int) -> None:
    costs = []
    for count in (10, 1_000):
        cursor = CursorState(row(l1=2_000), Position(1, -1))
        for number in range(count):
            cursor.acknowledge_batch(Counted(1, number), [0b01], 2)
        Counted.compared = 0
        for number in range(count)[::order]:
            assert cursor.acknowledge_batch(Position(1, number), [0b10], 2)
        costs.append(Counted.compared / count)
        assert cursor.mark_delete_position == Position(1, count - 1)
        assert not list(cursor.batches())
    assert costs[1] < 5 * costs[0], "a thousand have ten times the levels of a search, and a hundred times the batches"


def test_parts_of_batches_are_those_that_are_open() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        cursor = CursorState(row(l1=20, l2=20), Position(1, -1))
        slow: dict[Position, set[int]] = {}
        done: set[Position] = set()
        for _ in range(rng.randrange(1, 80)):
            position = Position(rng.choice([1, 2]), rng.randrange(20))
            kind = rng.random()
            if kind < 0.6 and position not in done:
                left = set(rng.sample(range(4), rng.randrange(4)))
                cursor.acknowledge_batch(position, [sum(1 << one for one in left)], 4)
                slow[position] = slow.get(position, {0, 1, 2, 3}) & left
                if not slow[position]:
                    done.add(position)
            elif kind < 0.8:
                cursor.delete([position])
                done.add(position)
            elif kind < 0.9:
                last = min(position.entry_id + rng.randrange(5), 19)
                cursor.delete_run(position.ledger_id, position.entry_id, last)
                done |= {Position(position.ledger_id, one) for one in range(position.entry_id, last + 1)}
            elif kind < 0.93:
                cursor.mark_delete(position)
                done |= {Position(a, b) for a in (1, 2) for b in range(20) if Position(a, b) <= position}
            slow = {one: left for one, left in slow.items() if one not in done}
            assert list(cursor.batches()) == [
                (one, [sum(1 << bit for bit in left)]) for one, left in sorted(slow.items())
            ], f"seed {seed}"
            assert all(cursor.batch_ack_set(one) is None for one in done)


def test_java_bit_sets() -> None:
    assert words_of(28) == [28]
    assert words_of(28, 3) == [28, 0, 0]
    assert mask_of([-1, 2**64 - 1, 5]) == 5 << 128 | 2**128 - 1
    assert mask_of([]) == 0
    assert words_of(0) == []
    assert words_of(1 << 63) == [-(1 << 63)]
    assert words_of(1 << 64) == [0, 1]
    for mask in (0, 1, 2**64 - 1, 2**64, 3 << 62, 2**200 + 5):
        assert mask_of(words_of(mask)) == mask


@pytest.mark.parametrize(
    ("ledger_id", "entry_id", "meant"),
    [
        (5, 3, Position(5, 3)),
        (0, 0, Position(0, 0)),
        (5, -1, Position(5, -1)),
        (5, 2**64 - 1, Position(5, -1)),
        (-1, -1, EARLIEST),
        (2**64 - 1, 2**64 - 1, EARLIEST),
        (2**63 - 1, 2**63 - 1, LATEST),
        (2**63 - 1, 2**48 - 1, LATEST),
        (2**63 - 1, 2**64 - 1, LATEST),
        (5, 2**63 - 1, Position(5, 2**63 - 1)),
    ],
)
def test_ids_of_clients_are_signed(ledger_id: int, entry_id: int, meant: Position) -> None:
    assert named_position(ledger_id, entry_id) == meant


@pytest.mark.parametrize(
    ("ledger_id", "entry_id"),
    [(5, -2), (5, 2**63), (5, 2**64 - 2), (-1, 0), (-1, 7), (2**64 - 1, 0), (-2, -1), (2**63, 0), (2**63, 2**63)],
)
def test_other_negative_ids_are_refused(ledger_id: int, entry_id: int) -> None:
    with pytest.raises(InvalidPosition, match="is no message id"):
        named_position(ledger_id, entry_id)


# -------------------------------------------------------------- entries that only a compacted ledger has


def before_the_ledgers() -> CursorState:
    """Nothing is consumed; of the topic ledgers 7 and 9 are left."""
    return CursorState(row(l7=3, l9=2), EARLIEST)


def test_a_cursor_before_the_ledgers_keeps_what_it_acknowledges_and_does_not_move_on_by_itself() -> None:
    cursor = before_the_ledgers()
    assert cursor.read_position == Position(7, 0)
    assert cursor.delete([Position(3, 5), Position(7, 0), Position(7, 1)])
    assert not cursor.acknowledge_batch(Position(4, 1), [0b110], 3)
    assert cursor.mark_delete_position == EARLIEST
    assert cursor.is_deleted(Position(3, 5))
    assert not cursor.is_deleted(Position(3, 4))
    assert cursor.batch_ack_set(Position(4, 1)) == [0b110]
    assert cursor.backlog() == 3, "of the ledgers that are left"
    assert cursor.mark_delete(Position(4, 7))
    assert cursor.mark_delete_position == Position(4, 7)
    assert not cursor.mark_delete(Position(2, 9)), "it was before that"
    assert not cursor.mark_delete(Position(4, 7))
    assert [tuple(item) for item in cursor.ranges()] == [(7, 0, 1)]
    assert cursor.mark_delete(Position(7, -1)), "who reads the compacted ledger has come to its end"
    assert cursor.mark_delete_position == Position(7, 1)
    assert cursor.backlog() == 3


def test_a_cursor_that_leaves_what_was_trimmed_goes_on_with_what_it_acknowledged_behind_it() -> None:
    cursor = before_the_ledgers()
    cursor.delete([Position(3, 5), Position(7, 0)])
    assert cursor.leave_trimmed()
    assert not cursor.leave_trimmed()
    assert cursor.mark_delete_position == Position(7, 0)
    assert cursor.range_count == 0
    assert not cursor.delete([Position(3, 6)])
    cursor = CursorState(row(l7=3), Position(7, -1))
    assert not cursor.delete([Position(3, 5)]), "where nothing is open before the ledgers, there is nothing to keep"
    assert not cursor.leave_trimmed()


def test_a_trim_moves_a_cursor_that_has_consumed_all_of_it_and_no_other() -> None:
    ledgers = row(l3=2, l7=3, l9=2)
    consumed, opened = CursorState(ledgers, Position(3, 1)), CursorState(ledgers, Position(2, 4))
    ledgers.remove(3)
    consumed.ledgers_changed()
    opened.ledgers_changed()
    assert (consumed.mark_delete_position, opened.mark_delete_position) == (Position(7, -1), Position(2, 4))
    assert consumed.delete([Position(7, 0)])
    assert consumed.mark_delete_position == Position(7, 0)


def test_what_was_acknowledged_before_the_ledgers_is_restored_and_nothing_else_that_is_not_there() -> None:
    cursor = before_the_ledgers()
    cursor.mark_delete(Position(3, 2))
    cursor.delete([Position(3, 5), Position(4, 0), Position(7, 0)])
    cursor.acknowledge_batch(Position(4, 1), [0b110], 3)
    ranges, batches = list(cursor.ranges()), list(cursor.batches())
    again = CursorState(row(l7=3, l9=2), Position(3, 2))
    again.restore(ranges, batches, ())
    assert (list(again.ranges()), list(again.batches())) == (ranges, batches)
    assert again.mark_delete_position == Position(3, 2)
    behind = CursorState(row(l7=3, l9=2), Position(7, -1))
    behind.restore(ranges, batches, ())
    assert (list(behind.ranges()), list(behind.batches())) == ([], [])
    assert behind.mark_delete_position == Position(7, 0)


def test_acknowledgements_of_entries_that_may_not_exist_are_bounded() -> None:
    cursor = before_the_ledgers()
    cursor.delete(Position(3, 2 * at) for at in range(TRIMMED_RANGES_MAX + 100))
    assert cursor.range_count == TRIMMED_RANGES_MAX
    assert cursor.delete([Position(7, 2)])


@pytest.mark.parametrize("position", [EARLIEST, Position(3, -1), Position(3, 4), Position(7, -1), Position(7, 2)])
def test_a_place_is_the_same_after_it_was_stored(position: Position) -> None:
    start = Position(7, -1)
    stored, properties = stored_place(position, start)
    assert place_of(stored, properties, start) == position
    later = Position(9, -1)  # of ledgers that were empty, say, and went meanwhile
    assert place_of(stored, properties, later) == position
    assert stored.ledger_id >= 0, "Apache's brokers know no other"


def test_a_place_that_apache_s_brokers_stored_at_the_first_ledger_has_consumed_nothing() -> None:
    assert place_of(Position(7, -1), {}, Position(7, -1)) == EARLIEST
    assert place_of(Position(7, -1), {CONSUMED_BEFORE: 5}, Position(7, -1)) == EARLIEST, "and has kept an old number"
    assert place_of(Position(9, -1), {}, Position(7, -1)) == Position(9, -1)
    assert place_of(Position(5, 3), {}, Position(7, -1)) == Position(5, 3)


def test_where_a_cursor_begins_that_may_stand_before_the_ledgers() -> None:
    ledgers = row(l7=3, l9=2)
    for start, place in (
        (EARLIEST, EARLIEST),
        (Position(3, 4), Position(3, 3)),
        (Position(3, 0), Position(3, -1)),
        (Position(7, 0), Position(7, -1)),
        (Position(9, 0), Position(7, 2)),
        (LATEST, Position(9, 1)),
    ):
        assert ledgers.mark_delete_before(start, keeps_trimmed=True) == place
        assert ledgers.mark_delete_before(start) == max(place, ledgers.start)
