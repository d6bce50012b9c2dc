"""A writer and its streams step by step: what is stored, what is confirmed, and how it ends. No loop, no clock."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.errors import MetadataFailure, NotAllowed
from broker.grpc.publishing.grouping import OVERHEAD_BYTES, GroupLimits, size_of
from broker.grpc.publishing.stream import COPIES, Share, Stream
from broker.grpc.publishing.writer import (
    BATCH_MESSAGES_MAX,
    BATCHES_MAX,
    CLOSED,
    MESSAGES_PER_TURN,
    SEQUENCE_ID_MAX,
    BadRequest,
    Writer,
    _checked,
)  # fmt: skip
from broker.memory_budget import MemoryBudget
from broker.topic.clients.producer import Producer
from broker.topic.ports import NOT_KNOWN
from broker.wire.frames import NO_ID, Send
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batch_encoding import BATCH_MESSAGES_MIN, encode_messages
from magnetar_core.topics.metadata import KEY_BYTES_MAX, PROPERTIES_MAX
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import messages_of
from tests.support.manual_clock import ManualClock

WINDOW_MS = 5
BYTES_MAX = 10_000


class Topic:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.name = TopicName.parse("t").with_partition(2)
        self.limits = SimpleNamespace(message_bytes_max=0)
        self.sends: list[Send] = []
        self.detached: list[Producer] = []

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        self.sends += [send for _, send in run]

    def detach_producer(self, producer: Producer) -> None:
        producer.is_closed = True
        self.detached.append(producer)


class Hold:
    """A rate that is used up for so long."""

    left_ms = 70.0

    def wait_ms(self, now_ms: int) -> float:
        return self.left_ms


class Bench:
    """All writers of a broker, and that broker."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.topic = Topic()
        self.room: tuple[float, float] | None = None
        self.hold: Hold | None = None
        self.budget = MemoryBudget(1 << 20, self.clock.call_later)

    def now_ms(self) -> int:
        return self.clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Any:
        return self.clock.call_later(delay_ms / 1000, callback)

    def publish_room(self, topic: object) -> tuple[float, float] | None:
        return self.room

    def count_published(self, topic: object, messages: int, size_bytes: int, hold: Callable[[Any], None]) -> None:
        if self.hold is not None:
            hold(self.hold)

    def writer(self, *, is_named: bool = False, messages_max: int = 4) -> Writer:
        topic = cast(Any, self.topic)
        return Writer(self, topic, GroupLimits(messages_max, 1_000, WINDOW_MS), "p", "here", is_named=is_named)

    def stream(self, writer: Writer, last_sequence_id: int = -1, *, mix_keys: bool = False) -> Stream:
        stream = Stream(b"", mix_keys, last_sequence_id, Share(self.budget), lambda: None)
        writer.streams[stream] = None
        return stream

    def send(self, writer: Writer, stream: Stream, first: int, *payloads: bytes) -> int:
        messages = [api.Message(payload=payload) for payload in payloads]
        stream.on_taken(len(messages), sum(map(size_of, messages)))
        return writer.add(stream, first, messages)

    def hand_over(self, writer: Writer, stream: Stream, request: api.PublishRequest) -> None:
        """As a call does it, without waiting for rates."""
        for first, messages, size_bytes in writer.accepted(stream, request, BYTES_MAX):
            stream.on_taken(len(messages), size_bytes)
            while messages:
                count = writer.add(stream, first, messages)
                first, messages = first + count, messages[count:]

    def store_all(self, writer: Writer) -> list[tuple[int, int]]:
        """Confirm all that is published; the first sequence id and the number of messages of each entry."""
        for entry_id, send in enumerate(self.topic.sends):
            writer.on_stored(writer.producer, send.sequence_id, send.highest_sequence_id, 1, entry_id, len(send.entry))
        return [(send.sequence_id, send.num_messages) for send in self.topic.sends]


@pytest.fixture
def bench() -> Bench:
    return Bench()


MIN = BATCH_MESSAGES_MIN


