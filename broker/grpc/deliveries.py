"""From an entry as it is stored to the deliveries of the topic API. No IO and no clock.

An entry is sent in one delivery, or in several if it is large. Its messages are decoded one after the other, so that
only those of the next delivery are in memory. To a client that takes batches apart itself a batch of which nothing is
left out goes as it is: then a message costs nothing here.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import EncodeError

from broker.grpc.partial import PartialBatches
from broker.names import CLIENT_NAME_BYTES_MAX
from broker.topic.clients.consumer import Consumer
from magnetar_core.runtime.types import MIB, Buffer, Corruption
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.metadata import describe
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.ack_ranges import mask_of
from managed_ledger.messages import Message, is_open_batch, split_entry
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata
from managed_ledger.position import Position, signed

# A batch that is larger than this is sent in several deliveries: building one of this size holds the loop 15 ms,
# one of so many empty messages 31 ms, and twice that where a processor is shared.
DELIVERY_BYTES_MAX: Final = 1 * MIB
DELIVERY_MESSAGES_MAX: Final = 5_000

# Messages that one call looks at: of a batch that was consumed or compacted in part nearly all may be left out.
LOOKED_AT_MAX: Final = 10_000

# Bytes that a message counts for besides its payload: a batch may hold a million empty messages.
MESSAGE_BYTES: Final = 24

# What each delivery of an entry repeats, and a producer may claim: a large batch goes out in a hundred of them. No
# producer that is attached has a longer name (CLIENT_NAME_BYTES_MAX), and versions have 8 bytes, or 64.
SCHEMA_VERSION_BYTES_MAX: Final = 64


class WaitingEntry(NamedTuple):
    """An entry that was dispatched, as it is stored."""

    consumer: Consumer
    position: Position
    entry: Buffer
    permits: int
    """Permits that the entry cost."""
    redelivery_count: int
    ack_set: Sequence[int] | None


class UnpackedEntry:
    """An entry whose messages are being sent."""

    __slots__ = ("_batch", "_bits", "_compacted", "delivered", "is_done", "messages", "metadata", "size", "waiting")

    def __init__(
        self,
        waiting: WaitingEntry,
        metadata: MessageMetadata,
        messages: Iterator[Message],
        batch: Buffer | None = None,
    ) -> None:
        """*batch*: the same messages as a batch, if it may be sent as it is."""
        self.waiting = waiting
        self.metadata = metadata
        self.messages = messages
        self.size = metadata.num_messages_in_batch if is_open_batch(metadata) else 0
        """Messages in the batch; 0 if the entry is not a batch, or goes as one message that cannot be read."""
        if batch is not None and (len(batch) > DELIVERY_BYTES_MAX or self.size > DELIVERY_MESSAGES_MAX):
            batch = None
        self._batch = batch
        # Messages that compaction has removed, least bit first. (As bytes: setting a bit of a large int copies it.)
        self._compacted = bytearray()
        self.delivered = 0
        """Messages that were put into deliveries."""
        self.is_done = False
        """All messages were."""
        # Messages that are wanted, least bit first; None: all. (As bytes: testing a bit of a large int copies it.)
        self._bits: bytes | None = None

    @property
    def compacted(self) -> int:
        """Messages that compaction has removed, as bits."""
        return int.from_bytes(self._compacted, "little")

    def leave_out(self, batches: PartialBatches, skip: int, *, in_order: bool) -> None:
        """Leave out messages that are acknowledged already, and the first *skip* messages, which are not asked for.

        *in_order*: the type of the subscription is EXCLUSIVE or FAILOVER. Then acks of this call count although the
        entry is delivered again.
        """
        position, size = self.waiting.position, self.size
        if not size:
            if skip > 0:
                self.messages = iter(())
            return
        batches.sizes.note(position, size)
        left_mask = all_mask = (1 << size) - 1
        if in_order:
            left_mask = batches.left(position, all_mask)
        if self.waiting.ack_set is not None:
            left_mask &= mask_of(self.waiting.ack_set)
        if skip > 0:
            left_mask &= all_mask & ~((1 << min(skip, size)) - 1)
        if left_mask != all_mask:
            self._batch = None
            self._bits = left_mask.to_bytes((size + 7) // 8, "little")
            if left_mask:
                batches.note(position, left_mask, size)
            else:
                self.messages = iter(())

    def fill(self, answer: api.ConsumeResponse, topic: TopicName) -> int:
        """Put messages into *answer*, as many as one delivery may have. Returns their bytes.

        There may be none although more will come: so many are left out that others have their turn first.
        """
        assert not self.is_done, "an entry is sent once"
        delivery = _delivery(answer, self)
        if self._batch is not None:
            delivery.batch = bytes(self._batch)
            self.delivered, self.is_done = self.size, True
            return len(self._batch) + MESSAGE_BYTES
        add, bits, size_bytes = delivery.messages.add, self._bits, 0
        try:
            for looked_at, (index, single, payload) in enumerate(self.messages, 1):
                size_bytes += len(payload) + MESSAGE_BYTES
                if single is None:
                    size_bytes += _fill_single(self.metadata, delivery, payload, topic)
                    break
                if bits is None or bits[index >> 3] >> (index & 7) & 1:
                    if single.compacted_out:
                        self._leave_compacted(index)
                    else:
                        message = add(payload=bytes(payload), batch_index=index, sequence_id=single.sequence_id)
                        if not is_plain(single):
                            describe(message, single)
                            size_bytes += _beyond(message)
                if (
                    size_bytes >= DELIVERY_BYTES_MAX
                    or len(delivery.messages) >= DELIVERY_MESSAGES_MAX
                    or looked_at >= LOOKED_AT_MAX
                ):
                    self.delivered += len(delivery.messages)
                    if not delivery.messages:
                        del answer.deliveries[-1]
                    return size_bytes
        except Corruption as error:
            self.delivered += len(delivery.messages)
            if delivery.messages:
                delivery = answer.deliveries.add()
            size_bytes += fill_problem(delivery, self.waiting, f"{topic}: {self.waiting.position}: {error}")
        self.delivered += len(delivery.messages)
        if not delivery.messages:
            del answer.deliveries[-1]
        self.is_done = True
        return size_bytes

    def _leave_compacted(self, index: int) -> None:
        if not self._compacted:
            self._compacted = bytearray((self.size + 7) // 8)
        self._compacted[index >> 3] |= 1 << (index & 7)


def _delivery(answer: api.ConsumeResponse, unpacked: UnpackedEntry) -> api.ConsumeResponse.Delivery:
    waiting, metadata = unpacked.waiting, unpacked.metadata
    delivery = answer.deliveries.add(
        ledger_id=waiting.position.ledger_id,
        entry_id=waiting.position.entry_id,
        batch_size=unpacked.size,
        redelivery_count=waiting.redelivery_count,
        publish_time_ms=signed(metadata.publish_time),  # producers may claim any number
        producer_name=metadata.producer_name[:CLIENT_NAME_BYTES_MAX],
    )
    if 0 < len(metadata.schema_version) <= SCHEMA_VERSION_BYTES_MAX:
        delivery.schema_version = metadata.schema_version
    return delivery


def _fill_single(
    metadata: MessageMetadata, delivery: api.ConsumeResponse.Delivery, payload: memoryview, topic: TopicName
) -> int:
    """Returns the bytes that it counts for besides its payload and MESSAGE_BYTES."""
    message = delivery.messages.add(payload=bytes(payload), sequence_id=metadata.sequence_id)
    describe(message, metadata)
    where = f"{topic}: {Position(delivery.ledger_id, delivery.entry_id)}"
    if metadata.num_chunks_from_msg > 1:
        delivery.problem = f"{where}: a chunk of a larger message; read it with a client of the binary protocol"
    elif metadata.encryption_keys:
        delivery.problem = f"{where}: the message is encrypted; its keys are not here"
    return _beyond(message)


def _beyond(message: api.Message) -> int:
    """The bytes of a message beside its payload beyond MESSAGE_BYTES: its key or properties may be as large."""
    return max(message.ByteSize() - len(message.payload) - MESSAGE_BYTES, 0)


def fill_problem(delivery: api.ConsumeResponse.Delivery, waiting: WaitingEntry, problem: str) -> int:
    """Deliver an entry that cannot be decoded as one message with the stored payload and a *problem*.

    Returns its bytes.
    """
    payload = bytes(_rest(waiting.entry))
    delivery.Clear()
    delivery.ledger_id, delivery.entry_id = waiting.position
    delivery.redelivery_count = waiting.redelivery_count
    delivery.problem = problem
    delivery.messages.add(payload=payload)
    return len(payload)


def is_plain(single: SingleMessageMetadata) -> bool:
    """Whether a message has nothing but a payload size and a sequence id, as most have: others need not be looked at.

    Decided by its encoded size. The sequence id is checked first: without it another field could have the same size.
    """
    if not single.HasField("sequence_id"):
        return False
    size_bits, id_bits = single.payload_size.bit_length(), single.sequence_id.bit_length()
    try:  # two tags of a byte, and two numbers with 7 bits in each byte
        return single.ByteSize() == 2 + ((size_bits + 6) // 7 or 1) + ((id_bits + 6) // 7 or 1)
    except EncodeError:  # a property lacks its key or value
        return False


def _rest(entry: Buffer) -> Buffer:
    """The payload of *entry*; all of it if its header cannot be read."""
    try:
        return split_entry(entry).payload
    except Corruption:
        return entry
