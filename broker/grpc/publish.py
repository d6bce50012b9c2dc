"""The Publish call: its requests are read while its answers are written. What becomes of the messages is decided in
`broker.grpc.publishing`.

Rules:

1. A stream of a name waits until the entries of the former producer of that name, on either port, are answered: only
   then is it known what is stored, and the messages may be grouped in another way now.
2. Nothing is read while `Stream.may_read` says no, or a rate lets nothing in (`Writer.wait_ms`).
3. A producer that waits for exclusive access is told so at once, and again when it has it. If the topic sends it away,
   its client comes back and waits anew. One that had exclusive access does not wait for it again: others may have
   written meanwhile.
"""

import asyncio
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, Final
from weakref import WeakValueDictionary

import grpc

from broker.broker import Broker
from broker.errors import BrokerError, NotReady, ProducerFenced
from broker.grpc.callers import caller_of, source_of
from broker.grpc.publishing.grouping import GroupLimits
from broker.grpc.publishing.stream import Share, Stream
from broker.grpc.publishing.writer import CLOSED, BadRequest, Writer
from broker.grpc.requests import Requests
from broker.grpc.status import Refused, Status, refusal
from broker.names import check_client_name, parse_topic
from broker.security.authorization import Operation, about_topic
from broker.security.rechecks import still_may
from broker.topic.clients.producer import Producer
from broker.topic.rates.throttling import HOLD_STEP_MS
from broker.topic.requests import ProducerRequest
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from magnetar_core.runtime.tasks import Bell
from magnetar_core.security.caller import Caller
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName

# How long a stream waits until the entries of its name's former producer are answered.
_STORED_WAIT_MAX_S: Final = 30.0


_ACCESS: Final = {
    api.PublishRequest.SHARED: wire.Shared,
    api.PublishRequest.EXCLUSIVE: wire.Exclusive,
    api.PublishRequest.WAIT_FOR_EXCLUSIVE: wire.WaitForExclusive,
    api.PublishRequest.EXCLUSIVE_WITH_FENCING: wire.ExclusiveWithFencing,
}


class _Call:
    """One Publish call that is open."""

    def __init__(
        self, broker: Broker, call: Any, caller: Caller, writer: Writer, stream: Stream, bell: Bell, epoch: int | None
    ) -> None:
        """*bell* rings when *stream* has changed. *epoch*: of exclusive access."""
        self.caller = caller
        """As whom its client is authenticated; streams of several clients share a producer."""
        self.writer = writer
        self.stream = stream
        self.epoch = epoch
        self._broker = broker
        self._call = call
        self._bell = bell

    async def _until(self, is_so: Callable[[], bool]) -> None:
        """Return when *is_so* says of the stream that it is so."""
        while not is_so():
            await self._bell.rung()

    async def until_answered(self) -> None:
        """Return when nothing is under way any more."""
        await self._until(lambda: self.stream.is_answered)

    async def send_opened(self) -> None:
        """Send the client what its producer is; once more when it has got the access it waits for (rule 3).

        Raises Refused.
        """
        opened = self._opened()
        await self._call.write(api.PublishResponse(opened=opened))
        if opened.is_waiting:  # it may have got access while that was written
            await self._until(lambda: self.stream.is_ended or not self.writer.producer.is_waiting)
            if self.stream.reason is not None:
                raise refusal(str(self.writer.topic.name), self.stream.reason)
            await self._call.write(api.PublishResponse(opened=self._opened()))

    def _opened(self) -> api.PublishResponse.Opened:
        return api.PublishResponse.Opened(
            producer_name=self.writer.producer.name,
            last_sequence_id=self.stream.last_sequence_id,
            max_message_bytes=self._broker.config.max_message_bytes,
            topic_epoch=self.epoch,
            is_waiting=self.writer.producer.is_waiting,
            batch_messages_max=self.writer.batch_limits.messages_max,
            batch_bytes_max=self.writer.batch_limits.bytes_max,
        )

    def on_access(self, epoch: int | None) -> None:
        """A producer that waits has exclusive access now; None: another one has fenced it out."""
        if epoch is None:
            self.writer.on_sent_away(ProducerFenced("Fenced out by a later exclusive producer"))
            return
        self.epoch = epoch
        self.writer.producer.is_waiting = False
        self._bell.ring()

    async def pump(self) -> None:
        """Read requests and write answers until the call ends. Raises the Refused that ended it, if there is one."""
        stream = self.stream
        answers, requests = asyncio.ensure_future(self._write_answers()), asyncio.ensure_future(self._read_requests())
        try:
            await asyncio.wait([answers, requests], return_when=asyncio.FIRST_COMPLETED)
            if requests.done():
                requests.result()
                await answers  # until all is answered
            else:
                answers.result()
        finally:
            for task in (answers, requests):
                task.cancel()
            await asyncio.gather(answers, requests, return_exceptions=True)
        if stream.reason is not None:
            raise refusal(str(self.writer.topic.name), stream.reason)

    async def _write_answers(self) -> None:
        stream = self.stream
        while True:
            await self._until(lambda: stream.is_ended or bool(stream.out))
            while stream.out:
                await self._call.write(stream.out.popleft())
                self._bell.ring()  # the stream may not be read while its answers are not
            if stream.is_ended:
                return

    async def _read_requests(self) -> None:
        writer, stream = self.writer, self.stream
        while not stream.is_ended:
            await self._until(stream.may_read)
            await self._until_rate()
            request = await self._call.read()
            if request is grpc.aio.EOF:
                writer.flush()
                await self.until_answered()
                stream.end(None)
                return
            try:
                await self._take(request)
            except BadRequest as error:
                raise Refused(Status.INVALID_ARGUMENT, f"{writer.topic.name}: {error}") from error

    async def _take(self, request: api.PublishRequest) -> None:
        """Raises BadRequest."""
        stream = self.stream
        pieces = self.writer.accepted(stream, request, self._broker.config.max_message_bytes)
        for first_piece in pieces:
            if not request.batches and len(first_piece[1]) == len(request.messages):  # all of it, as nearly always
                await self._hand_over(*first_piece)
                continue
            with stream.holding(request.ByteSize()):
                for piece in chain((first_piece,), pieces):
                    await self._hand_over(*piece)
                    await asyncio.sleep(0)  # others have their turn before the next piece
                    await self._until(stream.has_room)
                    if stream.is_ended:
                        return

    async def _hand_over(self, first_sequence_id: int, messages: list[api.Message], size: int) -> None:
        if not messages or self.stream.is_ended:
            return
        self.stream.on_taken(len(messages), size)  # at once: they stand in memory while a rate lets none in
        await self._until_rate()  # a batch in front of them may have used it up
        while messages and not self.stream.is_ended:
            count = self.writer.add(self.stream, first_sequence_id, messages)
            messages, first_sequence_id = messages[count:], first_sequence_id + count
            await self._until_rate()

    async def _until_rate(self) -> None:
        """Wait until the rates of the topic and of the broker let more messages in."""
        while (left_ms := self.writer.wait_ms()) > 0:
            await self._broker.clock.sleep(min(left_ms, HOLD_STEP_MS) / 1000)


