"""What is left of a life that breaks a rule when all is left out that it does not need. No IO.

Parts are left out in halves, then in smaller pieces, as long as the rule stays broken (Zeller's ddmin, without its
complements: a life costs seconds).
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Final

LIVES_MAX: Final = 60


def shrink(
    parts: Sequence[str], is_broken: Callable[[Sequence[str]], bool], *, lives_max: int = LIVES_MAX
) -> list[str]:
    """Those of *parts* that are needed. *is_broken* lives the life without the parts that it is given; it is called
    *lives_max* times at most."""
    needed, left_out = list(parts), list[str]()
    size = max(len(needed) // 2, 1)
    lives = 0
    while needed:
        at = 0
        while at < len(needed):
            if lives == lives_max:
                return needed
            piece = needed[at : at + size]
            lives += 1
            if is_broken([*left_out, *piece]):
                del needed[at : at + size]
                left_out += piece
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return needed


def spelled(parts: Iterable[str]) -> str:
    """*parts* as text, numbers in a row as "3-7"."""
    parts = set(parts)
    numbers = sorted(int(part) for part in parts if part.isdecimal())
    rows = [[number for _, number in row] for _, row in groupby(enumerate(numbers), lambda each: each[1] - each[0])]
    names = sorted(part for part in parts if not part.isdecimal())
    return ",".join([*names, *(f"{row[0]}-{row[-1]}" if len(row) > 1 else str(row[0]) for row in rows)])


def read(text: str) -> list[str]:
    """The parts that `spelled` has written."""
    parts: list[str] = []
    for part in filter(None, text.split(",")):
        first, is_row, last = part.partition("-")
        parts += map(str, range(int(first), int(last) + 1)) if is_row else [part]
    return parts
