"""A subscription over a ledger in memory, with consumers that remember what they were sent."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, cast

from broker.topic.clients.consumer import Consumer
from broker.topic.dispatchers.dispatcher import DispatchLimits
from broker.topic.dispatchers.key_shared import KeySharedDispatcher
from broker.topic.dispatchers.kinds import DispatchedTopic, KeySharedPolicy
from broker.topic.dispatchers.shared import SharedDispatcher
from broker.topic.ports import CursorPort, Entries, LedgerPort, NextBroker, Room
from broker.topic.rates.resource_group import Membership
from broker.topic.rates.throttling import DispatchThrottle
from broker.topic.reading.read_rates import ReadRates
from broker.topic.reading.subscription import Subscription
from broker.topic.unacked import UnackedBudget
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.clock import Timer
from magnetar_core.runtime.tasks import Failed, attempt_now
from magnetar_core.runtime.types import Buffer
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageMetadata
from managed_ledger.position import EARLIEST, Position
from tests.support.batches import plain_batch
from tests.support.manual_clock import ManualClock
from tests.support.memory_managed_ledger import MemoryCursor, MemoryManagedLedger

EXCLUSIVE, SHARED, FAILOVER, KEY_SHARED = (
    wire.CommandSubscribe.Exclusive,
    wire.CommandSubscribe.Shared,
    wire.CommandSubscribe.Failover,
    wire.CommandSubscribe.Key_Shared,
)


ROOM_BYTES = 1 << 20


class Delivered(NamedTuple):
    position: Position
    redelivery_count: int
    ack_set: list[int]
    consumer_epoch: int | None


class Peer:
    """The connection of one consumer."""

    def __init__(self, log: list[int] | None = None) -> None:
        self.is_writable = True
        self.room_bytes = ROOM_BYTES
        self.is_idle = True
        self.log = [] if log is None else log  # of all consumers of the bench
        self.got: list[int] = []  # entry ids, in order
        self.messages: list[Delivered] = []
        self.told: list[str | bool] = []

    def deliver(
        self,
        consumer: Consumer,
        position: Position,
        entry: Buffer,
        messages: int,
        redelivery_count: int,
        ack_set: Sequence[int] | None,
    ) -> int:
        epoch = consumer.epoch if consumer.sends_epoch else None
        self.messages.append(Delivered(position, redelivery_count, list(ack_set or ()), epoch))
        self.got.append(position.entry_id)
        self.log.append(position.entry_id)
        return len(entry)

    def reserve(self, size_bytes: int) -> None: ...

    async def is_alive(self) -> bool:
        return True

    def on_closed(self, consumer: Consumer, next_broker: NextBroker) -> None:
        self.told.append("closed")

    def on_active_change(self, consumer: Consumer, is_active: bool) -> None:
        self.told.append(is_active)

    def on_end_of_topic(self, consumer: Consumer) -> None:
        self.told.append("end")


class FakeHost:
    """Cold reads finish when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.survives_defects = False
        self.waiting_for_room: dict[object, Callable[[], None]] = {}
        self.unacked = UnackedBudget()
        self.fetching: list[tuple[Awaitable[Entries], Callable[[Entries | None], None]]] = []

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        self.timers_made += 1
        return self.clock.call_later(delay_ms / 1000, callback)

    timers_made = 0

    read_room_bytes = 1 << 30

    def when_read_room(self, waiter: object, resume: Callable[[], None]) -> None:
        self.waiting_for_room[waiter] = resume

    def fetch(
        self, work: Awaitable[Entries], done: Callable[[Entries | None], None], size_bytes: int, room: Room | None
    ) -> None:
        self.fetching.append((work, done))

    def guard(self, step: Callable[[], None], what: str) -> bool:
        """A defect shows in the test that meets it, unless that test is about defects."""
        if not self.survives_defects:
            step()
            return True
        return not isinstance(attempt_now(what, step), Failed)

    async def finish_fetching(self) -> None:
        while self.fetching:
            work, done = self.fetching.pop(0)
            done(await work)


def entry(
    number: int,
    *,
    batch: int | None = None,
    key: str | None = None,
    deliver_at_ms: int | None = None,
    marker: int | None = None,
    chunk: tuple[str, int, int] | None = None,
    publish_ms: int = 1,
) -> bytes:
    """*chunk*: uuid, chunk_id, num_chunks_from_msg."""
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=publish_ms)
    if batch is not None:
        metadata.num_messages_in_batch = batch
    if key is not None:
        metadata.partition_key = key
    if deliver_at_ms is not None:
        metadata.deliver_at_time = deliver_at_ms
    if marker is not None:
        metadata.marker_type = marker
    if chunk is not None:
        metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg = chunk
    return encode_entry(metadata, b"x" if batch is None else plain_batch(batch))


