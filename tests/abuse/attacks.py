"""Hostile clients of each role at the guarded server: one function for each kind of `tests.abuse.kinds.GUARDED`.

Each sends some drawn inputs and returns how many. It asserts what its role may not have got; that the server lives, has
its memory and answers others is what `driving.abuse` asks after each group.
"""

import asyncio
import contextlib
import gzip
import itertools
import json
import random
import re
import unicodedata
import zlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import cramjam
import grpc
import pytest
from yarl import URL

from broker.policies.topic.events import SCHEMA, SCHEMA_PROPERTIES, encode
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from broker.wire.pulsar_pb2 import BaseCommand
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.types import MIB
from magnetar_core.security.tokens import sign
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import compress, encode_entry
from managed_ledger.messages_pb2 import LZ4, ZLIB, ZSTD, KeyValue, MessageMetadata, SingleMessageMetadata
from tests.abuse import adversaries
from tests.abuse.actions import opening, owner, publishing, rest
from tests.abuse.driving import ANSWER_S, COUNT
from tests.abuse.kinds import GUARDED
from tests.abuse.roles import NAMESPACE, PATIENCE_S, ROLES, SECRET, SUPER_USER, TOPIC, Doors, bearer, error_of, token_of
from tests.abuse.server import MANAGEMENT_TOKEN
from tests.abuse.world import Server, wire_to
from tests.support.bookie_disks import KEY, stored_entry
from tests.unit.broker.raw_client import RawClient

IS_LONG: Final = COUNT >= 1_000

_numbers = itertools.count()
_schemas = itertools.count()
_waves = itertools.count()


class Field(NamedTuple):
    """Where they fight."""

    server: Server
    doors: tuple[Doors, Doors]


Attack = Callable[[Field, random.Random], Awaitable[int]]


def some(usual: int, long: int) -> int:
    """How much of it: in `test-all`, and in `make abuse`."""
    return long if IS_LONG else usual


@contextlib.asynccontextmanager
async def client_of(field: Field, role: str, topic: str) -> Any:
    """At the broker that serves *topic*."""
    client = await (await owner(field.doors, topic)).binary(role)
    try:
        yield client
    finally:
        client.close()


async def answered(client: RawClient, count: int, kinds: tuple[int, ...]) -> None:
    """Wait for *count* answers of *kinds*, or for the end of the connection."""
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(PATIENCE_S):
            while count:
                with contextlib.suppress(TimeoutError):
                    answer = await client.answer()
                    count -= answer.type in kinds
                    if answer.type == BaseCommand.PING:
                        client.send(BaseCommand.PONG)


def entry(payload: bytes, **fields: Any) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, **fields), payload)


# ---------------------------------------------------------------------------------------- schemas

_SCHEMA_TYPES: Final = {
    wire.Schema.Avro: "AVRO", wire.Schema.Json: "JSON", wire.Schema.Protobuf: "PROTOBUF",
    wire.Schema.ProtobufNative: "PROTOBUF_NATIVE", wire.Schema.KeyValue: "KEY_VALUE",
}  # fmt: skip
_MAY_UPLOAD: Final = ("producer", "boss", SUPER_USER)


async def schemas(field: Field, rng: random.Random) -> int:
    number = next(_schemas)
    topic = f"persistent://shop/schemas/t{number}"
    kind, first, second = adversaries.schemas(rng, number)
    sent = 0
    # The first comes from who may upload it, so that there is something to compare the others with.
    for role, definition in (
        ("producer", first),
        ("producer", second),
        (rng.choice(ROLES), second),
        ("consumer", second),
    ):
        door = rng.choice([binary_schema, binary_schema, rest_schema, grpc_schema]) if sent else binary_schema
        refused = await door(field, rng, role, topic, wire.Schema(name="", type=kind, schema_data=definition))  # type: ignore[arg-type]
        assert not refused or role not in ("boss", SUPER_USER), refused
        sent += 1
    return sent


