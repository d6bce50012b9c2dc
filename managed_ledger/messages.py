"""What an entry of a topic holds, as bytes and values. No IO.

    ┌──────────────────────────────────────┐
    │ 0x0e02 │ size (4) │ BrokerEntryMeta  │   only where the broker is set up to add it
    ├──────────────────────────────────────┤
    │ 0x0e01 │ crc32c (4)                  │   nearly always; covers everything below
    ├──────────────────────────────────────┤
    │ size (4) │ MessageMetadata           │
    │ payload (the rest)                   │   compressed as a whole; with num_messages_in_batch present:
    └──────────────────────────────────────┘   repeated  size (4) │ SingleMessageMetadata │ payload

All numbers are big-endian. An entry is stored byte for byte as the producer sent it: writing the metadata anew would
break the checksum and lose fields that we do not know. (docs/formats/pulsar.md)
"""

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import cramjam
from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import MIB, Buffer, Corruption
from magnetar_core.topics.batches import BATCHED_BYTES_MIN, check_count, message_at
from magnetar_core.topics.metadata import ORDINARY_METADATA_BYTES, fields_problem, has_broken_text, is_broken
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

# The declared size comes from the producer and may be false: a few kB can unpack to gigabytes. An entry is at most
# 5 MiB by default; clients compare the compressed size with that, so unpacked it may be somewhat larger.
UNCOMPRESSED_BYTES_MAX: Final = 64 * MIB

# The chunks of a message are joined before they are decompressed, so the message may be larger than an entry.
CHUNKED_BYTES_MAX: Final = 512 * MIB

# The most messages that a batch may claim to have. A few compressed bytes can stand for any number; this is more than
# fit uncompressed into an entry of the default maximum (5 MiB / 6 bytes).
BATCH_MESSAGES_MAX: Final = 1_000_000


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
        offset = 0
        broker_metadata = None
        checksum = None
        (magic,) = _U16.unpack_from(view, offset)
        if magic == MAGIC_BROKER_METADATA:
            (size,) = _U32.unpack_from(view, 2)
            broker_metadata = view[6 : 6 + size]
            offset = 6 + size
            (magic,) = _U16.unpack_from(view, offset)
        if magic == MAGIC_CHECKSUM:
            (checksum,) = _U32.unpack_from(view, offset + 2)
            offset += 6
        (size,) = _U32.unpack_from(view, offset)
    except struct.error:
        raise Corruption(f"an entry of {len(view)} bytes ends inside its headers") from None
    end = offset + 4 + size
    if end > len(view):
        raise Corruption(f"message metadata of {size} bytes at {offset + 4} leave an entry of {len(view)} bytes")
    return EntryParts(broker_metadata, checksum, view[offset:], view[offset + 4 : end], view[end:])


def checksum_ok(data: Buffer) -> bool | None:
    """Whether the stored CRC32C fits; None where the entry has none."""
    parts = split_entry(data)
    return None if parts.checksum is None else crc32c(parts.checksummed) == parts.checksum


def parse_metadata(data: Buffer) -> MessageMetadata:
    """The message metadata of an entry. Raises Corruption."""
    return metadata_of(split_entry(data))


def metadata_of(parts: EntryParts) -> MessageMetadata:
    """The message metadata in an entry that was split. Raises Corruption."""
    if (problem := metadata_problem(parts)) is not None:
        raise Corruption(problem)
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(bytes(parts.metadata))
    except DecodeError as error:
        raise Corruption(f"message metadata cannot be decoded: {error}") from None
    if is_broken(metadata.producer_name) or has_broken_text(metadata):
        raise Corruption("message metadata hold text that is not UTF-8")
    return metadata


_KEYS: Final = tuple(
    MessageMetadata.DESCRIPTOR.fields_by_name[name].number << 3 | 2 for name in ("partition_key", "ordering_key")
)


def metadata_problem(parts: EntryParts) -> str | None:
    """Why the metadata of an entry are too much to work on; None: they are not."""
    size_bytes = len(parts.metadata)
    return fields_problem(parts.metadata, _KEYS) if size_bytes > ORDINARY_METADATA_BYTES else None


