"""Messages through the official Python client: publish, consume, read; values are decoded with the topic's schema."""

import contextlib
import functools
import io
import itertools
import json
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from magnetar.cli.messages.places import shown_id
from magnetar.inspect.access import CURRENT
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.client_log import client_log
from magnetar_core.topics.message_id import EARLIEST, LATEST, MessageId

if TYPE_CHECKING:
    from magnetar.inspect.broker_admin import AdminClient

# Sends under way at once. With the client's usual 1,000 each batch waits for the receipt of the one before. Large
# messages are limited by their bytes.
IN_FLIGHT_MAX: Final = 10_000
IN_FLIGHT_BYTES_MAX: Final = 64 << 20
BATCH_MESSAGES_MAX: Final = 5_000
# Longest wait before checking again whether there is room for more sends.
ROOM_LOOK_S: Final = 0.1

CONNECT_TIMEOUT_MS: Final = 5_000
PROBE_TIMEOUT_S: Final = 2.0
DEFAULT_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
OPERATION_TIMEOUT_S: Final = 20
READ_TIMEOUT_MS: Final = 10_000
"""Wait for a message that exists, as the broker has said."""

# So many refusals in a row, which take a second or two, are reported at once and not only when the client gives up.
_REFUSALS_REPORTED: Final = 5

_NO_ANSWER: Final = (
    ". Something listens there and does not do it in time: `magnetar doctor` says whether the broker refuses who asks, "
    "or has no storage that takes entries; another address is given with --service-url."
)

# How long one wait for a message that may never come lasts, so that Ctrl-C is heard.
WAIT_MS: Final = 200


class ClientError(MagnetarError):
    """The official client failed; the text says in which operation and at which broker or topic."""


@contextlib.contextmanager
def client_of(service_url: str) -> Iterator[Any]:
    """A client that is closed when the block ends. Its failures become a ClientError."""
    try:
        import pulsar
    except ImportError:
        raise ClientError("the official client is missing: pip install pulsar-client") from None
    _check_reachable(service_url)
    refusals = itertools.count(1)

    def on_refusal(text: str) -> None:
        if next(refusals) == _REFUSALS_REPORTED:  # the client waits longer and longer between its tries
            click.echo(f"magnetar: still trying; the broker answers: {text}", err=True)

    client = pulsar.Client(
        service_url,
        logger=client_log().logger(on_refusal),
        connection_timeout_ms=CONNECT_TIMEOUT_MS,
        operation_timeout_seconds=OPERATION_TIMEOUT_S,
        **CURRENT.get().client_options(),
    )
    try:
        yield client
    except pulsar.PulsarException as error:
        unreachable = isinstance(error, pulsar.ConnectError | pulsar.Timeout | pulsar.LookupError)
        # Something listens there, as was tried before. The client does not say what is done to it.
        hint = _NO_ANSWER if unreachable else ""
        if refusal := client_log().last_refusal():
            hint = f". The broker answers: {refusal}"
        raise ClientError(f"{error} ({service_url}){hint}") from None
    finally:
        with contextlib.suppress(Exception):  # closing what failed says nothing new
            client.close()


def _check_reachable(service_url: str) -> None:
    """Fail at once if no broker can be reached; the client would first try for a long time. Raises ClientError."""
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


# ---------------------------------------------------------------------------------------- schema


class TopicSchema:
    """The newest schema of a topic, to write JSON values with, and its versions, to read values with."""

    def __init__(self, admin: "AdminClient", topic: str) -> None:
        """Raises AdminError if *topic* is not the name of a topic; nothing is asked yet."""
        self._admin = admin
        self._path = admin.schema_path(topic)
        self._readers: dict[str, tuple[str, Any]] = {}

    def writer(self) -> tuple[Any, Callable[[bytes], bytes]]:
        """The client's schema object, and what makes a payload of a line of JSON. Raises ClientError, AdminError."""
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
        except (MagnetarError, ValueError, EOFError, IndexError, RecursionError):
            self._readers.setdefault(number, ("", None))
        return None

    def _fetch(self, version: str) -> tuple[str, str]:
        answer = self._admin.call("GET", f"{self._path}/schema{version}")
        return answer["type"], answer["data"]


def _parsed(definition: str) -> Any:
    import fastavro

    return fastavro.parse_schema(json.loads(definition))


# -------------------------------------------------------------------------------------- publishing


@dataclass(slots=True)
class Published:
    """The results of messages that were sent."""

    sent: int = 0
    payload_bytes: int = 0
    acknowledged: int = 0
    last_id: str | None = None
    """The id of the message that was acknowledged last."""
    first_failure: str = ""


def publish(
    client: Any,
    topic: str,
    messages: Iterable[tuple[str | None, bytes]],
    properties: dict[str, str],
    schema: Any = None,
) -> Published:
    """Publish keys with payloads, and wait until every message is answered. *schema*: the client's schema object."""
    import pulsar

    ok = pulsar.Result.Ok
    published = Published()
    last: Any = None
    answered_bytes = 0
    room = threading.Event()

    def on_sent(size_bytes: int, result: Any, message_id: Any) -> None:
        """Note one result. The client calls it on its own thread."""
        nonlocal last, answered_bytes
        answered_bytes += size_bytes
        room.set()
        if result == ok:
            published.acknowledged += 1
            last = message_id
        elif not published.first_failure:
            published.first_failure = str(result)

    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_publish_delay_ms=5, batching_max_messages=BATCH_MESSAGES_MAX,
        block_if_queue_full=True, max_pending_messages=IN_FLIGHT_MAX, **({} if schema is None else {"schema": schema}),
    )  # fmt: skip
    for key, payload in messages:
        options: dict[str, Any] = {"properties": properties or None}
        if key is not None:
            options["partition_key"] = key
        while published.payload_bytes - answered_bytes > IN_FLIGHT_BYTES_MAX:
            room.clear()
            room.wait(ROOM_LOOK_S)
        producer.send_async(payload, functools.partial(on_sent, len(payload)), **options)
        published.sent += 1
        published.payload_bytes += len(payload)
    producer.flush()
    producer.close()
    published.last_id = None if last is None else shown_id(last)
    return published


