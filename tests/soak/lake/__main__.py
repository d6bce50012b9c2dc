"""`python -m tests.soak.lake --rounds 20 --seed 7`. Ends with 1 if something was found."""

import argparse
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.lake.rounds import rounds
from tests.soak.spark import NotOnce


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.lake", description="Tables of a lake under kills.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", default="", help="draws the same moments again; default: a new one")
    parser.add_argument("--directory", help="where logs and data go (a temporary folder)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by a signal"))
    seed = options.seed or str(int(time.time()))
    directory = Path(options.directory or tempfile.mkdtemp(prefix="magnetar-soak-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        rounds(directory, count=options.rounds, seed=seed, remark=lambda text: print(text, flush=True))
    except (NotOnce, AssertionError) as error:
        print(f"FOUND with seed {seed}:\n{error}\nlogs and data are in {directory}", flush=True)
        return 1
    if not options.directory:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
