"""Messages of a whole broker that were delivered and not acknowledged: at how many Shared subscriptions wait. No IO.

    subscription ── share ──┐
    subscription ── share ──┼──▶ budget     maxUnackedMessagesPerBroker (0: any number)
    subscription ── share ──┘               maxUnackedMessagesPerSubscriptionOnBrokerBlocked, a part of it

Rules (Apache's; its broker looks every 30 s, here each change counts):

1. When the broker has as many as the limit, subscriptions with more than their part of it get nothing more.
2. Meanwhile a subscription that comes above its part gets nothing more, and one that falls below half of it goes on.
3. When the broker has less than half of the limit, all go on.

Only Shared and Key_Shared subscriptions count: others are given their messages in order, by permits alone.
"""

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class UnackedBudget:
    """What all subscriptions of a broker may have unacknowledged."""

    def __init__(self, limit: int = 0, part: float = 0.0) -> None:
        """*limit* 0: any number. *part* of it is what one subscription may have once the limit is reached."""
        self.limit = limit if part > 0 else 0
        self.part_messages = int(limit * part)
        self.unacked = 0
        self.is_blocking = False
        self._shares: dict[UnackedShare, None] = {}
        """Those of subscriptions that have unacknowledged messages, or are blocked; the first to come goes on first."""

    def share(self, resume: Callable[[], None]) -> "UnackedShare":
        """The share of one subscription. *resume* is called when it may go on; it must not deliver within the call."""
        return UnackedShare(self, resume)

    def changed(self, share: "UnackedShare", messages: int) -> None:
        """*share* has so many more."""
        self.unacked += messages
        assert self.unacked >= 0, self.unacked
        if share.unacked or share.is_blocked:
            self._shares[share] = None
        if not self.is_blocking:
            if self.unacked >= self.limit:
                self._block()
        elif self.unacked < self.limit // 2:
            self._unblock()
        elif share.is_blocked:
            if share.unacked < self.part_messages // 2:
                share.unblock()
        elif share.unacked > self.part_messages:
            share.is_blocked = True
        if not share.unacked and not share.is_blocked:
            self._shares.pop(share, None)

    def _block(self) -> None:
        """The broker has too many: stop the subscriptions that have more than their part (rule 1)."""
        self.is_blocking = True
        shares_to_block = [share for share in self._shares if share.unacked > self.part_messages]
        for share in shares_to_block:
            share.is_blocked = True
        log.warning(
            "%d messages of this broker are not acknowledged (maxUnackedMessagesPerBroker=%d): %d subscriptions with "
            "more than %d get nothing more for now",
            self.unacked,
            self.limit,
            len(shares_to_block),
            self.part_messages,
        )

    def _unblock(self) -> None:
        self.is_blocking = False
        blocked = [share for share in self._shares if share.is_blocked]
        log.info("%d messages of this broker are not acknowledged: all subscriptions go on", self.unacked)
        for share in blocked:
            share.unblock()
            if not share.unacked:
                self._shares.pop(share, None)


class UnackedShare:
    """What one subscription has of a budget."""

    __slots__ = ("_budget", "_resume", "is_blocked", "unacked")

    def __init__(self, budget: UnackedBudget, resume: Callable[[], None]) -> None:
        self._budget = budget
        self._resume = resume
        self.unacked = 0
        self.is_blocked = False
        """Whether the subscription gets nothing for now."""

    def count(self, messages: int) -> None:
        """So many more are not acknowledged; a negative number: fewer."""
        if self._budget.limit and messages:
            self.unacked += messages
            assert self.unacked >= 0, self.unacked
            self._budget.changed(self, messages)

    def clear(self) -> None:
        """Nothing of it is with consumers any more."""
        self.count(-self.unacked)

    def end(self) -> None:
        """The subscription ends: it counts no more, and is not kept alive from here."""
        self.clear()
        self._budget, self._resume = UnackedBudget(), _nothing

    def unblock(self) -> None:
        self.is_blocked = False
        self._resume()


def _nothing() -> None:
    pass
