"""What the store of a standalone reads to decide."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.bookkeeper.metadata.stores.rocks_tree import RocksTree
from magnetar_core.bookkeeper.metadata.stores.store import Delete, NotEmpty
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
