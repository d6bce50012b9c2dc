"""What operators may see and do on one bookie: the one interface under the HTTP admin and the command line.

Rules:

1. Nothing is decided here: every call reads a value, or calls the part that is responsible. All calls are made on the
   loop; work with a disk is done on a worker's thread.
2. Every refusal is a MagnetarError with a text for people.
"""

import asyncio
import contextlib
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bookie.assembly import BookieParts, Lifecycle
from bookie.disks.read_only import DiskCheck, Reason
from bookie.latency import BookieLatency
from bookie.storage.entry_log.files import file_name as log_name
from bookie.storage.entry_log.files import list_logs
from bookie.storage.journal.writer import file_name as journal_name
from bookie.storage.journal.writer import list_files as list_journals
from magnetar_core.bookkeeper.tls.disk_space import ask_disks
from magnetar_core.runtime.observe import Sample
from magnetar_core.runtime.types import KIB, MagnetarError

# Time for a local connection and a few KiB written and read. A bookie that takes longer is not healthy.
_SANITY_TIMEOUT_S: Final = 10.0
_SANITY_FILE: Final = "sanity.tmp"


class DiskFileKind(StrEnum):
    """The kinds of files that `list_disk_files` lists."""

    JOURNAL = "journal"
    ENTRY_LOG = "entrylog"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class State:
    """The state of the bookie."""

    running: bool
    read_only: bool
    shutting_down: bool
    available_for_high_priority_writes: bool
    reasons: dict[Reason, str]
    """Why it is read-only; empty if it is not."""
    failure: str | None


@dataclass(frozen=True, slots=True)
class Info:
    """The bookie's disks and addresses. Sizes are bytes, summed over distinct file systems."""

    bookie_id: str
    host: str
    port: int
    total_bytes: int
    free_bytes: int
    disks: tuple[DiskCheck, ...]
    """The latest check of each directory."""
    ledgers: int
    connections: int
    uptime_s: float


@dataclass(frozen=True, slots=True)
class LogMark:
    """The place up to which a journal is in the ledger storage."""

    directory: str
    file_id: int
    file_name: str
    offset: int


@dataclass(frozen=True, slots=True)
class Sanity:
    """The outcome of a small write and read in every directory, and of a request to the bookie's port."""

    passed: bool
    read_only: bool
    problems: tuple[str, ...]


