"""What compaction keeps of a topic."""

import struct
from collections.abc import Iterator, Sequence

import pytest

from broker.topic.compaction.latest_keys import KEY_OVERHEAD, LastOfKeys, TooManyKeys, opened
from broker.topic.reading.positions import last_kept_index
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.messages import (
    Message,
    compress,
    encode_entry,
    iterate_batch,
    messages_of,
    parse_metadata,
    payload_of,
    split_entry,
)
from managed_ledger.messages_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    BrokerEntryMetadata,
    EncryptionKeys,
    MessageMetadata,
    SingleMessageMetadata,
)
from managed_ledger.position import Position
from tests.support.steps import counted, done


def metadata(key: str | None = None, **fields: object) -> MessageMetadata:
    made = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    if key is not None:
        made.partition_key = key
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def single(key: str | None, value: bytes, **fields: object) -> bytes:
    return encode_entry(metadata(key, uncompressed_size=len(value), **fields), value)


def batch(*messages: tuple[str | None, bytes], codec: int = NONE, keys: bool = False) -> bytes:
    parts = []
    for key, value in messages:
        one = SingleMessageMetadata(payload_size=len(value))
        if key is not None:
            one.partition_key = key
        packed = one.SerializeToString()
        parts += [struct.pack(">I", len(packed)), packed, value]
    payload = b"".join(parts)
    made = metadata("of the batch", num_messages_in_batch=len(messages), uncompressed_size=len(payload))
    made.compression = codec  # type: ignore[assignment]
    if keys:
        made.encryption_keys.append(EncryptionKeys(key="k", value=b"secret"))
    return encode_entry(made, compress(codec, payload))


def compacted(entries: Sequence[bytes]) -> tuple[list[bytes | None], LastOfKeys]:
    keys = LastOfKeys(1 << 30)
    for number, data in enumerate(entries):
        done(keys.note(opened(Position(7, number), data).unpacked()))
    kept = [done(keys.kept(opened(Position(7, number), data).unpacked())) for number, data in enumerate(entries)]
    return [None if one is None else one.entry() for one in kept], keys


def test_the_last_message_of_each_key_is_kept_as_it_is() -> None:
    entries = [single("a", b"1"), single("b", b"2"), single("a", b"3")]
    kept, keys = compacted(entries)
    assert kept == [None, entries[1], entries[2]]
    assert (keys.messages, keys.kept_messages, keys.removed_messages, len(keys)) == (3, 2, 1, 2)


def test_keys_have_so_much_memory_and_a_topic_with_more_is_not_compacted() -> None:
    keys = LastOfKeys(3 * KEY_OVERHEAD + 6)
    for number in range(3):
        done(keys.note(opened(Position(7, number), single(f"k{number}", b"v")).unpacked()))
    done(keys.note(opened(Position(7, 5), single("k0", b"v")).unpacked()))  # one that is there takes nothing more
    with pytest.raises(TooManyKeys, match=r"the 3 different keys before 7:6 .*compactionKeysMaxMemoryMB"):
        done(keys.note(opened(Position(7, 6), single("k9", b"v")).unpacked()))


def test_what_is_remembered_of_keys_is_given_back_with_them() -> None:
    keys = LastOfKeys(1 << 30)

    def note(number: int, data: bytes) -> None:
        done(keys.note(opened(Position(7, number), data).unpacked()))

    note(0, single("a", b"v"))
    assert keys.bytes == KEY_OVERHEAD + 1
    note(1, single("\u20ac", b"v"))
    assert keys.bytes == 2 * KEY_OVERHEAD + 5, "characters that are not ASCII take up to four bytes each"
    chunk = {"uuid": "u" * 1_000, "num_chunks_from_msg": 2}
    note(2, single("a", b"v", chunk_id=0, **chunk))
    note(3, single("a", b"v", chunk_id=1, **chunk))
    assert keys.bytes == 3 * KEY_OVERHEAD + 1_005, "the message in chunks is remembered, too"
    note(4, single("a", b""))
    assert keys.bytes == KEY_OVERHEAD + 4
    note(5, single("\u20ac", b""))
    assert (keys.bytes, len(keys)) == (0, 0)


def test_an_empty_payload_removes_its_key_until_another_message_comes() -> None:
    assert compacted([single("a", b"1"), single("a", b"")])[0] == [None, None]
    last = single("a", b"2")
    assert compacted([single("a", b"1"), single("a", b"", null_value=True), last])[0] == [None, None, last]


def test_messages_without_a_key_and_markers_are_dropped() -> None:
    assert compacted([single(None, b"1"), single("a", b"x", marker_type=10)])[0] == [None, None]
    assert compacted([single("", b"1")])[0] == [single("", b"1")], "an empty key is a key"


@pytest.mark.parametrize("codec", [NONE, LZ4, ZLIB, ZSTD, SNAPPY])
def test_what_is_left_of_a_batch_keeps_its_index_and_its_compression(codec: int) -> None:
    first = batch(("a", b"1"), ("b", b"2"), (None, b"3"), ("c", b"4"), ("b", b""), codec=codec)
    kept, keys = compacted([first, single("c", b"5")])
    assert kept[0] is not None
    found, messages = messages_of(kept[0])
    told = [(one.single.compacted_out, bytes(one.payload)) for one in messages if one.single is not None]
    assert told == [(False, b"1"), (True, b""), (True, b""), (True, b""), (True, b"")]
    assert (found.compression, found.num_messages_in_batch, found.producer_name) == (codec, 5, "p")
    assert found.compacted_batch_indexes == [0]
    assert len(payload_of(split_entry(kept[0]), found)) == found.uncompressed_size
    assert (keys.messages, keys.kept_messages) == (6, 2)


