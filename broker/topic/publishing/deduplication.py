"""Recognises messages that a producer sends again although they are stored. No IO and no clock.

For each producer name two sequence ids are kept: the highest handed to storage (pushed) and the highest that
storage confirmed (persisted).

         persisted       pushed
    ─────────┴──────────────┴────────▶ sequence ids of one producer
     duplicate   in flight     new

Rules:

1. `persisted` never exceeds what is durable; a snapshot taken with the position of the last confirmed entry holds
   every entry up to that position (I99).
2. A message in flight may still fail, so a second copy of it is neither confirmed nor stored; its producer has to send
   it again later.
3. After a storage failure `pushed` falls back to `persisted`: a retry of a message that is not durable is accepted.
4. A batch is judged by its highest id. One that begins with old ids and ends with new ones is stored: losing the
   new ones would be worse than repeating the old ones.
5. A message that storage refused as too large was not stored and never will be as it is. If its id comes again, it is
   handed to storage again, also behind later ones: confirming it would lose it. Rules 2 and 3 hold for it, too.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final

from managed_ledger.messages_pb2 import MessageMetadata

_SIGN: Final = 2**63

# Refused messages of a topic that are remembered (rule 5), some 200 bytes each. Each was larger than a bookie's frame.
REFUSED_MAX: Final = 1_000

# Below every sequence id; stands for a producer that is not known.
_NONE: Final = -_SIGN - 1


class Verdict(Enum):
    """What becomes of a message."""

    NEW = "store it"
    DUPLICATE = "confirm it without storing it"
    IN_FLIGHT = "refuse it: whether the first copy is stored is not known yet"


class Deduplication:
    """The sequence ids of one topic."""

    def __init__(self, producers_max: int) -> None:
        # A producer takes about 200 bytes here and 30 in each snapshot. (brokerDeduplicationMaxNumberOfProducers)
        self._producers_max = producers_max
        self._pushed: dict[str, int] = {}
        self._persisted: dict[str, int] = {}
        self._absent_since_ms: dict[str, int] = {}
        # Rule 5: each with whether it is in flight again.
        self._refused: dict[tuple[str, int], bool] = {}
        self.entries_since_snapshot = 0

    def check(self, producer: str, sequence_id: int, highest_sequence_id: int) -> Verdict:
        """Judge a message that is about to be stored; NEW also notes it as pushed."""
        highest = highest_of(sequence_id, highest_sequence_id)
        if (producer, highest) in self._refused:  # rule 5
            if self._refused[producer, highest]:
                return Verdict.IN_FLIGHT
            self._refused[producer, highest] = True
            return Verdict.NEW
        if highest > self._pushed.get(producer, _NONE):
            self._pushed[producer] = highest
            return Verdict.NEW
        return Verdict.DUPLICATE if highest <= self._persisted.get(producer, _NONE) else Verdict.IN_FLIGHT

    def on_persisted(self, producer: str, sequence_id: int, highest_sequence_id: int) -> None:
        """An entry of *producer* is durable."""
        highest = highest_of(sequence_id, highest_sequence_id)
        self.entries_since_snapshot += 1
        if self._refused:
            self._refused.pop((producer, highest), None)
        if highest > self._persisted.get(producer, _NONE):
            self._persisted[producer] = highest

    def on_refused(self, producer: str, sequence_id: int, highest_sequence_id: int) -> None:
        """An entry of *producer* is too large for storage (rule 5)."""
        self._refused[producer, highest_of(sequence_id, highest_sequence_id)] = False
        if len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def on_storage_failed(self) -> None:
        """Messages in flight failed, or may have failed (rule 3)."""
        self._pushed = dict(self._persisted)
        self._refused = dict.fromkeys(self._refused, False)

    def restore(self, snapshot: Mapping[str, int]) -> None:
        """Begin with a stored snapshot."""
        self._persisted = dict(snapshot)
        self._pushed = dict(snapshot)
        self._refused.clear()
        self.entries_since_snapshot = 0

    def replay(self, metadata: MessageMetadata) -> None:
        """Note the sequence ids of a stored entry that is newer than the snapshot."""
        if metadata.HasField("marker_type"):
            return
        if metadata.num_chunks_from_msg > 1 and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
            return
        name = metadata.producer_name
        self.on_persisted(name, metadata.sequence_id, metadata.highest_sequence_id)
        self._pushed[name] = max(self._pushed.get(name, _NONE), self._persisted[name])

    def last_sequence_id(self, producer: str) -> int:
        """The highest id that is durable, -1 for a producer that is not known."""
        return self._persisted.get(producer, -1)

    def snapshot(self) -> dict[str, int]:
        """What to store with the position of the last confirmed entry."""
        self.entries_since_snapshot = 0
        return dict(self._persisted)

    def forget_inactive(self, connected: Collection[str], now_ms: int, inactivity_ms: int) -> None:
        """Drop producers absent for *inactivity_ms*, and if there are too many, the longest absent ones."""
        for name in self._persisted:
            if name in connected:
                self._absent_since_ms.pop(name, None)
            else:
                self._absent_since_ms.setdefault(name, now_ms)
        absent = sorted(self._absent_since_ms.items(), key=lambda item: item[1])
        surplus = len(self._persisted) - self._producers_max
        for name, since_ms in absent:
            if now_ms - since_ms < inactivity_ms and surplus <= 0:
                break
            surplus -= 1
            del self._absent_since_ms[name]
            self._persisted.pop(name, None)
            self._pushed.pop(name, None)


def highest_of(sequence_id: int, highest_sequence_id: int) -> int:
    """The highest sequence id of a message or batch, as its sender means it.

    Only batches have the second one; where it is absent it reads 0, and some clients set it to -1.
    """
    sequence = _signed(sequence_id)
    return max(sequence, _signed(highest_sequence_id)) if highest_sequence_id else sequence


def _signed(sequence_id: int) -> int:
    """The wire's unsigned number as the stored, signed one."""
    return sequence_id - 2 * _SIGN if sequence_id >= _SIGN else sequence_id
