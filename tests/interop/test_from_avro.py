"""Avro records become the columns and rows that Spark's own `from_avro` makes of the same bytes."""

import datetime
import decimal
import json
import os
import pickle
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.records import AvroValues, columns_of
from deploy.fetch_apache import SPARK_AVRO_JAR
from tests.unit.connectors.spark.entries import TOPIC, add, single
from tests.unit.connectors.spark.values.test_records import SIMPLE, UNION, avro, field, record, stored

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not SPARK_AVRO_JAR.exists(), reason="Spark's Avro functions are not there: run `make interop`"),
]

MOMENT = datetime.datetime(2024, 2, 29, 12, 0, 0, 123_456, tzinfo=datetime.UTC)
BEFORE_1970 = datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=datetime.UTC)

LOGICAL = record(
    field("day", {"type": "int", "logicalType": "date"}),
    field("millis", {"type": "long", "logicalType": "timestamp-millis"}),
    field("micros", ["null", {"type": "long", "logicalType": "timestamp-micros"}]),
    field("local_millis", {"type": "long", "logicalType": "local-timestamp-millis"}),
    field("local_micros", {"type": "long", "logicalType": "local-timestamp-micros"}),
    field("time", {"type": "int", "logicalType": "time-millis"}),
    field("uuid", {"type": "string", "logicalType": "uuid"}),
    field("money", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}),
    field("fixed_money", {"type": "fixed", "size": 16, "name": "F", "logicalType": "decimal", "precision": 38}),
    field("colour", {"type": "enum", "name": "C", "symbols": ["RED", "BLUE"]}),
    field("hash", {"type": "fixed", "name": "H", "size": 2}),
)


def logical(moment: datetime.datetime, money: str, fixed: int) -> dict[str, Any]:
    local = moment.replace(tzinfo=None)
    return {
        "day": moment.date(), "millis": moment, "micros": moment, "local_millis": local, "local_micros": local,
        "time": datetime.time(0, 0, 1), "uuid": str(uuid.UUID(int=5)), "money": decimal.Decimal(money),
        "fixed_money": decimal.Decimal(fixed), "colour": "BLUE", "hash": b"ab",
    }  # fmt: skip


NESTED = record(
    field("point", record(field("x", "int"), field("names", {"type": "array", "items": ["null", "string"]}), name="P")),
    field("again", ["null", "P"], default=None),
    field("counts", {"type": "map", "values": {"type": "array", "items": "long"}}),
    field("times", {"type": "array", "items": {"type": "long", "logicalType": "timestamp-millis"}}),
    field("by_name", {"type": "map", "values": ["null", "P"]}),
)
POINT = {"x": 1, "names": ["a", None]}

CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "primitive": (record(*(field(kind, kind) for kind in SIMPLE)), [SIMPLE]),
    "logical": (LOGICAL, [logical(MOMENT, "-12.30", 10**38 - 1), logical(BEFORE_1970, "99999999.99", -1)]),
    "nested": (
        NESTED,
        [
            {
                "point": POINT,
                "again": POINT,
                "counts": {"k": [1]},
                "times": [MOMENT],
                "by_name": {"a": POINT, "b": None},
            },
            {"point": POINT, "again": None, "counts": {}, "times": [], "by_name": {}},
        ],
    ),
    "union": (
        UNION,
        [
            {"a": 5, "number": 1 << 40, "real": 0.5, "many": ["s", {"x": b"\xff"}], "again": {"x": True}},
            {"a": None, "number": None, "real": 0.5, "many": [], "again": "t"},
            {"a": ("long", 1000), "number": 3, "real": 0.25, "many": [], "again": "t"},
        ],
    ),
}


def ours(definition: dict[str, Any], values: list[bytes]) -> tuple[t.StructType, list[dict[str, Any]]]:
    schema = stored(definition)
    fields = t.StructType(columns_of(schema, TOPIC))
    builder = RowBuilder(to_arrow_schema(fields, timezone="UTC"), TOPIC, -1, AvroValues([schema], schema, TOPIC))
    for entry_id, value in enumerate(values):
        add(builder, entry_id, single(value))
    return fields, next(builder.take()).to_pylist()


def sparks(
    definition: dict[str, Any], values: list[bytes], directory: Path
) -> tuple[t.StructType, list[dict[str, Any]]]:
    schema, stored_values, rows = (directory / name for name in ("schema.json", "values.pickle", "rows.pickle"))
    schema.write_text(json.dumps(definition))
    stored_values.write_bytes(pickle.dumps(values))
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.from_avro", str(SPARK_AVRO_JAR), schema, stored_values, rows],
        cwd=Path(__file__).parent.parent.parent, env={**os.environ, "TZ": "UTC"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    types, found = pickle.loads(rows.read_bytes())
    return t.StructType.fromJson(json.loads(types)), found


def plain(value: Any, kind: t.DataType) -> Any:
    """Arrow's Python values and Spark's, in one form: times of UTC without a zone, maps as dicts, bytes."""
    if value is None:
        return None
    if isinstance(kind, t.StructType):
        return {field.name: plain(value[field.name], field.dataType) for field in kind.fields}
    if isinstance(kind, t.ArrayType):
        return [plain(one, kind.elementType) for one in value]
    if isinstance(kind, t.MapType):
        return {key: plain(one, kind.valueType) for key, one in dict(value).items()}
    if isinstance(kind, t.TimestampType):
        return value.replace(tzinfo=None)
    return bytes(value) if isinstance(kind, t.BinaryType) else value


@pytest.mark.parametrize("case", CASES)
def test_records_become_what_from_avro_makes_of_them(case: str, tmp_path: Path) -> None:
    definition, records = CASES[case]
    values = [avro(definition, one) for one in records]
    fields, rows = ours(definition, values)
    spark_fields, spark_rows = sparks(definition, values, tmp_path)
    assert fields.simpleString() == spark_fields.simpleString()
    assert [plain(row, fields) for row in rows] == [plain(row, fields) for row in spark_rows]
