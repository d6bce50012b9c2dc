"""The sink with `deduplication=true`: a task of a stream's batch that is repeated sends what is missing.

    rows of a task ──▶ partition by key ──▶ one producer a partition, named after query and task ──▶ numbered by
    `connectors.spark.write.sequences`

Names of producers are `spark-QUERY-TASK`, with `.1`, `.2` … behind the first 262,144 rows of a batch: they do not grow
with the batches. One attempt of a task runs at a time: a second one with the same name is refused by the broker until
the first has gone.

Rows wait in memory within one budget for the whole task (`connectors.spark.write.room`). The largest partition gives
up its own: rows that wait for their comparison go into a temporary file, and a group that is not complete is sent as
it is.
"""

import logging
from contextlib import suppress
from typing import Any, Final, NamedTuple

from connectors.spark.options.write import WriteOptions
from connectors.spark.write.message import Outgoing, size_of
from connectors.spark.write.room import Room
from connectors.spark.write.sending import Brokers, Deliveries, NotWritten, check_topics
from connectors.spark.write.sequences import Group, Numbering, State, partition_of
from connectors.spark.write.spool import SpillFile, Spool
from magnetar_core.runtime.types import MIB

log = logging.getLogger(__name__)

GROUP_ROWS: Final = 1_000
GROUP_BYTES: Final = MIB
"""An entry ends with as many rows or bytes, unless options say less. Brokers take 5 MiB."""

_NEVER_MS: Final = 2**31 - 1
"""Switches off the client's own end of a batch by time, which would cut a group in two."""


class Attempt(NamedTuple):
    """Which part of which stream a task writes."""

    query: str
    batch: int
    task: int

    @classmethod
    def current(cls) -> "Attempt":
        """The one that this process works on. Raises NotWritten."""
        from pyspark import TaskContext

        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        batch = None if context is None else context.getLocalProperty("streaming.sql.batchId")
        if context is None or query is None or batch is None:
            raise NotWritten("deduplication=true: Spark has not told which batch of which query this is")
        return cls(query, int(batch), context.partitionId())


