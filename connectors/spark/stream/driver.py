"""`spark.readStream.format("magnetar")`: topics as streams of micro-batches, read from the bookies.

    driver      one process for the life of a query: which entries are there, how far the next batch goes
    executors   tasks as those of a batch read, each with its runs of entries

Spark's checkpoint holds the offsets (`connectors.spark.stream.offsets`); a batch that is repeated after a failure has
the same entries. Needs PySpark 4.2, whose sources can limit a batch. (docs/spark.md)
"""

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as t
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from connectors.spark.options.read import LATEST, ReadOptions
from connectors.spark.plan.cluster import connected, versions_of
from connectors.spark.plan.planning import Split, TopicRange, plan
from connectors.spark.ranges import Position
from connectors.spark.stream.admission import Allowance, Heads, Waiting, admit, lag
from connectors.spark.stream.follower import Follower
from connectors.spark.stream.measures import Backlog
from connectors.spark.stream.offsets import EARLIEST, Lag, Part, Positions, StreamOffset, start_of
from connectors.spark.stream.restarts import check_topics
from connectors.spark.stream.retaining import Subscription
from connectors.spark.values.records import Values
from magnetar_core.bookkeeper.client.errors import BookKeeperError
from magnetar_core.bookkeeper.metadata.stores.store import MetadataError
from magnetar_core.runtime.process.loop_thread import LoopThread
from magnetar_core.runtime.types import MagnetarError
from magnetar_core.topics.topic_name import TopicName
from managed_ledger.schemas.registry import SchemaRegistry

if TYPE_CHECKING:
    import pyarrow as pa

    from connectors.spark.values.value_columns import ValueColumns

log = logging.getLogger(__name__)


class NewSchema(MagnetarError):
    """A topic has messages of a newer schema than the query, which would be read without their new columns."""


class StreamPartition(InputPartition):
    """What one task of a micro-batch reads, and how it decodes values; pickled by Spark."""

    def __init__(self, split: Split, values: Values | None) -> None:
        super().__init__(split)
        self.values = values


class MagnetarStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark makes a copy for the driver's process of the query, and copies for its tasks: only options travel."""

    def __init__(self, options: ReadOptions, schema: t.StructType, columns: "ValueColumns") -> None:
        self._options = options
        self._schema = schema
        self._columns = columns
        self._driver: _Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_driver": None}

    @property
    def driver(self) -> "_Driver":
        """What the query's process knows; made when it is first asked for."""
        if self._driver is None:
            self._driver = _Driver(self._options, self._columns)
        return self._driver

    # -------------------------------------------------------------------------------- called by Spark at the driver

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins; the same at each call, for Spark asks twice."""
        return self.driver.initial().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options; Spark passes one, and `latestOffset` keeps both."""
        if self._options.max_bytes is not None:
            return ReadMaxBytes(self._options.max_bytes)
        if self._options.max_messages is not None:
            return ReadMaxRows(self._options.max_messages)
        if self._options.min_messages is not None:
            return ReadMinRows(self._options.min_messages)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch; *start* itself if there is nothing new."""
        allowance = Allowance()
        if not isinstance(limit, ReadAllAvailable):
            options = self._options
            allowance = Allowance(options.max_messages, options.max_bytes, options.min_messages)
        check_topics(self._options, StreamOffset.from_json(start))
        end = self.driver.next_end(StreamOffset.from_json(start), allowance)
        return start if end is None else end.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        """The query is to end where the topics end now."""
        self.driver.end_here()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The newest offset, for the progress that Spark shows, and how much is left behind the batch."""
        ends = self.driver.known_ends()
        if not ends:
            return None
        behind = self.driver.lag()
        members = {} if behind is None else {"behind": behind._asdict()}
        return {**members, **StreamOffset(ends).to_json()}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        last = StreamOffset.from_json(end)
        check_topics(self._options, last)
        return self.driver.tasks(start_of(StreamOffset.from_json(start), last), last)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch has been processed; the one before it will not be asked for again."""
        self.driver.commit(StreamOffset.from_json(end))

    def stop(self) -> None:
        """The query ends."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    # -------------------------------------------------------------------------------- called by Spark at an executor

    def read(self, partition: InputPartition) -> "Generator[pa.RecordBatch, None, None]":
        """Record batches of the columns asked for."""
        if not isinstance(partition, StreamPartition):
            return  # Spark's stand-in for an empty list of partitions
        from pyspark.sql.pandas.types import to_arrow_schema

        from connectors.spark.task.reader import read_split

        schema = to_arrow_schema(self._schema, timezone="UTC")
        yield from read_split(self._options, partition.value, schema, partition.values)


