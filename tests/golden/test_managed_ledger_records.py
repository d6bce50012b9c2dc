"""Records of topics and cursors, plain and compressed (tests/vectors/managed_ledger)."""

import struct
from typing import Any, Final

from google.protobuf.json_format import MessageToDict

from managed_ledger.ack_ranges import AckRanges
from managed_ledger.records.pulsar_records import (
    MAGIC_COMPRESSED,
    batches_in,
    decode_cursor_info,
    decode_ledger_info,
    encode_record,
    put_state_into,
    ranges_in,
)
from managed_ledger.records.records_pb2 import (
    CompressedInfoMetadata,
    CompressionType,
    ManagedCursorInfo,
    ManagedLedgerInfo,
)
from tests.support.golden import DECODES, ENCODES, Report, b64, golden, load

HEAD: Final = struct.Struct(">HI")


@golden(
    "managed_ledger/*.json",
    how={DECODES, ENCODES},
    compared="every field of every record; plain ones made again to the same bytes, compressed ones to a record that "
    "decodes to the same value under the same compression (compressors may choose)",
)
def test_records_of_topics_and_cursors(report: Report) -> None:
    for node in load(report.vector)["znodes"]:
        with report.row(node["path"]):
            check_record(node)


def check_record(node: dict[str, Any]) -> None:
    data = b64(node["data"])
    assert node["kind"] in ("managed-ledger", "cursor")
    decode = decode_ledger_info if node["kind"] == "managed-ledger" else decode_cursor_info
    record: ManagedLedgerInfo | ManagedCursorInfo = decode(data, node["path"])
    assert MessageToDict(record, preserving_proto_field_name=True) == node["decoded"]
    compression = node["compression"]
    if compression is None:
        assert encode_record(record) == data
    else:
        number = CompressionType.Value(compression["compressionType"])
        again = encode_record(record, number)
        assert head_of(again) == head_of(data) == compression
        assert decode(again, node["path"]) == record
    if isinstance(record, ManagedCursorInfo):
        check_state(record)


def head_of(data: bytes) -> dict[str, Any]:
    """How a compressed record says that it is compressed."""
    magic, size = HEAD.unpack_from(data)
    assert magic == MAGIC_COMPRESSED
    found: dict[str, Any] = MessageToDict(CompressedInfoMetadata.FromString(data[HEAD.size : HEAD.size + size]))
    return found


def check_state(record: ManagedCursorInfo) -> None:
    """The acknowledged ranges and batches go through our own values and come back as they were."""
    ranges = AckRanges()
    for item in ranges_in(record):
        ranges.add(*item)
    again = ManagedCursorInfo()
    again.CopyFrom(record)
    for field in ("individualDeletedMessages", "properties", "batchedEntryDeletionIndexInfo"):
        again.ClearField(field)
    put_state_into(again, list(ranges), [(item.name, item.value) for item in record.properties], batches_in(record))
    assert again == record
