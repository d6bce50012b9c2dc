"""Stored entries: the envelope, and what Pulsar put into it (tests/vectors/entries)."""

import hashlib
import struct
import zlib
from collections.abc import Iterator
from typing import Any, Final

import pytest
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message as Protobuf

from broker.topic.compaction import latest_keys as compaction
from broker.topic.compaction.latest_keys import LastOfKeys
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.bookkeeper.wire.entry import DigestMismatch, DigestType, EntryCodec, StoredEntry
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.ack_ranges import AckRanges
from managed_ledger.compacted import entry as compacted_entry
from managed_ledger.messages import (
    Message,
    broker_metadata_of,
    checksum_ok,
    encode_entry,
    is_batch,
    iterate_batch,
    messages_of,
    metadata_of,
    split_entry,
    without_broker_metadata,
)
from managed_ledger.messages_pb2 import MessageIdData
from managed_ledger.position import Position
from managed_ledger.records.pulsar_records import (
    batches_in,
    decode_cursor_info,
    decode_position_info,
    position_info,
    ranges_in,
)
from managed_ledger.records.records_pb2 import SchemaEntry, SchemaInfo, SchemaLocator
from managed_ledger.schemas.compatibility import SchemaType
from tests.support.golden import DECODES, ENCODES, Report, b64, golden, load, names
from tests.support.steps import done

PASSWORD: Final = b""  # of every ledger of that broker

# What recorded the vectors could not read the stream without an end that Java makes; it wrote the same as the twin.
ZLIB: Final = "entries/plain-public-default-comp-ZLIB.json"
TWIN: Final = "entries/plain-public-default-comp-LZ4.json"


def plain(message: Protobuf) -> dict[str, Any]:
    found: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return found


def opened(entry: dict[str, Any], ledger: dict[str, Any]) -> StoredEntry:
    """The entry, after its envelope was checked against the record and made again."""
    raw = b64(entry["raw"])
    expected = entry["envelope"]
    digest_bytes = len(expected["digest"]) // 2
    # The compacted ledger's record says CRC32, its entries have the 8 bytes of that digest.
    codec = EntryCodec(DigestType[ledger["metadata"]["digestType"]], PASSWORD)
    assert codec.digest_bytes == digest_bytes
    stored = codec.open(raw, int(ledger["ledgerId"]), entry["entry"])
    assert (stored.ledger_id, stored.entry_id) == (expected["ledgerId"], expected["entryId"])
    assert (stored.last_add_confirmed, stored.length) == (expected["lac"], expected["length"])
    assert len(stored.payload) == expected["payloadBytes"]
    assert raw[32 : 32 + digest_bytes].hex() == expected["digest"]
    head = codec.head(stored.ledger_id, stored.entry_id, stored.last_add_confirmed, stored.length, stored.payload)
    assert head + bytes(stored.payload) == raw
    damaged = bytearray(raw)
    damaged[-1] ^= 1
    with pytest.raises(DigestMismatch):
        codec.open(damaged, int(ledger["ledgerId"]), entry["entry"])
    return stored


def content(payload: memoryview, told: dict[str, Any]) -> None:
    if "text" in told:
        assert bytes(payload).decode() == told["text"]
    elif "hex" in told:
        assert bytes(payload).hex() == told["hex"]
    else:
        assert len(payload) == told["length"]
        assert f"{crc32c(payload):08x}" == told.get("crc32c", f"{crc32c(payload):08x}")


def check_message(data: memoryview, decoded: dict[str, Any]) -> None:
    """Compare an entry of a topic with its expected content."""
    parts = split_entry(data)
    broker = broker_metadata_of(parts)
    assert (None if broker is None else plain(broker)) == decoded.get("brokerEntryMetadata")
    assert (None if parts.checksum is None else f"{parts.checksum:08x}") == decoded.get("checksum")
    assert checksum_ok(data) is decoded.get("checksumOk")
    if decoded.get("checksumOk") is False:
        with pytest.raises(Corruption):
            messages_of(data)
        assert plain(metadata_of(parts)) == decoded["metadata"]
        return
    metadata, found = messages_of(data)
    messages = list(found)
    assert plain(metadata) == decoded["metadata"]
    # Made anew: the same bytes, since the fields stand in the order of their numbers. Broker metadata is not ours here.
    own = bytes(without_broker_metadata(data))
    assert encode_entry(metadata, parts.payload)[0 if parts.checksum is not None else 6 :] == own
    if "batch" in decoded:
        assert is_batch(metadata)
        assert [plain(message.single) for message in messages if message.single is not None] == [
            item["single"] for item in decoded["batch"]
        ]
        for message, item in zip(messages, decoded["batch"], strict=True):
            content(message.payload, item["payload"])
        if not metadata.compression:
            assert rebuilt(iterate_batch(parts.payload, metadata.num_messages_in_batch)) == bytes(parts.payload)
    else:
        (message,) = messages
        content(message.payload, decoded["payload" if "payload" in decoded else "chunkPayload"])


