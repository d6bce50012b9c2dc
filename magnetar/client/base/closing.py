"""The end of a producer, a consumer or a client: begun once, waited for by everybody who closes it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Closing:
    """Runs *close* in a task of its own: a caller that is cancelled does not leave half of it undone."""

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._close = close
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    async def wait(self) -> None:
        """Begin, if nobody has, and wait for the end. Raises what *close* raises."""
        await asyncio.shield(self.begin())

    def begin(self) -> asyncio.Task[None]:
        if self._task is None:
            self._task = asyncio.ensure_future(self._close())
        return self._task
