"""The journal on disk, as bytes. No IO here: writer and replay do that.

    file     ┌──────────┬─────────────┬──────────────────────────────┐
             │ "BKLG"(4)│ version (4) │ zeros up to 512 (versions ≥5)│   version 1 has no header at all
             └──────────┴─────────────┴──────────────────────────────┘
    record   ┌────────────┬──────────────┬─────────────┬──────────┐
             │ length (4) │ ledgerId (8) │ entryId (8) │ the rest │   big-endian; length counts what follows it
             └────────────┴──────────────┴─────────────┴──────────┘
    padding  ┌────────────┬────────────┬────────────────┐
             │  -256 (4)  │ length (4) │ bytes (length) │   so that each group ends at a multiple of the alignment
             └────────────┴────────────┴────────────────┘

A normal record is a stored entry. Negative entry ids are records about the ledger: LEDGER_KEY (key length,
key), FENCE (nothing), EXPLICIT_LAC (length, blob; versions ≥ 6).

Apache's records have no checksum: a length of zero, or a record cut short, is the end. A torn write could be taken for
an entry. So in files that we write, each group ends with a seal. It is inside the padding, which other readers skip,
and the header says (in its zeros) that there are seals:

    seal     ┌───────────┬────────────────┬───────────────────┬─────────┐
             │ magic (8) │ group start (8)│ durable up to (8) │ crc (4) │   CRC-32C of file id, both offsets,
             └───────────┴────────────────┴───────────────────┴─────────┘   length of the padding, group

Rules of a scan over sealed groups:

1. A record counts if the seal of its group is valid.
2. The first group without a valid seal is the end: a write that the crash interrupted, and that was never
   acknowledged …
3. … unless a later seal is valid and says that this place was durable before. Then the file is damaged, and nothing
   may be answered from it.
"""

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import MIB, START_NEWER, Buffer, Corruption

MAGIC: Final = b"BKLG"
HEADER_BYTES: Final = 512
OLD_HEADER_BYTES: Final = 8
VERSION_MAX: Final = 6
VERSION_EXPLICIT_LAC: Final = 6
VERSIONS_TO_WRITE: Final = (5, 6)
ALIGNMENT_MIN: Final = 512

LEDGER_KEY: Final = -0x1000
FENCE: Final = -0x2000
EXPLICIT_LAC: Final = -0x8000
PADDING: Final = -256

LENGTH: Final = struct.Struct(">i")
MARK: Final = struct.Struct(">qq")

PLACE_FILE: Final = "synced"
"""How far the journal was synced, of journals that we write. The file is not synced itself, so after a power cut it may
name an older place, but never a place that is not on disk."""

_CRC: Final = struct.Struct(">I")
_HEADER: Final = struct.Struct(">4si8s")
_PADDING: Final = struct.Struct(">ii")
_IDS: Final = struct.Struct(">qq")
_ABOUT_LEDGER: Final = struct.Struct(">qqi")
_SEAL: Final = struct.Struct(">8sqqI")
_SEALED_PLACE: Final = struct.Struct(">qqqi")
_SEALED_FILE: Final = b"sealed 2"
_SEAL_MAGIC: Final = b"\xf1groupE\xf1"

_PADDING_MIN: Final = _PADDING.size + _SEAL.size

# The file is read in steps of this size; a group takes at most a few of them.
WINDOW_BYTES: Final = MIB

_NOT_ZERO: Final = re.compile(rb"[^\0]")

assert len(_SEALED_FILE) == len(_SEAL_MAGIC) == 8
assert _PADDING_MIN < ALIGNMENT_MIN, "a seal must fit into one block"


class Mark(NamedTuple):
    """A place in the journal: everything before it is in the ledger storage."""

    file_id: int
    offset: int


# The mark of a new bookie: replay everything.
START: Final = Mark(0, 0)


def encode_mark(mark: Mark) -> bytes:
    return MARK.pack(*mark)


