"""`magnetar produce`, `consume` and `read`: the official Python client, with output for people."""

import base64
import contextlib
import io
import json
import socket
import sys
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any
from urllib.parse import urlsplit

from magnetar.cli_options import admin_of
from magnetar.runtime.types import MagnetarError

# Sends under way at once; the client's own queue is as long.
IN_FLIGHT_MAX = 1000

CONNECT_TIMEOUT_MS = 5_000
PROBE_TIMEOUT_S = 2.0
DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
OPERATION_TIMEOUT_S = 20


class ClientError(MagnetarError):
    """The client could not do it; the text says what and where."""


@contextlib.contextmanager
def _client(service_url: str) -> Iterator[Any]:
    try:
        import pulsar
    except ImportError:
        raise ClientError("the official client is missing: pip install pulsar-client") from None
    _check_reachable(service_url)
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(
        service_url,
        logger=logger,
        connection_timeout_ms=CONNECT_TIMEOUT_MS,
        operation_timeout_seconds=OPERATION_TIMEOUT_S,
    )
    try:
        yield client
    except pulsar.PulsarException as error:
        unreachable = isinstance(error, pulsar.ConnectError | pulsar.Timeout | pulsar.LookupError)
        hint = ". Is a broker running there? Give it with --service-url." if unreachable else ""
        raise ClientError(f"{error} ({service_url}){hint}") from None
    finally:
        with contextlib.suppress(Exception):  # closing what failed says nothing new
            client.close()


def _check_reachable(service_url: str) -> None:
    """Say at once what the client would say after all its tries. Raises ClientError."""
    scheme, _, hosts = service_url.partition("://")
    reasons = []
    for host in hosts.rstrip("/").split(","):
        try:
            parts = urlsplit(f"//{host}")
            usual = DEFAULT_PORTS[scheme]
            port = usual if parts.port is None else parts.port
            if not parts.hostname:
                raise ValueError("no host")
        except (KeyError, ValueError):
            raise ClientError(f"{service_url!r} is not a service URL: write pulsar://host:port[,host:port…]") from None
        try:
            socket.create_connection((parts.hostname, port), timeout=PROBE_TIMEOUT_S).close()
            return
        except OSError as error:
            reasons.append(f"{host}: {error.strerror or error}")
    raise ClientError(f"no broker answers ({'; '.join(reasons)}). Is one running? Give it with --service-url.")


class TopicSchema:
    """The newest schema of a topic, to write JSON values with, and its versions, to read values with."""

    def __init__(self, admin_url: str, topic: str) -> None:
        self._admin = admin_of(admin_url)
        # Of a partitioned topic the partitions have none of their own.
        base = topic.rpartition("-partition-")
        self._path = f"/admin/v2/schemas/{self._admin.path_of(base[0] if base[2].isdigit() else topic)}"
        self._path = self._path.replace("/schemas/persistent/", "/schemas/", 1)
        self._readers: dict[str, tuple[str, Any]] = {}

    def writer(self) -> tuple[Any, Callable[[bytes], bytes]]:
        """The client's schema object, and what makes a payload of a line of JSON. Raises ClientError."""
        import _pulsar
        from pulsar.schema.schema import Schema

        kind, definition = self._fetch("")
        if kind not in ("AVRO", "JSON"):
            raise ClientError(f"the topic's schema is {kind}: lines of JSON need AVRO or JSON; leave --schema out")
        parsed = _parsed(definition)

        class Lines(Schema):  # type: ignore[misc]
            """Payloads come encoded."""

            def encode(self, obj: bytes) -> bytes:
                return obj

            def decode(self, data: bytes) -> bytes:
                return data

        def encode(line: bytes) -> bytes:
            import fastavro

            try:
                value = json.loads(line)
                fastavro.validate(value, parsed)
            except (ValueError, fastavro.validation.ValidationError) as error:
                raise ClientError(f"{line[:80].decode(errors='replace')!r} does not fit the schema: {error}") from None
            if kind == "JSON":
                return line
            out = io.BytesIO()
            fastavro.schemaless_writer(out, parsed, value)
            return out.getvalue()

        return Lines(bytes, getattr(_pulsar.SchemaType, kind), json.loads(definition), kind), encode

    def decode(self, message: Any) -> Any:
        """The value of a message that was written with a schema; None where there is none, or it does not fit."""
        version = message.schema_version()
        if not version:
            return None
        number = str(int.from_bytes(version if isinstance(version, bytes) else version.encode("latin-1")))
        try:
            if number not in self._readers:
                kind, definition = self._fetch(f"/{number}")
                self._readers[number] = kind, _parsed(definition) if kind == "AVRO" else None
            kind, parsed = self._readers[number]
            if kind == "JSON":
                return json.loads(message.data())
            if kind == "AVRO":
                import fastavro

                return fastavro.schemaless_reader(io.BytesIO(message.data()), parsed, None)
        except (MagnetarError, ValueError, EOFError, IndexError):
            self._readers.setdefault(number, ("", None))
        return None

    def _fetch(self, version: str) -> tuple[str, str]:
        found = self._admin.call("GET", f"{self._path}/schema{version}")
        return found["type"], found["data"]


