"""An event loop under virtual time, on which several processes live. Nothing waits, and a seed gives the same run.

A `Process` is a context variable: what one starts (tasks, timers, connections) belongs to it, however deep. So a
process can stop dead at any moment, as by kill -9: nothing of it runs any more, no `finally` either. Or it stands
still, as by SIGSTOP, and does later what was due meanwhile.
"""

import asyncio
import contextvars
import selectors
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
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
    """Has no events; instead of waiting it moves the time on."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, fileobj if isinstance(fileobj, int) else fileobj.fileno(), events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(fileobj if isinstance(fileobj, int) else fileobj.fileno())

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and nothing will happen any more")
        if timeout > 0:
            self.now_s += timeout
            self.calls = 0
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
        self._held: list[_Call] = []
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
        for call in held:
            loop.call_soon(call, context=call.context)

    def hold(self, call: "_Call") -> None:
        self._held.append(call)


PROCESS: contextvars.ContextVar[Process] = contextvars.ContextVar("process")
"""The process that runs now."""


class _Call:
    """A callback of a process: it does not run in a dead one, and waits in one that stands still."""

    __slots__ = ("arguments", "context", "handle", "process", "work")

    def __init__(
        self, process: Process, work: Callable[..., object], arguments: tuple[Any, ...], context: contextvars.Context
    ) -> None:
        self.process = process
        self.work = work
        self.arguments = arguments
        self.context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        process = self.process
        if process.is_dead:
            return
        if process.is_frozen:
            process.hold(self)
        elif self.handle is None or not self.handle.cancelled():
            self.work(*self.arguments)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The time goes on when everything waits, to the next timer."""

    def __init__(self) -> None:
        self.virtual = _Selector()
        super().__init__(self.virtual)
        self.work_delay_s: Callable[[str], float] = lambda name: 0.0
        """How long work on a thread of that name takes: of the executor (""), of a journal, of a flusher."""
        self.set_task_factory(_new_task)

    def time(self) -> float:
        return self.virtual.now_s

    def call_soon(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        self.virtual.calls += 1
        if self.virtual.calls > CALLS_AT_ONCE_MAX:
            raise RuntimeError(f"{CALLS_AT_ONCE_MAX} callbacks at one moment: something never waits; now {callback}")
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None or type(callback) is _Call:
            return super().call_soon(callback, *args, context=context)
        call = _Call(process, callback, args, context)
        call.handle = super().call_soon(call, context=context)
        return call.handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[_Ts]], object], *args: *_Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        context = contextvars.copy_context() if context is None else context
        process = context.get(PROCESS)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        call = _Call(process, callback, args, context)
        timer = super().call_at(when, call, context=context)
        call.handle = timer
        return timer

    def call_later(
        self,
        delay: float,
        callback: Callable[[Unpack[_Ts]], object],
        *args: *_Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

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


def _new_task(loop: asyncio.AbstractEventLoop, coro: Any, *, context: contextvars.Context | None = None) -> Any:
    task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, context=context)
    process = (contextvars.copy_context() if context is None else context).get(PROCESS)
    if process is not None:
        process.keep(task)
    return task


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
