"""Rows of DataFrames as messages."""

import datetime
import decimal
import io
import json
import pickle
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.options.write import parse_write_options
from connectors.spark.source import MagnetarSource
from connectors.spark.values.records import AvroValues, JsonValues, columns_of
from connectors.spark.write.message import Outgoing
from connectors.spark.write.outgoing import Columns
from magnetar_core.runtime.types import ConfigurationError
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import StoredSchema

BASE = {"service.url": "pulsar://x:6650", "topic": "t"}


def rows(kind: t.StructType, *values: dict[str, Any], value_format: str = "binary") -> list[Outgoing]:
    columns: Columns = pickle.loads(pickle.dumps(Columns(kind, value_format, has_topic=True)))
    arrow = to_arrow_schema(kind, timezone="UTC")
    return list(columns.messages(pa.RecordBatch.from_pylist(list(values), schema=arrow)))


def struct(**fields: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, kind, True) for name, kind in fields.items()])


def test_payloads_are_bytes_or_text_and_a_null_is_a_null_value() -> None:
    found = rows(struct(value=t.BinaryType()), {"value": b"a"}, {"value": None}, {"value": b""})
    assert [one.value for one in found] == [b"a", None, b""]
    assert [one.value for one in rows(struct(value=t.StringType()), {"value": "ü"})] == ["ü".encode()]


def test_key_time_properties_and_topic_come_from_their_columns() -> None:
    kind = struct(
        value=t.StringType(),
        __key=t.BinaryType(),
        __eventTime=t.TimestampType(),
        __messageProperties=t.MapType(t.StringType(), t.StringType()),
    )
    at = datetime.datetime(2026, 11, 23, 10, 0, 0, 123_999, tzinfo=datetime.UTC)
    row = {"value": "v", "__key": b"k", "__eventTime": at, "__messageProperties": [("a", "1"), ("b", None)]}
    empty = {"value": "v", "__key": None, "__eventTime": None, "__messageProperties": None}
    first, second = rows(kind, row, empty)
    assert first == Outgoing(None, b"v", "k", round(at.timestamp() * 1000 - 0.999), {"a": "1"})
    assert second == Outgoing(None, b"v", None, None, None)


def test_without_a_topic_in_the_options_each_row_names_its_own() -> None:
    kind = struct(value=t.StringType(), __topic=t.StringType())
    columns = Columns(kind, "binary", has_topic=False)
    arrow = to_arrow_schema(kind, timezone="UTC")
    batch = pa.RecordBatch.from_pylist([{"value": "v", "__topic": "a"}, {"value": "v", "__topic": None}], schema=arrow)
    messages = columns.messages(batch)
    assert next(messages).topic == "a"
    with pytest.raises(ConfigurationError, match="a row has no topic"):
        next(messages)


def test_the_topic_of_the_options_wins_over_that_of_rows_which_were_read() -> None:
    kind = struct(
        value=t.StringType(), __topic=t.StringType(), __messageId=t.BinaryType(), __publishTime=t.TimestampType()
    )
    found = rows(kind, {"value": "v", "__topic": "read from there", "__messageId": b"x", "__publishTime": None})
    assert found == [Outgoing(None, b"v", None, None, None)]


EVERYTHING = struct(
    flag=t.BooleanType(),
    small=t.ShortType(),
    number=t.IntegerType(),
    long=t.LongType(),
    real=t.DoubleType(),
    text=t.StringType(),
    data=t.BinaryType(),
    day=t.DateType(),
    at=t.TimestampType(),
    local=t.TimestampNTZType(),
    price=t.DecimalType(10, 2),
    items=t.ArrayType(t.BinaryType()),
    counts=t.MapType(t.StringType(), t.IntegerType()),
    inner=struct(a=t.LongType(), b=t.ArrayType(t.DateType())),
    key=t.StringType(),
)
ROW: dict[str, Any] = {
    "flag": True,
    "small": -3,
    "number": 7,
    "long": 2**40,
    "real": 0.5,
    "text": "ü",
    "data": b"\x00\xff",
    "day": datetime.date(2026, 11, 23),
    "at": datetime.datetime(2026, 11, 23, 10, 0, 0, 123_456, tzinfo=datetime.UTC),
    "local": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
    "price": decimal.Decimal("-12.30"),
    "items": [b"\xfe", None],
    "counts": [("a", 1), ("b", None)],
    "inner": {"a": None, "b": [datetime.date(1970, 1, 2)]},
    "key": "a field like others",
}
NULLS = dict.fromkeys(ROW)


@pytest.mark.parametrize(("value_format", "kind"), [("avro", SchemaType.AVRO), ("json", SchemaType.JSON)])
def test_records_are_read_again_as_they_were_written(value_format: str, kind: SchemaType) -> None:
    columns = Columns(EVERYTHING, value_format, has_topic=True)
    assert columns.definition is not None
    written = rows(EVERYTHING, ROW, NULLS, value_format=value_format)
    stored = StoredSchema(0, Schema(kind, json.dumps(columns.definition).encode()), 0, "", False)
    read_types = {field.name: field.dataType for field in columns_of(stored, "t")}
    wider = {"small": t.IntegerType()}
    assert read_types == {field.name: wider.get(field.name, field.dataType) for field in EVERYTHING.fields}
    values = AvroValues([stored], stored, "t") if value_format == "avro" else JsonValues(stored, "t")
    decode = values.decoder(0)
    assert written[0].value is not None
    assert written[1].value is not None
    found = decode(written[0].value)
    arrow = to_arrow_schema(EVERYTHING, timezone="UTC")

    def normal(row: dict[str, Any]) -> list[dict[str, Any]]:
        maps = {**row, "counts": None if row["counts"] is None else list(dict(row["counts"]).items())}
        return list(pa.RecordBatch.from_pylist([maps], schema=arrow).to_pylist())

    assert normal(found) == normal(ROW)
    assert decode(written[1].value) == NULLS