def _parsed(definition: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(definition))


def produce_messages(
    service_url: str,
    topic: str,
    payloads: list[bytes],
    lines: IO[bytes] | None,
    key: str | None,
    properties: dict[str, str],
    schema: TopicSchema | None = None,
) -> int:
    """Publish, wait for every acknowledgement, return how many there were. Raises ClientError.

    With *schema* each line is a value as JSON.
    """
    failed: list[str] = []
    made: dict[str, Any] = {}
    encode: Callable[[bytes], bytes] = bytes
    if schema is not None:
        made["schema"], encode = schema.writer()
    sent = 0

    def on_sent(result: Any, _: Any) -> None:
        if not str(result).endswith(".Ok"):
            failed.append(str(result))

    with _client(service_url) as client:
        producer = client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=5, block_if_queue_full=True,
            max_pending_messages=IN_FLIGHT_MAX, **made,
        )  # fmt: skip
        options: dict[str, Any] = {"properties": properties or None}
        if key is not None:
            options["partition_key"] = key
        for payload in payloads:
            producer.send_async(encode(payload), on_sent, **options)
            sent += 1
        for line in lines or ():
            producer.send_async(encode(line.rstrip(b"\r\n")), on_sent, **options)
            sent += 1
        producer.flush()
        producer.close()
    if failed:
        raise ClientError(f"{len(failed)} of {sent} messages were not acknowledged: {failed[0]}")
    return sent


def consume_messages(
    service_url: str,
    topic: str,
    subscription: str,
    kind: str,
    count: int,
    position: str,
    as_json: bool,
    schema: TopicSchema | None = None,
) -> None:
    """Print and acknowledge messages until *count* (0: until interrupted)."""
    with _client(service_url) as client:
        import pulsar

        kinds = {
            "exclusive": pulsar.ConsumerType.Exclusive,
            "shared": pulsar.ConsumerType.Shared,
            "failover": pulsar.ConsumerType.Failover,
            "key-shared": pulsar.ConsumerType.KeyShared,
        }
        positions = {"earliest": pulsar.InitialPosition.Earliest, "latest": pulsar.InitialPosition.Latest}
        consumer = client.subscribe(
            topic, subscription, consumer_type=kinds[kind], initial_position=positions[position]
        )
        received = 0
        with contextlib.suppress(KeyboardInterrupt):
            while count == 0 or received < count:
                try:
                    message = consumer.receive(timeout_millis=500)
                except pulsar.Timeout:
                    continue
                _show(message, as_json, schema)
                consumer.acknowledge(message)
                received += 1
        consumer.close()


