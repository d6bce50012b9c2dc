import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from magnetar_core.runtime.process.loop_thread import LoopStopped, LoopThread


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    made = LoopThread("test")
    yield made
    made.stop()


class Source:
    """An iterator that counts up; it records the last number and whether it was closed."""

    def __init__(self, end: int = 1 << 30, error: Exception | None = None) -> None:
        self.end, self.error = end, error
        self.reached = 0
        self.closed = False

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            while self.reached < self.end:
                await asyncio.sleep(0)
                self.reached += 1
                yield self.reached - 1
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def test_results_and_errors_come_to_the_caller(loop: LoopThread) -> None:
    async def fail() -> None:
        raise KeyError("x")

    assert loop.run(asyncio.sleep(0, 5)) == 5
    with pytest.raises(KeyError):
        loop.run(fail())


def test_waiting_can_be_bounded_and_an_own_time_out_is_passed_on(loop: LoopThread) -> None:
    with pytest.raises(TimeoutError, match=r"no answer within 0.01 s"):
        loop.run(asyncio.sleep(60), 0.01)

    async def own() -> None:
        raise TimeoutError("of the work")

    with pytest.raises(TimeoutError, match="of the work"):
        loop.run(own())


def test_items_come_in_order_to_the_end(loop: LoopThread) -> None:
    source = Source(100)
    assert list(loop.iterate(source.items(), 3)) == list(range(100))
    assert source.closed


def test_an_error_comes_after_the_items_before_it(loop: LoopThread) -> None:
    items = loop.iterate(Source(3, OSError("broken")).items(), 10)
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="broken"):
        next(items)


def test_the_source_runs_only_so_far_ahead(loop: LoopThread) -> None:
    source = Source()
    items = loop.iterate(source.items(), 5)
    next(items)
    loop.run(asyncio.sleep(0.05))
    assert source.reached in (5, 6)
    items.close()
    loop.run(asyncio.sleep(0.05))
    assert source.closed
    assert source.reached <= 7


def test_stopping_the_loop_ends_who_waits_for_it() -> None:
    loop = LoopThread("test")
    source = Source()
    items = loop.iterate(source.items(), 2)
    next(items)
    loop.stop()
    assert source.closed
    with pytest.raises(LoopStopped):
        list(items)
    assert not loop.is_alive
    with pytest.raises(LoopStopped):
        loop.run(asyncio.sleep(0))
    loop.stop()


def test_nobody_waits_for_a_loop_that_is_stopped() -> None:
    """Ten threads give it work without end, until one of two others stops it."""
    loop = LoopThread("test")
    ended = list[str]()
    begun = threading.Semaphore(0)

    def work() -> None:
        try:
            while True:
                begun.release()
                loop.run(asyncio.sleep(0.001))
        except LoopStopped as error:
            ended.append(str(error))

    def wait() -> None:
        with pytest.raises(LoopStopped):
            loop.run(asyncio.sleep(3_600))
        ended.append("waited")

    threads = [threading.Thread(target=target, daemon=True) for target in [work] * 9 + [wait]]
    for thread in threads:
        thread.start()
    for _ in range(50):
        begun.acquire()
    stopping = [threading.Thread(target=loop.stop, daemon=True) for _ in range(2)]
    for thread in stopping:
        thread.start()
    for thread in [*threads, *stopping]:
        thread.join(20)
        assert not thread.is_alive(), "it waits for ever"
    assert len(ended) == 10
    assert not loop.is_alive
    with pytest.raises(LoopStopped):
        loop.run(asyncio.sleep(0))
