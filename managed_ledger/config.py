"""Settings of one managed ledger. The broker fills them from its own settings and the namespace's policies. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from magnetar_core.bookkeeper.client.placing.isolation import Isolation
from magnetar_core.bookkeeper.wire.entry import DigestType
from magnetar_core.runtime.types import MIB
from managed_ledger.messages_pb2 import LZ4
from managed_ledger.retention import RetentionRule, RolloverRule

MINUTE_MS = 60_000
APPEND_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagedLedgerConfig:
    """Quorums, rollover, retention and the limits of what is kept in memory. Defaults are Pulsar's."""

    ensemble_size: int = 2
    write_quorum: int = 2
    ack_quorum: int = 2
    digest_type: DigestType = DigestType.CRC32C
    password: bytes = b""
    bookie_groups: Isolation | None = None
    """The groups of bookies for its ledgers and those of its cursors; None: those of the BookKeeper client."""

    rollover: RolloverRule = field(
        default_factory=lambda: RolloverRule(
            entries_max=50_000, bytes_max=2048 * MIB, age_max_ms=240 * MINUTE_MS, age_min_ms=10 * MINUTE_MS
        )
    )
    retention: RetentionRule = field(default_factory=RetentionRule)

    # Acknowledgements are stored at most this often (Pulsar: managedLedgerDefaultMarkDeleteRateLimit, 1 a second). What
    # was acknowledged since is delivered again after a crash.
    mark_delete_interval_s: float = 1.0
    # A cursor ledger is replaced after so many states or so much time, so that its bookies can drop the old ones.
    cursor_ledger_entries_max: int = 50_000
    cursor_ledger_age_max_s: float = 14_400.0
    # Ranges beyond are not stored and delivered again after a restart. A range takes about 20 bytes.
    cursor_ranges_max: int = 200_000
    # The same for batches that are acknowledged in part.
    cursor_batches_max: int = 200_000
    # States in cursor ledgers have the bits of acknowledged entries where these are shorter than ranges.
    # (Pulsar: managedLedgerPersistIndividualAckAsLongArray)
    cursor_words: bool = True
    # Up to so many ranges a closed cursor is put into its metadata node, which must stay below 1 MiB.
    cursor_ranges_in_node_max: int = 10_000

    # How records of topics and of cursors are stored that are above the threshold; Pulsar 4.0 and newer read each
    # form. (Pulsar: managedLedgerInfoCompressionType, managedCursorInfoCompressionType)
    record_compression: int = LZ4
    record_compression_bytes: int = 16_384
    cursor_compression: int = LZ4
    cursor_compression_bytes: int = 16_384

    # Entries and ledgers that are gone for good count as acknowledged when a cursor meets them; else its reads fail and
    # are tried again. (Pulsar: autoSkipNonRecoverableData)
    passes_over_lost: bool = False
    # A cursor whose ledger cannot be read for any reason goes back to what its node says; else its topic does not open.
    # (Pulsar: managedLedgerForceRecovery)
    forces_recovery: bool = False

    # Its entries carry an index, which goes on where the former owner left it (`managed_ledger.reading.entry_index`).
    # Finding it takes a read of the last entry when the topic is opened.
    keeps_index: bool = False

    # How long appends wait for bookies or the metadata store before they fail.
    append_timeout_s: float = APPEND_TIMEOUT_S
    # Ledgers that are kept open for reading. One costs its metadata, about 1 KB.
    read_handles_max: int = 32

    @property
    def placement(self) -> tuple[tuple[str, bytes], ...]:
        """What the records of its ledgers say about the bookies on which they may be."""
        return () if self.bookie_groups is None else self.bookie_groups.custom_metadata

    def problems(self) -> Iterator[str]:
        if not 1 <= self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            yield (
                f"quorums must satisfy 1 <= ack quorum ({self.ack_quorum}) <= write quorum ({self.write_quorum}) "
                f"<= ensemble size ({self.ensemble_size})"
            )
