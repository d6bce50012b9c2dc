from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import pytest

from bookie.admin.bodies import plain, readable_bytes, settings_json
from bookie.config import BookieConfig


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_000, "1000(1KB)"),
        (1_200, "1200(1.2KB)"),
        (76_677_775_360, "76677775360(76.677GB)"),
        (270_553_174_016, "270553174016(270.553GB)"),
        (1_082_212_696_064, "1082212696064(1.082TB)"),
        (5_000_000_000_000_000, "5000000000000000(5000TB)"),
    ],
)
def test_sizes_are_written_as_apache_does(size_bytes: int, text: str) -> None:
    assert readable_bytes(size_bytes) == text


def test_values_become_objects() -> None:
    class Colour(StrEnum):
        RED = "red"

    class Place(NamedTuple):
        ledger_id: int

    @dataclass(frozen=True)
    class Thing:
        is_running: bool
        last_seen_ms: int | None
        places: tuple[Place, ...]
        texts: dict[Colour, str]

    assert plain(Thing(True, None, (Place(1),), {Colour.RED: "x"})) == {
        "running": True,
        "lastSeenMs": None,
        "places": [{"ledgerId": 1}],
        "texts": {"red": "x"},
    }
    with pytest.raises(TypeError):
        plain(object())


def test_settings_are_text_under_their_names() -> None:
    found = settings_json(BookieConfig(journal_directories=("/a", "/b")))
    assert found["journalDirectories"] == "/a,/b"
    assert found["httpServerEnabled"] == "false"
    assert found["bookiePort"] == "3181"
    assert "bookieId" not in found
