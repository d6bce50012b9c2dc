"""The time that a test needs for its own namespace: `python -m bench.testing_plugin`.

The same calls as the fixtures make before each test; nothing is done after it.
"""

import math
import statistics
import time
from collections.abc import Callable

from bench.groups import Rows, run_groups
from magnetar.testing import cluster, standalone

TESTS = 300
# The first few calls load code and open connections; a run of tests pays for that once.
WARM_UP = 5


def rows() -> Rows:
    return [*standalone_rows(), *cluster_rows()]


def standalone_rows() -> Rows:
    with standalone() as server:
        return [(f"pulsar_server, a namespace for each of {TESTS} tests", _measure(server.fresh))]


def cluster_rows() -> Rows:
    with cluster() as made:

        def fresh(name: str) -> None:
            made.heal()
            made.fresh(name)

        return [(f"pulsar_cluster, looked after and a namespace for each of {TESTS} tests", _measure(fresh))]


def _measure(fresh: Callable[[str], object]) -> str:
    times_ms = []
    for number in range(WARM_UP + TESTS):
        began = time.perf_counter()
        fresh(f"test_number[{number}]")
        times_ms.append((time.perf_counter() - began) * 1000)
    counted = sorted(times_ms[WARM_UP:])
    p99 = counted[math.ceil(len(counted) * 0.99) - 1]
    return f"median {statistics.median(counted):.1f} ms, p99 {p99:.1f} ms, longest {counted[-1]:.1f} ms"


GROUPS: dict[str, Callable[[], Rows]] = {"standalone": standalone_rows, "cluster": cluster_rows}

if __name__ == "__main__":
    run_groups(GROUPS)
