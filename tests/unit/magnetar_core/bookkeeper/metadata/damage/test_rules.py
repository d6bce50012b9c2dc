"""Reports of damage: what is taken, how they are merged, who closes them."""

import pytest

from magnetar_core.bookkeeper.metadata.damage import rules
from magnetar_core.bookkeeper.metadata.damage.rules import (
    BadReport,
    Damage,
    Kind,
    Range,
    Report,
    Source,
    Stage,
    WrongStage,
)
from magnetar_core.runtime.types import Corruption


def damage(*ranges: Range, name: str = "b-1", text: str = "gone") -> Damage:
    return Damage(7, Kind.DATA_LOSS, Source.SCRUB, name, text, ranges)


def report(*ranges: Range) -> Report:
    return rules.posted(None, rules.checked(damage(*ranges)), 1, 10)


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (damage()._replace(ledger_id=-1), "no id of a ledger"),
        (damage()._replace(ledger_id=2**63), "no id of a ledger"),
        (damage((3, 2)), "no range"),
        (damage((-1, 2)), "no range"),
        (damage(name=""), "a name of 1 to 200"),
        (damage(name="x" * (rules.NAME_CHARS_MAX + 1)), "a name of 1 to 200"),
    ],
)
def test_what_is_no_report_is_refused(found: Damage, why: str) -> None:
    with pytest.raises(BadReport, match=why):
        rules.checked(found)


def test_a_text_has_so_many_characters() -> None:
    assert rules.checked(damage(text="a\n b" + "x" * 1_000)).text == "a b" + "x" * (rules.TEXT_CHARS_MAX - 3)


def test_ranges_that_touch_are_one_and_so_many_are_kept() -> None:
    assert rules.joined([(5, 6), (0, 1), (2, 3), (6, 9)]) == ((0, 3), (5, 9))
    many = [(at, at) for at in range(0, 3 * rules.RANGES_MAX, 2)]
    assert rules.joined(many) == tuple(many[: rules.RANGES_MAX])


def test_posted_again_it_is_counted_and_knows_more_entries() -> None:
    found = rules.posted(report((0, 3)), damage((4, 5), text="more"), 3, 20)
    assert (found.count, found.first_ms, found.last_ms, found.ranges, found.text) == (4, 10, 20, ((0, 5),), "more")


def test_the_id_is_the_same_for_the_same_reporter_only() -> None:
    one = report().id
    assert rules.posted(report(), damage(), 1, 20).id == one
    others = {
        rules.report_id(8, Kind.DATA_LOSS, Source.SCRUB, "b-1"),
        rules.report_id(7, Kind.BAD_LEDGER, Source.SCRUB, "b-1"),
        rules.report_id(7, Kind.DATA_LOSS, Source.CLIENT, "b-1"),
        rules.report_id(7, Kind.DATA_LOSS, Source.SCRUB, "b-2"),
    }
    assert len(others | {one}) == 5
    assert all(map(rules.is_id, others))
    assert not any(map(rules.is_id, ("", "..", "7/x", one + "/x", one.upper())))


@pytest.mark.parametrize("found", Stage)
@pytest.mark.parametrize("to", Stage)
def test_the_stages_of_a_report(found: Stage, to: Stage) -> None:
    before = report() if found is Stage.OPEN else rules.moved(report(), found, "ann", "", 20)
    if to is Stage.OPEN or found is Stage.MENDED:
        with pytest.raises(WrongStage):
            rules.moved(before, to, "bob", "looked", 30)
    else:
        after = rules.moved(before, to, "bob", "looked", 30)
        assert (after.stage, after.by, after.note, after.changed_ms) == (to, "bob", "looked", 30)


def test_what_is_mended_and_posted_again_is_open_and_what_is_acknowledged_stays_that() -> None:
    mended = rules.moved(report(), Stage.MENDED, "ann", "copied back", 20)
    again = rules.posted(mended, damage(), 1, 30)
    assert (again.stage, again.note) == (Stage.OPEN, "it was called mended by ann, and was reported again")
    seen = rules.moved(report(), Stage.ACKNOWLEDGED, "ann", "I look at it", 20)
    assert rules.posted(seen, damage(), 1, 30).stage is Stage.ACKNOWLEDGED


def test_the_one_that_was_mended_first_goes_first() -> None:
    one = rules.moved(report(), Stage.MENDED, "ann", "", 20)
    two = rules.moved(report(), Stage.MENDED, "ann", "", 19)
    assert rules.first_to_go([report(), one, two]) is two
    assert rules.first_to_go([report()]) is None


def test_a_report_comes_back_as_it_was_written() -> None:
    found = rules.moved(report((0, 1), (4, 4)), Stage.ACKNOWLEDGED, "ann", "I look at it", 20)
    assert rules.decode(rules.encode(found)) == found
    for value in (b"", b"[]", b'{"id": "x"}', b"{"):
        with pytest.raises(Corruption):
            rules.decode(value)
