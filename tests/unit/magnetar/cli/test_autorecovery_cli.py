"""`magnetar autorecovery token` as a person types it, and how old the list of ledgers is."""

import json
from typing import Any

import pytest
from click.testing import CliRunner

from autorecovery.admin.calls import Caller
from autorecovery.admin.tokens import parse_tokens
from autorecovery.reporting.overview import Overview
from autorecovery.reporting.reports import NodeReport
from magnetar.cli.autorecovery import _as_of_when
from magnetar.cli.main import main


def test_a_token_is_shown_once_with_the_line_that_admits_it() -> None:
    made = [
        json.loads(CliRunner().invoke(main, ["autorecovery", "token", "deployer", "--role", role, "--json"]).stdout)
        for role in ("write", "read")
    ]
    tokens = parse_tokens("\n".join(one["line"] for one in made), "the file")
    assert [tokens.caller_of(one["token"]) for one in made] == [Caller("deployer", True), Caller("deployer", False)]
    assert made[0]["token"] not in made[0]["line"]
    assert tokens.caller_of("") is None
    text = CliRunner().invoke(main, ["autorecovery", "token", "deployer", "--role", "read"]).stdout
    assert [line.split()[0] for line in text.splitlines()] == ["token", "line"]


def test_a_name_that_cannot_stand_in_the_file_is_refused() -> None:
    found = CliRunner().invoke(main, ["autorecovery", "token", "a b", "--role", "read"])
    assert found.exit_code == 2
    assert "may have 1 to 64 letters" in found.stderr


def test_a_token_does_not_look_like_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = iter(["-a", "-b", "c-"])
    monkeypatch.setattr("secrets.token_urlsafe", lambda count: next(drawn))
    text = CliRunner().invoke(main, ["autorecovery", "token", "deployer", "--role", "read"]).stdout
    assert text.splitlines()[0].split() == ["token", "c-"]


@pytest.mark.parametrize(
    ("is_enabled", "auditor", "audit", "words"),
    [
        (
            False,
            "a",
            {"last_audit_ms": 1},
            "auto-recovery is off and nobody has looked since; `magnetar",
        ),
        (True, None, None, "no node is running and nobody looks; `magnetar ledgers lacking`"),
        (
            True,
            "a",
            {"away": ["b1", "b2"], "last_audit_ms": 1},
            "away (b1, b2) that is found out after the delay",
        ),
        (True, "a", {"away": [], "last_audit_ms": 1}, "; the last audit was "),
        (True, "apaches", None, ""),
    ],
)
def test_a_list_without_ledgers_says_how_old_that_knowledge_is(
    is_enabled: bool, auditor: str | None, audit: dict[str, Any] | None, words: str
) -> None:
    nodes = () if audit is None else (NodeReport("a", {"is_auditor": True, "auditor": audit}),)
    said = _as_of_when(Overview(is_enabled, None, auditor, nodes, 0, ()))
    assert words in said
    assert bool(said) == bool(words)
