"""Protobuf's encoding of numbers, for messages that are put together by hand. No IO."""

from typing import Final

from magnetar_core.runtime.types import Buffer

_ONE_BYTE: Final = [bytes((value,)) for value in range(128)]


def varint(value: int) -> bytes:
    """*value* (0 … 2⁶⁴-1) as protobuf writes it."""
    if value < 0x80:
        return _ONE_BYTE[value]
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value < 0x1000_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def unvarint(data: bytes) -> int:
    """The number (below 2⁶³) in *data*, which holds one of nine bytes at most and nothing else."""
    value = data[-1]
    for byte in data[-2::-1]:
        value = value << 7 | byte & 0x7F
    return value


def read_varint(data: Buffer, at: int) -> tuple[int, int]:
    """The number that begins at *at*, and where it ends. Raises IndexError at the end of *data*, ValueError for one of
    more than ten bytes."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than ten bytes")
