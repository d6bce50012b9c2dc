"""Traces and metrics of producers and consumers by OpenTelemetry, for programs that use it.

    send ──▶ span `publish` ──▶ properties traceparent, tracestate ──▶ message
                                                                          │
    with telemetry.processing(message): ◀── span `process` below it ◀─────┘

The names of spans, metrics and attributes are OpenTelemetry's conventions for messaging. A client without `telemetry=`
loads nothing of this and pays nothing for it.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

_SYSTEM: Final = {"messaging.system": "pulsar"}
_SENT: Final = "messaging.client.sent.messages"
_SEND_S: Final = "messaging.client.operation.duration"
_RECEIVED: Final = "messaging.client.consumed.messages"
_PROCESS_S: Final = "messaging.process.duration"


class Received(Protocol):
    """A message that was received (`magnetar.Message`)."""

    @property
    def id(self) -> object: ...

    @property
    def topic(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, str]: ...


class Telemetry:
    """Spans and numbers of what a client sends and receives. May be shared by clients and threads.

    *tracer_provider*, *meter_provider*: OpenTelemetry's; those of the program (`set_tracer_provider`) by default.

    Raises ImportError without the package `opentelemetry-api`, which `pip install 'magnetar[tracing]'` brings.

    Example:
        telemetry = magnetar.Telemetry()
        with magnetar.Client("localhost:6648", telemetry=telemetry) as client:
            client.producer("orders").send(b"payload")
            with client.consumer("orders", "billing", from_earliest=True) as consumer:
                message = consumer.receive(timeout_s=10)
                with telemetry.processing(message):
                    consumer.ack(message)
    """

    def __init__(self, *, tracer_provider: Any = None, meter_provider: Any = None) -> None:
        from opentelemetry import metrics, propagate, trace

        import magnetar

        self._trace = trace
        self._propagate = propagate
        self._tracer = trace.get_tracer("magnetar", magnetar.__version__, tracer_provider)
        meter = metrics.get_meter("magnetar", magnetar.__version__, meter_provider)
        self._sent = meter.create_counter(_SENT, "{message}", "Messages that were sent, acknowledged or not")
        self._send_s = meter.create_histogram(_SEND_S, "s", "Time from the call to the acknowledgement")
        self._received = meter.create_counter(_RECEIVED, "{message}", "Messages that were delivered to the client")
        self._process_s = meter.create_histogram(_PROCESS_S, "s", "Time in which messages were processed")

    @contextmanager
    def processing(self, message: Received) -> Iterator[Any]:
        """A span for what a program does with *message*, below that of its sender; it is given to the block, and errors
        that leave the block are recorded in it."""
        facts = {
            **_SYSTEM,
            "messaging.destination.name": message.topic,
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": str(message.id),
        }
        began_s = time.perf_counter()
        parent = self._propagate.extract(message.properties)
        error = ""
        try:
            with self._tracer.start_as_current_span(
                f"process {message.topic}", parent, self._trace.SpanKind.CONSUMER, facts
            ) as span:
                yield span
        except BaseException as failure:
            error = type(failure).__name__
            raise
        finally:
            self._process_s.record(time.perf_counter() - began_s, _with_error(facts, error))

    def publishing(self, topic: str, messages: Sequence[Any]) -> "Publishing":
        """Of the client: *messages* (`api.OutgoingMessage`) are on their way until the span ends; they carry it."""
        facts = {
            **_SYSTEM,
            "messaging.destination.name": topic,
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
        }
        if len(messages) > 1:
            facts["messaging.batch.message_count"] = str(len(messages))
        span = self._tracer.start_span(f"publish {topic}", None, self._trace.SpanKind.PRODUCER, facts)
        carried: dict[str, str] = {}
        self._propagate.inject(carried, self._trace.set_span_in_context(span))
        for message in messages:
            for name, value in carried.items():
                message.properties[name] = value
        return Publishing(self, span, facts, len(messages))

    def ended(self, facts: dict[str, str], count: int, took_s: float, error: str) -> None:
        """Of the client: *count* messages were answered."""
        labels = _with_error(facts, error)
        self._sent.add(count, labels)
        self._send_s.record(took_s, labels)

    def received(self, topic: str, count: int) -> None:
        """Of the client: so many messages have arrived."""
        self._received.add(count, {**_SYSTEM, "messaging.destination.name": topic})


class Publishing:
    """One call that sends; ended once."""

    __slots__ = ("_began_s", "_count", "_facts", "_span", "_telemetry")

    def __init__(self, telemetry: Telemetry, span: Any, facts: dict[str, str], count: int) -> None:
        self._telemetry = telemetry
        self._span = span
        self._facts = facts
        self._count = count
        self._began_s = time.perf_counter()

    def end(self, error: BaseException | None = None) -> None:
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            self._span.record_exception(error)
            self._span.set_status(Status(StatusCode.ERROR, str(error)))
        self._span.end()
        name = "" if error is None else type(error).__name__
        self._telemetry.ended(self._facts, self._count, time.perf_counter() - self._began_s, name)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)


def _with_error(facts: dict[str, str], error: str) -> dict[str, str]:
    """Labels of a metric: those facts that take few values."""
    kept = {name: value for name, value in facts.items() if name not in _OF_ONE}
    return {**kept, "error.type": error} if error else kept


_OF_ONE: Final = ("messaging.message.id", "messaging.batch.message_count")
"""Facts of single calls: as labels they would have as many values as there are messages."""
