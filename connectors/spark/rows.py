"""From entries that were opened to Arrow record batches. No IO.

Rules (docs/formats/pulsar.md):

1. Messages that compaction emptied are no rows. A null value is a null.
2. Only the columns that are asked for are built, and they have exactly the types of the schema.
"""

import base64
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from connectors.spark.backlog import Acked
from connectors.spark.borders import RUN_MIN, Numbers, UnusualLayout, borders
from connectors.spark.columnar import PADDING, Messages, framed, normalised
from connectors.spark.decoding import CORRUPT, Decoded, decode_all
from connectors.spark.encryption import ENCRYPTION_COLUMNS, value_of
from connectors.spark.entries import Chunks, Opened, Wants
from connectors.spark.strided import runs
from connectors.spark.times import Times
from connectors.spark.values import Values
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages import (
    is_batch,
)
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from managed_ledger.schemas.registry import version_of

# Columns of which each message of a batch has its own value.
_PER_MESSAGE: Final = frozenset({"__key", "__eventTime", "__messageProperties", "__sequenceId"})

# Spark's timestamps count microseconds in 64 bits.
_TIME_MS_MAX: Final = (2**63 - 1) // 1000


class _Entry(NamedTuple):
    """An entry whose rows are in the record batch that is being built."""

    opened: Opened
    messages: int
    is_batch: bool
    pieces: Sequence[Buffer]
    """The entry's bytes in the joined buffer."""
    first_chunk: Opened | None


