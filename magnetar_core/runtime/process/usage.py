"""What this process uses of its machine: processor time and memory."""

import os
import resource
import sys
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def cpu_seconds() -> float:
    """Seconds of processor time that all threads of this process have used since it began."""
    times = os.times()
    return times.user + times.system


def resident_bytes() -> int:
    """Bytes of memory that this process holds; where the system does not say, the most that it ever held."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
