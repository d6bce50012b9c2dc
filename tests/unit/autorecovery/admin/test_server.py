"""Who is admitted, what is refused and how, and the limits of the management interface, over real HTTP."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from autorecovery.admin import server as module
from autorecovery.admin.calls import PREFIX, Access, Call, CheckedCall, Refused
from autorecovery.admin.schema import STRING, answer_of, closed
from autorecovery.admin.server import BODY_BYTES_MAX, PARAMETER_CHARS_MAX, ManagementServer, root_application
from autorecovery.admin.token_file import TokenFile
from autorecovery.admin.tokens import Role, line_of
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from magnetar_core.runtime.http.server import HttpServer
from magnetar_core.runtime.types import ConfigurationError, MagnetarError
from tests.support.bookie_admin_world import socket_on_a_free_port
from tests.support.dashboard import drain_failed
from tests.support.waiting import eventually
from tests.unit.autorecovery.admin.management_world import managed

WRITER, READER = "w" * 43, "r" * 43
CHANGE = ("PUT", "/auto-recovery", {"enabled": True})


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    lines = ("# who may what", "", line_of("deployer", Role.WRITE, WRITER) + "  # a robot")
    path.write_text("\n".join((*lines, line_of("prometheus", Role.READ, READER))) + "\n")
    return path


# ------------------------------------------------------------------------------------------ who is admitted


async def test_with_a_file_of_tokens_each_call_needs_one(tokens: Path) -> None:
    async with managed(1, tokens=tokens, host="0.0.0.0") as world:
        for headers in ({}, bearer("x"), {"Authorization": "Basic eDp5"}, bearer("")):
            refused = await world.call("GET", "/bookies", headers=headers)
            assert (refused.status, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await world.call("GET", "/bookies", headers=bearer(READER))).status == 200
        refused = await world.call(*CHANGE, headers=bearer(READER))
        assert (refused.status, refused.reason) == (403, "the token of prometheus may only read")
        assert (await world.call(*CHANGE, headers=bearer(WRITER))).status == 200
        begun = await world.call("PUT", "/bookies/bookie-0/state", {"state": "draining"}, bearer(WRITER))
        assert begun.json["by"] == "deployer"
        assert (await world.call("GET", "/openapi.json")).json["security"] == [{"token": []}]


async def test_a_changed_file_of_tokens_counts_at_once(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with managed(1, tokens=tokens) as world:
        assert (await world.call("GET", "/bookies", headers=bearer(READER))).status == 200
        whole = tokens.read_text()
        tokens.write_text("\n".join(whole.splitlines()[:-1]))
        assert (await world.call("GET", "/bookies", headers=bearer(READER))).status == 401
        tokens.write_text(whole + "no token\n")
        refused = await world.call("GET", "/bookies", headers=bearer(WRITER))
        assert (refused.status, "nobody is admitted" in refused.reason) == (503, True)
        assert "line 5: 2 words, expected" in caplog.text
        tokens.unlink()
        assert (await world.call("GET", "/bookies", headers=bearer(WRITER))).status == 503
        tokens.write_text(whole)
        assert (await world.call("GET", "/bookies", headers=bearer(WRITER))).status == 200


async def test_without_tokens_reading_is_open_and_only_this_host_changes_anything() -> None:
    async with managed(1, host="0.0.0.0") as world:
        assert (await world.call("GET", "/bookies")).status == 200
        refused = await world.call(*CHANGE)
        assert (refused.status, "managementTokensFile" in refused.reason) == (403, True)
    async with managed(1) as world:
        assert (await world.call(*CHANGE)).status == 200
        for host in ("localhost:80", "[::1]:8000", "127.0.0.5"):
            assert (await world.call(*CHANGE, headers={"Host": host})).status == 200
        for host in ("attacker.example", "127.0.0.1.example", "[::"):
            refused = await world.call(*CHANGE, headers={"Host": host})
            assert (refused.status, "is not a loopback address" in refused.reason) == (403, True)


async def test_pages_of_other_sites_change_nothing(tokens: Path) -> None:
    async with managed(1, tokens=tokens) as world:
        refused = await world.call(*CHANGE, headers={**bearer(WRITER), "Origin": "http://elsewhere.example"})
        assert (refused.status, "pages of other sites" in refused.reason) == (403, True)
        assert (await world.call(*CHANGE, headers={**bearer(WRITER), "Origin": world.url})).status == 200


async def test_no_secret_is_in_the_log_and_each_change_is(tokens: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with managed(1, tokens=tokens) as world:
        await world.call(*CHANGE, headers=bearer(WRITER))
        await world.call(*CHANGE, headers=bearer(READER))
        await world.call("PUT", "/bookies/bookie-0/state", {"state": "drained"}, bearer(WRITER))
        await world.call("PUT", "/auto-recovery", {"wrong": WRITER}, bearer(WRITER))
    assert f"PUT {PREFIX}/auto-recovery by deployer: 200" in caplog.text
    assert f"PUT {PREFIX}/bookies/bookie-0/state by deployer: 409" in caplog.text
    assert f"PUT {PREFIX}/auto-recovery by 127.0.0.1: 403" in caplog.text, "the reader's"
    assert WRITER not in caplog.text
    assert READER not in caplog.text


@pytest.mark.parametrize("text", ["x", "a b c d", "a admin sha256:00", "a read md5:00", "a/b read sha256:" + "0" * 64])
def test_a_file_of_tokens_with_a_mistake_is_refused_at_the_start(text: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# first\n{text}\n")
    with pytest.raises(ConfigurationError, match="line 2"):
        TokenFile(path)


def test_a_file_of_tokens_that_cannot_be_read_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="managementTokensFile"):
        TokenFile(tmp_path / "none")
    path = tmp_path / "tokens"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        TokenFile(path)
    path.write_bytes(b"#" * 1_000_000)
    with pytest.raises(ConfigurationError, match="more than"):
        TokenFile(path)
    path.write_text("\n".join(line_of(f"name-{at}", Role.READ, "t") for at in range(1_001)))
    with pytest.raises(ConfigurationError, match="at most 1000"):
        TokenFile(path)


# ------------------------------------------------------------------------------------------ what is refused


async def test_what_is_not_asked_rightly_is_refused_as_json() -> None:
    async with managed(1) as world:
        cases: tuple[tuple[int, str, str, bytes | None], ...] = (
            (404, "GET", "/nothing", None),
            (404, "GET", "", None),
            (405, "PATCH", "/bookies", None),
            (405, "POST", "/openapi.json", None),
            (400, "GET", "/bookies?color=red", None),
            (400, "GET", "/bookies?state=active&state=active", None),
            (400, "GET", f"/bookies/{'b' * (PARAMETER_CHARS_MAX + 1)}/state", None),
            (400, "GET", "/bookies/a%2Fb/state", None),
            (400, "GET", "/bookies/a%0Ab/state", None),
            (400, "PUT", "/auto-recovery", b""),
            (400, "PUT", "/auto-recovery", b"{"),
            (400, "PUT", "/auto-recovery", b"[]"),
            (400, "PUT", "/auto-recovery", b"[" * 1_000),
            (400, "PUT", "/auto-recovery", b'{"enabled": 1}'),
            (400, "PUT", "/auto-recovery", b"{}"),
            (400, "PUT", "/auto-recovery", b'{"enabled": true, "more": 1}'),
            (413, "PUT", "/auto-recovery", b" " * (BODY_BYTES_MAX + 1)),
        )
        for status, method, path, body in cases:
            refused = await world.call(method, path, body, {"Content-Type": "application/json"}, raw=True)
            assert (refused.status, bool(refused.reason)) == (status, True), (method, path, refused)
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        assert (await world.call("PUT", "/auto-recovery", b"{}", form, raw=True)).status == 415
        refused = await world.call("DELETE", "/auto-recovery")
        assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD, PUT")


async def test_head_answers_as_get_without_a_body() -> None:
    async with managed(1) as world:
        found = await world.call("HEAD", "/bookies")
        assert (found.status, found.text, int(found.headers["Content-Length"]) > 10) == (200, "", True)
        assert found.headers["Cache-Control"] == "no-store"


async def test_a_body_that_does_not_come_or_breaks_off_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_BODY_S", 0.1)
    monkeypatch.setattr(module, "CALLS_MAX", 1)
    async with managed(1) as world:
        port = int(world.url.rpartition(":")[2])
        head = (
            f"PUT {PREFIX}/auto-recovery HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            "Content-Length: 100\r\n\r\n{"
        ).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert (await reader.readline()).startswith(b"HTTP/1.1 400")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        await writer.drain()
        writer.close()

        async def is_free() -> bool:
            return (await world.call("GET", "/bookies", raw=True)).status == 200

        await eventually(is_free)


# ------------------------------------------------------------------------------------------ handlers that fail


class Failing:
    """Calls that wait, or raise what they are told."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.may_go_on = asyncio.Event()
        self.under_way = 0

    def calls(self) -> tuple[Call, ...]:
        def made(path: str, *, is_long: bool) -> Call:
            return Call(
                method="POST", path=path, name=path.strip("/"), subject="test", summary="For a test.",
                access=Access.READ, handler=self._do, answer=answer_of({"said": STRING}), is_long=is_long,
                body=closed({"say": STRING}, "say"),
            )  # fmt: skip

        return made("/short", is_long=False), made("/long", is_long=True)

    async def _do(self, asked: CheckedCall) -> Any:
        self.under_way += 1
        try:
            await self.may_go_on.wait()
            if self.error is not None:
                raise self.error
            return {"said": asked.body.get("say", "")}
        finally:
            self.under_way -= 1


