"""What the driver asks the cluster once, when a read is planned: topics, ledgers, ends, schemas.

Only the metadata store is asked, and for a ledger that is still open its bookies, without fencing: reading never
disturbs who writes. The end that is found here is the end of the read.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from magnetar.bookkeeper.client.client import BookKeeper

from connectors.spark.options import ReadOptions
from connectors.spark.planning import Run, TopicRange, clip
from magnetar.bookkeeper.client.config import ClientConfig
from magnetar.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar.bookkeeper.metadata.ledgers import LedgerState
from magnetar.bookkeeper.metadata.store import MetadataStore
from magnetar.bookkeeper.metadata.url import open_store
from magnetar.runtime.clock import Clock
from magnetar.runtime.daemon import new_clock
from magnetar.runtime.types import ConfigurationError, MagnetarError
from managed_ledger.names import encode, ledger_path
from managed_ledger.records import decode_ledger_info
from managed_ledger.schema_compatibility import SchemaType
from managed_ledger.schema_registry import SchemaRegistry, StoredSchema

log = logging.getLogger(__name__)

# The driver asks about so many ledgers at once: enough to hide the latency, few enough for one ZooKeeper connection.
CONCURRENT_MAX: Final = 64

PARTITIONED: Final = "/admin/partitioned-topics"


class TopicMissing(MagnetarError):
    """The topic does not exist."""


class DataLoss(MagnetarError):
    """Messages that were planned to be read are gone."""


@dataclass(frozen=True, slots=True)
class FrozenTopic:
    """A topic as it was when the read was planned."""

    name: str
    ranges: tuple[TopicRange, ...]
    schemas: tuple[StoredSchema, ...]
    """All versions, oldest first; empty without a schema."""


@asynccontextmanager
async def connected(options: ReadOptions) -> AsyncIterator[tuple[MetadataStore, BookKeeper, Clock]]:
    """A client for one planning, closed at the end. Raises ConfigurationError, StoreUnavailable."""
    clock = new_clock()
    store = await open_store(options.metadata_url, clock, read_only=True)
    bookkeeper = BookKeeper(store, clock, ClientConfig(), root=options.ledgers_root)
    try:
        await bookkeeper.open()
        yield store, bookkeeper, clock
    finally:
        await bookkeeper.close()
        await store.close()


async def freeze(options: ReadOptions) -> list[FrozenTopic]:
    """Every topic of a read with its runs of entries. Raises TopicMissing and what the stores raise."""
    async with connected(options) as (store, bookkeeper, clock):
        turns = asyncio.Semaphore(CONCURRENT_MAX)
        return [await _topic(options, name, store, bookkeeper, clock, turns) for name in options.topics]


async def _topic(
    options: ReadOptions,
    name: str,
    store: MetadataStore,
    bookkeeper: BookKeeper,
    clock: Clock,
    turns: asyncio.Semaphore,
) -> FrozenTopic:
    tenant, namespace, local = _split_name(name)
    full = f"persistent://{tenant}/{namespace}/{local}"
    ranges = []
    node = await store.get(f"{PARTITIONED}/{tenant}/{namespace}/persistent/{encode(local)}")
    if node is not None:
        stem = f"{tenant}/{namespace}/persistent"
        count = _partition_count(node.value)
        parts = [(number, f"{full}-partition-{number}", f"{stem}/{encode(local)}-partition-{number}")
                 for number in range(count)]  # fmt: skip
    else:
        parts = [(-1, full, f"{tenant}/{namespace}/persistent/{encode(local)}")]
    found_any = node is not None
    for number, topic, ledger_name in parts:
        record = await store.get(ledger_path(ledger_name))
        if record is None:
            ranges.append(TopicRange(topic, number, ()))
            continue
        found_any = True
        ledgers = [info.ledgerId for info in decode_ledger_info(record.value, topic).ledgerInfo]
        runs = await asyncio.gather(*(_run(bookkeeper, topic, ledger, options, turns) for ledger in ledgers))
        start = options.starting.get(name, {}).get(max(number, 0))
        end = options.ending.get(name, {}).get(max(number, 0))
        ranges.append(TopicRange(topic, number, clip([run for run in runs if run is not None], start, end)))
    if not found_any:
        raise TopicMissing(f"topic {full} does not exist in {options.metadata_url}")
    registry = SchemaRegistry(bookkeeper, store, clock)
    schemas = await registry.versions(f"{tenant}/{namespace}/{encode(local)}")
    return FrozenTopic(full, tuple(ranges), tuple(schemas))


async def _run(
    bookkeeper: BookKeeper, topic: str, ledger_id: int, options: ReadOptions, turns: asyncio.Semaphore
) -> Run | None:
    """The entries of one ledger that are confirmed now; None if there are none."""
    async with turns:
        try:
            metadata = await bookkeeper.read_metadata(ledger_id)
            if metadata.state is LedgerState.CLOSED:
                last, size = metadata.last_entry_id, metadata.length
            else:
                handle = await bookkeeper.open_ledger(ledger_id, recovery=False)
                try:
                    last = await handle.last_recoverable_entry()
                    size = await _length(handle, last) if last >= 0 else 0
                finally:
                    await handle.close()
        except NoSuchLedger:
            if options.fail_on_data_loss:
                raise DataLoss(
                    f"ledger {ledger_id} of {topic} is gone: it was trimmed while the read was planned. Load again, "
                    "raise the namespace's retention, or set failOnDataLoss=false to read what is left."
                ) from None
            log.warning("ledger %s of %s is gone; leaving it out", ledger_id, topic)
            return None
        except BookKeeperError as error:
            raise MagnetarError(f"cannot find the end of ledger {ledger_id} of {topic}: {error}") from error
    return Run(ledger_id, 0, last, max(size, 1)) if last >= 0 else None


async def _length(handle: object, last: int) -> int:
    """Bytes of an open ledger: the running length that its last entry carries."""
    entries = await handle.read_unconfirmed(last, last)  # type: ignore[attr-defined]
    return int(entries[0].length)


def _split_name(name: str) -> tuple[str, str, str]:
    domain, separator, rest = name.partition("://")
    if separator and domain != "persistent":
        raise ConfigurationError(f"topic {name}: only persistent topics have ledgers to read")
    parts = (rest if separator else name).split("/")
    if not separator and len(parts) == 1:
        parts = ["public", "default", *parts]
    if len(parts) < 3 or not all(parts):
        raise ConfigurationError(
            f"topic {name}: write name, tenant/namespace/name or persistent://tenant/namespace/name"
        )
    return parts[0], parts[1], "/".join(parts[2:])


def _partition_count(value: bytes) -> int:
    import json

    return int(json.loads(value).get("partitions", 0))


def common_schema(topics: list[FrozenTopic]) -> tuple[StoredSchema, ...]:
    """The versions of the one schema that all topics share. Raises ConfigurationError if they differ."""
    first = topics[0]
    for other in topics[1:]:
        if [found.schema.data for found in other.schemas[-1:]] != [found.schema.data for found in first.schemas[-1:]]:
            raise ConfigurationError(
                f"{first.name} and {other.name} have different schemas; read them apart, or with valueFormat=binary"
            )
    return first.schemas


RECORD_TYPES: Final = frozenset({SchemaType.AVRO, SchemaType.JSON})
