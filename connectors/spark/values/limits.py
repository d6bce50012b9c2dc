"""How much a value may hold, looked at before it is decoded. No IO.

A few bytes may stand for any number of items: of an array of empty records, of an object with a thousand members that
are not there. A client that may only produce chooses the bytes, and mostly the schema.

    cell    an item of an array or map, and each field of a record that is one: some 10 to 60 bytes as a Python object

Rules:

1. A value that may have more than CELLS_MAX cells is not decoded. One of the largest size that brokers take by default
   has fewer, whatever is in it, unless it is all small records.
2. How many cells a byte can stand for at most is known by the schema, so an ordinary value costs a look at its length.
   Only longer ones are walked through, until the cells are too many.
3. Columns, with the fields inside of them, are at most FIELDS_MAX, and nest at most NESTING_MAX levels: a schema may
   name a type twice in the next one, and so on.
"""

import json
import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from magnetar_core.runtime.data.varint import read_varint
from magnetar_core.runtime.types import MIB, Corruption

FIELDS_MAX: Final = 10_000
"""Some hundred are much; Spark plans a minute for ten thousand."""

NESTING_MAX: Final = 50
"""Arrow writes 64 levels."""

CELLS_MAX: Final = 5 * MIB

# What a record takes as an item, beside its fields.
_ITEM_CELLS: Final = 4

# A null in an Arrow column takes so much less than a Python object.
_NULLS_PER_CELL: Final = 8


def _check_extent(fields: int, levels: int) -> None:
    """Raises ValueError for columns that are too many, or nest too deep."""
    if fields > FIELDS_MAX:
        raise ValueError(f"it has {fields} fields with those inside of others, and {FIELDS_MAX} is the limit")
    if levels > NESTING_MAX:
        raise ValueError(f"its types nest {levels} levels, and {NESTING_MAX} is the limit")


def _too_much(what: str) -> Corruption:
    return Corruption(
        f"{what} would take more than {CELLS_MAX} cells of memory (items, and fields of records in arrays); read it "
        "with valueFormat=binary"
    )


# -------------------------------------------------------------------------------------------- Avro


