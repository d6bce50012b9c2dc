"""`python -m bench.compiled`: what mypyc would bring to the pure parts. It builds them in a copy of the tree, and runs
the same loads with and without; times are processor time of one core, the best of some runs.

Needs a C compiler. Nothing of it is used otherwise: see docs/BENCHMARKS.md, "Tried and not kept".
"""

import json
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from magnetar_core.bookkeeper.client.deciding.quorum import Quorum
from magnetar_core.bookkeeper.client.deciding.writer import LedgerWriter
from magnetar_core.bookkeeper.wire.entry import DigestType, EntryCodec, master_key
from magnetar_core.bookkeeper.wire.framing import FrameSplitter
from managed_ledger.ack_ranges import AckRanges

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("bench", "broker", "magnetar_core", "managed_ledger")

# `wire/entry.py` is not among them: mypyc cannot build a named tuple with a memoryview.
MODULES: Final = (
    "magnetar_core/bookkeeper/wire/framing.py",
    "magnetar_core/bookkeeper/client/deciding/writer.py",
    "managed_ledger/ack_ranges.py",
    "broker/topic/dispatchers/dispatcher.py",
    "broker/topic/dispatchers/single_active.py",
    "broker/topic/dispatchers/shared.py",
    "broker/topic/clients/consumer.py",
)

BUILD: Final = """
import sys
from setuptools import setup
from mypyc.build import mypycify
modules, sys.argv = sys.argv[1:], ["setup", "-q", "build_ext", "--inplace"]
setup(name="compiled", packages=[], py_modules=[], ext_modules=mypycify(modules, opt_level="3"))
"""

ENTRIES: Final = 40_000
RUNS: Final = 7


def write(run: int) -> None:
    """A ledger's writer takes runs of entries, and three bookies answer."""
    codec, key = EntryCodec(DigestType.CRC32C, b""), master_key(b"")
    writer = LedgerWriter(1, Quorum(3, 3, 2), ["a", "b", "c"], codec, key)
    payloads = [bytes(100)] * run
    for _ in range(ENTRIES // run):
        entry_ids = [add.entry_id for add in writer.add(payloads)]
        for index, bookie in enumerate("abc"):
            writer.on_added(index, bookie, entry_ids)


def split() -> None:
    """Frames of 1 KiB are found in chunks of 200 KiB."""
    splitter, chunk = FrameSplitter(5 << 20), (struct.pack(">I", 1024) + bytes(1024)) * 200
    for _ in range(ENTRIES // 200):
        splitter.feed(chunk)


def acknowledge() -> None:
    """Every other entry is acknowledged by itself, then the others."""
    ranges = AckRanges()
    for first in (0, 1):
        for entry_id in range(first, ENTRIES, 2):
            ranges.add(1, entry_id, entry_id)


LOADS: Final[dict[str, Callable[[], None]]] = {
    "writer, one entry at a time": lambda: write(1),
    "writer, runs of 100 entries": lambda: write(100),
    "frames of 1 KiB found in chunks": split,
    "single acknowledgements": acknowledge,
}


def measure() -> dict[str, float]:
    """Microseconds of processor time for each entry."""
    found = {}
    for what, load in LOADS.items():
        best = float("inf")
        for _ in range(RUNS):
            began_s = time.process_time()
            load()
            best = min(best, time.process_time() - began_s)
        found[what] = best / ENTRIES * 1e6
    return found


def measured_in(directory: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", "import json; from bench.compiled import measure; print(json.dumps(measure()))"],
        cwd=directory, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(json.loads(done.stdout))


def build(directory: Path) -> None:
    """Copy the packages to *directory* and compile the pure modules in them. Raises SystemExit."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("__pycache__"))
    for stub in directory.rglob("*_pb2.pyi"):
        stub.write_text("# mypy: ignore-errors\n" + stub.read_text())
    done = subprocess.run([sys.executable, "-c", BUILD, *MODULES], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"mypyc could not build the modules:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="magnetar-bench-") as folder:
        build(Path(folder))
        plain, compiled = measured_in(ROOT), measured_in(Path(folder))
    print(f"{'µs of processor time for each entry':<40} {'Python':>8} {'mypyc':>8} {'ratio':>6}")
    for what, value in plain.items():
        print(f"{what:<40} {value:>8.2f} {compiled[what]:>8.2f} {value / compiled[what]:>6.2f}")


if __name__ == "__main__":
    main()
