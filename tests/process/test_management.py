"""The management interface of real bookies: a bookie is retired by calls with a token, from its drain to its cookie."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from autorecovery.admin.calls import PREFIX
from magnetar.processes.cluster import reserved_ports
from magnetar_core.runtime.process.own_packages import python_command, python_environment
from tests.support.copies import copies_of
from tests.support.processes import until
from tests.support.waiting import eventually
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


def token_of(name: str, role: str) -> tuple[str, str]:
    """(token, line of the file), as the command makes them."""
    command = [sys.executable, "-m", "magnetar", "autorecovery", "token", name, "--role", role, "--json"]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found["token"], found["line"]


class Servers:
    """Processes of Magnetar beside one ZooKeeper; the ready line of each names its HTTP."""

    def __init__(self, folder: Path, zookeeper: str, tokens: Path) -> None:
        self.metadata_url = f"zk:{zookeeper}"
        self._folder = folder
        self._ports = reserved_ports()
        self._common = (
            f"metadataServiceUri=zk://{zookeeper}/ledgers\nzkTimeout=2000\nhttpServerEnabled=true\n"
            f"managementTokensFile={tokens}\n"
        )
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, kind: str, settings: str = "") -> str:
        """The URL of its HTTP."""
        folder = self._folder / name
        folder.mkdir()
        # A bookie registers the port of its settings, so that it cannot be a free one that the system chooses.
        (folder / "conf").write_text(f"{self._common}httpServerPort={next(self._ports)}\n{settings}")
        with (folder / "log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                python_command("magnetar", kind, "--config", str(folder / "conf")),
                env=python_environment(os.environ), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        until(lambda: self._url(name) or self._processes[name].poll() is not None, f"{name} is ready")
        assert self._processes[name].poll() is None, self.log(name)
        return self._url(name)

    def _url(self, name: str) -> str:
        found = re.search(r"is ready.* HTTP (http://[^,]+),", self.log(name))
        return "" if found is None else found[1]

    def log(self, name: str) -> str:
        return (self._folder / name / "log").read_text(errors="replace")

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(30)

    def stop_all(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait(30)
        self._ports.close()

    def start_bookie(self, name: str) -> str:
        return self.start(
            name, "bookie",
            f"bookieId={name}\nbookiePort=0\nbookieListenAddress=127.0.0.1\nadvertisedAddress=127.0.0.1\n"
            f"journalDirectory={self._folder / name / 'journal'}\nledgerDirectories={self._folder / name / 'ledgers'}\n"
            "autoRecoveryDaemonEnabled=true\n",
        )  # fmt: skip


async def test_a_bookie_is_retired_over_http_by_the_holder_of_a_token(tmp_path: Path, zookeeper: str) -> None:
    (writer, first), (reader, second) = token_of("deployer", "write"), token_of("prometheus", "read")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{first}\n{second}\n")
    servers = Servers(tmp_path, zookeeper, tokens)
    try:
        urls = {name: servers.start_bookie(name) for name in ("bookie-a", "bookie-b")}
        urls["node"] = servers.start("node", "autorecovery")
        async with aiohttp.ClientSession() as session, copies_of(servers.metadata_url) as client:

            async def call(
                method: str, path: str, body: Any = None, *, token: str = writer, at: str = "node"
            ) -> tuple[int, Any]:
                headers = {"Authorization": f"Bearer {token}"} if token else {}
                url = f"{urls[at]}{PREFIX}{path}"
                async with session.request(method, url, json=body, headers=headers) as answer:
                    return answer.status, await answer.json()

            ledgers = []
            for _ in range(4):
                handle = await client.bookkeeper.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
                await handle.wait_for(handle.append([b"entry %d" % number for number in range(20)]) + 19)
                await handle.close()
                ledgers.append(handle.ledger_id)
            (leaving,) = (await client.bookkeeper.read_metadata(ledgers[0])).bookies()
            other = "bookie-b" if leaving == "bookie-a" else "bookie-a"
            state, cookie = f"/bookies/{leaving}/state", f"/bookies/{leaving}/cookie"

            for at in urls:
                assert (await call("GET", "/bookies", token="", at=at))[0] == 401
                assert (await call("PUT", state, {"state": "draining"}, token=reader, at=at))[0] == 403
                status, told = await call("GET", "/bookies", token=reader, at=at)
                assert (status, [one["mode"] for one in told["bookies"]]) == (200, ["writable", "writable"])
            status, asked = await call("POST", "/safe-to-remove", {"bookies": [leaving]})
            assert (status, asked["safe"], asked["totals"]["lost"] > 0) == (200, False, True)
            status, refused = await call("DELETE", cookie)
            assert (status, refused["state"], refused["ledgers_total"] > 0) == (409, "active", True)

            serving = f"/bookies/{other}/serving"
            status, told = await call("PUT", serving, {"mode": "read-only", "why": "a look"}, at=other)
            assert (status, told["mode"]) == (200, "read-only")

            async def shows(mode: str, *reasons: str) -> None:
                found = (await call("GET", serving))[1]
                assert (found["mode"], found["reasons"]) == (mode, [*reasons])

            await eventually(lambda: shows("read-only", "operator: a look (deployer)"))
            assert (await call("PUT", serving, {"mode": "writable"}))[1]["mode"] == "writable"
            await eventually(lambda: shows("writable"))

            status, told = await call("PUT", state, {"state": "draining", "why": "old disks"}, at=leaving)
            assert (status, told["by"], told["why"]) == (200, "deployer", "old disks")

            async def is_drained() -> bool:
                return bool((await call("GET", state, token=reader))[1]["state"] == "drained")

            await eventually(is_drained, timeout_s=120)
            await client.until_whole(ledgers)
            assert (await call("POST", "/safe-to-remove", {"bookies": [leaving]}))[1]["safe"] is True
            status, refused = await call("DELETE", cookie)
            assert (status, refused["state"], "registered as read-only" in refused["reason"]) == (409, "drained", True)
            servers.stop(leaving)
            assert await call("DELETE", cookie) == (200, {"bookie": leaving, "removed": True})
            assert (await call("GET", state, token=reader, at=other))[0] == 404
            for ledger_id in ledgers:
                await client.bookkeeper.delete_ledger(ledger_id)
        assert "by deployer: 200" in servers.log("node")
        for name in urls:
            assert writer not in servers.log(name)
            assert reader not in servers.log(name)
    finally:
        servers.stop_all()
