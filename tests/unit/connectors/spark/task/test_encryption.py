"""Encrypted entries: an error that names the keys, rows as they are with what decrypting takes, or decrypted."""

import asyncio
import os
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any

import pulsar
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, OAEP
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from connectors.spark.task import encryption
from connectors.spark.task.encryption import Decryption
from connectors.spark.task.key_folder import KeyFolder
from magnetar_core.runtime.types import ConfigurationError, Corruption
from managed_ledger.messages import compress, parse_metadata
from managed_ledger.messages_pb2 import CompressionType
from tests.unit.broker.conftest import BrokerInMemory, broker_in_memory
from tests.unit.connectors.spark.entries import batch, batch_payload, message, single
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


# ------------------------------------------------------------------------------------------ decrypted


@cache
def private_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(65_537, 2_048)


def written(private: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
    return path


def folder_key(directory: Path) -> rsa.RSAPrivateKey:
    """A key; its private half is written into the folder as `private.pem`."""
    written(private_key(), directory / "private.pem")
    return private_key()


def encrypted(payload: bytes, name: str, private: rsa.RSAPrivateKey, **fields: Any) -> bytes:
    """An entry as clients encrypt it."""
    data_key, nonce = os.urandom(32), os.urandom(12)
    opaque = private.public_key().encrypt(data_key, OAEP(MGF1(SHA1()), SHA1(), None))
    sealed = AESGCM(data_key).encrypt(nonce, payload, None)
    return single(sealed, encryption_keys=[{"key": name, "value": opaque}], encryption_param=nonce, **fields)


async def test_what_the_official_client_encrypts_is_decrypted(world: SparkWorld, tmp_path: Path) -> None:
    private = written(private_key(), tmp_path / "keys" / "job.pem")
    public = tmp_path / "public.pem"
    public.write_bytes(private_key().public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    large = os.urandom(6_000_000)

    def send(broker: BrokerInMemory) -> None:
        client = pulsar.Client(broker.url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"))
        reader = pulsar.CryptoKeyReader(str(public), str(private))
        shown: dict[str, Any] = {"encryption_key": "job", "crypto_key_reader": reader}
        alone = client.create_producer("t", batching_enabled=False, **shown)
        alone.send(b"alone", partition_key="k", properties={"a": "1"})
        many = client.create_producer(
            "t", batching_enabled=True, compression_type=pulsar.CompressionType.LZ4, batching_max_publish_delay_ms=50,
            **shown,
        )  # fmt: skip
        for number in range(20):
            many.send_async(b"many %d" % number, None, partition_key=f"k{number}")
        many.flush()
        chunks = client.create_producer(
            "t", batching_enabled=False, chunking_enabled=True, compression_type=pulsar.CompressionType.LZ4, **shown
        )
        chunks.send(large)
        client.close()

    async with broker_in_memory() as broker:
        await broker.run(send, broker)
        stored = [bytes(entry) for of_ledger in broker.ledger("t")._entries.values() for entry in of_ledger]
    metadata = [parse_metadata(entry) for entry in stored]
    assert all(one.encryption_keys for one in metadata)
    assert sum(one.num_chunks_from_msg > 1 for one in metadata) >= 2
    await world.topic("t", await world.ledger(stored))
    rows = await world.rows("t", columns="value,__key,__batchIndex", **{"encryption.keys": str(private.parent)})
    assert [row["value"] for row in rows] == [b"alone", *(b"many %d" % number for number in range(20)), large]
    assert [row["__key"] for row in rows][:3] == [b"k", b"k0", b"k1"]
    assert [row["__batchIndex"] for row in rows] == [-1, *range(20), -1]


async def test_a_decrypted_entry_is_as_one_that_never_was_encrypted(world: SparkWorld, tmp_path: Path) -> None:
    written(private_key(), tmp_path / "keys" / "a.pem")
    written(private_key(1), tmp_path / "keys" / "b.pem")
    payload = batch_payload([message(b"1", partition_key="k"), message(b"2")])
    packed = compress(CompressionType.ZSTD, payload)
    entries = [
        encrypted(packed, "b", private_key(1), num_messages_in_batch=2, compression=CompressionType.ZSTD,
                  uncompressed_size=len(payload)),
        single(b"plain"),
        encrypted("ü".encode(), "a", private_key()),
    ]  # fmt: skip
    await world.topic("t", await world.ledger(entries))
    option = {"encryption.keys": str(tmp_path / "keys")}
    assert await world.values("t", valueFormat="string", **option) == ["1", "2", "plain", "ü"]
    assert await world.values("t", valueFormat="string", minPartitions="3", **option) == ["1", "2", "plain", "ü"]


async def test_what_does_not_decrypt_is_an_entry_that_cannot_be_understood(world: SparkWorld, tmp_path: Path) -> None:
    written(private_key(), tmp_path / "keys" / "a.pem")
    written(ec.generate_private_key(ec.SECP256R1()), tmp_path / "keys" / "curve.pem")
    (tmp_path / "private.pem").write_text("not in the folder")
    damaged = bytearray(encrypted(b"secret", "a", private_key()))
    damaged[-1] ^= 1
    metadata = parse_metadata(bytes(damaged))
    wrongs = {
        "does not decrypt with its data key": single(
            bytes(damaged[-22:]), encryption_keys=metadata.encryption_keys, encryption_param=metadata.encryption_param
        ),
        "with the keys x, and encryption.keys has a, curve": encrypted(b"x", "x", private_key()),
        "with the keys ../private, and encryption.keys has a, curve": encrypted(b"x", "../private", private_key()),
        "data key does not open with a": encrypted(b"x", "a", private_key(1)),
        "data key does not open with curve": encrypted(b"x", "curve", private_key()),
        "does not decrypt with": single(b"short", encryption_keys=metadata.encryption_keys, encryption_param=b""),
    }
    await world.topic("t", await world.ledger([*wrongs.values(), encrypted(b"good", "a", private_key())]))
    rows = await world.rows("t", mode="PERMISSIVE", **{"encryption.keys": str(tmp_path / "keys")})
    assert rows.pop()["value"] == b"good"
    for row, reason in zip(rows, wrongs, strict=True):
        assert reason in row["__corruptReason"]
    with pytest.raises(Corruption, match=r"entry \d+:0: it is encrypted, and does not decrypt .*mode=PERMISSIVE"):
        await world.rows("t", **{"encryption.keys": str(tmp_path / "keys")})


def test_opened_data_keys_are_kept_and_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(private_key(), tmp_path / "a.pem")
    monkeypatch.setattr(encryption, "DATA_KEYS_MAX", 2)
    opened: list[bytes] = []
    open_one = encryption._decrypted_key

    def counted(private: Any, encrypted_key: bytes) -> bytes:
        opened.append(encrypted_key)
        return open_one(private, encrypted_key)

    monkeypatch.setattr(encryption, "_decrypted_key", counted)
    decryption = Decryption(KeyFolder(str(tmp_path)))
    entries = [encrypted(b"%d" % number, "a", private_key()) for number in range(3)]
    for number in (0, 0, 1, 0, 2, 0):  # the third takes the place of the first
        metadata = parse_metadata(entries[number])
        sealed = entries[number][-17:]
        assert decryption.payload(metadata, sealed) == b"%d" % number
        assert not metadata.encryption_keys
    assert len(opened) == 4
