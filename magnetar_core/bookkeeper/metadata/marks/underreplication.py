"""The paths of auto-recovery's marks, locks and votes, and the values of locks and votes. No IO.

The layout is Apache's `LedgerUnderreplicationManager`; all paths are below the root of the ledgers.
"""

import re
from enum import StrEnum
from typing import Final, NamedTuple

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from magnetar_core.bookkeeper.metadata.formats_pb2 import (
    AuditorVoteFormat,
    CheckAllLedgersFormat,
    UnderreplicatedLedgerFormat,
)
from magnetar_core.runtime.types import Corruption

_VOTE: Final = re.compile(rb'bookieId:\s*"([^"]*)"')


def marks_path(root: str) -> str:
    """The parent of all marks, which are four levels below it."""
    return f"{root}/underreplication/ledgers"


def mark_path(root: str, ledger_id: int) -> str:
    """The mark of a ledger: it exists while copies of the ledger are known to be missing."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{marks_path(root)}/{groups}/urL{ledger_id:010d}"


def lock_path(root: str, ledger_id: int) -> str:
    """The lock (ephemeral) of the bookie that copies a ledger."""
    return f"{root}/underreplication/locks/urL{ledger_id:010d}"


def lock_value(bookie_id: str) -> bytes:
    """The value of a lock: LockDataFormat as text."""
    return f'bookieId: "{bookie_id}"\n'.encode()


def disabled_path(root: str) -> str:
    """This node exists while an operator has switched re-replication off."""
    return f"{root}/underreplication/disable"


def election_path(root: str) -> str:
    """The parent of the candidates (`V_…`, in order) for the role of the auditor."""
    return f"{root}/underreplication/auditorelection"


def voter(value: bytes) -> str | None:
    """The bookie that a candidate's node names (AuditorVoteFormat as text); None if it names none."""
    vote = _VOTE.search(value)
    return vote[1].decode("utf-8", "replace") if vote else None


def layout_path(root: str) -> str:
    """Which manager wrote the marks."""
    return f"{root}/underreplication/LAYOUT"


def locks_path(root: str) -> str:
    """The parent of the locks."""
    return f"{root}/underreplication/locks"


def delay_path(root: str) -> str:
    """How long a lost bookie may stay away, decimal seconds; writing it, even the same number, asks for an audit."""
    return f"{root}/underreplication/lostBookieRecoveryDelay"


def checked_path(root: str, check: "PeriodicCheck") -> str:
    """When a periodic check last ended."""
    return f"{root}/underreplication/{check.value}"


def progress_path(root: str, name: str) -> str:
    """How far a check that takes long has come. The node is ours; Apache's auditors leave it alone."""
    return f"{root}/underreplication/magnetar/{name}"


def drains_path(root: str) -> str:
    """The parent of what drains have moved and not proved yet; ours, as `progress_path`."""
    return f"{root}/underreplication/magnetar/drains"


def turned_path(root: str) -> str:
    """The parent of the bookies that drains turned read-only through their HTTP; ours, as `progress_path`."""
    return f"{root}/underreplication/magnetar/turned"


def problems_path(root: str) -> str:
    """The parent of what workers say about ledgers that they could not repair; ours, as `progress_path`."""
    return f"{root}/underreplication/magnetar/problems"


def nodes_path(root: str) -> str:
    """The parent of what each of our nodes says about itself (ephemeral); ours, as `progress_path`."""
    return f"{root}/underreplication/magnetar/nodes"


class PeriodicCheck(StrEnum):
    """The auditor's checks whose last run is remembered, by the name of their node."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


class Mark(NamedTuple):
    """What is written about a ledger that lacks copies. *replicas* may be empty: its placement must be mended."""

    replicas: tuple[str, ...] = ()
    """Bookies whose copies are missing or wrong, in the order in which they were reported."""
    marked_ms: int | None = None
    """Wall clock of the first mark; None: not recorded."""


LAYOUT: Final = b'type: "BASIC"\nversion: 1\n'

_MARK_NAME: Final = re.compile(r"urL(\d{10,19})")


def ledger_id_of(name: str) -> int | None:
    """The ledger that a mark's or lock's node is about; None for any other name."""
    match = _MARK_NAME.fullmatch(name)
    return int(match[1]) if match else None


def encode_mark(mark: Mark) -> bytes:
    """UnderreplicatedLedgerFormat as text."""
    message = UnderreplicatedLedgerFormat(replica=mark.replicas)
    if mark.marked_ms is not None:
        message.ctime = mark.marked_ms
    return text_format.MessageToString(message).encode()


def decode_mark(value: bytes) -> Mark:
    """Raises Corruption."""
    message = UnderreplicatedLedgerFormat()
    try:
        text_format.Parse(value.decode(), message, allow_unknown_field=True)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise Corruption(f"a mark of an under-replicated ledger, {value[:60]!r}: {error}") from error
    return Mark(tuple(message.replica), message.ctime if message.HasField("ctime") else None)


def encode_vote(bookie_id: str) -> bytes:
    """AuditorVoteFormat as text."""
    return text_format.MessageToString(AuditorVoteFormat(bookieId=bookie_id)).encode()


def encode_checked(check: PeriodicCheck, wall_ms: int) -> bytes:
    """When *check* ended, as Apache's binary message of that check."""
    # All three messages have this one field under number 1, so their bytes are the same.
    assert check in tuple(PeriodicCheck)
    return CheckAllLedgersFormat(checkAllLedgersCTime=wall_ms).SerializeToString()


def decode_checked(value: bytes) -> int | None:
    """Wall-clock milliseconds; None where none are written. Raises Corruption."""
    try:
        message = CheckAllLedgersFormat.FromString(value)
    except DecodeError as error:
        raise Corruption(f"the time of a periodic check, {value[:60]!r}: {error}") from error
    return message.checkAllLedgersCTime if message.HasField("checkAllLedgersCTime") else None


def encode_delay(seconds: int) -> bytes:
    """*seconds* that a lost bookie may stay away."""
    assert seconds >= 0
    return b"%d" % seconds


def decode_delay(value: bytes) -> int:
    """Seconds. Raises Corruption."""
    if not value.strip().isdigit():
        raise Corruption(f"lostBookieRecoveryDelay is {value[:60]!r}, expected decimal seconds")
    return int(value)
