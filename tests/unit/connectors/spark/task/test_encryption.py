"""Encrypted entries: an error that names the keys, or rows as they are with what decrypting takes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.messages_pb2 import CompressionType
from tests.unit.connectors.spark.entries import batch, message, single
from tests.unit.connectors.spark.world import SparkWorld, reader_of, spark_world

KEYS = [{"key": "b", "value": b"\x02"}, {"key": "a", "value": b"\x01"}]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SparkWorld]:
    async with spark_world(tmp_path) as made:
        yield made


async def test_an_encrypted_entry_is_an_error_that_names_its_keys_and_the_way_out(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([single(b"plain"), single(b"\xff\xfe", encryption_keys=KEYS)]))
    complaint = r"/t, entry \d+:1: it is encrypted, with the keys a, b, .*encrypted=raw and valueFormat=binary"
    for options in ({}, {"encrypted": "error"}, {"valueFormat": "string"}):
        with pytest.raises(Corruption, match=complaint):
            await world.rows("t", **options)


async def test_raw_passes_the_bytes_with_what_decrypting_takes(world: SparkWorld) -> None:
    encrypted = single(
        b"\xff\xfe", encryption_keys=KEYS, encryption_param=b"nonce", encryption_algo="AES", partition_key="k",
        compression=CompressionType.ZSTD, uncompressed_size=900, properties=[{"key": "p", "value": "v"}],
    )  # fmt: skip
    await world.topic("t", await world.ledger([single(b"plain"), encrypted]))
    first, second = await world.rows("t", encrypted="raw")
    assert first["value"] == b"plain"
    assert {name: one for name, one in first.items() if name.startswith("__encryption")} == dict.fromkeys(
        name for name in second if name.startswith("__encryption")
    )
    assert {name: one for name, one in second.items() if name.startswith("__encryption")} == {
        "__encryptionKeys": second["__encryptionKeys"],
        "__encryptionParam": b"nonce", "__encryptionAlgorithm": "AES", "__encryptionCompression": "ZSTD",
        "__encryptionUncompressedSize": 900, "__encryptionBatchSize": None,
    }  # fmt: skip
    assert dict(second["__encryptionKeys"]) == {"a": b"\x01", "b": b"\x02"}
    assert (second["value"], second["__key"], dict(second["__messageProperties"])) == (b"\xff\xfe", b"k", {"p": "v"})


async def test_an_encrypted_batch_is_one_row(world: SparkWorld) -> None:
    entries = [
        single(b"opaque", num_messages_in_batch=5_000, encryption_keys=KEYS),
        batch(message(b"1"), message(b"2")),
    ]
    await world.topic("t", await world.ledger(entries))
    rows = await world.rows("t", encrypted="raw", columns="value,__batchIndex,__encryptionBatchSize")
    assert [tuple(row.values()) for row in rows] == [(b"opaque", -1, 5_000), (b"1", 0, None), (b"2", 1, None)]


async def test_a_chunk_of_an_encrypted_message_is_refused(world: SparkWorld) -> None:
    chunk = single(b"x", encryption_keys=KEYS, uuid="p-1", chunk_id=0, num_chunks_from_msg=2, total_chunk_msg_size=2)
    await world.topic("t", await world.ledger([chunk]))
    with pytest.raises(Corruption, match=r"entry \d+:0: it is a chunk of a message that is encrypted .* keys a, b;"):
        await world.rows("t", encrypted="raw")


async def test_raw_needs_binary_and_its_columns_need_raw(world: SparkWorld) -> None:
    await world.topic("t", await world.ledger([single(b"x")]))
    for options, complaint in (
        ({"encrypted": "raw", "valueFormat": "avro"}, "which valueFormat=avro cannot decode; set valueFormat=binary"),
        ({"encrypted": "decrypt"}, "encrypted=decrypt: expected error or raw"),
        ({"columns": "__encryptionKeys"}, "columns __encryptionKeys do not exist"),
    ):
        with pytest.raises(ConfigurationError, match=complaint):
            await asyncio.to_thread(reader_of, world.options("t", **options))
