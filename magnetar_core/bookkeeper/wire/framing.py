"""Cutting a byte stream into frames.

    ┌────────────┬──────────────────┐
    │ length (4) │ payload (length) │   big-endian, signed; the length does not count itself
    └────────────┴──────────────────┘

Rules:

1. A payload is handed out once, whole, in order; it is a view of bytes that nobody changes.
2. What is wrong with the length is known from the length alone: nothing is gathered for a frame that
   will be refused.
"""

import struct
from typing import Final

from magnetar_core.runtime.types import MagnetarError

# Pulsar's bookies and brokers: 5 MiB for a message plus 10 KiB for what stands around it. Both sides must
# agree, since the receiver closes the connection without a word.
MAX_FRAME_BYTES: Final = 5_253_120

LENGTH: Final = struct.Struct(">i")


class MalformedFrame(MagnetarError):
    """The peer sent bytes that the protocol does not allow; the connection cannot go on."""


class FrameTooLarge(MalformedFrame):
    """A frame announces more bytes than the limit (or fewer than none)."""


class FrameSplitter:
    """Gets the chunks of one connection, gives the payloads of the frames that are whole.

    Raises FrameTooLarge from `feed`; the stream cannot be read any further then.
    """

    __slots__ = ("_limit_bytes", "_missing_bytes", "_parts", "held_bytes")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self._limit_bytes = limit_bytes
        # Chunks of a frame that is not whole yet. They are joined once, when it is: joining on every
        # chunk would cost O(n²) for a large frame.
        self._parts: list[bytes] = []
        # Bytes until the next decision: to the end of the frame, or of its length word.
        self._missing_bytes = 0
        self.held_bytes = 0
        """Bytes kept of a frame that is not whole yet."""

    @property
    def is_between_frames(self) -> bool:
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
