"""Changes that go to ZooKeeper together, with a server that is a list; the real one is in the conformance suite."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar_core.bookkeeper.metadata.stores.store import (
    OutcomeUnknown,
    SessionLost,
    StoreUnavailable,
    VersionConflict,
)
from magnetar_core.bookkeeper.metadata.stores.zookeeper_groups import (
    GROUP_BYTES_MAX,
    GROUP_MAX,
    UNDER_WAY_MAX,
    Change,
    ChangeGroups,
)
from tests.support.waiting import settle


class Server:
    """Answers when it is let; refuses the paths in `refused`."""

    def __init__(self) -> None:
        self.epoch = 0
        self.sent: list[list[str]] = []
        self.open = asyncio.Event()
        self.refused: set[str] = set()
        self.fails: Exception | None = None

    async def send_change(self, change: Change) -> Any:
        self.sent.append([change.path])
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        if change.path in self.refused:
            raise VersionConflict(change.path)
        answers: list[str] = []
        change.join(answers)
        return answers if change.operations is not None else answers[0]

    async def send_group(self, changes: Sequence[Change]) -> Sequence[Any] | None:
        self.sent.append([change.path for change in changes])
        await self.open.wait()
        if self.fails is not None:
            raise self.fails
        if any(change.path in self.refused for change in changes):
            return None
        answers: list[str] = []
        for change in changes:
            change.join(answers)
        return answers


def change(
    path: str, *, size: int = 10, epoch: int = 0, of_session: bool = False, operations: int | None = None
) -> Change:
    def join(answers: list[str]) -> None:
        answers += [f"{path} done"] if operations is None else [f"{path} done {number}" for number in range(operations)]

    return Change(path, epoch, of_session, size, lambda: None, join, operations)


class World:
    def __init__(self) -> None:
        self.server = Server()
        self.groups = ChangeGroups(self.server)

    def ask(self, *changes: Change) -> list["asyncio.Task[Any]"]:
        return [asyncio.ensure_future(self.groups.send(one)) for one in changes]


@pytest.fixture
async def world() -> World:
    return World()


async def busy(world: World) -> list["asyncio.Task[Any]"]:
    """As many requests as go by themselves."""
    asked = world.ask(*(change(f"/first/{number}") for number in range(UNDER_WAY_MAX)))
    await settle()
    return asked


async def test_a_few_changes_are_requests_of_their_own(world: World) -> None:
    first = await busy(world)
    assert world.server.sent == [["/first/0"], ["/first/1"]]
    world.server.open.set()
    assert [await one for one in first] == ["/first/0 done", "/first/1 done"]


async def test_those_that_wait_go_together_in_their_order_and_get_each_its_answer(world: World) -> None:
    first = await busy(world)
    waiting = world.ask(change("/a"), change("/both", operations=2), change("/b"))
    await settle()
    assert len(world.server.sent) == UNDER_WAY_MAX
    world.server.open.set()
    assert [await one for one in waiting] == ["/a done", ["/both done 0", "/both done 1"], "/b done"]
    assert world.server.sent[UNDER_WAY_MAX:] == [["/a", "/both", "/b"]]
    await asyncio.gather(*first)


async def test_one_that_is_refused_harms_no_other(world: World) -> None:
    await busy(world)
    waiting = world.ask(change("/a"), change("/bad"), change("/b"))
    await settle()
    world.server.refused.add("/bad")
    world.server.open.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert found[0] == "/a done"
    assert isinstance(found[1], VersionConflict)
    assert found[2] == "/b done"


async def test_a_group_has_at_most_so_many_changes_and_bytes(world: World) -> None:
    await busy(world)
    waiting = world.ask(*(change(f"/n/{number}") for number in range(GROUP_MAX + 1)))
    waiting += world.ask(change("/large/0", size=GROUP_BYTES_MAX), change("/large/1", size=GROUP_BYTES_MAX))
    await settle()
    world.server.open.set()
    await asyncio.gather(*waiting)
    assert [len(group) for group in world.server.sent[UNDER_WAY_MAX:]] == [GROUP_MAX, 1, 1, 1]


async def test_what_was_decided_under_an_older_session_goes_alone(world: World) -> None:
    """The store refuses it then, and must not refuse others with it."""
    await busy(world)
    waiting = world.ask(change("/old", epoch=-1), change("/new"), change("/old too", epoch=-1), change("/newer"))
    await settle()
    world.server.open.set()
    await asyncio.gather(*waiting)
    assert world.server.sent[UNDER_WAY_MAX:] == [["/old"], ["/new"], ["/old too"], ["/newer"]]


async def test_a_group_without_an_answer_is_in_doubt_for_each(world: World) -> None:
    first = await busy(world)
    waiting = world.ask(change("/a"), change("/b"))
    await settle()
    world.server.fails = OutcomeUnknown("the connection broke")
    world.server.open.set()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    for path, error in zip(("/a", "/b"), found, strict=True):
        assert isinstance(error, OutcomeUnknown)
        assert str(error).startswith(path)
    await asyncio.gather(*first, return_exceptions=True)
    # The next ones are sent as if nothing had been.
    world.server.fails = None
    assert await world.groups.send(change("/later")) == "/later done"


async def test_the_end_of_the_session_is_one_of_ephemeral_nodes_only(world: World) -> None:
    await busy(world)
    waiting = world.ask(change("/ephemeral", of_session=True), change("/other"))
    await settle()
    world.server.fails = SessionLost("ended before this was sent")
    world.server.open.set()
    ephemeral, other = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(ephemeral, SessionLost)
    assert isinstance(other, StoreUnavailable)


async def test_who_gives_up_waiting_harms_no_other(world: World) -> None:
    await busy(world)
    waiting = world.ask(change("/a"), change("/b"))
    await settle()
    waiting[0].cancel()
    await settle()
    world.server.open.set()
    assert await waiting[1] == "/b done"
    assert waiting[0].cancelled()
    assert ["/b"] in world.server.sent, "what nobody waits for any more is not sent"


async def test_a_queue_of_which_all_have_given_up_is_not_sent_and_holds_up_nobody(world: World) -> None:
    await busy(world)
    waiting = world.ask(change("/a"), change("/b", epoch=1))
    await settle()
    for one in waiting:
        one.cancel()
    await settle()
    world.server.open.set()
    await settle()
    assert await world.ask(change("/c"))[0] == "/c done"
    assert [path for paths in world.server.sent for path in paths if path in ("/a", "/b", "/c")] == ["/c"]
