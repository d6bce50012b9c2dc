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

from magnetar_core.runtime.types import KIB, MIB, Allocate, MagnetarError

# The limit of Pulsar's bookies and brokers: 5 MiB for a message plus 10 KiB for the headers around it. Both sides must
# have the same limit, since a receiver closes the connection without an answer.
MAX_FRAME_BYTES: Final = 5_253_120

# Where it is set, it is set to less: brokers take messages of 1 GiB at most, and what stands around one has 1 MiB.
LARGEST_FRAME_BYTES_MAX: Final = 1025 * MIB

LENGTH: Final = struct.Struct(">i")


class MalformedFrame(MagnetarError):
    """The peer sent bytes that the protocol does not allow; the connection cannot go on."""


class FrameTooLarge(MalformedFrame):
    """A frame announces more bytes than the limit (or fewer than none)."""


class FrameSplitter:
    """Takes the chunks of one connection and returns the payloads of whole frames.

    After `feed` raised FrameTooLarge the stream cannot be read any further.
    """

    __slots__ = ("_missing_bytes", "_parts", "held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        """The limit of a frame's payload, from the next chunk on."""
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

    @property
    def missing_bytes(self) -> int:
        """Bytes to the end of the frame of which something is held; 0 between frames."""
        return self._missing_bytes if self._parts else 0

    def give_up_held(self) -> list[bytes]:
        """The chunks of the frame that is not complete yet, length word included: the caller gathers the rest."""
        parts, self._parts, self.held_bytes = self._parts, [], 0
        return parts

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
        limit = self.limit_bytes
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


class FrameReceiver:
    """As FrameSplitter, for a socket that receives into a given buffer (`asyncio.BufferedProtocol`).

    A large frame is received into room of its own, not in pieces that are joined: that saves a pass over its bytes.
    """

    LARGE_BYTES = 128 * KIB
    """A frame that lacks so many bytes gets room of its own. To copy fewer bytes once more costs less than to ask for
    room."""
    CHUNK_BYTES = 256 * KIB
    """The most that is received at once of other frames: as much as asyncio does."""
    FIRST_BYTES = 4 * KIB
    """The most that is received at once after a large frame. Mostly another one follows, and little of it is copied."""

    __slots__ = ("_allocate", "_at", "_chunk", "_large", "_size", "_splitter")

    def __init__(
        self, limit_bytes: int = MAX_FRAME_BYTES, allocate: Allocate = bytearray, chunk: memoryview | None = None
    ) -> None:
        """*chunk*: CHUNK_BYTES to receive into, which the receivers of one event loop may share: what is in it is
        copied when it is taken."""
        self._splitter = FrameSplitter(limit_bytes)
        self._allocate = allocate
        self._chunk = memoryview(bytearray(self.CHUNK_BYTES)) if chunk is None else chunk
        self._size = self.CHUNK_BYTES
        self._large: memoryview | None = None
        self._at = 0

    @property
    def room(self) -> memoryview:
        """Where the next bytes go; not empty."""
        large = self._large
        return self._chunk[: self._size] if large is None else large[self._at :]

    @property
    def missing_bytes(self) -> int:
        """Bytes to the end of a large frame; 0 if none is under way."""
        return 0 if self._large is None else len(self._large) - self._at

    def took(self, count: int) -> list[memoryview]:
        """*count* bytes were written to `room`: the payloads that they complete. Raises FrameTooLarge."""
        large = self._large
        if large is not None:
            self._at += count
            if self._at < len(large):
                return []
            self._large = None
            self._size = self.FIRST_BYTES
            return [large]
        frames = self._splitter.feed(bytes(self._chunk[:count]))
        if self._splitter.missing_bytes >= self.LARGE_BYTES:
            self._begin_large()
        elif count == self._size:
            self._size = self.CHUNK_BYTES
        return frames

    def _begin_large(self) -> None:
        missing = self._splitter.missing_bytes
        held = b"".join(self._splitter.give_up_held())
        size = len(held) + missing - LENGTH.size
        self._large = memoryview(self._allocate(size))
        self._at = size - missing
        self._large[: self._at] = held[LENGTH.size :]
