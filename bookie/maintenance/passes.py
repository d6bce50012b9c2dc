"""When the searches and checks of a bookie run: pass after pass in the background, never two at once."""

from collections.abc import Awaitable, Callable

from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import Tasks


class Passes:
    """The passes of one job. Used on the loop.

    idle ──begin_in──▶ due ──time, or begin──▶ running ──▶ due, if the pass says when the next one begins; else idle
    """

    def __init__(
        self, name: str, clock: Clock, one_pass: Callable[[], Awaitable[float | None]], again_s: float | None
    ) -> None:
        """*one_pass* returns after how many seconds the next one begins, None for none. After a defect in it that is
        *again_s*: one pass has failed then, and not the job."""
        self.tasks = Tasks(name)
        self.is_running = False
        self._clock = clock
        self._one_pass = one_pass
        self._again_s = again_s
        self._timer: Timer | None = None

    def begin(self) -> None:
        """Begin a pass now, unless one is under way."""
        if self.is_running or self.tasks.is_closed:
            return
        self._forget_timer()
        self.is_running = True
        self.tasks.spawn(self._run(), "pass")

    def begin_in(self, seconds: float) -> None:
        """Begin a pass then, unless one is under way or due."""
        if not self.is_running and self._timer is None and not self.tasks.is_closed:
            self._timer = self._clock.call_later(seconds, self.begin)

    async def stop(self) -> None:
        """End the pass under way; no other one begins."""
        self._forget_timer()
        await self.tasks.cancel()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _run(self) -> None:
        assert self._timer is None, "a pass is under way, and another one is due"
        following_s = self._again_s
        try:
            following_s = await self._one_pass()
        finally:
            self.is_running = False
            if following_s is not None:
                self.begin_in(following_s)
