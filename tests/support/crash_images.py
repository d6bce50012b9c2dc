"""Crash images: a bookie's storage lives a drawn life without threads, and its disk is taken at every operation.

    seed ──▶ Run (adds, fences, LACs, flushes, deletions, collections, compactions, restarts)
               └─ at each disk operation: the disk after a power cut ──▶ mounted, replayed ──▶ checked against Story

What runs is the bookie below its sockets, with its own code: request rules, journals, checkpointer, collector,
compactor. Its threads are queues (`StepThread`, `StepWorker`), and the next one to run is drawn, so a seed is a whole
run.

The power cut (B-D1 to B-D4 of the fault model):

1. What was synced is there. A sector is written whole or not at all, so bytes that were synced before stay as they are.
2. Each write that was not synced is kept, dropped or torn at sectors, independently of others. The missing sectors of a
   torn write hold their former bytes, zeros, or anything.
3. A file may have its new length and zeros instead of its content.
4. Each creation, renaming and removal in a directory that was not synced is kept or dropped, independently of others.
5. The index loses its newest changes, those of its two databases independently (see `tests/crash/test_index_contract`).
"""

import contextlib
import errno
import random
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace, coroutine
from typing import Any, Final, TypeVar

from bookie.config import BookieConfig
from bookie.jobs import Threads
from bookie.maintenance.garbage.collector import GarbageCollector, GcSettings
from bookie.maintenance.garbage.compaction import Stopped
from bookie.maintenance.garbage.rules import CompactionKind
from bookie.maintenance.older_metadata.watch import DoubtStatus
from bookie.serving.request_rules import EFENCED, EUA, OK
from bookie.serving.server import Limits, Server, ServerParts
from bookie.startup import StorageSettings, open_storage
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.journal.writer import Journal, NoSpace
from bookie.storage.ledgers import explicit_lac_of
from magnetar.testing.simulated.disk import MemoryFiles, _apply, _Inode, _Write
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.bookkeeper.wire.entry import HEADER
from magnetar_core.runtime.clock import Timer
from magnetar_core.runtime.types import KIB, MIB, Buffer, MagnetarError
from tests.support.bookie_disks import CODEC, KEY, OTHER_KEY, TINY, Disk, Entries, stored_entry

T = TypeVar("T")

# ------------------------------------------------------------------------------------- the power cut

MODES: Final = ("lose all", "keep all", "prefix", "subset", "torn 512", "torn 4096", "zeros ahead", "garbage")


def crashed_files(files: MemoryFiles, rng: random.Random, mode: str) -> MemoryFiles:
    """The disk as it may look if the power failed now; *files* is not changed."""
    after = MemoryFiles(files.capacity_bytes)
    after._directories = set(files._directories)
    entries, durable = files._entries, files._durable_entries
    for path in sorted(entries.keys() | durable.keys()):
        now, before = entries.get(path), durable.get(path)
        chosen = now
        if now is not before and mode != "keep all":
            chosen = before if mode == "lose all" or rng.random() < 0.5 else now
        if chosen is not None:
            image = _image(chosen, rng, mode)
            inode = _Inode(durable=bytearray(image), cached=image)
            after._entries[path] = after._durable_entries[path] = inode
    return after


def _image(inode: _Inode, rng: random.Random, mode: str) -> bytearray:
    changes = inode.unsynced
    if not changes:
        return bytearray(inode.durable)
    if mode == "keep all":
        return bytearray(inode.cached)
    image = bytearray(inode.durable)
    if mode == "lose all":
        return image
    if mode == "zeros ahead":
        image.extend(bytes(max(len(inode.cached) - len(image), 0)))
        return image
    if mode == "prefix":
        changes = changes[: rng.randint(0, len(changes))]
    for change in changes:
        if mode != "prefix" and rng.random() < 0.3:
            continue
        if isinstance(change, _Write) and mode not in ("prefix", "subset"):
            _tear(image, change, rng, mode)
        else:
            _apply(image, change)
    return image


