"""Whether a ledger is still its writer's, as far as the writer can know. No IO.

A fence stops a writer only as long as a bookie that has it answers. Bookies that lost their disks and came back under
their names know of none, and take the adds of a ledger that was recovered and closed meanwhile. So (I130):

1. An answer counts only over a socket that was there when the ledger's record was last read and said that the ledger is
   this writer's. Whoever recovers the ledger after that reading fences the bookies behind these sockets, or those that
   come after them, whose sockets are new.
2. Until then nothing is acknowledged. What was added meanwhile is not sent again.
3. After a pause the record is read, too, since some bookies forget a fence together with its ledger. That reading may
   be done without: nobody can recover or delete a ledger while the metadata store does not answer, and a store that
   answers others only is rarer than one that stands still.
"""

from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Channel = TypeVar("Channel", bound=Hashable)


class Belief(Generic[Channel]):
    """Of one ledger. A channel is a position of its ensemble with the connection to its bookie; the sockets of a
    connection are counted."""

    __slots__ = ("_is_paused", "_proved", "_unproved")

    def __init__(self, sockets: Mapping[Channel, int]) -> None:
        """*sockets* of a ledger that was just made: each channel's present one."""
        self._proved = dict(sockets)
        self._unproved: dict[Channel, int] = {}
        self._is_paused = False

    @property
    def is_doubted(self) -> bool:
        """Nothing is acknowledged (rule 2)."""
        return self._is_paused or bool(self._unproved)

    def replace(self, former: Channel, channel: Channel) -> None:
        """*channel* takes the position of *former*; none of its sockets is proved."""
        del self._proved[former]
        self._unproved.pop(former, None)
        self._proved[channel] = -1

    def on_answer(self, channel: Channel, socket: int) -> bool:
        """A bookie confirmed entries. True: the record has to be read before that counts."""
        if self._proved.get(channel, socket) >= socket:  # of a channel that was replaced nothing counts at all
            return False
        self._unproved[channel] = socket
        return True

    def on_pause(self) -> None:
        """Entries are appended, the first ones for long (rule 3)."""
        self._is_paused = True

    def on_read(self, sockets: Mapping[Channel, int]) -> None:
        """The record says that the ledger is this writer's. *sockets*: those of each channel before it was read."""
        proved = self._proved
        for channel, socket in sockets.items():
            if channel in proved:
                proved[channel] = socket
        self._unproved = {channel: socket for channel, socket in self._unproved.items() if socket > proved[channel]}
        self._is_paused = False

    def on_silence(self) -> None:
        """The metadata store does not answer; the pause alone is no reason to wait for it (rule 3)."""
        self._is_paused = False
