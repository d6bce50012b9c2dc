"""The settings of a bookie, under Apache's names. No IO."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bookie.access import ROLE_FACTORIES, Rules
from bookie.storage.journal.format import ALIGNMENT_MIN, VERSIONS_TO_WRITE
from magnetar_core.bookkeeper.wire.framing import MAX_FRAME_BYTES
from magnetar_core.runtime.apache_lists import Listed, read_kinds, read_list
from magnetar_core.runtime.config import loop_stall_setting, processes_setting, setting
from magnetar_core.runtime.http.hosts import names_setting
from magnetar_core.runtime.types import MIB
from magnetar_core.security.tls.files import APACHE_FACTORY, REFRESH_S, TlsFiles
from magnetar_core.security.tls.settings import TlsSettings

IGNORED_SETTINGS: Final[Mapping[str, str]] = read_kinds("bookie", "without_effect.conf")
"""Apache's settings that are accepted and have no effect."""

SHIPPED_SETTINGS: Final[Mapping[str, Listed]] = read_list("bookie", "shipped.conf")
"""Apache's settings that are accepted with the values that they have there, and refused with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """All settings of a bookie. Sizes that Apache gives in MB are MiB."""

    port: int = setting("bookiePort", 3181, help="TCP port of the bookie protocol; 0 takes a free one")
    processes: int = processes_setting()
    loop_stall_warn_ms: int = loop_stall_setting()
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
    uses_host_name: bool = setting(
        "useHostNameAsBookieID", False, help="is not there: write the host's name into advertisedAddress or bookieId"
    )
    metadata_service_uri: str = setting(
        "metadataServiceUri", "", help="metadata store: zk:host:port[/chroot], rocksdb:DIR or memory:NAME"
    )
    auto_recovery: bool = setting(
        "autoRecoveryDaemonEnabled", False, help="run a node of auto-recovery in the bookie's process"
    )
    stop_wait_ms: int = setting(
        "stopWaitForWritersMs",
        5_000,
        help="longest time that a bookie which is stopped waits until its writers have gone to others; 0: it does not",
    )
    session_timeout_ms: int = setting("zkTimeout", 30_000, help="session with the metadata store, milliseconds")
    frame_bytes_max: int = setting(
        "nettyMaxFrameSizeBytes",
        MAX_FRAME_BYTES,
        help="largest frame; the same in brokers and bookies",
        least=64 * 1024,
    )
    batch_read_bytes_max: int = setting("maxBatchReadSize", 5 * MIB, help="largest answer to a batch read")

    journal_version: int = setting(
        "journalFormatVersionToWrite",
        6,
        help="5 (Pulsar's default; explicit LACs are not in the journal) or 6",
        choices=VERSIONS_TO_WRITE,
        why="older ones are only read",
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
    journal_remove_from_page_cache: bool = setting(
        "journalRemoveFromPageCache", True, help="synced journal data are dropped from the page cache"
    )
    journal_write: bool = setting("journalWriteData", True, help="false is refused: entries would be unprotected")

    write_cache_mib: int = setting(
        "dbStorage_writeCacheMaxSizeMb",
        64,
        help="write cache: entries that are not in an entry log yet; in two halves",
        least=1,
    )
    read_cache_mib: int = setting(
        "dbStorage_readAheadCacheMaxSizeMb",
        64,
        help="cache of entries read from entry logs, including those read ahead",
    )
    read_ahead_entries: int = setting(
        "dbStorage_readAheadCacheBatchSize", 100, help="entries that one read from disk reads ahead at most", least=1
    )
    block_cache_mib: int = setting(
        "dbStorage_rocksDB_blockCacheSizeMb", 32, help="cache of each ledger directory's index"
    )
    log_bytes_max: int = setting("logSizeLimit", 1024 * MIB, help="a new entry log begins above this", most=2**32 - 1)
    log_page_cache_mib: int = setting(
        "entryLogPageCacheMB",
        64,
        help="newest MiB of each ledger directory's open log that stay in the page cache; 0: the system decides",
    )
    flush_interval_ms: int = setting(
        "flushInterval", 60_000, help="longest time until entries reach an entry log", least=1
    )
    readers: int = setting(
        "numReadWorkerThreads", 2, help="threads for reads from disk; one more is for recovery", least=1, most=256
    )

    copies_rest_ms: int = setting(
        "copiesRestMaxMs",
        60,
        help="longest rest between two chunks of auto-recovery's copies while clients write; 0: copies do not give way",
        most=1_000,
    )
    adds_per_connection: int = setting(
        "maxPendingAddRequestsPerThread",
        10_000,
        help="unanswered adds of a connection; above this it is not read",
        least=1,
    )
    write_buffer_low_bytes: int = setting(
        "serverWriteBufferLowWaterMark", 393_216, help="reading continues when fewer bytes of answers are waiting"
    )
    write_buffer_high_bytes: int = setting(
        "serverWriteBufferHighWaterMark",
        524_288,
        help="bytes of answers that a slow client may leave unread before its requests are no longer read",
    )

    reads_per_connection: int = setting(
        "maxPendingReadRequestsPerThread",
        2_500,
        help="unanswered reads from disk of a connection",
        least=1,
    )
    adds_in_all: int = setting(
        "maxAddsInProgressLimit",
        100_000,
        help="unanswered adds of all connections; above this none is read; 0: no limit",
    )
    add_mib_in_all: int = setting(
        "maxAddsInProgressMB", 256, help="bytes of the unanswered adds of all connections; 0: no limit"
    )
    reads_in_all: int = setting(
        "maxReadsInProgressLimit", 50_000, help="unanswered reads from disk of all connections; 0: no limit"
    )

    disk_check_interval_ms: int = setting("diskCheckInterval", 10_000, help="time between checks of the disks", least=1)
    disk_usage_full: float = setting(
        "diskUsageThreshold", 0.95, help="used share above which the bookie is read-only", most=1
    )
    disk_usage_warn: float = setting(
        "diskUsageWarnThreshold", 0.90, help="used share above which a warning is logged", most=1
    )
    disk_usage_room: float | None = setting(
        "diskUsageLwmThreshold", None, help="used share below which it is writable again; empty: as above", most=1
    )
    read_only_mode: bool = setting(
        "readOnlyModeEnabled", True, help="false: a full disk ends the bookie instead of making it read-only"
    )
    read_only_on_any_full: bool = setting(
        "readOnlyModeOnAnyDiskFullEnabled",
        True,
        help="false: with several ledger directories only the ledgers of a full one are refused, until all are full",
    )
    persist_status: bool = setting(
        "persistBookieStatusEnabled", True, help="read-only by an operator or for draining survives a restart"
    )
    min_usable_bytes_entry_log: int | None = setting(
        "minUsableSizeForEntryLogCreation",
        None,
        help="free bytes that one more entry log needs; empty: logSizeLimit",
        most=2**63 - 1,
    )
    min_usable_bytes_high_priority: int | None = setting(
        "minUsableSizeForHighPriorityWrites",
        None,
        help="free bytes that recovery needs on a read-only bookie; empty: minUsableSizeForEntryLogCreation",
        most=2**63 - 1,
    )
    reserve_mib: int = setting("journalReserveMB", 4, help="room kept for fences on a full disk; 0 for none")
    compaction_reserve_mib: int = setting(
        "compactionReserveMB", 64, help="room that adds leave on each ledger disk, so that a full one can be compacted"
    )
    force_read_only: bool = setting("forceReadOnlyBookie", False, help="start read-only and stay so")

    gc_wait_ms: int = setting(
        "gcWaitTime", 900_000, help="time between two searches for deleted ledgers and for logs to compact", least=1
    )
    gc_over_replicated_wait_ms: int = setting(
        "gcOverreplicatedLedgerWaitTime",
        86_400_000,
        help="time between two searches for closed ledgers whose copies moved to other bookies; 0: never",
    )
    gc_metadata_rate: int = setting(
        "gcMetadataOpRateLimit",
        1_000,
        help="reads of ledger metadata a second that garbage collection may make",
        least=1,
    )
    gc_refuse_empty_listing: bool = setting(
        "gcRefuseEmptyListing", True, help="a metadata store without any ledger deletes nothing without an operator"
    )
    gc_shrink_share: float = setting(
        "gcListingShrinkShare",
        0.5,
        help="share of its ledgers that a bookie deletes in one round at most without an operator; 1: no such limit",
        most=1,
    )
    gc_shrink_ledgers_min: int = setting(
        "gcListingShrinkMinLedgers", 100, help="fewer ledgers than this may be deleted in a round whatever their share"
    )
    gc_force_without_space: bool = setting(
        "isForceGCAllowWhenNoSpace",
        False,
        help="compaction may use the last of a full disk instead of leaving a reserve",
    )
    force_allow_compaction: bool = setting(
        "forceAllowCompaction", True, help="a forced compaction runs even where its threshold is 0"
    )
    minor_threshold: float = setting(
        "minorCompactionThreshold", 0.2, help="live share below which a log is compacted", most=1
    )
    minor_interval_s: int = setting(
        "minorCompactionInterval", 3_600, help="seconds between two; 0 or less: never", least=-1
    )
    minor_max_ms: int = setting("minorCompactionMaxTimeMillis", -1, help="longest time of one; -1: no limit", least=-1)
    major_threshold: float = setting(
        "majorCompactionThreshold", 0.5, help="live share below which a log is compacted", most=1
    )
    major_interval_s: int = setting(
        "majorCompactionInterval", 86_400, help="seconds between two; 0 or less: never", least=-1
    )
    major_max_ms: int = setting("majorCompactionMaxTimeMillis", -1, help="longest time of one; -1: no limit", least=-1)
    compaction_by_bytes: bool = setting("isThrottleByBytes", False, help="limit compaction by bytes, not by entries")
    compaction_entries_s: int = setting(
        "compactionRateByEntries", 1_000, help="entries a second", aliases=("compactionRate",), least=1
    )
    compaction_bytes_s: int = setting("compactionRateByBytes", 1_000_000, help="bytes a second", least=1)
    compaction_unsynced_entries: int = setting(
        "compactionMaxOutstandingRequests", 100_000, help="entries that compaction writes between two syncs", least=1
    )
    location_compaction_interval_s: int = setting(
        "entryLocationCompactionInterval",
        -1,
        help="seconds between two compactions of the index; 0 or less: never",
        least=-1,
    )

    scrub_interval_s: int = setting(
        "localScrubInterval", 604_800, help="seconds within which every entry is read and checked once; 0: never"
    )
    scrub_entries_s: int | float = setting(
        "localScrubRateLimit", 2_000, help="entries a second that the scrub checks at most", least=1
    )
    scrub_bytes_s: int = setting(
        "localScrubRateByBytes", 8 * MIB, help="bytes a second that the scrub reads at most", least=1
    )
    data_integrity: bool = setting(
        "dataIntegrityChecking",
        False,
        help="accept an emptied disk: its ledgers are in limbo until their entries were copied back",
    )
    skip_invalid_journal: bool = setting(
        "skipReplayJournalInvalidRecord",
        False,
        help="ignore the records after damage in the journal; the ledgers are in limbo until they are checked",
    )

    slow_operation_ms: int = setting(
        "slowOperationMillis",
        1_000,
        help="adds and reads that take longer are logged with their stages, one line a second at most; 0: none",
    )
    slow_flush_ms: int = setting(
        "slowFlushMillis", 10_000, help="the same for flushes of the write cache, their pauses not counted; 0: none"
    )

    # TLS on the bookie port. Off by default; tls_directory alone switches everything on.
    tls_directory: str = setting(
        "tlsDirectory",
        "",
        help="folder with tls.crt, tls.key and ca.crt (PEM): the bookie port then demands TLS and a certificate that "
        "ca.crt trusts, of every client; the bookie asks other bookies with the same files. Empty: off, or as the "
        "settings below say",
    )
    tls_provider_factory: str = setting(
        "tlsProviderFactoryClass",
        "",
        help=f"{APACHE_FACTORY}: TLS is offered on the bookie port, beside clear text, with the files below",
    )
    tls_client_authentication: bool = setting(
        "tlsClientAuthentication", False, help="clients with TLS must have a certificate that tlsTrustStore trusts"
    )
    tls_certificate: str = setting("tlsCertificatePath", "", help="the bookie's certificate and its chain, PEM")
    tls_key: str = setting("tlsKeyStore", "", help="the key of that certificate, PEM")
    tls_key_type: str = setting("tlsKeyStoreType", "PEM", help="PEM; others are refused")
    tls_key_password_file: str = setting(
        "tlsKeyStorePasswordPath", "", help="file with the password of the key, if it has one"
    )
    tls_trusted: str = setting(
        "tlsTrustStore",
        "",
        help="trusted certificates, PEM; where it is set, the bookie itself asks other bookies over TLS only",
    )
    tls_trust_type: str = setting("tlsTrustStoreType", "PEM", help="PEM; others are refused")
    tls_protocols: tuple[str, ...] = setting(
        "tlsEnabledProtocols", (), help="TLSv1.2, TLSv1.3 or both; empty: both. Older ones are not offered"
    )
    tls_ciphers: tuple[str, ...] = setting(
        "tlsEnabledCipherSuites",
        (),
        help="OpenSSL's or Java's names; a list means TLSv1.2. Empty: the library's choice",
    )
    tls_verify_hostname: bool = setting(
        "tlsHostnameVerificationEnabled",
        False,
        help="as a client of other bookies: their certificates must name the host that was connected to",
    )
    tls_refresh_s: int = setting(
        "tlsCertFilesRefreshDurationSeconds",
        REFRESH_S,
        help="seconds between two checks for changed certificate files; 0: never",
    )
    auth_factory: str = setting(
        "bookieAuthProviderFactoryClass",
        "",
        help=f"{ROLE_FACTORIES[0]}: only clients whose certificate has a role of authorizedRoles are answered",
    )
    authorized_roles: tuple[str, ...] = setting(
        "authorizedRoles", (), help="roles in the OU of client certificates (OU=0:role)"
    )
    client_auth_factory: str = setting(
        "clientAuthProviderFactoryClass", "", help="not supported: certificates are what the bookie shows to others"
    )

    http_enabled: bool = setting(
        "httpServerEnabled",
        False,
        help="the HTTP admin. Without authentication: a client that reaches its port may change and delete everything",
    )
    http_port: int = setting("httpServerPort", 8000, help="TCP port of the HTTP admin; 0 takes a free one")
    http_host: str = setting(
        "httpServerHost", "127.0.0.1", help="address that the HTTP admin listens on; Apache's default is 0.0.0.0"
    )
    http_names: tuple[str, ...] = names_setting()
    stats_provider: str = setting(
        "statsProviderClass",
        "",
        help="one that ends in PrometheusMetricsProvider: /metrics on a port of its own where httpServerEnabled=false",
    )
    stats_http_enabled: bool = setting("prometheusStatsHttpEnable", True, help="false: no such port")
    stats_port: int = setting("prometheusStatsHttpPort", 8000, help="that port; 0 takes a free one")
    stats_host: str = setting("prometheusStatsHttpAddress", "0.0.0.0", help="address that it listens on")

    def problems(self) -> Iterator[str]:
        yield from self._storage_problems()
        yield from self._space_problems()
        yield from self._tls_problems()
        yield from self._access_problems()
        if self.uses_host_name:
            yield "useHostNameAsBookieID=true is not there: write the host's name into advertisedAddress or bookieId"
        if self.write_buffer_low_bytes > self.write_buffer_high_bytes:
            yield "serverWriteBufferLowWaterMark must not exceed serverWriteBufferHighWaterMark"

    def _storage_problems(self) -> Iterator[str]:
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
        if self.journal_alignment_bytes < ALIGNMENT_MIN or self.journal_alignment_bytes % ALIGNMENT_MIN:
            yield f"journalAlignmentSize ({self.journal_alignment_bytes}) must be a multiple of {ALIGNMENT_MIN}"
        if not self.journal_sync:
            yield "journalSyncData=false is not supported: an acknowledgement always means that the entry is on disk"
        if not self.journal_write:
            yield "journalWriteData=false is not supported: an acknowledged entry would be lost with the process"
        if self.log_bytes_max < self.frame_bytes_max:
            yield f"logSizeLimit ({self.log_bytes_max}) must hold the largest frame ({self.frame_bytes_max})"

    def _space_problems(self) -> Iterator[str]:
        if self.disk_usage_full == 0:
            yield "diskUsageThreshold (0) must be above 0"
        if self.gc_shrink_share == 0:
            yield "gcListingShrinkShare (0) must be above 0"
        for name, threshold in (
            ("minorCompactionThreshold", self.minor_threshold),
            ("majorCompactionThreshold", self.major_threshold),
        ):
            if threshold == 1:
                yield f"{name} (1) must be below 1; 0: never"
        for name, interval_s in (
            ("minorCompactionInterval", self.minor_interval_s),
            ("majorCompactionInterval", self.major_interval_s),
            ("entryLocationCompactionInterval", self.location_compaction_interval_s),
        ):
            if 0 < interval_s * 1000 < self.gc_wait_ms:
                yield f"{name} ({interval_s} s) must not be shorter than gcWaitTime ({self.gc_wait_ms} ms)"
        if self.disk_usage_room is not None and self.disk_usage_room > self.disk_usage_full:
            yield f"diskUsageLwmThreshold ({self.disk_usage_room}) must not exceed diskUsageThreshold"

    def _tls_problems(self) -> Iterator[str]:
        tls = TlsSettings.of(self, "tls_")
        yield from tls.suite_problems()
        if self.tls_directory:
            for name, value in (
                ("tlsProviderFactoryClass", self.tls_provider_factory),
                ("tlsClientAuthentication", self.tls_client_authentication),
                ("tlsCertificatePath", self.tls_certificate),
                ("tlsKeyStore", self.tls_key),
                ("tlsKeyStorePasswordPath", self.tls_key_password_file),
                ("tlsTrustStore", self.tls_trusted),
            ):
                if value:
                    yield f"{name} and tlsDirectory exclude each other: the folder says everything; remove one of them"
        elif self.tls_provider_factory:
            if self.tls_provider_factory != APACHE_FACTORY:
                yield f"tlsProviderFactoryClass={self.tls_provider_factory}: only {APACHE_FACTORY} is there"
            needs_trust = self.tls_client_authentication or bool(self.tls_trusted)
            yield from tls.java_problems("key", *(("trusted",) if needs_trust else ()))
            yield from tls.missing("TLS needs (tlsProviderFactoryClass)", "certificate", "key")
            if self.tls_client_authentication and not self.tls_trusted:
                yield "tlsClientAuthentication=true needs tlsTrustStore: without it no client could be trusted"
        elif self.tls_client_authentication:
            yield (
                "tlsClientAuthentication=true has no effect without tlsProviderFactoryClass or tlsDirectory; "
                "set one of them, or remove it"
            )

    def _access_problems(self) -> Iterator[str]:
        if self.auth_factory and self.auth_factory not in ROLE_FACTORIES:
            yield (
                f"bookieAuthProviderFactoryClass={self.auth_factory} is not supported: {ROLE_FACTORIES[0]} is, which "
                "takes the role from the client's certificate (SASL and other Java classes are not there)"
            )
        elif self.auth_factory:
            if not self.authorized_roles:
                yield "bookieAuthProviderFactoryClass needs authorizedRoles: without a role no client is admitted"
            if not (self.tls_directory or (self.tls_provider_factory and self.tls_client_authentication)):
                yield (
                    "bookieAuthProviderFactoryClass needs certificates of the clients: set tlsDirectory, or "
                    "tlsProviderFactoryClass and tlsClientAuthentication=true"
                )
        elif self.authorized_roles:
            yield f"authorizedRoles has no effect without bookieAuthProviderFactoryClass={ROLE_FACTORIES[0]}"
        if self.client_auth_factory:
            yield (
                f"clientAuthProviderFactoryClass={self.client_auth_factory} is not supported: the bookie shows its "
                "certificate to other bookies; remove it"
            )

    @property
    def tls(self) -> TlsFiles | None:
        """The files for TLS on the bookie port; None: without TLS."""
        return TlsSettings.of(self, "tls_").files if self.tls_directory or self.tls_provider_factory else None

    @property
    def client_tls(self) -> TlsFiles | None:
        """The files for TLS to other bookies; None: without TLS."""
        files = self.tls
        return files if files is not None and files.trusted else None

    @property
    def asks_for_certificates(self) -> bool:
        """Whether a client must show a certificate in the handshake."""
        return bool(self.tls_directory) or self.tls_client_authentication

    @property
    def access_rules(self) -> Rules:
        """Which clients are admitted at the bookie port."""
        roles = frozenset(self.authorized_roles) if self.auth_factory else None
        return Rules(demand_tls=bool(self.tls_directory), roles=roles)

    @property
    def http_address(self) -> tuple[str, int] | None:
        """(host, port) of the HTTP admin, or of the metrics alone with `is_metrics_only`; None: there is neither."""
        if self.http_enabled:
            return self.http_host, self.http_port
        return (self.stats_host, self.stats_port) if self.is_metrics_only else None

    @property
    def is_metrics_only(self) -> bool:
        wanted = self.stats_http_enabled and self.stats_provider.endswith("PrometheusMetricsProvider")
        return wanted and not self.http_enabled

    @property
    def free_bytes_for_high_priority(self) -> int:
        """Free bytes that a read-only bookie needs to take recovery's adds."""
        if self.min_usable_bytes_high_priority is not None:
            return self.min_usable_bytes_high_priority
        return self.log_bytes_max if self.min_usable_bytes_entry_log is None else self.min_usable_bytes_entry_log
