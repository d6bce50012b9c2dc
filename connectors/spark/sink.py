"""`df.write.format("magnetar")` and `df.writeStream.format("magnetar")`: rows become messages.

Each task sends its rows with the official client and waits until the broker has confirmed every one; only then is it
done. A task that is tried again sends its rows again: writing is at least once, unless a stream asks for
`deduplication` (`connectors.spark.write.exactly_once`). (docs/spark.md)
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from connectors.spark.options.write import WriteOptions
from connectors.spark.worker.socket import answer_at_once
from connectors.spark.write.exactly_once import Attempt, ExactlyOnceSender
from connectors.spark.write.outgoing import Columns
from connectors.spark.write.sending import Brokers, Sender
from magnetar_core.runtime.types import ConfigurationError

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)


class Written(WriterCommitMessage):
    """What one task has sent; all of it is confirmed."""

    def __init__(self, messages: int, repeated: int) -> None:
        self.messages = messages
        self.repeated = repeated
        """Those of the messages that a former attempt may have sent as well, although deduplication is asked for."""


class _Writing:
    """What both kinds of writers do at an executor; every attribute can be pickled."""

    def __init__(self, options: WriteOptions, schema: t.StructType) -> None:
        """Raises ConfigurationError."""
        self._options = options
        self._columns = Columns(schema, options.value_format, has_topic=options.topic is not None)

    def _send_at_least_once(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        with closing(Brokers(self._options, self._columns.definition)) as brokers:
            return self._send(batches, Sender(self._options, brokers))

    def _send_exactly_once(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        with (
            closing(Brokers(self._options, self._columns.definition)) as brokers,
            closing(ExactlyOnceSender(self._options, brokers, Attempt.current())) as sender,
        ):
            return self._send(batches, sender)

    def _send(self, batches: "Iterator[pa.RecordBatch]", sender: Sender | ExactlyOnceSender) -> Written:
        answer_at_once()
        count = 0
        for batch in batches:
            for message in self._columns.messages(batch):
                sender.send(message)
                count += 1
            sender.check()
        return Written(count, sender.finish())


class TopicWriter(_Writing, DataSourceArrowWriter):
    """The writer of a batch."""

    def __init__(self, options: WriteOptions, schema: t.StructType) -> None:
        """Raises ConfigurationError."""
        if options.deduplication:
            raise ConfigurationError(
                "deduplication belongs to streams, whose batches have numbers: a DataFrame is written at least once"
            )
        super().__init__(options, schema)

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task. Raises NotWritten."""
        return self._send_at_least_once(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks are done."""
        log.info("%s messages were written", _sum(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """A task has failed for good."""
        log.warning("the write failed; at least %s of its messages are in the topic", _sum(messages))


class StreamTopicWriter(_Writing, DataSourceStreamArrowWriter):
    """The writer of the batches of a stream."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        """One task. Raises NotWritten."""
        return self._send_exactly_once(iterator) if self._options.deduplication else self._send_at_least_once(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of a batch are done."""
        log.info("batch %s: %s messages were written", batchId, _sum(messages))
        repeated = sum(written.repeated for written in messages if isinstance(written, Written))
        if repeated:
            log.warning(
                "batch %s was repeated with other rows, or in another order: of its messages up to %s are there twice. "
                "Sort the rows of each task, or write them without a shuffle, to have each once",
                batchId, repeated,
            )  # fmt: skip

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """A task has failed for good."""
        log.warning("batch %s failed; at least %s of its messages are in the topic", batchId, _sum(messages))


def _sum(messages: Sequence[WriterCommitMessage | None]) -> int:
    return sum(written.messages for written in messages if isinstance(written, Written))
