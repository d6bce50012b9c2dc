"""Under which names a server that asks nobody for a token is called."""

import pytest

from magnetar_core.runtime.http.hosts import HostRules, is_loopback, name_in

OURS = (
    "127.0.0.1:8080", "10.1.2.3", "[::1]:8000", "[2001:db8::7]", "localhost:8080", "LOCALHOST", "x.localhost",
    "broker-0", "broker-0:8080", "host.docker.internal:8080", "bookie.example.org", "BOOKIE.example.org.:8000",
)  # fmt: skip
OTHERS = (
    "evil.example",
    "evil.example:8000",
    "bookie.example.org.evil.example",
    "localhost.evil.example",
    "1.2.3.4.nip.io",
    ":8000",
    "[::1",
)


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("host", OURS)
def test_calls_under_its_own_names_are_answered(host: str, is_local: bool) -> None:
    rules = HostRules(("bookie.example.org", ""), is_local=is_local)
    for method in ("GET", "PUT", "DELETE"):
        assert rules.refusal(method, host, f"http://{host}") is None


@pytest.mark.parametrize("host", OTHERS)
def test_where_only_this_host_can_call_no_other_name_is_answered(host: str) -> None:
    rules = HostRules(("bookie.example.org",), is_local=True)
    for method in ("GET", "DELETE"):
        for origin in (None, f"http://{host}"):
            reason = rules.refusal(method, host, origin)
            assert reason is not None
            assert host in reason
            assert "httpServerNames" in reason


@pytest.mark.parametrize("host", OTHERS)
def test_elsewhere_browsers_change_nothing_under_another_name_and_programs_may(host: str) -> None:
    rules = HostRules()
    assert rules.refusal("DELETE", host, f"http://{host}") is not None
    assert rules.refusal("DELETE", host, None) is None, "a load balancer has a name that the server does not know"
    assert rules.refusal("GET", host, None) is None


def test_who_shows_a_token_may_use_any_name() -> None:
    assert HostRules(is_local=True, asks_callers=True).refusal("DELETE", "evil.example", "http://evil.example") is None


def test_a_request_without_a_host_is_of_no_browser() -> None:
    assert HostRules(is_local=True).refusal("DELETE", None, None) is None


@pytest.mark.parametrize(
    ("host", "name"), [("A.b:1", "a.b"), ("[::1]:1", "::1"), ("::1:1", ""), ("[", ""), ("", ""), ("a.", "a")]
)
def test_the_name_in_a_header(host: str, name: str) -> None:
    assert name_in(host) == name


@pytest.mark.parametrize(
    ("host", "here"), [("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)]
)
def test_what_only_this_host_reaches(host: str, here: bool) -> None:
    assert is_loopback(host) == here
