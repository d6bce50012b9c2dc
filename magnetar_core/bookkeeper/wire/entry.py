"""The header and digest around a payload, as an entry is sent and stored.

    ┌──────────────┬─────────────┬─────────┬────────────┬────────────┬─────────┐
    │ ledgerId (8) │ entryId (8) │ LAC (8) │ length (8) │ digest (d) │ payload │   big-endian
    └──────────────┴─────────────┴─────────┴────────────┴────────────┴─────────┘

LAC is the last_add_confirmed the writer knew when it built the packet (-1: none); length counts the payload bytes of
all entries up to this one. The digest covers the 32 bytes before it and the payload. d is 8 for CRC-32 (zero-extended
to 64 bits), 20 for HMAC-SHA1, 4 for CRC-32C and 0 for DUMMY.

An explicit LAC travels in its own small envelope: ledgerId (8), LAC (8), digest over these 16 bytes.

Clients check the digest; a bookie stores entries unchecked.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from magnetar_core.bookkeeper.wire.checksum import crc32, crc32c
from magnetar_core.runtime.types import Buffer, Corruption

HEADER: Final = struct.Struct(">qqqq")
HEADER_BYTES: Final = HEADER.size
MASTER_KEY_BYTES: Final = 20

_EXPLICIT_LAC: Final = struct.Struct(">qq")
_CRC32: Final = struct.Struct(">Q")
_CRC32C: Final = struct.Struct(">I")
_HEAD_CRC32C: Final = struct.Struct(">qqqqI")

assert HEADER_BYTES == 32


class DigestMismatch(Corruption):
    """An entry differs from what its writer packed: wrong digest, wrong ids, or cut short."""


class DigestType(IntEnum):
    """How an entry is protected; the numbers are those of the ledger metadata."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


class StoredEntry(NamedTuple):
    """An entry whose digest and ids were checked."""

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    """Payload bytes of all entries of the ledger up to this one."""
    payload: memoryview


def master_key(password: bytes) -> bytes:
    """The 20 bytes that prove knowledge of *password* to a bookie; the same for every digest type."""
    return hashlib.sha1(b"ledger" + password).digest()


class EntryCodec:
    """Packs and checks the entries of one ledger."""

    __slots__ = ("_digest", "digest_bytes", "digest_type", "payload_offset")

    def __init__(self, digest_type: DigestType, password: bytes) -> None:
        self.digest_type = DigestType(digest_type)
        self._digest, self.digest_bytes = _digest_of(self.digest_type, password)
        self.payload_offset = HEADER_BYTES + self.digest_bytes

    def head(self, ledger_id: int, entry_id: int, last_add_confirmed: int, length: int, payload: Buffer) -> bytes:
        """Header and digest for *payload*, which is sent as a separate buffer after them."""
        header = HEADER.pack(ledger_id, entry_id, last_add_confirmed, length)
        if self.digest_bytes == 4:  # CRC-32C, the usual digest, without one more call
            return _HEAD_CRC32C.pack(ledger_id, entry_id, last_add_confirmed, length, crc32c(payload, crc32c(header)))
        return header + self._digest(header, payload)

    def open(self, data: Buffer, ledger_id: int, entry_id: int | None) -> StoredEntry:
        """Check *data* and take it apart; *entry_id* None accepts any (the answer to "read the last one").

        Raises DigestMismatch.
        """
        view = memoryview(data)
        if len(view) < self.payload_offset:
            raise DigestMismatch(
                f"ledger {ledger_id} entry {entry_id}: {len(view)} bytes, expected at least {self.payload_offset}"
            )
        found_ledger_id, found_entry_id, last_add_confirmed, length = HEADER.unpack_from(view)
        payload = view[self.payload_offset :]
        if found_ledger_id != ledger_id or (entry_id is not None and found_entry_id != entry_id):
            raise DigestMismatch(
                f"ledger {ledger_id} entry {entry_id}: found ledger {found_ledger_id} entry {found_entry_id}"
            )
        digest = self._digest(view[:HEADER_BYTES], payload)
        if digest != view[HEADER_BYTES : self.payload_offset]:
            stored = bytes(view[HEADER_BYTES : self.payload_offset]).hex()
            raise DigestMismatch(
                f"ledger {ledger_id} entry {found_entry_id}: digest {stored}, computed {digest.hex()} "
                f"({self.digest_type.name})"
            )
        return StoredEntry(ledger_id, found_entry_id, last_add_confirmed, length, payload)

    def check(self, data: Buffer, ledger_id: int, entry_id: int) -> None:
        """Check *data* as `open` does, and take nothing out of it: half of the cost for the usual digest.

        Raises DigestMismatch.
        """
        if self.digest_type is DigestType.CRC32C and len(data) >= _HEAD_CRC32C.size:
            found_ledger_id, found_entry_id, _, _, digest = _HEAD_CRC32C.unpack_from(data)
            if found_ledger_id == ledger_id and found_entry_id == entry_id:
                view = memoryview(data)
                if digest == crc32c(view[_HEAD_CRC32C.size :], crc32c(view[:HEADER_BYTES])):
                    return
        self.open(data, ledger_id, entry_id)  # any other digest, or the error with its reason

    def explicit_lac(self, ledger_id: int, last_add_confirmed: int) -> bytes:
        """The body of a WRITE_LAC request."""
        header = _EXPLICIT_LAC.pack(ledger_id, last_add_confirmed)
        return header + self._digest(header, b"")


@lru_cache(maxsize=256)
def _digest_of(digest_type: DigestType, password: bytes) -> tuple[Callable[[Buffer, Buffer], bytes], int]:
    match digest_type:
        case DigestType.CRC32C:
            return lambda header, payload: _CRC32C.pack(crc32c(payload, crc32c(header))), 4
        case DigestType.CRC32:
            return lambda header, payload: _CRC32.pack(crc32(payload, crc32(header))), 8
        case DigestType.DUMMY:
            return lambda header, payload: b"", 0
        case DigestType.HMAC:
            keyed = hmac.new(hashlib.sha1(b"mac" + password).digest(), digestmod=hashlib.sha1)

            def digest(header: Buffer, payload: Buffer) -> bytes:
                mac = keyed.copy()
                mac.update(header)
                mac.update(payload)
                return mac.digest()

            return digest, 20
