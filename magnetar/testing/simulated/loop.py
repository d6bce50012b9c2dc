"""An event loop under virtual time, on which several processes live. Nothing waits, and a seed gives the same run.

A `Process` is a context variable: what one starts (tasks, timers, connections) belongs to it, however deep. So a
process can stop dead at any moment, as by kill -9: nothing of it runs any more, no `finally` either. Or it stands
still, as by SIGSTOP, and does later what was due meanwhile.
"""

import asyncio
import contextvars
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from heapq import heappop, heappush
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

from magnetar_core.runtime.clock import Timer

T = TypeVar("T")
_Ts = TypeVarTuple("_Ts")

WALL_MS: Final = 1_700_000_000_000

# Callbacks that may run at one moment of virtual time. More are a circle that never waits.
CALLS_AT_ONCE_MAX: Final = 2_000_000

# Seconds that the tasks of dead processes have for their end.
BURIED_S: Final = 120.0


class _Selector(selectors.BaseSelector):
    """Has no events."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys


class Process:
    """What stops, or stands still, together: a broker, a bookie, a client."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = name
        """Its machine in the network."""
        self.is_dead = False
        self.is_frozen = False
        self.on_death: list[Callable[[], None]] = []
        """Called once when the process dies: by the network, and by whoever else would notice."""
        self._held: list[asyncio.Handle] = []
        # Tasks that are not referenced would be closed, and their `finally` would run.
        self._tasks: list[asyncio.Task[Any]] = []

    def __repr__(self) -> str:
        return self.name

    def run(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start *work* as a task of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return asyncio.get_running_loop().create_task(work, context=context)

    def call(self, work: Callable[..., T], *arguments: Any) -> T:
        """Call *work* now, in this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, self)
        return context.run(work, *arguments)

    def keep(self, task: asyncio.Task[Any]) -> None:
        self._tasks.append(task)
        if len(self._tasks) > 1_000:
            self._tasks = self.tasks

    @property
    def tasks(self) -> list[asyncio.Task[Any]]:
        """Those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    def kill(self) -> None:
        """Stop dead. From now on nothing of this process runs."""
        if not self.is_dead:
            self.is_dead = True
            self._held.clear()
            for notice in self.on_death:
                notice()

    def freeze(self) -> None:
        """Stand still until `thaw`."""
        self.is_frozen = True

    def thaw(self) -> None:
        """Go on, with all that was due meanwhile."""
        self.is_frozen = False
        held, self._held = self._held, []
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.call_again(held)

    def hold(self, handle: asyncio.Handle) -> None:
        self._held.append(handle)


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
"""The process that runs now."""


# As it is: `LateTask` may stand in its place.
_TASK: Final = asyncio.Task

# Not by `super()`: it is called for each callback.
_RUN: Final = asyncio.Handle._run


class _OfProcess(asyncio.TimerHandle):
    """A callback of a process: it does not run in a dead one, and waits in one that stands still."""

    __slots__ = ("process",)
    _when: float
    _scheduled: bool
    _callback: Callable[..., object]
    _loop: asyncio.AbstractEventLoop
    _context: contextvars.Context
    _repr: str | None
    _source_traceback: None

    def __init__(
        self, process: Process | None, when: float, callback: Callable[..., object], args: Sequence[Any],
        loop: asyncio.AbstractEventLoop, context: contextvars.Context,
    ) -> None:  # fmt: skip
        """What `asyncio.TimerHandle` does, which asks the loop each time whether it is to remember who calls."""
        self.process = process
        self._when = when
        self._scheduled = False
        self._callback = callback
        self._args = args
        self._loop = loop
        self._context = context
        self._cancelled = False
        self._repr = self._source_traceback = None

    def _run(self) -> None:
        process = self.process
        if process is None or not (process.is_dead or process.is_frozen):
            _RUN(self)
        elif not process.is_dead:
            process.hold(self)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The time goes on when everything waits, to the next timer."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        """Callbacks so far."""
        self._calls_before = 0
        """At the moment that is now."""
        # Tuples, which the heap compares without a call of Python; those of one moment in their order.
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._timer_count = 0
        super().__init__(_Selector())
        self.work_delay_s: Callable[[str], float] = lambda name: 0.0
        """How long work on a thread of that name takes: of the executor (""), of a journal, of a flusher."""
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self.now_s

    def _run_once(self) -> None:
        """One turn, as `BaseEventLoop` has it: timers that are due, and then all that was ready at its begin."""
        ready, timers = self._ready, self._timers
        while timers and timers[0][2]._cancelled:
            heappop(timers)
        if not ready and not self._stopping:
            if not timers:
                raise RuntimeError("everything waits, and nothing will happen any more")
            if timers[0][0] > self.now_s:
                self.now_s = timers[0][0]
                self._calls_before = self.calls
        while timers and timers[0][0] <= self.now_s:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self.calls += 1
        if self.calls > self._calls_before + CALLS_AT_ONCE_MAX:
            raise RuntimeError(f"{CALLS_AT_ONCE_MAX} callbacks at one moment: something never waits; now {callback}")
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        handle = _OfProcess(process, self.now_s, callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_again(self, handles: Sequence[asyncio.Handle]) -> None:
        """Callbacks whose process stood still when they were due."""
        self._ready.extend(handles)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self.calls += 1
        context = contextvars.copy_context() if context is None else context
        timer = _OfProcess(context.get(PROCESS), when, callback, args, self, context)
        self._timer_count += 1
        heappush(self._timers, (when, self._timer_count, timer))
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.now_s + delay, callback, *args, context=context)

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], T], *args: *_Ts
    ) -> asyncio.Future[T]:
        """Nothing runs beside the loop: *func* is called some time later."""
        outcome: asyncio.Future[T] = self.create_future()

        def work() -> None:
            if outcome.cancelled():
                return
            try:
                outcome.set_result(func(*args))
            except Exception as error:
                outcome.set_exception(error)

        self.call_later(self.work_delay_s(""), work)
        return outcome

    def wake_worker(self, name: str, step: Callable[[], None]) -> None:
        """As `magnetar_core.runtime.group_worker.WithoutThreads`."""
        self.call_later(self.work_delay_s(name), step)


def _new_task(
    loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None, **options: Any
) -> Any:
    """*options*: those that the loop hands over since Python 3.13.3, such as the name."""
    options.pop("eager_start", None)  # as `LateTask`
    task: asyncio.Task[Any] = _TASK(coro, loop=loop, context=context, **options)
    _keep(task, context)
    return task


class _AnyTask(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _TASK)


class LateTask(asyncio.Task[Any], metaclass=_AnyTask):
    """Stands for `asyncio.Task` where libraries make tasks past their loop: it is kept by its process, and never begins
    at once. aiohttp begins its own at once where Python can, since 3.12: a seed would be another life there."""

    def __init__(
        self, coro: Any, *, context: contextvars.Context | None = None, eager_start: bool = False, **options: Any
    ) -> None:
        super().__init__(coro, context=context, **options)
        _keep(self, context)


def _keep(task: asyncio.Task[Any], context: contextvars.Context | None) -> None:
    process = (contextvars.copy_context() if context is None else context).get(PROCESS)
    if process is not None:
        process.keep(task)


class VirtualClock:
    """The clock of a `VirtualLoop`, as one machine has it."""

    def __init__(self, loop: VirtualLoop, *, ahead_ms: int = 0, rate: float = 1.0) -> None:
        """*ahead_ms*: how far its wall clock is ahead of the others; *rate*: its seconds in a second of the loop."""
        self._loop = loop
        self._ahead_ms = ahead_ms
        self._rate = rate

    def monotonic(self) -> float:
        return self._loop.time() * self._rate

    def wall_ms(self) -> int:
        return WALL_MS + self._ahead_ms + int(self._loop.time() * self._rate * 1000)

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        return self._loop.call_later(delay_s / self._rate, callback)

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s / self._rate)


def run_virtually(main: Callable[[VirtualClock], Coroutine[Any, Any, T]]) -> T:
    """Run *main* to its end, with a clock of its own."""
    loop = VirtualLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main(VirtualClock(loop)))


async def bury(processes: Sequence[Process]) -> None:
    """Let the tasks of dead processes end, with their `finally`, where nobody meets them any more: their connections
    are gone, and nobody listens. Without that they would be closed in the middle some time later."""
    for process in processes:
        process.is_dead = process.is_frozen = False
        for task in process.tasks:
            task.cancel()
    tasks = [task for process in processes for task in process.tasks]
    if tasks:
        await asyncio.wait(tasks, timeout=BURIED_S)
