"""The types that a program sees: checked by mypy with everything else, and they are what is there when it runs."""

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import client, door

__all__ = ["client", "door", "world"]


@dataclass
class Order:
    id: int


async def test_a_value_has_its_type_from_the_producer_to_the_message(client: AsyncClient) -> None:
    producer = assert_type(client.producer("t", value=Order), magnetar.AsyncProducer[Order])
    consumer = assert_type(
        client.consumer("t", "s", value=Order, type="shared", from_earliest=True), magnetar.AsyncConsumer[Order]
    )
    reader = assert_type(client.reader("t", value=Order, start="earliest"), magnetar.AsyncReader[Order])
    assert_type(client.table_view("t", value=Order), magnetar.AsyncTableView[Order])
    await producer.send(Order(1), key="k")
    await producer.send_many([Order(2), magnetar.Outgoing(Order(3))])
    message = assert_type(await consumer.receive(5), magnetar.Message[Order])
    assert type(assert_type(message.value, Order)) is Order
    async for one in consumer:
        assert type(assert_type(one.value, Order)) is Order
        break
    for read in assert_type(await reader.receive_batch(), list[magnetar.Message[Order]]):
        assert type(assert_type(read.value.id, int)) is int


async def test_without_a_value_it_is_bytes(client: AsyncClient) -> None:
    producer = assert_type(client.producer("t", name="p"), magnetar.AsyncProducer[bytes])
    consumer = assert_type(client.consumer("t", "s"), magnetar.AsyncConsumer[bytes])
    await consumer.open()
    await producer.send(b"x")
    message: magnetar.Message = assert_type(await consumer.receive(5), magnetar.Message[bytes])
    assert type(assert_type(message.value, bytes)) is bytes


async def test_consumers_of_several_topics_have_types_too(client: AsyncClient) -> None:
    assert_type(client.consumer(subscription="s", pattern="t-.*"), magnetar.AsyncConsumer[bytes])
    assert_type(client.consumer(subscription="s", topics=["t", "u"], value=Order), magnetar.AsyncConsumer[Order])
    access: magnetar.ProducerAccess = "wait_for_exclusive"
    assert_type(client.producer("t", access=access, value=Order), magnetar.AsyncProducer[Order])


async def test_other_declarations_have_types_too(client: AsyncClient) -> None:
    assert_type(client.producer("t", value=str), magnetar.AsyncProducer[str])
    assert_type(client.producer("t", value=magnetar.Json), magnetar.AsyncProducer[Any])
    assert_type(client.producer("t", value=magnetar.Avro(Order)), magnetar.AsyncProducer[Order])
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}
    assert_type(client.producer("t", value=magnetar.Avro(record)), magnetar.AsyncProducer[dict[str, Any]])
    assert_type(client.producer("t", value=magnetar.Avro(record, Order)), magnetar.AsyncProducer[Order])


async def test_the_blocking_client_has_the_same(door: GrpcServer) -> None:
    def scenario() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
            consumer = assert_type(made.consumer("t", "s", value=Order), magnetar.Consumer[Order])
            producer = assert_type(made.producer("t", value=Order), magnetar.Producer[Order])
            future = producer.send_async(Order(1))
            assert_type(future.result(5), magnetar.MessageId)
            message = assert_type(consumer.receive(5), magnetar.Message[Order])
            assert type(assert_type(message.value, Order)) is Order
            assert assert_type(consumer.take(), magnetar.Message[Order] | None) is None
            assert_type(made.reader("t"), magnetar.Reader[bytes])
            assert_type(made.table_view("t", value=Order), magnetar.TableView[Order])

    await asyncio.to_thread(scenario)
