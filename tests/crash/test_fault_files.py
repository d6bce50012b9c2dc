"""A disk that fails: at each operation, with each error, on each kind of file, with the outcome that is stated here.

journal      no space on a write: the group is refused, the next one may fit. Anything else: the bookie stops
entry logs,  no space: the flush is repeated when there is room. Anything else: the bookie stops
marks        (and what was not marked is replayed)
compaction   the log is left as it is, the bookie goes on
tombstones   the round ends, the ledgers stay, the bookie goes on
any file     a flipped bit: an error or a refusal to start, or the right answer; never a wrong one, and never
             "not there" for what was acknowledged

MAGNETAR_FAULT_RUNS   how many failing operations (3,000 in `make crash`)
"""

import errno
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from bookie.serving.request_rules import EFENCED
from bookie.storage.journal.format import decode_mark
from bookie.storage.journal.writer import JournalFailed
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.runtime.files import read_file
from magnetar_core.runtime.types import Corruption, MagnetarError
from tests.support.bookie_disks import CODEC, KEY, Disk, stored_entry
from tests.support.crash_images import Life, crashed, crashed_files, until_end
from tests.support.fault_files import FAULTS, FaultRun
from tests.support.serving import BookieMachines, Wire

RUNS = int(os.environ["MAGNETAR_FAULT_RUNS"])
SEED = os.environ["MAGNETAR_CRASH_SEED"]
LOTS = 4
NEVER = 1_000_000

