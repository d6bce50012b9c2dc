"""Entries that their producers encrypted: decrypted, or passed as they are with what decrypting takes. No IO.

    data key   one of `__encryptionKeys`, opened with the private key whose public one has that name: RSA-OAEP, SHA-1,
               or for a key of an elliptic curve, which Java's client takes too, ECIES (`ecies.py`)
    payload    AES-GCM with the data key and `__encryptionParam` as its nonce, its tag of 16 bytes behind (the
               algorithm of all clients) → decompress → split, if it is a batch

A message in chunks is encrypted chunk by chunk, after it was compressed as a whole. The messages of a batch cannot be
separated before it is decrypted, so one that is passed as it is is one row.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol

from pyspark.sql import types as t

from magnetar_core.runtime.types import Buffer, Corruption
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


class PrivateKeys(Protocol):
    """Keys by the names that producers know them by."""

    def names(self) -> Iterable[str]: ...

    def key(self, name: str) -> Any:
        """A private key of `cryptography`; None: it is not there. Raises ConfigurationError."""
        ...


DATA_KEYS_MAX: Final = 1_000
"""Opened data keys that are kept: to open one takes a millisecond, and a producer has one for hours."""


class Decryption:
    """Decrypts entries of which one of the private keys is there."""

    def __init__(self, keys: PrivateKeys) -> None:
        self._keys = keys
        self._data_keys: dict[tuple[str, bytes], bytes] = {}

    def payload(self, metadata: MessageMetadata, payload: Buffer) -> bytes:
        """The payload of an encrypted entry as it was before; the metadata say afterwards that it is not encrypted.
        Raises Corruption, ConfigurationError."""
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        data_key = self._data_key(metadata)
        try:
            plain = AESGCM(data_key).decrypt(metadata.encryption_param, bytes(payload), None)
        except (InvalidTag, ValueError, OverflowError) as error:
            raise Corruption(f"it is encrypted, and does not decrypt with its data key ({error!r})") from None
        del metadata.encryption_keys[:]
        return plain

    def _data_key(self, metadata: MessageMetadata) -> bytes:
        reasons = []
        for key in metadata.encryption_keys:
            name, encrypted = str(key.key), key.value
            known = self._data_keys.get((name, encrypted))
            if known is not None:
                return known
            private = self._keys.key(name)
            if private is None:
                continue
            try:
                data_key = _decrypted_key(private, encrypted)
            except (ValueError, AttributeError) as error:  # a key of another kind has no `decrypt`
                reasons.append(f"its data key does not open with {name}: {error!r:.100}")
                continue
            if len(self._data_keys) >= DATA_KEYS_MAX:
                del self._data_keys[next(iter(self._data_keys))]
            self._data_keys[name, encrypted] = data_key
            return data_key
        has = ", ".join(sorted(self._keys.names()))
        needs = ", ".join(sorted(str(key.key) for key in metadata.encryption_keys))
        raise Corruption(
            f"it is encrypted, with the keys {needs}, and encryption.keys has {has}"
            + "".join(f"; {reason}" for reason in reasons)
        )


def _decrypted_key(private: Any, encrypted: bytes) -> bytes:
    """Raises ValueError."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
    from cryptography.hazmat.primitives.hashes import SHA1

    from connectors.spark.task import ecies

    if isinstance(private, EllipticCurvePrivateKey):
        return ecies.opened(private, encrypted)
    data_key: bytes = private.decrypt(encrypted, OAEP(MGF1(SHA1()), SHA1(), None))  # what the clients do
    return data_key


def check_passable(metadata: MessageMetadata, *, is_passed: bool) -> None:
    """Raises Corruption for an encrypted entry that is not to be *passed*, or of which only a chunk would be."""
    if not metadata.encryption_keys:
        return
    names = ", ".join(sorted(str(key.key) for key in metadata.encryption_keys))  # bytes where it is not text
    if not is_passed:
        raise Corruption(
            f"it is encrypted, with the keys {names}, and this reader has none; set encryption.keys to a folder with "
            "NAME.pem of one of them, or encrypted=raw and valueFormat=binary to get the bytes as they are"
        )
    if metadata.num_chunks_from_msg > 1:
        raise Corruption(
            f"it is a chunk of a message that is encrypted chunk by chunk, with the keys {names}; set encryption.keys "
            "instead of encrypted=raw, or consume it with a client"
        )
