"""Why a bookie takes no adds, and when a disk counts as full. No IO.

    disk       a directory is full; ends by itself below the low-water mark
    operator   an operator set it; ends when an operator clears it; survives a restart
    draining   its state in the metadata store says that it leaves; ends when that state is gone (`draining`)
    error      a directory cannot be checked; ends when it can
    forced     forceReadOnlyBookie; ends with the setting
    metadata   the metadata store is older than the ledgers here by more than a bookie corrects by itself; ends when
               newer metadata are there, or an operator gives these ledgers up

Rules:

1. Several reasons may hold at once. The bookie is writable when none is left.
2. A disk is full above one mark and has room again below a lower one, so that the mode does not change back and forth.
   With less than a number of free bytes it is full in any case.
3. `operator` and `draining` are kept in the file BOOKIE_STATUS of each ledger directory. Its first line is Apache's;
   our lines follow, which Apache's bookie does not read:

       1,READ_ONLY,1795242522795        layout, READ_ONLY or READ_WRITE, milliseconds
       reason draining replaced by b4   one line for each, with what the operator said
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from magnetar_core.runtime.types import Corruption

STATUS_FILE: Final = "BOOKIE_STATUS"
_LAYOUT_VERSION: Final = 1
_READ_ONLY: Final = "READ_ONLY"
_READ_WRITE: Final = "READ_WRITE"
_REASON_LINE: Final = "reason "

# What an operator may say about a reason: one line of a status file, and of a log.
DETAIL_CHARS_MAX: Final = 500


class Reason(StrEnum):
    """Why a bookie is read-only."""

    DISK = "disk"
    OPERATOR = "operator"
    DRAINING = "draining"
    ERROR = "error"
    FORCED = "forced"
    METADATA = "metadata"


KEPT: Final = (Reason.OPERATOR, Reason.DRAINING)
"""Reasons that survive a restart."""


class Reasons:
    """The reasons that hold at the moment, with a text for people."""

    def __init__(self) -> None:
        self._held: dict[Reason, str] = {}

    @property
    def held(self) -> Mapping[Reason, str]:
        return self._held

    @property
    def kept(self) -> dict[Reason, str]:
        """The reasons that the status file keeps (rule 3)."""
        return {reason: detail for reason, detail in self._held.items() if reason in KEPT}

    def set(self, reason: Reason, detail: str) -> None:
        self._held[reason] = " ".join(detail.split())[:DETAIL_CHARS_MAX]

    def clear(self, reason: Reason) -> None:
        self._held.pop(reason, None)

    def __bool__(self) -> bool:
        return bool(self._held)

    def texts(self) -> tuple[str, ...]:
        return tuple(f"{reason}: {detail}" if detail else str(reason) for reason, detail in self._held.items())


# ---------------------------------------------------------------------------------------------- disks


class DiskLimits(NamedTuple):
    """Shares are of the whole file system, 0 to 1."""

    full_share: float
    warn_share: float
    room_share: float
    full_bytes: int
    """With fewer free bytes than this, the disk is full whatever its share."""


class DiskState(StrEnum):
    """The state of a directory's file system."""

    GOOD = "good"
    WARN = "warn"
    FULL = "full"
    UNREADABLE = "unreadable"
    READ_ONLY = "read-only"
    """The file system takes no writes at all."""


class DiskCheck(NamedTuple):
    """The result of one check of one directory."""

    directory: str
    state: DiskState
    free_bytes: int
    total_bytes: int
    text: str
    """A text for people; empty when the state is GOOD."""


