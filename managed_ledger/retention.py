"""When to roll over to a new ledger, and which old ledgers may go. No IO.

The rules are those of Apache's `ManagedLedgerImpl`.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from managed_ledger.position import Position


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloverRule:
    """A ledger is full by entries, bytes or age; by entries or bytes not before its minimal age."""

    entries_max: int
    bytes_max: int
    age_max_ms: int
    age_min_ms: int
    idle_max_ms: int = 0
    """A ledger is also full when nothing was written to it for so long; 0: never for that reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    """How long consumed ledgers are kept. -1: no limit of that kind; both 0: they are not kept at all."""

    time_ms: int = 0
    bytes_max: int = 0


class LedgerSummary(NamedTuple):
    """A closed ledger: entries, payload bytes, and when it was closed (ms)."""

    ledger_id: int
    entries: int
    size_bytes: int
    closed_ms: int


def is_full(rule: RolloverRule, entries: int, size_bytes: int, age_ms: int, idle_ms: int = 0) -> bool:
    """Whether the open ledger should be closed; an empty one never is. *idle_ms*: nothing was written for so long."""
    if entries == 0:
        return False
    if 0 < rule.idle_max_ms <= idle_ms:
        return True
    if rule.age_max_ms > 0 and age_ms >= rule.age_max_ms:
        return True
    return (entries >= rule.entries_max or size_bytes >= rule.bytes_max) and age_ms >= rule.age_min_ms


def trimmable(
    closed: Iterable[LedgerSummary],
    slowest: Callable[[], Position | None],
    rule: RetentionRule,
    now_ms: int,
    total_bytes: int,
) -> list[int]:
    """Ids of the ledgers that may be deleted: the first ones of *closed*, which is oldest first.

    This is called each time that a cursor is stored. So it stops at the first ledger that stays, and does not call
    *slowest* where retention keeps all.

    *slowest* gives the lowest persisted mark-delete position of all durable cursors; None if there are none.
    *total_bytes* is the size of the whole topic, the open ledger included; it counts only with a limit of bytes.
    """
    ledger_ids: list[int] = []
    remaining = total_bytes
    slowest_position = functools.cache(slowest)
    for ledger in closed:
        remaining -= ledger.size_bytes
        expired = rule.time_ms == 0 or 0 <= rule.time_ms < now_ms - ledger.closed_ms
        is_above_size = rule.bytes_max == 0 or 0 < rule.bytes_max <= remaining
        if not (expired or is_above_size):
            break
        if (position := slowest_position()) is not None and position < (ledger.ledger_id, ledger.entries - 1):
            break
        ledger_ids.append(ledger.ledger_id)
    return ledger_ids
