"""The Publish call: messages of streams into entries, receipts back to the streams.

    stream ─┐                       ┌─ entry ─▶ Topic.publish … SEND_RECEIPT ─┐
    stream ─┴▶ Writer ─▶ Grouping ──┴─ entry ─▶                               └▶ Run ─▶ stream

A writer is one producer of the topic. A stream that gives a producer name has its own writer; all streams without a
name share one. A writer's sequence ids name the entries that are under way.

Rules:

1. A receipt goes to a stream only when the topic has confirmed the entry; the meaning is that of the binary port.
2. What a named producer stored before (its sequence ids say so) is confirmed without storing it again. A stream of a
   name waits until the entries of the former producer of that name, on either port, are answered: only then is it
   known what is stored, and the messages may be grouped in another way now.
3. What the topic's policies forbid (maxMessageSize, the longest delay) is refused message by message, since streams
   share entries: a group that is too large for the topic is stored as several entries.
4. A stream that has too much under way is not read, nor are those of a role that have too much together, nor is any
   while all clients of the broker have; gRPC's flow control then stops its client.
5. Where a rate is set, so many messages of a request are stored as it lets in, and the others when it lets them in.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

import grpc

from broker.broker import Broker
from broker.errors import BrokerError, NotReady
from broker.grpc.callers import caller_of, source_of
from broker.grpc.grouping import Group, Grouping, GroupLimits, Run, encode_group
from broker.grpc.requests import Requests
from broker.grpc.status import Refused, Status, moved, refusal, refusal_of_code
from broker.memory_budget import MemoryBudget
from broker.names import check_client_name, parse_topic
from broker.security.authorization import Operation, about_topic
from broker.security.rechecks import still_may
from broker.topic.clients.producer import Producer
from broker.topic.rates.throttling import HOLD_STEP_MS, PublishHold
from broker.topic.requests import ProducerRequest
from broker.topic.topic import Topic
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import NO_ID, Send, parse_frame
from magnetar_core.runtime.clock import Timer
from magnetar_core.runtime.types import MIB, Buffer
from magnetar_core.security.caller import TRUSTED
from magnetar_core.topics import topics_pb2 as api
from managed_ledger.messages import KEY_BYTES_MAX, ORDINARY_METADATA_BYTES, PROPERTIES_MAX
from managed_ledger.topic_name import TopicName

log = logging.getLogger(__name__)

# Bytes and messages of one stream that storage has not answered; as much as a binary connection may have. A stream
# that is busy at 100,000 small messages a second and 100 ms of storage has 10,000 under way.
STREAM_BYTES_MAX: Final = 64 * MIB
STREAM_MESSAGES_MAX: Final = 100_000

# A message stands in memory as it came and in its entry.
COPIES: Final = 2

# Share of the calls of one role in the memory for messages that storage has not answered, as of one binary connection.
ROLE_SHARE: Final = 0.5

# Receipts that leave in one answer; a frame then stays below 64 KiB.
RECEIPTS_PER_ANSWER: Final = 2_000

# What stands around the largest message in its entry.
_METADATA_BYTES: Final = 64

# How long a stream waits until the entries of its name's former producer are answered.
_STORED_WAIT_MAX_S: Final = 30.0

_T = wire.BaseCommand

# Sequence ids are signed in the brokers' snapshots, and -1 stands for none.
SEQUENCE_ID_MAX: Final = 2**63 - 1


class Writer:
    """One producer of a topic, with the entries it has under way; the sink of that producer."""

    is_writable = True
    is_idle = True
    room_bytes = 0

    def reserve(self, size_bytes: int) -> None:
        raise AssertionError("nothing is read for a producer")

    def __init__(self, publisher: "Publisher", topic: Topic, name: str, *, is_named: bool, address: str) -> None:
        self.topic = topic
        self.streams: set[Stream] = set()
        self.is_lost = False
        self._publisher = publisher
        self._grouping = Grouping(publisher.limits, is_named=is_named)
        self._is_named = is_named
        self._next_sequence_id = 0
        self._under_way: dict[int, Group] = {}
        self._holds: set[PublishHold] = set()
        """Rates that are used up."""
        self._timer: Timer | None = None
        self.producer = Producer(
            topic,
            self,
            0,
            name,
            has_generated_name=not is_named,
            regroups=True,
            address=address,
            client_version="magnetar topics.v1",
            connected_since_ms=publisher.broker.now_ms(),
        )

    @property
    def work_name(self) -> str:
        """For the watch over the loop."""
        return f"Produce to {self.topic.name} over gRPC, client {self.producer.address}"

    def add(self, stream: "Stream", first_sequence_id: int, messages: list[api.Message]) -> None:
        """Take messages; their receipts come within the window and the time that storage takes."""
        full = self._grouping.add(stream, first_sequence_id, messages, stream.schema_version, stream.mix_keys)
        if full:
            self._store(full)
        if self._timer is None and not self._grouping.is_empty:
            self._timer = self._publisher.broker.clock.call_later(self._publisher.window_s, self._window_is_over)

    def _window_is_over(self) -> None:
        self._timer = None
        self._store(self._grouping.take_all())

    def flush(self) -> None:
        """Store the open groups now instead of waiting for more messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._window_is_over()

    def _store(self, groups: list[Group]) -> None:
        if not groups or self.is_lost:
            return
        run: list[tuple[Producer, Send]] = []
        now_ms = self._publisher.broker.now_ms()
        for group in groups:
            run += [(self.producer, send) for send in self._entries_of(group, now_ms)]
        self.topic.publish(run)
        size_bytes = sum(len(send.entry) for _, send in run)
        self._publisher.broker.count_published(
            self.topic, sum(len(group.messages) for group in groups), size_bytes, self._holds.add
        )

    def _entries_of(self, group: Group, now_ms: int) -> Iterator[Send]:
        """*group* as an entry that is under way; as several where the topic takes none that is so large."""
        first = self._next_sequence_id
        sequence_ids = list(group.sequence_ids if self._is_named else range(first, first + len(group.messages)))
        send = encode_group(
            group, sequence_ids, producer_name=self.producer.name, producer_id=0, publish_time_ms=now_ms
        )
        if len(group.messages) > 1 and 0 < self.topic.limits.message_bytes_max < len(send.entry):
            for half in group.halves():
                yield from self._entries_of(half, now_ms)
            return
        self._next_sequence_id += len(group.messages)
        self._under_way[sequence_ids[0]] = group
        yield send

    async def until_rate(self) -> None:
        """Wait until the rates of the topic and of the broker let more messages in."""
        broker = self._publisher.broker
        while self._holds and not self.is_lost:
            left_ms = max(one.wait_ms(broker.now_ms()) for one in self._holds)
            if left_ms <= 0:
                self._holds.clear()
                return
            await broker.clock.sleep(min(left_ms, HOLD_STEP_MS) / 1000)

    # -------------------------------------------------------------------------------- Sink

    def write(self, frame: bytes) -> None:
        body, _ = parse_frame(memoryview(frame)[4:])
        if body.type == _T.SEND_RECEIPT:
            receipt = body.send_receipt
            group = self._under_way.pop(receipt.sequence_id, None)
            if group is not None:
                self._confirm(group, receipt.message_id.ledgerId, receipt.message_id.entryId)
        elif body.type == _T.SEND_ERROR and body.send_error.error == wire.NotAllowedError:
            number = body.send_error.sequence_id  # the highest of its entry
            self._refuse(self._under_way.pop(max(one for one in self._under_way if one <= number)), body.send_error)
        elif body.type == _T.SEND_ERROR:
            self._lose(refusal_of_code(str(self.topic.name), body.send_error.error, body.send_error.message))
        elif body.type == _T.CLOSE_PRODUCER:
            self._lose(moved(str(self.topic.name)))

    def _confirm(self, group: Group, ledger_id: int, entry_id: int) -> None:
        size = len(group.messages)
        partition = self.topic.name.partition
        at = 0
        for run, stream, size_bytes in _parts(group):
            first = None
            if ledger_id != NO_ID:
                first = api.MessageId(ledger_id=ledger_id, entry_id=entry_id)
                if partition >= 0:
                    first.partition = partition
                if size > 1:
                    first.batch_index, first.batch_size = at, size
            stream.on_stored(run, first, size_bytes)
            at += run.length

    def _refuse(self, group: Group, error: wire.CommandSendError) -> None:
        """The topic does not take these messages; those of other streams, and the following ones, go on."""
        for run, stream, size_bytes in _parts(group):
            stream.on_refused(run, f"{self.topic.name}: {error.message}", size_bytes)

    def _lose(self, reason: Refused) -> None:
        """The producer is closed: its streams look the topic up again and resend messages that have no receipt."""
        if self.is_lost:
            return
        self.is_lost = True
        self._publisher.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        self._under_way.clear()
        for stream in list(self.streams):
            stream.end(reason)
        if not self.producer.is_closed:
            self.topic.detach_producer(self.producer)

    def write_message(self, head: bytes, entry: Buffer) -> None:
        raise AssertionError("producers get no messages")

    async def is_alive(self) -> bool:
        return not self.is_lost

    def on_published(self, count: int, size_bytes: int) -> None:
        pass  # streams count their own messages

    def on_producer_closed(self, producer: object) -> None:
        self._lose(moved(str(self.topic.name)))

    def on_consumer_closed(self, consumer: object) -> None:
        raise AssertionError("this is no consumer")

    def leave(self, stream: "Stream") -> None:
        """*stream* has ended. When it was the last one of this writer, the producer is closed too."""
        self.streams.discard(stream)
        if not self.streams and not self.is_lost:
            if self._is_named and self._timer is not None:  # a stream that broke off: nobody waits for these
                self._timer.cancel()
                self._timer = None
                self._grouping.take_all()
            else:
                self.flush()
            self.is_lost = True
            self._publisher.forget(self)
            self.topic.detach_producer(self.producer)


