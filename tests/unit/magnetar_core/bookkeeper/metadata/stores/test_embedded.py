"""What the store of a standalone reads to decide."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.rocks_tree import RocksTree
from magnetar_core.bookkeeper.metadata.stores.store import Delete, MetadataError, NotEmpty
from magnetar_core.runtime.clock import LoopClock

CHILDREN = 200


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    made = await EmbeddedStore.open(str(tmp_path / "metadata"), LoopClock())
    for number in range(CHILDREN):
        await made.put(f"/parent/{number:03}", b"")
    yield made
    await made.close()


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that were read in runs."""
    seen: list[bytes] = []
    read = RocksTree._keys

    def noting(tree: RocksTree, prefix: bytes) -> Iterator[bytes]:
        for key in read(tree, prefix):
            seen.append(key)
            yield key

    monkeypatch.setattr(RocksTree, "_keys", noting)
    return seen


async def test_whether_a_node_has_children_is_known_by_the_first(store: EmbeddedStore, keys: list[bytes]) -> None:
    """A broker that stops removes a ledger for each topic, and each time asks whether the node above is empty."""
    for number in range(3):
        removing = store.delete(f"/parent/{number:03}")
        asking = store.delete("/parent")  # while the removal waits for the disk
        await removing
        with pytest.raises(NotEmpty):
            await asking
    with pytest.raises(NotEmpty):
        await store.multi([Delete("/parent")])
    assert len(keys) < 20, keys


async def test_children_that_are_going_or_coming_count_as_they_will_be(store: EmbeddedStore) -> None:
    for number in range(CHILDREN - 1):
        await store.delete(f"/parent/{number:03}")
    assert store.has_children("/parent")
    await store.delete(f"/parent/{CHILDREN - 1:03}")
    assert not store.has_children("/parent")
    await store.put("/parent/new/below", b"")
    assert store.has_children("/parent")
    assert store.has_children("/")
    await store.multi([Delete("/parent/new/below"), Delete("/parent/new"), Delete("/parent")])
    assert not store.has_children("/parent")


async def test_a_checkpoint_has_what_is_on_the_disk_and_nothing_changes_until_it_ends(
    store: EmbeddedStore, tmp_path: Path
) -> None:
    await store.put_sequential("/counter/ID-", b"", ephemeral=True)
    await store.put("/before", b"1")
    async with store.checkpoint(tmp_path / "copy"):
        later = asyncio.create_task(store.put("/later", b"2"))
        drawn = asyncio.create_task(store.put_sequential("/counter/ID-", b""))
        # Somebody who keeps this number must not know more than the copy does.
        asked = asyncio.create_task(store.next_number("/counter"))
        await asyncio.sleep(0.05)
        assert not any(task.done() for task in (later, drawn, asked))
        assert await store.get("/later") is None
    assert (await later, await drawn, await asked) == (0, "/counter/ID-0000000001", 2)
    copy = await EmbeddedStore.open(tmp_path / "copy", LoopClock())
    assert await copy.exists("/before")
    assert not await copy.exists("/later")
    assert len(await copy.children("/parent")) == CHILDREN
    assert await copy.next_number("/counter") == 1
    assert await copy.children("/counter") == []  # the process in which it lived is another one
    await copy.close()


async def test_a_checkpoint_that_fails_or_is_given_up_lets_changes_go_on(store: EmbeddedStore, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    with pytest.raises(MetadataError, match="cannot be copied"):
        async with store.checkpoint(tmp_path / "copy"):
            raise AssertionError("RocksDB makes the folder")
    async with store.checkpoint(tmp_path / "first"):
        second = asyncio.create_task(_checkpoint(store, tmp_path / "second"))
        await asyncio.sleep(0.01)
        second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await store.put("/later", b"")


async def _checkpoint(store: EmbeddedStore, place: Path) -> None:
    async with store.checkpoint(place):
        pass
