"""Messages of one size, copied out of their batches into one column without a copy in between. No IO.

    batch    │size│metadata│ value │size│metadata│ value │ …       heads of one length: equal distances
    column   │ value │ value │ …

Arrow's `take` asks for each value where it stands, and needs all batches joined before. Values of one size behind heads
of one length stand at equal distances, so numpy copies all of them in one step.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from connectors.spark.batches.borders import RUN_MIN, Numbers
from magnetar_core.runtime.types import Buffer

_SIZE_BYTES: Final = 4


class Run(NamedTuple):
    """Messages of one batch that follow each other, with heads (size and metadata) and values of one length each."""

    data: Buffer
    start: int
    """The place of the first head in *data*."""
    messages: int
    head_bytes: int
    value_bytes: int

    def metadata(self) -> Numbers:
        """The metadata, a row each."""
        return self._rows(self.start + _SIZE_BYTES, self.head_bytes - _SIZE_BYTES)

    def values(self) -> Numbers:
        """The values, a row each."""
        return self._rows(self.start + self.head_bytes, self.value_bytes)

    def _rows(self, start: int, length: int) -> Numbers:
        stride = self.head_bytes + self.value_bytes
        return np.ndarray((self.messages, length), np.uint8, self.data, start, (stride, 1))


def runs(batches: Iterable[tuple[Buffer, Numbers]]) -> list[Run]:
    """All messages of *batches* with their borders (`connectors.spark.batches.borders`), if their values have one
    size and there are not many runs; otherwise nothing."""
    all_runs: list[Run] = []
    value_bytes = count = 0
    for data, borders in batches:
        starts, ends = borders[::2], borders[1::2]
        if not count:
            value_bytes = int(ends[0] - starts[0])
        count += len(starts)
        if not value_bytes or (ends - starts != value_bytes).any():
            return []
        heads = starts.copy()
        heads[1:] -= ends[:-1]
        changes = np.flatnonzero(heads[1:] != heads[:-1]) + 1
        if (len(all_runs) + len(changes) + 1) * RUN_MIN > count:
            return []
        firsts = [0, *changes.tolist(), len(starts)]
        for first, behind in pairwise(firsts):
            head = int(heads[first])
            all_runs.append(Run(data, int(starts[first]) - head, behind - first, head, value_bytes))
    return all_runs


def values(all_runs: Sequence[Run]) -> pa.BinaryArray:
    """The column of the values of *all_runs*, at least one."""
    count, size = sum(run.messages for run in all_runs), all_runs[0].value_bytes
    buffer = pa.allocate_buffer(count * size)
    rows = np.frombuffer(buffer, np.uint8).reshape(count, size)
    at = 0
    for run in all_runs:
        rows[at : at + run.messages] = run.values()
        at += run.messages
    offsets = np.arange(count + 1, dtype=np.int32) * np.int32(size)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), buffer])


class JoinedMetadata(NamedTuple):
    """The metadata of messages one behind the other, and where those of each start and end."""

    data: bytes
    starts: Numbers
    ends: Numbers


def joined_metadata(all_runs: Sequence[Run], padding: bytes) -> JoinedMetadata:
    """The metadata of all messages, with *padding* behind them."""
    sizes = np.repeat([run.head_bytes - _SIZE_BYTES for run in all_runs], [run.messages for run in all_runs])
    ends = np.cumsum(sizes)
    return JoinedMetadata(b"".join((*(run.metadata().tobytes() for run in all_runs), padding)), ends - sizes, ends)


def may_hold(all_runs: Sequence[Run], pairs: Sequence[bytes]) -> bool:
    """Whether one of *pairs*, two bytes each, may stand in some metadata. False is certain."""
    wanted = np.frombuffer(b"".join(pairs), np.uint16)
    for run in all_runs:
        flat = run.metadata().reshape(-1)
        for first in (0, 1):
            stored = flat[first : first + (len(flat) - first) // 2 * 2].view(np.uint16)
            if any((stored == pair).any() for pair in wanted):
                return True
    return False
