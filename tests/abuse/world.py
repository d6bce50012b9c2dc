"""The abused server from outside, and what has to hold after each group of inputs.

1. The process lives.
2. Its loop was never blocked longer than the watchdog allows (tests/abuse/watchdog.py says how that is measured).
3. Its memory is within a bound.
4. Other clients are unharmed: a producer and a consumer that have been there since the beginning, on their first
   connections, still send and receive; what a bookie has stored is still read.
5. Every error was an expected one: there is no traceback in its log.
"""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import aiohttp

from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.runtime.types import MIB
from tests.support.serving import Wire
from tests.unit.broker.raw_client import RawClient

KEPT: Final = "persistent://public/kept/t"

# The process with its libraries and caches is some 150 MB; a few hundred MB more are allowed for what the inputs of a
# whole run have made: topics, ledgers, schemas, subscriptions.
MEMORY_MAX: Final = 700 * MIB

START_S: Final = 60.0
PATIENCE_S: Final = 60.0


class Server:
    """The process."""

    def __init__(self, folder: Path, *, guarded: bool = False, descriptors: int = 0) -> None:
        """*descriptors*: how many files it may have open; 0: as many as this process."""
        self._folder = folder
        self._guarded = guarded
        self._descriptors = descriptors
        self._log = folder / "log"
        self._log_read = 0
        self._away_seen = 0
        self.ports: dict[str, Any] = {}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}
        most = f"ulimit -n {self._descriptors} && " if self._descriptors else ""
        guarded = ["guarded"] if self._guarded else []
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                ["sh", "-c", f'{most}exec "$@"', "sh", sys.executable, "-m", "tests.abuse.server", str(self._folder),
                 *guarded],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True, env=environment,
            )  # fmt: skip
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it did not start: {self._log.read_text()[-4_000:]}"
        self.ports = json.loads(line)

    def stop(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def check(self, what: str) -> None:
        """Rules 1, 2, 3, 5. *what* was sent."""
        assert self._process is not None
        said = self._new_log()
        assert self._process.poll() is None, (
            f"after {what}: the process ended ({self._process.poll()}): {said[-4_000:]}"
        )
        lines = (self._folder / "away").read_text().splitlines()
        away, self._away_seen = [json.loads(line) for line in lines[self._away_seen :]], len(lines)
        assert not away, f"after {what}: the loop was away {away[0]['away_s']} s:\n{away[0]['where']}"
        assert self.memory_bytes < MEMORY_MAX, f"after {what}: {self.memory_bytes // MIB} MB"
        surprises = [block for block in said.split("\n\n") if "Traceback" in block]
        assert "Traceback" not in said, f"after {what}: {(surprises or [said])[0][-3_000:]}"

    def _new_log(self) -> str:
        with self._log.open(errors="replace") as log:
            log.seek(self._log_read)
            said = log.read()
            self._log_read = log.tell()
        return said

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def memory_bytes(self) -> int:
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


_numbers = itertools.count()


class Bystanders:
    """Clients that behave correctly, and must not be harmed. Beside the guarded server it is `Victim`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sent = 0
        self._stored: list[tuple[int, int]] = []

    async def start(self) -> None:
        async with aiohttp.ClientSession() as session:
            for path in ("namespaces/public/kept", "persistent/public/kept/t"):
                async with session.put(f"{self._server.ports['http']}/admin/v2/{path}") as answer:
                    assert answer.status in (204, 409), await answer.text()
        port = self._server.ports["binary"]
        self._producer, self._consumer = await RawClient.connect(port), await RawClient.connect(port)
        await self._consumer.subscribe(KEPT, permits=1_000_000, subscription=f"bystander-{next(_numbers)}")
        await self._producer.produce(KEPT)
        self._wire = await wire_to(self._server)

    async def check(self) -> None:
        """Rule 4."""
        async with asyncio.timeout(PATIENCE_S):
            self._producer.publish(1, self._sent)
            receipt = await self._past_pings(self._producer)
            assert (receipt.type, receipt.send_receipt.sequence_id) == (BaseCommand.SEND_RECEIPT, self._sent)
            message = await self._past_pings(self._consumer)
            assert message.type == BaseCommand.MESSAGE
            assert message.message.message_id.entryId == receipt.send_receipt.message_id.entryId
            self._consumer.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[message.message.message_id])
            self._sent += 1
            self._stored.append((receipt.send_receipt.message_id.ledgerId, receipt.send_receipt.message_id.entryId))
            for stored in (self._stored[0], self._stored[-1]):
                assert isinstance(await self._wire.read(*stored), bytes), f"the bookie does not give {stored} any more"

    @staticmethod
    async def _past_pings(client: RawClient) -> BaseCommand:
        while (answer := await client.answer()).type == BaseCommand.PING:
            client.send(BaseCommand.PONG)
        return answer

    def close(self) -> None:
        for client in (self._producer, self._consumer, self._wire):
            client.close()


class Victim:
    """The client of another tenant at the guarded server (`tests.abuse.victim`): rule 4, and its p99."""

    P99_MAX_MS: Final = 1_000.0
    SAMPLES_MIN: Final = 100

    def __init__(self, server: Server, folder: Path) -> None:
        self._server = server
        self._book = folder / "victim"
        self._errors = folder / "victim.errors"
        self._process: subprocess.Popen[str] | None = None

    def start(self, port: int, token: str, topic: str) -> None:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.abuse.victim", str(port), token, topic,
                 str(self._server.pid), str(self._book)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._errors.read_text()[-3_000:]

    @property
    def times_ms(self) -> list[float]:
        """Of all messages that have come, in the order in which they came."""
        return [
            float(json.loads(line)[1]) for line in self._book.read_text().splitlines(keepends=True) if line[-1] == "\n"
        ]

    async def check(self, count: int = 1) -> None:
        """*count* messages come from now on."""
        assert self._process is not None
        begun = len(self.times_ms)
        async with asyncio.timeout(PATIENCE_S):
            while len(self.times_ms) < begun + count:
                assert self._process.poll() is None, f"the victim ended: {self._errors.read_text()[-3_000:]}"
                await asyncio.sleep(0.02)

    async def p99_ms(self, since: int) -> float:
        """Of the messages that came after *since* others, at least `SAMPLES_MIN`."""
        await self.check(max(self.SAMPLES_MIN - (len(self.times_ms) - since), 1))
        times = sorted(self.times_ms[since:])
        return times[int(0.99 * (len(times) - 1))]

    def stop(self) -> None:
        """It waits for what it has under way, and compares what was acknowledged with what it was given."""
        assert self._process is not None
        assert self._process.stdin is not None
        said, _ = self._process.communicate("end\n", timeout=2 * PATIENCE_S)
        assert self._process.returncode == 0, self._errors.read_text()[-3_000:]
        told = json.loads(said)
        assert told["sent"] == told["delivered"] > 0


async def client_of(server: Server, *topics: str) -> RawClient:
    """A client that has looked up *topics*: a broker serves what was looked up."""
    client = await RawClient.connect(server.ports["binary"])
    for topic in topics:
        client.send(BaseCommand.LOOKUP, topic=topic, request_id=0)
        answer = await client.expect(BaseCommand.LOOKUP_RESPONSE)
        assert not answer.lookupTopicResponse.HasField("error"), answer
    return client


async def wire_to(server: Server) -> Wire:
    return Wire(*await asyncio.open_connection("127.0.0.1", server.ports["bookie"]))


__all__ = ["KEPT", "Bystanders", "Server", "Victim", "client_of", "wire_to"]
