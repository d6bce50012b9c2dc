"""The power fails at any moment. Afterwards every acknowledged entry is there, and none that was never sent.

Fault model: what was not synced is kept, dropped, or torn at sectors, each write for itself; directory changes
likewise; the index loses its newest part. Synced bytes stay as they are.
"""

import random
from dataclasses import dataclass, field

import pytest

from bookie.storage.ledgers import explicit_lac_of
from tests.support.bookie_disks import CODEC, TINY, Disk, OpenedDisk, on_each_operation, stored_entry

SEEDS = range(40)
LEDGERS = 4


@dataclass
class Story:
    """The history so far: entries that were sent, and acknowledgements that a client received."""

    sent: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    acknowledged: set[tuple[int, int]] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    lacs: dict[int, int] = field(default_factory=dict)

    def copy(self) -> "Story":
        sent = {key: set(value) for key, value in self.sent.items()}
        return Story(sent, set(self.acknowledged), set(self.fenced), dict(self.lacs))


def check(story: Story, opened: OpenedDisk) -> None:
    for ledger_id, entry_id in story.acknowledged:
        entry = opened.read(ledger_id, entry_id)
        assert entry is not None, f"acknowledged ledger {ledger_id} entry {entry_id} is lost"
    for ledger_id in range(LEDGERS):
        for entry_id in opened.entry_ids(ledger_id):
            entry = opened.read(ledger_id, entry_id)
            assert entry in story.sent.get((ledger_id, entry_id), set()), f"a ghost: {ledger_id}/{entry_id}"
    for ledger_id in story.fenced:
        ledger = opened.rules.ledgers.get(ledger_id)
        assert ledger is not None, f"the fence of ledger {ledger_id} is lost"
        assert ledger.fenced, f"the fence of ledger {ledger_id} is lost"
    for ledger_id, lac in story.lacs.items():
        ledger = opened.rules.ledgers.get(ledger_id)
        assert ledger is not None
        assert explicit_lac_of(ledger.explicit_lac) >= lac


class Run:
    """A bookie with a random life; takes images of its disk in between."""

    def __init__(self, rng: random.Random, disk: Disk, story: Story, images: int) -> None:
        self.rng = rng
        self.story = story
        self.images: list[tuple[Disk, Story]] = []
        self._images_max = images
        self.disk = disk
        self._stop = on_each_operation(disk.files, self._operation)
        self.opened = disk.open()
        self._taken: list[tuple[int, int]] = []
        self._fences: set[int] = set()
        self._lacs: dict[int, int] = {}

    def stop(self) -> None:
        self._stop()

    def _operation(self, kind: str, path: str) -> None:
        if len(self.images) < self._images_max and self.rng.random() < 0.04:
            unsynced = self.rng.choice([0.0, 0.5, 0.5, 0.9, 1.0])
            self.images.append((self.disk.crash(self.rng, unsynced), self.story.copy()))

    def step(self) -> None:
        rng, opened = self.rng, self.opened
        ledger_id = rng.randrange(LEDGERS)
        match rng.choices(["add", "again", "fence", "lac", "sync", "write", "checkpoint"], [40, 3, 1, 3, 20, 3, 3])[0]:
            case "add" | "again" as kind:
                entry_id = rng.randrange(20) if kind == "again" else len(self.story.sent)
                payload = rng.randbytes(rng.choice([0, 3, 200, 460, 470, 500, 3000]))
                entry = stored_entry(ledger_id, entry_id, payload)
                self.story.sent.setdefault((ledger_id, entry_id), set()).add(entry)
                if opened.add(ledger_id, entry_id, entry, recovery=kind == "again") == 0:
                    self._taken.append((ledger_id, entry_id))
            case "fence":
                if rng.random() < 0.3 and opened.fence(ledger_id) == 0:
                    self._fences.add(ledger_id)
            case "lac":
                lac = rng.randrange(1000)
                if opened.write_lac(ledger_id, lac) == 0:
                    self._lacs[ledger_id] = max(lac, self._lacs.get(ledger_id, -1))
            case "write":
                opened.sync(must_sync=False)  # deferred: no client is told that it is durable
            case "sync":
                assert opened.sync() is None
                self.story.acknowledged.update(self._taken)
                self.story.fenced |= self._fences
                for fenced in self._fences:
                    ledger = opened.rules.ledgers.get(fenced)
                    assert ledger is not None
                    ledger.is_fence_durable = True
                for about, lac in self._lacs.items():
                    self.story.lacs[about] = max(lac, self.story.lacs.get(about, -1))
                self._taken.clear()
                self._fences.clear()
                self._lacs.clear()
            case "checkpoint":
                opened.checkpoint()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives_a_power_cut_at_any_moment(seed: int) -> None:
    rng = random.Random(seed)
    journals, ledgers = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
    run = Run(rng, Disk(journals=journals, ledgers=ledgers), Story(), images=6)
    for _ in range(150):
        run.step()
    run.stop()
    images = [*run.images, (run.disk.crash(rng, 0.5), run.story)]
    for disk, story in images:
        # The next life is cut short as well, while it replays or later; the one after that must be whole.
        again = Run(rng, disk, story.copy(), images=2)
        check(story, again.opened)
        for _ in range(20):
            again.step()
        again.stop()
        for second_disk, second_story in [*again.images, (again.disk.crash(rng), again.story)]:
            check(second_story, second_disk.open())


def test_a_killed_process_loses_nothing_that_it_wrote() -> None:
    disk = Disk()
    opened = disk.open()
    for entry_id in range(50):
        opened.add(1, entry_id, stored_entry(1, entry_id, b"x" * 100))
    opened.sync()
    after = disk.crash(random.Random(1), unsynced=1).open()
    assert [after.read(1, entry_id) for entry_id in range(50)] == [
        stored_entry(1, entry_id, b"x" * 100) for entry_id in range(50)
    ]


def test_a_fence_alone_survives_with_nothing_else_written() -> None:
    disk = Disk()
    opened = disk.open()
    assert opened.fence(7) == 0
    opened.sync()
    opened = disk.crash(random.Random(1), unsynced=0).open()
    assert opened.add(7, 0, stored_entry(7, 0)) == 104
    # The journal goes after the checkpoint; the fence is in the index then.
    opened.checkpoint()
    opened = disk.crash(random.Random(1), unsynced=0).open()
    assert opened.add(7, 0, stored_entry(7, 0)) == 104
    assert opened.add(7, 0, stored_entry(7, 0), recovery=True) == 0


def test_the_new_journal_after_a_crash_has_an_id_of_its_own() -> None:
    disk = Disk()
    ids = []
    for seed in range(5):
        opened = disk.open()
        ids.append(opened.writers[0].mark.file_id)
        opened.add(1, seed, stored_entry(1, seed, b"y" * 300))
        opened.sync()
        disk = disk.crash(random.Random(seed))
    assert ids == sorted(set(ids))


def test_settings_of_the_tests_make_files_roll() -> None:
    opened = Disk().open(TINY)
    for entry_id in range(60):
        opened.add(1, entry_id, stored_entry(1, entry_id, b"z" * 1000))
        opened.sync()
    opened.checkpoint()
    assert len([n for n in opened.disk.files.list("/j0/current") if n.endswith(".txn")]) > 3
    assert len([n for n in opened.disk.files.list("/l0/current") if n.endswith(".log")]) > 3
    assert CODEC.digest_bytes == 4
