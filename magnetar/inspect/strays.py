"""Ledgers that bookies have and the metadata store does not: listed, and given a record again.

    bookies' HTTP ── ledgers of each ──┐
    metadata store ── records ─────────┴──▶ strays ── lists of entries ──▶ `stray_rules` ──▶ a closed record ──▶ a topic

Metadata that went back in time lack the ledgers that were made since. Rules:

1. Before the copies count, the ledger is fenced on every bookie that has some of it: a client that still writes to it
   gets no acknowledgement any more.
2. A record is made where there is none, and not changed afterwards, but that it is told whose ledger it is. A topic's
   record is replaced in the version that was read, and only while no broker is registered: a broker that has the topic
   loaded would not know of the ledger.
3. A ledger goes into a topic's list where its number belongs, closed. If it is behind the last one, that is closed
   first, as the next owner would do it.
4. A ledger is in one topic: the first that is deleted would take it from the others. A topic with partitions has none.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from broker.ownership.membership import BROKERS
from magnetar.inspect.bookie_admin import BookieAdmin, BookieAdminError
from magnetar.inspect.inspector import LAST_ENTRY, Inspector
from magnetar.inspect.stray_rules import CannotTell, entries_of, last_entry, place
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchEntry, NoSuchLedger
from magnetar_core.bookkeeper.client.reading.entry_lists import EntryLists
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.owners import owner_of
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, NoNode, VersionConflict
from magnetar_core.bookkeeper.wire.entry import DigestMismatch, DigestType, EntryCodec, StoredEntry, master_key
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.messages import metadata_of, split_entry
from managed_ledger.records.paths import ledger_path
from managed_ledger.records.pulsar_records import decode_ledger_info, encode_record
from managed_ledger.records.records_pb2 import ManagedLedgerInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

# Ids that one answer of a bookie has.
_LEDGERS_PER_ANSWER: Final = 10_000

# Ledgers whose lists are asked for at a time; each question has a connection.
_AT_ONCE: Final = 8

# The name under which a ledger's record says whose it is.
_OWNER: Final = "pulsar/managed-ledger"

# DUMMY comes last: it fits everything.
_DIGESTS: Final = (DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)


class Stray(NamedTuple):
    """A ledger without a record."""

    ledger_id: int
    bookies: tuple[str, ...]
    entries: int
    """The most that one bookie has; -1: no bookie could say."""
    producer: str = ""
    """The producer of its first message; empty if the first entry is not a message, or is not there."""
    published_ms: int = 0


class Strays(NamedTuple):
    """What a search came to."""

    ledgers: tuple[Stray, ...]
    left: int
    """Ledgers without a record that were not looked at."""
    silent: Mapping[str, str]
    """Bookies that could not be asked, and why."""


class Restored(NamedTuple):
    """The record that a ledger has now."""

    metadata: LedgerMetadata
    is_new: bool
    """False: it had a closed record already."""


class StrayLedgers:
    """Finds ledgers without a record, and gives them one. Used once, on the loop."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._lists = EntryLists(inspector.pool)

    # -- listing

    async def find(self, count_max: int) -> Strays:
        """The ledgers without a record, up to *count_max*, ascending. Raises MetadataError."""
        held: dict[int, list[str]] = {}
        silent: dict[str, str] = {}
        for known in await self._inspector.bookies():
            if known.state == "away":
                silent[known.bookie_id] = "it is away"
            elif not known.http:
                silent[known.bookie_id] = "it has no HTTP admin (httpServerEnabled)"
            else:
                try:
                    for ledger_id in await asyncio.to_thread(ledgers_of, known.http, known.bookie_id):
                        held.setdefault(ledger_id, []).append(known.bookie_id)
                except (BookieAdminError, TypeError, ValueError) as error:
                    silent[known.bookie_id] = str(error)
        ids = await self._inspector.ledgers.without_record(held)
        chosen_ids = ids[:count_max]
        limit = asyncio.Semaphore(_AT_ONCE)

        async def look(ledger_id: int) -> Stray:
            async with limit:
                return await self._examine_ledger(ledger_id, held[ledger_id])

        return Strays(tuple(await asyncio.gather(*map(look, chosen_ids))), len(ids) - len(chosen_ids), silent)

    async def _examine_ledger(self, ledger_id: int, bookies: Sequence[str]) -> Stray:
        """What its bookies tell of a ledger without a record."""
        entries, producer, published_ms = -1, "", 0
        for bookie_id in bookies:
            try:
                listed = entries_of(await self._lists.of(bookie_id, ledger_id))
            except (BookKeeperError, CannotTell):
                continue
            entries = max(entries, listed.bit_count())
            has_first_entry = listed & 1
            if has_first_entry and not published_ms:
                producer, published_ms = await self._read_first_entry(bookie_id, ledger_id)
        return Stray(ledger_id, tuple(bookies), entries, producer, published_ms)

    async def _read_first_entry(self, bookie_id: str, ledger_id: int) -> tuple[str, int]:
        try:
            data = await self._inspector.pool.get(bookie_id, ledger_id).read(ledger_id, 0)
            stored = _decoded_entry(bytes(data), ledger_id, 0, b"", _DIGESTS)
            metadata = metadata_of(split_entry(stored.payload)) if stored else None
        except Exception:  # any bytes may be there
            return "", 0
        return (metadata.producer_name, metadata.publish_time) if metadata else ("", 0)

    # -- restoring

    async def restore(
        self,
        ledger_id: int,
        *,
        topic: TopicName | None = None,
        password: bytes = b"",
        without: Collection[str] = (),
        ensemble_size: int | None = None,
        is_unchecked: bool = False,
    ) -> Restored:
        """Write a closed record. *without*: bookies that are not asked, since they are gone. *is_unchecked*: the
        ledger was written with the digest DUMMY.

        Raises CannotTell, MetadataError.
        """
        ledgers = self._inspector.ledgers
        try:
            record = await ledgers.read(ledger_id)
        except NoNode:
            pass
        else:
            if not record.metadata.is_closed:
                raise CannotTell(f"ledger {ledger_id} has a record, which is open; its topic's owner closes it")
            return Restored(record.metadata, is_new=False)
        bookies = await self._all_bookies(without)
        # Once more when it is fenced: until then a writer may have added to it.
        await self._fence(ledger_id, tuple(await self._entries_by_bookie(ledger_id, bookies)), password)
        held = await self._entries_by_bookie(ledger_id, bookies)
        if not held:
            raise CannotTell(f"no bookie has an entry of ledger {ledger_id}: there is nothing to save")
        digests = (DigestType.DUMMY,) if is_unchecked else _DIGESTS
        newest = await self._read(
            ledger_id, max(entries.bit_length() for entries in held.values()) - 1, held, password, digests
        )
        last = last_entry(held, newest.stored.last_add_confirmed)
        end = newest if newest.stored.entry_id == last else (
            await self._read(ledger_id, last, held, password, (newest.digest,))
        )  # fmt: skip
        placed = place(held, last, bookies, ensemble_size)
        metadata = LedgerMetadata(
            ensemble_size=len(placed.segments[0].ensemble),
            write_quorum=placed.write_quorum,
            ack_quorum=placed.write_quorum,
            digest_type=newest.digest,
            password=password,
            segments=placed.segments,
            state=LedgerState.CLOSED,
            last_entry_id=last,
            length=end.stored.length,
            ctime_ms=self._inspector.clock.wall_ms(),
            custom_metadata=_custom_metadata(topic),
        )
        try:
            await ledgers.create_with_id(ledger_id, metadata)
        except VersionConflict:
            raise CannotTell(f"ledger {ledger_id} got a record meanwhile; ask again") from None
        return Restored(metadata, is_new=True)

    async def _all_bookies(self, without: Collection[str]) -> list[str]:
        """Every bookie of the cluster. Raises CannotTell if one of them is away."""
        known = await self._inspector.bookies()
        strangers = set(without) - {bookie.bookie_id for bookie in known}
        if strangers:
            raise CannotTell(f"no bookie is called {', '.join(sorted(strangers))}")
        away = [bookie.bookie_id for bookie in known if bookie.state == "away" and bookie.bookie_id not in without]
        if away:
            raise CannotTell(
                f"{', '.join(away)} cannot be asked, and may have entries that no other bookie has: start it, or say "
                "that it does not count (--without)"
            )
        return [bookie.bookie_id for bookie in known if bookie.bookie_id not in without]

    async def _entries_by_bookie(self, ledger_id: int, bookies: Sequence[str]) -> dict[str, int]:
        """Bookie → its entries, as `entries_of` has them; without bookies that have nothing. Raises CannotTell."""
        held = {}
        for bookie_id in bookies:
            try:
                entries = entries_of(await self._lists.of(bookie_id, ledger_id))
            except BookKeeperError as error:
                raise CannotTell(f"{error}; say that it does not count (--without), or mend it") from error
            if entries:
                held[bookie_id] = entries
        return held

    async def _fence(self, ledger_id: int, bookies: Sequence[str], password: bytes) -> None:
        for bookie_id in bookies:
            try:
                connection = self._inspector.pool.get(bookie_id, ledger_id)
                await connection.read(ledger_id, LAST_ENTRY, fencing_key=master_key(password))
            except (NoSuchLedger, NoSuchEntry):
                continue
            except BookKeeperError as error:
                raise CannotTell(f"ledger {ledger_id} is not fenced on bookie {bookie_id}: {error}") from error

    async def _read(
        self, ledger_id: int, entry_id: int, held: Mapping[str, int], password: bytes, digests: Sequence[DigestType]
    ) -> "_Read":
        """A good copy of an entry, and the digest that it has. Raises CannotTell."""
        problems = []
        for bookie_id in (holder for holder, entries in held.items() if entries >> entry_id & 1):
            try:
                data = bytes(await self._inspector.pool.get(bookie_id, ledger_id).read(ledger_id, entry_id))
            except BookKeeperError as error:
                problems.append(str(error))
                continue
            for digest in digests:
                stored = _decoded_entry(data, ledger_id, entry_id, password, (digest,))
                if stored is not None:
                    return _Read(stored, digest)
            problems.append(f"bookie {bookie_id}: no digest fits (--password, --unchecked)")
        raise CannotTell(f"ledger {ledger_id} entry {entry_id}: {'; '.join(problems) or 'no copy'}")

    # -- a topic

    async def check_may_get_ledgers(self, topic: TopicName) -> None:
        """Return if ledgers may be put into the list of *topic* now: no broker is registered (rule 2), and it has no
        partitions (rule 4). Raises CannotTell, MetadataError."""
        brokers = await self._inspector.store.children(BROKERS)
        if brokers:
            raise CannotTell(f"stop the brokers first: {', '.join(brokers)} may have {topic} loaded")
        if await self._inspector.store.get(topic.partitions_path) is not None:
            raise CannotTell(f"{topic} has partitions: name one of them, as {topic}-partition-0")

    async def put_into(self, topic: TopicName, ledger_id: int) -> bool:
        """Name a closed ledger in a topic's record (rules 2 to 4); False: it stands there already.

        Raises CannotTell, MetadataError.
        """
        await self.check_may_get_ledgers(topic)
        store = self._inspector.store
        versioned = await self._inspector.ledgers.read(ledger_id)
        metadata = versioned.metadata
        if not metadata.is_closed or metadata.last_entry_id < 0:
            raise CannotTell(f"ledger {ledger_id} is not closed, or has no entries")
        owner = dict(metadata.custom_metadata).get(_OWNER, b"").decode("utf-8", "replace")
        if owner and owner != topic.managed_ledger_name and await self._has_ledger(owner, ledger_id):
            raise CannotTell(
                f"ledger {ledger_id} stands in {owner_of(metadata)} already: a ledger is in one topic only"
            )
        if owner != topic.managed_ledger_name:
            metadata = replace(metadata, custom_metadata=_custom_metadata(topic))
            await self._inspector.ledgers.write(ledger_id, metadata, versioned.version)
        path = ledger_path(topic.managed_ledger_name)
        node = await store.get(path)
        record = ManagedLedgerInfo() if node is None else decode_ledger_info(node.value, str(topic))
        if any(ledger.ledgerId == ledger_id for ledger in record.ledgerInfo):
            return False
        infos = list(record.ledgerInfo)
        if infos and infos[-1].ledgerId < ledger_id and not infos[-1].timestamp:
            infos[-1:] = await self._close(infos[-1], topic)
        info = ManagedLedgerInfo.LedgerInfo(
            ledgerId=ledger_id, entries=metadata.last_entry_id + 1, size=metadata.length,
            timestamp=self._inspector.clock.wall_ms(),
        )  # fmt: skip
        infos = sorted([*infos, info], key=lambda ledger: ledger.ledgerId)
        assert [ledger.ledgerId for ledger in infos].count(ledger_id) == 1, "a topic's record names a ledger once"
        if record.HasField("terminatedPosition") and infos[-1] is info:
            raise CannotTell(f"{topic} was terminated before ledger {ledger_id}: nothing comes behind that")
        del record.ledgerInfo[:]
        record.ledgerInfo.extend(infos)
        try:
            await store.put(path, encode_record(record), NO_NODE if node is None else node.version)
        except VersionConflict:
            raise CannotTell(f"the record of {topic} was changed meanwhile; ask again") from None
        return True

    async def _has_ledger(self, managed_ledger: str, ledger_id: int) -> bool:
        node = await self._inspector.store.get(ledger_path(managed_ledger))
        record = ManagedLedgerInfo() if node is None else decode_ledger_info(node.value, managed_ledger)
        return any(ledger.ledgerId == ledger_id for ledger in record.ledgerInfo)

    async def _close(self, last: ManagedLedgerInfo.LedgerInfo, topic: TopicName) -> list[ManagedLedgerInfo.LedgerInfo]:
        """Close the topic's last ledger; returns its line of the record, none if it is gone. Raises CannotTell."""
        async with _client(self._inspector) as client:
            try:
                handle = await client.open_as_administrator(last.ledgerId, recovery=True)
            except NoSuchLedger:
                return []
            except BookKeeperError as error:
                raise CannotTell(f"the last ledger of {topic} cannot be closed: {error}") from error
            closed = ManagedLedgerInfo.LedgerInfo()
            closed.CopyFrom(last)
            closed.entries, closed.size = handle.last_add_confirmed + 1, handle.length
            closed.timestamp = self._inspector.clock.wall_ms()
            await handle.close()
            return [closed]