# (fault, kind of file, operation) → the outcome, where there is only one.
FAIL_STOP = {
    *((fault, "txn", kind) for fault in ("EIO", "short write") for kind in ("write", "sync", "create")),
    *((fault, "lastMark", kind) for fault in ("EIO", "short write") for kind in ("write", "sync", "create", "rename")),
    *((fault, "log", kind) for fault in ("EIO", "short write") for kind in ("write", "create")),
    *((fault, "journal directory", "sync_directory") for fault in ("EIO", "short write")),
}
GOES_ON = {
    *((fault, place, kind) for fault in FAULTS for place in ("compacting", "compacted", "fenced-and-deleted")
      for kind in ("write", "sync", "create", "rename", "remove")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def fail(seed: int, fail_at: int, fault: str) -> bool:
    """A life whose operation *fail_at* fails; False if it had no so many."""
    run = FaultRun(seed, fail_at, fault)
    try:
        run.go()
    except Exception:
        print(f"seed {seed}, operation {fail_at}, {run.faulty.happened}")
        raise
    happened = run.faulty.happened
    if happened is None:
        return False
    case = (fault, happened.place, happened.kind)
    if case in FAIL_STOP:
        assert run.outcome == "fail-stop", (seed, fail_at, happened)
    if case in GOES_ON:
        assert run.outcome == "goes on", (seed, fail_at, happened)
    return True


@pytest.mark.parametrize("lot", range(LOTS))
def test_failing_operations_of_drawn_lives_have_their_stated_outcome_and_lose_nothing(lot: int) -> None:
    rng = random.Random(f"{SEED} {lot}")
    for number in range(-(-RUNS // LOTS)):
        # Half of them early, where a start and the first groups are; a life has a few hundred operations.
        fail_at = rng.randrange(1, 60) if rng.random() < 0.5 else rng.randrange(60, 600)
        fail(rng.randrange(1_000_000), fail_at, FAULTS[number % len(FAULTS)])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("seed", "directories"), [(39, 1), (197, 2)])
def test_each_operation_of_a_life_with_everything_in_it_may_fail(seed: int, directories: int, fault: str) -> None:
    """Deletions, tombstones, compactions; every operation in `make crash`."""
    whole = FaultRun(seed, NEVER, fault)
    whole.go()
    had = whole.totals()
    # What a seed draws changes with the code: then look for another that has all of it.
    assert all(had[what] for what in ("deleted", "fenced", "compacted logs", "removed logs")), had
    assert (whole.options.journals, whole.options.ledger_directories) == (directories, directories)
    step = max(3_000 // RUNS, 1)
    fail_at = 1 + (len(fault) + seed) % step
    while fail(seed, fail_at, fault):
        fail_at += step
    assert fail_at > whole.faulty.operations


async def test_a_slow_disk_delays_answers_and_nothing_else() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        wire = await Wire.connect(bookie)

        def slow(kind: str, path: str) -> None:
            if kind in ("write", "sync"):
                time.sleep(0.02)

        world.files.on_operation.append(slow)
        entries = [stored_entry(1, n) for n in range(50)]
        wire.send(*(v2.add_request_head(0, KEY, len(entry)) + entry for entry in entries))
        # The loop is not blocked: what memory has is answered meanwhile.
        other = await Wire.connect(bookie)
        assert await other.read(7, 0) == v2.V2Error.ENOLEDGER
        await wire.until(50)
        assert [v2.parse_response(memoryview(frame))[3] for frame in wire.frames] == list(range(50))
        world.files.on_operation.clear()


async def test_after_a_failed_fsync_nobody_is_answered_any_more() -> None:
    world = BookieMachines()
    async with world.serving() as bookie:
        wires = [await Wire.connect(bookie) for _ in range(3)]

        def refuse(kind: str, path: str) -> None:
            if kind == "sync" and path.endswith(".txn"):
                world.files.on_operation.clear()  # the next fsync would succeed
                raise OSError(errno.EIO, "injected", path)

        world.files.on_operation.append(refuse)
        for number, wire in enumerate(wires):
            for entry_id in range(5):
                entry = stored_entry(1 + number, entry_id)
                wire.send(v2.add_request_head(0, KEY, len(entry)) + entry)
        for wire in wires:
            assert await wire.closed()
            assert wire.frames == []
        assert isinstance(bookie.failure, JournalFailed)


# ------------------------------------------------------------------------------------------- flipped bits


def lived() -> tuple[Life, dict[tuple[int, int], bytes]]:
    """A life with everything on its disk: sealed and open logs, marks, tombstones, several journals."""
    disk = Disk()
    entries: dict[tuple[int, int], bytes] = {}

    def add(life: Life, ledgers: range, ids: range) -> None:
        for entry_id in ids:
            some = [stored_entry(n, entry_id, b"%d" % entry_id * 100) for n in ledgers]
            entries.update({(n, entry_id): entry for n, entry in zip(ledgers, some, strict=True)})
            life.add(some, lambda taken, refusal: None)
            life.settle_journals()

    life = Life(disk)
    add(life, range(1, 4), range(8))
    life.stop()
    life = Life(disk)
    add(life, range(1, 4), range(8, 16))
    life.fence(4, lambda rc: None)
    life.fence(5, lambda rc: None)
    life.settle_journals()
    life.flush()
    life.known.ledger_ids = {1, 2, 3, 4}
    for _ in range(2):  # ledger 5 is deleted, and its fence remembered
        until_end(life.collect(set()), life.threads)
    add(life, range(1, 4), range(16, 24))
    life.fence(2, lambda rc: None)
    life.settle_journals()
    # Damage in the very last group of a journal looks like a write that a crash interrupted: nothing can tell them
    # apart. So what is looked at has a group behind it.
    life.add([stored_entry(9, 0)], lambda taken, refusal: None)
    life.settle_journals()
    return life, entries


UNSUMMED = ("lastMark", "lastMark.0")
"""Apache's form of a mark has no checksum: a flip that names another group of the same file cannot be seen."""


@pytest.mark.parametrize("lot", range(LOTS))
def test_a_flipped_bit_is_never_a_wrong_answer(lot: int) -> None:
    life, entries = lived()
    rng = random.Random(f"flip {SEED} {lot}")
    image = crashed_files(life.disk.files, rng, "lose all")
    entries_of = image._entries
    paths = [path for path in sorted(entries_of) if entries_of[path].cached and path.rpartition("/")[2] not in UNSUMMED]
    seen: Counter[str] = Counter()
    for _ in range(max(RUNS // LOTS, 25)):
        disk = crashed(life.disk, rng, "lose all")
        path = rng.choice(paths)
        content = disk.files._entries[path].cached
        for _ in range(rng.choice([1, 1, 1, 3])):
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        seen[look(disk, entries, path)] += 1
    print(lot, seen)


@pytest.mark.parametrize(
    ("name", "offset", "outcome"),
    [
        ("the marked journal", 0, "refused to start"),  # the magic
        ("the marked journal", None, "refused to start"),  # the group at the mark: later ones say that it was durable
        ("/l0/current/lastMark", 7, "refused to start"),  # a journal file that is not there
        ("/l0/current/fenced-and-deleted", 9, "refused to start"),
        ("/l0/current/0.log", 1024 + 3, "an error"),  # a size word
        ("/l0/current/0.log", 1024 + 4 + 15, "an error"),  # an entry id
        ("/l0/current/0.log", 1024 + 4 + 40, "an error"),  # a payload: the digest sees it
        ("/l0/current/0.log", 9, "right"),  # the seal: the log is read through instead
        ("/l0/current/lastId", 0, "right"),  # there are logs, which are numbered
    ],
)
def test_what_a_flipped_bit_comes_to(name: str, offset: int | None, outcome: str) -> None:
    life, entries = lived()
    disk = crashed(life.disk, random.Random(1), "lose all")
    mark = decode_mark(read_file(disk.files, "/l0/current/lastMark"), "lastMark")
    if name == "the marked journal":
        name = f"/j0/current/{mark.file_id:x}.txn"
    offset = mark.offset + 100 if offset is None else offset
    disk.files._entries[name].cached[offset] ^= 4
    assert look(disk, entries, name) == outcome


@pytest.mark.parametrize("lot", range(LOTS))
def test_a_file_that_is_cut_short_is_never_a_wrong_answer(lot: int) -> None:
    life, entries = lived()
    rng = random.Random(f"cut {SEED} {lot}")
    logs = [path for path in sorted(life.disk.files._entries) if path.endswith(".log")]
    for _ in range(max(RUNS // LOTS, 25)):
        disk = crashed(life.disk, rng, "lose all")
        path = rng.choice(logs)
        content = disk.files._entries[path].cached
        del content[rng.randrange(len(content)) :]
        look(disk, entries, path)


def look(disk: Disk, entries: dict[tuple[int, int], bytes], path: str) -> str:
    try:
        life = Life(disk)
    except (MagnetarError, OSError):
        return "refused to start"
    outcome = "right"
    for (ledger_id, entry_id), sent in entries.items():
        try:
            entry = life.read(ledger_id, entry_id)
        except (Corruption, OSError):
            outcome = "an error"
            continue
        assert entry is not None, f"{path}: ledger {ledger_id} entry {entry_id} is called absent"
        if entry != sent:  # what the bookie does not look at itself, the digest shows to everybody
            with pytest.raises(Corruption):
                CODEC.open(entry, ledger_id, entry_id)
            outcome = "an error"
    for ledger_id in (2, 4, 5):
        rcs = life.add([stored_entry(ledger_id, 99)], lambda taken, refusal: None)
        assert rcs == [EFENCED], f"{path}: the fence of ledger {ledger_id} is lost"
    return outcome
