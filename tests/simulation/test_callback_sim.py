"""Seeded runs of callbacks: bookies are moved while receivers and auditors come and go. A seed is a whole run.

Registry, events, hand-out and delivery are the real code over the metadata store in memory, on a clock that stands
still between steps. What may happen: moves, callbacks registered and deleted, receivers that are down, refuse or hang,
answers of the store that are lost, auditors that die at any step of the store, two auditors at the same time (the one
whose session is about to end, and its successor).

What must hold at the end, when everything is well for an hour:

1. A callback that was there all the while got every change of every bookie at least once, the first time each in the
   order of the changes of that bookie.
2. Nobody got an event that never happened, or one event with two bodies.
3. Nothing waits, and the log of each callback ends well.

`SEED=8315` repeats one run.
"""

import asyncio
import json
import os
import random
from collections.abc import Mapping
from typing import Final

import pytest

from autorecovery.callbacks import rules
from autorecovery.callbacks.delivery import Answer, CallbackDelivery, CannotPost
from autorecovery.callbacks.registry import CallbackRegistry
from autorecovery.callbacks.rules import Outcome
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, cookie_path
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import MOVES
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer, MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import StoreUnavailable
from tests.support.faulty_store import FaultyStore
from tests.support.manual_clock import ManualClock
from tests.support.waiting import take_turns

SEEDS: Final = [int(os.environ["SEED"])] if "SEED" in os.environ else list(range(25))
STEPS: Final = 60
BOOKIES: Final = ("b-1", "b-2", "b-3")


class Receivers:
    """Receivers by their address; *mood* says how each answers at present."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.got: dict[str, list[tuple[str, str]]] = {}
        """Address → (bookie, event) in the order of their first arrival."""
        self.bodies: dict[str, bytes] = {}
        self.mood: dict[str, str] = {}

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        mood = self.mood.get(url, "well")
        if mood == "down" or (mood == "odd" and self._rng.random() < 0.3):
            raise CannotPost("connection refused")
        if mood == "hangs":
            await asyncio.get_running_loop().create_future()
        event_id = headers[rules.EVENT_ID]
        assert self.bodies.setdefault(event_id, body) == body
        seen = json.loads(body)["bookie"], event_id
        if mood == "well" or self._rng.random() < 0.7:
            if seen not in self.got.setdefault(url, []):
                self.got[url].append(seen)
            # Some have stored it and say otherwise.
            return Answer(200 if mood == "well" or self._rng.random() < 0.7 else 503, "")
        return Answer(500, "")

    async def close(self) -> None:
        return None


class Run:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)
        self.registry = CallbackRegistry(self.store)
        self.states = BookieStates(self.store)
        self.receivers = Receivers(self.rng)
        self.auditors: list[tuple[CallbackDelivery, FaultyStore]] = []
        self.made: list[tuple[str, str]] = []
        """(bookie, state) of every move, in order."""
        self.lasting: list[str] = []
        self.passing: list[str] = []
        self.broken: list[BaseException] = []

    async def begin(self) -> None:
        for bookie in BOOKIES:
            await self.store.put(cookie_path("/ledgers", bookie), b"")
        for number in range(2):
            found = await self.registry.register(f"http://lasting-{number}/", None, (), (), "me", 1)
            self.lasting.append(found.url)

    async def step(self) -> None:
        match self.rng.choices(
            ["move", "mood", "callback", "delete", "auditor", "dies", "lost", "time"], [30, 12, 3, 3, 10, 8, 8, 30]
        )[0]:
            case "move":
                await self.move(self.rng.choice(BOOKIES))
            case "mood":
                url = self.rng.choice([*self.lasting, "http://passing/"])
                self.receivers.mood[url] = self.rng.choice(["well", "well", "down", "odd", "hangs"])
            case "callback":
                self.passing.append((await self.registry.register("http://passing/", None, (), (), "me", 1)).id)
            case "delete" if self.passing:
                await self.registry.remove(self.passing.pop())
            case "auditor" if len(self.auditors) < 2:
                self.start_auditor()
            case "dies" if self.auditors:
                await self.kill_auditor()
            case "lost":
                self.store.lose_next_answer(self.rng.choice(list(LostAnswer)))
            case "time":
                self.clock.advance(self.rng.choice([0.5, 1, 5, 60, 700]))
        await take_turns(self.rng.randrange(1, 30))

    async def move(self, bookie: str) -> None:
        found = await self.states.read(bookie)
        (to, actor) = self.rng.choice([(to, actor) for (at, to), actor in MOVES.items() if at is found.lifecycle.state])
        reasons = ((1, "lost"),) if to == "draining-failed" else ()
        await self.states.move(bookie, to, actor, "me", "", self.rng.randrange(10**6), reasons=reasons)
        self.made.append((bookie, str(to)))

    def start_auditor(self) -> None:
        store = FaultyStore(self.store)
        delivery = CallbackDelivery(CallbackRegistry(store), self.receivers, self.clock, self.rng)
        delivery.start(self.broken.append)
        self.auditors.append((delivery, store))

    async def kill_auditor(self) -> None:
        """It dies at some step of the store: with none, or after some more of them."""
        delivery, store = self.auditors.pop(self.rng.randrange(len(self.auditors)))
        left = self.rng.randrange(6)

        async def die(what: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise StoreUnavailable("its session has ended")

        store.on_step = die
        self.clock.advance(1)
        await take_turns(self.rng.randrange(1, 20))
        await delivery.stop()

    async def end(self) -> None:
        """All is well, for long enough."""
        while self.auditors:
            await self.kill_auditor()
        self.receivers.mood.clear()
        self.store.lose_next_answer(LostAnswer.APPLIED)
        await self.registry.register("http://last/", None, (), (), "me", 1)
        self.start_auditor()
        for _ in range(60):
            await take_turns(200)
            self.clock.advance(60)
        ((delivery, _),) = self.auditors
        await take_turns(200)
        assert delivery.facts()["waiting"] == 0
        await delivery.stop()

    async def check(self) -> None:
        assert self.broken == []
        for url in self.lasting:
            for bookie in BOOKIES:
                ids = [event_id for of, event_id in self.receivers.got.get(url, []) if of == bookie]
                assert ids == sorted(ids)
                told = [json.loads(self.receivers.bodies[one])["to"] for one in ids]
                assert told == [state for of, state in self.made if of == bookie], url
        assert await self.registry.events() == []
        for one in await self.registry.all():
            assert await self.registry.pending(one.callback.id) == []
            lines = await self.registry.log_of(one.callback.id)
            assert {line.outcome for line in lines} <= {Outcome.DELIVERED}


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_change_comes_to_every_callback_in_order(seed: int) -> None:
    run = Run(seed)
    await run.begin()
    for _ in range(STEPS):
        await run.step()
    await run.end()
    await run.check()
