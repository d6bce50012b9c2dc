"""Which copies of a ledger are missing. No IO: metadata, the bookies that are there and their answers come in.

A ledger is looked at in fragments: the entries of one segment of its metadata. Which of a fragment's bookies need
another one follows from two things:

    registered?       a bookie that is not registered is gone, whether it holds entries of the fragment or not
    its answers       of a bookie that is there the first and the last entry that it should have are read, or all, or it
                      lists what it has

Rules (I65, I67, I72):

1. A bookie's explicit "no such entry" or "no such ledger", and an entry with a wrong digest, mean that the copy is
   missing. Silence, errors and limbo are unknown: nothing is replaced because of them, and no mark is taken down.
2. A segment behind the last entry of a closed ledger holds nothing and is never read: nothing of it is reported
   (R-R15), and its bookies are replaced only along with others of the ledger.
3. The last fragment of a ledger that is not closed is never copied. Other fragments end where the next begins, so
   their entries are fixed, and they are copied once LAC has reached their end.
4. An empty fragment names its bookies all the same: one that is gone is replaced, without copying anything (R-R6).
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import NO_ENTRY, LedgerMetadata


class Fragment(NamedTuple):
    """The entries of one segment: *first_entry_id* to *last_entry_id*, both included; empty if the last is smaller."""

    first_entry_id: int
    last_entry_id: int
    ensemble: tuple[str, ...]
    write_quorum: int
    is_fixed: bool
    """No writer can add to it any more: it may be copied (rule 3)."""

    @property
    def is_empty(self) -> bool:
        return self.last_entry_id < self.first_entry_id

    @property
    def entry_count(self) -> int:
        return max(self.last_entry_id - self.first_entry_id + 1, 0)

    def holds(self, index: int, entry_id: int) -> bool:
        """The schedule gives *entry_id* to the bookie at *index*."""
        return (index - entry_id) % len(self.ensemble) < self.write_quorum

    def first_held(self, index: int, from_entry_id: int = 0) -> int | None:
        """The first entry of the fragment, and not before *from_entry_id*, that the bookie at *index* should have; None
        if there is none."""
        first = max(self.first_entry_id, from_entry_id)
        for entry_id in range(first, min(first + len(self.ensemble), self._end)):
            if self.holds(index, entry_id):
                return entry_id
        return None

    def last_held(self, index: int) -> int | None:
        """The last entry of the fragment that the bookie at *index* should have; None if there is none."""
        lowest = max(self.last_entry_id - len(self.ensemble), self.first_entry_id - 1)
        for entry_id in range(self.last_entry_id, lowest, -1):
            if self.holds(index, entry_id):
                return entry_id
        return None

    def held(self, index: int) -> Iterator[int]:
        """Every entry of the fragment that the bookie at *index* should have, ascending."""
        return (entry_id for entry_id in range(self.first_entry_id, self._end) if self.holds(index, entry_id))

    def holders(self, entry_id: int) -> list[int]:
        """The positions that hold *entry_id*, in the order in which readers ask them."""
        count = len(self.ensemble)
        return [(entry_id + at) % count for at in range(self.write_quorum)]

    @property
    def _end(self) -> int:
        return self.last_entry_id + 1


def is_trailing(metadata: LedgerMetadata, first_entry_id: int) -> bool:
    """The segment that begins at *first_entry_id* is behind the end of a closed ledger (rule 2)."""
    return metadata.is_closed and first_entry_id > max(metadata.last_entry_id, 0)


def fragments(metadata: LedgerMetadata, last_add_confirmed: int, *, with_trailing: bool = False) -> list[Fragment]:
    """The fragments of a ledger in order. *last_add_confirmed* counts only where the ledger is not closed.

    *with_trailing*: also those that begin behind the end of a closed ledger, as empty ones (rule 2).
    """
    all_fragments = []
    last_of_ledger = metadata.last_entry_id if metadata.is_closed else last_add_confirmed
    for at, segment in enumerate(metadata.segments):
        following = metadata.segments[at + 1].first_entry_id if at + 1 < len(metadata.segments) else None
        if metadata.is_closed:
            if is_trailing(metadata, segment.first_entry_id) and not with_trailing:
                break
            last = metadata.last_entry_id if following is None else min(following - 1, metadata.last_entry_id)
            last = max(last, segment.first_entry_id - 1)
            is_fixed = True
        elif following is None:
            last, is_fixed = max(last_of_ledger, segment.first_entry_id - 1), False
        else:
            last, is_fixed = following - 1, last_of_ledger >= following - 1
        assert last >= segment.first_entry_id - 1
        all_fragments.append(Fragment(segment.first_entry_id, last, segment.ensemble, metadata.write_quorum, is_fixed))
    return all_fragments


class Copy(Enum):
    """What is known about one entry on one bookie."""

    PRESENT = "present"
    MISSING = "missing"
    """An explicit no, or a copy whose digest is wrong (rule 1)."""


Answer: TypeAlias = Copy | str
"""What became of one read of one copy; a text says why that is not known."""


class Depth(Enum):
    """How many of the entries that a bookie should have are read."""

    ENDS = "ends"
    """The first and the last one, as Apache's checker does."""
    LISTS = "lists"
    """No entry is read; the bookie lists those that it has. That finds a hole, but not a damaged entry."""
    ALL = "all"