def _tear(image: bytearray, write: _Write, rng: random.Random, mode: str) -> None:
    step = 4096 if mode == "torn 4096" else 512
    at, end = write.offset, write.offset + len(write.data)
    while at < end:
        following = min((at // step + 1) * step, end)
        kind = rng.random()
        if kind < 0.5:
            _apply(image, _Write(at, write.data[at - write.offset : following - write.offset]))
        elif kind < 0.75 and mode == "garbage":
            _apply(image, _Write(at, rng.randbytes(following - at)))
        elif kind < 0.9 and mode == "garbage":
            _apply(image, _Write(at, bytes(following - at)))
        at = following


def crashed(disk: Disk, rng: random.Random, mode: str) -> Disk:
    """A bookie's disk and index after a power cut."""
    files = crashed_files(disk.files, rng, mode)
    after = Disk(files, len(disk.journal_directories), len(disk.ledger_directories))
    kept = {"lose all": 0.0, "keep all": 1.0}.get(mode, 0.5)
    after.indexes = {name: index.crash(rng, kept) for name, index in disk.indexes.items()}
    return after


# --------------------------------------------------------------------------- threads that wait for their turn


@coroutine
def _turn() -> Generator[None, None, None]:
    yield


class StepThread:
    """Stands in for `bookie.jobs.JobThread`: jobs wait until `step` does one."""

    def __init__(self) -> None:
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, Exception | None], None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._jobs)

    def submit(self, work: Callable[[], T], done: Callable[[Any, Exception | None], None]) -> None:
        self._jobs.append((work, done))

    async def run(self, work: Callable[[], T]) -> T:
        outcome: list[tuple[Any, Exception | None]] = []
        self.submit(work, lambda result, error: outcome.append((result, error)))
        while not outcome:
            await _turn()
        result, error = outcome[0]
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def step(self) -> None:
        work, done = self._jobs.popleft()
        result, failure = None, None
        try:
            result = work()
        except (OSError, MagnetarError) as error:
            failure = error
        done(result, failure)


class StepWorker:
    """Stands in for the thread of a journal: `work` does one group, `report` tells of the oldest that was not told."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._items: list[Any] = []
        self._worked: deque[tuple[list[Any], BaseException | None]] = deque()
        self.error: BaseException | None = None
        journal._worker = self  # type: ignore[assignment]

    def put(self, items: Sequence[Any]) -> None:
        self._items += items

    @property
    def waiting(self) -> int:
        return len(self._items)

    @property
    def untold(self) -> int:
        return len(self._worked)

    def work(self, count: int) -> None:
        group, self._items = self._items[:count], self._items[count:]
        if self.error is None:
            try:
                self._journal._work(group)
            except OSError as error:
                self.error = error
        self._worked.append((group, self.error))

    def report(self) -> None:
        group, error = self._worked.popleft()
        self._journal._report(group, error)


class StepClock:
    """A sleep is one turn; timers are never due by themselves."""

    def __init__(self, wall_ms: int = 1_700_000_000_000) -> None:
        self._now_s = 0.0
        self._wall_ms = wall_ms

    def monotonic(self) -> float:
        self._now_s += 0.01
        return self._now_s

    def wall_ms(self) -> int:
        return self._wall_ms

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return SimpleNamespace(cancel=lambda: None)

    async def sleep(self, delay_s: float) -> None:
        await _turn()


class KnownLedgers:
    """Stands in for the metadata of ledgers: which there are."""

    def __init__(self, ledger_ids: Iterable[int]) -> None:
        self.ledger_ids = set(ledger_ids)

    async def list(self) -> AsyncIterator[int]:
        for ledger_id in sorted(self.ledger_ids):
            yield ledger_id

    async def read(self, ledger_id: int) -> None:
        if ledger_id not in self.ledger_ids:
            raise NoNode(f"/ledgers/{ledger_id}")


class NothingInDoubt:
    """Stands in for `OlderMetadata`: no ledger is newer than the metadata."""

    is_open = False
    doubts: frozenset[int] = frozenset()

    async def check(self) -> None:
        return

    def status(self) -> DoubtStatus:
        return DoubtStatus(None, 0, ())


def until_end(work: Coroutine[Any, Any, T], threads: Sequence[StepThread]) -> T:
    """Run a coroutine to its end, stepping threads that have jobs whenever it waits."""
    while True:
        try:
            work.send(None)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        for thread in threads:
            if thread.waiting:
                thread.step()


def bury(work: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine whose process was killed; jobs that it still gives to threads are not done."""
    while True:
        try:
            work.close()
            return
        except RuntimeError:  # it waits again while it is closed
            pass


