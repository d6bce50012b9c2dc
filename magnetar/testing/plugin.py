"""Fixtures for pytest: `pulsar_server`, `volatile_pulsar_server`, `pulsar_cluster`. See docs/testing.md.

Loaded by pytest wherever Magnetar is installed; nothing but pytest and the standard library is imported before a
fixture is used. The report of a failed test shows what the servers logged while the test ran.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from magnetar.testing.servers import ClusterUnderTest, ServerUnderTest, TopicPlace

# A file system in memory, where there is one.
_MEMORY = Path("/dev/shm")

# How much of each server's log is shown with a failed test; if there is more, only the end is shown.
_LOG_LINES_MAX = 50
_LOG_BYTES_MAX = 64 * 1024

# What a test keeps: the server logs by name, and how long each was when the test began.
_LOGS = pytest.StashKey[dict[str, tuple[Path, int]]]()


def _follow(request: pytest.FixtureRequest, logs: dict[str, Path]) -> None:
    followed = request.node.stash.setdefault(_LOGS, {})
    for name, path in logs.items():
        followed[name] = path, path.stat().st_size if path.exists() else 0


def _text_since(path: Path, start: int) -> str:
    """The text that was written to a log after byte *start*; only its end if it is long. A log that is shorter than
    *start* was begun anew: then it is all of the log."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            begin = start if start <= size else 0
            log.seek(max(begin, size - _LOG_BYTES_MAX))
            lines = log.read().decode(errors="replace").splitlines()
    except OSError as error:
        return str(error)
    cut = max(len(lines) - _LOG_LINES_MAX, 0)
    return "\n".join([f"… {cut} lines before", *lines[cut:]] if cut else lines)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and _LOGS in item.stash:
        for name, (path, start) in item.stash[_LOGS].items():
            text = _text_since(path, start)
            if text:
                report.sections.append((f"log of {name} ({path})", text))


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

    with cluster(tmp_path_factory.mktemp("pulsar-cluster")) as cluster_under_test:
        yield cluster_under_test


@pytest.fixture
def pulsar_server(_magnetar_server: "ServerUnderTest", request: pytest.FixtureRequest) -> "TopicPlace":
    """A Pulsar-compatible server that syncs to disk: `service_url`, `admin_url`, `grpc_url`, and a namespace for this
    test: `namespace`, `topic(name)`. One process for the whole run.

    Example:
        def test_orders_are_stored(pulsar_server):
            client = pulsar.Client(pulsar_server.service_url)
            client.create_producer(pulsar_server.topic("orders")).send(b"first")
            client.close()
    """
    _follow(request, _magnetar_server.logs())
    return _magnetar_server.fresh(request.node.name)


@pytest.fixture
def volatile_pulsar_server(
    _magnetar_volatile_server: "ServerUnderTest", request: pytest.FixtureRequest
) -> "TopicPlace":
    """As `pulsar_server`, with its data in memory (/dev/shm, where there is one): faster, and nothing survives the
    machine.

    Example:
        def test_orders_are_stored(volatile_pulsar_server):
            with magnetar.Client(volatile_pulsar_server.grpc_url) as client:
                client.producer(volatile_pulsar_server.topic("orders")).send(b"first")
    """
    _follow(request, _magnetar_volatile_server.logs())
    return _magnetar_volatile_server.fresh(request.node.name)


@pytest.fixture
def pulsar_cluster(_magnetar_cluster: "ClusterUnderTest", request: pytest.FixtureRequest) -> "ClusterUnderTest":
    """Three bookies, two brokers and ZooKeeper, with `kill_broker()`, `kill_bookie()`, `restart()`, `pause()`, and a
    namespace for this test. What a test broke is started again before the next one.

    Example:
        def test_a_broker_dies(pulsar_cluster):
            topic = pulsar_cluster.topic("orders")
            with magnetar.Client(pulsar_cluster.grpc_url) as client:
                client.producer(topic).send(b"before")
                pulsar_cluster.kill_broker(serving=topic)
                client.producer(topic).send(b"after")
    """
    _magnetar_cluster.heal()
    _follow(request, _magnetar_cluster.logs())
    _magnetar_cluster.fresh(request.node.name)
    return _magnetar_cluster
