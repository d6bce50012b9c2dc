"""Spans and numbers of OpenTelemetry: of what is sent, received and processed; nothing without `telemetry=`."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import magnetar
from broker.grpc.service import GrpcServer
from magnetar.client.async_client import AsyncClient
from tests.unit.broker.conftest import world
from tests.unit.broker.grpc.conftest import door

__all__ = ["door", "world"]

TOPIC = "persistent://public/default/t"


class Seen(NamedTuple):
    telemetry: magnetar.Telemetry
    tracer: trace.Tracer
    exporter: InMemorySpanExporter
    reader: InMemoryMetricReader

    def spans(self, kind: trace.SpanKind) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.kind is kind]

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        metrics = [one for part in data.resource_metrics for scope in part.scope_metrics for one in scope.metrics]
        return [point for metric in metrics if metric.name == name for point in metric.data.data_points]


@pytest.fixture
def seen() -> Iterator[Seen]:
    exporter, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider(shutdown_on_exit=False)
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    meters = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = magnetar.Telemetry(tracer_provider=tracers, meter_provider=meters)
    yield Seen(telemetry, tracers.get_tracer("program"), exporter, reader)
    tracers.shutdown()
    meters.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


async def test_the_span_of_what_is_done_is_below_that_of_the_sender(door: GrpcServer, seen: Seen) -> None:
    async with AsyncClient(f"127.0.0.1:{door.port}", telemetry=seen.telemetry) as client:
        consumer = await client.consumer(TOPIC, "s")
        with seen.tracer.start_as_current_span("order") as order:
            await client.producer(TOPIC).send(b"1", properties={"own": "kept"})
            await client.producer(TOPIC).send_many([b"2", b"3"])
        messages = [await consumer.receive(timeout_s=30) for _ in range(3)]
        assert [message.properties.get("own") for message in messages] == ["kept", None, None]
        for message in messages[:2]:
            with seen.telemetry.processing(message) as span:
                assert trace.get_current_span() is span
                await consumer.ack(message)
        with pytest.raises(ZeroDivisionError), seen.telemetry.processing(messages[2]):
            raise ZeroDivisionError("the program's own")
    first, second = seen.spans(trace.SpanKind.PRODUCER)
    assert {parent_of(first), parent_of(second)} == {order.get_span_context().span_id}
    assert first.name == f"publish {TOPIC}"
    assert (second.attributes or {})["messaging.batch.message_count"] == "2"
    processed = seen.spans(trace.SpanKind.CONSUMER)
    assert [parent_of(span) for span in processed] == [id_of(first), id_of(second), id_of(second)]
    assert [(span.attributes or {})["messaging.message.id"] for span in processed] == [str(one.id) for one in messages]
    assert [span.status.is_ok for span in processed] == [True, True, False]
    (sent,) = seen.points("messaging.client.sent.messages")
    assert (sent.value, dict(sent.attributes)["messaging.destination.name"]) == (3, TOPIC)
    (received,) = seen.points("messaging.client.consumed.messages")
    assert received.value == 3
    (took,) = seen.points("messaging.client.operation.duration")
    assert took.count == 2
    counts = {point.attributes.get("error.type"): point.count for point in seen.points("messaging.process.duration")}
    assert counts == {None: 2, "ZeroDivisionError": 1}


async def test_threads_send_below_the_span_of_their_caller(door: GrpcServer, seen: Seen) -> None:
    def work() -> None:
        with magnetar.Client(f"127.0.0.1:{door.port}", telemetry=seen.telemetry) as client:
            producer = client.producer(TOPIC)
            with seen.tracer.start_as_current_span("order") as order:
                producer.send(b"1")
                producer.send_async(b"2").result(10)
            spans = seen.spans(trace.SpanKind.PRODUCER)
            assert [parent_of(span) for span in spans] == [order.get_span_context().span_id] * 2

    await asyncio.to_thread(work)


async def test_what_is_refused_is_an_error_of_its_span(door: GrpcServer, seen: Seen) -> None:
    async with AsyncClient(f"127.0.0.1:{door.port}", telemetry=seen.telemetry) as client:
        with pytest.raises(magnetar.TopicError):
            await client.producer("persistent://public/nowhere/t").send(b"1")
    (span,) = seen.spans(trace.SpanKind.PRODUCER)
    assert not span.status.is_ok
    assert [event.name for event in span.events] == ["exception"]
    (point,) = seen.points("messaging.client.sent.messages")
    assert dict(point.attributes)["error.type"] == "TopicDoesNotExist"


def test_a_future_that_is_cancelled_ends_its_span(seen: Seen) -> None:
    class Outgoing:
        properties: dict[str, str] = {}  # noqa: RUF012

    publishing = seen.telemetry.publishing(TOPIC, [Outgoing()])
    assert Outgoing.properties["traceparent"]
    publishing.end(asyncio.CancelledError())
    (span,) = seen.spans(trace.SpanKind.PRODUCER)
    assert not span.status.is_ok


def test_a_client_without_it_loads_nothing_of_it() -> None:
    program = (
        "import sys, magnetar; magnetar.Client; magnetar.Telemetry\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
