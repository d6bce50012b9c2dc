"""The messages of batch entries as columns, without a Python object for each message. No IO.

Where they start and end is known (`connectors.spark.batches.borders`). Values of one size are copied straight out of
the batches (`connectors.spark.batches.strided`). For others Arrow makes the column: offsets over the joined batches,
and one `take` of every second element. The metadata are parsed for all messages together, one field of each message
in a step of numpy.

Protobuf would do the same message by message, several times slower. Metadata that are not written as the known clients
write them (known fields only, in the order of their numbers) raise UnusualLayout. `normalised` then reads them with
protobuf and writes them anew, or reports what is wrong with them.
"""

import struct
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from connectors.spark.batches import strided
from connectors.spark.batches.borders import PARTITION_KEY, PROPERTIES, Numbers, UnusualLayout
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages_pb2 import SingleMessageMetadata

# Further fields of SingleMessageMetadata, and those of KeyValue.
COMPACTED_OUT: Final = 4
EVENT_TIME: Final = 5
KEY_IS_BASE64: Final = 6
ORDERING_KEY: Final = 7
SEQUENCE_ID: Final = 8
NULL_VALUE: Final = 9
NULL_KEY: Final = 10
_KEY: Final = 1
_VALUE: Final = 2

# A tag is field << 3 | wire type; 0 is a number, 2 is bytes after their length.
_NUMBER: Final = 0
_BYTES: Final = 2

# The two flags that say that a message was removed or has no value, as the metadata encode them when they are set.
_FLAGS: Final = tuple(bytes((field << 3 | _NUMBER, 1)) for field in (COMPACTED_OUT, NULL_VALUE))

# Zeros behind the joined buffer, so that reading a varint that is cut off at the end stays inside the buffer.
PADDING: Final = bytes(16)

_SIZE: Final = struct.Struct(">I")

FIELDS_MAX: Final = 10_000
"""Fields of the metadata of one message, so of its properties: each is a step for all messages of a record batch."""


def normalised(payload: Buffer, count: int) -> bytes:
    """The same messages in the layout that `borders` and `Messages` know. Raises Corruption."""
    data = bytes(payload)
    content = bytearray()  # pieces in a list would take ten times the bytes of small messages
    at = 0
    for number in range(count):
        try:
            start = at + 4 + _SIZE.unpack_from(data, at)[0]
            single = SingleMessageMetadata.FromString(data[at + 4 : start])
        except (struct.error, DecodeError) as error:
            raise Corruption(f"message {number} of its batch of {count} cannot be decoded: {error}") from None
        if not single.IsInitialized():
            raise Corruption(f"message {number} of its batch of {count} lacks a required field")
        if len(single.properties) > FIELDS_MAX:
            raise Corruption(
                f"message {number} of its batch of {count} has {len(single.properties)} properties, and {FIELDS_MAX} "
                "is the limit"
            )
        at = start + single.payload_size
        if single.payload_size < 0 or at > len(data):
            raise Corruption(f"message {number} of its batch of {count} leaves the payload of {len(data)} bytes")
        for piece in framed(single, data[start:at]):
            content += piece
    return bytes(content)


def framed(single: SingleMessageMetadata, payload: Buffer) -> tuple[bytes, bytes, Buffer]:
    """A message as it stands in a batch. Unknown fields are dropped."""
    single.DiscardUnknownFields()
    metadata = single.SerializeToString()
    return _SIZE.pack(len(metadata)), metadata, payload


# --------------------------------------------------------------------------------------- parsing


def varints(data: Numbers, at: Numbers) -> tuple[Numbers, Numbers]:
    """The numbers that stand at the positions *at*, as signed 64 bits, and the positions behind them."""
    byte = data[at]
    value = (byte & 0x7F).astype(np.uint64)
    behind = at + 1
    more = np.flatnonzero(byte & 0x80)
    shift = 7
    while more.size:
        if shift > 63:
            raise UnusualLayout
        byte = data[behind[more]]
        value[more] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        behind[more] += 1
        more = more[(byte & 0x80).astype(bool)]
        shift += 7
    return value.view(np.int64), behind


class _Occurrence(NamedTuple):
    """One field in some of the messages: *rows* that have it next, with its number, or its bytes' place."""

    field: int
    rows: Numbers
    number: Numbers | None
    start: Numbers
    length: Numbers


def _scan(data: Numbers, starts: Numbers, ends: Numbers) -> Iterator[_Occurrence]:
    """The fields of many protobuf messages, a step for the first field of each, one for the second, and so on.

    Raises UnusualLayout.
    """
    rows = np.flatnonzero(starts < ends)
    at, end = starts[rows], ends[rows]
    # A message has eight fields beside its properties, and a property two.
    for _ in range(FIELDS_MAX + 10):
        if not rows.size:
            return
        tags = data[at]
        behind = np.empty_like(at)
        for tag in (tags[:1] if (tags == tags[0]).all() else np.unique(tags)).tolist():
            chosen = tags == tag
            value, after = varints(data, at[chosen] + 1)
            wire_type = tag & 7
            if tag >= 0x80 or tag < 8 or wire_type not in (_NUMBER, _BYTES):
                raise UnusualLayout
            if wire_type == _NUMBER:
                yield _Occurrence(tag >> 3, rows[chosen], value, after, value)
            else:
                if (value < 0).any() or (value > len(data)).any():
                    raise UnusualLayout
                yield _Occurrence(tag >> 3, rows[chosen], None, after, value)
                after = after + value
            behind[chosen] = after
        if (behind > end).any():
            raise UnusualLayout
        going_on = behind < end
        if going_on.all():
            at = behind
        else:
            rows, at, end = rows[going_on], behind[going_on], end[going_on]
    raise UnusualLayout


