"""What clients say about themselves when they make producers, consumers and subscriptions: kept as long as these are.
No IO.

Rules:

1. One command brings `PROPERTIES_BYTES_MAX` at most. (Brokers of Apache have no such limit.)
2. What is kept has one limit for the clients of a connection, and one for all clients. It counts as long as anything
   keeps it: each `Properties` gives its bytes back when it is gone.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from broker.errors import NotAllowed
from magnetar_core.runtime.types import KIB, MIB

PROPERTIES_BYTES_MAX: Final = 64 * KIB
CONNECTION_BYTES_MAX: Final = 32 * MIB
KEPT_BYTES_MAX: Final = 256 * MIB

# What a property takes beside its bytes: two texts and a place in a dict.
ITEM_BYTES: Final = 200


class KeyValue(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def value(self) -> str: ...


class KeptBytes:
    """A sum of bytes; that of a connection counts in the sum of all as well."""

    __slots__ = ("bytes", "limit_bytes", "of_all", "whose")

    def __init__(self, limit_bytes: int, whose: str, of_all: "KeptBytes | None" = None) -> None:
        """*whose*: for the refusal."""
        self.bytes = 0
        self.limit_bytes = limit_bytes
        self.whose = whose
        self.of_all = of_all

    @staticmethod
    def of_broker() -> "KeptBytes":
        return KeptBytes(KEPT_BYTES_MAX, "all clients of this broker")

    def of_connection(self) -> "KeptBytes":
        """A sum for one connection; this is the one of all."""
        return KeptBytes(CONNECTION_BYTES_MAX, "this connection", self)

    def change(self, size_bytes: int) -> None:
        self.bytes += size_bytes
        assert self.bytes >= 0, "more was given back than was kept"
        if self.of_all is not None:
            self.of_all.change(size_bytes)

    def check_room(self, size_bytes: int, what: str) -> None:
        """Raises NotAllowed."""
        if self.bytes + size_bytes > self.limit_bytes:
            raise NotAllowed(
                f"{what}: the properties of producers and consumers of {self.whose} would take "
                f"{self.bytes + size_bytes} bytes, more than {self.limit_bytes}; give fewer or shorter ones"
            )
        if self.of_all is not None:
            self.of_all.check_room(size_bytes, what)


class Properties(dict[str, str]):
    """Properties that count in a sum while they are kept (rule 2)."""

    __slots__ = ("_counted_bytes", "_kept")

    def __init__(self, items: Iterable[KeyValue], kept: KeptBytes, what: str) -> None:
        """*what* is made with them. Raises NotAllowed."""
        self._counted_bytes = 0
        self._kept = kept
        super().__init__((item.key, item.value) for item in items)
        if self:
            size_bytes = sum(len(key) + len(value) for key, value in self.items()) + ITEM_BYTES * len(self)
            kept.check_room(size_bytes, what)
            kept.change(size_bytes)
            self._counted_bytes = size_bytes

    def __del__(self) -> None:
        self._kept.change(-self._counted_bytes)


def check_size(items: Iterable[KeyValue], what: str) -> None:
    """Raises NotAllowed for properties of *what* that are longer than anybody needs (rule 1)."""
    check_bytes(sum(len(item.key) + len(item.value) for item in items), what)


def check_bytes(size_bytes: int, what: str) -> None:
    """The same where they are counted already."""
    if size_bytes > PROPERTIES_BYTES_MAX:
        raise NotAllowed(
            f"{what}: its properties have {size_bytes} characters, more than {PROPERTIES_BYTES_MAX}; give fewer or "
            "shorter ones"
        )
