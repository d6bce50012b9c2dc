"""The HTTP calls about auto-recovery; their texts are compared with Apache's in tests/golden."""

import json

from bookie.admin.auto_recovery import BOOKIES_MAX, MARKS_READ_MAX, RECOVERIES_MAX
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from tests.support.bookie_admin_world import Client, NotedRecovery, administered
from tests.support.serving import BookieMachines
from tests.support.waiting import eventually

LIST = "/api/v1/autorecovery/list_under_replicated_ledger"


async def listed(client: Client, query: str) -> object:
    found = await client.call("GET", f"{LIST}?{query}")
    assert found.status == 200, found.text
    return json.loads(found.text)


async def test_marked_ledgers_are_listed_by_the_bookies_that_they_lack() -> None:
    world = BookieMachines()
    async with administered(world) as client:
        marks = MarkBoard(world.store)
        await marks.mark(1, "a", 0)
        await marks.mark(2, "b", 0)
        await marks.mark(2, "a", 0)
        await marks.mark(3, None, 0)
        assert await listed(client, "") == [1, 2, 3]
        assert await listed(client, "missingreplica=a") == [1, 2]
        assert await listed(client, "missingreplica=a&excludingmissingreplica=b") == [1]
        assert await listed(client, "excludingmissingreplica=a&printmissingreplica=true") == {"3": []}
        assert await listed(client, "missingreplica=b&printmissingreplica=true") == {"2": ["b", "a"]}
        assert (await client.call("GET", f"{LIST}?missingreplica=c")).status == 404


async def test_so_many_marks_are_read_for_one_answer() -> None:
    world = BookieMachines()
    async with administered(world) as client:
        marks = MarkBoard(world.store)
        for ledger_id in range(MARKS_READ_MAX + 1):
            await marks.mark(ledger_id, "a", 0)
        assert len(json.loads((await client.call("GET", LIST)).text)) == MARKS_READ_MAX + 1
        refused = await client.call("GET", f"{LIST}?missingreplica=a")
        assert refused.status == 400
        assert f"for {MARKS_READ_MAX} at most" in refused.text


async def test_the_switch_is_the_clusters() -> None:
    world = BookieMachines()
    async with administered(world) as client:
        await client.call("PUT", "/api/v1/autorecovery/status?enabled=false")
        assert not await MarkBoard(world.store).is_enabled()
        await client.call("PUT", "/api/v1/autorecovery/status?enabled=true")
        assert await MarkBoard(world.store).is_enabled()


async def test_a_recovery_goes_on_after_the_answer_and_only_so_many_at_a_time() -> None:
    world, recovery = BookieMachines(), NotedRecovery()
    async with administered(world, recovery=recovery) as client:
        path = "/api/v1/autorecovery/bookie"
        body = {"bookie_src": ["x:1", "y:2"], "delete_cookie": "true"}
        for _ in range(RECOVERIES_MAX):
            assert (await client.call("PUT", path, body)).text == "Success send recovery request command."
        await eventually(lambda: len(recovery.asked) == RECOVERIES_MAX)
        assert recovery.asked[0] == (("x:1", "y:2"), True)
        refused = await client.call("PUT", path, body)
        assert refused.status == 429
        recovery.may_end.set()

        async def is_taken() -> bool:
            return (await client.call("PUT", path, {"bookie_src": ["z:3"]})).status == 200

        await eventually(is_taken)


async def test_one_call_names_so_many_bookies() -> None:
    world = BookieMachines()
    async with administered(world, recovery=NotedRecovery()) as client:
        found = await client.call("PUT", "/api/v1/autorecovery/bookie", {"bookie_src": ["b"] * (BOOKIES_MAX + 1)})
        assert found.status == 400
        assert f"1 to {BOOKIES_MAX}" in found.text


async def test_a_bookie_that_runs_is_not_decommissioned() -> None:
    world, recovery = BookieMachines(), NotedRecovery()
    async with administered(world, recovery=recovery) as client:
        body = {"bookie_src": client.bookie.bookie_id}
        refused = await client.call("PUT", "/api/v1/autorecovery/decommission", body)
        assert refused.status == 400
        assert "stop it before it is decommissioned" in refused.text
        assert recovery.asked == []
