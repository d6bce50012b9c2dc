"""How many connections the binary ports take, in all and from one address. No IO."""

from collections import Counter
from typing import Final

TOO_MANY: Final = "Reached the maximum number of connections"
"""Apache's words."""

# Connections that are not authenticated yet. They cost some 20 KB each, and anybody can open them.
HANDSHAKES_MAX: Final = 10_000


class ConnectionLimits:
    """Counts the connections; 0 means no limit."""

    def __init__(self, total_max: int, per_address_max: int) -> None:
        self._total_max = total_max
        self._per_address_max = per_address_max
        self._total = 0
        self._by_address: Counter[str] = Counter()

    def admit(self, address: str) -> str | None:
        """Count a connection from *address*; returns why it is refused, and then it is not counted."""
        if self._total_max and self._total >= self._total_max:
            return TOO_MANY
        if self._per_address_max and self._by_address[address] >= self._per_address_max:
            return f"{TOO_MANY} on address {address}"
        self._total += 1
        self._by_address[address] += 1
        return None

    def release(self, address: str) -> None:
        """A connection that was counted is gone."""
        assert self._by_address[address] > 0, "only counted connections are released"
        self._total -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
