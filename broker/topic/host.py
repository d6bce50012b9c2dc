"""The world as the subscriptions of a topic see it (`broker.topic.ports.Host`): time, tasks, room for what is read."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from broker.memory_budget import MemoryBudget
from broker.topic.ports import Entries, Sink
from magnetar_core.runtime.clock import Clock, Timer
from magnetar_core.runtime.tasks import FAILED, Failed, Tasks, attempt, report_failure


class TopicHost:
    """What the subscriptions of one topic need from the world around them."""

    def __init__(self, clock: Clock, tasks: Tasks, name: str, reads: MemoryBudget) -> None:
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

    def when_read_room(self, who: object, go_on: Callable[[], None]) -> None:
        self._reads.wait(who, go_on)

    def fetch(
        self, work: Awaitable[Entries], done: Callable[[Entries | None], None], size_bytes: int, sink: Sink | None
    ) -> None:
        if self.is_closed:
            if isinstance(work, Coroutine):
                work.close()
            return
        # Not in the task: two subscriptions of one turn of the loop must see what the other one is about to read.
        self._reads.take(size_bytes)
        if sink is not None:
            sink.reserve(size_bytes)
        task = self._tasks.spawn(attempt(f"{self._name}: a read", work), "read")

        def came(task: "asyncio.Task[Entries | Failed]") -> None:
            self._reads.give(size_bytes)
            entries = FAILED if task.cancelled() else task.result()
            if not self.is_closed:
                done(None if isinstance(entries, Failed) else entries)
            if sink is not None:
                sink.reserve(-size_bytes)

        task.add_done_callback(came)

    def guard(self, step: Callable[[], None], what: str) -> bool:
        try:  # once for each ack: the text is made only where it is wanted
            step()
        except Exception as error:
            report_failure(f"{self._name}: {what}", error)
            return False
        return True
