"""The auditor's check of placement: are the copies of each ledger in enough regions, racks and on enough hosts?

    due ──▶ all ledgers, some at a time ──▶ which windows lack any of them (`topology`) ──▶ shown
              │    spread over the time                                                      └─▶ marked, if moving is on
              └─ where it is and what it found is stored, for the next auditor

Rules:

1. Only closed ledgers count: the writer of another one chooses its bookies.
2. A ledger is marked, with an empty list of replicas as Apache's auditor does, only where a better place for some copy
   is known now: else workers would find nothing to do, and the next check would mark it again.
3. A check that could not read everything has not taken place: it goes on where it was. A record that is damaged does
   not stop it.
4. Where all bookies are on one host, nothing is a violation (`topology`).
5. It is due, and takes about half of its period, as other checks (`due_check`), so that it marks ledgers bit by bit.
"""

import asyncio
import json
import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from autorecovery.audit.due_check import DueCheck
from autorecovery.ledgers.catalogue import LedgerCatalogue
from autorecovery.ledgers.index import IndexedLedger
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.marks.underreplication import PeriodicCheck
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.data.json_text import parse_json

log = logging.getLogger(__name__)

# Ledgers that are looked at between two rests, in some 10 ms. Where the check is, is stored as often.
_BATCH: Final = 256

# Ledgers that are named with what they lack; the others are only counted.
_NAMED_MAX: Final = 100


@dataclass(slots=True)
class PlacementStatus:
    """What the last check found, for people."""

    is_running: bool = False
    looked_at: int = 0
    """Closed ledgers."""
    violating: int = 0
    """Closed ledgers with copies in too few regions, racks or hosts."""
    marked: int = 0
    """Closed ledgers that can be placed better, and are to be moved."""
    named: dict[int, str] = field(default_factory=dict)
    """Ledger → what it lacks, for the first ledgers only."""
    last_ended_ms: int | None = None


class Progress(NamedTuple):
    """How far a check has come."""

    next_ledger_id: int
    status: PlacementStatus
    """What it found before that ledger."""


_COUNTS: Final = ("looked_at", "violating", "marked")


def encode_progress(progress: Progress) -> bytes:
    """The value of its node, JSON; 10 KB at most."""
    status = progress.status
    counts = {name: getattr(status, name) for name in _COUNTS}
    return json.dumps({"next_ledger_id": progress.next_ledger_id, **counts, "named": status.named}).encode()


def decode_progress(value: bytes) -> Progress:
    """Raises ValueError."""
    try:
        stored = parse_json(value)
        numbers = [stored[name] for name in ("next_ledger_id", *_COUNTS)]
        named = {int(ledger_id): str(text) for ledger_id, text in stored["named"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise ValueError(f"its numbers are {numbers!r}")
    looked_at, violating, marked = numbers[1:]
    return Progress(numbers[0], PlacementStatus(looked_at=looked_at, violating=violating, marked=marked, named=named))


class PlacementCheck(DueCheck):
    """The check of one auditor. Used on the loop."""

    def __init__(
        self,
        period_s: float,
        bookkeeper: BookKeeper,
        catalogue: LedgerCatalogue,
        marks: MarkBoard,
        clock: Clock,
        *,
        marks_violations: bool,
    ) -> None:
        """*period_s* 0: never by itself. *marks_violations*: have workers move copies (rule 2)."""
        super().__init__("placement", "placement check", PeriodicCheck.PLACEMENT, period_s, marks, clock)
        self._bookkeeper = bookkeeper
        self._catalogue = catalogue
        self._marks_violations = marks_violations
        self.status: PlacementStatus = PlacementStatus()

    async def _check(self) -> None:
        progress = await self._read_progress()
        status = progress.status
        status.is_running, status.last_ended_ms = True, self.status.last_ended_ms
        self.status = status
        index = await self._catalogue.read()
        left = deque(sorted(ledger_id for ledger_id in index if ledger_id >= progress.next_ledger_id))
        rest_s = self._period_s / 2 * _BATCH / len(left) if left else 0.0
        while left:
            for _ in range(min(_BATCH, len(left))):
                ledger_id = left.popleft()
                metadata = index.get(ledger_id)
                if metadata is not None and metadata.is_closed:  # rule 1
                    await self._look_at(ledger_id, metadata, status)
            if left:
                await self._store_progress(Progress(left[0], status))
                await self._pause_after(rest_s)
        await self._end()
        log.log(
            logging.WARNING if status.violating else logging.INFO,
            "placement check: of %d closed ledgers, %d have copies in too few regions, racks or hosts; %d are to be "
            "moved",
            status.looked_at,
            status.violating,
            status.marked,
        )

    async def _look_at(self, ledger_id: int, ledger: IndexedLedger, status: PlacementStatus) -> None:
        """Raises MetadataError."""
        problem, can_be_better = self._judge_ledger(ledger)
        if can_be_better and await self._marks.is_enabled() and await self._may_move(ledger_id, ledger):
            await self._marks.mark(ledger_id, None, self._clock.wall_ms())
            status.marked += 1
        status.looked_at += 1
        if problem is not None:
            status.violating += 1
            if len(status.named) < _NAMED_MAX:
                status.named[ledger_id] = problem

    async def _pause_after(self, seconds: float) -> None:
        """Rule 5. Raises MetadataError."""
        await asyncio.sleep(0)
        await self._wait(seconds)
        await self._until_enabled()

    async def _read_progress(self) -> Progress:
        """Where a former check stopped, and what it had found; the beginning if there is none. Raises MetadataError."""
        value = await self._marks.progress(self.name)
        if value is None:
            return Progress(0, PlacementStatus())
        try:
            return decode_progress(value)
        except ValueError as error:
            log.warning("how far the placement check was cannot be read, so it begins anew: %s", error)
            return Progress(0, PlacementStatus())

    async def _store_progress(self, progress: Progress) -> None:
        await self._marks.set_progress(self.name, encode_progress(progress))

    async def _may_move(self, ledger_id: int, ledger: IndexedLedger) -> bool:
        """Whether some copy of a ledger has a better place. A record may limit its ledger to groups of bookies: then
        only those count."""
        try:
            metadata = await self._bookkeeper.read_metadata(ledger_id)
        except BookKeeperError:
            return False  # deleted, or looked at again in the next check
        return any(
            self._bookkeeper.choose_moves(
                ensemble,
                write_quorum=ledger.write_quorum,
                ack_quorum=metadata.ack_quorum,
                custom_metadata=metadata.custom_metadata,
            )
            for ensemble in dict.fromkeys(ledger.ensembles)
        )

    def _judge_ledger(self, ledger: IndexedLedger) -> tuple[str | None, bool]:
        """What the ledger lacks, and whether that is to be mended and can be."""
        problem = None
        topology = self._bookkeeper.topology()
        available = self._bookkeeper.bookies.available
        for ensemble in dict.fromkeys(ledger.ensembles):
            violations = topology.violations(ensemble, ledger.write_quorum, available)
            if not violations:
                continue
            problem = problem or violations[0].text
            if not self._marks_violations:
                break
            if self._bookkeeper.choose_moves(ensemble, write_quorum=ledger.write_quorum):
                return problem, True
        return problem, False
