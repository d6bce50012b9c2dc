"""Lists of topics that the client of one connection watches (WATCH_TOPIC_LIST). No IO.

Rules:

1. A client is told the list once, then what came and what went, with the hash of the list as it is then.
2. A client that does not read is told later, of all that changed meanwhile at once.
3. Before each announcement the broker asks whether the client may still list the namespace. If not, the list ends
   silently, since the protocol has no command for it: the client goes on asking for the list, and is refused.
4. A pattern that is not evaluated here (`broker.binary.listing`) is refused: the client goes on asking for the list
   from time to time.
"""

import logging
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakValueDictionary

from broker.binary.admission.guard import Guard
from broker.binary.answers import Answers
from broker.binary.flow import OUTBOX_HIGH_BYTES, ClientFlow
from broker.binary.listing import Matching, topics_hash
from broker.errors import BrokerError, NotAllowed, NotReady, TooManyRequests
from broker.names import parse_namespace
from broker.security.authorization import Operation, about_namespace
from broker.settings.config import BrokerConfig
from broker.topic.ports import Outbox, Spawn
from broker.wire import pulsar_pb2 as wire
from broker.wire.frames import command
from magnetar_core.bookkeeper.metadata.stores.store import Cancel

log = logging.getLogger(__name__)

_T: Final = wire.BaseCommand

# Lists that one connection watches: each consumer of a pattern has one. Each costs the names that match.
WATCHES_MAX: Final = 1_000

# Names in the watched lists of all connections when another one is taken: some 20 bytes each, as the texts are shared.
NAMES_ALL_MAX: Final = 10_000_000


class WatchedNames:
    """The names in the lists that all connections watch."""

    __slots__ = ("_matching", "total")

    def __init__(self) -> None:
        self.total = 0
        self._matching: WeakValueDictionary[tuple[str, str, int], Matching] = WeakValueDictionary()

    def matching(self, namespace: str, pattern: str, characters_max: int) -> Matching:
        """What all share that watch the same; it is forgotten with the last of them."""
        key = namespace, pattern, characters_max
        matching = self._matching.get(key)
        if matching is None:
            matching = self._matching[key] = Matching(pattern, characters_max)
        return matching


class WatchBroker(Protocol):
    """The broker, as watches use it."""

    config: BrokerConfig
    watched_names: "WatchedNames"

    async def watch_topics(self, namespace: str, changed: Callable[[list[str]], None]) -> tuple[list[str], Cancel]:
        """Raises BrokerError."""
        ...


class _Watch:
    """One list."""

    __slots__ = ("cancel", "is_announcing", "latest", "matching", "namespace", "topics", "watcher_id")

    def __init__(self, watcher_id: int, namespace: str, matching: Matching) -> None:
        self.watcher_id = watcher_id
        self.namespace = namespace
        self.matching = matching
        self.topics: dict[str, None] | None = None
        """What the client knows; None until it was told the first time."""
        self.latest: list[str] | None = None
        """All topics of the namespace, if they changed and the client was not told yet."""
        self.is_announcing = False
        self.cancel: Cancel | None = None

    def matches(self, topics: list[str]) -> dict[str, None]:
        matches = self.matching.matches_of(topics)
        assert matches is not None, "only patterns that are evaluated here are watched (rule 4)"
        return matches

    def update(self, topics: list[str]) -> bytes | None:
        """The frame with the difference; None if there is none."""
        former_topics, self.topics = self.topics or {}, self.matches(topics)
        new = [topic for topic in self.topics if topic not in former_topics]
        deleted = [topic for topic in former_topics if topic not in self.topics]
        if not new and not deleted:
            return None
        return command(
            _T.WATCH_TOPIC_UPDATE,
            watcher_id=self.watcher_id,
            new_topics=new,
            deleted_topics=deleted,
            topics_hash=topics_hash(self.topics),
        )