class _Read(NamedTuple):
    stored: StoredEntry
    digest: DigestType


@asynccontextmanager
async def _client(inspector: Inspector) -> "AsyncIterator[BookKeeper]":
    client = BookKeeper(inspector.store, inspector.clock, inspector.pool.config, root=inspector.root)
    await client.open()
    try:
        yield client
    finally:
        await client.close()


def _custom_metadata(topic: TopicName | None) -> tuple[tuple[str, bytes], ...]:
    """The custom metadata that a broker gives its ledgers, by which their owner is known."""
    if topic is None:
        return ()
    return (
        ("application", b"pulsar"),
        ("component", b"managed-ledger"),
        (_OWNER, topic.managed_ledger_name.encode()),
    )


def _decoded_entry(
    data: bytes, ledger_id: int, entry_id: int, password: bytes, digests: Sequence[DigestType]
) -> StoredEntry | None:
    for digest in digests:
        try:
            return EntryCodec(digest, password).open(data, ledger_id, entry_id)
        except DigestMismatch:
            continue
    return None


def ledgers_of(url: str, bookie_id: str) -> list[int]:
    """The ledgers of a bookie, which may share its HTTP address with others. Blocks. Raises BookieAdminError."""
    admin = BookieAdmin(url)
    ledger_ids: list[int] = []
    first = 0
    while some := admin.get("magnetar/ledgers", first=first, count=_LEDGERS_PER_ANSWER, bookie=bookie_id):
        ledger_ids += map(int, some)
        first = ledger_ids[-1] + 1
    return ledger_ids
