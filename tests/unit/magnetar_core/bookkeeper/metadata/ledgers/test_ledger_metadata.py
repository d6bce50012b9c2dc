import dataclasses
from typing import Any

import pytest
from google.protobuf import text_format

from magnetar_core.bookkeeper.metadata import formats_pb2
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import decode_info
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    IllegalChange,
    LedgerMetadata,
    LedgerState,
    Segment,
    decode,
    encode,
    ledger_id_of,
    ledger_path,
)
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import Corruption
from tests.support.vectors import b64, load, names

# One open ledger with creator token 7, two bookies, both quorums 2, CRC32C, empty password.
GOLDEN = bytes.fromhex(
    "426f6f6b69654d65746164617461466f726d617456657273696f6e09330a31"
    "080210021800 20ffffffffffffffffff01 2801"
    "32140a0762313a333138310a0762323a333138311000"
    "3803420048026007"
)


def nodes(prefix: str) -> list[tuple[str, bytes]]:
    found = []
    for name in names("zookeeper/*.json"):
        vector: dict[str, Any] = load(name)["nodes"]
        found += [(path, b64(node["data"])) for path, node in vector.items() if path.startswith(prefix)]
    assert found
    return found


def open_ledger(**fields: Any) -> LedgerMetadata:
    defaults: dict[str, Any] = {
        "ensemble_size": 2,
        "write_quorum": 2,
        "ack_quorum": 2,
        "digest_type": DigestType.CRC32C,
        "segments": (Segment(0, ("b1:3181", "b2:3181")),),
        "ctoken": 7,
    }
    return LedgerMetadata(**(defaults | fields))


def test_the_golden_record_is_read_and_written() -> None:
    assert decode(GOLDEN) == open_ledger()
    assert encode(open_ledger()) == GOLDEN


def test_every_ledger_of_the_real_cluster_is_read_and_written_again() -> None:
    count = 0
    for path, data in nodes("/ledgers/"):
        ledger_id = ledger_id_of(path)
        if ledger_id is None:
            continue
        count += 1
        metadata = decode(data)
        assert ledger_path("/ledgers", ledger_id) == path
        assert decode(encode(metadata)) == metadata
        if metadata.format_version == 3:
            assert encode(metadata) == data
    assert count > 100


def test_records_of_the_stock_client_say_what_it_wrote() -> None:
    vector = load("zookeeper/01-client-ledgers.json")["nodes"]

    def read(ledger_id: int) -> LedgerMetadata:
        return decode(b64(vector[ledger_path("/ledgers", ledger_id)]["data"]))

    assert [read(i).digest_type.name for i in range(5)] == ["CRC32C", "CRC32C", "CRC32", "HMAC", "DUMMY"]
    assert {read(i).password for i in range(5)} == {b"secret"}
    assert read(6).password == b"foo"
    for closed, opened, version in ((13, 14, 1), (15, 16, 2), (17, 18, 3)):
        assert (read(closed).format_version, read(closed).state) == (version, LedgerState.CLOSED)
        assert (read(closed).last_entry_id, read(closed).length) == (2, 12)
        assert (read(opened).format_version, read(opened).state) == (version, LedgerState.OPEN)
        assert (read(opened).last_entry_id, read(opened).length) == (-1, 0)
    assert read(15).password == b"pass word"
    assert read(15).ctime_ms == 1795240312044
    assert [s.first_entry_id for s in read(20).segments] == [0, 5]
    assert read(20).ensemble_for(4) == read(20).segments[0].ensemble
    assert read(20).ensemble_for(5) == read(20).segments[1].ensemble
    assert dict(read(0).custom_metadata)["application"] == b"vectors"


def test_a_ledger_in_recovery_is_read() -> None:
    states = set()
    for path, node in load("zookeeper/g2-disabled-bookie-down-in-recovery.json")["nodes"].items():
        if path.startswith("/ledgers/") and ledger_id_of(path) is not None:
            states.add(decode(b64(node["data"])).state)
    assert LedgerState.IN_RECOVERY in states


def test_registrations_name_host_and_port() -> None:
    found = {}
    for path, data in nodes("/ledgers/available/"):
        bookie_id = path.rpartition("/")[2]
        if bookie_id != "readonly":
            info = decode_info(bookie_id, data)
            assert info is not None
            assert decode_info(bookie_id, info.encode()) == info
            assert info.rpc is not None
            found[bookie_id] = (info.rpc.host, info.rpc.port)
    assert found["node-d"] == ("127.0.0.1", 3184)
    assert found["127.0.0.1:3181"] == ("127.0.0.1", 3181)


def test_an_old_registration_without_a_value_is_where_its_id_says() -> None:
    for value in (b"", b"\xff\xff"):
        info = decode_info("10.0.0.1:3181", value)
        assert info is not None
        assert info.rpc is not None
        assert (info.rpc.host, info.rpc.port) == ("10.0.0.1", 3181)
        assert decode_info("node-d", value) is None


