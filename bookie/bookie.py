"""One bookie: its parts, the order in which they start and stop, and what happens when one fails.

    port bound ─▶ directories locked ─▶ cookies agree ─▶ storage open ─▶ journal replayed ─▶ everything flushed
      ─▶ new journal ─▶ marks ─▶ listening ─▶ registered

Rules:

1. Nothing is answered before the replay is flushed (correctness I51), and nobody is told of the bookie before
   it listens.
2. A journal or flush that failed ends the bookie: connections are closed without an answer, the registration goes,
   and whoever owns the bookie is told (I38, I52). A full disk is no failure: the bookie becomes read-only.
3. Several bookies may live in one process; they share nothing.
"""

import asyncio
import errno
import logging
import os
import posixpath
import socket
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from bookie.admin.operations import BookieOperations
from bookie.config import BookieConfig
from bookie.disks.directories import Directories, SpaceWatch, StatusFiles
from bookie.disks.mode import Mode
from bookie.disks.read_only import DiskLimits
from bookie.jobs import JobThread
from bookie.latency import BookieStages
from bookie.maintenance.collector import GarbageCollector
from bookie.maintenance.integrity import IntegrityCheck
from bookie.maintenance.peers import PeerSource
from bookie.maintenance.rebuild.digests import MetadataDigests
from bookie.maintenance.rebuild.online import OnlineRebuild
from bookie.maintenance.repair import RepairSource
from bookie.maintenance.scrub import Scrub
from bookie.serving.connection import Connection
from bookie.serving.request_rules import RequestRules
from bookie.serving.server import Limits, Server
from bookie.serving.tls_listener import TlsListener, client_certificates, server_certificates
from bookie.startup import Opened, StorageSettings, open_storage
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.index import Index, RocksIndex
from bookie.storage.journal.writer import Journal, JournalFailed, JournalSettings, NoSpace
from bookie.storage.ledger_storage import LedgerStorage, is_no_space
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.metadata.bookie_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from magnetar_core.bookkeeper.metadata.bookies import BookieRegistration
from magnetar_core.bookkeeper.metadata.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.store import MetadataStore
from magnetar_core.bookkeeper.tls.contexts import Certificates
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage, Files
from magnetar_core.runtime.observe import SlowOperations
from magnetar_core.runtime.tasks import Parts, Tasks
from magnetar_core.runtime.types import KIB, MIB, MagnetarError

log = logging.getLogger(__name__)

# The event loop's backlog of connections that wait to be accepted.
_ACCEPT_BACKLOG = 1024


class PortInUse(MagnetarError):
    """Something else listens on the bookie's port."""


class StorageFailed(MagnetarError):
    """The ledger storage cannot be written any more."""