def broker_metadata_of(parts: EntryParts) -> BrokerEntryMetadata | None:
    """The block that a broker put in front, if there is one. Raises Corruption."""
    if parts.broker_metadata is None:
        return None
    try:
        return BrokerEntryMetadata.FromString(bytes(parts.broker_metadata))
    except DecodeError as error:
        raise Corruption(f"broker entry metadata cannot be decoded: {error}") from None


def without_broker_metadata(data: Buffer) -> Buffer:
    """The entry without the broker's block, for clients that do not know it. Raises Corruption."""
    parts = split_entry(data)
    if parts.broker_metadata is None:
        return data
    return memoryview(data)[6 + len(parts.broker_metadata) :]


def is_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload has the batch layout; presence counts, even of the number 1."""
    return metadata.HasField("num_messages_in_batch")


def batch_problem(metadata: MessageMetadata, payload_bytes: int) -> str | None:
    """Why an entry with *payload_bytes* of stored payload cannot be the batch that its metadata describe; None: it can.

    The number of messages is what the producer claims. This checks what can be checked without decoding them.
    """
    if not is_batch(metadata):
        return None
    count = metadata.num_messages_in_batch
    if count < 1:
        return f"num_messages_in_batch is {count}; a batch has at least one message"
    if count > BATCH_MESSAGES_MAX:
        return f"num_messages_in_batch is {count}; a batch has at most {BATCH_MESSAGES_MAX} messages"
    room = payload_bytes if metadata.compression == NONE else metadata.uncompressed_size
    if count * BATCHED_BYTES_MIN > room:
        return (
            f"num_messages_in_batch is {count}, but {room} bytes hold at most {room // BATCHED_BYTES_MIN} messages of "
            f"{BATCHED_BYTES_MIN} bytes or more"
        )
    return None


def message_count(metadata: MessageMetadata, payload_bytes: int) -> int:
    """How many messages an entry counts as. An entry that claims to be a batch and cannot be one counts as one message;
    clients count it as one too, when they drop it."""
    if not is_batch(metadata) or batch_problem(metadata, payload_bytes) is not None:
        return 1
    return metadata.num_messages_in_batch


def decompress(codec: int, data: Buffer, uncompressed_size: int, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> Buffer:
    """Exactly *uncompressed_size* bytes, which may be *bytes_max* at most. Raises Corruption for anything else.

    Never takes more memory than the declared size, whatever the data unpack to.

    Java's writer does not end its ZLIB stream (it leaves a sync flush and no Adler-32), so the stream is read up to the
    declared size, and its end is not checked.
    """
    if codec == NONE:
        return bytes(data)
    if uncompressed_size > bytes_max:
        raise Corruption(f"uncompressed_size {uncompressed_size} is above the limit of {bytes_max}")
    if codec not in (LZ4, ZLIB, ZSTD, SNAPPY):
        raise Corruption(f"unknown compression type {codec}")
    try:
        if codec == ZLIB:
            # One byte more than declared shows data that unpack to more. (0 would mean: without a limit.)
            result: Buffer = zlib.decompressobj().decompress(data, uncompressed_size + 1)
            size = len(result)
        else:
            result, size = _decompress_into(codec, bytes(data), uncompressed_size)
    except (cramjam.DecompressionError, zlib.error) as error:
        raise Corruption(
            f"compressed payload of {len(data)} bytes cannot be unpacked to the {uncompressed_size} bytes that its "
            f"metadata say: {error}"
        ) from None
    if size != uncompressed_size:
        at_least = "at least " if codec == ZLIB and size > uncompressed_size else ""
        raise Corruption(f"payload decompressed to {at_least}{size} bytes, its metadata say {uncompressed_size}")
    return result


def _decompress_into(codec: int, data: bytes, uncompressed_size: int) -> tuple[Buffer, int]:
    """A buffer of the declared size, and how much of it was written; cramjam raises where it is too small."""
    result = bytearray(uncompressed_size)
    if codec == LZ4:
        size = cramjam.lz4.decompress_block_into(data, result, output_len=uncompressed_size)
    elif codec == ZSTD:
        size = cramjam.zstd.decompress_into(data, result)
    else:
        size = cramjam.snappy.decompress_raw_into(data, result)
    return result, int(size)


def compress(codec: int, data: bytes) -> bytes:
    """*data* as clients and Java's brokers unpack it; the reverse of `decompress`."""
    if codec == NONE:
        return data
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if codec == ZLIB:
        return zlib.compress(data)
    if codec == ZSTD:
        return bytes(cramjam.zstd.compress(data, level=3))
    assert codec == SNAPPY, codec
    return bytes(cramjam.snappy.compress_raw(data))