# ----------------------------------------------------------------------------------------- reading


def consumed(
    client: Any, topic: str, subscription: str, kind: str, at_the_end: bool, count: int
) -> Generator[Any, None, None]:
    """Receive *count* messages of a subscription; 0: until the caller stops. A message is acknowledged when the caller
    asks for the next one. A new subscription begins with the first message that exists, or, if *at_the_end*, after the
    last. *kind* is the subscription's type: "exclusive", "shared", "failover" or "key-shared".

    A caller that stops before *count* messages must close the generator, which closes the consumer.
    """
    import pulsar

    kinds = {
        "exclusive": pulsar.ConsumerType.Exclusive,
        "shared": pulsar.ConsumerType.Shared,
        "failover": pulsar.ConsumerType.Failover,
        "key-shared": pulsar.ConsumerType.KeyShared,
    }
    first = pulsar.InitialPosition.Latest if at_the_end else pulsar.InitialPosition.Earliest
    consumer = client.subscribe(
        topic, subscription, consumer_type=kinds[kind], initial_position=first,
        # Without it the first messages of a batch come again when the last ones were not asked for.
        batch_index_ack_enabled=True,
    )  # fmt: skip
    received = 0
    try:
        while count == 0 or received < count:
            try:
                message = consumer.receive(timeout_millis=WAIT_MS)
            except pulsar.Timeout:  # no message yet; the short waits let Control-C through
                continue
            received += 1
            yield message
            consumer.acknowledge(message)
    finally:
        consumer.close()


def read(client: Any, topic: str, start: MessageId | int, follow: bool, *, compacted: bool = False) -> Iterator[Any]:
    """Messages of *topic* from *start* on (a time is in milliseconds), one partition after the other; with *follow*
    then new messages, without end. If *start* is an id of a partition, only that partition is read.

    *compacted*: of what was compacted, only the last message of each key.
    """
    readers = [_reader(client, name, start, compacted) for name in _partitions(client, topic, start)]
    for reader in readers:
        # The client also gives the messages of a batch that compaction emptied: they have neither key nor value.
        yield from (
            message
            for message in _existing_messages(reader)
            if not compacted or message.partition_key() or message.data()
        )
    if follow:
        yield from _new_messages(readers)


def _partitions(client: Any, topic: str, start: MessageId | int) -> list[str]:
    """The partitions of *topic* to be read. Raises ClientError if it does not have that of *start*."""
    names: list[str] = client.get_topic_partitions(topic)
    is_partitioned = len(names) > 1 or (names[0].endswith("-partition-0") and not topic.endswith("-partition-0"))
    if isinstance(start, int) or start.partition < 0 or not is_partitioned:
        return names
    if start.partition >= len(names):
        raise ClientError(f"{start} is in partition {start.partition}, and {topic} has {len(names)}")
    return [names[start.partition]]


def _reader(client: Any, name: str, start: MessageId | int, compacted: bool) -> Any:
    """A reader whose first message is the one at *start*."""
    import pulsar

    if isinstance(start, int):
        reader = client.create_reader(name, pulsar.MessageId.earliest, is_read_compacted=compacted)
        reader.seek(start)
        return reader
    if start in (EARLIEST, LATEST):
        first = pulsar.MessageId.earliest if start == EARLIEST else pulsar.MessageId.latest
        return client.create_reader(name, first, is_read_compacted=compacted)
    first = pulsar.MessageId(start.partition, start.ledger_id, start.entry_id, start.batch_index)
    return client.create_reader(name, first, start_message_id_inclusive=True, is_read_compacted=compacted)


def last_messages(client: Any, admin: "AdminClient", topic: str, count: int, follow: bool) -> Iterator[Any]:
    """The last *count* messages of each partition; with *follow* then new messages, without end.

    A reader begins so many entries before the last one, in its ledger; an entry holds one message at least. Where that
    ledger is younger, it begins at the first message there is.
    """
    import pulsar

    readers = []
    for name in client.get_topic_partitions(topic):
        last = admin.call("GET", f"/admin/v2/{admin.path_of(name)}/lastMessageId")
        start = pulsar.MessageId.earliest
        if last["entryId"] >= count:
            start = pulsar.MessageId(last["partitionIndex"], last["ledgerId"], last["entryId"] - count, -1)
        reader = client.create_reader(name, start)
        readers.append(reader)
        yield from deque(_existing_messages(reader), maxlen=count)
    if follow:
        yield from _new_messages(readers)


def _existing_messages(reader: Any) -> Iterator[Any]:
    """The messages that exist now."""
    while reader.has_message_available():
        yield reader.read_next(timeout_millis=READ_TIMEOUT_MS)


def _new_messages(readers: list[Any]) -> Iterator[Any]:
    import pulsar

    while True:
        for reader in readers:
            with contextlib.suppress(pulsar.Timeout):
                yield reader.read_next(timeout_millis=max(WAIT_MS // len(readers), 10))
            yield from _existing_messages(reader)
