"""The official Python client's whole API at Apache's broker and at ours: what a program sees must be the same.

The scenarios are in `python_scenarios`; what differs, and why, in `python_client_differences`.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest

from tests.interop.python_client_differences import DIFFERENT
from tests.interop.python_scenarios import World, scenarios
from tests.support.mixed_cluster import Brand, MixedCluster

pytestmark = pytest.mark.smoke

SETTINGS: Final[dict[str, Any]] = {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "backlogQuotaCheckIntervalInSeconds": "1",
}
BRANDS: Final[tuple[Brand, ...]] = ("apache", "ours")
Cell = Callable[[str, str], None]
Seen = dict[str, dict[str, str]]
"""What was seen at each brand in each scenario."""


def seen_at(brand: Brand, folder: Path) -> dict[str, str]:
    """What the client observes in all scenarios at a new broker of this brand."""
    found = {}
    with MixedCluster(folder / "cluster", copies=1) as cluster:
        cluster.start_zookeeper()
        cluster.initialise(brand)
        cluster.add("bookie", brand)
        broker = cluster.add("broker", brand, **SETTINGS)
        for scenario in scenarios():
            name = scenario.__name__.replace("_", "-")
            with World(broker.service_url, broker.admin_url, name) as world:
                try:
                    found[name] = repr(scenario(world))
                except Exception as error:  # whatever ends it, the others run
                    found[name] = f"stopped: {error!r}"
        if brand == "ours":
            assert "Traceback" not in broker.log.read_text(errors="replace"), broker.log_tail(60)
    return found


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    folders = [tmp_path_factory.mktemp(brand) for brand in BRANDS]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(BRANDS, pool.map(seen_at, BRANDS, folders), strict=True))


def differing(seen: Seen) -> set[str]:
    apaches, ours = seen["apache"], seen["ours"]
    assert apaches.keys() == ours.keys()
    return {name for name in apaches if apaches[name] != ours[name]}


def test_the_python_client_meets_the_same(seen: Seen, cell: Cell) -> None:
    cell("the official Python client, its whole API, as with Apache or listed", "our broker")
    assert len(seen["ours"]) > 50
    stopped = [(brand, name, what) for brand in BRANDS for name, what in seen[brand].items() if "stopped:" in what]
    assert not stopped, stopped
    wrong = differing(seen) - set(DIFFERENT)
    assert not wrong, "\n".join(
        f"{name}\n  Apache {seen['apache'][name]}\n  ours   {seen['ours'][name]}" for name in sorted(wrong)
    )


def test_what_is_listed_is_still_so(seen: Seen) -> None:
    assert set(DIFFERENT) - differing(seen) == set()
