"""A topic into a stream, and from a stream into a topic: over the brokers' binary protocol, entries as they are stored.

Rules besides those of `topic_format`:

1. A copy has the messages that a partition had when its turn came. Each entry that a broker did not give is looked for:
   only markers of brokers may be left out, so that a copy without all messages is never called whole.
2. Of the schemas, each version is brought to the target before any message, in their order.
3. A producer brings the entries of a partition one behind the other; so many are under way at most (`AT_ONCE`,
   `BYTES_AT_ONCE`).
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from broker.system_client import Dialed, Link, SystemClient, SystemClientError
from broker.wire import pulsar_pb2 as wire
from magnetar.inspect.access import Access
from magnetar.inspect.broker_admin import AdminClient, AdminError
from magnetar.processes.backup.manifest import BackupRefused
from magnetar.processes.backup.topic_format import (
    RECORD_BYTES_MAX,
    CopiedSchema,
    TopicHead,
    TopicReader,
    TopicWriter,
    Versions,
    between,
)
from magnetar_core.runtime.types import MIB, Buffer, MagnetarError
from magnetar_core.security.tls.contexts import usual_context
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import is_batch, message_count, metadata_of, split_entry
from managed_ledger.messages_pb2 import KeyValue, MessageMetadata
from managed_ledger.position import Position
from managed_ledger.schemas.stored import version_bytes, version_of

# Entries, and their bytes, that are sent and not answered (rule 3).
AT_ONCE: Final = 1_000
BYTES_AT_ONCE: Final = 16 * MIB

# How long the next message of those that are there is waited for.
SILENCE_S: Final = 60.0

# A connection has one producer at a time.
_PRODUCER_ID: Final = 1

_SCHEME: Final = "pulsar"
_TLS_SCHEME: Final = "pulsar+ssl"
_PORTS: Final = {_SCHEME: 6650, _TLS_SCHEME: 6651}

# Properties that say what a topic is to the brokers of its cluster (a shadow of another one).
_OF_BROKERS: Final = "PULSAR."

_MARKER: Final = "x-pulsar-marker-type"


class Partition(NamedTuple):
    """One partition of a topic that is copied, or a topic without partitions."""

    name: TopicName
    ledgers: tuple[tuple[int, int | None], ...]
    """(id, entries) of each in their order; None for the one that is being written."""
    entries: int


class Source(NamedTuple):
    """A topic that can be copied."""

    topic: TopicName
    partitions: int
    properties: dict[str, str]
    subscriptions: tuple[str, ...]
    parts: tuple[Partition, ...]

    @property
    def entries(self) -> int:
        return sum(part.entries for part in self.parts)


# ------------------------------------------------------------------------------------------- the way


def client_at(service_url: str, access: Access, now_ms: Callable[[], int]) -> SystemClient:
    """A client of the brokers at *service_url*, to which *access* is shown. Raises AccessError, BackupRefused."""
    scheme, _, rest = service_url.partition("://")
    if scheme not in _PORTS or not rest:
        raise BackupRefused(f"{service_url!r} is not a service URL: write pulsar://host:port[,host:port…]")
    method, data = "", b""
    if access.token:
        method, data = "token", access.token_text().encode()
    elif access.user:
        method, data = "basic", access.user.encode()
    elif access.certificate:
        method = "tls"
    context = (access.context() or usual_context()) if scheme == _TLS_SCHEME else None

    async def dial(url: str) -> Dialed:
        if url and not url.startswith(f"{scheme}://"):
            raise OSError(f"the way to it has no {scheme}, as --service-url has")
        failure: Exception = OSError("it has no address")
        for host in (url or service_url).partition("://")[2].rstrip("/").split(","):
            try:
                parts = urlsplit(f"//{host}")
                reader, writer = await asyncio.open_connection(
                    parts.hostname, parts.port or _PORTS[scheme], ssl=context
                )
            except (OSError, ValueError) as error:
                failure = error
            else:
                return Dialed(reader, writer, method, data)
        raise OSError(f"{failure}") from failure

    return SystemClient(
        dial, lambda: (), now_ms, RECORD_BYTES_MAX, prefers_tls=lambda: scheme == _TLS_SCHEME, own_name=service_url
    )


# ---------------------------------------------------------------------------------------------- out


def source_of(admin: AdminClient, topic: str) -> Source:
    """What is to be known of *topic* before it is copied. Raises AdminError; BackupRefused for what is not copied."""
    admin.path_of(topic)  # says what is no name of a topic
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise BackupRefused(f"{topic} is not persistent: nothing of it is stored")
    count = admin.partitions(topic)
    properties = admin.call("GET", f"/admin/v2/{name.rest_path}/properties") or {}
    parts, subscriptions = [], set()
    for part in _names(name, count):
        stats = admin.call("GET", f"/admin/v2/{part.rest_path}/internalStats")
        listed = admin.call("GET", f"/admin/v2/{part.rest_path}/internal-info")["ledgers"]
        if away := [ledger["ledgerId"] for ledger in listed if ledger.get("isOffloaded")]:
            raise BackupRefused(f"{part} has ledgers in tiered storage, which are not copied: {_ledgers_text(away)}")
        ledgers = tuple((ledger["ledgerId"], ledger.get("entries")) for ledger in listed)
        parts.append(Partition(part, ledgers, stats["numberOfEntries"]))
        subscriptions |= {cursor for cursor in stats["cursors"] if not cursor.startswith("__")}
    own = {key: value for key, value in properties.items() if not key.startswith(_OF_BROKERS)}
    return Source(name, count, own, tuple(sorted(subscriptions)), tuple(parts))


def _names(topic: TopicName, partitions: int) -> list[TopicName]:
    return [topic.with_partition(number) for number in range(partitions)] or [topic]


def _ledgers_text(ledgers: Sequence[int]) -> str:
    return ", ".join(map(str, ledgers[:5])) + (f" and {len(ledgers) - 5} more" if len(ledgers) > 5 else "")


async def export(
    client: SystemClient,
    admin: AdminClient,
    source: Source,
    release: str,
    write: Callable[[Buffer], object],
    now_ms: int,
    on_entries: Callable[[int], None] = lambda count: None,
) -> TopicWriter:
    """Give *write* the stream of *source*. Returns what counted it. *on_entries(count)* is called on the way. Raises
    SystemClientError, AdminError, Corruption, BackupRefused."""
    writer = TopicWriter()
    schemas = await _schemas(client, source.parts[0].name)
    write(writer.head(TopicHead(release, now_ms, source.topic.full, source.partitions, source.properties, schemas)))
    for number, part in enumerate(source.parts):
        async for entry in _entries(client, admin, part):
            for piece in writer.entry(number, entry):
                write(piece)
            if writer.entries % AT_ONCE == 0:
                on_entries(writer.entries)
    write(writer.tail())
    return writer


async def _schemas(client: SystemClient, topic: TopicName) -> tuple[CopiedSchema, ...]:
    """All versions that are there. Raises SystemClientError."""
    schemas: list[CopiedSchema] = []
    async with client.link_to(topic) as link:
        latest = await _schema(link, topic, None)
        for version in range(0 if latest is None else latest.version):
            if (schema := await _schema(link, topic, version)) is not None:  # else deleted, with all before it
                schemas.append(schema)
    return (*schemas, latest) if latest is not None else ()


async def _schema(link: Link, topic: TopicName, version: int | None) -> CopiedSchema | None:
    """A version of the schema of *topic*, or the latest; None: there is none. Raises SystemClientError."""
    asked = None if version is None else version_bytes(version)
    answer = (await link.ask(wire.BaseCommand.GET_SCHEMA, topic=topic.full, schema_version=asked)).getSchemaResponse
    if answer.HasField("error_code"):
        if answer.error_code == wire.TopicNotFound:
            return None
        raise SystemClientError(f"{topic}: {answer.error_message}")
    number = version_of(answer.schema_version) if version is None else version
    if number is None:
        return None
    properties = {item.key: item.value for item in answer.schema.properties}
    return CopiedSchema(number, int(answer.schema.type), answer.schema.schema_data, properties)


async def _entries(client: SystemClient, admin: AdminClient, part: Partition) -> AsyncIterator[memoryview]:
    async with client.link_to(part.name) as link:
        last = await link.subscribe(part.name, None, compacted=False)
        before: Position | None = None
        while last is not None and (before is None or before < last):
            try:
                async with asyncio.timeout(SILENCE_S):
                    position, entry = await link.message()
            except TimeoutError:
                raise BackupRefused(
                    f"{part.name}: a broker gave nothing for {SILENCE_S:.0f} s, and messages up to {last} are there; "
                    f"the last one that came is {before or 'none'}. `magnetar doctor` says whether it can be read"
                ) from None
            if before is None or position != (before.ledger_id, before.entry_id + 1):
                _must_be_markers(admin, part, between(before, position, part.ledgers))
            before = position
            metadata = metadata_of(split_entry(entry))
            if metadata.HasField("txnid_most_bits"):
                raise BackupRefused(f"{part.name}: {position} is a message of a transaction, which is not copied")
            if not metadata.HasField("marker_type"):
                yield entry


def _must_be_markers(admin: AdminClient, part: Partition, missing: Iterable[Position]) -> None:
    """Rule 1. Raises BackupRefused."""
    for position in missing:
        path = f"/admin/v2/{part.name.rest_path}/ledger/{position.ledger_id}/entry/{position.entry_id}"
        reason = ""
        try:
            if any(name.lower() == _MARKER for name in admin.answer("GET", path).headers):
                continue
        except AdminError as error:
            reason = f" ({error})"
        raise BackupRefused(
            f"{part.name}: the entry {position} was not given: it was removed, or expired, while the topic was read"
            f"{reason}. Try again; a subscription keeps what is there"
        )


# ----------------------------------------------------------------------------------------------- in


def make_ready(admin: AdminClient, topic: str, head: TopicHead, *, append: bool) -> list[TopicName]:
    """Make *topic* as *head* says, unless it is there; returns what gets each partition. Raises AdminError;
    BackupRefused if it has other partitions, or messages and not *append*."""
    admin.path_of(topic)
    name = TopicName.parse(topic)
    if not name.is_persistent:
        raise BackupRefused(f"{topic} is not persistent: nothing would be stored")
    count = _unless_missing(lambda: admin.partitions(topic))
    is_there = bool(count) or _count_entries(admin, name) is not None
    if is_there and (count or 0) != head.partitions:
        raise BackupRefused(
            f"{topic} has {_partitions_text(count or 0)}, and {head.topic} had {_partitions_text(head.partitions)}"
        )
    if not is_there:
        admin.create_topic(topic, head.partitions)
    names = _names(name, head.partitions)
    if is_there and not append and (full := [part for part in names if _count_entries(admin, part)]):
        raise BackupRefused(f"{full[0]} has messages already; --append puts those of the file behind them")
    if head.properties:
        admin.call("PUT", f"/admin/v2/{name.rest_path}/properties", head.properties)
    return names


def _partitions_text(count: int) -> str:
    return f"{count} partitions" if count else "no partitions"


def _count_entries(admin: AdminClient, topic: TopicName) -> int | None:
    """The number of entries; None: there is no such topic. Raises AdminError."""
    path = f"/admin/v2/{topic.rest_path}/internalStats"
    return _unless_missing(lambda: int(admin.call("GET", path)["numberOfEntries"]))


def _unless_missing(ask: Callable[[], int]) -> int | None:
    """What *ask* returns; None if there is no such topic. Raises AdminError."""
    try:
        return ask()
    except AdminError as error:
        if error.status == 404:
            return None
        raise


async def put_in(
    client: SystemClient,
    names: Sequence[TopicName],
    reader: TopicReader,
    on_bytes: Callable[[int], None] = lambda count: None,
) -> int:
    """Store the entries of *reader* in the partitions *names*; returns how many. *on_bytes(count)* is called on the
    way. Raises BackupRefused, whose text says what is stored then."""
    sent = 0
    try:
        versions = await _bring_schemas(client, names[0], reader.head.schemas)
        newest = reader.head.schemas[-1] if reader.head.schemas else None
        async with contextlib.AsyncExitStack() as stack:
            current, producer = -1, None
            for partition, entry in reader.entries():
                if partition != current:
                    if producer is not None:
                        await producer.answers(0)
                    await stack.aclose()
                    link = await stack.enter_async_context(client.link_to(names[partition]))
                    await _make_producer(link, names[partition], newest)
                    producer = _Producer(link, names[partition])
                    current = partition
                assert producer is not None, "the first entry has a partition"
                await producer.answers(AT_ONCE - 1)
                producer.send(versions.apply(entry))
                sent += 1
                if sent % AT_ONCE == 0:
                    on_bytes(reader.bytes)
            if producer is not None:
                await producer.answers(0)
    except MagnetarError as error:
        kept = f"up to {sent} entries are stored: delete the topic and import it again" if sent else "nothing is stored"
        raise BackupRefused(f"{error}; {kept}") from error
    return sent


async def _bring_schemas(client: SystemClient, topic: TopicName, schemas: Sequence[CopiedSchema]) -> Versions:
    """Rule 2. Each comes with a producer, as a client's would. Raises SystemClientError."""
    versions = {}
    async with client.link_to(topic) as link:
        for schema in schemas:
            try:
                version = version_of(await _make_producer(link, topic, schema))
                await link.ask(wire.BaseCommand.CLOSE_PRODUCER, producer_id=_PRODUCER_ID)
            except SystemClientError as error:
                raise SystemClientError(f"{topic}: version {schema.version} of the schema: {error}") from error
            if version is None:
                raise SystemClientError(f"{topic} has no version for version {schema.version} of the schema")
            versions[schema.version] = version
    return Versions(versions)


