"""The messages of a batch, taken apart. No IO.

    ┌──────────┬───────────────────────┬─────────┐
    │ size (4) │ SingleMessageMetadata │ payload │     repeated; size, that of the metadata, is big-endian
    └──────────┴───────────────────────┴─────────┘
      00000004   18 64  40 05            100 bytes      a plain message: payload_size 100, sequence_id 5

`message_at` says what a message of a batch is: protobuf's decoder reads its metadata, which takes more than all the
rest. `runs` finds the same by the bytes where messages are plain, as nearly all are.

Rules:

1. Plain are metadata of one or two numbers, payload_size and behind it sequence_id, which end where the metadata do. So
   the decoder would find just these.
2. Messages of one size, and those of one key, mostly follow each other. A run takes those whose heads (size and
   metadata) have the same bytes as the one before, but for a sequence id at their end, which has as many.
3. Messages that compaction emptied (`compacted_out`) have an index, and are in no run.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.batches_pb2 import SingleMessageMetadata
from magnetar_core.topics.metadata import ORDINARY_METADATA_BYTES, describe, fields_problem, has_broken_text
from magnetar_core.topics.topics_pb2 import Message

# The fewest bytes that a message takes in a batch: the size of its metadata (4), and payload_size, which they must
# have (2).
BATCHED_BYTES_MIN: Final = 4 + 2

Head: TypeAlias = bytes | SingleMessageMetadata
"""The metadata of a message: encoded behind their size where they had not to be decoded."""

_U32: Final = struct.Struct(">I")
_PAYLOAD_SIZE: Final = SingleMessageMetadata.PAYLOAD_SIZE_FIELD_NUMBER << 3
_SEQUENCE_ID: Final = SingleMessageMetadata.SEQUENCE_ID_FIELD_NUMBER << 3

# Bytes of the numbers of a plain message: payloads of less than 2 MiB, and sequence ids as brokers take them.
_PAYLOAD_SIZE_LENGTHS: Final = (1, 2, 3)
_SEQUENCE_ID_LENGTHS: Final = range(1, 10)

# So many messages of one size stand behind each other before it is asked how many more do. A shorter run does not pay.
_ALIKE_MIN: Final = 8

# So many are asked about at once. After a look that was in vain the next one comes later, each time twice as late.
_ALIKE_MAX: Final = 1_024

# The last byte of a number, and those before it.
_LAST_BYTES: Final = bytes(range(0x80))
_OTHER_BYTES: Final = bytes(range(0x80, 0x100))


class _Form(NamedTuple):
    """What plain heads of one length, with a payload size of one length, have in common."""

    head_bytes: int
    mask: int
    wanted: int
    """The head as a number is this, behind *mask*."""
    size_length: int
    """Bytes of the payload's size."""


_NO_FORM: Final = _Form(0, 0, -1, 0)


def _form(size: int, length: int) -> _Form:
    """The form of plain metadata of *size* bytes, *length* of which are the number of the payload's size."""
    mask, wanted = b"\xff" * 5 + b"\x80" * length, _U32.pack(size) + bytes((_PAYLOAD_SIZE,)) + _first_bits(length)
    behind = size - 1 - length
    if behind:
        if behind - 1 not in _SEQUENCE_ID_LENGTHS:
            return _NO_FORM
        mask += b"\xff" + b"\x80" * (behind - 1)
        wanted += bytes((_SEQUENCE_ID,)) + _first_bits(behind - 1)
    return _Form(4 + size, int.from_bytes(mask, "big"), int.from_bytes(wanted, "big"), length)


def _first_bits(length: int) -> bytes:
    """The first bit of each byte of a number."""
    return b"\x80" * (length - 1) + b"\0"


# By the first five bytes, and how many the payload's size has.
_FORMS: Final = {
    _U32.pack(size) + bytes((_PAYLOAD_SIZE,)): [_form(size, length) for length in _PAYLOAD_SIZE_LENGTHS]
    for size in range(2, 2 + max(_PAYLOAD_SIZE_LENGTHS) + max(_SEQUENCE_ID_LENGTHS) + 1)
}


def message_at(batch: bytes | memoryview, at: int, index: int, count: int) -> tuple[SingleMessageMetadata, int, int]:
    """Message *index* of a *batch* of *count*, which begins at *at*: its metadata, and where its payload begins and
    ends. Raises Corruption."""
    try:
        (size,) = _U32.unpack_from(batch, at)
        if size > ORDINARY_METADATA_BYTES and (problem := fields_problem(batch[at + 4 : at + 4 + size])):
            raise Corruption(f"message {index} of a batch of {count}: {problem}")
        single = SingleMessageMetadata.FromString(bytes(batch[at + 4 : at + 4 + size]))
    except (struct.error, DecodeError) as error:
        raise Corruption(f"message {index} of a batch of {count} cannot be decoded: {error}") from None
    if has_broken_text(single):
        raise Corruption(f"message {index} of a batch of {count} holds text that is not UTF-8")
    payload_size = single.payload_size
    if not payload_size and not single.HasField("payload_size"):  # it is required, which the library does not check
        raise Corruption(f"message {index} of a batch of {count} does not say how large its payload is")
    start = at + 4 + size
    end = start + payload_size
    if payload_size < 0 or end > len(batch):
        raise Corruption(f"message {index} of a batch of {count} leaves its payload of {len(batch)} bytes")
    return single, start, end


