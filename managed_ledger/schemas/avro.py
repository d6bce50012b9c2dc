"""Avro schemas as values, and whether data of one can be read with another. No IO.

    JSON ──parse──▶ AvroType ──mismatches──▶ reasons why data of one schema cannot be read with another

Rules:

1. A client brings the schema, so what is done for it is counted before it is done: its bytes, its levels, the types
   that it has, and what is compared.
2. Two types are compared once, however many ways lead to them: each pair of a reader's and a writer's type is one step,
   and a step is repeated only where another one that it depends on has failed.
3. A type is a node, and names lead to nodes: a recursive schema is a graph with circles, which no loop here follows
   to its end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.types import MIB

# Text of a schema that is parsed as JSON. A schema of a thousand fields has 100 KB; the parser holds the interpreter
# for some 20 ms for so much.
DEFINITION_BYTES_MAX: Final = 1 * MIB

# Schemas nest; one that nests deeper than this is a mistake or an attack.
DEPTH_MAX: Final = 200

# Records, fields, unions and the like in one schema, and references to them: some 5 µs each.
TYPES_MAX: Final = 50_000

# Pairs of types that one comparison looks at, and what each of them depends on: some 3 µs each, 0.6 s in all. Two
# schemas of ten thousand nullable fields, which differ, take 60,000.
COMPARISONS_MAX: Final = 200_000

# How much of names and of a place in a schema a reason shows.
_SHOWN_CHARS: Final = 200

PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
RECORDS: Final = frozenset({"record", "error"})
_NAMED: Final = frozenset({*RECORDS, "enum", "fixed"})

# writer → readers it is promoted to (Avro specification, schema resolution)
PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}


class InvalidSchema(ValueError):
    """A text is not an Avro schema, or too large to be worked on here. The message continues "the schema …"."""


class Field(NamedTuple):
    """A field of a record."""

    name: str
    type: "AvroType"
    aliases: tuple[str, ...]
    has_default: bool
    default: Any


@dataclass(slots=True, eq=False, repr=False)
class AvroType:
    """One type of a schema. Types are compared, and shown, by what they are, not by what they hold (rule 3)."""

    kind: str
    """`record`, `union`, `int`, …"""
    name: str = ""
    fields: dict[str, Field] = field(default_factory=dict)
    parts: "list[AvroType]" = field(default_factory=list)
    """The branches of a union; the type that an array or a map holds."""
    symbols: tuple[str, ...] = ()
    size: int = 0
    default: str | None = None
    """What an enum gives for a symbol that is not known."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name.rpartition('.')[2][:_SHOWN_CHARS]}" if self.name else self.kind

    __repr__ = __str__


_PRIMITIVE_TYPES: Final = {kind: AvroType(kind) for kind in PRIMITIVES}


def parse(data: bytes) -> AvroType:
    """The schema that *data* define. Raises InvalidSchema."""
    return of_json(json_of(data))


def json_of(data: bytes) -> Any:
    """The JSON of a schema. Raises InvalidSchema."""
    if len(data) > DEFINITION_BYTES_MAX:
        raise InvalidSchema(f"has {len(data)} bytes; a definition has {DEFINITION_BYTES_MAX} at most")
    try:
        definition = parse_json(data)
    except ValueError as error:
        raise InvalidSchema(f"is not valid JSON: {error}") from None
    if not isinstance(definition, dict | list | str):
        raise InvalidSchema("is not an Avro schema")
    return definition


def of_json(schema: Any) -> AvroType:
    """The schema that JSON stands for. Raises InvalidSchema."""
    try:
        return _Parser(schema).root
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, InvalidSchema):
            raise
        raise InvalidSchema(f"is not a valid Avro schema: {repr(error)[:_SHOWN_CHARS]}") from None


