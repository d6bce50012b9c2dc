"""An event loop on a thread of its own, for callers that have none (Spark tasks, tools)."""

import asyncio
import concurrent.futures
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """Runs coroutines for threads without a loop. The thread ends with the process, or with `stop`."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """False in a child after a fork: threads do not come along."""
        return self._thread.is_alive()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Wait for *work*; raises what it raises, TimeoutError after *timeout_s*."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(timeout_s)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s} s") from None

    def iterate(self, source: AsyncIterator[T], ahead: int) -> Iterator[T]:
        """The items of *source*, which runs up to *ahead* items ahead of the caller.

        Closing this generator ends *source* too.
        """
        box: asyncio.Queue[tuple[T | None, BaseException | None]] = self.run(_new_queue(ahead))
        pump = asyncio.run_coroutine_threadsafe(_pump(source, box), self._loop)
        try:
            while True:
                item, error = asyncio.run_coroutine_threadsafe(box.get(), self._loop).result()
                if error is not None:
                    if isinstance(error, StopAsyncIteration):
                        return
                    raise error
                yield item  # type: ignore[misc]  # without an error there is an item
        finally:
            pump.cancel()

    def stop(self) -> None:
        """End the loop; what still runs on it is dropped."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _new_queue(size: int) -> asyncio.Queue[Any]:
    return asyncio.Queue(size)


async def _pump(source: AsyncIterator[T], box: "asyncio.Queue[tuple[T | None, BaseException | None]]") -> None:
    try:
        async for item in source:
            await box.put((item, None))
    except Exception as error:
        await box.put((None, error))
    else:
        await box.put((None, StopAsyncIteration()))
