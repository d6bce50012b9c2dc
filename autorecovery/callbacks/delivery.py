"""Delivery: the auditor hands events out to callbacks, and sends each until the receiver has confirmed it.

    events ──hand out──▶ pending of each callback ──▶ one lane a bookie ──POST──▶ 2xx ──▶ log, no longer pending
                                                          ▲                └──▶ else log, wait ──┐
                                                          └──────────────────────────────────────┘

Rules (beside those of `callback_rules` and `callback_registry`):

1. What is to be sent follows from the metadata store, so the next auditor goes on where this one ended. An event whose
   answer came and was not stored before this node died is sent again, with the same id: at least once.
2. A callback whose receiver hangs keeps no other callback waiting: each has its own few requests at a time.
3. While this runs and the store is away, an event that was confirmed is not sent again; only storing that is repeated.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from autorecovery.callbacks import rules
from autorecovery.callbacks.registry import CallbackRegistry, NoSuchCallback, Pending, Registered
from autorecovery.callbacks.rules import Callback, Line, Outcome
from magnetar_core.bookkeeper.metadata.bookies import lifecycle_events
from magnetar_core.bookkeeper.metadata.bookies.lifecycle_events import Event, EventKind
from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError, VersionConflict
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import Bell, Tasks, report_failure
from magnetar_core.runtime.types import Corruption, MagnetarError

log = logging.getLogger(__name__)

# Without any hint, events and callbacks are looked at again after this.
_LOOK_S: Final = 30.0

# The metadata store is away: time until the next try.
_RETRY_S: Final = 1.0

# Requests to one callback that are under way. Receivers are small programs; a drain makes few events a minute.
_REQUESTS_AT_ONCE: Final = 4


class CannotPost(MagnetarError):
    """There was no answer; the text says why."""


class Answer(NamedTuple):
    """What a receiver said."""

    status: int
    text: str
    """The beginning of its body."""


class Poster(Protocol):
    """Sends requests to receivers."""

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Raises CannotPost, also where no answer comes within some seconds. Follows no redirect."""
        ...

    async def close(self) -> None: ...


@dataclass(slots=True)
class DeliveryCounts:
    """What was done since the node became auditor."""

    delivered: int = 0
    failed: int = 0
    """Attempts that were not confirmed."""
    given_up: int = 0
    """Events that were given up, dropped ones included."""


@dataclass(slots=True)
class _Lane:
    """Events of one bookie for one callback, in their order (rule 3 of `callback_rules`)."""

    events: deque[str] = field(default_factory=deque)
    failures: int = 0
    """Attempts in a row at the first of them."""
    confirmed: Line | None = None
    """The first of them was confirmed, and that is not stored yet (rule 3)."""