def test_cookies_and_under_replication_nodes_have_the_known_text_forms() -> None:
    for path, data in nodes("/ledgers/cookies/"):
        version, _, text = data.decode().partition("\n")
        assert version == "5"
        cookie = text_format.Parse(text, formats_pb2.CookieFormat())
        assert cookie.bookieHost == path.rpartition("/")[2]
        assert cookie.ledgerDirs.startswith("1\t/")
    marks = 0
    for path, data in nodes("/ledgers/underreplication/"):
        text = data.decode(errors="replace")
        name = path.rpartition("/")[2]
        if path.startswith("/ledgers/underreplication/ledgers/") and name.startswith("urL"):
            mark = text_format.Parse(text, formats_pb2.UnderreplicatedLedgerFormat())
            assert list(mark.replica) == ["node-d"]
            assert mark.ctime > 0
            marks += 1
        elif name.startswith("V_"):
            assert text_format.Parse(text, formats_pb2.AuditorVoteFormat()).bookieId
        elif name.startswith("urL"):
            assert text_format.Parse(text, formats_pb2.LockDataFormat()).bookieId
        elif name == "LAYOUT":
            assert text_format.Parse(text, formats_pb2.LedgerRereplicationLayoutFormat()).type == "BASIC"
        elif name == "checkallledgersctime":
            assert formats_pb2.CheckAllLedgersFormat.FromString(data).checkAllLedgersCTime > 0
    assert marks > 2


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (1, "/00/0000/L0001"),
        (2147483646, "/21/4748/L3646"),
        (2147483647, "/000/0000/0021/4748/L3647"),
        (9999999999, "/000/0000/0099/9999/L9999"),
        (1099511627776, "/000/0001/0995/1162/L7776"),
    ],
)
def test_where_a_record_is(ledger_id: int, path: str) -> None:
    assert ledger_path("/ledgers", ledger_id) == "/ledgers" + path
    assert ledger_id_of("/ledgers" + path) == ledger_id
    assert ledger_id_of("/some/ledgers" + path) == ledger_id


def test_other_nodes_are_no_records() -> None:
    for path in ("/ledgers/LAYOUT", "/ledgers/idgen/ID-0000000001", "/ledgers/00/0000", "/ledgers/cookies/b:1"):
        assert ledger_id_of(path) is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        b"BookieMetadataFormatVersion\t4\n",
        b"BookieMetadataFormatVersion\t3\n",
        b"BookieMetadataFormatVersion\t2\nquorumSize: x",
        b"BookieMetadataFormatVersion\t1\n2\n",
        GOLDEN[:-1],
        GOLDEN.replace(b"b2:", b"b1:"),
        *(GOLDEN[:i] for i in range(0, len(GOLDEN), 5)),
    ],
)
def test_a_damaged_record_is_never_taken_for_a_good_one(data: bytes) -> None:
    with pytest.raises(Corruption):
        decode(data)


def test_an_update_keeps_the_format_it_was_read_with() -> None:
    for version in (1, 2, 3):
        metadata = decode(encode(open_ledger(format_version=version)))
        assert decode(encode(metadata.in_recovery())).state is LedgerState.IN_RECOVERY
        closed = decode(encode(metadata.closed(5, 50)))
        assert (closed.format_version, closed.last_entry_id, closed.length) == (version, 5, 50)


def test_the_creator_token_goes_with_the_first_change() -> None:
    assert open_ledger().in_recovery().ctoken == 0
    assert open_ledger().closed(-1, 0).ctoken == 0


def test_an_ensemble_change_appends_or_replaces_the_last_segment() -> None:
    metadata = open_ledger().with_ensemble(0, ("b1:3181", "b3:3181"))
    assert metadata.segments == (Segment(0, ("b1:3181", "b3:3181")),)
    metadata = metadata.with_ensemble(7, ("b1:3181", "b4:3181")).with_ensemble(9, ("b5:3181", "b4:3181"))
    assert [s.first_entry_id for s in metadata.segments] == [0, 7, 9]
    assert [metadata.ensemble_for(i)[1] for i in (0, 6, 7, 8, 9, 100)] == [
        "b3:3181", "b3:3181", "b4:3181", "b4:3181", "b4:3181", "b4:3181",
    ]  # fmt: skip
    with pytest.raises(IllegalChange):
        metadata.with_ensemble(8, ("b1:3181", "b2:3181"))
    with pytest.raises(IllegalChange):
        metadata.with_ensemble(20, ("b1:3181", "b1:3181"))
    with pytest.raises(IllegalChange):
        metadata.in_recovery().with_ensemble(20, ("b1:3181", "b2:3181"))


def test_recovery_publishes_its_ensembles_with_the_seal_and_drops_empty_segments() -> None:
    metadata = open_ledger().with_ensemble(5, ("b1:3181", "b3:3181")).in_recovery()
    closed = metadata.closed(8, 80, {5: ("b1:3181", "b4:3181"), 7: ("b6:3181", "b4:3181")})
    assert [s.first_entry_id for s in closed.segments] == [0, 5, 7]
    assert closed.segments[1].ensemble == ("b1:3181", "b4:3181")
    assert [s.first_entry_id for s in metadata.closed(4, 40).segments] == [0]
    assert [s.first_entry_id for s in metadata.closed(-1, 0).segments] == [0]


def test_nothing_but_ensembles_changes_after_the_seal() -> None:
    closed = open_ledger().closed(3, 30)
    for change in (closed.in_recovery, lambda: closed.closed(3, 30), lambda: closed.with_ensemble(4, ("a", "b"))):
        with pytest.raises(IllegalChange):
            change()
    replaced = closed.with_segment_replaced(0, ("b1:3181", "b9:3181"))
    assert dataclasses.replace(replaced, segments=closed.segments) == closed
