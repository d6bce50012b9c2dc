"""Whether a topic's schema may change from one definition to another. (As Apache's `SchemaCompatibilityCheck`.) No IO.

Compatibility of Avro (and of JSON schemas, which are Avro records) is schema resolution: can data that were written
with one schema be read with the other?

    BACKWARD   the new schema reads data of the latest old one
    FORWARD    the latest old schema reads data of the new one
    FULL       both;  …_TRANSITIVE the same against every version
"""

from collections.abc import Iterator, Sequence
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple

from managed_ledger.errors import IncompatibleSchema
from managed_ledger.schemas.avro import AvroType, InvalidSchema, json_of, mismatches, of_json, parse


class SchemaType(IntEnum):
    """Numbers of the protocol."""

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
    EXTERNAL = 22
    """Of a registry elsewhere (Pulsar 4.2 and newer): the definition is bytes that brokers do not look into."""

    @property
    def stored(self) -> int:
        """The number in stored records: one higher. The protocol's 21, AUTO_CONSUME, is never stored."""
        return self if self is SchemaType.EXTERNAL else self + 1

    @staticmethod
    def of_stored(number: int) -> "SchemaType":
        """The type with this number in stored records. Raises ValueError."""
        return SchemaType.EXTERNAL if number == SchemaType.EXTERNAL else SchemaType(number - 1)


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


def same_schema(schema: Schema, other: Schema) -> bool:
    """Whether two schemas are the same. Avro's JSON may differ in its spaces and in the order of its members."""
    if schema.type != other.type:
        return False
    if schema.data == other.data:
        return True
    if schema.type not in AVRO_BASED:
        return False
    try:
        return bool(json_of(schema.data) == json_of(other.data))
    except InvalidSchema:
        return False


def check_valid(schema: Schema) -> None:
    """Check a definition that a client brings. Raises IncompatibleSchema if it cannot be used."""
    if schema.type in AVRO_BASED:
        try:
            json_of(schema.data)
        except InvalidSchema as error:
            raise IncompatibleSchema(f"the new schema {error}") from None
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
    for old_schema in old if strategy.transitive else old[-1:]:
        problem = next(_problems(new, old_schema, strategy), None)
        if problem is not None:
            raise IncompatibleSchema(f"{strategy.value}: {problem}")


def _problems(new: Schema, old: Schema, strategy: Strategy) -> Iterator[str]:
    """Why *new* may not follow *old*, if it may not."""
    if new.type != old.type:
        yield f"the topic has a schema of type {old.type.name}, this one is {new.type.name}"
    elif new.type is SchemaType.KEY_VALUE:
        for new_part, old_part in zip(split_key_value(new), split_key_value(old), strict=True):
            yield from _problems(new_part, old_part, strategy)
    elif new.type in AVRO_BASED:
        new_avro, old_avro = _parse(new.data, "the new schema"), _parse(old.data, "the topic's schema")
        if strategy.reads_old and (reason := _first(new_avro, old_avro)) is not None:
            yield f"the new schema cannot read old data: {reason}"
        if strategy.read_by_old and (reason := _first(old_avro, new_avro)) is not None:
            yield f"the old schema cannot read new data: {reason}"
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


def cannot_read(reader: Any, writer: Any) -> list[str]:
    """Why data of Avro schema *writer* cannot be read with *reader*; empty if they can. Raises IncompatibleSchema."""
    try:
        return list(mismatches(of_json(reader), of_json(writer)))
    except InvalidSchema as error:
        raise IncompatibleSchema(f"the schema {error}") from None


def _first(reader: AvroType, writer: AvroType) -> str | None:
    """The first reason why data of *writer* cannot be read with *reader*. Raises IncompatibleSchema."""
    try:
        return next(mismatches(reader, writer), None)
    except InvalidSchema as error:
        raise IncompatibleSchema(f"the new schema {error}") from None


def _parse(data: bytes, what: str) -> AvroType:
    try:
        return parse(data)
    except InvalidSchema as error:
        raise IncompatibleSchema(f"{what} {error}") from None