class Bookie:
    """A storage node. `start` raises MagnetarError with the reason if it cannot serve.

    *on_failure* is called once if the running bookie has to give up; it has stopped serving by then and `stop`
    is still to be called.
    """

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore,
        clock: Clock,
        files: Files,
        *,
        root: str = "/ledgers",
        on_failure: Callable[[BaseException], None] | None = None,
        open_index: Callable[[str, int], Index] = RocksIndex,
        usage: Callable[[str], DiskUsage] | None = None,
        repair_source: RepairSource | None = None,
    ) -> None:
        """*usage* tells of the file system below a directory; by default *files* does. *repair_source* gives entries
        back that are damaged here; by default the other bookies of the cluster do."""
        self.config = config
        self._store = store
        self._clock = clock
        self._files = files
        self._root = root
        self._on_failure = on_failure
        self._open_index = open_index
        self._parts = Parts()
        self._tasks = Tasks("bookie")
        self._address = ("", 0)
        self._bookie_id = config.bookie_id
        self._directories = Directories(
            files,
            [_absolute(directory) for directory in config.journal_directories],
            [_absolute(directory) for directory in config.ledger_directories],
            config.reserve_mib * MIB,
            usage,
        )
        self._repair_source = repair_source
        self._usage = files.usage if usage is None else usage
        self._registration: BookieRegistration
        self._storage: LedgerStorage
        self._rules: RequestRules
        self._cache: WriteCache
        self._journals: list[Journal] = []
        self._stages: BookieStages
        self._slow: SlowOperations
        self._checkpointer: Checkpointer
        self._server: Server
        self._space: SpaceWatch
        self._mode: Mode
        self._keeper: JobThread
        self._collector: GarbageCollector
        self._integrity: IntegrityCheck
        self._scrub: Scrub
        self._rebuild: OnlineRebuild
        self._operations: BookieOperations | None = None
        self._certificates: Certificates | None = None
        self._peer_certificates: Certificates | None = None
        self._tls_listener: TlsListener | None = None
        self._sockets: asyncio.Server | None = None
        self._failure: BaseException | None = None

    @property
    def bookie_id(self) -> str:
        return self._bookie_id

    @property
    def address(self) -> tuple[str, int]:
        """(host, port) under which clients reach the bookie; known after `start`."""
        return self._address

    @property
    def failure(self) -> BaseException | None:
        """Why the bookie gave up, if it did."""
        return self._failure

    @property
    def is_read_only(self) -> bool:
        return self._mode.is_read_only

    @property
    def read_only_reasons(self) -> tuple[str, ...]:
        """As text, one for each reason that holds."""
        return self._mode.texts

    @property
    def operations(self) -> BookieOperations:
        """What operators may see and do; there after `start`."""
        assert self._operations is not None, "the bookie was not started"
        return self._operations

    @property
    def server(self) -> Server:
        return self._server

    @property
    def checkpointer(self) -> Checkpointer:
        return self._checkpointer

    async def start(self) -> None:
        """Come up. Raises MagnetarError; everything that was started is stopped again then."""
        try:
            await self._start()
        except BaseException:
            await self._parts.stop()
            raise

    async def stop(self) -> None:
        """Leave the cluster, answer what was taken, flush, close. Does not raise."""
        if self._operations is not None:
            self._operations.is_shutting_down = True
        await self._parts.stop()

    # -- starting

    async def _start(self) -> None:
        self._parts.add("tasks", self._tasks.cancel)
        self._certificates = server_certificates(self.config, self._clock)
        self._peer_certificates = client_certificates(self.config, self._clock)
        listening = self._bind()
        self._parts.add("port", _as_async(listening.close))
        self._directories.open()
        self._parts.add("directories", _as_async(self._directories.close))
        self._registration = BookieRegistration(
            self._store, self._root, self._bookie_id, self._clock, on_failure=self._fail
        )
        try:
            is_emptied = await self._directories.check_cookies(
                self._registration, self._bookie_id, take_emptied=self.config.data_integrity
            )
        except OSError as error:
            raise StorageFailed(f"bookie {self._bookie_id} cannot read or write its cookies: {error}") from error

        flusher = JobThread(f"flusher {self._bookie_id}")
        flusher.start()
        self._parts.add("flusher", flusher.stop)
        self._keeper = JobThread(f"keeper {self._bookie_id}")
        self._keeper.start()
        self._parts.add("keeper", self._keeper.stop)
        # The first one is for recovery.
        readers = [JobThread(f"reader {number} {self._bookie_id}") for number in range(self.config.readers + 1)]
        for reader in readers:
            reader.start()
            self._parts.add("reader", reader.stop)

        digests = MetadataDigests(LedgerStore(self._store, self._root))
        opened = await flusher.run(lambda: self._open_storage(is_emptied, digests))
        self._storage, self._rules, self._cache, writers = opened
        self._parts.add("storage", lambda: flusher.run(self._close_storage))
        await self._check_integrity(flusher, is_emptied)
        stages = self._stages = BookieStages(len(writers), len(self._directories.ledgers))
        self._slow = SlowOperations(log, self._clock, self.config.slow_operation_ms)
        self._journals = [
            Journal(
                writer,
                f"journal {number} {self._bookie_id}",
                self._journal_failed,
                self._no_space,
                clock=self._clock,
                stages=stages.journals[number],
                slow=self._slow,
            )
            for number, writer in enumerate(writers)
        ]
        self._make_server(flusher, readers[1:], readers[0])
        self._make_mode()
        self._parts.add("mode", self._mode.stop)
        self._make_operations(flusher, readers)
        # Stopped after the journals: the last mark then covers everything.
        self._parts.add("checkpoints", self._stop_checkpoints)
        for journal in self._journals:
            journal.start()
            self._parts.add("journal", journal.stop)
        self._space.start()
        self._parts.add("space watch", _as_async(self._space.stop))
        self._collector.start()
        self._parts.add("garbage", self._collector.stop)
        self._scrub.start()
        self._parts.add("scrub", self._scrub.stop)
        self._integrity.start(self._server.put_back)
        self._parts.add("integrity", self._integrity.stop)
        self._parts.add("rebuild", self._rebuild.stop)

        try:
            self._sockets = await asyncio.get_running_loop().create_server(
                self._entrance(), sock=listening, backlog=_ACCEPT_BACKLOG
            )
        except OSError as error:
            raise self._port_error(error) from error
        self._parts.add("server", self._stop_listening)
        await self._mode.show()
        self._parts.add("registration", self._registration.unregister)
        host, port = self._address
        endpoints = [bookie_endpoint(host, port, tls=self._certificates is not None)]
        if self.config.http_enabled and self.config.http_port:
            endpoints.append(http_endpoint(host, self.config.http_port))
        await self._registration.register(BookieServiceInfo(tuple(endpoints)))
        self.operations.is_registered = True
        log.info("bookie %s serves at %s:%d", self._bookie_id, host, port)

    def _bind(self) -> socket.socket:
        """The socket, not listening yet: a port that is taken is found before anything is touched."""
        family = socket.AF_INET6 if ":" in self.config.listen_address else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.setblocking(False)
            made.bind((self.config.listen_address, self.config.port))
            port = made.getsockname()[1]
        except OSError as error:
            made.close()
            raise self._port_error(error) from error
        host = self.config.advertised_address or _own_host(self.config.listen_address)
        self._address = (host, port)
        self._bookie_id = self.config.bookie_id or f"{host}:{port}"
        return made

    def _port_error(self, error: OSError) -> PortInUse:
        where = f"{self.config.listen_address}:{self._address[1] or self.config.port}"
        if error.errno == errno.EADDRINUSE:
            return PortInUse(f"{where} is in use by another process; choose another bookiePort or stop it")
        return PortInUse(f"cannot listen on {where}: {error.strerror} (bookiePort, bookieListenAddress)")

    def _open_storage(self, is_emptied: bool, digests: MetadataDigests) -> Opened:
        """Runs on the flusher's thread. Raises MagnetarError."""
        settings = _storage_settings(self.config)
        if is_emptied:
            settings = replace(settings, skip_invalid_journal=True)

        def opened() -> Opened:
            return open_storage(
                self._files,
                self._directories.journals,
                self._directories.ledgers,
                settings,
                self._open_index,
                self._clock.wall_ms(),
                digests,
            )

        try:
            try:
                made = opened()
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._directories.give_up_reserve()
                made = opened()
        except OSError as error:
            raise StorageFailed(f"bookie {self._bookie_id} cannot open its storage: {error}") from error
        self._directories.keep_reserve()
        return made

    async def _check_integrity(self, flusher: JobThread, is_emptied: bool) -> None:
        """Where entries may have been lost: limbo before anything is served. Raises MagnetarError."""
        self._source: RepairSource
        if self._repair_source is None:
            peers = PeerSource(self._store, self._root, self._bookie_id, self._clock, self._peer_certificates)
            self._parts.add("peers", _as_async(peers.close))
            self._source = peers
        else:
            self._source = self._repair_source
        self._integrity = IntegrityCheck(
            self._bookie_id,
            LedgerStore(self._store, self._root),
            self._files,
            self._storage,
            self._rules,
            self._cache,
            self._source,
            flusher,
            self._keeper,
            self._clock,
        )
        try:
            was_apaches = self._directories.note_start()
            if was_apaches and not self.config.data_integrity:
                log.warning(
                    "the last bookie in %s was Apache's, and it did not stop cleanly; if it ran with "
                    "journalWriteData=false, restart this one with dataIntegrityChecking=true",
                    ", ".join(self._directories.ledgers),
                )
            if is_emptied or (was_apaches and self.config.data_integrity):
                await flusher.run(lambda: self._storage.set_needs_check(True))
            if is_emptied:
                self._directories.stamp()
            await self._integrity.prepare()
        except OSError as error:
            raise StorageFailed(f"bookie {self._bookie_id} cannot prepare its check of copies: {error}") from error

    def _make_server(self, flusher: JobThread, readers: list[JobThread], urgent_reader: JobThread) -> None:
        config = self.config
        self._checkpointer = Checkpointer(
            self._files,
            self._storage,
            self._cache,
            self._rules.ledgers,
            self._journals,
            self._directories.journals,
            flusher,
            self._clock,
            interval_s=config.flush_interval_ms / 1000,
            journal_backups=config.journal_backups,
            on_room=lambda: self._server.there_is_room(),
            on_no_space=self._no_space,
            on_failure=self._flush_failed,
            stages=self._stages.flushes,
            slow=SlowOperations(log, self._clock, config.slow_flush_ms),
        )
        limits = Limits(
            frame_bytes=config.frame_bytes_max,
            adds=config.adds_per_connection,
            adds_in_all=config.adds_in_all,
            add_bytes_in_all=config.add_mib_in_all * MIB,
            reads=config.reads_per_connection,
            reads_in_all=config.reads_in_all,
            batch_read_bytes=config.batch_read_bytes_max,
            write_buffer_low_bytes=config.write_buffer_low_bytes,
            write_buffer_high_bytes=config.write_buffer_high_bytes,
        )
        self._server = Server(
            self._rules,
            self._cache,
            self._rules.read_cache,
            self._storage,
            self._journals,
            self._checkpointer,
            readers,
            self._clock,
            limits,
            self._directories.ledger_usage,
            self._index_corrupt,
            urgent_reader,
            self._stages,
            self._slow,
        )

    def _entrance(self) -> Callable[[], asyncio.BaseProtocol]:
        """What makes the protocols of new connections."""
        admit = partial(Connection, self._server)
        if self._certificates is None:
            return admit
        self._tls_listener = TlsListener(
            self.config.access_rules,
            self._certificates,
            admit,
            self.config.frame_bytes_max,
            self._clock,
        )
        self.operations.tls_listener = self._tls_listener
        self._parts.add("TLS listener", self._tls_listener.close)
        return self._tls_listener.new_connection

    def _make_mode(self) -> None:
        config = self.config
        self._mode = Mode(
            self._bookie_id,
            self._rules,
            self._registration,
            self._clock,
            StatusFiles(self._files, self._directories.ledgers) if config.persist_status else None,
            self._keeper,
            free_bytes_for_high_priority=config.free_bytes_for_high_priority,
            stop_when_full=not config.read_only_mode,
            on_writable=self._writable_again,
            on_failure=self._fail,
        )
        self._rules.ledger_directories = len(config.ledger_directories)
        full = config.disk_usage_full
        self._space = SpaceWatch(
            self._usage,
            self._directories.ledgers,
            self._directories.journals,
            self._clock,
            interval_s=config.disk_check_interval_ms / 1000,
            limits=DiskLimits(
                full_share=full,
                warn_share=min(config.disk_usage_warn, full),
                room_share=full if config.disk_usage_room is None else config.disk_usage_room,
                # Less than a half of the write cache needs when it is flushed is as good as full; on top of it room
                # for the copy that compaction makes before it removes anything.
                full_bytes=max(config.write_cache_mib * MIB // 2, 64 * KIB) + config.compaction_reserve_mib * MIB,
            ),
            on_any_full=config.read_only_on_any_full,
            changed=self._mode.disks_are,
        )
        try:
            self._mode.load(config.force_read_only)
        except OSError as error:
            raise StorageFailed(f"bookie {self._bookie_id} cannot read its status: {error}") from error

    def _make_operations(self, flusher: JobThread, readers: list[JobThread]) -> None:
        config = self.config
        self._collector = GarbageCollector(
            config,
            self._bookie_id,
            self._store,
            self._root,
            self._files,
            self._storage,
            self._rules,
            self._cache,
            flusher,
            self._keeper,
            readers,
            self._clock,
            self._usage,
        )
        self._scrub = Scrub(
            config,
            LedgerStore(self._store, self._root),
            self._files,
            self._storage,
            self._rules,
            self._cache,
            self._source,
            self._server.put_back,
            self._keeper,
            self._clock,
        )
        self._rebuild = OnlineRebuild(
            config.scrub_bytes_s,
            LedgerStore(self._store, self._root),
            self._files,
            self._storage,
            self._rules,
            self._cache,
            self._collector,
            flusher,
            self._keeper,
            self._clock,
            doubt=self._integrity.doubt,
            scrub=self._scrub.trigger,
            on_index_corrupt=self._index_corrupt,
            has_failed=lambda: self._failure is not None,
        )
        self._operations = BookieOperations(
            self._bookie_id,
            self._address,
            config,
            self._files,
            self._directories,
            self._storage,
            self._rules,
            self._server,
            self._checkpointer,
            self._mode,
            self._space,
            self._collector,
            self._scrub,
            self._integrity,
            self._rebuild,
            self._keeper,
            self._clock,
            # By an address of this machine, which no certificate has to name.
            client_certificates(replace(config, tls_verify_hostname=False), self._clock),
        )

    # -- stopping

    async def _stop_listening(self) -> None:
        assert self._sockets is not None
        self._sockets.close()
        if self._tls_listener is not None:
            self._tls_listener.abort()
        self._server.close()

    async def _stop_checkpoints(self) -> None:
        try:
            if self._failure is None:
                await self._checkpointer.finish()
        except OSError as error:
            log.error("bookie %s: %s", self._bookie_id, error)
        finally:
            self._checkpointer.close()

    def _close_storage(self) -> None:
        self._storage.close()
        if self._failure is None and self._cache.is_empty and not self._rules.ledgers.is_dirty:
            self._directories.note_stop()

    # -- what goes wrong

    def _journal_failed(self, error: BaseException) -> None:
        where = ", ".join(self._directories.journals)
        self._fail(JournalFailed(f"bookie {self._bookie_id}: the journal in {where} cannot be written: {error}"))

    def _flush_failed(self, error: BaseException) -> None:
        self._fail(StorageFailed(f"bookie {self._bookie_id}: entries cannot be flushed: {error}"))

    def _index_corrupt(self, ledger_id: int, error: Exception) -> None:
        """The index is derived: the next start makes it anew from the entry logs."""
        try:
            directory = self._storage.must_rebuild(ledger_id)
        except OSError as marking:
            self._fail(StorageFailed(f"bookie {self._bookie_id}: the index is damaged: {error}; {marking}"))
            return
        text = f"bookie {self._bookie_id}: the index in {directory} is damaged; a restart rebuilds it: {error}"
        self._fail(StorageFailed(text))

    def _fail(self, error: BaseException) -> None:
        """Rule 2."""
        if self._failure is not None:
            return
        self._failure = error
        if self._operations is not None:
            self._operations.failure = error
        log.critical("%s; the bookie stops serving", error)
        if self._sockets is not None:
            self._sockets.close()
        if self._tls_listener is not None:
            self._tls_listener.abort()
        self._server.close()
        self._tasks.spawn(self._registration.unregister(), "unregister")
        if self._on_failure is not None:
            self._on_failure(error)

    def _no_space(self, error: Exception) -> None:
        self._directories.give_up_reserve()
        if isinstance(error, NoSpace):
            self._rules.keys_were_not_journaled()
        self._space.no_space(error)

    def _writable_again(self) -> None:
        self._directories.keep_reserve()
        self._checkpointer.flush()


def _storage_settings(config: BookieConfig) -> StorageSettings:
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


def _absolute(directory: str) -> str:
    return posixpath.normpath(posixpath.join(os.getcwd(), directory))


def _own_host(listen_address: str) -> str:
    """What clients can use: the address itself, or the machine's own where it listens on all."""
    if listen_address not in ("0.0.0.0", "::", ""):
        return listen_address
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        log.warning("this machine's name has no address; clients are told 127.0.0.1 (set advertisedAddress)")
        return "127.0.0.1"


def _as_async(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        call()

    return run
