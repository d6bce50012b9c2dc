"""Durations of operations are counted stage by stage, and slow operations are logged."""

import asyncio
import logging
import math
import random
from typing import Any

import pytest

from bookie.latency import BookieLatency, FlushLatency, GroupTimes, JournalLatency, ReadLatency
from bookie.serving.cold_reads import ColdRead, ColdReads, ReadWatch
from bookie.storage.checkpoint import Checkpointer
from bookie.storage.journal.writer import Journal
from bookie.storage.ledger_storage import ReadResult
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar_core.runtime.data.distribution import QUANTILES, Distribution
from magnetar_core.runtime.observe import SlowOperations
from tests.support.bookie_disks import Disk, stored_entry
from tests.support.crash_images import Life, StepThread, StepWorker
from tests.support.manual_clock import ManualClock
from tests.unit.bookie.storage.journal.test_journal import writer_on

log = logging.getLogger(__name__)


def fields_of(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if hasattr(record, "fields")]


# -- distributions


@pytest.mark.parametrize("seed", range(20))
def test_quantiles_are_exact_to_a_sixteenth(seed: int) -> None:
    rng = random.Random(seed)
    scale = 10 ** rng.uniform(-2, 6)
    values = sorted(rng.expovariate(1 / scale) for _ in range(rng.randrange(1, 2000)))
    found = Distribution()
    for value in values:
        found.add(value)
    assert found.count == len(values)
    assert found.sum == pytest.approx(sum(values))
    for quantile, value in found.quantiles(0.0).items():
        exact = values[max(math.ceil(quantile * len(values)) - 1, 0)]
        assert value == pytest.approx(exact, rel=1 / 16, abs=0.001)


def test_many_operations_that_took_the_same_time_are_counted_at_once() -> None:
    found = Distribution()
    found.add(2.0, 99)
    found.add(1000.0)
    assert (found.count, found.sum) == (100, 1198.0)
    quantiles = found.quantiles(0.0)
    assert quantiles[0.99] == pytest.approx(2.0, rel=0.07)
    assert quantiles[0.999] == pytest.approx(1000.0, rel=0.07)


def test_values_beyond_the_last_bucket_are_counted_in_it() -> None:
    found = Distribution()
    found.add(1e15)
    found.add(-1.0)
    assert found.count == 2
    assert found.quantiles(0.0)[1.0] > 1e9


def test_quantiles_forget_what_is_older_than_two_minutes_and_counts_do_not() -> None:
    found = Distribution()
    assert all(math.isnan(value) for value in found.quantiles(0.0).values())
    found.add(5.0)
    for now_s in (10.0, 61.0, 100.0):
        assert found.quantiles(now_s)[1.0] == pytest.approx(5.0, rel=0.07), now_s
    found.add(1.0)
    assert found.quantiles(122.0)[1.0] == pytest.approx(1.0, rel=0.07)
    assert tuple(found.quantiles(190.0)) == QUANTILES
    assert math.isnan(found.quantiles(250.0)[1.0])
    assert found.count == 2


# -- journal groups


class SlowDisk:
    """Makes writes and syncs of a journal take the given time, by advancing the clock."""

    def __init__(self, files: MemoryFiles, clock: ManualClock) -> None:
        self.write_s = self.sync_s = 0.0
        self._clock = clock
        files.on_operation.append(self)

    def __call__(self, kind: str, path: str) -> None:
        if path.endswith((".txn", ".log")):
            self._clock.advance({"write": self.write_s, "sync": self.sync_s}.get(kind, 0.0))


def test_a_journal_group_tells_how_long_each_of_its_stages_took(caplog: pytest.LogCaptureFixture) -> None:
    clock, files, latency = ManualClock(), MemoryFiles(), JournalLatency()
    slow = SlowOperations(log, clock, 1_000)
    journal = Journal(
        writer_on(files), "journal 0", lambda error: None, lambda error: None, clock=clock, latency=latency, slow=slow
    )
    disk = SlowDisk(files, clock)
    worker = StepWorker(journal)
    disk.write_s, disk.sync_s = 0.25, 2.0
    entry = stored_entry(1, 0)
    journal.put([b"size", entry, b"size", entry], True, lambda argument, refusal: None, None)
    clock.advance(0.5)
    journal.put([b"size", entry], True, lambda argument, refusal: None, None)
    worker.work(2)
    clock.advance(0.125)
    worker.report()
    (line,) = fields_of(caplog)
    assert line == {
        "operation": "journal group", "thread": "journal 0", "entries": 3, "bytes": line["bytes"],
        "total_ms": 2875.0, "queue_ms": 500.0, "write_ms": 250.0, "sync_ms": 2000.0, "report_ms": 125.0,
    }  # fmt: skip
    assert line["bytes"] >= 512
    assert (latency.adds.good.count, latency.adds.bad.count) == (3, 0)
    assert latency.adds.good.sum == pytest.approx(2 * 2875 + 2375)
    assert latency.queue.sum == pytest.approx(2 * 500)
    assert latency.sync.sum == pytest.approx(2000)
    assert (latency.sync.count, latency.group_entries.sum) == (1, 3)


def test_a_group_that_nobody_wants_synced_counts_no_sync() -> None:
    clock, latency = ManualClock(), JournalLatency()
    journal = Journal(
        writer_on(MemoryFiles()), "journal", lambda error: None, lambda error: None, clock=clock, latency=latency
    )
    worker = StepWorker(journal)
    journal.put([b"size", stored_entry(1, 0)], False, lambda argument, refusal: None, None)
    worker.work(1)
    worker.report()
    assert (latency.write.count, latency.sync.count) == (1, 0)


