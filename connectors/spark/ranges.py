"""What is read of a topic: from which place, which entries, of which time. Values only.

Options name them, plans are made of them, tasks read them.
"""

from typing import NamedTuple

Position = tuple[int, int]
"""A ledger, and an entry in it."""


class Run(NamedTuple):
    """Entries *first* to *last* (both included) of a ledger, about *size_bytes* of payload."""

    ledger_id: int
    first: int
    last: int
    size_bytes: int
    is_compacted: bool = False
    """The ledger holds what compaction kept of the topic: entries with the ids that they had there."""

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    def part(self, first: int, last: int) -> "Run":
        """These entries only, with their share of the size."""
        assert self.first <= first <= last <= self.last, (self, first, last)
        if (first, last) == (self.first, self.last):
            return self
        size_bytes = self.size_bytes * (last - first + 1) // self.entries
        return Run(self.ledger_id, first, last, size_bytes, self.is_compacted)


class Times(NamedTuple):
    """Milliseconds since 1970; *until* is not part of it. None: no bound."""

    since_ms: int | None
    until_ms: int | None
    slack_ms: int

    def has(self, publish_time_ms: int) -> bool:
        """Whether a message is of this time."""
        return (self.since_ms is None or publish_time_ms >= self.since_ms) and (
            self.until_ms is None or publish_time_ms < self.until_ms
        )