class _Parser:
    """First all types that have names, then what they hold: a name may be used before it is defined."""

    def __init__(self, schema: Any) -> None:
        self._types = 0
        self._full: dict[str, AvroType] = {}
        self._short: dict[str, AvroType] = {}
        self._named: dict[int, AvroType] = {}
        """The types with names, by the identity of the JSON object that defines each."""
        self._collect(schema, "", 0)
        self.root = self._build(schema, "")

    def _collect(self, schema: Any, namespace: str, depth: int) -> None:
        """Find the named types of *schema*: a type may be used before it is defined. Raises InvalidSchema."""
        if depth > DEPTH_MAX:
            raise InvalidSchema(f"nests deeper than {DEPTH_MAX} levels")
        self._types += 1
        if self._types > TYPES_MAX:
            raise InvalidSchema(f"has more than {TYPES_MAX} types; ALWAYS_COMPATIBLE compares none")
        if isinstance(schema, list):
            for branch in schema:
                self._collect(branch, namespace, depth + 1)
        elif isinstance(schema, dict):
            kind = schema["type"]
            if kind in ("array", "map"):
                self._collect(schema["items" if kind == "array" else "values"], namespace, depth + 1)
            elif isinstance(kind, str) and kind in _NAMED:
                full = _full_name(str(schema.get("name", "")), str(schema.get("namespace", namespace)))
                named = self._named[id(schema)] = AvroType(kind, full)
                self._full.setdefault(full, named)
                self._short.setdefault(full.rpartition(".")[2], named)
                for definition in schema["fields"] if kind in RECORDS else ():
                    self._collect(definition["type"], full.rpartition(".")[0], depth + 1)
            elif not isinstance(kind, str):
                self._collect(kind, namespace, depth + 1)

    def _build(self, schema: Any, namespace: str) -> AvroType:
        """The type that *schema* defines or names. Types with names are those of `_collect`, completed here."""
        if isinstance(schema, str):
            return self._reference(schema, namespace)
        if isinstance(schema, list):
            branches = [self._build(branch, namespace) for branch in schema]
            if any(branch.kind == "union" for branch in branches):
                raise InvalidSchema("has a union in a union")
            if len({branch.name or branch.kind for branch in branches}) < len(branches):
                raise InvalidSchema("has the same type twice in a union")
            return AvroType("union", parts=branches)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self._build(kind, namespace)
        if kind in ("array", "map"):
            element = schema["items" if kind == "array" else "values"]
            return AvroType(kind, parts=[self._build(element, namespace)])
        if kind not in _NAMED:
            return self._reference(kind, namespace)
        named = self._named[id(schema)]
        if kind in RECORDS:
            inner_namespace = named.name.rpartition(".")[0]
            fields = (self._field(definition, inner_namespace) for definition in schema["fields"])
            named.fields = {member.name: member for member in fields}
            if len(named.fields) < len(schema["fields"]):
                raise InvalidSchema("has the same field twice in a record")
        elif kind == "enum":
            named.symbols = tuple(map(str, schema["symbols"]))
            named.default = None if schema.get("default") is None else str(schema["default"])
            if len(set(named.symbols)) < len(named.symbols):
                raise InvalidSchema("has the same symbol twice in an enum")
            if named.default is not None and named.default not in named.symbols:
                raise InvalidSchema("has an enum whose default is none of its symbols")
        else:
            named.size = int(schema["size"])
        return named

    def _field(self, definition: Any, namespace: str) -> Field:
        return Field(
            str(definition["name"]),
            self._build(definition["type"], namespace),
            tuple(map(str, definition.get("aliases", ()))),
            "default" in definition,
            definition.get("default"),
        )

    def _reference(self, name: str, namespace: str) -> AvroType:
        if name in PRIMITIVES:
            return _PRIMITIVE_TYPES[name]
        kind = self._full.get(_full_name(name, namespace)) or self._full.get(name)
        kind = kind or self._short.get(name.rpartition(".")[2])
        if kind is None:
            raise InvalidSchema(f"names the type {name[:_SHOWN_CHARS]!r}, which is not defined")
        return kind


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def promotes(writer: AvroType, reader: AvroType) -> bool:
    """Whether what *writer* writes may be read as *reader*, by the kinds alone. Neither is a union."""
    if writer.kind == reader.kind or (writer.kind in RECORDS and reader.kind in RECORDS):
        return True
    return reader.kind in PROMOTIONS.get(writer.kind, ())


# --------------------------------------------------------------------------- comparison

_Pair = tuple[AvroType, AvroType]
"""A reader's type and a writer's."""


class _Step(NamedTuple):
    """What has to hold for one pair."""

    problems: tuple[str, ...]
    """Reasons why the pair fails, whatever others do."""
    needs: Sequence[tuple[str, _Pair]]
    """The places and pairs that have to hold: all of them, or one with *is_any*."""
    is_any: bool = False


