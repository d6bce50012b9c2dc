"""The phases of a bundle, and what a lookup does in each."""

import itertools

import pytest

from broker.ownership.bundle import MOVES, Action, Bundle, Event, Lookup, OwnerNode, Phase, next_action
from broker.ownership.rules import BrokerAddress

US = BrokerAddress("pulsar://us:6650")
OTHER = BrokerAddress("pulsar://other:6650")
NAME = "public/default/0x00000000_0x80000000"

OWNED = (Event.CLAIMED,)
SPLITTING = (*OWNED, Event.SPLIT)
UNLOADING = (*OWNED, Event.UNLOAD)
CLOSING = (*UNLOADING, Event.CLOSED)
PART = (Event.PART,)
PATHS = {
    Phase.AWAY: (), Phase.OWNED: OWNED, Phase.SPLITTING: SPLITTING, Phase.UNLOADING: UNLOADING,
    Phase.CLOSING: CLOSING, Phase.PART: PART,
}  # fmt: skip


def bundle(*events: Event) -> Bundle:
    made = Bundle(NAME)
    for event in events:
        made.move(event)
    return made


def lookup(*, authoritative: bool = False, is_leaving: bool = False) -> Lookup:
    return Lookup(US, is_leaving, authoritative)


def node(owner: BrokerAddress = OTHER, *, is_unloading: bool = False, is_own: bool = False) -> OwnerNode:
    return OwnerNode(owner, is_unloading, is_own, 0)


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_is_reached_and_left(phase: Phase) -> None:
    assert bundle(*PATHS[phase]).phase is phase
    assert MOVES[phase]
    assert any(phase in moves.values() for moves in MOVES.values())


@pytest.mark.parametrize(
    ("phase", "event"), [pair for pair in itertools.product(Phase, Event) if pair[1] not in MOVES[pair[0]]]
)
def test_any_other_move_is_a_defect(phase: Phase, event: Event) -> None:
    with pytest.raises(KeyError):
        bundle(*PATHS[phase]).move(event)


def test_ours_is_what_has_a_node_and_served_what_takes_clients() -> None:
    kinds = {phase: bundle(*path) for phase, path in PATHS.items()}
    assert {phase for phase, one in kinds.items() if one.is_owned} == {Phase.OWNED, Phase.SPLITTING, Phase.UNLOADING}
    assert {phase for phase, one in kinds.items() if one.is_served} == {Phase.OWNED, Phase.SPLITTING}
    assert {phase for phase, one in kinds.items() if one.is_ending} == {Phase.PART, Phase.UNLOADING, Phase.CLOSING}


def test_a_part_is_served_as_long_as_the_whole_is_being_split() -> None:
    whole, part = bundle(*SPLITTING), bundle(*PART)
    part.whole = whole
    assert next_action(part, None, lookup()) is Action.SERVE
    whole.move(Event.LOST)
    assert next_action(part, None, lookup()) is Action.AWAIT_RETURN
    part.move(Event.CLAIMED)
    assert next_action(part, None, lookup()) is Action.SERVE
    assert part.whole is None


@pytest.mark.parametrize("event", [Event.LOST, Event.UNLOAD])
def test_a_bundle_that_is_lost_is_not_taken_up_again(event: Event) -> None:
    made = bundle(*OWNED)
    made.is_resuming = True
    made.move(event)
    assert made.is_resuming == made.is_owned


@pytest.mark.parametrize("phase", [Phase.UNLOADING, Phase.CLOSING])
def test_who_asks_for_a_bundle_that_is_being_given_back_waits(phase: Phase) -> None:
    assert next_action(bundle(*PATHS[phase]), None, lookup(authoritative=True)) is Action.AWAIT_RETURN


@pytest.mark.parametrize(
    ("authoritative", "is_leaving", "action"),
    [(False, False, Action.RANK), (True, False, Action.TAKE), (False, True, Action.RANK), (True, True, Action.RANK)],
)
def test_a_free_bundle_is_taken_where_another_broker_says_so(
    authoritative: bool, is_leaving: bool, action: Action
) -> None:
    assert next_action(bundle(), None, lookup(authoritative=authoritative, is_leaving=is_leaving)) is action


def test_a_bundle_that_is_promised_goes_there_and_nowhere_else() -> None:
    made = bundle()
    made.promised = OTHER
    assert next_action(made, None, lookup(authoritative=True)) is Action.SEND_TO_PROMISED
    assert next_action(made, node(), lookup()) is Action.ASK_OWNER, "it has an owner still"
    made.promised = US
    assert next_action(made, None, lookup(authoritative=True)) is Action.TAKE


@pytest.mark.parametrize(
    ("found", "action"),
    [
        (node(), Action.ASK_OWNER),
        (node(is_unloading=True), Action.AWAIT_OWNER),
        (node(US, is_own=True), Action.TAKE),
        (node(US, is_own=True, is_unloading=True), Action.REMOVE_FORMER),
        (node(US), Action.REMOVE_FORMER),
        (node(US, is_unloading=True), Action.REMOVE_FORMER),
    ],
)
def test_a_bundle_with_an_owner_is_his_unless_that_is_this_broker_in_an_earlier_life(
    found: OwnerNode, action: Action
) -> None:
    assert next_action(bundle(), found, lookup()) is action