class _Driver:
    """Answers for a thread without a loop. Every call raises MagnetarError and its subclasses."""

    def __init__(self, options: ReadOptions, columns: "ValueColumns") -> None:
        self._options = options
        self._columns = columns
        self._loop = LoopThread("magnetar-stream")
        self._stack = AsyncExitStack()
        self._initial: StreamOffset | None = None
        self._target: Positions | None = None
        self._reached: Positions = {}
        """The end of the batch that was planned last."""
        self._planned_s: float | None = None
        """When that was; None: not in this run of the query."""
        self._waiting = Waiting()
        self._warned: set[str] = set()
        self._subscription: Subscription | None = None
        try:
            self._follower: Follower = self._loop.run(self._open())
            if options.subscription:
                self._subscription = Subscription(options, options.subscription)
        except BaseException:
            self.close()
            raise

    async def _open(self) -> Follower:
        options = self._options
        store, bookkeeper, clock = await self._stack.enter_async_context(connected(options.place))
        self._store, self._bookkeeper, self._clock = store, bookkeeper, clock
        self._heads = Heads(bookkeeper)
        self._registry = SchemaRegistry(bookkeeper, store, clock)
        follower = Follower(options, store, bookkeeper, clock)
        self._stack.callback(follower.close)
        return follower

    def close(self) -> None:
        """Close the connections."""
        if self._subscription is not None:
            self._subscription.close()
        with suppress(MetadataError, BookKeeperError, OSError):
            self._loop.run(self._stack.aclose())
        self._loop.stop()

    # -------------------------------------------------------------------------------- where a query begins and ends

    def initial(self) -> StreamOffset:
        """Where the options say that a query begins, as of the first call."""
        if self._initial is None:
            self._loop.run(self._follower.look_settled())
            begins, ends = self._follower.begins(), self._follower.ends()
            origin = {part: self._first_position(part, begins[part], ends[part]) for part in begins}
            self._initial = StreamOffset(origin, origin, self._keep_from(origin), is_fresh=True)
        return self._initial

    def _keep_from(self, origin: Positions) -> Positions:
        """Let partitions keep what is behind *origin* from now on. Returns the entry that is kept of each.

        A subscription that is there already is left where it is: a query that died before its first commit repeats its
        first batch, and "latest" has moved since.
        """
        if self._subscription is None:
            return {}
        new = self._loop.run(self._follower.without_cursor(self._options.subscription))
        positions = {part: origin[part] for part in origin if part in new}
        kept = self._positions_to_keep(positions, StreamOffset({}))
        self._subscription.keep(self._done_before(positions, kept))
        self._keep_new()
        return kept

    def _keep_new(self) -> None:
        """Let partitions that are seen for the first time keep what they have from now on."""
        if self._subscription is not None:
            names = (self._follower.name_of(part) for part in self._follower.ends())
            self._subscription.keep({name: None for name in names if name is not None})

    def _first_position(self, part: Part, begin: Position, end: Position) -> Position:
        if self._options.times is not None:
            return self._loop.run(self._follower.first_of(part, self._options.times))
        given = self._options.starting.get(TopicName.parse(part.topic), {})
        position = given.get(part.number)
        if position is None:
            return end if self._options.starts_latest and not given else begin
        return end if position == LATEST else max(position, begin)

    def end_here(self) -> None:
        """No batch goes beyond what is there now."""
        self._loop.run(self._follower.look_settled())
        self._keep_new()
        self._target = self._follower.ends()

    def known_ends(self) -> Positions:
        """The ends that the last look saw, and never less than the end of the batch: a query that comes back has seen
        more before than a first look at an open ledger can show (`follower`, rule 2), and of a topic whose ledgers are
        all gone nothing is seen."""
        ends = self._follower.ends()
        parts = ends.keys() | self._reached.keys()
        return {part: max(ends.get(part, EARLIEST), self._reached.get(part, EARLIEST)) for part in parts}

    def lag(self) -> Lag | None:
        """What is left behind the batch that was planned last; None: it is not known now, which ends no query."""
        try:
            left = [
                self._backlog(part, self._reached.get(part, EARLIEST), end) for part, end in self.known_ends().items()
            ]
            return self._loop.run(lag(left, self._heads, self._clock.wall_ms()))
        except MagnetarError as error:
            log.info("how far the query is behind is not known now: %s", error)
            return None

    def _backlog(self, part: Part, begin: Position, end: Position) -> Backlog:
        return Backlog(self._follower.range(part, begin, end).runs, max(begin, end))

    def next_end(self, start: StreamOffset, allowance: Allowance) -> StreamOffset | None:
        """The end of the batch behind *start*; None: there is nothing."""
        first = start_of(start, start)
        end = self._next_end(first, allowance)
        self._reached = (end or first).positions
        return end

    def _next_end(self, first: StreamOffset, allowance: Allowance) -> StreamOffset | None:
        if self._target is None:
            self._loop.run(self._follower.look())
            self._keep_new()
            ends: Positions = self._follower.ends()
        else:
            ends = self._target
        backlogs: dict[Part, Backlog] = {}
        for part, end in ends.items():
            begin = first.next_position(part)
            self._follower.check_whole(part, begin, self._kept_of(part, first))
            backlogs[part] = self._backlog(part, begin, end)
        for part in first.positions.keys() - ends.keys():
            self._follower.check_whole(part, first.next_position(part), self._kept_of(part, first))
        if not any(backlog.runs for backlog in backlogs.values()):
            return None
        self._heads = Heads(self._bookkeeper)
        if self._is_too_early(backlogs, allowance.least_messages):
            return None
        self._waiting, self._planned_s = Waiting(), self._clock.monotonic()
        reached = {**first.positions, **self._loop.run(admit(backlogs, allowance, self._heads))}
        positions = {part: position for part, position in reached.items() if not self._follower.give_up(part)}
        return StreamOffset(positions, first.origin, self._positions_to_keep(positions, first))

    def _is_too_early(self, backlogs: Mapping[Part, Backlog], least: int | None) -> bool:
        """Whether a batch is to wait for more messages. The first one of a run does not, as with Kafka's source."""
        if least is None or self._target is not None or self._planned_s is None:
            return False
        if self._clock.monotonic() - self._planned_s >= self._options.trigger_delay_ms / 1000:
            return False
        return not self._loop.run(self._waiting.reaches(least, backlogs, self._heads))

    # -------------------------------------------------------------------------------- batches

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[InputPartition]:
        """The tasks of the batch from *start* up to *end*; a repeated batch has the same entries."""
        ends = {part: last for part, last in end.positions.items() if start.next_position(part) < last}
        self._loop.run(self._follower.look_up_to(ends))
        if self._columns.needs_schema:  # bookies may have given messages that are newer than our server's data
            self._loop.run(self._store.sync())
        self._keep_new()
        ranges: list[TopicRange] = []
        values: dict[str, Values | None] = {}
        for part, last in ends.items():
            first = start.next_position(part)
            self._follower.check_whole(part, first, self._kept_of(part, start, end))
            self._follower.check_known(part, last)
            self._follower.reach(part, last)
            topic_range = self._follower.range(part, first, last)
            if topic_range.runs:
                values[topic_range.topic] = self._values(TopicName.parse(part.topic))
                ranges.append(topic_range)
        splits = plan(
            ranges,
            target_bytes=self._options.target_bytes,
            min_partitions=self._options.min_partitions,
            max_partitions=self._options.max_partitions,
        )
        return [StreamPartition(split, values[split.topic]) for split in splits]

    def _values(self, topic: TopicName) -> Values | None:
        """What decodes a topic's values: every version of the schema counts that there is when the batch is planned, as
        its messages have no other."""
        if not self._columns.needs_schema:
            return self._columns.values(str(topic), ())
        versions = self._loop.run(versions_of(self._registry, topic))
        if unread := self._columns.unread(str(topic), versions):
            self._report_unread(topic, versions[-1].version if versions else None, unread)
        return self._columns.values(str(topic), versions)

    def _report_unread(self, topic: TopicName, version: int | None, unread: Sequence[str]) -> None:
        """Log it once. Raises NewSchema instead if it is to end the query: the batch is planned, but no task has read
        it, so the query that is started again reads it with the new columns."""
        options = self._options
        source = "it has no schema" if version is None else f"version {version} of its schema"
        text = (
            f"{topic} has columns that are newer than this query, which does not read them ({source}): "
            f"{', '.join(unread)}"
        )
        if options.fail_on_new_schema:
            is_refused = not options.union_schemas and (options.pattern is not None or len(options.topics) > 1)
            union = ", and with unionSchemas=true as long as the schemas of its topics differ" if is_refused else ""
            raise NewSchema(
                f"{text}; start it again from load() on{union}: it goes on here, and can have them. With "
                "failOnNewSchema=false a query goes on without them"
            )
        if text not in self._warned:
            self._warned.add(text)
            log.warning("%s; start it again, or set failOnNewSchema=true, which ends it before it reads without", text)

    def commit(self, end: StreamOffset) -> None:
        """Let the brokers remove what stands before *end*."""
        if self._subscription is not None:
            self._subscription.keep(self._done_before(end.positions, end.kept))

    def _positions_to_keep(self, positions: Positions, before: StreamOffset) -> Positions:
        """What the subscription is to keep of partitions that are read up to *positions*: the last entry of each."""
        if self._subscription is None:
            return {}
        kept: dict[Part, Position] = {}
        for part, position in positions.items():
            last = before.kept.get(part)
            if position != before.positions.get(part):
                last = self._follower.last_before(part, position) or last
            if last is not None:
                kept[part] = last
        return kept

    def _kept_of(self, part: Part, *offsets: StreamOffset) -> Position | None:
        """The first entry that the subscription has kept, as far as these offsets show."""
        if self._subscription is None:
            return None
        return min((offset.kept[part] for offset in offsets if part in offset.kept), default=None)

    def _done_before(self, positions: Positions, kept: Positions) -> Mapping[TopicName, Position | None]:
        """Partition → the last entry that is not needed any more, the one before the last that was read; None: nothing
        was read."""
        done: dict[TopicName, Position | None] = {}
        for part, position in positions.items():
            name = self._follower.name_of(part)
            if name is not None:
                last = kept.get(part) or self._follower.last_before(part, position)
                done[name] = None if last is None else self._follower.last_before(part, last)
        return done
