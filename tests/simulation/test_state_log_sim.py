"""A replicated dictionary on three nodes, whoever leads and whatever fails: a seed is a whole run.

Fault model: nodes are promoted at any time, also several at once; a node dies (its disk keeps what was synced, and
some of the rest) and comes back; one disk is lost for good where two nodes hold what was dropped; ledgers' writers
fail; entries that were sent and not acknowledged are found by a recovery or not; sessions expire, the metadata store is
silent to a node, answers to changes are lost (the change done or not); bookies refuse at any step. What is never lost:
acknowledged entries, and the metadata.

Clients propose numbered edits at drawn nodes; after an unknown outcome they propose the same edit again with its token.
"""

import asyncio
import functools
import os
import random
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from magnetar_core.bookkeeper.client.errors import BookieUnavailable
from magnetar_core.bookkeeper.metadata.stores.memory import LostAnswer
from managed_ledger.state_log.edits import Token
from managed_ledger.state_log.errors import (
    LogUnavailable,
    NotLeader,
    ProposalUnknown,
    StateLogError,
    TokenExpired,
)
from managed_ledger.state_log.replica import Role, Verdict
from tests.support.manual_clock import ManualClock
from tests.support.state_log_world import Node, World, setting

SEEDS: Final = [int(os.environ["SEED"])] if "SEED" in os.environ else range(40)
STEPS: Final = 250
NAMES: Final = ("a", "b", "c")


