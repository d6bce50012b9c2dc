"""Ledger records in the metadata store: ids, compare-and-set, listing, and a new cluster's first nodes.

The outcome of a change whose answer was lost is never guessed (I56). The change is sent again with the same expected
version. If the store then reports a conflict, the record shows whose change was made: by the creator token for
`create`, by equality for `write`.

The numbers of ledgers only grow. Where the store gives one that is not above an earlier one, its data were put back to
an older state, and bookies have other ledgers under these numbers: no ledger is made (`WentBack`) until bookies have
moved the numbers on (`advance`, I132).
"""

import asyncio
import contextlib
import dataclasses
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import (
    SHORT_ID_LIMIT,
    LedgerMetadata,
    decode,
    encode,
    ledger_id_of,
    ledger_path,
)
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    Delete,
    MetadataError,
    MetadataStore,
    NoNode,
    OutcomeUnknown,
    Put,
    StoreUnavailable,
    VersionConflict,
    WentBack,
    delete_empty_parents,
)
from magnetar_core.runtime.types import Corruption

LAYOUT: Final = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"
_LAYOUT_NAME: Final = b"org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"

# How often a change is sent without an answer before it fails. Each try waits for the store's own time-out.
_TRIES: Final = 5
# How many generated ids in a row may be taken. That happens only after somebody removed `idgen`; each try moves the
# counter on.
_ID_TRIES: Final = 1_000

# Numbers that are drawn, and records that are asked for, at a time.
_AT_ONCE: Final = 200

_SHORT_TOP: Final = re.compile(r"\d{2}")
_LONG_TOP: Final = re.compile(r"\d{3}")
_INNER: Final = re.compile(r"\d{4}")


class Versioned(NamedTuple):
    """A record and the version it was read or written with. *created_ms* is wall-clock time."""

    metadata: LedgerMetadata
    version: int
    created_ms: int = 0


