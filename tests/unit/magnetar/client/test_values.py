"""Values of messages over a broker: schemas are registered and checked, versions are read, errors are not silent."""

import asyncio
import logging
import pickle
from dataclasses import dataclass
from typing import Any

import pytest

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from magnetar.client.codecs import versions
from magnetar.client.codecs.declared import Schema
from magnetar.client.errors import SchemaRefused, TopicError
from magnetar.client.retries.retry import Retry
from magnetar.client.values import Message, Outgoing
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from tests.unit.broker.conftest import BrokerInMemory, world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]

FULL = "persistent://public/default/t"


@dataclass
class Order:
    id: int
    customer: str


@dataclass
class Newer:
    id: int
    customer: str
    note: str | None = None


@dataclass
class Other:
    id: str


NEWER = {
    "type": "record",
    "name": "Newer",
    "fields": [
        {"name": "note", "type": ["null", "string"], "default": None},
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
    ],
}


async def stored(world: BrokerInMemory, topic: str = FULL) -> tuple[int, bytes]:
    """The type and the definition of the latest schema."""
    schema, _ = await world.broker.get_schema(TopicName.parse(topic), None)
    return int(schema.type), schema.schema_data


@pytest.mark.parametrize(
    ("declared", "value", "number"),
    [(str, "text", 1), (Order, Order(1, "c"), 2), (magnetar.Avro(Order), Order(1, "c"), 4)],
)
async def test_one_declaration_gives_the_codec_and_the_schema(
    world: BrokerInMemory, client: AsyncClient, declared: Any, value: Any, number: int
) -> None:
    async with client.consumer("t", "s", value=declared) as consumer, client.producer("t", value=declared) as producer:
        await producer.send(value, key="k")
        await producer.send_many([value, Outgoing(value, key="k")])
        received = [await consumer.receive(5) for _ in range(3)]
        assert [message.value for message in received] == [value] * 3
        assert received[0].value is received[0].value  # read once
        assert received[0].schema_version == b"\x00" * 8
        assert (await stored(world))[0] == number
    async with client.reader("t", value=declared) as reader, client.table_view("t", value=declared) as view:
        assert (await reader.receive(5)).value == value
        assert (dict(view), view["k"], list(view.values())) == ({"k": value}, value, [value])


async def test_json_without_a_schema_goes_both_ways(world: BrokerInMemory, client: AsyncClient) -> None:
    async with client.consumer("t", "s", value=magnetar.Json) as consumer:
        await client.producer("t", value=magnetar.Json).send({"a": [1, None]})
        await client.producer("t", value=Order).send(Order(1, "c"))
        assert [(await consumer.receive(5)).value for _ in range(2)] == [{"a": [1, None]}, {"id": 1, "customer": "c"}]


async def test_bytes_are_as_ever(client: AsyncClient) -> None:
    async with client.consumer("t", "s") as consumer:
        await client.producer("t").send(b"x")
        await client.producer("t").send(None, key="k")
        first, second = [await consumer.receive(5) for _ in range(2)]
        assert (first.value, first.payload, second.value, second.is_null) == (b"x", b"x", b"", True)


async def test_a_value_and_a_schema_exclude_each_other(client: AsyncClient) -> None:
    with pytest.raises(ValueError, match=r"value=Order has a schema of its own: leave schema= out"):
        client.producer("t", value=Order, schema=Schema("json"))


async def test_a_value_that_does_not_fit_is_not_sent(client: AsyncClient) -> None:
    async with client.producer("t", value=Order) as producer, client.consumer("t", "s", value=Order) as consumer:
        wrong: Any = Order(1, 5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"Order\.customer is int; it takes str"):
            await producer.send(wrong)
        with pytest.raises(TypeError, match=r"Order\.customer is int"):
            await producer.send_many([Order(1, "good"), wrong])
        await producer.send(Order(2, "c"))
        assert (await consumer.receive(5)).value == Order(2, "c")


# -------------------------------------------------------------------------------- evolution


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
async def test_a_schema_that_does_not_go_with_the_topic_is_refused_at_open(client: AsyncClient, kind: str) -> None:
    declared: Any = {"JSON": lambda one: one, "AVRO": magnetar.Avro}[kind]
    await client.producer("t", value=declared(Order)).send(Order(1, "c"))
    words = rf"t does not take the schema of this %s \({kind} Other\): .*give new ones a default"
    with pytest.raises(SchemaRefused, match=words % "producer"):
        await client.producer("t", value=declared(Other)).open()
    with pytest.raises(SchemaRefused, match=words % "producer"):
        await client.producer("t", value=declared(Other)).send(Other("x"))
    with pytest.raises(SchemaRefused, match=words % "consumer"):
        await client.consumer("t", "s", value=declared(Other)).open()
    with pytest.raises(SchemaRefused, match="type"):
        await client.producer("t", value=str).open()


