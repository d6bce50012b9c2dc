"""From entries that were opened to Arrow record batches. No IO.

Rules (docs/formats/pulsar.md):

1. Messages that compaction emptied give no rows. A null value is a null.
2. Only the columns that are asked for are built, and they have exactly the types of the schema.
3. A record batch weighs some RECORD_BATCH_BYTES_MAX at most, or is one row: an entry may hold a million messages, and
   what it has once (the name of its producer) stands in each of their rows. What weighs more is built part by part.
4. An entry that cannot be understood is found among the others by halves, so that they are read all the same.
5. If its head tells all that is asked for, as for a count, a batch is not opened: it has as many rows as it says.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain, groupby
from typing import Any, Final, NamedTuple, cast

import numpy as np
import pyarrow as pa

from connectors.spark.batches.borders import RUN_MIN, Numbers, UnusualLayout, borders
from connectors.spark.batches.columnar import FIELDS_MAX, PADDING, Messages, framed, normalised
from connectors.spark.batches.strided import runs
from connectors.spark.options.read import UNPACKED_BYTES, Mode
from connectors.spark.plan.unconsumed import Acked
from connectors.spark.ranges import Times
from connectors.spark.task.encryption import ENCRYPTION_COLUMNS, value_of
from connectors.spark.task.entries import BadEntry, Chunks, HeadlessChunk, Opened, Wants, unpacked
from connectors.spark.values.decoding import CORRUPT, NO_VALUE, REASON, Decoded, decode_all
from connectors.spark.values.records import Values
from magnetar_core.runtime.types import MIB, Buffer, Corruption
from managed_ledger.messages import (
    is_batch,
)
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata
from managed_ledger.schemas.stored import version_of

RECORD_BATCH_BYTES_MAX: Final = 8 * MIB
"""What the JVM gets at a time: twice what a task gathers, so that a batch that is a little larger is not cut."""

REPEATED_BYTES_MAX: Final = 128 * MIB
"""What the rows of one entry may have beside their messages. A million rows of the default columns fit."""

# Columns of which each message of a batch has its own value.
_PER_MESSAGE: Final = frozenset({"__key", "__eventTime", "__messageProperties", "__sequenceId", "__orderingKey"})

_OF_HEADS: Final = frozenset({
    "__topic", "__messageId", "__publishTime", "__partition", "__ledgerId", "__entryId", "__batchIndex", "__index",
    "__producerName", "__schemaVersion", "__schemaId", "__deliverAt", "__replicatedFrom",
})  # fmt: skip
"""Columns that the head of an entry tells for all of its messages."""

# Spark's timestamps count microseconds in 64 bits.
_TIME_MS_MAX: Final = (2**63 - 1) // 1000


def is_by_heads(names: Sequence[str], mode: Mode) -> bool:
    """Whether the heads of entries tell the columns with these *names* (rule 5). Where a bad entry is not an error,
    each is opened, so that it is as many rows whatever the columns are."""
    return mode is Mode.FAILFAST and _OF_HEADS.issuperset(names)


class _Entry(NamedTuple):
    """An entry whose rows are in the record batch that is being built."""

    opened: Opened
    messages: int
    is_batch: bool
    pieces: Sequence[Buffer]
    """The entry's bytes in the joined buffer."""
    first_chunk: Opened | None
    row_bytes: int
    """What each of its rows has beside the message."""
    weight: int
    """About how many bytes its rows take as columns."""


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
        mode: Mode = Mode.FAILFAST,
        unpacked_bytes_max: int = UNPACKED_BYTES,
        by_heads: bool = False,
    ) -> None:
        """*values* decodes into columns; None leaves the column `value` as it is stored, or as text. Messages that were
        not published in *times*, that are whole in an entry which *wants* does not want, or of which *acked* says that
        they are consumed, give no rows. *mode* says what becomes of what cannot be understood, *unpacked_bytes_max*
        what a message in chunks may unpack to. *by_heads*: `is_by_heads` of the schema, and compaction emptied no
        message of a batch."""
        self._by_heads = by_heads
        self._wants = wants
        self._acked = acked
        self._schema = schema
        self._topic = topic
        self._partition = partition
        self._values = values
        self._times = times
        self._mode = mode
        self.corrupt_count = 0
        """Values that could not be decoded, of the rows that were taken."""
        self.bad_count = 0
        """Entries that could not be understood."""
        self.first_bad: BadEntry | None = None
        self._row_bytes = 8 * _count_columns(schema) + (0 if values is None else values.default_bytes)
        if "__topic" in schema.names:
            self._row_bytes += len(topic)
        keys_apart = values is not None and values.has_keys_apart
        self._needs_fields = keys_apart or not _PER_MESSAGE.isdisjoint(schema.names)
        self._makers: dict[str, Callable[[_Rows, pa.Field], pa.Array]] = {
            "__key": self._keys,
            "__messageId": self._message_ids,
            "__publishTime": lambda rows, field: _timestamps(
                rows.repeated([signed(entry.opened.metadata.publish_time) for entry in rows.entries]), field
            ),
            "__eventTime": _event_times,
            "__messageProperties": lambda rows, field: rows.messages.fields.properties(field.type),
            "__orderingKey": lambda rows, field: rows.messages.fields.ordering_keys(),
            "__deliverAt": _deliver_times,
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
        }  # fmt: skip
        for name in ENCRYPTION_COLUMNS:
            self._makers[name] = lambda rows, field: rows.spread(
                [value_of(field.name, e.opened.metadata) for e in rows.entries], field
            )
        self._repeat_per_message: dict[str, Callable[[Opened], Any]] = {
            "__topic": lambda opened: topic,
            "__producerName": lambda opened: opened.metadata.producer_name,
            "__schemaVersion": lambda opened: opened.metadata.schema_version or None,
            "__schemaId": lambda opened: opened.metadata.schema_id or None,
            "__replicatedFrom": _replicated_from,
        }
        """What an entry has once, and what may be long: made for the rows of one record batch."""
        self._long = [name for name in self._repeat_per_message if name != "__topic" and name in schema.names]
        self.chunks = Chunks(unpacked_bytes_max)
        self._reset()

    def _reset(self) -> None:
        self._entries: list[_Entry | BadEntry] = []
        self.row_count = 0
        self.weight = 0
        """About what the rows take as columns."""

    def add(self, opened: Opened) -> None:
        """Add the rows of one entry. Raises HeadlessChunk, and BadEntry if the mode is to fail."""
        try:
            self._add(opened)
        except HeadlessChunk:
            raise
        except Corruption as error:
            self.add_bad(self.bad_entry(opened, error))

    def add_bad(self, bad: BadEntry) -> None:
        """Add an entry that cannot be understood: as a row, or as one more that was dropped. Raises it if the mode is
        to fail."""
        if self._is_left_out(bad):
            return
        self._tolerate(bad)
        if self._mode is Mode.PERMISSIVE:
            self._entries.append(bad)
            self.row_count += 1
            self.weight += len(bad.stored)

    def _is_left_out(self, bad: BadEntry) -> bool:
        """Whether it would not be asked for if it could be understood, as far as that can be known."""
        if self._acked is not None and self._acked.has(bad.ledger_id, bad.entry_id):
            return True
        if bad.metadata is None:
            return False
        if self._times is not None and not self._times.has(signed(bad.metadata.publish_time)):
            return True
        return self._wants is not None and not self._wants(bad.ledger_id, bad.entry_id, bad.metadata)

    def _tolerate(self, bad: BadEntry) -> None:
        if self._mode is Mode.FAILFAST:
            raise bad
        self.bad_count += 1
        self.first_bad = self.first_bad or bad

    def bad_entry(self, opened: Opened, error: object) -> BadEntry:
        """The error for an entry of which *error* says what is wrong."""
        if isinstance(error, BadEntry):
            return error
        return BadEntry(self._topic, opened.ledger_id, opened.entry_id, error, opened.metadata, opened.stored)

    def _add(self, opened: Opened) -> None:
        """Raises HeadlessChunk, Corruption."""
        first_chunk = None
        if opened.is_chunk:
            whole = self.chunks.add(opened)
            if whole is None:
                return
            first_chunk, opened = whole
            if self._wants is not None and not self._wants(opened.ledger_id, opened.entry_id, opened.metadata):
                return
        metadata = opened.metadata
        if self._times is not None and not self._times.has(signed(metadata.publish_time)):
            return
        if self._by_heads:
            opened = opened._replace(payload=b"", is_packed=False)
        elif opened.is_packed:
            opened = unpacked(opened)
        payload = opened.payload
        row_bytes = self._row_bytes
        if self._long:
            row_bytes += sum(len(self._repeat_per_message[name](opened) or b"") for name in self._long)
        if is_batch(metadata) and not metadata.encryption_keys:
            count = metadata.num_messages_in_batch
            if count < 1:
                return
            if count * row_bytes > REPEATED_BYTES_MAX:
                raise Corruption(
                    f"each row of its {count} messages would have {row_bytes} bytes beside the message, and "
                    f"{REPEATED_BYTES_MAX} is the limit of all together; ask for fewer columns"
                )
            weight = len(payload) + count * row_bytes
            entry = _Entry(opened, count, True, (payload,), first_chunk, row_bytes, weight)
        else:
            pieces = framed(self._single_of(metadata, len(payload)), payload)
            weight = len(payload) + len(pieces[1]) + row_bytes
            entry = _Entry(opened, 1, False, pieces, first_chunk, row_bytes, weight)
        self._entries.append(entry)
        self.row_count += entry.messages
        self.weight += weight

    def _single_of(self, metadata: MessageMetadata, payload_bytes: int) -> SingleMessageMetadata:
        """The metadata that a batch would have for a message that stands alone: so both become rows in the same way."""
        single = SingleMessageMetadata(payload_size=payload_bytes)
        if metadata.null_value:
            single.null_value = True
        if self._needs_fields:
            if len(metadata.properties) > FIELDS_MAX:
                raise Corruption(f"it has {len(metadata.properties)} properties, and {FIELDS_MAX} is the limit")
            single.properties.extend(metadata.properties)
            single.event_time = metadata.event_time
            if metadata.HasField("ordering_key"):
                single.ordering_key = metadata.ordering_key
            single.sequence_id = metadata.sequence_id
            if metadata.HasField("partition_key"):
                single.partition_key = metadata.partition_key
                single.partition_key_b64_encoded = metadata.partition_key_b64_encoded
                single.null_partition_key = metadata.null_partition_key
        return single

    def take(self) -> Iterator[pa.RecordBatch]:
        """The rows of what was added since the last call, as one record batch where they do not weigh too much. Raises
        BadEntry if the mode is to fail."""
        entries, is_mixed = self._entries, self.bad_count > 0
        self._reset()
        gathered: list[pa.RecordBatch] = []
        weight = 0
        for group in self._groups(entries, is_mixed):
            for batch, more in self._batches(group):
                if gathered and weight + more > RECORD_BATCH_BYTES_MAX:
                    yield _as_one_batch(gathered)
                    gathered, weight = [], 0
                gathered.append(batch)
                weight += more
        if gathered:
            yield _as_one_batch(gathered)

    def _groups(self, entries: "Sequence[_Entry | BadEntry]", is_mixed: bool) -> "Iterator[_Rows | list[BadEntry]]":
        """Rows and bad entries, in order."""
        if not is_mixed:
            yield from self._rows_of(cast(list[_Entry], entries))
            return
        for is_bad, group in groupby(entries, lambda entry: isinstance(entry, BadEntry)):
            if is_bad:
                yield [entry for entry in group if isinstance(entry, BadEntry)]
            else:
                yield from self._rows_of([entry for entry in group if isinstance(entry, _Entry)])

    def _rows_of(self, entries: list[_Entry], *, is_usual: bool = True) -> "Iterator[_Rows | list[BadEntry]]":
        """*is_usual*: they were not written anew yet."""
        if not entries:
            return
        try:
            rows = _Rows(entries, by_heads=self._by_heads)
            self._make_metadata_columns(rows)
        except (UnusualLayout, *NO_COLUMN) as error:
            if is_usual and isinstance(error, UnusualLayout):
                yield from self._written_anew(entries)
            elif len(entries) > 1:
                middle = len(entries) // 2
                yield from self._rows_of(entries[:middle], is_usual=is_usual)
                yield from self._rows_of(entries[middle:], is_usual=is_usual)
            else:
                yield from self._as_bad(entries[0], error)
        else:
            yield rows

    def _written_anew(self, entries: Sequence[_Entry]) -> "Iterator[_Rows | list[BadEntry]]":
        kept: list[_Entry] = []
        for entry in entries:
            try:
                kept.append(_normalised(entry))
            except Corruption as error:
                if kept:
                    yield from self._rows_of(kept, is_usual=False)
                    kept = []
                yield from self._as_bad(entry, error)
        if kept:
            yield from self._rows_of(kept, is_usual=False)

    def _as_bad(self, entry: _Entry, error: Exception) -> Iterator[list[BadEntry]]:
        bad = self.bad_entry(entry.opened, error)
        self._tolerate(bad)
        if self._mode is Mode.PERMISSIVE:
            yield [bad]

    def _make_metadata_columns(self, rows: "_Rows") -> None:
        """The columns that do not depend on values, but for those that may be long. Raises UnusualLayout, and what
        NO_COLUMN names."""
        is_parsed = self._needs_fields or (not self._by_heads and rows.messages.has_flags)
        fields = rows.messages.fields if is_parsed else None
        rows.null_value = None if fields is None else fields.null_value
        rows.compacted_out = None if fields is None else fields.compacted_out
        for field in self._schema:
            maker = self._makers.get(field.name)
            if maker is not None:
                try:
                    rows.columns[field.name] = maker(rows, field)
                except NO_COLUMN as error:
                    if isinstance(error, BadEntry):
                        raise
                    raise Corruption(f"column {field.name}: {error}") from None

    def _batches(self, group: "_Rows | list[BadEntry]") -> Iterator[tuple[pa.RecordBatch, int]]:
        """Record batches, each with its weight."""
        if isinstance(group, list):
            yield self._rows_of_bad(group), sum(len(bad.stored) for bad in group)
            return
        for first, behind in group.parts(RECORD_BATCH_BYTES_MAX):
            yield self._batch(group.part(first, behind)), min(group.weight, RECORD_BATCH_BYTES_MAX)

    def _batch(self, rows: "_Part") -> pa.RecordBatch:
        compacted_out = rows.cut(rows.whole.compacted_out)
        decoded = (
            Decoded({}) if self._values is None or self._by_heads else self._decoded(rows, self._values, compacted_out)
        )
        columns = []
        for field in self._schema:
            if field.name in decoded.columns:
                columns.append(decoded.columns[field.name])
            elif field.name == CORRUPT:
                columns.append(_corrupt_values(rows, decoded.corrupt))
            elif field.name == REASON:
                columns.append(pa.array([decoded.corrupt.get(row) for row in range(rows.count)], field.type)
                               if decoded.corrupt else pa.nulls(rows.count, field.type))  # fmt: skip
            elif field.name in rows.whole.columns:
                columns.append(rows.cut(rows.whole.columns[field.name]))
            elif field.name in self._repeat_per_message:
                columns.append(
                    rows.spread([self._repeat_per_message[field.name](e.opened) for e in rows.entries], field)
                )
            elif self._values is None:
                columns.append(self._raw_values(field, rows))
            else:
                columns.append(pa.nulls(rows.count, field.type))  # a column that other topics have
        batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        self.corrupt_count += len(decoded.corrupt)
        consumed = None
        if self._acked is not None:
            consumed = rows.cut(self._acked.messages_of(rows.whole.places_of_entries))
        dropped = None
        if decoded.corrupt and self._mode is Mode.DROPMALFORMED:
            dropped = np.zeros(rows.count, bool)
            dropped[list(decoded.corrupt)] = True
        left_out = [mask for mask in (compacted_out, consumed, dropped) if mask is not None]
        return batch.filter(pa.array(~np.logical_or.reduce(left_out))) if left_out else batch

    def _rows_of_bad(self, entries: list[BadEntry]) -> pa.RecordBatch:
        """A row for each, of nulls but for what is known."""
        known: dict[str, Callable[[BadEntry], Any]] = {
            CORRUPT: lambda bad: bytes(bad.stored),
            REASON: lambda bad: bad.reason,
            "__topic": lambda bad: self._topic,
            "__partition": lambda bad: self._partition,
            "__ledgerId": lambda bad: bad.ledger_id,
            "__entryId": lambda bad: bad.entry_id,
            "__batchIndex": lambda bad: -1,
            "__messageId": lambda bad: self._id_of(bad),
        }
        columns = [pa.array([known[field.name](bad) if field.name in known else _of_bad(field.name, bad)
                             for bad in entries], field.type) for field in self._schema]  # fmt: skip
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _decoded(self, rows: "_Part", values: Values, compacted_out: Numbers | None) -> Decoded:
        def fail(row: int, text: str) -> Corruption:
            return self.bad_entry(rows.entry_of(row), text)

        wanted = [field for field in self._schema if field.name in values.names]
        is_tolerant = self._mode is not Mode.FAILFAST
        if is_tolerant and not wanted and not {CORRUPT, REASON} & {*self._schema.names}:
            return Decoded({})
        return decode_all(rows, values, wanted, compacted_out, fail, permissive=is_tolerant)

    def _raw_values(self, field: pa.Field, rows: "_Part") -> pa.Array:
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
                    raise self.bad_entry(rows.entry_of(row), f"its value is not text in UTF-8 ({error})") from None
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
            if self._mode is not Mode.FAILFAST:
                return None
            text = f"its key is not text in UTF-8 ({error}); use keyFormat=binary"
            raise self.bad_entry(rows.entry_of(row), text) from None

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

    def _id_of(self, entry: Opened | BadEntry) -> bytes:
        position = MessageIdData(ledgerId=entry.ledger_id, entryId=entry.entry_id)
        if self._partition >= 0:
            position.partition = self._partition
        return position.SerializeToString()


