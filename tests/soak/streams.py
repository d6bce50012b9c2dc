"""The publishers, subscriptions and readers of a round, by language. No IO."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.soak.schedule import PARTITIONS

ALL: Final = tuple(range(PARTITIONS))

UNBATCHED: Final = (4, 5)
"""Partitions whose entries have one message, so that the order of a key holds through Key_Shared."""

JAVA_PARTITION: Final = 6
GO_PARTITION: Final = 7


@dataclass(frozen=True, slots=True)
class Stream:
    """A file of events."""

    name: str
    """Of a subscription: its name."""
    language: str
    type: str
    """Exclusive, Failover, Shared, Key_Shared, reader"""
    partitions: tuple[int, ...]
    consumers: int = 1
    """Of each partition where *is_by_partition*, else of the whole topic."""

    @property
    def is_by_partition(self) -> bool:
        return self.type not in ("Shared", "Key_Shared")

    @property
    def kind(self) -> str:
        """As `books.Given` calls it."""
        return {"Shared": "shared", "Key_Shared": "keyed", "reader": "reader"}.get(self.type, "ordered")


STREAMS: Final = (
    Stream("python-exclusive", "python", "Exclusive", ALL),
    Stream("python-failover", "python", "Failover", (0, 2, 4, 6), consumers=2),
    Stream("python-shared", "python", "Shared", ALL, consumers=3),
    Stream("python-key-shared", "python", "Key_Shared", ALL, consumers=3),
    Stream("python-reader", "python", "reader", (0, 3, 5, 7)),
    Stream("java-exclusive", "java", "Exclusive", (0, 6)),
    Stream("java-failover", "java", "Failover", (1, 7), consumers=2),
    Stream("java-shared", "java", "Shared", ALL, consumers=2),
    Stream("java-key-shared", "java", "Key_Shared", ALL, consumers=2),
    Stream("java-reader", "java", "reader", (2, 6)),
    Stream("go-exclusive", "go", "Exclusive", (1, 7)),
    Stream("go-failover", "go", "Failover", (3, 6), consumers=2),
    Stream("go-shared", "go", "Shared", ALL, consumers=2),
    Stream("go-key-shared", "go", "Key_Shared", ALL, consumers=2),
    Stream("go-reader", "go", "reader", (1, 5)),
)


def acks_by_index(stream: Stream, topic: str) -> bool:
    """Whether the consumers of *topic* acknowledge single messages of a batch. All of one subscription do the same: a
    client that does not never acknowledges an entry of which another one has acknowledged a part (C++, Go)."""
    if stream.is_by_partition:
        return int(topic[-1]) % 2 == 0
    return stream.type == "Shared"


def streams_of(languages: Sequence[str], *, trims: bool) -> list[Stream]:
    """Without readers where consumed ledgers are deleted."""
    return [stream for stream in STREAMS if stream.language in languages and not (trims and stream.type == "reader")]


def publisher_of(partition: int, languages: Sequence[str]) -> str:
    """The language in which *partition* is published to."""
    if partition == JAVA_PARTITION and "java" in languages:
        return "java"
    return "go" if partition == GO_PARTITION and "go" in languages else "python"


def publisher_stream(partition: int) -> str:
    return f"publisher-{partition}"
