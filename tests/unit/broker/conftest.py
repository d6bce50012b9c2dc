import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from broker.broker import Broker
from broker.grpc.service import GrpcServer
from broker.policies.namespace import new_policies
from broker.records.json_records import to_json
from broker.settings.config import BrokerConfig
from broker.tenancy.changes import initialise_cluster
from magnetar_core.bookkeeper.metadata.stores.memory import MemoryStore
from magnetar_core.runtime.clock import LoopClock
from magnetar_core.topics.topic_name import TopicName
from tests.support.memory_managed_ledger import MemoryLedgers, MemoryManagedLedger, MemorySchemas
from tests.support.sole_owner import SoleOwner

R = TypeVar("R")


@dataclass
class BrokerInMemory:
    """A broker over storage in memory, on a free port."""

    config: BrokerConfig
    store: MemoryStore
    ownership: SoleOwner
    ledgers: MemoryLedgers
    schemas: MemorySchemas
    broker: Broker
    doors: list[GrpcServer] = field(default_factory=list)
    """Also those of a test that failed are closed: gRPC waits without end for one that is only collected."""

    @property
    def url(self) -> str:
        return self.broker.address.service_url

    def ledger(self, topic: str) -> MemoryManagedLedger:
        return self.ledgers.by_name[TopicName.parse(topic).managed_ledger_name]

    async def run(self, scenario: Callable[..., R], *arguments: Any) -> R:
        """Run a client's blocking code beside the broker."""
        return await asyncio.to_thread(scenario, *arguments)

    async def set_policies(self, namespace: str, **members: Any) -> None:
        record = {**new_policies(self.config.cluster_name, 4), **members}
        await self.store.put(f"/admin/policies/{namespace}", to_json(record))

    async def restart(self, **changes: Any) -> None:
        """Stop the broker; another one, with other settings, goes on with what is stored."""
        await self.broker.close()
        self.config = replace(self.config, **changes)
        self.broker = _make(self)
        await self.broker.start()


def _make(world: BrokerInMemory) -> Broker:
    return Broker(
        world.config,
        world.store,
        None,
        LoopClock(),
        ownership=world.ownership,
        ledgers=world.ledgers,
        schemas=world.schemas,
    )


CONFIG = BrokerConfig(
    service_port=0,
    bind_address="127.0.0.1",
    advertised_address="127.0.0.1",
    cluster_name="lab",
    batch_index_acks=True,
    failover_delay_ms=50,
)


@asynccontextmanager
async def broker_in_memory() -> AsyncIterator[BrokerInMemory]:
    """A broker that runs until the block ends."""
    store = MemoryStore(LoopClock())
    await initialise_cluster(store, CONFIG)
    made = BrokerInMemory(CONFIG, store, SoleOwner(), MemoryLedgers(), MemorySchemas(), None)  # type: ignore[arg-type]
    made.broker = _make(made)
    await made.broker.start()
    yield made
    for door in made.doors:
        await door.stop()
    await made.broker.close()


@pytest.fixture
async def world() -> AsyncIterator[BrokerInMemory]:
    async with broker_in_memory() as made:
        yield made