async def test_a_field_with_a_default_is_a_new_version(world: BrokerInMemory, client: AsyncClient) -> None:
    await client.producer("t", value=Order).send(Order(1, "c"))
    await client.producer("t", value=Newer).send(Newer(2, "c", "n"))
    async with (
        client.reader("t", value=Order) as older,
        client.reader("t", value=Newer) as newer,
    ):
        assert [(await older.receive(5)).value for _ in range(2)] == [Order(1, "c"), Order(2, "c")]
        assert [(await newer.receive(5)).value for _ in range(2)] == [Newer(1, "c"), Newer(2, "c", "n")]


async def test_avro_is_read_by_the_version_of_each_message_which_is_looked_up_once(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def get_schema(*arguments: Any) -> Any:
        asked.append(arguments)
        return await kept(*arguments)

    kept = world.broker.get_schema
    monkeypatch.setattr(world.broker, "get_schema", get_schema)
    await client.topics.create("p", partitions=2)
    old, new = client.producer("p", value=magnetar.Avro(Order)), client.producer("p", value=magnetar.Avro(NEWER))
    for n in range(10):
        await old.send(Order(n, "c"))
        await new.send({"id": 10 + n, "customer": "c", "note": "x"})
    async with client.reader("p", value=magnetar.Avro(Newer)) as reader:
        values = [(await reader.receive(5)).value for _ in range(20)]
    assert sorted(values, key=lambda one: one.id) == [
        *(Newer(n, "c") for n in range(10)),
        *(Newer(10 + n, "c", "x") for n in range(10)),
    ]
    assert len(asked) == 2


async def test_bytes_that_were_sent_without_a_schema_are_read_by_the_readers_own(client: AsyncClient) -> None:
    await client.producer("t", value=magnetar.Avro(Order)).send(Order(1, "c"))
    async with client.consumer("t", "s", from_earliest=True) as plain:
        payload = (await plain.receive(5)).payload
    await client.producer("t").send(payload)
    async with client.reader("t", value=magnetar.Avro(Order)) as reader:
        assert [(await reader.receive(5)).value for _ in range(2)] == [Order(1, "c")] * 2


async def test_a_consumer_keeps_so_many_schemas(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "VERSIONS_MAX", 1)
    await client.producer("t", value=magnetar.Avro(Order)).send(Order(1, "c"))
    await client.producer("t", value=magnetar.Avro(NEWER)).send({"id": 2, "customer": "c", "note": None})
    async with client.reader("t", value=magnetar.Avro(Order)) as reader:
        first, second = [await reader.receive(5) for _ in range(2)]
        with pytest.raises(ValueError, match="is not kept any more: read values sooner"):
            _ = first.value
        assert second.value == Order(2, "c")
        assert len(reader._decoder._kept) == 1  # type: ignore[union-attr]


async def test_a_schema_that_cannot_be_had_is_an_error_of_its_values(
    world: BrokerInMemory, client: AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "magnetar.client")
    await client.producer("t", value=magnetar.Avro(Order)).send(Order(1, "c"))
    refused = [True]

    async def ask_any(method: str, request: Any, answer: Any, timeout_s: float | None = None) -> Any:
        if method == "GetSchema" and refused.pop():
            raise TopicError("no")
        return await asked(method, request, answer, timeout_s)

    asked = client._brokers.ask_any
    monkeypatch.setattr(client._brokers, "ask_any", ask_any)
    async with client.consumer("t", "s", from_earliest=True, value=magnetar.Avro(Order)) as consumer:
        message = await consumer.receive(5)
        with pytest.raises(ValueError, match=r"cannot be read as Order: the schema of version 0.*cannot be had: no"):
            _ = message.value
        assert "the schema of version 0 cannot be had: no" in caplog.text
        refused.append(False)
        await consumer.nack(message, delay_s=0)
        assert (await consumer.receive(5)).value == Order(1, "c")  # it was asked again


# -------------------------------------------------------------------------------- values that cannot be read


async def test_a_value_that_cannot_be_read_is_an_error_that_says_what_and_where(client: AsyncClient) -> None:
    async with client.consumer("t", "s", value=Order) as consumer:
        await client.producer("t").send_many([b"{}", Outgoing(None, key="k")])
        await client.producer("t", value=Order).send(Order(1, "c"))
        broken, null, good = [await consumer.receive(5) for _ in range(3)]
        with pytest.raises(
            ValueError,
            match=rf"{FULL}: message {broken.id} cannot be read as Order: Order\.id is missing; its bytes are in "
            r"message\.payload",
        ):
            _ = broken.value
        assert broken.payload == b"{}"
        with pytest.raises(ValueError, match="it is a null message, which has no value"):
            _ = null.value
        assert good.value == Order(1, "c")
        consumer.ack([broken, null, good])
        await consumer.flush()


@pytest.mark.parametrize("declared", [Order, magnetar.Avro(Order)])
async def test_a_value_that_cannot_be_read_goes_the_way_of_retries_and_dead_letters(
    client: AsyncClient, declared: Any
) -> None:
    retry = Retry(max=1, backoff=0.0, dead_letter_subscription="inspection")
    async with client.consumer("t", "s", type="shared", retry=retry, value=declared) as consumer:
        await client.producer("t").send(b"\x02nothing")
        await client.producer("t", value=declared).send(Order(5, "c"))
        seen = []
        for _ in range(3):
            message = await consumer.receive(5)
            try:
                seen.append(message.value.id)
                consumer.ack(message)
            except ValueError:
                await consumer.nack(message)
        assert seen == [5]
    async with client.consumer("t-s-DLQ", "inspection") as inspection:
        assert (await inspection.receive(5)).payload == b"\x02nothing"


async def test_a_copy_in_the_retry_topic_keeps_the_schema_of_its_writer(client: AsyncClient) -> None:
    """Otherwise bytes of one version would be read by another one."""
    retry = Retry(max=5, backoff=0.0)
    async with client.consumer(
        "t", "s", type="shared", retry=retry, value=magnetar.Avro(Order), from_earliest=True
    ) as consumer:
        await client.producer("t", value=magnetar.Avro(NEWER)).send({"id": 7, "customer": "c", "note": "a note"})
        await client.producer("t", value=magnetar.Avro(Order)).send(Order(8, "c"))
        for _ in range(2):
            await consumer.nack(await consumer.receive(5))
        again = [await consumer.receive(5) for _ in range(2)]
        assert sorted(one.value.id for one in again) == [7, 8]
        assert all(one.topic.endswith("-RETRY") for one in again)


async def test_a_message_whose_schema_cannot_be_had_is_not_copied_with_another_one(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.producer("t", value=magnetar.Avro(NEWER)).send({"id": 7, "customer": "c", "note": "a note"})

    async def ask_any(method: str, *arguments: Any) -> Any:
        if method == "GetSchema":
            raise TopicError("no")
        return await asked(method, *arguments)

    asked = client._brokers.ask_any
    monkeypatch.setattr(client._brokers, "ask_any", ask_any)
    async with client.consumer(
        "t", "s", type="shared", retry=Retry(backoff=0.0), value=magnetar.Avro(Order), from_earliest=True
    ) as consumer:
        message = await consumer.receive(5)
        with pytest.raises(TopicError, match=r"t: the schema of version 0.*cannot be had: no"):
            await consumer.nack(message)
        stats = await client.topics.stats("t")
        assert stats["subscriptions"]["s"]["msgBacklog"] == 1  # it comes again


async def test_a_table_view_gives_the_error_to_who_asks_for_the_value(client: AsyncClient) -> None:
    await client.producer("t", value=Order).send(Order(1, "c"), key="good")
    await client.producer("t").send(b"{}", key="bad")
    async with client.table_view("t", value=Order) as view:
        assert (len(view), sorted(view), sorted(view.keys()), view["good"]) == (
            2,
            ["bad", "good"],
            ["bad", "good"],
            Order(1, "c"),
        )
        with pytest.raises(ValueError, match=r"cannot be read as Order: Order\.id is missing"):
            view["bad"]
        with pytest.raises(ValueError, match=r"Order\.id is missing"):
            view.items()
        await client.producer("t", value=Order).send(Order(2, "c"), key="bad")
        await view.ready()
        assert dict(view) == {"good": Order(1, "c"), "bad": Order(2, "c")}


# -------------------------------------------------------------------------------- pickles, texts


@pytest.mark.parametrize("declared", [bytes, str, magnetar.Json, Order, magnetar.Avro(Order)])
async def test_a_message_can_be_pickled_and_acknowledged_by_its_id(client: AsyncClient, declared: Any) -> None:
    value: Any = {bytes: b"x", str: "x", magnetar.Json: {"a": 1}}.get(declared, Order(1, "c"))
    async with client.consumer("t", "s", value=declared) as consumer, client.producer("t", value=declared) as producer:
        await producer.send_many([value, Outgoing(value, key="k", properties={"a": "b"}, event_time=7)])
        received = [await consumer.receive(5) for _ in range(2)]
        copies: list[Message[Any]] = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(received))))
        names = [name for name in dir(Message) if not name.startswith("_")]
        for message, copy in zip(received, copies, strict=True):
            for name in names:
                assert getattr(copy, name) == getattr(message, name), name
            assert copy.value == value
        consumer.ack(copies)
        await consumer.flush()
        stats = await client.topics.stats("t")
        assert stats["subscriptions"]["s"]["msgBacklog"] == 0


