"""The third wire protocol: protobuf requests and answers, matched by transaction id.

An answer may consist of header and status alone; the client then uses the ids of its request. Values are the generated
messages. This module makes and reads whole frames, and the parts that all operations share.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError, Message

from magnetar_core.bookkeeper.wire import bookkeeper_pb2 as pb
from magnetar_core.bookkeeper.wire.codec_v2 import V2Error
from magnetar_core.bookkeeper.wire.entry import HEADER_BYTES
from magnetar_core.bookkeeper.wire.framing import LENGTH, MalformedFrame
from magnetar_core.runtime.data.varint import unvarint, varint
from magnetar_core.runtime.types import Buffer

# Field 1, length-delimited: the header of every Request. A frame of the second protocol starts with 2, 1 or 0,
# none of which is a legal tag, so one byte tells them apart.
FIRST_BYTE: Final = 0x0A

# Ids are int64 on the wire, where negative ones are written as these bits.
_U64: Final = 0xFFFF_FFFF_FFFF_FFFF

DEFERRED_SYNC: Final = 1
"""Bit of AddRequest.writeFlags: answer before the entry is durable; FORCE_LEDGER makes it durable."""

READ_ENTRY: Final = pb.OperationType.READ_ENTRY
ADD_ENTRY: Final = pb.OperationType.ADD_ENTRY
AUTH: Final = pb.OperationType.AUTH
WRITE_LAC: Final = pb.OperationType.WRITE_LAC
READ_LAC: Final = pb.OperationType.READ_LAC
GET_BOOKIE_INFO: Final = pb.OperationType.GET_BOOKIE_INFO
START_TLS: Final = pb.OperationType.START_TLS
FORCE_LEDGER: Final = pb.OperationType.FORCE_LEDGER
GET_LIST_OF_ENTRIES: Final = pb.OperationType.GET_LIST_OF_ENTRIES_OF_LEDGER

FENCE_LEDGER: Final = pb.ReadRequest.Flag.FENCE_LEDGER
ENTRY_PIGGYBACK: Final = pb.ReadRequest.Flag.ENTRY_PIGGYBACK
RECOVERY_ADD: Final = pb.AddRequest.Flag.RECOVERY_ADD
TOTAL_DISK_CAPACITY: Final = 1
FREE_DISK_SPACE: Final = 2


class V3Error(IntEnum):
    """The `status` of an answer."""

    EOK = 0
    ENOLEDGER = 402
    ENOENTRY = 403
    EBADREQ = 404
    EIO = 501
    EUA = 502
    EBADVERSION = 503
    EFENCED = 504
    EREADONLY = 505
    ETOOMANYREQUESTS = 506
    EUNKNOWNLEDGERSTATE = 507


OF_V2: Final[dict[int, V3Error]] = {int(error): V3Error[error.name] for error in V2Error}
"""Number of the second protocol → the same refusal in this protocol."""

TO_V2: Final[dict[int, V2Error]] = {int(V3Error[error.name]): error for error in V2Error}

assert len(OF_V2) == len(TO_V2) == len(V3Error)

# A plain add as every client writes it, up to its body: fields in ascending order, without flags, priority and context.
#   0a n { 08 03  10 02  18 txnId }  aa 06 n { 08 ledgerId  10 entryId  1a 14 masterKey  22 n body }
_NUMBER_PATTERN: Final = rb"([\x80-\xff]{0,9}[\x00-\x7f])"
_PLAIN_ADD: Final = re.compile(
    rb"\x0a(.)\x08\x03\x10\x02\x18%(n)b\xaa\x06%(n)b\x08%(n)b\x10%(n)b\x1a\x14(.{20})\x22%(n)b"
    % {b"n": _NUMBER_PATTERN},
    re.DOTALL,
).match

# A plain read, whole, as every client writes it; ids are not negative.
#   0a n { 08 03  10 01  18 txnId }  a2 06 n { 08 ledgerId  10 entryId }
_ID_PATTERN: Final = rb"([\x80-\xff]{0,8}[\x00-\x7f])"
_PLAIN_READ: Final = re.compile(
    rb"\x0a(.)\x08\x03\x10\x01\x18%(id)b\xa2\x06(.)\x08%(id)b\x10%(id)b" % {b"id": _ID_PATTERN}, re.DOTALL
).fullmatch
_ENTRY_IDS: Final = struct.Struct(">qqq").unpack_from
_ENTRY_AND_LAC: Final = struct.Struct(">qq").unpack_from
_TXN_AT: Final = 7

_AVAILABILITY_HEADER: Final = struct.Struct(">ii56x")
_AVAILABILITY_GROUP: Final = struct.Struct(">qqii")


def is_v3(frame: memoryview) -> bool:
    """Whether a request's payload belongs to this protocol; an empty one belongs to none."""
    return len(frame) > 0 and frame[0] == FIRST_BYTE


