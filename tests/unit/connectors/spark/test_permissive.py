"""mode: values that cannot be decoded and entries that cannot be understood are nulls beside their bytes, and no row is
lost (PERMISSIVE); or they are no rows, and counted (DROPMALFORMED)."""

import asyncio
import json
import logging
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from connectors.spark.source import MagnetarSource
from connectors.spark.task import reader
from connectors.spark.task.entries import BadEntry
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.errors import TransactionalTopic
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import ZLIB
from managed_ledger.schemas.compatibility import Schema, SchemaType
from managed_ledger.schemas.stored import version_bytes
from tests.unit.connectors.spark.entries import ALL_METADATA, batch, message, metadata_of, single
from tests.unit.connectors.spark.task.test_rows import chunk
from tests.unit.connectors.spark.test_reading import record
from tests.unit.connectors.spark.values.test_key_values import key_value, pair
from tests.unit.connectors.spark.world import SparkWorld, reader_of, spark_world

RECORD = record(("a", "int"), ("b", "string"))
GOOD = b"\x02\x02x"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def permissive(world: SparkWorld, schema: Schema, *entries: bytes, **options: str) -> list[dict[str, Any]]:
    """The columns of the values, without those of the messages."""
    await world.topic("t", await world.ledger(entries))
    await world.schema("t", schema)
    rows = await world.rows("t", **{"valueFormat": "auto", "mode": "permissive", **options})
    return [{name: one for name, one in row.items() if name == "__corrupt" or name[:2] != "__"} for row in rows]


