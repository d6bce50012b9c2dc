"""The values that programs give to the topic API and receive from it. No IO."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from magnetar.client.base.arguments import check_properties, check_text, check_whole, wrong
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Sequence

Time = int | datetime
"""Milliseconds since 1970 (UTC), or a datetime (one without a time zone is local time)."""

# The largest numbers of the fields that they go into.
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1

TYPES: Final = {
    "exclusive": api.EXCLUSIVE,
    "shared": api.SHARED,
    "failover": api.FAILOVER,
    "key_shared": api.KEY_SHARED,
}


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for `send_many`; times as in `Producer.send`. Without a payload (None) it is a null message, which
    deletes its key in a compacted topic."""

    payload: bytes | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time: Time | None = None
    deliver_at: Time | None = None
    ordering_key: bytes = b""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as Pulsar's registry keeps it. *type* is Pulsar's number: 1 STRING, 2 JSON, 3 PROTOBUF, 4 AVRO, …"""

    type: int
    data: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_whole("type of a Schema", self.type, -INT32 - 1, INT32)
        if not isinstance(self.data, bytes):
            raise wrong("data of a Schema", self.data, "bytes")
        check_properties("properties of a Schema", self.properties)

    def to_api(self) -> api.Schema:
        return api.Schema(type=self.type, data=self.data, properties=dict(self.properties))


class Message:
    """A message that was received. Payloads are bytes, times milliseconds since 1970."""

    __slots__ = ("_delivery", "_message", "_source", "topic")

    def __init__(self, topic: str, delivery: Any, message: Any, source: Any) -> None:
        self.topic = topic
        """Full name; of the partition, where there are some."""
        self._delivery = delivery
        self._message = message
        self._source = source

    @property
    def payload(self) -> bytes:
        data: bytes = self._message.payload
        return data

    @property
    def id(self) -> MessageId:
        delivery = self._delivery
        size = delivery.batch_size
        return MessageId(
            delivery.ledger_id,
            delivery.entry_id,
            self._source.partition,
            self._message.batch_index if size else -1,
            size,
        )

    @property
    def key(self) -> str | None:
        return self._message.key if self._message.HasField("key") else None

    @property
    def key_is_base64(self) -> bool:
        """The key is base64 of bytes."""
        return bool(self._message.key_is_base64)

    @property
    def ordering_key(self) -> bytes:
        return bytes(self._message.ordering_key)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._message.properties)

    @property
    def event_time_ms(self) -> int:
        """0 if the sender gave none."""
        return int(self._message.event_time_ms)

    @property
    def publish_time_ms(self) -> int:
        return int(self._delivery.publish_time_ms)

    @property
    def is_null(self) -> bool:
        """The message has no payload (it deletes its key in a compacted topic)."""
        return bool(self._message.is_null)

    @property
    def sequence_id(self) -> int:
        return int(self._message.sequence_id)

    @property
    def producer_name(self) -> str:
        return str(self._delivery.producer_name)

    @property
    def redelivery_count(self) -> int:
        """How often it was delivered before (SHARED and KEY_SHARED)."""
        return int(self._delivery.redelivery_count)

    @property
    def schema_version(self) -> bytes:
        return bytes(self._delivery.schema_version)

    @property
    def problem(self) -> str:
        """Why the payload is not the one that was sent; empty if it is."""
        return str(self._delivery.problem)

    def __repr__(self) -> str:
        return f"Message({self.topic}, {self.id}, {len(self.payload)} bytes)"


def time_ms(value: Time, name: str = "a time") -> int:
    """Milliseconds since 1970. Raises TypeError, ValueError for times before."""
    if isinstance(value, datetime):
        ms = round(value.timestamp() * 1000)
    elif isinstance(value, int) and not isinstance(value, bool):
        ms = value
    else:
        raise wrong(name, value, "milliseconds since 1970, as int, or a datetime")
    if not 0 < ms <= INT64:
        raise ValueError(f"{name}: {value} is not a time after 1970 in milliseconds")
    return ms


def outgoing(message: "Outgoing | bytes") -> api.Message:
    """The message as the broker takes it. Raises TypeError, ValueError."""
    if isinstance(message, bytes):
        return api.Message(payload=message)
    if not isinstance(message, Outgoing):
        raise wrong("a message", message, "bytes or magnetar.Outgoing")
    payload, key, ordering_key = message.payload, message.key, message.ordering_key
    if payload is not None and not isinstance(payload, bytes):
        raise wrong("payload", payload, 'bytes ("text".encode()), or None for a null message')
    if key is not None and not isinstance(key, str):
        raise wrong("key", key, "str")
    if not isinstance(ordering_key, bytes):
        raise wrong("ordering_key", ordering_key, "bytes")
    try:
        made = api.Message(payload=payload, key=key, ordering_key=ordering_key)
    except UnicodeEncodeError:
        check_text("key", key, may_be_empty=True)
        raise
    if payload is None:
        made.is_null = True
    if message.properties is not None:
        try:
            made.properties.update(message.properties)
        except (TypeError, ValueError, AttributeError):
            check_properties("properties", message.properties)
            raise
    if message.event_time is not None:
        made.event_time_ms = time_ms(message.event_time, "event_time")
    if message.deliver_at is not None:
        made.deliver_at_ms = time_ms(message.deliver_at, "deliver_at")
    return made


def check_id(name: str, id_: object) -> None:
    """Check that *id_* is one that a topic may have. Raises TypeError, ValueError."""
    if not isinstance(id_, MessageId):
        raise wrong(name, id_, "MessageId")
    check_whole(f"ledger_id of {name}", id_.ledger_id, -1, INT64)
    check_whole(f"entry_id of {name}", id_.entry_id, -1, INT64)
    check_whole(f"partition of {name}", id_.partition, -1, INT32)
    check_whole(f"batch_index of {name}", id_.batch_index, -1, INT32)
    check_whole(f"batch_size of {name}", id_.batch_size, 0, INT32)


def ack_to_api(item: "Message | MessageId") -> api.MessageId:
    """The id of a message that is acknowledged. Raises TypeError, ValueError."""
    if isinstance(item, Message):
        return id_to_api(item.id)
    if not isinstance(item, MessageId):
        raise wrong("what is acknowledged", item, "messages, their MessageIds, or several of these")
    check_id("an id that is acknowledged", item)
    if item.ledger_id < 0 or item.entry_id < 0:
        raise ValueError(f"{item} is no message that was received")
    if item.batch_index >= 0 and item.batch_index >= item.batch_size:
        raise ValueError(
            f"{item}: batch_index {item.batch_index} and batch_size {item.batch_size} do not go together; give an id "
            "back as it came"
        )
    return id_to_api(item)


def copy_to_api(message: Message) -> api.Message:
    """*message* as it is sent to another topic, without what only its delivery has."""
    made = api.Message()
    made.CopyFrom(message._message)
    made.ClearField("batch_index")
    made.ClearField("sequence_id")
    return made


def source_of(message: Message) -> Any:
    """The stream that brought *message*."""
    return message._source


def id_to_api(id_: MessageId) -> api.MessageId:
    made = api.MessageId(ledger_id=id_.ledger_id, entry_id=id_.entry_id, batch_size=id_.batch_size)
    if id_.partition >= 0:
        made.partition = id_.partition
    if id_.batch_index >= 0:
        made.batch_index = id_.batch_index
    return made


def id_from_api(id_: api.MessageId) -> MessageId:
    return MessageId(
        id_.ledger_id,
        id_.entry_id,
        id_.partition if id_.HasField("partition") else -1,
        id_.batch_index if id_.HasField("batch_index") else -1,
        id_.batch_size,
    )


def partition_of_key(key: str, partitions: int) -> int:
    """The partition of a key, as Java's client chooses it (its default, JavaStringHash)."""
    hash_ = 0
    units = key.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        hash_ = (31 * hash_ + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return (hash_ & 0x7FFF_FFFF) % partitions


def check_batch(messages: "Sequence[Outgoing | bytes]") -> list[api.Message]:
    """Raises TypeError, ValueError."""
    if isinstance(messages, bytes | str | Outgoing):
        raise wrong("messages", messages, "a list of bytes and magnetar.Outgoing")
    return [outgoing(message) for message in messages]
