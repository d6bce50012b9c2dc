"""The reads of one connection: answered from memory at once, or queued for the disk.

Rules:

1. Memory is checked again before a read goes to disk. An entry from disk never replaces one that was added meanwhile.
2. The connection is held while too many of its reads, or of all connections' reads, wait for the disk.
3. It has one list of entries under way, and none is begun while the peer does not take its answers. Requests for the
   same ledger that come meanwhile share one answer.
"""

from collections.abc import Callable

from bookie.serving.cold_reads import ColdRead, ColdReads, Fetched
from bookie.serving.listings import Listed
from bookie.serving.protocol import ALL_READS, CLOSED, READS_IN_FLIGHT, SLOW_PEER, Answer, Peer
from bookie.serving.request_rules import EIO, ENOLEDGER, OK
from bookie.serving.server import Server
from bookie.storage.ledger_storage import ReadResult, Tail
from magnetar_core.bookkeeper.wire.codec_v2 import LAST_ENTRY


class Reads:
    """The reads of one connection. Used on the loop."""

    def __init__(self, server: Server, peer: Peer) -> None:
        self._server = server
        self._rules = server.rules
        self._limits = server.limits
        self._peer = peer
        reader, urgent_reader = server.next_readers()
        watch = server.read_watch
        self._cold = ColdReads(reader, self._may_start, self._on_fewer_waiting, watch, lambda: server.counters.adds)
        self._urgent = ColdReads(urgent_reader, self._may_start, self._on_fewer_waiting, watch)
        self._counted = 0
        self._lists: dict[int, list[Listed]] = {}
        self._lists_waiting = 0
        self._is_listing = False

    def go_on(self) -> None:
        """The peer takes answers again."""
        self._urgent.go_on()
        self._cold.go_on()
        self._list_next()

    def close(self) -> None:
        """Drop the waiting reads."""
        self._cold.close()
        self._urgent.close()
        self._lists.clear()
        self._lists_waiting = 0
        self._count()

    def read(self, ledger_id: int, entry_id: int, answer: Answer, urgent: bool = False) -> None:
        """Find an entry (or the last one); *answer(entry or refusal)*, at once if memory has it."""
        self._server.counters.reads += 1
        result = self._rules.read(ledger_id, entry_id)
        if result is not None:
            self._count_bytes(result)
            answer(result)
        elif entry_id == LAST_ENTRY:
            ledger = self._rules.ledgers.get(ledger_id)
            if ledger is not None and ledger.is_tail_known:  # known, but no cache has it
                self._read_from_disk(ledger_id, ledger.last_entry_id, answer, urgent)
            else:
                self.when_tail_is_known(
                    ledger_id,
                    lambda rc: answer(rc) if rc else self.read(ledger_id, entry_id, answer, urgent),
                    urgent,
                )
        else:
            self._read_from_disk(ledger_id, entry_id, answer, urgent)

    def _read_from_disk(self, ledger_id: int, entry_id: int, answer: Answer, urgent: bool) -> None:
        storage, write_cache = self._server.storage, self._server.write_cache

        def work(fetched: Fetched) -> tuple[ReadResult, int]:
            entry = fetched.get((ledger_id, entry_id))
            if entry is not None:
                return ReadResult(entry, []), 0
            result = storage.read(ledger_id, entry_id)
            fetched.update({(ledger_id, read_id): read for read_id, read in result.run})
            return result, sum(len(entry) for _, entry in result.run)

        def done(result: ReadResult | None, error: Exception | None) -> None:
            if error is not None or result is None:
                self._server.read_failed(ledger_id, f"entry {entry_id}", error)
                answer(EIO)
                return
            # An entry that was added again meanwhile is newer than the one on disk (rule 1).
            run = [pair for pair in result.run if write_cache.get(ledger_id, pair[0]) is None]
            self._server.read_cache.put_run(ledger_id, run)
            entry = write_cache.get(ledger_id, entry_id) or result.entry
            if entry is not None:
                self._count_bytes(entry)
            answer(self.absent(ledger_id) if entry is None else entry)

        def answer_from_memory() -> bool:
            result = self._rules.read(ledger_id, entry_id)
            if result is not None:
                self._count_bytes(result)
                answer(result)
            return result is not None

        self.read_cold(ColdRead(work, done, answer_from_memory), urgent)

    def _count_bytes(self, result: bytes | int) -> None:
        if not isinstance(result, int):
            self._server.counters.read_bytes += len(result)

    def absent(self, ledger_id: int) -> int:
        """The refusal for an entry that is neither in memory nor on disk."""
        ledger = self._rules.ledgers.get(ledger_id)
        return ENOLEDGER if ledger is None else self._rules.absent(ledger)

    def when_tail_is_known(self, ledger_id: int, then: Callable[[int], None], urgent: bool = False) -> None:
        """Call *then(0)* when LAC and last entry of the ledger are known, *then(rc)* if they cannot be."""
        ledger = self._rules.ledgers.get(ledger_id)
        if ledger is None:
            then(ENOLEDGER)
            return
        if ledger.is_tail_known:
            then(OK)
            return
        storage = self._server.storage

        def work(fetched: Fetched) -> tuple[Tail, int]:
            tail = storage.tail(ledger_id)
            return tail, len(tail.entry or b"")

        def done(tail: Tail | None, error: Exception | None) -> None:
            if error is not None or tail is None:
                self._server.read_failed(ledger_id, "its last entry", error)
                then(EIO)
                return
            ledger.see_tail(tail.entry_id, tail.last_add_confirmed)
            if tail.entry is not None and self._server.write_cache.get(ledger_id, tail.entry_id) is None:
                self._server.read_cache.put_run(ledger_id, [(tail.entry_id, tail.entry)])
            then(OK)

        self.read_cold(ColdRead(work, done), urgent)

    # -- lists of entries (rule 3)

    def list_entries(self, ledger_id: int, listed: Listed) -> None:
        """Call *listed* with the encoded list, or the refusal."""
        self._lists.setdefault(ledger_id, []).append(listed)
        self._lists_waiting += 1
        self._hold_if_many()
        self._list_next()

    def _list_next(self) -> None:
        if self._is_listing or not self._lists or not self._may_start():
            return
        self._is_listing = True
        ledger_id = next(iter(self._lists))
        callbacks = self._lists.pop(ledger_id)

        def done(result: bytes | int) -> None:
            self._is_listing = False
            if self._peer.held_for & CLOSED:
                return
            at = 0
            while at < len(callbacks) and self._may_start():
                callbacks[at](result)
                at += 1
            self._lists_waiting -= at
            if at < len(callbacks):
                self._lists.setdefault(ledger_id, []).extend(callbacks[at:])
            self._on_fewer_waiting()
            self._list_next()

        self._server.listings.ask(ledger_id, done)

    # -- what waits for the disk

    def read_cold(self, read: ColdRead, urgent: bool = False) -> None:
        """Queue a read that needs the disk; *urgent*: on the thread for recovery."""
        self._server.counters.cold_reads += 1
        (self._urgent if urgent else self._cold).add(read)
        self._hold_if_many()

    def _hold_if_many(self) -> None:
        self._count()
        if self._waiting >= self._limits.reads:
            self._peer.hold(READS_IN_FLIGHT)
        if self._server.has_too_many_reads:
            self._peer.hold(ALL_READS)

    @property
    def _waiting(self) -> int:
        return len(self._cold) + len(self._urgent) + self._lists_waiting

    def _may_start(self) -> bool:
        return not self._peer.held_for & (SLOW_PEER | CLOSED)

    def _on_fewer_waiting(self) -> None:
        """Fewer reads wait: release this connection, and others that wait for the server's sum of reads (rule 2)."""
        self._count()
        if self._waiting <= self._limits.reads // 2:  # not at the limit itself, or each read would hold and release
            self._peer.go_on(READS_IN_FLIGHT)
        if self._server.held:
            self._server.release_reads()

    def _count(self) -> None:
        """Bring the server's sum of waiting reads up to date: it counts those of all connections."""
        waiting = self._waiting
        self._server.reads_in_flight += waiting - self._counted
        assert waiting <= self._server.reads_in_flight
        self._counted = waiting
