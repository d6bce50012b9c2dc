"""Records when the event loop of this process was blocked, and by which code.

    thread ──call_soon_threadsafe──▶ loop ──▶ answer          again and again

It measures the processor time that the loop's thread used until it answered: on a busy machine an idle loop answers
late, too. A loop that waits for something else than sockets uses no processor time; for that there is a limit on the
wall clock, so long that a busy machine does not reach it.
"""

import asyncio
import json
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Final

AWAY_S: Final = 0.5
"""The loop computes without a pause for other clients."""
WAITED_S: Final = 20.0

_STEP_S: Final = 0.02


class Watchdog:
    """Writes a line of JSON to *path* each time that the loop was blocked for too long."""

    def __init__(self, loop: asyncio.AbstractEventLoop, path: Path) -> None:
        """Made on the loop's thread."""
        self._loop = loop
        self._path = path
        self._thread_id = threading.get_ident()
        self._clock_id = time.pthread_getcpuclockid(self._thread_id)
        path.touch()

    def start(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def _watch(self) -> None:
        while not self._loop.is_closed():
            answered = threading.Event()
            began_s, began_cpu_s = time.monotonic(), time.clock_gettime(self._clock_id)
            try:
                self._loop.call_soon_threadsafe(answered.set)
            except RuntimeError:  # it was closed
                return
            where = ""
            while not answered.wait(_STEP_S):
                if not where and self._cpu_s(began_cpu_s) > AWAY_S:
                    where = self._stack()
            away_s, waited_s = self._cpu_s(began_cpu_s), time.monotonic() - began_s
            if away_s > AWAY_S or waited_s > WAITED_S:
                line = {"away_s": round(away_s, 2), "waited_s": round(waited_s, 2), "where": where}
                with self._path.open("a") as written:
                    written.write(json.dumps(line) + "\n")
            time.sleep(_STEP_S)

    def _cpu_s(self, began_s: float) -> float:
        return time.clock_gettime(self._clock_id) - began_s

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._thread_id)
        return "" if frame is None else "".join(traceback.format_stack(frame)[-8:])