async def binary_schema(field: Field, rng: random.Random, role: str, topic: str, schema: wire.Schema) -> str:
    """Returns why the role was refused, if it was for want of a right."""
    ways: list[tuple[int, dict[str, Any]]] = [
        (BaseCommand.PRODUCER, {"producer_id": 1}),
        (BaseCommand.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": wire.CommandSubscribe.Shared}),
        (BaseCommand.GET_OR_CREATE_SCHEMA, {}),
    ]
    kind, fields = rng.choice(ways)
    at = await owner(field.doors, topic)
    try:
        client = await at.binary(role)
    except ConnectionError as error:
        if role != "nobody":
            raise
        return str(error)
    try:
        answer = await at.ask(client, kind, topic=topic, request_id=1, **{"schema": schema, **fields})
    except ConnectionError:
        return ""
    finally:
        client.close()
    problem = error_of(answer)
    if role == "stranger":
        assert problem == "AuthorizationError", answer
    assert problem != "UnknownError", answer
    return problem if problem.startswith("Auth") else ""


async def rest_schema(field: Field, rng: random.Random, role: str, topic: str, schema: wire.Schema) -> str:
    body = {"type": _SCHEMA_TYPES[schema.type], "schema": schema.schema_data.decode("latin-1"), "properties": {}}
    path = f"/admin/v2/schemas/{topic.partition('://')[2]}/{rng.choice(['schema', 'compatibility', 'version'])}"
    answer = await rng.choice(field.doors).call(role, "POST", path, body)
    assert answer.status < 500, f"{path}: {answer}"
    if role in ("nobody", "stranger") or (role == "consumer" and not path.endswith("/version")):
        assert answer.is_refused, f"{role} {path}: {answer}"
    return answer.text if answer.is_refused and path.endswith("/schema") else ""


async def grpc_schema(field: Field, rng: random.Random, role: str, topic: str, schema: wire.Schema) -> str:
    told = api.Schema(type=adversaries.NUMBERS[schema.type], data=schema.schema_data)
    request: Any = publishing(topic) if rng.random() < 0.5 else opening(topic, "s")
    request.open.schema.CopyFrom(told)
    error = await grpc_opened(await owner(field.doors, topic), role, request)
    if role in ("nobody", "stranger"):
        assert error.partition(" ")[0] in ("PERMISSION_DENIED", "UNAUTHENTICATED"), error
    assert error.partition(" ")[0] not in ("INTERNAL", "UNKNOWN"), error
    return error if error.startswith(("PERMISSION", "UNAUTH")) else ""


async def grpc_opened(at: Doors, role: str, request: Any) -> str:
    """Make a Publish or Consume call; the error with which it ended before the first answer."""
    while True:
        error = await _grpc_opened(at, role, request)
        if error != "INTERNAL Internal error from Core":  # the client's library: the call had ended as it wrote
            return error


async def _grpc_opened(at: Doors, role: str, request: Any) -> str:
    method = "Publish" if isinstance(request, api.PublishRequest) else "Consume"
    async with at.channel() as channel:
        call = channel.stream_stream(
            f"/magnetar.topics.v1.Topics/{method}", request_serializer=bytes, response_deserializer=bytes
        )(metadata=list(bearer(role).items()), timeout=ANSWER_S)
        try:
            await call.write(request.SerializeToString())
            if await call.read() is grpc.aio.EOF:
                return f"{(await call.code()).name} {await call.details()}"
            call.cancel()
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name} {error.details()}"
        except asyncio.InvalidStateError:  # it had ended when the next request was to be written
            return f"{(await call.code()).name} {await call.details()}"
    return ""


# ----------------------------------------------------------------------------------------- events

_EVENTS: Final = "shop/events"
_OWN: Final = f"persistent://{_EVENTS}/__change_events"


def event_schema(rng: random.Random) -> bytes:
    """That of the brokers with a field in front that the client has invented."""
    made = json.loads(SCHEMA)
    text = json.dumps(made)
    kind = rng.choice([adversaries.swollen, *adversaries.GRAMMAR])(rng)
    return text.replace('"fields": [', f'"fields": [{{"name": "more", "type": {kind}}}, ', 1).encode()


def event(rng: random.Random) -> bytes:
    name = TopicName.parse(f"persistent://{_EVENTS}/t")
    plain = encode(name, {"maxProducerPerTopic": rng.choice([0, 1, -1, 2**31 - 1])}, is_global=False, cluster="c")
    return adversaries.value(rng) + plain if rng.random() < 0.8 else plain


