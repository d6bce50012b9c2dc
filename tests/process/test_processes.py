"""Services of several processes (`--processes`), with real processes and the official client."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar_core.security.tls.contexts import usual_context
from tests.support.processes import QUIET, until
from tests.support.services import Service, bookies, brokers, call, get, wait_until_gone
from tests.support.tls_files import Authority
from tests.support.zookeeper import ZooKeeperServer, why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPICS = 16


@pytest.fixture(scope="module")
def _services(
    tmp_path_factory: pytest.TempPathFactory, _zookeeper: ZooKeeperServer
) -> Iterator[tuple[Service, Service]]:
    """Bookies and brokers."""
    folder, tree = tmp_path_factory.mktemp("services"), f"{_zookeeper.hosts}/services"
    with bookies(folder / "bookies", tree) as stored, brokers(folder / "brokers", tree) as served:
        yield stored, served


@pytest.fixture
def stored(_services: tuple[Service, Service]) -> Service:
    """Bookies that run; started again if the test before has stopped them."""
    stored, _ = _services
    if not stored.is_running:
        stored.start()
    return stored


@pytest.fixture
def served(_services: tuple[Service, Service], stored: Service) -> Service:
    """The same of brokers."""
    _, served = _services
    if not served.is_running:
        served.start()
    return served


@pytest.fixture
def topics(served: Service, request: pytest.FixtureRequest) -> list[str]:
    """In a namespace of so many bundles that both brokers have some."""
    namespace = f"public/{request.node.name}"
    body = {"bundles": {"numBundles": TOPICS}}
    assert asyncio.run(call("PUT", f"{served.url}/admin/v2/namespaces/{namespace}", body))[0] == 204
    return _topics_in(namespace)


def _topics_in(namespace: str) -> list[str]:
    return [f"persistent://{namespace}/topic-{number}" for number in range(TOPICS)]


def _ask(url: str) -> object:
    status, found = asyncio.run(get(url))
    assert status == 200, f"{url}: {status} {found}"
    return found


def _owners(service: Service, topics: list[str]) -> dict[str, str]:
    """Topic → the binary address of its owner."""
    found = {}
    for topic in topics:
        answer = _ask(f"{service.url}/lookup/v2/topic/{topic.replace('://', '/')}")
        assert isinstance(answer, dict)
        found[topic] = answer["brokerUrl"]
    return found


def _publish(client: pulsar.Client, topics: list[str], round: int) -> None:
    for topic in topics:
        producer = client.create_producer(topic)
        producer.send(f"{topic} {round}".encode())
        producer.close()


def _read(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(20_000).data() for _ in range(count)]
    reader.close()
    return found


def test_brokers_of_a_service_share_the_topics_and_speak_at_one_address(served: Service, topics: list[str]) -> None:
    client = pulsar.Client(served.service_url, logger=QUIET)
    try:
        _publish(client, topics, 1)
        owners = _owners(served, topics)
        assert len(set(owners.values())) == 2, "both brokers own topics"
        for topic in topics:  # admin calls for the topics of either, through the one address
            stats = _ask(f"{served.url}/admin/v2/{topic.replace('://', '/')}/stats")
            assert isinstance(stats, dict)
            assert stats["msgInCounter"] == 1
        told = _ask(f"{served.url}/metrics")
        assert isinstance(told, str)
        for topic in topics:
            assert len(re.findall(rf'^pulsar_in_messages_total{{[^}}]*topic="{topic}"', told, re.M)) == 1
        assert told.count("# TYPE pulsar_in_messages_total ") == 1
        assert 'process="0"' in told
        assert 'process="1"' in told
        listed = _ask(f"{served.url}/admin/v2/brokers/local")
        assert isinstance(listed, list)
        assert len(listed) == 2
        assert _ask(f"{served.url}/admin/v2/brokers/health") == "ok"
        namespace = topics[0].removeprefix("persistent://").rpartition("/")[0]
        by_namespace = _ask(f"{served.url}/admin/v2/broker-stats/topics")
        assert isinstance(by_namespace, dict)
        told_topics = {one for bundle in by_namespace[namespace].values() for one in bundle["persistent"]}
        assert set(topics) <= told_topics
    finally:
        client.close()


def test_a_broker_that_is_killed_is_replaced_and_comes_back(served: Service, topics: list[str]) -> None:
    client = pulsar.Client(served.service_url, logger=QUIET)
    # The killed broker comes back at another port, and each topic would take a client that asks at both 0.4 s.
    address = served.service_url.partition(",")[0]
    direct = pulsar.Client(address, logger=QUIET)
    try:
        _publish(client, topics, 1)
        orphans = [topic for topic, owner in _owners(served, topics).items() if owner != address]
        first, second = served.children()
        served.kill(second)
        _publish(client, orphans[:1], 2)
        _publish(direct, [topic for topic in topics if topic != orphans[0]], 2)
        for topic in topics:
            assert _read(direct, topic, 2) == [f"{topic} {round}".encode() for round in (1, 2)]
        until(lambda: len(served.children()) == 2 and second not in served.children(), "the broker is started again")
        assert first in served.children(), "the other one went on"
        until(lambda: asyncio.run(get(f"{served.url}/admin/v2/brokers/ready"))[0] == 200, "both are ready")
        until(lambda: len(_ask(f"{served.url}/admin/v2/brokers/local")) == 2, "both are registered")  # type: ignore[arg-type]
        assert served.log.read_text().count("it is started again") == 1
    finally:
        client.close()
        direct.close()


def test_bookies_of_a_service_are_asked_one_by_one_or_together(stored: Service) -> None:
    api = f"{stored.url}/api/v1"
    states = _ask(f"{api}/bookie/state")
    assert isinstance(states, dict)
    assert set(states) == {"mine", "mine-1"}
    assert all(one["running"] for one in states.values())
    told = _ask(f"{stored.url}/metrics")
    assert isinstance(told, str)
    assert 'process="0"' in told
    assert 'process="1"' in told
    assert asyncio.run(get(f"{stored.url}/api/v1/bookie/is_ready"))[0] == 200
    status, text = asyncio.run(call("PUT", f"{api}/bookie/state/readonly", {"readOnly": True}))
    assert status == 400
    assert "mine, mine-1" in text
    status, _ = asyncio.run(call("PUT", f"{api}/bookie/state/readonly?bookie=mine-1", {"readOnly": True}))
    assert status == 200
    assert _ask(f"{api}/bookie/state/readonly") == {"mine": {"readOnly": False}, "mine-1": {"readOnly": True}}
    assert _ask(f"{api}/bookie/state/readonly?bookie=mine") == {"readOnly": False}
    status, _ = asyncio.run(call("PUT", f"{api}/bookie/state/readonly?bookie=mine-1", {"readOnly": False}))
    assert status == 200


def test_one_stop_ends_all_brokers_of_a_service(served: Service) -> None:
    assert served.stop(signal.SIGTERM) == 0
    assert served.orphans() == []


def test_brokers_and_bookies_end_when_their_service_is_killed(served: Service, stored: Service) -> None:
    served.stop(signal.SIGKILL)
    wait_until_gone(served)
    stored.stop(signal.SIGKILL)
    wait_until_gone(stored)
    assert served.orphans() == stored.orphans() == []


def _type(*arguments: str) -> str:
    found = subprocess.run(
        [sys.executable, "-m", "magnetar", *arguments], capture_output=True, text=True, timeout=90, check=False
    )
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.mark.long("services are started eight times")
def test_fewer_bookies_start_only_when_the_others_are_drained(tmp_path: Path, zookeeper: str) -> None:
    store, topics = f"zk://{zookeeper}/ledgers", _topics_in("public/default")
    with bookies(tmp_path / "bookies", zookeeper, 1) as service:
        service.stop()
        service.start("--processes", "2")  # what one had stays where it is
        with brokers(tmp_path / "brokers", zookeeper) as served:
            client = pulsar.Client(served.service_url, logger=QUIET)
            _publish(client, topics, 1)
            client.close()
            served.stop()
        held = [_ask(f"{service.url}/api/v1/magnetar/ledgers?bookie={one}") for one in ("mine", "mine-1")]
        assert all(held), "both bookies store ledgers"
        service.stop()
        code, said = service.refused("--processes", "1")
        assert code == 1
        assert "mine-1" in said
        assert "magnetar bookies drain mine-1" in said
        service.start("--processes", "2")
        _type("bookies", "drain", "mine-1", "--wait", "--timeout", "60", "--metadata", store)
        service.stop()
        service.start("--processes", "1")
        with brokers(tmp_path / "brokers", zookeeper) as served:
            client = pulsar.Client(served.service_url, logger=QUIET)
            for topic in topics:
                assert _read(client, topic, 1) == [f"{topic} 1".encode()]
            client.close()


@pytest.mark.long("services of its own")
def test_brokers_with_https_alone_speak_at_one_https_address(tmp_path: Path, zookeeper: str) -> None:
    topics = _topics_in("public/default")
    authority = Authority(tmp_path / "authority")
    shown = authority.folder("broker", host="IP:127.0.0.1")
    tls = {"webServicePort": "", "webServicePortTls": "0", "tlsCertificateFilePath": str(shown / "tls.crt")}
    tls["tlsKeyFilePath"] = str(shown / "tls.key")
    with bookies(tmp_path / "bookies", zookeeper, 1), brokers(tmp_path / "brokers", zookeeper, **tls) as served:
        found = re.search(r"HTTPS (https://[^\s,]+)", served.ready_line)
        assert found is not None
        trusted = usual_context(str(authority.certificate))
        client = pulsar.Client(served.service_url, logger=QUIET)
        _publish(client, topics, 1)
        client.close()
        for topic in topics:  # those of the other broker are redirects, which are followed inside
            status, stats = asyncio.run(get(f"{found[1]}/admin/v2/{topic.replace('://', '/')}/stats", trusted))
            assert status == 200
            assert stats["msgInCounter"] == 1