NO_COLUMN: Final = (Corruption, *NO_VALUE)
"""What is raised for metadata of which a column cannot be made."""


def _count_columns(schema: pa.Schema) -> int:
    """How many columns there are, with those inside of others."""
    count, kinds = 0, [field.type for field in schema]
    while kinds:
        kind = kinds.pop()
        inner = [kind.field(number).type for number in range(kind.num_fields)]
        count += not inner
        kinds += inner
    return count


def _normalised(entry: _Entry) -> _Entry:
    """Raises Corruption."""
    return entry._replace(pieces=(normalised(entry.opened.payload, entry.messages),)) if entry.is_batch else entry


def _as_one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _of_bad(name: str, bad: BadEntry) -> Any:
    """The metadata of an entry whose content cannot be understood; None if its metadata cannot be understood either."""
    metadata = bad.metadata
    if metadata is None:
        return None
    if name == "__publishTime":
        time_ms = signed(metadata.publish_time)
        return time_ms * 1000 if abs(time_ms) <= _TIME_MS_MAX else None
    if name == "__producerName":
        return metadata.producer_name
    return signed(metadata.sequence_id) if name == "__sequenceId" else None


def _joined(entries: Sequence[_Entry]) -> Messages:
    """The messages of entries with few messages each: to walk through one piece is quicker. Raises UnusualLayout."""
    data = b"".join(chain(chain.from_iterable(entry.pieces for entry in entries), (PADDING,)))
    edges: list[Numbers] = []
    at = 0
    for entry in entries:
        end = at + sum(map(len, entry.pieces))
        if entry.is_batch:
            edges.append(borders(data, at, end, entry.messages))
        else:
            edges.append(np.array((end - len(entry.opened.payload), end), np.int32))
        at = end
    return Messages([data], np.concatenate(edges))


