"""The index of all ledgers: read once, kept true by a watch."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

import pytest

from autorecovery.ledgers.catalogue import LedgerCatalogue, ledger_ids_in
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata, Segment, encode, ledger_path
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore, Versioned
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import (
    NO_NODE,
    Cancel,
    CannotWatch,
    MetadataStore,
    StoreUnavailable,
    TreeChanged,
)
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.clock import LoopClock
from tests.support.faulty_store import FaultyStore

ROOT = "/ledgers"


def record(*ensemble: str) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=len(ensemble),
        write_quorum=len(ensemble),
        ack_quorum=1,
        digest_type=DigestType.CRC32C,
        segments=(Segment(0, ensemble),),
    )


class Setup:
    """A catalogue over one session, and a writer over another one; both count and may fail."""

    def __init__(self, store: MemoryStore, seen: FaultyStore) -> None:
        self.store = store
        self.seen = seen
        self.ledgers = LedgerStore(store, ROOT)
        self.catalogue = LedgerCatalogue(seen, ROOT, LedgerStore(seen, ROOT))
        self.gets: list[str] = []
        seen.on_step = self._count

    async def _count(self, what: str, path: str) -> None:
        if what == "get" and path != ROOT:
            self.gets.append(path)

    async def bookies(self) -> dict[int, str]:
        """Ledger → the one-letter names of its bookies."""
        index = await self.catalogue.read()
        return {ledger_id: "".join(sorted(index[ledger_id].bookies())) for ledger_id in index}

    async def write(self, ledger_id: int, *ensemble: str) -> None:
        await self.store.put(ledger_path(ROOT, ledger_id), encode(record(*ensemble)), NO_NODE)

    async def move(self, ledger_id: int, *ensemble: str) -> None:
        found = await self.ledgers.read(ledger_id)
        assert isinstance(found, Versioned)
        changed = found.metadata.with_segment_replaced(0, ensemble)
        await self.ledgers.write(ledger_id, changed, found.version)


@asynccontextmanager
async def setup() -> AsyncIterator[Setup]:
    store = MemoryStore(LoopClock())
    await store.put(ROOT, b"")
    made = Setup(store, FaultyStore(store.session()))
    yield made
    await made.catalogue.stop()


async def test_all_records_are_read_once_and_later_only_those_that_changed() -> None:
    async with setup() as made:
        for ledger_id in range(200):
            await made.write(ledger_id, "a", "b")
        assert set(await made.bookies()) == set(range(200))
        assert len(made.gets) == 200
        made.gets.clear()
        assert len(await made.bookies()) == 200
        assert made.gets == []
        await made.write(2**40, "c", "d")
        await made.move(7, "a", "c")
        await made.ledgers.delete(8)
        found = await made.bookies()
        assert sorted(made.gets) == sorted(ledger_path(ROOT, one) for one in (7, 8, 2**40))
        assert (found[7], found[2**40], 8 in found) == ("ac", "cd", False)
        assert made.catalogue.full_readings == 1


async def test_what_changes_while_all_records_are_read_is_read_again() -> None:
    async with setup() as made:
        for ledger_id in range(100):
            await made.write(ledger_id, "a", "b")

        async def change(what: str, path: str) -> None:
            if what == "get" and path == ledger_path(ROOT, 80):
                made.seen.on_step = None
                await made.move(3, "a", "c")
                await made.write(500, "d", "e")

        made.seen.on_step = change
        await made.catalogue.read()
        found = await made.bookies()
        assert (found[3], found[500]) == ("ac", "de")
        assert made.catalogue.full_readings == 1


@pytest.mark.parametrize("first", [True, False])
async def test_a_reading_that_failed_is_made_up_for(first: bool) -> None:
    async with setup() as made:
        for ledger_id in range(100):
            await made.write(ledger_id, "a", "b")
        if not first:
            await made.catalogue.read()
        for ledger_id in range(100):
            await made.move(ledger_id, "c", "d")

        async def fail(what: str, path: str) -> None:
            if path == ledger_path(ROOT, 70):
                raise StoreUnavailable("away")

        made.seen.on_step = fail
        with pytest.raises(StoreUnavailable, match="away"):
            await made.catalogue.read()
        made.seen.on_step = None
        assert await made.bookies() == dict.fromkeys(range(100), "cd")


async def test_after_the_connection_broke_all_records_are_read_again() -> None:
    async with setup() as made:
        await made.write(1, "a", "b")
        assert await made.bookies() == {1: "ab"}
        session = made.seen.inner
        assert isinstance(session, MemoryStore)
        session.suspend()
        await made.move(1, "a", "c")
        session.resume()
        assert await made.bookies() == {1: "ac"}
        assert made.catalogue.full_readings == 2


async def test_a_store_without_such_a_watch_is_read_each_time() -> None:
    class Blind(FaultyStore):
        async def watch_tree(self, path: str, changed: TreeChanged) -> Cancel:
            raise CannotWatch(f"{path}: not here")

    store: MetadataStore = MemoryStore(LoopClock())
    await store.put(ROOT, b"")
    ledgers = LedgerStore(store, ROOT)
    catalogue = LedgerCatalogue(Blind(store), ROOT, ledgers)
    for ledger_id in (1, 2):
        await store.put(ledger_path(ROOT, ledger_id), encode(record("a", "b")))
        assert len(await catalogue.read()) == ledger_id
    assert catalogue.full_readings == 2


async def test_a_damaged_record_is_kept_as_unreadable_until_it_is_mended() -> None:
    async with setup() as made:
        await made.write(1, "a", "b")
        await made.catalogue.read()
        await made.store.put(ledger_path(ROOT, 1), b"nonsense")
        index = await made.catalogue.read()
        assert (list(index), list(index.unreadable)) == ([], [1])
        await made.store.delete(ledger_path(ROOT, 1))
        await made.write(1, "c", "d")
        index = await made.catalogue.read()
        assert (await made.bookies(), index.unreadable) == ({1: "cd"}, {})


async def test_a_catalogue_that_was_stopped_begins_anew() -> None:
    async with setup() as made:
        await made.write(1, "a", "b")
        await made.catalogue.read()
        await made.catalogue.stop()
        await made.move(1, "a", "c")
        assert await made.bookies() == {1: "ac"}


@pytest.mark.parametrize(
    ("paths", "ledgers"),
    [
        ([ledger_path(ROOT, 0), ledger_path(ROOT, 2**31), ledger_path(ROOT, 2**62)], [0, 2**31, 2**62]),
        ([ROOT, f"{ROOT}/00", f"{ROOT}/00/0000", f"{ROOT}/cookies/a:1", f"{ROOT}/LAYOUT"], []),
        ([f"{ROOT}/underreplication/ledgers/0000/0000/0000/0001/urL0000000001"], []),
    ],
)
def test_only_paths_of_records_name_ledgers(paths: Collection[str], ledgers: list[int]) -> None:
    assert list(ledger_ids_in(paths, ROOT)) == ledgers
