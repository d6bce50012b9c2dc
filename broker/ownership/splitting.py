"""Where a bundle is cut in two or more. No IO.

    range_equally_divide           in the middle of its range
    topic_count_equally_divide     so that both halves have the same number of topics
    specified_positions_divide     where the caller says; positions outside the bundle are left out
    flow_or_qps_equally_divide     so that both halves have about the same traffic

The names are Apache's. There is no cut where it would leave a part empty: then the
bundle stays whole, which is not an error.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from broker.settings.groups.cluster import SPLIT_ALGORITHMS

RANGE, TOPIC_COUNT, POSITIONS, TRAFFIC = ALGORITHMS = SPLIT_ALGORITHMS


def limits_of_range(text: str) -> tuple[int, int]:
    """The two ends of `0x10000000_0x20000000`."""
    low, _, high = text.partition("_")
    return int(low, 16), int(high, 16)


def cuts(
    algorithm: str,
    text: str,
    *,
    hashes: Iterable[int] = (),
    positions: Sequence[int] = (),
    traffic: Mapping[int, float] | None = None,
) -> list[int]:
    """New boundaries inside the range *text*, sorted; none: it stays whole.

    *hashes* are those of the topics in the bundle, *traffic* what passes the topic with such a hash.
    """
    low, high = limits_of_range(text)
    if algorithm == RANGE:
        boundaries = [low + (high - low) // 2]
    elif algorithm == TOPIC_COUNT:
        boundaries = _between_topics(sorted(hashes))
    elif algorithm == POSITIONS:
        boundaries = sorted(set(positions))
    else:
        assert algorithm == TRAFFIC, f"{algorithm} is not one of {ALGORITHMS}"
        boundaries = _between_traffic(traffic or {})
    return [boundary for boundary in boundaries if low < boundary < high]


def even_cuts(text: str, hashes: Iterable[int], parts: int) -> list[int]:
    """Boundaries that cut the range *text* into so many *parts* with about the same number of topics, or into fewer
    where topics have the same hash."""
    assert parts >= 1
    low, high = limits_of_range(text)
    ordered = sorted(hashes)
    boundaries = {ordered[len(ordered) * number // parts] for number in range(1, parts)} if ordered else set()
    return sorted(boundary for boundary in boundaries if low < boundary < high)


def _between_topics(hashes: Sequence[int]) -> list[int]:
    if len(hashes) <= 1:
        return []
    middle = len(hashes) // 2
    return [(hashes[max(middle - 1, 0)] + hashes[middle]) // 2]


def _between_traffic(traffic: Mapping[int, float]) -> list[int]:
    """Between the two topics where the sums on both sides differ least."""
    hashes = sorted(traffic)
    if len(hashes) <= 1 or not any(traffic.values()):
        return []
    whole, traffic_before = sum(traffic.values()), 0.0
    best: tuple[float, int] | None = None
    for hash_, following in pairwise(hashes):
        traffic_before += traffic[hash_]
        candidate = (abs(whole - 2 * traffic_before), (hash_ + following) // 2 + 1)
        best = candidate if best is None else min(best, candidate)
    assert best is not None, "two topics have a place between them"
    return [best[1]]