def _on_wire(schema: CopiedSchema) -> wire.Schema:
    return wire.Schema(
        name="",
        type=schema.type,  # type: ignore[arg-type]
        schema_data=schema.data,
        properties=[KeyValue(key=key, value=value) for key, value in schema.properties.items()],
    )


async def _make_producer(link: Link, topic: TopicName, schema: CopiedSchema | None) -> bytes:
    """Returns the version of *schema* at the target. Raises SystemClientError."""
    answer = await link.ask(
        wire.BaseCommand.PRODUCER,
        topic=topic.full,
        producer_id=_PRODUCER_ID,
        schema=None if schema is None else _on_wire(schema),
        # A topic that requires encryption refuses a producer without it. This one copies messages as they are; the
        # broker also checks each of them.
        encrypted=True,
        user_provided_producer_name=False,
    )
    return answer.producer_success.schema_version


class _Producer:
    """Sends the entries of one partition (rule 3)."""

    def __init__(self, link: Link, topic: TopicName) -> None:
        self._link = link
        self._topic = topic
        self._sent = 0
        self._waiting: deque[int] = deque()
        """The bytes of each entry that is not answered."""
        self._waiting_bytes = 0

    def send(self, entry: Buffer) -> None:
        parts = split_entry(entry)
        metadata = metadata_of(parts)
        self._link.push(self._command(metadata, len(parts.payload)), entry)
        self._sent += 1
        self._waiting.append(len(entry))
        self._waiting_bytes += len(entry)

    def _command(self, metadata: MessageMetadata, payload_bytes: int) -> wire.CommandSend:
        """With numbers of this producer: those of the messages' own producers, in the metadata, need not rise."""
        fields: dict[str, Any] = {"producer_id": _PRODUCER_ID, "sequence_id": self._sent}
        if is_batch(metadata):
            fields["num_messages"] = message_count(metadata, payload_bytes)
        if metadata.num_chunks_from_msg > 1:
            fields["is_chunk"] = True
        return wire.CommandSend(**fields)

    async def answers(self, entries: int) -> None:
        """Wait until so many entries are under way at most, and their bytes are not too many. Raises SystemClientError,
        BackupRefused."""
        while len(self._waiting) > entries or self._waiting_bytes > BYTES_AT_ONCE:
            position = await self._link.receipt()
            self._waiting_bytes -= self._waiting.popleft()
            if position.ledger_id < 0:
                raise BackupRefused(f"{self._topic} took an entry for one that it has already")
