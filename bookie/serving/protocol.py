"""The interface between a connection and the protocols on it. No IO.

`Connection` passes frames in and takes answers; `ProtocolV2` and `ProtocolV3` turn frames into answers. A protocol
knows its connection only as a `Peer`, a connection knows its protocol only as a `WireProtocol`.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar_core.runtime.types import Buffer

# Reasons why frames of a connection wait; bits of `Peer.held_for`.
ADDS_IN_FLIGHT: Final = 1
CACHE_FULL: Final = 2
SLOW_PEER: Final = 4
READS_IN_FLIGHT: Final = 8
ALL_ADDS: Final = 16
ALL_READS: Final = 32
UNFINISHED_FRAME: Final = 256
RECOVERY_TURN: Final = 128
CLOSED: Final = 64
"""Never taken back."""

AUTH_DISABLED: Final = "AuthDisabledPlugin"
"""The answer to an authentication that was not demanded: the client may continue."""

Answer = Callable[[bytes | int], None]
"""Takes the entry that was read, or the refusal (a number of the second protocol)."""


class Peer(Protocol):
    """A connection, as the parts that process its requests see it."""

    held_for: int
    """The reasons why its frames wait; 0: they do not."""

    def send(self, answer: Buffer) -> None:
        """Send an answer. All answers of one turn of the loop leave in one write."""

    def hold(self, reason: int) -> None:
        """Process no more frames until `go_on` with the same reason."""

    def go_on(self, reason: int) -> None:
        """*reason* to hold the connection is over."""

    def abort(self) -> None:
        """End the connection at once."""


class WireProtocol(Protocol):
    """One of the two protocols, for one connection."""

    def on_frames(self, frames: Sequence[memoryview], at: int) -> int:
        """Process *frames* from index *at* on, while they belong to this protocol and the peer is not held.

        Returns the index of the first frame that was not processed. Raises MalformedFrame, which ends the connection.
        """

    def close(self) -> None:
        """The connection is gone."""
