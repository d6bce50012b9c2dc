"""Where auto-recovery keeps its marks, locks and votes, and what stands in the short ones. No IO.

The layout is Apache's `LedgerUnderreplicationManager`; all paths are below the root of the ledgers.
"""

import re
from typing import Final

_VOTE: Final = re.compile(rb'bookieId:\s*"([^"]*)"')


def marks_path(root: str) -> str:
    """Above the marks, which stand four levels below it."""
    return f"{root}/underreplication/ledgers"


def mark_path(root: str, ledger_id: int) -> str:
    """There while copies of a ledger are known to be missing."""
    digits = f"{ledger_id:016x}"
    groups = "/".join(digits[at : at + 4] for at in range(0, 16, 4))
    return f"{marks_path(root)}/{groups}/urL{ledger_id:010d}"


def lock_path(root: str, ledger_id: int) -> str:
    """Held (ephemeral) by whoever copies a ledger."""
    return f"{root}/underreplication/locks/urL{ledger_id:010d}"


def lock_value(bookie_id: str) -> bytes:
    """What a lock holds: LockDataFormat as text."""
    return f'bookieId: "{bookie_id}"\n'.encode()


def disabled_path(root: str) -> str:
    """There while an operator has switched re-replication off."""
    return f"{root}/underreplication/disable"


def election_path(root: str) -> str:
    """Above the candidates (`V_…`, in order) for the auditor's place."""
    return f"{root}/underreplication/auditorelection"


def voter(value: bytes) -> str | None:
    """The bookie that a candidate's node names (AuditorVoteFormat as text); None if it names none."""
    found = _VOTE.search(value)
    return found[1].decode("utf-8", "replace") if found else None
