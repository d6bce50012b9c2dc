"""The tree of a cluster at twelve moments: every node that we know, read and written (tests/vectors/zookeeper)."""

import functools
import json
import re
import uuid
from collections.abc import Callable
from typing import Any, Final

from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from bookie.disks import cookie
from broker.ownership.load.report import decode_load, encode_load
from broker.ownership.nodes import (
    decode_broker,
    decode_leader,
    decode_owner,
    encode_broker,
    encode_leader,
    encode_owner,
)
from broker.ownership.rules import BrokerAddress
from broker.policies.namespace import new_cluster, new_policies, parse_policies
from broker.records.json_records import to_json
from broker.settings.config import BrokerConfig
from broker.tenancy.changes import initialise_cluster as initialise_pulsar
from broker.tenancy.partitions import parse_partitions, partitions_record
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import decode_info
from magnetar_core.bookkeeper.metadata.formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    LedgerMetadataFormat,
    LedgerRereplicationLayoutFormat,
    LockDataFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar_core.bookkeeper.metadata.ledgers import ledger_metadata as ledgers
from magnetar_core.bookkeeper.metadata.ledgers import ledger_store
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    LedgerMetadata,
    LedgerState,
    ledger_id_of,
    ledger_path,
)
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.wire.entry import DigestType
from managed_ledger.records.pulsar_records import (
    MAGIC_COMPRESSED,
    decode_cursor_info,
    decode_ledger_info,
    encode_record,
)
from managed_ledger.records.records_pb2 import CompressionType, SchemaLocator
from tests.golden.test_managed_ledger_records import head_of
from tests.support.golden import DECODES, ENCODES, Report, b64, golden, load, names
from tests.support.manual_clock import ManualClock

CLUSTER: Final = "lab"
ADDRESS: Final = BrokerAddress("pulsar://127.0.0.1:6652", "", "http://127.0.0.1:8082", "")


# ------------------------------------------------------------------------------------ BookKeeper


def check_ledger(path: str, data: bytes) -> None:
    metadata = ledgers.decode(data)
    ledger_id = ledger_id_of(path)
    assert ledger_id is not None
    assert ledger_path("/ledgers", ledger_id) == path
    again = ledgers.encode(metadata)
    head, _, body = data.partition(b"\n")
    assert head == b"BookieMetadataFormatVersion\t%d" % metadata.format_version
    if metadata.format_version == 2:  # protobuf's text: blanks and the order of fields are free
        assert again.partition(b"\n")[0] == head
        assert parsed(again.partition(b"\n")[2], LedgerMetadataFormat) == parsed(body, LedgerMetadataFormat)
    else:
        assert again == data
    assert ledgers.decode(again) == metadata
    for told in records_of_entries().get(ledger_id, []):
        check_against(metadata, told)


def check_against(metadata: LedgerMetadata, told: dict[str, Any]) -> None:
    """The record as the vectors in entries/ tell it, taken at another moment: what cannot change by then."""
    assert metadata.write_quorum == told["quorumSize"]
    assert metadata.ensemble_size == told["ensembleSize"]
    assert metadata.ack_quorum == told["ackQuorumSize"]
    assert metadata.digest_type is DigestType[told["digestType"]]
    assert {key: value.decode("latin-1") for key, value in metadata.custom_metadata} == told["customMetadata"]
    assert [segment.first_entry_id for segment in metadata.segments] == [
        int(segment.get("firstEntryId", 0)) for segment in told["segment"]
    ]
    if metadata.is_closed and told["state"] == "CLOSED":
        assert (metadata.last_entry_id, metadata.length) == (int(told["lastEntryId"]), int(told["length"]))


@functools.cache
def records_of_entries() -> dict[int, list[dict[str, Any]]]:
    """Ledger id → its records as entries/ tells them."""
    found: dict[int, list[dict[str, Any]]] = {}
    for name in names("entries/plain-*.json"):
        vector = load(name)
        told = list(vector.get("dataLedgers", []))
        told += [ledger for schema in vector.get("schemas", []) for ledger in schema["ledgers"]]
        for ledger in told:
            found.setdefault(int(ledger["ledgerId"]), []).append(ledger["metadata"])
    return found


def check_layout(path: str, data: bytes) -> None:
    assert data == ledger_store.LAYOUT


def check_instance_id(path: str, data: bytes) -> None:
    assert str(uuid.UUID(data.decode())).encode() == data


