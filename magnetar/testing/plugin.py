"""Fixtures for pytest: `pulsar_server`, `volatile_pulsar_server`, `pulsar_cluster`. See docs/testing.md.

Loaded by pytest wherever Magnetar is installed; nothing but pytest and the standard library is imported before a
fixture is used.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from magnetar.testing.servers import ClusterUnderTest, ServerUnderTest, TopicPlace

# A file system in memory, where there is one.
_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="session")
def _magnetar_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ServerUnderTest"]:
    from magnetar.testing.servers import standalone

    with standalone(tmp_path_factory.mktemp("pulsar")) as server:
        yield server


@pytest.fixture(scope="session")
def _magnetar_volatile_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ServerUnderTest"]:
    import tempfile

    from magnetar.testing.servers import standalone

    memory = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else tmp_path_factory.mktemp("pulsar")
    with tempfile.TemporaryDirectory(prefix="magnetar-", dir=memory) as directory, standalone(directory) as server:
        yield server


@pytest.fixture(scope="session")
def _magnetar_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ClusterUnderTest"]:
    from magnetar.testing.servers import cluster

    with cluster(tmp_path_factory.mktemp("pulsar-cluster")) as made:
        yield made


@pytest.fixture
def pulsar_server(_magnetar_server: "ServerUnderTest", request: pytest.FixtureRequest) -> "TopicPlace":
    """A Pulsar-compatible server that syncs to disk: `service_url`, `admin_url`, `grpc_url`, and a namespace for this
    test: `namespace`, `topic(name)`. One process for the whole run."""
    return _magnetar_server.fresh(request.node.name)


@pytest.fixture
def volatile_pulsar_server(
    _magnetar_volatile_server: "ServerUnderTest", request: pytest.FixtureRequest
) -> "TopicPlace":
    """The same with its data in memory (/dev/shm, where there is one): faster, and nothing survives the machine."""
    return _magnetar_volatile_server.fresh(request.node.name)


@pytest.fixture
def pulsar_cluster(_magnetar_cluster: "ClusterUnderTest", request: pytest.FixtureRequest) -> "ClusterUnderTest":
    """Three bookies, two brokers and ZooKeeper, with `kill_broker()`, `kill_bookie()`, `restart()`, `pause()`, and a
    namespace for this test. What a test broke is started again before the next one."""
    _magnetar_cluster.heal()
    _magnetar_cluster.fresh(request.node.name)
    return _magnetar_cluster
