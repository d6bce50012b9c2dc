"""Which topics, ledgers and entries can have rows that pass a query's filters. No IO.

Rules:

1. Nothing is left out that may pass. A filter that is not understood leaves everything in.
2. Spark gets every filter back and checks every row again: what is read too much costs time, never a row.
3. A key leaves out only an entry that is one message: a batch has in its metadata the key of its first message.
4. What compaction kept has its rows' ids inside its entries, so ids leave out nothing of it while a read is planned.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

from google.protobuf.message import DecodeError
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from connectors.spark.ranges import Position, Run, Times
from managed_ledger.messages import is_batch
from managed_ledger.messages_pb2 import MessageIdData, MessageMetadata

# The columns by which something is left out, and the type of their values here. Times count microseconds since 1970.
_KINDS: Final[dict[str, type]] = {
    "__topic": str, "__partition": int, "__ledgerId": int, "__entryId": int, "__messageId": bytes,
    "__publishTime": int, "__key": bytes,
}  # fmt: skip

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class _NotUnderstood(Exception):
    """A filter of another form than those that are known."""


class _Span(NamedTuple):
    """Whole numbers from *low* to *high*, both included; None: no bound."""

    low: int | None
    high: int | None

    def clip(self, first: int, last: int) -> range:
        return range(
            first if self.low is None else max(first, self.low),
            (last if self.high is None else min(last, self.high)) + 1,
        )

    @property
    def is_empty(self) -> bool:
        return self.low is not None and self.high is not None and self.low > self.high


class Pushed:
    """The filters of one query; those on a few columns show where its rows can be. Can be pickled."""

    def __init__(self, filters: Iterable[Filter]) -> None:
        self._tests: dict[str, list[Filter]] = {}
        self.used: list[Filter] = []
        """The filters that leave something out, as Spark gave them."""
        self.unused: list[Filter] = []
        for spark_filter in filters:
            column = _column_of(spark_filter)
            try:
                test = _prepared(spark_filter, _KINDS[column])
            except (_NotUnderstood, KeyError):
                self.unused.append(spark_filter)
                continue
            self._tests.setdefault(column, []).append(test)
            self.used.append(spark_filter)
        self._entry_ids, self._ids = self._span("__entryId"), self._passing_values("__entryId")
        self._times_us = self._span("__publishTime")
        positions = self._passing_values("__messageId")
        self._positions: dict[int, set[int]] | None = None if positions is None else _positions_of(positions)

    def __bool__(self) -> bool:
        return bool(self.used)

    def _admits(self, column: str, value: Any) -> bool:
        return all(_sql_result(test, value) is True for test in self._tests.get(column, ()))

    def _span(self, column: str) -> _Span:
        low: int | None = None
        high: int | None = None
        for test in self._tests.get(column, ()):
            span = _span_of(test)
            low = span.low if low is None or (span.low is not None and span.low > low) else low
            high = span.high if high is None or (span.high is not None and span.high < high) else high
        return _Span(low, high)

    def _passing_values(self, column: str) -> set[Any] | None:
        """The values that can pass, if the filters name them; of a column without nulls."""
        listed: set[Any] | None = None
        for test in self._tests.get(column, ()):
            match test:
                case EqualTo(value=value) | EqualNullSafe(value=value):
                    values = {value}
                case In(value=several):
                    values = set(several)
                case _:
                    continue
            values.discard(None)
            listed = values if listed is None else listed & values
        return listed

    # What can be left out

    def admits_topic(self, topic: str, partition: int) -> bool:
        """Whether rows of a topic partition, named as in `__topic`, can pass."""
        return self._admits("__topic", topic) and self._admits("__partition", partition)

    def times(self, slack_ms: int) -> Times | None:
        """The publish times that can pass; None: any."""
        low, high = self._times_us
        if low is None and high is None:
            return None
        since_ms = None if low is None else -(-low // 1000)
        return Times(since_ms, None if high is None else high // 1000 + 1, slack_ms)

    def kept(self, runs: Sequence[Run]) -> list[Run]:
        """The parts of *runs* whose rows can pass, as far as their ids show."""
        if self._times_us.is_empty:
            return []
        parts: list[Run] = []
        for run in runs:
            if run.is_compacted:  # rule 4
                parts.append(run)
            elif self._admits("__ledgerId", run.ledger_id):
                parts.extend(run.part(first, last) for first, last in self._entries_of(run))
        return parts

    def _entries_of(self, run: Run) -> Iterator[tuple[int, int]]:
        ids = self._entry_ids.clip(run.first, run.last)
        listed = [known for known in (self._ids, self._of_ledger(run.ledger_id)) if known is not None]
        if not listed:
            if ids:
                yield ids[0], ids[-1]
            return
        wanted = [entry_id for entry_id in sorted(set.intersection(*listed)) if entry_id in ids]
        for _, numbered in groupby(enumerate(wanted), lambda pair: pair[1] - pair[0]):
            group = [entry_id for _, entry_id in numbered]
            yield group[0], group[-1]

    def _of_ledger(self, ledger_id: int) -> set[int] | None:
        return None if self._positions is None else self._positions.get(ledger_id, set())

    def admits(self, ledger_id: int, entry_id: int, metadata: MessageMetadata) -> bool:
        """Whether rows of an entry can pass; the ids are those that its rows have."""
        tests = self._tests
        if "__ledgerId" in tests and not self._admits("__ledgerId", ledger_id):
            return False
        if "__entryId" in tests and not self._admits("__entryId", entry_id):
            return False
        if self._positions is not None and entry_id not in self._positions.get(ledger_id, ()):
            return False
        if "__publishTime" in tests:
            since_1970 = metadata.publish_time
            if since_1970 < 2**63 and not self._admits("__publishTime", since_1970 * 1000):
                return False
        if "__key" in tests and not is_batch(metadata):  # rule 3
            try:
                return self._admits("__key", _key_of(metadata))
            except (binascii.Error, ValueError):
                return True  # making the column will report it
        return True


def _column_of(spark_filter: Filter) -> str:
    """The column that a filter is about; empty for a field inside a column, and for a filter without a column."""
    inner = spark_filter.child if isinstance(spark_filter, Not) else spark_filter
    path: tuple[str, ...] = getattr(inner, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _prepared(spark_filter: Filter, kind: type) -> Filter:
    """The filter with values of the type that is compared here. Raises _NotUnderstood."""
    if isinstance(spark_filter, Not):
        return replace(spark_filter, child=_prepared(spark_filter.child, kind))
    if isinstance(spark_filter, IsNull | IsNotNull):
        return spark_filter
    if isinstance(spark_filter, In):
        return replace(spark_filter, value=tuple(_value(value, kind) for value in spark_filter.value))
    if not isinstance(spark_filter, tuple(_COMPARISONS)):
        raise _NotUnderstood
    compared: Any = spark_filter
    return cast(Filter, replace(compared, value=_value(compared.value, kind)))


def _value(value: Any, kind: type) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None and kind is int:
        return (value - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, bytearray):
        value = bytes(value)
    if value is not None and type(value) is not kind:
        raise _NotUnderstood
    return value


_COMPARISONS: Final[dict[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda value, other: value == other,
    EqualNullSafe: lambda value, other: value == other,
    GreaterThan: lambda value, other: value > other,
    GreaterThanOrEqual: lambda value, other: value >= other,
    LessThan: lambda value, other: value < other,
    LessThanOrEqual: lambda value, other: value <= other,
    StringContains: lambda value, other: other in value,
    StringStartsWith: lambda value, other: value.startswith(other),
    StringEndsWith: lambda value, other: value.endswith(other),
}


def _sql_result(test: Filter, value: Any) -> bool | None:
    """The result as SQL has it; None is null."""
    match test:
        case Not(child=child):
            inner = _sql_result(child, value)
            return None if inner is None else not inner
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe(value=other):
            return bool(value == other)
        case In(value=several):
            if value is None:
                return None
            return True if value in several else None if None in several else False
    other = test.value  # type: ignore[attr-defined]
    return None if value is None or other is None else _COMPARISONS[type(test)](value, other)


def _span_of(test: Filter) -> _Span:
    """Numbers outside do not pass."""
    match test:
        case EqualTo(value=int() as value) | EqualNullSafe(value=int() as value):
            return _Span(value, value)
        case GreaterThan(value=int() as value):
            return _Span(value + 1, None)
        case GreaterThanOrEqual(value=int() as value):
            return _Span(value, None)
        case LessThan(value=int() as value):
            return _Span(None, value - 1)
        case LessThanOrEqual(value=int() as value):
            return _Span(None, value)
        case In(value=several):
            numbers = [number for number in several if number is not None]
            return _Span(min(numbers), max(numbers)) if numbers else _Span(1, 0)
    return _Span(None, None)


def _positions_of(ids: Iterable[bytes]) -> dict[int, set[int]]:
    """Ledger → entries; bytes that are not a message id cannot be the id of a row."""
    positions: dict[int, set[int]] = {}
    for message_id in ids:
        try:
            position: Position = _position(message_id)
        except DecodeError:
            continue
        positions.setdefault(position[0], set()).add(position[1])
    return positions


def _position(data: bytes) -> Position:
    parsed = MessageIdData.FromString(data)
    return parsed.ledgerId, parsed.entryId


def _key_of(metadata: MessageMetadata) -> bytes | None:
    """The key as the column `__key` has it, of a message that is not a batch. Raises binascii.Error."""
    if not metadata.HasField("partition_key") or metadata.null_partition_key:
        return None
    key = metadata.partition_key
    return base64.b64decode(key) if metadata.partition_key_b64_encoded else key.encode()
