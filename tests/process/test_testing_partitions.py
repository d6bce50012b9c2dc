"""Servers of a real cluster are cut off from everything, as by a network that loses every packet, and come back.

What must hold: no acknowledged message is lost, none is stored twice, and a server that was cut off acknowledges
nothing more. The clients are the official one, with its own time limits, the topic API's, and one that never gives up.
"""

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

import magnetar
import magnetar.testing
from broker.wire import pulsar_pb2 as wire
from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from magnetar.testing import ClusterUnderTest
from tests.support.processes import Load, bookies_of, client_of, prepare, until
from tests.support.raw_producer import RawProducer
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

# The official client asks whether a silent broker is still there every 30 s, and gives it as long to answer.
SILENCE_S = 150.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def _cluster(folder: Path) -> Iterator[ClusterUnderTest]:
    with magnetar.testing.cluster(folder) as made:
        prepare(AdminClient([made.admin_url]))
        yield made


@pytest.fixture
def cluster(_cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> ClusterUnderTest:
    _cluster.heal()
    _cluster.fresh(request.node.name)
    return _cluster


def topic_of(request: pytest.FixtureRequest) -> str:
    """In the namespace that de-duplicates."""
    return f"persistent://public/default/{request.node.name}"


def other(cluster: ClusterUnderTest, broker: str) -> str:
    return next(name for name in cluster.brokers if name != broker)


def payloads(cluster: ClusterUnderTest, topic: str) -> list[bytes]:
    with client_of(cluster.service_url) as client:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        found = []
        while reader.has_message_available():
            found.append(reader.read_next(30_000).data())
        return found


def broker_address(cluster: ClusterUnderTest, broker: str) -> tuple[str, int]:
    urls = cluster.service_url.removeprefix("pulsar://").split(",")
    host, _, port = urls[cluster.brokers.index(broker)].partition(":")
    return host, int(port)


def taken_over(cluster: ClusterUnderTest, topic: str, away: str) -> None:
    """Wait until the others see that *away* is gone: for a moment lookups may still be answered from old knowledge."""
    until(lambda: cluster.owner(topic) == other(cluster, away), f"{away} loses {topic}")


@pytest.mark.parametrize("silent", [
    False, pytest.param(True, marks=pytest.mark.long("the official client notices silence after 70 s")),
])  # fmt: skip
def test_the_serving_broker_is_cut_off_and_the_official_client_goes_on(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest, silent: bool
) -> None:
    topic = topic_of(request)
    with Load(cluster.service_url, topic) as load:
        load.wait_for(3_000)
        with load.rush():
            away = cluster.partition_away(serving=topic, silent=silent)
        assert cluster.is_running(away)
        so_far = load.acknowledged
        taken_over(cluster, topic, away)
        until(lambda: load.acknowledged >= so_far + 3_000, "the producer goes on", SILENCE_S)
        cluster.heal(away)
        load.wait_for(1_000)
        # It serves again: the other one goes.
        second = cluster.partition_away(serving=topic, silent=False)
        assert second == other(cluster, away)
        load.wait_for(3_000)
        taken_over(cluster, topic, second)
        cluster.heal()
        load.finish()
        load.check()


@pytest.mark.long("it waits until the client notices silence")
def test_the_topic_api_goes_on_too(cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> None:
    topic = topic_of(request)
    with magnetar.Client(cluster.grpc_url) as client:
        producer = client.producer(topic, send_timeout_s=SILENCE_S)
        producer.send(b"before")
        away = cluster.partition_away(serving=topic)
        producer.send(b"during")
        taken_over(cluster, topic, away)
        cluster.heal(away)
        producer.send(b"after")
    assert payloads(cluster, topic) == [b"before", b"during", b"after"]


def test_who_was_cut_off_acknowledges_nothing_any_more(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> None:
    topic = topic_of(request)
    with client_of(cluster.service_url) as client:
        client.create_producer(topic).close()
        zombie = cluster.owner(topic)
        with RawProducer(broker_address(cluster, zombie), topic, "old") as old:
            old.send(0, b"acknowledged")
            receipt = old.next()
            assert receipt is not None
            assert receipt.type == wire.BaseCommand.SEND_RECEIPT
            cluster.partition_away(zombie)
            old.send(1, b"too late")
            taken_over(cluster, topic, zombie)
            # The official client gives up where the first broker that it knows does not answer.
            host, port = broker_address(cluster, other(cluster, zombie))
            with client_of(f"pulsar://{host}:{port}") as another:
                another.create_producer(topic, send_timeout_millis=0).send(b"under the new owner")
            cluster.heal(zombie)  # the stalled bytes arrive there now
            old.ping()  # answered when they were read
            while (said := old.next()) is not None and said.type != wire.BaseCommand.PONG:
                assert said.type != wire.BaseCommand.SEND_RECEIPT, "a broker that has lost the topic acknowledges"
            while (said := old.next(0.5)) is not None:
                assert said.type != wire.BaseCommand.SEND_RECEIPT, "a broker that has lost the topic acknowledges"
    found = payloads(cluster, topic)
    assert found == [b"acknowledged", b"under the new owner"]


@pytest.mark.long("one more takeover, and three seconds in which nothing may arrive")
def test_what_a_zombie_had_sent_to_bookies_is_acknowledged_only_if_it_stays(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> None:
    """The broker still hears its client, but its bookies do not hear it. What they stored before the new owner fenced
    them is part of the topic, and may be acknowledged by both."""
    topic = topic_of(request)
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"first")
        zombie = cluster.owner(topic)
        with RawProducer(broker_address(cluster, zombie), topic, "old") as old:
            cluster.pause(zombie)
            for number in range(50):
                old.send(number, b"%d in its buffer when it goes on" % number)
            cluster.partition_away(zombie)
            cluster.resume(zombie)  # it reads them and sends them to bookies, which they do not reach
            taken_over(cluster, topic, zombie)
            cluster.heal(zombie)
            acknowledged: list[int] = []
            while (said := old.next(3.0)) is not None:
                if said.type == wire.BaseCommand.SEND_RECEIPT:
                    acknowledged.append(said.send_receipt.sequence_id)
        producer.send(b"second")
    found = payloads(cluster, topic)
    assert found[0] == b"first"
    assert found[-1] == b"second"
    stored = [int(payload.split()[0]) for payload in found[1:-1]]
    assert stored == list(range(len(stored)))
    assert acknowledged == stored[: len(acknowledged)]


@pytest.mark.long("a broker gives up a silent bookie after 30 s")
def test_a_bookie_is_cut_off_and_publishing_goes_on(
    cluster: ClusterUnderTest, folder: Path, request: pytest.FixtureRequest
) -> None:
    topic = topic_of(request)
    processes = Cluster(folder / "cluster")
    with Load(cluster.service_url, topic) as load:
        load.wait_for(2_000)
        away = bookies_of(processes, topic)[0]
        with load.rush():
            assert cluster.partition_away(away) == away
        so_far = load.acknowledged
        # A bookie that does not answer is given up when the time of a request is over.
        until(lambda: load.acknowledged >= so_far + 5_000, "publishing goes on", SILENCE_S)
        assert away not in bookies_of(processes, topic), "another bookie has taken its place"
        assert cluster.is_running(away)
        cluster.heal(away)
        # It is registered again, and takes entries: of the two others one ends.
        cluster.kill_bookie(bookies_of(processes, topic)[0])
        load.wait_for(5_000)
        load.finish()
        load.check()


@pytest.mark.long("two takeovers, with the start of a broker between them")
def test_who_is_cut_off_can_be_killed_and_started_again(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest
) -> None:
    topic = topic_of(request)
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"one")
        away = cluster.partition_away(serving=topic, silent=False)
        producer.send(b"two")
        assert cluster.kill_broker(away) == away
        assert not cluster.is_running(away)
        cluster.restart(away)
        cluster.partition_away(serving=topic, silent=False)
        producer.send(b"three")
        taken_over(cluster, topic, other(cluster, away))
    cluster.heal()
    assert payloads(cluster, topic) == [b"one", b"two", b"three"]


def test_zookeeper_is_out_of_reach_for_a_while(cluster: ClusterUnderTest, request: pytest.FixtureRequest) -> None:
    topic = topic_of(request)
    with client_of(cluster.service_url) as client:
        producer = client.create_producer(topic, send_timeout_millis=0)
        producer.send(b"before")
        cluster.partition_away("zookeeper")
        producer.send_async(b"during", lambda result, _: None)
        cluster.heal()
        producer.send(b"after")
    assert payloads(cluster, topic) == [b"before", b"during", b"after"]
