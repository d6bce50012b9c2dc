"""The parts of the groups that have some. No IO, and quick to import."""

from collections.abc import Mapping, Sequence
from typing import Final

SPARK_SIZES: Final = ((1_000, 600_000), (100, 3_000_000))
"""(bytes of a message, messages in the topic)"""
SPARK_PARTITIONS: Final = (1, 4, 16)

PARTS: Final[Mapping[str, Sequence[str]]] = {
    "spark": (
        *(f"read-{size}-{partitions}" for size, _ in SPARK_SIZES for partitions in SPARK_PARTITIONS),
        "many",
        "stages",
        "planning",
    ),
    "takeover": ("one", "many"),
    "growth": ("ledgers", "entries", "topics", "consumers", "backlog"),
}

MANY_ROWS: Final = 100_000_000

MOST_ENTRIES: Final = 100_000_000
