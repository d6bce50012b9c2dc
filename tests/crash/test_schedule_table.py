"""Every storage schedule of the regression corpus has a test that carries its number."""

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

# The storage half of the corpus; the others (client R-L, metadata and repair R-R, managed ledger R-M, broker R-T, state
# log R-S) belong to those parts of the house, and their tests name them.
STORAGE = [f"R-B{number}" for number in range(1, 35)]

# Of the client's half, those that a bookie alone can get wrong.
SHARED = ["R-L4", "R-L20", "R-L21", "R-L26"]

_NUMBER = re.compile(r"\bR-([A-Z]\d+)\b")
_IN_NAME = re.compile(r"_r_([a-z]\d+)(?=_)")


def schedules_in(source: str) -> dict[str, list[str]]:
    """Schedule → names of the test functions that carry it in their name or docstring."""
    found: dict[str, list[str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            text = ast.get_docstring(node) or ""
            numbers = {*_NUMBER.findall(text), *(name.upper() for name in _IN_NAME.findall(node.name))}
            for number in numbers:
                found.setdefault(f"R-{number}", []).append(node.name)
    return found


@pytest.fixture(scope="module")
def table() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        source = path.read_text()
        if _NUMBER.search(source) or _IN_NAME.search(source):  # parsing is dear
            for schedule, names in schedules_in(source).items():
                found.setdefault(schedule, []).extend(names)
    return found


@pytest.mark.parametrize("schedule", [*STORAGE, *SHARED])
def test_each_schedule_is_a_test(table: dict[str, list[str]], schedule: str) -> None:
    assert table.get(schedule), f"no test function names {schedule}"


def test_names_and_docstrings_are_found_and_nothing_else() -> None:
    source = '''
def test_r_b3_and_r_l20_are_here(): pass
async def test_other():
    """R-B12 of the corpus."""
def helper():
    """R-B13"""
def test_numbers_r_b(): "nothing"
'''
    assert schedules_in(source) == {
        "R-B3": ["test_r_b3_and_r_l20_are_here"],
        "R-L20": ["test_r_b3_and_r_l20_are_here"],
        "R-B12": ["test_other"],
    }
