"""A topic's name, and the paths that follow from it in the stores and in the admin API. No IO.

    persistent://tenant/namespace/local-partition-3
    └─ domain    └─ tenant └─ namespace └─ local, with the suffix of a partition

Rules:

1. `t` stands for `persistent://public/default/t`, `a/b/c` for `persistent://a/b/c`. Other short forms are invalid.
2. Names of Pulsar 1 have a cluster in them: `persistent://tenant/cluster/namespace/topic`. They are refused
   everywhere: by today's rules they would mean another namespace, and a topic with a `/` in its name.
3. In the stores the local name is encoded as Java's URLEncoder does it; two spellings of one name would make a
   topic invisible to the other broker.
4. A name that ends in `-partition-N`, with N decimal and without leading zeros, is a partition; `t-partition-01` is an
   ordinary name, and so is `-partition-1` with nothing in front.
5. A schema belongs to the topic without its partition suffix.

Modules that take names from clients turn TopicNameError into their own error.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import quote, quote_plus, unquote_plus

PERSISTENT: Final = "persistent"
NON_PERSISTENT: Final = "non-persistent"

PARTITIONED_TOPICS: Final = "/admin/partitioned-topics"
"""The records below it say how many partitions each topic has."""

_PARTITION_WORD: Final = "-partition-"
_PARTITION: Final = re.compile(r"(?<!\A)-partition-(0|[1-9][0-9]{0,8})\Z")
_ENTITY: Final = re.compile(r"[-=:.\w]+\Z", re.ASCII)

# Characters of a tenant, namespace or cluster: each is a node of the metadata store.
ENTITY_CHARS_MAX: Final = 255

# ZooKeeper refuses nodes whose names it cannot hold; file systems under other stores stop at 255.
_LOCAL_NAME_BYTES_MAX: Final = 1024

# How much of a name an error shows.
_SHOWN_CHARS: Final = 200

_SYSTEM_TOPICS: Final = re.compile(
    r"__change_events|__transaction_buffer_snapshot.*|.*__transaction_pending_ack|__transaction_log_.*"
)


class TopicNameError(ValueError):
    """A text is not the name of a topic; the message shows the text and says why."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"{text[:_SHOWN_CHARS]}: {reason}".encode(errors="replace").decode())
        self.reason = reason


@dataclass(frozen=True, slots=True, order=True)
class TopicName:
    """A topic, or one partition of a partitioned topic."""

    domain: str
    tenant: str
    namespace_local: str
    local: str

    @staticmethod
    def parse(text: str) -> "TopicName":
        """Raises TopicNameError."""
        return _parse(text)

    @staticmethod
    def of_managed_ledger(name: str) -> "TopicName":
        """The topic whose managed ledger is called *name*. Raises TopicNameError."""
        parts = name.split("/")
        if len(parts) != 4:
            raise TopicNameError(name, "not the name of a topic's managed ledger")
        tenant, namespace, domain, encoded = parts
        return TopicName(domain, tenant, namespace, decode(encoded))

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
    def is_system(self) -> bool:
        """Whether brokers made the topic for themselves; it is hidden from listings."""
        return self.namespace == "pulsar/system" or _SYSTEM_TOPICS.fullmatch(self.base.local) is not None

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

    def strict_problem(self, *, is_partition: bool) -> str | None:
        """Why a topic of this name may not be made where names are strict; None: it may. *is_partition*: of a
        partitioned topic that is there, or being made.

        The rule is that of Pulsar's documentation of `strictTopicNameEnabled`; its brokers of 4.0 do not apply it.
        """
        local = self.base.local if is_partition else self.local
        if _PARTITION_WORD in local:
            return f'"{_PARTITION_WORD}" is only for partitions of a partitioned topic that is there'
        if _ENTITY.match(local) is None:
            return "only letters of the alphabet, digits and _ - = : . may be in it"
        return None

    def with_partition(self, number: int) -> "TopicName":
        assert number >= 0, "partitions are numbered from 0"
        return TopicName(self.domain, self.tenant, self.namespace_local, f"{self.local}-partition-{number}")

    # -------------------------------------------------------------------------------- paths and names in the stores

    @property
    def encoded_local(self) -> str:
        return encode(self.local)

    @property
    def managed_ledger_name(self) -> str:
        return f"{self.tenant}/{self.namespace_local}/{self.domain}/{self.encoded_local}"

    @property
    def schema_id(self) -> str:
        """Partitions share the schema of their topic."""
        return f"{self.tenant}/{self.namespace_local}/{self.base.encoded_local}"

    @property
    def partitions_path(self) -> str:
        """The node that says how many partitions the topic has; a partition has none: ask for its `base`."""
        return f"{PARTITIONED_TOPICS}/{self.managed_ledger_name}"

    @property
    def rest_path(self) -> str:
        """The topic's part of a path of the admin API: `persistent/tenant/namespace/topic`."""
        return f"{self.domain}/{self.tenant}/{self.namespace_local}/{quote(self.local, safe='')}"


def encode(text: str) -> str:
    """Java's URLEncoder: letters, digits and `.-*_` stay, a space becomes `+`, the rest `%XX` in UTF-8."""
    return quote_plus(text, safe="*-._").replace("~", "%7E")


def decode(text: str) -> str:
    """What `encode` was given."""
    return unquote_plus(text)


@lru_cache(maxsize=10_000)  # a client sends each name several times: to look it up, to produce, to subscribe
def _parse(text: str) -> TopicName:
    domain, separator, rest = text.partition("://")
    if separator:
        if domain not in (PERSISTENT, NON_PERSISTENT):
            raise TopicNameError(text, f"the domain {domain[:_SHOWN_CHARS]} is unknown")
        parts = rest.split("/", 3)
    else:
        domain = PERSISTENT
        parts = text.split("/", 3)
        if len(parts) == 1:
            parts = ["public", "default", *parts]
    if len(parts) > 3:  # rule 2
        raise TopicNameError(
            text,
            "names with a cluster (and `/` inside the last part) are not served; "
            "write persistent://tenant/namespace/topic",
        )
    if len(parts) < 3:
        raise TopicNameError(
            text, "neither `topic` nor `tenant/namespace/topic` nor `persistent://tenant/namespace/topic`"
        )
    tenant, namespace, local = parts
    if not is_entity_name(tenant) or not is_entity_name(namespace):
        raise TopicNameError(text, f"tenant and namespace take letters, digits and -=:._, at most {ENTITY_CHARS_MAX}")
    if not local or len(local.encode(errors="replace")) > _LOCAL_NAME_BYTES_MAX:
        raise TopicNameError(text, "the last part is empty or too long")
    try:
        local.encode()
    except UnicodeEncodeError:
        raise TopicNameError(text, "not valid Unicode") from None
    if local in (".", ".."):
        raise TopicNameError(text, "no store can hold this name")
    return TopicName(domain, tenant, namespace, local)


def is_entity_name(text: str) -> bool:
    """Whether *text* may name a tenant, namespace or cluster."""
    return len(text) <= ENTITY_CHARS_MAX and _ENTITY.match(text) is not None and text not in (".", "..")
