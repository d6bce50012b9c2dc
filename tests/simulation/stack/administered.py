"""Applications of a life that ask the admin API, over HTTP, for what they need, each with topics of its own.

`Partitioned`: a topic that gets more partitions. What is published to a partition as soon as the topic counts it comes
to the subscription, though its consumers come later.
`Secret`: encryption is required, now and then. When it is, nothing that is in clear is acknowledged.
`Aged`: messages expire, however their producers' clocks go, and topics that nobody uses go, but for those that keep
their messages.
`Resent`: a producer with sequence ids of its own begins again before the last ones; nothing of them is stored twice,
truncated or not.
"""

import asyncio
import contextlib
import json
import random
from typing import Any, Final

from broker.wire import pulsar_pb2 as wire
from magnetar.testing.simulated.cluster import WEB_PORT
from magnetar.testing.simulated.loop import WALL_MS
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.paths import ledger_path
from tests.simulation.stack.applications import PATIENCE_S, World, owner_of
from tests.simulation.stack.pulsar_client import Failed, Producer, PulsarClient, Received
from tests.simulation.stack.special_topics import until

# How long an answer is waited for.
ANSWER_S: Final = 60.0
REDIRECTS_MAX: Final = 5

# Changed policies are in force within this, when there are no faults.
IN_FORCE_S: Final = 5.0

# Brokers look for old messages and unused topics each minute.
HOUSEKEEPING_S: Final = 240.0

DAY_MS: Final = 86_400_000

# With those that are added later come the subscriptions of the others.
PARTITIONS_FIRST: Final = 2


class Admin:
    """The admin API, asked of a drawn broker. Used in a client's process."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng

    async def ask(self, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """The status and the body of the answer; 0: there was none."""
        host = self._rng.choice(self._world.cluster.brokers).name
        path = f"/admin/v2/{path}"
        with contextlib.suppress(OSError, TimeoutError, ValueError, IndexError):
            async with asyncio.timeout(ANSWER_S):
                for _ in range(REDIRECTS_MAX):
                    status, head, text = await _ask(host, method, path, body)
                    if status != 307:
                        return status, text
                    to = head["location"].removeprefix("http://")
                    host, path = to.partition(":")[0], to[to.index("/") :]
        return 0, ""

    async def done(self, method: str, path: str, body: Any = None) -> None:
        """Ask until it is done, or was done before. Reported where that takes too long."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + PATIENCE_S
        while True:
            status, text = await self.ask(method, path, body)
            if status in (200, 204, 409):
                return
            if self._world.is_faulty:
                deadline_s = loop.time() + PATIENCE_S
            elif loop.time() > deadline_s:
                self._world.problem(f"{method} {path} is answered by {status}: {text[:200]}")
                return
            await asyncio.sleep(1.0)

    async def namespace(self, name: str, **policies: Any) -> None:
        """Make the namespace `public/name`; *policies*: the path of each, and its value."""
        await self.done("PUT", f"namespaces/public/{name}")
        for path, value in policies.items():
            await self.done("POST", f"namespaces/public/{name}/{path}", value)


async def _ask(host: str, method: str, path: str, body: Any) -> tuple[int, dict[str, str], str]:
    """Raises OSError, ValueError, IndexError (the answer is cut short)."""
    data = b"" if body is None else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection(host, WEB_PORT)
    try:
        writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        answer = (await reader.read(-1)).decode()
    finally:
        writer.close()
    head, _, text = answer.partition("\r\n\r\n")
    first, *lines = head.split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), fields, text


def _rest(topic: str) -> str:
    return topic.replace("://", "/")


