"""An event loop on a separate thread, for callers that have none (Spark tasks, tools).

caller's thread          loop's thread
run(work)      ────────▶ a task; the caller waits for it
iterate(items) ◀──box─── a task that fills the box, a limited number of items ahead
"""

import asyncio
import concurrent.futures
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import aclosing, suppress
from typing import Any, TypeVar

T = TypeVar("T")


class LoopStopped(RuntimeError):
    """The loop ended before the result was there."""


class LoopThread:
    """Runs coroutines for threads without a loop. The thread ends with the process, or with `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name=name, daemon=True)
        self._pid = os.getpid()
        # Work goes to the loop before what ends it, or not at all: so nobody waits for a loop that has ended.
        self._lock = threading.Lock()
        self.is_stopping = False
        """It takes no more work."""
        self._thread.start()

    @property
    def is_own(self) -> bool:
        """False in the child of a fork, which does not inherit threads."""
        return self._pid == os.getpid()

    @property
    def is_alive(self) -> bool:
        """False after `stop`, and in the child of a fork."""
        return self.is_own and self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for *work*; raises what it raises, TimeoutError after *timeout_s*, LoopStopped if `stop` comes first."""
        future = self._submitted(work)
        if future is None:
            work.close()
            raise LoopStopped("this loop does not run")
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            raise LoopStopped("the loop was stopped") from None
        except TimeoutError:
            if future.done():
                raise  # by *work* itself
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s} s") from None
        except BaseException:
            # By a handler of a signal, as at Control-C: nobody waits for the result any more. (From *work* it is done.)
            future.cancel()
            raise

    def _submitted(
        self, work: Coroutine[Any, Any, T], *, is_last: bool = False
    ) -> "concurrent.futures.Future[T] | None":
        """*work* on the loop; None if the loop does not take any. *is_last*: it takes none after this."""
        if not self.is_alive:  # after a fork another thread may have held the lock for ever
            return None
        with self._lock:
            if self.is_stopping:
                return None
            self.is_stopping = is_last
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def iterate(self, source: AsyncGenerator[T, None], ahead: int) -> Generator[T, None, None]:
        """The items of *source*, which runs up to *ahead* items ahead of the caller.

        Closing this generator closes *source*, too. Raises what *source* raises, LoopStopped.
        """
        box: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()
        room, pump = self.run(_start(source, box, ahead))
        try:
            while True:
                item = box.get()
                if isinstance(item, StopAsyncIteration):
                    return
                if isinstance(item, BaseException):
                    raise item
                self._call_on_loop(room.release)
                yield item[0]
        finally:
            # Do not wait for it: this may run while the interpreter ends, when the other thread no longer runs.
            self._call_on_loop(pump.cancel)

    def _call_on_loop(self, callback: Callable[[], object]) -> None:
        """Call *callback* on the loop, if the loop still runs."""
        if self.is_alive:
            with suppress(RuntimeError):  # it has ended since
                self._loop.call_soon_threadsafe(callback)

    def stop(self) -> None:
        """Cancel all tasks of the loop, then end it; who waits in `run` gets LoopStopped."""
        cancelling = self._submitted(end := _cancel_all(), is_last=True)
        if cancelling is None:
            end.close()
            return
        cancelling.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def stop_soon(self, last: Coroutine[Any, Any, None]) -> None:
        """Run *last*, then `stop`. Does not wait: for finalizers, which may run on any thread."""
        if self._submitted(end := _end(last, self._loop), is_last=True) is None:
            end.close()
            last.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """The thread: it does not keep the LoopThread alive."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(last: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    try:
        await last
    finally:
        await _cancel_all()
        loop.stop()


async def _start(
    source: AsyncGenerator[T, None], box: "queue.SimpleQueue[tuple[T] | BaseException]", ahead: int
) -> tuple[asyncio.Semaphore, "asyncio.Task[None]"]:
    """Begin `_pump`; returns its *room* and its task. A coroutine, because a task can be made only on its loop."""
    room = asyncio.Semaphore(ahead)
    return room, asyncio.get_running_loop().create_task(_pump(source, box, room))


async def _pump(
    source: AsyncGenerator[T, None], box: "queue.SimpleQueue[tuple[T] | BaseException]", room: asyncio.Semaphore
) -> None:
    """Put the items of *source* into *box*, then the exception that says how it ended (StopAsyncIteration: whole).

    Each item is in a tuple, so that an item which is an exception is not taken for the end. *room* counts the items
    that may be fetched before the caller takes some.
    """
    end: BaseException = LoopStopped("the loop was stopped")
    try:
        async with aclosing(source):
            await room.acquire()
            async for item in source:
                box.put((item,))
                await room.acquire()
        end = StopAsyncIteration()
    except Exception as error:
        end = error
    finally:
        box.put(end)


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