class RowBuilder:
    """Gathers the entries of one topic partition; `take` gives their rows, with exactly *schema*."""

    def __init__(
        self,
        schema: pa.Schema,
        topic: str,
        partition: int,
        values: Values | None,
        times: Times | None = None,
        wants: Wants | None = None,
        acked: Acked | None = None,
        *,
        permissive: bool = False,
    ) -> None:
        """*values* decodes into columns; None leaves the column `value` as it is stored, or as text. Messages that were
        not published in *times*, that are whole in an entry which *wants* does not want, or of which *acked* says that
        they are consumed, are no rows. If *permissive*, values that cannot be decoded are null, and counted."""
        self._wants = wants
        self._acked = acked
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._values = values
        self._times = times
        self._permissive = permissive
        self.corrupt_count = 0
        """Values that could not be decoded, of the rows that were taken."""
        keys_apart = values is not None and values.has_keys_apart
        self._needs_fields = keys_apart or not _PER_MESSAGE.isdisjoint(schema.names)
        self._makers: dict[str, Callable[[_Rows, pa.Field], pa.Array]] = {
            "__key": self._keys,
            "__topic": lambda rows, field: pa.repeat(pa.scalar(topic, pa.string()), rows.count),
            "__messageId": self._message_ids,
            "__publishTime": lambda rows, field: _timestamps(
                rows.repeated([signed(entry.opened.metadata.publish_time) for entry in rows.entries]), field
            ),
            "__eventTime": _event_times,
            "__messageProperties": lambda rows, field: rows.messages.fields.properties(field.type),
            "__partition": lambda rows, field: pa.array(np.full(rows.count, partition, np.int32)),
            "__ledgerId": lambda rows, field: pa.array(rows.repeated([e.opened.ledger_id for e in rows.entries])),
            "__entryId": lambda rows, field: pa.array(rows.repeated([e.opened.entry_id for e in rows.entries])),
            "__batchIndex": lambda rows, field: pa.array(
                np.where(rows.repeated([e.is_batch for e in rows.entries]), rows.places, -1).astype(np.int32)
            ),
            "__index": _indexes,
            "__sequenceId": lambda rows, field: pa.array(
                rows.messages.fields.sequence_id(
                    rows.repeated([signed(e.opened.metadata.sequence_id) for e in rows.entries]) + rows.places
                )
            ),
            "__producerName": lambda rows, field: rows.spread([e.opened.metadata.producer_name for e in rows.entries],
                                                              field),
            "__schemaVersion": lambda rows, field: rows.spread(
                [e.opened.metadata.schema_version or None for e in rows.entries], field
            ),
        }  # fmt: skip
        self.chunks = Chunks()
        self._reset()

    def _reset(self) -> None:
        self._entries: list[_Entry] = []
        self.row_count = 0
        self.payload_bytes = 0

    def add(self, opened: Opened) -> None:
        """Add the rows of one entry. Raises HeadlessChunk, Corruption naming the entry."""
        first_chunk = None
        if opened.is_chunk:
            try:
                whole = self.chunks.add(opened)
            except Corruption as error:
                raise self._corruption(opened, error) from None
            if whole is None:
                return
            first_chunk, opened = whole
            if self._wants is not None and not self._wants(opened.ledger_id, opened.entry_id, opened.metadata):
                return
        metadata, payload = opened.metadata, opened.payload
        if self._times is not None and not self._times.has(signed(metadata.publish_time)):
            return
        if is_batch(metadata) and not metadata.encryption_keys:
            count = metadata.num_messages_in_batch
            if count < 1:
                return
            entry = _Entry(opened, count, True, (payload,), first_chunk)
        else:
            entry = _Entry(opened, 1, False, framed(self._single_of(metadata, len(payload)), payload), first_chunk)
        self._entries.append(entry)
        self.row_count += entry.messages
        self.payload_bytes += len(payload)

    def _single_of(self, metadata: MessageMetadata, payload_bytes: int) -> SingleMessageMetadata:
        """What a batch would hold of a message that stands alone: so both become rows in the same way."""
        single = SingleMessageMetadata(payload_size=payload_bytes)
        if metadata.null_value:
            single.null_value = True
        if self._needs_fields:
            single.properties.extend(metadata.properties)
            single.event_time = metadata.event_time
            single.sequence_id = metadata.sequence_id
            if metadata.HasField("partition_key"):
                single.partition_key = metadata.partition_key
                single.partition_key_b64_encoded = metadata.partition_key_b64_encoded
                single.null_partition_key = metadata.null_partition_key
        return single

    def take(self) -> pa.RecordBatch:
        """The rows of what was added since the last call. Raises Corruption naming an entry."""
        try:
            batch = self._build()
        except UnusualLayout:
            self._entries = [self._normalised(entry) for entry in self._entries]
            batch = self._build()
        self._reset()
        return batch

    def _normalised(self, entry: _Entry) -> _Entry:
        if not entry.is_batch:
            return entry
        try:
            return entry._replace(pieces=(normalised(entry.opened.payload, entry.messages),))
        except Corruption as error:
            raise self._corruption(entry.opened, error) from None

    def _build(self) -> pa.RecordBatch:
        rows = _Rows(self._entries)
        fields = rows.messages.fields if self._needs_fields or rows.messages.has_flags else None
        rows.null_value = None if fields is None else fields.null_value
        compacted_out = None if fields is None else fields.compacted_out
        decoded = Decoded({}) if self._values is None else self._decoded(rows, self._values, compacted_out)
        columns = []
        for field in self._schema:
            if field.name in decoded.columns:
                columns.append(decoded.columns[field.name])
            elif field.name == CORRUPT:
                columns.append(_corrupt_values(rows, decoded.corrupt))
            elif field.name in ENCRYPTION_COLUMNS:
                columns.append(rows.spread([value_of(field.name, e.opened.metadata) for e in rows.entries], field))
            elif field.name in self._makers:
                columns.append(self._made(field, rows))
            elif self._values is None:
                columns.append(self._raw_values(field, rows))
            else:
                columns.append(pa.nulls(rows.count, field.type))  # a column that other topics have
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if decoded.corrupt is not None:
            self.corrupt_count += int(decoded.corrupt.sum())
        consumed = None if self._acked is None else self._acked.messages_of(rows.places_of_entries)
        left_out = [mask for mask in (compacted_out, consumed) if mask is not None]
        return batch.filter(pa.array(~np.logical_or.reduce(left_out))) if left_out else batch

    def _decoded(self, rows: "_Rows", values: Values, compacted_out: Numbers | None) -> Decoded:
        def fail(row: int, text: str) -> Corruption:
            return self._corruption(rows.entry_of(row), text)

        wanted = [field for field in self._schema if field.name in values.names]
        if self._permissive and not wanted and CORRUPT not in self._schema.names:
            return Decoded({})
        return decode_all(rows, values, wanted, compacted_out, fail, permissive=self._permissive)

    def _made(self, field: pa.Field, rows: "_Rows") -> pa.Array:
        try:
            return self._makers[field.name](rows, field)
        except (pa.ArrowInvalid, ValueError, OverflowError) as error:
            raise self._corruption_among(rows, f"column {field.name}: {error}") from None

    def _raw_values(self, field: pa.Field, rows: "_Rows") -> pa.Array:
        values = rows.messages.values(rows.null_value)
        if field.type == pa.binary():
            return values
        try:
            return values.cast(field.type)
        except pa.ArrowInvalid:
            for row in range(rows.count):
                try:
                    rows.messages.value(row).decode()
                except UnicodeDecodeError as error:
                    raise self._corruption(rows.entry_of(row), f"its value is not text in UTF-8 ({error})") from None
            raise

    def _keys(self, rows: "_Rows", field: pa.Field) -> pa.Array:
        keys = _keys(rows)
        if field.type == pa.binary():
            return keys
        try:
            return keys.cast(field.type)
        except pa.ArrowInvalid:
            texts = [self._text_key(rows, row, key) for row, key in enumerate(keys.to_pylist())]
            return pa.array(texts, field.type)

    def _text_key(self, rows: "_Rows", row: int, key: bytes | None) -> str | None:
        try:
            return None if key is None else key.decode()
        except UnicodeDecodeError as error:
            if self._permissive:
                return None
            text = f"its key is not text in UTF-8 ({error}); use keyFormat=binary"
            raise self._corruption(rows.entry_of(row), text) from None

    def _message_ids(self, rows: "_Rows", field: pa.Field) -> pa.BinaryArray:
        """Serialised MessageIdData, as the clients do it."""
        pieces: list[bytes] = []
        lengths: list[Numbers] = []
        for entry in rows.entries:
            head = self._id_of(entry.opened)
            if entry.is_batch:
                tails, tail_lengths = _id_tails(entry.messages)
                pieces += (head, head.join(tails))
                lengths.append(tail_lengths + len(head))
            else:
                if entry.first_chunk is not None:
                    first = self._id_of(entry.first_chunk)
                    head += bytes((7 << 3 | 2, len(first))) + first
                pieces.append(head)
                lengths.append(np.array((len(head),)))
        offsets = np.zeros(rows.count + 1, np.int32)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return pa.Array.from_buffers(
            pa.binary(), rows.count, [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(pieces))]
        )

    def _id_of(self, opened: Opened) -> bytes:
        position = MessageIdData(ledgerId=opened.ledger_id, entryId=opened.entry_id)
        if self._partition >= 0:
            position.partition = self._partition
        return position.SerializeToString()

    def _corruption(self, opened: Opened, error: object) -> Corruption:
        return Corruption(f"{self._topic}, entry {opened.ledger_id}:{opened.entry_id}: {error}")

    def _corruption_among(self, rows: "_Rows", error: object) -> Corruption:
        first, last = rows.entries[0].opened, rows.entries[-1].opened
        return Corruption(
            f"{self._topic}, entries {first.ledger_id}:{first.entry_id} to {last.ledger_id}:{last.entry_id}: {error}"
        )


