"""Names that clients send, and the bundles over which the topics of a namespace are distributed. No IO.

    cluster, tenant, namespace    1 to 255 letters of the alphabet, digits and -=:._ (`magnetar_core.topics.topic_name`)
    topic                         1 to 1,024 bytes without `/`; not `.` or `..`
    subscription                  1 to 1,024 bytes; not blank, `.` or `..`, nor one of the brokers' own
    producer, consumer            at most 1,024 bytes

The name of a topic, subscription, producer or consumer that is made has no character that changes the text around it
(`magnetar_core.runtime.data.visible`), whichever port the request comes to. What already has such a name, as from a
cluster of Apache's, is served, listed and deleted.
"""

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise
from typing import Final

from broker.errors import InvalidTopicName, NotAllowed
from magnetar_core.bookkeeper.wire.checksum import crc32
from magnetar_core.runtime.data.visible import controlling, visible
from magnetar_core.topics.topic_name import PERSISTENT, TopicName, TopicNameError, is_entity_name
from managed_ledger.compacted.entry import COMPACTION_CURSOR

# The longest name of a subscription, producer or consumer, as of a topic. Encoded twice, it still fits into a path of
# the admin API.
CLIENT_NAME_BYTES_MAX: Final = 1_024

NO_CONTROLS: Final = "{} is a control character, the end of a line, or a mark that turns the direction of writing"

# Cursors that the broker keeps for itself.
DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
REPLICATION_PREFIX: Final = "pulsar.repl"
"""Apache's brokers keep in `pulsar.repl.CLUSTER` how far a topic has been replicated to another cluster."""
_SYSTEM_READERS: Final = "__system_reader"

COORDINATORS: Final = TopicName(PERSISTENT, "pulsar", "system", "transaction_coordinator_assign")
"""Its partitions stand for the transaction coordinators: clients that want transactions look it up first."""


def parse_topic(text: str) -> TopicName:
    """A name that a client sent. Raises InvalidTopicName."""
    try:
        return TopicName.parse(text)
    except TopicNameError as error:
        raise InvalidTopicName(f"Invalid topic name: {error}") from None


def parse_namespace(text: str) -> tuple[str, str]:
    """(tenant, namespace). Raises InvalidTopicName."""
    parts = text.split("/")
    if len(parts) != 2 or not all(map(is_entity_name, parts)):
        raise InvalidTopicName(f"Invalid namespace: {text}; write tenant/namespace", way_out="")
    return parts[0], parts[1]


def is_reserved_subscription(name: str) -> bool:
    """Whether *name* is a cursor of the broker itself, to which no consumer may subscribe."""
    return name in (DEDUPLICATION_CURSOR, COMPACTION_CURSOR) or name.startswith(REPLICATION_PREFIX)


def remote_cluster(cursor: str) -> str:
    """The cluster to which a cursor belongs; empty: it is not one of replication."""
    prefix = f"{REPLICATION_PREFIX}."
    return cursor.removeprefix(prefix) if cursor.startswith(prefix) else ""


def check_client_name(name: str, what: str) -> None:
    """Raises NotAllowed if *name* cannot be the name of a *what*: names are stored, and reported with much else."""
    if len(name) > CLIENT_NAME_BYTES_MAX or len(name.encode(errors="replace")) > CLIENT_NAME_BYTES_MAX:
        raise NotAllowed(
            f"The name of the {what} is longer than {CLIENT_NAME_BYTES_MAX} bytes: {name[:80]}…", way_out="shorten it"
        )
    if (character := controlling(name)) is not None:
        raise NotAllowed(
            f"Invalid name of the {what} {visible(name[:80])}: {NO_CONTROLS.format(character)}",
            way_out="take another name",
        )


def is_internal_subscription(name: str) -> bool:
    """Whether *name* is that of a cursor or reader by which brokers read what belongs to themselves."""
    return name in (DEDUPLICATION_CURSOR, COMPACTION_CURSOR) or name.startswith(_SYSTEM_READERS)


def bundle_hash(topic: TopicName) -> int:
    """The hash that decides to which bundle of its namespace a topic belongs: 0 … 2³²-1."""
    return crc32(topic.full.encode())


class Bundles:
    """The ranges of topic hashes into which a namespace is cut. Ranges are [low, high); the last includes its end."""

    __slots__ = ("boundaries",)

    def __init__(self, boundaries: tuple[int, ...]) -> None:
        assert len(boundaries) >= 2, "a namespace has at least one bundle"
        assert boundaries[0] == 0, "the first bundle starts at 0"
        assert boundaries[-1] == 0xFFFF_FFFF, "the last bundle ends at 0xffffffff"
        assert all(low < high for low, high in pairwise(boundaries)), "bundles grow"
        self.boundaries = boundaries

    @staticmethod
    def equal(count: int) -> "Bundles":
        """*count* bundles of one size."""
        assert count >= 1, "a namespace has at least one bundle"
        step = 2**32 // count
        return Bundles((*(step * number for number in range(count)), 0xFFFF_FFFF))

    @staticmethod
    def from_texts(texts: list[str]) -> "Bundles":
        return Bundles(tuple(int(text, 16) for text in texts))

    @property
    def texts(self) -> list[str]:
        return [f"0x{boundary:08x}" for boundary in self.boundaries]

    def range_of(self, topic: TopicName) -> str:
        """The range that holds *topic*, as `0x10000000_0x20000000`."""
        hash_, boundaries = bundle_hash(topic), self.boundaries
        low, high = 0, len(boundaries) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if boundaries[middle] <= hash_:
                low = middle
            else:
                high = middle
        return f"0x{boundaries[low]:08x}_0x{boundaries[low + 1]:08x}"

    def bundle_of(self, topic: TopicName) -> str:
        """`tenant/namespace/0x…_0x…`."""
        return f"{topic.namespace}/{self.range_of(topic)}"

    @property
    def ranges(self) -> list[str]:
        return [f"0x{low:08x}_0x{high:08x}" for low, high in pairwise(self.boundaries)]

    def cut(self, positions: Iterable[int]) -> "Bundles":
        """These bundles with more boundaries."""
        return Bundles(tuple(sorted({*self.boundaries, *positions})))


class BundleSet:
    """Some bundles, of any namespaces, by their names `tenant/namespace/0x…_0x…`.

    Whether a topic is in one of them does not depend on how its namespace is cut now.
    """

    def __init__(self, bundles: Iterable[str]) -> None:
        self._ranges: dict[str, list[tuple[int, int]]] = {}
        for bundle in bundles:
            namespace, _, text = bundle.rpartition("/")
            low, _, high = text.partition("_")
            self._ranges.setdefault(namespace, []).append((int(low, 16), int(high, 16)))
        for ranges in self._ranges.values():
            ranges.sort()

    def has(self, topic: TopicName) -> bool:
        """Whether *topic* falls into one of them."""
        ranges = self._ranges.get(topic.namespace)
        if ranges is None:
            return False
        hash_ = bundle_hash(topic)
        index = bisect_right(ranges, (hash_, 2**32)) - 1
        if index < 0:
            return False
        high = ranges[index][1]
        return hash_ < high or hash_ == high == 0xFFFF_FFFF
