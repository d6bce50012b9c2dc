"""Applications of a life whose topics are special, each with a topic of its own.

`Chunked`: messages in chunks, on a Shared subscription. Each is put together by a consumer.
`Leaders`: producers that wait until they have the topic for themselves. Positions go up with the epochs in which they
were stored; when the faults are over, each has its turn.
`Terminated`: a topic that is terminated. Nothing is stored behind the position that this answers; producers and
consumers are told.
`Answered`: acknowledgements that ask for an answer, in each form. When the faults are over, exactly what was not
acknowledged comes again to who leaves and comes again.
`Unsubscribed`: subscriptions that are removed and made again. Who has a subscription gets what is stored from then on.
`Passing`: a topic that is not persistent. When the faults are over, who is there gets what is sent.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Final

from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import MagnetarError
from tests.simulation.stack.applications import PATIENCE_S, World, carried_out, owner_of
from tests.simulation.stack.pulsar_client import Consumer, Failed, Producer, PulsarClient, Received

# Chunks of which the others do not come are given back after this, as by the ack time-out of the official clients.
INCOMPLETE_S: Final = 10.0

EXCLUSIVE: Final = wire.CommandSubscribe.Exclusive
SHARED: Final = wire.CommandSubscribe.Shared


async def until(done: Callable[[], bool], world: World, why: Callable[[], str]) -> None:
    """Wait for what has to come when the faults are over."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + PATIENCE_S
    while not done():
        if world.is_faulty:
            deadline_s = loop.time() + PATIENCE_S
        if loop.time() > deadline_s:
            world.problem(why())
            return
        await asyncio.sleep(0.2)


class Chunked:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._sent: set[str] = set()
        self._whole: set[str] = set()

    async def run(self) -> None:
        process, client = self._world.client("chunked")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        rng = self._rng
        consumers = [_Assembly(self._whole) for _ in range(rng.randint(2, 3))]
        for number, consumer in enumerate(consumers):
            await client.subscribe(
                self._topic, "s", SHARED, on_message=consumer.take, name=f"c{number}", queue=rng.choice((1, 2, 10, 100))
            )
        await asyncio.gather(*(self._produce(client, f"p{number}") for number in range(2)))
        await until(
            lambda: self._sent <= self._whole, self._world,
            lambda: f"{self._topic}: {sorted(self._sent - self._whole)[:5]} were not put together",
        )  # fmt: skip

    async def _produce(self, client: PulsarClient, name: str) -> None:
        rng = self._rng
        producer = await client.produce(self._topic, name)
        count = 0
        while self._world.is_faulty:
            count += 1
            text = f"{name}:{count}"
            chunks = rng.choice((1, 2, 3, 5))
            pieces = [f"{text}/{number};".encode() for number in range(chunks)]
            answers = producer.send_chunks(pieces) if chunks > 1 else [producer.send(pieces)]
            try:
                await asyncio.gather(*answers)
                self._sent.add(text)
                self._world.counts["sent in chunks"] += 1
            except Failed:
                self._world.note(f"nobody knows whether the chunks of {text} are stored")
            await asyncio.sleep(rng.expovariate(1 / 0.3))


