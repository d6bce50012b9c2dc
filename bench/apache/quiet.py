"""How quiet the machine is: the same small piece of work timed again and again, and the time that the host took.

A virtual machine shares its cores with others. Figures of a group mean little where the same work takes 0.9 s now and
1.6 s a second later.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

ADDITIONS: Final = 10_000_000
PIECES: Final = 6
"""Timed in a row, with pauses: a core changes its speed by the second."""
SHARE: Final = 0.3
"""Of the additions in a piece, so that one takes a fraction of a second."""
PAUSE_S: Final = 0.3
SPREAD_MAX: Final = 1.25
"""A quiet machine's slowest piece by its fastest."""
STOLEN_MAX: Final = 0.01

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


def record(before: Sequence[float], after: Sequence[float], since: Stolen, now: Stolen) -> dict[str, Any]:
    """What is kept of a group: seconds for ADDITIONS, least and most, and the share of its time that was stolen."""
    found = [*before, *after]
    share = (now.stolen - since.stolen) / max(now.all - since.all, 1)
    return {"additions_s": [min(found), max(found)], "stolen": round(share, 4)}


def is_quiet(found: dict[str, Any]) -> bool:
    least, most = found["additions_s"]
    return bool(most <= least * SPREAD_MAX and found["stolen"] <= STOLEN_MAX)


def told(found: dict[str, Any]) -> str:
    """One line of it."""
    least, most = found["additions_s"]
    verdict = "quiet" if is_quiet(found) else "not quiet"
    return (
        f"The machine was {verdict}: {ADDITIONS // 1_000_000} million additions in Python took {least:.2f} to "
        f"{most:.2f} s before and after, {100 * found['stolen']:.1f} % of the time went to others on the host."
    )
