"""Ten thousand topics with three policies of their own each, beside as many without: set, opened anew, memory."""

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import aiohttp

from bench.groups import Rows
from bench.secured import standalone
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import parse_frame, simple_frame
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

TOPICS = 10_000
AT_ONCE = 32
POLICIES: Final = {
    "retention": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 100},
    "publishRate": {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": 10_000_000},
    "maxProducers": 10,
}


async def _all(count: int, call: Callable[[int], Awaitable[None]]) -> float:
    """Seconds for *count* calls, AT_ONCE side by side."""
    left = iter(range(count))

    async def one_after_the_other() -> None:
        for number in left:
            await call(number)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    return time.perf_counter() - began


async def make(web_port: int, policies: bool) -> tuple[float, float]:
    """Seconds for making the topics, and for their policies."""
    root = f"http://127.0.0.1:{web_port}/admin/v2/persistent/public/default"
    async with aiohttp.ClientSession(raise_for_status=True) as session:

        async def create(number: int) -> None:
            async with session.put(f"{root}/t-{number}"):
                pass

        async def tell(number: int) -> None:
            name = list(POLICIES)[number % len(POLICIES)]
            async with session.post(f"{root}/t-{number // len(POLICIES)}/{name}", json=POLICIES[name]):
                pass

        made = await _all(TOPICS, create)
        return made, await _all(TOPICS * len(POLICIES), tell) if policies else 0.0


class Publisher:
    """One connection that sends one message to each topic."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def _ask(self, data: bytes) -> wire.BaseCommand:
        self._writer.write(data)
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = parse_frame(memoryview(await self._reader.readexactly(size)))[0]
            if answer.type != wire.BaseCommand.PING:
                return answer
            command = wire.BaseCommand(type=wire.BaseCommand.PONG)
            command.pong.SetInParent()
            self._writer.write(simple_frame(command))

    async def greet(self) -> None:
        command = wire.BaseCommand(type=wire.BaseCommand.CONNECT)
        command.connect.client_version, command.connect.protocol_version = "bench", 20
        await self._ask(simple_frame(command))

    async def publish(self, number: int) -> None:
        topic = f"persistent://public/default/t-{number}"
        command = wire.BaseCommand(type=wire.BaseCommand.LOOKUP)
        command.lookupTopic.topic, command.lookupTopic.request_id = topic, 1
        await self._ask(simple_frame(command))
        command = wire.BaseCommand(type=wire.BaseCommand.PRODUCER)
        command.producer.topic, command.producer.producer_id, command.producer.request_id = topic, number, 2
        answer = await self._ask(simple_frame(command))
        assert answer.type == wire.BaseCommand.PRODUCER_SUCCESS, answer
        command = wire.BaseCommand(type=wire.BaseCommand.SEND)
        command.send.producer_id, command.send.sequence_id = number, 0
        metadata = MessageMetadata(producer_name=answer.producer_success.producer_name, sequence_id=0, publish_time=1)
        entry = encode_entry(metadata, b"one")
        head = simple_frame(command)
        answer = await self._ask((len(head) - 4 + len(entry)).to_bytes(4, "big") + head[4:] + entry)
        assert answer.type == wire.BaseCommand.SEND_RECEIPT, answer


async def open_all(port: int) -> float:
    """Seconds for a producer and a message at every topic."""
    left = iter(range(TOPICS))

    async def one_after_the_other() -> None:
        publisher = Publisher(*await asyncio.open_connection("127.0.0.1", port))
        await publisher.greet()
        for number in left:
            await publisher.publish(number)
        held.append(publisher)

    held: list[Publisher] = []  # the producers stay until all are there
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(one_after_the_other())
    return time.perf_counter() - began


def measured(policies: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        with standalone(Path(folder)) as started:
            made, told = asyncio.run(make(started.web_port, policies))
        with standalone(Path(folder)) as started:
            before = started.resident_mb
            first = asyncio.run(_first(started.port))
            opened = asyncio.run(open_all(started.port))
            return {
                "made": made, "told": told, "first": first, "opened": opened, "memory": started.resident_mb - before
            }  # fmt: skip


async def _first(port: int) -> float:
    """Seconds until one of the topics takes a message, after a restart."""
    began = time.perf_counter()
    publisher = Publisher(*await asyncio.open_connection("127.0.0.1", port))
    await publisher.greet()
    await publisher.publish(TOPICS - 1)
    return time.perf_counter() - began


def rows() -> Rows:
    without, with_them = measured(policies=False), measured(policies=True)
    count = TOPICS * len(POLICIES)
    return [
        (
            f"{count:,} policies set on {TOPICS:,} topics, {AT_ONCE} calls at once",
            f"{count / with_them['told']:,.0f}/s",
        ),
        *(
            (
                f"{TOPICS:,} topics {what}",
                f"{with_them[name]:,.1f} {unit}, without policies {without[name]:,.1f} {unit}",
            )
            for name, unit, what in (
                ("first", "s", "with policies: from a restart to the first message of one"),
                ("opened", "s", "with policies: a producer and a message at each"),
                ("memory", "MB", "with policies: resident memory for all that"),
            )
        ),
    ]