async def test_bad_avro_is_null_beside_its_bytes_and_counted(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema(SchemaType.AVRO, RECORD)
    entry = batch(message(GOOD), message(b"\x02\x7f"), message(b"", null_value=True), message(b"", compacted_out=True))
    with caplog.at_level(logging.WARNING):
        found = await permissive(world, schema, entry, single(GOOD, schema_version=version_bytes(9)), single(GOOD))
    assert found == [
        {"a": 1, "b": "x", "__corrupt": None},
        {"a": None, "b": None, "__corrupt": b"\x02\x7f"},
        {"a": None, "b": None, "__corrupt": None},
        {"a": None, "b": None, "__corrupt": GOOD},
        {"a": 1, "b": "x", "__corrupt": None},
    ]
    assert "persistent://public/default/t: 2 values could not be decoded" in caplog.text


async def test_without_bad_values_nothing_is_corrupt(world: SparkWorld, caplog: pytest.LogCaptureFixture) -> None:
    assert await permissive(world, Schema(SchemaType.AVRO, RECORD), single(GOOD)) == [
        {"a": 1, "b": "x", "__corrupt": None}
    ]
    assert "could not be decoded" not in caplog.text


async def test_json_whose_members_have_other_types_is_corrupt_as_a_whole(world: SparkWorld) -> None:
    texts = (b'{"a": 1, "b": "x"}', b'{"a": "one", "b": "x"}', b"{", b"[1]")
    found = await permissive(world, Schema(SchemaType.JSON, RECORD), *map(single, texts))
    assert [(row["a"], row["b"], row["__corrupt"]) for row in found] == [
        (1, "x", None), *((None, None, text) for text in texts[1:])
    ]  # fmt: skip


async def test_numbers_text_and_pairs_have_the_column_too(world: SparkWorld) -> None:
    found = await permissive(world, Schema(SchemaType.INT32, b""), single(struct.pack(">i", 5)), single(b"12"))
    assert found == [{"value": 5, "__corrupt": None}, {"value": None, "__corrupt": b"12"}]
    found = await permissive(
        world, Schema(SchemaType.STRING, b""), single("ü".encode()), single(b"\xff"), single(b"", null_value=True),
        valueFormat="string",
    )  # fmt: skip
    assert [(row["value"], row["__corrupt"]) for row in found] == [("ü", None), (None, b"\xff"), (None, None)]


async def test_of_a_bad_pair_both_halves_are_null(world: SparkWorld) -> None:
    bad = pair(b"k", b"\xff")
    found = await permissive(world, key_value("STRING", "STRING").schema, single(pair(b"k", b"v")), single(bad))
    assert found == [{"key": "k", "value": "v", "__corrupt": None}, {"key": None, "value": None, "__corrupt": bad}]


async def test_a_key_apart_that_is_not_what_it_says_makes_its_row_corrupt(world: SparkWorld) -> None:
    schema = key_value("INT32", "STRING", "SEPARATED").schema
    good = single(b"v", partition_key="AAAABQ==", partition_key_b64_encoded=True)
    bad = [
        single(b"w", partition_key="AAAA", partition_key_b64_encoded=True),
        single(b"x", partition_key="%", partition_key_b64_encoded=True),
    ]
    found = await permissive(world, schema, good, *bad, columns="key,value,__corrupt")
    assert [(row["key"], row["value"], row["__corrupt"]) for row in found] == [
        (5, "v", None), (None, None, b"w"), (None, None, b"x"),
    ]  # fmt: skip


async def test_the_column_exists_only_where_values_are_decoded_permissively(world: SparkWorld) -> None:
    schema = Schema(SchemaType.AVRO, RECORD)
    assert await permissive(world, schema, single(b"\xff"), columns="__corrupt") == [{"__corrupt": b"\xff"}]
    assert await permissive(world, schema, single(b"\xff"), columns="a") == [{"a": None}]
    assert await world.rows("t", columns="__entryId", valueFormat="auto", mode="PERMISSIVE") == [{"__entryId": 0}]
    assert (await world.rows("t", mode="PERMISSIVE", columns="value,__corrupt,__corruptReason"))[0] == {
        "value": b"\xff", "__corrupt": None, "__corruptReason": None,
    }  # fmt: skip
    assert "__corrupt" not in (await world.rows("t", mode="DROPMALFORMED"))[0]
    with pytest.raises(ConfigurationError, match="columns __corrupt do not exist"):
        await world.rows("t", valueFormat="auto", columns="__corrupt")
    with pytest.raises(Corruption, match="message 0 is not what its schema says"):
        await world.rows("t", valueFormat="auto", mode="failfast")
    with pytest.raises(ConfigurationError, match="mode=IGNORE: expected FAILFAST, PERMISSIVE or DROPMALFORMED"):
        await asyncio.to_thread(reader_of, world.options("t", mode="IGNORE"))


async def test_keys_are_text_if_asked_for(world: SparkWorld) -> None:
    entries = [
        single(b"", partition_key="ü"),
        single(b""),
        single(b"", partition_key="/w==", partition_key_b64_encoded=True),
    ]
    await world.topic("t", await world.ledger(entries))

    async def keys(**options: str) -> list[Any]:
        return [row["__key"] for row in await world.rows("t", columns="__key", **options)]

    assert await keys() == await keys(keyFormat="binary") == ["ü".encode(), None, b"\xff"]
    assert await keys(keyFormat="string", mode="PERMISSIVE") == ["ü", None, None]
    with pytest.raises(Corruption, match=r"/t, entry \d+:2: its key is not text in UTF-8 .*keyFormat=binary"):
        await keys(keyFormat="string")
    assert await keys(keyFormat="string", endingOffsets=await end_at(world, 2)) == ["ü", None]
    with pytest.raises(ConfigurationError, match="keyFormat=json: expected binary or string"):
        await keys(keyFormat="json")


async def end_at(world: SparkWorld, entry_id: int) -> str:
    ledger_id = (await world.rows("t", columns="__ledgerId"))[0]["__ledgerId"]
    return json.dumps({"t": {"0": f"{ledger_id}:{entry_id}"}})


# ----------------------------------------------------------------------------------------- entries


def compressed(size: int, payload: bytes = b"x" * 100, **fields: Any) -> bytes:
    return encode_entry(metadata_of(compression=ZLIB, uncompressed_size=size, **fields), compress(ZLIB, payload))


WHOLE = single(b"whole")

# An entry that cannot be understood, with what is wrong.
BAD = {
    "hold text that is not UTF-8": b"\0\0\0\x07\x0a\x01\xff\x10\x07\x18\x01x",
    "its checksum is not": WHOLE[:-1] + b"X",
    "ends inside its headers": b"\x0e\x01",
    "leave an entry of": b"\0\0\xff\xff" + b"x",
    "its metadata lack a required field": bytes(4) + b"x",
    "payload decompressed to": compressed(99),
    "cannot be unpacked": encode_entry(metadata_of(compression=ZLIB, uncompressed_size=9), b"no zlib"),
    "it unpacks to 1000000000 bytes": compressed(10**9),
    "a batch has at most 1000000 messages": encode_entry(metadata_of(num_messages_in_batch=2_000_000), b"x"),
    "message 1 of its batch of 2 cannot be decoded": encode_entry(
        metadata_of(num_messages_in_batch=2), b"\0\0\0\x02\x18\x01a" + b"\0\0\0\x02" + b"\xff" * 20
    ),
    "message 0 of its batch of 1 cannot be decoded": encode_entry(
        metadata_of(num_messages_in_batch=1), b"\0\0\x04\0\x18" + b"\xff" * 1_100
    ),
    "it is encrypted, with the keys": single(b"x", encryption_keys=[{"key": "k", "value": b"v"}]),
    "column __eventTime: a time is beyond": single(b"x", event_time=2**62),
    "column __key": single(b"x", partition_key="A", partition_key_b64_encoded=True),
}
GOOD_ROWS = [b"a", b"b", b"c"]


def among(bad: bytes) -> list[bytes]:
    """Good entries and bad ones, so that some of both stand side by side."""
    return [single(b"a"), bad, batch(message(b"b")), bad, bad, single(b"c")]


@pytest.mark.parametrize("reason", BAD)
async def test_an_entry_that_cannot_be_understood_is_what_the_mode_says(
    world: SparkWorld, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    bad = BAD[reason]
    handle = await world.ledger(among(bad))
    await world.topic("t", handle)
    with pytest.raises(BadEntry, match=rf"/t, entry {handle.ledger_id}:1: .*{reason}.*\. To go on set mode=PERMISS"):
        await world.rows("t")
    rows = await world.rows("t", mode="PERMISSIVE", columns=",".join(("value", "__corrupt", "__corruptReason",
                                                                      *ALL_METADATA)))  # fmt: skip
    assert [row["value"] for row in rows] == [b"a", None, b"b", None, None, b"c"]
    assert [row["__corrupt"] for row in rows] == [None, bad, None, bad, bad, None]
    assert [row["__corruptReason"] is None for row in rows] == [True, False, True, False, False, True]
    assert reason in rows[1]["__corruptReason"]
    assert [(row["__ledgerId"], row["__entryId"]) for row in rows] == [(handle.ledger_id, n) for n in range(6)]
    assert {row["__topic"] for row in rows} == {"persistent://public/default/t"}
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        found = await world.rows("t", mode="dropmalformed")
    assert [row["value"] for row in found] == GOOD_ROWS
    assert "__corruptReason" not in found[0]
    assert f"3 entries could not be understood, and are left out; the first is {handle.ledger_id}:1: " in caplog.text


@pytest.mark.parametrize("mode", ["FAILFAST", "PERMISSIVE", "DROPMALFORMED"])
async def test_a_message_of_a_transaction_ends_the_read_in_each_mode(world: SparkWorld, mode: str) -> None:
    """It may be aborted, or be one that must not be left out: neither a row nor no row is right."""
    handle = await world.ledger([single(b"a"), single(b"x", txnid_most_bits=1, txnid_least_bits=7)])
    await world.topic("t", handle)
    with pytest.raises(TransactionalTopic, match=rf"entry {handle.ledger_id}:1: it belongs to the transaction 1:7"):
        await world.rows("t", mode=mode)


async def test_values_that_cannot_be_decoded_can_be_left_out(
    world: SparkWorld, caplog: pytest.LogCaptureFixture
) -> None:
    schema = Schema(SchemaType.AVRO, RECORD)
    entries = [batch(message(GOOD), message(b"\x02\x7f"), message(b"", null_value=True)), single(b"\x02\x7f")]
    found = await permissive(world, schema, *entries, mode="DROPMALFORMED")
    assert found == [{"a": 1, "b": "x"}, {"a": None, "b": None}]
    assert "2 values could not be decoded, and are left out" in caplog.text
    await world.topic("u", await world.ledger([single(b"x"), single(b"\xff")]))
    assert await world.values("u", valueFormat="string", mode="DROPMALFORMED") == ["x"]
    assert len(await world.rows("u", valueFormat="string", mode="DROPMALFORMED", columns="__entryId")) == 2


async def test_what_is_wrong_stands_beside_a_value(world: SparkWorld) -> None:
    schema = Schema(SchemaType.JSON, RECORD)
    await permissive(world, schema, batch(message(b"{"), message(b'{"a": 1, "b": 5}')), single(b'{"a": 1, "b": "x"}'))
    rows = await world.rows("t", valueFormat="auto", mode="PERMISSIVE", columns="a,b,__corruptReason")
    assert [row["__corruptReason"] and row["__corruptReason"][:40] for row in rows] == [
        "message 0 is not what its schema says: J", "b is 5, which is no string", None,
    ]  # fmt: skip


async def test_columns_of_which_bad_entries_have_nothing_may_be_null_only_then(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([b"\x0e\x01"]))

    def nullable(**more: str) -> set[str]:
        fields = MagnetarSource(world.options("t", columns=",".join(ALL_METADATA), **more)).schema().fields
        return {field.name for field in fields if field.nullable}

    usual = {"__key", "__eventTime", "__index", "__schemaVersion", "__schemaId", "__orderingKey", "__deliverAt"}
    usual |= {"__replicatedFrom"}
    assert await asyncio.to_thread(nullable) == usual
    assert await asyncio.to_thread(lambda: nullable(mode="DROPMALFORMED")) == usual
    unknown = {"__publishTime", "__messageProperties", "__sequenceId", "__producerName"}
    assert await asyncio.to_thread(lambda: nullable(mode="PERMISSIVE")) == usual | unknown
    (row,) = await world.rows("t", mode="PERMISSIVE", columns=",".join(ALL_METADATA))
    assert {name for name, one in row.items() if one is None} == usual | unknown


async def test_of_a_bad_entry_what_its_metadata_say_is_known_and_counts(world: SparkWorld) -> None:
    bad = compressed(99, publish_time=1_000, producer_name="eve", sequence_id=5)
    await world.topic("t", await world.ledger([bad]))
    columns = {"columns": "__publishTime,__producerName,__sequenceId", "mode": "PERMISSIVE"}
    (row,) = await world.rows("t", **columns)
    assert (row["__publishTime"].timestamp(), row["__producerName"], row["__sequenceId"]) == (1.0, "eve", 5)
    assert await world.rows("t", startingTimestamp="10000000", publishTimeSlack="24h", **columns) == []
    assert await world.rows("t", startingTimestamp="10000000", publishTimeSlack="24h") == []


async def test_what_nobody_gives_is_lost_data_whatever_the_mode(world: SparkWorld) -> None:
    handle = await world.ledger([single(b"a"), single(b"b")])
    await world.topic("t", handle)
    for bookie in world.cluster.bookies.values():
        stored = bookie.ledgers[handle.ledger_id]
        stored[1] = stored[1][:-1] + b"?"
    for mode in ("FAILFAST", "PERMISSIVE", "DROPMALFORMED"):
        with pytest.raises(Corruption, match="t: entry") as raised:
            await world.rows("t", mode=mode)
        assert not isinstance(raised.value, BadEntry)


async def test_a_bad_chunk_is_a_row_and_its_message_is_left_out(world: SparkWorld) -> None:
    broken = chunk(1)[:-1] + b"?"
    await world.topic("t", await world.ledger([single(b"a"), chunk(0), broken, chunk(2), single(b"b")]))
    for tasks in ("1", "2", "3", "4", "5"):
        rows = await world.rows("t", mode="PERMISSIVE", minPartitions=tasks)
        assert [row["value"] for row in rows] == [b"a", None, b"b"]
        assert await world.values("t", mode="DROPMALFORMED", minPartitions=tasks) == [b"a", b"b"]
        with pytest.raises(BadEntry, match=r"entry \d+:2: its checksum is not"):
            await world.rows("t", minPartitions=tasks)


async def test_a_bad_entry_before_the_read_hides_first_chunks_and_nothing_else(world: SparkWorld) -> None:
    bad = WHOLE[:-1] + b"X"
    handle = await world.ledger([bad, chunk(0, 2), bad, chunk(1, 2), chunk(1, 2, uuid="other"), single(b"b")])
    await world.topic("t", handle)
    behind = [json.dumps({"t": {"0": f"{handle.ledger_id}:{number}"}}) for number in (3, 5)]
    whole = b"part 0 part 1 "
    for mode in ("PERMISSIVE", "DROPMALFORMED"):
        assert await world.values("t", startingOffsets=behind[0], mode=mode) == [whole, b"b"]
    assert await world.values("t", startingOffsets=behind[1]) == [b"b"]
    with pytest.raises(BadEntry, match=r"entry \d+:0: its checksum"):  # the first chunk of *other* may be there
        await world.values("t", startingOffsets=behind[0])


async def test_an_entry_is_looked_at_once_however_many_messages_lack_their_first_chunks(
    world: SparkWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "LOOK_BACK_STEP", 10)
    heads = [chunk(0, 2, uuid=f"p-{number}") for number in range(40)]
    lone = [chunk(1, 2, uuid=f"none-{number}") for number in range(40)]
    tails = [chunk(1, 2, uuid=f"p-{number}") for number in range(40)]
    handle = await world.ledger([*heads, *lone, *tails])
    await world.topic("t", handle)
    asked: list[tuple[int, int]] = []
    read_some = reader._read_some

    async def counted(handle: Any, first: int, last: int) -> Any:
        asked.append((first, last))
        return await read_some(handle, first, last)

    monkeypatch.setattr(reader, "_read_some", counted)
    start = json.dumps({"t": {"0": f"{handle.ledger_id}:40"}})
    assert await world.values("t", startingOffsets=start) == [b"part 0 part 1 "] * 40
    before = [last - first + 1 for first, last in asked if last < 40]
    assert sum(before) == 40 + 40, "each once in search of first chunks, and once as the chunk that was found"


async def test_entries_ahead_are_not_all_unpacked(world: SparkWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "UNPACKED_BYTES_MAX", 250)
    await world.topic("t", await world.ledger([compressed(100)] * 6))
    packed: list[bool] = []
    opened = reader._Task._opened

    def noted(*of: Any) -> Any:
        found = opened(*of)
        packed.extend(one.is_packed for one in found if not isinstance(one, BadEntry))
        return found

    monkeypatch.setattr(reader._Task, "_opened", noted)
    assert await world.values("t") == [b"x" * 100] * 6
    assert packed == [False, False, True, True, True, True]
