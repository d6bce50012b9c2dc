"""What the doctor looks at on its own machine, and what it shows to brokers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magnetar.cli.doctor import _bookie_http, _broker, _open_folders
from magnetar.inspect.access import CURRENT, Access
from magnetar.inspect.doctor_rules import BrokerFacts
from magnetar_core.runtime.files import OsFiles
from magnetar_core.runtime.process.daemon import new_clock
from tests.support.http_fake import HttpFake, http_fake

READY, HEALTH = "/admin/v2/brokers/ready", "/admin/v2/brokers/health"


@contextmanager
def shown(access: Access) -> Iterator[None]:
    former = CURRENT.set(access)
    try:
        yield
    finally:
        CURRENT.reset(former)


@pytest.fixture
def fake() -> Iterator[HttpFake]:
    """A broker that is well, and tells it to those who show the token `right`."""
    with http_fake() as made:
        made.token = "right"
        made.answer("GET", READY, "ok")
        made.answer("GET", HEALTH, "ok")
        yield made


def facts_of(fake: HttpFake, admin_url: str) -> BrokerFacts:
    return _broker(fake.url.removeprefix("http://"), admin_url, {}, new_clock())


def test_a_token_goes_in_clear_text_to_brokers_of_a_cluster_that_the_user_named_so(fake: HttpFake) -> None:
    with shown(Access(token="right")):
        facts = facts_of(fake, fake.url)
    assert (facts.health, facts.refusal, facts.error) == ("", "", "")


def test_a_token_that_was_given_for_tls_is_not_sent_in_clear_text(fake: HttpFake) -> None:
    with shown(Access(token="right")):
        facts = facts_of(fake, "https://127.0.0.1:8443")
    assert facts.health == ""
    assert facts.refusal == (
        "HTTP 401 Authentication required; the credentials are for https://127.0.0.1:8443, and were not sent to "
        f"{fake.url} in clear text"
    )


@pytest.mark.parametrize("access", [Access(), Access(token="wrong")])
def test_a_broker_that_wants_other_credentials_is_not_called_ill(fake: HttpFake, access: Access) -> None:
    with shown(access):
        facts = facts_of(fake, fake.url)
    assert (facts.health, facts.refusal) == ("", "HTTP 401 Authentication required")


def test_a_broker_that_cannot_write_says_why(fake: HttpFake) -> None:
    fake.answer("GET", HEALTH, {"reason": "too few bookies"}, status=500)
    with shown(Access(token="right")):
        assert facts_of(fake, fake.url).health == "too few bookies"


def test_a_bookie_that_refuses_to_tell_is_not_called_well(fake: HttpFake) -> None:
    with pytest.raises(OSError, match="Authentication required"):
        _bookie_http(fake.url, "b1", new_clock())


def test_the_doctor_looks_at_the_folders_of_a_standalone_on_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("metadata", "bookie-1/journal/current", "bookie-1/ledgers/current", "bookie-2/journal/current"):
        (tmp_path / name).mkdir(parents=True)
    opened = {str(tmp_path / "metadata"), str(tmp_path / "bookie-1/journal/current")}
    monkeypatch.setattr(OsFiles, "lets_others_in", lambda _, directory: directory in opened)
    assert set(_open_folders(f"rocksdb:{tmp_path}/metadata")) == opened
    assert _open_folders("zk:somewhere:2181") == ()
    assert _open_folders(f"rocksdb:{tmp_path}/nowhere/metadata") == ()
