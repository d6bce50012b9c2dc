"""The table of errors in docs/spark.md: it has every error of the source and the sink, and each way out is one."""

from pathlib import Path

import pytest

from connectors.spark.options.read import INSTEAD
from tests.unit.connectors.spark.errors import of_options, of_reading, of_streams, of_topics, of_writing
from tests.unit.connectors.spark.errors.page import CASES, INSIDE, Raised, pattern, raised, rows

assert of_options, "their cases are registered"
assert of_topics
assert of_reading
assert of_streams
assert of_writing

SAYS = rows()

# Caught inside of the source.
NEVER_SEEN = frozenset({"AssertionError", "HiddenPackage"})


def test_each_row_has_a_case_and_each_case_a_row() -> None:
    cases = [says for several in CASES for says in several]
    assert sorted(cases) == sorted(SAYS)
    assert len(set(cases)) == len(cases)


def test_what_the_code_raises_has_a_row() -> None:
    def has_row(one: Raised) -> bool:
        inside = INSIDE.get((one.place.partition("/")[0].partition(":")[0], one.error))
        return inside in SAYS or any(pattern(says).search(one.text) for says in SAYS)

    texts = [one for one in raised() if one.has_words and one.error not in NEVER_SEEN]
    assert len(texts) > 100, "they are not found any more"
    assert [f"{one.place} {one.error}: {one.text}" for one in texts if not has_row(one)] == []


def test_a_row_is_not_so_wide_that_it_holds_any_error() -> None:
    strangers = ("it does not work", "Pulsar error: Timeout", "column a: b", "no way: none", "x=1: y", "a, b: c (d)")
    assert [says for says in SAYS for text in strangers if pattern(says).search(text)] == []


@pytest.mark.parametrize("says", CASES, ids=lambda says: says[0])
async def test_an_error_says_what_its_row_says_and_the_way_out_is_one(
    says: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = await CASES[says](tmp_path, monkeypatch)
    assert len(texts) == len(says)
    for expected, text in zip(says, texts, strict=True):
        assert pattern(expected).search(text), text
        assert "\n" not in text, "one line holds the whole reason"


def test_options_of_others_name_what_there_is_instead() -> None:
    assert all(len(way) > 20 for way in INSTEAD.values())