async def events(field: Field, rng: random.Random) -> int:
    """Who may not is refused at each name; what a super user's broken tool writes closes no namespace."""
    name = rng.choice([_OWN, _OWN, f"{_OWN}-partition-0", f"persistent://{_EVENTS}/__transaction_buffer_snapshot"])
    properties = [KeyValue(key=key, value=text) for key, text in SCHEMA_PROPERTIES.items()]
    schema = wire.Schema(name="", type=wire.Schema.Avro, schema_data=event_schema(rng), properties=properties)
    role = rng.choice(ROLES)
    at = await owner(field.doors, name)
    if role != SUPER_USER:
        for request in (publishing(name), opening(name)):
            error = await grpc_opened(at, role, request)
            assert error.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")), f"{role} at {name}: {error}"
        with contextlib.suppress(ConnectionError):
            client = await at.binary(role)
            for kind, fields in (
                (BaseCommand.PRODUCER, {"producer_id": 1, "schema": schema}),
                (BaseCommand.SUBSCRIBE, {"consumer_id": 1, "subscription": "s", "subType": 1}),
            ):
                answer = await at.ask(client, kind, topic=name, request_id=1, **fields)
                assert error_of(answer) == "AuthorizationError", f"{role} at {name}: {answer}"
            client.close()
        return 4
    async with client_of(field, role, _OWN) as client:
        answer = await at.ask(
            client, BaseCommand.PRODUCER, topic=_OWN, producer_id=1, request_id=1,
            **({"schema": schema} if rng.random() < 0.7 else {}),
        )  # fmt: skip
        count = 5
        if answer.type == BaseCommand.PRODUCER_SUCCESS:
            for number in range(count):
                fields = {} if rng.random() < 0.5 else {"schema_version": rng.choice([b"", bytes(8), b"\xff" * 8])}
                key = rng.choice([f"persistent://{_EVENTS}/t", "", "x", "\0", "__G__" * 1_000])
                client.publish(1, number, data=entry(event(rng), partition_key=key, **fields))
            await answered(client, count, (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR))
    unloaded = await field.doors[0].call(SUPER_USER, "PUT", f"/admin/v2/namespaces/{_EVENTS}/unload")
    assert unloaded.status == 204, unloaded
    topic = f"persistent://{_EVENTS}/fresh"
    async with client_of(field, "producer", topic) as client:
        opened = await at.ask(client, BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
    assert not error_of(opened) or error_of(opened) == "ProducerBusy", f"the namespace does not open: {opened}"
    return count


# ---------------------------------------------------------------------------------------- batches


def many_messages(count: int, key: str) -> bytes:
    single = SingleMessageMetadata(payload_size=0, partition_key=key).SerializeToString()
    return (len(single).to_bytes(4) + single) * count


async def batches(field: Field, rng: random.Random) -> int:
    topic = f"{TOPIC}-batches-{next(_numbers)}"
    made = await field.doors[0].call("boss", "PUT", rest(topic))
    assert made.status == 204, made
    count = some(1, 8)
    async with client_of(field, "producer", topic) as client:
        await client.produce(topic)
        for number in range(count):
            codec = rng.choice([ZLIB, ZSTD, LZ4])
            data = many_messages(100_000, rng.choice(["", "k", f"k{number}"]))
            fields: dict[str, Any] = {"compression": codec, "uncompressed_size": len(data)}
            client.publish(
                1, number, data=entry(compress(codec, data), num_messages_in_batch=100_000, **fields),
                num_messages=100_000,
            )  # fmt: skip
        await answered(client, count, (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR))
    begun = await field.doors[0].call("boss", "PUT", f"{rest(topic)}/compaction")
    assert begun.status == 204, begun
    async with asyncio.timeout(2 * PATIENCE_S):
        while "RUNNING" in (await field.doors[0].call("boss", "GET", f"{rest(topic)}/compaction")).text:
            await asyncio.sleep(0.05)
    async with client_of(field, "consumer", topic) as client:
        await client.subscribe(topic, permits=1_000_000, read_compacted=True,
                               initialPosition=wire.CommandSubscribe.Earliest)  # fmt: skip
        await client.nothing_came() if rng.random() < 0.5 else None
    return count


# ----------------------------------------------------------------------------------------- bodies

_PATHS: Final = (
    ("POST", f"/admin/v2/namespaces/{NAMESPACE}/maxProducersPerTopic"),
    ("PUT", "/admin/v2/persistent/shop/n1/top/properties"),
    ("POST", "/admin/v2/schemas/shop/n1/top/schema"),
    ("PUT", "/admin/v2/tenants/x"),
)  # fmt: skip
_BOOKIE_PATHS: Final = (("PUT", "/api/v1/bookie/gc"), ("PUT", "/api/v1/bookie/state/readonly"))
_MANAGEMENT_PATHS: Final = (
    ("PUT", "/manage/v1/auto-recovery"), ("POST", "/manage/v1/callbacks"), ("PUT", "/manage/v1/bookies/x/drain"),
)  # fmt: skip
_PATHS_AT: Final = {"http": _PATHS, "bookie_http": _BOOKIE_PATHS, "management": _MANAGEMENT_PATHS}
_ZEROS: Final = bytes(6 * MIB)
_PACKED: Final = {
    "gzip": gzip.compress(_ZEROS),
    "deflate": zlib.compress(_ZEROS),
    "zstd": bytes(cramjam.zstd.compress(_ZEROS)),
    "br": bytes(cramjam.brotli.compress(_ZEROS)),
}


def body(rng: random.Random) -> tuple[str, bytes]:
    """Headers and bytes."""
    kind = rng.randrange(6)
    if kind < 2:
        name = rng.choice(list(_PACKED))
        return f"Content-Encoding: {name}\r\nContent-Length: {len(_PACKED[name])}\r\n", _PACKED[name]
    if kind == 2:
        count = rng.choice([10, 1_000, 5_000])
        return "Transfer-Encoding: chunked\r\n", b"1\r\n \r\n" * count + rng.choice([b"0\r\n\r\n", b"", b"zz\r\n"])
    if kind == 3:
        data = bytes(rng.choice([0, 1, 100_000]))
        return f"Content-Length: {rng.choice([0, 1, 2**31, 2**63, 10**40, -1])}\r\n", data
    if kind == 4:
        packed = _PACKED["gzip"]
        chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (packed[:10], packed[10:]))
        return "Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", chunks + b"0\r\n\r\n"
    return "Content-Length: 2000000\r\n", rng.choice(
        [b"[" * 2_000_000, b'"' + b"x" * 1_999_998 + b'"', b"1" * 2_000_000]
    )


