"""The HTTP client of commands and fixtures: proxies, closing, limits."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magnetar.cli import doctor
from magnetar.inspect.bookie_admin import BookieAdmin
from magnetar.inspect.broker_admin import AdminClient
from magnetar.testing.servers import new_namespace
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.http.request import ask, is_loopback
from tests.support.http_fake import HttpFake, http_fake


@pytest.fixture
def server() -> Iterator[HttpFake]:
    with http_fake() as made:
        yield made


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpFake]:
    """The proxy that the environment names. It answers only requests to 192.0.2.7."""
    with http_fake() as made:
        for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("http_proxy", made.url)
        yield made


def test_who_listens_on_this_machine_is_asked_without_a_proxy(server: HttpFake, proxy: HttpFake) -> None:
    local = server.url.replace("127.0.0.1", "localhost")
    server.answer("GET", "/x", "here")
    server.answer("GET", "/api/v1/magnetar/status", {"a": 1})
    server.answer("GET", "/metrics", b"text")
    for url in (server.url, local):
        assert AdminClient(url).call("GET", "/x") == "here"
        assert BookieAdmin(url).get("magnetar/status") == {"a": 1}
        assert BookieAdmin(url).text("/metrics") == "text"
        assert doctor._get(f"{url}/x", LoopClock())[:2] == (200, "here")
    assert new_namespace_is_made(server)
    assert proxy.asked == []


def new_namespace_is_made(server: HttpFake) -> bool:
    """Asks for a namespace as a fixture does; the server answers 404, and that counts as an answer."""
    from magnetar.testing import ServerFailed

    with pytest.raises(ServerFailed, match="404"):
        new_namespace([server.url], "t")
    return any(one.path.startswith("/admin/v2/namespaces/public/t-") for one in server.asked)


def test_others_are_asked_through_the_proxy(proxy: HttpFake) -> None:
    proxy.answer("GET", "http://192.0.2.7:8080/x", "through the proxy")
    assert AdminClient("http://192.0.2.7:8080").call("GET", "/x") == "through the proxy"


@pytest.mark.parametrize(
    ("host", "here"),
    [("127.0.0.1:1", True), ("127.0.1.9", True), ("[::1]:8080", True), ("LOCALHOST:1", True), ("a.localhost", True),
     ("192.0.2.7", False), ("example.com", False), ("localhost.example.com", False), ("", False)],
)  # fmt: skip
def test_this_machine_is_known_by_its_addresses(host: str, here: bool) -> None:
    assert is_loopback(host) == here


def test_an_answer_has_a_limit(server: HttpFake) -> None:
    server.answer("GET", "/long", b"x" * 5_000)
    assert ask("GET", f"{server.url}/long", timeout_s=20, max_bytes=5_000).body == b"x" * 5_000
    with pytest.raises(OSError, match="does not come to an end"):
        ask("GET", f"{server.url}/long", timeout_s=20, max_bytes=4_999)
    with pytest.raises(OSError, match="does not come to an end"):
        ask("GET", f"{server.url}/long", timeout_s=20, is_late=lambda: True)


def test_redirects_and_refusals_are_answers(server: HttpFake) -> None:
    server.answer("PUT", "/moved", status=307, Location="/elsewhere")
    server.answer("PUT", "/no", {"reason": "no"}, status=409)
    moved = ask("PUT", f"{server.url}/moved", b"1", timeout_s=20)
    assert (moved.status, moved.headers["Location"]) == (307, "/elsewhere")
    assert ask("PUT", f"{server.url}/no", timeout_s=20).status == 409
    assert [one.path for one in server.asked] == ["/moved", "/no"]


def test_there_is_no_second_client() -> None:
    """A second client would have its own rules for proxies, limits and closing."""
    home = Path(__file__).parents[5]
    users = {
        str(path.relative_to(home))
        for folder in ("magnetar", "magnetar_core")
        for path in (home / folder).rglob("*.py")
        if re.search(r"^\s*(import|from) (urllib\.request|http\.client|requests|httpx)\b", path.read_text(), re.M)
    }
    assert users == {"magnetar_core/runtime/http/request.py"}