class Bench:
    """One topic with one subscription."""

    def __init__(
        self,
        *,
        partition: int = -1,
        unacked: UnackedBudget | None = None,
        throttles: tuple[DispatchThrottle, DispatchThrottle] | None = None,
        membership: Membership | None = None,
        host: "FakeHost | None" = None,
        **limits: Any,
    ) -> None:
        self.host = host or FakeHost()
        self.host.unacked = unacked or self.host.unacked
        self.ledger = MemoryManagedLedger("bench")
        self.ledger.begin_ledger(1)
        self.cursor: MemoryCursor = self.ledger.new_non_durable_cursor("s", EARLIEST)
        self.membership = membership or Membership()
        self.subscription = Subscription(
            "s",
            DispatchedTopic("persistent://public/default/t", partition),
            cast(CursorPort, self.cursor),
            cast(LedgerPort, self.ledger),
            self.host,
            DispatchLimits(**{"batch_index_acks": True, "failover_delay_ms": 1000, **limits}),
            ReadRates(*(throttles or (DispatchThrottle(), DispatchThrottle())), self.membership),
        )
        self.log: list[int] = []
        self.peers: dict[int, Peer] = {}
        self.consumers: dict[int, Consumer] = {}

    async def append(self, *entries: bytes) -> None:
        self.ledger.append(list(entries), [None] * len(entries))
        await asyncio.sleep(0)
        self.subscription.pump.run()
        self.check()

    def join(
        self, number: int, kind: int, *, permits: int = 0, priority: int = 0, epoch: int | None = None, **more: Any
    ) -> Peer:
        policy = more.pop("policy", KeySharedPolicy())
        peer = Peer(self.log)
        consumer = Consumer(peer, peer.deliver, number, f"c{number}", priority_level=priority, epoch=epoch, **more)
        self.subscription.add_consumer(consumer, kind, policy)
        self.peers[number], self.consumers[number] = peer, consumer
        if permits:
            self.flow(number, permits)
        self.check()
        return peer

    def leave(self, *numbers: int) -> None:
        """Consumers go in one turn of the loop, and the next one comes."""
        for number in numbers:
            self.subscription.remove_consumer(self.consumers.pop(number))
            self.check()
        self.pass_time(0)

    def flow(self, number: int, permits: int) -> None:
        self.subscription.flow(self.consumers[number], permits)
        self.check()

    def write(self, number: int, *, may: bool) -> None:
        """The connection of a consumer is full, or has room again."""
        peer = self.peers[number]
        peer.is_writable, peer.room_bytes = may, ROOM_BYTES if may else 0
        self.subscription.resume([self.consumers[number]])
        self.check()

    def ack(self, number: int, *entry_ids: int, cumulative: bool = False, ack_set: list[int] | None = None) -> None:
        ack = wire.CommandAck(consumer_id=number, ack_type=1 if cumulative else 0)  # type: ignore[arg-type]
        for entry_id in entry_ids:
            ack.message_id.add(ledgerId=1, entryId=entry_id, ack_set=ack_set or [])
        self.subscription.acking.acknowledge(self.consumers[number], ack)
        self.check()

    def redeliver(self, number: int, *entry_ids: int, epoch: int | None = None) -> None:
        positions = [Position(1, entry_id) for entry_id in entry_ids]
        self.subscription.redeliver(self.consumers[number], positions or None, epoch)
        self.check()

    def pass_time(self, seconds: float) -> None:
        self.host.clock.advance(seconds)
        self.check()

    def check(self) -> None:
        """The invariant of the flow: permits and backlog, so a read is under way or a frame has just left."""
        assert not self.subscription.pump.is_stuck
        dispatcher = self.subscription.pump.dispatcher
        if isinstance(dispatcher, SharedDispatcher):
            able = [one for one in dispatcher.consumers if one.is_available and one.sink.room_bytes > 0]
            asleep = [one for one in able if one not in dispatcher._ready]
            assert not asleep, "they can be sent something, and have no turn"
        if isinstance(dispatcher, KeySharedDispatcher) and dispatcher._no_replay_can_be_sent:
            dispatcher._no_replay_can_be_sent = False
            assert not self.subscription.pump.is_stuck, "something can go out, and is not looked for"
