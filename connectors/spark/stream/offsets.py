"""How far a streaming query has come, as it stands in Spark's checkpoints and its progress. No IO.

    {"origin": {"persistent://public/default/t": {"0": "5:0"}},
     "topics": {"persistent://public/default/t": {"0": "12:345"}},
     "version": 1}

`topics` says of each partition (0 where there are none) which entry is the next to be read, in the form of option
`startingOffsets`. A ledger that is closed and was read whole is left behind: `13:0` stands for its end as well as for
the beginning of the next one, since ledger ids grow.

Rules:

1. Spark compares offsets as texts, so equal ones have equal texts: their members are sorted.
2. `origin` is where the query began, and stays in every offset. Spark does not store the first offset of a query by
   itself: one that dies before its first batch is committed asks for it again, and "latest" has moved by then. So where
   the first batch begins is read from its end. `"fresh": true` marks an offset without a batch before it.
3. A partition that an offset does not name is read from its first entry: it was made later.
4. `kept`, of a query with a subscription, has the last entry that was read of each partition. The subscription stays in
   front of it, so its ledger is there as long as nobody else moves the subscription.
   (`connectors.spark.stream.follower`)
5. `behind` is only in the newest offset, which Spark shows in a query's progress (`connectors.spark.stream.driver` adds
   it): how much is left behind the batch. It is not read again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from connectors.spark.ranges import Position
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName, TopicNameError

VERSION: Final = 1

EARLIEST: Final[Position] = (0, 0)


class Part(NamedTuple):
    """A partition of a topic; 0 where there are none."""

    topic: str
    number: int


Positions = Mapping[Part, Position]


class Lag(NamedTuple):
    """What is left of topics behind a batch."""

    messages: int
    bytes: int
    seconds: float
    """Since the oldest message was published; 0 if none is left."""


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """One offset of a query."""

    positions: Positions
    origin: Positions = field(default_factory=dict)
    kept: Positions = field(default_factory=dict)
    """The last entry that was read of each partition (rule 4)."""
    is_fresh: bool = False

    def to_json(self) -> dict[str, Any]:
        """The offset as values of JSON (rule 1)."""
        members: dict[str, Any] = {"fresh": True} if self.is_fresh else {}
        if self.kept:
            members["kept"] = _as_json(self.kept)
        return {
            **members,
            "origin": _as_json(self.origin),
            "topics": _as_json(self.positions),
            "version": VERSION,
        }

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "StreamOffset":
        """Raises Corruption."""
        if "version" not in value:
            raise Corruption(f"the checkpoint is not one of this source: {value!r:.200}; begin a new checkpoint")
        version = value["version"]
        if version != VERSION:
            raise Corruption(
                f"the checkpoint has offsets of version {version!r}, and this source knows {VERSION}; go on with the "
                "release of Magnetar that wrote them, or begin a new checkpoint"
            )
        kept = _read(value, "kept") if "kept" in value else {}
        return StreamOffset(
            _read(value, "topics"), _read(value, "origin"), kept, is_fresh=bool(value.get("fresh", False))
        )

    def next_position(self, part: Part) -> Position:
        """Where reading of a partition goes on (rule 3)."""
        return self.positions.get(part, EARLIEST)


def start_of(start: StreamOffset, end: StreamOffset) -> StreamOffset:
    """Where the batch up to *end* begins if Spark says that it begins at *start* (rule 2)."""
    return StreamOffset(end.origin, end.origin, start.kept) if start.is_fresh else start


def _as_json(positions: Positions) -> dict[str, dict[str, str]]:
    topics: dict[str, dict[str, str]] = {}
    for part in sorted(positions):
        ledger_id, entry_id = positions[part]
        topics.setdefault(part.topic, {})[str(part.number)] = f"{ledger_id}:{entry_id}"
    return topics


def _read(value: Mapping[str, Any], member: str) -> dict[Part, Position]:
    positions: dict[Part, Position] = {}
    try:
        for topic, partitions in value[member].items():
            TopicName.parse(topic)
            for number, text in partitions.items():
                ledger_id, entry_id = text.split(":")
                position = int(ledger_id), int(entry_id)
                if min(position) < 0 or int(number) < 0:
                    raise ValueError(f"{number}: {text}")
                positions[Part(topic, int(number))] = position
    except (KeyError, AttributeError, TypeError, ValueError, TopicNameError) as error:
        raise Corruption(f"{member} of an offset in the checkpoint cannot be read: {value!r:.200} ({error})") from error
    return positions
