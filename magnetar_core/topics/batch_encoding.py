"""Messages as the batch of a Pulsar client, and which of them a client of the topic API may put into one. No IO.

The format is drawn in `managed_ledger.messages`.

Rules of a client's batches:

1. A batch becomes an entry, so the rules of entries are its own: one key (unless the producer mixes keys), no message
   with a delivery time.
2. Few messages are no batch: brokers put those of several producers into one entry.
3. Order is kept: where a message may be in no batch, it and all behind it go as they are.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from magnetar_core.runtime.data.varint import varint
from magnetar_core.topics.metadata import ORDINARY_METADATA_BYTES
from magnetar_core.topics.topics_pb2 import Message, PublishRequest

# With fewer a batch gains nothing: to store an entry takes a broker as long as to make one of so many messages.
BATCH_MESSAGES_MIN: Final = 20

# What a batch has besides a message at most: the sizes of metadata and payload, its number, and their tags.
_HEAD_BYTES: Final = 4 + 6 + 10

_SIZE: Final = struct.Struct(">I")

# Tags of SingleMessageMetadata, in the order in which protobuf writes them.
_PROPERTY: Final = b"\x0a"
_KEY: Final = b"\x12"
_PAYLOAD_SIZE: Final = b"\x18"
_EVENT_TIME: Final = b"\x28"
_KEY_IS_BASE64: Final = b"\x30\x01"
_ORDERING_KEY: Final = b"\x3a"
_SEQUENCE_ID: Final = b"\x40"
_IS_NULL: Final = b"\x48\x01"


class BatchLimits(NamedTuple):
    """The largest batch that a broker stores as it is."""

    messages_max: int
    bytes_max: int


NO_BATCHES: Final = BatchLimits(0, 0)


def encode_messages(messages: Iterable[Message], sequence_ids: Iterable[int]) -> bytes:
    """*messages* as the payload of a batch."""
    parts: list[bytes] = []
    size_before = length_before = -1
    plain_head = b""
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        payload = message.payload
        size, number = len(payload), varint(sequence_id)
        if size != size_before or len(number) != length_before:
            size_before, length_before = size, len(number)
            size_field = _PAYLOAD_SIZE + varint(size)
            plain_head = _SIZE.pack(len(size_field) + 1 + len(number)) + size_field + _SEQUENCE_ID
            plain_size = size + len(size_field) if size else 0
        if message.ByteSize() == plain_size:  # nothing but a payload, as most messages are
            parts += (plain_head, number, payload)
        else:
            metadata = _metadata(message, size_field, number)
            parts += (_SIZE.pack(len(metadata)), metadata, payload)
    return b"".join(parts)


def _metadata(message: Message, size_field: bytes, number: bytes) -> bytes:
    """Of a message with more than a payload; *number*: its sequence id, encoded."""
    parts = []
    for name, value in message.properties.items():
        parts += [
            _PROPERTY,
            _with_length(b"\x0a" + _with_length(name.encode()) + b"\x12" + _with_length(value.encode())),
        ]
    if message.HasField("key"):
        parts += [_KEY, _with_length(message.key.encode())]
    parts.append(size_field)
    if message.event_time_ms:
        parts += [_EVENT_TIME, varint(message.event_time_ms)]
    if message.key_is_base64:
        parts.append(_KEY_IS_BASE64)
    if message.ordering_key:
        parts += [_ORDERING_KEY, _with_length(message.ordering_key)]
    parts += [_SEQUENCE_ID, number]
    if message.is_null:
        parts.append(_IS_NULL)
    return b"".join(parts)


def _with_length(data: bytes) -> bytes:
    return varint(len(data)) + data


def encode_batches(
    messages: Sequence[Message], first_sequence_id: int, limits: BatchLimits, *, mix_keys: bool
) -> tuple[list[PublishRequest.Batch], int]:
    """The first *messages* as batches, and how many these are (rules 1 to 3)."""
    batches: list[PublishRequest.Batch] = []
    begin = 0
    while len(messages) - begin >= BATCH_MESSAGES_MIN:
        end = _end_of_batch(messages, begin, limits, mix_keys)
        if end - begin < BATCH_MESSAGES_MIN:
            break
        first = first_sequence_id + begin
        batch = PublishRequest.Batch(
            messages=encode_messages(messages[begin:end], range(first, first + end - begin)), count=end - begin
        )
        if not mix_keys:
            sample = messages[begin]
            if sample.HasField("key"):
                batch.key, batch.key_is_base64 = sample.key, sample.key_is_base64
            batch.ordering_key = sample.ordering_key
        batches.append(batch)
        begin = end
    return batches, begin


def _end_of_batch(messages: Sequence[Message], begin: int, limits: BatchLimits, mix_keys: bool) -> int:
    """Where the batch that begins at *begin* has to end."""
    key: tuple[str, bool, bytes] | None = None
    size_bytes = 0
    end = min(len(messages), begin + limits.messages_max)
    for at in range(begin, end):
        message = messages[at]
        size = message.ByteSize()
        size_bytes += size + _HEAD_BYTES
        # Brokers look at the metadata of larger messages, and refuse those that have too much in them.
        if size_bytes > limits.bytes_max or size > ORDINARY_METADATA_BYTES or message.deliver_at_ms:
            return at
        if mix_keys:
            continue
        key_here = None
        if message.HasField("key") or message.ordering_key:
            key_here = message.key, message.key_is_base64, message.ordering_key
        if key_here != key:
            if at > begin:
                return at
            key = key_here
    return end
