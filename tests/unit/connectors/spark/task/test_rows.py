import base64
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from connectors.spark.options.read import Mode
from connectors.spark.task import rows
from connectors.spark.task.entries import Chunks, HeadlessChunk, Opened, open_entry
from connectors.spark.task.rows import is_by_heads
from magnetar_core.runtime.types import Corruption
from managed_ledger.errors import TransactionalTopic
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import ZSTD, BrokerEntryMetadata, MessageIdData, MessageMetadata
from tests.support.batches import plain_batch
from tests.unit.connectors.spark.entries import (
    ALL_METADATA,
    TOPIC,
    add,
    batch,
    batch_payload,
    builder_of,
    message,
    metadata_of,
    plain,
    rows_of,
    single,
    slow_rows,
    with_broker_metadata,
)

EVERYTHING = ("value", *ALL_METADATA)

BATCH = batch(
    message(b"one", partition_key="k", event_time=5, sequence_id=40),
    message(b"", sequence_id=41),
    message(b"two" * 100, sequence_id=42),
    schema_version=bytes(8),
)


def chunk(number: int, count: int = 3, payload: bytes = b"", *, uuid: str = "p-1", **fields: Any) -> bytes:
    return single(payload or b"part %d " % number, uuid=uuid, chunk_id=number, num_chunks_from_msg=count, **fields)


def opened(entry_id: int, data: bytes) -> Opened:
    found = open_entry(TOPIC, 3, entry_id, data)
    assert found is not None
    return found


# ------------------------------------------------------------------------------------------- columns


def test_batches_and_single_messages_become_rows_in_their_order() -> None:
    entries = [BATCH, single(b"alone", partition_key="x", event_time=9), BATCH]
    assert rows_of(entries, EVERYTHING) == slow_rows(entries)
    assert rows_of(entries, EVERYTHING, partition=4) == slow_rows(entries, partition=4)


def test_only_the_columns_asked_for_are_made_in_the_order_asked_for() -> None:
    names = ("__entryId", "value", "__key")
    assert [list(row) for row in rows_of([BATCH], names)] == [list(names)] * 3
    assert rows_of([BATCH], ("__sequenceId",)) == [{"__sequenceId": number} for number in (40, 41, 42)]


def test_a_batch_whose_head_tells_all_is_not_opened() -> None:
    """A count of a compressed topic is not paid with its unpacking."""
    metadata = metadata_of(num_messages_in_batch=3, compression=ZSTD, uncompressed_size=100)
    entry = encode_entry(metadata, b"no zstd at all")
    builder = builder_of(("__entryId", "__batchIndex"), by_heads=True)
    opened = open_entry(TOPIC, 3, 7, entry, unpacks_max=0)
    assert opened is not None
    builder.add(opened)
    assert [plain(batch) for batch in builder.take()] == [[{"__entryId": 7, "__batchIndex": n} for n in range(3)]]


def test_only_columns_of_heads_are_read_by_heads() -> None:
    assert is_by_heads(("__entryId", "__publishTime"), Mode.FAILFAST)
    assert not is_by_heads(("__entryId", "__key"), Mode.FAILFAST)
    assert not is_by_heads(("value",), Mode.FAILFAST)
    assert not is_by_heads(("__entryId",), Mode.PERMISSIVE), "a bad batch is one row there"
    assert not is_by_heads(("__entryId",), Mode.DROPMALFORMED)


def test_compacted_out_messages_are_no_rows_but_count_an_index() -> None:
    data = batch(message(b"a"), message(b"", compacted_out=True), message(b"c"))
    rows = rows_of([with_broker_metadata(data, BrokerEntryMetadata(index=12).SerializeToString())], EVERYTHING)
    assert [(row["value"], row["__batchIndex"], row["__index"]) for row in rows] == [(b"a", 0, 10), (b"c", 2, 12)]
    assert rows_of([data], ("value",)) == [{"value": b"a"}, {"value": b"c"}]


