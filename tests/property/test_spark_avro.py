"""Avro records read in columns against fastavro, record by record."""

import io
import json
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.records import AvroValues, columns_of
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema
from tests.unit.connectors.spark.entries import TOPIC, add, batch, message, plain

INT = st.integers(-(1 << 31), (1 << 31) - 1)
LONG = st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-200, 200))
PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=140),
    "string": st.text(max_size=70),
}


class Names:
    """Named types need names of their own."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> str:
        self.count += 1
        return f"N{self.count}"


@st.composite
def types(draw: st.DrawFn, names: Names, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    """A type, and values of it."""
    choice = draw(st.sampled_from(["primitive"] * 4 + ["union", "enum", "fixed", "millis"] + ["record"] * (depth < 2)))
    if choice == "union" and depth < 3:
        kind, values = draw(types(names, 3))
        branches = draw(st.sampled_from([["null", kind], [kind, "null"], [kind]]))
        return branches, st.none() | values if len(branches) == 2 else values
    if choice == "enum":
        symbols = ["A", "B", "C"]
        return {"type": "enum", "name": names.next(), "symbols": symbols}, st.sampled_from(symbols)
    if choice == "fixed":
        return {"type": "fixed", "name": names.next(), "size": 3}, st.binary(min_size=3, max_size=3)
    if choice == "millis":
        return {"type": "long", "logicalType": "timestamp-millis"}, st.integers(-(1 << 45), 1 << 45)
    if choice == "record":
        return draw(records(names, depth + 1))
    kind = draw(st.sampled_from(sorted(PRIMITIVES)))
    return kind, PRIMITIVES[kind]


@st.composite
def records(draw: st.DrawFn, names: Names, depth: int = 0) -> tuple[Any, st.SearchStrategy[Any]]:
    fields = draw(st.lists(types(names, depth), min_size=1, max_size=4))
    definition = {
        "type": "record",
        "name": names.next(),
        "fields": [{"name": f"f{number}", "type": kind} for number, (kind, _) in enumerate(fields)],
    }
    return definition, st.fixed_dictionaries({f"f{number}": values for number, (_, values) in enumerate(fields)})


def encoded(definition: Any, record: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(json.loads(json.dumps(definition))), record)
    return buffer.getvalue()


class OneByOne(AvroValues):
    """Without the fast form."""

    def columns(self, *_: Any) -> None:
        return None


def read(values: AvroValues, columns: list[t.StructField], data: list[bytes | None]) -> list[dict[str, Any]]:
    builder = RowBuilder(to_arrow_schema(t.StructType(columns), timezone="UTC"), TOPIC, -1, values)
    add(builder, 0, batch(*(message(b"", null_value=True) if one is None else message(one) for one in data)))
    (made,) = builder.take()
    made.validate(full=True)
    return plain(made)


@given(st.data())
def test_records_in_columns_are_what_fastavro_reads(data: st.DataObject) -> None:
    definition, values = data.draw(records(Names()))
    found = data.draw(st.lists(st.none() | values, min_size=1, max_size=8))
    schema = StoredSchema(0, Schema(SchemaType.AVRO, json.dumps(definition).encode()), 0, "", False)
    columns = columns_of(schema, TOPIC)
    chosen = data.draw(st.lists(st.sampled_from(columns), min_size=1, unique_by=lambda column: column.name))
    stored = [None if record is None else encoded(_plain_times(definition), record) for record in found]
    fast = read(AvroValues([schema], schema, TOPIC), chosen, stored)
    assert fast == read(OneByOne([schema], schema, TOPIC), chosen, stored)
    for row, record in zip(fast, found, strict=True):
        for column in chosen:
            if record is None:
                assert row[column.name] is None
            elif isinstance(column.dataType, t.LongType | t.StringType | t.BinaryType | t.DoubleType):
                assert row[column.name] == record[column.name]


def _plain_times(schema: Any) -> Any:
    """The same layout, with times as the numbers that they are stored as."""
    if isinstance(schema, list):
        return [_plain_times(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    cleaned = {name: value for name, value in schema.items() if name != "logicalType"}
    if "fields" in cleaned:
        cleaned["fields"] = [{**field, "type": _plain_times(field["type"])} for field in cleaned["fields"]]
    return cleaned


@given(st.binary(max_size=40), st.lists(st.sampled_from(sorted(PRIMITIVES)), min_size=1, max_size=4))
def test_any_bytes_are_read_as_fastavro_reads_them_or_refused(junk: bytes, kinds: list[str]) -> None:
    fields = [{"name": f"f{number}", "type": ["null", kind]} for number, kind in enumerate(kinds)]
    definition = {"type": "record", "name": "R", "fields": fields}
    schema = StoredSchema(0, Schema(SchemaType.AVRO, json.dumps(definition).encode()), 0, "", False)
    outcomes = []
    for values in (AvroValues([schema], schema, TOPIC), OneByOne([schema], schema, TOPIC)):
        try:
            outcomes.append(repr(read(values, columns_of(schema, TOPIC), [junk, junk])))
        except Exception as error:
            outcomes.append(type(error).__name__)
    assert outcomes[0] == outcomes[1]