def decode_mark(data: bytes, path: str) -> Mark:
    """Raises Corruption."""
    if len(data) != MARK.size:
        raise Corruption(f"{path}: {len(data)} bytes, expected {MARK.size}")
    mark = Mark(*MARK.unpack(data))
    if mark.file_id < 0 or mark.offset < 0:
        raise Corruption(f"{path}: the mark {mark.file_id:x}:{mark.offset} is negative")
    return mark


# ------------------------------------------------------------------------------------------ writing


def encode_place(mark: Mark) -> bytes:
    """A mark with a checksum: the file PLACE_FILE."""
    data = MARK.pack(*mark)
    return data + _CRC.pack(crc32c(data))


def decode_place(data: bytes) -> Mark:
    """The mark in the bytes; START if they are not one: a power cut may leave anything there."""
    mark, crc = data[: MARK.size], data[MARK.size :]
    return Mark(*MARK.unpack(mark)) if len(mark) == MARK.size and crc == _CRC.pack(crc32c(mark)) else START


def encode_header(version: int) -> bytes:
    assert version in VERSIONS_TO_WRITE
    return _HEADER.pack(MAGIC, version, _SEALED_FILE).ljust(HEADER_BYTES, b"\0")


def ledger_key_record(ledger_id: int, master_key: bytes) -> tuple[bytes, bytes]:
    """Length word and body: the key must be known before the first entry of the ledger."""
    body = _ABOUT_LEDGER.pack(ledger_id, LEDGER_KEY, len(master_key)) + master_key
    return LENGTH.pack(len(body)), body


def fence_record(ledger_id: int) -> tuple[bytes, bytes]:
    return LENGTH.pack(_IDS.size), _IDS.pack(ledger_id, FENCE)


def explicit_lac_record(ledger_id: int, blob: bytes) -> tuple[bytes, bytes]:
    body = _ABOUT_LEDGER.pack(ledger_id, EXPLICIT_LAC, len(blob)) + blob
    return LENGTH.pack(len(body)), body


def seal_of(file_id: int, start: int, durable: int, group: Buffer, alignment: int) -> bytes:
    """The padding that closes *group*, which starts at *start*; *durable*: up to where the file is known to be on
    disk."""
    rest = alignment - (start + len(group)) % alignment
    if rest < _PADDING_MIN:
        rest += alignment
    length = rest - _PADDING.size
    seal = _SEAL.pack(_SEAL_MAGIC, start, durable, _group_crc(file_id, start, durable, length, group))
    return (_PADDING.pack(PADDING, length) + seal).ljust(rest, b"\0")


def _group_crc(file_id: int, start: int, durable: int, padding_length: int, group: Buffer) -> int:
    """Covers the length of the padding, too: it says where the next group begins."""
    return crc32c(group, crc32c(_SEALED_PLACE.pack(file_id, start, durable, padding_length)))


# ------------------------------------------------------------------------------------------ reading


class Header(NamedTuple):
    version: int
    first_offset: int
    sealed: bool


class Record(NamedTuple):
    """One record; *data* is everything after the length word, ids included."""

    offset: int
    ledger_id: int
    entry_id: int
    data: bytes

    def blob(self) -> bytes:
        """The key or blob in a LEDGER_KEY or EXPLICIT_LAC record. Raises Corruption."""
        if len(self.data) >= _ABOUT_LEDGER.size:
            _, _, length = _ABOUT_LEDGER.unpack_from(self.data)
            if length == len(self.data) - _ABOUT_LEDGER.size:
                return self.data[_ABOUT_LEDGER.size :]
        raise Corruption(
            f"journal record at offset {self.offset} about ledger {self.ledger_id} ({self.entry_id}): "
            f"{len(self.data)} bytes do not hold what its length says"
        )


