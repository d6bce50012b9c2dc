"""Entries that Pulsar's own clients and broker made, against what the vectors say is in them."""

from typing import Any

import pytest

from connectors.spark.task.entries import open_entry
from connectors.spark.task.rows import RowBuilder
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata
from tests.support.vectors import b64, load, names
from tests.unit.connectors.spark.entries import ALL_METADATA, plain, schema_of

ENVELOPE_BYTES = 36  # 32 of header, 4 of CRC-32C

# The recorder of the vectors could not decompress the ZLIB stream of the Java client.
ZLIB = "entries/plain-public-default-comp-ZLIB.json"
FILES = [name for name in names("entries/*.json") if not name.endswith("schema-ledgers.json") and name != ZLIB]


def rows_in(path: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The rows of all data ledgers of a vector, and its entries."""
    columns = ("value", *ALL_METADATA)
    builder = RowBuilder(schema_of(columns), "t", -1, None)
    entries: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    for ledger in load(path)["dataLedgers"]:
        for entry in ledger["entries"]:
            opened = open_entry("t", int(ledger["ledgerId"]), entry["entry"], b64(entry["raw"])[ENVELOPE_BYTES:])
            if opened is not None:
                builder.add(opened)
            entries.append({"ledger": int(ledger["ledgerId"]), **entry})
        if builder.row_count:
            rows += plain(next(builder.take()))
    return rows, entries


def content(told: dict[str, Any]) -> object:
    """A payload as the vectors tell it: text, hex, or length and checksum."""
    if "text" in told:
        return str(told["text"]).encode()
    return bytes.fromhex(told["hex"]) if "hex" in told else None


@pytest.mark.parametrize("path", FILES)
def test_rows_are_what_the_servers_and_clients_meant(path: str) -> None:
    rows, entries = rows_in(path)
    expected = []
    for entry in entries:
        decoded = entry["decoded"]
        metadata = decoded["metadata"]
        if "marker_type" in metadata or metadata.get("num_chunks_from_msg", 1) > 1:
            continue
        messages = decoded.get("batch") or [{"single": None, "payload": decoded["payload"]}]
        for place, message in enumerate(messages):
            own = metadata if message["single"] is None else message["single"]
            index = decoded.get("brokerEntryMetadata", {}).get("index")
            expected.append(
                {
                    "value": None if own.get("null_value") else content(message["payload"]),
                    "__key": own["partition_key"].encode() if "partition_key" in own else None,
                    "__publishTime": int(metadata["publish_time"]) * 1000,
                    "__eventTime": int(own.get("event_time", 0)) * 1000 or None,
                    "__messageProperties": {item["key"]: item["value"] for item in own.get("properties", [])},
                    "__ledgerId": entry["ledger"],
                    "__entryId": entry["entry"],
                    "__batchIndex": -1 if message["single"] is None else place,
                    "__index": None if index is None else int(index) - len(messages) + 1 + place,
                    "__sequenceId": int(own["sequence_id"]),
                    "__producerName": metadata["producer_name"],
                    "__schemaVersion": b64(metadata["schema_version"]) if "schema_version" in metadata else None,
                    "__schemaId": b64(metadata["schema_id"]) if "schema_id" in metadata else None,
                    "__orderingKey": b64(own["ordering_key"]) if "ordering_key" in own else None,
                    "__deliverAt": int(metadata.get("deliver_at_time", 0)) * 1000 or None,
                    "__replicatedFrom": metadata.get("replicated_from"),
                    "base64": own.get("partition_key_b64_encoded", False),
                }
            )
    found = [row for row in rows if uuid_of(row) not in uuids(entries)]
    assert len(found) == len(expected)
    for row, wanted in zip(found, expected, strict=True):
        if wanted.pop("base64"):
            wanted["__key"] = b64(wanted["__key"].decode())
        if wanted["value"] is None and row["value"] is not None:
            del wanted["value"]  # told by length and checksum only
        assert {name: row[name] for name in wanted} == wanted


def uuids(entries: list[dict[str, Any]]) -> set[str]:
    return {metadata["uuid"] for metadata in (entry["decoded"]["metadata"] for entry in entries) if "uuid" in metadata}


def uuid_of(row: dict[str, Any]) -> str:
    return f"{row['__producerName']}-{row['__sequenceId']}"


def test_chunks_of_the_real_client_become_one_row() -> None:
    rows, entries = rows_in("entries/plain-public-default-chunk.json")
    assert sorted(map(uuid_of, rows)) == ["prod-chunk-0", "prod-chunk-lz4-0"]
    for row in rows:
        own = [entry for entry in entries if entry["decoded"]["metadata"]["uuid"] == uuid_of(row)]
        metadata = own[0]["decoded"]["metadata"]
        assert row["__entryId"] == own[-1]["entry"]
        assert len(row["value"]) == metadata["uncompressed_size"]
        position = MessageIdData.FromString(row["__messageId"])
        assert position.first_chunk_message_id.entryId == own[0]["entry"]


def test_what_java_made_of_zlib_is_what_it_made_of_lz4() -> None:
    of_zlib, _ = rows_in(ZLIB)
    of_lz4, _ = rows_in(ZLIB.replace("ZLIB", "LZ4"))
    assert [row["value"] for row in of_zlib] == [row["value"] for row in of_lz4]


def test_a_marker_is_no_row() -> None:
    marker = encode_entry(MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, marker_type=10), b"x")
    assert open_entry("t", 1, 1, marker) is None
