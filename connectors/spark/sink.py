"""`df.write.format("magnetar")` and `df.writeStream.format("magnetar")`: rows become messages.

Each task sends its rows with the official client and waits until the broker has confirmed every one; only then is it
done. A task that is tried again sends its rows again: writing is at least once. (docs/spark.md)
"""

import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.spark.access import client_arguments
from connectors.spark.outgoing import Columns
from connectors.spark.write_options import WriteOptions
from magnetar_core.runtime.types import MagnetarError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Topics that one task writes to at once: each is a producer with its queue.
TOPICS_MAX = 1_000


class NotWritten(MagnetarError):
    """Messages could not be sent, or were not confirmed."""


class Written(WriterCommitMessage):
    """What one task has sent; all of it is confirmed."""

    def __init__(self, messages: int) -> None:
        self.messages = messages


class _Writing:
    """What both kinds of writers do at an executor; every attribute can be pickled."""

    def __init__(self, options: WriteOptions, schema: t.StructType) -> None:
        """Raises ConfigurationError."""
        self._options = options
        self._columns = Columns(schema, options.value_format, has_topic=options.topic is not None)

    def _send_all(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        count = 0
        with _Sender(self._options, self._columns.definition) as sender:
            for batch in batches:
                for message in self._columns.messages(batch):
                    sender.send(message.topic, message.value, {
                        "partition_key": message.key,
                        "event_timestamp": message.event_time_ms,
                        "properties": message.properties,
                    })  # fmt: skip
                    count += 1
                sender.check()
            sender.finish()
        return Written(count)


class TopicWriter(_Writing, DataSourceArrowWriter):
    """A batch."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task. Raises NotWritten."""
        return self._send_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        log.info("%s messages were written", _sum(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good."""
        log.warning("the write failed; at least %s of its messages are in the topic", _sum(messages))


class StreamTopicWriter(_Writing, DataSourceStreamArrowWriter):
    """The batches of a stream."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task. Raises NotWritten."""
        return self._send_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done."""
        log.info("batch %s: %s messages were written", batchId, _sum(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed for good."""
        log.warning("batch %s failed; at least %s of its messages are in the topic", batchId, _sum(messages))


def _sum(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(one.messages for one in messages if isinstance(one, Written))


class _Sender:
    """A client with a producer for each topic, for one task."""

    def __init__(self, options: WriteOptions, definition: dict[str, Any] | None) -> None:
        """Raises NotWritten."""
        import pulsar

        self._options = options
        self._producers: dict[str | None, Any] = {}
        self._failure = ""
        """The first that a message met. Written by the client's threads."""
        self._arguments = dict(options.producer)
        compression = self._arguments.pop("compression_type", None)
        if compression is not None:
            self._arguments["compression_type"] = getattr(pulsar.CompressionType, compression)
        if definition is not None:
            self._arguments["schema"] = _Encoded(options.value_format, definition)
        try:
            self._client = pulsar.Client(
                options.service_url,
                logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
                **client_arguments(options.broker_options),
            )
        except Exception as error:  # the library raises its own and ValueError
            raise NotWritten(f"service.url={options.service_url}: {error}") from error

    def __enter__(self) -> "_Sender":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def _producer(self, topic: str | None) -> Any:
        found = self._producers.get(topic)
        if found is None:
            if len(self._producers) >= TOPICS_MAX:
                raise NotWritten(f"the rows of one task name more than {TOPICS_MAX} topics; write them in several jobs")
            name = str(self._options.topic) if topic is None else topic
            try:
                found = self._producers[topic] = self._client.create_producer(name, **self._arguments)
            except Exception as error:
                raise NotWritten(f"no producer for {name} at {self._options.service_url}: {error}") from error
        return found

    def send(self, topic: str | None, value: bytes | None, facts: dict[str, Any]) -> None:
        """Send one message, sooner or later."""
        import pulsar

        def done(result: Any, _: Any) -> None:
            if result != pulsar.Result.Ok and not self._failure:
                self._failure = str(result)

        producer = self._producer(topic)
        try:
            producer.send_async(value, done, **{name: one for name, one in facts.items() if one is not None})
        except Exception as error:
            raise NotWritten(f"a message for {producer.topic()} could not be sent: {error}") from error

    def check(self) -> None:
        """Raises NotWritten if a message is known to have failed."""
        if self._failure:
            raise NotWritten(
                f"the brokers at {self._options.service_url} did not take a message: {self._failure}. The task may be "
                "tried again; messages that were taken stay in the topic"
            )

    def finish(self) -> None:
        """Wait until every message is confirmed. Raises NotWritten."""
        for producer in self._producers.values():
            try:
                producer.flush()
            except Exception as error:
                raise NotWritten(f"messages for {producer.topic()} were not confirmed: {error}") from error
        self.check()


def _Encoded(value_format: str, definition: dict[str, Any]) -> Any:
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
