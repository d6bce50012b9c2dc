"""Runs a program at one broker. Each event has an outcome: what the program sees, as plain values.

- An error is the name of its class, a refused HTTP request its status. What is about a handle that is not there (it
  could not be made, or the shrinking left it out) has the outcome "nobody".
- Clients gather acknowledgements for 100 ms: all events but the quick ones wait until these are out.
- A message that comes is known by its number; its id stands as a `Place`, which two brokers do not share.
"""

import contextlib
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from datetime import timedelta
from threading import Event as Flag
from typing import Any, Final

import pulsar
from pulsar.schema import AvroSchema, BytesSchema, Double, Integer, JsonSchema, Record, String, StringSchema

from tests.differ.events import Event, Program
from tests.differ.normal import Message, Place
from tests.differ.servers import Address
from tests.support.mixed_cluster import http_json
from tests.support.processes import QUIET

# For what comes; for nothing to come; between two looks at what settles.
PATIENCE_S: Final = 4.0
QUIET_S: Final = 0.6
LOOK_S: Final = 0.15
LOOKS: Final = 4
# How long a client gathers acknowledgements, and the broker needs to take them.
ACKNOWLEDGED_S: Final = 0.3
NEGATIVE_MS: Final = 150
OPERATION_S: Final = 8

NOBODY: Final = "nobody"
# No other event depends on what these leave under way.
_QUICK: Final = ("receive", "ack", "ack_up_to", "send")


class Reading(Record):  # type: ignore[misc]
    number = String()
    value = Double()


class ReadingWithMore(Record):  # type: ignore[misc]
    number = String()
    value = Double()
    unit = String(default="K")


class ReadingOfAnotherKind(Record):  # type: ignore[misc]
    number = String(required=True)
    value = Integer(required=True)


_RECORDS: Final = (Reading, ReadingWithMore, ReadingOfAnotherKind)


def _schema(name: str | None) -> Any:
    if name is None:
        return BytesSchema()
    kind, _, number = name.partition("-")
    return StringSchema() if kind == "string" else {"json": JsonSchema, "avro": AvroSchema}[kind](_RECORDS[int(number)])


def _content(name: str | None, number: int, size: int | None) -> Any:
    kind, _, which = (name or "bytes").partition("-")
    if kind in ("json", "avro"):
        return _RECORDS[int(which)](number=str(number), value=number if which == "2" else float(number))
    text = str(number) if size is None else str(number).ljust(size, ".")[:size]
    return text if kind == "string" else text.encode()


def name_of(work: Callable[[], Any]) -> Any:
    """What *work* returns, or the name of its error's class."""
    try:
        return work()
    except Exception as error:  # whatever a client meets is an outcome
        return type(error).__name__