def messages(count: int, **fields: Any) -> list[api.Message]:
    return [api.Message(payload=b"%d" % number, **fields) for number in range(count)]


def batch(count: int, first: int = 0, **fields: Any) -> api.PublishRequest.Batch:
    made = api.PublishRequest.Batch(
        messages=encode_messages(messages(count, **fields), range(first, first + count)), count=count
    )
    if "key" in fields:
        made.key = fields["key"]
    return made


def receipts(stream: Stream) -> list[tuple[int, int, int]]:
    """First sequence id, how many, and the place in the batch."""
    return [
        (one.first_sequence_id, one.count, one.first_id.batch_index if one.HasField("first_id") else -1)
        for answer in stream.out
        for one in answer.receipts
    ]


def refusals(stream: Stream) -> list[tuple[int, str]]:
    return [(one.first_sequence_id, one.reason) for answer in stream.out for one in answer.refusals]


def test_streams_share_an_entry_and_each_gets_its_receipt(bench: Bench) -> None:
    writer = bench.writer()
    one, other = bench.stream(writer), bench.stream(writer)
    bench.send(writer, one, 5, b"a", b"b")
    bench.send(writer, other, 9, b"c")
    assert bench.topic.sends == [], "the window is open"
    bench.clock.advance(WINDOW_MS / 1000)
    (entry,) = bench.topic.sends
    assert (entry.sequence_id, entry.num_messages) == (0, 3)
    assert receipts(one) == receipts(other) == [], "it is not stored yet"
    writer.on_stored(writer.producer, entry.sequence_id, 2, 7, 8, len(entry.entry))
    assert (receipts(one), receipts(other)) == ([(5, 2, 0)], [(9, 1, 2)])
    first = one.out[0].receipts[0].first_id
    assert (first.ledger_id, first.entry_id, first.partition, first.batch_size) == (7, 8, 2, 3)
    assert one.is_answered
    assert bench.budget.used_bytes == 0


def test_all_of_a_message_counts_in_memory(bench: Bench) -> None:
    """Its properties may be as large as a payload."""
    writer = bench.writer()
    stream = bench.stream(writer)
    large = api.Message(properties={"name": "v" * 5_000})
    bench.hand_over(writer, stream, api.PublishRequest(messages=[large, api.Message()]))
    assert bench.budget.used_bytes == COPIES * (large.ByteSize() + 2 * OVERHEAD_BYTES)
    writer.flush()
    bench.store_all(writer)
    assert (stream.is_answered, bench.budget.used_bytes) == (True, 0)


def test_the_key_of_a_batch_counts_in_memory(bench: Bench) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    large = batch(MIN)
    large.key = "k" * 5_000
    bench.hand_over(writer, stream, api.PublishRequest(batches=[large]))
    assert bench.budget.used_bytes == COPIES * len(bench.topic.sends[0].entry) > COPIES * 5_000
    bench.store_all(writer)
    assert bench.budget.used_bytes == 0


def test_what_was_stored_before_is_confirmed_without_an_id(bench: Bench) -> None:
    writer = bench.writer(is_named=True)
    stream = bench.stream(writer, last_sequence_id=6)
    request = api.PublishRequest(first_sequence_id=5, messages=[api.Message(payload=b"x")] * 3)
    assert [(first, len(messages)) for first, messages, _ in writer.accepted(stream, request, BYTES_MAX)] == [(7, 1)]
    assert receipts(stream) == [(5, 2, -1)]
    bench.send(writer, stream, 7, b"x")
    writer.flush()
    writer.on_stored(writer.producer, 7, 0, NO_ID, NO_ID, 1)
    assert receipts(stream)[1:] == [(7, 1, -1)]


