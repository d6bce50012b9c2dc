"""The second wire protocol: fixed layouts, no request ids for add and read. The hottest code of the product.

    request   ┌─────┬────────┬───────┬──────────────────────────────────────────────────────────────────────┐
              │ ver │ opcode │ flags │ ADD:        masterKey (20), stored entry (starts with ledgerId, entryId)│
              │ (1) │  (1)   │  (2)  │ READ:       ledgerId (8), entryId (8) [, masterKey (20)]               │
              │     │        │       │ BATCH_READ: ledgerId (8), first entryId (8), requestId (8),             │
              │     │        │       │             maxCount (4), maxBytes (8) [, masterKey (20)]               │
              │     │        │       │ AUTH:       AuthMessage (protobuf)                                      │
              └─────┴────────┴───────┴──────────────────────────────────────────────────────────────────────┘
    response  the same four bytes with flags 0, then rc (4), ledgerId (8), entryId (8) and
              READ: the stored entry; BATCH_READ: requestId (8), then {length (4), stored entry}…; both only
              if rc is 0. AUTH: the AuthMessage alone.

Rules:

1. A read carries the master key only with FLAG_DO_FENCING and a version of 2; any further bytes are ignored.
2. Version 0 means that the whole first word is the opcode.
3. An answer echoes version and opcode. READ with entry id -1 asks for the last entry and echoes -1.
4. Frames that do not fit their layout raise MalformedFrame: the connection ends.

Functions that make bytes include the length word; functions that read get the payload without it. Values
are plain tuples: a NamedTuple costs five times as much here.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import repeat
from typing import Any, Final, TypeAlias

from magnetar_core.bookkeeper.wire.framing import MalformedFrame
from magnetar_core.runtime.types import Buffer

VERSION: Final = 2
"""The version we send; versions 0 to 2 are understood."""

ADD_ENTRY: Final = 1
READ_ENTRY: Final = 2
AUTH: Final = 3
BATCH_READ_ENTRY: Final = 7

FLAG_DO_FENCING: Final = 1
FLAG_RECOVERY_ADD: Final = 2
FLAG_HIGH_PRIORITY: Final = 4

LAST_ENTRY: Final = -1
"""As the entry id of a read: the last entry of the ledger."""


class V2Error(IntEnum):
    """The `rc` of an answer."""

    EOK = 0
    ENOLEDGER = 1
    ENOENTRY = 2
    EBADREQ = 100
    EIO = 101
    EUA = 102
    EBADVERSION = 103
    EFENCED = 104
    EREADONLY = 105
    ETOOMANYREQUESTS = 106
    EUNKNOWNLEDGERSTATE = 107


_WORD: Final = struct.Struct(">I")
_LENGTH: Final = struct.Struct(">i")
_ADD_HEAD: Final = struct.Struct(">iI20s")
_ADD: Final = struct.Struct(">I20sqq")
_ADD_WITH_HEADER: Final = struct.Struct(">I20sqqqq")
_READ: Final = struct.Struct(">iIqq")
_READ_WITH_KEY: Final = struct.Struct(">iIqq20s")
_READ_IDS: Final = struct.Struct(">qq")
_BATCH: Final = struct.Struct(">iIqqqiq")
_BATCH_WITH_KEY: Final = struct.Struct(">iIqqqiq20s")
_BATCH_IDS: Final = struct.Struct(">qqqiq")
_RESPONSE: Final = struct.Struct(">iIiqq")
_BATCH_RESPONSE: Final = struct.Struct(">iIiqqq")
_RESPONSE_BODY: Final = struct.Struct(">Iiqq")
_REQUEST_ID: Final = struct.Struct(">q")

BATCH_START_BYTES: Final = 36
"""A batch read's limit counts these before its first entry, and 4 more for each."""

_ADD_WORD: Final = VERSION << 24 | ADD_ENTRY << 16
_READ_WORD: Final = VERSION << 24 | READ_ENTRY << 16
_BATCH_WORD: Final = VERSION << 24 | BATCH_READ_ENTRY << 16

PLAIN_ADD: Final = _ADD_WORD
"""The first word of an add without flags, as an integer …"""
PLAIN_ADD_BYTES: Final = _WORD.pack(_ADD_WORD)
"""… and as its bytes in the frame."""
RECOVERY_ADD: Final = _ADD_WORD | FLAG_RECOVERY_ADD
"""The first word of an add of repair, without other flags, as an integer …"""
RECOVERY_ADD_BYTES: Final = _WORD.pack(RECOVERY_ADD)
"""… and as its bytes in the frame."""
ADD_PREFIX_BYTES: Final = 24
"""Bytes before the stored entry in an add: first word and master key."""

