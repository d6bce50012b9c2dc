"""How far the next batch of a query goes where it has limits, and how much is left behind it.

The bookies are asked for single entries, and where messages are not numbered for the entries of the batch
(`connectors.spark.stream.measures`). Nothing is kept from one batch to the next.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from connectors.spark.plan.cluster import CONCURRENT_MAX
from connectors.spark.plan.planning import clip
from connectors.spark.ranges import Position
from connectors.spark.stream.measures import (
    WALKED_BYTES_MAX,
    WALKED_ENTRIES_MAX,
    Backlog,
    Head,
    Scale,
    Search,
    Walk,
    scale_of_bytes,
    scale_of_messages,
    shares,
)
from connectors.spark.stream.offsets import Lag, Part
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import BookKeeperError, DigestMismatch
from magnetar_core.bookkeeper.client.reading.read_handle import LedgerReadHandle
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from magnetar_core.runtime.types import MIB, Corruption
from managed_ledger.messages import broker_metadata_of, message_count, metadata_of, split_entry
from managed_ledger.position import signed

log = logging.getLogger(__name__)

# One answer of a walk; it may be larger by an entry.
ANSWER_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class Allowance:
    """How much one batch may take; None: all there is."""

    messages: int | None = None
    size_bytes: int | None = None
    least_messages: int | None = None
    """With fewer there is no batch yet."""


class Heads:
    """Looks at entries for one batch; each that is looked at by itself is read once."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._handles: dict[int, LedgerReadHandle] = {}
        self._singles: dict[Position, Head | None] = {}
        self._slots = asyncio.Semaphore(CONCURRENT_MAX)
        self.reads = 0
        """Requests for entries."""

    async def one(self, ledger_id: int, entry_id: int) -> Head | None:
        """None: nobody gives it."""
        position = ledger_id, entry_id
        if position not in self._singles:
            self._singles[position] = next(iter(await self.some(ledger_id, entry_id, 1)), None)
        return self._singles[position]

    async def some(self, ledger_id: int, first: int, count: int) -> Sequence[Head]:
        """Entries from *first* on, one at least; empty: nobody gives it."""
        async with self._slots:
            self.reads += 1
            try:
                handle = self._handles.get(ledger_id)
                if handle is None:
                    handle = await self._bookkeeper.open_ledger(ledger_id, recovery=False)
                    self._handles[ledger_id] = handle
                return list(map(_head_of, await handle.read_batch_unconfirmed(first, count, ANSWER_BYTES)))
            except (BookKeeperError, DigestMismatch) as error:  # the task that reads it will report it
                log.info("entry %d:%d, for the limit of a batch: %s", ledger_id, first, error)
                return []


def _head_of(entry: StoredEntry) -> Head:
    size_bytes, length_bytes = len(entry.payload), entry.length
    try:
        parts = split_entry(entry.payload)
        metadata = metadata_of(parts)
        broker = broker_metadata_of(parts)
    except Corruption:  # with mode=PERMISSIVE it is one row
        return Head(size_bytes, length_bytes, 1, None, 0)
    messages = message_count(metadata, len(parts.payload))  # not just what its producer says
    if metadata.HasField("marker_type") or metadata.chunk_id + 1 < metadata.num_chunks_from_msg:
        messages = 0
    index = broker.index if broker is not None and broker.HasField("index") else None
    return Head(size_bytes, length_bytes, messages, index, signed(metadata.publish_time))


class _Bytes:
    """Counts bytes as they are stored."""

    counts_messages = False

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    async def scale(self, backlog: Backlog) -> Scale | None:
        begin, end = backlog.runs[0], backlog.runs[-1]
        before = await self._heads.one(begin.ledger_id, begin.first - 1) if begin.first > 0 else None
        ends = [await self._heads.one(run.ledger_id, run.last) for run in (begin, end)]
        return scale_of_bytes(backlog, before, ends)

    async def average(self, backlog: Backlog) -> float:
        """What an entry is thought to have."""
        return backlog.size_bytes / backlog.entries


