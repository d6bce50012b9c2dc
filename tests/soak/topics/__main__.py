"""`python -m tests.soak.topics --minutes 10 --seed 7`. Ends with 1 if something was found."""

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from magnetar.testing.servers import standalone
from tests.soak.topics.rounds import KINDS, PATIENCE_S

STALL_S: Final = 5 * PATIENCE_S
"""A process that says nothing for so long hangs where its own limits do not help."""


def soak(directory: Path, *, minutes: float, seed: str, first_round: int = 1, only: str = "") -> int:
    """The exit code of the program; what it says goes to stdout and stderr."""
    with standalone(directory) as server:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.soak.topics.program", server.grpc_url, server.namespace, seed,
             str(first_round), str(minutes * 60), only],
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        heard = time.monotonic()

        def listen() -> None:
            nonlocal heard
            assert process.stdout is not None
            for line in process.stdout:
                heard = time.monotonic()
                print(line, end="", flush=True)

        listening = threading.Thread(target=listen, daemon=True)
        listening.start()
        try:
            while process.poll() is None:
                time.sleep(0.1)
                if time.monotonic() - heard > STALL_S:
                    print(f"FOUND with seed {seed}: nothing goes on for {STALL_S:.0f} s", flush=True)
                    process.send_signal(signal.SIGUSR1)
                    time.sleep(2)
                    process.send_signal(signal.SIGABRT)
                    process.wait(PATIENCE_S)
        finally:
            if process.poll() is None:
                process.kill()
            # Its children are of its session.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        listening.join(PATIENCE_S)
        return process.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak.topics", description="The topic API under closes.")
    parser.add_argument("--minutes", type=float, default=10.0, help="about how long (10)")
    parser.add_argument("--seed", default="", help="repeats what a run with this seed drew; default: a new one")
    parser.add_argument("--first-round", type=int, default=1, help="begin with this round of the seed (1)")
    parser.add_argument("--only", default="", help=f"rounds of these kinds, with commas: {', '.join(KINDS)}")
    options = parser.parse_args()
    seed = options.seed or str(int(time.time()))
    print(f"seed {seed}, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="magnetar-soak-") as directory:
        code = soak(
            Path(directory), minutes=options.minutes, seed=seed, first_round=options.first_round, only=options.only
        )
    print("nothing found" if code == 0 else f"FOUND with seed {seed}: the program ended with {code}", flush=True)
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
