"""Files of the embedded metadata store that are gone, empty, cut, or another's: it is whole, or it is not opened."""

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from magnetar_core.bookkeeper.metadata.stores.embedded import EmbeddedStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.runtime.types import Corruption

NODES: Final = 40
Damage = Callable[[Path, Path], None]


def removed(path: Path, other: Path) -> None:
    path.unlink()


def emptied(path: Path, other: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path, other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def another(path: Path, other: Path) -> None:
    path.write_bytes(other.read_bytes())


async def _live(path: Path, name: str, nodes: int) -> EmbeddedStore:
    store = await EmbeddedStore.open(path, LoopClock())
    for number in range(nodes):
        await store.put(f"/{name}{number}", b"x" * 100)
    return store


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `a` and `b` are stores as kill -9 leaves them, `b` with more in it."""
    base = tmp_path_factory.mktemp("metadata")

    async def fill() -> None:
        for name, factor in (("a", 1), ("b", 2)):
            store = await _live(base / "live", f"{name}-first-", NODES * factor)
            await store.close()
            store = await _live(base / "live", f"{name}-second-", NODES * factor)
            shutil.copytree(base / "live", base / name)
            await store.close()
            shutil.rmtree(base / "live")

    asyncio.run(fill())
    return base


# The kind of file → what is left of it in a folder: one pattern. What comes of it when it is removed, emptied, cut,
# another's.
OUTCOMES: Final = {
    "the newest changes *.log": "refused refused refused refused",
    "a table *.sst": "refused refused refused refused",
    "the list of tables MANIFEST-*": "refused refused refused refused",
    "what is the list CURRENT": "refused refused refused whole",
    "how many changes CHANGES": "whole whole whole refused",
    "the name IDENTITY": "whole whole whole whole",
}


def cases() -> Iterator[tuple[str, Damage, str]]:
    for kind, outcomes in OUTCOMES.items():
        yield from ((kind, *one) for one in zip((removed, emptied, cut, another), outcomes.split(), strict=True))


@pytest.mark.parametrize(
    ("kind", "damage", "outcome"), [pytest.param(*one, id=f"{one[0]} {one[1].__name__}") for one in cases()]
)
async def test_newest_changes_and_all_others_are_there_or_the_store_is_not_opened(
    killed: Path, tmp_path: Path, kind: str, damage: Damage, outcome: str
) -> None:
    folder, pattern = tmp_path / "metadata", kind.rpartition(" ")[2]
    shutil.copytree(killed / "a", folder)
    damage(sorted(folder.glob(pattern))[-1], sorted((killed / "b").glob(pattern))[-1])
    if outcome == "refused":
        with pytest.raises(Corruption, match=r"(?i)restore the whole folder from a backup") as refused:
            await EmbeddedStore.open(folder, LoopClock())
        assert str(folder) in str(refused.value)
        return
    store = await EmbeddedStore.open(folder, LoopClock())
    assert len(await store.children("/")) == 2 * NODES
    await store.close()


async def test_who_removes_the_count_goes_on_with_what_is_left(killed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "metadata"
    shutil.copytree(killed / "a", folder)
    (log,) = folder.glob("*.log")
    log.write_bytes(b"")
    with pytest.raises(Corruption, match=r"remove .*CHANGES to go on"):
        await EmbeddedStore.open(folder, LoopClock())
    (folder / "CHANGES").unlink()
    for _ in range(2):
        store = await EmbeddedStore.open(folder, LoopClock())
        assert len(await store.children("/")) == NODES
        await store.close()


async def test_only_the_owner_and_the_group_come_to_the_files(tmp_path: Path) -> None:
    """RocksDB itself lets everybody read them."""
    former = os.umask(0)
    try:
        store = await EmbeddedStore.open(tmp_path / "data/metadata", LoopClock())
    finally:
        os.umask(former)
    await store.close()
    assert (tmp_path / "data/metadata").stat().st_mode & 0o777 == 0o750
