"""Many messages become one entry: which messages go together, and how the entry looks. No IO and no clock.

    message ──▶ lane (key, schema) ──full, or the window is over──▶ Group ──▶ entry, as a Pulsar client's batch

Rules:

1. Messages with a key share an entry only with messages of the same key, so that Key_Shared can give each entry to
   one consumer (unless the producer says otherwise). Messages of one key stay in order.
2. A producer with its own name shares no entry with others. Its entries have its own sequence ids, which must grow from
   entry to entry, because deduplication compares them. So a change of key ends its entry.
3. Producers without a name share entries under the broker's name and numbers.
4. A message with a delivery time is an entry by itself: the time stands in the entry's metadata.
5. A batch that a client has encoded is an entry by itself, too: nobody has looked at it, and if it is damaged, no
   message of others may stand in its entry.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from broker.wire.frames import Send
from magnetar_core.topics.batch_encoding import encode_messages
from magnetar_core.topics.topics_pb2 import Message
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata

# Bytes that a message counts for in the limits, besides its payload, keys and properties.
OVERHEAD_BYTES: Final = 16

Lane = tuple[str | None, bool, bytes, bytes]
"""Key, whether that is base64, ordering key, schema version."""


class GroupLimits(NamedTuple):
    """The sizes at which a group is full, and how long it may gather messages."""

    messages_max: int
    bytes_max: int
    window_ms: float = 0


@dataclass(slots=True)
class Run:
    """Consecutive messages of one stream inside an entry."""

    origin: object
    first_sequence_id: int
    length: int
    size_bytes: int
    """What they count for in the stream's limits."""


def size_of(message: Message) -> int:
    """The bytes that *message* counts for in the limits: of entries, and of what a stream has under way."""
    return message.ByteSize() + OVERHEAD_BYTES


class Group:
    """Messages that become one entry."""

    __slots__ = ("bytes", "lane", "messages", "runs")

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.messages: list[Message] = []
        self.runs: list[Run] = []
        self.bytes = 0

    def add(self, origin: object, sequence_id: int, message: Message, size: int) -> None:
        """Add a message; one that follows the last one of the same stream belongs to the same run."""
        self.messages.append(message)
        self.bytes += size
        if self.runs:
            last = self.runs[-1]
            if last.origin is origin and last.first_sequence_id + last.length == sequence_id:
                last.length += 1
                last.size_bytes += size
                return
        self.runs.append(Run(origin, sequence_id, 1, size))

    def split_in_half(self) -> "tuple[Group, Group]":
        """The first half of its messages and the other one, each as a group."""
        first, second = Group(self.lane), Group(self.lane)
        start, middle = 0, len(self.messages) // 2
        for run in self.runs:
            for sequence_id in range(run.first_sequence_id, run.first_sequence_id + run.length):
                message = self.messages[start]
                half = first if start < middle else second
                half.add(run.origin, sequence_id, message, size_of(message))
                start += 1
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
            size = size_of(message)
            wanted = plain
            if not mix_keys and (message.HasField("key") or message.ordering_key):
                key = message.key if message.HasField("key") else None
                wanted = (key, message.key_is_base64, message.ordering_key, schema_version)
            if message.deliver_at_ms:  # rule 4
                full += self.close_groups_before(wanted)
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

    def close_groups_before(self, lane: Lane) -> list[Group]:
        """Close the groups that come before an entry of *lane* that stands alone, and return them."""
        if self._is_named:  # rule 2
            return self.take_all()
        group = self._open.pop(lane, None)
        return [] if group is None else [group]

    def take_all(self) -> list[Group]:
        """Close all groups and return them: the time in which they may gather messages is over."""
        groups = list(self._open.values())
        self._open.clear()
        return groups

    @property
    def is_empty(self) -> bool:
        return not self._open


def encode_group(group: Group, sequence_ids: Sequence[int], *, producer_name: str, publish_time_ms: int) -> Send:
    """The entry of a group, in the form that the publish path of topics takes."""
    first, last, count = sequence_ids[0], sequence_ids[-1], len(group.messages)
    if count > 1:
        payload = encode_messages(group.messages, sequence_ids)
        return encode_batch(
            group.lane, payload, count, first, last, producer_name=producer_name, publish_time_ms=publish_time_ms
        )
    metadata = MessageMetadata(producer_name=producer_name, sequence_id=first, publish_time=publish_time_ms)
    if schema_version := group.lane[3]:
        metadata.schema_version = schema_version
    message = group.messages[0]
    _fill(metadata, message)
    if message.deliver_at_ms:
        metadata.deliver_at_time = message.deliver_at_ms
    return _send(first, 0, 1, encode_entry(metadata, message.payload))


def encode_batch(
    lane: Lane, payload: bytes, count: int, first: int, last: int, *, producer_name: str, publish_time_ms: int
) -> Send:
    """The entry of *count* messages of one lane, which are encoded already. *first*, *last*: their sequence ids."""
    metadata = MessageMetadata(
        producer_name=producer_name,
        sequence_id=first,
        publish_time=publish_time_ms,
        num_messages_in_batch=count,
        highest_sequence_id=last,
        uncompressed_size=len(payload),
    )
    key, key_is_base64, ordering_key, schema_version = lane
    if schema_version:
        metadata.schema_version = schema_version
    if key is not None:
        metadata.partition_key = key
        if key_is_base64:
            metadata.partition_key_b64_encoded = True
    if ordering_key:
        metadata.ordering_key = ordering_key
    return _send(first, last, count, encode_entry(metadata, payload))


def _send(first: int, last: int, count: int, entry: bytes) -> Send:
    return Send(
        producer_id=0,
        sequence_id=first,
        highest_sequence_id=last,
        num_messages=count,
        is_chunk=False,
        is_marker=False,
        is_transactional=False,
        entry=memoryview(entry),
    )


def _fill(metadata: MessageMetadata, message: Message) -> None:
    """Copy what *message* says of itself into the metadata of its entry."""
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
