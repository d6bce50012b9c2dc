"""More applications of a life, each with a topic of its own.

`Keyed`: values by key, compacted now and then. In the end a reader that reads compacted sees the last value of each
key.
`Deleted`: a topic that is deleted and made again. What was acknowledged after a deletion is there; nothing of before
is.
`Orders`: producers and consumers of the topic API, by `magnetar.AsyncClient`. What was acknowledged to one is received,
of each key in the order of the calls.
"""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol, TypeVar

import magnetar
from broker.broker import Broker
from broker.wire import pulsar_pb2 as wire
from magnetar.client.errors import TopicError
from magnetar.testing.simulated.cluster import WEB_PORT, SimulatedCluster
from magnetar.testing.simulated.loop import Process
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.paths import ledger_path
from tests.simulation.stack.pulsar_client import OPERATION_S, Consumer, Failed, PulsarClient, Received

T = TypeVar("T")

KEYS: Final = 6

_SCHEMAS: Final = (
    wire.Schema(name="a", type=wire.Schema.String, schema_data=b""),
    wire.Schema(
        name="b",
        type=wire.Schema.Json,
        schema_data=b'{"type": "record", "name": "B", "fields": [{"name": "b", "type": "int"}]}',
    ),
)
PATIENCE_S: Final = 180.0


class World(Protocol):
    """What an application needs of the life that it is part of."""

    cluster: SimulatedCluster
    counts: Counter[str]

    @property
    def keeps_parts(self) -> bool:
        """Whether brokers keep which messages of a batch are acknowledged."""
        ...

    @property
    def is_faulty(self) -> bool:
        """Whether faults happen, or may happen again."""
        ...

    def note(self, text: str) -> None: ...

    def problem(self, text: str) -> None: ...

    def client(self, name: str) -> tuple[Process, PulsarClient]: ...


class Keyed:
    """Values by key, over a topic that is compacted."""

    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._last: dict[str, set[str]] = {}
        """Key → the values of which one is the last: more than one where nobody knows whether it was stored."""
        self._seen: dict[str, str] = {}

    async def run(self) -> None:
        """While there are faults, and then until all that was acknowledged can be read."""
        process, client = self._world.client("keyed")
        await process.run(self._produce(client))
        process, client = self._world.client("keyed-reader")
        await process.run(self._read(client))

    async def _produce(self, client: PulsarClient) -> None:
        rng, count = self._rng, 0
        producer = await client.produce(self._topic, "keyed")
        while self._world.is_faulty:
            key = f"k{rng.randrange(KEYS)}"
            values = []
            for _ in range(rng.choice((1, 1, 4))):
                count += 1
                values.append("" if rng.random() < 0.1 else f"{key}={count}")
            try:
                await producer.send([value.encode() for value in values], key=key)
                self._last[key] = {values[-1]}
            except Failed:
                self._last.setdefault(key, {""}).update(values)
            if rng.random() < 0.05:
                self._compact()
            await asyncio.sleep(rng.expovariate(1 / 0.2))

    def _compact(self) -> None:
        owner = owner_of(self._world.cluster, self._topic)
        if owner is not None:
            process, broker, name = owner
            if process.call(broker.topics[name].compactor.start):
                self._world.note(f"{self._topic} is compacted")

    async def _read(self, client: PulsarClient) -> None:
        loop = asyncio.get_running_loop()
        self._compact()
        deadline_s = loop.time() + PATIENCE_S
        reader = await client.subscribe(
            self._topic, "reader", wire.CommandSubscribe.Exclusive, on_message=self._arrived, name="reader",
            durable=False, compacted=True,
        )  # fmt: skip
        while wrong := [key for key, values in self._last.items() if self._seen.get(key, "") not in values]:
            if loop.time() > deadline_s:
                told = [(key, self._seen.get(key), self._last[key]) for key in wrong[:3]]
                self._world.problem(f"{self._topic}: a compacted reader sees (key, value, what was stored) {told}")
                break
            await asyncio.sleep(0.5)
        await reader.close()

    def _arrived(self, received: Received) -> None:
        self._seen[received.key] = received.payload.decode()
        received.consumer.acknowledge(received)


