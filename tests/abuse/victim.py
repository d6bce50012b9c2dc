"""A client of another tenant, in a process of its own: it publishes, reads, and notes how long each message took.

    python -m tests.abuse.victim PORT TOKEN TOPIC PID FILE      PID is the server; ends in order after a line of input

Messages leave at a fixed pace, whether the server answers or not, so a server that stands still is seen by all of those
that would have come meanwhile. A message has come when it was acknowledged and delivered. What counts is the time
without that in which this process, or the loop of the server, waited for a processor: a busy machine is not the server.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Final, TextIO

from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.runtime.clock import LoopClock
from managed_ledger.messages_pb2 import MessageIdData
from tests.unit.broker.raw_client import RawClient

PAUSE_S: Final = 0.01
LAST_S: Final = 60.0
"""How long the messages under way may take at the end."""

CLOCK: Final = LoopClock()

Place = tuple[int, int]
"""Ledger and entry."""


class Book:
    """What was sent, acknowledged and delivered."""

    def __init__(self, file: TextIO, server_pid: int) -> None:
        self._file = file
        self._waits = [Path(f"/proc/{pid}/schedstat") for pid in ("self", server_pid)]
        self._sent: list[tuple[float, float]] = []
        self._open: dict[int, int] = {}
        """What has come of a message: a receipt, a delivery."""
        self.acknowledged: dict[int, Place] = {}
        self.delivered: list[Place] = []

    @property
    def sent(self) -> int:
        return len(self._sent)

    def send(self) -> None:
        self._open[self.sent] = 0
        self._sent.append((CLOCK.monotonic(), self._waited_s()))

    @property
    def is_complete(self) -> bool:
        return len(self.acknowledged) == len(self.delivered) == self.sent

    def receipt(self, number: int, place: MessageIdData) -> None:
        self.acknowledged[number] = (place.ledgerId, place.entryId)
        self._came(number)

    def delivery(self, place: MessageIdData) -> None:
        self.delivered.append((place.ledgerId, place.entryId))
        self._came(len(self.delivered) - 1)

    def check(self) -> None:
        """Each message was delivered once, in order, from where it was acknowledged."""
        assert [self.acknowledged[number] for number in range(self.sent)] == self.delivered

    def _came(self, number: int) -> None:
        self._open[number] += 1
        if self._open[number] < 2:
            return
        del self._open[number]
        begun, waited_s = self._sent[number]
        took_s = CLOCK.monotonic() - begun - (self._waited_s() - waited_s)
        self._file.write(json.dumps([number, round(max(took_s, 0) * 1000, 2)]) + "\n")
        self._file.flush()

    def _waited_s(self) -> float:
        """How long both processes have waited for a processor, in their first threads, since they began."""
        return sum(int(path.read_text().split()[1]) for path in self._waits) / 1e9


async def connect(port: int, token: str) -> RawClient:
    client = await RawClient.connect(port, introduce=False)
    client.send(BaseCommand.CONNECT, client_version="victim", protocol_version=21, auth_method_name="token",
                auth_data=token.encode())  # fmt: skip
    await client.expect(BaseCommand.CONNECTED)
    return client


async def main(port: int, token: str, topic: str, server_pid: int, path: Path) -> None:
    producer, consumer = await connect(port, token), await connect(port, token)
    producer.send(BaseCommand.LOOKUP, topic=topic, request_id=0)
    await producer.expect(BaseCommand.LOOKUP_RESPONSE)
    await consumer.subscribe(topic, permits=2**31 - 1)
    await producer.produce(topic)
    stopping = asyncio.Event()
    with path.open("w") as file:
        book = Book(file, server_pid)

        async def answers(client: RawClient) -> None:
            while True:
                try:
                    answer = await client.answer()
                except TimeoutError:  # the server stands still, or all has come
                    continue
                if answer.type == BaseCommand.PING:
                    client.send(BaseCommand.PONG)
                elif answer.type == BaseCommand.SEND_RECEIPT:
                    book.receipt(answer.send_receipt.sequence_id, answer.send_receipt.message_id)
                elif answer.type == BaseCommand.MESSAGE:
                    client.send(BaseCommand.ACK, consumer_id=1, ack_type=0, message_id=[answer.message.message_id])
                    book.delivery(answer.message.message_id)
                else:
                    raise AssertionError(f"a client that does no harm was told {answer}")

        async def sending() -> None:
            due = CLOCK.monotonic()
            while not stopping.is_set():
                producer.publish(1, book.sent)
                book.send()
                due += PAUSE_S
                await asyncio.sleep(max(due - CLOCK.monotonic(), 0))

        async def until_input_ends() -> None:
            await asyncio.to_thread(sys.stdin.readline)
            stopping.set()

        async def until_all_has_come() -> None:
            await asyncio.gather(sending(), until_input_ends())
            async with asyncio.timeout(LAST_S):
                while not book.is_complete:
                    await asyncio.sleep(0.01)
            book.check()

        print("ready", flush=True)
        reading = [asyncio.ensure_future(answers(client)) for client in (producer, consumer)]
        ending = asyncio.ensure_future(until_all_has_come())
        await asyncio.wait([*reading, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in (*reading, ending):
            if task.done():
                task.result()
        print(json.dumps({"sent": book.sent, "delivered": len(book.delivered)}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])))