class _Assembly:
    """One consumer that puts chunks together."""

    def __init__(self, whole: set[str]) -> None:
        self._whole = whole
        self._parts: dict[str, dict[int, Received]] = {}
        self._copies: dict[str, list[Received]] = {}
        self._done: set[str] = set()
        self._session = 0

    def take(self, received: Received) -> None:
        if received.session != self._session:
            self._session = received.session
            self._parts.clear()
            self._copies.clear()
        text = received.payload.decode()
        if received.chunk is None:
            self._whole.add(text.partition("/")[0])
            received.consumer.acknowledge(received)
            return
        uuid, chunk_id, count = received.chunk
        if uuid in self._done:  # a chunk that was stored twice
            received.consumer.acknowledge(received)
            return
        if uuid not in self._parts:
            asyncio.get_running_loop().call_later(INCOMPLETE_S, self._give_back, uuid, received.session)
        parts = self._parts.setdefault(uuid, {})
        self._copies.setdefault(uuid, []).append(received)
        parts[chunk_id] = received
        if len(parts) < count:
            return
        name = text.partition("/")[0]
        assert b"".join(parts[number].payload for number in range(count)) == b"".join(
            f"{name}/{number};".encode() for number in range(count)
        ), "chunks of two messages"
        self._whole.add(name)
        self._done.add(uuid)
        for copy in self._copies.pop(uuid):
            copy.consumer.acknowledge(copy)
        del self._parts[uuid]

    def _give_back(self, uuid: str, session: int) -> None:
        copies = self._copies.pop(uuid, [])
        if copies and session == self._session:
            del self._parts[uuid]
            copies[0].consumer.redeliver(copies)


class Leaders:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._stored: list[tuple[tuple[int, int], int, str]] = []
        """Position, epoch, text."""
        self._turns_after = [0, 0]
        """How often each candidate had the topic after the faults."""

    async def run(self) -> None:
        await asyncio.gather(*(self._candidate(number) for number in range(2)))
        places = sorted(self._stored)
        for (place, epoch, text), (_, later, other) in pairwise(places):
            if later < epoch:
                self._world.problem(
                    f"{self._topic}: {other} of epoch {later} stands behind {text} of epoch {epoch}, at {place}"
                )
                return

    async def _candidate(self, number: int) -> None:
        process, client = self._world.client(f"leader-{number}")
        await process.run(self._stand(client, number))

    async def _stand(self, client: PulsarClient, number: int) -> None:
        turn = 0
        while self._world.is_faulty or not self._turns_after[number]:
            turn += 1
            producer = Producer(client, self._topic, f"leader-{number}-{turn}", access=wire.WaitForExclusive)
            producer.start()
            await until(
                producer.ready.is_set, self._world,
                lambda: f"{self._topic}: candidate {number} waits for ever",
            )  # fmt: skip
            if not producer.ready.is_set():
                return
            is_after = not self._world.is_faulty
            await self._lead(producer)
            if is_after:
                self._turns_after[number] += 1
            await asyncio.sleep(self._rng.uniform(0.0, 1.0))

    async def _lead(self, producer: Producer) -> None:
        for count in range(self._rng.randint(1, 10)):
            text = f"{producer.name}:{count}"
            try:
                place = await producer.send([text.encode()])
            except Failed:
                break
            assert producer.topic_epoch is not None, "the broker says the epoch of who is exclusive"
            if place[0] >= 0:
                self._stored.append((place, producer.topic_epoch, text))
                self._world.counts["sent by a leader"] += 1
            await asyncio.sleep(self._rng.uniform(0.0, 0.5))
        await producer.close()


