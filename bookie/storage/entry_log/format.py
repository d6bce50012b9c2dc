"""An entry log, as bytes. No IO.

    header   ┌───────────┬─────────────┬───────────────────┬───────────────────┬───────┐
             │ "BKLO" (4)│ version (4) │ map's offset (8)  │ ledgers in it (4) │ zeros │   1,024 bytes; the offset is 0
             └───────────┴─────────────┴───────────────────┴───────────────────┴───────┘   until the log is sealed
    record   ┌──────────┬──────────────────────────────────────────────┐
             │ size (4) │ stored entry (begins with ledgerId, entryId) │   a location points after the size
             └──────────┴──────────────────────────────────────────────┘
    map      ┌──────────┬────────┬────────┬───────────┬──────────────────────────────┐
             │ size (4) │ -1 (8) │ -2 (8) │ count (4) │ {ledgerId (8), bytes (8)} …  │   up to 10,000 ledgers a record;
             └──────────┴────────┴────────┴───────────┴──────────────────────────────┘   bytes count the size words too

Big-endian. location = (log id << 32) + offset. No entry has the location 0, which means "no such entry".
"""

import re
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from magnetar_core.runtime.types import MIB, START_NEWER, Corruption

MAGIC: Final = b"BKLO"
HEADER_BYTES: Final = 1024
VERSION: Final = 1
ENTRY_BYTES_MIN: Final = 16
MAP_LEDGERS_MAX: Final = 10_000
LOG_ID_MAX: Final = 2**31 - 1

SIZE: Final = struct.Struct(">i")
IDS: Final = struct.Struct(">qq")
RECORD_HEAD: Final = struct.Struct(">iqq")
"""The first bytes of a record: size, then the stored entry, which begins with ledger id and entry id."""

_HEADER: Final = struct.Struct(">4siqi")
_SEAL: Final = struct.Struct(">qi")
_MAP_HEAD: Final = struct.Struct(">iqqi")
_MAP_ITEM: Final = struct.Struct(">qq")
_MAP_LEDGER_ID: Final = -1
_MAP_ENTRY_ID: Final = -2

SEAL_OFFSET: Final = 8
WINDOW_BYTES: Final = MIB
_NOT_ZERO: Final = re.compile(rb"[^\0]")


class Header(NamedTuple):
    version: int
    map_offset: int
    """0: not sealed, or the seal was lost in a power cut."""
    ledgers_count: int


def location(log_id: int, offset: int) -> int:
    return log_id << 32 | offset


def split_location(value: int) -> tuple[int, int]:
    """(log id, offset after the size word)"""
    return value >> 32, value & 0xFFFFFFFF


def encode_header() -> bytes:
    return _HEADER.pack(MAGIC, VERSION, 0, 0).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes, path: str) -> Header:
    """Raises Corruption."""
    if len(data) < HEADER_BYTES:
        raise Corruption(f"{path}: {len(data)} bytes, expected a header of {HEADER_BYTES}")
    magic, version, map_offset, count = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise Corruption(f"{path} offset 0: {magic!r}, expected {MAGIC!r}")
    if version not in (0, VERSION):
        raise Corruption(f"{path}: entry log version {version}; known are 0 and {VERSION}; {START_NEWER}")
    return Header(version, map_offset, count) if version else Header(0, 0, 0)


def encode_map(bytes_of_ledgers: Mapping[int, int]) -> bytes:
    """The records that end a sealed log."""
    items = sorted(bytes_of_ledgers.items())
    parts = []
    for first in range(0, len(items), MAP_LEDGERS_MAX):
        chunk = items[first : first + MAP_LEDGERS_MAX]
        size = _MAP_HEAD.size - SIZE.size + len(chunk) * _MAP_ITEM.size
        parts.append(_MAP_HEAD.pack(size, _MAP_LEDGER_ID, _MAP_ENTRY_ID, len(chunk)))
        parts += [_MAP_ITEM.pack(*item) for item in chunk]
    return b"".join(parts)


def encode_seal(map_offset: int, ledgers_count: int) -> bytes:
    """The bytes that are written at SEAL_OFFSET once the map is on disk."""
    return _SEAL.pack(map_offset, ledgers_count)


def decode_map(data: bytes, header: Header, path: str) -> dict[int, int]:
    """The map in *data*, which begins at the header's map offset. Raises Corruption."""
    sizes: dict[int, int] = {}
    at = 0
    while at + _MAP_HEAD.size <= len(data) and len(sizes) < header.ledgers_count:
        size, ledger_id, entry_id, count = _MAP_HEAD.unpack_from(data, at)
        end = at + SIZE.size + size
        items = data[at + _MAP_HEAD.size : end]
        if (ledger_id, entry_id) != (_MAP_LEDGER_ID, _MAP_ENTRY_ID) or len(items) != count * _MAP_ITEM.size:
            break
        sizes.update(_MAP_ITEM.iter_unpack(items))
        at = end
    if len(sizes) != header.ledgers_count:
        raise Corruption(
            f"{path} offset {header.map_offset}: a map of {len(sizes)} ledgers, the header says {header.ledgers_count}"
        )
    return sizes


class LogScan:
    """Iterates over (offset after the size word, size, ledger id, entry id) of every entry, in order of the file.

    Bytes that are not a record are skipped one by one, as in Apache's bookie: they are padding, or a write that no
    location refers to. `garbage_bytes` counts them. `has_gap` says whether records followed them; then they may be a
    damaged record.
    """

    def __init__(self, read: Callable[[int, int], bytes], size_bytes: int) -> None:
        self._read = read
        self._size_bytes = size_bytes
        self.garbage_bytes = 0
        self.has_gap = False

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        size_bytes = self._size_bytes
        at, window_at, window = HEADER_BYTES, 0, b""
        while at + SIZE.size + ENTRY_BYTES_MIN <= size_bytes:
            if not window_at <= at <= window_at + len(window) - SIZE.size - ENTRY_BYTES_MIN:
                window_at, window = at, self._read(at, WINDOW_BYTES)
                if len(window) < SIZE.size + ENTRY_BYTES_MIN:
                    self.garbage_bytes += size_bytes - at
                    return
            (size,) = SIZE.unpack_from(window, at - window_at)
            if size < ENTRY_BYTES_MIN or at + SIZE.size + size > size_bytes:
                following = at + 1
                if size == 0:  # skip a row of zeros at once
                    other = _NOT_ZERO.search(window, at - window_at)
                    end = window_at + (len(window) if other is None else other.start())
                    following = max(following, end - SIZE.size + 1)
                self.garbage_bytes += following - at
                at = following
                continue
            self.has_gap = self.has_gap or self.garbage_bytes > 0
            ledger_id, entry_id = IDS.unpack_from(window, at - window_at + SIZE.size)
            if ledger_id >= 0:
                yield at + SIZE.size, size, ledger_id, entry_id
            at += SIZE.size + size
        self.garbage_bytes += max(size_bytes - at, 0)


def scan(read: Callable[[int, int], bytes], size_bytes: int) -> LogScan:
    """Scan a log whose bytes *read(offset, size)* returns."""
    return LogScan(read, size_bytes)
