"""What an entry claims of itself, and what it costs to look."""

import subprocess
import sys
import tracemalloc
import zlib
from typing import Any

import cramjam
import pytest

from magnetar_core.runtime.types import MIB, Corruption
from magnetar_core.topics.metadata import METADATA_FIELDS_MAX, fields_problem
from managed_ledger.messages import (
    BATCH_MESSAGES_MAX,
    batch_problem,
    decompress,
    encode_entry,
    iterate_batch,
    message_count,
    messages_of,
    parse_metadata,
)
from managed_ledger.messages_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, MessageMetadata, SingleMessageMetadata
from tests.support.batches import plain_batch


def packed(codec: int, data: bytes) -> bytes:
    if codec == LZ4:
        return bytes(cramjam.lz4.compress_block(data, store_size=False))
    if codec == ZLIB:
        return zlib.compress(data)
    return bytes(cramjam.zstd.compress(data)) if codec == ZSTD else bytes(cramjam.snappy.compress_raw(data))


def metadata(**fields: int) -> MessageMetadata:
    return MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields)  # type: ignore[arg-type]


CODECS = pytest.mark.parametrize("codec", [LZ4, ZLIB, ZSTD, SNAPPY])


@CODECS
@pytest.mark.parametrize("size", [0, 1, 1000, 200_000])
def test_exactly_the_declared_size_comes_out(codec: int, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert bytes(decompress(codec, packed(codec, data), size)) == data
    for wrong in {max(size - 1, 0), size + 1} - {size}:
        with pytest.raises(Corruption, match=f"{wrong}"):
            decompress(codec, packed(codec, data), wrong)


@CODECS
def test_a_declared_size_above_the_limit_is_refused_before_anything_is_unpacked(codec: int) -> None:
    with pytest.raises(Corruption, match="uncompressed_size 1001 is above the limit of 1000"):
        decompress(codec, b"never looked at", 1001, 1000)


def test_metadata_are_not_decoded_for_more_properties_than_a_message_may_have() -> None:
    over = metadata()
    for _ in range(METADATA_FIELDS_MAX + 1):
        over.properties.add(key="key", value="value")
    with pytest.raises(Corruption, match="more than 10000 properties"):
        parse_metadata(encode_entry(over, b""))
    single = SingleMessageMetadata(payload_size=0)
    for _ in range(METADATA_FIELDS_MAX + 1):
        single.properties.add(key="key", value="value")
    encoded = single.SerializeToString()
    batch = len(encoded).to_bytes(4, "big") + encoded
    with pytest.raises(Corruption, match="message 0 of a batch of 1: it has more than 10000 properties"):
        list(iterate_batch(batch, 1))


def test_metadata_are_looked_through_no_further_than_they_must() -> None:
    class Counting(bytearray):
        reads = 0

        def __getitem__(self, at: Any) -> Any:
            Counting.reads += 1
            return super().__getitem__(at)

    many = metadata()
    for _ in range(100_000):
        many.properties.add(key="", value="")
    assert fields_problem(memoryview(many.SerializeToString())) is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magnetar_core.topics.metadata.memoryview", lambda data: data, raising=False)
        assert fields_problem(Counting(many.SerializeToString())) is not None
    assert Counting.reads < 3 * METADATA_FIELDS_MAX


@pytest.mark.parametrize("damage", [b"\x22", b"\x22\xff\xff\xff\xff\x7f", b"\xff" * 11, b"\x08"])
def test_what_cannot_be_looked_through_is_left_to_the_decoder(damage: bytes) -> None:
    assert fields_problem(metadata().SerializeToString() + damage) is None


BOMB = """
import resource, sys
import cramjam, zlib
from magnetar_core.runtime.types import MIB, Corruption
from magnetar_core.topics.metadata import METADATA_FIELDS_MAX, fields_problem
from managed_ledger.messages import decompress
from managed_ledger.messages_pb2 import LZ4, SNAPPY, ZLIB, ZSTD

# Made piecewise: the bombs themselves must not need what they unpack to.
zeros = bytes(16 * MIB)
made = cramjam.zstd.Compressor()
deflating = zlib.compressobj()
deflated = b""
for _ in range(20):
    made.compress(zeros)
    deflated += deflating.compress(zeros)
bombs = {
    ZSTD: bytes(made.finish()),
    ZLIB: deflated + deflating.flush(),
    LZ4: bytes(cramjam.lz4.compress_block(zeros * 8, store_size=False)),
    SNAPPY: bytes(cramjam.snappy.compress_raw(zeros * 8)),
}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for codec, bomb in bombs.items():
    try:
        decompress(codec, bomb, 1_000_000)
    except Corruption as error:
        assert "1000000" in str(error), error
    else:
        raise SystemExit(f"codec {codec} took its bomb")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_bomb_costs_no_more_than_its_declared_size() -> None:
    ran = subprocess.run([sys.executable, "-c", BOMB], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 64, "MB more than before, for four bombs of 1 MB declared and up to 335 MB"


@pytest.mark.parametrize(
    ("count", "payload_bytes", "fields", "words"),
    [
        (1, 6, {}, None),
        (10, 60, {}, None),
        (10, 59, {}, "59 bytes hold at most 9 messages"),
        (0, 100, {}, "at least one message"),
        (-1, 100, {}, "num_messages_in_batch is -1"),
        (2**31 - 1, 100, {}, f"at most {BATCH_MESSAGES_MAX}"),
        (2**31 - 1, 100, {"compression": ZSTD, "uncompressed_size": 2**32 - 1}, f"at most {BATCH_MESSAGES_MAX}"),
        (1_000, 20, {"compression": ZSTD, "uncompressed_size": 6_000}, None),
        (1_000, 20, {"compression": ZSTD, "uncompressed_size": 5_999}, "5999 bytes hold at most 999"),
        (1_000, 20, {"compression": NONE, "uncompressed_size": 6_000}, "20 bytes hold at most 3"),
    ],
)
def test_a_batch_has_no_more_messages_than_its_bytes_can_hold(
    count: int, payload_bytes: int, fields: dict[str, int], words: str | None
) -> None:
    claimed = metadata(num_messages_in_batch=count, **fields)
    problem = batch_problem(claimed, payload_bytes)
    assert words in problem if words is not None and problem is not None else problem is words
    assert message_count(claimed, payload_bytes) == (count if words is None else 1)


def test_a_batch_with_a_wild_count_is_refused_as_a_whole() -> None:
    batch = plain_batch(1_000_000)
    entry = encode_entry(
        metadata(num_messages_in_batch=1_000_001, compression=ZLIB, uncompressed_size=len(batch)), zlib.compress(batch)
    )
    with pytest.raises(Corruption, match="num_messages_in_batch is 1000001"):
        messages_of(entry)


def test_messages_of_a_batch_come_one_by_one_up_to_the_damaged_one() -> None:
    batch = plain_batch(3, b"abc") + b"\xff\xff\xff\xff" + plain_batch(1)
    found = messages_of(encode_entry(metadata(num_messages_in_batch=4), batch))[1]
    assert [bytes(next(found).payload) for _ in range(3)] == [b"abc"] * 3
    with pytest.raises(Corruption, match="message 3 of a batch of 4"):
        next(found)


@pytest.mark.parametrize("field", ["producer_name", "partition_key", "key", "value"])
def test_text_that_is_not_utf8_is_refused_where_it_is_read(field: str) -> None:
    """The library hands it on as bytes, and whoever takes it for text fails: a dispatcher, for ever."""

    def broken(one: MessageMetadata | SingleMessageMetadata) -> bytes:
        if field in ("key", "value"):
            one.properties.add(key="0x0" if field == "key" else "k", value="0x0" if field == "value" else "v")
        elif hasattr(one, field):
            setattr(one, field, "0x0")
        return one.SerializeToString().replace(b"0x0", b"0\xff0")

    encoded = broken(metadata())
    rest = len(encoded).to_bytes(4, "big") + encoded
    with pytest.raises(Corruption, match="not UTF-8"):
        parse_metadata(rest)
    if field != "producer_name":
        single = broken(SingleMessageMetadata(payload_size=0))
        found = iterate_batch(plain_batch(1) + len(single).to_bytes(4, "big") + single, 2)
        next(found)
        with pytest.raises(Corruption, match="message 1 of a batch of 2 holds text that is not UTF-8"):
            next(found)


def test_messages_are_not_all_in_memory_at_once() -> None:
    count = 50_000  # as objects 40 MB
    batch = plain_batch(count)
    entry = encode_entry(
        metadata(num_messages_in_batch=count, compression=ZLIB, uncompressed_size=len(batch)), zlib.compress(batch)
    )
    tracemalloc.start()
    try:
        found = sum(1 for _ in messages_of(entry)[1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == count
    assert peak < 4 * MIB
