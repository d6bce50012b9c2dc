"""Traced messages: what clients put into the properties goes through, and the broker's work shows as spans."""

import logging
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from broker.topic import traced_topic
from broker.topic.trace_context import NO_FACTS, Facts, Span, parent_of
from broker.topic.traced_topic import TracedTopic
from broker.tracing import OpenTelemetry, open_tracing
from broker.wire import pulsar_pb2 as wire
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import ManagedLedgerError
from tests.unit.broker.conftest import BrokerInMemory
from tests.unit.broker.raw_client import RawClient
from tests.unit.broker.test_official_client import client

TOPIC = "persistent://public/default/traced"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
NOT_RECORDED = PARENT[:-1] + "0"


class NotedSpan:
    """A span that notes what became of it."""

    def __init__(self, noted: "Noted", name: str, parent: str, facts: Facts) -> None:
        self.noted, self.name, self.parent = noted, name, parent
        self.facts = dict(facts)
        self.ends: list[str] = []
        noted.spans.append(self)

    def child(self, name: str) -> Span:
        return NotedSpan(self.noted, name, self.name, {})

    def end(self, error: str = "", facts: Facts = NO_FACTS) -> None:
        self.ends.append(error)
        self.facts.update(facts)


class Noted:
    def __init__(self) -> None:
        self.spans: list[NotedSpan] = []

    def start(self, name: str, parent: str, facts: Facts) -> Span:
        return NotedSpan(self, name, parent, facts)


def trace(world: BrokerInMemory, tracing: Any) -> None:
    """From now on topics are opened with tracing."""
    world.broker._topic_class = partial(TracedTopic, tracing=tracing)


@pytest.fixture
def noted(world: BrokerInMemory) -> Noted:
    made = Noted()
    trace(world, made)
    return made


def exchange(properties: dict[str, str], **options: Any) -> Callable[[str], dict[str, str]]:
    """Send a message with *properties*; those with which it is received."""

    def work(url: str) -> dict[str, str]:
        with client(url) as made:
            consumer = made.subscribe(TOPIC, "s", consumer_name="c")
            made.create_producer(TOPIC, **options).send(b"x", properties=properties)
            message = consumer.receive(10_000)
            consumer.acknowledge(message)
            found: dict[str, str] = message.properties()
            return found

    return work


@pytest.mark.parametrize("is_batched", [True, False])
async def test_trace_context_in_properties_goes_through(world: BrokerInMemory, is_batched: bool) -> None:
    sent = {"traceparent": PARENT, "tracestate": "vendor=1", "baggage": "a=b"}
    assert await world.run(exchange(sent, batching_enabled=is_batched), world.url) == sent


@pytest.mark.parametrize("is_batched", [True, False])
async def test_a_traced_message_is_published_stored_and_dispatched_in_its_trace(
    world: BrokerInMemory, noted: Noted, is_batched: bool
) -> None:
    await world.run(exchange({"traceparent": PARENT}, batching_enabled=is_batched), world.url)
    assert [(span.name, span.parent) for span in noted.spans] == [
        ("publish", PARENT), ("store", "publish"), ("dispatch", PARENT)
    ]  # fmt: skip
    assert [span.ends for span in noted.spans] == [[""], [""], [""]]
    publish, store, dispatch = (span.facts for span in noted.spans)
    assert publish["messaging.destination.name"] == TOPIC
    assert publish["messaging.batch.message_count"] == 1
    assert ":" in str(store["messaging.message.id"])
    assert dispatch["messaging.destination.subscription.name"] == "s"
    assert dispatch["messaging.consumer.name"] == "c"


async def test_consumers_of_one_connection_share_its_room(world: BrokerInMemory, noted: Noted) -> None:
    raw = await RawClient.connect(world.broker.port)
    for consumer_id in (1, 2):
        await raw.subscribe(TOPIC, consumer_id=consumer_id, subType=wire.CommandSubscribe.Shared)
    subscription = world.broker.topics[TopicName.parse(TOPIC)].subscriptions["s"]
    assert len(subscription.consumers) == 2
    assert len({one.sink for one in subscription.consumers}) == 1, "room is counted for each"
    raw.close()


