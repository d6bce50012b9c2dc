"""Finds out whether the metadata store is older than the ledgers of this bookie: somebody put a copy of it back.

    number of the next ledger ──▶ `note` ──▶ ledgers here without a record ──▶ file ──▶ range in the store ──▶ moved on

It looks before the bookie registers, at each new session and connection with the store, and before garbage collection
deletes anything. Rules besides those of `note` (I132):

1. What is in doubt is on the disk before the range is in the store, and the range before the numbers are moved on:
   whoever comes later sees one of them.
2. The bookie takes no new ledgers before that is done: a number that it has seen is never given again.
"""

import asyncio
import logging
import posixpath
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bookie.jobs import JobThread
from bookie.maintenance.older_metadata.note import ADVANCE_MAX, NOTE_FILE, UNDER_WAY_MAX, Note, decode, runs, too_far
from bookie.storage.ledgers import Ledgers
from magnetar_core.bookkeeper.metadata.ledgers.doubts import Doubted, DoubtRange, DoubtRanges
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import Files, read_file, replace_file
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Ranges of ledgers that the status names.
_NAMED_MAX = 20


class DoubtStatus(NamedTuple):
    """What is in doubt. *since_ms* None: nothing is."""

    since_ms: int | None
    ledgers: int
    """Ledgers here without a record, which garbage collection leaves."""
    ranges: tuple[str, ...]
    """Their numbers, the first of them."""


class OlderMetadata:
    """The knowledge of one bookie. Used on the loop; *worker* writes the file."""

    def __init__(
        self,
        bookie_id: str,
        store: MetadataStore,
        root: str,
        files: Files,
        directories: Sequence[str],
        ledgers: Ledgers,
        worker: JobThread,
        clock: Clock,
        first_ledger_id: int,
        report: Callable[[str | None], None],
    ) -> None:
        """*first_ledger_id*: the number of the next ledger when the bookie was new. *report* is called after each look
        with why the bookie must not take new ledgers, or None. Raises Corruption, OSError."""
        self._bookie_id = bookie_id
        self._store = store
        self._root = root
        self._files = files
        self._paths = [posixpath.join(directory, NOTE_FILE) for directory in directories]
        self._ledgers = ledgers
        self._worker = worker
        self._clock = clock
        self._ranges = DoubtRanges(store, root)
        self._on_problem = report
        self._lock = asyncio.Lock()
        self._note = self._read()
        # What the store says at present is not known: with a revision, the first look writes it in any case.
        self._announced = Doubted(0, 0) if self._note.revision else None
        if not self._note.revision:
            self._note = replace(self._note, given=first_ledger_id - 1)

    @property
    def is_open(self) -> bool:
        """The metadata is older than ledgers, and nobody has decided what becomes of them."""
        return self._note.is_open

    @property
    def doubts(self) -> frozenset[int]:
        """Ledgers that nobody may delete."""
        return self._note.doubts

    def status(self) -> DoubtStatus:
        note = self._note
        named = [f"{first} to {last}" if first < last else f"{first}" for first, last in runs(note.doubts)]
        return DoubtStatus(note.open_ms or None, len(note.doubts), tuple(named[:_NAMED_MAX]))

    async def check(self) -> None:
        """Compare the store with the ledgers here. Raises MetadataError, OSError."""
        async with self._lock:
            self._on_problem(await self._check())
            await self._publish()

    async def forget(self) -> int:
        """What is in doubt is of no use: garbage collection may delete it. Returns the number of ledgers. Raises
        MetadataError, OSError."""
        async with self._lock:
            count = len(self._note.doubts)
            if self._note.is_open or count:
                log.warning("bookie %s: %d ledgers newer than the metadata are given up", self._bookie_id, count)
            await self._write_note(self._note.forgotten())
            await self._publish()
            return count

    async def _check(self) -> str | None:
        note = self._note
        # Before the question: a ledger that is made meanwhile has a higher number.
        held = [ledger.ledger_id for ledger in self._ledgers]
        if not held and note == Note():
            return None
        metadata = LedgerStore(self._store, self._root)  # a new one: what it remembers may have gone back, too
        following = await metadata.next_id()
        published = await self._ranges.read()
        absent = await metadata.without_record(note.suspects(held, following, published))
        absent = [ledger_id for ledger_id in absent if ledger_id in self._ledgers]
        newest = note.newest_seen(following, absent)
        if newest < following:
            await self._write_note(note.after_look(following, published, absent))
            self._log_change(note)
            return None
        first = max(following - UNDER_WAY_MAX, 0)
        absent = sorted(
            {*absent, *await metadata.without_record(ledger_id for ledger_id in held if first <= ledger_id < following)}
        )
        newer = DoubtRange(first, newest, self._clock.wall_ms(), self._bookie_id)
        await self._write_note(note.after_look(0, published, absent).with_doubt_opened(newer, absent))
        self._log_change(note)
        if newest - following >= ADVANCE_MAX:
            return too_far(following, newest, len(absent))
        await self._ranges.add(newer)
        log.warning("bookie %s moves the numbers of ledgers on from %d to above %d", self._bookie_id, following, newest)
        following = await metadata.advance(newest)
        await self._write_note(replace(self._note, given=following - 1))
        return None

    async def _publish(self) -> None:
        """Show people who look at the cluster how many ledgers are in doubt."""
        note = self._note
        doubted = Doubted(note.open_ms, len(note.doubts)) if note.is_open else None
        if doubted != self._announced:
            await self._ranges.announce(self._bookie_id, doubted)
            self._announced = doubted

    def _log_change(self, before: Note) -> None:
        note = self._note
        if note.is_open and (not before.is_open or note.doubts - before.doubts):
            log.error(
                "bookie %s: the metadata store went back in time. %d ledgers here are newer than it and have no record "
                "(%s); they stay until they have one again, or `magnetar bookie gc forget-doubt`. What to do: "
                "docs/production.md, Metadata that are older than the ledgers",
                self._bookie_id, len(note.doubts), ", ".join(self.status().ranges) or "none",
            )  # fmt: skip
        if before.is_open and not note.is_open:
            log.warning("bookie %s: the metadata store has a record of each of its ledgers again", self._bookie_id)

    # -- the file

    def _read(self) -> Note:
        """The newest file. One that is damaged counts if no other is there. Raises Corruption, OSError."""
        notes: list[Note] = []
        damaged: list[Corruption] = []
        for path in self._paths:
            if self._files.exists(path):
                try:
                    notes.append(decode(read_file(self._files, path), path))
                except Corruption as error:
                    damaged.append(error)
        if damaged and not notes:
            raise damaged[0]
        return max(notes, key=lambda note: note.revision, default=Note())

    async def _write_note(self, note: Note) -> None:
        """Write *note* to each directory, and use it from then on. Raises OSError if it stands in none of them.

        One written file is enough, since the newest revision counts. If only `given` has changed, none is needed: that
        makes the next look surer, no more.
        """
        assert self._lock.locked(), "notes are written under the lock: another look could overwrite this one"
        if note == self._note and note.revision:
            return
        must_be_stored = replace(note, given=self._note.given) != self._note
        note = replace(note, revision=self._note.revision + 1)
        failures: list[OSError] = []
        for path in self._paths:
            try:
                await self._worker.run(partial(replace_file, self._files, path, note.encode()))
            except OSError as error:
                log.warning("%s cannot be written: %s", path, error)
                failures.append(error)
        if must_be_stored and len(failures) == len(self._paths):
            raise failures[0]
        self._note = note
