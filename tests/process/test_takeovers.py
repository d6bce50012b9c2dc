"""Brokers with many topics are stopped and killed under load: producers and consumers of official clients go on, and
the topics are open at the other broker whether or not anybody asks for them."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pulsar
import pytest

from magnetar.inspect.broker_admin import AdminClient
from magnetar.processes.cluster import Cluster
from tests.support.processes import QUIET, cluster_of, other_broker, owner_of, until
from tests.support.shared_cluster import BROKER_SETTINGS, heal
from tests.support.zookeeper import why_not

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]

TOPICS: Final = 20
CLIENTS: Final = 2
# Every so many messages one is larger than a read from a socket.
LARGE_EACH, LARGE_BYTES = 25, 300_000
BOOKIES, BROKERS = 3, 2
SHORT_LEDGERS: Final = {"managedLedgerMaxEntriesPerLedger": 20, "managedLedgerMinLedgerRolloverTimeMinutes": 0}


@pytest.fixture(scope="module")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    settings = {**BROKER_SETTINGS, **SHORT_LEDGERS}
    folder = tmp_path_factory.mktemp("takeovers")
    with cluster_of(folder, bookies=BOOKIES, brokers=BROKERS, broker_settings=settings) as cluster:
        yield cluster


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    return heal(_cluster)


class Traffic:
    """A producer and a Shared consumer for each topic, over some clients. Messages are `topic:number`."""

    def __init__(self, url: str, topics: list[str]) -> None:
        self.failures: Counter[str] = Counter()
        self.sent: Counter[int] = Counter()
        self.acknowledged: set[tuple[int, int]] = set()
        self.received: set[tuple[int, int]] = set()
        self._clients = [
            pulsar.Client(url, logger=QUIET, operation_timeout_seconds=60, io_threads=1) for _ in range(CLIENTS)
        ]
        self._consumers, self._producers = [], []
        for number, topic in enumerate(topics):
            client = self._clients[number % CLIENTS]
            self._consumers.append(
                client.subscribe(
                    topic,
                    "all",
                    consumer_type=pulsar.ConsumerType.Shared,
                    message_listener=self._on_message,
                )
            )
            self._producers.append(
                client.create_producer(
                    topic,
                    send_timeout_millis=0,
                    max_pending_messages=10_000,
                    batching_enabled=number % 2 == 0,
                )
            )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self._thread.start()

    def _publish(self) -> None:
        while not self._stop.wait(0.05):
            for topic, producer in enumerate(self._producers):
                number = self.sent[topic]
                self.sent[topic] += 1
                body = f"{topic}:{number}:".encode()
                if number % LARGE_EACH == topic % LARGE_EACH:
                    body = body.ljust(LARGE_BYTES, b".")
                producer.send_async(body, partial(self._on_sent, (topic, number)))

    def _on_sent(self, message: tuple[int, int], result: Any, _: Any) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.add(message)
        else:
            self.failures[str(result)] += 1

    def _on_message(self, consumer: Any, message: Any) -> None:
        topic, number, _ = message.data().split(b":", 2)
        self.received.add((int(topic), int(number)))
        consumer.acknowledge(message)

    def go_on(self, more: int = 20) -> None:
        """Until every topic has so many more messages acknowledged."""
        before = self._counts()

        def has_gone_on() -> bool:
            now = self._counts()
            return all(now[topic] >= before[topic] + more for topic in range(TOPICS))

        until(has_gone_on, f"{more} more messages of each topic are acknowledged", timeout_s=120)

    def _counts(self) -> Counter[int]:
        return Counter(topic for topic, _ in set(self.acknowledged))

    def finish(self) -> None:
        """All that was sent is acknowledged, and has come to the consumers."""
        self._stop.set()
        self._thread.join(10)
        every = {(topic, number) for topic, count in self.sent.items() for number in range(count)}
        until(lambda: self.acknowledged == every or bool(self.failures), "all are acknowledged", timeout_s=120)
        assert self.failures == {}
        until(lambda: self.received == every, "all have come", timeout_s=120)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        for client in self._clients:
            client.close()


def topics_in(namespace: str) -> list[str]:
    return [f"persistent://{namespace}/many-{number}" for number in range(TOPICS)]


@contextmanager
def traffic(cluster: Cluster, namespace: str) -> Iterator[Traffic]:
    made = Traffic(cluster.service_url, topics_in(namespace))
    try:
        yield made
    finally:
        made.close()


def stop(cluster: Cluster, name: str) -> None:
    cluster.kill(name, signal.SIGTERM)
    until(lambda: not cluster.is_running(name), f"{name} has stopped", timeout_s=60)


@pytest.mark.long("each broker is stopped and started while all topics are written")
def test_a_rolling_restart_under_load_loses_nothing_and_no_client_sees_an_error(
    cluster: Cluster, namespace: str
) -> None:
    with traffic(cluster, namespace) as load:
        load.go_on(30)
        for member in cluster.members("broker"):
            stop(cluster, member.name)
            load.go_on()
            cluster.start(member.name)
            until(lambda: len(AdminClient(cluster.admin_urls).call("GET", "/admin/v2/brokers")) == 2, "both serve")
        load.finish()


@pytest.mark.long(
    "each bookie is stopped while all topics are written; the rule is in tests/unit/bookie/test_leaving.py"
)
def test_bookies_that_are_stopped_in_turn_let_their_writers_go_first(cluster: Cluster, namespace: str) -> None:
    with traffic(cluster, namespace) as load:
        load.go_on(30)
        for member in cluster.members("bookie"):
            stop(cluster, member.name)
            load.go_on()
            cluster.start(member.name)
        load.finish()
        left = [member.name for member in cluster.members("bookie") if HAVE_LEFT in log_of(cluster, member.name)]
        assert len(left) >= 2, "ledgers of two copies are on two bookies at least"
        logs = [log_of(cluster, member.name) for member in cluster.members("broker")]
        assert any("are left, from entry" in log for log in logs)


HAVE_LEFT: Final = "its writers have left after"


def log_of(cluster: Cluster, name: str) -> str:
    """Also of its former life."""
    path = cluster.log_path(name)
    former = path.with_suffix(".old")
    return (former.read_text() if former.exists() else "") + path.read_text()


@pytest.mark.long("topics of one more killed broker; `tests/unit/broker/transfer/test_takeovers.py` has the rules")
def test_what_a_killed_broker_served_is_open_at_the_other_one_without_being_asked_for(
    cluster: Cluster, namespace: str
) -> None:
    with traffic(cluster, namespace) as load:
        load.go_on(30)
        idle = f"persistent://{namespace}/nobody-is-there"
        AdminClient(cluster.admin_urls).create_topic(idle, 0)
        victim = owner_of(cluster, idle)
        survivor = other_broker(cluster, victim)
        (web,) = [member for member in cluster.members("broker") if member.name == survivor]
        admin = AdminClient([f"http://127.0.0.1:{web.ports[1]}"])
        log = cluster.log_path(survivor)
        time.sleep(2)  # it tells what it serves each second
        cluster.kill(victim)
        until(lambda: idle in open_at(admin), "it is open at the other broker", timeout_s=60)
        assert "is gone or stops; making ready to serve" in log.read_text()
        load.go_on()
        cluster.start(victim)
        load.finish()


@pytest.mark.long("all topics are written until their consumers have everything")
def test_no_client_is_sent_to_a_broker_that_stands_still(cluster: Cluster, namespace: str) -> None:
    """The system accepts connections for a stopped process; its session lives on for a while, and so does its node."""
    with traffic(cluster, namespace) as load:
        load.go_on(30)
        topics = topics_in(namespace)
        victim = owner_of(cluster, topics[0])
        survivor = other_broker(cluster, victim)
        its = [topic for topic in topics if owner_of(cluster, topic) == victim]
        pid = cluster.member(victim).pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.5)  # longer than what was found a moment ago is used
        try:
            assert owner_of(cluster, its[0], ask=survivor) == survivor
            assert {owner_of(cluster, topic, ask=survivor) for topic in its} == {survivor}
        finally:
            os.kill(pid, signal.SIGCONT)
        load.go_on()
        load.finish()


def open_at(admin: AdminClient) -> set[str]:
    found = admin.call("GET", "/admin/v2/broker-stats/topics")
    return {
        topic
        for bundles in found.values()
        for kinds in bundles.values()
        for topics in kinds.values()
        for topic in topics
    }