class Partitioned:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._topic = topic
        self._rng = rng
        self._sent: set[str] = set()
        self._received: set[str] = set()

    async def run(self) -> None:
        process, client = self._world.client("partitioned")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        admin = Admin(self._world, self._rng)
        await admin.done("PUT", f"{_rest(self._topic)}/partitions", PARTITIONS_FIRST)
        have_come = asyncio.Event()
        consuming = asyncio.ensure_future(self._consume(client, have_come))
        await have_come.wait()  # to the first ones: what is sent before is not for them
        growing = asyncio.ensure_future(self._grow(admin))
        await self._produce(client)
        growing.cancel()
        await until(
            lambda: self._sent <= self._received, self._world,
            lambda: f"{self._topic}: {sorted(self._sent - self._received)[:5]} did not come",
        )  # fmt: skip
        consuming.cancel()

    async def _grow(self, admin: Admin) -> None:
        for count in range(3, 8):
            await asyncio.sleep(self._rng.uniform(1.0, 8.0))
            status, _ = await admin.ask("POST", f"{_rest(self._topic)}/partitions", count)
            if status == 204:
                self._world.counts["partitions added"] += 1

    async def _consume(self, client: PulsarClient, have_come: asyncio.Event) -> None:
        """A consumer for each partition that is there, which comes some time after it."""

        def arrived(received: Received) -> None:
            self._received.add(received.payload.decode())
            received.consumer.acknowledge(received)

        there = 0
        while True:
            while there < await client.partitions(self._topic):
                await client.subscribe(
                    f"{self._topic}-partition-{there}", "s", wire.CommandSubscribe.Shared, on_message=arrived,
                    name=f"c{there}", latest=True,
                )  # fmt: skip
                there += 1
            if there >= PARTITIONS_FIRST:  # how many there are may not have been answered
                have_come.set()
            await asyncio.sleep(self._rng.uniform(0.5, 5.0))

    async def _produce(self, client: PulsarClient) -> None:
        rng = self._rng
        producers: list[Producer] = []
        count = 0
        while self._world.is_faulty:
            partitions = await client.partitions(self._topic)
            while len(producers) < partitions:
                producers.append(await client.produce(f"{self._topic}-partition-{len(producers)}", f"p{count}"))
            for _ in range(5):
                if not producers:
                    break
                text = f"m{count}"
                count += 1
                with contextlib.suppress(Failed):
                    await rng.choice(producers[-2:]).send([text.encode()])
                    self._sent.add(text)
            await asyncio.sleep(rng.expovariate(1 / 0.3))


class Secret:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._name = topic.rpartition("/")[2]
        self._rng = rng

    async def run(self) -> None:
        process, client = self._world.client("secret")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        admin, rng = Admin(self._world, self._rng), self._rng
        name, topic = "secret", f"persistent://public/secret/{self._name}"
        await admin.namespace(name)
        plain = await client.produce(topic, "plain", timeout_s=5.0)
        careless = await client.produce(topic, "careless", timeout_s=5.0, encrypted=True)
        count = 0
        while self._world.is_faulty:
            await admin.ask("POST", f"namespaces/public/{name}/encryptionRequired", rng.random() < 0.5)
            for _ in range(5):
                count += 1
                answers = [careless.send([b"in clear"]), careless.send([b"?"], encryption_keys=[_KEY])]
                if plain.connection is not None:
                    answers.append(plain.send([b"plain"]))
                await asyncio.gather(*answers, return_exceptions=True)
                await asyncio.sleep(rng.expovariate(1 / 0.5))
        await admin.done("POST", f"namespaces/public/{name}/encryptionRequired", False)
        await asyncio.sleep(IN_FORCE_S)
        with contextlib.suppress(Failed):
            await plain.send([b"it may"])
        await admin.done("POST", f"namespaces/public/{name}/encryptionRequired", True)
        await asyncio.sleep(IN_FORCE_S)
        with_keys: dict[str, Any] = {"encryption_keys": [_KEY]}
        tries: tuple[tuple[Producer, dict[str, Any], bool], ...] = (
            (plain, {}, False), (careless, {}, False), (careless, with_keys, True),
        )  # fmt: skip
        for producer, fields, may in tries:
            try:
                await producer.send([b"at the end"], **fields)
                is_stored = True
            except Failed:
                is_stored = False
            if is_stored != may:
                self._world.problem(
                    f"{topic}: encryption is required, and a message of {producer.name} with {fields} is "
                    f"{'stored' if is_stored else 'refused'}; {producer.refusals[-2:]}"
                )
        self._world.counts["tried in clear"] += 1
        for producer in (plain, careless):
            await producer.close()


_KEY: Final = {"key": "k", "value": b"v"}


