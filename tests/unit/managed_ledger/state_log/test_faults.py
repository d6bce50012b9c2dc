"""A state log while bookies, the metadata store or nodes fail; the election; a leader killed at every step."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable, NotEnoughBookies
from managed_ledger.state_log.election import LeaderElection
from managed_ledger.state_log.errors import LogUnavailable, StateLogError
from managed_ledger.state_log.replica import Role
from tests.support.state_log_world import ROOT, Node, World, setting
from tests.support.waiting import eventually


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World(ledger_edits=10)
    yield made
    await made.close()


async def test_r_s10_a_follower_goes_on_when_bookies_are_back(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await a.set("x", 1)
    await b.log.reach(1)
    refused = 0

    async def away(what: str, ledger_id: int) -> None:
        nonlocal refused
        refused += 1
        raise BookieUnavailable("it restarts")

    b.bookkeeper.on_step = away
    for number in range(25):  # over several ledgers
        await a.set("x", number)
    await eventually(lambda: refused > 3)
    assert b.log.role is Role.FOLLOWER
    b.bookkeeper.on_step = None
    await b.log.reach(26)
    assert b.log.state_hash() == a.log.state_hash()


async def test_r_s10_a_bookie_that_is_lost_before_the_first_entry_costs_one_try(world: World) -> None:
    a = await world.node("a")

    async def lose(what: str, ledger_id: int) -> None:
        if what == "created":
            a.bookkeeper.hold = True
            asyncio.get_running_loop().call_later(
                0.005, lambda: a.bookkeeper.handles[-1].fail(NotEnoughBookies("a bookie is gone"))
            )

    a.bookkeeper.on_step = lose
    with pytest.raises(LogUnavailable, match="first entry"):
        await a.log.lead()
    assert a.log.role is Role.FOLLOWER
    a.bookkeeper.on_step, a.bookkeeper.hold = None, False
    await a.log.lead()
    assert (await a.log.propose(setting("x", 1))).number == 1
    assert len((await world.list()).ledgers) == 2


async def test_r_s10_a_leader_without_bookies_for_the_next_ledger_leads_no_more_and_loses_nothing(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    a.bookkeeper.out_of_bookies = True
    acknowledged = 0
    with contextlib.suppress(StateLogError):
        while a.log.is_leader:
            await a.set("x", acknowledged)
            acknowledged += 1
    assert acknowledged >= 9
    await b.log.lead()
    assert b.machine.edits[:acknowledged] == [setting("x", number).decode() for number in range(acknowledged)]
    await b.set("y", 1)


class Elected:
    """A world whose nodes elect their leader."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.elections: dict[Node, LeaderElection] = {}

    async def node(self, name: str) -> Node:
        made = await self.world.node(name)
        self.elections[made] = LeaderElection(made.log, made.store, self.world.clock)
        self.elections[made].start()
        return made

    async def leader(self) -> Node:
        """The only one, who can write."""
        found: list[Node] = []

        def one() -> bool:
            found[:] = [node for node in self.world.nodes if node.is_alive and node.log.is_leader]
            return len(found) == 1

        await eventually(one)
        return found[0]

    async def close(self) -> None:
        for election in self.elections.values():
            await election.stop()
        await self.world.close()


@pytest.fixture
async def elected() -> AsyncIterator[Elected]:
    made = Elected(World())
    yield made
    await made.close()


async def test_one_node_is_elected_and_another_one_when_its_session_ends(elected: Elected) -> None:
    nodes = [await elected.node(name) for name in "abc"]
    first = await elected.leader()
    await first.set("x", 1)
    node = await elected.world.store.get(f"{ROOT}/leader")
    assert node is not None
    assert json.loads(node.value) == {"name": first.name}
    first.session.suspend()  # its session goes on, as far as it knows
    elected.world.store._tree.end_session(first.session._number)
    await eventually(lambda: any(one.log.is_leader for one in nodes if one is not first))
    second = next(one for one in nodes if one is not first and one.log.is_leader)
    await second.set("x", 2)
    with pytest.raises(StateLogError):
        await first.set("x", 3)
    first.session.resume()
    await eventually(lambda: first.log.role is Role.FOLLOWER)
    await first.log.reach(2)
    assert first.log.state_hash() == second.log.state_hash()


async def test_r_s11_when_all_nodes_lose_the_metadata_store_one_leads_again(elected: Elected) -> None:
    nodes = [await elected.node(name) for name in "abc"]
    await (await elected.leader()).set("x", 1)
    for node in nodes:
        node.session.suspend()
    await asyncio.sleep(0.05)
    for node in nodes:
        node.session.expire()
    for node in nodes:
        await eventually(lambda node=node: node.log.leader is not None)  # type: ignore[misc]

    async def writes() -> bool:
        try:
            await (await elected.leader()).set("x", 2)
        except StateLogError:
            return False
        return True

    await eventually(writes)
    last = await elected.leader()
    for node in nodes:
        await node.log.reach(last.log.number)
        assert node.log.state_hash() == last.log.state_hash()
    assert last.machine.edits[0] == setting("x", 1).decode()


