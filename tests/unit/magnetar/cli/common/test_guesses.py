"""Names that other tools use: each leads to an existing command."""

import os
import pty
import re
import subprocess
import sys
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from magnetar.cli import main as cli
from magnetar.cli.common.guesses import ALIASES, HINTS
from tests.support.http_fake import HttpFake, http_fake

ADMIN = "/admin/v2/persistent/public/default"

# What stands in hints for what a person puts there.
PLACEHOLDERS = {"TOPIC": "t", "NAME": "s", "NAMESPACE": "a/b", "PLACE": "1h", "N": "5", "FILE": __file__, "POLICY": "p",
                "VALUE": "1"}  # fmt: skip

GUESSED = [
    ("topics", "create", "-p", "3", "t"), ("topics", "describe", "t"), ("topics", "show", "t"), ("topics", "get", "t"),
    ("topics", "stats-internal", "t"), ("subscriptions", "reset-cursor", "t", "s", "1h"),
    ("schemas", "get", "t"), ("version",), ("topic", "list"), ("namespaces", "policies", "a/b"),
]  # fmt: skip


def group_of(name: str) -> click.Group:
    found: Any = cli.main.commands[name] if name else cli.main
    assert isinstance(found, click.Group)
    return found


def resolve(words: list[str]) -> None:
    """Raises unless *words* are a command with arguments that it takes; nothing is run."""
    command: click.Command = cli.main
    context = click.Context(cli.main, info_name="magnetar")
    while isinstance(command, click.Group):
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=found.name)
    command.make_context(command.name, words, parent=context.parent)


@pytest.mark.parametrize("group", sorted({*ALIASES, *HINTS}))
def test_the_tables_speak_of_what_there_is(group: str) -> None:
    known = group_of(group).commands
    assert set(ALIASES.get(group, {}).values()) <= set(known)
    guessed = {*ALIASES.get(group, {}), *HINTS.get(group, {})}
    assert not guessed & set(known), "our own names need no guessing"
    assert not {*ALIASES.get(group, {})} & {*HINTS.get(group, {})}


@pytest.mark.parametrize(("group", "typed"), [(group, name) for group, hints in HINTS.items() for name in hints])
def test_hints_name_commands_that_can_be_typed(group: str, typed: str) -> None:
    found = CliRunner().invoke(cli.main, [*([group] if group else []), typed, "t"])
    assert found.exit_code == (1 if group == "bookies" else 2)  # there 2 says that a drain failed
    said = " ".join(found.stderr.split())
    assert f"there is no command '{typed}': {HINTS[group][typed]}." in said
    for text in re.findall(r"`magnetar ([^`]+)`", HINTS[group][typed]):
        if text != "--version":
            words = [PLACEHOLDERS.get(word, word) for word in text.split()]
            resolve(words)


@pytest.mark.parametrize("words", GUESSED, ids=" ".join)
def test_guesses_of_things_that_there_are_are_understood(words: tuple[str, ...]) -> None:
    resolve(list(words))


def test_the_version_is_a_command_too() -> None:
    runner = CliRunner()
    assert runner.invoke(cli.main, ["version"]).output == runner.invoke(cli.main, ["--version"]).output


# -------------------------------------------------------------------------------------- completion


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    with http_fake() as made:
        monkeypatch.setenv("MAGNETAR_ADMIN_URL", made.url)
        yield made


def completed(*words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(cli.main, {}, "magnetar", "_MAGNETAR_COMPLETE")
    return [one.value for one in shell.get_completions(list(before), incomplete)]


def test_names_of_topics_are_completed(fake: HttpFake, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "persistent://public/default/"
    fake.answer("GET", ADMIN, [f"{name}orders", f"{name}clicks-partition-0", f"{name}order-log"])
    fake.answer("GET", f"{ADMIN}/partitioned", [f"{name}clicks"])
    fake.answer("GET", "/admin/v2/persistent/a/b", ["persistent://a/b/c"])
    fake.answer("GET", "/admin/v2/persistent/a/b/partitioned", [])
    for verb in (["produce"], ["read"], ["tail"], ["consume"], ["topics", "stats"], ["subscriptions", "list"], ["lag"]):
        assert completed(*verb, "") == ["clicks", "order-log", "orders"]
        assert completed(*verb, "or") == ["order-log", "orders"]
    assert completed("read", f"{name}cl") == [f"{name}clicks"]
    assert completed("read", "a/b/") == ["a/b/c"]
    assert "orders" in completed("topic", "describe", ""), "also behind other names"
    monkeypatch.setenv("MAGNETAR_ADMIN_URL", "http://127.0.0.1:1")
    assert completed("read", "") == [], "without a broker there is nothing to offer"


# ----------------------------------------------------------------------------------------- asking


def test_deleting_asks_at_a_terminal(fake: HttpFake) -> None:
    fake.answer("GET", f"{ADMIN}/t/partitions", {"partitions": 0})
    fake.answer("DELETE", f"{ADMIN}/t?force=false", status=204)
    for answer, code in ((b"n\n", 1), (b"y\n", 0)):
        terminal, side = pty.openpty()
        try:
            os.write(terminal, answer)
            command = [sys.executable, "-m", "magnetar", "topics", "delete", "t"]
            found = subprocess.run(command, stdin=side, capture_output=True, text=True, timeout=60, check=False)
        finally:
            os.close(terminal)
            os.close(side)
        assert found.returncode == code, found.stderr
        assert "Delete t with all its messages and subscriptions? [y/N]" in found.stderr
    assert [one.method for one in fake.asked].count("DELETE") == 1