def decode_header(data: bytes, path: str) -> Header | None:
    """The header in the first bytes of a file; None if the file ends before its header does.

    Raises Corruption for versions that we do not know.
    """
    if not data.startswith(MAGIC):
        if len(data) < len(MAGIC) or not any(data):
            return None  # a power cut came after the file was created and before its header was written
        return Header(1, 0, sealed=False)
    if len(data) < OLD_HEADER_BYTES:
        return None
    version = LENGTH.unpack_from(data, len(MAGIC))[0]
    if not 2 <= version <= VERSION_MAX:
        advice = f"; {START_NEWER}" if version > VERSION_MAX else ""
        raise Corruption(f"{path}: journal version {version}; known are 1 to {VERSION_MAX}{advice}")
    if version < 5:
        return Header(version, OLD_HEADER_BYTES, sealed=False)
    if len(data) < HEADER_BYTES:
        return None
    sealed = data[OLD_HEADER_BYTES : OLD_HEADER_BYTES + len(_SEALED_FILE)] == _SEALED_FILE
    return Header(version, HEADER_BYTES, sealed)


def begins_with_record(data: bytes) -> bool:
    """Whether the first bytes of a file without a header (version 1) can be those of a record."""
    return len(data) >= LENGTH.size and bool(LENGTH.unpack_from(data)[0] >= _IDS.size)


class _Torn(Exception):
    """The bytes at this place are not a whole record."""


@dataclass(slots=True)
class _Window:
    """Bytes of a file by offset, read in large steps."""

    read: Callable[[int, int], bytes]
    at: int = 0
    data: bytes = b""

    def get(self, offset: int, size: int) -> bytes:
        """*size* bytes at *offset*, fewer at the end of the file."""
        start = offset - self.at
        if start < 0 or start + size > len(self.data):
            self.data = self.read(offset, max(size, WINDOW_BYTES))
            self.at, start = offset, 0
        return self.data[start : start + size]


def ends_group(read: Callable[[int, int], bytes], header: Header, file_id: int, offset: int) -> bool:
    """Whether a sealed group of the file *file_id* ends at *offset*; *read(offset, size)* gives the file's bytes."""
    begin = max(offset - WINDOW_BYTES, header.first_offset)
    data = read(begin, offset - begin)
    if len(data) < offset - begin:
        return False
    scan = Scan(read, header, file_id, "")
    at = len(data)
    while (at := data.rfind(_SEAL_MAGIC, 0, at)) >= _PADDING.size:
        padding_at = at - _PADDING.size
        _, length = _PADDING.unpack_from(data, padding_at)
        start = _SEAL.unpack_from(data, at)[1] if at + _SEAL.size <= len(data) else -1
        if padding_at + _PADDING.size + length == len(data) and header.first_offset <= start <= begin + padding_at:
            return scan.is_sealed(start, begin + padding_at)
    return False


