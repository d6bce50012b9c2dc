"""A broker over storage in memory, with both doors open."""

from collections.abc import AsyncIterator

import pytest

from broker.grpc.service import GrpcServer
from broker.ownership.rules import GRPC_LISTENER
from magnetar.client.async_client import AsyncClient
from tests.unit.broker.conftest import BrokerInMemory, world

__all__ = ["world"]


async def open_grpc(made: BrokerInMemory) -> GrpcServer:
    """The gRPC door of the world's broker; other brokers' lookups find it."""
    server = GrpcServer(made.broker)
    made.doors.append(server)
    port = await server.start("127.0.0.1", 0)
    listeners = {**made.broker.address.listeners, GRPC_LISTENER: (f"grpc://127.0.0.1:{port}", "")}
    made.broker.address = made.broker.address._replace(listeners=listeners)
    return server


@pytest.fixture
async def door(world: BrokerInMemory) -> AsyncIterator[GrpcServer]:
    server = await open_grpc(world)
    yield server
    await server.stop()


@pytest.fixture
async def client(door: GrpcServer) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(f"127.0.0.1:{door.port}", operation_timeout_s=30) as made:
        yield made
