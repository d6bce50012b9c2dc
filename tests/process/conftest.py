"""What the tests of this folder share, in each worker: made when it is first asked for, and gone behind the folder."""

import itertools
from collections.abc import Iterator

import pytest

from magnetar.processes.cluster import Cluster
from magnetar.testing.plugin import _follow
from magnetar.testing.servers import new_namespace
from tests.support.shared_cluster import SharedCluster
from tests.support.zookeeper import ZooKeeperServer

_numbers = itertools.count()


@pytest.fixture(scope="package")
def _shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedCluster]:
    made = SharedCluster(lambda: tmp_path_factory.mktemp("cluster"))
    yield made
    made.stop()


@pytest.fixture
def cluster(_shared_cluster: SharedCluster, request: pytest.FixtureRequest) -> Cluster:
    """Five bookies with auto-recovery, two brokers and ZooKeeper, all of them well. A test may kill and drain at will;
    it works in `namespace`."""
    made = _shared_cluster.whole()
    names = [member.name for kind in ("broker", "bookie") for member in made.members(kind)]
    _follow(request, {name: made.log_path(name) for name in names})
    return made


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> str:
    """Of this test alone; tenant/namespace."""
    return new_namespace(cluster.admin_urls, request.node.name)


@pytest.fixture
def topic(namespace: str) -> str:
    """A name in `namespace`; there is no such topic yet."""
    return f"persistent://{namespace}/load"


@pytest.fixture(scope="package")
def _zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper(_zookeeper: ZooKeeperServer) -> str:
    """host:port/path of a ZooKeeper whose tree below the path is this test's own. Nobody stops it."""
    return f"{_zookeeper.hosts}/test-{next(_numbers)}"
