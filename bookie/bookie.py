"""One bookie: its parts, the order in which they start and stop, and what happens when one fails.

    port bound ─▶ directories locked ─▶ cookies agree ─▶ storage open ─▶ journal replayed ─▶ everything flushed
      ─▶ new journal ─▶ marks ─▶ state read ─▶ listening ─▶ registered

Rules:

1. No request is answered before the replay is flushed (I51), and the bookie is registered only when it listens.
2. A journal or flush that failed ends the bookie: connections are closed without an answer, the registration goes,
   and `on_failure` tells the owner of the bookie (I38, I52). With a full disk the bookie becomes read-only instead.
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
from bookie.assembly import BookieParts, Lifecycle, Node, assemble, storage_settings
from bookie.config import BookieConfig
from bookie.disks.directories import Directories
from bookie.disks.draining import StateFollower
from bookie.jobs import JobThread, Threads
from bookie.leaving import let_writers_go
from bookie.maintenance.integrity import IntegrityCheck
from bookie.maintenance.peers import PeerSource
from bookie.maintenance.rebuild.digests import MetadataDigests
from bookie.maintenance.repair import RepairSource
from bookie.serving.connection import Connection
from bookie.serving.server import Server
from bookie.serving.tls_listener import client_certificates, server_certificates
from bookie.startup import Opened, open_storage
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.index import Index, IndexCorrupt, RocksIndex
from bookie.storage.journal.writer import JournalFailed, NoSpace
from bookie.storage.ledger_storage import is_no_space
from magnetar_core.bookkeeper.metadata.bookies.bookie_info import BookieServiceInfo, bookie_endpoint, http_endpoint
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates
from magnetar_core.bookkeeper.metadata.bookies.register import BookieDirectory, BookieRegistration
from magnetar_core.bookkeeper.metadata.damage.reports import DamageReporter
from magnetar_core.bookkeeper.metadata.damage.rules import Source
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.files import DiskUsage, Files
from magnetar_core.runtime.process.descriptors import guarded
from magnetar_core.runtime.tasks import Parts, Tasks
from magnetar_core.runtime.types import MIB, MagnetarError

log = logging.getLogger(__name__)

# Connections that may wait to be accepted.
ACCEPT_BACKLOG = 1024


class PortInUse(MagnetarError):
    """Something else listens on the bookie's port."""


class StorageFailed(MagnetarError):
    """The ledger storage cannot be written any more."""


