"""One drain, stepped from phase to phase."""

import pytest

from autorecovery.ledgers.index import LedgerIndex
from autorecovery.lifecycle.drain import CONFIRM_S, RECHECK_S, SETTLE_S, TURN_AGAIN_S, TURN_S, Drain, Effect, Phase
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from tests.unit.autorecovery.lifecycle.test_drain_rules import ledger

CANDIDATES = frozenset("bcde")
HERE, MOVED = ledger((0, "abc"), last=9, length=900), ledger((0, "dbc"), last=9, length=900)
PATIENCE_S = 600.0
WAITS = "waiting until it takes no entries"


def index_of(**records: LedgerMetadata) -> LedgerIndex:
    """Names of ledgers are "l1", "l2" …"""
    index = LedgerIndex()
    for name, metadata in records.items():
        index.put(int(name[1:]), metadata)
    return index


def assert_is_in(phase: Phase, drain: Drain) -> None:
    assert drain.phase is phase


def settled() -> Drain:
    """Bookie "a" has taken no entries for long enough at 1 s."""
    drain = Drain("a")
    assert drain.step(0, False, CANDIDATES) is Effect.WAIT
    assert drain.step(SETTLE_S, False, CANDIDATES) is Effect.READ_ALL
    return drain


def copying(*ledgers: int) -> Drain:
    drain = settled()
    drain.begin(index_of(**{f"l{number}": HERE for number in ledgers}), (), CANDIDATES)
    assert drain.phase is Phase.COPYING
    return drain


def proving(*ledgers: int) -> Drain:
    """All of *ledgers* were moved, and no record names the bookie any more."""
    drain = copying(*ledgers)
    for ledger_id in drain.to_check(2, frozenset()):
        assert not drain.on_record(ledger_id, MOVED)
    assert drain.to_prove() == list(ledgers)
    assert_is_in(Phase.UNREAD, drain)
    assert drain.end(2, {}, PATIENCE_S) is None
    assert drain.step(3, False, CANDIDATES) is Effect.READ_ALL
    drain.begin(index_of(**{f"l{number}": MOVED for number in ledgers}), (), CANDIDATES)
    assert_is_in(Phase.PROVING, drain)
    return drain


def in_phase(phase: Phase) -> Drain:
    drain = {Phase.COPYING: copying, Phase.PROVING: proving}.get(phase, copying)(1)
    if phase in (Phase.BEGUN, Phase.WRITABLE, Phase.SETTLING):
        drain = Drain("a")
        if phase is not Phase.BEGUN:
            drain.step(0, phase is Phase.WRITABLE, CANDIDATES)
    elif phase is Phase.UNREAD:
        drain.on_record(1, None)
        drain.to_prove()
    assert drain.phase is phase
    return drain


def what_is_said(drain: Drain, now_s: float) -> str:
    text = drain.facts(now_s)["phase"]
    assert isinstance(text, str)
    return text


# -------------------------------------------------------------------------------------------- until it is quiet


@pytest.mark.parametrize("phase", Phase)
def test_in_every_phase_a_bookie_that_is_seen_writable_begins_again(phase: Phase) -> None:
    drain = in_phase(phase)
    assert drain.step(100, True, CANDIDATES) is (Effect.TURN if phase is Phase.WRITABLE else Effect.WAIT)
    assert (drain.phase, what_is_said(drain, 100)) == (Phase.WRITABLE, WAITS)
    assert drain.step(200, False, CANDIDATES) is Effect.WAIT
    assert drain.step(200 + SETTLE_S / 2, False, CANDIDATES) is Effect.WAIT
    assert (drain.phase, what_is_said(drain, 200)) == (Phase.SETTLING, WAITS)
    assert drain.step(200 + SETTLE_S, False, CANDIDATES) is Effect.READ_ALL