def check_bookie(path: str, data: bytes) -> None:
    bookie_id = path.rpartition("/")[2]
    info = decode_info(bookie_id, data)
    assert info is not None
    assert info.encode() == data
    assert [(endpoint.id, endpoint.protocol) for endpoint in info.endpoints] == [
        ("httpserver", "http"),
        ("bookie", "bookie-rpc"),
    ]
    assert info.rpc is not None
    assert (info.rpc.host, info.rpc.port) == ("127.0.0.1", int({"node-d": "3184"}.get(bookie_id, bookie_id[-4:])))
    assert info.properties == ()


def check_cookie(path: str, data: bytes) -> None:
    found = cookie.decode(data, path)
    assert found.encode() == data
    assert found.bookie_id == path.rpartition("/")[2]
    assert len(found.journal_directories) == len(found.ledger_directories) == 1


def parsed(data: bytes, kind: type[Message]) -> Message:
    made: Message = text_format.Parse(data.decode(), kind())
    return made


def as_text(kind: type[Message], **expected: Any) -> Callable[[str, bytes], None]:
    """A node of protobuf's text: parsed, and printed as it was. *expected*: field → value or a check of it."""

    def check(path: str, data: bytes) -> None:
        message = parsed(data, kind)
        assert text_format.MessageToString(message).encode() == data
        for field, wanted in expected.items():
            found = getattr(message, field)
            assert wanted(found) if callable(wanted) else found == wanted

    return check


def check_mark(path: str, data: bytes) -> None:
    """An under-replicated ledger: its id in four groups of hexadecimal digits, then in decimal."""
    as_text(UnderreplicatedLedgerFormat, replica=lambda found: list(found) == ["node-d"], ctime=lambda ms: ms > 0)(
        path, data
    )
    *groups, last = path.split("/")[-5:]
    ledger_id = int(last.removeprefix("urL"))
    assert last == f"urL{ledger_id:010d}"
    assert int("".join(groups), 16) == ledger_id


def check_binary(kind: type[Message]) -> Callable[[str, bytes], None]:
    def check(path: str, data: bytes) -> None:
        message = kind()
        message.ParseFromString(data)
        assert all(int(value) > 1_700_000_000_000 for value in MessageToDict(message).values())
        assert message.SerializeToString() == data

    return check


def check_number(path: str, data: bytes) -> None:
    assert str(int(data)).encode() == data


# ---------------------------------------------------------------------------------------- Pulsar


@functools.cache
def initial_nodes() -> dict[str, bytes]:
    """What our own initialisation of a cluster makes."""
    import asyncio

    async def run() -> dict[str, bytes]:
        store = MemoryStore(ManualClock())
        config = BrokerConfig(cluster_name=CLUSTER, advertised_address="127.0.0.1", service_port=6652, web_port=8082)
        await initialise_pulsar(store, config)
        found: dict[str, bytes] = {}

        async def walk(path: str) -> None:
            for child in await store.children(path or "/"):
                node = await store.get(f"{path}/{child}")
                if node is not None:
                    found[f"{path}/{child}"] = node.value
                await walk(f"{path}/{child}")

        await walk("")
        return found

    return asyncio.run(run())


def check_initial(path: str, data: bytes) -> None:
    """Made by the initialisation of a cluster, and never touched since."""
    assert initial_nodes()[path] == data


def check_policies(path: str, data: bytes) -> None:
    policies = parse_policies(data, path)
    assert to_json(policies.raw) == data  # written again with what we do not know
    record = new_policies(CLUSTER, json.loads(data)["bundles"]["numBundles"])
    override = json.loads(data).get("autoTopicCreationOverride")
    assert (policies.auto_creation is None) == (override is None)
    if override is not None:
        assert policies.auto_creation is not None
        assert policies.auto_creation.allowed is override["allowAutoTopicCreation"]
        record["autoTopicCreationOverride"] = override
    assert record == json.loads(data)
    assert policies.bundles.texts == json.loads(data)["bundles"]["boundaries"]
    if override is None:
        assert to_json(record) == data


def check_local_policies(path: str, data: bytes) -> None:
    bundles = new_policies(CLUSTER, json.loads(data)["bundles"]["numBundles"])["bundles"]
    assert to_json({"bundles": bundles, "migrated": False}) == data


def check_cluster(path: str, data: bytes) -> None:
    found = json.loads(data)
    assert to_json(new_cluster(found.get("serviceUrl", ""), found.get("brokerServiceUrl", ""))) == data


def check_partitions(path: str, data: bytes) -> None:
    count = parse_partitions(data, path)
    assert count == {"parts": 3, "transaction_coordinator_assign": 16}[path.rpartition("/")[2]]
    assert to_json(partitions_record(count)) == data


