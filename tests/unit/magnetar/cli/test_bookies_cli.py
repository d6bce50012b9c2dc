"""`magnetar bookies …` as a person types it, over a metadata store in a folder; the auditor's part is played."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from autorecovery.lifecycle import retirement
from autorecovery.lifecycle.turning import TurnedBookies
from magnetar.cli import bookies as command
from magnetar.cli import main as cli
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import Segment, ledger_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, initialise_cluster
from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.clock import LoopClock
from tests.support.bookie_world import ledger_metadata

Change = Callable[[EmbeddedStore], Coroutine[Any, Any, object]]


class Place:
    """A cluster of the bookies b-1 and b-2, none of which runs; ledgers 1 and 2 are on b-1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

        async def begin(store: EmbeddedStore) -> None:
            await initialise_cluster(store)
            for bookie in ("b-1", "b-2"):
                await store.put(cookie_path("/ledgers", bookie), b"cookie")
            for ledger_id in (1, 2):
                await LedgerStore(store).create_with_id(ledger_id, ledger_metadata(segments=(Segment(0, ("b-1",)),)))

        self.change(begin)

    def change(self, work: Change) -> None:
        async def go() -> None:
            store = await EmbeddedStore.open(self.folder, LoopClock())
            try:
                await work(store)
            finally:
                await store.close()

        asyncio.run(go())

    def audit(self, to: State, *reasons: tuple[int, str]) -> None:
        self.change(lambda store: BookieStates(store).move("b-1", to, Actor.AUDITOR, "auditor", "", 7, reasons=reasons))

    def delete_ledgers(self) -> None:
        async def delete(store: EmbeddedStore) -> None:
            for ledger_id in (1, 2):
                await store.delete(ledger_path("/ledgers", ledger_id))

        self.change(delete)

    def run(self, *arguments: str) -> Result:
        found = CliRunner().invoke(cli.main, ["bookies", *arguments, "--metadata", f"rocksdb:{self.folder}"])
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "metadata")


def test_a_drain_is_begun_followed_and_called_off(place: Place) -> None:
    assert place.run("status").stdout == "every bookie is active\n"
    begun = place.run("drain", "b-1", "--why", "old disks")
    assert (begun.exit_code, begun.stdout) == (0, "b-1 is draining; `magnetar bookies status b-1 --wait` follows it\n")
    found = place.run("status", "b-1")
    assert found.exit_code == 3
    assert "old disks" in found.stdout
    assert "no auditor tells of it yet" in found.stdout
    assert [(one["bookie_id"], one["state"], one["life"]) for one in place.json("list")] == [
        ("b-1", "away", "draining"),
        ("b-2", "away", "active"),
    ]
    again = place.run("drain", "b-1")
    assert (again.exit_code, "it is draining already" in again.stderr) == (1, True)
    assert place.json("cancel", "b-1") == {"bookie": "b-1", "state": "active"}
    assert place.run("status", "b-1").exit_code == 0


def test_who_calls_a_drain_off_is_told_that_the_bookie_could_not_be_turned_back(place: Place) -> None:
    place.run("drain", "b-1")
    place.change(lambda store: TurnedBookies(store, "/ledgers").note("b-1"))
    found = place.run("cancel", "b-1")
    assert (found.exit_code, found.stdout) == (0, "b-1 is active\n")
    assert "b-1 was turned read-only for its drain" in found.stderr
    assert 'PUT /api/v1/bookie/state/readonly with {"readOnly": false}' in found.stderr
    place.run("drain", "b-1")
    assert place.json("cancel", "b-1") == {"bookie": "b-1", "state": "active"}, "it is tried once"


def test_what_the_auditor_tells_is_shown(place: Place) -> None:
    place.run("drain", "b-1")
    drains = {
        "b-1": {"phase": "copying", "problem": "", "ledgers": 8, "ledgers_left": 6, "bytes_left": 2_048,
                "ledgers_per_minute": 12.0, "eta_s": 30, "waiting": 1, "hopeless": 0}
    }  # fmt: skip
    facts = json.dumps({"is_auditor": True, "drains": drains}).encode()
    place.change(lambda store: store.put(f"{board.nodes_path('/ledgers')}/one", facts))
    told = "copying, 6 of 8 ledgers left, 2.0 KiB left, 12 ledgers a minute, 30 s to go, 1 waiting"
    assert told in place.run("status").stdout
    assert place.json("status", "b-1")[0]["progress"]["ledgers_left"] == 6


def test_waiting_ends_with_how_the_drain_ended(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "LOOK_S", 0.01)
    assert place.run("drain", "b-1", "--wait", "--timeout", "0.05").exit_code == 3
    place.audit(State.DRAINING_FAILED, (1, "no copy of entries 0 to 3"), (2, "no bookie"))
    found = place.run("status", "b-1", "--wait")
    assert found.exit_code == 2
    assert "  ledger 1: no copy of entries 0 to 3\n  ledger 2: no bookie\n" in found.stdout
    assert place.run("drain", "b-1", "--wait", "--timeout", "0").exit_code == 3
    place.audit(State.DRAINED)
    assert place.run("status", "b-1", "--wait").exit_code == 0