def _apart(entries: Sequence[_Entry]) -> Messages:
    """The messages of batches with many messages, which may not have to be joined. Raises UnusualLayout."""
    batches = [entry.pieces[0] for entry in entries]
    edges = [borders(data, 0, len(data), entry.messages) for data, entry in zip(batches, entries, strict=True)]
    starts = accumulate(map(len, batches[:-1]), initial=0)
    in_all = np.concatenate([places + start for places, start in zip(edges, starts, strict=True)])
    return Messages([*batches, PADDING], in_all, runs(zip(batches, edges, strict=True)))


class _Rows:
    """The messages of several entries, and how what an entry has once becomes a column."""

    def __init__(self, entries: Sequence[_Entry], *, by_heads: bool) -> None:
        """*by_heads*: nobody asks for `messages`."""
        self.entries = entries
        self.count = sum(entry.messages for entry in entries)
        self._by_heads = by_heads
        self.weight = sum(entry.weight for entry in entries)
        self.null_value: Numbers | None = None
        self.compacted_out: Numbers | None = None
        self.columns: dict[str, pa.Array] = {}
        self.counts = np.array([entry.messages for entry in entries], np.int64)
        self.firsts = np.cumsum(self.counts) - self.counts

    @cached_property
    def messages(self) -> Messages:
        """Raises UnusualLayout."""
        in_long_batches = len(self.entries) * RUN_MIN <= self.count and all(entry.is_batch for entry in self.entries)
        return _apart(self.entries) if in_long_batches else _joined(self.entries)

    def parts(self, bytes_max: int) -> Iterator[tuple[int, int]]:
        """(first row, row behind the last) of pieces that weigh at most *bytes_max*, or have one row."""
        if self.weight <= bytes_max:
            yield 0, self.count
            return
        sizes = self.repeated([entry.row_bytes for entry in self.entries])
        if not self._by_heads:
            sizes = sizes + self.messages.sizes()
        ends = np.cumsum(sizes)
        first = 0
        while first < self.count:
            before = int(ends[first - 1]) if first else 0
            behind = max(int(np.searchsorted(ends, before + bytes_max, side="right")), first + 1)
            yield first, behind
            first = behind

    def part(self, first: int, behind: int) -> "_Part":
        """The rows from *first* to before *behind*."""
        return _Part(self, first, behind)

    def repeated(self, per_entry: Sequence[int]) -> Numbers:
        """For each row the value of its entry."""
        return np.repeat(np.array(per_entry), self.counts)

    def spread(self, per_entry: Sequence[Any], field: pa.Field) -> pa.Array:
        """As `repeated`, for values that are not numbers."""
        return _repeat_per_message(per_entry, self.counts, field)

    @property
    def places(self) -> Numbers:
        """For each row its place in its entry, from 0 on."""
        return np.arange(self.count) - np.repeat(self.firsts, self.counts)

    @property
    def places_of_entries(self) -> list[tuple[int, int, int]]:
        """(ledger, entry, rows) of each entry. An encrypted entry, whose messages cannot be separated, has no place: it
        is consumed as a whole."""
        return [
            (
                -1 if entry.opened.metadata.encryption_keys else entry.opened.ledger_id,
                entry.opened.entry_id,
                entry.messages,
            )
            for entry in self.entries
        ]

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
        return self.entries[self.number_of(row)].opened

    def number_of(self, row: int) -> int:
        """The number of the entry to which a row belongs."""
        return int(np.searchsorted(self.firsts, row, side="right")) - 1


