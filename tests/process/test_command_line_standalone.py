"""The command line beside a standalone, which holds its metadata itself."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.http_fake import http_fake
from tests.support.pages import blocks_of
from tests.support.processes import Standalone, until
from tests.support.shell import TIMEOUT_S, run_command
from tests.support.warm import warm_folder

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]


class Typed:
    """Types commands with the addresses of a standalone's broker, and nothing else."""

    def __init__(self, standalone: Standalone) -> None:
        self.standalone = standalone
        addresses = {"MAGNETAR_ADMIN_URL": standalone.admin_url, "MAGNETAR_SERVICE_URL": standalone.service_url}
        self.environment = {**os.environ, **addresses}

    def run(self, *arguments: str, code: int = 0, **options: Any) -> "subprocess.CompletedProcess[str]":
        found = run_command(*arguments, env=self.environment, **options)
        assert found.returncode == code, (arguments, found.stdout, found.stderr)
        return found

    def json(self, *arguments: str, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture(scope="module")
def typed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Typed]:
    with Standalone(tmp_path_factory.mktemp("cli") / "data") as standalone:
        yield Typed(standalone)


def test_a_topic_is_compacted_and_read_by_its_keys(typed: Typed) -> None:
    typed.run("topics", "create", "states", "--partitions", "2")
    lines = "".join(f"k{key}={number}\n" for number in range(5) for key in range(6))
    typed.run("produce", "states", "-K", "=", "-f", "-", input=lines + "k5=\n")
    told = typed.json("topics", "compact", "states", "--wait")
    assert [one["status"] for one in told["partitions"].values()] == ["SUCCESS"] * 2
    shown = typed.run("read", "states", "--compacted", "--json").stdout.splitlines()
    assert sorted((one["key"], one["value"]) for one in map(json.loads, shown)) == [
        (f"k{key}", "4") for key in range(5)
    ]
    assert len(typed.run("read", "states", "--json").stdout.splitlines()) == 31
    typed.run("topics", "compact", "nothing", "--wait", code=2)


def test_messages_are_skipped_by_number_and_by_age(typed: Typed) -> None:
    typed.run("subscriptions", "create", "passed", "s", "--from", "earliest")  # makes the topic, as a consumer would
    assert "passed" in typed.run("topics", "list").stdout
    for number in range(4):
        typed.run("produce", "passed", "-m", f"m{number}")
    assert "2 skipped" in typed.run("subscriptions", "skip", "passed", "s", "2").stdout
    (left,) = typed.json("lag", "passed")
    assert left["backlog"] == 2

    def is_empty() -> bool:
        typed.run("subscriptions", "expire", "passed", "s", "1")
        return not typed.json("lag", "passed")[0]["backlog"]

    until(is_empty, "the last message is a second old")


def test_single_entries_are_shown_and_a_topic_is_truncated(typed: Typed) -> None:
    typed.run("topics", "create", "shown")
    typed.run("subscriptions", "create", "shown", "s", "--from", "earliest")
    for number in range(3):
        typed.run("produce", "shown", "-m", f"k={number}", "-K", "=")
    entries = typed.json("topics", "peek", "shown", "s", "-n", "9")
    assert [entry["messages"][0]["value"] for entry in entries] == ["0", "1", "2"]
    assert entries[0]["messages"][0]["key"] == "k"
    (found,) = typed.json("topics", "get-message", "shown", entries[1]["messageId"])
    assert found == entries[1]
    assert typed.json("topics", "examine", "shown") == [entries[2]]
    assert typed.json("topics", "examine", "shown", "--from", "earliest") == [entries[0]]
    said = typed.run("topics", "peek", "shown", "s").stdout
    assert said.startswith(entries[0]["messageId"])
    assert "k: 0" in said
    (told,) = typed.json("topics", "analyze-backlog", "shown", "s").values()
    assert (told["entries"], told["messages"], told["aborted"]) == (3, 3, False)
    (told,) = typed.json("topics", "analyze-backlog", "shown", "s", "--from", entries[1]["messageId"]).values()
    assert told["entries"] == 2
    typed.run("subscriptions", "properties", "shown", "s", "--set", "a=b", "--set", "c=d")
    assert typed.json("subscriptions", "properties", "shown", "s", "--remove", "a") == {"c": "d"}
    assert typed.run("subscriptions", "properties", "shown", "s").stdout == "c=d\n"
    assert "not the id" in typed.run("topics", "get-message", "shown", "x", code=2).stderr
    typed.run("topics", "truncate", "shown", "--yes")
    assert "Message not found" in typed.run("topics", "peek", "shown", "s", code=2).stderr
    typed.run("topics", "create", "parts", "--partitions", "2")
    assert "name one" in typed.run("topics", "examine", "parts", code=2).stderr


def test_what_lies_below_topics_is_shown_beside_a_standalone(typed: Typed) -> None:
    """The broker is asked where its metadata are, because the command line does not say it."""
    typed.run("produce", "below", "-m", "hello")
    (bookie,) = typed.json("bookies", "list")
    assert (bookie["bookie_id"], bookie["state"]) == ("bookie-1", "writable")
    ledger_id = typed.json("topics", "ledgers", "below")["ledgers"][-1]["ledgerId"]
    assert ledger_id in [one["ledger_id"] for one in typed.json("ledgers", "list")]
    shown = typed.json("ledgers", "show", str(ledger_id), "--all")
    assert [copy["verdict"] for copy in shown["entries"][0]["copies"]] == ["good"]
    assert "hello" in typed.run("ledgers", "read", str(ledger_id), "0", errors="replace").stdout
    findings = json.loads(run_command("doctor", "--json", env=typed.environment).stdout)
    ours = [one for one in findings if "disks are" not in one["text"]]  # how full this machine is, is its own affair
    assert [(one["level"], one["where"]) for one in ours] == [("INFO", "bookies")], "one copy of each message"


def test_the_example_with_a_schema_leaves_no_backlog(
    typed: Typed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/compatibility.md").read_text()
    (example,) = (block for block in blocks_of(page) if "AvroSchema" in block.text)
    program = example.text.replace("pulsar://localhost:6650", typed.standalone.service_url)
    assert program != example.text
    exec(program, {})
    assert capsys.readouterr().out == "lamp 3\n"
    (lag,) = typed.json("lag", "typed-orders")
    assert (lag["subscription"], lag["backlog"]) == ("my-subscription", 0)


def test_metadata_on_another_machine_are_said_to_be_there(typed: Typed) -> None:
    with http_fake() as broker:
        broker.answer("GET", "/admin/v2/brokers/configuration/runtime", {"metadataStoreUrl": "rocksdb:/not/here"})
        said = typed.run("bookies", "list", "--admin-url", broker.url, code=1).stderr
    assert f"the broker at {broker.url} keeps its metadata in the folder /not/here, which is not on this" in said


TYPED = (("produce", "installed", "-f", "-"), ("topics", "list"), ("-h",), ("topics",), ("topicz",))


@pytest.mark.parametrize("arguments", TYPED)
def test_the_installed_command_does_what_a_warm_one_does(typed: Typed, arguments: tuple[str, ...]) -> None:
    """Other tests type the warm one (`tests/support/warm.py`)."""
    found = [
        subprocess.run(
            [folder / "magnetar", *arguments], input="a\nb\n", env=typed.environment, capture_output=True, text=True,
            timeout=TIMEOUT_S, check=False,
        )
        for folder in (warm_folder(), Path(sys.executable).parent)
    ]  # fmt: skip
    warm, installed = [(one.returncode, one.stdout, one.stderr) for one in found]
    assert warm == installed
    assert any(warm)
