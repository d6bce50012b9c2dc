"""Values of the messages of a record batch, decoded into columns. No IO.

All values at once where that is possible; else one after the other, which finds the value that is wrong, if there is
one, with its entry.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from connectors.spark.batches.borders import Numbers, UnusualLayout
from connectors.spark.batches.columnar import Messages
from connectors.spark.values.records import Decode, Values
from magnetar_core.runtime.types import MIB, Corruption

CORRUPT: Final = "__corrupt"
"""The column of values and entries that could not be read, as they are stored; only with mode=PERMISSIVE."""

REASON: Final = "__corruptReason"
"""The column of what was wrong with them."""

# Bytes of values that are decoded to Python objects at a time, before these are made to columns.
DECODED_BYTES_MAX: Final = MIB

_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)


_REASON_CHARACTERS: Final = 500


def describe(error: object) -> str:
    """What is wrong, shortened, and without bytes that are not text: libraries' errors may hold the whole value."""
    text = str(error)
    if not isinstance(error, str | Corruption):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    if len(text) > _REASON_CHARACTERS:
        text = f"{text[:_REASON_CHARACTERS]}…"
    return text.encode(errors="backslashreplace").decode()


class Source(Protocol):
    """The messages of a record batch, as far as decoding needs them."""

    null_value: Numbers | None
    count: int
    first_place: int
    """The place of the first message in its entry."""

    @property
    def messages(self) -> Messages: ...

    @property
    def versions(self) -> Sequence[tuple[int, int | None]]:
        """For each entry the number of its messages, and the version of the schema that it was written with."""
        ...

    def key(self, row: int) -> bytes | None:
        """Raises ValueError for base64 that is none."""
        ...


class Decoded(NamedTuple):
    """Columns, and where a value could not be decoded: the columns are null there."""

    columns: dict[str, pa.Array]
    corrupt: Mapping[int, str] = MappingProxyType({})
    """Row → what is wrong."""


Fail = Callable[[int, str], Exception]
"""Makes the error of a row and what is wrong there: it knows the row's entry."""

NO_VALUE: Final = (ValueError, TypeError, OverflowError, pa.ArrowCapacityError, pa.ArrowNotImplementedError)
"""What Arrow raises for a value that a column does not take. Half a surrogate in a text is a ValueError."""


def decode_all(
    source: Source,
    values: Values,
    wanted: Sequence[pa.Field],
    compacted_out: Numbers | None,
    fail: Fail,
    *,
    permissive: bool,
) -> Decoded:
    """The *wanted* columns, decoded with the schema that each value was written with.

    A value that cannot be decoded raises what *fail* makes; if *permissive*, its columns are null.
    """
    absent = np.zeros(source.count, bool)
    # A null value is not all of a message whose key stands apart.
    for mask in (compacted_out, None if values.has_keys_apart else source.null_value):
        if mask is not None:
            absent |= mask
    columns = _at_once(source, values, wanted, absent)
    if columns is not None:
        return Decoded(columns)
    return _OneByOne(source, values, wanted, absent, fail, permissive).run()


def _at_once(source: Source, values: Values, wanted: Sequence[pa.Field], absent: Numbers) -> dict[str, pa.Array] | None:
    versions = {version for _, version in source.versions}
    if len(versions) != 1:
        return None
    try:
        columns = values.columns(versions.pop(), source.messages, np.flatnonzero(~absent), wanted)
    except (UnusualLayout, pa.ArrowInvalid):
        return None  # decode one by one: that finds the value that is wrong, if there is one
    if columns is None or not absent.any():
        return columns
    places = pa.array(np.cumsum(~absent) - 1, mask=absent)
    return {name: column.take(places) for name, column in columns.items()}