async def test_an_elected_node_that_cannot_lead_resigns(elected: Elected) -> None:
    a = await elected.node("a")
    a.bookkeeper.out_of_bookies = True
    await eventually(lambda: not a.log.is_leader)
    b = await elected.node("b")
    await eventually(lambda: b.log.is_leader)
    await b.set("x", 1)


async def test_a_leader_to_whom_nobody_proposes_learns_that_it_leads_no_more() -> None:
    world = World(marker_s=60)
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await b.log.lead()
    await eventually(lambda: a.log.role is Role.FOLLOWER)
    await b.set("x", 1)
    await b.log.read_barrier()
    await a.log.reach(1)
    await world.close()


async def test_a_node_with_a_state_does_not_begin_a_log_whose_list_is_gone(world: World) -> None:
    a = await world.node("a")
    await a.log.lead()
    await a.set("x", 1)
    await a.log.follow()
    await world.store.delete(f"{ROOT}/log")
    with pytest.raises(LogUnavailable, match="is gone"):
        await a.log.lead()
    assert not await world.store.exists(f"{ROOT}/log")


async def test_i119_a_node_with_the_state_of_another_log_takes_no_part() -> None:
    world, other = World(seed=1), World(seed=2)
    a, b = await world.node("a"), await other.node("b")
    for node in (a, b):
        await node.log.lead()
        await node.set("x", 1)
        await node.log.take_snapshot()
    await a.log.close()
    lost = await other.node("a", a.files)
    await eventually(lambda: lost.log.role is Role.STOPPED)
    assert "state of log" in str(lost.log.error)
    await other.close()


# ------------------------------------------------------------------------------------------ R-S12


class Killed(World):
    """A leader that stops for ever at step number *at*: creating, listing, the header, edits, snapshots, truncation."""

    def __init__(self, at: int, survivors: Callable[[int], int]) -> None:
        super().__init__(ledger_edits=4, poll_s=0.0005)
        self.at = at
        self.survivors = survivors
        self.steps: list[str] = []
        self.reached = asyncio.Event()
        self.acknowledged: list[str] = []

    async def step(self, what: str, place: object) -> None:
        if isinstance(place, str) and not place.endswith("/log"):
            return
        if what not in ("read", "get", "open", "opened") or self.nodes[0].log.role is Role.PROMOTING:
            self.steps.append(what)
            if len(self.steps) == self.at:
                self.reached.set()
                await asyncio.Event().wait()
        await asyncio.sleep(0)

    async def life(self, node: Node) -> None:
        await node.log.lead()
        for number in range(12):
            await node.set(f"k{number % 5}", number)
            self.acknowledged.append(setting(f"k{number % 5}", number).decode())
            if number % 3 == 2:
                other = self.nodes[1]
                await other.log.reach(node.log.number)
                await other.log.take_snapshot()
                await node.log.take_snapshot()
        await node.log.truncate()

    async def run(self) -> bool:
        """False: it came to its end before that step."""
        a, b = await self.node("a"), await self.node("b")
        b.bookkeeper.survivors = self.survivors
        a.bookkeeper.on_step = a.store.on_step = self.step
        life = asyncio.ensure_future(self.life(a))
        waiting = asyncio.ensure_future(self.reached.wait())
        await asyncio.wait([life, waiting], return_when=asyncio.FIRST_COMPLETED)
        was_killed = not life.done()
        for task in (life, waiting):
            task.cancel()
        await asyncio.gather(life, waiting, return_exceptions=True)
        await a.die()
        await b.log.lead()
        assert b.machine.edits[: len(self.acknowledged)] == self.acknowledged, f"step {self.at}, {self.steps[-1:]}"
        await b.set("after", 1)
        found = await self.list()
        assert {one.ledger_id for one in found.ledgers} <= self.bookkeeper.ledgers.keys(), "listed, and gone"
        c = await self.node("c")
        await c.log.reach(b.log.number)
        assert c.log.state_hash() == b.log.state_hash()
        again = await self.node("a", a.files)
        await again.log.reach(b.log.number)
        assert again.log.state_hash() == b.log.state_hash()
        await self.close()
        return was_killed


@pytest.mark.parametrize("found", ["nothing", "everything"])
async def test_r_s12_a_leader_killed_at_any_step_loses_nothing_and_another_one_goes_on(found: str) -> None:
    survivors: Callable[[int], int] = (lambda sent: 0) if found == "nothing" else (lambda sent: sent)
    at, seen = 1, set[str]()
    while True:
        world = Killed(at, survivors)
        if not await world.run():
            break
        seen.add(world.steps[-1])
        at += 1
    assert at > 20
    assert {"create", "created", "put", "put done", "close", "closed", "delete"} <= seen
