from collections.abc import Iterator
from dataclasses import dataclass, fields

import pytest

from magnetar_core.runtime.config import Group, load, parse_properties, setting
from magnetar_core.runtime.types import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    port: int = setting("bookiePort", 3181, help="port of the storage protocol")
    directories: tuple[str, ...] = setting("ledgerDirectories", help="where ledgers are stored")
    sync: bool = setting("journalSyncData", True, help="sync before each answer")
    name: str | None = setting("bookieId", None, help="stable name")

    def problems(self) -> Iterator[str]:
        if not self.sync:
            yield "journalSyncData=false is not possible: an answer always means that data are on disk"


def test_names_in_files_are_apaches() -> None:
    values = parse_properties("# c\nbookiePort=4000\nledgerDirectories = /a, /b\n\nbookieId=\n", "f.conf")
    assert load(Example, values) == Example(port=4000, directories=("/a", "/b"))


def test_the_environment_wins_over_the_file() -> None:
    values = {"ledgerDirectories": "/a", "bookiePort": "1"}
    assert load(Example, values, {"PULSAR_PREFIX_bookiePort": "2", "HOME": "/"}).port == 2


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(Example, {"bookiPort": "1", "bookiePort": "many", "journalSyncData": "perhaps"})
    text = str(raised.value)
    assert "unknown setting bookiPort; did you mean bookiePort?" in text
    assert "bookiePort=many" in text
    assert "journalSyncData=perhaps: expected true or false" in text
    assert "ledgerDirectories is not set" in text


def test_a_value_says_what_is_wrong_with_it() -> None:
    with pytest.raises(ConfigurationError, match="always means that data are on disk"):
        load(Example, {"ledgerDirectories": "/a", "journalSyncData": "false"})


def test_settings_without_meaning_here_are_accepted_by_name() -> None:
    load(Example, {"ledgerDirectories": "/a", "gcLogging": "x"}, ignored=frozenset({"gcLogging"}))


NUMBERS_WITHOUT_MEANING = {"numThreads": "number", "gcLogging": "flag", "class": "text", "bookiePort": "flag"}


def test_what_has_no_meaning_here_has_a_value_of_its_kind() -> None:
    """What Apache's servers would refuse is a slip here, too."""
    good = {"ledgerDirectories": "/a", "numThreads": "-1.5", "gcLogging": "TRUE", "class": "abc", "bookiePort": "7"}
    assert load(Example, good, ignored=NUMBERS_WITHOUT_MEANING).port == 7
    assert load(
        Example, {"ledgerDirectories": "/a", "numThreads": "", "gcLogging": " "}, ignored=NUMBERS_WITHOUT_MEANING
    )
    with pytest.raises(ConfigurationError) as raised:
        load(Example, {**good, "numThreads": "abc", "gcLogging": "1"}, ignored=NUMBERS_WITHOUT_MEANING)
    assert str(raised.value) == "numThreads=abc: expected a number\ngcLogging=1: expected true or false"


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    wait_ms: int = setting("newName", 1, help="a wait", aliases=("oldName",))
    share: float = setting("share", 0.5, help="a share")
    rounds: int | float = setting("rounds", 1, help="rounds")


def test_wrong_numbers_are_told_in_words_for_people() -> None:
    with pytest.raises(ConfigurationError) as raised:
        load(Renamed, {"newName": "1.5", "share": "half", "rounds": "x"})
    assert str(raised.value).splitlines() == [
        "newName=1.5: expected a whole number",
        "share=half: expected a number",
        "rounds=x: expected a number",
    ]


def test_of_a_name_with_two_values_the_last_counts_and_both_lines_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """As with Apache's servers: people append to the shipped file."""
    assert parse_properties("a=1\nb=2\na = 1\n", "f.conf") == {"a": "1", "b": "2"}
    assert not caplog.messages
    assert parse_properties("a=1\nb=2\na=3\n", "f.conf") == {"a": "3", "b": "2"}
    assert caplog.messages == ["f.conf line 3: a stands in line 1 already, with another value; this one counts"]


