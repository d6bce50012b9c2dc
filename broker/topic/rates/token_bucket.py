"""How fast something may go on: tokens that come in with the time, for messages and for bytes. No clock, no timers.
No IO.

Rules:

1. What is asked for is always taken whole, also where it takes the bucket below zero: a message is not cut, and a batch
   larger than the rate must be able to pass. What comes next waits until nothing is owed any more.
2. Unused tokens are kept for one period, not longer.
3. A limit of 0 or less limits nothing.
4. Waits are whole milliseconds, as the times are: who came again after a part of one would find the same time, and
   nothing more in the bucket, again and again.
"""

import math


class TokenBucket:
    """Messages and bytes in a period; times are milliseconds."""

    __slots__ = ("_at_ms", "_bytes", "_messages", "bytes_max", "messages_max", "period_ms")

    def __init__(self, messages: int, size_bytes: int, period_s: int, now_ms: int) -> None:
        self.messages_max = max(messages, 0)
        self.bytes_max = max(size_bytes, 0)
        self.period_ms = period_s * 1000
        self._messages = float(self.messages_max)
        self._bytes = float(self.bytes_max)
        self._at_ms = now_ms

    def change(self, messages: int, size_bytes: int, period_s: int, now_ms: int) -> None:
        """Other limits hold from now on. What is owed by the old ones is at most a period of the new ones."""
        self._refill(now_ms)
        self.messages_max, self.bytes_max = max(messages, 0), max(size_bytes, 0)
        self.period_ms = period_s * 1000
        self._messages = min(max(self._messages, -self.messages_max), self.messages_max)
        self._bytes = min(max(self._bytes, -self.bytes_max), self.bytes_max)

    def _refill(self, now_ms: int) -> None:
        passed_ms, self._at_ms = now_ms - self._at_ms, now_ms
        if passed_ms <= 0:  # the wall clock was set back: nothing comes in, and nothing is lost
            return
        share = passed_ms / self.period_ms
        self._messages = min(self._messages + share * self.messages_max, self.messages_max)
        self._bytes = min(self._bytes + share * self.bytes_max, self.bytes_max)

    def spend(self, messages: int, size_bytes: int, now_ms: int) -> None:
        """Take this much, as a whole, even if it is more than the bucket has (rule 1)."""
        self._refill(now_ms)
        if self.messages_max:
            self._messages -= messages
        if self.bytes_max:
            self._bytes -= size_bytes

    def wait_ms(self, now_ms: int) -> int:
        """How long nothing may go on; 0: something may now."""
        self._refill(now_ms)
        wait = 0.0
        if self.messages_max and self._messages < 0:
            wait = -self._messages / self.messages_max
        if self.bytes_max and self._bytes < 0:
            wait = max(wait, -self._bytes / self.bytes_max)
        return math.ceil(wait * self.period_ms)  # rule 4

    def wait_for_one_ms(self, now_ms: int) -> int:
        """How long until a whole message and a byte may go on; for those that ask before they take."""
        self._refill(now_ms)
        wait = 0.0
        if self.messages_max and self._messages < 1:
            wait = (1 - self._messages) / self.messages_max
        if self.bytes_max and self._bytes < 1:
            wait = max(wait, (1 - self._bytes) / self.bytes_max)
        return math.ceil(wait * self.period_ms)  # rule 4

    def room(self, now_ms: int) -> tuple[int | None, int | None]:
        """(messages, bytes) that may go on now; None: any number. None of them is below 0."""
        self._refill(now_ms)
        return (
            max(int(self._messages), 0) if self.messages_max else None,
            max(int(self._bytes), 0) if self.bytes_max else None,
        )