async def bodies(field: Field, rng: random.Random) -> int:
    door = rng.choice(["http", "http", "bookie_http", "management"])
    url = URL(field.server.ports[door])
    method, path = rng.choice(_PATHS_AT[door])
    named = bearer(rng.choice(ROLES))
    if door == "management" and rng.random() < 0.5:
        named = {"authorization": f"Bearer {MANAGEMENT_TOKEN}"}
    shown = "".join(f"{name}: {text}\r\n" for name, text in named.items())
    headers, data = body(rng)
    head = f"{method} {path} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n{shown}{headers}\r\n"
    reader, writer = await asyncio.open_connection(url.host, url.port)
    with contextlib.suppress(OSError, RuntimeError):
        writer.write(head.encode() + data)
        writer.write_eof()
        async with asyncio.timeout(ANSWER_S):
            status = (await reader.readline()).split()
        assert not status or int(status[1]) < 500, f"{head}: {status}"
        # What is unpacked is what nobody looked at before: these servers unpack nothing.
        assert "Content-Encoding" not in headers or not status or int(status[1]) == 415, f"{head}: {status}"
    writer.close()
    return 1


# ----------------------------------------------------------------------------------------- frames


_SIZE: Final = 5_000_000
_MISSING: Final = 100
_PIECE: Final = bytes(_SIZE - 2 * _MISSING)
"""One for all connections: the test must not hold what the server must not hold either."""


