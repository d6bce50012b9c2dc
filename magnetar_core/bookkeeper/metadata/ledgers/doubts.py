"""Numbers of ledgers that were given before the metadata went back in time, as the first bookie noticed it.

    <root>/underreplication/magnetar/doubts            a line for each time: first number, last number, when, bookie
    <root>/underreplication/magnetar/doubts/<bookie>   since when, and how many of its ledgers are in doubt, if any are

A number in such a range was given before, and may be that of a ledger on some bookie. The range is stored before the
numbers are moved on behind it (`LedgerStore.advance`): a bookie that comes later sees either the old counter or the
range. Apache's programs leave the node alone.
"""

import contextlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    MetadataError,
    MetadataStore,
    NoNode,
    OutcomeUnknown,
    StoreUnavailable,
    VersionConflict,
)

# Ranges that are kept; one is made each time that somebody puts old metadata back. Of more, the two oldest become one.
RANGES_MAX: Final = 100

_TRIES: Final = 20


class DoubtRange(NamedTuple):
    """The numbers from *first* to *last* were given before."""

    first: int
    last: int
    noticed_ms: int
    bookie_id: str

    def __contains__(self, ledger_id: object) -> bool:
        return isinstance(ledger_id, int) and self.first <= ledger_id <= self.last

    def encode(self) -> str:
        return f"{self.first} {self.last} {self.noticed_ms} {self.bookie_id}"


def decode_range(line: str) -> DoubtRange:
    """Raises ValueError."""
    first, last, noticed_ms, bookie_id = line.split(" ")
    return DoubtRange(int(first), int(last), int(noticed_ms), bookie_id)


def bounded(ranges: Sequence[DoubtRange]) -> tuple[DoubtRange, ...]:
    """At most RANGES_MAX of *ranges*, oldest first."""
    kept = list(ranges)
    while len(kept) > RANGES_MAX:
        older, newer = kept[:2]
        kept[:2] = [newer._replace(first=min(older.first, newer.first), last=max(older.last, newer.last))]
    return tuple(kept)


class Doubted(NamedTuple):
    """What a bookie announces about its ledgers that are newer than the metadata."""

    since_ms: int
    ledgers: int


class DoubtRanges:
    """The ranges of one cluster, and what its bookies announce. Raises MetadataError, for a damaged node, too."""

    def __init__(self, store: MetadataStore, root: str = "/ledgers") -> None:
        self._store = store
        self._path = f"{root}/underreplication/magnetar/doubts"

    async def read(self) -> tuple[DoubtRange, ...]:
        return (await self._read())[0]

    async def add(self, added: DoubtRange) -> None:
        for _ in range(_TRIES):
            ranges, version = await self._read()
            if added in ranges:
                return
            value = "".join(f"{each.encode()}\n" for each in bounded([*ranges, added])).encode()
            try:
                await self._store.put(self._path, value, version)
                return
            except (VersionConflict, OutcomeUnknown):
                continue
        raise StoreUnavailable(f"{self._path}: {_TRIES} changes by others in a row, or no answer")

    async def announce(self, bookie_id: str, doubted: Doubted | None) -> None:
        """Store what one bookie has in doubt; None: nothing is."""
        path = f"{self._path}/{bookie_id}"
        if doubted is not None:
            await self._store.put(path, b"%d %d" % doubted)
        elif await self._store.exists(path):
            with contextlib.suppress(NoNode):
                await self._store.delete(path)

    async def announced(self) -> dict[str, Doubted]:
        """What each bookie has in doubt."""
        doubted = {}
        for bookie_id in await self._store.children(self._path):
            path = f"{self._path}/{bookie_id}"
            node = await self._store.get(path)
            if node is None:
                continue  # its doubts have just gone
            try:
                since_ms, ledgers = map(int, node.value.split())
            except ValueError:
                raise MetadataError(
                    f"{path} does not say how many ledgers of {bookie_id} are newer than the metadata: "
                    f"{node.value[:50]!r}. Delete it; the bookie writes it again when it starts"
                ) from None
            doubted[bookie_id] = Doubted(since_ms, ledgers)
        return doubted

    async def _read(self) -> tuple[tuple[DoubtRange, ...], int]:
        node = await self._store.get(self._path)
        if node is None:
            return (), NO_NODE
        try:
            return tuple(map(decode_range, node.value.decode().splitlines())), node.version
        except ValueError as error:
            raise MetadataError(
                f"{self._path} is not a list of ranges of ledgers: {error}. Bookies that ran since it was written "
                "have noted it; delete it if all of them were"
            ) from None
