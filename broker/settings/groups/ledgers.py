"""Ledgers: their copies and where these are, their sizes, what is in an entry. No IO."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from magnetar_core.bookkeeper.client.deciding.quorum import ENSEMBLE_SIZE_MAX
from magnetar_core.bookkeeper.client.placing import regions
from magnetar_core.bookkeeper.client.placing.topology import RACKS_MIN
from magnetar_core.runtime.config import Group, setting

COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
DIGEST_TYPES: Final = ("CRC32", "CRC32C", "MAC", "DUMMY")
TIMESTAMP_INTERCEPTOR: Final = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"
INDEX_INTERCEPTOR: Final = "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"


@dataclass(frozen=True, kw_only=True)
class Ledgers(Group):
    """Ledgers, their copies, and the bookies for them."""

    ensemble_size: int = setting(
        "managedLedgerDefaultEnsembleSize", 2, help="bookies of a ledger", most=ENSEMBLE_SIZE_MAX
    )
    write_quorum: int = setting("managedLedgerDefaultWriteQuorum", 2, help="copies of an entry")
    ack_quorum: int = setting("managedLedgerDefaultAckQuorum", 2, help="copies before an entry is confirmed")
    digest_type: str = setting("managedLedgerDigestType", "CRC32C", help=", ".join(DIGEST_TYPES), choices=DIGEST_TYPES)
    max_entries_per_ledger: int = setting(
        "managedLedgerMaxEntriesPerLedger", 50_000, help="entries of a ledger", least=1
    )
    max_ledger_mbytes: int = setting("managedLedgerMaxSizePerLedgerMbytes", 2048, help="size of a ledger, MB", least=1)
    min_rollover_minutes: int = setting(
        "managedLedgerMinLedgerRolloverTimeMinutes", 10, help="a younger ledger is not replaced, even if full"
    )
    max_rollover_minutes: int = setting(
        "managedLedgerMaxLedgerRolloverTimeMinutes", 240, help="an older ledger is replaced, even if not full"
    )
    inactive_rollover_s: int = setting(
        "managedLedgerInactiveLedgerRolloverTimeSeconds",
        0,
        help="a ledger to which nothing was written for so long is replaced (looked at every "
        "retentionCheckIntervalInSeconds); 0: not for that",
    )
    cache_mbytes: int = setting("managedLedgerCacheSizeMB", 64, help="memory for entries just written, MB")
    record_compression: str = setting(
        "managedLedgerInfoCompressionType",
        "LZ4",
        help=f"how records of topics above the threshold are stored in the metadata store: {', '.join(COMPRESSIONS)}",
        choices=COMPRESSIONS,
    )
    record_compression_bytes: int = setting(
        "managedLedgerInfoCompressionThresholdInBytes", 16_384, help="the threshold, bytes"
    )
    cursor_compression: str = setting(
        "managedCursorInfoCompressionType",
        "LZ4",
        help="the same of the records of subscriptions",
        choices=COMPRESSIONS,
    )
    cursor_compression_bytes: int = setting(
        "managedCursorInfoCompressionThresholdInBytes", 16_384, help="their threshold, bytes"
    )
    acks_as_words: bool = setting(
        "managedLedgerPersistIndividualAckAsLongArray",
        True,
        help="ledgers of subscriptions have a bit for each message acknowledged, where that is shorter than ranges; "
        "Apache's brokers of 3.x read ranges only",
    )
    max_unacked_ranges: int = setting(
        "managedLedgerMaxUnackedRangesToPersist", 200_000, help="ranges of acknowledgements that survive a restart"
    )
    max_partial_batches: int = setting(
        "managedLedgerMaxBatchDeletedIndexToPersist",
        200_000,
        help="batches acknowledged in part whose acknowledgements survive a restart; 10,000 and 4 MiB at most",
    )
    pause_for_acks: bool = setting(
        "dispatcherPauseOnAckStatePersistentEnabled",
        False,
        help="Shared and Key_Shared deliver nothing new while more ranges are acknowledged than survive a restart",
    )
    max_ranges_in_metadata: int = setting(
        "managedLedgerMaxUnackedRangesToPersistInMetadataStore",
        200_000,
        help="up to so many of them, and 10,000, a subscription that is closed is stored in the metadata store alone",
    )
    cursor_ledger_entries: int = setting(
        "managedLedgerCursorMaxEntriesPerLedger", 50_000, help="states in a ledger of a subscription", least=1
    )
    cursor_ledger_s: int = setting(
        "managedLedgerCursorRolloverTimeInSeconds",
        14_400,
        help="an older ledger of a subscription is replaced",
        least=1,
    )
    mark_delete_rate: float = setting(
        "managedLedgerDefaultMarkDeleteRateLimit", 1.0, help="times a second a cursor's state is written"
    )
    retention_minutes: int = setting(
        "defaultRetentionTimeInMinutes", 0, help="consumed data is kept this long; -1 = for ever", least=-1
    )
    retention_mbytes: int = setting(
        "defaultRetentionSizeInMB", 0, help="consumed data is kept up to this size; -1 = any", least=-1
    )
    skip_lost_data: bool = setting(
        "autoSkipNonRecoverableData",
        False,
        help="entries and ledgers that are gone for good count as acknowledged when a subscription comes to them; "
        "false: its reads are tried again for ever",
    )
    force_recovery: bool = setting(
        "managedLedgerForceRecovery",
        False,
        help="a subscription whose ledger cannot be read for any reason goes back to what its record says; false: the "
        "topic is not opened before it can be",
    )
    retention_check_s: int = setting("retentionCheckIntervalInSeconds", 120, help="how often consumed data is dropped")

    bookkeeper_slow_add_ms: int = setting(
        "bookkeeperClientSlowAddMillis",
        1_000,
        help="an add that takes longer is logged with its stages and bookies, one line a second at most; 0: none",
    )
    bookkeeper_timeout_s: int = setting(
        "bookkeeperClientTimeoutInSeconds", 30, help="an add or read that a bookie does not answer fails then", least=1
    )
    shutdown_timeout_ms: int = setting(
        "brokerShutdownTimeoutMs",
        60_000,
        help="a broker that is stopped hands its bundles over for so long, 20 s at most; the rest is closed then",
    )
    append_timeout_s: int = setting(
        "managedLedgerAddEntryTimeoutSeconds",
        0,
        help="a message that cannot be stored for so long is given back to its producer's client; 0: 30",
    )
    bookkeeper_rackaware: bool = setting(
        "bookkeeperClientRackawarePolicyEnabled",
        True,
        help="copies of an entry go to different racks (`bookies set-bookie-rack`) and hosts; false: at random",
    )
    bookkeeper_racks_min: int = setting(
        "bookkeeperClientMinNumRacksPerWriteQuorum",
        RACKS_MIN,
        help="racks over which the copies of an entry are spread at least, where racks are told",
        least=1,
    )
    bookkeeper_racks_enforced: bool = setting(
        "bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
        False,
        help="no ledger is made that has fewer racks; bookies in /default-rack are not used then",
    )
    bookkeeper_regionaware: bool = setting(
        "bookkeeperClientRegionawarePolicyEnabled",
        False,
        help="a rack is told as /region/rack; copies of an entry go to all regions, and to different racks in each",
    )
    bookkeeper_regions: str = setting(
        "reppRegionsToWrite", "", help="regions, `eu;us;asia`; with it acknowledged entries are in several of them"
    )
    bookkeeper_regions_min: int = setting(
        "reppMinimumRegionsForDurability",
        regions.REGIONS_MIN,
        help="regions over which any ack quorum is spread, with reppRegionsToWrite; a ledger without them is refused",
    )
    bookkeeper_regions_bind_replacements: bool = setting(
        "reppEnableDurabilityEnforcementInReplace", True, help="the same for a bookie that takes the place of another"
    )
    bookkeeper_regions_validated: bool = setting(
        "reppEnableValidation", True, help="false is refused: every choice is checked"
    )
    bookkeeper_groups: str = setting(
        "bookkeeperClientIsolationGroups",
        "",
        help="groups of bookies (`bookies set-bookie-rack -g`) for the ledgers of namespaces that have no affinity "
        "group, comma separated; empty: all bookies",
    )
    bookkeeper_secondary_groups: str = setting(
        "bookkeeperClientSecondaryIsolationGroups", "", help="used as well when those have too few bookies"
    )
    strict_affinity: bool = setting(
        "strictBookieAffinityEnabled",
        False,
        help="namespaces without an affinity group use only bookies that are in no group",
    )

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        yield from regions.problems(
            self.bookkeeper_regions,
            self.bookkeeper_regions_min,
            is_validated=self.bookkeeper_regions_validated,
            is_aware=self.bookkeeper_regionaware,
            switch="bookkeeperClientRegionawarePolicyEnabled=true",
        )
        rules = regions.rules_of(self.bookkeeper_regions, self.bookkeeper_regions_min, binds_replacements=True)
        problem = rules.quorum_problem(self.write_quorum, self.ack_quorum) if self.bookkeeper_regionaware else None
        if problem is not None:
            yield f"{problem} (managedLedgerDefaultWriteQuorum, managedLedgerDefaultAckQuorum)"
        if self.bookkeeper_racks_enforced and not (self.bookkeeper_rackaware or self.bookkeeper_regionaware):
            yield (
                "bookkeeperClientEnforceMinNumRacksPerWriteQuorum=true needs "
                "bookkeeperClientRackawarePolicyEnabled=true: without it nobody looks at racks"
            )
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            yield (
                f"managedLedgerDefaultEnsembleSize ({self.ensemble_size}) ≥ managedLedgerDefaultWriteQuorum "
                f"({self.write_quorum}) ≥ managedLedgerDefaultAckQuorum ({self.ack_quorum}) ≥ 1 must hold"
            )
        if self.min_rollover_minutes > self.max_rollover_minutes:
            yield (
                f"managedLedgerMinLedgerRolloverTimeMinutes ({self.min_rollover_minutes}) must not exceed "
                f"managedLedgerMaxLedgerRolloverTimeMinutes ({self.max_rollover_minutes})"
            )


@dataclass(frozen=True, kw_only=True)
class Entries(Group):
    """What entries carry, and how many messages of the topic API are in one of them."""

    entry_metadata_interceptors: tuple[str, ...] = setting(
        "brokerEntryMetadataInterceptors",
        (),
        help=f"what is put before entries: {TIMESTAMP_INTERCEPTOR} (when they came), {INDEX_INTERCEPTOR} (number of "
        "their last message in the topic)",
        choices=(TIMESTAMP_INTERCEPTOR, INDEX_INTERCEPTOR),
        why="others are Java classes",
    )
    expose_entry_metadata: bool = setting(
        "exposingBrokerEntryMetadataToClientEnabled", False, help="send the broker's own entry metadata to clients"
    )

    # The topic API over gRPC: small messages that come within a window are stored as one entry.
    grpc_group_messages_max: int = setting("grpcGroupMaxMessages", 1000, help="messages of one entry", least=1)
    grpc_group_bytes_max: int = setting("grpcGroupMaxBytes", 128 * 1024, help="bytes of one entry's messages", least=1)
    grpc_group_delay_ms: float = setting(
        "grpcGroupMaxDelayMillis", 1.0, help="wait so long for more messages", most=1000
    )
