"""What values become, in a real session: pairs, messages of Protocol Buffers, bad values, encrypted ones."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pulsar.schema
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from google.protobuf import struct_pb2, timestamp_pb2
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from magnetar_core.runtime.types import MIB
from managed_ledger.messages import compress
from managed_ledger.messages_pb2 import ZSTD
from tests.spark.conftest import Load
from tests.support.processes import Standalone
from tests.support.raw_producer import RawProducer
from tests.unit.connectors.spark.values.test_key_values import pair

pytestmark = [pytest.mark.spark, pytest.mark.process]

PERSON = {"type": "record", "name": "Person", "fields": [{"name": "name", "type": "string"}]}


def send(client: pulsar.Client, topic: str, *values: Any, **options: Any) -> None:
    producer = client.create_producer(topic, **options)
    for value in values:
        producer.send(value)
    producer.close()


@pytest.fixture
def put_schema(standalone: Standalone) -> Callable[..., None]:
    """Registers a schema that the client has no class for."""

    def put(topic: str, kind: str, definition: Any, **properties: str) -> None:
        body = {"type": kind, "schema": json.dumps(definition), "properties": properties}
        request = urllib.request.Request(
            f"{standalone.admin_url}/admin/v2/schemas/public/default/{topic}/schema", json.dumps(body).encode(),
            {"Content-Type": "application/json"}, method="POST",
        )  # fmt: skip
        with urllib.request.urlopen(request) as answer:
            assert answer.status == 200

    return put


@pytest.mark.parametrize("encoding", ["INLINE", "SEPARATED"])
def test_pairs_are_columns_key_and_value(
    client: pulsar.Client, load: Load, put_schema: Callable[..., None], encoding: str
) -> None:
    topic = f"pairs-{encoding.lower()}"
    properties = {"key.schema.type": "STRING", "value.schema.type": "JSON", "kv.encoding.type": encoding}
    put_schema(topic, "KEY_VALUE", {"key": "", "value": PERSON}, **properties)
    producer = client.create_producer(topic)
    for name in ("ann", "bob"):
        value = json.dumps({"name": name}).encode()
        if encoding == "INLINE":
            producer.send(pair(b"k", value))
        else:
            producer.send(value, partition_key="k")
    producer.close()
    frame = load(topic, valueFormat="auto")
    assert frame.dtypes[:2] == [("key", "string"), ("value", "struct<name:string>")]
    assert [tuple(row) for row in frame.select("key", "value.name").collect()] == [("k", "ann"), ("k", "bob")]
    assert load(topic, valueFormat="keyvalue", columns="key").distinct().count() == 1


def test_messages_of_protocol_buffers_are_columns(client: pulsar.Client, load: Load) -> None:
    schema = pulsar.schema.ProtobufNativeSchema(timestamp_pb2.Timestamp)
    send(client, "protobuf", timestamp_pb2.Timestamp(seconds=5, nanos=7), timestamp_pb2.Timestamp(), schema=schema)
    frame = load("protobuf", valueFormat="auto")
    assert frame.dtypes[:2] == [("seconds", "bigint"), ("nanos", "int")]
    assert [tuple(row) for row in frame.select("seconds", "nanos").collect()] == [(5, 7), (0, 0)]
    recursive = pulsar.schema.ProtobufNativeSchema(struct_pb2.Struct)
    send(client, "recursive", struct_pb2.Struct(), schema=recursive)
    with pytest.raises(AnalysisException, match=r"contains itself, which no column does; use valueFormat=binary"):
        load("recursive", valueFormat="protobuf")


def test_a_bad_value_is_null_beside_its_bytes(client: pulsar.Client, load: Load) -> None:
    class Person(pulsar.schema.Record):  # type: ignore[misc]
        name = pulsar.schema.String()

    send(client, "bad", Person(name="ann"), schema=pulsar.schema.JsonSchema(Person))
    send(client, "bad", b"{", schema=pulsar.schema.BytesSchema())
    with pytest.raises(PythonException, match=r"/bad, entry \d+:\d+: message 0 is not what its schema says"):
        load("bad", valueFormat="auto").collect()
    found = load("bad", valueFormat="auto", mode="PERMISSIVE").select("name", "__corrupt").collect()
    assert [(row[0], row[1] and bytes(row[1])) for row in found] == [("ann", None), (None, b"{")]


def test_topics_with_different_schemas_are_one_frame(client: pulsar.Client, load: Load) -> None:
    send(client, "people", {"name": "ann"}, schema=pulsar.schema.AvroSchema(None, schema_definition=PERSON))
    send(client, "words", "word", schema=pulsar.schema.StringSchema())
    with pytest.raises(AnalysisException, match=r"/people: AVRO, version 0: name string; .*/words: STRING, version 0"):
        load("people,words", valueFormat="auto")
    frame = load("people,words", valueFormat="auto", unionSchemas="true")
    assert frame.dtypes[:2] == [("name", "string"), ("value", "string")]
    assert sorted((row[0] or "", row[1] or "") for row in frame.select("name", "value").collect()) == [
        ("", "word"), ("ann", ""),
    ]  # fmt: skip


def test_a_stream_has_the_same_options(
    client: pulsar.Client, spark: SparkSession, standalone: Standalone, tmp_path: Path
) -> None:
    schema = pulsar.schema.AvroSchema(None, schema_definition=PERSON)
    producer = client.create_producer("flow", schema=schema)
    producer.send({"name": "ann"}, partition_key="k")
    producer.close()
    send(client, "flow", b"\x09", schema=pulsar.schema.BytesSchema())
    send(client, "flow-words", "word", schema=pulsar.schema.StringSchema())
    frame = (
        spark.readStream.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
        .options(topics="flow,flow-words", valueFormat="auto", unionSchemas="true", mode="PERMISSIVE",
                 keyFormat="string", startingOffsets="earliest").load()
    )  # fmt: skip
    query = (
        frame.select("name", "value", "__corrupt", "__key").writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )  # fmt: skip
    assert query.awaitTermination(240)
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    found = {(row[0], row[1], row[2] and bytes(row[2]), row[3]) for row in rows}
    assert found == {("ann", None, None, "k"), (None, None, b"\x09", None), (None, "word", None, None)}


def test_a_stream_ends_before_it_leaves_new_fields_out_and_goes_on_with_them(
    client: pulsar.Client, spark: SparkSession, standalone: Standalone, tmp_path: Path
) -> None:
    """But not one with a schema of its own, which has chosen what it reads."""
    later = {**PERSON, "fields": [*PERSON["fields"], {"name": "age", "type": ["null", "int"], "default": None}]}
    versions = [pulsar.schema.AvroSchema(None, schema_definition=definition) for definition in (PERSON, later)]
    send(client, "grown", {"name": "ann"}, schema=versions[0])

    def follow(*schema: str) -> DataFrame:
        reader = spark.readStream.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
        reader = reader.options(topic="grown", valueFormat="auto", startingOffsets="earliest")
        return (reader.schema(*schema) if schema else reader).load()

    def write(stream: DataFrame, name: str, **trigger: Any) -> StreamingQuery:
        writer = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{name}-checkpoint"))
        return writer.trigger(**trigger).start(str(tmp_path / name))

    every = write(follow(), "every", processingTime="0 seconds")
    own = write(follow("name string"), "own", processingTime="0 seconds")
    for query in (every, own):
        query.processAllAvailable()
    send(client, "grown", {"name": "bob", "age": 7}, schema=versions[1])
    with pytest.raises(
        StreamingQueryException, match=r"does not read them \(version 1 of its schema\): age; start it again"
    ):
        every.awaitTermination(240)
    own.processAllAvailable()
    own.stop()
    assert write(follow(), "every", availableNow=True).awaitTermination(240)
    rows = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "every")).select("name", "age").collect()
    assert sorted(map(tuple, rows)) == [("ann", None), ("bob", 7)]
    assert sorted(row[0] for row in spark.read.parquet(str(tmp_path / "own")).collect()) == ["ann", "bob"]


HOSTILE = {
    "type": "record",
    "name": "Hostile",
    "fields": [
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Empty", "fields": []}}},
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}},
    ],
}
GOOD = b"\0\x02\x64"
DECIMAL = 200_000


def test_what_a_producer_can_do_to_a_query_is_bounded_and_can_be_passed_over(
    spark: SparkSession,
    standalone: Standalone,
    client: pulsar.Client,
    load: Load,
    put_schema: Callable[..., None],
    tmp_path: Path,
) -> None:
    """Small entries that stand for much. A batch and a stream tell of each of them, and go on."""
    put_schema("hostile", "AVRO", HOSTILE)
    client.create_producer("hostile").close()  # looks the topic up, so that the broker serves it
    host, _, port = standalone.service_url.removeprefix("pulsar://").partition(":")
    empty = b"\0\0\0\x02\x18\0"
    endless = (100_001).to_bytes(4, "big") + b"\x18" + b"\xff" * 100_000
    sent: list[tuple[bytes, dict[str, Any]]] = [
        (GOOD, {}),
        (b"\x80\xd0\xac\xf3\x0e\0\x02\x64", {}),  # 2e9 items
        (b"\0" + b"\x80\xb5\x18" + b"\x7f" * DECIMAL, {}),
        (endless, {"num_messages_in_batch": 1}),
        (b"no zlib", {"compression": 2, "uncompressed_size": 100}),
        (empty * 20_000, {"num_messages_in_batch": 20_000, "producer_name": "n" * 100_000}),
        (compress(ZSTD, bytes(64 * MIB)), {"compression": ZSTD, "uncompressed_size": 64 * MIB}),
        (GOOD, {}),
    ]
    with RawProducer((host, int(port)), "persistent://public/default/hostile", "eve") as producer:
        for number, (payload, fields) in enumerate(sent):
            producer.send(number, payload, **fields)
            answer = producer.next()
            assert answer is not None
            assert answer.HasField("send_receipt")
    with pytest.raises(PythonException, match=r"/hostile, entry \d+:\d: .* To go on set mode=PERMISSIVE"):
        load("hostile", valueFormat="avro").collect()
    columns = "amount,__producerName,__entryId,__corruptReason"
    rows = load("hostile", valueFormat="avro", mode="PERMISSIVE", columns=columns).collect()
    reasons = ("cells of memory", "200000 bytes, and 64", "message 0 of its batch of 1", "cannot be unpacked",
               "each row of its 20000 messages", None)  # fmt: skip
    assert [row["__entryId"] for row in rows] == list(range(8))
    assert [row["amount"] and str(row["amount"]) for row in (rows[0], rows[-1])] == ["1.00", "1.00"]
    for row, reason in zip(rows[1:], reasons, strict=False):
        assert reason is None or reason in row["__corruptReason"]
    stream = spark.readStream.format("magnetar").option("metadata.url", f"rocksdb:{standalone.data / 'metadata'}")
    frame = stream.options(
        topic="hostile",
        valueFormat="avro",
        mode="DROPMALFORMED",
        startingOffsets="earliest",
        columns="amount,__producerName",
    ).load()
    query = (
        frame.select("amount", "__producerName").writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )  # fmt: skip
    assert query.awaitTermination(240)
    assert {row["__producerName"] for row in spark.read.parquet(str(tmp_path / "rows")).collect()} == {"eve"}


@pytest.fixture
def reader_of_keys(tmp_path: Path) -> tuple[pulsar.CryptoKeyReader, rsa.RSAPrivateKey]:
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public_file, private_file = tmp_path / "public.pem", tmp_path / "private.pem"
    public_file.write_bytes(
        private.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    private_file.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    return pulsar.CryptoKeyReader(str(public_file), str(private_file)), private


def test_what_a_client_encrypted_can_be_decrypted_from_the_columns(
    client: pulsar.Client, load: Load, reader_of_keys: tuple[pulsar.CryptoKeyReader, rsa.RSAPrivateKey]
) -> None:
    keys, private = reader_of_keys
    send(
        client, "secret", b"attack at dawn", crypto_key_reader=keys, encryption_key="generals", batching_enabled=False
    )  # fmt: skip
    with pytest.raises(PythonException, match=r"/secret, entry \d+:0: it is encrypted, with the keys generals"):
        load("secret").collect()
    (row,) = load("secret", encrypted="raw").collect()
    assert b"attack" not in bytes(row["value"])
    wrapped = bytes(row["__encryptionKeys"]["generals"])
    oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
    opened = AESGCM(private.decrypt(wrapped, oaep)).decrypt(bytes(row["__encryptionParam"]), bytes(row["value"]), None)
    assert opened == b"attack at dawn"
    assert (row["__encryptionCompression"], row["__encryptionBatchSize"]) == ("NONE", None)
