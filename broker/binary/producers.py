"""The producers of one connection: how they are made and closed, and the way of their messages into topics. No IO.

Rules:

1. A producer id is taken from the moment of the request. A close that arrives before the answer wins: the producer is
   detached as soon as it is there, and the request is not answered.
2. Messages for a producer that we closed a moment ago are dropped in silence: they were on their way.
3. A connection may bring so many messages for non-persistent topics in one chunk of its socket
   (`maxConcurrentNonPersistentMessagePerConnection`); the others are dropped, counted, and answered with the id -1:-1.
4. Messages that follow each other and are for one topic are published in one call. A message that is refused ends the
   run before it, so that answers keep the order of the messages.
5. Where a rate is set, a run ends with the message that uses it up. If that is a rate of the broker, the socket is not
   read (`broker.binary.flow`), and what it had brought already waits: thousands of small messages come with one read.
   If it is one of the topic, what comes for the topic is set aside (`broker.binary.held_sends`).
6. A producer that waits for exclusive access while its topic is closed (an unload, a delete) waits anew, by the same
   request, after a pause: its client would not ask again by itself. Where the topic is at another broker now, the
   request is refused, and the client looks the topic up.
7. A PRODUCER for a producer that is there comes from a client that gave up an earlier one, or that C++ clients send
   after an error: what was not confirmed is sent again. It is answered with what is stored by now; a producer that
   waits for exclusive access is answered by its last request.
8. No close is sent to an id whose request is not answered: the answer says what became of the producer.
"""

from collections.abc import Generator
from functools import partial
from typing import Final, Protocol

from broker.binary.admission.client_facts import Coming
from broker.binary.admission.guard import Guard
from broker.binary.answers import Answers, close_frame, error_frame
from broker.binary.flow import ClientFlow
from broker.binary.held_sends import HeldSends
from broker.errors import BrokerError, NotReady, ProducerFenced
from broker.memory_budget import MemoryBudget
from broker.names import check_client_name
from broker.security.authorization import Operation, about_topic
from broker.settings.config import BrokerConfig
from broker.topic.clients.producer import Producer, ProducerTopic, PublishPort
from broker.topic.clients.properties import KeptBytes, Properties, check_size
from broker.topic.ports import NextBroker
from broker.topic.publishing.deduplication import highest_of
from broker.topic.rates.throttling import PublishHold
from broker.topic.requests import Attached, ProducerRequest, TopicPort
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, Send, checksum_verdict, command, metadata_bytes, send_receipt
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.metadata import ORDINARY_METADATA_BYTES
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import (
    batch_problem,
    message_count,
    metadata_of,
    metadata_problem,
    split_entry,
)

_T: Final = wire.BaseCommand

# Meanwhile clients that had the topic come back to it: they begin to reconnect after a tenth of a second.
WAIT_AGAIN_MS: Final = 1_000


class ProducerBroker(PublishPort, Protocol):
    """The broker, as the producers of a connection use it. All coroutines raise BrokerError."""

    config: BrokerConfig
    set_aside: MemoryBudget

    async def topic_for_producer(self, topic: TopicName) -> TopicPort: ...

    async def producer_name(self) -> str: ...

    async def producer_schema(self, topic: TopicName, schema: wire.Schema | None) -> bytes: ...


