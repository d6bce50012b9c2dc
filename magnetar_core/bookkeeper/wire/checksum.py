"""CRC checksums. No other module imports a CRC library.

CRC-32C runs at about 26 GB/s here (hardware), CRC-32 at 5 GB/s; both release the GIL for large buffers.
"""

import zlib

import crc32c as _crc32c

from magnetar_core.runtime.types import Buffer


def crc32c(data: Buffer, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of *data*, continuing *value*; 0 … 2³²-1."""
    return _crc32c.crc32c(data, value)


def crc32(data: Buffer, value: int = 0) -> int:
    """CRC-32 (zlib) of *data*, continuing *value*; 0 … 2³²-1."""
    return zlib.crc32(data, value)
