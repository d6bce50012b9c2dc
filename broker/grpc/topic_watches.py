"""All WatchTopics calls of a broker: the topics of a namespace, and what comes and goes.

Rules:

1. A client is told the list once, then what came and what went. One that does not read is told later, of all that
   changed meanwhile at once. What is too long for one answer goes in several.
2. Before each answer the broker asks whether the client may still list the namespace; if not, the call ends.
3. A pattern that is not evaluated here (`broker.binary.listing`) stands for all topics; clients look at the names.
4. The names of all calls count among those that clients of the broker watch, on both ports.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final

from broker.binary.listing import Matching
from broker.binary.watches import NAMES_ALL_MAX
from broker.broker import Broker
from broker.errors import NotAllowed, NotReady, TooManyRequests
from broker.grpc.callers import caller_of, source_of
from broker.grpc.requests import Requests
from broker.names import parse_namespace
from broker.security.authorization import Operation, about_namespace
from magnetar_core.runtime.types import MIB
from magnetar_core.topics import topics_pb2 as api

# Names of one answer: gRPC's clients take 4 MiB of a message, where nobody has said otherwise.
ANSWER_BYTES_MAX: Final = 1 * MIB

# Bytes that stand before each name.
_NAME_HEAD: Final = 4

DEFAULT_NAMESPACE: Final = "public/default"

_MOVED: Final = NotReady("closed by the broker")


class _Watch:
    """One call."""

    def __init__(self, namespace: str, matching: Matching | None) -> None:
        """*matching*: None for all topics."""
        self.namespace = namespace
        self._matching = matching
        self.known: dict[str, None] = {}
        """The topics that were sent to the client."""
        self.latest: list[str] | None = None
        """All topics of the namespace, if they were not sent to the client yet."""
        self.is_ended = False
        self.changed = asyncio.Event()

    def on_topics(self, topics: list[str]) -> None:
        self.latest = topics
        self.changed.set()

    def end(self) -> None:
        self.is_ended = True
        self.changed.set()

    def update(self, topics: list[str]) -> tuple[list[str], list[str]]:
        """The topics that came, and those that went, since this was asked last; they are sent to the client now."""
        matches = None if self._matching is None else self._matching.matches_of(topics)
        former, self.known = self.known, dict.fromkeys(topics) if matches is None else matches  # rule 3
        return [name for name in self.known if name not in former], [name for name in former if name not in self.known]


def answers(new: Iterable[str], deleted: Iterable[str]) -> Iterator[api.WatchTopicsResponse]:
    """One answer, also if nothing has changed, or as many as it takes."""
    answer, size = api.WatchTopicsResponse(), 0
    for is_new, names in ((True, new), (False, deleted)):
        for name in names:
            size += len(name.encode()) + _NAME_HEAD
            if size > ANSWER_BYTES_MAX:
                answer.more = True
                yield answer
                answer, size = api.WatchTopicsResponse(), len(name.encode()) + _NAME_HEAD
            (answer.new_topics if is_new else answer.deleted_topics).append(name)
    yield answer


class TopicWatches:
    """All WatchTopics calls of a broker."""

    def __init__(self, broker: Broker, requests: Requests) -> None:
        self._broker = broker
        self._requests = requests
        self._watches: dict[_Watch, None] = {}

    def end(self) -> None:
        """End all calls; their clients ask another broker."""
        for watch in list(self._watches):
            watch.end()

    async def serve(self, call: Any) -> None:
        """One WatchTopics call. Raises Refused, BrokerError."""
        source = source_of(call)
        with self._requests.stream(source):
            request = await self._requests.of_role(call, source)
            namespace = request.namespace or DEFAULT_NAMESPACE
            parse_namespace(namespace)
            await self._check(call, namespace)
            config = self._broker.config
            if not (config.evaluates_patterns and config.watches_topic_lists):
                raise NotAllowed(
                    "lists of topics are not watched: enableBrokerSideSubscriptionPatternEvaluation or "
                    "enableBrokerTopicListWatcher is false",
                    way_out="set both to true, or name the topics",
                )
            await self._broker.namespace(namespace)
            self._broker.arrivals.work_for(source)
            matching = None
            if request.pattern:
                names = self._broker.watched_names
                matching = names.matching(namespace, request.pattern, config.pattern_characters_max)
            await self._tell(call, _Watch(namespace, matching))

    async def _check(self, call: Any, namespace: str) -> None:
        """Raises BrokerError unless the caller may list the namespace."""
        await self._broker.access.check(caller_of(call), about_namespace(Operation.GET_TOPICS, namespace))

    async def _tell(self, call: Any, watch: _Watch) -> None:
        topics, cancel = await self._broker.watch_topics(watch.namespace, watch.on_topics)
        self._watches[watch] = None
        names = self._broker.watched_names
        counted = 0
        try:
            if watch.latest is None:
                watch.on_topics(topics)
            is_first = True
            while True:
                await watch.changed.wait()
                watch.changed.clear()
                if watch.is_ended:
                    raise _MOVED
                topics, watch.latest = watch.latest or [], None
                await self._check(call, watch.namespace)  # rule 2
                new, deleted = watch.update(topics)
                names.total += len(watch.known) - counted  # rule 4
                counted = len(watch.known)
                if is_first and names.total > NAMES_ALL_MAX:
                    raise TooManyRequests(
                        f"the lists that clients of this broker watch have {NAMES_ALL_MAX:,} names already"
                    )
                if is_first or new or deleted:
                    for answer in answers(new, deleted):
                        await call.write(answer)
                is_first = False
        finally:
            names.total -= counted
            del self._watches[watch]
            cancel()
