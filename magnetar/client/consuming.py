"""One consumer of one topic: permits and acks go out, messages come into a queue that the program takes them from.

Rules:

1. Permits are granted as the program takes messages, so that never more than the size of the queue is on its way.
2. When the call is opened again, or the broker reports a rewind, messages that the program has not taken are dropped
   from the queue: they are delivered again. A reader continues behind the last message that the program took.
3. Acks are sent before the request that follows them. Those that the broker refuses are an error of the next request
   that waits, or of the log: others are not touched by that.
4. A batch cost the permits of all its messages. Those that are not in it (it is damaged), or that compaction emptied,
   are granted anew; the latter are acknowledged.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from magnetar.client.base.rpc import grpc, log
from magnetar.client.brokers import Brokers, ended, garbage
from magnetar.client.codecs.versions import Decoder
from magnetar.client.errors import ClientClosed, TopicError, TopicUnavailable
from magnetar.client.retries.letters import Letters
from magnetar.client.stream import CLOSE_S, Phase, Stream
from magnetar.client.values import Message, id_from_api, id_to_api, put_acks, without_messages
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batches import BATCHED_BYTES_MIN, runs
from magnetar_core.topics.message_id import LATEST, MessageId
from magnetar_core.topics.topic_name import TopicName

# A batch index behind those of all messages of an entry.
_WHOLE_ENTRY: Final = 2**31 - 1


def _end_of(id_: MessageId) -> MessageId:
    """The end of what was taken with *id_*. Without a batch index that is all of an entry: also of a batch that is
    damaged or encrypted, which comes as one message."""
    return id_ if id_.batch_index >= 0 else replace(id_, batch_index=_WHOLE_ENTRY)


class ConsumeStream(Stream):
    """One consumer of one topic (one partition): opened again until it is closed.

    `take` and the methods ending in `_soon` may be called from another thread than the loop's.
    """

    _kind: Literal["producer", "consumer"] = "consumer"

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        opening: Any,
        queue: Any,
        queue_size: int,
        partition: int,
        start_ms: int,
        letters: Letters | None = None,
        decoder: Decoder | None = None,
    ) -> None:
        """*letters*: where messages go that were delivered too often. *decoder*: reads values; None: they are bytes."""
        super().__init__(brokers, topic, opening)
        opening.takes_batches = True
        self.decoder = decoder
        self.schema_topic = TopicName.parse(topic).base.full
        self._prepares = decoder is not None and decoder.needs_versions
        self.partition = partition
        self.is_reader = opening.is_reader
        self.has_copies = False
        """The topic is the retry topic of its consumer."""
        self.position: MessageId | None = None
        """The last message that the program took; for a reader at the end, the last one when it began; after a seek,
        the place in front of the next one."""
        self.end: MessageId | None = None
        """The last message of the topic when the broker was asked; None if it was not, or messages may be gone."""
        self.generation = 0
        self.buried = 0
        """Messages of the last deliveries that went to the dead letter topic instead of the program."""
        self._queue = queue
        self._queue_size = queue_size
        self._start_ms = start_ms
        self._letters = letters
        # The program's thread writes the first count, the loop's thread the second, so that no update gets lost.
        self._taken = 0
        self._granted = 0
        self._is_grant_due = False
        self._answered = 0
        """Messages that were acknowledged or given back, as far as that was sent."""
        self._unsubscribe_id = 0
        self._acks: list[Message[Any] | MessageId] = []
        self._refused_acks: TopicError | None = None
        """Why acks since the last request that waited were refused."""
        self._permits = 0
        self._requests: list[api.ConsumeRequest] = []
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._doubtful: list[tuple[asyncio.Future[None], TopicError]] = []
        """Answers that a call which broke owes, and why it broke: if the topic is deleted, nobody needs them."""
        self._is_left = False
        self._last_request_id = 0
        self._is_flush_due = False
        self._loop = asyncio.get_running_loop()

    async def open(self) -> None:
        """Raises TopicError."""
        call = await self._open()
        self._begin(call)

    async def _attempt(self) -> Any:
        opening = self._opening
        if self.is_reader and self.position is not None:
            opening = api.ConsumeRequest.Open()
            opening.CopyFrom(self._opening)
            opening.from_earliest = False
            opening.start_inclusive = False
            opening.start_id.CopyFrom(id_to_api(self.position))
            if self.position.entry_id < 0:
                opening.ClearField("start_id")
                opening.from_earliest = True
        first = api.ConsumeRequest(open=opening)
        call, answer = await self._brokers.open(self.topic, "Consume", first, api.ConsumeRequest, api.ConsumeResponse)
        starts_at_end = opening.HasField("start_id") and opening.start_id.ledger_id == LATEST.ledger_id
        if (
            self.is_reader
            and self.position is None
            and (starts_at_end or not (opening.HasField("start_id") or opening.from_earliest))
        ):
            self.position = id_from_api(answer.opened.last_id)
        if self._start_ms and self.position is None:
            await self._go_to_start(call)
        self._opening.consumer_name = answer.opened.consumer_name
        self._start_anew()
        return call

    async def _go_to_start(self, call: Any) -> None:
        """Seek a reader to the time at which it begins, and wait for the answer. Raises TopicError."""
        request = api.ConsumeRequest(request_id=2**63)
        request.seek.time_ms = self._start_ms
        try:
            async with asyncio.timeout(self._brokers.timeout_s):
                await call.write(request)
                while True:
                    answer = await call.read()
                    if answer is grpc.aio.EOF:
                        raise await ended(call, self.topic)
                    if answer is None:
                        raise garbage(f"the broker that serves {self.topic}")
                    if answer.partitions:
                        self.hear_of_partitions(answer.partitions)
                    if answer.HasField("rewound"):
                        self._stand_behind(answer.rewound.after_id)
                    if answer.done == request.request_id:
                        break
        except TimeoutError:
            call.cancel()
            raise TopicUnavailable(f"{self.topic}: the broker does not answer", "UNAVAILABLE") from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await ended(call, self.topic) from None
        if answer.error:
            raise TopicUnavailable(f"{self.topic}: {answer.error}", "UNAVAILABLE")

    def _stand_behind(self, entry: api.MessageId) -> None:
        self.position = MessageId(entry.ledger_id, entry.entry_id, self.partition, _WHOLE_ENTRY)

    def _start_anew(self) -> None:
        """Drop the messages that the program has not taken, which are delivered again, and count permits from zero."""
        self.generation += 1
        self.end = None
        self._queue.drop(self)
        self._granted = self._taken
        self._permits = self._queue_size
        self._wake.set()

    def _vanished(self) -> None:
        self._opening.from_earliest = True  # if it is made again, all that is in it is new
        self._settle(None)

    def leave(self) -> None:
        """The topic is not there any more: nothing that waits for the program comes from it, and requests are over."""
        self.generation += 1
        self._is_left = True
        self._settle(None)

    def _on_failure(self, error: TopicError) -> None:
        self._broken(error)
        self._queue.bell.ring()

    def _broken(self, error: TopicError) -> None:
        if not self.may_vanish or self._phase is Phase.ENDING:
            self._settle(error)
            return
        self._doubtful += [(future, error) for future in self._answers.values()]
        self._answers.clear()
        self._requests.clear()

    def _reopened(self) -> None:
        doubtful, self._doubtful = self._doubtful, []
        for future, error in doubtful:
            if not future.done():
                future.set_exception(error)

    def _settle(self, error: TopicError | None) -> None:
        """End all requests: with *error*, or, if it is None, as done."""
        futures = [*(future for future, _ in self._doubtful), *self._answers.values()]
        self._doubtful.clear()
        self._answers.clear()
        self._requests.clear()
        for future in futures:
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

    def _next(self) -> api.ConsumeRequest | None:
        if self._acks or self._permits:
            request = api.ConsumeRequest(permits=self._permits)
            self._permits = 0
            count = min(len(self._acks), 10_000)
            if count:
                put_acks(request, self._acks[:count])
                del self._acks[:count]
                self._answered += count
            last = self.position
            if (
                self.is_reader
                and last is not None
                and last.entry_id >= 0
                and last.batch_index < max(last.batch_size, 1)
            ):
                request.cumulative_ack.CopyFrom(id_to_api(last))
            return request
        if not self._requests:
            return None
        request = self._requests.pop(0)
        self._answered += len(request.acks) + len(request.nack.ids)
        self._answered += sum(run.last - run.first.batch_index + 1 for run in request.ack_runs)
        return request

    async def _prepare(self, answer: Any) -> None:
        assert self.decoder is not None, "only values of Avro need it"
        await self.decoder.learn(self.schema_topic, (delivery.schema_version for delivery in answer.deliveries))

    def _on_answer(self, answer: Any) -> None:
        if answer.partitions:
            self.hear_of_partitions(answer.partitions)
        if answer.HasField("rewound"):
            self._start_anew()
            if self.is_reader:
                self._stand_behind(answer.rewound.after_id)
        if answer.deliveries:
            messages = self._messages(answer.deliveries)
            if self._letters is not None:
                came = len(messages)
                messages = self._letters.without_dead(self, answer.deliveries, messages)
                self._answered -= came - len(messages)  # they will be, and are not taken
            self._queue.put(self, messages)
        if answer.error and not answer.done:
            log.warning("%s: acknowledgements are refused: %s", self.topic, answer.error)
            self._refused_acks = TopicError(
                f"{self.topic}: acknowledgements are refused: {answer.error}", "INVALID_ARGUMENT"
            )
        if answer.done and answer.done == self._unsubscribe_id and not answer.error:
            self._end_soon()  # otherwise the stream would be opened again, and subscribe
        if answer.done:
            future = self._answers.pop(answer.done, None)
            if future is not None and not future.done():
                if answer.error:
                    future.set_exception(TopicError(f"{self.topic}: {answer.error}", "FAILED_PRECONDITION"))
                else:
                    future.set_result(None)

    def _messages(self, deliveries: Iterable[Any]) -> list[Message[Any]]:
        messages: list[Message[Any]] = []
        for delivery in deliveries:
            if batch := delivery.batch:
                self._take_apart(delivery, batch, messages)
            else:
                messages += [Message.of(self.topic, delivery, self, message) for message in delivery.messages]
        if (telemetry := self._brokers.telemetry) is not None and messages:
            telemetry.received(self.topic, len(messages))
        return messages

    def _take_apart(self, delivery: Any, batch: bytes, messages: list[Message[Any]]) -> None:
        """Put the messages of a *batch* behind *messages* (rule 4). Raises TopicError for what no broker sends."""
        topic, count, before = self.topic, delivery.batch_size, len(messages)
        delivery = without_messages(delivery)  # the payloads are cut out of the batch, which is in memory no longer
        if not 0 < count <= len(batch) // BATCHED_BYTES_MIN:
            raise garbage(f"the broker that serves {topic}")
        problem = ""
        try:
            for first, run in runs(batch, count):
                messages += [
                    Message(topic, delivery, self, index, payload, head)
                    for index, (head, payload) in enumerate(run, first)
                ]
        except Corruption as error:
            problem = f"{topic}: {delivery.ledger_id}:{delivery.entry_id}: {error}"
        missing = count - (len(messages) - before)
        if not missing:
            return
        if problem:
            damaged = api.ConsumeResponse.Delivery(
                ledger_id=delivery.ledger_id,
                entry_id=delivery.entry_id,
                redelivery_count=delivery.redelivery_count,
                problem=problem,
            )
            messages.append(Message.of(topic, damaged, self, api.Message(payload=batch)))
            missing -= 1
        else:
            there = {message.id.batch_index for message in messages[before:]}
            emptied = [index for index in range(count) if index not in there]
            self._acks += [Message(topic, delivery, self, index, b"", b"") for index in emptied]
            self._answered -= len(emptied)  # they will be, and are not taken
        self._permits += missing
        self._wake.set()

    def is_before_end(self) -> bool:
        """Whether a reader has yet to take the last message that is known."""
        return self.end is not None and self.is_before(self.end)

    def is_before(self, last: MessageId) -> bool:
        """Whether a reader has yet to take *last*."""
        if last.entry_id < 0:
            return False
        if self.position is not None:
            return _end_of(self.position) < last
        if self._opening.from_earliest:
            return True
        start = id_from_api(self._opening.start_id)
        return start <= last if self._opening.start_inclusive else _end_of(start) < last

    # -------------------------------------------------------------------------------- requests

    def on_taken(self, message: Message[Any]) -> None:
        """The program took *message*. May be called from any thread."""
        self._taken += 1
        if self.is_reader:
            self.position = message.id
        if (self._taken - self._granted) * 2 >= self._queue_size and not self._is_grant_due:
            self._is_grant_due = True
            self._call(self._grant)

    def _call(self, callback: Callable[[], None]) -> None:
        """Call *callback* on the loop. Raises ClientClosed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # it has ended
            raise ClientClosed(f"{self.topic}: the client is closed") from None

    def shrink(self, queue_size: int) -> None:
        """Have no more than *queue_size* messages on their way: those beyond it are not granted again."""
        if queue_size < self._queue_size:
            self._granted += self._queue_size - queue_size
            self._queue_size = queue_size

    def _grant(self) -> None:
        self._is_grant_due = False
        taken = self._taken
        if taken > self._granted:
            self._permits += taken - self._granted
            self._granted = taken
            self._wake.set()

    def give_back(self, permits: int, generation: int) -> None:
        """Grant *permits* anew for messages that never came into the queue."""
        if generation == self.generation:
            self._permits += permits
            self._wake.set()

    def ack_soon(self, acked: Sequence[Message[Any] | MessageId]) -> None:
        """Acknowledge with the next request. May be called from any thread. Raises ClientClosed."""
        if self._is_left:
            return
        if self.failure is not None:
            raise self.failure
        self._acks.extend(acked)
        if not self._is_flush_due:
            self._is_flush_due = True
            self._call(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._wake.set()

    async def request(self, request: api.ConsumeRequest) -> None:
        """Send *request* behind the acks so far, and wait until it took effect. Raises TopicError."""
        self._brokers.check_loop()
        if self._is_left:
            return
        if self.failure is not None:
            raise self.failure
        self._last_request_id += 1
        request.request_id = self._last_request_id
        if request.unsubscribe:
            self._unsubscribe_id = request.request_id
        assert request.request_id not in self._answers, "two requests have one id"
        future: asyncio.Future[None] = self._loop.create_future()
        self._answers[request.request_id] = future
        self._requests.append(request)
        self._wake.set()
        try:
            async with asyncio.timeout(self._brokers.timeout_s):
                await future
        except TimeoutError:
            raise TopicUnavailable(
                f"{self.topic}: no answer within {self._brokers.timeout_s:g} s", "DEADLINE_EXCEEDED"
            ) from None
        finally:
            self._answers.pop(request.request_id, None)

    async def flush(self) -> None:
        """Wait until the broker has all acks so far. Raises TopicError, also for those that it refused."""
        await self.request(api.ConsumeRequest())
        if self._refused_acks is not None:
            refused, self._refused_acks = self._refused_acks, None
            raise refused

    async def close(self) -> None:
        """Send the acks that wait, and whether the program has answered all messages that it took; then end."""
        if self._phase is Phase.RUNNING:
            with contextlib.suppress(TopicError, TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    in_hand = self._taken - self._answered - len(self._acks)
                    await self.request(api.ConsumeRequest(leaving=in_hand <= 0))
        await self._end()
        self._fail(ClientClosed(f"{self.topic}: the consumer is closed"))
