"""Checks that look at every copy of every ledger, slowly: the ends of each copy, all entries, or what bookies list.

    due ──▶ ledger by ledger, ids ascending, spread over the time ──▶ what is missing is marked ──▶ end: time is noted
              └─ where it is, every few seconds, for the next auditor

Rules:

1. When it is due, and that it takes about half of its period: `due_check`.
2. Where all entries of a ledger are read, they are spread over the ledger's share of that, or ten minutes.
3. A ledger is marked for bookies that are gone and for those that say that they lack an entry. A bookie that does
   not answer is only counted and reported (`checks`, rule 1). One that is gone and has time left is left to the audit.
4. One ledger that cannot be looked at does not end the check.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from autorecovery.audit.due_check import DueCheck
from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.checks import Depth, is_trailing
from autorecovery.repair.one_ledger import LedgerRepair, OnRead
from magnetar_core.bookkeeper.client.errors import BookKeeperError, NoSuchLedger
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import LedgerMetadata
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from magnetar_core.bookkeeper.metadata.stores.store import NoNode
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.json_text import parse_json
from magnetar_core.runtime.rate_limiter import RateLimiter
from magnetar_core.runtime.types import GIB, Corruption

log = logging.getLogger(__name__)

# The position of a check is stored so often.
_NOTE_S: Final = 5.0

# Waiting between two ledgers is done in steps of this, so that switches and operators are noticed meanwhile.
_STEP_S: Final = 5.0

# The entries of one ledger are read within this: meanwhile the next auditor would begin with the ledger anew.
_LEDGER_S_MAX: Final = 600.0

# Bytes around the payload of an entry, at most; and the bytes that a ledger that is still written counts for.
_AROUND_BYTES: Final = 64
_OPEN_BYTES: Final = 1 * GIB


class CheckKind(NamedTuple):
    """One kind of check."""

    name: str
    depth: Depth
    noted: PeriodicCheck | None
    """Apache's node for the end of the last run; None: the check is ours, and a node of ours has it."""


ENDS: Final = CheckKind("ledgers", Depth.ENDS, PeriodicCheck.ALL_LEDGERS)
ENTRIES: Final = CheckKind("entries", Depth.ALL, None)
LISTS: Final = CheckKind("lists", Depth.LISTS, PeriodicCheck.REPLICAS)
"""Apache's check of replicas. It marks what it finds, where Apache's only counts."""


@dataclass(slots=True)
class CheckStatus:
    """What one check did, for people."""

    is_running: bool = False
    looked_at: int = 0
    """Ledgers of this run, or of the last one; those of a former auditor are not counted."""
    marked: int = 0
    silent: int = 0
    """Ledgers of which some bookie did not answer."""
    failed: int = 0
    """Ledgers that could not be looked at."""
    next_ledger_id: int = 0
    last_ended_ms: int | None = None


