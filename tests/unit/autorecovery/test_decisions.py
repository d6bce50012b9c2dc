"""Small deciding parts: when lost bookies are audited, when a ledger is tried again, what an index knows."""

from autorecovery.audit.lost_bookies import Decision, LostBookies
from autorecovery.ledgers.index import LedgerIndex
from autorecovery.repair.outcome import Hindered, Hindrance, describe, retry_after_s
from tests.unit.autorecovery.ledgers.test_checks import ABC, record

NOTHING = Decision(frozenset(), None)


def test_one_bookie_may_be_away_for_the_delay() -> None:
    lost = LostBookies(60)
    assert lost.look(0, "abc", "abc") == NOTHING
    assert lost.look(10, "abc", "ab") == Decision(frozenset(), 70, frozenset("c"))
    assert lost.look(69, "abc", "ab") == Decision(frozenset(), 70, frozenset("c"))
    assert lost.look(70, "abc", "ab") == Decision(frozenset("c"), None)
    lost.audited("c")
    assert lost.look(200, "abc", "ab") == NOTHING
    assert lost.away == {"c"}


def test_a_second_one_ends_the_waiting() -> None:
    lost = LostBookies(60)
    lost.look(0, "abc", "ab")
    assert lost.look(1, "abc", "a") == Decision(frozenset("bc"), None)


def test_one_that_was_audited_does_not_count_as_a_second_one() -> None:
    lost = LostBookies(60)
    lost.look(0, "abc", "ab")
    lost.look(60, "abc", "ab")
    lost.audited("c")
    assert lost.look(100, "abc", "a") == Decision(frozenset(), 160, frozenset("b"))


def test_one_that_comes_back_is_forgotten_and_waits_anew() -> None:
    lost = LostBookies(60)
    lost.look(0, "abc", "ab")
    assert lost.look(30, "abc", "abc") == NOTHING
    assert lost.look(50, "abc", "ab") == Decision(frozenset(), 110, frozenset("c"))


def test_without_a_delay_the_audit_is_at_once() -> None:
    assert LostBookies(0).look(5, "abc", "ab") == Decision(frozenset("c"), None)


def test_a_delay_that_is_changed_counts_from_when_the_bookie_went() -> None:
    lost = LostBookies(600)
    lost.look(0, "abc", "ab")
    lost.delay_s = 20
    assert lost.look(30, "abc", "ab") == Decision(frozenset("c"), None)


def test_waiting_doubles_up_to_its_limit_and_lost_entries_are_not_tried_by_time() -> None:
    """R-R11: what nobody has is not tried for ever."""
    failed = Hindered(Hindrance.NO_TARGET, "")
    assert [retry_after_s(failed, failures, 30) for failures in range(1, 7)] == [2, 4, 8, 16, 30, 30]
    assert retry_after_s(failed, 10**6, 30) == 30
    assert retry_after_s(Hindered(Hindrance.LOST, ""), 1, 30) is None
    assert retry_after_s(Hindered(Hindrance.COPY_FAILED, ""), 10**6, 300) == 3_600, "an attempt may write"


def test_a_reason_names_the_lost_entries() -> None:
    assert describe(Hindered(Hindrance.SILENT, "no answer")) == "no answer"
    assert describe(Hindered(Hindrance.LOST, "nobody", lost=((0, 3), (7, 7)))) == "nobody (entries 0 to 3, 7)"
    many = tuple((at * 2, at * 2) for at in range(12))
    assert describe(Hindered(Hindrance.LOST, "nobody", lost=many)).endswith("18 and 2 more ranges)")


def test_the_index_finds_the_ledgers_of_a_bookie() -> None:
    index = LedgerIndex()
    index.put(1, record((0, ABC), last=3))
    index.put(2, record((0, ("b", "c", "d")), (5, ("b", "c", "e")), last=4))
    index.put(3, record((0, ("c", "d", "e"))))
    assert index.of_bookie("b") == {1, 2}
    assert index.of_bookie("e") == {2, 3}
    assert list(index.lacking("e")) == [3], "segment 5 of ledger 2 is behind its end"
    assert index.lost({"a", "b", "c"}) == ["d", "e"]
    index.put(3, record((0, ABC), last=0))
    index.discard(2)
    assert index.bookies == {"a", "b", "c"}
    assert list(index.lacking("b")) == [1, 3]
    assert len(index) == 2


def test_the_index_forgets_what_no_ledger_has_any_more() -> None:
    """Else an auditor of a cluster with many bookies would keep every ensemble that there ever was."""
    index = LedgerIndex()
    index.put(1, record((0, ABC), last=3))
    for ledger_id in range(2, 100):
        name = f"b{ledger_id}"
        index.put(ledger_id, record((0, ABC), (3, ("a", name, "c"))))
        index.put(ledger_id, record((0, ABC), (3, ("a", name, "c")), (9, ("a", "b", name)), last=5))
    for ledger_id in range(2, 100):
        index.discard(ledger_id)
    kept = (index._values, index._ensembles, index._ledgers_with, index._values_with)
    assert [len(one) for one in kept] == [1, 1, 1, 1]
    index.discard(1)
    assert not any(kept)
