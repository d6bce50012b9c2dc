"""Acknowledged entries as bits of ledgers (`PositionInfo.individualDeletedMessageRanges`)."""

from hypothesis import given
from hypothesis import strategies as st

from managed_ledger.ack_ranges import AckRange
from managed_ledger.position import Position
from managed_ledger.records.pulsar_records import decode_position_info, position_info, ranges_in

# Of each ledger: pairs of a gap and a length, so that ranges are in order and do not touch.
LEDGERS = st.dictionaries(
    st.integers(0, 2**40),
    st.lists(st.tuples(st.integers(1, 90), st.integers(1, 90)), min_size=1, max_size=60),
    max_size=4,
)


def ranges_of(ledgers: dict[int, list[tuple[int, int]]]) -> list[AckRange]:
    ranges = []
    for ledger_id, steps in sorted(ledgers.items()):
        at = -1
        for gap, length in steps:
            first = at + gap + 1
            at = first + length
            ranges.append(AckRange(ledger_id, first, at - 1))
    return ranges


@given(LEDGERS)
def test_what_is_stored_as_bits_is_read_as_the_ranges_that_it_was(ledgers: dict[int, list[tuple[int, int]]]) -> None:
    ranges = ranges_of(ledgers)
    stored = {
        as_words: position_info(Position(1, 2), ranges, (), (), as_words=as_words).SerializeToString()
        for as_words in (False, True)
    }
    for data in stored.values():
        assert list(ranges_in(decode_position_info(data, "c"))) == ranges
    words = decode_position_info(stored[True], "c")
    # Apache's brokers read one of the two forms.
    assert not (words.individualDeletedMessages and words.individualDeletedMessageRanges)


@given(st.integers(2, 400))
def test_bits_are_taken_where_they_are_shorter(count: int) -> None:
    """Every second entry of a ledger; and as many ledgers, each with its entry 10,000."""
    dense = [AckRange(7, 2 * number, 2 * number) for number in range(count)]
    sparse = [AckRange(number, 10_000, 10_000) for number in range(count)]
    for ranges, are_words in ((dense, True), (sparse, False)):
        info = position_info(Position(1, 2), ranges, (), (), as_words=True)
        assert bool(info.individualDeletedMessageRanges) == are_words
        assert info.ByteSize() <= position_info(Position(1, 2), ranges, (), ()).ByteSize()