class Side:
    """A program's handles at one broker. Used by one thread."""

    def __init__(self, address: Address, namespace: str) -> None:
        self.admin_url = address.admin_url
        self.namespace = namespace
        self.client = pulsar.Client(address.service_url, logger=QUIET, operation_timeout_seconds=OPERATION_S)
        self.handles: dict[str, Any] = {}
        self.about: dict[str, Event] = {}
        """How each handle was made."""
        self.held: dict[str, list[tuple[str, int, Any]]] = {}
        """Of a subscription's path: who got which message, with its number."""
        self.ids: dict[int, Any] = {}
        self.marks: dict[str, int] = {}
        self.partitions: dict[str, int] = {}
        self.busy_until_s = 0.0

    def run(self, program: Program) -> list[Any]:
        self.admin("PUT", f"namespaces/{self.namespace}")
        outcomes = []
        for one in program:
            if one.what not in _QUICK:
                time.sleep(max(self.busy_until_s - time.monotonic(), 0))
            work: Callable[[Event], Any] = getattr(self, f"do_{one.what}")
            outcomes.append(name_of(lambda work=work, one=one: work(one)))  # type: ignore[misc]
        return outcomes

    def close(self) -> None:
        with contextlib.suppress(pulsar.PulsarException):
            self.client.close()

    # ---------------------------------------------------------------------------------- helpers

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, or the status of a refusal."""
        try:
            return http_json(f"{self.admin_url}/admin/v2/{path}", method, body)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    def name(self, topic: str) -> str:
        return f"persistent://{self.namespace}/{topic}"

    def path(self, who: str, more: str = "") -> str:
        """Of the admin API, of a topic or a subscription."""
        topic, _, subscription = who.partition("/")
        return f"persistent/{self.namespace}/{topic}{f'/subscription/{subscription}' if subscription else ''}{more}"

    def settled(self, look: Callable[[], Any], seconds: float = 6.0) -> Any:
        """What *look* sees when it has seen the same some times one after the other."""
        ends, seen, times = time.monotonic() + seconds, look(), 1
        while times < LOOKS and time.monotonic() < ends:
            time.sleep(LOOK_S)
            now = look()
            seen, times = now, times + 1 if now == seen else 1
        return seen

    def consumers(self, path: str) -> list[str]:
        topic, _, subscription = path.partition("/")
        return [
            name for name, made in self.about.items()
            if made.what == "subscribe" and made.get("topic") == topic and made.get("subscription") == subscription
        ]  # fmt: skip

    def forget(self, topic: str) -> None:
        """What consumers of the topic hold comes again with other ids, or under them."""
        for path in self.held:
            if path.split("/")[0] == topic:
                self.held[path] = []

    def connected(self, topic: str) -> None:
        """Waits until all clients of the topic are there again: the broker may take a client out a little later."""
        time.sleep(0.3)
        ends = time.monotonic() + PATIENCE_S
        made = {name: event for name, event in self.about.items() if event.get("topic") == topic}
        handles = [self.handles[name] for name in made if hasattr(self.handles[name], "is_connected")]
        named = {name for name, event in made.items() if event.what == "subscribe"}
        path = self.path(topic, "/stats")
        while time.monotonic() < ends:
            found = self.admin("GET", path) if named else {"subscriptions": {}}
            known = isinstance(found, dict) and {
                consumer.get("consumerName") for one in found["subscriptions"].values() for consumer in one["consumers"]
            }
            if all(one.is_connected() for one in handles) and (known is False or named <= known):
                return
            time.sleep(0.05)

    def message(self, who: str, message: Any) -> tuple[int, Message]:
        made = self.about[who]
        topic, _, partition = message.topic_name().rpartition("/")[2].partition("-partition-")
        found = message.message_id()
        data = message.data()
        value = "" if made.get("schema") is None else str(name_of(lambda: _shown(message.value())))
        # Its number is a property, too: a message without a value has no other.
        properties = dict(message.properties())
        number = int(properties.pop("number", -1))
        return number, Message(
            who, number, int(partition or -1), message.redelivery_count(),
            Place(topic, int(partition or -1), found.ledger_id(), found.entry_id(), found.batch_index()),
            (
                data[:24].decode(errors="replace"), len(data), value, message.has_null_value(), message.partition_key(),
                message.ordering_key(), message.event_timestamp(), sorted(properties.items()), message.producer_name()
                if made.get("named") else "",
            ),
        )  # fmt: skip

    # ----------------------------------------------------------------------------- the namespace

    def do_mark(self, one: Event) -> Any:
        time.sleep(0.03)
        self.marks[one.get("name")] = int(time.time() * 1000)
        time.sleep(0.03)
        return "done"

    def do_set(self, one: Event) -> Any:
        return self.policy(one, one.get("value"))

    def do_unset(self, one: Event) -> Any:
        return self.policy(one, None)

    def policy(self, one: Event, value: Any) -> Any:
        """The status, and what is read back when it is settled."""
        name = one.get("policy")
        path = f"namespaces/{self.namespace}/{name}" if one.who == "n" else self.path(one.who, f"/{name}")
        put = name == "schemaCompatibilityStrategy" or (one.who == "n" and name == "compactionThreshold")
        if one.who != "n" and name == "messageTTL" and value is not None:
            answer = self.admin("POST", f"{path}?messageTTL={value}")
        else:
            answer = self.admin("DELETE" if value is None else "PUT" if put else "POST", path, value)
        # Its topics hear of it a little later.
        time.sleep(0.3)
        return [answer, _set(self.settled(lambda: self.admin("GET", path)))]

    # --------------------------------------------------------------------------------- the topics

    def do_create(self, one: Event) -> Any:
        count = one.get("partitions")
        self.partitions[one.who] = count
        return self.admin("PUT", self.path(one.who, "/partitions" if count else ""), count or None)

    def do_grow(self, one: Event) -> Any:
        return self.admin("POST", self.path(one.who, "/partitions"), one.get("partitions"))

    def do_unload(self, one: Event) -> Any:
        answer = self.admin("PUT", self.path(one.who, "/unload"))
        self.forget(one.who)
        self.connected(one.who)
        return answer

    def do_terminate(self, one: Event) -> Any:
        many = self.is_partitioned(one.who)
        answer = self.admin("POST", self.path(one.who, "/terminate/partitions" if many else "/terminate"))
        if isinstance(answer, dict) and "ledgerId" in answer:
            return Place(one.who, -1, answer["ledgerId"], answer["entryId"], -1)
        if isinstance(answer, dict):
            return [Place(one.who, int(part), at["ledgerId"], at["entryId"], -1) for part, at in sorted(answer.items())]
        return answer

    def do_compact(self, one: Event) -> Any:
        path = self.path(one.who, "/compaction")
        answer, ends = self.admin("PUT", path), time.monotonic() + 15
        if answer is not None or self.is_partitioned(one.who):
            time.sleep(1)
            return answer
        while (status := self.admin("GET", path)) and status["status"] == "RUNNING" and time.monotonic() < ends:
            time.sleep(0.1)
        return status["status"]

    def do_delete(self, one: Event) -> Any:
        many = self.is_partitioned(one.who)
        force = "?force=true" if one.get("force") else ""
        return self.admin("DELETE", self.path(one.who, "/partitions" if many else "") + force)

    def is_partitioned(self, topic: str) -> bool:
        found = self.admin("GET", self.path(topic, "/partitions"))
        return isinstance(found, dict) and found["partitions"] > 0

    def do_partitions(self, one: Event) -> Any:
        found = self.admin("GET", self.path(one.who, "/partitions"))
        return found["partitions"] if isinstance(found, dict) else found

    def do_subscriptions(self, one: Event) -> Any:
        found = self.settled(lambda: self.admin("GET", self.path(one.who, "/subscriptions")))
        return sorted(_plain_name(one) for one in found if one != "__compaction") if isinstance(found, list) else found

    def do_schema(self, one: Event) -> Any:
        found = self.admin("GET", f"schemas/{self.namespace}/{one.who}/schema")
        return [found["version"], found["type"], found["data"]] if isinstance(found, dict) else found

    def do_put_schema(self, one: Event) -> Any:
        return self.admin("POST", f"schemas/{self.namespace}/{one.who}/schema", _upload(one))

    def do_compatible(self, one: Event) -> Any:
        """Apache's broker fails (500) where a definition is not compatible (`admin_differences`)."""
        found = self.admin("POST", f"schemas/{self.namespace}/{one.who}/compatibility", _upload(one))
        return bool(found["compatibility"]) if isinstance(found, dict) else False if found == 500 else found

    def do_last_id(self, one: Event) -> Any:
        if self.is_partitioned(one.who):
            return "partitioned"
        found = self.admin("GET", self.path(one.who, "/lastMessageId"))
        if isinstance(found, dict):
            return Place(one.who, -1, found["ledgerId"], found["entryId"], found.get("batchIndex", -1))
        return found

    def do_at_time(self, one: Event) -> Any:
        mark = self.marks.get(one.get("to"))
        found = "nowhere" if mark is None else self.admin("GET", self.path(one.who, f"/messageid/{mark}"))
        if isinstance(found, dict):
            return Place(one.who, -1, found["ledgerId"], found["entryId"], -1)
        return found

    def do_stats(self, one: Event) -> Any:
        many, precise = self.is_partitioned(one.who), "getPreciseBacklog=true"

        def look() -> Any:
            found = self.admin(
                "GET",
                self.path(one.who, f"/partitioned-stats?perPartition=false&{precise}" if many else f"/stats?{precise}"),
            )
            return _stats(found, many) if isinstance(found, dict) else found

        return self.settled(look)

    # ------------------------------------------------------------------------------- producers

    def do_produce(self, one: Event) -> Any:
        batching = one.get("batching")
        if one.get("initial_sequence_id") is not None:
            more = {"initial_sequence_id": one.get("initial_sequence_id")}
        else:
            more = {}
        producer = self.client.create_producer(
            self.name(one.get("topic")), one.get("name"), _schema(one.get("schema")), send_timeout_millis=8_000,
            compression_type=getattr(pulsar.CompressionType, one.get("compression", "NONE")),
            batching_enabled=batching is not None, batching_max_messages=batching or 1000,
            batching_max_publish_delay_ms=5_000, chunking_enabled=one.get("chunking", False),
            batching_type=pulsar.BatchingType.KeyBased if one.get("by_key") else pulsar.BatchingType.Default,
            access_mode=getattr(pulsar.ProducerAccessMode, one.get("access", "Shared")), **more,
        )  # fmt: skip
        self.handles[one.who], self.about[one.who] = producer, one
        return [producer.last_sequence_id(), producer.producer_name() if one.get("name") else ""]

    def do_send(self, one: Event) -> Any:
        producer, made = self.handles.get(one.who), self.about.get(one.who)
        if producer is None or made is None:
            return NOBODY
        results: list[Any] = [None] * one.get("count")
        answered = [Flag() for _ in results]

        def on_sent(at: int, result: Any, message_id: Any) -> None:
            results[at] = message_id if result == pulsar.Result.Ok else str(result).partition(".")[2]
            answered[at].set()

        many = range(one.get("count"))
        for at in many:
            number = one.get("first") + at
            content = None if one.get("null") else _content(made.get("schema"), number, one.get("size"))
            delay_ms = one.get("delay_ms")
            options: dict[str, Any] = {
                "properties": {"number": str(number), **one.get("properties", {})},
                "partition_key": f"k{number % one.get('keys')}" if one.get("keys") else None,
                "ordering_key": one.get("ordering"),
                "event_timestamp": one.get("event_time"),
                "deliver_after": timedelta(milliseconds=delay_ms) if delay_ms else None,
                "sequence_id": None if one.get("sequence_id") is None else one.get("sequence_id") + at,
            }
            try:
                producer.send_async(content, lambda result, found, at=at: on_sent(at, result, found), **options)
            except Exception as error:
                results[at] = type(error).__name__
                answered[at].set()
        flushed = name_of(producer.flush)
        for flag in answered:
            flag.wait(10)
        # What is late has come before anything else is looked at.
        self.busy_until_s = max(self.busy_until_s, time.monotonic() + one.get("delay_ms", -400) / 1000 + 0.4)
        outcome: list[Any] = [flushed, producer.last_sequence_id()]
        for at, result in enumerate(results):
            if hasattr(result, "entry_id"):
                self.ids[one.get("first") + at] = result
                topic, part = made.get("topic"), result.partition()
                outcome.append(Place(topic, part, result.ledger_id(), result.entry_id(), result.batch_index()))
            else:
                outcome.append(result)
        return outcome

    def do_close(self, one: Event) -> Any:
        handle, made = self.handles.pop(one.who, None), self.about.pop(one.who, None)
        if handle is None or made is None:
            return NOBODY
        self.drop(one.who)
        return name_of(handle.close)

    def drop(self, consumer: str) -> None:
        for path, held in self.held.items():
            self.held[path] = [one for one in held if one[0] != consumer]

    # ------------------------------------------------------------------------------- consumers

    def do_subscribe(self, one: Event) -> Any:
        kinds = pulsar.ConsumerType
        consumer = self.client.subscribe(
            self.name(one.get("topic")), one.get("subscription"), getattr(kinds, one.get("kind")),
            _schema(one.get("schema")), consumer_name=one.who, receiver_queue_size=one.get("queue", 1000),
            initial_position=getattr(pulsar.InitialPosition, one.get("initial", "Latest")),
            negative_ack_redelivery_delay_ms=NEGATIVE_MS, is_read_compacted=one.get("compacted", False),
            start_message_id_inclusive=one.get("inclusive", False),
            batch_index_ack_enabled=one.get("batch_index", False),
        )  # fmt: skip
        self.handles[one.who], self.about[one.who] = consumer, one
        return "done"

    def do_receive(self, one: Event) -> Any:
        return self.received(one, 0.0)

    def do_drain(self, one: Event) -> Any:
        return self.received(one, QUIET_S)

    def received(self, one: Event, quiet_s: float) -> Any:
        """The next messages of all consumers of the subscription. With *quiet_s* also what comes behind them."""
        names, count = self.consumers(one.who), one.get("count")
        if not names:
            return NOBODY
        held = self.held.setdefault(one.who, [])
        found: list[Message] = []
        errors: dict[str, str] = {}
        last_s = time.monotonic()
        while (waited_s := time.monotonic() - last_s) < (PATIENCE_S if len(found) < count else quiet_s):
            came = len(found)
            for name in names:
                while len(found) < count or quiet_s:
                    if name in errors:
                        break
                    try:
                        message = self.handles[name].receive(40 if waited_s else 10)
                    except pulsar.Timeout:
                        break
                    except Exception as error:
                        errors[name] = type(error).__name__
                        break
                    number, row = self.message(name, message)
                    found.append(row)
                    held.append((name, number, message))
            if len(found) > came:
                last_s = time.monotonic()
            if len(errors) == len(names):
                break
        kind = self.about[names[0]].get("kind")
        return [kind if len(names) > 1 or quiet_s else "in order", *sorted(errors.values()), *found]

    def picked(self, one: Event) -> list[tuple[str, int, Any]]:
        held = sorted(self.held.get(one.who, []), key=lambda row: row[1])
        pick = one.get("pick")
        if pick in ("first", "last", "middle"):
            at = {"first": 0, "last": -1, "middle": len(held) // 2}[pick]
            return [held[at]] if held else []
        return held[{"all": 0, "even": 0, "odd": 1}[pick] :: 1 if pick == "all" else 2]

    def leave(self, path: str, gone: Iterable[tuple[str, int, Any]]) -> None:
        ended = {id(row[2]) for row in gone}
        self.held[path] = [row for row in self.held[path] if id(row[2]) not in ended]

    def do_ack(self, one: Event) -> Any:
        picked = self.picked(one)
        # By number: what came twice, of a partitioned topic, counts once.
        outcomes = {row[1]: name_of(lambda row=row: self.handles[row[0]].acknowledge(row[2])) for row in picked}  # type: ignore[misc]
        if picked:
            self.leave(one.who, picked)
        self.busy_until_s = max(self.busy_until_s, time.monotonic() + ACKNOWLEDGED_S)
        return list(outcomes.values())

    def do_ack_up_to(self, one: Event) -> Any:
        picked = self.picked(one)
        if not picked:
            return NOBODY
        name, number, message = picked[0]
        outcome = name_of(lambda: self.handles[name].acknowledge_cumulative(message))
        if outcome is None:
            self.held[one.who] = [row for row in self.held[one.who] if row[1] > number]
        self.busy_until_s = max(self.busy_until_s, time.monotonic() + ACKNOWLEDGED_S)
        return outcome

    def do_nack(self, one: Event) -> Any:
        picked = self.picked(one)
        for name, _, message in picked:
            self.handles[name].negative_acknowledge(message)
        alone = any(self.about[name].get("kind") in ("Exclusive", "Failover") for name in self.consumers(one.who))
        if picked:
            self.leave(one.who, self.held[one.who] if alone else picked)
            time.sleep(NEGATIVE_MS / 1000 + 0.3)
        return len({row[1] for row in picked})

    def do_redeliver(self, one: Event) -> Any:
        for name in self.consumers(one.who):
            self.handles[name].redeliver_unacknowledged_messages()
        self.held[one.who] = []
        time.sleep(0.2)
        return "done"

    def do_seek(self, one: Event) -> Any:
        handle, made = self.handles.get(one.who), self.about.get(one.who)
        if handle is None or made is None:
            return NOBODY
        to = self.place(one.get("to"))
        if to is None:
            return "nowhere"
        outcome = name_of(lambda: handle.seek(to))
        if made.what == "subscribe":
            self.held[f"{made.get('topic')}/{made.get('subscription')}"] = []
        time.sleep(0.3)
        self.connected(made.get("topic"))
        return outcome

    def place(self, to: str | int) -> Any:
        if isinstance(to, int):
            return self.ids.get(to)
        if to in self.marks:
            return self.marks[to]
        return getattr(pulsar.MessageId, to, None)

    def do_unsubscribe(self, one: Event) -> Any:
        handle = self.handles.get(one.who)
        if handle is None:
            return NOBODY
        outcome = name_of(handle.unsubscribe)
        if outcome is None:
            self.handles.pop(one.who)
            self.about.pop(one.who)
            self.drop(one.who)
        return outcome

    # ----------------------------------------------------------- subscriptions by the admin API

    def do_make(self, one: Event) -> Any:
        latest = {"ledgerId": 2**63 - 1, "entryId": 2**63 - 1, "partitionIndex": -1}
        earliest = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
        return self.admin("PUT", self.path(one.who), earliest if one.get("to") == "earliest" else latest)

    def do_skip(self, one: Event) -> Any:
        return self.admin("POST", self.path(one.who, f"/skip/{one.get('count')}"))

    def do_clear(self, one: Event) -> Any:
        return self.admin("POST", self.path(one.who, "/skip_all"))

    def do_expire(self, one: Event) -> Any:
        """Of all that is older than a second, which is all."""
        time.sleep(2.1)
        answer = self.admin("POST", self.path(one.who, "/expireMessages/1"))
        time.sleep(0.5)
        return answer

    def do_reset(self, one: Event) -> Any:
        mark = self.marks.get(one.get("to"))
        return "nowhere" if mark is None else self.admin("POST", self.path(one.who, f"/resetcursor/{mark}"))

    def do_analyze(self, one: Event) -> Any:
        """No marker is ever in a drawn topic, and 4.0.8 counts none."""
        found = self.settled(lambda: self.admin("POST", self.path(one.who, "/analyzeBacklog")))
        return (
            {name: value for name, value in sorted(found.items()) if not re.search("MessageId|markerMessages", name)}
            if isinstance(found, dict)
            else found
        )

    def do_remove(self, one: Event) -> Any:
        return self.admin("DELETE", self.path(one.who))

    def do_peek(self, one: Event) -> Any:
        at = one.get("at")
        return _peeked(f"{self.admin_url}/admin/v2/{self.path(one.who, f'/position/{at}')}")

    # ------------------------------------------------------------------------ readers and views

    def do_read_from(self, one: Event) -> Any:
        start = self.place(one.get("start"))
        if start is None:
            return "nowhere"
        self.handles[one.who] = self.client.create_reader(
            self.name(one.get("topic")), start, is_read_compacted=one.get("compacted", False),
            start_message_id_inclusive=one.get("inclusive", False),
        )  # fmt: skip
        self.about[one.who] = one
        return "done"

    def do_read(self, one: Event) -> Any:
        reader = self.handles.get(one.who)
        if reader is None:
            return NOBODY
        found: list[Any] = []
        if self.is_partitioned(self.about[one.who].get("topic")):
            # Over partitions a client may say that there is nothing while it waits for their answers.
            with contextlib.suppress(pulsar.Timeout):
                while True:
                    found.append(self.message(one.who, reader.read_next(1_000))[1])
            return ["in order", *found]
        while reader.has_message_available():
            try:
                found.append(self.message(one.who, reader.read_next(int(PATIENCE_S * 1000)))[1])
            except pulsar.Timeout:
                return ["in order", *found, "Timeout"]
        return ["in order", *found]

    def do_view(self, one: Event) -> Any:
        view = self.client.create_table_view(self.name(one.get("topic")))
        found: dict[str, Any] = {}
        view.for_each(lambda key, value: found.update({key: bytes(value)[:24].decode(errors="replace")}))
        view.close()
        return sorted(found.items())


def _shown(value: Any) -> Any:
    if isinstance(value, Record):
        return json.dumps({name: getattr(value, name) for name in sorted(value.__class__._fields)}, default=str)
    return value[:24] if isinstance(value, str | bytes) else value


def _upload(one: Event) -> dict[str, Any]:
    return {"type": one.get("kind"), "schema": json.dumps(one.get("definition")), "properties": {}}


def _set(value: Any) -> Any:
    """Lists of names are sets at the broker."""
    return sorted(value) if isinstance(value, list) and all(isinstance(one, str) for one in value) else value


def _plain_name(name: str) -> str:
    """Names of readers' subscriptions are drawn by the client."""
    return name if len(name) <= 4 or name.startswith("__") else "drawn"


_KEPT: Final = (
    "msgBacklog", "unackedMessages", "isDurable", "blockedSubscriptionOnUnackedMsgs", "isReplicated",
    "nonContiguousDeletedMessagesRanges",
)  # fmt: skip


def _stats(found: dict[str, Any], many: bool) -> dict[str, Any]:
    """What two brokers must agree on. Not the cursor of compaction: when it is there, `admin_differences` says. Not
    the type of a subscription of *many* partitions: Apache's broker gives that of the last one, which nobody may have
    opened."""
    subscriptions = [
        [
            _plain_name(name), "" if many else one["type"], *(one.get(key) for key in _KEPT),
            _consumers(one["type"], one["consumers"]),
        ]
        for name, one in found["subscriptions"].items() if name != "__compaction"
    ]  # fmt: skip
    return {
        "msgInCounter": found["msgInCounter"],
        "publishers": len(found["publishers"]),
        "deduplicationStatus": found.get("deduplicationStatus"),
        "subscriptions": sorted(subscriptions),
    }


def _consumers(kind: str, consumers: list[dict[str, Any]]) -> list[Any]:
    """Who has what. Of several of one kind that share, only who is there: who gets a message is a race."""
    is_race = kind in ("Shared", "Key_Shared") and len(consumers) > 1
    return sorted(
        [_plain_name(each.get("consumerName") or ""), "" if is_race else each.get("unackedMessages")]
        for each in consumers
    )


def _peeked(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            body, headers = answer.read(), {name.lower(): value for name, value in answer.headers.items()}
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    kept = {
        name: value for name, value in headers.items()
        if name.startswith("x-pulsar-") and not name.endswith(("-time", "message-id", "producer-name"))
    }  # fmt: skip
    return [len(body), sorted(kept.items())]


def run(program: Program, address: Address, namespace: str) -> list[Any]:
    """The outcome of each event."""
    side = Side(address, namespace)
    try:
        return side.run(program)
    finally:
        side.close()
