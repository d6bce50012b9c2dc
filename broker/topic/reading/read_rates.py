"""The rates at which a subscription is read: of its topic, its own, and of the topic's resource group. No IO, no clock.

    wait_ms ──▶ has_turn ──▶ within ──▶ reserve ──read──▶ spend, or settle if nothing was dispatched

A rate counts messages and a read counts entries: how many messages an entry has is taken from the read before.
"""

import math
from collections.abc import Callable, Hashable

from broker.topic.dispatchers.dispatcher import Read
from broker.topic.rates.resource_group import Membership, ResourceGroup
from broker.topic.rates.throttling import DispatchThrottle


class ReadRates:
    """What the rates allow one subscription."""

    __slots__ = ("_membership", "_messages_per_entry", "_reserved", "of_topic", "own")

    def __init__(self, of_topic: DispatchThrottle, own: DispatchThrottle, membership: Membership) -> None:
        """*membership*: the topic's in a resource group."""
        self.of_topic = of_topic
        self.own = own
        self._membership = membership
        self._messages_per_entry = 1.0
        self._reserved: tuple[ResourceGroup, tuple[int, int]] | None = None
        """What the read that is under way may dispatch, in messages and bytes of the group."""

    @property
    def are_throttled(self) -> bool:
        """Whether the topic or the subscription has a rate."""
        return self.of_topic.is_on or self.own.is_on

    @property
    def are_set(self) -> bool:
        """Whether there is a rate, be it that of the group."""
        return self.are_throttled or self._limiting_group is not None

    @property
    def _limiting_group(self) -> ResourceGroup | None:
        group = self._membership.group
        return group if group is not None and group.limits_dispatch else None

    def wait_ms(self, now_ms: int) -> float:
        """How long nothing may be read."""
        return max(self.of_topic.wait_ms(now_ms), self.own.wait_ms(now_ms))

    def has_turn(self, waiter: Hashable, resume: Callable[[], None]) -> bool:
        """Whether the group lets *waiter* read now; if not, *resume* is called when it is its turn."""
        group = self._limiting_group
        return group is None or group.may_dispatch(waiter, resume)

    def is_waiting(self, waiter: Hashable) -> bool:
        """Whether *waiter* waits for its turn in the group."""
        group = self._membership.group
        return group is not None and group.is_waiting(waiter)

    def forget(self, waiter: Hashable) -> None:
        """*waiter* does not wait any more."""
        if self._membership.group is not None:
            self._membership.group.forget(waiter)

    def within(self, read: Read, now_ms: int) -> Read:
        """*read*, cut to what may be dispatched now; at least one entry."""
        rooms = [self.of_topic.room(now_ms), self.own.room(now_ms)]
        group = self._limiting_group
        if group is not None:
            rooms.append(group.room())
        for messages, size in rooms:
            if messages is not None:
                entries = max(int(messages / self._messages_per_entry), 1)
                read = read._replace(entries_max=min(read.entries_max, entries))
            if size is not None:
                read = read._replace(bytes_max=max(min(read.bytes_max, size), 1))
        return read

    def reserve(self, read: Read) -> None:
        """*read* begins: the group counts what it may dispatch at most."""
        group = self._limiting_group
        if group is not None:
            assert self._reserved is None, "two reads reserve at the same time"
            messages = math.ceil(read.entries_max * self._messages_per_entry)
            self._reserved = group, (messages, read.bytes_max)
            group.reserve(messages, read.bytes_max)

    def spend(self, entries: int, messages: int, size_bytes: int, now_ms: int, *, is_throttled: bool) -> None:
        """So much was dispatched of so many entries that were read; *is_throttled*: the rates of the topic and of the
        subscription held for it."""
        group = self._membership.group
        if group is None and self._reserved is None and not is_throttled:
            return
        if is_throttled:
            self.of_topic.spend(messages, size_bytes, now_ms)
            self.own.spend(messages, size_bytes, now_ms)
        if group is not None:
            group.count_dispatched(messages, size_bytes)
        self.settle(messages, size_bytes)
        if entries and messages:
            self._messages_per_entry = max(messages / entries, 1.0)

    def settle(self, messages: int = 0, size_bytes: int = 0) -> None:
        """So much of what was reserved was dispatched; the rest is free again."""
        if self._reserved is not None:
            (group, reserved), self._reserved = self._reserved, None
            group.settle(reserved, messages, size_bytes)
