"""Messages of `Producer.send_async`, on their way from threads to the event loop.

    any thread ──put──▶ queue ──one task──▶ Sender.begin, in order ──acknowledged──▶ future

Rules:

1. Messages go in the order of the calls, those of `send` and `send_many` behind them.
2. A message that waits here counts, as one without an acknowledgement does. Beyond the limits `put` waits.
3. A future gets its result or error whatever ends: the producer, the client, the loop.
"""

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, TypeVar

from magnetar.client.async_producer import AsyncProducer
from magnetar.client.blocking.loop import ClientLoop
from magnetar.client.errors import ClientClosed, TopicError, TopicUnavailable
from magnetar.client.publishing import PENDING_BYTES_MAX, PENDING_MESSAGES_MAX
from magnetar_core.runtime.tasks import Bell
from magnetar_core.topics.message_id import MessageId

R = TypeVar("R")


class _Waiting(NamedTuple):
    message: Any
    key: str | None
    sequence_id: int | None
    deadline: float
    size: int
    future: "concurrent.futures.Future[MessageId]"


class SendQueue:
    """What one producer sends without waiting."""

    def __init__(self, loop: ClientLoop, producer: AsyncProducer[Any]) -> None:
        self._loop = loop
        self._producer: Final = producer
        self._sender: Final = producer.sender
        self._waiting = deque[_Waiting]()
        self._room = threading.Condition()
        self._messages = 0
        self._bytes = 0
        self._puts = 0
        self._begins = 0
        self._is_pumping = False
        self._moved = Bell()
        loop.queues.add(self)

    def put(self, message: Any, key: str | None, sequence_id: int | None) -> "concurrent.futures.Future[MessageId]":
        """From any thread. Raises TopicError."""
        self._loop.check()
        timeout_s = self._sender.send_timeout_s
        if self._producer.is_closed:
            raise ClientClosed(f"{self._producer.topic}: the producer is closed")
        deadline = self._loop.now_s() + timeout_s
        size = message.ByteSize()
        future = concurrent.futures.Future[MessageId]()
        with self._room:
            # The thread of the loop cannot wait for what it does itself.
            if not (self._has_room() if self._loop.is_current else self._room.wait_for(self._has_room, timeout_s)):
                raise TopicUnavailable(
                    f"{self._producer.topic}: not sent within {timeout_s:g} s: messages before it are not acknowledged",
                    "DEADLINE_EXCEEDED",
                )
            self._waiting.append(_Waiting(message, key, sequence_id, deadline, size, future))
            self._messages += 1
            self._bytes += size
            self._puts += 1
            is_first, self._is_pumping = not self._is_pumping, True
        if is_first:
            self._start()
        return future

    def _start(self) -> None:
        try:
            self._loop.begin(self._pump()).add_done_callback(self._on_end)
        except ClientClosed as error:
            self._fail(error)
            raise

    def _has_room(self) -> bool:
        is_alive = self._loop.is_alive  # otherwise nothing will make room
        return not is_alive or (self._bytes < PENDING_BYTES_MAX and self._messages < PENDING_MESSAGES_MAX)

    # -------------------------------------------------------------------------------- on the loop

    async def _pump(self) -> None:
        while True:
            with self._room:
                if not self._waiting:
                    self._is_pumping = False
                    return
                waiting = self._waiting[0]
            if waiting.future.set_running_or_notify_cancel():
                try:
                    sent = await self._sender.begin(waiting.message, waiting.key, waiting.sequence_id, waiting.deadline)
                    sent.add_done_callback(lambda done, waiting=waiting: self._give_result(waiting, done))  # type: ignore[misc]
                except (TopicError, ValueError) as error:
                    waiting.future.set_exception(error)
                    self._leave(waiting)
            else:
                self._leave(waiting)
            self._waiting.popleft()
            self._begins += 1
            self._moved.ring()

    def _give_result(self, waiting: _Waiting, sent: "asyncio.Future[list[MessageId]]") -> None:
        if sent.cancelled():
            waiting.future.set_exception(self._loop.closed())
        elif (error := sent.exception()) is not None:
            waiting.future.set_exception(error)
        else:
            waiting.future.set_result(sent.result()[0])
        self._leave(waiting)

    def _leave(self, waiting: _Waiting) -> None:
        with self._room:
            self._messages -= 1
            self._bytes -= waiting.size
            assert self._bytes >= 0, "more bytes left the queue than came in"
            self._room.notify_all()

    async def ended(self) -> None:
        """Returns when what waits now is under way, or has failed: at once, where it waits for exclusive access."""
        self._sender.stop_waiting()
        await self.begun()

    async def begun(self) -> None:
        """Returns when what waits now is under way, or has failed."""
        puts = self._puts
        while self._begins < puts:
            await self._moved.rung()

    def behind(self, work: Callable[[], Coroutine[Any, Any, R]]) -> Coroutine[Any, Any, R]:
        """*work*, which begins when what waits now is under way (rule 1)."""
        return self._after_queued(work) if self._begins < self._puts else work()

    async def _after_queued(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        await self.begun()
        return await work()

    # -------------------------------------------------------------------------------- the end

    def _on_end(self, pump: "concurrent.futures.Future[None]") -> None:
        """The pump has ended: with nothing left, with its loop, or by a defect (rule 3)."""
        if pump.cancelled():
            self._fail(self._loop.closed())
        elif (error := pump.exception()) is not None:
            self._fail(error)
        self._moved.ring()

    def _fail(self, error: BaseException) -> None:
        with self._room:
            left = list(self._waiting)
            self._waiting.clear()
            self._begins = self._puts
            self._is_pumping = False
        for waiting in left:
            if not waiting.future.done():
                if not waiting.future.running():
                    waiting.future.set_running_or_notify_cancel()
                if not waiting.future.cancelled():
                    waiting.future.set_exception(error)
            self._leave(waiting)
