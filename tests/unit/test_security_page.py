"""SECURITY.md against the kinds of hostile inputs that there are, and against what it says must hold."""

import re

from tests.abuse import kinds
from tests.abuse.kinds import BEGIN, END, GUARDED, KINDS, PAGE, Run, table
from tests.abuse.watchdog import AWAY_S
from tests.abuse.world import MEMORY_MAX, Victim


def rows() -> dict[str, tuple[str, str, str]]:
    """Kind → what was sent, how much of it, what a victim's p99 was."""
    _, begin, rest = PAGE.read_text().partition(BEGIN)
    told, end, _ = rest.partition(END)
    assert begin
    assert end
    cells = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in told.splitlines() if "|" in line]
    return {kind: (words, count, p99) for kind, words, count, p99 in cells[2:]}


def test_the_page_names_each_kind_that_is_tried_and_no_other() -> None:
    assert {kind: words for kind, (words, _, _) in rows().items()} == KINDS


def test_its_numbers_are_those_of_a_whole_run() -> None:
    for kind, (_, count, p99) in rows().items():
        assert int(count.replace(",", "")) > 0
        assert (p99 != "") == (kind in GUARDED)
        if p99:
            assert float(p99.removesuffix(" ms")) < Victim.P99_MAX_MS
    said = re.search(r"no server held more than (\d+) MB", PAGE.read_text())
    assert said is not None
    assert int(said[1]) << 20 < MEMORY_MAX


def test_the_bounds_that_it_promises_are_those_that_are_checked() -> None:
    text = PAGE.read_text()
    assert f"more than {AWAY_S:g} s of a processor" in text
    assert f"less than {MEMORY_MAX >> 20} MB" in text
    assert "p99 stays below one second" in text
    assert Victim.P99_MAX_MS == 1_000


def test_a_run_is_written_as_the_page_shows_it() -> None:
    run = Run()
    for kind in KINDS:
        run.add(kind, 10, 5 << 20, 1.25 if kind in GUARDED else None)
        run.add(kind, 1_000, 7 << 20, 2.5 if kind in GUARDED else None)
    lines = table(run.results("4711")).splitlines()
    assert "Seed 4711; no server held more than 7 MB." in lines
    assert f"| tokens | {KINDS['tokens']} | 1,010 | 2 ms |" in lines
    assert f"| Spark | {KINDS['Spark']} | 1,010 |  |" in lines
    assert kinds.OPEN.keys() | kinds.GUARDED.keys() | kinds.ALONE.keys() == KINDS.keys()
