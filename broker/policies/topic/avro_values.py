"""Values in Avro that anybody may have written, read as the fields that are known here. No IO.

Rules:

1. A value and the schema with which it was written come from a client. What they ask for is counted before it is done:
   a value of *n* bytes has at most `ITEMS_FREE + ITEMS_PER_BYTE * n` items, and never more than `ITEMS_MAX`; items that
   take no bytes count like others.
2. What this broker does not know is passed over, and what the writer did not have gets its default (Avro's resolution).
"""

import struct
from collections.abc import Iterator
from typing import Any, Final

from magnetar_core.runtime.data.varint import read_varint
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.schemas.avro import RECORDS, AvroType, promotes

# Numbers, texts, records, lists and elements of lists in one value: some 2 µs each. The policies of a topic have 100;
# a rate of its own for a subscription is six more.
ITEMS_MAX: Final = 200_000

# A field that is not set is one item in one byte; a record around others is one without any.
ITEMS_PER_BYTE: Final = 2
ITEMS_FREE: Final = 1_000

# The policies of a topic nest six levels.
DEPTH_MAX: Final = 40

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def read_value(data: Buffer, writer: AvroType, reader: AvroType) -> Any:
    """*data*, written with *writer*, as *reader* has it. Raises Corruption."""
    reading = _Reading(data)
    try:
        return reading.value(writer, reader, 0)
    except (IndexError, struct.error):
        raise Corruption(f"a value of {len(data)} bytes ends too early") from None
    except UnicodeDecodeError:
        raise Corruption("a text is not UTF-8") from None


class _Reading:
    """Where in a value its reading stands, and how many more items it may have."""

    __slots__ = ("_at", "_data", "_left")

    def __init__(self, data: Buffer) -> None:
        self._data = bytes(data)
        self._at = 0
        self._left = min(ITEMS_FREE + ITEMS_PER_BYTE * len(self._data), ITEMS_MAX)

    def value(self, writer: AvroType, reader: AvroType | None, depth: int) -> Any:
        """The next value; with *reader* None it is passed over, and what is returned means nothing."""
        if writer.kind == "union":
            writer = _branch(writer, self._long())
        if reader is not None:
            reader = _taking(reader, writer)
        if depth > DEPTH_MAX:
            raise Corruption(f"a value nests deeper than {DEPTH_MAX} levels")
        self._take(1)
        kind = writer.kind
        if kind in RECORDS:
            return self._record(writer, reader, depth)
        if kind == "array":
            reader_part = None if reader is None else reader.parts[0]
            return [self.value(writer.parts[0], reader_part, depth + 1) for _ in self._elements()]
        if kind == "map":
            reader_part = None if reader is None else reader.parts[0]
            return {self._text(): self.value(writer.parts[0], reader_part, depth + 1) for _ in self._elements()}
        if kind == "enum":
            return self._symbol(writer, reader)
        return self._plain(writer, reader)

    def _take(self, items: int) -> None:
        """Count *items* before they are read (rule 1)."""
        self._left -= items
        if self._left < 0:
            raise Corruption(f"a value of {len(self._data)} bytes has too many items")

    def _record(self, writer: AvroType, reader: AvroType | None, depth: int) -> dict[str, Any]:
        """A record: fields that only the writer has are read and dropped, and those that only the reader has get their
        defaults."""
        reader_fields = {} if reader is None else reader.fields
        record = {}
        for field in writer.fields.values():
            reader_field = reader_fields.get(field.name)
            value = self.value(field.type, None if reader_field is None else reader_field.type, depth + 1)
            if reader_field is not None:
                record[field.name] = value
        for reader_field in reader_fields.values():
            if reader_field.name not in record:
                if not reader_field.has_default:
                    raise Corruption(f"{reader_field.name} is missing, and has no default")
                record[reader_field.name] = reader_field.default
        return record

    def _elements(self) -> Iterator[None]:
        """One for each element of an array or a map, which stand in blocks."""
        while count := self._long():
            if count < 0:
                self._long()  # how many bytes the block takes
            if abs(count) > self._left:
                self._take(abs(count))
            for _ in range(abs(count)):
                yield

    def _symbol(self, writer: AvroType, reader: AvroType | None) -> str:
        """The symbol of an enum; the reader's default where the reader does not know it."""
        index = self._long()
        if not 0 <= index < len(writer.symbols):
            raise Corruption(f"an enum of {len(writer.symbols)} symbols has none with the number {index}")
        symbol = writer.symbols[index]
        if reader is None or symbol in reader.symbols:
            return symbol
        if reader.default is None:
            raise Corruption(f"{symbol[:100]} is not a symbol of {reader}")
        return reader.default

    def _plain(self, writer: AvroType, reader: AvroType | None) -> Any:
        """A value without parts; numbers and texts as the reader's type has them."""
        kind = writer.kind
        if kind == "null":
            return None
        if kind == "boolean":
            return self._bytes(1) != b"\0"
        if kind == "fixed":
            return self._bytes(writer.size)
        if kind in ("string", "bytes"):
            data = self._bytes(self._long())
            return data.decode() if reader is not None and reader.kind == "string" else data
        if kind in ("int", "long"):
            number = self._long()
            return float(number) if reader is not None and reader.kind in ("float", "double") else number
        size = _FLOAT if kind == "float" else _DOUBLE
        return size.unpack(self._bytes(size.size))[0]

    def _text(self) -> str:
        return self._bytes(self._long()).decode()

    def _bytes(self, size: int) -> bytes:
        start, end = self._at, self._at + size
        if size < 0 or end > len(self._data):
            raise Corruption(f"{size} bytes are not in a value of {len(self._data)}")
        self._at = end
        return self._data[start:end]

    def _long(self) -> int:
        try:
            number, self._at = read_varint(self._data, self._at)
        except ValueError as error:
            raise Corruption(str(error)) from None
        return (number >> 1) ^ -(number & 1)


def _branch(writer: AvroType, index: int) -> AvroType:
    if not 0 <= index < len(writer.parts):
        raise Corruption(f"a union of {len(writer.parts)} types has none with the number {index}")
    return writer.parts[index]


def _taking(reader: AvroType, writer: AvroType) -> AvroType:
    """*reader*, or its branch, that takes what *writer* has written. Raises Corruption."""
    branches = reader.parts if reader.kind == "union" else [reader]
    same = (branch for branch in branches if branch.kind == writer.kind)
    branch = next(same, None) or next((branch for branch in branches if promotes(writer, branch)), None)
    if branch is None or (branch.kind == "fixed" and branch.size != writer.size):
        raise Corruption(f"{writer} cannot be read as {reader}")
    return branch
