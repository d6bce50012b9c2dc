"""`python -m bench.apache [GROUP …]`: Apache's servers and ours in one run, round by round in turn.

    bookie     adds a second and latencies, BookKeeper's own generator
    perf       pulsar-perf: publish, consume, end-to-end latency, CPU
    start      standalone: start, memory, idle CPU
    takeover   kill -9 of the owning broker to the next acknowledged message
    repair     kill -9 of a bookie, and its ledgers copied to the others by auto-recovery
    reads      entries read back: single and batch, cold and cached
    disk       what the disk can do with every write synced
    spark      rows a second from the bookies into Spark
    profile    where our servers spend their time

Results gather in out/bench-apache.json, so a later run of one group keeps the others; `--write-docs` renders
docs/BENCHMARKS.md and a picture a group from there.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.apache.rig import ROOT, memory_mb
from bench.apache.table import Table, merged, plain, row_to
from deploy.fetch_apache import BENCHMARK_JAR, BENCHMARK_VERSION
from tests.support.mixed_cluster import is_there, versions

GROUPS: Final = ("disk", "bookie", "perf", "start", "takeover", "repair", "reads", "spark", "profile")
RESULTS: Final = ROOT / "out" / "bench-apache.json"

Group = Callable[[Path, int, float, Table], list[str]]
"""(folder for data, rounds, seconds a run, where the rows go) → notes for the document."""


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_mb": memory_mb("MemTotal"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "versions": {**versions(), "load generator": BENCHMARK_VERSION},
    }


def load_results() -> dict[str, Any]:
    if not RESULTS.exists():
        return {}
    found: dict[str, Any] = json.loads(RESULTS.read_text())
    return found


def save_results(name: str, found: dict[str, Any]) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(merged(load_results(), {name: found}), indent=1) + "\n")
    temporary.replace(RESULTS)


def run_group(name: str, directory: Path, rounds: int, seconds: float) -> None:
    table, notes, began = Table(), list[str](), time.perf_counter()
    print(f"{name}: {rounds} rounds, {seconds:g} s a run", flush=True)
    group: Group = import_module(f"bench.apache.{name}").run
    failed = ""
    try:
        notes = group(directory / name, rounds, seconds, table)
    except Exception as error:  # one group must not end the others; Ctrl-C does, and keeps what was known before
        failed = f"{type(error).__name__}: {error}"
        print(f"  {name} failed: {failed}", flush=True)
    finally:
        shutil.rmtree(directory / name, ignore_errors=True)
    found = {
        "rows": [row_to(row) for row in table.rows],
        "notes": notes,
        "failed": failed,
        "rounds": rounds,
        "seconds": seconds,
        "took_s": round(time.perf_counter() - began),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": f"python -m bench.apache {name} --rounds {rounds} --seconds {seconds:g}",
        "machine": machine(),
    }
    save_results(name, found)
    print(plain(table.rows), f"{name} took {time.perf_counter() - began:.0f} s", sep="\n", flush=True)


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.apache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all without")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds; what warms up is not counted (3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run (8)")
    parser.add_argument("--directory", type=Path, default=ROOT / "out", help="data go to a new folder in there (out)")
    parser.add_argument("--write-docs", action="store_true", help="render docs/BENCHMARKS.md and its pictures")
    parser.add_argument("--docs-only", action="store_true", help="run nothing, render what is known")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    if options.rounds < 1 or options.seconds < 1:
        parser.error("at least one round of one second")
    if not is_there() or not BENCHMARK_JAR.exists():
        sys.exit("Apache's servers are not there yet: python -m deploy.fetch_apache")
    signal.signal(signal.SIGTERM, _interrupt)  # so that `with` blocks end what they started
    wanted = [] if options.docs_only else options.groups or list(GROUPS)
    options.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="bench-apache-", dir=options.directory) as folder:
        for name in wanted:
            run_group(name, Path(folder), options.rounds, options.seconds)
    if options.write_docs or options.docs_only:
        from bench.apache.document import write

        write(load_results())


if __name__ == "__main__":
    main()
