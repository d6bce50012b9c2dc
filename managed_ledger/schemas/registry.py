"""The schemas of topics and their versions, stored where Pulsar stores them.

    /schemas/<tenant>/<namespace>/<topic>   locator: the newest version, and where each one is
        └─ one ledger for each version; its entry 0 is the schema

A locator is written by compare-and-set: a writer that loses deletes the ledger that it has just written, and reads the
locator again.
(docs/formats/metadata.md)
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import KIB, MIB, Corruption
from managed_ledger.config import ManagedLedgerConfig
from managed_ledger.errors import IncompatibleSchema, ManagedLedgerFenced, RecordInDoubt, StorageUnavailable
from managed_ledger.records.records_pb2 import IndexEntry, SchemaEntry, SchemaInfo, SchemaLocator, SchemaPosition
from managed_ledger.records.versioned_record import VersionedRecord
from managed_ledger.schemas.compatibility import (
    AVRO_BASED,
    Schema,
    SchemaType,
    Strategy,
    check_compatible,
    check_valid,
    same_schema,
)
from managed_ledger.schemas.stored import StoredSchema, decode

log = logging.getLogger(__name__)

R = TypeVar("R")

ROOT: Final = "/schemas"

# How often a change is tried when other brokers change the same schema at the same time.
ATTEMPTS_MAX: Final = 10

# Versions never change, and a topic rarely has more than a few. Their number in memory is limited, and so are the bytes
# of their definitions together: one definition may have megabytes.
CACHED_MAX: Final = 2_000
CACHED_BYTES_MAX: Final = 32 * MIB


# The digest beside a version without a definition: a primitive type, or a deletion. Apache's brokers write no digest
# beside a deletion; this one writes the digest of no bytes.
_NO_DEFINITION: Final = (b"", hashlib.sha256(b"").digest())


class SchemaPlace(NamedTuple):
    """In which entry of which ledger a version is stored."""

    version: int
    ledger_id: int
    entry_id: int


# Definitions that are larger than this together are compared on another thread. What stands in so few bytes has some
# ten thousand pairs of types at most, 40 ms.
INLINE_BYTES_MAX: Final = 4 * KIB

# Threads for that: a thread at work takes turns with the loop, which has half of the time then.
_APART_AT_ONCE: Final = 1
_threads = ThreadPoolExecutor(_APART_AT_ONCE, "schemas")


async def run_fairly(work: Callable[..., R], *arguments: Any) -> R:
    """Call *work*; on another thread if the schemas among its arguments are large. Others get their turn before it
    returns. Raises what *work* raises."""
    size = sum(len(schema.data) for schema in arguments if isinstance(schema, Schema))
    if size > INLINE_BYTES_MAX:
        return await asyncio.get_running_loop().run_in_executor(_threads, work, *arguments)
    await asyncio.sleep(0)
    return work(*arguments)


async def _find_same(schema: Schema, live: Sequence[StoredSchema]) -> int | None:
    """The version that is *schema* already: most often byte for byte, else as JSON."""
    for entry in live:
        if (entry.schema.type, entry.schema.data) == (schema.type, schema.data):
            return entry.version
    for entry in live:
        if schema.type in AVRO_BASED and await run_fairly(same_schema, schema, entry.schema):
            return entry.version
    return None


async def _check_compatible(schema: Schema, live: Sequence[StoredSchema], strategy: Strategy) -> None:
    """Each version by itself, so that a topic with many of them keeps nobody waiting. Raises IncompatibleSchema."""
    for entry in live if strategy.transitive else live[-1:]:
        await run_fairly(_check_one, strategy, schema, entry.schema)


def _check_one(strategy: Strategy, new: Schema, old: Schema) -> None:
    check_compatible(new, (old,), strategy)


class SchemaRegistry:
    """Reads and registers schemas. *schema_id* is `<tenant>/<namespace>/<encoded topic>`, without partition."""

    def __init__(
        self, bookkeeper: BookKeeper, store: MetadataStore, clock: Clock, config: ManagedLedgerConfig | None = None
    ) -> None:
        self._bookkeeper = bookkeeper
        self._store = store
        self._clock = clock
        self._config = config or ManagedLedgerConfig()
        self._cache: dict[tuple[str, int, int], StoredSchema] = {}
        self._cached_bytes = 0
        # The locks that somebody holds or waits for.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def get(self, schema_id: str, version: int | None = None) -> StoredSchema | None:
        """A version, or the newest; None if there is none, or if the schema was deleted since.

        Raises StorageUnavailable, Corruption.
        """
        _, locator = await self._locator(schema_id)
        if locator is None:
            return None
        if version is None:
            stored = await self._read(schema_id, locator.info)
        else:
            entries = [entry for entry in locator.index if entry.version == version]
            if not entries or await self._is_deleted_after(schema_id, locator, version):
                return None
            stored = await self._read(schema_id, entries[0])
        return None if stored is None or stored.deleted else stored

    async def _is_deleted_after(self, schema_id: str, locator: SchemaLocator, version: int) -> bool:
        for entry in locator.index:
            if entry.version > version and entry.hash in _NO_DEFINITION:
                stored = await self._read(schema_id, entry)
                if stored is not None and stored.deleted:
                    return True
        return False

    async def versions(self, schema_id: str, *, bytes_max: int | None = None) -> list[StoredSchema]:
        """All versions since the last deletion, oldest first. Raises Corruption if their definitions have more than
        *bytes_max* together."""
        _, locator = await self._locator(schema_id)
        return [] if locator is None else await self._live(schema_id, locator, bytes_max)

    async def put_if_absent(
        self,
        schema_id: str,
        schema: Schema,
        strategy: Strategy,
        *,
        user: str = "",
        allow_update: bool = True,
    ) -> int:
        """The version of *schema*; registers it if it is new and compatible with the versions there are.

        Without *allow_update* only schemas that are there are found, and none is registered, not even the first.
        Raises IncompatibleSchema, StorageUnavailable.
        """
        async with self._locks.setdefault(schema_id, asyncio.Lock()):
            for _ in range(ATTEMPTS_MAX):
                record, locator = await self._locator(schema_id)
                live = [] if locator is None else await self._live(schema_id, locator)
                version = await _find_same(schema, live)
                if version is not None:
                    return version
                await run_fairly(check_valid, schema)
                if not allow_update:  # the first schema too, as in Apache's broker
                    raise IncompatibleSchema(f"{schema_id} does not take new schemas by itself")
                await _check_compatible(schema, live, strategy)
                version = await self._append(schema_id, record, locator, schema, user, deleted=False)
                if version is not None:
                    return version
        raise StorageUnavailable(f"schema {schema_id} is being changed by others all the time")

    async def check(self, schema_id: str, schema: Schema, strategy: Strategy, *, by_rule: bool = False) -> None:
        """Whether *schema* could be registered now. *by_rule*: whether it may follow the latest version; that it is a
        former one is not enough. Raises IncompatibleSchema."""
        live = await self.versions(schema_id)
        if await _find_same(schema, live[-1:] if by_rule else live) is None:
            await run_fairly(check_valid, schema)
            await _check_compatible(schema, live, strategy)

    async def delete(self, schema_id: str, *, force: bool = False) -> int | None:
        """Add a tombstone, or with *force* remove every trace; returns the tombstone's (or last) version."""
        async with self._locks.setdefault(schema_id, asyncio.Lock()):
            for _ in range(ATTEMPTS_MAX):
                record, locator = await self._locator(schema_id)
                if locator is None:
                    return None
                if force:
                    try:
                        await record.delete()
                    except ManagedLedgerFenced:
                        continue
                    for entry in locator.index:
                        await self._drop(entry.position.ledgerId)
                    return int(locator.info.version)
                version = await self._append(schema_id, record, locator, Schema(SchemaType.NONE, b""), "", deleted=True)
                if version is not None:
                    return version
        raise StorageUnavailable(f"schema {schema_id} is being changed by others all the time")

    async def ledgers(self, schema_id: str) -> list[int]:
        """The ledgers that hold this schema's versions."""
        _, locator = await self._locator(schema_id)
        return [] if locator is None else [int(entry.position.ledgerId) for entry in locator.index]

    async def positions_of_versions(self, schema_id: str) -> list[SchemaPlace]:
        """The place of each version, oldest first, tombstones among them; empty for a topic without schema.

        Raises StorageUnavailable, Corruption.
        """
        _, locator = await self._locator(schema_id)
        if locator is None:
            return []
        return [SchemaPlace(entry.version, entry.position.ledgerId, entry.position.entryId) for entry in locator.index]

    # ---------------------------------------------------------------------------------- storage

    async def _locator(self, schema_id: str) -> tuple[VersionedRecord, SchemaLocator | None]:
        """The record that says where the versions of a schema are; None: there is none. Raises Corruption,
        StorageUnavailable."""
        record = VersionedRecord(self._store, f"{ROOT}/{schema_id}")
        value = await record.read()
        if not value:  # an empty node is the parent of others, not a locator
            return record, None
        try:
            return record, SchemaLocator.FromString(value)
        except DecodeError as error:
            raise Corruption(f"the locator of schema {schema_id} cannot be decoded: {error}") from None

    async def _live(self, schema_id: str, locator: SchemaLocator, bytes_max: int | None = None) -> list[StoredSchema]:
        """The versions since the last deletion, oldest first. Raises Corruption: they have more than *bytes_max*
        together."""
        live: list[StoredSchema] = []
        for entry in locator.index:
            stored = await self._read(schema_id, entry)
            if stored is None:
                continue
            if stored.deleted:
                live.clear()
            else:
                live.append(stored)
            if bytes_max is not None and sum(len(kept.schema.data) for kept in live) > bytes_max:
                raise Corruption(f"the versions of schema {schema_id} have more than {bytes_max} bytes together")
        return live

    async def _read(self, schema_id: str, entry: IndexEntry) -> StoredSchema | None:
        """One version, from memory or its ledger; None: the ledger is gone. Raises StorageUnavailable, Corruption."""
        ledger_id, entry_id = entry.position.ledgerId, entry.position.entryId
        key = (schema_id, ledger_id, entry.version)
        if key in self._cache:
            return self._cache[key]
        try:
            handle = await self._bookkeeper.open_ledger(ledger_id, password=self._config.password, recovery=False)
            try:
                # We close the ledger before we write the locator. Pulsar may leave it open; then no later entry says
                # that its last one is confirmed.
                stored = await handle.read_unconfirmed(entry_id, entry_id)
            finally:
                await handle.close()
        except NoSuchLedger:
            log.warning("schema %s version %s: its ledger %s is gone", schema_id, entry.version, ledger_id)
            return None
        except BookKeeperError as error:
            raise StorageUnavailable(f"schema {schema_id} version {entry.version}: {error}") from error
        assert stored[0].entry_id == entry_id, (stored[0].entry_id, entry_id)
        decoded = decode(schema_id, entry.version, bytes(stored[0].payload))
        if len(self._cache) >= CACHED_MAX or self._cached_bytes + len(decoded.schema.data) > CACHED_BYTES_MAX:
            self._cache.clear()
            self._cached_bytes = 0
        self._cache[key] = decoded
        self._cached_bytes += len(decoded.schema.data)
        return decoded

    async def _append(
        self,
        schema_id: str,
        record: VersionedRecord,
        locator: SchemaLocator | None,
        schema: Schema,
        user: str,
        *,
        deleted: bool,
    ) -> int | None:
        """Write a version and switch the locator; None if another broker was faster."""
        version = 0 if locator is None else locator.info.version + 1
        assert version >= 0, version
        digest = hashlib.sha256(schema.data).digest()
        info = SchemaInfo(
            schema_id=schema_id,
            user=user,
            type=SchemaInfo.SchemaType.Name(schema.type.stored),
            schema=schema.data,
            timestamp=self._clock.wall_ms(),
            deleted=deleted,
        )
        for key, value in schema.properties:
            info.props.add(key=key, value=value)
        nowhere = IndexEntry(version=0, position=SchemaPosition(ledgerId=-1, entryId=-1), hash=digest)
        index: Sequence[IndexEntry] = [nowhere] if locator is None else list(locator.index)
        entry = SchemaEntry(schema_data=info.SerializeToString(), index=index)
        ledger_id = await self._write_ledger(schema_id, entry.SerializeToString())
        new_entry = IndexEntry(version=version, position=SchemaPosition(ledgerId=ledger_id, entryId=0), hash=digest)
        former_index = [] if locator is None else list(locator.index)
        switched = SchemaLocator(info=new_entry, index=[*former_index, new_entry])
        try:
            await record.write(switched.SerializeToString())
        except ManagedLedgerFenced:
            await self._drop(ledger_id)
            return None
        except RecordInDoubt:
            raise  # the locator may name the ledger: it stays (I57)
        except StorageUnavailable:
            await self._drop(ledger_id)
            raise
        return int(version)

    async def _write_ledger(self, schema_id: str, data: bytes) -> int:
        try:
            handle = await self._bookkeeper.create_ledger(
                ensemble_size=self._config.ensemble_size,
                write_quorum=self._config.write_quorum,
                ack_quorum=self._config.ack_quorum,
                digest_type=self._config.digest_type,
                password=self._config.password,
                custom_metadata=(
                    ("application", b"pulsar"),
                    ("component", b"schema"),
                    ("pulsar/schemaId", schema_id.encode()),
                ),
            )
            await handle.add(data)
            await handle.close()
        except BookKeeperError as error:
            raise StorageUnavailable(f"schema {schema_id} cannot be stored: {error}") from error
        return handle.ledger_id

    async def _drop(self, ledger_id: int) -> None:
        with contextlib.suppress(BookKeeperError):
            await self._bookkeeper.delete_ledger(ledger_id)