class _Partition:
    """The messages of one task for one topic partition."""

    def __init__(
        self, topic: str, attempt: Attempt, options: WriteOptions, brokers: Brokers, deliveries: Deliveries, held: Spool
    ) -> None:
        """Raises NotWritten, CheckpointSetBack."""
        self._topic = topic
        self._attempt = attempt
        self._brokers = brokers
        self._deliveries = deliveries
        producer = options.producer
        self._is_batched = bool(producer["batching_enabled"])
        self._group_rows = int(producer.get("batching_max_messages", GROUP_ROWS)) if self._is_batched else 1
        if producer["max_pending_messages"]:  # the client waits for room in its queue, and not to send what is in it
            self._group_rows = min(self._group_rows, int(producer["max_pending_messages"]))
        self._group_bytes = min(int(producer.get("batching_max_allowed_size_in_bytes", GROUP_BYTES)), GROUP_BYTES)
        self._held = held
        self._names_before = 0
        """Names of this task whose numbers are used up."""
        self.repeated = 0
        """Messages that may be in the topic twice, since the rows differ from those of a former attempt."""
        self._begin()

    def _begin(self) -> None:
        """The next name, and its numbers from 0."""
        self._numbering = Numbering(self._attempt.batch, self._held, self._group_rows, self._group_bytes)
        self._producer = self._open()
        self._is_new = self._producer.last_sequence_id() < 0
        self._numbering.opened(self._producer.last_sequence_id())

    def _open(self) -> Any:
        suffix = f".{self._names_before}" if self._names_before else ""
        name = f"spark-{self._attempt.query}-{self._attempt.task}{suffix}"
        more: dict[str, Any] = {}
        if self._is_batched:  # the client must end a batch where a group ends, and nowhere else
            more = {
                "batching_max_messages": self._group_rows,
                "batching_max_allowed_size_in_bytes": 2**31 - 1,
                "batching_max_publish_delay_ms": _NEVER_MS,
            }
        return self._brokers.producer(self._topic, name, more)

    @property
    def memory_bytes(self) -> int:
        """Bytes of its rows that wait: for a comparison, or for the rest of their group."""
        return self._held.memory_bytes + self._numbering.open_bytes

    def give_up_memory(self) -> None:
        """Raises NotWritten, OSError."""
        self._held.spill()
        self._send(self._numbering.cut())

    def send(self, message: Outgoing) -> None:
        """Raises NotWritten, CheckpointSetBack."""
        if self._numbering.state is State.REPEATING:
            self._repeat(message)
            return
        if self._numbering.is_full:
            self._deliveries.flush(self._producer)
            self._producer.close()
            self._names_before += 1
            self._held.clear()  # all rows of the name are stored, or sent
            self._begin()
        if self._numbering.open_bytes + size_of(message) > self._group_bytes:
            self._send(self._numbering.cut())  # with a large message the entry could be more than brokers take
        group = self._numbering.add(message)
        if self._numbering.state is State.SENDING:
            self._send(group)
        else:
            self._settle_probe(group)

    def _send(self, group: Group | None) -> None:
        if group is None:
            return
        for message in group.messages:
            self._deliveries.send(self._producer, message, group.sequence_id)
        if len(group.messages) < self._group_rows:
            self._deliveries.flush(self._producer)

    def _settle_probe(self, probe: Group | None) -> None:
        """Send *probe* until it is known whether it was stored by this attempt or by a former one."""
        while probe is not None:
            if self._send_probe(probe):
                self._numbering.stored()
                if self._is_new:
                    self._check_broker(probe.sequence_id)
                return
            self._producer.close()
            self._producer = self._open()
            probe = self._numbering.opened(self._producer.last_sequence_id())
        if self._numbering.state is State.REPEATING:
            self._begin_to_repeat()

    def _send_probe(self, probe: Group) -> bool:
        """Send *probe*; whether the broker stored it now. False: it had a message with this number or a higher one."""
        ids: list[Any] = []
        for message in probe.messages:
            self._deliveries.send(self._producer, message, probe.sequence_id, ids.append)
        self._deliveries.flush(self._producer)
        if not ids:
            raise NotWritten(f"a message for {self._topic} was not confirmed")
        return int(ids[0].ledger_id()) >= 0

    def _check_broker(self, stored: int) -> None:
        """See that the broker remembers the first message of a name. Raises NotWritten if it does not de-duplicate."""
        self._is_new = False
        self._producer.close()
        self._producer = self._open()
        if self._producer.last_sequence_id() != stored:
            raise NotWritten(
                f"deduplication=true, but the brokers do not de-duplicate {self._topic}: switch it on (pulsar-admin "
                "namespaces set-deduplication --enable, or topics set-deduplication-status --enable), or leave it out"
            )

    def _begin_to_repeat(self) -> None:
        """The rows differ from those of the former attempt: all of them are sent, without numbers."""
        log.warning(
            "%s, batch %s, task %s: the rows, or their order, differ from those of a former attempt; all are sent, and "
            "some will be there twice",
            self._topic, self._attempt.batch, self._attempt.task,
        )  # fmt: skip
        self._producer.close()
        self._producer = self._brokers.producer(self._topic)
        for message in self._held:
            self._repeat(message)
        self._held.clear()

    def _repeat(self, message: Outgoing) -> None:
        self._deliveries.send(self._producer, message)
        self.repeated += 1

    def finish(self) -> None:
        """Wait until every message is confirmed. Raises NotWritten."""
        was_repeating = self._numbering.state is State.REPEATING
        self._send(self._numbering.ended())
        if self._numbering.state is State.REPEATING and not was_repeating:
            self._begin_to_repeat()
        self._deliveries.flush(self._producer)


class ExactlyOnceSender:
    """A producer for each topic partition, for one task of a batch of a stream."""

    def __init__(self, options: WriteOptions, brokers: Brokers, attempt: Attempt) -> None:
        self._options = options
        self._brokers = brokers
        self._attempt = attempt
        self._deliveries = Deliveries(options.service_url)
        self._names: dict[str | None, list[str]] = {}
        """The partitions of each topic."""
        self._keyless: dict[str | None, int] = {}
        """Rows without a key so far."""
        self._partitions: dict[str, _Partition] = {}
        self._file = SpillFile()
        self.room = Room(options.held_bytes)
        """Shares the budget for the rows that wait, of all partitions."""

    def send(self, message: Outgoing) -> None:
        """Raises NotWritten, CheckpointSetBack."""
        names = self._names.get(message.topic)
        if names is None:
            topic = str(self._options.topic) if message.topic is None else message.topic
            names = self._names[message.topic] = self._brokers.partitions(topic)
        row = 0
        if not message.key:
            row = self._keyless.get(message.topic, 0)
            self._keyless[message.topic] = row + 1
        name = names[partition_of(message.key, row, len(names))]
        partition = self._partitions.get(name)
        if partition is None:
            check_topics(len(self._partitions))
            partition = _Partition(
                name, self._attempt, self._options, self._brokers, self._deliveries, Spool(self._file)
            )
            self._partitions[name] = partition
        partition.send(message)
        self.room.set(name, partition.memory_bytes)
        while (largest := self.room.too_large) is not None:
            self._partitions[largest].give_up_memory()
            self.room.set(largest, self._partitions[largest].memory_bytes)

    def check(self) -> None:
        """Raises NotWritten if a message is known to have failed."""
        self._deliveries.check()

    def finish(self) -> int:
        """Wait until every message is confirmed; how many may be there twice by this task. Raises NotWritten."""
        for partition in self._partitions.values():
            partition.finish()
        return sum(partition.repeated for partition in self._partitions.values())

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