def test_ledgers_with_one_reason_are_told_in_one_line_and_many_are_counted(place: Place) -> None:
    place.run("drain", "b-1")
    many = [(number, "no bookie") for number in range(command.LEDGERS_NAMED + 3)]
    place.audit(State.DRAINING_FAILED, (100, "lost"), *many)
    found = place.run("status", "b-1")
    assert "  ledger 100: lost\n" in found.stdout
    assert "18, 19 and 3 more: no bookie\n" in found.stdout


def test_a_bookie_is_removed_only_when_it_is_drained_and_nothing_names_it(place: Place) -> None:
    refused = place.run("remove", "b-1", "--yes")
    assert refused.exit_code == 1
    assert "b-1 is active, and only a drained one can be removed; 2 ledgers name it" in refused.stderr
    place.run("drain", "b-1")
    place.audit(State.DRAINED)
    refused = place.run("remove", "b-1", "--yes", "--json")
    assert refused.exit_code == 1
    assert [one["ledger_id"] for one in json.loads(refused.stdout)["ledgers"]] == [1, 2]
    place.delete_ledgers()
    assert place.run("remove", "b-1", "--yes").stdout == "b-1 is removed\n"
    assert [one["bookie_id"] for one in place.json("list")] == ["b-2"]
    gone = place.run("drain", "b-1")
    assert (gone.exit_code, "known are: b-2" in gone.stderr) == (1, True)


def test_a_record_that_cannot_be_read_keeps_a_bookie(place: Place) -> None:
    """I60"""
    place.run("drain", "b-1")
    place.audit(State.DRAINED)
    place.delete_ledgers()
    place.change(lambda store: store.put(ledger_path("/ledgers", 3), b""))
    refused = place.run("remove", "b-1", "--yes")
    assert (refused.exit_code, "1 ledgers name it or cannot be read (3)" in refused.stderr) == (1, True)


@pytest.mark.parametrize(("where", "mode"), [("available", "writable"), ("available/readonly", "read-only")])
def test_a_bookie_that_runs_is_not_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch, where: str, mode: str
) -> None:
    monkeypatch.setattr(retirement, "SESSION_WAIT_S", 0.05)
    monkeypatch.setattr(retirement, "_SESSION_LOOK_S", 0.01)
    place.run("drain", "b-1")
    place.audit(State.DRAINED)
    place.delete_ledgers()
    place.change(lambda store: store.put(f"/ledgers/{where}/b-1", b""))
    refused = place.run("remove", "b-1", "--yes")
    assert (refused.exit_code, f"registered as {mode}: it runs still, so stop it first" in refused.stderr) == (1, True)
    assert f"registered as {mode}; waiting up to 0.05 s for that to end" in refused.stderr
    assert place.run("status").stdout.count("b-1") == 1, "it is still there"


def test_a_bookie_that_was_killed_is_removed_when_its_session_has_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retirement, "_SESSION_LOOK_S", 0.01)
    place.run("drain", "b-1")
    place.audit(State.DRAINED)
    place.delete_ledgers()
    looks = iter((frozenset({"b-1"}), frozenset({"b-1"})))

    async def read_only(directory: BookieDirectory) -> frozenset[str]:
        return next(looks, frozenset())

    monkeypatch.setattr(BookieDirectory, "read_read_only", read_only)
    removed = place.run("remove", "b-1", "--yes")
    assert (removed.exit_code, removed.stdout) == (0, "b-1 is removed\n")
    assert removed.stderr.count("waiting up to 45 s") == 1


def test_a_failed_drain_is_finished_by_hand_once_no_ledger_names_the_bookie(place: Place) -> None:
    assert place.run("finish", "b-1").exit_code == 1
    place.run("drain", "b-1")
    place.audit(State.DRAINING_FAILED, (1, "lost"))
    refused = place.run("finish", "b-1")
    assert (refused.exit_code, "still needed: 2 ledgers" in refused.stderr) == (1, True)
    place.delete_ledgers()
    assert place.json("finish", "b-1") == {"bookie": "b-1", "state": "drained"}
    assert place.run("remove", "b-1", "--yes").exit_code == 0


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("drain",), "Missing argument 'BOOKIE'"),
        (("status", "--wait"), "--wait needs a BOOKIE"),
        (("drain", "b-1", "--twist"), "No such option"),
        (("decommission", "b-1"), "bookies drain BOOKIE --wait"),
        (("remove", "b-1"), "add --yes"),
    ],
)
def test_who_asks_wrongly_gets_the_exit_code_of_a_refusal(place: Place, words: tuple[str, ...], text: str) -> None:
    found = place.run(*words)
    assert found.exit_code == 1
    assert text in found.stderr
