"""Which adds of a ledger were slow, and which bookies they waited for. No clock: the caller passes times, in seconds.
No IO.

    append ── queue (each bookie) ──▶ socket ──▶ answer (each bookie) ──▶ quorum, in order ──▶ acknowledged

Calls come once per run of entries or per chunk of answers. Events within one millisecond are kept as one, so memory is
bounded by how long adds are under way, not by their number.
"""

from typing import Final, NamedTuple

_MOMENT_S: Final = 0.001

# Answers kept for one bookie. At one a millisecond they cover more than the time-out of an add. A bookie that is ahead
# of the others by more than that is not the slow one.
ANSWERS_MAX: Final = 40_000


class SlowAdd(NamedTuple):
    """A run of entries that took longer than the threshold. Times are seconds since the run was appended."""

    appended_s: float
    """When the run was appended, by the monotonic clock."""
    last_entry_id: int
    total_s: float
    answers_s: tuple[float | None, ...]
    """For each position: when its bookie had answered the last entry of its share; None: not yet."""
    change_s: float
    """How much of *total_s* an ensemble change took."""


def _first_above(moments: list[tuple[int, float]], entry_id: int) -> int:
    """How many of *moments*, from the first on, are of entries up to *entry_id*."""
    count = 0
    for entry, _ in moments:
        if entry > entry_id:
            break
        count += 1
    return count


class AddWatch:
    """The adds of one ledger that are under way."""

    __slots__ = ("_answers", "_change", "_change_began_s", "_runs", "_share", "_threshold_s")

    def __init__(self, ensemble_size: int, is_striped: bool, threshold_s: float) -> None:
        # In a striped ensemble a bookie holds at least one of any *_share* entries in a row, maybe not the last of a
        # run.
        self._share = ensemble_size if is_striped else 1
        self._threshold_s = threshold_s
        # Lists, oldest first: there are few, and an empty deque takes 760 bytes, in each of ten thousand ledgers.
        self._runs: list[tuple[int, float]] = []
        self._answers: list[list[tuple[int, float]]] = [[] for _ in range(ensemble_size)]
        self._change_began_s: float | None = None
        self._change = (0.0, 0.0)

    def appended(self, last_entry_id: int, now_s: float) -> None:
        """Entries up to this one were handed to the connections."""
        runs = self._runs
        if runs and now_s - runs[-1][1] < _MOMENT_S:
            runs[-1] = last_entry_id, runs[-1][1]
        else:
            runs.append((last_entry_id, now_s))

    def answered(self, index: int, entry_id: int, now_s: float) -> None:
        """The bookie at *index* confirmed entries, *entry_id* as the last."""
        answers = self._answers[index]
        if answers and now_s - answers[-1][1] < _MOMENT_S:
            answers[-1] = max(entry_id, answers[-1][0]), answers[-1][1]
        else:
            answers.append((entry_id, now_s))
            if len(answers) > ANSWERS_MAX:
                del answers[0]

    def changing(self, now_s: float) -> None:
        """A change of the ensemble begins."""
        self._change_began_s = now_s

    def changed(self, indexes: frozenset[int], now_s: float) -> None:
        """The change is over; answers of the former bookies at *indexes* do not count any more."""
        if self._change_began_s is not None:
            self._change = self._change_began_s, now_s
            self._change_began_s = None
        for index in indexes:
            self._answers[index].clear()

    def acknowledged(self, up_to: int, now_s: float) -> SlowAdd | None:
        """Entries up to this one are acknowledged. Returns the oldest slow run among them, if there is one."""
        runs = self._runs
        count = _first_above(runs, up_to)
        slow: SlowAdd | None = None
        if count and now_s - runs[0][1] > self._threshold_s:  # of those that are over now the oldest waited longest
            last_entry_id, appended_s = runs[0]
            slow = SlowAdd(
                appended_s,
                last_entry_id,
                now_s - appended_s,
                tuple(self._answer_s(index, last_entry_id, appended_s) for index in range(len(self._answers))),
                max(0.0, min(self._change[1], now_s) - max(self._change[0], appended_s)),
            )
        del runs[:count]
        wanted = (runs[0][0] if runs else up_to + 1) - self._share
        for answers in self._answers:
            if answers and answers[0][0] <= wanted:
                del answers[: _first_above(answers, wanted)]
        return slow

    def clear(self) -> None:
        """Nothing is under way any more."""
        self._runs.clear()
        for answers in self._answers:
            answers.clear()

    def _answer_s(self, index: int, entry_id: int, appended_s: float) -> float | None:
        for answered, at in self._answers[index]:
            if answered > entry_id - self._share:
                return max(at - appended_s, 0.0)
        return None
