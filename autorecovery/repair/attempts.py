"""What is remembered of fragments that could not be copied, so that trying again writes little. No IO.

Rules:

1. What stopped an attempt is looked at first by the next one: as long as it stands, nothing is copied.
2. The next attempt goes on where the last one ended: what a target confirmed and was read back is not written to it
   again, if it can be read there still.
3. A target that failed is the last choice, until all others have failed, too.
4. It is a hint. A fragment of which nothing is remembered (any more) is copied from its first entry.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from autorecovery.ledgers.checks import Fragment

# Fragments that are remembered, some 300 bytes each; the one that was tried longest ago is forgotten.
ATTEMPTS_MAX: Final = 1_000

# Lost entries that are looked for before anything is copied. One that is found is enough to try.
PROBED_MAX: Final = 64


@dataclass(slots=True)
class Attempt:
    """The attempts at one fragment."""

    lost: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of entries that no bookie had, first and last included; empty: lost entries did not stop it."""
    unreadable: int | None = None
    """The entry of which it was not known whether it is lost."""
    upto: dict[tuple[int, str], int] = field(default_factory=dict)
    """(position, bookie) → the bookie has what the position holds of entries before this one."""
    failed: set[str] = field(default_factory=set)
    """Targets that did not take or give back what was written to them."""

    def probed(self) -> list[int]:
        """Lost entries that are to be looked for first."""
        entry_ids: list[int] = []
        for first, last in self.lost:
            entry_ids += range(first, min(last, first + PROBED_MAX - len(entry_ids) - 1) + 1)
            if len(entry_ids) == PROBED_MAX:
                break
        return entry_ids


class Attempts:
    """The attempts of one node."""

    def __init__(self) -> None:
        self._attempts: OrderedDict[tuple[int, Fragment], Attempt] = OrderedDict()

    def attempt_at(self, ledger_id: int, fragment: Fragment) -> Attempt:
        """What is remembered of *fragment*; with another ensemble or end it counts as another fragment."""
        key = ledger_id, fragment
        attempt = self._attempts.setdefault(key, Attempt())
        self._attempts.move_to_end(key)
        if len(self._attempts) > ATTEMPTS_MAX:
            self._attempts.popitem(last=False)
        return attempt

    def forget(self, ledger_id: int, fragment: Fragment) -> None:
        """It was copied."""
        self._attempts.pop((ledger_id, fragment), None)
