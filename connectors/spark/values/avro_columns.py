"""Avro records as columns, without a Python object for each value. No IO.

    joined    …│record│…│record│…│record│…        the values of many messages
    cursor      ▲        ▲        ▲                where the next field of each record begins

All records are read together, one field of each in a step of numpy: some twenty times quicker than one record after
the other. It does what most topics need: records of numbers, text, bytes, enums and other records, each maybe null,
written with the very schema that is read. For everything else, bytes that do not fit included, UnusualLayout is
raised, and the records are read one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from connectors.spark.batches.borders import Numbers, UnusualLayout
from connectors.spark.batches.columnar import taken, varints

# Values beyond these do not fit Arrow's microseconds.
_MILLIS_MAX: Final = (2**63 - 1) // 1000

_MILLIS: Final = ("timestamp-millis", "local-timestamp-millis")


class _Cursor:
    """A position in each of many records."""

    def __init__(self, data: bytes, numbers: Numbers, at: Numbers, end: Numbers) -> None:
        self.data = data
        self.bytes = numbers
        self.at = at
        self._end = end

    def numbers(self) -> Numbers:
        """Read the next zig-zag number of each record."""
        value, behind = varints(self.bytes, self.at)
        self._move(behind)
        unsigned = value.view(np.uint64)
        return (unsigned >> np.uint64(1)).view(np.int64) ^ -(value & 1)

    def pass_over(self, lengths: Numbers | int) -> Numbers:
        """Skip *lengths* bytes in each record; returns where they begin."""
        if np.any(lengths < 0) or np.any(lengths > len(self.data)):
            raise UnusualLayout
        start = self.at
        self._move(start + lengths)
        return start

    def fixed(self, layout: str) -> Numbers:
        """The next bytes of all records as numbers of a numpy type."""
        size = np.dtype(layout).itemsize
        start = self.pass_over(size)
        return self.bytes[start[:, None] + np.arange(size)].reshape(-1).view(layout)

    def part(self, chosen: Numbers) -> "_Cursor":
        """The places in some of the records; to be given back with `rejoin`."""
        return _Cursor(self.data, self.bytes, self.at[chosen], self._end[chosen])

    def rejoin(self, chosen: Numbers, part: "_Cursor") -> None:
        self.at = self.at.copy()
        self.at[chosen] = part.at

    def _move(self, behind: Numbers) -> None:
        if (behind > self._end).any():
            raise UnusualLayout
        self.at = behind


class _Reader(Protocol):
    """How a type of Avro is read."""

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        """The next value of each record as *arrow_type*; with None the values are only skipped."""
        ...


class _Number:
    """int and long, dates and times."""

    def __init__(self, is_millis: bool) -> None:
        self._is_millis = is_millis

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        values = cursor.numbers()
        if arrow_type is None:
            return None
        if self._is_millis:
            if ((values > _MILLIS_MAX) | (values < -_MILLIS_MAX)).any():  # the lowest number has no absolute value
                raise UnusualLayout
            values = values * 1000
        if arrow_type.bit_width == 32:
            narrow = values.astype(np.int32)
            if (narrow != values).any():
                raise UnusualLayout
            values = narrow
        return pa.array(values).cast(arrow_type)


class _Fixed:
    """boolean, float and double."""

    def __init__(self, layout: str) -> None:
        self._layout = layout

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        values = cursor.fixed(self._layout)
        return None if arrow_type is None else pa.array(values != 0 if self._layout == "u1" else values)


class _Bytes:
    """bytes and string, and with *size* fixed."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        lengths = cursor.numbers() if self._size is None else np.full(len(cursor.at), self._size)
        starts = cursor.pass_over(lengths)
        if arrow_type is None:
            return None
        return taken(cursor.data, starts, lengths).cast(arrow_type)


class _Enum:
    def __init__(self, symbols: Sequence[str]) -> None:
        self._symbols = symbols

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        values = cursor.numbers()
        if (values < 0).any() or (values >= len(self._symbols)).any():
            raise UnusualLayout
        return None if arrow_type is None else pa.array(self._symbols, arrow_type).take(pa.array(values))


