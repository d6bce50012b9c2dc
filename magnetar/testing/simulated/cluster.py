"""The machines of a simulated cluster, each with one process: bookies (with auto-recovery), and brokers.

A machine keeps its name, its disk and its index when its process ends, and starts it anew from them:

    start ──▶ runs ──stop──▶ (orderly)                                      what a process wrote is there
                   ──kill──▶ (kill -9)                                      the same
                   ──cut_power──▶ (the same for its peers)                  what was not synced may be lost or torn
                   ──freeze──▶ stands still ──thaw──▶ goes on               as by SIGSTOP
"""

import abc
import asyncio
import random
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Final

from autorecovery.config import AutoRecoveryConfig
from bookie.bookie import Bookie
from bookie.config import BookieConfig
from bookie.storage.index import Index, MemoryIndex
from broker.broker import Broker
from broker.ownership.ownership import BundleOwnership
from broker.serving.storage import client_config
from broker.settings.config import BrokerConfig
from magnetar import __version__
from magnetar.processes.autorecovery import open_client, start_embedded
from magnetar.processes.broker import start_broker
from magnetar.testing.simulated.disk import MemoryFiles
from magnetar.testing.simulated.loop import Process, VirtualClock
from magnetar.testing.simulated.metadata import MetadataServer
from magnetar.testing.simulated.network import Network, NetworkLoop
from magnetar.testing.simulated.rpc import SimulatedServer
from magnetar_core.bookkeeper.client.client import BookKeeper
from magnetar_core.bookkeeper.metadata.ledgers.ledger_store import initialise_cluster
from magnetar_core.runtime.tasks import Parts

ROOT: Final = "/ledgers"
BOOKIE_PORT: Final = 3181
BROKER_PORT: Final = 6650
GRPC_PORT: Final = 6648
WEB_PORT: Final = 8080

BOOKIE: Final = BookieConfig(
    port=BOOKIE_PORT,
    listen_address="0.0.0.0",
    journal_directories=("/bookie/journal",),
    ledger_directories=("/bookie/ledgers",),
    journal_preallocation_mib=0,
    write_cache_mib=8,
    read_cache_mib=1,
    reserve_mib=0,
    readers=1,
)


class Machine(abc.ABC):
    """One machine of the cluster."""

    def __init__(self, cluster: "SimulatedCluster", name: str) -> None:
        self.cluster = cluster
        self.name = name
        rng = cluster.rng
        self.clock = VirtualClock(cluster.loop, ahead_ms=rng.randint(-5_000, 5_000), rate=rng.uniform(0.999, 1.001))
        self.process: Process | None = None
        self.processes: list[Process] = []
        """All that it had."""
        self.failures: list[BaseException] = []
        """Why its processes gave up by themselves."""
        self._parts = Parts()

    def __repr__(self) -> str:
        return self.name

    @property
    def running(self) -> Process:
        """The process of this machine, which was started."""
        assert self.process is not None, f"{self.name} was not started"
        return self.process

    @property
    def is_up(self) -> bool:
        """Whether its process runs, or stands still."""
        return self.process is not None and not self.process.is_dead

    async def start(self) -> None:
        """Start the process; returns when it serves. Raises MagnetarError; the process has ended then."""
        assert not self.is_up, f"{self.name} runs already"
        process = self.process = Process(self.name)
        self.processes.append(process)
        self._parts = Parts()
        self.cluster.network.add(process)
        try:
            await process.run(self._start(process))
        except Exception:
            if not process.is_dead:
                await process.run(self._parts.stop())
                process.kill()
            raise

    async def stop(self) -> None:
        """End the process in an orderly way."""
        process = self.running
        await process.run(self._parts.stop())
        process.kill()

    def kill(self) -> None:
        """End the process as kill -9 does."""
        self.running.kill()

    def _failed(self, error: BaseException) -> None:
        """A process that has to give up ends in an orderly way, as far as it can, as `magnetar` does."""
        self.failures.append(error)
        process = self.process
        if process is not None and not process.is_dead:
            process.run(self._end(process))

    async def _end(self, process: Process) -> None:
        await self._parts.stop()
        process.kill()

    @abc.abstractmethod
    def _start(self, process: Process) -> Coroutine[Any, Any, None]:
        """Start what runs in *process*; `_parts` learns how to stop it. Raises MagnetarError."""


