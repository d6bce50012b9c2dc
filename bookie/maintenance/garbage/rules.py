"""Decides which ledgers may be deleted, which logs are compacted, and when. No IO.

How a ledger is removed from this bookie:

    local ──not listed──▶ point read says "no such ledger" ──▶ quarantine ──the same again in a later round──▶ deleted
                └── listed, or readable, or not known ──▶ stays

Rules:

1. Local ledgers are collected before the listing begins, so a ledger that is created meanwhile is not a candidate.
2. Each of two rounds must prove twice that a ledger is gone: the listing lacks it, and a read of its record finds none.
   Errors, damaged records and incomplete listings prove nothing (I41).
3. A listing that is empty, or that would delete too many ledgers at once, is refused until an operator accepts it. A
   metadata store that came back empty must not delete a disk's worth of ledgers: that cannot be undone, waiting can.
4. A ledger that is newer than the metadata is in doubt, and stays (`older_metadata`). Where nobody could see that at
   the time, many ledgers with higher numbers than all that are listed are refused as in rule 3.
5. A log without live ledgers may go; "without" is proven by its map if that adds up to the file, by a scan if the scan
   has no gaps, else by the index (I44).
"""

from collections.abc import Collection, Container, Iterable, Mapping
from enum import StrEnum
from typing import Final, NamedTuple

from bookie.maintenance.older_metadata.note import numbers_end

# Ledgers whose metadata one round reads; the others wait for the next round. At 1,000 reads a second it takes 10 s.
CANDIDATES_MAX: Final = 10_000


class RefusalCode(StrEnum):
    """Why a round deleted no ledger."""

    EMPTY_LISTING = "empty listing"
    SHRUNKEN_LISTING = "shrunken listing"
    OLDER_LISTING = "older listing"
    OTHER_CLUSTER = "other cluster"
    METADATA = "metadata not readable"


class Refusal(NamedTuple):
    code: RefusalCode
    text: str


class ListingLimits(NamedTuple):
    """The limits of rules 3 and 4."""

    refuse_empty: bool = True
    shrink_share: float = 0.5
    shrink_ledgers_min: int = 100


_HOW_TO_ACCEPT: Final = "If the ledgers were deleted on purpose, trigger a collection that accepts the listing."


def refuse_listing(local: int, unlisted: int, listed: int, before: int | None, limits: ListingLimits) -> Refusal | None:
    """Why a listing must not be acted upon; None if it may be.

    Of *local* ledgers here *unlisted* would be deleted. The listing has *listed* ledgers in all, the last accepted one
    had *before* (None: there was none).
    """
    if listed == 0 and limits.refuse_empty and local:
        return Refusal(
            RefusalCode.EMPTY_LISTING,
            f"the metadata store lists no ledger at all, and there are {local} here (gcRefuseEmptyListing). "
            + _HOW_TO_ACCEPT,
        )
    least = limits.shrink_ledgers_min
    if unlisted >= least and unlisted > local * limits.shrink_share:
        return Refusal(
            RefusalCode.SHRUNKEN_LISTING,
            f"{unlisted} of the {local} ledgers here are not listed any more, more than gcListingShrinkShare "
            f"({limits.shrink_share:.0%}) allows. {_HOW_TO_ACCEPT}",
        )
    if before is not None and before - listed >= least and listed < before * (1 - limits.shrink_share):
        return Refusal(
            RefusalCode.SHRUNKEN_LISTING,
            f"{listed} ledgers are listed, {before} were before: more than gcListingShrinkShare "
            f"({limits.shrink_share:.0%}) of them are gone. {_HOW_TO_ACCEPT}",
        )
    return None


def refuse_newer(unlisted: Collection[int], newest: int, limits: ListingLimits) -> Refusal | None:
    """Why a listing must not be acted upon that ends below much of what it would delete; None if it may be.

    In normal life a cluster makes ledgers all the time, so the newest that is listed is newer than most of what was
    deleted; where many topics are deleted and none is written to, the next ledger ends the refusal.
    """
    newer = sum(newest < ledger_id < numbers_end(newest) for ledger_id in unlisted)
    if newer < max(limits.shrink_ledgers_min, 1) or newer <= len(unlisted) * limits.shrink_share:
        return None
    return Refusal(
        RefusalCode.OLDER_LISTING,
        f"{newer} of the {len(unlisted)} ledgers here that are not listed are newer than {newest}, the newest that is: "
        f"are the metadata older than the ledgers (docs/production.md)? {_HOW_TO_ACCEPT}",
    )


