"""A bookie whose directories an operator has moved to other paths."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.disks.cookie import Cookie, CookieMismatch, is_moved, is_new_bookie, order_problem
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.files import OsFiles
from tests.support.bookie_disks import stored_entry
from tests.support.serving import CONFIG, Wire

OLD = Cookie("b1", ("/old/j",), ("/old/l", "/old/m"), "the-cluster")
NEW = replace(OLD, journal_directories=("/new/j",), ledger_directories=("/new/l", "/new/m"))
FULL = {"/new/j": True, "/new/l": True, "/new/m": True}


def on_disk(*cookies: Cookie | None) -> dict[str, Cookie | None]:
    return dict(zip(FULL, cookies, strict=True))


def test_directories_that_differ_by_their_paths_only_were_moved() -> None:
    assert is_moved(NEW, OLD, on_disk(OLD, OLD, OLD))
    # A start that was cut short has written some of the new cookies; the one in the store comes last.
    assert is_moved(NEW, OLD, on_disk(NEW, OLD, OLD))
    assert is_moved(NEW, OLD, on_disk(NEW, NEW, NEW))
    assert not is_moved(NEW, NEW, on_disk(NEW, NEW, NEW))
    assert not is_moved(NEW, None, on_disk(None, None, None)), "whether it is new is asked elsewhere"


@pytest.mark.parametrize(
    ("stored", "there", "reason"),
    [
        (OLD, on_disk(OLD, None, OLD), "/new/l has no cookie"),
        (OLD, on_disk(OLD, OLD, replace(OLD, bookie_id="b2")), "/new/m: bookie id b2, expected b1"),
        (OLD, on_disk(OLD, OLD, replace(OLD, instance_id="other")), "/new/m: cluster other, expected the-cluster"),
        (replace(OLD, instance_id="other"), on_disk(OLD, OLD, OLD), "the metadata store: cluster other"),
        (OLD, on_disk(OLD, OLD, replace(OLD, ledger_directories=("/x", "/y"))), "/new/m belongs to other directories"),
        (replace(OLD, ledger_directories=("/old/l",)), on_disk(OLD, OLD, OLD), "ledger directories /old/l, expected"),
        (
            replace(OLD, journal_directories=("/a", "/b")),
            on_disk(OLD, OLD, OLD),
            "journal directories /a, /b, expected",
        ),
    ],
)
def test_others_were_not(stored: Cookie, there: dict[str, Cookie | None], reason: str) -> None:
    with pytest.raises(CookieMismatch, match=re.escape(reason)):
        is_moved(NEW, stored, there)
    with pytest.raises(CookieMismatch) as refused:
        is_new_bookie(NEW, stored, there, FULL)
    assert "--moved" not in str(refused.value)


def test_a_bookie_says_how_moved_directories_are_started() -> None:
    with pytest.raises(CookieMismatch, match="start it once with --moved"):
        is_new_bookie(NEW, OLD, on_disk(OLD, OLD, OLD), FULL)


def test_the_order_of_ledger_directories_is_seen_by_the_ledgers_in_them() -> None:
    assert order_problem(["/l", "/m"], [[0, 2, 4], [1, 3]]) == ""
    assert order_problem(["/l", "/m"], [[], []]) == ""
    assert order_problem(["/m", "/l"], [[], [0]]) == (
        "/l was number 1 of ledgerDirectories, and is number 2; name them in the order that they had"
    )


async def test_a_moved_bookie_has_its_entries_and_another_order_is_refused(tmp_path: Path) -> None:
    store = MemoryStore(LoopClock())
    await initialise_cluster(store)

    def bookie(place: str, *names: str, moved: bool = False) -> Bookie:
        config: BookieConfig = replace(
            CONFIG,
            journal_directories=(str(tmp_path / place / "journal"),),
            ledger_directories=tuple(str(tmp_path / place / name) for name in names),
            disk_usage_full=0.999,
        )
        return Bookie(config, store, LoopClock(), OsFiles(), is_moved=moved)

    first = bookie("old", "l", "m")
    await first.start()
    wire = await Wire.connect(first)
    for ledger_id in (2, 5):
        assert await wire.add(stored_entry(ledger_id, 0)) == 0
    wire.close()
    await first.stop()
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(CookieMismatch, match="start it once with --moved"):
        await bookie("new", "l", "m").start()
    with pytest.raises(CookieMismatch, match="in the order that they had"):
        await bookie("new", "m", "l", moved=True).start()
    for moved in (True, False):
        second = bookie("new", "l", "m", moved=moved)
        await second.start()
        wire = await Wire.connect(second)
        for ledger_id in (2, 5):
            assert await wire.read(ledger_id, 0) == stored_entry(ledger_id, 0)
        wire.close()
        await second.stop()
