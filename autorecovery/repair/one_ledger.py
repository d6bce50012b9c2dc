"""Repairing one ledger, from what its metadata says to a record that names only bookies that have its entries.

    read the record ──▶ judge each fragment ──▶ nothing missing?            ──▶ take the mark down
                                            └─▶ copy, read back, publish    ──▶ judge again
                 open, and its end at risk  ──▶ the grace period ──▶ still so? recover it (which closes it)

Rules:

1. An ensemble is published (compare-and-set) only after every entry that it gives to a new bookie was read back from
   that bookie (I67). If the record changed meanwhile, the change is made only where the segment still is what was
   copied; otherwise the ledger is judged anew.
2. The mark is taken down with the version that was read before the ledger was judged, and only when every fragment
   was found good against the record as it is then (I66). Where this repair alone has changed the record since it was
   judged, only what it copied is looked at again.
3. A bookie that is there and lacks entries gets them back where it is, if it takes entries; else another one takes its
   place.
4. The last fragment of a ledger that is not closed is left to its writer for the grace period. The record is written as
   it is, which announces that to the writer: our brokers leave the bookies then, also while they have nothing to write.
   After that the ledger is recovered, which ends it for the writer, which goes on in another one (I75).
5. Ends say nothing about a hole between them. So of the bookies that a mark names and that are there, the list of
   entries is compared, too; where the check of all entries is on, everything that they have is read.
6. Where it is switched on, copies of a closed ledger that has all of them are moved so that they are in more regions,
   racks and hosts. What is left of a copy at the former place goes with the bookie's garbage collection, so no entry
   ever has fewer copies (I73); a move that does not improve the placement is not made.
7. Attempts that fail again and again write little (`attempts`), and choose the same targets, whichever node makes them.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from itertools import islice
from typing import Final

from autorecovery.ledgers.checks import (
    Answer,
    Copy,
    Depth,
    Fragment,
    Verdict,
    ends,
    first_unlisted,
    fragments,
    is_tail_at_risk,
    judge,
)
from autorecovery.repair.attempts import Attempt, Attempts
from autorecovery.repair.copying import Copied, CopyFailed, FragmentCopier
from autorecovery.repair.outcome import Hindered, Hindrance, Outcome, Repaired
from autorecovery.repair.pace import Pace
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import (
    BookKeeperError,
    DigestMismatch,
    NoSuchLedger,
    RecoveryFailed,
    is_missing,
)
from magnetar_core.bookkeeper.client.reading.replicas import LedgerReplicas, Stored
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import Versioned
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard, VersionedMark
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError, NoNode, VersionConflict
from magnetar_core.runtime.types import Corruption

log = logging.getLogger(__name__)

# Reads of one look at a ledger that are under way at the same time: the ends of some ten fragments.
_READS_MAX: Final = 64

# Rounds of judging and copying: a bookie more may be lost in each of them, and writers may change the record.
_ROUNDS_MAX: Final = 5

# Conflicts of one publication. Each is a change by somebody else that made progress.
_CONFLICTS_MAX: Final = 20


OnRead = Callable[[int], Awaitable[None]]
"""Called with how many bytes were read to check all entries; returns when more may be read."""


async def _at_once(size: int) -> None:
    """Nothing but the pace of the node limits the reading."""


class _Stopped(Exception):
    """This attempt ends here."""

    def __init__(self, outcome: Hindered) -> None:
        super().__init__(outcome.text)
        self.outcome = outcome


class LedgerRepair:
    """Repairs ledgers one at a time for each call; several calls may be under way. Used on the loop."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        marks: MarkBoard,
        pace: Pace,
        *,
        depth: Depth,
        draining: Callable[[], Collection[str]],
        mends_placement: bool = False,
        suspect_depth: Depth = Depth.LISTS,
    ) -> None:
        """*draining*: bookies that are to hand on what they have, as they are now. *mends_placement*: move copies of
        closed ledgers that are spread too little (rule 6). *suspect_depth*: how bookies are looked at that a
        mark names (rule 5)."""
        self._bookkeeper = bookkeeper
        self._marks = marks
        self._pace = pace
        self._depth = depth
        self._draining = draining
        self._mends_placement = mends_placement
        self._suspect_depth = suspect_depth
        self._attempts = Attempts()

    async def repair(
        self, ledger_id: int, *, may_recover: bool, mark: VersionedMark | None = None, is_announced: bool = False
    ) -> Outcome:
        """One attempt. The caller holds the ledger's lock. Never raises what the cluster can cause.

        *may_recover*: the grace period of a ledger that is not closed is over. Without it such a ledger gives OPEN.
        *mark*: the ledger's mark, if the caller has read it since it holds the lock. *is_announced*: a former
        attempt has written the record for the writer (rule 4).
        """
        total = Copied()
        try:
            return await self._repair(ledger_id, total, may_recover, mark, is_announced)
        except _Stopped as stopped:
            outcome = stopped.outcome
        except NoSuchLedger:
            return await self._forget(ledger_id)
        except Corruption as error:
            outcome = Hindered(Hindrance.UNREADABLE, str(error))
        except (MetadataError, BookKeeperError) as error:
            outcome = Hindered(Hindrance.METADATA, str(error))
        return Hindered(outcome.kind, outcome.text, total.entries, total.bytes, outcome.lost)

    async def _repair(
        self, ledger_id: int, total: Copied, may_recover: bool, known: VersionedMark | None, is_announced: bool
    ) -> Outcome:
        for _ in range(_ROUNDS_MAX):
            mark, known = known or await self._marks.read(ledger_id), None
            versioned = await self._read(ledger_id)
            suspects = frozenset() if mark is None else frozenset(mark.mark.replicas)
            verdicts = await self.look(ledger_id, versioned.metadata, suspects=suspects)
            after = await self._copy_all(ledger_id, versioned, verdicts, total)
            if self._is_end_at_risk(versioned.metadata, verdicts):
                if not may_recover:
                    if not is_announced:  # a writer that was away notices it when it is back
                        await self._announce_to_writer(ledger_id, versioned)
                    raise _Stopped(Hindered(Hindrance.OPEN, "it is open; its writer may still replace the bookie"))
                await self._recover(ledger_id)
                continue
            silent = [text for verdict in verdicts for text in verdict.unknown.values()]
            if any(verdict.needs_copies for verdict in verdicts):
                is_known = after is not None and after.metadata.is_closed and not silent
                if not is_known or self._mends_placement:
                    continue  # judged again, against the record as it is now (rule 2)
            elif silent:
                raise _Stopped(Hindered(Hindrance.SILENT, silent[0]))
            if await self._mend_placement(ledger_id, versioned, verdicts, total):
                continue  # judged again
            if mark is None or await self._marks.take_down(ledger_id, mark.version):
                return Repaired(total.entries, total.bytes)
        raise _Stopped(Hindered(Hindrance.METADATA, f"it changed {_ROUNDS_MAX} times while it was being repaired"))

    async def is_deleted(self, ledger_id: int) -> bool:
        """The ledger has no record. Raises MetadataError."""
        try:
            await self._read(ledger_id)
        except NoSuchLedger:
            return True
        except Corruption:
            return False
        return False

    async def look(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        depth: Depth | None = None,
        *,
        suspects: Collection[str] = frozenset(),
        on_read: OnRead = _at_once,
    ) -> list[Verdict]:
        """Judge each fragment of a ledger by what its bookies have; *depth* None: as for a repair. *suspects*: bookies
        that are said to lack something (rule 5). *on_read* is called where all entries are read.

        Raises NoSuchLedger, BookKeeperError, MetadataError.
        """
        last_add_confirmed = NO_ENTRY if metadata.is_closed else await self._last_add_confirmed(ledger_id)
        replicas = self._bookkeeper.replicas(ledger_id, metadata)
        slots = asyncio.Semaphore(_READS_MAX)
        available = self._bookkeeper.bookies.available
        draining = self._draining()
        all_fragments = fragments(metadata, last_add_confirmed, with_trailing=True)
        return list(
            await asyncio.gather(
                *(
                    self._look_at(
                        replicas, fragment, available, draining, slots, depth or self._depth, suspects, on_read
                    )
                    for fragment in all_fragments
                )
            )
        )

    async def _look_at(
        self,
        replicas: LedgerReplicas,
        fragment: Fragment,
        available: Collection[str],
        draining: Collection[str],
        slots: asyncio.Semaphore,
        depth: Depth,
        suspects: Collection[str],
        on_read: OnRead,
    ) -> Verdict:
        async def answers_of(index: int) -> list[Answer]:
            bookie = fragment.ensemble[index]
            is_suspect = bookie in suspects
            if depth is Depth.LISTS:
                return [await self._ask_list(replicas.ledger_id, fragment, index, slots)]
            if depth is Depth.ALL or (is_suspect and self._suspect_depth is Depth.ALL):
                return [await self._ask_all(replicas, fragment, index, slots, on_read)]
            answers = list(
                await asyncio.gather(*(_ask(replicas, bookie, entry_id, slots) for entry_id in ends(fragment, index)))
            )
            if is_suspect and self._suspect_depth is Depth.LISTS:
                listed = await self._ask_list(replicas.ledger_id, fragment, index, slots)
                # Bookies that never list anything are taken at their ends, or no mark of theirs would ever go.
                answers += [listed] if isinstance(listed, Copy) else []
            return answers

        # The entries of a fragment that is still written are on their way to some of its bookies: one that does not
        # have them yet has lost nothing, and asking would take that for a loss.
        asked = [index for index, bookie in enumerate(fragment.ensemble) if bookie in available and fragment.is_fixed]
        answers = await asyncio.gather(*map(answers_of, asked))
        return judge(fragment, available, draining, dict(zip(asked, answers, strict=True)))

    async def _ask_all(
        self, replicas: LedgerReplicas, fragment: Fragment, index: int, slots: asyncio.Semaphore, on_read: OnRead
    ) -> Answer:
        """What the bookie at *index* says of all of its entries, up to the first that is not there."""

        async def read_entry(entry_id: int) -> Stored:
            async with slots:
                return await replicas.read(bookie, entry_id)

        async def note_read(run: Collection[Stored]) -> None:
            size = sum(len(entry.data) for entry in run)
            await self._pace.read(size)
            await on_read(size)

        bookie = fragment.ensemble[index]
        if fragment.write_quorum == len(fragment.ensemble):
            next_entry_id = fragment.first_entry_id
            while next_entry_id <= fragment.last_entry_id:
                rest = range(next_entry_id, fragment.last_entry_id + 1)
                try:
                    async with slots:
                        run = await replicas.read_run([bookie], rest)
                except (BookKeeperError, DigestMismatch) as error:
                    return _as_answer(error)
                next_entry_id += len(run)
                await note_read(run)
            return Copy.PRESENT
        held = fragment.held(index)
        while chunk := list(islice(held, _READS_MAX)):
            answers = await asyncio.gather(*map(read_entry, chunk), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BookKeeperError | DigestMismatch):
                    return _as_answer(answer)
                if isinstance(answer, BaseException):
                    raise answer
            await note_read([entry for entry in answers if isinstance(entry, Stored)])
        return Copy.PRESENT

    async def _ask_list(self, ledger_id: int, fragment: Fragment, index: int, slots: asyncio.Semaphore) -> Answer:
        """What the bookie at *index* lists of its entries. Each fragment asks anew; few ledgers have many."""
        if fragment.first_held(index) is None:
            return Copy.PRESENT
        async with slots:
            try:
                listed = await self._bookkeeper.entry_list(fragment.ensemble[index], ledger_id)
            except BookKeeperError as error:
                return str(error)
        return Copy.PRESENT if first_unlisted(fragment, index, listed) is None else Copy.MISSING

    async def _last_add_confirmed(self, ledger_id: int) -> int:
        """The LAC of a ledger that is not closed; -1 where too few bookies answer: then nothing is fixed (rule 4)."""
        try:
            handle = await self._bookkeeper.open_as_administrator(ledger_id, recovery=False)
        except NoSuchLedger:
            raise
        except BookKeeperError as error:
            log.info("ledger %d: its bookies do not say where it ends: %s", ledger_id, error)
            return NO_ENTRY
        await handle.close()
        return handle.last_add_confirmed

    # ------------------------------------------------------------------------------------- the open end

    def _is_end_at_risk(self, metadata: LedgerMetadata, verdicts: Collection[Verdict]) -> bool:
        """What is bad and cannot be copied before the ledger is closed."""
        if metadata.is_closed:
            return False
        if is_tail_at_risk(metadata, self._bookkeeper.bookies.writable):
            return True
        return any(verdict.needs_copies and not verdict.fragment.is_fixed for verdict in verdicts)

    async def _announce_to_writer(self, ledger_id: int, versioned: Versioned) -> None:
        """Write the record as it is: a writer that follows it leaves bookies that take no entries (rule 4)."""
        if versioned.metadata.state is LedgerState.OPEN:
            with contextlib.suppress(VersionConflict):  # its writer was faster
                await self._bookkeeper.ledgers.write(ledger_id, versioned.metadata, versioned.version)

    async def _recover(self, ledger_id: int) -> None:
        log.warning("ledger %d: its writer did not replace a lost bookie in time; closing the ledger", ledger_id)
        try:
            await (await self._bookkeeper.open_as_administrator(ledger_id, recovery=True)).close()
        except RecoveryFailed as error:
            raise _Stopped(Hindered(Hindrance.RECOVERY_FAILED, str(error))) from error

    # ------------------------------------------------------------------------------------------ copying

    async def _copy_all(
        self, ledger_id: int, versioned: Versioned, verdicts: Collection[Verdict], total: Copied
    ) -> Versioned | None:
        """Each fragment that needs it and may be copied. One that fails does not keep the others from it.

        Returns the record as it is now, if nobody else has changed it since it was judged; otherwise None.
        """
        stopped: _Stopped | None = None
        after: Versioned | None = versioned
        for verdict in verdicts:
            if not verdict.needs_copies or not verdict.fragment.is_fixed:
                continue
            try:
                now = await self._copy(ledger_id, after or versioned, verdict, total)
                after = now if after is not None else None
            except _Stopped as one:
                if stopped is None or one.outcome.kind is Hindrance.LOST:
                    stopped = one
        if stopped is not None:
            raise stopped
        return after

    async def _copy(self, ledger_id: int, versioned: Versioned, verdict: Verdict, total: Copied) -> Versioned | None:
        """Copy one fragment and publish it. Returns as `_publish`."""
        fragment, metadata = verdict.fragment, versioned.metadata
        writable = self._bookkeeper.bookies.writable
        in_place = {index: bookie for index, bookie in verdict.incomplete.items() if bookie in writable}
        leaving = {index: bookie for index, bookie in verdict.incomplete.items() if bookie not in writable}
        leaving |= verdict.to_replace
        attempt = self._attempts.attempt_at(ledger_id, fragment)
        new = self._choose(ledger_id, metadata, fragment, leaving, attempt)
        targets = {**in_place, **new}
        if not targets:
            names = ", ".join(sorted(leaving.values()))
            raise _Stopped(Hindered(Hindrance.NO_TARGET, await self._no_target(names)))
        gone = frozenset(verdict.gone.values())
        lost = await self._copy_entries(ledger_id, metadata, fragment, targets, gone, attempt, total)
        if lost:
            away = ", ".join(sorted(gone)) or "nobody is away"
            text = f"no bookie that is there has all entries of it (away: {away})"
            raise _Stopped(Hindered(Hindrance.LOST, text, lost=tuple(lost)))
        after = await self._publish(ledger_id, versioned, fragment, new) if new else versioned
        if after is not None and not await self._are_there(ledger_id, metadata, fragment, targets):
            after = None
        self._attempts.forget(ledger_id, fragment)
        if len(new) < len(leaving):
            names = ", ".join(sorted(bookie for index, bookie in leaving.items() if index not in new))
            raise _Stopped(Hindered(Hindrance.NO_TARGET, await self._no_target(names)))
        return after

    async def _are_there(
        self, ledger_id: int, metadata: LedgerMetadata, fragment: Fragment, targets: Mapping[int, str]
    ) -> bool:
        """Rule 2: the ends of what was copied, now that the record names it. Before, a bookie whose garbage collection
        keeps to no lock might have removed it."""
        replicas = self._bookkeeper.replicas(ledger_id, metadata)
        slots = asyncio.Semaphore(_READS_MAX)
        asked = [(bookie, entry_id) for index, bookie in targets.items() for entry_id in ends(fragment, index)]
        answers = await asyncio.gather(*(_ask(replicas, bookie, entry_id, slots) for bookie, entry_id in asked))
        return all(answer is Copy.PRESENT for answer in answers)

    def _choose(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        fragment: Fragment,
        leaving: Mapping[int, str],
        attempt: Attempt,
    ) -> dict[int, str]:
        """Position → the bookie that takes the place of the one in *leaving*, as far as there are any."""

        def without(avoided: Collection[str]) -> dict[int, str]:
            return self._bookkeeper.choose_replacements(
                fragment.ensemble,
                leaving,
                avoided,
                write_quorum=fragment.write_quorum,
                ack_quorum=metadata.ack_quorum,
                custom_metadata=metadata.custom_metadata,
                rng=_rng_of(ledger_id, fragment),
            )

        draining = frozenset(self._draining())
        new = without(draining | attempt.failed)
        if len(new) < len(leaving) and attempt.failed:
            attempt.failed.clear()
            new = without(draining)
        return new

    async def _mend_placement(
        self, ledger_id: int, versioned: Versioned, verdicts: Collection[Verdict], total: Copied
    ) -> bool:
        """Rule 6; whether something was moved. All copies are there."""
        metadata = versioned.metadata
        if not self._mends_placement or not metadata.is_closed:
            return False
        is_moved = False
        for fragment in (verdict.fragment for verdict in verdicts):
            moves = self._bookkeeper.choose_moves(
                fragment.ensemble,
                self._draining(),
                write_quorum=fragment.write_quorum,
                ack_quorum=metadata.ack_quorum,
                custom_metadata=metadata.custom_metadata,
                rng=_rng_of(ledger_id, fragment),
            )
            if not moves:
                continue
            attempt = self._attempts.attempt_at(ledger_id, fragment)
            if await self._copy_entries(ledger_id, metadata, fragment, moves, frozenset(), attempt, total):
                return True  # gone since it was judged
            versioned = await self._publish(ledger_id, versioned, fragment, moves) or versioned
            self._attempts.forget(ledger_id, fragment)
            is_moved = True
        return is_moved

    async def _copy_entries(
        self,
        ledger_id: int,
        metadata: LedgerMetadata,
        fragment: Fragment,
        targets: dict[int, str],
        gone: frozenset[str],
        attempt: Attempt,
        total: Copied,
    ) -> list[tuple[int, int]]:
        """Returns ranges of entries that are lost; empty: all were copied, and may be published."""
        if fragment.is_empty:
            return []
        replicas = self._bookkeeper.replicas(ledger_id, metadata)
        copier = FragmentCopier(replicas, fragment, targets, gone, self._pace, attempt.upto)
        try:
            if attempt.lost and await copier.are_lost(attempt.probed()):
                return attempt.lost
            if attempt.unreadable is not None:
                await copier.are_lost((attempt.unreadable,))  # or it is unreadable still
            attempt.lost, attempt.unreadable = [], None
            attempt.lost = (await copier.copy()).lost
        except CopyFailed as error:
            attempt.unreadable = error.unreadable
            if error.target is not None:
                attempt.failed.add(error.target)
            raise _Stopped(Hindered(Hindrance.COPY_FAILED, str(error))) from error
        finally:
            attempt.upto.update(copier.upto)
            total.entries += copier.copied.entries
            total.bytes += copier.copied.bytes
        return attempt.lost

    async def _no_target(self, leaving: str) -> str:
        why = await self._bookkeeper.bookies.shortage()
        return f"no writable bookie can take the place of {leaving}" + (f"; {why}" if why else "")

    async def _publish(
        self, ledger_id: int, versioned: Versioned, fragment: Fragment, new: dict[int, str]
    ) -> Versioned | None:
        """Rule 1. Returns the record as it is now; None: somebody else changed it, so it must be judged anew.

        Raises MetadataError, NoSuchLedger.
        """
        ensemble = tuple(new.get(index, bookie) for index, bookie in enumerate(fragment.ensemble))
        for attempt in range(_CONFLICTS_MAX):
            if attempt:
                versioned = await self._read(ledger_id)
            segments = {segment.first_entry_id: segment.ensemble for segment in versioned.metadata.segments}
            if segments.get(fragment.first_entry_id) != fragment.ensemble:
                return None
            changed = versioned.metadata.with_segment_replaced(fragment.first_entry_id, ensemble)
            try:
                written = await self._bookkeeper.ledgers.write(ledger_id, changed, versioned.version)
            except VersionConflict:
                continue
            except NoNode as error:
                raise NoSuchLedger(f"ledger {ledger_id} was deleted") from error
            log.info("ledger %d from entry %d on: %s", ledger_id, fragment.first_entry_id, _describe(fragment, new))
            return None if attempt else written
        raise _Stopped(Hindered(Hindrance.METADATA, f"{_CONFLICTS_MAX} changes of its record by others in a row"))

    # ----------------------------------------------------------------------------------------- metadata

    async def _read(self, ledger_id: int) -> Versioned:
        try:
            return await self._bookkeeper.ledgers.read(ledger_id)
        except NoNode as error:
            raise NoSuchLedger(f"ledger {ledger_id} does not exist") from error

    async def _forget(self, ledger_id: int) -> Outcome:
        """The ledger was deleted: its mark goes, too."""
        try:
            mark = await self._marks.read(ledger_id)
            if mark is not None:
                await self._marks.take_down(ledger_id, mark.version)
        except Corruption as error:
            return Hindered(Hindrance.UNREADABLE, str(error))
        except MetadataError as error:
            return Hindered(Hindrance.METADATA, str(error))
        return Repaired(is_deleted=True)


def _rng_of(ledger_id: int, fragment: Fragment) -> random.Random:
    """The same targets for each attempt of any node, as long as the bookies are the same (rule 7)."""
    return random.Random(f"{ledger_id}/{fragment.first_entry_id}")


async def _ask(replicas: LedgerReplicas, bookie: str, entry_id: int, slots: asyncio.Semaphore) -> Answer:
    async with slots:
        try:
            await replicas.read(bookie, entry_id)
        except (BookKeeperError, DigestMismatch) as error:
            return _as_answer(error)
        return Copy.PRESENT


def _as_answer(error: BookKeeperError | DigestMismatch) -> Answer:
    """Rule 1 of `checks`."""
    return Copy.MISSING if is_missing(error) or isinstance(error, DigestMismatch) else str(error)


def _describe(fragment: Fragment, new: dict[int, str]) -> str:
    return ", ".join(f"{bookie} takes the place of {fragment.ensemble[index]}" for index, bookie in new.items())
