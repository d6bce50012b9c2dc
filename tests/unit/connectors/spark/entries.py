"""Entries as producers make them, and a slow function that defines which rows they become."""

import base64
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from connectors.spark.options.metadata_columns import METADATA_COLUMNS
from connectors.spark.task.entries import open_entry
from connectors.spark.task.rows import RowBuilder
from connectors.spark.values.records import Values
from magnetar_core.runtime.types import Buffer
from managed_ledger.messages import broker_metadata_of, encode_entry, messages_of, split_entry
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata, SingleMessageMetadata

TOPIC = "persistent://public/default/t"
ALL_METADATA = tuple(METADATA_COLUMNS)
PUBLISHED_MS = 1_700_000_000_123


def metadata_of(**fields: Any) -> MessageMetadata:
    return MessageMetadata(**{"producer_name": "p", "sequence_id": 7, "publish_time": PUBLISHED_MS, **fields})


def single(payload: bytes, **fields: Any) -> bytes:
    """An entry without a batch."""
    return encode_entry(metadata_of(**fields), payload)


def batch_payload(messages: Iterable[tuple[SingleMessageMetadata, bytes]]) -> bytes:
    parts = []
    for meta, payload in messages:
        encoded = meta.SerializeToString()
        parts += [len(encoded).to_bytes(4, "big"), encoded, payload]
    return b"".join(parts)


def message(payload: bytes, **fields: Any) -> tuple[SingleMessageMetadata, bytes]:
    return SingleMessageMetadata(payload_size=len(payload), **fields), payload


def batch(*messages: tuple[SingleMessageMetadata, bytes], **fields: Any) -> bytes:
    return encode_entry(metadata_of(num_messages_in_batch=len(messages), **fields), batch_payload(messages))


def with_broker_metadata(entry: bytes, block: bytes) -> bytes:
    return b"\x0e\x02" + len(block).to_bytes(4, "big") + block + entry


def field_of(name: str, value_type: t.DataType | None = None) -> t.StructField:
    if name in METADATA_COLUMNS:
        return t.StructField(name, *METADATA_COLUMNS[name])
    return t.StructField(name, value_type or t.BinaryType(), True)


def schema_of(names: Sequence[str], value_type: t.DataType | None = None) -> pa.Schema:
    return to_arrow_schema(t.StructType([field_of(name, value_type) for name in names]), timezone="UTC")


def builder_of(
    names: Sequence[str],
    value_type: t.DataType | None = None,
    *,
    partition: int = -1,
    values: Values | None = None,
    by_heads: bool = False,
) -> RowBuilder:
    return RowBuilder(schema_of(names, value_type), TOPIC, partition, values, by_heads=by_heads)


def add(builder: RowBuilder, entry_id: int, data: Buffer, ledger_id: int = 3) -> None:
    opened = open_entry(TOPIC, ledger_id, entry_id, data)
    if opened is not None:
        builder.add(opened)


def rows_of(
    entries: Sequence[Buffer],
    names: Sequence[str] = ("value",),
    value_type: t.DataType | None = None,
    *,
    partition: int = -1,
    values: Values | None = None,
    by_heads: bool = False,
) -> list[dict[str, Any]]:
    """What the builder makes of entries 0, 1, … of ledger 3."""
    builder = builder_of(names, value_type, partition=partition, values=values, by_heads=by_heads)
    for entry_id, data in enumerate(entries):
        add(builder, entry_id, data)
    (taken,) = builder.take()
    assert taken.schema == schema_of(names, value_type)
    taken.validate(full=True)
    return plain(taken)


def plain(taken: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows with times as microseconds: those of Python end in the year 9999."""
    columns = {}
    for name, column in zip(taken.schema.names, taken.columns, strict=True):
        columns[name] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    for name in {"__messageProperties"} & columns.keys():
        columns[name] = [dict(pairs) for pairs in columns[name]]
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def slow_rows(entries: Sequence[Buffer], *, partition: int = -1) -> list[dict[str, Any]]:
    """All columns of unchunked entries 0, 1, … of ledger 3, message by message."""
    rows = []
    for entry_id, data in enumerate(entries):
        metadata, one_by_one = messages_of(data)
        messages = list(one_by_one)
        if metadata.HasField("marker_type"):
            continue
        broker = broker_metadata_of(split_entry(data))
        for found in messages:
            own: Any = metadata if found.single is None else found.single
            if found.single is not None and found.single.compacted_out:
                continue
            place = max(found.batch_index, 0)
            position = MessageIdData(ledgerId=3, entryId=entry_id)
            if partition >= 0:
                position.partition = partition
            if found.single is not None:
                position.batch_index = place
                position.batch_size = metadata.num_messages_in_batch
            key = None
            if own.HasField("partition_key") and not own.null_partition_key:
                key = (
                    base64.b64decode(own.partition_key) if own.partition_key_b64_encoded else own.partition_key.encode()
                )
            sequence_id = metadata.sequence_id + place
            if found.single is not None and found.single.HasField("sequence_id"):
                sequence_id = found.single.sequence_id
            index = None
            if broker is not None and broker.HasField("index"):
                index = broker.index - len(messages) + 1 + place
            rows.append(
                {
                    "value": None if own.null_value else bytes(found.payload),
                    "__key": key,
                    "__topic": TOPIC,
                    "__messageId": position.SerializeToString(),
                    "__publishTime": metadata.publish_time * 1000,
                    "__eventTime": own.event_time * 1000 or None,
                    "__messageProperties": {item.key: item.value for item in own.properties},
                    "__partition": partition,
                    "__ledgerId": 3,
                    "__entryId": entry_id,
                    "__batchIndex": found.batch_index,
                    "__index": index,
                    "__sequenceId": sequence_id,
                    "__producerName": metadata.producer_name,
                    "__schemaVersion": metadata.schema_version or None,
                    "__schemaId": metadata.schema_id or None,
                    "__orderingKey": own.ordering_key if own.HasField("ordering_key") else None,
                    "__deliverAt": metadata.deliver_at_time * 1000 or None,
                    "__replicatedFrom": metadata.replicated_from or None,
                }
            )
    return rows
