"""What a program says about the values of a topic: `value=`, and schemas by themselves. No IO."""

import contextlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, get_args, overload

from magnetar.client.base.arguments import check_properties, wrong
from magnetar_core.topics import topics_pb2 as api

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of the checker's own types: nothing is imported when a program runs

    T = TypeVar("T", default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")

SchemaType = Literal[
    "string", "json", "protobuf", "avro", "boolean", "int8", "int16", "int32", "int64", "float", "double", "date",
    "time", "timestamp", "key_value", "instant", "local_date", "local_time", "local_date_time", "protobuf_native",
]  # fmt: skip
"""The types of Pulsar's registry, in the order of their numbers, of which the first is 1."""

_NUMBERS: Final[dict[str, int]] = {name: number for number, name in enumerate(get_args(SchemaType), 1)}
_NAMES: Final = {number: name for name, number in _NUMBERS.items()}

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})

Definition = str | bytes | Mapping[str, Any]
"""A schema of Avro: its JSON, as text or parsed."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as Pulsar's registry keeps it, for a producer or consumer whose values are bytes all the same.

    *data* is its definition: the bytes, a text, or JSON that is not written yet. With `value=` there is no need of it.

    Example:
        readings = magnetar.Schema("avro", {"type": "record", "name": "Reading", "fields": []})
        producer = client.producer("readings", schema=readings)
    """

    type: SchemaType
    data: bytes | str | Mapping[str, Any] = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.type, str):
            raise wrong("type of a Schema", self.type, 'a name: "json", "avro", "string" …')
        if self.type not in _NUMBERS:
            raise ValueError(f"type of a Schema is {self.type!r}; it takes one of {', '.join(_NUMBERS)}")
        if isinstance(self.data, str):
            object.__setattr__(self, "data", self.data.encode())
        elif isinstance(self.data, Mapping):
            object.__setattr__(self, "data", json.dumps(self.data).encode())
        elif not isinstance(self.data, bytes):
            raise wrong("data of a Schema", self.data, "bytes, str, or a mapping that is written as JSON")
        check_properties("properties of a Schema", self.properties)

    def to_api(self) -> api.Schema:
        assert isinstance(self.data, bytes), "it was encoded when this was made"
        return api.Schema(type=_NUMBERS[self.type], data=self.data, properties=dict(self.properties))


def type_name(number: int) -> str:
    """The name of a type of schema, for texts."""
    return _NAMES.get(number, f"number {number}")


def described(schema: api.Schema) -> str:
    """A schema in a text: its type, and the name of its record."""
    name = ""
    if type_name(schema.type) in ("json", "avro"):
        with contextlib.suppress(ValueError, AttributeError):
            name = json.loads(schema.data).get("name", "")
    return f"{type_name(schema.type).upper()} {name}".strip()


class Declared(Generic[T]):
    """What values are, where no class says it alone."""


class _Json(Declared[Any]):
    """Any value that JSON can be: None, bool, int, float, str, and lists and dicts of these. There is no schema.

    Example:
        client.producer("events", value=magnetar.Json).send({"kind": "login", "user": 7})
    """

    def __repr__(self) -> str:
        return "magnetar.Json"

    def __reduce__(self) -> str:
        return "Json"


Json: Final = _Json()
"""Values of JSON without a schema: `value=magnetar.Json`."""


class Avro(Declared[T]):
    """Values in the binary form of Avro.

    A *definition* is a schema of Avro, a record, as JSON. Values are dicts, or with *record* instances of a dataclass
    or a pydantic model whose fields are those of the definition. `Avro(Order)` makes the definition from the class.

    In a dataclass, `Annotated[int, magnetar.Avro("int")]` gives a field another type of Avro than the usual one.

    Example:
        @dataclass
        class Reading:
            sensor: str
            celsius: float

        client.producer("readings", value=magnetar.Avro(Reading)).send(Reading("kitchen", 21.5))
    """

    definition: Any
    """As JSON; None: it is made from the record."""
    record: type | None

    @overload
    def __init__(self: "Avro[dict[str, Any]]", definition: Definition) -> None: ...

    @overload
    def __init__(self, definition: type[T]) -> None: ...

    @overload
    def __init__(self, definition: Definition, record: type[T]) -> None: ...

    def __init__(self, definition: Any, record: Any = None) -> None:
        if isinstance(definition, type):
            if record is not None:
                raise wrong("definition of an Avro", definition, "a schema of Avro, where a record is given, too")
            self.definition, self.record = None, definition
            return
        if record is not None and not isinstance(record, type):
            raise wrong("record of an Avro", record, "a class")
        self.definition, self.record = _definition(definition), record

    def __repr__(self) -> str:
        if self.record is not None:
            return f"Avro({self.record.__qualname__})"
        name = self.definition.get("name") if isinstance(self.definition, dict) else self.definition
        return f"Avro({name})"


def _definition(definition: Any) -> Any:
    """A definition as JSON. Raises TypeError, ValueError."""
    if isinstance(definition, str) and definition in PRIMITIVES:
        return definition
    if isinstance(definition, Mapping):
        return dict(definition)
    if not isinstance(definition, str | bytes):
        raise wrong("definition of an Avro", definition, "a schema of Avro, as JSON or a mapping, or a class")
    try:
        schema = json.loads(definition)
    except ValueError as error:
        raise ValueError(f"definition of an Avro is not JSON: {error}") from None
    if not isinstance(schema, dict | str):
        raise ValueError("definition of an Avro is no schema of Avro that has one type")
    return schema
