"""`magnetar autorecovery reports …` as a person types it, over a metadata store in a folder."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from magnetar.cli import main as cli
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports
from magnetar_core.bookkeeper.metadata.damage.rules import Damage, Kind, Report, Source
from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.clock import LoopClock


class Place:
    """A cluster's metadata store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def post(self, ledger_id: int, text: str) -> Report:
        async def go() -> Report:
            store = await EmbeddedStore.open(self.folder, LoopClock())
            try:
                damage = Damage(ledger_id, Kind.DATA_LOSS, Source.SCRUB, "b-1", text, ((0, 3), (9, 9)))
                return await DamageReports(store).post(damage, LoopClock().wall_ms())
            finally:
                await store.close()

        return asyncio.run(go())

    def run(self, *arguments: str) -> Result:
        return self.type("autorecovery", "reports", *arguments)

    def type(self, *words: str) -> Result:
        found = CliRunner().invoke(cli.main, [*words, "--metadata", f"rocksdb:{self.folder}"])
        assert found.exception is None or isinstance(found.exception, SystemExit), found.exception
        return found


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path / "metadata")
    place.post(0, "first")
    return place


def test_reports_are_listed_acknowledged_and_mended(place: Place) -> None:
    report = place.post(7, "no other bookie has it")
    found = place.run("list", "--ledger", "7")
    assert found.exit_code == 2
    assert "scrub b-1" in found.stdout
    assert "0 to 3, 9" in found.stdout
    assert "no other bookie has it" in found.stdout
    found = place.run("acknowledge", report.id, "--note", "disk is being read")
    assert (found.exit_code, found.stdout) == (0, f"report {report.id} is acknowledged\n")
    found = place.run("list", "--ledger", "7")
    assert found.exit_code == 0
    assert "disk is being read" in found.stdout
    told = json.loads(place.run("mend", report.id, "--note", "copied back", "--json").stdout)
    assert (told["state"], told["note"], told["ledger_id"]) == ("mended", "copied back", 7)
    listed = json.loads(place.run("list", "--json").stdout)
    assert [(one["ledger_id"], one["state"]) for one in listed] == [(0, "open"), (7, "mended")]
    assert json.loads(place.run("list", "--state", "mended", "--json").stdout) == [told]


def test_what_a_standalone_that_runs_has_is_shown_and_not_changed(place: Place) -> None:
    async def hold() -> None:
        store = await EmbeddedStore.open(place.folder, LoopClock())
        try:
            await asyncio.to_thread(look)
        finally:
            await store.close()

    def look() -> None:
        (report,) = json.loads(place.run("list", "--json").stdout)
        for shown in ("status", "list", "delay"):
            found = place.type("autorecovery", shown)
            assert found.exit_code == 0, found.output
        for words in ("reports mend " + report["id"], "disable", "delay 5"):
            refused = place.type("autorecovery", *words.split())
            assert refused.exit_code != 0
            assert "is in use by another process: stop it" in refused.output

    asyncio.run(hold())


def test_what_is_not_there_or_mended_already_is_refused(place: Place) -> None:
    assert place.run("list", "--ledger", "5").stdout == "there are no such reports\n"
    refused = place.run("mend", "x")
    assert refused.exit_code != 0
    assert "no report has the id 'x'" in refused.output
    (report,) = json.loads(place.run("list", "--json").stdout)
    place.run("mend", report["id"])
    refused = place.run("acknowledge", report["id"])
    assert refused.exit_code != 0
    assert "it is mended already" in refused.output
