"""How many partitions topics have, announced again when they have more.

    the record of a partitioned topic changes ──watch on its node──▶ read anew ──▶ everybody who follows the topic

Rules:

1. A topic has one watch, however many follow it, and none when nobody does.
2. Records are read one after the other. One that cannot be read now is read again after a pause; until then its
   followers know the former number.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.store import Cancel, MetadataError
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt
from magnetar_core.topics.topic_name import TopicName

AGAIN_S: Final = 1.0
"""After a record that could not be read."""


class _Followed:
    """One partitioned topic."""

    __slots__ = ("cancel", "count", "followers")

    def __init__(self) -> None:
        self.followers: dict[object, Callable[[int], None]] = {}
        self.count = 0
        """0: not known yet, or it is not partitioned."""
        self.cancel: Cancel | None = None


class PartitionCounts:
    """The numbers of one broker; nothing is read or kept of a topic that nobody follows."""

    def __init__(
        self,
        count_of: Callable[[TopicName], Awaitable[int]],
        watch: Callable[[str, Callable[[], None]], Cancel],
        clock: Clock,
    ) -> None:
        """*count_of*: how many partitions a topic has, by its name or that of a partition. *watch*: call back when the
        node of that path changes."""
        self._count_of = count_of
        self._watch = watch
        self._clock = clock
        self._followed: dict[TopicName, _Followed] = {}
        self._due: dict[TopicName, None] = {}
        """Those to be read, in this order."""
        self._is_reading = False
        self._tasks = Tasks("partition counts")

    def known(self, topic: TopicName) -> int:
        """How many partitions the topic has of which *topic* is one; 0 if it is not known here."""
        followed = self._followed.get(topic.base)
        return 0 if followed is None else followed.count

    @contextmanager
    def following(self, topic: TopicName, on_count: Callable[[int], None]) -> Iterator[None]:
        """Until the block ends, call *on_count* with the number of partitions of the topic to which *topic* belongs:
        now or soon, and when it changes. It is never called for a topic that is not a partition."""
        if topic.partition < 0:
            yield
            return
        key = object()
        followed = self._follow(topic.base, key, on_count)
        try:
            yield
        finally:
            del followed.followers[key]
            if not followed.followers:
                self._forget(topic.base, followed)

    def _follow(self, base: TopicName, key: object, on_count: Callable[[int], None]) -> _Followed:
        """Add one that wants to know the count; a topic that nobody followed before is watched and read."""
        followed = self._followed.get(base)
        if followed is None:
            followed = self._followed[base] = _Followed()
            # Watched before it is read, so that no change is missed in between.
            followed.cancel = self._watch(base.partitions_path, partial(self._read_soon, base))
            self._read_soon(base)
        elif followed.count:
            on_count(followed.count)
        followed.followers[key] = on_count
        return followed

    async def close(self) -> None:
        for base, followed in list(self._followed.items()):
            self._forget(base, followed)
        await self._tasks.cancel()

    def _forget(self, base: TopicName, followed: _Followed) -> None:
        if self._followed.get(base) is followed:
            del self._followed[base]
        if followed.cancel is not None:
            followed.cancel()
            followed.cancel = None

    def _read_soon(self, base: TopicName) -> None:
        self._due[base] = None
        if not self._is_reading and not self._tasks.is_closed:
            self._is_reading = True
            self._tasks.spawn(self._read_all(), "reading")

    async def _read_all(self) -> None:
        """Read what is due, one topic after the other."""
        try:
            while self._due:
                base = next(iter(self._due))
                del self._due[base]  # what changes from now on may not be read
                followed = self._followed.get(base)
                if followed is not None:
                    await self._read(base, followed)
        finally:
            self._is_reading = False

    async def _read(self, base: TopicName, followed: _Followed) -> None:
        """Read how many partitions a topic has, and announce a number that is new."""

        async def count() -> int | None:
            try:
                return await self._count_of(base)
            except MetadataError:
                self._due[base] = None  # rule 2
                raise

        answer = await attempt(f"reading how many partitions {base} has", count())
        if answer is FAILED:
            if base in self._due:  # after another error it is read when it changes
                await self._clock.sleep(AGAIN_S)
            return
        assert isinstance(answer, int)
        if answer == followed.count:
            return
        followed.count = answer
        if answer:  # 0: it is not partitioned any more, and there is no number to announce
            for on_count in list(followed.followers.values()):
                on_count(answer)
