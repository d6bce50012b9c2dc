"""Real servers for the tests of applications: `standalone()` and `cluster()` for any framework, fixtures for pytest;
and `simulated_cluster()`, which runs hours of an asyncio application in seconds.

    with magnetar.testing.standalone() as server:
        client = pulsar.Client(server.service_url)

See docs/testing.md. Only the standard library is loaded before something is started.
"""

import importlib
from typing import TYPE_CHECKING

from magnetar.testing.servers import (
    ClusterUnderTest,
    ServerFailed,
    ServerUnderTest,
    TopicPlace,
    cluster,
    standalone,
)

if TYPE_CHECKING:
    from magnetar.testing.simulated.under_test import SimulatedClusterUnderTest


def simulated_cluster(seed: int = 0, *, bookies: int = 3, brokers: int = 2) -> "SimulatedClusterUnderTest":
    """A cluster under virtual time, in this process; *seed* decides everything that is random.

    Example:
        cluster = magnetar.testing.simulated_cluster(seed=7)

        async def application():
            async with magnetar.AsyncClient(cluster.grpc_url) as client:
                producer = client.producer("orders")
                await producer.send(b"before")
                cluster.kill(serving="orders")
                await producer.send(b"after")

        cluster.run(application())
    """
    # By its name: who imports another part of this package depends on no server.
    module = importlib.import_module("magnetar.testing.simulated.under_test")
    made: SimulatedClusterUnderTest = module.SimulatedClusterUnderTest(seed, bookies, brokers)
    return made


__all__ = [
    "ClusterUnderTest",
    "ServerFailed",
    "ServerUnderTest",
    "TopicPlace",
    "cluster",
    "simulated_cluster",
    "standalone",
]