def ends(fragment: Fragment, index: int) -> list[int]:
    """The first and the last entry that the bookie at *index* should have; one or none where there are not two."""
    first, last = fragment.first_held(index), fragment.last_held(index)
    if first is None or last is None:
        return []
    return [first] if first == last else [first, last]


def first_unlisted(fragment: Fragment, index: int, groups: Iterable[tuple[int, int, int, int]]) -> int | None:
    """The first entry that the bookie at *index* should have and does not list; None: it lists all of them.

    *groups*: (first start, last start, size, period), runs of `size` entries that begin `period` apart.
    """
    count = len(fragment.ensemble)
    left = deque(sorted(group for group in groups if group[2] > 0))
    wanted = fragment.first_held(index)
    while wanted is not None:
        while left and left[0][1] + left[0][2] <= wanted:
            left.popleft()
        for first, last, size, period in left:
            if first > wanted:
                return wanted
            if 0 < size < period:
                begin = wanted - (wanted - first) % period
                end = begin + size if begin <= last else begin
            else:
                begin, end = first, last + size
            if wanted >= end:
                continue
            # Striping makes runs that are as far apart as the ensemble is long. If one of them has all that the bookie
            # should have of its stripe, the others have, too.
            is_stripe = period == count and not any(
                fragment.holds(index, entry_id) for entry_id in range(end, begin + period)
            )
            wanted = fragment.first_held(index, last + size if is_stripe else end)
            break
        else:
            return wanted
    return None


class Verdict(NamedTuple):
    """What one look at a fragment found."""

    fragment: Fragment
    gone: Mapping[int, str]
    """Position → bookie that is not registered."""
    incomplete: Mapping[int, str]
    """Position → bookie that is there and lacks entries."""
    unwanted: Mapping[int, str]
    """Position → bookie that has everything and is to hand it on (it is being drained)."""
    unknown: Mapping[int, str]
    """Position → why nobody can say."""

    @property
    def is_good(self) -> bool:
        return not (self.gone or self.incomplete or self.unwanted or self.unknown)

    @property
    def to_replace(self) -> dict[int, str]:
        """Positions that need another bookie."""
        return {**self.gone, **self.unwanted}

    @property
    def needs_copies(self) -> bool:
        return bool(self.gone or self.incomplete or self.unwanted)


def judge(
    fragment: Fragment,
    available: Collection[str],
    draining: Collection[str],
    answers: Mapping[int, Sequence[Answer]],
) -> Verdict:
    """Combine what is known of a fragment.

    *answers*: position → what the reads from its bookie brought. Positions whose bookie is gone are not asked.
    """
    gone: dict[int, str] = {}
    incomplete: dict[int, str] = {}
    unwanted: dict[int, str] = {}
    unknown: dict[int, str] = {}
    for index, bookie in enumerate(fragment.ensemble):
        if bookie not in available:
            gone[index] = bookie
            continue
        bookie_answers = answers.get(index, ())
        if any(answer is Copy.MISSING for answer in bookie_answers):
            incomplete[index] = bookie
        elif reasons := [answer for answer in bookie_answers if isinstance(answer, str)]:
            unknown[index] = reasons[0]
        if bookie in draining:
            unwanted[index] = bookie
            incomplete.pop(index, None)
    return Verdict(fragment, gone, incomplete, unwanted, unknown)


def lost_entries(fragment: Fragment, missing: Mapping[int, Collection[int]]) -> list[tuple[int, int]]:
    """Entries that no bookie has, as ranges with first and last included: every holder of such an entry denies it.

    *missing*: position → entries that its bookie denies.
    """
    if len(missing) < fragment.write_quorum:
        return []
    denied = sorted({entry_id for entries in missing.values() for entry_id in entries})
    everywhere = (
        entry_id
        for entry_id in denied
        if all(entry_id in missing.get(index, ()) for index in fragment.holders(entry_id))
    )
    return joined((entry_id, entry_id) for entry_id in everywhere)


def joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges of entries, first and last included, put in order and joined where they touch or overlap."""
    ranges_joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        assert first <= last
        if ranges_joined and first <= ranges_joined[-1][1] + 1:
            ranges_joined[-1] = (ranges_joined[-1][0], max(ranges_joined[-1][1], last))
        else:
            ranges_joined.append((first, last))
    return ranges_joined


# ------------------------------------------------------------------------------ from metadata alone


def names(metadata: LedgerMetadata, bookies: Collection[str]) -> frozenset[str]:
    """Which of *bookies* the ledger's record names, in segments that count (rule 2)."""
    wanted = set(bookies)
    named: set[str] = set()
    for fragment in fragments(metadata, NO_ENTRY):
        named |= wanted.intersection(fragment.ensemble)
    return frozenset(named)


def is_tail_at_risk(metadata: LedgerMetadata, writable: Collection[str]) -> bool:
    """The ledger is not closed, and its writer has a bookie in the current ensemble that takes no entries.

    A writer replaces such a bookie with its next entry; where there is no writer, the ledger is recovered after the
    grace period (I75).
    """
    return not metadata.is_closed and any(bookie not in writable for bookie in metadata.last_segment.ensemble)
