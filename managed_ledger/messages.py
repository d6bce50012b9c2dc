"""What an entry of a topic holds, as bytes and values.

    ┌──────────────────────────────────────┐
    │ 0x0e02 │ size (4) │ BrokerEntryMeta  │   only where the broker was told to add it
    ├──────────────────────────────────────┤
    │ 0x0e01 │ crc32c (4)                  │   nearly always; covers everything below
    ├──────────────────────────────────────┤
    │ size (4) │ MessageMetadata           │
    │ payload (the rest)                   │   compressed as a whole; with num_messages_in_batch present:
    └──────────────────────────────────────┘   repeated  size (4) │ SingleMessageMetadata │ payload

All numbers are big-endian. An entry is stored byte for byte as the producer sent it: writing the metadata anew would
break the checksum and lose fields that we do not know. (pulsar.md 1.1, 5.1)
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import cramjam
from google.protobuf.message import DecodeError

from magnetar.bookkeeper.wire.checksum import crc32c
from magnetar.runtime.types import MIB, Buffer, Corruption
from managed_ledger.messages_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    BrokerEntryMetadata,
    MessageMetadata,
    SingleMessageMetadata,
)

MAGIC_BROKER_METADATA: Final = 0x0E02
MAGIC_CHECKSUM: Final = 0x0E01

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")

# A lying uncompressed_size must not make us allocate without bound. A message may be 5 MiB by default, and chunked
# ones are joined before decompression and may be larger: nobody legitimately exceeds this.
UNCOMPRESSED_BYTES_MAX: Final = 512 * MIB


class EntryParts(NamedTuple):
    """The blocks of an entry; views into it, nothing is copied."""

    broker_metadata: memoryview | None
    checksum: int | None
    checksummed: memoryview
    metadata: memoryview
    payload: memoryview


class Message(NamedTuple):
    """One message of an entry. *batch_index* is -1 where the entry is not a batch."""

    batch_index: int
    single: SingleMessageMetadata | None
    payload: memoryview


def split_entry(data: Buffer) -> EntryParts:
    """Cut an entry at its blocks. Raises Corruption where a length leads outside of it."""
    view = memoryview(data)
    try:
        at = 0
        broker_metadata = None
        checksum = None
        (magic,) = _U16.unpack_from(view, at)
        if magic == MAGIC_BROKER_METADATA:
            (size,) = _U32.unpack_from(view, 2)
            broker_metadata = view[6 : 6 + size]
            at = 6 + size
            (magic,) = _U16.unpack_from(view, at)
        if magic == MAGIC_CHECKSUM:
            (checksum,) = _U32.unpack_from(view, at + 2)
            at += 6
        (size,) = _U32.unpack_from(view, at)
    except struct.error:
        raise Corruption(f"an entry of {len(view)} bytes ends inside its headers") from None
    end = at + 4 + size
    if end > len(view):
        raise Corruption(f"message metadata of {size} bytes at {at + 4} leave an entry of {len(view)} bytes")
    return EntryParts(broker_metadata, checksum, view[at:], view[at + 4 : end], view[end:])


def checksum_ok(data: Buffer) -> bool | None:
    """Whether the stored CRC32C fits; None where the entry has none."""
    parts = split_entry(data)
    return None if parts.checksum is None else crc32c(parts.checksummed) == parts.checksum


def parse_metadata(data: Buffer) -> MessageMetadata:
    """The message metadata of an entry. Raises Corruption."""
    return metadata_of(split_entry(data))


def metadata_of(parts: EntryParts) -> MessageMetadata:
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(bytes(parts.metadata))
    except DecodeError as error:
        raise Corruption(f"message metadata cannot be decoded: {error}") from None
    return metadata


def broker_metadata_of(parts: EntryParts) -> BrokerEntryMetadata | None:
    """The block that the broker put in front, if there is one."""
    if parts.broker_metadata is None:
        return None
    try:
        return BrokerEntryMetadata.FromString(bytes(parts.broker_metadata))
    except DecodeError as error:
        raise Corruption(f"broker entry metadata cannot be decoded: {error}") from None


def without_broker_metadata(data: Buffer) -> Buffer:
    """The entry as a client sees it that does not know the broker's block."""
    parts = split_entry(data)
    if parts.broker_metadata is None:
        return data
    return memoryview(data)[6 + len(parts.broker_metadata) :]


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload has the batch layout; presence counts, even of the number 1."""
    return metadata.HasField("num_messages_in_batch")


def message_count(metadata: MessageMetadata) -> int:
    return metadata.num_messages_in_batch if is_batch(metadata) else 1


def decompress(codec: int, data: Buffer, uncompressed_size: int) -> bytes:
    """Exactly *uncompressed_size* bytes. Raises Corruption for anything else.

    The Java writer of ZLIB leaves its stream without an end (a sync flush, no Adler-32), so the stream is read
    up to the size and its end is not asked for.
    """
    if codec == NONE:
        return bytes(data)
    if uncompressed_size > UNCOMPRESSED_BYTES_MAX:
        raise Corruption(f"uncompressed_size {uncompressed_size} is above the limit of {UNCOMPRESSED_BYTES_MAX}")
    try:
        if codec == LZ4:
            result = bytes(cramjam.lz4.decompress_block(bytes(data), output_len=uncompressed_size))
        elif codec == ZLIB:
            result = zlib.decompressobj().decompress(data, uncompressed_size) if uncompressed_size else b""
        elif codec == ZSTD:
            result = bytes(cramjam.zstd.decompress(bytes(data)))
        elif codec == SNAPPY:
            result = bytes(cramjam.snappy.decompress_raw(bytes(data)))
        else:
            raise Corruption(f"unknown compression type {codec}")
    except (cramjam.DecompressionError, zlib.error) as error:
        raise Corruption(f"compressed payload cannot be read: {error}") from None
    if len(result) != uncompressed_size:
        raise Corruption(f"payload decompressed to {len(result)} bytes, its metadata say {uncompressed_size}")
    return result


def payload_of(parts: EntryParts, metadata: MessageMetadata) -> Buffer:
    """The payload without compression. Not for chunks (join them first) nor for encrypted ones."""
    if metadata.compression == NONE:
        return parts.payload
    return decompress(metadata.compression, parts.payload, metadata.uncompressed_size)


def iterate_batch(payload: Buffer, count: int) -> Iterator[Message]:
    """The *count* messages of an uncompressed batch, in order. Raises Corruption.

    Messages that compaction emptied (`compacted_out`) are yielded too: they count an index.
    """
    view = memoryview(payload)
    at = 0
    for index in range(count):
        try:
            (size,) = _U32.unpack_from(view, at)
            single = SingleMessageMetadata.FromString(bytes(view[at + 4 : at + 4 + size]))
        except (struct.error, DecodeError) as error:
            raise Corruption(f"message {index} of a batch of {count} cannot be decoded: {error}") from None
        start = at + 4 + size
        at = start + single.payload_size
        if single.payload_size < 0 or at > len(view):
            raise Corruption(f"message {index} of a batch of {count} leaves its payload of {len(view)} bytes")
        yield Message(index, single, view[start:at])


def messages_of(data: Buffer) -> tuple[MessageMetadata, list[Message]]:
    """The metadata of an entry and its messages, decompressed and taken out of their batch.

    Markers and chunks come as one message each, as they are stored. Raises Corruption (wrong checksum included).
    """
    parts = split_entry(data)
    if parts.checksum is not None and crc32c(parts.checksummed) != parts.checksum:
        raise Corruption(f"entry of {len(parts.checksummed)} bytes does not have its checksum {parts.checksum:08x}")
    metadata = metadata_of(parts)
    if metadata.HasField("marker_type") or metadata.num_chunks_from_msg > 1 or metadata.encryption_keys:
        return metadata, [Message(-1, None, parts.payload)]
    payload = payload_of(parts, metadata)
    if not is_batch(metadata):
        return metadata, [Message(-1, None, memoryview(payload))]
    return metadata, list(iterate_batch(payload, metadata.num_messages_in_batch))


def encode_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """A new entry with checksum, for what this side writes itself."""
    encoded = metadata.SerializeToString()
    rest = _U32.pack(len(encoded)) + encoded + bytes(payload)
    return _U16.pack(MAGIC_CHECKSUM) + _U32.pack(crc32c(rest)) + rest
