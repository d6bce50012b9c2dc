"""Values in Avro's binary form, by fastavro. No IO.

Rules:

1. A value is checked before it is written: fastavro alone takes True for a number, and writes what a record lacks.
2. Bytes come from whoever may produce. A schema in which something takes no bytes, or which contains itself, is not
   read: a few bytes would stand for any number of items, and deep ones end the process (fastavro, in C, counts no
   levels).
3. Records are matched by their fields, wherever they stand, as brokers do it.
"""

import io
from typing import Any, Final, NamedTuple

import fastavro
from fastavro.validation import ValidationError, validate

from magnetar.client.codecs.declared import PRIMITIVES
from magnetar_core.runtime.data.avro_aliases import with_aliases_applied
from magnetar_core.runtime.data.json_text import parse_json

# How much of a reason of the library's is shown: it may print the whole schema.
_SHOWN_CHARS: Final = 300


class Parsed(NamedTuple):
    """A schema of Avro, as the library takes it."""

    schema: Any

    @property
    def name(self) -> str:
        return str(self.schema["name"]).rpartition(".")[2]


def parse(definition: Any) -> Parsed:
    """Raises ValueError for what is no record, or cannot be read in safety (rule 2)."""
    if not isinstance(definition, dict) or definition.get("type") != "record":
        raise ValueError("the schema is not a record of Avro")
    try:
        schema = fastavro.parse_schema(definition)
    except (fastavro.schema.SchemaParseException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the schema is not one of Avro: {str(error)[:_SHOWN_CHARS] or type(error).__name__}"
        ) from None
    _Walk().least_bytes(schema)
    return Parsed(schema)


def parse_text(data: bytes) -> Parsed:
    """Raises ValueError."""
    return parse(parse_json(data))


def parse_writer(data: bytes, reader: Parsed) -> Parsed:
    """A schema by which others have written, with the names that *reader* has for the same records: brokers compare
    records by their fields, and the library wants the names to be the same, too (rule 3). Raises ValueError."""
    writer = parse_text(data)
    pairs = _Pairs(writer.schema, reader.schema)
    names = pairs.names
    taken = set(names.values())
    if len(taken) < len(names) or taken & (pairs.writers.keys() - names.keys()):
        return writer  # one name for two records: the library will say which
    return parse(with_aliases_applied(_with_names(writer.schema, names), reader.schema))


