"""The columns beside the values: what is known of each message. No IO, and quick to import."""

from typing import Final

from pyspark.sql import types as t

# Metadata columns: name → (Spark type, nullable). The first ones are the default, in pulsar-spark's order.
METADATA_COLUMNS: Final[dict[str, tuple[t.DataType, bool]]] = {
    "__key": (t.BinaryType(), True),
    "__topic": (t.StringType(), False),
    "__messageId": (t.BinaryType(), False),
    "__publishTime": (t.TimestampType(), False),
    "__eventTime": (t.TimestampType(), True),
    "__messageProperties": (t.MapType(t.StringType(), t.StringType(), False), False),
    "__partition": (t.IntegerType(), False),
    "__ledgerId": (t.LongType(), False),
    "__entryId": (t.LongType(), False),
    "__batchIndex": (t.IntegerType(), False),
    "__index": (t.LongType(), True),
    "__sequenceId": (t.LongType(), False),
    "__producerName": (t.StringType(), False),
    "__schemaVersion": (t.BinaryType(), True),
    "__schemaId": (t.BinaryType(), True),
    "__orderingKey": (t.BinaryType(), True),
    "__deliverAt": (t.TimestampType(), True),
    "__replicatedFrom": (t.StringType(), True),
}
DEFAULT_METADATA: Final = tuple(METADATA_COLUMNS)[:6]

NOT_OF_BAD_ENTRIES: Final = ("__publishTime", "__sequenceId", "__producerName", "__messageProperties")
"""What is null where an entry cannot be understood, and is never null otherwise."""
