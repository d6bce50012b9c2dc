"""Writes down each turn of the server's loop that is too long (`magnetar_core.runtime.process.loop_watch`)."""

import json
import time
from pathlib import Path
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.process.loop_watch import LoopWatch, Stall

AWAY_S: Final = 0.1
"""Seconds of processor time of one turn, at the speed of a machine that does a piece of work in `PIECE_S`."""
PIECE_S: Final = 0.035
WAITED_S: Final = 20.0
"""A turn that waits for something else than sockets uses no processor time. So long that a busy machine, whose disk is
slow, does not reach it."""


def _slowness() -> float:
    """How much longer this machine takes for a piece of work now, at least 1: beside others a processor is slower."""
    return max(1.0, min(_piece_s() for _ in range(3)) / PIECE_S)


def _piece_s() -> float:
    began_s = time.thread_time()
    made: dict[int, tuple[int, str]] = {}
    for number in range(200_000):
        made[number & 1023] = (number, str(number))
    return time.thread_time() - began_s


def write_stalls(path: Path, clock: Clock) -> None:
    """A line of JSON in *path* for each; runs until the process ends."""
    path.touch()

    def on_stall(stall: Stall) -> None:
        away_s = stall.cpu_s / _slowness()
        if away_s > AWAY_S or stall.stood_s > WAITED_S:
            line = {"away_s": round(away_s, 2), "waited_s": round(stall.stood_s, 2), "where": stall.what}
            with path.open("a") as written:
                written.write(json.dumps(line) + "\n")

    LoopWatch(AWAY_S, clock.monotonic, on_stall, probe_s=0.02).start()
