"""One client connection: its handshake, its producers and consumers, and what each command leads to. No IO.

    START ──CONNECT──▶ CONNECTED ──▶ CLOSED       anything else before CONNECT, and a second CONNECT, end it

Rules:

1. Frames are worked on in the order in which they came. What memory can answer is answered in that call; what has to
   wait becomes one task, and its answer may overtake others (clients match them by request id).
2. All messages of one chunk for one topic are published in one call; a command between them comes after those
   before it.
3. A producer or consumer id is taken from the moment of the request; a close that arrives before the answer wins.
4. Messages for a producer that we closed a moment ago are dropped in silence: they were on their way.
5. Whatever is not known, or cannot be done here, is refused with the error that the protocol has for it.
6. A consumer that we closed before its first permits may not have been known to its client yet: Go's learns of it with
   the answer to SUBSCRIBE, and passes over a close that comes right behind. If its permits come all the same, and no
   new SUBSCRIBE soon after, it is told again.
7. What a client makes us hold is counted in bytes, and its socket is not read while there is too much: its sends
   without a receipt, requests without an answer, answers that it does not read, and the same of all clients
   together. A client that reads is never disconnected for it.
"""

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, Final, NamedTuple, Protocol

from broker.binary.listing import filter_topics, topics_hash
from broker.config import BrokerConfig
from broker.errors import BrokerError, MetadataFailure, NotAllowed
from broker.memory_budget import MemoryBudget
from broker.names import COORDINATORS, parse_namespace, parse_topic
from broker.topic.consumer import Consumer
from broker.topic.ports import Outbox
from broker.topic.producer import Producer
from broker.topic.requests import Attached, ProducerRequest, SubscribeRequest, TopicPort
from broker.topic.subscription import KeySharedPolicy
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import (
    BODY_OF_TYPE,
    NO_ID,
    Send,
    checksum_verdict,
    command,
    is_well_formed,
    parse_frame,
    parse_send,
)
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.types import KIB, MIB, Buffer, Cancellable, Corruption
from managed_ledger.errors import InvalidPosition
from managed_ledger.messages import batch_problem, message_count, metadata_of, split_entry
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position, named_position
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)

# What we say we are: clients log it, and admin tools compare it.
SERVER_VERSION: Final = "Pulsar Server4.0.8"
PROTOCOL_VERSION: Final = 21
BROKER_METADATA_VERSION: Final = 18

# Requests of one connection that wait for something (topics being opened, lookups). A client that reconnects asks
# for each of its topics at once; above this we read on when some are answered. Each takes some 6 KB.
REQUESTS_MAX: Final = 500

# Share of one connection in the memory for sends that storage has not answered: one that is fast must not keep it all
# from the others.
PUBLISH_SHARE: Final = 0.5

# Part of a frame that counts as one that is coming: what is below is commands that a chunk has cut.
PARTIAL_BYTES_MIN: Final = 64 * KIB

# Bytes that wait for a client to read before dispatch to it pauses, and before it goes on. A client on a slow link
# takes a megabyte in well under a keep-alive interval. All together have a limit of their own.
OUTBOX_HIGH_BYTES: Final = 1 * MIB
OUTBOX_LOW_BYTES: Final = 256 * KIB

# Ids that a client names to have them again. Clients name a thousand at once.
REDELIVERED_IDS_MAX: Final = 20_000

_T = wire.BaseCommand


class State(Enum):
    START = auto()
    CONNECTED = auto()
    CLOSED = auto()


class LookupAnswer(NamedTuple):
    """Where a client has to go."""

    service_url: str
    service_url_tls: str
    is_redirect: bool
    authoritative: bool


class BrokerPort(Protocol):
    """The broker, as a connection uses it (`broker.broker.Broker`). All coroutines raise BrokerError."""

    config: BrokerConfig
    publishes: MemoryBudget
    """Sends of all clients that have no receipt yet."""
    reads: MemoryBudget
    """Reads under way, and frames that the clients have not taken yet."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...

    async def lookup(self, topic: TopicName, *, authoritative: bool, listener: str) -> LookupAnswer: ...

    async def partitions(self, topic: TopicName, *, create: bool) -> int: ...

    async def topics_of_namespace(self, namespace: str, *, persistent: bool, non_persistent: bool) -> list[str]: ...

    async def topic_for_producer(self, topic: TopicName) -> TopicPort: ...

    async def topic_for_consumer(self, topic: TopicName, *, create: bool) -> TopicPort: ...

    async def producer_name(self) -> str: ...

    def consumer_name(self) -> str: ...

    async def producer_schema(self, topic: TopicName, schema: wire.Schema | None) -> bytes: ...

    async def check_consumer_schema(self, topic: TopicName, schema: wire.Schema) -> None: ...

    async def get_schema(self, topic: TopicName, version: bytes | None) -> tuple[wire.Schema, bytes]: ...

    async def put_schema(self, topic: TopicName, schema: wire.Schema) -> bytes: ...


# Consumers of one connection that may not know that they are closed (rule 6). And how long a client has that does.
EARLY_CLOSED_MAX: Final = 1_000
TELL_AGAIN_MS: Final = 1_000


class _Coming:
    """An id whose producer or consumer is being made."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