class CallbackDelivery:
    """All deliveries of a cluster; run by the auditor. Used on the loop."""

    def __init__(self, registry: CallbackRegistry, poster: Poster, clock: Clock, rng: random.Random) -> None:
        self._registry = registry
        self._poster = poster
        self._clock = clock
        self._rng = rng
        self._tasks = Tasks("callbacks")
        self._cancels: list[Cancel] = []
        self._watches: dict[str, Cancel] = {}
        self._slots: dict[str, asyncio.Semaphore] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._known: dict[str, set[str]] = {}
        self._woken = Bell()
        self._is_called = False
        self._touched: set[str] = set()
        """Callbacks for which other events may wait than before."""
        self.counts = DeliveryCounts()

    def start(self, on_failure: Callable[[BaseException], None]) -> None:
        self._tasks.on_failure = on_failure
        self._cancels = [self._registry.watch_events(self._wake), self._registry.watch_callbacks(self._wake)]
        self._tasks.spawn(self._run(), "run")

    async def stop(self) -> None:
        """End; what was not confirmed stays for the next auditor."""
        for cancel in (*self._cancels, *self._watches.values()):
            cancel()
        self._cancels.clear()
        self._watches.clear()
        await self._tasks.cancel()
        await self._poster.close()

    def facts(self) -> dict[str, Any]:
        """What is reported about the deliveries, as values of JSON."""
        counts = self.counts
        return {
            "delivered": counts.delivered,
            "failed": counts.failed,
            "given_up": counts.given_up,
            "waiting": sum(len(lane.events) for lane in self._lanes.values()),
        }

    def _wake(self) -> None:
        self._is_called = True
        self._woken.ring()

    def _touch(self, callback_id: str) -> None:
        self._touched.add(callback_id)
        self._woken.ring()

    # ------------------------------------------------------------------------------ what is to be sent

    async def _run(self) -> None:
        is_due = True
        while True:
            try:
                if is_due:
                    self._is_called = False
                    self._touched.clear()
                    await self._hand_out()
                # Each delivery comes by here: it costs one request, and not one for each callback.
                while self._touched:
                    await self._begin(self._touched.pop())
            except MetadataError as error:
                if not isinstance(error, VersionConflict):
                    log.warning("callbacks are looked at again in %g s: %s", _RETRY_S, error)
                await self._clock.sleep(_RETRY_S)
                is_due = True
                continue
            is_hinted = await self._woken.until(lambda: self._is_called or bool(self._touched), self._clock, _LOOK_S)
            is_due = self._is_called or not is_hinted

    async def _hand_out(self) -> None:
        """Hand out what is new, and begin to send what waits. Raises MetadataError."""
        events = await self._registry.events()
        callbacks = await self._registry.all()  # after the events: see `hand_out`
        self._follow(callbacks)
        dropped = rules.in_excess(events, rules.EVENTS_MAX)
        if dropped:
            log.error("%d events are more than %d: the oldest are dropped", len(events), rules.EVENTS_MAX)
        for event_id in dropped:
            await self._registry.drop_event(event_id)
            self.counts.given_up += 1
        for event_id in events[len(dropped) :]:
            await self._registry.hand_out(event_id, callbacks, self._clock.wall_ms())
        for registered in callbacks:
            await self._begin(registered.callback.id)

    def _follow(self, callbacks: list[Registered]) -> None:
        """Watch what waits for each callback: other nodes may add tests."""
        ids = {registered.callback.id for registered in callbacks}
        for gone in self._watches.keys() - ids:
            self._watches.pop(gone)()
            self._known.pop(gone, None)
            self._slots.pop(gone, None)
        for new in ids - self._watches.keys():
            self._watches[new] = self._registry.watch_pending(new, partial(self._touch, new))
            self._slots[new] = asyncio.Semaphore(_REQUESTS_AT_ONCE)

    async def _begin(self, callback_id: str) -> None:
        if callback_id not in self._watches:
            return  # it was removed
        pending = await self._registry.pending(callback_id)
        known = self._known.setdefault(callback_id, set())
        for event_id in rules.in_excess(pending, rules.PENDING_MAX):
            await self._give_up(callback_id, event_id, f"dropped: more than {rules.PENDING_MAX} events waited")
        for event_id in pending:
            if event_id in known:
                continue
            waiting = await self._registry.read_pending(callback_id, event_id)
            if waiting is None:
                continue
            try:
                event = lifecycle_events.decode(waiting.body)
            except Corruption as error:
                await self._give_up(callback_id, event_id, str(error))
                continue
            known.add(event_id)
            key = callback_id, rules.lane_of(event)
            if key in self._lanes:
                self._lanes[key].events.append(event_id)
            else:
                self._lanes[key] = _Lane(deque([event_id]))
                self._tasks.spawn(self._deliver(key, self._lanes[key]), f"{callback_id} {key[1]}")

    async def _give_up(self, callback_id: str, event_id: str, why: str) -> None:
        line = Line(event_id, "", "", Outcome.GIVEN_UP, 0, self._clock.wall_ms(), why[: rules.ANSWER_CHARS_MAX])
        await self._registry.note(callback_id, line)
        log.error("callback %s: event %s is given up: %s", callback_id, event_id, why)
        self.counts.given_up += 1

    # ------------------------------------------------------------------------------------------ sending

    async def _deliver(self, key: tuple[str, str], lane: _Lane) -> None:
        """Send the events of one lane, one after the other, until none is left."""
        callback_id, _ = key
        while lane.events:
            try:
                is_over = await self._attempt(callback_id, lane)
            except Exception as error:  # an error of one callback must not keep the others waiting (I71)
                report_failure(f"callback {callback_id}, event {lane.events[0]},", error)
                await self._clock.sleep(_RETRY_S if isinstance(error, MetadataError) else rules.LONGEST_S)
                continue
            if is_over:
                self._known.get(callback_id, set()).discard(lane.events.popleft())
                lane.failures = 0
                lane.confirmed = None
            else:
                await self._clock.sleep(rules.retry_after_s(lane.failures, self._rng.random()))
        del self._lanes[key]

    async def _attempt(self, callback_id: str, lane: _Lane) -> bool:
        """Send the first event of a lane; whether that event is over. Raises MetadataError, Corruption."""
        event_id = lane.events[0]
        if lane.confirmed is not None:
            await self._registry.note(callback_id, lane.confirmed)
            return True
        try:
            callback = (await self._registry.read(callback_id)).callback
        except NoSuchCallback:
            return True
        pending = await self._registry.read_pending(callback_id, event_id)
        if pending is None:
            return True
        event = lifecycle_events.decode(pending.body)
        if rules.is_too_old(pending.since_ms, self._clock.wall_ms()):
            await self._end(callback_id, lane, event, Outcome.GIVEN_UP, "it waited for seven days")
            return True
        is_delivered, answer = await self._post(callback, event_id, pending)
        if is_delivered:
            self.counts.delivered += 1
            lane.confirmed = self._line(lane, event, Outcome.DELIVERED, answer)
            await self._registry.note(callback_id, lane.confirmed)
            return True
        self.counts.failed += 1
        lane.failures += 1
        if event.kind is EventKind.TEST:
            await self._end(callback_id, lane, event, Outcome.GIVEN_UP, answer)
            return True
        if lane.failures == 1:
            log.warning("callback %s: event %s is not delivered yet: %s", callback_id, event_id, answer)
        await self._registry.note(callback_id, self._line(lane, event, Outcome.WAITS, answer))
        return False

    async def _post(self, callback: Callback, event_id: str, pending: Pending) -> tuple[bool, str]:
        """(whether the receiver has confirmed it, what it said)."""
        slots = self._slots.get(callback.id)
        if slots is None:
            return False, "the callback was removed"
        async with slots:
            headers = rules.headers_of(callback, event_id, pending.body, self._clock.wall_ms())
            try:
                answer = await self._poster.post(callback.url, pending.body, headers)
            except CannotPost as error:
                return False, str(error)
        if rules.is_delivered(answer.status):
            return True, str(answer.status)
        return False, f"{answer.status} {answer.text}".strip()

    async def _end(self, callback_id: str, lane: _Lane, event: Event, outcome: Outcome, answer: str) -> None:
        await self._registry.note(callback_id, self._line(lane, event, outcome, answer))
        log.error("callback %s: event %s is given up: %s", callback_id, event.id, answer)
        self.counts.given_up += 1

    def _line(self, lane: _Lane, event: Event, outcome: Outcome, answer: str) -> Line:
        attempts = lane.failures + (outcome is Outcome.DELIVERED)
        text = " ".join(answer.split())[: rules.ANSWER_CHARS_MAX]
        return Line(event.id, event.bookie, event.after, outcome, attempts, self._clock.wall_ms(), text)