class BookieOperations:
    """The operators' side of a running bookie."""

    def __init__(self, parts: BookieParts, lifecycle: Lifecycle) -> None:
        node = parts.node
        self.bookie_id = node.bookie_id
        self._address = node.address
        self.config = node.config
        self._files = node.files
        self._directories = node.directories
        self._worker = node.threads.maintenance
        self._clock = node.clock
        self.parts = parts
        self._lifecycle = lifecycle
        # Not the advertised address, which may be a name that only clients can resolve.
        own = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
        listen_address = node.config.listen_address
        self._own_address = own.get(listen_address, listen_address), node.address[1]
        self._started_s = node.clock.monotonic()

    # -- how it is

    @property
    def is_ready(self) -> bool:
        """Whether the bookie is fully started and serves."""
        return self._lifecycle.is_ready

    def state(self) -> State:
        failure = self._lifecycle.failure
        return State(
            running=self._lifecycle.is_running,
            read_only=self.parts.mode.is_read_only,
            shutting_down=self._lifecycle.is_shutting_down,
            available_for_high_priority_writes=self.parts.mode.is_available_for_high_priority,
            reasons=self.parts.mode.reasons,
            failure=None if failure is None else str(failure),
        )

    def info(self) -> Info:
        """Raises MagnetarError if the disks cannot be asked."""
        try:
            usage = self._directories.ledger_usage()
        except OSError as error:
            raise MagnetarError(f"the size of the ledger directories cannot be read: {error}") from error
        host, port = self._address
        return Info(
            bookie_id=self.bookie_id,
            host=host,
            port=port,
            total_bytes=usage.total_bytes,
            free_bytes=usage.free_bytes,
            disks=self.parts.space.checks,
            ledgers=len(self.parts.rules.ledgers),
            connections=len(self.parts.server.connections),
            uptime_s=self._clock.monotonic() - self._started_s,
        )

    async def sanity(self) -> Sanity:
        """Write and read a little in every directory, and ask the bookie over its own port."""
        problems = await self._worker.run(self._try_directories)
        try:
            async with asyncio.timeout(_SANITY_TIMEOUT_S):
                await ask_disks(*self._own_address, self.parts.local_certificates)
        except (OSError, MagnetarError, TimeoutError) as error:
            problems.append(f"port {self._address[1]} does not answer: {error!r}")
        return Sanity(not problems, self.parts.mode.is_read_only, tuple(problems))

    # -- what it should do

    async def forget_doubt(self) -> int:
        """The ledgers that are newer than the metadata are of no use: garbage collection may delete them, and copies
        count as moved again. Returns how many they are. Raises MagnetarError."""
        older = self.parts.collector.older_metadata
        try:
            count = await older.forget()
            await older.check()
        except OSError as error:
            raise MagnetarError(f"it cannot be written down that these ledgers are of no use: {error}") from error
        return count

    def open_to_others(self) -> list[str]:
        """The directories in which every user of the machine may read what is stored; those that cannot be asked have
        other problems."""
        try:
            return self._directories.open_to_others()
        except OSError:
            return []

    # -- what is on the disks

    async def list_disk_files(self, kind: DiskFileKind) -> dict[str, list[str]]:
        """Directory → names of its files of that kind. Raises MagnetarError."""
        try:
            return await self._worker.run(lambda: self._disk_files(kind))
        except OSError as error:
            raise MagnetarError(f"the {kind} files cannot be listed: {error}") from error

    def last_log_marks(self) -> list[LogMark]:
        """The mark of each journal on disk: all records before it are in entry logs and index."""
        return [
            LogMark(directory, mark.file_id, journal_name(mark.file_id), mark.offset)
            for directory, mark in zip(self._directories.journals, self.parts.storage.marks, strict=True)
        ]

    def list_ledgers(self, first: int = 0, count_max: int | None = None) -> list[int]:
        """Ids of the ledgers of this bookie from *first* on, ascending."""
        ids = sorted(ledger.ledger_id for ledger in self.parts.rules.ledgers if ledger.ledger_id >= first)
        return ids if count_max is None else ids[:count_max]

    # -- metrics

    @property
    def latency(self) -> BookieLatency:
        """How long operations take, brought up to date."""
        latency, counters = self.parts.server.latency, self.parts.server.counters
        latency.adds_refused_at_once(counters.adds_refused)
        latency.reads.answered_from_memory(counters.reads - counters.cold_reads)
        return latency

    @property
    def journal_bytes(self) -> list[int]:
        """The bytes written to each journal since the start, padding included."""
        return [journal.writer.written_bytes for journal in self.parts.server.journals]

    @property
    def journal_queues(self) -> list[tuple[int, int]]:
        """For each journal how many items (adds, or fences) its thread has not taken, and how many are
        written and wait for the event loop."""
        return [(journal.waiting, journal.unreported) for journal in self.parts.server.journals]

    def now_s(self) -> float:
        """The bookie's clock, for the windows of `latency`."""
        return self._clock.monotonic()

    def metrics(self) -> Iterator[Sample]:
        """Numbers of this moment, for `magnetar_core.runtime.observe.Metrics`."""
        labels = (("bookie", self.bookie_id),)
        parts = self.parts
        server = parts.server
        counters, cache, listener = server.counters, server.write_cache, parts.tls_listener
        malformed = counters.malformed + (0 if listener is None else listener.malformed)

        def sample(name: str, value: float, help_text: str, *more: tuple[str, str]) -> Sample:
            return Sample(f"magnetar_bookie_{name}", value, (*labels, *more), help_text)

        yield sample("adds_total", counters.adds, "adds that were taken")
        yield sample("add_bytes_total", counters.add_bytes, "journal bytes of the adds that were taken")
        yield sample("adds_refused_total", counters.adds_refused, "adds that were refused")
        yield sample("reads_total", counters.reads, "entries that were asked for")
        yield sample("read_bytes_total", counters.read_bytes, "bytes of the entries that were sent")
        yield sample("cold_reads_total", counters.cold_reads, "reads that needed the disk")
        yield sample("fences_total", counters.fences, "fences that were written")
        yield sample("malformed_total", malformed, "connections that were closed for what they sent")
        if listener is not None:
            yield sample("tls_handshakes_failed_total", listener.handshakes_failed, "TLS handshakes that failed")
            yield sample("refused_in_clear_total", listener.refused_in_clear, "connections that had to be over TLS")
            yield sample("refused_roles_total", listener.refused_roles, "connections whose role is not admitted")
        yield sample("connections", len(server.connections), "open connections")
        yield sample("adds_in_flight", server.adds_in_flight, "adds without an answer")
        yield sample("add_bytes_in_flight", server.add_bytes_in_flight, "journal bytes of them")
        yield sample("reads_in_flight", server.reads_in_flight, "reads that wait for the disk")
        yield sample("connections_held", len(server.held), "connections that wait for others' adds and reads")
        yield sample("long_polls", server.long_polls, "reads that wait for a larger LAC")
        yield sample("ledgers", len(parts.rules.ledgers), "ledgers with copies here")
        yield sample("write_cache_bytes", cache.bytes, "entries that wait for the next flush")
        yield sample("read_cache_bytes", server.read_cache.bytes, "entries that were read from disk")
        yield sample("read_cache_hits_total", server.read_cache.hits, "entries that were read from these")
        yield sample("flushes_total", parts.checkpointer.flushes, "flushes of the write cache")
        yield sample("flush_failures_total", parts.checkpointer.flush_failures, "flushes that failed")
        gc = parts.collector.status()
        yield sample("gc_rounds_total", gc.rounds, "rounds of garbage collection")
        yield sample("gc_refused", gc.refused is not None, "1 if the last round deleted no ledger on purpose")
        yield sample("gc_failed", gc.failed is not None, "1 if the last round failed")
        yield sample("gc_last_round_seconds", gc.last_round_s, "length of the last round")
        yield sample("gc_quarantined_ledgers", gc.quarantined_ledgers, "ledgers that were found deleted once")
        yield sample("gc_doubted_ledgers", gc.doubt.ledgers, "ledgers that are newer than the metadata, and stay")
        yield sample("metadata_went_back", gc.doubt.since_ms is not None, "1 while the metadata are older than ledgers")
        yield sample("gc_deleted_ledgers_total", gc.deleted_ledgers, "ledgers that were deleted here")
        yield sample("gc_moved_ledgers_total", gc.moved_ledgers, "ledgers whose copies are elsewhere, deleted here")
        yield sample("gc_unreadable_ledgers", len(gc.unreadable_ledgers), "ledgers whose metadata is damaged")
        yield sample("gc_removed_logs_total", gc.removed_logs, "entry logs that were removed")
        yield sample("gc_reclaimed_bytes_total", gc.reclaimed_bytes, "room that was won")
        for kind, won in (
            ("compaction", gc.compaction_bytes),
            ("deletion", gc.reclaimed_bytes - gc.compaction_bytes),
        ):
            yield sample("gc_reclaimed_by_bytes_total", won, "room that was won by this", ("kind", kind))
        yield sample("entry_logs", gc.logs, "closed entry logs")
        yield sample("entry_log_bytes", gc.log_bytes, "their size")
        yield sample("entry_log_live_bytes", gc.live_bytes, "what of it belongs to ledgers that exist")
        yield sample("damaged_logs", len(gc.damaged_logs), "entry logs that were left alone")
        yield sample("compacted_logs_total", gc.compacted_logs, "entry logs that were compacted")
        yield sample("compacted_entries_total", gc.copied_entries, "entries that compaction copied")
        yield sample("compacted_bytes_total", gc.copied_bytes, "bytes of them")
        for kind, done, suspended in (
            ("minor", gc.minor_compactions, gc.minor_suspended),
            ("major", gc.major_compactions, gc.major_suspended),
        ):
            yield sample("compactions_total", done, "compactions that were done", ("kind", kind))
            yield sample("compaction_suspended", suspended, "1 if an operator suspended them", ("kind", kind))
        scrub, integrity = parts.scrub.status(), parts.integrity.status()
        yield sample("scrub_running", scrub.is_running, "1 while entries are checked")
        yield sample("scrub_passes_total", scrub.passes, "times that every entry was checked")
        yield sample("scrub_entries_verified", scrub.entries_verified, "good entries of this pass")
        yield sample("scrub_entries_repaired", scrub.entries_repaired, "entries that came back from another copy")
        yield sample("scrub_entries_lost", scrub.entries_lost, "damaged entries that no other bookie has")
        yield sample("scrub_entries_unrepaired", scrub.entries_unrepaired, "damaged entries to be tried again")
        yield sample("scrub_late", scrub.is_late, "1 if the limits make a pass longer than its period")
        yield sample("integrity_ledgers_left", integrity.ledgers_left, "ledgers whose copies are to be checked")
        yield sample("integrity_copied_entries_total", integrity.copied_entries, "entries that were copied back")
        yield sample("integrity_lost_entries_total", integrity.lost_entries, "entries that nobody has")
        opened = self.open_to_others()
        yield sample("open_directories", len(opened), "directories that every user of the machine may read")
        lost = parts.lost_logs.status()
        yield sample("lost_logs", len(lost.logs), "entry logs that are missing, cut, unreadable, or other ones")
        yield sample("lost_logs_entries_lost", lost.lost_entries, "entries of them that no bookie has")
        yield sample("lost_logs_entries_waiting", lost.waiting_entries, "entries of them that others may have")
        yield sample("lost_logs_entries_restored_total", lost.restored_entries, "entries of them that came back")
        rebuild = parts.rebuild.status()
        yield sample("index_rebuild_running", rebuild.is_running, "1 while the index is compared with the logs")
        yield sample("index_rebuilds_total", rebuild.rebuilds, "times that this was done")
        yield sample("index_rebuild_entries_put_right", rebuild.entries_put_right, "entries that it lacked, last time")
        yield sample("index_rebuild_locations_lost", rebuild.locations_lost, "locations that lead nowhere, last time")
        yield sample("read_only", parts.mode.is_read_only, "1 if no adds are taken")
        for reason in Reason:
            yield sample("read_only_reason", reason in parts.mode.reasons, "1 if it holds", ("reason", str(reason)))
        for check in parts.space.checks:
            at = ("directory", check.directory)
            yield sample("disk_free_bytes", check.free_bytes, "free on the directory's file system", at)
            yield sample("disk_total_bytes", check.total_bytes, "size of the directory's file system", at)

    # -- on the worker's thread

    def _disk_files(self, kind: DiskFileKind) -> dict[str, list[str]]:
        match kind:
            case DiskFileKind.JOURNAL:
                return {
                    directory: [journal_name(file_id) for file_id in list_journals(self._files, directory)]
                    for directory in self._directories.journals
                }
            case DiskFileKind.ENTRY_LOG:
                return {
                    directory: [log_name(log_id) for log_id in list_logs(self._files, directory)]
                    for directory in self._directories.ledgers
                }
        files: dict[str, list[str]] = {}
        for directory in self._directories.ledgers:
            for name in ("locations", "ledgers"):
                path = posixpath.join(directory, name)
                if self._files.exists(path):
                    files[path] = self._files.list(path)
        return files

    def _try_directories(self) -> list[str]:
        problems: list[str] = []
        for directory in dict.fromkeys((*self._directories.ledgers, *self._directories.journals)):
            path = posixpath.join(directory, _SANITY_FILE)
            try:
                with contextlib.suppress(FileNotFoundError):
                    self._files.remove(path)
                self._write_and_read(path)
            except OSError as error:
                problems.append(f"{directory}: {error}")
        return problems

    def _write_and_read(self, path: str) -> None:
        data = bytes(range(256)) * (4 * KIB // 256)
        file = self._files.create(path)
        try:
            file.append([data])
            file.sync()
            if file.read_at(0, len(data)) != data:
                raise OSError(f"{path}: other bytes came back than were written")
        finally:
            file.close()
            self._files.remove(path)