def test_what_few_messages_have_is_null_in_the_others() -> None:
    names = ("__orderingKey", "__deliverAt", "__schemaId", "__replicatedFrom")
    entries = [
        single(b"a", ordering_key=b"\xff", deliver_at_time=1_900_000_000_000, schema_id=b"\x00\x01"),
        batch(message(b"b", ordering_key=b"k"), message(b"c"), message(b"d", ordering_key=b""), replicated_from="east"),
    ]
    assert [tuple(row.values()) for row in rows_of(entries, names)] == [
        (b"\xff", 1_900_000_000_000_000, b"\x00\x01", None),
        (b"k", None, None, "east"), (None, None, None, "east"), (b"", None, None, "east"),
    ]  # fmt: skip


def test_a_cluster_whose_name_is_not_text_is_refused_for_who_asks_for_it() -> None:
    metadata = metadata_of(replicated_from="ab").SerializeToString().replace(b"ab", b"\xff\xfe")
    entry = len(metadata).to_bytes(4, "big") + metadata + b"v"
    assert rows_of([entry]) == [{"value": b"v"}]
    with pytest.raises(
        Corruption, match=r"entry 3:0: the name of the cluster that it was replicated from is not UTF-8"
    ):
        rows_of([entry], ("__replicatedFrom",))


def test_a_null_value_is_null_and_an_empty_one_is_empty() -> None:
    entries = [single(b"", null_value=True), single(b""), batch(message(b"", null_value=True), message(b""))]
    assert [row["value"] for row in rows_of(entries)] == [None, b"", None, b""]
    assert [row["value"] for row in rows_of(entries, EVERYTHING)] == [None, b"", None, b""]


def test_bytes_that_look_like_flags_take_nothing_away() -> None:
    entries = [batch(message(b"\x20\x01", partition_key=" \x01H\x01"), message(b"H\x01", partition_key="H\x01"))]
    assert rows_of(entries, EVERYTHING) == slow_rows(entries)


def test_keys_in_base64_are_decoded() -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    fields = {"partition_key": encoded, "partition_key_b64_encoded": True}
    entries = [single(b"", **fields), batch(message(b"", **fields), message(b"", partition_key=encoded), message(b""))]
    assert [row["__key"] for row in rows_of(entries, ("__key",))] == [b"\xff\x00", b"\xff\x00", encoded.encode(), None]


def test_a_null_key_is_null() -> None:
    entries = [single(b"", partition_key="", null_partition_key=True), single(b"", partition_key="")]
    assert [row["__key"] for row in rows_of(entries, ("__key",))] == [None, b""]


def test_of_equal_properties_the_last_counts() -> None:
    pairs = [{"key": "a", "value": "1"}, {"key": "b", "value": "2"}, {"key": "a", "value": "3"}]
    entries = [batch(message(b"", properties=pairs), message(b"", properties=pairs[:1]), message(b""))]
    rows = rows_of(entries, ("__messageProperties",))
    assert [row["__messageProperties"] for row in rows] == [{"a": "3", "b": "2"}, {"a": "1"}, {}]


def test_sequence_ids_count_on_where_messages_have_none() -> None:
    entries = [batch(message(b""), message(b"", sequence_id=99), message(b""), sequence_id=5)]
    assert [row["__sequenceId"] for row in rows_of(entries, ("__sequenceId",))] == [5, 99, 7]


def test_times_are_those_of_the_producer_to_the_millisecond() -> None:
    far_ms = (2**63 - 1) // 1000
    entries = [single(b"", event_time=far_ms), single(b"")]
    rows = rows_of(entries, ("__publishTime", "__eventTime"))
    assert [row["__eventTime"] for row in rows] == [far_ms * 1000, None]
    assert rows[0]["__publishTime"] == 1_700_000_000_123_000
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: column __eventTime: a time is beyond"):
        rows_of([single(b"", event_time=far_ms + 1)], ("__eventTime",))
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: column __eventTime: a time is beyond"):
        rows_of([single(b"", event_time=2**63)], ("__eventTime",))


def test_numbers_beyond_63_bits_are_what_java_reads() -> None:
    (row,) = rows_of([single(b"", sequence_id=2**64 - 1)], ("__sequenceId",))
    assert row == {"__sequenceId": -1}


