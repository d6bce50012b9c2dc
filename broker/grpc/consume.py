"""The Consume call: a consumer of a subscription whose client speaks gRPC.

    Subscription ──entry──▶ GrpcConsumer.send ──Delivery──▶ queue ──frames──▶ client
          ▲                                                                      │
          └────── permits, acks, nacks, seeks ◀──────────────────────────────────┘

Rules:

1. Permits count messages, as on the binary port. An entry that cost more permits than it delivered messages gives the
   difference back.
2. A batch is acknowledged as a whole when all its messages are; before that the cursor learns of single ones only
   where the broker keeps such acks (acknowledgmentAtBatchIndexLevelEnabled). What it does not keep is known here as
   long as the call lasts.
3. While more than QUEUE_HIGH_BYTES wait for the client to read, nothing more is dispatched to it. Entries wait as they
   are stored: one is taken apart when the client has room for it, and goes out in pieces if it has many messages.
4. When everything unacknowledged comes again (nack on EXCLUSIVE and FAILOVER) or after a seek, the client is told
   `rewound` in front of the first message of the new run, and permits start from zero.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import grpc

from broker.broker import Broker
from broker.errors import BrokerError
from broker.grpc.partial import PartialBatches
from broker.grpc.publish import schema_of
from broker.grpc.status import Refused, Status, moved, refusal
from broker.names import parse_topic
from broker.topic.consumer import Consumer
from broker.topic.requests import SubscribeRequest
from broker.topic.subscription import KeySharedPolicy, Subscription
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, parse_frame
from magnetar_core.runtime.types import KIB, MIB, Buffer, Corruption
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.cursors.ack_ranges import mask_of, words_of
from managed_ledger.errors import InvalidPosition
from managed_ledger.messages import Message, is_batch, messages_in, metadata_of, split_entry
from managed_ledger.messages_pb2 import NONE, MessageMetadata, SingleMessageMetadata
from managed_ledger.position import EARLIEST, LATEST, Position, named_position
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)

# Bytes that wait for a client to read before dispatch to it pauses, and before it goes on: as on the binary port.
QUEUE_HIGH_BYTES: Final = 1 * MIB
QUEUE_LOW_BYTES: Final = 256 * KIB

# Deliveries that leave in one frame: gRPC costs some 200 µs a frame, and a frame is one allocation on both sides.
FRAME_BYTES: Final = 256 * KIB

# A batch that is larger than this goes out in several deliveries: building one holds the loop some 15 ms at most.
DELIVERY_BYTES_MAX: Final = 1 * MIB
DELIVERY_MESSAGES_MAX: Final = 10_000

# What a message costs besides its payload: a batch may have a million of nothing.
MESSAGE_BYTES: Final = 24

# Entries that are larger than this, or unpack to more, are unpacked on another thread: zlib makes 200 MB/s.
INLINE_BYTES_MAX: Final = 512 * KIB

# The longest delay of a nack. Each request with one holds a timer and its ids.
NACK_DELAY_MS_MAX: Final = 24 * 3600 * 1000

# Nacks with a delay that one call has under way; the unacknowledged messages are limited anyway.
NACKS_MAX: Final = 10_000

# Ids in one request; each is some ten microseconds on the loop.
IDS_MAX: Final = 20_000

_T = wire.BaseCommand
_KINDS: Final = {
    api.EXCLUSIVE: wire.CommandSubscribe.Exclusive,
    api.SHARED: wire.CommandSubscribe.Shared,
    api.FAILOVER: wire.CommandSubscribe.Failover,
    api.KEY_SHARED: wire.CommandSubscribe.Key_Shared,
}
_IN_ORDER: Final = (api.EXCLUSIVE, api.FAILOVER)


class GrpcConsumer(Consumer):
    """A consumer whose entries become deliveries."""

    __slots__ = ("call",)

    def __init__(self, call: "ConsumeCall", name: str, **facts: Any) -> None:
        super().__init__(call, 0, name, **facts)
        self.call = call

    def send(
        self,
        position: Position,
        entry: Buffer,
        messages: int,
        redelivery_count: int = 0,
        ack_set: Sequence[int] | None = None,
    ) -> None:
        self._count_sent(messages, redelivery_count, len(entry))
        self.call.deliver(_Waiting(self, position, entry, messages, redelivery_count, ack_set))


class _Waiting(NamedTuple):
    """An entry that was dispatched, as it is stored."""

    consumer: GrpcConsumer
    position: Position
    entry: Buffer
    permits: int
    """What it cost."""
    redelivery_count: int
    ack_set: Sequence[int] | None


class _Unpacked:
    """An entry whose messages go out."""

    __slots__ = ("bits", "compacted", "delivered", "messages", "metadata", "size", "waiting")

    def __init__(self, waiting: _Waiting, metadata: MessageMetadata, messages: Iterator[Message]) -> None:
        self.waiting = waiting
        self.metadata = metadata
        self.messages = messages
        self.size = metadata.num_messages_in_batch if is_batch(metadata) else 0
        # Messages that are wanted, least bit first; None: all. (As bytes: to look at a bit of a large int copies it.)
        self.bits: bytes | None = None
        self.compacted = 0
        self.delivered = 0


class ConsumeCall:
    """One Consume call; the sink of its consumer."""

    def __init__(self, broker: Broker, topic: Topic, request: api.ConsumeRequest.Open, address: str) -> None:
        self._broker = broker
        self._topic = topic
        self._open = request
        self._address = address
        self.changed = asyncio.Event()
        self.reason: Refused | None = None
        self.is_ended = False
        self._is_detached = False
        self._out: deque[tuple[int, api.ConsumeResponse | _Waiting]] = deque()
        self._unpacked: _Unpacked | None = None
        # What the entry takes that is being unpacked, or goes out.
        self._held_bytes = 0
        # Counts what made everything queued void (rule 4).
        self._runs = 0
        self._out_bytes = 0
        self._reserved_bytes = 0
        self._is_seeking = False
        # Batches of which a part is acknowledged, or was delivered. (rule 2)
        self._left = PartialBatches()
        self._skipped: list[Position] = []
        self._is_full = False
        self._nacks = 0
        # A reader's or a seek's first entry: messages below this index are not wanted.
        self._skip: tuple[Position, int] | None = None
        self.consumer = self._new_consumer(request.consumer_name or broker.consumer_name())

    def _new_consumer(self, name: str) -> GrpcConsumer:
        request = self._open
        return GrpcConsumer(
            self,
            name,
            partition=self._topic.name.partition,
            priority_level=request.priority,
            hash_ranges=[(one.start, one.end) for one in request.sticky_ranges],
            address=self._address,
            client_version="magnetar topics.v1",
            connected_since_ms=self._broker.now_ms(),
        )

    @property
    def topic_name(self) -> TopicName:
        return self._topic.name

    @property
    def subscription(self) -> Subscription:
        assert self.consumer.subscription is not None, "an attached consumer has a subscription"
        return self.consumer.subscription

    async def subscribe(self) -> None:
        """Attach the consumer. Raises BrokerError."""
        request = self._open
        start: Position | None = None
        if request.is_reader:
            start = EARLIEST if request.from_earliest else LATEST
            if request.HasField("start_id"):
                try:
                    start = named_position(request.start_id.ledger_id, request.start_id.entry_id)
                except InvalidPosition as error:
                    raise Refused(Status.INVALID_ARGUMENT, f"{self._topic.name}: {error}") from error
                if request.start_id.HasField("batch_index"):
                    self._skip = start, request.start_id.batch_index + (not request.start_inclusive)
                elif not request.start_inclusive:
                    self._skip = start, 2**31
        await self._topic.subscribe(self._subscribe_request(start))

    def _subscribe_request(self, start: Position | None) -> SubscribeRequest:
        request = self._open
        return SubscribeRequest(
            self.consumer,
            request.subscription,
            _KINDS[request.type],
            not request.is_reader,
            start,
            request.from_earliest,
            0,
            False,
            KeySharedPolicy(bool(request.sticky_ranges), request.allow_out_of_order),
            {},
        )

    # -------------------------------------------------------------------------------- deliveries

    def deliver(self, waiting: _Waiting) -> None:
        """Queue an entry."""
        self._queue(waiting, len(waiting.entry))

    async def _unpack(self, waiting: _Waiting) -> _Unpacked:
        """Raises Corruption naming the entry."""
        try:
            parts = split_entry(waiting.entry)
            metadata = metadata_of(parts)
            unpacked_bytes = 0 if metadata.compression == NONE else metadata.uncompressed_size
            limit = self._broker.config.uncompressed_bytes_max
            self._hold(max(len(waiting.entry), unpacked_bytes if unpacked_bytes <= limit else 0))
            if unpacked_bytes > limit:
                raise Corruption(
                    f"uncompressed_size {unpacked_bytes} is above the limit of {limit} (maxUncompressedEntrySize)"
                )
            if max(len(waiting.entry), unpacked_bytes) > INLINE_BYTES_MAX:
                messages = await asyncio.to_thread(messages_in, parts, metadata, limit)
            else:
                messages = messages_in(parts, metadata, limit)
        except Corruption as error:
            raise Corruption(f"{self._topic.name}: {waiting.position}: {error}") from None
        return _Unpacked(waiting, metadata, messages)

    def _begin(self, unpacked: _Unpacked) -> None:
        """Leave out what is acknowledged already, or not asked for."""
        waiting, size = unpacked.waiting, unpacked.size
        position, skip = waiting.position, 0
        if self._skip is not None and self._skip[0] == position:
            skip = self._skip[1]
        if not size:
            if skip > 0:
                unpacked.messages = iter(())
            return
        self._left.sizes.note(position, size)
        left = whole = (1 << size) - 1
        if self._open.type in _IN_ORDER:
            left = self._left.left(position, whole)
        if waiting.ack_set is not None:
            left &= mask_of(waiting.ack_set)
        if skip > 0:
            left &= whole & ~((1 << min(skip, size)) - 1)
        if left != whole:
            unpacked.bits = left.to_bytes((size + 7) // 8, "little")
            if left:
                self._left.note(position, left, size)
            else:
                unpacked.messages = iter(())

    def _fill_delivery(self, unpacked: _Unpacked, answer: api.ConsumeResponse) -> int:
        """Put messages into *answer*, as many as may go at once; returns their bytes. At the end of the entry it is
        finished."""
        delivery = _delivery(answer, unpacked)
        add, bits, size_bytes = delivery.messages.add, unpacked.bits, 0
        try:
            for index, single, payload in unpacked.messages:
                size_bytes += len(payload) + MESSAGE_BYTES
                if single is None:
                    self._fill_single(unpacked.metadata, delivery, payload)
                    break
                if bits is not None and not bits[index >> 3] >> (index & 7) & 1:
                    continue
                if single.compacted_out:
                    unpacked.compacted |= 1 << index
                    continue
                message = add(payload=bytes(payload), batch_index=index, sequence_id=single.sequence_id)
                if not _is_plain(single):
                    _fill(message, single)
                if size_bytes >= DELIVERY_BYTES_MAX or len(delivery.messages) >= DELIVERY_MESSAGES_MAX:
                    unpacked.delivered += len(delivery.messages)
                    return size_bytes
        except Corruption as error:
            unpacked.delivered += len(delivery.messages)
            if delivery.messages:
                delivery = answer.deliveries.add()
            text = f"{self._topic.name}: {unpacked.waiting.position}: {error}"
            size_bytes += _fill_problem(delivery, unpacked.waiting, text)
        unpacked.delivered += len(delivery.messages)
        if not delivery.messages:
            del answer.deliveries[-1]
        self._finish(unpacked)
        return size_bytes

    def _fill_single(
        self, metadata: MessageMetadata, delivery: api.ConsumeResponse.Delivery, payload: memoryview
    ) -> None:
        message = delivery.messages.add(payload=bytes(payload), sequence_id=metadata.sequence_id)
        _fill(message, metadata)
        where = f"{self._topic.name}: {Position(delivery.ledger_id, delivery.entry_id)}"
        if metadata.num_chunks_from_msg > 1:
            delivery.problem = f"{where}: a chunk of a larger message; read it with a client of the binary protocol"
        elif metadata.encryption_keys:
            delivery.problem = f"{where}: the message is encrypted; its keys are not here"

    def _finish(self, unpacked: _Unpacked) -> None:
        """All messages of the entry are out: settle what it cost (rule 1), and what nobody is to acknowledge."""
        self._unpacked = None
        self._hold(0)
        position, size = unpacked.waiting.position, unpacked.size
        if unpacked.compacted:
            left = self._left.left(position, (1 << size) - 1) & ~unpacked.compacted
            if left:
                self._left.note(position, left, size)
            else:
                self._left.forget(position)
                self._acknowledge_soon(position)
        elif not unpacked.delivered:
            self._acknowledge_soon(position)
        self._settle(unpacked.waiting, unpacked.delivered)

    def _hold(self, size_bytes: int) -> None:
        """The one entry that is taken apart takes so much; 0: there is none."""
        self._broker.reads.give(self._held_bytes)
        self._held_bytes = 0 if self._is_detached else size_bytes
        self._broker.reads.take(self._held_bytes)

    def _settle(self, waiting: _Waiting, delivered: int) -> None:
        consumer = waiting.consumer
        consumer.permits += waiting.permits - delivered
        if consumer.subscription is not None and not self.is_ended:
            consumer.subscription.pump()

    def _acknowledge_soon(self, position: Position) -> None:
        """Not at once: the dispatcher is in the middle of its entries."""
        if not self._skipped:
            asyncio.get_running_loop().call_soon(self._acknowledge_skipped)
        self._skipped.append(position)

    def _acknowledge_skipped(self) -> None:
        skipped, self._skipped = self._skipped, []
        if not self.is_ended and self.consumer.subscription is not None:
            self.subscription.acknowledge(self.consumer, _ack(skipped))

    def _queue(self, answer: api.ConsumeResponse | _Waiting, size: int) -> None:
        if self._is_detached:
            return
        self._out.append((size, answer))
        self._out_bytes += size
        self._broker.reads.take(size)
        self.changed.set()

    def _sent(self, size: int) -> None:
        self._out_bytes -= size
        self._broker.reads.give(size)

    async def take(self) -> api.ConsumeResponse | None:
        """The next frame, or None if nothing waits."""
        answer = api.ConsumeResponse()
        size = 0
        while size < FRAME_BYTES:
            unpacked = self._unpacked
            if unpacked is None:
                if not self._out:
                    break
                item = self._out[0][1]
                if isinstance(item, api.ConsumeResponse):
                    if answer.deliveries:
                        break
                    self._pop()
                    return item
                self._pop()
                runs = self._runs
                try:
                    unpacked = await self._unpack(item)
                except Corruption as error:
                    self._hold(0)
                    if runs == self._runs:
                        size += _fill_problem(answer.deliveries.add(), item, str(error))
                        self._settle(item, 1)
                    continue
                if runs != self._runs:  # a rewind or seek came in between
                    self._hold(0)
                    continue
                self._begin(unpacked)
                self._unpacked = unpacked
            size += self._fill_delivery(unpacked, answer)
            if self._unpacked is not None:  # there is more of it than goes at once
                break
        return answer if answer.deliveries else None

    def _pop(self) -> None:
        was_full = not self.is_writable
        size, _ = self._out.popleft()
        self._sent(size)
        if was_full and self._out_bytes <= QUEUE_LOW_BYTES:
            self._is_full = False
            if self.consumer.subscription is not None:
                self.subscription.pump()

    # -------------------------------------------------------------------------------- Sink

    @property
    def is_writable(self) -> bool:
        if self._out_bytes > QUEUE_HIGH_BYTES:  # rule 3
            self._is_full = True
        return not self._is_full and not self.is_ended and self.room_bytes > 0

    @property
    def room_bytes(self) -> int:
        return QUEUE_HIGH_BYTES - self._out_bytes - self._reserved_bytes - self._held_bytes

    @property
    def is_idle(self) -> bool:
        return not self._out_bytes and not self._reserved_bytes and not self._held_bytes

    def reserve(self, size_bytes: int) -> None:
        self._reserved_bytes += size_bytes
        assert self._reserved_bytes >= 0
        if size_bytes < 0 and self.is_writable and self.consumer.subscription is not None:
            self.subscription.pump()

    def write(self, frame: bytes) -> None:
        body, _ = parse_frame(memoryview(frame)[4:])
        if body.type == _T.CLOSE_CONSUMER and not self._is_seeking:
            self.end(moved(str(self._topic.name)))

    def write_message(self, head: bytes, entry: Buffer) -> None:
        raise AssertionError("entries come by GrpcConsumer.send")

    async def is_alive(self) -> bool:
        return not self.is_ended

    def on_published(self, count: int, size_bytes: int) -> None:
        raise AssertionError("this is no producer")

    def on_producer_closed(self, producer: object) -> None:
        raise AssertionError("this is no producer")

    def on_consumer_closed(self, consumer: object) -> None:
        if not self._is_seeking:
            self.end(moved(str(self._topic.name)))

    def end(self, reason: Refused | None) -> None:
        """The call is over; the first reason counts."""
        if not self.is_ended:
            self.is_ended = True
            self.reason = reason
            self.changed.set()

    # -------------------------------------------------------------------------------- requests

    async def handle(self, request: api.ConsumeRequest) -> None:
        """Do what a request asks for. Raises Refused for what ends the call."""
        error = ""
        try:
            await self._handle(request)
        except (BrokerError, InvalidPosition, ValueError) as failure:
            if not request.request_id:
                if isinstance(failure, BrokerError):
                    raise refusal(str(self._topic.name), failure) from failure
                raise Refused(Status.INVALID_ARGUMENT, f"{self._topic.name}: {failure}") from failure
            error = str(failure)
        if request.request_id:
            self._queue(api.ConsumeResponse(done=request.request_id, error=error), 0)

    async def _handle(self, request: api.ConsumeRequest) -> None:
        if request.HasField("open"):
            raise Refused(Status.INVALID_ARGUMENT, f"{self._topic.name}: `open` comes once, in the first request")
        if len(request.acks) > IDS_MAX or len(request.nack.ids) > IDS_MAX:
            raise ValueError(f"a request may have {IDS_MAX} ids; split it")
        if request.acks:
            self._acknowledge(request.acks)
        if request.HasField("cumulative_ack"):
            self._acknowledge_up_to(request.cumulative_ack)
        if request.HasField("nack") and request.nack.ids:
            self._nack(request.nack)
        if request.HasField("seek"):
            await self._seek(request.seek)
        if request.permits < 0:
            raise ValueError(f"permits are {request.permits}; they must not be negative")
        if request.permits:
            self.subscription.flow(self.consumer, request.permits)
        if request.unsubscribe:
            self._is_seeking = True  # our own consumer's end is no surprise
            try:
                await self._topic.unsubscribe(self.consumer)
            finally:
                self._is_seeking = False
            self.end(None)

    def _acknowledge(self, ids: Iterable[api.MessageId]) -> None:
        whole: list[Position] = []
        parts: dict[Position, tuple[int, int]] = {}
        failure: BrokerError | InvalidPosition | ValueError | None = None
        acknowledge = self._left.acknowledge
        for one in ids:
            try:
                position = named_position(one.ledger_id, one.entry_id)
                if not one.HasField("batch_index"):
                    self._left.forget(position)
                    whole.append(position)
                    continue
                left = acknowledge(position, one.batch_index, one.batch_size)
            except (BrokerError, InvalidPosition, ValueError) as error:  # what stood before it counts
                failure = error
                break
            if left is None:
                continue
            if left:
                parts[position] = left, one.batch_size
            else:
                parts.pop(position, None)
                whole.append(position)
        if whole:
            self.subscription.acknowledge(self.consumer, _ack(whole))
        if parts and self.subscription.limits.batch_index_acks:
            command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
            for position, (left, size) in parts.items():
                made = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id, batch_size=size)
                made.ack_set.extend(words_of(left, (size + 63) // 64))
            self.subscription.acknowledge(self.consumer, command)
        if failure is not None:
            raise failure

    def _acknowledge_up_to(self, up_to: api.MessageId) -> None:
        if self._open.type not in _IN_ORDER:
            raise ValueError("a cumulative ack needs the type EXCLUSIVE or FAILOVER; acknowledge single messages")
        position = named_position(up_to.ledger_id, up_to.entry_id)
        self._topic.ledger.check_within(position)
        if position.entry_id < 0 and up_to.HasField("batch_index"):
            raise ValueError(f"{position} stands before an entry and has no batch_index")
        self._left.forget_before(position)
        command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Cumulative)
        left: int | None = 0
        if up_to.HasField("batch_index"):
            left = self._left.acknowledge_up_to(position, up_to.batch_index, up_to.batch_size)
        if left == 0:
            self._left.forget(position)
            command.message_id.add(ledgerId=position.ledger_id & NO_ID, entryId=position.entry_id & NO_ID)
        elif left is not None and self.subscription.limits.batch_index_acks:
            made = command.message_id.add(ledgerId=position.ledger_id, entryId=position.entry_id)
            made.batch_size = up_to.batch_size
            made.ack_set.extend(words_of(left, (up_to.batch_size + 63) // 64))
        else:
            previous = self._topic.ledger.previous_position(position)
            if previous.entry_id < 0 or previous <= self.subscription.cursor.mark_delete_position:
                return
            command.message_id.add(ledgerId=previous.ledger_id, entryId=previous.entry_id)
        self.subscription.acknowledge(self.consumer, command)

    def _nack(self, nack: api.ConsumeRequest.Nack) -> None:
        if not 0 <= nack.delay_ms <= NACK_DELAY_MS_MAX:
            raise ValueError(f"a nack's delay is 0 to {NACK_DELAY_MS_MAX} ms, not {nack.delay_ms}")
        if self._nacks >= NACKS_MAX:
            raise ValueError(f"{NACKS_MAX} requests with delayed nacks are under way; put more ids into one")
        positions = sorted({named_position(one.ledger_id, one.entry_id) for one in nack.ids})
        if not nack.delay_ms:
            self._redeliver(positions)
            return
        self._nacks += 1

        def due() -> None:
            self._nacks -= 1
            if not self.is_ended:
                self._redeliver(positions)

        self._broker.clock.call_later(nack.delay_ms / 1000, due)

    def _redeliver(self, positions: list[Position]) -> None:
        if self.consumer.subscription is None or self._is_seeking:
            return
        if self._open.type not in _IN_ORDER:
            for position in positions:
                self._left.forget(position)
            self.subscription.redeliver(self.consumer, positions, None)
            return
        if self.subscription.active_consumer is self.consumer:
            self._rewound()
            self.subscription.redeliver(self.consumer, None, None)

    def _rewound(self) -> None:
        """Rule 4."""
        self._runs += 1
        self._unpacked = None
        self._hold(0)
        kept = [(cost, item) for cost, item in self._out if isinstance(item, api.ConsumeResponse)]
        self._out = deque(kept)
        self._sent(self._out_bytes - sum(cost for cost, _ in kept))
        self._is_full = False
        self.consumer.permits = 0
        after = self.subscription.cursor.mark_delete_position
        after_id = api.MessageId(ledger_id=after.ledger_id, entry_id=after.entry_id)
        self._queue(api.ConsumeResponse(rewound=api.ConsumeResponse.Rewound(after_id=after_id)), 0)

    async def _seek(self, seek: api.ConsumeRequest.Seek) -> None:
        position = LATEST
        skip: tuple[Position, int] | None = None
        if seek.HasField("id"):
            position = named_position(seek.id.ledger_id, seek.id.entry_id)
            if position not in (EARLIEST, LATEST) and seek.id.HasField("batch_index"):
                skip = position, seek.id.batch_index
        elif seek.HasField("time_ms"):
            position = await self._topic.position_at_ms(seek.time_ms)
        elif not seek.to_end:
            raise ValueError("a seek needs an id, a time, or to_end")
        subscription = self.subscription
        self._is_seeking = True
        try:
            await self._topic.seek(subscription, position)
            self._left.clear()
            self._skip = skip
            self.consumer = self._new_consumer(self.consumer.name)
            await self._topic.subscribe(self._subscribe_request(position))
        except BrokerError as error:
            self.end(refusal(str(self._topic.name), error))
            raise
        finally:
            self._is_seeking = False
        self._rewound()

    def detach(self) -> None:
        """The call has ended: what is unacknowledged goes to others."""
        self.is_ended = self._is_detached = True
        self._runs += 1
        self._unpacked = None
        self._hold(0)
        self._out.clear()
        self._sent(self._out_bytes)
        self._topic.detach_consumer(self.consumer)


class Consumers:
    """All Consume calls of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._calls: set[ConsumeCall] = set()

    def end(self) -> None:
        """Send everybody away."""
        for call in list(self._calls):
            call.end(moved(str(call.topic_name)))

    async def serve(self, call: Any) -> None:
        """One Consume call. Raises Refused, BrokerError."""
        request = await call.read()
        if request is grpc.aio.EOF:
            return
        if not request.HasField("open") or request.acks or request.permits:
            raise Refused(Status.INVALID_ARGUMENT, "the first request of Consume has `open`, and nothing else")
        wanted = request.open
        name = parse_topic(wanted.topic)
        if wanted.type not in _KINDS:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: there is no subscription type {wanted.type}")
        if wanted.is_reader and wanted.type != api.EXCLUSIVE:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: readers have the type EXCLUSIVE")
        if wanted.sticky_ranges and wanted.type != api.KEY_SHARED:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: sticky ranges need the type KEY_SHARED")
        try:
            made, last = await self._attach(name, wanted, call.peer())
        except BrokerError as error:
            raise refusal(str(name), error) from error
        self._calls.add(made)
        try:
            opened = api.ConsumeResponse.Opened(consumer_name=made.consumer.name, last_id=last)
            await call.write(api.ConsumeResponse(opened=opened))
            await _pump(call, made)
        finally:
            self._calls.discard(made)
            made.detach()

    async def _attach(
        self, name: TopicName, wanted: api.ConsumeRequest.Open, address: str
    ) -> tuple[ConsumeCall, api.MessageId]:
        broker = self._broker
        if name.partition < 0 and (partitions := await broker.partitions(name, create=True)):
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{name} has {partitions} partitions; open {name.with_partition(0)} and so on",
            )
        topic = await broker.topic_for_consumer(name, create=True)
        if wanted.HasField("schema") and (schema := schema_of(wanted.schema)) is not None:
            await broker.check_consumer_schema(name, schema)
        made = ConsumeCall(broker, topic, wanted, address)
        last = await last_id(topic)
        await made.subscribe()
        return made, last


