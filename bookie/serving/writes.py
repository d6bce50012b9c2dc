"""The writes of one connection: its adds, with one put for all adds of a chunk; fences, LACs and forces.

    take, took ──▶ records and answers, gathered for each journal ──submit──▶ journal ──a group──▶ answers sent

Rules:

1. The journal gets every entry that the cache took: `submit` runs after every chunk, also after a malformed frame.
2. Adds that were taken before a fence, a LAC or a force go to the journal before it.
3. The connection is held while too many of its adds, or of all connections' adds, have no answer.
4. One that carries copies only is held between them while clients write (`recovery_lane`).
"""

from collections.abc import Callable
from typing import TypeAlias

from bookie.serving.protocol import ADDS_IN_FLIGHT, ALL_ADDS, CACHE_FULL, Peer
from bookie.serving.request_rules import EREADONLY, OK
from bookie.serving.server import Server
from magnetar_core.bookkeeper.wire import codec_v2 as v2
from magnetar_core.bookkeeper.wire import codec_v3 as v3
from magnetar_core.runtime.types import Buffer

_Group: TypeAlias = tuple[list[bytes], int, float, bool]
"""The answers of one put, its journal bytes, when it was put, and whether the recovery lane waits for it."""


class Writes:
    """The writes of one connection. Used on the loop."""

    def __init__(self, server: Server, peer: Peer) -> None:
        self._server = server
        self._peer = peer
        self._limits = server.limits
        # Adds of the chunk that is being processed: journal records and answers, for each journal.
        count = len(server.journals)
        self.records: list[list[Buffer]] = [[] for _ in range(count)]
        self.answers: list[list[bytes]] = [[] for _ in range(count)]
        self.has_adds = False
        """Whether adds were taken that the journal does not have yet."""
        self.adds_in_flight = 0
        self.add_bytes_in_flight = 0
        self._is_client = False
        """Whether it ever added anything but copies."""
        self._copied_bytes = 0
        """Bytes of copies in the chunk that is being processed."""

    # -- adds

    def take(self, number: int, answer: bytes, size: int, is_copy: bool) -> None:
        """An entry of *size* bytes was taken, with its journal records in `records`; *answer* is sent when it
        is durable. *is_copy*: it is a recovery add."""
        self.answers[number].append(answer)
        self.took(1, size, is_copy)

    def take_deferred(self, number: int, answer: bytes, size: int, records: list[Buffer]) -> None:
        """Does the same as `take`, for an add that is answered after it is written (DEFERRED_SYNC)."""
        if self.has_adds:
            self.submit()  # rule 2
        self.adds_in_flight += 1
        self.add_bytes_in_flight += size + 4
        server = self._server
        server.adds_in_flight += 1
        server.add_bytes_in_flight += size + 4
        server.counters.adds += 1
        now = server.clock.monotonic()
        server.recovery_lane.foreground_s = now
        server.journals[number].put(records, False, self._on_added, ([answer], size + 4, now, False))
        server.checkpointer.touched()
        self._hold_if_full()
        if server.has_too_many_adds:
            self._peer.hold(ALL_ADDS)

    def took(self, count: int, size: int, is_copy: bool) -> None:
        """*count* adds were taken, of *size* bytes together; they are in `records` and `answers`. *is_copy*: they are
        recovery adds."""
        self.has_adds = True
        if is_copy:
            self._copied_bytes += size
        else:
            self._is_client = True
        self.adds_in_flight += count
        self.add_bytes_in_flight += size + 4 * count
        self._hold_if_full()

    def _hold_if_full(self) -> None:
        """Rule 3, and the write cache."""
        self._hold_if_many()
        if self._server.write_cache.is_full:  # also on a read-only bookie, which takes recovery adds
            self._peer.hold(CACHE_FULL)

    def _hold_if_many(self) -> None:
        if self.adds_in_flight >= self._limits.adds or self.add_bytes_in_flight >= self._limits.add_bytes:
            self._peer.hold(ADDS_IN_FLIGHT)

    def submit(self) -> None:
        """Give the adds that were taken since the last call to the journals."""
        self.has_adds = False
        server = self._server
        now = server.clock.monotonic()
        is_in_lane = False
        if self._is_client:
            server.recovery_lane.foreground_s = now
        else:
            is_in_lane = server.recovery_lane.took(self._peer, self._copied_bytes, now)  # rule 4
        self._copied_bytes = 0
        for number, answers in enumerate(self.answers):
            if not answers:
                continue
            records = self.records[number]
            self.records[number], self.answers[number] = [], []
            size = sum(map(len, records))
            server.counters.adds += len(answers)
            server.counters.add_bytes += size
            server.adds_in_flight += len(answers)
            server.add_bytes_in_flight += size
            server.journals[number].put(records, True, self._on_added, (answers, size, now, is_in_lane))
        server.checkpointer.touched()
        if server.has_too_many_adds:
            self._peer.hold(ALL_ADDS)

    def _on_added(self, group: _Group, refusal: Exception | None) -> None:
        answers, size, taken_s, is_in_lane = group
        self._count_answered(len(answers), size)
        server = self._server
        adds, now = server.latency.adds, server.clock.monotonic()
        (adds.good if refusal is None else adds.bad).add((now - taken_s) * 1000, len(answers))
        if is_in_lane:
            server.recovery_lane.answered(now - taken_s, now)
        if server.held:
            server.release_adds()
        if refusal is not None:
            answers = [_with_refusal(answer, EREADONLY) for answer in answers]
        self._peer.send(answers[0] if len(answers) == 1 else b"".join(answers))
        self._go_on_if_few()

    def _count_answered(self, count: int, size: int) -> None:
        """*count* requests of *size* bytes together are not in flight any more."""
        self.adds_in_flight -= count
        self.add_bytes_in_flight = max(self.add_bytes_in_flight - size, 0) if self.adds_in_flight else 0
        server = self._server
        server.adds_in_flight -= count
        server.add_bytes_in_flight -= size
        assert self.adds_in_flight >= 0
        assert server.adds_in_flight >= 0
        assert server.add_bytes_in_flight >= 0

    def _go_on_if_few(self) -> None:
        if self._peer.held_for & ADDS_IN_FLIGHT and (
            self.adds_in_flight <= self._limits.adds // 2 and self.add_bytes_in_flight <= self._limits.add_bytes // 2
        ):
            self._peer.go_on(ADDS_IN_FLIGHT)

    # -- everything else

    def journal(self, ledger_id: int, records: list[Buffer], must_sync: bool, done: Callable[[int], None]) -> None:
        """Journal *records* that are not those of a plain add, then call *done(rc)*."""
        if self.has_adds:
            self.submit()  # rule 2
        done = self._in_flight(sum(map(len, records)), done)
        self._server.journal_of(ledger_id).put(
            records, must_sync, lambda _, refusal: done(OK if refusal is None else EREADONLY), None
        )
        self._server.checkpointer.touched()

    def _in_flight(self, size: int, done: Callable[[int], None]) -> Callable[[int], None]:
        """A request of *size* bytes that waits for the journal counts as an add until the call that is returned. It
        takes no room in the write cache, and does not wait for it."""
        server = self._server
        self.adds_in_flight += 1
        self.add_bytes_in_flight += size
        server.adds_in_flight += 1
        server.add_bytes_in_flight += size
        self._hold_if_many()
        if server.has_too_many_adds:
            self._peer.hold(ALL_ADDS)

        def answered(rc: int) -> None:
            self._count_answered(1, size)
            if server.held:
                server.release_adds()
            done(rc)
            self._go_on_if_few()

        return answered

    def fence(self, ledger_id: int, key: bytes, done: Callable[[int], None]) -> None:
        """Fence a ledger; *done(rc)* when that is durable, or with the refusal."""
        if self.has_adds:
            self.submit()  # rule 2
        self._server.fence(ledger_id, key, self._in_flight(0, done))


def _with_refusal(answer: bytes, rc: int) -> bytes:
    """*answer*, made for a successful add of either protocol, with *rc* instead of success."""
    frame = memoryview(answer)[4:]
    if not v3.is_v3(frame):
        return v2.with_rc(answer, rc)
    added = v3.parse_response(frame)
    return v3.add_response(added.header.txnId, v3.OF_V2[rc], added.addResponse.ledgerId, added.addResponse.entryId)
