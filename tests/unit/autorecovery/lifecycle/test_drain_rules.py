"""What a drain still has to do, and how fast it is."""

from autorecovery.ledgers.index import LedgerIndex
from autorecovery.lifecycle.drain_rules import Progress, bytes_on, has_no_target
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState, Segment
from magnetar_core.bookkeeper.wire.entry import DigestType


def ledger(*segments: tuple[int, str], last: int | None = None, length: int = 0, write: int = 2) -> LedgerMetadata:
    """*segments*: first entry → one letter for each bookie; closed where *last* is given."""
    ensembles = tuple(Segment(first, tuple(members)) for first, members in segments)
    return LedgerMetadata(
        ensemble_size=len(segments[0][1]),
        write_quorum=write,
        ack_quorum=write,
        digest_type=DigestType.CRC32C,
        segments=ensembles,
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
        length=length,
    )


def test_there_is_no_target_when_each_bookie_that_may_take_entries_is_in_the_ensemble() -> None:
    index = LedgerIndex()
    index.put(1, ledger((0, "abc"), (5, "bcd"), last=9))
    assert has_no_target(index[1], "a", {"b", "c"})
    assert has_no_target(index[1], "a", {"a", "b", "c"}), "itself is none"
    assert not has_no_target(index[1], "a", {"b", "c", "d"})
    assert has_no_target(index[1], "b", {"a", "b", "c", "d"}) is False
    assert has_no_target(index[1], "b", {"b", "c", "d"}), "its second segment has no room"
    index.put(2, ledger((0, "bc"), (4, "ac"), last=3))
    assert has_no_target(index[2], "a", {"c"}), "a segment behind the end counts, since the record names it"


def test_the_bytes_of_a_bookie_are_its_share_of_the_segments_that_name_it() -> None:
    metadata = ledger((0, "abc"), (6, "bcd"), last=8, length=900)
    assert bytes_on(metadata, "a") == 400
    assert bytes_on(metadata, "b") == 600
    assert bytes_on(metadata, "x") == 0
    assert bytes_on(ledger((0, "abc")), "a") == 0, "open: nobody knows"
    assert bytes_on(ledger((0, "abc"), last=-1), "a") == 0


def test_the_rate_is_that_of_the_last_minutes_and_without_progress_there_is_no_estimate() -> None:
    progress = Progress()
    for second in range(61):
        progress.note(second, 100, 100 - second // 2, 1_000, 1_000)
    assert progress.per_minute(60) == 30
    assert progress.eta_s(60) == 140
    assert progress.stuck_s(60) == 0
    for second in range(61, 1_000):
        progress.note(second, 100, 70, 1_000, 1_000)
    assert progress.per_minute(999) == 0
    assert progress.eta_s(999) is None
    assert progress.stuck_s(999) == 939
    progress.note(1_000, 100, 70, 1_000, 900)
    assert progress.stuck_s(1_000) == 0
