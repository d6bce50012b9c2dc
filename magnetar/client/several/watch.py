"""The topics of a pattern, as a broker tells of them: all at first, then what comes and goes.

A call that broke is opened again at any broker; then the difference to what was known is told. Long lists come in
several answers, which are joined.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Literal

from magnetar.client.brokers import Brokers, garbage
from magnetar.client.errors import TopicError
from magnetar.client.several.pattern import Pattern
from magnetar.client.stream import Stream
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.topic_name import TopicNameError


class TopicWatch(Stream):
    """The topics of one pattern."""

    _kind: Literal["producer", "consumer"] = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        pattern: Pattern,
        changed: Callable[[Sequence[str], Sequence[str]], None],
        ended: Callable[[], None],
    ) -> None:
        """*changed* is called with the topics that have come, and those that have gone; *ended* when there are no news
        any more, and `failure` says why."""
        opening = api.WatchTopicsRequest(namespace=pattern.namespace, pattern=pattern.of_names)
        super().__init__(brokers, pattern.text, opening)
        self.topics: dict[str, None] = {}
        """Those that are there."""
        self._pattern = pattern
        self._changed = changed
        self._ended = ended

    async def open(self) -> None:
        """Return when the topics are known. Raises TopicError."""
        self._begin(await self._open())

    async def _attempt(self) -> Any:
        call, answer = await self._brokers.open_anywhere(
            self.topic, "WatchTopics", self._opening, api.WatchTopicsRequest, api.WatchTopicsResponse
        )
        try:
            self._apply(await self._joined(call, answer), {})
        except BaseException:
            call.cancel()
            raise
        return call

    async def _next_answer(self, call: Any) -> Any:
        return await self._joined(call, await super()._next_answer(call))

    async def _joined(self, call: Any, answer: Any) -> Any:
        """*answer*, with those that belong to it. Raises TopicError when the call is over."""
        last = answer
        while last.more:
            last = await super()._next_answer(call)
            answer.MergeFrom(last)
        return answer

    def _on_answer(self, answer: Any) -> None:
        self._apply(answer, self.topics)

    def _apply(self, answer: Any, told_by_call: dict[str, None]) -> None:
        """Take over what *answer* says, and report what changed.

        *told_by_call*: the topics that its call has told so far. Before the first answer, which lists all, there are
        none: topics that vanished while no call was open are noticed then.
        """
        try:
            new = list(self._pattern.matching(answer.new_topics))
        except TopicNameError:
            raise garbage("the broker that lists topics") from None
        gone = set(answer.deleted_topics)
        now = dict.fromkeys([*(name for name in told_by_call if name not in gone), *new])
        known, self.topics = self.topics, now
        come, went = [name for name in now if name not in known], [name for name in known if name not in now]
        if come or went:
            self._changed(come, went)

    def _next(self) -> Any:
        return None

    def _explained(self, error: TopicError) -> TopicError:
        if error.code != "UNIMPLEMENTED":
            return error
        return TopicError(
            f"{self.topic}: the broker knows no patterns; name the topics, or update the broker", error.code
        )

    def _on_failure(self, error: TopicError) -> None:
        self._ended()

    async def close(self) -> None:
        self._end_soon()
        if self._task is not None:  # the broker would not notice that nothing is asked any more
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