class Aged:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._name = topic.rpartition("/")[2]
        self._rng = rng

    async def run(self) -> None:
        process, client = self._world.client("aged")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        admin = Admin(self._world, self._rng)
        idle = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 1,
                "deleteWhileInactive": True}  # fmt: skip
        for_ever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        await admin.namespace("old", messageTTL=2, retention=nothing)
        await admin.namespace("idle", inactiveTopicPolicies=idle, retention=nothing)
        await admin.namespace(
            "caught-up", retention=nothing,
            inactiveTopicPolicies={**idle, "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up"},
        )  # fmt: skip
        await admin.namespace("kept", inactiveTopicPolicies=idle, retention=for_ever)
        old, unused, caught_up, kept = (
            f"persistent://public/{namespace}/{self._name}" for namespace in ("old", "idle", "caught-up", "kept")
        )
        absent = await client.subscribe(
            old, "absent", wire.CommandSubscribe.Shared, on_message=lambda _: None, name="c", queue=1
        )
        await absent.close()
        producer = await client.produce(old, "p")
        while self._world.is_faulty:
            ahead_ms = self._rng.choice((0, DAY_MS))
            publish_time = WALL_MS + int(asyncio.get_running_loop().time() * 1000) + ahead_ms
            with contextlib.suppress(Failed):
                await producer.send([b"some day"], publish_time=publish_time)
            await asyncio.sleep(self._rng.expovariate(1 / 2.0))
        await self._stay(client, caught_up)
        stored: dict[str, int] = {}
        for topic in (unused, kept):
            each = await client.produce(topic, "p")
            stored[topic] = 0
            for _ in range(3):
                with contextlib.suppress(Failed):
                    await each.send([b"something"])
                    stored[topic] += 1
            await each.close()
        # What is dated ahead expires when its ledger was closed for long enough.
        await admin.done("PUT", f"{_rest(old)}/unload")
        await asyncio.sleep(HOUSEKEEPING_S)
        owner = owner_of(self._world.cluster, old)
        if owner is not None:
            backlog = owner[1].topics[owner[2]].subscriptions["absent"].backlog
            if backlog:
                self._world.problem(f"{old}: {backlog} messages do not expire")
        root = self._world.cluster.server.root
        names = (TopicName.parse(each).managed_ledger_name for each in (unused, caught_up))
        there = [await root.exists(ledger_path(name)) for name in names]
        if any(there):
            self._world.problem(f"topics that nobody uses stay: {unused}: {there[0]}, {caught_up}: {there[1]}")
        await self._read_kept(client, kept, stored[kept])
        await producer.close()
        self._world.counts["aged"] += 1

    async def _stay(self, client: PulsarClient, topic: str) -> None:
        """A consumer that has everything, and does not come again."""
        consumer = await client.subscribe(
            topic, "s", wire.CommandSubscribe.Shared, name="c", on_message=lambda each: _acknowledge(each)
        )
        producer = await client.produce(topic, "p")
        with contextlib.suppress(Failed):
            await producer.send([b"something"])
        await producer.close()
        consumer.leave_be()

    async def _read_kept(self, client: PulsarClient, topic: str, count: int) -> None:
        received: list[bytes] = []

        def arrived(each: Received) -> None:
            received.append(each.payload)

        reader = await client.subscribe(
            topic, "r", wire.CommandSubscribe.Exclusive, name="r", on_message=arrived, durable=False
        )
        await until(
            lambda: len(received) >= count, self._world,
            lambda: f"{topic} has {len(received)} of {count} messages that it was to keep",
        )  # fmt: skip
        await reader.close()


def _acknowledge(received: Received) -> None:
    received.consumer.acknowledge(received)


class Resent:
    def __init__(self, world: World, topic: str, rng: random.Random) -> None:
        self._world = world
        self._name = topic.rpartition("/")[2]
        self._rng = rng

    async def run(self) -> None:
        process, client = self._world.client("resent")
        await process.run(self._live(client))

    async def _live(self, client: PulsarClient) -> None:
        admin, rng = Admin(self._world, self._rng), self._rng
        topic = f"persistent://public/once/{self._name}"
        await admin.namespace("once", deduplication=True)
        places: list[tuple[int, int]] = []
        """Of each sequence id that was acknowledged, in their order."""
        is_last = False
        while not is_last:
            is_last = not self._world.is_faulty  # once more when the faults are over
            producer = await client.produce(topic, "source")
            first = producer.sequence_id = max(len(places) - rng.randint(0, 5), 0)
            for number in range(first, first + rng.randint(1, 10)):
                try:
                    place = await producer.send([b"%d" % number])
                except Failed:
                    break
                if number == len(places):
                    places.append(place)
                elif place[0] >= 0 and place != places[number] and places[number][0] >= 0:
                    self._world.problem(f"{topic}: number {number} is stored at {places[number]}, and again at {place}")
                    return
            await producer.close()
            if rng.random() < 0.15:
                status, _ = await admin.ask("DELETE", f"{_rest(topic)}/truncate")
                self._world.note(f"{topic} is truncated: {status}")
            await asyncio.sleep(rng.expovariate(1 / 1.0))
        self._world.counts["sent once"] += len(places)
