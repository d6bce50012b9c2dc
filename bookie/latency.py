"""How long operations take, stage by stage. No clock: times are parameters, in seconds. No IO.

    add      ── queue ──▶ write ──▶ sync ──▶ report         one journal group; all adds of a chunk of a socket share it
    read     ── queue ──▶ read                              cold reads; reads from memory count as 0 ms
    flush    ── log ──▶ sync ──▶ index ──▶ marks            pauses are not counted

Everything is counted on the loop, once for a group or a chunk.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar_core.runtime.data.distribution import Distribution


class Outcomes:
    """Distributions of operations that succeeded and that failed: Apache's label `success`."""

    __slots__ = ("bad", "good")

    def __init__(self) -> None:
        self.good = Distribution()
        self.bad = Distribution()


class GroupTimes(NamedTuple):
    """One journal group as its thread saw it."""

    taken_s: float
    """When the thread took the group."""
    ended_s: float
    write_s: float
    """How long writing its records to the file system took."""
    sync_s: float
    is_synced: bool
    written_bytes: int


class JournalLatency:
    """How long the groups of one journal took. Milliseconds."""

    def __init__(self) -> None:
        self.adds = Outcomes()
        """Time from `put` to the report, for every record."""
        self.queue = Distribution()
        self.write = Distribution()
        self.sync = Distribution()
        self.report = Distribution()
        """Time from the end of the sync to the report on the loop."""
        self.group_entries = Distribution()
        self.group_bytes = Distribution()

    def grouped(self, times: GroupTimes, now_s: float, entries: int) -> None:
        """A group of *entries* records was reported at *now_s*."""
        self.write.add(times.write_s * 1000)
        if times.is_synced:
            self.sync.add(times.sync_s * 1000)
        self.report.add((now_s - times.ended_s) * 1000)
        self.group_entries.add(entries)
        self.group_bytes.add(times.written_bytes)

    def put(self, put_s: float, times: GroupTimes, now_s: float, entries: int, is_good: bool) -> None:
        """*entries* records that were put together at *put_s* were in this group."""
        self.queue.add((times.taken_s - put_s) * 1000, entries)
        (self.adds.good if is_good else self.adds.bad).add((now_s - put_s) * 1000, entries)


class ReadLatency:
    """Reads. Milliseconds."""

    def __init__(self) -> None:
        self.queue = Distribution()
        """Cold reads, until a thread took them."""
        self.all = Outcomes()
        """Cold reads until they are answered, and reads from memory."""
        self._from_memory = 0

    def answered_from_memory(self, total: int) -> None:
        """*total* reads were answered from memory since the start; they count as 0 ms."""
        if total > self._from_memory:
            self.all.good.add(0.0, total - self._from_memory)
            self._from_memory = total


FLUSH_STAGES: Final = ("log", "sync", "index", "ledgers")


class FlushTimes:
    """A stop-watch for one flush of a ledger directory. The flusher's thread uses it; it is read after the flush."""

    __slots__ = ("_lap_s", "_now", "seconds", "written_bytes")

    def __init__(self, now: Callable[[], float]) -> None:
        """*now* returns the time in seconds."""
        self._now = now
        self._lap_s = 0.0
        self.seconds = dict.fromkeys(FLUSH_STAGES, 0.0)
        """Seconds by stage: entry logs appended, entry logs synced, locations written and synced, ledger rows
        written."""
        self.written_bytes = 0

    def start(self) -> None:
        """Count time from now on again (after a pause)."""
        self._lap_s = self._now()

    def lap(self, stage: str) -> None:
        """The time since the last call was spent in *stage*."""
        now = self._now()
        self.seconds[stage] += now - self._lap_s
        self._lap_s = now

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())


class FlushLatency:
    """Flushes of one ledger directory. Milliseconds, without the pauses."""

    def __init__(self) -> None:
        self.all = Outcomes()
        self.log_sync = Distribution()
        self.locations = Distribution()
        self.ledgers = Distribution()
        self.bytes = Distribution()

    def flushed(self, times: FlushTimes, is_good: bool) -> None:
        (self.all.good if is_good else self.all.bad).add(times.total_s * 1000)
        if is_good:
            self.log_sync.add(times.seconds["sync"] * 1000)
            self.locations.add(times.seconds["index"] * 1000)
            self.ledgers.add(times.seconds["ledgers"] * 1000)
            self.bytes.add(times.written_bytes)


class BookieLatency:
    """Everything that is measured of one bookie."""

    def __init__(self, journals: int = 1, ledger_directories: int = 1) -> None:
        self.adds = Outcomes()
        """Time from the receipt of the chunk with an add to its answer."""
        self.reads = ReadLatency()
        self.journals = [JournalLatency() for _ in range(journals)]
        self.flushes = [FlushLatency() for _ in range(ledger_directories)]
        self._refused_at_once = 0

    def adds_refused_at_once(self, total: int) -> None:
        """*total* adds were refused without the journal since the start; they count as 0 ms."""
        if total > self._refused_at_once:
            self.adds.bad.add(0.0, total - self._refused_at_once)
            self._refused_at_once = total
