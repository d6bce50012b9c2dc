"""How quiet the machine is: the same small piece of work timed again and again, and the time that the host took.

A virtual machine shares its cores with others. Figures of a group mean little where the same work takes 0.9 s now and
1.6 s a second later.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

ADDITIONS: Final = 10_000_000
PIECES: Final = 6
"""Timed in a row, with pauses: a core changes its speed by the second."""
SHARE: Final = 0.3
"""Of the additions in a piece, so that one takes a fraction of a second."""
PAUSE_S: Final = 0.3
SPREAD_MAX: Final = 1.25
"""A quiet machine's slowest piece by its fastest."""
STOLEN_MAX: Final = 0.01
"""The share of its time that a quiet machine's host may take."""

_STEAL: Final = 7
_GUEST: Final = 8
"""Of the numbers of the line `cpu` in /proc/stat; from _GUEST on they are counted in others already."""


class Stolen(NamedTuple):
    """Ticks of all cores since the machine started."""

    stolen: int
    all: int


def times() -> list[float]:
    """Seconds that ADDITIONS take, worked out from each of PIECES."""
    found = []
    for _ in range(PIECES):
        time.sleep(PAUSE_S)
        began, total = time.perf_counter(), 0
        for number in range(int(ADDITIONS * SHARE)):
            total += number
        found.append(round((time.perf_counter() - began) / SHARE, 3))
    return found


def stolen(text: str | None = None) -> Stolen:
    """*text*: of /proc/stat, which is read without it."""
    line = (Path("/proc/stat").read_text() if text is None else text).split("\n", 1)[0]
    ticks = [int(number) for number in line.split()[1:]]
    return Stolen(ticks[_STEAL], sum(ticks[:_GUEST]))


class Quiet(NamedTuple):
    """What is kept of a group."""

    additions_s: Sequence[float]
    """Seconds for ADDITIONS, least and most."""
    stolen: float
    """The share of the time of all cores."""

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float], since: Stolen, now: Stolen) -> Self:
        """From `times` and `stolen` before the group and after it."""
        found = [*before, *after]
        share = (now.stolen - since.stolen) / max(now.all - since.all, 1)
        return cls([min(found), max(found)], round(share, 4))

    @property
    def is_quiet(self) -> bool:
        least, most = self.additions_s
        return most <= least * SPREAD_MAX and self.stolen <= STOLEN_MAX

    @property
    def told(self) -> str:
        """One line of it."""
        least, most = self.additions_s
        verdict = "quiet" if self.is_quiet else "not quiet"
        return (
            f"The machine was {verdict}: {ADDITIONS // 1_000_000} million additions in Python took {least:.2f} to "
            f"{most:.2f} s before and after, {100 * self.stolen:.1f} % of the time went to others on the host."
        )
