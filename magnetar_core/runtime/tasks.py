"""Background tasks that cannot get lost, and an orderly stop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterable
from typing import Any, Final, Generic, TypeVar, cast

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.types import MagnetarError

log = logging.getLogger(__name__)

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)


class Failed:
    """The result of a background step that failed."""


FAILED: Final = Failed()


async def attempt(what: str, step: Awaitable[T]) -> T | Failed:
    """Wait for a background step, whose error no caller would get. Returns FAILED if it raised.

    The rule for all such steps: an error of ours (MagnetarError) is logged as one warning; any other error is a defect,
    logged with its traceback. In both cases only this step has failed, and its owner tries it again with back-off.
    *what* names the topic and the step.
    """
    try:
        return await step
    except Exception as error:
        report_failure(what, error)
        return FAILED


def attempt_now(what: str, step: Callable[[], T]) -> T | Failed:
    """Does the same as `attempt`, for a step that is not asynchronous."""
    try:
        return step()
    except Exception as error:
        report_failure(what, error)
        return FAILED


def report_failure(what: str, error: Exception) -> None:
    """Log that a background step failed, as `attempt` does; for callers that make the text only after a failure."""
    if isinstance(error, MagnetarError):
        log.warning("%s failed: %s", what, error)
    else:
        log.error("%s failed: %r", what, error, exc_info=error)


async def in_turns(steps: Generator[None, None, T]) -> T:
    """What *steps* return: long work on the loop, in which others get their turn wherever it yields. Raises what it
    raises."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        await asyncio.sleep(0)


# Some 20 µs each until it waits for the first time; to open or close a topic takes more.
BEGUN_PER_TURN: Final = 50


async def gather_in_turns(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """`asyncio.gather` for thousands: BEGUN_PER_TURN begin in one turn of the loop, so that others have theirs. Waits
    for all of them, also where one fails; then raises its error.

    *works*: a generator, so that what has not begun when this is cancelled was never made.
    """
    begun: list[asyncio.Task[T]] = []
    try:
        for work in works:
            begun.append(asyncio.ensure_future(work))
            if not len(begun) % BEGUN_PER_TURN:
                await asyncio.sleep(0)
    except asyncio.CancelledError:
        for task in begun:
            task.cancel()
        raise
    results = await asyncio.gather(*begun, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[T], results)


class Bell:
    """Wakes those who wait for a condition; each checks its own condition. For one event loop."""

    def __init__(self) -> None:
        self._waiters: dict[asyncio.Future[None], None] = {}  # in order: a simulation has to repeat itself

    def ring(self) -> None:
        """Something has changed: wake all waiters."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, is_so: Callable[[], bool], clock: Clock, timeout_s: float) -> bool:
        """Wait until *is_so* returns True, checking at every ring, for at most *timeout_s*. Returns whether it did."""
        is_late = False

        def give_up() -> None:
            nonlocal is_late
            is_late = True
            self.ring()

        timer = clock.call_later(timeout_s, give_up)
        try:
            while not is_so() and not is_late:
                await self.rung()
        finally:
            timer.cancel()
        return is_so()

    async def rung(self) -> None:
        """Wait for the next ring."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[waiter] = None
        try:
            await waiter
        finally:
            self._waiters.pop(waiter, None)


class Tasks:
    """The tasks of one owner: it keeps them alive, reports their failures, and ends them together.

    asyncio itself holds only weak references to tasks, and reports a failure only when the task is collected, which may
    be never.
    """

    def __init__(self, owner: str, on_failure: Callable[[BaseException], None] | None = None) -> None:
        self._owner = owner
        self.on_failure = on_failure
        # In order: a simulation has to repeat itself. None while there are none: a topic has five of these objects.
        self._tasks: dict[asyncio.Task[Any], None] | None = None
        self.is_closed = False
        """Nothing can be spawned any more."""

    def spawn(self, work: Coroutine[Any, Any, Any], name: str, *, awaited: bool = False) -> asyncio.Task[Any]:
        """Run *work*. A failure is logged, and passed to *on_failure* if there is one.

        *awaited*: the caller awaits the task, so its failure is not reported here.
        """
        assert not self.is_closed, f"{self._owner} is stopped"
        task = asyncio.get_running_loop().create_task(work, name=f"{self._owner}/{name}")
        if self._tasks is None:
            self._tasks = {}
        self._tasks[task] = None
        task.add_done_callback(self._ended if awaited else self._done)
        return task

    def __len__(self) -> int:
        return len(self._tasks or ())

    async def cancel(self) -> None:
        """Cancel all tasks and wait until they have ended. Nothing can be spawned afterwards."""
        self.is_closed = True
        here = asyncio.current_task()
        tasks = [task for task in self._tasks or () if task is not here]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        assert self._tasks is not None, f"{task.get_name()} ended twice"
        self._tasks.pop(task, None)
        if not self._tasks:
            self._tasks = None

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._ended(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            log.error("task %s failed: %s", task.get_name(), error, exc_info=error)
            if self.on_failure is not None:
                self.on_failure(error)


class SingleFlight(Generic[K, T]):
    """Work that several callers may ask for at the same time and that is done once: all of them get its outcome.

    The outcome is not kept, also not a failure: a later call begins the work again. For one event loop.
    """

    def __init__(self, tasks: Tasks, what: str) -> None:
        """*tasks* runs the work; *what* names it."""
        self._tasks = tasks
        self._what = what
        self._under_way: dict[K, asyncio.Task[T]] = {}

    async def do(self, key: K, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The outcome of the work under way for *key*, or else of *work*. The work continues if a caller is
        cancelled."""
        task = self._under_way.get(key)
        if task is None or task.done():
            task = self._under_way[key] = self._tasks.spawn(work(), f"{self._what} {key}", awaited=True)
            task.add_done_callback(lambda task: self._ended(key, task))
        try:
            return await asyncio.shield(task)
        finally:
            del task  # else a failure would keep this frame, which keeps the task, which keeps the failure

    @property
    def under_way(self) -> list[K]:
        return list(self._under_way)

    async def settle(self, key: K) -> None:
        """Wait until the work now under way for *key*, if any, has ended or failed."""
        task = self._under_way.get(key)
        if task is not None:
            await asyncio.wait([task])

    def _ended(self, key: K, task: asyncio.Task[T]) -> None:
        if self._under_way.get(key) is task:
            del self._under_way[key]
        if not task.cancelled():
            task.exception()  # retrieved, since every caller may have been cancelled


class Parts:
    """The parts of a daemon, stopped in the reverse order of their start."""

    def __init__(self) -> None:
        self._stops: list[tuple[str, Callable[[], Awaitable[None]]]] = []

    def add(self, name: str, stop: Callable[[], Awaitable[None]]) -> None:
        """Register how to stop a part that has just been started."""
        self._stops.append((name, stop))

    async def stop(self, timeout_s: float = 30.0) -> None:
        """Stop every part, the last started first. A part that fails to stop does not keep the others running."""
        while self._stops:
            name, stop = self._stops.pop()
            try:
                async with asyncio.timeout(timeout_s):
                    await stop()
            except TimeoutError:
                log.error("stopping %s took longer than %.0f s; going on without it", name, timeout_s)
            except (MagnetarError, OSError) as error:
                log.error("stopping %s failed: %s", name, error)
            except Exception as error:
                log.error("stopping %s failed: %s", name, error, exc_info=error)
