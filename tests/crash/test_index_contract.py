"""What the index promises about power cuts, held against RocksDB and against its twin in memory.

Crash images (`tests/support/crash_images.py`) are only worth something if `MemoryIndex` loses no less than RocksDB may
lose. The contract of both, for each of the two databases (locations, ledgers) on its own:

1. What was put before a `sync` that has returned is there.
2. Of what was put later, a power cut keeps the oldest part, in order: never something newer without what came before.
3. A batch (one call of `put_locations`, `put_ledgers` or `delete_ledgers` with few items) is kept whole or not at all
   by RocksDB; the twin also cuts within one, which is harsher.
4. A killed process loses nothing.

RocksDB's part of it stands on two facts: its log (the only file that is written without being synced at once) is
written in order and with checksums, and opening stops at the first damaged record. The power cut is made by cutting the
log somewhere behind the length it had at the last `sync`, with what is cut off replaced by nothing, zeros or anything.

    MAGNETAR_INDEX_IMAGES   how many (500 in `make crash`)
"""

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bookie.storage.index import Index, MemoryIndex, RocksIndex
from magnetar_core.runtime.types import MIB

IMAGES = int(os.environ["MAGNETAR_INDEX_IMAGES"])
LOTS = 4
STEPS = 16

Row = tuple[int, ...]
State = dict[Row, int | bytes]
Change = Callable[[State], None]


class Model:
    """Every state that one database has been in, and how many changes were synced."""

    def __init__(self, first: State) -> None:
        self.states = [first]
        self.synced = 0

    def apply(self, change: Change) -> None:
        state = dict(self.states[-1])
        change(state)
        self.states.append(state)

    def sync(self) -> None:
        self.synced = len(self.states) - 1


class Pair:
    """An index and the models of its databases."""

    def __init__(self, index: Index, rng: random.Random, *, whole_batches: bool) -> None:
        self.index = index
        self.rng = rng
        self.whole_batches = whole_batches
        self.locations = Model({})
        self.ledgers = Model({(-1,): 0})  # the flags

    def step(self) -> bool:
        """One call; True if it was a sync."""
        rng, index = self.rng, self.index
        kind = rng.choice(["locations", "locations", "ledgers", "delete", "flags", "sync", "sync", "compact"])
        if kind == "locations":
            ledger_id = rng.randrange(4)
            items = [(ledger_id, rng.randrange(30), rng.randrange(1, 2**40)) for _ in range(rng.randint(1, 8))]
            index.put_locations(items)
            self._put(self.locations, [(item[:2], item[2]) for item in items])
        elif kind == "ledgers":
            rows = [(rng.randrange(4), rng.randbytes(20)) for _ in range(rng.randint(1, 3))]
            index.put_ledgers(rows)
            self._put(self.ledgers, [((ledger_id,), row) for ledger_id, row in rows])
        elif kind == "delete":
            gone = rng.randrange(4)
            index.delete_ledgers([gone])
            for model in (self.locations, self.ledgers):
                model.apply(lambda state: _remove(state, gone))
        elif kind == "flags":
            flags = rng.randrange(4)
            index.put_flags(flags)
            self._put(self.ledgers, [((-1,), flags)])
        elif kind == "compact":
            index.compact_locations()
        else:
            index.sync()
            self.locations.sync()
            self.ledgers.sync()
            return True
        return False

    def _put(self, model: Model, items: Sequence[tuple[Row, int | bytes]]) -> None:
        for batch in [items] if self.whole_batches else [[item] for item in items]:
            model.apply(lambda state, batch=batch: state.update(batch))  # type: ignore[misc]

    def check(self, after: Index, *, killed: bool) -> None:
        locations: State = {(ledger_id, entry_id): location for ledger_id in range(4)
                            for entry_id, location in after.locations(ledger_id, 0, 100)}  # fmt: skip
        ledgers: State = {(ledger_id,): row for ledger_id, row in after.ledgers()}
        ledgers[-1,] = after.flags()
        for found, model in ((locations, self.locations), (ledgers, self.ledgers)):
            assert found in (model.states[-1:] if killed else model.states[model.synced :])


def _remove(state: State, ledger_id: int) -> None:
    for key in [key for key in state if key[0] == ledger_id]:
        del state[key]


def rocks_sizes(directory: Path) -> dict[Path, int]:
    return {path.relative_to(directory): path.stat().st_size for path in directory.glob("*/*.log")}


def cut(directory: Path, image: Path, synced: dict[Path, int], rng: random.Random) -> None:
    """Copy the databases as a power cut leaves them."""
    shutil.copytree(directory, image, ignore=shutil.ignore_patterns("LOCK", "LOG*"))
    for path, size in rocks_sizes(image).items():
        kept = rng.randint(min(synced.get(path, 0), size), size)
        lost = size - kept
        with open(image / path, "r+b") as file:
            file.truncate(kept)
            file.seek(kept)
            file.write(rng.choice([b"", bytes(lost), rng.randbytes(lost)]))


@pytest.fixture
def directory_in_memory(tmp_path: Path) -> Iterator[Path]:
    """Where a sync costs nothing: what a power cut keeps is decided here, not by a disk."""
    shared = Path("/dev/shm")
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="index-", dir=shared) as made:
        yield Path(made)


@pytest.mark.parametrize("lot", range(LOTS))
def test_rocksdb_keeps_the_contract(lot: int, directory_in_memory: Path) -> None:
    images, number, tmp_path = 0, 0, directory_in_memory
    while images < IMAGES / LOTS:
        number += 1
        rng = random.Random(f"rocks {lot} {number}")
        directory = tmp_path / f"index{number}"
        directory.mkdir()
        index = RocksIndex(str(directory), MIB)
        pair = Pair(index, rng, whole_batches=True)
        synced: dict[Path, int] = {}
        for _ in range(STEPS):
            if pair.step():
                synced = rocks_sizes(directory)
            if rng.random() < 0.4:
                image = tmp_path / f"image{number}"
                killed = rng.random() < 0.2
                cut(directory, image, rocks_sizes(directory) if killed else synced, rng)
                after = RocksIndex(str(image), MIB)
                pair.check(after, killed=killed)
                after.close()
                shutil.rmtree(image)
                images += 1
        index.close()
        shutil.rmtree(directory)
    print(f"{images} images of RocksDB in {number} lives")


@pytest.mark.parametrize("seed", range(20))
def test_its_twin_keeps_the_contract(seed: int) -> None:
    rng = random.Random(f"twin {seed}")
    index = MemoryIndex()
    pair = Pair(index, rng, whole_batches=False)
    for _ in range(40):
        pair.step()
        pair.check(index.crash(rng, 0.5), killed=False)
        pair.check(index.crash(rng, 1.0), killed=True)


def test_the_twin_loses_as_much_as_it_may() -> None:
    """Else images would be too kind: every prefix of what was not synced comes up, in each database by itself."""
    index = MemoryIndex()
    index.put_locations([(1, 0, 5)])
    index.sync()
    index.put_locations([(1, 1, 6)])
    index.put_ledgers([(1, b"row")])
    index.put_locations([(1, 2, 7)])
    found = set()
    for seed in range(100):
        after = index.crash(random.Random(seed))
        found.add((len(after.locations(1, 0, 9)), len(list(after.ledgers()))))
    assert found == {(locations, ledgers) for locations in (1, 2, 3) for ledgers in (0, 1)}
