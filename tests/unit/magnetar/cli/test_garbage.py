"""A server that answers what no broker says: each command ends with one line that names it, and no traceback."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from magnetar.cli.main import main
from magnetar_core.runtime.http.request import ANSWERED
from tests.support.http_fake import Canned, HttpFake, http_fake

COMMANDS = (
    "topics list", "topics stats t", "topics show t", "topics permissions t", "topics create t", "subscriptions list t",
    "lag t", "tenants list", "tenants show public", "namespaces list public", "namespaces show public/default",
    "namespaces permissions public/default", "schemas show t", "brokers list", "bookie status", "bookie gc",
    "bookie sanity", "bookie cluster", "bookie scrub", "bookie marks", "bookie disks", "bookie ledgers", "bookie info",
)  # fmt: skip
ANSWERS: tuple[Any, ...] = (
    b"garbage",
    b"\xff\xfe\x00",
    [],
    {},
    7,
    None,
    [1],
    [[]],
    {"partitions": "x"},
    {"a": {"b": 1}},
    "x",
    b"[" * 100_000,
)


class Always(dict[tuple[str, str], Canned]):
    """The same answer to everything."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def get(self, key: Any, default: Any = None) -> Canned:
        return Canned(200, self._body)


@pytest.fixture
def fake() -> Iterator[HttpFake]:
    with http_fake() as made:
        yield made
    ANSWERED.set("")


@pytest.mark.parametrize("command", COMMANDS)
def test_garbage_is_one_line_that_names_the_server(fake: HttpFake, command: str) -> None:
    for body in ANSWERS:
        fake.answers = Always(body)
        done = CliRunner().invoke(main, [*command.split(), "--admin-url", fake.url])
        assert done.exception is None or isinstance(done.exception, SystemExit), (body, done.exception)
        if done.exit_code:
            assert done.exit_code == 2, (body, done.output)
            assert fake.url in done.output, (body, done.output)
            assert len(done.output.strip().splitlines()) == 1, (body, done.output)
    assert fake.asked


def test_what_no_server_has_caused_is_no_answer_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a defect")

    monkeypatch.setattr("magnetar.inspect.broker_admin.AdminClient.__init__", broken)
    done = CliRunner().invoke(main, ["tenants", "list"])
    assert isinstance(done.exception, KeyError)
