"""One task's messages, sent with the official client and awaited: at least once."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from connectors.spark.client_access import client_arguments, client_logger, explain
from connectors.spark.options.write import WriteOptions
from connectors.spark.write.message import Outgoing
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.client_log import client_log

TOPICS_MAX: Final = 1_000
"""Topics, with `deduplication` partitions, that one task writes to at once: each is a producer with its queue."""

_BUSY_PAUSE_S: Final = 0.25

BUSY_MAX: Final = 360
"""How often a task asks, four times a second, whether the producer of its former attempt has gone: a broker that hears
nothing from a client closes its connection after a minute."""


class NotWritten(MagnetarError):
    """Messages could not be sent, or were not confirmed."""


class Brokers:
    """A client of the official library, for one task."""

    def __init__(self, options: WriteOptions, definition: dict[str, Any] | None) -> None:
        """*definition* is the Avro schema of the values; None: bytes. Raises NotWritten, ConfigurationError."""
        import pulsar

        self._options = options
        self._arguments = dict(options.producer)
        compression = self._arguments.pop("compression_type", None)
        if compression is not None:
            self._arguments["compression_type"] = getattr(pulsar.CompressionType, compression)
        if definition is not None:
            self._arguments["schema"] = _schema_of_encoded(options.value_format, definition)
        arguments = client_arguments(options.broker_options)
        try:
            self._client = pulsar.Client(options.service_url, logger=client_logger(), **arguments)
        except Exception as error:  # the library raises its own and ValueError
            raise NotWritten(f"service.url={options.service_url}: {error}") from error

    def close(self) -> None:
        self._client.close()

    def producer(self, topic: str, name: str | None = None, more: Mapping[str, Any] | None = None) -> Any:
        """Make a producer; one with a *name* waits until another with this name has gone. *more* arguments count more
        than those of the options. Raises NotWritten."""
        import pulsar

        for left in reversed(range(BUSY_MAX)):
            try:
                new = self._client.create_producer(topic, producer_name=name, **{**self._arguments, **(more or {})})
                client_log().forget()  # it may have been refused before, as by a broker that was giving the topic away
                return new
            except Exception as error:
                is_busy = name is not None and isinstance(error, pulsar.ProducerBusy)
                if not is_busy or not left:
                    raise NotWritten(
                        f"no producer for {topic} at {self._options.service_url}: {explain(error)}"
                    ) from error
                time.sleep(_BUSY_PAUSE_S)
        raise AssertionError("the last attempt returns or raises")

    def partitions(self, topic: str) -> list[str]:
        """The partitions of a topic by number, or only itself. Raises NotWritten."""
        try:
            return list(self._client.get_topic_partitions(topic))
        except Exception as error:
            raise NotWritten(f"the partitions of {topic} at {self._options.service_url}: {explain(error)}") from error


class Deliveries:
    """Messages that were sent, and whether one of them failed."""

    def __init__(self, service_url: str) -> None:
        self._service_url = service_url
        self._failure = ""
        """The first failure of a message. Written by the client's threads."""

    def send(
        self,
        producer: Any,
        message: Outgoing,
        sequence_id: int | None = None,
        stored: Callable[[Any], None] | None = None,
    ) -> None:
        """Send, sooner or later; *stored* is called with the id that the broker gives. Raises NotWritten."""
        import pulsar

        def done(result: Any, message_id: Any) -> None:
            if result != pulsar.Result.Ok:
                self._failure = self._failure or str(result)
            elif stored is not None:
                stored(message_id)

        facts = {
            "partition_key": message.key,
            "event_timestamp": message.event_time_ms,
            "properties": message.properties,
            "sequence_id": sequence_id,
        }
        try:
            producer.send_async(message.value, done, **{name: fact for name, fact in facts.items() if fact is not None})
        except Exception as error:
            raise NotWritten(f"a message for {producer.topic()} could not be sent: {explain(error)}") from error

    def check(self) -> None:
        """Raises NotWritten if a message is known to have failed."""
        if self._failure:
            raise NotWritten(
                f"the brokers at {self._service_url} did not take a message: {explain(self._failure)}. The task may "
                "be tried again; messages that were taken stay in the topic"
            )

    def flush(self, producer: Any) -> None:
        """Wait until every message of *producer* is confirmed. Raises NotWritten."""
        try:
            producer.flush()
        except Exception as error:
            raise NotWritten(f"messages for {producer.topic()} were not confirmed: {explain(error)}") from error
        self.check()


class Sender:
    """A producer for each topic, for one task. Each message is sent; a task that is repeated sends all again."""

    def __init__(self, options: WriteOptions, brokers: Brokers) -> None:
        self._options = options
        self._brokers = brokers
        self._deliveries = Deliveries(options.service_url)
        self._producers: dict[str | None, Any] = {}

    def send(self, message: Outgoing) -> None:
        """Raises NotWritten."""
        producer = self._producers.get(message.topic)
        if producer is None:
            check_topics(len(self._producers))
            name = str(self._options.topic) if message.topic is None else message.topic
            producer = self._producers[message.topic] = self._brokers.producer(name)
        self._deliveries.send(producer, message)

    def check(self) -> None:
        """Raises NotWritten if a message is known to have failed."""
        self._deliveries.check()

    def finish(self) -> int:
        """Wait until every message is confirmed; how many may be there twice by this task. Raises NotWritten."""
        for producer in self._producers.values():
            self._deliveries.flush(producer)
        return 0


def check_topics(count: int) -> None:
    """Raises NotWritten if there is no room for another producer beside *count*."""
    if count >= TOPICS_MAX:
        raise NotWritten(f"the rows of one task name more than {TOPICS_MAX} topics; write them in several jobs")


def _schema_of_encoded(value_format: str, definition: dict[str, Any]) -> Any:
    """A schema of the official client for values that are encoded already."""
    import _pulsar
    from pulsar.schema import Schema

    class Encoded(Schema):  # type: ignore[misc]
        def encode(self, obj: bytes) -> bytes:
            return obj

        def decode(self, data: bytes) -> bytes:
            return data

    kind = _pulsar.SchemaType.AVRO if value_format == "avro" else _pulsar.SchemaType.JSON
    return Encoded(bytes, kind, definition, definition["name"])