class LedgerStore:
    """The records of all ledgers of one cluster, below *root*."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._root = root
        self._tokens = random.SystemRandom()
        self._has_long_ids: bool | None = None
        self._newest_id = -1
        """The highest number that was drawn here."""

    async def create(self, metadata: LedgerMetadata) -> tuple[int, Versioned]:
        """Record a new ledger under an id that no ledger had before.

        Raises WentBack, StoreUnavailable, OutcomeUnknown (the record may exist; nobody refers to it).
        """
        for _ in range(_ID_TRIES):
            newest = self._newest_id  # before the question: answers may overtake each other
            ledger_id, id_node = await self._generate_id()
            if ledger_id <= newest:
                await self._remove(id_node)
                raise WentBack(
                    f"the metadata store went back in time: it gives the number {ledger_id} to a new ledger, and gave "
                    f"{newest} before. Ledgers of these numbers are on the bookies"
                )
            self._newest_id = max(self._newest_id, ledger_id)
            try:
                return ledger_id, await self.create_with_id(ledger_id, metadata, id_node=id_node)
            except VersionConflict:
                await self._remove(id_node)
            except BaseException:
                await self._remove(id_node)
                raise
        raise MetadataError(f"{self._root}: {_ID_TRIES} generated ledger ids in a row are taken")

    async def create_with_id(self, ledger_id: int, metadata: LedgerMetadata, *, id_node: str = "") -> Versioned:
        """Record a new ledger under *ledger_id*; *id_node*, from which the id was taken, is removed with it.

        Raises VersionConflict if there is such a ledger already.
        """
        token = self._tokens.getrandbits(63)
        metadata = dataclasses.replace(metadata, ctoken=token)
        path = ledger_path(self._root, ledger_id)
        data = encode(metadata)
        in_doubt = False
        for attempt in range(_TRIES):
            try:
                if not id_node:
                    return Versioned(metadata, await self._store.put(path, data, NO_NODE))
                await self._store.multi([Put(path, data, NO_NODE), Delete(id_node)])
                return Versioned(metadata, 0)  # of each node that was just created
            except NoNode:
                id_node = ""  # it was ephemeral, and its session has ended
            except OutcomeUnknown:
                in_doubt = True
                if attempt == _TRIES - 1:
                    raise
            except VersionConflict:
                stored = await self.read(ledger_id) if in_doubt else None
                if stored is not None and stored.metadata.ctoken == token:
                    return stored
                raise
        raise AssertionError("unreachable")

    async def next_id(self) -> int:
        """The number of the next ledger: it is above those of all that were made before this call. Raises
        MetadataError."""
        await self._store.sync()
        highs = _upper_halves(await self._store.children(f"{self._root}/idgen-long"))
        if highs or await self._store.exists(f"{self._root}/idgen-long"):
            high = max(highs, default=1)
            low = await self._store.next_number(f"{self._root}/idgen-long/HOB-{high:010d}")
            return high << 32 | low if 0 <= low < SHORT_ID_LIMIT else high + 1 << 32
        number = await self._store.next_number(f"{self._root}/idgen")
        return number if 0 <= number < SHORT_ID_LIMIT else 1 << 32

    async def advance(self, ledger_id: int) -> int:
        """Use numbers up until the next one is above *ledger_id*; returns it. Raises MetadataError."""
        while (following := await self.next_id()) <= ledger_id:
            count = min(ledger_id + 1 - following, _AT_ONCE)
            drawn = await asyncio.gather(*(self._generate_id() for _ in range(count)))
            await asyncio.gather(*(self._remove(id_node) for _, id_node in drawn))
        return following

    async def without_record(self, ledger_ids: Iterable[int]) -> list[int]:
        """Those of *ledger_ids* that have no record at all, ascending. Raises MetadataError."""
        ids = sorted(ledger_ids)
        absent: list[int] = []
        for first in range(0, len(ids), _AT_ONCE):
            chunk = ids[first : first + _AT_ONCE]
            there = await asyncio.gather(
                *(self._store.exists(ledger_path(self._root, ledger_id)) for ledger_id in chunk)
            )
            absent += [ledger_id for ledger_id, is_there in zip(chunk, there, strict=True) if not is_there]
        return absent

    async def sync(self) -> None:
        """From now on records are read as they are, also from a server that is behind. Raises StoreUnavailable."""
        await self._store.sync()

    def watch(self, ledger_id: int, changed: Callable[[], None]) -> Cancel:
        """Call *changed* after the record was written or deleted."""
        return self._store.watch_node(ledger_path(self._root, ledger_id), changed)

    async def read(self, ledger_id: int) -> Versioned:
        """The record. Raises NoNode if there is no such ledger, Corruption if its record cannot be decoded."""
        path = ledger_path(self._root, ledger_id)
        node = await self._store.get(path)
        if node is None:
            raise NoNode(f"ledger {ledger_id} does not exist ({path})")
        try:
            metadata = decode(node.value)
        except Corruption as error:
            raise Corruption(f"{path}: {error}") from error
        created_ms = node.created_ms if metadata.ctime_ms is None else metadata.ctime_ms
        return Versioned(metadata, node.version, created_ms)

    async def write(self, ledger_id: int, metadata: LedgerMetadata, version: int) -> Versioned:
        """Replace the record that was read at *version*.

        Raises VersionConflict (read again and decide again), NoNode (deleted), OutcomeUnknown.
        """
        path = ledger_path(self._root, ledger_id)
        data = encode(metadata)
        in_doubt = False
        for attempt in range(_TRIES):
            try:
                return Versioned(metadata, await self._store.put(path, data, version))
            except OutcomeUnknown:
                in_doubt = True
                if attempt == _TRIES - 1:
                    raise
            except VersionConflict:
                stored = await self.read(ledger_id)  # NoNode if it was deleted meanwhile
                if in_doubt and stored.version == version + 1 and stored.metadata == metadata:
                    return stored
                raise
        raise AssertionError("unreachable")

    async def delete(self, ledger_id: int) -> None:
        """Remove the record, whatever its version. A record that does not exist counts as removed."""
        path = ledger_path(self._root, ledger_id)
        for attempt in range(_TRIES):
            try:
                await self._store.delete(path)
                break
            except NoNode:
                break
            except OutcomeUnknown:
                if attempt == _TRIES - 1:
                    raise
        await delete_empty_parents(self._store, path, self._root)

    async def list(self) -> AsyncIterator[int]:
        """Every ledger that exists for the whole of the iteration, ids ascending (I61).

        An error of the store ends the iteration with that error, never silently.
        """
        tops = await self._store.children(self._root)
        for top in tops:
            if _SHORT_TOP.fullmatch(top):
                async for ledger_id in self._walk(f"{self._root}/{top}", 1):
                    yield ledger_id
        for top in tops:
            if _LONG_TOP.fullmatch(top):
                async for ledger_id in self._walk(f"{self._root}/{top}", 3):
                    yield ledger_id

    async def _walk(self, path: str, levels: int) -> AsyncIterator[int]:
        names = await self._store.children(path)
        for name in names:
            if levels == 0:
                ledger_id = ledger_id_of(f"{path}/{name}")
                if ledger_id is not None:
                    yield ledger_id
            elif _INNER.fullmatch(name):
                async for ledger_id in self._walk(f"{path}/{name}", levels - 1):
                    yield ledger_id

    async def _remove(self, id_node: str) -> None:
        """Remove the node of an id that is not used. If that fails, it goes with the session: it is ephemeral."""
        with contextlib.suppress(MetadataError):
            await self._store.delete(id_node)

    async def _generate_id(self) -> tuple[int, str]:
        """A new id and the ephemeral node that it was taken from.

        Whoever makes `idgen-long` does so when the numbers of `idgen` are used up; these tell it themselves.
        """
        if self._has_long_ids is None:
            self._has_long_ids = await self._store.exists(f"{self._root}/idgen-long")
        if not self._has_long_ids:
            node = await self._sequential(f"{self._root}/idgen/ID-")
            number = _suffix(node)
            if 0 <= number < SHORT_ID_LIMIT:
                return number, node
            self._has_long_ids = True
            await self._remove(node)
        return await self._generate_long_id()

    async def _generate_long_id(self) -> tuple[int, str]:
        root = f"{self._root}/idgen-long"
        for _ in range(_TRIES):
            high = max(_upper_halves(await self._store.children(root)), default=1)
            node = await self._sequential(f"{root}/HOB-{high:010d}/ID-")
            low = _suffix(node)
            if 0 <= low < SHORT_ID_LIMIT:
                return high << 32 | low, node
            with contextlib.suppress(VersionConflict):
                await self._store.put(f"{root}/HOB-{high + 1:010d}", b"", NO_NODE)
        raise MetadataError(f"{root}: the counters are used up as fast as new ones are made")

    async def _sequential(self, prefix: str) -> str:
        for _ in range(_TRIES):
            # If the answer was lost, a number was used up, which is harmless.
            with contextlib.suppress(OutcomeUnknown):
                return await self._store.put_sequential(prefix, b"", ephemeral=True)
        raise StoreUnavailable(f"{prefix}: no answer to {_TRIES} tries to draw a number")


async def initialise_cluster(store: MetadataStore, root: str = "/ledgers") -> str:
    """Create the nodes that a cluster needs and that are missing; return the instance id.

    May run at the same time in several processes. Raises MetadataError if the cluster has another layout.
    """
    await check_layout(store, root)
    for path in (f"{root}/available/readonly", f"{root}/cookies", f"{root}/idgen"):
        await _ensure(store, path, b"")
    await _ensure(store, f"{root}/INSTANCEID", str(uuid.uuid4()).encode())
    await _ensure(store, f"{root}/LAYOUT", LAYOUT)
    await check_layout(store, root)
    return await instance_id(store, root)


async def check_layout(store: MetadataStore, root: str) -> None:
    """Raises MetadataError if the ledgers below *root* are not in the hierarchical layout."""
    node = await store.get(f"{root}/LAYOUT")
    if node is None:
        return
    lines = node.value.split(b"\n")
    if len(lines) < 2 or lines[0] not in (b"1", b"2") or lines[1].rpartition(b":")[0] != _LAYOUT_NAME:
        raise MetadataError(f"{root}/LAYOUT is {node.value!r}; only {_LAYOUT_NAME.decode()} is supported")


async def instance_id(store: MetadataStore, root: str) -> str:
    """The id that ties bookies' directories to this cluster. Raises NoNode before `initialise_cluster`."""
    node = await store.get(f"{root}/INSTANCEID")
    if node is None:
        raise NoNode(f"{root}/INSTANCEID does not exist: the cluster metadata was not initialised")
    return node.value.decode()


async def _ensure(store: MetadataStore, path: str, value: bytes) -> None:
    for _ in range(_TRIES):
        if await store.exists(path):
            return
        try:
            await store.put(path, value, NO_NODE)
            return
        except VersionConflict:
            return
        except OutcomeUnknown:
            await asyncio.sleep(0)
    raise StoreUnavailable(f"{path}: no answer to {_TRIES} tries to create it")


def _upper_halves(names: Iterable[str]) -> list[int]:
    """The upper halves of long numbers that there are counters for."""
    return [_suffix(name) for name in names if name.startswith("HOB-")]


def _suffix(name: str) -> int:
    """The number that the store appended: ten digits, or a sign and ten digits once it has overflown."""
    match = re.search(r"-(-?\d{10,})$", name)
    assert match is not None, f"{name} has no sequence number"
    return int(match[1])
