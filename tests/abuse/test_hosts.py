"""Requests under the names of others, at the HTTP of servers that ask nobody for a token."""

import asyncio
import random
from typing import Final, NamedTuple

import pytest
from yarl import URL

from tests.abuse.driving import ANSWER_S, abuse
from tests.abuse.kinds import Run
from tests.abuse.world import Bystanders, Server

pytestmark = [pytest.mark.process]

OURS: Final = (
    "127.0.0.1", "LOCALHOST", "x.localhost", "host.docker.internal", "[::1]", "10.1.2.3", "bookie-1", "localhost.",
)  # fmt: skip
_LABELS: Final = ("evil", "localhost", "127", "0", "1", "internal", "bookie-1", "a" * 63, "xn--e1afmkfd", "WWW")
_LAST: Final = ("example", "com", "Test", "1x", "example.")


def foreign(rng: random.Random) -> str:
    """A name that may be anybody's: it has a dot, is no address, and ends like none of ours."""
    return ".".join([*rng.choices(_LABELS, k=rng.choice([1, 2, 4])), rng.choice(_LAST)])


class Door(NamedTuple):
    read: str
    change: tuple[str, str, bytes]


DOORS: Final = {
    "http": Door("/admin/v2/clusters", ("PUT", "/admin/v2/namespaces/public/rebound", b"{}")),
    "bookie_http": Door("/api/v1/bookie/info", ("PUT", "/api/v1/bookie/state/readonly", b'{"readOnly": true}')),
    "management": Door("/manage/v1/auto-recovery", ("PUT", "/manage/v1/auto-recovery", b'{"enabled": false}')),
}


async def status_of(url: URL, method: str, path: str, body: bytes, host: str, origin: str) -> int:
    reader, writer = await asyncio.open_connection(url.host, url.port)
    shown = f"Origin: {origin}\r\n" if origin else ""
    kind = "Content-Type: application/json\r\n" if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{shown}{kind}Content-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n".encode() + body)
    async with asyncio.timeout(ANSWER_S):
        status = int((await reader.readline()).split()[1])
        await reader.read()
    writer.close()
    return status


async def test_a_page_of_others_reads_and_changes_nothing(server: Server, bystanders: Bystanders, numbers: Run) -> None:
    async def send(rng: random.Random) -> int:
        name, door = rng.choice(list(DOORS.items()))
        url = URL(server.ports[name])
        is_ours, changes = rng.random() < 0.3, rng.random() < 0.5
        host = rng.choice(OURS) if is_ours else foreign(rng)
        host += rng.choice(["", f":{url.port}", ":80"])
        page = f"http://{foreign(rng)}"
        origin = rng.choice([page, "null"]) if is_ours and changes else rng.choice(["", page, f"http://{host}"])
        method, path, body = door.change if changes else ("GET", door.read, b"")
        status = await status_of(url, method, path, body, host, origin)
        refused = changes or not is_ours
        assert (status == 403) == refused, f"{method} {name}{path} as {host!r} for {origin!r}: {status}"
        return 1

    await abuse(server, bystanders, numbers, "hosts", send)