def check_count(count: int, size_bytes: int) -> None:
    """Raises Corruption where a batch of *size_bytes* cannot have *count* messages."""
    if count < 0 or count * BATCHED_BYTES_MIN > size_bytes:
        raise Corruption(f"a batch of {count} messages cannot be in {size_bytes} bytes")


def runs(batch: bytes, count: int) -> Iterator[tuple[int, Iterable[tuple[Head, bytes]]]]:
    """The *count* messages of an uncompressed *batch*, several at a time: the index of the first, and metadata and
    payload of each. Raises Corruption behind those that are in front of a damaged one."""
    check_count(count, len(batch))
    end, number = len(batch), int.from_bytes
    at = index = first = alike = head_bytes = mask = size_length = 0
    wanted = size_before = -1
    pause = _ALIKE_MIN
    gathered: list[tuple[Head, bytes]] = []
    while index < count:
        head = batch[at : at + head_bytes]
        if number(head, "big") & mask != wanted:
            head_bytes, mask, wanted, size_length = _form_at(batch, at)
            head = batch[at : at + head_bytes]
        if head:
            size = head[5]
            if size_length > 1:
                size += (head[6] << 7) - 0x80
                if size_length > 2:
                    size += (head[7] << 14) - (0x80 << 7)
            start = at + head_bytes
            behind = start + size
        single = None
        if not head or behind > end:
            try:
                single, start, behind = message_at(batch, at, index, count)
            except Corruption:
                yield first, gathered
                raise
            size = behind - start
        index += 1
        if single is None:
            gathered.append((head, batch[start:behind]))
        elif not single.compacted_out:
            gathered.append((single, batch[start:behind]))
        else:  # rule 3
            yield first, gathered
            gathered, first, at, size_before = [], index, behind, -1
            continue
        if size != size_before:
            size_before, alike = size, 0
        else:
            alike += 1
            if alike >= pause and count - index >= _ALIKE_MIN:
                head = batch[at:start]
                fixed = _U32.size + 1 + size_length + 1 if single is None else _fixed_bytes(head)
                more = _count_alike(batch, behind, head, size, fixed, min(count - index, _ALIKE_MAX))
                alike, pause = 0, _ALIKE_MIN if more else 2 * pause
                if more:
                    yield first, gathered
                    at = behind + more * (len(head) + size)
                    yield index, struct.iter_unpack(f"{len(head)}s{size}s", memoryview(batch)[behind:at])
                    index += more
                    gathered, first = [], index
                    continue
        at = behind
    yield first, gathered


def _form_at(batch: bytes, at: int) -> _Form:
    """The form of the message at *at*; _NO_FORM if it is not plain (rule 1)."""
    forms = _FORMS.get(batch[at : at + 5])
    size = batch[at + 5 : at + 5 + len(_PAYLOAD_SIZE_LENGTHS)]
    if forms is None or not size:
        return _NO_FORM
    form = forms[0 if size[0] < 0x80 else 1 if size[1:2] < b"\x80" else 2]
    head = batch[at : at + form.head_bytes]
    return form if int.from_bytes(head, "big") & form.mask == form.wanted else _NO_FORM


def _fixed_bytes(head: bytes) -> int:
    """How many bytes of *head* stand in front of the sequence id that it ends with; all, if it does not."""
    start = head[:-1].rstrip(_OTHER_BYTES)
    if start.endswith(bytes((_SEQUENCE_ID,))) and len(head) - len(start) in _SEQUENCE_ID_LENGTHS:
        try:
            before = SingleMessageMetadata.FromString(start[_U32.size : -1])
        except DecodeError:  # it is the end of another field
            return len(head)
        if not before.HasField("sequence_id"):
            return len(start)
    return len(head)


def _count_alike(batch: bytes, at: int, head: bytes, size: int, fixed: int, most: int) -> int:
    """How many of the next *most* messages, from *at* on, are like the one before them, with *head*, of whose bytes so
    many are *fixed* (rule 2)."""
    stride = len(head) + size
    most = min(most, (len(batch) - at) // stride)
    for place in range(len(head)):
        if place < fixed:
            allowed = head[place : place + 1]
        elif place < len(head) - 1:
            allowed = _OTHER_BYTES
        else:
            allowed = _LAST_BYTES
        column = batch[at + place : at + most * stride : stride]
        most = len(column) - len(column.lstrip(allowed))
        if not most:
            return 0
    return most


def single_of(head: Head) -> SingleMessageMetadata:
    """The metadata, decoded."""
    return SingleMessageMetadata.FromString(head[_U32.size :]) if isinstance(head, bytes) else head


def message_of(head: Head) -> Message:
    """What the metadata of a message say of it, but for its payload and its place."""
    single = single_of(head)
    message = Message(sequence_id=single.sequence_id)
    describe(message, single)
    return message
