"""Cutting a byte stream into frames.

    ┌────────────┬──────────────────┐
    │ length (4) │ payload (length) │   big-endian, signed; the length does not count itself
    └────────────┴──────────────────┘

Rules:

1. A payload is returned once, whole, in order. It is a view of bytes that are never changed.
2. A wrong length is found from the length word alone: no bytes are gathered for a frame that will be refused.
"""

import struct
from typing import Final

from magnetar_core.runtime.types import MagnetarError

# The limit of Pulsar's bookies and brokers: 5 MiB for a message plus 10 KiB for the headers around it. Both sides must
# have the same limit, since a receiver closes the connection without an answer.
MAX_FRAME_BYTES: Final = 5_253_120

LENGTH: Final = struct.Struct(">i")


class MalformedFrame(MagnetarError):
    """The peer sent bytes that the protocol does not allow; the connection cannot go on."""


class FrameTooLarge(MalformedFrame):
    """A frame announces more bytes than the limit (or fewer than none)."""


class FrameSplitter:
    """Takes the chunks of one connection and returns the payloads of whole frames.

    After `feed` raised FrameTooLarge the stream cannot be read any further.
    """

    __slots__ = ("_limit_bytes", "_missing_bytes", "_parts", "held_bytes")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        # Chunks of a frame that is not complete yet. They are joined once, when it is complete: joining on every chunk
        # would cost O(n²) for a large frame.
        self._parts: list[bytes] = []
        # Bytes that are missing to the end of the frame, or of its length word.
        self._missing_bytes = 0
        self.held_bytes = 0
        """Bytes kept of a frame that is not complete yet."""

    @property
    def is_between_frames(self) -> bool:
        """Nothing of a further frame has arrived."""
        return not self._parts

    def feed(self, data: bytes) -> list[memoryview]:
        """The payloads that *data* completes, without the length words."""
        if self._parts:
            self._parts.append(data)
            self._missing_bytes -= len(data)
            if self._missing_bytes > 0:
                self.held_bytes += len(data)
                return []
            data = b"".join(self._parts)
            self._parts.clear()
            self.held_bytes = 0
        frames = []
        view = memoryview(data)
        at, end = 0, len(data)
        limit = self._limit_bytes
        length_at = LENGTH.unpack_from
        while True:
            start = at + 4
            if start > end:
                self._missing_bytes = start - end
                break
            (length,) = length_at(data, at)
            if not 0 <= length <= limit:
                raise FrameTooLarge(f"a frame of {length} bytes (limit {limit}, nettyMaxFrameSizeBytes)")
            stop = start + length
            if stop > end:
                self._missing_bytes = stop - end
                break
            frames.append(view[start:stop])
            at = stop
        if at < end:
            self._parts.append(data[at:] if at else data)
            self.held_bytes = end - at
        return frames
