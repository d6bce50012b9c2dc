import pytest

from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, master_key
from magnetar_core.bookkeeper.wire.framing import FrameSplitter, MalformedFrame
from tests.support.bookie_vectors import VECTORS, decoded, streams

KEY = master_key(b"foo")
CONVERSATIONS = sorted(
    path.name.removesuffix(".jsonl")
    for path in (VECTORS / "wire").glob("bk*v2-*.jsonl")
    if "decoded" not in path.name and "opcode" not in path.name and "no-key" not in path.name
)
OPCODES = {"ADDENTRY": v2.ADD_ENTRY, "READENTRY": v2.READ_ENTRY, "AUTH": v2.AUTH, "BATCH_READ_ENTRY": 7}


def test_an_add_is_golden() -> None:
    entry = EntryCodec(DigestType.CRC32C, b"foo").head(1, 0, -1, 5, b"hello") + b"hello"
    expected = bytes.fromhex(
        "00000041 02010000 3a0e704a758fbcf665879e1820fbd20472774f25"
        "0000000000000001 0000000000000000 ffffffffffffffff 0000000000000005 e3a5f74d 68656c6c6f"
    )
    assert v2.add_request_head(0, KEY, len(entry)) + entry == expected
    assert v2.parse_request(memoryview(expected)[4:]) == (v2.ADD_ENTRY, 2, 0, 1, 0, KEY, entry)


def test_the_answer_to_an_add_is_golden() -> None:
    expected = bytes.fromhex("00000018 02010000 00000000 0000000000000001 0000000000000000")
    assert v2.add_response(0, 1, 0) == expected
    assert v2.parse_response(memoryview(expected)[4:]) == (v2.ADD_ENTRY, 0, 1, 0, None, None)


def test_a_fencing_read_is_golden() -> None:
    expected = bytes.fromhex(
        "00000028 02020001 0000000000000001 ffffffffffffffff 3a0e704a758fbcf665879e1820fbd20472774f25"
    )
    assert v2.read_request(1, v2.LAST_ENTRY, v2.FLAG_DO_FENCING, KEY) == expected
    assert v2.parse_request(memoryview(expected)[4:]) == (v2.READ_ENTRY, 2, 1, 1, -1, KEY, None)


def test_a_key_without_fencing_is_ignored() -> None:
    frame = v2.read_request(1, 5, 0, KEY)
    assert v2.parse_request(memoryview(frame)[4:]) == (v2.READ_ENTRY, 2, 0, 1, 5, None, None)


def test_version_zero_has_the_opcode_alone_in_its_word() -> None:
    frame = bytes.fromhex("00000002 0000000000000001 0000000000000005")
    assert v2.parse_request(memoryview(frame)) == (v2.READ_ENTRY, 0, 0, 1, 5, None, None)
    assert v2.read_response(2, 1, 5, version=0).hex() == ("00000018000000020000000200000000000000010000000000000005")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_batch_reads_survive_the_round_trip(version: int) -> None:
    frame = v2.batch_read_request(7, 3, 99, 10, 1 << 20, v2.FLAG_DO_FENCING, KEY)
    assert v2.parse_request(memoryview(frame)[4:]) == (7, 2, 1, 7, 3, KEY, (99, 10, 1 << 20))
    frame = v2.batch_read_request(7, 3, 99, 10, 1 << 20)
    assert v2.parse_request(memoryview(frame)[4:]) == (7, 2, 0, 7, 3, None, (99, 10, 1 << 20))
    answer = b"".join(v2.batch_read_response(0, 7, 3, 99, [b"one", b"", b"three"], version))
    assert int.from_bytes(answer[:4]) == len(answer) - 4
    if version:
        opcode, rc, ledger_id, entry_id, body, request_id = v2.parse_response(memoryview(answer)[4:])
        assert (opcode, rc, ledger_id, entry_id, request_id) == (7, 0, 7, 3, 99)
        assert isinstance(body, list)
        assert [bytes(entry) for entry in body] == [b"one", b"", b"three"]


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "02",
        "0201",
        "02010000" + "00" * 35,  # an add without its ids
        "02020000" + "00" * 15,
        "02020001" + "00" * 35,  # fencing, the key one byte short
        "02070000" + "00" * 35,
        "02070001" + "00" * 55,
        "02040000" + "00" * 40,  # operations that only the third protocol has
        "02050000" + "00" * 40,
        "02060000" + "00" * 40,
        "02090000" + "00" * 40,
        "0a0808031001",
        "ffffffff" + "00" * 40,
    ],
)
def test_requests_that_do_not_fit_their_layout_are_malformed(frame: str) -> None:
    with pytest.raises(MalformedFrame):
        v2.parse_request(memoryview(bytes.fromhex(frame)))


