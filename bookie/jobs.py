"""A thread for work that blocks: flushing, cold reads, the steps of a start."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from magnetar_core.runtime.group_worker import GroupWorker

T = TypeVar("T")

Done = Callable[[Any, Exception | None], None]


class _Job:
    __slots__ = ("done", "error", "result", "work")

    def __init__(self, work: Callable[[], Any], done: Done) -> None:
        self.work = work
        self.done = done
        self.result: Any = None
        self.error: Exception | None = None


class JobThread:
    """Runs one job after the other. An error of a job is passed to its caller; the thread continues."""

    def __init__(self, name: str) -> None:
        # Groups of one, so that the outcome of a short job does not wait for a longer job after it.
        self._worker: GroupWorker[_Job] = GroupWorker(name, _run_jobs, _report, group_items_max=1)

    def start(self) -> None:
        self._worker.start()

    async def stop(self) -> None:
        """Finish all submitted jobs, then end the thread."""
        await self._worker.stop()

    @property
    def waiting(self) -> int:
        return self._worker.waiting

    def submit(self, work: Callable[[], T], done: Callable[[T, Exception | None], None]) -> None:
        """Do *work* on the thread, then call *done(result, error)* on the loop."""
        self._worker.put([_Job(work, done)])

    async def run(self, work: Callable[[], T]) -> T:
        """Do *work* on the thread and wait for it."""
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, error: Exception | None) -> None:
            if outcome.cancelled():
                return
            if error is None:
                outcome.set_result(result)
            else:
                outcome.set_exception(error)

        self.submit(work, done)
        return await outcome


def _run_jobs(jobs: Sequence[_Job]) -> None:
    for job in jobs:
        try:
            job.result = job.work()
        except Exception as error:
            job.error = error


def _report(jobs: Sequence[_Job], error: BaseException | None) -> None:
    for job in jobs:
        if job.error is None and error is not None:  # an error that is not an Exception ends the thread
            job.error = RuntimeError(f"the thread has ended: {error!r}")
        job.done(job.result, job.error)


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads of a bookie, except those of its journals."""

    flusher: JobThread
    maintenance: JobThread
    urgent_reader: JobThread
    """Reads for recovery, so that they do not wait behind catch-up reads."""
    readers: tuple[JobThread, ...]

    @property
    def all_readers(self) -> list[JobThread]:
        return [self.urgent_reader, *self.readers]