class _Messages:
    """Counts messages, which become rows."""

    counts_messages = True

    def __init__(self, heads: Heads) -> None:
        self._heads = heads

    async def _ends(self, backlog: Backlog) -> tuple[Head | None, Head | None]:
        begin, end = backlog.runs[0], backlog.runs[-1]
        first = await self._heads.one(begin.ledger_id, begin.first)
        return first, await self._heads.one(end.ledger_id, end.last)

    async def scale(self, backlog: Backlog) -> Scale | None:
        return scale_of_messages(backlog, *await self._ends(backlog))

    async def average(self, backlog: Backlog, size_bytes: int | None = None) -> float:
        """What an entry is thought to have, by the first, the last and one between. *size_bytes*: of all entries, if
        it is known better than by averages."""
        _, ledger_id, entry_id = backlog.place(backlog.entries // 2)
        looked_at = [*await self._ends(backlog), await self._heads.one(ledger_id, entry_id)]
        known = [head for head in looked_at if head is not None]
        if len({head.messages for head in known}) < 2:
            return float(known[0].messages) if known else 1.0
        # Where entries differ, those with more messages are larger: bytes tell more than entries.
        each = sum(head.messages for head in known) / max(sum(head.size_bytes for head in known), 1)
        return each * (backlog.size_bytes if size_bytes is None else size_bytes) / backlog.entries


async def admit(backlogs: Mapping[Part, Backlog], allowance: Allowance, heads: Heads) -> dict[Part, Position]:
    """How far each partition is read: in proportion to what waits there, one entry at least where there is one."""
    admitted = dict(backlogs)
    if allowance.size_bytes is not None:
        admitted |= await _heads_within(admitted, allowance.size_bytes, _Bytes(heads), heads)
    if allowance.messages is not None:
        admitted |= await _heads_within(admitted, allowance.messages, _Messages(heads), heads)
    return {part: backlog.end for part, backlog in admitted.items()}


async def _heads_within(
    backlogs: Mapping[Part, Backlog], limit: int, measure: _Bytes | _Messages, heads: Heads
) -> dict[Part, Backlog]:
    filled = {part: backlog for part, backlog in backlogs.items() if backlog.runs}
    scales = await asyncio.gather(*map(measure.scale, filled.values()))
    waiting = await asyncio.gather(
        *(_total_waiting(backlog, scale, measure) for backlog, scale in zip(filled.values(), scales, strict=True))
    )

    async def fitting(backlog: Backlog, scale: Scale | None, room: int) -> Backlog:
        count = None if scale is None else await _search_limit(backlog, scale, room, heads)
        if count is None:
            average = await measure.average(backlog)
            walk = Walk(
                backlog, room, average, counts_messages=measure.counts_messages,
                walked_entries=WALKED_ENTRIES_MAX * room // limit, walked_bytes=WALKED_BYTES_MAX * room // limit,
            )  # fmt: skip
            count = await _walk_to_limit(backlog, walk, heads)
        return backlog.first_entries(count)

    rooms = shares(limit, waiting)
    kept = await asyncio.gather(*map(fitting, filled.values(), scales, rooms))
    return dict(zip(filled, kept, strict=True))


async def _total_waiting(backlog: Backlog, scale: Scale | None, measure: _Bytes | _Messages) -> int:
    """What waits, about where there is no scale."""
    return round(backlog.entries * await measure.average(backlog)) if scale is None else scale.total


async def _search_limit(backlog: Backlog, scale: Scale, room: int, heads: Heads) -> int | None:
    """None: the entries do not tell."""
    search = Search(scale, room)
    while (number := search.wants) is not None:
        run, ledger_id, entry_id = backlog.place(number)
        search.on_value(number, scale.up_to(run, await heads.one(ledger_id, entry_id)))
    return None if search.is_lost else search.fitting


async def _walk_to_limit(backlog: Backlog, walk: Walk, heads: Heads) -> int:
    while (wanted := walk.wants) is not None:
        number, count = wanted
        _, ledger_id, entry_id = backlog.place(number)
        walk.on_heads(await heads.some(ledger_id, entry_id, count))
    return walk.fitting


class Waiting:
    """Counts messages until they are enough for a batch; an entry once, however often it is asked."""

    def __init__(self) -> None:
        self._counted: dict[Part, Position] = {}
        """Up to where."""
        self._messages = 0

    async def reaches(self, least: int, backlogs: Mapping[Part, Backlog], heads: Heads) -> bool:
        """Whether so many wait. *backlogs* begin where they began before."""
        for part, backlog in backlogs.items():
            runs, _ = clip(backlog.runs, self._counted.get(part), None)
            if not runs:
                continue
            left = Backlog(runs, backlog.end)
            walk = Walk(left, least - self._messages - 1, 1.0, counts_messages=True)
            await _walk_to_limit(left, walk, heads)
            if walk.is_full:
                return True
            self._messages += walk.taken
            self._counted[part] = left.first_entries(walk.counted).end
        return False


async def lag(left: Sequence[Backlog], heads: Heads, now_ms: int) -> Lag:
    """How much there is in *left*, behind a batch: messages are counted where they are numbered, else estimated."""

    async def of_one(backlog: Backlog) -> Lag:
        measure, in_bytes = _Messages(heads), _Bytes(heads)
        size_bytes = await _total_waiting(backlog, await in_bytes.scale(backlog), in_bytes)
        scale = await measure.scale(backlog)
        if scale is not None:
            messages = scale.total
        else:
            messages = max(round(backlog.entries * await measure.average(backlog, size_bytes)), 1)
        oldest = await heads.one(backlog.runs[0].ledger_id, backlog.runs[0].first)
        published_ms = now_ms if oldest is None or oldest.publish_ms < 1 else oldest.publish_ms
        return Lag(messages, size_bytes, max(now_ms - published_ms, 0) / 1000)

    lags = await asyncio.gather(*(of_one(backlog) for backlog in left if backlog.runs))
    return Lag(
        sum(lag.messages for lag in lags),
        sum(lag.bytes for lag in lags),
        max((lag.seconds for lag in lags), default=0.0),
    )
