"""What a request may do and what its answer is, decided over the ledgers and caches. No IO, no sockets.

Rules:

1. LEDGER_KEY is journaled before the first entry of a ledger and before its fence, again after each start.
2. A fenced ledger takes recovery adds only. An entry that is stored already is taken again.
3. Negative entry ids are refused: in the journal they have another meaning.
4. A ledger that was deleted while fenced takes no entries, and reads find none.
5. "No such entry" is answered from memory only if the tail of the ledger is known; else the index is asked.
6. For a ledger in limbo the bookie may have lost entries: a missing entry is "unknown" instead of "no such entry".
7. Adds to ledgers that are older than the bookie are refused as by a read-only one, except those of a recovery: the
   former bookie of this name and address may have had a fence. Their writer takes another bookie (I130).
"""

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final

from bookie.storage.journal import format as journal
from bookie.storage.ledgers import Ledger, Ledgers
from bookie.storage.read_cache import ReadCache
from bookie.storage.write_cache import WriteCache
from magnetar_core.bookkeeper.wire.codec_v2 import (
    ADD_PREFIX_BYTES,
    BATCH_START_BYTES,
    LAST_ENTRY,
    PLAIN_ADD,
    RECOVERY_ADD,
    V2Error,
    add_header,
    add_responses,
)
from magnetar_core.bookkeeper.wire.codec_v3 import AddShape, added, plain_add
from magnetar_core.bookkeeper.wire.entry import HEADER_BYTES, MASTER_KEY_BYTES
from magnetar_core.runtime.types import Buffer

OK: Final = int(V2Error.EOK)
ENOLEDGER: Final = int(V2Error.ENOLEDGER)
ENOENTRY: Final = int(V2Error.ENOENTRY)
EBADREQ: Final = int(V2Error.EBADREQ)
EIO: Final = int(V2Error.EIO)
EUA: Final = int(V2Error.EUA)
EFENCED: Final = int(V2Error.EFENCED)
EREADONLY: Final = int(V2Error.EREADONLY)
ETOOMANYREQUESTS: Final = int(V2Error.ETOOMANYREQUESTS)
EUNKNOWNLEDGERSTATE: Final = int(V2Error.EUNKNOWNLEDGERSTATE)

# An explicit LAC is kept for each ledger, in memory and in its row: two numbers and a digest of 20 bytes at most.
EXPLICIT_LAC_BYTES_MAX: Final = 1_024

_LAC: Final = struct.Struct(">q")
_LAC_OFFSET: Final = 16
_SIZE = journal.LENGTH.pack
_NO_KEY: Final = bytes(MASTER_KEY_BYTES)


# What an add of a run may begin with; zero is not the word of a request.
_RUN_WORDS: Final = (PLAIN_ADD, RECOVERY_ADD)

assert 0 not in _RUN_WORDS


