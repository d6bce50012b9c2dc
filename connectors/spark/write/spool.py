"""Rows of a task that wait, for all of its topic partitions: in memory, or in one temporary file.

    Spool of partition 0 ── in the file: (offset, rows), (offset, rows) ── in memory: rows ──▶ append
    Spool of partition 1 ── …                                                                     │
                     one file, written at its end only ◀──────────────────────────── spill ───────┘

The place in the file is given back when none of the spools has rows in it.
"""

import pickle
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO

from connectors.spark.write.message import Outgoing, size_of


class SpillFile:
    """One temporary file, which is made when it is needed first."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._pieces = 0
        """Pieces that are still needed."""

    def write(self, messages: list[Outgoing]) -> int:
        """Returns the offset. Raises OSError."""
        if self._file is None:
            self._file = TemporaryFile(prefix="magnetar-rows-")  # noqa: SIM115 (closed by `close`)
        offset = self._file.seek(0, 2)
        for message in messages:
            pickle.dump(tuple(message), self._file, pickle.HIGHEST_PROTOCOL)
        self._pieces += 1
        return offset

    def read(self, offset: int, count: int) -> Iterator[Outgoing]:
        """Raises OSError."""
        assert self._file is not None, "nothing was written"
        for _ in range(count):
            self._file.seek(offset)
            outgoing = Outgoing(*pickle.load(self._file))
            offset = self._file.tell()
            yield outgoing

    def drop(self, pieces: int) -> None:
        """Give back so many pieces, which are not needed any more."""
        self._pieces -= pieces
        assert self._pieces >= 0
        if not self._pieces and self._file is not None:
            self._file.truncate(0)

    @property
    def size_bytes(self) -> int:
        return 0 if self._file is None else self._file.seek(0, 2)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Spool:
    """Messages in order. What is in memory can be moved into the file at any time."""

    def __init__(self, file: SpillFile) -> None:
        self._file = file
        self._pieces: list[tuple[int, int]] = []
        """(offset, rows)."""
        self._rows: list[Outgoing] = []
        self.memory_bytes = 0

    def append(self, message: Outgoing) -> None:
        self._rows.append(message)
        self.memory_bytes += size_of(message)

    def spill(self) -> None:
        """Raises OSError."""
        if not self._rows:
            return
        *before, last = self._rows
        if before:
            self._pieces.append((self._file.write(before), len(before)))
        self._pieces.append((self._file.write([last]), 1))  # a piece of its own: `last` finds it
        self._rows, self.memory_bytes = [], 0

    @property
    def last(self) -> Outgoing | None:
        """The last message; None: there are none."""
        if self._rows:
            return self._rows[-1]
        if not self._pieces:
            return None
        return next(self._file.read(self._pieces[-1][0], 1))

    def clear(self) -> None:
        self._file.drop(len(self._pieces))
        self._pieces, self._rows, self.memory_bytes = [], [], 0

    def __iter__(self) -> Iterator[Outgoing]:
        for offset, count in self._pieces:
            yield from self._file.read(offset, count)
        yield from self._rows
