"""What the system tells of a process: memory and processor time."""

import os
from pathlib import Path


def resident_mb(pid: int, what: str = "VmRSS") -> float:
    """MiB; `VmHWM` is the most that it ever was."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{what}:")[2].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """Seconds of all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