def last_kept(entry: bytes) -> tuple[int, bool]:
    """(what the head or the messages say is the last message that was kept, whether messages were looked at)"""
    looked = 0

    def counting(batch: Buffer, count: int) -> Iterator[Message]:
        nonlocal looked
        looked += 1
        return iterate_batch(batch, count)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("broker.topic.reading.positions.iterate_batch", counting)
        (_, index) = counted(last_kept_index(opened(Position(7, 0), entry).unpacked()))
    return index, looked > 0


def test_the_head_lists_what_was_kept_and_without_the_list_the_messages_say_it() -> None:
    entries = [batch(("a", b"1"), ("b", b"2"), ("c", b"3"), ("d", b"4")), single("a", b"5"), single("d", b"6")]
    (first, *_), _ = compacted(entries)
    assert first is not None
    assert list(messages_of(first)[0].compacted_batch_indexes) == [1, 2]
    assert last_kept(first) == (2, False)
    (second, *_), _ = compacted([first, single("c", b"7")])
    assert second is not None
    assert list(messages_of(second)[0].compacted_batch_indexes) == [1], "it is made anew"
    for wrong in [], [4], [-1]:
        head, _ = messages_of(first)
        del head.compacted_batch_indexes[:]
        head.compacted_batch_indexes.extend(wrong)
        assert last_kept(encode_entry(head, payload_of(split_entry(first), head))) == (2, True)


def test_a_list_that_would_be_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.compaction.latest_keys.LISTED_MAX", 2)
    entries = [batch(("a", b"1"), ("b", b"2"), ("c", b"3")), batch(("d", b"1"), ("e", b"2"), ("e", b""))]
    (long, short), _ = compacted(entries)
    assert long is not None
    assert short is not None
    assert list(messages_of(long)[0].compacted_batch_indexes) == []
    assert last_kept(long) == (2, True)
    assert list(messages_of(short)[0].compacted_batch_indexes) == [0]


def test_a_batch_of_which_nothing_is_left_is_dropped() -> None:
    assert compacted([batch(("a", b"1"), ("b", b"2")), batch(("b", b"3"), ("a", b"4"))])[0][0] is None


def test_what_was_compacted_before_stays_compacted() -> None:
    (first, _), _ = compacted([batch(("a", b"1"), ("b", b"2")), single("a", b"3")])
    assert first is not None
    kept, keys = compacted([first, single("c", b"4")])
    assert kept[0] == first
    assert keys.messages == 2, "an emptied message is no message"


def test_an_encrypted_batch_counts_as_one_message_with_the_key_of_the_entry() -> None:
    entries = [batch(("a", b"1"), ("b", b"2"), keys=True), batch(("c", b"1"), ("d", b"2"), keys=True)]
    assert compacted(entries)[0] == [None, entries[1]]


def chunks(key: str, uuid: str, count: int) -> list[bytes]:
    return [
        single(key, b"part", uuid=uuid, chunk_id=at, num_chunks_from_msg=count, total_chunk_msg_size=4 * count)
        for at in range(count)
    ]


def test_all_chunks_of_a_message_that_is_kept_are_kept_and_all_of_one_that_is_not_are_dropped() -> None:
    old, new = chunks("a", "one", 3), chunks("a", "two", 2)
    kept, keys = compacted([old[0], new[0], old[1], old[2], new[1]])
    assert kept == [None, new[0], None, None, new[1]]
    assert (keys.messages, keys.kept_messages) == (2, 1)
    kept, _ = compacted([*chunks("a", "one", 2), single("a", b"whole")])
    assert kept[:2] == [None, None]
    assert kept[2] is not None
    unfinished = chunks("b", "three", 3)[:2]
    assert compacted(unfinished)[0] == [None, None]


def test_the_broker_s_block_in_front_of_an_entry_is_cut_off() -> None:
    block = BrokerEntryMetadata(index=3).SerializeToString()
    entry = single("a", b"1")
    assert compacted([struct.pack(">HI", 0x0E02, len(block)) + block + entry])[0] == [entry]


@pytest.mark.parametrize(
    "entry",
    [
        b"nonsense",
        b"",
        single("a", b"1")[:-1] + b"2",  # its checksum is wrong
        encode_entry(metadata("a", num_messages_in_batch=3, uncompressed_size=2), b"xy"),
    ],
)
def test_an_entry_that_cannot_be_understood_ends_the_compaction_with_its_position(entry: bytes) -> None:
    with pytest.raises(Corruption, match=r"entry 7:1: "):
        compacted([single("a", b"1"), entry])


def test_what_is_kept_can_be_read_by_those_who_read_the_topic() -> None:
    kept, _ = compacted([batch(("a", b"1"), ("b", b"2")), single("a", b"3")])
    assert [parse_metadata(one).sequence_id for one in kept if one is not None] == [1, 1]


def test_others_have_their_turn_after_so_many_messages_also_within_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.topic.compaction.latest_keys.MESSAGES_PER_TURN", 10)
    keys = LastOfKeys(1 << 30)
    large = opened(Position(7, 0), batch(*((f"k{n}", b"v") for n in range(95)), codec=LZ4)).unpacked()
    small = [opened(Position(7, n), single(f"s{n}", b"v")).unpacked() for n in range(1, 26)]
    assert counted(keys.note(large))[0] == 9
    assert sum(counted(keys.note(one))[0] for one in small) == 3, "they are counted over all entries"
    turns, kept = counted(keys.kept(large))
    assert (turns, keys.kept_messages) == (9, 95)
    assert kept is not None
    assert sum(counted(keys.kept(one))[0] for one in small) == 3