class BookieMachine(Machine):
    """A bookie, with auto-recovery in its process."""

    def __init__(
        self, cluster: "SimulatedCluster", name: str, config: BookieConfig, recovery: AutoRecoveryConfig | None
    ) -> None:
        super().__init__(cluster, name)
        self.config = replace(config, advertised_address=name)
        self.recovery = recovery
        self.files = MemoryFiles()
        self.indexes: dict[str, MemoryIndex] = {}
        self.bookie: Bookie | None = None

    def kill(self) -> None:
        super().kill()
        self._lose_unsynced(1.0)

    def cut_power(self, unsynced: float = 0.5) -> None:
        """*unsynced*: how much of what was not synced is there afterwards, 0 to 1."""
        super().kill()
        self._lose_unsynced(unsynced)

    def wipe(self) -> None:
        """Put empty disks in the place of its own."""
        assert not self.is_up
        self.files, self.indexes = MemoryFiles(), {}

    async def stop(self) -> None:
        await super().stop()
        self._lose_unsynced(1.0)

    def _lose_unsynced(self, unsynced: float) -> None:
        rng = self.cluster.rng
        self.files = self.files.crash(rng, unsynced)
        self.indexes = {path: index.crash(rng, unsynced) for path, index in self.indexes.items()}

    def _open_index(self, directory: str, cache_bytes: int) -> Index:
        return self.indexes.setdefault(directory, MemoryIndex())

    async def _start(self, process: Process) -> None:
        cluster, parts = self.cluster, self._parts
        store = cluster.server.session(self.clock)
        parts.add("metadata", store.close)
        self.bookie = bookie = Bookie(
            self.config,
            store,
            self.clock,
            self.files,
            on_failure=self._failed,
            open_index=self._open_index,
            new_socket=cluster.network.new_socket,
        )
        await bookie.start()
        parts.add("bookie", bookie.stop)
        if self.recovery is not None:
            client = await open_client(
                store, self.clock, self.recovery, None, parts, root=ROOT, frame_bytes_max=self.config.frame_bytes_max
            )
            start_embedded(bookie.bookie_id, store, client, self.clock, self.recovery, parts, root=ROOT)


class BrokerMachine(Machine):
    """A broker."""

    def __init__(self, cluster: "SimulatedCluster", name: str, config: BrokerConfig) -> None:
        super().__init__(cluster, name)
        self.config = replace(
            config, service_port=BROKER_PORT, web_port=WEB_PORT, grpc_port=GRPC_PORT, advertised_address=name,
            bind_address="0.0.0.0",
        )  # fmt: skip
        self.broker: Broker | None = None

    @property
    def owned_bundles(self) -> list[str]:
        """`tenant/namespace/bundle` of what this broker has."""
        ownership = None if self.broker is None else self.broker.ownership
        return sorted(ownership.owned_bundles) if isinstance(ownership, BundleOwnership) else []

    @property
    def url(self) -> str:
        """Of the binary protocol."""
        return f"pulsar://{self.name}:{BROKER_PORT}"

    @property
    def grpc_address(self) -> str:
        """Of the topic API."""
        return f"{self.name}:{GRPC_PORT}"

    async def _start(self, process: Process) -> None:
        parts = self._parts
        store = self.cluster.server.session(self.clock)
        parts.add("metadata", store.close)
        bookkeeper = BookKeeper(store, self.clock, client_config(self.config))
        await bookkeeper.open()
        parts.add("ledger client", bookkeeper.close)
        self.broker = await start_broker(
            self.config,
            store,
            bookkeeper,
            self.clock,
            parts,
            version=__version__,
            on_failure=self._failed,
            new_socket=self.cluster.network.new_socket,
            new_grpc_server=SimulatedServer,
        )


class SimulatedCluster:
    """The machines, and what they stand on."""

    def __init__(self, loop: NetworkLoop, rng: random.Random, *, session_s: float = 6.0) -> None:
        self.loop = loop
        self.rng = rng
        self.clock = VirtualClock(loop)
        self.network = loop.network = Network(loop, rng)
        self.server = MetadataServer(loop, self.network, self.clock, rng, session_s)
        self.bookies: list[BookieMachine] = []
        self.brokers: list[BrokerMachine] = []

    async def start(self) -> None:
        """Make the cluster's records, and start all machines. Raises MagnetarError."""
        await initialise_cluster(self.server.root, ROOT)
        await asyncio.gather(*(machine.start() for machine in self.bookies))
        for machine in self.brokers:
            await machine.start()

    def add_bookie(self, config: BookieConfig = BOOKIE, recovery: AutoRecoveryConfig | None = None) -> BookieMachine:
        machine = BookieMachine(self, f"bookie-{len(self.bookies) + 1}", config, recovery)
        self.bookies.append(machine)
        return machine

    def add_broker(self, config: BrokerConfig) -> BrokerMachine:
        machine = BrokerMachine(self, f"broker-{len(self.brokers) + 1}", config)
        self.brokers.append(machine)
        return machine

    @property
    def machines(self) -> list[Machine]:
        return [*self.bookies, *self.brokers]
