"""`/admin/v2/bookies`, as pulsar-admin uses it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from tests.unit.broker.admin.admin_world import AdminWorld

RACKS = "/admin/v2/bookies/racks-info"


@pytest.fixture
async def world() -> AsyncIterator[AdminWorld]:
    async with AsyncExitStack() as stack:
        world = AdminWorld(stack)
        await world.open()
        yield world


async def test_a_rack_is_set_shown_moved_and_taken_back(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "GET", RACKS)).json == {}
    body = {"rack": "/rack-1", "hostname": "node-1"}
    answer = await world.call(side, "POST", f"{RACKS}/10.0.0.1:3181?group=default", body)
    assert (answer.status, answer.text) == (204, "")
    assert (await world.call(side, "GET", f"{RACKS}/10.0.0.1:3181")).json == body
    assert (await world.call(side, "GET", RACKS)).json == {"default": {"10.0.0.1:3181": body}}
    node = await world.store.get("/bookies")
    assert node is not None
    assert node.value == b'{"default":{"10.0.0.1:3181":{"rack":"/rack-1","hostname":"node-1"}}}'
    moved = {"rack": "rack-2", "hostname": None}
    await world.call(side, "POST", f"{RACKS}/10.0.0.1:3181?group=other", moved)
    assert (await world.call(side, "GET", RACKS)).json == {"other": {"10.0.0.1:3181": {"rack": "rack-2"}}}
    assert (await world.call(side, "DELETE", f"{RACKS}/10.0.0.1:3181")).status == 204
    assert (await world.call(side, "GET", RACKS)).json == {}


async def test_what_nobody_was_told_of_is_404(world: AdminWorld) -> None:
    side = await world.side()
    for method in ("GET", "DELETE"):
        answer = await world.call(side, method, f"{RACKS}/b:1")
        assert (answer.status, answer.reason) == (404, "Bookie address not found: b:1")


@pytest.mark.parametrize(
    ("query", "body", "status", "reason"),
    [
        ("", {"rack": "/r"}, 412, "Bookie 'group' parameters is missing"),
        ("?group=g", {"rack": "/a/b"}, 412, "not allowed to contain slash"),
        ("?group=g", {"rack": "/"}, 412, "'rack' parameter is invalid"),
        ("?group=g", {}, 412, "'rack' parameter is invalid"),
        ("?group=g", {"rack": 7}, 412, "'rack' parameter is invalid"),
        ("?group=g", {"rack": "/r", "hostname": 7}, 400, "hostname"),
        ("?group=g", ["/r"], 400, "JSON object"),
    ],
)
async def test_what_makes_no_sense_is_refused_and_nothing_is_written(
    world: AdminWorld, query: str, body: object, status: int, reason: str
) -> None:
    side = await world.side()
    answer = await world.call(side, "POST", f"{RACKS}/b:1{query}", body)
    assert answer.status == status
    assert reason in answer.reason
    node = await world.store.get("/bookies")
    assert node is not None
    assert node.value == b"{}", "as the cluster was initialised"


async def test_with_regions_a_rack_is_told_with_its_region(world: AdminWorld) -> None:
    side = await world.side(bookkeeper_regionaware=True)
    for rack, status in (("/eu/rack-1", 204), ("/rack-1", 412), ("/eu/rack-1/shelf", 412)):
        assert (await world.call(side, "POST", f"{RACKS}/b:1?group=g", {"rack": rack})).status == status
    assert (await world.call(side, "GET", f"{RACKS}/b:1")).json == {"rack": "/eu/rack-1"}


async def test_a_damaged_node_is_told_of_and_not_written_over(world: AdminWorld) -> None:
    side = await world.side()
    await world.store.put("/bookies", b"damaged")
    for method, body in (("GET", None), ("POST", {"rack": "/r"}), ("DELETE", None)):
        answer = await world.call(side, method, f"{RACKS}/b:1?group=g", body)
        assert answer.status == 500
        assert "racks of the bookies" in answer.reason
    node = await world.store.get("/bookies")
    assert node is not None
    assert node.value == b"damaged"


async def test_all_bookies_with_a_cookie_are_listed(world: AdminWorld) -> None:
    side = await world.side()
    assert (await world.call(side, "GET", "/admin/v2/bookies/all")).json == {"bookies": []}
    await world.store.put("/ledgers/cookies/b:1", b"")
    await world.store.put("/ledgers/cookies/node-d", b"")
    answer = await world.call(side, "GET", "/admin/v2/bookies/all")
    assert answer.json == {"bookies": [{"bookieId": "b:1"}, {"bookieId": "node-d"}]}