class _Part:
    """Rows that become one record batch."""

    def __init__(self, whole: _Rows, first: int, behind: int) -> None:
        self.whole = whole
        self.count = behind - first
        self._first, self._behind = first, behind
        self._is_whole = self.count == whole.count
        self.null_value: Numbers | None = self.cut(whole.null_value)
        self.first_place = 0
        if self._is_whole:
            self.entries, self._counts = whole.entries, whole.counts
        else:
            begin, end = whole.number_of(first), whole.number_of(behind - 1) + 1
            self.first_place = first - int(whole.firsts[begin])
            self.entries = whole.entries[begin:end]
            borders = np.concatenate((whole.firsts[begin:end], (behind,)))
            self._counts = np.diff(np.maximum(borders, first))

    @cached_property
    def messages(self) -> Messages:
        return self.whole.messages if self._is_whole else self.whole.messages.part(self._first, self._behind)

    def cut(self, rows: Any) -> Any:
        """The part of *rows*, which are values of all rows, that belongs to these rows; None stays None."""
        return rows if self._is_whole or rows is None else rows[self._first : self._behind]

    def spread(self, per_entry: Sequence[Any], field: pa.Field) -> pa.Array:
        """For each row the value of its entry."""
        return _repeat_per_message(per_entry, self._counts, field)

    @cached_property
    def versions(self) -> list[tuple[int, int | None]]:
        """For each entry the number of its messages, and the version of the schema that it was written with."""
        return [
            (count, version_of(entry.opened.metadata.schema_version))
            for count, entry in zip(self._counts.tolist(), self.entries, strict=True)
        ]

    def key(self, row: int) -> bytes | None:
        """Raises ValueError for base64 that is none."""
        return self.whole.key(self._first + row)

    def entry_of(self, row: int) -> Opened:
        return self.whole.entry_of(self._first + row)


