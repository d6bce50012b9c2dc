"""A client made of bare frames."""

import asyncio
from typing import Any

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE, command, parse_frame, payload_frame
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from magnetar_core.runtime.types import Buffer
from tests.unit.broker.topic.dispatching import entry

TIMEOUT_S = 5.0


class RawClient:
    """Sends commands, takes answers in the order in which they come."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._splitter = FrameSplitter(2**30)
        self._waiting: list[BaseCommand] = []

    @staticmethod
    async def connect(port: int, *, introduce: bool = True) -> "RawClient":
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        if introduce:
            client.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21)
            await client.expect(BaseCommand.CONNECTED)
        return client

    def send(self, kind: int, **fields: Any) -> None:
        self.writer.write(command(kind, **fields))

    def publish(self, producer_id: int, *sequence_ids: int, data: bytes | None = None, **fields: Any) -> None:
        frames: list[Buffer] = []
        for sequence_id in sequence_ids:
            made = BaseCommand(
                type=BaseCommand.SEND,
                send=wire.CommandSend(producer_id=producer_id, sequence_id=sequence_id, **fields),
            )
            frames.extend(payload_frame(made, entry(sequence_id) if data is None else data))
        self.writer.write(b"".join(bytes(frame) for frame in frames))

    async def produce(self, topic: str, producer_id: int = 1, **fields: Any) -> wire.CommandProducerSuccess:
        self.send(BaseCommand.PRODUCER, topic=topic, producer_id=producer_id, request_id=1, **fields)
        answer = await self.expect(BaseCommand.PRODUCER_SUCCESS)
        return answer.producer_success

    async def subscribe(self, topic: str, consumer_id: int = 1, permits: int = 100, **fields: Any) -> None:
        wanted = {"subscription": "s", "subType": wire.CommandSubscribe.Exclusive, **fields}
        self.send(BaseCommand.SUBSCRIBE, topic=topic, consumer_id=consumer_id, request_id=2, **wanted)
        await self.expect(BaseCommand.SUCCESS)
        self.send(BaseCommand.FLOW, consumer_id=consumer_id, messagePermits=permits)

    async def answer(self) -> BaseCommand:
        """The next command that comes. Raises ConnectionError at the end."""
        while not self._waiting:
            async with asyncio.timeout(TIMEOUT_S):
                data = await self._reader.read(1 << 16)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._waiting.extend(parse_frame(frame)[0] for frame in self._splitter.feed(data))
        return self._waiting.pop(0)

    async def expect(self, kind: int) -> BaseCommand:
        answer = await self.answer()
        assert answer.type == kind, f"wanted {BaseCommand.Type.Name(kind)}, got {answer}"
        return answer

    async def nothing_came(self) -> bool:
        """Whether nothing is there after the broker has surely worked on all that was sent."""
        self.send(BaseCommand.PING)
        return (await self.answer()).type == BaseCommand.PONG

    async def refused(self) -> int:
        """The code of the error that comes next, in whichever answer."""
        answer = await self.answer()
        body = getattr(answer, BODY_OF_TYPE[answer.type])
        code: int = body.error if hasattr(body, "error") else body.error_code
        return code

    async def ended(self) -> bool:
        try:
            while True:
                await self.answer()
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    def close(self) -> None:
        self.writer.close()
