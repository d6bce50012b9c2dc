"""Protobuf's encoding of numbers, for messages that are put together by hand. No IO."""

from typing import Final

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
