"""A simulated cluster for the tests of applications that use `magnetar.AsyncClient`."""

import asyncio
import contextlib
import random
import secrets
import uuid
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar
from unittest import mock

import aiohappyeyeballs

from autorecovery.config import AutoRecoveryConfig
from broker import broker
from broker.settings.config import BrokerConfig
from broker.transfer import load_manager
from magnetar.client.retries import letters
from magnetar.testing.simulated.cluster import Machine, SimulatedCluster
from magnetar.testing.simulated.faults import Faults
from magnetar.testing.simulated.loop import LateTask, Process, bury
from magnetar.testing.simulated.network import NetworkLoop, start_connection
from magnetar_core.topics.topic_name import TopicName

T = TypeVar("T")

# What each broker uses: brokers choose owners, and write reports, by what they use. The real process, its machine and
# its other work would make a seed another life each time.
CPU_SHARE: Final = 0.1
RESIDENT_BYTES: Final = 256 << 20
MEMORY_BYTES: Final = 4 << 30

# As `magnetar cluster up`.
SESSION_S: Final = 2.0


@contextlib.contextmanager
def drawn_from(seed: int) -> Iterator[None]:
    """Whatever is random inside is drawn from *seed*, HTTP between brokers goes over the simulated network, and nothing
    depends on what the real process uses, on the memory of its machine, or on Python's version."""
    drawn = random.Random(seed)
    before = random.getstate()

    class Drawn(random.Random):
        def __init__(self, x: Any = None) -> None:
            super().__init__(drawn.getrandbits(64) if x is None else x)

    def token_bytes(nbytes: int | None = None) -> bytes:
        return drawn.randbytes(nbytes or 16)

    def uuid4() -> uuid.UUID:
        return uuid.UUID(bytes=drawn.randbytes(16))

    def cpu_seconds() -> float:
        return asyncio.get_running_loop().time() * CPU_SHARE

    with (
        mock.patch.object(random, "Random", Drawn),
        mock.patch.object(random, "SystemRandom", Drawn),
        mock.patch.object(secrets, "token_bytes", token_bytes),
        mock.patch.object(secrets, "token_hex", lambda nbytes=None: token_bytes(nbytes).hex()),
        mock.patch.object(uuid, "uuid4", uuid4),
        mock.patch.object(aiohappyeyeballs, "start_connection", start_connection),
        mock.patch.object(asyncio, "Task", LateTask),
        mock.patch.object(load_manager, "cpu_seconds", cpu_seconds),
        mock.patch.object(load_manager, "resident_bytes", return_value=RESIDENT_BYTES),
        mock.patch.object(load_manager, "memory_bytes", return_value=MEMORY_BYTES),
        mock.patch.object(broker, "memory_bytes", return_value=MEMORY_BYTES),
    ):
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before)


class SimulatedClusterUnderTest:
    """Bookies with auto-recovery and brokers under virtual time. Made by `magnetar.testing.simulated_cluster`.

    Machines are called broker-1, broker-2, …, bookie-1, … The coroutine that `run` is given may cause faults by the
    methods here, wait with `asyncio.sleep`, and use `magnetar.AsyncClient` with the addresses in `grpc_url`.
    """

    def __init__(self, seed: int, bookies: int, brokers: int) -> None:
        self.story: list[str] = []
        """What happened to the machines, with the second at which it happened."""
        self._seed = seed
        self._loop = NetworkLoop()
        rng = random.Random(seed)
        self._cluster = SimulatedCluster(self._loop, rng, session_s=SESSION_S)
        for _ in range(bookies):
            self._cluster.add_bookie(recovery=AutoRecoveryConfig())
        copies = min(bookies, 2)
        config = BrokerConfig(ensemble_size=copies, write_quorum=copies, ack_quorum=copies)
        for _ in range(brokers):
            self._cluster.add_broker(config)
        self._faults = Faults(self._cluster, rng, self._note)
        self._application = Process("application")

    @property
    def grpc_url(self) -> str:
        """The addresses for `magnetar.AsyncClient`."""
        return ",".join(machine.grpc_address for machine in self._cluster.brokers)

    @property
    def brokers(self) -> list[str]:
        return [machine.name for machine in self._cluster.brokers]

    @property
    def bookies(self) -> list[str]:
        return [machine.name for machine in self._cluster.bookies]

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Start the cluster, run *main* to its end, stop everything; returns what *main* returns. Once only.

        Raises what *main* raises. The servers always have something to do: a *main* that waits for ever never ends, so
        it needs limits of its own (`asyncio.timeout`).
        """
        assert not self._loop.is_closed(), "a simulated cluster runs once: make another one"
        # A failed message comes again at a time of the wall clock, which is virtual for the brokers.
        with drawn_from(self._seed), mock.patch.object(letters, "LoopClock", return_value=self._cluster.clock):
            try:
                return self._loop.run_until_complete(self._run(main))
            finally:
                self._loop.run_until_complete(self._end())
                self._loop.close()

    async def _run(self, main: Coroutine[Any, Any, T]) -> T:
        await self._cluster.start()
        self._cluster.network.add(self._application)
        return await self._application.run(main)

    async def _end(self) -> None:
        machines = [machine for machine in self._cluster.machines if machine.process is not None]
        for machine in machines:
            machine.running.kill()
        self._cluster.network.close()
        self._loop.set_exception_handler(lambda *_: None)  # that they are cancelled is no news
        await bury([*(process for machine in machines for process in machine.processes), self._application])

    def _note(self, text: str) -> None:
        self.story.append(f"{self._loop.time():.3f} s: {text}")

    def _machine(self, name: str) -> Machine:
        known = {machine.name: machine for machine in self._cluster.machines}
        if name not in known:
            raise ValueError(f"there is no {name}; there are {', '.join(known)}")
        return known[name]

    def owner(self, topic: str) -> str | None:
        """The broker that serves *topic*; None while nobody does."""
        name = TopicName.parse(topic)
        serving = (
            machine.name
            for machine in self._cluster.brokers
            if machine.is_up and machine.broker is not None and name in machine.broker.topics
        )
        return next(serving, None)

    def kill(self, name: str = "", *, serving: str = "") -> str:
        """kill -9 of a machine's process, or of the broker that serves a topic; returns its name."""
        name = name or (self.owner(serving) or "")
        self._machine(name).kill()
        self._note(f"{name} is killed")
        return name

    async def restart(self, name: str) -> None:
        """Start it (again); returns when it serves."""
        machine = self._machine(name)
        if machine.is_up:
            machine.kill()
        await machine.start()
        self._note(f"{name} is up")

    def pause(self, name: str) -> None:
        """It stands still, as by SIGSTOP."""
        self._machine(name).running.freeze()
        self._note(f"{name} stands still")

    def resume(self, name: str) -> None:
        self._machine(name).running.thaw()
        self._note(f"{name} goes on")

    def cut(self, name: str, other: str) -> None:
        """Nothing that *name* sends arrives at *other*; `metadata` and `application` are names, too."""
        self._cluster.network.cut(name, other)
        self._note(f"the way from {name} to {other} is cut")

    def mend(self) -> None:
        """All ways are open again."""
        self._cluster.network.mend()
        self._note("all ways are open")

    async def trouble(self, for_s: float) -> None:
        """Let drawn things happen to machines, disks, network and metadata for so many seconds, and make the cluster
        whole again. Nothing that is acknowledged is lost by it. `story` has what happened."""
        await self._faults.happen(for_s)
        await self._faults.heal()
