"""How much memory this process may have."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

# The limit of the control group of this process, in version 2 and version 1, as a container sees it.
CGROUP_FILES: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def memory_bytes(cgroup_files: Iterable[str] = CGROUP_FILES) -> int:
    """Bytes of the machine, or of its control group where that has fewer."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in cgroup_files:
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit() and int(text) > 0:  # version 2 says "max" for none
            limits.append(int(text))
    return min(limits)
