"""Many messages become one entry: which messages go together, and how the entry looks. No IO and no clock.

    message ──▶ lane (key, schema) ──full, or the window is over──▶ Group ──▶ entry, as a Pulsar client's batch

Rules:

1. Messages with a key share an entry only with messages of the same key, so that Key_Shared can give each entry to
   one consumer (unless the producer says otherwise). Messages of one key stay in order.
2. A producer with its own name shares no entry with others. Its entries have its own sequence ids, which must grow from
   entry to entry, because deduplication compares them. So a change of key ends its entry.
3. Producers without a name share entries under the broker's name and numbers.
4. A message with a delivery time is an entry by itself: the time stands in the entry's metadata.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from broker.wire.frames import Send, varint
from magnetar_core.topics.topics_pb2 import Message
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata

_U32: Final = struct.Struct(">I")

# Bytes that a message counts for in the limits, besides its payload, keys and properties.
OVERHEAD_BYTES: Final = 16

Lane = tuple[str | None, bool, bytes, bytes]
"""Key, whether that is base64, ordering key, schema version."""


class GroupLimits(NamedTuple):
    """The sizes at which a group is full, and how long it may gather messages."""

    messages_max: int
    bytes_max: int
    window_ms: float = 0


class Run(NamedTuple):
    """Consecutive messages of one stream inside a group."""

    origin: object
    first_sequence_id: int
    length: int


class Group:
    """Messages that become one entry."""

    __slots__ = ("bytes", "lane", "messages", "runs")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.messages: list[Message] = []
        self.runs: list[Run] = []
        self.bytes = 0

    def add(self, origin: object, sequence_id: int, message: Message, size: int) -> None:
        self.messages.append(message)
        self.bytes += size
        if self.runs:
            last = self.runs[-1]
            if last.origin is origin and last.first_sequence_id + last.length == sequence_id:
                self.runs[-1] = Run(origin, last.first_sequence_id, last.length + 1)
                return
        self.runs.append(Run(origin, sequence_id, 1))

    def halves(self) -> "tuple[Group, Group]":
        """The first half of its messages and the other one, each as a group."""
        first, second = Group(self.lane), Group(self.lane)
        at, middle = 0, len(self.messages) // 2
        for run in self.runs:
            for sequence_id in range(run.first_sequence_id, run.first_sequence_id + run.length):
                message = self.messages[at]
                half = first if at < middle else second
                half.add(run.origin, sequence_id, message, message.ByteSize() + OVERHEAD_BYTES)
                at += 1
        return first, second

    @property
    def sequence_ids(self) -> Iterable[int]:
        for run in self.runs:
            yield from range(run.first_sequence_id, run.first_sequence_id + run.length)


class Grouping:
    """The open groups of one producer name."""

    def __init__(self, limits: GroupLimits, *, is_named: bool) -> None:
        self._limits = limits
        self._is_named = is_named
        self._open: dict[Lane, Group] = {}

    def add(
        self, origin: object, first_sequence_id: int, messages: Iterable[Message], schema_version: bytes, mix_keys: bool
    ) -> list[Group]:
        """Take messages of one request; returns the groups that are full, in order."""
        full: list[Group] = []
        limits, open_ = self._limits, self._open
        plain: Lane = (None, False, b"", schema_version)
        sequence_id = first_sequence_id
        group: Group | None = None
        lane: Lane | None = None
        for message in messages:
            size = message.ByteSize() + OVERHEAD_BYTES
            wanted = plain
            if not mix_keys and (message.HasField("key") or message.ordering_key):
                key = message.key if message.HasField("key") else None
                wanted = (key, message.key_is_base64, message.ordering_key, schema_version)
            if message.deliver_at_ms:  # rule 4
                if self._is_named:
                    full += self.take_all()
                elif (before := open_.pop(wanted, None)) is not None:
                    full.append(before)
                alone = Group(wanted)
                alone.add(origin, sequence_id, message, size)
                full.append(alone)
                group = lane = None
                sequence_id += 1
                continue
            if wanted != lane:
                if self._is_named and open_ and wanted not in open_:  # rule 2
                    full += self.take_all()
                lane, group = wanted, open_.get(wanted)
            if group is not None and group.bytes + size > limits.bytes_max:
                full.append(open_.pop(wanted))
                group = None
            if group is None:
                group = open_[wanted] = Group(wanted)
            group.add(origin, sequence_id, message, size)
            sequence_id += 1
            if len(group.messages) >= limits.messages_max:
                full.append(open_.pop(wanted))
                group = lane = None
        return full

    def take_all(self) -> list[Group]:
        """Close all groups and return them: the time in which they may gather messages is over."""
        groups = list(self._open.values())
        self._open.clear()
        return groups

    @property
    def is_empty(self) -> bool:
        return not self._open


def encode_group(
    group: Group, sequence_ids: Sequence[int], *, producer_name: str, producer_id: int, publish_time_ms: int
) -> Send:
    """The entry of a group, in the form that the publish path of topics takes."""
    metadata = MessageMetadata(producer_name=producer_name, sequence_id=sequence_ids[0], publish_time=publish_time_ms)
    key, key_is_base64, ordering_key, schema_version = group.lane
    if schema_version:
        metadata.schema_version = schema_version
    first = group.messages[0]
    payload: bytes
    if len(group.messages) == 1:
        _fill(metadata, first)
        if first.deliver_at_ms:
            metadata.deliver_at_time = first.deliver_at_ms
        payload = first.payload
    else:
        if key is not None:
            metadata.partition_key = key
            if key_is_base64:
                metadata.partition_key_b64_encoded = True
        if ordering_key:
            metadata.ordering_key = ordering_key
        metadata.num_messages_in_batch = len(group.messages)
        metadata.highest_sequence_id = sequence_ids[-1]
        payload = _batch(group.messages, sequence_ids)
        metadata.uncompressed_size = len(payload)
    entry = encode_entry(metadata, payload)
    return Send(
        producer_id,
        sequence_ids[0],
        sequence_ids[-1] if len(group.messages) > 1 else 0,
        len(group.messages),
        False,
        False,
        False,
        memoryview(entry),
    )


def _batch(messages: Sequence[Message], sequence_ids: Sequence[int]) -> bytes:
    parts: list[bytes] = []
    pack = _U32.pack
    known_size = -1
    size_field = b""
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        payload = message.payload
        size = len(payload)
        if message.ByteSize() == _bare_size(size):  # nothing but a payload: by hand, it is what most messages are
            if size != known_size:
                known_size, size_field = size, b"\x18" + varint(size) + b"\x40"
            head = size_field + varint(sequence_id)
        else:
            single = SingleMessageMetadata(payload_size=size, sequence_id=sequence_id)
            _fill(single, message)
            head = single.SerializeToString()
        parts += (pack(len(head)), head, payload)
    return b"".join(parts)


def _bare_size(payload_size: int) -> int:
    """The encoded size of a Message that has only a payload."""
    if not payload_size:
        return 0
    return payload_size + 1 + (payload_size.bit_length() + 6) // 7


def _fill(metadata: MessageMetadata | SingleMessageMetadata, message: Message) -> None:
    for name, value in message.properties.items():
        metadata.properties.add(key=name, value=value)
    if message.HasField("key"):
        metadata.partition_key = message.key
    if message.key_is_base64:
        metadata.partition_key_b64_encoded = True
    if message.ordering_key:
        metadata.ordering_key = message.ordering_key
    if message.event_time_ms:
        metadata.event_time = message.event_time_ms
    if message.is_null:
        metadata.null_value = True
