"""`magnetar bookie …` as a person types it, against a bookie in this process."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from magnetar.cli import main as cli
from magnetar.cli.bookie import asking, texts
from magnetar.cli.common import output as show
from tests.support.bookie_admin_world import Client, administered
from tests.support.lifecycle import cancel, drain
from tests.support.serving import BookieMachines
from tests.support.waiting import eventually
from tests.unit.bookie.admin.test_operations import new_ledger

Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def world() -> BookieMachines:
    return BookieMachines()


@pytest.fixture
async def admin(world: BookieMachines) -> AsyncIterator[Client]:
    async with administered(world) as client:
        yield client


@pytest.fixture
def run(admin: Client, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(asking, "LOOK_S", 0.01)
    monkeypatch.setenv("MAGNETAR_BOOKIE_ADMIN_URL", admin.url)

    async def invoke(*arguments: str, **options: Any) -> Result:
        return await asyncio.to_thread(lambda: CliRunner().invoke(cli.main, ["bookie", *arguments], **options))

    return invoke


def test_a_short_operation_is_asked_about_sooner_than_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("time.sleep", waited.append)
    pauses = asking.Pauses()
    for _ in range(7):
        pauses.wait()
    assert waited == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5]


@pytest.mark.parametrize(
    "words",
    [
        "status", "info", "sanity", "disks", "disks --files", "marks", "config", "list", "list --space", "cluster",
        "cookies", "readonly", "gc", "scrub", "ledgers", "ledgers --here", "ledgers --metadata", "flush",
        "suspend-compaction", "resume-compaction --minor", "gc run --wait", "compact --wait", "compact --index --wait",
        "scrub run --wait", "rebuild-index --yes", "rebuild-index --yes --wait", "ledger show 0",
        "ledger delete 0 --yes",
    ],
)  # fmt: skip
async def test_commands_speak_to_people_and_to_scripts(world: BookieMachines, run: Run, words: str) -> None:
    await new_ledger(world, 2)
    found = await run(*words.split())
    assert (found.exit_code, found.exception) == (0, None), found.output
    assert found.stdout.strip()
    json.loads((await run(*words.split(), "--json")).stdout if "delete" not in words else "0")


async def test_a_ledger_is_shown_and_read(world: BookieMachines, run: Run) -> None:
    ledger_id = await new_ledger(world, 3)
    shown = (await run("ledgers", "--metadata")).stdout.splitlines()
    assert shown[1].split()[:6] == [str(ledger_id), "closed", "3", "21", "B", "1/1/1"]
    assert (await run("ledgers")).stdout == f"{ledger_id}\n"
    assert (await run("ledger", "read", str(ledger_id), "--from", "1")).stdout == "1  entry 1\n2  entry 2\n"
    lines = (await run("ledger", "read", str(ledger_id), "--to", "0", "--json")).stdout.splitlines()
    assert [json.loads(line) for line in lines] == [{"entry": 0, "payload": "entry 0"}]


async def test_a_ledger_is_deleted_only_after_a_yes(world: BookieMachines, run: Run) -> None:
    ledger_id = str(await new_ledger(world, 1))
    refused = await run("ledger", "delete", ledger_id, input="y\n")
    assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True), "a pipe is nobody who can be asked"
    assert (await run("ledger", "show", ledger_id)).exit_code == 0
    assert (await run("ledger", "delete", ledger_id, "--yes")).exit_code == 0
    assert (await run("ledger", "show", ledger_id)).exit_code == 2


async def test_the_index_of_a_bookie_that_runs_is_rebuilt_after_a_yes(
    world: BookieMachines, admin: Client, run: Run
) -> None:
    await new_ledger(world, 3)
    refused = await run("rebuild-index", input="y\n")
    assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True), "a pipe is nobody who can be asked"
    assert admin.bookie.parts.rebuild.status().rebuilds == 0
    found = await run("rebuild-index", "--wait", "--json", "--yes")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["rebuilds"] == 1
    for words in (["--ledgers-too"], ["--config", "b.conf", "--json"]):
        assert (await run("rebuild-index", "--yes", *words)).exit_code == 2


async def test_entries_that_may_be_missing_are_an_exit_code(world: BookieMachines, admin: Client, run: Run) -> None:
    await new_ledger(world, 3)
    admin.bookie.checkpointer.flush()
    await admin.bookie.checkpointer.finish()
    (index,) = world.indexes.values()
    index.put_locations([(0, 1, 99 << 32 | 5000), (0, 3, 99 << 32 | 5000)])
    found = await run("rebuild-index", "--yes", "--wait")
    assert found.exit_code == 2
    assert "1 entries that the index names and no log has" in found.stdout
    assert "ledger 0: 1 entries from 3 on are in no log any more" in found.stdout


async def test_the_status_tells_how_many_ledgers_are_to_be_checked(
    admin: Client, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "to be checked" not in (await run("status")).stdout
    integrity = admin.bookie.parts.integrity
    checking = replace(integrity.status(), is_needed=True, ledgers_left=7)
    monkeypatch.setattr(type(integrity), "status", lambda self: checking)
    assert "7 ledgers are still to be checked" in (await run("status")).stdout


async def test_read_only_is_switched_and_explained(world: BookieMachines, admin: Client, run: Run) -> None:
    await run("readonly", "on", "--detail", "a new disk")
    await drain(world.store, "bookie-1")
    await eventually(lambda: len(admin.bookie.operations.state().reasons) == 2)
    status = (await run("status")).stdout
    assert "operator: a new disk" in status
    assert (await run("readonly")).stdout.splitlines() == [
        "read-only",
        "  operator (a new disk): ends with `magnetar bookie readonly off`",
        "  draining (me): ends with `magnetar bookies cancel`, before it is drained or afterwards",
    ]
    found = await run("readonly", "off", "--json")
    assert json.loads(found.stdout) == {"readOnly": True, "reasons": {"draining": "me"}}
    await cancel(world.store, "bookie-1")
    await eventually(lambda: not admin.bookie.is_read_only)
    assert (await run("readonly")).stdout == "writable\n"


async def test_a_bookie_that_does_not_serve_is_an_exit_code(admin: Client, run: Run) -> None:
    admin.bookie.operations._lifecycle.failure = OSError("the disk is gone")
    found = await run("status")
    assert found.exit_code == 2
    assert "failed: the disk is gone" in found.stdout


async def test_who_does_not_answer_is_named(run: Run) -> None:
    found = await run("status", "--admin-url", "http://127.0.0.1:1")
    assert found.exit_code == 2
    assert found.stderr.startswith("magnetar: no bookie answers at http://127.0.0.1:1/")


async def test_metrics_come_as_they_are(run: Run) -> None:
    assert "bookie_SERVER_STATUS 1.0" in (await run("metrics")).stdout.splitlines()


def test_a_file_of_settings_runs_a_bookie(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def run_bookie(path: Any, _: Any, *, is_moved: bool) -> int:
        return (8 if is_moved else 7) if path == tmp_path / "b.conf" else 1

    monkeypatch.setattr("magnetar.processes.servers.run_bookie", run_bookie)
    assert CliRunner().invoke(cli.main, ["bookie", "--config", str(tmp_path / "b.conf")]).exit_code == 7
    assert CliRunner().invoke(cli.main, ["bookie", "--config", str(tmp_path / "b.conf"), "--moved"]).exit_code == 8
    assert "--moved runs a bookie" in CliRunner().invoke(cli.main, ["bookie", "--moved", "status"]).stderr
    found = CliRunner().invoke(cli.main, ["bookie", "--config", str(tmp_path / "b.conf"), "status"])
    assert found.exit_code == 2
    assert "--admin-url" in found.stderr


def test_control_characters_of_entries_do_not_reach_the_terminal() -> None:
    assert texts.printable("a\x1b[2Jb\n") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.34, "340 ms"), (12, "12 s"), (300, "5 min"), (3 * 3600, "3 h"), (3 * 86_400, "3 days")]
)
def test_times_have_the_unit_that_fits(seconds: float, text: str) -> None:
    assert show.duration(seconds) == text


def test_shares_are_drawn() -> None:
    assert show.share(42, 100) == "[####------] 42 %"
    assert show.share(0, 0) == "-"


async def test_a_bookie_that_was_just_killed_is_named_with_its_copies(world: BookieMachines, run: Run) -> None:
    """It is registered until its session ends, and nobody has marked a ledger."""
    assert "copies         none is known to be missing" in (await run("cluster")).stdout
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        silent = f"127.0.0.1:{probe.getsockname()[1]}"  # nobody listens there
    await world.store.put(f"/ledgers/available/{silent}", b"")
    await world.store.put("/ledgers/cookies/gone", b"")
    text = (await run("cluster")).stdout
    assert f"{silent} does not answer (" in text
    assert "gone is away: its copies cannot be read; `magnetar doctor` tells which ledgers" in text
    assert "none is known to be missing" not in text
    found = json.loads((await run("cluster", "--json")).stdout)
    assert (list(found["silent"]), found["away"]) == ([silent], ["gone"])
    assert found["unavailableBookiesCount"] == 1
