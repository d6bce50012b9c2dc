"""The calls of tests/vectors/http, one after the other, against our broker: same status, same members, same types.

A member's type counts as much as its name: strict clients refuse a 0 where they expect 0.0, or the other way round.
"""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, Final

import pulsar
import pytest

from magnetar_core.topics.topic_name import TopicName
from managed_ledger.records.records_pb2 import SchemaEntry, SchemaInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy
from tests.support.vectors import b64, load, names
from tests.unit.broker.admin.admin_world import AdminWorld, Answer, Side
from tests.unit.broker.test_official_client import EARLIEST, QUIET

CALLS: Final = {int(name.split("/")[1][:3]): name for name in names("http/[012]*.json")}

APACHE_ID: Final = "127.0.0.1:8082"
APACHE_URL: Final = "pulsar://127.0.0.1:6652"

# Answered differently, on purpose: our status, and the reason why.
DIFFERENT: Final[dict[int, tuple[int, str]]] = {
    202: (200, "the numbers come at once; Apache's redirect is its web server's habit"),
    133: (404, "an entry that is not there is not found; Apache answers 500 with a stack trace"),
    198: (404, "nobody has used a non-persistent topic before"),
    204: (200, "answered without a status file: the process serves"),
}

# Compared by status alone, and the reason why.
STATUS_ONLY: Final[dict[int, str]] = {
    14: "our version is ours",
    21: "the bookies come in order of their names; Apache's come in that of a hash table",
    102: "asks what may be created; Apache has created nothing either",
    200: "the recorded broker had other topics: test_broker_stats.py compares what is told of each",
    201: "the recorded broker had other bundles; its form is compared in test_load_report",
    203: "metrics are named in the documentation",
    174: "Apache has split a bundle before",
    199: "Apache has a non-persistent topic here",
}

# Members that Apache shows and we do not, and the reason why.
MISSING: Final[dict[str, str]] = {
    "metadata": "internalStats?metadata=true: the ledgers in memory have no metadata; see test_internal_stats.py",
    "oldestBacklogMessageSubscriptionName": "only messages in closed ledgers have an age; the replayed topics have one",
}

# Members that only we show.
EXTRA: Final[dict[str, str]] = {
    "messagesLookedAt": "how far a compaction is, while it runs",
    "entriesInTopic": "the same",
    "brokerId": "as 5.0 has it",
}

# Answers whose members are names of things that we have others of.
OTHER_NAMES: Final = (17, 19)

FREE: Final = re.compile(r"[pP]roperties$")


def shape(golden: Any, ours: Any, at: str = "") -> list[str]:
    """Where *ours* has other members or types than *golden*."""
    if type(golden) is not type(ours):
        return [f"{at}: {type(ours).__name__} {ours!r:.60}, Apache has {type(golden).__name__} {golden!r:.60}"]
    if isinstance(golden, list):
        return [line for one in ours for line in shape(golden[0], one, f"{at}[]")] if golden else []
    if not isinstance(golden, dict) or FREE.search(at):
        return []
    found = [f"{at}: {name} is missing" for name in golden.keys() - ours.keys() if name not in MISSING]
    found += [f"{at}: {name} is ours alone" for name in ours.keys() - golden.keys() if name not in EXTRA]
    for name in golden.keys() & ours.keys():
        found += shape(golden[name], ours[name], f"{at}.{name}")
    return found


