"""Takes the acknowledgements of one subscription's consumers. No IO."""

from collections.abc import Callable, Sequence
from typing import Final

from broker.errors import NotReady
from broker.topic.clients.batch_sizes import BatchSizes
from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.dispatcher import Dispatcher, count_bits
from broker.topic.ports import LedgerPort
from broker.topic.reading.pump import Pump
from broker.wire import pulsar_pb2 as wire
from managed_ledger.errors import InvalidPosition
from managed_ledger.ledger_list import LedgerList
from managed_ledger.messages import BATCH_MESSAGES_MAX
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position, named_position

# Message ids in one ack. Clients group about a thousand; each takes a few microseconds on the loop.
ACK_IDS_MAX: Final = 20_000


class Acking:
    """Applies acknowledgements to the cursor and the dispatcher of a pump, and runs it where that may help."""

    def __init__(self, name: str, pump: Pump, ledger: LedgerPort, now_ms: Callable[[], int]) -> None:
        """*name*: of the subscription; *now_ms*: the wall clock."""
        self.last_acked_ms = 0
        self.last_advanced_ms = 0
        """When the mark-delete position last moved by an acknowledgement."""
        self._name = name
        self._pump = pump
        self._ledger = ledger
        self._now_ms = now_ms

    @property
    def keeps_parts(self) -> bool:
        """Whether an acknowledgement of a part of a batch is kept."""
        return self._pump.limits.batch_index_acks

    def is_done(self, position: Position) -> bool:
        """Whether the entry at *position* is acknowledged."""
        return self._pump.cursor.is_deleted(position)

    def check(self, ack: wire.CommandAck) -> None:
        """Raises InvalidPosition for an ack of which `acknowledge` applies nothing, whatever the cursor is."""
        _positions_of(ack)

    def acknowledge(self, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Apply an ack. Raises NotReady where all consumers have to leave: what they acknowledge now may not be kept.

        Ids of entries that do not exist are ignored in individual acks: they may have been trimmed. Raises
        InvalidPosition for malformed ids (`named_position`) and for a cumulative ack beyond the end; nothing of the
        ack is applied then.
        """
        pump = self._pump
        dispatcher, cursor = pump.dispatcher, pump.cursor
        if dispatcher is None:
            raise NotReady(f"The consumers of {self._name} are being closed")
        now_ms = self._now_ms()
        consumer.last_acked_ms = self.last_acked_ms = now_ms
        former_mark_delete = cursor.mark_delete_position
        if ack.ack_type == wire.CommandAck.Cumulative:
            self._acknowledge_up_to(dispatcher, consumer, ack)
        else:
            if not consumer.read_compacted:
                cursor.leave_trimmed()
            self._acknowledge_single(dispatcher, consumer, ack)
        if cursor.mark_delete_position != former_mark_delete:
            self.last_advanced_ms = now_ms
        if self._ledger.is_terminated:
            pump.announce_end()
        if consumer.permits > 0 or len(dispatcher.consumers) > 1:
            pump.run()  # the ack may have unblocked a consumer or freed a key

    def clear_up_to(self, position: Position) -> int:
        """Acknowledge everything up to *position* for all consumers, which stay; how many entries that were."""
        pump = self._pump
        former_backlog = pump.cursor.backlog()
        pump.cursor.mark_delete(position)
        if pump.dispatcher is not None:
            pump.dispatcher.on_acked_up_to(position)
            pump.run()
        return former_backlog - pump.cursor.backlog()

    def _acknowledge_single(self, dispatcher: Dispatcher, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Acknowledge each entry of *ack*, or the part of a batch that it names, and tell the dispatcher the rest."""
        cursor = self._pump.cursor
        done: list[Position] = []
        former_unacked = dispatcher.unacked_messages
        for position, message_id in zip(_positions_of(ack), ack.message_id, strict=True):
            if not message_id.ack_set:
                done.append(position)
            # Where parts are not kept, the client acks the whole entry once its batch is complete.
            elif self.acknowledge_part(position, message_id.ack_set, message_id.batch_size):
                left_words = cursor.batch_ack_set(position)
                # If neither is so, the cursor keeps no part of this batch: it stays with its consumer as a whole.
                if left_words is not None or cursor.is_deleted(position):
                    dispatcher.on_acked(position, count_bits(left_words or ()))
        if done:
            cursor.delete(done)
            for position in done:
                dispatcher.on_acked(position, 0)
        # Where every message that was sent is remembered, those of batches are counted one by one.
        consumer.acked_messages += (
            len(ack.message_id) if dispatcher.is_in_order else former_unacked - dispatcher.unacked_messages
        )

    def _acknowledge_up_to(self, dispatcher: Dispatcher, consumer: Consumer, ack: wire.CommandAck) -> None:
        """Acknowledge everything up to the position of *ack*; only where one consumer gets all entries."""
        if not dispatcher.is_in_order or len(ack.message_id) != 1:
            return  # several consumers share the entries: a cumulative ack has no meaning and must not move the cursor
        message_id = ack.message_id[0]
        position = _checked(message_id)
        if message_id.ack_set:
            # Beyond the end, the position before it would be the last entry of the topic.
            self._ledger.ledgers.check_within(position)
            self._pump.cursor.mark_delete(_position_before(self._ledger.ledgers, position))
            self.acknowledge_part(position, message_id.ack_set, message_id.batch_size)
        else:
            self._pump.cursor.mark_delete(position)
        consumer.acked_messages += 1

    def acknowledge_part(self, position: Position, left_words: Sequence[int], claimed: int) -> bool:
        """Acknowledge a batch of *claimed* messages (0: not known), except for those whose bits are set in the words of
        *left_words*. Returns whether it was: not where parts are not kept, and not if it claims too many messages
        (`broker.topic.clients.batch_sizes`)."""
        pump = self._pump
        if not pump.limits.batch_index_acks:
            return False
        words = list(left_words)
        sizes = BatchSizes() if pump.dispatcher is None else pump.dispatcher.batch_sizes
        size = sizes.size(position, claimed or _highest_bit(words))
        if size is None:
            return False
        pump.cursor.acknowledge_batch(position, words, size)
        return True


def _position_before(ledgers: LedgerList, position: Position) -> Position:
    """The last position before this one, also in a ledger that was trimmed."""
    return min(ledgers.previous_position(position), Position(position.ledger_id, max(position.entry_id, 0) - 1))


def _positions_of(ack: wire.CommandAck) -> list[Position]:
    """The positions that an ack names. Raises InvalidPosition for too many ids, and as `_checked`."""
    if len(ack.message_id) > ACK_IDS_MAX:
        raise InvalidPosition(f"an ack has {len(ack.message_id)} ids, and may have {ACK_IDS_MAX}; split it")
    return [_checked(message_id) for message_id in ack.message_id]


def _checked(message_id: MessageIdData) -> Position:
    """The position that an ack names. Raises InvalidPosition for a malformed id or an impossible batch."""
    position = named_position(message_id.ledgerId, message_id.entryId)
    words = len(message_id.ack_set)
    if words * 64 >= BATCH_MESSAGES_MAX + 64 or message_id.batch_size < 0:
        raise InvalidPosition(
            f"{position}: batch_size {message_id.batch_size} and an ack_set of {words} words: a batch has at most "
            f"{BATCH_MESSAGES_MAX} messages"
        )
    return position


def _highest_bit(words: Sequence[int]) -> int:
    """The least size of a batch whose remaining messages are the set bits of *words*.

    Acks of Java clients do not tell the size; messages above the highest set bit are acknowledged in any case.
    """
    for index in range(len(words) - 1, -1, -1):
        if words[index]:
            return index * 64 + (words[index] & 0xFFFF_FFFF_FFFF_FFFF).bit_length()
    return 0