def rebuilt(batch: Iterator[Message]) -> bytes:
    parts = []
    for message in batch:
        assert message.single is not None
        single = message.single.SerializeToString()
        parts += [struct.pack(">I", len(single)), single, bytes(message.payload)]
    return b"".join(parts)


def twin_of(entry: dict[str, Any], data: memoryview) -> dict[str, Any]:
    """What the entry of the ZLIB topic must hold: its own metadata, the payload of the same entry under LZ4."""
    twin = load(TWIN)["dataLedgers"][0]["entries"][entry["entry"]]["decoded"]
    parts = split_entry(data)
    metadata = plain(messages_of(data)[0])
    own = {
        "producer_name": twin["metadata"]["producer_name"].replace("LZ4", "ZLIB"),
        "compression": "ZLIB",
        "publish_time": metadata["publish_time"],
    }
    assert zlib.decompressobj().decompress(parts.payload)
    return {**twin, "checksum": f"{parts.checksum:08x}", "metadata": {**twin["metadata"], **own}}


@golden(
    "entries/*-public-default-*.json",
    how={DECODES, ENCODES},
    compared="envelope and digest (made again to the same bytes, a flipped bit refused), broker metadata, checksum, "
    "message metadata, batches, decompressed payloads, compacted ledgers; cursor ledgers and their records",
)
def test_entries_of_topics_and_cursors(report: Report) -> None:
    vector = load(report.vector)
    for ledger in vector["dataLedgers"]:
        with report.row(ledger["ledgerId"]):
            check_ledger_record(ledger)
        for entry in ledger["entries"]:
            with report.row(f"{ledger['ledgerId']}:{entry['entry']}"):
                stored = opened(entry, ledger)
                decoded = twin_of(entry, stored.payload) if report.vector == ZLIB else entry["decoded"]
                check_message(stored.payload, decoded)
    for name, cursor in vector["cursors"].items():
        with report.row(f"cursor {name}"):
            check_cursor_record(vector, name, cursor["znode"])
        ledger = cursor["ledger"] or {"entries": []}
        for entry in ledger["entries"]:
            with report.row(f"cursor {name} {ledger['ledgerId']}:{entry['entry']}"):
                check_position(opened(entry, ledger).payload, entry["decoded"], report.vector)
    compacted = vector.get("compactedLedger") or {"entries": []}
    for entry in compacted["entries"]:
        with report.row(f"compacted {entry['entry']}"):
            check_compacted(opened(entry, compacted).payload, entry["decoded"])


def with_indexes(entry: Buffer) -> bytes:
    """An entry of 4.0.8 with what compaction writes since 4.2: the indexes of the messages of a batch that it kept."""
    position, stored = compacted_entry.decode(entry)
    metadata, messages = messages_of(stored)
    kept = [message.batch_index for message in messages if message.single and not message.single.compacted_out]
    if not kept:
        return bytes(entry)
    metadata.compacted_batch_indexes.extend(kept)
    return compacted_entry.encode(position, -1, encode_entry(metadata, split_entry(stored).payload))


def test_compaction_keeps_what_apaches_broker_kept_to_the_byte() -> None:
    vector = load("entries/compacted-public-default-compact.json")
    (ledger,) = vector["dataLedgers"]
    entries = [
        (Position(int(ledger["ledgerId"]), entry["entry"]), opened(entry, ledger).payload)
        for entry in ledger["entries"]
    ]
    keys = LastOfKeys(1 << 30)
    for position, data in entries:
        done(keys.note(compaction.opened(position, data).unpacked()))
    made = [
        compacted_entry.encode(position, -1, kept.entry())
        for position, data in entries
        if (kept := done(keys.kept(compaction.opened(position, data).unpacked()))) is not None
    ]
    compacted = vector["compactedLedger"]
    assert made == [with_indexes(opened(entry, compacted).payload) for entry in compacted["entries"]]
    told = compacted["metadata"]["customMetadata"]["pulsar/compactedTo"].encode()
    assert compacted_entry.compacted_to(entries[-1][0], -1) == told
    assert (keys.messages, keys.kept_messages) == (14, 4)


