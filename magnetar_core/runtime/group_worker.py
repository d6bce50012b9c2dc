"""A thread that owns a resource, takes all waiting items as one group, and reports once per group.

An executor call with a sync for each item reaches 2,100 items/s on two shared cores. One thread that takes all items
which gathered since its last round reaches 325,000 to 475,000. Groups form by themselves: while the thread syncs one,
the next one gathers.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar, runtime_checkable

T = TypeVar("T")


@runtime_checkable
class WithoutThreads(Protocol):
    """An event loop on which workers have no threads of their own, as in a simulation."""

    def wake_worker(self, name: str, step: Callable[[], None]) -> None:
        """Call *step*, which may block, some time later; *name* is the worker's."""
        ...


class GroupWorker(Generic[T]):
    """Runs *work(items)* on its own thread for all items that wait, then *report(items, error)* on the loop.

    Rules:

    1. Items are processed in the order in which they were put, each exactly once.
    2. *report* is called once for each group, in order, on the event loop that started the worker.
    3. After *work* has raised, the worker is poisoned: later items are reported with the same error
       without touching the resource (I38, I39). The owner decides what that means.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Sequence[T]], None],
        report: Callable[[Sequence[T], BaseException | None], None],
        *,
        group_items_max: int = 100_000,
    ) -> None:
        self._name = name
        self._work = work
        self._report = report
        self._group_items_max = group_items_max
        self._items: list[T] = []
        self._wake = threading.Condition(threading.Lock())
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._wake_loop: Callable[[], None] | None = None
        """Where the loop has no threads: calls `_run_round` some time later."""
        self.error: BaseException | None = None

    def start(self) -> None:
        assert self._ended is None, f"{self._name} was started twice"
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        if isinstance(self._loop, WithoutThreads):
            self._wake_loop = partial(self._loop.wake_worker, self._name, self._run_round)
            if self._items:
                self._wake_loop()
            return
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def put(self, items: Sequence[T]) -> None:
        """Queue *items*. Never blocks; the caller limits how many may wait."""
        with self._wake:
            assert not self._stopping, f"{self._name} is stopped"
            was_empty = not self._items
            self._items.extend(items)
            if was_empty and self._wake_loop is not None:
                self._wake_loop()
            elif was_empty:
                self._wake.notify()

    @property
    def waiting(self) -> int:
        """Items that no group has taken yet."""
        return len(self._items)

    async def stop(self) -> None:
        """Process all queued items, then end the thread."""
        if self._ended is None:
            return
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._wake_loop is not None and not self._items:
            self._wake_loop()
        await self._ended.wait()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._loop is not None
        assert self._ended is not None
        while True:
            with self._wake:
                while not self._items and not self._stopping:
                    self._wake.wait()
                if not self._items:
                    break
                group = self._next_group()
            self._work_on(group)
        self._call_on_loop(self._ended.set)

    def _run_round(self) -> None:
        """One round on a loop without threads."""
        assert self._ended is not None
        if self._items:
            self._work_on(self._next_group())
        if self._items:
            assert self._wake_loop is not None
            self._wake_loop()
        elif self._stopping:
            self._call_on_loop(self._ended.set)

    def _next_group(self) -> list[T]:
        group = self._items[: self._group_items_max]
        del self._items[: self._group_items_max]
        return group

    def _work_on(self, group: list[T]) -> None:
        if self.error is None:
            try:
                self._work(group)
            except BaseException as error:
                self.error = error
        self._call_on_loop(self._report, group, self.error)

    def _call_on_loop(self, callback: Callable[..., object], *arguments: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: there is nothing to report to
            self._loop.call_soon_threadsafe(callback, *arguments)