def test_a_message_that_a_policy_forbids_concerns_nobody_else(bench: Bench) -> None:
    writer = bench.writer()
    one, other = bench.stream(writer), bench.stream(writer)
    for stream in (one, other):
        bench.send(writer, stream, 0, b"x")
        writer.flush()
    first, second = bench.topic.sends
    writer.on_refused(writer.producer, first.sequence_id, 0, NotAllowed("too late"), 1)
    writer.on_stored(writer.producer, second.sequence_id, 0, 1, 1, 1)
    assert refusals(one) == [(0, f"{bench.topic.name}: too late")]
    assert (receipts(other), refusals(other)) == ([(0, 1, 0)], [])
    assert not writer.is_lost
    assert one.is_answered


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_producer_that_is_lost_ends_its_streams_with_the_reason(bench: Bench, is_closed: bool) -> None:
    writer = bench.writer()
    stream = bench.stream(writer)
    bench.send(writer, stream, 0, b"x")
    writer.flush()
    error = MetadataFailure("Messages must be encrypted")
    if is_closed:
        writer.on_closed(writer.producer, NOT_KNOWN)
    else:
        writer.on_refused(writer.producer, 0, 0, error, 1)
    assert stream.reason is (CLOSED if is_closed else error)
    assert (writer.is_lost, writer.is_alive()) == (True, False)
    assert bench.topic.detached == [writer.producer]
    writer.on_stored(writer.producer, 0, 0, 1, 1, 1)
    writer.leave(stream)
    assert receipts(stream) == [], "its client sends it again"
    assert len(bench.topic.detached) == 1
    assert bench.budget.used_bytes == 0


def test_a_group_that_is_too_large_for_the_topic_is_stored_in_halves(bench: Bench) -> None:
    writer = bench.writer()
    stream = bench.stream(writer)
    bench.topic.limits.message_bytes_max = 250
    bench.send(writer, stream, 0, *[bytes(100)] * 4)
    assert [send.num_messages for send in bench.topic.sends] == [2, 2]
    for entry_id, send in enumerate(bench.topic.sends):
        writer.on_stored(writer.producer, send.sequence_id, 0, 1, entry_id, len(send.entry))
    assert [(first, count) for first, count, _ in receipts(stream)] == [(0, 2), (2, 2)]


def test_as_many_are_taken_as_rates_let_in(bench: Bench) -> None:
    writer = bench.writer()
    stream = bench.stream(writer)
    bench.room, bench.hold = (2, 1_000), Hold()
    assert bench.send(writer, stream, 0, b"a", b"b", b"c", b"d") == 3, "the one that uses the rate up is taken too"
    assert [send.num_messages for send in bench.topic.sends] == [3], "without waiting for more"
    assert writer.wait_ms() == 70
    bench.hold.left_ms = 0
    assert writer.wait_ms() == 0
    bench.room = None
    assert bench.send(writer, stream, 3, b"d") == 1
    assert len(bench.topic.sends) == 1, "the window is open"


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (api.PublishRequest(open=api.PublishRequest.Open()), "comes once"),
        (api.PublishRequest(first_sequence_id=2, messages=[api.Message()]), "comes after 2"),
        (api.PublishRequest(first_sequence_id=SEQUENCE_ID_MAX, messages=[api.Message()]), "sequence ids end"),
        (api.PublishRequest(first_sequence_id=2, batches=[batch(MIN)]), "comes after 2"),
        (api.PublishRequest(first_sequence_id=SEQUENCE_ID_MAX - MIN, batches=[batch(MIN)] * 2), f"and {2 * MIN} mess"),
    ],
)
def test_a_request_out_of_order_ends_the_call(bench: Bench, request_: api.PublishRequest, text: str) -> None:
    writer = bench.writer()
    stream = bench.stream(writer)
    stream.next_sequence_id = 3
    with pytest.raises(BadRequest, match=text):
        list(writer.accepted(stream, request_, BYTES_MAX))


