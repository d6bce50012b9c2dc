"""The book of a round: confirmations and deliveries of the clients, from the events that they wrote. No IO.

Each client writes a line an event; a stream is a file of them:

    S n                 a publisher has sent number n of its partition
    A n l e b           … and was told that it is stored: ledger, entry, index in the batch (-1 -1 -1: stored before)
    G p n l e b who     a consumer or reader was given number n of partition p
    J p n               a reader begins anew; the next number is n
    # text              a remark: what the client did

Rules that it checks. A partition has one publisher, which numbers its messages 0, 1, 2, … and sends again what was not
confirmed, so with de-duplication the partition holds each number once and in order.

1. A reader is given n + 1 after n, from where it began.
2. An Exclusive or Failover subscription is given no number before all smaller ones: nothing is passed over. What was
   given may come again.
3. A Key_Shared subscription is given no number of a key before the smaller ones of that key (partitions whose
   batches have several keys are left out: one entry has one place).
4. At the end each subscription was given everything.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

KEYS: Final = 16

# How much of a violation is told; the rest is counted.
TOLD_MAX: Final = 20


class Place(NamedTuple):
    ledger_id: int
    entry_id: int
    batch_index: int


def key_of(number: int) -> str:
    return f"k{number % KEYS}"


def runs(numbers: Iterator[int]) -> str:
    """`3-7, 9` of ascending numbers; the first TOLD_MAX runs."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found[:TOLD_MAX]]
    return ", ".join(texts) + (f" and {len(found) - TOLD_MAX} more runs" if len(found) > TOLD_MAX else "")


class Problems:
    """Violations of the rules; their number and length are limited."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.count = 0

    def tell(self, text: str) -> None:
        self.count += 1
        if len(self.texts) < TOLD_MAX:
            self.texts.append(text)


class Published:
    """One publisher's side of a partition."""

    def __init__(self, partition: int) -> None:
        self.partition = partition
        self.sent = 0
        """Numbers below this have been sent."""
        self.receipts: dict[int, Place] = {}

    def feed(self, line: str, problems: Problems) -> None:
        kind, *rest = line.split()
        values = list(map(int, rest)) if kind != "#" else []
        if kind == "S":
            self.sent = max(self.sent, values[0] + 1)
        elif kind == "A":
            number, place = values[0], Place(*values[1:4])
            before = self.receipts.get(number)
            if before is not None and before.ledger_id >= 0 and place.ledger_id >= 0 and before != place:
                problems.tell(f"partition {self.partition}: {number} was confirmed at {before} and at {place}")
            if before is None or before.ledger_id < 0:
                self.receipts[number] = place

    @property
    def pending(self) -> int:
        return self.sent - len(self.receipts)


class _Part:
    """The numbers of one partition that one stream was given."""

    __slots__ = ("count", "last", "next", "next_of_key", "repeated", "seen", "top")

    def __init__(self) -> None:
        self.seen = bytearray()
        self.count = 0
        self.top = 0
        """The smallest number above all that was given."""
        self.next = 0
        self.next_of_key: dict[int, int] = {}
        self.repeated = 0
        self.last: Place | None = None

    def take(self, number: int) -> bool:
        """Whether it is seen for the first time."""
        if number >= len(self.seen):
            self.seen.extend(bytes(number + 1 - len(self.seen)))
        if self.seen[number]:
            self.repeated += 1
            return False
        self.seen[number] = 1
        self.count += 1
        return True

    def missing(self, sent: int) -> Iterator[int]:
        return (number for number in range(sent) if number >= len(self.seen) or not self.seen[number])


class Given:
    """What one subscription (`ordered`, `keyed`, `shared`) or reader (`reader`) was given."""

    def __init__(
        self, name: str, kind: str, partitions: tuple[int, ...], keyed_partitions: tuple[int, ...] = ()
    ) -> None:
        self.name = name
        self.kind = kind
        self.parts = {number: _Part() for number in partitions}
        self._keyed = frozenset(keyed_partitions)

    def feed(self, line: str, problems: Problems) -> None:
        kind, *rest = line.split()
        if kind == "#":
            return
        values = list(map(int, rest[:5]))
        part = self.parts.get(values[0])
        if part is None:
            problems.tell(f"{self.name}: was given {line}, which is not of its partitions")
            return
        if kind == "J":
            part.next = values[1]
            return
        number, place = values[1], Place(*values[2:5])
        is_new = part.take(number)
        if self.kind == "reader":
            self._in_sequence(part, values[0], number, place, problems)
        elif self.kind == "ordered":
            self._nothing_passed_over(part, values[0], number, place, problems)
        elif self.kind == "keyed" and is_new and values[0] in self._keyed:
            self._in_order_of_key(part, values[0], number, place, problems)
        part.last = place

    def _in_sequence(self, part: _Part, partition: int, number: int, place: Place, problems: Problems) -> None:
        if number != part.next:
            what = "passed over" if number > part.next else "was given again from"
            problems.tell(
                f"{self.name}, partition {partition}: {what} {part.next} … {number}; at {place}, after {part.last}"
            )
        part.next = number + 1

    def _nothing_passed_over(self, part: _Part, partition: int, number: int, place: Place, problems: Problems) -> None:
        if number > part.top:
            problems.tell(
                f"{self.name}, partition {partition}: {part.top} … {number - 1} passed over; "
                f"{number} at {place}, after {part.last}"
            )
        part.top = max(part.top, number + 1)

    def _in_order_of_key(self, part: _Part, partition: int, number: int, place: Place, problems: Problems) -> None:
        key = number % KEYS
        expected = part.next_of_key.get(key, key)
        if number != expected:
            problems.tell(
                f"{self.name}, partition {partition}: {number} at {place} came before {expected} of the same key"
            )
        part.next_of_key[key] = max(expected, number + KEYS)

    @property
    def count(self) -> int:
        """Different messages."""
        return sum(part.count for part in self.parts.values())

    @property
    def repeated(self) -> int:
        return sum(part.repeated for part in self.parts.values())

    def missing(self, sent: dict[int, int]) -> dict[int, list[int]]:
        """Partition → numbers that never came (rule 4), of those *sent* to each partition."""
        found = {}
        for partition, part in self.parts.items():
            if part.count < sent.get(partition, 0):
                found[partition] = list(part.missing(sent[partition]))
        return found


def check_stored(
    partition: int, stored: list[tuple[int, Place]], published: Published, problems: Problems
) -> dict[int, Place]:
    """Compare what a new reader found with what was confirmed; returns the position of each number."""
    places: dict[int, Place] = {}
    last = -1
    for number, place in stored:
        if number in places:
            problems.tell(
                f"partition {partition}: {number} is stored twice, at {places[number]} and {place}; "
                "de-duplication is on"
            )
            continue
        if number < last:
            problems.tell(f"partition {partition}: {number} at {place} is stored behind {last}")
        last = max(last, number)
        places[number] = place
    missing = sorted(published.receipts.keys() - places.keys())
    if missing:
        where = [published.receipts[number] for number in missing]
        problems.tell(
            f"partition {partition}: confirmed, and a fresh reader does not find {runs(iter(missing))}; "
            f"confirmed at {where[0]} … {where[-1]}"
        )
    for number, promised in published.receipts.items():
        found = places.get(number)
        if found is not None and promised.ledger_id >= 0 and promised != found:
            problems.tell(f"partition {partition}: {number} was confirmed at {promised} and is at {found}")
    return places