def taken(data: bytes, starts: Numbers, lengths: Numbers, absent: Numbers | None = None) -> pa.BinaryArray:
    """The pieces of *data* that begin at *starts* (ascending, without overlap); null where *absent*."""
    count = len(starts)
    offsets = np.empty(2 * count + 1, np.int32)
    offsets[0] = 0
    offsets[1::2] = starts
    offsets[2::2] = starts + lengths
    return _every_second(data, offsets, absent)


def _every_second(data: bytes, offsets: Numbers, absent: Numbers | None) -> pa.BinaryArray:
    count = len(offsets) // 2
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    wanted = np.arange(1, 2 * count, 2, dtype=np.int32)
    return pieces.take(pa.array(wanted) if absent is None else pa.array(wanted, mask=absent))


# -------------------------------------------------------------------------------------- messages


class Messages:
    """All messages of some batches, as columns. Its methods raise UnusualLayout."""

    def __init__(
        self, pieces: Sequence[Buffer], borders: Numbers, runs: Sequence[strided.Run] = (), *, begin: int = 0
    ) -> None:
        """*borders*: see `connectors.spark.batches.borders`, in the *pieces* when they are joined; the last piece is
        PADDING. *runs*: all messages, if they are alike in long runs. *begin*: where the first message stands."""
        assert sum(map(len, pieces)) < 1 << 31, "Arrow's binary columns have 32 bit offsets"
        self.count = len(borders) // 2
        self._pieces = pieces
        self._runs = runs
        # For each message where its metadata begin (with their size), and where its payload does; then the end of all.
        self._offsets = np.zeros(len(borders) + 1, np.int32)
        self._offsets[0] = begin
        self._offsets[1:] = borders
        self._fields: _Fields | None = None

    def part(self, first: int, behind: int) -> "Messages":
        """The messages from *first* to before *behind*."""
        offsets = self._offsets[2 * first : 2 * behind + 1]
        return Messages([self.data], offsets[1:], begin=int(offsets[0]))

    def sizes(self) -> Numbers:
        """What each message has in its batch, with its metadata."""
        return np.diff(self._offsets[::2].astype(np.int64))

    @cached_property
    def data(self) -> bytes:
        """The joined batches; they end with PADDING."""
        return b"".join(self._pieces)

    @property
    def has_flags(self) -> bool:
        """Whether some message may be compacted out or null. False is certain; True may be wrong.

        The bytes of a set flag are searched for in all metadata at once, which is far quicker than parsing them.
        """
        if self._runs:
            return strided.may_hold(self._runs, _FLAGS)
        pieces = pa.Array.from_buffers(
            pa.binary(), 2 * self.count, [None, pa.py_buffer(self._offsets), pa.py_buffer(self.data)]
        )
        of_metadata = np.arange(0, 2 * self.count, 2, dtype=np.int32)  # each of them is followed by its payload
        metadata = pieces.take(pa.array(of_metadata)).buffers()[2]
        searched = b"" if metadata is None else metadata.to_pybytes()
        return any(flag in searched for flag in _FLAGS)

    @property
    def fields(self) -> "_Fields":
        """What the metadata hold; parsed at the first use."""
        if self._fields is None and self._runs:
            self._fields = _Fields(*strided.joined_metadata(self._runs, PADDING))
        elif self._fields is None:
            starts = self._offsets[:-1:2].astype(np.int64) + _SIZE.size
            self._fields = _Fields(self.data, starts, self._offsets[1::2].astype(np.int64))
        return self._fields

    def values(self, absent: Numbers | None) -> pa.BinaryArray:
        """The payloads; null where *absent*."""
        if self._runs and absent is None:
            return strided.values(self._runs)
        return _every_second(self.data, self._offsets, absent)

    def places(self) -> tuple[Numbers, Numbers]:
        """Where the payloads start and end in `data`."""
        return self._offsets[1::2].astype(np.int64), self._offsets[2::2].astype(np.int64)

    def value(self, row: int) -> bytes:
        """The payload of one message."""
        return self.data[self._offsets[2 * row + 1] : self._offsets[2 * row + 2]]