# ---------------------------------------------------------------------------------------------- one life


COLLECTING: Final = BookieConfig(
    compaction_entries_s=1_000_000, compaction_unsynced_entries=1_000, gc_metadata_rate=1_000_000, write_cache_mib=1
)


class Life(Entries):
    """A bookie from one start to its end, without sockets. Raises what `open_storage` raises."""

    def __init__(self, disk: Disk, ledger_ids: Iterable[int] = (), settings: StorageSettings = TINY) -> None:
        self.disk = disk
        self.clock = StepClock()
        opened = open_storage(
            disk.files,
            disk.journal_directories,
            disk.ledger_directories,
            settings,
            disk.open_index,
            self.clock.wall_ms(),
        )
        self.storage, self.rules, self.cache, self.writers = opened
        self.failure: BaseException | None = None
        self.refusals = 0
        self.journals = [
            Journal(writer, f"journal {number}", self._fail, self._no_space)
            for number, writer in enumerate(self.writers)
        ]
        self.workers = [StepWorker(journal) for journal in self.journals]
        self.flusher = StepThread()
        self.maintenance = StepThread()
        self.readers = [StepThread()]
        flusher: Any = self.flusher
        maintenance: Any = self.maintenance
        readers: Any = self.readers
        self.checkpointer = Checkpointer(
            disk.files,
            self.storage,
            self.cache,
            self.rules.ledgers,
            self.journals,
            disk.journal_directories,
            flusher,
            self.clock,
            interval_s=1,
            journal_backups=settings.journal_backups,
            on_room=lambda: None,
            on_no_space=self._no_space,
            on_failure=self._fail,
            sleep=lambda seconds: None,
        )
        self.server = Server(
            ServerParts(
                rules=self.rules,
                cache=self.cache,
                storage=self.storage,
                journals=self.journals,
                checkpointer=self.checkpointer,
                readers=readers,
                clock=self.clock,
                limits=Limits(MIB),
                disk_usage=lambda: disk.files.usage("/"),
            )
        )
        self.known = KnownLedgers(ledger_ids)
        self.collector = GarbageCollector(
            GcSettings.of(COLLECTING),
            "bookie-1",
            SimpleNamespace(),
            "/ledgers",
            disk.files,
            self.storage,
            self.rules,
            self.cache,
            Threads(flusher, maintenance, readers[0], ()),
            self.clock,
            disk.files.usage,
            NothingInDoubt(),  # type: ignore[arg-type]
        )
        self.collector._reads.store = self.known  # type: ignore[assignment]

    @property
    def threads(self) -> list[StepThread]:
        return [self.flusher, self.maintenance, *self.readers]

    def _fail(self, error: BaseException) -> None:
        self.failure = self.failure or error

    def _no_space(self, error: Exception) -> None:
        """As the bookie does: keys are journaled again. (It is not made read-only, so that more goes wrong.)"""
        self.refusals += 1
        if isinstance(error, NoSpace):
            self.rules.keys_were_not_journaled()

    # -- requests

    def add(
        self,
        entries: Sequence[bytes],
        done: Callable[[list[bytes], Exception | None], None],
        *,
        recovery: bool = False,
        must_sync: bool = True,
        key: bytes = KEY,
    ) -> list[int]:
        """One chunk of adds, as a connection brings it; *done(entries taken, refusal)* once for each journal."""
        records: list[list[Buffer]] = [[] for _ in self.journals]
        taken: list[list[bytes]] = [[] for _ in self.journals]
        rcs = []
        for entry in entries:
            ledger_id, entry_id = HEADER.unpack_from(entry)[:2]
            number = ledger_id % len(self.journals)
            rc = self.rules.add(ledger_id, entry_id, key, entry, recovery, False, records[number])
            if rc == OK:
                taken[number].append(entry)
            rcs.append(rc)
        for number, journal in enumerate(self.journals):
            if taken[number]:
                journal.put(records[number], must_sync, done, taken[number])
        self.checkpointer.touched()
        return rcs

    def fence(self, ledger_id: int, done: Callable[[int], None]) -> None:
        self.server.fence(ledger_id, KEY, done)

    def write_lac(self, ledger_id: int, lac: int, done: Callable[[Exception | None], None]) -> int:
        records: list[Buffer] = []
        rc = self.rules.write_lac(KEY, CODEC.explicit_lac(ledger_id, lac), records)
        if rc == OK:
            self.server.journal_of(ledger_id).put(records, True, lambda _, refusal: done(refusal), None)
            self.checkpointer.touched()
        return rc

    # -- work

    def settle_journals(self) -> None:
        for worker in self.workers:
            while worker.waiting or worker.untold:
                if worker.waiting:
                    worker.work(worker.waiting)
                worker.report()

    def flush(self) -> None:
        """A whole checkpoint, with nothing in between."""
        self.checkpointer.flush()
        while self.flusher.waiting:
            self.flusher.step()

    async def collect(self, kinds: set[CompactionKind]) -> None:
        """What a round of garbage collection does, without its look at the cluster. Raises OSError, MagnetarError."""
        await self.collector._deleted.collect(True, lambda phase: None)
        await self.collector._collect_logs(kinds)

    def stop(self) -> None:
        """A clean stop. Raises OSError."""
        self.settle_journals()
        for _ in range(2):
            self.flush()
        for writer in self.writers:
            writer.close()
        self.storage.close()