def payload_of(parts: EntryParts, metadata: MessageMetadata, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> Buffer:
    """The payload without compression. Not for chunks (join them first) nor for encrypted ones. Raises Corruption."""
    if metadata.compression == NONE:
        return parts.payload
    return decompress(metadata.compression, parts.payload, metadata.uncompressed_size, bytes_max)


def iterate_batch(payload: Buffer, count: int) -> Iterator[Message]:
    """The *count* messages of an uncompressed batch, in order. Raises Corruption.

    Messages that compaction emptied (`compacted_out`) are yielded too: they have an index. Messages are made one at a
    time: as objects they take a hundred times the bytes that they have in the batch.
    """
    view = memoryview(payload)
    check_count(count, len(view))
    offset = 0
    for index in range(count):
        single, start, offset = message_at(view, offset, index, count)
        yield Message(index, single, view[start:offset])


def messages_of(data: Buffer) -> tuple[MessageMetadata, Iterator[Message]]:
    """The metadata of the entry *data*, and its messages. Raises Corruption where `messages_in` does."""
    parts = split_entry(data)
    metadata = metadata_of(parts)
    return metadata, messages_in(parts, metadata)


def messages_in(
    parts: EntryParts, metadata: MessageMetadata, bytes_max: int = UNCOMPRESSED_BYTES_MAX
) -> Iterator[Message]:
    """The messages of an entry one by one, decompressed and taken out of their batch.

    Markers and chunks come as one message each, as they are stored. Raises Corruption (wrong checksum included) at
    once for the entry as a whole, and later where a message of its batch is damaged.
    """
    return messages_from(metadata, opened_payload(parts, metadata, bytes_max))


def is_sealed(metadata: MessageMetadata) -> bool:
    """Whether the payload says nothing by itself: that of a marker or of a chunk, or an encrypted one."""
    return metadata.HasField("marker_type") or metadata.num_chunks_from_msg > 1 or bool(metadata.encryption_keys)


def is_open_batch(metadata: MessageMetadata) -> bool:
    """Whether the payload, without compression, is a batch that can be taken apart."""
    return is_batch(metadata) and not is_sealed(metadata)


def opened_payload(parts: EntryParts, metadata: MessageMetadata, bytes_max: int = UNCOMPRESSED_BYTES_MAX) -> Buffer:
    """The payload without compression, or as it is stored if it is sealed. Raises Corruption (wrong checksum included),
    also for a batch that cannot be one."""
    if parts.checksum is not None and crc32c(parts.checksummed) != parts.checksum:
        raise Corruption(f"entry of {len(parts.checksummed)} bytes does not have its checksum {parts.checksum:08x}")
    if is_sealed(metadata):
        return parts.payload
    problem = batch_problem(metadata, len(parts.payload))
    if problem is not None:
        raise Corruption(problem)
    return payload_of(parts, metadata, bytes_max)


def messages_from(metadata: MessageMetadata, payload: Buffer) -> Iterator[Message]:
    """The messages in an opened payload. Raises Corruption where a message of a batch is damaged."""
    if is_open_batch(metadata):
        return iterate_batch(payload, metadata.num_messages_in_batch)
    return iter([Message(-1, None, memoryview(payload))])


def encode_entry(metadata: MessageMetadata, payload: Buffer) -> bytes:
    """A new entry with its checksum, for messages that this program makes itself."""
    encoded = metadata.SerializeToString()
    head = _U32.pack(len(encoded)) + encoded
    # Joined once: each copy of a large entry costs as much as its checksum, or more.
    return b"".join((_U16.pack(MAGIC_CHECKSUM), _U32.pack(crc32c(payload, crc32c(head))), head, payload))
