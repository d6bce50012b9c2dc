"""Requests to one bookie that have no answer yet. No IO and no clock: requests, answers and times come in, and those
that waited come out.

Rules:

1. Version 2 has no request ids for adds and reads: an answer is matched to its request by (ledger, entry), and if
   several equal requests wait, the oldest of them gets it.
2. A request ends exactly once: answered, expired, or failed with all others. An add expires only when the bookie is
   silent: while it answers other requests, the add is still queued there.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Generic, TypeAlias, TypeVar

from magnetar_core.bookkeeper.client.deciding.writer import PendingAdd
from magnetar_core.bookkeeper.wire.codec_v2 import ADD_ENTRY, BATCH_READ_ENTRY, READ_ENTRY, parse_response
from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.types import Buffer

# How many time-outs in a row an add may wait while the bookie answers other requests (rule 2). It is bounded because
# an answer that is lost must not keep an entry for ever.
OVERTAKEN_MAX: Final = 3


A = TypeVar("A")  # whoever sends adds
R = TypeVar("R")  # whoever waits for a read

_Key: TypeAlias = tuple[int, int]


class Outstanding(Generic[A, R]):
    """The requests of one connection."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        # By (ledger, entry). For several equal requests (rule 1) the value is a list of adders, oldest first; a list
        # for every add would cost an allocation per entry.
        self._adds: dict[_Key, A | list[A]] = {}
        # By (ledger, entry), None for batches, and number, oldest first. A batch has its number as request id.
        self._reads: dict[_Key | None, dict[int, R]] = {}
        self._reads_sent = 0
        self._has_answered_batch = False
        # In the order of the times. What was answered stays in them until then, so they name readers by numbers only.
        self._add_deadlines: deque[tuple[float, A, int, int, int, int]] = deque()
        self._read_deadlines: deque[tuple[float, int, _Key | None]] = deque()

    def __len__(self) -> int:
        return len(self._adds) + sum(map(len, self._reads.values()))

    @property
    def is_batch_unknown(self) -> bool:
        """A batch waits, and none was answered since everything failed last."""
        return None in self._reads and not self._has_answered_batch

    def add(self, adder: A, ledger_id: int, run: Sequence[PendingAdd], now_s: float, outbox: list[Buffer]) -> int:
        """Put *run* (ids ascending) into *outbox*. Returns its bytes."""
        adds = self._adds
        size = 0
        for add in run:
            key = (ledger_id, add.entry_id)
            if key in adds:
                others = adds[key]
                adds[key] = [*others, adder] if isinstance(others, list) else [others, adder]
            else:
                adds[key] = adder
            head, payload = add.head, add.payload
            outbox.append(head)
            outbox.append(payload)
            size += len(head) + len(payload)
        self._add_deadlines.append((now_s + self._timeout_s, adder, ledger_id, run[0].entry_id, run[-1].entry_id, 0))
        return size

    def read(self, reader: R, key: _Key | None, now_s: float) -> int:
        """A read of *key* is sent; None: of a batch. Returns its number."""
        self._reads_sent = number = self._reads_sent + 1
        self._reads.setdefault(key, {})[number] = reader
        self._read_deadlines.append((now_s + self._timeout_s, number, key))
        return number

    def match(
        self, frames: Sequence[memoryview]
    ) -> tuple[dict[A, list[int]], dict[tuple[A, int], list[int]], list[tuple[R, int, int, int, Any]], str]:
        """Answers of one chunk. Returns adder → entries that are stored; (adder, code) → entries that are refused;
        (reader, code, ledger, entry, what was read); and why the answers end here, if they do."""
        adds, last = self._adds, None
        added: dict[A, list[int]] = {}
        refused: dict[tuple[A, int], list[int]] = {}
        reads = []
        try:
            for frame in frames:
                opcode, rc, ledger_id, entry_id, body, number = parse_response(frame)
                if opcode == ADD_ENTRY:
                    key = (ledger_id, entry_id)
                    waiting = adds.pop(key, None)
                    if waiting is None:
                        continue  # its time-out came first
                    if type(waiting) is list:
                        adder = waiting.pop(0)
                        if waiting:
                            adds[key] = waiting
                    else:
                        adder = waiting
                    if rc == 0:
                        if adder is not last:
                            last, entry_ids = adder, added.setdefault(adder, [])
                        entry_ids.append(entry_id)
                    else:
                        refused.setdefault((adder, rc), []).append(entry_id)
                elif opcode in (READ_ENTRY, BATCH_READ_ENTRY):
                    is_batch = opcode == BATCH_READ_ENTRY
                    self._has_answered_batch |= is_batch
                    reader = self._take(None if is_batch else (ledger_id, entry_id), number)
                    if reader is not None:
                        reads.append((reader, rc, ledger_id, entry_id, body))
                else:
                    return added, refused, reads, f"an answer with the opcode {opcode} to nothing that was asked"
        except MalformedFrame as error:
            return added, refused, reads, str(error)
        return added, refused, reads, ""

    def _take(self, key: _Key | None, number: int | None) -> R | None:
        """The read of *key* with *number*, or the oldest; it waits no longer."""
        waiting = self._reads.get(key)
        if waiting is None:
            return None
        reader = waiting.pop(next(iter(waiting)) if number is None else number, None)
        if not waiting:
            del self._reads[key]
        return reader

    @property
    def due_s(self) -> float | None:
        """When `expire` is to be called next."""
        return min((queue[0][0] for queue in (self._add_deadlines, self._read_deadlines) if queue), default=None)

    def expire(self, now_s: float, alive_s: float) -> tuple[list[tuple[A, int, list[int]]], list[R]]:
        """*alive_s*: when the bookie last answered anything. Returns (adder, ledger, entries), and readers, whose time
        is over."""
        adds, expired = self._adds, []
        while self._add_deadlines and self._add_deadlines[0][0] <= now_s:
            _, adder, ledger_id, first, last, overtaken = self._add_deadlines.popleft()
            if overtaken < OVERTAKEN_MAX and now_s - alive_s < self._timeout_s:
                if any((ledger_id, entry_id) in adds for entry_id in range(first, last + 1)):  # rule 2
                    again_s = now_s + self._timeout_s
                    self._add_deadlines.append((again_s, adder, ledger_id, first, last, overtaken + 1))
                continue
            entry_ids = []
            for entry_id in range(first, last + 1):
                key = (ledger_id, entry_id)
                waiting = adds.get(key)
                if isinstance(waiting, list) and adder in waiting:
                    waiting.remove(adder)
                elif waiting is not adder:
                    continue
                if not isinstance(waiting, list) or not waiting:
                    del adds[key]
                entry_ids.append(entry_id)
            if entry_ids:
                expired.append((adder, ledger_id, entry_ids))
        readers = []
        while self._read_deadlines and self._read_deadlines[0][0] <= now_s:
            _, number, read_key = self._read_deadlines.popleft()
            reader = self._take(read_key, number)
            if reader is not None:
                readers.append(reader)
        return expired, readers

    def fail_all(self) -> tuple[dict[A, list[int]], list[R]]:
        """Returns everybody who waits: adder → entries, and readers."""
        lost: dict[A, list[int]] = {}
        for (_, entry_id), waiting in self._adds.items():
            for adder in waiting if isinstance(waiting, list) else (waiting,):
                lost.setdefault(adder, []).append(entry_id)
        readers = [reader for waiting in self._reads.values() for reader in waiting.values()]
        self._adds, self._reads = {}, {}
        self._add_deadlines.clear()
        self._read_deadlines.clear()
        self._has_answered_batch = False
        return lost, readers