class Terminated:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng

    async def run(self) -> None:
        turn = 0
        while self._world.is_faulty:
            process, client = self._world.client(f"terminated-{turn}")
            await process.run(self._live(client, f"{self._topic}-{turn}"))
            process.kill()
            turn += 1

    async def _live(self, client: PulsarClient, topic: str) -> None:
        received: set[str] = set()
        sent: dict[str, tuple[int, int]] = {}

        def arrived(message: Received) -> None:
            received.add(message.payload.decode())
            message.consumer.acknowledge(message)

        consumers = [
            await client.subscribe(topic, name, kind, on_message=arrived, name=name, queue=5)
            for name, kind in (("alone", EXCLUSIVE), ("shared", SHARED))
        ]
        producer = await client.produce(topic, "p")
        sending = asyncio.ensure_future(self._send(producer, sent))
        await asyncio.sleep(self._rng.uniform(0.5, 8.0))
        last = await self._terminate(consumers[0], topic)
        if last is None:
            sending.cancel()
            return
        await until(sending.done, self._world, lambda: f"{topic}: its producer is not told that it ends")
        sending.cancel()
        late = [(text, place) for text, place in sent.items() if place > last]
        if late:
            self._world.problem(f"{topic} ends at {last}, and acknowledged {late[:3]}")
        await until(
            lambda: sent.keys() <= received and all(consumer.is_at_end for consumer in consumers), self._world,
            lambda: f"{topic}, terminated at {last}: {sorted(sent.keys() - received)[:3]} did not come; told of the "
            f"end: {[consumer.is_at_end for consumer in consumers]}",
        )  # fmt: skip
        for each in consumers:
            await each.close()

    async def _send(self, producer: Producer, sent: dict[str, tuple[int, int]]) -> None:
        count = 0
        while not producer.is_closed:
            text = f"p:{count}"
            count += 1
            with contextlib.suppress(Failed):
                sent[text] = await producer.send([text.encode()])
            await asyncio.sleep(self._rng.expovariate(1 / 0.2))

    async def _terminate(self, consumer: Consumer, topic: str) -> tuple[int, int] | None:
        """Where it ends; None: it could not be terminated, which was reported."""
        last: tuple[int, int] | None = None
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while last is None:
            if loop.time() > deadline_s:
                self._world.problem(f"{topic} cannot be terminated")
                return None
            owner = owner_of(self._world.cluster, topic)
            if owner is not None and consumer.connection is not None:
                process, broker, name = owner
                try:
                    position = await carried_out(process, broker.topics[name].terminate())
                    last = position.ledger_id, position.entry_id
                except (MagnetarError, Failed) as error:
                    self._world.note(f"{topic} is not terminated: {error!r}")
            await asyncio.sleep(0.5)
        self._world.counts["terminated"] += 1
        self._world.note(f"{topic} is terminated at {last}")
        return last


class Answered:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._received: list[Received] = []

    async def run(self) -> None:
        process, client = self._world.client("answered")
        await process.run(self._live(client))

    async def _come(self, client: PulsarClient) -> Consumer:
        self._received.clear()
        return await client.subscribe(self._topic, "s", EXCLUSIVE, on_message=self._received.append, name="c")

    async def _live(self, client: PulsarClient) -> None:
        rng = self._rng
        producer = await client.produce(self._topic, "p")
        consumer = await self._come(client)
        count = 0
        while self._world.is_faulty:
            count += 1
            with contextlib.suppress(Failed):
                await producer.send([b"%d/%d" % (count, number) for number in range(rng.choice((1, 4)))])
            if self._received:
                is_done = await consumer.acknowledge_answered(rng.choice(self._received), cumulative=rng.random() < 0.5)
                self._world.counts["answered"] += is_done
            if rng.random() < 0.1:
                await consumer.close()
                consumer = await self._come(client)
            await asyncio.sleep(rng.expovariate(1 / 0.3))
        await consumer.close()
        await self._try(client, producer)
        await producer.close()

    async def _try(self, client: PulsarClient, producer: Producer) -> None:
        """Nothing else happens any more; the broker stays."""
        rng = self._rng
        consumer = await self._come(client)
        sent = [f"{number}/{index}" for number in ("a", "b", "c", "d") for index in range(4)]
        for at in range(0, len(sent), 4):
            await producer.send([text.encode() for text in sent[at : at + 4]])
        await until(
            lambda: self._texts() >= set(sent), self._world, lambda: f"{self._topic}: {self._texts()} of {sent} came"
        )
        by_text = {received.payload.decode(): received for received in self._received}
        if not by_text.keys() >= set(sent):
            return
        kept_parts = self._world.keeps_parts
        first = rng.randrange(3, 10)
        done: set[str] = set()
        if await consumer.acknowledge_answered(by_text[sent[first]], cumulative=True):
            done.update(sent[: first + 1])
        single = rng.choice(sent[12:])
        if await consumer.acknowledge_answered(by_text[single]):
            done.add(single)
        if not kept_parts:  # what counts is whole batches
            done = {text for text in done if all(f"{text[0]}/{index}" in done for index in range(4))}
        await consumer.close()
        consumer = await self._come(client)
        await until(
            lambda: self._texts() >= set(sent) - done, self._world,
            lambda: f"{self._topic}: {sorted(set(sent) - done - self._texts())} do not come again",
        )  # fmt: skip
        again = self._texts() & done
        if again:
            self._world.problem(f"{self._topic}: {sorted(again)} were acknowledged up to {sent[first]}, and come again")
        await consumer.close()

    def _texts(self) -> set[str]:
        return {received.payload.decode() for received in self._received}


