"""A connection's transport that remembers what is written to it."""

from collections.abc import Sequence
from typing import Any


class NotingTransport:
    """Sizes of the buffers of each write, in order; everything goes on to the real one."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.writes: list[list[int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: Any) -> None:
        self.writes.append([len(data)])
        self._transport.write(data)

    def writelines(self, buffers: Sequence[Any]) -> None:
        self.writes.append([len(buffer) for buffer in buffers])
        self._transport.writelines(buffers)
