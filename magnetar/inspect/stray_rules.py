"""Works out what the record of a ledger may be, from what the bookies have of it. No IO.

    bookie 1   0 1 . 3 4 .        two copies over three bookies: entry e is on those at e and e + 1 of the ensemble,
    bookie 2   0 . 2 3 . 5        counted round. Entry 0 is on 1 and 2, entry 1 on 1 and 3, so the order is 2 1 3
    bookie 3   . 1 2 . 4 5

Rules:

1. Each copy that a bookie has of an entry stands where the record says: nothing is lost of what is there. Where an
   ensemble was changed, a segment begins with the first entry that does not fit.
2. The ledger ends before the first entry that no bookie has. If a later entry says that it was acknowledged, the ledger
   is damaged, and no record is made.
3. Every bookie of the cluster has been asked, or an operator has said which do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import Segment
from magnetar_core.runtime.types import MagnetarError

# Entries of one ledger. Pulsar's have 50,000 by default; one bit is held for each entry of each bookie.
ENTRIES_MAX: Final = 100_000_000

# Changes of the ensemble. More of them are not likely in one ledger: rather its lists are misunderstood.
SEGMENTS_MAX: Final = 50

# Bookies of an ensemble: an order is searched for up to so many.
ENSEMBLE_MAX: Final = 12

Group = tuple[int, int, int, int]


class CannotTell(MagnetarError):
    """The record cannot be known from what the bookies have."""


class Placed(NamedTuple):
    """Where a ledger's entries are."""

    segments: tuple[Segment, ...]
    write_quorum: int


def entries_of(groups: Iterable[Group]) -> int:
    """A list of entries as one number: bit e is set if entry e is there. Raises CannotTell."""
    entries = 0
    for first, last, size, period in groups:
        if not 0 <= first <= last < ENTRIES_MAX or not 0 < size <= ENTRIES_MAX:
            raise CannotTell(f"a list of entries up to {last + size - 1}, more than {ENTRIES_MAX} are not looked at")
        entries |= _repeated_bits((1 << size) - 1, period or 1, (last - first) // period + 1 if period else 1) << first
    return entries


def _repeated_bits(run: int, period: int, count: int) -> int:
    """*run* *count* times, *period* apart."""
    repeated, at = 0, 0
    while count:
        if count & 1:
            repeated |= run << at
            at += period
        run |= run << period
        period *= 2
        count >>= 1
    return repeated


def last_entry(held: Mapping[str, int], last_confirmed: int) -> int:
    """The last entry of a ledger of which bookies have *held*; *last_confirmed* is what its entries say of it (rule 2).

    Raises CannotTell.
    """
    there = 0
    for entries in held.values():
        there |= entries
    if not there:
        raise CannotTell("no bookie has an entry of it: there is nothing to save")
    first_gap = (~there & (there + 1)).bit_length() - 1
    if first_gap <= last_confirmed:
        raise CannotTell(
            f"entry {first_gap} is on no bookie that was asked, and was acknowledged (entries up to {last_confirmed} "
            "were): start the bookies that are away"
        )
    if not first_gap:
        raise CannotTell("its first entry is on no bookie that was asked, and none of the others was acknowledged")
    return first_gap - 1


def place(held: Mapping[str, int], last: int, spare: Sequence[str], ensemble_size: int | None = None) -> Placed:
    """Segments that fit what bookies have of the entries up to *last*, as few as possible (rule 1).

    *spare*: other bookies of the cluster, which fill an ensemble of which a member has nothing. Raises CannotTell.
    """
    whole = (1 << last + 1) - 1
    held = {bookie: entries & whole for bookie, entries in sorted(held.items()) if entries & whole}
    quorum = _copies(list(held.values()))
    others = [bookie for bookie in spare if bookie not in held]
    sizes = [ensemble_size] if ensemble_size else range(quorum, min(len(held) + len(others), ENSEMBLE_MAX) + 1)
    best: list[Segment] | None = None
    for size in sizes:
        if size < quorum:
            raise CannotTell(f"some entries have {quorum} copies, so no ensemble of {size} bookies holds them")
        segments = _possible_segments(held, last, size, quorum, others)
        # With as many segments the smallest ensemble wins: a larger one would name bookies that have nothing.
        if segments is not None and (best is None or len(segments) < len(best)):
            best = segments
    if best is None:
        raise CannotTell(
            f"no order of the bookies fits what they have ({', '.join(held)}; {quorum} copies of an entry)"
        )
    assert best[0].first_entry_id == 0, "a ledger's first segment begins with its first entry"
    return Placed(tuple(best), quorum)


def _copies(held: Sequence[int]) -> int:
    """The largest number of copies of an entry."""
    at_least = [-1]
    for entries in held:
        at_least.append(0)
        for count in range(len(at_least) - 1, 0, -1):
            at_least[count] |= at_least[count - 1] & entries
    return max(count for count, entries in enumerate(at_least) if entries)


def _possible_segments(
    held: Mapping[str, int], last: int, size: int, quorum: int, others: Sequence[str]
) -> list[Segment] | None:
    segments: list[Segment] = []
    first = 0
    while first <= last:
        if len(segments) == SEGMENTS_MAX:
            return None
        order = _fitting_ensemble(held, first, first, size, quorum, others)
        if order is None:
            return None
        low, high = first, last  # the largest end that fits: a longer segment fits no better than a shorter one
        while low < high:
            middle = (low + high + 1) // 2
            longer = _fitting_ensemble(held, first, middle, size, quorum, others)
            if longer is None:
                high = middle - 1
            else:
                low, order = middle, longer
        segments.append(Segment(first, order))
        first = low + 1
    return segments


def _fitting_ensemble(
    held: Mapping[str, int], first: int, last: int, size: int, quorum: int, others: Sequence[str]
) -> tuple[str, ...] | None:
    """An ensemble of *size* in which each copy of the entries *first* … *last* is in its place; None: there is none."""
    span = ((1 << last + 1 - first) - 1) << first
    here = {bookie: entries & span for bookie, entries in held.items() if entries & span}
    if len(here) > size:
        return None
    places: dict[str, list[int]] = {}
    for bookie, entries in here.items():
        rests = [rest for rest in range(size) if entries & _entries_by_remainder(rest, size, first, last)]
        places[bookie] = [at for at in range(size) if all((at - rest) % size < quorum for rest in rests)]
    taken = _matched_places(places)
    if taken is None:
        return None
    fill = iter([bookie for bookie in (*held, *others) if bookie not in here])
    order = [taken.get(at) or next(fill, None) for at in range(size)]
    return tuple(bookie for bookie in order if bookie is not None) if None not in order else None


def _entries_by_remainder(rest: int, size: int, first: int, last: int) -> int:
    """The entries *first* … *last* whose number leaves *rest* when divided by *size*."""
    start = first + (rest - first) % size
    return _repeated_bits(1, size, (last - start) // size + 1) << start if start <= last else 0


def _matched_places(places: Mapping[str, Sequence[int]]) -> dict[int, str] | None:
    """A different place for each bookie, one of those that it may have; None if there are not enough."""
    taken: dict[int, str] = {}

    def put(bookie: str, tried: set[int]) -> bool:
        for at in places[bookie]:
            if at not in tried:
                tried.add(at)
                if at not in taken or put(taken[at], tried):
                    taken[at] = bookie
                    return True
        return False

    return taken if all(put(bookie, set()) for bookie in places) else None
