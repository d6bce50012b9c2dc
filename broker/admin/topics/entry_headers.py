"""One entry of a topic as an HTTP answer: its metadata as headers, its payload as the body. No IO.

Names, order and spelling of the headers are those of Apache's brokers (recorded: tests/vectors/messages).

Rules:

1. Header values hold no control characters, so that no producer can add headers to an answer.
2. The payload is decompressed, unless it is encrypted or a chunk: those are returned as they are stored.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from magnetar_core.runtime.types import Buffer
from managed_ledger.messages import broker_metadata_of, metadata_of, payload_of, split_entry
from managed_ledger.messages_pb2 import CompressionType, MessageMetadata
from managed_ledger.position import Position

_CONTROLS: Final = dict.fromkeys((*range(32), 127), " ")


def time_text(ms: int) -> str:
    """A time as Apache's brokers write it: no digit of the fraction is a zero at its end."""
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):  # a producer may claim any number
        return str(ms)
    fraction = f".{ms % 1000:03}".rstrip("0").rstrip(".")
    return f"{moment:%Y-%m-%dT%H:%M:%S}{fraction}Z"


def entry_answer(position: Position, data: Buffer) -> tuple[list[tuple[str, str]], Buffer]:
    """Headers and payload of an entry. Raises Corruption."""
    parts = split_entry(data)
    metadata = metadata_of(parts)
    headers = [("X-Pulsar-Message-ID", str(position))]
    properties = {item.key: item.value for item in metadata.properties}
    headers.append(("X-Pulsar-PROPERTY", json.dumps(properties, separators=(",", ":"))))
    stamped = broker_metadata_of(parts)
    if stamped is not None and stamped.HasField("broker_timestamp"):
        headers.append(("X-Pulsar-Broker-Entry-METADATA-timestamp", time_text(stamped.broker_timestamp)))
    if stamped is not None and stamped.HasField("index"):
        headers.append(("X-Pulsar-Broker-Entry-METADATA-index", str(stamped.index)))
    headers += _of_metadata(metadata, len(memoryview(data)) - len(parts.metadata))
    is_stored_form = bool(metadata.encryption_keys) or metadata.num_chunks_from_msg > 1
    payload = parts.payload if is_stored_form else payload_of(parts, metadata)
    return [(name, value.translate(_CONTROLS)) for name, value in headers], payload


def _of_metadata(metadata: MessageMetadata, rest_bytes: int) -> Iterator[tuple[str, str]]:
    """*rest_bytes*: the entry without its metadata."""
    has = metadata.HasField
    for name, field in (("publish-time", "publish_time"), ("event-time", "event_time")):
        if has(field):
            yield f"X-Pulsar-{name}", time_text(getattr(metadata, field))
    if has("deliver_at_time"):
        yield "X-Pulsar-deliver-at-time", time_text(metadata.deliver_at_time)
    if has("num_messages_in_batch"):
        yield "X-Pulsar-num-batch-message", str(metadata.num_messages_in_batch)
        yield "X-Pulsar-batch-size", str(rest_bytes)
    if has("null_value"):
        yield "X-Pulsar-null-value", _truth(metadata.null_value)
    if has("num_chunks_from_msg"):
        yield "X-Pulsar-PROPERTY-TOTAL-CHUNKS", str(metadata.num_chunks_from_msg)
        yield "X-Pulsar-PROPERTY-CHUNK-ID", str(metadata.chunk_id)
    yield "X-Pulsar-Is-Encrypted", _truth(bool(metadata.encryption_keys))
    yield "X-Pulsar-producer-name", metadata.producer_name
    yield "X-Pulsar-sequence-id", str(metadata.sequence_id)
    if has("replicated_from"):
        yield "X-Pulsar-replicated-from", metadata.replicated_from
    for cluster in metadata.replicate_to:
        yield "X-Pulsar-replicated-to", cluster
    if has("partition_key"):
        yield "X-Pulsar-partition-key", metadata.partition_key
    if has("compression"):
        yield "X-Pulsar-compression", CompressionType.Name(metadata.compression)
    if has("uncompressed_size"):
        yield "X-Pulsar-uncompressed-size", str(metadata.uncompressed_size)
    if has("encryption_algo"):
        yield "X-Pulsar-encryption-algo", metadata.encryption_algo
    for key in metadata.encryption_keys:
        yield "X-Pulsar-Base64-encryption-keys", _base64(key.SerializeToString())
    if has("encryption_param"):
        yield "X-Pulsar-Base64-encryption-param", _base64(metadata.encryption_param)
    if has("schema_version"):
        yield "X-Pulsar-Base64-schema-version", _base64(metadata.schema_version)
    if has("partition_key_b64_encoded"):
        yield "X-Pulsar-partition-key-b64-encoded", _truth(metadata.partition_key_b64_encoded)
    if has("ordering_key"):
        yield "X-Pulsar-Base64-ordering-key", _base64(metadata.ordering_key)
    for name, field in _NUMBERS:
        if has(field):
            yield f"X-Pulsar-{name}", str(getattr(metadata, field))
    if has("null_partition_key"):
        yield "X-Pulsar-null-partition-key", _truth(metadata.null_partition_key)
    # Topics with messages of transactions are not opened, so nothing waits for the end of one.
    yield "X-Pulsar-txn-uncommitted", "false"


_NUMBERS: Final = (
    ("marker-type", "marker_type"),
    ("txnid-least-bits", "txnid_least_bits"),
    ("txnid-most-bits", "txnid_most_bits"),
    ("highest-sequence-id", "highest_sequence_id"),
    ("uuid", "uuid"),
    ("num-chunks-from-msg", "num_chunks_from_msg"),
    ("total-chunk-msg-size", "total_chunk_msg_size"),
    ("chunk-id", "chunk_id"),
)


def _truth(value: bool) -> str:
    return "true" if value else "false"


def _base64(data: bytes) -> str:
    return b64encode(data).decode()