# --------------------------------------------------------------------------------------------- what must hold


@dataclass
class Story:
    """The entries that were sent, and the answers that clients received."""

    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acknowledged: dict[tuple[int, int], None] = field(default_factory=dict)
    fences_sent: set[int] = field(default_factory=set)
    fenced: set[int] = field(default_factory=set)
    explicit_lacs_sent: dict[int, int] = field(default_factory=dict)
    explicit_lacs: dict[int, int] = field(default_factory=dict)
    lacs: dict[int, int] = field(default_factory=dict)
    """Of every ledger the largest LAC in an entry that was acknowledged."""
    deleted: set[int] = field(default_factory=set)
    """Not in the metadata store any more: the bookie may delete them."""


class Violation(AssertionError):
    """An image does not show what it must."""


def check(story: Story, life: Life) -> None:
    """Whether a bookie that has just started shows all that it must, and no more. Raises Violation."""

    def demand(holds: bool, text: str) -> None:
        if not holds:
            raise Violation(text)

    demand(not life.storage.needs_check, "an ordinary crash put the entries of the bookie in doubt")
    demand(life.cache.is_empty, "the bookie serves before its replay is flushed")
    for ledger_id, entry_id in story.acknowledged:
        if ledger_id not in story.deleted:
            entry = life.read(ledger_id, entry_id)
            demand(entry is not None, f"ledger {ledger_id} entry {entry_id} was acknowledged and is lost")
    visible_lacs: dict[int, int] = {}
    for ledger in list(life.rules.ledgers):
        ledger_id = ledger.ledger_id
        for entry_id in sorted(life.entry_ids(ledger_id)):
            entry = life.read(ledger_id, entry_id)
            sent = story.sent.get((ledger_id, entry_id))
            demand(
                entry is not None and entry == sent,
                f"ledger {ledger_id} entry {entry_id} is not what was sent: {entry!r:.80}",
            )
            assert entry is not None
            visible_lacs[ledger_id] = max(visible_lacs.get(ledger_id, -1), HEADER.unpack_from(entry)[2])
        demand(not ledger.fenced or ledger_id in story.fences_sent, f"ledger {ledger_id} was never to be fenced")
        tail = life.storage.tail(ledger_id)
        ledger.see_tail(tail.entry_id, tail.last_add_confirmed)
        lac = ledger.last_add_confirmed
        most = max(visible_lacs.get(ledger_id, -1), story.explicit_lacs_sent.get(ledger_id, -1))
        demand(lac <= most, f"the LAC {lac} of ledger {ledger_id} is beyond what is there, {most}")
        if ledger_id not in story.deleted:
            least = max(story.lacs.get(ledger_id, -1), story.explicit_lacs.get(ledger_id, -1))
            demand(lac >= least, f"the LAC of ledger {ledger_id} went back from {least} to {lac}")
    for ledger_id, lac in story.explicit_lacs.items():
        if ledger_id not in story.deleted:
            owner = life.rules.ledgers.get(ledger_id)
            found = -1 if owner is None else explicit_lac_of(owner.explicit_lac)
            demand(found >= lac, f"the explicit LAC of ledger {ledger_id} went back from {lac} to {found}")
    for ledger_id, _ in story.acknowledged:
        if ledger_id not in story.deleted:
            owner = life.rules.ledgers.get(ledger_id)
            demand(owner is not None and owner.master_key == KEY, f"the key of ledger {ledger_id} is lost")
    for ledger_id in story.fenced:
        rc = life.rules.add(ledger_id, 1 << 40, KEY, stored_entry(ledger_id, 1 << 40), False, False, [])
        demand(rc == EFENCED, f"the fence of ledger {ledger_id} is lost: an add was answered with {rc}")
    for directory in life.disk.ledger_directories:
        left = [name for name in life.disk.files.list(directory) if "compact" in name]
        demand(not left, f"left behind by a compaction: {left}")