class Publisher:
    """All Publish calls of a broker."""

    def __init__(self, broker: Broker, requests: Requests, limits: GroupLimits) -> None:
        self._broker = broker
        self._requests = requests
        self._limits = limits
        self._shared: dict[TopicName, asyncio.Future[Writer]] = {}
        self._calls: dict[_Call, None] = {}
        self._shares = WeakValueDictionary[Hashable, Share]()
        """By role; each lives as long as a call of it."""

    async def end(self, timeout_s: float) -> None:
        """Answer what came so far, then disconnect all streams."""
        calls = list(self._calls)
        for writer in {call.writer for call in calls}:
            writer.flush()
        waiting = [asyncio.ensure_future(call.until_answered()) for call in calls]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        for task in waiting:
            task.cancel()
        for call in calls:
            call.stream.end(CLOSED)

    async def recheck(self, namespace: str) -> None:
        """The permissions of *namespace* changed: end the calls of clients that may not produce there any more."""
        for call in list(self._calls):
            topic = call.writer.topic.name
            if topic.namespace != namespace or self._broker.access.is_open:
                continue
            if not await still_may(self._broker.access, call.caller, Operation.PRODUCE, topic, "a Publish call"):
                call.stream.end(CLOSED)

    async def serve(self, call: Any) -> None:
        """One Publish call. Raises Refused, BrokerError."""
        source = source_of(call)
        with self._requests.stream(source):
            await self._serve(call, source)

    async def _serve(self, call: Any, source: Hashable) -> None:
        request = await self._requests.of_role(call, source)
        if not request.HasField("open") or request.messages or request.batches:
            raise Refused(Status.INVALID_ARGUMENT, "the first request of Publish has `open`, and nothing else")
        name = parse_topic(request.open.topic)
        caller = caller_of(call)
        if request.open.access not in _ACCESS:
            raise Refused(Status.INVALID_ARGUMENT, f"{name}: there is no access {request.open.access}")
        need = about_topic(Operation.PRODUCE, name)
        try:
            await self._broker.access.check(caller, need)
            check_client_name(request.open.producer_name, "producer")
            self._broker.arrivals.work_for(source)
            publishing = await self._open(name, request.open, call, caller, source)
        except BrokerError as error:
            raise refusal(str(name), error) from error
        try:
            try:
                await self._broker.access.check(caller, need)  # permissions may have changed while the topic was opened
            except BrokerError as error:
                raise refusal(str(name), error) from error
            await publishing.send_opened()
            with self._broker.partition_counts.following(name, publishing.stream.on_partitions):
                await publishing.pump()
        finally:
            publishing.stream.end(None)
            self._calls.pop(publishing, None)
            publishing.writer.leave(publishing.stream)
            self._forget_if_lost(publishing.writer)

    # -------------------------------------------------------------------------------- producers

    async def _open(
        self, name: TopicName, request: api.PublishRequest.Open, call: Any, caller: Caller, source: Hashable
    ) -> _Call:
        """Open the topic for one call: with a producer of its own where it names one or wants access, else with the
        shared one. Raises Refused, BrokerError."""
        if name.partition < 0 and (partitions := await self._broker.partitions(name, create=True)):
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{name} has {partitions} partitions; open {name.with_partition(0)} and so on",
            )
        topic = await self._broker.opening.persistent(name, create=True)
        schema = schema_of(request.schema) if request.HasField("schema") else None
        schema_version = await self._broker.producer_schema(name, schema)
        address = call.peer()
        share = self._shares.setdefault(source, Share(self._broker.publishes))
        bell = Bell()
        stream = Stream(schema_version, request.mix_keys, -1, share, bell.ring)
        if request.producer_name or request.access != api.PublishRequest.SHARED:
            publishing = await self._own_writer(topic, request, call, caller, stream, bell)
        else:
            writer = await self._shared_writer(topic, address)
            publishing = _Call(self._broker, call, caller, writer, stream, bell, None)
            writer.streams[stream] = None
        self._calls[publishing] = None
        return publishing

    async def _own_writer(
        self, topic: Topic, request: api.PublishRequest.Open, call: Any, caller: Caller, stream: Stream, bell: Bell
    ) -> _Call:
        """A call that shares its writer with no other."""
        is_named = bool(request.producer_name)
        name = request.producer_name or await self._broker.producer_name()
        mode = _ACCESS[request.access]
        writer = Writer(self._broker, topic, self._limits, name, call.peer(), is_named=is_named, access_mode=mode)
        writer.streams[stream] = None
        publishing = _Call(self._broker, call, caller, writer, stream, bell, None)
        producer_request = ProducerRequest(
            writer.producer,
            request.topic_epoch if request.HasField("topic_epoch") else None,
            False,
            None,
            publishing.on_access,
            lambda: writer.on_sent_away(CLOSED),
        )
        attached = await topic.attach_producer(producer_request)
        publishing.epoch = attached.epoch
        writer.producer.is_waiting = not attached.ready
        if writer.producer.is_waiting and request.HasField("topic_epoch"):  # rule 3
            topic.detach_producer(writer.producer)
            raise ProducerFenced(f"{topic.name}: another producer has exclusive access now, or is next")
        if is_named:
            await _wait_for_predecessor(topic, writer)
            stream.last_sequence_id = topic.last_sequence_id(name)
        return publishing

    async def _shared_writer(self, topic: Topic, address: str) -> Writer:
        """The writer that all calls without a producer name share on a topic. The first call opens it, and others wait
        for that."""
        while True:
            opening_writer = self._shared.get(topic.name)
            if opening_writer is None:
                break
            writer = await asyncio.shield(opening_writer)
            if not writer.is_lost and writer.topic is topic:
                return writer
            if self._shared.get(topic.name) is opening_writer:
                del self._shared[topic.name]
        opening: asyncio.Future[Writer] = asyncio.get_running_loop().create_future()
        self._shared[topic.name] = opening
        try:
            name = await self._broker.producer_name()
            writer = Writer(self._broker, topic, self._limits, name, address, is_named=False)
            await topic.attach_producer(_producer_request(writer.producer))
        except BaseException as error:
            del self._shared[topic.name]
            failure = error if isinstance(error, BrokerError) else NotReady(f"{topic.name} could not be opened")
            opening.set_exception(failure)
            opening.exception()  # streams that wait get the error too; this call marks it as seen when none waits
            raise
        opening.set_result(writer)
        return writer

    def _forget_if_lost(self, writer: Writer) -> None:
        """A writer without a producer takes no more streams."""
        task = self._shared.get(writer.topic.name)
        if writer.is_lost and task is not None and task.done() and not task.exception() and task.result() is writer:
            del self._shared[writer.topic.name]