# ------------------------------------------------------------------------------------------ columns


def _repeat_per_message(per_entry: Sequence[Any], counts: Numbers, field: pa.Field) -> pa.Array:
    return pa.array(per_entry, field.type).take(pa.array(np.repeat(np.arange(len(counts)), counts)))


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


def _corrupt_values(rows: _Part, corrupt: Mapping[int, str]) -> pa.BinaryArray:
    """What is stored, where it could not be decoded; null elsewhere."""
    if not corrupt:
        return pa.nulls(rows.count, pa.binary())
    absent = np.ones(rows.count, bool)
    absent[list(corrupt)] = False
    return rows.messages.values(absent)


def _event_times(rows: _Rows, field: pa.Field) -> pa.Array:
    times_ms = rows.messages.fields.event_time_ms()
    return _timestamps(times_ms, field, times_ms == 0)


def _replicated_from(opened: Opened) -> str | None:
    """Raises Corruption."""
    name: str | bytes = opened.metadata.replicated_from
    if isinstance(name, bytes):  # the library gives them where a text is not UTF-8
        raise Corruption("the name of the cluster that it was replicated from is not UTF-8")
    return name or None


def _deliver_times(rows: _Rows, field: pa.Field) -> pa.Array:
    times_ms = rows.repeated([entry.opened.metadata.deliver_at_time for entry in rows.entries])
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