add_header = _ADD_WITH_HEADER.unpack_from
"""add_header(frame) → (word, master key, ledger id, entry id, LAC, length); struct.error if the frame is too short."""

assert _ADD_WORD == 0x02010000
assert _ADD.size == 40

# ---------------------------------------------------------------------------------- client's side


def add_request_head(flags: int, master_key: bytes, entry_bytes: int) -> bytes:
    """The bytes of an add before its stored entry, which has *entry_bytes* (header, digest and payload)."""
    return _ADD_HEAD.pack(24 + entry_bytes, _ADD_WORD | flags, master_key)


def read_request(ledger_id: int, entry_id: int, flags: int = 0, master_key: bytes | None = None) -> bytes:
    """A whole read frame; *master_key* is needed with FLAG_DO_FENCING."""
    if master_key is None:
        assert not flags & FLAG_DO_FENCING, "fencing needs the master key"
        return _READ.pack(20, _READ_WORD | flags, ledger_id, entry_id)
    return _READ_WITH_KEY.pack(40, _READ_WORD | flags, ledger_id, entry_id, master_key)


def batch_read_request(
    ledger_id: int,
    first_entry_id: int,
    request_id: int,
    max_count: int,
    max_bytes: int,
    flags: int = 0,
    master_key: bytes | None = None,
) -> bytes:
    """A whole batch read frame: a run that starts at *first_entry_id*; *max_count* 0 means no limit."""
    word = _BATCH_WORD | flags
    if master_key is None:
        assert not flags & FLAG_DO_FENCING, "fencing needs the master key"
        return _BATCH.pack(40, word, ledger_id, first_entry_id, request_id, max_count, max_bytes)
    return _BATCH_WITH_KEY.pack(60, word, ledger_id, first_entry_id, request_id, max_count, max_bytes, master_key)


V2Response: TypeAlias = tuple[int, int, int, int, memoryview | list[memoryview] | None, int | None]
"""opcode, rc, ledger id, entry id, body (entry, list of entries, AuthMessage), request id (batch only)"""


def parse_response(frame: memoryview) -> V2Response:
    """Take an answer apart; bodies are views of *frame*. Raises MalformedFrame."""
    try:
        word, rc, ledger_id, entry_id = _RESPONSE_BODY.unpack_from(frame)
    except struct.error:
        if len(frame) >= 4 and _opcode(_WORD.unpack_from(frame)[0]) == AUTH:
            return AUTH, 0, -1, -1, frame[4:], None
        raise MalformedFrame(f"an answer of {len(frame)} bytes") from None
    opcode = word >> 16 & 0xFF or word  # rule 2
    if opcode == ADD_ENTRY:
        return ADD_ENTRY, rc, ledger_id, entry_id, None, None
    if opcode == READ_ENTRY:
        return READ_ENTRY, rc, ledger_id, entry_id, frame[24:] if rc == 0 else None, None
    if opcode == BATCH_READ_ENTRY:
        if len(frame) < 32:
            raise MalformedFrame(f"an answer to a batch read of {len(frame)} bytes")
        (request_id,) = _REQUEST_ID.unpack_from(frame, 24)
        entries = _cut_entries(frame) if rc == 0 else None
        return BATCH_READ_ENTRY, rc, ledger_id, entry_id, entries, request_id
    if opcode == AUTH:
        return AUTH, 0, -1, -1, frame[4:], None
    raise MalformedFrame(f"an answer with the opcode {opcode}")


def _cut_entries(frame: memoryview) -> list[memoryview]:
    entries = []
    at, end = 32, len(frame)
    while at < end:
        if at + 4 > end:
            raise MalformedFrame("a batch answer that ends within a length word")
        (length,) = _LENGTH.unpack_from(frame, at)
        at += 4
        if length < 0 or at + length > end:
            raise MalformedFrame(f"a batch answer with an entry of {length} bytes, {end - at} are left")
        entries.append(frame[at : at + length])
        at += length
    return entries


# ---------------------------------------------------------------------------------- server's side

V2Request: TypeAlias = tuple[int, int, int, int, int, bytes | None, Any]
"""opcode, version, flags, ledger id, entry id, master key, extra

*extra* is the stored entry (bytes, copied out of the frame) for ADD, (request id, max count, max bytes) for
BATCH_READ, the AuthMessage (view) for AUTH, None for READ."""