def read_messages(
    service_url: str,
    topic: str,
    start: str,
    count: int,
    follow: bool,
    as_json: bool,
    schema: TopicSchema | None = None,
) -> None:
    """Print messages; of a partitioned topic one partition after the other (with *follow*, as they come)."""
    position = _position(start)
    with _client(service_url) as client:
        import pulsar

        first = {"earliest": pulsar.MessageId.earliest, "latest": pulsar.MessageId.latest}.get(start)
        if first is None:
            first = pulsar.MessageId(-1, *position, -1)
        partitions = client.get_topic_partitions(topic)
        readers = [client.create_reader(name, first) for name in partitions]
        shown = 0
        with contextlib.suppress(KeyboardInterrupt):
            while True:
                idle = True
                for reader in readers:
                    while (count == 0 or shown < count) and reader.has_message_available():
                        _show(reader.read_next(timeout_millis=10_000), as_json, schema)
                        shown += 1
                        idle = False
                if (idle and not follow) or (count and shown >= count):
                    break
                if idle:
                    with contextlib.suppress(pulsar.Timeout):
                        _show(readers[0].read_next(timeout_millis=200), as_json, schema)
                        shown += 1
        for reader in readers:
            reader.close()


def tail_messages(
    service_url: str,
    admin_url: str,
    topic: str,
    count: int,
    follow: bool,
    as_json: bool,
    schema: TopicSchema | None = None,
) -> None:
    """Print the last *count* messages of each partition; with *follow*, then those that come.

    A reader begins so many entries before the last one, in its ledger; an entry holds one message at least. Where that
    ledger is younger, it begins at the first message there is.
    """
    admin = admin_of(admin_url)
    with _client(service_url) as client:
        import pulsar

        readers = []
        for name in client.get_topic_partitions(topic):
            last = admin.call("GET", f"/admin/v2/{admin.path_of(name)}/lastMessageId")
            start = pulsar.MessageId.earliest
            if last["entryId"] >= count:
                start = pulsar.MessageId(last["partitionIndex"], last["ledgerId"], last["entryId"] - count, -1)
            reader = client.create_reader(name, start)
            readers.append(reader)
            newest: deque[Any] = deque(maxlen=count)
            while reader.has_message_available():
                newest.append(reader.read_next(timeout_millis=10_000))
            for message in newest:
                _show(message, as_json, schema)
        with contextlib.suppress(KeyboardInterrupt):
            while follow:
                for reader in readers:
                    with contextlib.suppress(pulsar.Timeout):
                        _show(reader.read_next(timeout_millis=max(200 // len(readers), 10)), as_json, schema)
        for reader in readers:
            reader.close()


def _position(text: str) -> tuple[int, int]:
    """(ledger, entry) of `--from`; unimportant for earliest and latest."""
    ledger, separator, entry = text.partition(":")
    if text in ("earliest", "latest"):
        return -1, -1
    if not separator or not (ledger + entry).isascii() or not ledger.isdigit() or not entry.isdigit():
        raise ClientError(f"--from {text}: expected earliest, latest or LEDGER:ENTRY")
    return int(ledger), int(entry)


def _show(message: Any, as_json: bool, schema: TopicSchema | None = None) -> None:
    data, key = message.data(), message.partition_key()
    value = None if schema is None else schema.decode(message)
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if as_json:
        found = {
            "id": str(message.message_id()),
            "topic": message.topic_name(),
            "key": key or None,
            "publish_time_ms": message.publish_timestamp(),
            "event_time_ms": message.event_timestamp() or None,
            "properties": message.properties(),
        }
        if value is not None:
            found["value"] = value
            print(json.dumps(found, ensure_ascii=False, default=str), flush=True)
            return
        found.update({"value": text} if text is not None else {"value_base64": base64.b64encode(data).decode()})
        print(json.dumps(found, ensure_ascii=False), flush=True)
        return
    if value is not None:
        is_short = not isinstance(value, dict | list) or len(str(value)) <= 100
        shown = json.dumps(value, ensure_ascii=False, default=str, indent=None if is_short else 2)
        print(f"{message.message_id()}  {key + '  ' if key else ''}{shown}", flush=True, file=sys.stdout)
        return
    shown = text if text is not None else f"{len(data)} bytes {data[:32].hex()}…"
    print(f"{message.message_id()}  {key + '  ' if key else ''}{shown}", flush=True, file=sys.stdout)
