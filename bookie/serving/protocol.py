"""What a connection and the protocols on it know of each other.

`Connection` brings frames and takes answers; `ProtocolV2` and `ProtocolV3` make the one of the other. They meet only
here: a protocol sees its connection as a `Peer`, a connection sees a protocol as a `WireProtocol`.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from magnetar_core.runtime.types import Buffer

# Why frames of a connection are not worked on; bits of `Peer.held_for`.
ADDS_IN_FLIGHT: Final = 1
CACHE_FULL: Final = 2
SLOW_PEER: Final = 4
READS_IN_FLIGHT: Final = 8
ALL_ADDS: Final = 16
ALL_READS: Final = 32
CLOSED: Final = 64
"""Never taken back."""

AUTH_DISABLED: Final = "AuthDisabledPlugin"
"""The answer to an authentication that nobody asked for: the client may go on."""

Answer = Callable[[bytes | int], None]
"""Takes the entry that was read, or the refusal (a number of the second protocol)."""


class Peer(Protocol):
    """A connection, for what works on its requests."""

    held_for: int
    """Why its frames wait; 0: they are worked on."""

    def send(self, answer: Buffer) -> None:
        """Answer; what is sent within one turn of the loop leaves in one write."""

    def hold(self, reason: int) -> None:
        """Work on no more frames until `go_on` with the same reason."""

    def go_on(self, reason: int) -> None:
        """*reason* to hold the connection is over."""

    def abort(self) -> None:
        """End the connection at once."""


class WireProtocol(Protocol):
    """One of the two protocols, for one connection."""

    def on_frames(self, frames: Sequence[memoryview], at: int) -> int:
        """Work on *frames* from *at* on, as far as they are of this protocol and the peer is not held.

        Returns where it stopped. Raises MalformedFrame, which ends the connection.
        """

    def close(self) -> None:
        """The connection is gone."""
