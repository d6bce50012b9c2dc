"""Values that are pairs of a key and a value, each with a schema of its own (Pulsar's KeyValue). No IO.

    schema   ┌──────────┬────────────┬──────────┬──────────────┐   properties: key.schema.type, value.schema.type,
             │ size (4) │ key schema │ size (4) │ value schema │               kv.encoding.type
             └──────────┴────────────┴──────────┴──────────────┘
    INLINE   ┌──────────┬─────┬──────────┬───────┐
             │ size (4) │ key │ size (4) │ value │                 a size of -1 is a null
             └──────────┴─────┴──────────┴───────┘

SEPARATED: the key of the message is the key (base64; null_partition_key is a null), the payload is the value.
(docs/formats/pulsar.md; bytes of Java's client: tests/vectors/entries/plain-public-default-kv-*.json)
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from connectors.spark.batches.borders import Numbers
from connectors.spark.batches.columnar import Messages
from connectors.spark.values.records import Decode, Values
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.errors import IncompatibleSchema
from managed_ledger.schemas.compatibility import SchemaType, split_key_value
from managed_ledger.schemas.stored import StoredSchema

_SIZE: Final = struct.Struct(">i")
_ENCODING: Final = "kv.encoding.type"
_INLINE, _SEPARATED = "INLINE", "SEPARATED"


class Halves(NamedTuple):
    """What a KeyValue schema consists of."""

    is_apart: bool
    key: StoredSchema
    value: StoredSchema


def halves_of(schema: StoredSchema, topic: str) -> Halves:
    """Raises ConfigurationError naming the topic."""
    encoding = dict(schema.schema.properties).get(_ENCODING, _INLINE)
    try:
        if encoding not in (_INLINE, _SEPARATED):
            raise IncompatibleSchema(f"its {_ENCODING} is {encoding}")
        key, value = split_key_value(schema.schema)
        if SchemaType.KEY_VALUE in (key.type, value.type):
            raise IncompatibleSchema("it is a pair of pairs")
    except IncompatibleSchema as error:
        raise ConfigurationError(
            f"the schema of {topic} cannot be understood ({error}); read it with valueFormat=binary"
        ) from None
    return Halves(encoding == _SEPARATED, schema._replace(schema=key), schema._replace(schema=value))


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Key and value of INLINE bytes. Raises ValueError."""
    parts: list[bytes | None] = []
    at = 0
    for name in ("key", "value"):
        if len(data) < at + _SIZE.size:
            raise ValueError(f"the {name} is missing")
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size
        if size < -1 or at + size > len(data):
            raise ValueError(f"the {name} would have {size} bytes, of {len(data) - at}")
        parts.append(None if size == -1 else data[at : at + size])
        at += max(size, 0)
    if at < len(data):
        raise ValueError(f"{len(data) - at} bytes follow the value")
    key, value = parts
    return key, value


class KeyValueValues:
    """Pairs, as columns `key` and `value`."""

    names = frozenset({"key", "value"})

    def __init__(self, key: tuple[Values, bool], value: tuple[Values, bool], *, is_apart: bool) -> None:
        """Each half with whether it is a record, and so a struct."""
        self._halves = (key, value)
        self.has_keys_apart = is_apart
        self.default_bytes = key[0].default_bytes + value[0].default_bytes

    def decoder(self, version: int | None) -> Decode:
        decode_key, decode_value = (_whole(values.decoder(version), is_record) for values, is_record in self._halves)

        def decode(data: bytes) -> dict[str, Any]:
            try:
                key, value = split(data)
            except ValueError as error:
                raise Corruption(f"it is no pair of key and value: {error}") from None
            return {
                "key": None if key is None else decode_key(key),
                "value": None if value is None else decode_value(value),
            }

        return decode

    def columns(
        self, version: int | None, messages: Messages, rows: Numbers, wanted: Sequence[pa.Field]
    ) -> dict[str, pa.Array] | None:
        return None


def _whole(decode: Decode, is_record: bool) -> Any:
    return decode if is_record else lambda data: decode(data)["value"]
