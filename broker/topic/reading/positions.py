"""Where in a topic something is: a publish time, the last message, the start of a reader. No IO of its own."""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, Protocol

from broker.errors import storage_errors
from broker.topic.compaction.latest_keys import MESSAGES_PER_TURN, Opened
from broker.topic.ports import Entries, EntryLike
from magnetar_core.runtime.types import Buffer, Corruption
from managed_ledger.ledger_list import LedgerList
from managed_ledger.messages import (
    broker_metadata_of,
    is_batch,
    iterate_batch,
    message_count,
    metadata_of,
    split_entry,
)
from managed_ledger.position import EARLIEST, LATEST, Position, signed

# Markers of replicated subscriptions may stand in rows of thousands; others have their turn between them.
MARKERS_PER_TURN: Final = 100


class SearchedLedger(Protocol):
    """A managed ledger, as positions are looked for in it (`managed_ledger.ledger.ManagedLedger`)."""

    ledgers: LedgerList

    def read(self, first: Position, max_entries: int, max_bytes: int) -> Entries | Awaitable[Entries]: ...

    async def find_first(self, predicate: Callable[[EntryLike], bool]) -> Position | None: ...


class SearchedKept(Protocol):
    """What compaction kept of a topic (`broker.topic.compaction.compactor.Compactor`)."""

    async def find_first(self, predicate: Callable[[EntryLike], bool]) -> Position | None: ...


async def position_at_ms(ledger: SearchedLedger, time_ms: int, kept: SearchedKept | None = None) -> Position:
    """The first entry that was published at *time_ms* or later; LATEST if there is none. Raises BrokerError.

    *kept*: also among those that only compaction has kept.
    """

    def is_since(entry: EntryLike) -> bool:
        return is_published_since(entry, time_ms)

    with storage_errors():
        position = await ledger.find_first(is_since)
        if kept is not None and (position is None or position <= ledger.ledgers.first_position):
            earlier = await kept.find_first(is_since)
            position = min(position or LATEST, earlier or LATEST)
    return LATEST if position is None else position


def is_published_since(entry: EntryLike, time_ms: int) -> bool:
    """Whether an entry was published at *time_ms* or later; a damaged one counts as older."""
    try:
        return published_ms(entry.data) >= time_ms
    except Corruption:
        return False


def published_ms(data: Buffer) -> int:
    """When an entry was published: by the broker's clock where it has stamped the entry, else by that of the producer,
    which may say any time, also one before 1970. Raises Corruption."""
    parts = split_entry(data)
    stamped = broker_metadata_of(parts)
    if stamped is not None and stamped.HasField("broker_timestamp"):
        return stamped.broker_timestamp
    return signed(metadata_of(parts).publish_time)


async def last_message(ledger: SearchedLedger, pause: Callable[[], Awaitable[None]]) -> tuple[Position, int]:
    """(last position, index of the last message in its batch or -1); EARLIEST and -1 if the topic has no message.

    Markers, which no consumer gets, are passed over: a client would wait for them for ever
    (`PersistentTopic.getLastDispatchablePosition`, 4.0.8). In *pause* others have their turn. Raises BrokerError.
    """
    position, markers_passed = ledger.ledgers.last_confirmed, 0
    while position.entry_id >= 0:
        with storage_errors():
            answer = ledger.read(position, 1, 1)
            entries = answer if isinstance(answer, Sequence) else await answer
        if not entries:
            break
        if not is_marker(entries[0]):
            return position, last_index(entries[0])
        position = ledger.ledgers.previous_position(position)
        markers_passed += 1
        if markers_passed % MARKERS_PER_TURN == 0:
            await pause()
    return EARLIEST, -1


def is_marker(entry: EntryLike) -> bool:
    """Whether an entry is of a broker's own and no message; a damaged one counts as a message."""
    try:
        return metadata_of(split_entry(entry.data)).HasField("marker_type")
    except Corruption:
        return False


def last_index(entry: EntryLike) -> int:
    """The index of the last message in the batch; -1 for an entry that is not a batch, or is damaged."""
    try:
        parts = split_entry(entry.data)
        metadata = metadata_of(parts)
    except Corruption:
        return -1
    return message_count(metadata, len(parts.payload)) - 1 if is_batch(metadata) else -1


def last_kept_index(entry: Opened) -> Generator[None, None, int]:
    """The index of the last message of a batch that compaction kept; -1 for an entry that is not a batch.

    Since 4.2 compaction lists what it kept (`compacted_batch_indexes`). Without the list the batch is looked through.
    Others have their turn where it yields: a batch may hold a million messages.
    """
    if not entry.is_readable_batch:
        return -1
    listed = entry.metadata.compacted_batch_indexes
    if listed and 0 <= listed[-1] < entry.metadata.num_messages_in_batch:
        return listed[-1]
    last_index = -1
    try:
        for message in iterate_batch(entry.payload, entry.metadata.num_messages_in_batch):
            if message.single is not None and not message.single.compacted_out:
                last_index = message.batch_index
            if (message.batch_index + 1) % MESSAGES_PER_TURN == 0:
                yield
    except Corruption:
        return -1
    return last_index


def reader_start(start: Position | None, *, earliest: bool, last_confirmed: Position) -> Position:
    """Where a reader begins that asks for *start*.

    *earliest* decides for a position beyond the end, LATEST and None included: a consumer that is not durable may ask
    for the first message by its initial position alone, as the Go client does (Apache's `NonDurableCursorImpl`).
    """
    if start is not None and start.ledger_id < 0:
        return EARLIEST
    if start is None or start > last_confirmed:
        return EARLIEST if earliest else LATEST
    return start