class Bookie:
    """A storage node. `start` raises MagnetarError with the reason if it cannot serve.

    *on_failure* is called once if the running bookie has to give up. It has stopped serving by then; the owner must
    still call `stop`.
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
        new_socket: Callable[[int, int, int], socket.socket] = socket.socket,
        is_moved: bool = False,
    ) -> None:
        """*usage* returns the usage of the file system below a directory; by default *files* does. *repair_source*
        fetches copies of entries that are damaged here; by default from the other bookies of the cluster.
        *new_socket* makes the socket that is bound, as `socket.socket` does. *is_moved*: its directories may stand
        elsewhere than they did."""
        self.config = config
        self._store = store
        self._clock = clock
        self._files = files
        self._root = root
        self._on_failure = on_failure
        self._open_index = open_index
        self._repair_source = repair_source
        self._new_socket = new_socket
        self._is_moved = is_moved
        self._usage = files.usage if usage is None else usage
        self.address = ("", 0)
        """(host, port) under which clients reach the bookie; known after `start`."""
        self.bookie_id = config.bookie_id
        self._directories = Directories(
            files,
            [_absolute(directory) for directory in config.journal_directories],
            [_absolute(directory) for directory in config.ledger_directories],
            config.reserve_mib * MIB,
            usage,
            _absolute,
        )
        self._stops = Parts()
        self._tasks = Tasks("bookie")
        self._sockets: asyncio.Server | None = None
        self._lifecycle = Lifecycle()
        self._parts: BookieParts | None = None
        self._operations: BookieOperations | None = None

    @property
    def failure(self) -> BaseException | None:
        """Why the bookie gave up, if it did."""
        return self._lifecycle.failure

    @property
    def is_read_only(self) -> bool:
        return self.parts.mode.is_read_only

    @property
    def parts(self) -> BookieParts:
        """The parts of the bookie; known after `start`."""
        assert self._parts is not None, "the bookie was not started"
        return self._parts

    @property
    def operations(self) -> BookieOperations:
        """What operators may see and do; known after `start`."""
        assert self._operations is not None, "the bookie was not started"
        return self._operations

    @property
    def server(self) -> Server:
        return self.parts.server

    @property
    def checkpointer(self) -> Checkpointer:
        return self.parts.checkpointer

    async def start(self) -> None:
        """Start to serve. After a MagnetarError everything that was started is stopped again."""
        assert self._parts is None, "a bookie starts once"
        try:
            await self._start()
        except BaseException:
            await self._stops.stop()
            raise

    async def stop(self) -> None:
        """Let the writers go, remove the registration, answer the requests that were taken, flush, close. Does not
        raise."""
        self._lifecycle.is_shutting_down = True
        await self._stops.stop()

    async def _next_ledger_id(self) -> int:
        """A number above those of all ledgers; 0 where there are none, as in a new cluster. Raises MetadataError."""
        ledgers = LedgerStore(self._store, self._root)
        async for _ in ledgers.list():
            return await ledgers.next_id()
        return 0

    def _ledgers_in(self, directory: str) -> list[int]:
        """The ledgers of a directory that is not open yet; none of an index that will be made anew. Raises OSError."""
        try:
            index = self._open_index(directory, MIB)
        except IndexCorrupt:
            return []
        try:
            return [ledger_id for ledger_id, _ in index.ledgers()]
        finally:
            index.close()

    # -- starting

    async def _start(self) -> None:
        self._stops.add("tasks", self._tasks.cancel)
        certificates = server_certificates(self.config, self._clock)
        peer_certificates = client_certificates(self.config, self._clock)
        listening = self._bind()
        self._stops.add("port", _as_async(listening.close))
        self._directories.open()
        self._stops.add("directories", _as_async(self._directories.close))
        registration = BookieRegistration(self._store, self._root, self.bookie_id, self._clock, on_failure=self.fail)
        try:
            is_emptied = await self._directories.check_cookies(
                registration,
                self.bookie_id,
                self._next_ledger_id,
                take_emptied=self.config.data_integrity,
                take_moved=self._is_moved,
                ledgers_in=self._ledgers_in,
            )
        except OSError as error:
            raise StorageFailed(f"bookie {self.bookie_id} cannot read or write its cookies: {error}") from error
        damage = DamageReporter(self._store, self._root, Source.SCRUB, self.bookie_id, self._clock)
        self._stops.add("damage reports", damage.stop)
        node = Node(
            config=self.config,
            bookie_id=self.bookie_id,
            address=self.address,
            store=self._store,
            root=self._root,
            clock=self._clock,
            files=self._files,
            usage=self._usage,
            directories=self._directories,
            registration=registration,
            certificates=certificates,
            threads=self._start_threads(),
            on_damage=damage.report,
        )
        flusher = node.threads.flusher
        digests = MetadataDigests(LedgerStore(self._store, self._root))
        opened = await flusher.run(lambda: self._open_storage(is_emptied, digests))
        self._stops.add("storage", lambda: flusher.run(lambda: self._close_storage(opened)))
        opened.rules.first_ledger_id = self._directories.first_ledger_id()
        source = self._repair_source
        if source is None:
            peers = PeerSource(
                self._store,
                self._root,
                self.bookie_id,
                self._clock,
                peer_certificates,
                self.config.frame_bytes_max,
            )
            self._stops.add("peers", _as_async(peers.close))
            source = peers
        integrity = await self._check_integrity(node, opened, source, is_emptied)
        try:
            self._parts = parts = assemble(node, opened, integrity, source, self._lifecycle, self)
            self._operations = BookieOperations(parts, self._lifecycle)
            parts.mode.load(self.config.force_read_only)
        except OSError as error:
            raise StorageFailed(f"bookie {self.bookie_id} cannot read its status: {error}") from error
        self._start_parts(parts)
        follower = StateFollower(BookieStates(self._store, self._root), self.bookie_id, parts.mode, self._clock)
        self._stops.add("state", follower.stop)
        await follower.start()
        await self._listen(parts, listening)
        await self._register(parts)

    def _start_threads(self) -> Threads:
        flusher = self._started("flusher", f"flusher {self.bookie_id}")
        maintenance = self._started("maintenance", f"maintenance {self.bookie_id}")
        urgent_reader, *readers = (
            self._started("reader", f"reader {number} {self.bookie_id}") for number in range(self.config.readers + 1)
        )
        return Threads(flusher, maintenance, urgent_reader, tuple(readers))

    def _started(self, kind: str, name: str) -> JobThread:
        thread = JobThread(name)
        thread.start()
        self._stops.add(kind, thread.stop)
        return thread

    def _start_parts(self, parts: BookieParts) -> None:
        """Start the parts. They are stopped in the reverse order."""
        stops = self._stops
        stops.add("mode", parts.mode.stop)
        # Stopped after the journals: the last mark then covers everything.
        stops.add("checkpoints", self._stop_checkpoints)
        for journal in parts.journals:
            journal.start()
            stops.add("journal", journal.stop)
        parts.space.start()
        stops.add("space watch", _as_async(parts.space.stop))
        parts.collector.start()
        stops.add("garbage", parts.collector.stop)
        parts.scrub.start()
        stops.add("scrub", parts.scrub.stop)
        parts.integrity.start(parts.server.put_back)
        stops.add("integrity", parts.integrity.stop)
        parts.lost_logs.start()
        stops.add("lost logs", parts.lost_logs.stop)
        stops.add("rebuild", parts.rebuild.stop)

    async def _listen(self, parts: BookieParts, listening: socket.socket) -> None:
        new_connection: Callable[[], asyncio.BaseProtocol] = partial(Connection, parts.server)
        if parts.tls_listener is not None:
            self._stops.add("TLS listener", parts.tls_listener.close)
            new_connection = parts.tls_listener.new_connection
        try:
            self._sockets = await asyncio.get_running_loop().create_server(
                guarded(new_connection), sock=listening, backlog=ACCEPT_BACKLOG
            )
        except OSError as error:
            raise self._port_error(error) from error
        self._stops.add("server", self._stop_listening)

    async def _register(self, parts: BookieParts) -> None:
        """Register the bookie in the metadata store. Raises MetadataError."""
        registration = parts.node.registration
        registration.before = partial(self._check_metadata, parts)
        self._stops.add("registration", registration.unregister)
        host, port = self.address
        endpoints = [bookie_endpoint(host, port, tls=parts.node.certificates is not None)]
        if self.config.http_enabled and self.config.http_port:
            endpoints.append(http_endpoint(host, self.config.http_port))
        try:
            await registration.register(BookieServiceInfo(tuple(endpoints)))
        except OSError as error:
            text = f"bookie {self.bookie_id} cannot note which ledgers are newer than the metadata: {error}"
            raise StorageFailed(text) from error
        self._lifecycle.is_registered = True
        self._stops.add("writers", partial(self._let_writers_go, parts))
        log.info("bookie %s serves at %s:%d", self.bookie_id, host, port)

    async def _check_metadata(self, parts: BookieParts) -> None:
        """Check before registering if the metadata are older than the ledgers. Raises MetadataError, OSError."""
        await parts.collector.older_metadata.check()
        await parts.mode.show()

    def _bind(self) -> socket.socket:
        """Bind the socket without listening: a port that is in use is found before anything is changed."""
        family = socket.AF_INET6 if ":" in self.config.listen_address else socket.AF_INET
        # The protocol is named because asyncio sets TCP_NODELAY only then; without it answers waited 40 ms for an ACK.
        listening = self._new_socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setblocking(False)
            listening.bind((self.config.listen_address, self.config.port))
            port = listening.getsockname()[1]
        except OSError as error:
            listening.close()
            raise self._port_error(error) from error
        host = self.config.advertised_address or _own_host(self.config.listen_address)
        self.address = (host, port)
        self.bookie_id = self.config.bookie_id or f"{host}:{port}"
        return listening

    def _port_error(self, error: OSError) -> PortInUse:
        where = f"{self.config.listen_address}:{self.address[1] or self.config.port}"
        if error.errno == errno.EADDRINUSE:
            return PortInUse(f"{where} is in use by another process; choose another bookiePort or stop it")
        return PortInUse(f"cannot listen on {where}: {error.strerror} (bookiePort, bookieListenAddress)")

    def _open_storage(self, is_emptied: bool, digests: MetadataDigests) -> Opened:
        """Runs on the flusher's thread. Raises MagnetarError."""
        settings = storage_settings(self.config)
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
                storage = opened()
            except OSError as error:
                if not is_no_space(error):
                    raise
                self._directories.give_up_reserve()
                storage = opened()
        except OSError as error:
            raise StorageFailed(f"bookie {self.bookie_id} cannot open its storage: {error}") from error
        self._directories.keep_reserve()
        return storage

    async def _check_integrity(
        self, node: Node, opened: Opened, source: RepairSource, is_emptied: bool
    ) -> IntegrityCheck:
        """If entries may have been lost, put ledgers into limbo before anything is served. Raises MagnetarError."""
        flusher = node.threads.flusher
        integrity = IntegrityCheck(
            self.bookie_id,
            LedgerStore(self._store, self._root),
            self._files,
            opened.storage,
            opened.rules,
            opened.cache,
            source,
            flusher,
            node.threads.maintenance,
            self._clock,
            node.on_damage,
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
                await flusher.run(lambda: opened.storage.set_needs_check(True))
            if is_emptied:
                self._directories.stamp()
            await integrity.prepare()
        except OSError as error:
            raise StorageFailed(f"bookie {self.bookie_id} cannot prepare its check of copies: {error}") from error
        return integrity

    # -- stopping

    async def _let_writers_go(self, parts: BookieParts) -> None:
        if self.failure is not None or not parts.server.connections:
            return
        counters, registration = parts.server.counters, parts.node.registration
        await let_writers_go(
            lambda: counters.adds, registration, BookieDirectory(self._store, self._root, self._clock),
            self.bookie_id, self.config.stop_wait_ms / 1000, self._clock,
        )  # fmt: skip

    async def _stop_listening(self) -> None:
        self._end_connections()

    def _end_connections(self) -> None:
        """Take no new connections and end the existing ones at once."""
        if self._sockets is not None:
            self._sockets.close()
        parts = self._parts
        if parts is None:
            return
        if parts.tls_listener is not None:
            parts.tls_listener.abort()
        parts.server.close()

    async def _stop_checkpoints(self) -> None:
        checkpointer = self.parts.checkpointer
        try:
            if self.failure is None:
                await checkpointer.finish()
        except OSError as error:
            log.error("bookie %s: %s", self.bookie_id, error)
        finally:
            checkpointer.close()

    def _close_storage(self, opened: Opened) -> None:
        opened.storage.close()
        if self.failure is None and opened.cache.is_empty and not opened.rules.ledgers.is_dirty:
            self._directories.note_stop()

    # -- what the parts report (`bookie.assembly.Reports`)

    def journal_failed(self, error: BaseException) -> None:
        where = ", ".join(self._directories.journals)
        self.fail(JournalFailed(f"bookie {self.bookie_id}: the journal in {where} cannot be written: {error}"))

    def flush_failed(self, error: BaseException) -> None:
        self.fail(StorageFailed(f"bookie {self.bookie_id}: entries cannot be flushed: {error}"))

    def index_corrupt(self, ledger_id: int, error: Exception) -> None:
        """The index with this ledger is damaged. Mark it and stop: the next start rebuilds it from the entry logs."""
        try:
            directory = self.parts.storage.must_rebuild(ledger_id)
        except OSError as mark_error:
            self.fail(StorageFailed(f"bookie {self.bookie_id}: the index is damaged: {error}; {mark_error}"))
            return
        text = f"bookie {self.bookie_id}: the index in {directory} is damaged; a restart rebuilds it: {error}"
        self.fail(StorageFailed(text))

    def fail(self, error: BaseException) -> None:
        """Stop serving and tell the owner (rule 2)."""
        if self._lifecycle.failure is not None:
            return
        self._lifecycle.failure = error
        log.critical("%s; the bookie stops serving", error)
        self._end_connections()
        if self._parts is not None:
            self._tasks.spawn(self._parts.node.registration.unregister(), "unregister")
        if self._on_failure is not None:
            self._on_failure(error)

    def no_space(self, error: Exception) -> None:
        parts = self.parts
        self._directories.give_up_reserve()
        if isinstance(error, NoSpace):
            parts.rules.keys_were_not_journaled()
        parts.space.no_space(error)

    def writable_again(self) -> None:
        self._directories.keep_reserve()
        self.parts.checkpointer.flush()


def _absolute(directory: str) -> str:
    return posixpath.normpath(posixpath.join(os.getcwd(), directory))


def _own_host(listen_address: str) -> str:
    """An address that clients can use: the one listened on, or the machine's own if the bookie listens on all."""
    if listen_address not in ("0.0.0.0", "::", ""):
        return listen_address
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        log.warning("this machine's name has no address; clients get 127.0.0.1 (set advertisedAddress)")
        return "127.0.0.1"


def _as_async(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def run() -> None:
        call()

    return run
