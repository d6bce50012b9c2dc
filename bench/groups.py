"""Runs the groups of a bench that are named on the command line, or all, and prints their rows."""

import sys
from collections.abc import Callable, Mapping

Rows = list[tuple[str, str]]


def run_groups(groups: Mapping[str, Callable[[], Rows]]) -> None:
    wanted = sys.argv[1:] or list(groups)
    unknown = [name for name in wanted if name not in groups]
    if unknown:
        raise SystemExit(f"unknown group {', '.join(unknown)}; there are {', '.join(groups)}")
    for name in wanted:
        print(f"running {name} …", file=sys.stderr, flush=True)
        rows = groups[name]()
        width = max((len(label) for label, _ in rows), default=0)
        for label, result in rows:
            print(f"{label.ljust(width)}  {result}", flush=True)
