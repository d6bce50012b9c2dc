"""Ledgers written to a cluster of real processes, and every copy of every entry read from its own bookie."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Final

from autorecovery.ledgers.checks import fragments
from magnetar.inspect.inspector import inspecting
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.config import ClientConfig
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.bookkeeper.metadata.stores.url import open_store
from magnetar_core.bookkeeper.wire.entry import DigestMismatch
from magnetar_core.runtime.clock import LoopClock
from tests.support.waiting import eventually

REPAIR_S: Final = 120.0
"""Sessions of seconds, a grace period, and a machine that others use, too."""

CLIENT: Final = ClientConfig(timeout_s=5.0, quarantine_s=1.0)

# Ledgers that are written, read or deleted at the same time.
_AT_ONCE: Final = 64


class Copies:
    """A ledger client of a cluster, and what it knows of the copies of its ledgers."""

    def __init__(self, store: MetadataStore, bookkeeper: BookKeeper) -> None:
        self.store = store
        self.bookkeeper = bookkeeper
        self.marks = MarkBoard(store)
        self.made: list[int] = []

    async def written(
        self, ledgers: int, entries: int, *, write: int = 2, ensemble: int = 3, at_once: int = 1
    ) -> list[int]:
        """Ids of closed ledgers of *entries* entries each."""
        found: list[int] = []

        async def write_one(_: int) -> None:
            handle = await self.bookkeeper.create_ledger(ensemble_size=ensemble, write_quorum=write, ack_quorum=write)
            self.made.append(handle.ledger_id)
            first = handle.append([b"entry %d" % number for number in range(entries)])
            await handle.wait_for(first + entries - 1)
            await handle.close()
            found.append(handle.ledger_id)

        await _each(range(ledgers), write_one, at_once)
        return found

    async def problems(self, ledger_ids: Sequence[int]) -> list[str]:
        """Entries that are not on a bookie that should have them, or ledgers that name one that is away."""
        found: list[str] = []

        async def look(ledger_id: int) -> None:
            found.extend(await self._problems_of(ledger_id))

        await _each(ledger_ids, look)
        return found

    async def _problems_of(self, ledger_id: int) -> list[str]:
        metadata = await self.bookkeeper.read_metadata(ledger_id)
        away = metadata.bookies() - self.bookkeeper.bookies.available
        if away or not metadata.is_closed:
            return [f"ledger {ledger_id}: {metadata.state.name}, away {sorted(away)}"]
        found = []
        replicas = self.bookkeeper.replicas(ledger_id, metadata)
        for fragment in fragments(metadata, -1):
            for index, bookie in enumerate(fragment.ensemble):
                for entry_id in fragment.held(index):
                    try:
                        stored = await replicas.read(bookie, entry_id)
                    except (BookKeeperError, DigestMismatch) as error:
                        found.append(f"ledger {ledger_id} entry {entry_id}: {error}")
                    else:
                        assert bytes(stored.data).endswith(b"entry %d" % entry_id)
        return found

    async def until_whole(self, ledger_ids: Sequence[int]) -> None:
        """Every entry is on each of its bookies, all of which are there; and no mark and no lock is left."""

        async def is_whole() -> None:
            assert await self.problems(ledger_ids) == []
            assert not {one async for one in self.marks.marked()}.intersection(ledger_ids)
            assert not (await self.marks.locked()).intersection(ledger_ids)

        await eventually(is_whole, timeout_s=REPAIR_S)


@contextlib.asynccontextmanager
async def copies_of(metadata_url: str) -> AsyncIterator[Copies]:
    clock = LoopClock()
    store = await open_store(metadata_url, clock, session_timeout_s=10.0)
    bookkeeper = BookKeeper(store, clock, CLIENT)
    await bookkeeper.open()
    copies = Copies(store, bookkeeper)
    try:
        yield copies
    finally:
        # The next test kills other bookies, and must not find ledgers whose copies are all gone then.
        await _each(copies.made, bookkeeper.delete_ledger)
        await bookkeeper.close()
        await store.close()


async def good_copies(metadata_url: str) -> Counter[str]:
    """Bookie → entries that were read from it, after every entry of every ledger was read, and found good, on each
    bookie that has it by the record. Every bookie that a record names is there."""
    counts: Counter[str] = Counter()
    async with inspecting(metadata_url) as inspector:
        for ledger_id, record in (await inspector.records_of(await inspector.ledger_ids())).items():
            assert record.metadata is not None, record.problem
            counts.update(dict.fromkeys(record.metadata.bookies(), 0))
            last_entry_id, silent = await inspector.last_entry(ledger_id, record.metadata)
            assert not silent
            for entry_id in range(last_entry_id + 1):
                found = await inspector.copies(ledger_id, entry_id, record.metadata)
                assert len({one.bookie_id for one in found}) == record.metadata.write_quorum
                assert {one.verdict for one in found} == {"good"}, f"ledger {ledger_id} entry {entry_id}: {found}"
                counts.update(one.bookie_id for one in found)
    return counts


async def _each(items: Iterable[int], work: Callable[[int], Awaitable[None]], at_once: int = _AT_ONCE) -> None:
    """Do *work* with each of *items*, in their order, *at_once* at the same time."""
    left = iter(items)

    async def lane() -> None:
        for item in left:
            await work(item)

    await asyncio.gather(*(lane() for _ in range(at_once)))