class Connection:
    """The broker's side of one connection; also the sink of its producers and consumers."""

    def __init__(
        self,
        broker: BrokerPort,
        outbox: Outbox,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        address: str,
    ) -> None:
        self.address = address
        self.state = State.START
        self.client_version = ""
        self.protocol_version = 0
        self._broker = broker
        # What was written and not taken by the socket, as last counted; what is being read for this client.
        self._unsent_bytes = 0
        self._reserved_bytes = 0
        self._partial_bytes = 0
        self._turn = 0
        self._outbox = outbox
        self._spawn = spawn
        self._keeps_broker_metadata = False
        self._is_java = False
        self._producers: dict[int, Producer | _Coming] = {}
        self._consumers: dict[int, Consumer | _Coming] = {}
        self._topic_of_consumer: dict[int, TopicPort] = {}
        self._attached: dict[int, Attached] = {}
        self._closed_producers: dict[int, int] = {}
        self._closed_early: dict[int, bool] = {}  # rule 6; and whether its permits have come
        self._run: list[tuple[Producer, Send]] = []
        self._requests = 0
        self._publishes = 0
        self._publish_bytes = 0
        self._is_paused = False

    # -------------------------------------------------------------------------------- in

    def on_frames(self, frames: list[memoryview]) -> int:
        """Work on the frames of one chunk; returns how many were, the others have to wait until reading is resumed.

        Raises MalformedFrame if the connection has to end.
        """
        try:
            for at, frame in enumerate(frames):
                if self.state is State.CLOSED:
                    break
                if self._is_paused:
                    return at
                send = parse_send(frame)
                if send is not None:
                    self._on_send(send)
                    continue
                if self._run:
                    self._publish_run()
                self._on_command(frame)
            return len(frames)
        finally:
            if self._run:
                self._publish_run()

    def _on_command(self, frame: memoryview) -> None:
        made, entry = parse_frame(frame)
        kind = made.type
        if self.state is State.START:
            if kind != _T.CONNECT:
                raise MalformedFrame(f"{_T.Type.Name(kind)} before CONNECT")
            self._on_connect(made.connect)
            return
        handler = _HANDLERS.get(kind)
        if handler is None or entry is not None:
            raise MalformedFrame(f"{_T.Type.Name(kind)} is nothing that a client sends now")
        handler(self, getattr(made, BODY_OF_TYPE[kind]))

    def on_lost(self) -> None:
        """The connection is gone: so are its producers and consumers."""
        self.state = State.CLOSED
        self._broker.publishes.forget(self)
        self.on_partial(0)
        self._count_unsent(0)
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        topics, self._topic_of_consumer = self._topic_of_consumer, {}
        self._attached.clear()
        for producer in producers.values():
            if isinstance(producer, Producer):
                producer.topic.detach_producer(producer)
            else:
                producer.is_cancelled = True
        for consumer_id, consumer in consumers.items():
            if isinstance(consumer, Consumer):
                topics[consumer_id].detach_consumer(consumer)
            else:
                consumer.is_cancelled = True

    def on_flushed(self, unsent_bytes: int) -> None:
        """The socket has taken what was written, but for so much."""
        had_room = self.room_bytes > 0
        self._count_unsent(unsent_bytes)
        if not had_room and self.room_bytes > 0:
            self._pump()
        if self._is_paused or unsent_bytes > OUTBOX_HIGH_BYTES:
            self._throttle()

    def recount(self) -> None:
        """Holder: the socket tells nothing while it drains."""
        self.on_flushed(self._outbox.unsent_bytes)

    def _count_unsent(self, unsent_bytes: int) -> None:
        reads = self._broker.reads
        reads.give(self._unsent_bytes - unsent_bytes)
        self._unsent_bytes = unsent_bytes
        if unsent_bytes:
            reads.holders.add(self)
        else:
            reads.holders.discard(self)

    def _pump(self) -> None:
        """There is room again: each consumer's subscription in turn, another one first each time."""
        consumers = [one for one in self._consumers.values() if isinstance(one, Consumer)]
        self._turn += 1
        first = self._turn % len(consumers) if consumers else 0
        for consumer in (*consumers[first:], *consumers[:first]):
            if self.room_bytes <= 0:
                return
            if consumer.subscription is not None:
                consumer.subscription.pump()

    def on_partial(self, held_bytes: int) -> None:
        """So much of a frame has come that is not whole yet."""
        if held_bytes < PARTIAL_BYTES_MIN or self.state is State.CLOSED:
            held_bytes = 0
        if held_bytes != self._partial_bytes:
            self._broker.publishes.keep(held_bytes - self._partial_bytes)
            self._partial_bytes = held_bytes
            if held_bytes and not self._is_paused:
                self._throttle()

    # -------------------------------------------------------------------------------- out (Sink)

    @property
    def room_bytes(self) -> int:
        return OUTBOX_HIGH_BYTES - self._unsent_bytes - self._reserved_bytes

    @property
    def is_writable(self) -> bool:
        return self.state is not State.CLOSED and self._unsent_bytes + self._reserved_bytes < OUTBOX_HIGH_BYTES

    @property
    def is_idle(self) -> bool:
        return not self._unsent_bytes and not self._reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        had_room = self.room_bytes > 0
        self._reserved_bytes += size_bytes
        assert self._reserved_bytes >= 0
        if not had_room and self.room_bytes > 0:
            self._pump()

    def write(self, frame: bytes) -> None:
        if self.state is not State.CLOSED:
            self._wrote(len(frame))
            self._outbox.write(frame)

    def write_message(self, head: bytes, entry: Buffer) -> None:
        if self.state is not State.CLOSED:
            self._wrote(len(head) + len(entry))
            self._outbox.write(head)
            self._outbox.write(entry)

    def _wrote(self, size_bytes: int) -> None:
        self._unsent_bytes += size_bytes
        self._broker.reads.used_bytes += size_bytes

    async def is_alive(self) -> bool:
        return self.state is not State.CLOSED and await self._outbox.is_alive()

    def on_published(self, count: int, size_bytes: int) -> None:
        self._publishes -= count
        self._publish_bytes -= size_bytes
        self._broker.publishes.give(size_bytes)
        if self._is_paused:
            self._throttle()

    def on_producer_closed(self, producer: object) -> None:
        assert isinstance(producer, Producer), "only producers are closed as such"
        if self._producers.get(producer.producer_id) is producer:
            del self._producers[producer.producer_id]
            self._attached.pop(producer.producer_id, None)
            self._closed_producers[producer.producer_id] = self._broker.now_ms()

    def on_consumer_closed(self, consumer: object) -> None:
        assert isinstance(consumer, Consumer), "only consumers are closed as such"
        if self._consumers.get(consumer.consumer_id) is consumer:
            del self._consumers[consumer.consumer_id]
            self._topic_of_consumer.pop(consumer.consumer_id, None)
            if not consumer.last_flow_ms and len(self._closed_early) < EARLY_CLOSED_MAX:
                self._closed_early[consumer.consumer_id] = False

    def _throttle(self) -> None:
        """Stop reading while too much waits; go on at half of it, so that it does not flutter. (rule 7)"""
        publishes = self._broker.publishes
        limit, share = self._broker.config.max_pending_publishes, publishes.limit_bytes * PUBLISH_SHARE
        if not self._is_paused:
            if (
                self._publishes > limit
                or self._publish_bytes > share
                or self._requests > REQUESTS_MAX
                or self._unsent_bytes > OUTBOX_HIGH_BYTES
            ):
                self._pause()
            elif publishes.is_full and (self._publish_bytes or self._partial_bytes):
                self._pause()
                publishes.wait(self, self._go_on, first=bool(self._partial_bytes))
        elif (
            self._publishes <= limit // 2
            and self._publish_bytes <= share // 2
            and self._requests <= REQUESTS_MAX // 2
            # Not OUTBOX_LOW_BYTES: below the high mark the socket may have nothing more to tell us.
            and self._unsent_bytes <= OUTBOX_HIGH_BYTES
        ):
            if publishes.is_full and (self._publish_bytes or self._partial_bytes):
                publishes.wait(self, self._go_on, first=bool(self._partial_bytes))
            elif not publishes.is_waiting(self):
                self._go_on()

    def _pause(self) -> None:
        self._is_paused = True
        self._outbox.pause_reading()

    def _go_on(self) -> None:
        self._is_paused = False
        if self.state is not State.CLOSED:
            self._outbox.resume_reading()

    # -------------------------------------------------------------------------------- handshake

    def _on_connect(self, connect: wire.CommandConnect) -> None:
        # A proxy names the broker it wants to reach; it has reached it.
        self.state = State.CONNECTED
        self.client_version = connect.client_version
        self.protocol_version = min(PROTOCOL_VERSION, connect.protocol_version)
        flags = connect.feature_flags
        self._is_java = flags.supports_partial_producer
        self._keeps_broker_metadata = (
            self._broker.config.expose_entry_metadata
            and flags.supports_broker_entry_metadata
            and self.protocol_version >= BROKER_METADATA_VERSION
        )
        self.write(
            command(
                _T.CONNECTED,
                server_version=SERVER_VERSION,
                protocol_version=self.protocol_version,
                max_message_size=self._broker.config.max_message_bytes,
                feature_flags=wire.FeatureFlags(
                    supports_topic_watchers=False, supports_get_partitioned_metadata_without_auto_creation=True
                ),
            )
        )

    def _on_ping(self, ping: wire.CommandPing) -> None:
        self.write(_PONG)

    def _ignore(self, body: object) -> None:
        pass

    def _refuse_watching(self, body: wire.CommandWatchTopicList) -> None:
        text = "Topic list watching is not served; supports_topic_watchers is false"
        self._error(body.request_id, wire.NotAllowedError, text)

    def _refuse_transactions(self, body: Any) -> None:
        self._error(body.request_id, wire.NotAllowedError, "Transactions are not enabled.")

    def _on_watch_close(self, close: wire.CommandWatchTopicListClose) -> None:
        self._success(close.request_id)

    # -------------------------------------------------------------------------------- lookups

    def _on_lookup(self, lookup: wire.CommandLookupTopic) -> None:
        async def work() -> bytes:
            answer = await self._broker.lookup(
                _not_of_transactions(parse_topic(lookup.topic)),
                authoritative=lookup.authoritative,
                listener=lookup.advertised_listener_name,
            )
            kind = wire.CommandLookupTopicResponse
            return command(
                _T.LOOKUP_RESPONSE,
                request_id=lookup.request_id,
                response=kind.Redirect if answer.is_redirect else kind.Connect,
                brokerServiceUrl=answer.service_url or None,
                brokerServiceUrlTls=answer.service_url_tls or None,
                authoritative=answer.authoritative,
                proxy_through_service_url=False,
            )

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.LOOKUP_RESPONSE,
                request_id=lookup.request_id,
                response=wire.CommandLookupTopicResponse.Failed,
                error=code,
                message=text,
            )

        self._answer_later(work, failed, "lookup")

    def _on_partitions(self, request: wire.CommandPartitionedTopicMetadata) -> None:
        async def work() -> bytes:
            partitions = await self._broker.partitions(
                _not_of_transactions(parse_topic(request.topic)), create=request.metadata_auto_creation_enabled
            )
            return command(
                _T.PARTITIONED_METADATA_RESPONSE,
                request_id=request.request_id,
                response=wire.CommandPartitionedTopicMetadataResponse.Success,
                partitions=partitions,
            )

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.PARTITIONED_METADATA_RESPONSE,
                request_id=request.request_id,
                response=wire.CommandPartitionedTopicMetadataResponse.Failed,
                error=code,
                message=text,
            )

        self._answer_later(work, failed, "partitions")

    def _on_topics_of_namespace(self, request: wire.CommandGetTopicsOfNamespace) -> None:
        async def work() -> bytes:
            parse_namespace(request.namespace)
            mode = wire.CommandGetTopicsOfNamespace
            topics = await self._broker.topics_of_namespace(
                request.namespace,
                persistent=request.mode != mode.NON_PERSISTENT,
                non_persistent=request.mode != mode.PERSISTENT,
            )
            filtered = filter_topics(topics, request.topics_pattern) if request.topics_pattern else None
            listed = topics if filtered is None else filtered
            hash_ = topics_hash(listed)
            changed = not request.topics_hash or request.topics_hash != hash_
            return command(
                _T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                request_id=request.request_id,
                topics=listed if changed else [],
                filtered=filtered is not None,
                topics_hash=hash_,
                changed=changed,
            )

        self._answer_later(work, self._error_frame(request.request_id), "topics")

    # -------------------------------------------------------------------------------- producers

    def _on_producer(self, request: wire.CommandProducer) -> None:
        existing = self._producers.get(request.producer_id)
        if isinstance(existing, Producer):
            attached = self._attached[request.producer_id]
            self.write(_producer_success(request.request_id, existing, attached))
            return
        if existing is not None:
            self._error(request.request_id, wire.ServiceNotReady, "Producer is already present on the connection")
            return
        coming = self._producers[request.producer_id] = _Coming()
        self._closed_producers.pop(request.producer_id, None)

        def failed(code: int, text: str) -> bytes | None:
            if self._producers.get(request.producer_id) is coming:
                del self._producers[request.producer_id]
            return None if coming.is_cancelled else _error(request.request_id, code, text)

        self._answer_later(lambda: self._make_producer(request, coming), failed, "producer")

    async def _make_producer(self, request: wire.CommandProducer, coming: _Coming) -> bytes | None:
        name = parse_topic(request.topic)
        topic = await self._broker.topic_for_producer(name)
        schema_version = await self._broker.producer_schema(name, _schema_of(request))
        producer = Producer(
            topic,
            self,
            request.producer_id,
            request.producer_name or await self._broker.producer_name(),
            epoch=request.epoch,
            # Who sends no name on the first attempt sends ours, marked as such, on the next.
            has_generated_name=not request.producer_name or not request.user_provided_producer_name,
            access_mode=request.producer_access_mode,
            schema_version=schema_version,
            metadata={item.key: item.value for item in request.metadata},
            address=self.address,
            client_version=self.client_version,
            connected_since_ms=self._broker.now_ms(),
        )

        def ready(epoch: int | None) -> None:
            if epoch is None:
                self._producers.pop(producer.producer_id, None)
                self._attached.pop(producer.producer_id, None)
                self._error(request.request_id, wire.ProducerFenced, "Fenced out by a later exclusive producer")
                return
            producer.is_waiting = False
            attached = Attached(self._attached[producer.producer_id].last_sequence_id, epoch, ready=True)
            self._attached[producer.producer_id] = attached
            self.write(_producer_success(request.request_id, producer, attached))

        attached = await topic.attach_producer(
            ProducerRequest(
                producer,
                request.topic_epoch if request.HasField("topic_epoch") else None,
                request.encrypted,
                request.initial_subscription_name or None,
                ready,
            )
        )
        if coming.is_cancelled or self.state is State.CLOSED:  # rule 3
            topic.detach_producer(producer)
            return None
        producer.is_waiting = not attached.ready
        self._producers[request.producer_id] = producer
        self._attached[request.producer_id] = attached
        return _producer_success(request.request_id, producer, attached)

    def _on_send(self, send: Send) -> None:
        producer = self._producers.get(send.producer_id)
        if not isinstance(producer, Producer) or producer.is_waiting:
            if self.state is State.CONNECTED and self._was_closed(send.producer_id):
                return  # rule 4
            raise MalformedFrame(f"SEND for producer {send.producer_id}, which this connection does not have")
        entry = send.entry
        error = None
        if checksum_verdict(entry) is False:
            error = wire.ChecksumError, "Checksum failed on the broker"
        elif not is_well_formed(entry):
            error = wire.ChecksumError, "The message ends inside its metadata"
        elif send.is_transactional:
            error = wire.NotAllowedError, "Transactions are not enabled."
        elif 0 < send.highest_sequence_id < send.sequence_id:
            error = wire.MetadataError, "Invalid lowest or highest sequence id"
        elif send.num_messages != 1 and (problem := _batch_problem(send)) is not None:
            error = wire.NotAllowedError, f"Message {send.sequence_id} of {producer.name}: {problem}"
        if error is not None:
            self._publish_run()
            self.write(
                command(
                    _T.SEND_ERROR,
                    producer_id=send.producer_id,
                    sequence_id=max(send.sequence_id, send.highest_sequence_id),
                    error=error[0],
                    message=error[1],
                )
            )
            return
        if self._run and self._run[-1][0].topic is not producer.topic:
            self._publish_run()
        self._run.append((producer, send))

    def _publish_run(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        size_bytes = sum(len(send.entry) for _, send in run)
        self._publishes += len(run)
        self._publish_bytes += size_bytes
        self._broker.publishes.take(size_bytes)
        run[0][0].topic.publish(run)
        if not self._is_paused:
            self._throttle()

    def _was_closed(self, producer_id: int) -> bool:
        since_ms = self._broker.now_ms() - self._broker.config.keep_alive_s * 1000
        if self._closed_producers:
            self._closed_producers = {one: at for one, at in self._closed_producers.items() if at >= since_ms}
        return producer_id in self._closed_producers

    def _on_close_producer(self, request: wire.CommandCloseProducer) -> None:
        producer = self._producers.pop(request.producer_id, None)
        self._attached.pop(request.producer_id, None)
        if isinstance(producer, Producer):
            producer.topic.close_producer(producer, request.request_id)
            return
        if producer is not None:
            producer.is_cancelled = True
        self._success(request.request_id)

    # -------------------------------------------------------------------------------- consumers

    def _on_subscribe(self, request: wire.CommandSubscribe) -> None:
        self._closed_early.pop(request.consumer_id, None)
        existing = self._consumers.get(request.consumer_id)
        if isinstance(existing, Consumer):
            self._success(request.request_id)
            return
        if existing is not None:
            self._error(request.request_id, wire.ServiceNotReady, "Consumer is already present on the connection")
            return
        coming = self._consumers[request.consumer_id] = _Coming()

        def failed(code: int, text: str) -> bytes | None:
            if self._consumers.get(request.consumer_id) is coming:
                del self._consumers[request.consumer_id]
            return None if coming.is_cancelled else _error(request.request_id, code, text)

        self._answer_later(lambda: self._make_consumer(request, coming), failed, "subscribe")

    async def _make_consumer(self, request: wire.CommandSubscribe, coming: _Coming) -> bytes | None:
        name = parse_topic(request.topic)
        topic = await self._broker.topic_for_consumer(name, create=request.force_topic_creation)
        if request.HasField("schema") and request.schema.type != wire.Schema.AutoConsume:
            await self._broker.check_consumer_schema(name, request.schema)
        shared = request.keySharedMeta
        consumer = Consumer(
            self,
            request.consumer_id,
            request.consumer_name or self._broker.consumer_name(),
            partition=name.partition,
            priority_level=request.priority_level,
            protocol_version=self.protocol_version,
            keeps_broker_metadata=self._keeps_broker_metadata,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            hash_ranges=[(item.start, item.end) for item in shared.hashRanges],
            metadata={item.key: item.value for item in request.metadata},
            address=self.address,
            client_version=self.client_version,
            connected_since_ms=self._broker.now_ms(),
            is_java=self._is_java,
        )
        await topic.subscribe(
            SubscribeRequest(
                consumer,
                request.subscription,
                request.subType,
                request.durable,
                _position(request.start_message_id) if request.HasField("start_message_id") else None,
                request.initialPosition == wire.CommandSubscribe.Earliest,
                request.start_message_rollback_duration_sec,
                request.read_compacted,
                KeySharedPolicy(shared.keySharedMode == wire.STICKY, shared.allowOutOfOrderDelivery),
                {item.key: item.value for item in request.subscription_properties},
            )
        )
        if coming.is_cancelled or self.state is State.CLOSED:  # rule 3
            topic.detach_consumer(consumer)
            return None
        self._consumers[request.consumer_id] = consumer
        self._topic_of_consumer[request.consumer_id] = topic
        return command(_T.SUCCESS, request_id=request.request_id)

    def _consumer(self, consumer_id: int) -> Consumer | None:
        consumer = self._consumers.get(consumer_id)
        return consumer if isinstance(consumer, Consumer) else None

    def _on_flow(self, flow: wire.CommandFlow) -> None:
        consumer_id = flow.consumer_id
        consumer = self._consumer(consumer_id)
        if consumer is not None and consumer.subscription is not None and flow.messagePermits:
            consumer.subscription.flow(consumer, flow.messagePermits)
        elif self._closed_early.get(consumer_id) is False:  # rule 6
            self._closed_early[consumer_id] = True
            self._broker.call_later(TELL_AGAIN_MS, lambda: self._tell_closed_again(consumer_id))

    def _tell_closed_again(self, consumer_id: int) -> None:
        if self._closed_early.pop(consumer_id, False):
            self.write(command(_T.CLOSE_CONSUMER, consumer_id=consumer_id, request_id=NO_ID))

    def _on_ack(self, ack: wire.CommandAck) -> None:
        consumer = self._consumer(ack.consumer_id)
        if consumer is None or consumer.subscription is None:
            return  # it was closed a moment ago; also no answer is expected then
        code: int | None = None
        text: str | None = None
        if ack.txnid_most_bits or ack.txnid_least_bits:
            code, text = wire.NotAllowedError, "Transactions are not enabled."
        if code is None:
            try:
                consumer.subscription.acknowledge(consumer, ack)
            except InvalidPosition as error:
                code, text = wire.MetadataError, str(error)
        if ack.HasField("request_id"):
            self.write(
                command(
                    _T.ACK_RESPONSE,
                    consumer_id=ack.consumer_id,
                    request_id=ack.request_id,
                    error=code,
                    message=text,
                )
            )

    def _on_redeliver(self, request: wire.CommandRedeliverUnacknowledgedMessages) -> None:
        consumer = self._consumer(request.consumer_id)
        if consumer is not None and consumer.subscription is not None:
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            try:
                # Above the limit everything that is not acknowledged comes again, those among it.
                named = request.message_ids if len(request.message_ids) <= REDELIVERED_IDS_MAX else ()
                positions = [_position(one) for one in named]
            except MetadataFailure as error:  # the command has no answer
                log.warning("%s: nothing is redelivered: %s", self.address, error)
                return
            consumer.subscription.redeliver(consumer, positions or None, epoch)

    def _on_unsubscribe(self, request: wire.CommandUnsubscribe) -> None:
        async def work() -> bytes:
            consumer, topic = self._require(request.consumer_id)
            await topic.unsubscribe(consumer)
            self.on_consumer_closed(consumer)
            return command(_T.SUCCESS, request_id=request.request_id)

        self._answer_later(work, self._error_frame(request.request_id), "unsubscribe")

    def _on_close_consumer(self, request: wire.CommandCloseConsumer) -> None:
        self._closed_early.pop(request.consumer_id, None)
        consumer = self._consumers.pop(request.consumer_id, None)
        topic = self._topic_of_consumer.pop(request.consumer_id, None)
        if isinstance(consumer, _Coming):
            consumer.is_cancelled = True
        elif consumer is not None and topic is not None:
            topic.detach_consumer(consumer)
        self._success(request.request_id)

    def _on_seek(self, request: wire.CommandSeek) -> None:
        async def work() -> bytes:
            consumer, topic = self._require(request.consumer_id)
            subscription = consumer.subscription
            assert subscription is not None, "an attached consumer has a subscription"
            if request.HasField("message_id"):
                wanted = request.message_id
                await topic.seek(subscription, _position(wanted), list(wanted.ack_set), wanted.batch_size)
            elif request.HasField("message_publish_time"):
                await topic.seek(subscription, await topic.position_at_ms(request.message_publish_time))
            else:
                raise MetadataFailure("Message id and message publish time were not present")
            return command(_T.SUCCESS, request_id=request.request_id)

        self._answer_later(work, self._error_frame(request.request_id), "seek")

    def _on_last_message_id(self, request: wire.CommandGetLastMessageId) -> None:
        async def work() -> bytes:
            consumer, topic = self._require(request.consumer_id)
            assert consumer.subscription is not None, "an attached consumer has a subscription"
            position, batch_index = await topic.last_message()
            mark_delete = consumer.subscription.cursor.mark_delete_position
            last = MessageIdData(
                ledgerId=position.ledger_id & NO_ID,
                entryId=position.entry_id & NO_ID,
                partition=consumer.partition,
                batch_index=batch_index,
            )
            return command(
                _T.GET_LAST_MESSAGE_ID_RESPONSE,
                request_id=request.request_id,
                last_message_id=last,
                consumer_mark_delete_position=MessageIdData(
                    ledgerId=mark_delete.ledger_id & NO_ID, entryId=mark_delete.entry_id & NO_ID
                ),
            )

        self._answer_later(work, self._error_frame(request.request_id), "last message id")

    def _on_consumer_stats(self, request: wire.CommandConsumerStats) -> None:
        consumer = self._consumer(request.consumer_id)
        if consumer is None or consumer.subscription is None:
            self.write(
                command(
                    _T.CONSUMER_STATS_RESPONSE,
                    request_id=request.request_id,
                    error_code=wire.ConsumerNotFound,
                    error_message=f"Consumer {request.consumer_id} not found",
                )
            )
            return
        rate_out, throughput_out, rate_redeliver, rate_ack = consumer.last_rates
        self.write(
            command(
                _T.CONSUMER_STATS_RESPONSE,
                request_id=request.request_id,
                msgRateOut=rate_out,
                msgThroughputOut=throughput_out,
                msgRateRedeliver=rate_redeliver,
                consumerName=consumer.name,
                availablePermits=max(consumer.permits, 0),
                unackedMessages=consumer.unacked_messages,
                blockedConsumerOnUnackedMsgs=consumer.is_blocked,
                address=consumer.address,
                connectedSince=iso_time(consumer.connected_since_ms),
                type=consumer.subscription.type_name,
                msgRateExpired=0.0,
                msgBacklog=consumer.subscription.cursor.backlog(),
                messageAckRate=rate_ack,
            )
        )

    def _require(self, consumer_id: int) -> tuple[Consumer, TopicPort]:
        consumer = self._consumer(consumer_id)
        if consumer is None:
            raise MetadataFailure("Consumer not found")
        return consumer, self._topic_of_consumer[consumer_id]

    # -------------------------------------------------------------------------------- schemas

    def _on_get_schema(self, request: wire.CommandGetSchema) -> None:
        async def work() -> bytes:
            version = request.schema_version if request.HasField("schema_version") else None
            schema, found = await self._broker.get_schema(parse_topic(request.topic), version)
            return command(_T.GET_SCHEMA_RESPONSE, request_id=request.request_id, schema=schema, schema_version=found)

        def failed(code: int, text: str) -> bytes:
            return command(_T.GET_SCHEMA_RESPONSE, request_id=request.request_id, error_code=code, error_message=text)

        self._answer_later(work, failed, "get schema")

    def _on_get_or_create_schema(self, request: wire.CommandGetOrCreateSchema) -> None:
        async def work() -> bytes:
            version = await self._broker.put_schema(parse_topic(request.topic), request.schema)
            return command(_T.GET_OR_CREATE_SCHEMA_RESPONSE, request_id=request.request_id, schema_version=version)

        def failed(code: int, text: str) -> bytes:
            return command(
                _T.GET_OR_CREATE_SCHEMA_RESPONSE,
                request_id=request.request_id,
                error_code=code,
                error_message=text,
            )

        self._answer_later(work, failed, "put schema")

    # -------------------------------------------------------------------------------- answers

    def _answer_later(
        self, work: Callable[[], Awaitable[bytes | None]], failed: Callable[[int, str], bytes | None], what: str
    ) -> None:
        """Send what *work* gives, or what *failed* makes of its error."""

        async def run() -> None:
            try:
                if self._unsent_bytes > OUTBOX_HIGH_BYTES:  # answers may be large; who asks has to read them
                    await self._outbox.until_drained()
                answer = await work()
            except BrokerError as error:
                answer = failed(error.code, str(error))
            except Exception as error:
                log.exception("%s: %s failed", self.address, what)
                answer = failed(wire.UnknownError, f"{type(error).__name__}: {error}")
            finally:
                self._requests -= 1
                if self._is_paused:
                    self._throttle()
            if answer is not None:
                self.write(answer)

        self._requests += 1
        self._spawn(run(), what)
        if not self._is_paused:
            self._throttle()

    def _success(self, request_id: int) -> None:
        self.write(command(_T.SUCCESS, request_id=request_id))

    def _error(self, request_id: int, code: int, text: str) -> None:
        self.write(_error(request_id, code, text))

    def _error_frame(self, request_id: int) -> Callable[[int, str], bytes]:
        return lambda code, text: _error(request_id, code, text)


_TRANSACTION_REQUESTS: Final = (
    _T.TC_CLIENT_CONNECT_REQUEST,
    _T.NEW_TXN,
    _T.ADD_PARTITION_TO_TXN,
    _T.ADD_SUBSCRIPTION_TO_TXN,
    _T.END_TXN,
    _T.END_TXN_ON_PARTITION,
    _T.END_TXN_ON_SUBSCRIPTION,
)

_HANDLERS: Final[Mapping[int, Callable[[Connection, Any], None]]] = {
    _T.PING: Connection._on_ping,
    _T.PONG: Connection._ignore,
    _T.LOOKUP: Connection._on_lookup,
    _T.PARTITIONED_METADATA: Connection._on_partitions,
    _T.GET_TOPICS_OF_NAMESPACE: Connection._on_topics_of_namespace,
    _T.PRODUCER: Connection._on_producer,
    _T.CLOSE_PRODUCER: Connection._on_close_producer,
    _T.SUBSCRIBE: Connection._on_subscribe,
    _T.FLOW: Connection._on_flow,
    _T.ACK: Connection._on_ack,
    _T.REDELIVER_UNACKNOWLEDGED_MESSAGES: Connection._on_redeliver,
    _T.UNSUBSCRIBE: Connection._on_unsubscribe,
    _T.CLOSE_CONSUMER: Connection._on_close_consumer,
    _T.SEEK: Connection._on_seek,
    _T.GET_LAST_MESSAGE_ID: Connection._on_last_message_id,
    _T.CONSUMER_STATS: Connection._on_consumer_stats,
    _T.GET_SCHEMA: Connection._on_get_schema,
    _T.GET_OR_CREATE_SCHEMA: Connection._on_get_or_create_schema,
    _T.WATCH_TOPIC_LIST: Connection._refuse_watching,
    _T.WATCH_TOPIC_LIST_CLOSE: Connection._on_watch_close,
    **dict.fromkeys(_TRANSACTION_REQUESTS, Connection._refuse_transactions),
}

_PONG: Final = command(_T.PONG)
PING: Final = command(_T.PING)


def _not_of_transactions(topic: TopicName) -> TopicName:
    """*topic*; raises NotAllowed for the one by which clients find the coordinators of transactions.

    A refusal here is final for Java's client; one of its connect to a coordinator is tried again for ever.
    """
    if topic.base == COORDINATORS:
        raise NotAllowed("Transactions are not enabled.")
    return topic


def _batch_problem(send: Send) -> str | None:
    """Why a SEND cannot hold as many messages as it says. What it does not say is not looked at here, and costs its
    consumers no more than its bytes can hold (`message_count`)."""
    try:
        parts = split_entry(send.entry)
        metadata = metadata_of(parts)
    except Corruption as error:
        return str(error)
    count = message_count(metadata, len(parts.payload))
    problem = batch_problem(metadata, len(parts.payload))
    if problem is None and send.num_messages != count:
        problem = f"num_messages is {send.num_messages}, and the batch says {count}"
    return problem


def _error(request_id: int, code: int, text: str) -> bytes:
    return command(_T.ERROR, request_id=request_id, error=code, message=text)


def _producer_success(request_id: int, producer: Producer, attached: Attached) -> bytes:
    return command(
        _T.PRODUCER_SUCCESS,
        request_id=request_id,
        producer_name=producer.name,
        last_sequence_id=attached.last_sequence_id,
        schema_version=producer.schema_version,
        topic_epoch=attached.epoch,
        producer_ready=attached.ready,
    )


def _schema_of(request: wire.CommandProducer) -> wire.Schema | None:
    """No schema, and one of the type None without data, are the same."""
    if not request.HasField("schema"):
        return None
    schema = request.schema
    return None if schema.type == wire.Schema.NoType and not schema.schema_data else schema


def _position(message_id: MessageIdData) -> Position:
    """Raises MetadataFailure for what is no message id."""
    try:
        return named_position(message_id.ledgerId, message_id.entryId)
    except InvalidPosition as error:
        raise MetadataFailure(str(error)) from error


def iso_time(at_ms: int) -> str:
    """A moment as Apache's statistics write it: `2023-11-14T22:13:20.000Z`."""
    seconds, ms = divmod(at_ms, 1000)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{ms:03}Z"


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
