"""Spans by OpenTelemetry, where the extra `magnetar[tracing]` is installed and something listens for them.

OpenTelemetry's own variables configure it: tracing is on where `OTEL_EXPORTER_OTLP_ENDPOINT` or
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` is set, unless `OTEL_SDK_DISABLED=true` or `OTEL_TRACES_EXPORTER=none`. Without the
extra the log says so, and the broker works without spans.

Rules:

1. What a message's sender does not record is not recorded here either: the broker begins no trace of its own.
2. Spans leave on a thread of OpenTelemetry's, in batches, from a queue of limited size; when nobody takes them they
   are dropped, and messages go on.
"""

import logging
from collections.abc import Mapping
from typing import Any, Final

from broker.topic.trace_context import NO_FACTS, Facts, Span

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def open_tracing(environ: Mapping[str, str], version: str) -> "OpenTelemetry | None":
    """Tracing as the environment says; None: off."""
    if not any(environ.get(name) for name in ENDPOINTS):
        return None
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or environ.get("OTEL_TRACES_EXPORTER", "otlp") == "none":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        log.warning("no spans are sent, %s is missing: pip install 'magnetar[tracing]'", error.name)
        return None
    return OpenTelemetry(BatchSpanProcessor(OTLPSpanExporter()), version)


class OpenTelemetry:
    """Implements `Tracing`."""

    def __init__(self, processor: Any, version: str) -> None:
        """*processor* gets the spans: a SpanProcessor."""
        from opentelemetry import trace
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        resource = Resource.create()  # from OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: "magnetar-broker"}))
        self._provider = TracerProvider(sampler=ParentBased(root=ALWAYS_OFF), resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("magnetar", version)
        self._propagator = TraceContextTextMapPropagator()
        self._trace = trace

    def start(self, name: str, parent: str, facts: Facts) -> Span:
        """See Tracing."""
        context = self._propagator.extract({"traceparent": parent})
        span = self._tracer.start_span(name, context, kind=self._trace.SpanKind.SERVER, attributes=dict(facts))
        return _Span(self, span)

    def part(self, name: str, parent: Any) -> Span:
        return _Span(self, self._tracer.start_span(name, self._trace.set_span_in_context(parent)))

    def stop(self) -> None:
        """Send what waits, and end. Blocks for a moment."""
        self._provider.shutdown()


class _Span:
    """A span of OpenTelemetry."""

    __slots__ = ("_span", "_tracing")

    def __init__(self, tracing: OpenTelemetry, span: Any) -> None:
        self._tracing = tracing
        self._span = span

    def child(self, name: str) -> Span:
        return self._tracing.part(name, self._span)

    def end(self, error: str = "", facts: Facts = NO_FACTS) -> None:
        if facts:
            self._span.set_attributes(dict(facts))
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()