def _metadata_problem(message: api.Message) -> str | None:
    """As `managed_ledger.messages.fields_problem`."""
    if len(message.properties) > PROPERTIES_MAX:
        return f"it has {len(message.properties)} properties, more than {PROPERTIES_MAX}; give it fewer"
    size_bytes = max(len(message.key.encode()), len(message.ordering_key))
    if size_bytes > KEY_BYTES_MAX:
        return f"its key has {size_bytes} bytes, more than {KEY_BYTES_MAX}; give it a shorter one"
    return None


def _fitting(messages: list[api.Message], messages_max: float, bytes_max: float) -> int:
    """How many of the first *messages* use the room up: one at least."""
    size = 0
    for count, message in enumerate(messages, 1):
        size += len(message.payload)
        if count > messages_max or size > bytes_max:
            return count
    return len(messages)


def _parts(group: Group) -> Iterator[tuple[Run, "Stream", int]]:
    """The runs of *group*, each with its stream and the bytes of its payloads."""
    at = 0
    for run in group.runs:
        stream = run.origin
        assert isinstance(stream, Stream), "streams add messages"
        yield run, stream, sum(len(one.payload) for one in group.messages[at : at + run.length])
        at += run.length


class Share:
    """What the Publish calls of one role (of one connection, where nobody is authenticated) have under way together."""

    def __init__(self, budget: MemoryBudget) -> None:
        self.budget = budget
        self.bytes = 0
        self.has_room = asyncio.Event()
        self.has_room.set()

    def take(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        self.budget.take(size_bytes)
        if self.bytes > ROLE_SHARE * self.budget.limit_bytes:
            self.has_room.clear()

    def give(self, size_bytes: int) -> None:
        self.bytes -= size_bytes
        self.budget.give(size_bytes)
        if self.bytes <= ROLE_SHARE * self.budget.limit_bytes // 2:
            self.has_room.set()


class Stream:
    """One Publish call."""

    def __init__(self, schema_version: bytes, mix_keys: bool, last_sequence_id: int, share: Share) -> None:
        self._share = share
        self._budget = share.budget
        self.caller = TRUSTED
        """As whom its client is authenticated; streams of several clients share a producer."""
        self.schema_version = schema_version
        self.mix_keys = mix_keys
        self.last_sequence_id = last_sequence_id
        self.next_sequence_id = 0
        self.messages = 0
        self.bytes = 0
        self.reason: Refused | None = None
        self.out: deque[api.PublishResponse] = deque()
        self.changed = asyncio.Event()
        self.has_room = asyncio.Event()
        self._has_turn = asyncio.Event()
        self.ended = asyncio.Event()
        self.is_answered = asyncio.Event()
        self.has_room.set()
        self.is_answered.set()

    def on_stored(self, run: Run, first: api.MessageId | None, size_bytes: int) -> None:
        self._on_answered(run, size_bytes)
        answer = self._answer()
        answer.receipts.add(first_sequence_id=run.first_sequence_id, count=run.length, first_id=first)
        self.changed.set()

    def on_refused(self, run: Run, reason: str, size_bytes: int) -> None:
        self._on_answered(run, size_bytes)
        for sequence_id in range(run.first_sequence_id, run.first_sequence_id + run.length):
            self.refuse(sequence_id, reason)

    def _on_answered(self, run: Run, size_bytes: int) -> None:
        self.messages -= run.length
        self.bytes -= size_bytes
        assert self.messages >= 0, "more messages were answered than the stream sent"
        assert self.bytes >= 0, "more bytes were answered than the stream sent"
        if not self.ended.is_set():
            self._share.give(COPIES * size_bytes)
        if self.messages < STREAM_MESSAGES_MAX // 2 and self.bytes < STREAM_BYTES_MAX // 2:
            self.has_room.set()
        if not self.messages:
            self.is_answered.set()

    def on_taken(self, count: int, size_bytes: int) -> None:
        self.messages += count
        self.bytes += size_bytes
        self._share.take(COPIES * size_bytes)
        self.is_answered.clear()
        if self.messages > STREAM_MESSAGES_MAX or self.bytes > STREAM_BYTES_MAX:  # rule 4
            self.has_room.clear()

    def duplicate(self, first_sequence_id: int, count: int) -> None:
        self._answer().receipts.add(first_sequence_id=first_sequence_id, count=count)
        self.changed.set()

    def refuse(self, sequence_id: int, reason: str) -> None:
        self._answer().refusals.add(first_sequence_id=sequence_id, count=1, reason=reason)
        self.changed.set()

    def _answer(self) -> api.PublishResponse:
        if not self.out or len(self.out[-1].receipts) + len(self.out[-1].refusals) >= RECEIPTS_PER_ANSWER:
            self.out.append(api.PublishResponse())
        return self.out[-1]

    def end(self, reason: Refused | None) -> None:
        if not self.ended.is_set():
            self.reason = reason
            self._share.give(COPIES * self.bytes)
            self._budget.forget(self)
            self.ended.set()
            self.changed.set()
            self.has_room.set()
            self._has_turn.set()
            self.is_answered.set()

    async def until_room(self) -> None:
        """Rule 4. Returns also when the stream has ended."""
        await self.has_room.wait()
        await self._share.has_room.wait()
        if self._budget.is_full and not self.ended.is_set():
            self._has_turn.clear()
            self._budget.wait(self, self._has_turn.set)
            await self._has_turn.wait()


class Publisher:
    """All Publish calls of a broker."""

    def __init__(self, broker: Broker, requests: Requests, limits: GroupLimits, window_s: float) -> None:
        self.broker = broker
        self._requests = requests
        self.limits = limits
        self.window_s = window_s
        self._shared: dict[TopicName, asyncio.Future[Writer]] = {}
        self._streams: dict[Stream, Writer] = {}
        self._shares = WeakValueDictionary[Hashable, Share]()
        """By role; each lives as long as a call of it."""

    async def end(self, timeout_s: float) -> None:
        """Answer what came so far, then disconnect all streams."""
        streams = dict(self._streams)
        for writer in set(streams.values()):
            writer.flush()
        waiting = [asyncio.ensure_future(stream.is_answered.wait()) for stream in streams]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s)
        for task in waiting:
            task.cancel()
        for stream, writer in streams.items():
            stream.end(moved(str(writer.topic.name)))

    async def recheck(self, namespace: str) -> None:
        """The permissions of *namespace* changed: end the calls of clients that may not produce there any more."""
        for stream, writer in list(self._streams.items()):
            topic = writer.topic.name
            if topic.namespace != namespace or self.broker.access.is_open:
                continue
            if not await still_may(self.broker.access, stream.caller, Operation.PRODUCE, topic, "a Publish call"):
                stream.end(moved(str(topic)))

    async def serve(self, call: Any) -> None:
        """One Publish call. Raises Refused, BrokerError."""
        source = source_of(call)
        with self._requests.stream(source):
            await self._serve(call, source)

    async def _serve(self, call: Any, source: Hashable) -> None:
        request = await self._requests.of_role(call, source)
        if not request.HasField("open") or request.messages:
            raise Refused(Status.INVALID_ARGUMENT, "the first request of Publish has `open`, and nothing else")
        name = parse_topic(request.open.topic)
        caller = caller_of(call)
        need = about_topic(Operation.PRODUCE, name)
        try:
            await self.broker.access.check(caller, need)
            check_client_name(request.open.producer_name, "producer")
            self.broker.arrivals.work_for(source)
            writer, stream = await self._open(name, request.open, call.peer(), source)
            stream.caller = caller
        except BrokerError as error:
            raise refusal(str(name), error) from error
        try:
            try:
                await self.broker.access.check(caller, need)  # permissions may have changed while the topic was opened
            except BrokerError as error:
                raise refusal(str(name), error) from error
            await call.write(
                api.PublishResponse(
                    opened=api.PublishResponse.Opened(
                        producer_name=writer.producer.name,
                        last_sequence_id=stream.last_sequence_id,
                        max_message_bytes=self.broker.config.max_message_bytes,
                    )
                )
            )
            await self._pump(call, writer, stream)
        finally:
            stream.end(None)
            self._streams.pop(stream, None)
            writer.leave(stream)

    async def _pump(self, call: Any, writer: Writer, stream: Stream) -> None:
        answers = asyncio.ensure_future(self._write_answers(call, stream))
        requests = asyncio.ensure_future(self._read_requests(call, writer, stream))
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
            raise stream.reason

    async def _write_answers(self, call: Any, stream: Stream) -> None:
        while True:
            await stream.changed.wait()
            stream.changed.clear()
            while stream.out:
                await call.write(stream.out.popleft())
            if stream.ended.is_set():
                return

    async def _read_requests(self, call: Any, writer: Writer, stream: Stream) -> None:
        while not stream.ended.is_set():
            await stream.until_room()
            await writer.until_rate()
            request = await call.read()
            if request is grpc.aio.EOF:
                writer.flush()
                await stream.is_answered.wait()
                stream.end(None)
                return
            for first, messages, size in self._valid(request, writer, stream):
                await self._hand_over(writer, stream, first, messages, size)

    def _valid(
        self, request: api.PublishRequest, writer: Writer, stream: Stream
    ) -> Iterator[tuple[int, list[api.Message], int]]:
        """The messages of a request that may be stored, in pieces: the sequence id of the first, they, and the bytes of
        their payloads. The others are refused in between. Raises Refused."""
        messages = list(request.messages)
        first = request.first_sequence_id
        if request.HasField("open"):
            raise Refused(Status.INVALID_ARGUMENT, f"{writer.topic.name}: `open` comes once, in the first request")
        if not messages:
            return
        if first < stream.next_sequence_id:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"{writer.topic.name}: sequence id {first} comes after {stream.next_sequence_id - 1}; let them grow, "
                "and send again on a new call",
            )
        if first + len(messages) > SEQUENCE_ID_MAX:
            raise Refused(
                Status.INVALID_ARGUMENT,
                f"{writer.topic.name}: sequence ids end at {SEQUENCE_ID_MAX - 1}, and {len(messages)} messages begin "
                f"at {first}",
            )
        stream.next_sequence_id = first + len(messages)
        if not writer.producer.has_generated_name:
            old = min(max(stream.last_sequence_id + 1 - first, 0), len(messages))
            if old:  # rule 2
                stream.duplicate(first, old)
                messages, first = messages[old:], first + old
        limit = self.broker.config.max_message_bytes - _METADATA_BYTES
        begin, size = 0, 0
        for at, message in enumerate(messages):
            length = len(message.payload)
            problem = None
            if length + 64 > limit and message.ByteSize() > limit:
                problem = (
                    f"a message of {message.ByteSize()} bytes is larger than maxMessageSize "
                    f"({self.broker.config.max_message_bytes}) allows; make it smaller"
                )
            elif message.event_time_ms < 0 or message.deliver_at_ms < 0:
                problem = "event_time_ms and deliver_at_ms count from 1970 on and must not be negative"
            elif message.ByteSize() - length > ORDINARY_METADATA_BYTES:
                problem = _metadata_problem(message)
            if problem is not None:  # checked here: in an entry it would concern all streams with messages in it
                yield first + begin, messages[begin:at], size
                stream.refuse(first + at, f"{writer.topic.name}: {problem}")
                begin, size = at + 1, 0
                continue
            size += length
        yield first + begin, messages[begin:], size

    async def _hand_over(
        self, writer: Writer, stream: Stream, first_sequence_id: int, messages: list[api.Message], size: int
    ) -> None:
        if not messages or stream.ended.is_set():
            return
        stream.on_taken(len(messages), size)
        while messages and (room := self.broker.publish_room(writer.topic)) is not None:  # rule 5
            count = _fitting(messages, *room)
            writer.add(stream, first_sequence_id, messages[:count])
            writer.flush()
            messages, first_sequence_id = messages[count:], first_sequence_id + count
            await writer.until_rate()
            if stream.ended.is_set():
                return
        if messages:
            writer.add(stream, first_sequence_id, messages)

    # -------------------------------------------------------------------------------- producers

    async def _open(
        self, name: TopicName, request: api.PublishRequest.Open, address: str, source: Hashable
    ) -> tuple[Writer, Stream]:
        if name.partition < 0 and (partitions := await self.broker.partitions(name, create=True)):
            raise Refused(
                Status.FAILED_PRECONDITION,
                f"{name} has {partitions} partitions; open {name.with_partition(0)} and so on",
            )
        topic = await self.broker.opening.persistent(name, create=True)
        schema = schema_of(request.schema) if request.HasField("schema") else None
        schema_version = await self.broker.producer_schema(name, schema)
        if request.producer_name:
            writer = Writer(self, topic, request.producer_name, is_named=True, address=address)
            await topic.attach_producer(_producer_request(writer.producer))
            await self._wait_for_predecessor(writer)
            last_sequence_id = topic.last_sequence_id(request.producer_name)
        else:
            writer, last_sequence_id = await self._shared_writer(topic, address), -1
        share = self._shares.setdefault(source, Share(self.broker.publishes))
        stream = Stream(schema_version, request.mix_keys, last_sequence_id, share)
        writer.streams.add(stream)
        self._streams[stream] = writer
        return writer, stream

    async def _shared_writer(self, topic: Topic, address: str) -> Writer:
        while True:
            known = self._shared.get(topic.name)
            if known is None:
                break
            writer = await asyncio.shield(known)
            if not writer.is_lost and writer.topic is topic:
                return writer
            if self._shared.get(topic.name) is known:
                del self._shared[topic.name]
        coming: asyncio.Future[Writer] = asyncio.get_running_loop().create_future()
        self._shared[topic.name] = coming
        try:
            name = await self.broker.producer_name()
            writer = Writer(self, topic, name, is_named=False, address=address)
            await topic.attach_producer(_producer_request(writer.producer))
        except BaseException as error:
            del self._shared[topic.name]
            failure = error if isinstance(error, BrokerError) else NotReady(f"{topic.name} could not be opened")
            coming.set_exception(failure)
            coming.exception()  # streams that wait get the error too; this call marks it as seen when none waits
            raise
        coming.set_result(writer)
        return writer

    def forget(self, writer: Writer) -> None:
        """*writer* takes no more streams."""
        known = self._shared.get(writer.topic.name)
        if known is not None and known.done() and not known.exception() and known.result() is writer:
            del self._shared[writer.topic.name]

    async def _wait_for_predecessor(self, writer: Writer) -> None:
        """Wait until the entries of the name's former producer are answered (rule 2).

        Detaches the producer if that fails. Raises NotReady.
        """
        topic = writer.topic
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
    return ProducerRequest(producer, None, False, None, lambda epoch: None, lambda: None)  # it never waits


def schema_of(schema: api.Schema) -> wire.Schema | None:
    """*schema* as the binary port has it. None for a schema of type 0 without data, which means no schema.

    Raises Refused for a number that is no type of Pulsar's: a field of that protocol cannot hold it.
    """
    if schema.type == wire.Schema.NoType and not schema.data:
        return None
    if schema.type not in wire.Schema.Type.values():
        raise Refused(Status.INVALID_ARGUMENT, f"there is no schema type {schema.type}")
    made = wire.Schema(name="", type=schema.type, schema_data=schema.data)  # type: ignore[arg-type]
    for key, value in schema.properties.items():
        made.properties.add(key=key, value=value)
    return made