def mismatches(reader: AvroType, writer: AvroType) -> Iterator[str]:
    """Why data of *writer* cannot be read with *reader*; nothing: they can. Raises InvalidSchema.

    A pair holds unless something shows that it does not: so types that hold themselves do (the greatest fixed point).
    """
    root = (reader, writer)
    steps, failed = _steps_from(root), set[_Pair]()
    needed_by: dict[_Pair, list[_Pair]] = {}
    open_ways = {pair: len(step.needs) for pair, step in steps.items() if step.is_any}
    for pair, step in steps.items():
        for _, needed in step.needs:
            needed_by.setdefault(needed, []).append(pair)
    to_visit = [pair for pair, step in steps.items() if step.problems or (step.is_any and not step.needs)]
    failed.update(to_visit)
    while to_visit:
        for pair in needed_by.get(to_visit.pop(), ()):
            if pair in failed:
                continue
            if pair in open_ways:
                open_ways[pair] -= 1
                if open_ways[pair]:
                    continue
            failed.add(pair)
            to_visit.append(pair)
    if root in failed:
        yield from _reasons(root, steps, failed)


def _steps_from(root: _Pair) -> dict[_Pair, _Step]:
    """Each pair that *root* leads to, once (rule 2)."""
    steps: dict[_Pair, _Step] = {}
    to_visit, count = [root], 0
    while to_visit:
        pair = to_visit.pop()
        if pair in steps:
            continue
        step = steps[pair] = _step(*pair)
        count += 1 + len(step.needs)
        if count > COMPARISONS_MAX:
            raise InvalidSchema(
                f"and the other one have more than {COMPARISONS_MAX} pairs of types to compare; "
                "ALWAYS_COMPATIBLE compares none"
            )
        to_visit.extend(needed for _, needed in step.needs)
    return steps


def _step(reader: AvroType, writer: AvroType) -> _Step:
    """What it depends on whether *reader* can read what *writer* wrote, one level deep: problems, or pairs of parts."""
    if writer.kind == "union":
        return _Step((), [("", (reader, branch)) for branch in writer.parts])
    if reader.kind == "union":
        return _Step((), [("", (branch, writer)) for branch in reader.parts], is_any=True)
    if not promotes(writer, reader):
        return _Step((f"{writer} cannot be read as {reader}",), ())
    if reader.kind in RECORDS:
        return _record_step(reader, writer)
    if reader.kind in ("enum", "fixed") and reader.name != writer.name:
        return _Step((f"{writer} cannot be read as {reader}: the names differ",), ())
    # Symbols of enums are not compared: the library that Pulsar uses leaves them to who reads the data.
    if reader.kind == "fixed" and reader.size != writer.size:
        return _Step((f"fixed of {writer.size} bytes cannot be read as {reader.size} bytes",), ())
    if reader.kind in ("array", "map"):
        return _Step((), [("[]" if reader.kind == "array" else "{}", (reader.parts[0], writer.parts[0]))])
    return _Step((), ())


def _record_step(reader: AvroType, writer: AvroType) -> _Step:
    """As `_step`, for two records."""
    # Records are matched by their fields: the library that Pulsar uses ignores their names.
    problems: list[str] = []
    needs: list[tuple[str, _Pair]] = []
    # Aliases belong to a record of that name. They give the writer's fields other names before fields are matched, also
    # where the reader has a field of the former name (`Schema.applyAliases`, Avro 1.11.4 to 1.12.2).
    aliases = (
        {alias: member.name for member in reader.fields.values() for alias in member.aliases}
        if reader.name == writer.name
        else {}
    )
    written: dict[str, Field] = {}
    for member in writer.fields.values():
        name = aliases.get(member.name, member.name)
        if name in written:
            problems.append(f".{name[:_SHOWN_CHARS]}: by its aliases it is several fields of the writer")
        written[name] = member
    for member in reader.fields.values():
        match = written.get(member.name)
        if match is not None:
            needs.append((f".{member.name}", (member.type, match.type)))
        elif not member.has_default:
            problems.append(f".{member.name[:_SHOWN_CHARS]}: the writer does not have this field and it has no default")
    return _Step(tuple(problems), needs)


def _reasons(root: _Pair, steps: dict[_Pair, _Step], failed: set[_Pair]) -> Iterator[str]:
    """What is wrong at the places from which the failure of *root* comes, each pair once."""
    seen: set[_Pair] = set()
    to_visit = [("value", root)]
    while to_visit:
        place, pair = to_visit.pop()
        if pair in seen:
            continue
        seen.add(pair)
        step = steps[pair]
        for problem in step.problems:
            yield f"{place}{problem}" if problem.startswith(".") else f"{place}: {problem}"
        if step.is_any:
            yield f"{place}: no branch of the union takes {pair[1]}"
            continue
        for where, needed in reversed(step.needs):
            if needed in failed:
                to_visit.append((place + where if len(place) < _SHOWN_CHARS else place, needed))