class Deleted:
    """A topic that is deleted, and made again by whoever comes next."""

    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng

    async def run(self) -> None:
        life = 0
        while self._world.is_faulty:
            process, client = self._world.client(f"deleted-{life}")
            await process.run(self._live(client, life))
            process.kill()
            life += 1

    async def _live(self, client: PulsarClient, life: int) -> None:
        received: set[str] = set()

        def arrived(message: Received) -> None:
            received.add(message.payload.decode())
            message.consumer.acknowledge(message)

        # Each life of the topic has a schema that does not go with the former one.
        schema = None if self._rng.random() < 0.3 else _SCHEMAS[life % len(_SCHEMAS)]
        fields = {} if schema is None else {"schema": schema}
        consumer = await client.subscribe(
            self._topic, "s", wire.CommandSubscribe.Shared, on_message=arrived, name="c", queue=5, **fields
        )
        producer = await client.produce(self._topic, f"deleted-{life}", **fields)
        sent = set()
        for number in range(self._rng.randint(1, 30)):
            text = f"{life}:{number}"
            try:
                await producer.send([text.encode()])
                sent.add(text)
            except Failed:
                pass
        await self._until(lambda: sent <= received, lambda: f"{sorted(sent - received)[:5]} are missing")
        strangers = [text for text in received if not text.startswith(f"{life}:")]
        if strangers:
            self._world.problem(f"{self._topic}: {strangers[:3]} of a topic that was deleted, in its life {life}")
        await producer.close()
        await consumer.close()
        await self._delete(consumer)

    async def _delete(self, consumer: Consumer) -> None:
        name = TopicName.parse(self._topic)

        async def delete(broker: Broker) -> None:
            await broker.deleting.delete_topic(name, force=True)

        async def deleted() -> bool:
            owner = owner_of(self._world.cluster, self._topic)
            if owner is None:  # somebody has to open it, who makes it again where it was deleted
                try:
                    await consumer.client.connect(await consumer.client.locate(self._topic))
                    again = await consumer.client.produce(self._topic, "again")
                    await again.close()
                except (Failed, OSError, TimeoutError):
                    pass
                return False
            process, broker, _ = owner
            asking = asyncio.ensure_future(self._ask_statistics(broker, process))
            try:
                await carried_out(process, delete(broker))
                await asking
                if await self._world.cluster.server.root.exists(ledger_path(name.managed_ledger_name)):
                    self._world.problem(f"{self._topic} is deleted, and there again, though nobody uses it")
            except (MagnetarError, Failed) as error:
                self._world.note(f"{self._topic} is not deleted: {error!r}")
                return False
            return True

        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while not await deleted():
            if loop.time() > deadline_s:
                self._world.problem(f"{self._topic} cannot be deleted")
                return
            await asyncio.sleep(1.0)
        self._world.note(f"{self._topic} is deleted")

    async def _ask_statistics(self, broker: Broker, process: Process) -> None:
        """An operator looks at the topic while it goes."""
        await asyncio.sleep(self._rng.choice((0.0, 0.0005, 0.002)))
        path = self._topic.replace("://", "/")
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(OPERATION_S):
                reader, writer = await asyncio.open_connection(process.host, WEB_PORT)
                writer.write(f"GET /admin/v2/{path}/stats HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n".encode())
                await reader.read(-1)
                writer.close()

    async def _until(self, done: Callable[[], bool], why: Callable[[], str]) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while not done():
            if loop.time() > deadline_s:
                self._world.problem(f"{self._topic}: {why()}")
                return
            await asyncio.sleep(0.2)


