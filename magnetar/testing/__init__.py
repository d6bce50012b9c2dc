"""Real servers for the tests of applications: `standalone()` and `cluster()` for any framework, fixtures for pytest;
and `simulated_cluster()`, which runs hours of an asyncio application in seconds.

    with magnetar.testing.standalone() as server:
        client = pulsar.Client(server.service_url)

See docs/testing.md. Only the standard library is loaded before something is started.
"""

import importlib
import importlib.util
from pathlib import Path
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

    Raises ServerFailed where the project has packages of the names of ours.

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
    home = Path(__file__).parent.parent.parent
    for name in ("autorecovery", "bookie", "broker", "magnetar_core", "managed_ledger"):
        spec = importlib.util.find_spec(name)
        places = [] if spec is None else spec.submodule_search_locations or [spec.origin or ""]
        if str(home / name) not in places:
            raise ServerFailed(
                f"simulated_cluster runs Magnetar's package {name} in this process, and here {', '.join(places)} has "
                "that name: rename that one, or run these tests where it cannot be imported"
            )
    # By its name: who imports another part of this package depends on no server.
    module = importlib.import_module("magnetar.testing.simulated.under_test")
    cluster: SimulatedClusterUnderTest = module.SimulatedClusterUnderTest(seed, bookies, brokers)
    return cluster


__all__ = [
    "ClusterUnderTest",
    "ServerFailed",
    "ServerUnderTest",
    "TopicPlace",
    "cluster",
    "simulated_cluster",
    "standalone",
]
