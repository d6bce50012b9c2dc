"""The backlog quotas of a topic: whether one is used up, and what is passed over then. It reads the ledger.

destination_storage     bytes behind the slowest durable subscription
message_age             seconds since the oldest message was published that it has not acknowledged; by the producer's
                        clock, but not before its ledger was begun, and not after it was closed

producer_request_hold        producers are disconnected; their clients wait and try again
producer_exception           producers are disconnected; their clients tell the application
consumer_backlog_eviction    the oldest messages are passed over, down to nine tenths of the quota
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from broker.errors import BrokerError, QuotaExceeded, QuotaExceededHold
from broker.settings.quotas import AGE, EVICTION, HOLD, STORAGE, BacklogQuota
from broker.topic.reading.looking import earliest_ms
from broker.topic.reading.positions import SearchedLedger
from broker.topic.reading.subscription import Subscription
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import Position

# How much of the quota is left to the backlog when messages are passed over; Apache's brokers leave as much.
_KEPT: Final = 0.9


class SizedLedger(SearchedLedger, Protocol):
    """A managed ledger that knows how many bytes come after a position."""

    def bytes_after(self, position: Position) -> int: ...

    def position_leaving(self, left_bytes: int) -> Position | None: ...

    def begun_ms(self, ledger_id: int) -> int: ...


class Exceeded(NamedTuple):
    """A quota that is used up."""

    kind: str
    quota: BacklogQuota


class Oldest(NamedTuple):
    """The oldest message that a durable subscription has not acknowledged."""

    since_ms: int
    """About when it was published: when its ledger was closed."""
    subscription: str


def oldest(ledgers: LedgerList, subscriptions: Mapping[str, Subscription]) -> Oldest | None:
    """The oldest message, without reading an entry: so it is known only for messages in closed ledgers, as with
    Apache's brokers (where `preciseTimeBasedBacklogQuotaCheck` is off, as by default). None: nothing is known, or there
    is no backlog."""
    durable = [
        (subscription.cursor.mark_delete_position, name)
        for name, subscription in subscriptions.items()
        if subscription.is_durable
    ]
    if not durable:
        return None
    position, name = min(durable)
    since_ms = ledgers.closed_ms(ledgers.next_position(position).ledger_id)
    return Oldest(since_ms, name) if since_ms and position < ledgers.last_confirmed else None


async def exceeded(
    ledger: SizedLedger,
    subscriptions: Iterable[Subscription],
    storage: BacklogQuota,
    age: BacklogQuota,
    now_ms: int,
) -> Exceeded | None:
    """The quota that the backlog of the slowest durable subscription uses up; None: neither."""
    durable = [subscription.cursor.mark_delete_position for subscription in subscriptions if subscription.is_durable]
    if not durable:
        return None
    slowest = min(durable)
    if 0 < storage.limit_bytes <= ledger.bytes_after(slowest):
        return Exceeded(STORAGE, storage)
    if age.limit_s > 0:
        oldest_ms = await earliest_ms(ledger, slowest)
        if oldest_ms >= 0:
            ledgers = ledger.ledgers
            ledger_id = ledgers.next_position(slowest).ledger_id
            oldest_ms = max(min(oldest_ms, ledgers.closed_ms(ledger_id) or oldest_ms), ledger.begun_ms(ledger_id))
            if now_ms - oldest_ms >= age.limit_s * 1000:
                return Exceeded(AGE, age)
    return None


def refusal(topic: object, used_up: Exceeded) -> BrokerError:
    """The error for a producer that would add to the backlog."""
    limit = f"{used_up.quota.limit_bytes} bytes" if used_up.kind == STORAGE else f"{used_up.quota.limit_s} s"
    text = (
        f"Cannot create producer on topic with backlog quota exceeded. RetentionPolicy: {used_up.quota.policy} "
        f"({topic}: the quota {used_up.kind} is {limit})"
    )
    return QuotaExceededHold(text) if used_up.quota.policy == HOLD else QuotaExceeded(text)


def refuses_producers(used_up: Exceeded) -> bool:
    """Whether producers may not write while the quota is used up."""
    return used_up.quota.policy != EVICTION


def evict_bytes(ledger: SizedLedger, subscriptions: Iterable[Subscription], quota: BacklogQuota) -> int:
    """Pass over the oldest messages of durable subscriptions, down to nine tenths of *quota*; how many entries."""
    position = ledger.position_leaving(int(quota.limit_bytes * _KEPT))
    if position is None:
        return 0
    position = min(position, ledger.ledgers.last_confirmed)
    passed_entries = 0
    for subscription in subscriptions:
        if subscription.is_durable and subscription.cursor.mark_delete_position < position:
            passed_entries += subscription.acking.clear_up_to(position)
    return passed_entries