def test_what_cannot_be_stored_is_refused_in_between(bench: Bench) -> None:
    writer = bench.writer()
    stream = bench.stream(writer)
    good, large, early = api.Message(payload=b"x"), api.Message(payload=bytes(BYTES_MAX)), api.Message(event_time_ms=-1)
    many = api.Message(properties={"name": "v" * BYTES_MAX})
    request = api.PublishRequest(messages=[good, large, good, good, early, many])
    pieces = [(first, len(messages), size) for first, messages, size in writer.accepted(stream, request, BYTES_MAX)]
    size = size_of(good)
    assert pieces == [(0, 1, size), (2, 2, 2 * size), (5, 0, 0), (6, 0, 0)]
    assert [number for number, _ in refusals(stream)] == [1, 4, 5]


@pytest.mark.parametrize("is_named", [False, True])
def test_a_batch_is_stored_as_it_came(bench: Bench, is_named: bool) -> None:
    writer = bench.writer(is_named=is_named, messages_max=100)
    stream = bench.stream(writer)
    batches = [batch(MIN, 7, key="k"), batch(30, 7 + MIN)]
    bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=7, batches=batches, messages=messages(2)))
    assert len(bench.topic.sends) == 2, "without waiting for more"
    writer.flush()
    begin = 7 if is_named else 0
    assert not stream.is_answered
    assert bench.store_all(writer) == [(begin, MIN), (begin + MIN, 30), (begin + MIN + 30, 2)]
    assert receipts(stream) == [(7, MIN, 0), (7 + MIN, 30, 0), (37 + MIN, 2, 0)]
    metadata, _ = messages_of(bench.topic.sends[0].entry)
    assert (metadata.partition_key, metadata.producer_name, metadata.num_messages_in_batch) == ("k", "p", MIN)
    assert bytes(bench.topic.sends[0].entry).endswith(batches[0].messages)
    assert (stream.is_answered, bench.budget.used_bytes) == (True, 0)


def test_a_batch_stands_behind_what_came_before_it_and_alone(bench: Bench) -> None:
    for is_named, expected in ((False, [1, MIN, 2]), (True, [1, 1, MIN, 1])):
        bench.topic.sends.clear()
        writer = bench.writer(is_named=is_named, messages_max=100)
        stream = bench.stream(writer)
        bench.hand_over(writer, stream, api.PublishRequest(messages=[api.Message(key="a"), api.Message(key="b")]))
        bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=2, batches=[batch(MIN, 2, key="a")]))
        bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=2 + MIN, messages=[api.Message(key="b")]))
        writer.flush()
        counts = [send.num_messages for send in bench.topic.sends]
        assert counts == expected, "of the same key, or all of a producer whose sequence ids have to grow"


def test_mixed_keys_of_a_batch_are_none_of_its_entry(bench: Bench) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer, mix_keys=True)
    bench.hand_over(writer, stream, api.PublishRequest(batches=[batch(MIN, key="k")]))
    metadata, inner = messages_of(bench.topic.sends[0].entry)
    assert not metadata.HasField("partition_key")
    assert {one.single.partition_key for one in inner if one.single is not None} == {"k"}


@pytest.mark.parametrize(("last", "expected"), [(3, [(4, MIN - 4)]), (MIN - 1, []), (MIN + 9, []), (-1, [(0, MIN)])])
def test_of_a_batch_that_is_stored_in_part_the_rest_is_stored(
    bench: Bench, last: int, expected: list[tuple[int, int]]
) -> None:
    """After a reconnect the client makes other batches than before."""
    writer = bench.writer(is_named=True, messages_max=100)
    stream = bench.stream(writer, last_sequence_id=last)
    bench.hand_over(writer, stream, api.PublishRequest(batches=[batch(MIN)]))
    writer.flush()
    assert bench.store_all(writer) == expected
    stored_before = [(0, min(last + 1, MIN), -1)] if last >= 0 else []
    assert receipts(stream) == stored_before + [(first, count, 0) for first, count in expected]
    payloads = [bytes(one.payload) for send in bench.topic.sends for one in messages_of(send.entry)[1]]
    assert payloads == [one.payload for one in messages(MIN)[last + 1 :]]