def check_goes_on(story: Story, life: Life) -> None:
    """Whether the bookie can be used: collected, compacted, written to, flushed, restarted. Raises Violation."""
    for _ in range(2):
        until_end(life.collect({CompactionKind.MAJOR}), life.threads)
    damaged = life.collector.status().damaged_logs
    if damaged:
        raise Violation(f"after a crash good logs are called damaged: {damaged}")
    for key in story.acknowledged:
        if key[0] not in story.deleted and life.read(*key) != story.sent[key]:
            raise Violation(f"ledger {key[0]} entry {key[1]} is lost by a collection after the crash")
    told: list[bytes] = []
    entries = [stored_entry(1 << 30 | n, 0, b"after") for n in range(2)]
    life.add(entries, lambda taken, refusal: told.extend(taken if refusal is None else ()))
    if story.acknowledged:
        ledger_id, _ = next(iter(story.acknowledged))
        if ledger_id not in story.deleted:
            rcs = life.add([stored_entry(ledger_id, 1 << 41)], lambda taken, refusal: None, key=OTHER_KEY)
            if rcs != [EUA]:
                raise Violation(f"another key of ledger {ledger_id} was answered with {rcs}")
    life.settle_journals()
    if sorted(told) != sorted(entries):
        raise Violation("a bookie that came back takes no adds")
    after = Life(crashed(life.disk, random.Random(1), "lose all"))
    for entry in entries:
        if after.read(*HEADER.unpack_from(entry)[:2]) != entry:
            raise Violation("what was acknowledged after the crash is lost by the next one")
    for ledger_id in story.fenced:
        rc = after.rules.add(ledger_id, 1 << 40, KEY, stored_entry(ledger_id, 1 << 40), False, False, [])
        if rc != EFENCED:
            raise Violation(f"the fence of ledger {ledger_id} is lost by the second crash")


# --------------------------------------------------------------------------------------------- a drawn life


@dataclass(frozen=True)
class Options:
    """What a run does at all: drawn once for each seed, since what is always on hides the rest."""

    journals: int
    ledger_directories: int
    deletes: bool
    compacts: bool
    full_disks: bool
    restarts: bool
    deferred: bool
    ledgers: int

    @classmethod
    def draw(cls, rng: random.Random) -> "Options":
        journals, ledger_directories = rng.choice([(1, 1), (1, 1), (2, 1), (1, 2), (2, 2)])
        return cls(
            journals,
            ledger_directories,
            deletes=rng.random() < 0.6,
            compacts=rng.random() < 0.6,
            full_disks=rng.random() < 0.3,
            restarts=rng.random() < 0.5,
            deferred=rng.random() < 0.3,
            ledgers=rng.choice([1, 3, 8]),
        )


