"""A topic whose work on traced messages is shown as spans. Without tracing a topic is of the plain class, at no cost.

    publish    from the message's arrival to its receipt       belongs to the sender's span
      store    from the request to storage to its answer       part of `publish`
    dispatch   when the entry is sent to a consumer            belongs to the sender's span

There is a span for an entry, not for each message of a batch.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from broker.topic.clients.consumer import Consumer, Deliver
from broker.topic.clients.producer import Producer
from broker.topic.publishing.publishing import Pending
from broker.topic.reading.subscription import Subscription
from broker.topic.requests import SubscribeRequest
from broker.topic.topic import Topic
from broker.topic.trace_context import Facts, Span, Tracing, parent_of
from broker.wire.frames import Send
from magnetar_core.runtime.types import Buffer
from managed_ledger.errors import ManagedLedgerError
from managed_ledger.position import Position

# Traced entries of a topic that storage has not answered, some 1 KB each. A producer may have 1,000 under way; what was
# answered at once as a duplicate is never asked for again and goes when others come.
OPEN_SPANS_MAX: Final = 1_000

_MESSAGING: Final[dict[str, str | int]] = {"messaging.system": "pulsar"}


class _Open(NamedTuple):
    """The spans of an entry that storage has not answered."""

    publish: Span
    store: Span

    def end(self, error: str) -> None:
        self.store.end(error)
        self.publish.end(error)


class TracedTopic(Topic):
    """A topic with spans (see the module)."""

    def __init__(self, *arguments: Any, tracing: Tracing) -> None:
        super().__init__(*arguments)
        self._tracing = tracing
        self._open: OrderedDict[tuple[Producer, int], _Open] = OrderedDict()

    def publish(self, run: Sequence[tuple[Producer, Send]]) -> None:
        if not (self.is_closed or self.is_fenced or self._is_closing):
            for producer, send in run:
                if parent := parent_of(send.entry):
                    self._begin(producer, send, parent)
        super().publish(run)

    def _begin(self, producer: Producer, send: Send, parent: str) -> None:
        facts = {
            **_MESSAGING,
            "messaging.destination.name": self.name.full,
            "messaging.batch.message_count": send.num_messages,
            "messaging.message.envelope.size": len(send.entry),
        }
        publish = self._tracing.start("publish", parent, facts)
        former = self._open.pop((producer, send.sequence_id), None)
        if former is not None:  # the chunks of a message have one sequence id
            former.end("")
        self._open[producer, send.sequence_id] = _Open(publish, publish.child("store"))
        if len(self._open) > OPEN_SPANS_MAX:
            self._open.popitem(last=False)[1].end("it was never answered by storage")

    def on_appended(self, ledger_id: int, first_entry_id: int, contexts: Sequence[Pending]) -> None:
        if not self._open:
            super().on_appended(ledger_id, first_entry_id, contexts)
            return
        done = []
        for entry_id, pending in enumerate(contexts, first_entry_id):
            spans = self._open.pop((pending.producer, pending.sequence_id), None)
            if spans is not None:
                spans.store.end("", {"messaging.message.id": f"{ledger_id}:{entry_id}"})
                done.append(spans.publish)
        super().on_appended(ledger_id, first_entry_id, contexts)
        for publish in done:
            publish.end()

    def on_append_failed(self, contexts: Sequence[Pending], error: ManagedLedgerError) -> None:
        for pending in contexts:
            spans = self._open.pop((pending.producer, pending.sequence_id), None)
            if spans is not None:
                spans.end(str(error) or type(error).__name__)
        super().on_append_failed(contexts, error)

    def on_closed(self, error: ManagedLedgerError) -> None:
        while self._open:
            self._open.popitem()[1].end(str(error) or type(error).__name__)
        super().on_closed(error)

    async def subscribe(self, request: SubscribeRequest) -> Subscription:
        consumer = request.consumer
        facts: Facts = {
            **_MESSAGING,
            "messaging.destination.name": self.name.full,
            "messaging.destination.subscription.name": request.subscription,
            "messaging.consumer.name": consumer.name,
        }
        consumer.deliver = _traced(consumer.deliver, self._tracing, facts)
        return await super().subscribe(request)


def _traced(deliver: Deliver, tracing: Tracing, facts: Facts) -> Deliver:
    """*deliver*, with a span for each traced entry."""

    def traced(consumer: Consumer, position: Position, entry: Buffer, *more: Any) -> int:
        parent = parent_of(entry)
        if not parent:
            return deliver(consumer, position, entry, *more)
        span = tracing.start("dispatch", parent, facts)
        size_bytes = deliver(consumer, position, entry, *more)
        span.end()
        return size_bytes

    return traced
