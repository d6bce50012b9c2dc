"""The state log's own formats, version 1: what was written once is read for ever (tests/vectors/state_log)."""

import json

from magnetar_core.bookkeeper.wire.checksum import crc32c
from managed_ledger.position import Position
from managed_ledger.state_log.edits import Edit, Header, Marker, Record, Token, decode, encode
from managed_ledger.state_log.log.log_list import ListedLedger, LogList, decode_list, encode_list
from managed_ledger.state_log.snapshots.format import Snapshot, decode_snapshot, encode_snapshot
from tests.support.golden import DECODES, ENCODES, Report, golden, load


@golden(
    "state_log/*.json",
    how={DECODES, ENCODES},
    compared="each kind of entry, the list of ledgers and a snapshot: every field, and the same bytes written again (of"
    " the list an equal value); made by hand from the drawings, not by the code that reads them",
)
def test_the_formats_of_the_state_log(report: Report) -> None:
    recorded = load(report.vector)
    for row in recorded["entries"]:
        with report.row(row["kind"]):
            expected: Record
            if row["kind"] == "header":
                expected = Header(row["term"], row["first_number"], row["leader"])
            elif row["kind"] == "edit":
                token = Token(bytes.fromhex(row["token"]), row["since"])
                expected = Edit(row["number"], row["time_ms"], token, row["payload"].encode())
            else:
                expected = Marker(row["number"])
            assert decode(bytes.fromhex(row["hex"]), row["place"]) == expected
            assert encode(expected).hex() == row["hex"]
    with report.row("list"):
        fields = recorded["decoded_list"]
        ledgers = tuple(ListedLedger(one["id"], one["term"], one["first"]) for one in fields["ledgers"])
        listed = LogList(fields["log"], fields["term"], fields["leader"], ledgers, tuple(fields["leaving"]))
        assert decode_list(recorded["list"].encode(), report.vector) == listed
        assert json.loads(encode_list(listed)) == fields
    with report.row("snapshot"):
        row = recorded["snapshot"]
        tokens = tuple((bytes.fromhex(token), number) for token, number in row["tokens"])
        snapshot = Snapshot(
            row["log"], Position(*row["position"]), row["number"], row["time_ms"], row["term"], tokens,
            row["state"].encode(),
        )  # fmt: skip
        data = bytes.fromhex(row["hex"])
        assert decode_snapshot(data, report.vector) == snapshot
        assert encode_snapshot(snapshot) == data
        assert int.from_bytes(data[8:12], "big") == crc32c(data[12:])
