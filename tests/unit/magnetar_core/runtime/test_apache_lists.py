import sys
from pathlib import Path

import pytest

from magnetar_core.runtime.apache_lists import Listed, read_list

TEXT = """\
# What the file is about.

# removed by us;
# use another one
b=x
a=false

a=
c.d=e=f
"""


def test_a_comment_belongs_to_the_settings_below_it_up_to_an_empty_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "lists_of_a_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "some.conf").write_text(TEXT)
    monkeypatch.syspath_prepend(tmp_path)
    assert read_list("lists_of_a_test", "some.conf") == {
        "b": Listed(("x",), "removed by us; use another one"),
        "a": Listed(("false", ""), ""),
        "c.d": Listed(("e=f",), ""),
    }
    del sys.modules["lists_of_a_test"]


def test_a_value_is_on_a_list_whatever_its_case() -> None:
    listed = Listed(("False", ""), "")
    assert listed.has(" false")
    assert listed.has("")
    assert not listed.has("true")


@pytest.mark.parametrize(
    ("listed", "same", "other"),
    [
        ("0", ("0.0", " 0", "0e0"), ("1", "", "false")),
        ("0.85", (".85", "0.850"), ("0.8", "85")),
        ("64,5000", ("5000,64", "64, 5000"), ("64", "64,5000,1")),
        ("Prop1,prop2", ("prop2 , PROP1",), ("prop1", "prop1,prop2,prop3")),
        ("", (" ",), ("0", "a")),
    ],
)
def test_values_are_compared_by_what_they_mean(listed: str, same: tuple[str, ...], other: tuple[str, ...]) -> None:
    assert all(Listed((listed,), "").has(value) for value in same)
    assert not any(Listed((listed,), "").has(value) for value in other)
