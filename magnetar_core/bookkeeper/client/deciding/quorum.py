"""Which bookies hold an entry, how many answers are enough, and when enough have been heard. No IO.

E bookies form the ensemble; entry e goes to the Qw of them at positions (e+i) mod E; Qa answers acknowledge it.

Coverage answers "could there be Qa bookies, all of one write set, that we have not heard?". If not, every
acknowledged entry has at least one holder among those heard, and no Qa unheard ones can acknowledge another.
"""

from functools import lru_cache
from typing import Final

from magnetar_core.bookkeeper.client.errors import BookKeeperError

# Each open ledger keeps its write sets in memory: 128 KB for an ensemble of this size. A larger ensemble would only
# spread one ledger over more bookies that may fail; a cluster's load is spread by its many ledgers.
ENSEMBLE_SIZE_MAX: Final = 128


def check_quorum(ensemble_size: int, write: int, ack: int) -> None:
    """Raises ImpossibleQuorum. Makes nothing, so it is safe to call with sizes of any magnitude."""
    if not 1 <= ack <= write <= ensemble_size:
        raise ImpossibleQuorum(
            f"ensemble size {ensemble_size}, write quorum {write}, ack quorum {ack}: "
            "they must not grow, and the last is at least 1"
        )
    if ensemble_size > ENSEMBLE_SIZE_MAX:
        raise ImpossibleQuorum(f"ensemble size {ensemble_size} is above the limit of {ENSEMBLE_SIZE_MAX} bookies")


class Quorum:
    """Sizes of one ledger, and the write sets that follow from them. Bookies are positions 0 … E-1."""

    __slots__ = ("ack", "ensemble_size", "masks", "write", "write_sets")

    def __init__(self, ensemble_size: int, write: int, ack: int) -> None:
        check_quorum(ensemble_size, write, ack)
        self.ensemble_size = ensemble_size
        self.write = write
        self.ack = ack
        self.write_sets = tuple(
            tuple((first + i) % ensemble_size for i in range(write)) for first in range(ensemble_size)
        )
        """The write set of entry e, at e mod E."""
        self.masks = tuple(sum(1 << index for index in members) for members in self.write_sets)
        """The write set of entry e as a bit mask, at e mod E."""

    @property
    def is_striped(self) -> bool:
        """Not every bookie of the ensemble holds every entry."""
        return self.write != self.ensemble_size

    @property
    def absence(self) -> int:
        """How many explicit negatives prove that fewer than Qa bookies hold an entry, so it was never acknowledged."""
        return self.write - self.ack + 1

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Positions that hold *entry_id*, in the order in which they are asked."""
        return self.write_sets[entry_id % self.ensemble_size]

    def holds(self, index: int, entry_id: int) -> bool:
        """Whether position *index* is in the write set of *entry_id*."""
        return bool(self.masks[entry_id % self.ensemble_size] >> index & 1)

    def is_covered(self, heard: int) -> bool:
        """*heard* (bit mask of positions) leaves fewer than Qa of each write set unheard."""
        return all((mask & ~heard).bit_count() < self.ack for mask in self.masks)

    def can_acknowledge_without(self, missing: int) -> bool:
        """Every entry can still reach Qa if the positions in *missing* (bit mask) never answer."""
        return all((mask & ~missing).bit_count() >= self.ack for mask in self.masks)


@lru_cache(maxsize=256)
def quorum_of(ensemble_size: int, write: int, ack: int) -> Quorum:
    """The same object for all ledgers of these sizes. Raises ImpossibleQuorum."""
    return Quorum(ensemble_size, write, ack)


class ImpossibleQuorum(BookKeeperError, ValueError):
    """Quorum sizes that contradict each other, or are beyond the limit."""
