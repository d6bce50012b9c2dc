"""The state machine of a bookie's life: every move, its node's text, and when a drain ends."""

from itertools import product

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar_core.bookkeeper.metadata.bookies.lifecycle import (
    MOVES,
    REASONS_MAX,
    TEXT_CHARS_MAX,
    Actor,
    DrainView,
    IllegalMove,
    Lifecycle,
    State,
    decode,
    encode,
    moved,
    verdict_of,
)
from magnetar_core.runtime.types import Corruption

REASON = ((7, "no copy"),)


def reasons_for(to: State) -> tuple[tuple[int, str], ...]:
    return REASON if to is State.DRAINING_FAILED else ()


@pytest.mark.parametrize(("before", "to", "actor"), list(product(State, State, Actor)))
def test_a_move_is_legal_exactly_where_the_table_has_it(before: State, to: State, actor: Actor) -> None:
    found = Lifecycle(state=before)
    if MOVES.get((before, to)) is actor:
        after = moved(found, to, actor, "me", "because", 5, reasons_for(to))
        assert (after.state, after.by, after.why, after.since_ms) == (to, "me", "because", 5)
    else:
        with pytest.raises(IllegalMove):
            moved(found, to, actor, "me", "because", 5, reasons_for(to))


def test_the_reason_of_a_refusal_says_what_can_be_done() -> None:
    with pytest.raises(IllegalMove, match="a bookie that is active cannot become drained; it can become draining"):
        moved(Lifecycle(), State.DRAINED, Actor.OPERATOR, "", "", 0)
    with pytest.raises(IllegalMove, match="only the auditor makes a bookie that is draining drained"):
        moved(Lifecycle(state=State.DRAINING), State.DRAINED, Actor.OPERATOR, "", "", 0)
    with pytest.raises(IllegalMove, match="it is draining already"):
        moved(Lifecycle(state=State.DRAINING), State.DRAINING, Actor.OPERATOR, "", "", 0)


def test_the_node_keeps_everything_and_limits_what_people_say() -> None:
    many = [(number, "x" * 2 * TEXT_CHARS_MAX) for number in range(REASONS_MAX + 3)]
    failed = moved(
        Lifecycle(state=State.DRAINING, began_ms=3), State.DRAINING_FAILED, Actor.AUDITOR, "node", "two\nlines", 9, many
    )
    assert failed.why == "two lines"
    assert len(failed.reasons) == REASONS_MAX
    assert len(failed.reasons[0][1]) == TEXT_CHARS_MAX
    assert failed.reasons_total == REASONS_MAX + 3
    assert (failed.began_ms, failed.since_ms) == (3, 9)
    assert decode(encode(failed)) == failed
    assert len(encode(failed)) < 500_000


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"state": "gone", "since_ms": 1}', b'{"state": "active", "since_ms": 1}']
)
def test_a_state_that_cannot_be_read_is_not_taken_for_active(value: bytes) -> None:
    """I60"""
    with pytest.raises(Corruption, match="the state of a bookie"):
        decode(value)


def test_a_drain_ends_when_no_record_names_the_bookie() -> None:
    assert verdict_of(DrainView(0, {}, {}), 0, 60) is State.DRAINED


def test_a_drain_fails_when_nothing_that_is_left_can_be_copied() -> None:
    """R-R18: an explicit list, and an end."""
    assert verdict_of(DrainView(2, {}, {1: "lost"}), 10**6, 60) is State.DRAINING, "one can still be copied"
    assert verdict_of(DrainView(2, {}, {1: "lost", 2: "lost"}), 0, 60) is State.DRAINING_FAILED
    assert verdict_of(DrainView(2, {2: "open"}, {1: "lost"}), 59, 60) is State.DRAINING
    assert verdict_of(DrainView(2, {2: "open"}, {1: "lost"}), 60, 60) is State.DRAINING_FAILED


class Lives(RuleBasedStateMachine):
    """One bookie, an operator and an auditor who move it as they like, over a node that is compared and set.

    The bookie turns writable only after it has read that it may; a stale reader never makes it so.
    """

    @initialize()
    def begin(self) -> None:
        self.node: bytes | None = None
        self.version = 0
        self.read: dict[str, tuple[Lifecycle, int]] = {}
        self.is_writable = True
        self.named = 3
        """Ledgers whose record names the bookie."""
        self.seen_free: dict[str, int] = {}
        """Who has seen that it takes no entries and nobody names it, after reading the state of this version."""

    def current(self) -> Lifecycle:
        return Lifecycle() if self.node is None else decode(self.node)

    @rule(who=st.sampled_from(["operator-1", "operator-2", "auditor-1", "auditor-2"]))
    def look(self, who: str) -> None:
        self.read[who] = (self.current(), self.version)

    @rule(who=st.sampled_from(["operator-1", "operator-2", "auditor-1", "auditor-2"]))
    def read_all_records(self, who: str) -> None:
        if who in self.read and self.named == 0 and not self.is_writable:
            self.seen_free[who] = self.read[who][1]

    @rule(who=st.sampled_from(["operator-1", "operator-2", "auditor-1", "auditor-2"]), to=st.sampled_from(list(State)))
    def move(self, who: str, to: State) -> None:
        if who not in self.read:
            return
        found, version = self.read[who]
        actor = Actor.OPERATOR if who.startswith("operator") else Actor.AUDITOR
        try:
            after = moved(found, to, actor, who, "", self.version + 1, reasons_for(to))
        except IllegalMove:
            return
        if to is State.DRAINED and self.seen_free.get(who) != version:
            return  # rule 3 of the module: who sets it has looked, after it read the state
        if version != self.version:
            return  # the compare-and-set is refused
        self.node = None if to is State.ACTIVE else encode(after)
        self.version += 1

    @rule()
    def the_bookie_looks(self) -> None:
        self.is_writable = not self.current().is_read_only

    @precondition(lambda self: self.named and self.current().is_leaving and not self.is_writable)
    @rule()
    def a_ledger_is_copied_away(self) -> None:
        self.named -= 1

    @precondition(lambda self: self.is_writable)
    @rule()
    def a_writer_names_it(self) -> None:
        self.named += 1

    @invariant()
    def no_ledger_names_a_bookie_that_is_called_drained(self) -> None:
        if self.current().state is State.DRAINED:
            assert self.named == 0
            assert not self.is_writable


TestLives = Lives.TestCase
