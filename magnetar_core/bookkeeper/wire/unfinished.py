"""Frames that have begun and are not whole yet, of all connections of a port together. No IO; the clock is given.

    on_held ──▶ counted ──▶ on_held(0): whole
        └─ no room ──▶ waits: the socket is not read ──turn, or room──▶ read on

Rules:

1. A frame counts when `COUNTED_BYTES` of it have come: less is a small request that a chunk has cut. Then its whole
   length counts, before there is room for it. While all have the limit, a connection that brings a part of one more is
   not read.
2. One of the connections that wait is read nevertheless, the one with the shortest frame first. The next one
   follows when its frame is whole, and after `TURN_S`: so whoever sends its frame makes progress, however many others
   hold parts of theirs.
3. A frame of which nothing comes for `STILL_S` ends its connection. While others wait, so does one that has been under
   way for `SLOW_S`, the oldest first, until there is room. Only the time in which the socket is read counts.
"""

from collections.abc import Callable
from typing import Final, Protocol

from magnetar_core.runtime.types import KIB, Cancellable

COUNTED_BYTES: Final = 64 * KIB

# The largest frame by default is 5 MiB: a link of 1 MB a second brings it in so much time.
SLOW_S: Final = 5.0
STILL_S: Final = 30.0
TURN_S: Final = 0.25

# How often frames are looked at, while there are any that count.
LOOK_S: Final = 0.25


class Sender(Protocol):
    """A connection whose frame is not whole."""

    @property
    def is_read(self) -> bool:
        """Whether its socket is read now."""
        ...

    def wait_for_room(self) -> None:
        """Read its socket no more, until `go_on_with_frame`."""
        ...

    def go_on_with_frame(self) -> None: ...

    def end_frame(self, problem: str) -> None:
        """The frame will not be waited for: end the connection."""
        ...


class _Frame:
    __slots__ = ("began_s", "bytes", "moved_s")

    def __init__(self, size_bytes: int, now_s: float) -> None:
        self.bytes = size_bytes
        """Its size when it will be whole."""
        self.began_s = self.moved_s = now_s


class Unfinished:
    """The frames of one port, oldest first."""

    def __init__(
        self,
        limit_bytes: int | None,
        now_s: Callable[[], float],
        later: Callable[[float, Callable[[], None]], Cancellable],
        *,
        is_crowded: Callable[[], bool] | None = None,
    ) -> None:
        """*limit_bytes* None: somebody else counts them, lets connections wait, and says when any do (*is_crowded*)."""
        self.limit_bytes = limit_bytes
        self.bytes = 0
        """Size of all frames that count, when they will be whole; also of those that wait for room."""
        self.ended = 0
        """Connections that were ended by rule 3."""
        self._now_s = now_s
        self._later = later
        self._is_crowded = is_crowded or (lambda: bool(self._waiting))
        self._frames: dict[Sender, _Frame] = {}
        self._waiting: dict[Sender, None] = {}
        self._waiting_bytes = 0
        self._turn: Sender | None = None
        self._turn_began_s = 0.0
        self._timer: Cancellable | None = None

    def on_held(self, sender: Sender, held_bytes: int, missing_bytes: int, *, is_new: bool) -> None:
        """*sender* has brought *held_bytes* of a frame that lacks *missing_bytes* (0 and 0: nothing is held), and of
        which it had brought nothing before if it *is_new*."""
        if held_bytes < COUNTED_BYTES or is_new:
            self.forget(sender)
            if held_bytes < COUNTED_BYTES:
                return
        now_s = self._now_s()
        frame = self._frames.get(sender)
        if frame is not None:
            frame.moved_s = now_s
            return
        self._frames[sender] = _Frame(held_bytes + missing_bytes, now_s)
        self.bytes += held_bytes + missing_bytes
        if self._timer is None:
            self._timer = self._later(LOOK_S, self._sweep)
        if self.limit_bytes is None or self.bytes <= self.limit_bytes:
            return
        if self._turn is None and not self._waiting:  # rule 2
            self._turn, self._turn_began_s = sender, now_s
        else:
            self._waiting[sender] = None
            self._waiting_bytes += held_bytes + missing_bytes
            sender.wait_for_room()

    def forget(self, sender: Sender) -> None:
        """The frame of *sender* is whole, or its connection is gone."""
        if sender not in self._frames:
            return
        self._leave_queue(sender)
        self.bytes -= self._frames.pop(sender).bytes
        assert 0 <= self._waiting_bytes <= self.bytes, "more was given back than was taken"
        if sender is self._turn:
            self._turn = None
        if self._waiting:
            self._resume()

    def _resume(self) -> None:
        if self.limit_bytes is None:
            return
        while self._waiting:
            sender = min(self._waiting, key=lambda waiting: self._frames[waiting].bytes)
            size_bytes = self._frames[sender].bytes
            if self.bytes - self._waiting_bytes + size_bytes > self.limit_bytes:
                if self._turn is not None:
                    return
                self._turn, self._turn_began_s = sender, self._now_s()
            self._leave_queue(sender)

    def _leave_queue(self, sender: Sender) -> None:
        if sender in self._waiting:
            del self._waiting[sender]
            self._waiting_bytes -= self._frames[sender].bytes
            sender.go_on_with_frame()

    def _sweep(self) -> None:
        """Rule 3, and the next turn."""
        self._timer = None
        now_s = self._now_s()
        for sender, frame in list(self._frames.items()):
            if not sender.is_read:
                frame.began_s = frame.moved_s = now_s
            elif now_s - frame.moved_s >= STILL_S:
                self._end(sender, f"nothing came for {STILL_S:.0f} s")
        for sender, frame in list(self._frames.items()):
            if not self._is_crowded():
                break
            if now_s - frame.began_s >= SLOW_S:
                self._end(sender, f"it has been under way for {now_s - frame.began_s:.0f} s, and others wait for room")
        if self._turn is not None and now_s - self._turn_began_s >= TURN_S:
            self._turn = None
        self._resume()
        if self._frames and self._timer is None:
            self._timer = self._later(LOOK_S, self._sweep)

    def _end(self, sender: Sender, why: str) -> None:
        if sender in self._frames:
            size_bytes = self._frames[sender].bytes
            self.ended += 1
            self.forget(sender)
            sender.end_frame(f"a frame of {size_bytes} bytes is not whole: {why}")
