"""`python -m bench.apache [GROUP …]`: Apache's servers and ours in one run, round by round in turn.

    bookie     adds a second and latencies, BookKeeper's own generator
    perf       pulsar-perf: publish, consume, end-to-end latency, CPU
    start      standalone: start, memory, idle CPU
    takeover   kill -9 of the owning broker to the next acknowledged message
    repair     kill -9 of a bookie, and its ledgers copied to the others by auto-recovery
    reads      entries read back: single and batch, cold and cached
    disk       what the disk can do with every write synced
    spark      topics into Spark, beside a read through the brokers, Parquet and the most that Spark takes; in parts
    profile    where our servers spend their time
    growth     our servers from one ledger, topic, consumer or entry to very many; in parts, and long

Results gather in out/bench-apache.json, so a later run of one group keeps the others; `--write-docs` keeps them as data
(docs/benchmarks/GROUP.json) and makes the pages and pictures from that. A group that is run in parts (`--part`) keeps
its other rows.
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
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from bench.apache import quiet
from bench.apache.parts import MANY_ROWS, MOST_ENTRIES, PARTS
from bench.apache.rig import ROOT, memory_mb
from bench.apache.table import Table, merged, merged_rows, plain, row_to
from deploy.fetch_apache import BENCHMARK_JAR, BENCHMARK_VERSION
from tests.support.mixed_cluster import is_there, versions

GROUPS: Final = ("disk", "bookie", "perf", "start", "takeover", "repair", "reads", "spark", "profile", "growth")
RESULTS: Final = ROOT / "out" / "bench-apache.json"

Group = Callable[..., list[str]]
"""(folder for data, rounds, seconds a run, where the rows go, what only groups with parts take) → notes for the
document."""


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


def run_group(name: str, directory: Path, rounds: int, seconds: float, parts: Sequence[str] = (), **more: Any) -> None:
    """*parts* and *more* go to a group with parts; then rows of an earlier run of other parts are kept."""
    table, notes, began = Table(), list[str](), time.perf_counter()
    print(f"{name}: {rounds} rounds, {seconds:g} s a run", flush=True)
    since, before = quiet.stolen(), quiet.times()
    group: Group = import_module(f"bench.apache.{name}").run
    if name in PARTS:
        group = partial(group, parts=parts, **more)
    failed = ""
    try:
        notes = group(directory / name, rounds, seconds, table)
    except Exception as error:  # one group must not end the others; Ctrl-C does, and keeps what was known before
        failed = f"{type(error).__name__}: {error}"
        print(f"  {name} failed: {failed}", flush=True)
    finally:
        shutil.rmtree(directory / name, ignore_errors=True)
    how_quiet = quiet.Quiet.of(before, quiet.times(), since, quiet.stolen())
    found = {
        "rows": merged_rows(load_results().get(name, {}).get("rows", ()) if parts else (), map(row_to, table.rows)),
        "notes": notes,
        "failed": failed,
        "rounds": rounds,
        "seconds": seconds,
        "took_s": round(time.perf_counter() - began),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": " ".join(
            [f"python -m bench.apache {name} --rounds {rounds} --seconds {seconds:g}", *(f"--part {p}" for p in parts)]
        ),
        "machine": machine(),
        "quiet": how_quiet._asdict(),
    }
    save_results(name, found)
    took = f"{name} took {time.perf_counter() - began:.0f} s"
    print(plain(table.rows), took, how_quiet.told, sep="\n", flush=True)


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # ours start from compiled files, as where they are installed
    known = "; ".join(f"{name} has {', '.join(parts)}" for name, parts in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.apache", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}; all without")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds; what warms up is not counted (3)")
    parser.add_argument("--seconds", type=float, default=8.0, help="of one run (8)")
    parser.add_argument("--directory", type=Path, default=ROOT / "out", help="data go to a new folder in there (out)")
    parser.add_argument(
        "--part", action="append", default=[], metavar="PART", dest="parts",
        help=f"only this part of a group; may be given more than once; {known}",
    )  # fmt: skip
    parser.add_argument("--rows", type=int, default=MANY_ROWS, help=f"in spark's part many ({MANY_ROWS:,})")
    parser.add_argument(
        "--entries", type=int, default=MOST_ENTRIES, help=f"in growth's part entries ({MOST_ENTRIES:,})"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the messages in spark's other parts (1)")
    parser.add_argument(
        "--write-docs", action="store_true", help="keep the results as data, and make the pages from them"
    )
    parser.add_argument("--docs-only", action="store_true", help="run nothing, make the pages from what is known")
    options = parser.parse_args()
    unknown = [name for name in options.groups if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    stray = [part for part in options.parts if not any(part in PARTS.get(name, ()) for name in options.groups)]
    if stray:
        parser.error(f"{', '.join(stray)}: no part of the groups that are named; {known}")
    if options.rounds < 1 or options.seconds < 1:
        parser.error("at least one round of one second")
    if not options.docs_only and not (is_there() and BENCHMARK_JAR.exists()):
        sys.exit("Apache's servers are not there yet: python -m deploy.fetch_apache")
    signal.signal(signal.SIGTERM, _interrupt)  # so that `with` blocks end what they started
    wanted = [] if options.docs_only else options.groups or list(GROUPS)
    options.directory.mkdir(parents=True, exist_ok=True)
    own = {"spark": {"many_rows": options.rows, "share": options.share}, "growth": {"most": options.entries}}
    with tempfile.TemporaryDirectory(prefix="bench-apache-", dir=options.directory) as folder:
        for name in wanted:
            parts = [part for part in options.parts if part in PARTS.get(name, ())]
            more = own.get(name, {})
            run_group(name, Path(folder), options.rounds, options.seconds, parts, **more)
    if options.write_docs or options.docs_only:
        from bench.apache.document import write

        write(load_results())


if __name__ == "__main__":
    main()
