"""A Python worker of Spark and its JVM do not wait for each other's acknowledgements.

    JVM ── command ──▶ worker      the second piece waits for TCP's acknowledgement of the first (Nagle's algorithm),
    JVM ── the rest ─▶ worker      which the worker's kernel keeps back for 40 ms, hoping for data to send with it
    JVM ◀── result ─── worker      and the last piece of a result waits in the same way for the JVM's kernel

Between two tasks that were ready at once, this took 50 of 83 ms (Spark 4.2, two cores). Spark sets neither of the two
options of a socket that prevent it, and the worker reads its command before any code of a data source runs. So:

1. TCP_NODELAY lets the worker send at once; it stays set.
2. TCP_QUICKACK acknowledges at once what comes next, until data are sent in answer. It is set when a task has sent its
   last byte and the next command has not come: Spark collects garbage just there.

Only on Linux. With `spark.python.unix.domain.socket.enabled` there is no TCP between them, and nothing to set.
"""

import gc
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

_OPEN_FILES: Final = Path("/proc/self/fd")
_OLDEST: Final = 2
"""The generation of a full collection."""

_numbers: dict[int, list[int]] = {}
"""Descriptors of connections, by process: a worker that was forked from a process with tasks looks for its own. Numbers
only, so that a connection ends when its owner closes it; should a later one get its number, that is acknowledged at
once, too."""


def answer_at_once() -> None:
    """Call when a task begins. The first call of a process takes every TCP connection that it has then: Spark's.

    What cannot be set is left as it is.
    """
    pid = os.getpid()
    if pid in _numbers or not hasattr(socket, "TCP_QUICKACK") or not _OPEN_FILES.is_dir():
        return
    _numbers.clear()
    _numbers[pid] = [int(name) for name in os.listdir(_OPEN_FILES)]
    _numbers[pid] = _set(socket.TCP_NODELAY)
    if _numbers[pid] and _on_collection not in gc.callbacks:
        gc.callbacks.append(_on_collection)


def _on_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == _OLDEST:
        _set(socket.TCP_QUICKACK)


def _set(option: int) -> list[int]:
    """The descriptors where it could be set."""
    done = []
    for number in _numbers.get(os.getpid(), ()):
        with suppress(OSError):
            # Of what is no socket nothing is made: a copy would stay open, and whoever reads the other end of a pipe
            # would wait for ever.
            if not stat.S_ISSOCK(os.fstat(number).st_mode):
                continue
            with socket.socket(fileno=os.dup(number)) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
                done.append(number)
    return done