def as_of_4_0(data: bytes) -> bytes:
    """A record without what Apache's brokers write since 5.0: the broker's id, and its listener `internal`."""
    record = json.loads(data)
    assert record.pop("brokerId") == "127.0.0.1:8082"
    assert record["advertisedListeners"].pop("internal") == {
        "brokerServiceUrl": "pulsar://127.0.0.1:6652",
        "brokerHttpUrl": "http://127.0.0.1:8082",
    }
    return json.dumps(record, separators=(",", ":")).encode()


def check_owner(path: str, data: bytes) -> None:
    address, disabled = decode_owner(data, path)
    assert (address, disabled) == (ADDRESS, False)
    assert as_of_4_0(encode_owner(address)) == data


def check_leader(path: str, data: bytes) -> None:
    broker_id, url = decode_leader(data, path)
    assert (broker_id, url) == ("127.0.0.1:8082", ADDRESS.http_url)
    assert json.loads(encode_leader(broker_id, ADDRESS)) == json.loads(data)


def check_load_report(path: str, data: bytes) -> None:
    """Who the broker is, and its load; every member that we write is one of Apache's, in its type."""
    assert decode_broker(data, path) == ADDRESS
    theirs = json.loads(data)
    load = decode_load(theirs)
    assert load.bundles.keys() == theirs["lastStats"].keys()
    made = encode_load(load, memory_limit_bytes=1 << 30)
    assert made["lastStats"] == theirs["lastStats"]
    ours = encode_broker(ADDRESS, theirs["brokerVersionString"], theirs["startTimestamp"], made)
    assert decode_broker(ours, path) == ADDRESS
    members = json.loads(as_of_4_0(ours))
    assert members.pop("brokerVersion")  # the extensible load manager's name of it
    assert list(members) == list(theirs)
    for name, value in members.items():
        assert type(value) is type(theirs[name]), name
    for name in ("webServiceUrl", "pulsarServiceUrl", "brokerVersionString", "startTimestamp", "loadReportType"):
        assert json.loads(ours)[name] == theirs[name]


def check_empty_object(path: str, data: bytes) -> None:
    assert data == b"{}"


def check_topic(path: str, data: bytes) -> None:
    record = decode_ledger_info(data, path)
    if data.startswith(MAGIC_COMPRESSED.to_bytes(2, "big")):
        number = CompressionType.Value(head_of(data)["compressionType"])
        assert decode_ledger_info(encode_record(record, number), path) == record
    else:
        assert encode_record(record) == data
    assert list(record.ledgerInfo) == sorted(record.ledgerInfo, key=lambda info: info.ledgerId)


def check_cursor(path: str, data: bytes) -> None:
    record = decode_cursor_info(data, path)
    if data.startswith(MAGIC_COMPRESSED.to_bytes(2, "big")):
        number = CompressionType.Value(head_of(data)["compressionType"])
        assert decode_cursor_info(encode_record(record, number), path) == record
    else:
        assert encode_record(record) == data
    assert record.lastActive > 0


def check_locator(path: str, data: bytes) -> None:
    locator = SchemaLocator.FromString(data)
    assert locator.SerializeToString() == data
    versions = [entry.version for entry in locator.index]
    assert versions == sorted(set(versions))
    assert locator.info in locator.index


# ------------------------------------------------------------------------------- which node is what

_ANY: Final = r"[^/]+"
_TOPIC: Final = rf"/managed-ledgers/{_ANY}/{_ANY}/persistent/{_ANY}"
_V1_TOPIC: Final = rf"/managed-ledgers/pulsar/lab/{_ANY}/persistent/{_ANY}"  # names of the first kind, with a cluster
_UNDER: Final = "/ledgers/underreplication"

