"""Ledgers that a drain moves or has moved, and whose copies were not read yet: kept in the metadata store for the
auditor that goes on with the drain, or for the next drain of the bookie.

    <root>/underreplication/magnetar/drains/<bookie>/<part>    ranges of ledgers, "3-7,9"; or "all"

They do not stand below the cookie, whose children say what the bookie is, and stay when a drain is called off.

Rules (I74):

1. A ledger stands here before the drain puts up its mark, and goes only after its copies were read, or with it.
2. A part only gets more ledgers, or fewer; none goes from one part to another. So a change that is cut short loses
   none.
3. Where there are more than UNPROVED_MAX, "all" stands for them: whoever goes on reads the copies of every ledger. The
   same holds for a part that cannot be read.
4. Each part is compared and set. A node that meets a change by another one, or gets no answer, reads all parts
   again.
"""

import contextlib
import logging
import re
from collections.abc import Collection
from typing import Final, NamedTuple

from autorecovery.ledgers.checks import joined
from magnetar_core.bookkeeper.metadata.marks import underreplication as board
from magnetar_core.bookkeeper.metadata.stores.store import NO_NODE, MetadataError, MetadataStore, NoNode, NotEmpty
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Ledgers of one part, which is one value: with ids of 19 digits it has 400 KB, and ZooKeeper takes a megabyte.
PART_LEDGERS_MAX: Final = 20_000

# Ledgers that are named for one drain, in 50 parts at least.
UNPROVED_MAX: Final = 1_000_000

_ALL: Final = b"all"
_RANGE: Final = re.compile(rb"(\d{1,19})(?:-(\d{1,19}))?")


class Unproved(NamedTuple):
    """What is to be proved yet."""

    ids: frozenset[int]
    is_all: bool
    """Every ledger of the cluster, whatever *ids* are (rule 3)."""


def encode(ids: Collection[int]) -> bytes:
    """The text of a part."""
    ranges = joined((ledger_id, ledger_id) for ledger_id in ids)
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges).encode()


def decode(value: bytes) -> set[int] | None:
    """The ledgers of a part; None: all. Raises Corruption."""
    if value == _ALL:
        return None
    ids: set[int] = set()
    for text in value.split(b","):
        match = _RANGE.fullmatch(text)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if last < first or last - first >= PART_LEDGERS_MAX or len(ids) > PART_LEDGERS_MAX:
            raise Corruption(f"no ranges of ledgers: {value[:80]!r}")
        ids.update(range(first, last + 1))
    return ids


class _Part(NamedTuple):
    ids: frozenset[int] | None
    """None: all."""
    version: int


class UnprovedLedgers:
    """The unproved ledgers of one bookie. One task uses it at a time. Every call raises MetadataError."""

    def __init__(self, store: MetadataStore, root: str, bookie_id: str) -> None:
        self._store = store
        self._path = f"{board.drains_path(root)}/{bookie_id}"
        self._parts: dict[str, _Part] | None = None
        """The parts as they were read or written last; None: they are to be read (rule 4)."""

    async def read(self) -> Unproved:
        parts = await self._read()
        ids = frozenset[int]().union(*(part.ids or () for part in parts.values()))
        return Unproved(ids, any(part.ids is None for part in parts.values()))

    async def add(self, ids: Collection[int]) -> None:
        """Let *ids* stand here, too (rule 1)."""
        stored = await self.read()
        new = sorted(set(ids) - stored.ids)
        if stored.is_all or not new:
            return
        parts = await self._read()
        if len(stored.ids) + len(new) > UNPROVED_MAX:
            await self._put(_next(parts), None)
            return
        last = max(parts, default="")
        if last:
            held = parts[last].ids or frozenset()
            fit, new = new[: PART_LEDGERS_MAX - len(held)], new[PART_LEDGERS_MAX - len(held) :]
            if fit:
                await self._put(last, held.union(fit))
        while new:
            fit, new = new[:PART_LEDGERS_MAX], new[PART_LEDGERS_MAX:]
            await self._put(_next(parts), frozenset(fit))

    async def drop(self, ids: Collection[int], *, was_all: bool = False) -> None:
        """*ids* were proved, or are deleted. *was_all*: every ledger was, so that "all" goes, too."""
        parts = await self._read()
        for name, part in tuple(parts.items()):
            if part.ids is None:
                if was_all:
                    await self._delete(name)
                continue
            left = part.ids.difference(ids)
            if not left:
                await self._delete(name)
            elif left != part.ids:
                await self._put(name, left)
        if not parts:
            with contextlib.suppress(NoNode, NotEmpty):
                await self._store.delete(self._path)

    async def _read(self) -> dict[str, _Part]:
        if self._parts is not None:
            return self._parts
        parts: dict[str, _Part] = {}
        for name in await self._store.children(self._path):
            node = await self._store.get(f"{self._path}/{name}")
            if node is None:
                continue
            try:
                ids = decode(node.value)
            except Corruption as error:  # rule 3
                log.error("%s: %s; the copies of every ledger are read instead", node.path, error)
                ids = None
            parts[name] = _Part(None if ids is None else frozenset(ids), node.version)
        self._parts = parts
        return parts

    async def _put(self, name: str, ids: frozenset[int] | None) -> None:
        """Write the part *name*; *ids* None: every ledger (rule 3). Raises MetadataError; parts are then read again."""
        assert self._parts is not None
        assert ids is None or len(ids) <= PART_LEDGERS_MAX
        part = self._parts.get(name)
        value = _ALL if ids is None else encode(ids)
        try:
            version = await self._store.put(f"{self._path}/{name}", value, NO_NODE if part is None else part.version)
        except MetadataError:
            self._parts = None
            raise
        self._parts[name] = _Part(ids, version)

    async def _delete(self, name: str) -> None:
        assert self._parts is not None
        try:
            await self._store.delete(f"{self._path}/{name}", self._parts[name].version)
        except MetadataError:
            self._parts = None
            raise
        del self._parts[name]


def _next(parts: Collection[str]) -> str:
    """A name behind all of *parts*."""
    last = max(parts, default="")
    return f"{int(last) + 1 if last.isdecimal() else 0:010d}"


async def forget_others(store: MetadataStore, root: str, bookies: Collection[str]) -> None:
    """Remove what stands here of bookies that are not among *bookies*. Raises MetadataError."""
    for bookie_id in await store.children(board.drains_path(root)):
        if bookie_id not in bookies:
            kept = UnprovedLedgers(store, root, bookie_id)
            await kept.drop((await kept.read()).ids, was_all=True)
