"""A topic as a table: the last value of each key, kept up to date by a reader of the compacted topic.

Rules:

1. What `ready` promises holds although messages that it waits for may be compacted away in the meantime: while nothing
   comes, the broker is asked again where the end is.
2. Of changes that nobody takes only the last of each key is kept, so a slow reader of changes costs no more than a
   second table.
3. A view whose reader has failed or is closed says so instead of what it knew.
4. A value that cannot be read is no error of the view, and no value either: who asks for it gets the ValueError.
"""

import asyncio
import weakref
from collections import OrderedDict
from collections.abc import AsyncIterator, Generator, ItemsView, Iterator, KeysView, Mapping, ValuesView
from types import TracebackType
from typing import Final, NamedTuple, Self, cast

from magnetar.client.async_consumer import QUEUE_SIZE, AsyncReader
from magnetar.client.base.rpc import log
from magnetar.client.codecs.declared import T
from magnetar.client.consuming import ConsumeStream
from magnetar.client.errors import ClientClosed, TopicError
from magnetar.client.values import Message
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics.message_id import MessageId

# How long nothing comes before the broker is asked where the end is (rule 1).
PAUSE_S: Final = 0.5


class CompactedReader(AsyncReader[T]):
    """A reader that knows whether it is behind the messages of a moment."""

    async def ends(self) -> dict[ConsumeStream, MessageId]:
        """The last message of each partition. Raises TopicError."""
        await self.open()
        streams = await self._ask_ends()
        return {stream: stream.end for stream in streams if stream.end is not None and stream.is_before_end()}


class _Unreadable(NamedTuple):
    """In the place of a value that cannot be read (rule 4)."""

    error: ValueError


class AsyncTableView(Mapping[str, T]):
    """The last value of each key of a topic. Made by `AsyncClient.table_view`.

    It is a mapping of keys to values. A null message removes its key; messages without a key are passed over.

    Example:
        async with client.table_view("prices") as view:
            print(view["apple"], len(view))
    """

    def __init__(self, reader: CompactedReader[T]) -> None:
        self.topic = reader.topic
        self._reader = reader
        self._values: dict[str, T | _Unreadable] = {}
        self._changes = weakref.WeakSet[AsyncChanges[T]]()
        self._moved = Bell()
        self._task: asyncio.Task[None] | None = None
        self._is_ready = False
        self._failure: TopicError | None = None

    async def ready(self) -> Self:
        """Wait until everything is in the view that was in the topic when this was called. Raises TopicError.

        It may be called again, to see what was sent in the meantime.
        """
        ends = await self._reader.ends()
        if self._task is None:
            self._task = asyncio.ensure_future(self._follow())
        while any(stream.is_before(end) for stream, end in ends.items()):
            self._check()
            try:
                async with asyncio.timeout(PAUSE_S):
                    await self._moved.rung()
            except TimeoutError:
                ends = await self._reader.ends()
        self._check()
        self._is_ready = True
        return self

    def __await__(self) -> Generator[None, None, Self]:
        """`await client.table_view(…)` gives one that is ready."""
        return self.ready().__await__()

    async def _follow(self) -> None:
        try:
            while True:
                self._apply(await self._reader.receive_batch(QUEUE_SIZE))
                await asyncio.sleep(0)  # others have their turn, although messages wait
        except TopicError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(TopicError(f"{self.topic}: the view has ended: {type(error).__name__}: {error}"))
            raise

    def _fail(self, error: TopicError) -> None:
        self._failure = error
        self._moved.ring()
        for changes in list(self._changes):
            changes.bell.ring()

    def _apply(self, messages: list[Message[T]]) -> None:
        values, all_changes = self._values, list(self._changes)
        for message in messages:
            key = message.key
            if message.problem:
                log.warning("%s: a message of the table cannot be read: %s", self.topic, message.problem)
            elif key is None:
                continue
            else:
                if message.is_null:
                    values.pop(key, None)
                else:
                    values[key] = self._read(message)
                for changes in all_changes:
                    changes.put(key, message)
        self._moved.ring()
        for changes in all_changes:
            changes.bell.ring()

    def _read(self, message: Message[T]) -> T | _Unreadable:
        try:
            return message.value
        except ValueError as error:
            log.warning("%s", error)
            return _Unreadable(error)

    def changes(self) -> "AsyncChanges[T]":
        """The messages that change the view from now on, to be used with `async for`; ends when the view is closed.

        Of those that wait to be taken only the last of each key is kept. Raises TopicError.
        """
        self._check_ready()
        changes = AsyncChanges(self)
        self._changes.add(changes)
        return changes

    async def close(self) -> None:
        """Disconnect."""
        await self._reader.close()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._fail(ClientClosed(f"{self.topic}: the view is closed"))

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _check_ready(self) -> None:
        self._check()
        if not self._is_ready:
            raise TopicError(f"{self.topic}: the view is not complete yet; `await view.ready()` first")

    # -------------------------------------------------------------------------------- the mapping

    # Those of several keys are as of this moment: the view goes on while a program goes through them.

    def __getitem__(self, key: str) -> T:
        """Raises KeyError, and ValueError for a value that cannot be read."""
        self._check_ready()
        value = self._values[key]
        if isinstance(value, _Unreadable):
            raise value.error
        return value

    def __iter__(self) -> Iterator[str]:
        self._check_ready()
        return iter(list(self._values))

    def __len__(self) -> int:
        self._check_ready()
        return len(self._values)

    def keys(self) -> KeysView[str]:
        self._check_ready()
        return dict.fromkeys(self._values).keys()

    def values(self) -> ValuesView[T]:
        return self._copy().values()

    def items(self) -> ItemsView[str, T]:
        return self._copy().items()

    def _copy(self) -> dict[str, T]:
        """Raises ValueError if one of the values cannot be read."""
        self._check_ready()
        copy = dict(self._values)
        for value in copy.values():
            if isinstance(value, _Unreadable):
                raise value.error
        return cast("dict[str, T]", copy)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}{self._reader._topics_text()}, {len(self._values)} keys)"

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    async def __aenter__(self) -> Self:
        try:
            return await self.ready()
        except BaseException:
            await self.close()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncChanges(AsyncIterator[Message[T]]):
    """Messages that changed a table view, as `async for` takes them."""

    def __init__(self, view: AsyncTableView[T]) -> None:
        self.bell: Final = Bell()
        self._view = view
        # Of a plain dict the first key is looked for past all that were taken: 18 s for 100,000 keys.
        self._waiting: OrderedDict[str, Message[T]] = OrderedDict()

    def put(self, key: str, message: Message[T]) -> None:
        self._waiting.pop(key, None)  # the new one goes behind those of other keys that came before it
        self._waiting[key] = message

    async def __anext__(self) -> Message[T]:
        while not self._waiting:
            failure = self._view._failure
            if isinstance(failure, ClientClosed):
                raise StopAsyncIteration
            if failure is not None:
                raise failure
            await self.bell.rung()
        return self._waiting.popitem(last=False)[1]
