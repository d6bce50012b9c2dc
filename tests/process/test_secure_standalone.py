"""`magnetar standalone --secure`: what it prints works, nothing else comes in, and a second run uses the same keys."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import magnetar
from magnetar.client.errors import AccessDenied
from magnetar.inspect.access import Profile, read_profile
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import LENGTH
from tests.support.shell import run_command

pytestmark = pytest.mark.process

TIMEOUT_S = 60
MAGNETAR = (sys.executable, "-m", "magnetar")


@contextmanager
def standalone(folder: Path) -> Iterator[tuple[Profile, str, int]]:
    """It runs: (how to connect, the address of the topic API, the port of its bookie)."""
    options = ("--port", "0", "--web-port", "0", "--bookie-port", "0")
    process = subprocess.Popen(
        [*MAGNETAR, "standalone", "--secure", str(folder / "keys"), "--data", str(folder / "data"), *options],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "ready" in ready
        while "magnetar.Client(" not in process.stdout.readline():
            assert process.poll() is None
        port = int(ready.partition("bookies 127.0.0.1:")[2].partition(",")[0])
        yield read_profile(folder / "keys/admin.conf"), ready.partition("gRPC ")[2].partition(",")[0], port
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


async def answer(port: int, frame: bytes) -> memoryview:
    """What a bookie answers to a request in clear text."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(frame)
    (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    found = await reader.readexactly(size)
    writer.close()
    return memoryview(found)


def run(*arguments: str, code: int = 0) -> str:
    found = run_command(*arguments)
    assert found.returncode == code, (arguments, found.stdout, found.stderr)
    return found.stdout + found.stderr


def test_a_secured_standalone_serves_those_who_have_its_token(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    profile = ("--profile", str(keys / "admin.conf"))
    with standalone(tmp_path) as (found, grpc_address, bookie):
        assert found.service_url.startswith("pulsar+ssl://")
        run(*profile, "produce", "t", "-m", "hello")
        assert "hello" in run(*profile, "read", "t")
        assert "persistent://public/default/t" in run(*profile, "topics", "list")
        run(*profile, "topics", "export", "t", str(tmp_path / "t.topic"))
        run(*profile, "topics", "import", str(tmp_path / "t.topic"), "copy")
        assert "hello" in run(*profile, "read", "copy")
        assert v2.parse_response(asyncio.run(answer(bookie, v2.read_request(0, 0))))[1] == v2.V2Error.EUA
        refused = v3.parse_response(asyncio.run(answer(bookie, v3.read_request(1, 0, 0))))
        assert int(refused.status) == v3.V3Error.EUA
        run(
            *profile, "ledgers", "read", "0", "0", "-o", str(tmp_path / "entry")
        )  # the profile says how bookies are asked
        assert b"hello" in (tmp_path / "entry").read_bytes()
        trust = ("--tls-trust", str(keys / "ca.crt"))
        assert "401" in run(*trust, "topics", "list", "--admin-url", found.admin_url, code=2)
        assert "certificate" in run("topics", "list", "--admin-url", found.admin_url, code=2)
        token, certificate = (keys / "admin.token").read_text(), str(keys / "ca.crt")
        with magnetar.Client(grpc_address, token=token, tls_trust_certs_file=certificate) as client:
            assert client.reader("t").receive(10).payload == b"hello"
        with (
            magnetar.Client(grpc_address, token="x", tls_trust_certs_file=certificate) as client,
            pytest.raises(AccessDenied),
        ):
            client.producer("t").send(b"x")
        the_key_is_changed(keys, found.admin_url)
    made = contents(keys)
    with standalone(tmp_path):
        assert "hello" in run(*profile, "read", "t")
    assert contents(keys) == made


def the_key_is_changed(keys: Path, url: str) -> None:
    """The steps of docs/access.md, while it runs."""

    def taken(token: Path) -> bool:
        access = ("--token", f"file:{token}", "--tls-trust", str(keys / "ca.crt"))
        return run_command(*access, "topics", "list", "--admin-url", url).returncode == 0

    old, new = keys / "old.token", keys / "admin.new.token"
    old.write_bytes((keys / "admin.token").read_bytes())
    run("tokens", "create-secret-key", str(keys / "token.new.key"))
    new.write_text(run("tokens", "create", "admin", "--secret-key", str(keys / "token.new.key")).strip())
    deadline = time.monotonic() + TIMEOUT_S
    while not taken(new):
        assert time.monotonic() < deadline
    assert taken(old)
    new.replace(keys / "admin.token")
    (keys / "token.new.key").rename(keys / "token.key")
    while taken(old):
        assert time.monotonic() < deadline
    assert taken(keys / "admin.token")


def contents(keys: Path) -> dict[Path, bytes]:
    return {one: one.read_bytes() for one in keys.rglob("*") if one.is_file() and one.name != "admin.conf"}