class LedgerCheck(DueCheck):
    """One periodic check. Used on the loop, by the auditor's node."""

    def __init__(
        self,
        kind: CheckKind,
        period_s: float,
        catalogue: LedgerCatalogue,
        ledgers: LedgerStore,
        marks: MarkBoard,
        repair: LedgerRepair,
        clock: Clock,
        *,
        has_time_left: Callable[[str], bool],
    ) -> None:
        """*period_s* 0: never by itself. *has_time_left*: whether a bookie that is gone may still come back before its
        ledgers are to be marked."""
        super().__init__(kind.name, f"check of {kind.name}", kind.noted, period_s, marks, clock)
        self._depth = kind.depth
        self._catalogue = catalogue
        self._ledgers = ledgers
        self._repair = repair
        self._has_time_left = has_time_left
        self.status: CheckStatus = CheckStatus()

    # ------------------------------------------------------------------------------------- one check

    async def _check(self) -> None:
        first = await self._progress() or 0
        index = await self._catalogue.read()
        ids = sorted(ledger_id for ledger_id in {*index, *index.unreadable} if ledger_id >= first)
        self.status = CheckStatus(is_running=True, last_ended_ms=self.status.last_ended_ms)
        log.info("the check of %s begins with ledger %d; %d are to be looked at", self.name, first, len(ids))
        rest_s = self._period_s / 2 / len(ids) if ids else 0.0
        noted_s = self._clock.monotonic()
        for ledger_id in ids:
            self.status.next_ledger_id = ledger_id
            if self._clock.monotonic() - noted_s >= _NOTE_S:
                await self._store_progress(ledger_id)
                noted_s = self._clock.monotonic()
            began_s = self._clock.monotonic()
            await self._check_ledger(ledger_id, rest_s)
            await self._pause_after(ledger_id, rest_s - (self._clock.monotonic() - began_s))
        await self._end()
        status = self.status
        log.info(
            "the check of %s has ended: %d ledgers, %d marked, of %d some bookie was silent",
            self.name,
            status.looked_at,
            status.marked,
            status.silent,
        )

    async def _check_ledger(self, ledger_id: int, seconds: float) -> None:
        status = self.status
        status.looked_at += 1
        try:
            metadata = (await self._ledgers.read(ledger_id)).metadata
            spread = self._spread_reads(metadata, min(seconds, _LEDGER_S_MAX))
            verdicts = await self._repair.look(ledger_id, metadata, self._depth, on_read=spread)
        except (NoNode, NoSuchLedger):
            return
        except (Corruption, BookKeeperError) as error:
            status.failed += 1
            log.warning("ledger %d cannot be checked: %s", ledger_id, error)
            return
        counting = [verdict for verdict in verdicts if not is_trailing(metadata, verdict.fragment.first_entry_id)]
        gone = {bookie for verdict in counting for bookie in verdict.gone.values()}
        lacking = {bookie for verdict in counting for bookie in verdict.incomplete.values()}
        lacking |= {bookie for bookie in gone if not self._has_time_left(bookie)}
        for bookie in sorted(lacking):
            await self._marks.mark(ledger_id, bookie, self._clock.wall_ms())
        status.marked += bool(lacking)
        silent = [text for verdict in verdicts for text in verdict.unknown.values()]
        if silent:
            status.silent += 1
            log.info("ledger %d: %s", ledger_id, silent[0])

    def _spread_reads(self, metadata: LedgerMetadata, seconds: float) -> OnRead:
        """Have the entries of a ledger read within about *seconds* (rule 2)."""
        size = _OPEN_BYTES
        if metadata.is_closed:
            size = metadata.length + (metadata.last_entry_id + 1) * _AROUND_BYTES
        limiter = RateLimiter(max(size, 1) * metadata.write_quorum / seconds) if seconds > 0 else None

        async def wait(read_bytes: int) -> None:
            if limiter is not None:
                wait_s = limiter.spend(self._clock.monotonic(), read_bytes)
                await self._wait(wait_s)

        return wait

    async def _pause_after(self, ledger_id: int, seconds: float) -> None:
        """Rule 2. Raises MetadataError."""
        while seconds > 0 and not self._is_asked:
            step_s = min(seconds, _STEP_S)
            await self._wait(step_s)
            seconds -= step_s
            if step_s == _STEP_S:
                await self._store_progress(ledger_id + 1)
        await self._until_enabled()

    # ---------------------------------------------------------------------------------------- progress

    async def _progress(self) -> int | None:
        """The ledger at which a former run stopped; None: no run is to be continued."""
        value = await self._marks.progress(self.name)
        if value is None:
            return None
        try:
            next_ledger_id = parse_json(value)["next_ledger_id"]
            if not isinstance(next_ledger_id, int) or next_ledger_id < 0:
                raise ValueError(f"next_ledger_id is {next_ledger_id!r}")
        except (ValueError, KeyError, TypeError) as error:
            log.warning("how far the check of %s was cannot be read, so it begins anew: %s", self.name, error)
            return 0
        return next_ledger_id

    async def _store_progress(self, next_ledger_id: int) -> None:
        await self._marks.set_progress(self.name, json.dumps({"next_ledger_id": next_ledger_id}).encode())