def frame_of(message: pb.Request | pb.Response) -> bytes:
    """The whole frame of *message*."""
    body: bytes = message.SerializeToString()
    return LENGTH.pack(len(body)) + body


def parse_request(frame: Buffer) -> pb.Request:
    """Raises MalformedFrame."""
    message = pb.Request()
    _parse(message, frame)
    return message


def parse_response(frame: Buffer) -> pb.Response:
    """Raises MalformedFrame."""
    message = pb.Response()
    _parse(message, frame)
    return message


def _parse(message: Message, frame: Buffer) -> None:
    try:
        message.ParseFromString(frame)  # type: ignore[arg-type]  # takes any buffer
        whole = message.IsInitialized()  # parsing alone does not miss a required field
    except DecodeError:
        whole = False
    if not whole:
        raise MalformedFrame(f"{len(frame)} bytes that are no {type(message).__name__}")


# ---------------------------------------------------------------------------------- client's side


def request(operation: int, txn_id: int, *, priority: int = 0) -> pb.Request:
    """A request with its header; the caller fills in the operation's own message."""
    message = pb.Request()
    header = message.header
    header.version = pb.ProtocolVersion.VERSION_THREE
    header.operation = operation  # type: ignore[assignment]  # enum values are plain integers
    header.txnId = txn_id
    if priority:
        header.priority = priority
    return message


def read_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    *,
    fence_with: bytes | None = None,
    previous_lac: int | None = None,
    timeout_ms: int | None = None,
    piggyback: bool = False,
    priority: int = 0,
) -> bytes:
    """A whole read frame. *fence_with* is the master key of a fencing read; *previous_lac* makes it a long poll."""
    message = request(READ_ENTRY, txn_id, priority=priority)
    read = message.readRequest
    read.ledgerId, read.entryId = ledger_id, entry_id
    if fence_with is not None:
        read.masterKey = fence_with
        read.flag = FENCE_LEDGER
    elif piggyback:
        read.flag = ENTRY_PIGGYBACK
    if previous_lac is not None:
        read.previousLAC = previous_lac
    if timeout_ms is not None:
        read.timeOut = timeout_ms
    return frame_of(message)


def list_of_entries_request(txn_id: int, ledger_id: int) -> bytes:
    message = request(GET_LIST_OF_ENTRIES, txn_id)
    message.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return frame_of(message)


def bookie_info_request(txn_id: int, requested: int = TOTAL_DISK_CAPACITY | FREE_DISK_SPACE) -> bytes:
    message = request(GET_BOOKIE_INFO, txn_id)
    message.getBookieInfoRequest.requested = requested
    return frame_of(message)


def start_tls_request(txn_id: int) -> bytes:
    message = request(START_TLS, txn_id)
    message.startTLSRequest.SetInParent()
    return frame_of(message)


# ---------------------------------------------------------------------------------- server's side


