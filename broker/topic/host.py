"""Time, background reads and the memory budget for the subscriptions of a topic (`broker.topic.ports.Host`)."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from broker.memory_budget import MemoryBudget
from broker.topic.ports import Entries, Room
from broker.topic.unacked import UnackedBudget
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import FAILED, Failed, Tasks, attempt, report_failure


class TopicHost:
    """Implements `Host` for the subscriptions of one topic."""

    def __init__(
        self, clock: Clock, tasks: Tasks, name: str, reads: MemoryBudget, unacked: UnackedBudget | None = None
    ) -> None:
        """*unacked* None: subscriptions may have any number of unacknowledged messages together."""
        self.unacked = unacked or UnackedBudget()
        self._clock = clock
        self._tasks = tasks
        self._name = name
        self._reads = reads
        self.is_closed = False

    def now_ms(self) -> int:
        return self._clock.wall_ms()

    def call_later(self, delay_ms: float, callback: Callable[[], None]) -> Timer:
        return self._clock.call_later(delay_ms / 1000, callback)

    @property
    def read_room_bytes(self) -> int:
        return self._reads.room_bytes

    def when_read_room(self, waiter: object, resume: Callable[[], None]) -> None:
        self._reads.wait(waiter, resume)

    def fetch(
        self, work: Awaitable[Entries], done: Callable[[Entries | None], None], size_bytes: int, room: Room | None
    ) -> None:
        """Wait for a read from bookies; *done* gets its entries, or None if it failed. The bytes that it may bring are
        reserved until then."""
        if self.is_closed:
            if isinstance(work, Coroutine):
                work.close()
            return
        # Reserved here and not in the task, so that a second subscription in the same turn of the loop sees it.
        self._reads.take(size_bytes)
        if room is not None:
            room.reserve(size_bytes)
        task = self._tasks.spawn(attempt(f"{self._name}: a read", work), "read")

        def on_read(task: "asyncio.Task[Entries | Failed]") -> None:
            self._reads.give(size_bytes)
            entries = FAILED if task.cancelled() else task.result()
            if not self.is_closed:
                done(None if isinstance(entries, Failed) else entries)
            if room is not None:
                room.reserve(-size_bytes)

        task.add_done_callback(on_read)

    def guard(self, step: Callable[[], None], what: str) -> bool:
        try:  # runs for every ack, so the text of the report is made only after a failure
            step()
        except Exception as error:
            report_failure(f"{self._name}: {what}", error)
            return False
        return True
