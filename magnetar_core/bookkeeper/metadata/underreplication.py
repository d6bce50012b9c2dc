"""The paths of auto-recovery's marks, locks and votes, and the values of locks and votes. No IO.

The layout is Apache's `LedgerUnderreplicationManager`; all paths are below the root of the ledgers.
"""

import re
from typing import Final

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
    found = _VOTE.search(value)
    return found[1].decode("utf-8", "replace") if found else None
