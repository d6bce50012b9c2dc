"""Many brokers share out the bundles of a namespace, under virtual time: a seed is a whole run.

Fault model: calls to the metadata store and probes of brokers take a drawn time; a call fails before it is sent, or its
answer is lost (the change done or not); a broker is cut off from the store, its session ends meanwhile or not, and it
hears of that when it is connected again; a broker hangs, dies (its session ends later) and is started again at its
address, or at a new one, before or after that; it leaves in an orderly way. Operators unload, move and split bundles at
the same time, closing the topics takes a while and may fail; clients look topics up at any broker and go where they are
sent.

At each moment:

1. A topic that is open belongs to a bundle that its broker has, or is giving back.
2. A broker that is connected to the store has the node of each bundle that it has, but for some seconds.
3. Nobody removes the node of a broker that lives; but for one that was started again at its address a moment ago, and
   removes what it had left there just when another takes it (the metadata store compares versions alone).
4. A lookup ends within its limit.

When the faults are over:

5. Each topic has one broker, which all of them name.
6. Each node belongs to a broker that has the bundle, and each bundle that a broker has is one of the namespace.
7. What was under way has ended.
"""

import asyncio
import contextlib
import os
import random
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

import pytest

from broker.errors import BrokerError
from broker.names import Bundles, BundleSet
from broker.ownership.nodes import NAMESPACE, decode_owner
from broker.ownership.ownership import BundleOwnership
from broker.ownership.probing import Sign
from broker.ownership.rules import BrokerAddress, Located
from magnetar.testing.simulated.loop import VirtualClock, run_virtually
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.bookkeeper.metadata.stores.store import (
    Cancel,
    MetadataError,
    Node,
    OutcomeUnknown,
    SessionEvent,
    StoreUnavailable,
)
from magnetar_core.runtime.types import Corruption
from magnetar_core.topics.topic_name import TopicName

SEEDS: Final = (
    [int(os.environ["SEED"])] if "SEED" in os.environ else range(int(os.environ.get("MAGNETAR_SIM_SEEDS", 30)))
)
STEPS: Final = 60
SPACE: Final = "public/default"
TOPICS: Final = [TopicName.parse(f"persistent://{SPACE}/t{number}") for number in range(12)]
WAIT_S: Final = 20.0

# A broker learns from a watch that it has lost a node, and asks the store until it answers.
NOTICE_S: Final = 10.0

SLOW: Final = (0.0, 0.0, 0.0, 0.001, 0.001, 0.01, 0.1, 1.0)