def test_a_bookie_that_stays_writable_is_turned_after_a_while_and_again_after_a_longer_one() -> None:
    drain = Drain("a")
    turns = [second for second in range(100) if drain.step(second, True, CANDIDATES) is Effect.TURN]
    assert turns == [TURN_S, TURN_S + TURN_AGAIN_S, TURN_S + 2 * TURN_AGAIN_S, TURN_S + 3 * TURN_AGAIN_S]
    assert drain.step(100, False, CANDIDATES) is Effect.WAIT
    assert drain.step(101 - 0.5, True, CANDIDATES) is Effect.WAIT, "it turned writable again: it gets its time again"
    assert drain.step(101 - 0.5 + TURN_S, True, CANDIDATES) is Effect.TURN


def test_a_reading_of_all_records_that_failed_is_asked_for_again() -> None:
    drain = settled()
    assert what_is_said(drain, 1) == WAITS
    assert drain.step(5, False, CANDIDATES) is Effect.READ_ALL


@pytest.mark.parametrize("phase", [Phase.BEGUN, Phase.WRITABLE, Phase.COPYING, Phase.PROVING])
def test_all_records_are_taken_only_when_they_were_to_be_read(phase: Phase) -> None:
    with pytest.raises(AssertionError, match="only when that is due"):
        in_phase(phase).begin(index_of(), (), CANDIDATES)


# ------------------------------------------------------------------------------------------------- copying


def test_records_of_marked_ledgers_are_read_at_first_and_then_now_and_then() -> None:
    drain = copying(1, 2, 3)
    assert drain.step(2, False, CANDIDATES) is Effect.GO_ON
    assert drain.to_check(2, frozenset()) == [1, 2, 3]
    assert all(drain.on_record(number, HERE) for number in (1, 2, 3))
    assert drain.to_check(3, frozenset({1, 3})) == [2], "its mark is gone: a worker may have moved it"
    assert drain.to_check(2 + RECHECK_S - 0.1, frozenset({1, 2, 3})) == []
    assert drain.to_check(2 + RECHECK_S, frozenset({1, 2, 3})) == [1, 2, 3]


def test_what_was_moved_is_proved_while_the_rest_is_copied() -> None:
    drain = copying(1, 2)
    assert drain.on_record(1, HERE)
    assert not drain.on_record(2, MOVED)
    assert drain.to_prove() == [2]
    drain.on_copies(2, "bookie d lacks entries of it")
    assert drain.end(2, {}, PATIENCE_S) is None
    facts = drain.facts(2)
    assert (facts["phase"], facts["ledgers"], facts["ledgers_left"], facts["bytes"]) == ("copying", 2, 1, 600)
    assert facts["waiting_ledgers"] == {"2": "bookie d lacks entries of it"}
    assert drain.to_prove() == [2]
    drain.on_copies(2, "")
    assert drain.proved == {2}
    assert drain.to_prove() == []


def test_all_records_are_read_once_more_when_none_of_the_ledgers_is_left() -> None:
    drain = proving(1)
    assert what_is_said(drain, 3) == "reading the copies"
    assert drain.to_prove() == [1]
    drain.on_copies(1, "")
    assert drain.end(3, {}, PATIENCE_S) == []


def test_a_record_that_names_the_bookie_again_is_no_end() -> None:
    drain = proving(1, 2)
    assert drain.to_prove() == [1, 2]
    drain.on_copies(2, "")
    assert drain.on_record(1, HERE)
    assert drain.phase is Phase.UNREAD
    assert drain.end(3, {}, PATIENCE_S) is None
    assert drain.step(4, False, CANDIDATES) is Effect.READ_ALL


def test_a_ledger_that_is_deleted_needs_no_proof() -> None:
    drain = copying(1)
    assert not drain.on_record(1, None)
    assert drain.to_prove() == []
    assert (drain.proved, drain.phase) == ({1}, Phase.UNREAD)


def test_a_bookie_that_no_record_names_is_drained_at_once_and_one_of_a_drain_before_is_proved_first() -> None:
    drain = settled()
    drain.begin(index_of(l1=MOVED), (), CANDIDATES)
    assert drain.to_check(1, frozenset()) == drain.to_prove() == []
    assert drain.end(1, {}, PATIENCE_S) == []
    drain = settled()
    drain.begin(index_of(l1=MOVED, l2=MOVED), {1}, CANDIDATES)
    assert drain.to_prove() == [1]
    assert drain.end(1, {}, PATIENCE_S) is None
    drain.on_copies(1, "")
    assert drain.end(2, {}, PATIENCE_S) == []


