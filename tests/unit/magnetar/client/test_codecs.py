"""What is declared as the value of messages: its schema, its bytes, and what is refused before it is sent."""

import dataclasses
import enum
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pulsar.schema
import pytest

from magnetar.client.codecs import avro
from magnetar.client.codecs.codec import Codec, codec_of
from magnetar.client.codecs.declared import Avro, Json, Schema
from magnetar_core.runtime.data.avro_aliases import with_aliases_applied


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclass
class Line:
    sku: str
    price: float = 1.0


@dataclass
class Order:
    id: int
    customer: str | None
    lines: list[Line]
    at: datetime
    color: Color = Color.RED
    data: bytes = b"\xff"
    kind: Literal["new", "old"] = "new"
    first: Line | None = None
    marks: dict[str, int] = field(default_factory=dict)
    small: Annotated[int, Avro("int")] = 3
    pair: tuple[bool, ...] = ()
    day: date = date(2026, 1, 2)
    key: UUID | None = None


ORDER = Order(
    7, None, [Line("a"), Line("b", 2)], datetime(2026, 1, 2, 3, 4, 5, 6, UTC), Color.BLUE, marks={"x": -1},
    pair=(True, False), key=UUID(int=5),
)  # fmt: skip

DEFINITION = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
}


@dataclass
class Noted:
    id: int
    note: str | None = None


def codec(declared: Any) -> Codec[Any]:
    made = codec_of(declared)
    assert made is not None
    return made


def definition(declared: Any) -> Any:
    schema = codec(declared).schema
    assert schema is not None
    return json.loads(bytes(schema.data))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (str, "tëxt"),
        (Json, {"a": [1, 2.5, None, True, "x"]}),
        (Json, []),
        (Order, ORDER),
        (Avro(Order), ORDER),
        (Avro(DEFINITION), {"id": 1, "note": "n"}),
        (Avro(json.dumps(DEFINITION)), {"id": 1, "note": None}),
        (Avro(DEFINITION, Noted), Noted(3, "n")),
    ],
)
def test_a_value_comes_back_as_it_was(declared: Any, value: Any) -> None:
    made = codec(declared)
    assert made.read(made.write(value), None) == value


def test_bytes_have_no_codec() -> None:
    assert codec_of(bytes) is None


def test_the_definition_of_a_dataclass() -> None:
    line = {
        "type": "record",
        "name": "Line",
        "fields": [{"name": "sku", "type": "string"}, {"name": "price", "type": "double", "default": 1.0}],
    }
    assert definition(Order) == {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "customer", "type": ["null", "string"]},
            {"name": "lines", "type": {"type": "array", "items": line}},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
            {"name": "color", "type": {"type": "enum", "name": "Color", "symbols": ["RED", "BLUE"]}, "default": "RED"},
            {"name": "data", "type": "bytes", "default": "/w=="},
            {"name": "kind", "type": "string", "default": "new"},
            {"name": "first", "type": ["null", "Line"], "default": None},
            {"name": "marks", "type": {"type": "map", "values": "long"}, "default": {}},
            {"name": "small", "type": "int", "default": 3},
            {"name": "pair", "type": {"type": "array", "items": "boolean"}, "default": []},
            {"name": "day", "type": {"type": "int", "logicalType": "date"}, "default": 20455},
            {
                "name": "key",
                "type": ["null", {"type": "string", "logicalType": "uuid"}],
                "default": None,
            },
        ],
    }
    assert codec(Order).schema == Schema("json", codec(Order).schema.data)  # type: ignore[union-attr]
    assert codec(Avro(Order)).schema.type == "avro"  # type: ignore[union-attr]


def test_a_default_that_is_not_null_is_of_the_first_type_of_its_union() -> None:
    @dataclass
    class Optional:
        a: str | None = "x"

    assert definition(Optional)["fields"] == [{"name": "a", "type": ["string", "null"], "default": "x"}]
    avro.parse(definition(Optional))