class _Walk:
    """A place in a value, and how many cells may still come."""

    __slots__ = ("at", "data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.left = CELLS_MAX

    def number(self) -> int:
        """The next zig-zag number."""
        value = self.unsigned()
        return value >> 1 ^ -(value & 1)

    def unsigned(self) -> int:
        try:
            value, self.at = read_varint(self.data, self.at)
        except ValueError as error:
            raise Corruption(f"in it is {error}") from None
        return value

    def pass_over(self, size: int) -> None:
        if not 0 <= size <= len(self.data) - self.at:
            raise Corruption(f"{size} bytes at {self.at} leave its {len(self.data)} bytes")
        self.at += size

    def take(self, cells: int) -> None:
        self.left -= cells
        if self.left < 0:
            raise _too_much("it")


Step = Callable[[_Walk, int], None]
"""Goes over the next value; the number says how deep it is."""


class _Shape(NamedTuple):
    """A type of Avro."""

    step: Step
    least_bytes: int
    fixed_bytes: int | None = None
    """Bytes of each value; None: they differ."""
    fields: int = 0
    """How many fields there are, with those inside of others."""
    cells: int = 1
    """Cells of a value, without the items of arrays and maps in it."""
    levels: int = 0


def _number_step(walk: _Walk, depth: int) -> None:
    walk.number()


def _bytes_step(walk: _Walk, depth: int) -> None:
    walk.pass_over(walk.number())


def _fixed_shape(size: int) -> _Shape:
    return _Shape(lambda walk, depth: walk.pass_over(size), size, size)


_PRIMITIVES: Final = {
    "null": _fixed_shape(0),
    "boolean": _fixed_shape(1),
    "float": _fixed_shape(4),
    "double": _fixed_shape(8),
    "int": _Shape(_number_step, 1),
    "long": _Shape(_number_step, 1),
    "bytes": _Shape(_bytes_step, 1),
    "string": _Shape(_bytes_step, 1),
}


class AvroLimits:
    """The limits of the values of one Avro schema."""

    def __init__(self, definition: Any, read_as: "AvroLimits | None" = None) -> None:
        """The names in *definition* are full ones (`avro_names`). *read_as*: of the schema to which values are
        resolved, if that is another one. Raises ValueError for a schema that is too large."""
        self._named: dict[str, _Shape | None] = {}
        self._is_recursive = False
        self._default_bytes = 0
        self._items: list[tuple[int, int]] = []
        """For each array and map the cells of an item, and its least bytes."""
        self.widest = 0
        """The most cells of a record in an array or map."""
        self._added = 0 if read_as is None else read_as.widest + read_as.default_bytes // _NULLS_PER_CELL
        root = self._shape(definition)
        _check_extent(root.fields, root.levels)
        self._step = root.step
        self._bytes_free = min((CELLS_MAX * least // cells for cells, least in self._items), default=None)
        if self._is_recursive:
            self._bytes_free = 0

    @property
    def default_bytes(self) -> int:
        """Bytes of the schema's defaults, as text, for fields that a value does not have."""
        return self._default_bytes

    def check(self, data: bytes) -> None:
        """Raises Corruption for a value that may take too much."""
        if self._bytes_free is None or len(data) < self._bytes_free:
            return
        try:
            self._step(_Walk(data), 0)
        except IndexError:
            raise Corruption(f"its {len(data)} bytes end inside of a field") from None

    def _shape(self, schema: Any) -> _Shape:
        if isinstance(schema, list):
            return self._union([self._shape(branch) for branch in schema])
        if isinstance(schema, str):
            return _PRIMITIVES.get(schema) or self._shape_of_name(schema)
        kind = schema["type"]
        match kind:
            case "record" | "error":
                shape = self._record(schema)
            case "array":
                return self._array(self._shape(schema["items"]), key_bytes=0)
            case "map":
                return self._array(self._shape(schema["values"]), key_bytes=1)
            case "enum":
                shape = _Shape(_number_step, 1)
            case "fixed":
                shape = _fixed_shape(int(schema["size"]))
            case _:
                return self._shape(kind)
        self._named[schema["name"]] = shape
        return shape

    def _shape_of_name(self, name: str) -> _Shape:
        shape = self._named[name]
        if shape is not None:
            return shape
        self._is_recursive = True

        def step(walk: _Walk, depth: int) -> None:
            whole = self._named[name]
            assert whole is not None, "it was made meanwhile"
            whole.step(walk, depth)

        return _Shape(step, 0, fields=1)

    def _record(self, schema: dict[str, Any]) -> _Shape:
        self._named[schema["name"]] = None
        fields = [self._shape(field["type"]) for field in schema["fields"]]
        self._default_bytes += sum(
            len(json.dumps(field["default"])) for field in schema["fields"] if field.get("default")
        )
        steps = [field.step for field in fields]

        def step(walk: _Walk, depth: int) -> None:
            if depth >= NESTING_MAX:
                raise Corruption(f"its records nest deeper than {NESTING_MAX} levels")
            for field_step in steps:
                field_step(walk, depth + 1)

        sizes = [field.fixed_bytes for field in fields]
        return _Shape(
            step,
            sum(field.least_bytes for field in fields),
            None if None in sizes else sum(size or 0 for size in sizes),
            sum(1 + field.fields for field in fields),
            _ITEM_CELLS + sum(field.cells for field in fields),
            1 + max((field.levels for field in fields), default=0),
        )

    def _union(self, branches: list[_Shape]) -> _Shape:
        def step(walk: _Walk, depth: int) -> None:
            number = walk.number()
            if not 0 <= number < len(branches):
                raise Corruption(f"{number} is no type of a union of {len(branches)}")
            branches[number].step(walk, depth)

        return _Shape(
            step,
            1 + min(branch.least_bytes for branch in branches),
            None,
            sum(branch.fields for branch in branches),
            max(branch.cells for branch in branches),
            max(branch.levels for branch in branches),
        )

    def _array(self, item: _Shape, *, key_bytes: int) -> _Shape:
        """*key_bytes*: of a map, the least that a key has."""
        cells = item.cells + key_bytes
        if item.cells >= _ITEM_CELLS:  # a record
            self.widest = max(self.widest, cells)
            cells = max(cells, self._added)
        self._items.append((cells, item.least_bytes + key_bytes))

        def step(walk: _Walk, depth: int) -> None:
            while count := walk.number():
                if count < 0:
                    count = -count
                    walk.number()  # the bytes of the block
                walk.take(count * cells)
                if item.fixed_bytes is not None and not key_bytes:
                    walk.pass_over(count * item.fixed_bytes)
                    continue
                for _ in range(count):
                    if key_bytes:
                        _bytes_step(walk, depth)
                    item.step(walk, depth)

        return _Shape(step, 1, None, item.fields, 1 + key_bytes, 1 + key_bytes + item.levels)


# -------------------------------------------------------------------------------------------- JSON

_TEXT: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class JsonLimits:
    """The limits of the values of one JSON schema."""

    def __init__(self, definition: Any) -> None:
        """Raises ValueError for a schema that is too large."""
        widest = AvroLimits(definition).widest
        self._object_cells = _ITEM_CELLS + widest // _NULLS_PER_CELL

    def check(self, data: bytes) -> None:
        """Raises Corruption for a value that may take too much."""
        if len(data) * self._object_cells <= CELLS_MAX or self._cells(data) <= CELLS_MAX:
            return
        if self._cells(_TEXT.sub(b"", data)) > CELLS_MAX:
            raise _too_much("it")

    def _cells(self, data: bytes) -> int:
        """The cells at most; signs inside of text count as well."""
        return data.count(b",") + data.count(b"[") + 2 * data.count(b":") + data.count(b"{") * self._object_cells


# ------------------------------------------------------------------------------ Protocol Buffers

_VARINT, _FIXED64, _BYTES, _GROUP, _GROUP_END, _FIXED32 = range(6)

_TEXTS: Final = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


class _Message:
    """A type of message."""

    __slots__ = ("cells", "fields", "inner", "levels", "repeated")

    def __init__(self) -> None:
        self.inner: dict[int, _Message] = {}
        """The types of the fields that are messages, by the fields' numbers."""
        self.repeated: dict[int, bool] = {}
        """The numbers of the fields that are numbers or text, many times; whether they may follow each other packed."""
        self.fields = self.levels = 0
        self.cells = 1


class ProtobufLimits:
    """The limits of the values of one type of message."""

    def __init__(self, message: Descriptor) -> None:
        """Raises ValueError for a message that has too many fields, is too deep, or contains itself."""
        self._made: dict[str, _Message] = {}
        self._under_way: set[str] = set()
        self._root = self._message(message, 0)
        _check_extent(self._root.fields, self._root.levels)
        most = max((message.cells for message in self._made.values() if message is not self._root), default=1)
        self._bytes_free = CELLS_MAX if most == 1 else 2 * CELLS_MAX // most

    def check(self, data: bytes) -> None:
        """Raises Corruption for a value that may take too much. What is not a message is left to the decoder."""
        if len(data) < self._bytes_free:
            return
        walk = _Walk(data)
        try:
            _walk_message(walk, self._root, len(data), 0)
        except IndexError:
            raise Corruption(f"its {len(data)} bytes end inside of a field") from None

    def _message(self, message: Descriptor, depth: int) -> _Message:
        shape = self._made.get(message.full_name)
        if shape is not None:
            return shape
        if depth > NESTING_MAX:
            raise ValueError(f"its messages nest more than {NESTING_MAX} levels")
        if message.full_name in self._under_way:
            raise ValueError(f"message {message.full_name} contains itself, which no column does")
        self._under_way.add(message.full_name)
        shape = _Message()
        for field in message.fields:
            if field.message_type is not None:
                inner = shape.inner[field.number] = self._message(field.message_type, depth + 1)
                shape.fields += inner.fields
                shape.levels = max(shape.levels, inner.levels + field.is_repeated)
            elif field.is_repeated:
                shape.repeated[field.number] = field.type not in _TEXTS
                shape.levels = max(shape.levels, 1)
        self._under_way.remove(message.full_name)
        self._made[message.full_name] = shape
        shape.levels += 1
        shape.fields += len(message.fields)
        shape.cells = _ITEM_CELLS + len(message.fields) + shape.fields // _NULLS_PER_CELL
        return shape


def _walk_message(walk: _Walk, message: _Message | None, end: int, depth: int) -> None:
    """Up to *end*, or the end of the group. *message*: None for one that the schema does not know."""
    if depth > 2 * NESTING_MAX:
        raise Corruption(f"its messages nest deeper than {2 * NESTING_MAX} levels")
    while walk.at < end:
        tag = walk.unsigned()
        number, kind = tag >> 3, tag & 7
        inner = None if message is None else message.inner.get(number)
        is_packable = None if message is None else message.repeated.get(number)
        if kind == _GROUP_END:
            return
        if inner is not None:
            walk.take(inner.cells)
        if kind == _VARINT:
            walk.unsigned()
        elif kind in (_FIXED32, _FIXED64):
            walk.pass_over(4 if kind == _FIXED32 else 8)
        elif kind == _GROUP:
            _walk_message(walk, inner, end, depth + 1)
        elif kind == _BYTES:
            size = walk.unsigned()
            if inner is not None:
                behind = walk.at + size
                if behind > end:
                    raise Corruption(f"{size} bytes at {walk.at} leave its {len(walk.data)} bytes")
                _walk_message(walk, inner, behind, depth + 1)
                walk.at = behind
                continue
            walk.pass_over(size)
            if is_packable:
                walk.take(size)  # numbers of a byte or more
                continue
        else:
            raise Corruption(f"{kind} is no type of a field")
        if is_packable is not None:
            walk.take(1)
