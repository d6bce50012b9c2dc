"""The official Python client (the C++ one underneath) against the broker, with storage in memory."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from magnetar_core.topics.topic_name import TopicName
from tests.support.waiting import PATIENCE_S, eventually
from tests.unit.broker.conftest import BrokerInMemory

EARLIEST = pulsar.InitialPosition.Earliest
TIMEOUT_MS = 5000
QUIET = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")


@contextmanager
def client(url: str) -> Iterator[pulsar.Client]:
    made = pulsar.Client(url, logger=QUIET, operation_timeout_seconds=5)
    try:
        yield made
    finally:
        with contextlib.suppress(pulsar.AlreadyClosed):  # a producer that was fenced a moment ago closes itself
            made.close()


def receive(consumer: Any, count: int, acknowledge: bool = True) -> list[Any]:
    messages = []
    for _ in range(count):
        messages.append(consumer.receive(TIMEOUT_MS))
        if acknowledge:
            consumer.acknowledge(messages[-1])
    return messages


def nothing_more(consumer: Any, wait_ms: int = 60) -> bool:
    try:
        consumer.receive(wait_ms)
    except pulsar.Timeout:
        return True
    return False


def shares(consumers: Sequence[Any], count: int) -> list[list[Any]]:
    """The messages that each of *consumers* got, all together *count*."""
    found: list[list[Any]] = [[] for _ in consumers]
    end = time.monotonic() + PATIENCE_S
    while sum(map(len, found)) < count:
        assert time.monotonic() < end, found
        for got, consumer in zip(found, consumers, strict=True):
            with suppress(pulsar.Timeout):
                while True:
                    got.append(consumer.receive(5))
                    consumer.acknowledge(got[-1])
    assert all(nothing_more(consumer, 50) for consumer in consumers)
    return found


def texts(messages: list[Any]) -> list[str]:
    return [message.data().decode() for message in messages]


async def test_what_is_sent_arrives_in_order_with_key_and_properties(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s")
            producer = c.create_producer("t")
            for n in range(20):
                producer.send(f"m{n}".encode(), properties={"n": str(n)}, partition_key=f"k{n}")
            messages = receive(consumer, 20)
            assert texts(messages) == [f"m{n}" for n in range(20)]
            assert messages[3].properties() == {"n": "3"}
            assert messages[3].partition_key() == "k3"
            assert messages[0].redelivery_count() == 0
            assert nothing_more(consumer)

    await world.run(scenario)


async def test_batches_arrive_message_by_message(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s", receiver_queue_size=10)
            producer = c.create_producer(
                "t", batching_enabled=True, batching_max_messages=50, batching_max_publish_delay_ms=20
            )
            for n in range(500):
                producer.send_async(f"m{n}".encode(), lambda *_: None)
            producer.flush()
            assert texts(receive(consumer, 500)) == [f"m{n}" for n in range(500)]

    await world.run(scenario)
    assert world.ledger("t").ledgers.entries_total < 500


@pytest.mark.parametrize("codec", ["LZ4", "ZLib", "ZSTD", "SNAPPY"])
async def test_compressed_messages_pass_unchanged(world: BrokerInMemory, codec: str) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s")
            producer = c.create_producer("t", compression_type=getattr(pulsar.CompressionType, codec))
            producer.send(b"abc" * 1000)
            assert receive(consumer, 1)[0].data() == b"abc" * 1000

    await world.run(scenario)


async def test_a_message_beyond_the_limit_is_sent_in_chunks(world: BrokerInMemory) -> None:
    await world.restart(max_message_bytes=1024 * 1024)
    data = bytes(range(256)) * 8 * 1024

    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s")
            producer = c.create_producer("t", chunking_enabled=True, batching_enabled=False)
            producer.send(data)
            assert receive(consumer, 1)[0].data() == data

    await world.run(scenario)
    assert world.ledger("t").ledgers.entries_total == 3


async def test_a_shared_subscription_gives_each_message_to_one_consumer(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumers = [c.subscribe("t", "s", pulsar.ConsumerType.Shared) for _ in range(2)]
            producer = c.create_producer("t")
            for n in range(100):
                producer.send(str(n).encode())
            got = [texts(receive(consumer, 50)) for consumer in consumers]
            assert sorted(got[0] + got[1], key=int) == [str(n) for n in range(100)]
            assert all(nothing_more(consumer, 50) for consumer in consumers)

    await world.run(scenario)


async def test_what_is_refused_comes_again_with_a_growing_count(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
            c.create_producer("t").send(b"m")
            counts = []
            for _ in range(4):
                message = consumer.receive(TIMEOUT_MS)
                counts.append(message.redelivery_count())
                consumer.negative_acknowledge(message)
            consumer.acknowledge(consumer.receive(TIMEOUT_MS))
            assert counts == [0, 1, 2, 3]

    await world.run(scenario)


async def test_what_is_not_acknowledged_in_time_comes_again(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s", pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
            c.create_producer("t").send(b"m")
            assert consumer.receive(TIMEOUT_MS).redelivery_count() == 0
            consumer.redeliver_unacknowledged_messages()
            assert consumer.receive(TIMEOUT_MS).redelivery_count() == 1

    await world.run(scenario)


async def test_what_a_consumer_leaves_behind_goes_to_the_other_one(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as one, client(world.url) as two:
            first = one.subscribe("t", "s", pulsar.ConsumerType.Shared)
            producer = two.create_producer("t")
            for n in range(5):
                producer.send(str(n).encode())
            receive(first, 5, acknowledge=False)
            second = two.subscribe("t", "s", pulsar.ConsumerType.Shared)
            first.close()
            messages = receive(second, 5)
            assert texts(messages) == ["0", "1", "2", "3", "4"]
            assert [message.redelivery_count() for message in messages] == [1] * 5

    await world.run(scenario)


async def test_a_second_exclusive_consumer_is_refused(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            c.subscribe("t", "s")
            with pytest.raises(pulsar.ConsumerBusy):
                c.subscribe("t", "s")
            with pytest.raises(pulsar.ConsumerBusy):
                c.subscribe("t", "s", pulsar.ConsumerType.Shared)

    await world.run(scenario)


async def test_a_failover_consumer_takes_over_what_was_not_acknowledged(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as one, client(world.url) as two:
            kind = pulsar.ConsumerType.Failover
            active = one.subscribe("t-partition-0", "s", kind, consumer_name="a")
            standby = two.subscribe("t-partition-0", "s", kind, consumer_name="b")
            producer = one.create_producer("t-partition-0")
            for n in range(6):
                producer.send(str(n).encode())
            assert texts(receive(active, 3)) == ["0", "1", "2"]
            active.close()
            assert texts(receive(standby, 3)) == ["3", "4", "5"]

    await world.run(scenario)


async def test_a_key_stays_with_one_consumer_and_in_order(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            kind = pulsar.ConsumerType.KeyShared
            consumers = [c.subscribe("t", "s", kind, consumer_name=f"c{n}") for n in range(3)]
            producer = c.create_producer("t")
            for n in range(200):
                producer.send(str(n).encode(), partition_key=f"key-{n % 20}")
            owner: dict[str, int] = {}
            last: dict[str, int] = {}
            for number, messages in enumerate(shares(consumers, 200)):
                for message in messages:
                    key, value = message.partition_key(), int(message.data())
                    assert owner.setdefault(key, number) == number
                    assert last.get(key, -1) < value
                    last[key] = value
            assert len(set(owner.values())) > 1

    await world.run(scenario)


async def test_seek_by_id_and_by_time(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            consumer = c.subscribe("t", "s")
            producer = c.create_producer("t")
            ids = [producer.send(str(n).encode()) for n in range(5)]
            time.sleep(0.02)
            moment = int(time.time() * 1000)
            time.sleep(0.02)
            for n in range(5, 8):
                producer.send(str(n).encode())
            receive(consumer, 8)
            consumer.seek(ids[2])
            assert texts(receive(consumer, 5)) == ["3", "4", "5", "6", "7"]
            consumer.seek(moment)
            assert texts(receive(consumer, 3)) == ["5", "6", "7"]
            consumer.seek(pulsar.MessageId.earliest)
            assert texts(receive(consumer, 1)) == ["0"]
            consumer.seek(pulsar.MessageId.latest)
            assert nothing_more(consumer)

    await world.run(scenario)


async def test_a_reader_knows_whether_there_is_more_and_leaves_nothing_behind(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            producer = c.create_producer("t")
            ids = [producer.send(str(n).encode()) for n in range(3)]
            reader = c.create_reader("t", pulsar.MessageId.earliest)
            got = []
            while reader.has_message_available():
                got.append(reader.read_next(TIMEOUT_MS).data().decode())
            assert got == ["0", "1", "2"]
            reader.seek(ids[0])
            assert reader.has_message_available()
            assert reader.read_next(TIMEOUT_MS).data() == b"1"
            reader.close()
            after = c.create_reader("t", ids[1])
            assert after.read_next(TIMEOUT_MS).data() == b"2"
            assert not after.has_message_available()
            latest = c.create_reader("t", pulsar.MessageId.latest)
            assert not latest.has_message_available()

    await world.run(scenario)
    assert world.ledger("t").cursors == {}


async def test_an_empty_topic_has_no_message_available(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            reader = c.create_reader("t", pulsar.MessageId.earliest)
            assert not reader.has_message_available()

    await world.run(scenario)


async def test_single_messages_of_a_batch_are_acknowledged(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            kind = pulsar.ConsumerType.Shared
            consumer = c.subscribe("t", "s", kind, batch_index_ack_enabled=True)
            producer = c.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=50)
            for n in range(5):
                producer.send_async(str(n).encode(), lambda *_: None)
            producer.flush()
            messages = receive(consumer, 5, acknowledge=False)
            for message in (messages[0], messages[3]):
                consumer.acknowledge(message)
            consumer.close()
            again = c.subscribe("t", "s", kind, batch_index_ack_enabled=True)
            assert texts(receive(again, 3)) == ["1", "2", "4"]
            again.close()
            assert nothing_more(c.subscribe("t", "s", kind, batch_index_ack_enabled=True))

    await world.run(scenario)


async def test_partitions_are_served_each_for_itself(world: BrokerInMemory) -> None:
    await world.restart(auto_topic_creation_type="partitioned", default_partitions=3)

    def scenario() -> None:
        with client(world.url) as c:
            assert len(c.get_topic_partitions("p")) == 3
            consumer = c.subscribe("p", "s")
            producer = c.create_producer("p", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution)
            for n in range(30):
                producer.send(str(n).encode())
            assert sorted(texts(receive(consumer, 30)), key=int) == [str(n) for n in range(30)]

    await world.run(scenario)
    assert len(world.ledgers.by_name) == 3


async def test_a_pattern_consumer_finds_its_topics(world: BrokerInMemory) -> None:
    def scenario() -> None:
        import re

        with client(world.url) as c:
            producers = [c.create_producer(name) for name in ("red-1", "red-2", "blue-1")]
            consumer = c.subscribe(re.compile("persistent://public/default/red-.*"), "s")
            for producer in producers:
                producer.send(producer.topic().encode())
            got = sorted(texts(receive(consumer, 2)))
            assert got == ["persistent://public/default/red-1", "persistent://public/default/red-2"]
            assert nothing_more(consumer)

    await world.run(scenario)


class Row(Record):  # type: ignore[misc]
    name = String()
    number = Integer()


class OtherRow(Record):  # type: ignore[misc]
    name = Integer(required=True)


async def test_schemas_are_registered_and_compared(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            for topic, schema in (("avro", AvroSchema(Row)), ("json", JsonSchema(Row))):
                consumer = c.subscribe(topic, "s", schema=schema)
                c.create_producer(topic, schema=schema).send(Row(name="a", number=1))
                value = receive(consumer, 1)[0].value()
                assert (value.name, value.number) == ("a", 1)
            text = c.subscribe("text", "s", schema=StringSchema())
            c.create_producer("text", schema=StringSchema()).send("hello")
            assert receive(text, 1)[0].value() == "hello"
            with pytest.raises(pulsar.IncompatibleSchema):
                c.create_producer("avro", schema=AvroSchema(OtherRow))
            with pytest.raises(pulsar.IncompatibleSchema):
                c.create_producer("avro", schema=JsonSchema(Row))

    await world.run(scenario)
    assert [len(versions) for versions in world.schemas.by_id.values()] == [1, 1, 1]


async def test_access_modes_of_producers(world: BrokerInMemory) -> None:
    mode = pulsar.ProducerAccessMode

    def scenario() -> None:
        with client(world.url) as c, client(world.url) as other:
            holder = c.create_producer("t", access_mode=mode.Exclusive)
            with pytest.raises(pulsar.ProducerFenced):
                c.create_producer("t", access_mode=mode.Exclusive)
            with pytest.raises(pulsar.ProducerBusy):
                c.create_producer("t")
            later = other.create_producer("t", access_mode=mode.ExclusiveWithFencing)
            later.send(b"mine")
            with pytest.raises(pulsar.PulsarException):
                holder.send(b"not mine any more")

    await world.run(scenario)
    assert world.ledger("t").properties == {"pulsar.topic.epoch": "1"}


async def test_a_taken_name_is_refused(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            c.create_producer("t", producer_name="me")
            with pytest.raises(pulsar.ProducerBusy):
                c.create_producer("t", producer_name="me")
            assert c.create_producer("t").producer_name() == "lab-0-0"

    await world.run(scenario)


async def test_a_message_sent_twice_is_stored_once_also_after_a_restart(world: BrokerInMemory) -> None:
    await world.restart(deduplication=True)

    def send(first: int, count: int) -> int:
        with client(world.url) as c:
            producer = c.create_producer("t", producer_name="me")
            known = int(producer.last_sequence_id())
            for sequence_id in range(first, first + count):
                producer.send(str(sequence_id).encode(), sequence_id=sequence_id)
            return known

    assert await world.run(send, 0, 5) == -1
    assert await world.run(send, 3, 4) == 4
    assert world.ledger("t").ledgers.entries_total == 7
    await world.restart()
    assert await world.run(send, 5, 3) == 6
    assert world.ledger("t").ledgers.entries_total == 8


async def test_delayed_messages_wait_on_a_shared_subscription(world: BrokerInMemory) -> None:
    await world.restart(delayed_delivery_strict=True)

    def scenario() -> None:
        from datetime import timedelta

        with client(world.url) as c:
            shared = c.subscribe("t", "shared", pulsar.ConsumerType.Shared)
            exclusive = c.subscribe("t", "exclusive")
            producer = c.create_producer("t")
            producer.send(b"later", deliver_after=timedelta(milliseconds=600))
            producer.send(b"now")
            assert texts(receive(exclusive, 2)) == ["later", "now"]
            assert texts(receive(shared, 2)) == ["now", "later"]

    await world.run(scenario)


async def test_clients_come_back_after_an_unload_and_nothing_is_lost(world: BrokerInMemory) -> None:
    topic = "persistent://public/default/t"

    def first(c: pulsar.Client) -> tuple[Any, Any]:
        consumer = c.subscribe(topic, "s")
        producer = c.create_producer(topic)
        for n in range(3):
            producer.send(str(n).encode())
        assert texts(receive(consumer, 3)) == ["0", "1", "2"]
        return producer, consumer

    def second(producer: Any, consumer: Any) -> None:
        for n in range(3, 6):
            producer.send(str(n).encode())
        got = texts(receive(consumer, 3))
        while "5" not in got:  # acks that were under way at the unload bring some again
            got += texts(receive(consumer, 1))
        assert [text for text in got if text in "345"] == ["3", "4", "5"]

    c = pulsar.Client(world.url, logger=QUIET)
    try:
        producer, consumer = await world.run(first, c)
        (name,) = world.broker.topics
        await world.broker.opening.unload(name)
        assert not world.broker.topics
        await world.run(second, producer, consumer)
    finally:
        await world.run(c.close)


async def test_unknown_namespaces_and_absent_topics_are_not_found(world: BrokerInMemory) -> None:
    await world.set_policies("public/noauto", autoTopicCreationOverride={"allowAutoTopicCreation": False})

    def scenario() -> None:
        with client(world.url) as c:
            for topic in ("public/nowhere/t", "nobody/default/t", "public/noauto/t"):
                with pytest.raises(pulsar.TopicNotFound):
                    c.create_producer(topic)
                with pytest.raises(pulsar.TopicNotFound):
                    c.subscribe(topic, "s")

    await world.run(scenario)


@pytest.mark.parametrize("by", ["the namespace", "the broker"])
async def test_schemas_that_clients_may_not_bring_are_refused_but_for_topics_of_the_brokers(
    world: BrokerInMemory, by: str
) -> None:
    if by == "the broker":
        await world.restart(schema_auto_update=False)
    else:
        await world.set_policies("public/default", is_allow_auto_update_schema=False)

    def scenario() -> None:
        with client(world.url) as c:
            with pytest.raises(pulsar.IncompatibleSchema):
                c.create_producer("guarded", schema=AvroSchema(Row))
            with pytest.raises(pulsar.IncompatibleSchema):
                c.subscribe("guarded", "s", schema=AvroSchema(Row))
            c.create_producer("guarded").send(b"without one")
            c.create_producer("__change_events", schema=AvroSchema(Row))

    await world.run(scenario)
    assert [schema_id.rpartition("/")[2] for schema_id, found in world.schemas.by_id.items() if found] == [
        "__change_events"
    ]


async def test_a_subscription_is_removed_by_its_only_consumer(world: BrokerInMemory) -> None:
    def scenario() -> None:
        with client(world.url) as c:
            one = c.subscribe("t", "s", pulsar.ConsumerType.Shared)
            two = c.subscribe("t", "s", pulsar.ConsumerType.Shared)
            with pytest.raises(pulsar.PulsarException):
                one.unsubscribe()
            two.close()
            one.unsubscribe()

    await world.run(scenario)
    assert world.ledger("t").cursors == {}


async def test_who_waits_for_exclusive_access_gets_it_also_after_an_unload(world: BrokerInMemory) -> None:
    name, mode = TopicName.parse("t"), pulsar.ProducerAccessMode
    with client(world.url) as one, client(world.url) as two:
        first = await world.run(lambda: one.create_producer("t", access_mode=mode.Exclusive))
        waiting = asyncio.ensure_future(world.run(lambda: two.create_producer("t", access_mode=mode.WaitForExclusive)))
        await eventually(lambda: len(world.broker.topics[name].producers) == 2)
        await world.broker.opening.unload(name)
        await world.run(lambda: first.send(b"0"))
        await eventually(lambda: len(world.broker.topics[name].producers) == 2)
        assert not waiting.done()
        await world.run(first.close)
        second = await asyncio.wait_for(waiting, TIMEOUT_MS / 1000)
        await world.run(lambda: second.send(b"1"))
        await world.run(second.close)
