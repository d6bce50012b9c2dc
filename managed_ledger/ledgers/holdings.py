"""What a successor needs of an open managed ledger to begin before it has read anything, and which ones changed. No IO.

Rule: holdings are hints. Whoever uses them reads what the metadata store says and goes by that; holdings that are old,
wrong or missing cost a read.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Never

from managed_ledger.position import Position

# Ledger ids, versions and entry ids are signed 64-bit numbers.
_LARGEST: Final = 2**63 - 1

# Cursors of one managed ledger that its holdings name. A successor finds the others by itself, as it does where there
# are no holdings.
CURSORS_MAX: Final = 20

# An empty result of reading records of ledgers before they are needed.
NOTHING_KNOWN: Final[Mapping[int, Never]] = MappingProxyType({})


class HeldCursor(NamedTuple):
    """The place of a durable cursor."""

    ledger_id: int
    """The ledger that has its state; -1: its node has it."""
    mark_delete_position: Position
    """As it was stored last."""


class Holdings(NamedTuple):
    """The holdings of one open managed ledger."""

    record_version: int
    """The version of the node of its record, as it was last read or written."""
    last_ledger_id: int
    """The ledger that is written; -1: the record names none."""
    cursors: Mapping[str, HeldCursor]
    """The places of cursors by name, at most `CURSORS_MAX`."""

    @property
    def ledger_ids(self) -> list[int]:
        """The ledgers that a successor recovers, as far as the holdings name them: the last one first."""
        ledger_ids = [self.last_ledger_id, *(cursor.ledger_id for cursor in self.cursors.values())]
        return [ledger_id for ledger_id in ledger_ids if ledger_id >= 0]


def to_json(holdings: Holdings) -> list[object]:
    """`[version, last ledger, {"cursor": [cursor ledger, ledger, entry], …}]`."""
    cursors = {name: [cursor.ledger_id, *cursor.mark_delete_position] for name, cursor in holdings.cursors.items()}
    return [holdings.record_version, holdings.last_ledger_id, cursors]


def from_json(value: object) -> Holdings | None:
    """What `to_json` made, and maybe more behind it in a later version; None for anything else."""
    if not isinstance(value, list) or len(value) < 3 or not isinstance(value[2], dict):
        return None
    cursors: dict[str, HeldCursor] = {}
    for name, place in value[2].items():
        if len(cursors) == CURSORS_MAX:
            break
        if not isinstance(place, list) or len(place) < 3 or not all(map(_is_number, place[:3])):
            return None
        cursors[str(name)] = HeldCursor(place[0], Position(place[1], place[2]))
    if not _is_number(value[0]) or not _is_number(value[1]):
        return None
    return Holdings(value[0], value[1], cursors)


def _is_number(value: object) -> bool:
    return type(value) is int and -1 <= value <= _LARGEST


class Changes:
    """Names of managed ledgers whose holdings changed since they were taken; each once, in the order of the changes."""

    def __init__(self) -> None:
        self._ledgers: dict[str, None] = {}
        self._moved: dict[str, None] = {}
        self.is_on = False
        """Whether names are noted: somebody takes them."""

    def note_ledgers(self, name: str) -> None:
        """Called when *name* has another last ledger, or another set of cursors."""
        if self.is_on:
            self._ledgers[name] = None

    def note_moved(self, name: str) -> None:
        """Called when a position of a cursor was stored."""
        if self.is_on:
            self._moved[name] = None

    def take_ledgers(self) -> list[str]:
        ledgers, self._ledgers = list(self._ledgers), {}
        return ledgers

    def take_moved(self, count_max: int) -> list[str]:
        """At most *count_max* of them, the oldest first; the others are for the next call."""
        names = [name for name, _ in zip(self._moved, range(count_max), strict=False)]
        for name in names:
            del self._moved[name]
        return names

    def forget(self, name: str) -> None:
        """Forget a managed ledger that is not open any more."""
        self._ledgers.pop(name, None)
        self._moved.pop(name, None)


UNHEARD: Final = Changes()
"""Stands for the changes of managed ledgers that nobody follows."""
