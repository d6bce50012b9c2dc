"""The table of memory in docs/production.md, compared with what a broker in this process holds of each."""

import asyncio
import gc
import re
import tracemalloc
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import pulsar
import pytest

from magnetar_core.bookkeeper.metadata.stores import memory
from magnetar_core.topics.topic_name import TopicName
from tests.process.test_alerts import QUIET, in_thread
from tests.support import memory_bookkeeper
from tests.unit.broker.admin.admin_world import AdminWorld

pytestmark = pytest.mark.process

PAGE: Final = Path(__file__).parents[2] / "docs/production.md"
ROW: Final = re.compile(r"^\| (.*) \| ([\d,]+) B(?: and what it has)? \| ", re.MULTILINE)
FACTOR: Final = 2

TOPICS: Final = 60
MESSAGES: Final = 2_000
PAYLOAD: Final = b"x" * 100

# What the test itself holds, and what stands for bookies and ZooKeeper.
_NOT_THE_BROKER: Final = {__file__, pulsar.__file__, memory_bookkeeper.__file__, memory.__file__}


class Held:
    """What one of each costs, in bytes of Python's objects."""

    def __init__(self) -> None:
        self.bytes: dict[str, float] = {}

    async def note(self, what: str, count: int, work: Callable[[], Any]) -> None:
        """*work* runs on another thread: the broker has this one."""
        before = await _held()
        await in_thread(work)
        self.bytes[what] = (await _held() - before) / count


async def _held() -> int:
    await asyncio.sleep(0.05)
    gc.collect()
    traces = tracemalloc.take_snapshot().traces
    return sum(trace.size for trace in traces if trace.traceback[0].filename not in _NOT_THE_BROKER)


async def measured(world: AdminWorld) -> dict[str, float]:
    side = await world.side()
    await world.spread([side])
    client = await in_thread(lambda: pulsar.Client(side.url, logger=QUIET))
    held, loop, shared = Held(), asyncio.get_running_loop(), pulsar.ConsumerType.Shared
    names = [f"t{number}" for number in range(TOPICS)]
    producers: list[pulsar.Producer] = []
    consumers: list[pulsar.Consumer] = []

    def open_topics() -> None:
        for name in names:
            opened = side.broker.topic_for_producer(TopicName.parse(name))
            asyncio.run_coroutine_threadsafe(opened, loop).result()

    def send(producer: pulsar.Producer, count: int) -> None:
        for _ in range(count):
            producer.send_async(PAYLOAD, None)
        producer.flush()

    def receive(count: int) -> None:
        consumer = client.subscribe("t0", "s", consumer_type=shared)
        for _ in range(count):
            consumer.receive(20_000)

    def produce() -> None:
        producers.extend(client.create_producer(name, batching_enabled=False, max_pending_messages=0) for name in names)

    def subscribe(*, stay: bool) -> None:
        made = [client.subscribe(name, "s", consumer_type=shared) for name in names]
        for consumer in () if stay else made:
            consumer.close()
        consumers.extend(made if stay else ())

    await in_thread(lambda: client.create_producer("warm").send(PAYLOAD))  # what is made once
    await in_thread(lambda: client.subscribe("warm", "s", consumer_type=shared))
    await held.note("an open topic", TOPICS, open_topics)
    await held.note("a producer", TOPICS, produce)
    await in_thread(lambda: [producer.send(PAYLOAD) for producer in producers])
    await held.note("a subscription with its cursor", TOPICS, lambda: subscribe(stay=False))
    await held.note("a consumer", TOPICS, lambda: subscribe(stay=True))
    await in_thread(consumers[0].close)
    await held.note("an entry in the cache", MESSAGES, lambda: send(producers[0], MESSAGES))
    held.bytes["an entry in the cache"] -= len(PAYLOAD)
    await held.note("a message that was sent and is not acknowledged", MESSAGES, lambda: receive(MESSAGES))
    await in_thread(client.close)
    return held.bytes


async def test_the_table_of_memory_is_true() -> None:
    said = {what: int(size.replace(",", "")) for what, size in ROW.findall(PAGE.read_text())}
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        tracemalloc.start()
        try:
            found = await measured(world)
        finally:
            tracemalloc.stop()
    assert found.keys() == said.keys()
    wrong = {what: (round(size), said[what]) for what, size in found.items()
             if not said[what] / FACTOR <= size <= said[what] * FACTOR}  # fmt: skip
    assert not wrong, "what a broker holds of each, and what the page says"