class Remote:
    """The metadata store as one broker reaches it."""

    def __init__(self, run: "Run", inner: MemoryStore) -> None:
        self._run = run
        self.inner = inner
        self.sessions = 0
        self.is_dead = False
        self.is_cut = False

    async def _way(self) -> None:
        await asyncio.sleep(self._run.rng.choice(SLOW) * self._run.slowness)
        if self.is_dead:
            raise asyncio.CancelledError

    async def _read(self, ask: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        await self._way()
        if self._run.fails():
            raise StoreUnavailable("no answer")
        answer = await ask()
        await self._way()
        return answer

    async def _change(self, change: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        session = self.sessions
        await self._way()
        if session != self.sessions:
            raise StoreUnavailable("the session has ended; nothing was changed")
        if self._run.fails():
            raise (StoreUnavailable if self._run.rng.random() < 0.5 else OutcomeUnknown)("not sent")
        answer = await change()
        cut = self.is_cut
        await self._way()
        if self._run.fails() or self.is_cut != cut or session != self.sessions:
            raise OutcomeUnknown("the answer was lost")
        return answer

    async def get(self, path: str) -> Node | None:
        found: Node | None = await self._read(lambda: self.inner.get(path))
        return found

    async def children(self, path: str) -> list[str]:
        names: list[str] = await self._read(lambda: self.inner.children(path))
        return names

    async def put(
        self, path: str, value: bytes, expected_version: int | None = None, *, ephemeral: bool = False
    ) -> int:
        version: int = await self._change(lambda: self.inner.put(path, value, expected_version, ephemeral=ephemeral))
        return version

    async def delete(self, path: str, expected_version: int | None = None) -> None:
        async def delete() -> None:
            node = await self.inner.get(path)
            await self.inner.delete(path, expected_version)
            if node is not None and not node.own:
                self._run.on_removed(self, node)

        await self._change(delete)

    def watch_node(self, path: str, changed: Callable[[], None]) -> Cancel:
        return self.inner.watch_node(path, lambda: self._later(changed))

    def watch_session(self, changed: Callable[[SessionEvent], None]) -> Cancel:
        def heard(event: SessionEvent) -> None:
            if not self.is_dead:
                changed(event)

        return self.inner.watch_session(heard)

    def _later(self, changed: Callable[[], None]) -> None:
        def heard() -> None:
            if not self.is_dead:
                changed()

        asyncio.get_running_loop().call_later(self._run.rng.choice(SLOW) * self._run.slowness, heard)

    @property
    def session_timeout_s(self) -> float:
        return self._run.session_s

    @property
    def last_answer(self) -> float:
        return self.inner.last_answer


class Process:
    """One broker."""

    def __init__(self, run: "Run", number: int) -> None:
        self.run = run
        self.number = number
        self.id = f"host-{number}:8080"
        self.address = BrokerAddress(f"pulsar://host-{number}:6650", "", f"http://{self.id}")
        self.store = Remote(run, run.root.session())
        self.is_alive, self.hangs = True, False
        self.has_left = False
        self.open: set[TopicName] = set()
        self.closing: Counter[str] = Counter()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        """What others want of it."""
        self.doubtful_since: dict[str, float] = {}
        self.known = run.bundles
        self.ownership = BundleOwnership(
            self.store,  # type: ignore[arg-type]
            run.clock,
            bundles_of=self._bundles,
            bundles_now=self._bundles_now,
            version="0.1.0",
            takeover_wait_s=WAIT_S,
            probes=lambda tasks: run,
            on_expired=self._on_expired if run.stops_when_expired else None,
        )
        self.ownership.watch_lost(self._on_lost)

    def __repr__(self) -> str:
        return self.id

    async def _bundles(self, _: str) -> Bundles:
        return self.known

    async def _bundles_now(self, _: str) -> Bundles:
        await asyncio.sleep(self.run.rng.choice(SLOW) * self.run.slowness)
        if self.run.fails():
            raise StoreUnavailable("the namespace's record")
        self.known = self.run.bundles
        return self.known

    def _on_expired(self) -> None:
        self.kill()
        self.run.start()

    def _on_lost(self, bundles: list[str]) -> None:
        for topic in list(self.open):
            if not self.ownership.owns(topic):
                self.open.discard(topic)

    def kill(self) -> None:
        self.is_alive = False
        self.store.is_dead = True
        self.open.clear()
        for task in list(self.tasks):
            task.cancel()
        self.run.count("died")
        self.run.spawn(self._end_session(self.run.rng.uniform(0, self.run.session_s)))

    async def _end_session(self, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self.store.inner.close()

    async def attach(self, topic: TopicName) -> bool:
        """A client comes for a topic; whether it is served."""
        if not self.ownership.owns(topic) and not await self.ownership.is_coming(topic):
            return False
        await asyncio.sleep(self.run.rng.choice(SLOW))
        if not self.is_alive or not self.ownership.owns(topic):
            return False
        self.open.add(topic)
        return True

    async def close_topics(self, bundle: str) -> None:
        await asyncio.sleep(self.run.rng.choice((0.0, 0.1, 2.0)))
        if self.run.is_faulty and self.run.rng.random() < 0.1:
            raise BrokerError("a topic cannot be closed")
        self.open = {topic for topic in self.open if self.run.bundles.bundle_of(topic) != bundle}

    async def unload(self, bundle: str) -> None:
        self.closing[bundle] += 1
        try:
            await self.ownership.keeper.unload(bundle, lambda: self.close_topics(bundle))
        finally:
            self.closing[bundle] -= 1


class Run:
    def __init__(self, seed: int, clock: VirtualClock) -> None:
        self.rng = random.Random(seed)
        self.clock = clock
        self.root = MemoryStore(clock)
        self.bundles = Bundles.equal(self.rng.choice((1, 2, 4)))
        self.session_s = self.rng.choice((2.0, 6.0, 30.0))
        self.slowness = self.rng.choice((0.1, 1.0, 2.0))
        self.failing = self.rng.choice((0.0, 0.02, 0.1))
        self.stops_when_expired = self.rng.random() < 0.3
        self.is_faulty = True
        self.processes: list[Process] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.counts: Counter[str] = Counter()
        self.problems: list[str] = []
        self.numbers = 0

    # What brokers meet

    def fails(self) -> bool:
        return self.is_faulty and self.rng.random() < self.failing

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def on_removed(self, by: Remote, node: Node) -> None:
        """Rule 3."""
        if not node.path.startswith(NAMESPACE) or not node.value:
            return
        url = decode_owner(node.value, node.path)[0].native_url
        for process in self.alive:
            if process.address.native_url == url and process.store is not by and node.path[len(NAMESPACE) + 1 :] in (
                process.ownership.owned_bundles
            ):  # fmt: skip
                self.count("taken for a former node")
                if not any(one.number == self._number_of(by) for one in self.processes if not one.is_alive):
                    self.problems.append(f"{node.path} of {process} was removed by another one")

    def _number_of(self, store: Remote) -> int:
        return next(process.number for process in self.processes if process.store is store)

    async def sign(self, broker: BrokerAddress) -> Sign:
        """As `Prober`."""
        await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.1)))
        process = self.at(broker)
        if process is None:
            return Sign.REFUSES
        if process.hangs:
            await asyncio.sleep(2.0)
        return Sign.HANGS if process.hangs else Sign.ANSWERS

    async def is_gone(self, broker: BrokerAddress) -> bool:
        return self.at(broker) is None

    def forget(self, broker: BrokerAddress) -> None:
        """Nothing is kept."""

    # The world

    @property
    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive]

    def at(self, address: BrokerAddress) -> Process | None:
        return next((one for one in self.alive if one.address.native_url == address.native_url), None)

    def spawn(self, work: Coroutine[Any, Any, None], at: Process | None = None) -> None:
        """Beside the rest; it ends with the process *at*."""
        task = asyncio.get_running_loop().create_task(work)
        for tasks in (self.tasks, *([] if at is None else [at.tasks])):
            tasks[task] = None
            task.add_done_callback(partial(tasks.pop))
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.problems.append("".join(traceback.format_exception(error)))

    def start(self, number: int | None = None) -> None:
        if number is None:
            self.numbers += 1
            number = self.numbers
        process = Process(self, number)
        self.processes.append(process)
        self.spawn(self._start(process), process)

    async def _start(self, process: Process) -> None:
        while True:
            try:
                return await process.ownership.start(process.id, process.address)
            except MetadataError:
                await asyncio.sleep(0.5)

    async def run(self) -> None:
        for _ in range(self.rng.choice((2, 3, 4))):
            self.start()
        for _ in range(STEPS):
            self.act()
            for _ in range(self.rng.randint(1, 6)):
                await asyncio.sleep(self.rng.choice((0.0, 0.001, 0.05, 0.5)))
                self.check()
        await self.heal()
        await self.check_quiet()

    def act(self) -> None:
        what = self.rng.choices(
            [self.look_up, self.unload, self.move, self.take, self.split, self.kill, self.cut, self.hang, self.leave],
            [30, 6, 6, 3, 3, 2, 4, 2, 1],
        )[0]
        what()

    # What happens

    def look_up(self) -> None:
        for topic in self.rng.sample(TOPICS, self.rng.choice((1, 3, len(TOPICS)))):
            self.spawn(self.client(topic))

    async def client(self, topic: TopicName) -> None:
        at = self.rng.choice(self.alive)
        began_s = self.clock.monotonic()
        owner = await self.found(topic, at)
        took_s = self.clock.monotonic() - began_s
        if took_s > 10 * WAIT_S:
            self.problems.append(f"rule 4: the lookup of {topic} took {took_s} s")
        with contextlib.suppress(BrokerError, MetadataError, Corruption):
            if owner is not None and await owner.attach(topic):
                self.count("served")

    async def found(self, topic: TopicName, at: Process) -> Process | None:
        """Where a client ends that asks *at*; None: it is refused."""
        authoritative = False
        for _ in range(10):
            asking = asyncio.ensure_future(at.ownership.locate(topic, authoritative=authoritative))
            try:
                done, _ = await asyncio.wait([asking], timeout=4 * WAIT_S)
                if not done:
                    if at.is_alive:
                        self.problems.append(f"rule 4: a lookup of {topic} at {at} does not end")
                    return None
                answer: Located = asking.result()
            except (BrokerError, MetadataError, Corruption) as error:
                self.count(f"refused: {type(error).__name__}")
                return None
            finally:
                asking.cancel()
            if not at.is_alive:
                return None
            if answer.here:
                return at
            assert answer.broker is not None
            following = self.at(answer.broker)
            if following is None:
                self.count("sent to the dead")
                return None
            at, authoritative = following, answer.authoritative
            if not answer.redirect:
                return at
        self.count("circle")
        return None

    def _owned(self) -> tuple[Process, str] | None:
        every = [(process, bundle) for process in self.alive for bundle in process.ownership.owned_bundles]
        return self.rng.choice(every) if every else None

    def unload(self) -> None:
        if (drawn := self._owned()) is not None:
            self.spawn(self._unload(*drawn), drawn[0])

    async def _unload(self, process: Process, bundle: str) -> None:
        self.count("unloads")
        with contextlib.suppress(BrokerError, MetadataError, Corruption):
            await process.unload(bundle)

    def move(self) -> None:
        if (drawn := self._owned()) is not None:
            self.spawn(self._move(*drawn, self.rng.choice(self.alive)), drawn[0])

    async def _move(self, process: Process, bundle: str, destination: Process) -> None:
        topic = next((topic for topic in TOPICS if self.bundles.bundle_of(topic) == bundle), None)
        if topic is None or destination is process:
            return
        self.count("moves")
        self.spawn(self._ask(destination, topic), destination)
        with process.ownership.promised(bundle, destination.address):
            await self._unload(process, bundle)
            self.spawn(self._ask(destination, topic), destination)
            await asyncio.sleep(self.rng.choice(SLOW))

    async def _ask(self, process: Process, topic: TopicName) -> None:
        with contextlib.suppress(BrokerError, MetadataError, Corruption):
            await process.ownership.locate(topic, authoritative=True)

    def take(self) -> None:
        bundle = self.rng.choice([f"{SPACE}/{text}" for text in self.bundles.ranges])
        process = self.rng.choice(self.alive)
        self.spawn(self._take(process, bundle), process)

    async def _take(self, process: Process, bundle: str) -> None:
        with contextlib.suppress(BrokerError, MetadataError, Corruption):
            if await process.ownership.finder.would_take(bundle):
                await process.ownership.finder.take_when_free(bundle, self.rng.choice((0.0, 5.0)))

    def split(self) -> None:
        if len(self.bundles.ranges) < 8 and (drawn := self._owned()) is not None:
            self.spawn(self._split(*drawn), drawn[0])

    async def _split(self, process: Process, bundle: str) -> None:
        before = self.bundles
        text = bundle.rpartition("/")[2]
        if text not in before.ranges:
            return
        low, _, high = text.partition("_")
        after = before.cut([(int(low, 16) + int(high, 16)) // 2])

        async def store() -> None:
            await asyncio.sleep(self.rng.choice(SLOW))
            if self.fails():
                raise StoreUnavailable("the namespace's record")
            if self.bundles is not before:
                raise BrokerError("it was cut by another one")
            self.cut_bundles(after)
            process.known = after
            if self.fails():
                raise OutcomeUnknown("the namespace's record")

        with contextlib.suppress(BrokerError, MetadataError, Corruption):
            await process.ownership.keeper.split(bundle, after, store)
            self.count("splits")

    def cut_bundles(self, after: Bundles) -> None:
        """Brokers have a watch on the namespace, and read it anew."""
        self.bundles = after
        for process in self.alive:

            def hear(process: Process = process) -> None:
                process.known = self.bundles

            asyncio.get_running_loop().call_later(self.rng.choice(SLOW) * self.slowness, hear)

    def kill(self) -> None:
        process = self.rng.choice(self.alive)
        if len(self.alive) > 1:
            process.kill()
            again = process.number if self.rng.random() < 0.6 else None
            self.start(again)

    def cut(self) -> None:
        self.spawn(self._cut(self.rng.choice(self.alive)))

    async def _cut(self, process: Process) -> None:
        if process.store.is_cut:
            return
        process.store.is_cut = True
        process.store.inner.suspend()
        self.count("cut off")
        if self.rng.random() < 0.5:
            await asyncio.sleep(self.rng.uniform(0, self.session_s / 2))
        else:  # the store ends the session, of which the broker does not hear yet
            await asyncio.sleep(self.session_s)
            for path in await self._nodes_of(process):
                await self.root.delete(path)
            await asyncio.sleep(self.rng.choice((0.0, 1.0, 10.0)))
            if process.is_alive:
                process.store.sessions += 1
                process.store.inner.expire()
                self.count("sessions ended")
        process.store.inner.resume()
        process.store.is_cut = False

    async def _nodes_of(self, process: Process) -> list[str]:
        """Its ephemeral nodes."""
        process.store.inner.resume()
        every = [f"{NAMESPACE}/{SPACE}/{name}" for name in await self.root.children(f"{NAMESPACE}/{SPACE}")]
        every += ["/loadbalance/leader", f"/loadbalance/brokers/{process.id}"]
        nodes = [await process.store.inner.get(path) for path in every] if process.is_alive else []
        process.store.inner.suspend()
        return [node.path for node in nodes if node is not None and node.own]

    def hang(self) -> None:
        self.spawn(self._hang(self.rng.choice(self.alive)))

    async def _hang(self, process: Process) -> None:
        process.hangs = True
        await asyncio.sleep(self.rng.choice((1.0, 10.0)))
        process.hangs = False

    def leave(self) -> None:
        process = self.rng.choice(self.alive)
        if len(self.alive) > 1 and not process.has_left:
            process.has_left = True
            self.spawn(self._leave(process), process)
            self.start()

    async def _leave(self, process: Process) -> None:
        with contextlib.suppress(MetadataError):
            await process.ownership.leave()
        for bundle in process.ownership.owned_bundles:
            await self._unload(process, bundle)
        process.is_alive = False  # its ports are closed
        process.open.clear()
        await process.ownership.stop()
        process.kill()
        self.count("left")

    # What must hold

    def check(self) -> None:
        now_s = self.clock.monotonic()
        for process in self.alive:
            owned = set(process.ownership.owned_bundles)
            for topic in process.open:
                bundle = process.ownership.bundle_of(topic)
                has = BundleSet(owned).has(topic) or process.ownership.owns(topic)
                if not has and not process.closing[bundle or ""]:
                    self.problems.append(f"rule 1: {topic} is open at {process}, which does not have {bundle}")
            doubtful: dict[str, float] = {}
            if not process.store.is_cut:
                for bundle in owned:
                    record = process.store.inner._tree.records.get(f"{NAMESPACE}/{bundle}")
                    if record is None or record.owner != process.store.inner._number:
                        since_s = doubtful[bundle] = process.doubtful_since.get(bundle, now_s)
                        if now_s - since_s > NOTICE_S * max(self.slowness, 1):
                            self.problems.append(f"rule 2: {process} has {bundle} without its node")
            process.doubtful_since = doubtful
        assert not self.problems, self.problems

    async def heal(self) -> None:
        self.is_faulty = False
        for _ in range(120):
            await asyncio.sleep(1.0)
            self.check()

    async def check_quiet(self) -> None:
        assert not self.tasks, self.tasks
        assert self.alive
        for topic in TOPICS:
            owners = [await self.found(topic, process) for process in self.alive]
            assert owners.count(owners[0]) == len(owners), f"rule 5: {topic} is served by {owners}"
            owner = owners[0]
            assert owner is not None, f"rule 5: nobody serves {topic}"
            assert owner.ownership.owns(topic), f"rule 5: {owner} does not serve {topic}"
        ranges = {f"{SPACE}/{text}" for text in self.bundles.ranges}
        nodes = {f"{SPACE}/{name}" for name in await self.root.children(f"{NAMESPACE}/{SPACE}")}
        owned = [bundle for process in self.alive for bundle in process.ownership.owned_bundles]
        assert sorted(owned) == sorted(nodes), f"rule 6: {owned} are owned, {nodes} have nodes"
        assert set(owned) <= ranges, f"rule 6: {owned} of {ranges}"
        self.check()
        for process in self.alive:
            assert not process.ownership.under_way, f"rule 7: {process}: {process.ownership.under_way}"


@pytest.mark.parametrize("seed", SEEDS)
def test_each_bundle_has_one_broker_whatever_fails(seed: int) -> None:
    async def main(clock: VirtualClock) -> Counter[str]:
        run = Run(seed, clock)
        await run.run()
        return run.counts

    counts = run_virtually(main)
    if "SEED" in os.environ:
        print(counts)
