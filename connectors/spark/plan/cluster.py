"""The driver's questions to the cluster, asked once when a read is planned: topics, ledgers, ends, schemas.

Only the metadata store is asked, and for a ledger that is still open its bookies, without fencing: reading never
disturbs a writer. The end that is found here is the end of the read.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from connectors.spark.bookie_access import check_let_in
from connectors.spark.options.read import Place, ReadOptions
from connectors.spark.plan.cursors import consumed, missing
from connectors.spark.plan.planning import TopicRange, clip
from connectors.spark.plan.recorded import check_on_bookies, never_was, places, recorded
from connectors.spark.plan.times import bounds
from connectors.spark.plan.topics import near_names, partition_count, topics_like
from connectors.spark.ranges import Position, Run, Times
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    DigestMismatch,
    EndUnknown,
    MetadataUnavailable,
    NoSuchEntry,
    NoSuchLedger,
)
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.stores.secondary import holds_tree
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, StoreUnavailable
from magnetar_core.bookkeeper.metadata.stores.url import DEFAULT_ROOT, open_store, split_service_uri
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.process.daemon import new_clock
from magnetar_core.runtime.types import MIB, Allocate, ConfigurationError, Corruption, MagnetarError
from magnetar_core.security.tls.files import directory_files
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.compacted.entry import COMPACTED_LEDGER, COMPACTION_CURSOR
from managed_ledger.cursors.stored_cursor import stored_cursor
from managed_ledger.errors import ShadowTopic
from managed_ledger.ledgers.shadows import check_no_shadow, check_partition
from managed_ledger.ledgers.topic_record import stored_record
from managed_ledger.messages import parse_metadata
from managed_ledger.position import signed
from managed_ledger.records.records_pb2 import ManagedLedgerInfo
from managed_ledger.schemas.registry import SchemaRegistry
from managed_ledger.schemas.stored import StoredSchema

log = logging.getLogger(__name__)

# The driver asks about so many ledgers at once: enough to hide the latency, few enough for one ZooKeeper connection.
CONCURRENT_MAX: Final = 64

# All versions of one topic's schema. They travel with the tasks; a version has some KB, and rarely are there hundreds.
SCHEMAS_BYTES_MAX: Final = 8 * MIB

# How often what compaction kept is looked for while compactions end meanwhile.
_COMPACTION_LOOKS: Final = 3

# How long a ZooKeeper server is waited for at first; later, while servers change their leader, requests wait longer.
CONNECT_S: Final = 10.0

_WHICH_FOLDER: Final = "it is the folder `metadata` in the data folder of `magnetar standalone`, as seen from here"

# Value formats that do not depend on the topic's schema.
WITHOUT_SCHEMA: Final = frozenset({"binary", "string"})


class TopicMissing(MagnetarError):
    """The topic does not exist."""


class DataLoss(MagnetarError):
    """Messages that were planned to be read are gone."""


@dataclass(frozen=True, slots=True)
class FrozenTopic:
    """A topic as it was when the read was planned."""

    topic: TopicName
    ranges: tuple[TopicRange, ...]
    schemas: tuple[StoredSchema, ...]
    """All versions, oldest first; empty without a schema, or where none is needed."""
    closed_ms: Mapping[int, int] = field(default_factory=dict)
    """When its ledgers were closed; only where filters may ask for it."""


@asynccontextmanager
async def connected(
    place: Place, allocate: Allocate = bytearray
) -> AsyncIterator[tuple[MetadataStore, BookKeeper, Clock]]:
    """A client of the cluster, closed at the end; *allocate* makes room for large answers. It sees all that was stored
    before the call.

    Raises ConfigurationError, MetadataError, BookKeeperError; and NotLetIn, which an error inside of the block becomes.
    """
    tls = directory_files(place.tls_directory, "bookkeeper.tlsDirectory") if place.tls_directory else None
    clock = new_clock()
    url, root = split_service_uri(place.metadata_url)
    if place.ledgers_root and root not in (DEFAULT_ROOT, place.ledgers_root):
        raise ConfigurationError(
            f"ledgersRoot={place.ledgers_root}, but metadata.url={place.metadata_url} names {root}; leave "
            "ledgersRoot out"
        )
    store = await _open_store(url, clock)
    config = ClientConfig(timeout_s=place.read_timeout_s, tls=tls, frame_bytes_max=place.frame_bytes_max)
    bookkeeper = BookKeeper(store, clock, config, root=place.ledgers_root or root, allocate=allocate)
    try:
        await store.sync()
        await bookkeeper.open()
        yield store, bookkeeper, clock
    except MagnetarError as error:
        check_let_in(error)
        raise
    finally:
        await bookkeeper.close()
        await store.close()


async def _open_store(url: str, clock: Clock) -> MetadataStore:
    """The metadata store, for reading. Raises ConfigurationError, MetadataError."""
    folder = Path(url.partition(":")[2].removeprefix("//"))
    if url.startswith("rocksdb:") and not holds_tree(folder):
        inside = folder / "metadata"
        hint = f"a standalone has them in rocksdb:{inside}" if holds_tree(inside) else _WHICH_FOLDER
        raise ConfigurationError(f"metadata.url={url}: there are no metadata in {folder}; {hint}")
    try:
        async with asyncio.timeout(CONNECT_S):
            return await open_store(url, clock, read_only=True)
    except TimeoutError:
        raise StoreUnavailable(
            f"metadata.url={url}: no ZooKeeper answers there within {CONNECT_S:g} s; look whether it runs, whether "
            "host and port are right, and whether this machine may reach it"
        ) from None


async def freeze(options: ReadOptions) -> list[FrozenTopic]:
    """The topics that a query reads, each with the ranges of entries that exist now.

    A topic that is missing, or a shadow topic, is left out where the options give a pattern. Raises TopicMissing,
    ShadowTopic (where they name the topics), DataLoss, and the errors of the metadata store and the bookies.
    """
    async with connected(options.place) as (store, client, clock):
        freezer = Freezer(options, store, client)
        topics = options.topics if options.pattern is None else await topics_like(store, options.pattern)
        registry = SchemaRegistry(client, store, clock)
        frozen: list[FrozenTopic] = []
        for topic in topics:
            try:
                ranges = await freezer.ranges(topic)
            except TopicMissing:
                if options.pattern is None:
                    raise
                log.info("%s was deleted after the topics were listed; it is left out", topic)
                continue
            except ShadowTopic as error:
                if options.pattern is None:
                    raise
                log.warning("%s; it is left out", error)
                continue
            schemas: tuple[StoredSchema, ...] = ()
            if options.value_format not in WITHOUT_SCHEMA:
                # Our metadata server may be behind the bookies, and not show the schemas of the newest messages yet.
                await store.sync()
                schemas = tuple(await versions_of(registry, topic))
            frozen.append(FrozenTopic(topic, ranges, schemas, freezer.closed_ms if options.push_down_filters else {}))
        return frozen


async def versions_of(registry: SchemaRegistry, topic: TopicName) -> list[StoredSchema]:
    """All versions of a topic's schema. Raises Corruption, also if they are too much for a task."""
    try:
        return await registry.versions(topic.schema_id, bytes_max=SCHEMAS_BYTES_MAX)
    except Corruption as error:
        raise Corruption(f"{topic}: {error}; read it with valueFormat=binary") from None


