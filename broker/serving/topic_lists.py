"""The persistent topics of namespaces, reported again to their watchers when they have changed.

    a topic is made or deleted ──watch on the namespace's node──▶ settle ──list anew──▶ every watcher of the namespace

Rule: each report is the whole list as it stands, so a change that was missed, or reported twice, does no harm. Changes
that come close together are reported as one; with ten thousand topics a list takes its time, and is made so seldom that
it takes a tenth of it.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from magnetar_core.bookkeeper.metadata.stores.store import Cancel
from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.tasks import FAILED, Tasks, attempt

Changed = Callable[[list[str]], None]

SETTLE_S: Final = 0.1
"""Topics that are made together, as the partitions of one are, are reported together."""
PAUSE_FACTOR: Final = 10
"""After a list that took one second, the next one waits so many."""
RETRY_S: Final = 1.0
"""After a list that failed."""


class _Watched:
    """One namespace."""

    __slots__ = ("cancel", "is_due", "list_s", "watchers")

    def __init__(self) -> None:
        self.watchers: dict[object, Changed] = {}
        self.cancel: Cancel | None = None
        self.is_due = False
        """A list is about to be made."""
        self.list_s = 0.0
        """How long the last list took."""


class TopicLists:
    """The lists of one broker; nothing is read or kept of a namespace that nobody watches."""

    def __init__(
        self,
        list_topics: Callable[[str], Awaitable[list[str]]],
        watch: Callable[[str, Callable[[], None]], Cancel],
        clock: Clock,
    ) -> None:
        """*list_topics*: the full names of a namespace's topics. *watch*: call back when one is made or deleted."""
        self._list_topics = list_topics
        self._watch = watch
        self._clock = clock
        self._watched: dict[str, _Watched] = {}
        self._tasks = Tasks("topic lists")

    async def watch(self, namespace: str, changed: Changed) -> tuple[list[str], Cancel]:
        """The topics now; *changed* gets all of them after each change. Raises what listing raises."""
        watched = self._watched.get(namespace)
        if watched is None:
            watched = self._watched[namespace] = _Watched()
            # Watched before it is listed, so that no change is missed in between.
            watched.cancel = self._watch(namespace, partial(self._on_change, namespace))
        key = object()
        watched.watchers[key] = changed

        def cancel() -> None:
            if watched.watchers.pop(key, None) is not None and not watched.watchers:
                self._forget(namespace, watched)

        try:
            return await self._list(namespace, watched), cancel
        except BaseException:
            cancel()
            raise

    async def close(self) -> None:
        for namespace, watched in list(self._watched.items()):
            self._forget(namespace, watched)
        await self._tasks.cancel()

    def _forget(self, namespace: str, watched: _Watched) -> None:
        if self._watched.get(namespace) is watched:
            del self._watched[namespace]
        if watched.cancel is not None:
            watched.cancel()
            watched.cancel = None

    async def _list(self, namespace: str, watched: _Watched) -> list[str]:
        began_s = self._clock.monotonic()
        topics = await self._list_topics(namespace)
        watched.list_s = self._clock.monotonic() - began_s
        return topics

    def _on_change(self, namespace: str) -> None:
        watched = self._watched.get(namespace)
        if watched is not None and not watched.is_due:
            watched.is_due = True
            self._tasks.spawn(self._report(namespace, watched), f"topics of {namespace}")

    async def _report(self, namespace: str, watched: _Watched) -> None:
        """List the topics once more, after a pause, and give the list to all watchers; again until that succeeds."""
        wait_s = max(SETTLE_S, PAUSE_FACTOR * watched.list_s)
        while True:
            await self._clock.sleep(wait_s)
            if self._watched.get(namespace) is not watched:
                return
            assert watched.watchers, "a namespace that nobody watches any more is forgotten"
            watched.is_due = False  # what changes from now on may not be in the list
            topics = await attempt(f"listing the topics of {namespace}", self._list(namespace, watched))
            if topics is not FAILED:
                assert isinstance(topics, list)
                for changed in list(watched.watchers.values()):
                    changed(topics)
                return
            if watched.is_due:
                return  # another one has begun meanwhile
            watched.is_due = True
            wait_s = RETRY_S
