"""Names: tenants, namespaces, topics, partitions, and what they are called in the stores.

    persistent://tenant/namespace/local-partition-3
    └─ domain    └─ tenant └─ namespace └─ local, with the suffix of a partition

Rules:

1. `t` stands for `persistent://public/default/t`, `a/b/c` for `persistent://a/b/c`. Other short forms are invalid.
2. In the stores the local name is encoded as Java's URLEncoder does it; two spellings of one name would make a
   topic invisible to the other broker.
3. `-partition-N` with N decimal and without leading zeros makes a partition; `-partition-01` is an ordinary name.
4. A schema belongs to the topic without its partition suffix.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Final
from urllib.parse import unquote_plus

from broker.errors import InvalidTopicName
from magnetar_core.bookkeeper.wire.checksum import crc32
from managed_ledger.names import encode as java_url_encode

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"

_PARTITION: Final = re.compile(r"-partition-(0|[1-9][0-9]{0,8})\Z")
_ENTITY: Final = re.compile(r"[-=:.\w]+\Z", re.ASCII)

# ZooKeeper refuses nodes whose names it cannot hold; file systems under other stores stop at 255.
_LOCAL_NAME_BYTES_MAX: Final = 1024

# Cursors that the broker keeps for itself.
DEDUPLICATION_CURSOR: Final = "pulsar.dedup"
COMPACTION_CURSOR: Final = "__compaction"
_REPLICATION_PREFIX: Final = "pulsar.repl"

_SYSTEM_TOPICS: Final = re.compile(
    r"__change_events|__transaction_buffer_snapshot.*|.*__transaction_pending_ack|__transaction_log_.*"
)


def java_url_decode(text: str) -> str:
    return unquote_plus(text)


@dataclass(frozen=True, slots=True)
class TopicName:
    """A topic, or one partition of a partitioned topic."""

    domain: str
    tenant: str
    namespace_local: str
    local: str

    @staticmethod
    def parse(text: str) -> "TopicName":
        """Raises InvalidTopicName."""
        return _parse(text)

    @property
    def full(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_local}/{self.local}"

    def __str__(self) -> str:
        return self.full

    @property
    def namespace(self) -> str:
        return f"{self.tenant}/{self.namespace_local}"

    @property
    def is_persistent(self) -> bool:
        return self.domain == PERSISTENT

    @property
    def partition(self) -> int:
        """The number of this partition, or -1."""
        match = _PARTITION.search(self.local)
        return int(match[1]) if match else -1

    @property
    def base(self) -> "TopicName":
        """The topic without the suffix of a partition."""
        match = _PARTITION.search(self.local)
        if match is None:
            return self
        return TopicName(self.domain, self.tenant, self.namespace_local, self.local[: match.start()])

    def with_partition(self, number: int) -> "TopicName":
        return TopicName(self.domain, self.tenant, self.namespace_local, f"{self.local}-partition-{number}")

    @property
    def encoded_local(self) -> str:
        return java_url_encode(self.local)

    @property
    def managed_ledger_name(self) -> str:
        return f"{self.tenant}/{self.namespace_local}/{self.domain}/{self.encoded_local}"

    @property
    def schema_id(self) -> str:
        return f"{self.tenant}/{self.namespace_local}/{self.base.encoded_local}"

    @property
    def partitions_path(self) -> str:
        """The node that says how many partitions the topic has."""
        return f"/admin/partitioned-topics/{self.base.managed_ledger_name}"

    @property
    def hash(self) -> int:
        """Decides to which bundle of its namespace the topic belongs; 0 … 2³²-1."""
        return crc32(self.full.encode())

    @property
    def is_system(self) -> bool:
        """The broker's own topics, hidden from listings."""
        return self.namespace == "pulsar/system" or _SYSTEM_TOPICS.fullmatch(self.base.local) is not None


COORDINATORS: Final = TopicName(PERSISTENT, "pulsar", "system", "transaction_coordinator_assign")
"""Whose partitions are the coordinators of transactions: clients that want transactions look it up first."""


@lru_cache(maxsize=10_000)  # one lookup each for a client's lookups, producers and subscriptions
def _parse(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if not separator:
        parts = text.split("/")
        if len(parts) == 1:
            parts = ["public", "default", *parts]
        domain = PERSISTENT
        if len(parts) != 3:
            raise InvalidTopicName(f"Invalid topic name: {text}: neither `topic` nor `tenant/namespace/topic`")
    else:
        parts = rest.split("/", 3)
    if domain not in (PERSISTENT, NON_PERSISTENT):
        raise InvalidTopicName(f"Invalid topic name: {text}: the domain {domain} is unknown")
    if len(parts) == 4:
        raise InvalidTopicName(
            f"Invalid topic name: {text}: names with a cluster (and `/` inside the last part) are not served; "
            "write persistent://tenant/namespace/topic"
        )
    if len(parts) != 3:
        raise InvalidTopicName(f"Invalid topic name: {text}")
    tenant, namespace, local = parts
    if not is_entity_name(tenant) or not is_entity_name(namespace):
        raise InvalidTopicName(f"Invalid topic name: {text}: tenant and namespace take letters, digits and -=:._")
    if not local or len(local.encode(errors="replace")) > _LOCAL_NAME_BYTES_MAX:
        raise InvalidTopicName(f"Invalid topic name: {text[:200]}: the last part is empty or too long")
    try:
        local.encode()
    except UnicodeEncodeError:
        raise InvalidTopicName("Invalid topic name: not valid Unicode") from None
    if local in (".", ".."):
        raise InvalidTopicName(f"Invalid topic name: {text}: no store can hold this name")
    return TopicName(domain, tenant, namespace, local)


def is_entity_name(text: str) -> bool:
    """Whether *text* may name a tenant, namespace or cluster."""
    return _ENTITY.match(text) is not None and text not in (".", "..")


def parse_namespace(text: str) -> tuple[str, str]:
    """(tenant, namespace). Raises InvalidTopicName."""
    parts = text.split("/")
    if len(parts) != 2 or not all(map(is_entity_name, parts)):
        raise InvalidTopicName(f"Invalid namespace: {text}; write tenant/namespace")
    return parts[0], parts[1]


def topic_of_managed_ledger(name: str) -> TopicName:
    """The topic whose managed ledger is called *name*. Raises InvalidTopicName."""
    parts = name.split("/")
    if len(parts) != 4:
        raise InvalidTopicName(f"{name} is not the name of a topic's managed ledger")
    tenant, namespace, domain, encoded = parts
    return TopicName(domain, tenant, namespace, java_url_decode(encoded))


def is_reserved_subscription(name: str) -> bool:
    """Cursors of the broker, which no consumer may subscribe to."""
    return name == DEDUPLICATION_CURSOR or name.startswith(_REPLICATION_PREFIX)


class Bundles:
    """How a namespace is cut into ranges of topic hashes. Ranges are [low, high); the last includes its end."""

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
        at, boundaries = topic.hash, self.boundaries
        low, high = 0, len(boundaries) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if boundaries[middle] <= at:
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
