"""One bookie by itself: `python -m bench.bookie [reads] [background] [replay] [scale]`. Read the ratios.

Load comes from processes of its own over protocol v2; the bookie has the shipped settings (write cache and read cache
64 MiB each) unless a row says otherwise. `scale` writes ten million entries and takes some minutes.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.bookie_rig import BookieProcess, delete_ledgers, load, loading, make_ledgers
from bench.groups import Rows, run_groups
from bench.process_facts import resident_mb

ROUNDS = 3

READ_ENTRIES = 20_000
BATCH = 500

RATE_PER_S = 10_000
RATE_S = 6
BACKLOG_LEDGERS = 40
BACKLOG_ENTRIES = 6_400

REPLAY_ENTRIES = 1_000_000

SCALE_LEDGERS = 10_000
SCALE_ENTRIES = 10_000_000
STEPS = 20


def reads() -> Rows:
    """Single reads and batches of the same entries, 1 KiB: from disk after a restart, and again: single reads
    then come from the read cache, batches from the page cache."""
    hows = {
        "single reads, one after the other": {"window": 1, "batch": 0},
        "single reads, 100 under way": {"window": 100, "batch": 0},
        f"batches of {BATCH}, one after the other": {"window": 1, "batch": BATCH},
    }
    found: dict[tuple[str, str], list[float]] = {}
    with _folder() as folder, BookieProcess(Path(folder)) as bookie:
        make_ledgers(bookie.folder, range(len(hows)))
        bookie.start()
        for ledger_id in range(len(hows)):
            load(bookie, "adds", first_ledger=ledger_id, entries=READ_ENTRIES)
        bookie.stop()
        for _ in range(ROUNDS):
            bookie.forget_pages()
            bookie.start()
            for ledger_id, (how, options) in enumerate(hows.items()):
                for state in ("from disk", "again"):
                    (ran,) = load(bookie, "reads", first_ledger=ledger_id, entries=READ_ENTRIES, **options)
                    found.setdefault((how, state), []).append(ran["per_s"])
            bookie.stop()
    rows = []
    first = next(iter(hows))
    for state in ("from disk", "again"):
        for how in hows:
            ratios = [a / b for a, b in zip(found[how, state], found[first, state], strict=True)]
            per_s = statistics.median(found[how, state])
            text = f"{per_s:,.0f} entries/s" + (f", {statistics.median(ratios):.1f} times" if how != first else "")
            rows.append((f"bookie reads, 1 KiB, {state}: {how}", text))
    return rows


def background() -> Rows:
    """p99 of adds at a fixed rate: alone, beside a reader that is far behind, beside compaction and scrub."""
    found: dict[str, list[float]] = {}

    def adds(bookie: BookieProcess, what: str) -> None:
        (ran,) = load(
            bookie, "adds", first_ledger=first_of_adds[0], ledgers=10, entries=RATE_PER_S * RATE_S, rate=RATE_PER_S
        )
        first_of_adds[0] += 10
        found.setdefault(what, []).append(ran["p99"])

    first_of_adds = [1000]
    backlog: list[float] = []
    compacted = scrubbed = 0.0
    settings = {"logSizeLimit": 64 * 1024 * 1024, "localScrubInterval": 0}
    with _folder() as folder, BookieProcess(Path(folder), **settings) as bookie:
        make_ledgers(bookie.folder, [*range(BACKLOG_LEDGERS), *range(1000, 1000 + 10 * (4 * ROUNDS + 1))])
        bookie.start()
        for ledger_id in range(BACKLOG_LEDGERS):
            load(bookie, "adds", first_ledger=ledger_id, entries=BACKLOG_ENTRIES)
        bookie.stop()
        bookie.forget_pages()
        bookie.start()
        adds(bookie, "warm")
        for _ in range(ROUNDS):
            adds(bookie, "alone")
            bookie.forget_pages()
            with loading(
                bookie, "backlog", ledgers=BACKLOG_LEDGERS, entries=BACKLOG_ENTRIES, batch=BATCH, window=2
            ) as reader:
                adds(bookie, "backlog")
                reader.terminate()
                text, _ = reader.communicate()
            backlog.append(float(text.partition('"per_s": ')[2].rstrip("}\n")))
        bookie.stop()
        # Every other ledger is deleted, so half of each log becomes garbage.
        delete_ledgers(bookie.folder, range(0, BACKLOG_LEDGERS, 2))
        for _ in range(ROUNDS):
            bookie.start(localScrubInterval=604_800)
            adds(bookie, "alone before")
            for _ in range(2):  # a ledger is deleted when two rounds found that it is gone
                bookie.call("PUT", "/api/v1/bookie/gc", {"forceMajor": True})
                _wait(lambda: bookie.call("GET", "/api/v1/bookie/gc")["is_in_force_gc"] == "false", 1)
            bookie.call("PUT", "/api/v1/magnetar/scrub")
            adds(bookie, "compaction")
            compacted += _total(bookie, "compacted_entries_total")
            scrubbed += _total(bookie, "scrub_entries_verified")
            bookie.stop()
    return _background_rows(found, statistics.median(backlog), compacted, scrubbed)


def _background_rows(found: dict[str, list[float]], per_s: float, compacted: float, scrubbed: float) -> Rows:
    rows = []
    for label, with_it, without in (
        (f"a reader that is behind ({per_s:,.0f} entries/s from disk)", "backlog", "alone"),
        (
            f"compaction and scrub ({compacted:,.0f} entries copied, {scrubbed:,.0f} checked)",
            "compaction",
            "alone before",
        ),
    ):
        alone, beside = statistics.median(found[without]), statistics.median(found[with_it])
        rows.append(
            (
                f"adds at {RATE_PER_S:,}/s of 1 KiB beside {label}",
                f"p99 {beside:.1f} ms, alone {alone:.1f} ms: {beside / alone:.2f} times",
            )
        )
    return rows


def _total(bookie: BookieProcess, name: str) -> float:
    return bookie.metric(f'magnetar_bookie_{name}{{bookie="bench"}}')


def replay() -> Rows:
    """1 GB in the journal that no entry log has, kill -9, start."""
    with _folder() as folder, BookieProcess(Path(folder)) as bookie:
        make_ledgers(bookie.folder, range(100))
        empty_s = bookie.start()
        bookie.stop()
        bookie.start(dbStorage_writeCacheMaxSizeMb=4096, flushInterval=3_600_000, journalMaxSizeMB=4096)
        load(bookie, "adds", ledgers=100, entries=REPLAY_ENTRIES)
        size = sum(path.stat().st_size for path in (bookie.folder / "journal").rglob("*.txn"))
        bookie.kill()
        full_s = bookie.start()
        high_mb = resident_mb(bookie.pid, "VmHWM")
        (last,) = load(bookie, "reads", first_ledger=99, entries=REPLAY_ENTRIES // 100)
        assert last["entries"] == REPLAY_ENTRIES // 100
        bookie.stop()
    return [
        (
            f"bookie start with {size / 1e9:.2f} GB of journal to replay ({REPLAY_ENTRIES:,} entries)",
            f"{full_s:.1f} s, empty {empty_s:.1f} s, at most {high_mb:.0f} MB resident",
        )
    ]


def scale() -> Rows:
    """Ten million entries of 100 B over ten thousand ledgers that are all open; then starts."""
    with _folder() as folder, BookieProcess(Path(folder)) as bookie:
        make_ledgers(bookie.folder, range(SCALE_LEDGERS))
        bookie.start()
        empty_mb = bookie.resident_mb
        rates: list[float] = []
        cpu_us: list[float] = []
        step = SCALE_ENTRIES // STEPS
        with loading(bookie, "adds", ledgers=SCALE_LEDGERS, entries=SCALE_ENTRIES, size=100, step=step) as adding:
            assert adding.stdout is not None
            before = bookie.cpu_s
            for line in map(json.loads, adding.stdout):
                per_s = line["per_s"]
                if "step" in line:
                    rates.append(per_s)
                    cpu_us.append((bookie.cpu_s - before) / step * 1e6)
                    before = bookie.cpu_s
        assert len(rates) == STEPS, "the load ended early"
        high_mb = resident_mb(bookie.pid, "VmHWM")
        began = time.perf_counter()
        bookie.stop()
        stop_s = time.perf_counter() - began
        start_s = [bookie.start()]
        start_mb = bookie.resident_mb
        bookie.stop()
        bookie.forget_pages()
        start_s.append(bookie.start())
        load(bookie, "adds", first_ledger=5, first_entry=SCALE_ENTRIES // SCALE_LEDGERS, entries=1000, size=100)
        bookie.kill()
        start_s.append(bookie.start())
        (ran,) = load(bookie, "reads", first_ledger=SCALE_LEDGERS - 1, entries=SCALE_ENTRIES // SCALE_LEDGERS)
        assert ran["entries"] == SCALE_ENTRIES // SCALE_LEDGERS
        bookie.stop()
    first, last = (statistics.median(part) for part in (rates[: STEPS // 4], rates[-STEPS // 4 :]))
    first_us, last_us = (statistics.median(part) for part in (cpu_us[: STEPS // 4], cpu_us[-STEPS // 4 :]))
    return [
        (
            f"bookie, {SCALE_ENTRIES:,} adds of 100 B over {SCALE_LEDGERS:,} ledgers",
            f"{per_s:,.0f}/s; the last quarter {last:,.0f}/s = {last / first:.2f} of the first "
            f"({min(rates):,.0f} to {max(rates):,.0f})",
        ),
        (
            "  the bookie's processor time for an add",
            f"last quarter {last_us:.1f} µs = {last_us / first_us:.2f} of the first",
        ),
        ("  resident memory", f"{high_mb:.0f} MB at most; {empty_mb:.0f} MB empty, {start_mb:.0f} MB after a start"),
        ("  start", f"{start_s[0]:.2f} s, with a cold page cache {start_s[1]:.2f} s, after kill -9 {start_s[2]:.2f} s"),
        ("  orderly stop", f"{stop_s:.2f} s"),
    ]


def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="magnetar-bench-")


def _wait(is_so: Callable[[], bool], seconds: float) -> None:
    """Wait until a compaction is under way, or until the time is over."""
    until = time.perf_counter() + seconds
    while not is_so() and time.perf_counter() < until:
        time.sleep(0.1)


GROUPS: dict[str, Callable[[], Rows]] = {
    "reads": reads,
    "background": background,
    "replay": replay,
    "scale": scale,
}


if __name__ == "__main__":
    run_groups(GROUPS)
