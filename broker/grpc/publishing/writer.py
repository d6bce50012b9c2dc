"""Messages of streams into entries, receipts back to the streams. No IO and no clock.

    stream ─┐                       ┌─ entry ─▶ Topic.publish … on_stored ─┐
    stream ─┴▶ Writer ─▶ Grouping ──┴─ entry ─▶                            └▶ Run ─▶ stream

A writer is one producer of the topic. A stream that gives a producer name has its own writer; all streams without a
name share one. A writer's sequence ids name the entries that are under way.

Rules:

1. A receipt goes to a stream only when the topic has confirmed the entry; the meaning is that of the binary port.
2. What a named producer stored before (its sequence ids say so) is confirmed without storing it again.
3. What the topic's policies forbid (maxMessageSize, the longest delay) is refused message by message, since streams
   share entries: a group that is too large for the topic is stored as several entries.
4. Where a rate is set, so many messages of a request are stored as it lets in, and the others when it lets them in.
5. A batch that a client has encoded is stored as it came, like one on the binary port. If it is larger or smaller than
   entries should be, was stored in part, or is more than the rates let in, it is taken apart, and rules 2 to 4 hold for
   each of its messages.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from broker.errors import BrokerError, NotAllowed, NotReady
from broker.grpc.publishing.grouping import (
    OVERHEAD_BYTES,
    Group,
    Grouping,
    GroupLimits,
    Lane,
    Run,
    encode_batch,
    encode_group,
    size_of,
)
from broker.grpc.publishing.stream import Stream
from broker.topic.clients.producer import Producer, ProducerTopic, PublishPort
from broker.topic.limits import TopicLimits
from broker.topic.ports import NextBroker
from broker.topic.rates.throttling import PublishHold
from broker.wire.frames import NO_ID, Send
from magnetar_core.runtime.types import Cancellable, Corruption, MagnetarError
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batch_encoding import BATCH_MESSAGES_MIN, BatchLimits
from magnetar_core.topics.metadata import KEY_BYTES_MAX, ORDINARY_METADATA_BYTES, PROPERTIES_MAX, describe
from managed_ledger.messages import batch_problem, iterate_batch
from managed_ledger.messages_pb2 import MessageMetadata

# What stands around the largest message in its entry.
_METADATA_BYTES: Final = 64

# Sequence ids are signed in the brokers' snapshots, and -1 stands for none.
SEQUENCE_ID_MAX: Final = 2**63 - 1

# Batches of one request, each some 50 µs on the loop, and messages of one, each some 10 µs if it is taken apart.
BATCHES_MAX: Final = 100
BATCH_MESSAGES_MAX: Final = 10_000

# Messages of one request that are worked on in one turn of the loop: a request may hold millions of empty ones. Fewer
# where they have as many properties as one message may have.
MESSAGES_PER_TURN: Final = 1_000

CLOSED: Final = NotReady("closed by the broker")
"""The topic moves, or storage failed for a moment: clients look it up again, and resend what has no receipt."""


class BadRequest(MagnetarError):
    """A request that ends its call."""


class WriterTopic(ProducerTopic, Protocol):
    """A topic, as its writer uses it (`broker.topic.topic.Topic`)."""

    @property
    def limits(self) -> TopicLimits: ...


class Writer:
    """One producer of a topic, with the entries it has under way; the sink of that producer."""

    def __init__(
        self,
        broker: PublishPort,
        topic: WriterTopic,
        limits: GroupLimits,
        name: str,
        address: str,
        *,
        is_named: bool,
        access_mode: int = 0,
    ) -> None:
        self.topic = topic
        self.streams: dict[Stream, None] = {}
        self.is_lost = False
        self._broker = broker
        self._window_ms = limits.window_ms
        self.batch_limits = BatchLimits(min(limits.messages_max, BATCH_MESSAGES_MAX), limits.bytes_max)
        """Of batches that are stored as they came (rule 5)."""
        self._grouping = Grouping(limits, is_named=is_named)
        self._is_named = is_named
        self._next_sequence_id = 0
        self._under_way: dict[int, list[Run]] = {}
        self._holds: set[PublishHold] = set()
        """Rates that are used up."""
        self._timer: Cancellable | None = None
        self.producer = Producer(
            topic,
            self,
            0,
            name,
            has_generated_name=not is_named,
            regroups=True,
            access_mode=access_mode,
            address=address,
            client_version="magnetar topics.v1",
            connected_since_ms=broker.now_ms(),
        )

    @property
    def work_name(self) -> str:
        """For the watch over the loop."""
        return f"Produce to {self.topic.name} over gRPC, client {self.producer.address}"

    # -------------------------------------------------------------------------------- in

    def accepted(
        self, stream: Stream, request: api.PublishRequest, bytes_max: int
    ) -> Iterator[tuple[int, list[api.Message], int]]:
        """The messages of a request that may be stored, in pieces: the sequence id of the first, they, and the bytes
        that they count for. The others are refused in between, and batches are stored (rule 5). *bytes_max* is
        maxMessageSize. Between two pieces others have their turn; a piece may have no message.

        Raises BadRequest.
        """
        if request.HasField("open"):
            raise BadRequest("`open` comes once, in the first request")
        batches = _checked(request.batches)
        first = request.first_sequence_id
        count = sum(batch.count for batch, _ in batches) + len(request.messages)
        if not count:
            return
        if first < stream.next_sequence_id:
            raise BadRequest(
                f"sequence id {first} comes after {stream.next_sequence_id - 1}; let them grow, and send again on a "
                "new call"
            )
        if first + count > SEQUENCE_ID_MAX:
            raise BadRequest(f"sequence ids end at {SEQUENCE_ID_MAX - 1}, and {count} messages begin at {first}")
        stream.next_sequence_id = first + count
        for batch, encoded in batches:
            if not self._store_batch(stream, first, batch, encoded, bytes_max):
                messages: list[api.Message] = []
                properties = 0
                for message, added in _taken_apart(batch.count, encoded):
                    messages.append(message)
                    properties += added
                    if not len(messages) % MESSAGES_PER_TURN or properties > PROPERTIES_MAX:
                        properties = 0
                        yield first, [], 0
                yield from self._in_turns(stream, first, messages, bytes_max)
            first += batch.count
        yield from self._in_turns(stream, first, request.messages, bytes_max)

    def _in_turns(
        self, stream: Stream, first: int, messages: Sequence[api.Message], bytes_max: int
    ) -> Iterator[tuple[int, list[api.Message], int]]:
        for begin in range(0, len(messages), MESSAGES_PER_TURN):
            chunk = list(messages[begin : begin + MESSAGES_PER_TURN])
            yield from self._accepted(stream, first + begin, chunk, bytes_max)

    def _accepted(
        self, stream: Stream, first: int, messages: list[api.Message], bytes_max: int
    ) -> Iterator[tuple[int, list[api.Message], int]]:
        """Cut *messages* into runs that may be stored: (sequence id of the first, messages, their size).

        Repeated messages are left out (rule 2), and one that cannot be stored is refused; a run ends before that one,
        and where its metadata become too long.
        """
        if old := self._stored_before(stream, first, len(messages)):  # rule 2
            stream.duplicate(first, old)
            messages, first = messages[old:], first + old
        limit = bytes_max - _METADATA_BYTES
        begin = size = metadata_bytes = 0
        for index, message in enumerate(messages):
            counted = size_of(message)
            length = counted - OVERHEAD_BYTES
            of_metadata = length - len(message.payload)
            problem = None
            if length > limit:
                problem = (
                    f"a message of {length} bytes is larger than maxMessageSize ({bytes_max}) allows; make it smaller"
                )
            elif message.event_time_ms < 0 or message.deliver_at_ms < 0:
                problem = "event_time_ms and deliver_at_ms count from 1970 on and must not be negative"
            elif of_metadata > ORDINARY_METADATA_BYTES:
                problem = _metadata_problem(message)
            if problem is not None:  # checked here: in an entry it would concern all streams with messages in it
                yield first + begin, messages[begin:index], size
                stream.refuse(first + index, f"{self.topic.name}: {problem}")
                begin, size = index + 1, 0
                continue
            size += counted
            metadata_bytes += of_metadata
            if metadata_bytes > ORDINARY_METADATA_BYTES:
                yield first + begin, messages[begin : index + 1], size
                begin, size, metadata_bytes = index + 1, 0, 0
        yield first + begin, messages[begin:], size

    def _stored_before(self, stream: Stream, first: int, count: int) -> int:
        """How many of *count* messages a former call of the producer has stored: the first of them."""
        return min(max(stream.last_sequence_id + 1 - first, 0), count) if self._is_named else 0

    def _store_batch(
        self, stream: Stream, first: int, batch: api.PublishRequest.Batch, encoded: bytes, bytes_max: int
    ) -> bool:
        """Store a batch as it came; False: it has to be taken apart (rule 5)."""
        if stream.is_ended:
            return True
        count, size_bytes = batch.count, len(encoded)
        old = self._stored_before(stream, first, count)
        if old == count:
            stream.duplicate(first, count)
            return True
        if old or not self._is_ordinary(count, size_bytes):
            return False
        lane: Lane = (None, False, b"", stream.schema_version)
        if not stream.mix_keys:
            key = batch.key if batch.HasField("key") else None
            lane = (key, batch.key_is_base64, batch.ordering_key, stream.schema_version)
        now_ms = self._broker.now_ms()
        sends = [send for group in self._grouping.close_groups_before(lane) for send in self._entries_of(group, now_ms)]
        number = first if self._is_named else self._next_sequence_id
        send = encode_batch(
            lane, encoded, count, number, number + count - 1, producer_name=self.producer.name, publish_time_ms=now_ms
        )
        limit = self.topic.limits.message_bytes_max
        entry_bytes = len(send.entry)  # with the key, which may be larger than all messages
        is_entry = entry_bytes <= min(limit or bytes_max, bytes_max)
        if is_entry:
            stream.on_taken(count, entry_bytes)
            self._note_under_way(send, [Run(stream, first, count, entry_bytes)])
            sends.append(send)
        self._publish(sends)
        return is_entry

    def _is_ordinary(self, count: int, size_bytes: int) -> bool:
        """Whether a batch has the size of an entry, and the rates let it in."""
        limits, room = self.batch_limits, self._broker.publish_room(self.topic)
        if not BATCH_MESSAGES_MIN <= count <= limits.messages_max or size_bytes > limits.bytes_max:
            return False
        return room is None or (count <= room[0] and size_bytes <= room[1])

    def add(self, stream: Stream, first_sequence_id: int, messages: list[api.Message]) -> int:
        """Take messages, as many as rates let in now (rule 4); returns how many. Their receipts come within the window
        and the time that storage takes."""
        room = self._broker.publish_room(self.topic)
        if room is not None:
            messages = messages[: _fitting(messages, *room)]
        full = self._grouping.add(stream, first_sequence_id, messages, stream.schema_version, stream.mix_keys)
        if full:
            self._store(full)
        if self._timer is None and not self._grouping.is_empty:
            self._timer = self._broker.call_later(self._window_ms, self._window_is_over)
        if room is not None:
            self.flush()
        return len(messages)

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
        now_ms = self._broker.now_ms()
        self._publish([send for group in groups for send in self._entries_of(group, now_ms)])

    def _publish(self, sends: list[Send]) -> None:
        if not sends:
            return
        self.topic.publish([(self.producer, send) for send in sends])
        size_bytes = sum(len(send.entry) for send in sends)
        self._broker.count_published(self.topic, sum(send.num_messages for send in sends), size_bytes, self._holds.add)

    def _entries_of(self, group: Group, now_ms: int) -> Iterator[Send]:
        """*group* as an entry that is under way; as several where the topic takes none that is so large."""
        first = self._next_sequence_id
        sequence_ids = list(group.sequence_ids if self._is_named else range(first, first + len(group.messages)))
        send = encode_group(group, sequence_ids, producer_name=self.producer.name, publish_time_ms=now_ms)
        if len(group.messages) > 1 and 0 < self.topic.limits.message_bytes_max < len(send.entry):
            for half in group.split_in_half():
                yield from self._entries_of(half, now_ms)
            return
        self._note_under_way(send, group.runs)
        yield send

    def _note_under_way(self, send: Send, runs: list[Run]) -> None:
        self._next_sequence_id += send.num_messages
        self._under_way[send.sequence_id] = runs

    def wait_ms(self) -> float:
        """How long the rates of the topic and of the broker let no message in; 0: they do."""
        if not self._holds or self.is_lost:
            return 0
        now_ms = self._broker.now_ms()
        left_ms = max(hold.wait_ms(now_ms) for hold in self._holds)
        if left_ms <= 0:
            self._holds.clear()
        return left_ms

    # -------------------------------------------------------------------------------- out (ProducerSink)

    def on_stored(
        self, producer: Producer, sequence_id: int, highest: int, ledger_id: int, entry_id: int, size_bytes: int
    ) -> None:
        """An entry is stored: give each stream the ids of its own messages in it."""
        runs = self._under_way.pop(sequence_id, None)
        if runs is None:
            return
        size = sum(run.length for run in runs)
        partition = self.topic.name.partition
        start = 0
        for run in runs:
            first = None
            if ledger_id != NO_ID:
                first = api.MessageId(ledger_id=ledger_id, entry_id=entry_id)
                if partition >= 0:
                    first.partition = partition
                if size > 1:
                    first.batch_index, first.batch_size = start, size
            _stream(run).on_stored(run, first)
            start += run.length

    def on_refused(
        self, producer: Producer, sequence_id: int, highest: int, error: BrokerError, size_bytes: int
    ) -> None:
        if not isinstance(error, NotAllowed):
            self._lose(error)
        elif (runs := self._under_way.pop(sequence_id, None)) is not None:  # other messages go on
            for run in runs:
                _stream(run).on_refused(run, f"{self.topic.name}: {error}")

    def on_unanswered(self, size_bytes: int) -> None:
        pass  # streams count their own messages

    def on_closed(self, producer: Producer, next_broker: NextBroker) -> None:
        self._lose(CLOSED)

    def on_sent_away(self, reason: BrokerError) -> None:
        """The topic has a producer no more that waited for exclusive access."""
        self.producer.is_closed = True
        self._lose(reason)

    def is_alive(self) -> bool:
        return not self.is_lost

    def _lose(self, reason: BrokerError) -> None:
        """The producer is closed: its streams look the topic up again and resend messages that have no receipt."""
        if self.is_lost:
            return
        self.is_lost = True
        if self._timer is not None:
            self._timer.cancel()
        self._under_way.clear()
        for stream in list(self.streams):
            stream.end(reason)
        if not self.producer.is_closed:
            self.topic.detach_producer(self.producer)

    def leave(self, stream: Stream) -> None:
        """*stream* has ended. When it was the last one of this writer, the producer is closed too."""
        self.streams.pop(stream, None)
        if not self.streams and not self.is_lost:
            if self._is_named and self._timer is not None:  # a stream that broke off: nobody waits for these
                self._timer.cancel()
                self._timer = None
                self._grouping.take_all()
            else:
                self.flush()
            self.is_lost = True
            self.topic.detach_producer(self.producer)


def _metadata_problem(message: api.Message) -> str | None:
    """As `magnetar_core.topics.metadata.fields_problem`."""
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


def _checked(batches: Sequence[api.PublishRequest.Batch]) -> list[tuple[api.PublishRequest.Batch, bytes]]:
    """The batches of a request, each with its messages as they are encoded. They are checked as on the binary port, and
    that they are no more work than other requests. Raises BadRequest."""
    if len(batches) > BATCHES_MAX:  # asked first: millions of empty ones fit into a request
        raise BadRequest(f"{len(batches)} batches in a request, more than {BATCHES_MAX}; make them larger")
    checked = [(batch, batch.messages) for batch in batches]
    for number, (batch, encoded) in enumerate(checked):
        problem = batch_problem(MessageMetadata(num_messages_in_batch=batch.count), len(encoded))
        if problem is None and batch.count > BATCH_MESSAGES_MAX:
            problem = f"{batch.count} messages, more than {BATCH_MESSAGES_MAX}; send several batches"
        key_bytes = max(len(batch.key.encode()), len(batch.ordering_key))
        if problem is None and key_bytes > KEY_BYTES_MAX:
            problem = f"its key has {key_bytes} bytes, more than {KEY_BYTES_MAX}; give it a shorter one"
        if problem is not None:
            raise BadRequest(f"batch {number} of the request: {problem}")
    return checked


def _taken_apart(count: int, encoded: bytes) -> Iterator[tuple[api.Message, int]]:
    """The messages of a batch, and how many properties each came with. Raises BadRequest."""
    try:
        for _, single, payload in iterate_batch(encoded, count):
            assert single is not None, "messages of a batch have metadata"
            message = api.Message(payload=bytes(payload))
            describe(message, single)
            yield message, len(single.properties)
    except Corruption as error:
        raise BadRequest(str(error)) from error


def _stream(run: Run) -> Stream:
    assert isinstance(run.origin, Stream), "streams add messages"
    return run.origin
