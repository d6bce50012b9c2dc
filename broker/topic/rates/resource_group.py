"""What the topics of one resource group share on this broker: a budget for publishing, one for dispatching. No IO.

    publish ──▶ count_published ──▶ how long the client is held, as by the rate of a topic
    pump ──▶ may_dispatch ──▶ reserve ──read──▶ settle          without room: wait in a queue, resumed in order

Rules:

1. Each broker keeps the rates of a group by itself, as Apache's brokers do without a usage transport.
2. Nothing is refused or dropped: what is published is counted whole, and its client waits until nothing is owed.
3. Subscriptions without room wait in one queue and are resumed from its head, each for one read; one that comes while
   others wait goes to the end. So no subscription is passed over, and there is one timer however many wait.
4. What is read is spent before the read and settled after it: storage takes its time, and all subscriptions would read
   the same room meanwhile.
5. A topic that leaves its group is free at once, and so are all topics of a group that is deleted.
"""

import math
from collections.abc import Callable, Hashable
from typing import Final

from broker.settings.quotas import NO_GROUP_RATES, GroupRates
from broker.topic.rates.throttling import DispatchThrottle, PublishThrottle
from magnetar_core.runtime.types import Cancellable

# Subscriptions that are resumed in one turn of the loop; each reads at most once, some 100 entries.
RESUMED_AT_ONCE: Final = 16

# A timer runs no earlier: the rest of the loop has its turn between two steps.
STEP_MS: Final = 1

_NOT_PUBLISHED: Final = (0.0, 0.0)


class ResourceGroup:
    """A resource group as this broker keeps it."""

    __slots__ = (
        "_dispatches",
        "_is_resuming",
        "_later",
        "_now_ms",
        "_publishes",
        "_timer",
        "_turn",
        "_waiting",
        "dispatched_bytes",
        "dispatched_messages",
        "name",
        "published_bytes",
        "published_messages",
        "rates",
        "updates",
    )

    def __init__(
        self, name: str, now_ms: Callable[[], int], later: Callable[[float, Callable[[], None]], Cancellable]
    ) -> None:
        """*now_ms* is the wall clock; *later* calls a function after a number of milliseconds. What resumes
        those that wait must not raise."""
        self.name = name
        self.rates = NO_GROUP_RATES
        self.updates = 0
        """How often its rates were changed since this broker has known it."""
        self.published_messages = 0
        self.published_bytes = 0
        self.dispatched_messages = 0
        self.dispatched_bytes = 0
        self._publishes = PublishThrottle()
        self._dispatches = DispatchThrottle()
        self._now_ms = now_ms
        self._later = later
        self._waiting: dict[Hashable, Callable[[], None]] = {}
        self._turn: Hashable | None = None
        self._timer: Cancellable | None = None
        self._is_resuming = False

    def use(self, rates: GroupRates) -> None:
        """These rates hold from now on."""
        now_ms = self._now_ms()
        self.rates = rates
        self._publishes.use(rates.publish, now_ms)
        self._dispatches.use(rates.dispatch, _NOT_PUBLISHED, now_ms)
        self._set_timer()

    # -------------------------------------------------------------------------------- publishing

    def count_published(self, messages: int, size_bytes: int) -> float:
        """So much was published to one of its topics. Returns for how many milliseconds the sender shall wait."""
        self.published_messages += messages
        self.published_bytes += size_bytes
        return self._publishes.spend(messages, size_bytes, self._now_ms())

    def publish_room(self) -> tuple[float, float]:
        """(messages, bytes) that may be published to its topics before somebody has to wait."""
        return self._publishes.room(self._now_ms())

    def publish_wait_ms(self, now_ms: int) -> float:
        """How long nothing may be published to its topics."""
        return self._publishes.wait_ms(now_ms)

    # -------------------------------------------------------------------------------- dispatching

    @property
    def limits_dispatch(self) -> bool:
        return self._dispatches.is_on

    def may_dispatch(self, waiter: Hashable, resume: Callable[[], None]) -> bool:
        """Whether *waiter* may read now; if not, *resume* is called when it is its turn (rule 3)."""
        if waiter in self._waiting:
            return False
        is_its_turn, self._turn = waiter is self._turn, None
        if (is_its_turn or not self._waiting) and self._dispatches.wait_ms(self._now_ms()) <= 0:
            return True
        self._waiting[waiter] = resume
        if self._timer is None:
            self._set_timer()
        return False

    def room(self) -> tuple[int | None, int | None]:
        """(messages, bytes) that may be dispatched now; None: any number."""
        return self._dispatches.room(self._now_ms())

    def reserve(self, messages: int, size_bytes: int) -> None:
        """At most so much is being read to be dispatched (rule 4)."""
        self._dispatches.spend(messages, size_bytes, self._now_ms())

    def settle(self, reserved: tuple[int, int], messages: int, size_bytes: int) -> None:
        """Of what was *reserved*, so many messages and bytes were dispatched."""
        self._dispatches.spend(messages - reserved[0], size_bytes - reserved[1], self._now_ms())
        if messages < reserved[0] or size_bytes < reserved[1]:  # those that wait may go on earlier
            self._set_timer()

    def count_dispatched(self, messages: int, size_bytes: int) -> None:
        """So much went to consumers of its topics, whether its rates hold for them or not."""
        self.dispatched_messages += messages
        self.dispatched_bytes += size_bytes

    # -------------------------------------------------------------------------------- the queue

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    def is_waiting(self, waiter: Hashable) -> bool:
        return waiter in self._waiting

    def forget(self, waiter: Hashable) -> None:
        """*waiter* does not wait any more."""
        self._waiting.pop(waiter, None)

    def _resume(self) -> None:
        """Let those that wait go on, one after the other, as long as the group has something left."""
        self._timer = None
        self._is_resuming = True
        count = 0
        while self._waiting and count < RESUMED_AT_ONCE and self._dispatches.wait_ms(self._now_ms()) <= 0:
            count += 1
            waiter = next(iter(self._waiting))
            resume = self._waiting.pop(waiter)
            self._turn = waiter
            resume()
            self._turn = None
        self._is_resuming = False
        self._set_timer()

    def _set_timer(self) -> None:
        """Resume those that wait when there is room; one timer, set anew when that changes."""
        if self._is_resuming:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            wait_ms = math.ceil(self._dispatches.wait_ms(self._now_ms()))
            self._timer = self._later(max(wait_ms, STEP_MS), self._resume)


class Membership:
    """The resource group that a topic is in. Clients that publish too fast are held by it (`throttling.PublishHold`),
    not by the group, so that they go on as soon as the topic leaves (rule 5)."""

    __slots__ = ("group",)

    def __init__(self) -> None:
        self.group: ResourceGroup | None = None

    def wait_ms(self, now_ms: int) -> float:
        """How long nothing may be published to the topic because of its group."""
        return 0.0 if self.group is None else self.group.publish_wait_ms(now_ms)
