"""Entries that a subscription passes over without a consumer: a number of them, or those that are too old.

Rules:

1. What is passed over is acknowledged, so it does not come back.
2. Where the oldest open entry is young enough, nothing is looked for: one entry is read then, and none of a
   subscription without backlog.
3. A ledger that was closed long enough ago has only old entries, whatever their producers' clocks said.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from broker.topic.ports import CursorPort
from broker.topic.reading.positions import SearchedLedger, is_published_since, position_at_ms
from broker.topic.reading.subscription import Subscription
from managed_ledger.ledger_list import LedgerList
from managed_ledger.position import LATEST, Position

# Entries that are counted in one turn of the loop: some milliseconds.
_PAUSE_EVERY: Final = 5_000

# A subscription with consumers and less backlog than this is about at the end of its topic, as Apache's brokers say.
_ABOUT_AT_END: Final = 1_000


async def nth_open(ledgers: LedgerList, cursor: CursorPort, count: int) -> Position:
    """The entry that is the *count*-th of those that are not acknowledged; the last one there is if they are fewer."""
    position, remaining, entries_seen = cursor.mark_delete_position, count, 0
    while remaining > 0:
        following = ledgers.next_position(position)
        if following > ledgers.last_confirmed:
            break
        position = following
        remaining -= not cursor.is_deleted(position)
        entries_seen += 1
        if entries_seen % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    return position


async def expire(ledger: SearchedLedger, subscription: Subscription, before_ms: int, now_ms: int) -> int | None:
    """Pass over what was published before *before_ms*; how many entries that were. None: its consumers are about at the
    end of the topic, so it was not looked for. Raises BrokerError."""
    cursor, ledgers = subscription.cursor, ledger.ledgers
    passed = _pass_over(subscription, _end_of_old_ledgers(ledgers, cursor.mark_delete_position, before_ms), now_ms)
    backlog = cursor.backlog()
    if not backlog:
        return passed or None
    if not await _is_oldest_too_old(ledgers, cursor, before_ms):
        return passed or (None if subscription.consumers and backlog < _ABOUT_AT_END else 0)
    first_kept = await position_at_ms(ledger, before_ms)
    last = ledgers.last_confirmed if first_kept == LATEST else ledgers.previous_position(first_kept)
    return passed + _pass_over(subscription, last, now_ms)


def expire_up_to(ledgers: LedgerList, subscription: Subscription, position: Position, now_ms: int) -> int | None:
    """Pass over everything up to *position*; how many entries that were. None: the topic does not reach so far."""
    if position > ledgers.last_confirmed:
        return None
    return _pass_over(subscription, ledgers.previous_position(ledgers.next_position(position)), now_ms)


def _end_of_old_ledgers(ledgers: LedgerList, after: Position, before_ms: int) -> Position:
    """Rule 3: the last entry of the ledgers after *after* that were all closed before *before_ms*; *after* if the next
    one was not."""
    following = ledgers.next_position(after)
    while following <= ledgers.last_confirmed and 0 < ledgers.closed_ms(following.ledger_id) < before_ms:
        after = ledgers.previous_position(Position(following.ledger_id + 1, 0))
        following = ledgers.next_position(after)
    return after


def _pass_over(subscription: Subscription, last: Position, now_ms: int) -> int:
    if last <= subscription.cursor.mark_delete_position:
        return 0
    passed_entries = subscription.acking.clear_up_to(last)
    if passed_entries:
        subscription.expired_entries += passed_entries
        subscription.last_expired_ms = now_ms
    return passed_entries


async def _is_oldest_too_old(ledgers: LedgerList, cursor: CursorPort, before_ms: int) -> bool:
    """Whether the oldest entry that is not acknowledged was published before *before_ms* (rule 2)."""
    answer = cursor.read_again(ledgers.next_position(cursor.mark_delete_position), 1, 1)
    entries = answer if isinstance(answer, Sequence) else await answer
    return bool(entries) and not is_published_since(entries[0], before_ms)
