"""The parts of a running bookie, and how they are put together. Nothing is started here.

    Node (its address, stores, threads) ──storage open──▶ assemble ──▶ BookieParts ──▶ Bookie, BookieOperations

`Bookie` starts and stops the parts; they report failures to it through `Reports`.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from bookie.config import BookieConfig
from bookie.disks.directories import Directories, SpaceWatch, StatusFiles
from bookie.disks.mode import Mode
from bookie.disks.read_only import DiskLimits
from bookie.jobs import Threads
from bookie.latency import BookieLatency
from bookie.maintenance.garbage.collector import GarbageCollector, GcSettings
from bookie.maintenance.integrity import IntegrityCheck
from bookie.maintenance.lost_logs import LostLogs
from bookie.maintenance.older_metadata.watch import OlderMetadata
from bookie.maintenance.rebuild.online import OnlineRebuild
from bookie.maintenance.repair import RepairSource
from bookie.maintenance.scrub import Scrub
from bookie.serving.connection import Connection
from bookie.serving.request_rules import RequestRules
from bookie.serving.server import Limits, Server, ServerParts
from bookie.serving.tls_listener import TlsListener, client_certificates
from bookie.startup import Opened, StorageSettings
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.journal.writer import Journal, JournalSettings
from bookie.storage.ledger_storage import LedgerStorage
from magnetar_core.bookkeeper.metadata.bookies.register import BookieRegistration
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReports, OnDamage
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage, Files
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.types import KIB, MIB
from magnetar_core.security.tls.contexts import Certificates

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Lifecycle:
    """The state of a bookie between start and stop. Only the bookie writes it."""

    is_registered: bool = False
    """The bookie serves, and its registration is in the metadata store."""
    is_shutting_down: bool = False
    failure: BaseException | None = None
    """Why the bookie gave up; None while it has not."""

    @property
    def is_running(self) -> bool:
        return self.failure is None and not self.is_shutting_down

    @property
    def is_ready(self) -> bool:
        """Whether the bookie is fully started and serves."""
        return self.is_registered and self.is_running


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a bookie that exist before its storage is open."""

    config: BookieConfig
    bookie_id: str
    address: tuple[str, int]
    """(host, port) under which clients reach the bookie."""
    store: MetadataStore
    root: str
    clock: Clock
    files: Files
    usage: Callable[[str], DiskUsage]
    """Returns the usage of the file system below a directory."""
    directories: Directories
    registration: BookieRegistration
    certificates: Certificates | None
    """The certificates of the bookie port; None: clear text only."""
    threads: Threads
    on_damage: OnDamage
    """Reports entries that are lost, for people."""


@dataclass(frozen=True, slots=True)
class BookieParts:
    """Everything that a running bookie consists of."""

    node: Node
    storage: LedgerStorage
    rules: RequestRules
    latency: BookieLatency
    journals: tuple[Journal, ...]
    checkpointer: Checkpointer
    server: Server
    tls_listener: TlsListener | None
    """Takes new connections if the port has TLS; None: the server takes them."""
    mode: Mode
    space: SpaceWatch
    collector: GarbageCollector
    scrub: Scrub
    lost_logs: LostLogs
    integrity: IntegrityCheck
    source: RepairSource
    """Fetches copies of entries that are damaged here."""
    rebuild: OnlineRebuild
    local_certificates: Certificates | None
    """The certificates for requests to the bookie's own port."""


class Reports(Protocol):
    """What the parts of a bookie report to it."""

    def fail(self, error: BaseException) -> None:
        """The bookie must stop serving."""

    def journal_failed(self, error: BaseException) -> None: ...

    def flush_failed(self, error: BaseException) -> None: ...

    def index_corrupt(self, ledger_id: int, error: Exception) -> None: ...

    def no_space(self, error: Exception) -> None:
        """A disk is full. The write is tried again, or was refused."""

    def writable_again(self) -> None:
        """No reason to be read-only holds any more."""


