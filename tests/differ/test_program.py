"""The grammar: a seed is a program, a program is its text, and what is drawn keeps away from races."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.differ.events import Program, event, event_of, program_of, text_of
from tests.differ.program import program_of_seed
from tests.differ.runner import Side

SEEDS = range(400)


@pytest.fixture(scope="module")
def programs() -> list[Program]:
    return [program_of_seed(seed) for seed in SEEDS]


def test_the_same_seed_is_the_same_program_in_another_process() -> None:
    code = "from tests.differ.program import *; from tests.differ.events import *; print(text_of(program_of_seed(7)))"
    root = Path(__file__).parents[2]
    found = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in "12"
    ]  # fmt: skip
    assert found[0] == found[1] == text_of(program_of_seed(7)) + "\n"


def test_a_program_is_its_text(programs: list[Program]) -> None:
    for program in programs:
        assert program_of(text_of(program).splitlines()) == program


def test_an_event_is_a_line() -> None:
    line = 't0 set policy="retention" value={"a b": [1, "x=y"]}'
    assert event_of(line) == event("t0", "set", policy="retention", value={"a b": [1, "x=y"]})
    assert str(event_of(line)) == line
    assert event_of("t0 unload") == event("t0", "unload")
    with pytest.raises(ValueError, match="no option begins"):
        event_of("t0 create partitions 2")
    with pytest.raises(json.JSONDecodeError):
        event_of("t0 create partitions=two")


def test_all_that_the_runner_can_do_is_drawn(programs: list[Program]) -> None:
    drawn = Counter(one.what for program in programs for one in program)
    known = {name.removeprefix("do_") for name in vars(Side) if name.startswith("do_")}
    assert drawn.keys() == known
    assert min(drawn.values()) >= 3


def test_a_handle_is_made_before_it_is_used(programs: list[Program]) -> None:
    makers = {"p": "produce", "c": "subscribe", "r": "read_from", "v": "view"}
    for program in programs:
        made = set()
        for one in program:
            if one.what == makers.get(one.who[0]):
                made.add(one.who)
            else:
                assert one.who in made or one.who[0] in "tn", one


def test_messages_of_partitioned_topics_have_keys(programs: list[Program]) -> None:
    for program in programs:
        partitioned = {one.who for one in program if one.what == "create" and one.get("partitions")}
        topics = {one.who: one.get("topic") for one in program if one.what == "produce"}
        sends = [one for one in program if one.what == "send" and topics[one.who] in partitioned]
        deleted = {one.who for one in program if one.what == "delete"}
        assert all(one.get("keys") for one in sends if topics[one.who] not in deleted)