@pytest.fixture
def failing() -> Failing:
    return Failing()


async def post(url: str, path: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}{PREFIX}{path}", json={}) as answer:
        return answer.status, (await answer.json()).get("reason", ""), dict(answer.headers)


class Served:
    """A server with one subject."""

    def __init__(self, failing: Failing) -> None:
        self._server = ManagementServer((failing,), version="1", tokens=None, is_local=True)
        self._http = HttpServer(root_application(self._server.mounts()))

    async def __aenter__(self) -> str:
        listening = socket_on_a_free_port()
        await self._http.start(listening)
        return "http://{}:{}".format(*listening.getsockname())

    async def __aexit__(self, *_: object) -> None:
        await self._http.stop()


async def test_what_failed_for_the_moment_is_503_and_a_defect_is_500_without_its_text(failing: Failing) -> None:
    failing.may_go_on.set()
    async with Served(failing) as url:
        failing.error = StoreUnavailable("the metadata store is away")
        status, reason, headers = await post(url, "/short")
        assert (status, reason, headers["Retry-After"]) == (503, "the metadata store is away", "1")
        failing.error = MagnetarError("no way")
        assert (await post(url, "/short"))[:2] == (500, "no way")
        failing.error = RuntimeError("secret")
        status, reason, _ = await post(url, "/short")
        assert (status, "secret" in reason, "a defect" in reason) == (500, False, True)
        failing.error = Refused(409, "not now", state="draining")
        assert (await post(url, "/short"))[:2] == (409, "not now")


