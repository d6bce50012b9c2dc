"""Thousands of hostile inputs at every port. (`tests.abuse.inputs` draws them, `tests.abuse.world` says what holds)"""

import asyncio
import contextlib
import random
from typing import Any, Final

import aiohttp
import grpc
import pytest
from yarl import URL

from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import BODY_OF_TYPE
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as bk
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.bookkeeper.wire.entry import MASTER_KEY_BYTES
from magnetar_core.topics import topics_pb2 as api
from tests.abuse import inputs
from tests.abuse.driving import ANSWER_S, COUNT, abuse, until_closed
from tests.abuse.kinds import Run
from tests.abuse.world import Bystanders, Server, client_of, wire_to
from tests.support.bookie_disks import stored_entry
from tests.support.damage import damaged

pytestmark = [pytest.mark.process]

TOPIC = "persistent://public/default/t"


# ------------------------------------------------------------------------------------ binary port

_COMMANDS = [
    kind.number
    for kind in BaseCommand.DESCRIPTOR.enum_types_by_name["Type"].values
    if kind.name not in ("CONNECT", "SEND")
]


def ids(rng: random.Random) -> int:
    return rng.choice([1, 1, 1, 2, 3])


BINARY_KNOWN: inputs.Known = {
    "topic": lambda rng: rng.choice([TOPIC, TOPIC, "persistent://public/default/u", inputs.text(rng)]),
    "namespace": lambda rng: rng.choice(["public/default", inputs.text(rng)]),
    "subscription": lambda rng: rng.choice(["s", "s2"]),
    "consumer_id": ids,
    "producer_id": ids,
    "ledgerId": lambda rng: rng.choice([*range(12), 2**64 - 1, inputs.number(rng, 0, 2**64)]),
    "entryId": lambda rng: rng.choice([0, 1, 2, 2**64 - 1, inputs.number(rng, 0, 2**64)]),
    "start_message_rollback_duration_sec": lambda rng: rng.choice([0, 0, 5, inputs.number(rng, 0, 2**64)]),
    "topics_pattern": lambda rng: rng.choice(["public/default/.*", "(a+)+$", inputs.text(rng)]),
}


def frame(rng: random.Random) -> bytes:
    if rng.random() < 0.35:
        made = BaseCommand(type=BaseCommand.SEND)
        made.send.CopyFrom(inputs.message(rng, wire.CommandSend, BINARY_KNOWN))
        made.send.producer_id = ids(rng)
        made.send.sequence_id = rng.randrange(2**63) if rng.random() < 0.2 else rng.randrange(50)
        return partial_frame(made, inputs.entry(rng))
    kind = rng.choice(_COMMANDS)
    made = BaseCommand(type=kind)  # type: ignore[arg-type]
    body = getattr(made, BODY_OF_TYPE[kind])
    body.SetInParent()
    body.CopyFrom(inputs.message(rng, type(body), BINARY_KNOWN))
    if rng.random() < 0.1:
        data = damaged(rng, partial_frame(made)[4:])
        size = len(data) if rng.random() < 0.8 else rng.choice([0, 3, 4, len(data) + 1, 2**31 - 1, 2**32 - 1])
        return size.to_bytes(4) + data
    return partial_frame(made)


def partial_frame(made: BaseCommand, entry: bytes = b"") -> bytes:
    """The bytes of a command, also if it lacks a required field."""
    body = made.SerializePartialToString()
    return (4 + len(body) + len(entry)).to_bytes(4) + len(body).to_bytes(4) + body + entry