async def test_a_pickle_of_what_cannot_be_read_says_so_too(client: AsyncClient) -> None:
    await client.producer("t", value=magnetar.Avro(NEWER)).send({"id": 1, "customer": "c", "note": "x"})
    await client.producer("t", value=magnetar.Avro(NEWER)).send({"id": 2, "customer": "c", "note": "x"})
    async with client.reader("t", value=magnetar.Avro(Order)) as reader:
        message, other = [await reader.receive(5) for _ in range(2)]
        assert pickle.loads(pickle.dumps(message)).value == Order(1, "c")
        reader._decoder._kept.clear()  # type: ignore[union-attr]
        with pytest.raises(ValueError, match="is not kept any more"):
            _ = pickle.loads(pickle.dumps(other)).value


async def test_a_pickled_message_of_a_consumer_with_retries_says_that_it_belongs_to_nobody(client: AsyncClient) -> None:
    async with client.consumer("t", "s", type="shared", retry=Retry()) as consumer:
        await client.producer("t").send(b"x")
        message = await consumer.receive(5)
        with pytest.raises(ValueError, match="was not received by this consumer"):
            consumer.ack(pickle.loads(pickle.dumps(message)))


def message(payload: bytes = b"", **fields: Any) -> Message[bytes]:
    delivery = api.ConsumeResponse.Delivery(ledger_id=1, entry_id=2, **fields.pop("delivery", {}))
    source: Any = type("Source", (), {"partition": -1, "decoder": None})
    return Message.of("t", delivery, source, api.Message(payload=payload, **fields))


