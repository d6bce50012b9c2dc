"""From stored entries to Arrow columns, a batch of rows at a time.

Only the columns that are asked for are built. The value column is made from the borders of the payloads: offsets over
the joined buffer and one `take`, instead of a Python object for each value (spark.md 3).

Rules (pulsar.md 5): markers and messages that compaction emptied are no rows; a null value is a null; base64 keys are
decoded; a message in chunks is one row, made where its last chunk stands; encrypted and transactional messages are
refused, since what they mean cannot be known here.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import types as t

from connectors.spark.values import AvroValues, Decode, JsonValues
from magnetar.runtime.types import Buffer, Corruption
from managed_ledger.messages import (
    broker_metadata_of,
    checksum_ok,
    decompress,
    is_batch,
    metadata_of,
    payload_of,
    split_entry,
)
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from managed_ledger.schema_registry import version_of

# Metadata columns: name → (Spark type, nullable). The first ones are the default, in pulsar-spark's order.
METADATA_COLUMNS: Final[dict[str, tuple[t.DataType, bool]]] = {
    "__key": (t.BinaryType(), True),
    "__topic": (t.StringType(), False),
    "__messageId": (t.BinaryType(), False),
    "__publishTime": (t.TimestampType(), False),
    "__eventTime": (t.TimestampType(), True),
    "__messageProperties": (t.MapType(t.StringType(), t.StringType(), False), False),
    "__partition": (t.IntegerType(), False),
    "__ledgerId": (t.LongType(), False),
    "__entryId": (t.LongType(), False),
    "__batchIndex": (t.IntegerType(), False),
    "__index": (t.LongType(), True),
    "__sequenceId": (t.LongType(), False),
    "__producerName": (t.StringType(), False),
    "__schemaVersion": (t.BinaryType(), True),
}
DEFAULT_METADATA: Final = tuple(METADATA_COLUMNS)[:6]

Values = AvroValues | JsonValues | None


class IncompleteChunks(Corruption):
    """The first chunks of a message are gone (its ledger was trimmed)."""


class Chunks:
    """Messages in chunks that are not whole yet, by their common id."""

    # A message in chunks may be of any size; so many unfinished ones at once are a producer that always fails.
    UNFINISHED_MAX: Final = 1_000

    def __init__(self) -> None:
        self._parts: dict[str, list[bytes]] = {}

    def add(self, metadata: MessageMetadata, payload: Buffer) -> bytes | None:
        """The joined payload when *payload* was its last chunk. Raises IncompleteChunks."""
        if metadata.chunk_id == 0:
            self._parts[metadata.uuid] = []
            if len(self._parts) > self.UNFINISHED_MAX:
                del self._parts[next(iter(self._parts))]
        parts = self._parts.get(metadata.uuid)
        if parts is None or len(parts) != metadata.chunk_id:
            if parts is not None and metadata.chunk_id < len(parts):
                return None  # sent again after a lost receipt: the same bytes
            raise IncompleteChunks(f"chunks before number {metadata.chunk_id} of message {metadata.uuid} are missing")
        parts.append(bytes(payload))
        if len(parts) < metadata.num_chunks_from_msg:
            return None
        del self._parts[metadata.uuid]
        return b"".join(parts)


class RowBuilder:
    """Gathers the rows of one topic partition; `take` gives them as a record batch with exactly *schema*."""

    def __init__(self, schema: pa.Schema, topic: str, partition: int, values: Values, value_format: str) -> None:
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._values = values
        self._value_format = value_format
        names = set(schema.names)
        self._wants_value = "value" in names
        self._fields = [name for name in schema.names if name not in METADATA_COLUMNS and name != "value"]
        self._makers: list[tuple[list[Any], Callable[..., Any]]] = []
        self._lists: dict[str, list[Any]] = {}
        per_message = {
            "__key": _key,
            "__messageProperties": _properties,
            "__eventTime": _event_time,
            "__sequenceId": _sequence_id,
        }
        self._per_message = [(name, per_message[name]) for name in schema.names if name in per_message]
        self._constant = [name for name in schema.names if name in METADATA_COLUMNS and name not in per_message]
        self._needs_single = bool(self._per_message)
        self._chunks = Chunks()
        self._reset()

    def _reset(self) -> None:
        self.row_count = 0
        self.payload_bytes = 0
        self._lists = {name: [] for name in self._schema.names if name != "value"}
        self._buffers: list[bytes] = []  # joined payloads, in order
        self._buffer_bytes = 0
        self._borders: list[int] = [0]  # start and end of each value in them, alternating
        self._nulls: list[int] = []  # rows whose value is null

    # ------------------------------------------------------------------------------- entries

    def add_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> None:
        """Add the rows of one entry. Raises Corruption naming it."""
        try:
            self._add_entry(ledger_id, entry_id, data)
        except IncompleteChunks:
            raise
        except Corruption as error:
            raise Corruption(f"{self._topic}, entry {ledger_id}:{entry_id}: {error}") from None

    def remember_chunks(self, data: Buffer) -> None:
        """Look at an entry before the range for the first chunks of a message that ends in it."""
        parts = split_entry(data)
        metadata = metadata_of(parts)
        if metadata.num_chunks_from_msg > 1:
            try:
                self._chunks.add(metadata, parts.payload)
            except IncompleteChunks:
                return

    def _add_entry(self, ledger_id: int, entry_id: int, data: Buffer) -> None:
        if checksum_ok(data) is False:
            raise Corruption("its checksum does not fit")
        parts = split_entry(data)
        metadata = metadata_of(parts)
        if metadata.HasField("marker_type"):
            return
        if metadata.encryption_keys:
            raise Corruption("it is encrypted, and this reader has no keys; consume it with a Pulsar client")
        if metadata.HasField("txnid_most_bits"):
            raise Corruption("it belongs to a transaction; reading transactional topics is not supported yet")
        if metadata.num_chunks_from_msg > 1:
            joined = self._chunks.add(metadata, parts.payload)
            if joined is None:
                return
            payload: Buffer = decompress(metadata.compression, joined, metadata.uncompressed_size)
        else:
            payload = payload_of(parts, metadata)
        before = self.row_count
        if is_batch(metadata):
            indexes = self._add_batch(payload, metadata)
        else:
            self._add_value(payload, 0, len(payload), metadata.null_value)
            for name, make in self._per_message:
                self._lists[name].append(make(metadata, None, 0))
            indexes = [-1]
        count = self.row_count - before
        if count:
            index = None
            if "__index" in self._lists:
                broker = broker_metadata_of(parts)
                if broker is not None and broker.HasField("index"):
                    index = broker.index - max(metadata.num_messages_in_batch, 1) + 1
            self._add_constants(metadata, ledger_id, entry_id, indexes, count, index)
            if self._fields:
                self._add_fields(metadata, before)

    def _add_batch(self, payload: Buffer, metadata: MessageMetadata) -> list[int]:
        """One row for each message of a batch; returns their indexes."""
        data = bytes(payload)
        end = len(data)
        at = 0
        base = self._buffer_bytes
        borders = self._borders
        indexes: list[int] = []
        parse = SingleMessageMetadata.FromString
        for number in range(metadata.num_messages_in_batch):
            size = int.from_bytes(data[at : at + 4], "big")
            start = at + 4 + size
            if start > end:
                raise Corruption(f"message {number} of its batch leaves the payload of {end} bytes")
            single = parse(data[at + 4 : start])
            at = start + single.payload_size
            if at > end or single.payload_size < 0:
                raise Corruption(f"message {number} of its batch leaves the payload of {end} bytes")
            if single.compacted_out:
                continue
            if single.null_value:
                self._nulls.append(self.row_count + len(indexes))
            borders += (base + start, base + at)
            indexes.append(number)
            for name, make in self._per_message:
                self._lists[name].append(make(metadata, single, number))
        self._buffers.append(data)
        self._buffer_bytes += end
        self.payload_bytes += end
        self.row_count += len(indexes)
        return indexes

    def _add_value(self, payload: Buffer, start: int, end: int, null: bool) -> None:
        data = bytes(payload)
        if null:
            self._nulls.append(self.row_count)
        self._borders += (self._buffer_bytes + start, self._buffer_bytes + end)
        self._buffers.append(data)
        self._buffer_bytes += len(data)
        self.payload_bytes += len(data)
        self.row_count += 1

    def _add_constants(
        self,
        metadata: MessageMetadata,
        ledger_id: int,
        entry_id: int,
        indexes: list[int],
        count: int,
        index: int | None,
    ) -> None:
        """What is the same for all messages of an entry, and the position."""
        for name in self._constant:
            column = self._lists[name]
            if name == "__batchIndex":
                column.extend(indexes)
            elif name == "__messageId":
                for number in indexes:
                    made = MessageIdData(ledgerId=ledger_id, entryId=entry_id, partition=self._partition)
                    if number >= 0:
                        made.batch_index = number
                    column.append(made.SerializeToString())
            elif name == "__index":
                column.extend([None] * count if index is None else [index + max(number, 0) for number in indexes])
            else:
                column.extend([self._constant_value(name, metadata, ledger_id, entry_id)] * count)

    def _constant_value(self, name: str, metadata: MessageMetadata, ledger_id: int, entry_id: int) -> Any:
        match name:
            case "__topic":
                return self._topic
            case "__partition":
                return self._partition
            case "__ledgerId":
                return ledger_id
            case "__entryId":
                return entry_id
            case "__publishTime":
                return metadata.publish_time * 1000
            case "__producerName":
                return metadata.producer_name
        assert name == "__schemaVersion", name
        return metadata.schema_version or None

    def _add_fields(self, metadata: MessageMetadata, before: int) -> None:
        """Decode the values of the rows from *before* on into their columns."""
        assert self._values is not None, "fields need a schema"
        decode: Decode = self._values.decoder(version_of(metadata.schema_version))
        data, base = self._buffers[-1], self._buffer_bytes - len(self._buffers[-1])
        nulls = set(self._nulls[-(self.row_count - before) :]) if self._nulls else set()
        columns = [self._lists[name].append for name in self._fields]
        fields = self._fields
        for row in range(before, self.row_count):
            if row in nulls:
                for append in columns:
                    append(None)
                continue
            start, end = self._borders[1 + 2 * row] - base, self._borders[2 + 2 * row] - base
            try:
                record = decode(data[start:end])
            except Corruption:
                raise
            except (ValueError, KeyError, TypeError, EOFError, IndexError) as error:
                raise Corruption(f"its value cannot be decoded as {self._value_format}: {error!r}") from None
            get = record.get
            for append, name in zip(columns, fields, strict=True):
                append(get(name))

    # --------------------------------------------------------------------------------- batches

    def take(self) -> pa.RecordBatch:
        """The rows gathered since the last call."""
        columns = []
        for field in self._schema:
            if field.name == "value":
                columns.append(self._value_column(field.type))
            else:
                columns.append(_column(self._lists[field.name], field))
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self._reset()
        return batch

    def _value_column(self, kind: pa.DataType) -> pa.Array:
        """Elements between the borders are values and what stands between them, in turn: take every second one."""
        joined = self._buffers[0] if len(self._buffers) == 1 else b"".join(self._buffers)
        offsets = pa.array(self._borders, pa.int32())
        everything = pa.Array.from_buffers(
            pa.binary(), len(self._borders) - 1, [None, offsets.buffers()[1], pa.py_buffer(joined)]
        )
        indexes: Any = pa.array(range(1, 2 * self.row_count, 2), pa.int32())
        if self._nulls:
            gone = set(self._nulls)
            indexes = pa.array([None if row in gone else 2 * row + 1 for row in range(self.row_count)], pa.int32())
        values = everything.take(indexes)
        return values if kind == pa.binary() else values.cast(kind)


def _column(values: list[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise Corruption(f"column {field.name} does not take what the topic holds: {error}") from None


def _key(metadata: MessageMetadata, single: SingleMessageMetadata | None, number: int) -> bytes | None:
    source: Any = metadata if single is None else single
    if not source.HasField("partition_key") or source.null_partition_key:
        return None
    return base64.b64decode(source.partition_key) if source.partition_key_b64_encoded else source.partition_key.encode()


def _properties(
    metadata: MessageMetadata, single: SingleMessageMetadata | None, number: int
) -> Sequence[tuple[str, str]]:
    source: Any = metadata if single is None else single
    return list({item.key: item.value for item in source.properties}.items())


def _event_time(metadata: MessageMetadata, single: SingleMessageMetadata | None, number: int) -> int | None:
    source: Any = metadata if single is None else single
    return source.event_time * 1000 if source.event_time else None


def _sequence_id(metadata: MessageMetadata, single: SingleMessageMetadata | None, number: int) -> int:
    if single is not None and single.HasField("sequence_id"):
        return single.sequence_id
    return metadata.sequence_id + number