class Run:
    """The life of a bookie that *seed* draws, and images of its disk. `go` raises Violation."""

    disk_fails = False

    def __init__(
        self, seed: int, *, steps: int = 200, images_max: int = 250, variants: int = 1, share: float | None = None
    ) -> None:
        """*variants* images at a *share* of the disk's operations, *images_max* in all.

        Without *share* it is drawn: some seeds take every operation of a window, others some of the whole life.
        """
        self.seed = seed
        self.rng = random.Random(seed)
        self.options = Options.draw(self.rng)
        self.story = Story()
        self.images = 0
        self.operations = 0
        self.modes: set[str] = set()
        self._past: Counter[str] = Counter()
        self._steps = steps
        self._images_max = images_max
        self._variants = variants
        self._images_rng = random.Random(f"images {seed}")
        self._share = self._images_rng.choice([1.0, 0.4, 0.15]) if share is None else share
        self._first = self._images_rng.randrange(600) if share is None and self._share == 1 else 0
        self._settings = TINY
        if self.rng.random() < 0.5:  # a small cache: flushes come by themselves, and within a replay
            self._settings = replace(TINY, write_cache_bytes=8 * KIB, log_bytes_max=6 * KIB)
        self._full_name: str | None = None
        self._refused = ""
        self._in_thread = False
        self._next_ledger_id = 1 + self.options.ledgers
        self._ledger_ids = list(range(1, 1 + self.options.ledgers))
        self._next_entry = dict.fromkeys(self._ledger_ids, 0)
        self._last_lac = dict.fromkeys(self._ledger_ids, -1)
        self._round: Coroutine[Any, Any, None] | None = None
        self.what = ""
        self._life: Life | None = None
        self._disk = Disk(journals=self.options.journals, ledgers=self.options.ledger_directories)
        self._disk.files.on_operation.append(self._operation)

    @property
    def life(self) -> Life:
        assert self._life is not None
        return self._life

    def go(self) -> None:
        self._open()
        for _ in range(self._steps):
            if self.images >= self._images_max:
                break
            self._step()
            if self.life.failure is not None:
                # A full journal that could not be cut off again is the one failure that a run may come to.
                if not self.options.full_disks:
                    raise Violation(self._where(f"the bookie gave up: {self.life.failure!r}"))
                self._restart(["kill", "power cut"])
        self.take("the end")
        if self._round is not None:
            bury(self._round)

    def totals(self) -> dict[str, int]:
        """How often each kind of step happened, in all lives of this run."""
        self._count()
        story = self.story
        told = {"deleted": len(story.deleted), "fenced": len(story.fenced), "lacs": len(story.explicit_lacs)}
        return {**self._past, **told}

    def _count(self) -> None:
        """Add the counts of a life that ends to those of the whole run."""
        if self._life is not None:
            counts = self._life.collector.status()
            self._past["removed logs"] += counts.removed_logs
            self._past["compacted logs"] += counts.compacted_logs
            self._past["refusals"] += self._life.refusals

    # -- images

    def _operation(self, kind: str, path: str) -> None:
        """Before each change of the disk."""
        self.operations += 1
        if self._full_name is not None and kind in ("write", "create") and path.endswith(self._full_name):
            if path != self._refused:
                self._refused = path if self.rng.random() < 0.8 else ""  # cutting it off again may work
                raise OSError(errno.ENOSPC, "no space left", path)
            self._refused = ""
        self.what = f"disk operation {self.operations}: {kind} {path}"
        if self._first < self.operations and self._images_rng.random() < self._share:
            for _ in range(self._variants):
                self.take(self.what)
        # The journal's thread does not wait for the flusher or the maintenance thread, and the loop waits for neither.
        if not self._in_thread and self._life is not None and not path.startswith("/j") and self.rng.random() < 0.1:
            self._in_thread = True
            try:
                self._add()
                for worker in self.life.workers:
                    if worker.waiting:
                        worker.work(worker.waiting)
                    if worker.untold and self.rng.random() < 0.5:
                        worker.report()
            finally:
                self._in_thread = False

    def take(self, what: str) -> None:
        """Mount the disk as a power cut leaves it now, and check it. Raises Violation."""
        rng = self._images_rng
        mode = rng.choice(MODES)
        self.modes.add(mode)
        self._check(crashed(self._disk, rng, mode), f"{what}, {mode}", nested=0)

    def _check(self, disk: Disk, what: str, nested: int) -> None:
        self.images += 1
        rng = self._images_rng
        # Every tenth start is cut short too, somewhere, up to three times in a row.
        cut_at = rng.randrange(1, 30) if nested < 3 and rng.random() < 0.1 else 0
        count = 0
        again: list[tuple[Disk, str]] = []

        def cut(kind: str, path: str) -> None:
            nonlocal count
            count += 1
            if count == cut_at:
                mode = rng.choice(MODES)
                again.append((crashed(disk, rng, mode), f"{what}; while it starts, before {kind} {path}, {mode}"))

        if cut_at:
            disk.files.on_operation.append(cut)
        try:
            known = {ledger_id for ledger_id, _ in self.story.sent} | set(self._ledger_ids)
            life = Life(disk, known - self.story.deleted, self._settings)
            disk.files.on_operation.clear()
            check(self.story, life)
            if rng.random() < 0.05:
                check_goes_on(self.story, life)
        except Violation as error:
            raise Violation(f"{self._where(what)}: {error}") from None
        except Exception as error:
            raise Violation(f"{self._where(what)}: the bookie does not start: {error!r}") from error
        for other, text in again:
            self._check(other, text, nested + 1)

    def _where(self, what: str) -> str:
        return f"seed {self.seed}, {what} ({self.options})"

    # -- life

    def _open(self) -> None:
        self._life = None
        self._life = Life(self._disk, set(self._ledger_ids) - self.story.deleted, self._settings)
        self._round = None

    def _step(self) -> None:
        rng, options = self.rng, self.options
        kinds = {
            self._add: 30,
            self._add_again: 2,
            self._fence: 2,
            self._write_lac: 3,
            self._journal: 25,
            self._report: 20,
            self._thread: 25,
            self._flush: 4,
            self._delete: 4 if options.deletes else 0,
            self._collect: 10 if options.deletes or options.compacts else 0,
            self._run_full: 2 if options.full_disks else 0,
            self._restart: 1 if options.restarts else 0,
        }
        rng.choices(list(kinds), list(kinds.values()))[0]()

    def _ledger(self) -> int:
        return self.rng.choice(self._ledger_ids)

    def _add(self) -> None:
        rng, story = self.rng, self.story
        entries = []
        for _ in range(rng.choice([1, 1, 2, 5])):
            ledger_id = self._ledger()
            if ledger_id in story.deleted:
                continue
            entry_id = self._next_entry[ledger_id]
            self._next_entry[ledger_id] += rng.choice([1, 1, 1, 2])
            self._last_lac[ledger_id] = rng.randint(self._last_lac[ledger_id], entry_id - 1)
            payload = rng.randbytes(rng.choice([0, 3, 200, 460, 470, 500, 1500]))
            entry = stored_entry(ledger_id, entry_id, payload, self._last_lac[ledger_id])
            story.sent[ledger_id, entry_id] = entry
            entries.append(entry)
        must_sync = not (self.options.deferred and rng.random() < 0.3)
        self.life.add(entries, self._added if must_sync else _nobody_is_told, must_sync=must_sync)

    def _add_again(self) -> None:
        """A recovery client writes back what it read."""
        if not self.story.acknowledged:
            return
        key = self.rng.choice(list(self.story.acknowledged))
        if key[0] not in self.story.deleted:
            self.life.add([self.story.sent[key]], self._added, recovery=True)

    def _added(self, entries: list[bytes], refusal: Exception | None) -> None:
        if refusal is not None:
            return
        story = self.story
        for entry in entries:
            ledger_id, entry_id, lac = HEADER.unpack_from(entry)[:3]
            story.acknowledged[ledger_id, entry_id] = None
            story.lacs[ledger_id] = max(story.lacs.get(ledger_id, -1), lac)

    def _fence(self) -> None:
        ledger_id = self._ledger()
        if ledger_id in self.story.deleted or self.rng.random() < 0.5:
            return
        self.story.fences_sent.add(ledger_id)
        self.life.fence(ledger_id, lambda rc: self.story.fenced.add(ledger_id) if rc == OK else None)

    def _write_lac(self) -> None:
        ledger_id, story = self._ledger(), self.story
        if ledger_id in story.deleted:
            return
        lac = self.rng.randint(0, self._next_entry[ledger_id])
        story.explicit_lacs_sent[ledger_id] = max(lac, story.explicit_lacs_sent.get(ledger_id, -1))

        def done(refusal: Exception | None) -> None:
            if refusal is None:
                story.explicit_lacs[ledger_id] = max(lac, story.explicit_lacs.get(ledger_id, -1))

        self.life.write_lac(ledger_id, lac, done)

    def _journal(self) -> None:
        worker = self.rng.choice(self.life.workers)
        if worker.waiting:
            worker.work(self.rng.randint(1, worker.waiting))

    def _report(self) -> None:
        worker = self.rng.choice(self.life.workers)
        if worker.untold:
            worker.report()

    def _thread(self) -> None:
        threads = [thread for thread in self.life.threads if thread.waiting]
        if threads:
            self.rng.choice(threads).step()
        self._go_on_with_round()

    def _go_on_with_round(self) -> None:
        if self._round is None:
            return
        try:
            self._round.send(None)
        except StopIteration:
            self._round = None
            damaged = self.life.collector.status().damaged_logs
            if damaged and not self.options.full_disks and not self.disk_fails:
                raise Violation(self._where(f"a round calls good logs damaged: {damaged}")) from None
        except (OSError, MagnetarError, Stopped):
            self._round = None

    def _flush(self) -> None:
        self.life.checkpointer.flush()

    def _delete(self) -> None:
        """A client deletes a ledger; another ledger is made in its place."""
        ledger_id = self._ledger()
        self.story.deleted.add(ledger_id)
        self.life.known.ledger_ids.discard(ledger_id)
        if ledger_id in self._ledger_ids:
            self._ledger_ids.remove(ledger_id)
        fresh, self._next_ledger_id = self._next_ledger_id, self._next_ledger_id + 1
        self._ledger_ids.append(fresh)
        self._next_entry[fresh], self._last_lac[fresh] = 0, -1
        self.life.known.ledger_ids.add(fresh)

    def _collect(self) -> None:
        if self._round is None:
            kinds = {CompactionKind.MAJOR} if self.options.compacts else set()
            self._round = self.life.collect(kinds)
        for _ in range(self.rng.choice([5, 20, 200])):
            self._thread()

    def _run_full(self) -> None:
        """A directory becomes full, or has room again."""
        self._full_name = None if self._full_name else self.rng.choice([".txn", ".log", ".tmp", ".compacting"])

    def _restart(self, kinds: Sequence[str] = ("stop", "kill", "power cut")) -> None:
        self._full_name = None
        kind = self.rng.choice(kinds)
        if self._round is not None:
            if kind == "stop":
                self.life.collector._stopping = True
                with contextlib.suppress(OSError, MagnetarError, Stopped):
                    until_end(self._round, self.life.threads)
            bury(self._round)
            self._round = None
        self._count()
        if kind == "stop":
            self.life.stop()
            self._life = None
        else:
            self._disk.files.on_operation.clear()
            mode = "keep all" if kind == "kill" else self.rng.choice(MODES)
            self._disk = crashed(self._disk, self.rng, mode)
            self._disk.files.on_operation.append(self._operation)
        self._open()


def _nobody_is_told(entries: list[bytes], refusal: Exception | None) -> None:
    pass
