"""The settings of a bookie, under Apache's names."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from bookie.journal.format import ALIGNMENT_MIN, VERSIONS_TO_WRITE
from magnetar.bookkeeper.wire.framing import MAX_FRAME_BYTES
from magnetar.runtime.config import setting
from magnetar.runtime.types import MIB

# Apache's settings that are accepted and mean nothing here: groups form by themselves, threads are ours, and what
# they tune does not exist.
IGNORED_SETTINGS: Final = frozenset(
    {
        "allowLoopback", "allowMultipleDirsUnderSameDiskPartition", "autoRecoveryDaemonEnabled", "compactionRate",
        "dbStorage_rocksDB_bloomFilterBitsPerKey", "dbStorage_rocksDB_numFilesInLevel0",
        "dbStorage_rocksDB_numLevels", "dbStorage_rocksDB_sstSizeInMB", "dbStorage_rocksDB_blockSize",
        "dbStorage_rocksDB_maxSizeInLevel1MB", "dbStorage_rocksDB_writeBufferSizeMB", "enableStatistics",
        "entryLogFilePreallocationEnabled", "fileInfoFormatVersionToWrite", "flushEntrylogBytes",
        "journalAdaptiveGroupWrites", "journalBufferedEntriesThreshold", "journalBufferedWritesThreshold",
        "journalFlushWhenQueueEmpty", "journalMaxGroupWaitMSec", "journalMaxMemorySizeMb",
        "journalPageCacheFlushIntervalMSec", "journalQueueSize", "journalRemoveFromPageCache",
        "journalWriteBufferSizeKB", "ledgerManagerFactoryClass", "ledgerStorageClass", "listeningInterface",
        "maxPendingReadRequestsPerThread", "numAddWorkerThreads", "numHighPriorityWorkerThreads",
        "numJournalCallbackThreads", "numLongPollWorkerThreads", "openFileLimit", "pageLimit", "pageSize",
        "readBufferSizeBytes", "readOnlyModeEnabled", "serverNumIOThreads", "serverSockKeepalive", "serverTcpNoDelay",
        "skipListSizeLimit", "skipListArenaChunkSize", "skipListArenaMaxAllocSize", "statsProviderClass",
        "useTransactionalCompaction", "writeBufferSizeBytes", "zkEnableSecurity", "zkLedgersRootPath",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """Everything a bookie can be told. Sizes that Apache gives in MB are MiB."""

    port: int = setting("bookiePort", 3181, help="TCP port of the bookie protocol; 0 takes a free one")
    listen_address: str = setting("bookieListenAddress", "0.0.0.0", help="address to listen on")
    advertised_address: str = setting(
        "advertisedAddress", "", help="host name or address under which clients reach the bookie; empty: the machine's"
    )
    bookie_id: str = setting(
        "bookieId", "", help="name of the bookie in the cluster for all time; empty: <advertisedAddress>:<bookiePort>"
    )
    journal_directories: tuple[str, ...] = setting(
        "journalDirectories",
        ("data/bookkeeper/journal",),
        help="directories of the journal, one thread each",
        aliases=("journalDirectory",),
    )
    ledger_directories: tuple[str, ...] = setting(
        "ledgerDirectories", ("data/bookkeeper/ledgers",), help="directories of entry logs and index"
    )
    metadata_service_uri: str = setting(
        "metadataServiceUri", "", help="metadata store: zk:host:port[/chroot], rocksdb:DIR or memory:NAME"
    )
    session_timeout_ms: int = setting("zkTimeout", 30_000, help="session with the metadata store, milliseconds")
    frame_bytes_max: int = setting(
        "nettyMaxFrameSizeBytes", MAX_FRAME_BYTES, help="largest frame; the same in brokers and bookies"
    )
    batch_read_bytes_max: int = setting("maxBatchReadSize", 5 * MIB, help="largest answer to a batch read")

    journal_version: int = setting(
        "journalFormatVersionToWrite", 6, help="5 (Pulsar's default; explicit LACs are not in the journal) or 6"
    )
    journal_alignment_bytes: int = setting(
        "journalAlignmentSize", 4096, help="a group of the journal ends at a multiple of this"
    )
    journal_file_mib_max: int = setting("journalMaxSizeMB", 2048, help="a new journal file begins above this")
    journal_backups: int = setting("journalMaxBackups", 5, help="journal files that are kept after they are flushed")
    journal_preallocation_mib: int = setting("journalPreAllocSizeMB", 16, help="journal files grow in these steps")
    journal_sync: bool = setting(
        "journalSyncData", True, help="false is refused: an answer means that the entry is on disk"
    )
    journal_write: bool = setting("journalWriteData", True, help="false is refused: entries would be unprotected")

    write_cache_mib: int = setting(
        "dbStorage_writeCacheMaxSizeMb", 64, help="entries that are not in an entry log yet; in two halves"
    )
    read_cache_mib: int = setting(
        "dbStorage_readAheadCacheMaxSizeMb", 64, help="entries that were read from entry logs, with those behind them"
    )
    read_ahead_entries: int = setting(
        "dbStorage_readAheadCacheBatchSize", 100, help="entries that one read from disk brings along at most"
    )
    block_cache_mib: int = setting(
        "dbStorage_rocksDB_blockCacheSizeMb", 32, help="cache of each ledger directory's index"
    )
    log_bytes_max: int = setting("logSizeLimit", 1024 * MIB, help="a new entry log begins above this")
    flush_interval_ms: int = setting("flushInterval", 60_000, help="longest time until entries reach an entry log")
    readers: int = setting("numReadWorkerThreads", 2, help="threads for reads from disk")

    adds_per_connection: int = setting(
        "maxPendingAddRequestsPerThread", 10_000, help="adds of a connection without answer; above it is not read"
    )
    write_buffer_low_bytes: int = setting("serverWriteBufferLowWaterMark", 393_216, help="answers: read on below")
    write_buffer_high_bytes: int = setting(
        "serverWriteBufferHighWaterMark", 524_288, help="answers that a slow client may leave before it is not read"
    )

    disk_check_interval_ms: int = setting("diskCheckInterval", 10_000, help="time between looks at the disks")
    disk_usage_full: float = setting("diskUsageThreshold", 0.95, help="used share above which the bookie is read-only")
    disk_usage_room: float | None = setting(
        "diskUsageLwmThreshold", None, help="used share below which it is writable again; empty: as above"
    )
    min_usable_bytes_high_priority: int = setting(
        "minUsableSizeForHighPriorityWrites", 1024 * MIB, help="free bytes that recovery needs on a read-only bookie"
    )
    reserve_mib: int = setting("journalReserveMB", 4, help="room kept for fences on a full disk; 0 for none")
    force_read_only: bool = setting("forceReadOnlyBookie", False, help="start read-only and stay so")

    def problems(self) -> Iterator[str]:
        if not 0 <= self.port <= 65_535:
            yield f"bookiePort ({self.port}) must be 0 to 65535"
        for name, directories in (
            ("journalDirectories", self.journal_directories),
            ("ledgerDirectories", self.ledger_directories),
        ):
            if not directories:
                yield f"{name} is empty"
            if len(set(directories)) != len(directories):
                yield f"{name} names a directory twice: {', '.join(directories)}"
            for directory in directories:
                if "," in directory or "\t" in directory:
                    yield f"{name}: {directory!r} holds a comma or tab, which the cookie cannot say"
        if self.journal_version not in VERSIONS_TO_WRITE:
            yield (
                f"journalFormatVersionToWrite ({self.journal_version}) must be one of "
                f"{', '.join(map(str, VERSIONS_TO_WRITE))}; older ones are only read"
            )
        if self.journal_alignment_bytes < ALIGNMENT_MIN or self.journal_alignment_bytes % ALIGNMENT_MIN:
            yield f"journalAlignmentSize ({self.journal_alignment_bytes}) must be a multiple of {ALIGNMENT_MIN}"
        if not self.journal_sync:
            yield "journalSyncData=false is not supported: an acknowledgement always means that the entry is on disk"
        if not self.journal_write:
            yield "journalWriteData=false is not supported: an acknowledged entry would be lost with the process"
        if self.frame_bytes_max < 64 * 1024:
            yield f"nettyMaxFrameSizeBytes ({self.frame_bytes_max}) must be at least 65536"
        if self.log_bytes_max < self.frame_bytes_max:
            yield f"logSizeLimit ({self.log_bytes_max}) must hold the largest frame ({self.frame_bytes_max})"
        if self.log_bytes_max >= 2**32:
            yield f"logSizeLimit ({self.log_bytes_max}) must be below 4 GiB: locations have 32 bits for the offset"
        if not 0 < self.disk_usage_full <= 1:
            yield f"diskUsageThreshold ({self.disk_usage_full}) must be above 0 and at most 1"
        if self.disk_usage_room is not None and self.disk_usage_room > self.disk_usage_full:
            yield f"diskUsageLwmThreshold ({self.disk_usage_room}) must not exceed diskUsageThreshold"
        if self.write_buffer_low_bytes > self.write_buffer_high_bytes:
            yield "serverWriteBufferLowWaterMark must not exceed serverWriteBufferHighWaterMark"
        for name, value in (
            ("dbStorage_writeCacheMaxSizeMb", self.write_cache_mib),
            ("dbStorage_readAheadCacheBatchSize", self.read_ahead_entries),
            ("numReadWorkerThreads", self.readers),
            ("flushInterval", self.flush_interval_ms),
            ("diskCheckInterval", self.disk_check_interval_ms),
            ("maxPendingAddRequestsPerThread", self.adds_per_connection),
        ):
            if value < 1:
                yield f"{name} ({value}) must be at least 1"
        for name, value in (
            ("journalMaxBackups", self.journal_backups),
            ("dbStorage_readAheadCacheMaxSizeMb", self.read_cache_mib),
            ("journalPreAllocSizeMB", self.journal_preallocation_mib),
            ("journalReserveMB", self.reserve_mib),
        ):
            if value < 0:
                yield f"{name} ({value}) must not be negative"