def parse_request(frame: memoryview) -> V2Request:
    """Take a request apart. A version that we do not know is reported, not refused. Raises MalformedFrame."""
    try:
        if frame[0] == VERSION and frame[1] == ADD_ENTRY:  # the most frequent request first, in one unpack
            word, key, ledger_id, entry_id = _ADD.unpack_from(frame)
            return ADD_ENTRY, VERSION, word & 0xFFFF, ledger_id, entry_id, key, bytes(frame[ADD_PREFIX_BYTES:])
        (word,) = _WORD.unpack_from(frame)
        version, opcode, flags = word >> 24, _opcode(word), word & 0xFFFF
        if version == 0:
            flags = 0
        key = None
        if opcode == ADD_ENTRY:
            _, key, ledger_id, entry_id = _ADD.unpack_from(frame)
            return ADD_ENTRY, version, flags, ledger_id, entry_id, key, bytes(frame[ADD_PREFIX_BYTES:])
        if opcode == READ_ENTRY:
            ledger_id, entry_id = _READ_IDS.unpack_from(frame, 4)
            if flags & FLAG_DO_FENCING and version >= 2:
                key = _key_at(frame, 20)
            return READ_ENTRY, version, flags, ledger_id, entry_id, key, None
        if opcode == BATCH_READ_ENTRY:
            ledger_id, entry_id, request_id, max_count, max_bytes = _BATCH_IDS.unpack_from(frame, 4)
            if flags & FLAG_DO_FENCING and version >= 2:
                key = _key_at(frame, 40)
            limits = (request_id, max_count, max_bytes)
            return BATCH_READ_ENTRY, version, flags, ledger_id, entry_id, key, limits
        if opcode == AUTH:
            return AUTH, version, flags, -1, -1, None, frame[4:]
    except (struct.error, IndexError):
        raise MalformedFrame(f"a request of {len(frame)} bytes is too short for its operation") from None
    raise MalformedFrame(f"a request with the opcode {opcode}, which this protocol does not have")


def add_responses(ledger_id: int, entry_ids: Sequence[int]) -> Iterator[bytes]:
    """Whole answers to adds of one ledger that succeeded."""
    return map(_RESPONSE.pack, repeat(24), repeat(_ADD_WORD), repeat(0), repeat(ledger_id), entry_ids)


def add_response(rc: int, ledger_id: int, entry_id: int, version: int = VERSION) -> bytes:
    """A whole answer to an add."""
    word = _ADD_WORD if version == VERSION else _word(version, ADD_ENTRY)
    return _RESPONSE.pack(24, word, rc, ledger_id, entry_id)


def with_rc(response: bytes, rc: int) -> bytes:
    """*response*, a whole answer without a body, with another result."""
    return response[:8] + _LENGTH.pack(rc) + response[12:]


def entry_ids(entry: Buffer) -> tuple[int, int]:
    """(ledger id, entry id) that a stored entry of at least 16 bytes begins with."""
    ledger_id, entry_id = _READ_IDS.unpack_from(entry)
    return ledger_id, entry_id


def read_response(rc: int, ledger_id: int, entry_id: int, entry_bytes: int = 0, version: int = VERSION) -> bytes:
    """The bytes of an answer before its stored entry of *entry_bytes*; the whole answer if *rc* is not 0."""
    word = _READ_WORD if version == VERSION else _word(version, READ_ENTRY)
    return _RESPONSE.pack(24 + entry_bytes, word, rc, ledger_id, entry_id)


def batch_read_response(
    rc: int,
    ledger_id: int,
    first_entry_id: int,
    request_id: int,
    entries: Sequence[Buffer] = (),
    version: int = VERSION,
) -> list[Buffer]:
    """The buffers of a whole answer to a batch read."""
    size = sum(map(len, entries)) + 4 * len(entries)
    buffers: list[Buffer] = [batch_read_response_head(ledger_id, first_entry_id, request_id, size, version, rc)]
    for entry in entries:
        buffers.append(_LENGTH.pack(len(entry)))
        buffers.append(entry)
    return buffers


def batch_read_response_head(
    ledger_id: int, first_entry_id: int, request_id: int, size_bytes: int, version: int = VERSION, rc: int = 0
) -> bytes:
    """The bytes of an answer to a batch read before its *size_bytes* of {length (4), stored entry}…"""
    word = _word(version, BATCH_READ_ENTRY)
    return _BATCH_RESPONSE.pack(32 + size_bytes, word, rc, ledger_id, first_entry_id, request_id)


def auth_frame(auth_message: bytes, version: int = VERSION) -> bytes:
    """A whole frame around a serialized AuthMessage: requests and answers have one form."""
    return _LENGTH.pack(4 + len(auth_message)) + _WORD.pack(_word(version, AUTH)) + auth_message


def _word(version: int, opcode: int) -> int:
    return opcode if version == 0 else version << 24 | opcode << 16


def _opcode(word: int) -> int:
    return word if word >> 24 == 0 else word >> 16 & 0xFF


def _key_at(frame: memoryview, offset: int) -> bytes:
    key = bytes(frame[offset : offset + 20])
    if len(key) != 20:
        raise MalformedFrame("a fencing read without the master key")
    return key
