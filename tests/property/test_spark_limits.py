"""Limits of a stream's batches over drawn topics, against what their entries were drawn to hold."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple, cast

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from connectors.spark.plan.planning import clip
from connectors.spark.ranges import Position, Run
from connectors.spark.stream.admission import Allowance, Heads, admit, lag
from connectors.spark.stream.measures import Backlog
from connectors.spark.stream.offsets import Lag, Part
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.client.errors import NoSuchEntry
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from managed_ledger.messages import encode_entry
from managed_ledger.messages_pb2 import LZ4, NONE, BrokerEntryMetadata, CompressionType, MessageMetadata
from tests.unit.connectors.spark.entries import with_broker_metadata

NOW_MS = 2_000_000


class Drawn(NamedTuple):
    """An entry, and what it is to count as."""

    data: bytes
    rows: int
    numbered: int
    """What a broker counts it as."""


@lru_cache(10_000)
def entry(
    producer: str, messages: int | None, size: int, codec: CompressionType, chunk: tuple[int, int] | None
) -> bytes:
    metadata = MessageMetadata(producer_name=producer, sequence_id=7, publish_time=1_000_000)
    if chunk is not None:
        metadata.uuid, (metadata.chunk_id, metadata.num_chunks_from_msg) = f"{producer}-7", chunk
    elif messages is not None:
        metadata.num_messages_in_batch = messages
        metadata.compression, metadata.uncompressed_size = codec, 1_000_000
        size = max(size, 6 * messages) if codec == NONE else size
    return encode_entry(metadata, b"x" * size)


@st.composite
def entries(draw: st.DrawFn) -> list[Drawn]:
    """One after the other of some producers; the chunks of a message follow each other, with others between them."""
    producer = draw(st.sampled_from(["a", "b", "of a job with a long name"]))
    size = draw(st.sampled_from([10, 100, 1_000, 10_000, 100_000, 1_000_000]))
    if draw(st.integers(0, 9)) == 0:
        count = draw(st.integers(2, 4))
        return [
            Drawn(entry(producer, None, size, NONE, (chunk, count)), int(chunk == count - 1), 1)
            for chunk in range(count)
        ]
    messages = draw(st.none() | st.sampled_from([1, 2, 10, 100, 999, 1_000]))
    codec = draw(st.sampled_from([NONE, LZ4]))
    same = draw(st.sampled_from([1, 1, 2, 30]))
    return [Drawn(entry(producer, messages, size, codec, None), messages or 1, messages or 1)] * same


@dataclass
class Topic:
    """One partition: ledgers of entries, the last one open."""

    ledgers: list[list[Drawn]]
    first_id: int
    indexed_from: int | None
    """The entry from which on the broker numbers messages; None: it does not."""
    stored: dict[Position, StoredEntry] = field(default_factory=dict)
    drawn: dict[Position, Drawn] = field(default_factory=dict)

    def __post_init__(self) -> None:
        index, number = -1, 0
        for ledger_id, ledger in enumerate(self.ledgers, self.first_id):
            length = 0
            for entry_id, one in enumerate(ledger):
                data = one.data
                if self.indexed_from is not None and number >= self.indexed_from:
                    index += one.numbered
                    data = with_broker_metadata(data, BrokerEntryMetadata(index=index).SerializeToString())
                number += 1
                length += len(data)
                self.stored[ledger_id, entry_id] = StoredEntry(ledger_id, entry_id, -1, length, memoryview(data))
                self.drawn[ledger_id, entry_id] = one

    @property
    def runs(self) -> list[Run]:
        runs = []
        for ledger_id, ledger in enumerate(self.ledgers, self.first_id):
            if ledger:
                last = self.stored[ledger_id, len(ledger) - 1]
                # What is known of an open ledger's size is what it had at some moment before.
                is_open = ledger_id == self.first_id + len(self.ledgers) - 1
                runs.append(Run(ledger_id, 0, last.entry_id, max(last.length // (3 if is_open else 1), 1)))
        return runs

    @property
    def end(self) -> Position:
        return self.first_id + len(self.ledgers) - 1, len(self.ledgers[-1])

    def between(self, start: Position, end: Position) -> list[Position]:
        return [position for position in self.drawn if start <= position < end]


@st.composite
def topics(draw: st.DrawFn) -> list[Topic]:
    made = []
    for number in range(draw(st.integers(1, 3))):
        ledgers = [
            [one for some in ledger for one in some]
            for ledger in draw(st.lists(st.lists(entries(), max_size=8), min_size=1, max_size=3))
        ]
        indexed_from = draw(st.sampled_from([None, 0, 0, 3]))
        made.append(Topic(ledgers, 10 * number + 3, indexed_from))
    return made


class Bookies:
    """The ledgers of topics, in memory; some entries are given by nobody."""

    def __init__(self, topics: Sequence[Topic], lost: set[Position]) -> None:
        self.ledgers: dict[int, Ledger] = {}
        for topic in topics:
            for (ledger_id, entry_id), one in topic.stored.items():
                ledger = self.ledgers.setdefault(ledger_id, Ledger())
                ledger.entries.append(None if (ledger_id, entry_id) in lost else one)

    async def open_ledger(self, ledger_id: int, *, recovery: bool) -> "Ledger":
        assert not recovery
        return self.ledgers[ledger_id]

    @property
    def given(self) -> int:
        """Entries."""
        return sum(ledger.given for ledger in self.ledgers.values())


class Ledger:
    def __init__(self) -> None:
        self.entries: list[StoredEntry | None] = []
        self.given = 0

    async def read_batch_unconfirmed(self, first: int, count: int, size_bytes: int) -> list[StoredEntry]:
        answer: list[StoredEntry] = []
        size = 0
        for one in self.entries[first : first + count]:
            size += 0 if one is None else len(one.payload)
            if one is None or (answer and size > size_bytes):
                break
            answer.append(one)
        if not answer:
            raise NoSuchEntry("lost")
        self.given += len(answer)
        return answer


class Batch(NamedTuple):
    entries: list[list[Position]]
    """Of each partition."""
    reads: int


async def batches_of(made: Sequence[Topic], allowance: Allowance, lost: set[Position] | None = None) -> list[Batch]:
    """All batches up to the end; what is left behind each is looked at, too."""
    parts = {Part("persistent://public/default/t", number): topic for number, topic in enumerate(made)}
    bookies = Bookies(made, lost or set())
    batches = []

    def waiting(at: Mapping[Part, Position]) -> dict[Part, Backlog]:
        return {part: Backlog(clip(topic.runs, at[part], topic.end)[0], topic.end) for part, topic in parts.items()}

    at: Mapping[Part, Position] = {part: (topic.first_id, 0) for part, topic in parts.items()}
    while any(backlog.runs for backlog in waiting(at).values()):
        heads = Heads(cast(BookKeeper, bookies))
        reached = await admit(waiting(at), allowance, heads)
        batch = Batch([topic.between(at[part], reached[part]) for part, topic in parts.items()], heads.reads)
        for backlog, taken in zip(waiting(at).values(), batch.entries, strict=True):
            assert bool(taken) == bool(backlog.runs), "never empty while something waits"
        batches.append(batch)
        at = reached
        left = [(topic, topic.between(at[part], topic.end)) for part, topic in parts.items()]
        check_lag(await lag(list(waiting(at).values()), heads, NOW_MS), left, is_known=not lost)
    for number, topic in enumerate(made):
        taken = [position for batch in batches for position in batch.entries[number]]
        assert taken == list(topic.drawn), "each entry once, in order"
    return batches


def check_lag(behind: Lag, left: Sequence[tuple[Topic, list[Position]]], *, is_known: bool) -> None:
    assert min(behind) >= 0
    assert (behind.messages > 0) == (behind.bytes > 0) == any(some for _, some in left)
    if is_known:
        assert behind.bytes == sum(len(topic.stored[one].payload) for topic, some in left for one in some)
        assert (behind.seconds > 0) == (behind.bytes > 0)
        if all(topic.indexed_from == 0 for topic, _ in left):
            assert behind.messages == sum(topic.drawn[one].numbered for topic, some in left for one in some)


def check_limit(batch: Batch, limit: int, weights: Sequence[Mapping[Position, int]]) -> None:
    """Without the last entry of each partition a batch is within its limit."""
    taken = [[of[one] for one in some] for of, some in zip(weights, batch.entries, strict=True)]
    assert sum(sum(some[:-1]) for some in taken) <= limit


limits = st.sampled_from([1, 2, 5, 30, 100, 999, 1_000, 2_500, 40_000])
sizes = st.sampled_from([1, 100, 5_000, 200_000, 1_000_000, 3_000_000])


@settings(max_examples=60, deadline=None)
@given(topics(), limits)
def test_a_batch_is_above_its_limit_of_messages_by_an_entry_of_each_partition_at_most(
    made: list[Topic], limit: int
) -> None:
    weights = [{position: one.rows for position, one in topic.drawn.items()} for topic in made]
    for batch in asyncio.run(batches_of(made, Allowance(messages=limit))):
        check_limit(batch, limit, weights)


@settings(max_examples=60, deadline=None)
@given(topics(), sizes)
def test_a_batch_is_above_its_limit_of_bytes_by_an_entry_of_each_partition_at_most(
    made: list[Topic], limit: int
) -> None:
    weights = [{position: len(one.payload) for position, one in topic.stored.items()} for topic in made]
    for batch in asyncio.run(batches_of(made, Allowance(size_bytes=limit))):
        check_limit(batch, limit, weights)
        entries = max(map(len, weights))
        assert batch.reads <= len(made) * (6 + 2 * entries.bit_length()), "few, however many wait"


@settings(max_examples=40, deadline=None)
@given(topics(), limits, sizes)
def test_of_two_limits_both_are_kept(made: list[Topic], messages: int, size_bytes: int) -> None:
    rows = [{position: one.rows for position, one in topic.drawn.items()} for topic in made]
    lengths = [{position: len(one.payload) for position, one in topic.stored.items()} for topic in made]
    for batch in asyncio.run(batches_of(made, Allowance(messages, size_bytes))):
        check_limit(batch, messages, rows)
        check_limit(batch, size_bytes, lengths)


@settings(max_examples=40, deadline=None)
@given(topics(), limits)
def test_a_batch_of_one_partition_takes_what_is_within_its_limit(made: list[Topic], limit: int) -> None:
    topic = made[0]
    order = list(topic.drawn)
    assume(all(one.rows == one.numbered for one in topic.drawn.values()))  # brokers count chunks: there are fewer rows
    for batch in asyncio.run(batches_of([topic], Allowance(messages=limit))):
        (taken,) = batch.entries
        behind = order[order.index(taken[-1]) + 1 :]
        if behind:
            assert sum(topic.drawn[one].rows for one in [*taken, behind[0]]) > limit


@settings(max_examples=40, deadline=None)
@given(topics(), limits, sizes, st.data())
def test_entries_that_nobody_gives_neither_stop_a_query_nor_are_passed_over(
    made: list[Topic], messages: int, size_bytes: int, data: st.DataObject
) -> None:
    places = [position for topic in made for position in topic.drawn]
    lost = data.draw(st.sets(st.sampled_from(places), max_size=3)) if places else set()
    for allowance in (Allowance(messages), Allowance(size_bytes=size_bytes)):
        asyncio.run(batches_of(made, allowance, lost))


def test_a_search_among_many_entries_looks_at_few_and_a_walk_at_those_of_the_batch() -> None:
    """20,000 entries of which most messages are in the last ones."""
    small, large = Drawn(entry("a", 1, 10, NONE, None), 1, 1), Drawn(entry("a", 1_000, 10, LZ4, None), 1_000, 1_000)
    ledger = [small] * 19_000 + [large] * 1_000
    rows = list(accumulate(one.rows for one in ledger))
    for indexed_from, limit in ((0, 100_000), (None, 100_000), (0, 900_000)):
        topic = Topic([ledger, []], 3, indexed_from)
        heads = Heads(cast(BookKeeper, bookies := Bookies([topic], set())))
        part = Part("persistent://public/default/t", 0)
        backlog = Backlog(topic.runs, topic.end)
        reached = asyncio.run(admit({part: backlog}, Allowance(limit), heads))[part]
        assert rows[reached[1] - 1] <= limit < rows[reached[1]]
        if indexed_from == 0:
            assert heads.reads < 40
        else:
            assert bookies.given < 1.1 * reached[1] + 5_000