def test_refused_records_count_as_failures() -> None:
    latency = JournalLatency()
    latency.put(0.0, GroupTimes(1.0, 2.0, 0.5, 0.0, False, 0), 3.0, 7, False)
    assert (latency.adds.good.count, latency.adds.bad.count, latency.adds.bad.sum) == (0, 7, 21_000.0)


# -- slow lines


def test_a_second_has_one_line_and_the_next_one_tells_of_those_left_out(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    slow = SlowOperations(log, clock, 100)
    for total_s in (0.5, 0.6, 0.7):
        slow.report("add", total_s, {"queue": total_s})
    clock.advance(1.0)
    slow.report("add", 0.8, {"queue": 0.8}, ledger=7)
    slow.report("add", 0.9, {"queue": 0.8})
    assert [line["total_ms"] for line in fields_of(caplog)] == [500.0, 800.0]
    assert fields_of(caplog)[1] == {
        "operation": "add",
        "ledger": 7,
        "total_ms": 800.0,
        "queue_ms": 800.0,
        "left_out": 2,
    }
    assert slow.count == 5


def test_a_threshold_of_zero_means_that_nothing_is_slow() -> None:
    assert SlowOperations(log, ManualClock(), 0).threshold_s == float("inf")


# -- cold reads


async def test_cold_reads_tell_how_long_they_waited_and_read(caplog: pytest.LogCaptureFixture) -> None:
    clock, latency, thread = ManualClock(), ReadLatency(), StepThread()
    reader: Any = thread
    watch = ReadWatch(clock, latency, SlowOperations(log, clock, 1_000))
    reads = ColdReads(reader, lambda: True, lambda: None, watch)
    answers: list[object] = []

    def work(brought: object) -> tuple[ReadResult, int]:
        clock.advance(0.75)
        return ReadResult(b"entry", []), 5

    def fails(brought: object) -> tuple[ReadResult, int]:
        raise OSError("bad sector")

    def keep(found: object, error: Exception | None) -> None:
        answers.append(found if error is None else error)

    reads.add(ColdRead(work, keep))
    reads.add(ColdRead(fails, keep))
    reads.add(ColdRead(work, keep, lambda: True))  # memory has it by now
    await _turns()
    clock.advance(0.5)
    thread.step()
    await _turns()
    assert [type(answer) for answer in answers] == [ReadResult, OSError]
    (line,) = fields_of(caplog)
    assert line == {
        "operation": "cold reads", "reads": 2, "errors": 1,
        "total_ms": 1250.0, "queue_ms": 500.0, "read_ms": 750.0, "report_ms": 0.0,
    }  # fmt: skip
    assert (latency.all.good.count, latency.all.bad.count) == (2, 1)
    assert (latency.queue.count, latency.queue.sum) == (2, 1000.0)


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


def test_reads_from_memory_and_adds_refused_at_once_count_as_no_time() -> None:
    latency = BookieLatency()
    for total in (10, 10, 25):
        latency.reads.answered_from_memory(total)
        latency.adds_refused_at_once(total)
    assert (latency.reads.all.good.count, latency.reads.all.good.sum) == (25, 0.0)
    assert (latency.adds.bad.count, latency.adds.good.count) == (25, 0)


# -- flushes


@pytest.mark.parametrize("directories", [1, 2])
def test_a_flush_tells_how_long_each_of_its_stages_took_and_leaves_pauses_out(
    directories: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    disk = Disk(ledgers=directories)
    life = Life(disk)
    latency = [FlushLatency() for _ in range(directories)]
    checkpointer: Checkpointer = life.checkpointer
    checkpointer._clock = clock
    checkpointer._latency = latency
    checkpointer._slow = SlowOperations(log, clock, 1_000)
    checkpointer._sleep = clock.advance
    for ledger_id in range(1, directories + 1):
        life.add([stored_entry(ledger_id, n, bytes(2000)) for n in range(5)], lambda taken, refusal: None)
    life.settle_journals()
    slow_disk = SlowDisk(disk.files, clock)
    slow_disk.sync_s, slow_disk.write_s = 3.0, 0.5
    checkpointer.flush()
    while life.flusher.waiting:
        life.flusher.step()
    (line,) = fields_of(caplog)
    assert (line["operation"], line["success"]) == ("flush", True)
    # A sync of each piece that follows a pause, and one at the end; the header of the log and five entries.
    assert (line["sync_ms"], line["log_ms"]) == (5 * 3000.0 * directories, 6 * 500.0 * directories)
    assert line["paused_ms"] > 0
    told = sum(line[f"{stage}_ms"] for stage in ("log", "sync", "index", "ledgers", "marks"))
    assert line["total_ms"] == pytest.approx(told)
    for flushes in latency:
        assert (flushes.all.good.count, flushes.all.bad.count) == (1, 0)
        assert flushes.log_sync.sum == pytest.approx(5 * 3000.0)
        assert flushes.bytes.sum >= 10_000


def test_a_flush_that_failed_counts_as_a_failure() -> None:
    clock = ManualClock()
    disk = Disk()
    life = Life(disk)
    latency = FlushLatency()
    life.checkpointer._latency = [latency]
    life.checkpointer._clock = clock
    life.add([stored_entry(1, 0)], lambda taken, refusal: None)
    life.settle_journals()

    def fail(kind: str, path: str) -> None:
        clock.advance(0.001)
        if kind == "sync" and path.endswith(".log"):
            raise OSError(5, "bad disk", path)

    disk.files.on_operation.append(fail)
    life.checkpointer.flush()
    while life.flusher.waiting:
        life.flusher.step()
    assert (latency.all.good.count, latency.all.bad.count) == (0, 1)
    assert life.failure is not None