class ConnectionProducers:
    """Producers by their id, whose sink this is, and the messages that one chunk of the socket brought for them.

    It does not keep the connection: a lost one would wait for the garbage collector if each knew the other.
    """

    __slots__ = (
        "_answers", "_attached", "_broker", "_closed_ms", "_flow", "_guard", "_held", "_kept", "_passing", "_producers",
        "_room", "_waiting", "on_stored", "on_unanswered", "run",
    )  # fmt: skip

    def __init__(
        self, broker: ProducerBroker, answers: Answers, flow: ClientFlow, guard: Guard, kept: KeptBytes
    ) -> None:
        self.run: list[tuple[Producer, Send]] = []
        """Messages for one topic that are not published yet."""
        self._room: tuple[float, float] | None = None
        """(messages, bytes) that rates let into the topic beside the run; None: there is no rate (rule 5)."""
        self._broker = broker
        self._answers = answers
        self._flow = flow
        # Called for every message: the flow's own methods, so that no call stands in between.
        self.on_stored = flow.on_stored
        self.on_unanswered = flow.on_published
        self._guard = guard
        self._kept = kept
        self._held = HeldSends(broker, flow, self._go_on, self.publish_run)
        self._producers: dict[int, Producer | Coming] = {}
        self._attached: dict[int, Attached] = {}
        self._waiting: dict[int, wire.CommandProducer] = {}
        """The last requests of those that wait for exclusive access."""
        self._passing = 0
        """Messages for non-persistent topics in this chunk (rule 3)."""
        self._closed_ms: dict[int, int] = {}
        """When we closed a producer that its client may not know to be closed yet."""

    def on_producer(self, request: wire.CommandProducer) -> None:
        """PRODUCER: make a producer."""
        existing = self._producers.get(request.producer_id)
        if isinstance(existing, Producer):
            self._answer_again(request, existing)
            return
        if existing is not None:
            self._answers.error(
                request.request_id, wire.ServiceNotReady, "Producer is already present on the connection"
            )
            return
        try:
            check_size(request.metadata, _producer_label(request))
        except BrokerError as error:
            self._answers.error(request.request_id, error.code, str(error))
            return
        self._closed_ms.pop(request.producer_id, None)
        self._make(request)

    def _answer_again(self, request: wire.CommandProducer, producer: Producer) -> None:
        """Answer a second PRODUCER for a producer that is there, with what is stored by now (rule 7)."""
        self._held.forget(producer)
        producer.epoch = max(producer.epoch, request.epoch)
        last_sequence_id = producer.topic.last_sequence_id(producer.name)
        attached = self._attached[request.producer_id]._replace(last_sequence_id=last_sequence_id)
        self._attached[request.producer_id] = attached
        if producer.is_waiting:
            self._waiting[request.producer_id] = request
        self._answers.write(_producer_success(request.request_id, producer, attached))

    def _make(self, request: wire.CommandProducer, *, pause_ms: int = 0) -> None:
        """Begin to make a producer, after a pause if *pause_ms* says so; its id is taken from now on (rule 1)."""
        coming = self._producers[request.producer_id] = Coming()

        def failed(code: int, text: str) -> bytes | None:
            if self._producers.get(request.producer_id) is coming:
                del self._producers[request.producer_id]
            return None if coming.is_cancelled else error_frame(request.request_id, code, text)

        def begin() -> None:
            if not coming.is_cancelled:
                self._answers.later(lambda: self._make_producer(request, coming), failed, "producer", arrives=True)

        if pause_ms:
            self._broker.call_later(pause_ms, begin)
        else:
            begin()

    async def _make_producer(self, request: wire.CommandProducer, coming: Coming) -> bytes | None:
        client = self._guard.client
        name = await self._guard.topic(request.topic, Operation.PRODUCE)
        check_client_name(request.producer_name, "producer")
        if request.initial_subscription_name:
            await self._guard.check(about_topic(Operation.SUBSCRIBE, name, request.initial_subscription_name))
        topic = await self._broker.topic_for_producer(name)
        schema_version = await self._broker.producer_schema(name, _schema_of(request))
        producer = Producer(
            topic,
            self,
            request.producer_id,
            request.producer_name or await self._broker.producer_name(),
            epoch=request.epoch,
            # A client that gave no name sends the name we made when it reconnects, marked as not its own.
            has_generated_name=not request.producer_name or not request.user_provided_producer_name,
            access_mode=request.producer_access_mode,
            schema_version=schema_version,
            metadata=Properties(request.metadata, self._kept, _producer_label(request)),
            address=client.address,
            client_version=client.version,
            connected_since_ms=self._broker.now_ms(),
            caller=client.caller,
        )

        producer.is_known = False
        early: list[int | None] = []

        def ready(epoch: int | None) -> None:
            # The answer that it has to wait is not made yet.
            if self._producers.get(producer.producer_id) is not producer:
                early.append(epoch)
                return
            last = self._waiting.pop(producer.producer_id)
            if epoch is None:
                del self._producers[producer.producer_id], self._attached[producer.producer_id]
                self._answers.error(last.request_id, wire.ProducerFenced, "Fenced out by a later exclusive producer")
                return
            producer.is_waiting = False
            attached = Attached(self._attached[producer.producer_id].last_sequence_id, epoch, ready=True)
            self._attached[producer.producer_id] = attached
            self._answers.write(_producer_success(last.request_id, producer, attached))

        def moved() -> None:
            """The topic was closed while the producer waited for exclusive access: ask anew, by the same request (rule
            6)."""
            if self._producers.get(producer.producer_id) is producer:
                del self._attached[producer.producer_id]
                last = self._waiting.pop(producer.producer_id)
                self._make(last, pause_ms=WAIT_AGAIN_MS)

        attached = await topic.attach_producer(
            ProducerRequest(
                producer,
                request.topic_epoch if request.HasField("topic_epoch") else None,
                request.encrypted,
                request.initial_subscription_name or None,
                ready,
                moved,
            )
        )
        try:
            # A permission that was revoked before the producer was attached: whoever rechecks did not see it.
            await self._guard.check(about_topic(Operation.PRODUCE, name))
        except BrokerError:
            topic.detach_producer(producer)
            raise
        if coming.is_cancelled or self._flow.is_closed:  # rule 1
            topic.detach_producer(producer)
            return None
        if None in early:
            raise ProducerFenced("Fenced out by a later exclusive producer")
        if producer.is_closed:  # the client did not know it yet when it was told of the close
            raise NotReady(f"The producer was closed while it was made; look {name} up again")
        if early:
            attached = attached._replace(epoch=early[0], ready=True)
        assert self._producers.get(request.producer_id) is coming, "the id of a producer that is being made is taken"
        if not attached.ready:
            producer.is_waiting = True
            self._waiting[request.producer_id] = request
        producer.is_known = True
        self._producers[request.producer_id] = producer
        self._attached[request.producer_id] = attached
        return _producer_success(request.request_id, producer, attached)

    def on_send(self, send: Send, held: Producer | None = None) -> None:
        """SEND: put the message into the run of its topic, or refuse it. *held*: its producer, if it was set aside.

        Raises MalformedFrame if the producer is not known.
        """
        producer = held or self._producers.get(send.producer_id)
        if not isinstance(producer, Producer) or producer.is_waiting:
            if self._was_closed(send.producer_id):
                return  # rule 2
            raise MalformedFrame(f"SEND for producer {send.producer_id}, which this connection does not have")
        if self._held and held is None and producer.topic in self._held:
            self._held.add(producer, send)
            return
        entry = send.entry
        error = None
        if checksum_verdict(entry) is False:
            error = wire.ChecksumError, "Checksum failed on the broker"
        elif (of_metadata := metadata_bytes(entry)) < 0:
            error = wire.ChecksumError, "The message ends inside its metadata"
        elif of_metadata > ORDINARY_METADATA_BYTES and (problem := metadata_problem(split_entry(entry))):
            error = wire.NotAllowedError, f"Message {send.sequence_id} of {producer.name}: {problem}"
        elif send.is_transactional:
            error = wire.NotAllowedError, "Transactions are not enabled."
        elif 0 < send.highest_sequence_id < send.sequence_id:
            error = wire.MetadataError, "Invalid lowest or highest sequence id"
        elif send.num_messages != 1 and (problem := _batch_problem(send)) is not None:
            error = wire.NotAllowedError, f"Message {send.sequence_id} of {producer.name}: {problem}"
        if error is not None:
            self.publish_run()
            self._answers.write(
                command(
                    _T.SEND_ERROR,
                    producer_id=send.producer_id,
                    sequence_id=max(send.sequence_id, send.highest_sequence_id),
                    error=error[0],
                    message=error[1],
                )
            )
            return
        if not producer.topic.is_persistent and not self._may_pass(producer, send):
            return
        if self.run and self.run[-1][0].topic is not producer.topic:
            self.publish_run()
        if not self.run:
            self._room = self._broker.publish_room(producer.topic)
        self.run.append((producer, send))
        if self._room is not None:
            messages, size_bytes = self._room
            self._room = messages, size_bytes = messages - send.num_messages, size_bytes - len(entry)
            if messages < 0 or size_bytes < 0:  # rule 5
                self.publish_run()

    def _go_on(self, producer: Producer, held: Send | int) -> None:
        """Go on with what was set aside."""
        if isinstance(held, int):
            self.publish_run()
            self._close(producer, held)
        else:
            self.on_send(held, producer)

    def _may_pass(self, producer: Producer, send: Send) -> bool:
        """Whether a message for a non-persistent topic is published; above the limit of a chunk it is dropped, counted
        and answered (rule 3)."""
        self._passing += 1
        if self._passing <= self._broker.config.max_non_persistent:
            return True
        self.publish_run()
        producer.dropped_messages += send.num_messages
        self._answers.write(
            send_receipt(producer.producer_id, send.sequence_id, send.highest_sequence_id, NO_ID, NO_ID)
        )
        return False

    def end_chunk(self) -> None:
        """All of a chunk of the socket was worked on."""
        self._passing = 0
        if self.run:
            self.publish_run()

    def publish_run(self) -> None:
        """Publish the messages that were gathered, in one call."""
        run, self.run = self.run, []
        if not run:
            return
        size_bytes = sum(len(send.entry) for _, send in run)
        flow = self._flow
        flow.on_publish(len(run), size_bytes)
        topic = run[0][0].topic
        topic.publish(run)
        hold = flow.hold if self._room is None else partial(self._hold, topic)
        self._broker.count_published(topic, sum(send.num_messages for _, send in run), size_bytes, hold)
        if not flow.is_paused:
            flow.throttle()

    def _hold(self, topic: ProducerTopic, hold: PublishHold) -> None:
        """A rate is used up: set aside what comes for the topic if it is a rate of the topic, else stop reading the
        socket (rule 5)."""
        if topic.is_persistent and (hold is topic.publish_throttle or hold is topic.membership):
            self._held.hold(topic, hold)
        else:
            self._flow.hold(hold)

    def _was_closed(self, producer_id: int) -> bool:
        """Whether we closed the producer within the last keep-alive interval (rule 2)."""
        since_ms = self._broker.now_ms() - self._broker.config.keep_alive_s * 1000
        if self._closed_ms:
            self._closed_ms = {id_: closed_ms for id_, closed_ms in self._closed_ms.items() if closed_ms >= since_ms}
        return producer_id in self._closed_ms

    def on_close_producer(self, request: wire.CommandCloseProducer) -> None:
        """CLOSE_PRODUCER: answered when what the producer sent is answered."""
        producer = self._producers.pop(request.producer_id, None)
        self._attached.pop(request.producer_id, None)
        self._waiting.pop(request.producer_id, None)
        if isinstance(producer, Producer):
            if self._held and producer.topic in self._held:
                self._held.add(producer, request.request_id)
            else:
                self._close(producer, request.request_id)
            return
        if producer is not None:
            producer.is_cancelled = True
        self._answers.success(request.request_id)

    def _close(self, producer: Producer, request_id: int) -> None:
        producer.topic.close_producer(producer, lambda: self._answers.success(request_id))

    def on_refused(
        self, producer: Producer, sequence_id: int, highest: int, error: BrokerError, size_bytes: int
    ) -> None:
        """Tell the client that a message of *producer* is not stored."""
        self._answers.write(
            command(
                _T.SEND_ERROR,
                producer_id=producer.producer_id,
                sequence_id=highest_of(sequence_id, highest) % 2**64,
                error=error.code,
                message=str(error),
            )
        )
        self._flow.on_published(size_bytes)

    async def is_alive(self) -> bool:
        """Whether the client gives a sign of life."""
        return await self._answers.is_alive()

    def on_closed(self, producer: Producer, next_broker: NextBroker) -> None:
        """The broker closes *producer*: tell the client, which goes on at *next_broker* (rule 8)."""
        producer_id = producer.producer_id
        if producer.is_known:
            self._answers.write(close_frame(_T.CLOSE_PRODUCER, next_broker, producer_id=producer_id))
        if self._producers.get(producer_id) is producer:
            del self._producers[producer_id]
            self._attached.pop(producer_id, None)
            self._closed_ms[producer_id] = self._broker.now_ms()

    def on_lost(self) -> Generator[None, None, None]:
        """The connection is gone: so are its producers, one with each step."""
        producers, self._producers = self._producers, {}
        self._attached.clear()
        self._waiting.clear()
        self._held.clear()
        for coming in producers.values():
            if not isinstance(coming, Producer):
                coming.is_cancelled = True
        return self._detach([producer for producer in producers.values() if isinstance(producer, Producer)])

    @staticmethod
    def _detach(producers: list[Producer]) -> Generator[None, None, None]:
        for producer in producers:
            if not producer.is_closed:  # by the broker, since the connection was lost
                producer.topic.detach_producer(producer)
            yield


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


def _producer_label(request: wire.CommandProducer) -> str:
    return f"producer {request.producer_name or request.producer_id}"


def _schema_of(request: wire.CommandProducer) -> wire.Schema | None:
    """The schema of a producer; one of the type None without data is the same as no schema."""
    if not request.HasField("schema"):
        return None
    schema = request.schema
    return None if schema.type == wire.Schema.NoType and not schema.schema_data else schema


def _batch_problem(send: Send) -> str | None:
    """Why a SEND cannot hold as many messages as it says, or None if it can.

    A SEND that claims one message is not checked: to its consumers a batch counts as no more messages than its bytes
    can hold (`message_count`).
    """
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
