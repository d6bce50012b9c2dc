"""Which messages are left of the batches that a call has acknowledged in part. No IO and no clock.

Rules:

1. A batch has one size. An id that says another one is refused; one of a batch that was never delivered here, and
   says more than such a batch may have, is passed over (`broker.topic.clients.batch_sizes`).
2. What is kept has a limit: a client may send any ids, also those of entries that it never received.
3. Batches that are acknowledged as a whole by now, and of which an ack came once more or which others acknowledged, are
   looked for as new ones come, and forgotten: a program that acknowledges twice would come to the limit some day.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from broker.errors import TooManyRequests
from broker.topic.clients.batch_sizes import BatchSizes
from magnetar_core.runtime.types import MIB
from managed_ledger.messages import BATCH_MESSAGES_MAX
from managed_ledger.position import Position

# What the batches of one call may take in memory: room for 190,000 batches of 1,000 messages, more than a consumer of
# the Shared types may have unacknowledged anyway. A call that comes to it has acknowledged a part of each of them.
PARTIAL_BYTES_MAX: Final = 64 * MIB

# A batch's place in the dict, its position, and its two numbers.
_OVERHEAD_BYTES: Final = 216

# Batches that are looked at for each new one (rule 3).
_LOOKED_AT: Final = 2


def _nothing_is_done(position: Position) -> bool:
    return False


class PartialBatches:
    """Position → the messages that are left, as bits."""

    __slots__ = ("_bytes", "_bytes_max", "_is_done", "_known", "_round", "sizes")

    def __init__(
        self, bytes_max: int = PARTIAL_BYTES_MAX, is_done: Callable[[Position], bool] = _nothing_is_done
    ) -> None:
        """*is_done*: whether the subscription has acknowledged an entry."""
        self._known: dict[Position, tuple[int, int]] = {}
        self._is_done = is_done
        self._round: Iterator[Position] = iter(())
        """Those that are still to be looked at in this round."""
        self._bytes = 0
        self._bytes_max = bytes_max
        self.sizes = BatchSizes()

    def __len__(self) -> int:
        return len(self._known)

    def left(self, position: Position, whole: int) -> int:
        """What is left of a batch; *whole* if none of it is acknowledged."""
        entry = self._known.get(position)
        return whole if entry is None else entry[0]

    def note(self, position: Position, left_mask: int, size: int) -> None:
        """The messages *left_mask* (bits), of *size*, were delivered; no limit is checked here."""
        if position not in self._known:
            self._bytes += _cost(size)
        self._known[position] = left_mask, size

    def acknowledge(self, position: Position, first: int, size: int, last: int | None = None) -> int | None:
        """One message is done, or those up to *last*; returns what is left (0: the batch is forgotten; None: the id is
        passed over).

        Raises ValueError, TooManyRequests.
        """
        left_mask = self._before(position, first, size)
        if left_mask is None:
            return None
        if last is None:
            last = first
        elif not first <= last < size:
            raise ValueError(f"{position}: a run of {first} to {last} is none of a batch of {size}")
        done = (1 << (last + 1 - first)) - 1
        return self._put(position, left_mask & ~(done << first), size)

    def acknowledge_up_to(self, position: Position, index: int, size: int) -> int | None:
        """The same for a message and all before it in the batch."""
        left_mask = self._before(position, index, size)
        if left_mask is None:
            return None
        return self._put(position, (left_mask >> (index + 1)) << (index + 1), size)

    def _before(self, position: Position, index: int, size: int) -> int | None:
        if not 0 <= index < size <= BATCH_MESSAGES_MAX:
            raise ValueError(
                f"{position}: batch_index {index} and batch_size {size} do not go together; give an id back as it came"
            )
        entry = self._known.get(position)
        fact = self.sizes.size(position, size) if entry is None else entry[1]
        if fact is None:
            return None
        if fact != size:  # rule 1
            raise ValueError(f"{position}: batch_size is {fact}, not {size}; give an id back as it came")
        return (1 << size) - 1 if entry is None else entry[0]

    def _put(self, position: Position, left_mask: int, size: int) -> int:
        if not left_mask:
            self.forget_done(position)
        elif position in self._known:
            self._known[position] = left_mask, size
        else:
            self._forget_some_done()
            if self._bytes + _cost(size) > self._bytes_max:  # rule 2
                raise TooManyRequests(
                    f"{len(self._known)} batches are acknowledged in part; acknowledge the rest, or begin a new "
                    "call (what is unacknowledged comes again)"
                )
            self._bytes += _cost(size)
            self._known[position] = left_mask, size
        return left_mask

    def _forget_some_done(self) -> None:
        """Rule 3. Each call looks at a few, so that none holds the loop."""
        some = list(islice(self._round, _LOOKED_AT))
        if len(some) < _LOOKED_AT:
            self._round = iter(list(self._known))
        for position in some:
            if self._is_done(position):
                self.forget(position)

    def forget_done(self, position: Position) -> None:
        """The batch is acknowledged completely."""
        self.forget(position)
        self.sizes.forget(position)

    def forget(self, position: Position) -> None:
        """The batch will be delivered again as a whole, or is acknowledged completely."""
        entry = self._known.pop(position, None)
        if entry is not None:
            self._bytes -= _cost(entry[1])

    def forget_before(self, position: Position) -> None:
        for batch_position in [batch for batch in self._known if batch < position]:
            self.forget(batch_position)
        self.sizes.forget_before(position)

    def clear(self) -> None:
        self._known.clear()
        self._bytes = 0


def _cost(size: int) -> int:
    return _OVERHEAD_BYTES + size // 8
