"""Values of the messages of a record batch, decoded into columns. No IO.

All values at once where that is possible; else one after the other, which finds the value that is wrong, if there is
one, with its entry.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from connectors.spark.borders import Numbers, UnusualLayout
from connectors.spark.columnar import Messages
from connectors.spark.values import Decode, Values
from magnetar_core.runtime.types import Corruption

CORRUPT: Final = "__corrupt"
"""The column of values that could not be decoded, as they are stored; only with mode=PERMISSIVE."""

_LENGTH: Final = struct.Struct(">i")
_NULL: Final = _LENGTH.pack(-1)


class Source(Protocol):
    """The messages of a record batch, as far as decoding needs them."""

    messages: Messages
    null_value: Numbers | None
    count: int

    @property
    def versions(self) -> Sequence[tuple[int, int | None]]:
        """For each entry the number of its messages, and the version of the schema that it was written with."""
        ...

    def key(self, row: int) -> bytes | None:
        """Raises ValueError for base64 that is none."""
        ...


class Decoded(NamedTuple):
    """Columns, and where (if anywhere) a value could not be decoded: the columns are null there."""

    columns: dict[str, pa.Array]
    corrupt: Numbers | None = None


Fail = Callable[[int, str], Exception]
"""Makes the error of a row and what is wrong there: it knows the row's entry."""

NO_VALUE: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError)


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
    found = _at_once(source, values, wanted, absent)
    if found is not None:
        return Decoded(found)
    return _OneByOne(source, values, wanted, absent, fail, permissive).run()


def _at_once(source: Source, values: Values, wanted: Sequence[pa.Field], absent: Numbers) -> dict[str, pa.Array] | None:
    versions = {version for _, version in source.versions}
    if len(versions) != 1:
        return None
    try:
        found = values.columns(versions.pop(), source.messages, np.flatnonzero(~absent), wanted)
    except (UnusualLayout, pa.ArrowInvalid):
        return None  # decode one by one: that finds the value that is wrong, if there is one
    if found is None or not absent.any():
        return found
    places = pa.array(np.cumsum(~absent) - 1, mask=absent)
    return {name: column.take(places) for name, column in found.items()}


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
        self._left_out = set(np.flatnonzero(absent).tolist())
        self._fail = fail
        self._permissive = permissive
        self._lists: dict[str, list[Any]] = {field.name: [None] * source.count for field in wanted}
        self._corrupt: set[int] = set()

    def run(self) -> Decoded:
        value = _joined(self._source) if self._values.has_keys_apart else self._source.messages.value
        begin = 0
        for count, version in self._source.versions if self._wanted or self._permissive else ():
            self._entry(range(begin, begin + count), version, value)
            begin += count
        if self._permissive:
            for field in self._wanted:
                self._corrupt.update(_misfits(field, self._lists[field.name]))
            for values in self._lists.values():
                for row in self._corrupt:
                    values[row] = None
        columns = {field.name: self._checked(field, self._lists[field.name]) for field in self._wanted}
        if not self._corrupt:
            return Decoded(columns)
        corrupt = np.zeros(self._source.count, bool)
        corrupt[list(self._corrupt)] = True
        return Decoded(columns, corrupt)

    def _entry(self, rows: range, version: int | None, value: Callable[[int], bytes]) -> None:
        """Decode the values of one entry, which all have one schema."""
        todo = [row for row in rows if row not in self._left_out]
        try:
            decode: Decode = self._values.decoder(version)
        except Corruption as error:
            if not self._permissive:
                raise self._fail(rows[0], str(error)) from None
            self._corrupt.update(todo)
            return
        lists = list(self._lists.items())
        for row in todo:
            try:
                record = decode(value(row))
            except Exception as error:  # whatever a library raises for bytes that it does not understand
                if self._permissive:
                    self._corrupt.add(row)
                    continue
                if isinstance(error, Corruption):
                    raise self._fail(row, str(error)) from None
                text = f"message {row - rows[0]} is not what its schema says: {error!r}"
                raise self._fail(row, text) from error
            for name, column in lists:
                column[row] = record.get(name)

    def _checked(self, field: pa.Field, values: list[Any]) -> pa.Array:
        try:
            return pa.array(values, field.type)
        except NO_VALUE as error:
            row = next(_misfits(field, values), None)
            if row is None:
                raise self._fail(0, f"column {field.name}: {error}") from None
            text = f"{field.name} is {values[row]!r:.100}, which is no {field.type}"
            raise self._fail(row, text) from None


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


def _joined(source: Source) -> Callable[[int], bytes]:
    """Key and value as they stand in one payload where they are not apart: `length key length value`, -1 for null."""
    nulls = source.null_value

    def part(data: bytes | None) -> bytes:
        return _NULL if data is None else _LENGTH.pack(len(data)) + data

    def joined(row: int) -> bytes:
        is_null = nulls is not None and bool(nulls[row])
        return part(source.key(row)) + part(None if is_null else source.messages.value(row))

    return joined
