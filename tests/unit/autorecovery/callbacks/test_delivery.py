"""Deliveries to callbacks, on a clock that stands still: receivers that are down, slow or refuse, and auditors that
die."""

import asyncio
import json
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from autorecovery.callbacks import rules
from autorecovery.callbacks.delivery import Answer, CallbackDelivery, CannotPost
from autorecovery.callbacks.registry import CallbackRegistry
from autorecovery.callbacks.rules import Outcome
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import MetadataStore, OutcomeUnknown, StoreUnavailable
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.waiting import take_turns

DAY_S = 24 * 3600.0


class Receivers:
    """Receivers by their address: what each was sent, and how it answers (a status; None: not at all; later)."""

    def __init__(self) -> None:
        self.got: dict[str, list[str]] = {}
        self.ids: dict[str, list[str]] = {}
        self.answers: dict[str, deque[int | None]] = {}
        self.hanging: set[str] = set()
        self.at_once: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        event = json.loads(body)
        self.got.setdefault(url, []).append(f"{event['bookie']} {event['to']}")
        self.ids.setdefault(url, []).append(headers[rules.EVENT_ID])
        assert headers[rules.EVENT_ID] == event["id"]
        self.at_once[url] = self.at_once.get(url, 0) + 1
        self.most[url] = max(self.most.get(url, 0), self.at_once[url])
        try:
            if url in self.hanging:
                await asyncio.get_running_loop().create_future()
        finally:
            self.at_once[url] -= 1
        answers = self.answers.get(url)
        status = 200 if not answers else answers.popleft() if len(answers) > 1 else answers[0]
        if status is None:
            raise CannotPost("connection refused")
        return Answer(status, "so it is")

    async def close(self) -> None:
        return None


