"""What one broker knows of bundles, and which bundles a namespace has."""

import pytest

from broker.names import Bundles
from broker.ownership import entries
from broker.ownership.bundle import Event
from broker.ownership.entries import Entries
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import do_nothing

SPACE = "public/default"
WHOLE, HALVES = Bundles.equal(1), Bundles.equal(2)


def made() -> Entries:
    return Entries(MemoryStore(LoopClock()), LoopClock())


def own(known: Entries, bundles: Bundles) -> None:
    for text in bundles.ranges:
        with known.using(f"{SPACE}/{text}") as entry:
            entry.own(do_nothing)


async def test_a_bundle_is_known_while_it_is_ours_or_somebody_uses_it() -> None:
    known = made()
    with known.using("t/n/b") as entry, known.using("t/n/b") as same:
        assert same is entry is known.get("t/n/b")
    assert known.get("t/n/b") is None
    with known.using("t/n/b") as entry:
        entry.own(do_nothing)
    assert known.get("t/n/b") is entry
    with known.using("t/n/b"):
        entry.move(Event.LOST)
        assert known.get("t/n/b") is entry
    assert list(known) == []


async def test_older_bundles_do_not_take_the_place_of_those_that_are_served() -> None:
    known = made()
    known.keep_bundles(SPACE, HALVES)
    own(known, HALVES)
    assert known.keep_bundles(SPACE, WHOLE) is HALVES
    assert known.names_in(SPACE) == [f"{SPACE}/{text}" for text in HALVES.ranges]


async def test_newer_bundles_do() -> None:
    known = made()
    known.keep_bundles(SPACE, WHOLE)
    assert known.keep_bundles(SPACE, HALVES) is HALVES
    assert known.keep_bundles(SPACE, WHOLE) is WHOLE, "nothing of it is served here"


async def test_bundles_that_may_not_be_ours_any_more_do_not_count() -> None:
    known = made()
    known.keep_bundles(SPACE, HALVES)
    own(known, HALVES)
    for entry in known:
        entry.is_resuming = True
    assert known.keep_bundles(SPACE, WHOLE) is WHOLE


async def test_of_very_many_namespaces_those_with_bundles_in_use_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entries, "NAMESPACES_MAX", 3)
    known = made()
    known.keep_bundles(SPACE, HALVES)
    own(known, HALVES)
    for number in range(10):
        known.keep_bundles(f"t/n{number}", WHOLE)
    assert known.names_in(SPACE)
    assert sum(bool(known.names_in(f"t/n{number}")) for number in range(10)) <= 3
    assert known.names_in("t/n9")
