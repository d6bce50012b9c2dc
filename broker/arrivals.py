"""Lookups, and clients that come to topics: how many there are, and whose turn it is.

Each may make a topic, a subscription, a name: milliseconds of the loop. Whoever asks for many thousands does not keep
others waiting until all of these are there.

Rules:

1. So many are worked on at once: of clients that come to topics `AT_ONCE`, of lookups `LOOKUPS_AT_ONCE`. The others
   wait, and each source in turn has one: a source is a role, or a connection where nobody is authenticated. So who
   comes with one waits for as many as there are sources, not for all that others have asked for.
2. A turn ends with the work, or after a time: what waits for a bookie that is gone, or for the session of a dead
   broker, keeps nobody waiting. Lookups are those that wait for sessions.
3. Nothing is refused.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.turns import Turns

# As many as there are topics that are opened at the same time (`broker.broker.OPENED_AT_ONCE`). After a takeover
# thousands come to topics that are being opened, and those that somebody waits for are opened first: of one that waits
# here nobody knows that.
AT_ONCE: Final = 1_000
TURN_S: Final = 0.2

# A lookup mostly takes a part of a millisecond.
LOOKUPS_AT_ONCE: Final = 1_000
LOOKUP_TURN_S: Final = 0.05


class _Source:
    __slots__ = ("count", "round")

    def __init__(self) -> None:
        self.count = 0
        """Arrivals that have no answer yet."""
        self.round = 0
        """In which round the last of them is."""


class _Queue:
    """Arrivals of one kind."""

    def __init__(self, at_once: int, turn_s: float, clock: Clock) -> None:
        self.turns = Turns(at_once, turn_s, clock)
        self.sources: dict[Hashable, _Source] = {}
        self._round = 0

    @asynccontextmanager
    async def turn(self, source: Hashable) -> AsyncIterator[None]:
        of = self.sources.get(source)
        if of is None:
            of = self.sources[source] = _Source()
        of.count += 1
        number = of.round = max(of.round, self._round) + 1
        try:
            async with self.turns.turn(object(), (number,)):
                self._round = max(self._round, number - 1)
                yield
        finally:
            of.count -= 1
            if not of.count:
                del self.sources[source]


class Arrivals:
    """The arrivals of all connections of a broker, which have no answer yet."""

    def __init__(self, clock: Clock) -> None:
        self.total = 0
        self.comers = _Queue(AT_ONCE, TURN_S, clock)
        self.lookups = _Queue(LOOKUPS_AT_ONCE, LOOKUP_TURN_S, clock)

    @property
    def waiting(self) -> int:
        """For their turn."""
        return self.comers.turns.waiting + self.lookups.turns.waiting

    def turn(self, source: Hashable, *, looks_up: bool = False) -> AbstractAsyncContextManager[None]:
        """Wait for the turn of *source*, which the body has (rule 1)."""
        return (self.lookups if looks_up else self.comers).turn(source)
