"""Work that yields, done at once."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def done(steps: Generator[None, None, T]) -> T:
    """What *steps* return."""
    return counted(steps)[1]


def counted(steps: Generator[None, None, T]) -> tuple[int, T]:
    """How often *steps* yield, and what they return."""
    turns = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            found: T = end.value
            return turns, found
        turns += 1