class Freezer:
    """Finds which entries topics have now: a read that is planned keeps to these, whatever is written later."""

    def __init__(self, options: ReadOptions, store: MetadataStore, bookkeeper: BookKeeper) -> None:
        self._options = options
        self._store = store
        self._bookkeeper = bookkeeper
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)
        self.closed_ms: dict[int, int] = {}
        """Ledger → when it was closed, of the topics that were asked for."""

    async def ranges(self, topic: TopicName) -> tuple[TopicRange, ...]:
        """What is to be read of each partition. A partition that nobody has used yet has no ledgers."""
        count, parts = await self.parts(topic)
        for offsets in (self._options.starting, self._options.ending):
            unknown = sorted(offsets.get(topic, {}).keys() - set(range(len(parts))))
            if unknown:
                raise ConfigurationError(f"offsets for partition {unknown[0]} of {topic}, which has {len(parts)}")
        ranges = await asyncio.gather(*(self.range(topic, part, number) for number, part in enumerate(parts)))
        if count is None and ranges[0] is None:
            near = await near_names(self._store, topic)
            raise TopicMissing(f"topic {topic} does not exist in {self._options.metadata_url}; {near}")
        if self._options.backlog_of and not any(ranges):
            raise await missing(self._store, parts[0], self._options.backlog_of)
        return tuple(
            topic_range or TopicRange(str(part), part.partition, ())
            for topic_range, part in zip(ranges, parts, strict=True)
        )

    async def parts(self, topic: TopicName) -> tuple[int | None, list[TopicName]]:
        """(how many partitions there are, their names); (None, the topic itself) without partitions."""
        count = await partition_count(self._store, topic)
        return count, [topic] if count is None else [topic.with_partition(number) for number in range(count)]

    async def range(self, topic: TopicName, part: TopicName, number: int) -> TopicRange | None:
        """What is to be read of one partition; None if it has no record."""
        record = await stored_record(self._store, part.managed_ledger_name)
        if record is None:
            return None
        await check_own(self._store, part, record)
        closed_ms = {info.ledgerId: info.timestamp for info in record.ledgerInfo}
        self.closed_ms.update(closed_ms)
        start = self._options.starting.get(topic, {}).get(number)
        end = self._options.ending.get(topic, {}).get(number)
        self._check_was(part, record.ledgerInfo, start, "starting")
        self._check_was(part, record.ledgerInfo, end, "ending")
        known, unknown = recorded(record.ledgerInfo)
        offloaded = places(record.ledgerInfo)
        asked = await asyncio.gather(*(self._run(part, ledger_id) for ledger_id in unknown))
        run_by_ledger = {**known, **dict(zip(unknown, asked, strict=True))}
        runs = [run for info in record.ledgerInfo if (run := run_by_ledger[info.ledgerId]) is not None]
        if self._options.compacted:
            compacted = await self._compacted_range(part, runs)
            check_on_bookies(str(part), compacted.runs, offloaded)
            return compacted
        if self._options.times is not None:
            first, last = await time_bounds(self._bookkeeper, part, runs, closed_ms, self._options.times)
            start, end = start or first, end or last
        acked = None
        if self._options.backlog_of:
            first, acked = await consumed(self._store, self._bookkeeper, part, self._options.backlog_of)
            start = max(start or first, first)
        kept, earlier = clip(runs, start, end)
        check_on_bookies(str(part), kept, offloaded)
        return TopicRange(str(part), part.partition, kept, earlier, acked)

    def _check_was(
        self, part: TopicName, infos: Sequence[ManagedLedgerInfo.LedgerInfo], position: Position | None, which: str
    ) -> None:
        """Raises ConfigurationError for a position that a partition never had."""
        if position is not None and never_was(infos, position):
            raise ConfigurationError(
                f"{which}Offsets: ledger {position[0]} was never one of {part}, which has {infos[0].ledgerId} to "
                f"{infos[-1].ledgerId}; take the ledger and the entry of one of its rows (__ledgerId, __entryId), or "
                f"{which}Timestamp"
            )

    async def _compacted_range(self, part: TopicName, runs: Sequence[Run]) -> TopicRange:
        """What compaction kept of a partition, and behind it what came since. Raises DataLoss."""
        for left in reversed(range(_COMPACTION_LOOKS)):
            try:
                cursor = await stored_cursor(self._store, self._bookkeeper, part.managed_ledger_name, COMPACTION_CURSOR)
                ledger_id = None if cursor is None else cursor.properties.get(COMPACTED_LEDGER)
                if cursor is None or ledger_id is None:
                    return TopicRange(str(part), part.partition, tuple(runs))
                metadata = await self._bookkeeper.read_metadata(ledger_id)
            except NoSuchLedger as error:  # the next compaction has ended meanwhile, and names another ledger
                if not left:
                    raise DataLoss(f"what compaction kept of {part} is gone: {error}") from error
                continue
            except BookKeeperError as error:
                raise MagnetarError(f"cannot find what compaction kept of {part}: {error}") from error
            horizon = cursor.mark_delete_position
            later, earlier = clip(runs, (horizon.ledger_id, horizon.entry_id + 1), None)
            kept = Run(ledger_id, 0, metadata.last_entry_id, max(metadata.length, 1), is_compacted=True)
            first = (kept,) if metadata.last_entry_id >= 0 else ()
            return TopicRange(str(part), part.partition, (*first, *later), earlier)
        raise AssertionError("the last look returns or raises")

    async def ledgers(self, part: TopicName) -> list[int] | None:
        """The ledgers that its record lists; None if it has no record."""
        record = await stored_record(self._store, part.managed_ledger_name)
        return None if record is None else [info.ledgerId for info in record.ledgerInfo]

    async def _run(self, part: TopicName, ledger_id: int) -> Run | None:
        """The entries of one ledger that are part of it now; None if there are none.

        Raises DataLoss if that is not known, unless failOnDataLoss is false.
        """
        async with self._slots:
            try:
                metadata = await self._bookkeeper.read_metadata(ledger_id)
                last, size_bytes = metadata.last_entry_id, metadata.length
                if not metadata.is_closed:
                    last, size_bytes = await self._open_end(part, ledger_id, metadata)
            except NoSuchLedger:
                await self._check_given_up(part, ledger_id)
                return None
            except BookKeeperError as error:
                raise MagnetarError(f"cannot find the end of ledger {ledger_id} of {part}: {error}") from error
        return Run(ledger_id, 0, last, max(size_bytes, 1)) if last >= 0 else None

    async def _open_end(self, part: TopicName, ledger_id: int, metadata: LedgerMetadata) -> tuple[int, int]:
        """The last entry of an open ledger, and the ledger's length up to it."""
        confirmed = metadata.last_segment.first_entry_id - 1  # as far as the metadata alone show
        try:
            handle = await self._bookkeeper.open_ledger(ledger_id, recovery=False)
            return await _end_of(handle, await handle.last_recoverable_entry())
        except (NoSuchLedger, MetadataUnavailable):
            raise
        except EndUnknown as error:
            self._end_unknown(part, ledger_id, error.last_known, error)
            return await _end_of(handle, error.last_known)
        except (BookKeeperError, DigestMismatch) as error:
            self._end_unknown(part, ledger_id, confirmed, error)
            return confirmed, 0

    def _end_unknown(self, part: TopicName, ledger_id: int, last: int, error: Exception) -> None:
        """Raises DataLoss, unless failOnDataLoss is false: then acknowledged entries behind *last* may be left out; and
        NotLetIn."""
        check_let_in(error)
        text = f"too few bookies of ledger {ledger_id} of {part} answer to know where it ends ({error})"
        if self._options.fail_on_data_loss:
            raise DataLoss(
                f"{text}. Start them again; or set failOnDataLoss=false to read up to entry {last}, without what may "
                "have been acknowledged behind it"
            ) from error
        log.warning("%s; leaving out what may have been acknowledged behind entry %d", text, last)

    async def _check_given_up(self, part: TopicName, ledger_id: int) -> None:
        """Raises DataLoss, unless the topic has given the ledger up meanwhile or failOnDataLoss is false."""
        if ledger_id not in (await self.ledgers(part) or ()):
            return  # trimmed since the read was planned: the same as if it had been trimmed before
        text = f"ledger {ledger_id} of {part} is gone, although the topic lists it"
        if self._options.fail_on_data_loss:
            raise DataLoss(f"{text}; set failOnDataLoss=false to read what is left")
        log.warning("%s; leaving it out", text)