def test_the_definition_is_that_of_the_official_client() -> None:
    class Order(pulsar.schema.Record):  # type: ignore[misc]  # the library has no types
        id = pulsar.schema.Long(required=True)
        customer = pulsar.schema.String()
        total = pulsar.schema.Double(required=True)
        count = pulsar.schema.Integer(required=True)

    ours = dataclasses.make_dataclass(
        "Order", [("id", int), ("customer", str | None), ("total", float), ("count", Annotated[int, Avro("int")])]
    )
    assert definition(ours) == Order.schema()


# -------------------------------------------------------------------------------- what is not sent


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"id": "7"}, TypeError, r"^Order\.id is str; it takes int$"),
        ({"id": True}, TypeError, r"^Order\.id is bool; it takes int$"),
        ({"id": 2**63}, ValueError, r"^Order\.id is 9223372036854775808; it takes"),
        ({"customer": 5}, TypeError, r"^Order\.customer is int; it takes str$"),
        ({"lines": [Line("a"), Line("b", "x")]}, TypeError, r"^Order\.lines\[1\]\.price is str; it takes float$"),  # type: ignore[arg-type]
        ({"lines": [{"sku": "a"}]}, TypeError, r"^Order\.lines\[0\] is dict; it takes Line$"),
        ({"lines": "ab"}, TypeError, r"^Order\.lines is str; it takes a list$"),
        ({"at": datetime(2026, 1, 1)}, ValueError, r"^Order\.at is a datetime without a time zone"),
        ({"color": "RED"}, TypeError, r"^Order\.color is str; it takes Color$"),
        ({"kind": "other"}, ValueError, r"^Order\.kind is 'other'; it takes one of 'new', 'old'$"),
        ({"marks": {1: 1}}, TypeError, r"^Order\.marks has the key 1"),
        ({"marks": {"x": None}}, TypeError, r"^Order\.marks\['x'\] is NoneType; it takes int$"),
        ({"day": datetime(2026, 1, 1, tzinfo=UTC)}, TypeError, r"^Order\.day is datetime; it takes date$"),
    ],
)
@pytest.mark.parametrize("declared", [Order, Avro(Order)])
def test_a_field_that_does_not_fit_is_named(declared: Any, changes: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        codec(declared).write(dataclasses.replace(ORDER, **changes))


def test_a_field_that_is_missing_is_named() -> None:
    value = Line("a")
    del value.sku
    with pytest.raises(ValueError, match=r"^Line\.sku is missing$"):
        codec(Line).write(value)


@pytest.mark.parametrize(
    ("declared", "value", "kind", "words"),
    [
        (str, b"x", TypeError, "value is bytes; it takes str"),
        (str, "\ud800", ValueError, "cannot be written as UTF-8"),
        (Line, {"sku": "a"}, TypeError, "value is dict; it takes Line"),
        (Line, Line("\ud800"), ValueError, "Line has a character that is none"),
        (Line, Line("a", math.nan), ValueError, "Line is nothing that JSON can be"),
        (Json, {"a": {1}}, TypeError, r"value\['a'\] is set"),
        (Json, {"a": [{2: 1}]}, TypeError, r"value\['a'\]\[0\] has the key 2"),
        (Json, math.inf, ValueError, "JSON"),
        (Avro(DEFINITION), {"id": "x"}, TypeError, "id"),
        (Avro(DEFINITION), {"id": True}, ValueError, r"Order does not fit its schema.*id.*expected long"),
        (Avro(DEFINITION), {}, ValueError, "Field id is specified in the schema but missing"),
        (Avro(DEFINITION), {"id": 1, "more": 2}, ValueError, "more fields than the schema specifies: more"),
        (Avro(DEFINITION), [1], TypeError, "Order is list; it takes a dict"),
        (Avro(DEFINITION, Noted), {"id": 1}, TypeError, "value is dict; it takes Noted"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(declared: Any, value: Any, kind: type, words: str) -> None:
    with pytest.raises(kind, match=f"(?s){words}"):
        codec(declared).write(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="contains itself"):
        codec(Json).write(value)


def test_what_would_nest_too_deep_to_be_read_is_refused() -> None:
    value: Any = 1
    for _ in range(100):
        value = [value]
    assert codec(Json).read(codec(Json).write(value), None) == value
    with pytest.raises(ValueError, match="deeper than 100 levels"):
        codec(Json).write([value])


# -------------------------------------------------------------------------------- what cannot be declared


def plain(**fields: Any) -> Callable[[], Any]:
    return lambda: dataclasses.make_dataclass("Plain", list(fields.items()))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: "json", "value is str; it takes bytes, str, magnetar.Json, a dataclass"),
        (lambda: Schema("json"), "value is Schema"),
        (lambda: int, "value is int; it takes bytes, str"),
        (lambda: dict, "value is dict; it takes"),
        (lambda: Line("a"), "value is Line; it takes"),
        (plain(a=Decimal), r"Plain\.a is Decimal, which has no type in Avro"),
        (plain(a=int | str), r"Plain\.a is a union of several types"),
        (plain(a=dict[int, str]), r"Plain\.a is a dict with other keys"),
        (plain(a=Literal[1]), r"Plain\.a is a Literal of other values"),
        (plain(ä=int), r"Plain\.ä is a name that Avro does not allow"),
        (lambda: dataclasses.make_dataclass("Plain", [("a", str, None)]), r"Plain\.a is NoneType; it takes str"),
        (lambda: Avro("{"), "definition of an Avro is not JSON"),
        (lambda: Avro("long"), "the schema is not a record"),
        (lambda: Avro({"type": "record", "name": "R", "fields": [{"name": "a"}]}), "not one of Avro"),
        (lambda: Avro(DEFINITION, int), "record of an Avro is type; it takes a dataclass"),
        (lambda: Avro(1), "definition of an Avro is int"),  # type: ignore[call-overload]
        (lambda: Avro(Noted, Noted), "definition of an Avro is type"),  # type: ignore[call-overload]
    ],
)
def test_a_declaration_that_cannot_be_is_refused_at_once(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        codec_of(make())


# -------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"sku":"a"}', Line("a")),
        (b'{"sku":"a","price":2,"new":[]}', Line("a", 2.0)),
    ],
)
def test_what_another_version_wrote_is_read(data: bytes, expected: Line) -> None:
    assert codec(Line).read(data, None) == expected


