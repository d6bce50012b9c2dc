"""What a bookie is to become: the operator's wish and where it has got to. No IO.

    active ──operator──▶ draining ──auditor──▶ drained
      ▲  ▲                │   ▲  └──auditor──▶ draining-failed ──operator, after mending──▶ drained
      │  └──operator──────┘   └──operator───────────┘  │                                      │
      └────────────operator────────────────────────────┴──────────────────────────────────────┘

The state stands in the metadata store below the bookie's cookie (`cookies/<bookie>/state`), so that it is there when
the host is not. An active bookie has no such node: ZooKeeper does not delete a cookie that has a child, and Apache's
own decommission must go on working.

Rules (I74):

1. Only the moves of the drawing are legal, each by compare-and-set on the node; any other is refused with the reason.
2. A bookie turns writable only after the state that lets it is stored.
3. `drained` may be set only by someone who has just seen that the bookie takes no entries and that no ledger names it.
   The auditor has; an operator who ends a failed drain is checked in the same way. *Just* means: after the state was
   read whose version the move is compared with; what was seen under an older state may be of an older drain.
4. What must still be copied is never stored in this node: it follows from the records each time it is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import Corruption, MagnetarError

# Characters of what an operator may say about a move, and of the reason given for one ledger.
TEXT_CHARS_MAX: Final = 500

# Ledgers that a failed drain names in its node, which is one value in the store; the others are counted.
REASONS_MAX: Final = 500


class State(StrEnum):
    """Where a bookie is in its life."""

    ACTIVE = "active"
    DRAINING = "draining"
    DRAINING_FAILED = "draining-failed"
    DRAINED = "drained"


class Actor(StrEnum):
    """Who moves it."""

    OPERATOR = "operator"
    AUDITOR = "auditor"


MOVES: Final[Mapping[tuple[State, State], Actor]] = {
    (State.ACTIVE, State.DRAINING): Actor.OPERATOR,
    (State.DRAINING, State.ACTIVE): Actor.OPERATOR,
    (State.DRAINING, State.DRAINED): Actor.AUDITOR,
    (State.DRAINING, State.DRAINING_FAILED): Actor.AUDITOR,
    (State.DRAINING_FAILED, State.DRAINED): Actor.OPERATOR,
    (State.DRAINING_FAILED, State.DRAINING): Actor.OPERATOR,
    (State.DRAINING_FAILED, State.ACTIVE): Actor.OPERATOR,
    (State.DRAINED, State.ACTIVE): Actor.OPERATOR,
}


class IllegalMove(MagnetarError):
    """The bookie is not in a state from which it can be moved like that; the text says what can be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """The state of one bookie, with who, when and why."""

    state: State = State.ACTIVE
    by: str = ""
    """The person, program or node that made the last move."""
    why: str = ""
    since_ms: int = 0
    """Wall clock of the last move."""
    began_ms: int = 0
    """Wall clock at which the drain began; it stays until the bookie is active again."""
    reasons: tuple[tuple[int, str], ...] = ()
    """(ledger, why it could not be copied away); only when draining failed."""
    reasons_total: int = 0
    """Ledgers that could not be copied, those that are not named included."""

    @property
    def is_read_only(self) -> bool:
        """A bookie in this state takes no new entries."""
        return self.state is not State.ACTIVE

    @property
    def is_leaving(self) -> bool:
        """Its entries must be copied to others. A failed drain waits for an operator and copies nothing."""
        return self.state is State.DRAINING


