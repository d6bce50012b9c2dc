"""The values that programs give to the topic API and receive from it. No IO."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol

from magnetar.client.base.arguments import check_properties, check_text, check_whole, wrong
from magnetar.client.codecs.codec import Codec, Unpickled
from magnetar.client.codecs.declared import T
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batches import Head, message_of, single_of
from magnetar_core.topics.message_id import MessageId

if TYPE_CHECKING:
    from collections.abc import Sequence

Time = int | datetime
"""Milliseconds since 1970 (UTC), or a datetime (one without a time zone is local time)."""

# The largest numbers of the fields that they go into.
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1

_BYTES: Final = 'bytes ("text".encode(), or a producer with value=str), or None for a null message'

# Bytes of a payload that the `repr` of a message shows.
SHOWN_LENGTH: Final = 40

ACCESS: Final = {
    "shared": api.PublishRequest.SHARED,
    "exclusive": api.PublishRequest.EXCLUSIVE,
    "wait_for_exclusive": api.PublishRequest.WAIT_FOR_EXCLUSIVE,
    "exclusive_with_fencing": api.PublishRequest.EXCLUSIVE_WITH_FENCING,
}
TYPES: Final = {
    "exclusive": api.EXCLUSIVE,
    "shared": api.SHARED,
    "failover": api.FAILOVER,
    "key_shared": api.KEY_SHARED,
}


@dataclass(frozen=True, slots=True)
class Outgoing(Generic[T]):
    """A message for `send_many`; times as in `Producer.send`. Without a value (None) it is a null message, which
    deletes its key in a compacted topic.

    Example:
        producer.send_many([magnetar.Outgoing(b"3", key="apple"), magnetar.Outgoing(None, key="pear")])
    """

    value: T | None
    key: str | None = None
    properties: Mapping[str, str] | None = None
    event_time: Time | None = None
    deliver_at: Time | None = None
    ordering_key: bytes = b""


class Source(Protocol):
    """What brought a message: it knows the partition, and how values are read."""

    partition: int
    schema_topic: str
    """The topic whose schemas its messages name: without the number of a partition."""
    decoder: Any
    """`versions.Decoder`; None: values are bytes."""


class Message(Generic[T]):
    """A message that was received. Times are milliseconds since 1970.

    It can be pickled, for a pool of processes: all that is read here stays. What comes out of the pickle belongs to no
    consumer any more; its id does, so a consumer without a `Retry` acknowledges it all the same.

    Example:
        message = consumer.receive(timeout_s=10)
        print(message.id, message.key, message.value, message.properties)
        consumer.ack(message)
    """

    __slots__ = ("_delivery", "_head", "_index", "_source", "_value", "payload", "topic")

    _value: T

    def __init__(
        self, topic: str, delivery: Any, source: Any, index: int, payload: bytes, head: Head | api.Message
    ) -> None:
        """*head*: what else is said of it; of a message of a batch as it stands there, and read when asked for."""
        self.topic = topic
        """Full name; of the partition, where there are some."""
        self.payload = payload
        """The bytes that are stored."""
        self._delivery = delivery
        self._source = source
        self._index = index
        self._head = head

    @classmethod
    def of(cls, topic: str, delivery: Any, source: Any, message: api.Message) -> "Message[T]":
        """A message that the broker took out of its entry."""
        return cls(topic, delivery, source, message.batch_index, message.payload, message)

    def _described(self) -> api.Message:
        """What else is said of it: all but the payload and the place can be read there."""
        head = self._head
        if not isinstance(head, api.Message):
            head = self._head = message_of(head)
        return head

    @property
    def value(self) -> T:
        """What the sender gave, read as the consumer's `value=` says; without it, the payload.

        Raises ValueError for what cannot be read so, and for a null message (`is_null`); `payload` is there.
        """
        try:
            return self._value  # values are read when they are asked for, and once
        except AttributeError:
            pass
        value: Any = self.payload if self._source.decoder is None else self._decoded(self._source)
        self._value = value
        return self._value

    def _decoded(self, source: Any) -> Any:
        decoder = source.decoder
        reason: object
        cause = None
        if self.problem:
            reason = self.problem
        elif self.is_null:
            reason = "it is a null message, which has no value: see is_null"
        else:
            try:
                return decoder.value(source.schema_topic, self.payload, self._delivery.schema_version)
            except ValueError as error:
                reason = cause = error
        raise ValueError(
            f"{self.topic}: message {self.id} cannot be read as {decoder.codec.name}: {reason}; its bytes are in "
            "message.payload"
        ) from cause

    @property
    def id(self) -> MessageId:
        delivery = self._delivery
        size = delivery.batch_size
        return MessageId(
            delivery.ledger_id,
            delivery.entry_id,
            self._source.partition,
            self._index if size else -1,
            size,
        )

    @property
    def key(self) -> str | None:
        head = self._head
        if isinstance(head, api.Message):
            return head.key if head.HasField("key") else None
        single = self._head = single_of(head)  # it is asked for often, and all would take 2 µs more
        return single.partition_key if single.HasField("partition_key") else None

    @property
    def key_is_base64(self) -> bool:
        """The key is base64 of bytes."""
        return bool(self._described().key_is_base64)

    @property
    def ordering_key(self) -> bytes:
        return bytes(self._described().ordering_key)

    @property
    def properties(self) -> dict[str, str]:
        return dict(self._described().properties)

    @property
    def event_time_ms(self) -> int:
        """0 if the sender gave none."""
        return int(self._described().event_time_ms)

    @property
    def publish_time_ms(self) -> int:
        return int(self._delivery.publish_time_ms)

    @property
    def is_null(self) -> bool:
        """The message has no payload (it deletes its key in a compacted topic)."""
        return bool(self._described().is_null)

    @property
    def sequence_id(self) -> int:
        return int(self._described().sequence_id)

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
        parts = [self.topic, str(self.id)]
        if self.key is not None:
            parts.append(f"key={self.key!r}")
        if self.problem:
            parts.append(f"problem={self.problem!r}")
        elif self.is_null:
            parts.append("null")
        else:
            payload = self.payload
            shown = repr(payload[:SHOWN_LENGTH]) + ("…" if len(payload) > SHOWN_LENGTH else "")
            parts.append(f"{len(payload)} bytes: {shown}")
        if self.redelivery_count:
            parts.append(f"delivered {self.redelivery_count} times before")
        return f"Message({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        delivery = self._delivery
        alone = without_messages(delivery)
        source, decoder, pickled = self._source, self._source.decoder, None
        if decoder is not None:
            pickled = decoder.codec.declared, *decoder.pickled(source.schema_topic, delivery.schema_version)
        message = api.Message()
        message.CopyFrom(self._described())
        message.payload, message.batch_index = self.payload, self._index
        return _unpickled, (
            self.topic, alone.SerializeToString(), message.SerializeToString(), source.partition, pickled,
        )  # fmt: skip


def without_messages(delivery: Any) -> api.ConsumeResponse.Delivery:
    """What a delivery says of all its messages. It holds nothing else in memory: a part of a frame holds all of it."""
    return api.ConsumeResponse.Delivery(
        ledger_id=delivery.ledger_id,
        entry_id=delivery.entry_id,
        batch_size=delivery.batch_size,
        redelivery_count=delivery.redelivery_count,
        publish_time_ms=delivery.publish_time_ms,
        producer_name=delivery.producer_name,
        schema_version=delivery.schema_version,
        problem=delivery.problem,
    )


class _Pickled:
    """The source of a message that came out of a pickle."""

    def __init__(self, partition: int, decoder: Any) -> None:
        self.partition = partition
        self.schema_topic = ""
        self.decoder = decoder


def _unpickled(topic: str, delivery: bytes, message: bytes, partition: int, decoder: Any) -> Message[Any]:
    source = _Pickled(partition, None if decoder is None else Unpickled(*decoder))
    return Message.of(topic, api.ConsumeResponse.Delivery.FromString(delivery), source, api.Message.FromString(message))


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


def outgoing(message: Any, codec: Codec[Any] | None = None) -> api.Message:
    """The message as the broker takes it. Raises TypeError, ValueError."""
    if isinstance(message, Outgoing):
        return _outgoing(message, codec)
    if codec is not None and message is not None:
        return api.Message(payload=codec.write(message))
    if not isinstance(message, bytes):
        taken = "bytes" if codec is None else codec.name
        raise wrong("a message", message, f"{taken} or magnetar.Outgoing")
    return api.Message(payload=message)


def _outgoing(message: Outgoing[Any], codec: Codec[Any] | None) -> api.Message:
    payload, key, ordering_key = message.value, message.key, message.ordering_key
    if codec is not None and payload is not None:
        payload = codec.write(payload)
    elif payload is not None and not isinstance(payload, bytes):
        raise wrong("value", payload, _BYTES)
    if key is not None and not isinstance(key, str):
        raise wrong("key", key, "str")
    if not isinstance(ordering_key, bytes):
        raise wrong("ordering_key", ordering_key, "bytes")
    try:
        converted = api.Message(payload=payload, key=key, ordering_key=ordering_key)
    except UnicodeEncodeError:
        check_text("key", key, may_be_empty=True)
        raise
    if payload is None:
        converted.is_null = True
    if message.properties is not None:
        try:
            converted.properties.update(message.properties)
        except (TypeError, ValueError, AttributeError):
            check_properties("properties", message.properties)
            raise
    if message.event_time is not None:
        converted.event_time_ms = time_ms(message.event_time, "event_time")
    if message.deliver_at is not None:
        converted.deliver_at_ms = time_ms(message.deliver_at, "deliver_at")
    return converted


def check_id(name: str, id_: object) -> None:
    """Check that *id_* is one that a topic may have. Raises TypeError, ValueError."""
    if not isinstance(id_, MessageId):
        raise wrong(name, id_, "MessageId")
    check_whole(f"ledger_id of {name}", id_.ledger_id, -1, INT64)
    check_whole(f"entry_id of {name}", id_.entry_id, -1, INT64)
    check_whole(f"partition of {name}", id_.partition, -1, INT32)
    check_whole(f"batch_index of {name}", id_.batch_index, -1, INT32)
    check_whole(f"batch_size of {name}", id_.batch_size, 0, INT32)


def check_acked(item: object) -> None:
    """Raises TypeError, ValueError for what cannot be acknowledged."""
    if isinstance(item, Message):
        return
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


def ack_to_api(item: "Message[Any] | MessageId") -> api.MessageId:
    return id_to_api(item.id if isinstance(item, Message) else item)


def put_acks(request: api.ConsumeRequest, items: Iterable["Message[Any] | MessageId"]) -> None:
    """Acknowledge *items* by *request*: messages of a batch that stand one behind the other are one run."""
    first: Message[Any] | MessageId | None = None
    delivery, last, count = None, -1, 0
    for item in items:
        if isinstance(item, Message) and item._delivery is delivery and item._index == last + 1:
            last += 1
            count += 1
            continue
        _put_run(request, first, last, count)
        first, count = item, 1
        if isinstance(item, Message) and item._delivery.batch_size:
            delivery, last = item._delivery, item._index
        else:
            delivery = None
    _put_run(request, first, last, count)


def _put_run(request: api.ConsumeRequest, first: "Message[Any] | MessageId | None", last: int, count: int) -> None:
    if first is None:
        return
    if count == 1:
        request.acks.append(ack_to_api(first))
    else:
        request.ack_runs.add(first=ack_to_api(first), last=last)


def copy_to_api(message: Message[Any]) -> api.Message:
    """*message* as it is sent to another topic, without what only its delivery has."""
    copy = api.Message()
    copy.CopyFrom(message._described())
    copy.payload = message.payload
    copy.ClearField("batch_index")
    copy.ClearField("sequence_id")
    return copy


def source_of(message: Message[Any]) -> Any:
    """The stream that brought *message*."""
    return message._source


def id_to_api(id_: MessageId) -> api.MessageId:
    converted = api.MessageId(ledger_id=id_.ledger_id, entry_id=id_.entry_id, batch_size=id_.batch_size)
    if id_.partition >= 0:
        converted.partition = id_.partition
    if id_.batch_index >= 0:
        converted.batch_index = id_.batch_index
    return converted


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


def check_batch(messages: "Sequence[Any]", codec: Codec[Any] | None = None) -> list[api.Message]:
    """Raises TypeError, ValueError."""
    if isinstance(messages, bytes | str | Outgoing | Mapping) or not isinstance(messages, Iterable):
        taken = "bytes" if codec is None else codec.name
        raise wrong("messages", messages, f"a list of {taken} and magnetar.Outgoing")
    return [outgoing(message, codec) for message in messages]
