"""Entries that their producers encrypted, passed as they are: what decrypting takes, as columns. No IO.

    data key   one of `__encryptionKeys`, opened with the private key whose public one has that name
    payload    AES-GCM with the data key and `__encryptionParam` as its nonce (the algorithm of all clients)
               → decompress → split, if it is a batch

The messages of a batch cannot be separated before it is decrypted, so it is one row.
"""

from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import types as t

from magnetar_core.runtime.types import Corruption
from managed_ledger.messages_pb2 import CompressionType, MessageMetadata

Of = Callable[[MessageMetadata], Any]

# name → (Spark type, from the metadata of an encrypted entry)
_COLUMNS: Final[dict[str, tuple[t.DataType, Of]]] = {
    "__encryptionKeys": (
        t.MapType(t.StringType(), t.BinaryType(), False),
        lambda metadata: {key.key: key.value for key in metadata.encryption_keys},
    ),
    "__encryptionParam": (t.BinaryType(), lambda metadata: metadata.encryption_param),
    "__encryptionAlgorithm": (t.StringType(), lambda metadata: metadata.encryption_algo or None),
    "__encryptionCompression": (t.StringType(), lambda metadata: CompressionType.Name(metadata.compression)),
    "__encryptionUncompressedSize": (t.LongType(), lambda metadata: metadata.uncompressed_size or None),
    "__encryptionBatchSize": (
        t.IntegerType(),
        lambda metadata: metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
    ),
}

ENCRYPTION_COLUMNS: Final = {name: kind for name, (kind, _) in _COLUMNS.items()}
"""All may be null: in rows that are not encrypted. The size of a batch is null where a message stands alone, the
uncompressed size where the producer did not say it."""


def value_of(name: str, metadata: MessageMetadata) -> Any:
    """The value of a column for one entry."""
    return _COLUMNS[name][1](metadata) if metadata.encryption_keys else None


def check_passable(metadata: MessageMetadata, *, is_passed: bool) -> None:
    """Raises Corruption for an encrypted entry that is not to be *passed*, or of which only a chunk would be."""
    if not metadata.encryption_keys:
        return
    names = ", ".join(sorted(str(key.key) for key in metadata.encryption_keys))  # bytes where it is not text
    if not is_passed:
        raise Corruption(
            f"it is encrypted, with the keys {names}, and this reader has none; consume it with a client, or set "
            "encrypted=raw and valueFormat=binary to get the bytes as they are"
        )
    if metadata.num_chunks_from_msg > 1:
        raise Corruption(
            f"it is a chunk of a message that is encrypted chunk by chunk, with the keys {names}; consume it with a "
            "Pulsar client"
        )
