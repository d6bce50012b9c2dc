"""Which topics there are, as a DataFrame; topics as tables of SQL."""

from typing import Final

import pulsar
import pulsar.schema
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import magnetar.spark
from magnetar.inspect.broker_admin import AdminClient
from magnetar_core.runtime.types import ConfigurationError
from tests.spark.conftest import Load
from tests.spark.test_standalone import numbers, send_all
from tests.support.processes import Standalone

pytestmark = [pytest.mark.spark, pytest.mark.process]


INTERNAL: Final = "persistent://public/listed/__internal"


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()


@pytest.fixture(scope="module")
def url(standalone: Standalone, client: pulsar.Client) -> str:
    admin = AdminClient([standalone.admin_url])
    admin.call("PUT", "/admin/v2/namespaces/public/listed")
    admin.create_topic("public/listed/parts", 2)
    admin.create_topic("public/listed/empty", 0)
    send_all(client, "persistent://public/listed/parts-partition-1", numbers(0, 50))
    for _ in range(2):
        send_all(client, "persistent://public/listed/plain", numbers(0, 10))
        admin.call("PUT", "/admin/v2/persistent/public/listed/plain/unload")
    send_all(client, INTERNAL, numbers(0, 1))
    send_all(
        client, "persistent://public/listed/typed", [Order(number=7)], schema=pulsar.schema.AvroSchema(Order)
    )  # fmt: skip
    return f"rocksdb:{standalone.data / 'metadata'}"


def test_topics_are_listed_with_ledgers_sizes_ends_and_schemas(spark: SparkSession, url: str, load: Load) -> None:
    frame = magnetar.spark.topics(spark, url, "public/listed")
    rows = {(row.topic.rpartition("/")[2], row.partition): row for row in frame.collect()}
    assert list(rows) == [("empty", None), ("parts", 0), ("parts", 1), ("plain", None), ("typed", None)]
    empty, part, plain, typed = rows["empty", None], rows["parts", 1], rows["plain", None], rows["typed", None]
    assert (empty.ledgers, empty.entries, empty.end, empty.schema_type) == (0, 0, None, "NONE")
    assert (part.ledgers, part.entries, plain.ledgers) == (1, 50, 2)
    assert part.size_bytes > 50 * 10
    assert (typed.schema_type, typed.schema_versions) == ("AVRO", 1)
    assert '"name":"Order"' in typed.schema.replace(" ", "")
    ending = f'{{"public/listed/plain": {{"0": "{plain.end}"}}}}'
    assert load("public/listed/plain", endingOffsets=ending).count() == 20


def test_all_namespaces_are_listed_and_names_are_chosen(spark: SparkSession, url: str) -> None:
    everything = magnetar.spark.topics(spark, url)
    assert everything.where(f.col("topic") == "persistent://public/listed/plain").count() == 1
    some = magnetar.spark.topics(spark, url, "public/listed", topicsPattern="p.*")
    assert some.select("topic").distinct().count() == 2
    assert everything.where(f.col("topic") == INTERNAL).count() == 0
    with_internal = magnetar.spark.topics(spark, url, includeInternal="true")
    assert with_internal.where(f.col("topic") == INTERNAL).count() == 1
    assert everything.exceptAll(with_internal.select(everything.columns)).count() == 0
    with pytest.raises(ConfigurationError, match=r"namespace listed: expected tenant/namespace"):
        magnetar.spark.topics(spark, url, "listed")


def test_a_topic_is_a_table_of_sql(spark: SparkSession, client: pulsar.Client, url: str) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW typed_view USING magnetar OPTIONS (metadata.url '{url}', "
        "topic 'public/listed/typed', valueFormat 'auto')"
    )
    assert [row.number for row in spark.sql("SELECT number FROM typed_view WHERE number > 3").collect()] == [7]
    spark.sql("DROP TABLE IF EXISTS plain_table")
    spark.sql(
        f"CREATE TABLE plain_table USING magnetar OPTIONS (metadata.url '{url}', topic 'public/listed/plain', "
        "valueFormat 'string', columns 'value,__key')"
    )
    try:
        assert spark.table("plain_table").columns == ["value", "__key"]
        assert spark.sql("SELECT count(*), max(int(value)) FROM plain_table").collect() == [(20, 9)]
        assert spark.sql("SELECT __key FROM plain_table LIMIT 1").collect() == [(None,)]
        send_all(client, "persistent://public/listed/plain", numbers(20, 5))
        assert spark.table("plain_table").count() == 25, "each query reads what there is"
    finally:
        spark.sql("DROP TABLE plain_table")


def test_a_table_with_columns_of_its_own_says_what_to_do(spark: SparkSession, url: str) -> None:
    spark.sql(
        f"CREATE TABLE own_columns (value string) USING magnetar OPTIONS (metadata.url '{url}', topic 'plain', "
        "valueFormat 'string')"
    )
    try:
        with pytest.raises(AnalysisException, match=r"(?s)no metadata.url.*create it without columns"):
            spark.table("own_columns").count()
    finally:
        spark.sql("DROP TABLE own_columns")


@pytest.mark.parametrize("more", ["", ", service.url 'pulsar://127.0.0.1:6650'"])
def test_insert_says_how_rows_are_written(spark: SparkSession, url: str, more: str) -> None:
    spark.sql(
        f"CREATE TABLE inserted USING magnetar OPTIONS (metadata.url '{url}', topic 'public/listed/plain', "
        f"columns 'value'{more})"
    )
    try:
        with pytest.raises(
            AnalysisException, match=r"(?s)An INSERT has none of its table's options: write with df\.write"
        ):
            spark.sql("INSERT INTO inserted VALUES (X'00')")
    finally:
        spark.sql("DROP TABLE inserted")