class Run:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.world = World(
            clock=self.clock,
            seed=seed,
            ledger_edits=self.rng.choice((3, 8, 30)),
            snapshot_edits=self.rng.choice((4, 15, 1_000)),
            snapshot_copies=self.rng.choice((1, 2, 3)),
            marker_s=self.rng.choice((0.001, 0.05)),
        )
        # With two copies of what was dropped, one disk may be lost for good (I122).
        self.disks_to_lose = int(self.world.config.snapshot_copies > 1)
        self.world.bookkeeper.survivors = lambda sent: self.rng.randint(0, sent)
        self.tasks: dict[asyncio.Task[None], Node] = {}
        self.failures: list[BaseException] = []
        self.is_healed = False
        self.edits = 0
        self.unknown: list[tuple[bytes, Token]] = []
        self.truth: list[tuple[str, int]] = []
        self.checked: dict[Node, int] = {}
        self.acknowledged: dict[int, str] = {}
        self.counts = dict.fromkeys(
            ("acknowledged", "promotions", "deaths", "unknown", "duplicates", "barriers", "fetches", "dropped"), 0
        )

    @property
    def alive(self) -> list[Node]:
        return [node for node in self.world.nodes if node.is_alive]

    # What happens

    async def run(self) -> None:
        for name in NAMES:
            await self.start(name)
        for _ in range(STEPS):
            await self.act()
            await self.turns(self.rng.randint(1, 12))
            self.clock.advance(self.rng.choice((0.0, 0.001, 0.004)))
            await self.turns(1)
            self.check_step()
        await self.heal()
        self.check_end()
        for node in self.alive:
            await self.finish(node.log.close())
            await self.finish(node.members.stop())

    async def start(self, name: str, node: Node | None = None) -> None:
        files = None if node is None else node.files.crash(self.rng, self.rng.choice((0.0, 0.5, 1.0)))
        if node is not None and self.disks_to_lose and self.rng.random() < 0.3:
            self.disks_to_lose -= 1
            files = None
        try:
            made = await self.world.node(name, files)
        except LogUnavailable:  # it could not tell of itself: it died at once, as it were
            await self.world.nodes[-1].die()
            self.world.nodes[-1].is_alive = False
            return
        made.bookkeeper.hold = True
        made.bookkeeper.survivors = self.world.bookkeeper.survivors
        made.bookkeeper.on_step = self.on_step

    async def on_step(self, what: str, ledger_id: int) -> None:
        for _ in range(self.rng.randint(0, 2)):
            await asyncio.sleep(0)
        if not self.is_healed and self.rng.random() < 0.01:
            raise BookieUnavailable(f"{what} of ledger {ledger_id}")

    async def act(self) -> None:
        rng = self.rng
        if not self.alive or (len(self.alive) < len(NAMES) and rng.random() < 0.2):
            gone = rng.choice([name for name in NAMES if name not in {node.name for node in self.alive}])
            last = [node for node in self.world.nodes if node.name == gone][-1]
            await self.start(gone, last)
            return
        node = rng.choice(self.alive)
        action = rng.choices(
            ("propose", "again", "answer", "lead", "fail", "die", "snapshot", "barrier", "expire", "suspend",
             "resume", "lose", "resign"),
            (30, 20, 60, 3, 1.5, 2, 6, 15, 1, 1.5, 6, 2, 1),
        )[0]  # fmt: skip
        if action == "propose":
            leaders = [one for one in self.alive if one.log.is_leader] or [node]
            for _ in range(rng.randint(1, 3)):
                self.edits += 1
                chosen = rng.choice(leaders)
                self.spawn(
                    chosen, self.propose(chosen, setting(f"k{self.edits % 7}", self.edits), chosen.log.new_token())
                )
        elif action == "again" and self.unknown:
            edit, token = self.unknown.pop(rng.randrange(len(self.unknown)))
            chosen = rng.choice([one for one in self.alive if one.log.is_leader] or [node])
            self.spawn(chosen, self.propose(chosen, edit, token))
        elif action == "answer":
            self.answer(some=True)
        elif action == "lead":
            self.counts["promotions"] += 1
            self.spawn(node, node.log.lead())
        elif action == "resign":
            self.spawn(node, node.log.follow())
        elif action == "fail" and node.bookkeeper.handles:
            rng.choice(node.bookkeeper.handles).fail(BookieUnavailable("all gone"))
        elif action == "die":
            self.counts["deaths"] += 1
            dying = [task for task, owner in self.tasks.items() if owner is node]
            for task in dying:
                task.cancel()
            await asyncio.gather(*dying, return_exceptions=True)
            await node.die()
        elif action == "snapshot":
            self.spawn(node, self.snapshot(node))
        elif action == "barrier":
            # Of several nodes that believe to lead, the one that was told least.
            chosen = min([one for one in self.alive if one.log.is_leader] or [node], key=lambda one: one.log.term)
            self.spawn(chosen, self.barrier(chosen))
        elif action == "expire":
            node.session.expire()
        elif action == "suspend":
            rng.choice([one for one in self.alive if one.log.is_leader] or [node]).session.suspend()
        elif action == "resume":
            node.session.resume()
        elif action == "lose":
            node.session.lose_next_answer(rng.choice(list(LostAnswer)))

    async def propose(self, node: Node, edit: bytes, token: Token) -> None:
        try:
            applied = await node.log.propose(edit, token)
        except ProposalUnknown:
            self.counts["unknown"] += 1
            self.unknown.append((edit, token))
            return
        except (StateLogError, ValueError):
            self.unknown.append((edit, token))  # nothing was done
            return
        except asyncio.CancelledError:
            self.unknown.append((edit, token))  # the node died
            raise
        if not node.is_alive:
            return
        self.counts["acknowledged"] += 1
        self.counts["duplicates"] += applied.verdict is Verdict.DUPLICATE
        text = edit.decode()
        assert self.acknowledged.setdefault(applied.number, text) == text, "two edits have one number (I124)"

    async def snapshot(self, node: Node) -> None:
        await node.log.take_snapshot()

    async def barrier(self, node: Node) -> None:
        known = set(self.acknowledged.values())
        try:
            await node.log.read_barrier()
        except NotLeader:
            return
        self.counts["barriers"] += 1
        assert known <= set(node.machine.edits), "a linearizable read lacks what was acknowledged before it (I129)"

    def answer(self, *, some: bool) -> None:
        for node in self.alive:
            for handle in node.bookkeeper.handles:
                if handle._sent and not (some and self.rng.random() < 0.3):
                    handle.release(self.rng.randint(1, len(handle._sent)) if some else None)

    # Tasks

    def spawn(self, node: Node, work: Coroutine[Any, Any, Any]) -> None:
        async def guarded() -> None:
            try:
                await work
            except (StateLogError, asyncio.CancelledError):
                pass
            except Exception as error:
                self.failures.append(error)

        task = asyncio.ensure_future(guarded())
        self.tasks[task] = node
        task.add_done_callback(self.tasks.pop)

    async def turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)

    async def finish(self, work: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.ensure_future(work)
        for _ in range(3_000):
            if task.done():
                break
            self.answer(some=False)
            await self.turns(8)
            self.clock.advance(0.01)
        assert task.done(), "it does not end"
        return task.result()

    async def heal(self) -> None:
        """The faults are over: there is one leader again, and everybody catches up (I128)."""
        self.is_healed = True
        for node in self.alive:
            node.session.resume()
            node.session._lose_next = None
        for name in NAMES:
            if name not in {node.name for node in self.alive}:
                last = [node for node in self.world.nodes if node.name == name][-1]
                await self.start(name, last)
        for handle in [handle for node in self.world.nodes for handle in node.bookkeeper.handles]:
            handle.release()
        for _ in range(20):
            leader = self.rng.choice(self.alive)
            try:
                await self.finish(leader.log.lead())
                await self.finish(leader.log.read_barrier())
                break
            except StateLogError:
                await self.turns(20)
                self.clock.advance(0.1)
        assert leader.log.is_leader
        while self.unknown:
            edit, token = self.unknown.pop()
            await self.finish(self.once(leader, edit, token))
        await self.finish(leader.log.read_barrier())
        for node in self.alive:
            assert node.log.error is None, node.log.error
            await self.finish(node.log.reach(leader.log.number))
        assert [node.log.role for node in self.alive].count(Role.LEADER) == 1
        self.leader = leader

    async def once(self, node: Node, edit: bytes, token: Token) -> None:
        try:
            applied = await node.log.propose(edit, token)
        except (TokenExpired, ValueError):
            return
        self.acknowledged.setdefault(applied.number, edit.decode())

    # Checks

    def check_step(self) -> None:
        assert self.failures == []
        for node in self.alive:
            assert node.log.error is None, node.log.error
            history = node.machine.history
            seen = min(self.checked.get(node, 0), len(self.truth))
            assert len(history) >= seen, "a state went back (I118)"
            common = min(len(history), len(self.truth))
            assert history[seen:common] == self.truth[seen:common], "two histories of one log (I118, I119, I126)"
            if len(history) > len(self.truth):
                self.truth = list(history)
            self.checked[node] = len(history)

    def check_end(self) -> None:
        self.check_step()
        hashes = {node.log.state_hash() for node in self.alive}
        assert len(hashes) == 1, "equal positions, different states (I119)"
        edits = self.leader.machine.edits
        assert len(set(edits)) == len(edits), "an edit was applied twice (I125)"
        missing = [text for text in self.acknowledged.values() if text not in edits]
        assert missing == [], "acknowledged, and not in the log (I123)"
        order = [edits.index(self.acknowledged[number]) for number in sorted(self.acknowledged)]
        assert order == sorted(order), "edits are not in the order of their numbers"
        self.counts["fetches"] = sum(node.peers.given for node in self.world.nodes)
        self.counts["dropped"] = len(self.world.bookkeeper.deleted)


@functools.cache
def counts_of(seed: int) -> Counter[str]:
    """Of a run in which nothing was wrong."""
    run = Run(seed)
    asyncio.run(run.run())
    return Counter(run.counts)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_node_has_one_history_and_nothing_acknowledged_is_lost_or_doubled(seed: int) -> None:
    counts_of(seed)


def test_the_runs_reach_what_they_are_for() -> None:
    total = sum((counts_of(seed) for seed in range(40)), Counter[str]())
    assert total["acknowledged"] > 800
    assert total["promotions"] > 40
    assert total["deaths"] > 20
    assert total["unknown"] > 40
    assert total["duplicates"] >= 10
    assert total["barriers"] > 10
    assert total["dropped"] > 50
    assert total["fetches"] >= 1