class Replay:
    """Our broker, and what people did between the recorded calls."""

    def __init__(self, world: AdminWorld, side: Side) -> None:
        self._world = world
        self.side = side
        self._client: pulsar.Client | None = None
        self.before: dict[int, Callable[[], None]] = {119: self._use_top, 169: self._leave}

    async def prepare(self) -> None:
        """What the recorded cluster had before the first call."""
        for bookie in ("127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183", "node-d"):
            await self._world.store.put(f"/ledgers/cookies/{bookie}", b"")
        await self._world.run(self._fill_topics)
        for stored in load("entries/plain-schema-ledgers.json")["schemas"]:
            topic = stored["path"].removeprefix("/schemas/")
            if topic in ("public/default/kv-INLINE", "public/default/protonative"):
                await self._register(topic, b64(stored["ledgers"][0]["entries"][0]["raw"]))

    async def _register(self, schema_id: str, raw: bytes) -> None:
        envelope_bytes = 32 + 4  # header and CRC-32C
        info = SchemaInfo.FromString(SchemaEntry.FromString(raw[envelope_bytes:]).schema_data)
        properties = tuple((item.key, item.value) for item in info.props)
        schema = Schema(SchemaType(info.type - 1), info.schema, properties)
        await self.side.broker.schemas.put_if_absent(schema_id, schema, Strategy.ALWAYS_COMPATIBLE)

    def _fill_topics(self) -> None:
        client = pulsar.Client(self.side.url, logger=QUIET)
        for topic, batching in (("rollover", False), ("batchack", True)):
            consumers = [
                client.subscribe(topic, name, pulsar.ConsumerType.Shared, initial_position=EARLIEST)
                for name in ({"rollover": ["slow"], "batchack": ["s", "cumulative"]}[topic])
            ]
            producer = client.create_producer(topic, batching_enabled=batching)
            for number in range(30):
                producer.send_async(b"%d" % number, lambda *_: None)
            producer.flush()
            for consumer in consumers:
                messages = [consumer.receive(5000) for _ in range(30)]
                for message in messages[::2]:
                    consumer.acknowledge(message)
                consumer.close()
        client.close()

    def _use_top(self) -> None:
        self._client = pulsar.Client(self.side.url, logger=QUIET)
        topic = "persistent://t1/n1/top"
        single = self._client.create_producer(topic, producer_name="http")
        for number in range(5):
            single.send(
                b"message %d" % number,
                properties={"i": str(number)},
                partition_key=f"k{number}",
                event_timestamp=1_700_000_000_000,
            )
        batched = self._client.create_producer(
            topic,
            batching_enabled=True,
            batching_max_publish_delay_ms=50,
            compression_type=pulsar.CompressionType.LZ4,
        )
        for number in range(3):
            batched.send_async(b"in a batch %d" % number, lambda *_: None, properties={"b": str(number)})
        batched.flush()
        self._client.subscribe(topic, "live")

    def _leave(self) -> None:
        assert self._client is not None
        self._client.close()

    def _ledger_of_top(self) -> int:
        """The ledger that has the number 131 in the recorded cluster."""
        return self.side.broker.topics[
            TopicName.parse("persistent://t1/n1/top")
        ].ledger.ledgers.last_confirmed.ledger_id

    async def call(self, number: int) -> tuple[Any, Answer]:
        """(recorded answer, ours), with our addresses written as those of the recorded broker."""
        if number in self.before:
            await self._world.run(self.before[number])
        recorded = load(CALLS[number])
        request = recorded["request"]
        path = request["path"].replace(APACHE_ID, self.side.id)
        body = request.get("body")
        if "/ledger/131/" in path:
            path = path.replace("/ledger/131/", f"/ledger/{self._ledger_of_top()}/")
        if isinstance(body, dict) and body.get("ledgerId") == 131:
            body = {**body, "ledgerId": self._ledger_of_top()}
        found = await self._world.call(self.side, request["method"], path, body)
        text = found.text.replace(self.side.id, APACHE_ID).replace(self.side.url, APACHE_URL)
        text = text.replace("memory:lab", "zk:127.0.0.1:2181")
        return recorded["response"], found._replace(text=text)


@pytest.fixture
async def replay() -> AsyncIterator[Replay]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        made = Replay(world, await world.side())
        await made.prepare()
        yield made


def compare(number: int, golden: dict[str, Any], ours: Answer) -> list[str]:
    if number in DIFFERENT:
        return [] if ours.status == DIFFERENT[number][0] else [f"{ours.status}, expected {DIFFERENT[number][0]}"]
    if ours.status != golden["status"]:
        return [f"{ours.status}, Apache says {golden['status']}: {ours.text[:200]}"]
    if number in STATUS_ONLY:
        return []
    if golden["status"] >= 400:
        return [] if isinstance(ours.reason, str) and ours.reason else ["no reason"]
    if "json" in golden:
        expected = golden["json"]
        if number in OTHER_NAMES:
            expected = dict.fromkeys(ours.json, next(iter(expected.values())))
        return shape(expected, ours.json)
    if "text" in golden:
        return [] if ours.text == golden["text"] else [f"{ours.text[:100]!r}, Apache says {golden['text'][:100]!r}"]
    return [f"a body: {ours.text[:100]}"] if ours.text else []


async def test_every_call_is_answered_as_apache_answers_it(replay: Replay) -> None:
    problems = []
    for number, name in CALLS.items():
        golden, ours = await replay.call(number)
        problems += [f"{name}: {problem}" for problem in compare(number, golden, ours)]
    assert not problems, "\n".join(["", *problems])


# Calls whose answer must be Apache's to the letter.
EXACT: Final = (
    1, 3, 8, 11, 12, 13, 15, 18, 23, 27, 31, 36, 38, 40, 41, 43, 60, 62, 65, 68, 70, 72, 74, 77, 79, 81, 87, 88, 89, 93,
    98, 99, 100, 102, 105, 106, 107, 108, 110, 111, 112, 156, 158, 177, 178, 179, 180, 185, 187, 188, 190, 191,
)  # fmt: skip


async def test_bodies_that_do_not_depend_on_the_moment_are_the_same(replay: Replay) -> None:
    different = []
    for number in CALLS:
        golden, ours = await replay.call(number)
        if number in EXACT:
            expected = golden.get("json", golden.get("text"))
            found = ours.json if "json" in golden else ours.text or None
            if isinstance(found, dict):
                found = {name: value for name, value in found.items() if name in expected or name not in EXTRA}
            if found != expected:
                different.append(f"{CALLS[number]}: {found}\n      Apache: {expected}")
    assert not different, "\n".join(["", *different])


async def test_schemas_are_shown_as_apache_shows_them(replay: Replay) -> None:
    for number in (192, 193):
        golden, ours = await replay.call(number)
        expected = golden["json"]
        assert replace_timestamp(ours.json, expected) == expected


def replace_timestamp(ours: dict[str, Any], golden: dict[str, Any]) -> dict[str, Any]:
    return {**ours, "timestamp": golden["timestamp"]}


def test_every_exception_is_one() -> None:
    """The lists above name recorded calls, each in one list."""
    lists = [set(DIFFERENT), set(STATUS_ONLY), set(EXACT) - {102}]
    assert set().union(*lists) <= set(CALLS)
    assert sum(map(len, lists)) == len(set().union(*lists))
