"""What a node copied in the last hour, in steps of half a minute. No IO.

It stands in the node's report, so that a page shows the hour before it was opened, for all nodes, whichever serves it.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

# Long enough that a repair shows its shape; an hour of steps is at most some 3 KB in the node's report.
STEP_MS: Final = 30_000
STEPS_KEPT: Final = 120


class CopyStep(NamedTuple):
    """What was copied in one step."""

    began_ms: int
    """Wall clock, a multiple of STEP_MS: the steps of all nodes lie on one raster."""
    entries: int
    bytes: int


class CopyHistory:
    """The steps of one node in which something was copied, oldest first."""

    def __init__(self) -> None:
        self._steps: deque[CopyStep] = deque(maxlen=STEPS_KEPT)
        self._entries = 0
        self._bytes = 0

    def note(self, wall_ms: int, entries: int, bytes_: int) -> None:
        """*entries* and *bytes_* were copied since the node began. Called as often as a report is made, or oftener."""
        new_entries, new_bytes = entries - self._entries, bytes_ - self._bytes
        assert min(new_entries, new_bytes) >= 0, "what was copied never becomes less"
        self._entries, self._bytes = entries, bytes_
        while self._steps and self._steps[0].began_ms <= wall_ms - STEP_MS * STEPS_KEPT:
            self._steps.popleft()
        if not new_entries:
            return
        began_ms = wall_ms - wall_ms % STEP_MS
        if self._steps and self._steps[-1].began_ms >= began_ms:  # a clock that was set back stays in the last step
            last = self._steps[-1]
            self._steps[-1] = CopyStep(last.began_ms, last.entries + new_entries, last.bytes + new_bytes)
        else:
            self._steps.append(CopyStep(began_ms, new_entries, new_bytes))

    def steps(self) -> list[CopyStep]:
        return list(self._steps)


def hour_of(
    nodes: Iterable[object], now_ms: int, known_from_ms: int = 0
) -> list[tuple[int, float | None, float | None]]:
    """(step's begin, entries a second, bytes a second) of all nodes together, one for each step of the last hour.

    *nodes*: the steps of each node, as they stand in its report; what is not one is left out. Of the time before
    *known_from_ms* no node knows anything: None.
    """
    last_ms = now_ms - now_ms % STEP_MS
    sums = {last_ms - STEP_MS * step: [0, 0] for step in range(STEPS_KEPT)}
    for began_ms, entries, bytes_ in (step for steps in nodes for step in _steps_of(steps)):
        if began_ms in sums:
            sums[began_ms][0] += entries
            sums[began_ms][1] += bytes_
    step_s = STEP_MS / 1000
    return [
        (at, sums[at][0] / step_s, sums[at][1] / step_s) if at + STEP_MS > known_from_ms else (at, None, None)
        for at in sorted(sums)
    ]


def _steps_of(stored: object) -> Iterator[tuple[int, int, int]]:
    for step in stored if isinstance(stored, list) else ():
        if isinstance(step, list) and len(step) == 3 and all(type(number) is int for number in step):
            yield step[0], step[1], step[2]
