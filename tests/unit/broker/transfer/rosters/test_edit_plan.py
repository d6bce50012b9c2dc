"""What a broker tells next of what it serves, and how much of it at once."""

import json
from collections.abc import Callable

import pytest

from broker.transfer.rosters import edit_plan
from broker.transfer.rosters import roster as rosters
from broker.transfer.rosters.edit_plan import POSITIONS_CLOSED_S, POSITIONS_S, EditPlan
from broker.transfer.rosters.roster import Roster
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ledgers.holdings import Changes, HeldCursor, Holdings
from managed_ledger.position import Position


def full(number: int) -> str:
    return f"persistent://public/default/t{number}"


def ledger(number: int) -> str:
    return TopicName.parse(full(number)).managed_ledger_name


class World:
    """One broker that tells, and one that reads it."""

    def __init__(self, topics: int) -> None:
        self.serves = {full(number): 0 for number in range(topics)}
        self.held = {full(number): Holdings(1, number, {}) for number in range(topics)}
        self.changes = Changes()
        self.roster = Roster()
        self.plan = EditPlan(self.roster, self.held.get, self.changes)
        self.now_s = 0.0

    def tell(self, *, is_open: bool = True, after_s: float = 1.0) -> list[bytes]:
        """One time."""
        self.now_s += after_s
        told = []
        for edit in self.plan.edits(self.serves, self.now_s, is_open=is_open):
            self.roster.apply(edit, 0)
            told.append(edit)
        return told

    def begin_ledger(self, number: int) -> None:
        former = self.held[full(number)]
        self.held[full(number)] = former._replace(last_ledger_id=former.last_ledger_id + 1_000)
        self.changes.note_ledgers(ledger(number))

    def move(self, number: int, entry_id: int) -> None:
        place = HeldCursor(-1, Position(number, entry_id))
        self.held[full(number)] = self.held[full(number)]._replace(cursors={"s": place})
        self.changes.note_moved(ledger(number))


def test_topics_are_told_with_their_holdings_and_then_only_what_changes() -> None:
    world = World(3)
    assert len(world.tell()) == 1
    assert (world.roster.topics, world.roster.holdings) == (world.serves, world.held)
    assert world.tell() == []
    world.begin_ledger(1)
    (edit,) = world.tell()
    assert list(json.loads(edit)["holds"]) == [full(1)]
    assert world.roster.holdings == world.held


def test_what_is_to_stay_is_not_told() -> None:
    world = World(2)
    assert list(world.plan.edits(None, 1.0, is_open=True)) == []
    assert world.roster.topics == {}


def test_so_many_bytes_are_told_at_once_and_the_others_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rosters, "EDIT_BYTES", 1_000)
    monkeypatch.setattr(edit_plan, "EDITS_BYTES_MAX", 3_000)
    world = World(200)
    told = world.tell()
    assert 3_000 <= sum(map(len, told)) < 4_500
    assert 0 < len(world.roster.topics) < 200
    times = until(world, lambda: world.roster.topics == world.serves)
    assert times > 2
    assert world.roster.holdings == world.held
    for number in range(200):
        world.begin_ledger(number)
    until(world, lambda: world.roster.holdings == world.held)


def until(world: World, is_told: Callable[[], bool]) -> int:
    for times in range(100):
        if is_told():
            return times
        assert sum(map(len, world.tell())) < 20_000
    raise AssertionError("it is never told")


def test_positions_alone_are_told_seldom_and_the_last_of_each() -> None:
    world = World(2)
    world.tell()
    for entry_id in range(10):
        world.move(0, entry_id)
        assert world.tell(after_s=POSITIONS_S / 20) == []
    (edit,) = world.tell(after_s=POSITIONS_S)
    assert json.loads(edit)["holds"] == {full(0): [1, 0, {"s": [-1, 0, 9]}]}
    assert world.tell(after_s=POSITIONS_S) == []


def test_positions_do_not_open_a_log_that_is_closed_but_for_now_and_then() -> None:
    world = World(1)
    world.tell()
    world.tell(after_s=POSITIONS_CLOSED_S, is_open=False)
    world.move(0, 5)
    assert world.tell(after_s=POSITIONS_CLOSED_S - 1, is_open=False) == []
    assert len(world.tell(after_s=2, is_open=False)) == 1
    assert world.roster.holdings == world.held


def test_so_many_bytes_of_positions_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_plan, "POSITIONS_BYTES_MAX", 1_000)
    monkeypatch.setattr(edit_plan, "POSITIONS_AT_ONCE", 5)
    world = World(100)
    world.tell()
    for number in range(100):
        world.move(number, 1)
    told = world.tell(after_s=POSITIONS_S)
    assert 1_000 <= sum(map(len, told)) < 2_000
    for _ in range(30):
        world.tell(after_s=POSITIONS_S)
    assert world.roster.holdings == world.held


def test_a_topic_that_is_not_open_any_more_is_not_told_of() -> None:
    world = World(2)
    world.tell()
    world.begin_ledger(0)
    del world.held[full(0)]
    assert world.tell() == []


def test_a_log_that_begins_anew_tells_all() -> None:
    world = World(3)
    world.tell()
    again = EditPlan(Roster(), world.held.get, world.changes)
    (edit,) = again.edits(world.serves, 0.0, is_open=False)
    assert json.loads(edit)["holds"].keys() == world.held.keys()
