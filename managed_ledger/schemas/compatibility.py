"""Whether a topic's schema may change from one definition to another. (As Apache's `SchemaCompatibilityCheck`.)

Compatibility of Avro (and of JSON schemas, which are Avro records) is schema resolution: can data that were written
with one schema be read with the other?

    BACKWARD   the new schema reads data of the latest old one
    FORWARD    the latest old schema reads data of the new one
    FULL       both;  …_TRANSITIVE the same against every version
"""

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.json_text import parse_json
from managed_ledger.errors import IncompatibleSchema


class SchemaType(IntEnum):
    """Numbers of the protocol (those in stored records are one higher)."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20


class Strategy(Enum):
    """`schemaCompatibilityStrategy`, by Pulsar's names."""

    UNDEFINED = "UNDEFINED"
    ALWAYS_INCOMPATIBLE = "ALWAYS_INCOMPATIBLE"
    ALWAYS_COMPATIBLE = "ALWAYS_COMPATIBLE"
    BACKWARD = "BACKWARD"
    FORWARD = "FORWARD"
    FULL = "FULL"
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def reads_old(self) -> bool:
        return self.value.startswith(("BACKWARD", "FULL"))

    @property
    def read_by_old(self) -> bool:
        return self.value.startswith(("FORWARD", "FULL"))

    @property
    def transitive(self) -> bool:
        return self.value.endswith("_TRANSITIVE")


class Schema(NamedTuple):
    """A schema as a client declares it: *data* is the definition's bytes (Avro JSON for records)."""

    type: SchemaType
    data: bytes
    properties: tuple[tuple[str, str], ...] = ()


# Types whose definition is an Avro schema in JSON.
AVRO_BASED: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})

# Schemas nest; one that nests deeper than this is a mistake or an attack.
DEPTH_MAX: Final = 200


def same_schema(one: Schema, other: Schema) -> bool:
    """Whether two schemas are the same. Avro's JSON may differ in its spaces and in the order of its members."""
    if one.type != other.type:
        return False
    if one.data == other.data:
        return True
    if one.type not in AVRO_BASED:
        return False
    try:
        return bool(parse_json(one.data) == parse_json(other.data))
    except ValueError:
        return False


def check_valid(schema: Schema) -> None:
    """Check a definition that a client brings. Raises IncompatibleSchema if it cannot be used."""
    if schema.type in AVRO_BASED:
        _parse(schema.data, "the new schema")
    if schema.type is SchemaType.KEY_VALUE:
        split_key_value(schema)


def check_compatible(new: Schema, old: Sequence[Schema], strategy: Strategy) -> None:
    """Check that *new* may follow the versions *old* (oldest first, at least one).

    Raises IncompatibleSchema with the reason.
    """
    assert old, "a topic without a schema takes any"
    if strategy is Strategy.ALWAYS_COMPATIBLE:
        return
    if strategy is Strategy.ALWAYS_INCOMPATIBLE:
        raise IncompatibleSchema("the topic takes no other schema (ALWAYS_INCOMPATIBLE)")
    assert strategy is not Strategy.UNDEFINED, "the caller resolves UNDEFINED to the broker's strategy"
    for former in old if strategy.transitive else old[-1:]:
        problem = next(_problems(new, former, strategy), None)
        if problem is not None:
            raise IncompatibleSchema(f"{strategy.value}: {problem}")


def _problems(new: Schema, old: Schema, strategy: Strategy) -> Iterator[str]:
    if new.type != old.type:
        yield f"the topic has a schema of type {old.type.name}, this one is {new.type.name}"
    elif new.type is SchemaType.KEY_VALUE:
        for new_part, old_part in zip(split_key_value(new), split_key_value(old), strict=True):
            yield from _problems(new_part, old_part, strategy)
    elif new.type in AVRO_BASED:
        new_avro, old_avro = _parse(new.data, "the new schema"), _parse(old.data, "the topic's schema")
        if strategy.reads_old:
            yield from (f"the new schema cannot read old data: {reason}" for reason in cannot_read(new_avro, old_avro))
        if strategy.read_by_old:
            yield from (f"the old schema cannot read new data: {reason}" for reason in cannot_read(old_avro, new_avro))
    elif new.type is SchemaType.PROTOBUF_NATIVE and new.data != old.data:
        yield "changes of a PROTOBUF_NATIVE schema are not checked yet; use ALWAYS_COMPATIBLE to allow them"


def split_key_value(schema: Schema) -> tuple[Schema, Schema]:
    """The schemas of key and value of a KEY_VALUE schema. Raises IncompatibleSchema."""
    properties = dict(schema.properties)
    data = schema.data
    parts = []
    for side in ("key", "value"):
        size = int.from_bytes(data[:4], "big", signed=True)
        if len(data) < 4 or size > len(data) - 4:
            raise IncompatibleSchema("the KEY_VALUE schema is cut short")
        size = max(size, 0)
        name = properties.get(f"{side}.schema.type", "NONE")
        try:
            kind = SchemaType.NONE if name == "BYTES" else SchemaType[name]
        except KeyError:
            raise IncompatibleSchema(f"unknown type {name} of a {side} schema") from None
        parts.append(Schema(kind, data[4 : 4 + size]))
        data = data[4 + size :]
    return parts[0], parts[1]