async def _wait_for_predecessor(topic: Topic, writer: Writer) -> None:
    """Wait until the entries of the name's former producer are answered (rule 1).

    Detaches the producer if that fails. Raises NotReady.
    """
    try:
        if not await topic.until_stored_for(writer.producer, _STORED_WAIT_MAX_S):
            raise NotReady(f"{topic.name}: what {writer.producer.name} sent before is still being stored")
        if writer.is_lost:
            raise NotReady(f"{topic.name} was closed meanwhile")
    except BaseException:
        if not writer.is_lost:
            topic.detach_producer(writer.producer)
        raise


def _producer_request(producer: Producer) -> ProducerRequest:
    """Of one that shares its access, and so never waits for it."""
    return ProducerRequest(producer, None, False, None, lambda epoch: None, lambda: None)


def schema_of(schema: api.Schema) -> wire.Schema | None:
    """*schema* as the binary port has it. None for a schema of type 0 without data, which means no schema.

    Raises Refused for a number that is no type of Pulsar's: a field of that protocol cannot hold it.
    """
    if schema.type == wire.Schema.NoType and not schema.data:
        return None
    if schema.type not in wire.Schema.Type.values():
        raise Refused(Status.INVALID_ARGUMENT, f"there is no schema type {schema.type}")
    converted = wire.Schema(name="", type=schema.type, schema_data=schema.data)  # type: ignore[arg-type]
    for key, value in schema.properties.items():
        converted.properties.add(key=key, value=value)
    return converted
