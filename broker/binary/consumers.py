"""The consumers of one connection: how they are made and closed, and what their commands lead to. No IO.

Rules:

1. A consumer id is taken from the moment of the request. A close that arrives before the answer wins: the consumer is
   detached as soon as it is there, and the request is not answered.
2. A client may not know a consumer yet that we close before its first permits: Go's client learns of it with the answer
   to SUBSCRIBE, and ignores a close that comes right behind. If permits for it arrive all the same, and no new
   SUBSCRIBE soon after, the close is sent a second time. No close is sent to an id that has been asked for since: the
   answer to the request says what became of the consumer.
3. A SUBSCRIBE for a consumer that is there comes from a client that gave up an earlier one, or was told of a close
   when it had asked again already: its queue is empty. What the consumer holds comes again, by new permits.
4. Each request is answered, also one for a consumer that was closed meanwhile: an acknowledgement with a request id is
   waited for (Apache's brokers are silent, so that it fails when its time is over).
5. An acknowledgement of thousands of messages is looked at as a whole first, and refused as a whole. Then it is applied
   in steps, and others have their turn between them. It ends where its consumer was closed meanwhile.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from broker.binary.admission.client_facts import ClientFacts, Coming
from broker.binary.admission.guard import Guard
from broker.binary.answers import Answers, close_frame, error_frame, success_frame
from broker.binary.flow import OUTBOX_HIGH_BYTES, READ_ROOM_BYTES, ClientFlow
from broker.errors import BrokerError, MetadataFailure, NotReady
from broker.names import check_client_name
from broker.security.authorization import Operation, about_topic
from broker.topic.clients.consumer import AckSet, Consumer, ConsumerSubscription
from broker.topic.clients.properties import KeptBytes, Properties, check_size
from broker.topic.dispatchers.kinds import KeySharedPolicy
from broker.topic.dispatchers.sticky_keys import check_ranges
from broker.topic.ports import NOT_KNOWN, NextBroker
from broker.topic.requests import SubscribeRequest, TopicPort
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, MessageHeads, command, without_broker_metadata, without_checksum
from magnetar_core.runtime.types import Buffer, Cancellable
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.errors import InvalidPosition
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position, named_position, signed

log = logging.getLogger(__name__)

# Ids of messages that one command names to have them delivered again. Clients name a thousand at once.
REDELIVERED_IDS_MAX: Final = 20_000

# Ids of a large acknowledgement that are applied in one step, some two milliseconds, and how many words of their sets
# count like an id.
ACK_IDS_PER_STEP: Final = 200
ACK_WORDS_LIKE_AN_ID: Final = 50

# Consumers of one connection that may not know that they are closed, and the time that a client which does know has
# for its new SUBSCRIBE (rule 2).
EARLY_CLOSED_MAX: Final = 1_000
TELL_AGAIN_MS: Final = 1_000

# The first protocol version whose clients understand the checksum in front of an entry.
CHECKSUM_VERSION: Final = 11

_T: Final = wire.BaseCommand


class ConsumerBroker(Protocol):
    """The broker, as the consumers of a connection use it. All coroutines raise BrokerError."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Cancellable: ...

    async def topic_for_consumer(self, topic: TopicName, *, create: bool) -> TopicPort: ...

    async def check_consumer_schema(self, topic: TopicName, schema: wire.Schema, durable_subscription: str) -> None: ...