async def _pump(call: Any, made: ConsumeCall) -> None:
    async def write() -> None:
        while True:
            await made.changed.wait()
            made.changed.clear()
            while (answer := await made.take()) is not None:
                await call.write(answer)
            if made.is_ended:
                return

    async def read() -> None:
        while not made.is_ended:
            request = await call.read()
            if request is grpc.aio.EOF:
                made.end(None)
                return
            await made.handle(request)

    writing, reading = asyncio.ensure_future(write()), asyncio.ensure_future(read())
    try:
        await asyncio.wait([writing, reading], return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            reading.result()
            await writing
        else:
            writing.result()
    finally:
        for task in (writing, reading):
            task.cancel()
        await asyncio.gather(writing, reading, return_exceptions=True)
    if made.reason is not None:
        raise made.reason


async def last_id(topic: Topic) -> api.MessageId:
    """The last message of *topic*. Raises BrokerError."""
    position, batch_index = await topic.last_message()
    made = api.MessageId(ledger_id=position.ledger_id, entry_id=position.entry_id)
    if topic.name.partition >= 0:
        made.partition = topic.name.partition
    if batch_index >= 0:
        made.batch_index, made.batch_size = batch_index, batch_index + 1
    return made


def _delivery(answer: api.ConsumeResponse, unpacked: _Unpacked) -> api.ConsumeResponse.Delivery:
    waiting, metadata = unpacked.waiting, unpacked.metadata
    delivery = answer.deliveries.add(
        ledger_id=waiting.position.ledger_id,
        entry_id=waiting.position.entry_id,
        batch_size=unpacked.size,
        redelivery_count=waiting.redelivery_count,
        publish_time_ms=metadata.publish_time,
        producer_name=metadata.producer_name,
    )
    if metadata.schema_version:
        delivery.schema_version = metadata.schema_version
    return delivery


def _fill_problem(delivery: api.ConsumeResponse.Delivery, waiting: _Waiting, problem: str) -> int:
    """One message with the stored payload stands for what cannot be taken apart; returns its bytes."""
    payload = bytes(_rest(waiting.entry))
    delivery.Clear()
    delivery.ledger_id, delivery.entry_id = waiting.position
    delivery.redelivery_count = waiting.redelivery_count
    delivery.problem = problem
    delivery.messages.add(payload=payload)
    return len(payload)


def _is_plain(single: SingleMessageMetadata) -> bool:
    """Whether there is nothing but a payload size and a sequence id, told from the encoded size: most messages are so.

    Without the sequence id, another field may take the very bytes.
    """
    if not single.HasField("sequence_id"):
        return False
    size, sequence_id = single.payload_size.bit_length(), single.sequence_id.bit_length()
    return single.ByteSize() == 2 + ((size + 6) // 7 or 1) + ((sequence_id + 6) // 7 or 1)


def _fill(message: api.Message, metadata: MessageMetadata | SingleMessageMetadata) -> None:
    if metadata.HasField("partition_key"):
        message.key = metadata.partition_key
        message.key_is_base64 = metadata.partition_key_b64_encoded
    for item in metadata.properties:
        message.properties[item.key] = item.value
    if metadata.event_time:
        message.event_time_ms = metadata.event_time
    if metadata.ordering_key:
        message.ordering_key = metadata.ordering_key
    if metadata.null_value:
        message.is_null = True


def _ack(positions: Iterable[Position]) -> wire.CommandAck:
    command = wire.CommandAck(consumer_id=0, ack_type=wire.CommandAck.Individual)
    for ledger_id, entry_id in positions:
        command.message_id.add(ledgerId=ledger_id & NO_ID, entryId=entry_id & NO_ID)
    return command


def _rest(entry: Buffer) -> Buffer:
    try:
        return split_entry(entry).payload
    except Corruption:
        return entry