def test_of_a_setting_under_two_names_the_newer_counts(caplog: pytest.LogCaptureFixture) -> None:
    assert load(Renamed, {"oldName": "3"}).wait_ms == load(Renamed, {"oldName": "3", "newName": "3"}).wait_ms == 3
    assert load(Renamed, {"newName": "3"}, {"PULSAR_PREFIX_oldName": "4"}).wait_ms == 4, "the environment wins"
    assert load(Renamed, {"oldName": "3"}, overrides={"newName": "5"}).wait_ms == 5
    assert load(Renamed, {"oldName": "", "newName": "5"}).wait_ms == 5
    assert not caplog.messages
    for both in ({"oldName": "3", "newName": "4"}, {"newName": "4", "oldName": "3"}):
        assert load(Renamed, both).wait_ms == 4
    assert set(caplog.messages) == {"oldName=3 is an older name of newName, and 4 counts"}


def test_a_line_without_equals_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"f\.conf line 2"):
        parse_properties("a=1\nnonsense\n", "f.conf")


@pytest.mark.parametrize(("text", "value"), [("2", 2), ("0.02", 0.02), (" 3 ", 3), ("", 1)])
def test_a_number_that_is_whole_with_apache_may_be_a_fraction_and_is_shown_as_written(text: str, value: float) -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Rounds:
        minutes: int | float = setting("interval", 1, help="time between two rounds", least=0.01)

    found = load(Rounds, {"interval": text}).minutes
    assert (found, type(found)) == (value, type(value))
    with pytest.raises(ConfigurationError, match="interval=often"):
        load(Rounds, {"interval": "often"})
    with pytest.raises(ConfigurationError, match=r"must be 0\.01 to"):
        load(Rounds, {"interval": "0"})


def test_a_value_that_is_not_among_the_choices_is_refused_with_them() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Chosen:
        color: str = setting("color", "red", help="of the page", choices=("red", "blue"))
        sizes: tuple[int, ...] = setting("sizes", (), help="taken", choices=(1, 2), why="others do not fit")

    assert load(Chosen, {"color": "blue", "sizes": "2,1"}).sizes == (2, 1)
    with pytest.raises(ConfigurationError) as raised:
        load(Chosen, {"color": "Blue", "sizes": "1,3"})
    assert str(raised.value).splitlines() == [
        "color=Blue: expected one of red, blue",
        "sizes=3: expected some of 1, 2; others do not fit",
    ]


def test_a_configuration_has_the_rules_of_all_its_groups() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Low(Group):
        low: int = setting("low", 0, help="the lower one")

        def problems(self) -> Iterator[str]:
            yield from super().problems()
            if self.low == 1:
                yield "low is odd"

    @dataclass(frozen=True, kw_only=True)
    class High(Low):
        high: int = setting("high", 2, help="the higher one")

        def problems(self) -> Iterator[str]:
            yield from super().problems()
            if self.low > self.high:
                yield "low is above high"

    @dataclass(frozen=True, kw_only=True)
    class Other(Group):
        other: int = setting("other", 3, help="another one")

        def problems(self) -> Iterator[str]:
            yield from super().problems()
            if self.other == 1:
                yield "other is odd"

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Whole(Other, High, Low):
        """Settings in the order of their groups, the last one first."""

    assert [field.name for field in fields(Whole)] == ["low", "high", "other"]
    with pytest.raises(ConfigurationError) as raised:
        load(Whole, {"low": "1", "high": "0", "other": "1"})
    assert str(raised.value).splitlines() == ["low is odd", "low is above high", "other is odd"]


def test_an_older_name_means_the_same_setting() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Journal:
        directories: tuple[str, ...] = setting("journalDirectories", help="where", aliases=("journalDirectory",))

    assert load(Journal, {"journalDirectory": "/j"}).directories == ("/j",)