def _parse(data: bytes, what: str) -> Any:
    try:
        parsed = parse_json(data)
    except ValueError as error:
        raise IncompatibleSchema(f"{what} is not valid JSON: {error}") from None
    if not isinstance(parsed, dict | list | str):
        raise IncompatibleSchema(f"{what} is not an Avro schema")
    return parsed


# --------------------------------------------------------------------------- Avro resolution

# writer → readers it is promoted to (Avro specification, schema resolution)
_PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
_PRIMITIVES: Final = {"null", "boolean", "int", "long", "float", "double", "bytes", "string"}


class _Names:
    """Named types of one schema, by full name."""

    def __init__(self, schema: Any) -> None:
        self.types: dict[str, Any] = {}
        self._collect(schema, "", 0)

    def _collect(self, schema: Any, namespace: str, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise IncompatibleSchema(f"a schema nests deeper than {DEPTH_MAX} levels")
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace, depth + 1)
        elif isinstance(schema, dict):
            kind = schema.get("type")
            if kind in ("record", "error", "enum", "fixed"):
                full = _full_name(str(schema.get("name", "")), str(schema.get("namespace", namespace)))
                self.types[full] = schema
                namespace = full.rpartition(".")[0]
                for field in schema.get("fields", []):
                    self._collect(field.get("type"), namespace, depth + 1)
            elif kind in ("array", "map"):
                self._collect(schema.get("items", schema.get("values")), namespace, depth + 1)
            else:
                self._collect(kind, namespace, depth + 1)

    def resolve(self, schema: Any) -> Any:
        """A name becomes its definition; `{"type": X}` around a plain type becomes X."""
        for _ in range(DEPTH_MAX):
            if isinstance(schema, str):
                if schema in _PRIMITIVES:
                    return schema
                for full, definition in self.types.items():
                    if full == schema or full.rpartition(".")[2] == schema.rpartition(".")[2]:
                        return definition
                raise IncompatibleSchema(f"type {schema!r} is not defined")
            if isinstance(schema, dict) and (schema.get("type") in _PRIMITIVES or not isinstance(schema["type"], str)):
                schema = schema["type"]
                continue
            return schema
        raise IncompatibleSchema("a schema refers to itself")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def cannot_read(reader: Any, writer: Any) -> list[str]:
    """Why data of Avro schema *writer* cannot be read with *reader*; empty if they can. Raises IncompatibleSchema."""
    try:
        return list(_mismatches(reader, writer, _Names(reader), _Names(writer), "value", set()))
    except (KeyError, TypeError, AttributeError) as error:
        raise IncompatibleSchema(f"not a valid Avro schema: {error!r}") from None


def _mismatches(
    reader: Any, writer: Any, readers: _Names, writers: _Names, place: str, seen: set[tuple[int, int]]
) -> Iterator[str]:
    reader, writer = readers.resolve(reader), writers.resolve(writer)
    key = (id(reader), id(writer))
    if key in seen:  # a recursive type, which is being compared already
        return
    seen = seen | {key} if isinstance(reader, dict) else seen
    if isinstance(writer, list):
        for branch in writer:
            yield from _mismatches(reader, branch, readers, writers, place, seen)
        return
    if isinstance(reader, list):
        if not any(not list(_mismatches(branch, writer, readers, writers, place, seen)) for branch in reader):
            yield f"{place}: no branch of the union takes {_describe(writer)}"
        return
    reader_kind, writer_kind = _kind(reader), _kind(writer)
    if reader_kind != writer_kind:
        if reader_kind not in _PROMOTIONS.get(writer_kind, ()):
            yield f"{place}: {_describe(writer)} cannot be read as {_describe(reader)}"
    elif reader_kind in ("record", "error"):
        yield from _record_mismatches(reader, writer, readers, writers, place, seen)
    elif reader_kind == "enum":
        missing = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
        if missing and "default" not in reader:
            yield f"{place}: enum symbols {missing} are unknown to the reader"
    elif reader_kind == "fixed":
        if reader["size"] != writer["size"]:
            yield f"{place}: fixed of {writer['size']} bytes cannot be read as {reader['size']} bytes"
    elif reader_kind == "array":
        yield from _mismatches(reader["items"], writer["items"], readers, writers, place + "[]", seen)
    elif reader_kind == "map":
        yield from _mismatches(reader["values"], writer["values"], readers, writers, place + "{}", seen)


def _record_mismatches(
    reader: Any, writer: Any, readers: _Names, writers: _Names, place: str, seen: set[tuple[int, int]]
) -> Iterator[str]:
    # Records are matched by their fields: the library that Pulsar uses ignores their names.
    written = {field["name"]: field for field in writer["fields"]}
    for field in reader["fields"]:
        names = [field["name"], *field.get("aliases", [])]
        match = next((written[name] for name in names if name in written), None)
        where = f"{place}.{field['name']}"
        if match is not None:
            yield from _mismatches(field["type"], match["type"], readers, writers, where, seen)
        elif "default" not in field:
            yield f"{where}: the writer does not have this field and it has no default"


def _kind(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema["type"])


def _short_name(schema: Any) -> str:
    return str(schema["name"]).rpartition(".")[2]


def _describe(schema: Any) -> str:
    kind = _kind(schema)
    return f"{kind} {_short_name(schema)}" if isinstance(schema, dict) and "name" in schema else kind