class Scan:
    """Iterates over the records of one file from *start* on (the first one if that is 0).

    *read(offset, size)* gives the file's bytes. After the iteration `end_offset` is where the next record
    would begin, and `torn` says why the scan stopped there; None at a clean end.

    Raises Corruption if the rest cannot be a torn write.
    """

    def __init__(
        self, read: Callable[[int, int], bytes], header: Header, file_id: int, path: str, start: int = 0
    ) -> None:
        self._window = _Window(read)
        self._header = header
        self._file_id = file_id
        self._path = path
        self.end_offset = max(start, header.first_offset)
        self.torn: str | None = None

    def __iter__(self) -> Iterator[Record]:
        return self._sealed() if self._header.sealed else self._plain()

    def _plain(self) -> Iterator[Record]:
        try:
            while True:
                step = self._next(self.end_offset)
                if step is None:
                    behind = self._anything_behind(self.end_offset)
                    if behind is not None:
                        raise _Torn(f"zeros at offset {self.end_offset}, but bytes at offset {behind}")
                    return
                record, self.end_offset = step
                if record is not None:
                    yield record
        except _Torn as torn:
            self.torn = str(torn)

    def _anything_behind(self, at: int) -> int | None:
        """The offset of the first byte after *at* that is not zero; None if all are. Apache's bookie preallocates
        zeros."""
        while True:
            data = self._window.read(at, WINDOW_BYTES)
            match = _NOT_ZERO.search(data)
            if match is not None:
                return at + match.start()
            if len(data) < WINDOW_BYTES:
                return None
            at += WINDOW_BYTES

    def _sealed(self) -> Iterator[Record]:
        while True:
            start = self.end_offset
            group: list[Record] = []
            try:
                at = start
                while True:
                    step = self._next(at)
                    if step is None:
                        raise _Torn("no record" if at == start else "a group without its seal")
                    record, following = step
                    if record is None:
                        break
                    group.append(record)
                    at = following
                if not self.is_sealed(start, at):
                    raise _Torn("a group whose checksum is wrong")
            except _Torn as torn:
                if str(torn) != "no record":
                    self.torn = f"{torn} at offset {start}"
                self._check_nothing_durable_follows(start, str(torn))
                return
            self.end_offset = following
            yield from group

    def _next(self, at: int) -> tuple[Record | None, int] | None:
        """(record, offset after it); (None, offset after it) for padding; None if no record was ever written here."""
        word = self._window.get(at, 4)
        if len(word) < 4 or word == b"\0\0\0\0":
            return None
        (length,) = LENGTH.unpack(word)
        if length == PADDING and self._header.version >= 5:
            word = self._window.get(at + 4, 4)
            if len(word) < 4:
                raise _Torn(f"padding cut short at offset {at}")
            (length,) = LENGTH.unpack(word)
            if length < 0:
                raise _Torn(f"padding of {length} bytes at offset {at}")
            return None, at + 8 + length
        if length < _IDS.size:
            if self._header.sealed:
                raise _Torn(f"a record of {length} bytes at offset {at}")
            raise Corruption(f"{self._path} offset {at}: a record of {length} bytes")
        data = self._window.get(at + 4, length)
        if len(data) < length:
            raise _Torn(f"a record of {length} bytes at offset {at}, {len(data)} are there")
        ledger_id, entry_id = _IDS.unpack_from(data)
        return Record(at, ledger_id, entry_id, data), at + 4 + length

    def is_sealed(self, start: int, padding_at: int) -> bool:
        """Whether the group from *start* to the padding at *padding_at* has a valid seal."""
        data = self._window.get(start, padding_at - start + _PADDING_MIN)
        if len(data) < padding_at - start + _PADDING_MIN:
            return False
        magic, sealed_start, durable, crc = _SEAL.unpack_from(data, padding_at - start + _PADDING.size)
        if magic != _SEAL_MAGIC or sealed_start != start:
            return False
        group = memoryview(data)[: padding_at - start]
        _, length = _PADDING.unpack_from(data, padding_at - start)
        return bool(crc == _group_crc(self._file_id, start, durable, length, group))

    def _check_nothing_durable_follows(self, bad: int, why: str) -> None:
        """Check rule 3. Raises Corruption."""
        at = bad
        while True:
            data = self._window.read(at, WINDOW_BYTES)
            index = data.find(_SEAL_MAGIC)
            if index < 0:
                if len(data) < WINDOW_BYTES:
                    return
                at += WINDOW_BYTES - len(_SEAL_MAGIC)
                continue
            seal_at = at + index
            seal = self._window.read(seal_at, _SEAL.size)
            if len(seal) == _SEAL.size:
                _, start, durable, _ = _SEAL.unpack(seal)
                padding_at = seal_at - _PADDING.size
                if bad < start <= padding_at and bad < durable <= start and self.is_sealed(start, padding_at):
                    raise Corruption(
                        f"{self._path} offset {bad}: {why}, but the group at {start} was written when all up to "
                        f"{durable} was on disk; restore the file or take the bookie out of service"
                    )
            at = seal_at + 1