async def binary_session(server: Server, rng: random.Random) -> int:
    """A connection with a producer and two consumers that sends hostile frames until the server closes it."""
    topic = rng.choice([TOPIC, TOPIC, "persistent://public/default/u"])
    client = await client_of(server, topic)
    client.send(BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
    for number, kind in ((1, wire.CommandSubscribe.Exclusive), (2, rng.choice([1, 2, 3]))):
        client.send(
            BaseCommand.SUBSCRIBE, topic=topic, consumer_id=number, request_id=number, subType=kind,
            subscription=f"s{number}{kind}", initialPosition=wire.CommandSubscribe.Earliest,
        )  # fmt: skip
    for _ in range(3):  # perhaps with refusals: the inputs before have left something behind
        await client.answer()
    for number in (1, 2):
        client.send(BaseCommand.FLOW, consumer_id=number, messagePermits=rng.choice([1, 10, 1_000]))
    count = rng.randrange(1, 15)
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        for _ in range(count):
            client.writer.write(frame(rng))
        client.writer.write_eof()
    await until_closed(client._reader)
    client.close()
    return count


async def test_binary_port(server: Server, bystanders: Bystanders, numbers: Run) -> None:
    await abuse(server, bystanders, numbers, "binary", lambda rng: binary_session(server, rng))


# ------------------------------------------------------------------------------------------ gRPC

GRPC_KNOWN: inputs.Known = {
    "topic": lambda rng: rng.choice([TOPIC, "t", inputs.text(rng)]),
    "namespace": lambda rng: rng.choice(["public/default", inputs.text(rng)]),
    "subscription": lambda rng: rng.choice(["g", "g2", inputs.text(rng)]),
    "ledger_id": lambda rng: rng.choice([*range(12), -1, inputs.number(rng, -(2**63), 2**63)]),
    "entry_id": lambda rng: rng.choice([0, 1, 2, -1, inputs.number(rng, -(2**63), 2**63)]),
    "batch_size": lambda rng: rng.choice([1, 10, 1_000_000, inputs.number(rng, -(2**31), 2**31)]),
    "batch_index": lambda rng: rng.choice([0, 1, inputs.number(rng, -(2**31), 2**31)]),
    "count": lambda rng: rng.choice([0, 1, 20, inputs.number(rng, -(2**31), 2**31)]),
    "permits": lambda rng: rng.choice([10, 1_000, inputs.number(rng, -(2**31), 2**31)]),
    "partitions": lambda rng: rng.choice([0, 3, 2_000_000_000, -1]),
    "type": lambda rng: rng.randrange(4),
}
_UNARY: Final[dict[str, Any]] = {
    "Lookup": api.LookupRequest,
    "GetTopic": api.GetTopicRequest,
    "GetLastMessageId": api.GetLastMessageIdRequest,
    "CreateTopic": api.CreateTopicRequest,
    "ListTopics": api.ListTopicsRequest,
    "GetTopicStats": api.GetTopicStatsRequest,
    "GetSchema": api.GetSchemaRequest,
    "DeleteTopic": api.DeleteTopicRequest,
}


def named(error: grpc.RpcError) -> None:
    """Assert that a refusal says what it is about."""
    code, details = error.code(), error.details() or ""
    if details == "Internal error from Core":  # the client's own library: the call had ended
        return
    assert code not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), f"{code}: {details}"
    assert len(details) > 10, f"{code}: {details}"


async def grpc_stream(channel: Any, rng: random.Random) -> int:
    kind: Any
    if rng.random() < 0.5:
        method, kind = "Publish", api.PublishRequest
        opening: Any = api.PublishRequest(open=api.PublishRequest.Open(topic=TOPIC))
    else:
        method, kind = "Consume", api.ConsumeRequest
        opening = api.ConsumeRequest(
            open=api.ConsumeRequest.Open(
                topic=TOPIC,
                subscription=f"g{rng.randrange(3)}",
                type=rng.randrange(4),  # type: ignore[arg-type]
                from_earliest=True,
            )
        )
    call = channel.stream_stream(
        f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
    )(timeout=ANSWER_S)
    requests = [inputs.message(rng, kind, GRPC_KNOWN) for _ in range(rng.randrange(1, 8))]
    if rng.random() < 0.85:
        for one in requests:
            one.ClearField("open")
        requests.insert(0, opening)
    try:
        for one in requests:
            await call.write(one.SerializeToString())
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        named(error)
    except asyncio.InvalidStateError:  # the call had ended when the next request was to be written
        pass
    return len(requests)