def test_a_member_that_java_leaves_out_is_none() -> None:
    @dataclass
    class Optional:
        a: str | None

    assert codec(Optional).read(b"{}", None) == Optional(None)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff", "utf-8"),
        (b"{", "Expecting"),
        (b"[]", "value is list; it takes a record|Line"),
        (b"{}", r"Line\.sku is missing"),
        (b'{"sku":1}', r"Line\.sku is int; it takes str"),
        (b'{"sku":"a","price":NaN}', "NaN is no number"),
        (b"[" * 100_000, "nested"),
    ],
)
def test_what_is_no_value_is_a_value_error(data: bytes, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        codec(Line).read(data, None)


def test_a_class_that_refuses_is_a_value_error() -> None:
    @dataclass
    class Positive:
        a: int

        def __post_init__(self) -> None:
            if self.a < 0:
                raise ValueError("below zero")

    with pytest.raises(ValueError, match="Positive is refused by the class: below zero"):
        codec(Positive).read(b'{"a":-1}', None)


@pytest.mark.parametrize("data", [b"", b"\x02", b"\x02\x00\x00", b"\x02\x04a", b"\xff" * 20])
def test_bytes_that_are_not_of_the_schema_are_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"it is not of its schema|behind its last field"):
        codec(Avro(DEFINITION)).read(data, None)


