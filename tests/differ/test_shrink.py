"""A planted difference is found, repeated, and shrunk to what it needs."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.differ import compare
from tests.differ.compare import Comparison, Finding, story
from tests.differ.differences import LISTED, listed
from tests.differ.events import Program, event, program_of
from tests.differ.normal import Difference
from tests.differ.program import program_of_seed
from tests.differ.servers import Address, Pair
from tests.differ.shrink import shrunk

PAIR = Pair(Address("apache", ""), Address("ours", ""))
Run = Callable[[Program, Address, str], list[Any]]


def needs(*words: str) -> Callable[[Program], bool]:
    def differs(program: Program) -> bool:
        lines = iter(map(str, program))
        return all(any(word in line for line in lines) for word in words)

    return differs


def test_only_what_the_difference_needs_is_left() -> None:
    differs = needs("produce", "unload", "send")
    program = next(one for one in map(program_of_seed, range(99)) if differs(one) and len(one) > 15)
    tried = []

    def recorded(candidate: Program) -> bool:
        tried.append(candidate)
        return differs(candidate)

    short = shrunk(program, recorded)
    assert [one.what for one in short] == ["produce", "unload", "send"]
    assert {name for one in short for name, _ in one.given} <= {"topic", "name", "first", "count"}
    assert len(tried) <= 60


def test_the_budget_of_tries_is_kept() -> None:
    tried: list[Program] = []

    def never(candidate: Program) -> bool:
        tried.append(candidate)
        return False

    shrunk(tuple(event("t0", "stats") for _ in range(40)), never, tries=7)
    assert len(tried) == 7


def with_fault(seen: list[Program], *, only: int | None = None) -> Run:
    """Our broker counts one too many after an unload; with *only* in so many runs alone."""

    def run(program: Program, address: Address, namespace: str) -> list[Any]:
        seen.append(program)
        is_ours = address.service_url == "ours" and (only is None or len(seen) <= 2 * only)
        unloads = [one.what for one in program].count("unload")
        return [{"msgInCounter": unloads + is_ours} if one.what == "stats" and unloads else None for one in program]

    return run


PROGRAM = program_of(
    ["t0 create partitions=0", 'p0 produce topic="t0"', "t0 unload", "p0 send first=0 count=3", "t0 stats", "p0 close"]
)


def test_a_planted_difference_is_found_and_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "run", with_fault([]))
    found = Comparison(PAIR, "x").finding(PROGRAM)
    assert (found.kind, [str(one) for one in found.program]) == ("different", ["t0 unload", "t0 stats"])
    assert story(found, "seed 7") == [
        "seed 7: different", "    t0 unload", "    t0 stats",
        "      Apache msgInCounter: 1", "      ours   msgInCounter: 2",
    ]  # fmt: skip


def test_what_does_not_come_again_is_said_and_not_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Program] = []
    monkeypatch.setattr(compare, "run", with_fault(seen, only=1))
    found = Comparison(PAIR, "x").finding(PROGRAM)
    assert (found.kind, found.program, len(seen)) == ("once", PROGRAM[:5], 4)


def test_what_is_the_same_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Program] = []
    monkeypatch.setattr(compare, "run", with_fault(seen, only=0))
    assert (Comparison(PAIR, "x").finding(PROGRAM), len(seen)) == (Finding("same"), 2)


def test_each_listed_difference_has_a_reason_and_needs_more_than_an_event() -> None:
    assert len({one.name for one in LISTED}) == len(LISTED)
    for one in LISTED:
        assert len(one.reason) > 20
    known = next(one for one in LISTED if one.name == "what a consumer that left had")
    close, drain = event("c0", "close"), event("t0/s0", "drain", count=1)
    counted: list[Any] = [["Shared", ["", 0, -1, count, "#0", []]] for count in (0, 1, 2)]
    assert listed((close, drain), Difference(1, drain, counted[0], counted[1])) is known
    assert listed((close, drain), Difference(1, drain, counted[1], counted[0])) is None
    assert listed((close, drain), Difference(1, drain, counted[0], counted[2])) is None
    assert listed((drain,), Difference(0, drain, counted[0], counted[1])) is None
    other = Difference(0, event("t0", "drain", count=1), ["Shared"], ["Shared", "lost"])
    assert listed((other.event,), other) is None


@pytest.mark.parametrize(
    ("value", "unloaded", "name"), [(1, "t0", "who comes back first"), (2, "t0", ""), (1, "t1", "")]
)
def test_who_comes_back_first_is_chance_where_there_is_room_for_fewer(value: int, unloaded: str, name: str) -> None:
    lines = [
        'c0 subscribe topic="t0" subscription="s1"', 'c1 subscribe topic="t0" subscription="s2"',
        f't0 set policy="maxConsumers" value={value}', f"{unloaded} unload", "t0/s1 drain count=1",
    ]  # fmt: skip
    program = program_of(lines)
    difference = Difference(4, program[-1], ["Failover"], ["Failover", ["c0", 0]])
    entry = listed(program, difference)
    assert (entry.name if entry else "") == name