async def grpc_unary(channel: Any, rng: random.Random) -> int:
    method = rng.choice(list(_UNARY))
    request = inputs.message(rng, _UNARY[method], GRPC_KNOWN)
    call = channel.unary_unary(
        f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
    )
    try:
        await call(request.SerializeToString(), timeout=ANSWER_S)
    except grpc.aio.AioRpcError as error:
        named(error)
    return 1


async def test_grpc_port(server: Server, bystanders: Bystanders, numbers: Run) -> None:
    async with grpc.aio.insecure_channel(server.ports["grpc"]) as channel:

        async def send(rng: random.Random) -> int:
            return await (grpc_stream if rng.random() < 0.7 else grpc_unary)(channel, rng)

        await abuse(server, bystanders, numbers, "gRPC", send)


async def test_grpc_port_without_grpc(server: Server, bystanders: Bystanders, numbers: Run) -> None:
    """Bytes that are not HTTP/2, or HTTP/2 frames that make no sense."""
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    async def send(rng: random.Random) -> int:
        head = rng.choice([b"", preface, preface + bytes(9)])
        body = b"".join(
            len(data).to_bytes(3) + rng.randbytes(2) + rng.randrange(2**31).to_bytes(4) + data
            for data in (rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(6)))
        )
        await raw_bytes(int(server.ports["grpc"].rpartition(":")[2]), head + body)
        return 1

    await abuse(server, bystanders, numbers, "HTTP/2", send, COUNT // 4)


async def raw_bytes(port: int, data: bytes) -> None:
    """Send bytes to a port and ignore the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(OSError, RuntimeError, TimeoutError):
        writer.write(data)
        writer.write_eof()
        async with asyncio.timeout(1):  # a server may wait for the rest of what it was promised
            while await reader.read(1 << 16):
                pass
    writer.close()


# ------------------------------------------------------------------------------------------ HTTP

KNOWN_PARTS: Final = {
    "tenant": "public", "namespace": "default", "topic": "t", "subscription": "s", "cluster": "east",
    "policy": "retention",
    "bundle": "0x00000000_0x10000000", "timestamp": "0", "version": "0", "domain": "persistent",
    "broker": "127.0.0.1:1",
}  # fmt: skip

_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
_SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}"
BROKER_PATHS: Final = (
    "/admin/v2/clusters/{cluster}", "/admin/v2/tenants/{tenant}", "/admin/v2/namespaces/{tenant}", _NAMESPACE,
    f"{_NAMESPACE}/topics", f"{_NAMESPACE}/bundles", f"{_NAMESPACE}/unload", f"{_NAMESPACE}/{{bundle}}/unload",
    *(f"{_NAMESPACE}/{name}" for name in (
        "persistence", "retention", "deduplication", "autoTopicCreation", "properties", "delayedDelivery",
        "schemaCompatibilityStrategy", "maxProducersPerTopic", "maxUnackedMessagesPerConsumer", "{policy}",
    )),
    "/admin/v2/persistent/{tenant}/{namespace}", "/admin/v2/persistent/{tenant}/{namespace}/partitioned", _TOPIC,
    *(f"{_TOPIC}/{name}" for name in (
        "partitions", "stats", "internalStats", "partitioned-stats", "partitioned-internalStats", "properties",
        "messageid/{timestamp}", "subscriptions", "lastMessageId", "unload", "createMissedPartitions",
        "subscription/{subscription}", "subscription/{subscription}/skip_all",
        "subscription/{subscription}/resetcursor", "subscription/{subscription}/resetcursor/{timestamp}",
    )),
    *(f"{_SCHEMA}/{name}" for name in ("schema", "schemas", "compatibility", "version", "schema/{version}")),
    "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", "/admin/{policy}/{topic}", "/{policy}",
)  # fmt: skip
BROKER_MEMBERS: Final = (
    "bookkeeperEnsemble", "bookkeeperWriteQuorum", "bookkeeperAckQuorum", "managedLedgerMaxMarkDeleteRate",
    "retentionTimeInMinutes", "retentionSizeInMB", "allowAutoTopicCreation", "topicType", "defaultNumPartitions",
    "allowedClusters", "adminRoles", "bundles", "numBundles", "boundaries", "replication_clusters", "persistence",
    "retention_policies", "ledgerId", "entryId", "isExcluded", "partitions", "properties", "type", "schema", "active",
    "tickTime", "subscription_types_enabled", "autoTopicCreationOverride", "deleted",
)  # fmt: skip
BOOKIE_PATHS: Final = (
    *(f"/api/v1/bookie/{name}" for name in (
        "info", "state", "sanity", "cluster_info", "list_bookies", "list_bookie_info", "last_log_mark",
        "list_disk_file", "expand_storage", "gc", "gc_details", "gc/suspend_compaction", "gc/resume_compaction",
        "entry_location_compact", "cookies", "is_ready", "{policy}",
    )),
    *(f"/api/v1/magnetar/{name}" for name in ("status", "scrub", "flush", "ledgers", "disk_files")),
    "/api/v1/ledger/list", "/api/v1/ledger/metadata", "/api/v1/ledger/read", "/api/v1/config/server_config", "/metrics",
    "/heartbeat", "/api/v1/autorecovery/{policy}", "/{topic}",
)  # fmt: skip
BOOKIE_MEMBERS: Final = (
    "readOnly", "forceMetadata", "suspendMajor", "suspendMinor", "resumeMajor", "resumeMinor",
    "entryLocationRocksDBCompact",
    "entryLocations", "majorCompaction", "minorCompaction", "name",
)  # fmt: skip
BOOKIE_QUERIES: Final = ("ledger_id", "start_entry_id", "end_entry_id", "page", "print_metadata", "type", "bookie_id")

_METHODS: Final = ("GET", "GET", "PUT", "POST", "DELETE", "HEAD", "PATCH", "OPTIONS")


async def http_call(
    session: aiohttp.ClientSession, base: str, rng: random.Random, paths: tuple[str, ...], members: tuple[str, ...]
) -> int:
    method, path = rng.choice(_METHODS), inputs.path(rng, rng.choice(paths), KNOWN_PARTS)
    if paths is BOOKIE_PATHS and rng.random() < 0.6:
        values = (str(inputs.number(rng, -(2**63), 2**64)), rng.choice(inputs.PARTS))
        path = f"{path.partition('?')[0]}?{rng.choice(BOOKIE_QUERIES)}={rng.choice(values)}"
    data = inputs.json_body(rng, members) if method in ("PUT", "POST", "PATCH") and rng.random() < 0.9 else None
    kinds = ("application/json", "application/json", "application/json", "text/plain", "application/json; charset=x")
    headers = {"Content-Type": rng.choice(kinds)} if data is not None else {}
    if rng.random() < 0.05:
        headers["Origin"] = rng.choice(["null", "http://evil.example", base, "http://["])
    try:
        async with session.request(
            method, URL(base + path, encoded=True), data=data, headers=headers, allow_redirects=False
        ) as answer:
            said = await answer.text(errors="replace")
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        return 1  # what is no HTTP any more may end its connection
    except aiohttp.ClientResponseError:
        assert len(path) > 8_000, f"{method} {path}: no answer in HTTP"  # the line is too long, and the rest is sent
        return 1
    if answer.status >= 400 and method != "HEAD":
        assert len(said) > 5, f"{method} {path}: {answer.status} and no word why"
        assert len(said) < 10_000, f"{method} {path}: {answer.status} with {len(said)} characters"
    return 1


async def garbage_call(url: str, rng: random.Random) -> int:
    line = rng.choice(
        [
            b"GET / HTTP/1.1\r\n",
            b"POST /admin/v2/tenants/x HTTP/1.1\r\nHost: a\r\n",
            b"\0\0\0\0",
            b"GET " + b"/x" * 8_000,
        ]
    )
    rest = rng.choice(
        [
            b"\r\n",
            b"Content-Length: 99999999999\r\n\r\n{}",
            b"Content-Length: -1\r\n\r\n",
            b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
            b"X: " + b"y" * 100_000 + b"\r\n\r\n",
            rng.randbytes(200),
        ]
    )
    await raw_bytes(URL(url).port or 80, line + rest)
    return 1


@pytest.mark.parametrize("which", ["http", "bookie_http"])
async def test_http_ports(server: Server, bystanders: Bystanders, numbers: Run, which: str) -> None:
    base = server.ports[which]
    paths, members = (BROKER_PATHS, BROKER_MEMBERS) if which == "http" else (BOOKIE_PATHS, BOOKIE_MEMBERS)
    timeout = aiohttp.ClientTimeout(total=ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:

        async def send(rng: random.Random) -> int:
            if rng.random() < 0.05:
                return await garbage_call(base, rng)
            return await http_call(session, base, rng, paths, members)

        await abuse(server, bystanders, numbers, which, send)


# ---------------------------------------------------------------------------------------- bookie

# A client with the key of a ledger may write to it and fence it. The key of the brokers' ledgers is that of an empty
# password.
KEY: Final = b"of somebody else ..."
assert len(KEY) == MASTER_KEY_BYTES

BOOKIE_KNOWN: inputs.Known = {
    "ledgerId": lambda rng: rng.choice([1, 2, 3, inputs.number(rng, -(2**63), 2**63)]),
    "entryId": lambda rng: rng.choice([0, 1, -1, inputs.number(rng, -(2**63), 2**63)]),
    "masterKey": lambda rng: rng.choice([KEY, b"", b"k" * 1_000_000]),
    "body": lambda rng: rng.choice([stored_entry(rng.randrange(1, 4), rng.randrange(3)), rng.randbytes(50), b""]),
    "timeOut": lambda rng: rng.choice([0, 5, 2**63 - 1]),
    "version": lambda rng: v3.VERSION_THREE if hasattr(v3, "VERSION_THREE") else 3,
}


def bookie_v2(rng: random.Random) -> bytes:
    ledger_id, entry_id = rng.choice([1, 2, 3, -1, 2**62, -(2**63)]), rng.choice([0, 1, 5, -1, 2**62])
    data = stored_entry(rng.randrange(1, 4), rng.randrange(4), rng.randbytes(rng.randrange(60)))
    return rng.choice(
        [
            v2.add_request_head(rng.choice([0, 1, 2, 4, 65_535]), KEY, len(data)) + data,
            v2.read_request(ledger_id, entry_id),
            v2.read_request(ledger_id, entry_id, v2.FLAG_DO_FENCING, KEY),
            v2.batch_read_request(ledger_id, entry_id, 7, rng.choice([0, 5, -1, 2**31 - 1]), rng.choice([0, 2**62])),
            v2.auth_frame(rng.randbytes(rng.randrange(40))),
        ]
    )


def bookie_v3(rng: random.Random) -> bytes:
    request = inputs.message(rng, bk.Request, BOOKIE_KNOWN)
    return v3.frame_of(request) if request.IsInitialized() else v3.read_request(1, 1, 0)


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_bookie_port(server: Server, bystanders: Bystanders, numbers: Run, protocol: str) -> None:
    make = bookie_v2 if protocol == "v2" else bookie_v3

    async def send(rng: random.Random) -> int:
        wire = await wire_to(server)
        if protocol == "v3":
            wire.send(v3.bookie_info_request(1))
        count = rng.randrange(1, 12)
        for _ in range(count):
            data = make(rng)
            if rng.random() < 0.3:
                data = damaged(rng, data[4:])
                size = len(data) if rng.random() < 0.9 else rng.choice([0, 1, len(data) + 1, 2**31 - 1, 2**32 - 1])
                data = size.to_bytes(4) + data
            with contextlib.suppress(OSError, RuntimeError):
                wire.send(data)
        with contextlib.suppress(OSError, RuntimeError):
            wire.writer.write_eof()
        await until_closed(wire._reader)
        wire.close()
        return count

    await abuse(server, bystanders, numbers, f"bookie {protocol}", send)