@pytest.mark.parametrize("properties", [{}, {"traceparent": NOT_RECORDED}, {"traceparent": "nonsense"}])
async def test_what_the_sender_does_not_record_is_not_recorded(
    world: BrokerInMemory, noted: Noted, properties: dict[str, str]
) -> None:
    assert await world.run(exchange(properties), world.url) == properties
    assert noted.spans == []


async def test_a_message_that_cannot_be_stored_ends_its_spans_with_the_reason(
    world: BrokerInMemory, noted: Noted
) -> None:
    await world.run(exchange({"traceparent": PARENT}), world.url)
    (topic,) = world.broker.topics.values()
    assert isinstance(topic, TracedTopic)
    publish = NotedSpan(noted, "publish", PARENT, {})
    producer: Any = SimpleNamespace
    topic._open[producer, 7] = traced_topic._Open(publish, publish.child("store"))
    topic.on_closed(ManagedLedgerError("taken over"))
    assert [span.ends for span in noted.spans[-2:]] == [["taken over"], ["taken over"]]
    assert not topic._open


async def test_spans_that_wait_for_storage_are_limited(
    world: BrokerInMemory, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traced_topic, "OPEN_SPANS_MAX", 2)
    await world.run(exchange({}), world.url)
    (topic,) = world.broker.topics.values()
    assert isinstance(topic, TracedTopic)
    for number in range(5):
        send: Any = SimpleNamespace(sequence_id=number, num_messages=1, entry=b"")
        producer: Any = SimpleNamespace
        topic._begin(producer, send, PARENT)
    assert len(topic._open) == 2
    assert [span.ends for span in noted.spans if span.name == "store"][:3] == [["it was never answered by storage"]] * 3


def test_a_traceparent_is_looked_for_at_the_beginning_of_an_entry_only() -> None:
    found = b"\n\x0btraceparent\x127" + PARENT.encode()
    assert parent_of(b"head" + found) == PARENT
    assert parent_of(memoryview(bytes(1_000) + found)) == PARENT
    assert parent_of(bytes(1 << 20) + found) == ""
    assert parent_of(found[:-1]) == ""
    assert parent_of(b"") == ""


# -------------------------------------------------------------------------------- OpenTelemetry


def test_without_an_endpoint_nothing_is_loaded() -> None:
    assert open_tracing({}, "1") is None
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert open_tracing({**endpoint, "OTEL_SDK_DISABLED": "true"}, "1") is None
    assert open_tracing({**endpoint, "OTEL_TRACES_EXPORTER": "none"}, "1") is None


def test_where_the_extra_is_missing_it_is_said_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with caplog.at_level(logging.WARNING):
        assert open_tracing({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318"}, "1") is None
    assert "pip install 'magnetar[tracing]'" in caplog.text


async def test_opentelemetry_gets_spans_of_the_senders_trace(world: BrokerInMemory) -> None:
    memory = InMemorySpanExporter()
    tracing = OpenTelemetry(SimpleSpanProcessor(memory), "1")
    trace(world, tracing)
    await world.run(exchange({"traceparent": PARENT}), world.url)
    await world.run(exchange({"traceparent": NOT_RECORDED}), world.url)
    spans: dict[str, Any] = {span.name: span for span in memory.get_finished_spans()}
    assert spans.keys() == {"publish", "store", "dispatch"}
    assert len(memory.get_finished_spans()) == 3
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    assert f"{spans['publish'].parent.span_id:016x}" == PARENT.split("-")[2]
    assert spans["store"].parent.span_id == spans["publish"].context.span_id
    assert spans["publish"].resource.attributes["service.name"] == "magnetar-broker"
    tracing.stop()
