"""Writes down each turn of the server's loop that is too long (`magnetar_core.runtime.loop_watch`)."""

import json
from pathlib import Path
from typing import Final

from magnetar_core.runtime.clock import Clock
from magnetar_core.runtime.loop_watch import LoopWatch, Stall

AWAY_S: Final = 0.1
"""Seconds of processor time of one turn."""
WAITED_S: Final = 20.0
"""A turn that waits for something else than sockets uses no processor time. So long that a busy machine, whose disk is
slow, does not reach it."""


def write_stalls(path: Path, clock: Clock) -> None:
    """A line of JSON in *path* for each; runs until the process ends."""
    path.touch()

    def on_stall(stall: Stall) -> None:
        if stall.cpu_s > AWAY_S or stall.stood_s > WAITED_S:
            line = {"away_s": round(stall.cpu_s, 2), "waited_s": round(stall.stood_s, 2), "where": stall.what}
            with path.open("a") as written:
                written.write(json.dumps(line) + "\n")

    LoopWatch(AWAY_S, clock.monotonic, on_stall, probe_s=0.02).start()
