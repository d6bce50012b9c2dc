"""What people do with the official Python client, one function for each, at any brand of broker.

A scenario returns what a program sees: values, errors by their class, and never an id, a time or an address, so that
two brokers can be compared. It finishes alone: its topics have names of their own.
"""

import contextlib
import re
import time
import urllib.error
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import pulsar
from pulsar.schema import (
    Array,
    AvroSchema,
    Boolean,
    Double,
    Float,
    Integer,
    JsonSchema,
    Long,
    Map,
    Record,
    String,
    StringSchema,
)

from tests.support.mixed_cluster import http_json
from tests.support.processes import QUIET

PATIENCE_MS: Final = 10_000
SHORT_MS: Final = 1_500
"""Long enough for what is under way on this machine, for a look that finds nothing."""

EARLIEST: Final = pulsar.InitialPosition.Earliest
Seen = list[Any]


@dataclass
class World:
    """A broker, seen by its clients. Everything that a scenario opens is closed with it."""

    service_url: str
    admin_url: str
    name: str = ""
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> "World":
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def client(self, **options: Any) -> pulsar.Client:
        client = pulsar.Client(self.service_url, logger=QUIET, operation_timeout_seconds=10, **options)
        self._open.callback(_closed, client)
        return client

    def topic(self, more: str = "", namespace: str = "public/default") -> str:
        return f"persistent://{namespace}/{self.name}{more}"

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """The answer, or the status of a refusal."""
        try:
            return http_json(f"{self.admin_url}/admin/v2/{path}", method, body)
        except urllib.error.HTTPError as error:
            return error.code

    def namespace(self, more: str = "", **policies: Any) -> str:
        """A new namespace of the tenant `public`, named after the scenario."""
        name = f"public/{self.name}{more}"
        assert self.admin("PUT", f"namespaces/{name}", policies or None) is None
        return name


def _closed(client: pulsar.Client) -> None:
    with contextlib.suppress(pulsar.PulsarException):
        client.close()


