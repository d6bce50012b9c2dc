"""How many messages the batches have that were sent to consumers: a fact of the entry, whatever an ack says. No IO.

Rules:

1. The size of a batch is what its entry holds, as long as it is remembered here.
2. Of others (sent before a restart, or long ago) it is what the ack says, up to UNKNOWN_MESSAGES_MAX. An ack that says
   more is passed over: its messages come again. A set of bits for a million messages takes 125 kB, and an ack that asks
   for one takes 20 bytes.
"""

from typing import Final

from managed_ledger.position import Position

# Batches that are remembered for a subscription or a call: 10 MB at most. Twice what a consumer of the Shared types may
# have unacknowledged.
REMEMBERED_MAX: Final = 100_000

# Clients put 1,000 messages into a batch unless they are told otherwise.
UNKNOWN_MESSAGES_MAX: Final = 4_096


class BatchSizes:
    """Position → messages, the latest batches only."""

    __slots__ = ("_sizes",)

    def __init__(self) -> None:
        self._sizes: dict[Position, int] = {}

    def note(self, position: Position, messages: int) -> None:
        """A batch is sent."""
        self._sizes[position] = messages
        if len(self._sizes) > REMEMBERED_MAX:
            del self._sizes[next(iter(self._sizes))]

    def size(self, position: Position, claimed: int) -> int | None:
        """How many messages the batch at *position* has; None: the ack that claims so many is passed over (rule 2)."""
        known = self._sizes.get(position)
        if known is not None:
            return known
        return claimed if 0 < claimed <= UNKNOWN_MESSAGES_MAX else None

    def is_known(self, position: Position) -> bool:
        return position in self._sizes