class Deliveries(MessageHeads):
    """The entries that one consumer gets, as MESSAGE frames."""

    __slots__ = ("_flow", "_keeps_broker_metadata", "_keeps_checksum")

    def __init__(self, flow: ClientFlow, client: ClientFacts, consumer_id: int, partition: int) -> None:
        super().__init__(consumer_id, partition)
        self._flow = flow
        self._keeps_checksum = client.protocol_version >= CHECKSUM_VERSION
        self._keeps_broker_metadata = client.keeps_broker_metadata

    def deliver(
        self, consumer: Consumer, position: Position, entry: Buffer, messages: int, redeliveries: int, ack_set: AckSet
    ) -> int:
        """Send an entry (`broker.topic.clients.consumer.Deliver`)."""
        if not self._keeps_broker_metadata:
            entry = without_broker_metadata(entry)
        if not self._keeps_checksum:
            entry = without_checksum(entry)
        size_bytes = len(entry)
        epoch = consumer.epoch if consumer.sends_epoch else None
        head = self.head(position[0], position[1], size_bytes, redeliveries, ack_set, epoch)
        self._flow.write_message(head, entry)
        return size_bytes


class ConnectionConsumers:
    """Consumers by their id, with their topics; the sink of these consumers.

    It does not keep the connection: a lost one would wait for the garbage collector if each knew the other.
    """

    __slots__ = ("_answers", "_broker", "_closed_early", "_consumers", "_first", "_flow", "_guard", "_kept", "_topics")

    def __init__(
        self, broker: ConsumerBroker, answers: Answers, flow: ClientFlow, guard: Guard, kept: KeptBytes
    ) -> None:
        self._broker = broker
        self._answers = answers
        self._flow = flow
        self._guard = guard
        self._kept = kept
        self._consumers: dict[int, Consumer | Coming] = {}
        self._topics: dict[int, TopicPort] = {}
        self._closed_early: dict[int, Cancellable | None] = {}
        """Consumers closed before their first permits, and what announces it again once permits have come (rule 2)."""
        self._first = 0

    def pump(self) -> None:
        """There is room for messages again: dispatch to each consumer in turn, beginning with another one each time."""
        groups: dict[ConsumerSubscription, list[Consumer]] = {}
        for consumer in self._consumers.values():
            if isinstance(consumer, Consumer) and consumer.subscription is not None:
                groups.setdefault(consumer.subscription, []).append(consumer)
        self._first += 1
        first = self._first % len(groups) if groups else 0
        subscriptions = list(groups)
        for subscription in (*subscriptions[first:], *subscriptions[:first]):
            if not self._flow.has_room_to_read:
                return
            subscription.resume(groups[subscription])

    # Dispatch asks these three for every message, so they read the counts in place.

    @property
    def room_bytes(self) -> int:
        """How much may be read for the client now."""
        flow = self._flow
        room_bytes = OUTBOX_HIGH_BYTES - flow.unsent_bytes - flow.reserved_bytes
        return room_bytes if room_bytes >= READ_ROOM_BYTES else 0

    @property
    def is_writable(self) -> bool:
        """Whether the client may be sent something now."""
        flow = self._flow
        return not flow.is_closed and flow.unsent_bytes + flow.reserved_bytes < OUTBOX_HIGH_BYTES

    @property
    def is_idle(self) -> bool:
        """Whether the client has taken all, and nothing is read for it."""
        return not self._flow.unsent_bytes and not self._flow.reserved_bytes

    def reserve(self, size_bytes: int) -> None:
        """So many bytes are being read for the client or, if negative, are no longer."""
        flow = self._flow
        had_room = flow.has_room_to_read
        flow.reserve(size_bytes)
        if not had_room and flow.has_room_to_read:
            self.pump()

    async def is_alive(self) -> bool:
        """Whether the client gives a sign of life."""
        return await self._answers.is_alive()

    def on_active_change(self, consumer: Consumer, is_active: bool) -> None:
        """Tell the client whether *consumer* is the active one."""
        self._answers.write(command(_T.ACTIVE_CONSUMER_CHANGE, consumer_id=consumer.consumer_id, is_active=is_active))

    def on_end_of_topic(self, consumer: Consumer) -> None:
        """Tell the client that nothing more comes for *consumer*, unless it disconnects at that."""
        if self._guard.client.hears_the_end:
            self._answers.write(command(_T.REACHED_END_OF_TOPIC, consumer_id=consumer.consumer_id))

    def on_subscribe(self, request: wire.CommandSubscribe) -> None:
        """SUBSCRIBE: make a consumer."""
        self._forget_early_close(request.consumer_id)
        existing = self._consumers.get(request.consumer_id)
        if isinstance(existing, Consumer):
            subscription = existing.subscription
            if subscription is None or existing not in subscription.consumers:  # it is being unsubscribed
                self._answers.error(request.request_id, wire.ServiceNotReady, "The consumer is being closed")
                return
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            subscription.begin_anew(existing, epoch)  # rule 3
            self._answers.success(request.request_id)
            return
        if existing is not None:
            self._answers.error(
                request.request_id, wire.ServiceNotReady, "Consumer is already present on the connection"
            )
            return
        try:
            check_size(request.metadata, _consumer_label(request))
            check_size(request.subscription_properties, f"subscription {request.subscription}")
            check_ranges(len(request.keySharedMeta.hashRanges))
        except BrokerError as error:
            self._answers.error(request.request_id, error.code, str(error))
            return
        coming = self._consumers[request.consumer_id] = Coming()

        def failed(code: int, text: str) -> bytes | None:
            if self._consumers.get(request.consumer_id) is coming:
                del self._consumers[request.consumer_id]
            return None if coming.is_cancelled else error_frame(request.request_id, code, text)

        self._answers.later(lambda: self._make_consumer(request, coming), failed, "subscribe", arrives=True)

    async def _make_consumer(self, request: wire.CommandSubscribe, coming: Coming) -> bytes | None:
        """Make the consumer that *request* asks for and attach it; returns the answer, or None if the client has gone
        or has closed the consumer meanwhile. Raises BrokerError."""
        client = self._guard.client
        name = await self._guard.topic(request.topic, Operation.CONSUME, request.subscription)
        check_client_name(request.consumer_name, "consumer")
        topic = await self._broker.topic_for_consumer(name, create=request.force_topic_creation)
        takes_any_schema = request.HasField("schema") and request.schema.type == wire.Schema.AutoConsume
        if request.HasField("schema") and not takes_any_schema:
            durable_subscription = request.subscription if request.durable else ""
            await self._broker.check_consumer_schema(name, request.schema, durable_subscription)
        shared = request.keySharedMeta
        consumer = Consumer(
            self,
            Deliveries(self._flow, client, request.consumer_id, name.partition).deliver,
            request.consumer_id,
            request.consumer_name,
            partition=name.partition,
            priority_level=request.priority_level,
            epoch=request.consumer_epoch if request.HasField("consumer_epoch") else None,
            hash_ranges=[(item.start, item.end) for item in shared.hashRanges],
            metadata=Properties(request.metadata, self._kept, _consumer_label(request)),
            address=client.address,
            client_version=client.version,
            connected_since_ms=self._broker.now_ms(),
            read_compacted=request.read_compacted,
            takes_any_schema=takes_any_schema,
            caller=client.caller,
        )
        subscription = await topic.subscribe(
            SubscribeRequest(
                consumer,
                request.subscription,
                request.subType,
                request.durable,
                _position(request.start_message_id) if request.HasField("start_message_id") else None,
                request.initialPosition == wire.CommandSubscribe.Earliest,
                request.start_message_rollback_duration_sec,
                KeySharedPolicy(shared.keySharedMode == wire.STICKY, shared.allowOutOfOrderDelivery),
                {item.key: item.value for item in request.subscription_properties},
                request.replicate_subscription_state,
            )
        )
        try:
            # A permission that was revoked before the consumer was attached: whoever rechecks did not see it.
            await self._guard.check(about_topic(Operation.CONSUME, name, request.subscription))
        except BrokerError:
            topic.detach_consumer(consumer)
            raise
        if coming.is_cancelled or self._flow.is_closed:  # rule 1
            topic.detach_consumer(consumer)
            return None
        if consumer not in subscription.consumers:  # the client did not know it yet when it was told of the close
            raise NotReady(f"The consumer was closed while it was made; look {name} up again")
        assert self._consumers.get(request.consumer_id) is coming, "the id of a consumer that is being made is taken"
        self._consumers[request.consumer_id] = consumer
        self._topics[request.consumer_id] = topic
        return success_frame(request.request_id)

    def _consumer(self, consumer_id: int) -> Consumer | None:
        """The consumer with that id, unless it is still being made."""
        consumer = self._consumers.get(consumer_id)
        return consumer if isinstance(consumer, Consumer) else None

    def on_flow(self, flow: wire.CommandFlow) -> None:
        """FLOW: the consumer has room for more messages."""
        consumer_id = flow.consumer_id
        consumer = self._consumer(consumer_id)
        if consumer is not None and consumer.subscription is not None and flow.messagePermits:
            consumer.subscription.flow(consumer, flow.messagePermits)
        elif consumer_id in self._closed_early and self._closed_early[consumer_id] is None:  # rule 2
            self._closed_early[consumer_id] = self._broker.call_later(
                TELL_AGAIN_MS, lambda: self._announce_closed_again(consumer_id)
            )

    def _announce_closed_again(self, consumer_id: int) -> None:
        del self._closed_early[consumer_id]
        self._answers.write(close_frame(_T.CLOSE_CONSUMER, consumer_id=consumer_id))

    def _forget_early_close(self, consumer_id: int) -> None:
        """The client knows what became of its former consumer with that id."""
        announcement = self._closed_early.pop(consumer_id, None)
        if announcement is not None:
            announcement.cancel()

    def on_ack(self, ack: wire.CommandAck) -> Generator[None, None, None] | None:
        """ACK, answered if it has a request id. Returns what is left of a large one, which is done in steps."""
        if self._flow.command_bytes:
            return self._acknowledge_in_steps(ack)
        refusal = self._acknowledge(ack)
        if ack.HasField("request_id"):
            self._answer_ack(ack, refusal)
        return None

    def _acknowledge_in_steps(self, ack: wire.CommandAck) -> Generator[None, None, None]:
        """Check the whole acknowledgement, then apply it part by part, with a turn for others between two parts (rule
        5)."""
        refusal = self._acknowledge(ack, only_check=True)
        for part in parts_of(ack):
            if refusal is not None:
                break
            yield
            refusal = self._acknowledge(part)
        if ack.HasField("request_id"):
            self._answer_ack(ack, refusal)

    def _acknowledge(self, ack: wire.CommandAck, *, only_check: bool = False) -> tuple[int, str] | None:
        """Returns why it is refused, if it is; nothing of it is applied then."""
        consumer = self._consumer(ack.consumer_id)
        if consumer is None or consumer.subscription is None:  # it was closed a moment ago
            return wire.ConsumerNotFound, f"Consumer {ack.consumer_id} not found"
        if ack.txnid_most_bits or ack.txnid_least_bits:
            return wire.NotAllowedError, "Transactions are not enabled."
        try:
            if only_check:
                consumer.subscription.acking.check(ack)
            else:
                consumer.subscription.acking.acknowledge(consumer, ack)
        except InvalidPosition as error:
            return wire.MetadataError, str(error)
        except NotReady as error:
            return error.code, str(error)
        return None

    def _answer_ack(self, ack: wire.CommandAck, refusal: tuple[int, str] | None) -> None:
        code, text = refusal or (None, None)
        self._answers.write(
            command(_T.ACK_RESPONSE, consumer_id=ack.consumer_id, request_id=ack.request_id, error=code, message=text)
        )

    def on_redeliver(self, request: wire.CommandRedeliverUnacknowledgedMessages) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES: the named messages, or all, are delivered again."""
        consumer = self._consumer(request.consumer_id)
        if consumer is not None and consumer.subscription is not None:
            epoch = request.consumer_epoch if request.HasField("consumer_epoch") else None
            try:
                # Above the limit everything that is not acknowledged is delivered again, the named messages included.
                named = request.message_ids if len(request.message_ids) <= REDELIVERED_IDS_MAX else ()
                positions = [_position(message_id) for message_id in named]
            except MetadataFailure as error:  # the command has no answer
                log.warning("%s: nothing is redelivered: %s", consumer.address, error)
                return
            consumer.subscription.redeliver(consumer, positions or None, epoch)

    def on_unsubscribe(self, request: wire.CommandUnsubscribe) -> None:
        """UNSUBSCRIBE: remove the subscription; its other consumers are disconnected if the client forces it."""

        consumer = self._consumers.get(request.consumer_id)

        async def work() -> bytes:
            consumer, topic = await self._require(request.consumer_id, Operation.UNSUBSCRIBE)
            await topic.unsubscribe(consumer, force=request.force)
            self._forget(consumer)
            return success_frame(request.request_id)

        def failed(code: int, text: str) -> None:
            self._answers.error(request.request_id, code, text)
            self._close_if_detached(consumer)  # now: while a client waits for the answer it does not reconnect

        self._answers.later(work, failed, "unsubscribe")

    def _close_if_detached(self, consumer: Consumer | Coming | None) -> None:
        """Close a detached consumer: its client takes it for attached, and would wait for messages for ever."""
        if not isinstance(consumer, Consumer) or self._consumers.get(consumer.consumer_id) is not consumer:
            return
        if consumer.subscription is not None and consumer not in consumer.subscription.consumers:
            self._topics[consumer.consumer_id].detach_consumer(consumer)
            self.on_closed(consumer)

    def on_close_consumer(self, request: wire.CommandCloseConsumer) -> None:
        """CLOSE_CONSUMER; one that is being made is cancelled (rule 1)."""
        self._forget_early_close(request.consumer_id)
        consumer = self._consumers.pop(request.consumer_id, None)
        topic = self._topics.pop(request.consumer_id, None)
        if isinstance(consumer, Coming):
            consumer.is_cancelled = True
        elif consumer is not None and topic is not None:
            topic.detach_consumer(consumer)
        self._answers.success(request.request_id)

    def on_seek(self, request: wire.CommandSeek) -> None:
        """SEEK to a message id or a publish time."""

        async def work() -> bytes:
            consumer, topic = await self._require(request.consumer_id, Operation.RESET_CURSOR)
            subscription = consumer.subscription
            assert subscription is not None, "an attached consumer has a subscription"
            if request.HasField("message_id"):
                target = request.message_id
                await topic.seek(subscription, _position(target), list(target.ack_set), target.batch_size)
            elif request.HasField("message_publish_time"):
                position = await topic.position_at_ms(
                    signed(request.message_publish_time), read_compacted=consumer.read_compacted
                )
                await topic.seek(subscription, position)
            else:
                raise MetadataFailure("Message id and message publish time were not present")
            return success_frame(request.request_id)

        self._answers.later_or_error(work, request.request_id, "seek")

    def on_last_message_id(self, request: wire.CommandGetLastMessageId) -> None:
        """GET_LAST_MESSAGE_ID: the last message of the topic, and where the subscription is."""

        async def work() -> bytes:
            consumer, topic = await self._require(request.consumer_id, Operation.PEEK_MESSAGES)
            assert consumer.subscription is not None, "an attached consumer has a subscription"
            position, batch_index = await topic.last_message(read_compacted=consumer.read_compacted)
            mark_delete = consumer.subscription.mark_delete_position
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

        self._answers.later_or_error(work, request.request_id, "last message id")

    def on_consumer_stats(self, request: wire.CommandConsumerStats) -> None:
        """CONSUMER_STATS: facts about a consumer that this connection was allowed to make."""
        consumer = self._consumer(request.consumer_id)
        if consumer is None or consumer.subscription is None:
            self._answers.write(
                command(
                    _T.CONSUMER_STATS_RESPONSE,
                    request_id=request.request_id,
                    error_code=wire.ConsumerNotFound,
                    error_message=f"Consumer {request.consumer_id} not found",
                )
            )
            return
        rate_out, throughput_out, rate_redeliver, rate_ack, _ = consumer.rates.values
        self._answers.write(
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
                msgBacklog=consumer.subscription.backlog,
                messageAckRate=rate_ack,
            )
        )

    async def _require(self, consumer_id: int, operation: Operation) -> tuple[Consumer, TopicPort]:
        """The consumer with that id and its topic, if the client may do *operation* with them.

        Raises MetadataFailure if there is none, NotAuthorized.
        """
        consumer = self._consumer(consumer_id)
        if consumer is not None and consumer.subscription is not None:
            name = self._topics[consumer_id].name
            await self._guard.check(about_topic(operation, name, consumer.subscription.name))
        if consumer is None or self._consumers.get(consumer_id) is not consumer:
            raise MetadataFailure("Consumer not found")
        return consumer, self._topics[consumer_id]

    def on_closed(self, consumer: Consumer, next_broker: NextBroker = NOT_KNOWN) -> None:
        """The broker closed *consumer*: tell the client, which goes on at *next_broker*. A client that does not know it
        yet learns that by the answer to its request."""
        if self._consumers.get(consumer.consumer_id) is consumer:
            self._answers.write(close_frame(_T.CLOSE_CONSUMER, next_broker, consumer_id=consumer.consumer_id))
            self._forget(consumer)

    def _forget(self, consumer: Consumer) -> None:
        """*consumer* is closed, and the client knows, or will."""
        consumer_id = consumer.consumer_id
        if self._consumers.get(consumer_id) is consumer:
            del self._consumers[consumer_id]
            self._topics.pop(consumer_id, None)
            if not consumer.last_flow_ms and len(self._closed_early) < EARLY_CLOSED_MAX:
                self._closed_early[consumer_id] = None

    def on_lost(self) -> Generator[None, None, None]:
        """The connection is gone: so are its consumers, one with each step."""
        consumers, self._consumers = self._consumers, {}
        topics, self._topics = self._topics, {}
        for consumer_id in list(self._closed_early):
            self._forget_early_close(consumer_id)
        for coming in consumers.values():
            if not isinstance(coming, Consumer):
                coming.is_cancelled = True
        attached = {id_: consumer for id_, consumer in consumers.items() if isinstance(consumer, Consumer)}
        return self._detach(attached, topics)

    @staticmethod
    def _detach(consumers: dict[int, Consumer], topics: dict[int, TopicPort]) -> Generator[None, None, None]:
        for consumer_id, consumer in consumers.items():
            topics[consumer_id].detach_consumer(consumer)
            yield


def parts_of(ack: wire.CommandAck) -> Iterator[wire.CommandAck]:
    """*ack* in parts that are small enough for one step."""
    if ack.ack_type != wire.CommandAck.Individual:
        yield ack
        return
    part = wire.CommandAck(consumer_id=ack.consumer_id, ack_type=wire.CommandAck.Individual)
    weight = 0
    for message_id in ack.message_id:
        weight += 1 + len(message_id.ack_set) // ACK_WORDS_LIKE_AN_ID
        part.message_id.append(message_id)
        if weight >= ACK_IDS_PER_STEP:
            yield part
            part = wire.CommandAck(consumer_id=ack.consumer_id, ack_type=wire.CommandAck.Individual)
            weight = 0
    if weight:
        yield part


def _consumer_label(request: wire.CommandSubscribe) -> str:
    return f"consumer {request.consumer_name or request.consumer_id}"


def _position(message_id: MessageIdData) -> Position:
    """Raises MetadataFailure for what is not a message id."""
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