def half_frame(rng: random.Random, kind: str) -> bytes:
    """The head of what declares `_SIZE` bytes; `_PIECE` follows it, and no more."""
    if kind in ("http", "bookie_http"):
        head = f"PUT /admin/v2/tenants/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {_SIZE}\r\n"
        shown = bearer(rng.choice(ROLES)).get("authorization")
        return f"{head}{f'Authorization: {shown}' if shown else 'X: y'}\r\n\r\n".encode()
    if kind == "binary":
        token = token_of(rng.choice(ROLES)).encode()
        connect = command(BaseCommand.CONNECT, client_version="x", auth_method_name="token", auth_data=token)
        return bytes(connect) + _SIZE.to_bytes(4)
    return _SIZE.to_bytes(4) + (v2.add_request_head(0, KEY, 0)[4:] if rng.random() < 0.5 else b"")


async def frames(field: Field, rng: random.Random) -> int:
    count = 150  # of the bookie's frames these would be 750 MB
    kinds = ("bookie", "binary", "http", "bookie_http")

    async def hold(kind: str) -> asyncio.StreamWriter | None:
        port = field.server.ports[kind]
        with contextlib.suppress(OSError, TimeoutError):
            _, writer = await asyncio.open_connection("127.0.0.1", port if isinstance(port, int) else URL(port).port)
            writer.write(half_frame(rng, kind))
            writer.write(_PIECE)
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(5):  # a server that reads no further is one that holds no more
                    await writer.drain()
            return writer
        return None

    kind = kinds[next(_waves) % len(kinds)]
    held = []
    for _ in range(count // 10):  # libuv reads two megabytes of each connection in one turn
        held += await asyncio.gather(*(hold(kind) for _ in range(10)))
    field.server.check(f"{count} unfinished frames at the port {kind}")
    for writer in held:
        if writer is not None:
            writer.transport.abort()
    return count


# ------------------------------------------------------------------------------------- connections

# Nothing of them is an error yet, at whichever port.
_HALF_GREETINGS: Final = (b"", b"G", b"\0\0", b"\0\0\0")


async def ask_http(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], method: str, path: str) -> bytes:
    """The first line of the answer on a connection that stays open."""
    reader, writer = connection
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\r\n".encode())
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: (\d+)", head)
        await reader.readexactly(int(size[1]) if size else 0)
    return head.partition(b"\r\n")[0]


