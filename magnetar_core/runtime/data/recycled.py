"""Room for large byte strings that is used again when nobody looks at it any more.

Memory that a process touches for the first time costs about as much as the copy into it: the system clears each page
when it is touched. So a process that reads for a while takes the same buffers in turn.

Rules:

1. Room is given away again only when no view of it exists: a bytearray refuses to change its length before that.
2. What is kept for ever has a limit in bytes; beyond it room is new each time.
"""

import threading
from typing import Final

from magnetar_core.runtime.types import KIB


def is_free(buffer: bytearray) -> bool:
    """No view of *buffer* exists (rule 1)."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


class RecycledBuffers:
    """Up to *kept_bytes_max* bytes in some buffers. For any thread."""

    STEP_BYTES: Final = 256 * KIB
    """Buffers have multiples of so many bytes, so that frames of about one size share them."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept: list[bytearray] = []
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._kept))

    def allocate(self, size: int) -> memoryview:
        """Room for *size* bytes, whatever is in it. It is taken back when no view of it is left."""
        with self._lock:  # two threads must not find the same buffer free
            return self._allocate(size)

    def _allocate(self, size: int) -> memoryview:
        wanted = -(-size // self.STEP_BYTES) * self.STEP_BYTES
        free = [buffer for buffer in self._kept if is_free(buffer)]
        for buffer in free:
            if wanted <= len(buffer) <= 2 * wanted:
                return memoryview(buffer)[:size]
        memory = bytearray(wanted)
        excess = self.kept_bytes + wanted - self._kept_bytes_max
        if wanted <= self._kept_bytes_max:
            for buffer in free:  # of a size that is not asked for now
                if excess > 0:
                    self._kept.remove(buffer)
                    excess -= len(buffer)
            if excess <= 0:
                self._kept.append(memory)
        return memoryview(memory)[:size]