class _Pairs:
    """The records of a reader that stand where a writer has others."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self.writers: dict[str, Any] = {}
        """The types of the writer, by name."""
        self._readers: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        """Name of a writer's record → name of the reader's."""
        _collect(writer, self.writers)
        _collect(reader, self._readers)
        self._compare(writer, reader)

    def _compare(self, writer: Any, reader: Any) -> None:
        if isinstance(writer, list) or isinstance(reader, list):
            ours = reader if isinstance(reader, list) else [reader]
            for branch in writer if isinstance(writer, list) else [writer]:
                alike = [match for match in ours if _kind(match, self._readers) == _kind(branch, self.writers)]
                if len(alike) == 1:
                    self._compare(branch, alike[0])
            return
        writer, reader = self.writers.get(_key(writer), writer), self._readers.get(_key(reader), reader)
        kind = _kind(writer, self.writers)
        if not isinstance(writer, dict) or kind != _kind(reader, self._readers):
            return
        if kind == "array":
            self._compare(writer["items"], reader["items"])
        elif kind == "map":
            self._compare(writer["values"], reader["values"])
        elif kind == "record" and writer["name"] not in self.names:
            self.names[writer["name"]] = reader["name"]
            fields = {field["name"]: field["type"] for field in reader["fields"]}
            for field in writer["fields"]:
                if field["name"] in fields:
                    self._compare(field["type"], fields[field["name"]])


def _key(schema: Any) -> str:
    return schema if isinstance(schema, str) else ""


def _kind(schema: Any, named: dict[str, Any]) -> Any:
    known = named.get(_key(schema), schema)
    kind = known["type"] if isinstance(known, dict) else known
    return "record" if kind == "error" else kind


def _collect(schema: Any, named: dict[str, Any]) -> None:
    """The types of a parsed schema, by their names."""
    for part in _inner_schemas(schema):
        _collect(part, named)
    if isinstance(schema, dict) and "name" in schema:
        named[schema["name"]] = schema


def _inner_schemas(schema: Any) -> list[Any]:
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    inner = [schema[key] for key in ("items", "values") if key in schema]
    return inner + [field["type"] for field in schema.get("fields", ())]


def _with_names(schema: Any, names: dict[str, str]) -> Any:
    if isinstance(schema, list):
        return [_with_names(branch, names) for branch in schema]
    if isinstance(schema, str):
        return names.get(schema, schema)
    renamed = {key: value for key, value in schema.items() if not key.startswith("__")}  # the library's own marks
    for key in ("items", "values"):
        if key in renamed:
            renamed[key] = _with_names(renamed[key], names)
    if "name" in renamed:
        renamed["name"] = names.get(renamed["name"], renamed["name"])
    if "fields" in renamed:
        renamed["fields"] = [{**field, "type": _with_names(field["type"], names)} for field in renamed["fields"]]
    return renamed


class _Walk:
    """Through the types of a schema that is parsed already: names are full, and defined before they are used."""

    def __init__(self) -> None:
        self._sizes: dict[str, int | None] = {}

    def least_bytes(self, schema: Any) -> int:
        """The least bytes of a value. Raises ValueError (rule 2)."""
        if isinstance(schema, list):
            for branch in schema:
                if branch != "null":
                    self.least_bytes(branch)
            return 1
        if isinstance(schema, str):
            return self._size_of_name(schema)
        kind = schema["type"]
        if kind == "array":
            self.least_bytes(schema["items"])
            return 1
        if kind == "map":
            self.least_bytes(schema["values"])
            return 1
        if kind == "enum":
            size = 1
        elif kind == "fixed":
            size = int(schema["size"])
        elif kind in ("record", "error"):
            self._sizes[schema["name"]] = None
            size = sum(self.least_bytes(field["type"]) for field in schema["fields"])
        else:
            return self.least_bytes(kind)
        if size < 1:
            raise ValueError(f"the schema has {schema['name']}, which takes no bytes: such are not read")
        self._sizes[schema["name"]] = size
        return size

    def _size_of_name(self, name: str) -> int:
        if name == "null":
            raise ValueError("the schema has a null that is not in a union: such are not read")
        if name in PRIMITIVES:
            return 1
        size = self._sizes[name]
        if size is None:
            raise ValueError(f"the schema has {name}, which contains itself: such are not read")
        return size


def encode(value: Any, schema: Parsed) -> bytes:
    """Raises TypeError, ValueError naming the field."""
    out = io.BytesIO()
    if not isinstance(value, dict):
        raise TypeError(f"is {type(value).__name__}; it takes a dict")
    try:
        fastavro.schemaless_writer(out, schema.schema, value, strict_allow_default=True)
        if not validate(value, schema.schema, raise_errors=False):  # rule 1
            validate(value, schema.schema, raise_errors=True)
    except (ValidationError, ValueError, TypeError, OverflowError, LookupError, AttributeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"does not fit its schema: {str(error)[:_SHOWN_CHARS]}") from None
    return out.getvalue()


def decode(data: bytes, writer: Parsed, reader: Parsed) -> Any:
    """Raises ValueError."""
    stream = io.BytesIO(data)
    try:
        value: Any = fastavro.schemaless_reader(stream, writer.schema, reader.schema)
    except Exception as error:  # whatever the library raises for bytes that do not fit
        raise ValueError(f"it is not of its schema: {type(error).__name__} {str(error)[:_SHOWN_CHARS]}") from None
    if stream.tell() != len(data):
        raise ValueError(f"it has {len(data) - stream.tell()} bytes behind its last field")
    return value
