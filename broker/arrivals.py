"""Whose turn it is: of clients that look topics up, and of those that make topics and subscriptions.

A topic that is made takes milliseconds of the loop, a subscription one, a lookup a part of one. Whoever asks for many
thousands does not keep others waiting until all of these are there.

Rules:

1. So many are worked on at once: of topics (and partitions) that are made `MADE_AT_ONCE`, of durable subscriptions
   `SUBSCRIBED_AT_ONCE`, of lookups `LOOKUPS_AT_ONCE`. The others wait, and each source in turn has one: a source is a
   role, or a client's address where nobody is authenticated. So a client that makes one waits for as many as there
   are sources, not for all that others make.
2. A turn ends with the work, or after a time: what waits for storage that does not answer, or for the session of a dead
   broker, keeps nobody waiting.
3. Nothing is refused. Topics and subscriptions that are there need no turn: after a takeover thousands of clients come
   to them, and those that somebody waits for are opened first (`Broker._load`).
4. What the broker does by itself needs no turn: others may wait for it.

The doors say for whom the present task works (`work_for`), and whoever makes something waits here (`making`): what
stands between the two knows nothing of sources.
"""

from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.turns import Turns

# A topic takes one or two milliseconds of the loop, and those that are made at once keep everybody else waiting for as
# long as all of them take: with 1,000 at once the messages of a neighbour took ten times as long as with 8, and with 32
# twice as long. But what those made at once ask of the metadata store goes in few requests: two thousand topics of a
# cluster take 9.8 s of processors with 8, 7.7 s with 16 and 7.1 s with 32.
MADE_AT_ONCE: Final = 16
MAKING_TURN_S: Final = 0.1

# A durable subscription takes about a millisecond of the loop, and waits for its node in the metadata store.
SUBSCRIBED_AT_ONCE: Final = 32

# A lookup mostly takes a part of a millisecond.
LOOKUPS_AT_ONCE: Final = 1_000
LOOKUP_TURN_S: Final = 0.05

_SOURCE: Final[ContextVar[Hashable]] = ContextVar("source", default=None)


class _Source:
    __slots__ = ("count", "round")

    def __init__(self) -> None:
        self.count = 0
        """What it asked for and is not done yet."""
        self.round = 0
        """The round of the last of it."""


class _Queue:
    """Work of one kind."""

    def __init__(self, at_once: int, turn_s: float, clock: Clock) -> None:
        self.turns = Turns(at_once, turn_s, clock)
        self.sources: dict[Hashable, _Source] = {}
        self._round = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        source = _SOURCE.get()
        if source is None:  # rule 4
            yield
            return
        state = self.sources.get(source)
        if state is None:
            state = self.sources[source] = _Source()
        state.count += 1
        number = state.round = max(state.round, self._round) + 1
        try:
            async with self.turns.turn(object(), (number,)):
                self._round = max(self._round, number - 1)
                yield
        finally:
            state.count -= 1
            if not state.count:
                del self.sources[source]


class Arrivals:
    """What the clients of a broker ask for, all of them together."""

    def __init__(self, clock: Clock) -> None:
        self.total = 0
        """Lookups, and clients that come to topics, which have no answer yet."""
        self._made = _Queue(MADE_AT_ONCE, MAKING_TURN_S, clock)
        self._subscribed = _Queue(SUBSCRIBED_AT_ONCE, MAKING_TURN_S, clock)
        self._lookups = _Queue(LOOKUPS_AT_ONCE, LOOKUP_TURN_S, clock)

    @property
    def waiting(self) -> int:
        """Those that wait for their turn."""
        return sum(queue.turns.waiting for queue in (self._made, self._subscribed, self._lookups))

    def work_for(self, source: Hashable) -> None:
        """What the present task does from here on is done for *source*; None: for the broker itself."""
        _SOURCE.set(source)

    def making(self) -> AbstractAsyncContextManager[None]:
        """Wait for the turn to make a topic or a partition, which the body does (rule 1)."""
        return self._made.turn()

    def subscribing(self) -> AbstractAsyncContextManager[None]:
        """The same for a durable subscription that is not there."""
        return self._subscribed.turn()

    def looking_up(self) -> AbstractAsyncContextManager[None]:
        """The same for a lookup."""
        return self._lookups.turn()