def _joined(entries: Sequence[_Entry]) -> Messages:
    """Of entries with few messages each: to walk through one piece is quicker. Raises UnusualLayout."""
    data = b"".join(chain(chain.from_iterable(entry.pieces for entry in entries), (PADDING,)))
    found: list[Numbers] = []
    at = 0
    for entry in entries:
        end = at + sum(map(len, entry.pieces))
        if entry.is_batch:
            found.append(borders(data, at, end, entry.messages))
        else:
            found.append(np.array((end - len(entry.opened.payload), end), np.int32))
        at = end
    return Messages([data], np.concatenate(found))


def _apart(entries: Sequence[_Entry]) -> Messages:
    """Of batches with many messages, which may not have to be joined. Raises UnusualLayout."""
    batches = [entry.pieces[0] for entry in entries]
    found = [borders(data, 0, len(data), entry.messages) for data, entry in zip(batches, entries, strict=True)]
    starts = accumulate(map(len, batches[:-1]), initial=0)
    in_all = np.concatenate([one + start for one, start in zip(found, starts, strict=True)])
    return Messages([*batches, PADDING], in_all, runs(zip(batches, found, strict=True)))


class _Rows:
    """The messages of several entries, and how what an entry has once becomes a column."""

    def __init__(self, entries: Sequence[_Entry]) -> None:
        """Raises UnusualLayout."""
        self.entries = entries
        count = sum(entry.messages for entry in entries)
        in_long_batches = len(entries) * RUN_MIN <= count and all(entry.is_batch for entry in entries)
        self.messages = _apart(entries) if in_long_batches else _joined(entries)
        self.count = self.messages.count
        self.null_value: Numbers | None = None
        self._counts = np.array([entry.messages for entry in entries], np.int64)
        self._firsts = np.cumsum(self._counts) - self._counts

    def repeated(self, per_entry: Sequence[int]) -> Numbers:
        """For each row the value of its entry."""
        return np.repeat(np.array(per_entry), self._counts)

    def spread(self, per_entry: Sequence[Any], field: pa.Field) -> pa.Array:
        """As `repeated`, for values that are not numbers."""
        numbers = np.repeat(np.arange(len(self.entries)), self._counts)
        return pa.array(per_entry, field.type).take(pa.array(numbers))

    @property
    def places(self) -> Numbers:
        """For each row its place in its entry, from 0 on."""
        return np.arange(self.count) - np.repeat(self._firsts, self._counts)

    @property
    def places_of_entries(self) -> list[tuple[int, int, int]]:
        """(ledger, entry, rows) of each entry; of one that is encrypted, whose messages cannot be told apart, no place:
        it is consumed when all of it is."""
        return [
            (-1 if one.opened.metadata.encryption_keys else one.opened.ledger_id, one.opened.entry_id, one.messages)
            for one in self.entries
        ]

    @cached_property
    def versions(self) -> list[tuple[int, int | None]]:
        """For each entry the number of its messages, and the version of the schema that it was written with."""
        return [(entry.messages, version_of(entry.opened.metadata.schema_version)) for entry in self.entries]

    @cached_property
    def _raw_keys(self) -> list[bytes | None]:
        keys: list[bytes | None] = self.messages.fields.keys().to_pylist()
        return keys

    def key(self, row: int) -> bytes | None:
        """Raises ValueError for base64 that is none."""
        key, is_base64 = self._raw_keys[row], self.messages.fields.key_is_base64
        if key is None or is_base64 is None or not is_base64[row]:
            return key
        return base64.b64decode(key, validate=True)

    def entry_of(self, row: int) -> Opened:
        return self.entries[int(np.searchsorted(self._firsts, row, side="right")) - 1].opened


