"""Looking at entries of a topic without consuming them: the n-th of a backlog, one by its id, what a backlog holds.

Rules:

1. Nothing is acknowledged, and no subscription is changed.
2. A backlog is looked through in runs, and others on the loop get their turn after each.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from broker.topic.ports import CursorPort, EntryLike
from broker.topic.reading.passing import nth_open
from broker.topic.reading.positions import SearchedLedger, is_marker, published_ms
from magnetar_core.runtime.types import KIB, Corruption
from managed_ledger.ack_ranges import words_of
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.messages import is_batch, message_count, metadata_of, split_entry
from managed_ledger.position import Position

# What one read of `analyse` takes; memory holds that much of a topic while its backlog is looked through.
_RUN_ENTRIES: Final = 100
_RUN_BYTES: Final = 1024 * KIB


class Analysis(NamedTuple):
    """What a backlog holds, as far as it was looked through."""

    entries: int
    messages: int
    markers: int
    """Of brokers; they are in neither of the other numbers (`PersistentSubscription.analyzeBacklog`, 4.2.4)."""

    first: Position | None
    last: Position | None
    is_aborted: bool
    """A limit was reached before the end."""


async def entry_at(ledger: SearchedLedger, position: Position) -> EntryLike | None:
    """The entry at exactly *position*; None if there is none. Raises ManagedLedgerError."""
    if position.entry_id < 0 or position > ledger.ledgers.last_confirmed:
        return None
    answer = ledger.read(position, 1, 1)
    entries = answer if isinstance(answer, Sequence) else await answer
    return entries[0] if entries and entries[0].position == position else None


async def peek(ledger: SearchedLedger, cursor: CursorPort, number: int) -> EntryLike | None:
    """Entry *number* (from 1) of those that are not acknowledged; None if they are fewer. Raises ManagedLedgerError."""
    if not 1 <= number <= cursor.backlog():
        return None
    return await entry_at(ledger, await nth_open(ledger.ledgers, cursor, number))


async def earliest_ms(ledger: SearchedLedger, after: Position) -> int:
    """When the first entry behind *after* was published, by the broker's clock where it stamped the entry.

    -1 where there is none, or where it cannot be read: a caller wants its other numbers all the same.
    """
    try:
        entry = await entry_at(ledger, ledger.ledgers.next_position(after))
        if entry is None:
            return -1
        return max(published_ms(entry.data), 0)
    except (ManagedLedgerError, Corruption):
        return -1


async def batch_size_at(ledger: SearchedLedger, position: Position) -> int:
    """How many messages the batch at *position* has; 0 if no batch is there. Raises ManagedLedgerError."""
    entry = await entry_at(ledger, position)
    if entry is None:
        return 0
    try:
        parts = split_entry(entry.data)
        metadata = metadata_of(parts)
    except Corruption:
        return 0
    return message_count(metadata, len(parts.payload)) if is_batch(metadata) else 0


async def analyse(
    ledger: SearchedLedger,
    cursor: CursorPort,
    start: Position | None,
    entries_max: int,
    is_late: Callable[[], bool],
) -> Analysis:
    """What is not acknowledged from *start* on (None: from the first such entry), up to the end as it is now.

    It ends early after *entries_max* entries, or when *is_late* says so. Raises ManagedLedgerError.
    """
    end = ledger.ledgers.last_confirmed
    position = ledger.ledgers.next_position(cursor.mark_delete_position) if start is None else start
    entries = messages = markers = entries_read = 0
    first: Position | None = None
    last: Position | None = None
    while position <= end:
        if entries_read >= entries_max or is_late():
            return Analysis(entries, messages, markers, first, last, is_aborted=True)
        answer = ledger.read(position, min(_RUN_ENTRIES, entries_max - entries_read), _RUN_BYTES)
        run = answer if isinstance(answer, Sequence) else await answer
        if not run:
            break
        for entry in run:
            if entry.position > end or cursor.is_deleted(entry.position):
                continue
            first, last = first or entry.position, entry.position
            if is_marker(entry):
                markers += 1
                continue
            entries += 1
            messages += _messages_in(entry)
        entries_read += len(run)
        position = ledger.ledgers.next_position(run[-1].position)
        await asyncio.sleep(0)  # rule 2
    return Analysis(entries, messages, markers, first, last, is_aborted=False)


def _messages_in(entry: EntryLike) -> int:
    """How many messages an entry counts as; a damaged one counts as one."""
    try:
        parts = split_entry(entry.data)
        return message_count(metadata_of(parts), len(parts.payload))
    except Corruption:
        return 1


class ResetTarget(NamedTuple):
    """Where a subscription is reset to."""

    position: Position
    ack_set: Sequence[int] = ()
    """The words of the messages of the batch there that are still to be delivered; empty: all of them."""


def reset_target(position: Position, batch_index: int, batch_size: int, *, is_excluded: bool) -> ResetTarget:
    """What is delivered first: message *batch_index* of the batch of *batch_size* at *position*, or the one behind it.

    *batch_size* is 0 where *position* is not a batch, or where no index is named: then the entry as a whole counts.
    """
    following = Position(position.ledger_id, position.entry_id + 1)
    if not batch_size or batch_index < 0:
        return ResetTarget(following if is_excluded else position)
    done = min(batch_index + is_excluded, batch_size)
    if done == batch_size and is_excluded:
        return ResetTarget(following)
    if done in (0, batch_size):
        return ResetTarget(position)
    remaining = ((1 << batch_size) - 1) >> done << done
    return ResetTarget(position, words_of(remaining))