@pytest.mark.parametrize(
    ("messages_max", "count", "entries"), [(100, MIN - 1, [MIN - 1]), (25, 26, [25, 1]), (200, 120, [50, 50, 20])]
)
def test_a_batch_without_the_size_of_an_entry_is_taken_apart(
    bench: Bench, messages_max: int, count: int, entries: list[int]
) -> None:
    """Too few, too many, too many bytes."""
    writer = bench.writer(messages_max=messages_max)
    stream = bench.stream(writer)
    bench.hand_over(writer, stream, api.PublishRequest(batches=[batch(count)]))
    writer.flush()
    assert [number for _, number in bench.store_all(writer)] == entries
    assert sum(number for _, number, _ in receipts(stream)) == count
    assert bench.budget.used_bytes == 0


def test_a_batch_that_is_too_large_for_the_topic_is_taken_apart_behind_what_came_before_it(bench: Bench) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    bench.topic.limits.message_bytes_max = 200
    bench.send(writer, stream, 0, b"first")
    bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=1, batches=[batch(MIN, 1)]))
    writer.flush()
    assert max(len(send.entry) for send in bench.topic.sends) <= 200
    assert [number for _, number in bench.store_all(writer)] == [1, MIN // 2, MIN // 2]
    assert [(first, count) for first, count, _ in receipts(stream)] == [(0, 1), (1, MIN // 2), (1 + MIN // 2, MIN // 2)]


@pytest.mark.parametrize("room", [(MIN - 1, 1_000), (1_000, 100)])
def test_of_a_batch_as_much_is_taken_as_rates_let_in(bench: Bench, room: tuple[float, float]) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    bench.room, bench.hold = room, Hold()
    request = api.PublishRequest(batches=[batch(MIN)])
    pieces = list(writer.accepted(stream, request, BYTES_MAX))
    assert (bench.topic.sends, [len(piece[1]) for piece in pieces]) == ([], [MIN])
    bench.room = (MIN, 1_000)
    bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=MIN, batches=[batch(MIN, MIN)]))
    assert [send.num_messages for send in bench.topic.sends] == [MIN]
    assert writer.wait_ms() == 70


def test_a_batch_that_a_policy_forbids_is_refused_and_the_stream_goes_on(bench: Bench) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    bench.hand_over(writer, stream, api.PublishRequest(batches=[batch(MIN)]))
    writer.on_refused(writer.producer, 0, MIN - 1, NotAllowed("too large"), 1)
    assert [number for number, _ in refusals(stream)] == list(range(MIN))
    assert (writer.is_lost, stream.is_answered, bench.budget.used_bytes) == (False, True, 0)


def test_nothing_of_a_stream_that_has_ended_is_stored(bench: Bench) -> None:
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    stream.end(None)
    bench.hand_over(writer, stream, api.PublishRequest(batches=[batch(MIN)]))
    assert (bench.topic.sends, bench.budget.used_bytes) == ([], 0)


DAMAGED = api.PublishRequest.Batch(messages=b"\xff" * 200, count=MIN)


def test_nobody_looks_at_a_batch_that_is_stored_as_it_came(bench: Bench) -> None:
    """Its consumers get the error, as on the binary port; the messages of others are in other entries."""
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    bench.send(writer, bench.stream(writer), 0, b"of another client")
    bench.hand_over(writer, stream, api.PublishRequest(batches=[DAMAGED]))
    bench.hand_over(writer, stream, api.PublishRequest(first_sequence_id=MIN, messages=messages(1)))
    writer.flush()
    assert [number for _, number in bench.store_all(writer)] == [1, MIN, 1]
    with pytest.raises(Corruption, match=f"message 0 of a batch of {MIN}"):
        list(messages_of(bench.topic.sends[1].entry)[1])


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([api.PublishRequest.Batch()], "batch 0 of the request: num_messages_in_batch is 0"),
        ([batch(MIN), api.PublishRequest.Batch(count=-1)], "batch 1 of the request: num_messages_in_batch is -1"),
        ([api.PublishRequest.Batch(messages=bytes(100), count=17)], "100 bytes hold at most 16 messages"),
        ([api.PublishRequest.Batch(messages=bytes(6), count=2**31 - 1)], "at most 1000000 messages"),
        ([batch(BATCH_MESSAGES_MAX + 1)], f"more than {BATCH_MESSAGES_MAX}; send several"),
        ([batch(1)] * (BATCHES_MAX + 1), f"more than {BATCHES_MAX}; make them larger"),
        ([batch(MIN, key="ä" * (KEY_BYTES_MAX // 2 + 1))], f"its key has {KEY_BYTES_MAX + 2} bytes"),
        ([DAMAGED], f"message 0 of a batch of {MIN}"),
    ],
)
def test_a_batch_that_cannot_be_ends_the_call(bench: Bench, batches: list[api.PublishRequest.Batch], text: str) -> None:
    writer = bench.writer()  # it takes apart what it can
    stream = bench.stream(writer)
    with pytest.raises(BadRequest, match=text):
        list(writer.accepted(stream, api.PublishRequest(batches=batches), BYTES_MAX))
    assert bench.budget.used_bytes == 0


def test_a_batch_is_no_entry_that_is_larger_than_messages_may_be(bench: Bench) -> None:
    """Its key stands in the entry once more, and consumers take no frame that is so large."""
    writer = bench.writer(messages_max=100)
    stream = bench.stream(writer)
    request = api.PublishRequest(batches=[batch(MIN)])
    largest = len(request.batches[0].messages)
    for first, messages, _ in writer.accepted(stream, request, largest + 64):
        writer.add(stream, first, messages)
    writer.flush()
    assert [len(send.entry) <= largest + 64 for send in bench.topic.sends] == [True]


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_request_is_worked_on_in_pieces(bench: Bench, is_batch: bool) -> None:
    """It may hold millions of messages without a payload."""
    count = 3 * MESSAGES_PER_TURN + 1
    writer = bench.writer()
    stream = bench.stream(writer)
    request = api.PublishRequest(batches=[batch(count)]) if is_batch else api.PublishRequest(messages=messages(count))
    pieces = list(writer.accepted(stream, request, BYTES_MAX))
    assert len(pieces) == 4 + 3 * is_batch
    assert max(len(some) for _, some, _ in pieces) == MESSAGES_PER_TURN
    assert [number for first, some, _ in pieces for number in range(first, first + len(some))] == list(range(count))
    assert b"".join(message.payload for _, some, _ in pieces for message in some) == b"".join(
        b"%d" % number for number in range(count)
    )


@pytest.mark.parametrize("is_batch", [True, False])
def test_a_request_with_many_properties_is_worked_on_in_pieces(bench: Bench, is_batch: bool) -> None:
    many = {f"{number:07}": "v" for number in range(PROPERTIES_MAX // 2 + 1)}
    writer = bench.writer()
    stream = bench.stream(writer)
    request = api.PublishRequest(messages=messages(4, properties=many))
    if is_batch:
        request = api.PublishRequest(batches=[batch(4, properties=many)])
    pieces = list(writer.accepted(stream, request, 100 * BYTES_MAX))
    assert [len(some) for _, some, _ in pieces] == [0, 0] * is_batch + [1, 1, 1, 1, 0]
    assert [first for first, some, _ in pieces if some] == [0, 1, 2, 3]


def test_millions_of_empty_batches_are_not_looked_at() -> None:
    class Batches(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("they are counted first")

    many = Batches([api.PublishRequest.Batch()] * (BATCHES_MAX + 1))
    with pytest.raises(BadRequest, match=f"more than {BATCHES_MAX}; make them larger"):
        _checked(many)


def test_messages_of_a_named_stream_that_broke_off_are_dropped_and_others_are_stored(bench: Bench) -> None:
    for is_named in (True, False):
        writer = bench.writer(is_named=is_named)
        stream = bench.stream(writer)
        bench.send(writer, stream, 0, b"x")
        stream.end(None)
        writer.leave(stream)
        assert writer.is_lost
    assert len(bench.topic.sends) == 1
    bench.clock.advance(1)
    assert len(bench.topic.sends) == 1
