"""Topics in Spark, beside `spark.read.format("magnetar")`. (docs/spark.md)"""

import json
from typing import TYPE_CHECKING

from connectors.spark.source import register
from connectors.spark.stream.offsets import Lag

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Lag", "lag", "register", "topics"]


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


def lag(query: "StreamingQuery") -> Lag | None:
    """How much was left in the topics of a streaming query when it planned its last batch: messages and bytes behind
    that batch, and seconds since the oldest of them was published. Messages are counted where brokers number them, else
    estimated.

    None: the query has not looked yet, what it repeats after a restart was planned before, or it reads no topics.
    """
    progress = query.lastProgress
    if progress is None:
        return None
    newest = [source.get("latestOffset") for source in json.loads(progress.json)["sources"]]
    lags = [Lag(**offset["behind"]) for offset in newest if isinstance(offset, dict) and "behind" in offset]
    if not lags:
        return None
    messages, size_bytes, seconds = zip(*lags, strict=True)
    return Lag(sum(messages), sum(size_bytes), max(seconds))