def response(operation: int, txn_id: int, status: int) -> pb.Response:
    """An answer with header and status; the caller fills in the operation's own message, if it has one."""
    message = pb.Response()
    header = message.header
    header.version = pb.ProtocolVersion.VERSION_THREE
    header.operation = operation  # type: ignore[assignment]
    header.txnId = txn_id
    message.status = status  # type: ignore[assignment]
    return message


_known_varint = lru_cache(maxsize=4096)(varint)
"""Numbers in their encoded form, kept for lengths and ids of ledgers, most of which come again."""


class PlainAdd(NamedTuple):
    """An add without anything special; numbers of the frame as they stand there."""

    txn_id: bytes
    ledger: bytes
    entry: bytes
    master_key: bytes
    body_at: int
    """Where in the frame the stored entry begins; it ends with the frame."""
    ledger_id: int
    entry_id: int
    last_add_confirmed: int


def plain_add(frame: memoryview) -> PlainAdd | None:
    """What *frame* holds if it is an add of an entry with a whole header, in the form above, whose ids are those of the
    entry. None: it has another form, and `parse_request` reads it."""
    match = _PLAIN_ADD(frame)
    if match is None:
        return None
    header, txn_id, add, ledger, entry, key, size = match.groups()
    body_at, end = match.end(), len(frame)
    if end - body_at < HEADER_BYTES:
        return None
    ledger_id, entry_id, last_add_confirmed = _ENTRY_IDS(frame, body_at)
    if (
        ledger_id < 0
        or entry_id < 0
        or header[0] != 5 + len(txn_id)
        or size != _known_varint(end - body_at)
        or add != _known_varint(end - match.end(3))
        or ledger != _known_varint(ledger_id)
        or entry != varint(entry_id)
    ):
        return None
    return PlainAdd(txn_id, ledger, entry, key, body_at, ledger_id, entry_id, last_add_confirmed)


class AddShape:
    """The form of a plain add. Adds in a row differ only in transaction, entry and body, and have the same length:
    those are read by their places, in half the time."""

    __slots__ = (
        "_behind",
        "_ends",
        "_entry_at",
        "_entry_end",
        "_first_bit",
        "_front",
        "_head_end",
        "_high",
        "_ids_at",
        "_length",
        "_middle",
        "_reply",
        "_reply_middle",
        "_rest",
        "_txn_end",
        "_where",
        "body_at",
    )

    def __init__(self, frame: memoryview, add: PlainAdd) -> None:
        """*add* is what `plain_add` found in *frame*."""
        self.body_at = body_at = add.body_at
        self._length = len(frame)
        self._head_end = body_at + 24  # with the three ids of the entry
        head = bytes(frame[: self._head_end])
        self._txn_end = _TXN_AT + len(add.txn_id)
        # Behind the entry's number: 1a 14 key(20) 22 size, up to the body.
        self._entry_end = body_at - 23 - len(_known_varint(len(frame) - body_at))
        self._entry_at = self._entry_end - len(add.entry)
        self._ids_at = body_at + 8
        self._front = head[:_TXN_AT]
        self._middle = head[self._txn_end : self._entry_at]
        self._behind = head[self._entry_end : self._ids_at]
        # The high bit of each byte of a number but the last is set.
        self._ends = int.from_bytes(b"\x80" * len(add.txn_id))
        self._where = self._ends & ~0x80
        # Of 128 entries after another only the first byte of the number differs.
        self._high, self._rest = add.entry_id >> 7, add.entry[1:]
        self._first_bit = 0x80 if self._rest else 0
        reply, middle = _added_parts(len(add.txn_id), 4 + len(add.ledger) + len(add.entry))
        self._reply, self._reply_middle = reply, middle + add.ledger + b"\x18"

    def read(self, frame: memoryview) -> tuple[int, int, bytes] | None:
        """Entry id, LAC and the answer if it succeeds (`added`); None: the frame is not of this form."""
        if len(frame) != self._length:
            return None
        head = bytes(frame[: self._head_end])
        if (
            not head.startswith(self._front)
            or head[self._txn_end : self._entry_at] != self._middle
            or head[self._entry_end : self._ids_at] != self._behind
        ):
            return None
        txn_id, entry = head[_TXN_AT : self._txn_end], head[self._entry_at : self._entry_end]
        entry_id, last_add_confirmed = _ENTRY_AND_LAC(head, self._ids_at)
        if entry_id >> 7 != self._high:
            if entry_id < 0 or len(number := varint(entry_id)) != len(entry):
                return None
            self._high, self._rest = entry_id >> 7, number[1:]
        if (
            entry[0] != entry_id & 0x7F | self._first_bit
            or entry[1:] != self._rest
            or int.from_bytes(txn_id) & self._ends != self._where
        ):
            return None
        return entry_id, last_add_confirmed, self._reply + txn_id + self._reply_middle + entry