def test_an_avro_record_is_plain_avro() -> None:
    (one,) = rows(struct(a=t.LongType(), b=t.StringType()), {"a": 5, "b": None}, value_format="avro")
    definition = Columns(struct(a=t.LongType(), b=t.StringType()), "avro", has_topic=True).definition
    assert one.value is not None
    assert definition is not None
    assert fastavro.schemaless_reader(io.BytesIO(one.value), definition, None) == {"a": 5, "b": None}
    assert definition == {
        "type": "record",
        "name": "Record",
        "fields": [
            {"name": "a", "type": ["null", "long"], "default": None},
            {"name": "b", "type": ["null", "string"], "default": None},
        ],
    }


@pytest.mark.parametrize(
    ("schema", "value_format", "why"),
    [
        (struct(value=t.IntegerType()), "binary", "column value is int: cast it to binary or string"),
        (struct(text=t.StringType()), "binary", "there is no column value"),
        (struct(value=t.StringType(), other=t.StringType()), "binary", "column other means nothing"),
        (struct(value=t.StringType(), __keys=t.StringType()), "binary", "column __keys does not exist"),
        (struct(value=t.StringType(), __key=t.LongType()), "binary", "column __key cannot be bigint"),
        (struct(value=t.StringType(), __eventTime=t.LongType()), "binary", "column __eventTime cannot be bigint"),
        (struct(__key=t.StringType()), "avro", "needs columns without `__`"),
        (struct(**{"two words": t.StringType()}), "avro", "two words is a name that Avro does not allow"),
        (
            struct(a=t.MapType(t.LongType(), t.StringType())),
            "json",
            "a is map<bigint,string>, which Avro has no type for",
        ),
        (struct(a=t.DayTimeIntervalType()), "avro", "which Avro has no type for: cast it"),
    ],
)
def test_columns_that_cannot_be_written_are_named(schema: t.StructType, value_format: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why.replace("(", r"\(")):
        Columns(schema, value_format, has_topic=True)


def test_a_topic_must_be_said_somewhere() -> None:
    with pytest.raises(ConfigurationError, match="no topic"):
        Columns(struct(value=t.StringType()), "binary", has_topic=False)


def test_a_key_that_is_no_text_is_refused_with_what_to_do_about_it() -> None:
    kind = struct(value=t.StringType(), __key=t.BinaryType())
    assert [one.key for one in rows(kind, {"value": "v", "__key": "ü".encode()})] == ["ü"]
    with pytest.raises(ConfigurationError, match=r"^key b'\\xff\\x00' is not UTF-8.*as text.*base64\(__key\)"):
        rows(kind, {"value": "v", "__key": b"\xff\x00"})


# ------------------------------------------------------------------------------------------ options


def test_producers_have_the_settings_of_javas_client() -> None:
    given = {
        "pulsar.producer.compressiontype": "zlib",
        "pulsar.producer.batchingMaxPublishDelayMicros": "2500",
        "pulsar.producer.sendTimeoutMs": "0",
    }
    found = parse_write_options({**BASE, **given, "metadata.url": "zk:x"})
    assert found.producer == {
        "batching_enabled": True,
        "block_if_queue_full": True,
        "max_pending_messages": 5_000,
        "compression_type": "ZLib",
        "batching_max_publish_delay_ms": 2,
        "send_timeout_millis": 0,
    }


def test_messages_in_chunks_are_not_batched() -> None:
    assert not parse_write_options({**BASE, "pulsar.producer.chunkingEnabled": "true"}).producer["batching_enabled"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"service.url": ""}, "no service.url"),
        ({"topic": "a/b"}, "topic a/b"),
        ({"valueFormat": "xml"}, "valueFormat=xml: expected binary, avro or json"),
        ({"pulsar.producer.batchingEnabled": "perhaps"}, "expected true or false"),
        ({"pulsar.producer.maxPendingMessages": "-1"}, "expected a number"),
        ({"pulsar.producer.compressionType": "RAR"}, "expected NONE, LZ4"),
        ({"pulsar.producer.hashing": "x"}, "pulsar.producer.hashing is not supported"),
        ({"tpic": "x"}, "did you mean topic"),
        ({"deduplication": "yes"}, "deduplication=yes: expected true or false"),
        ({"deduplication": "true", "pulsar.producer.chunkingEnabled": "true"}, "chunks of a message have one number"),
    ],
)
def test_options_of_writing_that_cannot_be_are_named(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        parse_write_options({**BASE, **given})


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(ConfigurationError, match="mode append"):
        MagnetarSource(BASE).writer(struct(value=t.StringType()), True)


def test_all_problems_of_a_write_are_in_the_last_line() -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_write_options({"tpic": "t", "valueFormat": "xml"})
    assert len(str(caught.value).splitlines()) == 1
    for part in ("unknown option tpic", "no service.url", "valueFormat=xml"):
        assert part in str(caught.value)
    with pytest.raises(ConfigurationError) as caught:
        Columns(struct(other=t.LongType(), __unknown=t.LongType()), "binary", has_topic=False)
    assert len(str(caught.value).splitlines()) == 1
    for part in ("no topic", "column other means nothing", "no column value", "column __unknown does not exist"):
        assert part in str(caught.value)
