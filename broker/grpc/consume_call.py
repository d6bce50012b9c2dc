"""One Consume call: a consumer of a subscription whose client speaks gRPC.

    Subscription ──entry──▶ queue ──deliveries──▶ client
          ▲                                          │
          └────── permits, acks, nacks, seeks ◀──────┘

Rules:

1. Permits count messages, as on the binary port. An entry that cost more permits than it delivered messages gives the
   difference back. Of a batch that goes as it is all messages count; its client gives back what it does not find in it.
2. A batch is acknowledged as a whole when all its messages are; before that the cursor learns of single ones only
   where the broker keeps such acks (acknowledgmentAtBatchIndexLevelEnabled). What it does not keep is known here as
   long as the call lasts.
3. While more than QUEUE_HIGH_BYTES wait for the client to read, nothing more is dispatched to it. Entries wait as they
   are stored: one is taken apart when the client has room for it, and goes out in pieces if it has many messages. While
   more than ANSWERS_MAX answers to its requests wait, no more of these are read.
4. When everything unacknowledged comes again (nack on EXCLUSIVE and FAILOVER) or after a seek, the client is told
   `rewound` in front of the first message of the new run, and permits start from zero.
5. Acks that cannot be are passed over, and the client is told so: the others of their request count, and the call goes
   on.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from broker.broker import Broker
from broker.errors import BrokerError
from broker.grpc.acks import AckedId, ack_of, ack_of_parts, acks_of, cumulative_ack_of
from broker.grpc.deliveries import UnpackedEntry, WaitingEntry, fill_problem
from broker.grpc.partial import PartialBatches
from broker.grpc.status import Refused, Status, moved, refusal
from broker.topic.clients.consumer import AckSet, Consumer, ConsumerSubscription
from broker.topic.dispatchers.kinds import KeySharedPolicy
from broker.topic.ports import NextBroker
from broker.topic.requests import SubscribeRequest
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.types import KIB, MIB, Buffer, Cancellable, Corruption
from magnetar_core.security.caller import TRUSTED, Caller
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import InvalidPosition
from managed_ledger.messages import (
    BATCH_MESSAGES_MAX,
    is_open_batch,
    messages_from,
    metadata_of,
    opened_payload,
    split_entry,
)
from managed_ledger.messages_pb2 import NONE
from managed_ledger.position import EARLIEST, LATEST, Position, named_position

# Bytes that wait for a client to read before dispatch to it pauses, and below which it is resumed: as on the binary
# port.
QUEUE_HIGH_BYTES: Final = 1 * MIB
QUEUE_LOW_BYTES: Final = 256 * KIB

# Deliveries that leave in one frame: gRPC costs some 200 µs a frame, and a frame is one allocation on both sides.
FRAME_BYTES: Final = 256 * KIB

# Entries that are larger than this, or unpack to more, are unpacked on another thread: zlib makes 200 MB/s.
INLINE_BYTES_MAX: Final = 512 * KIB

# The longest delay of a nack. Each request with one holds a timer and its ids.
NACK_DELAY_MS_MAX: Final = 24 * 3600 * 1000

# Nack requests of one call whose delay is not over, and entries that they name: four times what a consumer of the
# Shared types may have unacknowledged, 130 bytes each.
NACKS_MAX: Final = 10_000
NACKED_ENTRIES_MAX: Final = 200_000

# Ids in one request; each is some ten microseconds on the loop.
IDS_MAX: Final = 20_000

# Acks of one request that are worked on in one turn of the loop, some 7 µs each. The first of a large batch takes
# longer where parts of batches are kept: the bits of so many messages take as long as an id.
IDS_PER_TURN: Final = 2_000
MESSAGES_PER_ID: Final = 3_000

# Answers to its requests that wait for a client to read, some 300 bytes each.
ANSWERS_MAX: Final = 100

KINDS: Final = {
    api.EXCLUSIVE: wire.CommandSubscribe.Exclusive,
    api.SHARED: wire.CommandSubscribe.Shared,
    api.FAILOVER: wire.CommandSubscribe.Failover,
    api.KEY_SHARED: wire.CommandSubscribe.Key_Shared,
}
_IN_ORDER: Final = (api.EXCLUSIVE, api.FAILOVER)


class ConsumeCall:
    """One Consume call; the sink of its consumer."""

    def __init__(
        self, broker: Broker, topic: Topic, request: api.ConsumeRequest.Open, address: str, caller: Caller = TRUSTED
    ) -> None:
        self._broker = broker
        self._topic = topic
        self._open = request
        # Compaction leaves messages empty, which are acknowledged here (`_finish`).
        self._sends_batches = request.takes_batches and not request.read_compacted
        self._address = address
        self._caller = caller
        self.changed = asyncio.Event()
        self.reason: Refused | None = None
        self.is_ended = False
        self._is_detached = False
        # The queue: bytes of each item, and the item.
        self._out: deque[tuple[int, api.ConsumeResponse | WaitingEntry]] = deque()
        self._answers = 0
        self.may_read = asyncio.Event()
        """Whether the next request may be read (rule 3), or the call has ended."""
        self.may_read.set()
        self._unpacked: UnpackedEntry | None = None
        # Bytes of the entry that is being unpacked, or whose messages are being sent.
        self._held_bytes = 0
        # Those of the frame that is being written.
        self._frame_bytes = 0
        # Rewinds and seeks so far: each makes all queued entries void (rule 4).
        self._rewinds = 0
        self._out_bytes = 0
        self._reserved_bytes = 0
        self._is_seeking = False
        # Batches of which a part is acknowledged, or was delivered. (rule 2)
        self._partial = PartialBatches(is_done=self._is_done)
        self._skipped: list[Position] = []
        self._is_full = False
        # Delayed nacks, and how many entries each names.
        self._nacks: dict[Cancellable, int] = {}
        self._nacked_entries = 0
        # The first entry of a reader or after a seek, and the index of the first message wanted from it.
        self._first_wanted: tuple[Position, int] | None = None
        self.consumer = self._new_consumer(request.consumer_name or broker.consumer_name())

    @property
    def work_name(self) -> str:
        """For the watch over the loop."""
        return f"Consume of {self._topic.name} over gRPC, client {self._address}, {self._caller.work_name}"

    def _new_consumer(self, name: str) -> Consumer:
        request = self._open
        return Consumer(
            self,
            self.deliver,
            0,
            name,
            partition=self._topic.name.partition,
            priority_level=request.priority,
            read_compacted=request.read_compacted,
            hash_ranges=[(hashes.start, hashes.end) for hashes in request.sticky_ranges],
            address=self._address,
            client_version="magnetar topics.v1",
            connected_since_ms=self._broker.now_ms(),
            keeps_counts=True,
            caller=self._caller,
        )

    @property
    def topic_name(self) -> TopicName:
        return self._topic.name

    @property
    def subscription(self) -> ConsumerSubscription:
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
                    self._first_wanted = start, request.start_id.batch_index + (not request.start_inclusive)
                elif not request.start_inclusive:
                    self._first_wanted = start, 2**31
        await self._attach(start)

    async def _attach(self, start: Position | None) -> None:
        request = self._open
        wanted = SubscribeRequest(
            self.consumer,
            request.subscription,
            KINDS[request.type],
            not request.is_reader,
            start,
            request.from_earliest,
            0,
            KeySharedPolicy(bool(request.sticky_ranges), request.allow_out_of_order),
            {},
        )
        await self._topic.subscribe(wanted)
        self.consumer.deliver = self.deliver  # a queued entry is not sent yet: that is no span of a traced topic

    # -------------------------------------------------------------------------------- deliveries

    def deliver(
        self, consumer: Consumer, position: Position, entry: Buffer, messages: int, redeliveries: int, ack_set: AckSet
    ) -> int:
        """Queue an entry (`broker.topic.clients.consumer.Deliver`)."""
        size_bytes = len(entry)
        self._queue(WaitingEntry(consumer, position, entry, messages, redeliveries, ack_set), size_bytes)
        return size_bytes

    async def _unpack(self, waiting: WaitingEntry) -> UnpackedEntry:
        """Raises Corruption naming the entry."""
        try:
            parts = split_entry(waiting.entry)
            metadata = metadata_of(parts)
            unpacked_bytes = 0 if metadata.compression == NONE else metadata.uncompressed_size
            limit = self._broker.config.uncompressed_bytes_max
            self._count_held(max(len(waiting.entry), unpacked_bytes if unpacked_bytes <= limit else 0))
            if unpacked_bytes > limit:
                raise Corruption(
                    f"uncompressed_size {unpacked_bytes} is above the limit of {limit} (maxUncompressedEntrySize)"
                )
            if max(len(waiting.entry), unpacked_bytes) > INLINE_BYTES_MAX:
                payload = await asyncio.to_thread(opened_payload, parts, metadata, limit)
            else:
                payload = opened_payload(parts, metadata, limit)
        except Corruption as error:
            raise Corruption(f"{self._topic.name}: {waiting.position}: {error}") from None
        may_be_whole = self._sends_batches and is_open_batch(metadata)
        return UnpackedEntry(waiting, metadata, messages_from(metadata, payload), payload if may_be_whole else None)

    def _finish(self, unpacked: UnpackedEntry) -> None:
        """All messages of the entry are sent: correct its permits (rule 1), and acknowledge what no client will.

        Messages that compaction removed, and entries without a message to deliver, are acknowledged here.
        """
        self._unpacked = None
        self._count_held(0)
        position, size = unpacked.waiting.position, unpacked.size
        if unpacked.compacted:
            left_mask = self._partial.left(position, (1 << size) - 1) & ~unpacked.compacted
            if left_mask:
                self._partial.note(position, left_mask, size)
            else:
                self._partial.forget_done(position)
                self._acknowledge_soon(position)
        elif not unpacked.delivered:
            self._acknowledge_soon(position)
        self._return_permits(unpacked.waiting, unpacked.delivered)

    def _count_held(self, size_bytes: int) -> None:
        """Count *size_bytes* for the one entry that is being unpacked; 0 when there is none."""
        self._broker.reads.give(self._held_bytes)
        self._held_bytes = 0 if self._is_detached else size_bytes
        self._broker.reads.take(self._held_bytes)

    def _count_frame(self, size_bytes: int) -> None:
        """Count *size_bytes* for the frame that is being written; 0 when there is none."""
        self._broker.reads.give(self._frame_bytes)
        self._frame_bytes = 0 if self._is_detached else size_bytes
        self._broker.reads.take(self._frame_bytes)

    def _is_done(self, position: Position) -> bool:
        """Whether the subscription has acknowledged an entry."""
        return self.consumer.subscription is not None and self.subscription.acking.is_done(position)

    def _return_permits(self, waiting: WaitingEntry, delivered: int) -> None:
        """Give back the permits that the entry cost beyond the messages *delivered* (rule 1)."""
        consumer = waiting.consumer
        consumer.permits += waiting.permits - delivered
        if consumer.subscription is not None and not self.is_ended:
            consumer.subscription.resume((consumer,))

    def _acknowledge_soon(self, position: Position) -> None:
        """Acknowledge in the next turn of the loop: now the dispatcher may be in the middle of its entries."""
        if not self._skipped:
            asyncio.get_running_loop().call_soon(self._acknowledge_skipped)
        self._skipped.append(position)

    def _acknowledge_skipped(self) -> None:
        skipped, self._skipped = self._skipped, []
        if not self.is_ended and self.consumer.subscription is not None:
            self.subscription.acking.acknowledge(self.consumer, ack_of(skipped))

    def _queue(self, answer: api.ConsumeResponse | WaitingEntry, size: int) -> None:
        if self._is_detached:
            return
        self._out.append((size, answer))
        if isinstance(answer, api.ConsumeResponse):
            self._answers += 1
            if self._answers > ANSWERS_MAX:
                self.may_read.clear()
        self._out_bytes += size
        self._broker.reads.take(size)
        self.changed.set()

    def _sent(self, size: int) -> None:
        """*size* bytes left the queue."""
        self._out_bytes -= size
        assert self._out_bytes >= 0, "more left the queue than came into it"
        self._broker.reads.give(size)

    async def take(self) -> api.ConsumeResponse | None:
        """The next frame, or None if nothing waits.

        It has messages of several entries up to FRAME_BYTES; what is no delivery (`rewound`, `done`) is a frame alone.
        The one before it is written.
        """
        self._count_frame(0)
        answer = api.ConsumeResponse()
        size = 0
        while size < FRAME_BYTES:
            unpacked = self._unpacked
            if unpacked is None:
                if not self._out:
                    break
                item = self._out[0][1]
                if isinstance(item, api.ConsumeResponse):
                    if answer.deliveries:  # they were queued before it, so they go first
                        break
                    self._pop()
                    self._answers -= 1
                    if self._answers <= ANSWERS_MAX:
                        self.may_read.set()
                    return item
                self._pop()
                rewinds = self._rewinds
                try:
                    unpacked = await self._unpack(item)
                except Corruption as error:
                    self._count_held(0)
                    if rewinds == self._rewinds:  # the client is told, as if it were one message
                        size += fill_problem(answer.deliveries.add(), item, str(error))
                        self._return_permits(item, 1)
                    continue
                if rewinds != self._rewinds:  # a rewind or seek came in between
                    self._count_held(0)
                    continue
                position, index = self._first_wanted or (None, 0)
                skip = index if position == item.position else 0
                unpacked.leave_out(self._partial, skip, in_order=self._open.type in _IN_ORDER)
                self._unpacked = unpacked
            size += unpacked.fill(answer, self._topic.name)
            if unpacked.is_done:
                self._finish(unpacked)
            elif answer.deliveries:  # the rest goes with the next frame
                break
            if not answer.deliveries:  # so many are left out that there is nothing to send yet
                size = 0
                await asyncio.sleep(0)
        if not answer.deliveries:
            return None
        self._count_frame(size)
        return answer

    def _pop(self) -> None:
        """Remove the first item of the queue, which is sent. The dispatcher goes on at QUEUE_LOW_BYTES (rule 3)."""
        was_full = not self.is_writable
        size, _ = self._out.popleft()
        self._sent(size)
        if was_full and self._out_bytes <= QUEUE_LOW_BYTES:
            self._is_full = False
            if self.consumer.subscription is not None:
                self.subscription.resume((self.consumer,))

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
        assert self._reserved_bytes >= 0, "what is given back was reserved"
        if size_bytes < 0 and self.is_writable and self.consumer.subscription is not None:
            self.subscription.resume((self.consumer,))

    async def is_alive(self) -> bool:
        return not self.is_ended

    def on_closed(self, consumer: Consumer, next_broker: NextBroker) -> None:
        if not self._is_seeking:
            self.end(moved(str(self._topic.name)))

    def on_active_change(self, consumer: Consumer, is_active: bool) -> None:
        pass  # clients of the topic API are not told

    def on_end_of_topic(self, consumer: Consumer) -> None:
        pass  # as above

    def on_partitions(self, count: int) -> None:
        """The topic of which this is a partition has so many."""
        self._queue(api.ConsumeResponse(partitions=count), 0)

    def end(self, reason: Refused | None) -> None:
        """The call is over; the first reason counts."""
        if not self.is_ended:
            self.is_ended = True
            self.reason = reason
            self.changed.set()
            self.may_read.set()

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
        if len(request.acks) + len(request.ack_runs) > IDS_MAX or len(request.nack.ids) > IDS_MAX:
            raise ValueError(f"a request may have {IDS_MAX} ids; split it")
        acked: list[AckedId] = [(id_, None) for id_ in request.acks]
        acked += [(run.first, run.last) for run in request.ack_runs]
        if acked and (failure := await self._acknowledge(acked)) is not None:
            if request.request_id:
                raise failure
            self._queue(api.ConsumeResponse(error=str(failure)), 0)  # rule 5
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
        if request.leaving:
            self.consumer.is_leaving = True
        if request.unsubscribe:
            self._is_seeking = True  # the consumer is closed by this request: that does not end the call with an error
            try:
                await self._topic.unsubscribe(self.consumer)
            except BrokerError:
                if self.consumer not in self.subscription.consumers:  # it would wait for messages for ever
                    self.end(moved(str(self._topic.name)))
                raise
            finally:
                self._is_seeking = False
            self.end(None)

    async def _acknowledge(self, ids: Sequence[AckedId]) -> BrokerError | InvalidPosition | ValueError | None:
        """Acknowledge *ids*, a portion in each turn of the loop; returns the first problem."""
        failure: BrokerError | InvalidPosition | ValueError | None = None
        for number, portion in enumerate(_portions(ids)):
            if number:
                await asyncio.sleep(0)
                if self.is_ended:
                    break
            failure = self._acknowledge_some(portion) or failure
        return failure

    def _acknowledge_some(self, ids: Iterable[AckedId]) -> BrokerError | InvalidPosition | ValueError | None:
        acks = acks_of(ids, self._partial)
        if acks.whole:
            self.subscription.acking.acknowledge(self.consumer, ack_of(acks.whole))
        if acks.parts and self.subscription.acking.keeps_parts:
            self.subscription.acking.acknowledge(self.consumer, ack_of_parts(acks.parts))
        return acks.failure

    def _acknowledge_up_to(self, up_to: api.MessageId) -> None:
        if self._open.type not in _IN_ORDER:
            raise ValueError("a cumulative ack needs the type EXCLUSIVE or FAILOVER; acknowledge single messages")
        position = named_position(up_to.ledger_id, up_to.entry_id)
        self._topic.ledger.ledgers.check_within(position)
        if position.entry_id < 0 and up_to.HasField("batch_index"):
            raise ValueError(f"{position} stands before an entry and has no batch_index")
        self._partial.forget_before(position)
        left_mask: int | None = 0
        if up_to.HasField("batch_index"):
            left_mask = self._partial.acknowledge_up_to(position, up_to.batch_index, up_to.batch_size)
        if left_mask == 0:
            self._partial.forget_done(position)
            command = cumulative_ack_of(position)
        elif left_mask is not None and self.subscription.acking.keeps_parts:
            command = cumulative_ack_of(position, left_mask, up_to.batch_size)
        else:
            previous = self._topic.ledger.ledgers.previous_position(position)
            if previous.entry_id < 0 or previous <= self.subscription.mark_delete_position:
                return
            command = cumulative_ack_of(previous)
        self.subscription.acking.acknowledge(self.consumer, command)

    def _nack(self, nack: api.ConsumeRequest.Nack) -> None:
        if not 0 <= nack.delay_ms <= NACK_DELAY_MS_MAX:
            raise ValueError(f"a nack's delay is 0 to {NACK_DELAY_MS_MAX} ms, not {nack.delay_ms}")
        if len(self._nacks) >= NACKS_MAX:
            raise ValueError(f"{NACKS_MAX} requests with delayed nacks are under way; put more ids into one")
        positions = sorted({named_position(id_.ledger_id, id_.entry_id) for id_ in nack.ids})
        if not nack.delay_ms:
            self._redeliver(positions)
            return
        if self._open.type in _IN_ORDER:
            positions = []  # all that is open comes again, whatever they are
        else:
            positions = [position for position in positions if position in self.consumer.pending]
            if not positions:
                return
        if self._nacked_entries + len(positions) > NACKED_ENTRIES_MAX:
            raise ValueError(
                f"delayed nacks of {self._nacked_entries} entries are under way, and {NACKED_ENTRIES_MAX} may be; wait "
                "until some have come again"
            )

        def due() -> None:
            self._nacked_entries -= self._nacks.pop(timer)
            if not self.is_ended:
                self._redeliver(positions)

        timer = self._broker.clock.call_later(nack.delay_ms / 1000, due)
        self._nacks[timer] = len(positions)
        self._nacked_entries += len(positions)

    def _redeliver(self, positions: list[Position]) -> None:
        if self.consumer.subscription is None or self._is_seeking:
            return
        if self._open.type not in _IN_ORDER:
            for position in positions:
                self._partial.forget(position)
            self.subscription.redeliver(self.consumer, positions, None)
            return
        if self.subscription.active_consumer is self.consumer:
            self._rewound()
            self.subscription.redeliver(self.consumer, None, None)

    def _rewound(self) -> None:
        """Drop what is queued, and tell the client that everything unacknowledged comes again (rule 4)."""
        self._rewinds += 1
        self._unpacked = None
        self._count_held(0)
        remaining = [(cost, item) for cost, item in self._out if isinstance(item, api.ConsumeResponse)]
        self._out = deque(remaining)
        self._sent(self._out_bytes - sum(cost for cost, _ in remaining))
        self._is_full = False
        self.consumer.permits = 0
        mark_delete_position = self.subscription.mark_delete_position
        after_id = api.MessageId(ledger_id=mark_delete_position.ledger_id, entry_id=mark_delete_position.entry_id)
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
            self._partial.clear()
            self._first_wanted = skip
            self.consumer = self._new_consumer(self.consumer.name)
            await self._attach(position)
        except BrokerError as error:
            self.end(refusal(str(self._topic.name), error))
            raise
        finally:
            self._is_seeking = False
        self._rewound()

    def detach(self) -> None:
        """The call has ended: what is unacknowledged goes to others."""
        self.is_ended = self._is_detached = True
        self._rewinds += 1
        self._unpacked = None
        self._count_held(0)
        self._count_frame(0)
        self._out.clear()
        self._sent(self._out_bytes)
        for timer in self._nacks:
            timer.cancel()
        self._nacks.clear()
        self._topic.detach_consumer(self.consumer)


def _portions(ids: Sequence[AckedId]) -> Iterator[Sequence[AckedId]]:
    """The *ids* of one request in portions, each of which is worked on in one turn of the loop."""
    begin = work = 0
    large_batches = set[tuple[int, int]]()
    for index, (id_, _) in enumerate(ids):
        if work >= IDS_PER_TURN:
            yield ids[begin:index]
            begin, work = index, 0
            large_batches.clear()
        work += 1
        if id_.batch_size > MESSAGES_PER_ID and (id_.ledger_id, id_.entry_id) not in large_batches:
            large_batches.add((id_.ledger_id, id_.entry_id))
            work += min(id_.batch_size, BATCH_MESSAGES_MAX) // MESSAGES_PER_ID
    yield ids[begin:]
