"""The messages of one producer to one topic that are not acknowledged yet, and the frames in which they are sent.

Rules:

1. Messages are sent in the order of their sequence ids. After the call broke, all that are not acknowledged are sent
   again with the same ids: a broker with deduplication stores each of them once.
2. A message that is not acknowledged in time fails; whether it is stored is not known then.
3. Beyond PENDING_BYTES_MAX or PENDING_MESSAGES_MAX `submit` waits until less than half of that is under way. That time
   counts for the message, too.
4. A producer with exclusive access that another one has fenced out ends for good: all that is not acknowledged fails.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

from magnetar.client.base.rpc import log
from magnetar.client.brokers import Brokers, garbage, is_retried
from magnetar.client.errors import ClientClosed, MessageRefused, ProducerFenced, TopicError, TopicUnavailable
from magnetar.client.stream import Phase, Stream
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics import topics_pb2 as api
from magnetar_core.topics.batch_encoding import NO_BATCHES, BatchLimits, encode_batches
from magnetar_core.topics.message_id import EARLIEST, MessageId

# Messages and bytes of one request. gRPC costs some 200 µs a frame, so that frames of 1,000 messages carry millions
# a second; more would only delay the first of them. Brokers take no frame that is much larger than one message.
FRAME_MESSAGES: Final = 1_000
FRAME_BYTES: Final = 256 * 1024

# Messages and bytes without an acknowledgement at which `send` waits: they stay in memory until they have one.
PENDING_BYTES_MAX: Final = 32 * 1024 * 1024
PENDING_MESSAGES_MAX: Final = 50_000

# Bytes that a message counts for besides its own: it is an object here and in the broker.
_OVERHEAD: Final = 62

# How often the producer checks for messages whose time is up.
SWEEP_S: Final = 0.5


class Sending:
    """Messages of one `send` or `send_many`."""

    __slots__ = ("deadline", "first_sequence_id", "future", "ids", "messages", "size", "sizes", "waiting")

    def __init__(
        self, messages: list[Any], sizes: list[int], first_sequence_id: int, future: Any, deadline: float
    ) -> None:
        """*sizes*: the bytes that each message counts for in the limits."""
        self.messages = messages
        self.first_sequence_id = first_sequence_id
        self.future = future
        self.deadline = deadline
        self.sizes = sizes
        self.size = sum(sizes)
        self.ids: list[MessageId | None] = [None] * len(messages)
        self.waiting = len(messages)


class _Piece(NamedTuple):
    sending: Sending
    start: int
    stop: int


def _frame_end(piece: _Piece, messages_max: int, bytes_max: int) -> tuple[int, int]:
    """(where a frame with so much room has to stop in *piece*, the bytes up to there)"""
    sending, start, stop = piece
    if stop - start == len(sending.messages) <= messages_max and sending.size <= bytes_max:
        return stop, sending.size
    end, size = start, 0
    for added in sending.sizes[start : min(stop, start + messages_max)]:
        if size + added > bytes_max:
            break
        end, size = end + 1, size + added
    return end, size


class PublishStream(Stream):
    """The messages of one producer to one topic (one partition): in order, sent again until they are acknowledged."""

    _kind: Literal["producer", "consumer"] = "producer"

    def __init__(
        self, brokers: Brokers, topic: str, opening: Any, send_timeout_s: float, open_timeout_s: float | None = None
    ) -> None:
        """*open_timeout_s*: how long opening may take; None: as long as an operation."""
        super().__init__(brokers, topic, opening)
        self._open_timeout_s = open_timeout_s
        self.producer_name = opening.producer_name
        self.last_sequence_id = -1
        self.max_message_bytes = 0
        self._batch_limits = NO_BATCHES
        """What the broker takes that serves the topic now."""
        self._send_timeout_s = send_timeout_s
        self._next_sequence_id = 0
        self._highest_sent = -1
        self._pending: list[Sending] = []
        self._pending_bytes = 0
        self._pending_messages = 0
        self._to_write: list[_Piece] = []
        self._room = asyncio.Event()
        self._room.set()
        self._turn = asyncio.Lock()
        self._waiting = 0
        """Calls that wait for room. Those that come now go behind them."""
        self._settled = Bell()
        self._waiting_call: Any = None
        """The call that waits for exclusive access."""
        self._gives_up = False
        """It does not wait any longer."""
        self.on_fenced: Callable[[Any, TopicError], None] = lambda stream, error: None
        """Called with this stream and the error when another producer has fenced it out."""
        self._sweeper: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Raises TopicError."""
        self._begin(await self._open(self._open_timeout_s))

    async def _attempt(self) -> Any:
        first = api.PublishRequest(open=self._opening)
        call, answer = await self._brokers.open(self.topic, "Publish", first, api.PublishRequest, api.PublishResponse)
        if answer.opened.is_waiting:
            if self._opening.access != api.PublishRequest.WAIT_FOR_EXCLUSIVE:
                call.cancel()
                raise garbage(f"the broker that serves {self.topic}")
            self._waiting_call = call
        else:
            if self._opening.access != api.PublishRequest.SHARED and not answer.opened.HasField("topic_epoch"):
                call.cancel()
                raise TopicError(
                    f"{self.topic}: its broker knows no exclusive access; leave access= out, or update the broker",
                    "UNIMPLEMENTED",
                )
            self._on_opened(answer.opened)
        return call

    def _on_opened(self, opened: api.PublishResponse.Opened) -> None:
        self.last_sequence_id = opened.last_sequence_id
        if self._highest_sent < 0:
            self._next_sequence_id = self.last_sequence_id + 1
        self.producer_name = opened.producer_name
        self.max_message_bytes = opened.max_message_bytes
        self._batch_limits = BatchLimits(opened.batch_messages_max, opened.batch_bytes_max)
        if opened.HasField("topic_epoch"):
            self._opening.topic_epoch = opened.topic_epoch

    async def _is_ready(self, call: Any) -> bool:
        if self._waiting_call is None:
            return True
        self.trouble = f"{self.topic}: waits for exclusive access, which another producer has"
        self._brokers.last_error = self.trouble
        log.info("%s", self.trouble)
        try:
            while True:
                if self._gives_up:
                    raise ClientClosed(f"{self.topic}: the producer is closed")
                answer = await self._next_answer(call)
                if answer.HasField("opened") and not answer.opened.is_waiting:
                    self._on_opened(answer.opened)
                    self.trouble = ""
                    return True
        except TopicError as error:
            call.cancel()
            if self._phase is Phase.ENDING:
                return False
            if self._gives_up:
                raise ClientClosed(f"{self.topic}: the producer is closed") from None
            if not is_retried(error):
                raise
            log.debug("%s: waits anew: %s", self.topic, error)
            return False
        except BaseException:
            call.cancel()
            raise
        finally:
            self._waiting_call = None

    def stop_waiting(self) -> None:
        """Raise ClientClosed where it waits for exclusive access, now or later."""
        self._gives_up = True
        if self._waiting_call is not None:
            self._waiting_call.cancel()

    def give_up(self, error: TopicError) -> None:
        """End, with *error* for all that is not acknowledged."""
        self.stop_waiting()
        self._end_soon()
        self._fail(error)

    async def submit(
        self, messages: list[Any], sequence_id: int | None, deadline: float | None = None
    ) -> list[MessageId]:
        """Send and wait for the acknowledgement, until *deadline* (`loop.time`). Raises TopicError, ValueError."""
        return await (await self.begin(messages, sequence_id, deadline))

    async def begin(
        self, messages: list[Any], sequence_id: int | None, deadline: float | None = None
    ) -> "asyncio.Future[list[MessageId]]":
        """Send; the future that is returned gets the ids with the acknowledgement. Raises TopicError, ValueError."""
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._send_timeout_s
        if self._waiting or not self._room.is_set():
            await self._wait_for_room(deadline)
        if self.failure is not None:
            raise self.failure
        first = self._next_sequence_id if sequence_id is None else sequence_id
        if first <= self._highest_sent:
            raise ValueError(f"{self.topic}: sequence id {first} does not follow {self._highest_sent}")
        sizes = [message.ByteSize() + _OVERHEAD for message in messages]  # properties and keys may be large, too
        largest = max(sizes) - _OVERHEAD
        if largest > self.max_message_bytes:
            raise MessageRefused(
                f"{self.topic}: a message of {largest} bytes is larger than the broker's maxMessageSize "
                f"({self.max_message_bytes}); make it smaller"
            )
        sending = Sending(messages, sizes, first, loop.create_future(), deadline)
        self._next_sequence_id = first + len(messages)
        self._highest_sent = self._next_sequence_id - 1
        self._pending.append(sending)
        self._to_write.append(_Piece(sending, 0, len(messages)))
        self._pending_bytes += sending.size
        self._pending_messages += len(messages)
        if self._pending_bytes > PENDING_BYTES_MAX or self._pending_messages > PENDING_MESSAGES_MAX:
            self._room.clear()
        self._wake.set()
        if self._sweeper is None:
            self._sweeper = loop.call_later(min(SWEEP_S, self._send_timeout_s), self._sweep)
        future: asyncio.Future[list[MessageId]] = sending.future
        return future

    async def _wait_for_room(self, deadline: float) -> None:
        """Raises TopicUnavailable after *deadline*: the message is not sent."""
        self._waiting += 1
        try:
            async with asyncio.timeout_at(deadline), self._turn:
                while not self._room.is_set() and self.failure is None:
                    await self._room.wait()
            # Those before it may have failed just now, for the same reason.
            if asyncio.get_running_loop().time() >= deadline:
                raise TimeoutError
        except TimeoutError:
            raise TopicUnavailable(
                f"{self.topic}: not sent within {self._send_timeout_s:g} s: messages before it are not acknowledged",
                "DEADLINE_EXCEEDED",
            ) from None
        finally:
            self._waiting -= 1

    def _sweep(self) -> None:
        self._sweeper = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        for sending in [sending for sending in self._pending if sending.deadline <= now]:
            self._finish_sending(
                sending,
                TopicUnavailable(
                    f"{self.topic}: not acknowledged within {self._send_timeout_s:g} s; whether it is stored is not "
                    "known. Send it again under the same producer name and sequence id, with deduplication on"
                    + (f". Not connected: {self.trouble}" if self.trouble else ""),
                    "DEADLINE_EXCEEDED",
                ),
            )
        self._settled.ring()
        if self._pending:
            self._sweeper = loop.call_at(min(now + SWEEP_S, self._pending[0].deadline), self._sweep)

    def _finish_sending(self, sending: Sending, error: TopicError | None) -> None:
        if sending in self._pending[:1]:
            del self._pending[0]
        elif sending in self._pending:
            self._pending.remove(sending)
        else:
            return
        self._set_result(sending, error)

    def _set_result(self, sending: Sending, error: TopicError | None) -> None:
        self._pending_bytes -= sending.size
        self._pending_messages -= len(sending.messages)
        assert self._pending_bytes >= 0, "more bytes were settled than sent"
        assert self._pending_messages >= 0, "more messages were settled than sent"
        if self._pending_bytes < PENDING_BYTES_MAX // 2 and self._pending_messages < PENDING_MESSAGES_MAX // 2:
            self._room.set()
        if sending.future.done():
            return
        if error is None:
            sending.future.set_result(sending.ids)
        else:
            sending.future.set_exception(error)

    async def flush(self) -> None:
        """Wait until everything so far is acknowledged or has failed."""
        async with self._turn:  # those that wait for room come before this
            last = self._highest_sent
        while self._pending and self._pending[0].first_sequence_id <= last:
            await self._settled.rung()

    # -------------------------------------------------------------------------------- the stream

    def _reopened(self) -> None:
        self._to_write = []
        for sending in self._pending:
            start = 0
            while start < len(sending.messages):
                if sending.ids[start] is not None:
                    start += 1
                    continue
                stop = start
                while stop < len(sending.messages) and sending.ids[stop] is None:
                    stop += 1
                self._to_write.append(_Piece(sending, start, stop))
                start = stop
        self._wake.set()

    def _next(self) -> api.PublishRequest | None:
        if not self._to_write:
            return None
        frame = api.PublishRequest()
        messages: list[Any] = []
        size = taken = 0
        following = -1
        for at, piece in enumerate(self._to_write):
            sending, start, stop = piece
            first = sending.first_sequence_id + start
            if messages and first != following:
                break
            if not messages:
                frame.first_sequence_id = first
            end, added = _frame_end(piece, FRAME_MESSAGES - len(messages), FRAME_BYTES - size)
            if end == start and not messages:  # larger than a frame should be: it is sent alone
                end, added = start + 1, sending.sizes[start]
            messages += sending.messages[start:end]
            size += added
            following = sending.first_sequence_id + end
            if end < stop:
                self._to_write[at] = _Piece(sending, end, stop)
                break
            taken = at + 1
        del self._to_write[:taken]
        batches, count = encode_batches(
            messages, frame.first_sequence_id, self._batch_limits, mix_keys=self._opening.mix_keys
        )
        frame.batches.extend(batches)
        frame.messages.extend(messages[count:])
        return frame

    def _on_answer(self, answer: Any) -> None:
        if answer.partitions:
            self.hear_of_partitions(answer.partitions)
        for receipt in answer.receipts:
            self._on_receipt(receipt)
        for refusal in answer.refusals:
            error = MessageRefused(refusal.reason, "INVALID_ARGUMENT")
            for sending in list(self._pending):
                if 0 <= refusal.first_sequence_id - sending.first_sequence_id < len(sending.messages):
                    self._finish_sending(sending, error)
        self._settled.ring()

    def _on_receipt(self, receipt: Any) -> None:
        first, count = receipt.first_sequence_id, receipt.count
        end = first + count
        id_ = receipt.first_id if receipt.HasField("first_id") else None
        partition = batch_index = -1
        if id_ is not None:
            partition = id_.partition if id_.HasField("partition") else -1
            batch_index = id_.batch_index if id_.HasField("batch_index") else -1
        done: list[Sending] = []
        for sending in self._pending:
            begin = max(first, sending.first_sequence_id)
            stop = min(end, sending.first_sequence_id + len(sending.messages))
            if begin >= stop:
                if sending.first_sequence_id >= end:
                    break
                continue
            for number in range(begin, stop):
                at = number - sending.first_sequence_id
                if sending.ids[at] is None:
                    sending.waiting -= 1
                    if id_ is None:
                        sending.ids[at] = EARLIEST
                    elif batch_index < 0:
                        sending.ids[at] = MessageId(id_.ledger_id, id_.entry_id, partition)
                    else:
                        sending.ids[at] = MessageId(
                            id_.ledger_id, id_.entry_id, partition, batch_index + number - first, id_.batch_size
                        )
            if not sending.waiting:
                done.append(sending)
        if done and self._pending[len(done) - 1] is done[-1]:  # nearly always: those in front, removed in one step
            del self._pending[: len(done)]
        else:
            for sending in done:
                self._pending.remove(sending)
        for sending in done:
            self._set_result(sending, None)

    def _on_failure(self, error: TopicError) -> None:
        if isinstance(error, ProducerFenced):
            self.on_fenced(self, error)
        for sending in list(self._pending):
            self._finish_sending(sending, error)
        self._room.set()
        self._settled.ring()
        assert not self._pending_bytes, "bytes count as pending, and no message does"

    async def close(self) -> None:
        """End the stream. Messages without an acknowledgement fail. The producer name is free afterwards."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        self.stop_waiting()
        await self._end()
        self._fail(ClientClosed(f"{self.topic}: the producer is closed"))
