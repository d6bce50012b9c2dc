"""Messages that a client puts into batches, and the same messages one by one: consumers get the same."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from broker.grpc.publishing.grouping import Grouping, GroupLimits, encode_group
from broker.grpc.publishing.writer import _taken_apart
from magnetar_core.topics.batch_encoding import BATCH_MESSAGES_MIN, BatchLimits, encode_batches, encode_messages
from magnetar_core.topics.metadata import describe
from magnetar_core.topics.topics_pb2 import Message
from managed_ledger.messages import iterate_batch, messages_of
from managed_ledger.messages_pb2 import MessageMetadata, SingleMessageMetadata

TEXTS = st.text(max_size=8)
TIMES = st.integers(0, 2**63 - 1)
MESSAGES = st.builds(
    Message,
    payload=st.binary(max_size=200),
    key=st.none() | TEXTS,
    properties=st.dictionaries(TEXTS, TEXTS, max_size=3),
    event_time_ms=st.just(0) | TIMES,
    ordering_key=st.just(b"") | st.binary(max_size=4),
    is_null=st.booleans(),
)
KINDS = st.lists(st.tuples(MESSAGES, st.integers(1, 3 * BATCH_MESSAGES_MIN)), min_size=1, max_size=4)


def as_sent(message: Message, sequence_id: int) -> Message:
    """What a consumer gets of *message*."""
    expected = Message()
    expected.CopyFrom(message)
    expected.sequence_id = sequence_id
    return expected


def as_delivered(single: SingleMessageMetadata | MessageMetadata, payload: bytes) -> Message:
    delivered = Message(payload=payload, sequence_id=single.sequence_id)
    describe(delivered, single)
    return delivered


def one_by_one(messages: Sequence[Message], *, mix_keys: bool) -> list[Message]:
    """What consumers get of a named producer whose broker makes the entries."""
    grouping = Grouping(GroupLimits(1_000, 1 << 20), is_named=True)
    delivered = []
    for group in [*grouping.add(None, 0, messages, b"", mix_keys), *grouping.take_all()]:
        send = encode_group(group, list(group.sequence_ids), producer_name="p", publish_time_ms=1)
        metadata, inner = messages_of(send.entry)
        delivered += [as_delivered(one.single or metadata, bytes(one.payload)) for one in inner]
    return delivered


@given(KINDS, st.booleans())
def test_consumers_get_the_same(kinds: list[tuple[Message, int]], mix_keys: bool) -> None:
    messages = [message for message, count in kinds for _ in range(count)]
    expected = [as_sent(message, number) for number, message in enumerate(messages)]
    batches, batched = encode_batches(messages, 0, BatchLimits(50, 20_000), mix_keys=mix_keys)
    delivered = []
    for batch in batches:
        assert BATCH_MESSAGES_MIN <= batch.count <= 50
        inner = [(one.single, bytes(one.payload)) for one in iterate_batch(batch.messages, batch.count)]
        delivered += [as_delivered(single, payload) for single, payload in inner if single is not None]
        first = messages[len(delivered) - batch.count]
        if not mix_keys:
            assert (batch.HasField("key"), batch.key) == (first.HasField("key"), first.key)
    assert delivered == expected[:batched]
    assert one_by_one(messages, mix_keys=mix_keys) == expected
    apart = [message for batch in batches for message, _ in _taken_apart(batch.count, batch.messages)]
    assert apart == messages[:batched]


@given(st.lists(MESSAGES, max_size=10), st.integers(0, 2**62))
def test_a_batch_is_encoded_as_protobuf_does_it(messages: list[Message], first: int) -> None:
    sequence_ids = range(first, first + len(messages))
    expected = b""
    for message, sequence_id in zip(messages, sequence_ids, strict=True):
        single = SingleMessageMetadata(payload_size=len(message.payload), sequence_id=sequence_id)
        for name, value in message.properties.items():
            single.properties.add(key=name, value=value)
        if message.HasField("key"):
            single.partition_key = message.key
        if message.event_time_ms:
            single.event_time = message.event_time_ms
        if message.ordering_key:
            single.ordering_key = message.ordering_key
        if message.is_null:
            single.null_value = True
        head = single.SerializeToString()
        expected += len(head).to_bytes(4) + head + message.payload
    assert encode_messages(messages, sequence_ids) == expected
