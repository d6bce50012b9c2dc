import pytest
from google.protobuf.json_format import MessageToDict

from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from tests.support import bookie_requests
from tests.support.bookie_vectors import VECTORS, decoded, streams

CONVERSATIONS = sorted(
    path.name.removesuffix(".jsonl") for path in (VECTORS / "wire").glob("bk*v3-*.jsonl") if "decoded" not in path.name
)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_recorded_frames_have_the_values_that_they_had(name: str) -> None:
    for (connection, direction), data in streams(name).items():
        frames = FrameSplitter().feed(data)
        rows = [row for row in decoded(name) if (row["conn"], row["dir"]) == (connection, direction)]
        assert len(frames) == len(rows)
        for frame, row in zip(frames, rows, strict=True):
            if row["protocol"] != "v3":
                assert not v3.is_v3(frame)
                continue
            if direction == "c2s":
                assert v3.is_v3(frame)
            message = v3.parse_request(frame) if direction == "c2s" else v3.parse_response(frame)
            values = MessageToDict(message)
            assert values["header"] == row["header"]
            for part in ("readRequest", "addRequest", "writeLacRequest", "readLacRequest", "forceLedgerRequest",
                         "readResponse", "addResponse", "writeLacResponse", "readLacResponse"):  # fmt: skip
                assert (part in values) == (part in row)
                for field in ("ledgerId", "entryId", "status", "maxLAC", "previousLAC", "timeOut", "flag"):
                    assert values.get(part, {}).get(field) == row.get(part, {}).get(field)
            again = v3.frame_of(message)
            assert MessageToDict(type(message).FromString(again[4:])) == values


def test_builders_make_what_they_say() -> None:
    add = v3.parse_request(bookie_requests.add_request(7, 1, 2, b"k" * 20, b"body", recovery=True, priority=100)[4:])
    assert (add.header.txnId, add.header.operation, add.header.priority) == (7, v3.ADD_ENTRY, 100)
    assert (add.addRequest.ledgerId, add.addRequest.entryId, add.addRequest.body) == (1, 2, b"body")
    assert add.addRequest.flag == v3.RECOVERY_ADD
    assert not add.addRequest.HasField("writeFlags")
    read = v3.parse_request(v3.read_request(8, 1, -1, previous_lac=3, timeout_ms=500, piggyback=True)[4:])
    assert (read.readRequest.previousLAC, read.readRequest.timeOut) == (3, 500)
    assert read.readRequest.flag == v3.ENTRY_PIGGYBACK
    answer = v3.parse_response(v3.read_response(8, v3.V3Error.EOK, 1, 4, body=b"e", max_lac=4)[4:])
    assert (answer.status, answer.readResponse.maxLAC, answer.readResponse.body) == (0, 4, b"e")
    tls = v3.parse_request(v3.start_tls_request(1)[4:])
    assert tls.HasField("startTLSRequest")


def test_every_refusal_has_a_number_in_both_protocols() -> None:
    for error in V2Error:
        assert v3.OF_V2[error].name == error.name
        assert v3.TO_V2[v3.OF_V2[error]] is error


@pytest.mark.parametrize("frame", [b"", b"\x0a", b"\x0a\x02\x08\x03", b"\xff" * 30])
def test_bytes_that_are_no_request_are_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        v3.parse_request(frame)


@pytest.mark.parametrize(
    "entry_ids",
    [[], [0], [0, 1, 2], [0, 2, 4, 6], [0, 1, 3, 4, 6, 7, 20], [5, 9, 13, 14, 15, 100], list(range(50))],
)
def test_lists_of_entries_contain_exactly_what_was_put_in(entry_ids: list[int]) -> None:
    groups = v3.decode_availability(bookie_requests.encode_availability(entry_ids))
    assert [entry_id for entry_id in range(120) if v3.is_available(groups, entry_id)] == entry_ids


def test_a_striped_ledger_is_one_group() -> None:
    data = bookie_requests.encode_availability([0, 1, 3, 4, 6, 7])
    assert data == bytes.fromhex("00000000 00000001") + bytes(56) + bytes.fromhex(
        "0000000000000000 0000000000000006 00000002 00000003"
    )


def test_a_damaged_list_of_entries_is_malformed() -> None:
    data = bookie_requests.encode_availability([0, 1, 3])
    for damaged in (b"", data[:63], data[:-1], data + b"\0", b"\0\0\0\1" + data[4:]):
        with pytest.raises(MalformedFrame):
            v3.decode_availability(damaged)


@pytest.mark.parametrize("txn_id", [0, 1, 127, 128, 16_383, 16_384, 2**21, 2**63 - 1, 2**64 - 1])
@pytest.mark.parametrize(("ledger_id", "entry_id"), [(0, 0), (7, 300), (2**31, 2**40), (2**63 - 1, 1), (-1, -5)])
@pytest.mark.parametrize("status", [0, 402, 502])
def test_the_answer_to_an_add_is_what_protobuf_writes(txn_id: int, ledger_id: int, entry_id: int, status: int) -> None:
    made = v3.response(v3.ADD_ENTRY, txn_id, status)
    add = made.addResponse
    add.status, add.ledgerId, add.entryId = status, ledger_id, entry_id  # type: ignore[assignment]
    assert v3.add_response(txn_id, status, ledger_id, entry_id) == v3.frame_of(made)