class RequestRules:
    """Decides about requests; one for a bookie. Refusals are the numbers of the second protocol."""

    __slots__ = (
        "_cache",
        "_get_ledger",
        "_journals_explicit_lac",
        "first_ledger_id",
        "full_directories",
        "high_priority_allowed",
        "ledger_directories",
        "ledgers",
        "read_cache",
        "read_only",
    )

    def __init__(self, ledgers: Ledgers, cache: WriteCache, read_cache: ReadCache, journal_version: int) -> None:
        self.ledgers = ledgers
        self._get_ledger = ledgers.get
        self._cache = cache
        self.read_cache = read_cache
        self._journals_explicit_lac = journal_version >= journal.VERSION_EXPLICIT_LAC
        self.read_only = False
        """Whether adds are refused: all, or those of `full_directories`."""
        self.high_priority_allowed = True
        """Whether a read-only bookie still takes recovery adds, because there is some room."""
        self.full_directories: frozenset[int] | None = None
        """If not None, only the ledgers of these directories are refused, of *ledger_directories* in all."""
        self.ledger_directories = 1
        self.first_ledger_id = 0
        """Ledgers below this number are older than the bookie (rule 7)."""

    # -- adds

    def add(
        self,
        ledger_id: int,
        entry_id: int,
        master_key: bytes,
        entry: bytes,
        recovery: bool,
        high_priority: bool,
        records: list[Buffer],
    ) -> int:
        """Take an entry into the cache and its journal records into *records*; 0, or the refusal."""
        if self.read_only and not self._may_add(ledger_id, high_priority):
            return EREADONLY
        if ledger_id < 0 or entry_id < 0 or len(entry) < HEADER_BYTES:
            return EBADREQ
        ledger = self._get_ledger(ledger_id)
        if ledger is None:
            if ledger_id in self.ledgers.tombstones:
                return EFENCED
            if len(master_key) != MASTER_KEY_BYTES:  # a key of any length would be kept as long as the ledger
                return EUA
        elif ledger.master_key != master_key and not self._accept_key(ledger, master_key):
            return EUA
        if refusal := self._refusal(ledger_id, ledger, recovery):
            return refusal
        if ledger is None:
            ledger = self.ledgers.create(ledger_id, master_key)
        if not ledger.is_key_journaled:
            records += journal.ledger_key_record(ledger_id, ledger.master_key)
            ledger.is_key_journaled = True
        records.append(_SIZE(len(entry)))
        records.append(entry)
        self._cache.put(ledger_id, entry_id, entry)
        if entry_id > ledger.last_entry_id:
            ledger.last_entry_id = entry_id
            if not ledger.is_tail_known:
                self.read_cache.discard(ledger_id, entry_id)
        else:
            self.read_cache.discard(ledger_id, entry_id)
        (last_add_confirmed,) = _LAC.unpack_from(entry, _LAC_OFFSET)
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.see_lac(last_add_confirmed)
        return OK

    def add_run(
        self,
        frames: Sequence[memoryview],
        start: int,
        stop: int,
        records: Sequence[list[Buffer]],
        answers: Sequence[list[bytes]],
    ) -> int:
        """Take adds of *frames* (second protocol) from *start* on, to *stop* at most; return how many.

        Does the same as `add` for each, at far less cost. It takes only adds to known ledgers whose key is journaled,
        entries in ascending order, all of them plain (then the ledger must not be fenced) or all of them recovery adds;
        any other add ends the run and is left to `add`. Records and answers go to the lists of the ledger's journal
        (its id modulo their number).
        """
        if self.read_only:
            return 0
        at = start
        run_word = 0
        ledger: Ledger | None = None
        current = last = top = -1
        known_key = b""
        entry_ids: list[int] = []
        run: list[bytes] = []
        try:
            while at < stop:
                frame = frames[at]
                word, key, ledger_id, entry_id, last_add_confirmed, _ = add_header(frame)
                if word != run_word:
                    if run_word or word not in _RUN_WORDS:
                        break
                    run_word = word
                if ledger_id != current:
                    if ledger is not None:
                        self._took_run(ledger, entry_ids, run, top, records)
                        answers[current % len(answers)].extend(add_responses(current, entry_ids))
                    ledger = self._ledger_of_run(ledger_id, key, run_word == RECOVERY_ADD)
                    entry_ids, run, top = [], [], -1
                    if ledger is None:
                        break
                    current, known_key, last = ledger_id, key, ledger.last_entry_id
                if entry_id <= last or key != known_key:
                    break
                last = entry_id
                if last_add_confirmed > top:
                    top = last_add_confirmed
                entry_ids.append(entry_id)
                run.append(bytes(frame[ADD_PREFIX_BYTES:]))
                at += 1
        except struct.error:
            pass  # too short for an add with a whole entry header
        if ledger is not None and run:
            self._took_run(ledger, entry_ids, run, top, records)
            answers[current % len(answers)].extend(add_responses(current, entry_ids))
        return at - start

    def add_run_v3(
        self,
        frames: Sequence[memoryview],
        start: int,
        stop: int,
        records: Sequence[list[Buffer]],
        answers: Sequence[list[bytes]],
    ) -> tuple[int, int]:
        """Does the same as `add_run`, for frames of the third protocol; returns (how many, bytes of their entries).

        It takes plain adds only (`codec_v3.plain_add`); recovery adds are left to `add`, too.
        """
        if self.read_only:
            return 0, 0
        at, size = start, 0
        ledger: Ledger | None = None
        current = last = top = -1
        known_key = b""
        entry_ids: list[int] = []
        run: list[bytes] = []
        to: list[bytes] = []
        shape: AddShape | None = None
        length = 0
        while at < stop:
            frame = frames[at]
            fields = None if shape is None else shape.read(frame)
            if fields is not None:
                entry_id, last_add_confirmed, answer = fields
            else:
                add = plain_add(frame)
                if add is None:
                    break
                _, _, _, key, body_at, ledger_id, entry_id, last_add_confirmed = add
                if ledger_id != current:
                    if ledger is not None:
                        self._took_run(ledger, entry_ids, run, top, records)
                    ledger = self._ledger_of_run(ledger_id, key, False)
                    entry_ids, run, top = [], [], -1
                    if ledger is None:
                        break
                    current, known_key, last = ledger_id, key, ledger.last_entry_id
                    to, length = answers[ledger_id % len(answers)], 0
                if key != known_key:
                    break
                # Two as long as each other are likely to be followed by more of them.
                answer, shape = added(add), AddShape(frame, add) if len(frame) == length else None
                length = len(frame)
            if entry_id <= last:
                break
            last = entry_id
            if last_add_confirmed > top:
                top = last_add_confirmed
            entry = bytes(frame[body_at:])
            size += len(entry)
            entry_ids.append(entry_id)
            run.append(entry)
            to.append(answer)
            at += 1
        if ledger is not None and run:
            self._took_run(ledger, entry_ids, run, top, records)
        return at - start, size

    def _refusal(self, ledger_id: int, ledger: Ledger | None, recovery: bool) -> int:
        """Whether a ledger, or a new one (None), takes such an add: 0, or the refusal (rules 2 and 7)."""
        if recovery:
            return OK
        if ledger is not None and ledger.fenced:
            return EFENCED
        return EREADONLY if ledger_id < self.first_ledger_id else OK

    def _ledger_of_run(self, ledger_id: int, key: bytes, recovery: bool) -> Ledger | None:
        """The ledger that a run of adds goes to; None: they are left to `add`."""
        ledger = self._get_ledger(ledger_id)
        if ledger is None or not ledger.is_key_journaled or ledger.master_key != key:
            return None
        return None if self._refusal(ledger_id, ledger, recovery) else ledger

    def _took_run(
        self,
        ledger: Ledger,
        entry_ids: list[int],
        run: list[bytes],
        last_add_confirmed: int,
        records: Sequence[list[Buffer]],
    ) -> None:
        ledger_id = ledger.ledger_id
        self._cache.put_run(ledger_id, entry_ids, run)
        ledger.last_entry_id = entry_ids[-1]
        if not ledger.is_tail_known:
            for entry_id in entry_ids:
                self.read_cache.discard(ledger_id, entry_id)
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.see_lac(last_add_confirmed)
        number = ledger_id % len(records)
        records[number].extend(chain.from_iterable(zip(map(_SIZE, map(len, run)), run, strict=True)))

    def _may_add(self, ledger_id: int, high_priority: bool) -> bool:
        """Whether the bookie, although read-only, takes this add."""
        if high_priority and self.high_priority_allowed:
            return True
        full = self.full_directories
        return full is not None and ledger_id % self.ledger_directories not in full

    def replay(self, ledger: Ledger, entry_id: int, entry: bytes) -> None:
        """Take an entry that the journal holds, also into a fenced ledger."""
        self._cache.put(ledger.ledger_id, entry_id, entry)
        ledger.last_entry_id = max(ledger.last_entry_id, entry_id)
        if len(entry) >= HEADER_BYTES:
            ledger.see_lac(_LAC.unpack_from(entry, _LAC_OFFSET)[0])

    def fence(self, ledger_id: int, master_key: bytes, records: list[Buffer]) -> tuple[int, Ledger | None]:
        """Fence a ledger, also one that is not known yet. Returns (refusal, None) or (0, the ledger).

        The answer must wait until `is_fence_durable`. If no record is under way, *records* gets one.
        """
        if ledger_id < 0 or len(master_key) != MASTER_KEY_BYTES:
            return EBADREQ if ledger_id < 0 else EUA, None
        ledger = self._get_ledger(ledger_id)
        if ledger is None:
            if ledger_id in self.ledgers.tombstones:
                return ENOLEDGER, None
            ledger = self.ledgers.create(ledger_id, master_key)
        elif ledger.master_key != master_key and not self._accept_key(ledger, master_key):
            return EUA, None
        if not ledger.fenced:
            ledger.fenced = True
            self.ledgers.changed(ledger)
            ledger.wake(ledger.last_add_confirmed)
        if not ledger.is_fence_durable and ledger.fence_waiters is None:
            if not ledger.is_key_journaled:
                records += journal.ledger_key_record(ledger_id, ledger.master_key)
                ledger.is_key_journaled = True
            records += journal.fence_record(ledger_id)
        return OK, ledger

    def write_lac(self, master_key: bytes, blob: bytes, records: list[Buffer]) -> int:
        """Take an explicit LAC. The ledger is the one that *blob* names."""
        if not 16 <= len(blob) <= EXPLICIT_LAC_BYTES_MAX:
            return EREADONLY if self.read_only else EBADREQ
        (ledger_id,) = _LAC.unpack_from(blob)
        if self.read_only and not self._may_add(ledger_id, False):
            return EREADONLY
        if ledger_id < 0 or len(master_key) != MASTER_KEY_BYTES:
            return EBADREQ if ledger_id < 0 else EUA
        ledger = self._get_ledger(ledger_id)
        if ledger is None:
            if ledger_id in self.ledgers.tombstones:
                return ENOLEDGER
            ledger = self.ledgers.create(ledger_id, master_key)
        elif ledger.master_key != master_key and not self._accept_key(ledger, master_key):
            return EUA
        if not ledger.is_key_journaled:
            records += journal.ledger_key_record(ledger_id, ledger.master_key)
            ledger.is_key_journaled = True
        if self._journals_explicit_lac:
            records += journal.explicit_lac_record(ledger_id, blob)
        ledger.see_explicit_lac(blob)
        self.ledgers.changed(ledger)
        return OK

    def keys_were_not_journaled(self) -> None:
        """A journal group was refused. It may have held LEDGER_KEY records, so all keys are journaled again."""
        for ledger in self.ledgers:
            ledger.is_key_journaled = False

    def _accept_key(self, ledger: Ledger, master_key: bytes) -> bool:
        """Whether a key that is not the ledger's becomes its key: a ledger without a key takes the first one."""
        if ledger.master_key not in (b"", _NO_KEY) or len(master_key) != MASTER_KEY_BYTES:
            return False
        ledger.master_key = master_key
        ledger.is_key_journaled = False
        self.ledgers.changed(ledger)
        return True

    # -- reads

    def read(self, ledger_id: int, entry_id: int) -> bytes | int | None:
        """The entry, or the refusal, or None: the disk must be asked. *entry_id* may be LAST_ENTRY."""
        if entry_id >= 0:
            entry = self._cache.get(ledger_id, entry_id) or self.read_cache.get(ledger_id, entry_id)
            if entry is not None:
                return entry
        ledger = self._get_ledger(ledger_id)
        if ledger is None:
            return ENOLEDGER
        if entry_id == LAST_ENTRY:
            if ledger.limbo:
                return EUNKNOWNLEDGERSTATE
            if not ledger.is_tail_known:
                return None
            if ledger.last_entry_id < 0:
                return ENOENTRY
            return self.read(ledger_id, ledger.last_entry_id)
        if entry_id < 0 or (ledger.is_tail_known and entry_id > ledger.last_entry_id):
            return self.absent(ledger)
        return None

    def absent(self, ledger: Ledger) -> int:
        """The refusal for an entry that neither caches nor index have (rule 6)."""
        return EUNKNOWNLEDGERSTATE if ledger.limbo else ENOENTRY

    def read_run(self, ledger_id: int, first: int, max_count: int, max_bytes: int) -> list[bytes] | int | None:
        """The entries from *first* on without a gap, as far as memory has them; or the refusal; or None: ask the
        disk."""
        entry = self.read(ledger_id, first)
        if not isinstance(entry, bytes):
            return entry
        run = [entry]
        size = BATCH_START_BYTES + len(entry) + 4
        count_max = max_count if max_count > 0 else 2**31
        while len(run) < count_max:
            entry_id = first + len(run)
            following = self._cache.get(ledger_id, entry_id) or self.read_cache.get(ledger_id, entry_id)
            if following is None or size + len(following) + 4 > max_bytes:
                break
            run.append(following)
            size += len(following) + 4
        return run
