"""A stream to the broker that serves a topic: one Publish or Consume call, opened again when the topic moves.

    open ──▶ writing what waits, reading answers ──the call ended──▶ waiting a little ──▶ opening again
                     │                                                                        │
                     └──────────────── an error that will not pass: `_fail` ◀─────────────────┘

Requests and answers are those of its two kinds, `publishing.py` and `consuming.py`.
"""

import abc
import asyncio
from collections.abc import Sequence
from typing import Any, Final, Literal, Protocol

from magnetar.client.base.rpc import grpc, log
from magnetar.client.base.states import State, StateChange
from magnetar.client.brokers import Backoff, Brokers, ended, garbage, is_cancelled, is_retried
from magnetar.client.codecs.declared import described
from magnetar.client.errors import ClientClosed, SchemaRefused, TopicError

# How long closing waits for the broker to release a producer name or a subscription.
CLOSE_S: Final = 2.0


async def _finish(task: asyncio.Task[None] | None) -> None:
    """Wait until a stream that is closing has ended; cancel it after CLOSE_S."""
    if task is not None:
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _end_after_defect(writing: asyncio.Task[None], call: Any) -> None:
    """Nothing would be written any more, without a word: end the *call*, so that its reader says why."""
    if not writing.cancelled() and writing.exception() is not None:
        call.cancel()


class Stream(abc.ABC):
    """A stream to the broker that serves a topic. It is opened again whenever its call ends, until it is closed."""

    _kind: Literal["producer", "consumer"]
    """What it is, for the log."""

    _prepares = False

    def __init__(self, brokers: Brokers, topic: str, opening: Any) -> None:
        """*opening*: the first request's."""
        self.topic = topic
        self._opening = opening
        self._brokers = brokers
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False

    async def _open(self, timeout_s: float | None = None) -> Any:
        """The first call of the stream. Raises TopicError, also after *timeout_s*."""
        log.debug("%s: connecting (%s)", self.topic, self._kind)
        self._tell("connecting")
        try:
            call = await self._brokers.retry(self._attempt, timeout_s)
        except TopicError as error:
            explained = self._explained(error)
            log.error("%s: not connected (%s): %s", self.topic, self._kind, explained)
            self._tell("refused", explained)
            raise explained from None
        log.info("%s: connected (%s)", self.topic, self._kind)
        self._tell("connected")
        return call

    def _tell(self, state: State, reason: TopicError | None = None) -> None:
        if self._brokers.on_state is not None:
            self._brokers.tell(StateChange(self.topic, self._kind, state, str(reason or "")))

    def _begin(self, call: Any) -> None:
        assert self._task is None, "a stream is opened once; later it opens its calls itself"
        self._task = asyncio.ensure_future(self._run(call))
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # the client was closed, or the program ended its tasks
            self._fail(ClientClosed(f"{self.topic}: the client is closed"))
            self._tell("closed")
        elif (error := task.exception()) is not None:  # a defect: callers that wait get it
            log.error("%s: ended (%s) by a defect", self.topic, self._kind, exc_info=error)
            defect = TopicError(f"{self.topic}: {type(error).__name__}: {error}")
            self._fail(defect)
            self._tell("refused", defect)

    def _explained(self, error: TopicError) -> TopicError:
        """*error*, with which the topic was not opened; of a schema, with the way out."""
        schema = self._opening.schema
        if error.code != "FAILED_PRECONDITION" or not schema.type or "schema" not in str(error).lower():
            return error
        return SchemaRefused(
            f"{self.topic} does not take the schema of this {self._kind} ({described(schema)}): {error}. Keep the "
            "types of the fields that are there, give new ones a default, or take another topic; value=bytes has no "
            "schema",
            error.code,
        )

    def _refused(self, error: TopicError) -> None:
        error = self._explained(error)
        log.error("%s: closed for good (%s): %s", self.topic, self._kind, error)
        self._fail(error)
        self._tell("refused", error)

    async def _run(self, call: Any) -> None:
        backoff = Backoff()
        while True:
            writing = asyncio.ensure_future(self._write(call))
            writing.add_done_callback(lambda task, call=call: _end_after_defect(task, call))  # type: ignore[misc]
            try:
                await self._read(call, backoff)
            except TopicError as error:
                if writing.done() and not writing.cancelled() and (defect := writing.exception()) is not None:
                    raise defect from None
                if self._is_closing:
                    self._broken(ClientClosed(f"{self.topic}: the {self._kind} is closed"))
                    log.info("%s: closed (%s)", self.topic, self._kind)
                    self._tell("closed")
                    return
                self._broken(error)
                if not is_retried(error):
                    self._refused(error)
                    return
                log.warning("%s: connection lost (%s): %s", self.topic, self._kind, error)
                self._tell("lost", error)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                call.cancel()
            while not self._is_closing:
                await backoff.wait()
                try:
                    call = await self._attempt()
                    break
                except TopicError as error:
                    # Our own former call, or other clients that are being disconnected, may still hold the name.
                    if not is_retried(error) and error.code != "ALREADY_EXISTS":
                        self._refused(error)
                        return
                    log.debug("%s: not connected yet (%s): %s", self.topic, self._kind, error)
            else:
                self._tell("closed")
                return
            log.info("%s: connected again (%s)", self.topic, self._kind)
            self._tell("connected")
            self._reopened()

    async def _read(self, call: Any, backoff: Backoff) -> None:
        """Take answers until the call is over; then raises TopicError."""
        while True:
            try:
                answer = await call.read()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                answer = grpc.aio.EOF
            except asyncio.CancelledError:
                if not call.cancelled() or is_cancelled():
                    raise
                answer = grpc.aio.EOF  # the call was, not this task
            if answer is grpc.aio.EOF:
                raise await ended(call, self.topic)
            if answer is None:  # the library gives None for what it cannot decode
                raise garbage(f"the broker that serves {self.topic}")
            backoff.reset()
            if self._prepares:
                await self._prepare(answer)
            self._on_answer(answer)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                request = self._next()
                if request is not None:
                    await call.write(request)
                    continue
                if self._is_closing:
                    await call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader finds out why

    async def _end(self) -> None:
        """Send the requests that wait, then end the stream."""
        self._is_closing = True
        self._wake.set()
        await _finish(self._task)

    async def _prepare(self, answer: Any) -> None:
        """Fetch what *answer* needs before it is handled; only where `_prepares` is set."""

    # The two kinds of streams differ in these.

    @abc.abstractmethod
    async def _attempt(self) -> Any:
        """Open the call, once. Raises TopicError."""

    @abc.abstractmethod
    def _next(self) -> Any:
        """The next request; None if nothing waits."""

    @abc.abstractmethod
    def _on_answer(self, answer: Any) -> None:
        """Handle an *answer* of the broker."""

    @abc.abstractmethod
    def _fail(self, error: TopicError) -> None:
        """The stream has ended for good with *error*: fail all calls that wait."""

    def _broken(self, error: TopicError) -> None:
        """The call has ended with *error*; another one may be opened."""

    def _reopened(self) -> None:
        """A new call is open."""


class Opened(Protocol):
    """One stream of several, as `open_all` uses it."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def open_all(streams: Sequence[Opened]) -> None:
    """Open all *streams*, or none: if one cannot be opened, or the caller gives up, the others are closed."""
    try:
        results = await asyncio.gather(*(stream.open() for stream in streams), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
    except BaseException:
        await asyncio.gather(*(stream.close() for stream in streams))
        raise