class _OneByOne:
    def __init__(
        self,
        source: Source,
        values: Values,
        wanted: Sequence[pa.Field],
        absent: Numbers,
        fail: Fail,
        permissive: bool,
    ) -> None:
        self._source = source
        self._values = values
        self._wanted = wanted
        self._absent = absent
        self._fail = fail
        self._permissive = permissive
        self._lists: dict[str, list[Any]] = {field.name: [] for field in wanted}
        self._first = 0
        """The row whose value is the first of the lists."""
        self._bytes = 0
        """Bytes of the values in the lists."""
        self._made: list[dict[str, pa.Array]] = []
        self._corrupt: dict[int, str] = {}

    def run(self) -> Decoded:
        value = _inline_of_row(self._source) if self._values.has_keys_apart else self._source.messages.value
        begin = 0
        for count, version in self._source.versions if self._wanted or self._permissive else ():
            self._entry(range(begin, begin + count), version, value)
            begin += count
        self._finish_columns()
        pieces = {field.name: [columns[field.name] for columns in self._made] for field in self._wanted}
        columns = {name: arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays) for name, arrays in pieces.items()}
        return Decoded(columns, self._corrupt)

    def _entry(self, rows: range, version: int | None, value: Callable[[int], bytes]) -> None:
        """Decode the values of one entry, which all have one schema."""
        decode: Decode | None = None
        problem = ""
        try:
            decode = self._values.decoder(version)
        except Corruption as error:
            if not self._permissive:
                raise self._fail(rows[0], str(error)) from None
            problem = str(error)
        lists = list(self._lists.items())
        place = 0 if rows[0] else self._source.first_place
        for row in rows:
            record: dict[str, Any] = {}
            if not self._absent[row]:
                if decode is None:
                    self._corrupt[row] = problem
                else:
                    record = self._decoded(row, row - rows[0] + place, decode, value, version)
            for name, column in lists:
                column.append(record.get(name))
            if self._bytes >= DECODED_BYTES_MAX:
                self._finish_columns()
                lists = list(self._lists.items())

    def _decoded(
        self, row: int, number: int, decode: Decode, value: Callable[[int], bytes], version: int | None
    ) -> dict[str, Any]:
        """The decoded value of one message; empty if it cannot be decoded."""
        try:
            data = value(row)
            self._bytes += len(data)
            return decode(data)
        except MemoryError:
            raise  # says nothing about the value
        except Exception as error:  # whatever a library raises for bytes that it does not understand
            text = describe(error)
            if not isinstance(error, Corruption):
                text = f"message {number} is not what its schema says: {text}"
                if version is None:
                    text += "; it was sent without a schema"
            if not self._permissive:
                raise self._fail(row, text) from None
            self._corrupt[row] = text
            return {}

    def _finish_columns(self) -> None:
        """Columns of the lists, which begin anew."""
        if self._permissive:
            misfits = {
                row: f"{field.name} is {self._lists[field.name][row]!r:.100}, which is no {field.type}"
                for field in self._wanted
                for row in _misfits(field, self._lists[field.name])
            }
            for row, text in misfits.items():
                self._corrupt[self._first + row] = describe(text)
                for values in self._lists.values():
                    values[row] = None
        self._made.append({field.name: self._checked(field, self._lists[field.name]) for field in self._wanted})
        self._first += len(next(iter(self._lists.values()), ()))
        self._lists = {name: [] for name in self._lists}
        self._bytes = 0

    def _checked(self, field: pa.Field, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except NO_VALUE as error:
            row = next(_misfits(field, values), None)
            if row is None:
                raise self._fail(self._first, f"column {field.name}: {describe(error)}") from None
            text = f"{field.name} is {values[row]!r:.100}, which is no {field.type}"
            raise self._fail(self._first + row, describe(text)) from None


def _misfits(field: pa.Field, values: list[Any]) -> Iterator[int]:
    """The rows whose values the column does not take."""
    try:
        pa.array(values, field.type)
    except NO_VALUE:
        for row, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except NO_VALUE:
                yield row


def _inline_of_row(source: Source) -> Callable[[int], bytes]:
    """Row → key and value in one payload, as Pulsar's INLINE encoding has them: `length key length value`, -1 for null.
    Messages with SEPARATED ones then go through the same decoders."""
    nulls = source.null_value

    def part(data: bytes | None) -> bytes:
        return _NULL if data is None else _LENGTH.pack(len(data)) + data

    def joined(row: int) -> bytes:
        is_null = nulls is not None and bool(nulls[row])
        return part(source.key(row)) + part(None if is_null else source.messages.value(row))

    return joined