def added(add: PlainAdd) -> bytes:
    """The whole answer to an add that succeeded, as `add_response` makes it."""
    txn, ledger, entry = add.txn_id, add.ledger, add.entry
    head, middle = _added_parts(len(txn), 4 + len(ledger) + len(entry))
    return head + txn + middle + ledger + b"\x18" + entry


@lru_cache(maxsize=128)
def _added_parts(txn_bytes: int, part_bytes: int) -> tuple[bytes, bytes]:
    """What stands before the transaction id and before the ledger's; numbers have ten bytes at most."""
    head = LENGTH.pack(12 + txn_bytes + part_bytes) + b"\x0a%c\x08\x03\x10\x02\x18" % (5 + txn_bytes)
    return head, b"\x10\x00\xaa\x06%c\x08\x00\x10" % part_bytes


def add_response(txn_id: int, status: int, ledger_id: int, entry_id: int) -> bytes:
    """A whole answer to an add. Put together by hand, in half the time: there is one for every entry."""
    txn, code = varint(txn_id), varint(status)
    part = b"\x08%b\x10%b\x18%b" % (code, varint(ledger_id & _U64), varint(entry_id & _U64))
    body = b"\x0a%c\x08\x03\x10\x02\x18%b\x10%b\xaa\x06%c%b" % (5 + len(txn), txn, code, len(part), part)
    return LENGTH.pack(len(body)) + body


class PlainRead(NamedTuple):
    """A read of an entry by its number, without fencing, waiting or priority."""

    txn_id: bytes
    """The transaction id as it stands in the frame."""
    ledger_id: int
    entry_id: int


def plain_read(frame: memoryview) -> PlainRead | None:
    """What *frame* asks for if it is a read in the form above. None: another form; `parse_request` reads it."""
    match = _PLAIN_READ(frame)
    if match is None:
        return None
    header, txn_id, read, ledger, entry = match.groups()
    if header[0] != 5 + len(txn_id) or read[0] != 2 + len(ledger) + len(entry):
        return None
    return PlainRead(txn_id, unvarint(ledger), unvarint(entry))


def read_parts(read: PlainRead, body_bytes: int, max_lac: int) -> tuple[bytes, bytes]:
    """What stands before and behind the entry of *body_bytes* in the answer to *read*, as `read_response` makes it."""
    txn, size = read.txn_id, _known_varint(body_bytes)
    part = b"\x08\x00\x10%b\x18%b\x22%b" % (_known_varint(read.ledger_id), varint(read.entry_id), size)
    behind = b"\x28%b" % varint(max_lac & _U64)
    part_bytes = varint(len(part) + body_bytes + len(behind))
    before = b"\x0a%c\x08\x03\x10\x01\x18%b\x10\x00\xa2\x06%b%b" % (5 + len(txn), txn, part_bytes, part)
    return LENGTH.pack(len(before) + body_bytes + len(behind)) + before, behind