async def test_calls_that_read_all_records_are_limited_and_so_are_all_calls(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CALLS_MAX", module.LONG_CALLS_MAX + 2)
    async with Served(failing) as url:
        waiting = [asyncio.ensure_future(post(url, "/long")) for _ in range(module.LONG_CALLS_MAX)]
        await eventually(lambda: failing.under_way == module.LONG_CALLS_MAX)
        status, _, headers = await post(url, "/long")
        assert (status, headers["Retry-After"]) == (429, "1")
        waiting += [asyncio.ensure_future(post(url, "/short")) for _ in range(2)]
        await eventually(lambda: failing.under_way == module.LONG_CALLS_MAX + 2)
        assert (await post(url, "/short"))[0] == 503
        failing.may_go_on.set()
        assert {status for status, _, _ in await asyncio.gather(*waiting)} == {200}
        assert (await post(url, "/long"))[0] == 200


# ------------------------------------------------------------------------------------------ files


async def test_the_files_of_the_page_are_served_and_nothing_beside_them(tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "index.html").write_text("<p>hello")
    (folder / "page.js").write_text("1")
    (tmp_path / "secret").write_text("secret")
    server = ManagementServer((), version="1", tokens=None, is_local=True, dashboard=folder)
    http = HttpServer(root_application(server.mounts()))
    listening = socket_on_a_free_port()
    await http.start(listening)
    url = "http://{}:{}".format(*listening.getsockname())
    try:
        async with aiohttp.ClientSession() as session:

            async def got(path: str) -> tuple[int, str]:
                async with session.get(URL(url + path, encoded=True)) as answer:
                    if answer.status == 200 and path != "/heartbeat":
                        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
                    return answer.status, await answer.text()

            assert await got("/dashboard/") == (200, "<p>hello")
            assert await got("/dashboard") == (200, "<p>hello"), "after a redirect"
            assert await got("/dashboard/page.js") == (200, "1")
            assert "--paper" in (await got("/dashboard/page.css"))[1], "what all pages share"
            for path in ("/dashboard/../secret", "/dashboard/%2e%2e/secret", "/dashboard/..%2fsecret", "/secret"):
                assert (await got(path))[0] in (403, 404), path
            assert await got("/heartbeat") == (200, "OK\n")
    finally:
        await http.stop()


async def test_metrics_are_told_to_those_who_may_read_and_a_store_that_is_away_is_503(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(line_of("ann", Role.READ, "s" * 40) + "\n")
    error: list[Exception] = []

    async def overview() -> dict[str, Any]:
        if error:
            raise error[0]
        return drain_failed()

    server = ManagementServer((), version="1", tokens=TokenFile(file), is_local=True, overview=overview)
    http = HttpServer(root_application(server.mounts()))
    listening = socket_on_a_free_port()
    await http.start(listening)
    url = "http://{}:{}/manage/v1/metrics".format(*listening.getsockname())
    token = {"Authorization": f"Bearer {'s' * 40}"}
    try:
        async with aiohttp.ClientSession() as session:

            async def got(headers: dict[str, str], method: str = "GET") -> tuple[int, str]:
                async with session.request(method, url, headers=headers) as answer:
                    return answer.status, await answer.text()

            assert (await got({}))[0] == 401
            status, text = await got(token)
            assert status == 200
            assert 'magnetar_autorecovery_bookie_states{state="draining-failed"} 1' in text
            assert "magnetar_autorecovery_has_auditor 1" in text
            assert (await got(token, "POST"))[0] == 405
            error.append(StoreUnavailable("the metadata store is away"))
            assert (await got(token))[0] == 503
    finally:
        await http.stop()