@pytest.mark.parametrize(
    "frame",
    [
        "",
        "02010000",
        "02010000" + "00" * 19,
        "02090000" + "00" * 20,
        "02070000" + "00" * 27,
        "02070000" + "00" * 28 + "000000",
        "02070000" + "00" * 28 + "00000001",
        "02070000" + "00" * 28 + "ffffffff",
    ],
)
def test_answers_that_do_not_fit_their_layout_are_malformed(frame: str) -> None:
    with pytest.raises(MalformedFrame):
        v2.parse_response(memoryview(bytes.fromhex(frame)))


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_recorded_frames_have_the_values_that_they_had(name: str) -> None:
    expected = [row for row in decoded(name) if row.get("protocol") == "v2"]
    found = 0
    for (connection, direction), data in streams(name).items():
        frames = FrameSplitter().feed(data)
        rows = [row for row in decoded(name) if (row["conn"], row["dir"]) == (connection, direction)]
        assert len(frames) == len(rows)
        for frame, row in zip(frames, rows, strict=True):
            if row["protocol"] != "v2":
                continue
            found += 1
            if direction == "c2s":
                check_request(frame, row)
            else:
                check_response(frame, row)
    assert found == len(expected)


def check_request(frame: memoryview, row: dict) -> None:  # type: ignore[type-arg]
    opcode, version, flags, ledger_id, entry_id, key, extra = v2.parse_request(frame)
    assert (opcode, version, flags) == (OPCODES[row["opcode"]], row["version"], row["flags"])
    whole = len(frame).to_bytes(4) + bytes(frame)
    if opcode == v2.ADD_ENTRY:
        assert (ledger_id, entry_id) == (row["entry"]["ledgerId"], row["entry"]["entryId"])
        assert key is not None
        assert key.hex() == row["masterKey"]
        assert len(extra) == row["entry"]["bytes"]
        assert v2.add_request_head(flags, key, len(extra)) + extra == whole
    elif opcode == v2.READ_ENTRY:
        assert (ledger_id, entry_id) == (row["ledgerId"], row["entryId"])
        assert (key.hex() if key else None) == row.get("masterKey")
        if version == 2:
            assert v2.read_request(ledger_id, entry_id, flags, key) == whole
    elif opcode == v2.BATCH_READ_ENTRY:
        assert (ledger_id, entry_id) == (row["ledgerId"], row["startEntryId"])
        assert extra == (row["requestId"], row["maxCount"], row["maxSize"])
        assert v2.batch_read_request(ledger_id, entry_id, extra[0], extra[1], extra[2], flags, key) == whole


def check_response(frame: memoryview, row: dict) -> None:  # type: ignore[type-arg]
    opcode, rc, ledger_id, entry_id, body, request_id = v2.parse_response(frame)
    assert opcode == OPCODES[row["opcode"]]
    version = row["version"]
    whole = len(frame).to_bytes(4) + bytes(frame)
    if opcode == v2.AUTH:
        assert isinstance(body, memoryview)
        assert v2.auth_frame(bytes(body)) == whole
        return
    assert (rc, ledger_id, entry_id) == (row["rc"], row["ledgerId"], row["entryId"])
    if opcode == v2.ADD_ENTRY:
        assert v2.add_response(rc, ledger_id, entry_id, version) == whole
    elif opcode == v2.READ_ENTRY:
        entry = b"" if body is None else body
        assert isinstance(entry, (bytes, memoryview))
        assert v2.read_response(rc, ledger_id, entry_id, len(entry), version) + bytes(entry) == whole
    else:
        assert request_id is not None
        assert request_id == row["requestId"]
        entries = [] if body is None else body
        assert isinstance(entries, list)
        assert [len(entry) for entry in entries] == [entry["bytes"] for entry in row["entries"]]
        made = v2.batch_read_response(rc, ledger_id, entry_id, request_id, entries, version)
        assert b"".join(made) == whole