def test_the_repr_of_a_message_says_what_one_looks_for() -> None:
    assert repr(message(b"abc", key="k")) == "Message(t, 1:2:-1, key='k', 3 bytes: b'abc')"
    assert repr(message(b"x" * 100)) == f"Message(t, 1:2:-1, 100 bytes: b'{'x' * 40}'…)"
    assert repr(message(is_null=True)) == "Message(t, 1:2:-1, null)"
    again = {"redelivery_count": 3, "problem": "encrypted"}
    assert repr(message(delivery=again)) == "Message(t, 1:2:-1, problem='encrypted', delivered 3 times before)"


async def test_the_repr_of_the_others_says_topic_subscription_value_and_state(client: AsyncClient) -> None:
    producer, named = client.producer("t"), client.producer("t", name="p", value=Order)
    consumer, reader = client.consumer("t", "s", value=Order), client.reader("t")
    assert repr(producer) == "AsyncProducer(t, not opened yet)"
    assert repr(named) == "AsyncProducer(t, name='p', value=Order, not opened yet)"
    assert repr(consumer) == "AsyncConsumer(t, 's', value=Order, not opened yet)"
    assert repr(reader) == "AsyncReader(t, not opened yet)"
    await named.open()
    await consumer.open()
    assert repr(named).endswith("open)")
    assert "not opened" not in repr(named)
    assert repr(consumer) == "AsyncConsumer(t, 's', value=Order, open)"
    for part in (named, consumer):
        await part.close()
        assert repr(part).endswith(", closed)")
    assert repr(client) == f"AsyncClient({client._brokers.addresses[0]})"


async def test_the_repr_of_blocking_objects_is_the_same(door: GrpcServer) -> None:
    def scenario() -> list[str]:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
            parts = [made, made.producer("t"), made.consumer("t", "s"), made.reader("t")]
            return [repr(part).replace(str(door.port), "PORT") for part in parts]

    assert await asyncio.to_thread(scenario) == [
        "Client(127.0.0.1:PORT)", "Producer(t, not opened yet)", "Consumer(t, 's', open)", "Reader(t, open)",
    ]  # fmt: skip
