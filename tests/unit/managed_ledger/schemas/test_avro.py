"""Avro schemas: what can be read with what, and how much is done to find out."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from managed_ledger.errors import IncompatibleSchema
from managed_ledger.schemas import avro
from managed_ledger.schemas.avro import AvroType, InvalidSchema, mismatches, of_json, parse
from managed_ledger.schemas.compatibility import Schema, SchemaType, Strategy, check_compatible, check_valid


def twice(depth: int, *more: str) -> dict[str, Any]:
    """R0 holds R1 twice, R1 holds R2 twice: 2^depth ways lead to the last of them."""
    made: Any = {"type": "record", "name": f"R{depth}", "fields": [{"name": "v", "type": "int"}]}
    made["fields"] += [{"name": name, "type": "int", "default": 0} for name in more]
    for number in reversed(range(depth)):
        fields = [{"name": "a", "type": made}, {"name": "b", "type": f"R{number + 1}"}]
        made = {"type": "record", "name": f"R{number}", "fields": fields}
    return made  # type: ignore[no-any-return]


def circle(length: int, last: str = "int") -> dict[str, Any]:
    """Records that hold the next, the last one the first."""
    made: Any = "C0"
    for number in reversed(range(length)):
        fields = [{"name": "next", "type": ["null", made]}, {"name": "v", "type": last if number else "int"}]
        made = {"type": "record", "name": f"C{number}", "fields": fields}
    return made  # type: ignore[no-any-return]


def test_two_types_are_compared_once_however_many_ways_lead_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    step = avro._step

    def counting(reader: AvroType, writer: AvroType) -> avro._Step:
        compared.append((reader, writer))
        return step(reader, writer)

    monkeypatch.setattr(avro, "_step", counting)
    assert list(mismatches(of_json(twice(30, "more")), of_json(twice(30)))) == []
    assert len(compared) == 32
    bad = of_json(twice(30) | {"fields": [{"name": "new", "type": "int"}, *twice(30)["fields"]]})
    assert list(mismatches(bad, of_json(twice(30)))) == [
        "value.new: the writer does not have this field and it has no default"
    ]
    nested = json.loads(json.dumps(twice(30)).replace('"int"', '"string"'))
    assert list(mismatches(of_json(nested), of_json(twice(30)))) == [
        "value" + 30 * ".a" + ".v: int cannot be read as string"
    ]


def test_the_schemas_of_a_topic_are_compared_by_their_bytes_too() -> None:
    new, old = (Schema(SchemaType.AVRO, json.dumps(one).encode()) for one in (twice(30, "more"), twice(30)))
    check_compatible(new, [old], Strategy.FULL)


def test_circles_of_different_lengths_are_compared_to_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(mismatches(of_json(circle(7)), of_json(circle(11)))) == []
    (problem, *_) = mismatches(of_json(circle(7)), of_json(circle(11, "string")))
    assert problem == "value.next: no branch of the union takes record C1"


def test_a_type_that_holds_only_by_one_that_fails_does_not_hold() -> None:
    """What is assumed of a type while it is compared is not remembered if it turns out to be wrong."""

    def made(kind: str) -> Any:
        inner = {"type": "record", "name": "B", "fields": [{"name": "back", "type": "A"}]}
        fields = [{"name": "b", "type": ["null", inner]}, {"name": "v", "type": kind}]
        outer = {"type": "record", "name": "A", "fields": fields}
        return {
            "type": "record",
            "name": "Top",
            "fields": [{"name": "x", "type": ["null", outer]}, {"name": "y", "type": ["null", "B"]}],
        }

    assert list(mismatches(of_json(made("string")), of_json(made("int")))) == [
        "value.x: no branch of the union takes record A",
        "value.y: no branch of the union takes record B",
    ]


def test_names_mean_the_types_of_their_namespace() -> None:
    def made(kind: str) -> Any:
        return {"type": "record", "name": "Top", "namespace": "one", "fields": [
            {"name": "a", "type": {"type": "fixed", "name": "F", "size": 1}},
            {"name": "b", "type": {"type": "record", "name": "two.R", "fields": [
                {"name": "c", "type": {"type": "enum", "name": "F", "symbols": ["x"]}}, {"name": "d", "type": kind}]}},
        ]}  # fmt: skip

    assert list(mismatches(of_json(made("F")), of_json(made("two.F")))) == []
    assert list(mismatches(of_json(made("one.F")), of_json(made("F")))) == [
        "value.b.d: enum F cannot be read as fixed F"
    ]


# ---------------------------------------------------------------------------------------- against the definition


def slow(reader: AvroType, writer: AvroType, held: frozenset[tuple[int, int]] = frozenset()) -> bool:
    """Avro's rules, way by way; a pair that is being compared already holds."""
    if (id(reader), id(writer)) in held:
        return True
    held |= {(id(reader), id(writer))}
    if writer.kind == "union":
        return all(slow(reader, branch, held) for branch in writer.parts)
    if reader.kind == "union":
        return any(slow(branch, writer, held) for branch in reader.parts)
    if not avro.promotes(writer, reader):
        return False
    if reader.kind == "record":
        return all(
            slow(one.type, writer.fields[one.name].type, held) if one.name in writer.fields else one.has_default
            for one in reader.fields.values()
        )
    return all(slow(a, b, held) for a, b in zip(reader.parts, writer.parts, strict=True))