def test_metadata_without_required_fields_are_refused() -> None:
    empty_pair = b"\x0a\x00\x18\x01"
    data = encode_entry(metadata_of(num_messages_in_batch=1), len(empty_pair).to_bytes(4, "big") + empty_pair + b"x")
    with pytest.raises(Corruption, match=r"entry 3:0: message 0 of its batch of 1 lacks a required field"):
        rows_of([data], ("__messageProperties",))
    with pytest.raises(Corruption, match=r"entry 3:0: its metadata lack a required field"):
        rows_of([bytes(4) + b"payload"])


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_compressed_entries_are_decompressed(codec: int) -> None:
    import zlib

    import cramjam

    payload = batch_payload([message(b"text " * 50), message(b"more")])
    packed: Any = {
        1: cramjam.lz4.compress_block(payload, store_size=False),
        2: zlib.compress(payload),
        3: cramjam.zstd.compress(payload),
        4: cramjam.snappy.compress_raw(payload),
    }[codec]
    metadata = metadata_of(compression=codec, uncompressed_size=len(payload), num_messages_in_batch=2)
    assert [row["value"] for row in rows_of([encode_entry(metadata, bytes(packed))])] == [b"text " * 50, b"more"]


def test_text_is_text_and_what_is_not_names_its_entry() -> None:
    assert rows_of([single("grün".encode())], ("value",), t.StringType()) == [{"value": "grün"}]
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:1: its value is not text in UTF-8"):
        rows_of([BATCH, batch(message(b"fine"), message(b"\xff"))], ("value",), t.StringType())


def test_entries_of_many_shapes_give_one_batch_after_the_other() -> None:
    builder = builder_of(EVERYTHING)
    found = []
    entries = [BATCH, single(b"x"), single(b"y", null_value=True), BATCH]
    for entry_id, data in enumerate(entries):
        add(builder, entry_id, data)
        assert builder.row_count > 0
        found += plain(next(builder.take()))
        assert (builder.row_count, builder.weight) == (0, 0)
    assert found == slow_rows(entries)


def test_a_batch_without_a_message_is_no_row() -> None:
    builder = builder_of(("value",))
    add(builder, 0, encode_entry(metadata_of(num_messages_in_batch=0), b""))
    assert builder.row_count == 0


# ----------------------------------------------------------------------------- unusual and damaged


def test_fields_in_another_order_and_unknown_ones_are_read_all_the_same() -> None:
    usual, _ = message(b"abc", partition_key="k", sequence_id=3)
    reversed_fields = b"\x40\x03" + b"\x18\x03" + b"\x12\x01k"
    unknown = usual.SerializeToString() + b"\xfa\x01\x01x"  # field 31
    for encoded in (reversed_fields, unknown):
        payload = len(encoded).to_bytes(4, "big") + encoded + b"abc"
        entries = [BATCH, encode_entry(metadata_of(num_messages_in_batch=1), payload)]
        assert rows_of(entries, EVERYTHING) == slow_rows(entries)
        assert rows_of(entries)[-1] == {"value": b"abc"}


def test_what_follows_the_last_message_of_a_batch_is_left_out() -> None:
    payload = batch_payload([message(b"a"), message(b"b")])
    entries = [encode_entry(metadata_of(num_messages_in_batch=2), payload + b"rest"), BATCH]
    assert rows_of(entries, EVERYTHING) == slow_rows(entries)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (b"", "num_messages_in_batch is 2, but 0 bytes hold at most 0 messages"),
        (b"\0\0\0\x02\x18\x7f" + b"shorter", "leaves the payload"),
        (b"\0\0\0\0\x18\x02" + b"\0\0\0\0\x18\x02", "message 0 of its batch of 2"),
        (b"\xff\xff\xff\xff" + b"x" * 10, "message 0 of its batch of 2"),
        (b"\0\0\0\x02\x18\x01a" + b"\0\0\0\x02\x12\x01k", "message 1 of its batch of 2"),
        (b"\0\0\0\x02\x18\x01a" + b"\0\0\0\x0b\x18" + b"\xff" * 9 + b"\x01" + b"abc", "message 1 of its batch of 2"),
    ],
)
def test_a_damaged_batch_names_its_entry_and_message(payload: bytes, complaint: str) -> None:
    damaged = encode_entry(metadata_of(num_messages_in_batch=2), payload)
    for names in (("value",), EVERYTHING):
        with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:1: .*{complaint}"):
            rows_of([BATCH, damaged, BATCH], names)