async def check_own(store: MetadataStore, part: TopicName, record: ManagedLedgerInfo) -> None:
    """Raises ShadowTopic for a topic that shows the ledgers of another one."""
    name = part.managed_ledger_name
    try:
        check_no_shadow(name, {item.key: item.value for item in record.properties})
        if not record.ledgerInfo:
            await check_partition(name, store)
    except ShadowTopic as error:
        raise ShadowTopic(f"{part} has no ledgers of its own, read its source ({error})") from None


async def time_bounds(
    bookkeeper: BookKeeper, part: TopicName, runs: Sequence[Run], closed_ms: Mapping[int, int], times: Times
) -> tuple[Position | None, Position | None]:
    """Where the messages of *times* stand in a partition (`connectors.spark.plan.times`). Raises MagnetarError."""

    async def time_of(ledger_id: int, entry_id: int) -> int | None:
        try:
            handle = await bookkeeper.open_ledger(ledger_id, recovery=False)
            (entry,) = await handle.read_unconfirmed(entry_id, entry_id)
            return signed(parse_metadata(entry.payload).publish_time)
        except (NoSuchLedger, NoSuchEntry, Corruption, DigestMismatch) as error:  # the task that reads it reports it
            log.info("%s, entry %s:%s: its time is not known: %s", part, ledger_id, entry_id, error)
            return None
        except BookKeeperError as error:
            raise MagnetarError(f"{part}: entry {ledger_id}:{entry_id}, for its time: {error}") from error

    return await bounds(runs, closed_ms, times, time_of)


async def _end_of(handle: LedgerReadHandle, last: int) -> tuple[int, int]:
    """*last*, the last entry of a ledger, and the ledger's length up to it."""
    if last < 0:
        return last, 0
    (entry,) = await handle.read_unconfirmed(last, last)  # each entry carries the length up to it
    return last, entry.length


def positions(topics: Iterable[FrozenTopic]) -> Mapping[str, Mapping[str, str]]:
    """The end of the read in the form of option `endingOffsets`, with which the same read can be repeated."""
    ends: dict[str, dict[str, str]] = {}
    for frozen in topics:
        ends[str(frozen.topic)] = {
            str(number): f"{part.runs[-1].ledger_id}:{part.runs[-1].last + 1}" if part.runs else "0:0"
            for number, part in enumerate(frozen.ranges)
        }
    return ends