def assemble(
    node: Node,
    opened: Opened,
    integrity: IntegrityCheck,
    source: RepairSource,
    lifecycle: Lifecycle,
    reports: Reports,
) -> BookieParts:
    """Put a bookie together around its storage. Raises ConfigurationError, Corruption, OSError."""
    config, clock, threads = node.config, node.clock, node.threads
    storage, rules, cache, writers = opened
    latency = BookieLatency(len(writers), len(node.directories.ledgers))
    slow = SlowOperations(log, clock, config.slow_operation_ms)
    journals = tuple(
        Journal(
            writer,
            f"journal {number} {node.bookie_id}",
            reports.journal_failed,
            reports.no_space,
            clock=clock,
            latency=latency.journals[number],
            slow=slow,
        )
        for number, writer in enumerate(writers)
    )
    checkpointer = Checkpointer(
        node.files,
        storage,
        cache,
        rules.ledgers,
        journals,
        node.directories.journals,
        threads.flusher,
        clock,
        interval_s=config.flush_interval_ms / 1000,
        journal_backups=config.journal_backups,
        on_room=lambda: server.there_is_room(),
        on_no_space=reports.no_space,
        on_failure=reports.flush_failed,
        latency=latency.flushes,
        slow=SlowOperations(log, clock, config.slow_flush_ms),
    )
    server = Server(
        ServerParts(
            rules=rules,
            cache=cache,
            storage=storage,
            journals=journals,
            checkpointer=checkpointer,
            readers=threads.readers,
            urgent_reader=threads.urgent_reader,
            clock=clock,
            limits=_limits(config),
            disk_usage=node.directories.ledger_usage,
            on_index_corrupt=reports.index_corrupt,
            latency=latency,
            slow=slow,
        )
    )
    mode, space = _mode(node, rules, reports)
    metadata = LedgerStore(node.store, node.root)
    collector = GarbageCollector(
        GcSettings.of(config),
        node.bookie_id,
        node.store,
        node.root,
        node.files,
        storage,
        rules,
        cache,
        threads,
        clock,
        node.usage,
        OlderMetadata(
            node.bookie_id, node.store, node.root, node.files, [directory.path for directory in storage.directories],
            rules.ledgers, threads.maintenance, clock, rules.first_ledger_id,
            mode.metadata_is,
        ),
    )  # fmt: skip
    scrub = Scrub(
        config, metadata, node.files, storage, rules, cache, source, server.put_back, threads.maintenance, clock,
        node.on_damage, reports.index_corrupt,
    )  # fmt: skip
    lost_logs = LostLogs(
        node.bookie_id, metadata, DamageReports(node.store, node.root), node.files, storage, rules, cache, source,
        server.put_back, threads.flusher, threads.maintenance, clock, reports.index_corrupt,
    )  # fmt: skip
    rebuild = OnlineRebuild(
        config.scrub_bytes_s,
        metadata,
        node.files,
        storage,
        rules,
        cache,
        collector,
        threads.flusher,
        threads.maintenance,
        clock,
        doubt=integrity.doubt,
        scrub=scrub.trigger,
        on_index_corrupt=reports.index_corrupt,
        has_failed=lambda: lifecycle.failure is not None,
    )
    return BookieParts(
        node=node,
        storage=storage,
        rules=rules,
        latency=latency,
        journals=journals,
        checkpointer=checkpointer,
        server=server,
        tls_listener=_tls_listener(node, server),
        mode=mode,
        space=space,
        collector=collector,
        scrub=scrub,
        lost_logs=lost_logs,
        integrity=integrity,
        source=source,
        rebuild=rebuild,
        # Without the check of the name: the bookie is asked by an address of this machine, which certificates need not
        # name.
        local_certificates=client_certificates(replace(config, tls_verify_hostname=False), clock),
    )


def _limits(config: BookieConfig) -> Limits:
    return Limits(
        frame_bytes=config.frame_bytes_max,
        adds=config.adds_per_connection,
        adds_in_all=config.adds_in_all,
        add_bytes_in_all=config.add_mib_in_all * MIB,
        reads=config.reads_per_connection,
        reads_in_all=config.reads_in_all,
        batch_read_bytes=config.batch_read_bytes_max,
        copies_rest_s=config.copies_rest_ms / 1000,
        write_buffer_low_bytes=config.write_buffer_low_bytes,
        write_buffer_high_bytes=config.write_buffer_high_bytes,
    )


def _tls_listener(node: Node, server: Server) -> TlsListener | None:
    if node.certificates is None:
        return None
    return TlsListener(
        node.config.access_rules,
        node.certificates,
        partial(Connection, server),
        node.config.frame_bytes_max,
        node.clock,
        server.unfinished,
    )


def _mode(node: Node, rules: RequestRules, reports: Reports) -> tuple[Mode, SpaceWatch]:
    """The mode (read-only or not), and the watch over the disks that sets it."""
    config, directories = node.config, node.directories
    mode = Mode(
        node.bookie_id,
        rules,
        node.registration,
        node.clock,
        StatusFiles(node.files, directories.ledgers) if config.persist_status else None,
        node.threads.maintenance,
        free_bytes_for_high_priority=config.free_bytes_for_high_priority,
        stop_when_full=not config.read_only_mode,
        on_writable=reports.writable_again,
        on_failure=reports.fail,
    )
    rules.ledger_directories = len(config.ledger_directories)
    full = config.disk_usage_full
    space = SpaceWatch(
        node.usage,
        directories.ledgers,
        directories.journals,
        node.clock,
        interval_s=config.disk_check_interval_ms / 1000,
        limits=DiskLimits(
            full_share=full,
            warn_share=min(config.disk_usage_warn, full),
            room_share=full if config.disk_usage_room is None else config.disk_usage_room,
            # A disk counts as full if half of the write cache could not be flushed to it, plus the copy that compaction
            # makes before it removes anything.
            full_bytes=max(config.write_cache_mib * MIB // 2, 64 * KIB) + config.compaction_reserve_mib * MIB,
        ),
        on_any_full=config.read_only_on_any_full,
        changed=mode.disks_are,
    )
    return mode, space


def storage_settings(config: BookieConfig) -> StorageSettings:
    """The part of *config* that the storage needs."""
    return StorageSettings(
        journal=JournalSettings(
            version=config.journal_version,
            alignment_bytes=config.journal_alignment_bytes,
            file_bytes_max=config.journal_file_mib_max * MIB,
            preallocation_bytes=config.journal_preallocation_mib * MIB,
            sync=config.journal_sync,
            remove_from_page_cache=config.journal_remove_from_page_cache,
        ),
        journal_backups=config.journal_backups,
        write_cache_bytes=config.write_cache_mib * MIB,
        read_cache_bytes=config.read_cache_mib * MIB,
        block_cache_bytes=config.block_cache_mib * MIB,
        log_bytes_max=config.log_bytes_max,
        log_page_cache_bytes=config.log_page_cache_mib * MIB,
        read_ahead_entries=config.read_ahead_entries,
        skip_invalid_journal=config.skip_invalid_journal,
    )