async def idle_connections(field: Field, rng: random.Random) -> int:
    count = 1_100  # more than the server may have descriptors (conftest.DESCRIPTORS)
    ports = [field.server.ports[kind] for kind in ("binary", "http", "grpc", "bookie", "bookie_http")]
    numbers = [port if isinstance(port, int) else int(port.rpartition(":")[2]) for port in ports]
    only = rng.choice([*numbers, None])

    async def hold() -> asyncio.StreamWriter | None:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(10):
                _, writer = await asyncio.open_connection("127.0.0.1", only or rng.choice(numbers))
            writer.write(rng.choice(_HALF_GREETINGS))
            return writer
        return None

    # Somebody who was there before, and has storage open a file while no descriptor is left for others.
    operator = await asyncio.open_connection("127.0.0.1", numbers[4])
    await ask_http(operator, "GET", "/heartbeat")
    held = []
    for _ in range(count // 100):  # what waits to be accepted is accepted in one turn
        held += await asyncio.gather(*(hold() for _ in range(100)))
    field.server.check(f"{count} idle connections")
    assert b" 200 " in await ask_http(operator, "PUT", "/api/v1/magnetar/flush")
    field.server.check(f"a flush beside {count} idle connections")
    operator[1].close()
    for writer in held:
        if writer is not None:
            writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with contextlib.suppress(OSError, ConnectionError):
                (await field.doors[0].binary("boss")).close()
                break
            await asyncio.sleep(0.1)
    return count


# -------------------------------------------------------------------------------------- producers


async def properties(field: Field, rng: random.Random) -> int:
    topic = f"persistent://shop/much/p{rng.randrange(20)}"
    many = [KeyValue(key=f"key-{number}", value="v" * rng.choice([1, 8])) for number in range(9_900)]
    count = some(12, 60)
    async with client_of(field, "producer", topic) as client:
        for number in range(count):
            if rng.random() < 0.8:
                client.send(BaseCommand.PRODUCER, topic=topic, producer_id=number, request_id=number, metadata=many)
            else:
                client.send(BaseCommand.SUBSCRIBE, topic=topic, consumer_id=number, request_id=number,
                            subscription=f"s{number}", subType=1, metadata=many)  # fmt: skip
        await answered(client, count, (BaseCommand.PRODUCER_SUCCESS, BaseCommand.SUCCESS, BaseCommand.ERROR))
        field.server.check(f"{count} producers with {len(many)} properties each")
        stats = await field.doors[0].call("boss", "GET", f"{rest(topic)}/stats")
        assert stats.status in (200, 404), stats.text[:200]
        assert len(stats.text) < 64 * MIB, f"statistics of {len(stats.text) // MIB} MB"
    return count


async def consumers(field: Field, rng: random.Random) -> int:
    topic = f"{TOPIC}-consumers"
    kind = rng.choice([wire.CommandSubscribe.Shared, wire.CommandSubscribe.Key_Shared])
    # Each consumer of Key_Shared has a hundred places on a ring of keys.
    count = 2_000 if kind == wire.CommandSubscribe.Key_Shared else some(2_000, 10_000)
    async with client_of(field, "consumer", topic) as client, client_of(field, "producer", topic) as sender:
        for number in range(count):
            client.send(BaseCommand.SUBSCRIBE, topic=topic, subscription=f"many{kind}", subType=kind,
                        consumer_id=number, request_id=number)  # fmt: skip
            if number % 200 == 199:
                await answered(client, 200, (BaseCommand.SUCCESS, BaseCommand.ERROR))
        for number in range(count):
            client.send(BaseCommand.FLOW, consumer_id=number, messagePermits=1)
        await sender.produce(topic)
        sender.publish(1, *range(count))
        await answered(sender, count, (BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR))
        if rng.random() < 0.5:
            for number in range(count):
                client.send(BaseCommand.FLOW, consumer_id=number, messagePermits=1)
            client.send(BaseCommand.PING)
            await answered(client, 1, (BaseCommand.PONG,))
    return count


# ------------------------------------------------------------------------------------------ lists

_LISTED: Final = 2**42


async def lists(field: Field, rng: random.Random) -> int:
    bookie = await wire_to(field.server)
    entries = some(20_000, 100_000)
    if (await bookie.read(_LISTED, entries - 1)) is not None and isinstance(
        await bookie.read(_LISTED, entries - 1), int
    ):
        for first in range(0, entries, 1_000):
            for number in range(first, first + 1_000):
                data = stored_entry(_LISTED, number)
                bookie.send(v2.add_request_head(0, KEY, len(data)) + data)
            await bookie.until(len(bookie.frames) + 1_000, PATIENCE_S)
            bookie.frames.clear()
    bookie.close()
    held = [await wire_to(field.server) for _ in range(some(5, 20))]
    for one in held:
        one.send(*(v3.list_of_entries_request(number, _LISTED) for number in range(200)))
    field.server.check("lists of a ledger that nobody reads")
    await held[0].until(some(20, 100), PATIENCE_S)
    for one in held:
        one.close()
    async with client_of(field, rng.choice(["producer", "consumer"]), TOPIC) as client:
        for number in range(20):
            client.send(BaseCommand.GET_TOPICS_OF_NAMESPACE, namespace="shop/much", request_id=number,
                        topics_pattern=rng.choice([".*", "(a+)+$", ".*.*.*.*x", ""]))  # fmt: skip
        await answered(client, 20, (BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, BaseCommand.ERROR))
    return 200 * len(held) + 20


# ----------------------------------------------------------------------------------------- tokens


def bad_token(rng: random.Random) -> str:
    good = token_of(SUPER_USER)
    head, claims, signature = good.split(".")
    subject: Any = rng.choice(["", None, [], {}, 7, True])
    claimed: list[dict[str, Any]] = [
        {"exp": 10**400}, {"exp": 1}, {"exp": "never"}, {"nbf": 2**62}, {"sub": subject},
    ]  # fmt: skip
    return rng.choice(
        [
            good + "=",
            f"{head}.{claims}.",
            f"{head}.{claims}",
            f"{head}.{claims}.{signature[:-2]}",
            f"{head}.{claims}=.{signature}",
            f"eyJhbGciOiJub25lIn0.{claims}.",
            sign({"sub": SUPER_USER}, bytes(32), "HS256"),
            *(sign({"sub": SUPER_USER, **more}, SECRET, "HS256") for more in claimed),
            "." * rng.choice([1, 2, 3, 5_000]),
            rng.choice(["", " ", "x", "\u00e9", "x" * 6_000]),
        ]
    )


async def tokens(field: Field, rng: random.Random) -> int:
    token = bad_token(rng)
    headers = {"Authorization": f"Bearer {token}"}
    answer = await field.doors[0].call("nobody", "GET", "/admin/v2/tenants", headers=headers)
    assert answer.status in (400, 401), f"{token[:200]}: {answer}"
    client = RawClient(*await asyncio.open_connection("127.0.0.1", field.server.ports["binary"]))
    client.send(BaseCommand.CONNECT, client_version="raw", protocol_version=21, auth_method_name="token",
                auth_data=token.encode())  # fmt: skip
    said = await client.answer()
    client.close()
    assert error_of(said) == "AuthenticationError", f"{token[:200]}: {said}"
    async with field.doors[0].channel() as channel:
        call = channel.unary_unary("/magnetar.topics.v1.Topics/Lookup", request_serializer=bytes)
        shown = token if token.isascii() else "x"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(api.LookupRequest(topic=TOPIC).SerializeToString(),
                       metadata=[("authorization", f"Bearer {shown}")])  # fmt: skip
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED, f"{token[:200]}: {caught.value}"
    return 3


# ------------------------------------------------------------------------------------------ names

_PIECES: Final = (
    "a",
    "\0",
    "\n",
    "\r",
    "\x7f",
    "\x1b",
    "/",
    "..",
    ".",
    "%2F",
    "%00",
    " ",
    "ü",
    "😀",
    "?",
    "#",
    "+",
    "\u202e",
    ":",
    "-partition-0",
)


async def names(field: Field, rng: random.Random) -> int:
    """What one door takes, the others take: a name that only one knows could not be removed by them."""
    local = "".join(rng.choice(_PIECES) for _ in range(rng.randrange(1, 4))) + str(next(_numbers))
    topic = f"persistent://shop/names/{local}"
    path = f"/admin/v2/persistent/shop/names/{quote(local, safe='').replace('.', '%2E')}"
    first = await field.doors[0].binary("boss")
    try:
        said = await field.doors[0].ask(first, BaseCommand.LOOKUP, topic=topic, request_id=1)
    finally:
        first.close()
    url = said.lookupTopicResponse.brokerServiceUrl
    at = next((one for one in field.doors if url.endswith(f":{one.ports['binary']}")), field.doors[0])
    client = await at.binary("boss")
    try:
        said = await at.ask(client, BaseCommand.PRODUCER, topic=topic, producer_id=1, request_id=1)
    finally:
        client.close()
    by_binary = error_of(said)
    by_grpc = await grpc_opened(at, "boss", publishing(topic))
    by_rest = await field.doors[0].call("boss", "GET", f"{path}/stats")
    assert by_rest.status < 500, f"{local!r}: {by_rest}"
    assert (not by_binary) == (not by_grpc) == (by_rest.status == 200), f"{local!r}: {said} {by_grpc} {by_rest}"
    if any(unicodedata.category(one) in ("Cc", "Zl", "Zp") for one in local):
        assert by_binary, f"{local!r} has a control character, and was taken"
    if not by_binary:
        gone = await field.doors[0].call("boss", "DELETE", f"{path}?force=true")
        assert gone.status == 204, f"{local!r}: {gone}"
    return 3


# How many inputs each gets of `COUNT`, and what sends them.
ATTACKS: Final[dict[str, tuple[float, Attack]]] = {
    "schemas": (0.4, schemas),
    "events": (0.3, events),
    "batches": (0.01, batches),
    "bodies": (0.4, bodies),
    "frames": (0.1, frames),
    "idle connections": (0.5, idle_connections),
    "properties": (0.05, properties),
    "consumers": (0.5, consumers),
    "lists": (0.5, lists),
    "tokens": (0.2, tokens),
    "names": (0.2, names),
}

assert ATTACKS.keys() <= GUARDED.keys()