class _Union:
    """null or one other type, in either order; or that other type alone."""

    def __init__(self, inner: _Reader, branch: int, branches: int) -> None:
        self._inner = inner
        self._value_branch = branch
        self._branch_count = branches

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        branch = cursor.numbers()
        if (branch < 0).any() or (branch >= self._branch_count).any():
            raise UnusualLayout
        present = branch == self._value_branch
        if present.all():
            return self._inner.read(cursor, arrow_type)
        part = cursor.part(present)
        column = self._inner.read(part, arrow_type)
        cursor.rejoin(present, part)
        return None if column is None else column.take(pa.array(np.cumsum(present) - 1, mask=~present))


class _Record:
    """A record: its fields, one behind the other."""

    def __init__(self, fields: Sequence[tuple[str, _Reader]]) -> None:
        self._fields = fields

    def read(self, cursor: _Cursor, arrow_type: pa.DataType | None) -> pa.Array | None:
        if arrow_type is None:
            self.columns(cursor, {})  # moves the cursor past the fields
            return None
        types = [arrow_type.field(number) for number in range(arrow_type.num_fields)]
        columns = self.columns(cursor, {field.name: field.type for field in types})
        return pa.StructArray.from_arrays([columns[field.name] for field in types], fields=types)

    def columns(self, cursor: _Cursor, arrow_types: Mapping[str, pa.DataType]) -> dict[str, pa.Array]:
        """The fields that *arrow_types* names."""
        columns = {}
        for name, inner in self._fields:
            column = inner.read(cursor, arrow_types.get(name))
            if column is not None:
                columns[name] = column
        return columns


class AvroColumns:
    """Reads records of one schema."""

    def __init__(self, definition: dict[str, Any]) -> None:
        """The names in *definition* are full ones (`avro_names`). Raises UnusualLayout for a schema with other types
        than the ones above."""
        self._named: dict[str, _Reader] = {}
        self._record = self._record_of(definition)

    def read(
        self, data: bytes, starts: Numbers, ends: Numbers, arrow_types: Mapping[str, pa.DataType]
    ) -> dict[str, pa.Array]:
        """The fields named in *arrow_types* of the records between *starts* and *ends*. *data* ends with PADDING.

        Raises UnusualLayout, ArrowInvalid (text that is not UTF-8).
        """
        cursor = _Cursor(data, np.frombuffer(data, np.uint8), starts, ends)
        return self._record.columns(cursor, arrow_types)

    def _record_of(self, schema: dict[str, Any]) -> _Record:
        return _Record([(field["name"], self._reader_of(field["type"])) for field in schema["fields"]])

    def _reader_of(self, schema: Any) -> _Reader:
        """How values of *schema* are read. That of a named type is kept: later fields refer to it by its name."""
        if isinstance(schema, list):
            others = [number for number, branch in enumerate(schema) if branch != "null"]
            if len(others) != 1:
                raise UnusualLayout
            return _Union(self._reader_of(schema[others[0]]), others[0], len(schema))
        # The type of a field may stand in an object of its own: {"type": {"type": "string"}}.
        name, logical = (schema, None) if isinstance(schema, str) else (schema["type"], schema.get("logicalType"))
        if not isinstance(name, str):
            return self._reader_of(name)
        if logical == "decimal":
            raise UnusualLayout
        reader: _Reader
        match name:
            case "int" | "long":
                return _Number(logical in _MILLIS)
            case "boolean" | "float" | "double":
                return _Fixed({"boolean": "u1", "float": "<f4", "double": "<f8"}[name])
            case "bytes" | "string":
                return _Bytes()
            case "fixed":
                reader = _Bytes(schema["size"])
            case "enum":
                reader = _Enum(schema["symbols"])
            case "record":
                reader = self._record_of(schema)
            case _:
                known = self._named.get(name)
                if known is None or not isinstance(schema, str):
                    raise UnusualLayout  # arrays and maps among them
                return known
        self._named[schema["name"]] = reader
        return reader
