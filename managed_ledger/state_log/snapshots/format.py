"""A snapshot of a state log, as bytes. No IO.

    ┌───────────┬──────────────┬───────────┬───────────┬────────────┬─────────────┬──────────┬────────────┬───────────┐
    │ magic (8) │ checksum (4) │ ledger (8)│ entry (8) │ number (8) │ time ms (8) │ term (8) │ tokens (4) │ state (8) │
    └───────────┴──────────────┴───────────┴───────────┴────────────┴─────────────┴──────────┴────────────┴───────────┘
    ┌──────────┬────────────────────────────────────┬─────────────┐
    │ log (16) │ token (16), number (8) — each token│ the state   │   so many tokens, so many bytes of state
    └──────────┴────────────────────────────────────┴─────────────┘

Big-endian. Ledger and entry are the last that was folded (entry -1: none of it), `number` the last edit; -1 stands for
none. The magic is `MGSNAP` and the version, 1, in two bytes. The checksum is CRC-32C of everything behind it.
"""

import struct
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.wire.checksum import crc32c
from magnetar_core.runtime.types import START_NEWER, Corruption
from managed_ledger.position import Position

_MAGIC: Final = b"MGSNAP\x00\x01"
_FIXED: Final = struct.Struct(">8sIqqqqqIQ16s")
_TOKEN: Final = struct.Struct(">16sQ")
_SUMMED_FROM: Final = 12


class Snapshot(NamedTuple):
    """The state of a log's replica behind some entry."""

    log: str
    position: Position
    number: int
    time_ms: int
    term: int
    tokens: tuple[tuple[bytes, int], ...]
    state: bytes


def encode_snapshot(snapshot: Snapshot) -> bytes:
    fixed = _FIXED.pack(
        _MAGIC, 0, *snapshot.position, snapshot.number, snapshot.time_ms, snapshot.term, len(snapshot.tokens),
        len(snapshot.state), bytes.fromhex(snapshot.log) if snapshot.log else bytes(16),
    )  # fmt: skip
    body = b"".join([fixed[_SUMMED_FROM:], *(_TOKEN.pack(*token) for token in snapshot.tokens), snapshot.state])
    return b"".join((_MAGIC, struct.pack(">I", crc32c(body)), body))


def decode_snapshot(data: bytes, place: str) -> Snapshot:
    """Raises Corruption, which names *place*."""
    if data.startswith(_MAGIC[:-1]) and data[len(_MAGIC) - 1 : len(_MAGIC)] > _MAGIC[-1:]:
        raise Corruption(
            f"{place}: a snapshot of version {data[len(_MAGIC) - 1]}; known is {_MAGIC[-1]}; {START_NEWER}"
        )
    if len(data) < _FIXED.size or data[: len(_MAGIC)] != _MAGIC:
        raise Corruption(f"{place}: {len(data)} bytes that begin with {data[:8]!r} are no snapshot of version 1")
    _, checksum, ledger_id, entry_id, number, time_ms, term, tokens, size, log = _FIXED.unpack_from(data)
    expected = _FIXED.size + tokens * _TOKEN.size + size
    if len(data) != expected:
        raise Corruption(f"{place}: {len(data)} bytes, expected {expected}")
    computed = crc32c(memoryview(data)[_SUMMED_FROM:])
    if computed != checksum:
        raise Corruption(f"{place}: checksum {computed:08x}, expected {checksum:08x}")
    kept = tuple(_TOKEN.unpack_from(data, _FIXED.size + index * _TOKEN.size) for index in range(tokens))
    state = data[len(data) - size :]
    return Snapshot(log.hex() if any(log) else "", Position(ledger_id, entry_id), number, time_ms, term, kept, state)
