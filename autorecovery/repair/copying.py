"""Copying the entries of one fragment to other bookies, and reading them back from there.

    read a run ──▶ write it to each target ──▶ read it back ──▶ next run       some runs are under way at a time

Rules (I67, I68):

1. A copy counts when it was confirmed by its bookie and then read back with a good digest.
2. An entry goes to the targets whose position holds it, and to no other.
3. An entry that every other holder denies is lost. The copying goes on, so that all lost ones are reported, but
   nothing may be published then.
4. What a target got from a former attempt, and confirmed then, is read from it instead of being written again; of a
   bookie that lacks some entries of its position, the others likewise.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from autorecovery.ledgers.checks import Fragment, joined
from autorecovery.repair.pace import Pace
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch, is_missing
from magnetar_core.bookkeeper.client.reading.replicas import RUN_ENTRIES, LedgerReplicas, Stored
from magnetar_core.runtime.types import MagnetarError

# Runs of one fragment that are being written and read back while the next is read: at RUN_BYTES each a few MiB.
_RUNS_MAX: Final = 4

# Entries of a striped fragment that are read at the same time: they are asked for one by one.
_WINDOW: Final = 64


class CopyFailed(MagnetarError):
    """A fragment could not be copied now; the text names the entry and the bookies. Trying later may help."""

    def __init__(self, text: str, *, unreadable: int | None = None, target: str | None = None) -> None:
        super().__init__(text)
        self.unreadable = unreadable
        """The entry of which no copy can be read, and it is not known whether there is one."""
        self.target = target
        """The bookie that did not take what was written, or does not give it back."""


@dataclass(slots=True)
class Copied:
    """What came of copying one fragment."""

    entries: int = 0
    """Copies made: an entry that went to two bookies counts twice."""
    bytes: int = 0
    lost: list[tuple[int, int]] = field(default_factory=list)
    """Entries that no living bookie has, as ranges, first and last included, ascending."""


class FragmentCopier:
    """Copies one fragment. Used once."""

    def __init__(
        self,
        replicas: LedgerReplicas,
        fragment: Fragment,
        targets: Mapping[int, str],
        gone: frozenset[str],
        pace: Pace,
        had: Mapping[tuple[int, str], int] | None = None,
    ) -> None:
        """*targets*: position → bookie that is to have the position's entries; may be the one that has the position.
        *gone* are bookies of the ensemble that need not be asked. *had*: `upto` of a former attempt (rule 4)."""
        assert targets
        self._replicas = replicas
        self._fragment = fragment
        self._targets = targets
        self._gone = gone
        self._pace = pace
        end = fragment.last_entry_id + 1
        in_place = {(at, bookie): end for at, bookie in targets.items() if fragment.ensemble[at] == bookie}
        self._had = {**(had or {}), **in_place}
        self._next_entry_id = fragment.first_entry_id
        self._under_way: set[int] = set()
        """First entries of runs that are not on all of their targets yet."""
        self.copied = Copied()
        self._slots = asyncio.Semaphore(_RUNS_MAX)
        self._is_striped = fragment.write_quorum < len(fragment.ensemble)

    @property
    def upto(self) -> dict[tuple[int, str], int]:
        """(position, target) → the target has what the position holds of entries before this one."""
        done = min(self._under_way, default=self._next_entry_id)
        return {target: max(done, self._had.get(target, 0)) for target in self._targets.items()}

    async def are_lost(self, entry_ids: Sequence[int]) -> bool:
        """Whether no bookie has any of *entry_ids*. Raises CopyFailed if nobody knows."""
        copies = await asyncio.gather(*map(self._find, entry_ids))
        return not any(copies)

    async def copy(self) -> Copied:
        """Raises CopyFailed: some entries may have been copied, which is harmless; `copied` and `upto` have them."""
        fragment = self._fragment
        assert fragment.is_fixed, "the entries of a fragment that may still grow are not copied"
        next_entry_id = fragment.first_entry_id
        writes: set[asyncio.Task[None]] = set()
        try:
            while next_entry_id <= fragment.last_entry_id:
                async with self._pace.reading():
                    run, next_entry_id = await self._read(next_entry_id)
                if run:
                    self._under_way.add(run[0].entry_id)
                self._next_entry_id = next_entry_id
                if not run:
                    continue
                await self._slots.acquire()
                _raise_failed(writes)
                write = asyncio.get_running_loop().create_task(self._write(run))
                write.add_done_callback(lambda _: self._slots.release())
                writes.add(write)
                writes = {write for write in writes if not write.done() or write.exception() is not None}
            await asyncio.gather(*writes)
        except CopyFailed:
            await asyncio.gather(*writes, return_exceptions=True)  # what is under way serves the next attempt
            raise
        finally:
            for write in writes:
                write.cancel()
            await asyncio.gather(*writes, return_exceptions=True)
        self.copied.lost = joined(self.copied.lost)
        return self.copied

    # ---------------------------------------------------------------------------------------- reading

    async def _read(self, first: int) -> tuple[list[Stored], int]:
        """Entries from *first* on that some target is to have, and where to go on."""
        if not self._is_striped:
            return await self._read_row(first)
        wanted: list[int] = []
        entry_id = first
        while entry_id <= self._fragment.last_entry_id and len(wanted) < _WINDOW:
            if self._targets_of(entry_id):
                wanted.append(entry_id)
            entry_id += 1
        answers = await asyncio.gather(*(self._read_one(wanted_id) for wanted_id in wanted))
        return [entry for entry in answers if entry is not None], entry_id

    async def _read_row(self, first: int) -> tuple[list[Stored], int]:
        """As `_read`, where every bookie holds every entry."""
        last = min(self._fragment.last_entry_id, first + RUN_ENTRIES - 1)
        sources = self._sources(first)
        if sources:
            try:
                run = await self._replicas.read_run(sources, range(first, last + 1))
            except (BookKeeperError, DigestMismatch):
                pass  # the first entry is asked for once more, alone: the answer says what is wrong with it
            else:
                assert run[0].entry_id == first
                return run, run[-1].entry_id + 1
        entry = await self._read_one(first)
        return ([] if entry is None else [entry]), first + 1

    async def _read_one(self, entry_id: int) -> Stored | None:
        """As `_find`; an entry that is lost is noted."""
        entry = await self._find(entry_id)
        if entry is None:
            self.copied.lost.append((entry_id, entry_id))
        return entry

    async def _find(self, entry_id: int) -> Stored | None:
        """An entry, from any of its bookies. None: each of them denies that it has it, or has it with a wrong digest
        (rule 3). Raises CopyFailed if a bookie that may have it cannot be read."""
        sources = self._sources(entry_id)
        if sources:
            try:
                return await self._replicas.read_from_any(sources, entry_id)
            except (BookKeeperError, DigestMismatch) as error:
                if not is_missing(error) and not isinstance(error, DigestMismatch):
                    raise CopyFailed(f"entry {entry_id} cannot be read: {error}", unreadable=entry_id) from error
        return None

    def _sources(self, entry_id: int) -> list[str]:
        """The bookies that are there and should have *entry_id*; one that lacks entries may have this one."""
        ensemble = self._fragment.ensemble
        return [ensemble[at] for at in self._fragment.holders(entry_id) if ensemble[at] not in self._gone]

    def _targets_of(self, entry_id: int) -> list[str]:
        """Rule 2."""
        return [bookie for index, bookie in self._targets.items() if self._fragment.holds(index, entry_id)]

    # ---------------------------------------------------------------------------------------- writing

    async def _write(self, run: Sequence[Stored]) -> None:
        """Write one run to all of its targets, and read it back (rule 1)."""
        await asyncio.gather(*(self._write_to(index, bookie, run) for index, bookie in self._targets.items()))
        self._under_way.discard(run[0].entry_id)

    async def _write_to(self, index: int, bookie: str, run: Sequence[Stored]) -> None:
        held = list(run)
        if self._is_striped:
            held = [entry for entry in run if self._fragment.holds(index, entry.entry_id)]
        had = [entry for entry in held if entry.entry_id < self._had.get((index, bookie), 0)]
        if had and await self._has_still(bookie, had):
            held = held[len(had) :]
        if not held:
            return
        size = sum(len(entry.data) for entry in held)
        async with self._pace.turn(size):
            try:
                await self._replicas.writer(bookie).write(held)
            except BookKeeperError as error:
                raise CopyFailed(
                    f"entries from {held[0].entry_id} on cannot be written to {bookie}: {error}", target=bookie
                ) from error
        await self._read_back(bookie, held)
        self.copied.entries += len(held)
        self.copied.bytes += size

    async def _read_back(self, bookie: str, run: Sequence[Stored]) -> None:
        try:
            await self._read_all(bookie, run)
        except (BookKeeperError, DigestMismatch) as error:
            raise CopyFailed(f"what was written to {bookie} cannot be read back: {error}", target=bookie) from error

    async def _has_still(self, bookie: str, run: Sequence[Stored]) -> bool:
        """Rule 4. Its garbage collection takes what no record gives it."""
        try:
            await self._read_all(bookie, run)
        except (BookKeeperError, DigestMismatch) as error:
            if is_missing(error) or isinstance(error, DigestMismatch):
                return False
            raise CopyFailed(f"what was written to {bookie} cannot be read back: {error}", target=bookie) from error
        return True

    async def _read_all(self, bookie: str, run: Sequence[Stored]) -> None:
        """Raises BookKeeperError, DigestMismatch."""
        left = [entry.entry_id for entry in run]
        while left:
            if self._is_striped:
                part, left = left[:_WINDOW], left[_WINDOW:]
                await asyncio.gather(*(self._replicas.read(bookie, entry_id) for entry_id in part))
            else:
                left = left[len(await self._replicas.read_run([bookie], left)) :]


def _raise_failed(writes: set[asyncio.Task[None]]) -> None:
    for write in writes:
        if write.done() and not write.cancelled():
            error = write.exception()
            if error is not None:
                raise error
