"""Topics in Spark, beside `spark.read.format("magnetar")`. (docs/spark.md)"""

from typing import TYPE_CHECKING

from connectors.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["register", "topics"]


def topics(spark: "SparkSession", metadata_url: str, namespace: str | None = None, **options: str) -> "DataFrame":
    """The topics of a cluster as they are now: one row for each partition, or topic without partitions.

    *namespace* is `tenant/namespace`; None stands for all. *options* are those of reading, such as
    `includeInternal="true"`, or `topicsPattern` for the last parts of the names, or whole names of one namespace.

    Columns: topic, partition (null without partitions), ledgers and entries (that there are now), size_bytes (one copy
    of each entry), end (`ledger:entry` behind the last entry, null for an empty topic), schema_type, schema_versions,
    schema (the newest definition, null without one), problem. Where bookies are away, what is not known without them
    is null, and problem says why. Raises ConfigurationError, MetadataError.
    """
    from connectors.spark.plan.catalog import COLUMNS, list_topics

    return spark.createDataFrame(list_topics(metadata_url, namespace, options), COLUMNS)
