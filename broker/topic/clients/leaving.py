"""Clients that have to leave a topic are told one after the other, and others have their turn in between. No IO.

Rules:

1. Those that have to leave are out at once, before the first of them is told: nothing goes to them any more.
2. A consumer that leaves by itself meanwhile is not told: its client may have asked for the same id again.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Final

from broker.topic.clients.consumer import Consumer
from broker.topic.ports import NOT_KNOWN, NextBroker

# Clients of a topic that are told in one turn of the loop that they are closed: some 10 µs each, and a hundred topics
# may be closed at a time.
NOTIFIED_PER_TURN: Final = 50

Steps = Generator[None, None, None]


class Leaving:
    """Consumers of one subscription that are detached, and whose clients are not told yet."""

    __slots__ = ("_consumers",)

    def __init__(self) -> None:
        self._consumers: dict[Consumer, None] = {}

    def __iter__(self) -> Iterator[Consumer]:
        return iter(self._consumers)

    def __contains__(self, consumer: Consumer) -> bool:
        return consumer in self._consumers

    def add(self, consumers: Iterable[Consumer]) -> None:
        self._consumers.update(dict.fromkeys(consumers))

    def remove(self, consumer: Consumer) -> None:
        del self._consumers[consumer]

    def notify(self, on_leaving: Callable[[Consumer], None], next_broker: NextBroker = NOT_KNOWN) -> Steps:
        """Tell their clients, which subscribe again by themselves, at *next_broker*; one with each step. *on_leaving*
        gets each before it is told."""
        for consumer in list(self._consumers):
            if consumer in self._consumers:  # rule 2
                self.remove(consumer)
                on_leaving(consumer)
                consumer.sink.on_closed(consumer, next_broker)
                yield


def by_turns(steps: Iterable[None]) -> Steps:
    """*steps*, as many in one as are done in one turn of the loop."""
    for number, _ in enumerate(steps, 1):
        if not number % NOTIFIED_PER_TURN:
            yield
