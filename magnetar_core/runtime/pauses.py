"""Pauses between attempts: the first is short, each is twice as long as the one before, and the longest has a limit.
No IO.

No clock and no chance here: the caller waits itself, and draws a part of each pause by lot if its pauses must differ
from those of others.
"""


def longer_s(pause_s: float, first_s: float, longest_s: float) -> float:
    """The pause behind one of *pause_s*; behind none (0) it is the first."""
    return min(max(2 * pause_s, first_s), longest_s)


def pause_after_s(failures: int, first_s: float, longest_s: float) -> float:
    """The pause behind so many *failures* in a row, for those who count them."""
    assert failures >= 1
    return min(first_s * 2.0 ** min(failures - 1, 30), longest_s)


class GrowingPause:
    """The pauses of one row of attempts."""

    __slots__ = ("_first_s", "_longest_s", "_pause_s")

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._pause_s = 0.0

    def next_s(self) -> float:
        """How long to wait now."""
        self._pause_s = longer_s(self._pause_s, self._first_s, self._longest_s)
        return self._pause_s

    def reset(self) -> None:
        """An attempt has succeeded: the next pause is the first again."""
        self._pause_s = 0.0