def test_a_batch_that_claims_too_many_messages_is_refused_before_it_is_unpacked() -> None:
    for count, fields, complaint in (
        (2**31 - 1, {}, "at most 1000000"),
        (1_000, {"compression": ZSTD, "uncompressed_size": 5_000}, "5000 bytes hold at most 833"),
        (1_000, {"compression": ZSTD, "uncompressed_size": 2**32 - 1}, "it unpacks to 4294967295 bytes"),
    ):
        claimed = encode_entry(metadata_of(num_messages_in_batch=count, **fields), b"never looked at")
        with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: .*{complaint}"):
            rows_of([claimed])


def test_ids_of_large_batches_are_not_kept() -> None:
    before = rows._kept_id_tails.cache_info().currsize
    rows_of([encode_entry(metadata_of(num_messages_in_batch=20_000), plain_batch(20_000))], EVERYTHING)
    assert rows._kept_id_tails.cache_info().currsize == before


def test_a_wrong_checksum_is_refused() -> None:
    damaged = bytearray(BATCH)
    damaged[-1] ^= 1
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:0: its checksum is not"):
        rows_of([bytes(damaged)])


def test_entries_without_a_checksum_are_read() -> None:
    assert rows_of([BATCH[6:]], EVERYTHING) == slow_rows([BATCH])


def test_encrypted_and_transactional_entries_are_refused() -> None:
    with pytest.raises(Corruption, match="3:0: it is encrypted"):
        rows_of([single(b"x", encryption_keys=[{"key": "k", "value": b"v"}])])
    with pytest.raises(TransactionalTopic, match="3:0: it belongs to the transaction 1:2"):
        rows_of([single(b"x", txnid_most_bits=1, txnid_least_bits=2)])


def test_properties_that_are_not_text_are_refused_with_their_entries() -> None:
    pair = b"\x0a\x01\xff\x12\x01v"
    encoded = b"\x0a" + bytes([len(pair)]) + pair + b"\x18\x01"
    entry = encode_entry(metadata_of(num_messages_in_batch=1), len(encoded).to_bytes(4, "big") + encoded + b"x")
    with pytest.raises(Corruption, match=r"entry 3:0: column __messageProperties"):
        rows_of([entry], ("__messageProperties",))


# -------------------------------------------------------------------------------------------- chunks


def test_a_message_in_chunks_is_one_row_where_its_last_chunk_stands() -> None:
    entries = [chunk(0, event_time=5), single(b"between"), chunk(1), BATCH, chunk(2)]
    rows = rows_of(entries, EVERYTHING, partition=2)
    assert [row["value"][:9] for row in rows] == [b"between", b"one", b"", b"twotwotwo", b"part 0 pa"]
    assert rows[-1]["value"] == b"part 0 part 1 part 2 "
    assert rows[-1]["__entryId"] == 4
    position = MessageIdData.FromString(rows[-1]["__messageId"])
    assert (position.entryId, position.first_chunk_message_id.entryId) == (4, 0)
    assert position.first_chunk_message_id.partition == 2


def test_chunks_are_decompressed_when_they_are_whole() -> None:
    import cramjam

    packed = bytes(cramjam.lz4.compress_block(b"abc" * 1000, store_size=False))
    fields: dict[str, Any] = {"compression": 1, "uncompressed_size": 3000}
    entries = [chunk(0, 2, packed[:7], **fields), chunk(1, 2, packed[7:], **fields)]
    assert rows_of(entries) == [{"value": b"abc" * 1000}]
    with pytest.raises(Corruption, match="entry 3:1: "):
        rows_of([entries[0], chunk(1, 2, b"junk", **fields)])


