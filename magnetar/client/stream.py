"""A stream to the broker that serves a topic: one Publish or Consume call, opened again when the topic moves.

    OPENING ──a call is open──▶ RUNNING ──┐
       │                        │     ▲   │ the call broke: another one is opened, after a pause
       │                        │     └───┘
       └───────▶ ENDING ◀───────┘ `_end_soon`: it is closed; `_fail`: an error that will not pass

Requests and answers are those of its two kinds, `publishing.py` and `consuming.py`.
"""

import abc
import asyncio
import weakref
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, Literal, Protocol

from magnetar.client.async_topics import PARTITIONS_MAX
from magnetar.client.base.rpc import grpc, log
from magnetar.client.base.states import State, StateChange
from magnetar.client.brokers import Backoff, Brokers, ended, garbage, is_cancelled, is_retried
from magnetar.client.codecs.declared import described
from magnetar.client.errors import ClientClosed, SchemaRefused, TopicError
from magnetar_core.topics.topic_name import TopicName

# How long closing waits for the broker to release a producer name or a subscription.
CLOSE_S: Final = 2.0


async def _finish(task: asyncio.Task[None] | None) -> None:
    """Wait until a stream that is closing has ended; cancel it after CLOSE_S."""
    if task is not None:
        await asyncio.wait([task], timeout=CLOSE_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Calls *method* as long as its object is there: a stream that runs must not keep a client that the program has
    dropped."""
    held = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        there = held()
        if there is not None:
            there(*arguments)

    return call


def _end_after_defect(writing: asyncio.Task[None], call: Any) -> None:
    """Nothing would be written any more, without a word: end the *call*, so that its reader says why."""
    if not writing.cancelled() and writing.exception() is not None:
        call.cancel()


class Phase(Enum):
    """Where a stream is."""

    OPENING = auto()  # no call has been open yet
    RUNNING = auto()  # a call is open, or the next one is being opened
    ENDING = auto()  # no call is opened any more; what waits is still sent, if one is open


class Stream(abc.ABC):
    """A stream to the broker that serves a topic. It is opened again whenever its call ends, until it is closed."""

    _kind: Literal["producer", "consumer"]
    """What it is, for the log."""

    _prepares = False

    def __init__(self, brokers: Brokers, topic: str, opening: Any) -> None:
        """*opening*: what the first request of each call says."""
        self.topic = topic
        self._opening = opening
        self._brokers = brokers
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._phase = Phase.OPENING
        self._decided = asyncio.Event()
        """Set when the first call is open, or when it is certain that there will be none."""
        self.failure: TopicError | None = None
        """Why it has ended for good."""
        self.may_vanish = False
        """A deleted topic is no error: the stream waits until the topic exists again, or until it is closed itself."""
        self.trouble = ""
        """Why it is not connected again yet."""
        self.on_partitions: Callable[[Any, int], None] = lambda stream, count: None
        """Called with this stream and the number of partitions of its topic, when brokers say it."""

    async def _open(self, timeout_s: float | None = None) -> Any:
        """The first call of the stream. Raises TopicError, also after *timeout_s*."""
        log.debug("%s: connecting (%s)", self.topic, self._kind)
        self._tell("connecting")
        backoff = Backoff()
        try:
            call = await self._brokers.retry(self._attempt, timeout_s)
            while not await self._is_ready(call):
                await backoff.wait()
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

    def start(self) -> None:
        """Open the stream of a partition that has come to be while others are in use: it is tried until it succeeds."""
        log.debug("%s: connecting (%s)", self.topic, self._kind)
        self._tell("connecting")
        self._begin(None)

    async def until_connected(self) -> None:
        """Return when it has been open once. Raises TopicError if it has ended for good."""
        await self._decided.wait()
        if self.failure is not None:
            raise self.failure

    def _begin(self, call: Any) -> None:
        """Start the task that serves the stream. *call*: the call that is open already; None: the task opens one."""
        assert self._task is None, "a stream is opened once; later it opens its calls itself"
        if call is not None:
            self._on_call()
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
            if call is None:
                call = await self._opened_again(backoff)
            if call is None:
                return
            writing = asyncio.ensure_future(self._write(call))
            writing.add_done_callback(lambda task, call=call: _end_after_defect(task, call))  # type: ignore[misc]
            try:
                await self._read(call, backoff)
            except TopicError as error:
                if writing.done() and not writing.cancelled() and (defect := writing.exception()) is not None:
                    raise defect from None
                if self._phase is Phase.ENDING:
                    self._broken(ClientClosed(f"{self.topic}: the {self._kind} is closed"))
                    log.info("%s: closed (%s)", self.topic, self._kind)
                    self._tell("closed")
                    return
                self._broken(error)
                if not is_retried(error) and not (error.code == "NOT_FOUND" and self.may_vanish):
                    self._refused(error)
                    return
                log.warning("%s: connection lost (%s): %s", self.topic, self._kind, error)
                self._tell("lost", error)
            finally:
                writing.cancel()
                await asyncio.gather(writing, return_exceptions=True)
                call.cancel()
            call = None

    async def _opened_again(self, backoff: Backoff) -> Any:
        """A call that is open, after one that broke, or the first one; None if the stream ends before."""
        is_first = self._phase is Phase.OPENING
        waits = not is_first
        until_s = asyncio.get_running_loop().time() + self._brokers.timeout_s
        while self._phase is not Phase.ENDING:
            if waits:
                await backoff.wait()
            waits = True
            try:
                call = await self._attempt()
                if not await self._is_ready(call):
                    continue
            except TopicError as error:
                # Our own former call, or other clients that are being disconnected, may still hold the name.
                is_passing = is_retried(error) or error.code == "ALREADY_EXISTS"
                if is_first and error.code in ("NOT_FOUND", "FAILED_PRECONDITION"):
                    # A broker may hear later of a new partition than the one that told us.
                    is_passing = asyncio.get_running_loop().time() < until_s
                if error.code == "NOT_FOUND" and self.may_vanish:
                    is_passing = True
                    self._vanished()
                if not is_passing:
                    self._refused(error)
                    return None
                log.debug("%s: not connected yet (%s): %s", self.topic, self._kind, error)
                self.trouble = str(error)
            else:
                self.trouble = ""
                log.info("%s: connected%s (%s)", self.topic, "" if is_first else " again", self._kind)
                self._tell("connected")
                self._on_call()
                self._reopened()
                return call
        self._tell("closed")
        return None

    async def _read(self, call: Any, backoff: Backoff) -> None:
        """Take answers until the call is over; then raises TopicError."""
        while True:
            answer = await self._next_answer(call)
            backoff.reset()
            if self._prepares:
                await self._prepare(answer)
            self._on_answer(answer)

    async def _next_answer(self, call: Any) -> Any:
        """Raises TopicError when the call is over."""
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
        return answer

    def hear_of_partitions(self, count: int) -> None:
        """Raises TopicError for a number that cannot be."""
        if not 0 < count <= PARTITIONS_MAX or TopicName.parse(self.topic).partition < 0:
            raise garbage(f"the broker that serves {self.topic}")
        self.on_partitions(self, count)

    async def _write(self, call: Any) -> None:
        try:
            while True:
                request = self._next()
                if request is not None:
                    await call.write(request)
                    continue
                if self._phase is Phase.ENDING:
                    await call.done_writing()
                    return
                self._wake.clear()
                await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return  # the reader finds out why

    async def _end(self) -> None:
        """Send the requests that wait, then end the stream."""
        self._end_soon()
        await _finish(self._task)

    # -------------------------------------------------------------------------------- phases

    def _on_call(self) -> None:
        """A call is open."""
        if self._phase is Phase.OPENING:
            self._phase = Phase.RUNNING
        self._decided.set()

    def _end_soon(self) -> None:
        """Send what waits, then end."""
        self._phase = Phase.ENDING
        self._wake.set()

    def _fail(self, error: TopicError) -> None:
        """End for good with *error*."""
        self._phase, self.failure = Phase.ENDING, error
        self._decided.set()
        self._on_failure(error)

    # -------------------------------------------------------------------------------- what the kinds may add

    async def _is_ready(self, call: Any) -> bool:
        """Return when the *call* that is open can be used; False: it broke off before. Raises TopicError."""
        return True

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
    def _on_failure(self, error: TopicError) -> None:
        """The stream has ended for good with *error*: fail all calls that wait."""

    def _broken(self, error: TopicError) -> None:
        """The call has ended with *error*; another one may be opened."""

    def _reopened(self) -> None:
        """A new call is open."""

    def _vanished(self) -> None:
        """The topic is not there any more."""


class Opened(Protocol):
    """One stream of several, as `open_all` uses it."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...


async def open_all(streams: Sequence[Opened], *, in_order: bool = False) -> None:
    """Open all *streams*, or none: if one cannot be opened, or the caller gives up, the others are closed. *in_order*:
    each when the one before it is open."""
    try:
        if in_order:
            for stream in streams:
                await stream.open()
            return
        results = await asyncio.gather(*(stream.open() for stream in streams), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]
    except BaseException:
        await asyncio.gather(*(stream.close() for stream in streams))
        raise
