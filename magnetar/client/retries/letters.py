"""The copies of failed messages: stored in the retry topic or the dead letter topic, then acknowledged in their own.

Rules:

1. A message is acknowledged only after its copy is stored. If the acknowledgement is lost, there are two copies. If the
   copy cannot be stored, the message comes again after PAUSE_S.
2. A message that was delivered more than `Retry.max` times again may be what ends its program each time, and does not
   reach it. But what only waited behind it in the queue of the program that died was delivered as often. So only the
   first of such messages is taken for it; the first two if it is delivered once more because that was not enough; …
3. What cannot be copied (its payload is not readable here) stays in its topic, and comes again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Protocol

from magnetar.client.async_producer import SEND_TIMEOUT_S, Sender
from magnetar.client.base.rpc import log
from magnetar.client.brokers import Brokers
from magnetar.client.errors import MessageRefused, TopicError, TopicInUse, TopicUnavailable
from magnetar.client.retries.retry import DELAY_TIME, RECONSUME_TIMES, Retry, letter_of
from magnetar.client.stream import CLOSE_S
from magnetar.client.values import Message, id_to_api, put_acks
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics import topics_pb2 as api

# Until a message comes again whose copy could not be stored.
PAUSE_S: Final = 30.0


class Source(Protocol):
    """The stream that brought a message."""

    generation: int
    schema_topic: str
    buried: int
    """Messages that were taken for what ends the program, of such that came one after the other."""

    def ack_soon(self, acked: Sequence[Message[Any]]) -> None: ...

    def give_back(self, permits: int, generation: int) -> None: ...

    async def request(self, request: api.ConsumeRequest) -> None: ...


class Letters:
    """The copies that one consumer makes of messages that fail."""

    def __init__(
        self,
        brokers: Brokers,
        topic: str,
        subscription: str,
        retry: Retry,
        schema: api.Schema | None,
        subscribe: Callable[[str, str], Awaitable[None]],
    ) -> None:
        """*retry* has all names; *subscribe* makes a subscription of a topic."""
        self.retry: Final = retry
        self._topic = topic
        self._subscription = subscription
        self._brokers = brokers
        self.schema_of: Callable[[str, bytes], api.Schema | None] = lambda topic, version: schema
        """The schema of a topic by which a message was written: its copy goes with it. Raises TopicError."""
        self._subscribe = subscribe
        self._is_subscribed = not retry.dead_letter_subscription
        self._senders: dict[tuple[str, bytes], Sender] = {}
        """By topic and schema."""
        self._tasks = set[asyncio.Task[None]]()
        self._clock = LoopClock()

    # -------------------------------------------------------------------------------- messages that `nack` was told of

    async def on_failed(self, messages: Sequence[tuple[Source, Message[Any]]], delay_s: float | None) -> None:
        """Returns when copies are stored and their messages acknowledged. *delay_s*: instead of `Retry.backoff`.
        Raises TopicError for one that is not; the others are done."""
        retry = self.retry
        copies: dict[str, list[tuple[Source, Message[Any], api.Message]]] = {}
        waiting: dict[tuple[Source, int], list[Message[Any]]] = {}
        for source, message in messages:
            failures = message.redelivery_count + 1 if message.problem else retry.failures(message)
            delay_ms = round((retry.delay_s(failures) if delay_s is None else delay_s) * 1000)
            is_dead = failures > retry.max
            if message.problem or (retry.retry_topic is None and not is_dead):  # rule 3
                waiting.setdefault((source, delay_ms), []).append(message)
                continue
            marks = {}
            if retry.retry_topic is not None:
                marks = {RECONSUME_TIMES: str(failures), DELAY_TIME: str(delay_ms)}
            letter = letter_of(message, self._subscription, marks)
            if is_dead or retry.retry_topic is None:
                topic = retry.dead_letter_topic
            else:
                topic = retry.retry_topic
                if delay_ms:
                    letter.deliver_at_ms = self._clock.wall_ms() + delay_ms
            copies.setdefault(topic, []).append((source, message, letter))
        results = await asyncio.gather(
            *(self._store_copies(topic, some) for topic, some in copies.items()),
            *(_nack(source, some, delay_ms) for (source, delay_ms), some in waiting.items()),
            return_exceptions=True,
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result

    # -------------------------------------------------------------------------------- messages that were tried enough

    def without_dead(
        self, source: Source, deliveries: Iterable[api.ConsumeResponse.Delivery], messages: list[Message[Any]]
    ) -> list[Message[Any]]:
        """*messages*, which came with *deliveries*, but for those that must not reach the program (rule 2): they are
        stored as dead letters."""
        if all(delivery.redelivery_count <= self.retry.max for delivery in deliveries):
            source.buried = 0
            return messages
        dead, others = list[Message[Any]](), list[Message[Any]]()
        for message in messages:
            excess = message.redelivery_count - self.retry.max
            if source.buried < excess and not message.problem:
                source.buried += 1
                dead.append(message)
            else:
                others.append(message)
        if dead:
            self._spawn(self._write_dead_letters(source, source.generation, dead))
        return others

    async def _write_dead_letters(self, source: Source, generation: int, messages: Sequence[Message[Any]]) -> None:
        topic = self.retry.dead_letter_topic
        try:
            copies = [(source, message, letter_of(message, self._subscription, {})) for message in messages]
            await self._store_copies(topic, copies)
            log.warning("%s: %d messages were delivered too often, and go to %s", self._topic, len(messages), topic)
        except TopicError as error:
            log.error("%s: messages were delivered too often, and cannot go to %s: %s", self._topic, topic, error)
        finally:
            source.give_back(len(messages), generation)

    # -------------------------------------------------------------------------------- copies

    async def _store_copies(self, topic: str, copies: Sequence[tuple[Source, Message[Any], api.Message]]) -> None:
        """Raises the TopicError of one that is not stored; the others are acknowledged (rule 1)."""
        results = await self._send(topic, copies)
        stored: dict[Source, list[Message[Any]]] = {}
        left: dict[Source, list[Message[Any]]] = {}
        for (source, message, _), result in zip(copies, results, strict=True):
            (stored if result is None else left).setdefault(source, []).append(message)
        await asyncio.gather(
            *(_acknowledge(source, some) for source, some in stored.items()),
            *(_nack(source, some, round(PAUSE_S * 1000)) for source, some in left.items()),
        )
        for result in results:
            if result is not None:
                raise result

    async def _send(
        self, topic: str, copies: Sequence[tuple[Source, Message[Any], api.Message]]
    ) -> Sequence[BaseException | None]:
        """Why each of the copies is not stored; None for those that are."""
        if topic == self.retry.dead_letter_topic:
            try:
                await self._have_subscription()
            except TopicError as error:
                return [error] * len(copies)
        results = await asyncio.gather(
            *(self._send_one(topic, source, message, letter) for source, message, letter in copies),
            return_exceptions=True,
        )
        return [result if isinstance(result, BaseException) else None for result in results]

    async def _send_one(self, topic: str, source: Source, message: Message[Any], letter: api.Message) -> None:
        schema = self.schema_of(source.schema_topic, message.schema_version)
        kind = topic, b"" if schema is None else schema.SerializeToString(deterministic=True)
        sender = self._sender(kind, topic, schema)
        try:
            await sender.send(letter, letter.key if letter.HasField("key") else None, None)
        except MessageRefused:
            raise
        except Exception:
            if self._senders.get(kind) is sender:  # broken for good, maybe; the next copy has another one
                del self._senders[kind]
                self._spawn(sender.close())
            raise

    def _sender(self, kind: tuple[str, bytes], topic: str, schema: api.Schema | None) -> Sender:
        sender = self._senders.get(kind)
        if sender is None:
            opening = api.PublishRequest.Open(schema=schema)
            sender = Sender(self._brokers, topic, opening, SEND_TIMEOUT_S, lambda _: None, None)
            self._senders[kind] = sender
        return sender

    async def _have_subscription(self) -> None:
        if self._is_subscribed:
            return
        try:
            await self._subscribe(self.retry.dead_letter_topic, self.retry.dead_letter_subscription)
        except TopicInUse:
            log.debug("%s: its subscription is there, and in use", self.retry.dead_letter_topic)
        self._is_subscribed = True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("%s: a dead letter stays in its topic: %s", self._topic, error)

    async def close(self) -> None:
        """Finish what is under way, for a while: what is not acknowledged then comes again."""
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=CLOSE_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        await asyncio.gather(*(sender.close() for sender in self._senders.values()))


async def _nack(source: Source, messages: Iterable[Message[Any]], delay_ms: int) -> None:
    request = api.ConsumeRequest()
    request.nack.ids.extend(id_to_api(message.id) for message in messages)
    request.nack.delay_ms = delay_ms
    await source.request(request)


async def _acknowledge(source: Source, messages: Sequence[Message[Any]]) -> None:
    request = api.ConsumeRequest()
    put_acks(request, messages)
    try:
        await source.request(request)
    except TopicUnavailable:  # the connection broke
        source.ack_soon(messages)
