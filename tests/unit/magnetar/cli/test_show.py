"""Tables and progress bars on a terminal, and plain output elsewhere."""

import io
import re
import sys

import pytest

from magnetar.cli.common import output as show


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def drawn_after(patience_s: float, monkeypatch: pytest.MonkeyPatch, stream: io.StringIO) -> str:
    monkeypatch.setattr(show, "PATIENCE_S", patience_s)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    with show.progress(range(3), "entries") as items:
        assert list(items) == [0, 1, 2]
    with show.bar("ledgers") as bar:
        bar.update(7, 10, "old ledgers")
        bar.step()
    return stream.getvalue()


def test_what_lasts_has_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    said = drawn_after(-1.0, monkeypatch, Terminal())
    assert "entries" in said
    assert "100%" in said
    assert "old ledgers" in said
    assert "80%" in said


def test_what_is_quick_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "ledgers" not in drawn_after(60.0, monkeypatch, Terminal())


def test_scripts_see_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert drawn_after(-1.0, monkeypatch, io.StringIO()) == ""


def test_a_table_is_the_same_on_a_terminal_and_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    said = []
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        show.table(("name", "entries"), [("one", "7"), ("[bold]two", "12")])
        said.append(re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue()).split())
    assert said[0] == said[1] == ["name", "entries", "one", "7", "[bold]two", "12"]