class Unsubscribed:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng

    async def run(self) -> None:
        await asyncio.gather(*(self._come_and_go(number) for number in range(2)))

    async def _come_and_go(self, number: int) -> None:
        process, client = self._world.client(f"unsubscribed-{number}")
        await process.run(self._live(client, number))

    async def _live(self, client: PulsarClient, number: int) -> None:
        """In turn a name of its own, and one that both have; either may take that from the other."""
        rng = self._rng
        producer = await client.produce(self._topic, f"p{number}")
        turn = 0
        is_last = False
        while not is_last:
            is_last = not self._world.is_faulty
            turn += 1
            name = f"own-{number}" if is_last else rng.choice(("common", f"own-{number}"))
            received: set[str] = set()

            def arrived(message: Received, received: set[str] = received) -> None:
                received.add(message.payload.decode())
                message.consumer.acknowledge(message)

            consumer = await client.subscribe(
                self._topic, name, SHARED, on_message=arrived, name=f"c{number}", latest=True
            )
            sent: set[str] = set()
            for count in range(rng.randint(1, 5)):
                text = f"{number}/{turn}/{count}"
                with contextlib.suppress(Failed):
                    await producer.send([text.encode()])
                    sent.add(text)
            if name != "common":
                await self._until_received(name, sent, received)
            if rng.random() < 0.2 or not await consumer.unsubscribe():
                await consumer.close()
            self._world.counts["unsubscribed"] += 1
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.5)))
        await producer.close()

    async def _until_received(self, name: str, sent: set[str], received: set[str]) -> None:
        await until(
            lambda: sent <= received, self._world,
            lambda: f"{self._topic}: {name} did not get {sorted(sent - received)}",
        )  # fmt: skip


class Passing:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic.replace("persistent://", "non-persistent://")
        self._rng = rng

    async def run(self) -> None:
        process, client = self._world.client("passing")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        received: set[str] = set()

        def arrived(message: Received) -> None:
            received.add(message.payload.decode())
            message.consumer.acknowledge(message)

        kind = self._rng.choice((EXCLUSIVE, SHARED, wire.CommandSubscribe.Failover, wire.CommandSubscribe.Key_Shared))
        consumers = [await client.subscribe(self._topic, "s", kind, on_message=arrived, name="c")]
        producer = await client.produce(self._topic, "p", timeout_s=5.0)
        count = 0
        while self._world.is_faulty:
            count += 1
            with contextlib.suppress(Failed):
                await producer.send([b"%d" % count])
            await asyncio.sleep(self._rng.expovariate(1 / 0.3))
        # Whoever still looks for the owner has it now.
        await asyncio.sleep(10.0)
        wanted: set[str] = set()
        for number in range(20):
            with contextlib.suppress(Failed):
                await producer.send([b"last %d" % number], key="k")
                wanted.add(f"last {number}")
        await until(
            lambda: len(wanted) == 20 and wanted <= received, self._world,
            lambda: f"{self._topic}: of {len(wanted)} that were sent at the end these did not come: "
            f"{sorted(wanted - received)}; {consumers[0].refusals[-2:]}",
        )  # fmt: skip
        self._world.counts["passed"] += len(received)
        await producer.close()
        await consumers[0].close()
