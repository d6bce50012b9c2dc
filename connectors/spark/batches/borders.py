"""Where the messages of a batch entry start and end. No IO.

    joined    │size│metadata│payload│size│metadata│payload│ …       batches, one directly behind the other
    borders   0             p0      e0             p1      e1

Each message shows only where the next one begins, so they are walked one by one. But messages of one size mostly follow
each other in runs: then the bytes that show it (sizes, and the tags and lengths of fields) stand at the same places in
each, a stride apart, and numpy compares them for all messages of the run at once.

Rules:

1. A run takes only messages in which every byte that a walk would look at is the same as in the message before it: the
   walk would find the same (`tests/property/test_spark_borders.py`).
2. Metadata that are not written as the known clients write them (the fields before the payload's size in the order of
   their numbers) raise UnusualLayout.
"""

import struct
from typing import Any, Final, TypeAlias

import numpy as np

from magnetar_core.runtime.types import Buffer

Numbers: TypeAlias = np.ndarray[Any, np.dtype[Any]]

# Fields of SingleMessageMetadata.
PROPERTIES: Final = 1
PARTITION_KEY: Final = 2
PAYLOAD_SIZE: Final = 3

# A tag is field << 3 | wire type; 0 is a number, 2 is bytes after their length.
_SKIPPED: Final = (PARTITION_KEY << 3 | 2, PROPERTIES << 3 | 2)
_TAG_PAYLOAD_SIZE: Final = PAYLOAD_SIZE << 3

_SIZE: Final = struct.Struct(">I")

# To look for a run costs as much as to walk this many messages; a run that is shorter does not pay.
RUN_MIN: Final = 32

# A length has 31 bits, in five bytes at most.
_LENGTH_BITS_MAX: Final = 31


class UnusualLayout(Exception):
    """Metadata are not written in the layout that the fast form reads; `columnar.normalised` rewrites them."""


def borders(data: Buffer, begin: int, end: int, count: int) -> Numbers:
    """Where the payload of each of *count* messages starts and ends, for the batch from *begin* to *end*: twice as many
    numbers as messages. Raises UnusualLayout."""
    pieces: list[Numbers] = []
    walked: list[int] = []
    size_at, push = _SIZE.unpack_from, walked.append
    at, left, stride = begin, count, -1
    look_at, pause = count, RUN_MIN  # look for a run when so many messages are left, or fewer
    try:
        while left:
            field = at + 4
            start = field + size_at(data, at)[0]
            tag = data[field]
            while tag in _SKIPPED:
                length = data[field + 1]
                field += 2
                if length >= 0x80:
                    length, field = _varint(data, field - 1)
                field += length
                tag = data[field]
            if tag != _TAG_PAYLOAD_SIZE or field >= start:
                raise UnusualLayout
            length = data[field + 1]
            if length >= 0x80:
                high = data[field + 2]
                if high < 0x80:  # most payloads: no call
                    length += (high << 7) - 0x80
                else:
                    length, _ = _varint(data, field + 1)
            behind = start + length
            push(start)
            push(behind)
            left -= 1
            if behind - at != stride:
                stride = behind - at
                at = behind
                continue
            if left <= look_at and left >= RUN_MIN:
                alike = _count_alike(data, at, field, stride, min(left, (end - behind) // stride))
                if alike < RUN_MIN:
                    pause *= 2
                    look_at = left - pause
                else:
                    pause = RUN_MIN
                    pieces += (np.array(walked, np.int32), _run(behind, start - at, stride, alike))
                    walked.clear()
                    left -= alike
                    behind += alike * stride
            at = behind
    except (IndexError, struct.error):
        raise UnusualLayout from None
    if at != end:
        raise UnusualLayout
    pieces.append(np.array(walked, np.int32))
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0]


def _count_alike(data: Buffer, at: int, size_field: int, stride: int, count: int) -> int:
    """How many of *count* messages behind the one at *at* are equal to it in all that a walk looks at (rule 1).

    *size_field* is where the payload's size stands in the message at *at*.
    """
    if count < RUN_MIN:
        return 0
    places = np.array(_looked_at(data, at, size_field), np.intp) - at
    block = np.frombuffer(data, np.uint8, (count + 1) * stride, at).reshape(count + 1, stride)[:, places]
    same = (block[1:] == block[0]).all(axis=1)
    return count if same.all() else int(same.argmin())


def _looked_at(data: Buffer, at: int, size_field: int) -> list[int]:
    """Positions of the bytes by which a walk finds its way through the message at *at*."""
    positions = [*range(at, at + 4)]
    field = at + 4
    while field < size_field:
        length, behind = _varint(data, field + 1)
        positions += range(field, behind)
        field = behind + length
    return [*positions, *range(size_field, _varint(data, size_field + 1)[1])]


def _run(at: int, head_bytes: int, stride: int, count: int) -> Numbers:
    """The borders of *count* messages of *stride* bytes from *at* on; *head_bytes* of each precede the payload."""
    edges = np.empty((count, 2), np.int32)
    edges[:, 0] = np.arange(at + head_bytes, at + head_bytes + count * stride, stride)
    edges[:, 1] = np.arange(at + stride, at + stride + count * stride, stride)
    return edges.reshape(-1)


def _varint(data: Buffer, at: int) -> tuple[int, int]:
    """The number at *at*, and the position behind it. Raises UnusualLayout for a number that is not a length."""
    value = shift = 0
    while shift <= _LENGTH_BITS_MAX:  # a number without an end would be made anew with each of its bytes
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise UnusualLayout