NODES: Final[list[tuple[str, Callable[[str, bytes], None]]]] = [
    (r"/ledgers/\d\d/\d{4}/L\d{4}|/ledgers/\d{3}(/\d{4}){3}/L\d{4}", check_ledger),
    (r"/ledgers(-disk)?/LAYOUT", check_layout),
    (r"/ledgers(-disk)?/INSTANCEID", check_instance_id),
    (rf"/ledgers/available(/readonly)?/(?!readonly){_ANY}", check_bookie),
    (rf"/ledgers(-disk)?/cookies/{_ANY}", check_cookie),
    (f"{_UNDER}/LAYOUT", as_text(LedgerRereplicationLayoutFormat, type="BASIC", version=1)),
    (rf"{_UNDER}/auditorelection(/V_\d{{10}})?", as_text(AuditorVoteFormat, bookieId=lambda found: bool(found))),
    (rf"{_UNDER}/locks/urL\d{{10}}", as_text(LockDataFormat, bookieId="localhost")),
    (rf"{_UNDER}/ledgers(/[0-9a-f]{{4}}){{4}}/urL\d{{10}}", check_mark),
    (f"{_UNDER}/checkallledgersctime", check_binary(CheckAllLedgersFormat)),
    (f"{_UNDER}/lostBookieRecoveryDelay", check_number),
    (rf"/admin/clusters/{_ANY}", check_cluster),
    (r"/admin/policies/(public|pulsar)|/bookies|/managed-ledgers|/namespace", check_initial),
    (rf"/admin/policies/{_ANY}/{_ANY}", check_policies),
    (rf"/admin/local-policies/{_ANY}/{_ANY}", check_local_policies),
    (rf"/admin/partitioned-topics/{_ANY}/{_ANY}/persistent/{_ANY}", check_partitions),
    (r"/admin/configuration", check_empty_object),
    (rf"/namespace/{_ANY}/{_ANY}/0x[0-9a-f]{{8}}_0x[0-9a-f]{{8}}", check_owner),
    (rf"/namespace/{_ANY}/{_ANY}/{_ANY}/0x[0-9a-f]{{8}}_0x[0-9a-f]{{8}}", check_owner),
    (r"/loadbalance/leader", check_leader),
    (rf"/loadbalance/brokers/{_ANY}", check_load_report),
    (rf"{_TOPIC}|{_V1_TOPIC}", check_topic),
    (rf"{_TOPIC}/{_ANY}|{_V1_TOPIC}/{_ANY}", check_cursor),
    (rf"/schemas/{_ANY}/{_ANY}/{_ANY}(/{_ANY})?", check_locator),
]

# Nodes without a value, which have others below them or whose being there says all.
WITHOUT_VALUE: Final = re.compile(
    r"/|/admin(/clusters|(/(policies|local-policies|partitioned-topics)(/[^/]+){0,2}(/persistent)?))?"
    r"|/counters|/counters/producer-name(/-\d{10})?"
    r"|/ledgers(-disk)?(/\d{2}(/\d{4})?|/\d{3}(/\d{4}){0,3}|/available|/available/readonly|/cookies|/idgen)?"
    r"|/ledgers/underreplication(/ledgers(/[0-9a-f]{4}){0,4}|/locks|/disable)?"
    r"|/loadbalance(/brokers|/broker-time-average)?"
    r"|/managed-ledgers(/[^/]+){0,2}(/persistent)?|/managed-ledgers/pulsar/lab/[^/]+(/persistent)?"
    r"|/namespace(/[^/]+){0,3}"
    r"|/schemas(/[^/]+){0,3}"
    r"|/pulsar|/stream/assignment"
)


@golden(
    "zookeeper/*.json",
    how={DECODES, ENCODES},
    compared="every node: its path, its value read and checked, and written again to the same bytes (text of format 2, "
    "compressed records and JSON whose order is free: to an equal value); what the moment is about",
)
def test_every_node_of_the_tree(report: Report) -> None:
    nodes = {path: b64(node["data"]) for path, node in load(report.vector)["nodes"].items()}
    for path, data in nodes.items():
        checks = [check for pattern, check in NODES if re.fullmatch(pattern, path)]
        if data and not checks:
            report.differs(path, f"nothing of ours reads {data[:40]!r}")
            continue
        with report.row(path):
            if data:
                (check,) = checks
                check(path, data)
            else:
                # A topic has a record without a byte before its first ledger.
                assert WITHOUT_VALUE.fullmatch(path) or check_topic in checks
    with report.row("the moment"):
        FACTS[report.vector.removeprefix("zookeeper/").partition("-")[0]](nodes)


# ---------------------------------------------------------------------- what the moments are about


def ledger(nodes: dict[str, bytes], ledger_id: int) -> LedgerMetadata:
    return ledgers.decode(nodes[ledger_path("/ledgers", ledger_id)])


def marks(nodes: dict[str, bytes]) -> set[int]:
    return {
        int(path.rpartition("/urL")[2]) for path in nodes if path.startswith(f"{_UNDER}/ledgers/") and "urL" in path
    }


def children(nodes: dict[str, bytes], parent: str) -> set[str]:
    return {path.rpartition("/")[2] for path in nodes if path.rpartition("/")[0] == parent}


ALL_BOOKIES: Final = {"127.0.0.1:3181", "127.0.0.1:3182", "127.0.0.1:3183", "node-d"}


