"""The bookie of `magnetar standalone --secure`, by who has no certificate for it.

Whoever may read and write there reads every topic, and its broker's roles and permissions do not count. So each request
is refused (EUA), whatever it is, and nothing of what is stored is in any answer.
"""

import asyncio
import contextlib
import datetime
import random
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from magnetar.client.async_client import AsyncClient
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from magnetar_core.security.tls.issuing import Issued, new_authority, new_server
from tests.abuse.driving import ANSWER_S, COUNT, SEED
from tests.abuse.kinds import Run
from tests.abuse.test_ports import bookie_v2, bookie_v3
from tests.support import bookie_requests
from tests.support.bookie_disks import KEY, stored_entry

pytestmark = [pytest.mark.process]

STORED: Final = b"what is stored for somebody else"
AT_ONCE: Final = 50
LEDGERS: Final = 8
"""The broker's first ledgers have smaller numbers."""


class Secured(NamedTuple):
    keys: Path
    bookie: int
    grpc: str
    log: Path
    process: "subprocess.Popen[str]"

    def client(self) -> AsyncClient:
        token, trusted = (self.keys / "admin.token").read_text(), str(self.keys / "ca.crt")
        return AsyncClient(self.grpc, token=token, tls_trust_certs_file=trusted)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    options = ("--port", "0", "--web-port", "0", "--bookie-port", "0", "--data", str(tmp_path / "data"))
    log = tmp_path / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "magnetar", "standalone", "--secure", str(tmp_path / "keys"), *options],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert "ready" in ready, log.read_text()[-3_000:]
        bookie = int(ready.partition("bookies 127.0.0.1:")[2].partition(",")[0])
        yield Secured(tmp_path / "keys", bookie, ready.partition("gRPC ")[2].partition(",")[0], log, process)
    finally:
        process.kill()
        process.communicate()


def contexts(secured: Secured, folder: Path) -> dict[str, ssl.SSLContext | None]:
    """How a stranger comes: in clear text, and over TLS with what it has."""
    now = datetime.datetime.now(datetime.UTC)
    strangers = new_authority("strangers", now)
    brokers, ports = (
        Issued(*((secured.keys / f"{name}.{end}").read_bytes() for end in ("crt", "key"))) for name in ("ca", "tls")
    )
    shown = {
        "with a stranger's certificate": new_server(strangers, ["localhost"], now, is_client=True),
        "with one of the brokers' authority": new_server(brokers, ["localhost"], now, is_client=True),
        "with that of the broker's ports": ports,
    }
    found: dict[str, ssl.SSLContext | None] = {"in clear text": None}
    for name, issued in {"over TLS": None, **shown}.items():
        found[name] = context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if issued is not None:
            (folder / "cert").write_bytes(issued.certificate)
            (folder / "key").write_bytes(issued.key)
            context.load_cert_chain(folder / "cert", folder / "key")
    return found


def request(rng: random.Random) -> bytes:
    """Of an entry that is there, with the key that the brokers' ledgers have; or any."""
    ledger_id, entry_id = rng.randrange(LEDGERS), rng.randrange(3)
    data = stored_entry(ledger_id, entry_id + 1_000)
    return rng.choice(
        [
            v2.read_request(ledger_id, entry_id),
            v2.read_request(ledger_id, entry_id, v2.FLAG_DO_FENCING, KEY),
            v2.batch_read_request(ledger_id, 0, 7, 100, 1 << 20),
            v2.add_request_head(0, KEY, len(data)) + data,
            v3.read_request(1, ledger_id, entry_id),
            bookie_requests.add_request(1, ledger_id, entry_id, KEY, data),
            v3.list_of_entries_request(1, ledger_id),
            v3.bookie_info_request(1),
            bookie_v2(rng),
            bookie_v3(rng),
        ]
    )


def is_refusal(frame: memoryview) -> bool:
    """Whether an answer gives nothing: EUA, what no request was, or the beginning of TLS."""
    try:
        if v3.is_v3(frame):
            said = v3.parse_response(frame)
            return int(said.status) != v3.V3Error.EOK or said.header.operation == v3.START_TLS
        return v2.parse_response(frame)[1] != v2.V2Error.EOK
    except MalformedFrame:
        return False


async def answers(secured: Secured, context: ssl.SSLContext | None, requests: list[bytes]) -> list[memoryview]:
    """All that comes until the bookie has nothing more to say, or ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", secured.bookie)
    splitter, found = FrameSplitter(), list[memoryview]()
    with contextlib.suppress(OSError, RuntimeError, ConnectionError, TimeoutError):
        if context is not None:
            writer.write(v3.start_tls_request(1))
            found += splitter.feed(await reader.read(1 << 16))
            await writer.start_tls(context)
        for one in requests:
            writer.write(one)
        if context is None:
            writer.write_eof()
        async with asyncio.timeout(ANSWER_S if context is None else 1):  # TLS has no half of a connection
            while data := await reader.read(1 << 16):
                found += splitter.feed(data)
    writer.close()
    return found


async def test_who_has_no_certificate_for_it_reads_and_writes_nothing(
    secured: Secured, tmp_path: Path, numbers: Run
) -> None:
    rng = random.Random(f"{SEED} secured")
    ways = contexts(secured, tmp_path)
    tried = [(way, [request(rng) for _ in range(rng.randrange(1, 8))]) for way in ways for _ in range(COUNT // 15)]
    async with secured.client() as client:
        producer = client.producer("t")
        first = await producer.send(STORED)
        assert first.ledger_id < LEDGERS
        for at in range(0, len(tried), AT_ONCE):
            some = tried[at : at + AT_ONCE]
            found = await asyncio.gather(*(answers(secured, ways[way], requests) for way, requests in some))
            for (way, requests), frames in zip(some, found, strict=True):
                for frame in frames:
                    assert is_refusal(frame), f"{way} (MAGNETAR_ABUSE_SEED={SEED}), {requests}: {bytes(frame)[:200]!r}"
                    assert STORED not in bytes(frame), f"{way} (MAGNETAR_ABUSE_SEED={SEED}) reads by {requests}"
        assert (await producer.send(b"more")).ledger_id == first.ledger_id, "somebody has fenced the ledger"
        async with client.reader("t", start="earliest") as reading:
            assert [(await reading.receive(ANSWER_S)).payload for _ in range(2)] == [STORED, b"more"]
    assert secured.process.poll() is None
    assert "Traceback" not in secured.log.read_text()
    numbers.add("secured", sum(len(requests) for _, requests in tried))
