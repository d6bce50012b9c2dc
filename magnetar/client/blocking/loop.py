"""The event loop of a blocking client, on a thread of its own."""

import asyncio
import concurrent.futures
import sys
import threading
import warnings
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from magnetar.client.async_client import AsyncClient
from magnetar.client.base.rpc import CLOSED, FORKED, log
from magnetar.client.errors import ClientClosed, TopicError
from magnetar_core.runtime.process.loop_thread import LoopStopped, LoopThread

R = TypeVar("R")


class Queue(Protocol):
    """Messages that wait to be sent."""

    async def ended(self) -> None:
        """Returns when those that wait now are under way, or have failed."""
        ...


def _on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Errors that nobody waits for. All clients of a process share gRPC's queue: one may be woken for an event of
    another whose loop has ended, or whose queue has; that is no error of anybody."""
    error = context.get("exception")
    if isinstance(error, OSError | RuntimeError) and "handle" in context:
        log.debug("an event of a client that is closed: %s", error)
    else:
        log.error("%s", context.get("message"), exc_info=error)


class ClientLoop(LoopThread):
    """The event loop of a client, on a thread of its own. What is made by the client holds it: it ends with the last of
    them, if nobody closes the client."""

    client: AsyncClient | None = None

    def __init__(self) -> None:
        super().__init__("magnetar client")
        self._loop.set_exception_handler(_on_error)
        self.queues = weakref.WeakSet[Queue]()
        """What waits to be sent, by producer."""

    def begin(self, work: Coroutine[Any, Any, R]) -> "concurrent.futures.Future[R]":
        """Start *work* on the loop. Raises ClientClosed."""
        begun = self._submitted(work)
        if begun is None:
            work.close()
            raise self.closed()
        return begun

    @property
    def is_current(self) -> bool:
        """This is the thread of the loop."""
        return threading.current_thread() is self._thread

    def closed(self) -> ClientClosed:
        """The error of who comes when the client is closed, or in the child of a fork."""
        return ClientClosed(CLOSED if self.is_own else FORKED)

    def run(self, work: Coroutine[Any, Any, R], timeout_s: float | None = None) -> R:
        if self.is_current:
            work.close()
            raise TopicError(
                "this is the client's own thread, which would wait for itself: callbacks (on_state, those of futures "
                "of send_async) may use send_async and ack; the rest is for other threads"
            )
        try:
            return super().run(work, timeout_s)
        except LoopStopped:
            raise self.closed() from None

    def now_s(self) -> float:
        return self._loop.time()

    def check(self) -> None:
        """Raises ClientClosed in the child of a fork."""
        if not self.is_own:
            raise ClientClosed(FORKED)

    def __del__(self, warn: Any = warnings.warn, is_finalizing: Any = sys.is_finalizing) -> None:
        if is_finalizing() or self.client is None or not self.is_alive or self.is_stopping:
            return
        warn("a magnetar.Client was not closed: use `with`, or close()", ResourceWarning, 2, self)
        self.stop_soon(self.client.close())
