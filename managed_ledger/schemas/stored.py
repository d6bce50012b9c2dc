"""A version of a schema, as it is stored, and its number, as clients write it. No IO."""

from typing import NamedTuple

from google.protobuf.message import DecodeError

from magnetar_core.runtime.types import Corruption
from managed_ledger.records.records_pb2 import SchemaEntry, SchemaInfo
from managed_ledger.schemas.compatibility import Schema, SchemaType


class StoredSchema(NamedTuple):
    """One version of a schema. A deletion is a version, too: a tombstone without definition."""

    version: int
    schema: Schema
    timestamp_ms: int
    user: str
    deleted: bool


def version_bytes(version: int) -> bytes:
    """A version as it stands in commands and message metadata: 8 bytes, big-endian."""
    return version.to_bytes(8, "big", signed=True)


def version_of(data: bytes) -> int | None:
    """The version that *data* means; None for no bytes. Old clients send 64 bytes, of which the first 8 count."""
    return int.from_bytes(data[:8], "big", signed=True) if len(data) >= 8 else None


def decode(schema_id: str, version: int, data: bytes) -> StoredSchema:
    """The schema in an entry. Raises Corruption."""
    try:
        info = SchemaInfo.FromString(SchemaEntry.FromString(data).schema_data)
        kind = SchemaType.of_stored(info.type)
    except (DecodeError, ValueError) as error:
        raise Corruption(f"version {version} of schema {schema_id} cannot be decoded: {error}") from None
    properties = tuple((item.key, item.value) for item in info.props)
    return StoredSchema(version, Schema(kind, info.schema, properties), info.timestamp, info.user, info.deleted)