def bookies_only(nodes: dict[str, bytes]) -> None:
    assert children(nodes, "/ledgers/available") == ALL_BOOKIES | {"readonly"}
    assert children(nodes, "/ledgers/cookies") == ALL_BOOKIES
    assert "/loadbalance" not in nodes


def client_ledgers(nodes: dict[str, bytes]) -> None:
    assert [ledger(nodes, i).digest_type.name for i in range(8)] == [
        "CRC32C", "CRC32C", "CRC32", "HMAC", "DUMMY", "CRC32C", "CRC32", "HMAC",
    ]  # fmt: skip
    assert [ledger(nodes, i).password for i in range(8)] == [*[b"secret"] * 5, b"", b"foo", b"foo"]
    for closed, opened, version in ((13, 14, 1), (15, 16, 2), (17, 18, 3)):
        assert (ledger(nodes, closed).format_version, ledger(nodes, opened).format_version) == (version, version)
        assert ledger(nodes, closed).state is LedgerState.CLOSED
        assert (ledger(nodes, closed).last_entry_id, ledger(nodes, closed).length) == (2, 12)
        assert ledger(nodes, opened).state is LedgerState.OPEN
        assert (ledger(nodes, opened).last_entry_id, ledger(nodes, opened).length) == (-1, 0)
    assert all(ledger(nodes, i).state is LedgerState.CLOSED for i in (8, 9, 19, 20))
    assert ledger(nodes, 21).state is LedgerState.OPEN
    assert [len(ledger(nodes, i).segments) for i in (19, 20, 21)] == [2, 2, 2]
    assert ledger(nodes, 20).ensemble_for(4) == ledger(nodes, 20).segments[0].ensemble
    assert ledger(nodes, 20).ensemble_for(5) == ledger(nodes, 20).segments[1].ensemble
    for ledger_id in (2_147_483_646, 2_147_483_647, 9_999_999_999):
        assert ledger_path("/ledgers", ledger_id) in nodes


def broker_up(nodes: dict[str, bytes]) -> None:
    assert children(nodes, "/loadbalance/brokers") == {"127.0.0.1:8082"}


def schemas_there(nodes: dict[str, bytes]) -> None:
    broker_up(nodes)
    assert len(SchemaLocator.FromString(nodes["/schemas/public/default/json"]).index) == 2


def cursors_closed(nodes: dict[str, bytes]) -> None:
    cursors = [
        decode_cursor_info(data, path)
        for path, data in nodes.items()
        if re.fullmatch(rf"/managed-ledgers/public/default/persistent/{_ANY}/{_ANY}", path)
    ]
    assert sum(cursor.cursorsLedgerId == -1 for cursor in cursors) > len(cursors) // 2


def bookie_dead(nodes: dict[str, bytes]) -> None:
    assert "node-d" not in children(nodes, "/ledgers/available")
    assert "node-d" in children(nodes, "/ledgers/cookies")
    assert marks(nodes)
    assert all("node-d" in ledger(nodes, ledger_id).bookies() for ledger_id in marks(nodes))


def lock_held(nodes: dict[str, bytes]) -> None:
    bookie_dead(nodes)
    locks = {int(name.removeprefix("urL")) for name in children(nodes, f"{_UNDER}/locks")}
    assert locks
    assert locks <= marks(nodes)


def read_only(nodes: dict[str, bytes]) -> None:
    assert children(nodes, "/ledgers/available/readonly") == {"127.0.0.1:3183"}
    assert "127.0.0.1:3183" not in children(nodes, "/ledgers/available")


def decommissioned(nodes: dict[str, bytes]) -> None:
    assert "node-d" not in children(nodes, "/ledgers/available")
    assert "node-d" in children(nodes, "/ledgers/cookies")  # recorded before the cookie was deleted
    assert not marks(nodes)


def disabled(nodes: dict[str, bytes]) -> None:
    assert nodes[f"{_UNDER}/disable"] == b""
    assert nodes[f"{_UNDER}/lostBookieRecoveryDelay"] == b"17"


def in_recovery(nodes: dict[str, bytes]) -> None:
    disabled(nodes)
    assert ledger(nodes, 239).state is LedgerState.IN_RECOVERY
    assert ledger(nodes, 239).bookies() == {"node-d"}


FACTS: Final[dict[str, Callable[[dict[str, bytes]], None]]] = {
    "00": bookies_only, "01": client_ledgers, "a": broker_up, "b": schemas_there, "c": cursors_closed,
    "d1": bookie_dead, "d2": lock_held, "d3": bookie_dead, "e": read_only, "f": decommissioned, "g1": disabled,
    "g2": in_recovery,
}  # fmt: skip
