"""The sizes of batches that were sent to consumers, so that acks need not be trusted for them. No IO.

Rules:

1. While a batch is remembered here, its size is the number of messages in its entry.
2. For other batches (sent before a restart, or long ago) the size that the ack claims is taken, up to
   UNKNOWN_MESSAGES_MAX. An ack that claims more is ignored, and its messages are delivered again. Reason: a bit set for
   a million messages takes 125 kB, and the ack that asks for it 20 bytes.
"""

from collections import OrderedDict
from typing import Final

from managed_ledger.position import Position

# Batches that are remembered for each subscription, 20 MB at most. Twice the entries that a consumer of the Shared
# types may have unacknowledged.
REMEMBERED_MAX: Final = 100_000

# Clients put 1,000 messages into a batch unless they are told otherwise.
UNKNOWN_MESSAGES_MAX: Final = 4_096


class BatchSizes:
    """Position → number of messages, for the batches that were sent last."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        # A plain dict looks for its first key past all that were removed: 0.5 ms a batch, once it is full.
        self._sizes: OrderedDict[Position, int] = OrderedDict()

    def note(self, position: Position, messages: int) -> None:
        """Remember the size of a batch that is sent."""
        self._sizes[position] = messages
        if len(self._sizes) > REMEMBERED_MAX:
            self._sizes.popitem(last=False)

    def forget(self, position: Position) -> None:
        """The batch is acknowledged."""
        self._sizes.pop(position, None)

    def forget_before(self, position: Position) -> None:
        """The batches that were sent first are acknowledged, as far as they stand before *position*."""
        sizes = self._sizes
        while sizes and next(iter(sizes)) < position:
            sizes.popitem(last=False)

    def size(self, position: Position, claimed: int) -> int | None:
        """How many messages the batch at *position* has; None: the ack claims too many and is ignored (rule 2)."""
        size = self._sizes.get(position)
        if size is not None:
            return size
        return claimed if 0 < claimed <= UNKNOWN_MESSAGES_MAX else None
