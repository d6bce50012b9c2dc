"""Where in a topic the messages of a time stand: by the records of its ledgers, then by a search among entries. No IO.

A message's publish time is its producer's clock, so a topic is ordered by it only about. The search believes that no
publish time is more than the *slack* away from the moment at which the broker stored the message; these moments are
in order. Rule: an entry that is left out by a search cannot be of the time that is asked for; those that are read and
are not of that time are left out row by row (`connectors.spark.task.rows`).

    p published, s stored, |p - s| ≤ slack       p < from - 2·slack   →  s < from - slack   →  so for all before it
                                                 p ≥ until + 2·slack  →  s ≥ until + slack  →  so for all behind it

A publish time that is more than the slack outside of the time in which its ledger was written is a wrong clock's: the
search takes it for not known.
"""

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import accumulate

from connectors.spark.ranges import Position, Run, Times

TimeOf = Callable[[int, int], Awaitable[int | None]]
"""(ledger, entry) → its publish time in milliseconds; None if it is not known, which leaves nothing out."""


async def bounds(
    runs: Sequence[Run], closed_ms: Mapping[int, int], times: Times, time_of: TimeOf
) -> tuple[Position | None, Position | None]:
    """(the first position that may be of *times*, the first one behind them); None: no bound.

    *closed_ms*: when ledgers were closed, as far as it is known.
    """
    starts = [0, *accumulate(run.entries for run in runs)]
    first, last = 0, starts[-1]
    seen: dict[int, int | None] = {}

    def position(number: int) -> Position:
        place = bisect_right(starts, number) - 1
        return runs[place].ledger_id, runs[place].first + number - starts[place]

    def is_possible(number: int, time_ms: int) -> bool:
        place = bisect_right(starts, number) - 1
        ledger_id = runs[place].ledger_id
        closed = closed_ms.get(ledger_id, 0)
        begun = max((closed_ms.get(run.ledger_id, 0) for run in runs[:place] if run.ledger_id != ledger_id), default=0)
        return begun - times.slack_ms <= time_ms and (not closed or time_ms <= closed + times.slack_ms)

    async def time_at(number: int) -> int | None:
        if number not in seen:
            time_ms = await time_of(*position(number))
            seen[number] = time_ms if time_ms is not None and is_possible(number, time_ms) else None
        return seen[number]

    start = end = None
    if times.until_ms is not None:
        stored_behind = times.until_ms + times.slack_ms
        for number, run in enumerate(runs):
            if closed_ms.get(run.ledger_id, 0) >= stored_behind:  # s ≥ until + slack for all behind it
                last = starts[number + 1]
                break
    if times.since_ms is not None and runs:
        stored_before = times.since_ms - times.slack_ms
        for number, run in enumerate(runs):
            if not 0 < closed_ms.get(run.ledger_id, 0) < stored_before:
                break
            first = min(starts[number + 1], last)
        low, high = first - 1, last
        while high - low > 1:
            middle = (low + high) // 2
            time_ms = await time_at(middle)
            if time_ms is not None and time_ms < times.since_ms - 2 * times.slack_ms:
                low = middle
            else:
                high = middle
        first = low + 1
        start = position(first) if first < starts[-1] else (runs[-1].ledger_id, runs[-1].last + 1)
    if times.until_ms is not None and runs:
        behind = times.until_ms + 2 * times.slack_ms
        # What the search for the start has seen need not be asked again, nor what lies beside it.
        beyond = {number for number, time_ms in seen.items() if time_ms is not None and time_ms >= behind}
        high = min((number for number in beyond if number >= first), default=last)
        low = max((number for number in seen.keys() - beyond if first <= number < high), default=first - 1)
        while high - low > 1:
            middle = (low + high) // 2
            time_ms = await time_at(middle)
            if time_ms is not None and time_ms >= behind:
                high = middle
            else:
                low = middle
        end = position(high) if high < starts[-1] else None
    return start, end