def check_ledger_record(ledger: dict[str, Any]) -> None:
    """Ids rise without a gap up to the last entry of a closed ledger, and the lengths add up."""
    total = 0
    for number, entry in enumerate(ledger["entries"]):
        assert entry["entry"] == number
        total += entry["envelope"]["payloadBytes"]
        assert entry["envelope"]["length"] == total
    if ledger["metadata"]["state"] == "CLOSED":
        assert int(ledger["metadata"]["lastEntryId"]) == len(ledger["entries"]) - 1
        assert int(ledger["metadata"]["length"]) == total


def check_cursor_record(vector: dict[str, Any], name: str, expected: dict[str, Any]) -> None:
    """The cursor's own record is among the recorded ones, and decodes to what is told here."""
    path = f"/managed-ledgers/public/default/persistent/{vector['topic'].rpartition('/')[2]}/{name}"
    values = [
        plain(decode_cursor_info(b64(node["data"]), path))
        for file in names("managed_ledger/*.json")
        for node in load(file)["znodes"]
        if node["path"] == path
    ]
    assert expected in values


def check_position(data: memoryview, expected: dict[str, Any], name: str) -> None:
    info = decode_position_info(data, name)
    assert plain(info) == expected
    ranges = AckRanges()
    for item in ranges_in(info):
        ranges.add(*item)
    again = position_info(
        Position(info.ledgerId, info.entryId),
        list(ranges),
        [(item.name, item.value) for item in info.properties],
        list(batches_in(info)),
    )
    assert again == info
    assert again.SerializeToString() == bytes(data)


def check_compacted(data: memoryview, expected: dict[str, Any]) -> None:
    """Length and message id, length and entry: topics are not compacted here, so the frame is cut by hand."""
    (id_bytes,) = struct.unpack_from(">I", data)
    message_id = MessageIdData.FromString(bytes(data[4 : 4 + id_bytes]))
    assert plain(message_id) == expected["messageId"]
    (size,) = struct.unpack_from(">I", data, 4 + id_bytes)
    entry = data[8 + id_bytes :]
    assert size == expected["size"] == len(entry)
    check_message(entry, expected["headersAndPayload"])


@golden(
    "entries/*-schema-ledgers.json",
    how={DECODES, ENCODES},
    compared="locators, the envelopes of their ledgers, schema entries with their definitions and properties",
)
def test_schemas_and_their_ledgers(report: Report) -> None:
    for schema in load(report.vector)["schemas"]:
        ledgers = {int(ledger["ledgerId"]): ledger for ledger in schema["ledgers"]}
        with report.row(schema["path"]):
            locator = SchemaLocator.FromString(b64(schema["data"]))
            assert plain(locator) == schema["decoded"]
            assert locator.SerializeToString() == b64(schema["data"])
            assert {entry.position.ledgerId for entry in locator.index} == set(ledgers)
        for ledger_id, ledger in ledgers.items():
            for entry in ledger["entries"]:
                with report.row(f"{schema['path']} {ledger_id}:{entry['entry']}"):
                    data = bytes(opened(entry, ledger).payload)
                    stored = SchemaEntry.FromString(data)
                    assert stored.SerializeToString() == data
                    info = SchemaInfo.FromString(stored.schema_data)
                    assert info.SerializeToString() == stored.schema_data
                    check_schema(info, stored, entry["decoded"])
                    (own,) = (item for item in locator.index if item.position.ledgerId == ledger_id)
                    assert own.hash == hashlib.sha256(info.schema).digest()
                    assert info.schema_id == schema["path"].removeprefix("/schemas/")


def check_schema(info: SchemaInfo, stored: SchemaEntry, expected: dict[str, Any]) -> None:
    told = plain(stored)
    told.pop("schema_data")
    assert told == expected["schemaEntry"]
    assert info.type - 1 in set(SchemaType)
    definition = expected["schemaInfo"]["schema"]
    is_hex = info.type - 1 == SchemaType.KEY_VALUE  # lengths in binary before each half
    assert info.schema == (bytes.fromhex(definition) if is_hex else definition.encode())
    assert plain(info) == {**expected["schemaInfo"], "schema": plain(info)["schema"]}
