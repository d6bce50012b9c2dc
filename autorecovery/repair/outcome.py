"""What became of one attempt to repair a ledger, and when the next one is due. No IO.

Rules (I71, I72):

1. Whatever keeps a ledger from being repaired has a kind and a text, and both are shown until it is repaired.
2. Waiting grows with each failure in a row up to a limit, which is higher where an attempt may write copies that are
   of no use afterwards. A ledger never holds up another one.
3. Entries that no bookie has that is there are not tried again by time: only when a bookie comes or goes, when the
   ledger is marked anew, or when an operator asks.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from magnetar_core.runtime.pauses import pause_after_s


class Hindrance(StrEnum):
    """Why a ledger is not repaired."""

    LOST = "lost"
    """Entries of it are on no bookie that is there."""
    SILENT = "silent"
    """Bookies do not answer, or say that they do not know."""
    NO_TARGET = "no-target"
    """No writable bookie is left that could take the place of a lost one."""
    COPY_FAILED = "copy-failed"
    """A copy could not be read, written or read back."""
    OPEN = "open"
    """Its writer may still replace the bookie; it is recovered after the grace period."""
    RECOVERY_FAILED = "recovery-failed"
    """It has no living writer, and too few bookies answer to find out where it ends."""
    UNREADABLE = "unreadable"
    """Its record in the metadata store cannot be read."""
    METADATA = "metadata"
    """The metadata store did not answer, or others changed the record all the time."""
    DEFECT = "defect"
    """An error in this program, which the log has with its traceback; other ledgers are repaired all the same."""


@dataclass(frozen=True, slots=True)
class Repaired:
    """Every copy is there, and the mark was taken down (or the ledger was deleted)."""

    copied_entries: int = 0
    copied_bytes: int = 0
    is_deleted: bool = False


@dataclass(frozen=True, slots=True)
class Hindered:
    """The ledger is not repaired yet; its mark stays."""

    kind: Hindrance
    text: str
    copied_entries: int = 0
    copied_bytes: int = 0
    lost: tuple[tuple[int, int], ...] = ()
    """Ranges of entries, first and last included; only with LOST."""


Outcome = Repaired | Hindered

# Kinds that end only with a change in the cluster (rule 3).
_WAITS_FOR_CHANGE: Final = frozenset({Hindrance.LOST})

# Kinds whose attempts may have written something, and by how much longer they wait at most: an hour instead of five
# minutes. What stopped them is looked at again when a bookie comes or goes, too.
_WROTE: Final = frozenset({Hindrance.COPY_FAILED, Hindrance.DEFECT})
_WROTE_FACTOR: Final = 12

# A missing target comes back as a bookie does, and the register reports that; this wait is only a safety net.
_FIRST_S: Final = 2.0


def retry_after_s(outcome: Hindered, failures: int, longest_s: float) -> float | None:
    """Seconds until the next attempt after *failures* in a row (at least 1); None: not by time (rule 3)."""
    assert failures >= 1
    assert longest_s > 0
    if outcome.kind in _WAITS_FOR_CHANGE:
        return None
    if outcome.kind in _WROTE:
        longest_s *= _WROTE_FACTOR
    return pause_after_s(failures, _FIRST_S, longest_s)


def describe(outcome: Hindered) -> str:
    """One line for people."""
    if not outcome.lost:
        return outcome.text
    ranges = ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in outcome.lost[:10])
    more = f" and {len(outcome.lost) - 10} more ranges" if len(outcome.lost) > 10 else ""
    return f"{outcome.text} (entries {ranges}{more})"
