"""What went through topics in the last hour, in steps of half a minute, for the plots of the page. No IO.

Rules:

1. There is a line for each topic and namespace in which something happened within the hour, and one for all together.
2. The steps of all brokers lie on one raster of the wall clock, so that their hours can be added.
3. Rates are made from counters; a counter that became smaller began again at 0.
4. Steps before a broker began are not known to it, and are shown as a gap where no broker knows them: nothing is not 0.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

# Long enough that the shape of an hour shows; the rates of statistics are averages of a minute.
STEP_MS: Final = 30_000
STEPS_KEPT: Final = 120

# Topics and namespaces with a line, some 3 KB each: 15 MB. The rates of others are in the tables and in /metrics.
LINES_MAX: Final = 5_000

WHOLE: Final = ""
"""The name of the line of the whole broker."""


class Counts(NamedTuple):
    """The counters of a topic since it was opened, and what is not acknowledged."""

    messages_in: int
    messages_out: int
    bytes_in: int
    bytes_out: int
    backlog: int


_NAMES: Final = Counts._fields
_NOTHING: Final = (0.0,) * len(_NAMES)


class _Line:
    """The steps of one name, as a ring for each of its numbers."""

    __slots__ = ("last_busy", "rings")

    def __init__(self) -> None:
        self.rings = [array("f", bytes(4 * STEPS_KEPT)) for _ in _NAMES]
        self.last_busy = 0

    def put(self, step: int, values: Sequence[float]) -> None:
        for ring, value in zip(self.rings, values, strict=True):
            ring[step % STEPS_KEPT] = value
        if any(values):
            self.last_busy = step


class History:
    """The hour of one broker."""

    def __init__(self, wall_ms: int) -> None:
        self._lines: dict[str, _Line] = {WHOLE: _Line()}
        self._counts: dict[str, Counts] = {}
        self._noted_ms = wall_ms
        self._last_step = wall_ms // STEP_MS - 1
        self._first_step = self._last_step + 1

    def __len__(self) -> int:
        return len(self._lines)

    def begin(self) -> "Round":
        """A new look at all open topics."""
        return Round(self._counts)

    def end(self, looked: "Round", wall_ms: int) -> None:
        """All open topics were looked at. Steps that passed since the look before get the same rates."""
        self._counts = looked.counts
        seconds = (wall_ms - self._noted_ms) / 1000
        step = (wall_ms + STEP_MS // 2) // STEP_MS - 1  # the one that has just ended
        if seconds <= 0 or step <= self._last_step:  # a clock that was set back
            self._noted_ms = wall_ms
            self._last_step = min(step, self._last_step)
            return
        steps = range(max(self._last_step + 1, step - STEPS_KEPT + 1), step + 1)
        values = {
            name: (*(number / seconds for number in sums[:-1]), float(sums[-1])) for name, sums in looked.sums.items()
        }
        for name, rates in values.items():
            if name not in self._lines and any(rates) and len(self._lines) < LINES_MAX:
                self._lines[name] = _Line()
        for name, line in list(self._lines.items()):
            for each in steps:
                line.put(each, values.get(name, _NOTHING))
            if name and line.last_busy <= step - STEPS_KEPT:  # rule 1
                del self._lines[name]
        self._noted_ms, self._last_step = wall_ms, step

    def hour(self, name: str) -> dict[str, Any] | None:
        """The steps of a topic, `tenant/namespace` or WHOLE, oldest first; None if there is no line."""
        line = self._lines.get(name)
        if line is None:
            return None
        first = self._last_step + 1
        order = [(first + step) % STEPS_KEPT for step in range(STEPS_KEPT)]
        rings = zip(_NAMES, line.rings, strict=True)
        steps = {member: [round(ring[index], 3) for index in order] for member, ring in rings}
        return {"last_step": self._last_step, "first_step": self._first_step, **steps}


class Round:
    """One look at all open topics: what was added since the one before, by topic, namespace and for all."""

    def __init__(self, before: Mapping[str, Counts]) -> None:
        self._before = before
        self.counts: dict[str, Counts] = {}
        self.sums: dict[str, list[int]] = {WHOLE: [0] * len(_NAMES)}

    def add(self, topic: str, namespace: str, counts: Counts) -> None:
        self.counts[topic] = counts
        earlier = self._before.get(topic)
        added = [
            count if earlier is None or count < earlier[index] else count - earlier[index]  # rule 3
            for index, count in enumerate(counts[:-1])
        ]
        added.append(counts.backlog)
        self.sums[topic] = added
        for name in (namespace, WHOLE):
            sums = self.sums.setdefault(name, [0] * len(_NAMES))
            for index, number in enumerate(added):
                sums[index] += number


def shown_hour(hours: Iterable[object], now_ms: int) -> dict[str, Any] | None:
    """The sum of the hours that brokers answer with (rule 2), with the time at which the first step began. A step that
    no broker knows is None (rule 4).

    None: no broker has one. What is not an hour is left out.
    """
    last = now_ms // STEP_MS - 1
    sums = {name: [0.0] * STEPS_KEPT for name in _NAMES}
    known_from = STEPS_KEPT
    is_there = False
    for hour in hours:
        lines = _lines_of(hour)
        if lines is None:
            continue
        is_there = True
        late = last - lines[0]
        known_from = min(known_from, max(lines[2] - (last - STEPS_KEPT + 1), 0))
        for name, values in zip(_NAMES, lines[1], strict=True):
            for index in range(max(0, -late), min(STEPS_KEPT, STEPS_KEPT - late)):
                sums[name][index] += values[index + late]
            if 0 < late <= 2:  # a step that a broker does not have yet is not shown as nothing
                sums[name][-late:] = [so_far + values[-1] for so_far in sums[name][-late:]]
    if not is_there:
        return None
    shown = {name: [None] * known_from + values[known_from:] for name, values in sums.items()}
    return {"first_ms": (last - STEPS_KEPT + 1) * STEP_MS, "step_ms": STEP_MS, **shown}


def _lines_of(hour: object) -> tuple[int, list[list[float]], int] | None:
    """(the last step, its lines, the first step that is known). Brokers of an earlier release do not tell the last."""
    if not isinstance(hour, dict) or type(hour.get("last_step")) is not int:
        return None
    lines = [hour.get(name) for name in _NAMES]
    for line in lines:
        if (
            not isinstance(line, list)
            or len(line) != STEPS_KEPT
            or not all(type(value) in (int, float) for value in line)
        ):
            return None
    first = hour.get("first_step")
    return hour["last_step"], [list(line) for line in lines if line is not None], first if type(first) is int else 0