def test_chunks_that_are_sent_again_change_nothing() -> None:
    order = [0, 1, 1, 2, 1, 2]
    assert [row["value"] for row in rows_of([chunk(number) for number in order])] == [b"part 0 part 1 part 2 "]


def test_a_message_that_is_begun_again_is_taken_from_there() -> None:
    entries = [chunk(0, payload=b"old "), chunk(1, payload=b"old "), chunk(0), chunk(1), chunk(2)]
    assert [row["value"] for row in rows_of(entries)] == [b"part 0 part 1 part 2 "]


def test_a_gap_ends_a_message_as_it_does_for_consumers() -> None:
    assert rows_of([chunk(0), chunk(2), chunk(1), chunk(2), single(b"x")]) == [{"value": b"x"}]


def test_messages_of_several_producers_may_be_under_way() -> None:
    entries = [
        chunk(number, 2, b"%s%d" % (name, number), uuid=name.decode()) for number in (0, 1) for name in (b"a", b"b")
    ]
    assert [row["value"] for row in rows_of(entries)] == [b"a0a1", b"b0b1"]


def test_a_chunk_without_its_first_ones_asks_for_them() -> None:
    builder = builder_of(("value",))
    with pytest.raises(HeadlessChunk):
        add(builder, 5, chunk(1))
    builder.chunks.add(opened(2, chunk(0)))
    add(builder, 5, chunk(1))
    add(builder, 6, chunk(2))
    assert plain(next(builder.take())) == [{"value": b"part 0 part 1 part 2 "}]
    with pytest.raises(HeadlessChunk):
        add(builder, 7, chunk(1, uuid="other"))
    builder.chunks.give_up("other")
    add(builder, 7, chunk(1, uuid="other"))
    add(builder, 8, chunk(2, uuid="other"))
    assert builder.row_count == 0


def test_unfinished_messages_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chunks, "UNFINISHED_BYTES_MAX", 100)
    chunks = Chunks()
    for name in ("a", "b", "c"):
        assert chunks.add(opened(0, chunk(0, 2, bytes(60), uuid=name))) is None
    for name in ("a", "b"):
        with pytest.raises(HeadlessChunk):  # dropped; its first chunks are to be read again
            chunks.add(opened(1, chunk(1, 2, uuid=name)))
    assert chunks.add(opened(1, chunk(1, 2, uuid="c"))) is not None


def test_the_chunks_of_one_message_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they say that it is; and then the message is given up."""
    monkeypatch.setattr("connectors.spark.task.entries.CHUNKED_BYTES_MAX", 100)
    builder = builder_of(("value",))
    add(builder, 5, chunk(0, 3, bytes(60), uuid="a"))
    with pytest.raises(Corruption, match=rf"{TOPIC}, entry 3:6: the chunks of its message have 120 bytes, and 100"):
        add(builder, 6, chunk(1, 3, bytes(60), uuid="a"))
    add(builder, 7, chunk(2, 3, bytes(60), uuid="a"))
    add(builder, 8, chunk(0, 2, bytes(50), uuid="b"))
    add(builder, 9, chunk(1, 2, bytes(50), uuid="b"))
    assert builder.row_count == 1


def test_types_are_exactly_those_of_the_schema_whatever_its_nullability() -> None:
    relaxed = t.StructType(
        [t.StructField("__messageProperties", t.MapType(t.StringType(), t.StringType(), True), True)]
    )
    from pyspark.sql.pandas.types import to_arrow_schema

    from connectors.spark.task.rows import RowBuilder

    schema = to_arrow_schema(relaxed, timezone="UTC")
    builder = RowBuilder(schema, TOPIC, -1, None)
    add(builder, 0, single(b"", properties=[{"key": "a", "value": "b"}]))
    assert next(builder.take()).schema == schema
    assert isinstance(schema, pa.Schema)


def test_a_marker_has_no_rows_even_in_a_topic_of_batches() -> None:
    marker = encode_entry(MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, marker_type=21), b"")
    assert rows_of([BATCH, marker, BATCH], EVERYTHING) == slow_rows([BATCH, marker, BATCH])
