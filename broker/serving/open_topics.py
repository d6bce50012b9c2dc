"""The persistent topics that a broker has open."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final, TypeVar

from broker.topic.topic import Topic
from magnetar_core.topics.topic_name import TopicName

T = TypeVar("T")

# Topics that periodic work looks at in one turn of the loop: some 20 µs each, and clients make tens of thousands.
TOPICS_PER_TURN: Final = 100


async def in_turns(topics: Mapping[TopicName, T]) -> AsyncIterator[T]:
    """All *topics* that are open; others have their turn of the loop in between."""
    for number, (name, topic) in enumerate(list(topics.items()), 1):
        if topics.get(name) is topic:  # else it was closed meanwhile, and maybe opened anew
            yield topic
        if not number % TOPICS_PER_TURN:
            await asyncio.sleep(0)


class OpenTopics(dict[TopicName, Topic]):
    """A dictionary that counts its changes and knows partitions by their topic, so that nobody has to look through ten
    thousand names each second, or for each policy that is set."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = 0
        self._partitions: dict[TopicName, set[TopicName]] = {}

    def of_base(self, base: TopicName) -> list[Topic]:
        """The topic of that name, or the partitions of it that are open."""
        partitions = [self[name] for name in self._partitions.get(base, ())]
        return [self[base], *partitions] if base in self else partitions

    def __setitem__(self, name: TopicName, topic: Topic) -> None:
        self.changes += 1
        base = name.base
        if base != name:
            self._partitions.setdefault(base, set()).add(name)
        super().__setitem__(name, topic)

    def __delitem__(self, name: TopicName) -> None:
        super().__delitem__(name)
        self._forget(name)

    def pop(self, name: TopicName, default: Topic | None = None) -> Topic | None:  # type: ignore[override]
        """The topic, which is in it no more; *default* if it was not."""
        if name not in self:
            return default
        topic = super().pop(name)
        self._forget(name)
        return topic

    def _forget(self, name: TopicName) -> None:
        """The topic *name* is open no more: note the change."""
        self.changes += 1
        base = name.base
        if base == name:
            return
        names = self._partitions[base]
        assert name in names, "every open partition is known by its topic"
        names.discard(name)
        if not names:
            del self._partitions[base]
