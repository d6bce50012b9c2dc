"""What brokers refuse, as the official client logs it."""

import os

import pulsar
import pytest

from magnetar_core.topics.client_log import ClientLog, client_log

REFUSED = "2026-11-30 01:00:00.000 WARN  [1] ClientConnection:1 | Received error response from server: "
ERROR = "2026-11-30 01:00:00.000 ERROR [1] ClientConnection:485 | Failed to establish connection"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The places into which clients are told to log."""
    paths: list[str] = []
    monkeypatch.setattr(pulsar, "FileLogger", lambda level, path: paths.append(path))
    return paths


def logged(path: str, *texts: str) -> None:
    with open(path, "a") as file:
        file.writelines(f"{text}\n" for text in texts)


def test_the_last_refusal_is_in_the_broker_s_words_and_errors_are_handed_on(lines: list[str]) -> None:
    log = ClientLog()
    refusals: list[str] = []
    errors: list[str] = []
    log.logger(refusals.append, errors.append)
    assert log.last_refusal() == ""
    logged(
        lines[0], f"{REFUSED}ServiceNotReady (a (b) c) -- req_id: 1", ERROR, f"{REFUSED}AuthorizationError -- req_id: 2"
    )
    assert log.last_refusal() == "AuthorizationError", "a kind without a text stands for itself"
    logged(lines[0], "2026-11-30 WARN | Received send error from server: Producer is fenced")
    assert log.last_refusal() == "Producer is fenced"
    assert refusals == ["a (b) c", "AuthorizationError", "Producer is fenced"]
    assert errors == [ERROR]


def test_what_another_client_was_refused_is_not_said(lines: list[str]) -> None:
    log = ClientLog()
    log.logger()
    logged(lines[0], f"{REFUSED}TopicNotFound (t) -- req_id: 1")
    log.logger()
    assert log.last_refusal() == ""
    logged(lines[1], f"{REFUSED}TopicNotFound (u) -- req_id: 1")
    log.forget()
    assert log.last_refusal() == "", "it came right meanwhile"
    assert lines[0] == lines[1], "one pipe for the process"


def test_a_child_after_a_fork_has_a_log_of_its_own(lines: list[str]) -> None:
    client_log().logger()
    logged(lines[0], f"{REFUSED}TopicNotFound (t) -- req_id: 1")
    child = os.fork()
    if child == 0:
        client_log().logger()
        logged(lines[1], f"{REFUSED}TopicNotFound (u) -- req_id: 1")
        os._exit(0 if client_log().last_refusal() == "u" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client_log().last_refusal() == "t"
