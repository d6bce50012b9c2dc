"""Values of the topic API and those of the official client on one topic, through a real broker."""

from dataclasses import dataclass
from typing import Annotated

import pulsar
import pulsar.schema
import pytest

import magnetar
from magnetar.client.errors import SchemaRefused
from magnetar.testing.servers import TopicPlace
from tests.unit.broker.test_official_client import EARLIEST, TIMEOUT_MS
from tests.unit.broker.test_official_client import client as official

pytestmark = pytest.mark.process


@dataclass
class Line:
    sku: str
    count: Annotated[int, magnetar.Avro("int")]


@dataclass
class Order:
    id: int
    customer: str | None
    total: float
    first: Line | None
    words: list[str] | None


class Their:
    class Line(pulsar.schema.Record):  # type: ignore[misc]  # the library has no types
        """Its name is that of ours: in AVRO the official client matches records inside of others by their names."""

        sku = pulsar.schema.String(required=True)
        count = pulsar.schema.Integer(required=True)


class TheirOrder(pulsar.schema.Record):  # type: ignore[misc]
    id = pulsar.schema.Long(required=True)
    customer = pulsar.schema.String()
    total = pulsar.schema.Double(required=True)
    first = Their.Line()
    words = pulsar.schema.Array(pulsar.schema.String())


OURS = Order(1, "ours", 2.5, Line("a", 3), ["x"])


@pytest.mark.parametrize("kind", ["JSON", "AVRO"])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_the_official_client_and_ours_share_a_topic(volatile_pulsar_server: TopicPlace, kind: str, first: str) -> None:
    """The one that comes second brings its own definition of the same fields."""
    topic = volatile_pulsar_server.topic("orders")
    declared: magnetar.Avro[Order] | type[Order] = Order if kind == "JSON" else magnetar.Avro(Order)
    schema = {"JSON": pulsar.schema.JsonSchema, "AVRO": pulsar.schema.AvroSchema}[kind](TheirOrder)
    with magnetar.Client(volatile_pulsar_server.grpc_url) as made, official(volatile_pulsar_server.service_url) as c:

        def send_ours() -> None:
            made.producer(topic, value=declared).send(OURS)

        def send_theirs() -> None:
            theirs = TheirOrder(id=2, customer=None, total=1.0, first=Their.Line(sku="b", count=4), words=None)
            c.create_producer(topic, schema=schema).send(theirs)

        for send in (send_ours, send_theirs) if first == "ours" else (send_theirs, send_ours):
            send()
        with made.reader(topic, value=declared) as reader:
            values = sorted((reader.receive(10).value for _ in range(2)), key=lambda one: one.id)
        assert values == [OURS, Order(2, None, 1.0, Line("b", 4), None)]
        consumer = c.subscribe(topic, "theirs", schema=schema, initial_position=EARLIEST)
        read = sorted((consumer.receive(TIMEOUT_MS).value() for _ in range(2)), key=lambda one: one.id)
        assert [(one.id, one.customer, one.total, one.words) for one in read] == [
            (1, "ours", 2.5, ["x"]), (2, None, 1.0, None),
        ]  # fmt: skip


def test_text_is_shared(volatile_pulsar_server: TopicPlace) -> None:
    topic = volatile_pulsar_server.topic("words")
    with magnetar.Client(volatile_pulsar_server.grpc_url) as made, official(volatile_pulsar_server.service_url) as c:
        with made.consumer(topic, "s", value=str) as consumer:
            c.create_producer(topic, schema=pulsar.schema.StringSchema()).send("wört")
            made.producer(topic, value=str).send("word")
            assert [consumer.receive(10).value for _ in range(2)] == ["wört", "word"]
        theirs = c.subscribe(topic, "t", schema=pulsar.schema.StringSchema(), initial_position=EARLIEST)
        assert [theirs.receive(TIMEOUT_MS).value() for _ in range(2)] == ["wört", "word"]


def test_a_schema_that_does_not_go_with_the_other_clients_is_refused(volatile_pulsar_server: TopicPlace) -> None:
    topic = volatile_pulsar_server.topic("orders")
    with magnetar.Client(volatile_pulsar_server.grpc_url) as made, official(volatile_pulsar_server.service_url) as c:
        c.create_producer(topic, schema=pulsar.schema.JsonSchema(Their.Line)).send(Their.Line(sku="a", count=1))
        with pytest.raises(SchemaRefused, match=r"orders does not take the schema of this producer \(JSON Order\)"):
            made.producer(topic, value=Order).send(OURS)
        with pytest.raises(SchemaRefused, match="of type JSON, this one is AVRO"):
            made.consumer(topic, "s", value=magnetar.Avro(Line))