def check_disk(directory: str, total_bytes: int, free_bytes: int, was_full: bool, limits: DiskLimits) -> DiskCheck:
    """Judge a directory's file system; *was_full*: the result of the check before (rule 2)."""
    used = 1 - free_bytes / total_bytes if total_bytes else 1.0
    state = DiskState.GOOD
    if used > (limits.room_share if was_full else limits.full_share) or free_bytes < limits.full_bytes:
        state = DiskState.FULL
    elif used > limits.warn_share:
        state = DiskState.WARN
    text = ""
    if state is not DiskState.GOOD:
        mark = f"diskUsageThreshold {limits.full_share:.1%}"
        if state is DiskState.FULL and free_bytes < limits.full_bytes:
            mark = f"{limits.full_bytes} are needed"
        elif was_full and used <= limits.full_share:
            mark = f"diskUsageLwmThreshold {limits.room_share:.1%}"
        text = f"{directory}: {used:.1%} of the disk is used, {free_bytes} bytes are free ({mark})"
    return DiskCheck(directory, state, free_bytes, total_bytes, text)


class Verdict(NamedTuple):
    """What the checks of all directories mean together."""

    disk: str | None
    """Why adds are refused; None if the disks have room."""
    error: str | None
    full_ledger_directories: frozenset[int] | None
    """Numbers of the ledger directories whose ledgers take no adds, if only those are refused; else None."""
    free_bytes: int
    """Free bytes of the directory that has the fewest."""


def judge(ledgers: Sequence[DiskCheck], journals: Sequence[DiskCheck], on_any_full: bool) -> Verdict:
    """One full journal directory makes the bookie read-only. A full ledger directory does if *on_any_full*, or if all
    of them are full."""
    checks = (*ledgers, *journals)
    broken = (DiskState.UNREADABLE, DiskState.READ_ONLY)
    error = "; ".join(dict.fromkeys(check.text for check in checks if check.state in broken)) or None
    free_bytes = min(check.free_bytes for check in checks)
    full_ledgers = [number for number, check in enumerate(ledgers) if check.state is DiskState.FULL]
    journal_full = any(check.state is DiskState.FULL for check in journals)
    text = "; ".join(dict.fromkeys(check.text for check in checks if check.state is DiskState.FULL))
    if journal_full or (full_ledgers and (on_any_full or len(full_ledgers) == len(ledgers))):
        return Verdict(text, error, None, free_bytes)
    return Verdict(None, error, frozenset(full_ledgers) or None, free_bytes)


# ---------------------------------------------------------------------------------------- status file


class Status(NamedTuple):
    """The content of a status file."""

    changed_ms: int
    kept: dict[Reason, str]


def encode_status(kept: Mapping[Reason, str], wall_ms: int) -> bytes:
    mode = _READ_ONLY if kept else _READ_WRITE
    lines = [f"{_LAYOUT_VERSION},{mode},{wall_ms}"]
    lines += [f"{_REASON_LINE}{reason} {detail}".rstrip() for reason, detail in kept.items()]
    return ("\n".join(lines) + "\n").encode()


def decode_status(data: bytes, path: str) -> Status:
    """A status file, ours or Apache's. Raises Corruption.

    Newer versions of Apache's bookie add a word: true if an operator set the mode, false if a disk was full. The latter
    is not kept, since disks are checked anyway. Without the word an operator is assumed, because an operator can undo
    it.
    """
    lines = data.decode("utf-8", "replace").splitlines()
    fields = lines[0].strip().split(",") if lines else []
    try:
        if len(fields) not in (3, 4) or int(fields[0]) != _LAYOUT_VERSION:
            raise ValueError
        if fields[1] not in (_READ_ONLY, _READ_WRITE):
            raise ValueError
        changed_ms = int(fields[2])
    except ValueError:
        raise Corruption(
            f"{path}: {lines[0] if lines else ''!r}, expected 1,READ_ONLY|READ_WRITE,<milliseconds>; "
            "remove the file if the bookie may be written, or write it anew"
        ) from None
    if fields[1] == _READ_WRITE or fields[3:] == ["false"]:
        return Status(changed_ms, {})
    kept: dict[Reason, str] = {}
    for line in lines[1:]:
        name, _, detail = line.removeprefix(_REASON_LINE).partition(" ")
        if line.startswith(_REASON_LINE) and name in tuple(KEPT):
            kept[Reason(name)] = detail
    return Status(changed_ms, kept or {Reason.OPERATOR: f"{STATUS_FILE} says so"})
