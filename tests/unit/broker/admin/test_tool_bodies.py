"""What `pulsar-admin` sends otherwise than as a JSON value, and what it is refused by name."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.unit.broker.admin.admin_world import AdminWorld

NAMESPACE = "/admin/v2/namespaces/public/told"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        yield world


async def test_an_empty_body_removes_the_interval_of_deduplication_snapshots(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", NAMESPACE)).status == 204
    path = f"{NAMESPACE}/deduplicationSnapshotInterval"
    assert (await world.call(side, "POST", path, 30)).status == 204
    assert (await world.call(side, "GET", path)).text == "30"
    assert (await world.call(side, "POST", path, data=b"")).status == 204
    assert (await world.call(side, "GET", path)).text == ""
    empty = await world.call(side, "POST", f"{NAMESPACE}/messageTTL", data=b"")
    assert (empty.status, empty.reason) == (400, "The request entity cannot be empty.")


async def test_the_name_of_an_anti_affinity_group_is_the_body_itself(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "PUT", NAMESPACE)).status == 204
    path = f"{NAMESPACE}/antiAffinity"
    assert (await world.call(side, "POST", path, data=b"group")).status == 204
    assert (await world.call(side, "GET", path)).text == "group"
    assert (await world.call(side, "POST", path, data=b" ")).status == 412
    assert (await world.call(side, "POST", path, data=b"\xff")).status == 400


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("v3/functions/public/default/f", 409, "Functions"),
        ("v3/source/public/default/f", 409, "Sources"),
        ("v3/sinks/public/default/f", 409, "Sinks"),
        ("v2/worker-stats/metrics", 409, "Functions"),
        ("v3/packages/function/public/default/p/v1", 503, "Packages"),
        ("v3/transactions/coordinatorStats", 503, "Transactions"),
    ],
)
async def test_what_is_never_served_is_refused_by_name_whatever_is_sent(
    world: AdminWorld, path: str, status: int, named: str
) -> None:
    side = await world.side()
    for method in ("GET", "PUT", "POST", "DELETE"):
        answer = await world.call(
            side, method, f"/admin/{path}", data=b"--b--", Content_Type="multipart/form-data; boundary=b"
        )
        assert answer.status == status
        assert f"{named} are not served by this broker" in answer.reason