class _Fields:
    """The metadata of all messages."""

    def __init__(self, data: bytes, starts: Numbers, ends: Numbers) -> None:
        count = len(starts)
        self._data = data
        self._bytes = np.frombuffer(data, np.uint8)
        self._numbers: dict[int, Numbers] = {}
        self._has_sequence_id = np.zeros(count, bool)
        self._starts = starts
        self._keys: dict[int, tuple[Numbers, Numbers, Numbers]] = {}
        """By field: which messages have such a key, where it starts, its length."""
        self._properties: list[_Occurrence] = []
        self._count = count
        for part in _scan(self._bytes, starts, ends):
            self._add_occurrence(part)

    def _add_occurrence(self, part: _Occurrence) -> None:
        if part.number is not None:
            column = self._numbers.get(part.field)
            if column is None:
                column = self._numbers[part.field] = np.zeros(self._count, np.int64)
            column[part.rows] = part.number
            if part.field == SEQUENCE_ID:
                self._has_sequence_id[part.rows] = True
        elif part.field in (PARTITION_KEY, ORDERING_KEY):
            if part.field not in self._keys:
                self._keys[part.field] = (
                    np.zeros(self._count, bool), self._starts.copy(), np.zeros(self._count, np.int64),
                )  # fmt: skip
            is_there, start, length = self._keys[part.field]
            is_there[part.rows] = True
            start[part.rows] = part.start
            length[part.rows] = part.length
        elif part.field == PROPERTIES:
            self._properties.append(part)

    def _flag(self, field: int) -> Numbers | None:
        """Where a flag is set; None if nowhere."""
        column = self._numbers.get(field)
        return None if column is None or not column.any() else column.astype(bool)

    @property
    def compacted_out(self) -> Numbers | None:
        return self._flag(COMPACTED_OUT)

    @property
    def null_value(self) -> Numbers | None:
        return self._flag(NULL_VALUE)

    @property
    def key_is_base64(self) -> Numbers | None:
        return self._flag(KEY_IS_BASE64)

    def event_time_ms(self) -> Numbers:
        """The number of a field; 0 where it is not set."""
        return self._numbers.get(EVENT_TIME, np.zeros(self._count, np.int64))

    def sequence_id(self, default: Numbers) -> Numbers:
        """The sequence ids; *default* where none is set."""
        numbers = self._numbers.get(SEQUENCE_ID)
        return default if numbers is None else np.where(self._has_sequence_id, numbers, default)

    def keys(self) -> pa.BinaryArray:
        """The keys as they are stored, base64 or not; null without one."""
        return self._column_of(PARTITION_KEY, self._flag(NULL_KEY))

    def ordering_keys(self) -> pa.BinaryArray:
        """The ordering keys; null without one."""
        return self._column_of(ORDERING_KEY, None)

    def _column_of(self, field: int, nulls: Numbers | None) -> pa.BinaryArray:
        if field not in self._keys:
            return pa.nulls(self._count, pa.binary())
        is_there, start, length = self._keys[field]
        absent = ~is_there if nulls is None else ~is_there | nulls
        return taken(self._data, start, length, absent if absent.any() else None)

    def properties(self, kind: pa.DataType) -> pa.MapArray:
        """A map for each message, of type *kind*. Of equal keys the last counts. Raises ArrowInvalid (not UTF-8)."""
        if not self._properties:
            offsets = np.zeros(self._count + 1, np.int32)
            nothing = pa.array([], pa.string())
            return pa.MapArray.from_arrays(pa.array(offsets), nothing, nothing, type=kind)
        rows = np.concatenate([piece.rows for piece in self._properties])
        order = np.argsort(rows, kind="stable")  # by message; inside a message the order stays
        rows = rows[order]
        starts = np.concatenate([piece.start for piece in self._properties])[order]
        lengths = np.concatenate([piece.length for piece in self._properties])[order]
        keys, items = (piece.cast(pa.string()) for piece in self._keys_and_values(starts, starts + lengths))
        if _has_twins(rows, keys):
            pairs: list[dict[str, str]] = [{} for _ in range(self._count)]
            for row, key, item in zip(rows.tolist(), keys.to_pylist(), items.to_pylist(), strict=True):
                pairs[row][key] = item
            return pa.array([list(pair.items()) for pair in pairs], kind)
        offsets = np.searchsorted(rows, np.arange(self._count + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=kind)

    def _keys_and_values(self, starts: Numbers, ends: Numbers) -> tuple[pa.BinaryArray, pa.BinaryArray]:
        """Keys and values of KeyValue messages."""
        places = {field: (starts.copy(), np.full(len(starts), -1, np.int64)) for field in (_KEY, _VALUE)}
        for part in _scan(self._bytes, starts, ends):
            if part.number is not None or part.field not in places:
                raise UnusualLayout
            start, length = places[part.field]
            start[part.rows] = part.start
            length[part.rows] = part.length
        if any((length < 0).any() for _, length in places.values()):
            raise UnusualLayout  # both are required
        keys, values = (taken(self._data, *places[field]) for field in (_KEY, _VALUE))
        return keys, values


def _has_twins(rows: Numbers, keys: pa.StringArray) -> bool:
    """Whether a message has a key twice."""
    if len(rows) < 2 or (rows[1:] != rows[:-1]).all():
        return False
    codes = keys.dictionary_encode().indices.to_numpy()
    return len(np.unique(rows * (int(codes.max()) + 1) + codes)) < len(rows)