def moved(
    lifecycle: Lifecycle,
    to: State,
    actor: Actor,
    by: str,
    why: str,
    wall_ms: int,
    reasons: Sequence[tuple[int, str]] = (),
) -> Lifecycle:
    """*lifecycle* after a move. Raises IllegalMove (rule 1)."""
    if lifecycle.state is to:
        details = ": ".join(text for text in (lifecycle.by, lifecycle.why) if text)
        raise IllegalMove(f"it is {to} already" + (f" ({details})" if details else ""))
    needed = MOVES.get((lifecycle.state, to))
    if needed is None:
        ways = [after for before, after in MOVES if before is lifecycle.state]
        raise IllegalMove(f"a bookie that is {lifecycle.state} cannot become {to}; it can become {' or '.join(ways)}")
    if needed is not actor:
        raise IllegalMove(f"only the {needed} makes a bookie that is {lifecycle.state} {to}")
    assert bool(reasons) == (to is State.DRAINING_FAILED), "a failed drain, and nothing else, has reasons"
    is_begun = to is State.DRAINING
    return Lifecycle(
        state=to,
        by=by[:TEXT_CHARS_MAX],
        why=" ".join(why.split())[:TEXT_CHARS_MAX],
        since_ms=wall_ms,
        began_ms=wall_ms if is_begun else 0 if to is State.ACTIVE else lifecycle.began_ms,
        reasons=tuple((ledger_id, text[:TEXT_CHARS_MAX]) for ledger_id, text in reasons[:REASONS_MAX]),
        reasons_total=len(reasons),
    )


def encode(lifecycle: Lifecycle) -> bytes:
    """The value of the state's node. ACTIVE has no node."""
    assert lifecycle.state is not State.ACTIVE
    facts = {
        "version": 1,
        "state": str(lifecycle.state),
        "by": lifecycle.by,
        "why": lifecycle.why,
        "since_ms": lifecycle.since_ms,
        "began_ms": lifecycle.began_ms,
        "reasons": [{"ledger_id": ledger_id, "why": text} for ledger_id, text in lifecycle.reasons],
        "reasons_total": lifecycle.reasons_total,
    }
    return json.dumps(facts).encode()


def decode(value: bytes) -> Lifecycle:
    """Raises Corruption; a state that cannot be read is never taken for active (I60)."""
    try:
        facts = parse_json(value)
        lifecycle = Lifecycle(
            state=State(facts["state"]),
            by=str(facts.get("by", "")),
            why=str(facts.get("why", "")),
            since_ms=int(facts["since_ms"]),
            began_ms=int(facts.get("began_ms", 0)),
            reasons=tuple((int(reason["ledger_id"]), str(reason["why"])) for reason in facts.get("reasons", ())),
            reasons_total=int(facts.get("reasons_total", 0)),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise Corruption(f"the state of a bookie, {value[:80]!r}: {error}") from error
    if lifecycle.state is State.ACTIVE:
        raise Corruption("the state of a bookie says active, and an active bookie has no such node")
    return replace(lifecycle, reasons_total=max(lifecycle.reasons_total, len(lifecycle.reasons)))


# ------------------------------------------------------------------------------- the end of a drain


@dataclass(frozen=True, slots=True)
class DrainView:
    """What is known of a drain at one moment, all of it from the records and from who is there."""

    ledgers_left: int
    """Ledgers whose record names the bookie."""
    waiting: Mapping[int, str]
    """Of those, ledgers that cannot be copied now → why."""
    hopeless: Mapping[int, str]
    """Of those, ledgers for which waiting does not help → why: entries are lost, or no other bookie exists that could
    take them."""


def verdict_of(view: DrainView, stuck_s: float, patience_s: float) -> State:
    """Where a drain is to go: on (DRAINING), or to its end.

    *stuck_s*: for how long nothing was copied and every ledger that is left waits. It fails when each ledger that is
    left is hopeless, or all of them have waited for *patience_s*; while one can still be copied it goes on.
    """
    assert patience_s > 0
    if not view.ledgers_left:
        return State.DRAINED
    if len(view.hopeless) >= view.ledgers_left:
        return State.DRAINING_FAILED
    all_wait = len(view.hopeless.keys() | view.waiting.keys()) >= view.ledgers_left
    return State.DRAINING_FAILED if all_wait and stuck_s >= patience_s else State.DRAINING