def test_values_of_a_renamed_field_do_not_go_to_another_one_that_got_its_name() -> None:
    old = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    fields: list[dict[str, Any]] = [
        {"name": "b", "type": "string", "aliases": ["a"]},
        {"name": "a", "type": "string", "default": "new"},
    ]
    new = {**old, "fields": fields}
    reader = avro.parse(new)
    data = avro.encode({"a": "was a"}, avro.parse(old))
    writer = avro.parse_writer(json.dumps(old).encode(), reader)
    assert avro.decode(data, writer, reader) == {"b": "was a", "a": "new"}
    without = {**new, "fields": [{key: field[key] for key in field if key != "aliases"} for field in fields]}
    for same in (new, without):
        writer = avro.parse_writer(json.dumps(same).encode(), reader)
        assert avro.decode(avro.encode({"b": "x", "a": "y"}, reader), writer, reader) == {"b": "x", "a": "y"}


def test_a_schema_that_nests_too_deeply_for_its_aliases_is_a_value_error() -> None:
    deep: Any = "int"
    for number in range(2_000):
        deep = {"type": "record", "name": f"R{number}", "fields": [{"name": "a", "type": deep, "aliases": ["b"]}]}
    with pytest.raises(ValueError, match="the schema nests too deeply"):
        with_aliases_applied({**deep, "fields": []}, deep)


def test_avro_is_read_by_the_schema_of_its_writer() -> None:
    older = {"type": "record", "name": "Elsewhere", "namespace": "x", "fields": [{"name": "id", "type": "int"}]}
    made = codec(Avro(DEFINITION, Noted))
    data = codec(Avro(older)).write({"id": 5})
    assert made.read(data, made.writer(json.dumps(older).encode())) == Noted(5)


def test_records_are_matched_by_their_fields_at_all_depths() -> None:
    @dataclass
    class Their:
        sku: str

    @dataclass
    class Theirs:
        lines: list[Their]
        first: Their | None
        by_name: dict[str, Their]
        color: Color

    @dataclass
    class Ours:
        lines: list[Line]
        first: Line | None
        by_name: dict[str, Line]
        color: Color
        new: int = 1

    written = Theirs([Their("a")], Their("b"), {"x": Their("c")}, Color.BLUE)
    reader = codec(Avro(Ours))
    writer = reader.writer(codec(Avro(Theirs)).schema.data)  # type: ignore[union-attr,arg-type]
    read = reader.read(codec(Avro(Theirs)).write(written), writer)
    assert read == Ours([Line("a")], Line("b"), {"x": Line("c")}, Color.BLUE, 1)


def test_two_records_that_are_read_as_one_are_a_value_error_if_the_library_does_not_take_them() -> None:
    @dataclass
    class First:
        sku: str

    @dataclass
    class Second:
        sku: str

    @dataclass
    class Theirs:
        a: First
        b: Second

    @dataclass
    class Ours:
        a: Line
        b: Line

    reader = codec(Avro(Ours))
    writer = reader.writer(codec(Avro(Theirs)).schema.data)  # type: ignore[union-attr,arg-type]
    with pytest.raises(ValueError, match=r"[Ss]chema mismatch"):
        reader.read(codec(Avro(Theirs)).write(Theirs(First("a"), Second("b"))), writer)


def nested(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{n}", "type": kind} for n, kind in enumerate(fields)]}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (nested({"type": "array", "items": "null"}), "a null that is not in a union"),
        (nested("null"), "a null that is not in a union"),
        (nested({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}), "E, which takes no bytes"),
        (nested({"type": "fixed", "name": "F", "size": 0}), "F, which takes no bytes"),
        (nested(["null", "R"]), "R, which contains itself"),
        (nested({"type": "array", "items": "R"}), "R, which contains itself"),
    ],
)
def test_a_schema_by_which_few_bytes_may_take_everything_is_not_read(schema: Any, words: str) -> None:
    """A million levels of a record in itself end the process in fastavro; so many nulls have no bytes at all."""
    with pytest.raises(ValueError, match=words):
        avro.parse(schema)