def read_response(
    txn_id: int,
    status: int,
    ledger_id: int,
    entry_id: int,
    *,
    body: Buffer | None = None,
    max_lac: int | None = None,
    lac_update_ms: int | None = None,
) -> bytes:
    """A whole answer to a read; *max_lac* is the LAC the bookie knows now, *lac_update_ms* when it learnt it."""
    message = response(READ_ENTRY, txn_id, status)
    read = message.readResponse
    read.status, read.ledgerId, read.entryId = status, ledger_id, entry_id  # type: ignore[assignment]
    if body is not None:
        read.body = bytes(body)
    if max_lac is not None:
        read.maxLAC = max_lac
    if lac_update_ms is not None:
        read.lacUpdateTimestamp = lac_update_ms
    return frame_of(message)


# ----------------------------------------------------------------- which entries a bookie has


class Availability:
    """The answer to GET_LIST_OF_ENTRIES, made of ids that come in pieces, in strictly ascending order.

        ┌─────────────┬────────────┬───────────┐
        │ version (4) │ groups (4) │ zero (56) │   version 0; per group:
        ├─────────────┴────┬───────┴──────────┬┴─────────┬────────────┐
        │ first start (8)  │ last start (8)   │ size (4) │ period (4) │
        └──────────────────┴──────────────────┴──────────┴────────────┘

    A group is a number of runs of `size` entries, `period` apart, as striping produces them. It keeps bytes, no ids.
    """

    __slots__ = ("_count", "_first", "_group", "_groups", "_size")

    def __init__(self) -> None:
        self._first = self._size = 0
        """The run that may go on."""
        self._group: list[int] | None = None
        """The group that may go on: first start, last start, size, period."""
        self._groups = bytearray()
        self._count = 0

    @property
    def size_bytes(self) -> int:
        """Size of what is encoded so far."""
        return _AVAILABILITY_HEADER.size + len(self._groups)

    def add(self, entry_ids: Iterable[int]) -> None:
        first, size = self._first, self._size
        for entry_id in entry_ids:
            if size and first + size == entry_id:
                size += 1
                continue
            if size:
                assert entry_id > first, "entry ids must rise"
                self._add_run(first, size)
            first, size = entry_id, 1
        self._first, self._size = first, size

    def _add_run(self, first: int, size: int) -> None:
        group = self._group
        if group is not None and group[2] == size:
            distance = first - group[1]
            if group[3] == 0 and distance < 2**31:
                group[1], group[3] = first, distance
                return
            if group[3] == distance:
                group[1] = first
                return
        if group is not None:
            self._groups += _AVAILABILITY_GROUP.pack(*group)
        self._group = [first, first, size, 0]
        self._count += 1

    def encoded(self) -> bytes:
        """The whole answer; nothing is added any more."""
        if self._size:
            self._add_run(self._first, self._size)
            self._size = 0
        if self._group is not None:
            self._groups += _AVAILABILITY_GROUP.pack(*self._group)
            self._group = None
        return _AVAILABILITY_HEADER.pack(0, self._count) + self._groups


def decode_availability(data: Buffer) -> list[tuple[int, int, int, int]]:
    """(first start, last start, size, period) of each group: runs of *size* entries, each starting *period* after the
    one before (0: there is one run). Raises MalformedFrame."""
    try:
        version, count = _AVAILABILITY_HEADER.unpack_from(data)
        if version != 0:
            raise MalformedFrame(f"a list of entries in version {version}")
        if len(data) != _AVAILABILITY_HEADER.size + count * _AVAILABILITY_GROUP.size:
            raise MalformedFrame(f"a list of {count} groups in {len(data)} bytes")
        return list(_AVAILABILITY_GROUP.iter_unpack(memoryview(data)[_AVAILABILITY_HEADER.size :]))
    except struct.error:
        raise MalformedFrame(f"a list of entries of {len(data)} bytes") from None


def is_available(groups: Sequence[tuple[int, int, int, int]], entry_id: int) -> bool:
    """Whether a list contains *entry_id*; *groups* as `decode_availability` returns them."""
    for first_start, last_start, size, period in groups:
        if first_start <= entry_id < last_start + size:
            offset = (entry_id - first_start) % period if period else entry_id - first_start
            if offset < size:
                return True
    return False
