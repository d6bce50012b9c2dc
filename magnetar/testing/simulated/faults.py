"""What may happen to a simulated cluster, drawn from a seed: machines, disks, network, metadata server, operators.

`Faults.happen` lets drawn events happen for a while, `Faults.heal` ends them and starts what is down. Rules:

1. Two bookies at most are away at a time, and only one may lack copies: nothing that was acknowledged is lost by this.
2. Each event has an end by itself: what is away comes back, what is cut is mended, what stands still goes on.
3. Whatever happens is noted, with its time.
"""

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership
from broker.ownership.rules import BrokerAddress
from broker.ownership.splitting import RANGE
from broker.transfer.bundles import BundleWork
from magnetar.testing.simulated.cluster import (
    BOOKIE_PORT,
    ROOT,
    BookieMachine,
    BrokerMachine,
    Machine,
    SimulatedCluster,
)
from magnetar.testing.simulated.loop import PROCESS
from magnetar.testing.simulated.metadata import SERVER
from magnetar_core.bookkeeper.metadata.bookies.bookie_states import BookieStates, VersionedState
from magnetar_core.bookkeeper.metadata.bookies.lifecycle import Actor, State
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import LedgerStore
from magnetar_core.bookkeeper.metadata.marks.board import MarkBoard
from magnetar_core.bookkeeper.metadata.stores.store import VersionConflict
from magnetar_core.runtime.types import MagnetarError

M = TypeVar("M", bound=Machine)

# How long something is away, or goes wrong.
AWAY_S: Final = (0.2, 1.0, 5.0, 15.0)

# Machines are up again after the faults within this.
UP_S: Final = 60.0

# Auto-recovery has copied what a bookie had that is gone within this: it lets open ledgers have 30 s.
REPLACED_S: Final = 300.0

BOOKIES_AWAY_MAX: Final = 2


class _Nobody:
    """Other brokers, which are not asked."""

    def web_url(self, owner: BrokerAddress) -> str:
        raise AssertionError("bundles that are split are not handed over")

    async def try_ask(self, method: str, url: str, about: str) -> bool:
        raise AssertionError("bundles that are split are not handed over")


class NotUp(MagnetarError):
    """A machine does not come up after the faults."""


async def unrepaired(cluster: SimulatedCluster) -> str:
    """Which ledgers auto-recovery still has to copy, in words; empty where all have their copies."""
    board = MarkBoard(cluster.server.root, ROOT)
    marked = [ledger_id async for ledger_id in board.marked()]
    if marked:
        return f"ledgers {marked[:5]} are marked as ones that lack copies"
    locked = sorted(await board.locked())
    return f"ledgers {locked[:5]} are locked for a repair" if locked else ""