class World:
    """One cluster without bookies: states, callbacks, and one auditor at a time."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: MetadataStore = MemoryStore(self.clock)
        self.receivers = Receivers()
        self.broken: list[BaseException] = []

    @property
    def registry(self) -> CallbackRegistry:
        return CallbackRegistry(self.store)

    async def callback(self, name: str, *states: str, bookies: tuple[str, ...] = ()) -> str:
        return (await self.registry.register(f"http://{name}/", None, states, bookies, "me", 1)).id

    async def move(self, bookie: str, *states: State) -> None:
        if not await self.store.exists(cookie_path("/ledgers", bookie)):
            await self.store.put(cookie_path("/ledgers", bookie), b"")
        for state in states:
            actor = Actor.AUDITOR if state is State.DRAINED else Actor.OPERATOR
            await BookieStates(self.store).move(bookie, state, actor, "me", "", self.clock.wall_ms())

    @asynccontextmanager
    async def auditor(self, store: MetadataStore | None = None) -> AsyncIterator[CallbackDelivery]:
        registry = CallbackRegistry(self.store if store is None else store)
        delivery = CallbackDelivery(registry, self.receivers, self.clock, random.Random(1))
        delivery.start(self.broken.append)
        await take_turns()
        try:
            yield delivery
        finally:
            await delivery.stop()
        assert self.broken == []

    async def pass_s(self, seconds: float, step_s: float = 1.0) -> None:
        for _ in range(int(seconds / step_s)):
            self.clock.advance(step_s)
            await take_turns()

    async def outcomes(self, callback: str) -> list[Outcome]:
        return [line.outcome for line in await self.registry.log_of(callback)]


@pytest.fixture
def world() -> World:
    return World()


async def test_every_change_comes_in_order_to_those_who_want_it(world: World) -> None:
    wants_all = await world.callback("all")
    await world.callback("ends", "drained", "removed")
    await world.callback("other", bookies=("b-2",))
    async with world.auditor() as delivery:
        await world.move("b-1", State.DRAINING, State.DRAINED)
        await take_turns()
        states = BookieStates(world.store)
        await states.remove("b-1", await states.read("b-1"), "me", 5)
        await take_turns()
        assert world.receivers.got == {
            "http://all/": ["b-1 draining", "b-1 drained", "b-1 removed"],
            "http://ends/": ["b-1 drained", "b-1 removed"],
        }
        assert delivery.facts() == {"delivered": 5, "failed": 0, "given_up": 0, "waiting": 0}
    assert await world.outcomes(wants_all) == [Outcome.DELIVERED] * 3
    assert await world.registry.events() == []


async def test_a_receiver_that_is_down_gets_everything_in_order_when_it_is_back(world: World) -> None:
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor():
        await world.move("b-1", State.DRAINING, State.DRAINED, State.ACTIVE)
        await world.pass_s(30)
        got = world.receivers.got["http://one/"]
        assert set(got) == {"b-1 draining"}
        assert 4 <= len(got) <= 12, "the waits grow"
        (line,) = await world.registry.log_of(callback)
        assert (line.outcome, line.attempts, line.answer) == (Outcome.WAITS, len(got), "connection refused")
        got.clear()
        world.receivers.answers.clear()
        await world.pass_s(60)
        assert got == ["b-1 draining", "b-1 drained", "b-1 active"]
    assert await world.outcomes(callback) == [Outcome.DELIVERED] * 3


@pytest.mark.parametrize("status", [199, 301, 307, 400, 410, 500, 503])
async def test_any_answer_that_does_not_confirm_is_no_delivery(world: World, status: int) -> None:
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([status, 204])
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await take_turns()
        (line,) = await world.registry.log_of(callback)
        assert (line.outcome, line.answer) == (Outcome.WAITS, f"{status} so it is")
        await world.pass_s(2)
    assert len(set(world.receivers.ids["http://one/"])) == 1
    assert len(world.receivers.ids["http://one/"]) == 2
    (line,) = await world.registry.log_of(callback)
    assert (line.outcome, line.attempts, line.answer) == (Outcome.DELIVERED, 2, "204")


async def test_a_callback_that_hangs_keeps_no_other_from_its_events_and_gets_so_many_at_once(world: World) -> None:
    await world.callback("hangs")
    await world.callback("lives")
    world.receivers.hanging.add("http://hangs/")
    async with world.auditor():
        for number in range(9):
            await world.move(f"b-{number}", State.DRAINING, State.DRAINED)
        await take_turns(500)
        assert len(world.receivers.got["http://lives/"]) == 18
        assert world.receivers.most["http://hangs/"] == 4


async def test_an_event_of_one_bookie_that_is_refused_keeps_no_other_bookie_waiting(world: World) -> None:
    await world.callback("one")
    world.receivers.answers["http://one/"] = deque([500, 200])
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await take_turns()
        await world.move("b-2", State.DRAINING)
        await world.move("b-1", State.DRAINED)
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 draining", "b-2 draining"]
        await world.pass_s(2)
        assert world.receivers.got["http://one/"][2:] == ["b-1 draining", "b-1 drained"]


async def test_an_auditor_that_dies_between_answer_and_log_leaves_an_event_that_comes_again(world: World) -> None:
    callback = await world.callback("one")
    await world.move("b-1", State.DRAINING)

    async def die(what: str, path: str) -> None:
        if what == "multi" and path.endswith("/log"):
            await asyncio.get_running_loop().create_future()

    async with world.auditor(FaultyStore(world.store, die)):
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 draining"]
    async with world.auditor():
        await take_turns()
    first, second = world.receivers.ids["http://one/"]
    assert first == second
    assert await world.outcomes(callback) == [Outcome.DELIVERED]


@pytest.mark.parametrize("dies_at", ["multi", "multi done"])
async def test_an_auditor_that_dies_while_it_hands_out_loses_nothing(world: World, dies_at: str) -> None:
    await world.callback("one")
    await world.move("b-1", State.DRAINING, State.DRAINED)

    async def die(what: str, path: str) -> None:
        if what == dies_at:
            await asyncio.get_running_loop().create_future()

    async with world.auditor(FaultyStore(world.store, die)):
        await take_turns()
        assert world.receivers.got == {}
    async with world.auditor():
        await take_turns()
    assert world.receivers.got["http://one/"] == ["b-1 draining", "b-1 drained"]


async def test_what_waits_is_taken_over_by_the_next_auditor(world: World) -> None:
    await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await world.pass_s(3)
    world.receivers.answers.clear()
    await world.move("b-1", State.DRAINED)
    world.receivers.got.clear()
    async with world.auditor():
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 draining", "b-1 drained"]


async def test_a_confirmed_event_is_not_sent_again_because_the_store_is_away(world: World) -> None:
    callback = await world.callback("one")
    failures = iter([StoreUnavailable("away"), OutcomeUnknown("away"), StoreUnavailable("away")])

    async def fail(what: str, path: str) -> None:
        if what == "multi" and path.endswith("/log"):
            error = next(failures, None)
            if error is not None:
                raise error

    async with world.auditor(FaultyStore(world.store, fail)):
        await world.move("b-1", State.DRAINING)
        await world.pass_s(5)
    assert world.receivers.got["http://one/"] == ["b-1 draining"]
    assert await world.outcomes(callback) == [Outcome.DELIVERED]


@pytest.mark.parametrize("fate", LostAnswer)
@pytest.mark.parametrize("after", [0, 1])
async def test_a_lost_answer_of_the_store_loses_and_doubles_nothing(world: World, fate: LostAnswer, after: int) -> None:
    callback = await world.callback("one")
    await world.move("b-1", State.DRAINING)
    memory, count = world.store, 0
    assert isinstance(memory, MemoryStore)

    async def lose(what: str, path: str) -> None:
        nonlocal count
        if what == "multi":
            if count == after:
                memory.lose_next_answer(fate)
            count += 1

    async with world.auditor(FaultyStore(memory, lose)):
        await world.pass_s(5)
        assert world.receivers.got["http://one/"] == ["b-1 draining"]
    assert await world.outcomes(callback) == [Outcome.DELIVERED]


async def test_a_store_that_is_away_delays_and_loses_nothing(world: World) -> None:
    await world.callback("one")
    is_away = True

    async def fail(what: str, path: str) -> None:
        if is_away:
            raise StoreUnavailable("away")

    async with world.auditor(FaultyStore(world.store, fail)):
        await world.move("b-1", State.DRAINING)
        await world.pass_s(5)
        assert world.receivers.got == {}
        is_away = False
        await world.pass_s(5)
        assert world.receivers.got["http://one/"] == ["b-1 draining"]


async def test_a_callback_that_is_deleted_gets_nothing_more(world: World) -> None:
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor() as delivery:
        await world.move("b-1", State.DRAINING, State.DRAINED)
        await world.pass_s(3)
        await world.registry.remove(callback)
        count = len(world.receivers.got["http://one/"])
        await world.move("b-1", State.ACTIVE)
        await world.pass_s(30)
        assert len(world.receivers.got["http://one/"]) == count
        assert delivery.facts()["waiting"] == 0
    assert await world.registry.all() == []
    assert await world.store.children("/ledgers/underreplication/magnetar/callbacks") == []


async def test_a_callback_that_comes_later_gets_only_what_comes_later(world: World) -> None:
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await take_turns()
        await world.callback("one")
        await world.move("b-1", State.DRAINED)
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 drained"]


async def test_after_seven_days_an_event_is_given_up_and_the_next_one_has_its_turn(world: World) -> None:
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor() as delivery:
        await world.move("b-1", State.DRAINING)
        await world.pass_s(6 * DAY_S, 3600)
        await world.move("b-1", State.DRAINED)
        assert await world.outcomes(callback) == [Outcome.WAITS]
        await world.pass_s(1.5 * DAY_S, 3600)
        assert await world.outcomes(callback) == [Outcome.GIVEN_UP, Outcome.WAITS]
        assert delivery.counts.given_up == 1
        world.receivers.answers.clear()
        await world.pass_s(3600, 600)
        assert await world.outcomes(callback) == [Outcome.GIVEN_UP, Outcome.DELIVERED]


async def test_so_many_events_wait_for_a_callback(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "PENDING_MAX", 3)
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor():
        for number in range(5):
            await world.move(f"b-{number}", State.DRAINING)
            await take_turns()
        await world.pass_s(31)
        assert len(await world.registry.pending(callback)) == 3
        assert (await world.outcomes(callback)).count(Outcome.GIVEN_UP) == 2
        world.receivers.answers.clear()
        world.receivers.got.clear()
        await world.pass_s(120)
        assert sorted(world.receivers.got["http://one/"]) == ["b-2 draining", "b-3 draining", "b-4 draining"]


async def test_so_many_events_gather_while_nobody_audits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "EVENTS_MAX", 2)
    await world.callback("one")
    await world.move("b-1", State.DRAINING, State.DRAINED, State.ACTIVE)
    async with world.auditor():
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 drained", "b-1 active"]


async def test_a_test_is_sent_once_also_while_events_of_bookies_wait(world: World) -> None:
    callback = await world.callback("one")
    world.receivers.answers["http://one/"] = deque([None])
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await take_turns()
        event_id = await world.registry.test(callback, "me", 5)
        await take_turns()
        lines = {line.event: line for line in await world.registry.log_of(callback)}
        assert (lines[event_id].outcome, lines[event_id].answer) == (Outcome.GIVEN_UP, "connection refused")
        world.receivers.answers.clear()
        event_id = await world.registry.test(callback, "me", 5)
        await take_turns()
        lines = {line.event: line for line in await world.registry.log_of(callback)}
        assert lines[event_id].outcome is Outcome.DELIVERED


async def test_a_defect_at_one_callback_ends_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I71"""
    await world.callback("bad")
    await world.callback("good")
    post = world.receivers.post

    async def broken(url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if url == "http://bad/":
            raise RuntimeError("nobody thought of this")
        return await post(url, body, headers)

    monkeypatch.setattr(world.receivers, "post", broken)
    async with world.auditor():
        await world.move("b-1", State.DRAINING, State.DRAINED)
        await take_turns()
        assert world.receivers.got["http://good/"] == ["b-1 draining", "b-1 drained"]


async def test_what_cannot_be_read_is_told_of_and_keeps_nothing_waiting(world: World) -> None:
    """I60"""
    callback = await world.callback("one")
    await world.store.put("/ledgers/underreplication/magnetar/events/0000000000-bad", b"{}")
    await world.store.put(f"/ledgers/underreplication/magnetar/callbacks/{callback}/pending/0000000000-old", b"[]")
    async with world.auditor():
        await world.move("b-1", State.DRAINING)
        await take_turns()
        assert world.receivers.got["http://one/"] == ["b-1 draining"]
    assert await world.outcomes(callback) == [Outcome.GIVEN_UP, Outcome.DELIVERED]
    assert await world.registry.events() == []