def schemas() -> st.SearchStrategy[Any]:
    """Three records, whose fields are plain, lists, or unions with any of them."""
    names = st.sampled_from([f"R{number}" for number in range(3)])
    plain = st.sampled_from(["int", "long", "string"])
    nullable = st.builds(lambda one, other: ["null", one, other], names, plain)
    lists = st.builds(lambda one: {"type": "array", "items": one}, names)
    field = st.builds(
        lambda name, kind, has: {"name": name, "type": kind} | ({"default": None} if has else {}),
        st.sampled_from("abcd"), st.one_of(plain, nullable, lists, names), st.booleans(),
    )  # fmt: skip
    fields = st.lists(field, max_size=2, unique_by=lambda one: one["name"])
    return st.lists(fields, min_size=3, max_size=3).map(
        lambda all_fields: [
            {"type": "record", "name": f"R{number}", "fields": one} for number, one in enumerate(all_fields)
        ]
    )


@given(schemas(), schemas())
@settings(max_examples=300)
def test_the_answer_is_that_of_the_definition(one: Any, other: Any) -> None:
    reader, writer = of_json(one).parts[0], of_json(other).parts[0]
    assert (not list(mismatches(reader, writer))) is slow(reader, writer)


# ---------------------------------------------------------------------------------------- limits


def test_a_definition_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(circle(3)).encode()
    monkeypatch.setattr(avro, "DEFINITION_BYTES_MAX", len(data))
    parse(data)
    check_valid(Schema(SchemaType.AVRO, data))
    for kind in (SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF):
        with pytest.raises(IncompatibleSchema, match=f"the new schema has {len(data) + 1} bytes; a definition has"):
            check_valid(Schema(kind, data + b" "))


def test_a_schema_has_a_limited_number_of_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro, "TYPES_MAX", 13)
    of_json(circle(3))
    with pytest.raises(InvalidSchema, match="has more than 13 types"):
        of_json(circle(4))


def test_a_comparison_has_a_limited_number_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = (Schema(SchemaType.AVRO, json.dumps(circle(length)).encode()) for length in (7, 11))
    check_compatible(new, [old], Strategy.BACKWARD)
    monkeypatch.setattr(avro, "COMPARISONS_MAX", 400)
    with pytest.raises(
        IncompatibleSchema, match="more than 400 pairs of types to compare; ALWAYS_COMPATIBLE compares none"
    ):
        check_compatible(new, [old], Strategy.BACKWARD)
    check_compatible(new, [old], Strategy.ALWAYS_COMPATIBLE)
    wide = [{"type": "fixed", "name": f"F{number}", "size": number} for number in range(500)]
    with pytest.raises(InvalidSchema, match="more than 400 pairs"):
        list(mismatches(of_json(wide), of_json("int")))


def test_what_a_reason_says_is_short() -> None:
    made: list[Any] = ["int", "string"]
    for number in range(30):
        fields = [[{"name": "f" * 90, "type": one}] for one in made]
        made = [{"type": "record", "name": f"R{number}", "fields": one} for one in fields]
    enums = [{"type": "enum", "name": one, "symbols": ["x"]} for one in ("E", "n" * 9_000)]
    fixed = {"type": "fixed", "name": "n" * 9_000, "size": 1}
    for reader, writer in (made, enums, ("int", fixed)):
        (problem,) = mismatches(of_json(reader), of_json(writer))
        assert len(problem) < 700


@pytest.mark.parametrize(
    "schema",
    [{}, {"type": None}, 7, None, ["int", "int"], ["int", ["null", "int"]], "Unknown", {"type": "record", "name": "R"},
     {"type": "array"}, {"type": "fixed", "name": "F", "size": "x"}, {"type": "record", "name": "R", "fields": 7},
     {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}] * 2},
     {"type": "enum", "name": "E", "symbols": ["x", "x"]},
     {"type": "enum", "name": "E", "symbols": ["x"], "default": "y"}],
)  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidSchema):
        of_json(schema)