def outcome(work: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """What *work* returns, or the class of its error."""
    try:
        found = work(*given, **options)
    except Exception as error:
        return type(error).__name__
    return found if isinstance(found, str | int | bool | bytes | float | list | tuple | dict | None) else "done"


def received(consumer: Any, count: int, timeout_ms: int = PATIENCE_MS) -> list[bytes]:
    """The next messages, acknowledged; fewer if none comes in time."""
    found: list[bytes] = []
    with contextlib.suppress(pulsar.Timeout):
        while len(found) < count:
            message = consumer.receive(timeout_ms)
            found.append(message.data())
            consumer.acknowledge(message)
    return found


def nothing_more(consumer: Any) -> Any:
    return outcome(lambda: consumer.receive(SHORT_MS).data())


def eventually(look: Callable[[], Any], wanted: Any, seconds: float = 10) -> Any:
    """What *look* sees when it is what is wanted, or after some seconds."""
    ends = time.monotonic() + seconds
    while (seen := look()) != wanted and time.monotonic() < ends:
        time.sleep(0.1)
    return seen


def sent(producer: Any, count: int, first: int = 0) -> list[Any]:
    return [producer.send(b"%d" % number) for number in range(first, first + count)]


# ----------------------------------------------------------------------------------------- producers


def a_producer_tells_its_sequence_ids(world: World) -> Seen:
    client = world.client()
    producer = client.create_producer(world.topic(), initial_sequence_id=41)
    seen: Seen = [producer.last_sequence_id()]
    producer.send(b"a")
    seen.append(producer.last_sequence_id())
    producer.send(b"b", sequence_id=100)
    seen.append(producer.last_sequence_id())
    producer.close()
    seen += [producer.is_connected(), outcome(lambda: producer.send(b"c"))]
    return seen


def names_of_producers_are_unique(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    first = client.create_producer(topic, producer_name="one")
    seen: Seen = [first.producer_name(), outcome(lambda: client.create_producer(topic, producer_name="one"))]
    first.close()
    seen.append(outcome(lambda: client.create_producer(topic, producer_name="one").producer_name()))
    return seen


def exclusive_producers(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    mode = pulsar.ProducerAccessMode
    first = client.create_producer(topic, access_mode=mode.Exclusive)
    seen: Seen = [
        outcome(lambda: client.create_producer(topic, access_mode=mode.Exclusive)),
        outcome(lambda: client.create_producer(topic)),
    ]
    second = client.create_producer(topic, access_mode=mode.ExclusiveWithFencing)
    second.send(b"mine")
    seen.append(outcome(lambda: first.send(b"lost")))
    seen.append(outcome(lambda: first.send(b"lost")))
    second.close()
    third = client.create_producer(topic, access_mode=mode.WaitForExclusive)
    seen.append(outcome(lambda: third.send(b"now")))
    return seen


def a_shared_producer_keeps_exclusive_ones_out(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    shared = client.create_producer(topic)
    seen: Seen = [outcome(lambda: client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive))]
    shared.close()
    seen.append(outcome(lambda: client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.Exclusive)))
    return seen


def a_message_that_is_too_large(world: World) -> Seen:
    client = world.client()
    producer = client.create_producer(world.topic())
    seen: Seen = [outcome(lambda: producer.send(b"x" * (5 * 1024 * 1024 + 1)))]
    seen.append(outcome(lambda: producer.send(b"small")))
    return seen


def compressible_messages_beyond_the_limit(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    seen: Seen = []
    for kind in (pulsar.CompressionType.LZ4, pulsar.CompressionType.ZLib, pulsar.CompressionType.ZSTD,
                 pulsar.CompressionType.SNAPPY):  # fmt: skip
        producer = client.create_producer(topic, compression_type=kind)
        seen.append(outcome(producer.send, b"x" * 8_000_000))
        seen.append(outcome(lambda: len(consumer.receive(PATIENCE_MS).data())))
    return seen


def chunks(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, chunking_enabled=True)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    sizes = (0, 1, 5_200_000, 12_000_000, 20_000_001)
    for size in sizes:
        producer.send(bytes(size), properties={"size": str(size)})
    seen: Seen = []
    for _ in sizes:
        message = consumer.receive(PATIENCE_MS)
        seen.append((len(message.data()), message.properties()))
        consumer.acknowledge(message)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        seen.append(len(reader.read_next(PATIENCE_MS).data()))
    return seen


def everything_that_a_message_carries(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    seen: Seen = []
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    for batched in (False, True):
        producer = client.create_producer(topic, producer_name=f"p{batched}", batching_enabled=batched)
        producer.send(b"x", properties={"a": "1", "": "", "ü": "ß"}, partition_key="k", ordering_key="o",
                      event_timestamp=123)  # fmt: skip
        producer.send(b"")
        producer.send(None)
        for _ in range(3):
            message = consumer.receive(PATIENCE_MS)
            seen.append((
                message.data(), message.properties(), message.partition_key(), message.ordering_key(),
                message.event_timestamp(), message.redelivery_count(), message.producer_name(), message.topic_name(),
                message.has_null_value(),
            ))  # fmt: skip
            consumer.acknowledge(message)
    return seen


def replicated_to_clusters_that_are_not_there(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic)
    seen: Seen = [outcome(lambda: producer.send(b"local", disable_replication=True))]
    seen.append(outcome(lambda: producer.send(b"far", replication_clusters=["elsewhere"])))
    return seen + received(consumer, 2)


def a_terminated_topic(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    sent(producer, 3)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    ended = world.admin("POST", f"persistent/public/default/{world.name}/terminate")
    seen: Seen = [isinstance(ended, dict) and ended["entryId"]]
    seen.append(outcome(lambda: producer.send(b"late")))
    seen.append(outcome(lambda: client.create_producer(topic)))
    seen += received(consumer, 3)
    seen.append(nothing_more(consumer))
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    while reader.has_message_available():
        seen.append(reader.read_next(PATIENCE_MS).data())
    seen.append(outcome(lambda: client.subscribe(topic, "new", initial_position=EARLIEST).receive(PATIENCE_MS).data()))
    return seen


def deduplication(world: World) -> Seen:
    namespace = world.namespace()
    world.admin("POST", f"namespaces/{namespace}/deduplication", True)
    topic = world.topic(namespace=namespace)
    client = world.client()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    producer = client.create_producer(topic, producer_name="p")
    for number in (1, 2, 2, 1, 3):
        producer.send(b"%d" % number, sequence_id=number)
    producer.close()
    again = client.create_producer(topic, producer_name="p")
    seen: Seen = [again.last_sequence_id()]
    again.send(b"3", sequence_id=3)
    again.send(b"4", sequence_id=4)
    return seen + received(consumer, 5, SHORT_MS)


def partitions_that_grow(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    path = f"persistent/public/default/{world.name}/partitions"
    seen: Seen = [world.admin("PUT", path, 2), [one.rpartition("-")[2] for one in client.get_topic_partitions(topic)]]
    producer = client.create_producer(topic)
    seen.append(sorted({producer.send(b"%d" % number).partition() for number in range(10)}))
    seen += [world.admin("POST", path, 1), world.admin("POST", path, 4), world.admin("PUT", path, 4)]
    fresh = world.client()
    seen.append(len(fresh.get_topic_partitions(topic)))
    other = fresh.create_producer(topic)
    seen.append(sorted({other.send(b"%d" % number).partition() for number in range(12)}))
    consumer = fresh.subscribe(topic, "s", initial_position=EARLIEST)
    seen.append(sorted(received(consumer, 22)))
    return seen


def keys_choose_partitions(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    world.admin("PUT", f"persistent/public/default/{world.name}/partitions", 3)
    producer = client.create_producer(topic)
    return [producer.send(b"", partition_key=f"k{number}").partition() for number in range(12)]


# ----------------------------------------------------------------------------------------- consumers


def types_of_subscriptions_exclude_each_other(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    kinds = pulsar.ConsumerType
    named = {"Exclusive": kinds.Exclusive, "Shared": kinds.Shared, "Failover": kinds.Failover,
             "KeyShared": kinds.KeyShared}  # fmt: skip
    seen: Seen = []
    for first in named:
        for second in named:
            one = client.subscribe(topic, f"{first}-{second}", named[first])
            kind = named[second]
            seen.append((first, second, outcome(client.subscribe, topic, f"{first}-{second}", kind)))
            one.close()
    return seen


def a_subscription_changes_its_type_when_nobody_is_there(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    seen: Seen = []
    kinds = pulsar.ConsumerType
    client.subscribe(topic, "s", initial_position=EARLIEST).close()
    for number, kind in enumerate((kinds.Shared, kinds.Failover, kinds.KeyShared, kinds.Exclusive)):
        producer.send(b"%d" % number)
        consumer = client.subscribe(topic, "s", kind)
        seen += received(consumer, 1)
        consumer.close()
    return seen


def acknowledged_one_by_one_and_all_before(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    sent(producer, 10)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    messages = [consumer.receive(PATIENCE_MS) for _ in range(10)]
    consumer.acknowledge_cumulative(messages[3])
    consumer.acknowledge(messages[6])
    consumer.acknowledge(messages[8].message_id())
    time.sleep(0.5)
    consumer.close()
    again = client.subscribe(topic, "s")
    seen: Seen = list(received(again, 4))
    seen.append(nothing_more(again))
    again.close()
    shared = client.subscribe(topic, "t", pulsar.ConsumerType.Shared, initial_position=EARLIEST)
    message = shared.receive(PATIENCE_MS)
    seen.append(outcome(lambda: shared.acknowledge_cumulative(message)))
    keyed = client.subscribe(topic, "k", pulsar.ConsumerType.KeyShared, initial_position=EARLIEST)
    message = keyed.receive(PATIENCE_MS)
    seen.append(outcome(lambda: keyed.acknowledge_cumulative(message)))
    return seen


def parts_of_batches(world: World) -> Seen:
    """Without acknowledged parts at the broker, and with them (the brokers of the test have them switched on)."""
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    for number in range(10):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    seen: Seen = []
    for name, is_on in (("whole", False), ("parts", True)):
        consumer = client.subscribe(topic, name, pulsar.ConsumerType.Shared, initial_position=EARLIEST,
                                    batch_index_ack_enabled=is_on)  # fmt: skip
        messages = [consumer.receive(PATIENCE_MS) for _ in range(10)]
        for message in messages[::2]:
            consumer.acknowledge(message)
        time.sleep(0.5)
        consumer.close()
        again = client.subscribe(topic, name, pulsar.ConsumerType.Shared, batch_index_ack_enabled=is_on)
        seen.append(received(again, 10, SHORT_MS))
        again.close()
    return seen


def redelivered_after_a_negative_acknowledgement(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    sent(producer, 3)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST,
                                negative_ack_redelivery_delay_ms=300)  # fmt: skip
    seen: Seen = []
    for _ in range(3):
        message = consumer.receive(PATIENCE_MS)
        seen.append((message.data(), message.redelivery_count()))
        if message.data() == b"1":
            consumer.negative_acknowledge(message)
        else:
            consumer.acknowledge(message)
    for _ in range(2):
        message = consumer.receive(PATIENCE_MS)
        seen.append((message.data(), message.redelivery_count()))
        consumer.negative_acknowledge(message)
    message = consumer.receive(PATIENCE_MS)
    consumer.acknowledge(message)
    seen += [(message.data(), message.redelivery_count()), nothing_more(consumer)]
    return seen


def redelivered_by_request(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    sent(client.create_producer(topic), 4)
    seen: Seen = []
    for kind in (pulsar.ConsumerType.Exclusive, pulsar.ConsumerType.Shared):
        consumer = client.subscribe(topic, f"s{kind}", kind, initial_position=EARLIEST)
        messages = [consumer.receive(PATIENCE_MS) for _ in range(4)]
        consumer.acknowledge(messages[0])
        time.sleep(0.3)
        consumer.redeliver_unacknowledged_messages()
        again = [consumer.receive(PATIENCE_MS) for _ in range(3)]
        seen += [(message.data(), message.redelivery_count()) for message in again]
    return seen


def redelivered_without_an_acknowledgement(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    sent(client.create_producer(topic), 2)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST,
                                unacked_messages_timeout_ms=10_000)  # fmt: skip
    seen: Seen = [consumer.receive(PATIENCE_MS).data() for _ in range(2)]
    again = [consumer.receive(25_000) for _ in range(2)]
    return seen + sorted((message.data(), message.redelivery_count()) for message in again)


def dead_letters(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    sent(client.create_producer(topic), 3)
    policy = pulsar.ConsumerDeadLetterPolicy(2, dead_letter_topic=world.topic("-dead"), initial_subscription_name="all")
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, initial_position=EARLIEST,
                                negative_ack_redelivery_delay_ms=100, dead_letter_policy=policy)  # fmt: skip
    seen: Seen = []
    for _ in range(9):
        message = consumer.receive(PATIENCE_MS)
        seen.append((message.data(), message.redelivery_count()))
        consumer.negative_acknowledge(message)
    seen = sorted(seen)
    seen.append(nothing_more(consumer))
    dead = client.subscribe(world.topic("-dead"), "all")
    letters = [dead.receive(PATIENCE_MS) for _ in range(3)]
    return seen + sorted((letter.data(), sorted(letter.properties())) for letter in letters)


def a_failover_subscription_moves_on(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    kind = pulsar.ConsumerType.Failover
    first = client.subscribe(topic, "s", kind, consumer_name="a")
    second = client.subscribe(topic, "s", kind, consumer_name="b")
    sent(producer, 3)
    seen: Seen = [received(first, 2), nothing_more(second)]
    time.sleep(0.3)
    first.close()
    seen.append(received(second, 1))
    sent(producer, 2, 3)
    seen.append(received(second, 2))
    return seen


def key_shared_order(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    kind = pulsar.ConsumerType.KeyShared
    consumers = [client.subscribe(topic, "s", kind, consumer_name=f"c{number}") for number in range(3)]
    producer = client.create_producer(topic)
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"k{number % 12}")
    seen: Seen = []
    for consumer in consumers:
        found: dict[str, list[bytes]] = {}
        with contextlib.suppress(pulsar.Timeout):
            while True:
                message = consumer.receive(SHORT_MS)
                found.setdefault(message.partition_key(), []).append(message.data())
                consumer.acknowledge(message)
        seen.append(sorted(found.items()))
    return seen


def key_shared_sticky_ranges(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    kind, sticky = pulsar.ConsumerType.KeyShared, pulsar.KeySharedMode.Sticky

    def subscribe(*ranges: tuple[int, int]) -> Any:
        policy = pulsar.ConsumerKeySharedPolicy(key_shared_mode=sticky, sticky_ranges=list(ranges))
        return client.subscribe(topic, "s", kind, key_shared_policy=policy)

    low, seen = subscribe((0, 32767)), []
    seen.append(outcome(lambda: subscribe((30000, 40000))))
    high = subscribe((32768, 65535))
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"k{number}")
    seen += [received(low, 20, SHORT_MS), received(high, 20, SHORT_MS)]
    seen.append(outcome(lambda: client.subscribe(topic, "s", kind)))
    return seen


def key_shared_policies_must_agree(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    kind = pulsar.ConsumerType.KeyShared
    client.subscribe(topic, "s", kind)
    loose = pulsar.ConsumerKeySharedPolicy(allow_out_of_order_delivery=True)
    return [outcome(lambda: client.subscribe(topic, "s", kind, key_shared_policy=loose))]


def seeks(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    ids = sent(producer, 5)
    time.sleep(0.01)
    border = int(time.time() * 1000)
    time.sleep(0.01)
    ids += sent(producer, 5, 5)
    seen: Seen = []
    for inclusive in (False, True):
        consumer = client.subscribe(topic, f"s{inclusive}", start_message_id_inclusive=inclusive)
        for goal in (ids[3], pulsar.MessageId.earliest, border, pulsar.MessageId.latest):
            consumer.seek(goal)
            seen.append(received(consumer, 10, SHORT_MS))
        consumer.close()
    return seen


def seeks_in_a_batch(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=500)
    ids: list[Any] = []
    for number in range(10):
        producer.send_async(b"%d" % number, lambda _, message_id: ids.append(message_id))
    producer.flush()
    seen: Seen = [[one.batch_index() for one in ids]]
    for inclusive in (False, True):
        consumer = client.subscribe(topic, f"s{inclusive}", start_message_id_inclusive=inclusive)
        consumer.seek(ids[4])
        seen.append(received(consumer, 10, SHORT_MS))
        reader = client.create_reader(topic, ids[4], start_message_id_inclusive=inclusive)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(PATIENCE_MS).data())
        seen.append(found)
    return seen


def the_last_message_id(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    consumer = client.subscribe(topic, "s")
    empty = consumer.get_last_message_id()
    seen: Seen = [(empty.ledger_id() < 0, empty.entry_id(), empty.batch_index())]
    last = sent(client.create_producer(topic), 3)[-1]
    found = consumer.get_last_message_id()
    seen.append((found.ledger_id() == last.ledger_id(), found.entry_id() == last.entry_id(), found.batch_index()))
    return seen


def unsubscribed(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    kind = pulsar.ConsumerType.Shared
    one, two = (client.subscribe(topic, "s", kind) for _ in range(2))
    seen: Seen = [outcome(one.unsubscribe)]
    two.close()
    seen += [outcome(one.unsubscribe), outcome(lambda: one.receive(SHORT_MS))]
    seen.append(world.admin("GET", f"persistent/public/default/{world.name}/subscriptions"))
    return seen


def a_subscription_deleted_under_its_consumer(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    path = f"persistent/public/default/{world.name}/subscription/s"
    seen: Seen = [world.admin("DELETE", path), world.admin("DELETE", f"{path}?force=true")]
    time.sleep(1.5)
    producer.send(b"behind")
    seen.append(outcome(lambda: consumer.receive(SHORT_MS).data()))
    return seen


def a_topic_deleted_under_its_clients(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    client.subscribe(topic, "s")
    path = f"persistent/public/default/{world.name}"
    seen: Seen = [world.admin("DELETE", path), outcome(lambda: producer.send(b"still"))]
    seen.append(world.admin("DELETE", f"{path}?force=true"))
    return seen


def a_topic_unloaded_under_its_clients(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen: Seen = []
    for number in range(3):
        producer.send(b"%d" % number)
        seen.append(world.admin("PUT", f"persistent/public/default/{world.name}/unload"))
    producer.send(b"3")
    seen.append(sorted(set(received(consumer, 4))))
    seen.append([reader.read_next(PATIENCE_MS).data() for _ in range(4)])
    return seen


def several_topics_and_patterns(world: World) -> Seen:
    client = world.client()
    namespace = world.namespace()
    topics = [world.topic(f"-{letter}", namespace) for letter in "abc"]
    producers = [client.create_producer(topic) for topic in topics]
    listed = client.subscribe(topics, "listed")
    pattern = client.subscribe(
        re.compile(f"persistent://{namespace}/.*-[ab]"), "pattern", pattern_auto_discovery_period=1
    )
    for number, producer in enumerate(producers):
        producer.send(b"%d" % number)
    seen: Seen = [sorted(received(listed, 3)), sorted(received(pattern, 2)), nothing_more(pattern)]
    late = client.create_producer(world.topic("-late-a", namespace))
    time.sleep(4)
    late.send(b"late")
    named, random = listed.topic().rsplit("-", 1)
    seen += [received(pattern, 1), named, len(random), outcome(listed.unsubscribe)]
    return seen


def patterns_over_both_kinds_of_topics(world: World) -> Seen:
    client = world.client()
    namespace = world.namespace()
    world.admin("PUT", f"persistent/{namespace}/kept")
    kept = client.create_producer(f"persistent://{namespace}/kept")
    passing = client.create_producer(f"non-persistent://{namespace}/passing")
    modes = pulsar.RegexSubscriptionMode
    seen: Seen = []
    for name, mode in (("p", modes.PersistentOnly), ("n", modes.NonPersistentOnly), ("a", modes.AllTopics)):
        consumer = client.subscribe(re.compile(f"{namespace}/.*"), name, regex_subscription_mode=mode)
        kept.send(b"kept")
        passing.send(b"passing")
        seen.append(sorted(received(consumer, 2, 3_000)))
        consumer.close()
    return seen


def messages_in_groups(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    sent(client.create_producer(topic), 10)
    policy = pulsar.ConsumerBatchReceivePolicy(4, 1_000_000, 500)
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST, batch_receive_policy=policy)
    return [[message.data() for message in consumer.batch_receive()] for _ in range(4)]


def later_messages(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    shared = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    alone = client.subscribe(topic, "e")

    producer.send(b"late", deliver_after=timedelta(seconds=6))
    producer.send(b"at", deliver_at=int(time.time() * 1000) + 1_500)
    producer.send(b"now")
    return [received(shared, 3), received(alone, 3)]


def listeners(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    found: list[bytes] = []

    def on_message(consumer: Any, message: Any) -> None:
        found.append(message.data())
        consumer.acknowledge(message)

    consumer = client.subscribe(topic, "s", message_listener=on_message)
    producer = client.create_producer(topic)
    sent(producer, 3)
    seen: Seen = [eventually(lambda: len(found), 3)]
    consumer.pause_message_listener()
    consumer.resume_message_listener()
    sent(producer, 3, 3)
    eventually(lambda: len(found), 6)
    return [*seen, found, outcome(lambda: consumer.receive(SHORT_MS))]


def a_queue_of_one(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    sent(client.create_producer(topic), 6)
    kind = pulsar.ConsumerType.Shared
    consumers = [client.subscribe(topic, "s", kind, receiver_queue_size=1, initial_position=EARLIEST) for _ in range(2)]
    found = [consumer.receive(PATIENCE_MS).data() for _ in range(3) for consumer in consumers]
    none = client.subscribe(topic, "zero", receiver_queue_size=0, initial_position=EARLIEST)
    return [sorted(found), [none.receive().data() for _ in range(6)]]  # such a queue knows no timeout


# ------------------------------------------------------------------------------------------- readers


def readers(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    ids = sent(producer, 6)
    seen: Seen = []

    def rest(reader: Any) -> list[bytes]:
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(PATIENCE_MS).data())
        return found

    for start in (pulsar.MessageId.earliest, ids[2], pulsar.MessageId.latest):
        for inclusive in (False, True):
            reader = client.create_reader(topic, start, start_message_id_inclusive=inclusive)
            seen.append(rest(reader))
            reader.close()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, reader_name="r", subscription_role_prefix="role")
    seen += [len(rest(reader)), reader.is_connected(), reader.topic()]
    reader.seek(ids[4])
    seen.append(rest(reader))
    reader.seek(0)
    seen.append(rest(reader))
    seen.append(outcome(lambda: reader.read_next(SHORT_MS)))
    names = world.admin("GET", f"persistent/public/default/{world.name}/subscriptions")
    seen.append([name.split("-")[0] for name in names])
    return seen


def a_reader_over_partitions(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    world.admin("PUT", f"persistent/public/default/{world.name}/partitions", 3)
    sent(client.create_producer(topic), 9)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data())
    return [sorted(found)]


def table_views(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, schema=StringSchema())
    for key, value in (("a", "1"), ("b", "2"), ("a", "3")):
        producer.send(value, partition_key=key)
    view = client.create_table_view(topic, schema=StringSchema())
    seen: Seen = [len(view), view.get("a"), view.get("b"), view.get("c")]
    producer.send("4", partition_key="c")
    seen.append(eventually(lambda: view.get("c"), "4"))
    found: list[Any] = []
    view.for_each(lambda key, value: found.append((key, value)))
    return [*seen, sorted(found)]


def compacted_readers(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic)
    for number in range(12):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    producer.send(b"", partition_key="k0")
    path = f"persistent/public/default/{world.name}/compaction"
    seen: Seen = [world.admin("PUT", path)]
    seen.append(eventually(lambda: world.admin("GET", path)["status"], "SUCCESS", 30))
    producer.send(b"tail", partition_key="k1")
    consumer = client.subscribe(topic, "s", is_read_compacted=True, initial_position=EARLIEST)
    seen.append(received(consumer, 10, SHORT_MS))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(PATIENCE_MS).data())
    seen.append(found)
    kind = pulsar.ConsumerType.Shared
    seen.append(outcome(lambda: client.subscribe(topic, "shared", kind, is_read_compacted=True)))
    return seen


# ------------------------------------------------------------------------------------------- schemas


class Reading(Record):  # type: ignore[misc]
    sensor = String()
    value = Double()


class ReadingWithMore(Record):  # type: ignore[misc]
    sensor = String()
    value = Double()
    unit = String(default="K")


class ReadingOfAnotherKind(Record):  # type: ignore[misc]
    sensor = Integer(required=True)
    value = Boolean(required=True)


class Nested(Record):  # type: ignore[misc]
    name = String()
    numbers = Array(Integer())
    by_name = Map(Long())
    ratio = Float()
    reading = Reading()


def schemas_of_records(world: World) -> Seen:
    client = world.client()
    seen: Seen = []
    for kind in (AvroSchema, JsonSchema):
        topic = world.topic(f"-{kind.__name__}")
        producer = client.create_producer(topic, schema=kind(Reading))
        consumer = client.subscribe(topic, "s", schema=kind(Reading), initial_position=EARLIEST)
        producer.send(Reading(sensor="a", value=1.5))
        message = consumer.receive(PATIENCE_MS)
        seen.append((message.value().sensor, message.value().value, message.schema_version()))
        newer = outcome(client.create_producer, topic, schema=kind(ReadingWithMore))
        other = outcome(client.create_producer, topic, schema=kind(ReadingOfAnotherKind))
        third = outcome(client.subscribe, topic, "o", schema=kind(ReadingOfAnotherKind))
        plain = outcome(client.create_producer, topic)
        bare = outcome(client.subscribe, topic, "bare")
        text = outcome(client.create_producer, topic, schema=StringSchema())
        seen.append((newer, other, third, plain, bare, text))
        stored = world.admin("GET", f"schemas/{topic.removeprefix('persistent://')}/schema")
        seen.append((stored["version"], stored["type"], stored["data"]))
    return seen


def nested_records(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, schema=AvroSchema(Nested))
    consumer = client.subscribe(topic, "s", schema=AvroSchema(Nested), initial_position=EARLIEST)
    producer.send(Nested(name="n", numbers=[1, 2], by_name={"a": 1}, ratio=0.5, reading=Reading(sensor="s", value=2.0)))
    producer.send(Nested())
    found = [consumer.receive(PATIENCE_MS).value() for _ in range(2)]
    return [(one.name, one.numbers, one.by_name, one.ratio, one.reading and one.reading.sensor) for one in found]


def strings_and_bytes(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    producer = client.create_producer(topic, schema=StringSchema())
    consumer = client.subscribe(topic, "s", schema=StringSchema(), initial_position=EARLIEST)
    producer.send("grün")
    seen: Seen = [consumer.receive(PATIENCE_MS).value()]
    seen.append(outcome(lambda: client.create_producer(topic, schema=AvroSchema(Reading))))
    seen.append(outcome(lambda: client.subscribe(topic, "t", schema=AvroSchema(Reading))))
    return seen


def schemas_are_not_added_where_that_is_off(world: World) -> Seen:
    namespace = world.namespace()
    client = world.client()
    topic = world.topic(namespace=namespace)
    seen: Seen = [outcome(lambda: client.create_producer(topic, schema=AvroSchema(Reading)))]
    seen.append(world.admin("POST", f"namespaces/{namespace}/isAllowAutoUpdateSchema", False))
    seen.append(outcome(lambda: client.create_producer(topic, schema=AvroSchema(ReadingWithMore))))
    seen.append(outcome(lambda: client.subscribe(topic, "s", schema=AvroSchema(ReadingWithMore))))
    seen.append(outcome(lambda: client.create_producer(topic, schema=AvroSchema(Reading))))
    seen.append(world.admin("POST", f"namespaces/{namespace}/schemaValidationEnforced", True))
    seen.append(outcome(lambda: client.create_producer(topic)))
    return seen


# ---------------------------------------------------------------------------------- what is refused


def topics_that_are_not_there(world: World) -> Seen:
    namespace = world.namespace()
    rule = {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}
    world.admin("POST", f"namespaces/{namespace}/autoTopicCreation", rule)
    client = world.client()
    topic = world.topic(namespace=namespace)
    seen: Seen = [
        outcome(lambda: client.create_producer(topic)),
        outcome(lambda: client.subscribe(topic, "s")),
        outcome(lambda: client.create_reader(topic, pulsar.MessageId.earliest)),
        outcome(lambda: client.create_table_view(topic)),
        outcome(lambda: client.get_topic_partitions(topic)),
    ]
    for wrong in ("public/nowhere/t", "nobody/default/t"):
        name = f"persistent://{wrong}"
        seen.append(outcome(client.create_producer, name))
        seen.append(outcome(client.subscribe, name, "s"))
        seen.append(outcome(client.get_topic_partitions, name))
    return seen


def names_that_are_wrong(world: World) -> Seen:
    client = world.client()
    names = ("", "persistent://a/b", "persistent://public/default/", "x://public/default/t", "public/default/a/b/c/d",
             "persistent://public/default/a b", "persistent://public/default/ü", "public/default/t-partition-0",
             "persistent://public/default/t-partition-x")  # fmt: skip
    return [(name, outcome(client.create_producer, name)) for name in names]


def subscriptions_that_are_not_made(world: World) -> Seen:
    namespace = world.namespace()
    world.admin("POST", f"namespaces/{namespace}/autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False})
    client = world.client()
    topic = world.topic(namespace=namespace)
    client.create_producer(topic)
    seen: Seen = [outcome(lambda: client.subscribe(topic, "s"))]
    path = f"persistent/{namespace}/{world.name}/subscription/s"
    seen += [world.admin("PUT", path), outcome(lambda: client.subscribe(topic, "s"))]
    seen.append(outcome(lambda: client.create_reader(topic, pulsar.MessageId.earliest)))
    return seen


def kinds_of_subscriptions_that_are_off(world: World) -> Seen:
    namespace = world.namespace()
    world.admin("POST", f"namespaces/{namespace}/subscriptionTypesEnabled", ["Shared", "Exclusive"])
    client = world.client()
    topic = world.topic(namespace=namespace)
    kinds = pulsar.ConsumerType
    every = (kinds.Exclusive, kinds.Shared, kinds.Failover, kinds.KeyShared)
    return [outcome(client.subscribe, topic, f"s{kind}", kind) for kind in every]


def limits_of_a_namespace(world: World) -> Seen:
    namespace = world.namespace()
    for what, value in (("maxProducersPerTopic", 1), ("maxConsumersPerTopic", 3), ("maxConsumersPerSubscription", 2),
                        ("maxSubscriptionsPerTopic", 2), ("maxTopicsPerNamespace", 2)):  # fmt: skip
        assert world.admin("POST", f"namespaces/{namespace}/{what}", value) is None, what
    client = world.client()
    topic = world.topic(namespace=namespace)
    kind = pulsar.ConsumerType.Shared
    kept = [client.create_producer(topic)]
    seen: Seen = [outcome(lambda: client.create_producer(topic))]
    kept += [client.subscribe(topic, "a", kind), client.subscribe(topic, "a", kind)]
    seen.append(outcome(lambda: client.subscribe(topic, "a", kind)))
    kept.append(client.subscribe(topic, "b", kind))
    seen.append(outcome(lambda: client.subscribe(topic, "b", kind)))
    kept.pop().close()
    seen.append(outcome(lambda: client.subscribe(topic, "c", kind)))
    kept.append(client.create_producer(world.topic("-second", namespace)))
    seen.append(outcome(lambda: client.create_producer(world.topic("-third", namespace))))
    seen.append(outcome(lambda: client.subscribe(world.topic("-third", namespace), "s")))
    return seen


def a_full_backlog(world: World) -> Seen:
    client = world.client()
    seen: Seen = []
    for policy in ("producer_exception", "consumer_backlog_eviction"):
        namespace = world.namespace(f"-{policy}")
        quota = {"limitSize": 1_000, "limitTime": -1, "policy": policy}
        world.admin("POST", f"namespaces/{namespace}/backlogQuota?backlogQuotaType=destination_storage", quota)
        topic = world.topic(namespace=namespace)
        consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = client.create_producer(topic)
        for _ in range(4):
            producer.send(b"x" * 1_000)
        time.sleep(4)  # the brokers of the test look every second
        seen.append(outcome(client.create_producer, topic))
        consumer.close()
    return seen


def transactions_are_not_there(world: World) -> Seen:
    """The Python client has no transactions; a topic may carry the word."""
    client = world.client()
    return [
        outcome(lambda: client.create_producer("persistent://pulsar/system/transaction_coordinator_assign-partition-0"))
    ]


def a_closed_client(world: World) -> Seen:
    client = world.client()
    producer, consumer = client.create_producer(world.topic()), client.subscribe(world.topic(), "s")
    client.close()
    return [
        outcome(lambda: producer.send(b"")), outcome(lambda: consumer.receive(SHORT_MS)), outcome(client.close),
        outcome(lambda: client.create_producer(world.topic())),
    ]  # fmt: skip


def non_persistent_topics(world: World) -> Seen:
    client = world.client()
    topic = f"non-persistent://public/default/{world.name}"
    producer = client.create_producer(topic)
    lost = producer.send(b"nobody is there")
    seen: Seen = [(lost.ledger_id(), lost.entry_id())]
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    sent(producer, 3)
    seen.append(received(consumer, 3))
    seen.append(outcome(lambda: client.create_reader(topic, pulsar.MessageId.earliest)))
    seen.append(outcome(lambda: consumer.seek(pulsar.MessageId.earliest)))
    last = outcome(lambda: consumer.get_last_message_id().entry_id())
    seen.append(last)
    return seen


def ids_in_bytes(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    consumer = client.subscribe(topic, "s", initial_position=EARLIEST)
    made = sent(client.create_producer(topic), 2)
    read = [consumer.receive(PATIENCE_MS).message_id() for _ in range(2)]
    again = [pulsar.MessageId.deserialize(one.serialize()) for one in read]
    return [read == made, again == read, read[0] < read[1], [(one.partition(), one.batch_index()) for one in read]]


def encrypted_messages_without_a_key(world: World) -> Seen:
    client, topic = world.client(), world.topic()
    reader = pulsar.CryptoKeyReader("/nowhere/public.pem", "/nowhere/private.pem")
    return [
        outcome(lambda: client.create_producer(topic, encryption_key="k", crypto_key_reader=reader).send(b"secret"))
    ]


def scenarios() -> Iterator[Callable[[World], Seen]]:
    """All of them, in the order of this file."""
    for found in list(globals().values()):
        if list(getattr(found, "__annotations__", {}).items()) == [("world", World), ("return", Seen)]:
            yield found