def test_a_ledger_that_is_moved_once_more_is_proved_once_more() -> None:
    """It stands in the metadata store still, for the next auditor, until its copies are read again."""
    drain = proving(1, 2)
    for number in drain.to_prove():
        drain.on_copies(number, "")
    drain.step(4, True, CANDIDATES)
    drain.step(5, False, CANDIDATES)
    drain.step(6, False, CANDIDATES)
    drain.begin(index_of(l1=HERE, l3=HERE), (), CANDIDATES)
    assert drain.proved == {2}
    drain.end(6, {}, PATIENCE_S)
    assert drain.facts(6)["ledgers"] == 4


# ------------------------------------------------------------------------------------------------- what is stuck


def test_what_is_left_is_split_into_what_waits_what_is_hopeless_and_what_is_under_way() -> None:
    """I72"""
    drain = settled()
    index = index_of(l1=HERE, l2=HERE, l3=ledger((0, "abcde")), l4=HERE)
    index.unreadable[5] = "damaged"
    drain.begin(index, (), CANDIDATES)
    problems = {1: ("lost", "gone"), 2: ("silent", "no answer"), 3: ("no-target", "full"), 9: ("lost", "another")}
    assert drain.end(1, problems, PATIENCE_S) is None
    assert drain.facts(1)["hopeless_ledgers"] == {}, "a report may be an old one"
    assert drain.end(1 + CONFIRM_S, problems, PATIENCE_S) is None
    facts = drain.facts(1 + CONFIRM_S)
    full = "each bookie of the cluster that may take entries has copies of it already; add a bookie"
    assert facts["waiting_ledgers"] == {"2": "no answer"}
    assert facts["hopeless_ledgers"] == {"1": "gone", "3": full, "5": "damaged"}
    assert (facts["ledgers"], facts["ledgers_left"]) == (5, 5)


def test_a_drain_of_which_everything_is_hopeless_fails_with_a_reason_for_each_ledger() -> None:
    drain = copying(1, 2)
    problems = {1: ("lost", "gone"), 2: ("lost", "gone, too")}
    assert drain.end(10, problems, PATIENCE_S) is None
    assert drain.end(10 + CONFIRM_S, problems, PATIENCE_S) == [(1, "gone"), (2, "gone, too")]
    assert drain.end(11 + CONFIRM_S, {}, PATIENCE_S) is None, "the worker does not say so any more"


def test_a_drain_that_only_waits_fails_when_the_patience_is_over() -> None:
    drain = copying(1)
    problems = {1: ("silent", "no answer")}
    assert drain.end(10, problems, PATIENCE_S) is None
    assert drain.end(10 + PATIENCE_S - 1, problems, PATIENCE_S) is None
    assert drain.end(10 + PATIENCE_S, problems, PATIENCE_S) == [(1, "no answer")]


def test_where_a_ledger_has_no_target_all_records_are_read_again_when_a_bookie_is_added() -> None:
    drain = settled()
    drain.begin(index_of(l1=ledger((0, "abcde"))), (), CANDIDATES)
    assert drain.step(2, False, CANDIDATES) is Effect.GO_ON
    assert drain.step(3, False, CANDIDATES | {"f"}) is Effect.READ_ALL
    assert what_is_said(drain, 3) == "copying"
    drain.begin(index_of(l1=ledger((0, "abcde"))), (), CANDIDATES | {"f"})
    assert drain.step(4, False, CANDIDATES) is Effect.GO_ON, "it has a target now"


def test_a_report_names_some_ledgers_and_counts_all() -> None:
    drain = copying(*range(30))
    drain.end(2, dict.fromkeys(range(30), ("silent", "waits")), PATIENCE_S)
    facts = drain.facts(2)
    assert (facts["waiting"], len(facts["waiting_ledgers"]), facts["hopeless"]) == (30, 20, 0)
    assert (facts["eta_s"], facts["ledgers_per_minute"]) == (None, 0)