class Quarantine:
    """Ledgers that were found absent once (rule 2)."""

    def __init__(self) -> None:
        self._absent: set[int] = set()

    def __len__(self) -> int:
        return len(self._absent)

    def candidates(self, unlisted: Collection[int]) -> list[int]:
        """Which of *unlisted* to read in this round; those that have waited longest come first."""
        known = [ledger_id for ledger_id in unlisted if ledger_id in self._absent]
        fresh = [ledger_id for ledger_id in unlisted if ledger_id not in self._absent]
        return (sorted(known) + sorted(fresh))[:CANDIDATES_MAX]

    def confirm(self, absent: Collection[int], unlisted: Collection[int]) -> list[int]:
        """The reads of this round found *absent*. Returns those that may be deleted now. A ledger that is listed again
        leaves the quarantine."""
        gone = sorted(ledger_id for ledger_id in absent if ledger_id in self._absent)
        listed_again = self._absent.difference(unlisted)
        self._absent = self._absent.difference(listed_again).union(absent).difference(gone)
        return gone

    def postpone(self, ledger_ids: Iterable[int]) -> None:
        """These could not be deleted now: the next round proves again that they are gone."""
        self._absent.update(ledger_ids)


class MovedCopies:
    """Copies that metadata does not assign to this bookie. One that is unchanged in two passes may be removed."""

    def __init__(self) -> None:
        self._before: dict[int, int] = {}
        self._seen: dict[int, int] = {}

    def begin(self) -> None:
        """Begin another pass."""
        self._before, self._seen = self._seen, {}

    def may_go(self, ledger_id: int, version: int, *, was_written: bool) -> bool:
        """Whether a closed ledger whose record, at *version*, names other bookies may be removed. *was_written*: it was
        written here since the last pass."""
        if self._before.get(ledger_id) == version and not was_written:
            return True
        self._seen[ledger_id] = version
        return False


# ------------------------------------------------------------------------------------------------ logs


class LogUsage(NamedTuple):
    """What an entry log holds; *bytes_of_ledgers* count the size words too."""

    log_id: int
    file_bytes: int
    bytes_of_ledgers: Mapping[int, int]
    is_whole: bool
    """The bytes add up to the file, so nothing in it is unknown."""

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes_of_ledgers.values())

    def live_bytes(self, ledgers: Container[int]) -> int:
        """Bytes of the ledgers that still exist. An upper limit: entries that were compacted into other logs count,
        too."""
        return sum(size for ledger_id, size in self.bytes_of_ledgers.items() if ledger_id in ledgers)


def dead_logs(usages: Iterable[LogUsage], ledgers: Container[int]) -> list[LogUsage]:
    """Logs whose ledgers are all deleted."""
    return [usage for usage in usages if not any(ledger_id in ledgers for ledger_id in usage.bytes_of_ledgers)]


def worth_compacting(usages: Iterable[LogUsage], ledgers: Container[int], threshold: float) -> list[LogUsage]:
    """Logs whose live share is below *threshold*, the emptiest first: they free most space for least work, and the next
    copies can use that space."""
    candidates: list[tuple[float, int, LogUsage]] = []
    for usage in usages:
        share = usage.live_bytes(ledgers) / (usage.total_bytes or 1)
        if share < threshold:
            candidates.append((share, usage.log_id, usage))
    return [usage for _, _, usage in sorted(candidates, key=lambda item: item[:2])]


def has_room(free_bytes: int, live_bytes: int, reserve_bytes: int, may_use_reserve: bool) -> bool:
    """Whether a copy of *live_bytes* fits beside what must stay free for flushes."""
    return free_bytes >= live_bytes + (0 if may_use_reserve else reserve_bytes)


# -------------------------------------------------------------------------------------------- schedule


class CompactionKind(StrEnum):
    MINOR = "minor"
    MAJOR = "major"


class Due(NamedTuple):
    """A compaction to do now."""

    kind: CompactionKind
    threshold: float
    forced: bool
    max_s: float | None


class KindPlan(NamedTuple):
    """The settings of one kind of compaction; a threshold or an interval of 0 switches it off."""

    threshold: float
    interval_s: float
    max_s: float | None


class CompactionSchedule:
    """When a compaction is due, and of which kind. A major one includes a minor one."""

    def __init__(self, minor: KindPlan, major: KindPlan, *, force_when_off: bool, now_s: float) -> None:
        self._plans = {CompactionKind.MINOR: minor, CompactionKind.MAJOR: major}
        self._force_when_off = force_when_off
        self._last_s = dict.fromkeys(CompactionKind, now_s)
        self.suspended = dict.fromkeys(CompactionKind, False)

    def due(self, now_s: float, forced: Collection[CompactionKind]) -> Due | None:
        """The compaction to do now. A suspended kind is never due, not even if forced."""
        for kind in (CompactionKind.MAJOR, CompactionKind.MINOR):
            plan = self._plans[kind]
            if self.suspended[kind]:
                continue
            if kind in forced and (plan.threshold > 0 or self._force_when_off):
                # Forced although switched off: compact every log that has any dead bytes.
                return Due(kind, plan.threshold or 1.0, True, plan.max_s)
            is_on = plan.threshold > 0 and plan.interval_s > 0
            if is_on and now_s - self._last_s[kind] >= plan.interval_s:
                return Due(kind, plan.threshold, False, plan.max_s)
        return None

    def done(self, kind: CompactionKind, now_s: float) -> None:
        self._last_s[kind] = now_s
        if kind is CompactionKind.MAJOR:
            self._last_s[CompactionKind.MINOR] = now_s
