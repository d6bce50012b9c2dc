"""One to three nodes of a state log: proposals, tailing, promotion, roll-over, tokens, failures of `apply`."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer
from magnetar_core.bookkeeper.metadata.stores.store import OutcomeUnknown
from magnetar_core.bookkeeper.wire.entry import StoredEntry
from managed_ledger.state_log.errors import ApplyFailed, LeadershipLost, NotLeader, ProposalUnknown, TooManyProposals
from managed_ledger.state_log.replica import Role, Verdict
from managed_ledger.state_log.tail import READ_BYTES, READ_ENTRIES
from tests.support.memory_bookkeeper import MemoryReadHandle
from tests.support.state_log_world import World, setting
from tests.support.waiting import settle


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.close()


@pytest.fixture
async def silent() -> AsyncIterator[World]:
    """Leaders write no markers by themselves."""
    made = World(marker_s=60)
    yield made
    await made.close()


async def test_an_edit_is_applied_where_it_was_proposed_and_on_every_follower(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    assert await a.set("x", 1) is None
    assert await a.set("x", 2) == 1
    await b.log.reach(2)
    assert b.machine.words == {"x": 2}
    assert a.log.state_hash() == b.log.state_hash()
    assert b.log.role is Role.FOLLOWER
    assert b.log.leader == "a"


async def test_a_follower_takes_no_edits_and_names_the_leader(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    with pytest.raises(NotLeader, match="nobody"):
        await b.set("x", 1)
    await a.log.lead()
    await a.set("x", 1)
    await b.log.reach(1)
    with pytest.raises(NotLeader) as refused:
        await b.set("x", 2)
    assert refused.value.leader == "a"
    with pytest.raises(NotLeader):
        await b.log.read_barrier()


async def test_r_s1_a_promotion_fences_and_finds_what_was_acknowledged(silent: World) -> None:
    a, b = await silent.node("a"), await silent.node("b")
    await a.log.lead()
    await a.set("x", 1)  # b cannot see it yet: nothing followed that would confirm it
    a.bookkeeper.hold = True
    late = asyncio.ensure_future(a.log.propose(setting("x", 2)))
    await b.log.lead()
    assert b.machine.words == {"x": 1}
    a.bookkeeper.handles[-1].release()
    with pytest.raises(ProposalUnknown):
        await late
    with pytest.raises(NotLeader):
        await a.set("x", 3)
    await b.set("y", 1)
    await b.log.read_barrier()  # a marker, behind which the last edit is confirmed
    await a.log.reach(2)
    assert a.machine.words == {"x": 1, "y": 1}
    assert a.log.state_hash() == b.log.state_hash()


async def test_a_former_leader_that_hears_of_nothing_can_never_write_again(silent: World) -> None:
    a, b = await silent.node("a"), await silent.node("b")
    await a.log.lead()
    await a.set("x", 1)
    a.session.suspend()  # it is cut off from the metadata store, and from nothing else
    await b.log.lead()
    assert a.log.is_leader, "nobody told it"
    with pytest.raises((NotLeader, ProposalUnknown)):
        await a.set("x", 2)
    with pytest.raises(NotLeader):
        await a.log.read_barrier()
    await b.set("x", 3)
    assert [ledger.closed for _, ledger in sorted(silent.bookkeeper.ledgers.items())] == [True, False]


async def test_a_barrier_of_a_former_leader_fails(silent: World) -> None:
    a, b = await silent.node("a"), await silent.node("b")
    await a.log.lead()
    await a.log.read_barrier()
    a.session.suspend()
    await b.log.lead()
    assert a.log.is_leader
    with pytest.raises(NotLeader):
        await a.log.read_barrier()
    await b.log.read_barrier()


async def test_r_s2_two_nodes_begin_a_log_at_once_and_one_of_them_makes_it(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    outcomes = await asyncio.gather(a.log.lead(), b.log.lead(), return_exceptions=True)
    assert None in outcomes
    for node in (a, b):
        try:
            await node.set("x", node.name)
        except (NotLeader, ProposalUnknown):
            continue
        leader = node
    other = b if leader is a else a
    await other.log.reach(1)
    assert other.machine.words == {"x": leader.name}
    assert other.log.state_hash() == leader.log.state_hash()


async def test_r_s3_edits_proposed_at_once_are_applied_in_the_order_of_the_log(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await asyncio.gather(*(a.set("x", number) for number in range(50)), a.log.take_snapshot())
    await b.log.reach(50)
    assert a.machine.edits == [setting("x", number).decode() for number in range(50)]
    assert b.machine.history == a.machine.history


async def test_r_s5_an_edit_that_is_replayed_later_has_its_own_time(world: World) -> None:
    a = await world.node("a")
    await a.log.lead()
    await a.set("x", 1)
    await asyncio.sleep(0.01)
    await a.set("x", 2)
    await asyncio.sleep(0.01)
    late = await world.node("late")
    await late.log.reach(2)
    assert late.machine.history == a.machine.history
    assert late.log.state_hash() == a.log.state_hash()


async def test_r_s6_a_batch_of_which_a_part_landed_is_proposed_again_and_applied_once(silent: World) -> None:
    a, b = await silent.node("a"), await silent.node("b")
    await a.log.lead()
    a.bookkeeper.hold = True
    batch = [(setting("k", number), a.log.new_token()) for number in range(4)]
    under_way = [asyncio.ensure_future(a.log.propose(edit, token)) for edit, token in batch]
    await asyncio.sleep(0)
    b.bookkeeper.survivors = lambda sent: 2
    await b.log.lead()
    a.bookkeeper.handles[-1].release()
    for proposed in under_way:
        with pytest.raises(ProposalUnknown):
            await proposed
    again = [await b.log.propose(edit, token) for edit, token in batch]
    assert [one.verdict for one in again] == [Verdict.DUPLICATE] * 2 + [Verdict.APPLIED] * 2
    assert [one.number for one in again] == [1, 2, 3, 4]
    assert b.machine.edits == [edit.decode() for edit, _ in batch]


async def test_a_proposal_whose_leadership_is_lost_tells_its_token(silent: World) -> None:
    a = await silent.node("a")
    await a.log.lead()
    a.bookkeeper.hold = True
    token = a.log.new_token()
    proposed = asyncio.ensure_future(a.log.propose(setting("x", 1), token))
    await asyncio.sleep(0)
    a.bookkeeper.handles[-1].fail(BookieUnavailable("all gone"))
    with pytest.raises(ProposalUnknown) as unknown:
        await proposed
    assert unknown.value.token == token
    a.bookkeeper.hold = False
    await a.log.lead()
    assert (await a.log.propose(setting("x", 1), token)).number == 1


async def test_r_s8_a_change_of_the_list_whose_answer_is_lost_is_known_again(world: World) -> None:
    a = await world.node("a")
    a.session.lose_next_answer(LostAnswer.APPLIED)
    await a.log.lead()
    await a.set("x", 1)
    found = await world.list()
    assert found.term == 1, "it was its own change, and no second one was made"
    assert len(found.ledgers) == 1


async def test_r_s9_ledgers_with_few_edits_or_none_are_replayed_whole(world: World) -> None:
    a = await world.node("a")
    for edits in (0, 1, 0, 2, 1):
        await a.log.lead()
        for number in range(edits):
            await a.set(f"{a.log.number}", number)
        await a.log.follow()
    b = await world.node("b")
    await b.log.reach(4)
    assert b.log.state_hash() == a.log.state_hash()
    assert len((await world.list()).ledgers) == 5


async def test_a_follower_sees_the_last_edit_of_a_leader_that_goes_idle(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await a.set("x", 1)
    await b.log.reach(1)
    entries = world.bookkeeper.ledgers[0].entries
    assert len(entries) == 3, "header, edit, one marker"
    await asyncio.sleep(0.05)
    assert len(entries) == 3, "markers do not breed markers"


async def test_ledgers_roll_over_while_edits_come_and_say_whose_they_are() -> None:
    world = World(ledger_edits=10)
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await asyncio.gather(*(a.set(f"k{number}", number) for number in range(45)))
    await a.set("last", 1)
    await b.log.reach(46)
    found = await world.list()
    assert len(found.ledgers) > 2
    for one in found.ledgers[:-1]:
        assert world.bookkeeper.ledgers[one.ledger_id].closed
    for ledger in world.bookkeeper.ledgers.values():
        assert dict(ledger.custom_metadata) == {
            "application": b"magnetar",
            "component": b"state-log",
            "magnetar/state-log": f"/dictionary {found.log}".encode(),
        }
    assert a.log.state_hash() == b.log.state_hash()
    await world.close()


async def test_i117_a_ledger_is_listed_before_anything_is_written_to_it(world: World) -> None:
    a = await world.node("a")
    seen: list[tuple[str, list[int]]] = []

    async def step(what: str, path: str) -> None:
        if what == "put done" and path.endswith("/log"):
            seen.append((what, [len(one.sent) + len(one.entries) for one in world.bookkeeper.ledgers.values()]))

    a.store.on_step = step
    await a.log.lead()
    assert seen == [("put done", []), ("put done", [0])], "the claim, then the ledger, which is empty"


async def test_i127_an_edit_that_cannot_be_applied_stops_every_node_that_meets_it(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await a.set("x", 1)
    with pytest.raises(ApplyFailed, match="edit 2"):
        await a.log.propose(b'{"fail": "no"}')
    assert a.log.role is Role.STOPPED
    assert a.log.number == 1
    with pytest.raises(ApplyFailed):
        await a.set("x", 2)
    with pytest.raises(ApplyFailed):
        await a.log.take_snapshot()
    with pytest.raises(ApplyFailed):
        await b.log.lead()
    assert b.log.role is Role.STOPPED
    assert b.machine.words == {"x": 1}


async def test_what_is_not_acknowledged_is_limited(silent: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.state_log.leading.PROPOSALS_MAX", 3)
    a = await silent.node("a")
    await a.log.lead()
    a.bookkeeper.hold = True
    under_way = [asyncio.ensure_future(a.set("x", number)) for number in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyProposals):
        await a.set("x", 4)
    a.bookkeeper.hold = False
    a.bookkeeper.handles[-1].release()
    assert await asyncio.gather(*under_way) == [None, 0, 1]
    assert await a.set("x", 4) == 2


async def test_bytes_that_are_not_acknowledged_are_limited(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("managed_ledger.state_log.leading.PROPOSED_BYTES_MAX", 100)
    a = await world.node("a")
    await a.log.lead()
    with pytest.raises(TooManyProposals):
        await a.set("x", "y" * 100)
    assert await a.set("x", 1) is None


async def test_leadership_that_fails_is_taken_anew_by_the_same_node(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await a.set("x", 1)
    a.bookkeeper.handles[-1].fail(BookieUnavailable("all gone"))
    assert a.log.role is Role.FOLLOWER
    await a.log.lead()
    await a.set("x", 2)
    await b.log.reach(2)
    assert a.log.term == 2
    assert b.log.state_hash() == a.log.state_hash()


async def test_roles_are_told(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")
    told: list[Role] = []
    a.log.on_role(told.append)
    await a.log.lead()
    await b.log.lead()
    with pytest.raises(NotLeader):
        await a.log.read_barrier()
    await a.log.close()
    assert told == [Role.PROMOTING, Role.LEADER, Role.FOLLOWER, Role.STOPPED]


async def test_a_follower_reads_so_many_entries_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    original = MemoryReadHandle.read_batch

    async def spying(self: MemoryReadHandle, first: int, max_count: int, max_bytes: int) -> list[StoredEntry]:
        asked.append((max_count, max_bytes))
        found = await original(self, first, max_count, max_bytes)
        assert len(found) <= max_count
        return found

    monkeypatch.setattr(MemoryReadHandle, "read_batch", spying)
    a = await world.node("a")
    await a.log.lead()
    await asyncio.gather(*(a.set("x", number) for number in range(2 * READ_ENTRIES)))
    await a.log.read_barrier()
    asked.clear()
    b = await world.node("b")
    await b.log.reach(2 * READ_ENTRIES)
    assert set(asked) == {(READ_ENTRIES, READ_BYTES)}
    assert len(asked) >= 3


async def test_barriers_that_are_asked_for_together_share_a_marker(silent: World) -> None:
    a = await silent.node("a")
    await a.log.lead()
    await asyncio.gather(*(a.log.read_barrier() for _ in range(100)))
    assert len(silent.bookkeeper.ledgers[0].entries) == 2, "header and one marker"
    a.bookkeeper.hold = True
    first = asyncio.ensure_future(a.log.read_barrier())
    await settle()
    late = [asyncio.ensure_future(a.log.read_barrier()) for _ in range(10)]
    late[0].cancel()
    await settle()
    assert len(silent.bookkeeper.ledgers[0].sent) == 1
    a.bookkeeper.handles[-1].release()
    await first
    await settle()
    assert not any(one.done() for one in late[1:]), "they were asked for after that marker was written"
    a.bookkeeper.handles[-1].release()
    await asyncio.gather(*late[1:])
    assert len(silent.bookkeeper.ledgers[0].entries) == 4


async def test_barriers_go_on_over_the_end_of_a_ledger() -> None:
    world = World(ledger_edits=3)
    a = await world.node("a")
    await a.log.lead()
    for number in range(10):
        await asyncio.gather(a.log.read_barrier(), a.set("x", number), a.log.read_barrier())
    await a.log.read_barrier()
    assert a.machine.words == {"x": 9}
    await world.close()


async def test_a_barrier_that_waits_for_the_next_marker_fails_with_the_leadership(silent: World) -> None:
    a = await silent.node("a")
    await a.log.lead()
    a.bookkeeper.hold = True
    first = asyncio.ensure_future(a.log.read_barrier())
    await settle()
    second = asyncio.ensure_future(a.log.read_barrier())
    await settle()
    a.bookkeeper.handles[-1].fail(BookieUnavailable("all gone"))
    for one in (first, second):
        with pytest.raises(NotLeader):
            await one
    a.bookkeeper.hold = False


async def test_a_ledger_whose_listing_is_in_doubt_is_not_deleted_while_a_later_leader_lists_it(world: World) -> None:
    """I57: the change is made, its answer is lost, and another node claims the list before it is sent again."""
    a, b = await world.node("a"), await world.node("b")
    changes = 0

    async def step(what: str, path: str) -> None:
        nonlocal changes
        if what == "put done" and path.endswith("/log"):
            changes += 1
            if changes == 2:  # the claim, then the listing
                await b.log.lead()
                raise OutcomeUnknown("the answer is lost")

    a.store.on_step = step
    with pytest.raises(LeadershipLost):
        await a.log.lead()
    assert world.bookkeeper.deleted == []
    assert [one.ledger_id for one in (await world.list()).ledgers] == [0, 1]
    await b.set("x", 1)
    await a.log.lead()
    assert a.machine.words == {"x": 1}


async def test_a_ledger_that_another_leader_kept_off_the_list_is_deleted(world: World) -> None:
    a, b = await world.node("a"), await world.node("b")

    async def step(what: str, ledger_id: int) -> None:
        if what == "created":
            a.bookkeeper.on_step = None
            await b.log.lead()

    a.bookkeeper.on_step = step
    with pytest.raises(LeadershipLost):
        await a.log.lead()
    assert world.bookkeeper.deleted == [0]
    assert [one.ledger_id for one in (await world.list()).ledgers] == [1]
    await b.set("x", 1)


async def test_the_time_of_edits_never_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = [2_000]
    monkeypatch.setattr(type(world.clock), "wall_ms", lambda self: now_ms[0])
    a, b = await world.node("a"), await world.node("b")
    await a.log.lead()
    await a.set("x", 1)
    now_ms[0] = 1_000
    await a.set("x", 2)
    await b.log.lead()  # another machine, whose clock is behind
    await b.set("x", 3)
    now_ms[0] = 3_000
    await b.set("x", 4)
    assert [time_ms for _, time_ms in b.machine.history] == [2_000, 2_000, 2_000, 3_000]


async def test_an_edit_proposed_by_a_caller_that_gave_up_may_still_be_applied_and_holds_up_nobody(
    silent: World,
) -> None:
    a = await silent.node("a")
    await a.log.lead()
    a.bookkeeper.hold = True
    given_up = asyncio.ensure_future(a.set("x", 1))
    await settle()
    given_up.cancel()
    waiting = asyncio.ensure_future(a.set("x", 2))
    await settle()
    a.bookkeeper.hold = False
    a.bookkeeper.handles[-1].release()
    assert await waiting == 1
    assert a.machine.edits == [setting("x", 1).decode(), setting("x", 2).decode()]
