"""In which order tests run, and which of them stay together, where pytest-xdist has several workers.

1. The tests of a file run one after the other in one worker: what a file shares is made once.
2. So do those of some files that share what is dear, or the machine's ports (`_TOGETHER`).
3. Dear levels come first, so that the workers end together.
4. Of several workers the last begins at the other end: its tests use a processor while those of the others wait for
   servers. They meet where tests are small.
"""

import time
from collections import Counter
from typing import Any, Final

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.costs import level_of

# As they come: the dearest first.
DEAR_LEVELS: Final = ("spark", "process", "crash", "abuse", "soak")
CHEAP_LEVELS: Final = ("simulation", "conformance", "property", "golden", "unit")
"""Their tests take milliseconds."""

# Not by marks of xdist (`xdist_group`): what its workers tell of them does not arrive with pytest 9.
_TOGETHER: Final = {
    "tests/spark/": "a Spark session",
    "tests/abuse/": "a standalone",
    "tests/process/test_pages.py": "the usual ports",
    "tests/process/test_production.py": "the usual ports",
}


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc] # xdist has no types
    """Rules 1, 2 and 4. The order is that of the collection."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False
        self._numbers: dict[str, int] = {}

    def _assign_work_unit(self, node: Any) -> None:
        """As xdist does it, but for the end that a file is taken from. It looks for each test in the list of all."""
        if not self._numbers:
            self._numbers = {node_id: number for number, node_id in enumerate(self.registered_collections[node])}
        is_last = len(self.nodes) > 1 and node is self.nodes[-1]
        scope, tests = self.workqueue.popitem(last=is_last)
        self.assigned_work.setdefault(node, {})[scope] = tests
        node.send_runtest_some([self._numbers[node_id] for node_id, has_ended in tests.items() if not has_ended])

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        return next((shared for start, shared in _TOGETHER.items() if path.startswith(start)), path)


def sort_by_level(items: list[pytest.Item]) -> None:
    """Rule 3. Within a level the order stays."""
    ranks = {level: rank for rank, level in enumerate((*DEAR_LEVELS, *CHEAP_LEVELS))}

    def rank(item: pytest.Item) -> int:
        return ranks.get(level_of(item.nodeid), len(ranks))

    items.sort(key=rank)


class SecondsMax:
    """Leaves out what has not begun after so many seconds; the summary says how many tests of which files."""

    _LEFT_OUT: Final = "left out: the time is over"

    def __init__(self, seconds_max: float) -> None:
        self._end_s = time.monotonic() + seconds_max

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end_s:
            pytest.skip(self._LEFT_OUT)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        skipped = terminalreporter.stats.get("skipped", [])
        files = Counter(report.nodeid.split("::")[0] for report in skipped if self._LEFT_OUT in str(report.longrepr))
        if files:
            terminalreporter.section(f"left out, since the time is over: {files.total()} tests")
            for path, count in files.items():
                terminalreporter.write_line(f"{count:6} {path}")