# ------------------------------------------------------------------------------------------ columns


def _keys(rows: _Rows) -> pa.BinaryArray:
    fields = rows.messages.fields
    keys = fields.keys()
    if fields.key_is_base64 is None:
        return keys
    decoded = keys.to_pylist()
    for row in np.flatnonzero(fields.key_is_base64).tolist():
        if decoded[row] is not None:
            decoded[row] = base64.b64decode(decoded[row])
    return pa.array(decoded, pa.binary())


def _corrupt_values(rows: _Rows, corrupt: Numbers | None) -> pa.BinaryArray:
    """What is stored, where it could not be decoded; null elsewhere."""
    return pa.nulls(rows.count, pa.binary()) if corrupt is None else rows.messages.values(~corrupt)


def _event_times(rows: _Rows, field: pa.Field) -> pa.Array:
    times_ms = rows.messages.fields.event_time_ms()
    return _timestamps(times_ms, field, times_ms == 0)


def _timestamps(times_ms: Numbers, field: pa.Field, absent: Numbers | None = None) -> pa.Array:
    if ((times_ms > _TIME_MS_MAX) | (times_ms < -_TIME_MS_MAX)).any():  # the lowest number has no absolute value
        raise OverflowError("a time is beyond what Spark's timestamps hold")
    return pa.array(times_ms * 1000, mask=absent).cast(field.type)


def _indexes(rows: _Rows, field: pa.Field) -> pa.Array:
    """The broker numbers all messages of a topic, and writes that of an entry's last one into it."""
    bases = [0 if e.opened.last_index is None else signed(e.opened.last_index) - e.messages + 1 for e in rows.entries]
    absent = rows.repeated([e.opened.last_index is None for e in rows.entries])
    return pa.array(rows.repeated(bases) + rows.places, mask=absent)


def _id_tails(count: int) -> tuple[Sequence[bytes], Numbers]:
    """What follows a batch's position in the ids of its messages, and how long each of these is."""
    return _kept_id_tails(count) if count <= KEPT_TAILS_MAX else _made_id_tails(count)


def _made_id_tails(count: int) -> tuple[Sequence[bytes], Numbers]:
    size = MessageIdData(ledgerId=0, entryId=0, batch_size=count).SerializeToString()[4:]
    tails = [
        MessageIdData(ledgerId=0, entryId=0, batch_index=number).SerializeToString()[4:] + size
        for number in range(count)
    ]
    return tails, np.array([len(tail) for tail in tails])


# Batches of a producer mostly have one of a few sizes. Of the largest kept, the cache takes 100 MB.
KEPT_TAILS_MAX: Final = 10_000
_kept_id_tails = lru_cache(maxsize=128)(_made_id_tails)


def signed(number: int) -> int:
    """An unsigned number of 64 bits as Java reads it."""
    return number - 2**64 if number >= 2**63 else number