class ConnectionWatches:
    """The watched lists of one connection."""

    __slots__ = ("_answers", "_broker", "_flow", "_guard", "_is_lost", "_outbox", "_spawn", "_watches")

    def __init__(
        self, broker: WatchBroker, answers: Answers, flow: ClientFlow, guard: Guard, outbox: Outbox, spawn: Spawn
    ) -> None:
        self._broker = broker
        self._answers = answers
        self._flow = flow
        self._guard = guard
        self._outbox = outbox
        self._spawn = spawn
        self._watches: dict[int, _Watch] | None = None  # most connections watch nothing
        self._is_lost = False

    def on_watch(self, request: wire.CommandWatchTopicList) -> None:
        """WATCH_TOPIC_LIST: the topics that match, and from then on what changes."""

        async def work() -> bytes:
            namespace, pattern = request.namespace, request.topics_pattern
            parse_namespace(namespace)
            await self._guard.check(about_namespace(Operation.GET_TOPICS, namespace))
            config = self._broker.config
            if not (config.evaluates_patterns and config.watches_topic_lists):
                raise NotAllowed(
                    "Topic lists are not watched: enableBrokerSideSubscriptionPatternEvaluation or "
                    "enableBrokerTopicListWatcher is false"
                )
            if self._is_lost:
                raise NotReady("The connection is gone")
            watches = self._watches
            if watches is None:
                watches = self._watches = {}
            watch = watches.get(request.watcher_id)
            if watch is None:
                if len(watches) >= WATCHES_MAX:
                    raise TooManyRequests(f"This connection watches {WATCHES_MAX} lists of topics already")
                characters_max = config.pattern_characters_max
                matching = self._broker.watched_names.matching(namespace, pattern, characters_max)
                if not matching.is_evaluated:
                    raise NotAllowed(
                        f"The pattern {pattern} is left to the client: evaluated here are text and .* in at most "
                        f"{characters_max} characters"
                    )
                watch = _Watch(request.watcher_id, namespace, matching)
                watches[request.watcher_id] = watch
                try:
                    await self._begin(watch)
                except BaseException:
                    if watches.get(request.watcher_id) is watch:
                        del watches[request.watcher_id]
                    raise
            if watch.topics is None:
                raise NotReady(f"Watcher {request.watcher_id} is being made")
            hash_ = topics_hash(watch.topics)
            return command(
                _T.WATCH_TOPIC_LIST_SUCCESS,
                request_id=request.request_id,
                watcher_id=watch.watcher_id,
                topic=[] if request.topics_hash == hash_ else list(watch.topics),
                topics_hash=hash_,
            )

        self._answers.later_or_error(work, request.request_id, "watching topics")

    async def _begin(self, watch: _Watch) -> None:
        """Watch the namespace, and keep the topics that match. Raises NotReady: the watch was closed meanwhile;
        TooManyRequests."""

        def changed(topics: list[str]) -> None:
            self._on_topics(watch, topics)

        topics, cancel = await self._broker.watch_topics(watch.namespace, changed)
        if self._watches is None or self._watches.get(watch.watcher_id) is not watch:
            cancel()
            raise NotReady("The watcher was closed before it was made")
        matches = watch.matches(topics)
        names = self._broker.watched_names
        if names.total + len(matches) > NAMES_ALL_MAX:
            cancel()
            raise TooManyRequests(f"The lists that clients of this broker watch have {names.total:,} names already")
        names.total += len(matches)
        watch.cancel, watch.topics = cancel, matches
        if watch.latest is not None:  # it has changed meanwhile
            self._on_topics(watch, watch.latest)

    def on_close(self, request: wire.CommandWatchTopicListClose) -> None:
        """WATCH_TOPIC_LIST_CLOSE: also of one that is not there."""
        watch = None if self._watches is None else self._watches.pop(request.watcher_id, None)
        if watch is not None:
            self._end(watch)
        self._answers.success(request.request_id)

    def on_lost(self) -> None:
        """The connection is gone."""
        self._is_lost = True
        watches, self._watches = self._watches, None
        for watch in () if watches is None else watches.values():
            self._end(watch)

    def _end(self, watch: _Watch) -> None:
        if watch.cancel is not None:
            watch.cancel()
            self._broker.watched_names.total -= len(watch.topics or ())
            assert self._broker.watched_names.total >= 0, "more names went than came"

    def _on_topics(self, watch: _Watch, topics: list[str]) -> None:
        watch.latest = topics
        if watch.topics is not None and not watch.is_announcing:
            watch.is_announcing = True
            self._spawn(self._announce(watch), "announcing topics")

    async def _announce(self, watch: _Watch) -> None:
        try:
            while watch.latest is not None:
                if self._flow.unsent_bytes > OUTBOX_HIGH_BYTES:
                    await self._outbox.until_drained()
                topics, watch.latest = watch.latest, None
                may_still = await self._may_still(watch)
                if self._watches is None or self._watches.get(watch.watcher_id) is not watch:
                    return
                if not may_still:
                    del self._watches[watch.watcher_id]
                    self._end(watch)
                    return
                former_count = len(watch.topics or ())
                frame = watch.update(topics)
                self._broker.watched_names.total += len(watch.topics or ()) - former_count
                if frame is not None:
                    self._flow.write(frame)
        finally:
            watch.is_announcing = False

    async def _may_still(self, watch: _Watch) -> bool:
        """Whether the client may still list the topics (rule 3). Where that cannot be found out, it may not: its client
        asks for the list itself then."""
        try:
            await self._guard.check(about_namespace(Operation.GET_TOPICS, watch.namespace))
        except BrokerError as error:
            log.info("the watched list %d of %s ends: %s", watch.watcher_id, watch.namespace, error)
            return False
        return True
