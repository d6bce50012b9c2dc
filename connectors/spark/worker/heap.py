"""What a Python worker of Spark keeps from task to task is not looked at again after each of them.

Spark collects garbage after every task of a worker, and between the calls by which it plans a read. What was imported
by then (PySpark, Arrow, this source: a hundred thousand objects) is looked at each time, in about 0.1 s of a core once
messages have taken its place in the processor's caches; a task itself may be shorter. `gc.freeze` leaves it out from
then on. Objects that are no longer referred to are freed as before. Only a cycle that existed at that moment stays for
the life of the worker: so it is done for the first tasks only, when everything has been imported.
"""

import gc
import os
from typing import Final

SETTLED_AFTER: Final = 3
"""The first task imports, the second finds all of that; the third is for what was imported on demand."""

_tasks: dict[int, int] = {}
"""Tasks by process: a worker that was forked from a process with tasks counts its own."""


def settle() -> bool:
    """Call when a task begins: Spark has collected the garbage of the one before. Whether anything was left out."""
    pid = os.getpid()
    done = _tasks.get(pid, 0)
    if done >= SETTLED_AFTER:
        return False
    _tasks[pid] = done + 1
    gc.freeze()
    return True
