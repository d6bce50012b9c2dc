"""Settings of a replicated state log: a value, checked once. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass

from magnetar_core.runtime.types import MIB, ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLogConfig:
    """One log's settings; the same on all of its nodes."""

    root: str
    """The node of the metadata store below which everything of this log stands; nothing else may be there."""
    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    password: bytes = b""
    ledger_edits: int = 50_000
    """A new ledger is begun after so many entries …"""
    ledger_bytes: int = 64 * MIB
    """… or so many bytes. Ledgers are dropped whole, so this is the grain of truncation."""
    snapshot_edits: int = 10_000
    """Edits between two snapshots."""
    snapshot_copies: int = 2
    """Ledgers are dropped when so many nodes, the leader among them, hold snapshots that cover them (I122)."""
    marker_s: float = 0.02
    """An idle leader says so much later that its last edit is confirmed; until then followers do not see it."""
    poll_s: float = 0.02
    """A follower looks for new entries so often, if no bookie announces them before …"""
    poll_idle_s: float = 0.5
    """… and where none come, step by step less often, down to this."""
    retry_s: float = 1.0
    """After an error of bookies or metadata store."""

    def __post_init__(self) -> None:
        problems = list(self.problems())
        if problems:
            raise ConfigurationError("; ".join(problems))

    def problems(self) -> Iterator[str]:
        parts = self.root.split("/")
        if len(parts) < 2 or parts[0] or not all(parts[1:]):
            yield f"root {self.root!r} is not an absolute path below / (as /dictionary)"
        elif parts[1] in _OF_OTHERS:
            yield f"root {self.root!r} is in the tree of BookKeeper, Pulsar or ZooKeeper; take one beside them"
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            yield f"ack_quorum {self.ack_quorum} ≤ write_quorum {self.write_quorum} ≤ ensemble_size must hold"
        for name in ("ledger_edits", "ledger_bytes", "snapshot_edits", "snapshot_copies"):
            if getattr(self, name) < 1:
                yield f"{name} must be 1 or more"
        if not 0 < self.poll_s <= self.poll_idle_s:
            yield f"poll_s ({self.poll_s}) must be above 0, and at most poll_idle_s ({self.poll_idle_s})"
        if self.marker_s < 0 or self.retry_s <= 0:
            yield "marker_s must not be negative, and retry_s must be above 0"


# The first parts of paths that BookKeeper, Pulsar and ZooKeeper use.
_OF_OTHERS = frozenset(
    (
        "admin", "bookies", "bookkeeper", "cluster", "counters", "ledgers", "loadbalance", "managed-ledgers",
        "namespace", "pulsar", "resource-quota", "schemas", "stream", "txn", "zookeeper",
    )
)  # fmt: skip
