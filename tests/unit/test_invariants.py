"""Every rule that code or tests name by its number stands in docs/invariants.md, and what that page names is there."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs" / "invariants.md"
FOLDERS: Final = (
    "bookie",
    "broker",
    "managed_ledger",
    "magnetar_core",
    "magnetar",
    "autorecovery",
    "connectors",
    "tests",
)

# Tests about the numbers themselves.
NOT_CITING: Final = {"tests/unit/test_invariants.py", "tests/crash/test_schedule_table.py"}

_ID: Final = re.compile(r"\b(I\d{1,3}|R-[A-Z]\d+)\b")
_RANGE: Final = re.compile(r"\b(I|R-[A-Z])(\d+) to \1(\d+)\b")
_IN_NAME: Final = re.compile(r"_r_([a-z]\d+)(?=_)")
_NAMED: Final = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")
_CHECK: Final = re.compile(r"\(?`(\w+): (\w+)`\)?")


class Row(NamedTuple):
    number: str
    texts: list[str]
    modules: list[str]
    tests: list[tuple[str, str]]
    checks: str
    """Where the simulation checks it."""


def rows() -> Iterator[Row]:
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if not _ID.fullmatch(cells[0]):
            continue
        checks = cells.pop() if cells[0].startswith("I") else ""
        named = [_NAMED.findall(cell) for cell in cells]
        texts = [cell for cell, found in zip(cells[1:], named[1:], strict=True) if not found]
        modules = [path for path, _ in named[-2]] if cells[0].startswith("I") else []
        yield Row(cells[0], texts, modules, named[-1], checks)


def citations(text: str) -> set[str]:
    found = {*_ID.findall(text), *(f"R-{number.upper()}" for number in _IN_NAME.findall(text))}
    for kind, first, last in _RANGE.findall(text):
        found |= {f"{kind}{number}" for number in range(int(first), int(last) + 1)}
    return found


def cited() -> dict[str, set[str]]:
    """Path from the root → numbers that it names."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    found = {str(path.relative_to(ROOT)): citations(path.read_text()) for path in files}
    return {path: numbers for path, numbers in found.items() if numbers and path not in NOT_CITING}


ROWS: Final = list(rows())
CITED: Final = cited()


def test_each_number_stands_there_once_in_order() -> None:
    numbers = [row.number for row in ROWS]
    assert len(numbers) == len(set(numbers))
    assert numbers == sorted(numbers, key=lambda one: (one.rstrip("0123456789"), int(re.sub(r"\D", "", one))))


def test_every_citation_is_resolved() -> None:
    known = {row.number for row in ROWS}
    unknown = {path: sorted(numbers - known) for path, numbers in CITED.items() if not numbers <= known}
    assert unknown == {}


def test_no_rule_stands_there_that_nothing_names() -> None:
    named = set().union(*CITED.values())
    assert [row.number for row in ROWS if row.number not in named] == []


@cache  # half of the rows name one of five long files
def names_and_numbers(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """What is defined in a file, and the rules that it names."""
    source = (ROOT / path).read_text()
    return (
        frozenset(node.name for node in ast.walk(ast.parse(source)) if hasattr(node, "name")),
        frozenset(citations(source)),
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.number)
def test_a_row_says_what_it_is_and_names_what_is_there(row: Row) -> None:
    assert len(row.texts) == (2 if row.number.startswith("I") else 1)
    assert all(len(text) > 15 for text in row.texts)
    assert row.tests
    for path, name in row.tests:
        functions, numbers = names_and_numbers(path)
        assert name in functions if name else row.number in numbers, f"{path}::{name}"
    assert all((ROOT / path).is_file() for path in row.modules), row.modules


@pytest.mark.parametrize("row", [row for row in ROWS if row.number.startswith("I")], ids=lambda row: row.number)
def test_a_row_names_every_module_that_names_it(row: Row) -> None:
    naming = {path for path, numbers in CITED.items() if row.number in numbers and not path.startswith("tests/")}
    assert row.modules
    assert naming <= set(row.modules)


@pytest.mark.parametrize("row", [row for row in ROWS if row.checks not in ("", "–")], ids=lambda row: row.number)
def test_a_row_names_checks_of_the_simulation_that_are_there(row: Row) -> None:
    for check in row.checks.split(", "):
        match = _CHECK.fullmatch(check)
        assert match, check
        stack, small = f"tests/simulation/stack/{match[1]}.py", f"tests/simulation/test_{match[1]}.py"
        functions, _ = names_and_numbers(stack if (ROOT / stack).is_file() else small)
        assert match[2] in functions, check


def test_citations_are_found_in_text_ranges_and_names() -> None:
    assert citations("(I51), R-M6") == {"I51", "R-M6"}
    assert citations("I3, I18 to I20") == {"I3", "I18", "I19", "I20"}
    assert citations("def test_r_b3_and_r_l20_are_here") == {"R-B3", "R-L20"}
    assert citations("IO, I/O, ID5, R-M…") == set()