class Faults:
    """The events of one cluster."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        rng: random.Random,
        note: Callable[[str], None],
        *,
        leave_out: frozenset[int] = frozenset(),
    ) -> None:
        """*note* is called with what happens. *leave_out*: numbers of events that do not happen; what the others draw
        is the same without them."""
        self._cluster = cluster
        self._rng = rng
        self._seed = rng.getrandbits(64)
        self._loop = cluster.loop
        self._tell = note
        self._leave_out = leave_out
        self.count = 0
        """Events so far, with those that were left out."""
        self._number = 0
        """Of the event that happens now, until something of it was noted."""
        self._busy: set[str] = set()
        """Machines to which something is happening."""
        self._is_rebuilding = False
        self._is_draining = False
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.is_on = False
        """Whether events happen now."""
        self.events: list[Callable[[], None]] = [
            self.kill_broker, self.kill_bookie, self.cut_power, self.freeze, self.stop_broker, self.cut_way,
            self.break_connections, self.break_metadata, self.metadata_stands_still, self.unload, self.break_disk,
            self.fill_disk, self.slow_disk, self.new_disk, self.split, self.drain,
        ]  # fmt: skip
        """What may happen; callers may add to it, or take away."""
        self._work_rng = random.Random(rng.getrandbits(64))
        self._work_s = rng.choice((0.0002, 0.001, 0.01))
        self._slow_hosts: set[str] = set()
        cluster.loop.work_delay_s = self._work_delay_s

    def _work_delay_s(self, name: str) -> float:
        times = self._work_rng.choice((1, 1, 1, 5, 30)) if self.is_on else 1
        process = PROCESS.get(None)
        if process is not None and process.host in self._slow_hosts:
            times *= 50
        return min(self._work_s * times, 2.0)

    async def happen(self, for_s: float) -> None:
        """Let a few drawn kinds of events happen for so long."""
        rng = random.Random(f"{self._seed}/{self.count}")
        self.is_on = True
        end_s = self._loop.time() + for_s
        chosen = rng.sample(self.events, rng.randint(2, min(8, len(self.events))))
        self._cluster.server.breaks_share = rng.choice((0.0, 0.0, 0.001, 0.01))
        pause_s = rng.choice((0.5, 2.0, 6.0))
        await asyncio.sleep(rng.uniform(0.1, 0.6) * pause_s)
        while self._loop.time() < end_s:
            self.count += 1
            event = rng.choice(chosen)
            self._rng = random.Random(f"{self._seed}/event {self.count}")
            if self.count not in self._leave_out:
                self._number = self.count
                event()
                self._number = 0
            await asyncio.sleep(rng.expovariate(1 / pause_s))

    def _note(self, text: str) -> None:
        number, self._number = self._number, 0
        self._tell(f"{number}. {text}" if number else text)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # Of no process: it goes on, whoever dies.
        task = self._loop.create_task(work, context=self._cluster.network.context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    def _run_later(self, delay_s: float, work: Callable[[], Any]) -> None:
        self._loop.call_later(delay_s, work, context=self._cluster.network.context)

    def _restart(self, machine: Machine, after_s: float) -> None:
        async def restart() -> None:
            try:
                await machine.start()
                self._note(f"{machine} is up again")
                self._busy.discard(machine.name)
            except MagnetarError as error:
                self._note(f"{machine} does not start: {error}")
                self._restart(machine, 1.0)

        self._run_later(after_s, lambda: self._spawn(restart()))

    def _free_machine(self, machines: list[M]) -> M | None:
        free = [machine for machine in machines if machine.is_up and machine.name not in self._busy]
        if not free:
            return None
        return self._rng.choice(free)

    def _bookie(self) -> BookieMachine | None:
        """One that may go: not so many are away that no ledger can be written for long."""
        if sum(machine.name in self._busy for machine in self._cluster.bookies) >= BOOKIES_AWAY_MAX:
            return None
        return self._free_machine(self._cluster.bookies)

    def _broker(self) -> BrokerMachine | None:
        return self._free_machine(self._cluster.brokers)

    def _absence_s(self) -> float:
        return self._rng.choice(AWAY_S)

    def kill_broker(self) -> None:
        self._kill(self._broker())

    def kill_bookie(self) -> None:
        self._kill(self._bookie())

    def _kill(self, machine: Machine | None) -> None:
        if machine is not None:
            self._busy.add(machine.name)
            away_s = self._absence_s()
            self._note(f"{machine} is killed for {away_s} s")
            machine.kill()
            self._restart(machine, away_s)

    def stop_broker(self) -> None:
        machine = self._broker()
        if machine is not None:
            self._busy.add(machine.name)
            self._note(f"{machine} is stopped")

            async def stop() -> None:
                await machine.stop()
                self._note(f"{machine} has stopped")
                self._restart(machine, 0.5)

            self._spawn(stop())

    def cut_power(self) -> None:
        machine = self._bookie()
        if machine is not None:
            self._busy.add(machine.name)
            away_s, unsynced = self._absence_s(), self._rng.choice((0.0, 0.3, 0.9))
            self._note(f"{machine} loses its power for {away_s} s, {unsynced} of what was not synced is there")
            machine.cut_power(unsynced)
            self._restart(machine, away_s)

    def freeze(self) -> None:
        machine: Machine | None = self._bookie() if self._rng.random() < 0.5 else self._broker()
        if machine is None:
            return
        self._busy.add(machine.name)
        for_s = self._absence_s()
        self._note(f"{machine} stands still for {for_s} s")
        process = machine.running
        process.freeze()

        def thaw() -> None:
            self._note(f"{machine} goes on")
            process.thaw()
            self._busy.discard(machine.name)

        self._run_later(for_s, thaw)

    def cut_way(self) -> None:
        hosts = [machine.name for machine in self._cluster.machines] + [SERVER]
        source, target = self._rng.sample(hosts, 2)
        both = self._rng.random() < 0.5
        for_s = self._absence_s()
        self._note(f"the way from {source} to {target} is cut{' in both directions' if both else ''} for {for_s} s")
        self._cluster.network.cut(source, target)
        if both:
            self._cluster.network.cut(target, source)

        def mend() -> None:
            self._note("the ways are mended")
            self._cluster.network.mend()

        self._run_later(for_s, mend)

    def break_connections(self) -> None:
        wires = list(self._cluster.network.wires)
        for wire_ in self._rng.sample(wires, min(len(wires), self._rng.choice((1, 3, 100)))):
            wire_.break_()
        self._note("connections break")

    def break_metadata(self) -> None:
        self._note("the metadata server closes its connections")
        self._cluster.server.break_connections()

    def metadata_stands_still(self) -> None:
        for_s = self._rng.choice((0.5, 3.0, 20.0))
        self._note(f"the metadata server stands still for {for_s} s")
        self._cluster.server.stand_still()
        self._run_later(for_s, self._cluster.server.go_on)

    def break_disk(self) -> None:
        """A write or sync fails once, and the bookie gives up."""
        machine = self._bookie()
        if machine is None:
            return
        self._busy.add(machine.name)
        kind, left = self._rng.choice(("write", "sync", "create")), self._rng.randint(1, 20)
        self._note(f"the disk of {machine} fails at the {left}. {kind}")

        def fail(what: str, path: str) -> None:
            nonlocal left
            left -= what == kind
            if not left:
                raise OSError(errno.EIO, "a sector is broken", path)

        hooks = machine.files.on_operation
        hooks.append(fail)

        def after() -> None:
            hooks.clear()
            if machine.is_up:
                self._busy.discard(machine.name)
            else:
                self._restart(machine, 0.5)

        self._run_later(self._absence_s(), after)

    def fill_disk(self) -> None:
        machine = self._bookie()
        if machine is None:
            return
        self._busy.add(machine.name)
        files = machine.files
        self._note(f"the disk of {machine} is full")
        files.capacity_bytes = files.used_bytes + self._rng.choice((0, 10_000))

        def after() -> None:
            files.capacity_bytes = None
            self._note(f"the disk of {machine} has room again")
            if machine.is_up:
                self._busy.discard(machine.name)
            else:
                self._restart(machine, 0.5)

        self._run_later(self._absence_s(), after)

    def slow_disk(self) -> None:
        machine = self._bookie()
        if machine is not None:
            self._note(f"the disk of {machine} is slow")
            self._slow_hosts.add(machine.name)
            self._run_later(self._absence_s(), lambda: self._slow_hosts.discard(machine.name))

    def new_disk(self) -> None:
        """A bookie's disk is replaced by an empty one, where all others have what they should have."""
        machine = self._bookie()
        if machine is None or self._busy or self._is_rebuilding:
            return
        self._is_rebuilding = True
        self._busy.add(machine.name)
        self._note(f"{machine} gets an empty disk")
        machine.kill()
        machine.wipe()
        machine.config = replace(machine.config, data_integrity=True)
        self._restart(machine, self._absence_s())
        self._spawn(self._wait_until_rebuilt(machine))

    async def replace(self, machine: BookieMachine) -> None:
        """*machine* is gone for good, and a fresh bookie comes to its address. Raises NotUp.

        The fresh one knows of no fence and would take entries of a writer that was fenced, so it comes when no ledger
        names the former any more.
        """
        end_s = self._loop.time() + REPLACED_S
        while self._is_rebuilding:  # only one bookie at a time may lack copies
            if self._loop.time() > end_s:
                self._note(f"{machine} stays: another bookie still lacks copies")
                return
            await self._cluster.clock.sleep(1.0)
        self._note(f"{machine} is gone for good")
        machine.kill()
        end_s = self._loop.time() + REPLACED_S
        while await self._ledgers_of(machine) or await unrepaired(self._cluster):
            if self._loop.time() > end_s:
                raise NotUp(
                    f"ledgers {await self._ledgers_of(machine)} still name {machine}; {await unrepaired(self._cluster)}"
                )
            await self._cluster.clock.sleep(1.0)
        machine.wipe()
        root = self._cluster.server.root
        await root.delete(f"{ROOT}/cookies/{machine.name}:{BOOKIE_PORT}")
        await machine.start()
        self._note(f"a fresh {machine} has come")

    async def _ledgers_of(self, machine: BookieMachine) -> list[int]:
        """The ledgers that name this bookie."""
        ledgers = LedgerStore(self._cluster.server.root, ROOT)
        named = []
        async for ledger_id in ledgers.list():
            metadata = (await ledgers.read(ledger_id)).metadata
            if f"{machine.name}:{BOOKIE_PORT}" in metadata.bookies():
                named.append(ledger_id)
        return named

    async def _wait_until_rebuilt(self, machine: BookieMachine) -> None:
        """Only one bookie at a time may lack copies."""
        while machine.name in self._busy or await self._lacks_copies(machine):
            await self._cluster.clock.sleep(1.0)
        self._note(f"{machine} has its copies again")
        self._is_rebuilding = False

    async def _lacks_copies(self, machine: BookieMachine) -> bool:
        if not machine.is_up or machine.bookie is None:
            return True
        return machine.bookie.parts.integrity.status().is_needed or bool(await unrepaired(self._cluster))

    def unload(self) -> None:
        machine = self._broker()
        if machine is None or machine.broker is None:
            return
        owned = sorted(machine.owned_bundles)
        if owned:
            bundle = self._rng.choice(owned)
            self._note(f"{machine} unloads {bundle}")
            machine.running.run(self._unload(machine.broker, bundle))

    def split(self) -> None:
        """A bundle is split; its parts stay, or are given back."""
        machine = self._broker()
        if machine is None or machine.broker is None or not machine.owned_bundles:
            return
        bundle, unload = self._rng.choice(machine.owned_bundles), self._rng.random() < 0.5
        self._note(f"{machine} splits {bundle}{', and gives its parts back' if unload else ''}")
        machine.running.run(self._split(machine.broker, bundle, unload=unload))

    async def _split(self, broker: Broker, bundle: str, *, unload: bool) -> None:
        assert isinstance(broker.ownership, BundleOwnership)
        try:
            await BundleWork(broker, broker.ownership, _Nobody()).split(bundle, RANGE, unload=unload)
        except MagnetarError as error:
            self._note(f"split of {bundle}: {error}")

    def drain(self) -> None:
        """A bookie is drained; if that ends before the faults do, a fresh one comes in its place."""
        machine = self._bookie()
        if machine is None or self._is_rebuilding:
            return
        self._is_rebuilding = True
        self._note(f"{machine} is to be drained")
        self._spawn(self._drain(machine))

    async def _drain(self, machine: BookieMachine) -> None:
        states, bookie_id = BookieStates(self._cluster.server.root, ROOT), f"{machine.name}:{BOOKIE_PORT}"
        self._is_draining = True
        await self._move(states, bookie_id, State.DRAINING)
        while True:
            state = await states.read(bookie_id)
            if state.lifecycle.state is State.DRAINED:
                break
            if not self.is_on and await self._move(states, bookie_id, State.ACTIVE, state):
                self._note(f"{machine} stays: it is {state.lifecycle.state}, {state.lifecycle.reasons[:3]}")
                self._is_draining = self._is_rebuilding = False
                return
            await self._cluster.clock.sleep(1.0)
        while machine.name in self._busy or not machine.is_up:
            await self._cluster.clock.sleep(0.5)
        self._busy.add(machine.name)
        self._note(f"{machine} is drained, and a fresh one comes")
        machine.kill()
        machine.wipe()
        await states.remove(bookie_id, state, "faults", self._cluster.clock.wall_ms())
        self._restart(machine, 0.5)
        self._is_draining = self._is_rebuilding = False

    async def _move(
        self, states: BookieStates, bookie_id: str, to: State, expected: VersionedState | None = None
    ) -> bool:
        """Whether it is moved; others may have moved it meanwhile."""
        now_ms = self._cluster.clock.wall_ms()
        try:
            await states.move(bookie_id, to, Actor.OPERATOR, "faults", "so it is drawn", now_ms, expected=expected)
        except VersionConflict:
            return False
        return True

    async def _unload(self, broker: Broker, bundle: str) -> None:
        assert isinstance(broker.ownership, BundleOwnership)
        try:
            await broker.ownership.keeper.unload(bundle, lambda: broker.opening.unload_bundle(bundle))
        except MagnetarError as error:
            self._note(f"unload of {bundle}: {error}")

    async def heal(self) -> None:
        """End all faults; returns when all machines are up. Raises NotUp."""
        self.is_on = False
        self._note("the faults end")
        self._cluster.server.breaks_share = 0.0
        self._cluster.server.go_on()
        self._cluster.network.mend()
        deadline_s = self._loop.time() + UP_S
        while self._is_draining or any(
            not machine.is_up or machine.name in self._busy for machine in self._cluster.machines
        ):
            for machine in self._cluster.machines:
                if not machine.is_up and machine.name not in self._busy:
                    self._note(f"{machine} had given up: {machine.failures[-1:]}")
                    self._busy.add(machine.name)
                    self._restart(machine, 0.1)
            if self._loop.time() > deadline_s:
                away = [str(machine) for machine in self._cluster.machines if not machine.is_up]
                raise NotUp(f"not all machines are up: {away}; under way: {sorted(self._busy)}")
            await asyncio.sleep(0.5)
        self._cluster.network.mend()
        self._note("all machines are up")
