"""Commands that are imported when they are called."""

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from magnetar.cli import main as cli
from magnetar.cli.bookie import COMMANDS as BOOKIE_COMMANDS
from magnetar.cli.common.later import Later, LaterGroup
from magnetar.cli.main import COMMANDS
from tests.support.http_fake import http_fake

# Widths of terminals: a long help is cut.
WIDTHS = range(10, 200, 7)


@pytest.mark.parametrize("later", [*COMMANDS, *BOOKIE_COMMANDS], ids=lambda later: str(later.name))
def test_what_stands_for_a_command_has_its_name_and_its_help(later: Later) -> None:
    command = later.load()
    assert not isinstance(command, Later)
    assert command.name == later.name
    assert not command.hidden
    for width in WIDTHS:
        assert later.get_short_help_str(width) == command.get_short_help_str(width)


def test_every_noun_stands_in_the_help() -> None:
    assert isinstance(cli.main, LaterGroup)
    shown = CliRunner().invoke(cli.main, ["--help"], terminal_width=200).output
    for later in COMMANDS:
        assert f"  {later.name} " in shown
        assert later.get_short_help_str(200) in shown


def loaded_by(*arguments: str) -> set[str]:
    """Modules of commands that are imported while `magnetar` runs with *arguments*."""
    program = (
        "import sys; from click.testing import CliRunner; from magnetar.cli.main import main;"
        f"assert CliRunner().invoke(main, {list(arguments)}).exit_code == 0;"
        "print(*(name for name in sys.modules if name.startswith('magnetar.cli.')))"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.removeprefix("magnetar.cli.") for name in answer.stdout.split()} - {"main"}


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["--help"], set()),
        (["tokens", "--help"], {"tokens"}),
        (["bookie", "--help"], {"bookie"}),
        (["bookie", "marks", "--help"], {"bookie", "bookie.asking", "bookie.overview", "bookie.texts"}),
    ],
)
def test_a_command_imports_its_own_module(arguments: list[str], modules: set[str]) -> None:
    assert {name for name in loaded_by(*arguments) if not name.startswith("common")} == modules


def test_names_are_completed_without_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(later: Later) -> click.Command:
        raise AssertionError(f"{later.name} was imported")

    monkeypatch.setattr(Later, "load", fail)
    completion = ShellComplete(cli.main, {}, "magnetar", "_MAGNETAR_COMPLETE")
    assert [one.value for one in completion.get_completions([], "to")] == ["tokens", "topics"]


@pytest.mark.parametrize("noun", ["tenants", "tenant"])
def test_the_addresses_of_a_profile_hold_for_commands_of_other_modules(tmp_path: Path, noun: str) -> None:
    profile = tmp_path / "client.conf"
    with http_fake() as fake:
        fake.answer("GET", "/admin/v2/tenants", ["shop"])
        profile.write_text(f"webServiceUrl={fake.url}\n")
        assert CliRunner().invoke(cli.main, ["--profile", str(profile), noun, "list"]).output == "shop\n"
