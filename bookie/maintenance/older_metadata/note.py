"""What a bookie knows of the numbers of ledgers, and which of its ledgers are in doubt. No IO.

    given ─── C ════════════ H          C is the number that the metadata store gives to the next ledger. Ledgers here
              └─ in doubt ──┘           from C on, without a record, are newer than the metadata.

The file `ledger-doubts` of each ledger directory; the newest revision counts:

    magnetar ledger-doubts 1
    revision 3
    given 1234                          the highest number of which this bookie knows that it was given
    open 1795242522795                  since when the metadata is older than the ledgers, in milliseconds; 0: it is not
    known 50 101 1795242522795 b1       a range that this bookie has looked at (`magnetar_core…metadata.doubts`)
    doubt 50 57                         ledgers here without a record: garbage collection leaves them
    crc 1c291ca3                        CRC-32C of all that

Rules (I132):

1. Numbers only grow. A next one that is not above `given` proves that the metadata went back in time; so does a ledger
   here from the next number on without a record (clients may choose numbers themselves: their ledgers have one).
2. A ledger that is in doubt stays until it has a record again, or until an operator says that it is of no use.
3. A range is looked at once: what an operator has given up is not in doubt again for the same reason.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from magnetar_core.bookkeeper.metadata.ledgers.doubts import DoubtRange, bounded, decode_range
from magnetar_core.bookkeeper.metadata.ledgers.ledger_metadata import SHORT_ID_LIMIT
from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import Corruption

NOTE_FILE: Final = "ledger-doubts"
_HEAD: Final = "magnetar ledger-doubts 1"

# Numbers that a bookie moves on by itself: what a large cluster uses up in weeks, in a few minutes. Beyond it the
# store is hardly an older copy of this cluster's, or ledgers here have numbers that their clients chose.
ADVANCE_MAX: Final = 1_000_000

# Numbers below the next one that may be of ledgers whose records came later: a client draws a number first. Where the
# metadata went back, those of them without a record are in doubt, too, and deleted ledgers with them.
UNDER_WAY_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class Note:
    """See above. *given* -1: no number is known."""

    revision: int = 0
    given: int = -1
    open_ms: int = 0
    known: tuple[DoubtRange, ...] = ()
    doubts: frozenset[int] = frozenset()

    @property
    def is_open(self) -> bool:
        """The metadata is older than the ledgers, as far as is known."""
        return self.open_ms > 0

    def suspects(self, held: Iterable[int], following: int, published: Collection[DoubtRange]) -> list[int]:
        """Which of *held* are in doubt if they have no record. *following* is the number of the next ledger;
        *published* are the ranges that it has (rules 1, 3)."""
        end = numbers_end(following)
        has_gone_back = following <= self.given
        fresh = [doubted for doubted in published if doubted not in self.known]
        floor = min([following, *(doubted.first for doubted in fresh)])
        suspects = set(self.doubts)
        for held_id in [held_id for held_id in held if held_id >= floor]:  # few, of a million
            is_new = following <= held_id < end and (has_gone_back or not any(held_id in known for known in self.known))
            if is_new or any(held_id in doubted for doubted in fresh):
                suspects.add(held_id)
        return sorted(suspects)

    def newest_seen(self, following: int, absent: Iterable[int]) -> int:
        """The highest number that was given, of those that are not below *following*; less than it if there is none."""
        end = numbers_end(following)
        return max([self.given, *(ledger_id for ledger_id in absent if following <= ledger_id < end)])

    def with_doubt_opened(self, noticed: DoubtRange, absent: Collection[int]) -> "Note":
        """The metadata is older than ledgers: the range of their numbers, and those of them that have no record."""
        is_known = any(known.first <= noticed.first and noticed.last <= known.last for known in self.known)
        return replace(
            self,
            open_ms=self.open_ms or noticed.noticed_ms,
            known=self.known if is_known else bounded([*self.known, noticed]),
            doubts=frozenset(absent),
        )

    def after_look(self, following: int, published: Collection[DoubtRange], absent: Collection[int]) -> "Note":
        """The note after one look: the next ledger gets the number *following*, the store has the ranges *published*,
        and of the suspects *absent* have no record.

        The doubt (`open_ms`) begins with a range that is new here. It ends when no ledger is in doubt and the store has
        no range any more, as when newer metadata were put back. A bookie whose first look finds none of its ledgers in
        doubt is a new one, and the ranges are not about it.
        """
        fresh = [doubted for doubted in published if doubted not in self.known]
        doubts = frozenset(absent)
        open_ms = self.open_ms or max((doubted.noticed_ms for doubted in fresh), default=0)
        is_new = not self.revision and not self.is_open
        is_over = not doubts and (is_new or not published)
        return replace(
            self,
            given=max(self.given, following - 1),
            open_ms=0 if is_over else open_ms,
            known=bounded([*self.known, *fresh]),
            doubts=doubts,
        )

    def forgotten(self) -> "Note":
        """An operator has said that what is in doubt is of no use (rule 2). The number given is learned anew."""
        return replace(self, given=-1, open_ms=0, doubts=frozenset())

    def encode(self) -> bytes:
        lines = [_HEAD, f"revision {self.revision}", f"given {self.given}", f"open {self.open_ms}"]
        lines += [f"known {known.encode()}" for known in self.known]
        lines += [f"doubt {first} {last}" for first, last in runs(self.doubts)]
        body = "".join(f"{line}\n" for line in lines).encode()
        return body + b"crc %08x\n" % crc32c(body)


def numbers_end(following: int) -> int:
    """The first number that is not given from the counter that gave *following*. Others have one of their own, or were
    chosen by a client."""
    return SHORT_ID_LIMIT if following < SHORT_ID_LIMIT else ((following >> 32) + 1) << 32


def runs(ledger_ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """*ledger_ids* as (first, last), ascending."""
    ids = sorted(ledger_ids)
    if not ids:
        return
    first = ids[0]
    for ledger_id, following in pairwise(ids):
        if following != ledger_id + 1:
            yield first, ledger_id
            first = following
    yield first, ids[-1]


def decode(data: bytes, path: str) -> Note:
    """Raises Corruption."""
    try:
        body, separator, crc = data.rpartition(b"crc ")
        if not separator or int(crc, 16) != crc32c(body):
            raise ValueError("its checksum is wrong")
        head, *lines = body.decode().splitlines()
        if head != _HEAD:
            raise ValueError(f"it begins with {head!r}")
        values = {"revision": 0, "given": -1, "open": 0}
        known: list[DoubtRange] = []
        doubts: set[int] = set()
        for line in lines:
            name, _, rest = line.partition(" ")
            if name == "known":
                known.append(decode_range(rest))
            elif name == "doubt":
                first, last = rest.split(" ")
                doubts.update(range(int(first), int(last) + 1))
            elif name in values:
                values[name] = int(rest)
            else:
                raise ValueError(f"{line!r}")
    except ValueError as error:
        raise Corruption(
            f"{path} does not say which ledgers are newer than the metadata: {error}. Put back that of another ledger "
            "directory; without any, remove it, and look with `magnetar ledgers strays` before garbage is collected"
        ) from None
    return Note(values["revision"], values["given"], values["open"], tuple(known), frozenset(doubts))


def too_far(following: int, newest: int, count: int) -> str:
    """The refusal of a bookie to move the numbers on by so much."""
    return (
        f"the next ledger gets the number {following}, and numbers up to {newest} were given before ({count} ledgers "
        f"here have no record): the metadata is older than the ledgers by more than {ADVANCE_MAX} numbers, or is not "
        "this cluster's. Put back the newest metadata there is; if these ledgers are of no use, "
        "`magnetar bookie gc forget-doubt`"
    )