class Orders:
    """Producers and consumers of the topic API."""

    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._sent: set[bytes] = set()
        self._received: set[bytes] = set()
        self._unsure: set[bytes] = set()
        self._seen: set[bytes] = set()
        self._last_of: dict[tuple[bytes, str | None], int] = {}
        """Producer and key → the number of the last message that came for the first time."""

    async def run(self) -> None:
        process, _ = self._world.client("orders")
        await process.run(self._live())

    async def _live(self) -> None:
        addresses = [machine.grpc_address for machine in self._world.cluster.brokers]
        async with magnetar.AsyncClient(addresses) as client:
            kinds: tuple[magnetar.SubscriptionType, ...] = ("exclusive", "shared", "failover", "key_shared")
            kind = self._rng.choice(kinds)
            count = 1 if kind == "exclusive" else 2
            consumers = [asyncio.ensure_future(self._bill(client, kind)) for _ in range(count)]
            await asyncio.gather(*(self._sell(client, number) for number in range(2)))
            loop = asyncio.get_running_loop()
            deadline_s = loop.time() + PATIENCE_S
            while missing := self._sent - self._received:
                if loop.time() > deadline_s:
                    some = sorted(missing)[:5]
                    self._world.problem(f"{self._topic}: {kind} did not get {some}, {len(missing)} in all")
                    break
                await asyncio.sleep(0.5)
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)

    async def _sell(self, client: magnetar.AsyncClient, number: int) -> None:
        producer = client.producer(self._topic, name=f"shop-{number}" if number else "")
        count = 0
        while self._world.is_faulty:
            many = self._rng.choice((1, 1, 5))  # begun in this order, whether the producer is open or not
            await asyncio.gather(*(self._send(producer, b"%d:%d" % (number, count + at)) for at in range(many)))
            count += many
            await asyncio.sleep(self._rng.expovariate(1 / 0.3))

    async def _send(self, producer: Any, payload: bytes) -> None:
        try:
            await producer.send(payload, key=f"k{self._rng.randrange(4)}")
            self._sent.add(payload)
        except TopicError:
            self._unsure.add(payload)
            self._world.note(f"{self._topic}: nobody knows whether {payload!r} is stored")

    def _came(self, payload: bytes, key: str | None, kind: str) -> None:
        """To one consumer messages of a producer and key come in the order of the calls, the first time."""
        producer, _, number = payload.partition(b":")
        last = self._last_of.get((producer, key), -1)
        if kind == "exclusive" and int(number) < last and payload not in self._seen | self._unsure:
            self._world.problem(f"{self._topic}: {payload!r} comes after number {last} of its producer, with {key}")
        self._last_of[producer, key] = max(last, int(number))
        self._seen.add(payload)

    async def _bill(self, client: magnetar.AsyncClient, kind: magnetar.SubscriptionType) -> None:
        while True:  # a subscription that cannot be had for so long that the client gives up is asked for again
            try:
                async with client.consumer(
                    self._topic, "billing", type=kind, from_earliest=True, queue_size=20
                ) as each:
                    async for message in each:
                        self._came(message.payload, message.key, kind)
                        if self._world.is_faulty and self._rng.random() < 0.1:
                            await each.nack(message)
                            continue
                        self._received.add(message.payload)
                        each.ack(message)
            except TopicError as error:
                self._world.note(f"{self._topic}: a consumer ended: {error}")
                await asyncio.sleep(1.0)


def owner_of(cluster: SimulatedCluster, topic: str) -> tuple[Process, Broker, TopicName] | None:
    """The process and the broker where *topic* is open; None where it is nowhere, or stands still."""
    name = TopicName.parse(topic)
    for machine in cluster.brokers:
        broker = machine.broker
        if machine.is_up and not machine.running.is_frozen and broker is not None and name in broker.topics:
            return machine.running, broker, name
    return None


async def carried_out(process: Process, work: Coroutine[Any, Any, T]) -> T:
    """What an operator asked a broker for. Raises what *work* raises, and Failed where the broker ends meanwhile."""
    asked = asyncio.ensure_future(process.run(work))
    # Not `wait_for`, which waits until what it cancels has ended: a process that was killed does nothing any more.
    await asyncio.wait([asked], timeout=OPERATION_S)
    if not asked.done() or asked.cancelled():
        asked.cancel()
        raise Failed("the broker does not answer, or has ended")
    return asked.result()
